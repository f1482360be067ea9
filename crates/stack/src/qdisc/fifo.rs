//! `pfifo_fast`: three first-in first-out bands by priority, Linux's default (`net/sched/sch_generic.c`).

use super::{Dequeued, Dropped, Qdisc, QdiscStats, Verdict};
use crate::frame::Frame;
use neap_tcp::time::Instant;
use std::collections::VecDeque;

const BANDS: usize = 3;

/// Band of each `skb->priority`.
const PRIOMAP: [usize; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// Three bands in strict order, each with its own limit and tail drop.
///
/// Cost: one move of the frame in, one out; the rings grow to the longest queue seen.
#[derive(Debug)]
pub struct PfifoFast {
    /// Frames that the device gave back: ahead of all bands, outside the limits.
    requeued: VecDeque<Frame>,
    bands: [VecDeque<Frame>; BANDS],
    limit: usize,
    stats: QdiscStats,
}

impl PfifoFast {
    /// `txqueuelen` of an Ethernet device, super-frames per band.
    pub const TXQUEUELEN: usize = 1000;

    /// An empty queue of `limit` super-frames per band.
    pub fn new(limit: usize) -> Self {
        Self {
            requeued: VecDeque::new(),
            bands: Default::default(),
            limit,
            stats: QdiscStats::default(),
        }
    }

    fn add_backlog(&mut self, frame: &Frame) {
        self.stats.backlog_packets += 1;
        self.stats.backlog_bytes += frame.wire_len() as u64;
    }

    fn take_backlog(&mut self, bytes: u64) {
        self.stats.backlog_packets -= 1;
        self.stats.backlog_bytes -= bytes;
    }
}

impl Default for PfifoFast {
    fn default() -> Self {
        Self::new(Self::TXQUEUELEN)
    }
}

impl Qdisc for PfifoFast {
    fn kind(&self) -> &'static str {
        "pfifo_fast"
    }

    fn enqueue(&mut self, frame: Frame, _now: Instant, dropped: &mut Dropped) -> Verdict {
        let band = PRIOMAP[usize::from(frame.priority) % PRIOMAP.len()];
        if self.bands[band].len() >= self.limit {
            self.stats.drops += 1;
            dropped.push(frame);
            return Verdict::Dropped;
        }
        self.add_backlog(&frame);
        self.bands[band].push_back(frame);
        Verdict::Queued
    }

    fn dequeue(&mut self, _now: Instant, _dropped: &mut Dropped) -> Dequeued {
        if let Some(frame) = self.requeued.pop_front() {
            self.take_backlog(frame.wire_len() as u64);
            return Dequeued::Frame(frame);
        }
        let Some(frame) = self.bands.iter_mut().find_map(VecDeque::pop_front) else {
            return Dequeued::Empty;
        };
        let bytes = frame.wire_len() as u64;
        self.take_backlog(bytes);
        self.stats.bytes += bytes;
        self.stats.packets += 1;
        Dequeued::Frame(frame)
    }

    fn requeue(&mut self, frame: Frame) {
        self.add_backlog(&frame);
        self.stats.requeues += 1;
        self.requeued.push_front(frame);
    }

    fn can_bypass(&self) -> bool {
        true
    }

    fn stats(&self) -> QdiscStats {
        self.stats
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::test_frame;

    fn frame(priority: u8, flow: u64) -> Frame {
        Frame { priority, flow, ..test_frame(100) }
    }

    fn drain(qdisc: &mut PfifoFast) -> Vec<u64> {
        core::iter::from_fn(|| match qdisc.dequeue(Instant::ZERO, &mut Dropped::new()) {
            Dequeued::Frame(frame) => Some(frame.flow),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn bands_are_strict_and_each_is_first_in_first_out() {
        let mut qdisc = PfifoFast::default();
        let mut dropped = Dropped::new();
        for (flow, priority) in [(1, 1), (2, 0), (3, 6), (4, 2), (5, 15), (6, 7)] {
            let verdict = qdisc.enqueue(frame(priority, flow), Instant::ZERO, &mut dropped);
            assert_eq!(verdict, Verdict::Queued);
        }
        assert_eq!(drain(&mut qdisc), [3, 6, 2, 5, 1, 4]);
    }

    #[test]
    fn a_full_band_drops_at_the_tail_and_hands_the_frame_out() {
        let mut qdisc = PfifoFast::new(2);
        let mut dropped = Dropped::new();
        for flow in 0..3 {
            qdisc.enqueue(frame(0, flow), Instant::ZERO, &mut dropped);
        }
        assert_eq!(dropped.len(), 1);
        assert_eq!(dropped[0].flow, 2);
        assert_eq!(qdisc.enqueue(frame(6, 9), Instant::ZERO, &mut dropped), Verdict::Queued);
        assert_eq!(drain(&mut qdisc), [9, 0, 1]);
        assert_eq!(qdisc.stats().drops, 1);
    }

    #[test]
    fn a_requeued_frame_goes_first_and_counts_once() {
        let mut qdisc = PfifoFast::default();
        let mut dropped = Dropped::new();
        for flow in [1, 2] {
            qdisc.enqueue(frame(0, flow), Instant::ZERO, &mut dropped);
        }
        let Dequeued::Frame(first) = qdisc.dequeue(Instant::ZERO, &mut dropped) else {
            panic!("two frames wait");
        };
        qdisc.enqueue(frame(6, 3), Instant::ZERO, &mut dropped);
        qdisc.requeue(first);
        assert_eq!(qdisc.stats().backlog_packets, 3);
        assert_eq!(drain(&mut qdisc), [1, 3, 2]);
        let stats = qdisc.stats();
        assert_eq!((stats.packets, stats.requeues), (3, 1));
        assert_eq!((stats.backlog_packets, stats.backlog_bytes), (0, 0));
        assert_eq!(stats.bytes, 3 * frame(0, 0).wire_len() as u64);
    }
}
