//! The way down of one socket: cached route and neighbour, headers, the frame into the port.
//!
//! Cost per frame with a valid cache: one load for the generation of the routes, on Ethernet one
//! look at the neighbour, the headers written once from values (no allocation), the port. A cache is
//! under 100 bytes.

use crate::demux::FourTuple;
use crate::device::{Capabilities, Completion};
use crate::drop_reason::DropReason;
use crate::fragment::fragment;
use crate::frame::{DATAGRAM, Frame, Gso, GsoKind, Headers, ORPHAN};
use crate::interface::{Interface, Lookup};
use crate::shard::RunList;
use crate::socket::SocketError;
use crate::socket::tcp::Cx;
use crate::stack::Host;
use crate::stats::IpCounter;
use crate::wire::checksum::Pseudo;
use crate::wire::{ChecksumBy, Ports, Protocol, ipv4, ipv6, partial_checksum, tcp};
use core::net::IpAddr;
use neap_tcp::connection::Path;
use neap_tcp::segment::{Ecn, Payload, Segment};
use neap_tcp::time::{Instant, Nanos, Rate};
use neap_tcp::transmit::egress::{Egress, GsoLimits, Verdict};
use neap_tcp::transmit::small_queue::TxCredit;
use std::sync::Arc;

/// Hop limit of what this host sends (`net.ipv4.ip_default_ttl`).
const HOP_LIMIT: u8 = 64;

/// Largest IP packet on the loopback.
pub(crate) const LOOPBACK_MTU: u32 = 65_535;

/// Largest packet that an IPv4 total length can state.
const MAX_PACKET: u32 = 65_535;

/// Super-frames that are cut in software may carry so many segments, as in Linux.
const SOFTWARE_GSO_SEGS: u32 = 65_535;

/// Out of which door, and to which neighbour.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// To this host itself.
    Loopback,
    /// Over an interface to the next hop.
    Link(Arc<Interface>, IpAddr),
}

/// A route as it was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Of the topology when it was found.
    generation: u64,
    expires: Instant,
    pub(crate) way: Way,
    /// Largest packet.
    pub(crate) mtu: u32,
    pseudo: Pseudo,
}

/// The cached way of one socket to one address.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketPath {
    found: Option<Found>,
    /// The MTU that the connection knows; 0 before it was told.
    told: u32,
    identification: u16,
}

impl SocketPath {
    /// The way now; looks again when routes, addresses or path MTUs changed since the last time.
    pub(crate) fn refresh(
        &mut self,
        host: &Host,
        now: Instant,
        local: IpAddr,
        remote: IpAddr,
    ) -> Option<&Found> {
        let generation = host.topology.generation();
        let is_current = |found: &Found| found.generation == generation && now < found.expires;
        if !self.found.as_ref().is_some_and(is_current) {
            self.found = Self::find(host, now, local, remote);
        }
        self.found.as_ref()
    }

    fn find(host: &Host, now: Instant, local: IpAddr, remote: IpAddr) -> Option<Found> {
        let pseudo = Pseudo::of(local, remote, Protocol::TCP)?;
        let Lookup { generation, expires, way, mtu, .. } = host.topology.lookup(now, remote)?;
        Some(Found { generation, expires, way, mtu, pseudo })
    }

    /// Largest packet as found last; 0 without a route.
    pub(crate) fn mtu(&self) -> u32 {
        self.found.as_ref().map_or(0, |found| found.mtu)
    }

    /// What the connection is to know of the path; from now on it does.
    pub(crate) fn tell(&mut self, remote: IpAddr) -> Path {
        self.told = self.found.as_ref().map_or(self.told, |found| found.mtu);
        Path { mtu: self.told, ip_header: if remote.is_ipv4() { 20 } else { 40 } }
    }

    /// The path, if it is not what the connection knows.
    pub(crate) fn take_change(&mut self, remote: IpAddr) -> Option<Path> {
        let mtu = self.found.as_ref()?.mtu;
        (mtu != self.told).then(|| self.tell(remote))
    }

    /// The next IPv4 identification for `count` packets. They are sent with DF, so it says nothing
    /// (RFC 6864), but devices and GRO like it to count.
    fn next_identification(&mut self, count: u32) -> u16 {
        let first = self.identification;
        self.identification = first.wrapping_add(count as u16);
        first
    }
}

/// What a connection sees of the host below it, for one `transmit`.
pub(crate) struct Lower<'a> {
    path: &'a mut SocketPath,
    host: &'a Host,
    tuple: &'a FourTuple,
    now: Instant,
    shard: usize,
    flow: u64,
    priority: u8,
    gso: GsoLimits,
    holds: bool,
    completes_on_enqueue: bool,
    pacing_shift: u32,
    completion_lateness: Nanos,
    list: &'a RunList,
}

impl<'a> Lower<'a> {
    pub(crate) fn new(path: &'a mut SocketPath, cx: &'a Cx<'_>, priority: u8) -> Self {
        let tuple = cx.socket.tuple();
        let shard = cx.socket.cell.shard();
        let mut gso = GsoLimits { max_size: 1500, max_segs: 1 };
        let (mut holds, mut completes_on_enqueue, mut pacing_shift) = (false, false, 10);
        let mut completion_lateness = Nanos::ZERO;
        match path.refresh(cx.host, cx.now, tuple.local, tuple.remote).map(|found| &found.way) {
            None => {}
            Some(Way::Loopback) => {
                gso = GsoLimits { max_size: LOOPBACK_MTU, max_segs: SOFTWARE_GSO_SEGS };
            }
            Some(Way::Link(interface, _)) => {
                let port = interface.port(shard);
                let capabilities = port.capabilities();
                gso = gso_limits(capabilities);
                holds = port.holds_until_departure();
                completes_on_enqueue = capabilities.completion == Completion::OnSubmit;
                pacing_shift = u32::from(capabilities.pacing_shift);
                completion_lateness = port.lateness();
            }
        }
        let (host, now) = (cx.host, cx.now);
        let flow = cx.socket.cell.id().0 & (DATAGRAM - 1);
        Self {
            path,
            host,
            tuple,
            now,
            shard,
            flow,
            priority,
            gso,
            holds,
            completes_on_enqueue,
            pacing_shift,
            completion_lateness,
            list: cx.socket.cell.list(),
        }
    }
}

/// Super-frames through a port: as the device takes them, or cut by the port.
fn gso_limits(capabilities: &Capabilities) -> GsoLimits {
    if capabilities.gso_max_segs == 0 {
        return GsoLimits { max_size: capabilities.mtu.into(), max_segs: 1 };
    }
    if capabilities.gso_max_size > u32::from(capabilities.mtu) {
        let max_size = capabilities.gso_max_size.min(MAX_PACKET);
        return GsoLimits { max_size, max_segs: capabilities.gso_max_segs.max(1) };
    }
    GsoLimits { max_size: MAX_PACKET, max_segs: SOFTWARE_GSO_SEGS }
}

impl Egress for Lower<'_> {
    fn enqueue(
        &mut self,
        segment: Segment,
        departure: Instant,
        credit: Option<TxCredit>,
    ) -> Verdict {
        self.list.count_sent();
        let identification = self.path.next_identification(segment.segments());
        let Some(found) = &self.path.found else {
            self.host.ip.add(IpCounter::IpOutNoRoutes, 1);
            self.host.drops.count(DropReason::NoRoute);
            return Verdict::Dropped;
        };
        let mut frame = tcp_frame(self.tuple, found, segment, identification);
        (frame.departure, frame.credit) = (departure, credit);
        (frame.priority, frame.flow) = (self.priority, self.flow);
        output(self.host, self.now, self.shard, &found.way, frame)
    }

    fn gso(&self) -> GsoLimits {
        self.gso
    }

    fn holds_until_departure(&self) -> bool {
        self.holds
    }

    fn completes_on_enqueue(&self) -> bool {
        self.completes_on_enqueue
    }

    fn is_exhausted(&self) -> bool {
        self.list.has_sent_enough()
    }

    fn pacing_shift(&self) -> u32 {
        self.pacing_shift
    }

    fn completion_lateness(&self) -> Nanos {
        self.completion_lateness
    }
}

/// Headers for a segment: TCP, then IP. The link header comes with the neighbour.
fn tcp_frame(tuple: &FourTuple, found: &Found, segment: Segment, identification: u16) -> Frame {
    let mut headers = Headers::default();
    let ports = Ports { source: tuple.local_port, destination: tuple.remote_port };
    let is_super = segment.gso_size > 0 && segment.payload.len() > u32::from(segment.gso_size);
    let by_device = match &found.way {
        Way::Loopback => true,
        Way::Link(interface, _) => is_super || interface.capabilities().checksum_tx,
    };
    let by = if by_device { ChecksumBy::Device } else { ChecksumBy::Stack };
    let tcp_len = tcp::emit(&mut headers, ports, &segment, found.pseudo, by);
    let transport_len = u16::try_from(tcp_len as u32 + segment.payload.len()).unwrap_or(u16::MAX);
    let ip = IpFields {
        local: tuple.local,
        remote: tuple.remote,
        protocol: Protocol::TCP,
        hop_limit: HOP_LIMIT,
        ecn: segment.ecn,
        identification,
        dont_fragment: true,
    };
    ip.emit(&mut headers, transport_len);
    let kind = if tuple.local.is_ipv4() { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
    let checksum = by_device.then(|| partial_checksum(&headers, tcp_len, tcp::CHECKSUM_AT));
    Frame {
        gso: is_super.then_some(Gso { size: segment.gso_size, kind }),
        checksum,
        ecn: segment.ecn,
        ..Frame::new(headers, segment.payload)
    }
}

/// What the two IP headers have in common.
struct IpFields {
    local: IpAddr,
    remote: IpAddr,
    protocol: Protocol,
    hop_limit: u8,
    ecn: Ecn,
    identification: u16,
    dont_fragment: bool,
}

impl IpFields {
    fn emit(&self, headers: &mut Headers, payload_len: u16) {
        let &Self { protocol, hop_limit, ecn, identification, dont_fragment, .. } = self;
        match (self.local, self.remote) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Header {
                source,
                destination,
                protocol,
                ttl: hop_limit,
                dscp: 0,
                ecn,
                identification,
                dont_fragment,
            }
            .emit(headers, payload_len),
            (IpAddr::V6(source), IpAddr::V6(destination)) => ipv6::Header {
                source,
                destination,
                protocol,
                hop_limit,
                dscp: 0,
                ecn,
                flow_label: 0,
            }
            .emit(headers, payload_len),
            // A route is found for two addresses of one family only.
            _ => {}
        }
    }
}

/// Counts the packet and gives it to the loopback, or to the neighbour's interface.
fn output(host: &Host, now: Instant, shard: usize, way: &Way, frame: Frame) -> Verdict {
    let is_v4 = frame.headers.as_slice().first().is_some_and(|byte| byte >> 4 == 4);
    let (requests, octets) = if is_v4 {
        (IpCounter::IpOutRequests, IpCounter::IpOutOctets)
    } else {
        (IpCounter::Ip6OutRequests, IpCounter::Ip6OutOctets)
    };
    host.ip.add(requests, 1);
    host.ip.add(octets, frame.len() as u64);
    match way {
        Way::Loopback => host.loop_back(frame),
        Way::Link(interface, next_hop) => interface.output(host, now, shard, *next_hop, frame),
    }
}

/// A packet of any protocol but TCP, its transport header written and summed.
pub(crate) struct Datagram {
    local: IpAddr,
    remote: IpAddr,
    protocol: Protocol,
    headers: Headers,
    payload: Payload,
    /// As [`Frame::flow`].
    pub(crate) flow: u64,
    /// As [`Frame::pacing_rate`].
    pub(crate) pacing_rate: Rate,
    /// The share of the socket's account.
    pub(crate) credit: Option<TxCredit>,
    /// Hops that it may make.
    pub(crate) hop_limit: u8,
}

impl Datagram {
    pub(crate) fn new(
        local: IpAddr,
        remote: IpAddr,
        protocol: Protocol,
        headers: Headers,
        payload: Payload,
    ) -> Self {
        Self {
            local,
            remote,
            protocol,
            headers,
            payload,
            flow: 0,
            pacing_rate: Rate::UNLIMITED,
            credit: None,
            hop_limit: HOP_LIMIT,
        }
    }

    /// The packet with its IP header.
    fn frame(mut self, identification: u16, mtu: u32) -> Frame {
        let transport_len = self.headers.len() as u32 + self.payload.len();
        let ip = IpFields {
            local: self.local,
            remote: self.remote,
            protocol: self.protocol,
            hop_limit: self.hop_limit,
            ecn: Ecn::NotEct,
            identification,
            dont_fragment: transport_len + 20 <= mtu,
        };
        ip.emit(&mut self.headers, u16::try_from(transport_len).unwrap_or(u16::MAX));
        Frame {
            pacing_rate: self.pacing_rate,
            flow: self.flow,
            credit: self.credit,
            ..Frame::new(self.headers, self.payload)
        }
    }
}

/// The flow of what no connected socket sends (`skb_get_hash`).
pub(crate) fn orphan(host: &Host, tuple: &FourTuple) -> u64 {
    ORPHAN | host.hash_key.flow(tuple)
}

/// Sends a datagram of no socket.
pub(crate) fn send_datagram(
    host: &Host,
    now: Instant,
    shard: usize,
    mut datagram: Datagram,
) -> Result<(), SocketError> {
    let Datagram { local, remote, .. } = datagram;
    datagram.flow = orphan(host, &FourTuple { local, remote, local_port: 0, remote_port: 0 });
    send_datagram_on(host, now, shard, &mut SocketPath::default(), datagram)
}

/// Sends a datagram over a cached path, in fragments if it is longer than the path takes.
///
/// # Errors
/// `NetworkUnreachable` without a route; `NoBuffers` when the qdisc or the loopback was full.
pub(crate) fn send_datagram_on(
    host: &Host,
    now: Instant,
    shard: usize,
    path: &mut SocketPath,
    datagram: Datagram,
) -> Result<(), SocketError> {
    let Some(found) = path.refresh(host, now, datagram.local, datagram.remote).cloned() else {
        host.ip.add(IpCounter::IpOutNoRoutes, 1);
        host.drops.count(DropReason::NoRoute);
        return Err(SocketError::NetworkUnreachable);
    };
    let identification = host.next_identification();
    let frame = datagram.frame(identification as u16, found.mtu);
    let mut verdict = Verdict::Queued;
    if frame.len() > found.mtu as usize {
        host.ip.add(IpCounter::IpFragOKs, 1);
        for piece in fragment(frame, found.mtu as usize, identification) {
            host.ip.add(IpCounter::IpFragCreates, 1);
            verdict = output(host, now, shard, &found.way, piece);
        }
    } else {
        verdict = output(host, now, shard, &found.way, frame);
    }
    match verdict {
        Verdict::Queued | Verdict::Congested => Ok(()),
        Verdict::Dropped => Err(SocketError::NoBuffers),
    }
}

/// Sends a segment of no socket.
pub(crate) fn send_segment(
    host: &Host,
    now: Instant,
    shard: usize,
    (tuple, priority): (&FourTuple, u8),
    segment: Segment,
) -> Verdict {
    let mut path = SocketPath::default();
    let Some(found) = path.refresh(host, now, tuple.local, tuple.remote) else {
        host.ip.add(IpCounter::IpOutNoRoutes, 1);
        host.drops.count(DropReason::NoRoute);
        return Verdict::Dropped;
    };
    let mut frame = tcp_frame(tuple, found, segment, 0);
    (frame.priority, frame.flow) = (priority, orphan(host, tuple));
    output(host, now, shard, &found.way, frame)
}
