//! What loss and marks change: the long-term volume while probing, the short-term model otherwise;
//! and the way back when they were spurious.

use super::super::path_model::bandwidth;
use super::super::{AckSample, LostSegments, Window};
use super::{Bbr3, MIN_WINDOW, Mode, UNLIMITED};
use crate::time::{Instant, Rate};

/// Loss per round trip that probing takes: 2 %.
const LOSS_PERCENT: u64 = 2;
/// Least that is kept of a bound for a round with losses: 0.7.
const BETA_PERCENT: u64 = 70;
/// What is kept of the volume for a round with marks: 0.85 (RFC 8511).
const MARK_PERCENT: u64 = 85;

/// `IsInflightTooHigh` without its case for peers without SACK.
pub(super) fn is_too_high(lost: u32, tx_in_flight: u32) -> bool {
    u64::from(lost) * 100 > u64::from(tx_in_flight) * LOSS_PERCENT
}

fn percent(value: u32, percent: u64) -> u32 {
    (u64::from(value) * percent / 100) as u32
}

/// `InflightAtLoss`: the volume at which loss crossed the threshold, somewhere in this frame.
fn inflight_at_loss(lost: &LostSegments) -> u32 {
    let before = u64::from(lost.tx_in_flight.saturating_sub(lost.segments));
    let lost_before = u64::from(lost.lost.saturating_sub(lost.segments));
    // In hundredths of segments.
    let allowed = (before * LOSS_PERCENT).saturating_sub(lost_before * 100);
    let prefix = allowed / (100 - LOSS_PERCENT);
    u32::try_from(before + prefix).unwrap_or(UNLIMITED)
}

/// One round trip, and what it delivered and lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossRound {
    /// The round ends when something sent after so many deliveries is delivered.
    end: u64,
    pub(super) is_start: bool,
    has_loss: bool,
    /// A window of this round was marked.
    pub(super) is_marked: bool,
    /// Frames with losses in this round and in the one before.
    losses: u32,
    losses_before: u32,
    /// `bw_latest`, `inflight_latest`.
    bw: Rate,
    delivered: u32,
}

impl LossRound {
    /// `UpdateLatestDeliverySignals`.
    pub(super) fn update_latest(&mut self, sample: &AckSample) {
        self.bw = self.bw.max(bandwidth(sample));
        self.delivered = self.delivered.max(sample.delivered);
        self.is_start = sample.interval.0 > 0 && sample.prior_delivered >= self.end;
        if self.is_start {
            self.end = sample.total_delivered;
            self.losses_before = std::mem::take(&mut self.losses);
        }
    }

    /// `AdvanceLatestDeliverySignals`.
    pub(super) fn advance_latest(&mut self, sample: &AckSample) {
        if self.is_start {
            (self.bw, self.delivered) = (bandwidth(sample), sample.delivered);
        }
    }

    /// `ResetCongestionSignals`.
    pub(super) fn reset(&mut self) {
        (self.has_loss, self.is_marked) = (false, false);
        (self.bw, self.delivered) = (Rate(0), 0);
    }

    pub(super) fn delivered_latest(&self) -> u32 {
        self.delivered
    }

    /// Frames with losses in the round that has just ended.
    pub(super) fn losses_of_last(&self) -> u32 {
        self.losses_before
    }
}

/// What is restored when an episode was spurious.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Undo {
    /// The state that loss ended.
    pub(super) state: Option<Mode>,
    saved_at: Option<Instant>,
    bw_shortterm: Rate,
    shortterm: u32,
    longterm: u32,
}

impl Bbr3 {
    /// `SaveStateUponLoss`, once for all losses of one ACK.
    pub(super) fn save_state(&mut self, now: Instant, cwnd: u32) {
        if self.undo.saved_at == Some(now) {
            return;
        }
        self.save_cwnd(cwnd);
        self.undo = Undo {
            state: None,
            saved_at: Some(now),
            bw_shortterm: self.bandwidth.shortterm,
            shortterm: self.volume.shortterm,
            longterm: self.volume.longterm,
        };
    }

    /// `HandleLostPacket`.
    pub(super) fn handle_lost(&mut self, now: Instant, lost: &LostSegments, window: &Window) {
        if !self.loss_round.has_loss {
            self.loss_round.end = self.delivered;
            self.save_state(now, window.cwnd);
        }
        self.loss_round.has_loss = true;
        self.loss_round.losses = self.loss_round.losses.saturating_add(1);
        if self.probing.is_sample && is_too_high(lost.lost, lost.tx_in_flight) {
            self.handle_too_high(now, inflight_at_loss(lost), lost.is_app_limited, window);
        }
    }

    /// `HandleInflightTooHigh`, once per probe: `volume` was too much.
    pub(super) fn handle_too_high(
        &mut self,
        now: Instant,
        volume: u32,
        is_app_limited: bool,
        window: &Window,
    ) {
        self.probing.was_too_high = true;
        self.probing.is_sample = false;
        if !is_app_limited {
            let least = percent(self.target_inflight(window), BETA_PERCENT);
            self.volume.longterm = volume.max(least);
        }
        if self.state == Mode::Up {
            self.undo.state = Some(Mode::Up);
            self.start_down(now);
        }
    }

    /// `UpdateCongestionSignals` with `AdaptLowerBoundsFromCongestion`: once per round.
    pub(super) fn adapt_to_congestion(&mut self, sample: &AckSample, window: &Window) {
        if self.state != Mode::Startup && std::mem::take(&mut self.has_marks) {
            if self.probing.is_sample {
                self.save_state(sample.now, window.cwnd);
                let volume = sample.tx_in_flight;
                self.handle_too_high(sample.now, volume, sample.is_app_limited, window);
            } else {
                self.loss_round.is_marked = true;
            }
        }
        if !self.loss_round.is_start {
            return;
        }
        if !self.state.is_accelerating() {
            self.lower_bounds(window);
            self.loss_round.is_marked = false;
        }
        self.loss_round.has_loss = false;
    }

    /// `InitLowerBounds` and `LossLowerBounds`: towards what was delivered, by at most 0.3; for
    /// marks below it, since a mark takes away no delivery.
    fn lower_bounds(&mut self, window: &Window) {
        let LossRound { has_loss, is_marked, bw, delivered, .. } = self.loss_round;
        if !has_loss && !is_marked {
            return;
        }
        let volume = self.volume.shortterm.min(window.cwnd);
        if is_marked {
            self.volume.shortterm = volume.min(percent(delivered, MARK_PERCENT)).max(MIN_WINDOW);
        }
        if has_loss {
            let rate = self.bandwidth.shortterm.min(self.bandwidth.max());
            self.bandwidth.shortterm = bw.max(Rate(rate.0 / 100 * BETA_PERCENT));
            let least = percent(volume, BETA_PERCENT);
            self.volume.shortterm = self.volume.shortterm.min(delivered.max(least));
        }
    }

    /// `ResetShortTermModel`.
    pub(super) fn reset_shortterm(&mut self) {
        self.bandwidth.shortterm = Rate::UNLIMITED;
        self.volume.shortterm = UNLIMITED;
    }

    /// `HandleSpuriousLossDetection`.
    pub(super) fn handle_spurious_loss(&mut self, window: &mut Window) {
        self.restore_cwnd(window);
        self.loss_round.has_loss = false;
        self.full_pipe.reset(Rate(0));
        let undo = self.undo;
        self.bandwidth.shortterm = self.bandwidth.shortterm.max(undo.bw_shortterm);
        self.volume.shortterm = self.volume.shortterm.max(undo.shortterm);
        self.volume.longterm = self.volume.longterm.max(undo.longterm);
        self.undo.state = None;
        match undo.state {
            Some(Mode::Startup) if self.state != Mode::Startup => {
                self.full_pipe.is_reached = false;
                if self.state != Mode::ProbeRtt {
                    self.enter_startup();
                }
            }
            Some(Mode::Up) if !matches!(self.state, Mode::Up | Mode::ProbeRtt) => {
                self.start_refill();
            }
            _ => {}
        }
    }
}
