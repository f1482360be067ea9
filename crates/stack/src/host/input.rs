//! IP input: from a received packet to the socket that it is for, every drop counted.
//!
//! Cost per TCP segment in a batch: the parsers, a look among the held segments of GRO; per
//! super-segment a keyed hash and one probe of the demultiplexer.

use super::Host;
use super::forwarder::Arrival;
use super::gro::Gro;
use super::icmp::{Arrived, IcmpMessage, Taken};
use super::segments::Batch;
use super::udp::Delivered;
use super::udp_queue::ReceivedDatagram;
use crate::device::{Received, RxChecksum, RxQueue};
use crate::drop_reason::DropReason;
use crate::flow::FourTuple;
use crate::frame::Frame;
use crate::net::Visit;
use crate::net::address::scope_of;
use crate::net::gso;
use crate::net::icmp::{Ends, IcmpErrorKind, Notice, Receiver, Refused};
use crate::net::interface::{Interface, InterfaceId};
use crate::net::reassembly::{Part, Whole};
use crate::net::topology::{Locals, is_nobody};
use crate::stats::IpCounter;
use crate::wire::checksum::Pseudo;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{Protocol, arp, icmpv6, ipv4, ipv6, tcp, udp};
use bytes::{Buf, Bytes};
use core::net::{IpAddr, Ipv6Addr};
use neap_tcp::counters::Counter;
use neap_tcp::segment::Ecn;
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

/// Whether a packet has all headers of its datagram, if it is the first fragment of one (RFC 7112
/// section 5). Of protocols that are not known a byte is enough, as in Linux
/// (`ipv6frag_thdr_truncated`).
fn is_chain_whole(packet: &ipv6::Packet, data: &[u8]) -> bool {
    let least = |protocol| match protocol {
        Protocol::TCP => tcp::HEADER_LEN,
        Protocol::UDP => udp::HEADER_LEN,
        Protocol::ICMPV6 => icmpv6::HEADER_LEN,
        Protocol::NO_NEXT_HEADER => 0,
        _ => 1,
    };
    let is_first = packet.fragment.is_some_and(|fragment| fragment.offset == 0);
    let chain = &data[packet.payload.clone()];
    !is_first || ipv6::has_all_headers(packet.header.protocol, chain, least)
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

    /// The interface that the packet came in by; `None` if this host has sent it to itself.
    fn interface_id(&self) -> Option<InterfaceId> {
        self.interface.map(|interface| interface.id())
    }

    fn drop(&self, reason: DropReason) {
        self.host.net.counters.drops.count(reason);
    }

    fn count(&self, counter: IpCounter) {
        self.host.net.counters.ip.add(counter, 1);
    }

    /// Counts what happens to a datagram of UDP.
    fn count_udp(&self, delivery: &Delivery<'_>, counter: IpCounter) {
        self.count(counter.of_family(delivery.destination.is_ipv4()));
    }

    fn arp(&self, data: &Bytes) {
        let Some(interface) = self.interface else { return };
        match arp::parse(data) {
            Ok(packet) => interface.on_arp(self.visit, &packet, self.is_link_group),
            Err(_) => self.drop(DropReason::Arp),
        }
    }

    fn v4(&mut self, data: &Bytes, is_verified: bool, gso_size: u16) {
        self.host.net.counters.ip.add(IpCounter::IpInOctets, data.len() as u64);
        let packet = match ipv4::parse(data) {
            Ok(packet) => packet,
            Err(error) => {
                self.count(IpCounter::IpInReceives);
                self.count(IpCounter::IpInHdrErrors);
                if error == ipv4::Error::Checksum {
                    self.count(IpCounter::IpInCsumErrors);
                }
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
        let Some(whole) = self.reassemble_v6(&delivery, &packet, &part) else { return count_now() };
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

    /// As [`reassemble`](Self::reassemble), for a fragment that may have too few headers.
    fn reassemble_v6(
        &self,
        delivery: &Delivery<'_>,
        packet: &ipv6::Packet,
        part: &Part<'_>,
    ) -> Option<Whole> {
        if is_chain_whole(packet, delivery.packet) {
            return self.reassemble(part);
        }
        self.count(IpCounter::Ip6InHdrErrors);
        self.drop(DropReason::Ipv6Extension);
        if delivery.may_be_refused {
            let interface = self.interface_id();
            self.host.net.send_incomplete_chain(self.visit, interface, delivery.packet);
        }
        None
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
                let interface = self.interface.map(Arc::as_ref);
                let net = &self.host.net;
                let receiver = self.receiver(delivery);
                let notice = net.receive_icmp_v4(self.visit, interface, receiver, header, &payload);
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
            interface: self.interface_id(),
            dont_fragment: delivery.dont_fragment && delivery.whole.is_none(),
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
        if let Ok(Err(Refused::Limited)) =
            net.send_error(self.visit, packet, Some(interface.id()), error, from)
        {
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
        let interface = self.interface_id();
        let ends = Ends { local: delivery.destination, remote: delivery.source, interface };
        self.host.net.send_unreachable(self.visit, ends, &delivery.quotable(), is_port);
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
                self.count_udp(delivery, IpCounter::UdpInErrors);
                if error == udp::Error::Checksum {
                    self.count_udp(delivery, IpCounter::UdpInCsumErrors);
                    return self.drop(DropReason::UdpChecksum);
                }
                return self.drop(DropReason::UdpHeader);
            }
        };
        let segment = usize::from(delivery.gso_size);
        if segment > 0 && datagram.payload.len().div_ceil(segment) > gso::MOST_DATAGRAMS {
            self.count_udp(delivery, IpCounter::UdpInErrors);
            return self.drop(DropReason::UdpHeader);
        }
        let interface = self.interface_id();
        let tuple = FourTuple {
            local: destination,
            remote: source,
            local_port: datagram.ports.destination,
            remote_port: datagram.ports.source,
            scope: scope_of(source, interface),
        };
        let received = ReceivedDatagram {
            from: tuple.remote_addr(),
            to: tuple.local_addr(),
            hop_limit: delivery.hop_limit,
            tos: delivery.tos,
            interface,
            is_broadcast: delivery.is_broadcast,
            dont_fragment: delivery.dont_fragment && delivery.whole.is_none(),
            drops: 0,
            data: datagram.payload,
        };
        match self.host.udp.deliver(&tuple, &received, segment, self.is_alone(delivery)) {
            Some(delivered) => self.count_delivered(delivery, delivered),
            None if delivery.is_broadcast => {
                self.count_udp(delivery, IpCounter::UdpIgnoredMulti);
                self.drop(DropReason::NoSocket);
            }
            None => {
                self.count_udp(delivery, IpCounter::UdpNoPorts);
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

    fn count_delivered(&self, delivery: &Delivery<'_>, delivered: Delivered) {
        let Delivered { queued, buffer_full, no_memory } = delivered;
        let counters = &self.host.net.counters;
        let is_v4 = delivery.destination.is_ipv4();
        let add = |counter: IpCounter, n| counters.ip.add(counter.of_family(is_v4), n);
        add(IpCounter::UdpInDatagrams, queued);
        if buffer_full + no_memory == 0 {
            return;
        }
        add(IpCounter::UdpInErrors, buffer_full + no_memory);
        add(IpCounter::UdpRcvbufErrors, buffer_full);
        add(IpCounter::UdpMemErrors, no_memory);
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
                    tcp::Error::Checksum => {
                        counters.add(Counter::InCsumErrors, 1);
                        DropReason::TcpChecksum
                    }
                    _ => DropReason::TcpHeader,
                });
            }
        };
        segment.ecn = delivery.ecn;
        if u32::from(delivery.gso_size) < segment.payload.len() {
            segment.gso_size = delivery.gso_size;
        }
        let interface = self.interface_id();
        let tuple = FourTuple {
            local: destination,
            remote: source,
            local_port: ports.destination,
            remote_port: ports.source,
            scope: scope_of(source, interface),
        };
        let arrival = Arrival { interface, hop_limit: delivery.hop_limit, tos: delivery.tos };
        let Self { host, visit, rx, batch, gro, .. } = self;
        let hash = u64::from(ports.source) ^ u64::from(ports.destination);
        // What GRO has held is no SYN, so it does not matter how it arrived.
        gro.receive(tuple, hash, segment, &mut |tuple, segment| {
            host.on_segment(*visit, *rx, batch, &tuple, segment, arrival);
        });
    }
}
