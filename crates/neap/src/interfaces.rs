//! Interfaces, addresses, routes and neighbours of a running stack.

use crate::clock;
use crate::descriptors::QueueDescriptors;
use crate::engine::Engine;
use crate::error::BuildError;
use crate::workers::Stack;
use core::net::IpAddr;
use neap_stack::device::{Completion, Device, QueuePair};
use neap_stack::error::NetError;
use neap_stack::interface::{Address, InterfaceId, InterfaceOptions};
use neap_stack::neighbor::LinkAddress;
use neap_stack::qdisc::config::QdiscError;
use neap_stack::route::{Prefix, Route, RouteEntry};
use neap_stack::router::{HeardRouter, RouterAdvertisement};
use neap_stack::stack::StackError;
use std::io;
use thiserror::Error;

/// Device with all that makes an interface of it: addresses, routers, MTU, queueing discipline.
///
/// [`Builder::interface`](crate::Builder::interface) and [`Stack::add_interface`] take one.
///
/// A gateway for the programs behind a TAP, which get their addresses of IPv6 from it:
///
/// ```no_run
/// use neap::device::{Tun, TunConfig};
/// use neap::net::{AdvertisedPrefix, RouterAdvertisement};
/// use neap::{IcmpOptions, IcmpSocket, InterfaceConfig, Stack};
///
/// let config = TunConfig { name: Some("neap0".into()), tap: true, ..TunConfig::default() };
/// let advertisement = RouterAdvertisement {
///     prefixes: vec![AdvertisedPrefix::new("fd00:9::/64".parse()?)],
///     ..RouterAdvertisement::default()
/// };
/// let interface = InterfaceConfig::new(Tun::open(&config)?.into_device())
///     .address("10.9.0.2/24".parse()?)
///     .address("fd00:9::2/64".parse()?)
///     .address("fe80::2/64".parse()?)
///     .any_destination(true)
///     .proxy("198.51.100.0/24".parse()?)
///     .router_advertisements(advertisement);
/// let stack = Stack::builder().interface(interface).build()?;
/// let pings = IcmpSocket::open(&stack, IcmpOptions::default())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct InterfaceConfig {
    device: Device,
    addresses: Vec<Address>,
    /// Where each route leads, and the router that takes its packets; `None` for the other end of
    /// the link.
    routes: Vec<(Prefix, Option<IpAddr>)>,
    mtu: Option<u16>,
    qdisc: Option<String>,
    proxies: Vec<Prefix>,
    router: Option<RouterAdvertisement>,
    hears_routers: bool,
    any_destination: bool,
    answer_echo: bool,
    honor_hop_limit: bool,
    begins_unread: bool,
}

impl InterfaceConfig {
    /// Makes an interface of a device, without addresses, at the MTU of the device and behind a
    /// `pfifo_fast`.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            addresses: Vec::new(),
            routes: Vec::new(),
            mtu: None,
            qdisc: None,
            proxies: Vec::new(),
            router: None,
            hears_routers: false,
            any_destination: false,
            answer_echo: false,
            honor_hop_limit: true,
            begins_unread: false,
        }
    }

    /// Gives the interface an address. It may be called for several. Adding the interface refuses
    /// what [`Builder::address`](crate::Builder::address) refuses.
    #[must_use]
    pub fn address(mut self, address: Address) -> Self {
        self.addresses.push(address);
        self
    }

    /// Adds a default route: packets of the router's family that no other route takes go to this
    /// router.
    #[must_use]
    pub fn gateway(self, router: IpAddr) -> Self {
        self.route(Prefix::of_all(router), router)
    }

    /// Adds a route: packets to the network `prefix` go to the router `via`.
    #[must_use]
    pub fn route(mut self, prefix: Prefix, via: IpAddr) -> Self {
        self.routes.push((prefix, Some(via)));
        self
    }

    /// Says that a host outside of the networks of the own addresses is on the link, as the other
    /// end of a TUN is where the own address is a `/32` (`ip address add OWN peer ADDRESS`). It can
    /// then be the router of routes that are given after it.
    #[must_use]
    pub fn peer(mut self, address: IpAddr) -> Self {
        self.routes.push((Prefix::of_host(address), None));
        self
    }

    /// Says that a whole network is on the link, besides those of the own addresses: its hosts are
    /// reached without a router. On a TUN, which has no neighbours to be asked for, it may be
    /// `0.0.0.0/0`.
    #[must_use]
    pub fn on_link(mut self, network: Prefix) -> Self {
        self.routes.push((network, None));
        self
    }

    /// Sets the MTU, the size of the largest IP packet in bytes. It is at most that of the device.
    #[must_use]
    pub fn mtu(mut self, mtu: u16) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Puts this queueing discipline at each queue of the device instead of `pfifo_fast`, in the
    /// words of `tc` or by the name of a kind of your own. It is checked when the interface is
    /// added.
    #[must_use]
    pub fn qdisc(mut self, qdisc: &str) -> Self {
        self.qdisc = Some(qdisc.to_owned());
        self
    }

    /// Takes packets to any address that can be that of one host, of IPv4 and IPv6, as if it were
    /// an own one (AnyIP: `ip route add local 0.0.0.0/0 dev lo`). The default is to take only those
    /// to own addresses.
    ///
    /// Groups, broadcast and loopback addresses, `0.0.0.0/8` and IPv4-mapped IPv6 addresses are not
    /// taken, but for datagrams to the group of DHCPv6 servers, `ff02::1:2`, as to a broadcast
    /// address. A socket that is bound to all addresses serves the others' too. A packet that no
    /// socket takes is answered from the address that it was for, and counted as
    /// [`DropReason::NoSocketForeign`](crate::info::DropReason::NoSocketForeign).
    #[must_use]
    pub fn any_destination(mut self, on: bool) -> Self {
        self.any_destination = on;
        self
    }

    /// Answers echo requests (ping) to addresses of others, which an interface that takes
    /// [any destination](Self::any_destination) gets. By default [`IcmpSocket`](crate::IcmpSocket)s
    /// get them, and without such a socket they are dropped and counted.
    #[must_use]
    pub fn answer_echo(mut self, on: bool) -> Self {
        self.answer_echo = on;
        self
    }

    /// Lets packets to addresses of others end here if their hop limit is used up (at most 1), as
    /// at a router; this is the default. The sender is told time exceeded from an address of the
    /// interface, within the rate limits of ICMP, so that `traceroute` shows the stack. With
    /// `false` such packets are taken as all others.
    #[must_use]
    pub fn honor_hop_limit(mut self, on: bool) -> Self {
        self.honor_hop_limit = on;
        self
    }

    /// Leaves the device unread until [`Stack::begin_reading`]. What arrives before waits in the
    /// device, as far as there is room. A program that opens its listeners and forwarders before
    /// answers none of it by a reset or an ICMP error. What the stack sends meanwhile may wait,
    /// too: nothing tells it that the device has room again.
    #[must_use]
    pub fn begin_unread(mut self) -> Self {
        self.begins_unread = true;
        self
    }

    /// Answers ARP and neighbour solicitations for all addresses of this prefix, besides the
    /// addresses of the interface (Linux's `proxy_arp` and `proxy_ndp`). It may be called for
    /// several prefixes. The device must have Ethernet, as a TAP and AF_PACKET have.
    ///
    /// An address is not answered for if a neighbour is known to have it, or if the sender of the
    /// request claims it: in a gratuitous request, in a probe of RFC 5227, and in duplicate address
    /// detection. Otherwise no host on the link could take an address of the prefix.
    #[must_use]
    pub fn proxy(mut self, prefix: Prefix) -> Self {
        self.proxies.push(prefix);
        self
    }

    /// Makes the interface a router of its link, which advertises this to its hosts
    /// ([`Stack::set_router_advertisement`]). It needs a link-local address, for instance
    /// `fe80::1/64`.
    #[must_use]
    pub fn router_advertisements(mut self, advertisement: RouterAdvertisement) -> Self {
        self.router = Some(advertisement);
        self
    }

    /// Listens to the routers of the link ([`Stack::hear_routers`]).
    #[must_use]
    pub fn hear_routers(mut self, is_on: bool) -> Self {
        self.hears_routers = is_on;
        self
    }

    /// Number of queues of the device.
    pub(crate) fn queues(&self) -> usize {
        self.device.queues.len()
    }
}

/// Reason why an interface could not be added or changed. The stack is as it was before.
#[derive(Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// The device has no queues, or an address, a route or an MTU is refused.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The queueing discipline is refused.
    #[error(transparent)]
    Qdisc(#[from] QdiscError),
    /// The system refuses to wait for the descriptors of the device.
    #[error("the descriptors of the device cannot be waited for")]
    System(#[from] io::Error),
}

neap_tcp::debug_as_display!(InterfaceError);

impl From<NetError> for InterfaceError {
    fn from(error: NetError) -> Self {
        Self::Stack(error.into())
    }
}

impl From<InterfaceError> for BuildError {
    fn from(error: InterfaceError) -> Self {
        match error {
            InterfaceError::Stack(error) => Self::Stack(error),
            InterfaceError::Qdisc(error) => Self::Qdisc(error),
            InterfaceError::System(error) => Self::System(error),
        }
    }
}

impl Engine {
    /// Makes an interface of a device. Its queues are spread over the shards that there are.
    pub(crate) fn add_interface(
        &self,
        config: InterfaceConfig,
    ) -> Result<InterfaceId, InterfaceError> {
        let options = InterfaceOptions {
            addresses: config.addresses,
            any_destination: config.any_destination,
            answers_echo: config.answer_echo,
            ignores_hop_limit: !config.honor_hop_limit,
            begins_unread: config.begins_unread,
        };
        let InterfaceConfig { device, routes, mtu, qdisc, proxies, router, .. } = config;
        let qdisc = qdisc.map(|qdisc| self.qdiscs.parse(&qdisc)).transpose()?;
        let tells_room = device.capabilities.completion == Completion::OnWire;
        let descriptors = |queue: &QueuePair| {
            let main = queue.descriptor.clone().map(|descriptor| (descriptor, tells_room));
            let bulk = queue.bulk.as_ref();
            let bulk = bulk.and_then(|bulk| Some((bulk.descriptor.clone()?, bulk.is_bounded)));
            [main, bulk].into_iter().flatten().collect()
        };
        let queues: QueueDescriptors = device.queues.iter().map(descriptors).collect();
        let bell = device.monitor.as_ref().and_then(|monitor| monitor.descriptor());
        let id = self.stack.add_interface_with(clock::now(), device, options)?;
        let finish = || -> Result<(), InterfaceError> {
            if config.begins_unread {
                self.descriptors.put_off(id, queues);
            } else {
                self.attach_queues(id, queues)?;
            }
            if let Some(bell) = bell {
                self.driver(0).attach_monitor(id, bell)?;
            }
            if let Some(mtu) = mtu {
                self.stack.set_mtu(id, mtu)?;
            }
            if let Some(qdisc) = qdisc {
                self.stack.set_qdisc(clock::now(), id, &qdisc)?;
            }
            self.stack.set_hears_routers(id, config.hears_routers)?;
            self.stack.set_proxies(id, proxies)?;
            if router.is_some() {
                self.stack.set_router_advertisement(clock::now(), id, router)?;
            }
            routes.into_iter().try_for_each(|(prefix, gateway)| {
                let route = Route { interface: id, gateway, mtu: None, pref_src: None };
                Ok(self.stack.add_route(RouteEntry { prefix, metric: 0, route })?)
            })
        };
        finish().inspect_err(|_| {
            // The device may have gone meanwhile, and the interface with it.
            let _ = self.remove_interface(id);
        })?;
        // The device may have gone before its descriptors were attached.
        self.detach_gone();
        Ok(id)
    }

    /// Wakes the drivers for the queues of a device from here on.
    fn attach_queues(&self, id: InterfaceId, queues: QueueDescriptors) -> io::Result<()> {
        for (shard, queue) in queues.into_iter().enumerate() {
            for (descriptor, tells_room) in queue {
                self.driver(shard).attach_queue(id, descriptor, tells_room)?;
            }
        }
        Ok(())
    }

    fn begin_reading(&self, id: InterfaceId) -> Result<bool, InterfaceError> {
        let began = self.stack.begin_reading(id)?;
        if let Some(queues) = self.descriptors.take_unread(id) {
            self.attach_queues(id, queues)?;
            // The device may have gone meanwhile.
            self.detach_gone();
        }
        Ok(began)
    }

    fn remove_interface(&self, interface: InterfaceId) -> Result<(), NetError> {
        let removed = self.stack.remove_interface(clock::now(), interface);
        self.detach_gone();
        removed
    }
}

/// The network of a running stack. Each change acts on open connections as in Linux, at their next
/// segment.
impl Stack {
    /// Adds an interface.
    ///
    /// The device may have more or fewer queues than the stack has workers: its queues are spread
    /// over them.
    ///
    /// # Errors
    /// [`InterfaceError`]. The device is closed then.
    pub fn add_interface(&self, config: InterfaceConfig) -> Result<InterfaceId, InterfaceError> {
        self.engine().add_interface(config)
    }

    /// Reads the device of an interface that [began unread](InterfaceConfig::begin_unread) from
    /// here on. Returns whether it was unread.
    ///
    /// # Errors
    /// [`InterfaceError::Stack`] if there is no such interface; [`InterfaceError::System`] if the
    /// system refuses to wait for the descriptors of the device.
    pub fn begin_reading(&self, interface: InterfaceId) -> Result<bool, InterfaceError> {
        self.engine().begin_reading(interface)
    }

    /// Removes an interface with its addresses, routes and neighbours, and closes its device.
    ///
    /// Packets that wait in it are dropped and counted. Connections that have no other way are not
    /// told: as in Linux they fail when they time out, and go on if a way comes back before.
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn remove_interface(&self, interface: InterfaceId) -> Result<(), NetError> {
        self.engine().remove_interface(interface)
    }

    /// Enables an interface or disables it (`ip link set DEV up`, `down`). No packet passes through
    /// a disabled one, and no route leads there. Unlike in Linux, its routes come back when it is
    /// enabled.
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn set_link(&self, interface: InterfaceId, is_up: bool) -> Result<(), NetError> {
        self.engine().stack.set_link(clock::now(), interface, is_up)
    }

    /// Sets the MTU of an interface, the size of its largest IP packet in bytes
    /// (`ip link set DEV mtu MTU`). If it equals the MTU of the device, the interface follows later
    /// changes of the device.
    ///
    /// # Errors
    /// [`NetError::NoInterface`]. [`NetError::Mtu`] above the MTU of the device, below 68, or below
    /// 1280 if the interface has IPv6 addresses.
    pub fn set_mtu(&self, interface: InterfaceId, mtu: u16) -> Result<(), NetError> {
        self.engine().stack.set_mtu(interface, mtu)
    }

    /// Returns the largest IP packet that the way to `remote` takes, in bytes; `None` without a
    /// route.
    pub fn path_mtu(&self, remote: IpAddr) -> Option<u32> {
        self.engine().stack.path_mtu(clock::now(), remote)
    }

    /// Returns the largest IP packet that the link takes by which packets to `remote` leave, in
    /// bytes: the MTU of the interface, or that of the route if it is smaller. Unlike
    /// [`path_mtu`](Self::path_mtu) it does not know what ICMP taught of the path behind the link.
    /// `None` without a route.
    pub fn link_mtu(&self, remote: IpAddr) -> Option<u32> {
        self.engine().stack.link_mtu(remote)
    }

    /// Gives an interface one more address (`ip address add`), and the stack a route to its network
    /// unless there is one.
    ///
    /// An address that the kernel has in the network namespace of the device is refused, as in
    /// [`Builder::address`](crate::Builder::address).
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::Address`], [`NetError::AddressExists`],
    /// [`NetError::AddressTaken`].
    pub fn add_address(&self, interface: InterfaceId, address: Address) -> Result<(), NetError> {
        self.engine().stack.add_address(interface, address)
    }

    /// Takes an address from an interface (`ip address del`).
    ///
    /// Its connections and listeners stay, as in Linux. The stack takes no packets to the address,
    /// and sends none from it, until the address is added again. The route to its network is
    /// removed with the last address in that network, and so are routes that prefer the address as
    /// their source.
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::NoAddress`].
    pub fn remove_address(&self, interface: InterfaceId, address: IpAddr) -> Result<(), NetError> {
        self.engine().stack.remove_address(interface, address)
    }

    /// Adds a route (`ip route add`).
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::RouteExists`], [`NetError::GatewayUnreachable`],
    /// [`NetError::GatewayIsOwn`], [`NetError::Family`], [`NetError::NotOwn`].
    pub fn add_route(&self, entry: RouteEntry) -> Result<(), NetError> {
        self.engine().stack.add_route(entry)
    }

    /// Adds a route, and returns the route with the same prefix and metric that it replaces
    /// (`ip route replace`).
    ///
    /// # Errors
    /// Those of [`add_route`](Self::add_route) without [`NetError::RouteExists`].
    pub fn replace_route(&self, entry: RouteEntry) -> Result<Option<RouteEntry>, NetError> {
        self.engine().stack.replace_route(entry)
    }

    /// Removes a route and returns it (`ip route del`).
    ///
    /// It is the route to `prefix` through `interface` that has this metric, or the least metric if
    /// none is given.
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::NoRoute`].
    pub fn remove_route(
        &self,
        prefix: Prefix,
        interface: InterfaceId,
        metric: Option<u32>,
    ) -> Result<RouteEntry, NetError> {
        self.engine().stack.remove_route(prefix, interface, metric)
    }

    /// Sets the link address of a neighbour for good (`ip neighbour replace ... nud permanent`).
    /// Packets that arrive do not change it.
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::NoNeighbors`] without Ethernet,
    /// [`NetError::NeighborTableFull`].
    pub fn add_neighbor(
        &self,
        interface: InterfaceId,
        address: IpAddr,
        link: LinkAddress,
    ) -> Result<(), NetError> {
        self.engine().stack.add_neighbor(clock::now(), interface, address, link)
    }

    /// Forgets a neighbour. Packets that wait for it are dropped and counted (`ip neighbour del`).
    ///
    /// # Errors
    /// [`NetError::NoInterface`], [`NetError::NoNeighbors`], [`NetError::NoNeighbor`].
    pub fn remove_neighbor(&self, interface: InterfaceId, address: IpAddr) -> Result<(), NetError> {
        self.engine().stack.remove_neighbor(interface, address)
    }

    /// Forgets all neighbours of an interface but the permanent ones (`ip neighbour flush`).
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn flush_neighbors(&self, interface: InterfaceId) -> Result<(), NetError> {
        self.engine().stack.flush_neighbors(interface)
    }

    /// Replaces the prefixes whose addresses an interface answers for
    /// ([`InterfaceConfig::proxy`]).
    ///
    /// # Errors
    /// [`NetError::NoInterface`]; [`NetError::NoNeighbors`] without Ethernet.
    pub fn set_proxies(&self, interface: InterfaceId, prefixes: &[Prefix]) -> Result<(), NetError> {
        self.engine().stack.set_proxies(interface, prefixes.to_vec())
    }

    /// Makes an interface a router of its link, which advertises itself (RFC 4861 section 6.2), or
    /// ends that with `None`.
    ///
    /// Advertisements come from the first link-local address of the interface. The first one is
    /// sent after three seconds, so that hosts whose link has just come up know by then that their
    /// addresses are unique. Two more follow after 16 seconds each, and then one in 198 to 600
    /// seconds. Another advertisement in its place is sent at once, but three seconds behind the
    /// last one at the earliest. A host that solicits routers is answered alone, the first one at
    /// once and others after at most half a second. Several that ask at once are answered together,
    /// at most once in three seconds. All this begins again when the link comes up again. A last
    /// advertisement says that the router is none any more: with `None`, when the interface is
    /// disabled, and when it or the stack is closed.
    ///
    /// # Errors
    /// [`NetError::NoInterface`]; [`NetError::NoLinkLocal`] without a link-local address;
    /// [`NetError::RouterAdvertisement`] for one that cannot be sent.
    pub fn set_router_advertisement(
        &self,
        interface: InterfaceId,
        advertisement: Option<RouterAdvertisement>,
    ) -> Result<(), NetError> {
        self.engine().stack.set_router_advertisement(clock::now(), interface, advertisement)
    }

    /// Listens to the routers on the link of an interface, or forgets them.
    ///
    /// Each advertisement is told as [`StackEvent::RouterAdvertised`](crate::StackEvent), and
    /// [`routers`](Self::routers) has what it said. It changes nothing in the stack by itself: the
    /// application adds addresses and routes by it.
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn hear_routers(&self, interface: InterfaceId, is_on: bool) -> Result<(), NetError> {
        self.engine().stack.set_hears_routers(interface, is_on)
    }

    /// Asks the routers on the link of an interface to advertise themselves. It sends one
    /// solicitation; RFC 4861 section 6.3.7 has up to three, four seconds apart.
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn solicit_routers(&self, interface: InterfaceId) -> Result<(), NetError> {
        self.engine().stack.solicit_routers(clock::now(), interface)
    }

    /// Returns the routers that an interface has heard of since it listens, at most eight, each
    /// with the latest of its advertisements. In a full list a new router takes the place of one
    /// whose lifetime is over. Without such a one its advertisement is dropped and counted.
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn routers(&self, interface: InterfaceId) -> Result<Vec<HeardRouter>, NetError> {
        self.engine().stack.routers(interface)
    }

    /// Replaces the queueing discipline at each queue of an interface, in the words of `tc` or by
    /// the name of a kind of your own.
    ///
    /// Packets that wait move into the new one, or leave at their time if it would not hold them.
    ///
    /// # Errors
    /// [`InterfaceError::Qdisc`] for words that make no qdisc; [`InterfaceError::Stack`] if there
    /// is no such interface.
    pub fn set_qdisc(&self, interface: InterfaceId, qdisc: &str) -> Result<(), InterfaceError> {
        let engine = self.engine();
        let setup = engine.qdiscs.parse(qdisc)?;
        Ok(engine.stack.set_qdisc(clock::now(), interface, &setup)?)
    }
}
