//! Which destinations a guest may reach.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Well-known prefix of NAT64 (RFC 6052 section 2.1), without its last 32 bits.
const NAT64: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// Which destinations a guest may reach, for every protocol.
///
/// It judges the address that the gateway is about to give to the host's kernel, after every
/// translation of its own. The longest prefix that contains the address decides; a denied one
/// decides between two of equal length. An address that no prefix contains may be reached.
///
/// Cost: a look at each prefix per new flow.
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
    /// compatible, NAT64) are judged as what they stand for, and as what they are.
    pub fn allows(&self, address: IpAddr) -> bool {
        let IpAddr::V6(v6) = address else { return self.judge(address) };
        self.judge(address) && embedded(v6).is_none_or(|v4| self.judge(IpAddr::V4(v4)))
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
    let is_compatible = words[..6] == [0; 6];
    (is_compatible || words[..6] == NAT64).then(low)
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
        ] {
            assert!(!policy.allows(ip(denied)), "{denied}");
        }
        for allowed in ["10.0.0.1", "192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "fe80::1"] {
            assert!(policy.allows(ip(allowed)), "{allowed}");
        }
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
