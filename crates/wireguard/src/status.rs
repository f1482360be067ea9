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
    /// Its peers, in the order in which they were given.
    pub peers: Vec<PeerStatus>,
    /// Figures of the whole interface, by name. Each kind of drop has one.
    pub counters: Vec<(&'static str, u64)>,
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
    /// When the last handshake was completed.
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
