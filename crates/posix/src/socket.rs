//! Sockets from `socket` to `close`: what each call finds and leaves, as `net/ipv4/af_inet.c` has
//! it.

use crate::abi::*;
use crate::errno::Errno;
use crate::sockaddr::{self, Domain};
use crate::table::Object;
use crate::{Call, Fd, Outcome, Posix};
use core::net::{IpAddr, SocketAddr};
use neap_stack::listener::ListenerHandle;
use neap_stack::socket::SocketError;
use neap_stack::socket::errors::ErrorQueue;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::socket::udp::UdpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions};
use neap_tcp::connection::ConnectionError;
use neap_tcp::options::SocketOptions;
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos};
use smallvec::SmallVec;

/// What a socket is now.
#[derive(Debug)]
pub(super) enum Kind {
    /// TCP, neither connected nor listening (Linux's `TCP_CLOSE` before a connection).
    Fresh,
    /// Two listeners where IPv6 serves IPv4 too.
    Listening(SmallVec<[ListenerHandle; 2]>),
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
pub(super) struct Common {
    pub(super) reuse_address: bool,
    /// `IPV6_V6ONLY`
    pub(super) v6_only: bool,
    /// `IP_RECVERR`, `IPV6_RECVERR`
    pub(super) receive_errors: (bool, bool),
    /// `SO_RCVTIMEO`; `None` is forever.
    pub(super) receive_timeout: Option<Nanos>,
    /// `SO_SNDTIMEO`
    pub(super) send_timeout: Option<Nanos>,
}

/// A socket of any kind.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) domain: Domain,
    pub(super) kind: Kind,
    /// What `bind` chose, IPv4 where it was mapped.
    pub(super) bound: Option<SocketAddr>,
    /// `bind` was asked for this port (`SOCK_BINDPORT_LOCK`).
    pub(super) holds_port: bool,
    pub(super) common: Common,
    /// Of a socket that has no connection.
    pub(super) options: SocketOptions,
    /// Receiving and sending were shut down: of UDP, and of TCP without a connection, which hands
    /// it on to the next one (`sk_shutdown`).
    pub(super) shut: (bool, bool),
    /// Error queue of a TCP socket that has no connection, left by one that failed.
    pub(super) errors: Option<Box<ErrorQueue>>,
    /// The error that goes with it (`sk_err`).
    pub(super) pending: Option<ConnectionError>,
}

/// What `accept` took from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The new socket.
    pub fd: Fd,
    /// The peer, as the listener's family shows it.
    pub peer: SocketAddr,
}

impl Socket {
    fn new(domain: Domain, kind: Kind) -> Self {
        Self {
            domain,
            kind,
            bound: None,
            holds_port: false,
            common: Common::default(),
            options: SocketOptions::default(),
            shut: (false, false),
            errors: None,
            pending: None,
        }
    }

    /// Its connection, if it has one.
    pub(super) fn stream(&self) -> Option<&TcpHandle> {
        match &self.kind {
            Kind::Stream { handle, .. } => Some(handle),
            _ => None,
        }
    }

    /// Whether an error queue is left of a connection that failed.
    pub(super) fn has_errors(&self) -> bool {
        self.errors.as_ref().is_some_and(|errors| !errors.is_empty())
    }

    /// Gives a UDP socket the options that were set before it had a port.
    pub(super) fn configure(&self, handle: &UdpHandle) {
        handle.set_buffers(self.options.receive_buffer, self.options.send_buffer);
        handle.set_max_pacing_rate(self.options.max_pacing_rate);
        let (v4, v6) = self.common.receive_errors;
        handle.set_receive_errors(v4, v6);
    }

    /// Whether an own address is that of IPv4 too.
    pub(super) fn is_dual(&self, local: SocketAddr) -> bool {
        local.is_ipv6() && local.ip().is_unspecified() && !self.common.v6_only
    }

    pub(super) fn is_stream(&self) -> bool {
        !matches!(self.kind, Kind::Datagram(_))
    }

    /// An address as the stack knows it: mapped ones are IPv4.
    pub(super) fn canonical(&self, address: SocketAddr) -> SocketAddr {
        let mapped = match address.ip() {
            IpAddr::V6(ip) if !self.common.v6_only => ip.to_ipv4_mapped(),
            _ => None,
        };
        mapped.map_or(address, |ip| SocketAddr::new(ip.into(), address.port()))
    }

    /// The own end towards `remote`: a wildcard serves both families.
    fn bound_for(&self, remote: SocketAddr) -> Option<SocketAddr> {
        let bound = self.bound?;
        if bound.ip().is_unspecified() && bound.is_ipv4() != remote.is_ipv4() {
            let any = if remote.is_ipv4() { Domain::V4 } else { Domain::V6 };
            return Some(SocketAddr::new(any.unspecified(), bound.port()));
        }
        Some(bound)
    }

    /// Ends what the socket is connected to or listens on; it can be used anew. Who cuts a
    /// connection short finds the error of a reset (`tcp_disconnect`).
    fn reset(&mut self, now: Instant) {
        match core::mem::replace(&mut self.kind, Kind::Fresh) {
            Kind::Listening(handles) => handles.iter().for_each(|handle| handle.close(now)),
            Kind::Stream { handle, .. } => {
                self.options = handle.options(now);
                self.errors = handle.swap_errors(now, None);
                self.pending = match handle.state(now) {
                    State::Closed | State::TimeWait => handle.take_error(now),
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
}

/// State of a connection as its socket shows it: in TIME-WAIT there is none any more.
pub(super) fn shown_state(handle: &TcpHandle, now: Instant) -> State {
    match handle.state(now) {
        State::TimeWait => State::Closed,
        state => state,
    }
}

impl Posix {
    /// `socket(2)`.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`, `ESOCKTNOSUPPORT`, `EPROTONOSUPPORT`; `EINVAL` for unknown flags, types and
    /// protocols; `EMFILE`.
    pub fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<Fd, Errno> {
        let flags = kind & !SOCK_TYPE_MASK;
        if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return Err(Errno::EINVAL);
        }
        let domain = match domain {
            AF_INET => Domain::V4,
            AF_INET6 => Domain::V6,
            _ => return Err(Errno::EAFNOSUPPORT),
        };
        let kind = match (kind & SOCK_TYPE_MASK, protocol) {
            (SOCK_MAX.., _) => return Err(Errno::EINVAL),
            (_, ..0 | IPPROTO_MAX..) => return Err(Errno::EINVAL),
            (SOCK_STREAM, 0 | IPPROTO_TCP) => Kind::Fresh,
            (SOCK_DGRAM, 0 | IPPROTO_UDP) => Kind::Datagram(None),
            (SOCK_STREAM | SOCK_DGRAM | SOCK_RAW, _) => return Err(Errno::EPROTONOSUPPORT),
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        let object = Object::Socket(Box::new(Socket::new(domain, kind)));
        self.table.open(object, flags & SOCK_NONBLOCK != 0, flags & SOCK_CLOEXEC != 0)
    }

    /// `listen(2)`; again on a listener it changes the backlog.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for UDP, `EINVAL` for a connected socket, `EADDRINUSE`.
    pub fn listen(&mut self, now: Instant, fd: Fd, backlog: i32) -> Result<(), Errno> {
        let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
        let socket = self.table.socket(fd)?;
        match &socket.kind {
            Kind::Datagram(_) => return Err(Errno::EOPNOTSUPP),
            Kind::Stream { .. } => return Err(Errno::EINVAL),
            Kind::Listening(handles) => {
                handles.iter().for_each(|handle| handle.set_backlog(backlog));
                return Ok(());
            }
            Kind::Fresh => {}
        }
        let any = SocketAddr::new(socket.domain.unspecified(), 0);
        let mut local = socket.bound.unwrap_or(any);
        let is_dual = socket.is_dual(local);
        let options = |is_v4| ListenOptions {
            backlog,
            reuse_address: socket.common.reuse_address,
            options: socket.options_for(is_v4),
        };
        let mut handles: SmallVec<[ListenerHandle; 2]> = SmallVec::new();
        let first = self.stack.listen(local, options(local.is_ipv4()))?;
        local.set_port(first.local_addr().port());
        handles.push(first);
        if is_dual {
            let other = SocketAddr::new(Domain::V4.unspecified(), local.port());
            match self.stack.listen(other, options(true)) {
                Ok(other) => handles.push(other),
                Err(error) => {
                    handles[0].close(now);
                    return Err(error.into());
                }
            }
        }
        let socket = self.table.socket_mut(fd)?;
        socket.bound = Some(local);
        socket.kind = Kind::Listening(handles);
        self.changed(fd);
        Ok(())
    }

    /// `accept4(2)`; waits as `SO_RCVTIMEO` says. The new socket inherits the listener's options.
    ///
    /// # Errors
    /// `EINVAL` for one that does not listen or unknown flags, `EOPNOTSUPP` for UDP, `EAGAIN`,
    /// `EMFILE`.
    pub fn accept(
        &mut self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        flags: i32,
    ) -> Result<Outcome<Accepted>, Errno> {
        if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return Err(Errno::EINVAL);
        }
        let socket = self.table.socket(fd)?;
        // First of all: what is taken from the queue needs a place.
        self.table.check_room()?;
        let Kind::Listening(handles) = &socket.kind else {
            return Err(if socket.is_stream() { Errno::EINVAL } else { Errno::EOPNOTSUPP });
        };
        let mut next = Err(SocketError::WouldBlock);
        for handle in handles {
            next = handle.accept();
            if !matches!(next, Err(SocketError::WouldBlock)) {
                break;
            }
        }
        match next {
            Ok((handle, peer)) => {
                let kind = Kind::Stream { handle, is_connecting: false };
                let common = socket.common.clone();
                let child = Socket { common, ..Socket::new(socket.domain, kind) };
                let peer = socket.domain.show(peer);
                let object = Object::Socket(Box::new(child));
                let nonblocking = flags & SOCK_NONBLOCK != 0;
                let fd = self.table.open(object, nonblocking, flags & SOCK_CLOEXEC != 0)?;
                Ok(Outcome::Done(Accepted { fd, peer }))
            }
            Err(SocketError::WouldBlock) if !self.table.is_nonblocking(fd) => {
                let timeout = socket.common.receive_timeout;
                call.wait(now, timeout, (fd, POLLIN)).ok_or(Errno::EAGAIN)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// `connect(2)`; waits as `SO_SNDTIMEO` says. `AF_UNSPEC` ends a connection.
    ///
    /// # Errors
    /// `EINPROGRESS`, `EALREADY`, `EISCONN`; `EINVAL`, `EAFNOSUPPORT`, `EADDRNOTAVAIL`,
    /// `ENETUNREACH`; `ECONNREFUSED`, `ETIMEDOUT` and the others of a connection that failed.
    pub fn connect(
        &mut self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        address: &[u8],
    ) -> Result<Outcome<()>, Errno> {
        let socket = self.table.socket_mut(fd)?;
        let is_unspecified = sockaddr::family(address)? == AF_UNSPEC;
        match &socket.kind {
            Kind::Datagram(_) => {
                self.connect_datagram(fd, address)?;
                return Ok(Outcome::Done(()));
            }
            _ if is_unspecified => {
                socket.reset(now);
                self.changed(fd);
                return Ok(Outcome::Done(()));
            }
            Kind::Listening(_) | Kind::Stream { is_connecting: false, .. } => {
                return Err(Errno::EISCONN);
            }
            Kind::Stream { .. } => {}
            Kind::Fresh => {
                self.begin_connect(now, fd, address)?;
                call.done = 1;
            }
        }
        self.finish_connect(now, call, fd)
    }

    fn begin_connect(&mut self, now: Instant, fd: Fd, address: &[u8]) -> Result<(), Errno> {
        let socket = self.table.socket(fd)?;
        let remote = sockaddr::parse(socket.domain, address)?;
        let remote = socket.canonical(remote);
        if remote.ip().is_multicast() {
            return Err(Errno::ENETUNREACH);
        }
        let local = socket.bound_for(remote);
        let options = ConnectOptions { local, options: socket.options_for(remote.is_ipv4()) };
        let handle = self.stack.connect(now, remote, options).map_err(|error| match error {
            SocketError::AddressInUse => Errno::EADDRNOTAVAIL,
            error => error.into(),
        })?;
        let socket = self.table.socket_mut(fd)?;
        if socket.errors.is_some() {
            // The queue is the socket's, whatever it connects to.
            handle.swap_errors(now, socket.errors.take());
        }
        socket.pending = None;
        socket.kind = Kind::Stream { handle, is_connecting: true };
        self.changed(fd);
        Ok(())
    }

    /// Looks whether a connection is open. `call.done` is 1 if this call began it.
    fn finish_connect(
        &mut self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
    ) -> Result<Outcome<()>, Errno> {
        let nonblocking = self.table.is_nonblocking(fd);
        let socket = self.table.socket_mut(fd)?;
        let Kind::Stream { handle, is_connecting } = &mut socket.kind else {
            return Err(Errno::ECONNABORTED);
        };
        match shown_state(handle, now) {
            State::SynSent | State::SynReceived => {
                let pending = if call.done == 1 { Errno::EINPROGRESS } else { Errno::EALREADY };
                if nonblocking {
                    return Err(pending);
                }
                let timeout = socket.common.send_timeout;
                call.wait(now, timeout, (fd, POLLOUT)).ok_or(pending)
            }
            State::Closed => {
                let error = handle.take_error(now).map_or(Errno::ECONNABORTED, Errno::from);
                socket.reset(now);
                self.changed(fd);
                Err(error)
            }
            _ => {
                *is_connecting = false;
                Ok(Outcome::Done(()))
            }
        }
    }

    fn connect_datagram(&mut self, fd: Fd, address: &[u8]) -> Result<(), Errno> {
        if sockaddr::family(address)? == AF_UNSPEC {
            return self.disconnect_datagram(fd);
        }
        let socket = self.table.socket(fd)?;
        let remote = socket.canonical(sockaddr::parse(socket.domain, address)?);
        self.stack.source_for(remote.ip())?;
        if self.stack.is_broadcast(remote.ip()) {
            return Err(Errno::EACCES);
        }
        Ok(self.datagram(fd)?.connect(Some(remote))?)
    }

    /// A port that `bind` was not asked for goes with the peer (`__udp_disconnect`).
    fn disconnect_datagram(&mut self, fd: Fd) -> Result<(), Errno> {
        let socket = self.table.socket_mut(fd)?;
        let Kind::Datagram(Some(handle)) = &socket.kind else { return Ok(()) };
        if socket.holds_port {
            return Ok(handle.connect(None)?);
        }
        socket.kind = Kind::Datagram(None);
        socket.bound = socket.bound.map(|bound| SocketAddr::new(bound.ip(), 0));
        self.changed(fd);
        Ok(())
    }

    /// The UDP socket of a descriptor, bound to a port of its own if it has none.
    pub(super) fn datagram(&mut self, fd: Fd) -> Result<UdpHandle, Errno> {
        let socket = self.table.socket(fd)?;
        match &socket.kind {
            Kind::Datagram(Some(handle)) => Ok(handle.clone()),
            Kind::Datagram(None) => {
                let any = SocketAddr::new(socket.domain.unspecified(), 0);
                self.bind_datagram(fd, socket.bound.unwrap_or(any))
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Gives a UDP socket its own address.
    pub(super) fn bind_datagram(&mut self, fd: Fd, local: SocketAddr) -> Result<UdpHandle, Errno> {
        let socket = self.table.socket_mut(fd)?;
        let reuse = socket.common.reuse_address;
        let handle = match socket.is_dual(local) {
            true => self.stack.bind_udp_dual(local.port(), reuse)?,
            false => self.stack.bind_udp(local, reuse)?,
        };
        socket.configure(&handle);
        socket.kind = Kind::Datagram(Some(handle.clone()));
        self.changed(fd);
        Ok(handle)
    }

    /// `shutdown(2)`.
    ///
    /// # Errors
    /// `EINVAL` for an unknown direction, `ENOTCONN`.
    pub fn shutdown(&mut self, now: Instant, fd: Fd, how: i32) -> Result<(), Errno> {
        let socket = self.table.socket_mut(fd)?;
        if !(SHUT_RD..=SHUT_RDWR).contains(&how) {
            return Err(Errno::EINVAL);
        }
        let (reads, writes) = (how != SHUT_WR, how != SHUT_RD);
        match &mut socket.kind {
            Kind::Fresh => {
                socket.shut = (socket.shut.0 | reads, socket.shut.1 | writes);
                self.changed(fd);
                return Err(Errno::ENOTCONN);
            }
            Kind::Listening(_) if reads => {
                socket.reset(now);
                self.changed(fd);
            }
            Kind::Listening(_) => {}
            Kind::Stream { handle, is_connecting } => match shown_state(handle, now) {
                State::SynSent => {
                    socket.reset(now);
                    self.changed(fd);
                }
                State::Closed => return Err(Errno::ENOTCONN),
                state => {
                    *is_connecting &= state == State::SynReceived;
                    if writes {
                        handle.shutdown_write(now);
                    }
                    if reads {
                        handle.shutdown_read(now);
                    }
                }
            },
            Kind::Datagram(handle) => {
                let is_connected = handle.as_ref().is_some_and(|one| one.remote_addr().is_some());
                socket.shut = (socket.shut.0 | reads, socket.shut.1 | writes);
                self.changed(fd);
                return if is_connected { Ok(()) } else { Err(Errno::ENOTCONN) };
            }
        }
        Ok(())
    }

    /// `close(2)`. The descriptor is gone at once; with a linger time the call waits until the peer
    /// has everything, or for so long.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close(&mut self, now: Instant, call: &mut Call, fd: Fd) -> Result<Outcome<()>, Errno> {
        if call.lingers.is_none() {
            let id = self.table.id(fd)?;
            let Some(description) = self.table.close(fd)? else { return Ok(Outcome::Done(())) };
            self.forget_watches(id, &description);
            let mut socket = match description.object {
                Object::Socket(socket) => socket,
                Object::Epoll(_) => return Ok(Outcome::Done(())),
                Object::Pipe(end) => {
                    self.close_pipe_end(end);
                    return Ok(Outcome::Done(()));
                }
            };
            let Kind::Stream { handle, .. } = &socket.kind else {
                socket.reset(now);
                return Ok(Outcome::Done(()));
            };
            handle.close(now);
            call.lingers = Some(handle.clone());
        }
        let Some(handle) = &call.lingers else { return Ok(Outcome::Done(())) };
        let linger = handle.options(now).linger.unwrap_or(Nanos::ZERO);
        let state = handle.state(now);
        let is_closing = matches!(state, State::FinWait1 | State::Closing | State::LastAck);
        let until = call.deadline(now, Some(linger));
        if is_closing && now < until {
            return Ok(Outcome::Wait(crate::Wait { on: SmallVec::new(), until }));
        }
        call.lingers = None;
        Ok(Outcome::Done(()))
    }
}
