//! Sockets from `socket` to `close`, with the states and errors of `net/ipv4/af_inet.c`.

use crate::abi::*;
use crate::call::{Call, Outcome};
use crate::errno::Errno;
use crate::file::{File, Object};
use crate::sockaddr::{self, Domain};
use crate::socket::{Kind, SharedSocket, Socket, shown_state};
use crate::{Accepted, Fd, Posix};
use core::net::SocketAddr;
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::socket::udp::UdpHandle;
use neap_stack::stack::{BindOptions, ConnectOptions, ListenOptions, UdpOptions};
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos};
use std::sync::Arc;

impl Posix {
    /// `socket(2)`: makes a socket.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`, `ESOCKTNOSUPPORT`, `EPROTONOSUPPORT`; `EINVAL` for unknown flags, types and
    /// protocols; `EMFILE`.
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<Fd, Errno> {
        let flags = kind & !SOCK_TYPE_MASK;
        if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return Err(Errno::EINVAL);
        }
        let kind = kind & SOCK_TYPE_MASK;
        let domain = match domain {
            // A type that no domain has is told first (`__sock_create`).
            AF_UNSPEC..AF_MAX if kind >= SOCK_MAX => return Err(Errno::EINVAL),
            AF_INET => Domain::V4,
            AF_INET6 => Domain::V6,
            _ => return Err(Errno::EAFNOSUPPORT),
        };
        let kind = match (kind, protocol) {
            (_, ..0 | IPPROTO_MAX..) => return Err(Errno::EINVAL),
            (SOCK_STREAM, 0 | IPPROTO_TCP) => Kind::Fresh,
            (SOCK_DGRAM, 0 | IPPROTO_UDP) => Kind::Datagram(None),
            (SOCK_STREAM | SOCK_DGRAM | SOCK_RAW, _) => return Err(Errno::EPROTONOSUPPORT),
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        let object = Object::Socket(Box::new(SharedSocket::new(Socket::new(domain, kind))));
        self.table.open(object, flags & SOCK_NONBLOCK != 0, flags & SOCK_CLOEXEC != 0)
    }

    /// `listen(2)`: makes a socket listen. On a listener it changes the backlog.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for UDP, `EINVAL` for a connected socket, `EADDRINUSE`.
    pub fn listen(&self, _now: Instant, fd: Fd, backlog: i32) -> Result<(), Errno> {
        let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
        let file = self.table.file(fd)?;
        let shared = file.socket()?;
        let mut socket = shared.lock();
        match &socket.kind {
            Kind::Datagram(_) => return Err(Errno::EOPNOTSUPP),
            Kind::Stream { .. } => return Err(Errno::EINVAL),
            Kind::Listening(handle) => {
                handle.set_backlog(backlog);
                return Ok(());
            }
            Kind::Fresh => {}
        }
        if socket.port.is_none() {
            let any = SocketAddr::new(socket.domain.unspecified(), 0);
            let local = socket.bound.unwrap_or(any);
            self.bind_stream(&mut socket, local)?;
        }
        let Some(port) = &socket.port else { return Err(Errno::EADDRINUSE) };
        let local = port.local_addr();
        let options = ListenOptions {
            backlog,
            reuse_address: socket.common.reuse_address,
            only_v6: socket.common.v6_only,
            // `bind` has judged the address.
            transparent: true,
            options: socket.inherited_options(local.is_ipv4()),
            options_v4: local.is_ipv6().then(|| socket.inherited_options(true)),
        };
        socket.kind = Kind::Listening(port.listen(local, options)?);
        shared.changed();
        Ok(())
    }

    /// Gives a TCP socket its own address.
    pub(super) fn bind_stream(&self, socket: &mut Socket, local: SocketAddr) -> Result<(), Errno> {
        let options = BindOptions {
            is_dual: socket.is_dual(local),
            reuse_address: socket.common.reuse_address,
            transparent: socket.common.binds_as_others(),
        };
        let port = self.stack.bind_tcp(local, options)?;
        socket.bound = Some(port.local_addr());
        socket.port = Some(port);
        Ok(())
    }

    /// `accept4(2)`: takes a connection from a listener. It waits up to `SO_RCVTIMEO`. The new
    /// socket inherits the listener's options, except `SO_PRIORITY`.
    ///
    /// # Errors
    /// `EINVAL` for a socket that does not listen or unknown flags, `EOPNOTSUPP` for UDP, `EAGAIN`,
    /// `EMFILE`.
    pub fn accept(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        flags: i32,
    ) -> Result<Outcome<Accepted>, Errno> {
        if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return Err(Errno::EINVAL);
        }
        let file = call.file(&self.table, fd)?;
        let shared = file.socket()?;
        // First of all: what is taken from the queue needs a place.
        let place = self.table.reserve(flags & SOCK_CLOEXEC != 0);
        let socket = shared.lock();
        if let (Err(_), Kind::Listening(handle)) = (&place, &socket.kind) {
            // The call may have been woken for a connection that it leaves.
            handle.pass_on();
        }
        let place = place?;
        let Kind::Listening(handle) = &socket.kind else {
            return Err(if socket.is_stream() { Errno::EINVAL } else { Errno::EOPNOTSUPP });
        };
        match handle.accept() {
            Ok((handle, peer)) => {
                let kind = Kind::Stream { handle, is_connecting: false };
                let common = socket.common.clone();
                let child = Socket { common, ..Socket::new(socket.domain, kind) };
                let peer = socket.domain.show(peer);
                let object = Object::Socket(Box::new(SharedSocket::new(child)));
                let fd = place.open(File::new(object, flags & SOCK_NONBLOCK != 0));
                Ok(Outcome::Done(Accepted { fd, peer }))
            }
            Err(SocketError::WouldBlock) if !file.is_nonblocking() => {
                let timeout = socket.common.receive_timeout;
                call.wait(now, timeout, POLLIN).ok_or(Errno::EAGAIN)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// `connect(2)`: opens a connection, or sets the peer of a UDP socket. It waits up to
    /// `SO_SNDTIMEO`. `AF_UNSPEC` ends a connection.
    ///
    /// # Errors
    /// `EINPROGRESS`, `EALREADY`, `EISCONN`; `EINVAL`, `EAFNOSUPPORT`, `EADDRNOTAVAIL`,
    /// `ENETUNREACH`; `ECONNREFUSED`, `ETIMEDOUT` and the others of a connection that failed.
    pub fn connect(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        address: &[u8],
    ) -> Result<Outcome<()>, Errno> {
        let file = call.file(&self.table, fd)?;
        let shared = file.socket()?;
        let is_unspecified = sockaddr::family(address)? == AF_UNSPEC;
        let mut socket = shared.lock();
        match &socket.kind {
            Kind::Datagram(_) => {
                self.connect_datagram(shared, &mut socket, address)?;
                return Ok(Outcome::Done(()));
            }
            _ if is_unspecified => {
                socket.reset(now);
                shared.changed();
                return Ok(Outcome::Done(()));
            }
            Kind::Listening(_) | Kind::Stream { is_connecting: false, .. }
                if !call.is_repeated() =>
            {
                return Err(Errno::EISCONN);
            }
            Kind::Listening(_) | Kind::Stream { .. } => {}
            // Another thread ended the connection that this call waits for.
            Kind::Fresh if call.is_repeated() => {
                return Err(socket.pending.take().map_or(Errno::ECONNABORTED, Errno::from));
            }
            Kind::Fresh => {
                self.begin_connect(now, &mut socket, address)?;
                shared.changed();
                call.done = 1;
            }
        }
        finish_connect(now, call, &file, shared, &mut socket)
    }

    fn begin_connect(
        &self,
        now: Instant,
        socket: &mut Socket,
        address: &[u8],
    ) -> Result<(), Errno> {
        let remote = sockaddr::parse(socket.domain, address)?;
        let remote = socket.canonical_peer(remote)?;
        if remote.ip().is_multicast() {
            return Err(Errno::ENETUNREACH);
        }
        let local = socket.bound_for(remote);
        let transparent = socket.common.sends_as_others(remote.is_ipv4());
        self.check_source(local, transparent)?;
        let options = socket.options_for(remote.is_ipv4());
        let reuse_address = socket.common.reuse_address;
        let options = ConnectOptions { local, options, reuse_address, transparent };
        let opened = match &socket.port {
            Some(port) => port.connect(now, remote, options),
            None => self.stack.connect(now, remote, options),
        };
        let handle = opened.map_err(|error| match error {
            SocketError::AddressInUse => Errno::EADDRNOTAVAIL,
            error => error.into(),
        })?;
        if socket.errors.is_some() {
            // The queue is the socket's, whatever it connects to.
            handle.swap_errors(now, socket.errors.take());
        }
        socket.pending = None;
        socket.kind = Kind::Stream { handle, is_connecting: true };
        Ok(())
    }

    /// Whether the socket may send from what it is bound to. It may not from an address of others
    /// that `IP_FREEBIND` alone gave it (`ip_route_output_key_hash_rcu`).
    fn check_source(&self, local: Option<SocketAddr>, transparent: bool) -> Result<(), Errno> {
        let local = local.map(|local| local.ip()).filter(|ip| !self.stack.is_broadcast(*ip));
        let judged = local.map_or(Ok(()), |local| self.stack.check_local(local, transparent));
        judged.map_err(|_| Errno::ENETUNREACH)
    }

    fn connect_datagram(
        &self,
        shared: &SharedSocket,
        socket: &mut Socket,
        address: &[u8],
    ) -> Result<(), Errno> {
        if sockaddr::family(address)? == AF_UNSPEC {
            return disconnect_datagram(shared, socket);
        }
        let remote = sockaddr::parse_peer(socket.domain, socket.common.v6_only, address)?;
        let remote = socket.canonical_peer(remote)?;
        let transparent = socket.common.sends_as_others(remote.is_ipv4());
        self.check_source(socket.bound_for(remote), transparent)?;
        // As in Linux (`inet_dgram_connect`), the socket is bound even if the rest fails.
        Ok(self.datagram(shared, socket)?.connect(Some(remote))?)
    }

    /// The UDP socket of the stack, bound to a port of its own if it has none.
    pub(super) fn datagram(
        &self,
        shared: &SharedSocket,
        socket: &mut Socket,
    ) -> Result<UdpHandle, Errno> {
        match &socket.kind {
            Kind::Datagram(Some(handle)) => Ok(handle.clone()),
            Kind::Datagram(None) => {
                let any = SocketAddr::new(socket.domain.unspecified(), 0);
                let local = socket.bound.unwrap_or(any);
                self.bind_datagram(shared, socket, local).map_err(|error| match error {
                    // No port is left (`inet_autobind`).
                    Errno::EADDRINUSE if local.port() == 0 => Errno::EAGAIN,
                    error => error,
                })
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Gives a UDP socket its own address.
    pub(super) fn bind_datagram(
        &self,
        shared: &SharedSocket,
        socket: &mut Socket,
        local: SocketAddr,
    ) -> Result<UdpHandle, Errno> {
        let options = UdpOptions {
            reuse_address: socket.common.reuse_address,
            only_v6: socket.common.v6_only,
            transparent: socket.common.binds_as_others(),
        };
        let handle = self.stack.bind_udp(local, options)?;
        socket.configure(&handle);
        socket.kind = Kind::Datagram(Some(handle.clone()));
        shared.changed();
        Ok(handle)
    }

    /// `shutdown(2)`: ends one or both directions of a connection.
    ///
    /// # Errors
    /// `EINVAL` for an unknown direction, `ENOTCONN`.
    pub fn shutdown(&self, now: Instant, fd: Fd, how: i32) -> Result<(), Errno> {
        let file = self.table.file(fd)?;
        let shared = file.socket()?;
        if !(SHUT_RD..=SHUT_RDWR).contains(&how) {
            return Err(Errno::EINVAL);
        }
        let (reads, writes) = (how != SHUT_WR, how != SHUT_RD);
        let mut guard = shared.lock();
        let socket = &mut *guard;
        match &mut socket.kind {
            Kind::Fresh => {
                socket.shut = (socket.shut.0 | reads, socket.shut.1 | writes);
                shared.changed();
                return Err(Errno::ENOTCONN);
            }
            Kind::Listening(_) if reads => {
                socket.reset(now);
                shared.changed();
            }
            Kind::Listening(_) => {}
            Kind::Stream { handle, is_connecting } => match shown_state(handle, now) {
                State::SynSent => {
                    socket.reset(now);
                    shared.changed();
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
                shared.changed();
                return if is_connected { Ok(()) } else { Err(Errno::ENOTCONN) };
            }
        }
        Ok(())
    }

    /// `close(2)`: closes a descriptor. The descriptor is gone at once.
    ///
    /// With a linger time the call waits until the peer has everything, up to that time. A call
    /// that another thread waits in keeps the file, which is closed when that call ends.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close(&self, now: Instant, call: &mut Call, fd: Fd) -> Result<Outcome<()>, Errno> {
        if call.lingers.is_none() {
            call.lingers = let_go(now, self.table.remove(fd)?);
        }
        Ok(linger(now, call))
    }

    /// `dup3(2)`: makes `new` another descriptor of the file of `old`. What `new` was is closed at
    /// the same stroke, as [`close`](Self::close) does, with its linger time. Of the flags there is
    /// `O_CLOEXEC`.
    ///
    /// # Errors
    /// `EBADF`, also for a descriptor out of range; `EINVAL` for other flags, and where both are
    /// the same; `EBUSY` for a descriptor that a call of another thread is about to open.
    pub fn dup3(
        &self,
        now: Instant,
        call: &mut Call,
        old: Fd,
        new: Fd,
        flags: i32,
    ) -> Result<Outcome<Fd>, Errno> {
        if call.lingers.is_none() {
            if flags & !O_CLOEXEC != 0 {
                return Err(Errno::EINVAL);
            }
            let replaced = self.table.replace(old, new, flags & O_CLOEXEC != 0)?;
            call.lingers = replaced.and_then(|file| let_go(now, file));
        }
        Ok(linger(now, call).map(|()| new))
    }
}

/// Closes a file that no descriptor refers to any more, unless another does or a call has it. The
/// connection that may have to linger.
fn let_go(now: Instant, file: Arc<File>) -> Option<TcpHandle> {
    let file = Arc::into_inner(file)?;
    let Object::Socket(shared) = &file.object else { return None };
    let mut socket = shared.lock();
    let Kind::Stream { handle, .. } = &socket.kind else {
        socket.reset(now);
        return None;
    };
    handle.close(now);
    Some(handle.clone())
}

/// Waits until the peer of the connection that the call closes has everything, up to its time.
fn linger(now: Instant, call: &mut Call) -> Outcome<()> {
    let Some(handle) = &call.lingers else { return Outcome::Done(()) };
    let linger = handle.options(now).linger.unwrap_or(Nanos::ZERO);
    let is_acked = handle.readiness().bits().contains(Ready::ALL_ACKED);
    let until = call.deadline(now, Some(linger));
    if !is_acked && now < until {
        return Outcome::Wait(until);
    }
    call.lingers = None;
    Outcome::Done(())
}

/// Looks whether a connection is open. `call.done` is 1 if this call began it.
fn finish_connect(
    now: Instant,
    call: &mut Call,
    file: &File,
    shared: &SharedSocket,
    socket: &mut Socket,
) -> Result<Outcome<()>, Errno> {
    let Kind::Stream { handle, is_connecting } = &mut socket.kind else {
        return Err(Errno::ECONNABORTED);
    };
    match shown_state(handle, now) {
        State::SynSent | State::SynReceived => {
            let pending = if call.done == 1 { Errno::EINPROGRESS } else { Errno::EALREADY };
            if file.is_nonblocking() {
                return Err(pending);
            }
            let timeout = socket.common.send_timeout;
            call.wait(now, timeout, POLLOUT).ok_or(pending)
        }
        State::Closed => {
            let error = handle.take_error(now).map_or(Errno::ECONNABORTED, Errno::from);
            socket.reset(now);
            shared.changed();
            Err(error)
        }
        _ => {
            *is_connecting = false;
            Ok(Outcome::Done(()))
        }
    }
}

/// A port that `bind` was not asked for goes with the peer (`__udp_disconnect`).
fn disconnect_datagram(shared: &SharedSocket, socket: &mut Socket) -> Result<(), Errno> {
    let Kind::Datagram(Some(handle)) = &socket.kind else { return Ok(()) };
    if socket.holds_port {
        return Ok(handle.connect(None)?);
    }
    socket.kind = Kind::Datagram(None);
    socket.bound = socket.bound.map(|bound| SocketAddr::new(bound.ip(), 0));
    shared.changed();
    Ok(())
}
