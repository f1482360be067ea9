//! A ping socket of the host (`IPPROTO_ICMP` and `IPPROTO_ICMPV6` of datagrams), which needs no
//! right where the host's `net.ipv4.ping_group_range` has the user's group.

use crate::host_errors::{self, Manner, Undelivered};
use crate::outbound::Outbound;
use crate::upstream::FarEcho;
use neap::{Events, Poller};
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// A socket that sends echo requests under an identifier of its own, and gets their replies.
#[derive(Debug)]
pub(crate) struct HostEcho {
    socket: Socket,
    is_v6: bool,
    manner: Option<Manner>,
}

impl HostEcho {
    /// # Errors
    /// `PermissionDenied` if the host does not allow it.
    pub(crate) fn open(is_v6: bool, outbound: &Outbound) -> io::Result<Self> {
        let (domain, protocol) =
            if is_v6 { (Domain::IPV6, Protocol::ICMPV6) } else { (Domain::IPV4, Protocol::ICMPV4) };
        let socket = outbound.socket(domain, Type::DGRAM, protocol)?;
        host_errors::ask(&socket, is_v6)?;
        Ok(Self { socket, is_v6, manner: None })
    }
}

impl FarEcho for HostEcho {
    /// The kernel fills in identifier and checksum. What is pending of an earlier request is not
    /// told here.
    fn send(&mut self, request: &[u8], to: IpAddr, manner: Manner) -> io::Result<()> {
        manner.apply(&mut self.manner, &self.socket, self.is_v6)?;
        let to = SocketAddr::new(to, 0);
        let call = || rustix::net::sendto(&self.socket, request, SendFlags::NOSIGNAL, &to);
        match call() {
            // It may be that of an earlier one, which is taken by that.
            Err(_) => call(),
            sent => sent,
        }?;
        Ok(())
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, IpAddr)> {
        let (count, _, from) = rustix::net::recvfrom(&self.socket, buffer, RecvFlags::empty())?;
        let from = from.and_then(|from| SocketAddr::try_from(from).ok());
        Ok((count, from.ok_or(io::ErrorKind::InvalidData)?.ip()))
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
