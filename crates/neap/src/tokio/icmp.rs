//! ICMP under tokio.

use super::drive;
use super::wait::{self, Direction};
use crate::blocking::{self, READ_READY, WRITE_READY};
use crate::workers::Stack;
use ::tokio::io::{Interest, Ready};
use bytes::Bytes;
use core::net::IpAddr;
use neap_stack::socket::icmp::{IcmpErrorKind, IcmpMessage, IcmpOptions};
use std::io;
use std::task::{Context, Poll};

/// An ICMP socket of a stack for tasks, otherwise as [`neap::IcmpSocket`](crate::IcmpSocket).
///
/// Several tasks may use it at once.
#[derive(Debug)]
pub struct IcmpSocket {
    socket: blocking::IcmpSocket,
    reads: Direction,
    writes: Direction,
}

impl IcmpSocket {
    /// Opens a socket.
    ///
    /// # Errors
    /// As [`neap::IcmpSocket::open`](crate::IcmpSocket::open); `Other` outside of a runtime.
    pub fn open(stack: &Stack, options: IcmpOptions) -> io::Result<Self> {
        Self::from_blocking(blocking::IcmpSocket::open(stack, options)?)
    }

    /// Makes a socket for tokio of a blocking one that nobody else holds. It becomes non-blocking.
    ///
    /// # Errors
    /// `Other` outside of a runtime. If no task drives the stack yet: `Unsupported` in a runtime
    /// without I/O, and `EMFILE` of the system, which has no kind in std, if the process has no
    /// descriptors left for a task.
    pub fn from_blocking(socket: blocking::IcmpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        drive::ensure(socket.engine(), 0)?;
        let (reads, writes) = (Direction::new(READ_READY), Direction::new(WRITE_READY));
        Ok(Self { socket, reads, writes })
    }

    /// Waits for a message. Dropped before it is done, the future has taken none.
    ///
    /// # Errors
    /// `ConnectionAborted` when the stack was dropped.
    pub async fn recv(&self) -> io::Result<IcmpMessage> {
        self.reads.wait(self.socket.handle(), || self.socket.try_recv()).await
    }

    /// Does what [`recv`](Self::recv) does, for `poll` functions. The task that asked last is
    /// woken.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<IcmpMessage>> {
        self.reads.poll(cx, self.socket.handle(), || self.socket.try_recv())
    }

    /// Takes a message if there is one.
    ///
    /// # Errors
    /// As [`recv`](Self::recv); `WouldBlock` if there is none.
    pub fn try_recv(&self) -> io::Result<IcmpMessage> {
        self.socket.try_recv()
    }

    /// Sends a message; waits while too much of this socket is below. Dropped before it is done,
    /// the future has sent nothing.
    ///
    /// # Errors
    /// As [`neap::IcmpSocket::send`](crate::IcmpSocket::send).
    pub async fn send(&self, message: &IcmpMessage) -> io::Result<()> {
        self.writes.wait(self.socket.handle(), || self.socket.try_send(message)).await
    }

    /// Does what [`send`](Self::send) does, for `poll` functions. The task that asked last is
    /// woken.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn poll_send(&self, cx: &mut Context<'_>, message: &IcmpMessage) -> Poll<io::Result<()>> {
        self.writes.poll(cx, self.socket.handle(), || self.socket.try_send(message))
    }

    /// Sends a message if there is room.
    ///
    /// # Errors
    /// As [`send`](Self::send); `WouldBlock` if there is none.
    pub fn try_send(&self, message: &IcmpMessage) -> io::Result<()> {
        self.socket.try_send(message)
    }

    /// Tells the sender of a packet of an error, as
    /// [`neap::IcmpSocket::send_error`](crate::IcmpSocket::send_error) does.
    ///
    /// # Errors
    /// As [`neap::IcmpSocket::send_error`](crate::IcmpSocket::send_error).
    pub async fn send_error(
        &self,
        from: IpAddr,
        packet: &Bytes,
        error: IcmpErrorKind,
    ) -> io::Result<bool> {
        let attempt = || self.socket.try_send_error(from, packet, error);
        self.writes.wait(self.socket.handle(), attempt).await
    }

    /// Waits until the socket is ready for anything that `interest` names, and says for what.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        wait::ready_for(self.socket.handle(), interest).await
    }

    /// Waits until there is a message, or an error.
    pub async fn readable(&self) -> io::Result<()> {
        self.reads.ready(self.socket.handle()).await
    }

    /// Waits until a message may be sent, or there is an error.
    pub async fn writable(&self) -> io::Result<()> {
        self.writes.ready(self.socket.handle()).await
    }

    /// Returns the socket itself, which is in non-blocking mode: options and buffers.
    pub fn get_ref(&self) -> &blocking::IcmpSocket {
        &self.socket
    }

    /// Returns the socket as a blocking one. It stays non-blocking until
    /// [`set_nonblocking`](crate::IcmpSocket::set_nonblocking) says otherwise.
    pub fn into_blocking(self) -> blocking::IcmpSocket {
        self.socket
    }
}
