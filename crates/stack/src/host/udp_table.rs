//! The UDP sockets of a host by local port, and the forwarders that take what no socket takes.
//!
//! Cost of a lookup: a multiplication, one mutex, and one look at each socket on the port; where no
//! socket is found, one at each forwarder.

use super::Host;
use super::error::SocketError;
use super::listed::UdpInfo;
use super::ports::{FullAddresses, NO_PORTS, search};
use super::udp::{Binding, Delivered, UdpForwarderOptions, UdpSocket};
use super::udp_memory::UdpMemory;
use super::udp_queue::ReceivedDatagram;
use crate::flow::{FlowKey, FourTuple};
use crate::net::interface::InterfaceId;
use crate::sync::{Mutex, lock};
use core::ops::RangeInclusive;
use hashbrown::HashTable;
use neap_tcp::time::Instant;
use std::sync::Arc;

/// The UDP sockets and forwarders of a host.
pub(crate) struct UdpTable {
    sockets: Mutex<UdpSockets>,
    memory: Arc<UdpMemory>,
}

struct UdpSockets {
    by_port: HashTable<Arc<UdpSocket>>,
    /// In the order in which they were made.
    forwarders: Vec<Arc<UdpSocket>>,
    /// Ports that are chosen.
    ephemeral: RangeInclusive<u16>,
    full: FullAddresses,
    bound: u64,
    is_shut_down: bool,
}

/// Where a datagram comes from, or the packet that an error is about.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// This host.
    Host,
    Interface(InterfaceId),
    Unknown,
}

impl UdpSockets {
    fn all(&self) -> impl Iterator<Item = &Arc<UdpSocket>> {
        self.by_port.iter().chain(&self.forwarders)
    }
}

fn hash(port: u16) -> u64 {
    u64::from(port).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl UdpTable {
    /// An empty table, without a port to choose; see [`set_ports`](Self::set_ports).
    pub(crate) fn new() -> Self {
        let sockets = Mutex::new(UdpSockets {
            by_port: HashTable::new(),
            forwarders: Vec::new(),
            ephemeral: NO_PORTS,
            full: FullAddresses::default(),
            bound: 0,
            is_shut_down: false,
        });
        Self { sockets, memory: Arc::default() }
    }

    /// The memory of all sockets.
    pub(crate) fn memory(&self) -> &UdpMemory {
        &self.memory
    }

    /// Chooses ports from `ports` (`net.ipv4.ip_local_port_range`) from now on.
    pub(crate) fn set_ports(&self, ports: RangeInclusive<u16>) {
        let mut sockets = lock(&self.sockets);
        sockets.ephemeral = ports;
        sockets.full.clear();
    }

    /// Binds a socket; port 0 is an ephemeral one that no other socket has whose address meets this
    /// one. It does not tell those of other sockets (RFC 5452 section 9.2).
    pub(crate) fn bind(
        &self,
        key: FlowKey,
        mut binding: Binding,
    ) -> Result<Arc<UdpSocket>, SocketError> {
        let mut sockets = lock(&self.sockets);
        if sockets.is_shut_down {
            return Err(SocketError::ShutDown);
        }
        let UdpSockets { by_port, ephemeral, full, bound, .. } = &mut *sockets;
        if binding.local.port() == 0 {
            let is_free = |port| {
                let mut candidate = binding;
                candidate.local.set_port(port);
                !by_port.iter_hash(hash(port)).any(|one| one.binding.overlaps(&candidate))
            };
            let offset = key.hash_number(*bound) as u32;
            let search = || search(ephemeral, offset, is_free).map(|(port, _)| port);
            let port = full.choose(binding.local, binding.is_dual, search);
            binding.local.set_port(port.ok_or(SocketError::AddressInUse)?);
        }
        let port = hash(binding.local.port());
        let is_taken = by_port
            .iter_hash(port)
            .filter(|one| !(binding.reuse && one.may_share()))
            .any(|one| one.binding.overlaps(&binding));
        if is_taken {
            return Err(SocketError::AddressInUse);
        }
        *bound += 1;
        let socket = Arc::new(UdpSocket::new(*bound, binding, &self.memory));
        by_port.insert_unique(port, socket.clone(), |one| hash(one.binding.local.port()));
        Ok(socket)
    }

    /// Makes a forwarder. `seed` is random: it keys the shares of sources.
    pub(crate) fn forward(
        &self,
        options: UdpForwarderOptions,
        seed: u64,
    ) -> Result<Arc<UdpSocket>, SocketError> {
        let mut sockets = lock(&self.sockets);
        if sockets.is_shut_down {
            return Err(SocketError::ShutDown);
        }
        sockets.bound += 1;
        let forwarder = Arc::new(UdpSocket::forwarder(sockets.bound, options, seed, &self.memory));
        sockets.forwarders.push(forwarder.clone());
        Ok(forwarder)
    }

    /// The socket that fits best, of several the one that was bound last; or else the first
    /// forwarder that takes such datagrams.
    fn find(&self, tuple: &FourTuple, from: Origin) -> Option<Arc<UdpSocket>> {
        let sockets = lock(&self.sockets);
        let scored = sockets
            .by_port
            .iter_hash(hash(tuple.local_port))
            .map(|socket| (socket.score(tuple), socket))
            .filter(|(score, _)| *score > 0);
        if let Some((_, socket)) = scored.max_by_key(|(score, one)| (*score, one.number)) {
            return Some(socket.clone());
        }
        let interface = match from {
            Origin::Host => return None,
            Origin::Interface(interface) => Some(interface),
            Origin::Unknown => None,
        };
        let local = tuple.local_addr();
        sockets.forwarders.iter().find(|one| one.forwards(local, interface)).cloned()
    }

    /// Delivers the datagrams of a packet between the two addresses of `tuple`, `segment` bytes
    /// each or one if that is 0; `None` without a socket for them. What is for all hosts goes to
    /// every socket that fits, and to no forwarder. `is_alone` says that nothing else is in the
    /// memory of the data: it may wait for long.
    pub(crate) fn deliver(
        &self,
        tuple: &FourTuple,
        whole: &ReceivedDatagram,
        segment: usize,
        is_alone: bool,
    ) -> Option<Delivered> {
        if whole.is_broadcast {
            return self.deliver_to_all(tuple, whole, segment, is_alone);
        }
        let from = whole.interface.map_or(Origin::Host, Origin::Interface);
        Some(self.find(tuple, from)?.deliver(whole, segment, is_alone))
    }

    /// `__udp4_lib_mcast_deliver`. What became of them where they fared worst.
    fn deliver_to_all(
        &self,
        tuple: &FourTuple,
        whole: &ReceivedDatagram,
        segment: usize,
        is_alone: bool,
    ) -> Option<Delivered> {
        let sockets = lock(&self.sockets);
        let fitting = sockets.by_port.iter_hash(hash(tuple.local_port));
        let fitting: Vec<_> = fitting.filter(|one| one.score(tuple) > 0).cloned().collect();
        drop(sockets);
        let fates = fitting.iter().map(|socket| socket.deliver(whole, segment, is_alone));
        fates.min_by_key(|fate| fate.queued)
    }

    /// Tells the socket that sent a datagram of an error, which came in by `interface` if that is
    /// known; whether there is one. Of forwarders that of the interface sent it. One of another
    /// interface may have, if the way back of the error is not that of the datagram.
    pub(crate) fn on_error(
        &self,
        tuple: &FourTuple,
        interface: Option<InterfaceId>,
        tell: impl FnOnce(&UdpSocket),
    ) -> bool {
        let of_interface = interface.and_then(|one| self.find(tuple, Origin::Interface(one)));
        let socket = of_interface.or_else(|| self.find(tuple, Origin::Unknown));
        socket.as_deref().map(tell).is_some()
    }

    /// Tells all sockets that the device of an interface is gone; `is_last` says that no other is
    /// left. Costs a look at each.
    pub(crate) fn on_device_gone(
        &self,
        host: &Host,
        now: Instant,
        interface: InterfaceId,
        is_last: bool,
    ) {
        let sockets: Vec<_> = lock(&self.sockets).all().cloned().collect();
        for socket in sockets {
            socket.on_device_gone(host, now, interface, is_last);
        }
    }

    /// What a listing says of all sockets and forwarders.
    pub(crate) fn listed(&self) -> Vec<UdpInfo> {
        let sockets: Vec<_> = lock(&self.sockets).all().cloned().collect();
        sockets.iter().map(|socket| socket.listed()).collect()
    }

    /// Forgets a socket whose last handle is gone.
    pub(crate) fn remove(&self, socket: &Arc<UdpSocket>) {
        let mut sockets = lock(&self.sockets);
        let is_it = |one: &Arc<UdpSocket>| Arc::ptr_eq(one, socket);
        if socket.is_forwarder() {
            return sockets.forwarders.retain(|one| !is_it(one));
        }
        if let Ok(entry) = sockets.by_port.find_entry(hash(socket.binding.local.port()), is_it) {
            entry.remove();
            sockets.full.clear();
        }
    }

    /// Closes all sockets and refuses more.
    pub(crate) fn shut_down(&self) {
        let mut sockets = lock(&self.sockets);
        sockets.is_shut_down = true;
        let UdpSockets { by_port, forwarders, .. } = &mut *sockets;
        let all: Vec<_> = by_port.drain().chain(forwarders.drain(..)).collect();
        drop(sockets);
        all.iter().for_each(|socket| socket.close());
    }

    /// Sockets bound, and forwarders.
    pub(crate) fn len(&self) -> usize {
        lock(&self.sockets).all().count()
    }
}
