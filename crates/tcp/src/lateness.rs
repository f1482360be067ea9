//! Histograms of how late timed departures are. Any thread may add to them.

use crate::time::Nanos;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Classes per doubling: a percentile is at most a quarter too large.
const STEPS: u32 = 4;
/// Classes; the last one begins at 7.5 seconds.
const CLASSES: usize = 128;

/// Histogram of lateness.
///
/// Cost: adding is two relaxed atomic operations; 1 KiB, one per shard and per qdisc.
#[derive(Debug)]
pub struct Lateness {
    classes: [AtomicU64; CLASSES],
    max: AtomicU64,
}

impl Default for Lateness {
    fn default() -> Self {
        Self { classes: [const { AtomicU64::new(0) }; CLASSES], max: AtomicU64::new(0) }
    }
}

/// The class of a time: exact below four nanoseconds, then four per doubling.
fn class(nanos: u64) -> usize {
    if nanos < u64::from(STEPS) {
        return nanos as usize;
    }
    let exponent = nanos.ilog2();
    let step = (nanos >> (exponent - 2)) as usize % STEPS as usize;
    ((exponent - 1) as usize * STEPS as usize + step).min(CLASSES - 1)
}

/// The first time above a class.
fn end(class: usize) -> u64 {
    let (class, steps) = (class as u64, u64::from(STEPS));
    if class < steps {
        return class + 1;
    }
    (class % steps + steps + 1) << (class / steps - 1)
}

impl Lateness {
    /// Records a frame that left `late` after its departure time.
    pub fn record(&self, late: Nanos) {
        self.classes[class(late.0)].fetch_add(1, Relaxed);
        if late.0 > self.max.load(Relaxed) {
            self.max.fetch_max(late.0, Relaxed);
        }
    }
}

/// Sum of several histograms of lateness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departures {
    classes: [u64; CLASSES],
    max: Nanos,
}

impl Default for Departures {
    fn default() -> Self {
        Self { classes: [0; CLASSES], max: Nanos::ZERO }
    }
}

impl Departures {
    /// Adds the frames that `lateness` has recorded.
    pub fn add(&mut self, lateness: &Lateness) {
        for (sum, class) in self.classes.iter_mut().zip(&lateness.classes) {
            *sum += class.load(Relaxed);
        }
        self.max = self.max.max(Nanos(lateness.max.load(Relaxed)));
    }

    /// Returns how many frames left when a timer said so.
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// Returns the lateness that so many percent of the frames did not exceed; zero if there were
    /// no frames. It is at most a quarter too large.
    pub fn percentile(&self, percent: f64) -> Nanos {
        let count = self.count();
        let rank = ((count as f64 * percent / 100.0).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        for (class, &n) in self.classes.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return Nanos(end(class) - 1).min(self.max);
            }
        }
        Nanos::ZERO
    }

    /// Returns the lateness of the latest frame.
    pub fn max(&self) -> Nanos {
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_each_other_without_a_gap() {
        for class_of in 0..CLASSES - 1 {
            assert_eq!(class(end(class_of) - 1), class_of);
            assert_eq!(class(end(class_of)), class_of + 1);
        }
        assert_eq!(class(u64::MAX), CLASSES - 1);
    }

    #[test]
    fn percentiles_are_right_within_a_quarter() {
        let lateness = Lateness::default();
        for late in 1..=10_000 {
            lateness.record(Nanos(late * 10));
        }
        let mut departures = Departures::default();
        assert_eq!(departures.percentile(50.0), Nanos::ZERO);
        departures.add(&lateness);
        assert_eq!((departures.count(), departures.max()), (10_000, Nanos(100_000)));
        for (percent, want) in [(50.0, 50_000), (99.0, 99_000), (0.0, 10)] {
            let Nanos(got) = departures.percentile(percent);
            assert!(got >= want && got <= want * 5 / 4, "{percent}: {got}");
        }
        assert_eq!(departures.percentile(100.0), Nanos(100_000));
    }
}
