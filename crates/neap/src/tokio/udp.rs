//! UDP under tokio.

use super::wait::Direction;
use super::{drive, names};
use crate::blocking::{self, READ_READY, WRITE_READY};
use crate::resolver::ToAddrs;
use crate::workers::Stack;
use core::net::SocketAddr;
use std::future::ready;
use std::io;

/// A UDP socket, as [`tokio::net::UdpSocket`](::tokio::net::UdpSocket). Several tasks may use it at
/// once.
#[derive(Debug)]
pub struct UdpSocket {
    socket: blocking::UdpSocket,
    reads: Direction,
    writes: Direction,
}

impl UdpSocket {
    /// Binds to an address of the stack; port 0 takes a free one. Of several addresses the first
    /// that can be had is taken; the resolver of a name runs on the runtime's pool for blocking
    /// calls.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; of several addresses the error of the last one.
    /// `Unsupported` for a name if the stack has no [resolver](crate::Builder::resolver). There is
    /// no runtime here.
    pub async fn bind(stack: &Stack, local: impl ToAddrs) -> io::Result<Self> {
        names::try_each(stack.engine(), local.endpoint()?, |local| {
            ready(blocking::UdpSocket::bind(stack, local).and_then(Self::from_blocking))
        })
        .await
    }

    /// Goes on under tokio with a socket that nobody else holds; it becomes non-blocking.
    ///
    /// # Errors
    /// There is no runtime here, or one without I/O.
    pub fn from_blocking(socket: blocking::UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        drive::ensure(socket.engine(), 0)?;
        let (reads, writes) = (Direction::new(READ_READY), Direction::new(WRITE_READY));
        Ok(Self { socket, reads, writes })
    }

    /// Fixes the peer: [`send`](Self::send) sends to it, and datagrams of others are not received.
    ///
    /// # Errors
    /// As [`neap::UdpSocket::connect`](crate::UdpSocket::connect).
    pub async fn connect(&self, remote: impl ToAddrs) -> io::Result<()> {
        let connect = |remote| ready(self.socket.connect_to(remote));
        names::try_each(self.socket.engine(), remote.endpoint()?, connect).await
    }

    /// Sends a datagram; waits while too much of this socket is below. Dropped before it is done,
    /// the future has sent nothing.
    ///
    /// # Errors
    /// As [`neap::UdpSocket::send_to`](crate::UdpSocket::send_to).
    pub async fn send_to(&self, data: &[u8], remote: impl ToAddrs) -> io::Result<usize> {
        let remote = names::first(self.socket.engine(), remote.endpoint()?).await?;
        self.writes.wait(self.socket.handle(), || self.socket.try_send(data, Some(remote))).await
    }

    /// Sends a datagram to the connected peer.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.writes.wait(self.socket.handle(), || self.socket.try_send(data, None)).await
    }

    /// Waits for a datagram; what does not fit `buf` is lost. Dropped before it is done, the future
    /// has taken none.
    ///
    /// # Errors
    /// A pending error of the network; `ConnectionAborted` when the stack was dropped.
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.reads.wait(self.socket.handle(), || self.socket.try_recv(buf)).await
    }

    /// As [`recv_from`](Self::recv_from), without the peer's address.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buf).await.map(|(len, _)| len)
    }

    /// Our address.
    ///
    /// # Errors
    /// None; std's signature.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}
