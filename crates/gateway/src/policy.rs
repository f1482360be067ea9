//! Which destinations a guest may reach.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Well-known prefix of NAT64 (RFC 6052 section 2.1), without its last 32 bits.
const NAT64: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];
/// Beginning of the prefixes of NAT64 that networks choose for themselves (RFC 8215).
const LOCAL_NAT64: [u16; 3] = [0x64, 0xff9b, 1];
/// Where a prefix of 48, 56, 64 or 96 bits has the four bytes of the IPv4 address (RFC 6052 section
/// 2.2).
const PLACES: [[usize; 4]; 4] = [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], [12, 13, 14, 15]];

/// Which destinations a guest may reach, for every protocol.
///
/// It judges the address that the gateway is about to give to the host's kernel, after every
/// translation of its own. The longest prefix that contains the address decides; a denied one
/// decides between two of equal length. An address that no prefix contains may be reached.
///
/// Cost: a look at each prefix per new flow, and per datagram from whom the guest has not sent to.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<(IpNet, bool)>,
}

impl Policy {
    /// A policy that denies what is the host's own: its loopback addresses, "this network"
    /// (`0.0.0.0/8`, `::`), and link-local IPv4 addresses, behind which clouds keep their secrets.
    pub fn without_host() -> Self {
        let mut policy = Self::default();
        for prefix in ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "::/128", "::1/128"] {
            policy.deny(prefix.parse().expect("a prefix"));
        }
        policy
    }

    /// Denies a prefix.
    pub fn deny(&mut self, prefix: IpNet) {
        self.rules.push((prefix.trunc(), false));
    }

    /// Allows a prefix, which matters inside of a denied one.
    pub fn allow(&mut self, prefix: IpNet) {
        self.rules.push((prefix.trunc(), true));
    }

    /// Whether a guest may reach `address`. IPv4 addresses inside of IPv6 addresses (mapped,
    /// compatible, NAT64) are judged as what they stand for, and as what they are. How long a
    /// network's own prefix of NAT64 is (`64:ff9b:1::/48`) is not known: an address in it is judged
    /// as all that it can stand for.
    pub fn allows(&self, address: IpAddr) -> bool {
        let IpAddr::V6(v6) = address else { return self.judge(address) };
        let stands_for_denied = || {
            embedded(v6).is_some_and(|v4| !self.judge(v4.into()))
                || in_local_nat64(v6).any(|v4| !self.judge(v4.into()))
        };
        self.judge(address) && !stands_for_denied()
    }

    fn judge(&self, address: IpAddr) -> bool {
        let matching = self.rules.iter().filter(|(prefix, _)| prefix.contains(&address));
        // Of equal lengths `false` is the greater, so that it decides.
        let decisive = matching.max_by_key(|(prefix, allows)| (prefix.prefix_len(), !allows));
        decisive.is_none_or(|&(_, allows)| allows)
    }
}

/// The IPv4 address that an IPv6 address stands for.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    if let Some(v4) = address.to_ipv4_mapped() {
        return Some(v4);
    }
    let words = address.segments();
    let low = || {
        let [a, b] = words[6].to_be_bytes();
        let [c, d] = words[7].to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    // `::` and `::1` have the form of a compatible address, and stand for themselves.
    let is_compatible = words[..6] == [0; 6] && words[6..] != [0, 0] && words[6..] != [0, 1];
    (is_compatible || words[..6] == NAT64).then(low)
}

/// The IPv4 addresses that an address of a network's own NAT64 can stand for. What begins with a
/// zero is the filling of another place: no translator has a way to `0.0.0.0/8`.
fn in_local_nat64(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let bytes = address.octets();
    let is_one = address.segments()[..3] == LOCAL_NAT64;
    let places = PLACES.into_iter().filter(move |_| is_one);
    let addresses = places.map(move |place| Ipv4Addr::from(place.map(|at| bytes[at])));
    addresses.filter(|v4| v4.octets()[0] != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn net(text: &str) -> IpNet {
        text.parse().expect("a prefix")
    }

    #[test]
    fn the_host_is_denied_in_every_spelling() {
        let policy = Policy::without_host();
        for denied in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:0.0.0.0",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            // The same address behind a network's own prefix of 48, 56, 64 and 96 bits; nobody
            // looks at what follows it.
            "64:ff9b:1:a9fe:a9:fe00::",
            "64:ff9b:1:a9fe:a9:fe00:dead:beef",
            "64:ff9b:1:12a9:fe:a9fe::",
            "64:ff9b:1:1234:a9:fea9:fe00:0",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b:1:1234:5678:9abc:7f00:1",
        ] {
            assert!(!policy.allows(ip(denied)), "{denied}");
        }
        for allowed in [
            "10.0.0.1",
            "192.0.2.1",
            "2001:db8::1",
            "::ffff:192.0.2.1",
            "fe80::1",
            "64:ff9b::c000:201",
            // 192.0.2.1 by prefixes of 48, 56, 64 and 96 bits.
            "64:ff9b:1:c000:2:100::",
            "64:ff9b:1:12c0:0:201::",
            "64:ff9b:1:1234:c0:2:100:0",
            "64:ff9b:1::c000:201",
        ] {
            assert!(policy.allows(ip(allowed)), "{allowed}");
        }
    }

    #[test]
    fn the_loopback_address_of_ipv6_stands_for_no_other() {
        let mut policy = Policy::default();
        policy.deny(net("0.0.0.0/8"));
        assert!(policy.allows(ip("::1")) && policy.allows(ip("::")));
        assert!(!policy.allows(ip("::0.1.2.3")));
    }

    #[test]
    fn the_longest_prefix_decides_and_a_denied_one_between_equals() {
        let mut policy = Policy::default();
        policy.deny(net("10.0.0.0/8"));
        policy.allow(net("10.1.0.0/16"));
        policy.deny(net("10.1.2.3/32"));
        policy.allow(net("10.1.2.3/32"));
        assert!(!policy.allows(ip("10.2.0.1")));
        assert!(policy.allows(ip("10.1.0.1")));
        assert!(!policy.allows(ip("10.1.2.3")));
        assert!(!policy.allows(ip("::ffff:10.2.0.1")));
        assert!(policy.allows(ip("192.0.2.1")));
    }
}
