//! IP input: from a received packet to the socket that it is for, every drop counted.
//!
//! Cost per TCP segment in a batch: the parsers, a look among the held segments of GRO; per
//! super-segment a keyed hash and one probe of the demultiplexer.

use crate::demux::{Found, FourTuple};
use crate::device::{Medium, Received, RxChecksum};
use crate::drop_reason::DropReason;
use crate::egress::{self, SocketPath};
use crate::frame::Frame;
use crate::gro::Gro;
use crate::icmp;
use crate::interface::{Interface, Locals};
use crate::listener::{Answer, Listener};
use crate::reassembly::{Part, Refusal, Whole};
use crate::shard::Batch;
use crate::stack::Host;
use crate::stats::IpCounter;
use crate::sync::lock;
use crate::wire::checksum::Pseudo;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{Protocol, ipv4, ipv6, tcp, udp};
use bytes::{Buf, Bytes};
use core::net::{IpAddr, Ipv4Addr};
use neap_tcp::counters::Counter;
use neap_tcp::handshake::Accepted;
use neap_tcp::segment::{Ecn, Flags, Segment};
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::Instant;
use neap_tcp::time_wait::TimeWaitVerdict;
use std::sync::Arc;

/// The receive path in one batch.
pub(crate) struct Input<'a> {
    pub(crate) host: &'a Host,
    pub(crate) now: Instant,
    pub(crate) shard: usize,
    /// Where the packet came in; `None` for what this host sent to itself.
    pub(crate) interface: Option<&'a Arc<Interface>>,
    pub(crate) locals: &'a Locals,
    pub(crate) gro: &'a mut Gro<FourTuple>,
    pub(crate) batch: &'a mut Batch,
}

/// One IP packet to this host, its header taken off.
struct Delivery<'a> {
    source: IpAddr,
    destination: IpAddr,
    ecn: Ecn,
    /// Payload of each coalesced segment, or 0.
    gso_size: u16,
    /// The device vouches for the transport checksum.
    is_verified: bool,
    /// The packet from its IP header on, for ICMP errors to quote.
    packet: &'a Bytes,
}

impl Input<'_> {
    /// Takes a packet from a device.
    pub(crate) fn receive(&mut self, mut packet: Received) {
        let medium = self.interface.map(|interface| interface.capabilities().medium);
        if let Some(Medium::Ethernet(own)) = medium {
            let Ok(header) = ethernet::parse(&packet.data) else {
                return self.drop(DropReason::LinkHeader);
            };
            let destination = header.destination;
            if destination != own && !ethernet::is_multicast(destination) {
                return self.drop(DropReason::LinkHeader);
            }
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
        self.host.drops.count(reason);
    }

    fn count(&self, counter: IpCounter) {
        self.host.ip.add(counter, 1);
    }

    fn arp(&self, data: &Bytes) {
        let Some(interface) = self.interface else { return };
        match crate::wire::arp::parse(data) {
            Ok(packet) => interface.on_arp(self.context(), &packet),
            Err(_) => self.drop(DropReason::Arp),
        }
    }

    fn context(&self) -> icmp::Context<'_> {
        icmp::Context {
            host: self.host,
            now: self.now,
            shard: self.shard,
            interface: self.interface,
        }
    }

    fn v4(&mut self, data: &Bytes, is_verified: bool, gso_size: u16) {
        self.host.ip.add(IpCounter::IpInOctets, data.len() as u64);
        let packet = match ipv4::parse(data) {
            Ok(packet) => packet,
            Err(_) => {
                self.count(IpCounter::IpInReceives);
                self.count(IpCounter::IpInHdrErrors);
                return self.drop(DropReason::IpHeader);
            }
        };
        let header = packet.header;
        // TCP is counted behind GRO, so that a super-packet counts once wherever it was joined.
        if header.protocol != Protocol::TCP || packet.fragment.is_some() {
            self.count(IpCounter::IpInReceives);
        }
        if header.ecn == Ecn::Ce {
            self.count(IpCounter::IpInCEPkts);
        }
        if !self.is_acceptable(header.source.into(), header.destination.into()) {
            return self.count(IpCounter::IpInAddrErrors);
        }
        let mut delivery = Delivery {
            source: header.source.into(),
            destination: header.destination.into(),
            ecn: header.ecn,
            gso_size,
            is_verified,
            packet: data,
        };
        let Some(part) = Part::v4(&packet, data) else {
            let payload = data.slice(packet.payload);
            return self.deliver(&delivery, header.protocol, payload, Some(&header), None);
        };
        if let Some(whole) = self.reassemble(&part) {
            (delivery.ecn, delivery.gso_size, delivery.is_verified) = (whole.ecn, 0, false);
            self.deliver(&delivery, whole.protocol, whole.data, Some(&header), None);
        }
    }

    fn v6(&mut self, data: &Bytes, is_verified: bool, gso_size: u16) {
        self.host.ip.add(IpCounter::Ip6InOctets, data.len() as u64);
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
        if header.protocol != Protocol::TCP || packet.fragment.is_some() {
            self.count(IpCounter::Ip6InReceives);
        }
        if !self.is_acceptable_v6(&header) {
            return self.count(IpCounter::Ip6InAddrErrors);
        }
        let mut delivery = Delivery {
            source: header.source.into(),
            destination: header.destination.into(),
            ecn: header.ecn,
            gso_size,
            is_verified,
            packet: data,
        };
        let Some(part) = Part::v6(&packet, data) else {
            let payload = data.slice(packet.payload);
            return self.deliver(&delivery, header.protocol, payload, None, Some(&header));
        };
        let Some(whole) = self.reassemble(&part) else { return };
        (delivery.ecn, delivery.gso_size, delivery.is_verified) = (whole.ecn, 0, false);
        match ipv6::upper_layer(whole.protocol, &whole.data) {
            Ok((protocol, start)) => {
                let payload = whole.data.slice(start..);
                self.deliver(&delivery, protocol, payload, None, Some(&header));
            }
            Err(_) => self.drop(DropReason::Ipv6Extension),
        }
    }

    /// Whether a host may take a packet with these addresses; counts the drop if not.
    fn is_acceptable(&self, source: IpAddr, destination: IpAddr) -> bool {
        let is_from_outside = self.interface.is_some();
        let is_impossible = source.is_multicast()
            || source == IpAddr::V4(Ipv4Addr::BROADCAST)
            || source.is_unspecified()
            || (is_from_outside
                && (source.is_loopback()
                    || destination.is_loopback()
                    || self.locals.contains(source)));
        if is_impossible {
            self.drop(DropReason::IpMartian);
            return false;
        }
        if !self.locals.contains(destination) {
            self.drop(DropReason::IpOtherHost);
            return false;
        }
        true
    }

    /// Besides the host's own addresses: the groups of neighbour discovery, and as source of a
    /// solicitation the unspecified address.
    fn is_acceptable_v6(&self, header: &ipv6::Header) -> bool {
        let is_discovery = header.protocol == Protocol::ICMPV6
            && header.destination.is_multicast()
            && self.interface.is_some_and(|interface| interface.hears(header.destination))
            && !header.source.is_multicast();
        is_discovery || self.is_acceptable(header.source.into(), header.destination.into())
    }

    fn reassemble(&self, part: &Part<'_>) -> Option<Whole> {
        self.count(IpCounter::IpReasmReqds);
        match lock(&self.host.reassembler).push(self.now, part) {
            Ok(Some(whole)) => {
                self.count(IpCounter::IpReasmOKs);
                Some(whole)
            }
            Ok(None) => None,
            Err(refusal) => {
                if refusal != Refusal::Duplicate {
                    self.count(IpCounter::IpReasmFails);
                }
                self.drop(DropReason::Fragment);
                None
            }
        }
    }

    fn deliver(
        &mut self,
        delivery: &Delivery<'_>,
        protocol: Protocol,
        payload: Bytes,
        v4: Option<&ipv4::Header>,
        v6: Option<&ipv6::Header>,
    ) {
        match (protocol, v4, v6) {
            (Protocol::TCP, ..) => return self.tcp(delivery, payload),
            (Protocol::UDP, ..) => self.udp(delivery, payload),
            (Protocol::ICMP, Some(header), _) => icmp::receive_v4(self.context(), header, &payload),
            (Protocol::ICMPV6, _, Some(header)) => {
                icmp::receive_v6(self.context(), header, &payload);
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

    fn unreachable(&self, delivery: &Delivery<'_>, is_port: bool) {
        let (source, destination) = (delivery.source, delivery.destination);
        let packet = delivery.packet;
        icmp::send_unreachable(self.context(), source, destination, packet, is_port);
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
        let tuple = FourTuple {
            local: destination,
            remote: source,
            local_port: datagram.ports.destination,
            remote_port: datagram.ports.source,
        };
        match self.host.udp.deliver(&tuple, datagram.payload) {
            Some(true) => self.count(IpCounter::UdpInDatagrams),
            Some(false) => {
                self.count(IpCounter::UdpInErrors);
                self.count(IpCounter::UdpRcvbufErrors);
                self.drop(DropReason::SocketReceiveBuffer);
            }
            None => {
                self.count(IpCounter::UdpNoPorts);
                self.drop(DropReason::NoSocket);
                self.unreachable(delivery, true);
            }
        }
    }

    fn tcp(&mut self, delivery: &Delivery<'_>, payload: Bytes) {
        let (source, destination) = (delivery.source, delivery.destination);
        let pseudo = Pseudo::of(source, destination, Protocol::TCP);
        let verify = pseudo.filter(|_| !delivery.is_verified);
        let counters = self.host.shards[self.shard].counters();
        let (ports, mut segment) = match tcp::parse(payload, verify) {
            Ok(parsed) => parsed,
            Err(error) => {
                count_tcp_packet(self.host, destination.is_ipv4());
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
        let Self { host, now, shard, batch, gro, .. } = self;
        let hash = u64::from(ports.source) ^ u64::from(ports.destination);
        gro.receive(tuple, hash, segment, &mut |tuple, segment| {
            segment_arrives(host, *now, *shard, batch, &tuple, segment);
        });
    }
}

/// The end of a batch: nothing is held back any longer.
pub(crate) fn flush(
    host: &Host,
    now: Instant,
    shard: usize,
    gro: &mut Gro<FourTuple>,
    batch: &mut Batch,
) {
    gro.flush(&mut |tuple, segment| segment_arrives(host, now, shard, batch, &tuple, segment));
}

fn count_tcp_packet(host: &Host, is_v4: bool) {
    let (received, delivered) = if is_v4 {
        (IpCounter::IpInReceives, IpCounter::IpInDelivers)
    } else {
        (IpCounter::Ip6InReceives, IpCounter::Ip6InDelivers)
    };
    host.ip.add(received, 1);
    host.ip.add(delivered, 1);
}

/// A segment, or several that GRO joined, to whom it concerns.
fn segment_arrives(
    host: &Host,
    now: Instant,
    shard: usize,
    batch: &mut Batch,
    tuple: &FourTuple,
    segment: Segment,
) {
    count_tcp_packet(host, tuple.local.is_ipv4());
    let counters = host.shards[shard].counters();
    counters.add(Counter::InSegs, u64::from(segment.segments()));
    match host.demux.lookup(tuple) {
        Found::Connection(socket) => batch.push(socket, segment),
        Found::TimeWait => time_wait(host, now, shard, batch, tuple, segment),
        Found::Listener(listener) => {
            listen(host, now, shard, batch, &listener, tuple, segment, None);
        }
        Found::Nobody => {
            host.drops.count(DropReason::NoSocket);
            reset(host, now, shard, tuple, &segment);
        }
    }
}

fn time_wait(
    host: &Host,
    now: Instant,
    shard: usize,
    batch: &mut Batch,
    tuple: &FourTuple,
    segment: Segment,
) {
    let verdict = host.demux.with_time_wait(tuple, |time_wait| {
        let verdict = time_wait.on_segment(now, &segment);
        let is_over = matches!(verdict, TimeWaitVerdict::Reopen { .. } | TimeWaitVerdict::Remove);
        (verdict, is_over)
    });
    let Some((verdict, priority)) = verdict else { return };
    match verdict {
        TimeWaitVerdict::Drop | TimeWaitVerdict::Remove => {}
        TimeWaitVerdict::Ack(ack) => send_segment(host, now, shard, (tuple, priority), ack),
        TimeWaitVerdict::Reopen { iss } => match host.demux.listener(tuple.local_addr()) {
            Some(listener) => {
                listen(host, now, shard, batch, &listener, tuple, segment, Some(iss));
            }
            None => reset(host, now, shard, tuple, &segment),
        },
    }
}

#[expect(clippy::too_many_arguments, reason = "the context of a batch and the segment's")]
fn listen(
    host: &Host,
    now: Instant,
    shard: usize,
    batch: &mut Batch,
    listener: &Arc<Listener>,
    tuple: &FourTuple,
    segment: Segment,
    iss: Option<SeqNumber>,
) {
    let mut path = SocketPath::default();
    let mtu = path.refresh(host, now, tuple.local, tuple.remote).map_or(0, |path| path.mtu);
    if mtu == 0 {
        host.drops.count(DropReason::NoRoute);
        return;
    }
    let cx = host.listen_context(now, shard, mtu);
    match listener.on_segment(&cx, tuple, &segment, iss) {
        Answer::Ignore => {}
        Answer::Full => host.drops.count(DropReason::ListenerFull),
        Answer::NoHandshake => host.drops.count(DropReason::ListenerState),
        Answer::Send(answer) => send_segment(host, now, shard, (tuple, 0), answer),
        Answer::Reset => reset(host, now, shard, tuple, &segment),
        Answer::Establish(accepted) => {
            establish(host, now, shard, batch, listener, tuple, segment, &accepted, path);
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the context of a batch and the segment's")]
fn establish(
    host: &Host,
    now: Instant,
    shard: usize,
    batch: &mut Batch,
    listener: &Arc<Listener>,
    tuple: &FourTuple,
    segment: Segment,
    accepted: &Accepted,
    path: SocketPath,
) {
    let options = listener.options();
    let Ok(socket) = host.accept_connection(now, shard, *tuple, *accepted, options, path) else {
        return listener.forget_arriving();
    };
    if listener.push(socket.clone()) {
        batch.push(socket, segment);
    } else {
        socket.abandon(host, now);
    }
}

/// Answers a segment that belongs to no connection (RFC 9293 section 3.10.7.1). At most 1000 a
/// second, so that no stranger makes a host reflect more.
pub(crate) fn reset(host: &Host, now: Instant, shard: usize, tuple: &FourTuple, segment: &Segment) {
    if segment.flags.contains(Flags::RST) {
        return;
    }
    if !host.reset_limit.allows(now) {
        host.drops.count(DropReason::RateLimited);
        return;
    }
    let answer = if segment.flags.contains(Flags::ACK) {
        Segment { seq: segment.ack, flags: Flags::RST, ..Segment::default() }
    } else {
        let flags = Flags::RST | Flags::ACK;
        Segment { ack: segment.end_seq(), flags, ..Segment::default() }
    };
    send_segment(host, now, shard, (tuple, 0), answer);
}

/// Sends a segment that no connection sent: SYN-ACK, reset, or an ACK from TIME_WAIT. `to` says between
/// which ends, and with which priority.
pub(crate) fn send_segment(
    host: &Host,
    now: Instant,
    shard: usize,
    to: (&FourTuple, u8),
    segment: Segment,
) {
    let counters = host.shards[shard].counters();
    counters.add(Counter::OutSegs, 1);
    if segment.flags.contains(Flags::RST) {
        counters.add(Counter::OutRsts, 1);
    }
    let _ = egress::send_segment(host, now, shard, to, segment);
}
