//! What `/etc/resolv.conf` of this host says.

use std::fs;
use std::net::IpAddr;

const FILE: &str = "/etc/resolv.conf";

/// Resolvers and search domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resolvers {
    pub(super) servers: Vec<IpAddr>,
    pub(super) domains: Vec<String>,
}

impl Resolvers {
    /// Those of this host; none if the file is missing or makes no sense.
    pub(super) fn of_host() -> Self {
        fs::read_to_string(FILE).map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// Lines that make no sense say nothing (resolv.conf(5)).
    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    // The zone of a link-local address means nothing elsewhere.
                    let address = words.next().and_then(|word| word.split('%').next());
                    found.servers.extend(address.and_then(|word| word.parse::<IpAddr>().ok()));
                }
                // The last one counts.
                Some("search" | "domain") => found.domains = words.map(str::to_owned).collect(),
                _ => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_domains_are_read_and_the_rest_is_not() {
        let text = "# nameserver 192.0.2.9\nsearch old.example\nnameserver 192.0.2.1\n\
                    nameserver fe80::1%eth0\nnameserver nowhere\noptions ndots:2\n\
                    search example.org example.net\n";
        let found = Resolvers::parse(text);
        let servers: Vec<IpAddr> =
            ["192.0.2.1", "fe80::1"].iter().map(|text| text.parse().expect("one")).collect();
        assert_eq!(found.servers, servers);
        assert_eq!(found.domains, ["example.org", "example.net"]);
    }
}
