//! Sending past the ring, where frames leave the sender's side of the kernel within the call.
//!
//! A virtual interface such as a veth hands a frame to its other end before the call returns. For a
//! frame of the ring the kernel then copies all pages of the slot, one by one, into memory of its
//! own (`skb_orphan_frags` in `____dev_forward_skb`), so that each byte is copied once into the
//! slot and once out of it. `writev` to a socket without a ring copies each byte once, into larger
//! pages. That is worth a system call of its own for a large frame ([`LARGE`]); small ones cost
//! less in the ring, of which one call takes all.
//!
//! A frame that was written has no slot whose status tells of its completion. There is only the
//! number of bytes that all frames of the socket have in the kernel (`SIOCOUTQ`, that is
//! `sk_wmem_alloc`). While that is 0, all are completed. So frames are written only where each is
//! completed when the call returns. The first that is not stays the only one, and the ring takes
//! those behind it.
//!
//! Cost: two system calls per frame, and one copy by the kernel.

use crate::sys;
use crate::virtio;
use crate::write::write_frame;
use neap_stack::device::Completed;
use neap_stack::frame::Frame;
use neap_tcp::transmit::small_queue::TxCredit;
use rustix::fd::OwnedFd;

/// So often in a row the kernel must have completed everything within the call, before frames pass
/// the ring by. A `tbf` that has saved tokens does so a few times.
const READY: u8 = 16;

/// Frames of so many bytes pass the ring by. Over a veth on a busy machine, segments of 1500 bytes
/// cost 2 seconds of processor time per gigabyte in the ring and 4 past it, frames of 12 to 16 KB
/// the same, and those of 64 KB 0.6 and 0.4.
pub(super) const LARGE: usize = 16 << 10;

/// What is kept of a frame while the kernel has it.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) credit: Option<TxCredit>,
    pub(super) bytes: u32,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The kernel is done with it.
    AtOnce,
    /// The kernel has it still, and it is kept until [`Direct::collect`].
    Held,
    /// It was not sent. The ring will find out why.
    Refused,
}

/// A socket without rings, beside that of the ring.
#[derive(Debug)]
pub(super) struct Direct {
    socket: OwnedFd,
    /// How often in a row everything was completed within the call.
    in_a_row: u8,
    /// The frame that was not.
    held: Option<Held>,
}

impl Direct {
    /// `socket` sends by one interface and receives nothing.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, in_a_row: 0, held: None }
    }

    /// Takes whether the kernel has completed within a call all frames that it was given.
    pub(super) fn note(&mut self, is_at_once: bool) {
        self.in_a_row = if is_at_once { self.in_a_row.saturating_add(1) } else { 0 };
    }

    /// Returns whether frames may pass the ring by.
    pub(super) fn is_ready(&self) -> bool {
        self.in_a_row >= READY && self.held.is_none()
    }

    /// Sends a frame. Its credit is taken if the kernel holds it.
    pub(super) fn send(&mut self, frame: &mut Frame) -> Sent {
        let Some(header) = virtio::Header::of(frame) else {
            return Sent::Refused;
        };
        if write_frame(&self.socket, Some(&header.encode()), frame).is_err() {
            self.in_a_row = 0;
            return Sent::Refused;
        }
        if self.is_done() {
            return Sent::AtOnce;
        }
        self.in_a_row = 0;
        self.held = Some(Held { credit: frame.credit.take(), bytes: frame.len() as u32 });
        Sent::Held
    }

    /// Whether the kernel has no frame of the socket.
    fn is_done(&self) -> bool {
        sys::bytes_in_kernel(&self.socket).unwrap_or(0) == 0
    }

    /// Returns whether the kernel had a frame when it was asked last.
    pub(super) fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Drops the credit of the frame that was held, if the kernel is done with it.
    pub(super) fn collect(&mut self) -> Completed {
        if self.held.is_none() || !self.is_done() {
            return Completed::default();
        }
        let held = self.held.take().unwrap_or_default();
        Completed { frames: 1, bytes: held.bytes.into() }
    }
}
