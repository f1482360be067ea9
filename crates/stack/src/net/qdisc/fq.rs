//! `fq`: fair queueing with earliest departure times (Linux's `net/sched/sch_fq.c`).
//!
//! Each flow has a queue; flows are served in deficit round robin within three weighted bands, and
//! a flow whose next frame may not go yet is set aside until it may. So `fq` keeps to the departure
//! times of paced TCP sockets, and spaces the datagrams of sockets with `SO_MAX_PACING_RATE`.
//!
//! Two rules differ from Linux. A frame that may leave earlier than the waiting frames of its flow
//! (a pure ACK behind paced data) brings the flow's turn forward; Linux lets it wait. And lateness
//! of the driver is made good in full up to `debt`, in Linux by half a gap: the kernel's `fq` is
//! called by an interrupt, and this one by a thread that may wait for a processor.
//!
//! Cost: O(1) per frame; O(log n) in the flows set aside, when one is set aside or taken back, and
//! in a flow's frames that came in another order than they leave. Nothing is allocated once the
//! slabs and the table have seen as many frames and flows. A flow is 160 bytes; there are at most
//! [`FLOWS_PER_BUCKET`] times `buckets`.

use super::config::QdiscConfig;
use super::fifo::{BANDS, PRIOMAP};
use super::lists::{Chain, Frames, Linked, Links};
use super::report::Xstats;
use super::{Dequeued, Dropped, Qdisc, QdiscStats, Verdict};
use crate::frame::{Frame, ORPHAN};
use hashbrown::HashTable;
use neap_tcp::lateness::{Departures, Lateness};
use neap_tcp::time::{Instant, Nanos, Rate};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet};

/// Most flows per bucket, including those that are kept for a while after their last frame.
pub const FLOWS_PER_BUCKET: usize = 64;

/// Frames that may wait in the fast path.
const FAST_PATH_FRAMES: u32 = 8;

/// Time after which a flow without frames is forgotten.
const GC_AGE: Nanos = Nanos::from_secs(3);

/// Flows that are forgotten when a new one comes.
const GC_MAX: usize = 8;

/// The longest wait that a rate imposes between two frames.
const LONGEST_GAP: Nanos = Nanos::from_secs(1);

/// Parameters of `fq`, by `tc`'s names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most frames that wait in each band.
    pub limit: u32,
    /// Most frames that wait in each flow.
    pub flow_limit: u32,
    /// Bytes of a flow's turn; `None` is twice a whole packet.
    pub quantum: Option<u32>,
    /// Bytes of a new flow's first turn; `None` is ten whole packets.
    pub initial_quantum: Option<u32>,
    /// Highest rate of any flow.
    pub maxrate: Rate,
    /// Number of buckets, for which room is made at the start. It bounds the number of flows.
    pub buckets: u32,
    /// Most flows, less one, that frames without a socket make: a power of two less one.
    pub orphan_mask: u32,
    /// Whether rates are obeyed (`pacing`, `nopacing`). Departure times always are.
    pub pacing: bool,
    /// Time without a frame after which a flow has a whole turn again.
    pub refill_delay: Nanos,
    /// Rate up to which a socket's frames are all spaced, without turns.
    pub low_rate_threshold: Rate,
    /// Lateness above which a frame is marked CE when it leaves; [`Nanos::MAX`] for never.
    pub ce_threshold: Nanos,
    /// Time that the driver may be late, so that it serves several flows at once.
    pub timer_slack: Nanos,
    /// Lateness of the driver that a flow makes good in full if it waited for nothing but its rate;
    /// all other lateness is made good by half a gap. It bounds the burst. Zero is as in Linux.
    pub debt: Nanos,
    /// Furthest departure time that is accepted, from now.
    pub horizon: Nanos,
    /// Whether frames with a later departure time are dropped (`horizon_drop`), or get the latest
    /// one accepted (`horizon_cap`).
    pub horizon_drop: bool,
    /// Band of each priority.
    pub priomap: [u8; 16],
    /// Bytes of a band's turn.
    pub weights: [u32; BANDS],
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: 10_000,
            flow_limit: 100,
            quantum: None,
            initial_quantum: None,
            maxrate: Rate::UNLIMITED,
            buckets: 1024,
            orphan_mask: 1023,
            pacing: true,
            refill_delay: Nanos::from_millis(40),
            low_rate_threshold: Rate::from_bits(550_000),
            ce_threshold: Nanos::MAX,
            timer_slack: Nanos::from_micros(10),
            debt: Nanos::from_millis(50),
            horizon: Nanos::from_secs(10),
            horizon_drop: true,
            priomap: PRIOMAP,
            weights: [9 << 16, 3 << 16, 1 << 16],
        }
    }
}

/// Figures that only `fq` has (`tc_fq_qd_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FqStats {
    /// Number of flows.
    pub flows: u32,
    /// Flows without frames.
    pub inactive_flows: u32,
    /// Flows that are set aside until their next frame may go.
    pub throttled_flows: u32,
    /// How often a flow was set aside.
    pub throttled: u64,
    /// Flows that were forgotten after a time without frames.
    pub gc_flows: u64,
    /// Frames that bypassed all flows (the fast path).
    pub fastpath_packets: u64,
    /// Frames that found no room for a new flow. They bypassed all flows, or were dropped if they
    /// were due later or there were too many.
    pub allocation_errors: u64,
    /// Frames dropped because `flow_limit` frames of their flow waited.
    pub flows_plimit: u64,
    /// Frames dropped because `limit` frames of their band waited.
    pub band_drops: [u64; BANDS],
    /// Frames that wait in each band.
    pub band_pkt_count: [u32; BANDS],
    /// Frames so long that the gap behind them was cut to a second.
    pub pkts_too_long: u64,
    /// Frames marked CE.
    pub ce_mark: u64,
    /// Frames dropped because their departure time was beyond the horizon.
    pub horizon_drops: u64,
    /// Frames whose departure time was cut to the horizon.
    pub horizon_caps: u64,
    /// Time until the next flow that was set aside comes back.
    pub time_next_delayed_flow: Option<Nanos>,
    /// Mean lateness with which flows come back.
    pub unthrottle_latency: Nanos,
}

/// Where a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On the idle list, since then, without frames.
    Idle(Instant),
    New,
    Old,
    /// In the tree, until then.
    Delayed(Instant),
}

#[derive(Debug)]
struct Flow {
    key: u64,
    /// Frames whose times do not decrease.
    queue: Chain,
    /// Frames that came after one with a later time, by time and order.
    out_of_order: BTreeMap<(Instant, u64), u32>,
    packets: u32,
    band: u8,
    place: Place,
    /// Bytes that are left of its turn.
    credit: i64,
    /// No frame before this, by the rate; [`Instant::ZERO`] if the rate never mattered.
    spaced_until: Instant,
    /// Lateness of the driver that is not yet made good.
    owed: Nanos,
    links: Links,
}

impl Linked for Flow {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Flow {
    fn new(key: u64, credit: i64) -> Self {
        Self {
            key,
            queue: Chain::default(),
            out_of_order: BTreeMap::new(),
            packets: 0,
            band: 0,
            place: Place::Idle(Instant::ZERO),
            credit,
            spaced_until: Instant::ZERO,
            owed: Nanos::ZERO,
            links: Links::default(),
        }
    }
}

impl Flow {
    /// From when its first frame may go by the stamp.
    fn first_time(&self, frames: &Frames) -> Option<Instant> {
        let in_order = frames.front(self.queue).map(|waiting| waiting.time);
        let first = self.out_of_order.first_key_value().map(|(&(time, _), _)| time);
        match (in_order, first) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (time, None) | (None, time) => time,
        }
    }

    /// Takes the first frame out.
    fn pop(&mut self, frames: &mut Frames) -> Option<Frame> {
        let in_order = frames.front(self.queue).map(|waiting| waiting.time);
        let waiting = match self.out_of_order.first_entry() {
            Some(first) if in_order.is_none_or(|time| first.key().0 < time) => {
                frames.remove(first.remove())
            }
            _ => frames.pop_front(&mut self.queue)?,
        };
        self.packets -= 1;
        Some(waiting.frame)
    }
}

/// One band: the flows that have a frame that may go, as far as is known.
#[derive(Debug, Default)]
struct Band {
    new: Chain,
    old: Chain,
    credit: i64,
}

/// Qdisc `fq`.
#[derive(Debug)]
pub struct Fq {
    config: Config,
    quantum: i64,
    initial_quantum: i64,
    /// Nobody outside knows which flows share a bucket.
    key: u64,
    frames: Frames,
    fast: Chain,
    fast_len: u32,
    flows: Slab<Flow>,
    by_key: HashTable<u32>,
    bands: [Band; BANDS],
    /// The band whose turn it is.
    turn: usize,
    delayed: BTreeSet<(Instant, u32)>,
    /// The driver was told to come back when the next flow may send: if it is late then, no full
    /// device is why.
    is_gate: bool,
    /// Flows without frames, those that ended first in front.
    idle: Chain,
    /// Flows without frames, on the idle list or not there yet.
    inactive: usize,
    order: u64,
    stats: QdiscStats,
    figures: FqStats,
    lateness: Lateness,
}

impl Fq {
    /// Returns an empty queue for a device whose packets have at most `psched_mtu` bytes with the
    /// link header. `seed` is secret.
    pub fn new(config: Config, psched_mtu: u32, seed: u64) -> Self {
        let quantum = config.quantum.unwrap_or(psched_mtu.saturating_mul(2)).max(1);
        let initial_quantum = config.initial_quantum.unwrap_or(psched_mtu.saturating_mul(10));
        Self {
            quantum: quantum.into(),
            initial_quantum: initial_quantum.into(),
            key: seed,
            frames: Frames::default(),
            fast: Chain::default(),
            fast_len: 0,
            flows: Slab::new(),
            by_key: HashTable::with_capacity(config.buckets as usize),
            bands: core::array::from_fn(|_| Band::default()),
            turn: 0,
            delayed: BTreeSet::new(),
            is_gate: false,
            idle: Chain::default(),
            inactive: 0,
            order: 0,
            stats: QdiscStats::default(),
            figures: FqStats::default(),
            lateness: Lateness::default(),
            config,
        }
    }

    fn band_of(&self, priority: u8) -> usize {
        usize::from(self.config.priomap[usize::from(priority) % 16]) % BANDS
    }

    fn next_delayed(&self) -> Instant {
        self.delayed.first().map_or(Instant::FAR_FUTURE, |&(due, _)| due)
    }

    /// When the frame may go by its stamp; `Err` for one beyond the horizon.
    fn time_of(&mut self, frame: &mut Frame, now: Instant) -> Result<Instant, ()> {
        if frame.departure == Instant::ZERO {
            return Ok(now);
        }
        let horizon = now + self.config.horizon;
        if frame.departure <= horizon {
            return Ok(frame.departure);
        }
        if self.config.horizon_drop {
            self.figures.horizon_drops += 1;
            return Err(());
        }
        self.figures.horizon_caps += 1;
        frame.departure = horizon;
        Ok(horizon)
    }

    /// Whether the frame may pass all flows by: nobody's turn comes before (`fq_fastpath_check`).
    fn may_pass(&self, frame: &Frame, time: Instant, now: Instant) -> bool {
        let all_wait = self.flows.len() == self.inactive + self.delayed.len();
        time <= now
            && (self.frames.len() == 0
                || (all_wait && self.fast_len < FAST_PATH_FRAMES && self.next_delayed() > now))
            && frame.pacing_rate == Rate::UNLIMITED
            && self.config.maxrate == Rate::UNLIMITED
    }

    fn hash(&self, key: u64) -> u64 {
        hash(self.key, key)
    }

    /// The flow of a frame; `None` if there is no room for another.
    fn classify(&mut self, frame: &Frame, now: Instant) -> Option<u32> {
        let key = match frame.flow & ORPHAN {
            0 => frame.flow,
            _ => ORPHAN | (frame.flow & u64::from(self.config.orphan_mask)),
        };
        let (hash, flows) = (self.hash(key), &self.flows);
        if let Some(&id) = self.by_key.find(hash, |&id| flows[id as usize].key == key) {
            return Some(id);
        }
        self.collect_garbage(now);
        if self.flows.len() >= self.config.buckets as usize * FLOWS_PER_BUCKET {
            self.forget_one()?;
        }
        let id = self.flows.insert(Flow::new(key, self.initial_quantum)) as u32;
        self.idle.push_back(&mut self.flows, id);
        self.inactive += 1;
        let (secret, flows) = (self.key, &self.flows);
        let rehash = |&id: &u32| self::hash(secret, flows[id as usize].key);
        self.by_key.insert_unique(hash, id, rehash);
        Some(id)
    }

    fn collect_garbage(&mut self, now: Instant) {
        for _ in 0..GC_MAX {
            let Some(oldest) = self.idle.first() else { return };
            match self.flows[oldest as usize].place {
                Place::Idle(since) if now.since(since) > GC_AGE => self.forget_one(),
                _ => return,
            };
        }
    }

    /// Forgets the flow that has been idle for longest, if one is idle.
    fn forget_one(&mut self) -> Option<()> {
        let id = self.idle.pop_front(&mut self.flows)?;
        let flow = self.flows.remove(id as usize);
        if let Ok(entry) = self.by_key.find_entry(self.hash(flow.key), |&other| other == id) {
            entry.remove();
        }
        self.inactive -= 1;
        self.figures.gc_flows += 1;
        Some(())
    }

    /// Gives a flow that has a frame again its place among the new ones of its band.
    fn activate(&mut self, id: u32, band: usize, now: Instant) {
        let flow = &mut self.flows[id as usize];
        let Place::Idle(since) = flow.place else { return };
        if now.since(since) > self.config.refill_delay {
            flow.credit = flow.credit.max(self.quantum);
        }
        flow.place = Place::New;
        flow.band = band as u8;
        self.idle.remove(&mut self.flows, id);
        self.bands[band].new.push_back(&mut self.flows, id);
    }

    fn push(&mut self, id: u32, frame: Frame, time: Instant, now: Instant) {
        let flow = &mut self.flows[id as usize];
        self.inactive -= usize::from(flow.packets == 0);
        flow.packets += 1;
        if flow.queue.last().is_none_or(|last| self.frames[last].time <= time) {
            self.frames.push_back(&mut flow.queue, frame, time);
        } else {
            self.order += 1;
            flow.out_of_order.insert((time, self.order), self.frames.insert(frame, time));
        }
        let Place::Delayed(due) = flow.place else { return };
        let earlier = time.max(flow.spaced_until);
        if earlier < due {
            self.delayed.remove(&(due, id));
            if earlier <= now {
                self.make_old(id);
            } else {
                self.flows[id as usize].place = Place::Delayed(earlier);
                self.delayed.insert((earlier, id));
            }
        }
    }

    /// Puts a flow that is on no list among the old ones of its band.
    fn make_old(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        flow.place = Place::Old;
        let band = &mut self.bands[usize::from(flow.band)];
        band.old.push_back(&mut self.flows, id);
    }

    /// Takes back the flows whose time has come (`fq_check_throttled`).
    fn release_delayed(&mut self, now: Instant) {
        let next = self.next_delayed();
        if next > now {
            return;
        }
        let mean = &mut self.figures.unthrottle_latency.0;
        *mean = *mean - (*mean >> 3) + (now.since(next).0 >> 3);
        while let Some(&(due, id)) = self.delayed.first()
            && due <= now
        {
            self.delayed.pop_first();
            let late = now.since(due);
            self.lateness.record(late);
            if self.is_gate {
                self.flows[id as usize].owed = late.min(self.config.debt);
            }
            self.make_old(id);
        }
    }

    /// The flow at the head of the band whose turn it is, and whether it is a new one.
    fn head(&mut self) -> Option<(u32, bool)> {
        let mut vain = 0;
        loop {
            let band = &self.bands[self.turn];
            if band.credit > 0 {
                if let Some(id) = band.new.first() {
                    return Some((id, true));
                }
                if let Some(id) = band.old.first() {
                    return Some((id, false));
                }
            }
            vain += 1;
            if vain > BANDS {
                return None;
            }
            self.turn = (self.turn + 1) % BANDS;
            let quantum = i64::from(self.config.weights[self.turn]).max(1);
            let band = &mut self.bands[self.turn];
            band.credit = (band.credit + quantum).min(quantum);
            if band.credit <= 0 {
                vain = 0;
            }
        }
    }

    /// Takes the head of its band off its list.
    fn take_off(&mut self, id: u32, is_new: bool) {
        let band = &mut self.bands[usize::from(self.flows[id as usize].band)];
        let list = if is_new { &mut band.new } else { &mut band.old };
        list.remove(&mut self.flows, id);
    }

    /// The flow that may send, with the time from which it might.
    fn next_flow(&mut self, now: Instant) -> Option<(u32, Instant)> {
        while let Some((id, is_new)) = self.head() {
            let flow = &mut self.flows[id as usize];
            if flow.credit <= 0 {
                flow.credit += self.quantum;
                self.take_off(id, is_new);
                self.make_old(id);
                continue;
            }
            let Some(time) = flow.first_time(&self.frames) else {
                self.take_off(id, is_new);
                if is_new {
                    // Once through the old ones, or a flow that sends now and then would always
                    // be new.
                    self.make_old(id);
                } else {
                    self.flows[id as usize].place = Place::Idle(now);
                    self.idle.push_back(&mut self.flows, id);
                }
                continue;
            };
            let due = time.max(flow.spaced_until);
            if due <= now {
                return Some((id, due));
            }
            self.take_off(id, is_new);
            self.flows[id as usize].place = Place::Delayed(due);
            self.delayed.insert((due, id));
            self.figures.throttled += 1;
        }
        None
    }

    /// The first frame of a flow, which might go since `due`.
    fn send(&mut self, id: u32, due: Instant, now: Instant) -> Option<Frame> {
        let flow = &mut self.flows[id as usize];
        let mut frame = flow.pop(&mut self.frames)?;
        if flow.packets == 0 {
            self.inactive += 1;
            // What comes next may be late by the application.
            flow.owed = Nanos::ZERO;
        }
        let band = self.band_of(frame.priority);
        self.figures.band_pkt_count[band] -= 1;
        if now.since(due) > self.config.ce_threshold && frame.set_ce() {
            self.figures.ce_mark += 1;
        }
        let bytes = frame.wire_len() as i64;
        let flow = &mut self.flows[id as usize];
        flow.credit -= bytes;
        self.bands[usize::from(flow.band)].credit -= bytes;
        self.space(id, &frame, now);
        Some(frame)
    }

    /// Says from when the next frame may go, by the rate.
    fn space(&mut self, id: u32, frame: &Frame, now: Instant) {
        let flow = &mut self.flows[id as usize];
        let mut rate = self.config.maxrate;
        let mut bytes = frame.wire_len() as u64;
        if frame.departure == Instant::ZERO {
            rate = rate.min(frame.pacing_rate);
            if rate <= self.config.low_rate_threshold {
                flow.credit = 0;
            } else {
                bytes = bytes.max(self.quantum as u64);
                if flow.credit > 0 {
                    return;
                }
            }
        }
        if rate == Rate::UNLIMITED || !self.config.pacing {
            return;
        }
        let mut gap = rate.time_for(bytes);
        if gap > LONGEST_GAP {
            gap = LONGEST_GAP;
            self.figures.pkts_too_long += 1;
        }
        // Lateness is made good by half a gap at the most, that of the driver in full.
        let mut credit = Nanos::ZERO;
        if flow.spaced_until > Instant::ZERO {
            let planned = flow.spaced_until.max(frame.departure);
            credit = now.since(planned).min(flow.owed.max(gap / 2));
        }
        flow.owed = flow.owed.min(credit).saturating_sub(gap);
        flow.spaced_until = now + gap - credit;
    }
}

/// A number is only mixed: numbers of sockets are given out by this host, and orphans have few
/// flows.
fn hash(secret: u64, key: u64) -> u64 {
    let mixed = (key ^ secret).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).wrapping_mul(secret | 1)
}

impl Qdisc for Fq {
    fn enqueue(&mut self, mut frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict {
        let band = self.band_of(frame.priority);
        let is_full = self.figures.band_pkt_count[band] >= self.config.limit;
        self.figures.band_drops[band] += u64::from(is_full);
        let time = if is_full { Err(()) } else { self.time_of(&mut frame, now) };
        let Ok(time) = time else {
            self.stats.drops += 1;
            dropped.push(frame);
            return Verdict::Dropped;
        };
        let mut id = None;
        if self.may_pass(&frame, time, now) {
            self.figures.fastpath_packets += 1;
        } else {
            id = self.classify(&frame, now);
            if id.is_none() {
                self.figures.allocation_errors += 1;
                // What has no flow leaves at once, so it may not be due later.
                if time > now || self.fast_len >= self.config.limit {
                    self.stats.drops += 1;
                    dropped.push(frame);
                    return Verdict::Dropped;
                }
            }
        }
        let bytes = frame.wire_len() as u64;
        let Some(id) = id else {
            self.frames.push_back(&mut self.fast, frame, time);
            self.fast_len += 1;
            self.stats.on_queued(bytes);
            return Verdict::Queued;
        };
        if self.flows[id as usize].packets >= self.config.flow_limit {
            self.figures.flows_plimit += 1;
            self.stats.drops += 1;
            dropped.push(frame);
            return Verdict::Dropped;
        }
        self.activate(id, band, now);
        self.figures.band_pkt_count[band] += 1;
        self.push(id, frame, time, now);
        self.stats.on_queued(bytes);
        Verdict::Queued
    }

    fn dequeue(&mut self, now: Instant, _dropped: &mut Dropped) -> Dequeued {
        if self.frames.len() == 0 {
            return Dequeued::Empty;
        }
        let frame = if let Some(waiting) = self.frames.pop_front(&mut self.fast) {
            self.fast_len -= 1;
            waiting.frame
        } else {
            self.release_delayed(now);
            let sent = self.next_flow(now).and_then(|(id, due)| self.send(id, due, now));
            self.is_gate = sent.is_none();
            let Some(frame) = sent else {
                return Dequeued::NotBefore(self.next_delayed() + self.config.timer_slack);
            };
            frame
        };
        self.stats.on_sent(frame.wire_len() as u64);
        Dequeued::Frame(frame)
    }

    fn len(&self) -> usize {
        self.frames.len()
    }

    fn into_frames(mut self: Box<Self>) -> Vec<Frame> {
        let mut out = Vec::with_capacity(self.frames.len());
        self.frames.drain(&mut self.fast, &mut out);
        for (_, mut flow) in self.flows {
            out.extend(core::iter::from_fn(|| flow.pop(&mut self.frames)));
        }
        out
    }

    fn holds_until_departure(&self) -> bool {
        self.config.pacing
    }

    fn add_departures(&self, departures: &mut Departures) {
        departures.add(&self.lateness);
    }

    fn stats(&self) -> QdiscStats {
        self.stats
    }

    fn config(&self) -> QdiscConfig {
        QdiscConfig::Fq(Config {
            quantum: Some(self.quantum as u32),
            initial_quantum: Some(self.initial_quantum as u32),
            ..self.config
        })
    }

    fn xstats(&self, now: Instant) -> Xstats {
        let next = self.next_delayed();
        Xstats::Fq(FqStats {
            flows: self.flows.len() as u32,
            inactive_flows: self.inactive as u32,
            throttled_flows: self.delayed.len() as u32,
            time_next_delayed_flow: (!self.delayed.is_empty()).then(|| next.since(now)),
            ..self.figures
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
