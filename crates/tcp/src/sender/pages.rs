//! Pages that a shard's connections write into, one after the other.
//!
//! With many flows, pages of each flow's own would lie cold between its visits: the pool gives the
//! page that came back last, which is still in the cache. One uncontended lock per 64 KiB taken or
//! given back.

use bytes::BytesMut;
use std::sync::{Mutex, PoisonError};

/// Bytes of a page.
pub const PAGE: usize = 64 << 10;
/// Free pages kept; more go back to the allocator.
const MOST_KEPT: usize = 128;

/// Free pages of 64 KiB, shared by the connections of a shard.
#[derive(Debug, Default)]
pub struct PagePool(Mutex<Vec<BytesMut>>);

impl PagePool {
    /// An empty page, the warmest there is.
    pub(super) fn take(&self) -> BytesMut {
        let page = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        page.unwrap_or_else(|| BytesMut::with_capacity(PAGE))
    }

    /// Takes a page back if nothing refers to its bytes any more; answers it otherwise.
    pub(super) fn give(&self, mut page: BytesMut) -> Option<BytesMut> {
        if !page.is_empty() || !page.try_reclaim(PAGE) {
            return Some(page);
        }
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MOST_KEPT {
            free.push(page);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_page_given_is_the_first_taken_and_no_page_in_use_is_given() {
        let pool = PagePool::default();
        let (mut first, second) = (pool.take(), pool.take());
        let warm = second.as_ptr();
        first.extend_from_slice(&[1; PAGE]);
        let slice = first.split().freeze();
        let Some(first) = pool.give(first) else { panic!("its bytes are in use") };
        assert!(pool.give(second).is_none());
        assert_eq!(pool.take().as_ptr(), warm);
        drop(slice);
        assert!(pool.give(first).is_none());
        assert_eq!(pool.take().capacity(), PAGE);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = PagePool::default();
        let pages: Vec<_> = (0..2 * MOST_KEPT).map(|_| pool.take()).collect();
        assert!(pages.into_iter().all(|page| pool.give(page).is_none()));
        assert_eq!(pool.0.lock().expect("nobody failed").len(), MOST_KEPT);
    }
}
