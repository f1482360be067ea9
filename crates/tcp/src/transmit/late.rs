//! Adapts the small-queue limit to completions or hosts that are late.
//!
//! Two frames below are enough while each completion brings the next frame. Where completions come
//! late or in batches the wire idles meanwhile, and the limit must cover more time. No single event
//! tells: a shaper that saves tokens empties the queue at once as well and needs no longer one. So
//! a flow that was held back while the wire seemed idle tries: a leap up, and if more is delivered
//! with it, down again step by step as far as no less is delivered. In between lie pauses that
//! double.
//!
//! The idea is that of BQL, for one flow; the state exists only once there was a sign
//! of an idle wire.
//! O(1) per visit.

use crate::time::{Instant, Nanos};

/// The limit covers at most 2^n times its ordinary time.
const MAX_LEVEL: u8 = 6;
/// How long one level is measured: long enough that a burst more or less is no verdict.
const WINDOW: Nanos = Nanos::from_millis(100);
/// A leap: less may change nothing where a completion is several frames late.
const LEAP: u8 = 3;
/// Half the first pause after a trial: trials take well under a hundredth of the time.
const PAUSE: Nanos = Nanos::from_secs(15);
/// A step down that delivers less may have met a busy host, so it is tried so often: every level
/// kept costs delay.
const TRIES: u8 = 3;
/// The pause doubles so often.
const MAX_PAUSES: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Until the pause is over.
    Pause,
    /// Measuring the level as it is.
    Base,
    /// Measuring a leap up from this level, against what it delivered.
    Up(u8, u64),
    /// Measuring one level down.
    Down(u64),
}

/// State that one flow has learnt about the queue below it.
#[derive(Clone, Debug)]
pub struct LateQueue {
    level: u8,
    phase: Phase,
    /// Begin of the phase.
    since: Instant,
    /// Segments delivered at the begin of the phase.
    delivered: u64,
    /// The wire seemed idle in this phase.
    was_idle: bool,
    pauses: u8,
    /// Steps down in a row that delivered less.
    failures: u8,
    goes_down: bool,
}

/// Facts about a visit of the flow.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    /// Current time.
    pub now: Instant,
    /// Whether the limit held the flow back although the wire seemed idle: all frames below TCP had
    /// left meanwhile, or all but one were acknowledged before their completion.
    pub idle: bool,
    /// Whether the flow has had something to send all the time.
    pub busy: bool,
    /// Segments delivered so far.
    pub delivered: u64,
    /// Smoothed round-trip time.
    pub round: Nanos,
}

impl LateQueue {
    /// Starts when the wire seems idle for the first time.
    pub fn new(now: Instant, delivered: u64) -> Self {
        Self {
            level: 0,
            phase: Phase::Base,
            since: now,
            delivered,
            was_idle: false,
            pauses: 0,
            failures: 0,
            goes_down: false,
        }
    }

    /// Returns how often the time that the limit covers was doubled.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Takes another visit of the flow.
    pub fn visit(&mut self, v: &Visit) {
        self.was_idle |= v.idle;
        if !v.busy && self.phase != Phase::Pause {
            self.give_up(v);
            return;
        }
        let elapsed = v.now.since(self.since);
        if self.phase == Phase::Pause {
            let pause = PAUSE.saturating_mul(1 << self.pauses);
            if elapsed >= pause && v.idle {
                self.enter(Phase::Base, v);
            }
            return;
        }
        // Nothing was learnt yet and the wire was idle: no need to measure that.
        let is_new = self.pauses == 0 && self.failures == 0;
        if is_new && v.idle && self.phase == Phase::Base && self.level < LEAP {
            self.level += 1;
            self.enter(Phase::Base, v);
            return;
        }
        if elapsed >= WINDOW.max(v.round.saturating_mul(8)) {
            self.conclude(v, elapsed);
        }
    }

    fn conclude(&mut self, v: &Visit, elapsed: Nanos) {
        let rate = self.rate(elapsed, v.delivered);
        match self.phase {
            Phase::Base
                if self.level > 0 && (self.goes_down || self.pauses == 0 || self.failures > 0) =>
            {
                self.level -= 1;
                self.enter(Phase::Down(rate), v);
            }
            Phase::Base => self.try_up(rate, v),
            Phase::Up(_, before) if rate > before + before / 16 => {
                self.level -= 1;
                self.enter(Phase::Down(rate), v);
            }
            Phase::Up(from, _) => {
                self.level = from;
                self.pause(true, v);
            }
            Phase::Down(before) if rate >= before - before / 32 => {
                self.failures = 0;
                if self.level == 0 {
                    self.pause(false, v);
                } else {
                    self.level -= 1;
                    self.enter(Phase::Down(before), v);
                }
            }
            Phase::Down(_) => {
                self.level += 1;
                self.failures += 1;
                if self.failures == TRIES {
                    self.pause(false, v);
                } else {
                    self.enter(Phase::Base, v);
                }
            }
            Phase::Pause => {}
        }
    }

    fn try_up(&mut self, rate: u64, v: &Visit) {
        if self.level == MAX_LEVEL || !self.was_idle {
            self.pause(true, v);
            return;
        }
        let from = self.level;
        self.level = (from + LEAP).min(MAX_LEVEL);
        self.enter(Phase::Up(from, rate), v);
    }

    /// Ends a trial without a verdict.
    fn give_up(&mut self, v: &Visit) {
        match self.phase {
            Phase::Up(from, _) => self.level = from,
            Phase::Down(_) => self.level += 1,
            Phase::Base | Phase::Pause => {}
        }
        self.phase = Phase::Base;
        self.enter(Phase::Base, v);
    }

    fn pause(&mut self, goes_down: bool, v: &Visit) {
        self.pauses = (self.pauses + 1).min(MAX_PAUSES);
        self.failures = 0;
        self.goes_down = goes_down;
        self.enter(Phase::Pause, v);
    }

    fn enter(&mut self, phase: Phase, v: &Visit) {
        self.phase = phase;
        self.since = v.now;
        self.delivered = v.delivered;
        self.was_idle = false;
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

    /// Runs a flow for 20 s whose segments per millisecond depend on the level; returns the
    /// milliseconds at each level after the first second.
    fn run(per_ms: impl Fn(u8) -> u64) -> [u64; MAX_LEVEL as usize + 1] {
        let mut v = Visit {
            now: Instant::from_nanos(1),
            idle: true,
            busy: true,
            delivered: 0,
            round: Nanos::from_millis(1),
        };
        let mut late = LateQueue::new(v.now, 0);
        let mut share = [0; MAX_LEVEL as usize + 1];
        for ms in 0..20_000 {
            v.now += Nanos::from_millis(1);
            v.delivered += per_ms(late.level());
            late.visit(&v);
            if ms >= 1000 {
                share[usize::from(late.level())] += 1;
            }
        }
        share
    }

    #[test]
    fn what_delivers_more_stays() {
        let share = run(|level| 10 << level.min(3));
        assert!(share[3] > 18_500, "{share:?}");
        let share = run(|level| if level < 2 { 10 } else { 20 });
        assert!(share[2] > 18_000, "{share:?}");
    }

    #[test]
    fn what_delivers_nothing_more_is_taken_back() {
        let share = run(|_| 80);
        assert!(share[0] > 18_500, "{share:?}");
    }

    #[test]
    fn a_trial_without_a_verdict_leaves_the_level() {
        let mut v = Visit {
            now: Instant::from_nanos(1),
            idle: true,
            busy: true,
            delivered: 0,
            round: Nanos::ZERO,
        };
        let mut late = LateQueue::new(v.now, 0);
        // At once while nothing was learnt.
        late.visit(&v);
        assert_eq!(late.level(), 1);
        for _ in 0..10 {
            v.now += WINDOW;
            (v.busy, v.idle) = (true, false);
            late.visit(&v);
            assert_eq!(late.level(), 0, "a trial");
            v.busy = false;
            late.visit(&v);
            assert_eq!(late.level(), 1);
        }
    }
}
