//! Interfaces: a device's ports, the addresses on it, and its neighbours.

mod discovery;

use super::Visit;
use super::address::Prefix;
use super::error::NetError;
use super::housekeeping::Housekeeping;
use super::neighbor::{
    Advertisement, LinkAddress, Neighbor, Neighbors, Outcome, Resolved, Solicit,
};
use super::port::{Port, PortStats};
use super::router::{Heard, Router};
use crate::device::{Capabilities, LinkMonitor, LinkState, LinkStatus, Medium, Steering};
use crate::drop_reason::DropReason;
use crate::flow::FourTuple;
use crate::frame::{Frame, Headers, ORPHAN};
use crate::stats::{IpCounter, PacketCounters};
use crate::sync::{Mutex, lock};
use crate::wire::{Protocol, arp, ethernet, icmpv6, ipv6};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use neap_tcp::segment::{Ecn, Payload};
use neap_tcp::time::Instant;
use neap_tcp::transmit::egress::Verdict;
use std::sync::Arc;

pub use super::address::{Address, InterfaceId};

/// All nodes on the link (RFC 4291 section 2.7.1).
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers on the link (RFC 4291 section 2.7.1).
pub(crate) const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Least MTU of a link with IPv4 (RFC 791 section 3.2).
const MIN_MTU_V4: u16 = 68;
/// Least MTU of a link with IPv6 (RFC 8200 section 5).
const MIN_MTU_V6: u16 = 1280;

/// Values that an interface is made with.
pub(crate) struct Parts {
    pub(crate) id: InterfaceId,
    pub(crate) name: String,
    pub(crate) capabilities: Capabilities,
    pub(crate) addresses: Vec<Address>,
    pub(crate) any_destination: bool,
    pub(crate) answers_echo: bool,
    pub(crate) ignores_hop_limit: bool,
    pub(crate) begins_unread: bool,
    pub(crate) ports: Vec<Arc<Port>>,
    pub(crate) steering: Option<Arc<dyn Steering>>,
    pub(crate) monitor: Option<Box<dyn LinkMonitor>>,
    /// Random: it keys the neighbour table.
    pub(crate) seed: u64,
    /// Those of the host.
    pub(crate) counters: Arc<PacketCounters>,
    pub(crate) housekeeping: Arc<Housekeeping>,
}

/// Settings with which an interface is added.
#[derive(Clone, Debug, Default)]
pub struct InterfaceOptions {
    /// Own addresses. Routes to their networks are added.
    pub addresses: Vec<Address>,
    /// Packets to any address that can be that of one host are taken, as if it were an own one
    /// (AnyIP: `ip route add local 0.0.0.0/0 dev lo`). Groups, broadcast and loopback addresses,
    /// `0.0.0.0/8` and IPv4-mapped IPv6 addresses are not.
    pub any_destination: bool,
    /// Echo requests to addresses of others are answered. Otherwise ICMP sockets get them.
    pub answers_echo: bool,
    /// Packets to addresses of others are taken although their hop limit is used up. Otherwise they
    /// are answered as a router does, with time exceeded (RFC 1812 section 5.3.1, RFC 4443 section
    /// 3.3).
    pub ignores_hop_limit: bool,
    /// The device is not read until
    /// [`Stack::begin_reading`](crate::stack::Stack::begin_reading). What comes waits in it.
    pub begins_unread: bool,
}

/// Settings of an interface that calls and its device change.
#[derive(Debug)]
struct Settings {
    addresses: Vec<Address>,
    /// MTU of the device, in bytes.
    device_mtu: u16,
    /// MTU that a call has set, in bytes.
    mtu_limit: u16,
    /// Whether a call has enabled the interface.
    is_enabled: bool,
    /// Whether the device says that its link is up.
    has_link: bool,
    /// Addresses that the kernel of the machine had at the last look.
    taken: Vec<IpAddr>,
    /// Prefixes whose addresses it answers for without having them.
    proxies: Vec<Prefix>,
    /// Whether it is a router of its link.
    is_router: bool,
}

impl Settings {
    fn mtu(&self) -> u16 {
        self.device_mtu.min(self.mtu_limit)
    }

    fn is_up(&self) -> bool {
        self.is_enabled && self.has_link
    }
}

/// One interface.
pub(crate) struct Interface {
    id: InterfaceId,
    name: String,
    capabilities: Capabilities,
    any_destination: bool,
    answers_echo: bool,
    ignores_hop_limit: bool,
    settings: Mutex<Settings>,
    /// That of the settings.
    mtu: AtomicU16,
    is_up: AtomicBool,
    /// What arrives waits in the device.
    is_unread: AtomicBool,
    /// The own link address in the lower bytes; meaningless without Ethernet.
    link: AtomicU64,
    ports: Vec<Arc<Port>>,
    steering: Option<Arc<dyn Steering>>,
    monitor: Mutex<Option<Box<dyn LinkMonitor>>>,
    neighbors: Mutex<Neighbors>,
    /// What it advertises as a router of its link.
    router: Mutex<Option<Router>>,
    /// The routers that it has heard of, if somebody wants to know.
    heard: Mutex<Option<Heard>>,
    counters: Arc<PacketCounters>,
    housekeeping: Arc<Housekeeping>,
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, settings, .. } = self;
        let mut shown = f.debug_struct("Interface");
        shown.field("id", id).field("name", name).field("settings", settings);
        shown.finish_non_exhaustive()
    }
}

fn pack(address: LinkAddress) -> u64 {
    let [a, b, c, d, e, f] = address;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Packet that no neighbour will take.
#[derive(Debug)]
pub(crate) struct Undeliverable {
    /// The packet, with its IP header at the front.
    pub(crate) frame: Frame,
    /// The interface that it was to leave by.
    pub(crate) interface: InterfaceId,
}

/// What became of a packet that was to leave.
#[derive(Debug)]
#[must_use = "a socket may have to hear of what cannot be delivered"]
pub(crate) struct Output {
    pub(crate) verdict: Verdict,
    /// Fragments in front of the one that was dropped have left.
    pub(crate) is_in_part: bool,
    /// Packets that no neighbour will take.
    pub(crate) undeliverable: Vec<Undeliverable>,
}

impl Output {
    /// Nothing is undeliverable.
    pub(crate) fn of(verdict: Verdict) -> Self {
        Self { verdict, is_in_part: false, undeliverable: Vec::new() }
    }
}

/// Figures of an interface.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InterfaceInfo {
    /// Its name in calls.
    pub id: InterfaceId,
    /// Name of the device.
    pub name: String,
    /// What the device can do, with the MTU that the interface has now.
    pub capabilities: Capabilities,
    /// Whether packets pass.
    pub link: LinkState,
    /// Addresses.
    pub addresses: Vec<Address>,
    /// Whether packets to any address of one host are taken, see
    /// [`InterfaceOptions::any_destination`].
    pub any_destination: bool,
    /// Figures of each queue's way out.
    pub ports: Vec<PortStats>,
    /// Neighbours, as `ip neighbour` shows them.
    pub neighbors: Vec<Neighbor>,
    /// Prefixes whose addresses it answers for without having them.
    pub proxies: Vec<Prefix>,
    /// Packets that the device lost before the stack could receive them, since it was opened. For
    /// AF_PACKET they found no free slot, or no room in the receive queue (`PACKET_STATISTICS`).
    /// For TUN the queue of the device was full (`tx_dropped` of the kernel's interface).
    pub rx_dropped: u64,
}

/// Changes that a look at the device of an interface has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkChanges {
    /// The link is up, or it is not.
    pub(crate) link: Option<bool>,
    /// The MTU of the interface in bytes.
    pub(crate) mtu: Option<u16>,
    pub(crate) is_gone: bool,
}

/// Checks the addresses of one interface: a host can have each of them, and none is there twice.
///
/// # Errors
/// [`NetError::Address`], [`NetError::AddressRepeated`].
pub fn check_addresses(addresses: &[Address]) -> Result<(), NetError> {
    for (index, &address) in addresses.iter().enumerate() {
        if let Some(fault) = address.fault() {
            return Err(NetError::Address { address, fault });
        }
        if addresses[..index].iter().any(|other| other.ip == address.ip) {
            return Err(NetError::AddressRepeated { address });
        }
    }
    Ok(())
}

/// Refuses addresses that the kernel of the machine has.
pub(crate) fn check_free(
    monitor: Option<&mut (dyn LinkMonitor + 'static)>,
    addresses: &[Address],
) -> Result<(), NetError> {
    let Some(monitor) = monitor else { return Ok(()) };
    let ips: Vec<_> = addresses.iter().map(|address| address.ip).collect();
    let taken = monitor.taken(&ips);
    addresses.iter().try_for_each(|&address| match taken.iter().find(|(ip, _)| *ip == address.ip) {
        None => Ok(()),
        Some((_, owner)) => Err(NetError::AddressTaken { address, owner: owner.clone() }),
    })
}

impl Interface {
    /// An interface over the ports of a device.
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { capabilities, .. } = parts;
        let link = match capabilities.medium {
            Medium::Ip => 0,
            Medium::Ethernet(address) => pack(address),
        };
        let settings = Settings {
            addresses: parts.addresses,
            device_mtu: capabilities.mtu,
            mtu_limit: u16::MAX,
            is_enabled: true,
            has_link: true,
            taken: Vec::new(),
            proxies: Vec::new(),
            is_router: false,
        };
        Self {
            id: parts.id,
            name: parts.name,
            capabilities,
            any_destination: parts.any_destination,
            answers_echo: parts.answers_echo,
            ignores_hop_limit: parts.ignores_hop_limit,
            settings: Mutex::new(settings),
            mtu: AtomicU16::new(capabilities.mtu),
            is_up: AtomicBool::new(true),
            is_unread: AtomicBool::new(parts.begins_unread),
            link: AtomicU64::new(link),
            ports: parts.ports,
            steering: parts.steering,
            monitor: Mutex::new(parts.monitor),
            neighbors: Mutex::new(Neighbors::new(parts.seed)),
            router: Mutex::default(),
            heard: Mutex::default(),
            counters: parts.counters,
            housekeeping: parts.housekeeping,
        }
    }

    pub(crate) fn id(&self) -> InterfaceId {
        self.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether packets to addresses of others are taken, see [`InterfaceOptions`].
    pub(crate) fn takes_any_destination(&self) -> bool {
        self.any_destination
    }

    /// Whether echo requests to addresses of others are answered here.
    pub(crate) fn answers_echo(&self) -> bool {
        self.answers_echo
    }

    /// Whether packets to addresses of others end here when their hops are used up.
    pub(crate) fn honours_hop_limit(&self) -> bool {
        !self.ignores_hop_limit
    }

    /// The queue at which the packets of a flow arrive, where the device knows.
    pub(crate) fn queue_of(&self, tuple: &FourTuple) -> Option<usize> {
        let steering = self.steering.as_ref()?;
        Some(steering.queue_of(tuple.local_addr(), tuple.remote_addr()))
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        lock(&self.settings).addresses.clone()
    }

    /// Whether an address of IPv4 is on it.
    pub(crate) fn has_v4(&self) -> bool {
        lock(&self.settings).addresses.iter().any(|own| own.ip.is_ipv4())
    }

    /// Whether an address of IPv6 is on it.
    pub(crate) fn has_v6(&self) -> bool {
        lock(&self.settings).addresses.iter().any(|own| own.ip.is_ipv6())
    }

    /// Gives the interface one more address.
    pub(crate) fn add_address(&self, address: Address) -> Result<(), NetError> {
        let mut settings = lock(&self.settings);
        if settings.addresses.iter().any(|own| own.ip == address.ip) {
            return Err(NetError::AddressExists { address: address.ip, interface: self.id });
        }
        settings.addresses.push(address);
        Ok(())
    }

    /// Takes an address away, which is returned with its prefix.
    pub(crate) fn remove_address(&self, address: IpAddr) -> Result<Address, NetError> {
        let mut settings = lock(&self.settings);
        let at = settings.addresses.iter().position(|own| own.ip == address);
        let at = at.ok_or(NetError::NoAddress { address, interface: self.id })?;
        Ok(settings.addresses.remove(at))
    }

    /// Largest IP packet, in bytes.
    pub(crate) fn mtu(&self) -> u16 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// Whether the device is left unread.
    pub(crate) fn is_unread(&self) -> bool {
        self.is_unread.load(Ordering::Relaxed)
    }

    /// Lets the device be read; whether it was not.
    pub(crate) fn begin_reading(&self) -> bool {
        self.is_unread.swap(false, Ordering::Relaxed)
    }

    /// Whether packets pass: the interface is enabled, and its device has a link.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Lets no packet be larger than `mtu` bytes. Whether that changes the MTU.
    pub(crate) fn set_mtu(&self, mtu: u16) -> Result<bool, NetError> {
        let mut settings = lock(&self.settings);
        let has_v6 = settings.addresses.iter().any(|own| own.ip.is_ipv6());
        let least = if has_v6 { MIN_MTU_V6 } else { MIN_MTU_V4 };
        let most = settings.device_mtu;
        if !(least..=most).contains(&mtu) {
            return Err(NetError::Mtu { mtu, least, most, interface: self.id });
        }
        settings.mtu_limit = if mtu == most { u16::MAX } else { mtu };
        Ok(self.publish_mtu(&settings).is_some())
    }

    /// The new MTU, if it has changed. Called under the lock of the settings.
    fn publish_mtu(&self, settings: &Settings) -> Option<u16> {
        let mtu = settings.mtu();
        if self.mtu.swap(mtu, Ordering::Relaxed) == mtu {
            return None;
        }
        self.ports.iter().for_each(|port| port.set_mtu(mtu));
        Some(mtu)
    }

    /// Whether the link is up, if that has changed. Called under the lock of the settings.
    fn publish_link(&self, settings: &Settings, now: Instant) -> Option<bool> {
        let is_up = settings.is_up();
        if self.is_up.swap(is_up, Ordering::Relaxed) == is_up {
            return None;
        }
        self.ports.iter().for_each(|port| port.set_link(is_up, now));
        if is_up {
            self.restart_router(now);
        }
        Some(is_up)
    }

    /// Whether routes through the interface may be used.
    pub(crate) fn is_enabled(&self) -> bool {
        lock(&self.settings).is_enabled
    }

    /// Enables the interface or disables it (`ip link set DEV up`). Whether the link is up
    /// afterwards, if that has changed.
    pub(crate) fn set_enabled(&self, is_enabled: bool, now: Instant) -> Option<bool> {
        if !is_enabled {
            self.withdraw_router(Visit::new(now, 0));
        }
        let mut settings = lock(&self.settings);
        settings.is_enabled = is_enabled;
        self.publish_link(&settings, now)
    }

    /// Asks the device what has become of it, and acts by the answer. Several threads may look: the
    /// lock of the monitor keeps an older answer from being acted by after a later one. The lock of
    /// the settings is taken under it.
    pub(crate) fn look(&self, now: Instant) -> LinkChanges {
        let mut monitor = lock(&self.monitor);
        let status = monitor.as_mut().map(|monitor| monitor.look());
        status.map_or_else(LinkChanges::default, |status| self.on_status(status, now))
    }

    /// Packets that were lost before they came to a queue of the device.
    pub(crate) fn lost_before_queues(&self) -> u64 {
        lock(&self.monitor).as_mut().map_or(0, |monitor| monitor.lost_before_queues())
    }

    /// Refuses an address that the kernel of the machine has.
    pub(crate) fn check_free(&self, address: Address) -> Result<(), NetError> {
        check_free(lock(&self.monitor).as_deref_mut(), &[address])
    }

    /// The own addresses that the kernel of the machine has got since the last look, each with the
    /// name of the kernel's interface.
    pub(crate) fn newly_taken(&self) -> Vec<(IpAddr, String)> {
        let own: Vec<_> = self.addresses().iter().map(|own| own.ip).collect();
        let taken = lock(&self.monitor).as_mut().map(|monitor| monitor.taken(&own));
        let mut taken = taken.unwrap_or_default();
        let addresses = taken.iter().map(|&(address, _)| address).collect();
        let before = core::mem::replace(&mut lock(&self.settings).taken, addresses);
        taken.retain(|(address, _)| !before.contains(address));
        taken
    }

    /// Acts by what the device says of itself.
    pub(crate) fn on_status(&self, status: LinkStatus, now: Instant) -> LinkChanges {
        let mut changes = LinkChanges::default();
        if status.state == LinkState::Gone {
            changes.is_gone = true;
            return changes;
        }
        let mut settings = lock(&self.settings);
        if let Some(mtu) = status.mtu {
            settings.device_mtu = mtu;
            changes.mtu = self.publish_mtu(&settings);
        }
        settings.has_link = status.state == LinkState::Up;
        changes.link = self.publish_link(&settings, now);
        drop(settings);
        if let (Some(address), Some(own)) = (status.address, self.link_address())
            && address != own
        {
            self.link.store(pack(address), Ordering::Relaxed);
            // The station may be another one on another link (`neigh_changeaddr`).
            self.flush_neighbors();
        }
        changes
    }

    /// The interface is no longer part of a host: drops what waits, and gives the device back. The
    /// link hears that it has lost a router.
    pub(crate) fn close(&self, now: Instant) {
        self.end_router(Visit::new(now, 0));
        drop(lock(&self.monitor).take());
        let held = lock(&self.neighbors).close();
        self.counters.drops.add(DropReason::LinkDown, held.len() as u64);
        for port in &self.ports {
            port.close(now);
        }
    }

    /// The port that a shard's sockets send through.
    pub(crate) fn port(&self, shard: usize) -> &Arc<Port> {
        &self.ports[shard % self.ports.len()]
    }

    pub(crate) fn ports(&self) -> &[Arc<Port>] {
        &self.ports
    }

    /// What the device can do, with the MTU and the link address of now.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let medium = self.link_address().map_or(Medium::Ip, Medium::Ethernet);
        Capabilities { mtu: self.mtu(), medium, ..self.capabilities }
    }

    /// Whether the device finishes partial checksums.
    pub(crate) fn has_checksum_tx(&self) -> bool {
        self.capabilities.checksum_tx
    }

    /// The own link address; `None` where there are no neighbours.
    pub(crate) fn link_address(&self) -> Option<LinkAddress> {
        match self.capabilities.medium {
            Medium::Ip => None,
            Medium::Ethernet(_) => {
                let [_, _, rest @ ..] = self.link.load(Ordering::Relaxed).to_be_bytes();
                Some(rest)
            }
        }
    }

    /// Whether this is an address on this interface.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        lock(&self.settings).addresses.iter().any(|own| own.ip == address)
    }

    /// Whether a message of neighbour or router discovery to this group is for this host.
    pub(crate) fn hears(&self, group: Ipv6Addr) -> bool {
        let settings = lock(&self.settings);
        group == ALL_NODES
            || (group == ALL_ROUTERS && settings.is_router)
            || settings.addresses.iter().any(|own| match own.ip {
                IpAddr::V6(own) => icmpv6::solicited_node(own) == group,
                IpAddr::V4(_) => false,
            })
            || Self::proxies_group(&settings.proxies, group)
    }

    /// The address that packets to `remote`, which may be any number of hops away, are sent from by
    /// way of `next_hop` if nothing else is said. IPv4 asks for one in the network of the next hop
    /// (`inet_select_addr`). IPv6 compares with the destination (RFC 6724 section 5): the scope
    /// first (rule 2), then the bits in common (rule 8).
    pub(crate) fn source_towards(&self, remote: IpAddr, next_hop: IpAddr) -> Option<IpAddr> {
        self.source_for(if remote.is_ipv4() { next_hop } else { remote })
    }

    /// The address that packets to a neighbour, or by IPv6 to anybody, are sent from if nothing
    /// else is said.
    pub(crate) fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let settings = lock(&self.settings);
        let addresses = settings.addresses.iter();
        let same_family = addresses.filter(|own| own.ip.is_ipv4() == remote.is_ipv4());
        let fitness = |own: &Address| {
            let is_of_scope = is_link_local(own.ip) == is_link_local(remote);
            let common = if remote.is_ipv4() { 0 } else { own.prefix.common_bits(remote) };
            (own.prefix.contains(remote), is_of_scope, common)
        };
        // Of equal ones the first.
        same_family.rev().max_by_key(|own| fitness(own)).map(|own| own.ip)
    }

    /// Sends an IP packet to a neighbour: at once if its link address is known, otherwise when it
    /// has answered.
    pub(crate) fn output(&self, visit: Visit, neighbor: IpAddr, mut frame: Frame) -> Output {
        let Some(own) = self.link_address() else {
            return Output::of(self.enqueue(visit, frame));
        };
        // Who listens to a group, or to all, is not asked for.
        let link = if neighbor == Ipv4Addr::BROADCAST {
            Some(ethernet::BROADCAST)
        } else {
            group_link(neighbor)
        };
        let resolved = match link {
            Some(link) => Some(Resolved { link, due: None }),
            None => lock(&self.neighbors).resolve(visit.now, neighbor),
        };
        if let Some(resolved) = resolved {
            if let Some(due) = resolved.due {
                self.housekeeping.schedule(due);
            }
            add_link_header(&mut frame, own, resolved.link);
            return Output::of(self.enqueue(visit, frame));
        }
        let hold = |neighbors: &mut Neighbors, out: &mut Outcome| {
            neighbors.hold(visit.now, neighbor, frame, out);
        };
        let undeliverable = self.ask_neighbors(visit, hold);
        Output { undeliverable, ..Output::of(Verdict::Queued) }
    }

    /// Tells the device of what it has and was not told of; see [`Visit::has_more`].
    pub(crate) fn flush(&self, shard: usize, now: Instant) {
        self.port(shard).flush(now);
    }

    /// Queues a frame that has its link header.
    fn enqueue(&self, visit: Visit, frame: Frame) -> Verdict {
        self.port(visit.shard).enqueue_before(frame, visit.now, visit.has_more)
    }

    /// Lets `f` work on the neighbours, then does, without their lock, what follows from it. The
    /// packets whose neighbour does not answer are returned.
    fn ask_neighbors(
        &self,
        visit: Visit,
        f: impl FnOnce(&mut Neighbors, &mut Outcome),
    ) -> Vec<Undeliverable> {
        let mut out = Outcome::default();
        let mut neighbors = lock(&self.neighbors);
        f(&mut neighbors, &mut out);
        let due = neighbors.deadline();
        drop(neighbors);
        self.housekeeping.schedule(due);
        let Some(own) = self.link_address() else { return Vec::new() };
        for solicit in out.solicit {
            self.solicit(visit, own, solicit);
        }
        for (link, mut frame) in out.send {
            add_link_header(&mut frame, own, link);
            self.enqueue(visit, frame);
        }
        let lost = out.discarded.len() + out.failed.len();
        self.counters.drops.add(DropReason::Neighbor, lost as u64);
        let interface = self.id();
        out.failed.into_iter().map(|(_, frame)| Undeliverable { frame, interface }).collect()
    }

    fn solicit(&self, visit: Visit, own: LinkAddress, solicit: Solicit) {
        let Some(source) = self.source_for(solicit.target) else { return };
        let (target, source) = match (solicit.target, source) {
            (IpAddr::V4(target), IpAddr::V4(sender)) => {
                let packet = arp::Packet {
                    operation: arp::Operation::Request,
                    sender_link: own,
                    sender,
                    target_link: [0; 6],
                    target,
                };
                return self.send_arp(
                    visit,
                    own,
                    solicit.to.unwrap_or(ethernet::BROADCAST),
                    &packet,
                );
            }
            (IpAddr::V6(target), IpAddr::V6(source)) => (target, source),
            _ => return,
        };
        let message = icmpv6::Message::NeighborSolicitation { target, source_link: Some(own) };
        let group = icmpv6::solicited_node(target);
        let (to, link) = match solicit.to {
            Some(link) => (target, link),
            None => (group, icmpv6::multicast_link(group)),
        };
        let (from, to) = (Station { ip: source, link: own }, Station { ip: to, link });
        self.send_neighbor_message(visit, from, to, message);
    }

    fn send_arp(&self, visit: Visit, own: LinkAddress, to: LinkAddress, packet: &arp::Packet) {
        let mut headers = Headers::default();
        packet.emit(&mut headers);
        let ether_type = ethernet::EtherType::ARP;
        ethernet::Header { destination: to, source: own, ether_type }.emit(&mut headers);
        self.enqueue(visit, link_frame(headers, Payload::new()));
    }

    /// Sends a message of neighbour discovery to a neighbour whose link address is not said, but
    /// may be known.
    pub(crate) fn send_neighbor_answer(
        &self,
        visit: Visit,
        from: Ipv6Addr,
        to: Ipv6Addr,
        message: icmpv6::Message,
    ) {
        let headers = self.discovery_headers(from, to, message, &Payload::new());
        // Nobody waits for an answer that is given up.
        let _ = self.output(visit, to.into(), Frame::new(headers, Payload::new()));
    }

    /// Sends a message of neighbour discovery.
    pub(crate) fn send_neighbor_message(
        &self,
        visit: Visit,
        from: Station,
        to: Station,
        message: icmpv6::Message,
    ) {
        self.send_discovery(visit, from, to, message, Payload::new());
    }

    /// The headers of a message of neighbour or router discovery, without a link header.
    fn discovery_headers(
        &self,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        message: icmpv6::Message,
        body: &Payload,
    ) -> Headers {
        let mut headers = Headers::default();
        message.emit(&mut headers, source, destination, body);
        let len = headers.len() as u32 + body.len();
        let header = ipv6::Header {
            source,
            destination,
            protocol: Protocol::ICMPV6,
            hop_limit: icmpv6::NEIGHBOR_HOP_LIMIT,
            dscp: 0,
            ecn: Ecn::NotEct,
            flow_label: 0,
        };
        header.emit(&mut headers, len as u16);
        let octets = headers.len() as u64 + u64::from(body.len());
        self.counters.ip.add(IpCounter::Icmp6OutMsgs, 1);
        self.counters.ip.add(IpCounter::Ip6OutRequests, 1);
        self.counters.ip.add(IpCounter::Ip6OutOctets, octets);
        headers
    }

    /// An ARP packet: learns from it, and answers a question for an own address (RFC 826), or for
    /// one that the interface answers for (RFC 1027).
    ///
    /// A probe (RFC 5227, sender 0.0.0.0) for an address of others gets no answer, as in Linux: its
    /// sender wants to have the address, and would take an answer for a conflict.
    ///
    /// A reply that came by broadcast does not say that its sender hears this host (`arp_process`).
    pub(crate) fn on_arp(&self, visit: Visit, packet: &arp::Packet, is_broadcast: bool) {
        let Some(own) = self.link_address() else { return };
        let is_claim = packet.sender == packet.target;
        let is_probe = packet.sender == Ipv4Addr::UNSPECIFIED;
        let target = packet.target.into();
        let is_for_us = self.has(target) || (!is_claim && !is_probe && self.is_proxy_for(target));
        if self.has(packet.sender.into()) || packet.sender == Ipv4Addr::UNSPECIFIED {
            // A duplicate address or a probe: nothing to learn, but a probe is answered.
            if packet.sender != Ipv4Addr::UNSPECIFIED {
                return;
            }
        } else if packet.operation == arp::Operation::Request && is_for_us {
            self.on_solicited_by(visit, packet.sender.into(), packet.sender_link);
        } else {
            let is_reply = packet.operation == arp::Operation::Reply;
            let solicited = is_reply && is_for_us && !is_claim && !is_broadcast;
            let link = Some(packet.sender_link);
            let said = Advertisement { link, solicited, replace: true, is_claim };
            self.on_advertisement(visit, packet.sender.into(), said);
        }
        if packet.operation == arp::Operation::Request && is_for_us {
            let reply = arp::Packet {
                operation: arp::Operation::Reply,
                sender_link: own,
                sender: packet.target,
                target_link: packet.sender_link,
                target: packet.sender,
            };
            self.send_arp(visit, own, packet.sender_link, &reply);
        }
    }

    /// A neighbour said where it is.
    pub(crate) fn on_advertisement(
        &self,
        visit: Visit,
        address: IpAddr,
        advertisement: Advertisement,
    ) {
        let failed = self.ask_neighbors(visit, |neighbors, out| {
            neighbors.on_advertisement(visit.now, address, advertisement, out);
        });
        debug_assert!(failed.is_empty(), "an answer fails nobody");
    }

    /// A neighbour asked for us and said where it is.
    pub(crate) fn on_solicited_by(&self, visit: Visit, address: IpAddr, link: LinkAddress) {
        let failed = self.ask_neighbors(visit, |neighbors, out| {
            neighbors.on_solicited_by(visit.now, address, link, out);
        });
        debug_assert!(failed.is_empty(), "a question fails nobody");
    }

    /// Asks again what neighbours did not answer, and advertises what is due. When to come back,
    /// and the packets whose neighbour does not answer.
    pub(crate) fn expire(&self, visit: Visit) -> (Instant, Vec<Undeliverable>) {
        let (advertise, mut undeliverable) = self.expire_router(visit);
        let (ask, failed) = self.expire_neighbors(visit);
        undeliverable.extend(failed);
        (advertise.min(ask), undeliverable)
    }

    fn expire_neighbors(&self, visit: Visit) -> (Instant, Vec<Undeliverable>) {
        let due = lock(&self.neighbors).deadline();
        if due > visit.now {
            return (due, Vec::new());
        }
        let failed =
            self.ask_neighbors(visit, |neighbors, out| neighbors.on_deadline(visit.now, out));
        (lock(&self.neighbors).deadline(), failed)
    }

    /// Names the link address of a neighbour for good; what waits for it leaves.
    pub(crate) fn add_neighbor(
        &self,
        visit: Visit,
        address: IpAddr,
        link: LinkAddress,
    ) -> Result<(), NetError> {
        self.check_has_neighbors()?;
        let mut has_room = false;
        let failed = self.ask_neighbors(visit, |neighbors, out| {
            has_room = neighbors.set_permanent(visit.now, address, link, out);
        });
        debug_assert!(failed.is_empty(), "an answer fails nobody");
        if has_room { Ok(()) } else { Err(NetError::NeighborTableFull(self.id)) }
    }

    /// Forgets a neighbour, permanent or not.
    pub(crate) fn remove_neighbor(&self, address: IpAddr) -> Result<(), NetError> {
        self.check_has_neighbors()?;
        let held = lock(&self.neighbors).remove(address);
        let held = held.ok_or(NetError::NoNeighbor { address, interface: self.id })?;
        self.counters.drops.add(DropReason::Neighbor, held.len() as u64);
        Ok(())
    }

    /// Forgets all neighbours that are not permanent.
    pub(crate) fn flush_neighbors(&self) {
        let held = lock(&self.neighbors).flush();
        self.counters.drops.add(DropReason::Neighbor, held.len() as u64);
    }

    pub(crate) fn check_has_neighbors(&self) -> Result<(), NetError> {
        self.link_address().map(drop).ok_or(NetError::NoNeighbors(self.id))
    }

    pub(crate) fn neighbors(&self, now: Instant) -> Vec<Neighbor> {
        lock(&self.neighbors).iter(now).collect()
    }

    /// Figures for a listing; `rx_dropped` is that of the device.
    pub(crate) fn info(&self, now: Instant, rx_dropped: u64) -> InterfaceInfo {
        InterfaceInfo {
            id: self.id,
            name: self.name.clone(),
            capabilities: self.capabilities(),
            link: if self.is_up() { LinkState::Up } else { LinkState::Down },
            addresses: self.addresses(),
            any_destination: self.any_destination,
            ports: self.ports.iter().map(|port| port.stats(now)).collect(),
            neighbors: self.neighbors(now),
            proxies: self.proxies(),
            rx_dropped,
        }
    }
}

/// A host on the link, by both of its addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Station {
    pub(crate) ip: Ipv6Addr,
    pub(crate) link: LinkAddress,
}

fn link_frame(headers: Headers, body: Payload) -> Frame {
    Frame { link_len: ethernet::HEADER_LEN as u8, flow: ORPHAN, ..Frame::new(headers, body) }
}

/// Puts the link header in front of an IP packet.
fn add_link_header(frame: &mut Frame, source: LinkAddress, destination: LinkAddress) {
    let ether_type =
        if frame.is_v4() { ethernet::EtherType::IPV4 } else { ethernet::EtherType::IPV6 };
    ethernet::Header { destination, source, ether_type }.emit(&mut frame.headers);
    frame.link_len = ethernet::HEADER_LEN as u8;
    if let Some(checksum) = &mut frame.checksum {
        checksum.start += ethernet::HEADER_LEN as u16;
    }
}

/// The Ethernet address of a group (RFC 1112 section 6.4, RFC 2464 section 7); `None` for an
/// address that is none of a group.
fn group_link(address: IpAddr) -> Option<LinkAddress> {
    match address {
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, b, c, d] = group.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(group) if group.is_multicast() => Some(icmpv6::multicast_link(group)),
        _ => None,
    }
}

/// Scope of the groups of one link, in the last bits of a group's second byte (RFC 4291 section
/// 2.7).
const LINK_SCOPE: u8 = 2;

/// Whether only neighbours on the link can mean this address.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) if address.is_multicast() => address.octets()[1] & 0xf <= LINK_SCOPE,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
