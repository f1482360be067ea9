//! `codel`: controlled delay (RFC 8289), as Linux runs it (`include/net/codel_impl.h`).
//!
//! Frames carry the time at which they came. When every frame of an interval waited longer than the
//! target, frames are dropped, or marked where their senders know ECN, at a rate that grows with
//! the square root of their number until the queue is short again.
//!
//! Cost: O(1) per frame, one integer square root per drop or mark. The law is computed exactly
//! where Linux approximates the root.

use super::config::QdiscConfig;
use super::lists::{Chain, Frames};
use super::report::Xstats;
use super::{Dequeued, Dropped, Qdisc, QdiscStats, Verdict};
use crate::frame::Frame;
use neap_tcp::time::{Instant, Nanos};

/// Longest interval. Its square in nanoseconds fits 64 bits.
pub const MAX_INTERVAL: Nanos = Nanos::from_secs(4);

/// Intervals since the last drop within which the rate of dropping is taken up again.
const MEMORY: u64 = 16;

/// Parameters of CoDel's control law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Law {
    /// Acceptable standing delay.
    pub target: Nanos,
    /// Time over which the least delay is sought; at most [`MAX_INTERVAL`].
    pub interval: Nanos,
    /// Whether frames are marked instead of dropped, if their senders support ECN.
    pub ecn: bool,
    /// Delay above which frames are marked at once; [`Nanos::MAX`] for never.
    pub ce_threshold: Nanos,
}

impl Default for Law {
    fn default() -> Self {
        Self {
            target: Nanos::from_millis(5),
            interval: Nanos::from_millis(100),
            ecn: false,
            ce_threshold: Nanos::MAX,
        }
    }
}

/// Figures of CoDel's control law.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LawStats {
    /// Frames dropped by the law.
    pub drops: u64,
    /// Frames marked instead of dropped.
    pub ecn_mark: u64,
    /// Frames marked because of `ce_threshold`.
    pub ce_mark: u64,
    /// Longest frame seen, in bytes on the wire.
    pub maxpacket: u64,
    /// Time that the last frame waited.
    pub last_delay: Nanos,
}

/// The state of the law for one queue. 48 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// Drops since dropping began.
    pub(super) count: u64,
    last_count: u64,
    pub(super) is_dropping: bool,
    /// When delay will have been above the target for an interval; none while it is not.
    first_above: Option<Instant>,
    drop_next: Instant,
}

/// A queue as the law sees it: one of several that share a backlog.
pub(super) trait FrameSource {
    /// The frame in front, with the time at which it came.
    fn pop(&mut self) -> Option<(Frame, Instant)>;
    /// Bytes that wait, in all queues.
    fn backlog(&self) -> u64;
}

impl Law {
    /// When to drop next, after one at `from`.
    fn next(&self, from: Instant, count: u64) -> Instant {
        let interval = self.interval.min(MAX_INTERVAL).0;
        from + Nanos((interval * interval / count.max(1)).isqrt())
    }
}

impl State {
    /// Whether the delay of the frame in front has been above the target for an interval. A backlog
    /// that `is_short` does not count.
    fn should_drop(
        &mut self,
        law: &Law,
        figures: &mut LawStats,
        head: &Frame,
        delay: Nanos,
        is_short: bool,
        now: Instant,
    ) -> bool {
        figures.last_delay = delay;
        figures.maxpacket = figures.maxpacket.max(head.wire_len() as u64);
        if delay < law.target || is_short {
            self.first_above = None;
            return false;
        }
        match self.first_above {
            None => {
                self.first_above = Some(now + law.interval);
                false
            }
            Some(at) => now > at,
        }
    }

    /// The next frame that the law lets go. `mtu`: a shorter backlog is none.
    pub(super) fn dequeue(
        &mut self,
        law: &Law,
        figures: &mut LawStats,
        source: &mut impl FrameSource,
        mtu: u64,
        now: Instant,
        dropped: &mut Dropped,
    ) -> Option<Frame> {
        let mut next = |state: &mut Self, figures: &mut LawStats| {
            let Some((frame, came)) = source.pop() else {
                state.first_above = None;
                return None;
            };
            let is_short = source.backlog() <= mtu;
            let drop = state.should_drop(law, figures, &frame, now.since(came), is_short, now);
            Some((frame, drop))
        };
        let mut head = next(self, figures);
        let Some((_, drop)) = head else {
            self.is_dropping = false;
            return None;
        };
        if self.is_dropping && !drop {
            self.is_dropping = false;
        } else if self.is_dropping {
            while let Some((mut frame, _)) =
                head.take_if(|_| self.is_dropping && now >= self.drop_next)
            {
                self.count += 1;
                if law.ecn && frame.set_ce() {
                    figures.ecn_mark += 1;
                    self.drop_next = law.next(self.drop_next, self.count);
                    head = Some((frame, true));
                    break;
                }
                figures.drops += 1;
                dropped.push(frame);
                head = next(self, figures);
                match head {
                    Some((_, true)) => self.drop_next = law.next(self.drop_next, self.count),
                    _ => self.is_dropping = false,
                }
            }
        } else if drop {
            head = head.and_then(|(mut frame, _)| {
                if law.ecn && frame.set_ce() {
                    figures.ecn_mark += 1;
                    return Some((frame, true));
                }
                figures.drops += 1;
                dropped.push(frame);
                next(self, figures)
            });
            self.begin(law, now);
        }
        let (mut frame, _) = head?;
        if figures.last_delay > law.ce_threshold && frame.set_ce() {
            figures.ce_mark += 1;
        }
        Some(frame)
    }

    /// Dropping begins. If it ended only lately, it goes on at the rate that it had then.
    fn begin(&mut self, law: &Law, now: Instant) {
        self.is_dropping = true;
        let delta = self.count.saturating_sub(self.last_count);
        let is_recent = now.since(self.drop_next) < law.interval.saturating_mul(MEMORY);
        self.count = if delta > 1 && is_recent { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = law.next(now, self.count);
    }

    /// When the next drop is due, from now.
    pub(super) fn drop_next(&self, now: Instant) -> Option<Nanos> {
        self.is_dropping.then(|| self.drop_next.since(now))
    }
}

/// Parameters of `codel`, by `tc`'s names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most frames that wait.
    pub limit: u32,
    /// Parameters of the control law.
    pub law: Law,
}

impl Default for Config {
    fn default() -> Self {
        Self { limit: 1000, law: Law::default() }
    }
}

/// Figures that only `codel` has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CodelStats {
    /// Figures of the control law.
    pub law: LawStats,
    /// Drops since dropping began.
    pub count: u64,
    /// Whether the law is dropping frames now.
    pub dropping: bool,
    /// Time until the next drop is due.
    pub drop_next: Option<Nanos>,
    /// Frames dropped because `limit` frames waited.
    pub drop_overlimit: u64,
}

/// Qdisc `codel`: one queue under CoDel.
#[derive(Debug)]
pub struct Codel {
    config: Config,
    mtu: u64,
    queue: Queue,
    state: State,
    figures: LawStats,
    drop_overlimit: u64,
}

#[derive(Debug, Default)]
struct Queue {
    frames: Frames,
    chain: Chain,
    stats: QdiscStats,
}

impl FrameSource for Queue {
    fn pop(&mut self) -> Option<(Frame, Instant)> {
        let waiting = self.frames.pop_front(&mut self.chain)?;
        self.stats.on_left(waiting.frame.wire_len() as u64);
        Some((waiting.frame, waiting.time))
    }

    fn backlog(&self) -> u64 {
        self.stats.backlog_bytes
    }
}

impl Codel {
    /// Returns an empty queue for a device whose packets have at most `psched_mtu` bytes with the
    /// link header.
    pub fn new(config: Config, psched_mtu: u32) -> Self {
        Self {
            config,
            mtu: psched_mtu.into(),
            queue: Queue::default(),
            state: State::default(),
            figures: LawStats::default(),
            drop_overlimit: 0,
        }
    }
}

impl Qdisc for Codel {
    fn enqueue(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict {
        let queue = &mut self.queue;
        if queue.frames.len() >= self.config.limit as usize {
            self.drop_overlimit += 1;
            queue.stats.drops += 1;
            dropped.push(frame);
            return Verdict::Dropped;
        }
        queue.stats.on_queued(frame.wire_len() as u64);
        queue.frames.push_back(&mut queue.chain, frame, now);
        Verdict::Queued
    }

    fn dequeue(&mut self, now: Instant, dropped: &mut Dropped) -> Dequeued {
        let before = self.figures.drops;
        let (law, figures, queue) = (&self.config.law, &mut self.figures, &mut self.queue);
        let frame = self.state.dequeue(law, figures, queue, self.mtu, now, dropped);
        queue.stats.drops += figures.drops - before;
        let Some(frame) = frame else { return Dequeued::Empty };
        queue.stats.packets += 1;
        queue.stats.bytes += frame.wire_len() as u64;
        Dequeued::Frame(frame)
    }

    fn len(&self) -> usize {
        self.queue.frames.len()
    }

    fn into_frames(mut self: Box<Self>) -> Vec<Frame> {
        let mut out = Vec::with_capacity(self.len());
        self.queue.frames.drain(&mut self.queue.chain, &mut out);
        out
    }

    fn can_bypass(&self) -> bool {
        self.config.limit >= 1
    }

    fn stats(&self) -> QdiscStats {
        self.queue.stats
    }

    fn config(&self) -> QdiscConfig {
        QdiscConfig::Codel(self.config)
    }

    fn xstats(&self, now: Instant) -> Xstats {
        Xstats::Codel(CodelStats {
            law: self.figures,
            count: self.state.count,
            dropping: self.state.is_dropping,
            drop_next: self.state.drop_next(now),
            drop_overlimit: self.drop_overlimit,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::test_frame;
    use crate::net::qdisc::report::Xstats;

    const MTU: u32 = 1500;

    fn ms(n: u64) -> Instant {
        Instant::from_nanos(1_000_000_000) + Nanos::from_millis(n)
    }

    fn frame(flow: u64, ecn: u8) -> Frame {
        let mut frame = Frame { flow, ..test_frame(1460) };
        frame.headers.as_mut_slice()[..2].copy_from_slice(&[0x45, ecn]);
        frame
    }

    /// A link of one frame per millisecond behind a queue that never has fewer than `standing`
    /// frames: what was dropped or marked, by the millisecond.
    fn run(codel: &mut Codel, standing: usize, millis: u64, ecn: u8) -> Vec<u64> {
        let mut dropped = Dropped::new();
        let mut events = Vec::new();
        for now in 0..millis {
            while codel.len() < standing {
                codel.enqueue(frame(now, ecn), ms(now), &mut dropped);
            }
            let before = codel.figures.drops + codel.figures.ecn_mark;
            assert!(matches!(codel.dequeue(ms(now), &mut dropped), Dequeued::Frame(_)));
            let count = codel.figures.drops + codel.figures.ecn_mark - before;
            events.extend((0..count).map(|_| now));
        }
        assert_eq!(dropped.len() as u64, codel.figures.drops);
        events
    }

    #[test]
    fn a_short_queue_is_let_be() {
        let mut codel = Codel::new(Config::default(), MTU);
        assert_eq!(run(&mut codel, 5, 2000, 0), [0; 0]);
        assert_eq!(codel.queue.stats.drops, 0);
    }

    /// The law of RFC 8289: the first drop after an interval above the target, the next ones after
    /// interval / sqrt(count).
    #[test]
    fn drops_follow_the_square_root() {
        let mut codel = Codel::new(Config::default(), MTU);
        // The sixth frame waits for 5 ms; it is seen after 5 ms, and 100 ms later is too much.
        let drops = run(&mut codel, 50, 600, 0);
        let (mut at, mut expected) = (drops[0], vec![drops[0]]);
        assert!((105..=107).contains(&at), "{at}");
        let mut exact = at as f64;
        for count in 1..8_u32 {
            exact += 100.0 / f64::from(count).sqrt();
            at = exact.ceil() as u64;
            expected.push(at);
        }
        assert!(drops.len() >= 8, "{drops:?}");
        for (drop, expected) in drops.iter().zip(&expected) {
            assert!(drop.abs_diff(*expected) <= 1, "{drops:?} instead of {expected:?}");
        }
        let Xstats::Codel(figures) = codel.xstats(ms(600)) else { panic!("a codel") };
        assert!(figures.dropping && figures.count >= 8);
        assert_eq!(figures.law.maxpacket, 1500);
        let stats = codel.stats();
        assert_eq!((stats.packets, stats.drops), (600, figures.law.drops));
        assert_eq!(stats.backlog_bytes, 1500 * codel.len() as u64);
    }

    #[test]
    fn marks_take_the_place_of_drops_where_they_may() {
        let law = Law { ecn: true, ..Law::default() };
        let mut codel = Codel::new(Config { law, ..Config::default() }, MTU);
        let marks = run(&mut codel, 50, 600, 2);
        assert_eq!((codel.figures.ecn_mark, codel.figures.drops), (marks.len() as u64, 0));
        assert!(marks.len() >= 8);
        let mut codel = Codel::new(Config { law, ..Config::default() }, MTU);
        assert_eq!(run(&mut codel, 50, 600, 0).len() as u64, codel.figures.drops);
    }

    #[test]
    fn dropping_is_taken_up_where_it_ended_lately() {
        for (pause, is_remembered) in [(100, true), (2000, false)] {
            let mut codel = Codel::new(Config::default(), MTU);
            run(&mut codel, 50, 600, 0);
            let count = codel.state.count;
            let mut dropped = Dropped::new();
            while matches!(codel.dequeue(ms(600), &mut dropped), Dequeued::Frame(_)) {}
            let start = 600 + pause;
            while !codel.state.is_dropping {
                let now = start + codel.stats().packets;
                while codel.len() < 50 {
                    codel.enqueue(frame(0, 0), ms(now), &mut dropped);
                }
                codel.dequeue(ms(now), &mut dropped);
            }
            assert_eq!(codel.state.count > 1, is_remembered, "{count} before");
        }
    }

    #[test]
    fn frames_over_the_threshold_are_marked_at_once() {
        let law = Law { ce_threshold: Nanos::from_millis(1), ..Law::default() };
        let mut codel = Codel::new(Config { law, ..Config::default() }, MTU);
        let mut dropped = Dropped::new();
        for ecn in [1, 1, 0] {
            codel.enqueue(frame(0, ecn), ms(0), &mut dropped);
        }
        let ecns: Vec<_> = [1, 2, 2]
            .map(|at| match codel.dequeue(ms(at), &mut dropped) {
                Dequeued::Frame(frame) => frame.headers.as_slice()[1] & 3,
                other => panic!("{other:?}"),
            })
            .into();
        assert_eq!((ecns, codel.figures.ce_mark), (vec![1, 3, 0], 1));
    }

    #[test]
    fn the_limit_drops_at_the_tail() {
        let mut codel = Codel::new(Config { limit: 2, ..Config::default() }, MTU);
        let mut dropped = Dropped::new();
        let verdicts = [1, 2, 3].map(|flow| codel.enqueue(frame(flow, 0), ms(0), &mut dropped));
        assert_eq!(verdicts, [Verdict::Queued, Verdict::Queued, Verdict::Dropped]);
        assert_eq!((dropped[0].flow, codel.drop_overlimit, codel.stats().drops), (3, 1, 1));
    }
}
