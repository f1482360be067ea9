//! The UDP socket of an interface as a device of the stack.

use crate::config::{DEFAULT_MTU, Peer, WireguardConfig};
use crate::error::Error;
use crate::handle::WireguardHandle;
use crate::keys::{PrivateKey, PublicKey};
use crate::status::{PeerStatus, Status};
use core::net::SocketAddr;
use neap_stack::device::{Capabilities, Completed, Completion, Device, Medium, QueuePair};
use neap_stack::device::{Received, RxQueue, TxQueue};
use neap_stack::frame::Frame;
use neap_tcp::time::Instant;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open interface, whose UDP socket is bound.
#[derive(Debug)]
pub struct Wireguard {
    shared: Arc<Shared>,
    mtu: u16,
}

impl Wireguard {
    /// Binds the UDP socket, without any privilege but those that the port and the mark need.
    ///
    /// # Errors
    /// [`Error::Port`], [`Error::Mark`], [`Error::OutOfRange`], [`Error::BadPeer`],
    /// [`Error::DuplicatePeer`], [`Error::System`].
    pub fn open(config: &WireguardConfig) -> Result<Self, Error> {
        let failed = |source| Error::Port { port: config.listen_port, source };
        let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)).map_err(failed)?;
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, config.listen_port));
        let bound = socket.set_only_v6(false).and_then(|()| socket.bind(&any.into()));
        bound.and_then(|()| socket.set_nonblocking(true)).map_err(failed)?;
        let state = State {
            private_key: config.private_key.clone(),
            fwmark: config.fwmark,
            peers: config.peers.clone(),
        };
        let socket = Arc::new(OwnedFd::from(socket));
        let shared = Arc::new(Shared { socket, state: Mutex::new(state) });
        Ok(Self { shared, mtu: config.mtu.unwrap_or(DEFAULT_MTU) })
    }

    /// Returns a handle, for as many threads as want one.
    pub fn handle(&self) -> WireguardHandle {
        WireguardHandle::new(self.shared.clone())
    }

    /// Makes a device of it, for a stack.
    pub fn into_device(self) -> Device {
        let capabilities = Capabilities::new(Medium::Ip, self.mtu, Completion::OnWire);
        let pair = QueuePair {
            tx: Box::new(Queue),
            rx: Box::new(Queue),
            bulk: None,
            descriptor: Some(self.shared.socket.clone()),
        };
        let name = "wg".to_owned();
        Device { name, capabilities, queues: vec![pair], steering: None, monitor: None }
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    socket: Arc<OwnedFd>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    private_key: PrivateKey,
    fwmark: Option<u32>,
    peers: Vec<Peer>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> Status {
        let state = self.lock();
        let port = self.socket.try_clone().and_then(|socket| UdpSocket::from(socket).local_addr());
        let peers = state.peers.iter().map(|peer| PeerStatus {
            public_key: peer.public_key,
            has_preshared_key: peer.preshared_key.is_some(),
            endpoint: peer.endpoint,
            allowed_ips: peer.allowed_ips.clone(),
            latest_handshake: None,
            received: 0,
            sent: 0,
            persistent_keepalive: peer.persistent_keepalive,
            failed_handshakes: 0,
        });
        Status {
            public_key: state.private_key.public_key(),
            listen_port: port.map_or(0, |local| local.port()),
            fwmark: state.fwmark,
            peers: peers.collect(),
            counters: Vec::new(),
        }
    }

    pub(crate) fn set_peers(&self, peers: Vec<Peer>) -> Result<(), Error> {
        self.lock().peers = peers;
        Ok(())
    }

    pub(crate) fn set_endpoint(&self, key: &PublicKey, endpoint: SocketAddr) -> Result<(), Error> {
        let mut state = self.lock();
        let peer = state.peers.iter_mut().find(|peer| peer.public_key == *key);
        peer.ok_or(Error::NoPeer(*key))?.endpoint = Some(endpoint);
        Ok(())
    }

    pub(crate) fn set_private_key(&self, key: PrivateKey) -> Result<(), Error> {
        self.lock().private_key = key;
        Ok(())
    }

    pub(crate) fn set_fwmark(&self, fwmark: Option<u32>) -> Result<(), Error> {
        self.lock().fwmark = fwmark;
        Ok(())
    }

    pub(crate) fn set_listen_port(&self, port: u16) -> Result<(), Error> {
        let source = io::ErrorKind::Unsupported.into();
        Err(Error::Port { port, source })
    }
}

struct Queue;

impl TxQueue for Queue {
    fn submit(&mut self, _frame: Frame, _now: Instant) -> Result<(), Frame> {
        Ok(())
    }

    fn flush(&mut self, _now: Instant) {}

    fn reap(&mut self, _now: Instant) -> Completed {
        Completed::default()
    }

    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }
}

impl RxQueue for Queue {
    fn receive(&mut self, _now: Instant) -> Option<Received> {
        None
    }
}
