//! Port: the way out through one device queue, with qdisc, byte queue limits and device.
//!
//! To drain is to own the device ([`HandOff`]). A thread that enqueues a frame drains if the device
//! is free; otherwise it leaves the debt "run again" to the thread that drains already
//! (`__qdisc_run` with `QDISC_STATE_MISSED`). The qdisc's mutex is held for one frame's enqueue or
//! dequeue, never while the device works, and frames are dropped outside it.
//!
//! Order from the qdisc to the wire is kept: frames that the device gives back go in front of the
//! qdisc (`gso_skb`), the pieces of a super-frame that was cut in software go in front of those.
//!
//! Cost per frame: two uncontended mutexes when the empty qdisc is bypassed, two more otherwise; no
//! allocation except for cutting.

use crate::device::{Capabilities, Completed, Completion, TxQueue};
use crate::drop_reason::DropReason;
use crate::frame::Frame;
use crate::hand_off::{HandOff, Posted, Released, Settle};
use crate::net::bql::ByteQueueLimits;
use crate::net::gso;
use crate::net::load::CommonLoad;
use crate::net::qdisc::fifo::PfifoFast;
use crate::net::qdisc::report::Report;
use crate::net::qdisc::{Dequeued, Dropped, Qdisc, QdiscStats, Verdict};
use crate::passed::PassedTime;
use crate::stats::PacketCounters;
use crate::sync::atomic::{
    AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire,
    Ordering::Relaxed, Ordering::Release,
};
use crate::sync::{Mutex, lock};
use crate::wire::ChecksumBy;
use neap_tcp::lateness::Departures;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::autosize::Load;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// Most frames that one call sends before it leaves the rest to the driver (`dev_tx_weight`).
pub const QUOTA: u32 = 64;

/// Time without a completion after which a device that holds frames counts as stuck
/// (`watchdog_timeo`).
pub const TX_TIMEOUT: Nanos = Nanos::from_secs(5);

/// After so many bytes the device is asked for the time, so that the next frame is not stamped with
/// that of the call's beginning: a call may send hundreds of frames. It takes 10 us to hand over so
/// many, and 25 ns to read a clock.
const TIMED_BYTES: u64 = 64 << 10;

/// Figures of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortStats {
    /// Frames that the device took, pieces of cut super-frames counted one by one.
    pub frames: u64,
    /// Bytes of these frames, with one header for a super-frame.
    pub bytes: u64,
    /// Frames that bypassed an empty qdisc.
    pub bypassed: u64,
    /// Super-frames that were cut in software.
    pub segmented: u64,
    /// How often the device gave a frame back because its ring was full.
    pub ring_full: u64,
    /// Enqueues after which another thread did the draining.
    pub deferred: u64,
    /// How often frames were left to the driver because the quota was used up.
    pub quota_exceeded: u64,
    /// How often the device held frames and completed none for [`TX_TIMEOUT`].
    pub tx_timeouts: u64,
    /// Frames that the device lost or refused for good.
    pub device_errors: u64,
    /// Frames that were dropped because the link was down or the device taken away.
    pub link_drops: u64,
    /// Expirations of the timer at which the qdisc lets its next frame go (`qdisc_watchdog`): all
    /// frames that leave together count once.
    pub qdisc_timers: u64,
    /// Pieces of a cut super-frame that wait for the device.
    pub pieces: usize,
    /// Frames that the device holds.
    pub ring_frames: u64,
    /// Bytes that the device holds (`byte_queue_limits/inflight`).
    pub ring_bytes: u64,
    /// Bytes that the device may hold (`byte_queue_limits/limit`); `None` if frames complete at
    /// submission, so that there is nothing to limit.
    pub ring_limit: Option<u64>,
    /// Figures of the qdisc since it came to the port, with the frames that bypassed it.
    pub qdisc: QdiscStats,
}

impl PortStats {
    /// Returns each figure with its name, those of the qdisc left out.
    pub fn figures(&self) -> [(&'static str, u64); 15] {
        [
            ("frames", self.frames),
            ("bytes", self.bytes),
            ("bypassed", self.bypassed),
            ("segmented", self.segmented),
            ("ring_full", self.ring_full),
            ("deferred", self.deferred),
            ("quota_exceeded", self.quota_exceeded),
            ("tx_timeouts", self.tx_timeouts),
            ("device_errors", self.device_errors),
            ("link_drops", self.link_drops),
            ("qdisc_timers", self.qdisc_timers),
            ("pieces", self.pieces as u64),
            ("ring_frames", self.ring_frames),
            ("ring_bytes", self.ring_bytes),
            ("ring_limit", self.ring_limit.unwrap_or(0)),
        ]
    }
}

/// Way out through one device queue.
pub struct Port {
    queue: Mutex<Queue>,
    device: HandOff<Transmitter>,
    /// Frames in the qdisc; written under its lock.
    backlog: AtomicUsize,
    can_bypass: AtomicBool,
    holds_until_departure: AtomicBool,
    shapes: AtomicBool,
    /// What the last drain left to wait for, in nanoseconds.
    next: AtomicU64,
    /// When the watchdog looks, in nanoseconds.
    watchdog: AtomicU64,
    waits_for_device: AtomicBool,
    /// How late completions are, in nanoseconds.
    lateness: AtomicU64,
    /// The device completes frames within the calls that hand them over.
    is_at_once: AtomicBool,
    load: CommonLoad,
    /// Wakes the driver, which then calls `run` or asks for `next_event` again.
    kick: Waker,
    /// Those of the host, if there is one.
    counters: Arc<PacketCounters>,
    /// That of the shard, if there is one.
    passed: Arc<PassedTime>,
    capabilities: Capabilities,
    /// Largest IP packet in bytes, as the interface says.
    mtu: AtomicU16,
}

/// The qdisc, and what is in front of it.
struct Queue {
    /// The latest time that a thread brought. The qdisc is told of no earlier one.
    time: Instant,
    /// Frames that the device gave back, ahead of everything (`gso_skb`).
    requeued: VecDeque<Frame>,
    /// A replaced qdisc whose frames have departures that its successor would not wait for. They
    /// leave when they may, and hold back nothing.
    retiring: Option<Box<dyn Qdisc>>,
    qdisc: Box<dyn Qdisc>,
    /// Figures since the present qdisc came that it does not have itself: frames that the device
    /// gave back, and what became of those of the retiring qdisc.
    besides: QdiscStats,
}

impl Queue {
    /// The time for a thread that brought `now`: another may have brought a later one.
    fn advance(&mut self, now: Instant) -> Instant {
        self.time = self.time.max(now);
        self.time
    }

    fn enqueue(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict {
        let now = self.advance(now);
        self.qdisc.enqueue(frame, now, dropped)
    }

    fn dequeue(&mut self, now: Instant, dropped: &mut Dropped) -> Dequeued {
        let now = self.advance(now);
        if let Some(frame) = self.requeued.pop_front() {
            return Dequeued::Frame(frame);
        }
        let before = dropped.len();
        let retiring = self.retiring.as_mut().map(|old| old.dequeue(now, dropped));
        self.besides.drops += (dropped.len() - before) as u64;
        let held = match retiring {
            Some(Dequeued::Frame(frame)) => {
                self.besides.packets += 1;
                self.besides.bytes += frame.wire_len() as u64;
                return Dequeued::Frame(frame);
            }
            Some(Dequeued::NotBefore(at)) => Some(at),
            Some(Dequeued::Empty) | None => {
                self.retiring = None;
                None
            }
        };
        match (self.qdisc.dequeue(now, dropped), held) {
            (Dequeued::NotBefore(at), Some(held)) => Dequeued::NotBefore(at.min(held)),
            (Dequeued::Empty, Some(held)) => Dequeued::NotBefore(held),
            (dequeued, _) => dequeued,
        }
    }

    fn len(&self) -> usize {
        let retiring = self.retiring.as_ref().map_or(0, |old| old.len());
        self.requeued.len() + retiring + self.qdisc.len()
    }

    /// Puts `qdisc` in the place of the present one. Its frames move over, in their order, except
    /// those whose departures the new one would ignore. Figures begin at zero.
    fn replace(&mut self, qdisc: Box<dyn Qdisc>, now: Instant, dropped: &mut Dropped) {
        self.besides = QdiscStats::default();
        let old = core::mem::replace(&mut self.qdisc, qdisc);
        let mut moving = Vec::new();
        if self.qdisc.holds_until_departure() {
            moving = self.retiring.take().map_or(moving, Qdisc::into_frames);
        } else if old.holds_until_departure() {
            self.retiring = Some(old);
            return;
        }
        moving.extend(old.into_frames());
        for frame in moving {
            self.enqueue(frame, now, dropped);
        }
    }

    /// All frames, of which none is left.
    fn take_all(&mut self) -> Vec<Frame> {
        let qdisc = core::mem::replace(&mut self.qdisc, Box::new(PfifoFast::default()));
        let mut frames: Vec<_> = core::mem::take(&mut self.requeued).into();
        frames.extend(self.retiring.take().into_iter().flat_map(Qdisc::into_frames));
        frames.extend(qdisc.into_frames());
        frames
    }

    fn stats(&self) -> QdiscStats {
        let mut stats = self.qdisc.stats();
        stats.add(&self.besides);
        let retiring = self.retiring.as_ref().map(|old| old.stats()).unwrap_or_default();
        stats.backlog_bytes += retiring.backlog_bytes;
        stats.backlog_packets += retiring.backlog_packets;
        for frame in &self.requeued {
            stats.backlog_bytes += frame.wire_len() as u64;
            stats.backlog_packets += 1;
        }
        stats
    }
}

/// What others want done by the thread that owns the device.
#[derive(Default)]
struct Debt {
    run: bool,
    /// A completion round, at the latest time at which one was asked for.
    reap: Option<Instant>,
    deferred: u64,
    /// The link went down, or it came up.
    link: Option<bool>,
    close: bool,
}

/// One call's part of the draining.
struct Drain<'a> {
    port: &'a Port,
    now: Instant,
    quota: u32,
    /// The driver looks at `next_event` afterwards and needs no kick.
    is_driver: bool,
    /// The driver has more to do, or sooner, than it knows; told when the device is free again.
    kick: bool,
    /// The device had completed frames.
    had_completed: bool,
    /// More frames follow at once: the device is told of all together.
    has_more: bool,
}

/// The device's sending half, and what is on its way into it.
struct Transmitter {
    tx: Box<dyn TxQueue>,
    capabilities: Capabilities,
    /// Pieces of one super-frame, cut and in order, ahead of the qdisc.
    pieces: VecDeque<Frame>,
    /// `None` where frames complete at submission.
    bql: Option<ByteQueueLimits>,
    /// The device gave a frame back since it was last reaped.
    is_full: bool,
    needs_flush: bool,
    /// The link is up; otherwise frames are dropped.
    is_up: bool,
    ring_frames: u64,
    last_progress: Instant,
    /// When the qdisc lets its next frame go, as it said last.
    departs: Instant,
    /// Bytes that bypassed the present qdisc.
    bypassed_bytes: u64,
    /// Frames that bypassed those before it.
    bypassed_before: u64,
    /// Bytes that the device has taken since it was asked for the time.
    untimed_bytes: u64,
    stats: PortStats,
}

impl Port {
    /// Makes a port over `tx` with an empty `qdisc`.
    ///
    /// `kick` wakes the driver when frames were left to it. It also wakes the driver when, outside
    /// of its own call of [`run`](Self::run), [`next_event`](Self::next_event) became earlier or
    /// [`waits_for_device`](Self::waits_for_device) became true.
    pub fn new(
        tx: Box<dyn TxQueue>,
        capabilities: Capabilities,
        qdisc: Box<dyn Qdisc>,
        kick: Waker,
        now: Instant,
    ) -> Self {
        let on_wire = capabilities.completion == Completion::OnWire;
        Self {
            backlog: AtomicUsize::new(0),
            can_bypass: AtomicBool::new(qdisc.can_bypass()),
            holds_until_departure: AtomicBool::new(qdisc.holds_until_departure()),
            shapes: AtomicBool::new(qdisc.shapes()),
            next: AtomicU64::new(Instant::FAR_FUTURE.as_nanos()),
            watchdog: AtomicU64::new(Instant::FAR_FUTURE.as_nanos()),
            waits_for_device: AtomicBool::new(false),
            lateness: AtomicU64::new(0),
            is_at_once: AtomicBool::new(false),
            load: CommonLoad::default(),
            queue: Mutex::new(Queue {
                time: now,
                requeued: VecDeque::new(),
                retiring: None,
                qdisc,
                besides: QdiscStats::default(),
            }),
            device: HandOff::new(Transmitter {
                tx,
                capabilities,
                pieces: VecDeque::new(),
                bql: on_wire.then(|| ByteQueueLimits::new(now)),
                is_full: false,
                needs_flush: false,
                is_up: true,
                ring_frames: 0,
                last_progress: now,
                departs: Instant::FAR_FUTURE,
                bypassed_bytes: 0,
                bypassed_before: 0,
                untimed_bytes: 0,
                stats: PortStats::default(),
            }),
            kick,
            counters: Arc::default(),
            passed: Arc::default(),
            capabilities,
            mtu: AtomicU16::new(capabilities.mtu),
        }
    }

    /// Counts what is dropped among the drops of a host, too, and tells its sockets of the time
    /// that passes while frames are handed to the device.
    pub(crate) fn of_host(self, counters: Arc<PacketCounters>, passed: Arc<PassedTime>) -> Self {
        Self { counters, passed, ..self }
    }

    /// Queues a frame, and drains the queue if no thread does so already. After
    /// [`Verdict::Dropped`] the frame is gone and counted.
    pub fn enqueue(&self, frame: Frame, now: Instant) -> Verdict {
        self.enqueue_before(frame, now, false)
    }

    /// Queues a frame as [`enqueue`](Self::enqueue) does. If the caller `has_more` frames, the
    /// device is not told of this one until it is full, or until the next frame without `has_more`
    /// or [`flush`](Self::flush); the caller sees to one of them.
    pub(crate) fn enqueue_before(&self, frame: Frame, now: Instant, has_more: bool) -> Verdict {
        let Some(mut device) = self.device.try_own() else {
            let verdict = self.queue(frame, now);
            self.visit(now, |debt| {
                debt.run = true;
                debt.deferred += 1;
            });
            return verdict;
        };
        let mut round = Drain { has_more, ..Drain::new(self, now, false) };
        let may_bypass = self.can_bypass.load(Acquire)
            && self.backlog.load(Acquire) == 0
            && device.pieces.is_empty()
            && device.has_room();
        let verdict = if may_bypass {
            device.stats.bypassed += 1;
            device.bypassed_bytes += frame.wire_len() as u64;
            device.send(frame, &mut round);
            Verdict::Queued
        } else {
            self.queue(frame, now)
        };
        device.drain(&mut round);
        let released = device.release(&mut round);
        round.end(released == Released::DebtLeft);
        verdict
    }

    /// Reaps the device and drains the queue. Returns whether the device had completed frames.
    ///
    /// The driver calls it once per poll, when the time of [`next_event`](Self::next_event) has
    /// come or the device's descriptor is ready.
    pub fn run(&self, now: Instant) -> bool {
        // If another thread owns the device, its next look publishes anew and kicks; until then the
        // driver shall not spin on a time that has passed.
        self.next.store(Instant::FAR_FUTURE.as_nanos(), Release);
        self.post(Drain::new(self, now, true), |debt| debt.reap = debt.reap.max(Some(now)))
    }

    /// Tells the device of the frames that it has and was not told of yet.
    pub(crate) fn flush(&self, now: Instant) {
        self.visit(now, |debt| debt.run = true);
    }

    fn visit(&self, now: Instant, add: impl FnOnce(&mut Debt)) {
        self.post(Drain::new(self, now, false), add);
    }

    /// Has the owner of the device do what `add` asks for: this thread, if nobody owns it. Whether
    /// the device had completed frames.
    fn post(&self, mut round: Drain<'_>, add: impl FnOnce(&mut Debt)) -> bool {
        let posted = self.device.post(add, &mut round);
        let had_completed = round.had_completed;
        round.end(posted == Posted::DebtLeft);
        had_completed
    }

    /// Returns when to call [`run`](Self::run) next if no event of the device comes first: the
    /// earliest of the device's own time, the qdisc's next departure and the watchdog.
    pub fn next_event(&self) -> Instant {
        Instant::from_nanos(self.next.load(Acquire).min(self.watchdog.load(Acquire)))
    }

    /// Returns whether the driver must call [`run`](Self::run) when the device's descriptor becomes
    /// writable: the device gave a frame back, or holds frames that it will complete.
    pub fn waits_for_device(&self) -> bool {
        self.waits_for_device.load(Acquire)
    }

    /// Returns the estimated time from a frame's last bit on the wire to its completion.
    pub fn lateness(&self) -> Nanos {
        Nanos(self.lateness.load(Relaxed))
    }

    /// Returns what the flows that send here do together; `None` before it is known.
    pub(crate) fn load(&self) -> Option<Load> {
        let load = self.load.get()?;
        // The pieces of a frame that is cut here wait for each other.
        let is_at_once = self.takes_super_frames()
            && self.is_at_once.load(Relaxed)
            && self.can_bypass.load(Acquire);
        Some(Load { is_at_once, ..load })
    }

    /// Whether the device takes super-frames. Where it does not, the port cuts them.
    pub(crate) fn takes_super_frames(&self) -> bool {
        self.capabilities.gso_max_size > u32::from(self.mtu())
    }

    /// Whether datagrams may leave in one super-frame: the device takes such frames, and no qdisc
    /// spaces packets.
    pub(crate) fn takes_super_datagrams(&self) -> bool {
        self.capabilities.gso_udp && self.takes_super_frames() && self.can_bypass.load(Acquire)
    }

    /// Takes what a flow has sent, in bytes, and how often it doubles the time that may be queued,
    /// in parts of 256.
    pub(crate) fn count_load(&self, now: Instant, bytes: u64, boost: u16) {
        self.load.count(now, bytes, boost);
    }

    /// Replaces the qdisc (`tc qdisc replace`).
    ///
    /// Linux drops what waits in the old qdisc. Here the frames move into the new one, in the order
    /// of each flow. It drops and counts those that it has no room for. Where the old qdisc holds
    /// frames until their departure and the new one does not, they stay and leave at their time.
    ///
    /// The figures of the qdisc begin at zero, with what waits as its backlog. Frames that the
    /// device had given back count as sent by the old one. It waits for a thread that drains.
    pub fn set_qdisc(&self, qdisc: Box<dyn Qdisc>, now: Instant) {
        let mut dropped = Dropped::new();
        let mut device = self.device.own();
        {
            let mut queue = lock(&self.queue);
            self.can_bypass.store(qdisc.can_bypass(), Release);
            self.holds_until_departure.store(qdisc.holds_until_departure(), Release);
            self.shapes.store(qdisc.shapes(), Release);
            queue.replace(qdisc, now, &mut dropped);
            self.backlog.store(queue.len(), Release);
        }
        (device.bypassed_before, device.bypassed_bytes) = (device.stats.bypassed, 0);
        drop(device);
        self.count_dropped(&dropped);
        drop(dropped);
        self.visit(now, |debt| debt.run = true);
    }

    /// Keeps the byte queue limit within `min..=max` (`limit_min`, `limit_max`).
    pub fn set_byte_queue_limits(&self, min: u64, max: u64, now: Instant) {
        let mut device = self.device.own();
        if let Some(bql) = &mut device.bql {
            bql.set_bounds(min, max);
        }
        drop(device);
        self.visit(now, |debt| debt.run = true);
    }

    /// Returns whether the qdisc holds frames until their departure (`fq`).
    pub fn holds_until_departure(&self) -> bool {
        self.holds_until_departure.load(Acquire)
    }

    /// Returns whether a frame is complete when it is enqueued or, behind a qdisc that holds it
    /// until then, when it departs.
    ///
    /// The device completes frames at submission, and the qdisc [does not
    /// shape](crate::qdisc::Qdisc::shapes).
    pub fn completes_on_enqueue(&self) -> bool {
        self.capabilities.completion == Completion::OnSubmit && !self.shapes.load(Acquire)
    }

    /// Adds the lateness of frames that the qdisc held until their departure.
    pub fn add_departures(&self, departures: &mut Departures) {
        lock(&self.queue).qdisc.add_departures(departures);
    }

    /// Returns the abilities of the device, with the MTU that it was attached with.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Returns the largest IP packet, in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu.load(Relaxed)
    }

    /// Changes the MTU. Super-frames that wait are cut as they were made.
    pub fn set_mtu(&self, mtu: u16) {
        self.mtu.store(mtu, Relaxed);
    }

    /// Says whether the link is up. While it is not, frames that leave the qdisc are dropped and
    /// counted, those that wait there first of all.
    pub fn set_link(&self, is_up: bool, now: Instant) {
        self.visit(now, |debt| debt.link = Some(is_up));
    }

    /// Drops what waits, gives the device back to its owner, and drops all frames from now on.
    pub fn close(&self, now: Instant) {
        let waiting = {
            let mut queue = lock(&self.queue);
            let waiting = queue.take_all();
            self.backlog.store(queue.len(), Release);
            waiting
        };
        // Dropping a credit wakes a socket, so the frames are dropped after the lock.
        self.counters.drops.add(DropReason::LinkDown, waiting.len() as u64);
        drop(waiting);
        self.visit(now, |debt| debt.close = true);
    }

    /// Returns what `tc -s qdisc` prints. It waits for a thread that drains.
    pub fn qdisc(&self, now: Instant) -> Report {
        let stats = self.stats(now).qdisc;
        let queue = lock(&self.queue);
        Report { config: queue.qdisc.config(), stats, xstats: queue.qdisc.xstats(now) }
    }

    /// Returns the figures of the port. It waits for a thread that drains.
    pub fn stats(&self, now: Instant) -> PortStats {
        let device = self.device.own();
        let mut stats = device.stats;
        stats.device_errors = device.tx.errors();
        stats.pieces = device.pieces.len();
        stats.ring_frames = device.ring_frames;
        stats.ring_bytes = device.bql.as_ref().map_or(0, ByteQueueLimits::in_flight);
        stats.ring_limit = device.bql.as_ref().map(ByteQueueLimits::limit);
        stats.qdisc = lock(&self.queue).stats();
        stats.qdisc.packets += stats.bypassed - device.bypassed_before;
        stats.qdisc.bytes += device.bypassed_bytes;
        drop(device);
        self.visit(now, |_| {});
        stats
    }

    fn queue(&self, frame: Frame, now: Instant) -> Verdict {
        let mut dropped = Dropped::new();
        let mut queue = lock(&self.queue);
        let verdict = queue.enqueue(frame, now, &mut dropped);
        self.backlog.store(queue.len(), Release);
        drop(queue);
        self.count_dropped(&dropped);
        verdict
    }

    fn dequeue(&self, now: Instant) -> Dequeued {
        let mut dropped = Dropped::new();
        let mut queue = lock(&self.queue);
        let dequeued = queue.dequeue(now, &mut dropped);
        self.backlog.store(queue.len(), Release);
        drop(queue);
        self.count_dropped(&dropped);
        dequeued
    }

    /// Counts what the qdisc drops. The caller drops it without the lock of the qdisc, since the
    /// drop of a credit wakes a socket.
    fn count_dropped(&self, dropped: &Dropped) {
        if !dropped.is_empty() {
            self.counters.drops.add(DropReason::QdiscDrop, dropped.len() as u64);
        }
    }

    fn requeue(&self, frame: Frame) {
        let mut queue = lock(&self.queue);
        queue.besides.requeues += 1;
        queue.requeued.push_front(frame);
        self.backlog.store(queue.len(), Release);
    }
}

impl core::fmt::Debug for Port {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Port").field("capabilities", &self.capabilities).finish_non_exhaustive()
    }
}

impl<'a> Drain<'a> {
    fn new(port: &'a Port, now: Instant, is_driver: bool) -> Self {
        let (quota, kick, had_completed, has_more) = (QUOTA, false, false, false);
        Self { port, now, quota, is_driver, kick, had_completed, has_more }
    }

    /// Publishes what there is to wait for.
    fn publish(&mut self, next: Instant, waits: bool, watchdog: Instant) {
        let port = self.port;
        port.watchdog.store(watchdog.as_nanos(), Release);
        let next = next.as_nanos();
        if port.next.load(Acquire) != next {
            self.kick |= next < port.next.swap(next, AcqRel);
        }
        if port.waits_for_device.load(Acquire) != waits {
            port.waits_for_device.store(waits, Release);
            self.kick |= waits;
        }
    }

    /// The device is given up. A debt that was left needs the driver at once.
    fn end(self, debt_left: bool) {
        if debt_left {
            self.port.next.store(self.now.as_nanos(), Release);
        }
        if (self.kick || debt_left) && !self.is_driver {
            self.port.kick.wake_by_ref();
        }
    }
}

/// What is in the place of a device that was given back. A port over it is down, and submits
/// nothing.
struct Closed;

impl TxQueue for Closed {
    fn submit(&mut self, _: Frame, _: Instant) -> Result<(), Frame> {
        Ok(())
    }

    fn flush(&mut self, _: Instant) {}

    fn reap(&mut self, _: Instant) -> Completed {
        Completed::default()
    }

    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }
}

impl Settle for Transmitter {
    type Debt = Debt;
    type Cx<'a> = Drain<'a>;

    fn is_settled(debt: &Debt) -> bool {
        !debt.run && debt.reap.is_none() && !debt.close && debt.link.is_none()
    }

    fn settle(&mut self, debt: Debt, round: &mut Drain<'_>) {
        self.stats.deferred += debt.deferred;
        // Others' frames do not wait for this caller's next one.
        round.has_more = false;
        if let Some(is_up) = debt.link {
            self.is_up = is_up;
        }
        if debt.close {
            self.close(round.port);
        }
        if let Some(at) = debt.reap {
            // The owner may have begun long before: by its time, frames that were in the device
            // meanwhile would have passed it in none.
            round.now = round.now.max(at);
            round.had_completed |= self.reap(round.now);
        }
        self.drain(round);
    }
}

impl Transmitter {
    /// Drops the device with the frames that it holds.
    fn close(&mut self, port: &Port) {
        self.tx = Box::new(Closed);
        self.lose(self.ring_frames + self.pieces.len() as u64, port);
        self.pieces.clear();
        (self.bql, self.ring_frames) = (None, 0);
        (self.is_full, self.needs_flush, self.is_up) = (false, false, false);
    }

    /// Counts frames that were dropped because the link is down.
    fn lose(&mut self, count: u64, port: &Port) {
        self.stats.link_drops += count;
        port.counters.drops.add(DropReason::LinkDown, count);
    }

    fn has_room(&self) -> bool {
        !self.is_full && self.bql.as_ref().is_none_or(ByteQueueLimits::has_room)
    }

    /// One completion round. Whether there were any; what completes at submission does not count,
    /// it is no event of the device.
    fn reap(&mut self, now: Instant) -> bool {
        let done = self.tx.reap(now);
        self.is_full = false;
        let Some(bql) = &mut self.bql else {
            return false;
        };
        if done.frames > 0 {
            bql.on_completed(now, done.bytes);
            self.ring_frames = self.ring_frames.saturating_sub(u64::from(done.frames));
            self.last_progress = now;
        } else if self.ring_frames > 0 && now.since(self.last_progress) >= TX_TIMEOUT {
            // The count may be at fault rather than the wire: the ring's own size is the bound
            // that remains while the limit is learnt anew.
            bql.reset(now);
            self.stats.tx_timeouts += 1;
            self.last_progress = now;
        }
        done.frames > 0
    }

    /// Sends what may go, then tells the driver what is left to wait for.
    fn drain(&mut self, round: &mut Drain<'_>) {
        self.stats.qdisc_timers += u64::from(self.departs <= round.now);
        self.departs = Instant::FAR_FUTURE;
        let next = self.send_all(round);
        // A full device completes nothing that it was not told of.
        if self.needs_flush && !(round.has_more && self.has_room()) {
            self.needs_flush = false;
            self.tx.flush(round.now);
        }
        let holds = self.ring_frames > 0;
        let watchdog = if holds { self.last_progress + TX_TIMEOUT } else { Instant::FAR_FUTURE };
        if let Some(bql) = &self.bql {
            round.port.lateness.store(bql.lateness().0, Relaxed);
            round.port.is_at_once.store(self.tx.completes_within_calls(), Relaxed);
        }
        round.publish(next.min(self.tx.next_event()), self.is_full || holds, watchdog);
    }

    /// Returns when the queue wants to be looked at again, other than by an event of the device.
    fn send_all(&mut self, round: &mut Drain<'_>) -> Instant {
        // Without a link there is nothing to wait for: all is dropped.
        while !self.is_up || self.has_room() {
            if round.quota == 0 {
                if self.pieces.is_empty() && round.port.backlog.load(Acquire) == 0 {
                    break;
                }
                self.stats.quota_exceeded += 1;
                return round.now;
            }
            if let Some(piece) = self.pieces.pop_front() {
                round.quota -= 1;
                if let Some(piece) = self.submit(piece, round) {
                    self.pieces.push_front(piece);
                }
                continue;
            }
            match round.port.dequeue(round.now) {
                Dequeued::Frame(frame) => self.send(frame, round),
                Dequeued::NotBefore(at) => {
                    self.departs = at;
                    return at;
                }
                Dequeued::Empty => break,
            }
        }
        Instant::FAR_FUTURE
    }

    /// Does in software what the device cannot (`validate_xmit_skb`), and submits; pieces are left
    /// to the caller's loop.
    fn send(&mut self, mut frame: Frame, round: &mut Drain<'_>) {
        let has_checksum = self.capabilities.checksum_tx;
        if self.must_cut(&frame, round.port.mtu()) {
            self.stats.segmented += 1;
            let by = if has_checksum { ChecksumBy::Device } else { ChecksumBy::Stack };
            self.pieces.extend(gso::segment(frame, by));
            return;
        }
        if !has_checksum {
            gso::finish_checksum(&mut frame);
        }
        round.quota = round.quota.saturating_sub(1);
        if let Some(frame) = self.submit(frame, round) {
            round.port.requeue(frame);
        }
    }

    fn must_cut(&self, frame: &Frame, mtu: u16) -> bool {
        let Capabilities { gso_max_size, gso_max_segs, .. } = self.capabilities;
        let ip_len = frame.len() - usize::from(frame.link_len);
        frame.gso.is_some()
            && (gso_max_size <= u32::from(mtu)
                || ip_len > gso_max_size as usize
                || frame.segments() > gso_max_segs)
    }

    /// Gives the frame to the device; returns it if the ring is full.
    fn submit(&mut self, mut frame: Frame, round: &Drain<'_>) -> Option<Frame> {
        if !self.is_up {
            self.lose(1, round.port);
            return None;
        }
        let now = round.now;
        let bytes = frame.len() as u64;
        if let Some(credit) = &mut frame.credit {
            credit.enter_device();
        }
        if let Err(mut frame) = self.tx.submit(frame, now) {
            if let Some(credit) = &mut frame.credit {
                credit.leave_device();
            }
            self.is_full = true;
            self.stats.ring_full += 1;
            return Some(frame);
        }
        self.stats.frames += 1;
        self.stats.bytes += bytes;
        self.untimed_bytes += bytes;
        if self.untimed_bytes >= TIMED_BYTES {
            self.untimed_bytes = 0;
            round.port.passed.tell(self.tx.departure(now));
        }
        if self.tx.is_latest_complete() {
            return None;
        }
        self.needs_flush = true;
        if let Some(bql) = &mut self.bql {
            bql.on_queued(now, bytes);
            if self.ring_frames == 0 {
                self.last_progress = now;
            }
            self.ring_frames += 1;
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
