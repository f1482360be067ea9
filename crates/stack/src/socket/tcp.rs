//! TCP sockets: a connection behind a [`HandOff`], and what may be left for its owner to do.

use super::errors::{ErrorQueue, ErrorRecord, Report};
use super::readiness::{Readiness, Ready, ReadyState};
use crate::demux::FourTuple;
use crate::drop_reason::DropReason;
use crate::egress::{Lower, SocketPath};
use crate::hand_off::{HandOff, Owner, Posted, Released, Settle};
use crate::shard::{RunCell, Work};
use crate::stack::Host;
use bytes::Bytes;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use neap_tcp::connection::{Connection, ConnectionError, ReadError, WriteError};
use neap_tcp::counters::Counter;
use neap_tcp::info::TcpInfo;
use neap_tcp::options::{OptionError, SocketOption, SocketOptions};
use neap_tcp::segment::Segment;
use neap_tcp::seq::SeqNumber;
use neap_tcp::state::State;
use neap_tcp::time::Instant;
use neap_tcp::transmit::TxBlocked;
use neap_tcp::write::WriteFlags;
use std::sync::{Arc, Weak};
use std::task::Waker;

/// Memory that a segment in the backlog counts besides its payload.
const SEGMENT_OVERHEAD: u32 = 256;

/// What could not be done while another thread owned the socket: `sk_tsq_flags` and `sk_backlog`.
#[derive(Default)]
pub(crate) struct Debt {
    work: Work,
    backlog: Vec<Segment>,
    backlog_bytes: u32,
    /// The latest ICMP error and the sequence number that it quotes.
    path_error: Option<Box<(SeqNumber, Report)>>,
}

impl Debt {
    /// Appends a segment unless that exceeds `limit` bytes; whether it was taken.
    fn push(&mut self, segment: Segment, limit: u32) -> bool {
        let bytes = segment.payload.len().saturating_add(SEGMENT_OVERHEAD);
        if self.backlog_bytes.saturating_add(bytes) > limit {
            return false;
        }
        self.backlog_bytes += bytes;
        self.backlog.push(segment);
        true
    }
}

/// What the owner of a socket has to itself.
pub(crate) struct TcpState {
    connection: Connection,
    path: SocketPath,
    /// What routers said while the connection was opened; rare, so boxed.
    errors: Option<Box<ErrorQueue>>,
    /// The socket is out of the tables; what remains serves the application's last reads.
    is_retired: bool,
}

/// What settling needs from outside.
pub(crate) struct Cx<'a> {
    pub(crate) now: Instant,
    pub(crate) host: &'a Host,
    pub(crate) socket: &'a Arc<TcpSocket>,
}

impl Settle for TcpState {
    type Debt = Debt;
    type Cx<'a> = Cx<'a>;

    fn is_settled(debt: &Debt) -> bool {
        debt.work.is_empty() && debt.backlog.is_empty() && debt.path_error.is_none()
    }

    fn settle(&mut self, debt: Debt, cx: &mut Cx<'_>) {
        for segment in debt.backlog {
            self.connection.on_segment(cx.now, segment);
        }
        if let Some(path_error) = debt.path_error {
            let (seq, report) = *path_error;
            self.on_path_error(cx, seq, report);
        }
        if debt.work.contains(Work::ABORT) {
            self.connection.abort(cx.now);
        }
        if debt.work.contains(Work::CLOSE) {
            self.connection.close(cx.now);
        }
        // Only the driver says that a deadline passed: it has taken what arrived before. A thread that
        // was kept from running would else time out with the ACKs unread.
        if debt.work.contains(Work::DEADLINE) && self.connection.deadline() <= cx.now {
            self.connection.on_deadline(cx.now);
        }
        self.finish(cx);
    }
}

impl TcpState {
    /// Sends what is owed, tells the waiters, publishes the next deadline. To be called after every
    /// change and before the socket is given up.
    pub(crate) fn finish(&mut self, cx: &Cx<'_>) {
        self.refresh_path(cx);
        let priority = self.connection.options().priority;
        let lower = &mut Lower::new(&mut self.path, cx, priority);
        if self.connection.transmit(cx.now, lower) == TxBlocked::Yield {
            cx.socket.cell.request(Work::TRANSMIT);
        }
        if !self.is_retired && self.connection.is_closed() {
            self.retire(cx);
        }
        cx.socket.backlog_limit.store(self.connection.backlog_limit(), Relaxed);
        let edges = self.connection.take_edges();
        let mut ready = self.connection.readiness();
        ready
            .set(Ready::ERROR_QUEUE, self.errors.as_ref().is_some_and(|errors| !errors.is_empty()));
        cx.socket.readiness.set(ready, edges);
        cx.socket.cell.publish(self.connection.deadline());
    }

    fn refresh_path(&mut self, cx: &Cx<'_>) {
        self.path.refresh(cx.host, cx.now, cx.socket.tuple.local, cx.socket.tuple.remote);
        if let Some(path) = self.path.take_change(cx.socket.tuple.remote) {
            self.connection.on_path_change(cx.now, path);
        }
    }

    /// Writes; what is more than one buffer leaves as it is copied.
    fn send(&mut self, cx: &Cx<'_>, data: &[u8], flags: WriteFlags) -> Result<usize, WriteError> {
        if !self.connection.is_large_write(data.len()) {
            return self.connection.write_with(cx.now, data, flags);
        }
        self.refresh_path(cx);
        let priority = self.connection.options().priority;
        let lower = &mut Lower::new(&mut self.path, cx, priority);
        self.connection.send(cx.now, data, flags, lower)
    }

    /// Takes the socket out of the tables of its host.
    fn retire(&mut self, cx: &Cx<'_>) {
        self.is_retired = true;
        match self.connection.take_time_wait() {
            Some(time_wait) => {
                cx.host.schedule(time_wait.deadline());
                let priority = self.connection.options().priority;
                cx.host.demux.enter_time_wait(cx.socket, time_wait, priority);
            }
            None => {
                cx.host.demux.remove(cx.socket);
            }
        }
        cx.host.registry.release(cx.socket.cell.id());
        cx.socket.cell.retire();
        self.path = SocketPath::default();
    }

    /// Believes an ICMP error only about a segment that is in flight (RFC 5927 section 4.1).
    fn on_path_error(
        &mut self,
        cx: &Cx<'_>,
        seq: SeqNumber,
        Report { record, is_too_big, .. }: Report,
    ) {
        if !self.connection.is_in_flight(seq) {
            cx.host.drops.count(DropReason::Icmp);
            return;
        }
        if is_too_big {
            // The route learns; `finish` tells the connection.
            let (remote, current) = (cx.socket.tuple.remote, self.path.mtu());
            cx.host.topology.on_packet_too_big(cx.now, remote, record.info, current);
            return;
        }
        let error = record.error;
        // As in Linux: of an open connection there is no record, and over IPv4 a connection that
        // opens gets one whether it asked or not (`tcp_v4_err`, `tcp_v6_err`).
        let is_asked = self.connection.options().receive_errors || cx.socket.tuple.remote.is_ipv4();
        let state = self.connection.state();
        if is_asked && matches!(state, State::SynSent | State::SynReceived) {
            let room = self.connection.receive_room();
            if self.errors.get_or_insert_default().push(record, room) {
                cx.socket.readiness.signal(Ready::ERROR_QUEUE);
            } else {
                cx.host.drops.count(DropReason::ErrorQueue);
            }
        }
        self.connection.on_unreachable(error);
        if self.connection.readiness().contains(Ready::ERROR) {
            cx.socket.readiness.signal(Ready::ERROR);
        }
    }

    /// Takes the oldest record of the error queue.
    fn next_error(&mut self, cx: &Cx<'_>) -> Option<ErrorRecord> {
        let errors = self.errors.as_mut()?;
        let record = errors.pop(|error| self.connection.set_error(error));
        if errors.is_empty() {
            self.errors = None;
        } else {
            // Whoever waits for edges hears of the next.
            cx.socket.readiness.signal(Ready::ERROR_QUEUE);
        }
        record
    }
}

/// One TCP socket, shared by the tables of its host and the handles of applications.
pub(crate) struct TcpSocket {
    tuple: FourTuple,
    state: HandOff<TcpState>,
    pub(crate) readiness: Readiness,
    pub(crate) cell: Arc<RunCell>,
    /// Memory of the backlog at the most.
    backlog_limit: AtomicU32,
}

impl core::fmt::Debug for TcpSocket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TcpSocket").field("tuple", &self.tuple).finish_non_exhaustive()
    }
}

impl TcpSocket {
    pub(crate) fn new(
        tuple: FourTuple,
        connection: Connection,
        path: SocketPath,
        cell: Arc<RunCell>,
    ) -> Self {
        let backlog_limit = AtomicU32::new(connection.backlog_limit());
        Self {
            tuple,
            state: HandOff::new(TcpState { connection, path, errors: None, is_retired: false }),
            readiness: Readiness::new(),
            cell,
            backlog_limit,
        }
    }

    /// Own and peer's address and port.
    pub(crate) fn tuple(&self) -> &FourTuple {
        &self.tuple
    }

    /// Owns the socket for `f`, then sends, settles and gives it up.
    pub(crate) fn with<R>(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        f: impl FnOnce(&mut Connection) -> R,
    ) -> R {
        self.with_state(host, now, |state, _| f(&mut state.connection))
    }

    fn with_state<R>(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        f: impl FnOnce(&mut TcpState, &Cx<'_>) -> R,
    ) -> R {
        let mut cx = Cx { now, host, socket: self };
        let mut owner = self.state.own();
        let answer = f(&mut owner, &cx);
        owner.finish(&cx);
        self.release(owner, &mut cx);
        answer
    }

    /// Looks at the connection without causing anything.
    pub(crate) fn look<R>(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        f: impl FnOnce(&mut Connection) -> R,
    ) -> R {
        let mut owner = self.state.own();
        let answer = f(&mut owner.connection);
        self.release(owner, &mut Cx { now, host, socket: self });
        answer
    }

    /// Gives the connection the segments of one receive batch; it transmits once, afterwards. If
    /// another thread owns it, they become its debt. `segments` is empty afterwards.
    pub(crate) fn receive(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        segments: &mut Vec<Segment>,
    ) {
        let mut cx = Cx { now, host, socket: self };
        if let Some(mut owner) = self.state.try_own() {
            for segment in segments.drain(..) {
                owner.connection.on_segment(now, segment);
            }
            owner.finish(&cx);
            self.release(owner, &mut cx);
            return;
        }
        let limit = self.backlog_limit.load(Relaxed);
        let mut dropped = 0;
        let leave = |debt: &mut Debt| {
            for segment in segments.drain(..) {
                dropped += u64::from(!debt.push(segment, limit));
            }
        };
        let posted = self.state.post(leave, &mut cx);
        if dropped > 0 {
            self.cell.counters().add(Counter::BacklogDrop, dropped);
            host.drops.add(DropReason::SocketBacklog, dropped);
        }
        self.after_post(posted);
    }

    /// Does `work`, or leaves it to the owner.
    pub(crate) fn visit(self: &Arc<Self>, host: &Host, now: Instant, work: Work) {
        let mut cx = Cx { now, host, socket: self };
        let posted = self.state.post(|debt| debt.work |= work, &mut cx);
        self.after_post(posted);
    }

    /// Tells the connection of an ICMP error about the segment with `seq`.
    pub(crate) fn path_error(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        seq: SeqNumber,
        report: Report,
    ) {
        let mut cx = Cx { now, host, socket: self };
        let error = Some(Box::new((seq, report)));
        let posted = self.state.post(|debt| debt.path_error = error, &mut cx);
        self.after_post(posted);
    }

    fn after_post(&self, posted: Posted) {
        match posted {
            Posted::Settled => {}
            Posted::LeftToOwner => self.cell.counters().add(Counter::Deferred, 1),
            Posted::DebtLeft => self.cell.request(Work::TRANSMIT),
        }
    }

    fn release(&self, owner: Owner<'_, TcpState>, cx: &mut Cx<'_>) {
        if owner.release(cx) == Released::DebtLeft {
            self.cell.request(Work::TRANSMIT);
        }
    }

    /// What a listing shows of this connection.
    pub(crate) fn flow(self: &Arc<Self>, host: &Host, now: Instant) -> FlowInfo {
        let (local, remote) = (self.tuple.local_addr(), self.tuple.remote_addr());
        let owner = self.state.own();
        let flow = FlowInfo {
            local,
            remote,
            state: owner.connection.state(),
            info: owner.connection.info(now),
        };
        self.release(owner, &mut Cx { now, host, socket: self });
        flow
    }

    /// Resets the connection, now or when its owner leaves.
    pub(crate) fn abandon(self: &Arc<Self>, host: &Host, now: Instant) {
        self.visit(host, now, Work::ABORT);
    }
}

/// One flow of a listing: what `ss -tin` shows, and where its bytes are.
#[derive(Clone, Debug)]
pub struct FlowInfo {
    /// Own address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// State.
    pub state: State,
    /// `TCP_INFO`; unsent, in flight and unread bytes are here, as is the memory below TCP.
    pub info: TcpInfo,
}

/// The application's reference to a TCP socket; clones share it. When the last one is dropped, the
/// connection is closed as by [`close`](Self::close).
#[derive(Clone, Debug)]
pub struct TcpHandle(Arc<Held>);

#[derive(Debug)]
struct Held {
    socket: Arc<TcpSocket>,
    host: Arc<Host>,
    is_closed: AtomicBool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !*self.is_closed.get_mut() {
            // Dropping knows no time: the driver of the shard closes.
            self.socket.cell.request(Work::CLOSE);
        }
    }
}

/// A reference to a TCP socket that does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakTcpHandle(Weak<Held>);

impl WeakTcpHandle {
    /// The socket, while an application holds it.
    pub fn upgrade(&self) -> Option<TcpHandle> {
        self.0.upgrade().map(TcpHandle)
    }

    /// Tells sockets apart, as long as this reference is held.
    pub fn identity(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl TcpHandle {
    pub(crate) fn new(socket: Arc<TcpSocket>, host: Arc<Host>) -> Self {
        Self(Arc::new(Held { socket, host, is_closed: AtomicBool::new(false) }))
    }

    fn with<R>(&self, now: Instant, f: impl FnOnce(&mut Connection) -> R) -> R {
        self.0.socket.with(&self.0.host, now, f)
    }

    fn look<R>(&self, now: Instant, f: impl FnOnce(&mut Connection) -> R) -> R {
        self.0.socket.look(&self.0.host, now, f)
    }

    /// Queues a copy of the front of `data` and sends what may go. How many bytes were taken.
    ///
    /// # Errors
    /// As [`Connection::write`]; `WouldBlock` when the send buffer is full.
    pub fn write(&self, now: Instant, data: &[u8]) -> Result<usize, WriteError> {
        self.send(now, data, WriteFlags::empty())
    }

    /// As [`write`](Self::write), with `MSG_MORE` and `MSG_EOR`. Of what is more than one buffer, the
    /// first leaves before the rest is copied.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub fn send(&self, now: Instant, data: &[u8], flags: WriteFlags) -> Result<usize, WriteError> {
        let (socket, host) = (&self.0.socket, &self.0.host);
        socket.with_state(host, now, |state, cx| state.send(cx, data, flags))
    }

    /// As [`write`](Self::write) without a copy: takes the front of `data`.
    ///
    /// # Errors
    /// As [`Connection::write_bytes`].
    pub fn write_bytes(&self, now: Instant, data: &mut Bytes) -> Result<usize, WriteError> {
        self.send_bytes(now, data, WriteFlags::empty())
    }

    /// As [`write_bytes`](Self::write_bytes), with `MSG_MORE` and `MSG_EOR`.
    ///
    /// # Errors
    /// As [`Connection::write_bytes`].
    pub fn send_bytes(
        &self,
        now: Instant,
        data: &mut Bytes,
        flags: WriteFlags,
    ) -> Result<usize, WriteError> {
        self.with(now, |connection| connection.write_bytes_with(now, data, flags))
    }

    /// Copies received bytes; `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// As [`Connection::read`]; `WouldBlock` when nothing is there.
    pub fn read(&self, now: Instant, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.with(now, |connection| connection.read(now, buf))
    }

    /// As [`read`](Self::read) for a caller that waits for `SO_RCVLOWAT` bytes.
    ///
    /// # Errors
    /// As [`Connection::read_low_water`].
    pub fn read_low_water(&self, now: Instant, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.with(now, |connection| connection.read_low_water(now, buf))
    }

    /// As [`read`](Self::read) without a copy; `Ok(None)` is the end of the stream.
    ///
    /// # Errors
    /// As [`Connection::read_bytes`].
    pub fn read_bytes(&self, now: Instant) -> Result<Option<Bytes>, ReadError> {
        self.with(now, |connection| connection.read_bytes(now))
    }

    /// As [`read`](Self::read), and the bytes stay.
    ///
    /// # Errors
    /// As [`Connection::peek`].
    pub fn peek(&self, now: Instant, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.look(now, |connection| connection.peek(buf))
    }

    /// No more data will be written: FIN follows what is queued.
    pub fn shutdown_write(&self, now: Instant) {
        self.with(now, |connection| connection.shutdown_write(now));
    }

    /// No more data will be read: reads return the end of the stream.
    pub fn shutdown_read(&self, now: Instant) {
        self.with(now, Connection::shutdown_read);
    }

    /// Closes as the linger option says; data still queued is sent by the stack.
    pub fn close(&self, now: Instant) {
        if !self.0.is_closed.swap(true, Relaxed) {
            self.with(now, |connection| connection.close(now));
        }
    }

    /// Resets the connection.
    pub fn abort(&self, now: Instant) {
        self.with(now, |connection| connection.abort(now));
    }

    /// What the socket is ready for, and the generation to register with.
    pub fn readiness(&self) -> ReadyState {
        self.0.socket.readiness.state()
    }

    /// Wakes `waker` when the socket becomes ready for any of `interest`, or that comes anew; false,
    /// and nothing registered, if the socket has become ready for something since `seen`.
    #[must_use = "false means: look again"]
    pub fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
        self.0.socket.readiness.register(seen, interest, waker)
    }

    /// Forgets a waker that was registered.
    pub fn unregister(&self, waker: &Waker) {
        self.0.socket.readiness.unregister(waker);
    }

    /// A reference that does not keep the socket open.
    pub fn downgrade(&self) -> WeakTcpHandle {
        WeakTcpHandle(Arc::downgrade(&self.0))
    }

    /// `FIONREAD`: bytes that can be read.
    pub fn unread(&self, now: Instant) -> u32 {
        self.look(now, |connection| connection.unread())
    }

    /// `SO_RCVLOWAT`, at least 1.
    pub(crate) fn receive_lowat(&self, now: Instant) -> u32 {
        self.look(now, |connection| connection.options().receive_lowat)
    }

    /// `SIOCOUTQ`: bytes written and not acknowledged.
    pub fn outq(&self, now: Instant) -> u32 {
        self.look(now, |connection| connection.outq())
    }

    /// `SIOCOUTQNSD`: of these, bytes that were not sent once.
    pub fn outq_nsd(&self, now: Instant) -> u32 {
        self.look(now, |connection| connection.outq_nsd())
    }

    /// State of the connection.
    pub fn state(&self, now: Instant) -> State {
        self.look(now, |connection| connection.state())
    }

    /// `SO_ERROR`: the pending error, once.
    pub fn take_error(&self, now: Instant) -> Option<ConnectionError> {
        self.with(now, Connection::take_error)
    }

    /// `MSG_ERRQUEUE`: the oldest record of the error queue. What [`take_error`](Self::take_error) says
    /// is the next record's error then, or nothing.
    pub fn next_error(&self, now: Instant) -> Option<ErrorRecord> {
        self.0.socket.with_state(&self.0.host, now, TcpState::next_error)
    }

    /// The error queue, which outlives the connection where the socket does; `other` is in its place.
    pub(crate) fn swap_errors(
        &self,
        now: Instant,
        other: Option<Box<ErrorQueue>>,
    ) -> Option<Box<ErrorQueue>> {
        let swap = |state: &mut TcpState, _: &Cx<'_>| core::mem::replace(&mut state.errors, other);
        self.0.socket.with_state(&self.0.host, now, swap)
    }

    /// The options as they are.
    pub fn options(&self, now: Instant) -> SocketOptions {
        self.look(now, |connection| connection.options().clone())
    }

    /// Sets an option.
    ///
    /// # Errors
    /// As [`Connection::set_option`].
    pub fn set_option(&self, now: Instant, option: SocketOption) -> Result<(), OptionError> {
        self.with(now, |connection| connection.set_option(now, option))
    }

    /// `TCP_INFO`.
    pub fn info(&self, now: Instant) -> TcpInfo {
        self.look(now, |connection| connection.info(now))
    }

    /// Own address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.socket.tuple.local_addr()
    }

    /// The peer's address and port.
    pub fn remote_addr(&self) -> SocketAddr {
        self.0.socket.tuple.remote_addr()
    }

    /// The shard whose driver serves this socket's timers and completions.
    pub fn shard(&self) -> usize {
        self.0.socket.cell.shard()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stack::{ConnectOptions, ListenOptions, Stack, StackConfig};
    use neap_tcp::time::Nanos;
    use neap_tcp::transmit::small_queue::TxAccount;

    /// A host that is connected to itself.
    struct Pair {
        stack: Stack,
        now: Instant,
        client: TcpHandle,
        server: TcpHandle,
    }

    fn pair() -> Pair {
        let stack = Stack::new(StackConfig::default()).expect("default settings");
        let now = Instant::from_nanos(1_000_000_000);
        let to = "127.0.0.1:80".parse().expect("an address");
        let listener = stack.listen(to, ListenOptions::default()).expect("nobody listens");
        let client = stack.connect(now, to, ConnectOptions::default()).expect("a free port");
        run(&stack, now);
        let (server, _) = listener.accept().expect("a connection");
        Pair { stack, now, client, server }
    }

    fn run(stack: &Stack, now: Instant) {
        while stack.poll(0, now).0 <= now {}
    }

    #[test]
    fn segments_wait_for_the_owner_and_are_settled_when_it_leaves() {
        let Pair { stack, now, client, server } = pair();
        let held = &server.0;
        let owner = held.socket.state.own();
        client.write(now, b"while you are away").expect("room");
        run(&stack, now);
        assert_eq!(owner.connection.unread(), 0);
        assert_eq!(stack.tcp_counter(Counter::Deferred), 1);
        assert!(!server.readiness().bits().contains(Ready::READABLE));
        held.socket.release(owner, &mut Cx { now, host: &held.host, socket: &held.socket });
        assert!(server.readiness().bits().contains(Ready::READABLE));
        assert_eq!(server.read(now, &mut [0; 100]), Ok(18));
    }

    #[test]
    fn a_deadline_that_passed_under_the_owner_is_met_when_it_leaves() {
        let Pair { stack, now, client, server } = pair();
        let held = &client.0;
        // Nobody acknowledges while the frames wait on the loopback.
        client.write(now, b"lost").expect("room");
        drop(held.host.loopback.pop().expect("the segment"));
        let owner = held.socket.state.own();
        let later = now + Nanos::from_secs(2);
        let (next, _) = stack.poll(0, later);
        assert!(next > later, "the driver does not spin on a timer it cannot serve");
        assert!(held.host.loopback.is_empty());
        let mut cx = Cx { now: later, host: &held.host, socket: &held.socket };
        held.socket.release(owner, &mut cx);
        assert!(!held.host.loopback.is_empty(), "sent again");
        run(&stack, later);
        assert_eq!(server.read(later, &mut [0; 100]), Ok(4));
    }

    #[test]
    fn the_backlog_of_an_owned_socket_is_bounded() {
        let Pair { stack, now, client, server } = pair();
        let held = &server.0;
        held.socket.backlog_limit.store(1000, Relaxed);
        let owner = held.socket.state.own();
        for _ in 0..10 {
            client.set_option(now, SocketOption::NoDelay(true)).expect("valid");
            client.write(now, &[1; 100]).expect("room");
            run(&stack, now);
        }
        held.socket.release(owner, &mut Cx { now, host: &held.host, socket: &held.socket });
        assert!(stack.tcp_counter(Counter::BacklogDrop) > 0);
        assert!(stack.drops().get(DropReason::SocketBacklog) > 0);
        assert!(server.read(now, &mut [0; 2000]).expect("some came") <= 400);
    }

    #[test]
    fn work_is_kicked_once_and_only_while_nobody_polls() {
        use std::sync::atomic::AtomicU32;
        struct Kicks(AtomicU32);
        impl std::task::Wake for Kicks {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Relaxed);
            }
        }
        let Pair { stack, now, client, server } = pair();
        let kicks = Arc::new(Kicks(AtomicU32::new(0)));
        stack.set_kick(0, Some(kicks.clone().into()));
        run(&stack, now);
        assert_eq!(kicks.0.load(Relaxed), 0);
        client.write(now, b"one").expect("room");
        client.write(now, b"two").expect("room");
        assert_eq!(kicks.0.load(Relaxed), 1, "until the next poll");
        assert!(stack.has_work(0));
        run(&stack, now);
        assert!(!stack.has_work(0));
        drop(client);
        assert_eq!(kicks.0.load(Relaxed), 2, "closing is work");
        run(&stack, now);
        assert_eq!(server.read(now, &mut [0; 10]), Ok(6));
        assert_eq!(server.read(now, &mut [0; 10]), Ok(0));
    }

    #[test]
    fn an_idle_connection_takes_little_besides_its_state() {
        let arcs = size_of::<TcpSocket>()
            + size_of::<Held>()
            + size_of::<RunCell>()
            + size_of::<TxAccount>()
            + 4 * size_of::<[usize; 2]>();
        let state = size_of::<TcpState>() - size_of::<Connection>();
        let tables = 9 + 32;
        assert!(arcs + state + tables < 560, "{arcs} + {state} + {tables} bytes");
    }
}
