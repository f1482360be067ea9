//! Listeners: a bounded SYN queue of [`Request`]s, SYN cookies beyond it, a bounded accept queue.
//!
//! Cost: a SYN takes the listener's mutex and one probe of a table keyed like the demultiplexer's;
//! a half-open connection is under 200 bytes. SYN-ACK timers need one deadline per listener:
//! requests that were asked equally often wait equally long, so each such group is a queue in order
//! of time.

use super::error::SocketError;
use super::listed::{BucketInfo, ListenerInfo};
use super::readiness::{Readiness, Ready};
use super::run_list::RunCell;
use super::tcp::TcpSocket;
use crate::flow::{FlowKey, FourTuple, overlap};
use crate::net::egress::IpOptions;
use crate::sync::{Mutex, MutexGuard, lock};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};
use hashbrown::HashTable;
use neap_tcp::config::Config;
use neap_tcp::connection::ConnectionError;
use neap_tcp::counters::{Counter, Counters};
use neap_tcp::handshake::{Accepted, Offer, Request, RequestVerdict, SynCookies};
use neap_tcp::info::{Timer, TimerKind};
use neap_tcp::isn::Secrets;
use neap_tcp::options::{OptionError, SocketOption, SocketOptions};
use neap_tcp::segment::{Flags, Segment};
use neap_tcp::seq::SeqNumber;
use neap_tcp::state::State;
use neap_tcp::time::Instant;
use slab::Slab;
use std::collections::VecDeque;
use std::sync::Arc;

/// From here on all SYN-ACK timeouts are as long as the longest.
const LEVELS: usize = 8;
/// The queue of half-open connections counts as at least this long: four of them always have the
/// whole time.
const LEAST_BACKLOG: usize = 8;
/// A SYN-ACK is sent again so often at least, however many half-open connections wait.
const LEAST_RETRIES: u32 = 2;

/// What a listener needs of its host to judge a segment.
pub(crate) struct ListenContext<'a> {
    pub(crate) now: Instant,
    pub(crate) key: FlowKey,
    pub(crate) config: Arc<Config>,
    pub(crate) counters: &'a Counters,
    pub(crate) secrets: &'a Secrets,
    pub(crate) cookies: &'a SynCookies,
    /// Largest IP packet towards the peer, bytes.
    pub(crate) mtu: u32,
    /// The memory of all connections is used up: nobody else gets in.
    pub(crate) is_exhausted: bool,
}

/// Action of the host after a listener has judged a segment. Nothing was sent yet.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Do nothing. The segment is dropped without being bad.
    Ignore,
    /// Drop the segment for lack of room.
    Full,
    /// Drop the segment, which is no part of a handshake, or came while its connection was made.
    NoHandshake,
    /// Send this segment.
    Send(Segment),
    /// Send the SYN-ACK of a half-open connection again.
    Repeat(Segment),
    /// Send the reset that RFC 9293 section 3.10.7.2 asks for.
    Reset,
    /// Make the connection, give it the same segment, and queue it with [`Listener::push`].
    Establish(Accepted),
}

struct Entry {
    tuple: FourTuple,
    request: Request,
    serial: u32,
}

/// Options that accepted sockets inherit.
#[derive(Clone, Debug)]
pub(crate) struct Inherited {
    v4: Arc<SocketOptions>,
    v6: Arc<SocketOptions>,
}

impl Inherited {
    /// Options of both families; `v4` are those of IPv4 where they differ.
    pub(crate) fn new(options: SocketOptions, v4: Option<SocketOptions>) -> Self {
        let v6 = Arc::new(options);
        let v4 = v4.map_or_else(|| v6.clone(), Arc::new);
        Self { v4, v6 }
    }

    fn of(&self, local: IpAddr) -> &Arc<SocketOptions> {
        if local.is_ipv4() { &self.v4 } else { &self.v6 }
    }

    fn set(&mut self, option: &SocketOption, config: &Config) -> Result<(), OptionError> {
        let is_shared = Arc::ptr_eq(&self.v4, &self.v6);
        Arc::make_mut(&mut self.v6).set(option, config)?;
        if is_shared {
            self.v4 = self.v6.clone();
            return Ok(());
        }
        Arc::make_mut(&mut self.v4).set(option, config)
    }

    fn hop_limits(&self) -> [u8; 2] {
        [self.v4.hop_limit, self.v6.hop_limit]
    }
}

struct Backlog {
    requests: Slab<Entry>,
    by_flow: HashTable<u32>,
    /// Requests whose SYN-ACK was not sent again for want of an answer (`qlen_young`).
    young: usize,
    timers: [VecDeque<(Instant, u32, u32)>; LEVELS],
    next_serial: u32,
    /// From then on no cookie that was sent is good.
    cookies_until: Instant,
    accept: VecDeque<Arc<TcpSocket>>,
    /// Completed handshakes whose connection is not in `accept` yet: one for each thread that makes
    /// one now.
    arriving: Vec<FourTuple>,
    options: Inherited,
    /// Told to the next call that finds no connection.
    error: Option<SocketError>,
    is_closed: bool,
}

/// A listening socket.
pub(crate) struct Listener {
    local: SocketAddr,
    /// `[::]` that is `0.0.0.0` as well.
    is_dual: bool,
    /// Accept queue at the most: `min(backlog, somaxconn)`; as in Linux one more fits.
    max_accept: AtomicUsize,
    /// Hop limits of what it sends itself, for IPv4 and for IPv6; 0 is the default.
    hop_limits: [AtomicU8; 2],
    /// `SO_REUSEADDR`, which accepted sockets inherit.
    reuse_address: AtomicBool,
    backlog: Mutex<Backlog>,
    pub(crate) readiness: Readiness,
    pub(crate) cell: Arc<RunCell>,
}

impl core::fmt::Debug for Listener {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Listener").field("local", &self.local).finish_non_exhaustive()
    }
}

impl Listener {
    pub(crate) fn new(
        local: SocketAddr,
        is_dual: bool,
        max_accept: usize,
        reuse_address: bool,
        options: Inherited,
        cell: Arc<RunCell>,
    ) -> Self {
        let reuse_address = AtomicBool::new(reuse_address);
        let hop_limits = options.hop_limits().map(AtomicU8::new);
        let backlog = Backlog {
            requests: Slab::new(),
            by_flow: HashTable::new(),
            young: 0,
            timers: core::array::from_fn(|_| VecDeque::new()),
            next_serial: 0,
            cookies_until: Instant::ZERO,
            accept: VecDeque::new(),
            arriving: Vec::new(),
            options,
            error: None,
            is_closed: false,
        };
        let readiness = Readiness::new();
        let max_accept = AtomicUsize::new(max_accept);
        let backlog = Mutex::new(backlog);
        Self { local, is_dual, max_accept, hop_limits, reuse_address, backlog, readiness, cell }
    }

    /// `SO_REUSEADDR`, which accepted sockets inherit.
    pub(crate) fn reuse_address(&self) -> bool {
        self.reuse_address.load(Relaxed)
    }

    /// Sets `SO_REUSEADDR`.
    pub(crate) fn set_reuse(&self, on: bool) {
        self.reuse_address.store(on, Relaxed);
    }

    /// What a listing says of it.
    pub(crate) fn listed(&self) -> ListenerInfo {
        ListenerInfo {
            id: self.cell.id().0,
            local: self.local,
            is_dual: self.is_dual,
            queued: self.lock().accept.len(),
            max_queued: self.max_queued(),
        }
    }

    /// What a listing says of its half-open connections.
    pub(crate) fn half_open(&self, now: Instant) -> Vec<BucketInfo> {
        let backlog = self.lock();
        let requests = backlog.requests.iter().map(|(_, Entry { tuple, request, .. })| {
            let left = request.deadline().since(now);
            let timer = Timer::new(TimerKind::Retransmit, left, request.timeouts().into());
            BucketInfo {
                local: tuple.local_name(),
                remote: tuple.remote_addr(),
                state: State::SynReceived,
                timer: Some(timer),
            }
        });
        requests.collect()
    }

    /// Half-open connections, and connections that wait to be accepted.
    pub(crate) fn queued(&self) -> (usize, usize) {
        let backlog = self.lock();
        (backlog.requests.len(), backlog.accept.len())
    }

    /// The bound address.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether it listens on `[::]` for IPv4 too.
    pub(crate) fn is_dual(&self) -> bool {
        self.is_dual
    }

    /// Whether connections to `address` are for this listener.
    pub(crate) fn meets(&self, address: SocketAddr) -> bool {
        let is_mapped = address.is_ipv4() && address.port() == self.local.port();
        overlap(self.local, address) || self.is_dual && is_mapped
    }

    fn lock(&self) -> MutexGuard<'_, Backlog> {
        lock(&self.backlog)
    }

    /// Connections that may wait to be accepted.
    pub(crate) fn max_queued(&self) -> usize {
        self.max_accept.load(Relaxed)
    }

    pub(crate) fn set_max_queued(&self, most: usize) {
        self.max_accept.store(most, Relaxed);
    }

    /// Replaces the options that accepted sockets inherit.
    pub(crate) fn set_options(&self, options: Inherited) {
        self.inherit(&mut self.lock(), options);
    }

    /// Sets an option that accepted sockets inherit, of both families.
    pub(crate) fn set_option(
        &self,
        option: &SocketOption,
        config: &Config,
    ) -> Result<(), OptionError> {
        let mut backlog = self.lock();
        let mut options = backlog.options.clone();
        options.set(option, config)?;
        self.inherit(&mut backlog, options);
        Ok(())
    }

    fn inherit(&self, backlog: &mut Backlog, options: Inherited) {
        for (now, next) in self.hop_limits.iter().zip(options.hop_limits()) {
            now.store(next, Relaxed);
        }
        backlog.options = options;
    }

    /// Options that sockets inherit which are accepted on the address `local`.
    pub(crate) fn options(&self, local: IpAddr) -> Arc<SocketOptions> {
        self.lock().options.of(local).clone()
    }

    /// Options of a segment that the listener sends from `local`. A load. It may leave from the
    /// address that the peer's SYN was for, whosever that is.
    pub(crate) fn ip_options(&self, local: IpAddr, is_foreign: bool) -> IpOptions {
        let hop_limit = self.hop_limits[usize::from(local.is_ipv6())].load(Relaxed);
        IpOptions { priority: 0, hop_limit, is_transparent: is_foreign }
    }

    /// Judges a segment to this listener that belongs to no connection. `iss` is the initial
    /// sequence number to use if the flow was in TIME_WAIT until now.
    pub(crate) fn on_segment(
        &self,
        cx: &ListenContext<'_>,
        tuple: &FourTuple,
        segment: &Segment,
        iss: Option<SeqNumber>,
    ) -> Answer {
        let hash = cx.key.hash(tuple);
        let mut backlog = self.lock();
        if backlog.is_closed {
            return Answer::Reset;
        }
        // The connection may not be in the table yet. What is dropped here comes again.
        if backlog.arriving.contains(tuple) {
            return Answer::NoHandshake;
        }
        let is_full = backlog.accept.len() + backlog.arriving.len() > self.max_accept.load(Relaxed)
            || cx.is_exhausted;
        let answer = match backlog.find(hash, tuple) {
            Some(slot) => backlog.on_request_segment(cx, slot, segment, is_full),
            None => backlog.on_new_segment(cx, tuple, segment, iss, is_full),
        };
        let due = backlog.deadline();
        drop(backlog);
        self.cell.publish(due);
        answer
    }

    /// A router cannot get SYN-ACKs to the peer of a half-open connection: it is forgotten, if the
    /// message quotes one of them (`tcp_req_err`). Whether there is such a connection.
    pub(crate) fn on_unreachable(
        &self,
        cx: &ListenContext<'_>,
        tuple: &FourTuple,
        seq: SeqNumber,
    ) -> bool {
        let mut backlog = self.lock();
        let Some(slot) = backlog.find(cx.key.hash(tuple), tuple) else { return false };
        let is_known = backlog.requests[slot].request.iss() == seq;
        if is_known {
            backlog.forget(cx.key, slot);
            cx.counters.add(Counter::ListenDrops, 1);
        }
        is_known
    }

    /// Queues a connection that was made for [`Answer::Establish`]; false if the listener closed
    /// meanwhile: the connection is to be reset.
    pub(crate) fn push(&self, socket: Arc<TcpSocket>) -> bool {
        let mut backlog = self.lock();
        backlog.arriving.retain(|tuple| tuple != socket.tuple());
        if backlog.is_closed {
            return false;
        }
        backlog.accept.push_back(socket);
        let woken = self.readiness.gain(Ready::READABLE, 1);
        drop(backlog);
        woken.wake();
        true
    }

    /// Gives up the place of a connection that could not be made.
    pub(crate) fn forget_arriving(&self, tuple: &FourTuple) {
        self.lock().arriving.retain(|arriving| arriving != tuple);
    }

    /// The oldest connection that waits to be accepted.
    pub(crate) fn accept(&self) -> Result<Arc<TcpSocket>, SocketError> {
        let mut backlog = self.lock();
        let socket = backlog.accept.pop_front();
        if backlog.accept.is_empty() {
            self.readiness.clear(Ready::READABLE);
        }
        if let Some(socket) = socket {
            return Ok(socket);
        }
        if backlog.is_closed {
            return Err(SocketError::ShutDown);
        }
        Err(self.told(&mut backlog).unwrap_or(SocketError::WouldBlock))
    }

    /// The pending error, once.
    pub(crate) fn take_error(&self) -> Option<SocketError> {
        self.told(&mut self.lock())
    }

    /// Takes the error under the lock of the backlog, so that the bit and the error agree. The end
    /// of the stack keeps the bit.
    fn told(&self, backlog: &mut Backlog) -> Option<SocketError> {
        let error = backlog.error.take();
        if error.is_some() && !backlog.is_closed {
            self.readiness.clear(Ready::ERROR);
        }
        error
    }

    /// No device is left by which anybody could reach the listener: the next call that finds no
    /// connection fails.
    pub(crate) fn on_network_down(&self) {
        let mut backlog = self.lock();
        backlog.error = Some(ConnectionError::NetworkDown.into());
        // Under the lock of the backlog, so that the bit and the error agree.
        let woken = self.readiness.gain(Ready::ERROR, 1);
        drop(backlog);
        woken.wake();
    }

    /// Retransmits what is due through `send`, and forgets who never answered. Returns how many
    /// timers have expired.
    pub(crate) fn on_deadline(
        &self,
        now: Instant,
        key: FlowKey,
        config: &Config,
        mut send: impl FnMut(&FourTuple, Segment),
    ) -> u64 {
        let mut due = Vec::new();
        let mut backlog = self.lock();
        let expired = backlog.expire(now, key, config, &mut due);
        let next = backlog.deadline();
        drop(backlog);
        self.cell.publish(next);
        for (tuple, segment) in due {
            send(&tuple, segment);
        }
        expired
    }

    /// Forgets all requests and refuses more; the connections that nobody accepted are to be reset.
    pub(crate) fn close(&self) -> VecDeque<Arc<TcpSocket>> {
        let mut backlog = self.lock();
        backlog.is_closed = true;
        backlog.requests = Slab::new();
        backlog.by_flow = HashTable::new();
        backlog.young = 0;
        backlog.timers.iter_mut().for_each(|level| *level = VecDeque::new());
        let children = core::mem::take(&mut backlog.accept);
        drop(backlog);
        self.readiness.signal(Ready::READ_CLOSED | Ready::ERROR);
        children
    }
}

impl Backlog {
    fn find(&self, hash: u64, tuple: &FourTuple) -> Option<usize> {
        let is_it = |&slot: &u32| self.requests[slot as usize].tuple == *tuple;
        self.by_flow.find(hash, is_it).map(|&slot| slot as usize)
    }

    /// A segment for a half-open connection.
    fn on_request_segment(
        &mut self,
        cx: &ListenContext<'_>,
        slot: usize,
        segment: &Segment,
        is_full: bool,
    ) -> Answer {
        let entry = &mut self.requests[slot];
        match entry.request.on_segment(cx.now, segment, &cx.config) {
            RequestVerdict::Drop => Answer::Ignore,
            RequestVerdict::Retransmit(segment) => Answer::Repeat(segment),
            RequestVerdict::Challenge(segment) | RequestVerdict::Reset(segment) => {
                Answer::Send(segment)
            }
            RequestVerdict::Closed => {
                self.forget(cx.key, slot);
                Answer::Ignore
            }
            RequestVerdict::Accepted(_) if is_full => {
                cx.counters.add(Counter::ListenOverflows, 1);
                cx.counters.add(Counter::ListenDrops, 1);
                if cx.config.tcp_abort_on_overflow {
                    self.forget(cx.key, slot);
                    return Answer::Reset;
                }
                // The peer believes that it is connected and will send again; until then the
                // SYN-ACK timer keeps the request.
                Answer::Full
            }
            RequestVerdict::Accepted(accepted) => {
                self.arriving.push(entry.tuple);
                self.forget(cx.key, slot);
                Answer::Establish(accepted)
            }
        }
    }

    /// A segment of a flow that is not known here.
    fn on_new_segment(
        &mut self,
        cx: &ListenContext<'_>,
        tuple: &FourTuple,
        segment: &Segment,
        iss: Option<SeqNumber>,
        is_full: bool,
    ) -> Answer {
        let control = segment.flags & (Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN);
        if control.contains(Flags::RST) {
            return Answer::NoHandshake;
        }
        if control.contains(Flags::ACK) {
            return self.on_cookie(cx, tuple, segment, is_full);
        }
        if control != Flags::SYN {
            return Answer::NoHandshake;
        }
        if is_full {
            cx.counters.add(Counter::ListenOverflows, 1);
            cx.counters.add(Counter::ListenDrops, 1);
            return Answer::Full;
        }
        let offer = self.offer(cx, tuple);
        let is_syn_queue_full = self.requests.len() >= cx.config.tcp_max_syn_backlog as usize;
        if cx.config.tcp_syncookies == 2 || (is_syn_queue_full && cx.config.tcp_syncookies == 1) {
            let ends = (tuple.local_addr(), tuple.remote_addr());
            let ts_offset = cx.secrets.ts_offset(ends.0, ends.1);
            cx.counters.add(Counter::SyncookiesSent, 1);
            self.cookies_until = cx.now + SynCookies::LIFETIME;
            return Answer::Send(cx.cookies.synack(cx.now, ends, segment, ts_offset, &offer));
        }
        if is_syn_queue_full {
            cx.counters.add(Counter::ListenDrops, 1);
            return Answer::Full;
        }
        self.add_request(cx, tuple, segment, iss, &offer)
    }

    fn add_request(
        &mut self,
        cx: &ListenContext<'_>,
        tuple: &FourTuple,
        syn: &Segment,
        iss: Option<SeqNumber>,
        offer: &Offer,
    ) -> Answer {
        let (local, remote) = (tuple.local_addr(), tuple.remote_addr());
        let isn = iss.unwrap_or_else(|| cx.secrets.isn(cx.now, local, remote));
        let ts_offset = cx.secrets.ts_offset(local, remote);
        let request = Request::new(cx.now, syn, isn, ts_offset, offer);
        let synack = request.synack(cx.now);
        self.next_serial = self.next_serial.wrapping_add(1);
        let serial = self.next_serial;
        let due = request.deadline();
        let slot = self.requests.insert(Entry { tuple: *tuple, request, serial }) as u32;
        self.timers[0].push_back((due, slot, serial));
        self.young += 1;
        let Self { by_flow, requests, .. } = self;
        by_flow.insert_unique(cx.key.hash(tuple), slot, |&slot| {
            cx.key.hash(&requests[slot as usize].tuple)
        });
        Answer::Send(synack)
    }

    /// An ACK without a request: a SYN cookie that comes back, or nothing of ours. Where none was
    /// sent of late it is not looked at (`tcp_synq_no_recent_overflow`): guesses would open
    /// connections.
    fn on_cookie(
        &mut self,
        cx: &ListenContext<'_>,
        tuple: &FourTuple,
        segment: &Segment,
        is_full: bool,
    ) -> Answer {
        let is_none_out = cx.config.tcp_syncookies == 0 || cx.now >= self.cookies_until;
        if segment.flags.contains(Flags::SYN) || is_none_out {
            return Answer::Reset;
        }
        let offer = self.offer(cx, tuple);
        let ends = (tuple.local_addr(), tuple.remote_addr());
        let ts_offset = cx.secrets.ts_offset(ends.0, ends.1);
        let accepted = cx.cookies.accept(cx.now, ends, segment, ts_offset, &offer);
        let Some(accepted) = accepted else {
            cx.counters.add(Counter::SyncookiesFailed, 1);
            return Answer::Reset;
        };
        cx.counters.add(Counter::SyncookiesRecv, 1);
        if is_full {
            cx.counters.add(Counter::ListenOverflows, 1);
            cx.counters.add(Counter::ListenDrops, 1);
            return Answer::Full;
        }
        self.arriving.push(*tuple);
        Answer::Establish(accepted)
    }

    fn offer(&self, cx: &ListenContext<'_>, tuple: &FourTuple) -> Offer {
        let ip_header = if tuple.local.is_ipv4() { 20 } else { 40 };
        let by_path = cx.mtu.saturating_sub(ip_header + 20).clamp(88, 65_495) as u16;
        let options = self.options.of(tuple.local);
        let mss = by_path.min(options.max_segment.unwrap_or(u16::MAX));
        let locked = options.receive_buffer;
        let space = locked.unwrap_or(cx.config.tcp_rmem.default) / 2;
        Offer::new(&cx.config, ip_header, mss, space, locked.unwrap_or(u32::MAX))
    }

    fn forget(&mut self, key: FlowKey, slot: usize) {
        let tuple = self.requests[slot].tuple;
        if let Ok(entry) = self.by_flow.find_entry(key.hash(&tuple), |&one| one as usize == slot) {
            entry.remove();
        }
        let entry = self.requests.remove(slot);
        self.young -= usize::from(entry.request.timeouts() == 0);
        if self.requests.is_empty() {
            self.timers.iter_mut().for_each(VecDeque::clear);
        }
    }

    /// How often a SYN-ACK is sent again. Where more than half of the queue is in use, and most of
    /// that by connections that do not answer, they are given up earlier, so that new ones find
    /// room (`reqsk_timer_handler`). There the backlog bounds this queue, and here
    /// `tcp_max_syn_backlog` does.
    fn retries(&self, config: &Config) -> u32 {
        let (waiting, mut young) = (self.requests.len(), self.young);
        let mut retries = config.tcp_synack_retries;
        if waiting * 2 <= (config.tcp_max_syn_backlog as usize).max(LEAST_BACKLOG) {
            return retries;
        }
        while retries > LEAST_RETRIES && waiting >= young * 2 {
            retries -= 1;
            young *= 2;
        }
        retries
    }

    fn expire(
        &mut self,
        now: Instant,
        key: FlowKey,
        config: &Config,
        send: &mut Vec<(FourTuple, Segment)>,
    ) -> u64 {
        let mut expired = 0;
        for level in 0..LEVELS {
            while let Some(&(queued_for, slot, serial)) = self.timers[level].front() {
                if queued_for > now {
                    break;
                }
                self.timers[level].pop_front();
                let entry = self.requests.get(slot as usize);
                let Some(entry) = entry.filter(|entry| entry.serial == serial) else {
                    continue;
                };
                // A SYN that came again has put it off.
                if entry.request.deadline() > now {
                    self.timers[level].push_back((entry.request.deadline(), slot, serial));
                    continue;
                }
                expired += 1;
                let retries = self.retries(config);
                let entry = &mut self.requests[slot as usize];
                let was_young = entry.request.timeouts() == 0;
                match entry.request.on_deadline(now, retries) {
                    RequestVerdict::Retransmit(segment) => {
                        self.young -= usize::from(was_young);
                        send.push((entry.tuple, segment));
                        let next = (entry.request.deadline(), slot, serial);
                        self.timers[(level + 1).min(LEVELS - 1)].push_back(next);
                    }
                    _ => self.forget(key, slot as usize),
                }
            }
        }
        expired
    }

    /// The earliest timer, entries of requests that are gone included.
    fn deadline(&self) -> Instant {
        let fronts = self.timers.iter().filter_map(|level| level.front());
        fronts.map(|&(due, ..)| due).min().unwrap_or(Instant::FAR_FUTURE)
    }
}
