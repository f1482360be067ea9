//! `bind`, `getsockname`, `getpeername`.

use crate::errno::Errno;
use crate::sockaddr::{self, Domain};
use crate::socket::{Kind, shown_state};
use crate::{Fd, Posix};
use core::net::{IpAddr, SocketAddr};
use neap_stack::socket::mapped;
use neap_tcp::state::State;
use neap_tcp::time::Instant;

impl Posix {
    /// `bind(2)`: gives a socket an address. Port 0 is replaced by a free port at once, or with
    /// `IP_BIND_ADDRESS_NO_PORT` when the socket connects, listens or sends.
    ///
    /// # Errors
    /// `EINVAL` for an address that is too short or a socket that is bound or connected,
    /// `EAFNOSUPPORT`, `EADDRNOTAVAIL`, `EADDRINUSE`.
    pub fn bind(&self, _now: Instant, fd: Fd, address: &[u8]) -> Result<(), Errno> {
        let file = self.table.file(fd)?;
        let shared = file.socket()?;
        let mut socket = shared.lock();
        let mut local = sockaddr::parse(socket.domain, address)?;
        if let SocketAddr::V6(local) = &mut local {
            // An own address is that of the whole host.
            local.set_scope_id(0);
        }
        let is_mapped = matches!(local.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
        if is_mapped && socket.common.v6_only {
            return Err(Errno::EINVAL);
        }
        // Of IPv6 alone the state of the socket comes before the address (`__inet6_bind`).
        if socket.domain == Domain::V6 && socket.has_port() {
            return Err(Errno::EINVAL);
        }
        let local = mapped::to_canonical(local);
        if socket.is_stream() || !self.stack.is_broadcast(local.ip()) {
            self.stack.check_local(local.ip(), socket.common.binds_as_others())?;
        }
        if socket.has_port() {
            return Err(Errno::EINVAL);
        }
        if local.port() == 0 && socket.common.binds_no_port {
            (socket.bound, socket.holds_port) = (Some(local), false);
        } else if socket.is_stream() {
            self.bind_stream(&mut socket, local)?;
        } else {
            let bound = self.bind_datagram(shared, &mut socket, local)?.local_addr();
            (socket.bound, socket.holds_port) = (Some(bound), local.port() != 0);
        }
        // As in Linux (`__inet6_bind`), an address of IPv6 is for IPv6 alone.
        socket.common.v6_only |= local.is_ipv6() && !local.ip().is_unspecified();
        Ok(())
    }

    /// `getsockname(2)`: returns the socket's own address, unspecified if it is not bound.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn getsockname(&self, fd: Fd) -> Result<SocketAddr, Errno> {
        let file = self.table.file(fd)?;
        let socket = file.socket()?.lock();
        let none = SocketAddr::new(socket.domain.unspecified(), 0);
        let local = match &socket.kind {
            Kind::Fresh | Kind::Listening(_) | Kind::Datagram(None) => socket.bound.unwrap_or(none),
            Kind::Stream { handle, .. } => handle.local_addr(),
            Kind::Datagram(Some(handle)) => handle.name(),
        };
        Ok(socket.domain.show(local))
    }

    /// `getpeername(2)`: returns the peer's address. As in Linux a peer without a port is none.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn getpeername(&self, now: Instant, fd: Fd) -> Result<SocketAddr, Errno> {
        let file = self.table.file(fd)?;
        let socket = file.socket()?.lock();
        let remote = match &socket.kind {
            Kind::Stream { handle, .. } => {
                let is_open = !matches!(shown_state(handle, now), State::SynSent | State::Closed);
                is_open.then(|| handle.remote_addr())
            }
            Kind::Datagram(_) => socket.peer(),
            _ => None,
        };
        remote.map(|remote| socket.domain.show(remote)).ok_or(Errno::ENOTCONN)
    }
}
