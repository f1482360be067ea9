//! Due times of the sender's timers, and what a timeout does.

use super::Sender;
use crate::config::Config;
use crate::congestion::CaState;
use crate::counters::{Counter, Counters};
use crate::time::{Instant, Nanos};

/// Slack of a tail loss probe for a peer that is slow to acknowledge (`TCP_TIMEOUT_MIN_US`).
/// Doubled whenever a probe was for nothing.
const PROBE_SLACK: Nanos = Nanos::from_millis(2);
/// Wait of a tail loss probe before the first round-trip sample (`TCP_TIMEOUT_INIT`).
const FIRST_PROBE: Nanos = Nanos::from_secs(1);
/// The least time between two probes of a closed window (`TCP_RTO_MIN`).
const LEAST_WINDOW_PROBE: Nanos = Nanos::from_millis(200);

impl Sender {
    /// When a timer is due that is armed at `now` for `wait`, and for the time that pacing holds
    /// frames. No timer waits for longer than the longest timeout (`tcp_reset_xmit_timer`).
    fn due_after(&self, now: Instant, wait: Nanos) -> Instant {
        now + (wait + self.pacer.backlog(now)).min(self.rtt.rto_max())
    }

    /// Returns when a retransmission timeout armed at `now` is due (`tcp_rearm_rto`). The time that
    /// pacing holds frames is added, up to the longest timeout. `None` with nothing in flight.
    pub fn timeout_at(&self, now: Instant) -> Option<Instant> {
        self.has_unacked().then(|| self.due_after(now, self.rtt.rto()))
    }

    /// Returns when the retransmission timeout is due after another timer took its place and sent
    /// nothing (`tcp_rearm_rto` with a probe pending). `None` with nothing in flight.
    ///
    /// It counts from the departure of the oldest frame.
    pub fn resumed_timeout_at(&self, now: Instant) -> Option<Instant> {
        let at = self.oldest_departure()? + self.rtt.rto();
        Some(self.due_after(now, at.since(now).max(Nanos::from_millis(1))))
    }

    /// Time from `now` until the timeout of the oldest frame (`tcp_rto_delta_us`).
    fn time_to_timeout(&self, now: Instant) -> Nanos {
        (self.oldest_departure().unwrap_or(now) + self.rtt.rto()).since(now)
    }

    /// Returns when a tail loss probe is due that replaces the timeout (`tcp_schedule_loss_probe`);
    /// `None` if the flow is not probed.
    ///
    /// It is no later than the timeout, plus the time that pacing holds frames. The timeout counts
    /// from `now` where an ACK sets it anew (`advances`), else from the departure of the oldest
    /// frame.
    pub fn loss_probe_at(&self, now: Instant, advances: bool) -> Option<Instant> {
        let packets_out = self.board.counts().packets_out;
        let state_allows = matches!(self.recovery.state(), CaState::Open | CaState::Cwr);
        if !self.sack || packets_out == 0 || !state_allows || self.recovery.probe_is_out() {
            return None;
        }
        let srtt = self.rtt.srtt();
        let wait = if srtt == Nanos::ZERO {
            FIRST_PROBE
        } else if packets_out == 1 {
            srtt.saturating_mul(2) + self.rtt.rto_min()
        } else {
            srtt.saturating_mul(2) + self.recovery.probe_slack(PROBE_SLACK)
        };
        let timeout = if advances { self.rtt.rto() } else { self.time_to_timeout(now) };
        let wait = if timeout > Nanos::ZERO { wait.min(timeout) } else { wait };
        Some(self.due_after(now, wait))
    }

    /// Returns when RACK's reordering window of `wait` is over, which replaces the timeout and is
    /// no later (`tcp_rack_mark_lost`).
    pub fn reordering_over_at(&self, now: Instant, wait: Nanos) -> Instant {
        now + wait.min(self.rtt.rto()) + Nanos(1)
    }

    /// Ends RACK's reordering window (`tcp_rack_reo_timeout`). Returns how much longer to wait, if
    /// that ends before the timeout.
    pub fn on_reorder_timeout(&mut self, now: Instant, counters: &Counters) -> Option<Nanos> {
        let wait = self.end_reordering_window(now, counters);
        wait.filter(|&wait| wait < self.time_to_timeout(now))
    }

    /// Returns when a closed window is probed after `probes` unanswered probes (`tcp_probe0_when`).
    /// The time that pacing holds frames is added, up to the longest timeout.
    pub fn window_probe_at(&self, now: Instant, probes: u16) -> Instant {
        self.due_after(now, self.window_probe_wait(probes))
    }

    /// Returns the time between two probes of a closed window after `probes` of them
    /// (`inet_csk_rto_backoff`).
    pub fn window_probe_wait(&self, probes: u16) -> Nanos {
        let base = self.rtt.base_rto().max(LEAST_WINDOW_PROBE);
        base.saturating_mul(1 << probes.min(16)).min(self.rtt.rto_max())
    }

    /// Takes a retransmission timeout: what is in flight counts as lost if it had time to arrive,
    /// and the next timeout waits twice as long. Returns whether it is the first of a row.
    pub fn on_timeout(&mut self, now: Instant, config: &Config, counters: &Counters) -> bool {
        counters.add(Counter::Timeouts, 1);
        self.on_timeout_of_closed_window(now, config, counters);
        self.recovery.count_timeout()
    }

    /// Takes a retransmission timeout while the peer's window is 0, as [`on_timeout`], but does not
    /// count it: what is sent again is a probe of the window.
    ///
    /// [`on_timeout`]: Self::on_timeout
    pub fn on_timeout_of_closed_window(
        &mut self,
        now: Instant,
        config: &Config,
        counters: &Counters,
    ) {
        self.enter_loss(now, config.tcp_frto, config.tcp_reordering, counters);
        self.rtt.back_off();
    }

    /// Takes back the doubling of the last timeout: what it sent again did not leave this host.
    pub fn undo_back_off(&mut self) {
        self.rtt.undo_back_off();
    }

    /// Takes the round trip of the handshake, the first sample. `None` says that it gave none,
    /// since its SYN was sent again (RFC 6298 section 5.7).
    pub fn on_handshake(&mut self, now: Instant, rtt: Option<Nanos>) {
        let Some(rtt) = rtt else { return self.rtt.fall_back() };
        self.rtt.on_sample(rtt, self.una, self.nxt);
        self.rtt.on_min_rtt(now, rtt, false);
    }
}
