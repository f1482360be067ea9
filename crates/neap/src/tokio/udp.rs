//! UDP under tokio.

use super::drive;
use super::wait::Direction;
use crate::blocking::{self, READ_READY, WRITE_READY};
use crate::workers::Stack;
use core::net::SocketAddr;
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
    /// Binds to an address of the stack; port 0 takes a free one.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; no runtime.
    pub fn bind(stack: &Stack, local: SocketAddr) -> io::Result<Self> {
        let socket = blocking::UdpSocket::bind(stack, local)?;
        socket.set_nonblocking(true)?;
        drive::ensure(socket.engine(), 0)?;
        let (reads, writes) = (Direction::new(READ_READY), Direction::new(WRITE_READY));
        Ok(Self { socket, reads, writes })
    }

    /// Fixes the peer of `send` and `recv`.
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route.
    pub fn connect(&self, remote: SocketAddr) -> io::Result<()> {
        self.socket.connect(remote)
    }

    /// Sends a datagram; waits while too much of this socket is below. Dropped before it is done,
    /// the future has sent nothing.
    ///
    /// # Errors
    /// As [`neap::UdpSocket::send_to`](crate::UdpSocket::send_to).
    pub async fn send_to(&self, data: &[u8], remote: SocketAddr) -> io::Result<usize> {
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
