//! A UDP socket for every address and port.

use super::datagram::{Datagram, UdpSocket};
use crate::error::socket_error;
use crate::workers::Stack;
use neap_stack::socket::errors::ErrorRecord;
use neap_stack::socket::udp::Refusal;
use neap_stack::stack::UdpForwarderOptions;
use std::fmt;
use std::io;
use std::time::Duration;

/// A UDP socket for every address and port, for gateways and transparent proxies.
///
/// It receives the datagrams that came in by an interface of the stack and that no [`UdpSocket`]
/// takes. On an interface that [takes any destination](crate::InterfaceConfig::any_destination)
/// these are datagrams for addresses of others, too. [`Datagram::local`] says what one was sent to,
/// and [`Datagram::arrival`] how it came. It sends from any address and port, so
/// [`Datagram::reply`] makes an answer that comes from where the question went.
///
/// Of several forwarders the first that was made and that takes a datagram gets it. Datagrams to
/// groups and to broadcast addresses are for sockets alone. Clones share the forwarder, and several
/// threads may use it at once. It is closed when the last clone is dropped.
///
/// # Bounds
///
/// The receive buffer of 832 KiB ([`set_buffers`](Self::set_buffers)) is shared by sources: an IPv4
/// address, or a /64 of IPv6. A source has no more in it than is still free, so one fills half of
/// it at most and leaves room for others. What does not fit is dropped and counted
/// (`UdpRcvbufErrors`). A datagram takes 640 bytes besides its data.
///
/// # Example
///
/// An echo for every address:
///
/// ```no_run
/// # let stack = neap::Stack::builder().build()?;
/// let forwarder = neap::UdpForwarder::new(&stack, neap::UdpForwarderOptions::default())?;
/// loop {
///     let datagram = forwarder.recv()?;
///     match datagram.local {
///         Some(local) if local.port() == 7 => {
///             forwarder.send(&datagram.reply(datagram.data.clone()))?;
///         }
///         _ => forwarder.refuse(&datagram, neap::Refusal::Port)?,
///     }
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct UdpForwarder(UdpSocket);

impl fmt::Debug for UdpForwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpForwarder").finish_non_exhaustive()
    }
}

impl UdpForwarder {
    /// Makes a forwarder for the datagrams that `options` name.
    ///
    /// # Errors
    /// `ConnectionAborted` if the stack was closed.
    pub fn new(stack: &Stack, options: UdpForwarderOptions) -> io::Result<Self> {
        let engine = stack.engine();
        let handle = engine.stack.forward_udp(options).map_err(socket_error)?;
        Ok(Self(UdpSocket::of_forwarder(handle, engine.clone())))
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.0
    }

    /// Waits for a datagram.
    ///
    /// # Errors
    /// `WouldBlock` in non-blocking mode or after the read timeout; `NetworkDown`, once, when the
    /// device of [its interface](UdpForwarderOptions::interface) is gone, or the last one;
    /// `ConnectionAborted` when the stack was dropped.
    pub fn recv(&self) -> io::Result<Datagram> {
        self.0.recv_datagram()
    }

    /// Waits for datagrams, appends at most `most` of them to `into`, and returns how many they
    /// were. It returns as soon as there is one. The lock of the forwarder is taken once for all.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_batch(&self, into: &mut Vec<Datagram>, most: usize) -> io::Result<usize> {
        self.0.recv_batch(into, most)
    }

    /// Sends a datagram from its [`local`](Datagram::local) address and port. It waits while the
    /// send buffer is full of datagrams that have not left.
    ///
    /// # Errors
    /// `AddrNotAvailable` without an address and a port to send from; others as
    /// [`UdpSocket::send_batch`](UdpSocket::send_batch).
    pub fn send(&self, datagram: &Datagram) -> io::Result<()> {
        self.0.send_batch(core::slice::from_ref(datagram)).map(drop)
    }

    /// Sends datagrams in their order, and returns how many were sent. It waits until there is room
    /// for the first, and stops at one that is refused.
    ///
    /// # Errors
    /// As [`send`](Self::send) for the first datagram.
    pub fn send_batch(&self, datagrams: &[Datagram]) -> io::Result<usize> {
        self.0.send_batch(datagrams)
    }

    /// Answers a received datagram by ICMP: its destination cannot be reached. The message comes
    /// from the address that the datagram was sent to, and quotes the datagram. It is under the
    /// limits that the stack has for ICMP errors (`icmp_ratelimit`, `icmp_msgs_per_sec`); beyond
    /// them it is dropped and counted.
    ///
    /// # Errors
    /// `InvalidInput` for a datagram that was not received.
    pub fn refuse(&self, datagram: &Datagram, why: Refusal) -> io::Result<()> {
        self.0.refuse(datagram, why)
    }

    /// Asks for the error queue (`IP_RECVERR`, `IPV6_RECVERR`): what ICMP says of datagrams that
    /// were sent is kept for [`recv_error`](Self::recv_error). It fails no call. The records have
    /// at most a quarter of the receive buffer. A [`Poller`](crate::Poller) reports
    /// [`Events::ERR`](crate::Events::ERR) while there are any.
    pub fn set_receive_errors(&self, on: bool) -> io::Result<()> {
        self.0.set_receive_errors(on)
    }

    /// Waits for a record of the error queue: which datagram, by both of its ends, met which error,
    /// and who says so.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_error(&self) -> io::Result<ErrorRecord> {
        self.0.recv_error()
    }

    /// Makes calls return `WouldBlock` instead of waiting, or wait again. It holds for all clones.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }

    /// Sets how long a receiving call waits; `None` waits for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    /// Sets how long a sending call waits; `None` waits for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_write_timeout(timeout)
    }

    /// Sets the receive and the send buffer in bytes of memory; `None` leaves one as it is.
    pub fn set_buffers(&self, receive: Option<u32>, send: Option<u32>) {
        self.0.set_buffers(receive, send);
    }

    /// Returns the sizes of the receive and the send buffer, in bytes of memory.
    pub fn buffers(&self) -> (u32, u32) {
        self.0.buffers()
    }
}
