//! Router discovery on an interface, both as a router of its link and as a host (RFC 4861 section
//! 6), and the addresses that an interface answers for without having them.

use super::{ALL_NODES, ALL_ROUTERS, Interface, Station, Undeliverable, link_frame};
use crate::frame::{Frame, ORPHAN};
use crate::net::Visit;
use crate::net::address::Prefix;
use crate::net::error::NetError;
use crate::net::neighbor::LinkAddress;
use crate::net::router::{DueTo, Heard, HeardRouter, Router, RouterAdvertisement, Unheard};
use crate::sync::lock;
use crate::wire::{ethernet, icmpv6};
use core::net::{IpAddr, Ipv6Addr};
use neap_tcp::segment::Payload;
use neap_tcp::time::Instant;

/// Bits of an address that its solicited-node group does not have.
const SOLICITED_NODE_BITS: u8 = 104;

/// Whether an address of `prefix` may have this solicited-node group.
fn has_group(prefix: Prefix, group: Ipv6Addr) -> bool {
    let IpAddr::V6(network) = prefix.network() else { return false };
    let low = |address: Ipv6Addr| address.to_bits() & 0xff_ffff;
    let is_group = icmpv6::solicited_node(group) == group;
    let bits = prefix.len().saturating_sub(SOLICITED_NODE_BITS);
    is_group && (low(network) ^ low(group)) >> (24 - bits) == 0
}

impl Interface {
    /// Answers for all addresses of these prefixes from now on, besides the own ones (`proxy_arp`,
    /// `proxy_ndp`).
    pub(crate) fn set_proxies(&self, proxies: Vec<Prefix>) {
        lock(&self.settings).proxies = proxies;
    }

    /// The prefixes whose addresses it answers for.
    pub(crate) fn proxies(&self) -> Vec<Prefix> {
        lock(&self.settings).proxies.clone()
    }

    /// Whether it answers for an address of others: one of the prefixes has it, and no neighbour is
    /// known to have it itself. A lock, a comparison per prefix, and a look among the neighbours.
    pub(crate) fn is_proxy_for(&self, address: IpAddr) -> bool {
        let is_proxied = lock(&self.settings).proxies.iter().any(|one| one.contains(address));
        is_proxied && !lock(&self.neighbors).is_known(address)
    }

    /// Whether neighbour discovery for this group concerns an address that it answers for.
    pub(super) fn proxies_group(proxies: &[Prefix], group: Ipv6Addr) -> bool {
        proxies.iter().any(|&prefix| has_group(prefix, group))
    }

    /// The own address that hosts of the link know it by as a router.
    fn link_local(&self) -> Option<Ipv6Addr> {
        lock(&self.settings).addresses.iter().find_map(|own| match own.ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
            _ => None,
        })
    }

    /// Whether it is a router of its link.
    pub(crate) fn is_router(&self) -> bool {
        lock(&self.settings).is_router
    }

    /// Advertises this from now on; `None` ends it, with a last advertisement that says so. `seed`
    /// spreads the times.
    pub(crate) fn set_router(
        &self,
        visit: Visit,
        advertisement: Option<RouterAdvertisement>,
        seed: u64,
    ) -> Result<(), NetError> {
        if let Some(problem) = advertisement.as_ref().and_then(RouterAdvertisement::fault) {
            return Err(NetError::RouterAdvertisement { problem });
        }
        if advertisement.is_some() && self.link_local().is_none() {
            return Err(NetError::NoLinkLocal(self.id));
        }
        let Some(advertisement) = advertisement else {
            self.end_router(visit);
            return Ok(());
        };
        let mut router = lock(&self.router);
        match router.as_mut() {
            Some(router) => router.change(visit.now, advertisement),
            None => *router = Some(Router::new(visit.now, advertisement, seed)),
        }
        drop(router);
        lock(&self.settings).is_router = true;
        self.housekeeping.schedule(visit.now);
        Ok(())
    }

    /// The link has come up.
    pub(super) fn restart_router(&self, now: Instant) {
        if let Some(router) = lock(&self.router).as_mut() {
            router.restart(now);
            self.housekeeping.schedule(router.deadline());
        }
    }

    /// It is a router no more, and all nodes are told.
    pub(super) fn end_router(&self, visit: Visit) {
        self.withdraw_router(visit);
        *lock(&self.router) = None;
        lock(&self.settings).is_router = false;
    }

    /// Tells all nodes that it is a router no more (RFC 4861 section 6.2.5).
    pub(super) fn withdraw_router(&self, visit: Visit) {
        let router = lock(&self.router);
        let advertisement = router.as_ref().map(|router| router.advertisement.clone());
        drop(router);
        if let Some(advertisement) = advertisement {
            self.advertise(visit, &advertisement, DueTo::All, true);
        }
    }

    /// A host on the link asks for routers.
    pub(crate) fn on_router_solicitation(
        &self,
        visit: Visit,
        from: Ipv6Addr,
        link: Option<LinkAddress>,
    ) {
        let mut router = lock(&self.router);
        let Some(asked) = router.as_mut() else { return };
        asked.on_solicitation(visit.now, from);
        let due = asked.deadline();
        drop(router);
        self.housekeeping.schedule(due);
        self.learn(visit, from, link);
    }

    /// Sends what is due. When to come back, and the packets whose neighbour does not answer.
    pub(super) fn expire_router(&self, visit: Visit) -> (Instant, Vec<Undeliverable>) {
        let mut router = lock(&self.router);
        let Some(one) = router.as_mut() else { return (Instant::FAR_FUTURE, Vec::new()) };
        let due = one.take_due(visit.now);
        let next = one.deadline();
        let advertisement = (!due.is_empty()).then(|| one.advertisement.clone());
        drop(router);
        let mut undeliverable = Vec::new();
        for (to, advertisement) in due.into_iter().zip(advertisement.iter().cycle()) {
            undeliverable.extend(self.advertise(visit, advertisement, to, false));
        }
        (next, undeliverable)
    }

    /// Sends an advertisement, unless the link is down or the link-local address is gone.
    fn advertise(
        &self,
        visit: Visit,
        advertisement: &RouterAdvertisement,
        to: DueTo,
        is_final: bool,
    ) -> Vec<Undeliverable> {
        let source = self.link_local().filter(|_| self.is_up());
        let Some(source) = source else { return Vec::new() };
        let message = advertisement.message(is_final);
        let body = bytes::Bytes::from(advertisement.body(self.link_address()));
        match to {
            DueTo::All => {
                self.send_to_group(visit, source, ALL_NODES, message, body.into());
                Vec::new()
            }
            DueTo::One(host) => {
                let headers = self.discovery_headers(source, host, message, &body.clone().into());
                let frame = Frame { flow: ORPHAN, ..Frame::new(headers, body.into()) };
                self.output(visit, host.into(), frame).undeliverable
            }
        }
    }

    /// Asks all routers of the link to advertise themselves (RFC 4861 section 6.3.7): from the
    /// link-local address, or from none where there is none.
    pub(crate) fn solicit_routers(&self, visit: Visit) {
        let source = self.link_local();
        let source_link = self.link_address().filter(|_| source.is_some());
        let message = icmpv6::Message::RouterSolicitation { source_link };
        let source = source.unwrap_or(Ipv6Addr::UNSPECIFIED);
        self.send_to_group(visit, source, ALL_ROUTERS, message, Payload::new());
    }

    fn send_to_group(
        &self,
        visit: Visit,
        source: Ipv6Addr,
        group: Ipv6Addr,
        message: icmpv6::Message,
        body: Payload,
    ) {
        if let Some(link) = self.link_address() {
            let (from, link) = (Station { ip: source, link }, icmpv6::multicast_link(group));
            return self.send_discovery(visit, from, Station { ip: group, link }, message, body);
        }
        let headers = self.discovery_headers(source, group, message, &body);
        self.enqueue(visit, Frame { flow: ORPHAN, ..Frame::new(headers, body) });
    }

    /// Sends a message of neighbour or router discovery to a station.
    pub(super) fn send_discovery(
        &self,
        visit: Visit,
        from: Station,
        to: Station,
        message: icmpv6::Message,
        body: Payload,
    ) {
        let mut headers = self.discovery_headers(from.ip, to.ip, message, &body);
        let ether_type = ethernet::EtherType::IPV6;
        ethernet::Header { destination: to.link, source: from.link, ether_type }.emit(&mut headers);
        self.enqueue(visit, link_frame(headers, body));
    }

    /// Remembers from now on what routers of the link advertise, or forgets it.
    pub(crate) fn set_hears_routers(&self, is_on: bool) {
        let mut heard = lock(&self.heard);
        match is_on {
            true => drop(heard.get_or_insert_default()),
            false => *heard = None,
        }
    }

    /// A router has advertised itself. Whether that was new to a host that wants to know.
    pub(crate) fn on_router_advertisement(
        &self,
        visit: Visit,
        from: Ipv6Addr,
        message: icmpv6::Message,
        body: &[u8],
    ) -> Result<bool, Unheard> {
        let mut heard = lock(&self.heard);
        let Some(routers) = heard.as_mut() else { return Ok(false) };
        let link = routers.on_advertisement(visit.now, from, message, body)?.link;
        drop(heard);
        self.learn(visit, from, link);
        Ok(true)
    }

    /// Learns the link address that a message of router discovery has brought.
    fn learn(&self, visit: Visit, from: Ipv6Addr, link: Option<LinkAddress>) {
        let has_neighbors = self.link_address().is_some();
        if let Some(link) = link.filter(|link| has_neighbors && !ethernet::is_multicast(*link)) {
            self.on_solicited_by(visit, from.into(), link);
        }
    }

    /// The routers that it has heard of.
    pub(crate) fn heard_routers(&self) -> Vec<HeardRouter> {
        lock(&self.heard).as_ref().map(Heard::list).unwrap_or_default()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_prefix_are_those_of_its_addresses() {
        let group = |address: &str| icmpv6::solicited_node(address.parse().unwrap());
        let has = |prefix: &str, group| has_group(prefix.parse().unwrap(), group);
        for wide in ["fd00::/64", "fd00::/104", "::/0"] {
            assert!(has(wide, group("fd00::12:3456")), "{wide}");
        }
        assert!(has("fd00::12:0/112", group("fd00::12:3456")));
        assert!(!has("fd00::13:0/112", group("fd00::12:3456")));
        assert!(has("fd00::12:3456/128", group("fd00::12:3456")));
        assert!(!has("fd00::12:3457/128", group("fd00::12:3456")));
        assert!(!has("fd00::/64", ALL_NODES));
        assert!(!has("10.0.0.0/8", group("fd00::1")));
    }
}
