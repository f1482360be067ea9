//! The hosts of a filter, written as for `ss`: an address, the start of one, or a name.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};

/// A family of addresses, which a filter can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn has(self, ip: IpAddr) -> bool {
        ip.is_ipv4() == (self == Self::V4)
    }

    /// Takes the family from the start of a word.
    pub(super) fn strip(word: &str) -> (Option<Self>, &str) {
        for (start, family) in [("inet:", Self::V4), ("inet6:", Self::V6)] {
            if let Some(rest) = word.strip_prefix(start) {
                return (Some(family), rest);
            }
        }
        (None, word)
    }
}

/// Parts of a host with a port, before the name of either is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts<'a> {
    pub(super) host: &'a str,
    /// What is behind the brackets of an IPv6 address: a length with its slash.
    pub(super) length: &'a str,
    pub(super) port: Option<&'a str>,
}

impl<'a> Parts<'a> {
    /// The parts of a word; `None` if a bracket is not closed.
    ///
    /// A port is what follows the last colon, as in `ss`. Without brackets this is ambiguous in
    /// IPv6: where what is left is no address, or the port is none, all of it is the address.
    pub(super) fn of(word: &'a str, is_port: impl Fn(&str) -> bool) -> Option<Self> {
        if let Some(inner) = word.strip_prefix('[') {
            let (host, behind) = inner.split_once(']')?;
            let (length, port) = match behind.split_once(':') {
                Some((length, port)) => (length, Some(port)),
                None => (behind, None),
            };
            return Some(Self { host, length, port });
        }
        let whole = Self { host: word, length: "", port: None };
        // No colon of an address is behind its length.
        let from = word.find('/').unwrap_or(0);
        let Some(colon) = word[from..].rfind(':').map(|at| from + at) else { return Some(whole) };
        let (host, port) = (&word[..colon], &word[colon + 1..]);
        if prefix(word).is_some() && !(prefix(host).is_some() && is_port(port)) {
            return Some(whole);
        }
        Some(Self { host, length: "", port: Some(port) })
    }

    /// Prefixes of the host, none for every host; `None` if nobody knows it.
    pub(super) fn prefixes(
        &self,
        family: Option<Family>,
        look_up: impl Fn(&str) -> Vec<IpAddr>,
    ) -> Option<Vec<IpNet>> {
        if ["", "*", "any", "all", "default"].contains(&self.host) && self.length.is_empty() {
            return Some(Vec::new());
        }
        let fits = |ip: IpAddr| family.is_none_or(|family| family.has(ip));
        let found = match prefix(&format!("{}{}", self.host, self.length)) {
            Some(prefix) => vec![prefix],
            None if self.length.is_empty() && is_name(self.host) => {
                look_up(self.host).into_iter().map(IpNet::from).collect()
            }
            None => Vec::new(),
        };
        let found: Vec<_> = found.into_iter().filter(|prefix| fits(prefix.addr())).collect();
        (!found.is_empty()).then_some(found)
    }
}

/// Addresses of a name, by the resolver of the system; none if it knows none.
pub(super) fn look_up(name: &str) -> Vec<IpAddr> {
    // The port is for nothing.
    (name, 0).to_socket_addrs().map_or(Vec::new(), |all| all.map(|one| one.ip()).collect())
}

/// Whether it is worth a question: no name has digits only.
fn is_name(text: &str) -> bool {
    let can_be = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    text.chars().all(can_be) && text.chars().any(char::is_alphabetic)
}

/// An address with a length or a mask, or alone.
fn prefix(text: &str) -> Option<IpNet> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address = match address.parse::<Ipv6Addr>() {
        Ok(address) => IpAddr::V6(address),
        Err(_) => IpAddr::V4(v4(address)?),
    };
    let Some(length) = length else { return Some(address.into()) };
    let length = match number(length) {
        Some(length) => u8::try_from(length).ok()?,
        None => ipnet::ip_mask_to_prefix(v4(length)?.into()).ok()?,
    };
    IpNet::new(address, length).ok()
}

/// An IPv4 address by its first bytes, as iproute2 reads it: `10.1` is 10.1.0.0, and not 10.0.0.1
/// as `inet_aton` has it.
fn v4(text: &str) -> Option<Ipv4Addr> {
    let mut bytes = [0; 4];
    let mut places = bytes.iter_mut();
    for part in text.split('.') {
        *places.next()? = u8::try_from(number(part)?).ok()?;
    }
    Some(bytes.into())
}

/// A number as in C: of base 16 behind `0x`, of base 8 behind `0`.
fn number(text: &str) -> Option<u32> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, base) = match (hex, text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (text, 10),
    };
    u32::from_str_radix(digits, base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prefixes and port of a word, where `here` is a known name.
    fn read(word: &str) -> Option<(String, Option<&str>)> {
        let (family, word) = Family::strip(word);
        let parts = Parts::of(word, |port| port.parse::<u16>().is_ok())?;
        let here = |name: &str| match name {
            "here" => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            _ => Vec::new(),
        };
        let prefixes = parts.prefixes(family, here)?;
        let text: Vec<_> = prefixes.iter().map(ToString::to_string).collect();
        Some((text.join(" "), parts.port))
    }

    #[test]
    fn hosts_are_read_as_by_iproute2() {
        for (word, prefixes, port) in [
            ("10.0.0.1", "10.0.0.1/32", None),
            ("193.233.7/24", "193.233.7.0/24", None),
            ("127/8:80", "127.0.0.0/8", Some("80")),
            ("10.1", "10.1.0.0/32", None),
            ("0x7f.010/0x10", "127.8.0.0/16", None),
            ("10.0.0.0/255.0.0.0", "10.0.0.0/8", None),
            ("2001:db8::/32", "2001:db8::/32", None),
            ("[2001:db8::]/32:9", "2001:db8::/32", Some("9")),
            ("[::1]", "::1/128", None),
            ("::1", "::1/128", None),
            ("2001:db8::1:80", "2001:db8::1/128", Some("80")),
            ("2001:db8::1:beef", "2001:db8::1:beef/128", None),
            ("inet6:2001:db8::/32", "2001:db8::/32", None),
            ("any", "", None),
            ("all:80", "", Some("80")),
            ("default", "", None),
            ("inet:*", "", None),
            (":80", "", Some("80")),
            ("here:http", "127.0.0.1/32 ::1/128", Some("http")),
            ("inet:here", "127.0.0.1/32", None),
        ] {
            assert_eq!(read(word), Some((prefixes.to_owned(), port)), "{word}");
        }
        for word in [
            "10.0.0.0.0",
            "10.0.0.256",
            "10.08",
            "10./8",
            "10/33",
            "10/255.0.255.0",
            "any/8",
            "[::1",
            "::1/129",
            "inet:::1",
            "inet6:10.0.0.1",
            "nowhere",
        ] {
            assert_eq!(read(word), None, "{word}");
        }
    }
}
