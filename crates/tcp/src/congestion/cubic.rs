//! CUBIC (RFC 9438), with HyStart for slow start.
//!
//! Time is counted in 1/1024 s and windows in segments, without floating point.
//! Cost: four divisions per ACK in congestion avoidance, one integer cube root per epoch.

use super::hystart::HyStart;
use super::{AckSample, CongestionControl, CongestionEvent, Start, Window};
use crate::congestion::HyStartRule;
use crate::time::{Instant, Nanos};

/// Beyond this many 1/1024 s from the plateau the curve is above every window.
const FAR: u64 = 1 << 20;
/// Binary digits of `w_est` behind the point.
const EST_BITS: u32 = 16;
/// While no congestion event marks a plateau, the window grows by at least a twentieth per round
/// trip, as in Linux: after an early exit from slow start the curve alone would take seconds.
const UNKNOWN_PLATEAU_PER: u32 = 20;

/// One stage of congestion avoidance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Epoch {
    /// Start, moved on by the times in which the flow did not fill its window.
    start: Instant,
    /// Time from the start to the plateau, in 1/1024 s.
    k: u64,
    /// The plateau.
    origin: u32,
    /// What Reno would have by now (`W_est`), with [`EST_BITS`] binary digits.
    w_est: u64,
}

impl Epoch {
    fn begin(now: Instant, cwnd: u32, w_max: u32) -> Self {
        let below = u64::from(w_max.saturating_sub(cwnd));
        // K = cbrt(below / C) with C = 0.4, scaled by 2^10.
        let k = cube_root((below * 5) << 29);
        Self { start: now, k, origin: w_max.max(cwnd), w_est: u64::from(cwnd) << EST_BITS }
    }

    /// `W_cubic(t) = C (t - K)^3 + W_max` (RFC 9438 section 4.2).
    fn w_cubic(&self, span: Nanos) -> u32 {
        let t = span.0.saturating_mul(2) / 1_953_125;
        let distance = t.abs_diff(self.k).min(FAR);
        let delta = ((distance * distance * distance / 5 * 2) >> 30) as u32;
        if t < self.k {
            self.origin.saturating_sub(delta)
        } else {
            self.origin.saturating_add(delta)
        }
    }

    /// Reno's growth with CUBIC's smaller decrease (section 4.3): `alpha = 9/17` per window until
    /// the window before the reduction is reached again, then 1.
    fn grow_estimate(&mut self, acked: u32, cwnd: u32, cwnd_prior: u32) {
        let acked = u64::from(acked) << EST_BITS;
        let window = u64::from(cwnd.max(1));
        let has_recovered = self.w_est >= u64::from(cwnd_prior) << EST_BITS;
        let growth = if has_recovered { acked / window } else { acked * 9 / (window * 17) };
        self.w_est = self.w_est.saturating_add(growth);
    }

    fn estimate(&self) -> u32 {
        u32::try_from(self.w_est >> EST_BITS).unwrap_or(u32::MAX)
    }

    fn skip(&mut self, idle: Nanos, now: Instant) {
        self.start = (self.start + idle).min(now);
    }
}

/// What a congestion event changes, kept in case it was spurious.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Curve {
    /// The window at the last reduction, less with fast convergence; 0 when unknown.
    w_max: u32,
    /// The window before the last reduction.
    cwnd_prior: u32,
    epoch: Option<Epoch>,
}

/// Congestion controller CUBIC.
#[derive(Clone, Debug)]
pub struct Cubic {
    curve: Curve,
    /// The curve before the last reduction, unless that was undone. It stays when the recovery is
    /// over: a DSACK may still come that says that nothing was lost.
    saved: Option<Box<Curve>>,
    hystart: HyStart,
    last_ack: Instant,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            curve: Curve { w_max: 0, cwnd_prior: 0, epoch: None },
            saved: None,
            hystart: HyStart::new(HyStartRule::Rfc9406, Instant::ZERO),
            last_ack: Instant::ZERO,
        }
    }
}

impl Cubic {
    fn avoid_congestion(&mut self, acked: u32, sample: &AckSample, window: &mut Window) {
        let cwnd = window.cwnd.max(1);
        let Curve { w_max, cwnd_prior, ref mut epoch } = self.curve;
        let epoch = epoch.get_or_insert_with(|| Epoch::begin(sample.now, cwnd, w_max));
        epoch.grow_estimate(acked, cwnd, cwnd_prior);
        // The window aims at where the curve will be in one round trip.
        let ahead = if sample.min_rtt == Nanos::MAX { Nanos::ZERO } else { sample.min_rtt };
        let elapsed = sample.now.since(epoch.start) + ahead;
        let target = epoch.w_cubic(elapsed).max(epoch.estimate());
        let mut per = match target.saturating_sub(cwnd) {
            0 => cwnd.saturating_mul(100),
            // At least 2: the target is at most 1.5 windows.
            more => (cwnd / more).max(2),
        };
        if w_max == 0 {
            per = per.min(UNKNOWN_PLATEAU_PER);
        }
        window.additive_increase(per, acked);
    }
}

impl CongestionControl for Cubic {
    fn name(&self) -> &'static str {
        "cubic"
    }

    fn init(&mut self, start: &Start, _window: &mut Window) {
        self.hystart = HyStart::new(start.hystart, start.now);
    }

    fn on_ack(&mut self, sample: &AckSample, window: &mut Window) {
        let since_last = sample.now.since(self.last_ack);
        self.last_ack = sample.now;
        let epoch = self.curve.epoch.map(|epoch| epoch.start);
        self.hystart.follow(sample.hystart, sample.now);
        self.hystart.observe(sample, epoch, window);
        if !sample.is_cwnd_limited {
            // Time in which the flow does not fill its window does not count (section 5.8).
            if let Some(epoch) = &mut self.curve.epoch {
                epoch.skip(since_last, sample.now);
            }
            return;
        }
        let mut acked = sample.acked_sacked;
        if window.in_slow_start() {
            acked = self.hystart.grow(sample, window);
        }
        if acked > 0 {
            self.avoid_congestion(acked, sample, window);
        }
    }

    fn found_ack_train(&self) -> bool {
        self.hystart.found_train()
    }

    /// Multiplicative decrease by 0.7, with fast convergence: a flow whose window fell below the
    /// last plateau releases bandwidth (sections 4.6 and 4.7).
    fn ssthresh(&mut self, _now: Instant, window: &Window) -> u32 {
        self.saved = Some(Box::new(self.curve));
        let cwnd = window.cwnd;
        let is_falling = cwnd < self.curve.w_max;
        let w_max = if is_falling { scale(cwnd, 17, 20) } else { cwnd };
        self.curve = Curve { w_max, cwnd_prior: cwnd, epoch: None };
        scale(cwnd, 7, 10).max(2)
    }

    fn on_event(&mut self, event: CongestionEvent, now: Instant, _window: &mut Window) {
        match event {
            CongestionEvent::TxStart { last_sent, .. } => {
                if let Some(epoch) = &mut self.curve.epoch {
                    epoch.skip(now.since(last_sent), now);
                }
                self.last_ack = now;
            }
            // The next stage starts from its own window with K = 0 (section 4.8).
            CongestionEvent::Loss => {
                self.curve.w_max = 0;
                self.curve.epoch = None;
                self.hystart.on_reduction(true, now);
            }
            CongestionEvent::Undo => {
                if let Some(saved) = self.saved.take() {
                    self.curve = *saved;
                }
            }
            CongestionEvent::Open => {}
            CongestionEvent::Recovery | CongestionEvent::Cwr => {
                self.hystart.on_reduction(false, now);
            }
        }
    }
}

fn scale(cwnd: u32, numerator: u64, denominator: u64) -> u32 {
    (u64::from(cwnd) * numerator / denominator) as u32
}

/// The largest integer whose cube is at most `n`.
fn cube_root(n: u64) -> u64 {
    let mut root = 0u64;
    for bit in (0..=21).rev() {
        let candidate = root | 1 << bit;
        if candidate.checked_pow(3).is_some_and(|cube| cube <= n) {
            root = candidate;
        }
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Nanos = Nanos::from_millis(100);

    /// Acknowledges whole windows, one per round trip, for `rounds` round trips.
    fn run(cubic: &mut Cubic, window: &mut Window, now: &mut Instant, rounds: u32) {
        for _ in 0..rounds {
            let flight = window.cwnd;
            for acked in 0..flight {
                *now += RTT / u64::from(flight);
                cubic.on_ack(&limited(*now, 1, acked == 0), window);
            }
        }
    }

    fn limited(now: Instant, acked: u32, is_round_start: bool) -> AckSample {
        AckSample {
            now,
            acked_sacked: acked,
            min_rtt: RTT,
            rtt: Some(RTT),
            is_cwnd_limited: true,
            is_round_start,
            ..AckSample::default()
        }
    }

    /// A window of `cwnd` in congestion avoidance, just reduced.
    fn reduced(cwnd: u32, now: Instant) -> (Cubic, Window) {
        let (mut cubic, mut window) = (Cubic::default(), Window::new(cwnd));
        window.ssthresh = cubic.ssthresh(now, &window);
        window.cwnd = window.ssthresh;
        cubic.on_event(CongestionEvent::Recovery, now, &mut window);
        cubic.on_event(CongestionEvent::Open, now, &mut window);
        (cubic, window)
    }

    #[test]
    fn cube_root_is_exact() {
        for root in [0, 1, 2, 3, 10, 1000, 2_642_245] {
            let cube = u64::pow(root, 3);
            assert_eq!(cube_root(cube), root);
            if root > 1 {
                assert_eq!(cube_root(cube - 1), root - 1);
            }
        }
        assert_eq!(cube_root(u64::MAX), 2_642_245);
    }

    /// Times and windows of the formula, computed apart: W_max 10000, cwnd 7000, so
    /// K = cbrt(3000 / 0.4) = 19.574 s.
    #[test]
    fn the_curve_is_that_of_the_rfc() {
        let epoch = Epoch::begin(Instant::ZERO, 7000, 10_000);
        assert_eq!(epoch.k * 1000 / 1024, 19_574);
        for (secs, window) in [
            (0, 7000),
            (5, 8761),
            (10, 9649),
            (15, 9961),
            (19, 9999),
            (20, 10_000),
            (25, 10_063),
            (30, 10_453),
            (40, 13_409),
            (60, 36_425),
        ] {
            let w = epoch.w_cubic(Nanos::from_secs(secs));
            assert!(w.abs_diff(window) <= 2, "{w} instead of {window} after {secs} s");
        }
        assert_eq!(epoch.w_cubic(Nanos::MAX), 10_000 + (((1u64 << 60) / 5 * 2) >> 30) as u32);
    }

    #[test]
    fn the_window_follows_the_curve() {
        let mut now = Instant::ZERO + Nanos::from_secs(1);
        let (mut cubic, mut window) = reduced(10_000, now);
        let start = now;
        for secs in [5, 10, 15, 20, 25] {
            let rounds = secs * 10 - now.since(start).as_millis().div_ceil(100) as u32;
            run(&mut cubic, &mut window, &mut now, rounds);
            let curve = Epoch::begin(start, 7000, 10_000).w_cubic(now.since(start));
            let distance = f64::from(window.cwnd.abs_diff(curve)) / f64::from(curve);
            assert!(distance < 0.005, "{} instead of {curve} after {secs} s", window.cwnd);
        }
    }

    #[test]
    fn low_products_are_reno_friendly() {
        let mut now = Instant::ZERO;
        let (mut cubic, mut window) = reduced(20, now);
        assert_eq!(window.cwnd, 14);
        // 6 segments at 9/17 per round trip take 11.3 round trips; the curve takes 2.5 s.
        run(&mut cubic, &mut window, &mut now, 11);
        assert!((18..=20).contains(&window.cwnd), "{}", window.cwnd);
        // At the old window Reno's slope of one per round trip.
        run(&mut cubic, &mut window, &mut now, 2);
        let before = window.cwnd;
        run(&mut cubic, &mut window, &mut now, 6);
        assert!((5..=7).contains(&(window.cwnd - before)), "{before} to {}", window.cwnd);
    }

    #[test]
    fn fast_convergence_lowers_the_plateau() {
        let now = Instant::ZERO;
        let (mut cubic, mut window) = reduced(1000, now);
        assert_eq!((window.cwnd, cubic.curve.w_max), (700, 1000));
        window.cwnd = 800;
        assert_eq!(cubic.ssthresh(now, &window), 560);
        assert_eq!(cubic.curve.w_max, 680);
        window.cwnd = 680;
        cubic.ssthresh(now, &window);
        assert_eq!(cubic.curve.w_max, 680);
        window.cwnd = 2;
        assert_eq!(cubic.ssthresh(now, &window), 2);
    }

    #[test]
    fn idle_time_does_not_count() {
        let now = Instant::ZERO + Nanos::from_secs(1);
        let later = now + Nanos::from_secs(1000);
        let start = |cubic: &Cubic| cubic.curve.epoch.expect("an epoch").start;
        let (mut cubic, mut window) = reduced(1000, now);
        cubic.on_ack(&limited(now, 1, false), &mut window);
        let epoch_start = start(&cubic);
        let event = CongestionEvent::TxStart { last_sent: now, is_app_limited: false };
        cubic.on_event(event, later, &mut window);
        assert_eq!(start(&cubic), epoch_start + Nanos::from_secs(1000));
        let unlimited = AckSample { is_cwnd_limited: false, ..limited(later, 1, false) };
        cubic.on_ack(&unlimited, &mut window);
        assert_eq!(start(&cubic), epoch_start + Nanos::from_secs(1000), "counted once");
        let end = later + Nanos::from_secs(500);
        cubic.on_ack(&AckSample { now: end, ..unlimited }, &mut window);
        assert_eq!(start(&cubic), epoch_start + Nanos::from_secs(1500));
        assert_eq!(window.cwnd, 700);
    }

    #[test]
    fn undo_restores_the_curve_of_before_the_last_reduction() {
        let mut now = Instant::ZERO;
        let events = [CongestionEvent::Recovery, CongestionEvent::Loss];
        for (event, is_over) in events.into_iter().flat_map(|one| [(one, false), (one, true)]) {
            let (mut cubic, mut window) = reduced(1000, now);
            // An episode that was neither undone nor ended in an event.
            cubic.ssthresh(now, &window);
            run(&mut cubic, &mut window, &mut now, 10);
            let before = cubic.curve;
            window.ssthresh = cubic.ssthresh(now, &window);
            cubic.on_event(event, now, &mut window);
            assert_ne!(cubic.curve, before);
            if is_over {
                cubic.on_event(CongestionEvent::Open, now, &mut window);
            }
            cubic.on_event(CongestionEvent::Undo, now, &mut window);
            assert_eq!(cubic.curve, before);
        }
    }

    #[test]
    fn a_timeout_starts_a_curve_without_a_plateau_above() {
        let now = Instant::ZERO;
        let (mut cubic, mut window) = reduced(1000, now);
        window.cwnd = 500;
        window.ssthresh = cubic.ssthresh(now, &window);
        cubic.on_event(CongestionEvent::Loss, now, &mut window);
        window.cwnd = window.ssthresh;
        cubic.on_ack(&limited(now, 1, false), &mut window);
        let epoch = cubic.curve.epoch.expect("an epoch");
        assert_eq!((epoch.k, epoch.origin), (0, 350));
    }

    #[test]
    fn after_slow_start_without_loss_growth_is_a_twentieth_at_least() {
        let (mut cubic, mut window) = (Cubic::default(), Window::new(1000));
        window.ssthresh = 1000;
        run(&mut cubic, &mut window, &mut Instant::ZERO.clone(), 1);
        assert_eq!(window.cwnd, 1050);
    }
}
