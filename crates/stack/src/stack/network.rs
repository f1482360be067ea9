//! Interfaces, addresses, routes and neighbours of a stack, which may change while it runs.
//!
//! A change acts on open connections as in Linux, at their next segment: they find their way
//! again, and their segments follow its MTU. Cost: a lookup of the route for each socket that
//! sends afterwards; nothing for one that does not.

use super::{Stack, StackError};
use crate::device::{Device, LinkStatus};
use crate::event::{StackEvent, Subscription};
use crate::net::Visit;
use crate::net::error::NetError;
use crate::net::interface::{
    Address, Interface, InterfaceId, InterfaceInfo, InterfaceOptions, LinkChanges, Parts,
    check_addresses, check_free,
};
use crate::net::neighbor::{LinkAddress, Neighbor};
use crate::net::port::Port;
use crate::net::qdisc::config::QdiscConfig;
use crate::net::route::{Prefix, RouteEntry};
use crate::net::router::{HeardRouter, RouterAdvertisement};
use core::net::IpAddr;
use neap_tcp::time::Instant;
use std::sync::Arc;

impl Stack {
    /// Attaches a device with these addresses; routes to their networks are added. Each queue pair
    /// is served by one shard, in turn, behind a `pfifo_fast`.
    ///
    /// # Errors
    /// [`StackError::NoQueues`] if the device has none; [`StackError::Net`] for an address that
    /// cannot be that of a host, that is given twice, or that the kernel of the machine has.
    pub fn add_interface(
        &self,
        now: Instant,
        device: Device,
        addresses: &[Address],
    ) -> Result<InterfaceId, StackError> {
        let options = InterfaceOptions { addresses: addresses.to_vec(), ..Default::default() };
        self.add_interface_with(now, device, options)
    }

    /// As [`add_interface`](Self::add_interface), with every setting of an interface.
    ///
    /// # Errors
    /// As [`add_interface`](Self::add_interface).
    pub fn add_interface_with(
        &self,
        now: Instant,
        device: Device,
        options: InterfaceOptions,
    ) -> Result<InterfaceId, StackError> {
        let InterfaceOptions { addresses, any_destination, .. } = options;
        let InterfaceOptions { answers_echo, ignores_hop_limit, begins_unread, .. } = options;
        let Device { name, capabilities, queues, steering, mut monitor } = device;
        if queues.is_empty() {
            return Err(StackError::NoQueues(name));
        }
        check_addresses(&addresses)?;
        check_free(monitor.as_deref_mut(), &addresses)?;
        let host = &self.host;
        let mut ports = Vec::new();
        let mut receivers = Vec::new();
        for (index, pair) in queues.into_iter().enumerate() {
            let list = &host.shards[index % host.shards.len()].list;
            let bell = list.bell().clone();
            let qdisc = QdiscConfig::default().build(&capabilities, host.fork_seed());
            let counters = host.net.counters.clone();
            let port = Port::new(pair.tx, capabilities, qdisc, bell.into(), now);
            ports.push(Arc::new(port.of_host(counters, list.passed().clone())));
            receivers.push((pair.rx, pair.bulk));
        }
        let id = host.net.topology.name_interface();
        let interface = Arc::new(Interface::new(Parts {
            id,
            name,
            capabilities,
            addresses,
            any_destination,
            answers_echo,
            ignores_hop_limit,
            begins_unread,
            ports,
            steering,
            monitor,
            seed: host.fork_seed(),
            counters: host.net.counters.clone(),
            housekeeping: host.net.housekeeping.clone(),
        }));
        host.net.topology.add(interface.clone());
        for (index, (rx, bulk)) in receivers.into_iter().enumerate() {
            let port = interface.ports()[index].clone();
            let shard = &host.shards[index % host.shards.len()];
            shard.add_queue(interface.clone(), port, rx, bulk.map(|bulk| bulk.rx));
        }
        host.events.tell(&StackEvent::InterfaceAdded { interface: id });
        // The device may have changed since it was opened.
        self.look_at_link(now, id)?;
        Ok(id)
    }

    /// Reads the device of an interface that [began unread](InterfaceOptions::begins_unread) from
    /// here on. Returns whether it was unread. It calls the wakers of all shards.
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn begin_reading(&self, interface: InterfaceId) -> Result<bool, NetError> {
        let began = self.host.net.topology.interface(interface)?.begin_reading();
        if began {
            self.host.net.topology.note_change();
            self.host.shards.iter().for_each(|shard| shard.list.bell().ring(Instant::ZERO));
        }
        Ok(began)
    }

    /// Removes an interface with its addresses, routes and neighbours, and closes its device. What
    /// waits to be sent is dropped and counted. Connections that have no other way are not told:
    /// as in Linux they fail when they time out, and go on if a way comes back before.
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn remove_interface(&self, now: Instant, interface: InterfaceId) -> Result<(), NetError> {
        self.host.remove_interface(now, interface)
    }

    /// Removes all interfaces with their routes, and closes their devices.
    pub fn remove_interfaces(&self, now: Instant) {
        self.host.remove_interfaces(now);
    }

    /// Figures of all interfaces, in the order in which they were added. It waits for polls to end,
    /// and asks devices for their counters, which may take a system call for each queue.
    pub fn interfaces(&self, now: Instant) -> Vec<InterfaceInfo> {
        let interfaces = self.host.net.topology.interfaces();
        let info =
            |interface: &Arc<Interface>| interface.info(now, self.host.rx_dropped(interface));
        interfaces.iter().map(info).collect()
    }

    /// Returns whether there is such an interface. One mutex.
    pub fn has_interface(&self, interface: InterfaceId) -> bool {
        self.host.net.topology.interface(interface).is_ok()
    }

    /// Names of all interfaces, in the order in which they were added.
    pub fn interface_ids(&self) -> Vec<InterfaceId> {
        let interfaces = self.host.net.topology.interfaces();
        interfaces.iter().map(|interface| interface.id()).collect()
    }

    /// Asks the device of an interface what has become of it, and acts by the answer: the MTU
    /// follows that of the device, a link that is down drops what is sent, and a device that is
    /// gone takes the interface with it. Sockets that have no other way then fail with
    /// [`NetworkDown`](neap_tcp::connection::ConnectionError::NetworkDown). An own address that the
    /// kernel of the machine has got is told as [`StackEvent::AddressTaken`]. To be called when the
    /// descriptor of a queue has an error, or that of the [`LinkMonitor`] is readable.
    ///
    /// [`LinkMonitor`]: crate::device::LinkMonitor
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn look_at_link(&self, now: Instant, interface: InterfaceId) -> Result<(), NetError> {
        let interface = self.host.net.topology.interface(interface)?;
        let changes = interface.look(now);
        self.host.on_link_changes(now, &interface, changes)?;
        if !changes.is_gone {
            self.host.look_for_taken(&interface);
        }
        Ok(())
    }

    /// Tells the stack the state of a device that has no monitor. It has the effects of
    /// [`look_at_link`](Self::look_at_link).
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn set_link_status(
        &self,
        now: Instant,
        interface: InterfaceId,
        status: LinkStatus,
    ) -> Result<(), NetError> {
        let interface = self.host.net.topology.interface(interface)?;
        let changes = interface.on_status(status, now);
        self.host.on_link_changes(now, &interface, changes)
    }

    /// Enables an interface or disables it (`ip link set DEV up`, `down`). Through a disabled one
    /// no packet passes and no route leads; unlike in Linux its routes come back with it.
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn set_link(
        &self,
        now: Instant,
        interface: InterfaceId,
        is_up: bool,
    ) -> Result<(), NetError> {
        let interface = self.host.net.topology.interface(interface)?;
        let link = interface.set_enabled(is_up, now);
        // Routes depend on it even where the device has no link.
        self.host.net.topology.follow_links();
        self.host.on_link_changes(now, &interface, LinkChanges { link, ..Default::default() })
    }

    /// Lets no IP packet through an interface be larger than `mtu` bytes (`ip link set DEV mtu`).
    /// Open connections follow. Equal to the MTU of the device it is no bound, and the interface
    /// follows its device again.
    ///
    /// # Errors
    /// [`NetError::NoInterface`]; [`NetError::Mtu`] above the MTU of the device, below 68, or
    /// below 1280 where the interface has IPv6 addresses.
    pub fn set_mtu(&self, interface: InterfaceId, mtu: u16) -> Result<(), NetError> {
        let interface = self.host.net.topology.interface(interface)?;
        if interface.set_mtu(mtu)? {
            self.host.net.topology.note_change();
            self.host.events.tell(&StackEvent::MtuChanged { interface: interface.id(), mtu });
        }
        Ok(())
    }

    /// Gives an interface one more address (`ip address add`), and the host a route to its
    /// network unless there is one.
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::Address`], [`NetError::AddressExists`],
    /// [`NetError::AddressTaken`].
    pub fn add_address(&self, interface: InterfaceId, address: Address) -> Result<(), NetError> {
        check_addresses(&[address])?;
        self.host.net.topology.interface(interface)?.check_free(address)?;
        self.host.net.topology.add_address(interface, address)?;
        self.host.events.tell(&StackEvent::AddressAdded { interface, address });
        Ok(())
    }

    /// Takes an address from an interface (`ip address del`). Its connections and listeners stay,
    /// as in Linux: packets to it are no longer taken and none leave from it until it comes back.
    /// The route to its network goes with the last address in it, and routes that prefer it as
    /// their source go too.
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::NoAddress`].
    pub fn remove_address(&self, interface: InterfaceId, address: IpAddr) -> Result<(), NetError> {
        self.host.net.topology.remove_address(interface, address)?;
        self.host.events.tell(&StackEvent::AddressRemoved { interface, address });
        Ok(())
    }

    /// Answers ARP and neighbour solicitations for all addresses of these prefixes, besides those
    /// of the interface (Linux's `proxy_arp` and `proxy_ndp`). It replaces the prefixes of an
    /// earlier call.
    ///
    /// An address is not answered for if a neighbour is known to have it, or if the sender of the
    /// request claims it: in a gratuitous request, in a probe of RFC 5227 and in duplicate address
    /// detection. Advertisements of neighbours are sent without the override flag (RFC 4861 section
    /// 7.2.8). Answers are not delayed. A packet that comes for such an address is taken only if
    /// the interface takes packets for any destination.
    ///
    /// # Errors
    /// [`NetError::NoInterface`]; [`NetError::NoNeighbors`] without Ethernet.
    pub fn set_proxies(
        &self,
        interface: InterfaceId,
        prefixes: Vec<Prefix>,
    ) -> Result<(), NetError> {
        let interface = self.host.net.topology.interface(interface)?;
        if !prefixes.is_empty() {
            interface.check_has_neighbors()?;
        }
        interface.set_proxies(prefixes);
        Ok(())
    }

    /// Makes an interface a router of its link, which advertises itself (RFC 4861 section 6.2), or
    /// ends that with `None`.
    ///
    /// Advertisements come from the first link-local address of the interface. The first one is
    /// sent at once, two more after 16 seconds each, and then one in 198 to 600 seconds. A host
    /// that solicits routers is answered alone after at most half a second; several that ask at
    /// once are answered together, at most once in three seconds. When the interface is removed or
    /// disabled, when the stack closes it and with `None`, a last advertisement says that the
    /// router is none any more.
    ///
    /// # Errors
    /// [`NetError::NoInterface`]; [`NetError::NoLinkLocal`] without a link-local address;
    /// [`NetError::RouterAdvertisement`] for one that cannot be sent.
    pub fn set_router_advertisement(
        &self,
        now: Instant,
        interface: InterfaceId,
        advertisement: Option<RouterAdvertisement>,
    ) -> Result<(), NetError> {
        let interface = self.host.net.topology.interface(interface)?;
        let seed = self.host.fork_seed();
        interface.set_router(Visit::new(now, 0), advertisement, seed)
    }

    /// Listens to the routers on the link of an interface, or forgets them. What they say has no
    /// effect on the stack: the application gives the interface addresses and routes by it
    /// ([`StackEvent::RouterAdvertised`], [`routers`](Self::routers)).
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn set_hears_routers(&self, interface: InterfaceId, is_on: bool) -> Result<(), NetError> {
        self.host.net.topology.interface(interface)?.set_hears_routers(is_on);
        Ok(())
    }

    /// Asks the routers on the link of an interface to advertise themselves, with one solicitation
    /// from the link-local address of the interface, or from `::` if it has none.
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn solicit_routers(&self, now: Instant, interface: InterfaceId) -> Result<(), NetError> {
        let interface = self.host.net.topology.interface(interface)?;
        interface.solicit_routers(Visit::new(now, 0));
        Ok(())
    }

    /// Returns the routers that an interface has heard of, at most eight, each with the latest of
    /// its advertisements. In a full list a new router takes the place of one whose lifetime is
    /// over; without such a one its advertisement is dropped and counted.
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn routers(&self, interface: InterfaceId) -> Result<Vec<HeardRouter>, NetError> {
        Ok(self.host.net.topology.interface(interface)?.heard_routers())
    }

    /// Adds a route (`ip route add`).
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::RouteExists`], [`NetError::GatewayUnreachable`],
    /// [`NetError::GatewayIsOwn`], [`NetError::Family`], [`NetError::NotOwn`].
    pub fn add_route(&self, entry: RouteEntry) -> Result<(), NetError> {
        self.host.net.topology.add_route(entry)
    }

    /// Adds a route, and returns the route with the same prefix and metric that it replaces
    /// (`ip route replace`).
    ///
    /// # Errors
    /// Those of [`add_route`](Self::add_route) without [`NetError::RouteExists`].
    pub fn replace_route(&self, entry: RouteEntry) -> Result<Option<RouteEntry>, NetError> {
        self.host.net.topology.replace_route(entry)
    }

    /// Removes the route of a prefix through an interface, which is returned (`ip route del`): that
    /// of this metric, or of the least if none is given.
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::NoRoute`].
    pub fn remove_route(
        &self,
        prefix: Prefix,
        interface: InterfaceId,
        metric: Option<u32>,
    ) -> Result<RouteEntry, NetError> {
        self.host.net.topology.remove_route(prefix, interface, metric)
    }

    /// All routes, in the order in which they are tried.
    pub fn routes(&self) -> Vec<RouteEntry> {
        self.host.net.topology.routes()
    }

    /// Names the link address of a neighbour for good; nothing that arrives changes it
    /// (`ip neighbour replace ... nud permanent`).
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::NoNeighbors`] without Ethernet,
    /// [`NetError::NeighborTableFull`].
    pub fn add_neighbor(
        &self,
        now: Instant,
        interface: InterfaceId,
        address: IpAddr,
        link: LinkAddress,
    ) -> Result<(), NetError> {
        let interface = self.host.net.topology.interface(interface)?;
        interface.add_neighbor(Visit::new(now, 0), address, link)
    }

    /// Forgets a neighbour; what waits for it is dropped and counted (`ip neighbour del`).
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::NoNeighbors`], [`NetError::NoNeighbor`].
    pub fn remove_neighbor(&self, interface: InterfaceId, address: IpAddr) -> Result<(), NetError> {
        self.host.net.topology.interface(interface)?.remove_neighbor(address)
    }

    /// Forgets all neighbours of an interface but the permanent ones (`ip neighbour flush`).
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn flush_neighbors(&self, interface: InterfaceId) -> Result<(), NetError> {
        self.host.net.topology.interface(interface)?.flush_neighbors();
        Ok(())
    }

    /// The neighbours of all interfaces (`ip neighbour`).
    pub fn neighbors(&self, now: Instant) -> Vec<(InterfaceId, Neighbor)> {
        self.host.net.topology.neighbors(now)
    }

    /// Receives what happens to the network of this host from now on.
    pub fn subscribe(&self) -> Subscription {
        self.host.events.subscribe()
    }
}
