//! The one exit of a connection: the loop of gates, in Linux's order (`tcp_write_xmit`).
//!
//! Everything that leaves goes through [`Connection::transmit`]: resets, SYNs, retransmissions, new
//! data, probes and ACKs. A segment is committed only when the way down took it, so a refusal
//! leaves nothing to roll back. Cost per frame: one credit, one clone of its payload slices, one
//! indirect call, one scoreboard entry.

use super::deadlines::Deadline;
use super::{Connection, Fin, Owed, Room};
use crate::congestion::CaState;
use crate::counters::Counter;
use crate::receiver::{AckDue, AdvertisedWindow, REMEMBERED};
use crate::segment::{Ecn, Flags, Options, SackBlocks, Segment, Timestamps};
use crate::sender::scoreboard::MAX_SEGMENTS;
use crate::sender::send_queue::{More, Record};
use crate::seq::SeqNumber;
use crate::state::State;
use crate::time::{Instant, Nanos};
use crate::transmit::TxBlocked;
use crate::transmit::autosize::{self, Deferral, FlowRate, Sizes};
use crate::transmit::egress::{Egress, Verdict};
use crate::transmit::late::{LateQueue, Visit};
use crate::transmit::pacer::Executor;
use crate::transmit::small_queue::TxCredit;

/// Pure ACKs of one call at the most: they report all ranges out of order that are remembered,
/// three in each beside the timestamps. So no ACK is due when the call ends.
const MAX_ACKS: usize = REMEMBERED.div_ceil(3) + 1;

/// How far one call may go (`push_one` in Linux).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Push {
    /// As far as the gates allow.
    All,
    /// The same without Nagle and corks (`TCP_NAGLE_OFF`).
    Short,
    /// One frame, whatever cwnd and Nagle say: a tail loss probe.
    Probe,
}

/// One call of `transmit`: what it computes once.
pub(super) struct Pass<'a> {
    pub(super) egress: &'a mut dyn Egress,
    pub(super) now: Instant,
    /// Payload bytes of a full segment with today's options.
    pub(super) mss: u32,
    pub(super) options: Options,
    pub(super) sizes: Sizes,
    /// Payload bytes of the largest frame that the path takes.
    pub(super) gso_bytes: u32,
    /// Segments of the largest frame.
    pub(super) gso_segs: u32,
    /// Departures that are near each other are joined.
    joins_departures: bool,
    /// Payload bytes of new data that have left.
    sent: u32,
    /// The frame asks the peer for an answer (`tcp_write_wakeup`).
    pub(super) is_probe: bool,
}

impl Pass<'_> {
    /// Payload bytes of a frame of today's size.
    fn frame_bytes(&self) -> u32 {
        self.sizes.segments.saturating_mul(self.mss)
    }
}

impl Connection {
    /// Sends what is due and allowed, and returns why it stopped.
    ///
    /// The caller calls it after input, writes, deadlines and completions.
    pub fn transmit(&mut self, now: Instant, egress: &mut dyn Egress) -> TxBlocked {
        (self.gso, self.knows_way) = (egress.gso(), true);
        if !self.needs_way() {
            return self.rest(now);
        }
        self.adapt_queue(now);
        if let Some(seq) = self.rare.as_mut().and_then(|rare| rare.stray_reset.take()) {
            let reset = Segment { seq, flags: Flags::RST, ..Segment::default() };
            self.counters.add(Counter::OutRsts, 1);
            egress.enqueue(reset, now, None);
        }
        if self.owed.contains(Owed::RESET) {
            self.send_reset(now, egress);
        }
        let blocked = match self.state {
            State::Closed => TxBlocked::NotOpen,
            State::SynSent | State::SynReceived => {
                self.send_syn(now, egress);
                self.send_opening_ack(now, egress);
                TxBlocked::NotOpen
            }
            _ => self.transmit_open(now, egress),
        };
        let pacing = match blocked {
            TxBlocked::Pacing(_) => {
                let frame = u32::from(self.frame_segments).saturating_mul(self.sender.mss());
                let slack = Nanos(self.config.timer_slack_ns.into());
                let shares = egress.crowd().shares_wake_ups;
                self.sender.pacer().deadline(now, frame, slack, shares)
            }
            _ => Instant::FAR_FUTURE,
        };
        self.deadlines.set(Deadline::Pacing, pacing);
        self.stop(now, blocked);
        blocked
    }

    /// Returns whether [`transmit`](Self::transmit) needs the way down: there is something to send,
    /// or the connection does not know yet how large a frame that way takes, by which it cuts what
    /// is written. Otherwise [`rest`](Self::rest) does the same.
    ///
    /// Cost: some comparisons. Most visits of a socket bring nothing that could leave.
    pub fn needs_way(&mut self) -> bool {
        let is_open = !matches!(self.state, State::Closed | State::SynSent | State::SynReceived);
        !is_open
            || !self.knows_way
            || !self.owed.is_empty()
            || self.has_waiting()
            || self.receiver.ack_due() == AckDue::Now
            || self.rare.as_ref().is_some_and(|rare| rare.stray_reset.is_some())
            || self.sender.next_lost().is_some()
    }

    /// Tells that packets to the peer leave by another way, which may take larger frames or only
    /// smaller ones.
    pub fn on_way_change(&mut self) {
        self.knows_way = false;
    }

    /// Ends a visit at which nothing could be sent, as [`transmit`](Self::transmit) would. It is
    /// for callers whom [`needs_way`](Self::needs_way) has told so.
    pub fn rest(&mut self, now: Instant) -> TxBlocked {
        debug_assert!(!self.needs_way());
        self.adapt_queue(now);
        self.deadlines.clear(Deadline::Probe);
        self.deadlines.clear(Deadline::Pacing);
        self.stop(now, TxBlocked::NoData);
        TxBlocked::NoData
    }

    /// Takes up why the connection stopped.
    fn stop(&mut self, now: Instant, blocked: TxBlocked) {
        self.blocked = blocked;
        self.sender.on_blocked(now, blocked);
        self.settle_memory(now);
        self.check_space();
        let in_flight = self.sender.has_unacked();
        let starved = self.room == Room::Refused && !self.sender.has_unsent();
        self.chronograph.turn(now, blocked, in_flight, starved);
    }

    /// Learns whether the small-queue limit keeps the wire idle.
    fn adapt_queue(&mut self, now: Instant) {
        let empty = self.blocked == TxBlocked::SmallQueue && self.account.bytes() == 0;
        let idle = std::mem::take(&mut self.was_waived) || empty;
        if empty {
            self.sender.on_late_completion();
        }
        if !self.config.late_completions || (self.late_queue.is_none() && !idle) {
            return;
        }
        let delivered = self.sender.rate().delivered();
        let visit = Visit {
            now,
            idle,
            busy: !matches!(self.blocked, TxBlocked::NoData | TxBlocked::NotOpen),
            delivered,
            round: self.sender.rtt().srtt(),
        };
        let first = || Box::new(LateQueue::new(now, delivered));
        self.late_queue.get_or_insert_with(first).visit(&visit);
    }

    fn transmit_open(&mut self, now: Instant, egress: &mut dyn Egress) -> TxBlocked {
        if !self.is_started && self.has_waiting() && !self.sender.has_unacked() {
            // Window and rate have to be those after the idle time before a frame is sized.
            self.is_started = true;
            self.sender.start_after_idle(now, &self.config);
        }
        let options = self.options_of(now, true);
        let header = 20 + options.wire_len() as u32;
        let mss = self.current_mss(header);
        let gso = egress.gso();
        let flow = self.flow_rate(egress);
        let gso_bytes = gso.max_size.saturating_sub(self.path.ip_header + header);
        let gso_segs = gso.max_segs.min(MAX_SEGMENTS);
        let min_segs = self.sender.min_tso_segs(&self.config);
        let sizes = autosize::sizes(&self.config, &flow, mss, gso_bytes, gso_segs, min_segs);
        self.frame_segments = sizes.segments.min(u32::from(u8::MAX)) as u8;
        let executor = match (egress.holds_until_departure(), self.config.internal_pacing) {
            (true, _) => Executor::Path,
            (false, true) => Executor::Connection,
            (false, false) => Executor::Nobody,
        };
        self.sender.set_pacing_executor(executor);
        let joins_departures = autosize::joins_departures(&self.config, &flow);
        let mut pass = Pass {
            egress,
            now,
            mss,
            options,
            sizes,
            gso_bytes,
            gso_segs,
            joins_departures,
            sent: 0,
            is_probe: false,
        };

        if self.owed.contains(Owed::ZERO_WINDOW_PROBE) {
            self.send_window_probe(&mut pass);
        }
        if self.owed.take(Owed::KEEPALIVE)
            && !self.send_bare(&mut pass, self.sender.una() - 1, Flags::ACK)
            && pass.egress.has_way()
        {
            self.on_keepalive_dropped(now);
        }
        if self.owed.contains(Owed::LOSS_PROBE) {
            self.send_loss_probe(&mut pass);
        }
        let sent_before = self.sender.totals().bytes_sent;
        let mut stopped = None;
        if self.owed.take(Owed::NEW_DATA_FIRST) {
            stopped = self.send_new_first(&mut pass);
        }
        if stopped.is_none() {
            stopped = self.retransmit_lost(&mut pass);
        }
        let blocked = match stopped {
            Some(blocked) => blocked,
            None => self.send_new(&mut pass, Push::All),
        };
        let sent = self.sender.totals().bytes_sent - sent_before;
        if sent > 0 {
            pass.egress.count_load(sent, u16::from(flow.queue_boost) << 8);
        }
        self.send_owed_acks(&mut pass);
        self.arm_probe_timer(now, blocked);
        blocked
    }

    /// What the size of frames follows from now.
    fn flow_rate(&self, egress: &dyn Egress) -> FlowRate {
        let is_paced = self.sender.pacer().is_needed();
        FlowRate {
            pacing: self.sender.pacer().rate(),
            moved: self.sender.moved_rate(),
            load: if is_paced { None } else { egress.load() },
            is_paced,
            min_rtt: self.sender.rtt().min_rtt(),
            shift: egress.pacing_shift(),
            completes_at_once: egress.completes_on_enqueue(),
            queue_boost: self.late_queue.as_ref().map_or(0, |late| late.level()),
            lateness: match self.config.late_completions {
                true => egress.completion_lateness(),
                false => Nanos::ZERO,
            },
            crowd_segments: egress.crowd().segments,
        }
    }

    /// Sends new data before anything is sent again, as F-RTO asks. Returns what stopped it; `None`
    /// if no new data could leave: then the timeout counts as a real one, and what was lost is sent
    /// again at once (`tcp_xmit_recovery`).
    fn send_new_first(&mut self, pass: &mut Pass<'_>) -> Option<TxBlocked> {
        let before = self.sender.nxt();
        let blocked = self.send_new(pass, Push::Short);
        if self.sender.nxt() != before {
            return Some(blocked);
        }
        self.sender.give_up_frto();
        None
    }

    /// New data, gate after gate.
    fn send_new(&mut self, pass: &mut Pass<'_>, push: Push) -> TxBlocked {
        let mut sent_any = false;
        let blocked = loop {
            self.catch_up_time(pass);
            match self.next_frame(pass, push) {
                Err(blocked) => break blocked,
                Ok(bytes) => match self.send_frame(pass, bytes) {
                    Ok(()) => sent_any = true,
                    Err(blocked) => break blocked,
                },
            }
            if push == Push::Probe {
                break TxBlocked::NoData;
            }
        };
        let limited = self.blocked_by_cwnd || self.sender.cwnd_left() == 0;
        self.blocked_by_cwnd = false;
        if sent_any || limited {
            let no_space = self.room != Room::Enough;
            self.sender.validate_cwnd(pass.now, limited, no_space, &self.config);
        }
        if sent_any && push != Push::Probe {
            self.arm_loss_probe(pass.now, false);
        }
        match blocked {
            TxBlocked::SmallQueue => self.counters.add(Counter::SmallQueueThrottled, 1),
            TxBlocked::Pacing(_) => self.counters.add(Counter::PacingBlocked, 1),
            TxBlocked::Defer => self.counters.add(Counter::TsoDeferred, 1),
            _ => {}
        }
        blocked
    }

    /// Moves the time of the call, and that of the timestamp option, to what the host knows.
    pub(super) fn catch_up_time(&self, pass: &mut Pass<'_>) {
        let now = pass.egress.time(pass.now);
        if now > pass.now {
            pass.now = now;
            if let Some(timestamps) = &mut pass.options.timestamps {
                timestamps.value = self.timestamp(now);
            }
        }
    }

    /// The gates in front of one frame of new data: its payload bytes, or why not.
    fn next_frame(&mut self, pass: &Pass<'_>, push: Push) -> Result<u32, TxBlocked> {
        let unsent = self.sender.unsent();
        if unsent == 0 && self.fin != Fin::Queued {
            return Err(TxBlocked::NoData);
        }
        self.pacing_gate(pass)?;
        let quota = match (self.cwnd_quota(pass), push) {
            (0, Push::Probe) => 1,
            (0, _) => return Err(TxBlocked::Cwnd),
            (quota, _) => quota.min(pass.sizes.segments.max(self.owed_segments(pass))),
        };
        if push != Push::Probe && self.is_overfull() {
            self.counters.add(Counter::WqueueTooBig, 1);
            return Err(TxBlocked::Memory);
        }
        let window = self.sender.window_left();
        // No frame goes beyond the end of a record.
        let record = self.sender.first_record();
        if !self.first_segment_fits(pass.mss) {
            return Err(TxBlocked::Rwnd);
        }
        let is_last = record.len == unsent;
        let short_may_go = !is_last || self.short_may_go(push);
        // What ends a record cannot grow.
        let may_grow = is_last && !record.is_ended;
        let bytes = if record.len <= pass.mss {
            if record.len > 0 && record.len < pass.mss && !short_may_go {
                return Err(TxBlocked::Nagle);
            }
            if push == Push::All && may_grow && self.is_autocorked(record.len) {
                return Err(TxBlocked::Autocork);
            }
            record.len
        } else {
            if push != Push::Probe && self.must_defer(pass, window, record) {
                return Err(TxBlocked::Defer);
            }
            let bytes = autosize::split_point(record.len, window, pass.mss, quota, short_may_go);
            let partial = bytes % pass.mss;
            if bytes == record.len && may_grow && partial != 0 && self.will_autocork(partial) {
                bytes - partial
            } else {
                bytes
            }
        };
        self.small_queue_gate(pass, bytes, false)?;
        // The last gate, so that only those wait for a turn who could use it.
        if pass.egress.is_exhausted() {
            return Err(TxBlocked::Yield);
        }
        Ok(bytes)
    }

    /// Whether the peer's window has room for the first segment that waits: data, or a FIN alone.
    /// `mss` is the payload of a full segment, in bytes.
    pub(super) fn first_segment_fits(&self, mss: u32) -> bool {
        let fin_alone = u32::from(!self.sender.has_unsent());
        self.sender.window_left() >= self.sender.first_record().len.min(mss) + fin_alone
    }

    /// Internal pacing: nobody below holds frames, so the connection waits.
    pub(super) fn pacing_gate(&self, pass: &Pass<'_>) -> Result<(), TxBlocked> {
        match self.sender.pacer().wait(pass.now) {
            Some(next) if !self.leaves_with_last(pass, next) => Err(TxBlocked::Pacing(next)),
            _ => Ok(()),
        }
    }

    /// Whether a frame that is due at `next` leaves with those of this call, which were due. So one
    /// wake-up serves them all. They are no more than the small queue may hold.
    fn leaves_with_last(&self, pass: &Pass<'_>, next: Instant) -> bool {
        if !pass.joins_departures || pass.sent == 0 {
            return false;
        }
        let (frame, queue_bytes) = (pass.frame_bytes(), pass.sizes.queue_bytes);
        let limit = autosize::small_queue_limit(&self.config, queue_bytes, frame, false, true);
        u64::from(pass.sent) + u64::from(frame) <= limit
            && next.since(pass.now) + self.gap(pass) <= autosize::PACED_BURST
    }

    /// How long a frame of today's size takes at the pacing rate.
    fn gap(&self, pass: &Pass<'_>) -> Nanos {
        self.sender.pacer().rate().time_for(pass.frame_bytes().into())
    }

    /// Segments of a frame that a late host owes: they leave at once in any case, and a large frame
    /// costs the least. The small queue holds two such frames; each visit makes good as much.
    fn owed_segments(&self, pass: &Pass<'_>) -> u32 {
        let pacer = self.sender.pacer();
        let owed = pacer.owed(pass.now, &self.config);
        if owed == Nanos::ZERO || !self.config.tso_autosizing {
            return 0;
        }
        let bytes = pacer.rate().bytes_in(owed).min(pass.gso_bytes.into());
        (bytes as u32 / pass.mss.max(1)).min(pass.gso_segs)
    }

    /// Segments that cwnd leaves for one frame; at most half of it, so that two are in flight.
    /// Where departures are joined, a flow whose frames are acknowledged before the next is due has
    /// one in flight anyway. Then half of cwnd would be a bound that never grows: cwnd grows to
    /// twice of what was in flight.
    fn cwnd_quota(&self, pass: &Pass<'_>) -> u32 {
        let cwnd = self.sender.window().cwnd;
        let is_alone = || pass.joins_departures && self.gap(pass) > self.sender.rtt().srtt();
        let is_halved = self.config.half_cwnd && !is_alone();
        let most = if is_halved { (cwnd / 2).max(1) } else { cwnd };
        most.min(self.sender.cwnd_left())
    }

    /// Whether a segment below the MSS may go now (Nagle in Minshall's form, `TCP_CORK`).
    fn short_may_go(&self, push: Push) -> bool {
        if push != Push::All || self.fin == Fin::Queued {
            return true;
        }
        if self.sender.more() == More::Held {
            return false;
        }
        if self.push_override {
            return true;
        }
        if self.options.cork {
            return false;
        }
        let unacked_short =
            self.small_end.after(self.sender.una()) && !self.small_end.after(self.sender.nxt());
        self.options.nodelay || !self.sender.has_unacked() || !unacked_short
    }

    /// Whether a short write is held until a completion (`tcp_should_autocork`), which then comes
    /// back.
    fn is_autocorked(&mut self, short: u32) -> bool {
        if !self.may_autocork() || self.account.admit(self.autocork_limit(short)) {
            return false;
        }
        self.counters.add(Counter::AutoCorking, 1);
        true
    }

    /// Whether the short rest of a frame would be held behind the part that goes. It asks for no
    /// completion: were the part refused, its own end would be one.
    fn will_autocork(&self, short: u32) -> bool {
        self.may_autocork() && self.account.bytes() > self.autocork_limit(short)
    }

    fn may_autocork(&self) -> bool {
        self.config.tcp_autocorking
            && self.wrote
            && self.fin != Fin::Queued
            && self.sender.has_unacked()
    }

    /// Bytes below above which a short write waits: as for small queues, as much as the write
    /// itself is enough to wait for.
    fn autocork_limit(&self, short: u32) -> u64 {
        u64::from(short.saturating_add(self.config.skb_overhead)).saturating_sub(1)
    }

    fn must_defer(&mut self, pass: &Pass<'_>, window: u32, record: Record) -> bool {
        let sender = &self.sender;
        let left = sender.cwnd_left();
        let cwnd_bytes = u64::from(sender.window().cwnd) * u64::from(pass.mss);
        let unsent = sender.unsent();
        let len = record.len.min(self.size_goal());
        let ends_here = len == record.len && (record.is_ended || self.fin == Fin::Queued);
        let deferral = Deferral {
            in_recovery: sender.recovery().state() >= CaState::Recovery,
            now: pass.now,
            last_departure: sender.pacer().next_departure(),
            cwnd_left: u64::from(left) * u64::from(pass.mss),
            rwnd_left: u64::from(window),
            window: cwnd_bytes.min(u64::from(sender.wnd())),
            unsent,
            len,
            max_segs: pass.sizes.segments,
            mss: pass.mss,
            oldest_sent: sender.oldest_departure(),
            srtt: sender.rtt().srtt(),
            is_final: ends_here,
        };
        match autosize::should_defer(&self.config, &deferral) {
            None => false,
            Some(by) => {
                self.blocked_by_cwnd |= by == autosize::DeferredBy::Cwnd;
                true
            }
        }
    }

    /// The small-queue check for a frame of `bytes` (`tcp_small_queue_check`). It is waived while
    /// at most one frame is unacknowledged, or a device that completes late would stop the flow.
    pub(super) fn small_queue_gate(
        &mut self,
        pass: &Pass<'_>,
        bytes: u32,
        rtx: bool,
    ) -> Result<(), TxBlocked> {
        if !self.config.small_queues {
            return Ok(());
        }
        let truesize = bytes.saturating_add(self.config.skb_overhead);
        let (queue_bytes, is_paced) = (pass.sizes.queue_bytes, self.sender.pacer().is_spaced());
        let limit = autosize::small_queue_limit(&self.config, queue_bytes, truesize, rtx, is_paced);
        if self.sender.frames() < self.config.small_queue_spare as usize {
            self.was_waived |= self.account.bytes() >= limit;
            return Ok(());
        }
        // What is acknowledged has left, whether it is known to be complete or not.
        if self.config.late_completions && u64::from(self.sender.memory_in_flight()) < limit {
            return Ok(());
        }
        // Linux compares a count that is one too high with ">": a full limit refuses.
        if self.account.admit(limit.saturating_sub(1)) {
            Ok(())
        } else {
            Err(TxBlocked::SmallQueue)
        }
    }

    /// Takes `bytes` from the queue, sends them and, if the way down took them, commits.
    fn send_frame(&mut self, pass: &mut Pass<'_>, bytes: u32) -> Result<(), TxBlocked> {
        let record = self.sender.first_record();
        let ends_record = record.is_ended && record.len == bytes;
        // The FIN has a number of its own, and may be beyond the window.
        let has_room_for_fin = self.sender.window_left() > bytes;
        let payload = self.sender.take(bytes);
        let empties = !self.sender.has_unsent();
        let with_fin = empties && has_room_for_fin && self.fin == Fin::Queued;
        let seq = self.sender.nxt();
        let mut flags = Flags::ACK;
        flags.set(Flags::FIN, with_fin);
        let ends_write = empties && (with_fin || self.sender.more() == More::Unknown);
        let pushes = bytes > 0 && (ends_record || ends_write || pass.is_probe);
        flags.set(Flags::PSH, pushes || bytes > pass.mss);
        flags.set(Flags::CWR, self.sender.owes_cwr() && bytes > 0);
        let (mut segment, window) = self.segment(pass, seq, flags);
        segment.payload = payload.clone();
        if bytes > pass.mss {
            segment.gso_size = pass.mss as u16;
        }
        if self.sender.ecn() && bytes > 0 {
            segment.ecn = Ecn::Ect0;
        }
        let segments = segment.segments();
        let credit = TxCredit::charge(&self.account, bytes + self.config.skb_overhead);
        let ticket = credit.ticket();
        let departure = self.sender.pacer().departure(pass.now);
        let verdict = pass.egress.enqueue(segment, departure, Some(credit));
        if verdict == Verdict::Dropped {
            self.sender.put_back(payload);
            if pass.egress.has_way() {
                self.on_local_congestion(pass.now);
            }
            return Err(TxBlocked::Egress);
        }
        let was_empty = !self.sender.has_unacked();
        self.commit_departure(pass, bytes, segments, window);
        pass.sent = pass.sent.saturating_add(bytes);
        let mut marks = flags & (Flags::FIN | Flags::PSH);
        // That of a super-frame is for its receiver's GRO, not for the stream
        // (`__tcp_transmit_skb`).
        marks.set(Flags::PSH, pushes);
        let unit = pass.mss as u16;
        self.sender.on_sent(payload, marks, unit, segments, departure, ticket);
        if with_fin {
            self.fin = Fin::Sent;
        }
        if !bytes.is_multiple_of(pass.mss) {
            self.small_end = self.sender.nxt();
        }
        self.counters.add(Counter::OutSegs, u64::from(segments));
        self.counters.add(Counter::OrigDataSent, u64::from(segments));
        if flags.contains(Flags::CWR) {
            self.sender.on_cwr_sent();
        }
        self.wrote = false;
        self.push_override &= !empties;
        if was_empty || self.deadlines.is_armed(Deadline::LossProbe) || !self.has_retransmit_timer()
        {
            self.arm_retransmit(pass.now);
        }
        if verdict == Verdict::Congested {
            self.on_local_congestion(pass.now);
        }
        Ok(())
    }

    /// Bookkeeping common to new data and retransmissions, after the way down took the frame.
    pub(super) fn commit_departure(
        &mut self,
        pass: &Pass<'_>,
        bytes: u32,
        segments: u32,
        window: AdvertisedWindow,
    ) {
        self.is_started = false;
        // `blocked` is still that of the call before.
        let planned = self.sender.pacer().next_departure();
        if matches!(self.blocked, TxBlocked::Pacing(at) if at <= pass.now) {
            self.counters.lateness.record(pass.now.since(planned));
        }
        self.sender.on_departure(pass.now, bytes, segments, &self.config);
        self.segs_out += u64::from(segments);
        if bytes > 0 {
            self.receiver.on_data_sent(pass.now);
        }
        self.receiver.on_ack_sent(window);
    }

    /// A qdisc dropped or marked what we sent: reduce the window (`tcp_enter_cwr`).
    pub(super) fn on_local_congestion(&mut self, now: Instant) {
        self.counters.add(Counter::LocalCongestion, 1);
        self.sender.enter_cwr(now);
    }

    /// A segment with today's ACK, window and options.
    pub(super) fn segment(
        &mut self,
        pass: &mut Pass<'_>,
        seq: SeqNumber,
        mut flags: Flags,
    ) -> (Segment, AdvertisedWindow) {
        flags.set(Flags::ECE, self.receiver.ece());
        if !pass.options.sack.is_empty() {
            // A duplicate is reported by one segment.
            pass.options.sack = self.receiver.sack_blocks(self.sack_room());
        }
        let window = self.receiver.next_window();
        let segment = Segment {
            seq,
            ack: self.receiver.nxt(),
            flags,
            window: window.field,
            options: pass.options.clone(),
            ..Segment::default()
        };
        (segment, window)
    }

    /// The options of a segment that leaves now: timestamps, and SACK blocks while there are holes.
    pub(super) fn options_of(&self, now: Instant, with_sack: bool) -> Options {
        let timestamps = self
            .opening
            .timestamps
            .then(|| Timestamps { value: self.timestamp(now), echo: self.receiver.ts_recent() });
        let room = self.sack_room();
        let sack = if with_sack { self.receiver.sack_blocks(room) } else { SackBlocks::new() };
        Options { timestamps, sack, ..Options::default() }
    }

    /// SACK blocks that fit beside the other options.
    fn sack_room(&self) -> usize {
        if self.opening.timestamps { 3 } else { 4 }
    }

    /// The number of a pure ACK or a reset: SND.NXT, but no number beyond a window that the peer
    /// has taken back, since the peer would drop the segment (`tcp_acceptable_seq`). What the
    /// scale rounds off is not taken back, nor is a window that is not known yet.
    fn acceptable_seq(&self) -> SeqNumber {
        let (edge, nxt) = (self.sender.una() + self.sender.wnd(), self.sender.nxt());
        let is_beyond = self.sender.max_wnd() > 0
            && nxt.after(edge)
            && nxt.bytes_since(edge) >= 1 << self.opening.rcv_wscale;
        if is_beyond { edge } else { nxt }
    }

    /// A segment without data: pure ACK, probe, keepalive. Returns whether it was taken.
    fn send_bare(&mut self, pass: &mut Pass<'_>, seq: SeqNumber, flags: Flags) -> bool {
        let (segment, window) = self.segment(pass, seq, flags);
        // Pure ACKs never wait behind paced data, so their departure is now.
        let taken = pass.egress.enqueue(segment, pass.now, None) != Verdict::Dropped;
        if taken {
            self.segs_out += 1;
            self.counters.add(Counter::OutSegs, 1);
            self.receiver.on_ack_sent(window);
        }
        taken
    }

    /// The ACKs that no data carried; duplicates are reported by one each.
    fn send_owed_acks(&mut self, pass: &mut Pass<'_>) {
        for _ in 0..MAX_ACKS {
            if self.receiver.ack_due() != AckDue::Now {
                return;
            }
            if !self.send_bare(pass, self.acceptable_seq(), Flags::ACK) {
                return;
            }
        }
    }

    /// Zero-window probe (`tcp_write_wakeup`): as much as fits, or an old sequence number that
    /// makes the peer answer.
    fn send_window_probe(&mut self, pass: &mut Pass<'_>) {
        self.owed.remove(Owed::ZERO_WINDOW_PROBE);
        let window = self.sender.window_left();
        let unsent = self.sender.unsent();
        let closing = unsent == 0 && self.fin == Fin::Queued;
        let is_sent = if (unsent > 0 || closing) && window > 0 {
            let record = self.sender.first_record().len;
            pass.is_probe = true;
            let sent = self.send_frame(pass, record.min(window).min(pass.mss));
            pass.is_probe = false;
            sent.is_ok()
        } else {
            self.counters.add(Counter::WinProbe, 1);
            self.send_bare(pass, self.sender.una() - 1, Flags::ACK)
        };
        if !is_sent && pass.egress.has_way() {
            self.on_window_probe_dropped(pass.now);
        }
    }

    /// Tail loss probe (`tcp_send_loss_probe`): new data or a FIN if one waits and the peer's
    /// window has room, else the last segment.
    fn send_loss_probe(&mut self, pass: &mut Pass<'_>) {
        self.owed.remove(Owed::LOSS_PROBE);
        if !self.sender.has_unacked() || self.sender.recovery().probe_is_out() {
            self.resume_retransmit(pass.now);
            return;
        }
        // New data that pacing or the small-queue limit holds back goes out by itself: it is no
        // reason to send old data again.
        let is_new = self.has_waiting() && self.first_segment_fits(pass.mss);
        let sent = if is_new {
            let before = self.sender.nxt();
            let _ = self.send_new(pass, Push::Probe);
            self.sender.nxt() != before
        } else {
            self.retransmit_tail(pass)
        };
        if sent {
            self.counters.add(Counter::LossProbes, 1);
            self.sender.on_probe_sent(!is_new);
            self.arm_retransmit(pass.now);
        } else {
            self.resume_retransmit(pass.now);
        }
    }

    /// SYN, or SYN-ACK of a simultaneous open.
    fn send_syn(&mut self, now: Instant, egress: &mut dyn Egress) {
        if !self.owed.take(Owed::SYN) {
            return;
        }
        let segment = self.syn_segment(now);
        // A SYN that the qdisc drops is sent again by its timer.
        if egress.enqueue(segment, now, None) != Verdict::Dropped {
            self.segs_out += 1;
            self.count_syn();
        } else if egress.has_way() {
            self.on_syn_dropped(now);
        }
        self.opening.sent_at = now;
    }

    /// Counts a SYN that left (`__tcp_retransmit_skb`). The SYN-ACK of a passive open counts as one
    /// of a listener, each time as a segment that was sent (`tcp_make_synack`).
    fn count_syn(&mut self) {
        let is_first = self.opening.is_first_syn();
        if is_first || self.opening.is_passive() {
            self.counters.add(Counter::OutSegs, 1);
        }
        if !is_first {
            self.counters.add(Counter::RetransSegs, 1);
            self.counters.add(Counter::SynRetrans, 1);
            self.sender.on_syn_retransmitted();
        }
    }

    /// The answer to an invalid segment in SYN-RECEIVED.
    fn send_opening_ack(&mut self, now: Instant, egress: &mut dyn Egress) {
        if self.state != State::SynReceived || self.receiver.ack_due() != AckDue::Now {
            return;
        }
        let window = self.receiver.next_window();
        let segment = Segment {
            seq: self.sender.nxt(),
            ack: self.receiver.nxt(),
            flags: Flags::ACK,
            window: window.field,
            options: self.options_of(now, true),
            ..Segment::default()
        };
        if egress.enqueue(segment, now, None) != Verdict::Dropped {
            self.segs_out += 1;
            self.counters.add(Counter::OutSegs, 1);
            self.receiver.on_ack_sent(window);
        }
    }

    fn send_reset(&mut self, now: Instant, egress: &mut dyn Egress) {
        self.owed.remove(Owed::RESET);
        let segment = Segment {
            seq: self.acceptable_seq(),
            ack: self.receiver.nxt(),
            flags: Flags::RST | Flags::ACK,
            options: self.options_of(now, false),
            ..Segment::default()
        };
        self.counters.add(Counter::OutRsts, 1);
        egress.enqueue(segment, now, None);
    }

    /// Nothing is in flight and something waits: only the probe timer will bring us back.
    fn arm_probe_timer(&mut self, now: Instant, blocked: TxBlocked) {
        let alone =
            !self.sender.has_unacked() && self.has_waiting() && blocked != TxBlocked::NoData;
        if !alone {
            self.deadlines.clear(Deadline::Probe);
        } else if !self.deadlines.is_armed(Deadline::Probe) {
            self.arm_window_probe(now);
        }
    }
}
