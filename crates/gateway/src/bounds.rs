//! What one flow can hold at most, and the whole gateway.
//!
//! From a guest to the host: [`RECEIVED`] in the stack, of which the guest's window is a part; in
//! the relay what one call sends and a piece more ([`MOST_PIECE`](crate::MOST_PIECE)); in the
//! kernel of the host what is not sent yet ([`LowWater`]) and what one call sends, besides what is
//! on its way to the destination. From the host to a guest: what the kernel has received (its
//! `tcp_rmem`), in the relay twice what the stack took before, which is a piece at least, and
//! a visit's worth and a piece at most, and in the stack what is not sent yet ([`NOT_SENT_MICROS`],
//! [`NOT_SENT`]) besides what is on its way to the guest ([`SENT`]). What does not fit stays with
//! its sender, whose window is closed. The memory of what waits in the relay is at most about twice
//! its bytes.
//!
//! The whole gateway holds at most that for each of `GatewayConfig::most_flows` flows. The stack
//! never holds more than its `net.ipv4.tcp_mem`. All relays together hold the second value of that
//! and a visit's worth, and beyond it 4 KiB per flow and direction ([`Held`]): 120 MB for 15,000
//! flows. An idle flow holds nothing of it. The same holds for the relays of all
//! [`Doors`](crate::doors::Doors).

use crate::guest_rate;
use neap::time::Rate;
use neap::{SocketOptions, Stack};
use std::io;
use std::time::{Duration, Instant};

/// Largest receive buffer of the stack, in bytes of memory. A guest is less than a millisecond
/// away.
const RECEIVED: u32 = 1 << 20;
/// Largest send buffer of the stack, in bytes of memory.
const SENT: u32 = 2 << 20;

/// Bytes of a page of `net.ipv4.tcp_mem`.
const PAGE: usize = 4096;

/// Bytes not yet sent that the stack takes for a guest: those of a time at the rate at which it
/// sends, and no more than so many.
const NOT_SENT_MICROS: u32 = 5000;
const NOT_SENT: u32 = 512 << 10;

/// How long the thread of the gateway may be away before a worker of the stack takes over. It
/// always comes back at once, unless it has to wait for a processor.
const AWAY: Duration = Duration::from_millis(10);

/// Bounds the buffers of connections with guests, and leaves the stack to the gateway's thread.
pub(crate) fn apply(stack: &Stack) -> io::Result<()> {
    stack.set_lease(AWAY);
    let config = stack.config();
    for (name, sizes, most) in [
        ("net.ipv4.tcp_rmem", config.tcp_rmem, RECEIVED),
        ("net.ipv4.tcp_wmem", config.tcp_wmem, SENT),
    ] {
        let value = format!("{} {} {}", sizes.min, sizes.default.min(most), sizes.max.min(most));
        stack.set_sysctl(name, &value).map_err(io::Error::other)?;
    }
    Ok(())
}

/// The bytes that all relays hold together, and whether they are too many: from the second value of
/// `net.ipv4.tcp_mem` on until they are at the first one, as in the stack.
///
/// Cost: O(1) for each change.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: usize,
    low: usize,
    high: usize,
    is_too_much: bool,
}

impl Held {
    /// Nothing, with the bounds that a stack has now.
    pub(crate) fn new(stack: &Stack) -> Self {
        let bounds = stack.config().tcp_mem;
        let [low, high] = [bounds.low, bounds.pressure].map(|pages| pages as usize * PAGE);
        Self::with_bounds(low, high)
    }

    /// Nothing, with bounds in bytes.
    pub(crate) fn with_bounds(low: usize, high: usize) -> Self {
        Self { bytes: 0, low, high, is_too_much: false }
    }

    /// Whether relays have to [save memory](crate::relay::Relay::save_memory).
    pub(crate) fn is_too_much(&self) -> bool {
        self.is_too_much
    }

    /// A relay has held so many bytes and holds so many now. Whether they have become too many.
    pub(crate) fn change(&mut self, from: usize, to: usize) -> bool {
        self.bytes = self.bytes + to - from;
        let was_too_much = self.is_too_much;
        self.is_too_much = self.bytes > if was_too_much { self.low } else { self.high };
        self.is_too_much && !was_too_much
    }
}

/// Options of connections with guests, under a rate or without one.
pub(crate) fn options(rate: Option<Rate>) -> SocketOptions {
    SocketOptions {
        max_segment: guest_rate::max_segment(rate),
        notsent_lowat: NOT_SENT,
        notsent_lowat_us: NOT_SENT_MICROS,
        // The relay answers the probes of the other side, so that nobody else would notice.
        keepalive: true,
        ..SocketOptions::default()
    }
}

/// Bytes not yet sent that a socket of the host takes (`TCP_NOTSENT_LOWAT`): those of
/// [`TIME`](Self::TIME) at the rate of the connection.
///
/// Cost: a comparison per call, and a look at the clock per [`SAMPLE`](Self::SAMPLE) bytes. The
/// socket gets another mark when the rate has doubled or halved.
#[derive(Debug)]
pub(crate) struct LowWater {
    mark: u32,
    /// Whatever the rate of the connection.
    most: u32,
    counted: usize,
    since: Option<Instant>,
}

impl Default for LowWater {
    fn default() -> Self {
        Self { mark: Self::FIRST, most: Self::MOST, counted: 0, since: None }
    }
}

impl LowWater {
    /// Before a rate is known.
    pub(crate) const FIRST: u32 = 128 << 10;
    const TIME: Duration = Duration::from_millis(5);
    const LEAST: u32 = 32 << 10;
    const MOST: u32 = 1 << 20;
    const SAMPLE: usize = 256 << 10;

    /// Bounds the mark, and returns it.
    pub(crate) fn limit(&mut self, most: u32) -> u32 {
        self.most = most.min(Self::MOST);
        self.mark = self.mark.min(self.most);
        self.mark
    }

    /// Counts bytes that the socket took. Returns the mark if it is to be another one.
    pub(crate) fn count(&mut self, bytes: usize, now: impl FnOnce() -> Instant) -> Option<u32> {
        self.counted += bytes;
        if self.counted < Self::SAMPLE {
            return None;
        }
        let now = now();
        let counted = std::mem::take(&mut self.counted);
        let elapsed = now.saturating_duration_since(self.since.replace(now)?);
        let micros = elapsed.as_micros().max(1);
        let bytes = counted as u128 * Self::TIME.as_micros() / micros;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(Self::LEAST).min(self.most);
        let is_other = bytes >= self.mark.saturating_mul(2) || bytes <= self.mark / 2;
        if !is_other {
            return None;
        }
        self.mark = bytes;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The marks that come of a sender with so many bytes per millisecond, for a second.
    fn marks(water: &mut LowWater, start: Instant, rate: usize) -> Vec<u32> {
        let at = |millis| start + Duration::from_millis(millis);
        (0..1000).filter_map(|millis| water.count(rate, || at(millis))).collect()
    }

    #[test]
    fn a_mark_under_a_rate_stays_below_its_bound() {
        let (mut water, start) = (LowWater::default(), Instant::now());
        assert_eq!(water.limit(5000), 5000);
        assert!(marks(&mut water, start, 100_000).is_empty());
        assert_eq!(water.limit(64 << 10), 5000);
        assert_eq!(marks(&mut water, start, 100_000), [64 << 10]);
    }

    #[test]
    fn the_mark_is_five_milliseconds_of_the_rate_and_set_seldom() {
        let (mut water, start) = (LowWater::default(), Instant::now());
        let fast = marks(&mut water, start, 100_000);
        assert_eq!(fast.len(), 1, "{fast:?}");
        assert!((450_000..550_000).contains(&fast[0]), "{fast:?}");
        assert!(marks(&mut water, start + Duration::from_secs(1), 100_000).is_empty());
        let slow = marks(&mut water, start + Duration::from_secs(2), 2_500);
        let range = LowWater::LEAST..2 * LowWater::LEAST;
        assert!(slow.last().is_some_and(|mark| range.contains(mark)), "{slow:?}");
        let fastest = marks(&mut water, start + Duration::from_secs(3), 1_000_000);
        let range = LowWater::MOST / 2..=LowWater::MOST;
        assert!(fastest.last().is_some_and(|mark| range.contains(mark)), "{fastest:?}");
    }
}
