//! Sending half of an AF_PACKET socket: slots go to the kernel in order and come back in any order.

use crate::ring::{SlotRing, TX_DATA};
use crate::virtio;
use neap_stack::device::{Completed, TxQueue};
use neap_stack::frame::Frame;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::small_queue::TxCredit;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::sync::Arc;

/// When slots that the kernel could not take are offered again, if no completion comes first.
const RETRY: Nanos = Nanos::from_millis(1);
/// When slots are looked at although no edge came.
const WATCHDOG: Nanos = Nanos::from_millis(10);
/// The same where edges are not to be relied on.
const POLL: Nanos = Nanos::from_micros(200);
/// Slots behind the oldest that are looked at for completion out of order (`fq_codel`, priorities).
const LOOKAHEAD: usize = 64;

const STATUS_AVAILABLE: u32 = libc::TP_STATUS_AVAILABLE;
const STATUS_SEND_REQUEST: u32 = libc::TP_STATUS_SEND_REQUEST;
const STATUS_WRONG_FORMAT: u32 = libc::TP_STATUS_WRONG_FORMAT;
/// Bits of a slot that is not ours.
const STATUS_BUSY: u32 = STATUS_SEND_REQUEST | libc::TP_STATUS_SENDING | STATUS_WRONG_FORMAT;

/// What is kept of a frame while its slot is out.
#[derive(Debug, Default)]
struct Held {
    _credit: Option<TxCredit>,
    bytes: u32,
    out: bool,
}

/// The TX ring and the frames in it. Oldest first: frames that the kernel has (some of them
/// completed already), then `unsent` ones that it has not taken yet, then free slots.
///
/// Cost: `fill` one copy; `collect` one load per slot that is out, at most 64 of them.
#[derive(Debug)]
pub(super) struct TxSlots {
    ring: SlotRing,
    held: Box<[Held]>,
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
        let given_up = Completed::default();
        Self { ring, held, head: 0, frames: 0, unsent: 0, given_up, errors: 0 }
    }

    /// The slot of the frame with `age` frames before it.
    fn slot(&self, age: usize) -> usize {
        (self.head + age) % self.held.len()
    }

    fn is_full(&self) -> bool {
        self.frames == self.held.len()
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
        self.held[slot] =
            Held { _credit: frame.credit.take(), bytes: frame.len() as u32, out: true };
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
        let held = core::mem::take(&mut self.held[slot]);
        self.frames -= 1;
        self.unsent -= 1;
        self.give_up(held.bytes);
    }

    fn drop_unsent(&mut self) {
        while self.unsent > 0 {
            self.drop_last();
        }
    }

    /// Drops the credits of the frames that the kernel is done with.
    fn collect(&mut self) -> Completed {
        let mut completed = core::mem::take(&mut self.given_up);
        let sent = self.frames - self.unsent;
        for age in 0..sent.min(LOOKAHEAD) {
            let slot = self.slot(age);
            if self.held[slot].out && self.ring.status(slot) & STATUS_BUSY == 0 {
                let held = core::mem::take(&mut self.held[slot]);
                completed.frames += 1;
                completed.bytes += u64::from(held.bytes);
            }
        }
        while self.frames > self.unsent && !self.held[self.head].out {
            self.head = self.slot(1);
            self.frames -= 1;
        }
        completed
    }
}

/// The sending queue of an AF_PACKET socket. Cost: one copy per frame, one system call per batch.
pub(super) struct PacketTx {
    socket: Arc<OwnedFd>,
    slots: TxSlots,
    look_after: Nanos,
    look_at: Instant,
    retry_at: Instant,
}

impl PacketTx {
    /// `wakes`: the descriptor gives an edge for every completion.
    pub(super) fn new(socket: Arc<OwnedFd>, slots: TxSlots, wakes: bool) -> Self {
        let look_after = if wakes { WATCHDOG } else { POLL };
        let (look_at, retry_at) = (Instant::FAR_FUTURE, Instant::FAR_FUTURE);
        Self { socket, slots, look_after, look_at, retry_at }
    }

    /// Offers the unsent slots to the kernel. What its qdisc or the send buffer refuses stays for
    /// the next time; a malformed frame is removed; an interface that is down or gone loses them
    /// all.
    fn kick(&mut self, now: Instant) {
        while self.slots.unsent > 0 {
            let result = send(&*self.socket, &[], SendFlags::DONTWAIT);
            if self.slots.note_sent() {
                self.slots.remove_first_unsent();
                continue;
            }
            match result {
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {}
                Err(_) => self.slots.drop_unsent(),
            }
            break;
        }
        self.look_later(now);
        self.retry_at = if self.slots.unsent > 0 { now + RETRY } else { Instant::FAR_FUTURE };
    }

    fn look_later(&mut self, now: Instant) {
        if self.slots.given_up.frames > 0 {
            self.look_at = now;
            return;
        }
        let idle = self.slots.frames == 0;
        self.look_at = if idle { Instant::FAR_FUTURE } else { now + self.look_after };
    }
}

impl TxQueue for PacketTx {
    fn submit(&mut self, frame: Frame, _now: Instant) -> Result<(), Frame> {
        self.slots.fill(frame)
    }

    fn flush(&mut self, now: Instant) {
        if self.slots.unsent > 0 {
            self.kick(now);
        } else {
            self.look_later(now);
        }
    }

    fn reap(&mut self, now: Instant) -> Completed {
        let completed = self.slots.collect();
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
    use neap_tcp::transmit::small_queue::TxAccount;
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
