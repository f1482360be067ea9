//! What an interface and its peers are doing.

use crate::keys::PublicKey;
use core::net::SocketAddr;
use core::time::Duration;
use ipnet::IpNet;
use std::time::SystemTime;

/// State of an interface, as `wg show` prints it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The key that peers know it by.
    pub public_key: PublicKey,
    /// UDP port of the host.
    pub listen_port: u16,
    /// Mark of packets that leave.
    pub fwmark: Option<u32>,
    /// Room of the UDP socket for what leaves.
    pub send_buffer: SocketBuffer,
    /// Room of the UDP socket for what arrives, until the driver takes it. What finds it full is
    /// lost, and counted as `lost_in_socket`.
    pub receive_buffer: SocketBuffer,
    /// Its peers, in the order in which they were given.
    pub peers: Vec<PeerStatus>,
    /// Figures of the whole interface, by name. Each kind of drop has one.
    pub counters: Vec<(&'static str, u64)>,
}

/// Room of a socket, in bytes of memory: those of the datagrams, and of what the kernel allocates
/// for each, which is about as much (`SO_SNDBUF` and `SO_RCVBUF` of socket(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketBuffer {
    /// What the host has granted.
    pub granted: u64,
    /// What was asked for. Without `CAP_NET_ADMIN` the host grants twice `net.core.wmem_max` or
    /// `net.core.rmem_max` at the most, so half of this is what they should be.
    pub wanted: u64,
}

impl SocketBuffer {
    /// Returns whether the host has granted less than was asked for.
    pub fn is_capped(self) -> bool {
        self.granted < self.wanted
    }
}

/// State of a peer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerStatus {
    /// The key that the peer is known by.
    pub public_key: PublicKey,
    /// Whether it shares a key with the interface.
    pub has_preshared_key: bool,
    /// Where it was heard from last, or where it is expected.
    pub endpoint: Option<SocketAddr>,
    /// Addresses inside the tunnel that are its own.
    pub allowed_ips: Vec<IpNet>,
    /// When the last handshake was completed, by the clock of that moment.
    pub latest_handshake: Option<SystemTime>,
    /// Bytes of datagrams from it that were authentic, without their UDP and IP headers.
    pub received: u64,
    /// Bytes of datagrams to it, without their UDP and IP headers.
    pub sent: u64,
    /// Time between keepalives.
    pub persistent_keepalive: Option<Duration>,
    /// Initiations in a row that were not answered.
    pub failed_handshakes: u32,
}
