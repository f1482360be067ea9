//! Ports of the host that are those of a guest.

use crate::host::HostStream;
use crate::host_datagrams::HostDatagrams;
use crate::outbound::Outbound;
use crate::token::{MOST_PUBLISHED, Slot};
use slab::Slab;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Connections that wait for the gateway.
const BACKLOG: i32 = 4096;

/// What a published port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

/// What is to be published: what comes to a port of the host goes to a guest, from the address of
/// whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Whether connections or datagrams are taken.
    pub transport: Transport,
    /// Address and port of the host; the host chooses a port if it is 0.
    pub port: SocketAddr,
    /// Address and port of the guest.
    pub guest: SocketAddr,
    /// What the guest sees in place of a loopback address, which it would not answer, and of an
    /// address of the other family.
    pub stand_in: IpAddr,
}

impl Publication {
    /// Binds the port of the host for
    /// [`Gateway::publish_socket`](crate::Gateway::publish_socket), which takes the socket when the
    /// process may not bind it any more. What is sent from it has the mark of `outbound`, as its
    /// connections have. The returned publication has the port that the host has chosen.
    ///
    /// # Errors
    /// What the host says: the port is taken, or the process may not have it, or not set the mark.
    pub fn bind(self, outbound: &Outbound) -> io::Result<(OwnedFd, Self)> {
        let outbound = outbound.of_published();
        if self.transport == Transport::Udp {
            let socket = HostDatagrams::bind_with(self.port, &outbound, true)?;
            let port = socket.local_addr()?;
            return Ok((socket.into_fd(), Self { port, ..self }));
        }
        let port = self.port;
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new_raw(Domain::for_address(port), kind, Some(Protocol::TCP))?;
        // Connections inherit it.
        outbound.apply(&socket)?;
        socket.set_reuse_address(true)?;
        if port.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&port.into())?;
        // Only a socket that listens keeps others from the port.
        socket.listen(BACKLOG)?;
        let bound = socket.local_addr()?.as_socket().unwrap_or(port);
        Ok((socket.into(), Self { port: bound, ..self }))
    }
}

/// Number of a published port. A gateway gives each number once, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishedId(u64);

impl PublishedId {
    /// The number.
    pub fn to_u64(self) -> u64 {
        self.0
    }
}

impl From<u64> for PublishedId {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for PublishedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishedPort {
    /// Its number.
    pub id: PublishedId,
    /// What was asked for, with the port that the host has chosen.
    pub publication: Publication,
}

/// Where the socket of a published port is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Listener(usize),
    Mapping(Slot),
    Crossing(Slot),
}

/// All published ports, and the sockets of those that take connections.
///
/// Cost: O(log n) to publish and to close a port; a connection costs nothing besides its socket.
#[derive(Debug, Default)]
pub(crate) struct PublishedPorts {
    ports: BTreeMap<PublishedId, (Publication, Place)>,
    listeners: Slab<Listener>,
    last: u64,
}

impl PublishedPorts {
    /// Whether there is room for one more.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(crate) fn check_room(&self) -> io::Result<()> {
        let has_room = self.ports.len() < MOST_PUBLISHED;
        has_room.then_some(()).ok_or_else(|| io::ErrorKind::QuotaExceeded.into())
    }

    /// Takes a listener; returns its place.
    pub(crate) fn listen(&mut self, listener: Listener) -> usize {
        self.listeners.insert(listener)
    }

    pub(crate) fn listener(&mut self, index: usize) -> Option<&mut Listener> {
        self.listeners.get_mut(index)
    }

    pub(crate) fn note(&mut self, publication: Publication, place: Place) -> PublishedId {
        self.last += 1;
        let id = PublishedId(self.last);
        self.ports.insert(id, (publication, place));
        id
    }

    /// Forgets a port and closes its listener. A mapping is left to the caller.
    pub(crate) fn remove(&mut self, id: PublishedId) -> Option<Place> {
        let (_, place) = self.ports.remove(&id)?;
        if let Place::Listener(index) = place {
            self.listeners.remove(index);
        }
        Some(place)
    }

    pub(crate) fn list(&self) -> Vec<PublishedPort> {
        let entry = |(&id, &(publication, _)): (&PublishedId, &(Publication, Place))| {
            PublishedPort { id, publication }
        };
        self.ports.iter().map(entry).collect()
    }
}

/// A listening port of the host.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    publication: Publication,
    is_crossing: bool,
    /// A connection that was taken before its other half could be opened.
    first: Option<(HostStream, SocketAddr)>,
}

impl Listener {
    /// One that somebody else has bound.
    ///
    /// # Errors
    /// It is no socket, or cannot listen.
    pub(crate) fn adopt(
        socket: OwnedFd,
        publication: Publication,
        is_crossing: bool,
    ) -> io::Result<Self> {
        let socket = Socket::from(socket);
        socket.set_nonblocking(true)?;
        socket.listen(BACKLOG)?;
        Ok(Self { socket, publication, is_crossing, first: None })
    }

    /// Whether its connections go to an address of the host instead of a guest.
    pub(crate) fn is_crossing(&self) -> bool {
        self.is_crossing
    }

    /// A connection, and its client.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; others as `accept(2)`.
    pub(crate) fn accept(&mut self) -> io::Result<(HostStream, SocketAddr)> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let (socket, client) = self.socket.accept()?;
        socket.set_nonblocking(true)?;
        let client = client.as_socket().ok_or(io::ErrorKind::InvalidData)?;
        Ok((HostStream::accepted(socket)?, client))
    }

    /// Has a connection and its client [taken](Self::accept) again, before all others.
    pub(crate) fn put_back(&mut self, connection: HostStream, client: SocketAddr) {
        self.first = Some((connection, client));
    }

    /// What it does, with the port that it has.
    pub(crate) fn publication(&self) -> &Publication {
        &self.publication
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The address that a guest sees: a loopback address is not answered from outside of its host, one
/// of a link not from outside of that link, an own one (of `guests`) neither, and the stand-in is
/// of the guest's family.
pub(crate) fn shown(client: SocketAddr, stand_in: IpAddr, guests: &[IpAddr]) -> SocketAddr {
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    let is_foreign = client.is_ipv6() != stand_in.is_ipv6();
    let is_of_link = is_of_link(client.ip());
    if client.ip().is_loopback() || is_of_link || is_foreign || guests.contains(&client.ip()) {
        return SocketAddr::new(stand_in, client.port());
    }
    client
}

/// Whether it is a link-local address of IPv6.
pub(crate) fn is_of_link(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_sees_no_address_that_it_would_not_answer() {
        let stand_in: IpAddr = "192.0.2.1".parse().expect("an address");
        let own: IpAddr = "192.0.2.10".parse().expect("an address");
        let seen = |client: &str| shown(client.parse().expect("an address"), stand_in, &[own]);
        for host in ["127.0.0.1:7", "192.0.2.10:7", "[::1]:7", "[2001:db8::1]:7"] {
            assert_eq!(seen(host), SocketAddr::new(stand_in, 7), "{host}");
        }
        let other = "198.51.100.1:7".parse().expect("an address");
        assert_eq!(seen("198.51.100.1:7"), other);
        assert_eq!(seen("[::ffff:198.51.100.1]:7"), other);
        let stand_in: IpAddr = "fd00::2".parse().expect("an address");
        let seen = |client: &str| shown(client.parse().expect("an address"), stand_in, &[]);
        assert_eq!(seen("[fe80::1%2]:7"), SocketAddr::new(stand_in, 7));
        let other = "[2001:db8::1]:7".parse().expect("an address");
        assert_eq!(seen("[2001:db8::1]:7"), other);
    }
}
