//! Datagrams that are longer than the link takes by which they leave the host.

use crate::latest::Latest;
use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use rustix::net::{SendFlags, sendto};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// What a socket knows of the links towards its destinations: the data of a datagram that was too
/// long, in bytes.
#[derive(Debug, Default)]
pub(crate) struct FirstLinks(Latest<usize>);

impl FirstLinks {
    /// Whether a datagram with so many bytes of data is as long as one to the same address that the
    /// link did not take. Should the link take more by now, a host that may cut it sends it whole.
    pub(crate) fn is_known_too_long(&self, length: usize, to: IpAddr) -> bool {
        self.0.get(to).is_some_and(|&too_long| length >= too_long)
    }

    /// Whether a datagram with these bytes of data to `to` is longer than the link takes by which
    /// `socket` would send it in one piece. What the host has learnt of the path behind the link
    /// does not count, and nothing is sent. A link that cannot be asked takes it.
    pub(crate) fn is_exceeded(
        &mut self,
        socket: &SockRef<'_>,
        data: &[u8],
        to: SocketAddr,
    ) -> bool {
        self.ask(data.len(), to.ip(), || is_exceeded(socket, data, to))
    }

    fn ask(
        &mut self,
        length: usize,
        to: IpAddr,
        is_exceeded: impl FnOnce() -> io::Result<bool>,
    ) -> bool {
        if self.is_known_too_long(length, to) {
            return true;
        }
        if !is_exceeded().unwrap_or(false) {
            return false;
        }
        self.0.set(to, length);
        true
    }
}

/// Asks by another socket with the same way out: it looks at the MTU of the link alone
/// (`IP_PMTUDISC_PROBE`), waits for more of the datagram (`MSG_MORE`), and is closed instead.
///
/// Cost: some ten system calls.
///
/// # Errors
/// There is no such socket: descriptors are used up, or a right is missing.
fn is_exceeded(like: &SockRef<'_>, data: &[u8], to: SocketAddr) -> io::Result<bool> {
    let local = like.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
    let asking = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latest::MOST;

    #[test]
    fn the_link_towards_each_of_several_destinations_is_asked_for_once() {
        let mut links = FirstLinks::default();
        let mut asked = 0;
        let mut is_exceeded = |links: &mut FirstLinks, length, last: usize| {
            let to = IpAddr::from([192, 0, 2, u8::try_from(last).expect("a byte")]);
            links.ask(length, to, || {
                asked += 1;
                Ok(length > 1472)
            })
        };
        for _ in 0..10 {
            assert!(is_exceeded(&mut links, 4000, 1) && is_exceeded(&mut links, 4000, 2));
        }
        assert!(is_exceeded(&mut links, 2000, 1) && is_exceeded(&mut links, 3000, 1));
        assert!(!is_exceeded(&mut links, 1000, 1));
        for last in 0..2 * MOST {
            assert!(is_exceeded(&mut links, 4000, last));
        }
        assert_eq!((links.0.len(), asked), (MOST, 4 + 2 * MOST - 2));
    }
}
