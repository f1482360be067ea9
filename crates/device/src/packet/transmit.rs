//! Sending half of an AF_PACKET socket: slots go to the kernel in order and come back in any order.

use super::direct::{Direct, Held, LARGE, Sent};
use crate::clock;
use crate::ring::{SlotRing, TX_DATA};
use crate::virtio;
use neap_stack::device::{Completed, TxQueue};
use neap_stack::frame::Frame;
use neap_tcp::time::{Instant, Nanos};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::sync::Arc;

/// When slots that the kernel could not take are offered again, if no completion comes first.
const RETRY: Nanos = Nanos::from_millis(1);
/// How long a frame may be refused while the kernel has no other of this ring. A full qdisc would
/// be full of frames of others; a filter refuses the frame for ever, and would hold up all behind
/// it.
const PATIENCE: Nanos = Nanos::from_millis(10);
/// When slots are looked at although no edge came.
const WATCHDOG: Nanos = Nanos::from_millis(10);
/// The same where edges are not to be relied on.
const POLL: Nanos = Nanos::from_micros(200);
/// Slots that one call finds not completed before it stops: so many of the oldest, and so many
/// further on.
const LOOK: usize = 64;
/// When the next call looks at slots that the last one had no time for.
const REST: Nanos = Nanos::from_micros(50);
/// No slot.
const NONE: u32 = u32::MAX;

const STATUS_AVAILABLE: u32 = libc::TP_STATUS_AVAILABLE;
const STATUS_SEND_REQUEST: u32 = libc::TP_STATUS_SEND_REQUEST;
const STATUS_WRONG_FORMAT: u32 = libc::TP_STATUS_WRONG_FORMAT;
/// Bits of a slot that is not ours.
const STATUS_BUSY: u32 = STATUS_SEND_REQUEST | libc::TP_STATUS_SENDING | STATUS_WRONG_FORMAT;

/// The slots that are out, oldest first: a list through arrays, so that a slot leaves it from any
/// place. A slot that is out has its neighbours, or [`NONE`] at an end.
///
/// Cost: O(1) to add and to remove; 9 bytes per slot of the ring.
#[derive(Debug)]
struct OutList {
    next: Box<[u32]>,
    previous: Box<[u32]>,
    is_out: Box<[bool]>,
    first: u32,
    last: u32,
    len: usize,
}

impl OutList {
    fn new(slots: usize) -> Self {
        let none = || vec![NONE; slots].into_boxed_slice();
        let is_out = vec![false; slots].into_boxed_slice();
        Self { next: none(), previous: none(), is_out, first: NONE, last: NONE, len: 0 }
    }

    fn push(&mut self, slot: usize) {
        let name = slot as u32;
        self.is_out[slot] = true;
        (self.previous[slot], self.next[slot]) = (self.last, NONE);
        match self.last {
            NONE => self.first = name,
            last => self.next[last as usize] = name,
        }
        self.last = name;
        self.len += 1;
    }

    fn remove(&mut self, slot: usize) {
        let (previous, next) = (self.previous[slot], self.next[slot]);
        match previous {
            NONE => self.first = next,
            previous => self.next[previous as usize] = next,
        }
        match next {
            NONE => self.last = previous,
            next => self.previous[next as usize] = previous,
        }
        self.is_out[slot] = false;
        self.len -= 1;
    }
}

/// The TX ring and the frames in it. Oldest first: frames that the kernel has (some of them
/// completed already), then `unsent` ones that it has not taken yet, then free slots.
///
/// The kernel takes slots in the order of the ring, but completes them in any order: a qdisc may
/// hold a frame while later ones leave. The credit of a frame is dropped when its slot is
/// completed; the slot is used again when all before it are.
///
/// Cost: `fill` one copy; `collect` one load per slot that it finds completed, and at most 128 for
/// others. With more slots out, each call looks at the oldest 64, and at 64 of the others in turn.
#[derive(Debug)]
pub(super) struct TxSlots {
    ring: SlotRing,
    held: Box<[Held]>,
    out: OutList,
    /// The slot that the next call looks at first beyond the oldest; [`NONE`] to begin there.
    further: u32,
    /// The last call did not look at all slots that are out.
    has_rest: bool,
    /// The slot of the oldest frame.
    head: usize,
    /// Frames in the ring.
    frames: usize,
    /// The latest of them, not yet taken by the kernel.
    unsent: usize,
    /// Given up since the last `collect`.
    given_up: Completed,
    errors: u64,
}

impl TxSlots {
    pub(super) fn new(ring: SlotRing) -> Self {
        let held = (0..ring.slots()).map(|_| Held::default()).collect();
        let out = OutList::new(ring.slots());
        let given_up = Completed::default();
        Self {
            ring,
            held,
            out,
            further: NONE,
            has_rest: false,
            head: 0,
            frames: 0,
            unsent: 0,
            given_up,
            errors: 0,
        }
    }

    /// The slot of the frame with `age` frames before it.
    fn slot(&self, age: usize) -> usize {
        (self.head + age) % self.held.len()
    }

    /// The number of frames before that of `slot`, as if all slots from the head on were used.
    fn age(&self, slot: usize) -> usize {
        (slot + self.held.len() - self.head) % self.held.len()
    }

    fn is_full(&self) -> bool {
        self.frames == self.held.len()
    }

    /// Whether the kernel has taken all frames and is done with the latest.
    fn is_done(&self) -> bool {
        let is_done = |slot: u32| self.ring.status(slot as usize) & STATUS_BUSY == 0;
        self.unsent == 0 && (self.out.last == NONE || is_done(self.out.last))
    }

    /// Whether the kernel has none of the frames, as far as was looked.
    fn has_none_in_kernel(&self) -> bool {
        self.out.len == self.unsent
    }

    /// Copies the frame into the next slot; gives it back when the ring is full.
    #[expect(clippy::result_large_err, reason = "the frame itself comes back, as in `submit`")]
    fn fill(&mut self, mut frame: Frame) -> Result<(), Frame> {
        if self.is_full() {
            return Err(frame);
        }
        let len = virtio::HEADER_LEN + frame.len();
        let header = virtio::Header::of(&frame);
        let (Some(header), true) = (header, TX_DATA + len <= self.ring.slot_size()) else {
            self.give_up(frame.len() as u32);
            return Ok(());
        };
        let slot = self.slot(self.frames);
        let mut at = TX_DATA;
        let header = header.encode();
        let parts = [&header[..], frame.headers.as_slice()];
        for part in parts.into_iter().chain(frame.payload.chunks().iter().map(|chunk| &chunk[..])) {
            self.ring.copy_in(slot, at, part);
            at += part.len();
        }
        self.ring.set_len(slot, len);
        self.ring.set_status(slot, STATUS_SEND_REQUEST);
        self.held[slot] = Held { credit: frame.credit.take(), bytes: frame.len() as u32 };
        self.out.push(slot);
        self.frames += 1;
        self.unsent += 1;
        Ok(())
    }

    fn give_up(&mut self, bytes: u32) {
        self.errors += 1;
        self.given_up.frames += 1;
        self.given_up.bytes += u64::from(bytes);
    }

    /// Sees how far the kernel came. Returns whether it stopped at a frame that it finds malformed.
    fn note_sent(&mut self) -> bool {
        while self.unsent > 0 {
            let status = self.ring.status(self.slot(self.frames - self.unsent));
            if status & STATUS_WRONG_FORMAT != 0 {
                return true;
            }
            if status & STATUS_SEND_REQUEST != 0 {
                return false;
            }
            self.unsent -= 1;
        }
        false
    }

    /// Takes out the oldest unsent frame. The kernel waits at that very slot, so the later frames
    /// move up by one.
    fn remove_first_unsent(&mut self) {
        for age in self.frames - self.unsent..self.frames - 1 {
            let (here, next) = (self.slot(age), self.slot(age + 1));
            self.ring.move_packet(next, here);
            self.ring.set_status(here, STATUS_SEND_REQUEST);
            self.held.swap(here, next);
        }
        self.drop_last();
    }

    /// Takes the latest unsent frame out of the ring for good.
    fn drop_last(&mut self) {
        let slot = self.slot(self.frames - 1);
        self.ring.set_status(slot, STATUS_AVAILABLE);
        let bytes = self.release(slot);
        self.frames -= 1;
        self.unsent -= 1;
        self.give_up(bytes);
    }

    fn drop_unsent(&mut self) {
        while self.unsent > 0 {
            self.drop_last();
        }
    }

    /// Takes a slot off the list and drops the credit of its frame; the bytes of the frame.
    fn release(&mut self, slot: usize) -> u32 {
        if self.further == slot as u32 {
            self.further = self.out.next[slot];
        }
        self.out.remove(slot);
        let Held { credit, bytes } = core::mem::take(&mut self.held[slot]);
        drop(credit);
        bytes
    }

    /// Looks at the slots that are out, from `slot` on, until `LOOK` of them were not completed.
    /// Drops the credits of the frames that the kernel is done with. Returns the slot behind the
    /// last one that was looked at, or `NONE` if the kernel has no more.
    fn look(&mut self, mut slot: u32, completed: &mut Completed) -> u32 {
        let sent = self.frames - self.unsent;
        let mut busy = 0;
        while slot != NONE && self.age(slot as usize) < sent {
            if busy == LOOK {
                return slot;
            }
            let next = self.out.next[slot as usize];
            if self.ring.status(slot as usize) & STATUS_BUSY == 0 {
                completed.frames += 1;
                completed.bytes += u64::from(self.release(slot as usize));
            } else {
                busy += 1;
            }
            slot = next;
        }
        NONE
    }

    /// Drops the credits of the frames that the kernel is done with, as far as one call looks.
    fn collect(&mut self) -> Completed {
        let mut completed = core::mem::take(&mut self.given_up);
        let behind_oldest = self.look(self.out.first, &mut completed);
        let is_behind = |slot: u32| {
            slot != NONE
                && behind_oldest != NONE
                && self.age(slot as usize) > self.age(behind_oldest as usize)
        };
        let is_long = self.out.len - self.unsent > 2 * LOOK;
        let from = if is_long && is_behind(self.further) { self.further } else { behind_oldest };
        self.further = self.look(from, &mut completed);
        self.has_rest = from != behind_oldest || self.further != NONE;
        while self.frames > self.unsent && !self.out.is_out[self.head] {
            self.head = self.slot(1);
            self.frames -= 1;
        }
        completed
    }
}

/// The sending queue of an AF_PACKET socket. Cost of the ring: one copy per frame, one system call
/// per batch.
pub(super) struct PacketTx {
    socket: Arc<OwnedFd>,
    slots: TxSlots,
    /// The way past the ring, for a device that has one.
    direct: Option<Direct>,
    /// The latest frame went that way, and was completed when `submit` returned.
    is_latest_complete: bool,
    look_after: Nanos,
    look_at: Instant,
    retry_at: Instant,
    /// Since when the oldest unsent frame is refused while the kernel has no other.
    refused_since: Option<Instant>,
}

impl PacketTx {
    /// `wakes`: the descriptor gives an edge for every completion.
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        slots: TxSlots,
        direct: Option<Direct>,
        wakes: bool,
    ) -> Self {
        let look_after = if wakes { WATCHDOG } else { POLL };
        let (look_at, retry_at) = (Instant::FAR_FUTURE, Instant::FAR_FUTURE);
        Self {
            socket,
            slots,
            direct,
            is_latest_complete: false,
            look_after,
            look_at,
            retry_at,
            refused_since: None,
        }
    }

    /// Offers the unsent slots to the kernel. What its qdisc or the send buffer refuses stays for
    /// the next time, unless it is refused for long; a malformed frame is removed; an interface
    /// that is down or gone loses them all.
    fn kick(&mut self, now: Instant) {
        while self.slots.unsent > 0 {
            let unsent = self.slots.unsent;
            let result = send(&*self.socket, &[], SendFlags::DONTWAIT);
            if self.slots.note_sent() {
                self.slots.remove_first_unsent();
                continue;
            }
            match result {
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {}
                Err(_) => self.slots.drop_unsent(),
            }
            if self.slots.unsent < unsent || !self.slots.has_none_in_kernel() {
                self.refused_since = None;
            } else if now >= *self.refused_since.get_or_insert(now) + PATIENCE {
                self.slots.remove_first_unsent();
                self.refused_since = None;
                continue;
            }
            break;
        }
        self.look_later(now);
        self.retry_at = if self.slots.unsent > 0 { now + RETRY } else { Instant::FAR_FUTURE };
    }

    /// Offers the unsent slots for the first time, and sees whether the kernel completed all frames
    /// meanwhile. Those that it refused are none.
    fn offer(&mut self, now: Instant) {
        let errors = self.slots.errors;
        self.kick(now);
        let is_done = self.slots.is_done() && self.slots.errors == errors;
        if let Some(direct) = &mut self.direct {
            direct.note(is_done);
        }
    }

    /// Sends a frame past the ring, behind all frames that are in the ring.
    fn send_past_ring(&mut self, frame: &mut Frame, now: Instant) -> Sent {
        if self.slots.unsent > 0 {
            self.offer(now);
        }
        match &mut self.direct {
            Some(direct) if self.slots.is_done() => direct.send(frame),
            _ => Sent::Refused,
        }
    }

    fn look_later(&mut self, now: Instant) {
        if self.slots.given_up.frames > 0 {
            self.look_at = now;
            return;
        }
        // What was written past the ring gives no edge.
        if self.direct.as_ref().is_some_and(Direct::holds) {
            self.look_at = now + POLL;
            return;
        }
        self.look_at = match self.slots.frames {
            0 => Instant::FAR_FUTURE,
            _ if self.slots.has_rest => now + REST.min(self.look_after),
            _ => now + self.look_after,
        };
    }
}

impl TxQueue for PacketTx {
    fn submit(&mut self, mut frame: Frame, now: Instant) -> Result<(), Frame> {
        self.is_latest_complete = false;
        if frame.len() >= LARGE && self.completes_within_calls() {
            match self.send_past_ring(&mut frame, now) {
                Sent::AtOnce => {
                    self.is_latest_complete = true;
                    return Ok(());
                }
                Sent::Held => return Ok(()),
                Sent::Refused => {}
            }
        }
        self.slots.fill(frame)
    }

    fn departure(&self, now: Instant) -> Instant {
        clock::present(now)
    }

    fn is_latest_complete(&self) -> bool {
        self.is_latest_complete
    }

    fn completes_within_calls(&self) -> bool {
        self.direct.as_ref().is_some_and(Direct::is_ready)
    }

    fn flush(&mut self, now: Instant) {
        if self.slots.unsent > 0 {
            self.offer(now);
        } else {
            self.look_later(now);
        }
    }

    fn reap(&mut self, now: Instant) -> Completed {
        let mut completed = self.slots.collect();
        if let Some(direct) = &mut self.direct {
            let past = direct.collect();
            completed.frames += past.frames;
            completed.bytes += past.bytes;
        }
        if self.slots.unsent > 0 && (completed.frames > 0 || now >= self.retry_at) {
            self.kick(now);
        } else {
            self.look_later(now);
        }
        completed
    }

    fn next_event(&self) -> Instant {
        self.look_at.min(self.retry_at)
    }

    fn errors(&self) -> u64 {
        self.slots.errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Geometry;
    use crate::sys::Mapping;
    use bytes::{Bytes, BytesMut};
    use neap_stack::frame::Headers;
    use neap_tcp::segment::Payload;
    use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
    use std::task::Waker;

    const SENDING: u32 = libc::TP_STATUS_SENDING;

    fn slots(count: usize) -> TxSlots {
        let geometry = Geometry::new(count, 4096, 4096);
        assert_eq!(geometry.slots(), count);
        TxSlots::new(SlotRing::new(Arc::new(Mapping::anonymous(geometry.len())), 0, geometry))
    }

    fn frame(account: &Arc<TxAccount>, payload: &'static [u8]) -> Frame {
        let mut headers = Headers::default();
        headers.prepend(14);
        Frame {
            link_len: 14,
            credit: Some(TxCredit::charge(account, 100)),
            ..Frame::new(headers, Payload::from(Bytes::from_static(payload)))
        }
    }

    /// The kernel takes all unsent frames.
    fn take_all(slots: &mut TxSlots) {
        for age in slots.frames - slots.unsent..slots.frames {
            slots.ring.set_status(slots.slot(age), SENDING);
        }
        assert!(!slots.note_sent());
        assert_eq!(slots.unsent, 0);
    }

    fn payload(slots: &TxSlots, age: usize) -> BytesMut {
        let slot = slots.slot(age);
        let mut bytes = BytesMut::new();
        let headers = virtio::HEADER_LEN + 14;
        slots.ring.copy_out(slot, TX_DATA + headers, slots.ring.len(slot) - headers, &mut bytes);
        bytes
    }

    #[test]
    fn a_full_ring_gives_the_frame_back() {
        let account = TxAccount::new(Waker::noop().clone());
        let mut slots = slots(2);
        slots.fill(frame(&account, b"a")).expect("room");
        slots.fill(frame(&account, b"b")).expect("room");
        let back = slots.fill(frame(&account, b"c")).expect_err("full");
        assert!(back.credit.is_some());
        assert_eq!(payload(&slots, 1), b"b"[..]);
    }

    #[test]
    fn credits_follow_the_slots_in_any_order() {
        let account = TxAccount::new(Waker::noop().clone());
        let mut slots = slots(4);
        for round in 0..10 {
            for text in [b"a", b"b", b"c"] {
                slots.fill(frame(&account, text)).expect("room");
            }
            assert_eq!(slots.collect(), Completed::default(), "round {round}");
            take_all(&mut slots);
            slots.ring.set_status(slots.slot(1), STATUS_AVAILABLE);
            assert_eq!(slots.collect(), Completed { frames: 1, bytes: 15 });
            assert_eq!((account.bytes(), slots.frames), (200, 3), "the oldest keeps its place");
            slots.ring.set_status(slots.slot(0), STATUS_AVAILABLE);
            assert_eq!(slots.collect().frames, 1);
            assert_eq!((account.bytes(), slots.frames), (100, 1));
            slots.ring.set_status(slots.slot(0), STATUS_AVAILABLE);
            assert_eq!(slots.collect().frames, 1);
            assert_eq!((account.bytes(), slots.frames), (0, 0));
        }
    }

    /// Frames beyond the oldest 64 are completed in one call, in the ring of the default size.
    #[test]
    fn a_held_head_holds_no_credit_of_later_frames() {
        let account = TxAccount::new(Waker::noop().clone());
        let mut slots = slots(128);
        for _ in 0..128 {
            slots.fill(frame(&account, b"a")).expect("room");
        }
        take_all(&mut slots);
        for age in 100..128 {
            slots.ring.set_status(age, STATUS_AVAILABLE);
        }
        assert_eq!(slots.collect().frames, 28);
        assert_eq!((account.bytes(), slots.frames, slots.has_rest), (10_000, 128, false));
        assert!(slots.fill(frame(&account, b"b")).is_err(), "the kernel is still at the head");
        for age in 0..100 {
            slots.ring.set_status(age, STATUS_AVAILABLE);
        }
        assert_eq!((slots.collect().frames, slots.frames), (100, 0));
    }

    #[test]
    fn a_large_ring_is_looked_at_in_turn() {
        let account = TxAccount::new(Waker::noop().clone());
        let mut slots = slots(1024);
        for _ in 0..1000 {
            slots.fill(frame(&account, b"a")).expect("room");
        }
        take_all(&mut slots);
        slots.fill(frame(&account, b"unsent")).expect("room");
        for round in 0..3 {
            // Two of the later frames in each of the stretches that a call looks at.
            let done: Vec<_> = (64..1000).skip(round).step_by(32).collect();
            done.iter().for_each(|&slot| slots.ring.set_status(slot, STATUS_AVAILABLE));
            let mut calls = 0;
            let mut found = 0;
            while found < done.len() as u32 {
                let frames = slots.collect().frames;
                assert!(frames <= 6 && slots.has_rest, "{frames} of one call");
                found += frames;
                calls += 1;
                assert!(calls <= 2 * 1000 / LOOK, "{found} of {} found", done.len());
            }
            assert_eq!(found, done.len() as u32);
        }
        (0..1000).for_each(|slot| slots.ring.set_status(slot, STATUS_AVAILABLE));
        slots.collect();
        assert_eq!((slots.frames, slots.unsent, account.bytes()), (1, 1, 100));
        assert!(!slots.has_rest);
        assert_eq!(slots.out.first, 1000);
    }

    #[test]
    fn a_malformed_frame_leaves_and_the_others_move_up() {
        let account = TxAccount::new(Waker::noop().clone());
        let mut slots = slots(4);
        for text in [&b"first"[..], b"bad", b"third", b"4"] {
            slots.fill(frame(&account, text)).expect("room");
        }
        slots.ring.set_status(slots.slot(0), SENDING);
        slots.ring.set_status(slots.slot(1), STATUS_WRONG_FORMAT);
        assert!(slots.note_sent());
        slots.remove_first_unsent();
        assert_eq!((slots.frames, slots.unsent, slots.errors), (3, 2, 1));
        assert_eq!(
            (payload(&slots, 1), payload(&slots, 2)),
            (b"third"[..].into(), b"4"[..].into())
        );
        assert_eq!(slots.ring.status(slots.slot(1)), STATUS_SEND_REQUEST);
        assert_eq!(slots.ring.status(slots.slot(3)), STATUS_AVAILABLE);
        assert_eq!((account.bytes(), slots.collect().frames), (300, 1));
        slots.fill(frame(&account, b"5")).expect("a slot is free again");
    }

    #[test]
    fn frames_that_cannot_leave_return_their_credit() {
        let account = TxAccount::new(Waker::noop().clone());
        let mut slots = slots(4);
        for text in [b"a", b"b", b"c"] {
            slots.fill(frame(&account, text)).expect("room");
        }
        slots.ring.set_status(slots.slot(0), SENDING);
        assert!(!slots.note_sent());
        slots.drop_unsent();
        assert_eq!((account.bytes(), slots.errors, slots.frames), (100, 2, 1));
        assert_eq!(slots.collect(), Completed { frames: 2, bytes: 30 });
        slots.fill(frame(&account, &[0; 8000])).expect("refused for good");
        assert_eq!((account.bytes(), slots.errors, slots.frames), (100, 3, 1));
    }
}
