//! IPv4 addresses as sockets of IPv6 show them: `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2).
//!
//! On the wire and in the tables of the stack an IPv4 address is one. A socket of IPv6 that serves
//! IPv4 too takes mapped addresses from its application and shows them to it; this is where they
//! are translated, for blocking sockets, tasks and descriptors alike.

use core::net::{IpAddr, SocketAddr};

/// The address that the stack knows: a mapped one becomes IPv4, others stay.
pub fn to_canonical(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), address.port()),
            None => address,
        },
        IpAddr::V4(_) => address,
    }
}

/// The address as a socket of IPv6 shows it: IPv4 is mapped. So is `0.0.0.0`, which is all
/// addresses of IPv4 alone.
pub fn to_v6(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// The address as a socket shows it that is of IPv6 if `is_v6`.
pub fn show(address: SocketAddr, is_v6: bool) -> SocketAddr {
    if is_v6 { to_v6(address) } else { address }
}

/// Whether a socket that is bound there serves IPv6 alone: one address of IPv6 is of no other
/// family (`__inet6_bind`).
pub fn is_one_of_v6(bound: SocketAddr) -> bool {
    bound.is_ipv6() && !bound.ip().is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_from_their_mapped_form() {
        for text in ["192.0.2.1:80", "0.0.0.0:80", "[2001:db8::1]:443", "[::]:443"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(to_canonical(to_v6(address)), address);
            assert!(to_v6(address).is_ipv6());
        }
        let any: SocketAddr = "0.0.0.0:80".parse().expect("an address");
        assert_eq!(to_v6(any).to_string(), "[::ffff:0.0.0.0]:80");
    }
}
