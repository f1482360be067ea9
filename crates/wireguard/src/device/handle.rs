//! What other threads ask of an interface and change in it.

use crate::config::Peer;
use crate::device::shared::Shared;
use crate::error::Error;
use crate::keys::{PrivateKey, PublicKey};
use crate::status::Status;
use core::net::SocketAddr;
use std::sync::Arc;

/// An interface as other threads see it, while it runs and afterwards. Clones are of the same
/// interface.
#[derive(Clone, Debug)]
pub struct WireguardHandle {
    shared: Arc<Shared>,
}

impl WireguardHandle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Returns the state of the interface and its peers. Cost: O(peers), under the lock of the
    /// tunnel.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Has `tell` called whenever
    /// [`failed_handshakes`](crate::PeerStatus::failed_handshakes) of a peer changes: an initiation
    /// was not answered, or the peer has answered after some that were not. The call comes from the
    /// thread that drives the stack, or from one that changes the interface by a handle, so that it
    /// must not wait. Returns false, and changes nothing, if it was set before.
    pub fn on_failed_handshakes(&self, tell: impl Fn() + Send + Sync + 'static) -> bool {
        self.shared.on_failed_handshakes(Box::new(tell))
    }

    /// Makes several changes as one. The handshakes that they need begin after the last of them,
    /// from where the interface is then, and one for each peer that is still there. Changes that
    /// are made one by one may make two initiations to one peer in a row, of which Linux drops the
    /// second if it comes within 20 ms, and such a peer gets its next one after 5 s.
    pub fn batch<R>(&self, changes: impl FnOnce() -> R) -> R {
        self.shared.batch(changes)
    }

    /// Sets the peers. One that stays keeps its counters and the address that it was heard from,
    /// and with the same keys and keepalive its session; with others a new one begins at once. A
    /// changed endpoint or list of addresses is taken. One that is not named is forgotten.
    ///
    /// # Errors
    /// [`Error::BadPeer`], [`Error::DuplicatePeer`], [`Error::OutOfRange`]; then nothing has
    /// changed.
    pub fn set_peers(&self, peers: Vec<Peer>) -> Result<(), Error> {
        self.shared.set_peers(peers)
    }

    /// Sets where a peer is reached. With a persistent keepalive, a handshake begins there at once
    /// if there is no session.
    ///
    /// # Errors
    /// [`Error::NoPeer`].
    pub fn set_endpoint(&self, peer: &PublicKey, endpoint: SocketAddr) -> Result<(), Error> {
        self.shared.set_endpoint(peer, endpoint)
    }

    /// Sets where a silent peer is tried next: at another one of its addresses. One that was given
    /// up, and has a persistent keepalive, is tried again when that interval is over, so addresses
    /// that take turns cost no more handshakes than one address.
    ///
    /// # Errors
    /// [`Error::NoPeer`].
    pub fn set_next_endpoint(&self, peer: &PublicKey, endpoint: SocketAddr) -> Result<(), Error> {
        self.shared.set_next_endpoint(peer, endpoint)
    }

    /// Sets the key of the interface. All sessions end. Those that were used, and handshakes that
    /// packets wait for, begin anew at once.
    ///
    /// # Errors
    /// [`Error::DuplicatePeer`] if a peer has this key; then nothing has changed.
    pub fn set_private_key(&self, key: PrivateKey) -> Result<(), Error> {
        self.shared.set_private_key(key)
    }

    /// Sets the mark of packets that leave, or takes it away.
    ///
    /// # Errors
    /// [`Error::Mark`].
    pub fn set_fwmark(&self, fwmark: Option<u32>) -> Result<(), Error> {
        self.shared.set_fwmark(fwmark)
    }

    /// Returns the largest MTU inside the tunnel, in bytes, that [`set_mtu`](Self::set_mtu) takes:
    /// 59,000, or that with which the interface was opened if that is larger. The buffers of the
    /// interface are for no larger packet.
    pub fn largest_mtu(&self) -> u16 {
        self.shared.path.largest()
    }

    /// Sets the largest packet inside the tunnel, in bytes; `None` is
    /// [`DEFAULT_MTU`](crate::DEFAULT_MTU). The interface of the stack follows.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] below 576 and above [`largest_mtu`](Self::largest_mtu).
    pub fn set_mtu(&self, mtu: Option<u16>) -> Result<(), Error> {
        self.shared.set_mtu(mtu)
    }

    /// Sets the least that paths make of the MTU inside, in bytes; `None` is 1280, which an IPv6
    /// address inside needs. The interface of the stack follows.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] below 576 and above 1280.
    pub fn set_least_mtu(&self, least: Option<u16>) -> Result<(), Error> {
        self.shared.set_least_mtu(least)
    }

    /// Moves the interface to another UDP port; with 0 the host chooses. Sessions stay. Peers that
    /// have a session, or a handshake under way, learn the port at once, by a handshake from it.
    /// The old port is free once the host has let go of what was sent from it.
    ///
    /// # Errors
    /// [`Error::Port`], [`Error::Mark`], [`Error::System`]; then nothing has changed.
    pub fn set_listen_port(&self, port: u16) -> Result<(), Error> {
        self.shared.set_listen_port(port)
    }
}
