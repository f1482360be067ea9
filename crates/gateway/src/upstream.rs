//! Where the flows of a gateway go: the trait of a far side, and the host's kernel as one.

use crate::destination::Destination;
use crate::host_datagrams::{Arrived, HostDatagrams, Sent, Settled};
use crate::host_errors::{Manner, Undelivered};
use crate::opening::Opening;
use crate::outbound::Outbound;
use crate::receive_room::ReceiveRoom;
use crate::relay::End;
use bytes::Bytes;
use neap::{Events, Poller};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Who opens a connection, and how its SYN came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address and port.
    pub address: SocketAddr,
    /// Hops that its SYN had left (TTL), at least 2: the stack answers for those whose hops are
    /// used up. `None` if the connection has no SYN of a guest.
    pub hop_limit: Option<u8>,
}

impl From<SocketAddr> for Client {
    fn from(address: SocketAddr) -> Self {
        Self { address, hop_limit: None }
    }
}

/// A way to the destinations of flows.
///
/// The gateway opens a connection for each flow of a guest, and answers the guest when it is open.
/// Each address and port of a guest that sends datagrams gets a socket for them.
pub trait Upstream: Send {
    /// Begins a connection to `to` for a client. It does not wait.
    ///
    /// # Errors
    /// The connection is refused at once. The guest is told why, see
    /// [`Gateway`](crate::Gateway).
    fn connect(&self, to: &Destination, client: Client) -> io::Result<Box<dyn Far>>;

    /// Where a connection to `to` ends for this machine: the destination itself, or a proxy. While
    /// no port is left towards it, no more connections to it are begun.
    fn ends_at(&self, to: &Destination) -> SocketAddr {
        to.address
    }

    /// Opens a socket for the datagrams of a guest, of which the first one goes to `to`; others go
    /// to destinations of the same family. Where flows [leave by the host](Self::leaves_by_host),
    /// either all of them go to its own loopback addresses or none.
    ///
    /// # Errors
    /// `Unsupported` if it carries no datagrams, and others if it cannot be reached: the guest is
    /// told by an ICMP error. It is told nothing where there are no descriptors or ports left.
    fn datagrams(&self, to: &Destination) -> io::Result<Box<dyn FarDatagrams>>;

    /// Whether the questions of [`Resolver::Through`](crate::Resolver::Through) are
    /// [datagrams](Self::datagrams), and connections only where guests ask over TCP. Otherwise all
    /// of them are connections.
    fn asks_by_datagrams(&self) -> bool {
        false
    }

    /// Whether destinations have acknowledged all that was sent to them. A gateway that
    /// [drains](crate::GatewayHandle::drain) waits for it, and asks some times a second.
    /// Connections that others deliver to the end, as the kernel of the host does, are not waited
    /// for.
    fn has_delivered(&self) -> bool {
        true
    }

    /// Opens a socket for the echo requests (ping) of a guest's identifier. It is not asked of an
    /// upstream that [leaves by the host](Self::leaves_by_host).
    ///
    /// # Errors
    /// `Unsupported` if it carries none; others if there are no descriptors left.
    fn echo(&self, _is_v6: bool) -> io::Result<Box<dyn FarEcho>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether flows leave by sockets of the host's kernel. Echo requests (ping) then leave by its
    /// ping sockets, and datagrams from published ports by those, unless the gateway's
    /// [`outbound`](crate::GatewayConfig::outbound) says how they leave. Where all is to go another
    /// way, nothing leaves beside it.
    fn leaves_by_host(&self) -> bool {
        false
    }
}

/// A connection of an [`Upstream`], which never waits.
///
/// One that is made of another one names it by [`far_beneath`](Self::far_beneath),
/// [`far_beneath_mut`](Self::far_beneath_mut) and those of [`End`]. Whatever it does not implement
/// itself is then asked of that one.
pub trait Far: End + Send {
    /// The connection of which this one is made, if there is one.
    fn far_beneath(&self) -> Option<&dyn Far> {
        None
    }

    /// As [`far_beneath`](Self::far_beneath), to change it.
    fn far_beneath_mut(&mut self) -> Option<&mut dyn Far> {
        None
    }

    /// Whether the connection is open: the destination has accepted it.
    ///
    /// # Errors
    /// Why it will never be.
    fn is_open(&mut self) -> io::Result<bool>;

    /// Adds what the connection waits for to a poller.
    ///
    /// # Errors
    /// As [`Poller::add`].
    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()>;

    /// Whether only calls change it: it has no events, but data to give once something was sent to
    /// it, and room once something was received from it. Nothing of it leaves the gateway, so it
    /// has no turns under a rate.
    fn changes_within_calls(&self) -> bool {
        self.far_beneath().is_some_and(Far::changes_within_calls)
    }

    /// Whether a proxy opens the connection. Once a proxy has opened one, the gateway takes what it
    /// says of other connections for the fault of their destinations.
    fn is_by_proxy(&self) -> bool {
        self.far_beneath().is_some_and(Far::is_by_proxy)
    }

    /// What ICMP says of a connection that could not be opened, if the guest is to be told so in
    /// the name of who has said it. It is asked once the connection has failed.
    fn undelivered(&mut self) -> Option<Undelivered> {
        self.far_beneath_mut().and_then(Far::undelivered)
    }

    /// When the gateway gives up a connection that is not open. `None` if it fails by itself.
    fn opens_until(&self) -> Option<Instant> {
        self.far_beneath().and_then(Far::opens_until)
    }
}

/// A socket for datagrams of an [`Upstream`], which never waits.
pub trait FarDatagrams: Send {
    /// Sends datagrams of one length, of which the last may be shorter; at most
    /// [`MOST_SEGMENTS`](crate::MOST_SEGMENTS) with [`MOST_BYTES`](crate::MOST_BYTES). Where it
    /// can, it gives their packets the hop limit and the TOS of `manner`.
    fn send(&mut self, datagrams: &[Bytes], to: &Destination, manner: Manner) -> Sent;

    /// Takes datagrams that have arrived, by way of `room`.
    ///
    /// # Errors
    /// `WouldBlock` if there are none; `InvalidData` for what is no datagram; others are of
    /// datagrams that were sent, see [`undelivered`](Self::undelivered).
    fn receive(&mut self, room: &mut ReceiveRoom) -> io::Result<Arrived>;

    /// The next of the datagrams that could not be delivered, by way of `buffer`. Errors of which a
    /// guest is not to be told are passed over.
    fn undelivered(&mut self, buffer: &mut [u8]) -> Option<Undelivered>;

    /// Adds what the socket waits for to a poller.
    ///
    /// # Errors
    /// As [`Poller::add`].
    fn enter(&self, poller: &Poller, token: u64) -> io::Result<()>;

    /// The address and port that its datagrams leave from, unspecified as far as the route decides.
    /// It is asked only for somebody who looks, so it may cost a system call.
    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    /// When the gateway gives up a socket that cannot send yet. `None` if it can.
    fn opens_until(&self) -> Option<Instant> {
        None
    }

    /// What became of those that were [held](Sent::held), since the last call.
    fn settled(&mut self) -> Settled {
        Settled::default()
    }

    /// Ends the socket. What it could not send is [undelivered](Self::undelivered).
    fn give_up(&mut self) {}

    /// Whether it is of no use any more. The guest's next datagram gets another one.
    fn is_over(&self) -> bool {
        false
    }

    /// Why it is [over](Self::is_over), if the way has failed. It is told once.
    fn failure(&mut self) -> Option<io::Error> {
        None
    }
}

/// A reply to an echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoReply {
    /// How many bytes of the buffer it has.
    pub bytes: usize,
    /// Who has sent it.
    pub from: IpAddr,
    /// TOS byte or traffic class of its packet, with ECN.
    pub tos: u8,
}

/// A socket for echo requests of an [`Upstream`], which never waits. It has an identifier of its
/// own.
pub trait FarEcho: Send {
    /// Sends an echo request: a message of ICMP or ICMPv6 without a checksum, whose identifier is
    /// replaced.
    ///
    /// # Errors
    /// As `sendto(2)`.
    fn send(&mut self, request: &[u8], to: IpAddr, manner: Manner) -> io::Result<()>;

    /// Takes a reply, by way of `buffer`.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; others are of requests, see
    /// [`undelivered`](Self::undelivered).
    fn receive(&self, buffer: &mut [u8]) -> io::Result<EchoReply>;

    /// The address that its requests leave from, unspecified if the route decides, and their
    /// identifier as its port. It is asked only for somebody who looks, so it may cost a system
    /// call.
    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }

    /// The next of the requests that could not be delivered, by way of `buffer`.
    fn undelivered(&self, _buffer: &mut [u8]) -> Option<Undelivered> {
        None
    }

    /// Adds what the socket waits for to a poller.
    ///
    /// # Errors
    /// As [`Poller::add`].
    fn enter(&self, poller: &Poller, token: u64) -> io::Result<()>;
}

impl FarDatagrams for HostDatagrams {
    fn send(&mut self, datagrams: &[Bytes], to: &Destination, manner: Manner) -> Sent {
        self.send_from(to.from, datagrams, to.address, manner)
    }
    fn receive(&mut self, room: &mut ReceiveRoom) -> io::Result<Arrived> {
        Self::receive(self, room)
    }
    fn undelivered(&mut self, buffer: &mut [u8]) -> Option<Undelivered> {
        Self::undelivered(self, buffer)
    }
    fn enter(&self, poller: &Poller, token: u64) -> io::Result<()> {
        poller.add(self, token, Events::IN | Events::ET)
    }
    fn local_addr(&self) -> Option<SocketAddr> {
        Self::local_addr(self).ok()
    }
}

impl Far for Opening {
    fn is_open(&mut self) -> io::Result<bool> {
        Self::is_open(self)
    }
    fn undelivered(&mut self) -> Option<Undelivered> {
        Self::undelivered(self)
    }
    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
        poller.add(self, token, events)
    }
}

/// The host's kernel: flows are its connections, from its addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

impl Upstream for Direct {
    fn connect(&self, to: &Destination, client: Client) -> io::Result<Box<dyn Far>> {
        connect(to, &Outbound::default(), client.hop_limit)
    }

    fn datagrams(&self, to: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
        datagrams(to, &Outbound::default())
    }

    fn leaves_by_host(&self) -> bool {
        true
    }
}

/// The host's kernel: flows are its connections, which leave in this way.
#[derive(Clone, Debug, Default)]
pub struct DirectFrom(pub Outbound);

impl Upstream for DirectFrom {
    fn connect(&self, to: &Destination, client: Client) -> io::Result<Box<dyn Far>> {
        connect(to, &self.0, client.hop_limit)
    }

    fn datagrams(&self, to: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
        datagrams(to, &self.0)
    }

    fn leaves_by_host(&self) -> bool {
        true
    }
}

/// Begins a connection of the host's kernel.
pub(crate) fn connect(
    to: &Destination,
    outbound: &Outbound,
    hop_limit: Option<u8>,
) -> io::Result<Box<dyn Far>> {
    let to = address(to)?;
    let opening = if to.ip().is_loopback() {
        Opening::begin(to, &outbound.towards(to.ip()), hop_limit)?
    } else {
        Opening::begin(to, outbound, hop_limit)?
    };
    Ok(Box::new(opening))
}

/// Opens a UDP socket of the host's kernel.
fn datagrams(to: &Destination, outbound: &Outbound) -> io::Result<Box<dyn FarDatagrams>> {
    let to = address(to)?;
    Ok(Box::new(HostDatagrams::open(to, &outbound.towards(to.ip()))?))
}

/// The kernel knows addresses only.
fn address(to: &Destination) -> io::Result<SocketAddr> {
    if to.name.is_some() { Err(io::ErrorKind::Unsupported.into()) } else { Ok(to.address) }
}
