//! Distributions of times.

use hdrhistogram::Histogram;
use neap_tcp::time::Nanos;

/// Distribution of times between 1 ns and an hour, to three digits.
///
/// It takes no memory while it is empty, then 16 KiB and more for each doubling of the longest
/// time, at most about 270 KiB.
#[derive(Clone, Debug, Default)]
pub struct Times(Option<Box<Histogram<u64>>>);

/// An hour in nanoseconds: what lies above counts as this.
const LONGEST: u64 = 3_600_000_000_000;

impl Times {
    /// Counts one time.
    pub fn record(&mut self, time: Nanos) {
        let grows = || Box::new(Histogram::new(3).expect("three digits are few enough"));
        let histogram = self.0.get_or_insert_with(grows);
        histogram.record(time.0.min(LONGEST)).expect("it grows");
    }

    /// Returns the time that `percent` of all times do not exceed; zero if there are none.
    pub fn percentile(&self, percent: f64) -> Nanos {
        Nanos(self.0.as_ref().map_or(0, |times| times.value_at_quantile(percent / 100.0)))
    }

    /// Returns the longest time.
    pub fn max(&self) -> Nanos {
        Nanos(self.0.as_ref().map_or(0, |times| times.max()))
    }

    /// Returns how many times were counted.
    pub fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, |times| times.len())
    }

    /// Removes all times.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_ramp() {
        let mut times = Times::default();
        (1..=1000).for_each(|i| times.record(Nanos::from_micros(i)));
        let near = |a: Nanos, micros: u64| a.as_micros().abs_diff(micros) <= micros / 500;
        assert!(near(times.percentile(50.0), 500) && near(times.percentile(99.0), 990));
        assert_eq!(times.count(), 1000);
        times.clear();
        assert_eq!(times.percentile(50.0), Nanos::ZERO);
    }
}
