//! Timers of a connection: retransmission, probes, keepalives, and the end of orphans.

use super::deadlines::Deadline;
use super::{Connection, ConnectionError, Owed};
use crate::counters::Counter;
use crate::state::State;
use crate::time::{Instant, Nanos};

/// Timeout from which the time of a number of retries is counted (`TCP_RTO_MIN`).
/// `tcp_rto_min_us` does not shorten it: a connection that repeats faster is not given up earlier.
const LEAST_TIMEOUT: Nanos = Nanos::from_millis(200);
/// The least time until a timeout whose end has passed, and between two keepalive probes (a jiffy).
const SOONEST: Nanos = Nanos::from_millis(1);
/// `TCP_TIMEOUT_MIN`, two ticks at 250 Hz.
pub(super) const SOON: Nanos = Nanos::from_millis(8);
/// What this host's own queues dropped is tried again after this long
/// (`TCP_RESOURCE_PROBE_INTERVAL`).
const RESOURCE_PROBE: Nanos = Nanos::from_millis(500);
/// First timeout of a SYN (RFC 6298 section 2.1).
const SYN_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Memory of a connection without data is kept this long for the next write.
pub(super) const IDLE_RELEASE: Nanos = Nanos::from_secs(1);

impl Connection {
    /// Does what is due at `now`. Segments that result leave at the next
    /// [`transmit`](Self::transmit).
    pub fn on_deadline(&mut self, now: Instant) {
        let estimates = self.estimates(now);
        self.receiver.on_deadline(now, estimates);
        while let Some(kind) = self.deadlines.take_due(now) {
            match kind {
                Deadline::Retransmit => self.on_retransmit_timeout(now),
                Deadline::LossProbe => self.on_loss_probe(now),
                Deadline::Reorder => self.on_reorder_timeout(now),
                Deadline::Probe => self.on_probe_timeout(now),
                Deadline::Pacing => {
                    self.counters.add(Counter::PacingTimers, 1);
                    self.end_hold();
                }
                Deadline::Keepalive => self.on_keepalive(now),
                Deadline::Orphan => self.on_orphan_timeout(),
                Deadline::IdleMemory => {
                    self.sender.release_idle_memory();
                    if self.memory() == 0 {
                        self.counters.release_memory(&mut self.held);
                    }
                }
            }
            if self.state == State::Closed {
                return;
            }
        }
    }

    /// Whether something will make lost data be sent again.
    pub(super) fn has_retransmit_timer(&self) -> bool {
        self.deadlines.is_armed(Deadline::Retransmit)
            || self.deadlines.is_armed(Deadline::LossProbe)
            || self.deadlines.is_armed(Deadline::Reorder)
    }

    /// Arms the retransmission timeout from now (`tcp_rearm_rto`).
    pub(super) fn arm_retransmit(&mut self, now: Instant) {
        self.set_retransmit(now, self.sender.timeout_at(now));
    }

    /// Arms the timeout after another timer that took its place and has sent nothing.
    pub(super) fn resume_retransmit(&mut self, now: Instant) {
        self.set_retransmit(now, self.sender.resumed_timeout_at(now));
    }

    fn set_retransmit(&mut self, now: Instant, at: Option<Instant>) {
        match at {
            Some(at) => {
                let last = self.end_of_patience(now, SOONEST);
                self.deadlines.set_retransmit(Deadline::Retransmit, at.min(last));
            }
            None => self.deadlines.clear_retransmit(),
        }
    }

    /// When the user timeout ends for a peer that does not answer, but `least` from now
    /// (`tcp_clamp_rto_to_user_timeout`); [`Instant::FAR_FUTURE`] without one, and while the peer
    /// answers.
    fn end_of_patience(&self, now: Instant, least: Nanos) -> Instant {
        let since = self.liveness.stalled_since();
        match self.options.user_timeout {
            Some(limit) if since != Instant::FAR_FUTURE => (since + limit).max(now + least),
            _ => Instant::FAR_FUTURE,
        }
    }

    /// Arms the probe of a closed window, no later than the user timeout ends
    /// (`tcp_clamp_probe0_to_user_timeout`).
    pub(super) fn arm_window_probe(&mut self, now: Instant) {
        let at = self.sender.window_probe_at(now, self.liveness.window_backoff());
        let last = self.end_of_patience(now, SOON);
        self.deadlines.set_retransmit(Deadline::Probe, at.min(last));
    }

    /// The probe of a closed window did not leave this host (`tcp_send_probe0`).
    pub(super) fn on_window_probe_dropped(&mut self, now: Instant) {
        self.liveness.drop_window_probe();
        let last = self.end_of_patience(now, SOON);
        self.deadlines.set_retransmit(Deadline::Probe, (now + RESOURCE_PROBE).min(last));
    }

    /// The probe of an idle peer did not leave this host (`tcp_keepalive_timer`).
    pub(super) fn on_keepalive_dropped(&mut self, now: Instant) {
        self.liveness.drop_probe();
        self.deadlines.set(Deadline::Keepalive, now + RESOURCE_PROBE);
    }

    /// What a timeout sent again did not leave this host (`tcp_retransmit_timer`), so the timeout
    /// is no sign of congestion on the way and the next one is no longer.
    pub(super) fn on_retransmission_dropped(&mut self, now: Instant) {
        if self.sender.wnd() > 0 || self.is_orphan {
            self.sender.undo_back_off();
            self.deadlines.set_retransmit(Deadline::Retransmit, now + RESOURCE_PROBE);
        }
    }

    /// A SYN that was to be sent again did not leave this host.
    pub(super) fn on_syn_dropped(&mut self, now: Instant) {
        let retransmits = u32::from(self.opening.retransmits);
        if retransmits > self.linear_syn_timeouts() {
            self.opening.dropped = self.opening.dropped.saturating_add(1);
        }
        if retransmits > 0 {
            self.deadlines.set_retransmit(Deadline::Retransmit, now + RESOURCE_PROBE);
        }
    }

    /// Arms the tail loss probe in place of the timeout (`tcp_schedule_loss_probe`). The timeout is
    /// armed anew when the probe was sent. `advances` says that an ACK has just set it anew.
    pub(super) fn arm_loss_probe(&mut self, now: Instant, advances: bool) {
        if !self.config.has_loss_probes() {
            return;
        }
        if let Some(at) = self.sender.loss_probe_at(now, advances) {
            self.deadlines.set_retransmit(Deadline::LossProbe, at);
        }
    }

    /// Our own SYN is repeated a few times at the same pace before its timeouts double.
    pub(super) fn arm_syn(&mut self, now: Instant) {
        let linear = self.linear_syn_timeouts();
        let sent_again = self.opening.retransmits.saturating_sub(self.opening.dropped);
        let doublings = u32::from(sent_again).saturating_sub(linear).min(32);
        let wait = SYN_TIMEOUT.saturating_mul(1 << doublings);
        self.set_retransmit(now, Some(now + wait.min(self.sender.rtt().rto_max())));
    }

    fn on_retransmit_timeout(&mut self, now: Instant) {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            self.on_syn_timeout(now);
            return;
        }
        if !self.sender.has_unacked() {
            return;
        }
        if self.sender.wnd() == 0 && !self.is_orphan {
            self.on_timeout_of_closed_window(now);
            return;
        }
        let since = self.liveness.stall(now);
        if self.is_out_of_resources(now, since) {
            return;
        }
        // Since when there was no answer counts from the second timeout on: before it the window of
        // the peer may have been closed for long.
        if self.sender.recovery().timeouts_in_row() > 0 && self.has_given_up(now, since) {
            self.give_up();
            return;
        }
        let is_first = self.sender.on_timeout(now, &self.config, &self.counters);
        self.rare().timeouts.count(now, is_first);
        self.owed |= Owed::RETRANSMIT_HEAD;
        self.arm_retransmit(now);
    }

    /// A timeout while the peer has closed its window although data is in flight
    /// (`tcp_retransmit_timer`). The oldest segment is sent again as a probe, and a peer that
    /// answers may keep its window closed for ever, unless the user objects.
    fn on_timeout_of_closed_window(&mut self, now: Instant) {
        if self.is_closed_window_given_up(now) {
            self.give_up();
            return;
        }
        self.liveness.stall(now);
        self.sender.on_timeout_of_closed_window(now, &self.config, &self.counters);
        self.owed |= Owed::RETRANSMIT_HEAD;
        self.arm_retransmit(now);
    }

    /// Whether a peer that has closed its window over data in flight is given up: it was silent for
    /// twice the longest timeout, or the user timeout is over (`tcp_rtx_probe0_timed_out`). The
    /// time of both counts from the first of these timeouts, at that one from the departure.
    fn is_closed_window_given_up(&self, now: Instant) -> bool {
        let since = match self.liveness.stalled_since() {
            Instant::FAR_FUTURE => self.sender.oldest_departure().unwrap_or(now),
            since => since,
        };
        let (stalled, silent) = (now.since(since), now.since(self.liveness.last_heard()));
        let patience = self.sender.rtt().rto_max().saturating_mul(2);
        match self.options.user_timeout {
            Some(limit) if stalled > limit => true,
            Some(limit) => silent.min(stalled) > limit.min(patience),
            None => silent.min(stalled) > patience,
        }
    }

    fn linear_syn_timeouts(&self) -> u32 {
        if self.state == State::SynSent { self.config.tcp_syn_linear_timeouts } else { 0 }
    }

    fn on_syn_timeout(&mut self, now: Instant) {
        let retries = match self.state {
            State::SynSent => self.config.tcp_syn_retries,
            _ => self.config.tcp_synack_retries,
        };
        let since = self.liveness.stall(self.opening.sent_at);
        let limit = self.options.user_timeout;
        let limit = limit.unwrap_or(self.sender.rtt().time_of_retries(SYN_TIMEOUT, retries));
        let sent_again = u32::from(self.opening.retransmits);
        // The SYN is sent again at least once, whatever the user timeout is.
        let is_late = sent_again > 0 && now.since(since) >= limit;
        if sent_again >= retries + self.linear_syn_timeouts() || is_late {
            self.counters.add(Counter::AbortOnTimeout, 1);
            self.fail(self.errors.why_timed_out());
            return;
        }
        self.counters.add(Counter::Timeouts, 1);
        let is_first = self.opening.retransmits == 0;
        self.rare().timeouts.count(now, is_first);
        self.opening.retransmits = self.opening.retransmits.saturating_add(1);
        self.owed |= Owed::SYN;
        self.arm_syn(now);
    }

    /// Whether a peer that has not answered `since` is given up: the user timeout, or the time that
    /// `tcp_retries2` (orphans: `tcp_orphan_retries`) doublings of 200 ms take
    /// (`retransmits_timed_out`).
    fn has_given_up(&self, now: Instant, since: Instant) -> bool {
        now.since(since) >= self.patience()
    }

    /// How long a silent peer is waited for.
    pub(super) fn patience(&self) -> Nanos {
        if let Some(limit) = self.options.user_timeout {
            return limit;
        }
        let retries = match self.is_orphan {
            true => self.orphan_retries(self.is_patient()),
            false => self.config.tcp_retries2,
        };
        self.sender.rtt().time_of_retries(LEAST_TIMEOUT, retries)
    }

    /// How often a connection without an application tries in vain. `grows` says that its timeouts
    /// still become longer (`tcp_orphan_retries`).
    fn orphan_retries(&self, grows: bool) -> u32 {
        match self.config.tcp_orphan_retries {
            _ if !grows && self.errors.has_soft() => 0,
            0 if grows => 8,
            retries => retries,
        }
    }

    /// Whether timeouts still become longer.
    fn is_patient(&self) -> bool {
        self.sender.rtt().rto() < self.sender.rtt().rto_max()
    }

    /// Whether a connection without an application, whose peer has not answered `since`, was reset
    /// for want of memory. Silence counts as more orphans.
    fn is_out_of_resources(&mut self, now: Instant, since: Instant) -> bool {
        if self.is_orphan {
            let longest = self.sender.rtt().rto_max().saturating_mul(2);
            let is_silent = now.since(since) > longest || !self.is_patient();
            let shift = u32::from(is_silent) + u32::from(self.errors.has_soft());
            self.check_resources(shift);
        }
        self.state == State::Closed
    }

    fn give_up(&mut self) {
        self.counters.add(Counter::AbortOnTimeout, 1);
        self.fail(self.errors.why_timed_out());
    }

    fn on_loss_probe(&mut self, now: Instant) {
        self.owed |= Owed::LOSS_PROBE;
        self.arm_retransmit(now);
    }

    fn on_reorder_timeout(&mut self, now: Instant) {
        match self.sender.on_reorder_timeout(now, &self.counters) {
            Some(wait) => self.arm_reorder(now, wait),
            None => self.resume_retransmit(now),
        }
    }

    /// Arms the end of RACK's reordering window in place of the timeout.
    pub(super) fn arm_reorder(&mut self, now: Instant, wait: Nanos) {
        let at = self.sender.reordering_over_at(now, wait);
        self.deadlines.set_retransmit(Deadline::Reorder, at);
    }

    /// Zero-window probe (RFC 9293 section 3.8.6.1; `tcp_probe_timer`).
    fn on_probe_timeout(&mut self, now: Instant) {
        if self.sender.has_unacked() || !self.has_waiting() {
            self.liveness.end_window_probes();
            return;
        }
        let since = self.liveness.stall(now);
        if self.is_out_of_resources(now, since) {
            return;
        }
        let is_over = self.options.user_timeout.is_some_and(|limit| now.since(since) >= limit);
        if is_over || self.has_probed_enough() {
            self.give_up();
            return;
        }
        self.liveness.count_window_probe();
        self.owed |= Owed::ZERO_WINDOW_PROBE;
    }

    /// Whether a closed window is probed no more. Each answer begins the count of probes anew, so a
    /// peer that answers may keep its window closed for ever; but without an application only while
    /// the time between two probes still becomes longer.
    fn has_probed_enough(&self) -> bool {
        let probes = self.liveness.probes_out();
        if !self.is_orphan {
            return probes >= self.config.tcp_retries2;
        }
        let doublings = self.liveness.window_backoff();
        let grows = self.sender.window_probe_wait(doublings) < self.sender.rtt().rto_max();
        let retries = self.orphan_retries(grows);
        probes >= retries || !grows && u32::from(doublings) >= retries
    }

    /// When an ACK or data in order last came (`keepalive_time_elapsed`).
    fn last_heard(&self) -> Instant {
        self.liveness.last_heard().max(self.receiver.last_data())
    }

    /// Arms the keepalive timer, if asked for.
    pub(super) fn arm_keepalive(&mut self, now: Instant) {
        if !self.options.keepalive || !self.state.is_synchronized() {
            self.deadlines.clear(Deadline::Keepalive);
            return;
        }
        let quiet = now.since(self.last_heard());
        let wait = self.keepalive_idle().saturating_sub(quiet);
        self.deadlines.set(Deadline::Keepalive, now + wait);
    }

    /// Silence before the first keepalive probe.
    fn keepalive_idle(&self) -> Nanos {
        let default = Nanos::from_secs(u64::from(self.config.tcp_keepalive_time));
        self.options.keepalive_idle.unwrap_or(default).max(SOONEST)
    }

    /// Time between two keepalive probes.
    fn keepalive_interval(&self) -> Nanos {
        let default = Nanos::from_secs(u64::from(self.config.tcp_keepalive_intvl));
        self.options.keepalive_interval.unwrap_or(default).max(SOONEST)
    }

    fn on_keepalive(&mut self, now: Instant) {
        if !self.options.keepalive || !self.state.is_synchronized() {
            return;
        }
        let idle = self.keepalive_idle();
        let quiet = now.since(self.last_heard());
        let busy = self.sender.has_unacked() || self.has_waiting();
        if busy || quiet < idle {
            let again = if busy { now + idle } else { self.last_heard() + idle };
            self.deadlines.set(Deadline::Keepalive, again);
            return;
        }
        let limit = self.options.keepalive_count.unwrap_or(self.config.tcp_keepalive_probes);
        let by_user = self.options.user_timeout;
        let timed_out = match by_user {
            Some(limit) => quiet >= limit && self.liveness.probes_out() > 0,
            None => self.liveness.probes_out() >= limit,
        };
        if timed_out {
            self.give_up();
            self.owed |= Owed::RESET;
            return;
        }
        self.liveness.count_probe();
        self.owed |= Owed::KEEPALIVE;
        self.counters.add(Counter::KeepAlive, 1);
        self.deadlines.set(Deadline::Keepalive, now + self.keepalive_interval());
    }

    /// An orphan waits for the peer's FIN for `tcp_fin_timeout`, and for at least 3.5 timeouts
    /// (`tcp_fin_time`).
    pub(super) fn arm_orphan(&mut self, now: Instant) {
        let wait = Nanos::from_secs(u64::from(self.config.tcp_fin_timeout));
        let least = Nanos(self.sender.rtt().rto().0.saturating_mul(7) / 2);
        self.deadlines.set(Deadline::Orphan, now + wait.max(least));
    }

    fn on_orphan_timeout(&mut self) {
        self.fail(ConnectionError::TimedOut);
    }
}
