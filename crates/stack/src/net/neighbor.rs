//! Neighbours of one interface: the link addresses of IP addresses, for ARP and neighbour
//! discovery.
//!
//! States and times are Linux's (`net/core/neighbour.c`; RFC 4861 section 7.3). The table sends
//! nothing: requests to send and failures are put into an [`Outcome`].
//!
//! Cost: one keyed hash per lookup; a timing wheel for entries that probe (an entry that is merely
//! reachable or stale has no timer); a scan of the table only to make room in a full one. At most
//! 1024 entries of 160 bytes. Held frames take 212,992 bytes for one neighbour and 6 MiB for all.

use crate::frame::Frame;
use crate::keyed::Keyed;
use crate::wheel::Wheel;
use core::hash::BuildHasher;
use core::net::IpAddr;
use hashbrown::HashTable;
use neap_tcp::time::{Instant, Nanos};
use slab::Slab;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Ethernet address.
pub type LinkAddress = [u8; 6];

/// `gc_thresh3`: most entries.
const MAX_ENTRIES: usize = 1024;
/// `base_reachable_time`: a neighbour that answered counts as reachable for half to one and a half
/// times this.
const BASE_REACHABLE_TIME: Nanos = Nanos::from_secs(30);
/// `delay_first_probe_time`: time before a stale neighbour in use is asked, for an answer or an
/// announcement that comes by itself.
const DELAY_FIRST_PROBE_TIME: Nanos = Nanos::from_secs(5);
/// `retrans_time`: time between requests.
const RETRANS_TIME: Nanos = Nanos::from_secs(1);
/// `mcast_solicit` and `ucast_solicit`: requests without answer before an entry fails.
const PROBES: u8 = 3;
/// `unres_qlen_bytes`: bytes held for one neighbour.
const UNRES_QLEN_BYTES: usize = 212_992;
/// `unres_qlen`: frames held for one neighbour.
const UNRES_QLEN: usize = 101;
/// Bytes held for all neighbours, but for [`SPARE_BYTES`] of each. Linux has a bound of each only,
/// and charges sockets for what waits.
const HELD_BYTES: usize = 4 << 20;
/// Bytes that wait for a neighbour however much waits for others, which may be many that do not
/// exist: a packet of Ethernet, or a few short ones.
const SPARE_BYTES: usize = 2 << 10;
/// A neighbour that a frame has used within this time loses its place to none that is still to
/// answer: as many of these as there are places may be addresses that nobody has.
const IN_USE: Nanos = Nanos::from_secs(5);
/// `locktime` of ARP: of several answers to one request the first counts.
const LOCKTIME: Nanos = Nanos::from_secs(1);

/// What an answer or an announcement says of a neighbour.
#[derive(Clone, Copy, Debug)]
pub struct Advertisement {
    /// Where it is. `None` confirms the address that is known: who is asked at it need not repeat
    /// it (RFC 4861 section 7.2.4), and Linux does not.
    pub link: Option<LinkAddress>,
    /// It answers a request of this host.
    pub solicited: bool,
    /// It may change a known link address (ND's override flag; always for ARP).
    pub replace: bool,
    /// The neighbour claims its address by itself (gratuitous ARP). Of several answers to one
    /// request the first counts, of claims the last (`arp_process`).
    pub is_claim: bool,
}

/// State of a neighbour, by the names that `ip neighbour` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NeighborState {
    /// The link address is not known yet. Requests are under way, and frames wait.
    Incomplete,
    /// The neighbour is known to answer.
    Reachable,
    /// The link address may be outdated, and no packet uses it.
    Stale,
    /// The link address may be outdated, and packets use it. The neighbour is asked soon.
    Delay,
    /// The neighbour is asked directly whether it is still there. Packets use the address
    /// meanwhile.
    Probe,
    /// The neighbour did not answer.
    Failed,
    /// Named by the application: never asked, and never changed by what arrives.
    Permanent,
}

/// Request for a link address that has to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicit {
    /// Neighbour whose link address is asked for.
    pub target: IpAddr,
    /// Receiver of the request: a known link address, or `None` for broadcast and multicast.
    pub to: Option<LinkAddress>,
}

/// Link address of a neighbour that a packet goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The link address.
    pub link: LinkAddress,
    /// When to call [`Neighbors::on_deadline`] next, if that has changed: the packet is the first
    /// one to use an address that may be outdated.
    pub due: Option<Instant>,
}

/// Actions that the stack takes after a call of [`Neighbors`]. Reuse one: it allocates only while
/// frames are held.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Requests to send.
    pub solicit: SmallVec<[Solicit; 2]>,
    /// Frames that waited and may go to this link address, in order.
    pub send: Vec<(LinkAddress, Frame)>,
    /// Frames whose next hop does not answer: the host is unreachable.
    pub failed: Vec<(IpAddr, Frame)>,
    /// Frames that waited and were dropped to make room.
    pub discarded: Vec<Frame>,
}

/// Entry of the neighbour table, a line of `ip neighbour`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Neighbor {
    /// IP address.
    pub address: IpAddr,
    /// Link address, if one is known.
    pub link: Option<LinkAddress>,
    /// State of the entry.
    pub state: NeighborState,
}

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    link: LinkAddress,
    state: NeighborState,
    probes: u8,
    /// When the timer of the state is due; [`Instant::FAR_FUTURE`] in states without one.
    deadline: Instant,
    /// Reachable until then.
    reachable_until: Instant,
    /// When the link address last changed or was confirmed by ARP or ND.
    updated: Instant,
    /// When a frame last asked for it; zero if none did.
    used: Instant,
    held: VecDeque<Frame>,
    held_bytes: usize,
}

impl Entry {
    fn new(address: IpAddr) -> Self {
        Self {
            address,
            link: [0; 6],
            state: NeighborState::Failed,
            probes: 0,
            deadline: Instant::FAR_FUTURE,
            reachable_until: Instant::ZERO,
            updated: Instant::ZERO,
            used: Instant::ZERO,
            held: VecDeque::new(),
            held_bytes: 0,
        }
    }

    fn state_at(&self, now: Instant) -> NeighborState {
        match self.state {
            NeighborState::Reachable if now >= self.reachable_until => NeighborState::Stale,
            state => state,
        }
    }

    /// Whether the first answer of late keeps others out.
    fn is_locked(&self, now: Instant) -> bool {
        self.address.is_ipv4() && now.since(self.updated) < LOCKTIME
    }

    fn has_link(&self) -> bool {
        !matches!(self.state, NeighborState::Incomplete | NeighborState::Failed)
    }

    /// Which entry is given up first for a new one: the least; `None` for those at work.
    fn worth(&self, now: Instant) -> Option<(u8, Instant)> {
        match self.state_at(now) {
            NeighborState::Failed => Some((0, self.used)),
            NeighborState::Stale => Some((1, self.used)),
            NeighborState::Reachable => Some((2, self.used)),
            NeighborState::Incomplete
            | NeighborState::Delay
            | NeighborState::Probe
            | NeighborState::Permanent => None,
        }
    }

    fn solicit(&mut self, now: Instant, out: &mut Outcome) {
        let to = (self.state == NeighborState::Probe).then_some(self.link);
        out.solicit.push(Solicit { target: self.address, to });
        self.probes += 1;
        self.deadline = now + RETRANS_TIME;
    }

    /// Holds a frame. `of_all` is what all entries hold, in bytes.
    fn hold(&mut self, frame: Frame, of_all: &mut usize, out: &mut Outcome) {
        *of_all += memory_of(&frame);
        self.held_bytes += memory_of(&frame);
        self.held.push_back(frame);
        while self.held.len() > UNRES_QLEN
            || self.held_bytes > UNRES_QLEN_BYTES
            || (*of_all > HELD_BYTES && self.held_bytes > SPARE_BYTES)
        {
            let Some(oldest) = self.held.pop_front() else { break };
            self.held_bytes -= memory_of(&oldest);
            *of_all -= memory_of(&oldest);
            out.discarded.push(oldest);
        }
    }

    fn take_held(&mut self, of_all: &mut usize) -> VecDeque<Frame> {
        *of_all -= core::mem::take(&mut self.held_bytes);
        core::mem::take(&mut self.held)
    }
}

/// What a frame that is held takes, in bytes: a short one is mostly what describes it.
fn memory_of(frame: &Frame) -> usize {
    frame.len() + size_of::<Frame>()
}

/// Neighbour table of one interface.
#[derive(Debug)]
pub struct Neighbors {
    entries: Slab<Entry>,
    by_address: HashTable<usize>,
    key: Keyed,
    random: u64,
    wheel: Wheel,
    /// What all entries hold.
    held_bytes: usize,
    overflows: u64,
    /// The interface is no longer part of a host.
    is_closed: bool,
}

impl Neighbors {
    /// Returns an empty table. `seed` is random: it keys the hash and spreads the reachable times.
    pub fn new(seed: u64) -> Self {
        Self {
            entries: Slab::new(),
            by_address: HashTable::new(),
            key: Keyed::new(seed),
            random: seed,
            wheel: Wheel::new(Nanos::from_millis(1)),
            held_bytes: 0,
            overflows: 0,
            is_closed: false,
        }
    }

    /// Returns the link address to send to, if it is known. Otherwise the frame goes to
    /// [`hold`](Self::hold).
    pub fn resolve(&mut self, now: Instant, address: IpAddr) -> Option<Resolved> {
        let key = self.find(address)?;
        let entry = &mut self.entries[key];
        entry.used = now;
        if !entry.has_link() {
            return None;
        }
        let is_stale = entry.state_at(now) == NeighborState::Stale;
        let link = entry.link;
        if is_stale {
            entry.state = NeighborState::Delay;
            entry.deadline = now + DELAY_FIRST_PROBE_TIME;
            self.wheel.insert(entry.deadline, key as u64);
        }
        Some(Resolved { link, due: is_stale.then(|| self.deadline()) })
    }

    /// Returns whether the link address of a neighbour is known, though it may be outdated.
    pub fn is_known(&self, address: IpAddr) -> bool {
        self.find(address).is_some_and(|key| self.entries[key].has_link())
    }

    /// Keeps a frame until its next hop has answered, and asks for that. At most 101 frames or
    /// 212,992 bytes wait for one neighbour, and 2 KiB once 4 MiB wait for all; its oldest are
    /// dropped.
    pub fn hold(&mut self, now: Instant, address: IpAddr, frame: Frame, out: &mut Outcome) {
        if self.is_closed {
            out.discarded.push(frame);
            return;
        }
        // Whoever has shown nothing takes no place of a neighbour in use.
        let Some(key) = self.find(address).or_else(|| self.add(now, IN_USE, address)) else {
            self.overflows += 1;
            out.failed.push((address, frame));
            return;
        };
        let entry = &mut self.entries[key];
        entry.used = now;
        if entry.has_link() {
            out.send.push((entry.link, frame));
            return;
        }
        entry.hold(frame, &mut self.held_bytes, out);
        if entry.state == NeighborState::Failed {
            entry.state = NeighborState::Incomplete;
            entry.probes = 0;
            entry.solicit(now, out);
            self.wheel.insert(entry.deadline, key as u64);
        }
    }

    /// Takes an answer (an ARP reply to this host, a neighbour advertisement) or an announcement
    /// (gratuitous ARP). An answer without a request is ignored.
    pub fn on_advertisement(
        &mut self,
        now: Instant,
        address: IpAddr,
        advertisement: Advertisement,
        out: &mut Outcome,
    ) {
        let Advertisement { link, solicited, replace, is_claim } = advertisement;
        let Some(key) = self.find(address) else { return };
        let entry = &self.entries[key];
        if entry.state == NeighborState::Permanent {
            return;
        }
        let Some(link) = link.or(entry.has_link().then_some(entry.link)) else { return };
        let changes = entry.has_link() && entry.link != link;
        if changes && !replace {
            // RFC 4861 section 7.2.5: a doubt, no knowledge.
            if entry.state == NeighborState::Reachable {
                self.entries[key].reachable_until = now;
            }
            return;
        }
        if changes && entry.is_locked(now) && !is_claim {
            return;
        }
        if solicited {
            self.learn(now, key, link, NeighborState::Reachable, out);
        } else if changes || !entry.has_link() {
            self.learn(now, key, link, NeighborState::Stale, out);
        }
    }

    /// Takes the link address of a neighbour that asks for this host (an ARP request, a neighbour
    /// solicitation with its option), since it will want an answer soon.
    pub fn on_solicited_by(
        &mut self,
        now: Instant,
        address: IpAddr,
        link: LinkAddress,
        out: &mut Outcome,
    ) {
        let Some(key) = self.find(address).or_else(|| self.add(now, Nanos::ZERO, address)) else {
            self.overflows += 1;
            return;
        };
        let entry = &self.entries[key];
        if entry.state == NeighborState::Permanent {
            return;
        }
        let changes = entry.has_link() && entry.link != link;
        if !entry.has_link() || (changes && !entry.is_locked(now)) {
            self.learn(now, key, link, NeighborState::Stale, out);
        }
    }

    /// Names the link address of a neighbour for good (`ip neighbour replace ... nud permanent`).
    /// False if all entries are at work.
    pub fn set_permanent(
        &mut self,
        now: Instant,
        address: IpAddr,
        link: LinkAddress,
        out: &mut Outcome,
    ) -> bool {
        let Some(key) = self.find(address).or_else(|| self.add(now, Nanos::ZERO, address)) else {
            return false;
        };
        self.learn(now, key, link, NeighborState::Permanent, out);
        true
    }

    /// Forgets a neighbour. The frames that waited for it, or `None` if it was not known.
    pub fn remove(&mut self, address: IpAddr) -> Option<Vec<Frame>> {
        let key = self.find(address)?;
        Some(self.remove_entry(key).into())
    }

    /// Forgets all neighbours that are not permanent. The frames that waited for them.
    pub fn flush(&mut self) -> Vec<Frame> {
        self.remove_all(|entry| entry.state != NeighborState::Permanent)
    }

    /// Forgets all neighbours, and holds no frame from now on. The frames that waited.
    pub fn close(&mut self) -> Vec<Frame> {
        self.is_closed = true;
        self.remove_all(|_| true)
    }

    fn remove_all(&mut self, which: impl Fn(&Entry) -> bool) -> Vec<Frame> {
        let entries = self.entries.iter().filter(|(_, entry)| which(entry));
        let keys: Vec<_> = entries.map(|(key, _)| key).collect();
        keys.into_iter().flat_map(|key| self.remove_entry(key)).collect()
    }

    fn remove_entry(&mut self, key: usize) -> VecDeque<Frame> {
        let mut gone = self.entries.remove(key);
        self.wheel.remove(key as u64);
        let hash = self.key.hash_one(gone.address);
        if let Ok(place) = self.by_address.find_entry(hash, |&one| one == key) {
            place.remove();
        }
        gone.take_held(&mut self.held_bytes)
    }

    /// Returns when to call [`on_deadline`](Self::on_deadline) next.
    pub fn deadline(&self) -> Instant {
        self.wheel.next()
    }

    /// Sends requests again, and fails entries that stay without an answer.
    pub fn on_deadline(&mut self, now: Instant, out: &mut Outcome) {
        let mut due = SmallVec::<[u64; 16]>::new();
        self.wheel.expire(now, &mut |key| due.push(key));
        for key in due {
            let Some(entry) = self.entries.get(key as usize) else { continue };
            if entry.deadline <= now {
                self.on_timer(now, key as usize, out);
            }
            if let Some(entry) = self.entries.get(key as usize) {
                self.wheel.insert(entry.deadline, key);
            }
        }
    }

    /// Returns how many frames and requests were refused because all entries were in use
    /// (`table_fulls`).
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Returns all entries, for `ip neighbour`.
    pub fn iter(&self, now: Instant) -> impl Iterator<Item = Neighbor> + '_ {
        self.entries.iter().map(move |(_, entry)| Neighbor {
            address: entry.address,
            link: entry.has_link().then_some(entry.link),
            state: entry.state_at(now),
        })
    }

    fn on_timer(&mut self, now: Instant, key: usize, out: &mut Outcome) {
        let entry = &mut self.entries[key];
        match entry.state {
            NeighborState::Delay => {
                entry.state = NeighborState::Probe;
                entry.probes = 0;
                entry.solicit(now, out);
            }
            NeighborState::Incomplete | NeighborState::Probe if entry.probes < PROBES => {
                entry.solicit(now, out);
            }
            NeighborState::Incomplete | NeighborState::Probe => {
                entry.state = NeighborState::Failed;
                entry.deadline = Instant::FAR_FUTURE;
                let address = entry.address;
                let held = entry.take_held(&mut self.held_bytes);
                out.failed.extend(held.into_iter().map(|frame| (address, frame)));
            }
            NeighborState::Reachable
            | NeighborState::Stale
            | NeighborState::Failed
            | NeighborState::Permanent => {}
        }
    }

    fn learn(
        &mut self,
        now: Instant,
        key: usize,
        link: LinkAddress,
        state: NeighborState,
        out: &mut Outcome,
    ) {
        let reachable_until = now + self.reachable_time();
        let entry = &mut self.entries[key];
        if !entry.has_link() || (entry.link, entry.state) != (link, state) {
            entry.updated = now;
        }
        entry.link = link;
        entry.state = state;
        entry.deadline = Instant::FAR_FUTURE;
        entry.probes = 0;
        if state == NeighborState::Reachable {
            entry.reachable_until = reachable_until;
        }
        let held = entry.take_held(&mut self.held_bytes);
        if held.is_empty() {
            return;
        }
        out.send.extend(held.into_iter().map(|frame| (link, frame)));
        // Frames leave for it: the way through `resolve` starts the check of a stale entry.
        let address = self.entries[key].address;
        self.resolve(now, address);
    }

    fn find(&self, address: IpAddr) -> Option<usize> {
        let same = |&key: &usize| self.entries[key].address == address;
        self.by_address.find(self.key.hash_one(address), same).copied()
    }

    /// A new entry, in the place of the one that is missed least if the table is full: of one that
    /// no frame has used for `idle`, if it is known.
    fn add(&mut self, now: Instant, idle: Nanos, address: IpAddr) -> Option<usize> {
        if self.entries.len() >= MAX_ENTRIES {
            let worth = |(key, entry): (usize, &Entry)| Some((entry.worth(now)?, key));
            let (_, least) = self.entries.iter().filter_map(worth).min()?;
            let entry = &self.entries[least];
            let is_used = entry.used > Instant::ZERO && now.since(entry.used) < idle;
            if is_used && entry.has_link() {
                return None;
            }
            let held = self.remove_entry(least);
            debug_assert!(held.is_empty(), "frames wait only for entries at work");
        }
        let key = self.entries.insert(Entry::new(address));
        let (entries, hasher) = (&self.entries, self.key);
        self.by_address.insert_unique(hasher.hash_one(address), key, |&key| {
            hasher.hash_one(entries[key].address)
        });
        Some(key)
    }

    /// Half to one and a half times the base (`neigh_rand_reach_time`; RFC 4861 section 6.3.2).
    fn reachable_time(&mut self) -> Nanos {
        // An LCG is random enough to keep neighbours from probing in step.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Nanos(BASE_REACHABLE_TIME.0 / 2 + (self.random >> 16) % BASE_REACHABLE_TIME.0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::test_frame;

    const MAC: LinkAddress = [2, 0, 0, 0, 0, 1];
    const OTHER: LinkAddress = [2, 0, 0, 0, 0, 2];

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Nanos::from_secs(seconds)
    }

    fn host(n: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + n).into())
    }

    fn frame(flow: u64) -> Frame {
        Frame { flow, ..test_frame(100) }
    }

    fn state(table: &Neighbors, now: Instant, address: IpAddr) -> Option<NeighborState> {
        table.iter(now).find(|n| n.address == address).map(|n| n.state)
    }

    /// A table in which host 1 answered at second 1.
    fn resolved() -> Neighbors {
        let mut table = Neighbors::new(1);
        let mut out = Outcome::default();
        table.hold(at(1), host(1), frame(1), &mut out);
        table.on_advertisement(at(1), host(1), said(Some(MAC), true, true), &mut out);
        assert_eq!(out.send.len(), 1);
        table
    }

    /// Runs the timers until `until`, as a driver would.
    fn run(table: &mut Neighbors, until: Instant) -> Outcome {
        let mut out = Outcome::default();
        while table.deadline() <= until {
            table.on_deadline(table.deadline(), &mut out);
        }
        out
    }

    fn link(table: &mut Neighbors, seconds: u64) -> Option<LinkAddress> {
        table.resolve(at(seconds), host(1)).map(|resolved| resolved.link)
    }

    fn said(link: Option<LinkAddress>, solicited: bool, replace: bool) -> Advertisement {
        Advertisement { link, solicited, replace, is_claim: false }
    }

    #[test]
    fn of_several_claims_of_an_address_the_last_one_counts() {
        let mut table = resolved();
        for (second, claimed) in [(1, OTHER), (1, MAC), (2, OTHER)] {
            let claim = Advertisement { is_claim: true, ..said(Some(claimed), false, true) };
            let mut out = Outcome::default();
            table.on_advertisement(at(second), host(1), claim, &mut out);
            assert_eq!(link(&mut table, second), Some(claimed), "{second}");
        }
    }

    #[test]
    fn frames_wait_for_the_answer_and_leave_in_order() {
        let mut table = Neighbors::new(1);
        let mut out = Outcome::default();
        assert_eq!(link(&mut table, 0), None);
        for flow in 0..3 {
            table.hold(at(0), host(1), frame(flow), &mut out);
        }
        assert_eq!(out.solicit[..], [Solicit { target: host(1), to: None }], "one request");
        assert_eq!(table.deadline(), at(1));
        table.on_advertisement(at(0), host(1), said(Some(MAC), true, true), &mut out);
        let sent: Vec<_> = out.send.iter().map(|(link, frame)| (*link, frame.flow)).collect();
        assert_eq!(sent, [(MAC, 0), (MAC, 1), (MAC, 2)]);
        assert_eq!(link(&mut table, 0), Some(MAC));
        let out = run(&mut table, at(1000));
        assert!(out.solicit.is_empty(), "an idle neighbour is left alone");
        assert_eq!(state(&table, at(14), host(1)), Some(NeighborState::Reachable));
        assert_eq!(state(&table, at(45), host(1)), Some(NeighborState::Stale));
    }

    #[test]
    fn a_silent_neighbour_fails_after_three_requests_and_can_be_tried_again() {
        let mut table = Neighbors::new(1);
        let mut out = Outcome::default();
        table.hold(at(0), host(1), frame(7), &mut out);
        assert!(run(&mut table, at(3) - Nanos(1)).failed.is_empty());
        let mut out = run(&mut table, at(3));
        assert_eq!(state(&table, at(3), host(1)), Some(NeighborState::Failed));
        assert_eq!((out.failed.len(), out.failed[0].0, out.failed[0].1.flow), (1, host(1), 7));
        assert_eq!(table.deadline(), Instant::FAR_FUTURE);
        table.hold(at(4), host(1), frame(8), &mut out);
        let out = run(&mut table, at(10));
        assert_eq!((out.solicit.len(), out.failed.len()), (2, 1), "and the first at once");
    }

    #[test]
    fn what_waits_for_one_neighbour_is_bounded() {
        let mut table = Neighbors::new(1);
        let mut out = Outcome::default();
        for flow in 0..150 {
            table.hold(at(0), host(1), frame(flow), &mut out);
        }
        let discarded: Vec<_> = out.discarded.iter().map(|frame| frame.flow).collect();
        assert_eq!(discarded, (0..49).collect::<Vec<_>>(), "the oldest");
        for _ in 0..4 {
            table.hold(at(0), host(2), test_frame(64_000), &mut out);
        }
        assert_eq!(out.discarded.len(), 50);
        assert_eq!(out.solicit.len(), 2);
    }

    #[test]
    fn what_waits_for_all_neighbours_is_bounded_and_each_has_room_for_a_packet() {
        let mut table = Neighbors::new(1);
        let mut out = Outcome::default();
        let held = |table: &Neighbors| {
            let held = table.entries.iter().flat_map(|(_, entry)| &entry.held);
            held.map(|frame| frame.len() + size_of::<Frame>()).sum::<usize>()
        };
        for n in 0..1000 {
            for _ in 0..4 {
                table.hold(at(0), host(n), test_frame(40_000), &mut out);
            }
        }
        assert!(held(&table) <= 4 << 20, "{}", held(&table));
        for n in 0..1024 {
            table.hold(at(0), host(n), frame(n.into()), &mut out);
        }
        assert_eq!(out.discarded.iter().filter(|frame| frame.len() == 100).count(), 0);
        for _ in 0..100 {
            for n in 0..1024 {
                table.hold(at(0), host(n), frame(n.into()), &mut out);
            }
        }
        assert!(held(&table) <= 6 << 20, "{}", held(&table));
        let waiting: usize = table.entries.iter().map(|(_, entry)| entry.held.len()).sum();
        assert_eq!(out.discarded.len() + waiting, 4000 + 101 * 1024, "each is held or counted");
        run(&mut table, at(3));
        assert_eq!((held(&table), table.held_bytes), (0, 0));
    }

    #[test]
    fn a_stale_neighbour_in_use_is_asked_again() {
        let mut table = resolved();
        run(&mut table, at(200));
        let first = table.resolve(at(200), host(1));
        assert_eq!(first, Some(Resolved { link: MAC, due: Some(at(205)) }));
        assert_eq!(state(&table, at(200), host(1)), Some(NeighborState::Delay));
        let second = table.resolve(at(201), host(1));
        assert_eq!(second, Some(Resolved { link: MAC, due: None }), "it is known already");
        let out = run(&mut table, at(206));
        assert_eq!(out.solicit[..], [Solicit { target: host(1), to: Some(MAC) }; 2]);
        assert_eq!(link(&mut table, 206), Some(MAC), "in use meanwhile");
        let mut out = Outcome::default();
        table.on_advertisement(at(206), host(1), said(Some(MAC), true, false), &mut out);
        assert_eq!(state(&table, at(206), host(1)), Some(NeighborState::Reachable));

        table.resolve(at(300), host(1));
        let out = run(&mut table, at(400));
        assert_eq!(out.solicit.len(), 3);
        assert_eq!(link(&mut table, 400), None);
    }

    #[test]
    fn a_changed_link_address_is_believed_by_the_rules() {
        let mut table = resolved();
        let mut out = Outcome::default();
        table.on_advertisement(at(1), host(1), said(Some(OTHER), true, true), &mut out);
        assert_eq!(link(&mut table, 1), Some(MAC), "the first answer counts");
        table.on_advertisement(at(3), host(1), said(Some(OTHER), true, false), &mut out);
        assert_eq!(
            table.iter(at(3)).next().map(|n| n.state),
            Some(NeighborState::Stale),
            "a doubt"
        );
        table.on_advertisement(at(3), host(1), said(Some(OTHER), false, true), &mut out);
        assert_eq!(link(&mut table, 3), Some(OTHER));
        table.on_solicited_by(at(5), host(1), MAC, &mut out);
        assert_eq!(link(&mut table, 5), Some(MAC));
        table.on_advertisement(at(5), host(9), said(Some(OTHER), true, true), &mut out);
        assert_eq!(table.resolve(at(5), host(9)), None, "nobody asked");
    }

    #[test]
    fn one_that_asks_is_known_when_the_answer_leaves() {
        let mut table = Neighbors::new(1);
        let mut out = Outcome::default();
        table.on_solicited_by(at(0), host(1), MAC, &mut out);
        assert_eq!(state(&table, at(0), host(1)), Some(NeighborState::Stale));
        assert_eq!(link(&mut table, 0), Some(MAC));
        table.hold(at(0), host(2), frame(1), &mut out);
        table.on_solicited_by(at(0), host(2), OTHER, &mut out);
        assert_eq!(out.send.len(), 1);
        assert_eq!(state(&table, at(0), host(2)), Some(NeighborState::Delay));
        assert_eq!(table.deadline(), at(1), "the old timer finds nothing to do");
        let out = run(&mut table, at(4));
        assert!(out.solicit.is_empty());
        assert_eq!(table.deadline(), at(5));
    }

    #[test]
    fn strangers_cannot_push_out_neighbours_in_use() {
        let mut table = resolved();
        let mut out = Outcome::default();
        table.resolve(at(2), host(1));
        for n in 2..5000 {
            table.on_solicited_by(at(2), host(n), OTHER, &mut out);
        }
        assert_eq!(table.iter(at(2)).count(), 1024);
        assert_eq!(link(&mut table, 2), Some(MAC));
        assert_eq!(table.by_address.len(), 1024);
    }

    #[test]
    fn addresses_that_nobody_has_do_not_push_out_a_neighbour_in_use() {
        let mut table = resolved();
        let mut out = Outcome::default();
        table.resolve(at(2), host(1));
        for n in 2..5000 {
            table.hold(at(3), host(n), frame(1), &mut out);
        }
        assert_eq!(link(&mut table, 3), Some(MAC));
        assert_eq!((out.failed.len(), table.overflows()), (4998 - 1023, 4998 - 1023), "counted");
        for n in 5000..5002 {
            table.on_solicited_by(at(3), host(n), OTHER, &mut out);
        }
        assert_eq!(table.iter(at(3)).count(), 1024);
        // One that is not used any more makes room.
        let mut table = resolved();
        for n in 2..1026 {
            table.hold(at(9), host(n), frame(1), &mut out);
        }
        assert_eq!((table.iter(at(9)).count(), table.overflows()), (1024, 0));
    }

    #[test]
    fn a_table_full_of_unanswered_requests_refuses_more() {
        let mut table = Neighbors::new(1);
        let mut out = Outcome::default();
        for n in 0..1025 {
            table.hold(at(0), host(n), frame(1), &mut out);
        }
        assert_eq!((out.failed.len(), table.overflows()), (1, 1));
        let failed = run(&mut table, at(3));
        assert_eq!(failed.failed.len(), 1024);
        table.hold(at(4), host(5000), frame(1), &mut out);
        assert_eq!((out.failed.len(), table.iter(at(4)).count()), (1, 1024));
    }
}
