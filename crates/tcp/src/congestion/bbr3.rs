//! BBR version 3 (draft-ietf-ccwg-bbr).
//!
//! Adds to version 1 what loss says: beside the bandwidth and the round-trip time, the path has a
//! volume that it holds with little loss (long term) and what is safe to send right now (short
//! term). The flow probes rarely, at the pace of Reno or every two to three seconds, cruises below
//! the limit it has found, and gives way while others cause loss.
//!
//! The draft leaves the answer to ECN open but for its existence. Here a window with an ECN echo
//! ends a probe like too much loss; outside of probes it cuts the short-term volume to 0.85 of what
//! was delivered in the round (RFC 8511), since marks take away no deliveries that the model could
//! learn from; and two rounds in a row with echoes end start-up.
//!
//! Cost: O(1) per ACK and per frame lost, without allocation; 536 bytes per connection that uses
//! it.

mod cycle;
mod loss;
mod model;
mod probe_rtt;
mod startup;
#[cfg(test)]
mod tests;

use super::path_model::{Chance, Excess, MIN_WINDOW, UNIT, bdp, frame, in_network, initial_rate};
use super::path_model::{min_frame, paced};
use super::{AckSample, CaState, CongestionControl, CongestionEvent};
use super::{INITIAL_WINDOW, LostSegments, PathModel, Start, Window};
use crate::congestion::FrameRule;
use crate::time::{Instant, Nanos, Rate};
use cycle::Probing;
use loss::{LossRound, Undo};
use model::{Bandwidth, Volume};
use probe_rtt::MinRtt;
use startup::FullPipe;

/// Pacing gain of start-up, 4 ln 2: doubles the rate every round trip.
const STARTUP_PACING_GAIN: u32 = 710;
/// Pacing gain of drain.
const DRAIN_PACING_GAIN: u32 = UNIT / 2;
/// Pacing gain while a probe's queue is emptied, 0.9.
const DOWN_PACING_GAIN: u32 = 231;
/// Pacing gain of a probe.
const UP_PACING_GAIN: u32 = UNIT * 5 / 4;
/// Window over product.
const CWND_GAIN: u32 = 2 * UNIT;
/// Window over product in a probe.
const UP_CWND_GAIN: u32 = UNIT * 9 / 4;
/// Window over product while the round-trip time is measured.
const PROBE_RTT_CWND_GAIN: u32 = UNIT / 2;
/// No limit on a volume.
const UNLIMITED: u32 = u32::MAX;

/// What the flow is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// Doubles the rate each round trip.
    #[default]
    Startup,
    /// Empties the queue that this made.
    Drain,
    /// Slower than the bandwidth, until what a probe queued is gone.
    Down,
    /// At the bandwidth, with headroom for others.
    Cruise,
    /// At the bandwidth without headroom, one round trip long.
    Refill,
    /// Faster than the bandwidth.
    Up,
    /// Holds a small window to see the round-trip time of the empty path.
    ProbeRtt,
}

impl Mode {
    fn is_probe_bw(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }

    /// Whether losses are the answer to a question, not a change of the path.
    fn is_accelerating(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }

    fn pacing_gain(self) -> u32 {
        match self {
            Self::Startup => STARTUP_PACING_GAIN,
            Self::Drain => DRAIN_PACING_GAIN,
            Self::Down => DOWN_PACING_GAIN,
            Self::Up => UP_PACING_GAIN,
            Self::Cruise | Self::Refill | Self::ProbeRtt => UNIT,
        }
    }

    fn cwnd_gain(self) -> u32 {
        match self {
            Self::Up => UP_CWND_GAIN,
            Self::ProbeRtt => PROBE_RTT_CWND_GAIN,
            _ => CWND_GAIN,
        }
    }
}

/// Packet-timed round trips.
#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    count: u64,
    /// The round ends when something sent after so many deliveries is delivered.
    end: u64,
    is_start: bool,
}

/// Congestion controller BBR, version 3.
#[derive(Clone, Debug, Default)]
pub struct Bbr3 {
    state: Mode,
    rounds: Rounds,
    bandwidth: Bandwidth,
    volume: Volume,
    full_pipe: FullPipe,
    min_rtt: MinRtt,
    probing: Probing,
    loss_round: LossRound,
    undo: Undo,
    /// ACKs that came late and all at once: room for more of that.
    excess: Excess,
    pacing_rate: Rate,
    has_seen_rtt: bool,
    is_idle_restart: bool,
    /// Drain began in this round.
    drain_round: u64,
    /// Deliveries of the connection.
    delivered: u64,
    mss: u32,
    frame_rule: FrameRule,
    /// The window before recovery or a visit to [`Mode::ProbeRtt`].
    prior_cwnd: u32,
    prior_state: CaState,
    /// A window was reduced without loss: ECN, or a drop in the own host.
    has_marks: bool,
    chance: Chance,
}

impl Bbr3 {
    /// The bandwidth that is safe now.
    fn bw(&self) -> Rate {
        self.bandwidth.bound()
    }

    fn bdp(&self, bw: Rate, gain: u32) -> u32 {
        bdp(bw, self.min_rtt.value, gain, self.mss)
    }

    /// `QuantizationBudget`: room for whole frames, in the qdisc, in segmentation, in the peer's
    /// GRO.
    fn with_budget(&self, volume: u32) -> u32 {
        let budget = 3 * frame(self.pacing_rate, self.frame_rule, self.mss);
        let volume = volume.max(budget).max(MIN_WINDOW);
        volume.saturating_add(if self.state == Mode::Up { 2 } else { 0 })
    }

    /// `Inflight`: what should be in flight for `bw`.
    fn inflight(&self, bw: Rate) -> u32 {
        self.with_budget(self.bdp(bw, UNIT))
    }

    /// `TargetInflight`: the product, unless congestion cut the window.
    fn target_inflight(&self, window: &Window) -> u32 {
        self.bdp(self.bw(), UNIT).min(window.cwnd)
    }

    /// In the network when the next frame departs.
    fn in_network(&self, sample: &AckSample) -> u32 {
        in_network(sample.in_flight, (sample.now, sample.next_departure), self.bw(), self.mss)
    }

    fn start_round(&mut self) {
        self.rounds.end = self.delivered;
    }

    fn update_round(&mut self, sample: &AckSample) {
        self.rounds.is_start =
            sample.interval > Nanos::ZERO && sample.prior_delivered >= self.rounds.end;
        if self.rounds.is_start {
            self.start_round();
            self.rounds.count += 1;
            self.probing.count_round();
        }
    }

    fn set_pacing_rate(&mut self, gain: u32) {
        let rate = paced(self.bw(), gain);
        if self.full_pipe.is_reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    fn save_cwnd(&mut self, cwnd: u32) {
        let is_good = self.prior_state < CaState::Recovery && self.state != Mode::ProbeRtt;
        self.prior_cwnd = if is_good { cwnd } else { self.prior_cwnd.max(cwnd) };
    }

    fn restore_cwnd(&self, window: &mut Window) {
        window.cwnd = window.cwnd.max(self.prior_cwnd).min(window.clamp);
    }

    /// `UpdateMaxInflight` and `SetCwnd`: towards the target from below, down to it at once.
    fn set_cwnd(&mut self, sample: &AckSample, window: &mut Window) {
        let target = self.bdp(self.bw(), self.state.cwnd_gain());
        let target = self.with_budget(target.saturating_add(self.bandwidth.extra_acked()));
        let grown = window.cwnd.saturating_add(sample.acked_sacked);
        if self.full_pipe.is_reached {
            window.cwnd = grown.min(target);
        } else if window.cwnd < target || self.delivered < u64::from(INITIAL_WINDOW) {
            window.cwnd = grown;
        }
        window.cwnd = window.cwnd.max(MIN_WINDOW);
        if self.state == Mode::ProbeRtt {
            window.cwnd = window.cwnd.min(self.probe_rtt_cwnd());
        }
        window.cwnd = window.cwnd.min(self.volume_cap()).min(window.clamp);
    }

    /// `BoundCwndForModel`: what recent congestion allows.
    fn volume_cap(&self) -> u32 {
        let cap = match self.state {
            Mode::Down | Mode::Refill | Mode::Up => self.volume.longterm,
            Mode::Cruise | Mode::ProbeRtt => self.volume.with_headroom(),
            Mode::Startup | Mode::Drain => UNLIMITED,
        };
        cap.min(self.volume.shortterm).max(MIN_WINDOW)
    }

    fn update_model(&mut self, sample: &AckSample, window: &mut Window) {
        self.loss_round.update_latest(sample);
        self.update_round(sample);
        self.bandwidth.sample(sample);
        self.adapt_to_congestion(sample, window);
        if sample.acked_sacked > 0 {
            let extra = self.excess.update(sample, self.bw(), window.cwnd);
            let is_full = self.full_pipe.is_reached;
            self.bandwidth.note_excess(self.rounds.count, extra, is_full);
        }
        self.full_pipe.check(self.rounds.is_start, sample);
        self.check_startup_done(sample, window);
        self.check_drain_done(sample);
        if sample.acked_sacked > 0 {
            self.update_cycle(sample, window);
        }
        self.update_min_rtt(sample);
        self.check_probe_rtt(sample, window);
        self.loss_round.advance_latest(sample);
    }
}

impl CongestionControl for Bbr3 {
    fn name(&self) -> &'static str {
        "bbr3"
    }

    fn init(&mut self, start: &Start, window: &mut Window) {
        let &Start { now, srtt, min_rtt, mss, delivered, random, frame_rule, .. } = start;
        let chance = Chance::new(random);
        *self = Self { delivered, mss, frame_rule, chance, ..Self::default() };
        self.min_rtt = MinRtt::new(min_rtt, now);
        self.excess.restart(now);
        self.start_round();
        self.pacing_rate = initial_rate(window.cwnd, mss, srtt, STARTUP_PACING_GAIN);
        self.has_seen_rtt = srtt != Nanos::ZERO;
        window.ssthresh = u32::MAX;
    }

    fn on_ack(&mut self, sample: &AckSample, window: &mut Window) {
        (self.delivered, self.mss) = (sample.total_delivered, sample.mss);
        self.frame_rule = sample.frame_rule;
        let was_recovering = self.prior_state >= CaState::Recovery;
        self.prior_state = sample.state;
        if was_recovering && sample.state < CaState::Recovery {
            self.restore_cwnd(window);
        }
        self.update_model(sample, window);
        if !self.has_seen_rtt && sample.srtt != Nanos::ZERO {
            self.has_seen_rtt = true;
            self.pacing_rate =
                initial_rate(window.cwnd, sample.mss, sample.srtt, STARTUP_PACING_GAIN);
        }
        self.set_pacing_rate(self.state.pacing_gain());
        self.set_cwnd(sample, window);
    }

    fn on_lost(&mut self, now: Instant, lost: &LostSegments, window: &Window) {
        self.delivered = lost.total_delivered;
        self.handle_lost(now, lost, window);
    }

    /// The threshold is not used, but this is where an episode begins.
    fn ssthresh(&mut self, now: Instant, window: &Window) -> u32 {
        self.save_state(now, window.cwnd);
        window.ssthresh
    }

    fn on_event(&mut self, event: CongestionEvent, now: Instant, window: &mut Window) {
        match event {
            CongestionEvent::TxStart { is_app_limited: true, .. } => {
                self.is_idle_restart = true;
                self.excess.restart(now);
                if self.state.is_probe_bw() {
                    self.set_pacing_rate(UNIT);
                } else if self.state == Mode::ProbeRtt {
                    self.leave_probe_rtt_if_done(now, window);
                }
            }
            CongestionEvent::Cwr => self.has_marks = true,
            CongestionEvent::Loss => self.prior_state = CaState::Loss,
            CongestionEvent::Undo => self.handle_spurious_loss(window),
            _ => {}
        }
    }

    fn owns_window(&self) -> bool {
        true
    }

    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.pacing_rate)
    }

    fn model(&self) -> Option<PathModel> {
        Some(PathModel {
            bandwidth: self.bw(),
            min_rtt: self.min_rtt.value,
            pacing_gain: self.state.pacing_gain(),
            cwnd_gain: self.state.cwnd_gain(),
        })
    }

    fn marks_app_limited(&self) -> bool {
        self.state == Mode::ProbeRtt
    }

    fn min_tso_segs(&self) -> Option<u32> {
        Some(min_frame(self.pacing_rate, self.frame_rule, self.mss))
    }

    /// The window may double during recovery.
    fn sndbuf_expand(&self) -> u32 {
        3
    }
}
