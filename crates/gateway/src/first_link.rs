//! Whether a datagram fits the link by which it leaves the host.

use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use rustix::net::{SendFlags, sendto};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{SocketAddr, UdpSocket};

/// Whether a datagram to `to` that `socket` would send in one piece is longer than the link takes.
/// What the host has learnt of the path behind the link does not count, and nothing is sent.
///
/// Another socket with the same way out asks: it looks at the MTU of the link alone
/// (`IP_PMTUDISC_PROBE`), waits for more of the datagram (`MSG_MORE`), and is closed instead.
///
/// Cost: some ten system calls.
///
/// # Errors
/// There is no such socket: descriptors are used up, or a right is missing.
pub(crate) fn is_exceeded(socket: &UdpSocket, data: &[u8], to: SocketAddr) -> io::Result<bool> {
    let local = socket.local_addr()?;
    let asking = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
    let like = SockRef::from(socket);
    if let Some(device) = like.device()? {
        asking.bind_device(Some(&device))?;
    }
    let mark = like.mark()?;
    if mark != 0 {
        asking.set_mark(mark)?;
    }
    if local.is_ipv6() {
        set_ipv6_mtu_discover(&asking, Ipv6PathMtuDiscovery::PROBE)?;
    } else {
        set_ip_mtu_discover(&asking, Ipv4PathMtuDiscovery::PROBE)?;
    }
    asking.bind(&SocketAddr::new(local.ip(), 0).into())?;
    match sendto(&asking, data, SendFlags::MORE | SendFlags::NOSIGNAL, &to) {
        Ok(_) => Ok(false),
        Err(Errno::MSGSIZE) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}
