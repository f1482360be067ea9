//! Ports of the host that are those of a guest.

use crate::host::HostStream;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

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

/// A listening port of the host.
#[derive(Debug)]
pub(crate) struct Published {
    socket: Socket,
    guest: SocketAddr,
    stand_in: IpAddr,
}

impl Published {
    pub(crate) fn listen(
        port: SocketAddr,
        guest: SocketAddr,
        stand_in: IpAddr,
    ) -> io::Result<Self> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new_raw(Domain::for_address(port), kind, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if port.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&port.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self { socket, guest, stand_in })
    }

    /// A connection, and the address that the guest is to see.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; others as `accept(2)`.
    pub(crate) fn accept(&self) -> io::Result<(HostStream, SocketAddr)> {
        let (socket, client) = self.socket.accept()?;
        socket.set_nonblocking(true)?;
        let client = client.as_socket().ok_or(io::ErrorKind::InvalidData)?;
        Ok((HostStream::accepted(socket)?, shown(client, self.stand_in)))
    }

    pub(crate) fn guest(&self) -> SocketAddr {
        self.guest
    }
}

impl AsFd for Published {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The address that a guest sees: a loopback address is not answered from outside of its host.
pub(crate) fn shown(client: SocketAddr, stand_in: IpAddr) -> SocketAddr {
    if client.ip().is_loopback() { SocketAddr::new(stand_in, client.port()) } else { client }
}
