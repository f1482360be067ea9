//! Forwarders: SYNs that no socket takes, held as pending connections until an application has
//! decided about them.
//!
//! Nothing is sent for a pending connection before that, so there is nothing that a SYN cookie
//! could carry. A source without room has its SYN dropped and counted, and repeats it. Where all
//! places are taken, a SYN takes that of a pending connection of a source that has at least as
//! many, the oldest such one of the 16 oldest: a flood from many sources pushes out itself, and
//! leaves others the time that it needs to fill all places. Running handshakes keep their places.
//!
//! Cost: a SYN takes two mutexes, three probes of tables under the host's key, and an entry in each
//! of two trees in the order of age, which hold no more than the table. A pending connection takes
//! under 350 bytes, its entries in the tables included. An accepted one is a socket from then on,
//! and keeps its place in the bounds until its handshake is over.

use super::error::SocketError;
use super::listed::BucketInfo;
use super::readiness::{Readiness, Ready};
use crate::flow::{FlowKey, FourTuple, source_of};
use crate::keyed::Keyed;
use crate::net::interface::InterfaceId;
use crate::net::route::Prefix;
use crate::sync::{Mutex, MutexGuard, lock};
use core::hash::BuildHasher;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use hashbrown::HashTable;
use neap_tcp::connection::ConnectionError;
use neap_tcp::segment::{Flags, Options, Segment, Timestamps};
use neap_tcp::seq::SeqNumber;
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Options of [`Stack::forward_tcp`](crate::stack::Stack::forward_tcp).
#[derive(Clone, Debug)]
pub struct TcpForwarderOptions {
    /// Interface whose SYNs are taken; `None` for all interfaces. What the host sends to itself is
    /// never taken.
    pub interface: Option<InterfaceId>,
    /// Destinations that are taken; `None` for all addresses of both families, own ones included.
    pub destinations: Option<Prefix>,
    /// Ports that are taken.
    pub ports: RangeInclusive<u16>,
    /// Most connections that are pending, or whose handshake runs, at the same time. One more takes
    /// the place of a pending one whose source has at least as many: of the oldest such one of the
    /// 16 oldest. Without such a one it is dropped and counted.
    pub max_pending: usize,
    /// Most of them from one source: an IPv4 address, or the first 64 bits of an IPv6 address.
    pub max_per_source: usize,
    /// Time from the first SYN after which a pending connection is over.
    pub expiry: Nanos,
}

impl Default for TcpForwarderOptions {
    /// Everything is taken: 4096 connections at the same time, 1024 of them from one source, each
    /// for 127 seconds. That is how long a client tries with six repeated SYNs (RFC 6298).
    fn default() -> Self {
        Self {
            interface: None,
            destinations: None,
            ports: 0..=u16::MAX,
            max_pending: 4096,
            max_per_source: 1024,
            expiry: Nanos::from_secs(127),
        }
    }
}

impl TcpForwarderOptions {
    fn takes(&self, interface: InterfaceId, tuple: &FourTuple) -> bool {
        self.interface.is_none_or(|wanted| wanted == interface)
            && self.ports.contains(&tuple.local_port)
            && self.destinations.is_none_or(|prefix| prefix.contains(tuple.local))
    }
}

/// Pending connections that are looked at, from the oldest on, for one that loses its place.
const LOOKS: usize = 16;

/// How a packet came in, for whoever holds its SYN.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    /// `None` for what this host sent to itself.
    pub(crate) interface: Option<InterfaceId>,
    /// Hops left.
    pub(crate) hop_limit: u8,
    /// DSCP and ECN.
    pub(crate) tos: u8,
}

/// What a connection needs of a SYN, without the payload. 28 bytes instead of those of a
/// [`Segment`], which has room for data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Syn {
    seq: SeqNumber,
    flags: Flags,
    window: u16,
    mss: Option<u16>,
    window_scale: Option<u8>,
    sack_permitted: bool,
    timestamps: Option<Timestamps>,
}

impl Syn {
    fn of(segment: &Segment) -> Self {
        let Options { mss, window_scale, sack_permitted, timestamps, .. } = segment.options;
        let Segment { seq, flags, window, .. } = *segment;
        Self { seq, flags, window, mss, window_scale, sack_permitted, timestamps }
    }

    pub(crate) fn segment(&self) -> Segment {
        let Self { seq, flags, window, mss, window_scale, sack_permitted, timestamps } = *self;
        let options =
            Options { mss, window_scale, sack_permitted, timestamps, ..Options::default() };
        Segment { seq, flags, window, options, ..Segment::default() }
    }
}

/// Sources and the places that they have.
#[derive(Debug)]
struct Counts {
    key: Keyed,
    sources: HashTable<(IpAddr, u32)>,
    total: usize,
}

impl Counts {
    /// Places of a source.
    fn of(&self, remote: IpAddr) -> u32 {
        let source = source_of(remote);
        let found = self.sources.find(self.key.hash_one(source), |one| one.0 == source);
        found.map_or(0, |one| one.1)
    }
}

/// A place within the bounds of a forwarder, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    counts: Arc<Mutex<Counts>>,
    source: IpAddr,
}

impl Place {
    fn take(
        counts: &Arc<Mutex<Counts>>,
        remote: IpAddr,
        most: &TcpForwarderOptions,
    ) -> Result<Self, Refusal> {
        let source = source_of(remote);
        let mut held = lock(counts);
        if held.total >= most.max_pending {
            return Err(Refusal::Full);
        }
        let Counts { key, sources, total } = &mut *held;
        let hash = key.hash_one(source);
        let entry = sources.entry(hash, |one| one.0 == source, |one| key.hash_one(one.0));
        let mut entry = entry.or_insert((source, 0));
        let count = &mut entry.get_mut().1;
        if *count as usize >= most.max_per_source {
            if *count == 0 {
                entry.remove();
            }
            return Err(Refusal::FullForSource);
        }
        *count += 1;
        *total += 1;
        drop(held);
        Ok(Self { counts: counts.clone(), source })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        let Counts { key, sources, total } = &mut *counts;
        *total -= 1;
        let is_it = |one: &(IpAddr, u32)| one.0 == self.source;
        if let Ok(mut entry) = sources.find_entry(key.hash_one(self.source), is_it) {
            entry.get_mut().1 -= 1;
            if entry.get().1 == 0 {
                entry.remove();
            }
        }
    }
}

/// A SYN that nobody has decided about.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) tuple: FourTuple,
    pub(crate) arrival: Arrival,
    /// The shard whose driver received the SYN.
    pub(crate) shard: usize,
    /// Larger than those of all older ones.
    serial: u64,
    due: Instant,
    state: Mutex<Open>,
    pub(crate) readiness: Readiness,
    forwarder: Arc<Forwarder>,
}

#[derive(Debug)]
struct Open {
    syn: Syn,
    /// Initial sequence number to use, if the flow was in TIME-WAIT.
    iss: Option<SeqNumber>,
    /// Why there is nothing to decide any more.
    over: Option<SocketError>,
    place: Option<Box<Place>>,
}

/// What an application decides about.
pub(crate) struct Decided {
    pub(crate) syn: Syn,
    pub(crate) iss: Option<SeqNumber>,
    /// The place, for the time of a handshake.
    pub(crate) place: Option<Box<Place>>,
}

impl Pending {
    /// The SYN as it came last, and why there is nothing to decide any more.
    pub(crate) fn syn(&self) -> (Syn, Option<SocketError>) {
        let state = lock(&self.state);
        (state.syn, state.over)
    }

    /// Ends the wait for a decision: it is made. Fails if the connection is over already.
    pub(crate) fn decide(&self) -> Result<Decided, SocketError> {
        let mut state = lock(&self.state);
        if let Some(over) = state.over {
            return Err(over);
        }
        state.over = Some(SocketError::InvalidArgument);
        Ok(Decided { syn: state.syn, iss: state.iss, place: state.place.take() })
    }

    /// Takes it out of the table of its forwarder: the next SYN of the flow is for others.
    pub(crate) fn forget(&self, key: FlowKey) {
        self.forwarder.lock().remove(key, self);
    }

    /// There is nothing to decide any more, for this reason. Whether there was until now.
    fn end(&self, why: SocketError) -> bool {
        let mut state = lock(&self.state);
        let is_news = state.over.is_none();
        if is_news {
            state.over = Some(why);
        }
        drop(state);
        if is_news {
            self.readiness.signal(Ready::ERROR | Ready::READ_CLOSED);
        }
        is_news
    }

    /// The SYN came once more. One with another sequence number is of a new attempt, which takes
    /// the place of the old one (RFC 9293 section 3.10.7.2: there is no connection yet).
    fn join(&self, syn: &Segment) {
        lock(&self.state).syn = Syn::of(syn);
    }
}

/// Why a SYN is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The forwarder has as many as it may.
    Full,
    /// The source has as many as it may.
    FullForSource,
}

/// What becomes of a segment that no socket takes.
#[derive(Debug)]
pub(crate) enum Fate {
    /// It is dealt with.
    Taken,
    /// The same, and another pending connection has lost its place for it.
    TookPlace,
    /// There is no room for the SYN.
    Refused(Refusal),
    /// It is for nobody.
    Nobody,
}

struct Table {
    by_flow: HashTable<Arc<Pending>>,
    /// All by their serial numbers. That is the order of their times too, since all last equally
    /// long.
    by_age: BTreeMap<u64, Arc<Pending>>,
    /// Serial numbers of those that the application has not received.
    unreceived: BTreeSet<u64>,
    last_serial: u64,
    /// Told to the next call that finds no connection.
    error: Option<SocketError>,
    is_closed: bool,
}

impl Table {
    fn new() -> Self {
        Self {
            by_flow: HashTable::new(),
            by_age: BTreeMap::new(),
            unreceived: BTreeSet::new(),
            last_serial: 0,
            error: None,
            is_closed: false,
        }
    }

    fn find(&self, hash: u64, tuple: &FourTuple) -> Option<&Arc<Pending>> {
        self.by_flow.find(hash, |one| one.tuple == *tuple)
    }

    fn add(&mut self, key: FlowKey, pending: Arc<Pending>) {
        let (hash, serial) = (key.hash(&pending.tuple), pending.serial);
        self.by_flow.insert_unique(hash, pending.clone(), |one| key.hash(&one.tuple));
        self.unreceived.insert(serial);
        self.by_age.insert(serial, pending);
    }

    fn remove(&mut self, key: FlowKey, pending: &Pending) {
        let is_it = |one: &Arc<Pending>| one.serial == pending.serial;
        if let Ok(found) = self.by_flow.find_entry(key.hash(&pending.tuple), is_it) {
            found.remove();
            self.by_age.remove(&pending.serial);
            self.unreceived.remove(&pending.serial);
        }
    }

    /// Takes out a pending connection of a source that has as many places as that of a new one
    /// would have: the oldest such one of the [oldest](LOOKS). Its place is free then.
    fn push_out(
        &mut self,
        key: FlowKey,
        counts: &Mutex<Counts>,
        remote: IpAddr,
    ) -> Option<Arc<Pending>> {
        let oldest = {
            let counts = lock(counts);
            let most = counts.of(remote) + 1;
            let loses = |pending: &&Arc<Pending>| {
                counts.of(pending.tuple.remote) >= most && pending.syn().1.is_none()
            };
            self.by_age.values().take(LOOKS).find(loses).cloned()
        };
        let pending = oldest?;
        self.remove(key, &pending);
        let place = lock(&pending.state).place.take();
        drop(place);
        Some(pending)
    }

    fn deadline(&self) -> Instant {
        self.by_age.first_key_value().map_or(Instant::FAR_FUTURE, |(_, first)| first.due)
    }
}

/// A forwarder.
pub(crate) struct Forwarder {
    pub(crate) options: TcpForwarderOptions,
    counts: Arc<Mutex<Counts>>,
    table: Mutex<Table>,
    pub(crate) readiness: Readiness,
}

impl core::fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Forwarder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Forwarder {
    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// The oldest pending connection that the application has not received.
    pub(crate) fn receive(&self) -> Result<Arc<Pending>, SocketError> {
        let mut table = self.lock();
        let first = table.unreceived.pop_first();
        if table.unreceived.is_empty() {
            self.readiness.clear(Ready::READABLE);
        }
        if let Some(first) = first.and_then(|serial| table.by_age.get(&serial)) {
            return Ok(first.clone());
        }
        if table.is_closed {
            return Err(SocketError::ShutDown);
        }
        let error = table.error.take();
        if error.is_some() {
            self.readiness.clear(Ready::ERROR);
        }
        Err(error.unwrap_or(SocketError::WouldBlock))
    }

    /// Connections that are pending, and those of them that nobody has received.
    pub(crate) fn queued(&self) -> (usize, usize) {
        let table = self.lock();
        (table.by_age.len(), table.unreceived.len())
    }

    /// Pending connections and running handshakes.
    pub(crate) fn places(&self) -> usize {
        lock(&self.counts).total
    }

    /// The device of the only interface is gone: the next call that finds no connection fails.
    fn on_network_down(&self) {
        let mut table = self.lock();
        table.error = Some(ConnectionError::NetworkDown.into());
        // Under the lock of the table, so that the bit and the error agree.
        let woken = self.readiness.gain(Ready::ERROR, 1);
        drop(table);
        woken.wake();
    }

    fn on_syn(self: &Arc<Self>, cx: &SynContext<'_>, tuple: &FourTuple, syn: &Segment) -> Fate {
        let hash = cx.key.hash(tuple);
        let mut table = self.lock();
        if let Some(pending) = table.find(hash, tuple) {
            pending.join(syn);
            return Fate::Taken;
        }
        // Another thread may have accepted the first SYN since the tables were looked at.
        if table.is_closed || (cx.is_connected)(tuple) {
            return Fate::Taken;
        }
        let take = || Place::take(&self.counts, tuple.remote, &self.options);
        let (mut taken, mut pushed_out) = (take(), None);
        if let Err(Refusal::Full) = taken {
            pushed_out = table.push_out(cx.key, &self.counts, tuple.remote);
            if pushed_out.is_some() {
                taken = take();
            }
        }
        let place = match taken {
            Ok(place) => place,
            Err(refusal) => return Fate::Refused(refusal),
        };
        let open =
            Open { syn: Syn::of(syn), iss: cx.iss, over: None, place: Some(Box::new(place)) };
        table.last_serial += 1;
        let pending = Arc::new(Pending {
            tuple: *tuple,
            arrival: cx.arrival,
            shard: cx.shard,
            serial: table.last_serial,
            due: cx.now + self.options.expiry,
            state: Mutex::new(open),
            readiness: Readiness::new(),
            forwarder: self.clone(),
        });
        table.add(cx.key, pending);
        let woken = self.readiness.gain(Ready::READABLE, 1);
        drop(table);
        woken.wake();
        let Some(pushed_out) = pushed_out else { return Fate::Taken };
        pushed_out.end(ConnectionError::TimedOut.into());
        Fate::TookPlace
    }

    /// RFC 5961 section 3.2: only a reset at exactly the next number ends it.
    fn on_reset(&self, key: FlowKey, tuple: &FourTuple, reset: &Segment) -> Fate {
        let mut table = self.lock();
        let Some(pending) = table.find(key.hash(tuple), tuple).cloned() else {
            return Fate::Nobody;
        };
        if reset.seq == pending.syn().0.seq + 1 {
            table.remove(key, &pending);
            drop(table);
            pending.end(ConnectionError::Reset.into());
        }
        Fate::Taken
    }

    /// Ends what has waited too long. How many there were, and when to come back.
    fn expire(&self, now: Instant, key: FlowKey) -> (u64, Instant) {
        let mut expired = Vec::new();
        let mut table = self.lock();
        while let Some((_, pending)) = table.by_age.first_key_value() {
            if pending.due > now {
                break;
            }
            let pending = pending.clone();
            table.remove(key, &pending);
            expired.push(pending);
        }
        let next = table.deadline();
        drop(table);
        let ended = expired.iter().filter(|one| one.end(ConnectionError::TimedOut.into()));
        (ended.count() as u64, next)
    }

    /// Takes no more. What was pending is over; those that nobody has decided about are returned.
    fn close(&self) -> Vec<Arc<Pending>> {
        let mut table = self.lock();
        table.is_closed = true;
        table.by_flow = HashTable::new();
        table.unreceived = BTreeSet::new();
        let pending = core::mem::take(&mut table.by_age);
        drop(table);
        self.readiness.signal(Ready::READ_CLOSED | Ready::ERROR);
        pending.into_values().filter(|one| one.end(SocketError::ShutDown)).collect()
    }
}

/// What a forwarder needs to judge a segment.
pub(crate) struct SynContext<'a> {
    pub(crate) now: Instant,
    pub(crate) shard: usize,
    pub(crate) key: FlowKey,
    pub(crate) arrival: Arrival,
    /// Initial sequence number to use if the flow was in TIME-WAIT until now.
    pub(crate) iss: Option<SeqNumber>,
    /// Whether a connection has these ends.
    pub(crate) is_connected: &'a dyn Fn(&FourTuple) -> bool,
}

/// The forwarders of a host, in the order in which they were made: the first one whose options fit
/// takes a SYN.
#[derive(Debug, Default)]
pub(crate) struct Forwarders {
    list: Mutex<Vec<Arc<Forwarder>>>,
    /// Whether there is one; read without the lock.
    is_any: AtomicBool,
}

impl Forwarders {
    /// Adds a forwarder; `seed` is its secret.
    pub(crate) fn add(&self, options: TcpForwarderOptions, seed: u64) -> Arc<Forwarder> {
        let counts = Counts { key: Keyed::new(seed), sources: HashTable::new(), total: 0 };
        let forwarder = Arc::new(Forwarder {
            options,
            counts: Arc::new(Mutex::new(counts)),
            table: Mutex::new(Table::new()),
            readiness: Readiness::new(),
        });
        lock(&self.list).push(forwarder.clone());
        self.is_any.store(true, Relaxed);
        forwarder
    }

    /// Takes a forwarder out and closes it; what nobody has decided about.
    pub(crate) fn remove(&self, forwarder: &Arc<Forwarder>) -> Vec<Arc<Pending>> {
        let mut list = lock(&self.list);
        list.retain(|one| !Arc::ptr_eq(one, forwarder));
        self.is_any.store(!list.is_empty(), Relaxed);
        drop(list);
        forwarder.close()
    }

    /// What a listing says of the connections that nobody has decided about.
    pub(crate) fn listed(&self) -> Vec<BucketInfo> {
        let mut listed = Vec::new();
        for forwarder in self.all() {
            let table = forwarder.lock();
            listed.extend(table.by_age.values().map(|pending| BucketInfo {
                local: pending.tuple.local_name(),
                remote: pending.tuple.remote_addr(),
                state: State::SynReceived,
                timer: None,
            }));
        }
        listed
    }

    fn all(&self) -> Vec<Arc<Forwarder>> {
        if self.is_any.load(Relaxed) { lock(&self.list).clone() } else { Vec::new() }
    }

    /// Whether one of them takes SYNs of this flow.
    pub(crate) fn takes(&self, arrival: &Arrival, tuple: &FourTuple) -> bool {
        self.find(arrival, tuple).is_some()
    }

    fn find(&self, arrival: &Arrival, tuple: &FourTuple) -> Option<Arc<Forwarder>> {
        let interface = arrival.interface.filter(|_| self.is_any.load(Relaxed))?;
        let list = lock(&self.list);
        list.iter().find(|one| one.options.takes(interface, tuple)).cloned()
    }

    /// A segment that no socket takes. A load where there is no forwarder.
    pub(crate) fn on_segment(
        &self,
        cx: &SynContext<'_>,
        tuple: &FourTuple,
        segment: &Segment,
    ) -> (Fate, Instant) {
        let nobody = (Fate::Nobody, Instant::FAR_FUTURE);
        let Some(forwarder) = self.find(&cx.arrival, tuple) else { return nobody };
        let control = segment.flags & (Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN);
        if control.contains(Flags::RST) {
            return (forwarder.on_reset(cx.key, tuple, segment), Instant::FAR_FUTURE);
        }
        if control != Flags::SYN {
            return nobody;
        }
        (forwarder.on_syn(cx, tuple, segment), cx.now + forwarder.options.expiry)
    }

    /// Ends what has waited too long. How many there were, and when to come back.
    pub(crate) fn expire(&self, now: Instant, key: FlowKey) -> (u64, Instant) {
        let ended = self.all().into_iter().map(|forwarder| forwarder.expire(now, key));
        ended.fold((0, Instant::FAR_FUTURE), |(sum, next), (count, due)| {
            (sum + count, next.min(due))
        })
    }

    /// The device of an interface is gone.
    pub(crate) fn on_device_gone(&self, interface: InterfaceId, is_last: bool) {
        for forwarder in self.all() {
            let wanted = forwarder.options.interface;
            if wanted == Some(interface) || wanted.is_none() && is_last {
                forwarder.on_network_down();
            }
        }
    }

    /// Pending connections of all forwarders.
    pub(crate) fn pending(&self) -> usize {
        self.all().iter().map(|forwarder| forwarder.queued().0).sum()
    }

    /// Closes all forwarders; what nobody has decided about.
    pub(crate) fn shut_down(&self) -> Vec<Arc<Pending>> {
        let all = core::mem::take(&mut *lock(&self.list));
        self.is_any.store(false, Relaxed);
        all.iter().flat_map(|forwarder| forwarder.close()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_connection_is_small() {
        let arc = 2 * size_of::<usize>();
        let flow = size_of::<Arc<Pending>>() + 1;
        // A tree in the order of age has half full nodes at the worst.
        let ages = 2 * (size_of::<(u64, Arc<Pending>)>() + size_of::<u64>());
        let source = size_of::<(IpAddr, u32)>() + 1;
        let all = size_of::<Pending>() + size_of::<Place>() + arc + flow + ages + source;
        assert!(all < 350, "{all} bytes");
    }

    #[test]
    fn what_a_flood_pushes_out_is_in_nobodys_way() {
        let most = TcpForwarderOptions { max_pending: 64, ..TcpForwarderOptions::default() };
        let (forwarders, key) = (Forwarders::default(), FlowKey::new(1, 2));
        let forwarder = forwarders.add(most, 7);
        let arrival = Arrival::default();
        let (shard, iss, is_connected) = (0, None, &|_: &FourTuple| false);
        let syn = Segment { flags: Flags::SYN, ..Segment::default() };
        let mut fates = Vec::new();
        for number in 0..4096_u32 {
            let now = Instant::ZERO + Nanos::from_micros(u64::from(number));
            let cx = SynContext { now, shard, key, arrival, iss, is_connected };
            let remote = IpAddr::V4((0x0a00_0000 + number).into());
            let tuple = FourTuple::without_ports([192, 0, 2, 7].into(), remote);
            fates.push(forwarder.on_syn(&cx, &tuple, &syn));
            // A search of the oldest begins at one that is pending.
            let table = forwarder.lock();
            let oldest = table.by_age.values().next().expect("a pending connection");
            assert!(
                oldest.syn().1.is_none()
                    && table.find(key.hash(&oldest.tuple), &oldest.tuple).is_some()
            );
            let count = fates.len().min(64);
            assert_eq!((table.by_flow.len(), table.by_age.len()), (count, count));
            assert_eq!(table.unreceived.len(), count);
        }
        assert!(fates[..64].iter().all(|fate| matches!(fate, Fate::Taken)));
        assert!(fates[64..].iter().all(|fate| matches!(fate, Fate::TookPlace)));
        assert_eq!(forwarder.receive().expect("it is pending").tuple.remote, {
            IpAddr::V4((0x0a00_0000_u32 + 4096 - 64).into())
        });
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let of = |text: &str| source_of(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn places_are_counted_by_source_and_in_total_and_given_back() {
        let counts = Counts { key: Keyed::new(7), sources: HashTable::new(), total: 0 };
        let counts = Arc::new(Mutex::new(counts));
        let most = TcpForwarderOptions {
            max_pending: 3,
            max_per_source: 2,
            ..TcpForwarderOptions::default()
        };
        let take = |last: u8| Place::take(&counts, [192, 0, 2, last].into(), &most);
        let first = take(1).expect("room");
        let _second = take(1).expect("room");
        assert_eq!(take(1).err(), Some(Refusal::FullForSource));
        let _third = take(2).expect("room");
        assert_eq!(take(3).err(), Some(Refusal::Full));
        drop(first);
        let fourth = take(3).expect("room");
        drop(fourth);
        assert_eq!(lock(&counts).sources.len(), 2);
    }
}
