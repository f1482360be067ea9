//! What a gateway counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that the thread of the gateway raises, and that others may read.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) opened: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) full: AtomicU64,
    pub(crate) unreached: AtomicU64,
    pub(crate) finished: AtomicU64,
    pub(crate) lost: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    pub(crate) mappings: AtomicU64,
    pub(crate) full_mappings: AtomicU64,
    pub(crate) datagrams_out: AtomicU64,
    pub(crate) unsent_datagrams: AtomicU64,
    pub(crate) denied_datagrams: AtomicU64,
    pub(crate) datagrams_in: AtomicU64,
    pub(crate) lost_datagrams: AtomicU64,
    pub(crate) undelivered_datagrams: AtomicU64,
    pub(crate) dhcp_answers: AtomicU64,
    pub(crate) dhcp_dropped: AtomicU64,
}

/// What happened in a gateway so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Connections whose two halves were open.
    pub opened: u64,
    /// Connections that the policy was against.
    pub denied: u64,
    /// Connections that were refused since there were too many.
    pub full: u64,
    /// Connections whose other half could not be opened.
    pub unreached: u64,
    /// Connections that both sides ended.
    pub finished: u64,
    /// Connections that one side lost, and the other was told by a reset.
    pub lost: u64,
    /// Bytes that guests sent over connections that are over.
    pub bytes_out: u64,
    /// Bytes that guests got over connections that are over.
    pub bytes_in: u64,
    /// Addresses and ports of guests that got a UDP socket.
    pub mappings: u64,
    /// Datagrams that were dropped, as there were too many addresses and ports, or no descriptors.
    pub full_mappings: u64,
    /// Datagrams that the host took.
    pub datagrams_out: u64,
    /// Datagrams that the host refused.
    pub unsent_datagrams: u64,
    /// Datagrams that the policy was against.
    pub denied_datagrams: u64,
    /// Datagrams that went to guests.
    pub datagrams_in: u64,
    /// Datagrams for guests that the stack did not take.
    pub lost_datagrams: u64,
    /// Datagrams of guests that ICMP says were not delivered.
    pub undelivered_datagrams: u64,
    /// DHCP messages of guests that were answered.
    pub dhcp_answers: u64,
    /// DHCP messages of guests that were not: what is malformed, for others, or beyond the pool.
    pub dhcp_dropped: u64,
}

impl Counters {
    pub(crate) fn count(&self, which: impl FnOnce(&Self) -> &AtomicU64) {
        self.add(which, 1);
    }

    pub(crate) fn add(&self, which: impl FnOnce(&Self) -> &AtomicU64, number: u64) {
        which(self).fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, (out, back): (u64, u64)) {
        self.bytes_out.fetch_add(out, Ordering::Relaxed);
        self.bytes_in.fetch_add(back, Ordering::Relaxed);
    }

    pub(crate) fn figures(&self) -> Figures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            opened: get(&self.opened),
            denied: get(&self.denied),
            full: get(&self.full),
            unreached: get(&self.unreached),
            finished: get(&self.finished),
            lost: get(&self.lost),
            bytes_out: get(&self.bytes_out),
            bytes_in: get(&self.bytes_in),
            mappings: get(&self.mappings),
            full_mappings: get(&self.full_mappings),
            datagrams_out: get(&self.datagrams_out),
            unsent_datagrams: get(&self.unsent_datagrams),
            denied_datagrams: get(&self.denied_datagrams),
            datagrams_in: get(&self.datagrams_in),
            lost_datagrams: get(&self.lost_datagrams),
            undelivered_datagrams: get(&self.undelivered_datagrams),
            dhcp_answers: get(&self.dhcp_answers),
            dhcp_dropped: get(&self.dhcp_dropped),
        }
    }
}
