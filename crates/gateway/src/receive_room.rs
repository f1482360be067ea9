//! Memory that datagrams are received into, used again for the next ones.
//!
//! Many datagrams that came together leave in the memory that they were received into: it is one of
//! the [pieces](crate::pieces) of a thread, and another one takes its place. Few bytes are copied
//! into memory of their own size, for the reason that pieces have. Most of those are single
//! datagrams.
//!
//! Cost: as a piece. A copy of what is at most half as long as a piece.

use crate::pieces::{COPY_BREAK, Piece};
use bytes::Bytes;
use std::ops::Range;

/// Room for what one call receives: the largest UDP datagram over IPv6 has 65,527 bytes.
pub const RECEIVE_ROOM: usize = 65_535;

/// The memory into which one call receives datagrams. It is used again for the next call.
#[derive(Debug)]
pub struct ReceiveRoom {
    piece: Piece,
    most: usize,
}

impl ReceiveRoom {
    /// Makes room for [`RECEIVE_ROOM`] bytes.
    pub fn new() -> Self {
        Self { piece: Piece::take(), most: RECEIVE_ROOM }
    }

    /// Room for fewer bytes.
    #[cfg(test)]
    pub(crate) fn of(most: usize) -> Self {
        Self { most, ..Self::new() }
    }

    /// Returns the memory to receive into: [`RECEIVE_ROOM`] bytes.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.piece.room()[..self.most]
    }

    /// Takes the bytes at `place` of the [`buffer`](Self::buffer). Up to 32 KiB are copied. More
    /// leave with their memory, and the buffer is another one afterwards, with any content.
    ///
    /// # Panics
    /// `place` is not within the buffer.
    pub fn take(&mut self, place: Range<usize>) -> Bytes {
        if place.len() <= COPY_BREAK {
            return Bytes::copy_from_slice(&self.buffer()[place]);
        }
        let mut piece = std::mem::replace(&mut self.piece, Piece::take());
        piece.set_len(place.end.min(self.most));
        piece.into_bytes().slice(place)
    }
}

impl Default for ReceiveRoom {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a thread of its own, which has no free memory.
    #[test]
    fn much_is_taken_with_its_memory_and_little_is_copied() {
        let mut room = ReceiveRoom::new();
        let at = room.buffer().as_ptr();
        room.buffer()[10..14].copy_from_slice(b"data");
        let little = room.take(10..14);
        assert_eq!(&little[..], b"data");
        assert_eq!(room.buffer().as_ptr(), at, "the memory stays");
        let much = room.take(10..RECEIVE_ROOM);
        assert_eq!((&much[..4], much.len()), (&b"data"[..], RECEIVE_ROOM - 10));
        assert_eq!(much.as_ptr(), at.wrapping_add(10), "it was not copied");
        assert_ne!(room.buffer().as_ptr(), at, "it is in use");
        drop(much);
        drop(room.take(0..RECEIVE_ROOM));
        let both = [room.buffer().as_ptr(), room.take(0..RECEIVE_ROOM).as_ptr()];
        assert!(both.contains(&at), "it is used again");
    }
}
