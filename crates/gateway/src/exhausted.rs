//! Destinations towards which the host has no port left.
//!
//! The kernel looks at all ports before it says so (`EADDRNOTAVAIL`), which takes milliseconds of
//! the thread that serves all flows. So it is not asked again for a while, and a guest that goes on
//! connecting does not hold up the others.
//!
//! Cost: a comparison per connection while no destination is in it, and at most [`MOST`] while
//! there are.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long the host is not asked again.
const PAUSE: Duration = Duration::from_millis(250);
/// Destinations that are remembered. Beyond that the oldest is forgotten.
const MOST: usize = 64;

/// Destinations, and until when the host is not asked. The oldest is the first.
#[derive(Debug, Default)]
pub(crate) struct Exhausted(VecDeque<(SocketAddr, Instant)>);

impl Exhausted {
    /// Whether the host is not to be asked for a connection to `to`.
    pub(crate) fn has(&mut self, to: SocketAddr, now: impl FnOnce() -> Instant) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let now = now();
        while self.0.pop_front_if(|(_, until)| *until <= now).is_some() {}
        self.0.iter().any(|(one, _)| *one == to)
    }

    /// The host has no port for `to`.
    pub(crate) fn note(&mut self, to: SocketAddr, now: Instant) {
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back((to, now + PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_left_alone_for_a_while_and_others_are_not() {
        let (mut exhausted, start) = (Exhausted::default(), Instant::now());
        let to = |port| SocketAddr::from(([192, 0, 2, 1], port));
        assert!(!exhausted.has(to(80), || panic!("no clock is read without need")));
        exhausted.note(to(80), start);
        assert!(exhausted.has(to(80), || start + PAUSE / 2));
        assert!(!exhausted.has(to(81), || start + PAUSE / 2));
        assert!(!exhausted.has(to(80), || start + PAUSE));
        for port in 0..2 * MOST as u16 {
            exhausted.note(to(port), start);
        }
        assert_eq!(exhausted.0.len(), MOST);
        assert!(exhausted.has(to(2 * MOST as u16 - 1), || start));
    }
}
