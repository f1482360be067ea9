//! Receiving half of a connection: received data, the window, and ACKs to be sent.
//!
//! [`Receiver`] never sends. The caller hands it segments, reads, and sends an ACK whenever
//! [`ack_due`](Receiver::ack_due) says [`AckDue::Now`]: with the acknowledgment number
//! [`nxt`](Receiver::nxt), the window of [`next_window`](Receiver::next_window), the blocks of
//! [`sack_blocks`](Receiver::sack_blocks) and ECE if [`ece`](Receiver::ece); then it calls
//! [`on_ack_sent`](Receiver::on_ack_sent). Every segment with ACK set counts as an ACK, data
//! segments too.
//!
//! Urgent data is ordinary data here: it stays in the stream, as with `SO_OOBINLINE`.

mod ack;
mod intake;
mod queue;
mod reassembly;
mod timestamps;
mod window;

pub use ack::{ATO_MIN, AckDue, DELACK_MAX, Estimates};
pub use intake::{Disposition, Intake};
pub use queue::{COPY_BREAK, OVERHEAD};
pub(crate) use reassembly::REMEMBERED;
pub use timestamps::TsRecent;
pub use window::AdvertisedWindow;

use crate::config::Config;
use crate::counters::{Counter, Counters};
use crate::memory::Held;
use crate::segment::{Flags, SackBlock, SackBlocks, Segment};
use crate::seq::SeqNumber;
use crate::time::{Instant, Nanos};
use ack::{AckPolicy, MAX_QUICKACKS, TURN_MAX};
use bytes::Bytes;
use queue::ByteQueue;
use reassembly::Reassembly;
use std::sync::Arc;
use window::{Queued, ReceiveWindow};

/// Memory of an idle connection's empty queue is kept this long for the next segment.
const IDLE_RELEASE: Nanos = Nanos::from_secs(1);
/// Data that was not read for so long is copied out of the buffers of the device. One byte in use
/// keeps such a buffer, which is larger than what the connection is charged for.
const LONGEST_KEPT: Nanos = Nanos::from_secs(1);
/// Results of the handshake that the receiving half needs.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Initial sequence number of the peer, from its SYN.
    pub irs: SeqNumber,
    /// Window that the SYN or SYN-ACK of this end offered, in bytes.
    pub wnd: u32,
    /// Shift of the windows that this end sends; 0 if it was not negotiated.
    pub wscale: u8,
    /// MSS that this end announced, less the option bytes of every segment.
    pub advmss: u16,
    /// MSS for sending. It is a first guess at the size of the peer's segments.
    pub mss: u16,
    /// Timestamp of the peer's SYN; `None` without timestamps.
    pub ts_recent: Option<u32>,
    /// Whether SACK was negotiated.
    pub sack: bool,
    /// Whether ECN was negotiated.
    pub ecn: bool,
    /// `SO_RCVBUF` if it was set: bytes of memory, already doubled. It fixes the buffer.
    pub rcvbuf: Option<u32>,
}

/// Position of a segment relative to the receive window (RFC 9293 section 3.10.7.4; Linux's
/// `tcp_sequence`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptable {
    /// The segment touches the window.
    Yes,
    /// The segment ends before the window.
    Old,
    /// The segment begins behind the window.
    Beyond,
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Is: u8 {
        const SACK = 1;
        const ECN = 2;
        /// A segment with an ECN codepoint was seen.
        const ECN_SEEN = 4;
        /// Congestion was seen and the sender has not answered with CWR.
        const DEMAND_CWR = 8;
        /// The FIN is in order.
        const FINISHED = 16;
        const TIMESTAMPS = 32;
        /// What came last ahead of its place was a FIN without data.
        const FIN_IS_LATEST = 64;
    }
}

/// Receiving half of a connection.
///
/// Cost: a segment is O(1) in order and O(log n) out of order with n holes. Memory is bounded by
/// the receive buffer: out-of-order data is given up first, also if it is not worth its memory;
/// data in order and inside the advertised window is taken while the host has memory, see
/// [`memory`](crate::memory). What was acknowledged is never given up.
#[derive(Debug)]
pub struct Receiver {
    config: Arc<Config>,
    counters: Arc<Counters>,
    irs: SeqNumber,
    nxt: SeqNumber,
    /// `nxt` when data was last sent: where the peer's turn began.
    turn: SeqNumber,
    /// Data bytes received in order: the stream position of `nxt`.
    received: u64,
    queue: ByteQueue,
    /// Out-of-order data; nothing as long as none came.
    reassembly: Option<Box<Reassembly>>,
    window: ReceiveWindow,
    ack: AckPolicy,
    ts_recent: TsRecent,
    /// Sequence number of the FIN, once seen.
    fin: Option<SeqNumber>,
    /// Duplicate to report with the next ACK.
    dsack: Option<SackBlock>,
    /// When an invalid segment was last answered, data segments left out (`last_oow_ack_time`).
    last_oow_ack: Instant,
    ofo_segments: u32,
    /// Pages of the host's memory for what is queued.
    held: Held,
    /// Duplicate ACKs owed to a sender that counts them (without SACK).
    dup_acks: u8,
    is: Is,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.counters.release_memory(&mut self.held);
    }
}

impl Receiver {
    /// Returns the receiver as it is just after the handshake.
    pub fn new(now: Instant, config: Arc<Config>, counters: Arc<Counters>, terms: &Terms) -> Self {
        let nxt = terms.irs + 1;
        let start = window::FirstWindow {
            nxt,
            wnd: terms.wnd,
            wscale: terms.wscale,
            advmss: u32::from(terms.advmss),
            rcvbuf: terms.rcvbuf,
        };
        let window = ReceiveWindow::new(now, &config, &start);
        let hint = terms.advmss.min(terms.mss);
        let hint = u32::from(hint).min(terms.wnd / 2);
        let mut is = Is::empty();
        is.set(Is::SACK, terms.sack);
        is.set(Is::ECN, terms.ecn);
        is.set(Is::TIMESTAMPS, terms.ts_recent.is_some());
        Self {
            config,
            counters,
            irs: terms.irs,
            nxt,
            turn: nxt,
            received: 0,
            queue: ByteQueue::default(),
            reassembly: None,
            window,
            ack: AckPolicy::new(hint),
            ts_recent: TsRecent::new(now, terms.ts_recent.unwrap_or(0)),
            fin: None,
            dsack: None,
            last_oow_ack: Instant::ZERO,
            ofo_segments: 0,
            held: Held::default(),
            dup_acks: 0,
            is,
        }
    }

    /// Goes by other settings from now on. The buffer keeps its size until it next grows.
    pub fn set_config(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    /// RCV.NXT: the acknowledgment number to send; behind the FIN once that is in order.
    pub fn nxt(&self) -> SeqNumber {
        self.nxt
    }

    /// Returns the window that was last advertised, in bytes from [`wup`](Self::wup).
    pub fn wnd(&self) -> u32 {
        self.window.wnd()
    }

    /// Returns the shift of the windows that this end sends.
    pub fn wscale(&self) -> u8 {
        self.window.wscale()
    }

    /// Returns RCV.NXT as it was last acknowledged.
    pub fn wup(&self) -> SeqNumber {
        self.window.wup()
    }

    /// Returns the advertised right edge, `wup + wnd`. It never moves left.
    pub fn adv(&self) -> SeqNumber {
        self.window.edge()
    }

    /// Returns the peer's initial sequence number.
    pub fn irs(&self) -> SeqNumber {
        self.irs
    }

    /// Returns how many bytes can be read.
    pub fn unread(&self) -> u32 {
        self.queue.len()
    }

    /// Returns whether the FIN is in order. Reads return the bytes before it, then the end of the
    /// stream.
    pub fn is_finished(&self) -> bool {
        self.is.contains(Is::FINISHED)
    }

    /// Returns whether out-of-order data waits.
    pub fn has_holes(&self) -> bool {
        self.reassembly.as_ref().is_some_and(|reassembly| !reassembly.is_empty())
    }

    /// Returns the bytes of memory that queued data holds (`sk_rmem_alloc`): payload, and
    /// [`OVERHEAD`] per slice.
    pub fn rmem_alloc(&self) -> u32 {
        let out_of_order = self.reassembly.as_ref().map_or(0, |reassembly| reassembly.charge());
        self.queue.charge().saturating_add(out_of_order)
    }

    /// Returns the receive buffer, in bytes of memory (`sk_rcvbuf`).
    pub fn rcvbuf(&self) -> u32 {
        self.window.rcvbuf()
    }

    /// Returns the largest window that may be offered now (`rcv_ssthresh`).
    pub fn rcv_ssthresh(&self) -> u32 {
        self.window.ssthresh()
    }

    /// Returns the window that the whole buffer could carry (`window_clamp`).
    pub fn window_clamp(&self) -> u32 {
        self.window.clamp()
    }

    /// Returns the estimated segment size of the peer (`tcpi_rcv_mss`).
    pub fn rcv_mss(&self) -> u32 {
        self.ack.rcv_mss()
    }

    /// Returns the estimated gap between data segments (`tcpi_ato`).
    pub fn ato(&self) -> Nanos {
        self.ack.ato()
    }

    /// Returns the round-trip time that the receiver measured; zero if unknown (`tcpi_rcv_rtt`).
    pub fn rcv_rtt(&self) -> Nanos {
        self.window.rtt()
    }

    /// Returns the bytes that were read in the last round trip (`tcpi_rcv_space`).
    pub fn rcv_space(&self) -> u32 {
        self.window.rcv_space()
    }

    /// Returns the data bytes received in order (`tcpi_bytes_received`).
    pub fn bytes_received(&self) -> u64 {
        self.received
    }

    /// Returns the bytes that wait for others in front of them.
    pub fn ofo_bytes(&self) -> u32 {
        self.reassembly.as_ref().map_or(0, |reassembly| reassembly.bytes())
    }

    /// Returns the wire segments that came out of order (`tcpi_rcv_ooopack`).
    pub fn ofo_segments(&self) -> u32 {
        self.ofo_segments
    }

    /// Returns whether data with an ECN codepoint came (`TCPI_OPT_ECN_SEEN`).
    pub fn has_seen_ecn(&self) -> bool {
        self.is.contains(Is::ECN_SEEN)
    }

    /// Returns when data last arrived in order (`tcpi_last_data_recv`, as a time), or
    /// [`Instant::ZERO`] if none did.
    pub fn last_data(&self) -> Instant {
        self.ack.last_data()
    }

    /// Returns the timestamp to echo (`TSecr`).
    pub fn ts_recent(&self) -> u32 {
        self.ts_recent.value()
    }

    /// Returns whether a segment with the sequence numbers `seq..end` may be processed.
    ///
    /// A segment that may not is answered by [`on_unacceptable`](Self::on_unacceptable), unless it
    /// is a reset.
    pub fn acceptable(&self, seq: SeqNumber, end: SeqNumber) -> Acceptable {
        if end.before(self.window.wup()) {
            Acceptable::Old
        } else if seq.after(self.nxt + self.window.remaining(self.nxt)) {
            Acceptable::Beyond
        } else {
            Acceptable::Yes
        }
    }

    /// Returns whether PAWS refuses a segment with timestamp `value`. The timestamp may lag by
    /// `slack` ticks, which is 0 except for reordered pure ACKs (see [`TsRecent::replay_window`]).
    pub fn paws_refuses(&self, now: Instant, value: u32, slack: u32) -> bool {
        self.is.contains(Is::TIMESTAMPS) && self.ts_recent.refuses(now, value, slack)
    }

    /// Takes over the timestamp of an acceptable segment that starts at `seq`, if it is the one to
    /// echo (RFC 7323 section 4.3).
    pub fn update_ts_recent(&mut self, now: Instant, seq: SeqNumber, value: u32) {
        if self.is.contains(Is::TIMESTAMPS) && seq.at_or_before(self.window.wup()) {
            self.ts_recent.replace(now, value);
        }
    }

    /// Answers a segment that was refused for its sequence number or timestamp: an ACK is due, with
    /// DSACK for old data (Linux's `tcp_send_dupack`).
    ///
    /// The rate of answers to segments without data or FIN is limited, so that two confused ends do
    /// not loop (`tcp_oow_rate_limited`). `skipped` counts those that the limit holds back.
    pub fn on_unacceptable(&mut self, now: Instant, segment: &Segment, skipped: Counter) {
        let may_loop = segment.seq_len() == 0 || segment.flags.contains(Flags::SYN);
        if may_loop && !self.may_answer_invalid(now) {
            self.counters.add(skipped, 1);
            return;
        }
        let end = segment.end_seq();
        if end != segment.seq && segment.seq.before(self.nxt) {
            self.ack.enter_quick(self.window.wnd(), MAX_QUICKACKS);
            self.set_dsack(segment.seq, end.earlier(self.nxt));
        }
        self.ack.schedule_now();
    }

    /// Returns whether an invalid segment may be answered at `now`, and notes that it is: one per
    /// `tcp_invalid_ratelimit`, challenge ACKs and duplicate ACKs together
    /// (`__tcp_oow_rate_limited`).
    pub fn may_answer_invalid(&mut self, now: Instant) -> bool {
        let limit = Nanos::from_millis(u64::from(self.config.tcp_invalid_ratelimit));
        if self.last_oow_ack != Instant::ZERO && now.since(self.last_oow_ack) < limit {
            return false;
        }
        self.last_oow_ack = now;
        true
    }

    /// Returns the MSS that this end advertised, less the options of every segment (`tp->advmss`).
    pub fn advmss(&self) -> u32 {
        self.window.advmss()
    }

    /// Returns whether ACKs carry ECE: congestion was seen, and the sender has not answered yet
    /// (RFC 3168 section 6.1.3).
    pub fn ece(&self) -> bool {
        self.is.contains(Is::DEMAND_CWR)
    }

    /// `__tcp_ack_snd_check`.
    fn check_ack(&mut self, now: Instant, estimates: Estimates) {
        if !self.ack.is_scheduled() {
            return;
        }
        let unacked = self.nxt.bytes_since(self.window.wup());
        let memory = self.rmem_alloc();
        let (window, rcv_mss) = (&self.window, self.ack.rcv_mss());
        let is_awaited = self.queue.len() < estimates.lowat.max(1);
        let moves = || is_awaited || window.select(memory, rcv_mss).0 >= window.wnd();
        let beyond = self.has_holes() || self.fin.is_some_and(|fin| fin.after(self.nxt));
        if !beyond && !is_awaited && self.expects_reply(unacked) {
            self.ack.wait_for_reply(now, self.reply_slack());
        } else if self.ack.is_urgent(unacked, moves) {
            self.ack.schedule_now();
        } else if beyond {
            let rtt = match (self.window.rtt(), estimates.srtt) {
                (rtt, Nanos::ZERO) => rtt,
                (rtt, srtt) => rtt.min(srtt),
            };
            let sack = self.is.contains(Is::SACK);
            self.ack.compress(now, self.nxt.0, sack, rtt);
        } else {
            self.ack.delay(now, estimates.srtt, estimates.rto_min);
        }
    }

    fn reply_slack(&self) -> Nanos {
        Nanos::from_micros(self.config.reply_ack_us.into())
    }

    /// Whether the ACK of `unacked` bytes waits for the reply of the application.
    fn expects_reply(&self, unacked: u32) -> bool {
        let turn = self.nxt.bytes_since(self.turn);
        self.ack.expects_reply(unacked, turn, self.window.wnd(), self.reply_slack())
    }

    /// Returns whether an ACK has to be sent.
    ///
    /// After each ACK that [`AckDue::Now`] asked for, ask again: many out-of-order ranges need
    /// several ACKs (Linux's `tcp_sack_compress_send_ack`).
    pub fn ack_due(&self) -> AckDue {
        if self.dsack.is_some() || (self.dup_acks > 0 && !self.is.contains(Is::SACK)) {
            return AckDue::Now;
        }
        let unreported = self.reassembly.as_ref().map_or(0, |holes| holes.unreported());
        if self.is.contains(Is::SACK) && unreported > self.ranges_per_ack() {
            return AckDue::Now;
        }
        self.ack.due()
    }

    /// Ranges out of order that the next ACK reports beside a duplicate.
    fn ranges_per_ack(&self) -> usize {
        let room = if self.is.contains(Is::TIMESTAMPS) { 3 } else { 4 };
        room - usize::from(self.dsack.is_some())
    }

    /// Makes an ACK due at once, whatever the policy says: for a handshake, a window probe, or a
    /// challenge.
    pub fn owe_ack(&mut self) {
        self.ack.schedule_now();
    }

    /// Makes the ACK of an active open due (`tcp_rcv_synsent_state_process`).
    ///
    /// Data may carry it if ACKs wait for data. Up to 16 further segments are then acknowledged
    /// without delay.
    pub fn owe_handshake_ack(&mut self, now: Instant) {
        let waits = self.ack.is_pingpong();
        self.ack.enter_quick(self.window.wnd(), MAX_QUICKACKS);
        if waits {
            self.ack.delay_handshake(now);
        } else {
            self.owe_ack();
        }
    }

    /// Returns the window for the next segment that acknowledges [`nxt`](Self::nxt).
    pub fn next_window(&mut self) -> AdvertisedWindow {
        let memory = self.rmem_alloc();
        let (mut selected, tight) = self.window.select(memory, self.ack.rcv_mss());
        if tight {
            self.ack.hint_quick(false);
            if self.counters.memory.is_under_pressure() {
                self.window.hold_back();
                selected = self.window.select(memory, self.ack.rcv_mss()).0;
            }
        }
        self.window.next(self.nxt, selected)
    }

    /// Notes that a segment with or without data was sent which acknowledges [`nxt`](Self::nxt)
    /// with `window`.
    pub fn on_ack_sent(&mut self, window: AdvertisedWindow) {
        self.window.on_advertised(self.nxt, window);
        self.ack.on_ack_sent();
        let reported = self.ranges_per_ack();
        if let Some(holes) = &mut self.reassembly {
            holes.on_reported(reported);
            // What is left would wait for the next event, and look lost to the sender.
            if holes.unreported() > 0 && self.is.contains(Is::SACK) {
                self.ack.schedule_now();
            }
        }
        self.dsack = None;
        if self.is.contains(Is::SACK) {
            self.dup_acks = 0;
        } else {
            self.dup_acks = self.dup_acks.saturating_sub(1);
        }
    }

    /// Notes that data was sent. A connection that replies to data is interactive, and its ACKs
    /// wait for data.
    pub fn on_data_sent(&mut self, now: Instant) {
        let is_reply = self.turn != self.nxt;
        self.turn = self.nxt;
        self.ack.on_data_sent(now, is_reply);
    }

    /// Returns at most `max` SACK blocks for the next ACK: first a duplicate (RFC 2883), then
    /// out-of-order ranges, most recent first (RFC 2018). It is empty without SACK.
    pub fn sack_blocks(&self, max: usize) -> SackBlocks {
        let mut blocks = SackBlocks::new();
        let is_in_order = self.dsack.is_none() && self.fin.is_none() && self.reassembly.is_none();
        if is_in_order || !self.is.contains(Is::SACK) || max == 0 {
            return blocks;
        }
        blocks.extend(self.dsack);
        // A FIN behind a hole that no data joins is a range of its own.
        let waits = |fin: &SeqNumber| fin.after(self.nxt) && self.out_of_order_seq() != Some(*fin);
        let lone_fin = self.fin.filter(waits).map(|left| SackBlock { left, right: left + 1 });
        let is_first = self.is.contains(Is::FIN_IS_LATEST);
        blocks.extend(lone_fin.filter(|_| is_first && blocks.len() < max));
        if let Some(reassembly) = &self.reassembly {
            for extent in reassembly.report(max - blocks.len()) {
                let (left, right) = (self.seq_at(extent.start), self.seq_at(extent.end));
                let finished = u32::from(self.fin == Some(right));
                blocks.push(SackBlock { left, right: right + finished });
            }
        }
        blocks.extend(lone_fin.filter(|_| !is_first && blocks.len() < max));
        blocks
    }

    /// The end of what waits ahead of its place.
    fn out_of_order_seq(&self) -> Option<SeqNumber> {
        self.out_of_order_end().map(|end| self.seq_at(end))
    }

    /// Remembers a duplicate to report with the next ACK, in place of an earlier one
    /// (`tcp_dsack_set`).
    fn set_dsack(&mut self, left: SeqNumber, right: SeqNumber) {
        if !self.is.contains(Is::SACK) || !self.config.tcp_dsack {
            return;
        }
        let old = left.before(self.nxt);
        let counter = if old { Counter::DSACKOldSent } else { Counter::DSACKOfoSent };
        self.counters.add(counter, 1);
        self.dsack = Some(SackBlock { left, right });
    }

    /// Remembers a further duplicate of a segment: one that touches what is reported already
    /// extends it, any other is not reported (`tcp_dsack_extend`).
    fn extend_dsack(&mut self, left: SeqNumber, right: SeqNumber) {
        match &mut self.dsack {
            None => self.set_dsack(left, right),
            Some(block) if left.at_or_before(block.right) && right.at_or_after(block.left) => {
                block.left = block.left.earlier(left);
                block.right = block.right.later(right);
            }
            Some(_) => {}
        }
    }

    /// Returns when to call [`on_deadline`](Self::on_deadline), or [`Instant::FAR_FUTURE`].
    ///
    /// The deadline is that of a delayed ACK, or of memory to give back.
    pub fn deadline(&self) -> Instant {
        let last = self.ack.last_data();
        let idle = if self.queue.is_empty() && self.queue.holds_heap() {
            last + IDLE_RELEASE
        } else {
            self.queue.kept_until(last, LONGEST_KEPT)
        };
        self.ack.deadline().min(idle)
    }

    /// Does what is due at `now`. It may be called early.
    pub fn on_deadline(&mut self, now: Instant, estimates: Estimates) {
        if self.ack.on_deadline(now, estimates.rto) {
            self.counters.add(Counter::DelayedACKs, 1);
        }
        if self.queue.has_kept() && self.queue.kept_for(now) >= LONGEST_KEPT {
            let collapsed = self.queue.collapse();
            self.counters.add(Counter::RcvCollapsed, collapsed.into());
            self.settle_memory(now);
        }
        if self.queue.is_empty() && now.since(self.ack.last_data()) >= IDLE_RELEASE {
            self.queue.release();
            if !self.has_holes() {
                self.counters.release_memory(&mut self.held);
            }
        }
    }

    /// Moves bytes to `buf` and returns how many; 0 if nothing can be read.
    ///
    /// [`is_finished`](Self::is_finished) tells the end of the stream. If
    /// [`ack_due`](Self::ack_due) is `Now` afterwards, the peer has to be told of the opened
    /// window.
    pub fn read(&mut self, now: Instant, buf: &mut [u8]) -> usize {
        let copied = self.queue.read(buf);
        self.after_read(now, copied);
        copied
    }

    /// Copies bytes to `buf` and leaves them in the queue.
    pub fn peek(&self, buf: &mut [u8]) -> usize {
        self.queue.peek(buf)
    }

    /// Takes the next slice without a copy; otherwise like [`read`](Self::read).
    pub fn read_bytes(&mut self, now: Instant) -> Option<Bytes> {
        let slice = self.queue.take_slice()?;
        self.after_read(now, slice.len());
        Some(slice)
    }

    /// Drops all bytes that can be read, for an application that reads no more. Returns how many.
    ///
    /// Out-of-order data stays, since its arrival was reported.
    pub fn discard(&mut self) -> u32 {
        let unread = self.queue.len();
        self.queue.release();
        if !self.has_holes() {
            self.counters.release_memory(&mut self.held);
        }
        if unread > 0 {
            self.acknowledge_read();
        }
        unread
    }

    /// Says whether the host is slower than its senders, so that data waits in the device.
    ///
    /// `held` is then the number of bytes that the peer may send at once if its round trip is
    /// short, and otherwise `None`. `path` is the shortest round trip that the sender of this end
    /// has measured, or [`Nanos::MAX`] if it has measured none.
    pub fn hold_buffer(&mut self, held: Option<u32>, path: Nanos) {
        self.window.hold(held, path);
    }

    /// Takes pages for what is queued, or gives them back.
    fn settle_memory(&mut self, now: Instant) {
        let memory = self.rmem_alloc();
        self.counters.settle_memory(now, &mut self.held, memory);
    }

    /// `tcp_rcv_space_adjust`.
    fn after_read(&mut self, now: Instant, copied: usize) {
        if copied == 0 {
            return;
        }
        self.queue.date_kept(now);
        self.settle_memory(now);
        let queued = Queued {
            nxt: self.nxt - u32::from(self.is_finished()),
            unread: self.queue.len(),
            beyond: self.beyond(),
        };
        let may_grow = !self.counters.memory.is_under_pressure();
        self.window.adjust(now, &self.config, queued, may_grow);
        self.acknowledge_read();
    }

    /// `tcp_cleanup_rbuf`.
    fn acknowledge_read(&mut self) {
        let memory = self.rmem_alloc();
        let unacked = self.nxt.bytes_since(self.window.wup());
        let urgent =
            self.ack.wants_ack_after_read(unacked, memory == 0) && !self.expects_reply(unacked);
        if urgent || (!self.is_finished() && self.window.wants_update(self.nxt, memory, &self.ack))
        {
            self.ack.schedule_now();
        }
    }

    /// Sets `SO_RCVBUF`: fixes the buffer at `bytes` of memory, already doubled and bounded by
    /// `rmem_max`, and ends autotuning.
    ///
    /// The window already advertised is not taken back.
    pub fn set_rcvbuf(&mut self, bytes: u32) {
        self.window.lock(bytes);
    }

    /// Makes room for `bytes` of unread data, for `SO_RCVLOWAT`.
    pub fn make_room_for(&mut self, bytes: u32) {
        self.window.make_room_for(bytes);
    }

    /// Returns whether a reader that waits for `target` bytes should be woken: they are there, or
    /// hardly more can come since the window is closing (`tcp_epollin_ready`).
    pub fn has_enough(&self, target: u32) -> bool {
        let unread = self.unread();
        unread > 0 && (unread >= target || self.window.remaining(self.nxt) <= self.ack.rcv_mss())
    }

    /// Sets `TCP_QUICKACK` (`__tcp_sock_set_quickack`).
    ///
    /// Zero lets ACKs wait for data. Other values end that mode, for good if `value` is odd, and
    /// acknowledge what was read. Data that was not read keeps its timer.
    pub fn set_quickack(&mut self, value: i32) {
        self.ack.set_pingpong(value == 0);
        if value != 0 && self.ack.is_scheduled() {
            self.ack.note_push();
            self.acknowledge_read();
            self.ack.set_pingpong(value & 1 == 0);
        }
    }

    /// Returns `TCP_QUICKACK`: whether ACKs are sent without waiting for data.
    pub fn quickack(&self) -> bool {
        !self.ack.is_pingpong()
    }

    /// Returns whether the two sides take turns, and the peer has had one since this side sent
    /// last.
    pub fn takes_turns(&self) -> bool {
        self.ack.is_pingpong() && (1..=TURN_MAX).contains(&self.nxt.bytes_since(self.turn))
    }

    /// Sequence number of a stream position, which is within half the space of `nxt`.
    fn seq_at(&self, position: u64) -> SeqNumber {
        self.irs + 1 + (position as u32)
    }

    /// Bytes from `nxt` to the end of what waits out of order.
    fn beyond(&self) -> u32 {
        self.out_of_order_end().map_or(0, |end| end.saturating_sub(self.received) as u32)
    }
}

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
