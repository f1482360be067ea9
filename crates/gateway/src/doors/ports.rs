//! Where doors listen, and the connections that come there.

use super::config::{Door, DoorsConfig};
use super::stdio::Stdio;
use super::tls::TlsStream;
use crate::descriptors;
use crate::guest::GuestStream;
use crate::host::HostStream;
use crate::host_datagrams::HostDatagrams;
use crate::relay::End;
use crate::stack_upstream::options;
use neap::{Events, ListenOptions, Poller, Stack, TcpListener};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv6Addr, SocketAddr};

/// Connections that wait for the doors.
const BACKLOG: i32 = 4096;
/// What is reported of a connection, once for each change.
pub(super) const CHANGES: Events =
    Events::IN.union(Events::OUT).union(Events::RDHUP).union(Events::ET);

/// Where a door listens.
pub(super) enum Port {
    Host(Socket),
    Stack(TcpListener),
    Datagrams(HostDatagrams),
    /// Standard input and output, until its connection has begun.
    Stdio(Option<Box<Stdio>>),
    Closed,
}

/// A connection that came to a door.
pub(super) enum Arrived {
    Host(HostStream),
    Stack(GuestStream),
}

impl Port {
    pub(super) fn open(door: &mut Door, stack: &Stack) -> io::Result<Self> {
        Ok(match door {
            Door::Socks5 { listen, .. }
            | Door::Http { listen, .. }
            | Door::Client { listen, .. }
            | Door::Sni { listen } => Self::Host(listen_on_host(*listen)?),
            Door::Udp { listen, .. } => Self::Datagrams(HostDatagrams::bind_dual(*listen)?),
            Door::Server { listen_port, .. } => {
                let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), *listen_port);
                let options = ListenOptions { options: options(), ..ListenOptions::default() };
                let listener = TcpListener::bind_with(stack, any, options)?;
                listener.set_nonblocking(true)?;
                Self::Stack(listener)
            }
            Door::Stdio { input, output, .. } => {
                let stdio = Stdio::new(input.try_clone()?, output.try_clone()?)?;
                Self::Stdio(Some(Box::new(stdio)))
            }
        })
    }

    /// All ports of the doors; the place of the door that cannot be had, and why.
    pub(super) fn open_all(config: &mut DoorsConfig) -> Result<Vec<Self>, (usize, io::Error)> {
        let DoorsConfig { doors, stack, .. } = config;
        let ports = doors.iter_mut().enumerate();
        ports.map(|(index, door)| Self::open(door, stack).map_err(|error| (index, error))).collect()
    }

    pub(super) fn enter(&self, poller: &Poller, token: u64) -> io::Result<()> {
        let events = Events::IN | Events::ET;
        match self {
            Self::Host(socket) => poller.add(socket, token, events),
            Self::Stack(listener) => poller.add(listener, token, events),
            Self::Datagrams(socket) => poller.add(socket, token, events),
            Self::Stdio(_) | Self::Closed => Ok(()),
        }
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Host(socket) => socket.local_addr().ok()?.as_socket(),
            Self::Stack(listener) => listener.local_addr().ok(),
            Self::Datagrams(socket) => socket.local_addr().ok(),
            Self::Stdio(_) | Self::Closed => None,
        }
    }

    /// The next connection with its own address and that of the client.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; others as `accept(2)`.
    pub(super) fn accept(&self) -> io::Result<(Arrived, SocketAddr, SocketAddr)> {
        match self {
            Self::Host(listener) => {
                let (socket, client) = listener.accept()?;
                socket.set_nonblocking(true)?;
                let local = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidData)?;
                let client = client.as_socket().ok_or(io::ErrorKind::InvalidData)?;
                let stream = Arrived::Host(HostStream::accepted(socket)?);
                Ok((stream, unmapped(local), unmapped(client)))
            }
            Self::Stack(listener) => {
                let (stream, client) = listener.accept()?;
                let local = stream.local_addr()?;
                let stream = Arrived::Stack(GuestStream::new(stream)?);
                Ok((stream, unmapped(local), unmapped(client)))
            }
            Self::Datagrams(_) | Self::Stdio(_) | Self::Closed => {
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }
}

impl Arrived {
    /// Whether there are descriptors enough.
    pub(super) fn admit(&self) -> io::Result<()> {
        match self {
            Self::Host(stream) => descriptors::admit(stream),
            Self::Stack(_) => Ok(()),
        }
    }

    pub(super) fn enter(&self, poller: &Poller, token: u64) -> io::Result<()> {
        match self {
            Self::Host(stream) => poller.add(stream, token, CHANGES),
            Self::Stack(stream) => poller.add(stream.stream(), token, CHANGES),
        }
    }

    /// The connection for a door, under TLS if the door has that.
    ///
    /// # Errors
    /// There is no memory for TLS.
    pub(super) fn into_end(self, door: &Door) -> io::Result<Box<dyn End + Send>> {
        Ok(match (self, door) {
            (Self::Host(stream), Door::Http { tls: Some(identity), .. }) => {
                Box::new(TlsStream::new(stream, identity)?)
            }
            (Self::Host(stream), _) => Box::new(stream),
            (Self::Stack(stream), _) => Box::new(stream),
        })
    }

    /// Ends the connection by a reset.
    pub(super) fn reset(self) {
        match self {
            Self::Host(mut stream) => stream.reset(),
            Self::Stack(mut stream) => stream.reset(),
        }
    }
}

/// An address without the form that IPv6 has for those of IPv4, and without a zone.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// An address without the form that IPv6 has for those of IPv4. It keeps its zone, without which a
/// link-local one is of no use.
fn unmapped(address: SocketAddr) -> SocketAddr {
    if address.ip().to_canonical().is_ipv4() { canonical(address) } else { address }
}

/// A port of the host; on `[::]` it is that of both families.
fn listen_on_host(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new_raw(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}
