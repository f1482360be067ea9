//! Departure times of frames (Linux's `tcp_update_skb_after_send`, EDT).
//!
//! Each frame gets one departure time by one rate. Either a qdisc that holds frames (`fq`) keeps to
//! it, or the connection itself waits. The schedule is the same for both, so either may take over
//! from the other between two frames.
//!
//! A frame that leaves late shortens the gap behind it by half at the most, as in Linux: an
//! application that did not write, or a window that was closed, must not be followed by a burst.
//! But a thread waits longer for the processor than an interrupt does. If the schedule was all that
//! the flow waited for, the host alone is late. Then the flow makes good all of it, up to
//! `neap.tcp_pacing_debt_us`. So it keeps its average rate on a busy machine, and a burst is at
//! most the rate times the lateness, and one frame, or as many as leave
//! [together](super::autosize::joins_departures). A qdisc that holds frames adds those that it
//! held, which the small queue bounds.
//!
//! Lateness above that makes no longer burst. If the application set the rate, gaps are shortened
//! by a quarter until it is made good, up to `neap.tcp_pacing_arrears_us`. The rate of a controller
//! is what the path can take, so it is not exceeded.

use crate::config::Config;
use crate::time::{Instant, Nanos, Rate};
use crate::transmit::TxBlocked;

/// The least time to the next look at a departure.
const STEP: Nanos = Nanos::from_micros(1);

/// The part of its gap by which a departure may be late so that flows share wake-ups. Lateness of
/// less than half a gap costs no rate.
const SHARED_PART: u64 = 16;
/// The most by which it may be late then.
const SHARED_MOST: Nanos = Nanos(1 << 20);

/// Part of a gap by which arrears shorten it.
const ARREARS_PART: u64 = 4;

/// Unit in which arrears are kept: a fourth of a second fits into 16 bits.
const ARREARS_UNIT: Nanos = Nanos::from_micros(4);

/// Holder of frames until they are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// Nobody holds frames: `neap.tcp_internal_pacing` is off, and no qdisc does it.
    Nobody,
    /// The connection waits, if it was asked for pacing.
    Connection,
    /// A qdisc of the path holds the frames of every flow (like `SK_PACING_FQ`, but for the current
    /// path).
    Path,
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Is: u8 {
        /// The controller asked for pacing.
        const ASKED = 1;
        /// A qdisc was the executor until now and may still hold frames: what comes waits for them.
        const DRAINING = 2;
        /// The flow waits for nothing but its schedule: what leaves late, is late by the host's
        /// fault.
        const GATE = 4;
    }
}

/// Schedule of one connection's departures.
#[derive(Clone, Debug)]
pub struct Pacer {
    /// `tcp_wstamp_ns`: departure of the last frame, or the earliest of the next.
    next: Instant,
    /// `sk_pacing_rate`.
    rate: Rate,
    /// `SO_MAX_PACING_RATE`.
    max_rate: Rate,
    executor: Executor,
    is: Is,
    /// Lateness of the host above the debt, made good bit by bit, in units of [`ARREARS_UNIT`].
    arrears: u16,
    /// Lateness of the host that is not yet made good, nanoseconds: a second at the most.
    owed: u32,
}

impl Default for Pacer {
    fn default() -> Self {
        Self {
            next: Instant::ZERO,
            rate: Rate::UNLIMITED,
            max_rate: Rate::UNLIMITED,
            executor: Executor::Connection,
            is: Is::empty(),
            arrears: 0,
            owed: 0,
        }
    }
}

impl Pacer {
    /// Returns the rate, with its limit applied.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the limit of the rate (`SO_MAX_PACING_RATE`).
    pub fn max_rate(&self) -> Rate {
        self.max_rate
    }

    /// Limits the rate. Lowering acts at once, raising at the next [`set_rate`](Self::set_rate).
    ///
    /// A limit asks for pacing; [`Rate::UNLIMITED`] ends that.
    pub fn set_max_rate(&mut self, max: Rate) {
        self.max_rate = max;
        self.rate = self.rate.min(max);
    }

    /// Sets the rate by the controller or by the common formula.
    pub fn set_rate(&mut self, rate: Rate) {
        self.rate = rate.min(self.max_rate);
    }

    /// Sets whether the controller asks for pacing.
    pub fn set_needed(&mut self, needed: bool) {
        self.is.set(Is::ASKED, needed);
    }

    /// Sets who holds frames until they are due, from the next frame on.
    pub fn set_executor(&mut self, executor: Executor) {
        let is_draining = self.is.contains(Is::DRAINING) || self.executor == Executor::Path;
        self.is.set(Is::DRAINING, is_draining && executor != Executor::Path);
        self.executor = executor;
    }

    /// Returns whether the controller or the application asked for pacing.
    pub fn is_needed(&self) -> bool {
        self.is.contains(Is::ASKED) || self.max_rate != Rate::UNLIMITED
    }

    /// Returns whether departures are spaced. Where a qdisc holds frames, those of every flow are.
    pub fn is_spaced(&self) -> bool {
        match self.executor {
            Executor::Nobody => false,
            Executor::Connection => self.is_needed(),
            Executor::Path => true,
        }
    }

    /// Returns the departure of the last frame, or the earliest departure of the next one.
    pub fn next_departure(&self) -> Instant {
        self.next
    }

    /// Returns by how much the schedule runs ahead of `now`. Timers add it to their delay.
    pub fn backlog(&self, now: Instant) -> Nanos {
        if self.is_spaced() { self.next.since(now) } else { Nanos::ZERO }
    }

    /// Returns until when the connection itself has to wait for its next frame, if it has to
    /// (`tcp_pacing_check`).
    pub fn wait(&self, now: Instant) -> Option<Instant> {
        let is_held = self.is_spaced() || self.is.contains(Is::DRAINING);
        let waits = self.executor != Executor::Path && is_held;
        (waits && self.next > now).then_some(self.next)
    }

    /// Returns the due time for a timer that comes up to `slack` late, so that a frame of `bytes`
    /// leaves at most a quarter of its gap late. It is never in the past.
    ///
    /// Hosts add lateness of their own. A short gap would otherwise be late by more than the half
    /// that is made good, and the flow slower than its rate.
    ///
    /// If `shares` says that many timers expire, the time is rounded up to a multiple of a 16th of
    /// the gap or less, a power of two up to a millisecond. So one wake-up serves the departures of
    /// many flows.
    pub fn deadline(&self, now: Instant, bytes: u32, slack: Nanos, shares: bool) -> Instant {
        let gap = self.rate.time_for(u64::from(bytes));
        let early = self.next - Nanos(slack.0.saturating_sub(gap.0 / 4));
        let due = early.max(now + STEP).min(self.next);
        let step = 1 << (gap.0 / SHARED_PART).clamp(1, SHARED_MOST.0).ilog2();
        if !shares || step <= slack.0 {
            return due;
        }
        Instant::from_nanos(due.as_nanos().next_multiple_of(step))
    }

    /// Returns the departure of a frame that is sent at `now`.
    ///
    /// Frames that pass the gate, such as a timeout's retransmission or a probe, leave at once if
    /// nobody holds them.
    pub fn departure(&self, now: Instant) -> Instant {
        if self.executor == Executor::Path { self.next.max(now) } else { now }
    }

    /// Notes why the connection stopped sending.
    ///
    /// It waits for its schedule if the schedule is the gate, or if the small queue is full of
    /// frames that a qdisc holds for the schedule. A driver that yields to others is as late as one
    /// that does not run. A small queue that is full of frames which should be gone keeps the debt
    /// as it is. All other reasons end it: the application or the peer is late, not the host.
    pub fn on_blocked(&mut self, now: Instant, blocked: TxBlocked) {
        let is_held = self.executor == Executor::Path && self.next > now;
        let is_gate = match blocked {
            TxBlocked::Pacing(_) | TxBlocked::Yield => true,
            TxBlocked::SmallQueue => is_held,
            _ => false,
        };
        self.is.set(Is::GATE, is_gate);
        if !is_gate && blocked != TxBlocked::SmallQueue {
            self.owed = 0;
            self.arrears = 0;
        }
    }

    /// Notes that the small queue was full when the connection stopped and is empty when it comes
    /// back. The frames have left earlier, and the host learnt it late.
    pub fn on_late_completion(&mut self) {
        self.is.insert(Is::GATE);
    }

    /// Returns the lateness of the host that a frame at `now` would make good. A flow that did not
    /// ask for pacing has no rate to keep: if a qdisc spaces it, others at the link may be why it
    /// is late.
    pub fn owed(&self, now: Instant, config: &Config) -> Nanos {
        if !config.pacing_credit || !self.is_spaced() || !self.is_needed() {
            return Nanos::ZERO;
        }
        let most = Nanos::from_micros(config.pacing_debt_us.into());
        let late = now.since(self.next);
        if !self.is.contains(Is::GATE) {
            return late.min(most).min(Nanos(self.owed.into()));
        }
        late.min(most)
    }

    /// The part of what is `owed` that moves the schedule at once.
    ///
    /// While arrears are made good, gaps are a quarter shorter, also those of a burst. So the burst
    /// is of three quarters of the debt, and has no more bytes than without arrears. If all of the
    /// arrears would not fit, the rest is lost, and the burst is of the whole debt.
    fn burst(&self, owed: Nanos, late: Nanos, config: &Config) -> Nanos {
        let most = Nanos::from_micros(config.pacing_debt_us.into());
        let short = most.saturating_sub(most / ARREARS_PART);
        let arrears = self.arrears() + late.saturating_sub(short);
        let has_arrears = self.is.contains(Is::GATE) && (late > most || self.arrears > 0);
        let is_short = has_arrears && arrears <= self.most_arrears(config);
        if is_short { owed.min(short) } else { owed }
    }

    fn arrears(&self) -> Nanos {
        ARREARS_UNIT.saturating_mul(self.arrears.into())
    }

    /// The most that arrears may be. Only a rate that the application set is kept by them.
    fn most_arrears(&self, config: &Config) -> Nanos {
        let is_promised = self.max_rate != Rate::UNLIMITED && self.rate == self.max_rate;
        if !is_promised || config.pacing_debt_us == 0 || !config.pacing_credit {
            return Nanos::ZERO;
        }
        Nanos::from_micros(config.pacing_arrears_us.into())
    }

    /// Moves the schedule by the time that a frame of `bytes` payload bytes takes at the rate.
    ///
    /// `segments_out` counts the data segments that the connection has sent, this frame included;
    /// the first ones leave back to back. Lateness of the host is made good as far as
    /// `pacing_debt_us` and `pacing_arrears_us` let, all other lateness by at most half a gap.
    pub fn depart(&mut self, now: Instant, bytes: u32, segments_out: u64, config: &Config) {
        self.is.remove(Is::DRAINING);
        if !self.is_spaced() {
            self.next = now;
            return;
        }
        let planned = self.next;
        let owed = self.owed(now, config);
        self.owed = 0;
        self.next = planned.max(now);
        let has_rate = self.rate != Rate::UNLIMITED && self.rate.0 != 0;
        if has_rate && segments_out >= u64::from(config.pacing_free_segments) {
            let gap = self.rate.time_for(u64::from(bytes));
            let late = if config.pacing_credit { self.next.since(planned) } else { Nanos::ZERO };
            let credit = self.burst(owed, late, config).max(late.min(gap / 2));
            let repaid = self.repay(late, credit, gap, config);
            let left = (credit + repaid).saturating_sub(gap);
            self.owed = u32::try_from(left.0).unwrap_or(u32::MAX);
            self.next = self.next + gap - credit - repaid;
        }
    }

    /// Adds lateness without `credit` to the arrears, and returns the part of them that `gap` makes
    /// good as well.
    fn repay(&mut self, late: Nanos, credit: Nanos, gap: Nanos, config: &Config) -> Nanos {
        let is_gate = self.is.contains(Is::GATE);
        let lost = if is_gate { late.saturating_sub(credit) } else { Nanos::ZERO };
        let most = self.most_arrears(config);
        let arrears = (self.arrears() + lost).min(most);
        let mut part = gap / ARREARS_PART;
        if arrears == most {
            // The burst has its full length.
            part = part.min(gap.saturating_sub(credit));
        }
        let units = arrears.0 / ARREARS_UNIT.0;
        let repaid = units.min(part.0 / ARREARS_UNIT.0);
        self.arrears = u16::try_from(units - repaid).unwrap_or(u16::MAX);
        ARREARS_UNIT.saturating_mul(repaid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn paced() -> Pacer {
        let mut pacer = Pacer::default();
        pacer.set_max_rate(Rate(1_000_000));
        pacer.set_rate(Rate(1_000_000));
        pacer
    }

    fn send(pacer: &mut Pacer, now: Instant, segments_out: u64) -> Instant {
        let departure = pacer.departure(now);
        pacer.depart(now, 1000, segments_out, &Config::default());
        departure
    }

    #[test]
    fn first_ten_segments_leave_at_once_then_gaps() {
        let mut pacer = paced();
        let now = Instant::from_nanos(5 * MS);
        pacer.set_executor(Executor::Path);
        assert_eq!(send(&mut pacer, now, 9), now);
        assert_eq!(send(&mut pacer, now, 10), now);
        assert_eq!(pacer.next_departure(), now + Nanos::from_millis(1));
        assert_eq!(send(&mut pacer, now, 11), now + Nanos::from_millis(1));
        assert_eq!(pacer.backlog(now), Nanos::from_millis(2));
    }

    #[test]
    fn lateness_is_made_good_by_half_a_gap_at_most() {
        let mut pacer = paced();
        let start = Instant::from_nanos(100 * MS);
        send(&mut pacer, start, 100);
        assert_eq!(pacer.next_departure(), start + Nanos(500_000), "as after a long rest");
        let late = start + Nanos(700_000);
        send(&mut pacer, late, 100);
        assert_eq!(pacer.next_departure(), late + Nanos(800_000));
        let later = late + Nanos(50 * MS);
        send(&mut pacer, later, 100);
        assert_eq!(pacer.next_departure(), later + Nanos(500_000));
        let strict = Config { pacing_credit: false, ..Config::default() };
        pacer.depart(later + Nanos(50 * MS), 1000, 100, &strict);
        assert_eq!(pacer.next_departure(), later + Nanos(51 * MS));
    }

    /// Sends frames of 1000 bytes at 1,000,000 bytes per second for ten seconds, on a host that
    /// comes up to `most` late. The rate, and the most bytes that left within a millisecond.
    fn late_host(most: Nanos, config: &Config) -> (f64, u64) {
        let mut pacer = paced();
        let start = Instant::from_nanos(100 * MS);
        let (mut now, mut random, mut sent, mut burst) = (start, 1u64, 0, 0);
        while now < start + Nanos::from_secs(10) {
            let mut bytes = 0;
            while pacer.wait(now).is_none() {
                pacer.depart(now, 1000, 100, config);
                bytes += 1000;
            }
            pacer.on_blocked(now, TxBlocked::Pacing(pacer.next_departure()));
            (sent, burst) = (sent + bytes, burst.max(bytes));
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            now = pacer.next_departure() + Nanos((random >> 32) % (most.0 + 1));
        }
        (sent as f64 / now.since(start).as_secs_f64(), burst)
    }

    #[test]
    fn a_late_host_keeps_the_average_and_bounds_the_burst() {
        let config = Config::default();
        for millis in [1, 7, 20, 50] {
            let (rate, burst) = late_host(Nanos::from_millis(millis), &config);
            assert!((0.99e6..1.01e6).contains(&rate), "{rate} bytes per second, {millis} ms");
            assert!(burst <= millis * 1000 + 1000, "{burst} bytes at once, {millis} ms late");
        }
        let (_, burst) = late_host(Nanos::from_millis(400), &config);
        assert!(burst <= 51_000, "{burst} bytes at once: what is above 50 ms is lost");
        let linux = Config { pacing_debt_us: 0, ..Config::default() };
        let (rate, burst) = late_host(Nanos::from_millis(7), &linux);
        assert!(rate < 0.35e6 && burst == 1000, "{rate} bytes per second with half a gap");
    }

    /// Departures of a flow of 1,000,000 bytes per second in a minute, on a host that comes up to
    /// 20 ms late, and every sixtieth time by 200 ms.
    fn host_with_long_waits(mut pacer: Pacer, config: &Config) -> Vec<Instant> {
        let (mut departures, mut random) = (Vec::new(), 1u64);
        let start = Instant::from_nanos(100 * MS);
        let mut now = start;
        for visit in 1.. {
            while pacer.wait(now).is_none() {
                pacer.depart(now, 1000, 100, config);
                departures.push(now);
            }
            pacer.on_blocked(now, TxBlocked::Pacing(pacer.next_departure()));
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let late = if visit % 60 == 0 { 200 * MS } else { (random >> 32) % (20 * MS) };
            now = pacer.next_departure() + Nanos(late);
            if now > start + Nanos::from_secs(60) {
                break;
            }
        }
        departures
    }

    /// The rate from the first departure to the last, and what a bucket held at the most that runs
    /// out at 4/3 of the rate of [`paced`].
    fn rate_and_burst(departures: &[Instant]) -> (f64, f64) {
        let [first, .., end] = departures else { panic!("hardly any frames") };
        let (mut level, mut most, mut last) = (0.0, 0.0, *first);
        for &at in departures {
            level = f64::max(level - 4e6 / 3.0 * at.since(last).as_secs_f64(), 0.0) + 1000.0;
            (most, last) = (f64::max(most, level), at);
        }
        ((departures.len() - 1) as f64 * 1000.0 / end.since(*first).as_secs_f64(), most)
    }

    #[test]
    fn long_waits_of_the_host_are_made_good_without_longer_bursts() {
        let config = Config::default();
        let (rate, burst) = rate_and_burst(&host_with_long_waits(paced(), &config));
        assert!((0.99e6..1.01e6).contains(&rate), "{rate} bytes per second");
        assert!(burst <= 51_000.0, "{burst} bytes at once");
        let debt_alone = Config { pacing_arrears_us: 0, ..Config::default() };
        let (rate, burst) = rate_and_burst(&host_with_long_waits(paced(), &debt_alone));
        assert!(rate < 0.9e6 && burst <= 51_000.0, "{rate} bytes per second, {burst} at once");
        // The rate of a controller is no promise.
        let mut asked = Pacer::default();
        asked.set_needed(true);
        asked.set_rate(Rate(1_000_000));
        let (rate, _) = rate_and_burst(&host_with_long_waits(asked, &config));
        assert!(rate < 0.9e6, "{rate} bytes per second");
    }

    #[test]
    fn lateness_of_the_application_or_the_peer_is_no_debt() {
        let config = Config::default();
        let start = Instant::from_nanos(100 * MS);
        for blocked in [TxBlocked::NoData, TxBlocked::Cwnd, TxBlocked::Rwnd, TxBlocked::Nagle] {
            let mut pacer = paced();
            send(&mut pacer, start, 100);
            pacer.on_blocked(start, TxBlocked::Pacing(pacer.next_departure()));
            // The host is late by 20 ms; the flow sends a frame, and then has nothing to send.
            let late = pacer.next_departure() + Nanos::from_millis(20);
            assert_eq!(pacer.owed(late, &config), Nanos::from_millis(20));
            send(&mut pacer, late, 100);
            assert_eq!(pacer.owed(late, &config), Nanos::from_millis(19));
            pacer.on_blocked(late, blocked);
            assert_eq!(pacer.owed(late, &config), Nanos::ZERO, "{blocked:?}");
            assert_eq!(pacer.arrears, 0, "{blocked:?}");
            let later = late + Nanos::from_millis(20);
            send(&mut pacer, later, 100);
            assert_eq!(pacer.next_departure(), later + Nanos(500_000), "{blocked:?}");
        }
    }

    #[test]
    fn a_debt_waits_for_the_small_queue_and_does_not_grow_there() {
        let config = Config::default();
        let mut pacer = paced();
        let start = Instant::from_nanos(100 * MS);
        send(&mut pacer, start, 100);
        pacer.on_blocked(start, TxBlocked::Pacing(pacer.next_departure()));
        let late = pacer.next_departure() + Nanos::from_millis(20);
        send(&mut pacer, late, 100);
        pacer.on_blocked(late, TxBlocked::SmallQueue);
        let later = late + Nanos::from_millis(5);
        assert_eq!(pacer.owed(later, &config), Nanos::from_millis(19));
        let mut emptied = pacer.clone();
        emptied.on_late_completion();
        assert_eq!(emptied.owed(later, &config), Nanos::from_millis(24), "the host learnt it late");
        // A qdisc that holds frames for the schedule is another matter.
        pacer.set_executor(Executor::Path);
        let ahead = later + Nanos::from_millis(1);
        for _ in 0..20 {
            send(&mut pacer, later, 100);
        }
        assert_eq!(pacer.next_departure(), ahead);
        pacer.on_blocked(later, TxBlocked::SmallQueue);
        let owed = pacer.owed(ahead + Nanos::from_millis(5), &config);
        assert_eq!(owed, Nanos::from_millis(5));
    }

    #[test]
    fn a_limit_asks_for_pacing_and_caps() {
        let mut pacer = Pacer::default();
        assert!(!pacer.is_needed());
        pacer.set_rate(Rate(5000));
        pacer.set_max_rate(Rate(1000));
        assert_eq!(pacer.rate(), Rate(1000));
        pacer.set_max_rate(Rate(4000));
        assert_eq!(pacer.rate(), Rate(1000), "raised by the next update");
        pacer.set_rate(Rate(5000));
        assert_eq!(pacer.rate(), Rate(4000));
        assert!(pacer.is_needed());
        pacer.set_max_rate(Rate::UNLIMITED);
        assert!(!pacer.is_needed());
        pacer.set_needed(true);
        assert!(pacer.is_needed());
    }

    #[test]
    fn whoever_executes_the_schedule_takes_over_where_it_stands() {
        let mut pacer = paced();
        let now = Instant::from_nanos(100 * MS);
        pacer.set_executor(Executor::Path);
        let stamps: Vec<_> = (0..3).map(|_| send(&mut pacer, now, 100)).collect();
        assert_eq!(stamps, [now, now + Nanos(500_000), now + Nanos(1_500_000)]);
        assert_eq!(pacer.wait(now), None, "the qdisc waits");
        let next = now + Nanos(2_500_000);
        pacer.set_executor(Executor::Connection);
        assert_eq!(pacer.wait(now), Some(next), "the connection does, where the qdisc stopped");
        assert_eq!(pacer.wait(next), None);
        pacer.set_executor(Executor::Path);
        assert_eq!(send(&mut pacer, now, 100), next);
    }

    #[test]
    fn timers_with_slack_are_late_by_a_fourth_of_a_gap_at_most() {
        let mut pacer = paced();
        let now = Instant::from_nanos(100 * MS);
        send(&mut pacer, now, 100);
        let (next, slack) = (pacer.next_departure(), Nanos(20_000));
        assert_eq!(pacer.deadline(now, 1000, slack, false), next, "a gap of a millisecond");
        assert_eq!(pacer.deadline(now, 40, slack, false) + slack, next + Nanos(10_000));
        assert_eq!(pacer.deadline(now, 0, slack, false) + slack, next);
        let visit = next - slack;
        assert_eq!(pacer.deadline(visit, 0, slack, false), visit + STEP, "none that has passed");
        assert_eq!(pacer.deadline(next - Nanos(1), 0, slack, false), next);
    }

    #[test]
    fn departures_of_many_flows_share_wake_ups() {
        let now = Instant::from_nanos(100 * MS);
        let slack = Nanos(20_000);
        let mut wake_ups = std::collections::BTreeSet::new();
        for flow in 0..100 {
            let mut pacer = paced();
            // Gaps of 20 ms, which begin at any time.
            pacer.depart(now + Nanos(flow * 199_999), 20_000, 100, &Config::default());
            let due = pacer.deadline(now, 20_000, slack, true);
            let late = due.since(pacer.next_departure());
            assert!(due >= pacer.next_departure() && late.0 <= 20 * MS / 16, "{late:?} late");
            wake_ups.insert(due);
        }
        assert!(wake_ups.len() <= 22, "{} wake-ups in 20 ms", wake_ups.len());
        let mut fast = paced();
        fast.depart(now, 200, 100, &Config::default());
        let next = fast.next_departure();
        assert_eq!(fast.deadline(now, 200, slack, true), next, "a gap of 200 us");
    }

    #[test]
    fn what_passes_the_gate_is_stamped_when_it_leaves_and_counts() {
        let mut pacer = paced();
        let now = Instant::from_nanos(100 * MS);
        send(&mut pacer, now, 100);
        assert_eq!(send(&mut pacer, now, 101), now);
        assert_eq!(pacer.next_departure(), now + Nanos(1_500_000));
    }

    #[test]
    fn a_flow_that_nobody_paces_keeps_no_schedule() {
        let mut pacer = Pacer::default();
        let now = Instant::from_nanos(100 * MS);
        pacer.set_rate(Rate(1_000_000));
        pacer.set_executor(Executor::Path);
        send(&mut pacer, now, 100);
        assert_eq!(pacer.backlog(now), Nanos(500_000));
        pacer.set_executor(Executor::Connection);
        let next = now + Nanos(500_000);
        assert_eq!(pacer.wait(now), Some(next), "the qdisc still holds a frame");
        for _ in 0..3 {
            assert_eq!((pacer.backlog(next), pacer.wait(next)), (Nanos::ZERO, None));
            assert_eq!(send(&mut pacer, next, 101), next);
            assert_eq!(pacer.next_departure(), next);
        }
    }

    #[test]
    fn no_rate_is_no_pacing() {
        for rate in [Rate(0), Rate::UNLIMITED] {
            let mut pacer = Pacer::default();
            pacer.set_needed(true);
            pacer.set_rate(rate);
            let now = Instant::from_nanos(MS);
            send(&mut pacer, now, 1000);
            assert_eq!(pacer.wait(now), None);
        }
    }
}
