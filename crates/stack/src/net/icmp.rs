//! ICMP and ICMPv6: answers to echo requests and to neighbours, errors sent and received.
//!
//! An error that arrives is returned as an [`IcmpError`]. The sockets that it concerns are not
//! known here.

use super::egress::{CachedRoute, OutgoingDatagram};
use super::interface::{ALL_NODES, Interface, Output, Station};
use super::{Net, Visit};
use crate::drop_reason::DropReason;
use crate::flow::FourTuple;
use crate::frame::{Frame, Headers};
use crate::stats::IpCounter;
use crate::wire::icmp::{self, Quoted, TimeExceeded, Unreachable};
use crate::wire::icmpv6::{self, Message as M, Unreachable as Unreachable6};
use crate::wire::{Protocol, ipv4, ipv6};
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use neap_tcp::connection::ConnectionError;
use neap_tcp::segment::Payload;
use neap_tcp::time::Rate;

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
        Self { error, is_hard, is_too_big, info, kind, code, offender, quoted, body }
    }

    /// The error that a router would report of a packet that its neighbour does not take: the
    /// router is this host (`ipv4_link_failure`, `ndisc_error_report`). `None` for what is no IP
    /// packet.
    pub(crate) fn undeliverable(frame: &Frame) -> Option<Self> {
        let body = frame.to_bytes();
        let (quoted, message) = match body.first()? >> 4 {
            4 => (Quoted::v4(&body), [icmp::UNREACHABLE, Unreachable::Host as u8]),
            6 => (Quoted::v6(&body), [icmpv6::UNREACHABLE, Unreachable6::Address as u8]),
            _ => return None,
        };
        let quoted = quoted.ok()?;
        let meaning = Meaning::soft(ConnectionError::HostUnreachable);
        Some(Self::new(meaning, &message, quoted.source, quoted, body))
    }

    /// The flow of the packet, if its ports are quoted.
    pub(crate) fn tuple(&self) -> Option<FourTuple> {
        let ports = self.quoted.ports?;
        Some(FourTuple {
            local: self.quoted.source,
            remote: self.quoted.destination,
            local_port: ports.source,
            remote_port: ports.destination,
        })
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

/// A copy of what is sent back: while the answer waits in a qdisc, it must not keep the large
/// buffer that it came in.
fn own(bytes: &[u8]) -> Payload {
    Payload::from(Bytes::copy_from_slice(bytes))
}

impl Net {
    /// Handles an ICMP message to this host. An error is returned.
    pub(crate) fn receive_icmp_v4(
        &self,
        visit: Visit,
        ip: &ipv4::Header,
        data: &Bytes,
    ) -> Option<IcmpError> {
        let stats = &self.counters.ip;
        stats.add(IpCounter::IcmpInMsgs, 1);
        let (message, body) = match icmp::parse(data) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.count_bad(error, IpCounter::IcmpInErrors, IpCounter::IcmpInCsumErrors);
                return None;
            }
        };
        let body = data.slice_ref(body);
        let meaning = match message {
            icmp::Message::EchoRequest { identifier, sequence } => {
                stats.add(IpCounter::IcmpInEchos, 1);
                stats.add(IpCounter::IcmpOutEchoReps, 1);
                let reply = icmp::Message::EchoReply { identifier, sequence };
                self.send_icmp_v4(visit, ip.destination, ip.source, reply, own(&body));
                return None;
            }
            // A fragment that came late says nothing of the way.
            icmp::Message::EchoReply { .. }
            | icmp::Message::TimeExceeded(TimeExceeded::Reassembly) => return None,
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
            Ok(quoted) => Some(IcmpError::new(meaning, data, ip.source.into(), quoted, body)),
            Err(error) => {
                self.count_bad(error, IpCounter::IcmpInErrors, IpCounter::IcmpInCsumErrors);
                None
            }
        }
    }

    /// Handles an ICMPv6 message to this host, which came in on `interface` or from this host
    /// itself. An error is returned.
    pub(crate) fn receive_icmp_v6(
        &self,
        visit: Visit,
        interface: Option<&Interface>,
        ip: &ipv6::Header,
        data: &Bytes,
    ) -> Option<IcmpError> {
        self.counters.ip.add(IpCounter::Icmp6InMsgs, 1);
        let (message, body) = match icmpv6::parse(ip, data) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.count_bad(error, IpCounter::Icmp6InErrors, IpCounter::Icmp6InCsumErrors);
                return None;
            }
        };
        let body = data.slice_ref(body);
        let meaning = match message {
            M::EchoRequest { identifier, sequence } => {
                let reply = M::EchoReply { identifier, sequence };
                self.send_icmp_v6(visit, ip.destination, ip.source, reply, own(&body));
                return None;
            }
            M::NeighborSolicitation { target, source_link } => {
                if let Some(interface) = interface {
                    answer_solicitation(interface, visit, ip, target, source_link);
                }
                return None;
            }
            M::NeighborAdvertisement { target, target_link, solicited, replace, .. } => {
                if let (Some(interface), Some(link)) = (interface, target_link) {
                    interface.on_advertisement(visit, target.into(), link, solicited, replace);
                }
                return None;
            }
            M::EchoReply { .. } => return None,
            M::Unreachable(code) => unreachable_v6(code),
            M::TimeExceeded(_) => Meaning::TIME_EXCEEDED,
            M::ParameterProblem { pointer, .. } => Meaning::bad_header(pointer),
            M::PacketTooBig { mtu } => Meaning::too_big(mtu),
        };
        match Quoted::v6(&body) {
            Ok(quoted) => Some(IcmpError::new(meaning, data, ip.source.into(), quoted, body)),
            Err(error) => {
                self.count_bad(error, IpCounter::Icmp6InErrors, IpCounter::Icmp6InCsumErrors);
                None
            }
        }
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
        source: IpAddr,
        destination: IpAddr,
        packet: &Bytes,
        is_port: bool,
    ) {
        let is_own = self.topology.locals().contains(source);
        if !is_own && !self.icmp_limit.allows(visit.now, source) {
            self.counters.drops.count(DropReason::RateLimited);
            return;
        }
        let quote = |most: usize| own(&packet[..packet.len().min(most)]);
        match (destination, source) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let code = if is_port { Unreachable::Port } else { Unreachable::Protocol };
                let message = icmp::Message::Unreachable(code);
                self.counters.ip.add(IpCounter::IcmpOutDestUnreachs, 1);
                self.send_icmp_v4(visit, local, remote, message, quote(icmp::MAX_QUOTE));
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let message = if is_port {
                    M::Unreachable(Unreachable6::Port)
                } else {
                    let problem = icmpv6::Problem::NextHeader;
                    M::ParameterProblem { problem, pointer: 6 }
                };
                self.send_icmp_v6(visit, local, remote, message, quote(icmpv6::MAX_QUOTE));
            }
            _ => {}
        }
    }

    fn send_icmp_v4(
        &self,
        visit: Visit,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        message: icmp::Message,
        body: Payload,
    ) {
        let mut headers = Headers::default();
        message.emit(&mut headers, &body);
        self.counters.ip.add(IpCounter::IcmpOutMsgs, 1);
        self.send_icmp(visit, source.into(), destination.into(), Protocol::ICMP, headers, body);
    }

    fn send_icmp_v6(
        &self,
        visit: Visit,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        message: icmpv6::Message,
        body: Payload,
    ) {
        let mut headers = Headers::default();
        message.emit(&mut headers, source, destination, &body);
        self.counters.ip.add(IpCounter::Icmp6OutMsgs, 1);
        self.send_icmp(visit, source.into(), destination.into(), Protocol::ICMPV6, headers, body);
    }

    fn send_icmp(
        &self,
        visit: Visit,
        local: IpAddr,
        remote: IpAddr,
        protocol: Protocol,
        headers: Headers,
        payload: Payload,
    ) {
        let tuple = FourTuple { local, remote, local_port: 0, remote_port: 0 };
        let datagram = OutgoingDatagram {
            local,
            remote,
            protocol,
            headers,
            payload,
            flow: self.orphan_flow(&tuple),
            pacing_rate: Rate::UNLIMITED,
            credit: None,
            hop_limit: 0,
        };
        let sent = self.send_datagram(visit, &mut CachedRoute::default(), datagram);
        // Nobody waits for an answer of this host: what became of it is in the counters.
        if let Ok(Output { undeliverable, .. }) = sent {
            self.counters.drops.add(DropReason::Icmp, undeliverable.len() as u64);
        }
    }
}

/// Answers a neighbour that asks for an address of this interface (RFC 4861 section 7.2.4).
fn answer_solicitation(
    interface: &Interface,
    visit: Visit,
    ip: &ipv6::Header,
    target: Ipv6Addr,
    source_link: Option<[u8; 6]>,
) {
    let own = interface.link_address().filter(|_| interface.has(target.into()));
    let Some(link) = own else { return };
    let is_probe = ip.source.is_unspecified();
    let asking = source_link.filter(|_| !is_probe);
    if let Some(link) = asking {
        interface.on_solicited_by(visit, ip.source.into(), link);
    }
    let to = match asking {
        Some(link) => Station { ip: ip.source, link },
        None => Station { ip: ALL_NODES, link: icmpv6::multicast_link(ALL_NODES) },
    };
    let reply = M::NeighborAdvertisement {
        target,
        target_link: Some(link),
        router: false,
        solicited: !is_probe,
        replace: true,
    };
    interface.send_neighbor_message(visit, Station { ip: target, link }, to, reply);
}
