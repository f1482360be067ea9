//! Distributions of times.

use hdrhistogram::Histogram;
use neap_tcp::time::Nanos;

/// Times between 1 ns and an hour, to three digits. About 270 KiB.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

/// An hour in nanoseconds: what lies above counts as this.
const LONGEST: u64 = 3_600_000_000_000;

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("sound bounds"))
    }
}

impl Times {
    /// Counts one time.
    pub fn record(&mut self, time: Nanos) {
        self.0.saturating_record(time.0);
    }

    /// The time that `percent` of all do not exceed; zero when there are none.
    pub fn percentile(&self, percent: f64) -> Nanos {
        Nanos(self.0.value_at_quantile(percent / 100.0))
    }

    /// The longest time.
    pub fn max(&self) -> Nanos {
        Nanos(self.0.max())
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
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
