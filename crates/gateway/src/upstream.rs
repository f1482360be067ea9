//! Where the flows of a gateway go: the trait of a far side, and the host's kernel as one.

use crate::destination::Destination;
use crate::host::HostStream;
use crate::host_datagrams::{Arrived, HostDatagrams, Sent};
use crate::host_errors::{Manner, Undelivered};
use crate::outbound::Outbound;
use crate::relay::{End, Segments};
use bytes::Bytes;
use neap::{Events, Poller};
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

/// A way to the destinations of flows.
///
/// The gateway opens a connection for each flow of a guest, and answers the guest when it is open.
/// Each address and port of a guest that sends datagrams gets a socket for them.
pub trait Upstream: Send {
    /// Begins a connection to `to` for a client with the address `client`. It does not wait.
    ///
    /// # Errors
    /// The connection is refused at once. The guest is told why, see
    /// [`Gateway`](crate::Gateway).
    fn connect(&self, to: &Destination, client: SocketAddr) -> io::Result<Box<dyn Far>>;

    /// Opens a socket for the datagrams of a guest, of which the first one goes to `to`; others go
    /// to destinations of the same family.
    ///
    /// # Errors
    /// `Unsupported` if it carries no datagrams, which the guest is told by an ICMP error; others
    /// if there are no descriptors left.
    fn datagrams(&self, to: &Destination) -> io::Result<Box<dyn FarDatagrams>>;

    /// Whether flows leave by sockets of the host's kernel. Echo requests (ping) then leave by its
    /// ping sockets, and datagrams from published ports by those. Where all is to go another way,
    /// nothing leaves beside it.
    fn leaves_by_host(&self) -> bool {
        false
    }
}

/// A connection of an [`Upstream`], which never waits.
pub trait Far: End + Send {
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

    /// When the gateway gives up a connection that is not open. `None` if it fails by itself.
    fn opens_until(&self) -> Option<Instant> {
        None
    }
}

/// A socket for datagrams of an [`Upstream`], which never waits.
pub trait FarDatagrams: Send {
    /// Sends datagrams of one length, of which the last may be shorter; at most
    /// [`MOST_SEGMENTS`](crate::MOST_SEGMENTS) with [`MOST_BYTES`](crate::MOST_BYTES). Where it
    /// can, it gives their packets the hop limit of `manner`.
    fn send(&mut self, datagrams: &[Bytes], to: &Destination, manner: Manner) -> Sent;

    /// Takes datagrams that have arrived, by way of `buffer`, which holds
    /// [`MOST_BYTES`](crate::MOST_BYTES).
    ///
    /// # Errors
    /// `WouldBlock` if there are none; `InvalidData` for what is no datagram; others are of
    /// datagrams that were sent, see [`undelivered`](Self::undelivered).
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Arrived>;

    /// The next of the datagrams that could not be delivered, by way of `buffer`. Errors of which a
    /// guest is not to be told are passed over.
    fn undelivered(&mut self, buffer: &mut [u8]) -> Option<Undelivered>;

    /// Adds what the socket waits for to a poller.
    ///
    /// # Errors
    /// As [`Poller::add`].
    fn enter(&self, poller: &Poller, token: u64) -> io::Result<()>;

    /// When the gateway gives up a socket that cannot send yet. `None` if it can.
    fn opens_until(&self) -> Option<Instant> {
        None
    }

    /// Ends the socket. What it could not send is [undelivered](Self::undelivered).
    fn give_up(&mut self) {}

    /// Whether it is of no use any more. The guest's next datagram gets another one.
    fn is_over(&self) -> bool {
        false
    }
}

impl FarDatagrams for HostDatagrams {
    fn send(&mut self, datagrams: &[Bytes], to: &Destination, manner: Manner) -> Sent {
        self.send(datagrams, to.address, manner)
    }
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Arrived> {
        Self::receive(self, buffer)
    }
    fn undelivered(&mut self, buffer: &mut [u8]) -> Option<Undelivered> {
        Self::undelivered(self, buffer)
    }
    fn enter(&self, poller: &Poller, token: u64) -> io::Result<()> {
        poller.add(self, token, Events::IN | Events::ET)
    }
}

/// The host's kernel: flows are its connections, from its addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

impl Upstream for Direct {
    fn connect(&self, to: &Destination, _: SocketAddr) -> io::Result<Box<dyn Far>> {
        connect(to, &Outbound::default())
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
    fn connect(&self, to: &Destination, _: SocketAddr) -> io::Result<Box<dyn Far>> {
        connect(to, &self.0)
    }

    fn datagrams(&self, to: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
        datagrams(to, &self.0)
    }

    fn leaves_by_host(&self) -> bool {
        true
    }
}

/// Begins a connection of the host's kernel.
pub(crate) fn connect(to: &Destination, outbound: &Outbound) -> io::Result<Box<dyn Far>> {
    let to = address(to)?;
    let stream = if to.ip().is_loopback() {
        HostStream::connect(to, &outbound.towards(to.ip()))?
    } else {
        HostStream::connect(to, outbound)?
    };
    Ok(Box::new(Opening { stream, is_open: false }))
}

/// Opens a UDP socket of the host's kernel.
fn datagrams(to: &Destination, outbound: &Outbound) -> io::Result<Box<dyn FarDatagrams>> {
    Ok(Box::new(HostDatagrams::open(address(to)?, outbound)?))
}

/// The kernel knows addresses only.
fn address(to: &Destination) -> io::Result<SocketAddr> {
    if to.name.is_some() { Err(io::ErrorKind::Unsupported.into()) } else { Ok(to.address) }
}

/// A connection of the host's kernel that was begun.
#[derive(Debug)]
struct Opening {
    stream: HostStream,
    is_open: bool,
}

impl Far for Opening {
    fn is_open(&mut self) -> io::Result<bool> {
        if !self.is_open {
            self.is_open = self.stream.is_connected()?;
        }
        Ok(self.is_open)
    }

    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
        poller.add(&self.stream, token, events)
    }
}

impl End for Opening {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        self.stream.receive()
    }
    fn send(&mut self, data: &mut Bytes) -> io::Result<()> {
        self.stream.send(data)
    }
    fn finish(&mut self) -> io::Result<()> {
        self.stream.finish()
    }
    fn set_piece(&mut self, bytes: usize) {
        self.stream.set_piece(bytes);
    }
    fn take_error(&mut self) -> io::Result<()> {
        self.stream.take_error()
    }
    fn reset(&mut self) {
        self.stream.reset();
    }
    fn segments(&self) -> Segments {
        self.stream.segments()
    }
    fn limit_unsent(&mut self, bytes: usize) {
        self.stream.limit_unsent(bytes);
    }
}
