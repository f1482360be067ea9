//! Start-up, its end by a plateau of the bandwidth, by loss or by marks, and drain.

use super::super::path_model::{UNIT, bandwidth};
use super::super::{AckSample, CaState, Window};
use super::loss::is_too_high;
use super::{Bbr3, Mode};
use crate::time::Rate;

/// The pipe is full after so many rounds in which bandwidth grew by less than a quarter.
const FULL_ROUNDS: u32 = 3;
/// Frames with losses in one round before start-up ends by loss.
const FULL_LOSSES: u32 = 6;
/// Rounds with marks in a row before it ends by them.
const FULL_MARKED_ROUNDS: u32 = 2;
/// Drain gives up after so many rounds.
const DRAIN_ROUNDS: u64 = 3;

/// Looks for the end of growth, in start-up and in each probe.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FullPipe {
    bw: Rate,
    rounds: u32,
    /// `full_bw_now`: since it was last reset.
    pub(super) is_now: bool,
    /// `full_bw_reached`: at any time of this connection.
    pub(super) is_reached: bool,
    /// Rounds of start-up with marks in a row.
    marked_rounds: u32,
}

impl FullPipe {
    /// `ResetFullBW`, from a baseline.
    pub(super) fn reset(&mut self, bw: Rate) {
        (self.bw, self.rounds, self.is_now) = (bw, 0, false);
    }

    /// `CheckFullBWReached`.
    pub(super) fn check(&mut self, is_round_start: bool, sample: &AckSample) {
        if self.is_now || !is_round_start || sample.is_app_limited {
            return;
        }
        let bw = bandwidth(sample);
        if u128::from(bw.0) * 4 >= u128::from(self.bw.0) * 5 {
            self.reset(bw);
            return;
        }
        self.rounds += 1;
        self.is_now = self.rounds >= FULL_ROUNDS;
        self.is_reached |= self.is_now;
    }
}

impl Bbr3 {
    pub(super) fn enter_startup(&mut self) {
        self.state = Mode::Startup;
    }

    /// `CheckStartupDone`.
    pub(super) fn check_startup_done(&mut self, sample: &AckSample, window: &mut Window) {
        if self.state != Mode::Startup {
            return;
        }
        if !self.full_pipe.is_reached && (self.is_lossy(sample) || self.is_marked()) {
            self.undo.state = Some(Mode::Startup);
            self.full_pipe.is_reached = true;
            let product = self.bdp(self.bw(), UNIT);
            self.volume.longterm = product.max(self.loss_round.delivered_latest());
        }
        if self.full_pipe.is_reached {
            self.state = Mode::Drain;
            self.drain_round = self.rounds.count;
            window.ssthresh = self.inflight(self.bandwidth.max()).max(2);
        }
    }

    /// `CheckStartupHighLoss`: a whole round in recovery, with losses in several places and above
    /// the threshold. Losses of frames stand for discontiguous ranges.
    fn is_lossy(&self, sample: &AckSample) -> bool {
        if sample.state != CaState::Recovery {
            return false;
        }
        if !sample.has_sack {
            return sample.losses > 0;
        }
        self.loss_round.is_start
            && self.loss_round.losses_of_last() >= FULL_LOSSES
            && is_too_high(sample.lost, sample.tx_in_flight)
    }

    fn is_marked(&mut self) -> bool {
        let full = &mut self.full_pipe;
        if std::mem::take(&mut self.has_marks) {
            full.marked_rounds += 1;
            self.loss_round.is_marked = true;
        } else if self.rounds.is_start && !std::mem::take(&mut self.loss_round.is_marked) {
            full.marked_rounds = 0;
        }
        full.marked_rounds >= FULL_MARKED_ROUNDS
    }

    /// `CheckDrainDone`.
    pub(super) fn check_drain_done(&mut self, sample: &AckSample) {
        let is_done = self.in_network(sample) <= self.inflight(self.bw())
            || self.rounds.count > self.drain_round + DRAIN_ROUNDS;
        if self.state == Mode::Drain && is_done {
            self.start_down(sample.now);
        }
    }
}
