//! Pages that a shard's connections write into, one after the other.
//!
//! With many flows, pages of each flow's own would lie cold between its visits: the pool gives the
//! page that came back last, which is still in the cache.
//!
//! Cost: one lock, which nobody else holds as a rule, per 64 KiB taken or given back.

use crate::sync::{Mutex, lock};
use bytes::BytesMut;
use neap_tcp::sender::pages::{PAGE, Pages};

/// Free pages kept; more go back to the allocator.
const MOST_KEPT: usize = 128;

/// Free pages of 64 KiB, shared by the connections of a shard.
#[derive(Debug, Default)]
pub(crate) struct PagePool(Mutex<Vec<BytesMut>>);

impl Pages for PagePool {
    /// The warmest free page, or a new one.
    fn take(&self) -> BytesMut {
        let page = lock(&self.0).pop();
        page.unwrap_or_else(|| BytesMut::with_capacity(PAGE))
    }

    fn give(&self, page: BytesMut) {
        let mut free = lock(&self.0);
        if free.len() < MOST_KEPT {
            free.push(page);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_page_given_is_the_first_taken() {
        let pool = PagePool::default();
        let (first, second) = (pool.take(), pool.take());
        let warm = second.as_ptr();
        pool.give(first);
        pool.give(second);
        assert_eq!(pool.take().as_ptr(), warm);
        assert_eq!(pool.take().capacity(), PAGE);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = PagePool::default();
        let pages: Vec<_> = (0..2 * MOST_KEPT).map(|_| pool.take()).collect();
        pages.into_iter().for_each(|page| pool.give(page));
        assert_eq!(pool.0.lock().expect("nobody failed").len(), MOST_KEPT);
    }
}
