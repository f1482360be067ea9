//! Receiving half of an AF_PACKET socket: slots that the kernel fills in order.

use crate::arena::{Arena, PACKET_ROOM};
use crate::ring::SlotRing;
use crate::sys;
use crate::virtio;
use core::cell::Cell;
use neap_stack::device::{Received, RxChecksum, RxQueue};
use neap_tcp::time::Instant;
use rustix::fd::OwnedFd;
use std::sync::Arc;

const STATUS_KERNEL: u32 = libc::TP_STATUS_KERNEL;
const STATUS_USER: u32 = libc::TP_STATUS_USER;
/// A tag was taken off the packet: it belongs to a VLAN interface, not to this one.
const STATUS_VLAN: u32 = libc::TP_STATUS_VLAN_VALID;
const STATUS_CHECKSUM_VALID: u32 = libc::TP_STATUS_CSUM_VALID;

/// The receiving queue of an AF_PACKET socket. Cost: one copy per packet, no system call.
pub(super) struct PacketRx {
    socket: Arc<OwnedFd>,
    ring: SlotRing,
    next: usize,
    arena: Arena,
    /// Packets that did not fit their slot.
    truncated: u64,
    /// Drops of the kernel for want of a slot; it forgets them when asked.
    lost: Cell<u64>,
}

impl PacketRx {
    pub(super) fn new(socket: Arc<OwnedFd>, ring: SlotRing) -> Self {
        Self { socket, ring, next: 0, arena: Arena::default(), truncated: 0, lost: Cell::new(0) }
    }

    /// The packet in the slot, if it is whole and meant for us.
    fn read(&mut self, slot: usize, status: u32) -> Option<Received> {
        let packet = self.ring.descriptor(slot);
        let ours = packet.kind <= libc::PACKET_MULTICAST && status & STATUS_VLAN == 0;
        let fits = packet.captured <= PACKET_ROOM
            && packet.link >= virtio::HEADER_LEN
            && packet.link + packet.captured <= self.ring.slot_size();
        if !fits || packet.captured < packet.len {
            self.truncated += 1;
            return None;
        }
        if !ours {
            return None;
        }
        let header = self.ring.bytes(slot, packet.link - virtio::HEADER_LEN);
        let header = virtio::Header::decode(header);
        self.ring.copy_out(slot, packet.link, packet.captured, self.arena.room());
        let data = self.arena.take();
        let checksum = match header.received_checksum(data.len()) {
            RxChecksum::Unknown if status & STATUS_CHECKSUM_VALID != 0 => RxChecksum::Good,
            checksum => checksum,
        };
        Some(Received { data, gso_size: header.received_gso_size(), checksum })
    }
}

impl RxQueue for PacketRx {
    fn receive(&mut self, _now: Instant) -> Option<Received> {
        for _ in 0..self.ring.slots() {
            let slot = self.next;
            let status = self.ring.status(slot);
            if status & STATUS_USER == 0 {
                return None;
            }
            let packet = self.read(slot, status);
            self.ring.set_status(slot, STATUS_KERNEL);
            self.next = (slot + 1) % self.ring.slots();
            if packet.is_some() {
                return packet;
            }
        }
        None
    }

    /// Costs a system call.
    fn drops(&self) -> u64 {
        let lost = sys::packet_drops(&self.socket).unwrap_or(0);
        self.lost.set(self.lost.get() + u64::from(lost));
        self.lost.get() + self.truncated
    }
}
