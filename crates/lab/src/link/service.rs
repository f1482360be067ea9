//! Service of a queue: at a constant rate, or as a recorded trace says.

use neap_tcp::time::{Instant, Nanos, Rate};
use std::sync::Arc;

/// Bytes that one delivery opportunity of a trace carries (`PACKET_SIZE` of mahimahi): an IP packet
/// of 1500 bytes with its [`TUN_HEADER`].
const OPPORTUNITY: u64 = 1504;

/// Bytes that mahimahi counts for each IP packet besides its own: the header of its TUN.
const TUN_HEADER: u64 = 4;

/// Bytes on the wire of the packet that fills an opportunity.
const FULL_PACKET: u64 = 1538;

/// Puts one packet behind the other. Fractions of a nanosecond are carried on, so that the rate is
/// exact. O(1) per packet.
#[derive(Debug)]
pub(super) struct Serializer {
    rate: Rate,
    pub(super) free: Instant,
    fraction: u128,
    /// When the wire was last idle.
    busy_since: Instant,
    /// The rates before changes since then, and until when it sends at them; ascending.
    earlier: Vec<(Rate, Instant)>,
}

/// Part of what was handed to a wire that has not been sent yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unsent {
    /// Time that the wire needs for it.
    pub(super) time: Nanos,
    /// Bytes of it. A packet that is being sent counts with the part that is left.
    pub(super) bytes: u64,
    /// Bytes of it as opportunities of a trace count them; zero without a trace.
    pub(super) traced: u64,
}

impl Serializer {
    pub(super) fn new(rate: Rate) -> Self {
        let rate = Rate(rate.0.max(1));
        let (free, busy_since) = (Instant::ZERO, Instant::ZERO);
        Self { rate, free, fraction: 0, busy_since, earlier: Vec::new() }
    }

    /// When the last bit of a packet that is ready at `ready` has left, and how long it took.
    pub(super) fn push(&mut self, ready: Instant, bytes: u64) -> (Instant, Nanos) {
        if self.free < ready {
            (self.free, self.fraction) = (ready, 0);
            self.busy_since = ready;
            self.earlier.clear();
        }
        let rate = u128::from(self.rate.0);
        let units = u128::from(bytes) * 1_000_000_000 + self.fraction;
        // Nearly always both fit 64 bits, where a division costs a fifth.
        let (whole, rest) = match (u64::try_from(units), u64::try_from(rate)) {
            (Ok(units), Ok(rate)) => (units / rate, u128::from(units % rate)),
            _ => ((units / rate) as u64, units % rate),
        };
        self.fraction = rest;
        let took = Nanos(whole);
        self.free += took;
        (self.free, took)
    }

    /// What is left to be sent at `now`.
    pub(super) fn unsent(&self, now: Instant) -> Unsent {
        let from = now.max(self.busy_since);
        let (mut bytes, mut at) = (0, from);
        for &(rate, until) in self.earlier.iter().chain([&(self.rate, self.free)]) {
            bytes += rate.bytes_in(until.since(at));
            at = at.max(until);
        }
        Unsent { time: self.free.since(from), bytes, traced: 0 }
    }

    /// Another rate for what is pushed from here on.
    pub(super) fn set_rate(&mut self, rate: Rate) {
        let has_sent = self.earlier.last().is_none_or(|&(_, until)| until < self.free);
        if has_sent {
            self.earlier.push((self.rate, self.free));
        }
        self.rate = Rate(rate.0.max(1));
    }
}

/// Recorded link in mahimahi's format: the millisecond of each opportunity to deliver one packet.
///
/// The last one is also the period after which the trace begins again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace(Arc<[u32]>);

/// Reason why a text is not a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// This line is not a number of milliseconds.
    #[error("line {0}: not a number of milliseconds")]
    Number(usize),
    /// The times do not ascend, from this line on.
    #[error("line {0}: earlier than the line before")]
    Order(usize),
    /// There is no opportunity, or all are at time zero: the trace would never end or never begin.
    #[error("a trace needs an opportunity after millisecond 0")]
    Empty,
}

impl Trace {
    /// Parses a trace: one number per line.
    ///
    /// # Errors
    /// [`TraceError`], with the line.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut at: Vec<u32> = Vec::new();
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() {
                continue;
            }
            let millis = line.parse().map_err(|_| TraceError::Number(index + 1))?;
            if at.last().is_some_and(|&last| last > millis) {
                return Err(TraceError::Order(index + 1));
            }
            at.push(millis);
        }
        if at.last().is_none_or(|&last| last == 0) {
            return Err(TraceError::Empty);
        }
        Ok(Self(at.into()))
    }

    /// Bytes on the wire of full packets at all opportunities after `from` and up to `to`, from the
    /// start of the trace, and at the one before them, of which a part may be left; at that one
    /// alone if `to` is no later. O(log n).
    pub(super) fn bytes_between(&self, from: Nanos, to: Nanos) -> u64 {
        let until = |time: Nanos| {
            let (periods, rest) = (time.0 / self.period().0, time.0 % self.period().0);
            let passed = self.0.partition_point(|&at| Nanos::from_millis(at.into()).0 <= rest);
            periods * self.0.len() as u64 + passed as u64
        };
        (until(to).saturating_sub(until(from)) + 1) * FULL_PACKET
    }

    /// Bytes that packets take of opportunities, as bytes on the wire: an opportunity is as much as
    /// the full packet that fills it, as [`bytes_between`](Self::bytes_between) counts it.
    pub(super) fn on_wire(traced: u64) -> u64 {
        (u128::from(traced) * u128::from(FULL_PACKET) / u128::from(OPPORTUNITY)) as u64
    }

    /// Mean time from one opportunity to the next.
    fn mean_gap(&self) -> Nanos {
        self.period() / self.0.len() as u64
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(self.0.last().copied().unwrap_or(1).into())
    }
}

/// Follows a [`Trace`]. O(1) per opportunity; idle periods are skipped as a whole.
#[derive(Debug)]
pub(super) struct Follower {
    trace: Trace,
    /// When the current period began.
    period_start: Instant,
    index: usize,
    /// Bytes of the current opportunity that are not used.
    left: u64,
}

impl Follower {
    pub(super) fn new(trace: Trace, start: Instant) -> Self {
        Self { trace, period_start: start, index: 0, left: OPPORTUNITY }
    }

    fn at(&self) -> Instant {
        self.period_start + Nanos::from_millis(self.trace.0[self.index].into())
    }

    fn step(&mut self) {
        self.left = OPPORTUNITY;
        self.index += 1;
        if self.index == self.trace.0.len() {
            self.index = 0;
            self.period_start += self.trace.period();
        }
    }

    /// Bytes of opportunities that an IP packet of so many bytes takes.
    fn bytes_of(network_len: u64) -> u64 {
        network_len + TUN_HEADER
    }

    /// When an IP packet of so many bytes that is ready at `ready` has left.
    fn push(&mut self, ready: Instant, network_len: u64) -> Instant {
        let period = self.trace.period();
        if self.period_start + period < ready {
            let whole = ready.since(self.period_start).0 / period.0 - 1;
            if whole > 0 {
                self.period_start += Nanos(whole * period.0);
                (self.index, self.left) = (0, OPPORTUNITY);
            }
        }
        while self.at() < ready {
            self.step();
        }
        let mut rest = Self::bytes_of(network_len);
        while rest > self.left {
            rest -= self.left;
            self.step();
        }
        self.left -= rest;
        self.at()
    }
}

/// What serves a queue.
#[derive(Debug)]
pub(super) enum Service {
    Constant(Serializer),
    Trace(Follower),
}

impl Service {
    /// When a packet that is ready at `ready` has left, and how long it took; a trace does not know
    /// that. A rate counts `on_wire` bytes, a trace those of the IP packet.
    pub(super) fn push(
        &mut self,
        ready: Instant,
        on_wire: u64,
        network_len: u64,
    ) -> (Instant, Nanos) {
        match self {
            Self::Constant(serializer) => serializer.push(ready, on_wire),
            Self::Trace(follower) => (follower.push(ready, network_len), Nanos::ZERO),
        }
    }

    /// Bytes of a trace's opportunities that an IP packet of so many bytes takes; zero at a rate.
    pub(super) fn traced(&self, network_len: u64) -> u64 {
        match self {
            Self::Constant(_) => 0,
            Self::Trace(_) => Follower::bytes_of(network_len),
        }
    }

    /// Time of one full packet: at the rate of now, or on average over a trace.
    pub(super) fn packet_time(&self) -> Nanos {
        match self {
            Self::Constant(serializer) => serializer.rate.time_for(1500),
            Self::Trace(follower) => follower.trace.mean_gap(),
        }
    }

    /// Another rate from now on; a trace goes on as it is. Whether it has another one.
    pub(super) fn set_rate(&mut self, rate: Rate) -> bool {
        match self {
            Self::Constant(serializer) => {
                serializer.set_rate(rate);
                true
            }
            Self::Trace(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Instant {
        Instant::from_nanos(n * 1_000_000)
    }

    #[test]
    fn a_serializer_is_exact_over_many_packets() {
        let mut wire = Serializer::new(Rate(3));
        let left = (0..300).fold(Instant::ZERO, |_, _| wire.push(Instant::ZERO, 1).0);
        assert_eq!(left, Instant::from_nanos(100_000_000_000));
    }

    #[test]
    fn what_is_unsent_is_what_the_wire_still_needs_time_for() {
        let at = Instant::from_nanos;
        let mut wire = Serializer::new(Rate(1_000_000_000));
        wire.push(at(100), 1000);
        let unsent = |time, bytes| Unsent { time: Nanos(time), bytes, traced: 0 };
        assert_eq!(wire.unsent(at(50)), unsent(1000, 1000), "it begins at 100");
        assert_eq!(wire.unsent(at(700)), unsent(400, 400));
        wire.set_rate(Rate(500_000_000));
        wire.push(at(700), 100);
        assert_eq!(wire.unsent(at(700)), unsent(600, 500), "the first one goes on as it was");
        assert_eq!(wire.unsent(at(1200)), unsent(100, 50));
        assert_eq!(wire.unsent(at(1300)), unsent(0, 0));
        assert_eq!(wire.unsent(at(9000)), unsent(0, 0));
    }

    #[test]
    fn what_waits_while_a_rate_changes_twice_leaves_at_the_rate_of_its_time() {
        let at = Instant::from_nanos;
        let mut wire = Serializer::new(Rate(1_000_000_000));
        wire.push(at(100), 1000);
        wire.set_rate(Rate(100_000_000));
        wire.set_rate(Rate(500_000_000));
        wire.push(at(200), 100);
        wire.set_rate(Rate(250_000_000));
        wire.push(at(300), 50);
        let bytes = [200, 1100, 1200, 1300, 1400, 1500].map(|now| wire.unsent(at(now)).bytes);
        assert_eq!(bytes, [900 + 150, 150, 100, 50, 25, 0]);
        wire.push(at(2000), 100);
        assert_eq!(wire.unsent(at(2000)), Unsent { time: Nanos(400), bytes: 100, traced: 0 });
        assert!(wire.earlier.is_empty(), "an idle wire needs no memory of its rates");
    }

    #[test]
    fn a_trace_serves_at_its_opportunities_and_begins_again() {
        let trace = Trace::parse("1\n1\n5\n10\n").expect("a sound trace");
        let mut follower = Follower::new(trace, ms(100));
        assert_eq!(follower.push(ms(100), 1500), ms(101));
        assert_eq!(follower.push(ms(100), 700), ms(101));
        // What is left of one opportunity serves the next packet, which then needs another.
        assert_eq!(follower.push(ms(100), 1500), ms(105));
        assert_eq!(follower.push(ms(107), 1500), ms(110));
        assert_eq!(follower.push(ms(107), 1500), ms(111));
        assert_eq!(follower.push(ms(1112), 1), ms(1115), "idle periods pass");
    }

    #[test]
    fn a_time_that_ends_before_it_begins_has_one_opportunity() {
        let trace = Trace::parse("1\n5\n10\n").expect("a sound trace");
        let bytes =
            |from, to| trace.bytes_between(Nanos::from_millis(from), Nanos::from_millis(to));
        assert_eq!(bytes(1, 10), 3 * FULL_PACKET);
        assert_eq!(bytes(10, 1), FULL_PACKET);
    }

    #[test]
    fn bad_traces_are_refused_by_line() {
        assert_eq!(Trace::parse("1\nx"), Err(TraceError::Number(2)));
        assert_eq!(Trace::parse("5\n\n4"), Err(TraceError::Order(3)));
        assert_eq!(Trace::parse("0\n0"), Err(TraceError::Empty));
        assert_eq!(Trace::parse(""), Err(TraceError::Empty));
    }
}
