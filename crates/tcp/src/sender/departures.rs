//! Departures: bytes move from the queue to the flight when the way down took them, and lost
//! segments are sent again.

use super::Sender;
use super::scoreboard::{End, RetransmittedCopy, Run, Sent};
use super::send_queue::Record;
use crate::config::Config;
use crate::segment::{Flags, Payload};
use crate::time::{Instant, Rate};
use crate::transmit::TxBlocked;
use crate::transmit::pacer::Executor;
use crate::transmit::small_queue::Ticket;

impl Sender {
    /// Returns which bytes the next frame of new data may carry.
    pub fn first_record(&self) -> Record {
        self.queue.first_record(self.nxt)
    }

    /// Takes the first `bytes` of the queue. [`on_sent`](Self::on_sent) or
    /// [`put_back`](Self::put_back) has to follow.
    pub fn take(&mut self, bytes: u32) -> Payload {
        self.queue.take(bytes)
    }

    /// Returns bytes to the queue that [`take`](Self::take) gave and the way down did not take.
    pub fn put_back(&mut self, payload: Payload) {
        self.queue.put_back(payload);
    }

    /// Notes that the way down took a frame, new or not: moves the schedule of departures and
    /// counts.
    pub fn on_departure(&mut self, now: Instant, bytes: u32, segments: u32, config: &Config) {
        // A FIN alone is no data (`tcp_event_data_sent`).
        if bytes > 0 {
            self.totals.data_segs_out += u64::from(segments);
            self.totals.bytes_sent += u64::from(bytes);
            self.last_sent = now;
        }
        self.pacer.depart(now, bytes, self.totals.data_segs_out, config);
        self.recovery.count_sent(segments);
    }

    /// Notes why the connection stopped sending. So the pacer knows who is late when the next frame
    /// is.
    pub fn on_blocked(&mut self, now: Instant, blocked: TxBlocked) {
        self.pacer.on_blocked(now, blocked);
    }

    /// Notes that the small queue, which was full when the connection stopped, is empty.
    pub fn on_late_completion(&mut self) {
        self.pacer.on_late_completion();
    }

    /// Notes that new data is in flight: `segments` wire segments of `unit` bytes, with the `marks`
    /// FIN and PSH.
    pub fn on_sent(
        &mut self,
        payload: Payload,
        marks: Flags,
        unit: u16,
        segments: u32,
        departure: Instant,
        ticket: Ticket,
    ) {
        let in_flight = self.in_flight() + segments;
        let snapshot = self.rate.on_transmit(departure, self.board.is_empty(), in_flight);
        let record = self.queue.first_record(self.nxt);
        let ends_record = record.is_ended && record.len == payload.len();
        let mut sent = Sent::new(self.nxt, payload, marks, unit, departure, ticket, snapshot);
        sent.ends_record = ends_record;
        self.nxt = sent.end();
        self.queue.pass_records(self.nxt);
        self.board.push(sent);
    }

    /// Notes that a segment with CWR was sent (RFC 3168 section 6.1.2).
    pub fn on_cwr_sent(&mut self) {
        self.ecn_cwr_owed = false;
    }

    /// Returns whether the next data segment has to carry CWR.
    pub fn owes_cwr(&self) -> bool {
        self.ecn_cwr_owed
    }

    /// Returns the segments to retransmit first: lost ones, or else the oldest.
    pub fn head_to_retransmit(&mut self) -> Option<Run> {
        let oldest = self.board.run_at(End::First)?;
        Some(self.board.next_lost().unwrap_or(oldest))
    }

    /// Returns the next segments that are lost and not retransmitted.
    pub fn next_lost(&mut self) -> Option<Run> {
        self.board.next_lost()
    }

    /// Returns the newest segment in flight.
    pub fn tail(&self) -> Option<Run> {
        self.board.run_at(End::Last)
    }

    /// Returns how many bytes the peer's window leaves from the first segment of a run on, 0 if the
    /// peer has taken the window back that far.
    ///
    /// The oldest bytes always have a window of one segment, since that serves as the probe of a
    /// closed one (`__tcp_retransmit_skb`).
    pub fn window_for(&self, run: Run) -> u32 {
        let edge = self.una + self.wnd;
        match self.board.seq_of(run) {
            Some(seq) if edge.after(seq) => edge.bytes_since(seq),
            Some(seq) if seq.after(self.una) => 0,
            _ => self.mss,
        }
    }

    /// Returns the frame in flight at `index`.
    pub fn frame(&self, index: usize) -> Option<&Sent> {
        self.board.get(index)
    }

    /// Makes at most `max` segments of a run a frame of its own, and returns its index.
    pub fn isolate(&mut self, run: Run, max: u32) -> usize {
        self.board.isolate(run, max)
    }

    /// Returns whether [`isolate`](Self::isolate) would cut a frame that is neither the first nor
    /// the last.
    pub fn must_cut_within(&self, run: Run, max: u32) -> bool {
        run.index > 0 && run.index + 1 < self.board.frames() && self.board.must_cut(run, max)
    }

    /// Cuts the frame at `index`, which is one segment, behind `bytes` of its payload.
    pub fn shorten(&mut self, index: usize, bytes: u32) {
        self.board.shorten(index, bytes);
    }

    /// Joins the frame at `index`, which is one lost segment, with the one behind it, if that is
    /// lost as well and both fit into a segment of `mss` bytes. Returns whether they were joined.
    pub fn join_next(&mut self, index: usize, mss: u16) -> bool {
        self.board.join_next(index, mss)
    }

    /// Notes that the SYN was sent again.
    pub fn on_syn_retransmitted(&mut self) {
        let totals = &mut self.totals;
        totals.total_retransmitted = totals.total_retransmitted.saturating_add(1);
    }

    /// Notes that the frame at `index` was retransmitted.
    pub fn on_retransmitted(&mut self, index: usize, copy: &RetransmittedCopy) {
        let in_flight = self.in_flight() + copy.segments;
        let snapshot = self.rate.on_transmit(copy.departure, false, in_flight);
        self.board.retransmitted(index, copy, snapshot);
        if !copy.is_probe {
            self.recovery.count_retransmitted(copy.segments, copy.clock);
        }
        let totals = &mut self.totals;
        totals.total_retransmitted = totals.total_retransmitted.saturating_add(copy.segments);
        totals.bytes_retransmitted += u64::from(copy.bytes);
    }

    /// Sets the limit of the pacing rate (`SO_MAX_PACING_RATE`).
    pub fn set_max_pacing_rate(&mut self, rate: Rate) {
        self.pacer.set_max_rate(rate);
    }

    /// Sets who holds frames until they are due.
    pub fn set_pacing_executor(&mut self, executor: Executor) {
        self.pacer.set_executor(executor);
    }
}
