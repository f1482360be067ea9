//! Values that several sections have.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use zeroize::Zeroizing;

/// Longest name of a host, bytes (RFC 1035 section 2.3.4).
const LONGEST_NAME: usize = 253;

/// The host of an address with a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// All addresses of this machine, of both families.
    Any,
    /// An address.
    Address(IpAddr),
    /// A name, or an IPv6 address with a zone, which has to be resolved.
    Name(String),
}

/// A host and a port, such as `192.0.2.1:51820`, `[2001:db8::1]:51820` or `vpn.example.org:51820`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// The host.
    pub host: Host,
    /// The port.
    pub port: u16,
}

impl HostPort {
    /// Reads text; `None` if it is nothing of the kind.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        // `parse` takes a sign.
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(host) => named_in_brackets(host)?,
            None if host.is_empty() => Host::Any,
            None => match host.parse::<Ipv4Addr>() {
                Ok(v4) => Host::Address(v4.into()),
                Err(_) => is_name(host).then(|| Host::Name(host.to_owned()))?,
            },
        };
        Some(Self { host, port })
    }

    /// Returns the address and the port, if the host is an address.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.host {
            Host::Address(ip) => Some(SocketAddr::new(*ip, self.port)),
            Host::Any => Some(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), self.port)),
            Host::Name(_) => None,
        }
    }

    /// Whether the host is an address with a zone, that of an interface.
    pub fn has_zone(&self) -> bool {
        matches!(&self.host, Host::Name(name) if name.contains('%'))
    }

    /// Whether only programs of this machine reach a socket that is bound here. A name other than
    /// `localhost` may be anything.
    pub fn is_local(&self) -> bool {
        match &self.host {
            Host::Any => false,
            Host::Address(ip) => ip.to_canonical().is_loopback(),
            Host::Name(name) => name.eq_ignore_ascii_case("localhost"),
        }
    }
}

impl HostPort {
    /// Whether two sockets of one kind cannot be bound here and there. Names are not resolved, so
    /// that nothing is said of different ones. One that is bound to all addresses of IPv6 has those
    /// of IPv4 as well.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let is_all = |host: &Host| match host {
            Host::Any => true,
            Host::Address(ip) => ip.is_ipv6() && ip.is_unspecified(),
            Host::Name(_) => false,
        };
        let has_same_host = match (&self.host, &other.host) {
            (one, other) if is_all(one) || is_all(other) => true,
            (Host::Address(one), Host::Address(other)) => {
                let is_all_v4 = one.is_unspecified() || other.is_unspecified();
                one == other || (is_all_v4 && one.is_ipv4() == other.is_ipv4())
            }
            (Host::Name(one), Host::Name(other)) => one.eq_ignore_ascii_case(other),
            _ => false,
        };
        self.port != 0 && self.port == other.port && has_same_host
    }
}

/// The port of a service, whose name has no case, in the text of `/etc/services` (services(5)).
pub(super) fn port_of(service: &str, protocol: &str, services: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (name, number) = (words.next()?, words.next()?);
        let (port, of) = number.split_once('/')?;
        let mut names = core::iter::once(name).chain(words);
        let is_it = of == protocol && names.any(|name| name.eq_ignore_ascii_case(service));
        is_it.then(|| port.parse().ok()).flatten()
    })
}

/// A host in brackets: as for wg(8), any but the one without a name.
fn named_in_brackets(host: &str) -> Option<Host> {
    if let Ok(address) = host.parse() {
        return Some(Host::Address(address));
    }
    let is_host = match host.split_once('%') {
        Some((address, zone)) => is_name(zone) && address.parse::<Ipv6Addr>().is_ok(),
        None => is_name(host),
    };
    is_host.then(|| Host::Name(host.to_owned()))
}

/// Text that is no [`HostPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected ADDRESS:PORT, [IPV6]:PORT, NAME:PORT, or :PORT for all addresses")]
pub struct ParseHostPortError(());

impl FromStr for HostPort {
    type Err = ParseHostPortError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or(ParseHostPortError(()))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port;
        match &self.host {
            Host::Any => write!(f, ":{port}"),
            Host::Address(ip) => SocketAddr::new(*ip, port).fmt(f),
            Host::Name(name) if name.contains(':') => write!(f, "[{name}]:{port}"),
            Host::Name(name) => write!(f, "{name}:{port}"),
        }
    }
}

/// Whether text can be the name of a host or a domain. Unlike RFC 1123 it may have `_`, which names
/// of services have.
pub(super) fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(is_fine)
    };
    let text = text.strip_suffix('.').unwrap_or(text);
    // A name whose last label is a number would be an address that is written wrong.
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= LONGEST_NAME && !is_number && text.split('.').all(is_label)
}

/// A password. It is wiped from memory when it is dropped, and `Debug` prints nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub(super) Zeroizing<String>);

impl Password {
    /// Returns the password.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}
