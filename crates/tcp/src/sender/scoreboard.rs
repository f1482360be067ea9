//! Frames in flight, and the state of each of their segments (RFC 2018, RFC 6675 in Linux's
//! reading).
//!
//! One [`Sent`] stands for one frame. The state of its wire segments is three bit sets, so a frame
//! of 45 segments is marked, counted and searched by a few word operations and is cut only where a
//! part is retransmitted. Entries are ordered by sequence number in a deque: O(1) per cumulative
//! ACK and frame sent, O(log n) to find a block, O(distance to the nearer end) to cut an entry.
//!
//! What looks at frames steps over those that are SACKed as a whole. So an ACK costs what is new in
//! its blocks and what is missing, not what was SACKed before (amortised, up to a logarithm).
//!
//! Limits: a frame has at most [`MAX_SEGMENTS`] segments. Memory: 184 bytes per frame in flight.

use super::delivery_rate::TxSnapshot;
use crate::config::BUFFER_OVERHEAD;
use crate::segment::{Flags, Payload};
use crate::seq::SeqNumber;
use crate::time::Instant;
use crate::transmit::small_queue::Ticket;
use std::collections::VecDeque;

/// Most segments of a frame.
pub const MAX_SEGMENTS: u32 = 64;

/// Most slices of a frame that short ones were joined to. Each is a slice of the device's call.
const MAX_SLICES: usize = 16;

/// One frame in flight.
#[derive(Clone, Debug)]
pub struct Sent {
    /// First sequence number that is not acknowledged.
    pub seq: SeqNumber,
    /// Number of sequence numbers from `seq`: payload, and a FIN or SYN behind it.
    pub seq_len: u32,
    /// Bytes of the first segment that are acknowledged already.
    head: u16,
    /// Bytes of each segment but the last.
    pub unit: u16,
    /// Flags SYN, FIN and PSH that the frame carries.
    pub flags: Flags,
    /// Whether any byte of it was ever retransmitted (Karn's rule).
    pub ever_retransmitted: bool,
    /// Whether a record ends with it (`MSG_EOR`): no frame has bytes of two.
    pub ends_record: bool,
    /// Time at which the frame was last sent.
    pub sent_at: Instant,
    /// Timestamp clock that the last copy carries; means nothing before the first retransmission.
    pub copy_clock: u32,
    /// Name of the frame below TCP.
    pub ticket: Ticket,
    /// State of the delivery-rate sampler when the frame was sent.
    pub snapshot: TxSnapshot,
    /// Payload of the frame.
    pub payload: Payload,
    sacked: u64,
    lost: u64,
    retransmitted: u64,
    /// So many frames from this one on are SACKed as a whole; there may be more. 0 says nothing.
    run: u32,
}

const _: () = assert!(size_of::<Sent>() <= 184, "a frame in flight would grow");

impl Sent {
    /// Returns the entry for a frame that is sent now.
    pub fn new(
        seq: SeqNumber,
        payload: Payload,
        flags: Flags,
        unit: u16,
        sent_at: Instant,
        ticket: Ticket,
        snapshot: TxSnapshot,
    ) -> Self {
        let control = u32::from(flags.intersects(Flags::SYN | Flags::FIN));
        let seq_len = payload.len() + control;
        let sent = Self {
            seq,
            seq_len,
            head: 0,
            unit: unit.max(1),
            flags,
            ever_retransmitted: false,
            ends_record: false,
            sent_at,
            copy_clock: 0,
            ticket,
            snapshot,
            payload,
            sacked: 0,
            lost: 0,
            retransmitted: 0,
            run: 0,
        };
        debug_assert!(sent.segments() <= MAX_SEGMENTS);
        sent
    }

    /// Returns the sequence number behind the frame.
    pub fn end(&self) -> SeqNumber {
        self.seq + self.seq_len
    }

    /// Returns how many wire segments are left. A FIN behind a full last segment belongs to that
    /// segment.
    pub fn segments(&self) -> u32 {
        let payload = self.payload.len() + u32::from(self.head);
        payload.div_ceil(u32::from(self.unit)).max(1)
    }

    /// Returns the payload of the longest segment, in bytes (`tcp_skb_seglen`).
    fn longest_segment(&self) -> u32 {
        if self.segments() == 1 { self.payload.len() } else { u32::from(self.unit) }
    }

    /// Returns whether all segments are SACKed.
    fn is_sacked(&self) -> bool {
        self.begins_sacked() && self.sacked == self.all()
    }

    /// Returns whether a segment that is not SACKed is longer than `mss`.
    fn is_too_long(&self, mss: u16) -> bool {
        !self.is_sacked() && self.longest_segment() > u32::from(mss)
    }

    /// Cuts behind the first segments that are all SACKed, or none of them; returns the rest if
    /// there is one.
    fn split_by_sack(&mut self) -> Option<Self> {
        let run = if self.begins_sacked() { self.sacked } else { !self.sacked };
        let count = run.trailing_ones();
        (count < self.segments()).then(|| self.split_off(count))
    }

    fn all(&self) -> u64 {
        ones(self.segments())
    }

    /// Bits of the segments that end at or before `seq`.
    fn below(&self, seq: SeqNumber) -> u64 {
        if self.end().at_or_before(seq) {
            return self.all();
        }
        if !self.seq.before(seq) {
            return 0;
        }
        let bytes = seq.bytes_since(self.seq) + u32::from(self.head);
        ones((bytes / u32::from(self.unit)).min(self.segments() - 1))
    }

    /// Bits of the segments that lie in `left..right` entirely.
    fn within(&self, left: SeqNumber, right: SeqNumber) -> u64 {
        let before = if left.at_or_before(self.seq) {
            0
        } else if left.at_or_after(self.end()) {
            self.all()
        } else {
            let bytes = left.bytes_since(self.seq) + u32::from(self.head);
            ones(bytes.div_ceil(u32::from(self.unit)).min(self.segments()))
        };
        self.below(right) & !before
    }

    /// Sequence number at which segment `index` starts.
    fn start_of(&self, index: u32) -> SeqNumber {
        if index == 0 {
            return self.seq;
        }
        let bytes = index * u32::from(self.unit) - u32::from(self.head);
        self.seq + bytes.min(self.seq_len)
    }

    /// Returns whether the first segment of the frame was SACKed. Of the oldest frame that says
    /// that the peer gave up what it had.
    pub fn begins_sacked(&self) -> bool {
        self.sacked & 1 != 0
    }

    /// Returns the bytes of memory that the frame counts for.
    pub fn memory(&self) -> u32 {
        self.payload.len() + BUFFER_OVERHEAD
    }

    /// Cuts in front of segment `index` (neither 0 nor behind the last); returns the rest.
    fn split_off(&mut self, index: u32) -> Self {
        let mut rest = self.split_off_bytes(self.start_of(index).bytes_since(self.seq));
        for (mine, theirs) in [
            (&mut self.sacked, &mut rest.sacked),
            (&mut self.lost, &mut rest.lost),
            (&mut self.retransmitted, &mut rest.retransmitted),
        ] {
            *theirs = mine.checked_shr(index).unwrap_or(0);
            *mine &= ones(index);
        }
        rest
    }

    /// Cuts behind `at` bytes of payload; returns the rest, in the state of the whole.
    fn split_off_bytes(&mut self, at: u32) -> Self {
        let mut rest = self.clone();
        rest.payload = self.payload.split_off(at);
        rest.seq = self.seq + at;
        rest.seq_len = self.seq_len - at;
        rest.head = 0;
        self.seq_len = at;
        self.flags.remove(Flags::FIN | Flags::PSH);
        self.ends_record = false;
        rest.flags.remove(Flags::SYN);
        rest
    }
}

const fn ones(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// Numbers of segments by state, as Linux counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent and not cumulatively acknowledged (`packets_out`).
    pub packets_out: u32,
    /// SACKed, or duplicate ACKs where there is no SACK (`sacked_out`).
    pub sacked_out: u32,
    /// Marked lost and not SACKed (`lost_out`).
    pub lost_out: u32,
    /// Retransmitted and not yet known to have arrived or to be lost again (`retrans_out`).
    pub retrans_out: u32,
}

impl Counts {
    /// Returns how many segments the network is thought to hold (`tcp_packets_in_flight`, "pipe" in
    /// RFC 6675).
    pub fn in_flight(&self) -> u32 {
        (self.packets_out + self.retrans_out)
            .saturating_sub(self.sacked_out)
            .saturating_sub(self.lost_out)
    }
}

/// One more copy of a frame in flight.
#[derive(Clone, Copy, Debug)]
pub struct RetransmittedCopy {
    /// Payload in bytes.
    pub bytes: u32,
    /// Number of wire segments.
    pub segments: u32,
    /// Time at which the copy leaves.
    pub departure: Instant,
    /// Name of the copy below TCP.
    pub ticket: Ticket,
    /// Timestamp clock that the copy carries. It may be before the departure, as paced copies are
    /// stamped before they leave.
    pub clock: u32,
    /// Whether it is a tail loss probe.
    pub is_probe: bool,
}

/// Segments of one frame that were newly marked lost.
#[derive(Clone, Copy, Debug)]
pub struct Marked {
    /// Number of segments.
    pub segments: u32,
    /// How many of them had been sent again and are lost again.
    pub again: u32,
}

/// Part of a frame that was newly delivered.
#[derive(Clone, Copy, Debug)]
pub struct Delivered<'a> {
    /// The frame.
    pub sent: &'a Sent,
    /// First sequence number of the first delivered segment of the frame.
    pub start: SeqNumber,
    /// Sequence number behind the last delivered segment of the frame.
    pub end: SeqNumber,
    /// Number of segments; 0 if only a part of one was acknowledged.
    pub segments: u32,
}

/// List of all frames in flight.
#[derive(Debug, Default)]
pub struct Scoreboard {
    sent: VecDeque<Sent>,
    counts: Counts,
    /// Bytes of memory that the frames count for.
    memory: u32,
    /// Sequence number behind the highest SACKed segment.
    highest_sack: Option<SeqNumber>,
    /// Entries below this hold nothing that waits for retransmission.
    retransmit_hint: usize,
    /// Frames that were looked at for SACK blocks and losses.
    #[cfg(test)]
    visits: usize,
}

impl Scoreboard {
    /// Returns the segments by state.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the bytes of memory of all frames in flight.
    pub fn memory(&self) -> u32 {
        self.memory
    }

    /// Returns the number of frames in flight.
    pub fn frames(&self) -> usize {
        self.sent.len()
    }

    /// Returns whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Returns the oldest frame.
    pub fn front(&self) -> Option<&Sent> {
        self.sent.front()
    }

    /// Returns the sequence number behind the highest SACKed segment.
    pub fn highest_sack(&self) -> Option<SeqNumber> {
        self.highest_sack
    }

    /// Appends a frame that was sent.
    pub fn push(&mut self, sent: Sent) {
        self.counts.packets_out += sent.segments();
        self.memory = self.memory.saturating_add(sent.memory());
        self.sent.push_back(sent);
    }

    /// Forgets everything in flight.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Frees the deque of an idle connection.
    pub fn release_idle_memory(&mut self) {
        if self.sent.is_empty() {
            self.sent = VecDeque::new();
        }
    }

    /// Removes the segments that `ack` covers, and returns their number. `delivered` gets each part
    /// that had not been SACKed before.
    pub fn acknowledge(&mut self, ack: SeqNumber, mut delivered: impl FnMut(Delivered<'_>)) -> u32 {
        let before = self.counts.packets_out;
        while let Some(front) = self.sent.front_mut() {
            if !front.seq.before(ack) {
                break;
            }
            let covered = front.below(ack);
            let new = covered & !front.sacked;
            if new != 0 || (covered == 0 && front.sacked & 1 == 0) {
                let behind_last = u64::BITS - new.leading_zeros();
                let end = if new == 0 { ack } else { front.start_of(behind_last) };
                let first = if new == 0 { 0 } else { new.trailing_zeros() };
                delivered(Delivered {
                    start: front.start_of(first),
                    end: end.earlier(ack).earlier(front.end()),
                    segments: new.count_ones(),
                    sent: front,
                });
            }
            forget(&mut self.counts, front, covered);
            let whole = front.end().at_or_before(ack);
            if whole {
                let front = self.sent.pop_front().expect("just seen");
                self.memory -= front.memory();
                if let Some(next) = self.sent.front_mut() {
                    next.run = next.run.max(front.run.saturating_sub(1));
                }
                self.retransmit_hint = self.retransmit_hint.saturating_sub(1);
            } else {
                self.memory -= trim(front, ack, covered.count_ones());
                break;
            }
        }
        if self.highest_sack.is_some_and(|highest| highest.at_or_before(ack)) {
            self.highest_sack = None;
        }
        before - self.counts.packets_out
    }

    /// Returns how many segments that lie in `left..right` entirely were ever sent again.
    pub fn repeated_within(&self, left: SeqNumber, right: SeqNumber) -> u32 {
        let first = self.sent.partition_point(|sent| sent.end().at_or_before(left));
        let inside = self.sent.range(first..).take_while(|sent| sent.seq.before(right));
        let repeated = inside.filter(|sent| sent.ever_retransmitted);
        repeated.map(|sent| sent.within(left, right).count_ones()).sum()
    }

    /// Marks the segments inside `left..right` as SACKed. `delivered` gets the new ones.
    pub fn sack(
        &mut self,
        left: SeqNumber,
        right: SeqNumber,
        mut delivered: impl FnMut(Delivered<'_>),
    ) {
        let mut next = self.sent.partition_point(|sent| sent.end().at_or_before(left));
        while let Some(index) = self.next_open(next) {
            let sent = &mut self.sent[index];
            if !sent.seq.before(right) {
                break;
            }
            next = index + 1;
            let new = sent.within(left, right) & !sent.sacked;
            if new == 0 {
                continue;
            }
            let last = 63 - new.leading_zeros();
            let end = sent.start_of(last + 1).earlier(sent.end());
            let start = sent.start_of(new.trailing_zeros());
            delivered(Delivered { sent, start, end, segments: new.count_ones() });
            let counts = &mut self.counts;
            counts.sacked_out += new.count_ones();
            counts.lost_out -= (sent.lost & new).count_ones();
            counts.retrans_out -= (sent.retransmitted & new).count_ones();
            sent.sacked |= new;
            sent.lost &= !new;
            sent.retransmitted &= !new;
            self.highest_sack = Some(self.highest_sack.map_or(end, |highest| highest.later(end)));
        }
    }

    /// Returns the index of the first frame from `first` on with a segment that is not SACKed.
    ///
    /// Every frame on the way learns how far it is, as the elements of a union-find structure do.
    fn next_open(&mut self, first: usize) -> Option<usize> {
        let mut end = first;
        while let Some(sent) = self.sent.get(end) {
            #[cfg(test)]
            {
                self.visits += 1;
            }
            if sent.run == 0 && !sent.is_sacked() {
                break;
            }
            end += sent.run.max(1) as usize;
        }
        let mut index = first;
        while index < end {
            let run = &mut self.sent[index].run;
            index += std::mem::replace(run, (end - index) as u32).max(1) as usize;
        }
        (end < self.sent.len()).then_some(end)
    }

    /// Marks segments as lost, in sequence order.
    ///
    /// `rule` is asked for each frame with segments that are neither SACKed nor lost. It returns
    /// the sequence number up to which the frame's segments are lost, or `None` to end the search.
    /// `marked` gets each frame and what was marked of it.
    pub fn mark_lost(
        &mut self,
        mut rule: impl FnMut(&Sent) -> Option<SeqNumber>,
        mut marked: impl FnMut(&Sent, Marked),
    ) {
        let mut next = 0;
        while let Some(index) = self.next_open(next) {
            next = index + 1;
            let sent = &mut self.sent[index];
            let open = sent.all() & !sent.sacked & (!sent.lost | sent.retransmitted);
            if open == 0 {
                continue;
            }
            let Some(up_to) = rule(sent) else { break };
            let lost = open & sent.below(up_to);
            if lost == 0 {
                continue;
            }
            self.counts.lost_out += (lost & !sent.lost).count_ones();
            self.counts.retrans_out -= (lost & sent.retransmitted).count_ones();
            let again = (lost & sent.lost & sent.retransmitted).count_ones();
            sent.lost |= lost;
            sent.retransmitted &= !lost;
            marked(sent, Marked { segments: lost.count_ones(), again });
            self.retransmit_hint = self.retransmit_hint.min(index);
        }
    }

    /// Marks all segments as lost that are not SACKed (RTO), but for frames behind the first that
    /// left after `recent`. Without `recent` the SACKed are lost, too: after reneging, or for
    /// duplicate ACKs without SACK.
    ///
    /// `marked` gets the segments that were not lost before.
    pub fn mark_timed_out(
        &mut self,
        recent: Option<Instant>,
        mut marked: impl FnMut(&Sent, Marked),
    ) {
        self.counts.lost_out = 0;
        self.counts.retrans_out = 0;
        if recent.is_none() {
            self.counts.sacked_out = 0;
            self.highest_sack = None;
        }
        for (index, sent) in self.sent.iter_mut().enumerate() {
            if recent.is_none() {
                sent.sacked = 0;
                sent.run = 0;
            }
            if index == 0 || recent.is_none_or(|recent| sent.sent_at <= recent) {
                let lost = sent.all() & !sent.sacked;
                let new = lost & (!sent.lost | sent.retransmitted);
                let again = (new & sent.lost).count_ones();
                sent.lost = lost;
                sent.retransmitted = 0;
                if new != 0 {
                    marked(sent, Marked { segments: new.count_ones(), again });
                }
            }
            self.counts.lost_out += sent.lost.count_ones();
            self.counts.retrans_out += sent.retransmitted.count_ones();
        }
        self.retransmit_hint = 0;
    }

    /// Removes all loss marks (undo). Retransmitted segments stay marked as such.
    pub fn clear_lost(&mut self) {
        for sent in &mut self.sent {
            sent.lost = 0;
        }
        self.counts.lost_out = 0;
    }

    /// Marks the first segment lost, where no SACK can tell (RFC 6582). `marked` gets it.
    pub fn mark_head_lost(&mut self, mut marked: impl FnMut(&Sent, Marked)) {
        if let Some(first) = self.sent.front_mut()
            && first.lost & 1 == 0
        {
            first.lost |= 1;
            self.counts.lost_out += 1;
            self.retransmit_hint = 0;
            marked(first, Marked { segments: 1, again: 0 });
        }
    }

    /// Sets the count of duplicate ACKs, which stand for deliveries where there is no SACK
    /// (`tcp_add_reno_sack`).
    ///
    /// There is always a hole: the head, if nothing is known to be lost (`tcp_limit_reno_sacked`).
    /// Returns whether there were more duplicates than the segments in flight can have caused.
    pub fn set_reno_sacked(&mut self, duplicates: u32) -> bool {
        let out = self.counts.packets_out;
        let holes = self.counts.lost_out.max(1).min(out);
        self.counts.sacked_out = duplicates.min(out - holes);
        duplicates > out - holes
    }

    /// Takes `acked` segments from the count of duplicate ACKs: one filled the hole, the others had
    /// been counted (`tcp_remove_reno_sacks`).
    ///
    /// Returns the same as [`set_reno_sacked`](Self::set_reno_sacked).
    pub fn remove_reno_sacked(&mut self, acked: u32) -> bool {
        self.set_reno_sacked(self.counts.sacked_out.saturating_sub(acked.saturating_sub(1)))
    }

    /// Returns the first run of segments that are lost and not retransmitted.
    pub fn next_lost(&mut self) -> Option<Run> {
        let mut next = self.retransmit_hint;
        while let Some(index) = self.next_open(next) {
            next = index + 1;
            let sent = &self.sent[index];
            let waiting = sent.lost & !sent.retransmitted;
            if waiting != 0 {
                self.retransmit_hint = index;
                let first = waiting.trailing_zeros();
                let count = (waiting >> first).trailing_ones();
                return Some(Run { index, first, count });
            }
        }
        self.retransmit_hint = self.sent.len();
        None
    }

    /// Returns the run of the first segment in flight (RTO without marks) or of the last one (TLP).
    pub fn run_at(&self, end: End) -> Option<Run> {
        match end {
            End::First => self.sent.front().map(|_| Run { index: 0, first: 0, count: 1 }),
            End::Last => self.sent.back().map(|sent| Run {
                index: self.sent.len() - 1,
                first: sent.segments() - 1,
                count: 1,
            }),
        }
    }

    /// Returns whether [`isolate`](Self::isolate) has to cut a frame, or with a `max` of 0
    /// [`shorten`](Self::shorten).
    pub fn must_cut(&self, run: Run, max: u32) -> bool {
        let segments = self.sent.get(run.index).map_or(0, Sent::segments);
        run.first > 0 || run.count.min(max) < segments
    }

    /// Makes at most `max` segments of a run a frame of its own, but at least one, to be
    /// retransmitted. Returns its index.
    pub fn isolate(&mut self, run: Run, max: u32) -> usize {
        let mut index = run.index;
        if run.first > 0 {
            let rest = self.sent[index].split_off(run.first);
            self.memory = self.memory.saturating_add(BUFFER_OVERHEAD);
            index += 1;
            self.sent.insert(index, rest);
        }
        let count = run.count.min(max.max(1));
        if count < self.sent[index].segments() {
            let rest = self.sent[index].split_off(count);
            self.memory = self.memory.saturating_add(BUFFER_OVERHEAD);
            self.sent.insert(index + 1, rest);
        }
        index
    }

    /// Cuts the frame at `index`, which is one segment, behind `bytes` of its payload.
    ///
    /// Nothing happens where it has no more.
    pub fn shorten(&mut self, index: usize, bytes: u32) {
        let sent = &mut self.sent[index];
        debug_assert_eq!(sent.segments(), 1);
        if sent.payload.len() <= bytes {
            return;
        }
        let rest = sent.split_off_bytes(bytes);
        self.memory = self.memory.saturating_add(BUFFER_OVERHEAD);
        self.counts.packets_out += 1;
        self.counts.sacked_out += rest.sacked.count_ones();
        self.counts.lost_out += rest.lost.count_ones();
        self.counts.retrans_out += rest.retransmitted.count_ones();
        self.sent.insert(index + 1, rest);
    }

    /// Joins the frame at `index`, which is one lost segment, with the one behind it, if that is
    /// lost as well and both fit into a segment of `mss` bytes (`tcp_collapse_retrans`). Returns
    /// whether they were joined. Cost: that of cutting an entry.
    pub fn join_next(&mut self, index: usize, mss: u16) -> bool {
        let waits = |sent: &Sent| {
            let state = (sent.segments(), sent.sacked, sent.lost, sent.retransmitted);
            state == (1, 0, 1, 0) && !sent.flags.contains(Flags::SYN)
        };
        let (Some(sent), Some(next)) = (self.sent.get(index), self.sent.get(index + 1)) else {
            return false;
        };
        let fits = sent.payload.len() + next.payload.len() <= u32::from(mss);
        let slices = sent.payload.chunks().len() + next.payload.chunks().len();
        if sent.ends_record || !(waits(sent) && waits(next) && fits && slices <= MAX_SLICES) {
            return false;
        }
        let Some(next) = self.sent.remove(index + 1) else { return false };
        let sent = &mut self.sent[index];
        (sent.head, sent.unit) = (0, mss);
        sent.seq_len += next.seq_len;
        sent.flags |= next.flags;
        sent.ends_record = next.ends_record;
        sent.ever_retransmitted |= next.ever_retransmitted;
        let Sent { mut payload, .. } = next;
        payload.take_chunks().into_iter().for_each(|slice| sent.payload.push(slice));
        self.memory -= BUFFER_OVERHEAD;
        self.counts.packets_out -= 1;
        self.counts.lost_out -= 1;
        true
    }

    /// Returns the sequence number of the first segment of a run; `None` if there is no such frame.
    pub fn seq_of(&self, run: Run) -> Option<SeqNumber> {
        let sent = self.sent.get(run.index)?;
        let skipped = run.first * u32::from(sent.unit);
        Some(sent.seq + skipped.saturating_sub(u32::from(sent.head)))
    }

    /// Returns the frame at `index`.
    pub fn get(&self, index: usize) -> Option<&Sent> {
        self.sent.get(index)
    }

    /// Notes that the whole frame at `index` was retransmitted.
    ///
    /// A probe does not count among the retransmissions that are out (`tcp_send_loss_probe`).
    pub fn retransmitted(&mut self, index: usize, copy: &RetransmittedCopy, snap: TxSnapshot) {
        let sent = &mut self.sent[index];
        if !copy.is_probe {
            let new = sent.all() & !sent.retransmitted & !sent.sacked;
            self.counts.retrans_out += new.count_ones();
            sent.retransmitted |= new;
        }
        sent.ever_retransmitted = true;
        sent.sent_at = copy.departure;
        sent.copy_clock = copy.clock;
        sent.ticket = copy.ticket;
        sent.snapshot = snap;
    }

    /// Cuts all frames anew whose segments exceed `mss`, since the path's MTU shrank, and marks
    /// them lost (`tcp_simple_retransmit`). Returns whether there were any.
    ///
    /// Segments that are SACKed stay as they are. Where there is no SACK, the caller has to set the
    /// count of duplicate ACKs anew.
    pub fn resegment(&mut self, mss: u16) -> bool {
        let mss = mss.max(1);
        if !self.sent.iter().any(|sent| sent.is_too_long(mss)) {
            return false;
        }
        let old = std::mem::take(&mut self.sent);
        self.retransmit_hint = 0;
        self.memory = 0;
        self.counts = Counts::default();
        for sent in old {
            if !sent.is_too_long(mss) {
                self.adopt(sent);
                continue;
            }
            let mut next = Some(sent);
            while let Some(mut part) = next {
                next = part.split_by_sack();
                if part.is_too_long(mss) {
                    self.adopt_resegmented(part, mss);
                } else {
                    self.adopt(part);
                }
            }
        }
        true
    }

    /// Appends a frame as frames of lost segments of `mss` bytes.
    fn adopt_resegmented(&mut self, mut sent: Sent, mss: u16) {
        sent.head = 0;
        sent.unit = mss;
        sent.retransmitted = 0;
        while sent.segments() > MAX_SEGMENTS {
            let rest = sent.split_off_bytes(u32::from(mss) * MAX_SEGMENTS);
            sent.lost = sent.all();
            self.adopt(sent);
            sent = rest;
        }
        sent.lost = sent.all();
        self.adopt(sent);
    }

    fn adopt(&mut self, sent: Sent) {
        self.counts.packets_out += sent.segments();
        self.counts.sacked_out += sent.sacked.count_ones();
        self.counts.lost_out += sent.lost.count_ones();
        self.counts.retrans_out += sent.retransmitted.count_ones();
        self.memory = self.memory.saturating_add(sent.memory());
        self.sent.push_back(sent);
    }

    /// Counts the segments from the frames, to check the running counts.
    #[cfg(any(test, debug_assertions))]
    pub fn recount(&self, with_sack: bool) -> Counts {
        let mut counts = Counts { sacked_out: self.counts.sacked_out, ..Counts::default() };
        if with_sack {
            counts.sacked_out = self.sent.iter().map(|sent| sent.sacked.count_ones()).sum();
        }
        for sent in &self.sent {
            counts.packets_out += sent.segments();
            counts.lost_out += sent.lost.count_ones();
            counts.retrans_out += sent.retransmitted.count_ones();
        }
        counts
    }
}

/// End of the flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The oldest segment.
    First,
    /// The newest segment.
    Last,
}

/// Consecutive segments of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the frame.
    pub index: usize,
    first: u32,
    count: u32,
}

/// Takes the segments of `covered` out of the counts.
fn forget(counts: &mut Counts, sent: &Sent, covered: u64) {
    counts.packets_out -= covered.count_ones();
    let sacked = (sent.sacked & covered).count_ones();
    counts.sacked_out = counts.sacked_out.saturating_sub(sacked);
    counts.lost_out -= (sent.lost & covered).count_ones();
    counts.retrans_out -= (sent.retransmitted & covered).count_ones();
}

/// Cuts the acknowledged bytes off the front. Returns the memory freed.
fn trim(sent: &mut Sent, ack: SeqNumber, whole: u32) -> u32 {
    let bytes = ack.bytes_since(sent.seq);
    let head = (u32::from(sent.head) + bytes) - whole * u32::from(sent.unit);
    sent.payload.advance(bytes);
    sent.seq = ack;
    sent.seq_len -= bytes;
    sent.head = head as u16;
    sent.flags.remove(Flags::SYN);
    sent.sacked >>= whole;
    sent.lost >>= whole;
    sent.retransmitted >>= whole;
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::delivery_rate::RateSampler;
    use super::*;
    use bytes::Bytes;

    /// One frame of `segments` segments of 1,000 bytes.
    fn frame_of(segments: u32) -> Scoreboard {
        let mut board = Scoreboard::default();
        let payload = Payload::from(Bytes::from(vec![0; segments as usize * 1000]));
        let (marks, now) = (Flags::FIN, Instant::ZERO);
        let snapshot = RateSampler::default().on_transmit(now, true, segments);
        board.push(Sent::new(SeqNumber(0), payload, marks, 1000, now, Ticket::NONE, snapshot));
        board
    }

    /// So many frames of one segment of 1,000 bytes.
    fn frames(count: u32) -> Scoreboard {
        let mut board = Scoreboard::default();
        for index in 0..count {
            let payload = Payload::from(Bytes::from_static(&[0; 1000]));
            let (now, seq) = (Instant::ZERO, SeqNumber(index * 1000));
            let snapshot = RateSampler::default().on_transmit(now, true, 1);
            let none = (Flags::empty(), Ticket::NONE);
            board.push(Sent::new(seq, payload, none.0, 1000, now, none.1, snapshot));
        }
        board
    }

    #[test]
    fn an_ack_costs_what_is_new_in_it_and_what_is_missing() {
        const FRAMES: u32 = 10_000;
        let at = |frame: u32| SeqNumber(frame * 1000);
        let mut board = frames(FRAMES);
        let mut ack = |left: u32, right: u32| {
            board.sack(at(left), at(right), |_| {});
            // The hole was sent again, and its copy may still come.
            board.mark_lost(|sent| (sent.seq == at(0)).then_some(sent.seq), |_, _| {});
        };
        for right in 2..=FRAMES {
            ack(1, right);
        }
        for left in 2..FRAMES {
            ack(left, FRAMES);
        }
        for upto in 1..=FRAMES {
            board.acknowledge(at(upto), |_| {});
            board.mark_lost(|_| None, |_, _| {});
        }
        assert!(board.is_empty());
        assert!(board.visits <= 12 * FRAMES as usize, "{}", board.visits);
    }

    #[test]
    fn only_frames_that_are_sacked_as_a_whole_are_stepped_over() {
        let mut random = 1u32;
        let mut below = |limit: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % limit
        };
        let mut board = frame_of(60);
        let mut una = 0;
        for _ in 0..4000 {
            match below(40) {
                0 => board.mark_timed_out(None, |_, _| {}),
                1 => {
                    una += below(3) * 500;
                    board.acknowledge(SeqNumber(una), |_| {});
                }
                2..12 => {
                    let index = below(board.frames() as u32 + 1) as usize;
                    if let Some(segments) = board.get(index).map(Sent::segments) {
                        let first = below(segments);
                        board.isolate(Run { index, first, count: 1 }, 1);
                    }
                }
                12..22 => board.mark_lost(|sent| Some(sent.end()), |_, _| {}),
                _ => {
                    let left = una + below(60_000);
                    board.sack(SeqNumber(left), SeqNumber(left + below(6000)), |_| {});
                }
            }
            if board.is_empty() {
                (board, una) = (frame_of(60), 0);
            }
            for (index, sent) in board.sent.iter().enumerate() {
                let mut run = board.sent.range(index..index + sent.run as usize);
                assert!(run.all(Sent::is_sacked));
            }
            assert_eq!(board.counts(), board.recount(true));
        }
    }

    #[test]
    fn what_is_sacked_stays_so_when_segments_become_shorter() {
        let mut board = frame_of(5);
        board.sack(SeqNumber(1000), SeqNumber(3000), |_| {});
        assert!(board.resegment(400));
        // Three for the first 1,000 bytes, five for the last 2,000 and the FIN.
        let counts = Counts { packets_out: 10, sacked_out: 2, lost_out: 8, retrans_out: 0 };
        assert_eq!(board.counts(), counts);
        assert_eq!(board.recount(true), counts);
        assert_eq!(board.highest_sack(), Some(SeqNumber(3000)));
        assert!(!board.resegment(400), "all that is not SACKed is short enough");
        let mut delivered = 0;
        let acked = board.acknowledge(SeqNumber(5001), |part| delivered += part.segments);
        assert_eq!((acked, delivered), (10, 8), "the SACKed were delivered before");
        assert!(board.is_empty() && board.memory() == 0);
    }

    #[test]
    fn duplicate_acks_never_cover_the_hole_that_they_tell_of() {
        let mut board = Scoreboard::default();
        for i in 0..3 {
            let payload = Payload::from(Bytes::from_static(&[0; 100]));
            let (marks, now) = (Flags::empty(), Instant::ZERO);
            let snapshot = RateSampler::default().on_transmit(now, true, 1);
            let seq = SeqNumber(i * 100);
            board.push(Sent::new(seq, payload, marks, 100, now, Ticket::NONE, snapshot));
        }
        board.set_reno_sacked(3);
        board.mark_head_lost(|_, _| {});
        let counts = board.counts();
        assert_eq!((counts.sacked_out, counts.lost_out, counts.packets_out), (2, 1, 3));
        let acked = board.acknowledge(SeqNumber(200), |_| {});
        board.remove_reno_sacked(acked);
        assert_eq!(board.counts().sacked_out, 0);
        board.set_reno_sacked(5);
        assert_eq!(board.counts().sacked_out, 0, "one is out, and it is the hole");
    }
}
