//! Adapts the small-queue limit to completions or hosts that are late.
//!
//! Two frames below are enough while each completion brings the next frame. Where completions come
//! late or in batches, all that was below has left before we come, and the wire idles: then the
//! limit covers twice the time. Whether that was needed shows in what is delivered: from time to
//! time a doubling is taken back, and it stays away unless less is delivered without it. A shaper
//! that saves tokens lets frames through at once as well, and needs no longer queue.
//!
//! The idea is that of BQL, for one flow; the state exists only once a queue ran empty. O(1).

use crate::time::{Instant, Nanos};

/// The limit covers at most 2^n times its ordinary time.
const MAX_BOOST: u8 = 6;
/// How long a doubling stays before it is tried without.
const SETTLE: Nanos = Nanos::from_millis(50);
/// How long what is delivered is measured with, and then without.
const WINDOW: Nanos = Nanos::from_millis(20);
/// How long a queue that runs empty is ignored after a doubling proved needless.
const QUIET: Nanos = Nanos::from_secs(1);
/// The last two times double with each repetition, so often.
const MAX_REPEATS: u8 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The doublings stay as they are.
    Steady,
    /// Measuring what they deliver.
    With,
    /// Measuring what one less delivers; the count is that of the measurement before.
    Without(u64),
}

/// What one flow has learnt about the queue below it.
#[derive(Clone, Debug)]
pub struct LateQueue {
    boost: u8,
    phase: Phase,
    /// Begin of the phase.
    since: Instant,
    /// Segments delivered at the begin of the phase.
    delivered: u64,
    quiet_until: Instant,
    needless: u8,
    needed: u8,
}

impl LateQueue {
    /// A queue ran empty for the first time.
    pub fn new(now: Instant) -> Self {
        Self {
            boost: 0,
            phase: Phase::Steady,
            since: now,
            delivered: 0,
            quiet_until: now,
            needless: 0,
            needed: 0,
        }
    }

    /// Doublings of the time that the limit covers.
    pub fn boost(&self) -> u8 {
        self.boost
    }

    /// Another visit of the flow: whether the queue had run empty, the segments delivered so far,
    /// and whether the flow has had something to send all the time. `round` is the round-trip time.
    pub fn visit(&mut self, now: Instant, empty: bool, delivered: u64, busy: bool, round: Nanos) {
        if !busy && self.phase != Phase::Steady {
            self.restore();
            self.enter(Phase::Steady, now, delivered);
        }
        let elapsed = now.since(self.since);
        let window = WINDOW.max(round.saturating_mul(8));
        match self.phase {
            Phase::Steady if empty && now >= self.quiet_until && self.boost < MAX_BOOST => {
                self.boost += 1;
                self.enter(Phase::Steady, now, delivered);
            }
            Phase::Steady => {
                let settle = SETTLE.max(round.saturating_mul(8)).saturating_mul(1 << self.needed);
                if self.boost > 0 && busy && elapsed >= settle {
                    self.enter(Phase::With, now, delivered);
                }
            }
            Phase::With if elapsed >= window => {
                let rate = self.rate(elapsed, delivered);
                self.boost -= 1;
                self.enter(Phase::Without(rate), now, delivered);
            }
            Phase::Without(with) if elapsed >= window => {
                self.judge(now, self.rate(elapsed, delivered), with);
                self.enter(Phase::Steady, now, delivered);
            }
            Phase::With | Phase::Without(_) => {}
        }
    }

    fn judge(&mut self, now: Instant, without: u64, with: u64) {
        if without >= with - with / 32 {
            self.quiet_until = now + QUIET.saturating_mul(1 << self.needless);
            self.needless = (self.needless + 1).min(MAX_REPEATS);
            self.needed = 0;
        } else {
            self.boost += 1;
            self.needed = (self.needed + 1).min(MAX_REPEATS);
            self.needless = 0;
        }
    }

    fn restore(&mut self) {
        if matches!(self.phase, Phase::Without(_)) {
            self.boost += 1;
        }
    }

    fn enter(&mut self, phase: Phase, now: Instant, delivered: u64) {
        self.phase = phase;
        self.since = now;
        self.delivered = delivered;
    }

    /// Segments per second, times 1024.
    fn rate(&self, elapsed: Nanos, delivered: u64) -> u64 {
        let segments = delivered.saturating_sub(self.delivered);
        let rate = (u128::from(segments) << 10) * 1_000_000_000 / u128::from(elapsed.0.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a flow whose segments per millisecond depend on the doublings; returns the share of time
    /// at each number of doublings after the first second.
    fn run(per_ms: impl Fn(u8) -> u64) -> [u64; MAX_BOOST as usize + 1] {
        let mut now = Instant::from_nanos(1);
        let mut late = LateQueue::new(now);
        let mut delivered = 0;
        let mut share = [0; MAX_BOOST as usize + 1];
        for ms in 0..20_000 {
            now += Nanos::from_millis(1);
            delivered += per_ms(late.boost());
            late.visit(now, true, delivered, true, Nanos::from_millis(1));
            if ms >= 1000 {
                share[usize::from(late.boost())] += 1;
            }
        }
        share
    }

    #[test]
    fn doublings_that_help_stay() {
        let share = run(|boost| 10 << boost.min(3));
        assert!(share[3..].iter().sum::<u64>() > 18_000, "{share:?}");
    }

    #[test]
    fn doublings_that_do_not_help_are_taken_back() {
        let share = run(|_| 80);
        assert!(share[0] > 17_500, "{share:?}");
    }

    #[test]
    fn an_idle_flow_ends_a_measurement_without_a_verdict() {
        let mut now = Instant::from_nanos(1);
        let mut late = LateQueue::new(now);
        late.visit(now, true, 0, true, Nanos::ZERO);
        assert_eq!(late.boost(), 1);
        for _ in 0..5 {
            now += SETTLE;
            late.visit(now, false, 0, true, Nanos::ZERO);
            late.visit(now, false, 0, false, Nanos::ZERO);
        }
        assert_eq!(late.boost(), 1);
    }
}
