//! Receive memory: large blocks from which packets are sliced, and which are used again when all
//! slices are gone.

use bytes::{Bytes, BytesMut};

/// Room that a read is given, in bytes: a full IP packet with its Ethernet and virtio-net headers.
pub const PACKET_ROOM: usize = 65_536 + 64;
/// Bytes of one block: a few maximal packets, so that little is lost at its end.
const BLOCK: usize = 256 * 1024;
/// Blocks kept for reuse; beyond them the oldest is left to those who hold its slices.
const KEPT: usize = 64;

/// The blocks of one receive queue.
///
/// Cost per packet: one atomic load, and one reference counted up; no allocation. A block whose
/// slices were all dropped starts over at its first byte, so a reader that keeps nothing works in
/// the same 64 KB, hot in the cache. At a block's end, at most 64 loads find the next.
/// Nothing is ever zeroed: a read fills spare capacity.
#[derive(Debug, Default)]
pub struct Arena {
    current: BytesMut,
    /// Used-up blocks, the latest last: it is the one most likely in the cache.
    retired: Vec<BytesMut>,
}

impl Arena {
    /// Returns an empty buffer with at least [`PACKET_ROOM`] bytes of spare capacity.
    pub fn room(&mut self) -> &mut BytesMut {
        self.current.clear();
        if !self.current.try_reclaim(BLOCK) && self.current.capacity() < PACKET_ROOM {
            self.change_block();
        }
        &mut self.current
    }

    /// Slices off and returns what was written into [`room`](Self::room).
    pub fn take(&mut self) -> Bytes {
        self.current.split().freeze()
    }

    #[cold]
    fn change_block(&mut self) {
        let free = (0..self.retired.len()).rev().find(|&i| self.retired[i].try_reclaim(BLOCK));
        let next = match free {
            Some(index) => self.retired.remove(index),
            None => BytesMut::with_capacity(BLOCK),
        };
        let used = core::mem::replace(&mut self.current, next);
        if used.capacity() == 0 {
            return;
        }
        if self.retired.len() == KEPT {
            self.retired.remove(0);
        }
        self.retired.push(used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(arena: &mut Arena, len: usize) -> Bytes {
        let room = arena.room();
        assert!(room.is_empty() && room.capacity() >= PACKET_ROOM);
        room.extend_from_slice(&vec![len as u8; len]);
        arena.take()
    }

    #[test]
    fn dropped_packets_leave_the_same_bytes_to_the_next() {
        let mut arena = Arena::default();
        let first = packet(&mut arena, 60_000).as_ptr();
        for _ in 0..100 {
            assert_eq!(packet(&mut arena, 60_000).as_ptr(), first);
        }
        assert!(arena.retired.is_empty());
    }

    #[test]
    fn a_kept_packet_is_not_overwritten() {
        let mut arena = Arena::default();
        let kept = packet(&mut arena, 1000);
        for len in 1..200 {
            packet(&mut arena, len);
        }
        assert!(kept.iter().all(|&byte| byte == 1000usize as u8));
    }

    #[test]
    fn blocks_are_used_again_in_steady_state() {
        let mut arena = Arena::default();
        let mut held = std::collections::VecDeque::new();
        let mut blocks = 0;
        for round in 0..2000 {
            held.push_back(packet(&mut arena, 42_000));
            if held.len() > 40 {
                held.pop_front();
            }
            if round == 1000 {
                blocks = arena.retired.len();
            }
        }
        assert!((8..=12).contains(&blocks), "{blocks}");
        assert_eq!(arena.retired.len(), blocks);
    }

    #[test]
    fn the_pool_is_bounded() {
        let mut arena = Arena::default();
        let held: Vec<_> = (0..1000).map(|_| packet(&mut arena, 60_000)).collect();
        assert_eq!(arena.retired.len(), KEPT);
        drop(held);
    }
}
