//! The interface of this host that a namespace takes after: its addresses and its routes.

use super::netlink;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHop,
    RouteNextHopFlags, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::IpAddr;

/// Networks of this host, as the kernel tells them.
#[derive(Debug)]
pub(super) struct Host {
    links: Vec<(u32, String)>,
    addresses: Vec<AddressMessage>,
    routes: Vec<RouteMessage>,
}

/// What one interface has of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Template {
    pub(super) interface: String,
    /// The address that stands for the host, with its prefix length.
    pub(super) address: Option<(IpAddr, u8)>,
    /// The router of the default route.
    pub(super) gateway: Option<IpAddr>,
    /// Addresses and routes to give to another interface.
    pub(super) addresses: Vec<AddressMessage>,
    pub(super) routes: Vec<RouteMessage>,
}

impl Host {
    /// Asks the kernel.
    ///
    /// # Errors
    /// As [`netlink::dump`].
    pub(super) fn ask() -> io::Result<Self> {
        let mut links = Vec::new();
        for message in netlink::dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))? {
            let RouteNetlinkMessage::NewLink(link) = message else { continue };
            for attribute in link.attributes {
                if let LinkAttribute::IfName(name) = attribute {
                    links.push((link.header.index, name));
                }
            }
        }
        let addresses = netlink::dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        let addresses = addresses.into_iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewAddress(address) => Some(address),
            _ => None,
        });
        let routes = netlink::dump(RouteNetlinkMessage::GetRoute(RouteMessage::default()))?;
        let routes = routes.into_iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewRoute(route) if is_main(&route) => Some(route),
            _ => None,
        });
        Ok(Self { links, addresses: addresses.collect(), routes: routes.collect() })
    }

    /// Whether there is an interface of this name.
    pub(super) fn has(&self, interface: &str) -> bool {
        self.links.iter().any(|(_, name)| name == interface)
    }

    /// What the interface with the default route has of a family, or the named one; without a
    /// default route the only one that has routes.
    pub(super) fn template(&self, is_v6: bool, named: Option<&str>) -> Option<Template> {
        let family = if is_v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let of_family = |route: &&RouteMessage| route.header.address_family == family;
        let routes: Vec<_> = self.routes.iter().filter(of_family).collect();
        let index = match named {
            Some(named) => self.links.iter().find(|(_, name)| name == named)?.0,
            None => with_default_route(&routes).or_else(|| only_one(&routes))?,
        };
        let interface = self.links.iter().find(|(number, _)| *number == index)?.1.clone();
        let routes = routes.into_iter().filter(|route| leads_to(route, index));
        let routes: Vec<_> = routes.cloned().collect();
        let default = routes.iter().find(|route| is_default(route));
        let gateway = default.and_then(|route| first_hop(route).1);
        let of_index =
            |one: &&AddressMessage| one.header.index == index && one.header.family == family;
        let addresses: Vec<_> = self.addresses.iter().filter(of_index).cloned().collect();
        let own = addresses.iter().filter(|one| stands_for_host(one)).filter_map(local);
        // The most specific one, and the first of equals.
        let address = own.reduce(|best, other| if other.1 > best.1 { other } else { best });
        let addresses = addresses.into_iter().filter(|one| one.header.scope != AddressScope::Link);
        let addresses = addresses.collect();
        Some(Template { interface, address, gateway, addresses, routes })
    }
}

/// Unicast routes of the main table, which the host has not made on the fly.
fn is_main(route: &RouteMessage) -> bool {
    let table = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    let table = table.unwrap_or(route.header.table.into());
    route.header.kind == RouteType::Unicast && table == u32::from(RouteHeader::RT_TABLE_MAIN)
}

fn is_default(route: &RouteMessage) -> bool {
    route.header.destination_prefix_length == 0
}

fn with_default_route(routes: &[&RouteMessage]) -> Option<u32> {
    routes.iter().find(|route| is_default(route)).and_then(|route| first_hop(route).0)
}

/// The only interface that routes lead to, besides those to link-local addresses.
fn only_one(routes: &[&RouteMessage]) -> Option<u32> {
    let real = routes.iter().filter(|route| !is_link_local(route));
    let mut interfaces = real.filter_map(|route| first_hop(route).0);
    let first = interfaces.next()?;
    interfaces.all(|other| other == first).then_some(first)
}

fn is_link_local(route: &RouteMessage) -> bool {
    route.attributes.iter().any(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet6(v6)) => {
            v6.is_unicast_link_local() || v6.is_multicast()
        }
        _ => false,
    })
}

/// Interface and router of a route; of several hops those of the greatest weight.
fn first_hop(route: &RouteMessage) -> (Option<u32>, Option<IpAddr>) {
    let (mut interface, mut gateway) = (None, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(router) => gateway = ip(router),
            RouteAttribute::MultiPath(hops) => {
                let heaviest = hops.iter().rev().max_by_key(|hop| hop.hops);
                return heaviest.map_or((None, None), |hop| (Some(hop.interface_index), via(hop)));
            }
            _ => {}
        }
    }
    (interface, gateway)
}

fn via(hop: &RouteNextHop) -> Option<IpAddr> {
    hop.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(router) => ip(router),
        _ => None,
    })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

/// Whether all hops of a route are behind an interface.
fn leads_to(route: &RouteMessage, index: u32) -> bool {
    let mut hops = route.attributes.iter().filter_map(|attribute| match attribute {
        RouteAttribute::Oif(interface) => Some(*interface == index),
        RouteAttribute::MultiPath(hops) => {
            Some(hops.iter().any(|hop| hop.interface_index == index))
        }
        _ => None,
    });
    hops.next().is_some_and(|leads| leads)
}

/// Whether an address is one that others know the host by.
fn stands_for_host(address: &AddressMessage) -> bool {
    let is_deprecated = address.header.flags.contains(AddressHeaderFlags::Deprecated)
        || flags(address).contains(AddressFlags::Deprecated);
    !is_deprecated && address.header.scope == AddressScope::Universe
}

fn flags(address: &AddressMessage) -> AddressFlags {
    let flags = address.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Flags(flags) => Some(*flags),
        _ => None,
    });
    flags.unwrap_or(AddressFlags::empty())
}

/// The interface's own address, with the length of its prefix.
pub(super) fn local(address: &AddressMessage) -> Option<(IpAddr, u8)> {
    let (mut own, mut peer) = (None, None);
    for attribute in &address.attributes {
        match attribute {
            AddressAttribute::Local(local) => own = Some(*local),
            AddressAttribute::Address(address) => peer = Some(*address),
            _ => {}
        }
    }
    own.or(peer).map(|ip| (ip, address.header.prefix_len))
}

/// An address of the host as one of the interface `index` in another namespace: for ever, without
/// duplicate address detection, as nobody else is on the link.
pub(super) fn address_for(mut address: AddressMessage, index: u32) -> AddressMessage {
    use netlink_packet_route::address::AddressAttribute as Attribute;
    let flags = flags(&address);
    // The kernel says what is its own business in the other flags.
    let kept = flags & AddressFlags::Noprefixroute | AddressFlags::Nodad;
    address.header.index = index;
    address.header.flags = AddressHeaderFlags::Nodad;
    address.attributes.retain(|attribute| {
        matches!(
            attribute,
            Attribute::Address(_)
                | Attribute::Local(_)
                | Attribute::Broadcast(_)
                | Attribute::RoutePriority(_)
        )
    });
    address.attributes.push(Attribute::Flags(kept));
    address
}

/// A route of the host as one of the interface `index` in another namespace.
pub(super) fn route_for(mut route: RouteMessage, index: u32) -> RouteMessage {
    use netlink_packet_route::route::RouteAttribute as Attribute;
    route.header.flags &= RouteFlags::Onlink;
    route.attributes.retain(|attribute| {
        matches!(
            attribute,
            Attribute::Destination(_)
                | Attribute::Source(_)
                | Attribute::Gateway(_)
                | Attribute::Via(_)
                | Attribute::PrefSource(_)
                | Attribute::Oif(_)
                | Attribute::Priority(_)
                | Attribute::Metrics(_)
                | Attribute::MultiPath(_)
                | Attribute::Preference(_)
        )
    });
    for attribute in &mut route.attributes {
        match attribute {
            Attribute::Oif(interface) => *interface = index,
            Attribute::MultiPath(hops) => {
                for hop in hops {
                    hop.interface_index = index;
                    hop.flags &= RouteNextHopFlags::Onlink;
                }
            }
            _ => {}
        }
    }
    route
}
