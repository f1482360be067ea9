//! What an interface and its peers are given.

use crate::keys::{PresharedKey, PrivateKey, PublicKey};
use core::net::SocketAddr;
use core::time::Duration;
use ipnet::IpNet;

/// Inner MTU where none is given, in bytes: what a path of 1500 bytes leaves over IPv6.
pub const DEFAULT_MTU: u16 = 1420;
/// Bounds of the MTU inside, in bytes. A packet of the largest fits one UDP datagram when sealed.
pub(crate) const MTU_MIN: u16 = 576;
pub(crate) const MTU_MAX: u16 = 65_000;

/// Settings of an interface.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WireguardConfig {
    /// Key of the interface.
    pub private_key: PrivateKey,
    /// UDP port of the host; with 0 the host chooses.
    pub listen_port: u16,
    /// Mark of the packets that leave (`SO_MARK`), which needs `CAP_NET_ADMIN`.
    pub fwmark: Option<u32>,
    /// Largest packet inside the tunnel, in bytes, 576 to 65,000; `None` is [`DEFAULT_MTU`].
    ///
    /// A path that takes less makes it smaller.
    pub mtu: Option<u16>,
    /// The least that paths make of [`mtu`](Self::mtu), in bytes, 576 to 1280. `None` is 1280,
    /// which an IPv6 address inside needs (RFC 8200 section 5). IPv4 alone needs no more than 576.
    ///
    /// Over a path that takes less, datagrams are cut on their way.
    pub least_mtu: Option<u16>,
    /// Threads that help to seal, besides the one that sends.
    pub sealers: usize,
    /// Peers at the start.
    pub peers: Vec<Peer>,
}

impl WireguardConfig {
    /// An interface without peers, on a port that the host chooses.
    pub fn new(private_key: PrivateKey) -> Self {
        let (listen_port, fwmark, mtu, sealers, peers) = (0, None, None, 0, Vec::new());
        Self { private_key, listen_port, fwmark, mtu, least_mtu: None, sealers, peers }
    }
}

/// Settings of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// The key that the peer is known by.
    pub public_key: PublicKey,
    /// Key that both share beside their own.
    pub preshared_key: Option<PresharedKey>,
    /// Addresses inside the tunnel that are the peer's. Packets to them go to it, and packets of
    /// others from it are dropped.
    pub allowed_ips: Vec<IpNet>,
    /// Where the peer is reached; `None` waits for it to come. Packets to it wait for 90 seconds at
    /// the most.
    ///
    /// An address that the peer is heard from later takes its place.
    pub endpoint: Option<SocketAddr>,
    /// Time between two keepalives that the peer is sent whatever else it is sent; `None` or zero
    /// is never.
    pub persistent_keepalive: Option<Duration>,
}

impl Peer {
    /// A peer without addresses and without an endpoint.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            preshared_key: None,
            allowed_ips: Vec::new(),
            endpoint: None,
            persistent_keepalive: None,
        }
    }
}
