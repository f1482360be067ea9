//! Memory of all UDP sockets of a host, and its bounds (`net.ipv4.udp_mem`).
//!
//! A socket takes whole pages for what waits in it. Above the first bound of `udp_mem` only sockets
//! that hold less than `udp_rmem_min` take more, above the third none does. The second bound means
//! nothing, as in Linux, where UDP has no memory pressure (`__sk_mem_raise_allocated`).
//!
//! Cost: a comparison for each datagram, and one relaxed atomic operation on a word of the host
//! when the number of pages changes. A socket keeps one page, so that one that is read as fast as
//! small datagrams come changes nothing.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use neap_tcp::config::{Config, MemoryPages};
use neap_tcp::memory::PAGE;
use std::sync::Arc;

/// Pages that a socket keeps.
const KEPT: u32 = 1;

/// Pages of all UDP sockets of a host.
#[derive(Debug, Default)]
pub(crate) struct UdpMemory {
    allocated: AtomicU64,
    low: AtomicU64,
    high: AtomicU64,
    /// `udp_rmem_min`
    least: AtomicU32,
}

impl UdpMemory {
    /// Goes by `udp_mem` and `udp_rmem_min` from now on. Before, nothing is granted.
    pub(crate) fn set_limits(&self, config: &Config) {
        let MemoryPages { low, high, .. } = config.udp_mem;
        self.low.store(low.into(), Relaxed);
        self.high.store(high.into(), Relaxed);
        self.least.store(config.udp_rmem_min, Relaxed);
    }

    /// Pages that sockets have taken.
    pub(crate) fn pages(&self) -> u64 {
        self.allocated.load(Relaxed)
    }

    /// Takes `more` pages for a socket that then holds `bytes`. Whether it may have them.
    fn take(&self, more: u32, bytes: u32) -> bool {
        let pages = self.allocated.fetch_add(more.into(), Relaxed) + u64::from(more);
        let is_modest = bytes < self.least.load(Relaxed);
        let most = if is_modest { &self.high } else { &self.low };
        let may = pages <= most.load(Relaxed).min(self.high.load(Relaxed));
        if !may {
            self.give_back(more);
        }
        may
    }

    fn give_back(&self, pages: u32) {
        self.allocated.fetch_sub(pages.into(), Relaxed);
    }
}

/// Pages of one socket. They are given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    pages: u32,
    host: Arc<UdpMemory>,
}

impl Held {
    /// No pages yet.
    pub(crate) fn new(host: Arc<UdpMemory>) -> Self {
        Self { pages: 0, host }
    }

    /// Takes what is missing for `bytes` (`udp_rmem_schedule`). Without room in the host nothing
    /// changes, and it returns false.
    pub(crate) fn raise(&mut self, bytes: u32) -> bool {
        let need = bytes.div_ceil(PAGE);
        let more = need.saturating_sub(self.pages);
        let may = more == 0 || self.host.take(more, bytes);
        if may {
            self.pages = self.pages.max(need);
        }
        may
    }

    /// Gives back what `bytes` do not need (`udp_rmem_release`).
    pub(crate) fn lower(&mut self, bytes: u32) {
        self.lower_to(bytes.div_ceil(PAGE).max(KEPT));
    }

    /// Gives everything back.
    pub(crate) fn release(&mut self) {
        self.lower_to(0);
    }

    fn lower_to(&mut self, pages: u32) {
        if pages < self.pages {
            self.host.give_back(self.pages - pages);
            self.pages = pages;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(low: u32, high: u32) -> Arc<UdpMemory> {
        let memory = Arc::<UdpMemory>::default();
        let udp_mem = MemoryPages { low, pressure: low, high };
        memory.set_limits(&Config { udp_mem, ..Config::default() });
        memory
    }

    #[test]
    fn above_the_first_bound_only_those_with_little_take_more() {
        let memory = host(4, 6);
        let [mut much, mut little, mut other] = [0; 3].map(|_| Held::new(memory.clone()));
        assert!(much.raise(4 * PAGE));
        assert!(!much.raise(4 * PAGE + 1) && memory.pages() == 4, "nothing is kept of a refusal");
        assert!(!little.raise(PAGE), "that is udp_rmem_min");
        assert!(little.raise(PAGE - 1) && other.raise(1));
        assert_eq!(memory.pages(), 6);
        let mut third = Held::new(memory.clone());
        assert!(!third.raise(1), "above the last bound nobody takes");
        much.lower(PAGE);
        assert_eq!(memory.pages(), 3);
        assert!(third.raise(PAGE));
    }

    #[test]
    fn a_socket_keeps_a_page_until_it_is_gone() {
        let memory = host(4, 6);
        let mut held = Held::new(memory.clone());
        assert!(held.raise(3 * PAGE));
        held.lower(0);
        assert_eq!(memory.pages(), 1);
        assert!(held.raise(PAGE) && memory.pages() == 1);
        held.release();
        assert_eq!(memory.pages(), 0);
        assert!(held.raise(PAGE));
        drop(held);
        assert_eq!(memory.pages(), 0);
    }
}
