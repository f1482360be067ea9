//! Socket addresses as bytes: `struct sockaddr_in` and `sockaddr_in6`.

use crate::abi::{AF_INET, AF_INET6, AF_UNSPEC};
use crate::errno::Errno;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use neap_stack::socket::mapped;

/// Size of `struct sockaddr_in`, in bytes.
pub const SIZE_V4: usize = 16;
/// Size of `struct sockaddr_in6`, in bytes.
pub const SIZE_V6: usize = 28;
/// `SIN6_LEN_RFC2133`: what a `sockaddr_in6` needs at the least.
const LEAST_V6: usize = 24;

/// Address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// IPv4 (`AF_INET`).
    V4,
    /// IPv6 (`AF_INET6`), IPv4-mapped addresses included unless `IPV6_V6ONLY` is set.
    V6,
}

impl Domain {
    /// Returns `AF_INET` or `AF_INET6`.
    pub const fn number(self) -> i32 {
        match self {
            Self::V4 => AF_INET,
            Self::V6 => AF_INET6,
        }
    }

    /// Returns the unspecified address, `0.0.0.0` or `::`.
    pub const fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }

    /// Returns the address as a socket of this family shows it: IPv4 is mapped in IPv6.
    pub fn show(self, address: SocketAddr) -> SocketAddr {
        mapped::show(address, self == Self::V6)
    }
}

/// Most bytes of an address (`sizeof(struct sockaddr_storage)`).
const MOST: usize = 128;

/// Whether the kernel would copy so long an address (`move_addr_to_kernel`).
pub(super) fn check_len(bytes: &[u8]) -> Result<(), Errno> {
    if bytes.len() > MOST { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Returns the `sa_family` of an address.
///
/// # Errors
/// `EINVAL` if the address is too short to have one, or longer than any.
pub fn family(bytes: &[u8]) -> Result<i32, Errno> {
    check_len(bytes)?;
    let family = bytes.first_chunk::<2>().ok_or(Errno::EINVAL)?;
    Ok(i32::from(u16::from_ne_bytes(*family)))
}

/// Parses an address for a socket of `domain`. An IPv4-mapped one is returned as IPv6. One of IPv6
/// has its scope (`sin6_scope_id`), of which the stack looks at that of a link-local address.
///
/// # Errors
/// `EINVAL` if it is too short; `EAFNOSUPPORT` for another family.
pub fn parse(domain: Domain, bytes: &[u8]) -> Result<SocketAddr, Errno> {
    let least = if domain == Domain::V4 { SIZE_V4 } else { LEAST_V6 };
    let number = family(bytes)?;
    if bytes.len() < least {
        return Err(Errno::EINVAL);
    }
    // As in Linux, an unspecified family with the unspecified address is IPv4's.
    let is_any = domain == Domain::V4 && number == AF_UNSPEC && bytes[4..8] == [0; 4];
    if number != domain.number() && !is_any {
        return Err(Errno::EAFNOSUPPORT);
    }
    read(domain, bytes)
}

/// Parses the destination of a datagram (`udp_sendmsg`, `udpv6_sendmsg`); `None` is the connected
/// peer.
///
/// On an IPv4 socket an address without a family is an IPv4 address. On an IPv6 socket it stands
/// for the connected peer. A socket of IPv6 takes an IPv4 address, too.
///
/// # Errors
/// Those of [`parse`]; `EINVAL` for another family on IPv6.
pub fn parse_destination(domain: Domain, bytes: &[u8]) -> Result<Option<SocketAddr>, Errno> {
    match (domain, family(bytes)?) {
        (Domain::V4, AF_UNSPEC) | (Domain::V6, AF_INET) if bytes.len() < SIZE_V4 => {
            Err(Errno::EINVAL)
        }
        (Domain::V4, AF_UNSPEC) | (Domain::V6, AF_INET) => read(Domain::V4, bytes).map(Some),
        (Domain::V6, AF_UNSPEC) => Ok(None),
        (Domain::V6, other) if other != AF_INET6 => Err(Errno::EINVAL),
        _ => parse(domain, bytes).map(Some),
    }
}

/// Parses the peer that a datagram socket connects to (`__ip6_datagram_connect`). A socket of IPv6
/// takes an IPv4 address, too, unless `v6_only` is set.
///
/// # Errors
/// Those of [`parse`].
pub(crate) fn parse_peer(domain: Domain, v6_only: bool, bytes: &[u8]) -> Result<SocketAddr, Errno> {
    match (domain, family(bytes)?) {
        (Domain::V6, AF_INET) if v6_only => Err(Errno::EAFNOSUPPORT),
        (Domain::V6, AF_INET) => parse(Domain::V4, bytes),
        _ => parse(domain, bytes),
    }
}

/// Reads an address that is long enough. A shorter one of IPv6 has no scope (RFC 2133).
fn read(domain: Domain, bytes: &[u8]) -> Result<SocketAddr, Errno> {
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    Ok(match domain {
        Domain::V4 => {
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            SocketAddr::new(ip.into(), port)
        }
        Domain::V6 => {
            let ip: [u8; 16] = bytes[8..24].try_into().map_err(|_| Errno::EINVAL)?;
            let scope = bytes.get(24..).and_then(|rest| rest.first_chunk());
            let scope = scope.map_or(0, |scope| u32::from_ne_bytes(*scope));
            SocketAddrV6::new(ip.into(), port, 0, scope).into()
        }
    })
}

/// Address as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    bytes: [u8; SIZE_V6],
    len: usize,
}

impl core::ops::Deref for Encoded {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Encoded {
    /// Copies as much as fits to `buf`, as `getsockname(2)` does, and returns the size of the whole
    /// address.
    pub fn copy_to(&self, buf: &mut [u8]) -> usize {
        let len = self.len.min(buf.len());
        buf[..len].copy_from_slice(&self[..len]);
        self.len
    }
}

/// Writes an address as `sockaddr_in` or `sockaddr_in6`.
pub fn encode(address: SocketAddr) -> Encoded {
    let mut bytes = [0; SIZE_V6];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (number, len) = match address {
        SocketAddr::V4(v4) => {
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            (AF_INET, SIZE_V4)
        }
        SocketAddr::V6(v6) => {
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            (AF_INET6, SIZE_V6)
        }
    };
    bytes[..2].copy_from_slice(&(number as u16).to_ne_bytes());
    Encoded { bytes, len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_bytes() {
        for text in
            ["192.0.2.1:80", "[2001:db8::1]:443", "[::ffff:192.0.2.1]:8080", "[fe80::1%3]:53"]
        {
            let address: SocketAddr = text.parse().expect("an address");
            let domain = if address.is_ipv4() { Domain::V4 } else { Domain::V6 };
            assert_eq!(parse(domain, &encode(address)), Ok(address));
        }
        let v4 = encode("127.0.0.1:258".parse().expect("an address"));
        assert_eq!(v4[..8], [2, 0, 1, 2, 127, 0, 0, 1]);
        assert_eq!(v4.len(), 16);
    }

    #[test]
    fn short_and_foreign_addresses_have_errors_of_their_own() {
        let v4 = encode("127.0.0.1:80".parse().expect("an address"));
        let v6 = encode("[::1]:80".parse().expect("an address"));
        assert_eq!(parse(Domain::V4, &v4[..15]), Err(Errno::EINVAL));
        assert_eq!(parse(Domain::V4, &[2]), Err(Errno::EINVAL));
        assert_eq!(parse(Domain::V4, &v6), Err(Errno::EAFNOSUPPORT));
        assert_eq!(parse(Domain::V6, &v4), Err(Errno::EINVAL), "too short comes first");
        assert!(parse(Domain::V6, &v6[..24]).is_ok());
        let scoped = encode("[fe80::1%3]:80".parse().expect("an address"));
        let without = "[fe80::1]:80".parse().expect("an address");
        assert_eq!(parse(Domain::V6, &scoped[..27]), Ok(without));
    }

    #[test]
    fn what_does_not_fit_is_cut_and_its_size_told() {
        let v6 = encode("[::1]:80".parse().expect("an address"));
        let mut short = [0xff; 9];
        assert_eq!(v6.copy_to(&mut short), 28);
        assert_eq!(short[..4], [10, 0, 0, 80]);
    }
}
