//! Identifications of datagrams that leave in fragments.

use crate::flow::{FlowKey, FourTuple};
use crate::wire::Protocol;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering};

const COUNTERS: usize = 256;

/// Chooses identifications so that those towards one host tell nothing of those towards another,
/// and do not come again soon because of them (RFC 7739 section 5.3, Linux's `ip_idents_reserve`):
/// a counter that few pairs of addresses share, and a secret distance for each.
///
/// Cost: a keyed hash and an atomic addition for each datagram that is longer than the path takes.
/// 1 KiB.
#[derive(Debug)]
pub(crate) struct Identifications {
    key: FlowKey,
    counters: [AtomicU32; COUNTERS],
}

impl Identifications {
    pub(crate) fn new(key: FlowKey) -> Self {
        Self { key, counters: core::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// The identification of the next datagram between these addresses.
    pub(crate) fn next(&self, local: IpAddr, remote: IpAddr, protocol: Protocol) -> u32 {
        let tuple =
            FourTuple { local_port: protocol.0.into(), ..FourTuple::without_ports(local, remote) };
        let hash = self.key.hash(&tuple);
        let counter = &self.counters[(hash >> 32) as usize % COUNTERS];
        counter.fetch_add(1, Ordering::Relaxed).wrapping_add(hash as u32)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn those_of_one_pair_follow_each_other_whatever_others_send() {
        let all = Identifications::new(FlowKey::new(1, 2));
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        let next = |last| all.next(ip(1), ip(last), Protocol::UDP);
        let (first, other) = (next(2), next(3));
        (0..70_000).for_each(|_| assert_ne!(next(3), first));
        assert_eq!(next(2), first.wrapping_add(1));
        assert_ne!(other.wrapping_sub(first), 1, "and tell nothing of those of another");
    }
}
