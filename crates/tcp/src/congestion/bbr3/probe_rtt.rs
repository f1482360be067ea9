//! The minimum round-trip time, and the pause in which it is measured.

use super::super::path_model::{MIN_WINDOW, for_minimum};
use super::super::{AckSample, Window};
use super::cycle::AckPhase;
use super::{Bbr3, Mode, PROBE_RTT_CWND_GAIN};
use crate::time::{Instant, Nanos};

/// A minimum is good for so long.
const MIN_RTT_WINDOW: Nanos = Nanos::from_secs(10);
/// Time between pauses.
const PROBE_RTT_INTERVAL: Nanos = Nanos::from_secs(5);
/// Length of a pause.
const PROBE_RTT_TIME: Nanos = Nanos::from_millis(200);

/// The minimum round-trip time.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinRtt {
    /// `min_rtt`: of ten seconds.
    pub(super) value: Nanos,
    at: Instant,
    /// `probe_rtt_min_delay`: of five seconds.
    recent: Nanos,
    recent_at: Instant,
    is_expired: bool,
    /// When the pause may end; `None` until the window has shrunk.
    done_at: Option<Instant>,
    is_round_done: bool,
}

impl Default for MinRtt {
    fn default() -> Self {
        Self::new(Nanos::MAX, Instant::ZERO)
    }
}

impl MinRtt {
    pub(super) fn new(value: Nanos, now: Instant) -> Self {
        Self {
            value,
            at: now,
            recent: value,
            recent_at: now,
            is_expired: false,
            done_at: None,
            is_round_done: false,
        }
    }
}

impl Bbr3 {
    /// `UpdateMinRTT`.
    pub(super) fn update_min_rtt(&mut self, sample: &AckSample) {
        let min = &mut self.min_rtt;
        min.is_expired = sample.now.since(min.recent_at) > PROBE_RTT_INTERVAL;
        if let Some(rtt) = sample.rtt.map(for_minimum)
            && (rtt < min.recent || (min.is_expired && !sample.is_ack_delayed))
        {
            (min.recent, min.recent_at) = (rtt, sample.now);
        }
        if min.recent < min.value || sample.now.since(min.at) > MIN_RTT_WINDOW {
            (min.value, min.at) = (min.recent, min.recent_at);
        }
    }

    /// `ProbeRTTCwnd`.
    pub(super) fn probe_rtt_cwnd(&self) -> u32 {
        self.bdp(self.bw(), PROBE_RTT_CWND_GAIN).max(MIN_WINDOW)
    }

    /// `CheckProbeRTT`.
    pub(super) fn check_probe_rtt(&mut self, sample: &AckSample, window: &mut Window) {
        if self.state != Mode::ProbeRtt && self.min_rtt.is_expired && !self.is_idle_restart {
            self.save_cwnd(window.cwnd);
            self.state = Mode::ProbeRtt;
            self.min_rtt.done_at = None;
            self.probing.phase = AckPhase::Stopping;
            self.start_round();
        }
        if self.state == Mode::ProbeRtt {
            self.handle_probe_rtt(sample, window);
        }
        if sample.delivered > 0 {
            self.is_idle_restart = false;
        }
    }

    /// `HandleProbeRTT`.
    fn handle_probe_rtt(&mut self, sample: &AckSample, window: &mut Window) {
        match self.min_rtt.done_at {
            None if sample.in_flight <= self.probe_rtt_cwnd() => {
                self.min_rtt.done_at = Some(sample.now + PROBE_RTT_TIME);
                self.min_rtt.is_round_done = false;
                self.start_round();
            }
            None => {}
            Some(_) => {
                self.min_rtt.is_round_done |= self.rounds.is_start;
                if self.min_rtt.is_round_done {
                    self.leave_probe_rtt_if_done(sample.now, window);
                }
            }
        }
    }

    /// `CheckProbeRTTDone` and `ExitProbeRTT`.
    pub(super) fn leave_probe_rtt_if_done(&mut self, now: Instant, window: &mut Window) {
        if self.min_rtt.done_at.is_none_or(|done_at| now <= done_at) {
            return;
        }
        self.min_rtt.recent_at = now;
        self.restore_cwnd(window);
        self.reset_shortterm();
        if self.full_pipe.is_reached {
            self.start_down(now);
            self.start_cruise();
        } else {
            self.enter_startup();
        }
    }
}
