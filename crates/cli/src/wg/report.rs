//! What a WireGuard interface says of itself over the control socket. It has no secret.

use neap_wireguard::{PeerStatus, Status};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::UNIX_EPOCH;

/// What is asked for over a control socket.
pub(crate) const SUBJECT: &str = "wireguard";

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InterfaceReport {
    pub(crate) name: String,
    pub(crate) public_key: String,
    pub(crate) listen_port: u16,
    pub(crate) fwmark: Option<u32>,
    pub(crate) peers: Vec<PeerReport>,
}

/// A peer of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerReport {
    pub(crate) public_key: String,
    pub(crate) has_preshared_key: bool,
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) allowed_ips: Vec<String>,
    /// Seconds and nanoseconds since 1970.
    pub(crate) latest_handshake: Option<(u64, u32)>,
    /// Bytes.
    pub(crate) received: u64,
    /// Bytes.
    pub(crate) sent: u64,
    /// Seconds.
    pub(crate) persistent_keepalive: Option<u64>,
    pub(crate) failed_handshakes: u32,
}

impl InterfaceReport {
    /// The report of an interface with this name.
    pub(crate) fn new(name: &str, status: &Status) -> Self {
        Self {
            name: name.to_owned(),
            public_key: status.public_key.to_string(),
            listen_port: status.listen_port,
            fwmark: status.fwmark,
            peers: status.peers.iter().map(PeerReport::new).collect(),
        }
    }
}

impl PeerReport {
    fn new(peer: &PeerStatus) -> Self {
        let latest = peer.latest_handshake.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Self {
            public_key: peer.public_key.to_string(),
            has_preshared_key: peer.has_preshared_key,
            endpoint: peer.endpoint,
            allowed_ips: peer.allowed_ips.iter().map(ToString::to_string).collect(),
            latest_handshake: latest.map(|time| (time.as_secs(), time.subsec_nanos())),
            received: peer.received,
            sent: peer.sent,
            persistent_keepalive: peer.persistent_keepalive.map(|time| time.as_secs()),
            failed_handshakes: peer.failed_handshakes,
        }
    }
}
