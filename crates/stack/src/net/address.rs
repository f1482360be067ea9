//! Names of interfaces, networks, and the addresses of a host in them.

use crate::flow::{is_link_local, named_scope};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::str::FromStr;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

/// Name of an interface of one host. Interfaces are counted from 0 in the order in which they were
/// added; the number of one that was removed is never given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub(crate) u32);

impl InterfaceId {
    /// Returns the number by which descriptors know the interface (`ipi_ifindex`). As on Linux 1 is
    /// the loopback, so the first interface is 2.
    pub fn index(self) -> u32 {
        self.0.saturating_add(2)
    }

    /// Returns the interface that descriptors know by this number; `None` for 0, which names none,
    /// and for the loopback.
    pub fn from_index(index: u32) -> Option<Self> {
        index.checked_sub(2).map(Self)
    }
}

/// The scope of a peer that is met by `interface`; 0 if its address has none. A comparison.
pub(crate) fn scope_of(remote: IpAddr, interface: Option<InterfaceId>) -> u32 {
    let scope = interface.filter(|_| is_link_local(remote));
    scope.map_or(0, InterfaceId::index)
}

/// The interface that an address names by its scope.
pub(crate) fn named_interface(address: SocketAddr) -> Option<InterfaceId> {
    InterfaceId::from_index(named_scope(address))
}

impl fmt::Display for InterfaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interface {}", self.0)
    }
}

/// Address of this host, and the network that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// IP address.
    pub ip: IpAddr,
    /// Prefix of the network.
    pub prefix: Prefix,
}

impl Address {
    /// Returns the address `ip` in a network with a prefix of `len` bits.
    ///
    /// # Errors
    /// [`Prefix::new`] names them.
    pub fn new(ip: IpAddr, len: u8) -> Result<Self, PrefixError> {
        Ok(Self { ip, prefix: Prefix::new(ip, len)? })
    }

    /// Returns why a host cannot have this address; `None` if it can.
    pub fn fault(&self) -> Option<AddressFault> {
        let is_shared_v4 = |ip| {
            let network = IpAddr::V4(ip) == self.prefix.network() && self.prefix.len() < 31;
            network || self.prefix.broadcast() == Some(ip)
        };
        match self.ip {
            ip if ip.is_unspecified() => Some(AddressFault::Unspecified),
            ip if ip.is_loopback() => Some(AddressFault::Loopback),
            ip if ip.is_multicast() => Some(AddressFault::Multicast),
            IpAddr::V4(Ipv4Addr::BROADCAST) => Some(AddressFault::Broadcast),
            IpAddr::V4(ip) if is_shared_v4(ip) => Some(AddressFault::Network),
            _ => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix.len())
    }
}

impl FromStr for Address {
    type Err = PrefixError;
    /// Parses `ADDRESS/LENGTH`. The bits of the host are kept.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let prefix: Prefix = text.parse()?;
        let ip = text.split_once('/').and_then(|(ip, _)| ip.parse().ok());
        Ok(Self { ip: ip.unwrap_or(prefix.network()), prefix })
    }
}

/// Implements the conversions into an address or a prefix, which may be written in several ways.
macro_rules! conversions {
    ($type:ident, $from:expr) => {
        impl TryFrom<(IpAddr, u8)> for $type {
            type Error = PrefixError;
            fn try_from((ip, len): (IpAddr, u8)) -> Result<Self, PrefixError> {
                Self::new(ip, len)
            }
        }

        impl TryFrom<&str> for $type {
            type Error = PrefixError;
            fn try_from(text: &str) -> Result<Self, PrefixError> {
                text.parse()
            }
        }

        impl TryFrom<String> for $type {
            type Error = PrefixError;
            fn try_from(text: String) -> Result<Self, PrefixError> {
                text.parse()
            }
        }

        impl TryFrom<&String> for $type {
            type Error = PrefixError;
            fn try_from(text: &String) -> Result<Self, PrefixError> {
                text.parse()
            }
        }

        impl From<IpNet> for $type {
            fn from(net: IpNet) -> Self {
                $from(net.addr(), net.prefix_len())
            }
        }

        impl From<Ipv4Net> for $type {
            fn from(net: Ipv4Net) -> Self {
                IpNet::V4(net).into()
            }
        }

        impl From<Ipv6Net> for $type {
            fn from(net: Ipv6Net) -> Self {
                IpNet::V6(net).into()
            }
        }
    };
}

conversions!(Address, |ip, len| Self { ip, prefix: Prefix::of(ip, len) });
conversions!(Prefix, Self::of);

/// Why a host cannot have an address.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressFault {
    /// `0.0.0.0` or `::`.
    #[error("the unspecified address names nobody")]
    Unspecified,
    /// `127.0.0.0/8` or `::1`, which every host has without asking.
    #[error("loopback addresses are there without being added")]
    Loopback,
    /// A group.
    #[error("it is the address of a group")]
    Multicast,
    /// `255.255.255.255`.
    #[error("it is the address of all hosts")]
    Broadcast,
    /// The first or the last address of an IPv4 network.
    #[error("it is the network itself or its broadcast address, not a host in it")]
    Network,
}

neap_tcp::debug_as_display!(AddressFault);

/// Prefix of addresses: the first `len` bits. All other bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    network: IpAddr,
    len: u8,
}

/// Reason why a prefix was refused.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// The length, first, exceeds the bits of an address, second.
    #[error("prefix length {0} exceeds the {1} bits of the address")]
    Length(u8, u8),
    /// The text is not of the form ADDRESS/LENGTH.
    #[error("{0:?} is not of the form ADDRESS/LENGTH")]
    Form(String),
}

neap_tcp::debug_as_display!(PrefixError);

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn bits_of_family(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128u32.saturating_sub(len.into())).unwrap_or(0)
}

impl Prefix {
    /// Returns the prefix of `address` with `len` bits.
    ///
    /// # Errors
    /// [`PrefixError::Length`] if `len` exceeds the bits of the address.
    pub fn new(address: IpAddr, len: u8) -> Result<Self, PrefixError> {
        let max = bits_of_family(address);
        if len > max {
            return Err(PrefixError::Length(len, max));
        }
        Ok(Self::of(address, len))
    }

    /// Returns the prefix that `address` alone is in: 32 bits of IPv4, 128 of IPv6.
    pub fn of_host(address: IpAddr) -> Self {
        Self::of(address, bits_of_family(address))
    }

    /// Returns the prefix of all addresses of the family of `address`, where a default route leads.
    pub fn of_all(address: IpAddr) -> Self {
        Self::of(address, 0)
    }

    /// Returns whether a single address is in the prefix.
    pub fn is_host(&self) -> bool {
        self.len == bits_of_family(self.network)
    }

    /// The prefix of an address that is at least `len` bits long.
    fn of(address: IpAddr, len: u8) -> Self {
        let network = match address {
            IpAddr::V4(v4) => {
                IpAddr::V4(((u128::from(v4.to_bits()) & (mask(len) >> 96)) as u32).into())
            }
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & mask(len)).into()),
        };
        Self { network, len }
    }

    /// Returns the first address of the prefix.
    pub fn network(&self) -> IpAddr {
        self.network
    }

    /// Returns the number of bits.
    pub fn len(&self) -> u8 {
        self.len
    }

    /// Returns whether this is the prefix of all addresses (`default`).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many bits of the prefix an address of the same family has, from the first on.
    pub(crate) fn common_bits(&self, address: IpAddr) -> u32 {
        (bits(self.network) ^ bits(address)).leading_zeros().min(self.len.into())
    }

    /// Returns the broadcast address of an IPv4 network; `None` if the network has no room for one.
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        match self.network {
            IpAddr::V4(network) if self.len < 31 => {
                Some(Ipv4Addr::from_bits(network.to_bits() | u32::MAX >> self.len))
            }
            _ => None,
        }
    }

    /// Returns whether `address` is in the prefix.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.network.is_ipv4() == address.is_ipv4()
            && (bits(self.network) ^ bits(address)) & mask(self.len) == 0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.len)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;
    /// Parses `ADDRESS/LENGTH`. Bits behind the prefix are cleared.
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let form = || PrefixError::Form(text.to_owned());
        let (address, len) = text.split_once('/').ok_or_else(form)?;
        let address = address.parse().map_err(|_| form())?;
        Self::new(address, len.parse().map_err(|_| form())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().expect("a prefix")
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn prefixes_are_parsed_and_refused() {
        assert_eq!(prefix("10.1.2.3/8").to_string(), "10.0.0.0/8");
        assert_eq!(prefix("fd00::1/64").to_string(), "fd00::/64");
        assert_eq!(prefix("255.255.255.255/32").network(), ip("255.255.255.255"));
        assert_eq!(prefix("1.2.3.4/0").network(), ip("0.0.0.0"));
        for (host, all) in [("1.2.3.4/32", "0.0.0.0/0"), ("fd00::1/128", "::/0")] {
            let address = prefix(host).network();
            assert_eq!((Prefix::of_host(address), prefix(host).is_host()), (prefix(host), true));
            assert_eq!((Prefix::of_all(address), prefix(all).is_host()), (prefix(all), false));
        }
        assert_eq!("1.2.3.4/33".parse::<Prefix>(), Err(PrefixError::Length(33, 32)));
        assert_eq!("::/129".parse::<Prefix>(), Err(PrefixError::Length(129, 128)));
        for bad in ["", "1.2.3.4", "1.2.3/8", "1.2.3.4/", "1.2.3.4/-1", "1.2.3.4/8/8"] {
            assert_eq!(bad.parse::<Prefix>(), Err(PrefixError::Form(bad.to_owned())));
        }
    }
}
