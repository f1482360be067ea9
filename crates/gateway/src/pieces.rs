//! Memory of the pieces that are read from sockets of the host, used again.
//!
//! A piece lives until the guest has acknowledged it, or the device has it. Memory that went back
//! to the system in between would cost a page fault and a cleared page for each 4 KiB. The thread
//! that drops a piece keeps its memory, at most [`MOST`] of them.
//!
//! Cost: one allocation of some words per piece, no lock.

use crate::relay::MOST_PIECE;
use bytes::Bytes;
use std::cell::RefCell;

/// Pieces of memory that a thread keeps: 2 MiB.
const MOST: usize = 32;

/// Pieces of up to so many bytes are copied into memory of their own size. What waits for a guest
/// is bounded by its bytes, so no piece may hold more than twice as much memory.
pub(crate) const COPY_BREAK: usize = MOST_PIECE / 2;

thread_local! {
    static FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Memory for [`MOST_PIECE`] bytes, and how many are in it.
#[derive(Debug)]
pub(crate) struct Piece {
    memory: Box<[u8]>,
    len: usize,
}

impl Piece {
    /// An empty one.
    pub(crate) fn take() -> Self {
        let free = FREE.with_borrow_mut(Vec::pop);
        Self { memory: free.unwrap_or_else(|| vec![0; MOST_PIECE].into()), len: 0 }
    }

    /// Fills it by `fill`, which gets room for so many bytes and says how many it has used.
    pub(crate) fn fill<E>(
        &mut self,
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.len = fill(&mut self.memory[..most])?;
        Ok(self.len)
    }

    /// Pieces of memory that this thread keeps.
    #[cfg(test)]
    pub(crate) fn free() -> usize {
        FREE.with_borrow(Vec::len)
    }

    /// All of its memory.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Says how many bytes are in it, which has room for them.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len;
    }

    /// The bytes that are in it. Few are copied.
    pub(crate) fn into_bytes(self) -> Bytes {
        if self.len <= COPY_BREAK {
            Bytes::copy_from_slice(self.as_ref())
        } else {
            Bytes::from_owner(self)
        }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        // A thread that ends has no place for it any more.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < MOST {
                free.push(memory);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_bounded() {
        let mut piece = Piece::take();
        let filled = piece.fill(10, |room| {
            room[..4].copy_from_slice(b"data");
            Ok::<_, ()>(4)
        });
        assert_eq!(filled, Ok(4));
        let at = piece.as_ref().as_ptr();
        let bytes = piece.into_bytes();
        assert_eq!(&bytes[..], b"data");
        drop(bytes);
        let again = Piece::take();
        assert_eq!((again.as_ref().as_ptr(), again.as_ref().len()), (at, 0));
        let many: Vec<_> = (0..2 * MOST).map(|_| Piece::take()).collect();
        drop(many);
        assert_eq!(FREE.with_borrow(Vec::len), MOST);
    }
}
