//! `pfifo_fast`: three first-in first-out bands by priority, Linux's default
//! (`net/sched/sch_generic.c`).

use super::config::QdiscConfig;
use super::{Dequeued, Dropped, Qdisc, QdiscStats, Verdict};
use crate::frame::Frame;
use neap_tcp::time::Instant;
use std::collections::VecDeque;

/// Number of bands in `pfifo_fast` and `fq`.
pub const BANDS: usize = 3;

/// Band of each priority (`skb->priority`).
pub const PRIOMAP: [u8; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// Qdisc `pfifo_fast`: three bands in strict order, each with its own limit and tail drop.
///
/// Cost: one move of the frame in, one out; the rings grow to the longest queue seen.
#[derive(Debug)]
pub struct PfifoFast {
    bands: [VecDeque<Frame>; BANDS],
    limit: usize,
    stats: QdiscStats,
}

impl PfifoFast {
    /// Default limit of a band in super-frames: `txqueuelen` of an Ethernet device.
    pub const TXQUEUELEN: usize = 1000;

    /// Returns an empty queue of `limit` super-frames per band.
    pub fn new(limit: usize) -> Self {
        Self { bands: Default::default(), limit, stats: QdiscStats::default() }
    }
}

impl Default for PfifoFast {
    fn default() -> Self {
        Self::new(Self::TXQUEUELEN)
    }
}

impl Qdisc for PfifoFast {
    fn enqueue(&mut self, frame: Frame, _now: Instant, dropped: &mut Dropped) -> Verdict {
        let band = usize::from(PRIOMAP[usize::from(frame.priority) % PRIOMAP.len()]);
        if self.bands[band].len() >= self.limit {
            self.stats.drops += 1;
            dropped.push(frame);
            return Verdict::Dropped;
        }
        self.stats.on_queued(frame.wire_len() as u64);
        self.bands[band].push_back(frame);
        Verdict::Queued
    }

    fn dequeue(&mut self, _now: Instant, _dropped: &mut Dropped) -> Dequeued {
        let Some(frame) = self.bands.iter_mut().find_map(VecDeque::pop_front) else {
            return Dequeued::Empty;
        };
        self.stats.on_sent(frame.wire_len() as u64);
        Dequeued::Frame(frame)
    }

    fn len(&self) -> usize {
        self.stats.backlog_packets as usize
    }

    fn into_frames(self: Box<Self>) -> Vec<Frame> {
        self.bands.into_iter().flatten().collect()
    }

    fn can_bypass(&self) -> bool {
        true
    }

    fn stats(&self) -> QdiscStats {
        self.stats
    }

    fn config(&self) -> QdiscConfig {
        QdiscConfig::PfifoFast { limit: u32::try_from(self.limit).unwrap_or(u32::MAX) }
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
}
