//! How flows leave the host: addresses, interface and mark of its sockets.

use crate::descriptors;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How flows leave the host. `None` leaves it to the host's routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outbound {
    /// Address of flows of IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Address of flows of IPv6.
    pub v6: Option<Ipv6Addr>,
    /// Interface by which packets leave and arrive (`SO_BINDTODEVICE`), whatever the routes say.
    pub interface: Option<String>,
    /// The same of IPv4 alone, instead of that of both families.
    pub interface_v4: Option<String>,
    /// The same of IPv6 alone.
    pub interface_v6: Option<String>,
    /// Mark of packets (`SO_MARK`), by which rules choose a routing table; those of published
    /// ports have it as well. It needs `CAP_NET_ADMIN` or `CAP_NET_RAW`.
    pub mark: Option<u32>,
}

/// Which destinations one socket reaches: those of one family (a translated one may be of another
/// family than the guest's). The host's own loopback addresses need a socket of their own, as what
/// an [`Outbound`] says does not hold [towards](Outbound::towards) them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reach {
    pub(crate) is_v6: bool,
    pub(crate) is_loopback: bool,
}

impl Reach {
    /// What reaches `to` also reaches these. `leaves_by_host` says that loopback addresses are
    /// those of the host.
    pub(crate) fn of(to: IpAddr, leaves_by_host: bool) -> Self {
        Self { is_v6: to.is_ipv6(), is_loopback: leaves_by_host && to.is_loopback() }
    }
}

/// The host does not have the address that flows are to leave from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host does not have the address {0} to send from")]
pub(crate) struct NotOwn(IpAddr);

impl NotOwn {
    /// Whether an error says this.
    pub(crate) fn is_why(error: &io::Error) -> bool {
        error.get_ref().and_then(|inner| inner.downcast_ref::<Self>()).is_some()
    }

    /// What an error of `bind(2)` to an address means. One who has the address and no port left
    /// has `EADDRINUSE`.
    pub(crate) fn of_bind(error: io::Error, from: SocketAddr) -> io::Error {
        let is_it = error.kind() == io::ErrorKind::AddrNotAvailable && !from.ip().is_unspecified();
        if is_it { io::Error::new(error.kind(), Self(from.ip())) } else { error }
    }
}

impl Outbound {
    /// The address for a destination, with port 0; unspecified where the route decides.
    pub(crate) fn from(&self, to: SocketAddr) -> SocketAddr {
        self.of(to.is_ipv6())
    }

    /// The address for destinations of a family, with port 0; unspecified where the route decides.
    pub(crate) fn of(&self, is_v6: bool) -> SocketAddr {
        let from: IpAddr = if is_v6 {
            self.v6.unwrap_or(Ipv6Addr::UNSPECIFIED).into()
        } else {
            self.v4.unwrap_or(Ipv4Addr::UNSPECIFIED).into()
        };
        SocketAddr::new(from, 0)
    }

    /// A socket for a guest, non-blocking, with the interface and the mark.
    ///
    /// # Errors
    /// As [`apply`](Self::apply); `EMFILE` if guests have all descriptors that they may have.
    pub(crate) fn socket(
        &self,
        domain: Domain,
        kind: Type,
        protocol: Protocol,
    ) -> io::Result<Socket> {
        // Close-on-exec from the beginning.
        let socket = Socket::new_raw(domain, kind.nonblocking().cloexec(), Some(protocol))?;
        descriptors::admit(&socket)?;
        self.apply(&socket)?;
        Ok(socket)
    }

    /// Gives a socket the interface and the mark.
    ///
    /// # Errors
    /// The kernel knows no such interface (`ENODEV`), or the process lacks the right to set the
    /// mark (`EPERM`).
    pub fn apply(&self, socket: &Socket) -> io::Result<()> {
        let own = match (&self.interface_v4, &self.interface_v6) {
            (None, None) => None,
            (v4, v6) => if socket.domain()? == Domain::IPV6 { v6 } else { v4 }.as_ref(),
        };
        if let Some(interface) = own.or(self.interface.as_ref()) {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        if let Some(mark) = self.mark {
            socket.set_mark(mark)?;
        }
        Ok(())
    }

    /// What holds for flows to one address: the host's own loopback addresses are behind no
    /// interface, and reached from no address of one.
    #[must_use]
    pub fn towards(&self, to: IpAddr) -> Self {
        self.reaching(Reach::of(to, true))
    }

    /// What holds for published ports: they are where they were bound, and clients find them there,
    /// so only the mark is for what they send.
    pub(crate) fn of_published(&self) -> Self {
        Self { mark: self.mark, ..Self::default() }
    }

    /// What holds for a socket that reaches these destinations, as [`towards`](Self::towards).
    pub(crate) fn reaching(&self, reach: Reach) -> Self {
        if reach.is_loopback { Self::default() } else { self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_of_the_destination_decides() {
        let v4 = Ipv4Addr::new(192, 0, 2, 1);
        let outbound = Outbound { v4: Some(v4), ..Outbound::default() };
        let from = |to: &str| outbound.from(to.parse().expect("an address")).ip();
        assert_eq!(from("198.51.100.1:80"), IpAddr::V4(v4));
        assert_eq!(from("[2001:db8::1]:80"), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    }
}
