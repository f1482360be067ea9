//! A port over a ring whose completions the test decides.

use super::*;
use crate::device::{Completed, Medium};
use crate::frame::{Gso, GsoKind, PartialChecksum, test_frame};
use crate::net::qdisc::config::QdiscConfig;
use crate::net::qdisc::fifo::PfifoFast;
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use std::sync::{Mutex as StdMutex, OnceLock, Weak};
use std::task::Wake;

const ZERO: Instant = Instant::ZERO;

fn ms(n: u64) -> Instant {
    ZERO + Nanos::from_millis(n)
}

#[derive(Default)]
struct Ring {
    slots: usize,
    held: VecDeque<Frame>,
    /// Frames at the front of `held` that the wire has.
    done: usize,
    /// Flow and payload bytes of each frame taken.
    taken: Vec<(u64, u32)>,
    refused: usize,
    /// The wire has frames at once.
    is_at_once: bool,
    flushes: usize,
    reaps: usize,
}

type SharedRing = Arc<StdMutex<Ring>>;

struct RingQueue {
    ring: SharedRing,
    completion: Completion,
    on_submit: Option<Box<dyn Fn(u64) + Send>>,
}

impl TxQueue for RingQueue {
    fn submit(&mut self, frame: Frame, _: Instant) -> Result<(), Frame> {
        if let Some(hook) = &self.on_submit {
            hook(frame.flow);
        }
        let mut ring = self.ring.lock().unwrap();
        if ring.held.len() == ring.slots {
            ring.refused += 1;
            return Err(frame);
        }
        ring.taken.push((frame.flow, frame.payload.len()));
        match self.completion {
            Completion::OnWire if !ring.is_at_once => ring.held.push_back(frame),
            _ => drop(ring),
        }
        Ok(())
    }
    fn is_latest_complete(&self) -> bool {
        self.ring.lock().unwrap().is_at_once
    }
    fn completes_within_calls(&self) -> bool {
        self.ring.lock().unwrap().is_at_once
    }
    fn departure(&self, now: Instant) -> Instant {
        // Each frame takes a millisecond.
        now + Nanos::from_millis(self.ring.lock().unwrap().taken.len() as u64)
    }
    fn flush(&mut self, _: Instant) {
        self.ring.lock().unwrap().flushes += 1;
    }
    fn reap(&mut self, _: Instant) -> Completed {
        let mut ring = self.ring.lock().unwrap();
        ring.reaps += 1;
        let n = ring.done.min(ring.held.len());
        ring.done = 0;
        let done: Vec<_> = ring.held.drain(..n).collect();
        let bytes = done.iter().map(|frame| frame.len() as u64).sum();
        Completed { frames: n as u32, bytes }
    }
    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }
}

#[derive(Default)]
struct Kicks(std::sync::atomic::AtomicUsize);
impl Wake for Kicks {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, AcqRel);
    }
}
impl Kicks {
    fn take(&self) -> usize {
        self.0.swap(0, AcqRel)
    }
}

fn capabilities(completion: Completion) -> Capabilities {
    Capabilities {
        medium: Medium::Ip,
        mtu: 1500,
        gso_max_size: 65536,
        gso_max_segs: 64,
        gso_udp: false,
        checksum_tx: true,
        checksum_rx: true,
        completion,
        pacing_shift: 10,
    }
}

struct World {
    ring: SharedRing,
    kicks: Arc<Kicks>,
    counters: Arc<PacketCounters>,
    passed: Arc<PassedTime>,
    port: Arc<Port>,
}

impl World {
    fn new(slots: usize, capabilities: Capabilities) -> Self {
        Self::with_hook(slots, capabilities, None)
    }

    fn with_hook(
        slots: usize,
        capabilities: Capabilities,
        on_submit: Option<Box<dyn Fn(u64) + Send>>,
    ) -> Self {
        let ring = SharedRing::new(StdMutex::new(Ring { slots, ..Ring::default() }));
        let kicks = Arc::new(Kicks::default());
        let tx = RingQueue { ring: ring.clone(), completion: capabilities.completion, on_submit };
        let qdisc = Box::<PfifoFast>::default();
        let counters = Arc::<PacketCounters>::default();
        let kick = kicks.clone().into();
        let port = Port::new(Box::new(tx), capabilities, qdisc, kick, ZERO);
        let passed = Arc::<PassedTime>::default();
        let port = Arc::new(port.of_host(counters.clone(), passed.clone()));
        Self { ring, kicks, counters, passed, port }
    }

    /// The limit is no hindrance to tests of the ring.
    fn without_bql(self) -> Self {
        self.port.set_byte_queue_limits(1 << 30, 1 << 30, ZERO);
        self
    }

    fn enqueue(&self, flows: impl IntoIterator<Item = u64>) {
        for flow in flows {
            let verdict = self.port.enqueue(Frame { flow, ..test_frame(100) }, ZERO);
            assert_eq!(verdict, Verdict::Queued);
        }
    }

    fn flows_taken(&self) -> Vec<u64> {
        self.ring.lock().unwrap().taken.iter().map(|&(flow, _)| flow).collect()
    }

    fn complete(&self, frames: usize, now: Instant) {
        self.ring.lock().unwrap().done += frames;
        self.port.run(now);
    }
}

fn account() -> Arc<TxAccount> {
    TxAccount::new(Waker::noop().clone())
}

fn super_frame(flow: u64, payload: usize, account: &Arc<TxAccount>) -> Frame {
    let mut frame = Frame {
        flow,
        gso: Some(Gso { size: 1000, kind: GsoKind::Tcp4 }),
        credit: Some(TxCredit::charge(account, payload as u32)),
        ..test_frame(payload)
    };
    // Lengths of the IPv4 and TCP headers.
    frame.headers.as_mut_slice()[0] = 0x45;
    frame.headers.as_mut_slice()[32] = 0x50;
    frame
}

#[test]
fn an_empty_qdisc_is_passed_by_and_counted() {
    let world = World::new(10, capabilities(Completion::OnSubmit));
    world.enqueue(0..3);
    let stats = world.port.stats(ZERO);
    assert_eq!((stats.frames, stats.bypassed, stats.qdisc.packets), (3, 3, 3));
    assert_eq!((stats.bytes, stats.qdisc.bytes), (420, 420));
    assert_eq!((stats.ring_limit, world.port.next_event()), (None, Instant::FAR_FUTURE));
    assert!(!world.port.waits_for_device());
    assert_eq!(world.ring.lock().unwrap().flushes, 3);
    assert_eq!(world.kicks.take(), 0);
}

#[test]
fn the_sockets_hear_of_the_time_that_a_long_call_has_taken() {
    let world = World::new(10, capabilities(Completion::OnSubmit));
    let account = account();
    let enqueue = || world.port.enqueue(super_frame(1, 20_000, &account), ms(5));
    let told = (0..7).map(|_| {
        enqueue();
        world.passed.latest(ZERO)
    });
    let told = told.collect::<Vec<_>>();
    assert_eq!(told, [ZERO, ZERO, ZERO, ms(9), ms(9), ms(9), ms(9)]);
    enqueue();
    assert_eq!(world.passed.latest(ZERO), ms(13), "64 KiB later");
    assert_eq!(world.passed.latest(ms(20)), ms(20));
}

#[test]
fn a_device_is_told_once_of_frames_with_more_behind_them() {
    let world = World::new(3, capabilities(Completion::OnWire)).without_bql();
    let before = |flow| {
        world.port.enqueue_before(Frame { flow, ..test_frame(100) }, ZERO, true);
        let ring = world.ring.lock().unwrap();
        (ring.taken.len(), ring.flushes)
    };
    assert_eq!((before(0), before(1)), ((1, 0), (2, 0)));
    world.port.flush(ZERO);
    assert_eq!(world.ring.lock().unwrap().flushes, 1);
    world.port.flush(ZERO);
    assert_eq!(world.ring.lock().unwrap().flushes, 1, "nothing was left to tell");
    assert_eq!((before(2), before(3)), ((3, 1), (3, 2)), "a full ring is told at once");
    world.complete(3, ZERO);
    world.enqueue([4]);
    assert_eq!(world.ring.lock().unwrap().flushes, 4, "one round each of completion and frame");
}

#[test]
fn a_full_ring_puts_frames_back_in_order_until_it_is_reaped() {
    let world = World::new(2, capabilities(Completion::OnWire)).without_bql();
    world.enqueue(0..5);
    assert_eq!(world.flows_taken(), [0, 1]);
    assert_eq!(world.ring.lock().unwrap().refused, 1, "asked once, not for every frame");
    assert!(world.port.waits_for_device());
    assert_eq!(world.kicks.take(), 1, "the driver has to wait for the device now");
    assert_eq!(world.port.stats(ZERO).qdisc.backlog_packets, 3);
    world.complete(1, ms(1));
    assert_eq!(world.flows_taken(), [0, 1, 2]);
    world.complete(3, ms(2));
    world.enqueue([5]);
    world.complete(2, ms(3));
    world.complete(2, ms(4));
    assert_eq!(world.flows_taken(), [0, 1, 2, 3, 4, 5]);
    world.complete(9, ms(5));
    let stats = world.port.stats(ZERO);
    assert_eq!((stats.ring_frames, stats.ring_bytes, stats.qdisc.backlog_packets), (0, 0, 0));
    assert!(!world.port.waits_for_device());
    assert_eq!(world.kicks.take(), 0, "the driver's own calls need no kick");
}

#[test]
fn a_link_that_goes_down_drops_what_waits_behind_a_full_ring() {
    for world in [
        World::new(2, capabilities(Completion::OnWire)),
        World::new(2, capabilities(Completion::OnWire)).without_bql(),
    ] {
        world.enqueue(0..5);
        let waits = world.port.stats(ZERO).qdisc.backlog_packets;
        assert!(waits >= 3);
        world.port.set_link(false, ms(1));
        let stats = world.port.stats(ms(1));
        assert_eq!((stats.link_drops, stats.qdisc.backlog_packets), (waits.into(), 0));
    }
}

#[test]
fn frames_that_the_wire_has_at_once_need_no_limit_doorbell_or_completion() {
    let world = World::new(4, capabilities(Completion::OnWire));
    let is_at_once = |port: &Port| port.load().is_some_and(|load| load.is_at_once);
    for n in 1..=2 {
        world.port.count_load(ms(10 * n), 1000, 0);
    }
    world.ring.lock().unwrap().is_at_once = true;
    let account = account();
    let enqueue = |flow| {
        let credit = Some(TxCredit::charge(&account, 100));
        world.port.enqueue(Frame { flow, credit, ..test_frame(100) }, ZERO);
    };
    (0..3).for_each(enqueue);
    let stats = world.port.stats(ZERO);
    assert_eq!((stats.frames, stats.ring_frames, stats.ring_bytes), (3, 0, 0));
    assert_eq!((account.bytes(), account.device_bytes()), (0, 0));
    assert_eq!(world.ring.lock().unwrap().flushes, 0);
    assert!(!world.port.waits_for_device() && is_at_once(&world.port));
    assert_eq!(world.port.next_event(), Instant::FAR_FUTURE, "no watchdog");
    world.ring.lock().unwrap().is_at_once = false;
    enqueue(3);
    assert!(world.port.waits_for_device() && !is_at_once(&world.port));
    assert_eq!((account.bytes(), world.ring.lock().unwrap().flushes), (100, 1));
    world.complete(1, ms(1));
    assert_eq!((account.bytes(), world.port.stats(ZERO).ring_frames), (0, 0));
    assert_eq!(world.flows_taken(), [0, 1, 2, 3]);
}

#[test]
fn pieces_of_frames_that_are_cut_here_wait_for_each_other() {
    let caps = Capabilities { gso_max_size: 1500, ..capabilities(Completion::OnWire) };
    let world = World::new(4, caps);
    for n in 1..=2 {
        world.port.count_load(ms(10 * n), 1000, 0);
    }
    world.ring.lock().unwrap().is_at_once = true;
    world.enqueue(0..3);
    assert!(world.port.load().is_some_and(|load| !load.is_at_once));
}

#[test]
fn credits_tell_the_place_and_return_to_zero() {
    let world = World::new(1, capabilities(Completion::OnWire)).without_bql();
    let account = account();
    for flow in 0..3 {
        let credit = Some(TxCredit::charge(&account, 100));
        world.port.enqueue(Frame { flow, credit, ..test_frame(100) }, ZERO);
    }
    assert_eq!((account.bytes(), account.device_bytes()), (300, 100));
    world.complete(1, ms(1));
    assert_eq!((account.bytes(), account.device_bytes()), (200, 100));
    world.complete(1, ms(2));
    world.complete(1, ms(3));
    assert_eq!((account.bytes(), account.device_bytes()), (0, 0));
}

#[test]
fn frames_that_die_with_the_port_return_their_credits() {
    let world =
        World::new(1, Capabilities { gso_max_size: 1500, ..capabilities(Completion::OnWire) })
            .without_bql();
    let account = account();
    for flow in 0..3 {
        world.port.enqueue(super_frame(flow, 3000, &account), ZERO);
    }
    assert_eq!(account.bytes(), 9000);
    drop(world);
    assert_eq!((account.bytes(), account.device_bytes()), (0, 0));
}

/// A ring of a thousand slots whose device sends ten frames per round: with byte queue limits the
/// standing queue is in the qdisc, and the ring never runs dry.
#[test]
fn the_standing_queue_is_in_the_qdisc() {
    let world = World::new(1000, capabilities(Completion::OnWire));
    let mut dry = 0;
    for round in 0..200 {
        let missing = 500 - u64::from(world.port.stats(ZERO).qdisc.backlog_packets);
        world.enqueue(0..missing);
        if round > 20 && world.ring.lock().unwrap().held.len() < 10 {
            dry += 1;
        }
        world.complete(10, ms(round));
    }
    let stats = world.port.stats(ZERO);
    assert_eq!(dry, 0);
    assert!((10..=35).contains(&stats.ring_frames), "{} frames in the ring", stats.ring_frames);
    assert!(stats.qdisc.backlog_packets > 450);
    assert_eq!(stats.ring_full, 0);
}

#[test]
fn pieces_of_a_super_frame_wait_in_order_across_a_full_ring() {
    let caps = Capabilities { gso_max_size: 1500, ..capabilities(Completion::OnWire) };
    let world = World::new(2, caps).without_bql();
    let account = account();
    world.port.enqueue(super_frame(1, 4500, &account), ZERO);
    world.port.enqueue(super_frame(2, 1500, &account), ZERO);
    world.enqueue([3]);
    let first = [(1, 1000), (1, 1000)];
    assert_eq!(world.ring.lock().unwrap().taken, first);
    let stats = world.port.stats(ZERO);
    assert_eq!((stats.segmented, stats.pieces, stats.qdisc.backlog_packets), (1, 3, 2));
    assert_eq!(account.bytes(), 6000);
    for round in 0..10 {
        world.complete(1, ms(round));
    }
    let rest = [(1, 1000), (1, 1000), (1, 500), (2, 1000), (2, 500), (3, 100)];
    assert_eq!(world.ring.lock().unwrap().taken, [&first[..], &rest].concat());
    assert_eq!((account.bytes(), account.device_bytes()), (0, 0));
}

#[test]
fn only_what_the_device_cannot_send_is_cut() {
    let world = World::new(100, capabilities(Completion::OnSubmit));
    let account = account();
    world.port.enqueue(super_frame(1, 60_000, &account), ZERO);
    assert_eq!(world.ring.lock().unwrap().taken, [(1, 60_000)]);
    world.port.enqueue(super_frame(1, 65_000, &account), ZERO);
    assert_eq!(world.port.stats(ZERO).segmented, 1, "more segments than the device takes");
    assert_eq!(world.port.stats(ZERO).pieces, 1, "65 pieces exceed the quota");
    world.port.run(ZERO);
    assert_eq!(world.ring.lock().unwrap().taken.len(), 66);
    assert_eq!(account.bytes(), 0);
}

#[test]
fn the_checksum_is_finished_for_a_device_that_does_not() {
    let caps = Capabilities { checksum_tx: false, ..capabilities(Completion::OnWire) };
    let world = World::new(10, caps);
    let mut frame = test_frame(100);
    frame.checksum = Some(PartialChecksum { start: 20, offset: 16 });
    world.port.enqueue(frame, ZERO);
    assert_eq!(world.ring.lock().unwrap().held[0].checksum, None);
}

#[test]
fn pieces_have_their_checksums_if_the_device_does_not_finish_them() {
    let caps = Capabilities { gso_max_size: 0, ..capabilities(Completion::OnWire) };
    for checksum_tx in [true, false] {
        let world = World::new(10, Capabilities { checksum_tx, ..caps }).without_bql();
        world.port.enqueue(super_frame(1, 2500, &account()), ZERO);
        let ring = world.ring.lock().unwrap();
        assert_eq!(ring.held.len(), 3);
        assert!(ring.held.iter().all(|piece| piece.checksum.is_some() == checksum_tx));
        assert!(ring.held.iter().all(|piece| piece.gso.is_none()));
    }
}

#[test]
fn the_quota_leaves_the_rest_to_the_driver() {
    let world = World::new(0, capabilities(Completion::OnSubmit));
    world.enqueue(0..150);
    world.kicks.take();
    world.ring.lock().unwrap().slots = 1000;
    // Not the driver: as when `set_qdisc` or an application's frame finds the ring open again.
    world.port.run(ms(1));
    assert_eq!(world.flows_taken().len(), 64);
    assert_eq!((world.port.next_event(), world.kicks.take()), (ms(1), 0));
    world.enqueue([150]);
    assert_eq!(world.flows_taken().len(), 128);
    world.port.run(ms(2));
    assert_eq!(world.flows_taken(), (0..151).collect::<Vec<_>>());
    assert_eq!(world.port.next_event(), Instant::FAR_FUTURE);
    assert_eq!(world.port.stats(ZERO).quota_exceeded, 2);
}

fn qdisc(text: &str) -> Box<dyn Qdisc> {
    let config: QdiscConfig = text.parse().expect("well formed");
    config.build(&capabilities(Completion::OnSubmit), 1)
}

#[test]
fn frames_move_from_a_replaced_qdisc_into_the_next_one() {
    let world = World::new(0, capabilities(Completion::OnSubmit));
    let account = account();
    for flow in 0..5 {
        let credit = Some(TxCredit::charge(&account, 100));
        world.port.enqueue(Frame { flow, credit, ..test_frame(100) }, ZERO);
    }
    for text in ["fq_codel", "codel", "tbf rate 1gbit burst 10k limit 10k", "pfifo_fast"] {
        world.port.set_qdisc(qdisc(text), ZERO);
        assert_eq!(world.counters.drops.get(DropReason::QdiscDrop), 0);
        assert_eq!(world.port.qdisc(ZERO).config.kind(), text.split(' ').next().unwrap());
        assert_eq!(world.port.stats(ZERO).qdisc.backlog_packets, 5);
        assert_eq!(account.bytes(), 500);
    }
    world.port.set_qdisc(qdisc("pfifo_fast limit 2"), ZERO);
    assert_eq!(world.counters.drops.get(DropReason::QdiscDrop), 2, "one was given back");
    let stats = world.port.stats(ZERO).qdisc;
    assert_eq!((stats.backlog_packets, stats.drops, account.bytes()), (3, 2, 300));
    world.ring.lock().unwrap().slots = 10;
    world.port.run(ZERO);
    assert_eq!((world.flows_taken().len(), account.bytes()), (3, 0));
    world.enqueue([6]);
    assert_eq!(world.port.stats(ZERO).bypassed, 1 + 1, "the first try and the last frame");
}

#[test]
fn a_new_qdisc_begins_its_figures_at_zero() {
    let world = World::new(3, capabilities(Completion::OnWire)).without_bql();
    world.enqueue(0..8);
    let stats = world.port.stats(ZERO);
    assert_eq!((stats.bypassed, stats.qdisc.packets, stats.qdisc.requeues), (4, 4, 1));
    world.port.set_qdisc(qdisc("pfifo_fast"), ZERO);
    let stats = world.port.stats(ZERO);
    let waiting =
        QdiscStats { backlog_packets: 5, backlog_bytes: 5 * 140, ..QdiscStats::default() };
    assert_eq!((stats.bypassed, stats.qdisc), (4, waiting), "the port's own figures go on");
    world.ring.lock().unwrap().slots = 10;
    world.port.run(ZERO);
    // What the device had given back was sent by the old one.
    let sent = QdiscStats { packets: 4, bytes: 4 * 140, ..QdiscStats::default() };
    assert_eq!((world.flows_taken().len(), world.port.stats(ZERO).qdisc), (8, sent));
    world.enqueue([8]);
    let sent = QdiscStats { packets: 5, bytes: 5 * 140, ..QdiscStats::default() };
    assert_eq!(world.port.stats(ZERO).qdisc, sent);
}

#[test]
fn what_a_replaced_fq_holds_counts_as_sent_by_its_successor() {
    let world = World::new(10, capabilities(Completion::OnSubmit));
    world.port.set_qdisc(qdisc("fq timer_slack 0ns"), ZERO);
    for departure in [ms(1), ms(3), ms(5), ms(9)] {
        world.port.enqueue(Frame { departure, ..test_frame(100) }, ms(1));
    }
    let figures = |sent: u32, waiting: u32| QdiscStats {
        packets: sent.into(),
        bytes: u64::from(sent) * 140,
        backlog_packets: waiting,
        backlog_bytes: u64::from(waiting) * 140,
        ..QdiscStats::default()
    };
    assert_eq!(world.port.stats(ms(1)).qdisc.packets, 1);
    world.port.set_qdisc(qdisc("pfifo_fast"), ms(1));
    assert_eq!(world.port.stats(ms(1)).qdisc, figures(0, 3));
    world.port.run(ms(3));
    assert_eq!(world.port.stats(ms(3)).qdisc, figures(1, 2));
    world.port.set_qdisc(qdisc("fq_codel"), ms(3));
    assert_eq!(world.port.stats(ms(3)).qdisc, figures(0, 2));
    world.port.run(ms(9));
    assert_eq!(world.port.stats(ms(9)).qdisc, figures(2, 0));
}

#[test]
fn a_replaced_fq_keeps_what_it_holds_and_holds_back_nothing_else() {
    let world = World::new(10, capabilities(Completion::OnSubmit));
    let account = account();
    let frame = |flow, departure| {
        let credit = Some(TxCredit::charge(&account, 100));
        Frame { flow, departure, credit, ..test_frame(100) }
    };
    world.port.set_qdisc(qdisc("fq timer_slack 0ns"), ZERO);
    for (flow, departure) in [(1, ms(5)), (2, ms(3)), (3, ms(9))] {
        world.port.enqueue(frame(flow, departure), ms(1));
    }
    world.port.set_qdisc(qdisc("pfifo_fast"), ms(1));
    assert_eq!((world.port.next_event(), world.port.holds_until_departure()), (ms(3), false));
    world.port.enqueue(frame(4, ms(1)), ms(1));
    assert_eq!((world.flows_taken(), account.bytes()), (vec![4], 300));
    world.port.run(ms(3));
    assert_eq!((world.flows_taken(), world.port.next_event()), (vec![4, 2], ms(5)));
    // Another fq takes over what is held still.
    world.port.set_qdisc(qdisc("fq timer_slack 0ns"), ms(3));
    assert_eq!(world.port.qdisc(ms(3)).stats.backlog_packets, 2);
    assert_eq!(world.port.next_event(), ms(5));
    world.port.run(ms(9));
    assert_eq!((world.flows_taken(), account.bytes()), (vec![4, 2, 1, 3], 0));
    assert_eq!(world.port.next_event(), Instant::FAR_FUTURE);
}

/// One frame, held until its departure.
struct Holding(Option<Frame>);
impl Qdisc for Holding {
    fn enqueue(&mut self, frame: Frame, _: Instant, dropped: &mut Dropped) -> Verdict {
        dropped.extend(self.0.replace(frame));
        Verdict::Congested
    }
    fn dequeue(&mut self, now: Instant, _: &mut Dropped) -> Dequeued {
        match self.0.take_if(|frame| frame.departure <= now) {
            Some(frame) => Dequeued::Frame(frame),
            None => self.0.as_ref().map_or(Dequeued::Empty, |f| Dequeued::NotBefore(f.departure)),
        }
    }
    fn len(&self) -> usize {
        usize::from(self.0.is_some())
    }
    fn into_frames(self: Box<Self>) -> Vec<Frame> {
        self.0.into_iter().collect()
    }
    fn config(&self) -> QdiscConfig {
        QdiscConfig::default()
    }
    fn holds_until_departure(&self) -> bool {
        true
    }
    fn stats(&self) -> QdiscStats {
        QdiscStats::default()
    }
}

/// A FIFO that notes the times that it is told.
struct Watch(PfifoFast, Arc<StdMutex<Vec<Instant>>>);
impl Qdisc for Watch {
    fn enqueue(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict {
        self.1.lock().unwrap().push(now);
        self.0.enqueue(frame, now, dropped)
    }
    fn dequeue(&mut self, now: Instant, dropped: &mut Dropped) -> Dequeued {
        self.1.lock().unwrap().push(now);
        self.0.dequeue(now, dropped)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn into_frames(self: Box<Self>) -> Vec<Frame> {
        Box::new(self.0).into_frames()
    }
    fn stats(&self) -> QdiscStats {
        self.0.stats()
    }
    fn config(&self) -> QdiscConfig {
        self.0.config()
    }
}

#[test]
fn a_qdisc_is_told_of_no_time_before_one_that_another_thread_brought() {
    let world = World::new(1, capabilities(Completion::OnSubmit));
    let times = Arc::new(StdMutex::new(Vec::new()));
    world.port.set_qdisc(Box::new(Watch(PfifoFast::default(), times.clone())), ms(1));
    for now in [5, 3, 6, 2] {
        world.port.enqueue(test_frame(100), ms(now));
        world.port.run(ms(now));
    }
    let times = times.lock().unwrap();
    assert!(times.is_sorted() && times.last() == Some(&ms(6)), "{times:?}");
}

#[test]
fn the_driver_learns_when_a_held_frame_may_go() {
    let world = World::new(10, capabilities(Completion::OnSubmit));
    world.port.set_qdisc(Box::new(Holding(None)), ZERO);
    assert!(world.port.holds_until_departure());
    for (departure, kicks) in [(ms(20), 1), (ms(10), 1), (ms(30), 0)] {
        let frame = Frame { departure, ..test_frame(1) };
        assert_eq!(world.port.enqueue(frame, ZERO), Verdict::Congested);
        assert_eq!((world.port.next_event(), world.kicks.take()), (departure, kicks));
    }
    world.port.run(ms(29));
    assert!(world.flows_taken().is_empty());
    world.port.run(ms(30));
    assert_eq!(world.flows_taken().len(), 1);
    assert_eq!(world.port.next_event(), Instant::FAR_FUTURE);
}

#[test]
fn a_silent_device_is_counted_reaped_again_and_loses_nothing() {
    let world = World::new(2, capabilities(Completion::OnWire));
    world.enqueue(0..4);
    let suspect = ZERO + TX_TIMEOUT;
    assert_eq!(world.port.next_event(), suspect);
    world.port.run(suspect - Nanos(1));
    assert_eq!(world.port.stats(ZERO).tx_timeouts, 0);
    world.port.run(suspect);
    assert_eq!(world.port.stats(ZERO).tx_timeouts, 1);
    assert_eq!(world.port.next_event(), suspect + TX_TIMEOUT);
    for second in 6..16 {
        world.complete(2, ms(1000 * second));
    }
    assert_eq!(world.flows_taken(), [0, 1, 2, 3]);
    let stats = world.port.stats(ZERO);
    assert_eq!((stats.tx_timeouts, stats.ring_frames, stats.ring_bytes), (1, 0, 0));
    assert_eq!(world.port.next_event(), Instant::FAR_FUTURE);
}

/// A frame enqueued while another thread (here: the device itself) drains is sent by that one.
#[test]
fn a_frame_behind_a_running_drain_is_sent_by_the_drainer() {
    let port: Arc<OnceLock<Weak<Port>>> = Arc::default();
    let hook = {
        let port = port.clone();
        Box::new(move |flow| {
            let port = port.get().and_then(Weak::upgrade).expect("set below");
            if flow < 100 {
                let frame = Frame { flow: flow + 100, ..test_frame(1) };
                assert_eq!(port.enqueue(frame, ZERO), Verdict::Queued);
            } else if flow == 101 {
                port.run(ZERO);
            }
        })
    };
    let world = World::with_hook(10, capabilities(Completion::OnSubmit), Some(hook));
    port.set(Arc::downgrade(&world.port)).expect("set once");
    world.enqueue([0, 1]);
    assert_eq!(world.flows_taken(), [0, 100, 1, 101]);
    assert_eq!(world.ring.lock().unwrap().reaps, 1);
    let stats = world.port.stats(ZERO);
    assert_eq!((stats.deferred, stats.bypassed), (2, 2));
    assert_eq!((world.port.next_event(), world.kicks.take()), (Instant::FAR_FUTURE, 0));
}

/// A completion round that finds the device owned happens at the time of the call that asked for
/// it, not at that of the owner's call, which began before.
#[test]
fn a_completion_round_that_is_left_to_the_owner_brings_its_time() {
    let shared: Arc<OnceLock<(Weak<Port>, SharedRing)>> = Arc::default();
    let hook = {
        let shared = shared.clone();
        Box::new(move |flow| {
            if flow == 2 {
                let (port, ring) = shared.get().expect("set below");
                ring.lock().unwrap().done = 1;
                let left = port.upgrade().expect("the world has it").run(ms(1));
                assert!(!left, "the owner does it");
            }
        })
    };
    let world = World::with_hook(10, capabilities(Completion::OnWire), Some(hook)).without_bql();
    assert!(shared.set((Arc::downgrade(&world.port), world.ring.clone())).is_ok());
    world.enqueue([1, 2]);
    assert_eq!(world.port.stats(ms(1)).ring_frames, 1, "the first is complete");
    // The third finds the second in the ring, and takes a millisecond with it.
    world.port.enqueue(Frame { flow: 3, ..test_frame(100) }, ms(1));
    world.complete(2, ms(2));
    // One frame takes a millisecond and two take no more, so half of it is no work of the wire.
    assert_eq!(world.port.lateness(), Nanos::from_micros(500));
}

/// Every figure has its name in the list. A new one gets its place here, and with it one there.
#[test]
fn the_list_of_figures_is_complete() {
    let stats = PortStats {
        frames: 1,
        bytes: 2,
        bypassed: 3,
        segmented: 4,
        ring_full: 5,
        deferred: 6,
        quota_exceeded: 7,
        tx_timeouts: 8,
        device_errors: 9,
        link_drops: 10,
        qdisc_timers: 11,
        pieces: 12,
        ring_frames: 13,
        ring_bytes: 14,
        ring_limit: Some(15),
        qdisc: QdiscStats::default(),
    };
    let mut figures = stats.figures().map(|(_, value)| value);
    figures.sort_unstable();
    assert_eq!(figures.to_vec(), (1..=15).collect::<Vec<_>>());
}

/// The waker of an account that looks at the port: it would hang if the qdisc were locked.
#[test]
fn frames_are_dropped_outside_the_qdisc_lock() {
    struct Look(OnceLock<Weak<Port>>);
    impl Wake for Look {
        fn wake(self: Arc<Self>) {
            let port = self.0.get().and_then(Weak::upgrade).expect("set below");
            assert!(!port.holds_until_departure() || lock(&port.queue).qdisc.len() <= 1);
        }
    }
    let world = World::new(10, capabilities(Completion::OnSubmit));
    world.port.set_qdisc(Box::new(Holding(None)), ZERO);
    let look = Arc::new(Look(OnceLock::new()));
    look.0.set(Arc::downgrade(&world.port)).expect("set once");
    let account = TxAccount::new(look.into());
    for _ in 0..2 {
        let credit = Some(TxCredit::charge(&account, 1));
        assert!(!account.admit(0));
        world.port.enqueue(Frame { departure: ms(1), credit, ..test_frame(1) }, ZERO);
    }
    assert_eq!(account.bytes(), 1);
}

#[test]
fn threads_lose_no_frame_and_keep_each_flow_in_order() {
    const EACH: u64 = 2000;
    let world = World::new(8, capabilities(Completion::OnWire));
    let account = account();
    std::thread::scope(|scope| {
        for flow in 0..3u64 {
            let (port, account) = (&world.port, &account);
            scope.spawn(move || {
                for n in 0..EACH {
                    let credit = Some(TxCredit::charge(account, 1));
                    let frame = Frame { flow: flow << 32 | n, credit, ..test_frame(1) };
                    while !account.admit(100) {
                        std::thread::yield_now();
                    }
                    assert_eq!(port.enqueue(frame, ZERO), Verdict::Queued);
                }
            });
        }
        let mut n = 0;
        while world.ring.lock().unwrap().taken.len() < 3 * EACH as usize {
            n += 1;
            world.complete(4, ms(n));
        }
    });
    world.complete(8, ms(u64::from(u32::MAX)));
    assert_eq!((account.bytes(), account.device_bytes()), (0, 0));
    let taken = world.flows_taken();
    for flow in 0..3u64 {
        let of_flow = taken.iter().filter(|&&id| id >> 32 == flow).map(|id| id & 0xffff_ffff);
        assert!(of_flow.eq(0..EACH), "flow {flow} lost its order");
    }
}

#[test]
fn behind_a_shaper_no_frame_is_complete_on_enqueue() {
    let world = World::new(1000, capabilities(Completion::OnSubmit));
    let shaper = "tbf rate 8mbit burst 2000b limit 1mb";
    for (text, completes) in [
        ("pfifo_fast", true),
        ("fq", true),
        (shaper, false),
        ("tbf rate 8mbit burst 2000b fq", false),
    ] {
        let config: QdiscConfig = text.parse().unwrap();
        world.port.set_qdisc(config.build(&capabilities(Completion::OnSubmit), 3), ZERO);
        assert_eq!(world.port.completes_on_enqueue(), completes, "{text}");
    }
}
