//! The tunnel without I/O and without a clock: which peer a packet goes to and may come from,
//! sessions, endpoints, deadlines.
//!
//! Sealing and opening are done by the caller, on any thread and without this engine's lock: the
//! engine reserves counters before, and checks what was opened afterwards.
//!
//! Cost: a packet to send is a look-up of its peer ([`Routes`]) and a counter. A packet that was
//! received is a look-up of its session, and one of its source. Messages of handshakes allocate;
//! packets do not.

mod budget;

use crate::config::{Peer, WireguardConfig};
use crate::counters::Counters;
use crate::engine::budget::{Budget, Payer, Work};
use crate::error::Error;
use crate::ip::{self, Arriving, Header};
use crate::keys::{PrivateKey, PublicKey};
use crate::protocol::{
    Committed, Due, Incoming, Message, Open, PeerId, Protocol, Refused, Step, is_handshake,
};
use crate::routes::Routes;
use crate::status::PeerStatus;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use neap_tcp::time::{Instant, Nanos};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;
use zeroize::Zeroizing;

/// Messages that wait to be sent. Beyond that the oldest is dropped: its sender makes it again.
const OUTBOX_MAX: usize = 1024;
/// The engine does not ask for time again before this, whatever the protocol says.
const LEAST_PAUSE: Nanos = Nanos::from_millis(1);

/// How long frames wait for the endpoint of their peer: as long as for the end of a handshake
/// (WireGuard's paper, `Rekey-Attempt-Time`).
const ENDPOINT_WAIT: Nanos = Nanos::from_secs(90);

/// The time of day is put forward by more than this. What a clock drifts is less.
const STEP: Duration = Duration::from_secs(1);

/// Interface and peers.
pub(crate) struct Engine<P> {
    protocol: P,
    key: PrivateKey,
    peers: Vec<Option<Entry>>,
    /// The peers as they were given.
    order: Vec<PeerId>,
    /// Where peers were last heard, or are expected. Made anew when it is asked for, after one of
    /// them has changed.
    known: Option<HashSet<SocketAddr>>,
    /// What handshakes may cost.
    budget: Budget,
    by_key: HashMap<PublicKey, PeerId>,
    routes: Routes,
    /// When each peer is looked at next. The time may be too early, never too late.
    deadlines: BTreeSet<(Instant, PeerId)>,
    outbox: VecDeque<Outgoing>,
    /// Frames that wait may be able to go.
    is_revived: bool,
    /// A peer is somewhere else.
    has_moved: bool,
    /// A peer has an address, and had none.
    has_appeared: bool,
    /// An initiation was not answered.
    has_failed: bool,
    /// A peer has answered after initiations that were not.
    has_recovered: bool,
    /// Handshakes whose time of day is not known yet.
    undated: Vec<(PeerId, Instant)>,
    /// How many have asked for [`hold`](Self::hold).
    holds: usize,
    counters: Arc<Counters>,
    start: Instant,
    /// The time of day at the start.
    unix: Duration,
}

/// A peer.
struct Entry {
    peer: Peer,
    endpoint: Option<SocketAddr>,
    /// The address of this host that it has spoken to from there.
    own: Option<IpAddr>,
    /// Its place in `deadlines`.
    deadline: Instant,
    /// When a handshake begins without a packet, for a persistent keepalive.
    restart: Option<Instant>,
    /// Until when frames wait for an endpoint.
    awaits_endpoint: Option<Instant>,
    /// An initiation was sent and not answered.
    awaits_answer: bool,
    /// An initiation was answered, and nothing was heard in the session that it began.
    awaits_data: bool,
    /// An initiation is to be sent once nobody holds them back.
    awaits_release: bool,
    latest_handshake: Option<SystemTime>,
    received: u64,
    sent: u64,
    failed_handshakes: u32,
}

/// Both ends of the way to a peer outside of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) peer: SocketAddr,
    /// The address of this host that the peer has spoken to. It gets its answers from there: what
    /// is between may let no others pass.
    pub(crate) own: Option<IpAddr>,
}

impl From<SocketAddr> for Ends {
    fn from(peer: SocketAddr) -> Self {
        Self { peer, own: None }
    }
}

/// A message that is to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) to: Ends,
    pub(crate) message: Message,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To this endpoint. As many counters as asked for were reserved.
    To(Ends),
    /// It waits for a handshake with this peer, or for its endpoint before.
    Waits(PeerId),
    /// Nobody has its address. It is counted.
    NoPeer,
}

/// Addresses and ECN of the outer header of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    pub(crate) ends: Ends,
    pub(crate) ecn: u8,
}

/// What handshakes have taken of the thread that receives, beside what was estimated for them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Toll {
    /// The time from the beginning to the end of their calls, others' turns among them.
    pub(crate) taken: Nanos,
    /// Sum of [`Engine::estimated`] for the same handshakes.
    pub(crate) estimated: Nanos,
}

impl<P: Protocol> Engine<P> {
    /// An interface at `now`, when the time of day is `unix`. `seed` is 32 random bytes.
    ///
    /// # Errors
    /// Those of [`set_peers`](Self::set_peers).
    pub(crate) fn new(
        config: &WireguardConfig,
        seed: Zeroizing<[u8; 32]>,
        counters: Arc<Counters>,
        now: Instant,
        unix: Duration,
    ) -> Result<Self, Error> {
        let mut engine = Self {
            protocol: P::new(&config.private_key, seed, now, unix),
            key: config.private_key.clone(),
            peers: Vec::new(),
            order: Vec::new(),
            known: None,
            budget: Budget::new(now),
            by_key: HashMap::new(),
            routes: Routes::default(),
            deadlines: BTreeSet::new(),
            outbox: VecDeque::new(),
            is_revived: false,
            has_moved: false,
            has_appeared: false,
            has_failed: false,
            has_recovered: false,
            undated: Vec::new(),
            holds: 0,
            counters,
            start: now,
            unix,
        };
        engine.set_peers(config.peers.clone(), now)?;
        Ok(engine)
    }

    /// The key that peers know this interface by.
    pub(crate) fn public_key(&self) -> PublicKey {
        self.key.public_key()
    }

    /// Sets the peers. One that stays with the same keys and keepalive keeps its session, and one
    /// that had a session with others gets a new one at once. One that stays keeps its counters
    /// and, unless another endpoint is given than last time, its endpoint.
    ///
    /// # Errors
    /// [`Error::BadPeer`], [`Error::DuplicatePeer`]. Then nothing has changed.
    pub(crate) fn set_peers(&mut self, peers: Vec<Peer>, now: Instant) -> Result<(), Error> {
        let mut seen = HashSet::from([self.public_key()]);
        if let Some(twice) = peers.iter().find(|peer| !seen.insert(peer.public_key)) {
            return Err(Error::DuplicatePeer(twice.public_key));
        }
        // New peers first: a key that cannot be a peer's leaves everything as it was.
        let mut added = Vec::new();
        for peer in &peers {
            if self.by_key.contains_key(&peer.public_key) {
                continue;
            }
            let free = self.peers.iter().position(Option::is_none);
            let id = free.unwrap_or(self.peers.len());
            if !self.protocol.add(id, peer, now) {
                for id in added {
                    self.forget(id);
                }
                return Err(Error::BadPeer(peer.public_key));
            }
            if id == self.peers.len() {
                self.peers.push(None);
            }
            self.peers[id] = Some(Entry::new(peer.clone()));
            self.by_key.insert(peer.public_key, id);
            added.push(id);
        }
        for id in self.order.clone() {
            let is_kept = self.entry(id).is_some_and(|entry| seen.contains(&entry.peer.public_key));
            if !is_kept {
                self.forget(id);
            }
        }
        self.order = peers.iter().map(|peer| self.by_key[&peer.public_key]).collect();
        for (peer, id) in peers.into_iter().zip(self.order.clone()) {
            self.update(id, peer, now);
        }
        self.build_routes();
        (self.is_revived, self.known) = (true, None);
        Ok(())
    }

    fn forget(&mut self, id: PeerId) {
        self.protocol.remove(id);
        self.undated.retain(|(of, _)| *of != id);
        if let Some(entry) = self.peers[id].take() {
            self.by_key.remove(&entry.peer.public_key);
            self.deadlines.remove(&(entry.deadline, id));
        }
    }

    /// Takes the settings of a peer that is there.
    fn update(&mut self, id: PeerId, peer: Peer, now: Instant) {
        let Some(entry) = self.peers[id].as_mut() else { return };
        let old = core::mem::replace(&mut entry.peer, peer);
        let peer = &entry.peer;
        if peer.endpoint.is_some() && peer.endpoint != old.endpoint {
            (entry.endpoint, entry.own) = (peer.endpoint.map(canonical), None);
            entry.restart = None;
        }
        let has_new_session = old.preshared_key != peer.preshared_key
            || old.persistent_keepalive != peer.persistent_keepalive;
        if has_new_session {
            let is_in_use = self.is_in_use(id, now);
            self.begin_anew(id, now);
            if is_in_use {
                self.initiate(id, now);
            }
        }
        self.greet(id, now);
        self.keep_alive(id, now, Nanos::ZERO);
        self.plan(id, now);
    }

    /// Whether a peer that loses its session and handshake needs an initiation at once. One that
    /// has a session still sends in it, and would notice after 15 s alone. Frames wait for one that
    /// was to answer.
    fn is_in_use(&self, id: PeerId, now: Instant) -> bool {
        self.has_session(id, now) || self.awaits_answer(id)
    }

    /// Forgets the sessions and handshakes of a peer, and when one was planned.
    fn begin_anew(&mut self, id: PeerId, now: Instant) {
        let Some(entry) = self.peers[id].as_mut() else { return };
        self.protocol.remove(id);
        self.protocol.add(id, &entry.peer, now);
        (entry.awaits_answer, entry.awaits_data, entry.restart) = (false, false, None);
    }

    /// Forgets all sessions and handshakes after a sleep of the machine, which `now` leaves out.
    /// Peers that were spoken with, or were to answer, get an initiation at once.
    pub(crate) fn begin_all_anew(&mut self, now: Instant) {
        for id in self.order.clone() {
            let is_in_use = self.is_in_use(id, now);
            self.begin_anew(id, now);
            if is_in_use {
                self.initiate(id, now);
            }
            self.keep_alive(id, now, Nanos::ZERO);
            self.plan(id, now);
        }
        self.is_revived = true;
    }

    /// Takes the time of day at `now`, when an initiation was not answered.
    ///
    /// A machine may start with a clock that is behind, and peers drop an initiation whose time is
    /// not after that of all before, also those of an earlier run. So peers that do not answer get
    /// another initiation with the time of a clock that was put forward. A clock that was put back
    /// changes nothing.
    pub(crate) fn put_forward(&mut self, now: Instant, unix: Duration) {
        let expected = self.time_of_day(now);
        if unix > expected + STEP {
            self.unix += unix - expected;
            self.protocol.put_forward(unix - expected);
        }
        for id in 0..self.peers.len() {
            let awaits_answer = self.entry(id).is_some_and(|entry| entry.awaits_answer);
            if awaits_answer && self.protocol.is_behind(id) && !self.has_session(id, now) {
                self.begin_anew(id, now);
                self.initiate(id, now);
                self.plan(id, now);
            }
        }
    }

    /// Peers in their order; of equal prefixes the last peer has it, and the others lose it.
    fn build_routes(&mut self) {
        let mut owner = HashMap::new();
        for &id in &self.order {
            let Some(entry) = self.peers[id].as_ref() else { continue };
            owner.extend(entry.peer.allowed_ips.iter().map(|net| (net.trunc(), id)));
        }
        for &id in &self.order {
            let Some(entry) = self.peers[id].as_mut() else { continue };
            entry.peer.allowed_ips.iter_mut().for_each(|net| *net = net.trunc());
            entry.peer.allowed_ips.retain(|net| owner.get(net) == Some(&id));
        }
        self.routes = Routes::new(owner.iter().map(|(net, id)| (net, *id)));
    }

    /// Sets the key. All sessions end. Peers that were spoken with, or were to answer, get an
    /// initiation at once.
    ///
    /// # Errors
    /// [`Error::DuplicatePeer`] if a peer has it.
    pub(crate) fn set_private_key(
        &mut self,
        key: PrivateKey,
        seed: Zeroizing<[u8; 32]>,
        now: Instant,
    ) -> Result<(), Error> {
        let public = key.public_key();
        if self.by_key.contains_key(&public) {
            return Err(Error::DuplicatePeer(public));
        }
        let uses: Vec<_> = self.order.iter().map(|&id| (id, self.is_in_use(id, now))).collect();
        self.protocol = P::new(&key, seed, now, self.time_of_day(now));
        self.key = key;
        for (id, is_in_use) in uses {
            self.begin_anew(id, now);
            if is_in_use {
                self.initiate(id, now);
            }
            self.keep_alive(id, now, Nanos::ZERO);
            self.plan(id, now);
        }
        self.is_revived = true;
        Ok(())
    }

    /// The time of day that initiations have.
    fn time_of_day(&self, now: Instant) -> Duration {
        self.unix + Duration::from_nanos(now.since(self.start).0)
    }

    /// Sets where a peer is reached. One that was given up is tried there at once.
    ///
    /// # Errors
    /// [`Error::NoPeer`].
    pub(crate) fn set_endpoint(
        &mut self,
        key: &PublicKey,
        endpoint: SocketAddr,
        now: Instant,
    ) -> Result<(), Error> {
        if let Some(entry) = self.by_key.get(key).and_then(|&id| self.peers[id].as_mut()) {
            entry.restart = None;
        }
        self.set_next_endpoint(key, endpoint, now)
    }

    /// Sets where a peer is reached. One that was given up is tried there when its next handshake
    /// is planned.
    ///
    /// # Errors
    /// [`Error::NoPeer`].
    pub(crate) fn set_next_endpoint(
        &mut self,
        key: &PublicKey,
        endpoint: SocketAddr,
        now: Instant,
    ) -> Result<(), Error> {
        let id = *self.by_key.get(key).ok_or(Error::NoPeer(*key))?;
        if let Some(entry) = self.peers[id].as_mut() {
            entry.peer.endpoint = Some(endpoint);
            (entry.endpoint, entry.own) = (Some(canonical(endpoint)), None);
        }
        (self.is_revived, self.known) = (true, None);
        self.greet(id, now);
        self.keep_alive(id, now, Nanos::ZERO);
        self.plan(id, now);
        Ok(())
    }

    /// Takes that this interface sends from another port. Peers that were spoken with, or were to
    /// answer, learn it at once, by a new handshake: an end that only receives may have nothing to
    /// send for long, and its peers would go on sending to where nobody is. So would the answer to
    /// a handshake that is under way.
    pub(crate) fn announce(&mut self, now: Instant) {
        self.forget_all_own();
        for id in self.order.clone() {
            let is_in_use = self.is_in_use(id, now);
            if let Some(entry) = self.peers[id].as_mut() {
                entry.awaits_release = is_in_use;
            }
        }
        self.begin_held_back(now);
    }

    /// Holds initiations back, but for those that the protocol repeats, until
    /// [`release`](Self::release). Peers drop an initiation that comes soon after another one
    /// (Linux within 20 ms, `wg_noise_handshake_consume_initiation`), and their answer to the first
    /// one is of no use once it was replaced. So changes that belong together end in one.
    pub(crate) fn hold(&mut self) {
        self.holds += 1;
    }

    /// Ends a [`hold`](Self::hold). After the last one the handshakes begin.
    pub(crate) fn release(&mut self, now: Instant) {
        self.holds = self.holds.saturating_sub(1);
        self.begin_held_back(now);
    }

    fn begin_held_back(&mut self, now: Instant) {
        if self.holds > 0 {
            return;
        }
        for id in self.order.clone() {
            let Some(entry) = self.peers[id].as_mut().filter(|entry| entry.awaits_release) else {
                continue;
            };
            // What is under way is replaced, which is no failure.
            (entry.awaits_release, entry.awaits_answer) = (false, false);
            // A handshake that nothing is sent for would be in the way of the next one.
            if let Some(to) = entry.ends()
                && let Some(message) = self.protocol.restart(id, now)
            {
                self.post(Some(id), to, message);
            }
            self.plan(id, now);
        }
    }

    /// Begins a handshake with a peer that frames wait for, once it has an endpoint.
    fn greet(&mut self, id: PeerId, now: Instant) {
        let entry = self.peers[id].as_mut().filter(|entry| entry.endpoint.is_some());
        if entry.is_some_and(|entry| entry.awaits_endpoint.take().is_some()) {
            self.initiate(id, now);
        }
    }

    /// Where peers are reached.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.peers.iter().flatten().filter_map(|entry| entry.endpoint)
    }

    /// Whether there were handshakes since the last [`date_handshakes`](Self::date_handshakes).
    pub(crate) fn has_undated_handshakes(&self) -> bool {
        !self.undated.is_empty()
    }

    /// Takes the time of day at `now`, just after handshakes, and so fixes when they were. A later
    /// look would find another time: `now` leaves out sleeps of the machine, and somebody may set
    /// the clock.
    pub(crate) fn date_handshakes(&mut self, now: Instant, unix: Duration) {
        for (id, at) in self.undated.drain(..) {
            if let Some(entry) = self.peers[id].as_mut() {
                let time_of_day = unix.saturating_sub(Duration::from_nanos(now.since(at).0));
                entry.latest_handshake = Some(SystemTime::UNIX_EPOCH + time_of_day);
            }
        }
    }

    /// State of the peers, in their order.
    pub(crate) fn status(&self) -> Vec<PeerStatus> {
        let status = |id: &PeerId| {
            let entry = self.entry(*id)?;
            Some(PeerStatus {
                public_key: entry.peer.public_key,
                has_preshared_key: entry.peer.preshared_key.is_some(),
                endpoint: entry.endpoint,
                allowed_ips: entry.peer.allowed_ips.clone(),
                latest_handshake: entry.latest_handshake,
                received: entry.received,
                sent: entry.sent,
                persistent_keepalive: entry.peer.persistent_keepalive,
                failed_handshakes: entry.failed_handshakes,
            })
        };
        self.order.iter().filter_map(status).collect()
    }

    /// The way to a peer.
    #[cfg(test)]
    pub(crate) fn ends(&self, id: PeerId) -> Option<Ends> {
        self.entry(id).and_then(Entry::ends)
    }

    fn entry(&self, id: PeerId) -> Option<&Entry> {
        self.peers.get(id)?.as_ref()
    }

    /// Finds the way of a frame of `count` packets, which will be `bytes` of datagrams, and
    /// reserves a counter for each of them in `seals`. A frame that is sealed again, and counted
    /// already, has no `bytes`.
    ///
    /// Without a session a handshake begins.
    pub(crate) fn begin_send(
        &mut self,
        destination: IpAddr,
        (count, bytes): (usize, usize),
        seals: &mut Vec<P::Seal>,
        now: Instant,
    ) -> Way {
        let Some(id) = self.routes.get(destination) else {
            self.counters.dropped_no_peer.one();
            return Way::NoPeer;
        };
        let Some(to) = self.entry(id).and_then(Entry::ends) else {
            self.await_endpoint(id, now);
            return Way::Waits(id);
        };
        let reserved = core::iter::from_fn(|| self.protocol.begin_seal(id, now));
        let before = seals.len();
        seals.extend(reserved.take(count));
        if seals.len() - before < count {
            seals.truncate(before);
            self.initiate(id, now);
            self.plan(id, now);
            return Way::Waits(id);
        }
        if let Some(entry) = self.peers[id].as_mut() {
            entry.sent += bytes as u64;
        }
        if bytes > 0 {
            self.counters.frames_sealed.one();
            self.counters.datagrams_sealed.add(count as u64);
        }
        self.plan(id, now);
        Way::To(to)
    }

    /// A frame waits for the endpoint of a peer. Later ones do not lengthen the time of the first.
    fn await_endpoint(&mut self, id: PeerId, now: Instant) {
        let Some(entry) = self.peers[id].as_mut() else { return };
        if entry.awaits_endpoint.is_none() {
            entry.awaits_endpoint = Some(now + ENDPOINT_WAIT);
            self.plan(id, now);
        }
    }

    /// The peer with an address, if there is a session with it.
    pub(crate) fn session_with(&self, address: IpAddr, now: Instant) -> Option<PeerId> {
        self.routes.get(address).filter(|id| self.has_session(*id, now))
    }

    /// Takes a datagram. One with data is returned, to be opened and [committed](Self::commit).
    pub(crate) fn receive(
        &mut self,
        ends: Ends,
        datagram: &[u8],
        now: Instant,
    ) -> Option<(PeerId, P::Open)> {
        let ends = Ends { peer: canonical(ends.peer), ..ends };
        let from = ends.peer;
        let is_handshake = is_handshake(datagram);
        let payer = if is_handshake { self.payer(from, now) } else { None };
        if is_handshake && payer.is_none() {
            self.counters.dropped_busy.one();
            return None;
        }
        let by_key = |key: &PublicKey| self.by_key.get(key).copied();
        let incoming = self.protocol.receive(from, datagram, now, by_key);
        if let Some(payer) = payer {
            self.budget.spend(payer, Work::of(&incoming));
        }
        match incoming {
            Ok(Incoming::Data(id, open)) => return Some((id, open)),
            Ok(Incoming::Handshake(id, message, step)) => {
                if let Some(entry) = self.peers[id].as_mut() {
                    entry.received += datagram.len() as u64;
                }
                self.hear(id, ends);
                match step {
                    Step::Answered => {
                        self.counters.initiations_answered.one();
                        if let Some(entry) = self.peers[id].as_mut() {
                            entry.awaits_data = true;
                        }
                    }
                    Step::Completed => {
                        self.counters.handshakes_completed.one();
                        self.establish(id, now);
                    }
                }
                self.post(Some(id), ends, message);
                self.plan(id, now);
            }
            Ok(Incoming::Cookie) => self.counters.cookies_received.one(),
            Ok(Incoming::Demand(message)) => self.post(None, ends, message),
            Err(why) => self.count(why),
        }
        None
    }

    /// Begins a turn of handshakes. `is_behind` says whether datagrams have been waiting for the
    /// thread that receives: then handshakes get less of its time. `toll` is what earlier ones have
    /// taken.
    pub(crate) fn begin_visit(&mut self, is_behind: bool, toll: Toll) {
        self.budget.begin_visit(is_behind, toll);
    }

    /// Whether datagrams were waiting for the thread at the latest turn of handshakes.
    #[cfg(test)]
    pub(crate) fn is_behind(&self) -> bool {
        self.budget.is_behind()
    }

    /// What the handshakes of this visit take of the thread's time where no device measures it.
    pub(crate) fn estimated(&self) -> Nanos {
        self.budget.estimated()
    }

    /// Whose share of the time a handshake is looked at from.
    fn payer(&mut self, from: SocketAddr, now: Instant) -> Option<Payer> {
        let endpoints = || self.peers.iter().flatten().filter_map(|entry| entry.endpoint).collect();
        let known = &mut self.known;
        self.budget.payer(now, || known.get_or_insert_with(endpoints).contains(&from))
    }

    /// Takes a packet that was opened from `datagram_len` bytes. Returns its length if the stack
    /// shall have it; its ECN is that after the tunnel.
    pub(crate) fn commit(
        &mut self,
        (id, opened): (PeerId, <P::Open as Open>::Opened),
        outer: Outer,
        datagram_len: usize,
        packet: &mut [u8],
        now: Instant,
    ) -> Option<usize> {
        // Only the new session's data shows that the peer has it; the old one may still be used.
        let awaits_data = self.entry(id)?.awaits_data;
        let before = if awaits_data { self.protocol.established(id, now) } else { None };
        let committed = match self.protocol.commit(id, opened, now) {
            Ok(committed) => committed,
            Err(why) => {
                self.count(why);
                return None;
            }
        };
        self.hear(id, Ends { peer: canonical(outer.ends.peer), ..outer.ends });
        let entry = self.peers[id].as_mut()?;
        entry.received += datagram_len as u64;
        if awaits_data && self.protocol.established(id, now) != before {
            entry.awaits_data = false;
            self.establish(id, now);
        }
        let Committed::Data(len) = committed else {
            self.counters.keepalives_received.one();
            return None;
        };
        self.counters.datagrams_opened.one();
        let Some(header) = packet.get(..len).and_then(Header::parse) else {
            self.counters.dropped_not_ip.one();
            return None;
        };
        if self.routes.get(header.source) != Some(id) {
            self.counters.dropped_not_allowed.one();
            return None;
        }
        match ip::decapsulated(header.ecn, outer.ecn) {
            Arriving::Dropped => {
                self.counters.dropped_ecn.one();
                return None;
            }
            Arriving::As(ecn) if ecn != header.ecn => ip::set_ecn(packet, ecn),
            Arriving::As(_) => {}
        }
        Some(header.len)
    }

    /// Plans again after packets of a peer were committed: once per batch.
    pub(crate) fn committed(&mut self, id: PeerId, now: Instant) {
        self.plan(id, now);
    }

    /// A peer has proved to be at an address.
    pub(crate) fn hear(&mut self, id: PeerId, ends: Ends) {
        let Some(entry) = self.peers[id].as_mut() else { return };
        entry.own = ends.own;
        if entry.endpoint != Some(ends.peer) {
            let is_first = entry.endpoint.is_none();
            self.counters.roamed.add(u64::from(!is_first));
            // Frames that wait go in the session that the peer has just begun.
            (entry.endpoint, entry.awaits_endpoint) = (Some(ends.peer), None);
            self.known = None;
            self.has_moved |= !is_first;
            self.has_appeared |= is_first;
        }
    }

    /// This host cannot send to a peer from the address that it has spoken to.
    pub(crate) fn forget_own(&mut self, ends: Ends) {
        for entry in self.peers.iter_mut().flatten().filter(|entry| entry.ends() == Some(ends)) {
            entry.own = None;
        }
    }

    /// Packets may leave this host on another way. The route chooses the addresses that they leave
    /// from, until peers are heard again.
    pub(crate) fn forget_all_own(&mut self) {
        self.peers.iter_mut().flatten().for_each(|entry| entry.own = None);
    }

    /// A session with a peer can be used.
    fn establish(&mut self, id: PeerId, now: Instant) {
        let at = self.protocol.established(id, now).unwrap_or(now);
        let Some(entry) = self.peers[id].as_mut() else { return };
        self.undated.push((id, at));
        self.has_recovered |= entry.failed_handshakes > 0;
        (entry.awaits_answer, entry.failed_handshakes, entry.restart) = (false, 0, None);
        self.is_revived = true;
    }

    fn count(&self, why: Refused) {
        let counters = &self.counters;
        match why {
            Refused::Malformed => counters.dropped_malformed.one(),
            Refused::NoSession => counters.dropped_no_session.one(),
            Refused::WrongMac | Refused::NotAuthentic => counters.dropped_not_authentic.one(),
            Refused::Replayed => counters.dropped_replayed.one(),
            Refused::UnknownPeer => counters.dropped_unknown_peer.one(),
            Refused::RateLimited => counters.dropped_rate_limited.one(),
        }
    }

    fn initiate(&mut self, id: PeerId, now: Instant) {
        let is_held = self.holds > 0;
        let Some(entry) = self.peers[id].as_mut() else { return };
        let Some(to) = entry.ends() else { return };
        if is_held {
            entry.awaits_release |= !entry.awaits_answer;
            return;
        }
        if let Some(message) = self.protocol.initiate(id, now) {
            self.post(Some(id), to, message);
        }
    }

    fn post(&mut self, id: Option<PeerId>, mut to: Ends, message: Message) {
        match &message {
            Message::Initiation(_) => self.counters.initiations_sent.one(),
            Message::Cookie(_) => self.counters.cookies_demanded.one(),
            Message::Keepalive(_) => self.counters.keepalives_sent.one(),
            Message::Response(_) => {}
        }
        if let Some(entry) = id.and_then(|id| self.peers[id].as_mut()) {
            entry.sent += message.bytes().len() as u64;
            if matches!(message, Message::Initiation(_)) {
                entry.failed_handshakes += u32::from(entry.awaits_answer);
                self.has_failed |= entry.awaits_answer;
                if entry.awaits_answer {
                    // The address may be the reason. The route chooses, as in the kernel.
                    (entry.own, to.own) = (None, None);
                }
                (entry.awaits_answer, entry.awaits_release) = (true, false);
            }
        }
        if self.outbox.len() == OUTBOX_MAX {
            self.outbox.pop_front();
            self.counters.dropped_send_error.one();
        }
        self.outbox.push_back(Outgoing { to, message });
    }

    /// Number of messages that are to be sent.
    pub(crate) fn outgoing(&self) -> usize {
        self.outbox.len()
    }

    /// The messages that are to be sent, in order.
    pub(crate) fn take_outgoing(&mut self) -> Vec<Outgoing> {
        core::mem::take(&mut self.outbox).into()
    }

    /// Whether frames that wait may be able to go, since this was last asked.
    pub(crate) fn take_revival(&mut self) -> bool {
        core::mem::take(&mut self.is_revived)
    }

    /// Whether a peer was heard that had no address before, since this was last asked.
    pub(crate) fn take_appearance(&mut self) -> bool {
        core::mem::take(&mut self.has_appeared)
    }

    /// Whether a peer was heard from another address, since this was last asked.
    pub(crate) fn take_move(&mut self) -> bool {
        core::mem::take(&mut self.has_moved)
    }

    /// Whether a peer has answered after initiations that were not, since this was last asked.
    pub(crate) fn take_recovery(&mut self) -> bool {
        core::mem::take(&mut self.has_recovered)
    }

    /// Whether an initiation was not answered, since this was last asked.
    pub(crate) fn take_failure(&mut self) -> bool {
        core::mem::take(&mut self.has_failed)
    }

    /// Whether frames for a peer have reason to wait: a handshake is on its way, or it may get an
    /// endpoint yet.
    pub(crate) fn awaits_answer(&self, id: PeerId) -> bool {
        self.entry(id).is_some_and(|entry| {
            entry.awaits_answer
                || entry.awaits_data
                || entry.awaits_release
                || entry.awaits_endpoint.is_some()
        })
    }

    /// Whether nobody knows where a peer is.
    pub(crate) fn lacks_endpoint(&self, id: PeerId) -> bool {
        self.entry(id).is_some_and(|entry| entry.endpoint.is_none())
    }

    /// Whether there is a session with a peer.
    pub(crate) fn has_session(&self, id: PeerId, now: Instant) -> bool {
        self.protocol.established(id, now).is_some()
    }

    /// When [`advance`](Self::advance) has something to do.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadlines.first().map_or(Instant::FAR_FUTURE, |(at, _)| *at)
    }

    /// Does what is due by `now`.
    pub(crate) fn advance(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.pop_first();
            if let Some(entry) = self.peers[id].as_mut() {
                entry.deadline = Instant::FAR_FUTURE;
            }
            self.advance_peer(id, now);
        }
    }

    fn advance_peer(&mut self, id: PeerId, now: Instant) {
        while let Some(due) = self.protocol.take_due(id, now) {
            match due {
                Due::Send(message) => {
                    if let Some(to) = self.entry(id).and_then(Entry::ends) {
                        self.post(Some(id), to, message);
                    }
                }
                Due::Expired => {
                    let Some(entry) = self.peers[id].as_mut() else { return };
                    entry.failed_handshakes += u32::from(entry.awaits_answer);
                    self.has_failed |= entry.awaits_answer;
                    (entry.awaits_answer, entry.awaits_data) = (false, false);
                    // Those that wait in vain are given up.
                    self.is_revived = true;
                }
            }
        }
        if let Some(entry) = self.peers[id].as_mut()
            && entry.awaits_endpoint.is_some_and(|until| until <= now)
        {
            entry.awaits_endpoint = None;
            self.is_revived = true;
        }
        let restart = self.entry(id).and_then(|entry| entry.restart);
        if restart.is_some_and(|at| at <= now) {
            if let Some(entry) = self.peers[id].as_mut() {
                entry.restart = None;
            }
            self.initiate(id, now);
        }
        let interval = self.entry(id).and_then(|entry| entry.peer.persistent_keepalive);
        let nanos = interval.unwrap_or_default().as_nanos();
        self.keep_alive(id, now, Nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4)));
        self.plan(id, now + LEAST_PAUSE);
    }

    /// Plans a handshake `after` a time for a peer that has a persistent keepalive and no session,
    /// unless one is planned.
    fn keep_alive(&mut self, id: PeerId, now: Instant, after: Nanos) {
        let has_session = self.protocol.established(id, now).is_some();
        let Some(entry) = self.peers[id].as_mut() else { return };
        let keeps = entry.peer.persistent_keepalive.is_some_and(|every| !every.is_zero());
        let wants = keeps && entry.endpoint.is_some() && !has_session && !entry.awaits_answer;
        entry.restart = wants.then(|| entry.restart.unwrap_or(now + after));
    }

    /// Sees to it that a peer is looked at in time, and not before `earliest`.
    fn plan(&mut self, id: PeerId, earliest: Instant) {
        let due = self.protocol.deadline(id);
        let Some(entry) = self.peers[id].as_mut() else { return };
        let others = [entry.restart, entry.awaits_endpoint];
        let due = others.into_iter().flatten().fold(due, Instant::min).max(earliest);
        if due < entry.deadline {
            self.deadlines.remove(&(entry.deadline, id));
            entry.deadline = due;
            self.deadlines.insert((due, id));
        }
    }
}

impl Entry {
    fn new(peer: Peer) -> Self {
        Self {
            endpoint: peer.endpoint.map(canonical),
            own: None,
            peer,
            deadline: Instant::FAR_FUTURE,
            restart: None,
            awaits_endpoint: None,
            awaits_answer: false,
            awaits_data: false,
            awaits_release: false,
            latest_handshake: None,
            received: 0,
            sent: 0,
            failed_handshakes: 0,
        }
    }

    fn ends(&self) -> Option<Ends> {
        Some(Ends { peer: self.endpoint?, own: self.own })
    }
}

impl<P> core::fmt::Debug for Engine<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Engine").field("peers", &self.order.len()).finish_non_exhaustive()
    }
}

/// An IPv4 address as one, also where a socket of IPv6 tells it. Others keep their zone.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, address.port())),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod lab;
#[cfg(test)]
mod tests;
