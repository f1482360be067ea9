//! Addresses of the host from which flows leave.

use crate::upstream::{Far, Upstream, connect};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses of the host from which flows leave; `None` is the one that the route prefers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outbound {
    /// Of flows of IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Of flows of IPv6.
    pub v6: Option<Ipv6Addr>,
}

impl Outbound {
    /// The address for a destination, with port 0; unspecified where the route decides.
    pub(crate) fn from(&self, to: SocketAddr) -> SocketAddr {
        let from: IpAddr = match to {
            SocketAddr::V4(_) => self.v4.unwrap_or(Ipv4Addr::UNSPECIFIED).into(),
            SocketAddr::V6(_) => self.v6.unwrap_or(Ipv6Addr::UNSPECIFIED).into(),
        };
        SocketAddr::new(from, 0)
    }
}

/// The host's kernel: flows are its connections, from these addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct DirectFrom(pub Outbound);

impl Upstream for DirectFrom {
    fn connect(&self, to: SocketAddr, _: SocketAddr) -> io::Result<Box<dyn Far>> {
        let from = Some(self.0.from(to)).filter(|from| !from.ip().is_unspecified());
        connect(to, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_of_the_destination_decides() {
        let v4 = Ipv4Addr::new(192, 0, 2, 1);
        let outbound = Outbound { v4: Some(v4), v6: None };
        let from = |to: &str| outbound.from(to.parse().expect("an address")).ip();
        assert_eq!(from("198.51.100.1:80"), IpAddr::V4(v4));
        assert_eq!(from("[2001:db8::1]:80"), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    }
}
