//! BBR version 1, as in Linux (`tcp_bbr.c`; Cardwell et al., "BBR: Congestion-Based Congestion
//! Control", ACM Queue 2016).
//!
//! The path is a bandwidth, the highest of ten round trips, and a round-trip time, the lowest of
//! ten seconds. The flow sends at that bandwidth with at most twice the product in flight, and
//! tries from time to time whether there is more bandwidth or a shorter round trip. Cost: O(1) per
//! ACK without allocation; 424 bytes per connection that uses it.

mod aggregation;
mod policer;
#[cfg(test)]
mod tests;

use super::path_model::{
    Chance, MIN_WINDOW, UNIT, bandwidth, bdp, for_minimum, frame, in_network, initial_rate,
    min_frame, paced,
};
use super::{
    AckSample, CaState, CongestionControl, CongestionEvent, INITIAL_WINDOW, PathModel, Start,
    Window,
};
use crate::congestion::FrameRule;
use crate::time::{Instant, Nanos, Rate};
use crate::windowed_min::WindowedMax;
use aggregation::Aggregation;
use policer::{Policer, Progress};

/// Round trips of the bandwidth filter: a whole cycle and two.
const BW_ROUNDS: u64 = 10;
/// 2/ln 2: the least gain that doubles the rate every round trip.
const HIGH_GAIN: u32 = 739;
/// The inverse: empties in one round trip what start-up queued.
const DRAIN_GAIN: u32 = 88;
/// Window over product while the bandwidth is known: room for delayed and merged ACKs.
const CWND_GAIN: u32 = 2 * UNIT;
/// Probe, drain what that queued, cruise.
const CYCLE: [u32; 8] = [UNIT * 5 / 4, UNIT * 3 / 4, UNIT, UNIT, UNIT, UNIT, UNIT, UNIT];
/// A minimum round-trip time is good for so long.
const MIN_RTT_WINDOW: Nanos = Nanos::from_secs(10);
/// How long the flow then holds its window at [`MIN_WINDOW`].
const PROBE_RTT_TIME: Nanos = Nanos::from_millis(200);
/// The pipe is full after so many rounds in which bandwidth grew by less than a quarter.
const FULL_ROUNDS: u32 = 3;

/// What the flow is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// Doubles the rate each round trip.
    #[default]
    Startup,
    /// Empties the queue that this made.
    Drain,
    /// Cycles around the bandwidth.
    ProbeBw,
    /// Holds a small window to see the round-trip time of the empty path.
    ProbeRtt,
}

/// Looks for the end of growth.
#[derive(Clone, Copy, Debug, Default)]
struct FullPipe {
    bw: Rate,
    rounds: u32,
    is_reached: bool,
}

/// Minimum round-trip time, and the visit to [`Mode::ProbeRtt`] that renews it.
#[derive(Clone, Copy, Debug)]
struct MinRtt {
    value: Nanos,
    at: Instant,
    /// When the visit may end; `None` until the window has shrunk.
    done_at: Option<Instant>,
    is_round_done: bool,
}

/// Congestion controller BBR, version 1.
#[derive(Clone, Debug)]
pub struct Bbr {
    mode: Mode,
    bw: WindowedMax,
    /// Packet-timed round trips so far.
    rounds: u64,
    /// The round ends when something sent after so many deliveries is delivered.
    round_end: u64,
    is_round_start: bool,
    min_rtt: MinRtt,
    full_pipe: FullPipe,
    cycle: usize,
    cycle_at: Instant,
    pacing_gain: u32,
    cwnd_gain: u32,
    pacing_rate: Rate,
    frame_rule: FrameRule,
    has_seen_rtt: bool,
    /// The window before recovery or a visit to [`Mode::ProbeRtt`].
    prior_cwnd: u32,
    prior_state: CaState,
    /// In the first round of recovery as much is sent as is delivered.
    conserves: bool,
    is_idle_restart: bool,
    has_timed_out: bool,
    aggregation: Aggregation,
    policer: Policer,
    /// At the last delivery.
    progress: Progress,
    chance: Chance,
}

impl Default for Bbr {
    fn default() -> Self {
        let min_rtt =
            MinRtt { value: Nanos::MAX, at: Instant::ZERO, done_at: None, is_round_done: false };
        Self {
            mode: Mode::Startup,
            bw: WindowedMax::default(),
            rounds: 0,
            round_end: 0,
            is_round_start: false,
            min_rtt,
            full_pipe: FullPipe::default(),
            cycle: 0,
            cycle_at: Instant::ZERO,
            pacing_gain: HIGH_GAIN,
            cwnd_gain: HIGH_GAIN,
            pacing_rate: initial_rate(INITIAL_WINDOW, 1448, Nanos::ZERO, HIGH_GAIN),
            frame_rule: FrameRule::Linux,
            has_seen_rtt: false,
            prior_cwnd: 0,
            prior_state: CaState::Open,
            conserves: false,
            is_idle_restart: false,
            has_timed_out: false,
            aggregation: Aggregation::default(),
            policer: Policer::default(),
            progress: Progress::default(),
            chance: Chance::default(),
        }
    }
}

impl Bbr {
    fn max_bw(&self) -> Rate {
        Rate(self.bw.get().unwrap_or(0))
    }

    /// The bandwidth that is believed: that of a policer first.
    fn bw(&self) -> Rate {
        self.policer.rate().unwrap_or(self.max_bw())
    }

    /// `bbr_inflight`: what should be in flight for `bw` at `gain`.
    fn inflight(&self, bw: Rate, gain: u32) -> u32 {
        self.with_budget(bdp(bw, self.min_rtt.value, gain, self.progress.mss))
    }

    fn frame(&self) -> u32 {
        frame(self.pacing_rate, self.frame_rule, self.progress.mss)
    }

    /// Room for whole frames: one in the qdisc, one in segmentation, one in the peer's GRO.
    fn with_budget(&self, window: u32) -> u32 {
        let window = window.saturating_add(3 * self.frame());
        let even = window.saturating_add(window & 1);
        let probes = self.mode == Mode::ProbeBw && self.cycle == 0;
        even.saturating_add(if probes { 2 } else { 0 })
    }

    /// In the network at the next departure, the frame that departs included when it is to rise.
    fn in_network(&self, in_flight: u32, sample: &AckSample) -> u32 {
        let rises = self.pacing_gain > UNIT;
        let more = if rises { self.frame() } else { 0 };
        let times = (sample.now, sample.next_departure);
        in_network(in_flight.saturating_add(more), times, self.bw(), sample.mss)
    }

    fn set_pacing_rate(&mut self, bw: Rate, gain: u32) {
        let rate = paced(bw, gain);
        if self.full_pipe.is_reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    fn update_bw(&mut self, sample: &AckSample) {
        self.is_round_start = false;
        if sample.interval == Nanos::ZERO {
            return;
        }
        if sample.prior_delivered >= self.round_end {
            self.round_end = sample.total_delivered;
            self.rounds += 1;
            self.is_round_start = true;
            self.conserves = false;
        }
        self.watch_policer(sample.losses > 0, sample.is_app_limited);
        let bw = bandwidth(sample);
        if !sample.is_app_limited || bw >= self.max_bw() {
            self.bw.update(BW_ROUNDS, self.rounds, bw.0);
        }
    }

    fn watch_policer(&mut self, has_losses: bool, is_app_limited: bool) {
        let now = self.progress;
        if self.policer.rate().is_some() {
            let counts = self.mode == Mode::ProbeBw && self.is_round_start;
            if counts && self.policer.is_trust_over(now) {
                self.enter_probe_bw(now.at);
            }
        } else if self.policer.sample(now, (self.is_round_start, has_losses, is_app_limited)) {
            self.pacing_gain = UNIT;
        }
    }

    fn update_cycle(&mut self, sample: &AckSample) {
        if self.mode == Mode::ProbeBw && self.is_phase_over(sample) {
            self.advance_cycle(self.progress.at);
        }
    }

    fn is_phase_over(&self, sample: &AckSample) -> bool {
        let is_full = self.progress.at.since(self.cycle_at) > self.min_rtt.value;
        if self.pacing_gain == UNIT {
            return is_full;
        }
        let in_network = self.in_network(sample.prior_in_flight, sample);
        let target = |gain| self.inflight(self.max_bw(), gain);
        if self.pacing_gain > UNIT {
            // A short path needs longer to fill up; a small buffer may never hold that much.
            is_full && (sample.losses > 0 || in_network >= target(self.pacing_gain))
        } else {
            is_full || in_network <= target(UNIT)
        }
    }

    fn advance_cycle(&mut self, at: Instant) {
        self.cycle = (self.cycle + 1) % CYCLE.len();
        self.cycle_at = at;
    }

    /// Starts the cycle at a random phase, so that flows do not probe together; not at the one that
    /// drains, since there is nothing to drain.
    fn enter_probe_bw(&mut self, at: Instant) {
        self.mode = Mode::ProbeBw;
        self.cycle = CYCLE.len() - 1 - self.chance.below(CYCLE.len() as u64 - 1) as usize;
        self.advance_cycle(at);
    }

    fn check_full_pipe(&mut self, sample: &AckSample) {
        let bw = self.max_bw();
        let full = &mut self.full_pipe;
        if full.is_reached || !self.is_round_start || sample.is_app_limited {
            return;
        }
        if u128::from(bw.0) * 4 >= u128::from(full.bw.0) * 5 {
            (full.bw, full.rounds) = (bw, 0);
            return;
        }
        full.rounds += 1;
        full.is_reached = full.rounds >= FULL_ROUNDS;
    }

    fn check_drain(&mut self, sample: &AckSample, window: &mut Window) {
        let target = self.inflight(self.max_bw(), UNIT);
        if self.mode == Mode::Startup && self.full_pipe.is_reached {
            self.mode = Mode::Drain;
            window.ssthresh = target.max(2);
        }
        if self.mode == Mode::Drain && self.in_network(sample.in_flight, sample) <= target {
            self.enter_probe_bw(self.progress.at);
        }
    }

    fn update_min_rtt(&mut self, sample: &AckSample, window: &mut Window) {
        let is_expired = sample.now.since(self.min_rtt.at) > MIN_RTT_WINDOW;
        if let Some(rtt) = sample.rtt.map(for_minimum)
            && (rtt < self.min_rtt.value || (is_expired && !sample.is_ack_delayed))
        {
            (self.min_rtt.value, self.min_rtt.at) = (rtt, sample.now);
        }
        if is_expired && !self.is_idle_restart && self.mode != Mode::ProbeRtt {
            self.save_cwnd(window.cwnd);
            self.mode = Mode::ProbeRtt;
            self.min_rtt.done_at = None;
        }
        if self.mode == Mode::ProbeRtt {
            match self.min_rtt.done_at {
                None if sample.in_flight <= MIN_WINDOW => {
                    self.min_rtt.done_at = Some(sample.now + PROBE_RTT_TIME);
                    self.min_rtt.is_round_done = false;
                    self.round_end = sample.total_delivered;
                }
                None => {}
                Some(_) => {
                    self.min_rtt.is_round_done |= self.is_round_start;
                    if self.min_rtt.is_round_done {
                        self.leave_probe_rtt_if_done(sample.now, window);
                    }
                }
            }
        }
        if sample.delivered > 0 {
            self.is_idle_restart = false;
        }
    }

    fn leave_probe_rtt_if_done(&mut self, now: Instant, window: &mut Window) {
        if self.min_rtt.done_at.is_none_or(|done_at| now <= done_at) {
            return;
        }
        self.min_rtt.at = now;
        window.cwnd = window.cwnd.max(self.prior_cwnd).min(window.clamp);
        if self.full_pipe.is_reached {
            self.enter_probe_bw(now);
        } else {
            self.mode = Mode::Startup;
        }
    }

    fn update_gains(&mut self) {
        (self.pacing_gain, self.cwnd_gain) = match self.mode {
            Mode::Startup => (HIGH_GAIN, HIGH_GAIN),
            Mode::Drain => (DRAIN_GAIN, HIGH_GAIN),
            Mode::ProbeBw if self.policer.rate().is_some() => (UNIT, CWND_GAIN),
            Mode::ProbeBw => (CYCLE[self.cycle], CWND_GAIN),
            Mode::ProbeRtt => (UNIT, UNIT),
        };
    }

    fn save_cwnd(&mut self, cwnd: u32) {
        let is_good = self.prior_state < CaState::Recovery && self.mode != Mode::ProbeRtt;
        self.prior_cwnd = if is_good { cwnd } else { self.prior_cwnd.max(cwnd) };
    }

    /// The window through loss recovery: losses are taken off, the first round sends what it
    /// delivers, the end restores what was before. Returns the window, and whether that is all.
    fn recover(&mut self, sample: &AckSample, cwnd: u32) -> (u32, bool) {
        let (before, state) = (self.prior_state, sample.state);
        let delivered = sample.in_flight.saturating_add(sample.acked_sacked);
        let mut cwnd = cwnd.saturating_sub(sample.losses).max(1);
        if state == CaState::Recovery && before != CaState::Recovery {
            self.conserves = true;
            self.round_end = sample.total_delivered;
            cwnd = delivered;
        } else if before >= CaState::Recovery && state < CaState::Recovery {
            cwnd = cwnd.max(self.prior_cwnd);
            self.conserves = false;
        }
        self.prior_state = state;
        if self.conserves { (cwnd.max(delivered), true) } else { (cwnd, false) }
    }

    fn set_cwnd(&mut self, sample: &AckSample, window: &mut Window) {
        let acked = sample.acked_sacked;
        let mut cwnd = window.cwnd;
        if acked > 0 {
            let is_all;
            (cwnd, is_all) = self.recover(sample, cwnd);
            if !is_all {
                cwnd = self.approach_target(sample, cwnd, acked);
            }
        }
        if self.mode == Mode::ProbeRtt {
            cwnd = cwnd.min(MIN_WINDOW);
        }
        window.cwnd = cwnd.clamp(1, window.clamp.max(1));
    }

    /// Slow start towards the target from below; from above at once, when the pipe is known.
    fn approach_target(&self, sample: &AckSample, cwnd: u32, acked: u32) -> u32 {
        let bw = self.bw();
        let mut target = bdp(bw, self.min_rtt.value, self.cwnd_gain, sample.mss);
        if self.full_pipe.is_reached {
            target = target.saturating_add(self.aggregation.extra(bw, sample.mss));
        }
        let target = self.with_budget(target);
        let grown = cwnd.saturating_add(acked);
        let cwnd = if self.full_pipe.is_reached {
            grown.min(target)
        } else if cwnd < target || sample.total_delivered < u64::from(INITIAL_WINDOW) {
            grown
        } else {
            cwnd
        };
        cwnd.max(MIN_WINDOW)
    }
}

impl CongestionControl for Bbr {
    fn name(&self) -> &'static str {
        "bbr"
    }

    fn init(&mut self, start: &Start, window: &mut Window) {
        let &Start { now, srtt, min_rtt, mss, delivered, lost, random, frame_rule, .. } = start;
        let progress = Progress { at: now, delivered, lost, mss };
        let chance = Chance::new(random);
        *self = Self { round_end: delivered, progress, chance, frame_rule, ..Self::default() };
        (self.min_rtt.value, self.min_rtt.at) = (min_rtt, now);
        self.policer.reset(progress);
        self.aggregation.restart(now);
        self.pacing_rate = initial_rate(window.cwnd, mss, srtt, HIGH_GAIN);
        self.has_seen_rtt = srtt != Nanos::ZERO;
        window.ssthresh = u32::MAX;
    }

    fn on_ack(&mut self, sample: &AckSample, window: &mut Window) {
        self.progress.lost = sample.total_lost;
        if self.has_timed_out {
            // A timeout ends a round; what was delivered before it is measured up to the delivery.
            self.has_timed_out = false;
            self.is_round_start = true;
            self.watch_policer(true, false);
        }
        self.progress.mss = sample.mss;
        self.frame_rule = sample.frame_rule;
        self.progress.delivered = sample.total_delivered;
        if sample.acked_sacked > 0 {
            self.progress.at = sample.now;
        }
        self.update_bw(sample);
        if sample.acked_sacked > 0 && sample.interval > Nanos::ZERO {
            self.aggregation.update(sample, self.bw(), window.cwnd, self.is_round_start);
        }
        self.update_cycle(sample);
        self.check_full_pipe(sample);
        self.check_drain(sample, window);
        self.update_min_rtt(sample, window);
        self.update_gains();
        if !self.has_seen_rtt && sample.srtt != Nanos::ZERO {
            self.has_seen_rtt = true;
            self.pacing_rate = initial_rate(window.cwnd, sample.mss, sample.srtt, HIGH_GAIN);
        }
        self.set_pacing_rate(self.bw(), self.pacing_gain);
        self.set_cwnd(sample, window);
    }

    /// The threshold is not used, but this is where an episode of loss begins.
    fn ssthresh(&mut self, _now: Instant, window: &Window) -> u32 {
        self.save_cwnd(window.cwnd);
        window.ssthresh
    }

    fn on_event(&mut self, event: CongestionEvent, now: Instant, window: &mut Window) {
        match event {
            CongestionEvent::TxStart { is_app_limited: true, .. } => {
                self.is_idle_restart = true;
                self.aggregation.restart(now);
                // At the bandwidth, not above: the queue that probing makes would help nobody.
                if self.mode == Mode::ProbeBw {
                    self.set_pacing_rate(self.bw(), UNIT);
                } else if self.mode == Mode::ProbeRtt {
                    self.leave_probe_rtt_if_done(now, window);
                }
            }
            CongestionEvent::Loss => {
                self.prior_state = CaState::Loss;
                self.full_pipe.bw = Rate(0);
                self.has_timed_out = true;
            }
            CongestionEvent::Undo => {
                (self.full_pipe.bw, self.full_pipe.rounds) = (Rate(0), 0);
                self.policer.reset(self.progress);
            }
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
            pacing_gain: self.pacing_gain,
            cwnd_gain: self.cwnd_gain,
        })
    }

    fn marks_app_limited(&self) -> bool {
        self.mode == Mode::ProbeRtt
    }

    fn min_tso_segs(&self) -> Option<u32> {
        Some(min_frame(self.pacing_rate, self.frame_rule, self.progress.mss))
    }

    /// Slow start goes on during recovery, so there is one window more.
    fn sndbuf_expand(&self) -> u32 {
        3
    }
}
