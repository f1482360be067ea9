//! Routers: packets go where the longest matching prefix says.

use crate::link::{Link, Packet, forward};
use core::net::IpAddr;
use neap_stack::route::Prefix;
use neap_tcp::time::Instant;
use std::collections::BTreeMap;

/// Counts of a router's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterStats {
    /// Packets sent on.
    pub forwarded: u64,
    /// Packets without a route.
    pub no_route: u64,
    /// Packets whose hop limit was used up.
    pub expired: u64,
}

/// The link and end that lead to each network.
type NextHops = BTreeMap<IpAddr, (usize, usize)>;

/// A router. Its queues are those of the paths that begin at it. Cost of a packet: a look into a
/// tree for each length of prefix that the table has.
#[derive(Debug, Default)]
pub(super) struct Router {
    /// By length of the prefix, longest first.
    tables: Vec<(u8, NextHops)>,
    pub(super) stats: RouterStats,
}

impl Router {
    pub(super) fn add_route(&mut self, prefix: Prefix, next_hop: (usize, usize)) {
        let len = prefix.len();
        let at = self.tables.partition_point(|&(other, _)| other > len);
        if self.tables.get(at).is_none_or(|&(other, _)| other != len) {
            self.tables.insert(at, (len, BTreeMap::new()));
        }
        self.tables[at].1.insert(prefix.network(), next_hop);
    }

    fn lookup(&self, destination: IpAddr) -> Option<(usize, usize)> {
        self.tables.iter().find_map(|(len, table)| {
            let network = Prefix::new(destination, *len).ok()?.network();
            table.get(&network).copied()
        })
    }

    /// Sends a packet on; the next_hop that it took.
    pub(super) fn forward(
        &mut self,
        at: Instant,
        mut packet: Box<Packet>,
        links: &[Link],
    ) -> Option<(usize, usize)> {
        let Some((link, end)) =
            forward::destination(&packet.frame).and_then(|address| self.lookup(address))
        else {
            self.stats.no_route += 1;
            return None;
        };
        if !forward::age(&mut packet.frame) {
            self.stats.expired += 1;
            return None;
        }
        self.stats.forwarded += 1;
        links[link].forward(end, at, packet);
        Some((link, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins() {
        let mut router = Router::default();
        let routes = [("0.0.0.0/0", 0), ("10.0.0.0/8", 1), ("10.1.0.0/16", 2), ("fd00::/8", 3)];
        for (prefix, link) in routes {
            router.add_route(prefix.parse().expect("a prefix"), (link, 0));
        }
        let to = |address: &str| router.lookup(address.parse().expect("an address"));
        assert_eq!(to("10.1.2.3"), Some((2, 0)));
        assert_eq!(to("10.2.2.3"), Some((1, 0)));
        assert_eq!(to("192.0.2.1"), Some((0, 0)));
        assert_eq!(to("fd00::1"), Some((3, 0)));
        assert_eq!(to("2001:db8::1"), None);
    }
}
