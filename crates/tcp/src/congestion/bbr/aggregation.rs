//! Room in the window for ACKs that come late and all at once.

use super::super::AckSample;
use super::super::path_model::Excess;
use crate::time::{Instant, Nanos, Rate};

/// Round trips of each of the two windows.
const WINDOW: u32 = 5;
/// Most that is allowed for, as time at the bandwidth.
const MAX_TIME: Nanos = Nanos::from_millis(100);

/// The largest excess of the last five to ten round trips.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Aggregation {
    excess: Excess,
    most: [u32; 2],
    index: usize,
    rounds: u32,
}

impl Aggregation {
    /// Nothing was in flight.
    pub(super) fn restart(&mut self, now: Instant) {
        self.excess.restart(now);
    }

    /// Takes an ACK with a valid sample.
    pub(super) fn update(&mut self, sample: &AckSample, bw: Rate, cwnd: u32, is_round_start: bool) {
        if is_round_start {
            self.rounds += 1;
            if self.rounds >= WINDOW {
                self.rounds = 0;
                self.index ^= 1;
                self.most[self.index] = 0;
            }
        }
        let extra = self.excess.update(sample, bw, cwnd);
        self.most[self.index] = self.most[self.index].max(extra);
    }

    /// Segments to add to the window.
    pub(super) fn extra(&self, bw: Rate, mss: u32) -> u32 {
        let limit = bw.bytes_in(MAX_TIME) / u64::from(mss.max(1));
        self.most[0].max(self.most[1]).min(u32::try_from(limit).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_excess_is_remembered_for_five_to_ten_rounds() {
        let bw = Rate(1_000_000);
        let ack = |ms, acked| {
            let now = Instant::ZERO + Nanos::from_millis(ms);
            AckSample { now, acked_sacked: acked, mss: 1000, ..AckSample::default() }
        };
        let mut aggregation = Aggregation::default();
        aggregation.update(&ack(110, 60), bw, 1000, false);
        assert_eq!(aggregation.extra(bw, 1000), 60);
        assert_eq!(aggregation.extra(Rate(100_000), 1000), 10, "100 ms of the bandwidth");
        let rounds = (1..).find(|round| {
            aggregation.update(&ack(round * 1000, 10), bw, 1000, true);
            aggregation.extra(bw, 1000) == 10
        });
        assert!((5..=10).contains(&rounds.expect("forgotten")), "{rounds:?}");
    }
}
