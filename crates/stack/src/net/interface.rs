//! Interfaces: a device's ports, the addresses on it, and its neighbours.

use super::Visit;
use super::housekeeping::Housekeeping;
use super::neighbor::{LinkAddress, Neighbor, Neighbors, Outcome, Solicit};
use super::port::{Port, PortStats};
use super::route::{Prefix, PrefixError};
use crate::device::{Capabilities, Medium};
use crate::drop_reason::DropReason;
use crate::frame::{Frame, Headers, ORPHAN};
use crate::stats::{IpCounter, PacketCounters};
use crate::sync::{Mutex, lock};
use crate::wire::{Protocol, arp, ethernet, icmpv6, ipv6};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use neap_tcp::segment::{Ecn, Payload};
use neap_tcp::time::Instant;
use neap_tcp::transmit::egress::Verdict;
use std::sync::Arc;

/// All nodes on the link (RFC 4291 section 2.7.1).
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Name of an interface of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceId(pub usize);

/// Address of this host, and the network that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// IP address.
    pub ip: IpAddr,
    /// Prefix of the network.
    pub prefix: Prefix,
}

impl Address {
    /// Returns the address `ip` in a network with a prefix of `len` bits.
    ///
    /// # Errors
    /// [`Prefix::new`] names them.
    pub fn new(ip: IpAddr, len: u8) -> Result<Self, PrefixError> {
        Ok(Self { ip, prefix: Prefix::new(ip, len)? })
    }
}

impl FromStr for Address {
    type Err = PrefixError;
    /// Parses `ADDRESS/LENGTH`. The bits of the host are kept.
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
    counters: Arc<PacketCounters>,
    housekeeping: Arc<Housekeeping>,
}

/// What became of a packet that was to leave.
#[derive(Debug)]
#[must_use = "a socket may have to hear of what cannot be delivered"]
pub(crate) struct Output {
    pub(crate) verdict: Verdict,
    /// Packets that no neighbour will take, with their IP headers at the front.
    pub(crate) undeliverable: Vec<Frame>,
}

impl Output {
    /// Nothing is undeliverable.
    pub(crate) fn of(verdict: Verdict) -> Self {
        Self { verdict, undeliverable: Vec::new() }
    }
}

/// Figures of an interface.
#[derive(Clone, Debug)]
pub struct InterfaceInfo {
    /// Name of the device.
    pub name: String,
    /// Abilities of the device.
    pub capabilities: Capabilities,
    /// Addresses of this host on the interface.
    pub addresses: Vec<Address>,
    /// Figures of each queue's way out.
    pub ports: Vec<PortStats>,
    /// Neighbours, as `ip neighbour` shows them.
    pub neighbors: Vec<Neighbor>,
}

impl Interface {
    /// An interface over the ports of a device. `seed` is random; `counters` and `housekeeping` are
    /// the host's.
    pub(crate) fn new(
        name: String,
        capabilities: Capabilities,
        addresses: Vec<Address>,
        ports: Vec<Arc<Port>>,
        seed: u64,
        counters: Arc<PacketCounters>,
        housekeeping: Arc<Housekeeping>,
    ) -> Self {
        let neighbors = Mutex::new(Neighbors::new(seed));
        Self { name, capabilities, addresses, ports, neighbors, counters, housekeeping }
    }

    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses
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
        group == ALL_NODES
            || self.addresses.iter().any(|own| match own.ip {
                IpAddr::V6(own) => icmpv6::solicited_node(own) == group,
                IpAddr::V4(_) => false,
            })
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
    pub(crate) fn output(&self, visit: Visit, neighbor: IpAddr, mut frame: Frame) -> Output {
        let Some(own) = self.link_address() else {
            return Output::of(self.enqueue(visit, frame));
        };
        let resolved = lock(&self.neighbors).resolve(visit.now, neighbor);
        if let Some(link) = resolved {
            add_link_header(&mut frame, own, link);
            return Output::of(self.enqueue(visit, frame));
        }
        let hold = |neighbors: &mut Neighbors, out: &mut Outcome| {
            neighbors.hold(visit.now, neighbor, frame, out);
        };
        Output { verdict: Verdict::Queued, undeliverable: self.ask_neighbors(visit, hold) }
    }

    /// Queues a frame that has its link header.
    fn enqueue(&self, visit: Visit, frame: Frame) -> Verdict {
        let verdict = self.port(visit.shard).enqueue(frame, visit.now);
        if verdict == Verdict::Dropped {
            self.counters.drops.count(DropReason::QdiscDrop);
        }
        verdict
    }

    /// Lets `f` work on the neighbours, then does, without their lock, what follows from it. The
    /// packets whose neighbour does not answer are returned.
    fn ask_neighbors(
        &self,
        visit: Visit,
        f: impl FnOnce(&mut Neighbors, &mut Outcome),
    ) -> Vec<Frame> {
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
        out.failed.into_iter().map(|(_, frame)| frame).collect()
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
        self.enqueue(visit, link_frame(headers));
    }

    /// Sends a message of neighbour discovery.
    pub(crate) fn send_neighbor_message(
        &self,
        visit: Visit,
        from: Station,
        to: Station,
        message: icmpv6::Message,
    ) {
        let mut headers = Headers::default();
        message.emit(&mut headers, from.ip, to.ip, &Payload::new());
        let len = headers.len() as u16;
        let header = ipv6::Header {
            source: from.ip,
            destination: to.ip,
            protocol: Protocol::ICMPV6,
            hop_limit: icmpv6::NEIGHBOR_HOP_LIMIT,
            dscp: 0,
            ecn: Ecn::NotEct,
            flow_label: 0,
        };
        header.emit(&mut headers, len);
        let ether_type = ethernet::EtherType::IPV6;
        ethernet::Header { destination: to.link, source: from.link, ether_type }.emit(&mut headers);
        self.counters.ip.add(IpCounter::Icmp6OutMsgs, 1);
        self.enqueue(visit, link_frame(headers));
    }

    /// An ARP packet: learns from it, and answers a question for an own address (RFC 826).
    pub(crate) fn on_arp(&self, visit: Visit, packet: &arp::Packet) {
        let Some(own) = self.link_address() else { return };
        let is_for_us = self.has(packet.target.into());
        let is_claim = packet.sender == packet.target;
        if self.has(packet.sender.into()) || packet.sender == Ipv4Addr::UNSPECIFIED {
            // A duplicate address or a probe: nothing to learn, but a probe is answered.
            if packet.sender != Ipv4Addr::UNSPECIFIED {
                return;
            }
        } else if packet.operation == arp::Operation::Request && is_for_us {
            self.on_solicited_by(visit, packet.sender.into(), packet.sender_link);
        } else {
            let solicited = packet.operation == arp::Operation::Reply && is_for_us && !is_claim;
            let (sender, link) = (packet.sender.into(), packet.sender_link);
            self.on_advertisement(visit, sender, link, solicited, true);
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
        link: LinkAddress,
        solicited: bool,
        replace: bool,
    ) {
        let failed = self.ask_neighbors(visit, |neighbors, out| {
            neighbors.on_advertisement(visit.now, address, link, solicited, replace, out);
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

    /// Asks again what was not answered. When to come back, and the packets whose neighbour does
    /// not answer.
    pub(crate) fn expire_neighbors(&self, visit: Visit) -> (Instant, Vec<Frame>) {
        let due = lock(&self.neighbors).deadline();
        if due > visit.now {
            return (due, Vec::new());
        }
        let failed =
            self.ask_neighbors(visit, |neighbors, out| neighbors.on_deadline(visit.now, out));
        (lock(&self.neighbors).deadline(), failed)
    }

    /// Figures for a listing.
    pub(crate) fn info(&self, now: Instant) -> InterfaceInfo {
        InterfaceInfo {
            name: self.name.clone(),
            capabilities: self.capabilities,
            addresses: self.addresses.clone(),
            ports: self.ports.iter().map(|port| port.stats(now)).collect(),
            neighbors: lock(&self.neighbors).iter(now).collect(),
        }
    }
}

/// A host on the link, by both of its addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Station {
    pub(crate) ip: Ipv6Addr,
    pub(crate) link: LinkAddress,
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
