//! What holds for every qdisc, whatever comes and goes.

use super::config::QdiscConfig;
use super::*;
use crate::device::{Capabilities, Completion, Medium};
use crate::frame::test_frame;
use neap_tcp::time::{Nanos, Rate};
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use std::task::Waker;

const KINDS: [&str; 14] = [
    "fq",
    "fq timer_slack 0ns quantum 300 initial_quantum 300 limit 40 flow_limit 12",
    "fq maxrate 20mbit buckets 1 horizon 2ms horizon_cap",
    "fq orphan_mask 0 low_rate_threshold 1gbit refill_delay 0ms",
    "fq_codel",
    "fq_codel flows 2 limit 20 quantum 300 target 100us interval 500us",
    "fq_codel memory_limit 9000 drop_batch 2 noecn ce_threshold 1ms",
    "codel target 100us interval 500us",
    "codel limit 9 ecn",
    "tbf rate 30mbit burst 2kb limit 9kb",
    "tbf rate 80mbit burst 3000 latency 9ms peakrate 100mbit mtu 1600",
    "pfifo_fast limit 7",
    "tbf rate 30mbit burst 2kb fq_codel flows 2 limit 20 quantum 300",
    "tbf rate 80mbit burst 3000 fq",
];

const CAPABILITIES: Capabilities = Capabilities {
    medium: Medium::Ip,
    mtu: 1500,
    gso_max_size: 65_536,
    gso_max_segs: 64,
    gso_udp: false,
    checksum_tx: true,
    checksum_rx: true,
    completion: Completion::OnWire,
    pacing_shift: 10,
};

#[derive(Clone, Debug)]
enum Op {
    /// Flow, payload, and how far ahead the stamp is, for flows that have one.
    Put(u64, usize, u64),
    Take(usize),
    Wait(u64),
    Replace(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..9_u64, 1..1461_usize, 0..3_000_000_u64).prop_map(|(f, len, t)| Op::Put(f, len, t)),
        4 => (1..5_usize).prop_map(Op::Take),
        2 => (0..2_000_000_u64).prop_map(Op::Wait),
        1 => (0..KINDS.len()).prop_map(Op::Replace),
    ]
}

struct Bench {
    qdisc: Box<dyn Qdisc>,
    kind: usize,
    now: Instant,
    dropped: Dropped,
    account: Arc<TxAccount>,
    put: u64,
    taken: u64,
    /// The number of the last frame that left, of each flow.
    last: [u64; 9],
    replaced: bool,
}

impl Bench {
    fn new(kind: usize) -> Self {
        Self {
            qdisc: build(kind),
            kind,
            now: Instant::from_nanos(1_000_000_000),
            dropped: Dropped::new(),
            account: TxAccount::new(Waker::noop().clone()),
            put: 0,
            taken: 0,
            last: [0; 9],
            replaced: false,
        }
    }

    /// Flows 0 to 2 are plain, 3 to 5 are stamped, 6 to 8 have a rate.
    fn put(&mut self, flow: u64, payload: usize, ahead: u64) {
        self.put += 1;
        let mut frame = test_frame(payload);
        // The number of the frame is in its headers.
        frame.headers.as_mut_slice()[20..28].copy_from_slice(&self.put.to_be_bytes());
        frame.headers.as_mut_slice()[0] = 0x45;
        frame.flow = flow;
        frame.credit = Some(TxCredit::charge(&self.account, 100));
        match flow / 3 {
            1 => frame.departure = self.now + Nanos(ahead),
            2 => frame.pacing_rate = Rate(1_000_000 * (flow - 5)),
            _ => {}
        }
        let before = self.dropped.len();
        let verdict = self.qdisc.enqueue(frame, self.now, &mut self.dropped);
        let lost = self.dropped.len() - before;
        assert_eq!(verdict == Verdict::Dropped, lost > 0 && !KINDS[self.kind].contains("fq_codel"));
    }

    /// Whether there was one.
    fn take(&mut self) -> Result<bool, Instant> {
        let frame = match self.qdisc.dequeue(self.now, &mut self.dropped) {
            Dequeued::Empty => {
                assert!(self.qdisc.is_empty());
                return Ok(false);
            }
            Dequeued::NotBefore(at) => {
                assert!(at > self.now && !self.qdisc.is_empty());
                return Err(at);
            }
            Dequeued::Frame(frame) => frame,
        };
        self.taken += 1;
        let is_fq = KINDS[self.kind].split(' ').next() == Some("fq");
        assert!(!is_fq || frame.departure <= self.now, "before its time");
        let number = frame.headers.as_slice()[20..28].first_chunk().expect("eight bytes");
        let number = u64::from_be_bytes(*number);
        let last = &mut self.last[frame.flow as usize];
        if frame.flow / 3 != 1 && !self.replaced {
            assert!(number > *last, "flow {} in order", frame.flow);
        }
        *last = number;
        Ok(true)
    }

    fn replace(&mut self, kind: usize) {
        let old = core::mem::replace(&mut self.qdisc, build(kind));
        self.kind = kind;
        self.replaced = true;
        for frame in old.into_frames() {
            self.qdisc.enqueue(frame, self.now, &mut self.dropped);
        }
    }

    fn check(&self) {
        let gone = self.taken + self.dropped.len() as u64;
        assert_eq!(self.put, gone + self.qdisc.len() as u64);
        let stats = self.qdisc.stats();
        assert_eq!(stats.backlog_packets as usize, self.qdisc.len());
        assert_eq!(stats.backlog_bytes == 0, self.qdisc.is_empty());
        let waiting = self.dropped.len() + self.qdisc.len();
        assert_eq!(self.account.bytes(), 100 * waiting as u64);
    }
}

fn build(kind: usize) -> Box<dyn Qdisc> {
    let config: QdiscConfig = KINDS[kind].parse().expect("well formed");
    config.build(&CAPABILITIES, 11)
}

proptest! {
    #[test]
    fn every_frame_leaves_once(kind in 0..KINDS.len(), ops in vec(op(), 1..300)) {
        let mut bench = Bench::new(kind);
        for op in ops {
            match op {
                Op::Put(flow, payload, ahead) => bench.put(flow, payload, ahead),
                Op::Take(count) => {
                    for _ in 0..count {
                        let _ = bench.take();
                    }
                }
                Op::Wait(nanos) => bench.now += Nanos(nanos),
                Op::Replace(kind) => bench.replace(kind),
            }
            bench.check();
        }
        while let Ok(true) | Err(_) = bench.take().map_err(|at| bench.now = at) {}
        bench.check();
        prop_assert!(bench.qdisc.is_empty());
        bench.dropped.clear();
        prop_assert_eq!(bench.account.bytes(), 0);
        let text = super::report::Report {
            config: bench.qdisc.config(),
            stats: bench.qdisc.stats(),
            xstats: bench.qdisc.xstats(bench.now),
        };
        prop_assert!(text.to_string().contains("backlog 0b 0p"));
    }
}
