//! Loss recovery: RACK-TLP (RFC 8985), PRR (RFC 6937), F-RTO (RFC 5682), undo by DSACK and by
//! timestamps (RFC 3708, RFC 4015), NewReno without SACK (RFC 6582), in Linux's arrangement.

use super::scoreboard::Sent;
use super::{AckFacts, Sender};
use crate::congestion::{CaState, CongestionEvent};
use crate::counters::{Counter, Counters};
use crate::segment::SackBlock;
use crate::seq::SeqNumber;
use crate::time::{Instant, Nanos};

/// RACK's state (RFC 8985 section 5.2).
#[derive(Clone, Copy, Debug, Default)]
struct Rack {
    /// Departure of the most recently sent segment that was delivered.
    sent_at: Instant,
    end: SeqNumber,
    rtt: Nanos,
    advanced: bool,
    /// A DSACK was seen since the window was adapted.
    dsack_seen: bool,
    /// Quarter-RTTs in the reordering window.
    steps: u32,
    /// Recoveries for which `steps` persists.
    persist: u8,
    last_delivered: u64,
    /// How often reordering was seen (`reord_seen`).
    reorderings: u32,
}

/// State of loss recovery.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// Congestion state.
    state: CaState,
    /// The episode ends when this is acknowledged.
    high_seq: SeqNumber,
    prior_cwnd: u32,
    /// Threshold before the reduction; 0 when it must not be restored.
    prior_ssthresh: u32,
    prr_delivered: u32,
    prr_out: u32,
    undo_marker: Option<SeqNumber>,
    /// Retransmissions not yet reported as duplicates; `None` when there were none to report.
    undo_retrans: Option<u32>,
    /// Timestamp clock at the first retransmission of the episode; `None` without one. A tail loss
    /// probe belongs to no episode.
    retrans_stamp: Option<u32>,
    frto: bool,
    /// The receiver gave up what it had SACKed, until the episode is over.
    is_reneging: bool,
    /// Timeouts in a row (`icsk_retransmits`).
    retransmits: u32,
    /// What a tail loss probe is waiting for.
    tlp: Option<Probe>,
    /// Probes in a row that a DSACK reported as needless.
    needless_probes: u8,
    /// Reordering degree in segments.
    reordering: u32,
    rack: Rack,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    high_seq: SeqNumber,
    was_retransmission: bool,
}

/// Order of sending after an ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterAck {
    /// New data passes the ordinary gates, after retransmissions if any are due.
    Ordinary,
    /// New data is sent before any retransmission (F-RTO).
    NewDataFirst,
}

impl Recovery {
    /// No loss yet; `reordering` is `tcp_reordering`.
    pub(super) fn new(reordering: u32) -> Self {
        Self { reordering, ..Self::default() }
    }

    /// Returns the state of congestion control.
    pub fn state(&self) -> CaState {
        self.state
    }

    /// Whether a tail loss probe is out that ends here.
    pub(super) fn is_end_of_probe(&self, end: SeqNumber) -> bool {
        self.tlp.is_some_and(|probe| probe.high_seq == end)
    }

    /// Returns the sequence number whose acknowledgment ends the episode.
    pub fn high_seq(&self) -> SeqNumber {
        self.high_seq
    }

    /// Returns by how many segments the network reorders at most (`tp->reordering`).
    pub fn reordering(&self) -> u32 {
        self.reordering
    }

    /// Returns how often reordering was seen (`tcpi_reord_seen`).
    pub fn reorderings(&self) -> u32 {
        self.rack.reorderings
    }

    /// Takes the last timeout for a real one: what was in flight is lost.
    pub(super) fn give_up_frto(&mut self) {
        self.frto = false;
    }

    /// Returns whether the receiver gave up what it had SACKed, which then counts as delivered
    /// twice (`is_sack_reneg`).
    pub(super) fn is_reneging(&self) -> bool {
        self.is_reneging
    }

    /// Returns whether SACK blocks tell of reordering. After a timeout that nothing can undo they
    /// do not, since everything counts as lost then.
    pub(super) fn may_see_reordering(&self) -> bool {
        self.state != CaState::Loss || self.undo_marker.is_some()
    }

    /// Returns the timeouts since the last acknowledgment (`icsk_retransmits`).
    pub fn timeouts_in_row(&self) -> u32 {
        self.retransmits
    }

    /// Counts a timeout. Returns whether it is the first of a row.
    pub(super) fn count_timeout(&mut self) -> bool {
        self.retransmits += 1;
        self.retransmits == 1
    }

    /// Something new was acknowledged: the row of timeouts is over.
    pub(super) fn end_row_of_timeouts(&mut self) {
        self.retransmits = 0;
    }

    /// Returns whether PRR is reducing the window.
    pub fn in_reduction(&self) -> bool {
        matches!(self.state, CaState::Cwr | CaState::Recovery)
    }

    /// Returns the slack before a tail loss probe: `first`, doubled for each needless probe, so
    /// that a peer that delays its ACKs is not probed each time.
    pub fn probe_slack(&self, first: Nanos) -> Nanos {
        first.saturating_mul(1 << self.needless_probes)
    }

    /// Returns whether a tail loss probe is out.
    pub fn probe_is_out(&self) -> bool {
        self.tlp.is_some()
    }

    /// Notes that segments were cut anew for a smaller MTU and count as lost, which is no
    /// congestion (`tcp_simple_retransmit`).
    pub fn on_resegmented(&mut self, nxt: SeqNumber) {
        if self.state != CaState::Loss {
            self.high_seq = nxt;
            self.undo_marker = None;
            self.prior_ssthresh = 0;
            self.state = CaState::Loss;
            self.frto = false;
        }
    }

    /// Forgets the threshold that an undo would bring back.
    pub fn forget_ssthresh(&mut self) {
        self.prior_ssthresh = 0;
    }

    /// Counts sent segments for PRR.
    pub fn count_sent(&mut self, segments: u32) {
        if self.in_reduction() {
            self.prr_out = self.prr_out.saturating_add(segments);
        }
    }

    /// Notes retransmitted segments, which may later be found spurious. `clock` is the timestamp
    /// clock of the retransmission.
    pub fn count_retransmitted(&mut self, segments: u32, clock: u32) {
        if self.state >= CaState::Recovery {
            self.retrans_stamp.get_or_insert(clock);
        }
        self.undo_retrans = Some(self.undo_retrans.unwrap_or(0).saturating_add(segments));
    }
}

impl Sender {
    /// RACK's reordering window is over. Returns how long to wait on.
    pub(super) fn end_reordering_window(
        &mut self,
        now: Instant,
        counters: &Counters,
    ) -> Option<Nanos> {
        self.recovery.rack.advanced = true;
        let (in_flight, lost) = (self.in_flight(), self.rate.lost());
        let wait = self.rack_mark_lost(now, counters);
        // Also where a copy that a timeout sent is lost: that is congestion anew.
        if self.in_flight() != in_flight && self.recovery.state != CaState::Recovery {
            self.enter_recovery(now, false, counters);
            if !self.controller.owns_window() {
                self.reduce(1, self.rate.lost().wrapping_sub(lost), false);
            }
        }
        wait
    }

    /// Notes that a tail loss probe was sent.
    pub fn on_probe_sent(&mut self, was_retransmission: bool) {
        self.recovery.tlp = Some(Probe { high_seq: self.nxt, was_retransmission });
    }

    /// RACK: a segment of `sent` was delivered that ends at `end` (RFC 8985 section 6.2 step 2).
    ///
    /// An ACK that comes sooner than any before is that of the original, not of the last copy, and
    /// so is one with an `echo` from before that copy.
    pub(super) fn rack_advance(
        &mut self,
        now: Instant,
        sent: &Sent,
        end: SeqNumber,
        echo: Option<u32>,
    ) {
        let rtt = now.since(sent.sent_at);
        let is_older = echo.is_some_and(|echo| (echo.wrapping_sub(sent.copy_clock) as i32) < 0);
        if sent.ever_retransmitted && (rtt < self.rtt.min_rtt() || is_older) {
            return;
        }
        let rack = &mut self.recovery.rack;
        rack.advanced = true;
        rack.rtt = rtt;
        if sent_after(sent.sent_at, end, rack.sent_at, rack.end) {
            rack.sent_at = sent.sent_at;
            rack.end = end;
        }
    }

    fn reordering_window(&self) -> Nanos {
        let recovery = &self.recovery;
        let rack = &recovery.rack;
        if rack.reorderings == 0 {
            let sacked = self.board.counts().sacked_out;
            if recovery.state >= CaState::Recovery || sacked >= recovery.reordering {
                return Nanos::ZERO;
            }
        }
        let quarter = match self.rtt.min_rtt() {
            Nanos::MAX => Nanos::ZERO,
            min => min / 4,
        };
        quarter.saturating_mul(u64::from(rack.steps.max(1))).min(self.rtt.srtt())
    }

    /// Adapts the reordering window to DSACKs (section 6.2 step 4), once per round trip.
    pub(super) fn adapt_reordering_window(&mut self, prior_delivered: u64) {
        let delivered = self.rate.delivered();
        let rack = &mut self.recovery.rack;
        if prior_delivered < rack.last_delivered {
            rack.dsack_seen = false;
        }
        if rack.dsack_seen {
            rack.steps = (rack.steps.max(1) + 1).min(255);
            rack.dsack_seen = false;
            rack.last_delivered = delivered;
            rack.persist = 16;
        } else if rack.persist == 0 {
            rack.steps = 1;
        }
    }

    /// Marks what RACK holds for lost (section 6.2 step 5). Returns how long to wait for what may
    /// still be reordering.
    pub(super) fn rack_mark_lost(&mut self, now: Instant, counters: &Counters) -> Option<Nanos> {
        if !self.recovery.rack.advanced {
            return None;
        }
        self.recovery.rack.advanced = false;
        let window = self.reordering_window();
        let rack = self.recovery.rack;
        let mut wait: Option<Nanos> = None;
        let rule = |sent: &Sent| {
            if !sent_after(rack.sent_at, rack.end, sent.sent_at, sent.seq) {
                // Never-retransmitted frames are in order of departure: none behind is older.
                return if sent.ever_retransmitted { Some(sent.seq) } else { None };
            }
            let due = sent.sent_at + rack.rtt + window;
            if due > now {
                let left = due.since(now);
                wait = Some(wait.map_or(left, |wait| wait.max(left)));
                return Some(sent.seq);
            }
            // Within one frame all segments left at once; those behind the delivered one wait.
            let same = sent.sent_at == rack.sent_at;
            Some(if same { rack.end } else { sent.end() })
        };
        self.lose(now, counters, |board, note| board.mark_lost(rule, note));
        wait
    }

    /// Classifies losses after an ACK (`tcp_identify_packet_loss`). Returns RACK's waiting time.
    fn identify_loss(
        &mut self,
        now: Instant,
        ack: &AckFacts,
        counters: &Counters,
    ) -> Option<Nanos> {
        if self.sack {
            return self.rack_mark_lost(now, counters);
        }
        let state = self.recovery.state;
        let duplicates = self.board.counts().sacked_out;
        if (state < CaState::Recovery && duplicates >= self.recovery.reordering)
            || (state == CaState::Recovery && ack.una_advanced)
        {
            self.lose(now, counters, |board, note| board.mark_head_lost(note));
        }
        None
    }

    /// The state machine of loss recovery (`tcp_fastretrans_alert`), for ACKs that are not plain.
    pub(super) fn react(&mut self, now: Instant, ack: &AckFacts, counters: &Counters) -> AfterAck {
        if ack.ece {
            self.recovery.prior_ssthresh = 0;
        }
        if self.recovery.state != CaState::Open && self.una.at_or_after(self.recovery.high_seq) {
            match self.recovery.state {
                CaState::Cwr if self.una != self.recovery.high_seq => {
                    self.end_reduction(now);
                    self.set_state(CaState::Open);
                }
                CaState::Recovery => {
                    if !self.sack {
                        self.board.set_reno_sacked(0);
                    }
                    let was_undone = self.try_undo_recovery(now, ack, counters);
                    if self.holds_state() {
                        return AfterAck::Ordinary;
                    }
                    if !was_undone {
                        self.end_reduction(now);
                    }
                    self.finish_episode();
                }
                _ => {}
            }
        }
        match self.recovery.state {
            CaState::Recovery => self.react_in_recovery(now, ack, counters),
            CaState::Loss => return self.react_in_loss(now, ack, counters),
            _ => self.react_when_open(now, ack, counters),
        }
        AfterAck::Ordinary
    }

    fn react_in_recovery(&mut self, now: Instant, ack: &AckFacts, counters: &Counters) {
        if !ack.una_advanced {
            self.add_reno_sacks(ack, counters);
        } else if self.try_undo_partial(now, ack, counters) {
            return;
        }
        if self.try_undo_dsack(now, counters) {
            self.try_open(now, ack);
        }
        self.reorder_wait = self.identify_loss(now, ack, counters).unwrap_or(Nanos::MAX);
        if self.recovery.state != CaState::Recovery && self.board.counts().lost_out > 0 {
            self.enter_recovery(now, ack.ece, counters);
        }
    }

    fn react_when_open(&mut self, now: Instant, ack: &AckFacts, counters: &Counters) {
        if !self.sack {
            if ack.una_advanced {
                self.board.set_reno_sacked(0);
            }
            self.add_reno_sacks(ack, counters);
        }
        if self.recovery.state <= CaState::Disorder {
            self.try_undo_dsack(now, counters);
        }
        self.reorder_wait = self.identify_loss(now, ack, counters).unwrap_or(Nanos::MAX);
        if self.board.counts().lost_out > 0 {
            self.enter_recovery(now, ack.ece, counters);
        } else {
            self.try_open(now, ack);
        }
    }

    fn react_in_loss(&mut self, now: Instant, ack: &AckFacts, counters: &Counters) -> AfterAck {
        let after = self.process_loss(now, ack, counters);
        let retrans_before = self.board.counts().retrans_out;
        self.reorder_wait = self.identify_loss(now, ack, counters).unwrap_or(Nanos::MAX);
        let lost_again = self.board.counts().retrans_out < retrans_before;
        // The timeout was spurious or is over. A segment that is lost now was lost apart from it.
        let has_ended = self.recovery.state <= CaState::Disorder;
        if (has_ended || lost_again) && self.board.counts().lost_out > 0 {
            self.enter_recovery(now, ack.ece, counters);
        }
        after
    }

    /// F-RTO and the way out of the loss state (`tcp_process_loss`).
    fn process_loss(&mut self, now: Instant, ack: &AckFacts, counters: &Counters) -> AfterAck {
        let recovered = self.una.at_or_after(self.recovery.high_seq);
        if ack.una_advanced && self.try_undo_loss(now, false, ack, counters) {
            return AfterAck::Ordinary;
        }
        if self.recovery.frto {
            // RFC 5682 step 3b: data that was never retransmitted arrived.
            if ack.original_delivered && self.try_undo_loss(now, true, ack, counters) {
                return AfterAck::Ordinary;
            }
            if self.nxt.after(self.recovery.high_seq) {
                if ack.newly_sacked > 0 || ack.is_duplicate {
                    self.recovery.frto = false;
                }
            } else if ack.una_advanced && !recovered {
                self.recovery.high_seq = self.nxt;
                let waits = !self.queue.is_empty() || ack.fin_waits;
                if waits && self.window_left() > 0 {
                    return AfterAck::NewDataFirst;
                }
                self.recovery.frto = false;
            }
        }
        if recovered {
            self.try_undo_recovery(now, ack, counters);
            if !self.holds_state() {
                self.finish_episode();
            }
            return AfterAck::Ordinary;
        }
        if !self.sack {
            if ack.una_advanced {
                self.board.set_reno_sacked(0);
            } else if self.nxt.after(self.recovery.high_seq) {
                self.add_reno_sacks(ack, counters);
            }
        }
        AfterAck::Ordinary
    }

    fn add_reno_sacks(&mut self, ack: &AckFacts, counters: &Counters) {
        if !self.sack && ack.is_duplicate {
            let sacked = self.board.counts().sacked_out;
            if self.board.set_reno_sacked(sacked + 1) {
                self.saw_reno_reordering(0, ack.max_reordering, counters);
            }
        }
    }

    /// Enters fast recovery (`tcp_enter_recovery`).
    fn enter_recovery(&mut self, now: Instant, ece: bool, counters: &Counters) {
        let which = if self.sack { Counter::SackRecovery } else { Counter::RenoRecovery };
        counters.add(which, 1);
        self.forget_retransmission_time();
        self.recovery.prior_ssthresh = 0;
        self.init_undo();
        if !self.recovery.in_reduction() {
            if !ece {
                self.recovery.prior_ssthresh = self.current_ssthresh();
            }
            self.init_reduction(now, CongestionEvent::Recovery);
        }
        self.set_state(CaState::Recovery);
        self.recovery.rack.persist = self.recovery.rack.persist.saturating_sub(1);
    }

    /// Reduces the window without loss: ECN echo or a local drop (`tcp_enter_cwr`).
    pub fn enter_cwr(&mut self, now: Instant) {
        self.recovery.prior_ssthresh = 0;
        if self.recovery.state < CaState::Cwr {
            self.recovery.undo_marker = None;
            self.init_reduction(now, CongestionEvent::Cwr);
            self.set_state(CaState::Cwr);
        }
    }

    /// A retransmission timeout: everything in flight counts as lost that had time to arrive
    /// (`tcp_enter_loss`).
    pub(super) fn enter_loss(
        &mut self,
        now: Instant,
        frto: bool,
        reordering: u32,
        counters: &Counters,
    ) {
        let is_new = self.recovery.state < CaState::Recovery;
        let reneged = self.board.front().is_some_and(Sent::begins_sacked);
        if reneged {
            counters.add(Counter::SACKReneging, 1);
            self.recovery.is_reneging = true;
        }
        let is_first_of_window = self.recovery.state <= CaState::Disorder
            || self.recovery.high_seq.at_or_before(self.una)
            || (self.recovery.state == CaState::Loss && self.recovery.retransmits == 0);
        if is_first_of_window {
            self.recovery.prior_ssthresh = self.current_ssthresh();
            self.recovery.prior_cwnd = self.window.cwnd;
            self.window.ssthresh = self.controller.ssthresh(now, &self.window).max(2);
        }
        // RFC 8985 section 6.3, without the reordering window (`tcp_timeout_mark_lost`).
        let recent = (self.sack && !reneged).then(|| now - self.recovery.rack.rtt);
        self.lose(now, counters, |board, note| board.mark_timed_out(recent, note));
        // Only what is still SACKed speaks against the degree: not duplicate ACKs without SACK, nor
        // what the peer has dropped.
        if self.recovery.state <= CaState::Disorder && self.board.counts().sacked_out >= reordering
        {
            self.recovery.reordering = self.recovery.reordering.min(reordering);
        }
        if is_first_of_window {
            // Copies that are given up now are none that a DSACK has to tell of.
            self.init_undo();
        }
        self.window.cwnd = self.board.counts().in_flight() + 1;
        self.window.cwnd_cnt = 0;
        self.set_state(CaState::Loss);
        self.controller.on_event(CongestionEvent::Loss, now, &mut self.window);
        self.recovery.high_seq = self.nxt;
        self.recovery.tlp = None;
        self.ecn_cwr_owed = self.ecn;
        self.recovery.frto = frto && (is_new || self.recovery.retransmits > 0);
    }

    fn init_undo(&mut self) {
        let recovery = &mut self.recovery;
        recovery.undo_marker = Some(self.una);
        let probe = recovery.tlp.is_some_and(|probe| probe.was_retransmission);
        let out = self.board.counts().retrans_out + u32::from(probe);
        recovery.undo_retrans = (out > 0).then_some(out);
    }

    fn init_reduction(&mut self, now: Instant, event: CongestionEvent) {
        self.recovery.high_seq = self.nxt;
        self.recovery.tlp = None;
        self.window.cwnd_cnt = 0;
        self.recovery.prior_cwnd = self.window.cwnd;
        self.recovery.prr_delivered = 0;
        self.recovery.prr_out = 0;
        self.window.ssthresh = self.controller.ssthresh(now, &self.window).max(2);
        self.controller.on_event(event, now, &mut self.window);
        self.ecn_cwr_owed = self.ecn;
    }

    /// Proportional rate reduction (RFC 6937 with the slow-start reduction bound).
    pub(super) fn reduce(&mut self, newly_acked_sacked: u32, newly_lost: u32, una_advanced: bool) {
        if newly_acked_sacked == 0 || self.recovery.prior_cwnd == 0 {
            return;
        }
        let in_flight = self.board.counts().in_flight();
        let recovery = &mut self.recovery;
        recovery.prr_delivered = recovery.prr_delivered.saturating_add(newly_acked_sacked);
        let ssthresh = self.window.ssthresh;
        let mut send = if in_flight > ssthresh {
            let dividend = u64::from(ssthresh) * u64::from(recovery.prr_delivered)
                + u64::from(recovery.prior_cwnd - 1);
            let total = (dividend / u64::from(recovery.prior_cwnd)) as u32;
            total.saturating_sub(recovery.prr_out)
        } else {
            let behind = recovery.prr_delivered.saturating_sub(recovery.prr_out);
            let mut send = behind.max(newly_acked_sacked);
            if una_advanced && newly_lost == 0 {
                send += 1;
            }
            send.min(ssthresh - in_flight)
        };
        // The first fast retransmission leaves in any case.
        send = send.max(u32::from(recovery.prr_out == 0));
        self.window.cwnd = in_flight + send;
    }

    /// The reduction is complete (`tcp_end_cwnd_reduction`).
    fn end_reduction(&mut self, now: Instant) {
        if self.controller.owns_window() {
            return;
        }
        let by_cwr = self.recovery.state == CaState::Cwr;
        if self.window.ssthresh < u32::MAX && (by_cwr || self.recovery.undo_marker.is_some()) {
            self.window.cwnd = self.window.ssthresh;
        }
        self.controller.on_event(CongestionEvent::Open, now, &mut self.window);
    }

    /// Whether the state stays until something beyond the episode is acknowledged
    /// (`tcp_is_non_sack_preventing_reopen`). Without SACK, what the episode sent again causes
    /// duplicate ACKs at its end, which are no sign of another loss (RFC 6582 section 3.2).
    fn holds_state(&mut self) -> bool {
        let holds = !self.sack && self.una == self.recovery.high_seq;
        if holds {
            self.forget_retransmission_time();
        }
        holds
    }

    /// The marks for an undo stay: DSACKs may still come for all that was sent again.
    fn finish_episode(&mut self) {
        self.recovery.frto = false;
        self.forget_retransmission_time();
        self.set_state(CaState::Open);
        self.keep_open();
    }

    /// Forgets when the first retransmission left, unless one may still be answered, so that the
    /// next episode is judged by its own (`tcp_retrans_stamp_cleanup`).
    fn forget_retransmission_time(&mut self) {
        let is_first_repeated = self.board.front().is_some_and(|sent| sent.ever_retransmitted);
        if self.board.counts().retrans_out == 0 && !is_first_repeated {
            self.recovery.retrans_stamp = None;
        }
    }

    fn set_state(&mut self, state: CaState) {
        self.recovery.state = state;
        self.recovery.is_reneging &= state >= CaState::Recovery;
    }

    /// Open, or Disorder while something is amiss (`tcp_try_keep_open`).
    fn keep_open(&mut self) {
        let counts = self.board.counts();
        let amiss = counts.sacked_out + counts.lost_out + counts.retrans_out > 0;
        let state = if amiss { CaState::Disorder } else { CaState::Open };
        if self.recovery.state != state {
            self.set_state(state);
            self.recovery.high_seq = self.nxt;
        }
    }

    fn try_open(&mut self, now: Instant, ack: &AckFacts) {
        self.forget_retransmission_time();
        if ack.ece {
            self.enter_cwr(now);
        }
        if self.recovery.state != CaState::Cwr {
            self.keep_open();
        }
    }

    /// The slow-start threshold that an undo restores.
    fn current_ssthresh(&self) -> u32 {
        if self.recovery.in_reduction() {
            self.window.ssthresh
        } else {
            let near = (self.window.cwnd / 2 + self.window.cwnd / 4).max(2);
            self.window.ssthresh.max(near)
        }
    }

    /// Whether the episode was for nothing: every retransmission was a duplicate, or the ACK was
    /// caused by a segment that left before the first retransmission (`tcp_may_undo`).
    fn may_undo(&self, ack: &AckFacts) -> bool {
        self.recovery.undo_marker.is_some()
            && (self.recovery.undo_retrans == Some(0) || self.is_delayed_original(ack))
    }

    /// Whether an ACK says that a segment was late and not lost (`tcp_packet_delayed`): it echoes a
    /// time before the first retransmission, or nothing was retransmitted yet, as small queues
    /// hold retransmissions back. Without SACK the stamp is gone when all of an episode is
    /// acknowledged, though there were retransmissions (`tcp_is_non_sack_preventing_reopen`).
    fn is_delayed_original(&self, ack: &AckFacts) -> bool {
        match (self.recovery.retrans_stamp, ack.ts_echo) {
            (Some(stamp), Some(echo)) => (echo.wrapping_sub(stamp) as i32) < 0,
            (Some(_), None) => false,
            (None, _) => self.sack || self.una.before(self.recovery.high_seq),
        }
    }

    fn undo(&mut self, now: Instant, unmark: bool) {
        if unmark {
            self.board.clear_lost();
        }
        if self.recovery.prior_ssthresh > 0 {
            if !self.controller.owns_window() {
                let prior = self.recovery.prior_cwnd;
                self.window.cwnd = self.window.cwnd.max(prior).min(self.window.clamp);
            }
            self.window.ssthresh = self.window.ssthresh.max(self.recovery.prior_ssthresh);
            self.ecn_cwr_owed = false;
            self.controller.on_event(CongestionEvent::Undo, now, &mut self.window);
        }
        self.recovery.undo_marker = None;
        self.recovery.undo_retrans = None;
        self.recovery.rack.advanced = true;
    }

    fn try_undo_recovery(&mut self, now: Instant, ack: &AckFacts, counters: &Counters) -> bool {
        if !self.may_undo(ack) {
            return false;
        }
        let by = if self.recovery.state == CaState::Loss {
            Counter::LossUndo
        } else {
            Counter::FullUndo
        };
        counters.add(by, 1);
        self.undo(now, false);
        true
    }

    /// Undoes the episode if the ACK that ends a hole is that of a late segment
    /// (`tcp_try_undo_partial`). Returns whether nothing may be marked lost now.
    fn try_undo_partial(&mut self, now: Instant, ack: &AckFacts, counters: &Counters) -> bool {
        if self.recovery.undo_marker.is_none() || !self.is_delayed_original(ack) {
            return false;
        }
        self.saw_reordering(ack.prior_una, Counter::TSReorder, ack, counters);
        // While a retransmission is out, its fate decides; hold the state.
        if self.board.counts().retrans_out > 0 {
            return true;
        }
        self.forget_retransmission_time();
        self.undo(now, true);
        counters.add(Counter::PartialUndo, 1);
        self.set_state(CaState::Open);
        self.keep_open();
        // Other segments may be lost all the same.
        false
    }

    fn try_undo_dsack(&mut self, now: Instant, counters: &Counters) -> bool {
        if self.recovery.undo_marker.is_none() || self.recovery.undo_retrans != Some(0) {
            return false;
        }
        counters.add(Counter::DSACKUndo, 1);
        self.undo(now, false);
        true
    }

    fn try_undo_loss(
        &mut self,
        now: Instant,
        by_frto: bool,
        ack: &AckFacts,
        counters: &Counters,
    ) -> bool {
        if !by_frto && !self.may_undo(ack) {
            return false;
        }
        self.undo(now, true);
        counters.add(Counter::LossUndo, 1);
        if by_frto {
            counters.add(Counter::SpuriousRTOs, 1);
        }
        self.recovery.retransmits = 0;
        self.recovery.frto = false;
        if !self.holds_state() && (by_frto || self.sack) {
            self.set_state(CaState::Open);
            self.keep_open();
        }
        true
    }

    /// A DSACK told of duplicates of `block`, which is `segments` long (`tcp_dsack_seen`,
    /// `tcp_check_dsack`). A timer sent a tail loss probe, so a wider reordering window would not
    /// have prevented that; nor would it have where nothing is reordered.
    pub(super) fn count_dsack(&mut self, block: SackBlock, segments: u32, of_probe: bool) {
        let end = block.right;
        self.recovery.rack.dsack_seen |= self.recovery.rack.reorderings > 0 && !of_probe;
        if self.recovery.undo_marker.is_some_and(|marker| end.after(marker))
            && let Some(left @ 1..) = self.recovery.undo_retrans
        {
            // The network may make duplicates, too. What was sent again is known only of what is in
            // flight (`tcp_sacktag_one`).
            let repeated = match end.after(self.una) {
                true => self.board.repeated_within(block.left, end),
                false => segments,
            };
            self.recovery.undo_retrans = Some(left.saturating_sub(repeated));
        }
    }

    /// A segment at `low` that was never retransmitted arrived after one behind it: the network
    /// reorders by the distance to the highest SACKed one (`tcp_check_sack_reordering`).
    pub(super) fn saw_reordering(
        &mut self,
        low: SeqNumber,
        counter: Counter,
        ack: &AckFacts,
        counters: &Counters,
    ) {
        let high = self.highest_delivered();
        if !low.before(high) {
            return;
        }
        counters.add(counter, 1);
        let segments = high.bytes_since(low).div_ceil(self.mss.max(1));
        let recovery = &mut self.recovery;
        if segments > recovery.reordering {
            recovery.reordering = segments.min(ack.max_reordering);
        }
        recovery.rack.reorderings = recovery.rack.reorderings.saturating_add(1);
    }

    /// More duplicate ACKs came than segments that are out can have caused: they were reordered by
    /// as much as the flight was, of which an ACK just took `acked` (`tcp_check_reno_reordering`).
    pub(super) fn saw_reno_reordering(&mut self, acked: u32, max: u32, counters: &Counters) {
        counters.add(Counter::RenoReorder, 1);
        let degree = (self.board.counts().packets_out + acked).min(max);
        self.recovery.reordering = self.recovery.reordering.max(degree);
        let rack = &mut self.recovery.rack;
        rack.reorderings = rack.reorderings.saturating_add(1);
    }

    /// An ACK while a tail loss probe is out (`tcp_process_tlp_ack`).
    pub(super) fn check_probe(&mut self, now: Instant, ack: &AckFacts, counters: &Counters) {
        let Some(probe) = self.recovery.tlp else { return };
        if self.una.before(probe.high_seq) {
            return;
        }
        if !probe.was_retransmission || ack.dsack_of_probe {
            self.recovery.tlp = None;
            if ack.dsack_of_probe {
                self.recovery.needless_probes = (self.recovery.needless_probes + 1).min(6);
            }
        } else if self.una.after(probe.high_seq) {
            self.recovery.needless_probes = 0;
            // No DSACK came for the probe, so it repaired a loss: reduce as fast recovery would.
            counters.add(Counter::LossProbeRecovery, 1);
            self.init_reduction(now, CongestionEvent::Cwr);
            self.set_state(CaState::Cwr);
            self.end_reduction(now);
            self.set_state(CaState::Open);
            self.keep_open();
        } else if ack.is_duplicate {
            self.recovery.tlp = None;
        }
    }
}

/// Whether (`a_time`, `a_end`) left after (`b_time`, `b_seq`) (`tcp_skb_sent_after`).
fn sent_after(a_time: Instant, a_end: SeqNumber, b_time: Instant, b_seq: SeqNumber) -> bool {
    a_time > b_time || (a_time == b_time && a_end.after(b_seq))
}
