//! How late packets left.

use neap::time::Nanos;
use neap_lab::histogram::Times;
use serde::Serialize;

/// Upper ends of the classes in which packets are counted, in microseconds.
const CLASSES: [u64; 9] = [20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000];

/// Times from when packets were due to when the device had them.
#[derive(Clone, Debug)]
pub(super) struct Lateness {
    times: Times,
    bound: Nanos,
    classes: [u64; CLASSES.len() + 1],
    /// Packets that were later than the bound.
    late: u64,
}

/// What is told of them, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LatenessReport {
    pub(super) packets: u64,
    pub(super) late: u64,
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) max_us: f64,
    /// Packets by the class of their lateness: not more than so many microseconds; the last class
    /// has no bound.
    pub(super) histogram: Vec<(Option<u64>, u64)>,
}

impl Lateness {
    pub(super) fn new(bound: Nanos) -> Self {
        Self { times: Times::default(), bound, classes: [0; CLASSES.len() + 1], late: 0 }
    }

    pub(super) fn record(&mut self, late: Nanos) {
        self.times.record(late);
        self.late += u64::from(late > self.bound);
        let class = CLASSES.iter().position(|&end| late <= Nanos::from_micros(end));
        self.classes[class.unwrap_or(CLASSES.len())] += 1;
    }

    pub(super) fn report(&self) -> LatenessReport {
        let micros = |time: Nanos| time.0 as f64 / 1e3;
        let percentile = |percent| micros(self.times.percentile(percent));
        let ends = CLASSES.iter().copied().map(Some).chain([None]);
        LatenessReport {
            packets: self.times.count(),
            late: self.late,
            p50_us: percentile(50.0),
            p90_us: percentile(90.0),
            p99_us: percentile(99.0),
            p999_us: percentile(99.9),
            max_us: micros(self.times.max()),
            histogram: ends.zip(self.classes).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_by_class_and_beyond_the_bound() {
        let mut lateness = Lateness::new(Nanos::from_micros(100));
        for micros in [1, 20, 21, 100, 101, 50_000] {
            lateness.record(Nanos::from_micros(micros));
        }
        let report = lateness.report();
        assert_eq!((report.packets, report.late), (6, 2));
        let counts: Vec<u64> = report.histogram.iter().map(|&(_, count)| count).collect();
        assert_eq!(counts, [2, 1, 1, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(report.histogram[9].0, None);
    }
}
