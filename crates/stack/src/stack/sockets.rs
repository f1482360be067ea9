//! The listing of all sockets of a stack.

use super::Stack;
use crate::flow::named_scope;
use crate::net::interface::InterfaceId;
use crate::socket::tcp::FlowInfo;
use neap_tcp::time::Instant;
use std::net::SocketAddr;

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

    /// Returns the interface of a socket with these ends: the one whose link its own address is of,
    /// or by which packets to `remote` leave. Packets to a group, and to all hosts of a link, leave
    /// by the interface of the own address. `None` on the loopback, without a peer, and without a
    /// route.
    pub fn interface_of(
        &self,
        now: Instant,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) -> Option<InterfaceId> {
        let topology = &self.host.net.topology;
        let bound = InterfaceId::from_index(named_scope(local));
        bound.or_else(|| {
            let remote = remote?;
            let link = topology.link_to(remote).ok()?;
            let link = link.or_else(|| topology.link_of_many(local.ip(), remote.ip()));
            link.or_else(|| topology.resolve(now, remote.ip())?.interface())
        })
    }
}
