//! Cryptokey routing: which peer an address belongs to, by the most specific prefix that has it.

use crate::protocol::PeerId;
use core::net::IpAddr;
use ipnet::IpNet;

/// The prefixes of all peers, as ranges that do not overlap.
///
/// A look-up is a binary search, O(log n) comparisons of integers; one peer for everything is one
/// comparison. Building is O(n log n). Memory: at most two ranges per prefix, 24 or 32 bytes each.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    v4: Table<u32>,
    v6: Table<u128>,
}

/// Ranges by their first address. Each goes up to the next.
#[derive(Debug)]
struct Table<A>(Vec<(A, Option<PeerId>)>);

impl<A> Default for Table<A> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<A: Ord + Copy> Table<A> {
    fn get(&self, address: A) -> Option<PeerId> {
        let behind = self.0.partition_point(|(first, _)| *first <= address);
        self.0.get(behind.checked_sub(1)?)?.1
    }

    /// Prefixes as first and last address, none twice; `next` is the address after one, `None`
    /// after the last.
    fn of(mut prefixes: Vec<(A, A, PeerId)>, next: impl Fn(A) -> Option<A>) -> Self {
        // Outer prefixes come before those within them.
        prefixes.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        let mut ranges: Vec<(A, Option<PeerId>)> = Vec::with_capacity(prefixes.len() * 2);
        let mut begin = |first: A, peer: Option<PeerId>| {
            if ranges.last().is_some_and(|last| last.0 == first) {
                ranges.pop();
            }
            if ranges.last().is_none_or(|last| last.1 != peer) {
                ranges.push((first, peer));
            }
        };
        let mut open: Vec<(A, PeerId)> = Vec::new();
        for (first, last, peer) in prefixes {
            close(&mut open, Some(first), &next, &mut begin);
            begin(first, Some(peer));
            open.push((last, peer));
        }
        close(&mut open, None, &next, &mut begin);
        Self(ranges)
    }
}

/// Ends the prefixes that do not reach `until`, each for the one around it.
fn close<A: Ord + Copy>(
    open: &mut Vec<(A, PeerId)>,
    until: Option<A>,
    next: &impl Fn(A) -> Option<A>,
    begin: &mut impl FnMut(A, Option<PeerId>),
) {
    while let Some(&(last, _)) = open.last() {
        if until.is_some_and(|until| last >= until) {
            return;
        }
        open.pop();
        if let Some(after) = next(last) {
            begin(after, open.last().map(|outer| outer.1));
        }
    }
}

impl Routes {
    /// The table of these prefixes. Where two peers have the same one, the later has it.
    pub(crate) fn new<'a>(prefixes: impl Iterator<Item = (&'a IpNet, PeerId)>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (prefix, peer) in prefixes {
            match prefix {
                IpNet::V4(net) => {
                    v4.push((net.network().to_bits(), net.broadcast().to_bits(), peer));
                }
                IpNet::V6(net) => {
                    v6.push((net.network().to_bits(), net.broadcast().to_bits(), peer));
                }
            }
        }
        Self {
            v4: Table::of(latest(v4), |address: u32| address.checked_add(1)),
            v6: Table::of(latest(v6), |address: u128| address.checked_add(1)),
        }
    }

    /// The peer that an address belongs to.
    pub(crate) fn get(&self, address: IpAddr) -> Option<PeerId> {
        match address {
            IpAddr::V4(address) => self.v4.get(address.to_bits()),
            IpAddr::V6(address) => self.v6.get(address.to_bits()),
        }
    }
}

/// Of equal prefixes the last.
fn latest<A: Ord + Copy>(mut prefixes: Vec<(A, A, PeerId)>) -> Vec<(A, A, PeerId)> {
    prefixes.reverse();
    prefixes.sort_by_key(|prefix| (prefix.0, prefix.1));
    prefixes.dedup_by_key(|prefix| (prefix.0, prefix.1));
    prefixes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn routes(prefixes: &[(&str, PeerId)]) -> Routes {
        let nets: Vec<(IpNet, PeerId)> = prefixes
            .iter()
            .map(|(net, peer)| (net.parse::<IpNet>().expect("a prefix").trunc(), *peer))
            .collect();
        Routes::new(nets.iter().map(|(net, peer)| (net, *peer)))
    }

    fn get(routes: &Routes, address: &str) -> Option<PeerId> {
        routes.get(address.parse().expect("an address"))
    }

    #[test]
    fn the_most_specific_prefix_wins() {
        let routes = routes(&[
            ("0.0.0.0/0", 0),
            ("10.0.0.0/8", 1),
            ("10.1.0.0/16", 2),
            ("10.1.2.3/32", 3),
            ("fd00::/8", 1),
            ("fd00:1::/32", 2),
        ]);
        for (address, peer) in [
            ("9.255.255.255", Some(0)),
            ("10.0.255.255", Some(1)),
            ("10.1.0.0", Some(2)),
            ("10.1.2.2", Some(2)),
            ("10.1.2.3", Some(3)),
            ("10.1.2.4", Some(2)),
            ("10.2.0.0", Some(1)),
            ("11.0.0.0", Some(0)),
            ("255.255.255.255", Some(0)),
            ("fd00:1::1", Some(2)),
            ("fd00:2::1", Some(1)),
            ("fe00::1", None),
        ] {
            assert_eq!(get(&routes, address), peer, "{address}");
        }
    }

    #[test]
    fn the_later_peer_has_a_prefix_that_two_have() {
        let routes = routes(&[("10.0.0.0/8", 0), ("10.0.0.0/8", 1), ("192.0.2.0/24", 0)]);
        assert_eq!(get(&routes, "10.0.0.1"), Some(1));
        assert_eq!(get(&routes, "192.0.2.1"), Some(0));
        assert_eq!(get(&Routes::default(), "192.0.2.1"), None);
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_search_of_all_prefixes(
            prefixes in prop::collection::vec((any::<u32>(), 0u8..=32, 0usize..4), 0..20),
            probes in prop::collection::vec(any::<u32>(), 20),
        ) {
            let nets: Vec<(IpNet, PeerId)> = prefixes
                .iter()
                .map(|&(bits, len, peer)| {
                    // Few leading bits, so that prefixes lie within each other.
                    let address = IpAddr::V4((bits & 0xe000_0007).into());
                    (IpNet::new(address, len).expect("a length").trunc(), peer)
                })
                .collect();
            let routes = Routes::new(nets.iter().map(|(net, peer)| (net, *peer)));
            let ends = nets.iter().flat_map(|(net, _)| [net.network(), net.broadcast()]);
            let probes = probes.into_iter().map(|bits| IpAddr::V4(bits.into()));
            for probe in probes.chain(ends) {
                let best = nets.iter().filter(|(net, _)| net.contains(&probe));
                let best = best.max_by_key(|(net, _)| net.prefix_len()).map(|(_, peer)| *peer);
                prop_assert_eq!(routes.get(probe), best, "{}", probe);
            }
        }
    }
}
