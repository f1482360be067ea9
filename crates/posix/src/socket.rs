//! Sockets between `socket` and `close`: their state and readiness (`tcp_poll`, `datagram_poll`).

use crate::abi::*;
use crate::cmsg::Asked;
use crate::errno::Errno;
use crate::sockaddr::Domain;
use crate::sync::lock;
use crate::watch::{CHANGED, READ, Seen, WRITE, Watch};
use core::net::{Ipv4Addr, SocketAddr};
use neap_stack::socket::bound::BoundPort;
use neap_stack::socket::errors::ErrorQueue;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::mapped;
use neap_stack::socket::readiness::{Readiness, Ready, ReadyState};
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::socket::udp::UdpHandle;
use neap_stack::wait::Source;
use neap_tcp::connection::{ConnectionError, WriteError};
use neap_tcp::options::SocketOptions;
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

/// What a socket is now.
#[derive(Debug)]
pub(crate) enum Kind {
    /// TCP, neither connected nor listening (Linux's `TCP_CLOSE` before a connection).
    Fresh,
    Listening(ListenerHandle),
    Stream {
        handle: TcpHandle,
        /// `SS_CONNECTING`: no `connect` has told the application of the end yet.
        is_connecting: bool,
    },
    /// UDP; `None` before it has a port.
    Datagram(Option<UdpHandle>),
}

/// Options of the socket layer that a connection does not know.
#[derive(Clone, Debug, Default)]
pub(crate) struct Common {
    pub(crate) reuse_address: bool,
    /// `IPV6_V6ONLY`
    pub(crate) v6_only: bool,
    /// `IP_RECVERR`, `IPV6_RECVERR`
    pub(crate) receive_errors: (bool, bool),
    /// `IP_TTL`, `IPV6_UNICAST_HOPS`; 0 is the default.
    pub(crate) hop_limits: (u8, u8),
    /// `IP_TOS`, `IPV6_TCLASS`
    pub(crate) tos: (u8, u8),
    /// `SO_BROADCAST`
    pub(crate) broadcast: bool,
    /// `IP_TRANSPARENT` and `IPV6_TRANSPARENT`, one switch as in Linux.
    pub(crate) transparent: bool,
    /// `IP_FREEBIND` and `IPV6_FREEBIND`, one switch as in Linux.
    pub(crate) freebind: bool,
    /// `IP_BIND_ADDRESS_NO_PORT`: a port that `bind` may choose is chosen later.
    pub(crate) binds_no_port: bool,
    /// `IP_MTU_DISCOVER`, `IPV6_MTU_DISCOVER`: datagrams leave whole or not at all.
    pub(crate) dont_fragment: (bool, bool),
    /// `IP_PKTINFO`, `IP_RECVTTL` and their like.
    pub(crate) asked: Asked,
    /// `SO_RCVTIMEO`; `None` is forever.
    pub(crate) receive_timeout: Option<Nanos>,
    /// `SO_SNDTIMEO`
    pub(crate) send_timeout: Option<Nanos>,
}

impl Common {
    /// Whether the socket may be bound to an address of others (`inet_can_nonlocal_bind`).
    pub(crate) fn binds_as_others(&self) -> bool {
        self.transparent || self.freebind
    }

    /// Whether packets may leave from an address of others. As in Linux, a route of IPv4 asks for
    /// `IP_TRANSPARENT` (`FLOWI_FLAG_ANYSRC`).
    pub(crate) fn sends_as_others(&self, is_v4: bool) -> bool {
        self.transparent || self.freebind && !is_v4
    }
}

/// A socket of any kind.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) domain: Domain,
    pub(crate) kind: Kind,
    /// What `bind` chose, IPv4 where it was mapped.
    pub(crate) bound: Option<SocketAddr>,
    /// Keeps the port of `bound` from other TCP sockets of the host.
    pub(crate) port: Option<BoundPort>,
    /// `bind` was asked for this port (`SOCK_BINDPORT_LOCK`).
    pub(crate) holds_port: bool,
    pub(crate) common: Common,
    /// Options for the next connection or listener. A connection has its own.
    pub(crate) options: SocketOptions,
    /// Receiving and sending were shut down: of UDP, and of TCP without a connection, which hands
    /// it on to the next one (`sk_shutdown`).
    pub(crate) shut: (bool, bool),
    /// Error queue of a TCP socket that has no connection, left by one that failed.
    pub(crate) errors: Option<Box<ErrorQueue>>,
    /// The error that goes with it (`sk_err`).
    pub(crate) pending: Option<ConnectionError>,
}

impl Socket {
    pub(crate) fn new(domain: Domain, kind: Kind) -> Self {
        Self {
            domain,
            kind,
            bound: None,
            port: None,
            holds_port: false,
            common: Common::default(),
            options: SocketOptions::default(),
            shut: (false, false),
            errors: None,
            pending: None,
        }
    }

    /// Its connection, if it has one.
    pub(crate) fn stream(&self) -> Option<&TcpHandle> {
        match &self.kind {
            Kind::Stream { handle, .. } => Some(handle),
            _ => None,
        }
    }

    /// Reads from TCP without a connection: the end, if reading was shut down.
    ///
    /// # Errors
    /// The error that a connection left, once; `ENOTCONN`.
    pub(crate) fn read_without_connection(&mut self) -> Result<(), Errno> {
        if !matches!(self.kind, Kind::Fresh) {
            return Err(Errno::ENOTCONN);
        }
        match self.pending.take() {
            Some(error) => Err(error.into()),
            None if self.shut.0 => Ok(()),
            None => Err(Errno::ENOTCONN),
        }
    }

    /// Why nothing can be written without a connection: the error that one left, once, or that
    /// there is none.
    pub(crate) fn write_without_connection(&mut self) -> WriteError {
        let left = match self.kind {
            Kind::Fresh => self.pending.take(),
            _ => None,
        };
        left.map_or(WriteError::Closed, WriteError::Failed)
    }

    /// Whether an error queue is left of a connection that failed.
    pub(crate) fn has_errors(&self) -> bool {
        self.errors.as_ref().is_some_and(|errors| !errors.is_empty())
    }

    /// Gives a UDP socket the options that were set before it had a port.
    pub(crate) fn configure(&self, handle: &UdpHandle) {
        handle.set_buffers(self.options.receive_buffer, self.options.send_buffer);
        handle.set_max_pacing_rate(self.options.max_pacing_rate);
        let (v4, v6) = self.common.receive_errors;
        handle.set_receive_errors(v4, v6);
        let (v4, v6) = self.common.hop_limits;
        handle.set_hop_limits(v4, v6);
        let (v4, v6) = self.common.tos;
        handle.set_tos(v4, v6);
        handle.set_broadcast(self.common.broadcast);
        handle.set_transparent(self.common.sends_as_others(handle.local_addr().is_ipv4()));
    }

    /// Whether it has a port of its own, so that no other can be bound (`inet_num`). An address
    /// alone can be replaced.
    pub(crate) fn has_port(&self) -> bool {
        let is_taken = !matches!(self.kind, Kind::Fresh | Kind::Datagram(None));
        is_taken || self.bound.is_some_and(|bound| bound.port() != 0)
    }

    /// Whether an own address is that of IPv4 too.
    pub(crate) fn is_dual(&self, local: SocketAddr) -> bool {
        local.is_ipv6() && local.ip().is_unspecified() && !self.common.v6_only
    }

    pub(crate) fn is_stream(&self) -> bool {
        !matches!(self.kind, Kind::Datagram(_))
    }

    /// The address of a peer as the stack knows it: a mapped one is IPv4. The unspecified one means
    /// this host, by IPv4 if the socket is bound to that.
    ///
    /// # Errors
    /// `ENETUNREACH` for a mapped one if the socket has nothing to do with IPv4.
    pub(crate) fn canonical_peer(&self, peer: SocketAddr) -> Result<SocketAddr, Errno> {
        let is_bound_to_v4 = self.bound.is_some_and(|bound| bound.is_ipv4());
        let canonical = match mapped::to_canonical(peer) {
            SocketAddr::V6(any) if any.ip().is_unspecified() && is_bound_to_v4 => {
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), any.port())
            }
            canonical => canonical,
        };
        let is_mapped = canonical.is_ipv4() && self.domain == Domain::V6;
        if is_mapped && self.common.v6_only { Err(Errno::ENETUNREACH) } else { Ok(canonical) }
    }

    /// The own end towards `remote`: `[::]` serves both families.
    pub(crate) fn bound_for(&self, remote: SocketAddr) -> Option<SocketAddr> {
        let bound = self.bound?;
        if bound.ip().is_unspecified() && bound.is_ipv6() && remote.is_ipv4() {
            return Some(SocketAddr::new(Domain::V4.unspecified(), bound.port()));
        }
        Some(bound)
    }

    /// Ends what the socket is connected to or listens on; it can be used anew. Who cuts a
    /// connection short finds the error of a reset (`tcp_disconnect`).
    pub(crate) fn reset(&mut self, now: Instant) {
        match core::mem::replace(&mut self.kind, Kind::Fresh) {
            Kind::Listening(handle) => handle.close(now),
            Kind::Stream { handle, .. } => {
                self.options = handle.options(now);
                self.errors = handle.swap_errors(now, None);
                self.pending = match handle.state(now) {
                    State::Closed | State::TimeWait => handle.take_failure(now),
                    State::Closing | State::LastAck => None,
                    _ => Some(ConnectionError::Reset),
                };
                handle.abort(now);
                handle.close(now);
            }
            kind => self.kind = kind,
        }
        if self.is_stream() {
            self.shut = (false, false);
        }
    }

    /// The socket of the stack behind it.
    fn source(&self) -> Option<&dyn Source> {
        match &self.kind {
            Kind::Listening(handle) => Some(handle),
            Kind::Stream { handle, .. } => Some(handle),
            Kind::Datagram(Some(handle)) => Some(handle),
            Kind::Fresh | Kind::Datagram(None) => None,
        }
    }

    fn events(&self) -> u32 {
        match &self.kind {
            Kind::Fresh => {
                let is_bad = self.pending.is_some() || self.has_errors();
                WRITE | POLLHUP | self.shut_events() | if is_bad { POLLERR } else { 0 }
            }
            Kind::Listening(handle) => of_listener(handle.readiness().bits()),
            Kind::Stream { handle, .. } => of(handle.readiness().bits()) | self.shut_events(),
            Kind::Datagram(handle) => {
                let bits = handle.as_ref().map_or(Ready::WRITABLE, |one| one.readiness().bits());
                // What is closed is said by `shut`.
                let mut events = of(bits - (Ready::READ_CLOSED | Ready::WRITE_CLOSED));
                events |= self.shut_events();
                if events & POLLOUT != 0 { events | POLLWRBAND } else { events }
            }
        }
    }

    /// What `shutdown` alone brings.
    fn shut_events(&self) -> u32 {
        match self.shut {
            (true, true) => READ | POLLRDHUP | POLLHUP,
            (true, false) => READ | POLLRDHUP,
            (false, _) => 0,
        }
    }
}

/// State of a connection as its socket shows it: in TIME-WAIT there is none any more.
pub(crate) fn shown_state(handle: &TcpHandle, now: Instant) -> State {
    match handle.state(now) {
        State::TimeWait => State::Closed,
        state => state,
    }
}

/// What `tcp_poll` makes of the state of a connection.
fn of(ready: Ready) -> u32 {
    let mut events = 0;
    if ready.intersects(Ready::READABLE | Ready::READ_CLOSED) {
        events |= READ;
    }
    if ready.intersects(Ready::WRITABLE | Ready::WRITE_CLOSED) {
        events |= WRITE;
    }
    if ready.intersects(Ready::ERROR | Ready::ERROR_QUEUE) {
        events |= POLLERR;
    }
    if ready.contains(Ready::READ_CLOSED) {
        events |= POLLRDHUP;
    }
    if ready.contains(Ready::READ_CLOSED | Ready::WRITE_CLOSED) {
        events |= POLLHUP;
    }
    events
}

/// What a listener is ready for (`inet_csk_listen_poll`). An error, and the end of the stack, make
/// an `accept` return: whoever waits for that alone has to hear of them.
fn of_listener(ready: Ready) -> u32 {
    let mut events = 0;
    if ready.intersects(Ready::READABLE | Ready::ERROR | Ready::READ_CLOSED) {
        events |= READ;
    }
    if ready.contains(Ready::ERROR) {
        events |= POLLERR;
    }
    if ready.contains(Ready::READ_CLOSED) {
        events |= POLLHUP;
    }
    events
}

/// A socket that threads share. Its lock is held for what the socket is, never while bytes are
/// copied: a call takes the handle of the stack out of it and goes on without.
#[derive(Debug)]
pub(crate) struct SharedSocket {
    state: Mutex<Socket>,
    /// Changes when the socket becomes another: it connects, listens, is shut down or starts anew.
    changes: Readiness,
}

impl SharedSocket {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { state: Mutex::new(socket), changes: Readiness::new() }
    }

    /// The socket, until the guard is dropped.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Socket> {
        lock(&self.state)
    }

    /// The socket became another: whoever watches it looks again.
    pub(crate) fn changed(&self) {
        self.changes.signal(CHANGED);
    }

    /// Registers `waker` for changes of what the socket is, and by `register` with the socket of
    /// the stack.
    fn register_by(
        &self,
        seen: &[ReadyState],
        waker: &Waker,
        register: impl FnOnce(&dyn Source, ReadyState) -> bool,
    ) -> bool {
        let Some((own, theirs)) = seen.split_first() else { return false };
        if !self.changes.register(*own, CHANGED, waker) {
            return false;
        }
        let socket = self.lock();
        match (socket.source(), theirs) {
            (Some(source), [seen]) => register(source, *seen),
            (source, seen) => source.is_none() && seen.is_empty(),
        }
    }
}

impl Watch for SharedSocket {
    fn events(&self) -> u32 {
        self.lock().events()
    }

    fn words(&self) -> Seen {
        let socket = self.lock();
        let own = core::iter::once(self.changes.state());
        own.chain(socket.source().map(Source::readiness)).collect()
    }

    fn register(&self, seen: &[ReadyState], interest: Ready, waker: &Waker) -> bool {
        self.register_by(seen, waker, |source, seen| source.register(seen, interest, waker))
    }

    fn register_exclusive(
        &self,
        seen: &[ReadyState],
        interest: Ready,
        waker: &Waker,
        drives: bool,
    ) -> bool {
        self.register_by(seen, waker, |source, seen| {
            source.register_exclusive(seen, interest, waker, drives)
        })
    }

    fn unregister(&self, waker: &Waker) {
        self.changes.unregister(waker);
        if let Some(source) = self.lock().source() {
            source.unregister(waker);
        }
    }

    fn shard(&self) -> usize {
        self.lock().source().map_or(0, Source::shard)
    }
}
