//! HyStart with Linux's rules of 6.18 (`hystart_update`; Ha and Rhee, "Taming the elephants",
//! 2008): slow start ends when the ACKs of one round trip come close together for longer than half
//! of the shortest round trip, for then a window fills the path, or when the round-trip time has
//! risen.

use crate::congestion::{AckSample, Window};
use crate::time::{Instant, Nanos, Rate};

/// `hystart_low_window`: smaller windows grow whatever is seen.
const LOW_WINDOW: u32 = 16;
/// `hystart_ack_delta_us`: ACKs that are further apart are of different trains.
const ACK_DELTA: Nanos = Nanos::from_micros(2000);
const DELAY_MIN: Nanos = Nanos::from_millis(4);
const DELAY_MAX: Nanos = Nanos::from_millis(16);
/// Samples of a round before its minimum is trusted.
const MIN_SAMPLES: u8 = 8;
/// After congestion avoidance began, samples still show the queue of before.
const AFTER_RECOVERY: Nanos = Nanos::from_millis(1000);
/// Four super-frames of most devices: what TSO, GRO and the qdisc join, twice over because the rate
/// is that of slow start.
const JOINED: u64 = 4 * 65_536;
/// No more of that than this.
const JOINED_MAX: Nanos = Nanos::from_millis(1);

/// What ended slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExitSignal {
    Train,
    Delay,
}

/// The watch over slow start, until it has found where to end or a timeout begins anew.
#[derive(Clone, Copy, Debug)]
pub(in crate::congestion) struct HyStart {
    /// Shortest round-trip time so far.
    delay_min: Nanos,
    round_start: Instant,
    /// The last ACK that came close behind another.
    last_ack: Instant,
    round_min: Nanos,
    samples: u8,
    found: Option<ExitSignal>,
}

impl HyStart {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            delay_min: Nanos::MAX,
            round_start: now,
            last_ack: now,
            round_min: Nanos::MAX,
            samples: 0,
            found: None,
        }
    }

    pub(super) fn found_train(&self) -> bool {
        self.found == Some(ExitSignal::Train)
    }

    pub(super) fn observe(
        &mut self,
        sample: &AckSample,
        epoch: Option<Instant>,
        window: &mut Window,
    ) {
        let Some(rtt) = sample.rtt else { return };
        if epoch.is_some_and(|start| sample.now.since(start) < AFTER_RECOVERY) {
            return;
        }
        self.delay_min = self.delay_min.min(rtt);
        if self.found.is_some() || !window.in_slow_start() {
            return;
        }
        if sample.is_round_start {
            *self = Self { delay_min: self.delay_min, ..Self::new(sample.now) };
        }
        if window.cwnd < LOW_WINDOW {
            return;
        }
        if self.is_train(sample) {
            self.found = Some(ExitSignal::Train);
        }
        self.round_min = self.round_min.min(rtt);
        if self.samples < MIN_SAMPLES {
            self.samples += 1;
        } else if self.round_min > self.delay_min + delay_threshold(self.delay_min) {
            self.found = Some(ExitSignal::Delay);
        }
        if self.found.is_some() {
            window.ssthresh = window.cwnd;
        }
    }

    /// Whether ACKs have come close together for too long.
    fn is_train(&mut self, sample: &AckSample) -> bool {
        if sample.now.since(self.last_ack) > ACK_DELTA {
            return false;
        }
        self.last_ack = sample.now;
        let whole = self.delay_min + joined(sample.pacing_rate);
        // Pacing spreads a window over up to half of the round trip by itself.
        let most = if sample.is_paced { whole } else { whole / 2 };
        sample.now.since(self.round_start) > most
    }
}

fn delay_threshold(delay_min: Nanos) -> Nanos {
    (delay_min / 8).clamp(DELAY_MIN, DELAY_MAX)
}

/// How long ACKs may be apart because frames are joined (`hystart_ack_delay`).
fn joined(rate: Rate) -> Nanos {
    if rate == Rate::UNLIMITED { Nanos::ZERO } else { rate.time_for(JOINED).min(JOINED_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Instant {
        Instant::from_nanos(n * 1000)
    }

    fn at(micros: u64, rtt_us: u64, is_round_start: bool) -> AckSample {
        AckSample {
            now: us(micros),
            rtt: Some(Nanos::from_micros(rtt_us)),
            is_round_start,
            acked_sacked: 2,
            pacing_rate: Rate(1 << 40),
            ..AckSample::default()
        }
    }

    fn begin(cwnd: u32) -> (HyStart, Window) {
        let (mut hystart, mut window) = (HyStart::new(us(0)), Window::new(cwnd));
        hystart.observe(&at(0, 10_000, true), None, &mut window);
        (hystart, window)
    }

    #[test]
    fn a_train_of_half_a_round_trip_ends_slow_start() {
        let (mut hystart, mut window) = begin(40);
        for micros in (500..=5000).step_by(500) {
            hystart.observe(&at(micros, 10_000, false), None, &mut window);
            assert_eq!(window.ssthresh, u32::MAX, "after {micros} us");
        }
        hystart.observe(&at(5001, 10_000, false), None, &mut window);
        assert_eq!((window.ssthresh, hystart.found_train()), (40, true));
    }

    #[test]
    fn a_gap_ends_the_train_and_not_slow_start() {
        let (mut hystart, mut window) = begin(40);
        hystart.observe(&at(2000, 10_000, false), None, &mut window);
        for micros in (4001..=30_000).step_by(500) {
            hystart.observe(&at(micros, 10_000, false), None, &mut window);
        }
        assert_eq!(window.ssthresh, u32::MAX, "the next train begins with the next round");
        hystart.observe(&at(30_500, 10_000, true), None, &mut window);
        for micros in (31_000..=36_000).step_by(500) {
            hystart.observe(&at(micros, 10_000, false), None, &mut window);
        }
        assert_eq!(window.ssthresh, 40);
    }

    #[test]
    fn a_paced_flow_may_have_a_train_of_a_whole_round_trip() {
        let (mut hystart, mut window) = begin(40);
        let paced = |micros| AckSample { is_paced: true, ..at(micros, 10_000, false) };
        for micros in (500..=10_000).step_by(500) {
            hystart.observe(&paced(micros), None, &mut window);
        }
        assert_eq!(window.ssthresh, u32::MAX);
        hystart.observe(&paced(10_001), None, &mut window);
        assert_eq!(window.ssthresh, 40);
    }

    #[test]
    fn joined_frames_lengthen_the_train_by_a_millisecond_at_most() {
        assert_eq!(joined(Rate(1_000_000)), Nanos::from_millis(1));
        assert_eq!(joined(Rate(1_048_576_000)), Nanos::from_micros(250));
        assert_eq!(joined(Rate::UNLIMITED), Nanos::ZERO);
        let (mut hystart, mut window) = begin(40);
        for micros in (500..=5500).step_by(500) {
            let slow = AckSample { pacing_rate: Rate(1000), ..at(micros, 10_000, false) };
            hystart.observe(&slow, None, &mut window);
        }
        assert_eq!(window.ssthresh, u32::MAX, "half of 10 ms and 1 ms");
    }

    #[test]
    fn small_windows_grow_whatever_is_seen() {
        let (mut hystart, mut window) = begin(LOW_WINDOW - 1);
        for micros in (500..=50_000).step_by(500) {
            hystart.observe(&at(micros, 100_000, false), None, &mut window);
        }
        assert_eq!(window.ssthresh, u32::MAX);
    }

    /// A round of `samples` ACKs far apart, so that none is part of a train.
    fn slow_round(hystart: &mut HyStart, window: &mut Window, rtt_us: u64, samples: u64) {
        let start = hystart.round_start + Nanos::from_millis(500);
        for index in 0..samples {
            let now = start + Nanos::from_millis(3 * index);
            let sample = AckSample { now, ..at(0, rtt_us, index == 0) };
            hystart.observe(&sample, None, window);
        }
    }

    #[test]
    fn a_rise_of_the_delay_ends_slow_start_after_eight_samples() {
        for (rtt, ends) in [(45_000, false), (45_001, true)] {
            let (mut hystart, mut window) = (HyStart::new(us(0)), Window::new(40));
            slow_round(&mut hystart, &mut window, 40_000, 12);
            slow_round(&mut hystart, &mut window, rtt, 8);
            assert_eq!(window.ssthresh, u32::MAX, "few samples prove nothing");
            slow_round(&mut hystart, &mut window, rtt, 9);
            assert_eq!(window.ssthresh == 40, ends, "{rtt} us: an eighth is 5 ms");
            assert!(!hystart.found_train());
        }
    }

    #[test]
    fn thresholds_of_delay_are_four_and_sixteen_milliseconds() {
        let of = |ms| delay_threshold(Nanos::from_millis(ms));
        let ms = Nanos::from_millis;
        assert_eq!([of(1), of(80), of(1000)], [ms(4), ms(10), ms(16)]);
    }

    #[test]
    fn what_was_found_once_is_not_looked_for_again() {
        let (mut hystart, mut window) = begin(40);
        hystart.found = Some(ExitSignal::Delay);
        for micros in (500..=50_000).step_by(500) {
            hystart.observe(&at(micros, 10_000, false), None, &mut window);
        }
        assert_eq!(window.ssthresh, u32::MAX);
    }

    #[test]
    fn the_second_after_a_reduction_shows_nothing() {
        let (mut hystart, mut window) = begin(40);
        for micros in (500..=999_500).step_by(500) {
            hystart.observe(&at(micros, 1, false), Some(us(0)), &mut window);
        }
        assert_eq!((window.ssthresh, hystart.delay_min), (u32::MAX, Nanos::from_millis(10)));
    }
}
