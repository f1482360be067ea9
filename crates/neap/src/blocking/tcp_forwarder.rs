//! Connections to every address and port, which an application decides about.

use super::datagram::Arrival;
use super::stream::TcpStream;
use super::waiting::{Caller, READ_READY, WaitMode};
use crate::clock;
use crate::engine::Engine;
use crate::error::socket_error;
use crate::workers::Stack;
use bytes::Bytes;
use core::net::SocketAddr;
use neap_stack::socket::SocketError;
use neap_stack::socket::forwarder::{ForwarderHandle, PendingHandle, Refusal};
use neap_stack::stack::TcpForwarderOptions;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::Instant;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A listener for every address and port, for gateways and transparent proxies.
///
/// It takes the SYNs that came in by an interface of the stack and that no
/// [`TcpListener`](crate::TcpListener) takes. On an interface that [takes any
/// destination](crate::InterfaceConfig::any_destination) these are SYNs for addresses of others,
/// too. Nothing answers a SYN before the application has decided about its [`PendingConnection`].
///
/// Of several forwarders the first that was made and that takes a SYN gets it. Clones share the
/// forwarder, and several threads may use it at once. It is closed when the last clone is dropped;
/// what is pending then is reset.
///
/// # Bounds
///
/// Connections that are pending or whose handshake runs are bounded in total and for each source
/// ([`TcpForwarderOptions`]). A source is an IPv4 address, or a /64 of IPv6. A SYN beyond the
/// bound of its source is dropped and counted; its sender repeats it. Where all places are taken,
/// the 16 oldest pending connections are looked at. The SYN takes the place of the oldest of them
/// whose source has at least as many places, and that one is over. Where there is none, the SYN is
/// dropped and counted. A running handshake keeps its place. SYN cookies do not help here: nothing
/// may be sent before the decision.
///
/// # Example
///
/// An echo for every address:
///
/// ```no_run
/// # let stack = neap::Stack::builder().build()?;
/// let forwarder = neap::TcpForwarder::new(&stack, neap::TcpForwarderOptions::default())?;
/// loop {
///     let pending = forwarder.recv()?;
///     if pending.local_addr().port() != 7 {
///         pending.reset();
///         continue;
///     }
///     std::thread::spawn(move || {
///         let stream = pending.accept()?;
///         std::io::copy(&mut &stream, &mut &stream)
///     });
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TcpForwarder {
    handle: ForwarderHandle,
    engine: Arc<Engine>,
    wait_mode: Arc<WaitMode>,
}

impl fmt::Debug for TcpForwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpForwarder").finish_non_exhaustive()
    }
}

impl TcpForwarder {
    /// Makes a forwarder for the SYNs that `options` name.
    ///
    /// # Errors
    /// `ConnectionAborted` if the stack was closed.
    pub fn new(stack: &Stack, options: TcpForwarderOptions) -> io::Result<Self> {
        let engine = stack.engine();
        let handle = engine.stack.forward_tcp(options).map_err(socket_error)?;
        Ok(Self { handle, engine: engine.clone(), wait_mode: Arc::default() })
    }

    pub(crate) fn handle(&self) -> &ForwarderHandle {
        &self.handle
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Waits for a connection to decide about.
    ///
    /// # Errors
    /// `WouldBlock` in non-blocking mode or after the read timeout; `ConnectionAborted` when the
    /// stack was dropped; `NetworkDown` when the device of its interface is gone.
    pub fn recv(&self) -> io::Result<PendingConnection> {
        let pending = Caller { engine: &self.engine, source: &self.handle, mode: &self.wait_mode }
            .wait_for(
                READ_READY,
                Some(&self.wait_mode.read_timeout),
                &SocketError::WouldBlock,
                || self.handle.receive(),
            )
            .map_err(socket_error)?;
        Ok(PendingConnection { handle: pending, engine: self.engine.clone() })
    }

    /// The next connection to decide about; `WouldBlock` if there is none, whatever the mode.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_recv(&self) -> io::Result<PendingConnection> {
        let handle = self.handle.receive().map_err(socket_error)?;
        Ok(PendingConnection { handle, engine: self.engine.clone() })
    }

    /// Makes [`recv`](Self::recv) return `WouldBlock` instead of waiting, or wait again. It holds
    /// for all clones.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.wait_mode.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }

    /// Sets how long [`recv`](Self::recv) waits; `None` waits for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        WaitMode::set(&self.wait_mode.read_timeout, timeout)
    }

    /// Returns how many connections are pending, and how many of them nobody has received.
    pub fn queued(&self) -> (usize, usize) {
        self.handle.queued()
    }
}

/// A SYN that nobody has answered.
///
/// The application accepts it, resets it, rejects it by an ICMP error, or ignores it. Dropping the
/// value without a decision resets it. SYNs that the peer repeats meanwhile belong to it. It is
/// over without a decision if the peer gives up by a reset, when the time of the forwarder
/// ([`TcpForwarderOptions::expiry`]) is over, and with the forwarder itself;
/// [`take_error`](Self::take_error) tells, and a [`Poller`](crate::Poller) reports
/// [`Events::ERR`](crate::Events::ERR) then.
pub struct PendingConnection {
    handle: PendingHandle,
    engine: Arc<Engine>,
}

impl fmt::Debug for PendingConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingConnection")
            .field("addr", &self.local_addr())
            .field("peer", &self.peer_addr())
            .finish_non_exhaustive()
    }
}

impl PendingConnection {
    pub(crate) fn handle(&self) -> &PendingHandle {
        &self.handle
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the address and port that the peer wants to reach.
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.local_addr()
    }

    /// Returns the peer's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.handle.remote_addr()
    }

    /// Returns how the first SYN came.
    pub fn arrival(&self) -> Arrival {
        Arrival {
            interface: self.handle.interface(),
            hop_limit: self.handle.hop_limit(),
            tos: self.handle.tos(),
            is_broadcast: false,
            dont_fragment: false,
        }
    }

    /// Returns the SYN as an IP packet, for an ICMP error to quote
    /// ([`IcmpMessage::of_error`](crate::IcmpMessage::of_error)). Identification and IP options are
    /// not those that it came with. The bytes are copied.
    pub fn to_packet(&self) -> Bytes {
        self.handle.to_packet()
    }

    /// Returns why there is nothing to decide any more: `ConnectionReset` by the peer, `TimedOut`,
    /// or `ConnectionAborted` with the forwarder. `None` while it is pending.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.handle.error().map(socket_error))
    }

    /// Answers the SYN, and waits until the connection is established.
    ///
    /// # Errors
    /// As [`accept_nonblocking`](Self::accept_nonblocking); `ConnectionReset` or `TimedOut` if the
    /// handshake failed.
    pub fn accept(self) -> io::Result<TcpStream> {
        self.accept_with(SocketOptions::default(), None)
    }

    /// Answers the SYN with options that act from the SYN-ACK on, and waits until the connection is
    /// established, or for `timeout`.
    ///
    /// # Errors
    /// As [`accept`](Self::accept); `TimedOut` when the time is over, `InvalidInput` for a timeout
    /// of zero. The connection is reset then.
    pub fn accept_with(
        self,
        options: SocketOptions,
        timeout: Option<Duration>,
    ) -> io::Result<TcpStream> {
        if timeout == Some(Duration::ZERO) {
            let message = "a timeout of zero leaves no time to accept: give a longer one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let deadline = timeout.map_or(Instant::FAR_FUTURE, |timeout| clock::now() + timeout.into());
        self.accept_nonblocking(options)?.established_by(deadline)
    }

    /// Answers the SYN and does not wait: the stream is non-blocking, and becomes writable when it
    /// is established or has failed ([`take_error`](TcpStream::take_error)).
    ///
    /// # Errors
    /// Why there is nothing to decide any more; `NetworkUnreachable` without a route to the peer,
    /// `AddrInUse` if a socket was opened with the same ends, `InvalidInput` for an unknown
    /// controller. The connection is reset then.
    pub fn accept_nonblocking(self, options: SocketOptions) -> io::Result<TcpStream> {
        let Self { handle, engine } = self;
        let is_v6 = handle.remote_addr().is_ipv6();
        let handle = handle.accept(clock::now(), options).map_err(socket_error)?;
        let stream = TcpStream::new(handle, engine, is_v6);
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Refuses the connection by a reset, as a host does where nobody listens.
    pub fn reset(self) {
        self.handle.reset(clock::now());
    }

    /// Refuses the connection by an ICMP error, which comes from the address that the peer wants to
    /// reach. The rate of such errors is limited (`icmp_ratelimit`, `icmp_msgs_per_sec`); a SYN
    /// that gets none is dropped and counted.
    pub fn reject(self, why: Refusal) {
        self.handle.reject(clock::now(), why);
    }

    /// Drops the SYN without an answer, and counts it. The next one of the peer is a new pending
    /// connection.
    pub fn ignore(self) {
        self.handle.ignore();
    }
}
