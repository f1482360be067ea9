//! A UDP socket for every address and port, under tokio.

use super::udp::UdpSocket;
use crate::blocking::{self, Datagram};
use crate::workers::Stack;
use neap_stack::socket::errors::ErrorRecord;
use neap_stack::stack::UdpForwarderOptions;
use std::io;
use std::task::{Context, Poll};

/// A UDP socket for every address and port; see [`neap::UdpForwarder`](crate::UdpForwarder).
/// Several tasks may use it at once.
#[derive(Debug)]
pub struct UdpForwarder {
    forwarder: blocking::UdpForwarder,
    /// The same, as tasks wait for it.
    socket: UdpSocket,
}

impl UdpForwarder {
    /// Makes a forwarder for the datagrams that `options` name.
    ///
    /// # Errors
    /// `ConnectionAborted` if the stack was closed. `Other` outside of a runtime.
    pub fn new(stack: &Stack, options: UdpForwarderOptions) -> io::Result<Self> {
        Self::from_blocking(blocking::UdpForwarder::new(stack, options)?)
    }

    /// Makes a forwarder for tokio of a blocking one. It becomes non-blocking.
    ///
    /// # Errors
    /// `Other` outside of a runtime. If no task drives the stack yet: `Unsupported` in a runtime
    /// without I/O, and `EMFILE` of the system, which has no kind in std, if the process has no
    /// descriptors left for a task.
    pub fn from_blocking(forwarder: blocking::UdpForwarder) -> io::Result<Self> {
        let socket = UdpSocket::from_blocking(forwarder.socket().clone())?;
        Ok(Self { forwarder, socket })
    }

    /// Waits for datagrams and appends at most `most` of them to `into`. Dropped before it is done,
    /// the future has taken none.
    ///
    /// # Errors
    /// `NetworkDown`, once, when the device of
    /// [its interface](crate::UdpForwarderOptions::interface) is gone, or the last one;
    /// `ConnectionAborted` when the stack was dropped.
    pub async fn recv_batch(&self, into: &mut Vec<Datagram>, most: usize) -> io::Result<usize> {
        self.socket.recv_batch(into, most).await
    }

    /// Does what [`recv_batch`](Self::recv_batch) does, for `poll` functions. The task that asked
    /// last is woken.
    ///
    /// # Errors
    /// As [`recv_batch`](Self::recv_batch).
    pub fn poll_recv_batch(
        &self,
        cx: &mut Context<'_>,
        into: &mut Vec<Datagram>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_recv_batch(cx, into, most)
    }

    /// Waits for a datagram. Dropped before it is done, the future has taken none.
    ///
    /// # Errors
    /// As [`recv_batch`](Self::recv_batch).
    pub async fn recv(&self) -> io::Result<Datagram> {
        self.socket.recv_datagram().await
    }

    /// Takes a datagram if there is one.
    ///
    /// # Errors
    /// As [`recv_batch`](Self::recv_batch); `WouldBlock` if there is none.
    pub fn try_recv(&self) -> io::Result<Datagram> {
        self.forwarder.socket().try_recv_datagram()
    }

    /// Sends a datagram from its [`local`](Datagram::local) address and port; waits while too much
    /// is below. Dropped before it is done, the future has sent nothing.
    ///
    /// # Errors
    /// As [`neap::UdpForwarder::send`](crate::UdpForwarder::send).
    pub async fn send(&self, datagram: &Datagram) -> io::Result<()> {
        self.socket.send_batch(core::slice::from_ref(datagram)).await.map(drop)
    }

    /// Sends datagrams in their order, and returns how many were sent. Dropped before it is done,
    /// the future has sent nothing.
    ///
    /// # Errors
    /// As [`send`](Self::send) for the first datagram.
    pub async fn send_batch(&self, datagrams: &[Datagram]) -> io::Result<usize> {
        self.socket.send_batch(datagrams).await
    }

    /// Sends as many datagrams as there is room for.
    ///
    /// # Errors
    /// As [`send_batch`](Self::send_batch); `WouldBlock` if there is room for none.
    pub fn try_send_batch(&self, datagrams: &[Datagram]) -> io::Result<usize> {
        self.socket.try_send_batch(datagrams)
    }

    /// Waits for a record of the error queue, which
    /// [`set_receive_errors`](crate::UdpForwarder::set_receive_errors) asks for. Dropped before it
    /// is done, the future has taken none.
    ///
    /// # Errors
    /// `ConnectionAborted` when the stack was dropped.
    pub async fn recv_error(&self) -> io::Result<ErrorRecord> {
        self.socket.recv_error().await
    }

    /// Waits until there is a datagram.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Waits until a datagram may be sent.
    pub async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// Returns the forwarder itself, which is in non-blocking mode: options and refusals.
    pub fn get_ref(&self) -> &blocking::UdpForwarder {
        &self.forwarder
    }
}
