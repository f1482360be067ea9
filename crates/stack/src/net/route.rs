//! Routes and path MTUs.
//!
//! A host has few routes: the table is a sorted list, and a lookup reads it from the longest prefix
//! down, O(routes). Sockets keep the route that they found together with the table's generation and
//! look again when that has changed. The path MTU cache is one keyed hash per question.

use super::address::InterfaceId;
use crate::keyed::Keyed;
use core::net::IpAddr;
use hashbrown::HashMap;
use neap_tcp::time::{Instant, Nanos};
use std::collections::VecDeque;

pub use super::address::{Prefix, PrefixError};

/// Entry of the routing table, one line of `ip route`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// Destinations of the route.
    pub prefix: Prefix,
    /// Metric. Among routes with equal prefixes the lowest wins.
    pub metric: u32,
    /// Way to the destinations.
    pub route: Route,
}

/// Way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Interface that packets leave by.
    pub interface: InterfaceId,
    /// Router; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// MTU of the route (`mtu`), if it is below that of the interface.
    pub mtu: Option<u32>,
    /// Source address for sockets that are bound to none (`src`).
    pub pref_src: Option<IpAddr>,
}

impl Route {
    /// Returns the neighbour that gets a packet to `destination`.
    pub fn next_hop(&self, destination: IpAddr) -> IpAddr {
        self.gateway.unwrap_or(destination)
    }
}

/// Routes of a host, and the path MTUs of destinations.
#[derive(Debug)]
pub struct Routes {
    /// Longest prefix first, then least metric.
    entries: Vec<RouteEntry>,
    generation: u64,
    path_mtus: PathMtus,
}

impl Routes {
    /// Returns an empty table. `seed` is random: it keys the hash of destinations.
    pub fn new(seed: u64) -> Self {
        Self { entries: Vec::new(), generation: 1, path_mtus: PathMtus::new(seed) }
    }

    /// Adds a route. It replaces one with the same prefix and metric.
    pub fn add(&mut self, entry: RouteEntry) {
        self.generation += 1;
        let same = |old: &RouteEntry| old.prefix == entry.prefix && old.metric == entry.metric;
        if let Some(old) = self.entries.iter_mut().find(|old| same(old)) {
            *old = entry;
            return;
        }
        let comes_before = |old: &RouteEntry| {
            let (old_len, len) = (old.prefix.len(), entry.prefix.len());
            old_len > len || (old_len == len && old.metric <= entry.metric)
        };
        let place = self.entries.partition_point(comes_before);
        self.entries.insert(place, entry);
    }

    /// The route of this prefix and metric.
    pub fn get(&self, prefix: Prefix, metric: u32) -> Option<&RouteEntry> {
        self.entries.iter().find(|entry| entry.prefix == prefix && entry.metric == metric)
    }

    /// Removes the first route of this prefix through this interface, of this metric if one is
    /// given (`ip route del`).
    pub fn remove(
        &mut self,
        prefix: Prefix,
        interface: InterfaceId,
        metric: Option<u32>,
    ) -> Option<RouteEntry> {
        let is_it = |entry: &RouteEntry| {
            let has_metric = metric.is_none_or(|metric| metric == entry.metric);
            entry.prefix == prefix && entry.route.interface == interface && has_metric
        };
        let at = self.entries.iter().position(is_it)?;
        self.generation += 1;
        Some(self.entries.remove(at))
    }

    /// Removes all routes that `is_to_go` names.
    pub fn remove_all(&mut self, is_to_go: impl Fn(&RouteEntry) -> bool) {
        let before = self.entries.len();
        self.entries.retain(|entry| !is_to_go(entry));
        self.generation += u64::from(self.entries.len() < before);
    }

    /// The route of the longest prefix that contains `destination`, of those through interfaces
    /// that may be used.
    pub fn lookup(
        &self,
        destination: IpAddr,
        may_use: impl Fn(InterfaceId) -> bool,
    ) -> Option<Route> {
        self.entries
            .iter()
            .find(|entry| entry.prefix.contains(destination) && may_use(entry.route.interface))
            .map(|entry| entry.route)
    }

    /// Returns the generation, which changes whenever an earlier lookup or path MTU may have become
    /// wrong. It is never zero.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns all routes, in the order in which they are tried.
    pub fn entries(&self) -> &[RouteEntry] {
        &self.entries
    }

    /// Returns the largest IP packet that the path to `destination` takes, if ICMP taught one, and
    /// when that is forgotten, so that the interface's MTU is tried again.
    pub fn path_mtu(&self, now: Instant, destination: IpAddr) -> Option<(u32, Instant)> {
        self.path_mtus.get(now, destination)
    }

    /// Takes an authenticated "packet too big" about a path whose MTU was `current` bytes.
    ///
    /// Returns the MTU of the path if it is below `current`. An increase is never believed (RFC
    /// 8201 section 4).
    pub fn on_packet_too_big(
        &mut self,
        now: Instant,
        destination: IpAddr,
        mtu: u32,
        current: u32,
    ) -> Option<u32> {
        let mtu = match destination {
            IpAddr::V4(_) => mtu.max(PathMtus::MIN_V4),
            IpAddr::V6(_) if mtu < PathMtus::MIN_V6 => return None,
            IpAddr::V6(_) => mtu,
        };
        let known = self.path_mtus.get(now, destination).map_or(u32::MAX, |(mtu, _)| mtu);
        if mtu < current.min(known) {
            self.path_mtus.put(now, destination, mtu);
            self.generation += 1;
        }
        Some(mtu.min(known)).filter(|&mtu| mtu < current)
    }
}

/// Path MTUs that ICMP taught: at most 1024, the oldest is forgotten first.
#[derive(Debug)]
struct PathMtus {
    by_destination: HashMap<IpAddr, PathMtu, Keyed>,
    /// Each destination of the map once.
    oldest: VecDeque<IpAddr>,
}

#[derive(Clone, Copy, Debug)]
struct PathMtu {
    mtu: u32,
    expires: Instant,
}

impl PathMtus {
    const MAX: usize = 1024;
    /// `net.ipv4.route.mtu_expires`.
    const EXPIRES: Nanos = Nanos::from_secs(600);
    /// `net.ipv4.route.min_pmtu`.
    const MIN_V4: u32 = 552;
    /// RFC 8200 section 5.
    const MIN_V6: u32 = 1280;

    fn new(seed: u64) -> Self {
        Self { by_destination: HashMap::with_hasher(Keyed::new(seed)), oldest: VecDeque::new() }
    }

    fn get(&self, now: Instant, destination: IpAddr) -> Option<(u32, Instant)> {
        let known = self.by_destination.get(&destination)?;
        (now < known.expires).then_some((known.mtu, known.expires))
    }

    fn put(&mut self, now: Instant, destination: IpAddr, mtu: u32) {
        let known = PathMtu { mtu, expires: now + Self::EXPIRES };
        if self.by_destination.insert(destination, known).is_some() {
            return;
        }
        self.oldest.push_back(destination);
        if self.oldest.len() > Self::MAX
            && let Some(forgotten) = self.oldest.pop_front()
        {
            self.by_destination.remove(&forgotten);
        }
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

    fn entry(text: &str, metric: u32, interface: u32) -> RouteEntry {
        let interface = InterfaceId(interface);
        let route = Route { interface, gateway: None, mtu: None, pref_src: None };
        RouteEntry { prefix: prefix(text), metric, route }
    }

    #[test]
    fn the_longest_prefix_wins_then_the_least_metric() {
        let mut routes = Routes::new(1);
        for (text, metric, interface) in [
            ("0.0.0.0/0", 0, 1),
            ("10.0.0.0/8", 100, 2),
            ("10.1.0.0/16", 0, 3),
            ("10.0.0.0/8", 50, 4),
            ("::/0", 0, 5),
            ("fd00::/8", 0, 6),
            ("10.1.2.3/32", 0, 7),
        ] {
            routes.add(entry(text, metric, interface));
        }
        let interface = |text| routes.lookup(ip(text), |_| true).map(|route| route.interface.0);
        assert_eq!(interface("8.8.8.8"), Some(1));
        assert_eq!(interface("10.2.0.1"), Some(4));
        assert_eq!(interface("10.1.2.4"), Some(3));
        assert_eq!(interface("10.1.2.3"), Some(7));
        assert_eq!(interface("2001:db8::1"), Some(5));
        assert_eq!(interface("fd12::1"), Some(6));
    }

    #[test]
    fn every_change_shows_in_the_generation() {
        let mut routes = Routes::new(1);
        let mut seen = vec![routes.generation()];
        routes.add(entry("10.0.0.0/8", 0, 1));
        seen.push(routes.generation());
        routes.add(entry("10.0.0.0/8", 0, 2));
        assert_eq!(routes.entries().len(), 1, "replaced");
        seen.push(routes.generation());
        assert_eq!(routes.remove(prefix("10.0.0.0/8"), InterfaceId(1), None), None);
        assert_eq!(routes.generation(), seen[2]);
        let gone = routes.remove(prefix("10.0.0.0/8"), InterfaceId(2), None);
        assert_eq!(gone, Some(entry("10.0.0.0/8", 0, 2)));
        seen.push(routes.generation());
        assert_eq!(routes.lookup(ip("10.0.0.1"), |_| true), None);
        routes.on_packet_too_big(Instant::ZERO, ip("10.0.0.1"), 1400, 1500);
        seen.push(routes.generation());
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    }

    #[test]
    fn a_path_mtu_shrinks_has_a_floor_and_expires() {
        let mut routes = Routes::new(1);
        let (v4, v6) = (ip("192.0.2.1"), ip("2001:db8::1"));
        let now = Instant::ZERO;
        assert_eq!(routes.on_packet_too_big(now, v4, 1400, 1500), Some(1400));
        assert_eq!(routes.on_packet_too_big(now, v4, 1450, 1500), Some(1400), "no increase");
        assert_eq!(routes.on_packet_too_big(now, v4, 1450, 1400), None);
        assert_eq!(routes.on_packet_too_big(now, v4, 9000, 1400), None);
        assert_eq!(routes.on_packet_too_big(now, v4, 0, 1500), Some(552));
        assert_eq!(routes.on_packet_too_big(now, v4, 68, 552), None, "at the floor");
        assert_eq!(routes.on_packet_too_big(now, v6, 1279, 1500), None);
        assert_eq!(routes.on_packet_too_big(now, v6, 1280, 1500), Some(1280));
        let expires = now + Nanos::from_secs(600);
        assert_eq!(routes.path_mtu(expires - Nanos(1), v6), Some((1280, expires)));
        assert_eq!(routes.path_mtu(expires, v6), None);
        assert_eq!(routes.on_packet_too_big(expires, v6, 1300, 1500), Some(1300));
    }

    #[test]
    fn path_mtus_are_bounded() {
        let mut routes = Routes::new(1);
        let host = |n: u32| IpAddr::V4(n.into());
        for n in 0..3000 {
            routes.on_packet_too_big(Instant::ZERO, host(n), 1000, 1500);
            routes.on_packet_too_big(Instant::ZERO, host(n), 900, 1500);
        }
        assert_eq!(routes.path_mtus.by_destination.len(), 1024);
        assert_eq!(routes.path_mtus.oldest.len(), 1024);
        assert_eq!(routes.path_mtu(Instant::ZERO, host(1975)), None);
        assert!(routes.path_mtu(Instant::ZERO, host(1976)).is_some());
    }
}
