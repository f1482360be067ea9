//! Topology of a host: its interfaces, its addresses, and the routes between them.

use super::interface::{Address, Interface, InterfaceId, InterfaceInfo};
use super::route::{Prefix, Route, RouteEntry, Routes};
use crate::frame::Frame;
use crate::sync::{Mutex, lock};
use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::{AtomicU64, Ordering};
use neap_tcp::lateness::Departures;
use neap_tcp::time::Instant;
use std::sync::Arc;

/// Largest IP packet that this host sends to itself, in bytes.
pub(crate) const LOOPBACK_MTU: u32 = 65_535;

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
        address.is_loopback() || self.own.contains(&address)
    }

    /// Whether packets to `address` go to all hosts of a network. Cost: a comparison per network.
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(ip) if ip.is_broadcast() || self.broadcast.contains(&ip))
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
    /// Whether the way is still right: nothing has changed in `topology`, nothing is forgotten.
    pub(crate) fn is_current(&self, topology: &Topology, now: Instant) -> bool {
        self.generation == topology.generation() && now < self.expires
    }
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
}

#[derive(Debug)]
struct Tables {
    interfaces: Vec<Arc<Interface>>,
    routes: Routes,
    /// Counts the changes of interfaces and addresses.
    changes: u64,
    locals: Arc<Locals>,
}

impl Tables {
    fn generation(&self) -> u64 {
        self.routes.generation() + self.changes
    }

    /// The route to `remote`, its interface and the neighbour that it leads through; `None` if
    /// there is no route.
    fn route(&self, remote: IpAddr) -> Option<(Route, &Arc<Interface>, IpAddr)> {
        let route = self.routes.lookup(remote)?;
        let interface = self.interfaces.get(route.interface)?;
        Some((route, interface, route.next_hop(remote)))
    }
}

impl Topology {
    pub(crate) fn new(seed: u64) -> Self {
        let routes = Routes::new(seed);
        let generation = AtomicU64::new(routes.generation());
        let (interfaces, locals) = (Vec::new(), Arc::default());
        Self { tables: Mutex::new(Tables { interfaces, routes, changes: 0, locals }), generation }
    }

    /// Changes whenever an earlier answer may have become wrong.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn change<R>(&self, change: impl FnOnce(&mut Tables) -> R) -> R {
        let mut tables = lock(&self.tables);
        let answer = change(&mut tables);
        self.generation.store(tables.generation(), Ordering::Release);
        answer
    }

    /// Lets all sockets look again at what they found, and at the settings of their host.
    pub(crate) fn note_change(&self) {
        self.change(|tables| tables.changes += 1);
    }

    /// Adds an interface and the routes to its networks.
    pub(crate) fn add(&self, interface: Arc<Interface>) -> InterfaceId {
        self.change(|tables| {
            let index = tables.interfaces.len();
            let mut locals = Locals::clone(&tables.locals);
            for address in interface.addresses() {
                locals.add(address);
                let route = Route {
                    interface: index,
                    gateway: None,
                    mtu: None,
                    pref_src: Some(address.ip),
                };
                let entry = RouteEntry { prefix: address.prefix, metric: 0, route };
                // Of several addresses in one network the first is where packets come from.
                let is_known = |old: &RouteEntry| old.prefix == entry.prefix && old.metric == 0;
                if !tables.routes.entries().iter().any(is_known) {
                    tables.routes.add(entry);
                }
            }
            tables.changes += 1;
            tables.locals = Arc::new(locals);
            tables.interfaces.push(interface);
            InterfaceId(index)
        })
    }

    /// Adds a route; false if there is no such interface.
    pub(crate) fn add_route(&self, entry: RouteEntry) -> bool {
        self.change(|tables| {
            let exists = entry.route.interface < tables.interfaces.len();
            if exists {
                tables.routes.add(entry);
            }
            exists
        })
    }

    /// Removes the routes of a prefix through an interface; whether there were any.
    pub(crate) fn remove_route(&self, prefix: Prefix, interface: InterfaceId) -> bool {
        self.change(|tables| tables.routes.remove(prefix, interface.0))
    }

    pub(crate) fn routes(&self) -> Vec<RouteEntry> {
        lock(&self.tables).routes.entries().to_vec()
    }

    /// The way to `remote`; `None` if it is unreachable.
    pub(crate) fn resolve(&self, now: Instant, remote: IpAddr) -> Option<ResolvedRoute> {
        let tables = lock(&self.tables);
        let generation = tables.generation();
        let mut expires = Instant::FAR_FUTURE;
        if tables.locals.contains(remote) {
            let (next_hop, mtu) = (NextHop::Loopback, LOOPBACK_MTU);
            return Some(ResolvedRoute { generation, expires, next_hop, mtu });
        }
        let (route, interface, neighbor) = tables.route(remote)?;
        let link_mtu = u32::from(interface.capabilities().mtu);
        let mut mtu = route.mtu.map_or(link_mtu, |mtu| mtu.min(link_mtu));
        if let Some((known, forgotten)) = tables.routes.path_mtu(now, remote) {
            (mtu, expires) = (mtu.min(known), forgotten);
        }
        let next_hop = NextHop::Neighbor(interface.clone(), neighbor);
        Some(ResolvedRoute { generation, expires, next_hop, mtu })
    }

    /// The own address that packets to `remote` are sent from where nothing else is said.
    pub(crate) fn source_for(&self, remote: IpAddr) -> Result<IpAddr, NoSource> {
        let tables = lock(&self.tables);
        if tables.locals.contains(remote) {
            return Ok(remote);
        }
        let (route, interface, neighbor) = tables.route(remote).ok_or(NoSource::NoRoute)?;
        let source = route.pref_src.or_else(|| interface.source_for(neighbor));
        source.ok_or(NoSource::NoAddress)
    }

    /// Believes that no more than `mtu` bytes reach `remote`, where `current` did so far.
    pub(crate) fn on_packet_too_big(&self, now: Instant, remote: IpAddr, mtu: u32, current: u32) {
        self.change(|tables| tables.routes.on_packet_too_big(now, remote, mtu, current));
    }

    pub(crate) fn locals(&self) -> Arc<Locals> {
        lock(&self.tables).locals.clone()
    }

    pub(crate) fn interface(&self, id: InterfaceId) -> Option<Arc<Interface>> {
        lock(&self.tables).interfaces.get(id.0).cloned()
    }

    fn interfaces(&self) -> Vec<Arc<Interface>> {
        lock(&self.tables).interfaces.clone()
    }

    /// Adds how late the qdiscs let frames go that they held until their departure.
    pub(crate) fn add_departures(&self, departures: &mut Departures) {
        for interface in self.interfaces() {
            interface.ports().iter().for_each(|port| port.add_departures(departures));
        }
    }

    /// Figures of all interfaces.
    pub(crate) fn info(&self, now: Instant) -> Vec<InterfaceInfo> {
        self.interfaces().iter().map(|interface| interface.info(now)).collect()
    }

    /// Lets all interfaces ask again what neighbours did not answer. When to come back, and the
    /// frames whose neighbour does not answer.
    pub(crate) fn expire_neighbors(&self, visit: super::Visit) -> (Instant, Vec<Frame>) {
        let (mut next, mut undeliverable) = (Instant::FAR_FUTURE, Vec::new());
        for interface in self.interfaces() {
            let (due, frames) = interface.expire_neighbors(visit);
            next = next.min(due);
            undeliverable.extend(frames);
        }
        (next, undeliverable)
    }

    /// Forgets all interfaces and routes.
    pub(crate) fn clear(&self) {
        let gone = self.change(|tables| {
            let gone = core::mem::take(&mut tables.interfaces);
            for entry in tables.routes.entries().to_vec() {
                tables.routes.remove(entry.prefix, entry.route.interface);
            }
            tables.locals = Arc::default();
            tables.changes += 1;
            gone
        });
        // The last reference closes the device: not under the lock.
        drop(gone);
    }
}
