//! Clients of published ports at the loopback addresses of the host, as clients at those of the
//! guest: past the stack, by sockets of the guest's network namespace.

use crate::published::Transport;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// Sockets in the network namespace of a guest. They are in
/// [`GatewayConfig::guest_sockets`](crate::GatewayConfig::guest_sockets).
pub trait GuestSockets: fmt::Debug + Send + Sync {
    /// A new socket that is bound to no address. The thread of the gateway calls it, and waits
    /// meanwhile.
    ///
    /// # Errors
    /// `WouldBlock` if there is none now: a connection waits for the next one. A connection is
    /// reset for any other error, and a datagram is dropped for each.
    fn open(&self, transport: Transport, is_v6: bool) -> io::Result<OwnedFd>;
}

/// Where a guest has a client of a published port, if that is at a loopback address of the host:
/// at the port of `guest`, and the loopback address of the client's family.
pub(crate) fn loopback(client: SocketAddr, guest: SocketAddr) -> Option<SocketAddr> {
    let loopback: IpAddr = match client.ip().to_canonical() {
        IpAddr::V4(client) if client.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(client) if client.is_loopback() => Ipv6Addr::LOCALHOST.into(),
        _ => return None,
    };
    Some(SocketAddr::new(loopback, guest.port()))
}
