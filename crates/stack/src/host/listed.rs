//! What a listing says of sockets that are no connections (`ss`).

use core::net::SocketAddr;
use neap_tcp::info::Timer;
use neap_tcp::state::State;

/// A listener in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerInfo {
    /// Number of the socket, never used twice in a host.
    pub id: u64,
    /// Bound address.
    pub local: SocketAddr,
    /// Whether it is bound to `[::]` and serves IPv4 as well.
    pub is_dual: bool,
    /// Connections that wait to be accepted.
    pub queued: usize,
    /// Connections that may wait to be accepted.
    pub max_queued: usize,
}

/// A connection without a socket of its own in a listing: one that is half-open, waits for the
/// decision of a forwarder's application, or remains after its application (what iproute2 calls a
/// bucket).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketInfo {
    /// Address and port of this end. A link-local address of IPv6 has the scope of the peer's.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// State of the connection.
    pub state: State,
    /// When something is to be done about it; `None` if that is up to an application.
    pub timer: Option<Timer>,
}

/// A UDP socket or a forwarder of datagrams in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpInfo {
    /// Number of the socket among the UDP sockets of a host, never used twice.
    pub id: u64,
    /// Bound address, or the own one that `connect` has chosen; of a forwarder unspecified, with
    /// port 0. A link-local address of IPv6 has the scope of the peer's, or none without a peer.
    pub local: SocketAddr,
    /// Whether it is bound to `[::]`, serves IPv4 as well, and `connect` has chosen no address.
    pub is_dual: bool,
    /// The peer that it is connected to.
    pub remote: Option<SocketAddr>,
    /// Bytes of memory of received and unread datagrams and errors (`r` of `skmem`).
    pub rmem_alloc: u32,
    /// Receive buffer, in bytes of memory (`rb` of `skmem`).
    pub rcvbuf: u32,
    /// Bytes of memory in qdiscs and devices (`t` of `skmem`).
    pub below_bytes: u64,
    /// Send buffer, in bytes of memory (`tb` of `skmem`).
    pub sndbuf: u32,
    /// Received datagrams that were dropped for lack of memory (`d` of `skmem`).
    pub drops: u64,
}
