//! The queue of a hop: how much fits, who is dropped or marked, and what serves it.
//!
//! A queue that decides when a packet comes knows at once when it will have left; then nothing more
//! happens here, and the hop costs no event. CoDel and wifi decide when a packet leaves: such a
//! queue holds its packets and wants one event per departure.

use super::config::{Bottleneck, CoDel, Discipline, PathConfig, Policer, Red, Wifi};
use super::packet::{Packet, network_len};
use super::service::{Follower, Serializer, Service, Unsent};
use super::stats::LinkStats;
use crate::rng::{Ppm, Rng};
use neap_tcp::time::{Instant, Nanos, Rate};
use std::collections::VecDeque;

/// A policer's bucket, which begins full. Tokens are times: how long bytes take at its rate.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: Rate,
    size: Nanos,
    /// When the bucket was or will be full.
    full_at: Instant,
}

impl Bucket {
    pub(super) fn new(config: Policer) -> Self {
        let Policer { rate, burst } = config;
        Self { rate, size: rate.time_for(burst), full_at: Instant::ZERO }
    }

    /// Whether a packet that comes at `at` conforms.
    pub(super) fn admits(&mut self, at: Instant, bytes: u64) -> bool {
        let full_at = self.full_at.max(at) + self.rate.time_for(bytes);
        let conforms = full_at.since(at) <= self.size;
        if conforms {
            self.full_at = full_at;
        }
        conforms
    }
}

/// The smoothed backlog that [`Red`] judges by.
#[derive(Debug, Default)]
struct RedState {
    mean: f64,
    since_last: u32,
    idle_since: Option<Instant>,
}

/// `base` to the power `n` by products only, which are the same on every machine.
fn power(mut base: f64, mut n: u64) -> f64 {
    let mut product = 1.0;
    while n > 0 {
        if n & 1 == 1 {
            product *= base;
        }
        base *= base;
        n >>= 1;
    }
    product
}

impl RedState {
    /// Whether a packet that finds `backlog` bytes is to be dropped or marked. `typical` is the
    /// time of one packet on the wire, in which an idle queue forgets as much as by an arrival.
    fn hits(
        &mut self,
        red: &Red,
        at: Instant,
        backlog: u64,
        typical: Nanos,
        rng: &mut Rng,
    ) -> bool {
        let weight = 1.0 / f64::from(1u32 << red.weight_log.min(30));
        if let Some(since) = self.idle_since.take() {
            self.mean *= power(1.0 - weight, at.since(since).0 / typical.0.max(1));
        }
        self.mean += (backlog as f64 - self.mean) * weight;
        if self.mean < red.min as f64 {
            self.since_last = 0;
            return false;
        }
        if self.mean >= red.max as f64 {
            self.since_last = 0;
            return true;
        }
        let span = (red.max - red.min).max(1) as f64;
        let share = f64::from(red.probability.0) * (self.mean - red.min as f64) / span;
        // Spread evenly: the chance grows with the packets since the last hit.
        let spread = 1e6 - f64::from(self.since_last) * share;
        let chance = if spread <= share { 1e6 } else { 1e6 * share / spread };
        let hit = rng.chance(Ppm(chance as u32));
        self.since_last = if hit { 0 } else { self.since_last + 1 };
        hit
    }
}

/// A hop with its queue.
#[derive(Debug)]
pub(super) enum Hop {
    AtArrival(Box<AtArrival>),
    AtDeparture(Box<AtDeparture>),
}

impl Hop {
    /// The hop of this path, if it has one; a router's port always has.
    pub(super) fn of(path: &PathConfig, start: Instant, is_router: bool) -> Option<Self> {
        let is_managed = path.discipline != Discipline::DropTail;
        let is_special = is_managed || path.trace.is_some() || path.wifi.is_some();
        if path.bottleneck.is_none() && !is_special && !is_router {
            return None;
        }
        let limits = path.bottleneck.clone().unwrap_or(Bottleneck {
            rate: path.rate,
            packets: 1000,
            bytes: u64::MAX,
        });
        let service = match &path.trace {
            Some(trace) => Service::Trace(Follower::new(trace.clone(), start)),
            None => Service::Constant(Serializer::new(limits.rate)),
        };
        if path.wifi.is_none() && !matches!(path.discipline, Discipline::CoDel(_)) {
            let hop = AtArrival {
                is_wire: is_router,
                discipline: path.discipline,
                limits,
                service,
                red: RedState::default(),
                known: VecDeque::new(),
                left: 0,
                bytes: 0,
            };
            return Some(Self::AtArrival(Box::new(hop)));
        }
        let codel = match path.discipline {
            Discipline::CoDel(config) => Some(CoDelState::new(config)),
            _ => None,
        };
        Some(Self::AtDeparture(Box::new(AtDeparture {
            is_wire: is_router,
            limits,
            service,
            codel,
            wifi: path.wifi,
            incoming: VecDeque::new(),
            queue: VecDeque::new(),
            bytes: 0,
            free: Instant::ZERO,
            last: Unsent::default(),
            since: Vec::new(),
        })))
    }

    /// A packet comes `at` this time, which may be later than `now`. If it is known when it leaves:
    /// then, and it; `None` if the hop keeps it or has dropped it.
    pub(super) fn enter(
        &mut self,
        [now, at]: [Instant; 2],
        packet: Box<Packet>,
        on_wire: u64,
        early: &mut Rng,
        stats: &mut LinkStats,
    ) -> Option<(Instant, Box<Packet>)> {
        match self {
            Self::AtArrival(hop) => {
                hop.prune(now);
                hop.enter(at, packet, on_wire, early, stats)
            }
            Self::AtDeparture(hop) => {
                hop.incoming.push_back(Queued { at, packet, on_wire });
                None
            }
        }
    }

    /// When something happens inside.
    pub(super) fn next_event(&self) -> Instant {
        match self {
            Self::AtArrival(_) => Instant::FAR_FUTURE,
            Self::AtDeparture(hop) => hop.next_event(),
        }
    }

    /// Lets out what leaves by `now`.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        stats: &mut LinkStats,
        out: &mut Vec<(Instant, Box<Packet>)>,
    ) {
        if let Self::AtDeparture(hop) = self {
            hop.advance(now, stats, out);
        }
    }

    /// Packets and bytes in the queue at `now`. O(n) of them.
    pub(super) fn backlog(&self, now: Instant) -> (usize, u64) {
        match self {
            Self::AtArrival(hop) => {
                let waits = hop.known.iter().filter(|one| one.at <= now && one.left > now);
                waits.fold((0, 0), |(count, bytes), one| (count + 1, bytes + one.on_wire))
            }
            Self::AtDeparture(hop) => hop.backlog(now),
        }
    }

    /// What was counted as carried and has not left at `now`. O(n) of the packets that wait, where
    /// a trace serves them.
    pub(super) fn unsent(&self, now: Instant) -> Unsent {
        match self {
            Self::AtArrival(hop) => hop.unsent(now),
            Self::AtDeparture(hop) => hop.unsent(now),
        }
    }

    /// Packets that the hop keeps.
    pub(super) fn contents(&self) -> usize {
        match self {
            Self::AtArrival(_) => 0,
            Self::AtDeparture(hop) => hop.incoming.len() + hop.queue.len(),
        }
    }

    /// Another rate from now on; a trace goes on as it is.
    pub(super) fn set_rate(&mut self, rate: Rate) {
        let (service, limits) = match self {
            Self::AtArrival(hop) => (&mut hop.service, &mut hop.limits),
            Self::AtDeparture(hop) => (&mut hop.service, &mut hop.limits),
        };
        if service.set_rate(rate) {
            limits.rate = rate;
        }
    }
}

/// A packet whose time in the queue is known.
#[derive(Clone, Copy, Debug)]
struct Known {
    at: Instant,
    left: Instant,
    on_wire: u64,
    /// Bytes that it takes of a trace.
    traced: u64,
}

/// Decides when a packet comes. O(1) per packet.
#[derive(Debug)]
pub(super) struct AtArrival {
    /// No card comes before this hop, so what it sends counts as on the wire.
    is_wire: bool,
    limits: Bottleneck,
    discipline: Discipline,
    service: Service,
    red: RedState,
    /// The packets that had not left when the last one was handed over, in their order. A card
    /// hands packets over before they come, so that some may leave before the last one comes.
    known: VecDeque<Known>,
    /// How many of them leave before that.
    left: usize,
    /// Bytes of the others, which the next packet may find.
    bytes: u64,
}

impl AtArrival {
    /// Whether a packet that comes last finds an empty queue.
    fn is_empty(&self) -> bool {
        self.left == self.known.len()
    }

    /// A packet comes `at` this time: what has left by then is not in its way.
    fn forget(&mut self, at: Instant) {
        while let Some(one) = self.known.get(self.left).filter(|one| one.left <= at) {
            self.bytes -= one.on_wire;
            self.left += 1;
            if self.left == self.known.len() {
                self.red.idle_since = Some(one.left);
            }
        }
    }

    /// Gives up what has left by `now`.
    fn prune(&mut self, now: Instant) {
        self.forget(now);
        while self.known.front().is_some_and(|one| one.left <= now) {
            self.known.pop_front();
            self.left -= 1;
        }
    }

    fn enter(
        &mut self,
        at: Instant,
        mut packet: Box<Packet>,
        on_wire: u64,
        early: &mut Rng,
        stats: &mut LinkStats,
    ) -> Option<(Instant, Box<Packet>)> {
        self.forget(at);
        let packets = self.known.len() - self.left;
        let has_room = packets < self.limits.packets && self.bytes + on_wire <= self.limits.bytes;
        if !has_room && !self.is_empty() {
            stats.dropped += 1;
            return None;
        }
        let (is_hit, may_mark) = match &self.discipline {
            Discipline::MarkAbove(bytes) => (self.bytes > *bytes, true),
            Discipline::Red(red) => {
                let typical = self.service.packet_time();
                (self.red.hits(red, at, self.bytes, typical, early), red.ecn)
            }
            Discipline::DropTail | Discipline::CoDel(_) => (false, false),
        };
        if is_hit {
            let is_marked = may_mark && packet.frame.set_ce();
            stats.marked += u64::from(is_marked);
            let is_red = matches!(self.discipline, Discipline::Red(_));
            if !is_marked && is_red {
                stats.early_drops += 1;
                if self.is_empty() {
                    // It is idle still, and goes on to forget (`red_start_of_idle_period`).
                    self.red.idle_since = Some(at);
                }
                return None;
            }
        }
        let network_len = network_len(&packet.frame) as u64;
        let (left, took) = self.service.push(at, on_wire, network_len);
        let traced = self.service.traced(network_len);
        if self.is_wire {
            stats.on_wire(on_wire, took);
        }
        stats.carried(on_wire, traced);
        stats.queued.record(left.since(at));
        self.known.push_back(Known { at, left, on_wire, traced });
        self.bytes += on_wire;
        stats.most_queued = stats.most_queued.max(self.bytes);
        Some((left, packet))
    }
}

impl AtArrival {
    fn unsent(&self, now: Instant) -> Unsent {
        match &self.service {
            Service::Constant(serializer) => serializer.unsent(now),
            Service::Trace(_) => {
                let unsent = self.known.iter().rev().take_while(|one| one.left > now);
                unsent.fold(Unsent::default(), |sum, one| Unsent {
                    bytes: sum.bytes + one.on_wire,
                    traced: sum.traced + one.traced,
                    ..sum
                })
            }
        }
    }
}

/// A packet in a queue.
#[derive(Debug)]
struct Queued {
    at: Instant,
    packet: Box<Packet>,
    on_wire: u64,
}

/// Decides when a packet leaves. O(1) per packet, and one event.
#[derive(Debug)]
pub(super) struct AtDeparture {
    /// As in [`AtArrival`].
    is_wire: bool,
    limits: Bottleneck,
    service: Service,
    codel: Option<CoDelState>,
    wifi: Option<Wifi>,
    /// Packets that arrive later than the last event.
    incoming: VecDeque<Queued>,
    queue: VecDeque<Queued>,
    bytes: u64,
    free: Instant,
    /// What leaves at `free`, where a trace serves it.
    last: Unsent,
    /// When the packets came that are leaving; empty between the turns.
    since: Vec<Instant>,
}

impl AtDeparture {
    fn unsent(&self, now: Instant) -> Unsent {
        match &self.service {
            Service::Constant(serializer) => serializer.unsent(now),
            Service::Trace(_) if self.free > now => self.last,
            Service::Trace(_) => Unsent::default(),
        }
    }

    fn next_departure(&self) -> Instant {
        self.queue.front().map_or(Instant::FAR_FUTURE, |first| self.free.max(first.at))
    }

    fn next_event(&self) -> Instant {
        let arrival = self.incoming.front().map_or(Instant::FAR_FUTURE, |first| first.at);
        if self.queue.is_empty() { arrival } else { self.next_departure() }
    }

    fn advance(
        &mut self,
        now: Instant,
        stats: &mut LinkStats,
        out: &mut Vec<(Instant, Box<Packet>)>,
    ) {
        loop {
            let departure = self.next_departure();
            let arrival = self.incoming.front().map_or(Instant::FAR_FUTURE, |first| first.at);
            if arrival <= departure.min(now) {
                self.incoming.pop_front().into_iter().for_each(|next| self.admit(next, stats));
            } else if departure <= now {
                self.serve(departure, stats, out);
            } else {
                return;
            }
        }
    }

    /// Whether a packet of so many bytes may join so many packets and bytes. An empty queue takes
    /// any.
    fn has_room(&self, (packets, bytes): (usize, u64), on_wire: u64) -> bool {
        packets == 0 || packets < self.limits.packets && bytes + on_wire <= self.limits.bytes
    }

    /// What has come since the last event waits too: nothing leaves between two events.
    fn backlog(&self, now: Instant) -> (usize, u64) {
        let came = self.incoming.iter().take_while(|next| next.at <= now);
        came.fold((self.queue.len(), self.bytes), |backlog, Queued { on_wire, .. }| {
            let (packets, bytes) = backlog;
            let has_room = self.has_room(backlog, *on_wire);
            if has_room { (packets + 1, bytes + on_wire) } else { backlog }
        })
    }

    fn admit(&mut self, next: Queued, stats: &mut LinkStats) {
        if !self.has_room((self.queue.len(), self.bytes), next.on_wire) {
            stats.dropped += 1;
            return;
        }
        self.bytes += next.on_wire;
        stats.most_queued = stats.most_queued.max(self.bytes);
        self.queue.push_back(next);
    }

    /// Sends one packet, or one aggregate, at `now`.
    fn serve(
        &mut self,
        now: Instant,
        stats: &mut LinkStats,
        out: &mut Vec<(Instant, Box<Packet>)>,
    ) {
        let first = out.len();
        let frames = self.wifi.map_or(1, |wifi| wifi.frames.max(1));
        let mut begin = now;
        if let Some(wifi) = &self.wifi {
            begin += wifi.overhead;
        }
        let mut end = begin;
        self.last = Unsent::default();
        for taken in 0..frames {
            if taken > 0 {
                let airtime = self.wifi.map_or(Nanos::ZERO, |wifi| wifi.airtime);
                let Some(next) = self.queue.front().filter(|next| next.at <= now) else { break };
                if end.since(begin) + self.limits.rate.time_for(next.on_wire) > airtime {
                    break;
                }
            }
            let Some(next) = self.dequeue(now, stats) else { break };
            let network_len = network_len(&next.packet.frame) as u64;
            let (left, took) = self.service.push(begin, next.on_wire, network_len);
            if self.is_wire {
                stats.on_wire(next.on_wire, took);
            }
            let traced = self.service.traced(network_len);
            stats.carried(next.on_wire, traced);
            self.last.bytes += next.on_wire;
            self.last.traced += traced;
            end = left;
            self.since.push(next.at);
            out.push((end, next.packet));
        }
        if out.len() > first {
            // All frames of an aggregate leave with its last one.
            for (left, _) in &mut out[first..] {
                *left = end;
            }
            self.since.drain(..).for_each(|since| stats.queued.record(end.since(since)));
            self.free = end;
        }
    }

    fn pop(&mut self) -> Option<Queued> {
        let next = self.queue.pop_front()?;
        self.bytes -= next.on_wire;
        Some(next)
    }

    fn dequeue(&mut self, now: Instant, stats: &mut LinkStats) -> Option<Queued> {
        let Some(mut codel) = self.codel.take() else { return self.pop() };
        let next = codel.dequeue(now, self, stats);
        self.codel = Some(codel);
        next
    }
}

/// State of CoDel, by the names of RFC 8289 section 5.
#[derive(Debug)]
struct CoDelState {
    config: CoDel,
    first_above: Option<Instant>,
    drop_next: Instant,
    count: u32,
    last_count: u32,
    is_dropping: bool,
}

/// A queue of one full packet is no standing queue.
const ONE_PACKET: u64 = 1538;

impl CoDelState {
    fn new(config: CoDel) -> Self {
        Self {
            config,
            first_above: None,
            drop_next: Instant::ZERO,
            count: 0,
            last_count: 0,
            is_dropping: false,
        }
    }

    /// The next time to drop: the interval over the root of the count, which is rounded alike on
    /// every machine.
    fn control_law(&self, from: Instant) -> Instant {
        let interval = self.config.interval.0 as f64 / f64::from(self.count.max(1)).sqrt();
        from + Nanos(interval as u64)
    }

    /// The next packet, and whether its delay has been too long for an interval.
    fn take(&mut self, now: Instant, queue: &mut AtDeparture) -> Option<(Queued, bool)> {
        let Some(next) = queue.pop() else {
            self.first_above = None;
            return None;
        };
        if now.since(next.at) < self.config.target || queue.bytes <= ONE_PACKET {
            self.first_above = None;
            return Some((next, false));
        }
        let first_above = *self.first_above.get_or_insert(now + self.config.interval);
        Some((next, now >= first_above))
    }

    /// Marks the packet, or gives it up; whether it is still there.
    fn hit(&self, next: &mut Queued, stats: &mut LinkStats) -> bool {
        let is_marked = self.config.ecn && next.packet.frame.set_ce();
        stats.marked += u64::from(is_marked);
        stats.early_drops += u64::from(!is_marked);
        is_marked
    }

    fn dequeue(
        &mut self,
        now: Instant,
        queue: &mut AtDeparture,
        stats: &mut LinkStats,
    ) -> Option<Queued> {
        let Some((mut next, mut is_late)) = self.take(now, queue) else {
            self.is_dropping = false;
            return None;
        };
        if !self.is_dropping {
            if !is_late {
                return Some(next);
            }
            let is_kept = self.hit(&mut next, stats);
            self.is_dropping = true;
            // Soon after the last time, it goes on where it was.
            let delta = self.count - self.last_count;
            let is_recent = now.since(self.drop_next) < self.config.interval.saturating_mul(16);
            self.count = if delta > 1 && is_recent { delta } else { 1 };
            self.drop_next = self.control_law(now);
            self.last_count = self.count;
            return if is_kept { Some(next) } else { self.take(now, queue).map(|(next, _)| next) };
        }
        while is_late && now >= self.drop_next {
            self.count += 1;
            self.drop_next = self.control_law(self.drop_next);
            if self.hit(&mut next, stats) {
                return Some(next);
            }
            let Some(following) = self.take(now, queue) else {
                self.is_dropping = false;
                return None;
            };
            (next, is_late) = following;
        }
        self.is_dropping &= is_late;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_begins_full_and_fills_at_its_rate() {
        // A burst of 8 s.
        let mut bucket = Bucket::new(Policer { rate: Rate(1000), burst: 8000 });
        let at = |ms: u64| Instant::from_nanos(1_000_000_000 + ms * 1_000_000);
        assert!((0..8).all(|_| bucket.admits(at(0), 1000)));
        assert!(!bucket.admits(at(0), 1000) && !bucket.admits(at(999), 1000));
        assert!(bucket.admits(at(1000), 1000) && !bucket.admits(at(1000), 1));
        assert!(bucket.admits(at(100_000), 8000) && !bucket.admits(at(100_000), 1));
    }
}
