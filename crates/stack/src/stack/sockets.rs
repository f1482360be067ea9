//! The listing of all sockets of a stack.

use super::Stack;
use crate::socket::tcp::FlowInfo;
use neap_tcp::time::Instant;

pub use crate::host::listed::{BucketInfo, ListenerInfo, UdpInfo};

/// All sockets of a host, as `ss` lists them.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Sockets {
    /// TCP connections with a socket.
    pub flows: Vec<FlowInfo>,
    /// TCP listeners.
    pub listeners: Vec<ListenerInfo>,
    /// TCP connections without a socket: half-open, pending, or in TIME-WAIT and the states
    /// before it.
    pub buckets: Vec<BucketInfo>,
    /// UDP sockets and forwarders.
    pub udp: Vec<UdpInfo>,
}

impl Stack {
    /// Returns all sockets (`ss -a`). It waits for threads that own one of them.
    ///
    /// Cost: O(sockets) of memory and time. Each socket is locked for as long as its own figures
    /// take, and each table for as long as its entries are copied.
    pub fn sockets(&self, now: Instant) -> Sockets {
        let listeners = self.host.demux.listeners();
        let mut buckets = self.host.demux.remains(now);
        buckets.extend(listeners.iter().flat_map(|listener| listener.half_open(now)));
        buckets.extend(self.host.forwarders.listed());
        Sockets {
            flows: self.flows(now),
            listeners: listeners.iter().map(|listener| listener.listed()).collect(),
            buckets,
            udp: self.host.udp.listed(),
        }
    }
}
