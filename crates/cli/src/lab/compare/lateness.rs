//! How late this machine wakes a thread: what a host of the lab must be told to be like it.

use serde::{Serialize, Serializer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Shares of all wake-ups, in percent, at which the lab is told how late they are.
/// The tail has many: in between, the lab draws a straight line.
const SHARES: [f64; 9] = [50.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 99.95, 100.0];

/// Duration of one sleep. A busy machine holds up a process so many times a second, however often
/// it wakes, so the share of late wake-ups is that of a process that wakes as often: one to a few
/// thousand times a second, as the two that are compared do.
const SLEEP: Duration = Duration::from_micros(500);

/// By how much sleeps were too long.
#[derive(Clone, Debug, Default)]
pub(super) struct Lateness(Vec<Duration>);

impl Lateness {
    /// Sleeps until it is told to stop, and notes by how much too long.
    pub(super) fn watch(stop: &AtomicBool) -> Self {
        let mut late = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            thread::sleep(SLEEP);
            late.push(begin.elapsed().saturating_sub(SLEEP));
        }
        Self(late)
    }

    /// The lateness that so many percent do not exceed.
    pub(super) fn quantile(&self, percent: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        let index = (sorted.len() as f64 * percent / 100.0) as usize;
        sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    /// As a scenario file has it.
    pub(super) fn to_toml(&self) -> String {
        let pairs = SHARES.map(|share| {
            let micros = self.quantile(share).as_micros();
            format!("[\"{share}%\", \"{micros}us\"]")
        });
        format!("[{}]", pairs.join(", "))
    }
}

impl Serialize for Lateness {
    /// Shares in percent, and microseconds.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let pairs = SHARES.map(|share| (share, self.quantile(share).as_micros() as u64));
        serializer.collect_seq(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_seen() {
        let late = Lateness((0..1000).rev().map(Duration::from_micros).collect());
        assert_eq!(late.quantile(50.0), Duration::from_micros(500));
        assert_eq!(late.quantile(100.0), Duration::from_micros(999));
        assert!(late.to_toml().starts_with(r#"[["50%", "500us"], ["90%", "900us"]"#));
        assert_eq!(Lateness::default().quantile(50.0), Duration::ZERO);
    }
}
