//! Connections to every address and port, under tokio.

use super::drive;
use super::tcp::TcpStream;
use super::wait::{Direction, ready_once};
use crate::blocking::{self, Arrival, READ_READY};
use crate::workers::Stack;
use core::net::SocketAddr;
use neap_stack::socket::forwarder::Refusal;
use neap_stack::socket::readiness::Ready as Bits;
use neap_stack::stack::TcpForwarderOptions;
use neap_tcp::options::SocketOptions;
use std::io;
use std::task::{Context, Poll, ready};

/// A listener for every address and port; see [`neap::TcpForwarder`](crate::TcpForwarder).
#[derive(Debug)]
pub struct TcpForwarder {
    forwarder: blocking::TcpForwarder,
    received: Direction,
}

impl TcpForwarder {
    /// Makes a forwarder for the SYNs that `options` name.
    ///
    /// # Errors
    /// `ConnectionAborted` if the stack was closed. `Other` outside of a runtime.
    pub fn new(stack: &Stack, options: TcpForwarderOptions) -> io::Result<Self> {
        Self::from_blocking(blocking::TcpForwarder::new(stack, options)?)
    }

    /// Makes a forwarder for tokio of a blocking one. It becomes non-blocking.
    ///
    /// # Errors
    /// `Other` outside of a runtime. If no task drives the stack yet: `Unsupported` in a runtime
    /// without I/O, and `EMFILE` of the system, which has no kind in std, if the process has no
    /// descriptors left for a task.
    pub fn from_blocking(forwarder: blocking::TcpForwarder) -> io::Result<Self> {
        forwarder.set_nonblocking(true)?;
        drive::ensure(forwarder.engine(), 0)?;
        Ok(Self { forwarder, received: Direction::new(READ_READY) })
    }

    /// Waits for a connection to decide about. Dropped before it is done, the future has taken
    /// none.
    ///
    /// # Errors
    /// `ConnectionAborted` when the stack was dropped; `NetworkDown` when the device of its
    /// interface is gone.
    pub async fn recv(&self) -> io::Result<PendingConnection> {
        let handle = self.forwarder.handle();
        self.received.wait(handle, || self.try_recv()).await
    }

    /// Does what [`recv`](Self::recv) does, for `poll` functions. The task that asked last is
    /// woken.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<PendingConnection>> {
        let received = self.received.poll(cx, self.forwarder.handle(), || self.try_recv());
        Poll::Ready(ready!(received))
    }

    /// Takes a connection to decide about, if there is one.
    ///
    /// # Errors
    /// As [`recv`](Self::recv); `WouldBlock` if there is none.
    pub fn try_recv(&self) -> io::Result<PendingConnection> {
        self.forwarder.try_recv().map(PendingConnection)
    }

    /// Returns the forwarder itself, which is in non-blocking mode.
    pub fn get_ref(&self) -> &blocking::TcpForwarder {
        &self.forwarder
    }
}

/// A SYN that nobody has answered; see [`neap::PendingConnection`](crate::PendingConnection).
/// Dropping it without a decision resets it.
#[derive(Debug)]
pub struct PendingConnection(blocking::PendingConnection);

impl PendingConnection {
    /// Returns the address and port that the peer wants to reach.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// Returns the peer's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.peer_addr()
    }

    /// Returns how the first SYN came.
    pub fn arrival(&self) -> Arrival {
        self.0.arrival()
    }

    /// Waits until there is nothing to decide any more, and returns why; see
    /// [`neap::PendingConnection::take_error`](crate::PendingConnection::take_error). A task that
    /// asks somewhere else about the connection can give up then.
    pub async fn ended(&self) -> io::Error {
        let waited = ready_once(self.0.handle(), Bits::ERROR).await;
        let error = waited.and_then(|()| self.0.take_error());
        match error {
            Ok(Some(error)) | Err(error) => error,
            Ok(None) => io::ErrorKind::ConnectionAborted.into(),
        }
    }

    /// Answers the SYN with options that act from the SYN-ACK on, and waits until the connection is
    /// established. Dropped before it is done, the future closes the connection.
    ///
    /// # Errors
    /// As [`neap::PendingConnection::accept`](crate::PendingConnection::accept).
    pub async fn accept(self, options: SocketOptions) -> io::Result<TcpStream> {
        let stream = TcpStream::from_blocking(self.0.accept_nonblocking(options)?)?;
        stream.writable().await?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        stream.find_driver();
        Ok(stream)
    }

    /// Refuses the connection by a reset, as a host does where nobody listens.
    pub fn reset(self) {
        self.0.reset();
    }

    /// Refuses the connection by an ICMP error; see
    /// [`neap::PendingConnection::reject`](crate::PendingConnection::reject).
    pub fn reject(self, why: Refusal) {
        self.0.reject(why);
    }

    /// Drops the SYN without an answer, and counts it.
    pub fn ignore(self) {
        self.0.ignore();
    }
}
