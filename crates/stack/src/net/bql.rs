//! Byte queue limits: how many bytes a device queue needs so that it never runs dry between two
//! completion rounds, and no more.
//!
//! The standing queue stays in the qdisc, where it can be managed. The algorithm is that of Linux's
//! `lib/dynamic_queue_limits.c`. Completions that are late one by one starve a device unseen by it;
//! [`Sojourn`] covers them. Cost: two comparisons and an addition per frame, some forty operations
//! per completion round; 216 bytes.

use crate::net::sojourn::{Advice, Sojourn};
use neap_tcp::time::{Instant, Nanos};

/// Byte queue limit of one device queue, with its history and the bytes that the queue holds.
#[derive(Clone, Debug)]
pub(crate) struct ByteQueueLimits {
    bounds: (u64, u64),
    limit: u64,
    /// Running totals since the last reset.
    queued: u64,
    completed: u64,
    last_object: u64,
    /// As they stood after the last completion round.
    previous: Snapshot,
    lowest_slack: u64,
    slack_start: Instant,
    sojourn: Sojourn,
    /// What the limit must cover because completions are late.
    floor: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Snapshot {
    queued: u64,
    /// Bytes queued beyond the limit.
    overlimit: u64,
    last_object: u64,
}

/// What a completion round found, from the totals before it.
struct CompletionRound {
    completed: u64,
    now_completed: u64,
    overlimit: u64,
    in_progress: u64,
    was_in_progress: u64,
    /// Everything that was queued before the last round is completed.
    all_previous: bool,
}

impl ByteQueueLimits {
    /// Time over which the least slack is sought before the limit shrinks (`slack_hold_time`).
    pub(crate) const HOLD_TIME: Nanos = Nanos::from_secs(1);

    /// Returns the limit of an empty queue: zero, so that the first frame passes and the limit
    /// grows from there.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            bounds: (0, u64::from(u32::MAX)),
            limit: 0,
            queued: 0,
            completed: 0,
            last_object: 0,
            previous: Snapshot::default(),
            lowest_slack: u64::MAX,
            slack_start: now,
            sojourn: Sojourn::new(now),
            floor: 0,
        }
    }

    /// Keeps the limit within `min..=max` bytes (`limit_min`, `limit_max`). A `max` below `min`
    /// counts as `min`.
    pub(crate) fn set_bounds(&mut self, min: u64, max: u64) {
        self.bounds = (min, max.max(min));
        self.limit = self.limit.clamp(min, max.max(min));
    }

    /// Returns how many bytes the queue may hold before the stack waits. One frame may overshoot
    /// it.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes queued and not completed.
    pub(crate) fn in_flight(&self) -> u64 {
        self.queued - self.completed
    }

    /// Returns whether one more frame may be queued, whatever its size.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight() <= self.limit && !self.sojourn.drains()
    }

    /// Returns the estimated time from a frame's last bit on the wire to its completion.
    pub(crate) fn lateness(&self) -> Nanos {
        self.sojourn.lateness()
    }

    /// Counts a frame that the device took.
    pub(crate) fn on_queued(&mut self, now: Instant, bytes: u64) {
        self.queued += bytes;
        self.last_object = bytes;
        self.sojourn.on_queued(now, bytes, self.queued, self.in_flight(), self.limit);
    }

    /// Counts the bytes of one completion round, and adapts the limit.
    ///
    /// It is called once per round, never per frame: the limit is made for the interval between
    /// rounds. Bytes beyond those queued are not counted.
    pub(crate) fn on_completed(&mut self, now: Instant, bytes: u64) {
        let now_completed = bytes.min(self.in_flight());
        if now_completed == 0 {
            return;
        }
        let completed = self.completed + now_completed;
        let round = CompletionRound {
            completed,
            now_completed,
            overlimit: self.in_flight().saturating_sub(self.limit),
            in_progress: self.queued - completed,
            was_in_progress: self.previous.queued.saturating_sub(self.completed),
            all_previous: completed >= self.previous.queued,
        };
        let advice = self.sojourn.on_completed(now, completed, round.in_progress == 0);
        let limit = self.adapted_limit(now, &round);
        let limit = self.covering(now, limit, advice).clamp(self.bounds.0, self.bounds.1);
        let overlimit = if limit == self.limit { round.overlimit } else { 0 };
        self.limit = limit;
        self.completed = completed;
        self.previous = Snapshot { queued: self.queued, overlimit, last_object: self.last_object };
    }

    fn adapted_limit(&mut self, now: Instant, round: &CompletionRound) -> u64 {
        let previous = self.previous;
        // Starved: the limit held frames back, and the device ran out of work or may have.
        let starved = (round.overlimit > 0 && round.in_progress == 0)
            || (previous.overlimit > 0 && round.all_previous);
        if starved {
            self.restart_slack(now);
            return self.limit
                + round.completed.saturating_sub(previous.queued)
                + previous.overlimit;
        }
        let busy_throughout =
            round.in_progress > 0 && round.was_in_progress > 0 && !round.all_previous;
        if !busy_throughout {
            return self.limit;
        }
        // Twice what an interval completes is enough; and of the last frame, what lay within the
        // limit was not needed.
        let excess = (self.limit + previous.overlimit).saturating_sub(2 * round.now_completed);
        let of_last_object = match previous.overlimit {
            0 => 0,
            overlimit => previous.last_object.saturating_sub(overlimit),
        };
        self.lowest_slack = self.lowest_slack.min(excess.max(of_last_object));
        if now.since(self.slack_start) <= Self::HOLD_TIME {
            return self.limit;
        }
        let limit = self.limit.saturating_sub(self.lowest_slack);
        self.restart_slack(now);
        limit
    }

    /// The limit `dql`, or more where completions are late.
    fn covering(&mut self, now: Instant, dql: u64, advice: Option<Advice>) -> u64 {
        let Some(Advice { grow, needed }) = advice else {
            return dql.max(self.floor.min(self.limit));
        };
        self.floor = needed;
        if grow == 0 {
            return dql.max(needed.min(self.limit));
        }
        self.restart_slack(now);
        dql.max(self.limit + grow)
    }

    fn restart_slack(&mut self, now: Instant) {
        self.slack_start = now;
        self.lowest_slack = u64::MAX;
    }

    /// Resets queue and limit, after the device was reset.
    pub(crate) fn reset(&mut self, now: Instant) {
        *self = Self { bounds: self.bounds, limit: self.bounds.0, ..Self::new(now) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 1500;

    /// A device that sends `rate` bytes per round, fed whenever there is room; returns the rounds
    /// in which it ran dry.
    fn feed(bql: &mut ByteQueueLimits, start: u64, rounds: u64, rate: u64) -> u64 {
        let mut dry = 0;
        for round in start..start + rounds {
            let begin = Instant::ZERO + Nanos::from_millis(round.saturating_sub(1));
            while bql.has_room() {
                bql.on_queued(begin, FRAME);
            }
            dry += u64::from(bql.in_flight() < rate);
            let whole_frames = rate.min(bql.in_flight()) / FRAME * FRAME;
            bql.on_completed(Instant::ZERO + Nanos::from_millis(round), whole_frames);
        }
        dry
    }

    /// A wire of a byte per nanosecond whose completions come one by one, each `late`; fed whenever
    /// there is room for `millis`. The share of the last quarter in which the wire was busy.
    fn use_of_a_wire(bql: &mut ByteQueueLimits, late: Nanos, begin: u64, millis: u64) -> f64 {
        let begin = Instant::ZERO + Nanos::from_millis(begin);
        let measured = begin + Nanos::from_millis(millis * 3 / 4);
        let end = begin + Nanos::from_millis(millis);
        let (mut now, mut free, mut sent) = (begin, begin, 0);
        let mut ring = std::collections::VecDeque::new();
        while now < end {
            while bql.has_room() {
                bql.on_queued(now, FRAME);
                free = free.max(now) + Nanos(FRAME);
                ring.push_back(free + late);
                sent += if now >= measured { FRAME } else { 0 };
            }
            now = ring.pop_front().expect("a frame was let in");
            bql.on_completed(now, FRAME);
        }
        for done in ring {
            bql.on_completed(done, FRAME);
        }
        sent as f64 / end.since(measured).0 as f64
    }

    #[test]
    fn completions_that_are_late_one_by_one_starve_no_wire() {
        for late in [100, 1000, 4000].map(Nanos::from_micros) {
            let mut bql = ByteQueueLimits::new(Instant::ZERO);
            let used = use_of_a_wire(&mut bql, late, 0, 4000);
            assert!(used > 0.97, "{late:?}: {used}");
            let lateness = bql.lateness();
            assert!(
                lateness <= late && lateness > Nanos(late.0 - late.0 / 8),
                "{late:?}: {lateness:?}"
            );
            assert!(bql.limit() < 3 * late.0 + 4 * FRAME, "{late:?}: {}", bql.limit());
        }
    }

    #[test]
    fn the_limit_covers_late_completions_for_as_long_as_they_last() {
        let late = Nanos::from_millis(4);
        let mut bql = ByteQueueLimits::new(Instant::ZERO);
        use_of_a_wire(&mut bql, late, 0, 4000);
        for second in 5..15 {
            use_of_a_wire(&mut bql, late, second * 1000, 900);
            // A byte leaves in a nanosecond.
            assert!(bql.limit() > late.0 * 7 / 8, "{} in second {second}", bql.limit());
        }
    }

    #[test]
    fn a_busy_ring_runs_empty_every_ten_seconds_to_measure_the_lateness_anew() {
        let late = Nanos::from_micros(200);
        let mut bql = ByteQueueLimits::new(Instant::ZERO);
        let (mut now, mut free) = (Instant::ZERO, Instant::ZERO);
        let mut ring = std::collections::VecDeque::new();
        let (mut begun, mut drains) = (Vec::new(), false);
        while now < Instant::ZERO + Nanos::from_secs(32) {
            while bql.has_room() {
                bql.on_queued(now, 40 * FRAME);
                free = free.max(now) + Nanos(40 * FRAME);
                ring.push_back(free + late);
            }
            now = ring.pop_front().expect("a frame was let in");
            bql.on_completed(now, 40 * FRAME);
            if bql.sojourn.drains() && !drains {
                begun.push(now.since(Instant::ZERO));
            }
            drains = bql.sojourn.drains();
        }
        assert_eq!(begun.len(), 3, "{begun:?}");
        assert!(begun[0] >= Sojourn::AGE && begun[0] < Sojourn::AGE + Nanos::from_secs(1));
    }

    #[test]
    fn lateness_is_learnt_anew() {
        let (late, prompt) = (Nanos::from_millis(2), Nanos::ZERO);
        let mut bql = ByteQueueLimits::new(Instant::ZERO);
        use_of_a_wire(&mut bql, prompt, 0, 5000);
        assert!(bql.lateness() == Nanos::ZERO && bql.limit() <= 4 * FRAME, "{}", bql.limit());
        assert!(use_of_a_wire(&mut bql, late, 6000, 14_000) > 0.95);
        assert!(bql.lateness() > Nanos(late.0 - late.0 / 8));
        use_of_a_wire(&mut bql, prompt, 30_000, 14_000);
        assert!(bql.lateness() < late / 8 && bql.limit() < late.0 / 4, "{}", bql.limit());
    }

    #[test]
    fn the_first_frame_passes_and_the_second_waits() {
        let mut bql = ByteQueueLimits::new(Instant::ZERO);
        assert!(bql.has_room());
        bql.on_queued(Instant::ZERO, FRAME);
        assert!(!bql.has_room());
        bql.on_completed(Instant::ZERO, FRAME);
        assert!(bql.has_room());
        assert_eq!(bql.limit(), FRAME, "over the limit, and all of it completed: starved");
    }

    #[test]
    fn the_limit_converges_from_zero_within_a_few_rounds() {
        let mut bql = ByteQueueLimits::new(Instant::ZERO);
        let rate = 100 * FRAME;
        assert!(feed(&mut bql, 0, 20, rate) < 12);
        assert_eq!(feed(&mut bql, 20, 2000, rate), 0, "never dry again");
        assert!(bql.limit() >= rate - FRAME && bql.limit() <= 3 * rate, "{}", bql.limit());
    }

    #[test]
    fn slack_is_given_back_only_after_the_hold_time() {
        let mut bql = ByteQueueLimits::new(Instant::ZERO);
        feed(&mut bql, 0, 200, 100 * FRAME);
        let high = bql.limit();
        feed(&mut bql, 200, 700, 10 * FRAME);
        assert_eq!(bql.limit(), high, "within the second since the limit last grew");
        feed(&mut bql, 900, 5000, 10 * FRAME);
        assert!(bql.limit() < high / 3, "{} of {high}", bql.limit());
        assert_eq!(feed(&mut bql, 5900, 2000, 10 * FRAME), 0);
    }

    #[test]
    fn an_idle_queue_keeps_its_limit() {
        let mut bql = ByteQueueLimits::new(Instant::ZERO);
        feed(&mut bql, 0, 200, 100 * FRAME);
        let limit = bql.limit();
        let all = bql.in_flight();
        bql.on_completed(Instant::ZERO + Nanos::from_secs(1), all);
        let after = bql.limit();
        for second in 2..60 {
            bql.on_queued(Instant::ZERO, FRAME);
            bql.on_completed(Instant::ZERO + Nanos::from_secs(second), FRAME);
        }
        assert!(after >= limit);
        assert_eq!(bql.limit(), after);
    }

    #[test]
    fn the_limit_stays_within_its_bounds() {
        let mut bql = ByteQueueLimits::new(Instant::ZERO);
        bql.set_bounds(3 * FRAME, 10 * FRAME);
        assert_eq!(bql.limit(), 3 * FRAME);
        feed(&mut bql, 0, 100, 100 * FRAME);
        assert_eq!(bql.limit(), 10 * FRAME);
        feed(&mut bql, 100, 5000, FRAME);
        assert!(bql.limit() < 10 * FRAME && bql.limit() >= 3 * FRAME);
        bql.reset(Instant::ZERO);
        assert_eq!((bql.limit(), bql.in_flight()), (3 * FRAME, 0));
    }

    #[test]
    fn a_device_that_completes_too_much_breaks_nothing() {
        let mut bql = ByteQueueLimits::new(Instant::ZERO);
        bql.on_queued(Instant::ZERO, FRAME);
        bql.on_completed(Instant::ZERO, u64::MAX);
        assert_eq!(bql.in_flight(), 0);
        bql.on_completed(Instant::ZERO, 1);
        assert!(bql.has_room());
    }
}
