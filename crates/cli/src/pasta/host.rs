//! The interface of this host that a namespace takes after: its addresses and its routes.

use super::netlink;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHop,
    RouteNextHopFlags, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use rustix::net::netdevice::{index_to_name, name_to_index};
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::IpAddr;

/// Most addresses, and most routes, of one family that another interface gets. A host with more
/// routes has a routing protocol, and its routes are none for a container.
const MOST_COPIED: usize = 2048;

/// What a namespace takes after, of both families.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) v4: Option<Template>,
    pub(super) v6: Option<Template>,
    /// Whether the kernel has IPv6.
    pub(super) has_v6: bool,
}

/// What one interface has of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Template {
    pub(super) interface: String,
    /// The address that stands for the host, with its prefix length.
    pub(super) address: Option<(IpAddr, u8)>,
    /// The router of the default route.
    pub(super) gateway: Option<IpAddr>,
    /// Addresses to give to another interface: the first 2048.
    pub(super) addresses: Vec<AddressMessage>,
    /// Routes to give to another interface; `None` if there are more than 2048.
    pub(super) routes: Option<Vec<RouteMessage>>,
}

impl Host {
    /// Asks the kernel. `named` are the interfaces to take after, of IPv4 and of IPv6; without a
    /// name it is the one with the default route, and without that the only one that has routes.
    ///
    /// # Errors
    /// As [`netlink::dump`].
    pub(super) fn ask(named: [Option<&str>; 2]) -> io::Result<Self> {
        let ([v4, v6], has_v6) = (named, has_v6());
        let v6 = has_v6.then(|| Template::ask(AddressFamily::Inet6, v6)).transpose()?;
        Ok(Self { v4: Template::ask(AddressFamily::Inet, v4)?, v6: v6.flatten(), has_v6 })
    }
}

/// Whether the kernel has IPv6, which `ipv6.disable=1` switches off.
fn has_v6() -> bool {
    let refused = Socket::new(Domain::IPV6, Type::DGRAM, None).err();
    let refused = refused.and_then(|error| error.raw_os_error());
    refused != Some(Errno::AFNOSUPPORT.raw_os_error())
}

/// Whether this host has an interface of this name.
pub(super) fn has_interface(name: &str) -> bool {
    any_socket().is_ok_and(|socket| name_to_index(socket, name).is_ok())
}

/// A socket for questions about interfaces.
fn any_socket() -> io::Result<Socket> {
    Socket::new(Domain::UNIX, Type::DGRAM, None)
}

impl Template {
    /// `None` if there is no such interface.
    fn ask(family: AddressFamily, named: Option<&str>) -> io::Result<Option<Self>> {
        let socket = any_socket()?;
        let index = match named {
            Some(name) => name_to_index(&socket, name).ok(),
            None => leading(family)?,
        };
        let Some(index) = index else { return Ok(None) };
        let mut template = Self { interface: index_to_name(&socket, index)?, ..Self::default() };
        template.ask_addresses(family, index)?;
        template.ask_routes(family, index)?;
        Ok(Some(template))
    }

    fn ask_addresses(&mut self, family: AddressFamily, index: u32) -> io::Result<()> {
        let mut wanted = AddressMessage::default();
        wanted.header.family = family;
        netlink::dump(RouteNetlinkMessage::GetAddress(wanted), |message| {
            let RouteNetlinkMessage::NewAddress(one) = message else { return };
            if one.header.index != index {
                return;
            }
            // The most specific one, and the first of equals.
            if stands_for_host(&one)
                && let Some(own) = local(&one)
                && self.address.is_none_or(|best| own.1 > best.1)
            {
                self.address = Some(own);
            }
            // One that the host gives up would be preferred for ever as a copy.
            let is_copied = one.header.scope != AddressScope::Link && !is_deprecated(&one);
            if is_copied && self.addresses.len() < MOST_COPIED {
                self.addresses.push(one);
            }
        })
    }

    fn ask_routes(&mut self, family: AddressFamily, index: u32) -> io::Result<()> {
        let (mut routes, mut gateway) = (Some(Vec::new()), None);
        each_route(family, |route| {
            let Some(route) = by_interface(route, index) else { return };
            if is_default(&route) {
                gateway.get_or_insert_with(|| first_hop(&route).1);
            }
            match &mut routes {
                Some(few) if few.len() < MOST_COPIED => few.push(route),
                _ => routes = None,
            }
        })?;
        (self.routes, self.gateway) = (routes, gateway.flatten());
        Ok(())
    }
}

/// The interface with the default route of a family; without one the only interface that routes
/// lead to, besides those to link-local addresses.
fn leading(family: AddressFamily) -> io::Result<Option<u32>> {
    let (mut default, mut first, mut is_only) = (None, None, true);
    each_route(family, |route| {
        let Some(interface) = first_hop(&route).0 else { return };
        if is_default(&route) {
            default.get_or_insert(interface);
        }
        if !is_link_local(&route) {
            is_only &= *first.get_or_insert(interface) == interface;
        }
    })?;
    Ok(default.or(first.filter(|_| is_only)))
}

/// The routes of a family that a namespace could have.
fn each_route(family: AddressFamily, mut take: impl FnMut(RouteMessage)) -> io::Result<()> {
    let mut wanted = RouteMessage::default();
    wanted.header.address_family = family;
    netlink::dump(RouteNetlinkMessage::GetRoute(wanted), |message| {
        if let RouteNetlinkMessage::NewRoute(route) = message
            && is_main(&route)
        {
            take(route);
        }
    })
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

/// What is left of a route if an interface is the only one; `None` if it leads to others only.
fn by_interface(mut route: RouteMessage, index: u32) -> Option<RouteMessage> {
    let mut only = None;
    let leads = route.attributes.iter_mut().any(|attribute| match attribute {
        RouteAttribute::Oif(interface) => *interface == index,
        RouteAttribute::MultiPath(hops) => {
            hops.retain(|hop| hop.interface_index == index);
            only = if hops.len() == 1 { hops.pop() } else { None };
            only.is_some() || !hops.is_empty()
        }
        _ => false,
    });
    // One hop is a plain route.
    if let Some(hop) = only {
        route.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::MultiPath(_)));
        route.attributes.push(RouteAttribute::Oif(index));
        route.attributes.extend(hop.attributes);
        if hop.flags.contains(RouteNextHopFlags::Onlink) {
            route.header.flags |= RouteFlags::Onlink;
        }
    }
    leads.then_some(route)
}

/// Takes away the source address of routes that is none of `own`: the kernel refuses them.
pub(super) fn forget_other_sources(routes: &mut [RouteMessage], own: &[IpAddr]) {
    for route in routes {
        route.attributes.retain(|attribute| match attribute {
            RouteAttribute::PrefSource(source) => ip(source).is_some_and(|ip| own.contains(&ip)),
            _ => true,
        });
    }
}

/// Whether an address is one that others know the host by.
fn stands_for_host(address: &AddressMessage) -> bool {
    !is_deprecated(address) && address.header.scope == AddressScope::Universe
}

fn is_deprecated(address: &AddressMessage) -> bool {
    address.header.flags.contains(AddressHeaderFlags::Deprecated)
        || flags(address).contains(AddressFlags::Deprecated)
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
