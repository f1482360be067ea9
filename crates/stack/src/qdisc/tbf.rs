//! `tbf`: the token bucket filter (Linux's `net/sched/sch_tbf.c`), over one first-in first-out queue
//! that is limited in bytes.
//!
//! A super-frame that is longer than the bucket could never leave: it is cut into its segments when
//! it comes (`tbf_segment`); what is longer even so is dropped. Tokens are times, as in Linux: how
//! long a frame takes at the rate.
//!
//! Cost: O(1) per frame, and that of cutting.

use super::config::QdiscConfig;
use super::lists::{Chain, Frames};
use super::{Dequeued, Dropped, Qdisc, QdiscStats, Verdict};
use crate::frame::Frame;
use crate::gso;
use crate::wire::ChecksumBy;
use neap_tcp::time::{Instant, Nanos, Rate};

/// Parameters, by `tc`'s names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes per second.
    pub rate: Rate,
    /// Size of the bucket, bytes.
    pub burst: u32,
    /// Bytes that may wait.
    pub limit: u32,
    /// Second bucket: no frames closer than this, and its size in bytes (`peakrate`, `mtu`).
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

/// The queueing discipline.
#[derive(Debug)]
pub struct Tbf {
    config: Config,
    /// Longest frame that may ever pass.
    max_size: usize,
    average: Bucket,
    peak: Option<Bucket>,
    /// When the buckets were filled last.
    filled: Instant,
    frames: Frames,
    queue: Chain,
    stats: QdiscStats,
}

impl Tbf {
    /// An empty queue with full buckets.
    pub fn new(config: Config) -> Self {
        let max_size = config.peak.map_or(config.burst, |(_, mtu)| mtu.min(config.burst));
        Self {
            max_size: max_size as usize,
            average: Bucket::new(config.rate, config.burst),
            peak: config.peak.map(|(rate, mtu)| Bucket::new(rate, mtu)),
            filled: Instant::ZERO,
            frames: Frames::default(),
            queue: Chain::default(),
            stats: QdiscStats::default(),
            config,
        }
    }

    fn push(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict {
        let bytes = frame.wire_len();
        let total = self.stats.backlog_bytes + bytes as u64;
        if bytes > self.max_size || total > u64::from(self.config.limit) {
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
        if frame.wire_len() <= self.max_size || frame.gso.is_none() {
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
        let passed = now.since(self.filled);
        let average = self.average.after(passed, bytes);
        let peak = self.peak.as_ref().map_or(0, |bucket| bucket.after(passed, bytes));
        let missing = average.min(peak);
        if missing < 0 {
            self.stats.overlimits += 1;
            return Dequeued::NotBefore(now + Nanos(missing.unsigned_abs()));
        }
        self.filled = now;
        self.average.tokens = average;
        if let Some(bucket) = &mut self.peak {
            bucket.tokens = peak;
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
        QdiscConfig::Tbf(self.config)
    }
}
