//! Slots of memory shared with the kernel: TPACKET_V2 rings (`packet_mmap.rst`).
//!
//! The status word of a slot says whose it is: the kernel's or ours. Data is touched only by the
//! owner; the status is written last (release) and read first (acquire).

use crate::sys::Mapping;
use bytes::BytesMut;
use core::mem::{align_of, offset_of, size_of};
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{sockaddr_ll, tpacket_req, tpacket2_hdr};
use std::sync::Arc;

/// Where a sender puts its packet in a slot (`TPACKET2_HDRLEN - sizeof(struct sockaddr_ll)`).
pub(crate) const TX_DATA: usize = size_of::<tpacket2_hdr>();
/// Most bytes that the kernel puts in front of the packet it received: slot header, address,
/// virtio-net header and the Ethernet header aligned to 16.
pub(crate) const RX_DATA_MAX: usize = 128;
/// The kernel writes the sender's address behind the slot header (`TPACKET_ALIGN`).
const ADDRESS: usize = size_of::<tpacket2_hdr>();
/// Largest block that is asked for: contiguous pages of the kernel.
const BLOCK_MAX: usize = 1 << 20;

/// How slots lie in the blocks of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of a slot. A slot under a page is a power of two; a larger one is whole pages, so that
    /// 64 KB never touch more than the 17 pages that an skb can hold (`MAX_SKB_FRAGS`).
    pub(crate) slot_size: usize,
    block_size: usize,
    blocks: usize,
}

impl Geometry {
    /// At least `slots` slots (1 to 65,536) of at least `need` bytes.
    pub(crate) fn new(slots: usize, need: usize, page: usize) -> Self {
        let slot_size = if need <= page {
            need.next_power_of_two().max(size_of::<tpacket2_hdr>())
        } else {
            need.next_multiple_of(page)
        };
        let wanted = slots.min(BLOCK_MAX / slot_size).max(1);
        let block_size = (wanted * slot_size).next_multiple_of(page);
        let blocks = slots.div_ceil(block_size / slot_size);
        Self { slot_size, block_size, blocks }
    }

    pub(crate) fn slots(&self) -> usize {
        self.blocks * self.slots_per_block()
    }

    fn slots_per_block(&self) -> usize {
        self.block_size / self.slot_size
    }

    /// Bytes of the whole ring.
    pub(crate) fn len(&self) -> usize {
        self.blocks * self.block_size
    }

    /// First byte of a slot.
    fn offset(&self, slot: usize) -> usize {
        let per_block = self.slots_per_block();
        slot / per_block * self.block_size + slot % per_block * self.slot_size
    }

    pub(crate) fn request(&self) -> tpacket_req {
        tpacket_req {
            tp_block_size: self.block_size as u32,
            tp_block_nr: self.blocks as u32,
            tp_frame_size: self.slot_size as u32,
            tp_frame_nr: self.slots() as u32,
        }
    }
}

/// What the kernel wrote about a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Bytes of the packet, link header included.
    pub(crate) len: usize,
    /// Bytes of it that are in the slot.
    pub(crate) captured: usize,
    /// Offset of the link header in the slot.
    pub(crate) link: usize,
    /// `PACKET_HOST`, `PACKET_OTHERHOST`, ...
    pub(crate) kind: u8,
    /// Priority and VLAN of the tag that was taken off the packet, if there was one (IEEE 802.1Q).
    pub(crate) tag: u16,
}

/// One ring of slots. All methods panic on a slot number beyond the ring and on bytes beyond a
/// slot.
#[derive(Debug)]
pub(crate) struct SlotRing {
    mapping: Arc<Mapping>,
    start: usize,
    geometry: Geometry,
}

impl SlotRing {
    /// The ring that begins at byte `start` of the mapping.
    pub(crate) fn new(mapping: Arc<Mapping>, start: usize, geometry: Geometry) -> Self {
        assert!(start.is_multiple_of(align_of::<tpacket2_hdr>()));
        assert!(start + geometry.len() <= mapping.len());
        Self { mapping, start, geometry }
    }

    pub(crate) fn slots(&self) -> usize {
        self.geometry.slots()
    }

    pub(crate) fn slot_size(&self) -> usize {
        self.geometry.slot_size
    }

    fn at(&self, slot: usize, offset: usize, len: usize) -> *mut u8 {
        assert!(slot < self.slots() && offset + len <= self.slot_size());
        self.mapping.at(self.start + self.geometry.offset(slot) + offset, len).as_ptr()
    }

    fn status_word(&self, slot: usize) -> &AtomicU32 {
        let place = self.at(slot, offset_of!(tpacket2_hdr, tp_status), size_of::<AtomicU32>());
        // SAFETY: inside the mapping, which lives as long as `self`; slots are aligned to at least
        // 16 bytes; both sides treat this word as atomic.
        unsafe { AtomicU32::from_ptr(place.cast()) }
    }

    /// Whether the kernel or the program has the slot.
    pub(crate) fn status(&self, slot: usize) -> u32 {
        self.status_word(slot).load(Ordering::Acquire)
    }

    /// Gives the slot away, with all that was written before.
    pub(crate) fn set_status(&self, slot: usize, status: u32) {
        self.status_word(slot).store(status, Ordering::Release);
    }

    fn read<T: Copy>(&self, slot: usize, offset: usize) -> T {
        let place = self.at(slot, offset, size_of::<T>());
        // SAFETY: inside the slot; only called with integers, for which any bytes are valid.
        unsafe { place.cast::<T>().read_unaligned() }
    }

    /// Length field of the slot.
    pub(crate) fn len(&self, slot: usize) -> usize {
        self.read::<u32>(slot, offset_of!(tpacket2_hdr, tp_len)) as usize
    }

    /// Sets the length field of the slot.
    pub(crate) fn set_len(&mut self, slot: usize, len: usize) {
        let len = u32::try_from(len).expect("a slot is under 4 GiB");
        self.copy_in(slot, offset_of!(tpacket2_hdr, tp_len), &len.to_ne_bytes());
    }

    /// What a received packet's slot says; its numbers are the kernel's, not yet checked.
    pub(crate) fn descriptor(&self, slot: usize) -> Descriptor {
        Descriptor {
            len: self.len(slot),
            captured: self.read::<u32>(slot, offset_of!(tpacket2_hdr, tp_snaplen)) as usize,
            link: usize::from(self.read::<u16>(slot, offset_of!(tpacket2_hdr, tp_mac))),
            kind: self.read::<u8>(slot, ADDRESS + offset_of!(sockaddr_ll, sll_pkttype)),
            tag: self.read::<u16>(slot, offset_of!(tpacket2_hdr, tp_vlan_tci)),
        }
    }

    /// Writes `bytes` at `offset` of the slot.
    pub(crate) fn copy_in(&mut self, slot: usize, offset: usize, bytes: &[u8]) {
        let place = self.at(slot, offset, bytes.len());
        // SAFETY: inside the slot, which is ours while its status says so; `bytes` is not part of
        // the mapping, since no reference into it is ever made.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }

    /// Appends `len` bytes at `offset` of the slot to `into`.
    pub(crate) fn copy_out(&self, slot: usize, offset: usize, len: usize, into: &mut BytesMut) {
        let place = self.at(slot, offset, len);
        // SAFETY: inside the slot, which the kernel does not write while its status says it is
        // ours; the reference lives no longer than the copy.
        into.extend_from_slice(unsafe { core::slice::from_raw_parts(place, len) });
    }

    /// A few bytes at `offset` of the slot.
    pub(crate) fn bytes<const N: usize>(&self, slot: usize, offset: usize) -> [u8; N] {
        self.read(slot, offset)
    }

    /// Copies length field and data of a sender's slot to another slot.
    pub(crate) fn move_packet(&mut self, from: usize, to: usize) {
        let len = self.len(from);
        self.set_len(to, len);
        let (source, target) = (self.at(from, TX_DATA, len), self.at(to, TX_DATA, len));
        if from != to {
            // SAFETY: two different slots, both ours, do not overlap.
            unsafe { core::ptr::copy_nonoverlapping(source, target, len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_packet_takes_seventeen_pages_and_no_slot_leaves_its_block() {
        let full = Geometry::new(128, TX_DATA + 10 + 14 + 65_535, 4096);
        assert_eq!(full.slot_size, 17 * 4096);
        assert!(full.slots() >= 128);
        for slot in 0..full.slots() {
            let (first, last) = (full.offset(slot), full.offset(slot) + full.slot_size - 1);
            assert_eq!(first / full.block_size, last / full.block_size);
        }
        assert_eq!(full.offset(full.slots() - 1) + full.slot_size, full.len());
    }

    #[test]
    fn the_kernels_view_of_the_ring_agrees() {
        for (slots, need, page) in [
            (1, 100, 4096),
            (3, 2048, 4096),
            (1000, 1570, 4096),
            (7, 5000, 4096),
            (64, 66_000, 65_536),
        ] {
            let geometry = Geometry::new(slots, need, page);
            let request = geometry.request();
            assert!(geometry.slots() >= slots && geometry.slot_size >= need);
            assert_eq!(request.tp_block_size as usize % page, 0);
            assert_eq!(request.tp_frame_size % 16, 0);
            let per_block = request.tp_block_size / request.tp_frame_size;
            assert_eq!(per_block * request.tp_block_nr, request.tp_frame_nr);
        }
    }

    #[test]
    fn packets_move_between_slots() {
        let geometry = Geometry::new(4, 3000, 4096);
        let mut ring = SlotRing::new(Arc::new(Mapping::anonymous(geometry.len())), 0, geometry);
        ring.copy_in(2, TX_DATA, b"packet");
        ring.set_len(2, 6);
        ring.move_packet(2, 1);
        let mut out = BytesMut::new();
        ring.copy_out(1, TX_DATA, ring.len(1), &mut out);
        assert_eq!(&out[..], b"packet");
        ring.set_status(1, 7);
        assert_eq!((ring.status(1), ring.status(2)), (7, 0));
    }

    #[test]
    #[should_panic(expected = "slot < self.slots()")]
    fn a_slot_beyond_the_ring_is_refused() {
        let geometry = Geometry::new(2, 2048, 4096);
        let ring = SlotRing::new(Arc::new(Mapping::anonymous(geometry.len())), 0, geometry);
        ring.status(2);
    }
}
