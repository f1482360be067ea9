//! Topology of a host: its interfaces, its addresses, and the routes between them.

use super::error::NetError;
use super::interface::{Address, Interface, InterfaceId, Undeliverable};
use super::neighbor::Neighbor;
use super::route::{Prefix, Route, RouteEntry, Routes};
use crate::flow::{is_link_local, named_scope};
use crate::sync::{Mutex, lock};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use neap_tcp::lateness::Departures;
use neap_tcp::time::Instant;
use std::sync::Arc;

/// Largest IP packet that this host sends to itself, in bytes.
pub(crate) const LOOPBACK_MTU: u32 = 65_535;

/// Whether no packet can be from this address. A mapped one stands for a host of IPv4 among the
/// addresses of sockets, and in a packet of IPv6 it would pass for that host (`ip6_rcv_core`).
pub(crate) fn is_nobody(source: IpAddr) -> bool {
    source.is_multicast() || is_mapped(source)
}

/// Whether it names a host of "this network" (RFC 1122 section 3.2.1.3), which no source is but
/// that of who has no address yet.
fn is_of_this_network(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(ip) => ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.is_unspecified(),
    }
}

/// Whether a host that has no address yet speaks to all hosts.
fn is_first_word(source: IpAddr, destination: IpAddr) -> bool {
    source.is_unspecified() && destination == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Whether it is an IPv4-mapped address of IPv6.
fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some())
}

/// Broadcast address of the network of the loopback, 127.0.0.0/8.
const LOOPBACK_BROADCAST: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 255);

/// The addresses of a host, as they were at one generation of the [`Topology`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Locals {
    own: Vec<IpAddr>,
    /// Broadcast addresses of the networks that the host is in.
    broadcast: Vec<Ipv4Addr>,
}

impl Locals {
    /// Whether `address` is this host. Cost: a comparison per address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        (address.is_loopback() && address != LOOPBACK_BROADCAST) || self.own.contains(&address)
    }

    /// Whether packets to `address` stay on this host: it is an own address, or all those of the
    /// loopback. Cost: a comparison per address.
    pub(crate) fn keeps(&self, address: IpAddr) -> bool {
        self.contains(address) || address == LOOPBACK_BROADCAST
    }

    /// Whether packets to `address` go to all hosts of a network. Cost: a comparison per network.
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        let is_fixed = |ip: Ipv4Addr| ip.is_broadcast() || ip == LOOPBACK_BROADCAST;
        matches!(address, IpAddr::V4(ip) if is_fixed(ip) || self.broadcast.contains(&ip))
    }

    /// Whether no packet can be between these addresses; `is_from_outside` says that it came in on
    /// an interface. Cost: a comparison per address and per network.
    pub(crate) fn is_impossible(
        &self,
        source: IpAddr,
        destination: IpAddr,
        is_from_outside: bool,
    ) -> bool {
        is_nobody(source)
            || self.is_broadcast(source)
            || (is_of_this_network(source) && !is_first_word(source, destination))
            || (is_from_outside
                && (source.is_loopback()
                    || destination.is_loopback()
                    || is_mapped(destination)
                    // Nobody's connection to itself leaves its host.
                    || source == destination
                    || self.contains(source)))
    }

    /// Whether `address` may be that of one host elsewhere, so that an interface which takes any
    /// destination takes packets to it. IPv4-mapped addresses are not: sockets take them for IPv4
    /// addresses. Cost: a comparison per network.
    pub(crate) fn may_be_foreign(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(ip) => {
                let is_this_network = ip.octets()[0] == 0;
                let is_group = ip.is_multicast() || self.is_broadcast(address);
                !(is_this_network || ip.is_loopback() || is_group)
            }
            IpAddr::V6(ip) => {
                let is_local = ip.is_unspecified() || ip.is_loopback();
                !is_local && !is_nobody(address)
            }
        }
    }

    fn add(&mut self, address: &Address) {
        self.own.push(address.ip);
        self.broadcast.extend(address.prefix.broadcast());
    }
}

/// Way by which a packet leaves.
#[derive(Clone, Debug)]
pub(crate) enum NextHop {
    /// Back to this host.
    Loopback,
    /// To the neighbour with this address on an interface.
    Neighbor(Arc<Interface>, IpAddr),
}

impl NextHop {
    /// Whether all hosts of a link are meant.
    pub(crate) fn is_broadcast(&self) -> bool {
        matches!(self, Self::Neighbor(_, IpAddr::V4(Ipv4Addr::BROADCAST)))
    }
}

/// The way to one destination, as it was found (Linux's `dst_entry`).
#[derive(Clone, Debug)]
pub(crate) struct ResolvedRoute {
    /// The generation of the topology that it was found in.
    generation: u64,
    /// When the way is to be looked for again, because what ICMP taught of its MTU is forgotten.
    expires: Instant,
    pub(crate) next_hop: NextHop,
    /// Largest IP packet in bytes, what ICMP taught included.
    pub(crate) mtu: u32,
}

impl ResolvedRoute {
    /// The interface that it leaves by; `None` on the loopback.
    pub(crate) fn interface(&self) -> Option<InterfaceId> {
        match &self.next_hop {
            NextHop::Loopback => None,
            NextHop::Neighbor(interface, _) => Some(interface.id()),
        }
    }

    /// Whether the way is still right: nothing has changed in `topology`, nothing is forgotten.
    pub(crate) fn is_current(&self, topology: &Topology, now: Instant) -> bool {
        self.generation == topology.generation() && now < self.expires
    }
}

/// The largest packet that an interface takes by a route, in bytes.
fn mtu_of_link(route: &Route, interface: &Interface) -> u32 {
    let of_interface = u32::from(interface.mtu());
    route.mtu.map_or(of_interface, |mtu| mtu.min(of_interface))
}

/// Reason why no address of this host can be the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSource {
    /// No route leads to the destination.
    NoRoute,
    /// The interface on the way has no address of the destination's family.
    NoAddress,
}

/// Interfaces, addresses and routes of a host. One mutex; sockets keep what they found, with the
/// generation that it belongs to.
#[derive(Debug)]
pub(crate) struct Topology {
    tables: Mutex<Tables>,
    /// The generation of routes, interfaces and addresses together; read without the lock.
    generation: AtomicU64,
    /// Interfaces that were named.
    named: AtomicU32,
    /// Whether an interface takes any destination; read without the lock.
    takes_foreign: AtomicBool,
}

#[derive(Debug)]
struct Tables {
    /// By their names.
    interfaces: Vec<Arc<Interface>>,
    routes: Routes,
    /// Routes that are there because an address is: one for each network.
    connected: Vec<RouteEntry>,
    /// Counts the changes of interfaces and addresses.
    changes: u64,
    locals: Arc<Locals>,
}

impl Tables {
    fn generation(&self) -> u64 {
        self.routes.generation() + self.changes
    }

    fn interface(&self, id: InterfaceId) -> Result<&Arc<Interface>, NetError> {
        let at = self.interfaces.binary_search_by_key(&id, |interface| interface.id());
        at.map(|at| &self.interfaces[at]).map_err(|_| NetError::NoInterface(id))
    }

    /// The route to `remote`, its interface and the neighbour that it leads through; `None` if
    /// there is no route through an interface that is enabled, which is `only` if that is given. As
    /// in Linux (`fib_lookup` for a `flowi4_oif`), what no route through `only` leads to is on its
    /// link. A broadcast address has no router, and neither has a group (RFC 1112 section 6.4) or a
    /// link-local address of IPv6.
    fn route(
        &self,
        remote: IpAddr,
        only: Option<InterfaceId>,
    ) -> Option<(Route, &Arc<Interface>, IpAddr)> {
        let may_use = |id| {
            only.is_none_or(|only| only == id)
                && self.interface(id).is_ok_and(|interface| interface.is_enabled())
        };
        // Addresses that stand for IPv4's are on no wire, as those of `IPV6_V6ONLY` sockets find.
        if matches!(remote, IpAddr::V6(remote) if remote.to_ipv4_mapped().is_some()) {
            return None;
        }
        let on_link = |interface| Route { interface, gateway: None, mtu: None, pref_src: None };
        let route = match self.routes.lookup(remote, may_use) {
            // No router has a link-local address behind it (RFC 4291 section 2.5.6).
            Some(route) if route.gateway.is_some() && is_link_local(remote) => {
                on_link(route.interface)
            }
            Some(route) => route,
            None => on_link(only.filter(|id| may_use(*id))?),
        };
        let interface = self.interface(route.interface).ok()?;
        if self.locals.is_broadcast(remote) {
            return Some((route, interface, Ipv4Addr::BROADCAST.into()));
        }
        if remote.is_multicast() {
            return Some((route, interface, remote));
        }
        Some((route, interface, route.next_hop(remote)))
    }

    /// The routes that the addresses of now bring: of several addresses in one network the first is
    /// where packets come from.
    fn wanted(&self) -> Vec<RouteEntry> {
        let mut wanted: Vec<RouteEntry> = Vec::new();
        // A disabled interface keeps no network from another one.
        let enabled = self.interfaces.iter().filter(|interface| interface.is_enabled());
        let disabled = self.interfaces.iter().filter(|interface| !interface.is_enabled());
        for interface in enabled.chain(disabled) {
            for Address { ip, prefix } in interface.addresses() {
                if wanted.iter().any(|entry| entry.prefix == prefix) {
                    continue;
                }
                let route = Route {
                    interface: interface.id(),
                    gateway: None,
                    mtu: None,
                    pref_src: Some(ip),
                };
                wanted.push(RouteEntry { prefix, metric: 0, route });
            }
        }
        wanted
    }

    /// Interfaces or addresses have changed: brings what follows from them into line. Costs
    /// O(addresses * routes).
    fn follow_addresses(&mut self) {
        let mut locals = Locals::default();
        for address in self.interfaces.iter().flat_map(|interface| interface.addresses()) {
            locals.add(&address);
        }
        self.locals = Arc::new(locals);
        let wanted = self.wanted();
        let Self { routes, connected, locals, .. } = self;
        for old in connected.iter().filter(|old| !wanted.contains(old)) {
            routes.remove_all(|entry| entry == old);
        }
        for new in wanted.iter().filter(|new| !connected.contains(new)) {
            if routes.get(new.prefix, new.metric).is_none() {
                routes.add(*new);
            }
        }
        // As in Linux (`fib_sync_down_addr`), routes go with the source that they prefer.
        let is_foreign = |ip| !locals.contains(ip);
        routes.remove_all(|entry| entry.route.pref_src.is_some_and(is_foreign));
        *connected = wanted;
        self.changes += 1;
    }

    /// Why there can be no such route, if that is so.
    fn check_route(&self, entry: &RouteEntry) -> Result<(), NetError> {
        let Route { interface, gateway, pref_src, .. } = entry.route;
        let prefix = entry.prefix;
        let known = self.interface(interface)?;
        for (argument, address) in [("gateway", gateway), ("pref_src", pref_src)] {
            if let Some(address) = address
                && address.is_ipv4() != prefix.network().is_ipv4()
            {
                return Err(NetError::Family { argument, address, prefix });
            }
        }
        if let Some(address) = pref_src
            && !self.locals.contains(address)
        {
            return Err(NetError::NotOwn { address });
        }
        let Some(gateway) = gateway else { return Ok(()) };
        if self.locals.contains(gateway) {
            return Err(NetError::GatewayIsOwn { gateway });
        }
        let is_on_link = |entry: &RouteEntry| {
            let Route { interface: through, gateway: of, .. } = entry.route;
            through == interface && of.is_none() && entry.prefix.contains(gateway)
        };
        // Every link with IPv6 has the network of link-local addresses.
        let is_neighbor = is_link_local(gateway) && known.has_v6();
        if !is_neighbor && !self.routes.entries().iter().any(is_on_link) {
            return Err(NetError::GatewayUnreachable { gateway, interface });
        }
        Ok(())
    }
}

impl Topology {
    pub(crate) fn new(seed: u64) -> Self {
        let routes = Routes::new(seed);
        let generation = AtomicU64::new(routes.generation());
        let tables = Tables {
            interfaces: Vec::new(),
            routes,
            connected: Vec::new(),
            changes: 0,
            locals: Arc::default(),
        };
        Self {
            tables: Mutex::new(tables),
            generation,
            named: AtomicU32::new(0),
            takes_foreign: AtomicBool::new(false),
        }
    }

    /// A name for an interface that is about to be made.
    pub(crate) fn name_interface(&self) -> InterfaceId {
        InterfaceId(self.named.fetch_add(1, Ordering::Relaxed))
    }

    /// Changes whenever an earlier answer may have become wrong.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn change<R>(&self, change: impl FnOnce(&mut Tables) -> R) -> R {
        let mut tables = lock(&self.tables);
        let answer = change(&mut tables);
        let takes_foreign = tables.interfaces.iter().any(|one| one.takes_any_destination());
        self.takes_foreign.store(takes_foreign, Ordering::Relaxed);
        self.generation.store(tables.generation(), Ordering::Release);
        answer
    }

    /// Lets all sockets look again at what they found, and at the settings of their host.
    pub(crate) fn note_change(&self) {
        self.change(|tables| tables.changes += 1);
    }

    /// An interface was enabled or disabled.
    pub(crate) fn follow_links(&self) {
        self.change(Tables::follow_addresses);
    }

    /// Adds an interface and the routes to its networks.
    pub(crate) fn add(&self, interface: Arc<Interface>) {
        self.change(|tables| {
            let at = tables.interfaces.partition_point(|one| one.id() < interface.id());
            tables.interfaces.insert(at, interface);
            tables.follow_addresses();
        });
    }

    /// Takes an interface out, with its addresses and all routes through it.
    pub(crate) fn remove(&self, id: InterfaceId) -> Result<Arc<Interface>, NetError> {
        self.change(|tables| {
            tables.interface(id)?;
            let gone = tables.interfaces.extract_if(.., |one| one.id() == id).next();
            tables.routes.remove_all(|entry| entry.route.interface == id);
            tables.follow_addresses();
            gone.ok_or(NetError::NoInterface(id))
        })
    }

    /// Gives an interface one more address, and the host a route to its network.
    pub(crate) fn add_address(&self, id: InterfaceId, address: Address) -> Result<(), NetError> {
        self.change(|tables| {
            tables.interface(id)?.add_address(address)?;
            tables.follow_addresses();
            Ok(())
        })
    }

    /// Takes an address away. The route to its network goes with the last address in it; with the
    /// last IPv4 address of the interface go all IPv4 routes through it (`fib_disable_ip`).
    pub(crate) fn remove_address(
        &self,
        id: InterfaceId,
        address: IpAddr,
    ) -> Result<Address, NetError> {
        self.change(|tables| {
            let interface = tables.interface(id)?.clone();
            let gone = interface.remove_address(address)?;
            let is_v4 = |ip: IpAddr| ip.is_ipv4();
            if is_v4(address) && !interface.addresses().iter().any(|own| is_v4(own.ip)) {
                let is_of = |entry: &RouteEntry| is_v4(entry.prefix.network());
                tables.routes.remove_all(|entry| entry.route.interface == id && is_of(entry));
            }
            tables.follow_addresses();
            Ok(gone)
        })
    }

    /// Adds a route.
    pub(crate) fn add_route(&self, entry: RouteEntry) -> Result<(), NetError> {
        self.change(|tables| {
            tables.check_route(&entry)?;
            let RouteEntry { prefix, metric, .. } = entry;
            if tables.routes.get(prefix, metric).is_some() {
                return Err(NetError::RouteExists { prefix, metric });
            }
            tables.routes.add(entry);
            Ok(())
        })
    }

    /// Adds a route, in the place of that of the same prefix and metric, which is returned.
    pub(crate) fn replace_route(&self, entry: RouteEntry) -> Result<Option<RouteEntry>, NetError> {
        self.change(|tables| {
            tables.check_route(&entry)?;
            let old = tables.routes.get(entry.prefix, entry.metric).copied();
            tables.routes.add(entry);
            Ok(old)
        })
    }

    /// Removes the first route of a prefix through an interface, of this metric if one is given.
    pub(crate) fn remove_route(
        &self,
        prefix: Prefix,
        interface: InterfaceId,
        metric: Option<u32>,
    ) -> Result<RouteEntry, NetError> {
        self.change(|tables| {
            tables.interface(interface)?;
            let gone = tables.routes.remove(prefix, interface, metric);
            gone.ok_or(NetError::NoRoute { prefix, interface })
        })
    }

    pub(crate) fn routes(&self) -> Vec<RouteEntry> {
        lock(&self.tables).routes.entries().to_vec()
    }

    /// The way to `remote`; `None` if it is unreachable.
    pub(crate) fn resolve(&self, now: Instant, remote: IpAddr) -> Option<ResolvedRoute> {
        self.resolve_through(now, None, remote, None)
    }

    /// Whether packets to `local` are taken although it is no own address: an interface takes any
    /// destination. A load where none does.
    pub(crate) fn is_foreign(&self, local: IpAddr) -> bool {
        self.takes_foreign.load(Ordering::Relaxed) && !self.locals().contains(local)
    }

    /// The way from an own address to `remote`, through the interface `only` if one is given;
    /// `None` if it is unreachable, or `local` is no own address any more, or a loopback address
    /// and `remote` is another host.
    pub(crate) fn resolve_through(
        &self,
        now: Instant,
        local: Option<IpAddr>,
        remote: IpAddr,
        only: Option<InterfaceId>,
    ) -> Option<ResolvedRoute> {
        let tables = lock(&self.tables);
        let generation = tables.generation();
        let mut expires = Instant::FAR_FUTURE;
        if local.is_some_and(|local| !tables.locals.contains(local)) {
            return None;
        }
        if tables.locals.keeps(remote) {
            let (next_hop, mtu) = (NextHop::Loopback, LOOPBACK_MTU);
            return Some(ResolvedRoute { generation, expires, next_hop, mtu });
        }
        // A packet from an address that every host has stays on its host (RFC 1122 section
        // 3.2.1.3 (g), RFC 4291 section 2.5.3).
        if local.is_some_and(|local| local.is_loopback()) {
            return None;
        }
        let (route, interface, neighbor) = tables.route(remote, only)?;
        let mut mtu = mtu_of_link(&route, interface);
        if let Some((known, forgotten)) = tables.routes.path_mtu(now, remote) {
            (mtu, expires) = (mtu.min(known), forgotten);
        }
        let next_hop = NextHop::Neighbor(interface.clone(), neighbor);
        Some(ResolvedRoute { generation, expires, next_hop, mtu })
    }

    /// The largest packet that the link takes by which packets to `remote` leave; `None` if it is
    /// unreachable.
    pub(crate) fn link_mtu(&self, remote: IpAddr) -> Option<u32> {
        let tables = lock(&self.tables);
        if tables.locals.keeps(remote) {
            return Some(LOOPBACK_MTU);
        }
        let (route, interface, _) = tables.route(remote, None)?;
        Some(mtu_of_link(&route, interface))
    }

    /// The interface that a socket reaches `remote` by, and by no other from then on. An address of
    /// a link names it by its scope; a link-local one without a scope is on the first link that has
    /// a route to it. `None` for other addresses, and for those of this host.
    pub(crate) fn link_to(&self, remote: SocketAddr) -> Result<Option<InterfaceId>, NoSource> {
        let (ip, scope) = (remote.ip(), named_scope(remote));
        if scope == 0 && !is_link_local(ip) {
            return Ok(None);
        }
        let tables = lock(&self.tables);
        if tables.locals.contains(ip) {
            return Ok(None);
        }
        let found = match scope {
            0 => tables.route(ip, None).map(|(route, ..)| route.interface),
            scope => InterfaceId::from_index(scope),
        };
        found.map(Some).ok_or(NoSource::NoRoute)
    }

    /// The interface by which datagrams from the own address `local` to a group, or to all hosts of
    /// a link, leave whatever the routes say (`ip_route_output_key_hash_rcu`). `None` for other
    /// destinations, and for those of the other family. Two comparisons for other destinations.
    pub(crate) fn link_of_many(&self, local: IpAddr, remote: IpAddr) -> Option<InterfaceId> {
        let is_of_many = remote.is_multicast() || remote == Ipv4Addr::BROADCAST;
        if !is_of_many || local.is_ipv4() != remote.is_ipv4() {
            return None;
        }
        let interfaces = &lock(&self.tables).interfaces;
        interfaces.iter().find(|interface| interface.has(local)).map(|interface| interface.id())
    }

    /// Whether packets to `remote` may be from the own address `local`, through the interface
    /// `only` if one is given: a link-local one is on one link alone (RFC 4007 section 6). What has
    /// no way is not judged.
    pub(crate) fn is_on_way(
        &self,
        local: IpAddr,
        remote: IpAddr,
        only: Option<InterfaceId>,
    ) -> bool {
        if !is_link_local(local) {
            return true;
        }
        let tables = lock(&self.tables);
        let has_own = |(_, interface, _): (_, &Arc<Interface>, _)| interface.has(local);
        tables.locals.contains(remote) || tables.route(remote, only).is_none_or(has_own)
    }

    /// The own address that packets to `remote` are sent from where nothing else is said; through
    /// the interface `only` if one is given.
    pub(crate) fn source_for(
        &self,
        remote: IpAddr,
        only: Option<InterfaceId>,
    ) -> Result<IpAddr, NoSource> {
        let tables = lock(&self.tables);
        if tables.locals.contains(remote) {
            return Ok(remote);
        }
        if tables.locals.keeps(remote) {
            return Ok(Ipv4Addr::LOCALHOST.into());
        }
        let (route, interface, neighbor) = tables.route(remote, only).ok_or(NoSource::NoRoute)?;
        let source = route.pref_src.or_else(|| interface.source_towards(remote, neighbor));
        source.ok_or(NoSource::NoAddress)
    }

    /// Believes that no more than `mtu` bytes reach `remote`, where `current` did so far.
    pub(crate) fn on_packet_too_big(&self, now: Instant, remote: IpAddr, mtu: u32, current: u32) {
        self.change(|tables| tables.routes.on_packet_too_big(now, remote, mtu, current));
    }

    pub(crate) fn locals(&self) -> Arc<Locals> {
        lock(&self.tables).locals.clone()
    }

    pub(crate) fn interface(&self, id: InterfaceId) -> Result<Arc<Interface>, NetError> {
        lock(&self.tables).interface(id).cloned()
    }

    pub(crate) fn interfaces(&self) -> Vec<Arc<Interface>> {
        lock(&self.tables).interfaces.clone()
    }

    /// The neighbours of all interfaces.
    pub(crate) fn neighbors(&self, now: Instant) -> Vec<(InterfaceId, Neighbor)> {
        let of = |interface: &Arc<Interface>| {
            let id = interface.id();
            interface.neighbors(now).into_iter().map(move |neighbor| (id, neighbor))
        };
        self.interfaces().iter().flat_map(of).collect()
    }

    /// Adds how late the qdiscs let frames go that they held until their departure.
    pub(crate) fn add_departures(&self, departures: &mut Departures) {
        for interface in self.interfaces() {
            interface.ports().iter().for_each(|port| port.add_departures(departures));
        }
    }

    /// Lets all interfaces ask again what neighbours did not answer, and advertise what is due.
    /// When to come back, and the frames whose neighbour does not answer.
    pub(crate) fn expire(&self, visit: super::Visit) -> (Instant, Vec<Undeliverable>) {
        let (mut next, mut undeliverable) = (Instant::FAR_FUTURE, Vec::new());
        for interface in self.interfaces() {
            let (due, frames) = interface.expire(visit);
            next = next.min(due);
            undeliverable.extend(frames);
        }
        (next, undeliverable)
    }
}
