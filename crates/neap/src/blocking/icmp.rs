//! ICMP sockets.

use super::waiting::{Caller, READ_READY, WRITE_READY, WaitMode};
use crate::clock;
use crate::engine::Engine;
use crate::error::socket_error;
use crate::workers::Stack;
use bytes::Bytes;
use core::net::IpAddr;
use neap_stack::socket::SocketError;
use neap_stack::socket::icmp::{IcmpErrorKind, IcmpHandle, IcmpMessage, IcmpOptions};
use neap_stack::socket::readiness::Ready;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// An ICMP socket of a stack: whole messages of IPv4 and IPv6, in and out.
///
/// Use it in a gateway, to answer or to forward the pings of its guests. By default it receives the
/// messages to addresses of others, which come through an interface that takes
/// [any destination](crate::InterfaceConfig::any_destination), echo requests above all. Errors
/// about packets that a socket of the stack has sent go to that socket alone. With
/// [`IcmpOptions::own`] it receives copies of the messages to the stack itself. Messages of
/// neighbour and router discovery are never received.
///
/// Several sockets each get every message that they ask for. Messages that find the receive buffer
/// full are dropped and counted, and so are messages to addresses of others that no socket asks
/// for. Clones share the socket, and several threads may use it at once. It is closed when the last
/// clone is dropped.
///
/// ```no_run
/// # let builder = neap::Stack::builder().tun("neap0").host_address("10.9.0.1/24");
/// # let stack = builder.address("10.9.0.2/24").any_destination(true).build()?;
/// let socket = neap::IcmpSocket::open(&stack, neap::IcmpOptions::default())?;
/// loop {
///     let message = socket.recv()?;
///     println!("{} pings {}", message.source, message.destination);
///     if let Some(reply) = message.echo_reply() {
///         socket.send(&reply)?;
///     }
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct IcmpSocket {
    handle: IcmpHandle,
    engine: Arc<Engine>,
    wait_mode: Arc<WaitMode>,
}

impl fmt::Debug for IcmpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.handle.options();
        f.debug_struct("IcmpSocket").field("options", options).finish_non_exhaustive()
    }
}

impl IcmpSocket {
    /// Opens a socket.
    ///
    /// # Errors
    /// `ConnectionAborted` when the stack was closed.
    pub fn open(stack: &Stack, options: IcmpOptions) -> io::Result<Self> {
        let engine = stack.engine().clone();
        let handle = engine.stack.open_icmp(options).map_err(socket_error)?;
        Ok(Self { handle, engine, wait_mode: Arc::default() })
    }

    pub(crate) fn handle(&self) -> &IcmpHandle {
        &self.handle
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn wait_for<T>(
        &self,
        interest: Ready,
        timeout: &AtomicU64,
        attempt: impl FnMut() -> Result<T, SocketError>,
    ) -> io::Result<T> {
        let caller = Caller { engine: &self.engine, source: &self.handle, mode: &self.wait_mode };
        let done = caller.wait_for(interest, Some(timeout), &SocketError::WouldBlock, attempt);
        done.map_err(socket_error)
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// `WouldBlock` in non-blocking mode or after the read timeout; `NetworkDown`, once, when the
    /// device of [its interface](IcmpOptions::interface) is gone, or the last one;
    /// `ConnectionAborted` when the stack was dropped.
    pub fn recv(&self) -> io::Result<IcmpMessage> {
        self.wait_for(READ_READY, &self.wait_mode.read_timeout, || self.handle.recv())
    }

    /// Sends a message of any type from any address, its checksum filled in. It waits while the
    /// send buffer is full of messages that have not left.
    ///
    /// # Errors
    /// `WouldBlock` if it would have to wait in non-blocking mode, or after the write timeout;
    /// `NetworkUnreachable` without a route; `AddrNotAvailable` for a source of others without
    /// [`IcmpOptions::transparent`]; `InvalidInput` for a message of less than eight bytes or too
    /// many, for one that must not be cut and is longer than the
    /// [path takes](crate::Stack::path_mtu), and for addresses that do not fit together or are
    /// those of a group.
    pub fn send(&self, message: &IcmpMessage) -> io::Result<()> {
        let attempt = || self.handle.send(clock::now(), message);
        self.wait_for(WRITE_READY, &self.wait_mode.write_timeout, attempt)
    }

    /// Tells the sender of `packet` of an error. The packet is given from its IP header on, and the
    /// error quotes the beginning of it; [`IcmpMessage::to_packet`] makes one of a message. The
    /// error comes from `from`, for instance the address that the packet was for, or an own one; an
    /// unspecified address stands for the own address that the route prefers.
    ///
    /// A packet does not say by which link it came. To a link-local sender of IPv6 the error leaves
    /// by the [`interface`](IcmpOptions::interface) of the socket; without one, by the first link
    /// that has a route to it.
    ///
    /// Returns false if a rate limit of the stack withholds the error (`net.ipv4.icmp_ratelimit`,
    /// `net.ipv6.icmp.ratelimit`, `net.ipv4.icmp_msgs_per_sec`), and counts that.
    ///
    /// # Errors
    /// `InvalidInput` for a packet that no error may be sent about (RFC 1122 section 3.2.2, RFC
    /// 4443 section 2.4): an ICMP error, a fragment that is not the first, one from or to many, and
    /// what is no packet; and for a code that does not exist. Others as [`send`](Self::send).
    pub fn send_error(
        &self,
        from: IpAddr,
        packet: &Bytes,
        error: IcmpErrorKind,
    ) -> io::Result<bool> {
        let attempt = || self.handle.send_error(clock::now(), from, packet, error);
        self.wait_for(WRITE_READY, &self.wait_mode.write_timeout, attempt)
    }

    /// Returns another handle of the same socket, as `clone` does. Modes and timeouts are shared.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Returns the options that the socket was opened with.
    pub fn options(&self) -> &IcmpOptions {
        self.handle.options()
    }

    /// Makes calls return `WouldBlock` instead of waiting, or wait again. It holds for all clones.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.wait_mode.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }

    /// Sets how long a receiving call waits (`SO_RCVTIMEO`); `None` waits for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        WaitMode::set(&self.wait_mode.read_timeout, timeout)
    }

    /// Sets how long a sending call waits (`SO_SNDTIMEO`); `None` waits for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        WaitMode::set(&self.wait_mode.write_timeout, timeout)
    }

    /// Returns how long a receiving call waits (`SO_RCVTIMEO`).
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(WaitMode::get(&self.wait_mode.read_timeout))
    }

    /// Returns how long a sending call waits (`SO_SNDTIMEO`).
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(WaitMode::get(&self.wait_mode.write_timeout))
    }

    /// Sets the receive and the send buffer (`SO_RCVBUF`, `SO_SNDBUF`) in bytes of memory. A
    /// message takes 640 bytes besides its own. `None` leaves a buffer as it is.
    pub fn set_buffers(&self, receive: Option<u32>, send: Option<u32>) {
        self.handle.set_buffers(receive, send);
    }

    /// Returns the sizes of the receive and the send buffer, in bytes of memory.
    pub fn buffers(&self) -> (u32, u32) {
        self.handle.buffers()
    }
}

/// What a task tries: `WouldBlock` where it would have to wait, whatever the mode.
#[cfg(feature = "tokio")]
impl IcmpSocket {
    pub(crate) fn try_recv(&self) -> io::Result<IcmpMessage> {
        self.handle.recv().map_err(socket_error)
    }

    pub(crate) fn try_send(&self, message: &IcmpMessage) -> io::Result<()> {
        self.handle.send(clock::now(), message).map_err(socket_error)
    }

    pub(crate) fn try_send_error(
        &self,
        from: IpAddr,
        packet: &Bytes,
        error: IcmpErrorKind,
    ) -> io::Result<bool> {
        self.handle.send_error(clock::now(), from, packet, error).map_err(socket_error)
    }
}
