//! Round-trip estimate and retransmission timeout (RFC 6298, with Linux's arithmetic).
//!
//! Cost: a few adds and shifts per sample; 128 bytes per connection.

use crate::seq::SeqNumber;
use crate::time::{Instant, Nanos};
use crate::windowed_min::WindowedMin;

/// Retransmission timeout before the first sample (RFC 6298 section 2.1).
pub const INITIAL_RTO: Nanos = Nanos::from_secs(1);
/// Timeout after a handshake whose SYN was retransmitted and gave no sample (section 5.7).
const FALLBACK_RTO: Nanos = Nanos::from_secs(3);
/// How long a minimum counts (`net.ipv4.tcp_min_rtt_wlen`).
const MIN_RTT_WINDOW: Nanos = Nanos::from_secs(300);
/// No minimum is shorter than the unit in which it is reported.
const MIN_RTT_FLOOR: Nanos = Nanos::from_micros(1);
/// Longer samples count as this; keeps all products in range.
const MAX_SAMPLE: Nanos = Nanos::from_secs(3600);

/// Estimator of the smoothed round-trip time, its variance, and the timeout that follows.
///
/// The variance that enters the timeout is the largest mean deviation of the last round trip. It
/// decays by a quarter per round trip, and never falls below `rto_min`. So the timeout is `srtt +
/// max(4 * deviation, rto_min)`, not `max(rto_min, ..)` of the sum.
#[derive(Clone, Copy, Debug)]
pub struct RttEstimator {
    /// Eight times the smoothed round-trip time, in nanoseconds; 0 before the first sample.
    srtt_8: u64,
    /// Four times the mean deviation.
    mdev_4: u64,
    /// Largest `mdev_4` of this round trip, at least `rto_min`.
    mdev_max_4: u64,
    /// Four times the smoothed `mdev_max`: the variance term of the timeout.
    rttvar_4: u64,
    /// The round trip ends when this is acknowledged.
    round_end: SeqNumber,
    shift: u32,
    rto_min_us: u32,
    rto_max_ms: u32,
    min_rtt: WindowedMin,
}

impl RttEstimator {
    /// Returns an estimator without samples. The bounds are `tcp_rto_min_us` and `tcp_rto_max_ms`.
    pub fn new(rto_min_us: u32, rto_max_ms: u32) -> Self {
        Self {
            srtt_8: 0,
            mdev_4: INITIAL_RTO.0,
            mdev_max_4: 0,
            rttvar_4: 0,
            round_end: SeqNumber(0),
            shift: 0,
            rto_min_us,
            rto_max_ms: rto_max_ms.max(1),
            min_rtt: WindowedMin::default(),
        }
    }

    /// Takes a valid sample and ends any back-off (Linux's `tcp_rtt_estimator`).
    ///
    /// A sample is valid if its segment was never retransmitted, or if it comes from a timestamp
    /// echo. `una` and `nxt` mark round trips.
    pub fn on_sample(&mut self, rtt: Nanos, una: SeqNumber, nxt: SeqNumber) {
        let rtt = rtt.0.clamp(1, MAX_SAMPLE.0);
        self.shift = 0;
        if self.srtt_8 == 0 {
            self.srtt_8 = rtt << 3;
            self.mdev_4 = rtt << 1;
            self.rttvar_4 = self.mdev_4.max(self.rto_min().0);
            self.mdev_max_4 = self.rttvar_4;
            self.round_end = nxt;
            return;
        }
        let error = rtt as i64 - (self.srtt_8 >> 3) as i64;
        self.srtt_8 = self.srtt_8.saturating_add_signed(error).max(1);
        self.smooth_deviation(error);
        if self.mdev_4 > self.mdev_max_4 {
            self.mdev_max_4 = self.mdev_4;
            self.rttvar_4 = self.rttvar_4.max(self.mdev_max_4);
        }
        if una.after(self.round_end) {
            if self.mdev_max_4 < self.rttvar_4 {
                self.rttvar_4 -= (self.rttvar_4 - self.mdev_max_4) >> 2;
            }
            self.round_end = nxt;
            self.mdev_max_4 = self.rto_min().0;
        }
    }

    /// A shrinking round-trip time looks like variance, but does not need a longer timeout: then
    /// the deviation grows at an eighth of the speed (the Eifel estimator's remark).
    fn smooth_deviation(&mut self, error: i64) {
        let mut change = error.unsigned_abs() as i64 - (self.mdev_4 >> 2) as i64;
        if error < 0 && change > 0 {
            change >>= 3;
        }
        self.mdev_4 = self.mdev_4.saturating_add_signed(change);
    }

    /// Takes a sample for the minimum (Linux's `tcp_update_rtt_min`). A sample that the receiver
    /// `may` have `delayed` counts only if it is a new minimum or the first.
    pub fn on_min_rtt(&mut self, now: Instant, rtt: Nanos, may_be_delayed: bool) {
        let rtt = rtt.max(MIN_RTT_FLOOR);
        if may_be_delayed && self.min_rtt.get().is_some() && rtt > self.min_rtt() {
            return;
        }
        self.min_rtt.update(MIN_RTT_WINDOW.0, now.as_nanos(), rtt.0);
    }

    /// Returns the retransmission timeout, back-off included.
    pub fn rto(&self) -> Nanos {
        let base = self.base_rto().0;
        let rto = if self.shift < base.leading_zeros() { base << self.shift } else { u64::MAX };
        Nanos(rto.min(self.rto_max().0))
    }

    /// Returns the timeout without back-off.
    pub fn base_rto(&self) -> Nanos {
        let rto = match (self.srtt_8, self.rttvar_4) {
            (0, 0) => INITIAL_RTO.0,
            (srtt_8, rttvar_4) => (srtt_8 >> 3) + rttvar_4,
        };
        Nanos(rto.min(self.rto_max().0))
    }

    /// Doubles the timeout after it expired, up to `rto_max`.
    pub fn back_off(&mut self) {
        self.shift = self.shift.saturating_add(1);
    }

    /// Takes the last doubling back.
    pub fn undo_back_off(&mut self) {
        self.shift = self.shift.saturating_sub(1);
    }

    /// Returns how often the timeout was doubled (`tcpi_backoff`).
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Sets a cautious timeout: the handshake timed out and gave no sample.
    pub fn fall_back(&mut self) {
        if self.srtt_8 == 0 {
            self.mdev_4 = FALLBACK_RTO.0;
            self.mdev_max_4 = FALLBACK_RTO.0;
            self.rttvar_4 = FALLBACK_RTO.0;
        }
    }

    /// Returns the smoothed round-trip time; zero before the first sample.
    pub fn srtt(&self) -> Nanos {
        Nanos(self.srtt_8 >> 3)
    }

    /// Returns the mean deviation, as `tcpi_rttvar` reports it.
    pub fn rttvar(&self) -> Nanos {
        Nanos(self.mdev_4 >> 2)
    }

    /// Returns the minimum of the last 300 seconds; [`Nanos::MAX`] before the first sample.
    pub fn min_rtt(&self) -> Nanos {
        self.min_rtt.get().map_or(Nanos::MAX, Nanos)
    }

    /// Returns the floor of the variance term.
    pub fn rto_min(&self) -> Nanos {
        Nanos::from_micros(u64::from(self.rto_min_us))
    }

    /// Returns the ceiling of the timeout.
    pub fn rto_max(&self) -> Nanos {
        Nanos::from_millis(u64::from(self.rto_max_ms))
    }

    /// Returns the time that a timeout of `first` and `retries` further ones take, each twice as
    /// long as the one before, up to `rto_max` (`tcp_model_timeout`).
    pub fn time_of_retries(&self, first: Nanos, retries: u32) -> Nanos {
        let most = self.rto_max();
        let doublings = (most.0 / first.0).max(1).ilog2();
        if retries <= doublings {
            first.saturating_mul((1 << (retries + 1)) - 1)
        } else {
            first.saturating_mul((1 << (doublings + 1)) - 1)
                + most.saturating_mul(u64::from(retries - doublings))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIN: Nanos = Nanos::from_millis(200);
    const MAX: Nanos = Nanos::from_secs(120);

    fn estimator() -> RttEstimator {
        RttEstimator::new(200_000, 120_000)
    }

    #[test]
    fn first_timeout_is_a_second_and_doubles_to_the_ceiling() {
        let mut rtt = estimator();
        let mut seen = Vec::new();
        for _ in 0..9 {
            seen.push(rtt.rto().0 / 1_000_000_000);
            rtt.back_off();
        }
        assert_eq!(seen, [1, 2, 4, 8, 16, 32, 64, 120, 120]);
        for _ in 0..1000 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), MAX);
    }

    #[test]
    fn minimum_is_added_to_the_round_trip() {
        let mut rtt = estimator();
        rtt.on_sample(Nanos::from_millis(10), SeqNumber(1), SeqNumber(1));
        assert_eq!(rtt.rto(), Nanos::from_millis(210));
        assert_eq!(rtt.srtt(), Nanos::from_millis(10));
        assert_eq!(rtt.rttvar(), Nanos::from_millis(5));
    }

    #[test]
    fn long_paths_get_four_deviations() {
        let mut rtt = estimator();
        rtt.on_sample(Nanos::from_millis(600), SeqNumber(1), SeqNumber(1));
        assert_eq!(rtt.rto(), Nanos::from_millis(1800));
    }

    #[test]
    fn a_sample_ends_the_back_off() {
        let mut rtt = estimator();
        rtt.back_off();
        rtt.back_off();
        rtt.on_sample(Nanos::from_millis(1), SeqNumber(1), SeqNumber(1));
        assert_eq!((rtt.shift(), rtt.rto()), (0, Nanos::from_millis(201)));
    }

    #[test]
    fn variance_decays_by_a_quarter_per_round_trip() {
        let mut rtt = estimator();
        rtt.on_sample(Nanos::from_millis(1000), SeqNumber(0), SeqNumber(10));
        for round in 1..60u32 {
            let una = SeqNumber(round * 10 + 1);
            rtt.on_sample(Nanos::from_millis(1000), una, una + 9);
        }
        let rto = rtt.rto();
        assert!(rto >= Nanos::from_millis(1200) && rto < Nanos::from_millis(1210), "{rto:?}");
    }

    #[test]
    fn a_shrinking_round_trip_hardly_raises_the_timeout() {
        let (mut down, mut up) = (estimator(), estimator());
        let [long, middle, short] = [900, 500, 100].map(Nanos::from_millis);
        for rtt in [&mut down, &mut up] {
            for _ in 0..50 {
                rtt.on_sample(middle, SeqNumber(0), SeqNumber(1));
            }
        }
        down.on_sample(short, SeqNumber(0), SeqNumber(1));
        up.on_sample(long, SeqNumber(0), SeqNumber(1));
        assert!(down.rttvar().0 * 4 < up.rttvar().0);
    }

    #[test]
    fn handshake_timeouts_leave_three_seconds() {
        let mut rtt = estimator();
        rtt.fall_back();
        assert_eq!(rtt.rto(), FALLBACK_RTO);
        rtt.on_sample(Nanos::from_millis(1), SeqNumber(1), SeqNumber(1));
        rtt.fall_back();
        assert_eq!(rtt.rto(), Nanos::from_millis(201));
    }

    #[test]
    fn minimum_ignores_delayed_acks_and_ages() {
        let mut rtt = estimator();
        let at = |secs| Instant::ZERO + Nanos::from_secs(secs);
        assert_eq!(rtt.min_rtt(), Nanos::MAX);
        rtt.on_min_rtt(at(0), Nanos::from_millis(50), true);
        rtt.on_min_rtt(at(1), Nanos::from_millis(10), false);
        rtt.on_min_rtt(at(2), Nanos::from_millis(40), true);
        assert_eq!(rtt.min_rtt(), Nanos::from_millis(10));
        rtt.on_min_rtt(at(400), Nanos::from_millis(20), false);
        assert_eq!(rtt.min_rtt(), Nanos::from_millis(20));
        rtt.on_min_rtt(at(401), Nanos::ZERO, false);
        assert_eq!(rtt.min_rtt(), MIN_RTT_FLOOR);
    }

    proptest! {
        #[test]
        fn timeout_is_never_below_the_round_trip_nor_above_the_ceiling(
            samples in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u32>()), 1..100)
        ) {
            let mut rtt = estimator();
            for (nanos, una, nxt) in samples {
                rtt.on_sample(Nanos(nanos), SeqNumber(una), SeqNumber(nxt));
                let floor = Nanos(rtt.srtt().0 + MIN.0).min(MAX);
                prop_assert!(rtt.rto() >= floor && rtt.rto() <= MAX);
            }
        }
    }
}
