//! Which flow sends next into the sockets of the host, and when: deficit round robin under a rate
//! (Shreedhar and Varghese 1995), with the lists of new and old flows of RFC 8290.
//!
//! A flow that has something to send after a pause is new. New flows are served before old ones,
//! for one quantum in each round of the old ones; so a flow that sends little does not wait behind
//! those that send much, however often it sends. Here is the difference from RFC 8290, where a flow
//! that has sent waits for the end of the round. Nothing is held or dropped here: a flow says that
//! it has bytes, and is told how many it may send.
//!
//! There is no clock: time comes in. The rate is kept by the time at which the next byte is due. A
//! caller that comes late makes up for it, as far as [`BURST`] goes.
//!
//! Cost: O(1) per decision. A flow that overdrew its quantum by a long datagram is passed over once
//! for each quantum of it. 56 bytes per flow, and 8 while it is on a list.

use neap::time::{Instant, Nanos, Rate};
use slab::Slab;
use std::collections::VecDeque;

/// Time of the rate that a flow sends in one turn: a round of many flows is short.
const QUANTUM: Nanos = Nanos::from_micros(500);
/// Bytes that a turn has at least: one packet of Ethernet, which cannot be cut.
const LEAST_QUANTUM: u64 = 1514;
/// Bytes that a turn has at most: those of one call.
const MOST_QUANTUM: u64 = 64 << 10;

/// Time of the rate that leaves at once after a pause, or when the caller was late.
const BURST: Nanos = Nanos::from_millis(5);

/// The flows that want to send, in the order of their turns. `K` is what a flow is known by.
#[derive(Debug)]
pub(crate) struct Schedule<K> {
    rate: Rate,
    quantum: i64,
    entries: Slab<Entry<K>>,
    /// Flows that have just begun to send.
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    /// Counts the rounds of the old flows.
    round: u64,
    /// Old flows that have not been passed in this round.
    left: usize,
    /// When the next byte may go.
    due: Instant,
}

#[derive(Debug)]
struct Entry<K> {
    key: K,
    /// Bytes that are left of its turn; below zero if it took more.
    deficit: i64,
    /// When it got its quantum last.
    round: u64,
    is_listed: bool,
    has_more: bool,
    /// It was removed while it was on a list.
    is_over: bool,
}

/// What [`Schedule::next`] decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next<K> {
    /// A flow may send: tell [`Schedule::on_sent`] what it did.
    Serve {
        /// The flow's place in the schedule.
        id: usize,
        /// What it is known by.
        key: K,
        /// Bytes that are left of its turn, headers included. It may take up to one packet more.
        bytes: u64,
    },
    /// Flows wait for the rate.
    NotBefore(Instant),
    /// No flow has anything to send.
    Empty,
}

impl<K: Copy> Schedule<K> {
    /// A schedule without flows. All flows together send at `rate`, which is above zero.
    pub(crate) fn new(rate: Rate) -> Self {
        let quantum = rate.bytes_in(QUANTUM).clamp(LEAST_QUANTUM, MOST_QUANTUM);
        Self {
            rate,
            quantum: quantum as i64,
            entries: Slab::new(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            round: 0,
            left: 0,
            due: Instant::ZERO,
        }
    }

    /// Adds a flow, which has nothing to send yet. Returns its place.
    pub(crate) fn insert(&mut self, key: K) -> usize {
        self.entries.insert(Entry {
            key,
            deficit: self.quantum,
            round: self.round,
            is_listed: false,
            has_more: false,
            is_over: false,
        })
    }

    /// Removes a flow.
    pub(crate) fn remove(&mut self, id: usize) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if entry.is_listed {
            entry.is_over = true;
        } else {
            self.entries.remove(id);
        }
    }

    /// A flow may have something to send.
    pub(crate) fn wake(&mut self, id: usize) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.has_more = true;
        if entry.is_listed {
            return;
        }
        entry.is_listed = true;
        if entry.round != self.round {
            entry.round = self.round;
            // What it took too much is not forgotten.
            entry.deficit = entry.deficit.min(0) + self.quantum;
        }
        let list = if entry.deficit > 0 { &mut self.new } else { &mut self.old };
        list.push_back(id);
    }

    /// Whether a flow may have something to send.
    pub(crate) fn has_more(&self, id: usize) -> bool {
        self.entries.get(id).is_some_and(|entry| entry.has_more)
    }

    /// Whose turn it is.
    pub(crate) fn next(&mut self, now: Instant) -> Next<K> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let Some(&id) = list.front() else { return Next::Empty };
            let entry = &mut self.entries[id];
            if entry.is_over {
                list.pop_front();
                self.entries.remove(id);
                self.pass(is_new);
            } else if !entry.has_more {
                list.pop_front();
                entry.is_listed = false;
                self.pass(is_new);
            } else if entry.deficit <= 0 {
                list.pop_front();
                entry.deficit += self.quantum;
                entry.round = self.round;
                self.old.push_back(id);
                self.pass(is_new);
            } else if self.due > now {
                return Next::NotBefore(self.due);
            } else {
                return Next::Serve { id, key: entry.key, bytes: entry.deficit as u64 };
            }
        }
    }

    /// A flow has left the front of its list.
    fn pass(&mut self, is_new: bool) {
        if !is_new {
            self.left = self.left.saturating_sub(1);
        }
        if self.left == 0 {
            self.round += 1;
            self.left = self.old.len();
        }
    }

    /// The flow whose turn it is has sent so many bytes, headers included, and may have more.
    pub(crate) fn on_sent(&mut self, id: usize, bytes: u64, has_more: bool, now: Instant) {
        self.due = self.due.max(now - BURST) + self.rate.time_for(bytes);
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.deficit -= i64::try_from(bytes).unwrap_or(i64::MAX / 2);
        entry.has_more = has_more;
    }

    /// When [`next`](Self::next) is to be asked again; `None` if a flow has to wake first.
    pub(crate) fn due(&self) -> Option<Instant> {
        (!self.new.is_empty() || !self.old.is_empty()).then_some(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const RATE: Rate = Rate::from_mbit(19);

    fn start() -> Instant {
        Instant::from_nanos(1_000_000_000)
    }

    /// Serves until `end` with packets of `size(flow)` bytes of flows that always have more. The
    /// caller is `late(n)` each time that it sleeps. Returns who sent how much, in order.
    fn run(
        schedule: &mut Schedule<usize>,
        end: Instant,
        size: impl Fn(usize) -> u64,
        late: impl Fn(usize) -> Nanos,
    ) -> Vec<(usize, u64)> {
        let (mut now, mut sent, mut sleeps) = (start(), Vec::new(), 0);
        while now < end {
            match schedule.next(now) {
                Next::Serve { id, key, .. } => {
                    sent.push((key, size(key)));
                    schedule.on_sent(id, size(key), true, now);
                }
                Next::NotBefore(at) => {
                    sleeps += 1;
                    now = at + late(sleeps);
                }
                Next::Empty => break,
            }
        }
        sent
    }

    fn with_flows(count: usize, rate: Rate) -> Schedule<usize> {
        let mut schedule = Schedule::new(rate);
        for key in 0..count {
            let id = schedule.insert(key);
            schedule.wake(id);
        }
        schedule
    }

    fn total(sent: &[(usize, u64)], flow: usize) -> u64 {
        sent.iter().filter(|(key, _)| *key == flow).map(|(_, bytes)| bytes).sum()
    }

    #[test]
    fn a_quantum_is_half_a_millisecond_within_bounds() {
        let quantum = |rate: &str| Schedule::<()>::new(rate.parse().expect("a rate")).quantum;
        assert_eq!(quantum("100mbit"), 6250);
        assert_eq!(quantum("19mbit"), 1514);
        assert_eq!(quantum("40gbit"), 64 << 10);
    }

    #[test]
    fn a_new_flow_goes_before_those_that_send_much() {
        let mut schedule = with_flows(32, RATE);
        run(&mut schedule, start() + Nanos::from_secs(1), |_| 1500, |_| Nanos::ZERO);
        let game = schedule.insert(99);
        let at = start() + Nanos::from_secs(2);
        // It goes first as often as it likes, until it has had its quantum.
        for _ in 0..15 {
            schedule.wake(game);
            assert!(matches!(schedule.next(at), Next::Serve { key: 99, .. }));
            schedule.on_sent(game, 101, false, at);
            assert!(!matches!(schedule.next(at), Next::Serve { key: 99, .. }));
        }
        schedule.wake(game);
        let waits = |schedule: &mut Schedule<usize>| {
            let Next::Serve { id, key, .. } = schedule.next(at) else { panic!("it is late") };
            schedule.due = start();
            schedule.on_sent(id, 1500, true, at);
            key != 99
        };
        let turns = (0..).take_while(|_| waits(&mut schedule)).count();
        assert!((1..=64).contains(&turns), "{turns}: two rounds of 32 at most");
    }

    #[test]
    fn a_flow_that_is_removed_or_has_nothing_is_passed_over() {
        let mut schedule = with_flows(3, RATE);
        schedule.remove(0);
        let Next::Serve { id, key: 1, .. } = schedule.next(start()) else { panic!("flow 1") };
        schedule.on_sent(id, 0, false, start());
        let Next::Serve { id, key: 2, .. } = schedule.next(start()) else { panic!("flow 2") };
        schedule.on_sent(id, 10, false, start());
        assert_eq!(schedule.next(start()), Next::Empty);
        assert_eq!(schedule.due(), None, "nothing wakes without need");
        schedule.remove(1);
        schedule.remove(2);
        assert!(schedule.entries.is_empty());
    }

    #[test]
    fn no_more_than_the_burst_leaves_after_a_pause() {
        let mut schedule = with_flows(1, RATE);
        let later = start() + Nanos::from_secs(60);
        let mut bytes = 0;
        while let Next::Serve { id, .. } = schedule.next(later) {
            schedule.on_sent(id, 1500, true, later);
            bytes += 1500;
        }
        assert!(bytes <= RATE.bytes_in(BURST) + 1500, "{bytes}");
    }

    proptest! {
        /// All have the same number of bytes at any time, whatever their packets are, but for two
        /// turns and a packet.
        #[test]
        fn shares_are_equal(sizes in vec(40..9000_u64, 2..20), mbit in 1..1000_u64) {
            let mut schedule = with_flows(sizes.len(), Rate::from_mbit(mbit));
            let end = start() + Nanos::from_secs(3);
            let sent = run(&mut schedule, end, |flow| sizes[flow], |_| Nanos::ZERO);
            let all: Vec<_> = (0..sizes.len()).map(|flow| total(&sent, flow)).collect();
            let (least, most) = (all.iter().min().expect("flows"), all.iter().max().expect("flows"));
            let turn = schedule.quantum as u64 + 9000;
            prop_assert!(most - least <= 2 * turn, "{all:?}");
        }

        /// Between two turns of a flow that has bytes, no other flow has more than two.
        #[test]
        fn nobody_waits_for_more_than_two_rounds(
            sizes in vec(40..1514_u64, 2..20), pauses in vec(0..20_u8, 1..50),
        ) {
            let mut schedule = with_flows(sizes.len(), RATE);
            let (mut now, mut since) = (start(), vec![0_u64; sizes.len()]);
            for step in 0..3000 {
                match schedule.next(now) {
                    Next::NotBefore(at) => now = at,
                    Next::Empty => prop_assert!(false, "flow 0 always has bytes"),
                    Next::Serve { id, key, .. } => {
                        // Flow 0 always has more; the others pause after some packets, and come
                        // back at once, which makes them new.
                        let has_more = key == 0 || pauses[step % pauses.len()] > 3;
                        schedule.on_sent(id, sizes[key], has_more, now);
                        schedule.wake(id);
                        since[key] += sizes[key];
                        if key == 0 {
                            since.fill(0);
                        }
                    }
                }
                let most = 2 * (schedule.quantum as u64 + 1514);
                prop_assert!(since.iter().all(|&bytes| bytes <= most), "{since:?}");
            }
        }

        /// The rate is kept within 1 % by a caller that is late, and never passed by more than the
        /// burst and a packet.
        #[test]
        fn the_rate_is_kept(
            flows in 1..40_usize, kbit in 1000..1_000_000_u64, late in vec(0..4000_u64, 1..100),
        ) {
            let rate = Rate::from_kbit(kbit);
            let mut schedule = with_flows(flows, rate);
            let lateness = |n: usize| Nanos::from_micros(late[n % late.len()]);
            let span = Nanos::from_secs(10);
            let sent = run(&mut schedule, start() + span, |_| 1500, lateness);
            let bytes: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
            let allowed = rate.bytes_in(span + BURST) + 1500;
            // Times are whole nanoseconds.
            prop_assert!(bytes <= allowed + allowed / 1000, "{bytes} of {allowed}");
            prop_assert!(bytes * 100 >= rate.bytes_in(span) * 99, "{bytes} of {allowed}");
        }
    }
}
