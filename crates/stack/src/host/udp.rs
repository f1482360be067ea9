//! UDP sockets: bounded receive queues, an error queue, options, and an account so that a full way
//! down pushes back.

use super::Host;
use super::error::SocketError;
use super::error_queue::{ErrorOrigin, ErrorQueue, ErrorRecord, ErrorReport};
use super::listed::UdpInfo;
use super::readiness::{Readiness, Ready, Woken};
use super::udp_memory::{Held, UdpMemory};
use super::udp_queue::{DatagramQueue, ReceivedDatagram, pieces};
use crate::drop_reason::DropReason;
use crate::flow::{FourTuple, destination, is_link_local, named_scope, overlap, with_scope};
use crate::net::address::scope_of;
use crate::net::egress::CachedRoute;
use crate::net::interface::InterfaceId;
use crate::net::route::Prefix;
use crate::net::topology::{NoSource, ResolvedRoute};
use crate::sync::{Mutex, MutexGuard, lock};
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use neap_tcp::connection::ConnectionError;
use neap_tcp::time::{Instant, Rate};
use neap_tcp::transmit::small_queue::TxAccount;
use std::sync::Arc;
use std::task::Wake;

/// Default receive and send buffer of a UDP socket, in bytes (`net.core.rmem_default`,
/// `wmem_default`).
pub const DEFAULT_BUFFER: u32 = 212_992;

/// Default receive and send buffer of a forwarder, which has the datagrams of many, in bytes.
pub const FORWARDER_BUFFER: u32 = 4 * DEFAULT_BUFFER;

/// Error records have at most the receive buffer of a forwarder divided by this.
const FORWARDER_ERRORS: u32 = 4;

/// Options of [`Stack::bind_udp`](crate::stack::Stack::bind_udp).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpOptions {
    /// `SO_REUSEADDR`: sockets that all have it may be bound to one address.
    pub reuse_address: bool,
    /// `IPV6_V6ONLY`: a socket on `[::]` has nothing to do with IPv4.
    pub only_v6: bool,
    /// `IP_TRANSPARENT`: the socket may be bound to an address of others, and send from one.
    pub transparent: bool,
}

/// Whether a socket bound to `local` serves IPv4 as well.
pub(super) fn is_dual(local: SocketAddr, only_v6: bool) -> bool {
    local.is_ipv6() && local.ip().is_unspecified() && !only_v6
}

/// Options of [`Stack::forward_udp`](crate::stack::Stack::forward_udp): the datagrams that a
/// forwarder takes. By default they are all that no socket takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpForwarderOptions {
    /// Interface that they come in by; `None` is any.
    pub interface: Option<InterfaceId>,
    /// Addresses that they are sent to; `None` is all of both families.
    pub destinations: Option<Prefix>,
    /// Ports that they are sent to.
    pub ports: RangeInclusive<u16>,
}

impl Default for UdpForwarderOptions {
    fn default() -> Self {
        Self { interface: None, destinations: None, ports: 0..=u16::MAX }
    }
}

impl UdpForwarderOptions {
    /// Whether a forwarder with these options serves this address and port.
    fn contains(&self, local: SocketAddr) -> bool {
        self.ports.contains(&local.port())
            && self.destinations.is_none_or(|prefix| prefix.contains(local.ip()))
    }
}

/// How many of a packet's datagrams for a socket had which fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// They wait for their reader.
    pub(crate) queued: u64,
    /// The receive buffer or the share of their source is full, or the socket is closed.
    pub(crate) buffer_full: u64,
    /// `udp_mem` leaves no memory for them.
    pub(crate) no_memory: u64,
}

pub(super) struct UdpState {
    pub(super) remote: Option<SocketAddr>,
    /// The own address that `connect` chose for a socket that has none to send from
    /// (`inet_saddr`).
    pub(super) source: Option<IpAddr>,
    /// The first address that `connect` chose is one of IPv4.
    pub(super) is_by_v4: bool,
    queue: DatagramQueue,
    /// Memory of the host for what waits in both queues.
    held: Held,
    pub(super) receive_buffer: u32,
    pub(super) send_buffer: u32,
    pub(super) max_pacing_rate: Rate,
    pub(super) error: Option<SocketError>,
    /// `IP_RECVERR`, `IPV6_RECVERR`
    receive_errors: (bool, bool),
    /// `IP_TTL`, `IPV6_UNICAST_HOPS`; 0 is the default.
    pub(super) hop_limits: (u8, u8),
    /// `IP_TOS`, `IPV6_TCLASS`
    pub(super) tos: (u8, u8),
    /// `SO_BROADCAST`
    pub(super) may_broadcast: bool,
    /// `IP_TRANSPARENT`
    pub(super) is_transparent: bool,
    errors: ErrorQueue,
    /// The route to the connected peer.
    pub(super) route: CachedRoute,
    /// The interface that `route` had to lead through.
    pub(super) route_through: Option<InterfaceId>,
    pub(super) is_closed: bool,
}

/// Whether the peer of a tuple is `peer`. Its flow label is that of the socket alone, and so is the
/// scope of an address that says the same on all links.
fn is_peer(peer: SocketAddr, tuple: &FourTuple) -> bool {
    (peer.ip(), peer.port()) == (tuple.remote, tuple.remote_port)
        && (!is_link_local(peer.ip()) || named_scope(peer) == tuple.scope)
}

impl UdpState {
    /// Why there is no datagram.
    fn nothing_to_receive(&self) -> SocketError {
        if self.is_closed { SocketError::ShutDown } else { SocketError::WouldBlock }
    }

    /// The route to the peer, for a call that gives it back.
    pub(super) fn take_route(&mut self) -> CachedRoute {
        core::mem::replace(&mut self.route, CachedRoute::new(self.is_transparent))
    }

    /// Memory of what waits.
    fn waiting_bytes(&self) -> u32 {
        self.queue.bytes().saturating_add(self.errors.memory())
    }

    /// Something that waited was taken.
    fn lower_memory(&mut self) {
        self.held.lower(self.waiting_bytes());
    }

    /// Whether `IP_RECVERR` or `IPV6_RECVERR` is on for datagrams to this address.
    fn receives_errors_of(&self, remote: IpAddr) -> bool {
        let (v4, v6) = self.receive_errors;
        if remote.is_ipv4() { v4 } else { v6 }
    }
}
/// The address of a socket, and the options that are set before it has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    pub(crate) local: SocketAddr,
    /// `[::]` that is `0.0.0.0` as well.
    pub(crate) is_dual: bool,
    /// `local` is a broadcast address, which nothing is sent from.
    pub(crate) is_broadcast: bool,
    /// `SO_REUSEADDR`
    pub(crate) reuse: bool,
    /// `IP_TRANSPARENT`
    pub(crate) is_transparent: bool,
}

impl Binding {
    /// Whether datagrams to `address` are for a socket with this binding.
    fn meets(&self, address: SocketAddr) -> bool {
        let is_port = self.local.port() == address.port();
        is_port && (self.is_dual && address.is_ipv4() || overlap(self.local, address))
    }

    /// Whether sockets with these two would both serve some address.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.meets(other.local) || other.meets(self.local)
    }
}

/// One UDP socket, or a forwarder.
pub(crate) struct UdpSocket {
    /// Number of the socket among all UDP sockets of the host, never used twice.
    pub(super) number: u64,
    /// Of a forwarder unspecified, with port 0.
    pub(super) binding: Binding,
    reuse: AtomicBool,
    /// What a forwarder takes; `None` for a socket.
    forwards: Option<UdpForwarderOptions>,
    readiness: Arc<UdpReadiness>,
    pub(super) account: Arc<TxAccount>,
    /// A datagram in fragments did not fit beside the socket's own frames. The next one waits until
    /// all of them have left.
    pub(super) waits_for_all: AtomicBool,
    /// Datagrams that were not queued for lack of memory.
    drops: AtomicU64,
    state: Mutex<UdpState>,
}

/// Readiness that completions set.
#[derive(Debug, Default)]
struct UdpReadiness(Readiness);

impl Wake for UdpReadiness {
    fn wake(self: Arc<Self>) {
        self.0.signal(Ready::WRITABLE);
    }
}

impl core::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("UdpSocket").field("local", &self.binding.local).finish_non_exhaustive()
    }
}

impl UdpSocket {
    pub(super) fn new(number: u64, binding: Binding, memory: &Arc<UdpMemory>) -> Self {
        let readiness = Arc::new(UdpReadiness::default());
        readiness.0.signal(Ready::WRITABLE);
        let account = TxAccount::new(readiness.clone().into());
        let state = UdpState {
            remote: None,
            source: None,
            is_by_v4: false,
            queue: DatagramQueue::default(),
            held: Held::new(memory.clone()),
            receive_buffer: DEFAULT_BUFFER,
            send_buffer: DEFAULT_BUFFER,
            max_pacing_rate: Rate::UNLIMITED,
            error: None,
            receive_errors: (false, false),
            hop_limits: (0, 0),
            tos: (0, 0),
            may_broadcast: false,
            is_transparent: binding.is_transparent,
            errors: ErrorQueue::default(),
            route: CachedRoute::new(binding.is_transparent),
            route_through: None,
            is_closed: false,
        };
        Self {
            number,
            binding,
            reuse: AtomicBool::new(binding.reuse),
            forwards: None,
            readiness,
            account,
            waits_for_all: AtomicBool::new(false),
            drops: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// A forwarder. `seed` is random: it keys the shares of sources.
    pub(super) fn forwarder(
        number: u64,
        options: UdpForwarderOptions,
        seed: u64,
        memory: &Arc<UdpMemory>,
    ) -> Self {
        let binding = Binding {
            local: SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
            is_dual: true,
            is_broadcast: false,
            reuse: false,
            is_transparent: true,
        };
        let mut forwarder = Self::new(number, binding, memory);
        forwarder.forwards = Some(options);
        let mut state = lock(&forwarder.state);
        state.queue = DatagramQueue::with_shares(seed);
        (state.receive_buffer, state.send_buffer) = (FORWARDER_BUFFER, FORWARDER_BUFFER);
        drop(state);
        forwarder
    }

    /// Whether a socket of the same address may be bound to it too (`SO_REUSEADDR`).
    pub(super) fn may_share(&self) -> bool {
        self.reuse.load(Relaxed)
    }

    /// Whether it is bound to no address that datagrams can be sent from.
    pub(super) fn has_no_address(&self) -> bool {
        self.binding.local.ip().is_unspecified() || self.binding.is_broadcast
    }

    pub(super) fn is_forwarder(&self) -> bool {
        self.forwards.is_some()
    }

    /// Whether a forwarder serves an address and port, of datagrams that came in by `interface`
    /// where that is known.
    pub(super) fn forwards(&self, local: SocketAddr, interface: Option<InterfaceId>) -> bool {
        self.forwards.as_ref().is_some_and(|options| {
            let is_elsewhere = |own| interface.is_some_and(|interface| interface != own);
            options.contains(local) && !options.interface.is_some_and(is_elsewhere)
        })
    }

    /// The own address of a datagram as far as it is known before its route: `from` was asked for,
    /// `chosen` is the one of `connect`.
    pub(super) fn own(&self, from: Option<SocketAddr>, chosen: Option<IpAddr>) -> Option<IpAddr> {
        let from = from.map(|from| from.ip()).filter(|from| !from.is_unspecified());
        let bound = Some(self.binding.local.ip()).filter(|_| !self.has_no_address());
        from.or(bound).or(chosen)
    }

    /// Where datagrams from `own` to `remote` go. With `is_by_v4` the socket has nothing to do with
    /// IPv6, and `[::]` is this host by IPv4 (`udpv6_sendmsg`). A forwarder sends for others, whose
    /// own host is not this one.
    ///
    /// # Errors
    /// [`SocketError::AddressFamily`] if the socket has nothing to do with the family.
    pub(super) fn destination(
        &self,
        mut remote: SocketAddr,
        own: Option<IpAddr>,
        is_by_v4: bool,
    ) -> Result<SocketAddr, SocketError> {
        if remote.ip().is_unspecified() && !self.is_forwarder() {
            remote.set_ip(match remote {
                SocketAddr::V6(_) if is_by_v4 => Ipv4Addr::LOCALHOST.into(),
                remote => destination(remote.ip(), own),
            });
        }
        let is_of_family = match self.binding.is_dual {
            true => remote.is_ipv4() || !is_by_v4,
            false => remote.is_ipv4() == self.binding.local.is_ipv4(),
        };
        if is_of_family { Ok(remote) } else { Err(SocketError::AddressFamily) }
    }

    /// The own address that datagrams have to be sent to; unspecified if there is none
    /// (`inet_rcv_saddr`).
    fn own_ip(&self, state: &UdpState) -> IpAddr {
        let bound = self.binding.local.ip();
        if bound.is_unspecified() { state.source.unwrap_or(bound) } else { bound }
    }

    /// How well the socket fits a datagram: 0 not at all, more is better. One of IPv4 comes before
    /// one of both families (`compute_score`).
    pub(super) fn score(&self, tuple: &FourTuple) -> u32 {
        if !self.binding.meets(tuple.local_addr()) {
            return 0;
        }
        let state = lock(&self.state);
        let own = self.own_ip(&state);
        let exact = if own == tuple.local { 8 } else { 0 };
        if exact == 0 && !own.is_unspecified() {
            return 0;
        }
        let connected = match state.remote {
            None => 0,
            Some(peer) if is_peer(peer, tuple) => 4,
            Some(_) => return 0,
        };
        let of_family = if self.binding.local.is_ipv4() { 2 } else { 1 };
        exact + connected + of_family
    }

    /// Queues the datagrams of a packet (`udp_queue_rcv_skb`): those of a super-datagram have
    /// `segment` bytes each, and the last may be shorter; with 0 there is one. Data that is not
    /// `is_alone` in its memory is copied.
    pub(super) fn deliver(
        &self,
        whole: &ReceivedDatagram,
        segment: usize,
        is_alone: bool,
    ) -> Delivered {
        let mut state = lock(&self.state);
        let room = state.receive_buffer.saturating_sub(state.errors.memory());
        let is_alone = is_alone && (segment == 0 || whole.data.len() <= segment);
        let mut delivered = Delivered::default();
        for data in pieces(&whole.data, segment) {
            // The lock of the state orders the drops before it with the datagrams behind them.
            let dropped = delivered.buffer_full + delivered.no_memory;
            let drops = self.drops.load(Relaxed).wrapping_add(dropped) as u32;
            let mut datagram = ReceivedDatagram { data, drops, ..*whole };
            if state.is_closed || !state.queue.has_room(&datagram, room) {
                delivered.buffer_full += 1;
                continue;
            }
            let waiting = state.waiting_bytes().saturating_add(datagram.memory());
            if !state.held.raise(waiting) {
                delivered.no_memory += 1;
                continue;
            }
            if !is_alone {
                datagram.data = Bytes::copy_from_slice(&datagram.data);
            }
            state.queue.push(datagram);
            delivered.queued += 1;
        }
        let dropped = delivered.buffer_full + delivered.no_memory;
        if dropped > 0 {
            self.drops.fetch_add(dropped, Relaxed);
        }
        if delivered.queued > 0 {
            let woken = self.readiness.0.gain(Ready::READABLE, delivered.queued as usize);
            drop(state);
            woken.wake();
        }
        delivered
    }

    /// An ICMP error about a datagram of this socket (`__udp4_lib_err`, `__udp6_lib_err`). Who did
    /// not ask for errors hears of hard ones alone, and only where the socket is connected.
    /// A forwarder has a peer for each datagram: its calls do not fail for what one of them says.
    pub(crate) fn on_report(&self, host: &Host, report: ErrorReport) {
        let mut state = lock(&self.state);
        let woken = self.take_report(&mut state, host, report);
        drop(state);
        woken.wake();
    }

    fn take_report(
        &self,
        state: &mut UdpState,
        host: &Host,
        ErrorReport { record, is_hard, .. }: ErrorReport,
    ) -> Woken {
        let is_asked_for = state.receives_errors_of(record.destination.ip());
        let is_told = is_asked_for || is_hard && state.remote.is_some();
        let error = record.error;
        let mut woken =
            if is_asked_for { self.queue(state, host, record) } else { Woken::default() };
        if is_told && !self.is_forwarder() {
            state.error = Some(error.into());
            woken.add(self.readiness.0.gain(Ready::ERROR, 1));
        }
        woken
    }

    /// The device of an interface is gone. The socket fails once if nothing can reach it any more:
    /// the way to its peer led there and no other does, its own address was there, or it was bound
    /// to none and the host has none left. So does a forwarder of that interface.
    pub(super) fn on_device_gone(
        &self,
        host: &Host,
        now: Instant,
        interface: InterfaceId,
        is_last: bool,
    ) {
        let mut state = lock(&self.state);
        let local = self.binding.local.ip();
        let only = self.forwards.as_ref().and_then(|options| options.interface);
        let is_cut_off = match state.remote {
            _ if only.is_some() => only == Some(interface),
            Some(_) => {
                let way = self.way_to_peer(host, now, &state);
                way.is_none() && state.route.may_have_led_through(interface)
            }
            None if self.has_no_address() => is_last,
            None => !host.may_be_reached(local),
        };
        if is_cut_off && !state.is_closed {
            state.error = Some(ConnectionError::NetworkDown.into());
            let woken = self.readiness.0.gain(Ready::ERROR, 1);
            drop(state);
            woken.wake();
        }
    }

    /// The way to the peer; `None` if the socket has no peer, or none can be reached.
    fn way_to_peer(&self, host: &Host, now: Instant, state: &UdpState) -> Option<ResolvedRoute> {
        let remote = state.remote?;
        let own = self.own(None, state.source);
        let local = own.filter(|_| !state.is_transparent);
        let link = Self::link_to_peer(host, remote, own);
        host.net.topology.resolve_through(now, local, remote.ip(), link)
    }

    /// The largest packet that the way to the peer takes, in bytes; `None` without a peer, and
    /// without a way.
    pub(crate) fn path_mtu(&self, host: &Host, now: Instant) -> Option<u32> {
        Some(self.way_to_peer(host, now, &self.state())?.mtu)
    }

    /// Queues a record, if there is room for it.
    fn queue(&self, state: &mut UdpState, host: &Host, record: ErrorRecord) -> Woken {
        let mut room = state.receive_buffer.saturating_sub(state.queue.bytes());
        if self.is_forwarder() {
            // Whoever forges errors leaves room for datagrams.
            room = room.min(state.receive_buffer / FORWARDER_ERRORS);
        }
        let waiting = state.waiting_bytes().saturating_add(record.memory());
        if state.held.raise(waiting) && state.errors.push(record, room) {
            // What a forwarder is told has no call that fails: the records alone are its error.
            let error = if self.is_forwarder() { Ready::ERROR } else { Ready::empty() };
            return self.readiness.0.gain(Ready::ERROR_QUEUE | error, 1);
        }
        state.lower_memory();
        host.net.counters.drops.count(DropReason::ErrorQueue);
        Woken::default()
    }

    /// A datagram is too long for any packet, or is not to be cut and is longer than the `mtu` of
    /// its way (`ip_local_error`, `ipv6_local_error`).
    pub(super) fn on_too_long(&self, host: &Host, remote: SocketAddr, mtu: u32) {
        let mut state = lock(&self.state);
        if !state.receives_errors_of(remote.ip()) {
            return;
        }
        let mut destination = remote;
        if remote.is_ipv4() && state.remote.is_none() {
            // As in Linux, which shows the port that the socket is connected to.
            destination.set_port(0);
        }
        let record = ErrorRecord {
            error: ConnectionError::MessageTooLong,
            origin: ErrorOrigin::Local,
            kind: 0,
            code: 0,
            info: mtu,
            destination,
            source: None,
            offender: None,
            data: Bytes::new(),
        };
        let woken = self.queue(&mut state, host, record);
        drop(state);
        woken.wake();
    }

    /// Drops what waits, and refuses all calls from now on.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let queue = state.queue.take_all();
        state.errors.clear();
        state.held.release();
        drop(state);
        drop(queue);
        self.readiness.0.signal(Ready::READ_CLOSED | Ready::WRITE_CLOSED | Ready::ERROR);
    }
}

impl UdpSocket {
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.binding.local
    }

    /// As [`UdpHandle::name`](crate::socket::udp::UdpHandle::name).
    pub(crate) fn name(&self) -> SocketAddr {
        self.shown(&lock(&self.state))
    }

    /// The own address and port as they are shown: a link-local address is on the link of the
    /// peer's.
    fn shown(&self, state: &UdpState) -> SocketAddr {
        let own = SocketAddr::new(self.own_ip(state), self.binding.local.port());
        let Some(remote) = state.remote else { return own };
        FourTuple { scope: named_scope(remote), ..FourTuple::new(own, remote) }.local_name()
    }

    /// What a listing says of it.
    pub(crate) fn listed(&self) -> UdpInfo {
        let state = lock(&self.state);
        UdpInfo {
            id: self.number,
            local: self.shown(&state),
            is_dual: self.binding.is_dual && state.source.is_none(),
            remote: state.remote,
            rmem_alloc: state.waiting_bytes(),
            rcvbuf: state.receive_buffer,
            below_bytes: self.account.bytes(),
            sndbuf: state.send_buffer,
            drops: self.drops.load(Relaxed),
        }
    }

    pub(crate) fn readiness(&self) -> &Readiness {
        &self.readiness.0
    }

    /// Bytes of this socket that the wire does not have yet.
    pub(crate) fn bytes_below(&self) -> u64 {
        self.account.bytes()
    }

    pub(crate) fn set_reuse(&self, on: bool) {
        self.reuse.store(on, Relaxed);
    }

    /// The connected peer.
    pub(crate) fn remote_addr(&self) -> Option<SocketAddr> {
        lock(&self.state).remote
    }

    /// Sends to and receives from `remote` only; `None` ends that.
    pub(crate) fn connect(
        &self,
        host: &Host,
        remote: Option<SocketAddr>,
    ) -> Result<(), SocketError> {
        if self.is_forwarder() {
            return Err(SocketError::InvalidArgument);
        }
        let wanted = remote;
        let state = lock(&self.state);
        let (own, is_by_v4) = (self.own(None, state.source), state.is_by_v4);
        drop(state);
        let destination = |remote: SocketAddr| self.destination(remote, own, is_by_v4);
        let mut remote = remote.map(destination).transpose()?;
        let link = remote.map_or(Ok(None), |remote| host.net.topology.link_to(remote))?;
        if let Some(peer) = remote.as_mut().filter(|peer| is_link_local(peer.ip())) {
            *peer = with_scope(*peer, scope_of(peer.ip(), link));
        }
        let to_peer = |remote: SocketAddr| Self::link_to_peer(host, remote, own);
        let link = link.or_else(|| remote.and_then(to_peer));
        // The unspecified address means this host, to which there is always a way.
        if let Some(wanted) = wanted.filter(|wanted| !wanted.ip().is_unspecified()) {
            self.check_way(host, wanted.ip(), link)?;
        }
        let is_broadcast = remote.is_some_and(|remote| host.is_broadcast(remote.ip()));
        let source = |remote: SocketAddr| self.source_towards(host, remote.ip(), link);
        let source = remote.map_or(Ok(None), source)?;
        let mut state = lock(&self.state);
        if is_broadcast && !state.may_broadcast {
            return Err(SocketError::Reported(ConnectionError::Forbidden));
        }
        let is_by_v4 = match state.source {
            None => source.is_some_and(|source| source.is_ipv4()),
            Some(_) => state.is_by_v4 && source.is_some(),
        };
        (state.remote, state.source, state.is_by_v4) = (remote, source, is_by_v4);
        state.route = CachedRoute::new(state.is_transparent);
        Ok(())
    }

    /// The own address that `connect` chooses (`__ip4_datagram_connect`). Until the socket is
    /// connected to nobody, it keeps the one that it has while that is an own one on the way.
    fn source_towards(
        &self,
        host: &Host,
        remote: IpAddr,
        link: Option<InterfaceId>,
    ) -> Result<Option<IpAddr>, SocketError> {
        if !self.has_no_address() {
            return Ok(None);
        }
        let topology = &host.net.topology;
        let kept = lock(&self.state).source.filter(|kept| kept.is_ipv4() == remote.is_ipv4());
        let stays =
            |kept: IpAddr| host.may_be_reached(kept) && topology.is_on_way(kept, remote, link);
        if let Some(kept) = kept.filter(|kept| stays(*kept)) {
            host.check_ends(kept, remote)?;
            return Ok(Some(kept));
        }
        // A host without an address may still ask all others for one.
        Ok(topology.source_for(remote, link).ok())
    }

    /// Whether a datagram to `remote` would find a way now, through `link` if one is given.
    fn check_way(
        &self,
        host: &Host,
        remote: IpAddr,
        link: Option<InterfaceId>,
    ) -> Result<(), SocketError> {
        if !self.has_no_address() {
            host.check_ends(self.binding.local.ip(), remote)?;
        }
        match host.net.topology.source_for(remote, link) {
            // It has one already, a datagram may name one, or it asks all hosts for one.
            Err(NoSource::NoAddress)
                if !self.has_no_address()
                    || lock(&self.state).is_transparent
                    || remote == Ipv4Addr::BROADCAST =>
            {
                Ok(())
            }
            found => Ok(found.map(drop)?),
        }
    }

    /// The next datagram.
    pub(crate) fn receive(&self) -> Result<ReceivedDatagram, SocketError> {
        let mut state = self.state_without_error()?;
        let Some(datagram) = state.queue.pop() else {
            return Err(state.nothing_to_receive());
        };
        state.lower_memory();
        if state.queue.is_empty() {
            self.readiness.0.clear(Ready::READABLE);
        }
        Ok(datagram)
    }

    /// Gives up to `most` datagrams to `take`; how many there were, at least one.
    pub(crate) fn receive_batch(
        &self,
        most: usize,
        take: impl FnMut(ReceivedDatagram),
    ) -> Result<usize, SocketError> {
        self.take_batch(self.state_without_error()?, most, take)
    }

    /// As [`receive_batch`](Self::receive_batch) for a call that has taken some before: an error
    /// ends it, and stays for the next call.
    pub(crate) fn receive_more(
        &self,
        most: usize,
        take: impl FnMut(ReceivedDatagram),
    ) -> Result<usize, SocketError> {
        let state = lock(&self.state);
        if let Some(error) = state.error {
            drop(state);
            // The call may have been woken for the error that it leaves.
            self.readiness.0.pass_on();
            return Err(error);
        }
        self.take_batch(state, most, take)
    }

    fn take_batch(
        &self,
        mut state: MutexGuard<'_, UdpState>,
        most: usize,
        take: impl FnMut(ReceivedDatagram),
    ) -> Result<usize, SocketError> {
        if state.queue.is_empty() {
            return Err(state.nothing_to_receive());
        }
        let count = most.min(state.queue.len());
        (0..count).map_while(|_| state.queue.pop()).for_each(take);
        state.lower_memory();
        if state.queue.is_empty() {
            self.readiness.0.clear(Ready::READABLE);
        }
        drop(state);
        if count == 0 {
            self.readiness.0.pass_on();
        }
        Ok(count)
    }

    /// The next datagram, which stays.
    pub(crate) fn peek(&self) -> Result<ReceivedDatagram, SocketError> {
        let state = self.state_without_error()?;
        let datagram = state.queue.front().cloned().ok_or_else(|| state.nothing_to_receive())?;
        drop(state);
        self.readiness.0.pass_on();
        Ok(datagram)
    }

    /// The state. A call of the socket holds it.
    pub(super) fn state(&self) -> MutexGuard<'_, UdpState> {
        lock(&self.state)
    }

    /// The state, unless an error is to be told first.
    fn state_without_error(&self) -> Result<MutexGuard<'_, UdpState>, SocketError> {
        let mut state = lock(&self.state);
        match self.told(&mut state) {
            Some(error) => Err(error),
            None => Ok(state),
        }
    }

    /// The pending error, once. The bit stays while it has another cause.
    fn told(&self, state: &mut UdpState) -> Option<SocketError> {
        let error = state.error.take()?;
        if !self.has_error(state) {
            self.readiness.0.clear(Ready::ERROR);
        }
        Some(error)
    }

    /// Whether there is something that [`Ready::ERROR`] stands for. The records of a forwarder are
    /// its error, and the end of the stack is for good.
    fn has_error(&self, state: &UdpState) -> bool {
        let has_records = self.is_forwarder() && !state.errors.is_empty();
        state.error.is_some() || state.is_closed || has_records
    }

    /// Bytes of the next datagram, 0 without one.
    pub(crate) fn next_len(&self) -> u32 {
        let state = lock(&self.state);
        state.queue.front().map_or(0, |datagram| datagram.data.len() as u32)
    }

    /// Receive and send buffer, bytes.
    pub(crate) fn buffers(&self) -> (u32, u32) {
        let state = lock(&self.state);
        (state.receive_buffer, state.send_buffer)
    }

    pub(crate) fn set_max_pacing_rate(&self, rate: Rate) {
        lock(&self.state).max_pacing_rate = rate;
    }

    pub(crate) fn max_pacing_rate(&self) -> Rate {
        lock(&self.state).max_pacing_rate
    }

    /// The pending error, once.
    pub(crate) fn take_error(&self) -> Option<SocketError> {
        self.told(&mut lock(&self.state))
    }

    /// Hop limits of IPv4 and IPv6; 0 is the default.
    pub(crate) fn hop_limits(&self) -> (u8, u8) {
        lock(&self.state).hop_limits
    }

    pub(crate) fn set_hop_limits(&self, v4: u8, v6: u8) {
        lock(&self.state).hop_limits = (v4, v6);
    }

    /// TOS bytes of IPv4 and traffic classes of IPv6.
    pub(crate) fn tos(&self) -> (u8, u8) {
        lock(&self.state).tos
    }

    pub(crate) fn set_tos(&self, v4: u8, v6: u8) {
        lock(&self.state).tos = (v4, v6);
    }

    pub(crate) fn may_broadcast(&self) -> bool {
        lock(&self.state).may_broadcast
    }

    pub(crate) fn set_broadcast(&self, on: bool) {
        lock(&self.state).may_broadcast = on;
    }

    pub(crate) fn is_transparent(&self) -> bool {
        lock(&self.state).is_transparent
    }

    pub(crate) fn set_transparent(&self, on: bool) {
        let mut state = lock(&self.state);
        state.is_transparent = on;
        state.route = CachedRoute::new(on);
    }

    pub(crate) fn receive_errors(&self) -> (bool, bool) {
        lock(&self.state).receive_errors
    }

    pub(crate) fn set_receive_errors(&self, v4: bool, v6: bool) {
        lock(&self.state).receive_errors = (v4, v6);
    }

    /// The oldest record of the error queue.
    pub(crate) fn next_error(&self) -> Option<ErrorRecord> {
        let mut state = lock(&self.state);
        let UdpState { errors, error, .. } = &mut *state;
        let record = errors.pop(|next| {
            if !self.is_forwarder() {
                *error = next.map(SocketError::from);
            }
        })?;
        let mut left = Ready::empty();
        left.set(Ready::ERROR, self.has_error(&state));
        left.set(Ready::ERROR_QUEUE, !state.errors.is_empty());
        state.lower_memory();
        self.readiness.0.clear((Ready::ERROR | Ready::ERROR_QUEUE) - left);
        if left.contains(Ready::ERROR_QUEUE) {
            // Whoever waits for edges hears of the next.
            let woken = self.readiness.0.gain(left, 1);
            drop(state);
            woken.wake();
        }
        Some(record)
    }

    /// Empties the error queue.
    pub(crate) fn clear_errors(&self) {
        let mut state = lock(&self.state);
        state.errors.clear();
        let told = if self.has_error(&state) { Ready::empty() } else { Ready::ERROR };
        state.lower_memory();
        self.readiness.0.clear(Ready::ERROR_QUEUE | told);
    }
}
