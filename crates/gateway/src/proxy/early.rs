//! Datagrams that wait for a proxy's answer.
//!
//! Cost: at most [`MOST_EARLY`] datagrams of [`MOST_EARLY_BYTES`] for each association, and
//! [`MOST_OF_ALL`] for all of a proxy.

use crate::destination::Destination;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Datagrams of one association that wait, and their bytes.
const MOST_EARLY: usize = 16;
const MOST_EARLY_BYTES: usize = 64 << 10;
/// Bytes of all associations with one proxy that wait.
const MOST_OF_ALL: usize = 8 << 20;

/// Bytes that wait for one proxy.
#[derive(Clone, Debug, Default)]
pub(super) struct EarlyBytes(Arc<AtomicUsize>);

/// Datagrams of one association that wait, the earliest first.
#[derive(Debug, Default)]
pub(super) struct Early {
    datagrams: VecDeque<(Destination, Bytes)>,
    bytes: usize,
    of_all: EarlyBytes,
}

impl Early {
    pub(super) fn new(of_all: EarlyBytes) -> Self {
        Self { datagrams: VecDeque::new(), bytes: 0, of_all }
    }

    /// Lets a datagram wait, if there is room for it.
    pub(super) fn push(&mut self, to: &Destination, data: &Bytes) -> bool {
        let bytes = self.bytes + data.len();
        if self.datagrams.len() >= MOST_EARLY || bytes > MOST_EARLY_BYTES {
            return false;
        }
        let add = |all: usize| Some(all + data.len()).filter(|all| *all <= MOST_OF_ALL);
        if self.of_all.0.fetch_update(Relaxed, Relaxed, add).is_err() {
            return false;
        }
        self.bytes = bytes;
        self.datagrams.push_back((to.clone(), data.clone()));
        true
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Takes the first one.
    pub(super) fn pop(&mut self) -> Option<(Destination, Bytes)> {
        let first = self.datagrams.pop_front()?;
        self.give_back(first.1.len());
        Some(first)
    }

    fn give_back(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.of_all.0.fetch_sub(bytes, Relaxed);
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn what_waits_is_bounded_by_number_and_bytes_of_one_and_of_all() {
        let to = SocketAddr::from(([192, 0, 2, 1], 9)).into();
        let all = EarlyBytes::default();
        let mut small = Early::new(all.clone());
        let taken = (0..20).filter(|_| small.push(&to, &Bytes::from_static(b"x"))).count();
        assert_eq!(taken, MOST_EARLY);
        drop(small);
        let large = Bytes::from(vec![0; MOST_EARLY_BYTES]);
        let mut others: Vec<Early> = (0..200).map(|_| Early::new(all.clone())).collect();
        let taken = others.iter_mut().filter_map(|early| early.push(&to, &large).then_some(()));
        assert_eq!(taken.count(), MOST_OF_ALL / MOST_EARLY_BYTES);
        assert!(!others[0].push(&to, &Bytes::from_static(b"x")), "it has its part");
        assert!(!others[199].push(&to, &large), "all have theirs");
        assert!(others[0].pop().is_some() && others[0].pop().is_none());
        assert!(others[199].push(&to, &large), "there is room again");
        drop(others);
        assert_eq!(all.0.load(Relaxed), 0);
    }
}
