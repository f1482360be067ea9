//! The cycle of bandwidth probes: down, cruise, refill, up.

use super::super::path_model::bandwidth;
use super::super::{AckSample, Window};
use super::loss::is_too_high;
use super::{Bbr3, Mode, UNLIMITED};
use crate::time::{Instant, Nanos};

/// Rounds between probes at the most, as many as Reno would take for a small product.
const MAX_ROUNDS: u64 = 63;
/// Time between probes: from 2 s to 3 s.
const PROBE_WAIT: Nanos = Nanos::from_secs(2);
const PROBE_WAIT_SPREAD: Nanos = Nanos::from_secs(1);

/// What ACKs are about (`ack_phase`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AckPhase {
    /// Not about a probe.
    #[default]
    Init,
    /// About what was sent before the probe, to fill the pipe.
    Refilling,
    /// The probe was sent, and its ACKs are still to come.
    Starting,
    /// About the probe.
    Feedback,
    /// The probe is over, ACKs of it still come.
    Stopping,
}

/// The present probe and the wait for the next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probing {
    pub(super) phase: AckPhase,
    /// `is_bw_probe_sample`: ACKs are about a probe that has not been answered yet.
    pub(super) is_sample: bool,
    /// `prev_probe_too_high`.
    pub(super) was_too_high: bool,
    /// `prev_probe_precautionary`.
    was_precautionary: bool,
    /// `rounds_since_probe_up`.
    rounds: u64,
    wait: Nanos,
    cycle_at: Instant,
    /// `bw_probe_up_rounds`, `bw_probe_up_acked`, `probe_up_acked_per_inc`.
    up_rounds: u32,
    up_acked: u32,
    acked_per_increase: u32,
}

impl Probing {
    pub(super) fn count_round(&mut self) {
        self.rounds += 1;
    }
}

impl Bbr3 {
    pub(super) fn start_down(&mut self, now: Instant) {
        self.loss_round.reset();
        self.probing.acked_per_increase = UNLIMITED;
        self.probing.rounds = self.chance.below(2);
        self.probing.wait = PROBE_WAIT + Nanos(self.chance.below(PROBE_WAIT_SPREAD.0));
        self.probing.cycle_at = now;
        self.probing.phase = AckPhase::Stopping;
        self.start_round();
        self.state = Mode::Down;
    }

    pub(super) fn start_cruise(&mut self) {
        self.state = Mode::Cruise;
    }

    pub(super) fn start_refill(&mut self) {
        self.reset_shortterm();
        self.probing.up_rounds = 0;
        self.probing.up_acked = 0;
        self.probing.was_precautionary = false;
        self.probing.phase = AckPhase::Refilling;
        self.start_round();
        self.state = Mode::Refill;
    }

    fn start_up(&mut self, sample: &AckSample, window: &Window) {
        self.probing.phase = AckPhase::Starting;
        self.start_round();
        self.full_pipe.reset(bandwidth(sample));
        self.state = Mode::Up;
        self.raise_slope(window);
    }

    /// `UpdateProbeBWCyclePhase`.
    pub(super) fn update_cycle(&mut self, sample: &AckSample, window: &Window) {
        if !self.full_pipe.is_reached || self.adapt_long_term(sample, window) {
            return;
        }
        let state = self.state;
        match state {
            Mode::Down | Mode::Cruise if self.is_time_to_probe(sample.now, window) => {
                self.start_refill();
            }
            Mode::Down if self.is_time_to_cruise(sample) => self.start_cruise(),
            Mode::Refill if self.rounds.is_start => {
                self.probing.is_sample = true;
                self.start_up(sample, window);
            }
            Mode::Up if self.is_time_to_go_down(sample, window) => {
                self.probing.was_too_high = false;
                self.start_down(sample.now);
            }
            _ => {}
        }
    }

    /// `IsTimeToProbeBW`.
    fn is_time_to_probe(&self, now: Instant, window: &Window) -> bool {
        let rounds = u64::from(self.target_inflight(window)).min(MAX_ROUNDS);
        now > self.probing.cycle_at + self.probing.wait || self.probing.rounds >= rounds
    }

    /// `IsTimeToCruise`: the queue is gone, and there is headroom.
    fn is_time_to_cruise(&self, sample: &AckSample) -> bool {
        let in_network = self.in_network(sample);
        in_network <= self.volume.with_headroom()
            && in_network <= self.inflight(self.bandwidth.max())
    }

    /// `IsTimeToGoDown`.
    fn is_time_to_go_down(&mut self, sample: &AckSample, window: &Window) -> bool {
        let longterm = self.volume.longterm;
        if self.probing.was_too_high && self.in_network(sample) >= longterm {
            self.probing.was_precautionary = true;
            return true;
        }
        if sample.is_cwnd_limited && window.cwnd >= longterm {
            // The volume limits the bandwidth, so a plateau says nothing.
            self.full_pipe.reset(bandwidth(sample));
            return false;
        }
        self.full_pipe.is_now
    }

    /// `RaiseInflightLongtermSlope`: twice as fast as in the round before.
    fn raise_slope(&mut self, window: &Window) {
        let growth = 1u32 << self.probing.up_rounds;
        self.probing.up_rounds = (self.probing.up_rounds + 1).min(30);
        self.probing.acked_per_increase = (window.cwnd / growth).max(1);
    }

    /// `ProbeInflightLongtermUpward`.
    fn raise_longterm(&mut self, sample: &AckSample, window: &Window) {
        if !sample.is_cwnd_limited || window.cwnd < self.volume.longterm {
            return;
        }
        let probing = &mut self.probing;
        probing.up_acked = probing.up_acked.saturating_add(sample.acked_sacked);
        let more = probing.up_acked / probing.acked_per_increase.max(1);
        probing.up_acked -= more * probing.acked_per_increase;
        self.volume.longterm = self.volume.longterm.saturating_add(more).min(UNLIMITED - 1);
        if self.rounds.is_start {
            self.raise_slope(window);
        }
    }

    /// `AdaptLongTermModel`. Returns whether the state was changed.
    fn adapt_long_term(&mut self, sample: &AckSample, window: &Window) -> bool {
        let is_round_start = self.rounds.is_start;
        match self.probing.phase {
            AckPhase::Starting if is_round_start => self.probing.phase = AckPhase::Feedback,
            AckPhase::Stopping if is_round_start => {
                self.probing.is_sample = false;
                self.probing.phase = AckPhase::Init;
                if self.state.is_probe_bw() && !sample.is_app_limited {
                    self.bandwidth.advance();
                }
                let is_safe = self.probing.was_precautionary && !self.probing.was_too_high;
                if self.state.is_probe_bw() && is_safe {
                    self.start_refill();
                    return true;
                }
            }
            _ => {}
        }
        let is_high =
            is_too_high(sample.lost, sample.tx_in_flight) || (sample.lost > 0 && !sample.has_sack);
        if is_high || self.volume.longterm == UNLIMITED {
            return false;
        }
        self.volume.longterm = self.volume.longterm.max(sample.tx_in_flight);
        if self.state == Mode::Up {
            self.raise_longterm(sample, window);
        }
        false
    }
}
