//! `fq_codel`: flow queues, each under CoDel (RFC 8290; Linux's `net/sched/sch_fq_codel.c`).
//!
//! Flows are hashed to a fixed number of queues. A queue that becomes active is new and served
//! before the old ones, for one quantum; so a flow that sends little does not wait behind one that
//! sends much. When too many frames wait, the longest queue loses frames at its head.
//!
//! Cost: O(1) per frame; one look at each queue per [`Config::drop_batch`] frames dropped over the
//! limit. A queue is 88 bytes, all are there from the start.

use super::codel::{FrameSource, Law, LawStats, State};
use super::config::QdiscConfig;
use super::lists::{Chain, Frames, Linked, Links};
use super::report::Xstats;
use super::{Dequeued, Dropped, Qdisc, QdiscStats, Verdict};
use crate::frame::Frame;
use crate::keyed::Keyed;
use core::hash::BuildHasher;
use neap_tcp::time::Instant;

/// Parameters of `fq_codel`, by `tc`'s names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most frames that wait.
    pub limit: u32,
    /// Number of queues.
    pub flows: u32,
    /// Bytes of a queue's turn; `None` is one whole packet.
    pub quantum: Option<u32>,
    /// Most bytes of memory that waiting frames take.
    pub memory_limit: u32,
    /// Frames dropped at once when too many wait.
    pub drop_batch: u32,
    /// Parameters of CoDel's control law.
    pub law: Law,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: 10_240,
            flows: 1024,
            quantum: None,
            memory_limit: 32 << 20,
            drop_batch: 64,
            law: Law { ecn: true, ..Law::default() },
        }
    }
}

/// Figures that only `fq_codel` has (`tc_fq_codel_qd_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FqCodelStats {
    /// Figures of the control law, for all queues together.
    pub law: LawStats,
    /// Frames dropped over a limit.
    pub drop_overlimit: u64,
    /// Packets dropped because of the memory limit.
    pub drop_overmemory: u64,
    /// How often a queue became active.
    pub new_flow_count: u64,
    /// Number of queues on the list of new ones.
    pub new_flows_len: u32,
    /// Number of queues on the list of old ones.
    pub old_flows_len: u32,
    /// Bytes of memory of the frames that wait.
    pub memory_usage: u64,
}

#[derive(Debug, Default)]
struct Flow {
    queue: Chain,
    deficit: i64,
    backlog: u64,
    is_active: bool,
    state: State,
    links: Links,
}

impl Linked for Flow {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// What waits, without the order of the flows.
#[derive(Debug, Default)]
struct Store {
    frames: Frames,
    stats: QdiscStats,
    memory: u64,
}

impl Store {
    fn pop(&mut self, queue: &mut Chain, backlog: &mut u64) -> Option<(Frame, Instant)> {
        let waiting = self.frames.pop_front(queue)?;
        let bytes = waiting.frame.wire_len() as u64;
        *backlog -= bytes;
        self.stats.on_left(bytes);
        self.memory -= waiting.frame.memory() as u64;
        Some((waiting.frame, waiting.time))
    }
}

/// One flow's queue for CoDel.
struct FlowQueue<'a> {
    store: &'a mut Store,
    queue: &'a mut Chain,
    backlog: &'a mut u64,
}

impl FrameSource for FlowQueue<'_> {
    fn pop(&mut self) -> Option<(Frame, Instant)> {
        self.store.pop(self.queue, self.backlog)
    }

    fn backlog(&self) -> u64 {
        self.store.stats.backlog_bytes
    }
}

/// Qdisc `fq_codel`.
#[derive(Debug)]
pub struct FqCodel {
    config: Config,
    quantum: i64,
    mtu: u64,
    key: Keyed,
    store: Store,
    flows: Vec<Flow>,
    new: Chain,
    old: Chain,
    figures: FqCodelStats,
}

impl FqCodel {
    /// Returns an empty queue for a device whose packets have at most `psched_mtu` bytes with the
    /// link header. `seed` is secret.
    pub fn new(config: Config, psched_mtu: u32, seed: u64) -> Self {
        Self {
            quantum: config.quantum.unwrap_or(psched_mtu).max(1).into(),
            mtu: psched_mtu.into(),
            key: Keyed::new(seed),
            store: Store::default(),
            flows: (0..config.flows.max(1)).map(|_| Flow::default()).collect(),
            new: Chain::default(),
            old: Chain::default(),
            figures: FqCodelStats::default(),
            config,
        }
    }

    fn classify(&self, frame: &Frame) -> u32 {
        let hash = u128::from(self.key.hash_one(frame.flow));
        ((hash * self.flows.len() as u128) >> 64) as u32
    }

    /// Drops from the head of the longest queue up to half of it; which one it was.
    fn drop_from_longest(&mut self, dropped: &mut Dropped) -> Option<u32> {
        let (id, flow) = self.flows.iter_mut().enumerate().max_by_key(|(_, flow)| flow.backlog)?;
        let half = flow.backlog / 2;
        let (mut count, mut bytes) = (0, 0);
        while let Some((frame, _)) = self.store.pop(&mut flow.queue, &mut flow.backlog) {
            count += 1;
            bytes += frame.wire_len() as u64;
            dropped.push(frame);
            if count >= self.config.drop_batch || bytes >= half {
                break;
            }
        }
        flow.state.count += u64::from(count);
        self.store.stats.drops += u64::from(count);
        self.figures.drop_overlimit += u64::from(count);
        Some(id as u32)
    }

    /// The flow whose turn it is, and whether it is a new one.
    fn head(&mut self) -> Option<(u32, bool)> {
        loop {
            let is_new = self.new.first().is_some();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let id = list.first()?;
            let flow = &mut self.flows[id as usize];
            if flow.deficit > 0 {
                return Some((id, is_new));
            }
            flow.deficit += self.quantum;
            list.remove(&mut self.flows, id);
            self.old.push_back(&mut self.flows, id);
        }
    }
}

impl Qdisc for FqCodel {
    fn enqueue(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict {
        let id = self.classify(&frame);
        let (bytes, memory) = (frame.wire_len() as u64, frame.memory() as u64);
        let flow = &mut self.flows[id as usize];
        self.store.frames.push_back(&mut flow.queue, frame, now);
        self.store.stats.on_queued(bytes);
        self.store.memory += memory;
        flow.backlog += bytes;
        if !flow.is_active {
            flow.is_active = true;
            flow.deficit = self.quantum;
            self.figures.new_flow_count += 1;
            self.new.push_back(&mut self.flows, id);
        }
        let is_over_memory = self.store.memory > u64::from(self.config.memory_limit);
        if self.store.frames.len() <= self.config.limit as usize && !is_over_memory {
            return Verdict::Queued;
        }
        let before = self.figures.drop_overlimit;
        let hit = self.drop_from_longest(dropped);
        if is_over_memory {
            self.figures.drop_overmemory += self.figures.drop_overlimit - before;
        }
        if hit == Some(id) { Verdict::Congested } else { Verdict::Queued }
    }

    fn dequeue(&mut self, now: Instant, dropped: &mut Dropped) -> Dequeued {
        while let Some((id, is_new)) = self.head() {
            let Flow { queue, backlog, state, .. } = &mut self.flows[id as usize];
            let mut source = FlowQueue { store: &mut self.store, queue, backlog };
            let (law, figures) = (&self.config.law, &mut self.figures.law);
            let before = figures.drops;
            let frame = state.dequeue(law, figures, &mut source, self.mtu, now, dropped);
            self.store.stats.drops += figures.drops - before;
            if let Some(frame) = frame {
                let bytes = frame.wire_len() as u64;
                self.flows[id as usize].deficit -= bytes as i64;
                self.store.stats.packets += 1;
                self.store.stats.bytes += bytes;
                return Dequeued::Frame(frame);
            }
            let list = if is_new { &mut self.new } else { &mut self.old };
            list.remove(&mut self.flows, id);
            if is_new && self.old.first().is_some() {
                // Once through the old ones, or a flow that sends now and then would always be new.
                self.old.push_back(&mut self.flows, id);
            } else {
                self.flows[id as usize].is_active = false;
            }
        }
        Dequeued::Empty
    }

    fn len(&self) -> usize {
        self.store.frames.len()
    }

    fn into_frames(mut self: Box<Self>) -> Vec<Frame> {
        let mut out = Vec::with_capacity(self.len());
        for flow in &mut self.flows {
            self.store.frames.drain(&mut flow.queue, &mut out);
        }
        out
    }

    fn can_bypass(&self) -> bool {
        self.config.limit >= 1
    }

    fn stats(&self) -> QdiscStats {
        self.store.stats
    }

    fn config(&self) -> QdiscConfig {
        QdiscConfig::FqCodel(Config { quantum: Some(self.quantum as u32), ..self.config })
    }

    fn xstats(&self, _now: Instant) -> Xstats {
        let length = |chain: Chain| {
            let flows = &self.flows;
            core::iter::successors(chain.first(), |&id| flows[id as usize].links.next()).count()
        };
        Xstats::FqCodel(FqCodelStats {
            new_flows_len: length(self.new) as u32,
            old_flows_len: length(self.old) as u32,
            memory_usage: self.store.memory,
            ..self.figures
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::test_frame;
    use crate::net::qdisc::report::Xstats;
    use neap_tcp::time::Nanos;

    const MTU: u32 = 1500;

    fn ms(n: u64) -> Instant {
        Instant::from_nanos(1_000_000_000) + Nanos::from_millis(n)
    }

    fn frame(flow: u64, len: usize) -> Frame {
        Frame { flow, ..test_frame(len - 40) }
    }

    struct Bench {
        qdisc: FqCodel,
        dropped: Dropped,
    }

    impl Bench {
        fn new(config: Config) -> Self {
            Self { qdisc: FqCodel::new(config, MTU, 3), dropped: Dropped::new() }
        }

        fn put(&mut self, flow: u64, len: usize, now: Instant) -> Verdict {
            self.qdisc.enqueue(frame(flow, len), now, &mut self.dropped)
        }

        fn take(&mut self, now: Instant) -> Option<u64> {
            match self.qdisc.dequeue(now, &mut self.dropped) {
                Dequeued::Frame(frame) => Some(frame.flow),
                Dequeued::NotBefore(at) => panic!("nothing is held, not even until {at:?}"),
                Dequeued::Empty => None,
            }
        }

        fn figures(&self) -> FqCodelStats {
            match self.qdisc.xstats(ms(0)) {
                Xstats::FqCodel(figures) => figures,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn turns_are_of_one_quantum_in_bytes() {
        let mut bench = Bench::new(Config::default());
        for _ in 0..20 {
            bench.put(1, 1500, ms(0));
        }
        for _ in 0..20 {
            bench.put(2, 300, ms(0));
        }
        let order: Vec<_> = (0..18).filter_map(|_| bench.take(ms(1))).collect();
        assert_eq!(order, [1, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn what_sends_little_goes_first_but_is_not_new_each_time() {
        let mut bench = Bench::new(Config::default());
        for _ in 0..100 {
            bench.put(1, 500, ms(0));
        }
        for _ in 0..4 {
            bench.take(ms(0));
        }
        bench.put(2, 100, ms(0));
        assert_eq!((bench.take(ms(0)), bench.figures().new_flow_count), (Some(2), 2));
        // Seen to be empty, it passes through the old ones: flow 1 ends its turn.
        assert_eq!(bench.take(ms(0)), Some(1));
        bench.put(2, 100, ms(0));
        assert_eq!((bench.take(ms(0)), bench.take(ms(0))), (Some(1), Some(2)));
        let figures = bench.figures();
        assert_eq!((figures.new_flow_count, figures.old_flows_len), (2, 2));
    }

    #[test]
    fn the_longest_queue_loses_its_head_in_batches() {
        let mut bench = Bench::new(Config { limit: 100, drop_batch: 8, ..Config::default() });
        for flow in 0..10 {
            bench.put(flow, 1000, ms(0));
        }
        for _ in 0..90 {
            assert_eq!(bench.put(77, 1000, ms(0)), Verdict::Queued);
        }
        assert_eq!(bench.put(5, 1000, ms(0)), Verdict::Queued, "another's frames were dropped");
        assert!(bench.dropped.iter().all(|frame| frame.flow == 77));
        assert_eq!((bench.dropped.len(), bench.qdisc.len()), (8, 93));
        for _ in 0..7 {
            bench.put(77, 1000, ms(0));
        }
        assert_eq!(bench.put(77, 1000, ms(0)), Verdict::Congested, "its own");
        let figures = bench.figures();
        assert_eq!((figures.drop_overlimit, figures.drop_overmemory), (16, 0));
        assert_eq!(bench.qdisc.stats().drops, 16);
        while bench.take(ms(0)).is_some() {}
        let stats = bench.qdisc.stats();
        assert_eq!((stats.backlog_bytes, stats.backlog_packets), (0, 0));
        assert_eq!(stats.packets + stats.drops, 109);
        let figures = bench.figures();
        assert_eq!((figures.new_flows_len, figures.old_flows_len, figures.memory_usage), (0, 0, 0));
    }

    #[test]
    fn memory_is_limited_too() {
        let mut bench = Bench::new(Config { memory_limit: 10_000, ..Config::default() });
        for _ in 0..10 {
            bench.put(1, 1000, ms(0));
        }
        assert_eq!((bench.figures().memory_usage, bench.dropped.len()), (10_000, 0));
        assert_eq!(bench.put(1, 1000, ms(0)), Verdict::Congested);
        let figures = bench.figures();
        assert_eq!(figures.drop_overmemory, bench.dropped.len() as u64);
        assert!(figures.memory_usage <= 6_000, "half of the longest queue");
    }

    #[test]
    fn a_flow_that_does_not_yield_is_cut_and_the_other_is_not() {
        let mut bench = Bench::new(Config::default());
        let mut others = 0;
        // A frame per millisecond leaves; flow 1 sends two, flow 2 a short one in ten.
        for now in 0..3000 {
            bench.put(1, 1500, ms(now));
            bench.put(1, 1500, ms(now));
            if now % 10 == 0 {
                bench.put(2, 200, ms(now));
            }
            others += u64::from(bench.take(ms(now)) == Some(2));
        }
        assert_eq!(others, 300, "none waits, none is dropped");
        assert!(bench.dropped.iter().all(|frame| frame.flow == 1));
        assert!(bench.figures().law.drops > 100, "{:?}", bench.figures());
    }
}
