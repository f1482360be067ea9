//! `tbf` with another qdisc below it (in Linux `tc qdisc add ... parent 1:`): the other one holds
//! and orders the frames, and they leave at the rate.
//!
//! One frame is taken from the other qdisc ahead of its time, as `qdisc_peek_dequeued` does.
//!
//! Cost: that of the other qdisc, and O(1) per frame.

use super::config::QdiscConfig;
use super::report::Xstats;
use super::tbf::{Config, Shaper};
use super::{Dequeued, Dropped, Qdisc, QdiscStats, Verdict};
use crate::frame::Frame;
use crate::net::gso;
use crate::wire::ChecksumBy;
use neap_tcp::lateness::Departures;
use neap_tcp::time::Instant;

/// Qdisc `tbf` over another one. The limit in bytes is not used: the other one has limits.
pub struct Shaped {
    shaper: Shaper,
    child: Box<dyn Qdisc>,
    /// Waits for the rate.
    ahead: Option<Frame>,
    /// Frames that are longer than the bucket.
    drops: u64,
    overlimits: u64,
}

impl Shaped {
    /// Returns full buckets over a qdisc.
    pub fn new(config: Config, child: Box<dyn Qdisc>) -> Self {
        Self { shaper: Shaper::new(config), child, ahead: None, drops: 0, overlimits: 0 }
    }

    fn push(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict {
        if frame.wire_len() > self.shaper.max_size() {
            self.drops += 1;
            dropped.push(frame);
            return Verdict::Dropped;
        }
        self.child.enqueue(frame, now, dropped)
    }
}

impl Qdisc for Shaped {
    fn enqueue(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict {
        if frame.wire_len() <= self.shaper.max_size() || frame.gso.is_none() {
            return self.push(frame, now, dropped);
        }
        let mut verdict = Verdict::Dropped;
        for piece in gso::segment(frame, ChecksumBy::Device) {
            match self.push(piece, now, dropped) {
                Verdict::Dropped => {}
                taken => verdict = taken,
            }
        }
        verdict
    }

    fn dequeue(&mut self, now: Instant, dropped: &mut Dropped) -> Dequeued {
        let frame = match self.ahead.take() {
            Some(frame) => frame,
            None => match self.child.dequeue(now, dropped) {
                Dequeued::Frame(frame) => frame,
                other => return other,
            },
        };
        match self.shaper.admit(frame.wire_len() as u64, now) {
            Ok(()) => Dequeued::Frame(frame),
            Err(missing) => {
                self.overlimits += 1;
                self.ahead = Some(frame);
                Dequeued::NotBefore(now + missing)
            }
        }
    }

    fn len(&self) -> usize {
        self.child.len() + usize::from(self.ahead.is_some())
    }

    fn into_frames(self: Box<Self>) -> Vec<Frame> {
        self.ahead.into_iter().chain(self.child.into_frames()).collect()
    }

    fn holds_until_departure(&self) -> bool {
        self.child.holds_until_departure()
    }

    fn shapes(&self) -> bool {
        true
    }

    fn add_departures(&self, departures: &mut Departures) {
        self.child.add_departures(departures);
    }

    fn stats(&self) -> QdiscStats {
        let mut stats = self.child.stats();
        if let Some(frame) = &self.ahead {
            // For the other qdisc it has left.
            let bytes = frame.wire_len() as u64;
            stats.bytes -= bytes;
            stats.packets -= 1;
            stats.on_queued(bytes);
        }
        stats.drops += self.drops;
        stats.overlimits += self.overlimits;
        stats
    }

    fn config(&self) -> QdiscConfig {
        QdiscConfig::Shaped(self.shaper.config(), Box::new(self.child.config()))
    }

    fn xstats(&self, now: Instant) -> Xstats {
        self.child.xstats(now)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::{Capabilities, Completion, Medium};
    use crate::frame::{Gso, GsoKind, test_frame};
    use neap_tcp::time::Nanos;

    fn us(n: u64) -> Instant {
        Instant::from_nanos(1_000_000_000) + Nanos::from_micros(n)
    }

    /// A byte takes a microsecond.
    fn shaped(words: &str) -> Box<dyn Qdisc> {
        let config: QdiscConfig =
            format!("tbf rate 8mbit burst 2000b {words}").parse().expect("a qdisc");
        config.build(&Capabilities::new(Medium::Ip, 1500, Completion::OnWire), 3)
    }

    fn put(qdisc: &mut dyn Qdisc, flow: u64, len: usize) -> Verdict {
        let frame = Frame { flow, ..test_frame(len - 40) };
        qdisc.enqueue(frame, us(0), &mut Dropped::new())
    }

    /// Flow and time of each frame that leaves.
    fn departures(qdisc: &mut dyn Qdisc) -> Vec<(u64, u64)> {
        let (mut now, mut left) = (us(0), Vec::new());
        loop {
            match qdisc.dequeue(now, &mut Dropped::new()) {
                Dequeued::Frame(frame) => left.push((frame.flow, now.since(us(0)).as_micros())),
                Dequeued::NotBefore(at) => now = at,
                Dequeued::Empty => return left,
            }
        }
    }

    #[test]
    fn the_other_qdisc_decides_who_leaves_and_the_bucket_when() {
        let mut qdisc = shaped("fq_codel quantum 1000");
        for _ in 0..3 {
            put(&mut *qdisc, 1, 1000);
        }
        put(&mut *qdisc, 2, 500);
        // A turn each, after a full bucket.
        assert_eq!(departures(&mut *qdisc), [(1, 0), (2, 0), (1, 500), (1, 1500)]);
        let stats = qdisc.stats();
        assert_eq!((stats.packets, stats.bytes, stats.overlimits), (4, 3500, 2));
    }

    #[test]
    fn what_waits_for_the_rate_counts_as_waiting() {
        let mut qdisc = shaped("fq_codel");
        for _ in 0..3 {
            put(&mut *qdisc, 1, 1000);
        }
        for _ in 0..2 {
            assert!(matches!(qdisc.dequeue(us(0), &mut Dropped::new()), Dequeued::Frame(_)));
        }
        let Dequeued::NotBefore(at) = qdisc.dequeue(us(0), &mut Dropped::new()) else {
            panic!("the bucket is empty")
        };
        assert_eq!(at, us(1000));
        let stats = qdisc.stats();
        assert_eq!((stats.packets, stats.backlog_packets, stats.backlog_bytes), (2, 1, 1000));
        assert_eq!((qdisc.len(), qdisc.into_frames().len()), (1, 1));
    }

    #[test]
    fn long_frames_are_cut_and_longer_packets_dropped() {
        let mut qdisc = shaped("fq_codel");
        let mut frame =
            Frame { gso: Some(Gso { size: 1000, kind: GsoKind::Tcp4 }), ..test_frame(3500) };
        frame.headers.as_mut_slice()[0] = 0x45;
        frame.headers.as_mut_slice()[32] = 0x50;
        let mut dropped = Dropped::new();
        assert_eq!(qdisc.enqueue(frame, us(0), &mut dropped), Verdict::Queued);
        assert_eq!((qdisc.len(), dropped.len()), (4, 0));
        assert_eq!(put(&mut *qdisc, 1, 2001), Verdict::Dropped);
        assert_eq!(qdisc.stats().drops, 1);
    }

    #[test]
    fn words_name_the_bucket_and_the_other_qdisc() {
        let qdisc = shaped("fq_codel quantum 300b noecn");
        let text = qdisc.config().to_string();
        assert!(text.starts_with("tbf rate 8Mbit burst 2000b"), "{text}");
        assert!(text.contains(" fq_codel limit 10240p flows 1024 quantum 300"), "{text}");
        assert_eq!(text.parse::<QdiscConfig>().expect("its own words"), qdisc.config());
        for (words, error) in [
            ("tbf rate 8mbit burst 2kb mq", "no parameter \"mq\""),
            ("tbf rate 8mbit burst 2kb fq_codel nothing", "no parameter \"nothing\""),
            ("tbf burst 2kb fq_codel", "tbf needs rate"),
        ] {
            let refused = words.parse::<QdiscConfig>().expect_err(words).to_string();
            assert!(refused.contains(error), "{refused}");
        }
    }
}
