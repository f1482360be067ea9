//! TCP sockets: a connection behind a [`HandOff`], and what may be left for its owner to do.

use super::Host;
use super::bulk::Volume;
use super::error_queue::{ErrorQueue, ErrorRecord, ErrorReport};
use super::forwarder::{Arrival, Place};
use super::ports::Claim;
use super::readiness::{Readiness, Ready};
use super::run_list::{RunCell, Work};
use super::tcp_egress::TcpEgress;
use crate::drop_reason::DropReason;
use crate::flow::FourTuple;
use crate::hand_off::{HandOff, Owner, Posted, Released, Settle};
use crate::net::Visit;
use crate::net::egress::{CachedRoute, IpOptions};
use crate::net::interface::InterfaceId;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use neap_tcp::connection::{Connection, Path, WriteError, WriteFlags};
use neap_tcp::counters::Counter;
use neap_tcp::info::{TcpInfo, Timer};
use neap_tcp::orphan::Remains;
use neap_tcp::segment::Segment;
use neap_tcp::seq::SeqNumber;
use neap_tcp::state::State;
use neap_tcp::time::Instant;
use neap_tcp::transmit::TxBlocked;
use std::sync::Arc;

/// Memory that a segment in the backlog counts besides its payload.
const SEGMENT_OVERHEAD: u32 = 256;

/// Work that is left for the owner of a socket: `sk_tsq_flags` and `sk_backlog`.
///
/// The thread that leaves it has read its clock later than the owner may have. So the debt carries
/// the time of the latest of them, and each segment that of its arrival.
#[derive(Default)]
pub(crate) struct Debt {
    work: Work,
    /// The latest time of those who left work.
    time: Instant,
    /// Segments, each with a time at which it was there.
    backlog: Vec<(Instant, Segment)>,
    backlog_bytes: u32,
    /// The latest ICMP error and the sequence number that it quotes.
    icmp_error: Option<Box<(SeqNumber, ErrorReport)>>,
    /// The device of this interface is gone.
    lost: Option<InterfaceId>,
}

impl Debt {
    /// Appends a segment that was there at `now`, unless that exceeds `limit` bytes; whether it
    /// was taken.
    fn push(&mut self, now: Instant, segment: Segment, limit: u32) -> bool {
        let bytes = segment.payload.len().saturating_add(SEGMENT_OVERHEAD);
        if self.backlog_bytes.saturating_add(bytes) > limit {
            return false;
        }
        self.backlog_bytes += bytes;
        self.backlog.push((now, segment));
        true
    }
}

/// State of a socket that only its owner sees.
pub(crate) struct TcpState {
    connection: Connection,
    /// The latest time that the connection was told of. It is told of no earlier one.
    time: Instant,
    route: CachedRoute,
    /// What the flow moves.
    volume: Volume,
    /// Frames of the flow leave by the bulk queue of a device that has one.
    is_bulk: bool,
    /// The MTU that the connection knows.
    told_mtu: u32,
    /// What routers said while the connection was opened; rare, so boxed.
    errors: Option<Box<ErrorQueue>>,
    /// Within the bounds of a forwarder, until the handshake is over.
    place: Option<Box<Place>>,
    /// The socket is out of the tables; what remains serves the application's last reads.
    is_retired: bool,
}

/// What settling needs from outside.
pub(crate) struct Context<'a> {
    /// The time that the thread brought or, once the state is owned, the connection's time.
    pub(crate) now: Instant,
    pub(crate) host: &'a Host,
    pub(crate) socket: &'a Arc<TcpSocket>,
}

impl Settle for TcpState {
    type Debt = Debt;
    type Cx<'a> = Context<'a>;

    fn is_settled(debt: &Debt) -> bool {
        let Debt { work, backlog, icmp_error, lost, .. } = debt;
        work.is_empty() && backlog.is_empty() && icmp_error.is_none() && lost.is_none()
    }

    fn settle(&mut self, debt: Debt, cx: &mut Context<'_>) {
        self.begin(cx);
        for (arrival, segment) in debt.backlog {
            self.advance(cx, arrival);
            self.on_segment(cx, segment);
        }
        self.advance(cx, debt.time);
        if let Some(icmp_error) = debt.icmp_error {
            let (seq, report) = *icmp_error;
            self.on_icmp_error(cx, seq, report);
        }
        // The route was refreshed above, so no other way is left if it was lost with the interface.
        if debt.lost.is_some_and(|interface| self.route.was_lost_with(interface)) {
            self.connection.on_network_down();
        }
        if debt.work.contains(Work::ABORT) {
            self.connection.abort();
        }
        if debt.work.contains(Work::CLOSE) {
            self.connection.close(cx.now);
        }
        // Only the driver says that a deadline passed: it has taken what arrived before its time. A
        // thread that was kept from running would else time out with the ACKs unread.
        if debt.work.contains(Work::DEADLINE) && self.connection.deadline() <= debt.time {
            self.connection.on_deadline(cx.now);
        }
        self.finish(cx);
    }
}

impl TcpState {
    /// Moves the time of the visit to the connection's time, which becomes `at`, what is known to
    /// have passed, or stays: whatever is latest.
    ///
    /// All these times have passed, so a frame is never stamped later than it leaves. And a segment
    /// is never taken at an earlier time than it came. So no round trip comes out shorter than it
    /// was. Cost: a relaxed load and three comparisons.
    fn advance(&mut self, cx: &mut Context<'_>, at: Instant) {
        cx.now = cx.socket.cell.list().passed().latest(cx.now.max(at).max(self.time));
        self.time = cx.now;
    }

    /// Takes up what has changed around the socket since it was last visited: the time, routes,
    /// path MTU, settings. To be called before anything is done with the connection. Where only
    /// the time has changed it costs two loads and some comparisons.
    fn begin(&mut self, cx: &mut Context<'_>) {
        self.advance(cx, cx.now);
        if !self.route.is_current(&cx.host.net, cx.now) {
            self.catch_up(cx);
        }
        let shard = cx.socket.cell.list().shard();
        let shard = &cx.host.shards[shard];
        let share = shard.is_behind().then(|| shard.receivers().share());
        self.connection.hold_receive_buffer(share);
    }

    #[cold]
    fn catch_up(&mut self, cx: &Context<'_>) {
        let tuple = &cx.socket.tuple;
        // The route before the settings: settings that change in between are taken up at the next
        // visit, since the route is old then.
        let route = self.route.refresh(&cx.host.net, cx.now, tuple);
        self.connection.on_way_change();
        let mtu = route.map(|route| route.mtu);
        if mtu.is_none() {
            self.connection.on_no_route();
        }
        let mtu = mtu.unwrap_or(self.told_mtu);
        self.connection.set_config(cx.host.config());
        if mtu != self.told_mtu {
            self.told_mtu = mtu;
            self.connection.on_path_change(cx.now, TcpSocket::path(tuple, mtu));
        }
    }

    /// Whether nothing that arrives is for the connection any more. When the visit ends it is out
    /// of the tables, which is what a caller that looks again relies on.
    fn is_over(&self) -> bool {
        matches!(self.connection.state(), State::Closed | State::TimeWait)
    }

    fn on_segment(&mut self, cx: &Context<'_>, segment: Segment) {
        let shard = cx.socket.cell.list().shard();
        let shard = &cx.host.shards[shard];
        self.volume.add_received(cx.now, segment.payload.len(), shard.is_behind());
        if self.volume.receives_bulk() {
            shard.receivers().count(cx.now, self.volume.counted_in());
        }
        self.connection.on_segment(cx.now, segment);
    }

    /// Sends what is owed, tells the waiters, publishes the next deadline. To be called after every
    /// change and before the socket is given up.
    fn finish(&mut self, cx: &mut Context<'_>) {
        let blocked = if self.connection.needs_way() {
            self.with_egress(cx, |connection, now, egress| connection.transmit(now, egress))
        } else {
            self.connection.rest(cx.now)
        };
        cx.socket.cell.set_wants_turn(blocked == TxBlocked::Yield);
        if self.place.is_some() && self.connection.state() != State::SynReceived {
            self.place = None;
        }
        if !self.is_retired {
            let remains = self.connection.take_remains(cx.now);
            if remains.is_some() || self.connection.is_closed() {
                self.retire(cx, remains);
            }
        }
        cx.socket.backlog_limit.store(self.connection.backlog_limit(), Relaxed);
        let edges = self.connection.take_edges();
        let mut ready = self.connection.readiness();
        let has_errors = self.errors.as_ref().is_some_and(|errors| !errors.is_empty());
        ready.set(Ready::ERROR_QUEUE, has_errors);
        cx.socket.readiness.set(ready, edges);
        cx.socket.cell.publish(self.connection.deadline());
    }

    /// Lets `f` send over the way down as it is now. The connection's time is then that of the last
    /// frame.
    fn with_egress<R>(
        &mut self,
        cx: &mut Context<'_>,
        f: impl FnOnce(&mut Connection, Instant, &mut TcpEgress<'_>) -> R,
    ) -> R {
        let TcpSocket { tuple, cell, .. } = &**cx.socket;
        let options = self.connection.options();
        let options = IpOptions {
            priority: options.priority,
            hop_limit: options.hop_limit,
            is_transparent: self.route.is_transparent(),
        };
        // What is in flight may still wait in the bulk queue. Frames by the other one would
        // overtake it.
        let stays = self.is_bulk && self.connection.has_unacked();
        // The driver of the only flow has nothing to do while a thread of the device takes what is
        // followed by a wait for an answer. To wake the thread would make the answer later.
        let is_alone = || cx.host.shards[cell.list().shard()].receivers().is_one();
        let is_turn = || self.connection.begins_turn() && is_alone();
        self.is_bulk = stays || (self.volume.is_bulk() && !is_turn());
        let (route, is_bulk) = (&mut self.route, self.is_bulk);
        let mut egress = TcpEgress::new(cx.host, cx.now, tuple, cell, route, options, is_bulk);
        let answer = f(&mut self.connection, cx.now, &mut egress);
        let (now, bytes, undeliverable) = egress.finish();
        if bytes > 0 {
            let is_behind = cx.host.shards[cell.list().shard()].is_behind();
            self.volume.add_sent(now, bytes, is_behind);
        }
        cx.host.on_undeliverable(Visit::new(now, cell.list().shard()), undeliverable);
        (cx.now, self.time) = (now, now);
        answer
    }

    /// Writes; what is more than one buffer leaves as it is copied.
    fn send(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, WriteError> {
        if !self.connection.is_large_write(data.len()) {
            return self.connection.write(data, flags);
        }
        self.with_egress(cx, |connection, now, egress| connection.send(now, data, flags, egress))
    }

    /// Writes several slices as one write: only the last of them ends it. What is more than one
    /// buffer leaves before the next slice is copied.
    fn send_vectored<B: core::ops::Deref<Target = [u8]>>(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[B],
        flags: WriteFlags,
    ) -> Result<usize, WriteError> {
        let is_filled = |slice: &B| !slice.is_empty();
        let last = slices.iter().rposition(is_filled).unwrap_or(0);
        let (mut done, mut held) = (0, 0);
        for (index, slice) in slices.iter().enumerate().take(last + 1) {
            let is_last = index == last;
            if !is_filled(slice) && !is_last {
                continue;
            }
            // The record ends with the last byte of the last slice.
            let part = if is_last { flags } else { WriteFlags::MORE };
            match self.send(cx, slice, part) {
                Ok(taken) => {
                    (done, held) = (done + taken, held + taken);
                    if taken < slice.len() {
                        break;
                    }
                }
                Err(WriteError::Failed(error)) if done > 0 => {
                    // The next call returns the error.
                    self.connection.set_error(Some(error));
                    break;
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
            if !is_last && self.connection.is_large_write(held) {
                held = 0;
                self.with_egress(cx, |connection, now, egress| connection.transmit(now, egress));
            }
        }
        Ok(done)
    }

    /// Takes the socket out of the tables of its host, which keep what remains of it.
    fn retire(&mut self, cx: &Context<'_>, remains: Option<Remains>) {
        self.is_retired = true;
        let time_wait = || self.connection.take_time_wait().map(Remains::TimeWait);
        match remains.or_else(time_wait) {
            Some(remains) => {
                let deadline = remains.deadline();
                let options = IpOptions {
                    priority: self.connection.options().priority,
                    hop_limit: 0,
                    is_transparent: self.route.is_transparent(),
                };
                cx.host.demux.enter_remains(cx.socket, remains, options);
                // The entry comes first: a driver that is at work for an earlier time would not
                // find it, and the time would be lost.
                cx.host.net.housekeeping.schedule(deadline);
            }
            None => {
                cx.host.demux.remove(cx.socket);
            }
        }
        cx.host.registry.release(cx.socket.cell.id());
        cx.socket.cell.retire();
        cx.host.on_connection_end();
        self.route = CachedRoute::default();
    }

    /// Believes an ICMP error only about a segment that is in flight (RFC 5927 section 4.1).
    fn on_icmp_error(
        &mut self,
        cx: &mut Context<'_>,
        seq: SeqNumber,
        ErrorReport { record, is_too_big, is_message, .. }: ErrorReport,
    ) {
        if !self.connection.is_in_flight(seq) {
            cx.host.net.counters.drops.add(DropReason::Icmp, is_message.into());
            return;
        }
        if is_too_big {
            let (remote, topology) = (cx.socket.tuple.remote, &cx.host.net.topology);
            let current = self.route.get().map_or(0, |route| route.mtu);
            topology.on_packet_too_big(cx.now, remote, record.info, current);
            self.begin(cx);
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
                cx.host.net.counters.drops.count(DropReason::ErrorQueue);
            }
        }
        self.connection.on_unreachable(error);
        if self.connection.readiness().contains(Ready::ERROR) {
            cx.socket.readiness.signal(Ready::ERROR);
        }
    }

    /// Takes the oldest record of the error queue.
    fn next_error(&mut self, cx: &mut Context<'_>) -> Option<ErrorRecord> {
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
    /// A socket around `connection`, which knows `told_mtu` as the MTU of its path. `claim` says
    /// how it has its port.
    pub(crate) fn new(
        (tuple, claim): (FourTuple, Claim),
        connection: Connection,
        route: CachedRoute,
        told_mtu: u32,
        cell: Arc<RunCell>,
    ) -> Self {
        let backlog_limit = AtomicU32::new(connection.backlog_limit());
        let time = Instant::ZERO;
        let state = TcpState {
            connection,
            time,
            route,
            volume: Volume::default(),
            is_bulk: false,
            told_mtu,
            errors: None,
            place: None,
            is_retired: false,
        };
        cell.store_claim(claim);
        let (state, readiness) = (HandOff::new(state), Readiness::new());
        Self { tuple, state, readiness, cell, backlog_limit }
    }

    /// What a connection is to know of a path of this MTU.
    pub(crate) fn path(tuple: &FourTuple, mtu: u32) -> Path {
        Path { mtu, ip_header: if tuple.remote.is_ipv4() { 20 } else { 40 } }
    }

    /// Own and peer's address and port.
    pub(crate) fn tuple(&self) -> &FourTuple {
        &self.tuple
    }

    /// Owns the socket for `f`, then sends, settles and gives it up. `f` gets the connection and
    /// its time, which is not before `now`.
    pub(crate) fn with<R>(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        f: impl FnOnce(&mut Connection, Instant) -> R,
    ) -> R {
        self.with_state(host, now, |state, cx| f(&mut state.connection, cx.now))
    }

    /// As [`with`](Self::with), with all of the socket's state.
    fn with_state<R>(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        f: impl FnOnce(&mut TcpState, &mut Context<'_>) -> R,
    ) -> R {
        let mut cx = Context { now, host, socket: self };
        let mut owner = self.state.own();
        owner.begin(&mut cx);
        let answer = f(&mut owner, &mut cx);
        owner.finish(&mut cx);
        self.release(owner, &mut cx);
        answer
    }

    /// Looks at the connection without causing anything. `f` gets the connection and a time, which
    /// is neither before `now` nor before the connection's.
    pub(crate) fn look<R>(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        f: impl FnOnce(&mut Connection, Instant) -> R,
    ) -> R {
        let mut owner = self.state.own();
        let time = now.max(owner.time);
        let answer = f(&mut owner.connection, time);
        self.release(owner, &mut Context { now, host, socket: self });
        answer
    }

    /// Gives the connection the segments of one receive batch; it transmits once, afterwards. If
    /// another thread owns it, they become its debt. `segments` is empty afterwards. Those that
    /// follow the end of the connection are for others: they are appended to `late`, as what
    /// arrived with the first of the batch.
    pub(crate) fn receive(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        arrival: Arrival,
        segments: &mut Vec<Segment>,
        late: &mut Vec<(FourTuple, Segment, Arrival)>,
    ) {
        let mut cx = Context { now, host, socket: self };
        if let Some(mut owner) = self.state.try_own() {
            owner.begin(&mut cx);
            let mut segments = segments.drain(..);
            while !owner.is_over()
                && let Some(segment) = segments.next()
            {
                owner.on_segment(&cx, segment);
            }
            owner.finish(&mut cx);
            self.release(owner, &mut cx);
            late.extend(segments.map(|segment| (self.tuple, segment, arrival)));
            return;
        }
        let limit = self.backlog_limit.load(Relaxed);
        let mut dropped = 0;
        let leave = |debt: &mut Debt| {
            debt.time = debt.time.max(now);
            for segment in segments.drain(..) {
                dropped += u64::from(!debt.push(now, segment, limit));
            }
        };
        let posted = self.state.post(leave, &mut cx);
        if dropped > 0 {
            self.cell.list().counters().add(Counter::BacklogDrop, dropped);
            host.net.counters.drops.add(DropReason::SocketBacklog, dropped);
        }
        self.after_post(posted);
    }

    /// Does `work`, or leaves it to the owner.
    pub(crate) fn visit(self: &Arc<Self>, host: &Host, now: Instant, work: Work) {
        self.post(host, now, |debt| debt.work |= work);
    }

    /// Writes and sends, as [`Connection::send`] says.
    pub(crate) fn send(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize, WriteError> {
        self.with_state(host, now, |state, cx| state.send(cx, data, flags))
    }

    /// Writes several slices as one write, and sends.
    pub(crate) fn send_vectored<B: core::ops::Deref<Target = [u8]>>(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        slices: &[B],
        flags: WriteFlags,
    ) -> Result<usize, WriteError> {
        self.with_state(host, now, |state, cx| state.send_vectored(cx, slices, flags))
    }

    /// Sends what a connection owes that was just made. It keeps the place until its handshake is
    /// over.
    pub(crate) fn begin_in(self: &Arc<Self>, host: &Host, now: Instant, place: Option<Box<Place>>) {
        self.with_state(host, now, |state, _| state.place = place);
    }

    /// Takes the oldest record of the error queue.
    pub(crate) fn next_error(self: &Arc<Self>, host: &Host, now: Instant) -> Option<ErrorRecord> {
        self.with_state(host, now, TcpState::next_error)
    }

    /// Puts another error queue in the place of the present one, which is returned.
    pub(crate) fn swap_errors(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        other: Option<Box<ErrorQueue>>,
    ) -> Option<Box<ErrorQueue>> {
        self.with_state(host, now, |state, _| core::mem::replace(&mut state.errors, other))
    }

    /// Tells the connection of an ICMP error about the segment with `seq`.
    pub(crate) fn on_icmp_error(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        seq: SeqNumber,
        report: ErrorReport,
    ) {
        let error = Some(Box::new((seq, report)));
        self.post(host, now, |debt| debt.icmp_error = error);
    }

    /// Tells the connection that the device of an interface is gone.
    pub(crate) fn on_device_gone(
        self: &Arc<Self>,
        host: &Host,
        now: Instant,
        interface: InterfaceId,
    ) {
        self.post(host, now, |debt| debt.lost = Some(interface));
    }

    /// Does what `add` asks for, or leaves it to the owner with the time.
    fn post(self: &Arc<Self>, host: &Host, now: Instant, add: impl FnOnce(&mut Debt)) {
        let add = |debt: &mut Debt| {
            debt.time = debt.time.max(now);
            add(debt);
        };
        let posted = self.state.post(add, &mut Context { now, host, socket: self });
        self.after_post(posted);
    }

    fn after_post(&self, posted: Posted) {
        match posted {
            Posted::Settled => {}
            Posted::LeftToOwner => self.cell.list().counters().add(Counter::Deferred, 1),
            Posted::DebtLeft => self.cell.request(Work::TRANSMIT),
        }
    }

    fn release(&self, owner: Owner<'_, TcpState>, cx: &mut Context<'_>) {
        if owner.release(cx) == Released::DebtLeft {
            self.cell.request(Work::TRANSMIT);
        }
    }

    /// What a listing shows of this connection.
    pub(crate) fn flow(self: &Arc<Self>, host: &Host, now: Instant) -> FlowInfo {
        let (local, remote) = (self.tuple.local_name(), self.tuple.remote_addr());
        let owner = self.state.own();
        let now_there = now.max(owner.time);
        let flow = FlowInfo {
            id: self.cell.id().0,
            local,
            remote,
            state: owner.connection.state(),
            timer: owner.connection.timer(now_there),
            info: owner.connection.info(now_there),
        };
        self.release(owner, &mut Context { now, host, socket: self });
        flow
    }

    /// Resets the connection, now or when its owner leaves.
    pub(crate) fn abandon(self: &Arc<Self>, host: &Host, now: Instant) {
        self.visit(host, now, Work::ABORT);
    }
}

/// Figures of one flow in a listing: what `ss -tin` shows, and where its bytes are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FlowInfo {
    /// Number of the socket, never used twice in a host.
    pub id: u64,
    /// Address and port of this end.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// State of the connection.
    pub state: State,
    /// What it waits for by time.
    pub timer: Option<Timer>,
    /// `TCP_INFO`, with the unsent, in-flight and unread bytes and the memory below TCP.
    pub info: TcpInfo,
}

impl core::fmt::Display for FlowInfo {
    /// Prints the addresses and the figures, two lines as those of `ss -tin`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {}\n\t {}", self.local, self.remote, self.info)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::host::StackConfig;
    use crate::host::opening::{ConnectOptions, ListenOptions};
    use crate::host::shard::Call;
    use neap_tcp::connection::ReadError;
    use neap_tcp::options::SocketOption;
    use neap_tcp::time::Nanos;
    use neap_tcp::transmit::small_queue::TxAccount;

    /// A host that is connected to itself.
    struct Pair {
        host: Host,
        now: Instant,
        client: Arc<TcpSocket>,
        server: Arc<TcpSocket>,
    }

    /// The round trip of the client's handshake.
    const HANDSHAKE: Nanos = Nanos::from_micros(100);

    fn pair() -> Pair {
        pair_on(0)
    }

    /// A pair whose client is on this shard. What comes over the loopback comes to shard 0.
    fn pair_on(shard: usize) -> Pair {
        let host = Host::new(StackConfig { shards: shard + 1, ..StackConfig::default() });
        let start = Instant::from_nanos(1_000_000_000);
        let to = "127.0.0.1:80".parse().expect("an address");
        let listener = host.listen(to, ListenOptions::default(), None).expect("nobody listens");
        let connect =
            || host.connect(start, to, ConnectOptions::default(), false).expect("a free port");
        let client = loop {
            let client = connect();
            if client.cell.list().shard() == shard {
                break client;
            }
            client.abandon(&host, start);
        };
        let now = start + HANDSHAKE;
        run(&host, now);
        let server = listener.accept().expect("a connection");
        Pair { host, now, client, server }
    }

    fn run(host: &Host, now: Instant) {
        while host.shards[0].poll(host, now, Call::Any).0 <= now {}
    }

    impl Pair {
        fn write(&self, data: &[u8]) {
            let sent = self.client.send(&self.host, self.now, data, WriteFlags::empty());
            assert_eq!(sent, Ok(data.len()));
        }

        fn read(&self, now: Instant) -> Result<usize, ReadError> {
            self.server
                .with(&self.host, now, |connection, now| connection.read(now, &mut [0; 2000]))
        }

        fn release(&self, socket: &Arc<TcpSocket>, now: Instant, owner: Owner<'_, TcpState>) {
            socket.release(owner, &mut Context { now, host: &self.host, socket });
        }

        fn shortest_round_trip(&self) -> Nanos {
            self.client
                .look(&self.host, self.now, |connection, now| connection.info(now).min_rtt)
                .expect("a round trip")
        }

        fn counter(&self, counter: Counter) -> u64 {
            self.host.shards[0].counters().get(counter)
        }
    }

    #[test]
    fn segments_wait_for_the_owner_and_are_settled_when_it_leaves() {
        let pair = pair();
        let Pair { host, now, server, .. } = &pair;
        let owner = server.state.own();
        pair.write(b"while you are away");
        run(host, *now);
        assert_eq!(owner.connection.unread(), 0);
        assert_eq!(pair.counter(Counter::Deferred), 1);
        assert!(!server.readiness.state().bits().contains(Ready::READABLE));
        pair.release(server, *now, owner);
        assert!(server.readiness.state().bits().contains(Ready::READABLE));
        assert_eq!(pair.read(*now), Ok(18));
    }

    #[test]
    fn a_deadline_that_passed_under_the_owner_is_met_when_it_leaves() {
        let pair = pair();
        let Pair { host, now, client, .. } = &pair;
        // Nobody acknowledges while the frames wait on the loopback.
        pair.write(b"lost");
        drop(host.net.take_looped_back().expect("the segment"));
        let owner = client.state.own();
        let later = *now + Nanos::from_secs(2);
        let (next, _) = host.shards[0].poll(host, later, Call::Any);
        assert!(next > later, "the driver does not spin on a timer it cannot serve");
        assert!(!host.net.has_looped_back());
        pair.release(client, *now, owner);
        assert!(host.net.has_looped_back(), "sent again");
        run(host, later);
        assert_eq!(pair.read(later), Ok(4));
    }

    #[test]
    fn an_ack_that_comes_under_the_owner_counts_from_its_arrival() {
        let pair = pair();
        let Pair { host, now, client, .. } = &pair;
        assert_eq!(pair.shortest_round_trip(), HANDSHAKE);
        pair.write(b"there and back");
        // The call that owns the socket began when the frame had just left.
        let owner = client.state.own();
        let arrival = *now + Nanos::from_micros(60);
        run(host, arrival);
        assert_eq!(pair.counter(Counter::Deferred), 1);
        pair.release(client, *now, owner);
        assert_eq!(pair.shortest_round_trip(), Nanos::from_micros(60));
    }

    #[test]
    fn each_segment_that_was_left_counts_from_its_own_arrival() {
        // The driver of the client's own shard brings no time here.
        let pair = pair_on(1);
        let Pair { host, now, client, .. } = &pair;
        pair.write(b"there and back");
        let owner = client.state.own();
        run(host, *now + Nanos::from_micros(60));
        client.visit(host, *now + Nanos::from_micros(90), Work::TRANSMIT);
        pair.release(client, *now, owner);
        assert_eq!(pair.shortest_round_trip(), Nanos::from_micros(60));
    }

    #[test]
    fn the_frames_of_a_long_call_leave_at_the_time_that_the_driver_knows() {
        let pair = pair();
        let Pair { host, now, client, .. } = &pair;
        let later = *now + Nanos::from_millis(5);
        let told = client.with(host, *now, |connection, now| {
            connection.write(b"after a long copy", WriteFlags::empty()).expect("room");
            host.shards[0].list.passed().tell(later);
            now
        });
        assert_eq!(told, *now);
        run(host, later + Nanos::from_micros(60));
        assert_eq!(pair.shortest_round_trip(), Nanos::from_micros(60));
    }

    #[test]
    fn the_time_of_a_connection_never_runs_backwards() {
        let pair = pair();
        let Pair { host, now, client, .. } = &pair;
        let later = *now + Nanos::from_millis(5);
        let told = |at| client.with(host, at, |_, now| now);
        assert_eq!(told(later), later, "one thread");
        assert_eq!(told(*now), later, "another that waited for the socket");
        run(host, later + Nanos::from_millis(1));
        assert_eq!(told(later), later + Nanos::from_millis(1), "what the driver knows");
    }

    #[test]
    fn the_backlog_of_an_owned_socket_is_bounded() {
        let pair = pair();
        let Pair { host, now, client, server } = &pair;
        server.backlog_limit.store(1000, Relaxed);
        let owner = server.state.own();
        for _ in 0..10 {
            let option = SocketOption::NoDelay(true);
            client
                .with(host, *now, |connection, now| connection.set_option(now, option))
                .expect("valid");
            pair.write(&[1; 100]);
            run(host, *now);
        }
        pair.release(server, *now, owner);
        assert!(pair.counter(Counter::BacklogDrop) > 0);
        assert!(host.net.counters.drops.get(DropReason::SocketBacklog) > 0);
        assert!(pair.read(*now).expect("some came") <= 400);
    }

    #[test]
    fn an_idle_connection_takes_little_besides_its_state() {
        let arcs = size_of::<TcpSocket>()
            + size_of::<RunCell>()
            + size_of::<TxAccount>()
            + 3 * size_of::<[usize; 2]>();
        let state = size_of::<TcpState>() - size_of::<Connection>();
        let tables = 9 + 32;
        assert!(arcs + state + tables < 520, "{arcs} + {state} + {tables} bytes");
    }
}
