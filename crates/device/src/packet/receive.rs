//! Receiving half of an AF_PACKET socket: slots that the kernel fills in order.

use crate::arena::{Arena, PACKET_ROOM};
use crate::clock;
use crate::ring::{Descriptor, SlotRing};
use crate::sys;
use crate::virtio;
use bytes::Bytes;
use core::cell::Cell;
use neap_stack::device::{Received, RxQueue};
use neap_tcp::time::Instant;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::Arc;

const STATUS_KERNEL: u32 = libc::TP_STATUS_KERNEL;
const STATUS_USER: u32 = libc::TP_STATUS_USER;
/// A tag was taken off the packet.
const STATUS_VLAN: u32 = libc::TP_STATUS_VLAN_VALID;
/// The VLAN in a tag. A packet of one belongs to a VLAN interface, not to this one; 0 is none, and
/// the tag has a priority alone (IEEE 802.1Q).
const VLAN: u16 = 0xfff;

/// The whole packet waits in the receive queue of the socket.
const STATUS_COPY: u32 = libc::TP_STATUS_COPY;
/// Pending errors of the socket that one read of a packet skips; a read tells one, and clears it.
const ERRORS_MAX: usize = 4;

/// The receiving queue of an AF_PACKET socket. Cost: one copy per packet; a system call for one
/// that is larger than a slot.
pub(super) struct PacketRx {
    socket: Arc<OwnedFd>,
    ring: SlotRing,
    next: usize,
    arena: Arena,
    /// Packets for others are received too.
    promiscuous: bool,
    /// Packets of a VLAN that would be received without their tag.
    tagged: u64,
    /// Packets for us that were larger than their slot, of which the kernel kept no more.
    truncated: u64,
    /// Drops of the kernel for want of a slot; it forgets them when asked.
    lost: Cell<u64>,
}

impl PacketRx {
    pub(super) fn new(socket: Arc<OwnedFd>, ring: SlotRing, promiscuous: bool) -> Self {
        let (arena, lost) = (Arena::default(), Cell::new(0));
        Self { socket, ring, next: 0, arena, promiscuous, tagged: 0, truncated: 0, lost }
    }

    /// The packet in the slot, or the one in the receive queue that the slot stands for, if it is
    /// whole and meant for us.
    fn read(&mut self, slot: usize, status: u32) -> Option<Received> {
        let packet = self.ring.descriptor(slot);
        let is_queued = status & STATUS_COPY != 0;
        let last = if self.promiscuous { libc::PACKET_OTHERHOST } else { libc::PACKET_MULTICAST };
        if packet.kind > last {
            if is_queued {
                // The slots behind it stand for the packets behind it.
                let _ = self.read_from_queue(packet.len);
            }
            return None;
        }
        let taken = if is_queued {
            self.read_from_queue(packet.len)
        } else {
            self.copy_from_slot(slot, &packet)
        };
        let Some((header, data)) = taken else {
            self.truncated += 1;
            return None;
        };
        if status & STATUS_VLAN != 0 && packet.tag & VLAN != 0 {
            self.tagged += 1;
            return None;
        }
        // TP_STATUS_CSUM_VALID says nothing: kernels until 2022 set it for packets that the card
        // has summed and nobody has judged. The header tells of those that were.
        let checksum = header.received_checksum(data.len());
        Some(Received { data, gso_size: header.received_gso_size(), checksum })
    }

    /// What is in the slot, if it is whole.
    fn copy_from_slot(
        &mut self,
        slot: usize,
        packet: &Descriptor,
    ) -> Option<(virtio::Header, Bytes)> {
        let fits = packet.captured <= PACKET_ROOM
            && packet.link >= virtio::HEADER_LEN
            && packet.link + packet.captured <= self.ring.slot_size();
        if !fits || packet.captured < packet.len {
            return None;
        }
        let header = self.ring.bytes(slot, packet.link - virtio::HEADER_LEN);
        self.ring.copy_out(slot, packet.link, packet.captured, self.arena.room());
        Some((virtio::Header::decode(header), self.arena.take()))
    }

    /// The oldest packet of the receive queue, if it is whole. The kernel puts a packet there
    /// before it hands over the slot that stands for it, in the order of the slots.
    fn read_from_queue(&mut self, len: usize) -> Option<(virtio::Header, Bytes)> {
        let room = self.arena.room();
        let read = (0..ERRORS_MAX).find_map(|_| match sys::read_into(&self.socket, room) {
            // An error of the time when the interface was down; the packet is still there.
            Err(Errno::NETDOWN | Errno::INTR) => None,
            result => Some(result),
        });
        let mut data = self.arena.take();
        if read?.ok()? != virtio::HEADER_LEN + len {
            return None;
        }
        let header = data.split_to(virtio::HEADER_LEN);
        let header = <[u8; virtio::HEADER_LEN]>::try_from(&header[..]).ok()?;
        Some((virtio::Header::decode(header), data))
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

    fn arrival(&self, now: Instant) -> Instant {
        clock::present(now)
    }

    /// Costs a system call.
    fn drops(&self) -> u64 {
        let lost = sys::packet_drops(&self.socket).unwrap_or(0);
        self.lost.set(self.lost.get() + u64::from(lost));
        self.lost.get() + self.truncated + self.tagged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Geometry, TX_DATA};
    use crate::sys::Mapping;
    use core::mem::offset_of;
    use libc::{sockaddr_ll, tpacket2_hdr};
    use std::os::unix::net::UnixDatagram;

    const NOW: Instant = Instant::from_nanos(1);
    const PACKET: &[u8] = b"a packet";

    /// Fills a slot as the kernel does: with this part of [`PACKET`], or for a packet that waits in
    /// the queue.
    fn put(ring: &mut SlotRing, slot: usize, kind: u8, captured: usize, is_queued: bool) {
        let link = 96_u16;
        ring.set_len(slot, PACKET.len());
        let captured_at = offset_of!(tpacket2_hdr, tp_snaplen);
        ring.copy_in(slot, captured_at, &(captured as u32).to_ne_bytes());
        ring.copy_in(slot, offset_of!(tpacket2_hdr, tp_mac), &link.to_ne_bytes());
        // The address of the sender is behind the header.
        ring.copy_in(slot, TX_DATA + offset_of!(sockaddr_ll, sll_pkttype), &[kind]);
        ring.copy_in(slot, link.into(), &PACKET[..captured]);
        ring.set_status(slot, STATUS_USER | if is_queued { STATUS_COPY } else { 0 });
    }

    #[test]
    fn a_packet_for_another_station_is_no_loss() {
        let geometry = Geometry::new(4, 2048, 4096);
        let mut ring = SlotRing::new(Arc::new(Mapping::anonymous(geometry.len())), 0, geometry);
        let (queue, kernel) = UnixDatagram::pair().expect("two sockets");
        queue.set_nonblocking(true).expect("a flag");
        let others = libc::PACKET_OTHERHOST;
        put(&mut ring, 0, others, 3, false);
        put(&mut ring, 1, others, 0, true);
        kernel.send(b"cut").expect("room");
        put(&mut ring, 2, libc::PACKET_HOST, 0, true);
        let header = [0; virtio::HEADER_LEN];
        kernel.send(&[&header, PACKET].concat()).expect("room");
        put(&mut ring, 3, libc::PACKET_HOST, 3, false);
        let mut rx = PacketRx::new(Arc::new(queue.into()), ring, false);
        let received = rx.receive(NOW).expect("the one that is for us");
        assert_eq!((&received.data[..], rx.drops()), (PACKET, 0));
        assert!(rx.receive(NOW).is_none());
        assert_eq!(rx.drops(), 1, "one that is for us is lost");
    }
}
