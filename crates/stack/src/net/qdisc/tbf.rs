//! `tbf`: the token bucket filter (Linux's `net/sched/sch_tbf.c`), over one first-in first-out
//! queue that is limited in bytes.
//!
//! A super-frame that is longer than the bucket could never leave: it is cut into its segments when
//! it comes (`tbf_segment`), and segments that are too long are dropped. Tokens are times, as in
//! Linux: how long a frame takes at the rate.
//!
//! Cost: O(1) per frame, and that of cutting.

use super::config::QdiscConfig;
use super::lists::{Chain, Frames};
use super::{Dequeued, Dropped, Qdisc, QdiscStats, Verdict};
use crate::frame::Frame;
use crate::net::gso;
use crate::wire::ChecksumBy;
use neap_tcp::time::{Instant, Nanos, Rate};

/// Parameters of `tbf`, by `tc`'s names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Rate at which frames leave.
    pub rate: Rate,
    /// Size of the bucket, in bytes.
    pub burst: u32,
    /// Most bytes that wait.
    pub limit: u32,
    /// Peak rate, which keeps frames apart, and the size of its bucket in bytes (`peakrate`,
    /// `mtu`).
    pub peak: Option<(Rate, u32)>,
}

/// A bucket: how much time of its rate it holds.
#[derive(Clone, Debug)]
struct Bucket {
    rate: Rate,
    size: Nanos,
    tokens: i64,
}

impl Bucket {
    fn new(rate: Rate, bytes: u32) -> Self {
        let size = rate.time_for(bytes.into());
        Self { rate, size, tokens: size.0.min(i64::MAX as u64) as i64 }
    }

    /// Tokens that would be left after `bytes` more, `passed` after the last time.
    fn after(&self, passed: Nanos, bytes: u64) -> i64 {
        let size = self.size.0.min(i64::MAX as u64) as i64;
        let filled = self.tokens.saturating_add(passed.0.min(size as u64) as i64).min(size);
        filled.saturating_sub(self.rate.time_for(bytes).0.min(i64::MAX as u64) as i64)
    }
}

/// The buckets of one qdisc.
#[derive(Debug)]
pub(super) struct Shaper {
    config: Config,
    average: Bucket,
    peak: Option<Bucket>,
    /// When the buckets were filled last.
    filled: Instant,
}

impl Shaper {
    /// Full buckets.
    pub(super) fn new(config: Config) -> Self {
        Self {
            average: Bucket::new(config.rate, config.burst),
            peak: config.peak.map(|(rate, mtu)| Bucket::new(rate, mtu)),
            filled: Instant::ZERO,
            config,
        }
    }

    pub(super) fn config(&self) -> Config {
        self.config
    }

    /// Longest frame that may ever pass.
    pub(super) fn max_size(&self) -> usize {
        let burst = self.config.burst;
        self.config.peak.map_or(burst, |(_, mtu)| mtu.min(burst)) as usize
    }

    /// Takes so many bytes out of the buckets, or returns after what time they will be there.
    pub(super) fn admit(&mut self, bytes: u64, now: Instant) -> Result<(), Nanos> {
        let passed = now.since(self.filled);
        let average = self.average.after(passed, bytes);
        let peak = self.peak.as_ref().map_or(0, |bucket| bucket.after(passed, bytes));
        let missing = average.min(peak);
        if missing < 0 {
            return Err(Nanos(missing.unsigned_abs()));
        }
        self.filled = now;
        self.average.tokens = average;
        if let Some(bucket) = &mut self.peak {
            bucket.tokens = peak;
        }
        Ok(())
    }
}

/// Qdisc `tbf`.
#[derive(Debug)]
pub struct Tbf {
    shaper: Shaper,
    frames: Frames,
    queue: Chain,
    stats: QdiscStats,
}

impl Tbf {
    /// Returns an empty queue with full buckets.
    pub fn new(config: Config) -> Self {
        Self {
            shaper: Shaper::new(config),
            frames: Frames::default(),
            queue: Chain::default(),
            stats: QdiscStats::default(),
        }
    }

    fn push(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict {
        let bytes = frame.wire_len();
        let total = self.stats.backlog_bytes + bytes as u64;
        if bytes > self.shaper.max_size() || total > u64::from(self.shaper.config.limit) {
            self.stats.drops += 1;
            dropped.push(frame);
            return Verdict::Dropped;
        }
        self.stats.on_queued(bytes as u64);
        self.frames.push_back(&mut self.queue, frame, now);
        Verdict::Queued
    }
}

impl Qdisc for Tbf {
    fn enqueue(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict {
        if frame.wire_len() <= self.shaper.max_size() || frame.gso.is_none() {
            return self.push(frame, now, dropped);
        }
        let mut verdict = Verdict::Dropped;
        for piece in gso::segment(frame, ChecksumBy::Device) {
            if self.push(piece, now, dropped) == Verdict::Queued {
                verdict = Verdict::Queued;
            }
        }
        verdict
    }

    fn dequeue(&mut self, now: Instant, _dropped: &mut Dropped) -> Dequeued {
        let Some(first) = self.frames.front(self.queue) else { return Dequeued::Empty };
        let bytes = first.frame.wire_len() as u64;
        if let Err(missing) = self.shaper.admit(bytes, now) {
            self.stats.overlimits += 1;
            return Dequeued::NotBefore(now + missing);
        }
        let Some(waiting) = self.frames.pop_front(&mut self.queue) else { return Dequeued::Empty };
        self.stats.on_sent(bytes);
        Dequeued::Frame(waiting.frame)
    }

    fn len(&self) -> usize {
        self.frames.len()
    }

    fn into_frames(mut self: Box<Self>) -> Vec<Frame> {
        let mut out = Vec::with_capacity(self.len());
        self.frames.drain(&mut self.queue, &mut out);
        out
    }

    fn stats(&self) -> QdiscStats {
        self.stats
    }

    fn config(&self) -> QdiscConfig {
        QdiscConfig::Tbf(self.shaper.config)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::{Gso, GsoKind, test_frame};
    use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
    use std::task::Waker;

    /// A byte takes a microsecond.
    const RATE: Rate = Rate(1_000_000);

    fn us(n: u64) -> Instant {
        Instant::from_nanos(1_000_000_000) + Nanos::from_micros(n)
    }

    fn tbf(burst: u32, limit: u32, peak: Option<(Rate, u32)>) -> Tbf {
        Tbf::new(Config { rate: RATE, burst, limit, peak })
    }

    fn put(tbf: &mut Tbf, len: usize) -> Verdict {
        tbf.enqueue(test_frame(len - 40), us(0), &mut Dropped::new())
    }

    /// When each frame left, in microseconds.
    fn departures(tbf: &mut Tbf) -> Vec<u64> {
        let (mut now, mut left) = (us(0), Vec::new());
        loop {
            match tbf.dequeue(now, &mut Dropped::new()) {
                Dequeued::Frame(_) => left.push(now.since(us(0)).as_micros()),
                Dequeued::NotBefore(at) => now = at,
                Dequeued::Empty => return left,
            }
        }
    }

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let mut tbf = tbf(3000, 100_000, None);
        for _ in 0..6 {
            put(&mut tbf, 1000);
        }
        assert_eq!(departures(&mut tbf), [0, 0, 0, 1000, 2000, 3000]);
        assert_eq!((tbf.stats().overlimits, tbf.stats().bytes), (3, 6000));
    }

    #[test]
    fn the_peak_rate_spaces_the_burst() {
        let mut tbf = tbf(3000, 100_000, Some((Rate(2_000_000), 1000)));
        for _ in 0..6 {
            put(&mut tbf, 1000);
        }
        assert_eq!(departures(&mut tbf), [0, 500, 1000, 1500, 2000, 3000]);
    }

    #[test]
    fn the_bucket_fills_up_to_its_size_while_idle() {
        let mut tbf = tbf(2000, 100_000, None);
        for _ in 0..2 {
            put(&mut tbf, 1000);
        }
        departures(&mut tbf);
        for _ in 0..3 {
            put(&mut tbf, 1000);
        }
        let late = us(1_000_000);
        let mut dropped = Dropped::new();
        assert!(matches!(tbf.dequeue(late, &mut dropped), Dequeued::Frame(_)));
        assert!(matches!(tbf.dequeue(late, &mut dropped), Dequeued::Frame(_)));
        let Dequeued::NotBefore(at) = tbf.dequeue(late, &mut dropped) else { panic!("no tokens") };
        assert_eq!(at, late + Nanos::from_millis(1));
    }

    #[test]
    fn bytes_beyond_the_limit_are_dropped() {
        let mut tbf = tbf(3000, 2500, None);
        let verdicts = [1000, 1000, 1000, 400].map(|len| put(&mut tbf, len));
        let (queued, dropped) = (Verdict::Queued, Verdict::Dropped);
        assert_eq!(verdicts, [queued, queued, dropped, queued]);
        assert_eq!((tbf.stats().drops, tbf.stats().backlog_bytes), (1, 2400));
        assert_eq!(put(&mut tbf, 3001), Verdict::Dropped, "it could never leave");
    }

    #[test]
    fn a_super_frame_longer_than_the_bucket_is_cut() {
        let account = TxAccount::new(Waker::noop().clone());
        let super_frame = || {
            let mut frame = Frame {
                gso: Some(Gso { size: 1000, kind: GsoKind::Tcp4 }),
                credit: Some(TxCredit::charge(&account, 3500)),
                ..test_frame(3500)
            };
            frame.headers.as_mut_slice()[0] = 0x45;
            frame.headers.as_mut_slice()[32] = 0x50;
            frame
        };
        let mut whole = tbf(4000, 100_000, None);
        assert_eq!(whole.enqueue(super_frame(), us(0), &mut Dropped::new()), Verdict::Queued);
        assert_eq!((whole.len(), whole.stats().backlog_bytes), (1, 3660));
        let mut cut = tbf(2000, 100_000, None);
        assert_eq!(cut.enqueue(super_frame(), us(0), &mut Dropped::new()), Verdict::Queued);
        assert_eq!((cut.len(), cut.stats().backlog_bytes), (4, 3660));
        assert_eq!(departures(&mut cut), [0, 80, 1120, 1660]);
        // Part of it does not fit: it counts as taken, the rest is lost like any other segment.
        let mut full = tbf(2000, 2500, None);
        let mut dropped = Dropped::new();
        assert_eq!(full.enqueue(super_frame(), us(0), &mut dropped), Verdict::Queued);
        assert_eq!((full.len(), dropped.len(), full.stats().drops), (2, 2, 2));
        drop((whole, full, dropped));
        assert_eq!(account.bytes(), 0);
    }
}
