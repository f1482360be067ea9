//! Best value of a sliding window from three samples (Kathleen Nichols' filter, as in Linux's
//! `lib/win_minmax.c`).
//!
//! The axis is whatever the caller counts in (nanoseconds, rounds). The answer is exact while the
//! first sample is the best one and otherwise at most a quarter of the window old.
//! Cost: O(1) and no allocation per sample; 48 bytes.

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: u64,
    value: u64,
}

/// The best, second best and third best of a window, each later than the one before.
#[derive(Clone, Copy, Debug)]
struct Best([Sample; 3]);

impl Best {
    fn new(at: u64, value: u64) -> Self {
        Self([Sample { at, value }; 3])
    }

    fn add(&mut self, window: u64, at: u64, value: u64, beats: fn(u64, u64) -> bool) -> u64 {
        let at_least_as_good = |old: Sample| !beats(old.value, value);
        let new = Sample { at, value };
        if at_least_as_good(self.0[0]) || at.saturating_sub(self.0[2].at) > window {
            *self = Self::new(at, value);
            return value;
        }
        if at_least_as_good(self.0[1]) {
            self.0[1] = new;
            self.0[2] = new;
        } else if at_least_as_good(self.0[2]) {
            self.0[2] = new;
        }
        self.expire(window, new);
        self.0[0].value
    }

    /// Lets the runners-up move up as the best one ages.
    fn expire(&mut self, window: u64, new: Sample) {
        let [first, second, third] = self.0;
        let age = new.at.saturating_sub(first.at);
        if age > window {
            self.0 = [second, third, new];
            if new.at.saturating_sub(second.at) > window {
                self.0 = [third, new, new];
            }
        } else if second.at == first.at && age > window / 4 {
            // A quarter of the window without a second best: take it from the second quarter.
            self.0 = [first, new, new];
        } else if third.at == second.at && age > window / 2 {
            self.0[2] = new;
        }
    }
}

/// Smallest value of a sliding window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowedMin(Option<Best>);

impl WindowedMin {
    /// Adds `value` seen at `at` and returns the minimum over the last `window`, which has the
    /// unit of `at`.
    pub(crate) fn update(&mut self, window: u64, at: u64, value: u64) -> u64 {
        self.0.get_or_insert(Best::new(at, value)).add(window, at, value, |old, new| old < new)
    }

    /// The minimum; `None` before the first sample.
    pub(crate) fn get(&self) -> Option<u64> {
        self.0.map(|best| best.0[0].value)
    }
}

/// Largest value of a sliding window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowedMax(Option<Best>);

impl WindowedMax {
    /// Adds `value` seen at `at` and returns the maximum over the last `window`, which has the
    /// unit of `at`.
    pub(crate) fn update(&mut self, window: u64, at: u64, value: u64) -> u64 {
        self.0.get_or_insert(Best::new(at, value)).add(window, at, value, |old, new| old > new)
    }

    /// The maximum; `None` before the first sample.
    pub(crate) fn get(&self) -> Option<u64> {
        self.0.map(|best| best.0[0].value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_best_is_forgotten_after_the_window() {
        let mut min = WindowedMin::default();
        assert_eq!(min.get(), None);
        assert_eq!(min.update(100, 0, 5), 5);
        for at in (10..=100).step_by(10) {
            assert_eq!(min.update(100, at, 9), 5);
        }
        assert_eq!(min.update(100, 101, 9), 9);
        assert_eq!(min.update(100, 102, 3), 3);
    }

    #[test]
    fn a_gap_longer_than_the_window_starts_over() {
        let mut max = WindowedMax::default();
        max.update(10, 0, 7);
        assert_eq!(max.update(10, 5, 3), 7);
        assert_eq!(max.update(10, 16, 1), 1);
        assert_eq!(max.get(), Some(1));
    }

    proptest! {
        #[test]
        fn the_minimum_is_a_recent_sample_and_no_larger_than_the_newest(
            steps in prop::collection::vec((0u64..40, 0u64..1000), 1..200)
        ) {
            let mut min = WindowedMin::default();
            let mut at = 0;
            let mut seen = Vec::new();
            for (step, value) in steps {
                at += step;
                seen.push((at, value));
                let answer = min.update(100, at, value);
                prop_assert!(answer <= value);
                prop_assert!(seen.iter().any(|&(t, v)| v == answer && at - t <= 100));
            }
        }
    }
}
