//! Token-bucket policers: paths that drop what exceeds a rate instead of queueing it.
//!
//! Two intervals in a row with much loss and the same throughput speak for one; then the average of
//! the two is the bandwidth for a while (Linux's `bbr_lt_bw_sampling`; Flach et al., "An
//! Internet-Wide Analysis of Traffic Policing", SIGCOMM 2016).

use super::super::path_model::UNIT;
use crate::time::{Instant, Nanos, Rate};

/// Least round trips of an interval; it is given up after four times as many.
const MIN_ROUNDS: u32 = 4;
/// Least loss of an interval, in 1/256 of what was delivered.
const LOSS: u64 = 50;
/// Two intervals agree within an eighth, or within so much.
const AGREEMENT: u64 = 8;
const CLOSE: u64 = 4000 / 8;
/// Round trips for which a policed rate is believed.
const TRUST_ROUNDS: u32 = 48;

/// What a policer looks at: totals of the connection at the last delivery.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) at: Instant,
    pub(super) delivered: u64,
    pub(super) lost: u32,
    pub(super) mss: u32,
}

/// The watch for policers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Policer {
    is_sampling: bool,
    is_believed: bool,
    /// Rate of the last interval, or the average of two when believed.
    bw: Option<Rate>,
    rounds: u32,
    start: Progress,
}

impl Policer {
    /// The policed rate, while one is believed.
    pub(super) fn rate(&self) -> Option<Rate> {
        self.bw.filter(|_| self.is_believed)
    }

    /// Forgets everything.
    pub(super) fn reset(&mut self, now: Progress) {
        *self = Self { start: now, ..Self::default() };
    }

    fn begin_interval(&mut self, now: Progress) {
        (self.start, self.rounds) = (now, 0);
    }

    /// A round trip passed while the rate was believed. Returns whether to probe anew.
    pub(super) fn is_trust_over(&mut self, now: Progress) -> bool {
        self.rounds += 1;
        let is_over = self.rounds >= TRUST_ROUNDS;
        if is_over {
            self.reset(now);
        }
        is_over
    }

    /// Takes an ACK while no rate is believed. Returns whether one is from now on.
    pub(super) fn sample(
        &mut self,
        now: Progress,
        (is_round_start, has_losses, is_app_limited): (bool, bool, bool),
    ) -> bool {
        if !self.is_sampling {
            // The first loss says that the bucket is empty; before, its tokens add to the rate.
            if !has_losses {
                return false;
            }
            self.begin_interval(now);
            self.is_sampling = true;
        }
        if is_app_limited {
            self.reset(now);
            return false;
        }
        self.rounds += u32::from(is_round_start);
        if self.rounds < MIN_ROUNDS {
            return false;
        }
        if self.rounds > 4 * MIN_ROUNDS {
            self.reset(now);
            return false;
        }
        // An interval ends with a loss, when the bucket is empty again.
        let delivered = now.delivered.saturating_sub(self.start.delivered);
        let lost = u64::from(now.lost.wrapping_sub(self.start.lost));
        let is_lossy = delivered > 0 && lost * u64::from(UNIT) >= delivered.saturating_mul(LOSS);
        let elapsed = now.at.since(self.start.at);
        if !has_losses || !is_lossy || elapsed < Nanos::from_millis(1) {
            return false;
        }
        let bw = Rate::from_bytes_in(delivered.saturating_mul(u64::from(now.mss)), elapsed);
        self.end_interval(now, bw)
    }

    fn end_interval(&mut self, now: Progress, bw: Rate) -> bool {
        if let Some(last) = self.bw {
            let apart = bw.0.abs_diff(last.0);
            if apart <= last.0 / AGREEMENT || apart <= CLOSE {
                self.bw = Some(Rate(bw.0.midpoint(last.0)));
                self.is_believed = true;
                self.rounds = 0;
                return true;
            }
        }
        self.bw = Some(bw);
        self.begin_interval(now);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round trips of 10 ms with so many segments delivered and lost in each.
    fn rounds(policer: &mut Policer, now: &mut Progress, n: u32, delivered: u64, lost: u32) -> u32 {
        (1..=n)
            .find(|_| {
                now.at += Nanos::from_millis(10);
                now.delivered += delivered;
                now.lost += lost;
                policer.sample(*now, (true, lost > 0, false))
            })
            .unwrap_or(0)
    }

    fn fresh() -> (Policer, Progress) {
        (Policer::default(), Progress { mss: 1000, ..Progress::default() })
    }

    #[test]
    fn two_equal_lossy_intervals_are_a_policer() {
        let (mut policer, mut now) = fresh();
        assert_eq!(rounds(&mut policer, &mut now, 20, 100, 30), 8, "twice four round trips");
        assert_eq!(policer.rate(), Some(Rate(10_000_000)));
        assert!((1..TRUST_ROUNDS).all(|_| !policer.is_trust_over(now)));
        assert!(policer.is_trust_over(now));
        assert_eq!(policer.rate(), None);
    }

    #[test]
    fn little_loss_and_unequal_intervals_are_none() {
        let (mut policer, mut now) = fresh();
        assert_eq!(rounds(&mut policer, &mut now, 100, 100, 15), 0);
        let (mut policer, mut now) = fresh();
        assert_eq!(rounds(&mut policer, &mut now, 4, 100, 30), 0);
        assert_eq!(rounds(&mut policer, &mut now, 4, 130, 39), 0);
        assert_eq!(rounds(&mut policer, &mut now, 4, 135, 40), 4);
        assert_eq!(policer.rate(), Some(Rate((13_000_000 + 13_500_000) / 2)));
    }

    #[test]
    fn an_application_that_pauses_starts_it_over() {
        let (mut policer, mut now) = fresh();
        rounds(&mut policer, &mut now, 7, 100, 30);
        policer.sample(now, (true, false, true));
        assert_eq!(rounds(&mut policer, &mut now, 20, 100, 30), 8);
    }
}
