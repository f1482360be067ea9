//! A ping socket of the host (`IPPROTO_ICMP` and `IPPROTO_ICMPV6` of datagrams), which needs no
//! right where the host's `net.ipv4.ping_group_range` has the user's group.

use crate::first_link::FirstLinks;
use crate::host_errors::{self, Families, Manner, Undelivered};
use crate::outbound::{NotOwn, Outbound};
use crate::upstream::{EchoReply, FarEcho};
use neap::{Events, Poller};
use nix::libc::EMSGSIZE;
use nix::sys::socket::{MsgFlags, SockaddrStorage, recvmsg};
use rustix::net::SendFlags;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A socket that sends echo requests under an identifier of its own, and gets their replies.
#[derive(Debug)]
pub(crate) struct HostEcho {
    socket: Socket,
    families: Families,
    manner: Option<Manner>,
    first_links: FirstLinks,
}

/// Bytes of a message in front of its data. A UDP datagram has a header of the same length.
const HEADER: usize = 8;

impl HostEcho {
    /// # Errors
    /// `PermissionDenied` if the host does not allow it.
    pub(crate) fn open(is_v6: bool, outbound: &Outbound) -> io::Result<Self> {
        let (domain, protocol) =
            if is_v6 { (Domain::IPV6, Protocol::ICMPV6) } else { (Domain::IPV4, Protocol::ICMPV4) };
        let socket = outbound.socket(domain, Type::DGRAM, protocol)?;
        let from = outbound.of(is_v6);
        socket.bind(&from.into()).map_err(|error| NotOwn::of_bind(error, from))?;
        host_errors::ask(&socket, is_v6)?;
        host_errors::ask_tos(&socket, is_v6)?;
        let families = if is_v6 { Families::V6 } else { Families::V4 };
        Ok(Self { socket, families, manner: None, first_links: FirstLinks::default() })
    }

    /// The kernel fills in identifier and checksum. What is pending of an earlier request is not
    /// told here.
    fn try_send(&mut self, request: &[u8], to: IpAddr, manner: Manner) -> io::Result<()> {
        manner.apply(&mut self.manner, &self.socket, self.families)?;
        let to = SocketAddr::new(to, 0);
        let call = || rustix::net::sendto(&self.socket, request, SendFlags::NOSIGNAL, &to);
        match call() {
            // It may be that of an earlier one, which is taken by that.
            Err(_) => call(),
            sent => sent,
        }?;
        Ok(())
    }
}

impl FarEcho for HostEcho {
    /// One that is longer than the link takes by which it leaves the host is cut, as
    /// [datagrams](crate::host_datagrams::HostDatagrams::send) are.
    fn send(&mut self, request: &[u8], to: IpAddr, mut manner: Manner) -> io::Result<()> {
        let data = request.get(HEADER..).unwrap_or_default();
        manner.dont_fragment &= !self.first_links.is_known_too_long(data.len(), to);
        let sent = self.try_send(request, to, manner);
        let is_too_long = |error: &io::Error| error.raw_os_error() == Some(EMSGSIZE);
        // No datagram is sent to that port.
        let at = SocketAddr::new(to, 9);
        if !manner.dont_fragment
            || !sent.as_ref().is_err_and(is_too_long)
            || !self.first_links.is_exceeded(&SockRef::from(&self.socket), data, at)
        {
            return sent;
        }
        self.try_send(request, to, Manner { dont_fragment: false, ..manner })
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<EchoReply> {
        let mut control = nix::cmsg_space!(u8, i32);
        let parts = &mut [IoSliceMut::new(buffer)];
        let (descriptor, flags) = (self.socket.as_raw_fd(), MsgFlags::empty());
        let received = recvmsg::<SockaddrStorage>(descriptor, parts, Some(&mut control), flags)?;
        let from = received.address.and_then(host_errors::socket_addr);
        let from = from.ok_or(io::ErrorKind::InvalidData)?.ip();
        let tos = received.cmsgs()?.find_map(|message| host_errors::tos_of(&message));
        Ok(EchoReply { bytes: received.bytes, from, tos: tos.unwrap_or(0) })
    }

    /// The kernel has the identifier of a ping socket for its port.
    fn local_addr(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()?.as_socket()
    }

    fn undelivered(&self, buffer: &mut [u8]) -> Option<Undelivered> {
        host_errors::take(&self.socket, buffer)
    }

    fn enter(&self, poller: &Poller, token: u64) -> io::Result<()> {
        poller.add(self, token, Events::IN | Events::ET)
    }
}

impl AsFd for HostEcho {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
#[path = "../../cli/tests/common/namespace.rs"]
pub(crate) mod namespace;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn pings_leave_from_the_address_of_flows() {
        namespace::in_namespace(|| {
            namespace::run("ip link set lo up");
            std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").expect("a setting");
            let ours = Ipv4Addr::new(127, 0, 0, 2);
            let outbound = Outbound { v4: Some(ours), ..Outbound::default() };
            let mut echo = HostEcho::open(false, &outbound).expect("the host allows it");
            let request = [8, 0, 0, 0, 0, 0, 0, 1, 1, 2];
            let manner = Manner { tos: 46 << 2, ..Manner::PLAIN };
            echo.send(&request, Ipv4Addr::LOCALHOST.into(), manner).expect("sent");
            let local = echo.socket.local_addr().expect("an address").as_socket();
            assert_eq!(local.expect("of IP").ip(), ours);
            // The kernel answers with the TOS of the request.
            let reply = echo.receive(&mut [0; 100]).expect("it has come");
            assert_eq!((reply.bytes, reply.tos), (request.len(), manner.tos));
        });
    }
}
