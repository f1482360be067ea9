//! UDP under tokio.

use super::wait::{self, Direction};
use super::{drive, names};
use crate::blocking::{self, Datagram, ERROR_READY, READ_READY, WRITE_READY};
use crate::resolver::ToAddrs;
use crate::workers::Stack;
use ::tokio::io::{Interest, ReadBuf, Ready};
use core::net::SocketAddr;
use neap_stack::socket::errors::ErrorRecord;
use neap_stack::stack::UdpOptions;
use std::future::ready;
use std::io;
use std::task::{Context, Poll};

/// A UDP socket of a stack, used as [`tokio::net::UdpSocket`](::tokio::net::UdpSocket) is.
///
/// Several tasks may use it at once. It lacks what [`neap::UdpSocket`](crate::UdpSocket) lacks,
/// multicast, and the calls with `_buf` in their names.
#[derive(Debug)]
pub struct UdpSocket {
    socket: blocking::UdpSocket,
    reads: Direction,
    writes: Direction,
    errors: Direction,
}

impl UdpSocket {
    /// Binds to an address of the stack; port 0 takes a free one. Of several addresses the first
    /// that can be had is taken; the resolver of a name runs on the runtime's pool for blocking
    /// calls.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; of several addresses the error of the last one.
    /// `Unsupported` for a name if the stack has no [resolver](crate::Builder::resolver). `Other`
    /// outside of a runtime.
    pub async fn bind(stack: &Stack, local: impl ToAddrs) -> io::Result<Self> {
        Self::bind_with(stack, local, UdpOptions::default()).await
    }

    /// Binds as [`bind`](Self::bind) does, with options that must be set before.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub async fn bind_with(
        stack: &Stack,
        local: impl ToAddrs,
        options: UdpOptions,
    ) -> io::Result<Self> {
        names::try_each(stack.engine(), local.endpoint()?, |local| {
            let socket = blocking::UdpSocket::bind_with(stack, local, options);
            ready(socket.and_then(Self::from_blocking))
        })
        .await
    }

    /// Makes a socket for tokio of a blocking one that nobody else holds. It becomes non-blocking.
    ///
    /// # Errors
    /// `Other` outside of a runtime. If no task drives the stack yet: `Unsupported` in a runtime
    /// without I/O, and `EMFILE` of the system, which has no kind in std, if the process has no
    /// descriptors left for a task.
    pub fn from_blocking(socket: blocking::UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        drive::ensure(socket.engine(), 0)?;
        let (reads, writes) = (Direction::new(READ_READY), Direction::new(WRITE_READY));
        let errors = Direction::new(ERROR_READY);
        Ok(Self { socket, reads, writes, errors })
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
    /// As [`send_to`](Self::send_to); `InvalidInput` without a peer.
    pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.writes.wait(self.socket.handle(), || self.socket.try_send(data, None)).await
    }

    /// Does what [`send_to`](Self::send_to) does, for `poll` functions. The task that asked last is
    /// woken.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        data: &[u8],
        remote: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.writes.poll(cx, self.socket.handle(), || self.socket.try_send(data, Some(remote)))
    }

    /// Sends a datagram if there is room.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to); `WouldBlock` if there is none.
    pub fn try_send_to(&self, data: &[u8], remote: SocketAddr) -> io::Result<usize> {
        self.socket.try_send(data, Some(remote))
    }

    /// Sends a datagram to the connected peer if there is room.
    ///
    /// # Errors
    /// As [`send`](Self::send); `WouldBlock` if there is none.
    pub fn try_send(&self, data: &[u8]) -> io::Result<usize> {
        self.socket.try_send(data, None)
    }

    /// Sends datagrams in their order, to a peer each, as
    /// [`neap::UdpSocket::send_batch`](crate::UdpSocket::send_batch) does. Dropped before it is
    /// done, the future has sent nothing.
    ///
    /// # Errors
    /// As [`neap::UdpSocket::send_batch`](crate::UdpSocket::send_batch).
    pub async fn send_batch(&self, datagrams: &[Datagram]) -> io::Result<usize> {
        self.writes.wait(self.socket.handle(), || self.socket.try_send_batch(datagrams)).await
    }

    /// Sends as many datagrams as there is room for.
    ///
    /// # Errors
    /// As [`send_batch`](Self::send_batch); `WouldBlock` if there is room for none.
    pub fn try_send_batch(&self, datagrams: &[Datagram]) -> io::Result<usize> {
        self.socket.try_send_batch(datagrams)
    }

    /// Waits for a datagram; what does not fit `buf` is lost. Dropped before it is done, the future
    /// has taken none.
    ///
    /// # Errors
    /// A pending error of the network; `ConnectionAborted` when the stack was dropped.
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.reads.wait(self.socket.handle(), || self.socket.try_recv(buf)).await
    }

    /// Waits for a datagram, without the peer's address; what does not fit `buf` is lost.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buf).await.map(|(len, _)| len)
    }

    /// Does what [`recv_from`](Self::recv_from) does, for `poll` functions. The task that asked
    /// last is woken.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let room = buf.initialize_unfilled();
        let received = self.reads.poll(cx, self.socket.handle(), || self.socket.try_recv(room));
        let (len, from) = std::task::ready!(received)?;
        buf.advance(len);
        Poll::Ready(Ok(from))
    }

    /// Takes a datagram if there is one; what does not fit `buf` is lost.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from); `WouldBlock` if there is none.
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.try_recv(buf)
    }

    /// Takes a datagram if there is one, without the peer's address.
    ///
    /// # Errors
    /// As [`try_recv_from`](Self::try_recv_from).
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.try_recv(buf).map(|(len, _)| len)
    }

    /// Waits for a datagram and appends it to `into`, with those that wait behind it, as
    /// [`neap::UdpSocket::recv_batch`](crate::UdpSocket::recv_batch) does. Dropped before it is
    /// done, the future has taken none.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub async fn recv_batch(&self, into: &mut Vec<Datagram>, most: usize) -> io::Result<usize> {
        self.reads.wait(self.socket.handle(), || self.socket.try_recv_batch(into, most)).await
    }

    /// Waits for a datagram, with both of its ends.
    pub(super) async fn recv_datagram(&self) -> io::Result<Datagram> {
        self.reads.wait(self.socket.handle(), || self.socket.try_recv_datagram()).await
    }

    /// Does what [`recv_batch`](Self::recv_batch) does, for `poll` functions. The task that asked
    /// last is woken.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn poll_recv_batch(
        &self,
        cx: &mut Context<'_>,
        into: &mut Vec<Datagram>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        self.reads.poll(cx, self.socket.handle(), || self.socket.try_recv_batch(into, most))
    }

    /// Waits for a datagram and leaves it to be received again.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub async fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.reads.wait(self.socket.handle(), || self.socket.try_peek(buf)).await
    }

    /// Waits until the socket is ready for anything that `interest` names, and says for what.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        wait::ready_for(self.socket.handle(), interest).await
    }

    /// Calls `f`, which uses the socket without waiting, if the socket is ready for anything that
    /// `interest` names.
    ///
    /// # Errors
    /// That of `f`; `WouldBlock` if the socket is not ready.
    pub fn try_io<T>(
        &self,
        interest: Interest,
        f: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        wait::try_io(self.socket.handle(), interest, f)
    }

    /// Calls `f`, which uses the socket without waiting, whenever the socket becomes ready for
    /// anything that `interest` names, until `f` returns something else than `WouldBlock`.
    ///
    /// # Errors
    /// That of `f`.
    pub async fn async_io<T>(
        &self,
        interest: Interest,
        f: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        wait::async_io(self.socket.handle(), interest, f).await
    }

    /// Waits for a datagram, without the peer's address, and leaves it to be received again.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buf).await.map(|(len, _)| len)
    }

    /// Copies a datagram if there is one, and leaves it to be received again.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from); `WouldBlock` if there is none.
    pub fn try_peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.try_peek(buf)
    }

    /// Waits until there is a datagram, or an error.
    pub async fn readable(&self) -> io::Result<()> {
        self.reads.ready(self.socket.handle()).await
    }

    /// Waits until a datagram may be sent, or there is an error.
    pub async fn writable(&self) -> io::Result<()> {
        self.writes.ready(self.socket.handle()).await
    }

    /// Does what [`readable`](Self::readable) does, for `poll` functions. The task that asked last
    /// is woken.
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reads.poll_ready(cx, self.socket.handle())
    }

    /// Does what [`writable`](Self::writable) does, for `poll` functions. The task that asked last
    /// is woken.
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writes.poll_ready(cx, self.socket.handle())
    }

    /// Returns the socket itself, which is in non-blocking mode: options and buffers.
    pub fn get_ref(&self) -> &blocking::UdpSocket {
        &self.socket
    }

    /// Returns the socket as a blocking one. It stays non-blocking until
    /// [`set_nonblocking`](crate::UdpSocket::set_nonblocking) says otherwise.
    pub fn into_blocking(self) -> blocking::UdpSocket {
        self.socket
    }

    /// Returns the own address and port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the peer that [`connect`](Self::connect) fixed.
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Returns how many hops a packet may take (`IP_TTL`, of IPv6 `IPV6_UNICAST_HOPS`).
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.ttl()
    }

    /// Sets `IP_TTL` and `IPV6_UNICAST_HOPS`.
    ///
    /// # Errors
    /// `InvalidInput` for a number that is not from 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.set_ttl(ttl)
    }

    /// Returns the TOS byte of packets, of IPv6 their traffic class (`IP_TOS`, `IPV6_TCLASS`).
    pub fn tos(&self) -> io::Result<u8> {
        self.socket.tos()
    }

    /// Sets `IP_TOS` and `IPV6_TCLASS`, with the ECN codepoint in the low two bits.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        self.socket.set_tos(tos)
    }

    /// Returns whether the socket may send to broadcast addresses (`SO_BROADCAST`).
    pub fn broadcast(&self) -> io::Result<bool> {
        self.socket.broadcast()
    }

    /// Lets the socket send to broadcast addresses, as
    /// [`neap::UdpSocket::set_broadcast`](crate::UdpSocket::set_broadcast) does.
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        self.socket.set_broadcast(broadcast)
    }

    /// Waits for a record of the error queue, which
    /// [`set_receive_errors`](crate::UdpSocket::set_receive_errors) asks for. Dropped before it is
    /// done, the future has taken none.
    ///
    /// # Errors
    /// `ConnectionAborted` when the stack was dropped.
    pub async fn recv_error(&self) -> io::Result<ErrorRecord> {
        self.errors.wait(self.socket.handle(), || self.socket.try_recv_error()).await
    }

    /// Takes the pending error (`SO_ERROR`).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }
}
