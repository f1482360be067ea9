//! UDP sockets: bounded receive queues, and an account so that a full way down pushes back.

use super::SocketError;
use super::errors::{ErrorOrigin, ErrorQueue, ErrorRecord, Report};
use super::readiness::{Readiness, Ready, ReadyState};
use crate::demux::{FourTuple, HashKey, overlap};
use crate::drop_reason::DropReason;
use crate::egress::{Datagram, SocketPath, orphan, send_datagram_on};
use crate::frame::{DATAGRAM, Headers};
use crate::ports::Ephemeral;
use crate::stack::Host;
use crate::stats::IpCounter;
use crate::sync::{Mutex, lock};
use crate::wire::{ChecksumBy, Ports, Protocol, checksum::Pseudo, udp};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use hashbrown::HashTable;
use neap_tcp::connection::ConnectionError;
use neap_tcp::segment::Payload;
use neap_tcp::time::{Instant, Rate};
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

/// `net.core.rmem_default` and `wmem_default`.
pub(crate) const DEFAULT_BUFFER: u32 = 212_992;

/// Memory that a datagram counts besides its payload (Linux's `SKB_TRUESIZE(0)`, rounded).
const OVERHEAD: u32 = 640;

/// A datagram that waits to be received.
#[derive(Clone, Debug)]
pub struct ReceivedDatagram {
    /// Who sent it.
    pub from: SocketAddr,
    /// Own address that it was sent to.
    pub to: IpAddr,
    /// Data.
    pub data: Bytes,
}

struct UdpState {
    remote: Option<SocketAddr>,
    queue: VecDeque<ReceivedDatagram>,
    queued_bytes: u32,
    receive_buffer: u32,
    send_buffer: u32,
    max_pacing_rate: Rate,
    error: Option<SocketError>,
    /// `IP_RECVERR`, `IPV6_RECVERR`
    receive_errors: (bool, bool),
    errors: ErrorQueue,
    /// Way to the connected peer.
    path: SocketPath,
    is_closed: bool,
}

impl UdpState {
    /// Whether `IP_RECVERR` or `IPV6_RECVERR` is on for datagrams to this address.
    fn receives_errors_of(&self, remote: IpAddr) -> bool {
        let (v4, v6) = self.receive_errors;
        if remote.is_ipv4() { v4 } else { v6 }
    }
}

/// One UDP socket.
pub(crate) struct UdpSocket {
    /// Of all UDP sockets of the host, never used twice.
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
    fn new(number: u64, local: SocketAddr, reuse: bool, is_dual: bool) -> Self {
        let readiness = Arc::new(UdpReadiness::default());
        readiness.0.signal(Ready::WRITABLE);
        let account = TxAccount::new(readiness.clone().into());
        let state = UdpState {
            remote: None,
            queue: VecDeque::new(),
            queued_bytes: 0,
            receive_buffer: DEFAULT_BUFFER,
            send_buffer: DEFAULT_BUFFER,
            max_pacing_rate: Rate::UNLIMITED,
            error: None,
            receive_errors: (false, false),
            errors: ErrorQueue::default(),
            path: SocketPath::default(),
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

    /// Queues a datagram; false when the receive buffer is full.
    fn deliver(&self, datagram: ReceivedDatagram) -> bool {
        let mut state = lock(&self.state);
        let bytes = (datagram.data.len() as u32).saturating_add(OVERHEAD);
        let total = state.queued_bytes.saturating_add(bytes);
        let total_with_errors = total.saturating_add(state.errors.memory());
        if state.is_closed || (total_with_errors > state.receive_buffer && !state.queue.is_empty())
        {
            return false;
        }
        state.queued_bytes = total;
        state.queue.push_back(datagram);
        self.readiness.0.signal(Ready::READABLE);
        true
    }

    /// An ICMP error about a datagram of this socket (`__udp4_lib_err`, `__udp6_lib_err`). Who did not
    /// ask for errors hears of hard ones alone, and only where the socket is connected.
    pub(crate) fn on_report(&self, host: &Host, Report { record, is_hard, .. }: Report) {
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

    fn queue(&self, state: &mut UdpState, host: &Host, record: ErrorRecord) {
        let room = state.receive_buffer.saturating_sub(state.queued_bytes);
        if state.errors.push(record, room) {
            self.readiness.0.signal(Ready::ERROR_QUEUE);
        } else {
            host.drops.count(DropReason::ErrorQueue);
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
        let mtu = host.topology.lookup(now, remote.ip()).map_or(0, |found| found.mtu);
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

    fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let queue = core::mem::take(&mut state.queue);
        state.errors.clear();
        drop(state);
        drop(queue);
        self.readiness.0.signal(Ready::READ_CLOSED | Ready::WRITE_CLOSED | Ready::ERROR);
    }
}

/// The UDP sockets of a host by local port.
///
/// Cost of a lookup: a multiplication, one mutex, and one look at each socket on the port.
pub(crate) struct UdpTable(Mutex<UdpSockets>);

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
    pub(crate) fn new(ports: RangeInclusive<u16>, seed: u64) -> Self {
        Self(Mutex::new(UdpSockets {
            by_port: HashTable::new(),
            ephemeral: Ephemeral::new(ports, seed),
            bound: 0,
            is_shut_down: false,
        }))
    }

    /// Binds a socket; port 0 is an ephemeral one. `is_dual`: to `0.0.0.0` besides `[::]`.
    pub(crate) fn bind(
        &self,
        key: HashKey,
        mut local: SocketAddr,
        reuse: bool,
        is_dual: bool,
    ) -> Result<Arc<UdpSocket>, SocketError> {
        let mut sockets = lock(&self.0);
        if sockets.is_shut_down {
            return Err(SocketError::ShutDown);
        }
        let UdpSockets { by_port, ephemeral, bound, .. } = &mut *sockets;
        if local.port() == 0 {
            let any = FourTuple::new(local, local);
            let is_free = |port| by_port.find(hash(port), |one| one.local.port() == port).is_none();
            let port = ephemeral.choose(key.flow(&any), is_free);
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
        let socket = Arc::new(UdpSocket::new(*bound, local, reuse, is_dual));
        by_port.insert_unique(hash(local.port()), socket.clone(), |one| hash(one.local.port()));
        Ok(socket)
    }

    fn find(&self, tuple: &FourTuple) -> Option<Arc<UdpSocket>> {
        let sockets = lock(&self.0);
        let scored = sockets
            .by_port
            .iter_hash(hash(tuple.local_port))
            .map(|socket| (socket.score(tuple), socket))
            .filter(|(score, _)| *score > 0);
        scored.max_by_key(|(score, _)| *score).map(|(_, socket)| socket.clone())
    }

    /// Delivers a datagram. `None`: no socket; `Some(false)`: no room.
    pub(crate) fn deliver(&self, tuple: &FourTuple, data: Bytes) -> Option<bool> {
        let socket = self.find(tuple)?;
        let from = tuple.remote_addr();
        Some(socket.deliver(ReceivedDatagram { from, to: tuple.local, data }))
    }

    /// Tells the socket that sent a datagram of an error; whether there is one.
    pub(crate) fn on_error(&self, tuple: &FourTuple, tell: impl FnOnce(&UdpSocket)) -> bool {
        let socket = self.find(tuple);
        socket.as_deref().map(tell).is_some()
    }

    fn remove(&self, socket: &Arc<UdpSocket>) {
        let mut sockets = lock(&self.0);
        let is_it = |one: &Arc<UdpSocket>| Arc::ptr_eq(one, socket);
        if let Ok(entry) = sockets.by_port.find_entry(hash(socket.local.port()), is_it) {
            entry.remove();
        }
    }

    /// Closes all sockets and refuses more.
    pub(crate) fn shut_down(&self) {
        let mut sockets = lock(&self.0);
        sockets.is_shut_down = true;
        let all: Vec<_> = sockets.by_port.drain().collect();
        drop(sockets);
        all.iter().for_each(|socket| socket.close());
    }

    /// Sockets bound.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).by_port.len()
    }
}

/// The application's reference to a UDP socket; clones share it, the last one closes it.
#[derive(Clone, Debug)]
pub struct UdpHandle(Arc<Held>);

#[derive(Debug)]
struct Held {
    socket: Arc<UdpSocket>,
    host: Arc<Host>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.host.udp.remove(&self.socket);
        self.socket.close();
    }
}

/// A reference to a UDP socket that does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakUdpHandle(Weak<Held>);

impl WeakUdpHandle {
    /// The socket, while an application holds it.
    pub fn upgrade(&self) -> Option<UdpHandle> {
        self.0.upgrade().map(UdpHandle)
    }

    /// Tells sockets apart, as long as this reference is held.
    pub fn identity(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl UdpHandle {
    pub(crate) fn new(socket: Arc<UdpSocket>, host: Arc<Host>) -> Self {
        Self(Arc::new(Held { socket, host }))
    }

    /// The bound address; unspecified if bound to all addresses.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.socket.local
    }

    /// `SO_REUSEADDR`: whether sockets that have it too may be bound to the same address.
    pub fn set_reuse(&self, on: bool) {
        self.0.socket.reuse.store(on, Relaxed);
    }

    /// The connected peer.
    pub fn remote_addr(&self) -> Option<SocketAddr> {
        lock(&self.0.socket.state).remote
    }

    /// Sends to and receives from `remote` only; `None` ends that.
    ///
    /// # Errors
    /// [`SocketError::AddressFamily`] if the socket is bound to the other family.
    pub fn connect(&self, remote: Option<SocketAddr>) -> Result<(), SocketError> {
        if remote.is_some_and(|remote| !self.0.socket.serves(remote.ip())) {
            return Err(SocketError::AddressFamily);
        }
        let mut state = lock(&self.0.socket.state);
        state.remote = remote;
        state.path = SocketPath::default();
        Ok(())
    }

    /// Sends `data` to `to`, or to the connected peer. The datagram is queued below, or refused as
    /// a whole.
    ///
    /// # Errors
    /// `WouldBlock` when the send buffer's worth of bytes is below, or the qdisc takes no more while
    /// frames of this socket wait in it: a completion makes the socket writable; `NoBuffers` when
    /// the qdisc is full of others' frames; `MessageTooLong`;
    /// `DestinationRequired`; a pending ICMP error; no route; `Reported` with `Forbidden` for a
    /// broadcast address, since there is no `SO_BROADCAST`.
    pub fn send_to(
        &self,
        now: Instant,
        data: Bytes,
        to: Option<SocketAddr>,
    ) -> Result<(), SocketError> {
        let Held { socket, host } = &*self.0;
        let mut state = lock(&socket.state);
        if state.is_closed {
            return Err(SocketError::ShutDown);
        }
        let remote = to.or(state.remote).ok_or(SocketError::DestinationRequired)?;
        if !socket.serves(remote.ip()) {
            return Err(SocketError::AddressFamily);
        }
        if remote.port() == 0 {
            return Err(SocketError::InvalidArgument);
        }
        let most = if remote.is_ipv4() { udp::MAX_PAYLOAD_V4 } else { udp::MAX_PAYLOAD_V6 };
        if data.len() > most {
            socket.on_too_long(host, now, &mut state, remote, data.len());
            return Err(SocketError::MessageTooLong);
        }
        if let Some(error) = state.error.take() {
            socket.readiness.0.clear(Ready::ERROR);
            return Err(error);
        }
        socket.admit(u64::from(state.send_buffer))?;
        let is_connected = state.remote == Some(remote);
        if !is_connected && host.is_broadcast(remote.ip()) {
            host.source_for(now, remote.ip())?;
            return Err(SocketError::Reported(ConnectionError::Forbidden));
        }
        let mut path = match is_connected {
            true => core::mem::take(&mut state.path),
            false => SocketPath::default(),
        };
        let rate = state.max_pacing_rate;
        drop(state);
        let to = To { remote, is_connected, rate };
        let sent = socket.send(host, now, &mut path, to, data);
        if is_connected {
            lock(&socket.state).path = path;
        }
        sent
    }

    /// The next datagram.
    ///
    /// # Errors
    /// `WouldBlock`; a pending ICMP error; `ShutDown`.
    pub fn recv_from(&self) -> Result<ReceivedDatagram, SocketError> {
        let socket = &self.0.socket;
        let mut state = lock(&socket.state);
        if let Some(error) = state.error.take() {
            socket.readiness.0.clear(Ready::ERROR);
            return Err(error);
        }
        let Some(datagram) = state.queue.pop_front() else {
            let is_closed = state.is_closed;
            return Err(if is_closed { SocketError::ShutDown } else { SocketError::WouldBlock });
        };
        state.queued_bytes -= (datagram.data.len() as u32).saturating_add(OVERHEAD);
        if state.queue.is_empty() {
            socket.readiness.0.clear(Ready::READABLE);
        }
        Ok(datagram)
    }

    /// As [`recv_from`](Self::recv_from), and the datagram stays.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn peek_from(&self) -> Result<ReceivedDatagram, SocketError> {
        let socket = &self.0.socket;
        let mut state = lock(&socket.state);
        if let Some(error) = state.error.take() {
            socket.readiness.0.clear(Ready::ERROR);
            return Err(error);
        }
        let is_closed = state.is_closed;
        let none = if is_closed { SocketError::ShutDown } else { SocketError::WouldBlock };
        state.queue.front().cloned().ok_or(none)
    }

    /// `FIONREAD`: bytes of the next datagram, 0 without one.
    pub fn next_len(&self) -> u32 {
        let state = lock(&self.0.socket.state);
        state.queue.front().map_or(0, |datagram| datagram.data.len() as u32)
    }

    /// Receive and send buffer, bytes.
    pub fn buffers(&self) -> (u32, u32) {
        let state = lock(&self.0.socket.state);
        (state.receive_buffer, state.send_buffer)
    }

    /// `SO_RCVBUF` and `SO_SNDBUF`, in bytes, not doubled; `None` leaves one as it is.
    pub fn set_buffers(&self, receive: Option<u32>, send: Option<u32>) {
        let mut state = lock(&self.0.socket.state);
        state.receive_buffer = receive.unwrap_or(state.receive_buffer);
        state.send_buffer = send.unwrap_or(state.send_buffer);
    }

    /// `SO_MAX_PACING_RATE` in bytes per second, [`Rate::UNLIMITED`] for none. As in Linux it is
    /// `fq` that spaces the datagrams, by their bytes on the wire; without `fq` nothing does.
    pub fn set_max_pacing_rate(&self, rate: Rate) {
        lock(&self.0.socket.state).max_pacing_rate = rate;
    }

    /// As it was set.
    pub fn max_pacing_rate(&self) -> Rate {
        lock(&self.0.socket.state).max_pacing_rate
    }

    /// `SO_ERROR`: the pending error, once.
    pub fn take_error(&self) -> Option<SocketError> {
        let mut state = lock(&self.0.socket.state);
        self.0.socket.readiness.0.clear(Ready::ERROR);
        state.error.take()
    }

    /// `IP_RECVERR` for IPv4, `IPV6_RECVERR` for IPv6: what ICMP says of any datagram is told, connected
    /// or not, and kept in the error queue.
    pub fn set_receive_errors(&self, v4: bool, v6: bool) {
        lock(&self.0.socket.state).receive_errors = (v4, v6);
    }

    /// `MSG_ERRQUEUE`: the oldest record of the error queue. What [`take_error`](Self::take_error) says
    /// is the next record's error then, or nothing.
    pub fn next_error(&self) -> Option<ErrorRecord> {
        let socket = &self.0.socket;
        let mut state = lock(&socket.state);
        let UdpState { errors, error, .. } = &mut *state;
        let record = errors.pop(|next| *error = next.map(SocketError::from))?;
        let mut left = Ready::empty();
        left.set(Ready::ERROR, error.is_some());
        left.set(Ready::ERROR_QUEUE, !errors.is_empty());
        socket.readiness.0.clear((Ready::ERROR | Ready::ERROR_QUEUE) - left);
        if left.contains(Ready::ERROR_QUEUE) {
            // Whoever waits for edges hears of the next.
            socket.readiness.0.signal(left);
        }
        Some(record)
    }

    /// Empties the error queue, as turning the option off does.
    pub fn clear_errors(&self) {
        let mut state = lock(&self.0.socket.state);
        state.errors.clear();
        self.0.socket.readiness.0.clear(Ready::ERROR_QUEUE);
    }

    /// What the socket is ready for, and the generation to register with.
    pub fn readiness(&self) -> ReadyState {
        self.0.socket.readiness.0.state()
    }

    /// As [`TcpHandle::register`](super::tcp::TcpHandle::register).
    #[must_use = "false means: look again"]
    pub fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
        self.0.socket.readiness.0.register(seen, interest, waker)
    }

    /// Forgets a waker that was registered.
    pub fn unregister(&self, waker: &Waker) {
        self.0.socket.readiness.0.unregister(waker);
    }

    /// A reference that does not keep the socket open.
    pub fn downgrade(&self) -> WeakUdpHandle {
        WeakUdpHandle(Arc::downgrade(&self.0))
    }

    /// Bytes of this socket that the wire does not have yet.
    pub fn bytes_below(&self) -> u64 {
        self.0.socket.account.bytes()
    }
}

/// Where a datagram goes, and how.
struct To {
    remote: SocketAddr,
    is_connected: bool,
    /// `SO_MAX_PACING_RATE`.
    rate: Rate,
}

impl UdpSocket {
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
        path: &mut SocketPath,
        To { remote, is_connected, rate }: To,
        data: Bytes,
    ) -> Result<(), SocketError> {
        let local = match self.local.ip() {
            ip if ip.is_unspecified() => host.source_for(now, remote.ip())?,
            ip => ip,
        };
        let pseudo =
            Pseudo::of(local, remote.ip(), Protocol::UDP).ok_or(SocketError::AddressFamily)?;
        let ports = Ports { source: self.local.port(), destination: remote.port() };
        let bytes = (data.len() as u32).saturating_add(OVERHEAD);
        let payload = Payload::from(data);
        let mut headers = Headers::default();
        udp::emit(&mut headers, ports, &payload, pseudo, ChecksumBy::Stack);
        let mut datagram = Datagram::new(local, remote.ip(), Protocol::UDP, headers, payload);
        datagram.credit = Some(TxCredit::charge(&self.account, bytes));
        datagram.pacing_rate = rate;
        datagram.flow = if is_connected {
            DATAGRAM | self.number
        } else {
            orphan(host, &FourTuple::new(SocketAddr::new(local, self.local.port()), remote))
        };
        host.ip.add(IpCounter::UdpOutDatagrams, 1);
        let sent = send_datagram_on(host, now, 0, path, datagram);
        if sent.is_err() {
            host.ip.add(IpCounter::UdpSndbufErrors, 1);
        }
        if sent == Err(SocketError::NoBuffers) {
            // What was refused because of the socket's own frames may be tried again when one of
            // them has left.
            self.admit(0)?;
        }
        sent
    }
}
