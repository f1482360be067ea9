//! Retransmissions: through the same gates as new data, with twice the small-queue room
//! (`tcp_xmit_retransmit_queue`).

use super::deadlines::Deadline;
use super::output::Pass;
use super::{Connection, Owed};
use crate::congestion::CaState;
use crate::counters::Counter;
use crate::segment::Flags;
use crate::sender::scoreboard::{RetransmittedCopy, Run};
use crate::transmit::TxBlocked;
use crate::transmit::egress::Verdict;
use crate::transmit::small_queue::TxCredit;

impl Connection {
    /// Retransmits what is marked lost: `None` when nothing is left to retransmit, else the gate.
    pub(super) fn retransmit_lost(&mut self, pass: &mut Pass<'_>) -> Option<TxBlocked> {
        let timed_out = self.owed.take(Owed::RETRANSMIT_HEAD);
        // An ACK since then may have shown that nothing was lost.
        if timed_out
            && self.sender.recovery().state() == CaState::Loss
            // The timeout's own retransmission passes pacing and small queues.
            && let Some(first) = self.sender.head_to_retransmit()
            && let Err(blocked) = self.retransmit(pass, first, 1, false)
        {
            if blocked == TxBlocked::Egress && pass.egress.has_way() {
                self.on_retransmission_dropped(pass.now);
            }
            return Some(blocked);
        }
        while let Some(run) = self.sender.next_lost() {
            self.catch_up_time(pass);
            let gate = self.retransmit_gates(pass);
            match gate.and_then(|segments| self.retransmit(pass, run, segments, false)) {
                Ok(()) => {}
                // What new data could pass, must not pass what is lost.
                Err(blocked) => return Some(blocked),
            }
        }
        None
    }

    /// Pacing, window and small queue, in this order: how many segments may go.
    fn retransmit_gates(&mut self, pass: &Pass<'_>) -> Result<u32, TxBlocked> {
        self.pacing_gate(pass)?;
        let room = self.sender.cwnd_left();
        if room == 0 {
            return Err(TxBlocked::Cwnd);
        }
        let segments = room.min(pass.sizes.segments);
        self.small_queue_gate(pass, segments.min(2) * pass.mss, true)?;
        Ok(segments)
    }

    /// Retransmits the last segment in flight (tail loss probe). Returns whether it went out.
    pub(super) fn retransmit_tail(&mut self, pass: &mut Pass<'_>) -> bool {
        match self.sender.tail() {
            Some(run) => self.retransmit(pass, run, 1, true).is_ok(),
            None => false,
        }
    }

    /// Sends at most `max` segments of the run once more, as a frame of their own.
    fn retransmit(
        &mut self,
        pass: &mut Pass<'_>,
        run: Run,
        max: u32,
        is_probe: bool,
    ) -> Result<(), TxBlocked> {
        let original = self.sender.frame(run.index);
        let ticket = original.map(|sent| sent.ticket);
        // Options that were not there when it was cut may have made segments smaller since.
        let unit = original.map_or(pass.mss, |sent| u32::from(sent.unit));
        let unit = unit.max(1);
        let max = max.min(pass.gso_bytes / unit).min(pass.gso_segs * pass.mss / unit);
        // The peer would drop what is beyond a window that it has taken back.
        let left = self.sender.window_for(run);
        if left == 0 {
            return Err(TxBlocked::Rwnd);
        }
        // None if the window ends within the first one, which is cut there.
        let max = if left < unit { 0 } else { max.clamp(1, left / unit) };
        if ticket.is_some_and(|ticket| self.account.holds(ticket)) {
            // The original is still below; its completion brings us back.
            self.counters.add(Counter::SpuriousRtxHostQueues, 1);
            return Err(TxBlocked::SmallQueue);
        }
        if self.is_too_fragmented(run, max) {
            self.counters.add(Counter::WqueueTooBig, 1);
            return Err(TxBlocked::Cwnd);
        }
        let index = self.sender.isolate(run, max);
        if max == 0 {
            self.sender.shorten(index, left);
        } else if !is_probe {
            self.join_short(index, left.min(pass.mss));
        }
        let Some(sent) = self.sender.frame(index) else { return Ok(()) };
        let (seq, unit, marks) = (sent.seq, sent.unit, sent.flags);
        let payload = sent.payload.clone();
        let bytes = payload.len();
        let flags = Flags::ACK | (marks & (Flags::FIN | Flags::PSH));
        let (mut segment, window) = self.segment(pass, seq, flags);
        segment.payload = payload;
        let unit = u32::from(unit).min(pass.mss);
        if bytes > unit {
            segment.flags |= Flags::PSH;
            segment.gso_size = unit as u16;
        }
        let segments = segment.segments();
        let credit = TxCredit::charge(&self.account, bytes + self.config.skb_overhead);
        let ticket = credit.ticket();
        let departure = self.sender.pacer().departure(pass.now);
        let verdict = pass.egress.enqueue(segment, departure, Some(credit));
        if verdict == Verdict::Dropped {
            self.counters.add(Counter::RetransFail, u64::from(segments));
            if pass.egress.has_way() {
                self.on_local_congestion(pass.now);
            }
            return Err(TxBlocked::Egress);
        }
        self.commit_departure(pass, bytes, segments, window);
        let clock = self.timestamp(pass.now);
        let copy = RetransmittedCopy { bytes, segments, departure, ticket, clock, is_probe };
        self.sender.on_retransmitted(index, &copy);
        self.count_retransmission(segments);
        // The timeout counts from the last copy of the oldest segment, and takes the place of a
        // tail loss probe that was to come for the flight before (`tcp_xmit_retransmit_queue`).
        let is_head = index == 0 && !self.deadlines.is_armed(Deadline::Reorder);
        if is_head || !self.has_retransmit_timer() {
            self.arm_retransmit(pass.now);
        }
        Ok(())
    }

    /// Takes lost segments behind a short one along, as far as one segment of `most` bytes has room
    /// (`tcp_retrans_try_collapse`): messages, and the FIN, need not wait for a round trip each.
    fn join_short(&mut self, index: usize, most: u32) {
        if !self.config.tcp_retrans_collapse {
            return;
        }
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        while let Some(next) = self.sender.frame(index + 1)
            && !self.account.is_below(next.ticket)
            && self.sender.join_next(index, most)
        {}
    }

    /// Whether to cut one more frame in flight would let SACK blocks of single segments multiply
    /// the memory (`tcp_fragment`). The first and the last are always cut, so the flow moves.
    fn is_too_fragmented(&self, run: Run, max: u32) -> bool {
        self.is_overfull() && self.sender.must_cut_within(run, max)
    }

    fn count_retransmission(&self, segments: u32) {
        self.counters.add(Counter::RetransSegs, u64::from(segments));
        let which = match self.sender.recovery().state() {
            CaState::Loss => Counter::SlowStartRetrans,
            _ => Counter::FastRetrans,
        };
        self.counters.add(which, u64::from(segments));
    }
}
