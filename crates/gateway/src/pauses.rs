//! Listeners that are asked again after a while.
//!
//! A listener brings an event for a connection that comes, and none for one that waits since the
//! process had no descriptor for it.
//!
//! Cost: an entry for each such listener, and a look at each per [`PAUSE`].

use std::collections::HashSet;
use std::time::{Duration, Instant};

/// The longest time until a listener is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// The listeners that pause, by their places.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    places: HashSet<usize>,
    /// When all of them are asked again.
    due: Option<Instant>,
}

impl Pauses {
    /// Has a listener asked again after a while.
    pub(crate) fn add(&mut self, place: usize, now: Instant) {
        self.places.insert(place);
        self.due.get_or_insert(now + PAUSE);
    }

    /// When [`take`](Self::take) is to be called.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due
    }

    /// Takes those that are to be asked again.
    pub(crate) fn take(&mut self, now: Instant) -> HashSet<usize> {
        if self.due.take_if(|due| *due <= now).is_none() {
            return HashSet::new();
        }
        std::mem::take(&mut self.places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_asked_again_when_the_first_is_due() {
        let (mut pauses, start) = (Pauses::default(), Instant::now());
        assert_eq!(pauses.next(), None);
        pauses.add(1, start);
        pauses.add(2, start + PAUSE / 2);
        pauses.add(1, start + PAUSE / 2);
        assert!(pauses.take(start).is_empty());
        assert_eq!(pauses.next(), Some(start + PAUSE));
        assert_eq!(pauses.take(start + PAUSE), HashSet::from([1, 2]));
        assert_eq!(pauses.next(), None);
        assert!(pauses.take(start + 2 * PAUSE).is_empty());
    }
}
