//! UDP sockets: bounded receive queues, and an account so that a full way down pushes back.

use super::Host;
use super::error::SocketError;
use super::error_queue::{ErrorOrigin, ErrorQueue, ErrorRecord, ErrorReport};
use super::ports::Ephemeral;
use super::readiness::{Readiness, Ready};
use super::udp_memory::{Held, UdpMemory};
use crate::drop_reason::DropReason;
use crate::flow::{FlowKey, FourTuple, overlap};
use crate::frame::{DATAGRAM, Headers};
use crate::net::Visit;
use crate::net::egress::{CachedRoute, OutgoingDatagram};
use crate::net::interface::{Interface, InterfaceId};
use crate::net::topology::NextHop;
use crate::stats::IpCounter;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::wire::{ChecksumBy, Ports, Protocol, checksum::Pseudo, udp};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use hashbrown::HashTable;
use neap_tcp::connection::ConnectionError;
use neap_tcp::segment::Payload;
use neap_tcp::time::{Instant, Rate};
use neap_tcp::transmit::egress::Verdict;
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Wake;

/// Default receive and send buffer of a UDP socket, in bytes (`net.core.rmem_default`,
/// `wmem_default`).
pub const DEFAULT_BUFFER: u32 = 212_992;

/// Memory that a datagram counts besides its payload (Linux's `SKB_TRUESIZE(0)`, rounded).
const OVERHEAD: u32 = 640;

/// The shard whose ports datagrams leave by.
const SHARD: usize = 0;

/// Received datagram.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReceivedDatagram {
    /// Address and port of the sender.
    pub from: SocketAddr,
    /// Address of this host that the datagram was sent to.
    pub to: IpAddr,
    /// Data of the datagram.
    pub data: Bytes,
}

/// A datagram that an application sends.
#[derive(Clone, Debug)]
pub struct SendDatagram {
    /// Data.
    pub data: Bytes,
    /// Where it goes; `None` is the connected peer.
    pub to: Option<SocketAddr>,
    /// Own address that it is sent from (`IP_PKTINFO`); `None` is the bound one, or what the route
    /// says.
    pub from: Option<IpAddr>,
}

/// What sending needs of a socket, read once for a batch.
struct Sending {
    remote: Option<SocketAddr>,
    /// Bytes that may be below.
    limit: u64,
    /// `SO_MAX_PACING_RATE`
    rate: Rate,
    /// `IP_TTL`, `IPV6_UNICAST_HOPS`
    hop_limits: (u8, u8),
    /// An error is to be told first.
    has_error: bool,
    route: CachedRoute,
    /// Where `route` leads.
    route_to: Option<IpAddr>,
    /// The device hears of all frames of the batch together.
    batch: Option<Batch>,
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

struct UdpState {
    remote: Option<SocketAddr>,
    queue: VecDeque<ReceivedDatagram>,
    queued_bytes: u32,
    /// Memory of the host for what waits in both queues.
    held: Held,
    receive_buffer: u32,
    send_buffer: u32,
    max_pacing_rate: Rate,
    error: Option<SocketError>,
    /// `IP_RECVERR`, `IPV6_RECVERR`
    receive_errors: (bool, bool),
    /// `IP_TTL`, `IPV6_UNICAST_HOPS`; 0 is the default.
    hop_limits: (u8, u8),
    errors: ErrorQueue,
    /// The route to the connected peer.
    route: CachedRoute,
    is_closed: bool,
}

impl UdpState {
    /// Why there is no datagram.
    fn nothing_to_receive(&self) -> SocketError {
        if self.is_closed { SocketError::ShutDown } else { SocketError::WouldBlock }
    }

    /// Memory of what waits.
    fn waiting_bytes(&self) -> u32 {
        self.queued_bytes.saturating_add(self.errors.memory())
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

/// One UDP socket.
pub(crate) struct UdpSocket {
    /// Number of the socket among all UDP sockets of the host, never used twice.
    number: u64,
    local: SocketAddr,
    reuse: AtomicBool,
    /// `[::]` that is `0.0.0.0` as well.
    is_dual: bool,
    readiness: Arc<UdpReadiness>,
    account: Arc<TxAccount>,
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
        f.debug_struct("UdpSocket").field("local", &self.local).finish_non_exhaustive()
    }
}

impl UdpSocket {
    fn new(
        number: u64,
        local: SocketAddr,
        reuse: bool,
        is_dual: bool,
        memory: &Arc<UdpMemory>,
    ) -> Self {
        let readiness = Arc::new(UdpReadiness::default());
        readiness.0.signal(Ready::WRITABLE);
        let account = TxAccount::new(readiness.clone().into());
        let state = UdpState {
            remote: None,
            queue: VecDeque::new(),
            queued_bytes: 0,
            held: Held::new(memory.clone()),
            receive_buffer: DEFAULT_BUFFER,
            send_buffer: DEFAULT_BUFFER,
            max_pacing_rate: Rate::UNLIMITED,
            error: None,
            receive_errors: (false, false),
            hop_limits: (0, 0),
            errors: ErrorQueue::default(),
            route: CachedRoute::default(),
            is_closed: false,
        };
        let (reuse, state) = (AtomicBool::new(reuse), Mutex::new(state));
        Self { number, local, reuse, is_dual, readiness, account, state }
    }

    /// Whether it has to do with the family of an address.
    fn serves(&self, address: IpAddr) -> bool {
        self.is_dual || address.is_ipv4() == self.local.is_ipv4()
    }

    /// How well the socket fits a datagram: 0 not at all, more is better.
    fn score(&self, tuple: &FourTuple) -> u32 {
        let local = tuple.local_addr();
        if !(overlap(self.local, local) || self.is_dual && local.is_ipv4()) {
            return 0;
        }
        let exact = u32::from(self.local.ip() == local.ip());
        match lock(&self.state).remote {
            None => 1 + exact,
            Some(remote) if remote == tuple.remote_addr() => 4 + exact,
            Some(_) => 0,
        }
    }

    /// Queues a datagram (`__udp_enqueue_schedule_skb`).
    fn deliver(&self, datagram: ReceivedDatagram) -> Delivered {
        let mut state = lock(&self.state);
        let bytes = (datagram.data.len() as u32).saturating_add(OVERHEAD);
        let waiting = state.waiting_bytes().saturating_add(bytes);
        if state.is_closed || (waiting > state.receive_buffer && !state.queue.is_empty()) {
            return Delivered::BufferFull;
        }
        if !state.held.raise(waiting) {
            return Delivered::NoMemory;
        }
        state.queued_bytes = state.queued_bytes.saturating_add(bytes);
        state.queue.push_back(datagram);
        self.readiness.0.signal(Ready::READABLE);
        Delivered::Queued
    }

    /// An ICMP error about a datagram of this socket (`__udp4_lib_err`, `__udp6_lib_err`). Who did
    /// not ask for errors hears of hard ones alone, and only where the socket is connected.
    pub(crate) fn on_report(&self, host: &Host, ErrorReport { record, is_hard, .. }: ErrorReport) {
        let mut state = lock(&self.state);
        let error = record.error;
        if state.receives_errors_of(record.destination.ip()) {
            self.queue(&mut state, host, record);
        } else if !is_hard || state.remote.is_none() {
            return;
        }
        state.error = Some(error.into());
        // With the state locked: bit and error agree.
        self.readiness.0.signal(Ready::ERROR);
    }

    /// The device of an interface is gone. The socket fails once if nothing can reach it any more:
    /// the way to its peer led there and no other does, its own address was there, or it was bound
    /// to none and the host has none left.
    fn on_device_gone(&self, host: &Host, now: Instant, interface: InterfaceId, is_last: bool) {
        let mut state = lock(&self.state);
        let UdpState { remote, route, .. } = &mut *state;
        let local = self.local.ip();
        let is_cut_off = match remote {
            Some(remote) => {
                let local = if local.is_unspecified() { None } else { Some(local) };
                let way = host.net.topology.resolve_from(now, local, remote.ip());
                way.is_none() && route.may_have_led_through(interface)
            }
            None if local.is_unspecified() => is_last,
            None => host.check_local(local).is_err(),
        };
        if is_cut_off && !state.is_closed {
            state.error = Some(ConnectionError::NetworkDown.into());
            self.readiness.0.signal(Ready::ERROR);
        }
    }

    fn queue(&self, state: &mut UdpState, host: &Host, record: ErrorRecord) {
        let room = state.receive_buffer.saturating_sub(state.queued_bytes);
        let waiting = state.waiting_bytes().saturating_add(record.memory());
        if state.held.raise(waiting) && state.errors.push(record, room) {
            self.readiness.0.signal(Ready::ERROR_QUEUE);
        } else {
            state.lower_memory();
            host.net.counters.drops.count(DropReason::ErrorQueue);
        }
    }

    /// A datagram that is too long for any packet (`ip_local_error`, `ipv6_local_error`).
    fn on_too_long(
        &self,
        host: &Host,
        now: Instant,
        state: &mut UdpState,
        remote: SocketAddr,
        len: usize,
    ) {
        // Linux looks at the length itself first where it is IPv4's.
        let is_told = remote.is_ipv6() || len <= usize::from(u16::MAX);
        if !is_told || !state.receives_errors_of(remote.ip()) {
            return;
        }
        let mtu = host.net.topology.resolve(now, remote.ip()).map_or(0, |route| route.mtu);
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
            offender: None,
            data: Bytes::new(),
        };
        self.queue(state, host, record);
    }

    /// Drops what waits, and refuses all calls from now on.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let queue = core::mem::take(&mut state.queue);
        state.queued_bytes = 0;
        state.errors.clear();
        state.held.release();
        drop(state);
        drop(queue);
        self.readiness.0.signal(Ready::READ_CLOSED | Ready::WRITE_CLOSED | Ready::ERROR);
    }
}

/// The UDP sockets of a host by local port.
///
/// Cost of a lookup: a multiplication, one mutex, and one look at each socket on the port.
pub(crate) struct UdpTable {
    sockets: Mutex<UdpSockets>,
    memory: Arc<UdpMemory>,
}

/// What became of a datagram for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// It waits for its reader.
    Queued,
    /// The receive buffer is full, or the socket is closed.
    BufferFull,
    /// `udp_mem` leaves no memory for it.
    NoMemory,
}

struct UdpSockets {
    by_port: HashTable<Arc<UdpSocket>>,
    ephemeral: Ephemeral,
    bound: u64,
    is_shut_down: bool,
}

fn hash(port: u16) -> u64 {
    u64::from(port).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl UdpTable {
    /// An empty table, without a port to choose; see [`set_ports`](Self::set_ports).
    pub(crate) fn new(seed: u64) -> Self {
        let sockets = Mutex::new(UdpSockets {
            by_port: HashTable::new(),
            ephemeral: Ephemeral::new(seed),
            bound: 0,
            is_shut_down: false,
        });
        Self { sockets, memory: Arc::default() }
    }

    /// The memory of all sockets.
    pub(crate) fn memory(&self) -> &UdpMemory {
        &self.memory
    }

    /// Chooses ports from `ports` (`net.ipv4.ip_local_port_range`) from now on.
    pub(crate) fn set_ports(&self, ports: RangeInclusive<u16>) {
        lock(&self.sockets).ephemeral.set_range(ports);
    }

    /// Binds a socket; port 0 is an ephemeral one. `is_dual`: to `0.0.0.0` besides `[::]`.
    pub(crate) fn bind(
        &self,
        key: FlowKey,
        mut local: SocketAddr,
        reuse: bool,
        is_dual: bool,
    ) -> Result<Arc<UdpSocket>, SocketError> {
        let mut sockets = lock(&self.sockets);
        if sockets.is_shut_down {
            return Err(SocketError::ShutDown);
        }
        let UdpSockets { by_port, ephemeral, bound, .. } = &mut *sockets;
        if local.port() == 0 {
            let any = FourTuple::new(local, local);
            let is_free = |port| by_port.find(hash(port), |one| one.local.port() == port).is_none();
            let port = ephemeral.choose(key.hash(&any), is_free);
            local.set_port(port.ok_or(SocketError::AddressInUse)?);
        }
        let is_taken = by_port
            .iter_hash(hash(local.port()))
            .filter(|one| !(reuse && one.reuse.load(Relaxed)))
            .any(|one| {
                let is_both = is_dual && one.local.is_ipv4() || one.is_dual && local.is_ipv4();
                overlap(one.local, local) || is_both && one.local.port() == local.port()
            });
        if is_taken {
            return Err(SocketError::AddressInUse);
        }
        *bound += 1;
        let socket = Arc::new(UdpSocket::new(*bound, local, reuse, is_dual, &self.memory));
        by_port.insert_unique(hash(local.port()), socket.clone(), |one| hash(one.local.port()));
        Ok(socket)
    }

    fn find(&self, tuple: &FourTuple) -> Option<Arc<UdpSocket>> {
        let sockets = lock(&self.sockets);
        let scored = sockets
            .by_port
            .iter_hash(hash(tuple.local_port))
            .map(|socket| (socket.score(tuple), socket))
            .filter(|(score, _)| *score > 0);
        scored.max_by_key(|(score, _)| *score).map(|(_, socket)| socket.clone())
    }

    /// Delivers a datagram; `None` without a socket for it. `data` may wait for long, so it is to
    /// be alone in its memory.
    pub(crate) fn deliver(
        &self,
        tuple: &FourTuple,
        data: impl FnOnce() -> Bytes,
    ) -> Option<Delivered> {
        let socket = self.find(tuple)?;
        let from = tuple.remote_addr();
        Some(socket.deliver(ReceivedDatagram { from, to: tuple.local, data: data() }))
    }

    /// Tells the socket that sent a datagram of an error; whether there is one.
    pub(crate) fn on_error(&self, tuple: &FourTuple, tell: impl FnOnce(&UdpSocket)) -> bool {
        let socket = self.find(tuple);
        socket.as_deref().map(tell).is_some()
    }

    /// Tells all sockets that the device of an interface is gone; `is_last` says that no other is
    /// left. Costs a look at each.
    pub(crate) fn on_device_gone(
        &self,
        host: &Host,
        now: Instant,
        interface: InterfaceId,
        is_last: bool,
    ) {
        let sockets: Vec<_> = lock(&self.sockets).by_port.iter().cloned().collect();
        for socket in sockets {
            socket.on_device_gone(host, now, interface, is_last);
        }
    }

    /// Forgets a socket whose last handle is gone.
    pub(crate) fn remove(&self, socket: &Arc<UdpSocket>) {
        let mut sockets = lock(&self.sockets);
        let is_it = |one: &Arc<UdpSocket>| Arc::ptr_eq(one, socket);
        if let Ok(entry) = sockets.by_port.find_entry(hash(socket.local.port()), is_it) {
            entry.remove();
        }
    }

    /// Closes all sockets and refuses more.
    pub(crate) fn shut_down(&self) {
        let mut sockets = lock(&self.sockets);
        sockets.is_shut_down = true;
        let all: Vec<_> = sockets.by_port.drain().collect();
        drop(sockets);
        all.iter().for_each(|socket| socket.close());
    }

    /// Sockets bound.
    pub(crate) fn len(&self) -> usize {
        lock(&self.sockets).by_port.len()
    }
}

impl UdpSocket {
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
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
    pub(crate) fn connect(&self, remote: Option<SocketAddr>) -> Result<(), SocketError> {
        if remote.is_some_and(|remote| !self.serves(remote.ip())) {
            return Err(SocketError::AddressFamily);
        }
        let mut state = lock(&self.state);
        state.remote = remote;
        state.route = CachedRoute::default();
        Ok(())
    }

    /// The next datagram.
    pub(crate) fn receive(&self) -> Result<ReceivedDatagram, SocketError> {
        let mut state = self.state_without_error()?;
        let Some(datagram) = state.queue.pop_front() else {
            return Err(state.nothing_to_receive());
        };
        state.queued_bytes -= (datagram.data.len() as u32).saturating_add(OVERHEAD);
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
        let mut state = self.state_without_error()?;
        if state.queue.is_empty() {
            return Err(state.nothing_to_receive());
        }
        let count = most.min(state.queue.len());
        let UdpState { queue, queued_bytes, .. } = &mut *state;
        let taken = queue.drain(..count).inspect(|datagram| {
            *queued_bytes -= (datagram.data.len() as u32).saturating_add(OVERHEAD);
        });
        taken.for_each(take);
        state.lower_memory();
        if state.queue.is_empty() {
            self.readiness.0.clear(Ready::READABLE);
        }
        Ok(count)
    }

    /// The next datagram, which stays.
    pub(crate) fn peek(&self) -> Result<ReceivedDatagram, SocketError> {
        let state = self.state_without_error()?;
        state.queue.front().cloned().ok_or_else(|| state.nothing_to_receive())
    }

    /// The state, unless an error is to be told first.
    fn state_without_error(&self) -> Result<MutexGuard<'_, UdpState>, SocketError> {
        let mut state = lock(&self.state);
        if let Some(error) = state.error.take() {
            self.readiness.0.clear(Ready::ERROR);
            return Err(error);
        }
        Ok(state)
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

    /// Replaces the buffers' sizes; `None` leaves one as it is.
    pub(crate) fn set_buffers(&self, receive: Option<u32>, send: Option<u32>) {
        let mut state = lock(&self.state);
        state.receive_buffer = receive.unwrap_or(state.receive_buffer);
        state.send_buffer = send.unwrap_or(state.send_buffer);
    }

    pub(crate) fn set_max_pacing_rate(&self, rate: Rate) {
        lock(&self.state).max_pacing_rate = rate;
    }

    pub(crate) fn max_pacing_rate(&self) -> Rate {
        lock(&self.state).max_pacing_rate
    }

    /// The pending error, once.
    pub(crate) fn take_error(&self) -> Option<SocketError> {
        let mut state = lock(&self.state);
        self.readiness.0.clear(Ready::ERROR);
        state.error.take()
    }

    /// Hop limits of IPv4 and IPv6; 0 is the default.
    pub(crate) fn hop_limits(&self) -> (u8, u8) {
        lock(&self.state).hop_limits
    }

    pub(crate) fn set_hop_limits(&self, v4: u8, v6: u8) {
        lock(&self.state).hop_limits = (v4, v6);
    }

    pub(crate) fn set_receive_errors(&self, v4: bool, v6: bool) {
        lock(&self.state).receive_errors = (v4, v6);
    }

    /// The oldest record of the error queue.
    pub(crate) fn next_error(&self) -> Option<ErrorRecord> {
        let mut state = lock(&self.state);
        let UdpState { errors, error, .. } = &mut *state;
        let record = errors.pop(|next| *error = next.map(SocketError::from))?;
        let mut left = Ready::empty();
        left.set(Ready::ERROR, error.is_some());
        left.set(Ready::ERROR_QUEUE, !errors.is_empty());
        state.lower_memory();
        self.readiness.0.clear((Ready::ERROR | Ready::ERROR_QUEUE) - left);
        if left.contains(Ready::ERROR_QUEUE) {
            // Whoever waits for edges hears of the next.
            self.readiness.0.signal(left);
        }
        Some(record)
    }

    /// Empties the error queue.
    pub(crate) fn clear_errors(&self) {
        let mut state = lock(&self.state);
        state.errors.clear();
        state.lower_memory();
        self.readiness.0.clear(Ready::ERROR_QUEUE);
    }

    /// Sends datagrams in their order until one is refused. How many were sent, and why the next
    /// one was not. The device is told once of all that leave by one interface.
    pub(crate) fn send_batch(
        &self,
        host: &Host,
        now: Instant,
        datagrams: impl Iterator<Item = SendDatagram>,
    ) -> (usize, Result<(), SocketError>) {
        let is_batch = datagrams.size_hint().1 != Some(1);
        let mut way = {
            let mut state = lock(&self.state);
            if state.is_closed {
                return (0, Err(SocketError::ShutDown));
            }
            Sending {
                remote: state.remote,
                limit: state.send_buffer.into(),
                rate: state.max_pacing_rate,
                hop_limits: state.hop_limits,
                has_error: state.error.is_some(),
                route_to: state.remote.map(|remote| remote.ip()),
                route: core::mem::take(&mut state.route),
                batch: is_batch.then_some(Batch { now, interface: None }),
            }
        };
        let (mut sent, mut outcome) = (0, Ok(()));
        for datagram in datagrams {
            outcome = self.send_one(host, now, &mut way, datagram);
            if outcome.is_err() {
                break;
            }
            sent += 1;
        }
        if way.remote.is_some_and(|remote| way.route_to == Some(remote.ip())) {
            let mut state = lock(&self.state);
            // Another thread may have connected the socket elsewhere meanwhile.
            if state.remote == way.remote {
                state.route = core::mem::take(&mut way.route);
            }
        }
        (sent, outcome)
    }

    fn send_one(
        &self,
        host: &Host,
        now: Instant,
        way: &mut Sending,
        SendDatagram { data, to, from }: SendDatagram,
    ) -> Result<(), SocketError> {
        let remote = to.or(way.remote).ok_or(SocketError::DestinationRequired)?;
        if !self.serves(remote.ip()) {
            return Err(SocketError::AddressFamily);
        }
        if remote.port() == 0 {
            return Err(SocketError::InvalidArgument);
        }
        let most = if remote.is_ipv4() { udp::MAX_PAYLOAD_V4 } else { udp::MAX_PAYLOAD_V6 };
        if data.len() > most {
            self.on_too_long(host, now, &mut lock(&self.state), remote, data.len());
            return Err(SocketError::MessageTooLong);
        }
        if core::mem::take(&mut way.has_error)
            && let Some(error) = self.take_error()
        {
            return Err(error);
        }
        self.admit(way.limit)?;
        let is_connected = way.remote == Some(remote);
        if !is_connected && host.is_broadcast(remote.ip()) {
            host.net.topology.source_for(remote.ip())?;
            return Err(SocketError::Reported(ConnectionError::Forbidden));
        }
        let local = self.source(host, remote.ip(), from)?;
        if way.route_to != Some(remote.ip()) {
            way.route_to = Some(remote.ip());
            way.route = CachedRoute::default();
        }
        self.send(host, now, way, local, remote, data)
    }

    /// The own address of a datagram to `remote`; `from` is the one that was asked for.
    fn source(
        &self,
        host: &Host,
        remote: IpAddr,
        from: Option<IpAddr>,
    ) -> Result<IpAddr, SocketError> {
        let bound = self.local.ip();
        match from.filter(|from| !from.is_unspecified()) {
            Some(from) if bound.is_unspecified() => {
                host.check_local(from)?;
                Ok(from)
            }
            Some(from) if from != bound => Err(SocketError::AddressNotAvailable),
            None if bound.is_unspecified() => Ok(host.net.topology.source_for(remote)?),
            _ => Ok(bound),
        }
    }

    /// Whether there is room below; if not, a completion makes the socket writable.
    fn admit(&self, limit: u64) -> Result<(), SocketError> {
        if self.account.admit(limit) {
            return Ok(());
        }
        // The first look may already be answered by a wake-up: clear, then look again.
        self.readiness.0.clear(Ready::WRITABLE);
        if self.account.admit(limit) {
            self.readiness.0.signal(Ready::WRITABLE);
            return Ok(());
        }
        Err(SocketError::WouldBlock)
    }

    fn send(
        &self,
        host: &Host,
        now: Instant,
        way: &mut Sending,
        local: IpAddr,
        remote: SocketAddr,
        data: Bytes,
    ) -> Result<(), SocketError> {
        let pseudo =
            Pseudo::of(local, remote.ip(), Protocol::UDP).ok_or(SocketError::AddressFamily)?;
        let ports = Ports { source: self.local.port(), destination: remote.port() };
        let bytes = (data.len() as u32).saturating_add(OVERHEAD);
        let payload = Payload::from(data);
        let mut headers = Headers::default();
        udp::emit(&mut headers, ports, &payload, pseudo, ChecksumBy::Stack);
        let flow = if way.remote == Some(remote) {
            DATAGRAM | self.number
        } else {
            let own = SocketAddr::new(local, self.local.port());
            host.net.orphan_flow(&FourTuple::new(own, remote))
        };
        let datagram = OutgoingDatagram {
            local,
            remote: remote.ip(),
            protocol: Protocol::UDP,
            headers,
            payload,
            flow,
            pacing_rate: way.rate,
            credit: Some(TxCredit::charge(&self.account, bytes)),
            hop_limit: if remote.is_ipv4() { way.hop_limits.0 } else { way.hop_limits.1 },
        };
        host.net.counters.ip.add(IpCounter::UdpOutDatagrams, 1);
        let visit = Visit::new(now, SHARD);
        let has_more = way.batch.is_some();
        let sent = host.net.send_datagram(Visit { has_more, ..visit }, &mut way.route, datagram);
        if let (Some(batch), Ok(_)) = (&mut way.batch, &sent) {
            batch.hold(&way.route);
        }
        let verdict = sent.as_ref().map_or(Verdict::Dropped, |output| output.verdict);
        if verdict == Verdict::Dropped {
            host.net.counters.ip.add(IpCounter::UdpSndbufErrors, 1);
        }
        host.on_undeliverable(visit, sent?.undeliverable);
        if verdict == Verdict::Dropped {
            // What was refused because of the socket's own frames may be tried again when one of
            // them has left.
            self.admit(0)?;
            return Err(SocketError::NoBuffers);
        }
        Ok(())
    }
}
