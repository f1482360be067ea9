//! Path model that both versions of BBR share: what follows from bandwidth and round-trip time.
//!
//! Windows are in segments, bandwidth in bytes per second, gains in 1/256. Cost: a few 128-bit
//! multiplications and divisions per ACK.

use super::{AckSample, INITIAL_WINDOW};
use crate::congestion::FrameRule;
use crate::time::{Instant, Nanos, Rate};

/// A gain of one.
pub(super) const UNIT: u32 = 256;
/// Departures are spaced for 99 % of the rate, so that a queue shrinks on average.
const PACING_MARGIN_PERCENT: u128 = 1;
/// Windows allow two deliveries of two segments each to be on their way.
pub(super) const MIN_WINDOW: u32 = 4;
/// Below this rate frames are single segments (`bbr_min_tso_rate`).
const MIN_TSO_RATE: Rate = Rate::from_bits(1_200_000);
/// Largest frame, leaving room for headers.
const MAX_FRAME: u64 = 65_535 - 320;

/// The bandwidth of a sample; zero without one.
pub(super) fn bandwidth(sample: &AckSample) -> Rate {
    if sample.interval == Nanos::ZERO {
        return Rate(0);
    }
    Rate::from_bytes_in(u64::from(sample.delivered) * u64::from(sample.mss), sample.interval)
}

/// `gain` times the bandwidth-delay product in segments, rounded up; the initial window while there
/// is no round-trip time.
pub(super) fn bdp(bw: Rate, min_rtt: Nanos, gain: u32, mss: u32) -> u32 {
    if min_rtt == Nanos::MAX {
        return INITIAL_WINDOW;
    }
    let bytes = u128::from(bw.bytes_in(min_rtt)) * u128::from(gain);
    let segments = bytes.div_ceil(u128::from(UNIT) * u128::from(mss.max(1)));
    u32::try_from(segments).unwrap_or(u32::MAX)
}

/// The pacing rate for `bw` at `gain`, margin subtracted.
pub(super) fn paced(bw: Rate, gain: u32) -> Rate {
    let rate = u128::from(bw.0) * u128::from(gain) * (100 - PACING_MARGIN_PERCENT);
    let rate = rate / (u128::from(UNIT) * 100);
    Rate(u64::try_from(rate).unwrap_or(u64::MAX - 1))
}

/// The rate of a window per round trip, of 1 ms where none is known yet, at `gain`.
pub(super) fn initial_rate(window: u32, mss: u32, srtt: Nanos, gain: u32) -> Rate {
    let round = if srtt == Nanos::ZERO { Nanos::from_millis(1) } else { srtt };
    paced(Rate::from_bytes_in(u64::from(window) * u64::from(mss), round), gain)
}

/// Least segments per frame at a pacing rate. Linux pairs segments at almost every rate, which on a
/// slow short path is a queue: two take 2.4 ms at 10 Mbit/s, and windows have room for three
/// frames. Where frames are bounded in time, the bound holds for pairs too.
pub(super) fn min_frame(rate: Rate, rule: FrameRule, mss: u32) -> u32 {
    let is_single = match rule {
        FrameRule::Linux => rate < MIN_TSO_RATE,
        FrameRule::Bounded { .. } => rate.bytes_in(frame_time(rule)) < 2 * u64::from(mss),
    };
    if is_single { 1 } else { 2 }
}

fn frame_time(rule: FrameRule) -> Nanos {
    match rule {
        FrameRule::Linux => Nanos::from_millis(1),
        FrameRule::Bounded { usecs } => Nanos::from_micros(u64::from(usecs)),
    }
}

/// Segments per frame that the model reckons with.
pub(super) fn frame(rate: Rate, rule: FrameRule, mss: u32) -> u32 {
    let bytes = rate.bytes_in(frame_time(rule)).min(MAX_FRAME);
    ((bytes / u64::from(mss.max(1))) as u32).max(min_frame(rate, rule, mss)).min(127)
}

/// A round-trip time as minima take it: in microseconds, as Linux. In finer units the noise of
/// wake-ups finds a new minimum again and again, and the pause that measures it never comes.
pub(super) fn for_minimum(rtt: Nanos) -> Nanos {
    Nanos::from_micros(rtt.as_micros().max(1))
}

/// How many of `in_flight` the network holds when the next frame departs: those that it delivers
/// until then are gone. What waits locally for its departure is not in the network; without this,
/// frames queued below for later would look like a queue at the bottleneck.
pub(super) fn in_network(
    in_flight: u32,
    (now, departure): (Instant, Instant),
    bw: Rate,
    mss: u32,
) -> u32 {
    let bytes = bw.bytes_in(departure.since(now));
    let delivered = bytes / u64::from(mss.max(1));
    in_flight.saturating_sub(u32::try_from(delivered).unwrap_or(u32::MAX))
}

/// An epoch of ACKs starts over at so many segments.
const MAX_EPOCH: u64 = 1 << 20;

/// How much more than bandwidth times time ACKs deliver at once: links with slots, GRO, thinned
/// ACKs (Linux's `bbr_update_ack_aggregation`). An epoch lasts while ACKs are ahead of the
/// bandwidth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Excess {
    since: Instant,
    acked: u64,
}

impl Excess {
    /// Starts an epoch: nothing was in flight.
    pub(super) fn restart(&mut self, now: Instant) {
        (self.since, self.acked) = (now, 0);
    }

    /// Takes an ACK: segments acknowledged in this epoch beyond what `bw` explains, at most a
    /// window.
    pub(super) fn update(&mut self, sample: &AckSample, bw: Rate, cwnd: u32) -> u32 {
        let mss = u64::from(sample.mss.max(1));
        let acked = u64::from(sample.acked_sacked);
        let mut expected = bw.bytes_in(sample.now.since(self.since)) / mss;
        if self.acked <= expected || self.acked + acked >= MAX_EPOCH {
            self.restart(sample.now);
            expected = 0;
        }
        self.acked = (self.acked + acked).min(MAX_EPOCH - 1);
        u32::try_from(self.acked.saturating_sub(expected)).unwrap_or(u32::MAX).min(cwnd)
    }
}

/// Random numbers for controllers (SplitMix64), seeded by a number of the connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_rounded_up_and_saturates() {
        let bw = Rate(1_000_000);
        assert_eq!(bdp(bw, Nanos::from_millis(10), UNIT, 1000), 10);
        assert_eq!(bdp(bw, Nanos::from_millis(10), UNIT + 1, 1000), 11);
        assert_eq!(bdp(bw, Nanos::MAX, UNIT, 1000), INITIAL_WINDOW);
        assert_eq!(bdp(Rate(u64::MAX), Nanos(u64::MAX - 1), UNIT, 0), u32::MAX);
    }

    #[test]
    fn pacing_keeps_one_percent_below() {
        assert_eq!(paced(Rate(1_000_000), UNIT), Rate(990_000));
        assert_eq!(paced(Rate(1_000_000), 2 * UNIT), Rate(1_980_000));
        assert_eq!(initial_rate(10, 1000, Nanos::ZERO, UNIT), Rate(9_900_000));
        assert_eq!(initial_rate(10, 1000, Nanos::from_millis(100), UNIT), Rate(99_000));
        assert_ne!(paced(Rate(u64::MAX), 1000), Rate::UNLIMITED);
    }

    #[test]
    fn frames_follow_the_rate() {
        let of = |mbit: u64, rule| frame(Rate::from_bits(mbit * 1_000_000), rule, 1448);
        let linux = FrameRule::Linux;
        assert_eq!([of(1, linux), of(10, linux), of(100, linux)], [1, 2, 8]);
        assert_eq!([of(1000, linux), of(10_000, linux)], [45, 45]);
        let bounded = FrameRule::Bounded { usecs: 300 };
        assert_eq!([of(1, bounded), of(70, bounded), of(80, bounded)], [1, 1, 2]);
        assert_eq!(of(1000, bounded), 25);
        assert_eq!(frame(Rate::UNLIMITED, linux, 0), 127);
    }

    #[test]
    fn what_leaves_later_is_not_in_the_network() {
        let now = Instant::from_nanos(1_000_000);
        let later = now + Nanos::from_millis(5);
        assert_eq!(in_network(100, (now, now), Rate(1_000_000), 1000), 100);
        assert_eq!(in_network(100, (now, later), Rate(1_000_000), 1000), 95);
        assert_eq!(in_network(3, (now, later), Rate(1_000_000), 1000), 0);
        assert_eq!(in_network(3, (later, now), Rate(1_000_000), 1000), 3);
    }

    #[test]
    fn an_excess_is_what_bandwidth_and_time_do_not_explain() {
        let bw = Rate(1_000_000);
        let mut excess = Excess::default();
        let mut ack = |ms, acked, cwnd| {
            let now = Instant::ZERO + Nanos::from_millis(ms);
            let sample = AckSample { now, acked_sacked: acked, mss: 1000, ..AckSample::default() };
            excess.update(&sample, bw, cwnd)
        };
        // One segment per millisecond, ten at a time.
        for ms in (10..=100).step_by(10) {
            assert_eq!(ack(ms, 10, 1000), 10);
        }
        assert_eq!(ack(110, 60, 1000), 60);
        assert_eq!(ack(115, 10, 1000), 65, "the epoch goes on");
        assert_eq!(ack(300, 10, 1000), 10);
        assert_eq!(ack(400, 500, 40), 40, "at most a window");
    }

    #[test]
    fn chance_reaches_all_and_differs_by_seed() {
        let draw = |seed| {
            let mut chance = Chance::new(seed);
            (0..64).map(|_| chance.below(7)).collect::<Vec<_>>()
        };
        assert!((0..7).all(|n| draw(1).contains(&n)));
        assert_ne!(draw(1), draw(2));
        assert_eq!(draw(1), draw(1));
    }
}
