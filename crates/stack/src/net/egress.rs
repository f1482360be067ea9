//! Way down from a segment or a datagram to a frame in a port.
//!
//! Cost per frame of a socket with a valid route: one load for the generation of the routes, on
//! Ethernet one look at the neighbour, the headers written once from values (no allocation), the
//! port. A cached route takes 64 bytes.

use super::fragment::fragment;
use super::interface::{InterfaceId, Output};
use super::port::Port;
use super::topology::{LOOPBACK_MTU, NextHop, ResolvedRoute};
use super::{Net, Visit};
use crate::device::Capabilities;
use crate::drop_reason::DropReason;
use crate::flow::FourTuple;
use crate::frame::{Frame, Gso, GsoKind, Headers, ORPHAN};
use crate::stats::IpCounter;
use crate::wire::checksum::Pseudo;
use crate::wire::{ChecksumBy, Ports, Protocol, ecn_of, ipv4, ipv6, partial_checksum, tcp, udp};
use bytes::Bytes;
use core::net::IpAddr;
use neap_tcp::segment::{Payload, Segment};
use neap_tcp::time::{Instant, Nanos, Rate};
use neap_tcp::transmit::autosize::Load;
use neap_tcp::transmit::egress::{GsoLimits, Verdict};
use neap_tcp::transmit::small_queue::TxCredit;

/// Hop limit of IPv6 packets, and of IPv4 packets at first, whose socket says no other
/// (`net.ipv6.conf.all.hop_limit`, `net.ipv4.ip_default_ttl`).
pub(super) const HOP_LIMIT: u8 = 64;

/// Largest packet that an IPv4 total length can state.
const MAX_PACKET: u32 = 65_535;

/// Super-frames that are cut in software may carry so many segments, as in Linux.
const SOFTWARE_GSO_SEGS: u32 = 65_535;

/// Most datagrams in one super-frame: `UDP_MAX_SEGMENTS` of older kernels, which all take. Newer
/// ones send up to 128.
const SUPER_DATAGRAM_MAX: u32 = 64;

/// Route that a socket last used, valid until the topology changes (`sk_dst_cache`).
#[derive(Clone, Debug, Default)]
pub(crate) struct CachedRoute {
    route: Option<ResolvedRoute>,
    /// The interface that the latest way led through.
    via: Option<InterfaceId>,
    identification: u16,
    /// Packets may leave from an address that is no own one.
    is_transparent: bool,
}

impl CachedRoute {
    /// No route yet; `is_transparent` says that packets may leave from an address that is no own
    /// one (`FLOWI_FLAG_ANYSRC`).
    pub(crate) fn new(is_transparent: bool) -> Self {
        Self { is_transparent, ..Self::default() }
    }

    /// Whether packets may leave from an address that is no own one.
    pub(crate) fn is_transparent(&self) -> bool {
        self.is_transparent
    }

    /// The route now; looks for it again when routes, addresses or path MTUs have changed.
    pub(crate) fn refresh(
        &mut self,
        net: &Net,
        now: Instant,
        tuple: &FourTuple,
    ) -> Option<&ResolvedRoute> {
        let link = InterfaceId::from_index(tuple.scope);
        self.refresh_through(net, now, tuple.local, tuple.remote, link)
    }

    /// As [`refresh`](Self::refresh), for a way that must lead through the interface `only` if one
    /// is given (`flowi4_oif`). The caller drops the route when it asks for another one.
    pub(crate) fn refresh_through(
        &mut self,
        net: &Net,
        now: Instant,
        local: IpAddr,
        remote: IpAddr,
        only: Option<InterfaceId>,
    ) -> Option<&ResolvedRoute> {
        if !self.is_current(net, now) {
            // Who has no address yet speaks to all hosts from the unspecified one.
            let is_any = (self.is_transparent && !local.is_loopback()) || local.is_unspecified();
            let own = (!is_any).then_some(local);
            self.route = net.topology.resolve_through(now, own, remote, only);
            if let Some(route) = &self.route {
                self.via = route.interface();
            }
        }
        self.route.as_ref()
    }

    /// Whether the way led through this interface, and none leads there now.
    pub(crate) fn was_lost_with(&self, interface: InterfaceId) -> bool {
        self.route.is_none() && self.via == Some(interface)
    }

    /// Whether the latest way led through this interface, or none was ever looked for.
    pub(crate) fn may_have_led_through(&self, interface: InterfaceId) -> bool {
        self.via.is_none_or(|via| via == interface)
    }

    /// Whether nothing has changed since the route was found; settings of the host count too.
    pub(crate) fn is_current(&self, net: &Net, now: Instant) -> bool {
        self.route.as_ref().is_some_and(|route| route.is_current(&net.topology, now))
    }

    /// The route that was found last.
    pub(crate) fn get(&self) -> Option<&ResolvedRoute> {
        self.route.as_ref()
    }

    /// The route, and the first of `count` IPv4 identifications. The packets are sent with DF, so
    /// the identification says nothing (RFC 6864), but devices and GRO like it to count.
    fn next_identification(&mut self, count: u32) -> u16 {
        let first = self.identification;
        self.identification = first.wrapping_add(count as u16);
        first
    }
}

/// Properties of the path below a connection, read once per call of its `transmit`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathTraits {
    pub(crate) gso: GsoLimits,
    /// The device takes no super-frames: its port cuts them.
    pub(crate) is_cut_by_host: bool,
    /// The qdisc holds frames until their departure.
    pub(crate) holds_until_departure: bool,
    /// Frames complete when they are enqueued, or when they depart.
    pub(crate) completes_on_enqueue: bool,
    /// `sk_pacing_shift`
    pub(crate) pacing_shift: u32,
    /// How late completions are.
    pub(crate) completion_lateness: Nanos,
    /// What the flows of the device do together.
    pub(crate) load: Option<Load>,
}

impl PathTraits {
    /// Returns the properties of a route, as the sockets of `shard` use it.
    pub(crate) fn of(route: Option<&ResolvedRoute>, shard: usize) -> Self {
        let mut path = Self {
            gso: GsoLimits { max_size: 1500, max_segs: 1 },
            is_cut_by_host: false,
            holds_until_departure: false,
            completes_on_enqueue: false,
            pacing_shift: 10,
            completion_lateness: Nanos::ZERO,
            load: None,
        };
        match route.map(|route| &route.next_hop) {
            None => {}
            Some(NextHop::Loopback) => {
                path.gso = GsoLimits { max_size: LOOPBACK_MTU, max_segs: SOFTWARE_GSO_SEGS };
            }
            Some(NextHop::Neighbor(interface, _)) => {
                let port = interface.port(shard);
                path.gso = gso_limits(port);
                path.is_cut_by_host = !port.takes_super_frames();
                path.holds_until_departure = port.holds_until_departure();
                path.completes_on_enqueue = port.completes_on_enqueue();
                path.pacing_shift = u32::from(port.capabilities().pacing_shift);
                path.completion_lateness = port.lateness();
                path.load = port.load();
            }
        }
        path
    }

    /// Takes what a flow has sent by a route, in bytes, and how often it doubles the time that may
    /// be queued, in parts of 256.
    pub(crate) fn count_load(route: Option<&ResolvedRoute>, visit: Visit, bytes: u64, boost: u16) {
        if let Some(NextHop::Neighbor(interface, _)) = route.map(|route| &route.next_hop) {
            interface.port(visit.shard).count_load(visit.now, bytes, boost);
        }
    }
}

/// Super-frames through a port: as the device takes them, or cut by the port.
fn gso_limits(port: &Port) -> GsoLimits {
    let &Capabilities { gso_max_size, gso_max_segs, .. } = port.capabilities();
    if gso_max_segs == 0 {
        return GsoLimits { max_size: port.mtu().into(), max_segs: 1 };
    }
    if port.takes_super_frames() {
        return GsoLimits { max_size: gso_max_size.min(MAX_PACKET), max_segs: gso_max_segs };
    }
    GsoLimits { max_size: MAX_PACKET, max_segs: SOFTWARE_GSO_SEGS }
}

/// What the two IP headers have in common.
struct IpFields {
    local: IpAddr,
    remote: IpAddr,
    protocol: Protocol,
    hop_limit: u8,
    tos: u8,
    identification: u16,
    dont_fragment: bool,
}

impl IpFields {
    fn emit(&self, headers: &mut Headers, payload_len: u16) {
        let &Self { protocol, hop_limit, tos, identification, dont_fragment, .. } = self;
        let (dscp, ecn) = (tos >> 2, ecn_of(tos));
        match (self.local, self.remote) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Header {
                source,
                destination,
                protocol,
                ttl: hop_limit,
                dscp,
                ecn,
                identification,
                dont_fragment,
            }
            .emit(headers, payload_len),
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let flow_label = 0;
                ipv6::Header { source, destination, protocol, hop_limit, dscp, ecn, flow_label }
                    .emit(headers, payload_len);
            }
            // A route is found for two addresses of one family only.
            _ => {}
        }
    }
}

/// A segment with its headers: TCP, then IP. The link header comes with the neighbour.
fn tcp_frame(
    tuple: &FourTuple,
    pseudo: Pseudo,
    next_hop: &NextHop,
    segment: Segment,
    identification: u16,
    hop_limit: u8,
) -> Frame {
    let mut headers = Headers::default();
    let ports = Ports { source: tuple.local_port, destination: tuple.remote_port };
    let is_super = segment.gso_size > 0 && segment.payload.len() > u32::from(segment.gso_size);
    let by_device = match next_hop {
        NextHop::Loopback => true,
        NextHop::Neighbor(interface, _) => is_super || interface.has_checksum_tx(),
    };
    let by = if by_device { ChecksumBy::Device } else { ChecksumBy::Stack };
    let tcp_len = tcp::emit(&mut headers, ports, &segment, pseudo, by);
    let transport_len = u16::try_from(tcp_len as u32 + segment.payload.len()).unwrap_or(u16::MAX);
    let ip = IpFields {
        local: tuple.local,
        remote: tuple.remote,
        protocol: Protocol::TCP,
        hop_limit,
        tos: segment.ecn as u8,
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

/// What the qdisc and the account know of a segment that a connection sends.
#[derive(Debug)]
pub(crate) struct Stamp {
    /// As [`Frame::departure`].
    pub(crate) departure: Instant,
    /// As [`Frame::credit`].
    pub(crate) credit: Option<TxCredit>,
    /// As [`Frame::priority`].
    pub(crate) priority: u8,
    /// As [`Frame::flow`].
    pub(crate) flow: u64,
    /// As [`Frame::is_bulk`].
    pub(crate) is_bulk: bool,
    /// Hops that the packet may take; 0 is the default.
    pub(crate) hop_limit: u8,
}

/// What the packets of a segment have of the options of its socket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IpOptions {
    /// As [`Frame::priority`].
    pub(crate) priority: u8,
    /// Hops that the packet may take; 0 is the default.
    pub(crate) hop_limit: u8,
    /// The packet may leave from an address that is no own one. What a connection sends goes by its
    /// [`CachedRoute`] instead.
    pub(crate) is_transparent: bool,
}

/// A packet of any protocol but TCP, its transport header written and summed.
pub(crate) struct OutgoingDatagram {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) protocol: Protocol,
    pub(crate) headers: Headers,
    pub(crate) payload: Payload,
    /// Payload bytes of each datagram where there are several, all but the last one alike. Then
    /// the checksum is that of the pseudo-header.
    pub(crate) gso_size: Option<u16>,
    /// As [`Frame::flow`].
    pub(crate) flow: u64,
    /// As [`Frame::pacing_rate`].
    pub(crate) pacing_rate: Rate,
    /// The share of the socket's account.
    pub(crate) credit: Option<TxCredit>,
    /// Hops that the packet may take; 0 is the default.
    pub(crate) hop_limit: u8,
    /// TOS byte or traffic class, with ECN.
    pub(crate) tos: u8,
    /// The only interface that it may leave by.
    pub(crate) interface: Option<InterfaceId>,
    /// Routers of IPv4 may cut it.
    pub(crate) may_be_cut: bool,
}

/// Priority of a datagram of IPv4 by its TOS byte (`rt_tos2priority`): best effort, bulk,
/// interactive or interactive bulk. That of IPv6 does not depend on the traffic class.
fn priority_of(local: IpAddr, tos: u8) -> u8 {
    if local.is_ipv6() {
        return 0;
    }
    [0, 2, 6, 4][usize::from(tos >> 3 & 3)]
}

impl OutgoingDatagram {
    /// The packet as an ICMP error quotes it, without an identification.
    pub(crate) fn quoted(self) -> Bytes {
        let hop_limit = self.hop_limit;
        self.frame(0, u32::MAX, hop_limit).to_bytes()
    }

    /// Whether it leaves whole over a path that takes `mtu` bytes, or each of several does, and
    /// stays so. Then its identification says nothing (RFC 6864).
    fn is_atomic(&self, mtu: u32) -> bool {
        if self.may_be_cut && self.local.is_ipv4() {
            return false;
        }
        let data = self.gso_size.map_or(self.payload.len(), u32::from);
        let ip = if self.local.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        (ip + self.headers.len()) as u32 + data <= mtu
    }

    /// The packet with its IP header.
    fn frame(mut self, identification: u16, mtu: u32, hop_limit: u8) -> Frame {
        let header_len = self.headers.len();
        let transport_len = header_len as u32 + self.payload.len();
        let ip = IpFields {
            local: self.local,
            remote: self.remote,
            protocol: self.protocol,
            hop_limit,
            tos: self.tos,
            identification,
            dont_fragment: self.is_atomic(mtu),
        };
        ip.emit(&mut self.headers, u16::try_from(transport_len).unwrap_or(u16::MAX));
        let kind = if self.local.is_ipv4() { GsoKind::Udp4 } else { GsoKind::Udp6 };
        let gso = self.gso_size.map(|size| Gso { size, kind });
        let checksum = gso.map(|_| partial_checksum(&self.headers, header_len, udp::CHECKSUM_AT));
        Frame {
            gso,
            checksum,
            pacing_rate: self.pacing_rate,
            flow: self.flow,
            priority: priority_of(self.local, self.tos),
            ecn: ecn_of(self.tos),
            credit: self.credit,
            ..Frame::new(self.headers, self.payload)
        }
    }
}

/// No route leads to the destination. The packet is dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoute;

impl Net {
    /// The flow of what no connected socket sends (`skb_get_hash`).
    pub(crate) fn orphan_flow(&self, tuple: &FourTuple) -> u64 {
        ORPHAN | self.flow_key.hash(tuple)
    }

    /// Bytes of a packet on the way from `local` to `remote`, which must lead through the interface
    /// `only` if one is given. What has no way is counted.
    pub(crate) fn mtu_of_way(
        &self,
        now: Instant,
        cached: &mut CachedRoute,
        (local, remote): (IpAddr, IpAddr),
        only: Option<InterfaceId>,
    ) -> Result<u32, NoRoute> {
        let route = cached.refresh_through(self, now, local, remote, only);
        let mtu = route.map(|route| route.mtu).ok_or(NoRoute);
        mtu.inspect_err(|_| self.count_no_route(remote))
    }

    fn count_no_route(&self, remote: IpAddr) {
        self.counters.ip.add(IpCounter::IpOutNoRoutes.of_family(remote.is_ipv4()), 1);
        self.counters.drops.count(DropReason::NoRoute);
    }

    /// Counts a packet of this host, before it is cut into fragments (`ip_output`).
    fn count_request(&self, frame: &Frame) {
        let (requests, octets) = if frame.is_v4() {
            (IpCounter::IpOutRequests, IpCounter::IpOutOctets)
        } else {
            (IpCounter::Ip6OutRequests, IpCounter::Ip6OutOctets)
        };
        self.counters.ip.add(requests, 1);
        self.counters.ip.add(octets, frame.len() as u64);
    }

    /// Counts the packet and hands it on.
    fn output(&self, visit: Visit, next_hop: &NextHop, frame: Frame) -> Output {
        self.count_request(&frame);
        self.hand_on(visit, next_hop, frame)
    }

    /// Gives a packet or a fragment to the loopback, or to the neighbour's interface.
    fn hand_on(&self, visit: Visit, next_hop: &NextHop, frame: Frame) -> Output {
        match next_hop {
            NextHop::Loopback => Output::of(self.loop_back(frame)),
            NextHop::Neighbor(interface, neighbor) => interface.output(visit, *neighbor, frame),
        }
    }

    /// Sends a segment of a connection over its route.
    pub(crate) fn send_tcp(
        &self,
        visit: Visit,
        cached: &mut CachedRoute,
        tuple: &FourTuple,
        pseudo: Option<Pseudo>,
        segment: Segment,
        stamp: Stamp,
    ) -> Result<Output, NoRoute> {
        let identification = cached.next_identification(segment.segments());
        let (Some(route), Some(pseudo)) = (&cached.route, pseudo) else {
            self.count_no_route(tuple.remote);
            return Err(NoRoute);
        };
        let hops = self.hop_limit(stamp.hop_limit, tuple.local.is_ipv4());
        let mut frame = tcp_frame(tuple, pseudo, &route.next_hop, segment, identification, hops);
        (frame.departure, frame.credit) = (stamp.departure, stamp.credit);
        (frame.priority, frame.flow) = (stamp.priority, stamp.flow);
        frame.is_bulk = stamp.is_bulk;
        Ok(self.output(visit, &route.next_hop, frame))
    }

    /// Sends a segment that no connection sends: SYN-ACK, reset, or an ACK from TIME_WAIT.
    pub(crate) fn send_orphan(
        &self,
        visit: Visit,
        tuple: &FourTuple,
        IpOptions { priority, hop_limit, is_transparent }: IpOptions,
        segment: Segment,
    ) -> Result<Output, NoRoute> {
        let pseudo = Pseudo::of(tuple.local, tuple.remote, Protocol::TCP);
        let mut cached = CachedRoute::new(is_transparent);
        cached.refresh(self, visit.now, tuple);
        let stamp = Stamp {
            departure: Instant::ZERO,
            credit: None,
            priority,
            flow: self.orphan_flow(tuple),
            is_bulk: false,
            hop_limit,
        };
        self.send_tcp(visit, &mut cached, tuple, pseudo, segment, stamp)
    }

    /// The bounds of a super-frame of datagrams with `len` bytes of headers and data each, over a
    /// route that is current; `None` if they leave one by one.
    pub(crate) fn super_datagram(
        &self,
        shard: usize,
        route: &ResolvedRoute,
        len: usize,
    ) -> Option<GsoLimits> {
        let NextHop::Neighbor(interface, _) = &route.next_hop else { return None };
        let fits = len <= route.mtu as usize;
        let port = interface.port(shard);
        let may_join = fits && !route.next_hop.is_broadcast() && port.takes_super_datagrams();
        may_join.then(|| {
            let limits = gso_limits(port);
            GsoLimits { max_segs: limits.max_segs.min(SUPER_DATAGRAM_MAX), ..limits }
        })
    }

    /// Sends a datagram over its route, in fragments if it is longer than the route takes. The
    /// answer is that of the last fragment, or of the first one that is dropped. Several datagrams
    /// with a [`gso_size`](OutgoingDatagram::gso_size) are within the
    /// [bounds](Self::super_datagram).
    pub(crate) fn send_datagram(
        &self,
        visit: Visit,
        cached: &mut CachedRoute,
        datagram: OutgoingDatagram,
    ) -> Result<Output, NoRoute> {
        let OutgoingDatagram { local, remote, interface, .. } = datagram;
        let mtu = self.mtu_of_way(visit.now, cached, (local, remote), interface)?;
        let identification = if datagram.is_atomic(mtu) {
            let segments = |size: u16| datagram.payload.len().div_ceil(size.into());
            cached.next_identification(datagram.gso_size.map_or(1, segments)).into()
        } else {
            self.identifications.next(local, remote, datagram.protocol)
        };
        let Some(ResolvedRoute { next_hop, .. }) = cached.get() else { return Err(NoRoute) };
        let hop_limit = self.hop_limit(datagram.hop_limit, local.is_ipv4());
        let frame = datagram.frame(identification as u16, mtu, hop_limit);
        // This host is one of all (`ip_mc_output`).
        let copy = next_hop.is_broadcast().then(|| frame.to_bytes());
        let output = self.send_pieces(visit, next_hop, frame, mtu as usize, identification);
        // What is dropped may be sent again.
        if let Some(copy) = copy.filter(|_| output.verdict != Verdict::Dropped) {
            let _ = self.loop_back(Frame::new(Headers::default(), copy.into()));
        }
        Ok(output)
    }

    /// Sends a packet whole, or in fragments if it is longer than `mtu` bytes.
    fn send_pieces(
        &self,
        visit: Visit,
        next_hop: &NextHop,
        frame: Frame,
        mtu: usize,
        identification: u32,
    ) -> Output {
        if frame.len() <= mtu || frame.gso.is_some() {
            return self.output(visit, next_hop, frame);
        }
        self.count_request(&frame);
        let is_v4 = frame.is_v4();
        let count = |counter: IpCounter| {
            self.counters.ip.add(counter.of_family(is_v4), 1);
        };
        let mut all = Output::of(Verdict::Queued);
        for (index, piece) in fragment(frame, mtu, identification).enumerate() {
            let Output { verdict, undeliverable, .. } = self.hand_on(visit, next_hop, piece);
            all.verdict = verdict;
            all.undeliverable.extend(undeliverable);
            if verdict == Verdict::Dropped {
                // Without it the others are of no use (`ip_do_fragment`).
                count(IpCounter::IpFragFails);
                all.is_in_part = index > 0;
                return all;
            }
            count(IpCounter::IpFragCreates);
        }
        count(IpCounter::IpFragOKs);
        all
    }
}
