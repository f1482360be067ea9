//! Intake of a segment's data: in order, out of order, old, or outside the window.

use super::ack::{Estimates, MAX_QUICKACKS, SegmentSize};
use super::queue::{ByteQueue, COPY_BREAK};
use super::{Is, Receiver};
use crate::counters::Counter;
use crate::segment::{Ecn, Flags, Payload, Segment};
use crate::seq::SeqNumber;
use crate::time::Instant;

/// No payload is longer: one that claims to be is outside every window.
const LONGEST: u32 = 1 << 30;
/// Bytes of a TCP header without options.
const HEADER: u32 = 20;
/// Bytes of the timestamp option with its padding.
const TIMESTAMPS: u32 = 12;
/// Duplicate ACKs owed at the most.
const MAX_DUP_ACKS: u8 = 16;

/// Place to which the data of a segment went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The segment had neither data nor FIN.
    Empty,
    /// The data, or a FIN, was in order and can be read.
    InOrder,
    /// The data is kept until the bytes before it arrive.
    OutOfOrder,
    /// All of the data had arrived before.
    Duplicate,
    /// The data lay outside the window and was dropped.
    OutOfWindow,
    /// There was no memory for the data, or it was not worth its memory, and it was dropped.
    Dropped,
}

/// Result of [`Receiver::on_segment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intake {
    /// Place to which the data went.
    pub disposition: Disposition,
    /// Bytes that became readable, those from the out-of-order queue included.
    pub readable: u32,
    /// Whether the FIN is in order since this segment. The stream ends behind what can be read.
    pub fin: bool,
}

impl Receiver {
    /// Takes data and FIN of a segment that passed the checks of RFC 9293 section 3.10.7.4, in
    /// order or not.
    ///
    /// The payload is moved out of the segment. Data outside the window is cut off.
    /// [`ack_due`](Self::ack_due) says afterwards whether an ACK has to be sent. `estimates` come
    /// from the sender.
    pub fn on_segment(
        &mut self,
        now: Instant,
        segment: &mut Segment,
        estimates: Estimates,
    ) -> Intake {
        let payload = core::mem::take(&mut segment.payload);
        let syn = segment.flags.contains(Flags::SYN);
        let seq = segment.seq + u32::from(syn);
        let fin = segment.flags.contains(Flags::FIN);
        if segment.flags.contains(Flags::CWR) {
            self.on_cwr(!payload.is_empty());
        }
        if payload.is_empty() && !fin {
            return Intake { disposition: Disposition::Empty, readable: 0, fin: false };
        }
        if let Some(timestamps) = segment.options.timestamps {
            let full = payload.len() >= self.ack.rcv_mss();
            let drained = self.queue.is_empty();
            self.window.measure_by_echo(estimates.tsval, timestamps.echo, full, drained);
        }
        let received = self.received;
        let was_finished = self.is_finished();
        let disposition = self.take(now, segment, seq, payload, fin, estimates);
        self.settle_memory(now);
        self.check_ack(now, estimates);
        let readable = (self.received - received) as u32;
        Intake { disposition, readable, fin: self.is_finished() && !was_finished }
    }

    /// `tcp_data_queue`.
    fn take(
        &mut self,
        now: Instant,
        segment: &Segment,
        mut seq: SeqNumber,
        mut payload: Payload,
        mut fin: bool,
        estimates: Estimates,
    ) -> Disposition {
        if payload.len() > LONGEST {
            return self.refuse_out_of_window();
        }
        let end = seq + payload.len() + u32::from(fin);
        if end.at_or_before(self.nxt) {
            self.ack.enter_quick(self.window.wnd(), MAX_QUICKACKS);
            self.ack.schedule();
            self.set_dsack(seq, end);
            return Disposition::Duplicate;
        }
        if seq.before(self.nxt) {
            self.set_dsack(seq, self.nxt);
            payload.advance(self.nxt.bytes_since(seq));
            seq = self.nxt;
            self.ack.schedule_now();
        }
        // A FIN needs no buffer: at the edge it is taken even if the window is closed.
        let last = self.fin.map_or(self.adv(), |fin_seq| fin_seq.earlier(self.adv()));
        let bare = payload.is_empty();
        if self.is_finished() || seq.after(last) || (seq == last && !bare) {
            return self.refuse_out_of_window();
        }
        let room = last.bytes_since(seq);
        if payload.len() > room {
            payload.truncate(room);
            fin = false;
            self.counters.add(Counter::OutOfWindow, 1);
            self.ack.schedule_now();
        }
        let size = SegmentSize {
            len: payload.len(),
            gso_size: u32::from(segment.gso_size).min(payload.len()),
            options: segment.options.wire_len() as u32,
            flags: segment.flags,
        };
        let at = self.received + u64::from(seq.bytes_since(self.nxt));
        if seq == self.nxt {
            let has_room = self.make_room(now, at);
            if !has_room && !bare && self.is_refused_by_host() {
                self.counters.add(Counter::RcvQDrop, 1);
                self.ack.schedule_now();
                return Disposition::Dropped;
            }
            let copy_break = if has_room { COPY_BREAK } else { usize::MAX };
            let (had_holes, end) = (self.has_holes(), at + u64::from(payload.len()));
            self.append(at, payload, copy_break);
            self.queue.date_kept(now);
            if size.len > 0 {
                self.on_data(now, segment.ecn, size, estimates);
            }
            self.after_data(end, fin, had_holes);
            Disposition::InOrder
        } else {
            self.on_ecn(segment.ecn);
            let segments = segment.segments();
            self.take_out_of_order(now, at, payload, fin, size, segments)
        }
    }

    /// Whether the memory of the host is used up, so that data in order has to come again. A
    /// connection whose reader has nothing left to read is not refused (`tcp_data_queue`).
    fn is_refused_by_host(&self) -> bool {
        !self.queue.is_empty() && !self.is_admitted(self.rmem_alloc())
    }

    /// Whether the host lets a connection take more that holds so many bytes for its reader.
    fn is_admitted(&self, memory: u32) -> bool {
        self.counters.memory.admits(memory, self.config.tcp_rmem.min)
    }

    fn refuse_out_of_window(&mut self) -> Disposition {
        self.counters.add(Counter::OutOfWindow, 1);
        self.ack.enter_quick(self.window.wnd(), MAX_QUICKACKS);
        self.ack.schedule();
        Disposition::OutOfWindow
    }

    /// Data in order, and what waited for it. Slices of at most `copy_break` bytes are copied.
    fn append(&mut self, at: u64, mut payload: Payload, copy_break: usize) {
        self.dup_acks = 0;
        let end = at + u64::from(payload.len());
        if self.first_out_of_order().is_some_and(|first| first < end) {
            let inserted = self.reassembly.get_or_insert_default().insert(at, payload);
            if let Some(part) = inserted.duplicate {
                self.extend_dsack(self.seq_at(part.start), self.seq_at(part.end));
            }
        } else if !payload.is_empty() {
            self.advance(payload.len());
            self.queue.push(&mut payload, copy_break);
        }
        while let Some(range) = self.take_reassembled() {
            self.advance(range.len());
            self.queue.append(range, copy_break);
        }
    }

    /// A segment in order has ended at `end`.
    fn after_data(&mut self, end: u64, fin: bool, had_holes: bool) {
        if fin && end >= self.received {
            // What lies behind a FIN is no data of this stream.
            self.fin = Some(self.seq_at(self.received));
            self.reassembly = None;
        }
        if self.fin == Some(self.seq_at(self.received)) {
            self.finish();
        }
        if had_holes && !self.has_holes() {
            // RFC 5681 section 4.2: at once when the last gap is filled.
            self.ack.schedule_now();
        }
    }

    fn advance(&mut self, bytes: u32) {
        self.nxt += bytes;
        self.received += u64::from(bytes);
    }

    fn first_out_of_order(&self) -> Option<u64> {
        self.reassembly.as_ref()?.first()
    }

    /// The position behind the last byte that waits out of order.
    pub(super) fn out_of_order_end(&self) -> Option<u64> {
        self.reassembly.as_ref()?.end()
    }

    /// What waited for the bytes received so far.
    fn take_reassembled(&mut self) -> Option<ByteQueue> {
        let reassembly = self.reassembly.as_mut()?;
        let range = reassembly.take(self.received);
        if reassembly.is_empty() {
            self.reassembly = None;
        }
        range
    }

    /// `tcp_fin`: nothing is left to report.
    fn finish(&mut self) {
        self.is |= Is::FINISHED;
        self.nxt += 1;
        self.reassembly = None;
        self.dsack = None;
        self.ack.schedule_now();
    }

    /// `tcp_event_data_recv`.
    fn on_data(&mut self, now: Instant, ecn: Ecn, size: SegmentSize, estimates: Estimates) {
        self.measure_mss(size);
        self.window.measure_by_window(now, self.nxt);
        self.ack.on_data(now, self.window.wnd(), estimates.rto);
        self.on_ecn(ecn);
        if size.len >= 128 {
            self.grow_window(size.len);
        }
    }

    fn measure_mss(&mut self, size: SegmentSize) {
        let options = if self.is.contains(Is::TIMESTAMPS) { TIMESTAMPS } else { 0 };
        if self.ack.measure(size, self.window.advmss(), HEADER + options) {
            self.window.rescale(size.len);
        }
    }

    fn grow_window(&mut self, len: u32) {
        if self.counters.memory.is_under_pressure() {
            return;
        }
        let memory = self.rmem_alloc();
        if self.window.grow(&self.config, memory, len, self.ack.rcv_mss()) {
            self.ack.hint_quick(true);
        }
    }

    /// `tcp_data_queue_ofo`.
    fn take_out_of_order(
        &mut self,
        now: Instant,
        at: u64,
        payload: Payload,
        fin: bool,
        size: SegmentSize,
        segments: u32,
    ) -> Disposition {
        let end = at + u64::from(payload.len());
        self.ack.schedule();
        self.dup_acks = self.dup_acks.saturating_add(1).min(MAX_DUP_ACKS);
        if fin && self.fin.is_none() && self.out_of_order_end().is_none_or(|last| last <= end) {
            self.fin = Some(self.seq_at(end));
        }
        self.is.set(Is::FIN_IS_LATEST, fin && payload.is_empty());
        if payload.is_empty() {
            return Disposition::OutOfOrder;
        }
        if !self.make_room(now, at) || !self.is_worth_keeping(at, payload.len()) {
            self.counters.add(Counter::OFODrop, 1);
            return Disposition::Dropped;
        }
        self.measure_mss(size);
        self.counters.add(Counter::OFOQueue, 1);
        self.ofo_segments = self.ofo_segments.saturating_add(segments);
        let inserted = self.reassembly.get_or_insert_default().insert(at, payload);
        if let Some(part) = inserted.duplicate {
            self.set_dsack(self.seq_at(part.start), self.seq_at(part.end));
        }
        if inserted.new == 0 {
            return Disposition::Duplicate;
        }
        if self.is.contains(Is::SACK) {
            self.grow_window(size.len);
        }
        if !self.counters.memory.is_under_pressure() {
            self.window.make_room_beyond(&self.config, self.beyond());
        }
        Disposition::OutOfOrder
    }

    /// Whether out-of-order data with `bytes` more at `at` would be worth the memory that it takes.
    /// What lies behind `at` is given up for it if need be.
    fn is_worth_keeping(&mut self, at: u64, bytes: u32) -> bool {
        let Some(reassembly) = &mut self.reassembly else { return true };
        if reassembly.is_worth(bytes) {
            return true;
        }
        if reassembly.prune_to_worth(at) > 0 {
            self.counters.add(Counter::OfoPruned, 1);
        }
        reassembly.is_worth(bytes)
    }

    /// Makes sure that memory is within the buffer, and that the host grants more of it, before
    /// data at `at` is taken. Slices are copied together and out-of-order data behind `at` is given
    /// up if need be (`tcp_prune_queue`). Whether it is so then.
    fn make_room(&mut self, now: Instant, at: u64) -> bool {
        let memory = self.rmem_alloc();
        let is_full = !self.window.fits(memory);
        if !is_full && self.is_admitted(memory) {
            return true;
        }
        self.counters.add(Counter::PruneCalled, 1);
        if is_full {
            self.ack.hint_quick(false);
            let may_grow = self.counters.memory.lets_buffers_grow();
            self.window.on_overrun(&self.config, memory, may_grow);
        }
        if self.counters.memory.is_under_pressure() {
            self.window.hold_back();
        }
        if self.window.fits(memory) && self.is_admitted(memory) {
            return true;
        }
        let collapsed = self.queue.collapse();
        self.counters.add(Counter::RcvCollapsed, collapsed.into());
        loop {
            self.settle_memory(now);
            let memory = self.rmem_alloc();
            if self.window.fits(memory) && self.is_admitted(memory) {
                return true;
            }
            // Some at a time, so that not every segment of a flood pays for a walk.
            let goal = memory.min(self.window.rcvbuf()).saturating_sub(self.window.rcvbuf() / 8);
            let queued = self.queue.charge();
            let pruned = self.reassembly.as_mut().map_or(0, |reassembly| {
                reassembly.prune(at, |held, _| queued.saturating_add(held) > goal)
            });
            if pruned == 0 {
                self.counters.add(Counter::RcvPruned, 1);
                return false;
            }
            self.counters.add(Counter::OfoPruned, 1);
        }
    }

    /// `tcp_data_ecn_check`.
    fn on_ecn(&mut self, ecn: Ecn) {
        if !self.is.contains(Is::ECN) {
            return;
        }
        match ecn {
            // Without a codepoint after one was seen: a retransmission, so the window is small.
            Ecn::NotEct if self.is.contains(Is::ECN_SEEN) => {
                self.ack.enter_quick(self.window.wnd(), 2);
            }
            Ecn::NotEct => {}
            Ecn::Ce => {
                if !self.is.contains(Is::DEMAND_CWR) {
                    self.ack.enter_quick(self.window.wnd(), 2);
                }
                self.is |= Is::DEMAND_CWR | Is::ECN_SEEN;
            }
            Ecn::Ect0 | Ecn::Ect1 => self.is |= Is::ECN_SEEN,
        }
    }

    /// `tcp_ecn_accept_cwr`: the sender's window may be one segment, so its data is acknowledged at
    /// once.
    fn on_cwr(&mut self, has_data: bool) {
        self.is.remove(Is::DEMAND_CWR);
        if has_data && self.is.contains(Is::ECN) {
            self.ack.schedule_now();
        }
    }
}
