//! IP input: from a received packet to the socket that it is for, every drop counted.
//!
//! Cost per TCP segment in a batch: the parsers, a look among the held segments of GRO; per
//! super-segment a keyed hash and one probe of the demultiplexer.

use super::Host;
use super::demux::Recipient;
use super::forwarder::{Arrival, Fate, Refusal, SynContext};
use super::gro::Gro;
use super::icmp::{Arrived, IcmpMessage, Taken};
use super::listener::{Answer, Listener};
use super::remains::Looked;
use super::tcp::TcpSocket;
use super::udp::Delivered;
use super::udp_queue::ReceivedDatagram;
use crate::device::{Received, RxChecksum, RxQueue};
use crate::drop_reason::DropReason;
use crate::flow::FourTuple;
use crate::frame::Frame;
use crate::net::Visit;
use crate::net::egress::{CachedRoute, IpOptions};
use crate::net::gso;
use crate::net::icmp::{IcmpErrorKind, Notice, Receiver, Refused};
use crate::net::interface::Interface;
use crate::net::reassembly::{Part, Whole};
use crate::net::topology::{Locals, is_nobody};
use crate::stats::IpCounter;
use crate::wire::checksum::Pseudo;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{Protocol, arp, icmpv6, ipv4, ipv6, tcp, udp};
use bytes::{Buf, Bytes};
use core::net::{IpAddr, Ipv6Addr};
use neap_tcp::counters::Counter;
use neap_tcp::handshake::Accepted;
use neap_tcp::orphan::RemainsVerdict;
use neap_tcp::segment::{Ecn, Flags, Segment};
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::Instant;
use std::sync::Arc;

/// `All_DHCP_Relay_Agents_and_Servers` (RFC 8415 section 7.1).
const ALL_DHCP_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// The receive path in one batch.
pub(crate) struct Input<'a> {
    pub(crate) host: &'a Host,
    pub(crate) visit: Visit,
    /// Where the packet came in; `None` for what this host sent to itself.
    pub(crate) interface: Option<&'a Arc<Interface>>,
    /// The frame was for a group of stations.
    pub(crate) is_link_group: bool,
    /// The queue that it came from.
    pub(crate) rx: Option<&'a dyn RxQueue>,
    pub(crate) locals: &'a Locals,
    pub(crate) gro: &'a mut Gro<FourTuple>,
    pub(crate) batch: &'a mut Batch,
}

/// Whose address a packet that is taken was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addressee {
    /// This host, or a group that it is in.
    Own,
    /// Another host; the interface takes any destination.
    Foreign,
    /// All hosts of a network.
    Everybody,
    /// Nobody knows: an Ethernet interface without an address of IPv4 has got a datagram for one,
    /// as a DHCP client does whose server takes the offered address for granted (RFC 2131 section
    /// 4.1).
    Unconfigured,
}

/// One IP packet to this host, its header taken off.
struct Delivery<'a> {
    source: IpAddr,
    destination: IpAddr,
    ecn: Ecn,
    /// Hops left (`IP_RECVTTL`). That of a datagram which came in fragments is its last one's.
    hop_limit: u8,
    /// DSCP and ECN as they came (`IP_RECVTOS`), from the same packet.
    tos: u8,
    /// The destination is no own address: an interface took it that takes any destination.
    is_foreign: bool,
    /// The packet was for all hosts of a network.
    is_broadcast: bool,
    /// The sender may be told that nobody takes the packet: its destination is an address that this
    /// host may answer for, and it was for this station alone (RFC 1122 section 3.2.2).
    may_be_refused: bool,
    /// Payload of each coalesced segment, or 0.
    gso_size: u16,
    /// The device vouches for the transport checksum.
    is_verified: bool,
    /// The datagram that was put together from fragments, in memory of its own, if it was.
    whole: Option<&'a Whole>,
    /// The packet has the don't-fragment bit, or is of IPv6.
    dont_fragment: bool,
    /// The packet from its IP header on; the last one that came of a datagram in fragments.
    packet: &'a Bytes,
}

impl<'a> Delivery<'a> {
    /// It stands for a datagram that was put together.
    fn becomes(&mut self, whole: &'a Whole) {
        (self.ecn, self.gso_size) = (whole.ecn, 0);
        (self.is_verified, self.whole) = (false, Some(whole));
    }

    /// The packet that an ICMP error about it quotes.
    fn quotable(&self) -> Bytes {
        self.whole.map_or_else(|| self.packet.clone(), Whole::first_fragment)
    }
}

impl Input<'_> {
    /// Takes a packet from a device.
    pub(crate) fn receive(&mut self, mut packet: Received) {
        if let Some(own) = self.interface.and_then(|interface| interface.link_address()) {
            let Ok(header) = ethernet::parse(&packet.data) else {
                return self.drop(DropReason::LinkHeader);
            };
            let destination = header.destination;
            if destination != own && !ethernet::is_multicast(destination) {
                return self.drop(DropReason::LinkHeader);
            }
            self.is_link_group = destination != own;
            packet.data.advance(ethernet::HEADER_LEN);
            match header.ether_type {
                EtherType::IPV4 | EtherType::IPV6 => {}
                EtherType::ARP => return self.arp(&packet.data),
                _ => return self.drop(DropReason::UnhandledProtocol),
            }
        }
        self.packet(&packet);
    }

    /// Takes a frame that this host sent to itself.
    pub(crate) fn receive_frame(&mut self, frame: &Frame) {
        let gso_size = frame.gso.map_or(0, |gso| gso.size);
        let data = frame.to_bytes();
        self.packet(&Received { data, gso_size, checksum: RxChecksum::Good });
    }

    fn packet(&mut self, packet: &Received) {
        let is_verified = packet.checksum != RxChecksum::Unknown;
        match packet.data.first().map(|byte| byte >> 4) {
            Some(4) => self.v4(&packet.data, is_verified, packet.gso_size),
            Some(6) => self.v6(&packet.data, is_verified, packet.gso_size),
            _ => self.drop(DropReason::UnhandledProtocol),
        }
    }

    fn drop(&self, reason: DropReason) {
        self.host.net.counters.drops.count(reason);
    }

    fn count(&self, counter: IpCounter) {
        self.host.net.counters.ip.add(counter, 1);
    }

    fn arp(&self, data: &Bytes) {
        let Some(interface) = self.interface else { return };
        match arp::parse(data) {
            Ok(packet) => interface.on_arp(self.visit, &packet),
            Err(_) => self.drop(DropReason::Arp),
        }
    }

    fn v4(&mut self, data: &Bytes, is_verified: bool, gso_size: u16) {
        self.host.net.counters.ip.add(IpCounter::IpInOctets, data.len() as u64);
        let packet = match ipv4::parse(data) {
            Ok(packet) => packet,
            Err(_) => {
                self.count(IpCounter::IpInReceives);
                self.count(IpCounter::IpInHdrErrors);
                return self.drop(DropReason::IpHeader);
            }
        };
        let header = packet.header;
        // TCP is counted behind GRO, so that a super-packet counts once wherever it was joined; so
        // is the fragment that makes a segment whole.
        let is_counted_later = header.protocol == Protocol::TCP;
        if !is_counted_later {
            self.count(IpCounter::IpInReceives);
        }
        let count_now = || {
            if is_counted_later {
                self.count(IpCounter::IpInReceives);
            }
        };
        if header.ecn == Ecn::Ce {
            self.count(IpCounter::IpInCEPkts);
        }
        let (source, destination) = (header.source.into(), header.destination.into());
        let Some(addressee) = self.addressee(source, destination, header.protocol) else {
            count_now();
            return self.count(IpCounter::IpInAddrErrors);
        };
        let is_foreign = addressee == Addressee::Foreign;
        if is_foreign && self.has_expired(header.ttl, header.source.into(), data) {
            return count_now();
        }
        let mut delivery = Delivery {
            source: header.source.into(),
            destination: header.destination.into(),
            ecn: header.ecn,
            hop_limit: header.ttl,
            tos: header.dscp << 2 | header.ecn as u8,
            is_foreign,
            is_broadcast: addressee == Addressee::Everybody,
            may_be_refused: self.may_be_refused(addressee),
            gso_size,
            is_verified,
            whole: None,
            dont_fragment: header.dont_fragment,
            packet: data,
        };
        let Some(part) = Part::v4(&packet, data) else {
            let payload = data.slice(packet.payload);
            return self.deliver(&delivery, header.protocol, payload, Some(&header), None);
        };
        let Some(whole) = self.reassemble(&part) else { return count_now() };
        delivery.becomes(&whole);
        self.deliver(&delivery, whole.protocol, whole.data.clone(), Some(&header), None);
    }

    fn v6(&mut self, data: &Bytes, is_verified: bool, gso_size: u16) {
        self.host.net.counters.ip.add(IpCounter::Ip6InOctets, data.len() as u64);
        let packet = match ipv6::parse(data) {
            Ok(packet) => packet,
            Err(error) => {
                self.count(IpCounter::Ip6InReceives);
                self.count(IpCounter::Ip6InHdrErrors);
                return self.drop(match error {
                    ipv6::Error::Option { .. }
                    | ipv6::Error::Routing { .. }
                    | ipv6::Error::Extension
                    | ipv6::Error::TooMany => DropReason::Ipv6Extension,
                    _ => DropReason::IpHeader,
                });
            }
        };
        let header = packet.header;
        // As in IPv4. What fragments carry is known when they are whole.
        let is_counted_later = header.protocol == Protocol::TCP || packet.fragment.is_some();
        if !is_counted_later {
            self.count(IpCounter::Ip6InReceives);
        }
        let count_now = || {
            if is_counted_later {
                self.count(IpCounter::Ip6InReceives);
            }
        };
        let Some(addressee) = self.addressee_v6(&header, &data[packet.payload.clone()]) else {
            count_now();
            return self.count(IpCounter::Ip6InAddrErrors);
        };
        let is_foreign = addressee == Addressee::Foreign;
        if is_foreign && self.has_expired(header.hop_limit, header.source.into(), data) {
            return count_now();
        }
        let mut delivery = Delivery {
            source: header.source.into(),
            destination: header.destination.into(),
            ecn: header.ecn,
            hop_limit: header.hop_limit,
            tos: header.dscp << 2 | header.ecn as u8,
            is_foreign,
            is_broadcast: addressee == Addressee::Everybody,
            may_be_refused: self.may_be_refused(addressee),
            gso_size,
            is_verified,
            whole: None,
            dont_fragment: true,
            packet: data,
        };
        let Some(part) = Part::v6(&packet, data) else {
            let payload = data.slice(packet.payload.clone());
            return self.deliver(&delivery, header.protocol, payload, None, Some(&packet));
        };
        let Some(whole) = self.reassemble(&part) else { return count_now() };
        delivery.becomes(&whole);
        match ipv6::upper_layer(whole.protocol, &whole.data) {
            Ok((protocol, start)) => {
                if protocol != Protocol::TCP {
                    count_now();
                }
                let payload = whole.data.slice(start..);
                self.deliver(&delivery, protocol, payload, None, Some(&packet));
            }
            Err(_) => {
                count_now();
                self.drop(DropReason::Ipv6Extension);
            }
        }
    }

    /// Whose a packet with these addresses is; `None`, and the drop is counted, if this host may
    /// not take it.
    fn addressee(
        &self,
        source: IpAddr,
        destination: IpAddr,
        protocol: Protocol,
    ) -> Option<Addressee> {
        if self.locals.is_impossible(source, destination, self.interface.is_some()) {
            self.drop(DropReason::IpMartian);
            return None;
        }
        if self.locals.contains(destination) {
            return Some(Addressee::Own);
        }
        if self.locals.is_broadcast(destination) {
            if protocol == Protocol::UDP {
                return Some(Addressee::Everybody);
            }
            self.drop(DropReason::Broadcast);
            return None;
        }
        let takes_any = self.interface.is_some_and(|interface| interface.takes_any_destination());
        // Clients of DHCPv6 know their servers by this group only.
        if takes_any && protocol == Protocol::UDP && destination == IpAddr::V6(ALL_DHCP_SERVERS) {
            return Some(Addressee::Everybody);
        }
        // What is sent to all stations of a link is for none in particular.
        if takes_any && !self.is_link_group && self.locals.may_be_foreign(destination) {
            return Some(Addressee::Foreign);
        }
        let is_unconfigured = protocol == Protocol::UDP
            && destination.is_ipv4()
            && !self.is_link_group
            && self.interface.is_some_and(|one| one.link_address().is_some() && !one.has_v4())
            && self.locals.may_be_foreign(destination);
        if is_unconfigured {
            return Some(Addressee::Unconfigured);
        }
        self.drop(DropReason::IpOtherHost);
        None
    }

    /// Besides the host's own addresses: the groups of neighbour and router discovery, and as
    /// source of a solicitation the unspecified address; solicitations to an address that the
    /// interface answers for, which ask whether it is still there.
    fn addressee_v6(&self, header: &ipv6::Header, payload: &[u8]) -> Option<Addressee> {
        let may_be_discovery =
            header.protocol == Protocol::ICMPV6 && !is_nobody(header.source.into());
        let is_discovery = may_be_discovery
            && header.destination.is_multicast()
            && self.interface.is_some_and(|interface| interface.hears(header.destination));
        let is_proxied = || {
            let proxied =
                |interface: &&Arc<Interface>| interface.is_proxy_for(header.destination.into());
            icmpv6::is_solicitation(payload) && self.interface.filter(proxied).is_some()
        };
        if is_discovery || (may_be_discovery && is_proxied()) {
            return Some(Addressee::Own);
        }
        self.addressee(header.source.into(), header.destination.into(), header.protocol)
    }

    fn reassemble(&self, part: &Part<'_>) -> Option<Whole> {
        self.host.net.reassemble(self.visit, part)
    }

    fn deliver(
        &mut self,
        delivery: &Delivery<'_>,
        protocol: Protocol,
        payload: Bytes,
        v4: Option<&ipv4::Header>,
        v6: Option<&ipv6::Packet>,
    ) {
        match (protocol, v4, v6) {
            (Protocol::TCP, ..) => return self.tcp(delivery, payload),
            (Protocol::UDP, ..) => self.udp(delivery, payload),
            (Protocol::ICMP, Some(header), _) => {
                let receiver = self.receiver(delivery);
                let net = &self.host.net;
                let notice = net.receive_icmp_v4(self.visit, receiver, header, &payload);
                self.icmp(delivery, notice, payload);
            }
            (Protocol::ICMPV6, _, Some(packet)) => {
                let interface = self.interface.map(Arc::as_ref);
                let net = &self.host.net;
                let receiver = self.receiver(delivery);
                let notice = net.receive_icmp_v6(self.visit, interface, receiver, packet, &payload);
                self.icmp(delivery, notice, payload);
            }
            (Protocol::NO_NEXT_HEADER, _, Some(_)) => {}
            _ => {
                let unknown = match delivery.destination {
                    IpAddr::V4(_) => IpCounter::IpInUnknownProtos,
                    IpAddr::V6(_) => IpCounter::Ip6InUnknownProtos,
                };
                self.count(unknown);
                self.drop(DropReason::IpProtocol);
                return self.unreachable(delivery, false);
            }
        }
        self.count(match delivery.destination {
            IpAddr::V4(_) => IpCounter::IpInDelivers,
            IpAddr::V6(_) => IpCounter::Ip6InDelivers,
        });
    }

    /// Whose address an ICMP message was for.
    fn receiver(&self, delivery: &Delivery<'_>) -> Receiver {
        if !delivery.is_foreign {
            return Receiver::Own;
        }
        Receiver::Foreign { answers_echo: self.interface.is_some_and(|one| one.answers_echo()) }
    }

    /// Hands a message to those whom it concerns: a subscriber, the socket whose packet it quotes,
    /// or ICMP sockets.
    fn icmp(&self, delivery: &Delivery<'_>, notice: Option<Notice>, data: Bytes) {
        let is_foreign = delivery.is_foreign;
        let is_over = match notice {
            None => return,
            Some(Notice::Router(interface)) => return self.host.on_router(interface),
            Some(Notice::Done) => true,
            Some(Notice::Error(error)) => self.host.tell_of_error(self.visit, &error),
            Some(Notice::ForSockets) => false,
        };
        // Those of a link are nobody else's.
        let is_wanted = if is_foreign { !is_over } else { self.wants_own(&data, delivery) };
        let taken = if is_wanted { self.to_icmp_sockets(delivery, data) } else { Taken::ByNobody };
        match taken {
            Taken::ByAll => {}
            Taken::Full(count) => {
                self.host.net.counters.drops.add(DropReason::SocketReceiveBuffer, count);
            }
            Taken::ByNobody if is_over => {}
            Taken::ByNobody if is_foreign => self.drop(DropReason::NoSocketForeign),
            Taken::ByNobody => self.drop(DropReason::Icmp),
        }
    }

    /// Whether an ICMP socket may want a message to this host.
    fn wants_own(&self, data: &[u8], delivery: &Delivery<'_>) -> bool {
        let is_discovery = || {
            delivery.destination.is_ipv6() && data.first().is_some_and(|&k| icmpv6::is_discovery(k))
        };
        self.host.icmp.wants_own() && !is_discovery()
    }

    fn to_icmp_sockets(&self, delivery: &Delivery<'_>, data: Bytes) -> Taken {
        let message = IcmpMessage {
            hop_limit: delivery.hop_limit,
            tos: delivery.tos,
            interface: self.interface.map(|interface| interface.id()),
            ..IcmpMessage::new(delivery.source, delivery.destination, data)
        };
        let arrived = Arrived { message, is_alone: self.is_alone(delivery) };
        self.host.icmp.deliver(arrived, delivery.is_foreign)
    }

    /// Whether a packet to an address of others ends here because it has used up its hops. Its
    /// sender is told, as by a router, from an address of the interface.
    fn has_expired(&self, hop_limit: u8, source: IpAddr, packet: &Bytes) -> bool {
        let Some(interface) = self.interface.filter(|_| hop_limit <= 1) else { return false };
        if !interface.honours_hop_limit() {
            return false;
        }
        self.count(match source {
            IpAddr::V4(_) => IpCounter::IpInHdrErrors,
            IpAddr::V6(_) => IpCounter::Ip6InHdrErrors,
        });
        self.drop(DropReason::HopLimit);
        let from = |remote| interface.source_for(remote).ok_or(());
        let (net, error) = (&self.host.net, IcmpErrorKind::TimeExceeded);
        if let Ok(Err(Refused::Limited)) = net.send_error(self.visit, packet, error, from) {
            self.drop(DropReason::RateLimited);
        }
        true
    }

    fn may_be_refused(&self, addressee: Addressee) -> bool {
        !self.is_link_group && matches!(addressee, Addressee::Own | Addressee::Foreign)
    }

    /// Tells the sender that nobody takes its packet, if it may be told.
    fn unreachable(&self, delivery: &Delivery<'_>, is_port: bool) {
        if !delivery.may_be_refused {
            return;
        }
        let &Delivery { source, destination, .. } = delivery;
        let packet = delivery.quotable();
        self.host.net.send_unreachable(self.visit, source, destination, &packet, is_port);
    }

    /// Whether nothing else is in the memory of the payload, so that it may wait for long. Packets
    /// of a device share large buffers, and one that nobody reads would keep them all.
    fn is_alone(&self, delivery: &Delivery<'_>) -> bool {
        self.interface.is_none() || delivery.whole.is_some()
    }

    fn udp(&self, delivery: &Delivery<'_>, payload: Bytes) {
        let (source, destination) = (delivery.source, delivery.destination);
        let pseudo = Pseudo::of(source, destination, Protocol::UDP);
        let verify = match (delivery.is_verified, pseudo, destination) {
            (true, ..) | (_, None, _) => udp::Verify::Not,
            (_, Some(pseudo), IpAddr::V4(_)) => udp::Verify::IfPresent(pseudo),
            (_, Some(pseudo), IpAddr::V6(_)) => udp::Verify::Always(pseudo),
        };
        let datagram = match udp::parse(payload, verify) {
            Ok(datagram) => datagram,
            Err(error) => {
                self.count(IpCounter::UdpInErrors);
                if error == udp::Error::Checksum {
                    self.count(IpCounter::UdpInCsumErrors);
                    return self.drop(DropReason::UdpChecksum);
                }
                return self.drop(DropReason::UdpHeader);
            }
        };
        let segment = usize::from(delivery.gso_size);
        if segment > 0 && datagram.payload.len().div_ceil(segment) > gso::MOST_DATAGRAMS {
            self.count(IpCounter::UdpInErrors);
            return self.drop(DropReason::UdpHeader);
        }
        let tuple = FourTuple {
            local: destination,
            remote: source,
            local_port: datagram.ports.destination,
            remote_port: datagram.ports.source,
        };
        let received = ReceivedDatagram {
            from: tuple.remote_addr(),
            to: tuple.local_addr(),
            hop_limit: delivery.hop_limit,
            tos: delivery.tos,
            interface: self.interface.map(|interface| interface.id()),
            is_broadcast: delivery.is_broadcast,
            dont_fragment: delivery.dont_fragment && delivery.whole.is_none(),
            data: datagram.payload,
        };
        match self.host.udp.deliver(&tuple, &received, segment, self.is_alone(delivery)) {
            Some(delivered) => self.count_delivered(delivered),
            None if delivery.is_broadcast => {
                self.count(IpCounter::UdpIgnoredMulti);
                self.drop(DropReason::NoSocket);
            }
            None => {
                self.count(IpCounter::UdpNoPorts);
                let is_foreign = delivery.is_foreign;
                self.drop(if is_foreign {
                    DropReason::NoSocketForeign
                } else {
                    DropReason::NoSocket
                });
                self.unreachable(delivery, true);
            }
        }
    }

    fn count_delivered(&self, delivered: Delivered) {
        let Delivered { queued, buffer_full, no_memory } = delivered;
        let counters = &self.host.net.counters;
        counters.ip.add(IpCounter::UdpInDatagrams, queued);
        if buffer_full + no_memory == 0 {
            return;
        }
        counters.ip.add(IpCounter::UdpInErrors, buffer_full + no_memory);
        counters.ip.add(IpCounter::UdpRcvbufErrors, buffer_full);
        counters.ip.add(IpCounter::UdpMemErrors, no_memory);
        counters.drops.add(DropReason::SocketReceiveBuffer, buffer_full);
        counters.drops.add(DropReason::ProtocolMemory, no_memory);
    }

    fn tcp(&mut self, delivery: &Delivery<'_>, payload: Bytes) {
        let (source, destination) = (delivery.source, delivery.destination);
        if self.is_link_group {
            self.host.count_tcp_packet(destination.is_ipv4());
            return self.drop(DropReason::Broadcast);
        }
        let pseudo = Pseudo::of(source, destination, Protocol::TCP);
        let verify = pseudo.filter(|_| !delivery.is_verified);
        let counters = self.host.shards[self.visit.shard].counters();
        let (ports, mut segment) = match tcp::parse(payload, verify) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.host.count_tcp_packet(destination.is_ipv4());
                counters.add(Counter::InErrs, 1);
                return self.drop(match error {
                    tcp::Error::Checksum => DropReason::TcpChecksum,
                    _ => DropReason::TcpHeader,
                });
            }
        };
        segment.ecn = delivery.ecn;
        if u32::from(delivery.gso_size) < segment.payload.len() {
            segment.gso_size = delivery.gso_size;
        }
        let tuple = FourTuple {
            local: destination,
            remote: source,
            local_port: ports.destination,
            remote_port: ports.source,
        };
        let interface = self.interface.map(|interface| interface.id());
        let arrival = Arrival { interface, hop_limit: delivery.hop_limit, tos: delivery.tos };
        let Self { host, visit, rx, batch, gro, .. } = self;
        let hash = u64::from(ports.source) ^ u64::from(ports.destination);
        // What GRO has held is no SYN, so it does not matter how it arrived.
        gro.receive(tuple, hash, segment, &mut |tuple, segment| {
            host.on_segment(*visit, *rx, batch, &tuple, segment, arrival);
        });
    }
}

/// The connections that got segments in one receive batch; each transmits once, after the batch.
/// Looking for one costs a comparison for each connection before it, at most the budget; nothing is
/// allocated once the batch has seen its largest.
#[derive(Default)]
pub(crate) struct Batch {
    touched: Vec<(Arc<TcpSocket>, Arrival)>,
    /// Those of each touched connection; kept, empty, from batch to batch.
    segments: Vec<Vec<Segment>>,
    /// Those behind the end of their connections; kept, empty, too.
    late: Vec<(FourTuple, Segment, Arrival)>,
}

impl Batch {
    fn push(&mut self, socket: Arc<TcpSocket>, segment: Segment, arrival: Arrival) {
        let known = self.touched.iter().rposition(|(one, _)| Arc::ptr_eq(one, &socket));
        let at = known.unwrap_or_else(|| {
            self.touched.push((socket, arrival));
            self.touched.len() - 1
        });
        if self.segments.len() <= at {
            self.segments.push(Vec::new());
        }
        self.segments[at].push(segment);
    }

    /// Gives the connections their segments.
    ///
    /// A peer may end a connection and open another between the same ends in one batch, by a reset
    /// and a SYN for instance. What comes behind the end of a connection is for whoever is found
    /// then, as if it had come in a batch of its own.
    pub(crate) fn deliver(&mut self, host: &Host, visit: Visit) {
        loop {
            let Self { touched, segments, late, .. } = self;
            for ((socket, arrival), segments) in touched.drain(..).zip(segments) {
                socket.receive(host, visit.now, arrival, segments, late);
            }
            if late.is_empty() {
                return;
            }
            let mut late = core::mem::take(&mut self.late);
            for (tuple, segment, arrival) in late.drain(..) {
                host.dispatch(visit, None, self, &tuple, segment, arrival);
            }
            self.late = late;
        }
    }
}

impl Host {
    fn count_tcp_packet(&self, is_v4: bool) {
        let (received, delivered) = if is_v4 {
            (IpCounter::IpInReceives, IpCounter::IpInDelivers)
        } else {
            (IpCounter::Ip6InReceives, IpCounter::Ip6InDelivers)
        };
        self.net.counters.ip.add(received, 1);
        self.net.counters.ip.add(delivered, 1);
    }

    fn count_drop(&self, reason: DropReason) {
        self.net.counters.drops.count(reason);
    }

    /// Gives a segment, or several that GRO joined, to whom it concerns. A handshake may end with
    /// it, so a listener is told when it was there: by `rx`, or else at the time of the visit.
    pub(crate) fn on_segment(
        &self,
        visit: Visit,
        rx: Option<&dyn RxQueue>,
        batch: &mut Batch,
        tuple: &FourTuple,
        segment: Segment,
        arrival: Arrival,
    ) {
        self.count_tcp_packet(tuple.local.is_ipv4());
        let counters = self.shards[visit.shard].counters();
        counters.add(Counter::InSegs, u64::from(segment.segments()));
        self.dispatch(visit, rx, batch, tuple, segment, arrival);
    }

    /// As [`on_segment`](Self::on_segment), for a segment that is counted already.
    fn dispatch(
        &self,
        mut visit: Visit,
        rx: Option<&dyn RxQueue>,
        batch: &mut Batch,
        tuple: &FourTuple,
        segment: Segment,
        arrival: Arrival,
    ) {
        match self.demux.lookup(tuple) {
            Recipient::Connection(socket) => {
                if socket.cell.list().shard() != visit.shard {
                    self.net.counters.ip.add(IpCounter::CrossShard, 1);
                }
                batch.push(socket, segment, arrival);
            }
            Recipient::Remains => self.on_remains(visit, batch, tuple, segment, arrival),
            Recipient::Listener(listener) => {
                visit.now = rx.map_or(visit.now, |rx| rx.arrival(visit.now));
                self.on_listener(visit, batch, &listener, tuple, segment, (None, arrival));
            }
            Recipient::Nobody => self.on_stray(visit, tuple, &segment, None, arrival),
        }
    }

    /// A segment that no socket takes: a forwarder does, or its sender is told. `iss` is the
    /// initial sequence number to use if the flow was in TIME_WAIT until now.
    fn on_stray(
        &self,
        visit: Visit,
        tuple: &FourTuple,
        segment: &Segment,
        iss: Option<SeqNumber>,
        arrival: Arrival,
    ) {
        let cx = SynContext {
            now: visit.now,
            shard: visit.shard,
            key: self.flow_key,
            arrival,
            iss,
            is_connected: &|tuple| self.demux.connection(tuple).is_some(),
        };
        let (fate, due) = self.forwarders.on_segment(&cx, tuple, segment);
        match fate {
            Fate::Taken => self.net.housekeeping.schedule(due),
            Fate::TookPlace => {
                self.count_drop(DropReason::PendingFull);
                self.net.housekeeping.schedule(due);
            }
            Fate::Refused(Refusal::Full) => self.count_drop(DropReason::PendingFull),
            Fate::Refused(Refusal::FullForSource) => self.count_drop(DropReason::PendingSource),
            Fate::Nobody => {
                let is_foreign = self.net.topology.is_foreign(tuple.local);
                let reason =
                    if is_foreign { DropReason::NoSocketForeign } else { DropReason::NoSocket };
                self.count_drop(reason);
                self.send_reset(visit, tuple, segment);
            }
        }
    }

    /// A segment of a connection of which little is left.
    fn on_remains(
        &self,
        visit: Visit,
        batch: &mut Batch,
        tuple: &FourTuple,
        segment: Segment,
        arrival: Arrival,
    ) {
        let is_wanted = || {
            self.demux.listener(tuple.local_addr()).is_some()
                || self.forwarders.takes(&arrival, tuple)
        };
        let may_reopen = segment.flags.contains(Flags::SYN) && is_wanted();
        let looked = self.demux.with_remains(tuple, |remains| {
            let was_waiting = remains.is_time_wait();
            let verdict = remains.on_segment(visit.now, &segment, may_reopen);
            let is_removed = matches!(
                verdict,
                RemainsVerdict::Reopen { .. } | RemainsVerdict::Remove | RemainsVerdict::Reset(_)
            );
            ((verdict, !was_waiting && remains.is_time_wait()), is_removed)
        });
        let Some(Looked { answer: (verdict, is_new), options, due, is_over }) = looked else {
            return;
        };
        let counters = self.shards[visit.shard].counters();
        counters.add(Counter::TimeWaited, u64::from(is_new));
        self.net.housekeeping.schedule(due);
        if is_over {
            self.on_connection_end();
        }
        match verdict {
            RemainsVerdict::Drop | RemainsVerdict::Remove => {}
            RemainsVerdict::Send(answer) => self.send_orphan(visit, tuple, options, answer),
            RemainsVerdict::Reset(reset) => {
                counters.add(Counter::AbortOnData, 1);
                self.send_orphan(visit, tuple, options, reset);
            }
            RemainsVerdict::Reopen { iss } => match self.demux.listener(tuple.local_addr()) {
                Some(listener) => {
                    let how = (Some(iss), arrival);
                    self.on_listener(visit, batch, &listener, tuple, segment, how);
                }
                None => self.on_stray(visit, tuple, &segment, Some(iss), arrival),
            },
        }
    }

    /// Does what is due for connections of which little is left; when to come back. FINs are sent
    /// again, and orphans that are too many are reset.
    pub(crate) fn expire_remains(&self, visit: Visit) -> Instant {
        let counters = self.shards[visit.shard].counters();
        let mut answers = Vec::new();
        let mut has_ended = false;
        let next = self.demux.expire_remains(visit.now, |tuple, options, remains| {
            if remains.is_orphan() && self.memory().has_too_many_orphans(0) {
                counters.add(Counter::AbortOnMemory, 1);
                answers.push((*tuple, options, remains.reset(visit.now)));
                has_ended = true;
                return true;
            }
            match remains.on_deadline(visit.now) {
                RemainsVerdict::Send(fin) => {
                    counters.add(Counter::Timeouts, 1);
                    answers.push((*tuple, options, fin));
                    false
                }
                RemainsVerdict::Remove => {
                    counters.add(Counter::AbortOnTimeout, u64::from(remains.is_orphan()));
                    has_ended = true;
                    true
                }
                _ => false,
            }
        });
        for (tuple, options, answer) in answers {
            self.send_orphan(visit, &tuple, options, answer);
        }
        if has_ended {
            self.on_connection_end();
        }
        next
    }

    /// A segment of no connection to a listener, with how it arrived, and the initial sequence
    /// number to use if the flow was in TIME_WAIT until now.
    fn on_listener(
        &self,
        visit: Visit,
        batch: &mut Batch,
        listener: &Listener,
        tuple: &FourTuple,
        segment: Segment,
        (iss, arrival): (Option<SeqNumber>, Arrival),
    ) {
        let is_foreign = self.net.topology.is_foreign(tuple.local);
        let mut route = CachedRoute::new(is_foreign);
        let Some(way) = route.refresh(&self.net, visit.now, tuple.local, tuple.remote) else {
            return self.count_drop(DropReason::NoRoute);
        };
        let cx = self.listen_context(visit, way.mtu);
        let answer = listener.on_segment(&cx, tuple, &segment, iss);
        // Another shard may have made the connection since the look for one.
        if matches!(answer, Answer::NoHandshake | Answer::Reset)
            && let Some(socket) = self.demux.connection(tuple)
        {
            return batch.push(socket, segment, arrival);
        }
        match answer {
            Answer::Ignore => {}
            Answer::Full => self.count_drop(DropReason::ListenerFull),
            Answer::NoHandshake => self.count_drop(DropReason::ListenerState),
            Answer::Send(answer) => {
                let options = listener.ip_options(tuple.local, is_foreign);
                self.send_orphan(visit, tuple, options, answer);
            }
            Answer::Reset => self.send_reset(visit, tuple, &segment),
            Answer::Establish(accepted) => {
                if let Some(socket) = self.establish(visit, listener, tuple, accepted, route) {
                    batch.push(socket, segment, arrival);
                }
            }
        }
    }

    /// Makes the connection that a listener's handshake led to; `None` if there can be none, or the
    /// listener was closed meanwhile.
    fn establish(
        &self,
        visit: Visit,
        listener: &Listener,
        tuple: &FourTuple,
        accepted: Accepted,
        route: CachedRoute,
    ) -> Option<Arc<TcpSocket>> {
        let options = listener.options(tuple.local);
        let Ok(socket) = self.accept_connection(visit, *tuple, accepted, options, route) else {
            listener.forget_arriving(tuple);
            return None;
        };
        if !listener.push(socket.clone()) {
            socket.abandon(self, visit.now);
            return None;
        }
        Some(socket)
    }

    /// Answers a segment that belongs to no connection (RFC 9293 section 3.10.7.1), from the
    /// address that it was for, which may be a foreign one.
    ///
    /// As in Linux no limit holds resets back: one is no larger than what it answers, nothing
    /// answers it, and a limit that strangers use up would hide the refusals that others wait for.
    pub(crate) fn send_reset(&self, visit: Visit, tuple: &FourTuple, segment: &Segment) {
        if segment.flags.contains(Flags::RST) {
            return;
        }
        let answer = if segment.flags.contains(Flags::ACK) {
            Segment { seq: segment.ack, flags: Flags::RST, ..Segment::default() }
        } else {
            let flags = Flags::RST | Flags::ACK;
            Segment { ack: segment.end_seq(), flags, ..Segment::default() }
        };
        let options = IpOptions { is_transparent: true, ..IpOptions::default() };
        self.send_orphan(visit, tuple, options, answer);
    }

    /// Sends a segment that no connection sends: SYN-ACK, reset, or what the remains of one send. A
    /// FIN among them is one that is sent again.
    pub(crate) fn send_orphan(
        &self,
        visit: Visit,
        tuple: &FourTuple,
        options: IpOptions,
        segment: Segment,
    ) {
        let counters = self.shards[visit.shard].counters();
        let is_again = segment.flags.contains(Flags::FIN);
        counters.add(if is_again { Counter::RetransSegs } else { Counter::OutSegs }, 1);
        if segment.flags.contains(Flags::RST) {
            counters.add(Counter::OutRsts, 1);
        }
        if let Ok(output) = self.net.send_orphan(visit, tuple, options, segment) {
            self.on_undeliverable(visit, output.undeliverable);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stack::{ListenOptions, StackConfig};
    use bytes::Bytes;
    use neap_tcp::segment::Payload;

    #[test]
    fn data_that_another_shard_gets_while_a_connection_is_made_does_not_end_it() {
        let host = Host::new(StackConfig::default());
        let own = "127.0.0.1:80".parse().expect("an address");
        let listener = host.listen(own, ListenOptions::default(), None).expect("a free port");
        let visit = Visit::new(Instant::from_nanos(1_000_000_000), 0);
        let arrival = Arrival::default();
        let tuple =
            FourTuple { local: own.ip(), remote: own.ip(), local_port: 80, remote_port: 5000 };
        let cx = host.listen_context(visit, 1500);
        let syn = Segment { flags: Flags::SYN, window: 1000, ..Segment::default() };
        let answer = listener.on_segment(&cx, &tuple, &syn, None);
        let Answer::Send(synack) = answer else { panic!("{answer:?}") };
        let (seq, ack) = (syn.seq + 1, synack.seq + 1);
        let last = Segment { seq, ack, flags: Flags::ACK, window: 1000, ..Segment::default() };
        let data = Segment { payload: Payload::from(Bytes::from_static(b"x")), ..last.clone() };
        let answer = listener.on_segment(&cx, &tuple, &last, None);
        let Answer::Establish(accepted) = answer else { panic!("{answer:?}") };

        let mut batch = Batch::default();
        let mut hears = |segment: &Segment| {
            let how = (None, arrival);
            host.on_listener(visit, &mut batch, &listener, &tuple, segment.clone(), how);
            (batch.touched.len(), host.shards[0].counters().get(Counter::OutRsts))
        };
        assert_eq!(hears(&data), (0, 0), "it is not in the table yet");
        let route = CachedRoute::new(false);
        assert!(host.establish(visit, &listener, &tuple, accepted, route).is_some());
        assert_eq!(hears(&data), (1, 0), "it was found there too late");
    }
}
