//! ICMP and ICMPv6: answers to echo requests and to neighbours, errors sent and received.
//!
//! What arrives is returned as a [`Notice`]: the sockets that an error concerns are not known here.

use super::address::scope_of;
use super::egress::{CachedRoute, OutgoingDatagram};
use super::interface::{ALL_NODES, Interface, InterfaceId, Station, Undeliverable};
use super::neighbor::Advertisement;
use super::router::Unheard;
use super::{Net, Visit};
use crate::drop_reason::DropReason;
use crate::flow::{FourTuple, is_link_local};
use crate::frame::Headers;
use crate::stats::IpCounter;
use crate::wire::checksum::Pseudo;
use crate::wire::icmp::{self, Quoted, TimeExceeded, Unreachable};
use crate::wire::icmpv6::{self, Message as M, Unreachable as Unreachable6};
use crate::wire::{ChecksumBy, Ports, Protocol, ecn_of, ipv4, ipv6, tcp};
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering;
use neap_tcp::connection::ConnectionError;
use neap_tcp::segment::{Payload, Segment};
use neap_tcp::time::Rate;

/// Reason that an ICMP message gives to the sender of a packet whose destination cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// No way leads to the network: code 0 of both versions.
    Network,
    /// The host does not answer: code 1, of ICMPv6 code 3.
    Host,
    /// Nobody has the port: code 3, of ICMPv6 code 4. A connected socket fails at once.
    Port,
    /// A rule forbids it: code 13, of ICMPv6 code 1.
    Prohibited,
}

impl Refusal {
    fn v4(self) -> Unreachable {
        match self {
            Self::Network => Unreachable::Network,
            Self::Host => Unreachable::Host,
            Self::Port => Unreachable::Port,
            Self::Prohibited => Unreachable::PacketFiltered,
        }
    }

    fn v6(self) -> Unreachable6 {
        match self {
            Self::Network => Unreachable6::NoRoute,
            Self::Host => Unreachable6::Address,
            Self::Port => Unreachable6::Port,
            Self::Prohibited => Unreachable6::Prohibited,
        }
    }
}

/// A SYN of this flow as an IP packet, for an ICMP error to quote. The packet itself is not kept:
/// identification and IP options are not those that it came with.
pub(crate) fn syn_packet(tuple: &FourTuple, syn: &Segment, (hop_limit, tos): (u8, u8)) -> Bytes {
    let (local, remote) = (tuple.local, tuple.remote);
    let Some(pseudo) = Pseudo::of(remote, local, Protocol::TCP) else { return Bytes::new() };
    let ports = Ports { source: tuple.remote_port, destination: tuple.local_port };
    let mut packet = Headers::default();
    let tcp_len = tcp::emit(&mut packet, ports, syn, pseudo, ChecksumBy::Stack) as u16;
    let (dscp, ecn) = (tos >> 2, ecn_of(tos));
    match (remote, local) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Header {
            source,
            destination,
            protocol: Protocol::TCP,
            ttl: hop_limit,
            dscp,
            ecn,
            identification: 0,
            dont_fragment: true,
        }
        .emit(&mut packet, tcp_len),
        (IpAddr::V6(source), IpAddr::V6(destination)) => ipv6::Header {
            source,
            destination,
            protocol: Protocol::TCP,
            hop_limit,
            dscp,
            ecn,
            flow_label: 0,
        }
        .emit(&mut packet, tcp_len),
        _ => {}
    }
    Bytes::copy_from_slice(packet.as_slice())
}

/// What an ICMP error means for the socket whose packet it quotes.
#[derive(Clone, Copy, Debug)]
struct Meaning {
    error: ConnectionError,
    is_hard: bool,
    is_too_big: bool,
    info: u32,
}

impl Meaning {
    const TIME_EXCEEDED: Self = Self::soft(ConnectionError::HostUnreachable);

    const fn soft(error: ConnectionError) -> Self {
        Self { error, is_hard: false, is_too_big: false, info: 0 }
    }

    const fn hard(error: ConnectionError) -> Self {
        Self { is_hard: true, ..Self::soft(error) }
    }

    /// Hard for UDP, which would not fragment (`__udp4_lib_err`).
    const fn too_big(mtu: u32) -> Self {
        Self { is_too_big: true, info: mtu, ..Self::hard(ConnectionError::MessageTooLong) }
    }

    const fn bad_header(pointer: u32) -> Self {
        Self { info: pointer, ..Self::hard(ConnectionError::Protocol) }
    }
}

/// What becomes of a message that is valid.
#[derive(Debug)]
pub(crate) enum Notice {
    /// An error about a packet that this host may have sent.
    Error(IcmpError),
    /// A router on the link of this interface has advertised itself.
    Router(InterfaceId),
    /// It was answered, or nothing is to be done.
    Done,
    /// It is for ICMP sockets alone.
    ForSockets,
}

/// Whose address a message was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// This host, or a group that it is in.
    Own,
    /// Another host. Whether its echo requests are answered here.
    Foreign { answers_echo: bool },
}

impl Receiver {
    fn answers_echo(self) -> bool {
        self == Self::Own || self == Self::Foreign { answers_echo: true }
    }
}

/// Error that a router or a host reports to the sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IcmpErrorKind {
    /// Destination unreachable. The codes differ between the versions: RFC 792 and RFC 1812 section
    /// 5.2.7.1 have those of IPv4, without 4, which is [`PacketTooBig`](Self::PacketTooBig). RFC
    /// 4443 section 3.1 has those of IPv6.
    Unreachable {
        /// The code, for instance 1 for a host of IPv4 and 3 for an address of IPv6.
        code: u8,
    },
    /// The packet is larger than the next link takes: fragmentation needed for IPv4, packet too big
    /// for IPv6.
    PacketTooBig {
        /// MTU of that link in bytes.
        mtu: u32,
    },
    /// The packet has used up its hops.
    TimeExceeded,
}

impl IcmpErrorKind {
    fn v4(self) -> Option<icmp::Message> {
        Some(match self {
            Self::Unreachable { code } => icmp::Message::Unreachable(Unreachable::from_code(code)?),
            Self::PacketTooBig { mtu } => {
                icmp::Message::FragmentationNeeded { mtu: mtu.try_into().unwrap_or(u16::MAX) }
            }
            Self::TimeExceeded => icmp::Message::TimeExceeded(TimeExceeded::Transit),
        })
    }

    fn v6(self) -> Option<M> {
        Some(match self {
            Self::Unreachable { code } => M::Unreachable(Unreachable6::from_code(code)?),
            Self::PacketTooBig { mtu } => M::PacketTooBig { mtu },
            Self::TimeExceeded => M::TimeExceeded(TimeExceeded::Transit),
        })
    }
}

/// Whom an answer is from and to, and the interface that what it answers came in by. To a
/// link-local address it leaves by that one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends<A> {
    pub(crate) local: A,
    pub(crate) remote: A,
    pub(crate) interface: Option<InterfaceId>,
}

/// Why an error was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A rate limit withholds it.
    Limited,
    /// None may be sent about such a packet.
    Forbidden,
    /// There is no such code in this version.
    NoSuchError,
}

/// Source and destination of a packet that an error may be sent about: not an error itself, not a
/// later fragment, and not from or to many (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
/// Broadcast addresses of networks are not known here.
fn reportable(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (source, destination, protocol, transport): (IpAddr, IpAddr, _, _) =
        match packet.first()? >> 4 {
            4 => {
                let (header, len, offset) = ipv4::parse_quoted(packet).ok()?;
                let (source, destination) = (header.source, header.destination);
                if offset > 0 || source.is_broadcast() || destination.is_broadcast() {
                    return None;
                }
                (source.into(), destination.into(), header.protocol, &packet[len..])
            }
            6 => {
                let (header, transport) = ipv6::parse_quoted(packet).ok()?;
                (header.source.into(), header.destination.into(), header.protocol, transport)
            }
            _ => return None,
        };
    let is_many = |ip: IpAddr| ip.is_multicast() || ip.is_unspecified();
    let is_error = match protocol {
        Protocol::ICMP => transport.first().is_none_or(|&kind| icmp::is_error(kind)),
        Protocol::ICMPV6 => transport.first().is_none_or(|&kind| icmpv6::is_error(kind)),
        _ => false,
    };
    (!is_error && !is_many(source) && !is_many(destination)).then_some((source, destination))
}

/// The sender of a packet, the header of an error about it, without its checksum, and how much of
/// the packet the error quotes at most. `None` if there is no such error.
pub(crate) fn error_header(
    source: IpAddr,
    packet: &[u8],
    error: IcmpErrorKind,
) -> Option<(IpAddr, [u8; icmp::HEADER_LEN], usize)> {
    let (to, _) = reportable(packet)?;
    let (header, most) = match (source, to) {
        (IpAddr::V4(_), IpAddr::V4(_)) => (error.v4()?.first_words(), icmp::MAX_QUOTE),
        (IpAddr::V6(_), IpAddr::V6(_)) => (error.v6()?.first_words(), icmpv6::MAX_QUOTE),
        _ => return None,
    };
    Some((to, header, most))
}

/// An ICMP error about a packet that this host sent. Nobody has checked yet that it was sent.
#[derive(Debug)]
pub(crate) struct IcmpError {
    /// What a call of the socket fails with.
    pub(crate) error: ConnectionError,
    /// UDP believes it without being asked for errors (`icmp_err_convert`'s `fatal`).
    pub(crate) is_hard: bool,
    /// The next link takes no more than `info` bytes per packet.
    pub(crate) is_too_big: bool,
    /// MTU in bytes where the packet was too big, pointer of a parameter problem; else 0.
    pub(crate) info: u32,
    /// Type of the message.
    pub(crate) kind: u8,
    /// Code of the message.
    pub(crate) code: u8,
    /// Who sent the message.
    pub(crate) offender: IpAddr,
    /// What the message says of the packet.
    pub(crate) quoted: Quoted,
    /// The packet, as far as it is quoted.
    body: Bytes,
    /// The interface that the message came in by, or that the packet could not leave by.
    pub(crate) interface: Option<InterfaceId>,
    /// A message came, which is dropped if nobody believes it. Otherwise this host says it of a
    /// packet whose drop is counted.
    pub(crate) is_message: bool,
}

impl IcmpError {
    fn new(
        meaning: Meaning,
        message: &[u8],
        offender: IpAddr,
        quoted: Quoted,
        body: Bytes,
    ) -> Self {
        let [kind, code] = message.first_chunk().copied().unwrap_or_default();
        let Meaning { error, is_hard, is_too_big, info } = meaning;
        let (interface, is_message) = (None, true);
        Self {
            error,
            is_hard,
            is_too_big,
            info,
            kind,
            code,
            offender,
            quoted,
            body,
            interface,
            is_message,
        }
    }

    /// The message came in by this interface; `None` if this host sent it.
    fn by(self, interface: Option<InterfaceId>) -> Self {
        Self { interface, ..self }
    }

    /// The error that a router would report of a packet that its neighbour does not take: the
    /// router is this host (`ipv4_link_failure`, `ndisc_error_report`). `None` for what is no IP
    /// packet.
    pub(crate) fn undeliverable(
        Undeliverable { frame, interface }: &Undeliverable,
    ) -> Option<Self> {
        let body = frame.to_bytes();
        let (quoted, message) = match body.first()? >> 4 {
            4 => (Quoted::v4(&body), [icmp::UNREACHABLE, Unreachable::Host as u8]),
            6 => (Quoted::v6(&body), [icmpv6::UNREACHABLE, Unreachable6::Address as u8]),
            _ => return None,
        };
        let quoted = quoted.ok()?;
        let meaning = Meaning::soft(ConnectionError::HostUnreachable);
        let error = Self::new(meaning, &message, quoted.source, quoted, body);
        Some(Self { is_message: false, ..error.by(Some(*interface)) })
    }

    /// The flow of the packet, if its ports are quoted.
    pub(crate) fn tuple(&self) -> Option<FourTuple> {
        let Quoted { source, destination, .. } = self.quoted;
        let ports = self.quoted.ports?;
        let local = SocketAddr::new(source, ports.source);
        let remote = SocketAddr::new(destination, ports.destination);
        let scope = scope_of(destination, self.interface);
        Some(FourTuple { scope, ..FourTuple::new(local, remote) })
    }

    /// What is quoted of the packet from `offset` bytes behind the start of its transport header.
    pub(crate) fn transport(&self, offset: usize) -> &[u8] {
        self.body.get(self.quoted.transport_at + offset..).unwrap_or_default()
    }

    /// Whether the error ends a half-open connection: over IPv4 if it says that there is no way
    /// (`tcp_v4_err`), over IPv6 if it is hard (`tcp_v6_err`).
    pub(crate) fn ends_request(&self) -> bool {
        match self.offender {
            IpAddr::V4(_) => matches!((self.kind, self.code), (3, 0 | 1) | (11 | 12, _)),
            IpAddr::V6(_) => self.is_hard && !self.is_too_big,
        }
    }
}

/// `icmp_err_convert`
fn unreachable_v4(code: Unreachable) -> Meaning {
    match code {
        Unreachable::Network | Unreachable::NetworkTos => {
            Meaning::soft(ConnectionError::NetworkUnreachable)
        }
        Unreachable::Host | Unreachable::HostTos => Meaning::soft(ConnectionError::HostUnreachable),
        Unreachable::Protocol => Meaning::hard(ConnectionError::ProtocolUnavailable),
        Unreachable::Port => Meaning::hard(ConnectionError::Refused),
        Unreachable::SourceRouteFailed => Meaning::soft(ConnectionError::NotSupported),
        Unreachable::NetworkUnknown | Unreachable::NetworkProhibited => {
            Meaning::hard(ConnectionError::NetworkUnreachable)
        }
        Unreachable::HostUnknown => Meaning::hard(ConnectionError::HostDown),
        Unreachable::HostIsolated => Meaning::hard(ConnectionError::NoNetwork),
        Unreachable::HostProhibited
        | Unreachable::PacketFiltered
        | Unreachable::PrecedenceViolation
        | Unreachable::PrecedenceCutoff => Meaning::hard(ConnectionError::HostUnreachable),
    }
}

/// `icmpv6_err_convert`
fn unreachable_v6(code: Unreachable6) -> Meaning {
    match code {
        Unreachable6::NoRoute => Meaning::soft(ConnectionError::NetworkUnreachable),
        Unreachable6::BeyondScope | Unreachable6::Address => {
            Meaning::soft(ConnectionError::HostUnreachable)
        }
        Unreachable6::Port => Meaning::hard(ConnectionError::Refused),
        Unreachable6::Prohibited | Unreachable6::SourcePolicy | Unreachable6::RejectRoute => {
            Meaning::hard(ConnectionError::Forbidden)
        }
    }
}

/// What becomes of a message that no part of this host waits for.
fn nobodys(receiver: Receiver) -> Notice {
    if receiver == Receiver::Own { Notice::Done } else { Notice::ForSockets }
}

/// A copy of what is sent back: while the answer waits in a qdisc, it must not keep the large
/// buffer that it came in.
fn own(bytes: &[u8]) -> Payload {
    Payload::from(Bytes::copy_from_slice(bytes))
}

/// The TOS byte of an error about a packet of IPv4: the service that the packet asked for, with the
/// precedence of the network's own messages (RFC 1812 section 4.3.2.5, `icmp_send`).
fn error_tos(packet: &[u8]) -> u8 {
    const SERVICE: u8 = 0x1e;
    const INTERNETWORK_CONTROL: u8 = 0xc0;
    let tos = ipv4::parse_quoted(packet).map_or(0, |(ip, ..)| ip.dscp << 2 | ip.ecn as u8);
    tos & SERVICE | INTERNETWORK_CONTROL
}

/// What an error quotes of a packet, at most so many bytes.
fn quote(packet: &[u8], most: usize) -> Payload {
    own(&packet[..packet.len().min(most)])
}

impl Net {
    /// Handles an ICMP message, which came in on `interface` or from this host itself. `None` is
    /// for one that is bad, which is counted.
    pub(crate) fn receive_icmp_v4(
        &self,
        visit: Visit,
        interface: Option<&Interface>,
        receiver: Receiver,
        ip: &ipv4::Header,
        data: &Bytes,
    ) -> Option<Notice> {
        let stats = &self.counters.ip;
        stats.add(IpCounter::IcmpInMsgs, 1);
        let (message, body) = match icmp::parse(data) {
            Ok(parsed) => parsed,
            Err(icmp::Error::Unknown { .. }) if receiver != Receiver::Own => {
                return Some(Notice::ForSockets);
            }
            // As in Linux, what a host has no use for is no error.
            Err(icmp::Error::Unknown { kind, .. }) if icmp::is_ignored(kind) => {
                self.counters.drops.count(DropReason::Icmp);
                return None;
            }
            Err(error) => {
                self.count_bad(error, IpCounter::IcmpInErrors, IpCounter::IcmpInCsumErrors);
                return None;
            }
        };
        let body = data.slice_ref(body);
        let meaning = match message {
            icmp::Message::EchoRequest { identifier, sequence } => {
                stats.add(IpCounter::IcmpInEchos, 1);
                if !receiver.answers_echo() {
                    return Some(Notice::ForSockets);
                }
                if self.ignores_echo_v4.load(Ordering::Relaxed) {
                    return Some(self.ignore_echo());
                }
                stats.add(IpCounter::IcmpOutEchoReps, 1);
                let reply = icmp::Message::EchoReply { identifier, sequence };
                let (from, tos) = (ip.destination, ip.dscp << 2 | ip.ecn as u8);
                self.send_icmp_v4(visit, from, ip.source, tos, reply, own(&body));
                return Some(Notice::Done);
            }
            // A fragment that came late says nothing of the way.
            icmp::Message::EchoReply { .. }
            | icmp::Message::TimeExceeded(TimeExceeded::Reassembly) => {
                return Some(nobodys(receiver));
            }
            icmp::Message::Unreachable(code) => {
                stats.add(IpCounter::IcmpInDestUnreachs, 1);
                unreachable_v4(code)
            }
            icmp::Message::FragmentationNeeded { mtu } => {
                stats.add(IpCounter::IcmpInDestUnreachs, 1);
                Meaning::too_big(u32::from(mtu))
            }
            icmp::Message::TimeExceeded(TimeExceeded::Transit) => Meaning::TIME_EXCEEDED,
            icmp::Message::ParameterProblem { pointer } => Meaning::bad_header(u32::from(pointer)),
        };
        match Quoted::v4(&body) {
            Ok(quoted) => {
                let error = IcmpError::new(meaning, data, ip.source.into(), quoted, body);
                Some(Notice::Error(error.by(interface.map(Interface::id))))
            }
            Err(error) => {
                self.count_bad(error, IpCounter::IcmpInErrors, IpCounter::IcmpInCsumErrors);
                None
            }
        }
    }

    /// Leaves an echo request without an answer.
    fn ignore_echo(&self) -> Notice {
        self.counters.drops.count(DropReason::IgnoredEcho);
        Notice::Done
    }

    /// Handles an ICMPv6 message, which came in on `interface` or from this host itself. `None` is
    /// for one that is bad, which is counted. Discovery with a fragment header is bad, too:
    /// fragments get past those who watch over discovery on a link (RFC 6980 section 5).
    pub(crate) fn receive_icmp_v6(
        &self,
        visit: Visit,
        interface: Option<&Interface>,
        receiver: Receiver,
        packet: &ipv6::Packet,
        data: &Bytes,
    ) -> Option<Notice> {
        let ip = &packet.header;
        self.counters.ip.add(IpCounter::Icmp6InMsgs, 1);
        let (message, body) = match icmpv6::parse(ip, data) {
            Ok(parsed) => parsed,
            Err(icmp::Error::Unknown { .. }) if receiver != Receiver::Own => {
                return Some(Notice::ForSockets);
            }
            // Unknown messages that tell of no error are dropped silently (RFC 4443 section 2.4);
            // those about groups come on every link with a switch that asks for them.
            Err(icmp::Error::Unknown { kind, .. }) if !icmpv6::is_error(kind) => {
                self.counters.drops.count(DropReason::Icmp);
                return None;
            }
            Err(error) => {
                self.count_bad(error, IpCounter::Icmp6InErrors, IpCounter::Icmp6InCsumErrors);
                return None;
            }
        };
        let body = data.slice_ref(body);
        let meaning = match message {
            M::EchoRequest { .. } if !receiver.answers_echo() => return Some(Notice::ForSockets),
            M::EchoRequest { .. } if self.ignores_echo_v6.load(Ordering::Relaxed) => {
                return Some(self.ignore_echo());
            }
            M::EchoRequest { identifier, sequence } => {
                let reply = M::EchoReply { identifier, sequence };
                let tos = ip.dscp << 2 | ip.ecn as u8;
                match echo_ends(interface, ip) {
                    Some(ends) => self.send_icmp_v6(visit, ends, tos, reply, own(&body)),
                    None => self.counters.drops.count(DropReason::NoRoute),
                }
                return Some(Notice::Done);
            }
            M::NeighborSolicitation { .. }
            | M::NeighborAdvertisement { .. }
            | M::RouterSolicitation { .. }
            | M::RouterAdvertisement { .. } => {
                if packet.has_fragment_header {
                    self.counters.ip.add(IpCounter::Icmp6InErrors, 1);
                    self.counters.drops.count(DropReason::Icmp);
                    return None;
                }
                return Some(self.receive_discovery(visit, interface, ip, message, &body));
            }
            M::EchoReply { .. } => return Some(nobodys(receiver)),
            M::Unreachable(code) => unreachable_v6(code),
            M::TimeExceeded(_) => Meaning::TIME_EXCEEDED,
            M::ParameterProblem { pointer, .. } => Meaning::bad_header(pointer),
            M::PacketTooBig { mtu } => Meaning::too_big(mtu),
        };
        match Quoted::v6(&body) {
            Ok(quoted) => {
                let error = IcmpError::new(meaning, data, ip.source.into(), quoted, body);
                Some(Notice::Error(error.by(interface.map(Interface::id))))
            }
            Err(error) => {
                self.count_bad(error, IpCounter::Icmp6InErrors, IpCounter::Icmp6InCsumErrors);
                None
            }
        }
    }

    /// Handles a message of neighbour or router discovery.
    fn receive_discovery(
        &self,
        visit: Visit,
        interface: Option<&Interface>,
        ip: &ipv6::Header,
        message: M,
        body: &[u8],
    ) -> Notice {
        let Some(interface) = interface else { return Notice::Done };
        match message {
            M::NeighborSolicitation { target, source_link } => {
                answer_solicitation(interface, visit, ip, target, source_link);
            }
            M::NeighborAdvertisement { target, target_link, solicited, replace, .. } => {
                let target = target.into();
                let link = target_link;
                let said = Advertisement { link, solicited, replace, is_claim: false };
                interface.on_advertisement(visit, target, said);
            }
            M::RouterSolicitation { source_link } => {
                interface.on_router_solicitation(visit, ip.source, source_link);
            }
            _ => {
                if self.on_router_advertisement(visit, interface, ip, message, body) {
                    return Notice::Router(interface.id());
                }
            }
        }
        Notice::Done
    }

    /// A router of the link has advertised itself. Whether that is remembered.
    fn on_router_advertisement(
        &self,
        visit: Visit,
        interface: &Interface,
        ip: &ipv6::Header,
        message: M,
        body: &[u8],
    ) -> bool {
        match interface.on_router_advertisement(visit, ip.source, message, body) {
            Ok(is_heard) => return is_heard,
            Err(Unheard::Malformed) => self.counters.drops.count(DropReason::Icmp),
            Err(Unheard::Full) => self.counters.drops.count(DropReason::RouterTable),
        }
        false
    }

    /// Counts a message that cannot be understood, and its drop.
    fn count_bad(&self, error: icmp::Error, errors: IpCounter, checksums: IpCounter) {
        self.counters.ip.add(errors, 1);
        if error == icmp::Error::Checksum {
            self.counters.ip.add(checksums, 1);
            self.counters.drops.count(DropReason::IcmpChecksum);
        } else {
            self.counters.drops.count(DropReason::Icmp);
        }
    }

    /// Tells the sender of `packet` (from its IP header on) that no socket has its port
    /// (`is_port`), or that its protocol is unknown here. The rate of messages is limited, for each
    /// sender and for the host, but not what the host says to itself. No message is sent about an
    /// ICMP error and about a packet to a group.
    pub(crate) fn send_unreachable(
        &self,
        visit: Visit,
        ends: Ends<IpAddr>,
        packet: &Bytes,
        is_port: bool,
    ) {
        if is_port {
            return self.refuse(visit, ends, packet, Refusal::Port);
        }
        if !self.may_send_error(visit, ends.remote) {
            return;
        }
        let v4 = icmp::Message::Unreachable(Unreachable::Protocol);
        let pointer = ipv6::protocol_field(packet) as u32;
        let v6 = M::ParameterProblem { problem: icmpv6::Problem::NextHeader, pointer };
        self.report(visit, ends, (Some(v4), Some(v6)), packet);
    }

    /// Tells the sender of a first fragment of IPv6 that it has not all headers of its datagram
    /// (RFC 8200 section 4.5), in the name of its destination. It came in by `interface`. The
    /// limits are those of [`send_unreachable`](Self::send_unreachable).
    pub(crate) fn send_incomplete_chain(
        &self,
        visit: Visit,
        interface: Option<InterfaceId>,
        first: &Bytes,
    ) {
        let Some((remote, local)) = reportable(first) else { return };
        if self.may_send_error(visit, remote) {
            let v6 = M::ParameterProblem { problem: icmpv6::Problem::Chain, pointer: 0 };
            let ends = Ends { local, remote, interface };
            self.report(visit, ends, (None, Some(v6)), first);
        }
    }

    /// Tells the sender of a datagram that its fragments did not all come in time (RFC 1122 section
    /// 3.3.2, RFC 8200 section 4.5), in the name of its destination. `first` is the first fragment
    /// as it came. The limits are those of [`send_unreachable`](Self::send_unreachable).
    pub(crate) fn send_fragment_timeout(&self, visit: Visit, first: &Bytes) {
        let Some((remote, local)) = reportable(first) else { return };
        if self.topology.locals().is_broadcast(local) || !self.may_send_error(visit, remote) {
            return;
        }
        let v4 = icmp::Message::TimeExceeded(TimeExceeded::Reassembly);
        let v6 = M::TimeExceeded(TimeExceeded::Reassembly);
        let ends = Ends { local, remote, interface: None };
        self.report(visit, ends, (Some(v4), Some(v6)), first);
    }

    /// Tells the sender of `packet` (from its IP header on), in the name of its destination, that
    /// the destination cannot be reached. The limits are those of
    /// [`send_unreachable`](Self::send_unreachable). No message is sent to all hosts of a network
    /// or in their name.
    pub(crate) fn refuse(&self, visit: Visit, ends: Ends<IpAddr>, packet: &Bytes, why: Refusal) {
        let locals = self.topology.locals();
        let is_many = locals.is_broadcast(ends.remote) || locals.is_broadcast(ends.local);
        if is_many || !self.may_send_error(visit, ends.remote) {
            return;
        }
        let (v4, v6) = (icmp::Message::Unreachable(why.v4()), M::Unreachable(why.v6()));
        self.report(visit, ends, (Some(v4), Some(v6)), packet);
    }

    /// Tells the sender of `packet` (from its IP header on), which came in by `interface` if that
    /// is known, of an error, from the address that `from` answers for that sender. The rate of
    /// messages is limited as in [`send_unreachable`](Self::send_unreachable).
    pub(crate) fn send_error<E>(
        &self,
        visit: Visit,
        packet: &Bytes,
        interface: Option<InterfaceId>,
        error: IcmpErrorKind,
        from: impl FnOnce(IpAddr) -> Result<IpAddr, E>,
    ) -> Result<Result<(), Refused>, E> {
        let Some((remote, destination)) = reportable(packet) else {
            return Ok(Err(Refused::Forbidden));
        };
        let locals = self.topology.locals();
        if locals.is_broadcast(remote) || locals.is_broadcast(destination) {
            return Ok(Err(Refused::Forbidden));
        }
        let has_code = if remote.is_ipv4() { error.v4().is_some() } else { error.v6().is_some() };
        if !has_code {
            return Ok(Err(Refused::NoSuchError));
        }
        let local = from(remote)?;
        if !locals.contains(remote) && !self.icmp_limit.allows(visit.now, remote) {
            return Ok(Err(Refused::Limited));
        }
        let ends = Ends { local, remote, interface };
        let is_sent = self.report(visit, ends, (error.v4(), error.v6()), packet);
        Ok(if is_sent { Ok(()) } else { Err(Refused::Forbidden) })
    }

    /// Sends an error about `packet`, by the version of the addresses of this host and of who sent
    /// it, and counts it. Returns whether there is one for these addresses.
    fn report(
        &self,
        visit: Visit,
        Ends { local, remote, interface }: Ends<IpAddr>,
        (v4, v6): (Option<icmp::Message>, Option<M>),
        packet: &Bytes,
    ) -> bool {
        let count = |counter| self.counters.ip.add(counter, 1);
        match (local, remote, v4, v6) {
            (IpAddr::V4(local), IpAddr::V4(remote), Some(message), _) => {
                count(match message {
                    icmp::Message::TimeExceeded(_) => IpCounter::IcmpOutTimeExcds,
                    _ => IpCounter::IcmpOutDestUnreachs,
                });
                let (tos, quoted) = (error_tos(packet), quote(packet, icmp::MAX_QUOTE));
                self.send_icmp_v4(visit, local, remote, tos, message, quoted);
            }
            (IpAddr::V6(local), IpAddr::V6(remote), _, Some(message)) => {
                if let M::TimeExceeded(_) = message {
                    count(IpCounter::Icmp6OutTimeExcds);
                }
                let quoted = quote(packet, icmpv6::MAX_QUOTE);
                self.send_icmp_v6(visit, Ends { local, remote, interface }, 0, message, quoted);
            }
            _ => return false,
        }
        true
    }

    /// Whether the limits allow one more error to this host; a drop is counted if not.
    fn may_send_error(&self, visit: Visit, to: IpAddr) -> bool {
        let is_own = self.topology.locals().contains(to);
        let may = is_own || self.icmp_limit.allows(visit.now, to);
        if !may {
            self.counters.drops.count(DropReason::RateLimited);
        }
        may
    }

    fn send_icmp_v4(
        &self,
        visit: Visit,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        tos: u8,
        message: icmp::Message,
        body: Payload,
    ) {
        let mut headers = Headers::default();
        message.emit(&mut headers, &body);
        self.counters.ip.add(IpCounter::IcmpOutMsgs, 1);
        let (local, remote) = (source.into(), destination.into());
        let ends = Ends { local, remote, interface: None };
        self.send_icmp(visit, ends, tos, Protocol::ICMP, headers, body);
    }

    fn send_icmp_v6(
        &self,
        visit: Visit,
        Ends { local, remote, interface }: Ends<Ipv6Addr>,
        tos: u8,
        message: icmpv6::Message,
        body: Payload,
    ) {
        let mut headers = Headers::default();
        message.emit(&mut headers, local, remote, &body);
        self.counters.ip.add(IpCounter::Icmp6OutMsgs, 1);
        let ends = Ends { local: local.into(), remote: remote.into(), interface };
        self.send_icmp(visit, ends, tos, Protocol::ICMPV6, headers, body);
    }

    fn send_icmp(
        &self,
        visit: Visit,
        Ends { local, remote, interface }: Ends<IpAddr>,
        tos: u8,
        protocol: Protocol,
        headers: Headers,
        payload: Payload,
    ) {
        let tuple = FourTuple::without_ports(local, remote);
        let datagram = OutgoingDatagram {
            local,
            remote,
            protocol,
            headers,
            payload,
            gso_size: None,
            flow: self.orphan_flow(&tuple),
            pacing_rate: Rate::UNLIMITED,
            credit: None,
            hop_limit: 0,
            tos,
            interface: interface.filter(|_| is_link_local(remote)),
            // As `icmp_sk_init` has it: nobody sends an answer again that is too long on its way.
            may_be_cut: true,
        };
        // An answer leaves from the address that the packet was for, which may be a foreign one.
        // Nobody waits for an answer of this host: what became of it is in the counters.
        let _ = self.send_datagram(visit, &mut CachedRoute::new(true), datagram);
    }
}

/// Whom the answer to an echo request is from and to: from the address that it was for, or for a
/// group from an address of the interface that it came in on (RFC 4443 section 4.2).
fn echo_ends(interface: Option<&Interface>, ip: &ipv6::Header) -> Option<Ends<Ipv6Addr>> {
    let local = if ip.destination.is_multicast() {
        match interface?.source_for(ip.source.into())? {
            IpAddr::V6(source) => source,
            IpAddr::V4(_) => return None,
        }
    } else {
        ip.destination
    };
    Some(Ends { local, remote: ip.source, interface: interface.map(Interface::id) })
}

/// Answers a neighbour that asks for an address of this interface (RFC 4861 section 7.2.4), or for
/// one that the interface answers for (section 7.2.8).
///
/// A probe for a duplicate gets no answer for an address of others: its sender wants to have the
/// address, and would not take it.
fn answer_solicitation(
    interface: &Interface,
    visit: Visit,
    ip: &ipv6::Header,
    target: Ipv6Addr,
    source_link: Option<[u8; 6]>,
) {
    let is_probe = ip.source.is_unspecified();
    let is_own = interface.has(target.into());
    let is_claimed = is_probe || ip.source == target;
    if !is_own && (is_claimed || !interface.is_proxy_for(target.into())) {
        return;
    }
    let Some(link) = interface.link_address() else { return };
    let asking = source_link.filter(|_| !is_probe);
    if let Some(link) = asking {
        interface.on_solicited_by(visit, ip.source.into(), link);
    }
    let reply = M::NeighborAdvertisement {
        target,
        target_link: Some(link),
        router: is_own && interface.is_router(),
        solicited: !is_probe,
        // Whoever has the address itself is believed rather than a proxy.
        replace: is_own,
    };
    // A solicited advertisement is for who asked alone (RFC 4861 section 7.1.2).
    let to = if is_probe { ALL_NODES } else { ip.source };
    let source = match interface.source_for(to.into()) {
        Some(IpAddr::V6(source)) if !is_own => source,
        _ => target,
    };
    let to_link = if is_probe { Some(icmpv6::multicast_link(ALL_NODES)) } else { asking };
    let from = Station { ip: source, link };
    match to_link {
        Some(link) => interface.send_neighbor_message(visit, from, Station { ip: to, link }, reply),
        None => interface.send_neighbor_answer(visit, from.ip, to, reply),
    }
}
