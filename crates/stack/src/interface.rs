//! Interfaces: a device's ports, the addresses on it, its neighbours; and the routes between them.

use crate::device::{Capabilities, Medium};
use crate::drop_reason::DropReason;
use crate::egress::Way;
use crate::frame::{Frame, Headers, ORPHAN};
use crate::icmp::{self, Context};
use crate::neighbor::{LinkAddress, Neighbor, Neighbors, Outcome, Solicit};
use crate::port::{Port, PortStats};
use crate::route::{Entry, Prefix, Route, Routes};
use crate::stack::Host;
use crate::stats::IpCounter;
use crate::sync::{Mutex, lock};
use crate::wire::{Protocol, arp, ethernet, icmpv6, ipv6};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use core::sync::atomic::{AtomicU64, Ordering};
use neap_tcp::lateness::Departures;
use neap_tcp::segment::{Ecn, Payload};
use neap_tcp::time::Instant;
use neap_tcp::transmit::egress::Verdict;
use std::sync::Arc;

/// Names an interface of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceId(pub usize);

/// An address of this host and the network that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the network's prefix.
    pub prefix: Prefix,
}

impl Address {
    /// `ip` in a network of `len` bits.
    ///
    /// # Errors
    /// As [`Prefix::new`].
    pub fn new(ip: IpAddr, len: u8) -> Result<Self, crate::route::PrefixError> {
        Ok(Self { ip, prefix: Prefix::new(ip, len)? })
    }
}

impl FromStr for Address {
    type Err = crate::route::PrefixError;
    /// `ADDRESS/LENGTH`, the host's bits kept.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let prefix: Prefix = text.parse()?;
        let ip = text.split_once('/').and_then(|(ip, _)| ip.parse().ok());
        Ok(Self { ip: ip.unwrap_or(prefix.network()), prefix })
    }
}

/// One interface.
#[derive(Debug)]
pub(crate) struct Interface {
    name: String,
    capabilities: Capabilities,
    addresses: Vec<Address>,
    ports: Vec<Arc<Port>>,
    neighbors: Mutex<Neighbors>,
}

/// An interface in a listing.
#[derive(Clone, Debug)]
pub struct InterfaceInfo {
    /// Name of the device.
    pub name: String,
    /// What the device can do.
    pub capabilities: Capabilities,
    /// Addresses.
    pub addresses: Vec<Address>,
    /// Figures of each queue's way out.
    pub ports: Vec<PortStats>,
    /// `ip neighbour`.
    pub neighbors: Vec<Neighbor>,
}

impl Interface {
    pub(crate) fn new(
        name: String,
        capabilities: Capabilities,
        addresses: Vec<Address>,
        ports: Vec<Arc<Port>>,
        seed: u64,
    ) -> Self {
        let neighbors = Mutex::new(Neighbors::new(seed));
        Self { name, capabilities, addresses, ports, neighbors }
    }

    /// The port that a shard's sockets send through.
    pub(crate) fn port(&self, shard: usize) -> &Arc<Port> {
        &self.ports[shard % self.ports.len()]
    }

    pub(crate) fn ports(&self) -> &[Arc<Port>] {
        &self.ports
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The own link address; `None` where there are no neighbours.
    pub(crate) fn link_address(&self) -> Option<LinkAddress> {
        match self.capabilities.medium {
            Medium::Ip => None,
            Medium::Ethernet(link) => Some(link),
        }
    }

    /// Whether this is an address on this interface.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.ip == address)
    }

    /// Whether a neighbour discovery message to this group is for this host.
    pub(crate) fn hears(&self, group: Ipv6Addr) -> bool {
        group == icmp::ALL_NODES
            || self.addresses.iter().any(|own| match own.ip {
                IpAddr::V6(own) => icmpv6::solicited_node(own) == group,
                IpAddr::V4(_) => false,
            })
    }

    /// Whether this is the address of all hosts of a network here.
    fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        self.addresses.iter().any(|own| own.prefix.broadcast() == Some(address))
    }

    /// The address that packets to `next_hop` are sent from if nothing else is said: one of the
    /// same network if possible, else one of the same scope.
    pub(crate) fn source_for(&self, next_hop: IpAddr) -> Option<IpAddr> {
        let same_family = || self.addresses.iter().filter(|a| a.ip.is_ipv4() == next_hop.is_ipv4());
        let on_link = same_family().find(|address| address.prefix.contains(next_hop));
        let is_local = |ip| is_link_local(ip) == is_link_local(next_hop);
        on_link
            .or_else(|| same_family().find(|address| is_local(address.ip)))
            .or_else(|| same_family().next())
            .map(|address| address.ip)
    }

    /// Sends an IP packet to a neighbour: at once if its link address is known, otherwise when it
    /// has answered.
    pub(crate) fn output(
        &self,
        host: &Host,
        now: Instant,
        shard: usize,
        next_hop: IpAddr,
        mut frame: Frame,
    ) -> Verdict {
        let Some(own) = self.link_address() else {
            return self.enqueue(host, now, shard, frame);
        };
        let resolved = lock(&self.neighbors).resolve(now, next_hop);
        if let Some(link) = resolved {
            add_link_header(&mut frame, own, link);
            return self.enqueue(host, now, shard, frame);
        }
        let cx = Context { host, now, shard, interface: None };
        self.neighbor_work(cx, |neighbors, out| neighbors.hold(now, next_hop, frame, out));
        Verdict::Queued
    }

    fn enqueue(&self, host: &Host, now: Instant, shard: usize, frame: Frame) -> Verdict {
        let verdict = self.port(shard).enqueue(frame, now);
        if verdict == Verdict::Dropped {
            host.drops.count(DropReason::QdiscDrop);
        }
        verdict
    }

    /// Lets `f` work on the neighbours, then does, without their lock, what follows from it.
    fn neighbor_work(&self, cx: Context<'_>, f: impl FnOnce(&mut Neighbors, &mut Outcome)) {
        let mut out = Outcome::default();
        let mut neighbors = lock(&self.neighbors);
        f(&mut neighbors, &mut out);
        let due = neighbors.deadline();
        drop(neighbors);
        cx.host.schedule(due);
        let Some(own) = self.link_address() else { return };
        for solicit in out.solicit {
            self.solicit(cx, own, solicit);
        }
        for (link, mut frame) in out.send {
            add_link_header(&mut frame, own, link);
            self.enqueue(cx.host, cx.now, cx.shard, frame);
        }
        cx.host.drops.add(DropReason::Neighbor, (out.discarded.len() + out.failed.len()) as u64);
        for (_, frame) in out.failed {
            icmp::on_link_failure(cx, &frame);
        }
    }

    fn solicit(&self, cx: Context<'_>, own: LinkAddress, solicit: Solicit) {
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
                return self.send_arp(cx, own, solicit.to.unwrap_or(ethernet::BROADCAST), &packet);
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
        self.send_neighbor_message(cx, (source, own), (to, link), message);
    }

    fn send_arp(&self, cx: Context<'_>, own: LinkAddress, to: LinkAddress, packet: &arp::Packet) {
        let mut headers = Headers::default();
        packet.emit(&mut headers);
        let ether_type = ethernet::EtherType::ARP;
        ethernet::Header { destination: to, source: own, ether_type }.emit(&mut headers);
        self.enqueue(cx.host, cx.now, cx.shard, link_frame(headers));
    }

    /// Sends a message of neighbour discovery from and to these IP and link addresses.
    pub(crate) fn send_neighbor_message(
        &self,
        cx: Context<'_>,
        (source, own): (Ipv6Addr, LinkAddress),
        (destination, link): (Ipv6Addr, LinkAddress),
        message: icmpv6::Message,
    ) {
        let mut headers = Headers::default();
        message.emit(&mut headers, source, destination, &Payload::new());
        let len = headers.len() as u16;
        let header = ipv6::Header {
            source,
            destination,
            protocol: Protocol::ICMPV6,
            hop_limit: icmpv6::NEIGHBOR_HOP_LIMIT,
            dscp: 0,
            ecn: Ecn::NotEct,
            flow_label: 0,
        };
        header.emit(&mut headers, len);
        let ether_type = ethernet::EtherType::IPV6;
        ethernet::Header { destination: link, source: own, ether_type }.emit(&mut headers);
        cx.host.ip.add(IpCounter::Icmp6OutMsgs, 1);
        self.enqueue(cx.host, cx.now, cx.shard, link_frame(headers));
    }

    /// An ARP packet: learns from it, and answers a question for an own address (RFC 826).
    pub(crate) fn on_arp(&self, cx: Context<'_>, packet: &arp::Packet) {
        let Some(own) = self.link_address() else { return };
        let is_for_us = self.has(packet.target.into());
        let is_claim = packet.sender == packet.target;
        if self.has(packet.sender.into()) || packet.sender == Ipv4Addr::UNSPECIFIED {
            // A duplicate address or a probe: nothing to learn, but a probe is answered.
            if packet.sender != Ipv4Addr::UNSPECIFIED {
                return;
            }
        } else if packet.operation == arp::Operation::Request && is_for_us {
            self.on_solicited_by(cx, packet.sender.into(), packet.sender_link);
        } else {
            let solicited = packet.operation == arp::Operation::Reply && is_for_us && !is_claim;
            let (sender, link) = (packet.sender.into(), packet.sender_link);
            self.on_advertisement(cx, sender, link, solicited, true);
        }
        if packet.operation == arp::Operation::Request && is_for_us {
            let reply = arp::Packet {
                operation: arp::Operation::Reply,
                sender_link: own,
                sender: packet.target,
                target_link: packet.sender_link,
                target: packet.sender,
            };
            self.send_arp(cx, own, packet.sender_link, &reply);
        }
    }

    /// A neighbour said where it is.
    pub(crate) fn on_advertisement(
        &self,
        cx: Context<'_>,
        address: IpAddr,
        link: LinkAddress,
        solicited: bool,
        replace: bool,
    ) {
        self.neighbor_work(cx, |neighbors, out| {
            neighbors.on_advertisement(cx.now, address, link, solicited, replace, out);
        });
    }

    /// A neighbour asked for us and said where it is.
    pub(crate) fn on_solicited_by(&self, cx: Context<'_>, address: IpAddr, link: LinkAddress) {
        self.neighbor_work(cx, |neighbors, out| {
            neighbors.on_solicited_by(cx.now, address, link, out);
        });
    }

    /// Requests again what was not answered; when to come back.
    fn expire_neighbors(&self, cx: Context<'_>) -> Instant {
        let due = lock(&self.neighbors).deadline();
        if due > cx.now {
            return due;
        }
        self.neighbor_work(cx, |neighbors, out| neighbors.on_deadline(cx.now, out));
        lock(&self.neighbors).deadline()
    }

    fn info(&self, now: Instant) -> InterfaceInfo {
        InterfaceInfo {
            name: self.name.clone(),
            capabilities: self.capabilities,
            addresses: self.addresses.clone(),
            ports: self.ports.iter().map(|port| port.stats(now)).collect(),
            neighbors: lock(&self.neighbors).iter(now).collect(),
        }
    }
}

fn link_frame(headers: Headers) -> Frame {
    Frame {
        link_len: ethernet::HEADER_LEN as u8,
        flow: ORPHAN,
        ..Frame::new(headers, Payload::new())
    }
}

/// Puts the link header in front of an IP packet.
fn add_link_header(frame: &mut Frame, source: LinkAddress, destination: LinkAddress) {
    let is_v4 = frame.headers.as_slice().first().is_some_and(|byte| byte >> 4 == 4);
    let ether_type = if is_v4 { ethernet::EtherType::IPV4 } else { ethernet::EtherType::IPV6 };
    ethernet::Header { destination, source, ether_type }.emit(&mut frame.headers);
    frame.link_len = ethernet::HEADER_LEN as u8;
    if let Some(checksum) = &mut frame.checksum {
        checksum.start += ethernet::HEADER_LEN as u16;
    }
}

/// Whether only neighbours on the link can mean this address.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_multicast(),
    }
}

/// The addresses of a host, as they were at one generation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locals {
    own: Vec<IpAddr>,
    /// Of all hosts of a network.
    broadcast: Vec<Ipv4Addr>,
}

impl Locals {
    /// Whether `address` is this host. Cost: a comparison per address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.own.contains(&address)
    }

    /// Whether `address` is that of all hosts of a network. Cost: a comparison per network.
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(ip) if ip.is_broadcast() || self.broadcast.contains(&ip))
    }

    fn add(&mut self, address: &Address) {
        self.own.push(address.ip);
        if let IpAddr::V4(ip) = address.ip {
            let hosts = u32::MAX.checked_shr(address.prefix.len().into()).unwrap_or(0);
            // Networks of one or two hosts have none (RFC 3021).
            if hosts > 1 {
                self.broadcast.push(Ipv4Addr::from_bits(ip.to_bits() | hosts));
            }
        }
    }
}

/// What a host is attached to. One mutex; sockets keep what they found, with the generation.
pub(crate) struct Topology {
    net: Mutex<Net>,
    /// Of routes, interfaces and addresses together; read without the lock.
    generation: AtomicU64,
}

struct Net {
    interfaces: Vec<Arc<Interface>>,
    routes: Routes,
    /// Counts the changes of interfaces and addresses.
    changes: u64,
    locals: Arc<Locals>,
}

/// What was found for a destination.
pub(crate) struct Lookup {
    pub(crate) generation: u64,
    pub(crate) way: Way,
    /// Largest packet, what ICMP taught included.
    pub(crate) mtu: u32,
    /// When that is to be asked again.
    pub(crate) expires: Instant,
    /// Own address for sockets without one.
    pub(crate) source: Option<IpAddr>,
}

impl Net {
    fn generation(&self) -> u64 {
        self.routes.generation() + self.changes
    }
}

impl Topology {
    pub(crate) fn new(seed: u64) -> Self {
        let routes = Routes::new(seed);
        let generation = AtomicU64::new(routes.generation());
        let (interfaces, locals) = (Vec::new(), Arc::default());
        let net = Net { interfaces, routes, changes: 0, locals };
        Self { net: Mutex::new(net), generation }
    }

    /// Changes whenever an earlier answer may have become wrong.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn change<R>(&self, change: impl FnOnce(&mut Net) -> R) -> R {
        let mut net = lock(&self.net);
        let answer = change(&mut net);
        self.generation.store(net.generation(), Ordering::Release);
        answer
    }

    /// Adds an interface and the routes to its networks.
    pub(crate) fn add(&self, interface: Arc<Interface>) -> InterfaceId {
        self.change(|net| {
            let index = net.interfaces.len();
            for address in &interface.addresses {
                let route = Route {
                    interface: index,
                    gateway: None,
                    mtu: None,
                    pref_src: Some(address.ip),
                };
                let entry = Entry { prefix: address.prefix, metric: 0, route };
                // Of several addresses in one network the first is where packets come from.
                let is_known = |old: &Entry| old.prefix == entry.prefix && old.metric == 0;
                if !net.routes.entries().iter().any(is_known) {
                    net.routes.add(entry);
                }
            }
            net.changes += 1;
            let mut locals = Locals::clone(&net.locals);
            interface.addresses.iter().for_each(|address| locals.add(address));
            net.locals = Arc::new(locals);
            net.interfaces.push(interface);
            InterfaceId(index)
        })
    }

    /// Adds a route; false if there is no such interface.
    pub(crate) fn add_route(&self, entry: Entry) -> bool {
        self.change(|net| {
            let exists = entry.route.interface < net.interfaces.len();
            if exists {
                net.routes.add(entry);
            }
            exists
        })
    }

    pub(crate) fn remove_route(&self, prefix: Prefix, interface: InterfaceId) -> bool {
        self.change(|net| net.routes.remove(prefix, interface.0))
    }

    pub(crate) fn routes(&self) -> Vec<Entry> {
        lock(&self.net).routes.entries().to_vec()
    }

    /// The way to `remote`; `None` if it is unreachable.
    pub(crate) fn lookup(&self, now: Instant, remote: IpAddr) -> Option<Lookup> {
        let net = lock(&self.net);
        let generation = net.generation();
        let expires = Instant::FAR_FUTURE;
        if net.locals.contains(remote) {
            let mtu = crate::egress::LOOPBACK_MTU;
            let source = Some(remote);
            return Some(Lookup { generation, way: Way::Loopback, mtu, expires, source });
        }
        let route = net.routes.lookup(remote)?;
        let interface = net.interfaces.get(route.interface)?.clone();
        let next_hop = route.next_hop(remote);
        let link_mtu = u32::from(interface.capabilities.mtu);
        let mut mtu = route.mtu.map_or(link_mtu, |mtu| mtu.min(link_mtu));
        let known = net.routes.path_mtu(now, remote);
        let expires = known.map_or(expires, |(_, expires)| expires);
        mtu = known.map_or(mtu, |(known, _)| known.min(mtu));
        let source = route.pref_src.or_else(|| interface.source_for(next_hop));
        Some(Lookup { generation, way: Way::Link(interface, next_hop), mtu, expires, source })
    }

    /// Believes that no more than `mtu` bytes reach `remote`, where `current` did so far.
    pub(crate) fn on_packet_too_big(&self, now: Instant, remote: IpAddr, mtu: u32, current: u32) {
        self.change(|net| net.routes.on_packet_too_big(now, remote, mtu, current));
    }

    /// Whether packets to this address go to all hosts of a network.
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else { return false };
        address.is_broadcast()
            || lock(&self.net).interfaces.iter().any(|one| one.is_broadcast(address))
    }

    pub(crate) fn locals(&self) -> Arc<Locals> {
        lock(&self.net).locals.clone()
    }

    pub(crate) fn interface(&self, id: InterfaceId) -> Option<Arc<Interface>> {
        lock(&self.net).interfaces.get(id.0).cloned()
    }

    fn interfaces(&self) -> Vec<Arc<Interface>> {
        lock(&self.net).interfaces.clone()
    }

    /// Adds how late the qdiscs let frames go that they held until their departure.
    pub(crate) fn add_departures(&self, departures: &mut Departures) {
        for interface in self.interfaces() {
            interface.ports.iter().for_each(|port| port.add_departures(departures));
        }
    }

    /// Figures of all interfaces.
    pub(crate) fn info(&self, now: Instant) -> Vec<InterfaceInfo> {
        self.interfaces().iter().map(|interface| interface.info(now)).collect()
    }

    /// Lets all interfaces repeat what neighbours did not answer; when to come back.
    pub(crate) fn expire_neighbors(&self, host: &Host, now: Instant) -> Instant {
        let cx = Context { host, now, shard: 0, interface: None };
        let due = self.interfaces().iter().map(|one| one.expire_neighbors(cx)).min();
        due.unwrap_or(Instant::FAR_FUTURE)
    }

    /// Forgets all interfaces and routes.
    pub(crate) fn clear(&self) {
        let gone = self.change(|net| {
            let gone = core::mem::take(&mut net.interfaces);
            for entry in net.routes.entries().to_vec() {
                net.routes.remove(entry.prefix, entry.route.interface);
            }
            net.locals = Arc::default();
            net.changes += 1;
            gone
        });
        drop(gone);
    }
}
