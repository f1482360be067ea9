//! The way down of datagrams: source, route, headers, and a full way that pushes back.

use super::Host;
use super::error::SocketError;
use super::readiness::{Readiness, Ready, half};
use super::udp::UdpSocket;
use super::udp_queue::{OVERHEAD, ReceivedDatagram};
use crate::flow::{FourTuple, is_link_local, named_scope};
use crate::frame::{DATAGRAM, Headers};
use crate::net::Visit;
use crate::net::address::named_interface;
use crate::net::egress::{CachedRoute, OutgoingDatagram};
use crate::net::icmp::{Ends, Refusal};
use crate::net::interface::{Interface, InterfaceId, Output};
use crate::net::topology::{NextHop, NoSource};
use crate::stats::IpCounter;
use crate::wire::{ChecksumBy, Ports, Protocol, checksum::Pseudo, ipv4, ipv6, udp};
use bytes::Bytes;
use core::iter::Peekable;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::Ordering::Relaxed;
use neap_tcp::connection::ConnectionError;
use neap_tcp::segment::Payload;
use neap_tcp::time::{Instant, Rate};
use neap_tcp::transmit::egress::Verdict;
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use std::sync::Arc;

/// The shard whose ports datagrams leave by.
const SHARD: usize = 0;

/// Hops of a datagram to a group that says no other (RFC 1112 section 6.1).
const GROUP_HOPS: u8 = 1;

/// A datagram that an application sends. Settings of one datagram come before those of the socket.
#[derive(Clone, Debug)]
pub struct SendDatagram {
    /// Data.
    pub data: Bytes,
    /// Where it goes; `None` is the connected peer. The scope of a link-local address of IPv6, or
    /// of a group of a link, is the [number](InterfaceId::index) of an interface. The call fails
    /// with [`SocketError::InvalidArgument`] if [`interface`](Self::interface) is another one.
    pub to: Option<SocketAddr>,
    /// Address that it is sent from (`IP_PKTINFO`, `IPV6_PKTINFO`). `None` and the unspecified
    /// address are the bound one, or what the route says. It is an own one, or any with
    /// [`transparent`](super::udp::UdpOptions::transparent). The call fails with
    /// [`SocketError::InvalidArgument`] if it is a link-local one of another interface than the
    /// datagram leaves by. The port is the socket's, or 0; a forwarder needs both.
    pub from: Option<SocketAddr>,
    /// Interface that it leaves by (`ipi_ifindex`), without a router where no route leads there;
    /// `None` is the one that the scope of `to` names, or for a link-local address without a scope
    /// the one that the scope of the connected peer names, or else that of the route.
    pub interface: Option<InterfaceId>,
    /// Hops that it may take, from 1 (`IP_TTL`, `IPV6_HOPLIMIT`). To a group that is 1 if nothing
    /// else is said here: the hops of the socket are for single hosts.
    pub hop_limit: Option<u8>,
    /// TOS byte or traffic class, ECN in its low two bits (`IP_TOS`, `IPV6_TCLASS`).
    pub tos: Option<u8>,
    /// It leaves whole or not at all (`IP_PMTUDISC_DO`): where the path takes less, the call fails
    /// with [`SocketError::MessageTooLong`], and the error queue says how much it takes. Other
    /// datagrams leave in fragments.
    pub dont_fragment: bool,
}

impl SendDatagram {
    /// Makes a datagram to `to`, or to the connected peer, with the settings of the socket.
    pub fn new(data: Bytes, to: Option<SocketAddr>) -> Self {
        let (hop_limit, tos, dont_fragment) = (None, None, false);
        Self { data, to, from: None, interface: None, hop_limit, tos, dont_fragment }
    }
}

/// What sending needs of a socket, read once for a batch.
struct Sending {
    remote: Option<SocketAddr>,
    /// The only interface that datagrams to the connected peer leave by.
    link: Option<InterfaceId>,
    /// The own address that `connect` chose.
    source: Option<IpAddr>,
    /// The first such address is one of IPv4.
    is_by_v4: bool,
    /// Bytes that may be below.
    limit: u64,
    /// `SO_MAX_PACING_RATE`
    rate: Rate,
    /// `IP_TTL`, `IPV6_UNICAST_HOPS`
    hop_limits: (u8, u8),
    /// `IP_TOS`, `IPV6_TCLASS`
    tos: (u8, u8),
    /// `SO_BROADCAST`
    may_broadcast: bool,
    /// `IP_TRANSPARENT`
    is_transparent: bool,
    /// An error is to be told first.
    has_error: bool,
    route: CachedRoute,
    /// Where `route` leads, and the interface that it had to lead through.
    route_to: Option<(IpAddr, Option<InterfaceId>)>,
    /// The device hears of all frames of the batch together.
    batch: Option<Batch>,
}

/// The only interface that a datagram to `remote` may leave by: the one that was asked for, or that
/// the scope of the address names, or else for a link-local one the link of the `peer` that the
/// socket is connected to (`udpv6_sendmsg`).
fn way_out(
    remote: SocketAddr,
    asked: Option<InterfaceId>,
    peer: Option<SocketAddr>,
) -> Result<Option<InterfaceId>, SocketError> {
    let scope = named_scope(remote);
    if scope == 0 {
        let peer = peer.filter(|_| is_link_local(remote.ip()));
        return Ok(asked.or(peer.and_then(named_interface)));
    }
    match (InterfaceId::from_index(scope), asked) {
        (None, _) => Err(SocketError::NetworkUnreachable),
        (Some(named), Some(asked)) if named != asked => Err(SocketError::InvalidArgument),
        (named, _) => Ok(named),
    }
}

/// A socket of datagrams has a larger send buffer: if it was full, it is writable now or when half
/// of the new one has left.
pub(super) fn on_larger_buffer(readiness: &Readiness, account: &TxAccount, send_buffer: u32) {
    let wake_at = half(send_buffer.into());
    let is_full = !readiness.state().bits().contains(Ready::WRITABLE);
    if is_full && readiness.admit(account, wake_at, wake_at) {
        readiness.signal(Ready::WRITABLE);
    }
}

/// Headers of one datagram: both ends, and what its packet says besides.
struct Envelope {
    local: SocketAddr,
    remote: SocketAddr,
    hop_limit: u8,
    tos: u8,
}

/// Bytes of the headers in front of the data of a datagram to `remote`.
fn headers_to(remote: IpAddr) -> usize {
    let ip = if remote.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    ip + udp::HEADER_LEN
}

/// Datagrams that leave in one frame.
struct Run {
    /// The data of all of them.
    payload: Payload,
    /// Bytes of each but the last one, which may be shorter.
    size: u16,
    count: u32,
}

impl Run {
    fn one(data: Bytes) -> Self {
        let size = data.len() as u16;
        Self { payload: Payload::from(data), size, count: 1 }
    }

    /// `first` and what is like it at the front of `rest`, `most` in all.
    fn collect(
        first: &SendDatagram,
        rest: &mut Peekable<impl Iterator<Item = SendDatagram>>,
        most: usize,
    ) -> Self {
        let mut run = Self::one(first.data.clone());
        let mut last = first.data.len();
        while (run.count as usize) < most && last == first.data.len() {
            let Some(next) = rest.next_if(|next| is_alike(first, next)) else { break };
            last = next.data.len();
            run.payload.push(next.data);
            run.count += 1;
        }
        run
    }
}

/// Whether `next` may leave in one frame with `first`, which comes before it.
fn is_alike(first: &SendDatagram, next: &SendDatagram) -> bool {
    let size = first.data.len();
    let settings = |datagram: &SendDatagram| {
        let &SendDatagram { to, from, interface, hop_limit, tos, dont_fragment, .. } = datagram;
        (to, from, interface, hop_limit, tos, dont_fragment)
    };
    // A super-frame has no empty parts.
    (1..=size).contains(&next.data.len()) && settings(first) == settings(next)
}

/// The interface whose device has frames of a batch that it was not told of. It is told when this
/// is dropped, or when the batch goes on through another interface.
struct Batch {
    now: Instant,
    interface: Option<Arc<Interface>>,
}

impl Batch {
    /// A frame was given to the interface that `route` leads through.
    fn hold(&mut self, route: &CachedRoute) {
        let Some(NextHop::Neighbor(interface, _)) = route.get().map(|route| &route.next_hop) else {
            return;
        };
        if !self.interface.as_ref().is_some_and(|held| Arc::ptr_eq(held, interface)) {
            self.flush();
            self.interface = Some(interface.clone());
        }
    }

    fn flush(&mut self) {
        if let Some(interface) = self.interface.take() {
            interface.flush(SHARD, self.now);
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.flush();
    }
}

impl UdpSocket {
    /// Replaces the buffers' sizes; `None` leaves one as it is. A larger send buffer may have room
    /// at once.
    pub(crate) fn set_buffers(&self, receive: Option<u32>, send: Option<u32>) {
        let mut state = self.state();
        state.receive_buffer = receive.unwrap_or(state.receive_buffer);
        let before = state.send_buffer;
        let after = send.unwrap_or(before);
        state.send_buffer = after;
        drop(state);
        if after > before && !self.waits_for_all.load(Relaxed) {
            on_larger_buffer(self.readiness(), &self.account, after);
        }
    }

    /// Sends datagrams in their order until one is refused. How many were sent, and why the next
    /// one was not. The device is told once of all that leave by one interface.
    ///
    /// Datagrams alike that follow each other leave as one super-frame where the device takes such
    /// frames, so that they cost one pass and one system call. The send buffer admits the first of
    /// them, so that it is exceeded by a super-frame at most.
    pub(crate) fn send_batch(
        &self,
        host: &Host,
        now: Instant,
        datagrams: impl Iterator<Item = SendDatagram>,
    ) -> (usize, Result<(), SocketError>) {
        let is_batch = datagrams.size_hint().1 != Some(1);
        let mut way = match self.begin(host) {
            Ok(way) => way,
            Err(error) => return (0, Err(error)),
        };
        way.batch = is_batch.then_some(Batch { now, interface: None });
        let (mut sent, mut outcome) = (0, Ok(()));
        let mut datagrams = datagrams.peekable();
        while let Some(datagram) = datagrams.next() {
            match self.send_first(host, now, &mut way, datagram, &mut datagrams) {
                Ok(count) => sent += count,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.end(way);
        (sent, outcome)
    }

    /// Fails as sending this datagram now would, whatever room there is below. Nothing is sent.
    pub(crate) fn check_send(
        &self,
        host: &Host,
        now: Instant,
        datagram: &SendDatagram,
    ) -> Result<(), SocketError> {
        let mut way = self.begin(host)?;
        let found = self.address(host, now, &mut way, datagram);
        self.end(way);
        found?;
        self.take_error().map_or(Ok(()), Err)
    }

    /// What sending needs of the socket, the route to its peer among it.
    fn begin(&self, host: &Host) -> Result<Sending, SocketError> {
        let mut state = self.state();
        if state.is_closed {
            return Err(SocketError::ShutDown);
        }
        let (remote, own) = (state.remote, self.own(None, state.source));
        Ok(Sending {
            remote,
            link: remote.and_then(|remote| Self::link_to_peer(host, remote, own)),
            source: state.source,
            is_by_v4: state.is_by_v4,
            limit: state.send_buffer.into(),
            rate: state.max_pacing_rate,
            hop_limits: state.hop_limits,
            tos: state.tos,
            may_broadcast: state.may_broadcast,
            is_transparent: state.is_transparent,
            has_error: state.error.is_some(),
            route_to: remote.map(|remote| (remote.ip(), state.route_through)),
            route: state.take_route(),
            batch: None,
        })
    }

    /// Gives the socket the route to its peer back.
    fn end(&self, way: Sending) {
        let is_to = |peer: SocketAddr| way.route_to == Some((peer.ip(), way.link));
        if way.remote.is_some_and(is_to) {
            let mut state = self.state();
            // Another thread may have connected the socket elsewhere meanwhile.
            if state.remote == way.remote {
                (state.route, state.route_through) = (way.route, way.link);
            }
        }
    }

    /// Answers a received datagram by an ICMP error in the name of the address that it was sent to.
    /// What is quoted is made of the datagram, so it may have come in fragments.
    pub(crate) fn refuse(
        &self,
        host: &Host,
        now: Instant,
        datagram: &ReceivedDatagram,
        why: Refusal,
    ) -> Result<(), SocketError> {
        let &ReceivedDatagram { from, to, .. } = datagram;
        host.check_source(to.ip(), self.state().is_transparent)?;
        if from.is_ipv4() != to.is_ipv4() {
            return Err(SocketError::AddressFamily);
        }
        let packet = datagram.to_packet().filter(|_| !to.ip().is_unspecified());
        let packet = packet.ok_or(SocketError::InvalidArgument)?;
        let ends = Ends { local: to.ip(), remote: from.ip(), interface: datagram.interface };
        host.net.refuse(Visit::new(now, SHARD), ends, &packet, why);
        Ok(())
    }

    /// Sends a datagram, and those of `rest` that leave in one frame with it. How many were sent.
    fn send_first(
        &self,
        host: &Host,
        now: Instant,
        way: &mut Sending,
        datagram: SendDatagram,
        rest: &mut Peekable<impl Iterator<Item = SendDatagram>>,
    ) -> Result<usize, SocketError> {
        let envelope = self.address(host, now, way, &datagram)?;
        if core::mem::take(&mut way.has_error)
            && let Some(error) = self.take_error()
        {
            return Err(error);
        }
        if self.waits_for_all.load(Relaxed) {
            self.admit(0, 0)?;
        }
        self.admit(way.limit, half(way.limit))?;
        self.waits_for_all.store(false, Relaxed);
        let run = match rest.peek() {
            Some(next) if is_alike(&datagram, next) => {
                let most = Self::most_of_run(host, way, &envelope, datagram.data.len());
                Run::collect(&datagram, rest, most)
            }
            _ => Run::one(datagram.data),
        };
        let count = run.count;
        self.send(host, now, way, envelope, run)?;
        Ok(count as usize)
    }

    /// The headers of a datagram, and in `way` its route. As in Linux its own errors come before
    /// the pending one of the socket, and before a full way down (`udp_sendmsg`).
    fn address(
        &self,
        host: &Host,
        now: Instant,
        way: &mut Sending,
        datagram: &SendDatagram,
    ) -> Result<Envelope, SocketError> {
        let &SendDatagram { ref data, to, from, interface, hop_limit, tos, dont_fragment } =
            datagram;
        let remote = to.or(way.remote).ok_or(SocketError::DestinationRequired)?;
        let own = self.own(from, way.source);
        let remote = self.destination(remote, own, way.is_by_v4)?;
        let is_v4 = remote.is_ipv4();
        if is_v4 && data.len() > usize::from(u16::MAX) {
            return Err(SocketError::MessageTooLong);
        }
        if remote.port() == 0 || hop_limit == Some(0) {
            return Err(SocketError::InvalidArgument);
        }
        let interface = match (from, interface) {
            (None, None) if way.remote == Some(remote) => way.link,
            (_, asked) => way_out(remote, asked, way.remote)?
                .or_else(|| host.net.topology.link_of_many(own?, remote.ip())),
        };
        let local = self.source(host, way, remote.ip(), from, interface)?;
        host.check_ends(local.ip(), remote.ip())?;
        if way.route_to != Some((remote.ip(), interface)) {
            way.route_to = Some((remote.ip(), interface));
            way.route = CachedRoute::new(way.is_transparent);
        }
        let ends = (local.ip(), remote.ip());
        let mtu = host.net.mtu_of_way(now, &mut way.route, ends, interface)?;
        let is_broadcast = way.remote != Some(remote) && host.is_broadcast(remote.ip());
        if is_broadcast && !way.may_broadcast {
            return Err(SocketError::Reported(ConnectionError::Forbidden));
        }
        let most = if is_v4 { udp::MAX_PAYLOAD_V4 } else { udp::MAX_PAYLOAD_V6 };
        let is_cut = headers_to(remote.ip()) + data.len() > mtu as usize;
        if data.len() > most || dont_fragment && is_cut {
            self.on_too_long(host, remote, mtu);
            return Err(SocketError::MessageTooLong);
        }
        let of_family = |(v4, v6): (u8, u8)| if is_v4 { v4 } else { v6 };
        let is_to_group = remote.ip().is_multicast();
        let hops = if is_to_group { GROUP_HOPS } else { of_family(way.hop_limits) };
        Ok(Envelope {
            local,
            remote,
            hop_limit: hop_limit.unwrap_or(hops),
            tos: tos.unwrap_or(of_family(way.tos)),
        })
    }

    /// The only interface that datagrams from `own` to the connected peer leave by.
    pub(super) fn link_to_peer(
        host: &Host,
        peer: SocketAddr,
        own: Option<IpAddr>,
    ) -> Option<InterfaceId> {
        named_interface(peer).or_else(|| host.net.topology.link_of_many(own?, peer.ip()))
    }

    /// The source of a datagram to `remote`; `from` is the one that was asked for.
    fn source(
        &self,
        host: &Host,
        way: &Sending,
        remote: IpAddr,
        from: Option<SocketAddr>,
        interface: Option<InterfaceId>,
    ) -> Result<SocketAddr, SocketError> {
        let bound = self.binding.local;
        let port = match from.map_or(0, |from| from.port()) {
            0 => bound.port(),
            port if port == bound.port() || self.is_forwarder() => port,
            _ => return Err(SocketError::AddressNotAvailable),
        };
        if port == 0 {
            return Err(SocketError::AddressNotAvailable);
        }
        let from = from.map(|from| from.ip()).filter(|from| !from.is_unspecified());
        let ip = match from {
            Some(from) if from == bound.ip() => from,
            Some(from) if from.is_ipv4() != remote.is_ipv4() => {
                return Err(SocketError::AddressFamily);
            }
            Some(from) if self.has_no_address() || way.is_transparent => {
                host.check_source(from, way.is_transparent)?;
                if !way.is_transparent && !host.net.topology.is_on_way(from, remote, interface) {
                    return Err(SocketError::InvalidArgument);
                }
                from
            }
            Some(_) => return Err(SocketError::AddressNotAvailable),
            None if self.is_forwarder() => return Err(SocketError::AddressNotAvailable),
            None if self.has_no_address() => {
                let chosen = way.source.filter(|own| own.is_ipv4() == remote.is_ipv4());
                let link = way.remote.and_then(named_interface);
                let is_on_way = |chosen: &IpAddr| {
                    let of_many = || host.net.topology.link_of_many(*chosen, remote);
                    interface.is_none() || interface == link || interface == of_many()
                };
                if let Some(chosen) = chosen.filter(is_on_way) {
                    return Ok(SocketAddr::new(chosen, port));
                }
                match host.net.topology.source_for(remote, interface) {
                    // Who has no address yet asks all hosts for one.
                    Err(NoSource::NoAddress) if remote == Ipv4Addr::BROADCAST => {
                        Ipv4Addr::UNSPECIFIED.into()
                    }
                    source => source?,
                }
            }
            None => bound.ip(),
        };
        Ok(SocketAddr::new(ip, port))
    }

    /// Whether there is room below; if not, the completion makes the socket writable that leaves
    /// `wake_at` bytes or fewer.
    fn admit(&self, limit: u64, wake_at: u64) -> Result<(), SocketError> {
        if self.readiness().admit(&self.account, limit, wake_at) {
            return Ok(());
        }
        Err(SocketError::WouldBlock)
    }

    /// Most datagrams with `size` bytes of data that leave in one frame by the route of `way`.
    fn most_of_run(host: &Host, way: &Sending, envelope: &Envelope, size: usize) -> usize {
        let headers = headers_to(envelope.remote.ip());
        let limits = |route| host.net.super_datagram(SHARD, route, headers + size);
        let Some(limits) = way.route.get().and_then(limits) else { return 1 };
        let room = (limits.max_size as usize).saturating_sub(headers);
        (room / size).min(limits.max_segs as usize)
    }

    fn send(
        &self,
        host: &Host,
        now: Instant,
        way: &mut Sending,
        Envelope { local, remote, hop_limit, tos }: Envelope,
        Run { payload, size, count }: Run,
    ) -> Result<(), SocketError> {
        let pseudo = Pseudo::of(local.ip(), remote.ip(), Protocol::UDP);
        let pseudo = pseudo.ok_or(SocketError::AddressFamily)?;
        let ports = Ports { source: local.port(), destination: remote.port() };
        let bytes = payload.len().saturating_add(count.saturating_mul(OVERHEAD));
        let gso_size = (count > 1).then_some(size);
        let by = if gso_size.is_some() { ChecksumBy::Device } else { ChecksumBy::Stack };
        let mut headers = Headers::default();
        udp::emit(&mut headers, ports, &payload, pseudo, by);
        let is_alone = self.account.bytes() == 0;
        let flow = if way.remote == Some(remote) {
            DATAGRAM | self.number
        } else {
            host.net.orphan_flow(&FourTuple::new(local, remote))
        };
        let datagram = OutgoingDatagram {
            local: local.ip(),
            remote: remote.ip(),
            protocol: Protocol::UDP,
            headers,
            payload,
            gso_size,
            flow,
            pacing_rate: way.rate,
            credit: Some(TxCredit::charge(&self.account, bytes)),
            hop_limit,
            tos,
            interface: way.route_to.and_then(|(_, interface)| interface),
            may_be_cut: false,
        };
        let visit = Visit::new(now, SHARD);
        let has_more = way.batch.is_some();
        let sent = host.net.send_datagram(Visit { has_more, ..visit }, &mut way.route, datagram);
        if let (Some(batch), Ok(_)) = (&mut way.batch, &sent) {
            batch.hold(&way.route);
        }
        let Output { verdict, is_in_part, undeliverable } = sent?;
        host.on_undeliverable(visit, undeliverable);
        let count_all = |counter: IpCounter| {
            host.net.counters.ip.add(counter.of_family(remote.is_ipv4()), count.into());
        };
        if verdict == Verdict::Dropped {
            if is_in_part && !is_alone {
                // Room for one fragment is no room for all of them. They fit when the socket's own
                // frames have left, or never.
                self.waits_for_all.store(true, Relaxed);
                if self.admit(0, 0).is_ok() {
                    self.readiness().clear(Ready::WRITABLE);
                    self.readiness().signal(Ready::WRITABLE);
                }
                return Err(SocketError::WouldBlock);
            }
            // What was refused because of the socket's own frames may be tried again when one of
            // them has left.
            if !is_in_part {
                self.admit(0, u64::MAX)?;
            }
            count_all(IpCounter::UdpSndbufErrors);
            return Err(SocketError::NoBuffers);
        }
        count_all(IpCounter::UdpOutDatagrams);
        // A full socket is not writable, before a call is refused as well.
        let _ = self.admit(way.limit, half(way.limit));
        Ok(())
    }
}

impl ReceivedDatagram {
    /// The datagram as an IP packet, for an ICMP error to quote. The identification of IPv4 is 0.
    /// `None` for addresses of two families, and for more data than a datagram has.
    pub fn to_packet(&self) -> Option<Bytes> {
        let pseudo = Pseudo::of(self.from.ip(), self.to.ip(), Protocol::UDP)?;
        if self.data.len() > udp::MAX_PAYLOAD_V4 {
            return None;
        }
        let ports = Ports { source: self.from.port(), destination: self.to.port() };
        let (mut headers, payload) = (Headers::default(), Payload::from(self.data.clone()));
        udp::emit(&mut headers, ports, &payload, pseudo, ChecksumBy::Stack);
        let packet = OutgoingDatagram {
            local: self.from.ip(),
            remote: self.to.ip(),
            protocol: Protocol::UDP,
            headers,
            payload,
            gso_size: None,
            flow: 0,
            pacing_rate: Rate::UNLIMITED,
            credit: None,
            hop_limit: self.hop_limit,
            tos: self.tos,
            interface: None,
            may_be_cut: false,
        };
        Some(packet.quoted())
    }
}
