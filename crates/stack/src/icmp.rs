//! ICMP and ICMPv6: echo replies, neighbour discovery, errors in and out.

use crate::demux::FourTuple;
use crate::drop_reason::DropReason;
use crate::egress::{Datagram, send_datagram};
use crate::frame::{Frame, Headers};
use crate::interface::Interface;
use crate::socket::errors::{ErrorOrigin, ErrorRecord, Report};
use crate::stack::Host;
use crate::stats::IpCounter;
use crate::sync::{Mutex, lock};
use crate::wire::icmp::{self, Quoted, TimeExceeded, Unreachable};
use crate::wire::icmpv6::Unreachable as Unreachable6;
use crate::wire::{Protocol, icmpv6, ipv4, ipv6, udp};
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use neap_tcp::connection::ConnectionError;
use neap_tcp::segment::Payload;
use neap_tcp::time::Instant;
use std::sync::Arc;

/// All nodes on the link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Messages per second, and how many may come at once (`net.ipv4.icmp_msgs_per_sec`,
/// `icmp_msgs_burst`).
const MESSAGES_PER_SEC: u64 = 1000;
const MESSAGES_BURST: u64 = 50;

/// A token bucket for answers that strangers can provoke. O(1); one mutex.
#[derive(Debug, Default)]
pub(crate) struct RateLimit(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    /// Thousandths of messages would lose less; nanoseconds of credit lose nothing.
    credit: u64,
    last: Instant,
}

const NANOS_PER_MESSAGE: u64 = 1_000_000_000 / MESSAGES_PER_SEC;

impl Default for Bucket {
    fn default() -> Self {
        Self { credit: MESSAGES_BURST * NANOS_PER_MESSAGE, last: Instant::ZERO }
    }
}

impl RateLimit {
    /// Whether one more answer may be sent at `now`.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        let mut bucket = lock(&self.0);
        let earned = now.since(bucket.last).0;
        bucket.credit =
            bucket.credit.saturating_add(earned).min(MESSAGES_BURST * NANOS_PER_MESSAGE);
        bucket.last = bucket.last.max(now);
        let allows = bucket.credit >= NANOS_PER_MESSAGE;
        if allows {
            bucket.credit -= NANOS_PER_MESSAGE;
        }
        allows
    }
}

/// Where a message came from and when.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) host: &'a Host,
    pub(crate) now: Instant,
    pub(crate) shard: usize,
    pub(crate) interface: Option<&'a Arc<Interface>>,
}

/// Handles the payload of an IPv4 packet to this host.
pub(crate) fn receive_v4(cx: Context<'_>, ip: &ipv4::Header, data: &Bytes) {
    let stats = &cx.host.ip;
    stats.add(IpCounter::IcmpInMsgs, 1);
    let (message, body) = match icmp::parse(data) {
        Ok(parsed) => parsed,
        Err(error) => {
            stats.add(IpCounter::IcmpInErrors, 1);
            if error == icmp::Error::Checksum {
                stats.add(IpCounter::IcmpInCsumErrors, 1);
                cx.host.drops.count(DropReason::IcmpChecksum);
            } else {
                cx.host.drops.count(DropReason::Icmp);
            }
            return;
        }
    };
    let body = data.slice_ref(body);
    let told = match message {
        icmp::Message::EchoRequest { identifier, sequence } => {
            stats.add(IpCounter::IcmpInEchos, 1);
            stats.add(IpCounter::IcmpOutEchoReps, 1);
            let reply = icmp::Message::EchoReply { identifier, sequence };
            return send_v4(cx, ip.destination, ip.source, reply, body.into());
        }
        // That of reassembly says nothing of the way.
        icmp::Message::EchoReply { .. } | icmp::Message::TimeExceeded(TimeExceeded::Reassembly) => {
            return;
        }
        icmp::Message::Unreachable(code) => {
            stats.add(IpCounter::IcmpInDestUnreachs, 1);
            unreachable_v4(code)
        }
        icmp::Message::FragmentationNeeded { mtu } => {
            stats.add(IpCounter::IcmpInDestUnreachs, 1);
            Told::too_big(u32::from(mtu))
        }
        icmp::Message::TimeExceeded(TimeExceeded::Transit) => Told::TIME_EXCEEDED,
        icmp::Message::ParameterProblem { pointer } => Told::bad_header(u32::from(pointer)),
    };
    let origin = Origin::of(ErrorOrigin::Icmp, data, ip.source.into());
    match Quoted::v4(&body) {
        Ok(quoted) => on_error(cx, told, origin, &quoted, &body),
        Err(_) => {
            stats.add(IpCounter::IcmpInErrors, 1);
            cx.host.drops.count(DropReason::Icmp);
        }
    }
}

/// What a message says, before anybody believes it.
#[derive(Clone, Copy)]
struct Told {
    error: ConnectionError,
    is_hard: bool,
    is_too_big: bool,
    info: u32,
}

impl Told {
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

/// Where a message came from: what a record of it shows.
#[derive(Clone, Copy)]
struct Origin {
    kind: u8,
    code: u8,
    origin: ErrorOrigin,
    offender: IpAddr,
}

impl Origin {
    /// Of a message that was parsed.
    fn of(origin: ErrorOrigin, message: &[u8], offender: IpAddr) -> Self {
        let [kind, code] = message.first_chunk().copied().unwrap_or_default();
        Self { kind, code, origin, offender }
    }

    /// Whether what is told ends a half-open connection: over IPv4 what says that there is no way
    /// (`tcp_v4_err`), over IPv6 what is hard (`tcp_v6_err`).
    fn ends_request(&self, told: Told) -> bool {
        match self.origin {
            ErrorOrigin::Icmp => matches!((self.kind, self.code), (3, 0 | 1) | (11 | 12, _)),
            _ => told.is_hard && !told.is_too_big,
        }
    }
}

/// `icmp_err_convert`
fn unreachable_v4(code: Unreachable) -> Told {
    match code {
        Unreachable::Network | Unreachable::NetworkTos => {
            Told::soft(ConnectionError::NetworkUnreachable)
        }
        Unreachable::Host | Unreachable::HostTos => Told::soft(ConnectionError::HostUnreachable),
        Unreachable::Protocol => Told::hard(ConnectionError::ProtocolUnavailable),
        Unreachable::Port => Told::hard(ConnectionError::Refused),
        Unreachable::SourceRouteFailed => Told::soft(ConnectionError::NotSupported),
        Unreachable::NetworkUnknown | Unreachable::NetworkProhibited => {
            Told::hard(ConnectionError::NetworkUnreachable)
        }
        Unreachable::HostUnknown => Told::hard(ConnectionError::HostDown),
        Unreachable::HostIsolated => Told::hard(ConnectionError::NoNetwork),
        Unreachable::HostProhibited
        | Unreachable::PacketFiltered
        | Unreachable::PrecedenceViolation
        | Unreachable::PrecedenceCutoff => Told::hard(ConnectionError::HostUnreachable),
    }
}

/// `icmpv6_err_convert`
fn unreachable_v6(code: Unreachable6) -> Told {
    match code {
        Unreachable6::NoRoute => Told::soft(ConnectionError::NetworkUnreachable),
        Unreachable6::BeyondScope | Unreachable6::Address => {
            Told::soft(ConnectionError::HostUnreachable)
        }
        Unreachable6::Port => Told::hard(ConnectionError::Refused),
        Unreachable6::Prohibited | Unreachable6::SourcePolicy | Unreachable6::RejectRoute => {
            Told::hard(ConnectionError::Forbidden)
        }
    }
}

/// Handles the payload of an IPv6 packet to this host.
pub(crate) fn receive_v6(cx: Context<'_>, ip: &ipv6::Header, data: &Bytes) {
    use icmpv6::Message as M;
    let stats = &cx.host.ip;
    stats.add(IpCounter::Icmp6InMsgs, 1);
    let (message, body) = match icmpv6::parse(ip, data) {
        Ok(parsed) => parsed,
        Err(error) => {
            stats.add(IpCounter::Icmp6InErrors, 1);
            if error == icmp::Error::Checksum {
                stats.add(IpCounter::Icmp6InCsumErrors, 1);
                cx.host.drops.count(DropReason::IcmpChecksum);
            } else {
                cx.host.drops.count(DropReason::Icmp);
            }
            return;
        }
    };
    let told = match message {
        M::EchoRequest { identifier, sequence } => {
            let reply = M::EchoReply { identifier, sequence };
            let body = data.slice_ref(body).into();
            return send_v6(cx, ip.destination, ip.source, reply, body);
        }
        M::NeighborSolicitation { target, source_link } => {
            return on_solicitation(cx, ip, target, source_link);
        }
        M::NeighborAdvertisement { target, target_link, solicited, replace, .. } => {
            if let (Some(interface), Some(link)) = (cx.interface, target_link) {
                interface.on_advertisement(cx, target.into(), link, solicited, replace);
            }
            return;
        }
        M::EchoReply { .. } => return,
        M::Unreachable(code) => unreachable_v6(code),
        M::TimeExceeded(_) => Told::TIME_EXCEEDED,
        M::ParameterProblem { pointer, .. } => Told::bad_header(pointer),
        M::PacketTooBig { mtu } => Told::too_big(mtu),
    };
    let origin = Origin::of(ErrorOrigin::Icmp6, data, ip.source.into());
    match Quoted::v6(body) {
        Ok(quoted) => on_error(cx, told, origin, &quoted, body),
        Err(_) => {
            stats.add(IpCounter::Icmp6InErrors, 1);
            cx.host.drops.count(DropReason::Icmp);
        }
    }
}

fn on_solicitation(
    cx: Context<'_>,
    ip: &ipv6::Header,
    target: Ipv6Addr,
    source_link: Option<[u8; 6]>,
) {
    let Some(interface) = cx.interface else { return };
    let Some(own) = interface.link_address().filter(|_| interface.has(target.into())) else {
        return;
    };
    let is_probe = ip.source.is_unspecified();
    if let Some(link) = source_link.filter(|_| !is_probe) {
        interface.on_solicited_by(cx, ip.source.into(), link);
    }
    let (to, link) = match source_link {
        Some(link) if !is_probe => (ip.source, link),
        _ => (ALL_NODES, icmpv6::multicast_link(ALL_NODES)),
    };
    let reply = icmpv6::Message::NeighborAdvertisement {
        target,
        target_link: Some(own),
        router: false,
        solicited: !is_probe,
        replace: true,
    };
    interface.send_neighbor_message(cx, (target, own), (to, link), reply);
}

/// Hands an ICMP error to the socket whose packet it quotes. TCP believes it only about a segment
/// in flight; UDP has no such means.
fn on_error(cx: Context<'_>, told: Told, origin: Origin, quoted: &Quoted, body: &[u8]) {
    let tuple = quoted.ports.map(|ports| FourTuple {
        local: quoted.source,
        remote: quoted.destination,
        local_port: ports.source,
        remote_port: ports.destination,
    });
    let handled = match (quoted.protocol, tuple) {
        (Protocol::TCP, Some(tuple)) => match (cx.host.demux.connection(&tuple), quoted.seq) {
            (Some(socket), Some(seq)) => {
                let report = report(told, origin, &tuple, body.get(quoted.transport_at..));
                socket.path_error(cx.host, cx.now, seq, report);
                true
            }
            (None, Some(seq)) if origin.ends_request(told) => {
                let listener = cx.host.demux.listener(tuple.local_addr());
                let cx = cx.host.listen_context(cx.now, cx.shard, 0);
                listener.is_some_and(|one| one.on_unreachable(&cx, &tuple, seq))
            }
            _ => false,
        },
        (Protocol::UDP, Some(tuple)) => cx.host.udp.on_error(&tuple, |socket| {
            if told.is_too_big {
                let current = u32::MAX;
                cx.host.topology.on_packet_too_big(cx.now, tuple.remote, told.info, current);
            }
            let data = body.get(quoted.transport_at + udp::HEADER_LEN..);
            socket.on_report(cx.host, report(told, origin, &tuple, data));
        }),
        _ => false,
    };
    if !handled {
        cx.host.drops.count(DropReason::Icmp);
    }
}

fn report(told: Told, origin: Origin, tuple: &FourTuple, data: Option<&[u8]>) -> Report {
    let Told { error, is_hard, is_too_big, info } = told;
    let Origin { kind, code, origin, offender } = origin;
    let record = ErrorRecord {
        error,
        origin,
        kind,
        code,
        info,
        destination: tuple.remote_addr(),
        offender: Some(offender),
        // A copy: what came may share its memory with much more.
        data: Bytes::copy_from_slice(data.unwrap_or_default()),
    };
    Report { record, is_hard, is_too_big }
}

/// A packet of ours could not be given to its neighbour: its socket is told as if a router had,
/// namely this host (`ipv4_link_failure`, `ndisc_error_report`).
pub(crate) fn on_link_failure(cx: Context<'_>, frame: &Frame) {
    let packet = frame.to_bytes();
    let told = Told::soft(ConnectionError::HostUnreachable);
    let (quoted, origin, kind, code) = match packet.first().map(|byte| byte >> 4) {
        Some(4) => {
            (Quoted::v4(&packet), ErrorOrigin::Icmp, icmp::UNREACHABLE, Unreachable::Host as u8)
        }
        Some(6) => {
            let code = Unreachable6::Address as u8;
            (Quoted::v6(&packet), ErrorOrigin::Icmp6, icmpv6::UNREACHABLE, code)
        }
        _ => return,
    };
    if let Ok(quoted) = quoted {
        let origin = Origin { kind, code, origin, offender: quoted.source };
        on_error(cx, told, origin, &quoted, &packet);
    }
}

fn send_v4(
    cx: Context<'_>,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    message: icmp::Message,
    body: Payload,
) {
    let mut headers = Headers::default();
    message.emit(&mut headers, &body);
    cx.host.ip.add(IpCounter::IcmpOutMsgs, 1);
    send(cx, source.into(), destination.into(), Protocol::ICMP, headers, body);
}

fn send_v6(
    cx: Context<'_>,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    message: icmpv6::Message,
    body: Payload,
) {
    let mut headers = Headers::default();
    message.emit(&mut headers, source, destination, &body);
    cx.host.ip.add(IpCounter::Icmp6OutMsgs, 1);
    send(cx, source.into(), destination.into(), Protocol::ICMPV6, headers, body);
}

fn send(
    cx: Context<'_>,
    local: IpAddr,
    remote: IpAddr,
    protocol: Protocol,
    headers: Headers,
    payload: Payload,
) {
    let datagram = Datagram::new(local, remote, protocol, headers, payload);
    // What becomes of an answer that nobody waits for is in the counters.
    let _ = send_datagram(cx.host, cx.now, cx.shard, datagram);
}

/// Tells the sender of `packet` (from its IP header on) that no socket has its port, or that its
/// protocol is unknown here. At most 1000 a second; never about another error's quote or a group.
pub(crate) fn send_unreachable(
    cx: Context<'_>,
    source: IpAddr,
    destination: IpAddr,
    packet: &Bytes,
    is_port: bool,
) {
    if !cx.host.icmp_limit.allows(cx.now) {
        cx.host.drops.count(DropReason::RateLimited);
        return;
    }
    let quote = |most: usize| Payload::from(packet.slice(..packet.len().min(most)));
    match (destination, source) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let code = if is_port { Unreachable::Port } else { Unreachable::Protocol };
            let message = icmp::Message::Unreachable(code);
            cx.host.ip.add(IpCounter::IcmpOutDestUnreachs, 1);
            send_v4(cx, local, remote, message, quote(icmp::MAX_QUOTE));
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            let message = if is_port {
                icmpv6::Message::Unreachable(icmpv6::Unreachable::Port)
            } else {
                let problem = icmpv6::Problem::NextHeader;
                icmpv6::Message::ParameterProblem { problem, pointer: 6 }
            };
            send_v6(cx, local, remote, message, quote(icmpv6::MAX_QUOTE));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_tcp::time::Nanos;

    #[test]
    fn answers_are_limited_in_burst_and_rate() {
        let limit = RateLimit::default();
        let now = Instant::from_nanos(5_000_000_000);
        let burst = (0..100).filter(|_| limit.allows(now)).count();
        assert_eq!(burst, 50);
        assert!(!limit.allows(now));
        assert!(limit.allows(now + Nanos::from_millis(1)));
        assert!(!limit.allows(now), "time that runs back earns nothing");
    }
}
