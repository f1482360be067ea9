//! HyStart++ (RFC 9406): leaves slow start when the round-trip time has risen and stays so.
//!
//! Only the first slow start is watched (section 4.3): later ones have a threshold.
//! Cost: O(1) per ACK, no memory beyond this struct.

use crate::congestion::{AckSample, Window};
use crate::time::Nanos;

const MIN_RTT_THRESH: Nanos = Nanos::from_millis(4);
const MAX_RTT_THRESH: Nanos = Nanos::from_millis(16);
const MIN_RTT_DIVISOR: u64 = 8;
/// Samples of a round before its minimum is trusted.
const N_RTT_SAMPLE: u32 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u32 = 5;
/// Conservative slow start: grow slowly until it is clear whether the rise was real.
#[derive(Clone, Copy, Debug)]
struct Conservative {
    baseline: Nanos,
    rounds: u32,
    /// Acknowledged segments not yet turned into growth.
    rest: u32,
}

/// The watch over the first slow start.
#[derive(Clone, Copy, Debug)]
pub(in crate::congestion) struct HyStart {
    last_round_min: Nanos,
    round_min: Nanos,
    samples: u32,
    css: Option<Conservative>,
}

impl Default for HyStart {
    fn default() -> Self {
        Self { last_round_min: Nanos::MAX, round_min: Nanos::MAX, samples: 0, css: None }
    }
}

impl HyStart {
    /// Looks at an ACK of the first slow start, growth or not; may end it by setting ssthresh.
    pub(super) fn observe(&mut self, sample: &AckSample, window: &mut Window) {
        if window.ssthresh != u32::MAX {
            return;
        }
        if sample.is_round_start {
            self.begin_round(window);
        }
        let Some(rtt) = sample.rtt else { return };
        self.round_min = self.round_min.min(rtt);
        self.samples = self.samples.saturating_add(1);
        if self.samples < N_RTT_SAMPLE {
            return;
        }
        match self.css {
            Some(css) if self.round_min < css.baseline => self.css = None,
            None if self.has_risen() => {
                self.css = Some(Conservative { baseline: self.round_min, rounds: 0, rest: 0 });
            }
            _ => {}
        }
    }

    fn begin_round(&mut self, window: &mut Window) {
        self.last_round_min = self.round_min;
        self.round_min = Nanos::MAX;
        self.samples = 0;
        if let Some(css) = &mut self.css {
            css.rounds += 1;
            if css.rounds >= CSS_ROUNDS {
                window.ssthresh = window.cwnd;
                self.css = None;
            }
        }
    }

    fn has_risen(&self) -> bool {
        let last = self.last_round_min;
        let threshold = (last / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
        last != Nanos::MAX && self.round_min >= last + threshold
    }

    /// Grows a window in slow start; returns the acknowledged segments that are left for
    /// congestion avoidance.
    ///
    /// The limit `L` of section 4.2 on what one ACK adds is infinite, paced or not: an ACK stands
    /// for whatever the peer's GRO has merged, so with 8 segments for an ACK of 45 the window would
    /// grow by a fifth per round trip instead of doubling. What the limit is for, the size of a
    /// burst, is bounded where bursts are made: frames by the time that they take, and how many are
    /// below by their completions.
    pub(super) fn grow(&mut self, sample: &AckSample, window: &mut Window) -> u32 {
        let acked = sample.acked_sacked;
        if window.ssthresh != u32::MAX {
            return window.slow_start(acked);
        }
        let mut growth = acked;
        if let Some(css) = &mut self.css {
            let sum = css.rest.saturating_add(growth);
            growth = sum / CSS_GROWTH_DIVISOR;
            css.rest = sum % CSS_GROWTH_DIVISOR;
        }
        window.slow_start(growth);
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(rtt_ms: u64, is_round_start: bool, acked: u32) -> AckSample {
        AckSample {
            rtt: Some(Nanos::from_millis(rtt_ms)),
            is_round_start,
            acked_sacked: acked,
            ..AckSample::default()
        }
    }

    /// Ten ACKs of two segments with the given round-trip time.
    fn round(hystart: &mut HyStart, window: &mut Window, rtt_ms: u64) {
        for ack in 0..10 {
            let sample = sample(rtt_ms, ack == 0, 2);
            hystart.observe(&sample, window);
            if window.in_slow_start() {
                hystart.grow(&sample, window);
            }
        }
    }

    #[test]
    fn a_lasting_rise_ends_slow_start_after_five_slow_rounds() {
        let (mut hystart, mut window) = (HyStart::default(), Window::new(10));
        round(&mut hystart, &mut window, 40);
        round(&mut hystart, &mut window, 44);
        assert_eq!(window.cwnd, 50, "an eighth of 40 ms is 5 ms");
        round(&mut hystart, &mut window, 50);
        assert!(hystart.css.is_some());
        let entered = window.cwnd;
        for _ in 0..4 {
            round(&mut hystart, &mut window, 50);
        }
        assert_eq!((window.ssthresh, window.cwnd), (u32::MAX, entered + 20));
        round(&mut hystart, &mut window, 50);
        assert_eq!(window.ssthresh, entered + 20);
    }

    #[test]
    fn a_passing_rise_resumes_slow_start() {
        let (mut hystart, mut window) = (HyStart::default(), Window::new(10));
        round(&mut hystart, &mut window, 40);
        round(&mut hystart, &mut window, 60);
        assert!(hystart.css.is_some());
        round(&mut hystart, &mut window, 41);
        assert!(hystart.css.is_none());
        let before = window.cwnd;
        round(&mut hystart, &mut window, 42);
        assert_eq!((window.cwnd, window.ssthresh), (before + 20, u32::MAX));
    }

    #[test]
    fn thresholds_are_four_and_sixteen_milliseconds() {
        for (last, rise, enters) in
            [(1, 3, false), (1, 4, true), (1000, 15, false), (1000, 16, true), (80, 10, true)]
        {
            let (mut hystart, mut window) = (HyStart::default(), Window::new(10));
            round(&mut hystart, &mut window, last);
            round(&mut hystart, &mut window, last + rise);
            assert_eq!(hystart.css.is_some(), enters, "{last} ms + {rise} ms");
        }
    }

    #[test]
    fn few_samples_prove_nothing() {
        let (mut hystart, mut window) = (HyStart::default(), Window::new(10));
        for rtt in [40, 90, 140] {
            for ack in 0..7 {
                hystart.observe(&sample(rtt, ack == 0, 1), &mut window);
            }
        }
        assert!(hystart.css.is_none());
    }

    #[test]
    fn a_merged_ack_adds_what_its_parts_would() {
        let (mut hystart, mut window) = (HyStart::default(), Window::new(45));
        hystart.grow(&sample(1, false, 45), &mut window);
        assert_eq!(window.cwnd, 90);
        hystart.css = Some(Conservative { baseline: Nanos::ZERO, rounds: 0, rest: 0 });
        hystart.grow(&sample(1, false, 45), &mut window);
        hystart.grow(&sample(1, false, 45), &mut window);
        assert_eq!(window.cwnd, 90 + 90 / CSS_GROWTH_DIVISOR);
    }

    #[test]
    fn later_slow_starts_are_plain() {
        let (mut hystart, mut window) = (HyStart::default(), Window::new(10));
        window.ssthresh = 40;
        round(&mut hystart, &mut window, 10);
        let far = sample(100, false, 45);
        hystart.observe(&far, &mut window);
        assert_eq!(hystart.grow(&far, &mut window), 35);
        assert_eq!((window.cwnd, window.ssthresh), (40, 40));
    }
}
