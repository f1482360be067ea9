//! `bind`, `getsockname`, `getpeername`.

use crate::errno::Errno;
use crate::sockaddr::{self, Domain};
use crate::socket::{Kind, Socket, shown_state};
use crate::{Fd, Posix};
use core::net::{IpAddr, SocketAddr};
use neap_stack::flow::overlap;
use neap_tcp::state::State;
use neap_tcp::time::Instant;

impl Posix {
    /// `bind(2)`. Port 0 is chosen at once.
    ///
    /// # Errors
    /// `EINVAL` for an address that is too short or a socket that is bound or connected,
    /// `EAFNOSUPPORT`, `EADDRNOTAVAIL`, `EADDRINUSE`.
    pub fn bind(&mut self, _now: Instant, fd: Fd, address: &[u8]) -> Result<(), Errno> {
        let socket = self.table.socket(fd)?;
        let local = sockaddr::parse(socket.domain, address)?;
        let is_mapped = matches!(local.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
        if is_mapped && socket.common.v6_only {
            return Err(Errno::EINVAL);
        }
        let mut local = socket.canonical(local);
        let holds_port = local.port() != 0;
        self.stack.check_local(local.ip())?;
        match &socket.kind {
            Kind::Fresh if socket.bound.is_none() => {
                local.set_port(self.reserve(local, socket)?);
                self.table.socket_mut(fd)?.bound = Some(local);
            }
            Kind::Datagram(None) => {
                let bound = self.bind_datagram(fd, local)?.local_addr();
                let socket = self.table.socket_mut(fd)?;
                (socket.bound, socket.holds_port) = (Some(bound), holds_port);
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// The port that a TCP socket may have.
    fn reserve(&self, mut local: SocketAddr, socket: &Socket) -> Result<u16, Errno> {
        let reuse = socket.common.reuse_address;
        let is_held = |local: SocketAddr| {
            self.table.sockets().any(|other| {
                let shares = reuse && other.common.reuse_address;
                let is_fresh = matches!(other.kind, Kind::Fresh);
                is_fresh
                    && !shares
                    && other.bound.is_some_and(|bound| clashes(bound, local, other, socket))
            })
        };
        if local.port() != 0 {
            self.stack.check_listen(local, reuse)?;
            if socket.is_dual(local) {
                // Its IPv4 half listens too.
                let half = SocketAddr::new(Domain::V4.unspecified(), local.port());
                self.stack.check_listen(half, reuse)?;
            }
            return if is_held(local) { Err(Errno::EADDRINUSE) } else { Ok(local.port()) };
        }
        // Every other socket of this process may hold a port that the stack does not know of.
        for _ in 0..=self.table.sockets().count() {
            local.set_port(self.stack.free_port()?);
            if !is_held(local) {
                return Ok(local.port());
            }
        }
        Err(Errno::EADDRINUSE)
    }

    /// `getsockname(2)`: own address, unspecified where nothing is bound.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn getsockname(&self, fd: Fd) -> Result<SocketAddr, Errno> {
        let socket = self.table.socket(fd)?;
        let none = SocketAddr::new(socket.domain.unspecified(), 0);
        let local = match &socket.kind {
            Kind::Fresh | Kind::Listening(_) | Kind::Datagram(None) => socket.bound.unwrap_or(none),
            Kind::Stream { handle, .. } => handle.local_addr(),
            Kind::Datagram(Some(handle)) => {
                let mut local = handle.local_addr();
                if let Some(remote) = handle.remote_addr()
                    && local.ip().is_unspecified()
                {
                    let source = self.stack.source_for(remote.ip());
                    local.set_ip(source.unwrap_or(local.ip()));
                }
                local
            }
        };
        Ok(socket.domain.show(local))
    }

    /// `getpeername(2)`.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn getpeername(&self, now: Instant, fd: Fd) -> Result<SocketAddr, Errno> {
        let socket = self.table.socket(fd)?;
        let remote = match &socket.kind {
            Kind::Stream { handle, .. } => {
                let is_open = !matches!(shown_state(handle, now), State::SynSent | State::Closed);
                is_open.then(|| handle.remote_addr())
            }
            Kind::Datagram(Some(handle)) => handle.remote_addr(),
            _ => None,
        };
        remote.map(|remote| socket.domain.show(remote)).ok_or(Errno::ENOTCONN)
    }
}

/// Whether two sockets want the same port of an address; the wildcard of IPv6 is that of both
/// families unless `IPV6_V6ONLY` is set.
fn clashes(a: SocketAddr, b: SocketAddr, one: &Socket, other: &Socket) -> bool {
    let is_wide = |address: SocketAddr, socket: &Socket| {
        address.is_ipv6() && address.ip().is_unspecified() && !socket.common.v6_only
    };
    a.port() == b.port() && (overlap(a, b) || is_wide(a, one) || is_wide(b, other))
}
