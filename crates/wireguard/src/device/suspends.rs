//! Whether the machine has slept. The clock of sessions stands still meanwhile, and the peers' goes
//! on: to them the sessions are over, and here keys would be used for longer than they may be.
//!
//! Cost: a comparison for each visit, and three looks at clocks for each [`PAUSE`] with a visit.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use neap_tcp::time::{Instant, Nanos};

/// Looks at the clocks are at least so far apart.
const PAUSE: Nanos = Nanos::from_millis(100);
/// A sleep that is shorter is one that peers do not notice. Looks differ by less.
const LEAST: Nanos = Nanos::from_secs(1);
/// Nobody has looked yet.
const UNKNOWN: i64 = i64::MAX;

/// How long the machine had slept when sessions began anew, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Suspends {
    asleep: AtomicI64,
    next_look: AtomicU64,
}

impl Suspends {
    pub(crate) fn new() -> Self {
        Self { asleep: AtomicI64::new(UNKNOWN), next_look: AtomicU64::new(0) }
    }

    /// Whether the machine has slept for a time that sessions do not know of; once. `asleep` looks
    /// how long it has slept since its start, if that can be told.
    pub(crate) fn has_slept(&self, now: Instant, asleep: impl FnOnce() -> Option<Nanos>) -> bool {
        if now.as_nanos() < self.next_look.load(Relaxed) {
            return false;
        }
        self.next_look.store((now + PAUSE).as_nanos(), Relaxed);
        let Some(asleep) = asleep() else { return false };
        let (before, asleep) = (self.asleep.load(Relaxed), signed(asleep));
        let has_slept = asleep > before.saturating_add(signed(LEAST));
        if has_slept || before == UNKNOWN {
            self.asleep.store(asleep, Relaxed);
        }
        has_slept
    }

    /// As if the machine had slept for so long since the last look.
    #[cfg(test)]
    pub(crate) fn sleep(&self, time: Nanos) {
        self.asleep.fetch_sub(signed(time), Relaxed);
        self.next_look.store(0, Relaxed);
    }
}

fn signed(time: Nanos) -> i64 {
    time.0.try_into().unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_told_once_and_short_ones_when_they_are_long_together() {
        let (suspends, mut now) = (Suspends::new(), Instant::ZERO);
        let mut has_slept = |millis: u64| {
            now += PAUSE;
            suspends.has_slept(now, || Some(Nanos::from_millis(millis)))
        };
        // What was before the tunnel is not of its sessions.
        assert!(!has_slept(3_600_000));
        assert!(!has_slept(3_600_000));
        assert!(has_slept(3_700_000) && !has_slept(3_700_000));
        assert!(!has_slept(3_700_700) && has_slept(3_701_400) && !has_slept(3_701_400));
        // A look that was interrupted tells of less.
        assert!(!has_slept(3_701_310) && !has_slept(3_701_400));
    }

    #[test]
    fn looks_at_the_clocks_are_few() {
        let suspends = Suspends::new();
        let mut looks = 0;
        for millis in 0..1000 {
            let now = Instant::ZERO + Nanos::from_millis(millis);
            suspends.has_slept(now, || {
                looks += 1;
                None
            });
        }
        assert_eq!(looks, 10);
    }
}
