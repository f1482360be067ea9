//! Turns: which of the connections that could send at once sends next, by deficit round robin.
//!
//! A connection asks before each frame of new data. While nobody waits, it may always send. While
//! others wait, it has one turn in each round, of [`QUANTUM`] bytes; what its last frame exceeds
//! them by is taken from its next turn. A round ends when everybody who waited for it was served.
//! Between two turns of one connection that waits, no other connection therefore sends more than
//! two quanta and one frame.
//!
//! A connection that has had no turn in this round may begin it whenever it is visited, so an ACK
//! or a completion needs no second visit, and the answer to a request does not wait behind bulk
//! data.
//! If the shard has sent enough, it waits in front of those that had a turn in the round before, as
//! new flows in Linux's `fq` and `fq_codel`. Any other waits for the next round.
//!
//! Cost: five loads and a store per frame, and a mutex for each wait and each turn. All is O(1). A
//! connection is in one list at most, so the lists are bounded by the number of connections.

use super::socket_id::SocketId;
use crate::sync::{Mutex, lock};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize};
use std::collections::VecDeque;

/// Payload bytes of one turn: two of the largest frames. More makes rounds longer, less makes
/// visits more frequent. It is larger than any frame, so everybody sends in every round.
const QUANTUM: i32 = 128 << 10;

/// The connections of one shard that wait for a turn.
#[derive(Debug)]
pub(crate) struct Turns {
    lists: Mutex<Lists>,
    /// Connections in the lists.
    waiting: AtomicUsize,
    /// Changes when a round begins.
    round: AtomicU32,
    /// Most rounds that began while one connection was in the lists.
    longest_wait: AtomicU32,
}

#[derive(Debug, Default)]
struct Lists {
    /// Served first: those that have had no turn in this round nor waited for it.
    new: VecDeque<SocketId>,
    /// Those that have waited for this round.
    current: VecDeque<SocketId>,
    /// Those that wait for the next round.
    next: VecDeque<SocketId>,
}

/// The turn of one connection. Only the owner of the connection changes it, but for the place in
/// the lists.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// Bytes that are left of the turn. Above zero the turn is not over, and one more frame may
    /// leave, which may make it negative.
    left: AtomicI32,
    /// The round of its last turn.
    round: AtomicU32,
    /// The round in which it has waited since, if it wants a turn.
    waits_since: AtomicU32,
    /// The connection wants a turn.
    wants_turn: AtomicBool,
    /// The connection is in a list, even if it wants no turn any more.
    is_listed: AtomicBool,
}

impl Share {
    /// Begins the turn of this round, if the connection has had none.
    fn enter(&self, round: u32) {
        if self.round.load(Relaxed) != round {
            self.round.store(round, Relaxed);
            self.left.store(self.left.load(Relaxed).min(0) + QUANTUM, Relaxed);
        }
    }

    /// The connection has nothing to send, or something else than its turn holds it back: a turn
    /// that it had is over.
    pub(crate) fn forgo_turn(&self) {
        if self.left.load(Relaxed) > 0 {
            self.left.store(0, Relaxed);
        }
        if self.wants_turn.load(Relaxed) {
            self.wants_turn.store(false, Relaxed);
        }
    }

    /// Whether the connection has had its turn in this round, all of it.
    fn is_served(&self, round: u32) -> bool {
        self.round.load(Relaxed) == round && self.left.load(Relaxed) <= 0
    }
}

impl Default for Turns {
    fn default() -> Self {
        // Nobody has had a turn in the first round.
        let (lists, waiting) = (Mutex::default(), AtomicUsize::new(0));
        Self { lists, waiting, round: AtomicU32::new(1), longest_wait: AtomicU32::new(0) }
    }
}

impl Turns {
    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(Acquire) == 0
    }

    /// Whether a connection may send one more frame now, as far as others are concerned.
    pub(crate) fn may_send(&self, share: &Share) -> bool {
        if self.waiting.load(Relaxed) == 0 {
            return true;
        }
        share.enter(self.round.load(Relaxed));
        share.left.load(Relaxed) > 0
    }

    /// A frame with so many bytes of payload leaves. It counts for this round even if nobody waits
    /// yet.
    pub(crate) fn charge(&self, share: &Share, bytes: u32) {
        share.enter(self.round.load(Relaxed));
        // What was sent while nobody waited costs no more than the next turn.
        let left = share.left.load(Relaxed).saturating_sub_unsigned(bytes).max(1 - QUANTUM);
        share.left.store(left, Relaxed);
        if share.wants_turn.load(Relaxed) {
            self.count_wait(share);
        }
    }

    /// Most rounds that have begun while one connection waited in the lists for its turn.
    pub(crate) fn longest_wait(&self) -> u32 {
        self.longest_wait.load(Relaxed)
    }

    /// A connection that waited is served.
    fn count_wait(&self, share: &Share) {
        let round = self.round.load(Relaxed);
        let waited = round.wrapping_sub(share.waits_since.swap(round, Relaxed));
        if waited > self.longest_wait.load(Relaxed) {
            self.longest_wait.fetch_max(waited, Relaxed);
        }
    }

    /// The connection could send, and may not.
    pub(crate) fn wait(&self, id: SocketId, share: &Share) {
        let begins = !share.wants_turn.load(Relaxed);
        if begins {
            share.waits_since.store(self.round.load(Relaxed), Relaxed);
        }
        share.wants_turn.store(true, Release);
        if share.is_listed.swap(true, AcqRel) {
            return;
        }
        let mut lists = lock(&self.lists);
        let round = self.round.load(Relaxed);
        if begins {
            // Rounds pass without the connection while its thread has no processor.
            share.waits_since.store(round, Relaxed);
        }
        if share.is_served(round) {
            lists.next.push_back(id);
        } else if share.round.load(Relaxed) == round {
            // Its turn was interrupted.
            lists.current.push_front(id);
        } else {
            lists.new.push_back(id);
        }
        self.waiting.fetch_add(1, Release);
    }

    /// Takes out the connection that is first. [`Self::is_turn`] says whether it has its turn.
    pub(crate) fn pop(&self) -> Option<SocketId> {
        if self.is_empty() {
            return None;
        }
        let mut lists = lock(&self.lists);
        if lists.new.is_empty() && lists.current.is_empty() {
            let Lists { current, next, .. } = &mut *lists;
            core::mem::swap(current, next);
            self.round.fetch_add(1, Relaxed);
        }
        let id = lists.new.pop_front().or_else(|| lists.current.pop_front())?;
        self.waiting.fetch_sub(1, Release);
        Some(id)
    }

    /// Whether a connection that was taken out has its turn. It has none if it wants none, or if it
    /// has had its turn of this round meanwhile; then it waits for the next.
    pub(crate) fn is_turn(&self, id: SocketId, share: &Share) -> bool {
        // Before the look at what it wants: whoever wants a turn later lists the connection again.
        share.is_listed.swap(false, AcqRel);
        if !share.wants_turn.load(Acquire) {
            return false;
        }
        let is_served = share.is_served(self.round.load(Relaxed)) && !self.is_empty();
        if is_served {
            self.wait(id, share);
        } else if share.wants_turn.swap(false, AcqRel) {
            self.count_wait(share);
        }
        !is_served
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FRAME: u32 = 60_000;

    /// A shard with connections that always have something to send.
    struct Bulk {
        turns: Turns,
        shares: Vec<Share>,
        /// Frames that may still leave before the next look at what arrived.
        budget: u32,
        /// Who sent each frame, and how much.
        sent: Vec<(usize, u32)>,
    }

    impl Bulk {
        fn new(flows: usize) -> Self {
            let shares = (0..flows).map(|_| Share::default()).collect();
            Self { turns: Turns::default(), shares, budget: 0, sent: Vec::new() }
        }

        /// One visit of a connection, whose frames have so many bytes.
        fn visit(&mut self, flow: usize, frame: u32) {
            let share = &self.shares[flow];
            while self.budget > 0 && self.turns.may_send(share) {
                self.turns.charge(share, frame);
                self.budget -= 1;
                self.sent.push((flow, frame));
            }
            self.turns.wait(SocketId(flow as u64), share);
        }

        /// One poll: `acked` are visited first, then those who have their turn.
        fn poll(&mut self, acked: impl IntoIterator<Item = usize>, frame: impl Fn(usize) -> u32) {
            self.budget = 128;
            for flow in acked {
                self.visit(flow, frame(flow));
            }
            while self.budget > 0
                && let Some(id) = self.turns.pop()
            {
                let flow = id.0 as usize;
                if self.turns.is_turn(id, &self.shares[flow]) {
                    self.visit(flow, frame(flow));
                }
            }
        }
    }

    #[test]
    fn between_two_turns_of_one_nobody_sends_more_than_two_shares() {
        for flows in [2, 10, 100, 300] {
            let mut bulk = Bulk::new(flows);
            // A third of the connections has acknowledgements before every poll, and frames of one
            // segment besides.
            let frame = |flow: usize| if flow.is_multiple_of(3) { 1448 } else { FRAME };
            (0..flows).for_each(|flow| bulk.visit(flow, frame(flow)));
            for _ in 0..20 * flows {
                bulk.poll((0..flows).filter(|flow| flow % 3 == 0), frame);
            }
            let mut totals = vec![0_u64; flows];
            let mut at_last_turn = vec![totals.clone(); flows];
            let bound = 2 * QUANTUM as u64 + u64::from(FRAME);
            for &(flow, bytes) in &bulk.sent {
                let before = &at_last_turn[flow];
                let most = totals.iter().zip(before).map(|(now, then)| now - then).max();
                assert!(most <= Some(bound), "{flows} flows: {most:?} bytes between two turns");
                totals[flow] += u64::from(bytes);
                at_last_turn[flow].clone_from(&totals);
            }
            let (least, most) = (totals.iter().min(), totals.iter().max());
            let gap = most.zip(least).map(|(most, least)| most - least);
            assert!(gap <= Some(bound), "{flows} flows: {gap:?} bytes between the ends");
            let waited = bulk.turns.longest_wait();
            assert!((1..=2).contains(&waited), "{flows} flows: {waited} rounds");
        }
    }

    #[test]
    fn one_that_had_no_turn_in_a_round_goes_first_and_only_once() {
        let mut bulk = Bulk::new(20);
        (0..19).for_each(|flow| bulk.visit(flow, FRAME));
        bulk.poll([], |_| FRAME);
        // What came with the poll before has spent the budget.
        bulk.visit(19, 100);
        assert_eq!(bulk.turns.pop(), Some(SocketId(19)));
        assert!(bulk.turns.is_turn(SocketId(19), &bulk.shares[19]));
        assert!(bulk.turns.may_send(&bulk.shares[19]));
        bulk.turns.charge(&bulk.shares[19], 100);
        bulk.shares[19].forgo_turn();
        assert!(!bulk.turns.may_send(&bulk.shares[19]), "it had its turn");
        bulk.visit(19, 100);
        let order: Vec<_> = core::iter::from_fn(|| bulk.turns.pop()).collect();
        let place = order.iter().position(|id| id.0 == 19);
        assert!(place > Some(0), "it is not new any more: {order:?}");
    }

    #[test]
    fn who_is_alone_sends_without_end_and_pays_one_turn_at_most() {
        let bulk = Bulk::new(2);
        let [alone, other] = &bulk.shares[..] else { panic!("two") };
        for _ in 0..1000 {
            assert!(bulk.turns.may_send(alone));
            bulk.turns.charge(alone, FRAME);
        }
        bulk.turns.wait(SocketId(1), other);
        assert!(!bulk.turns.may_send(alone), "it was served in this round");
        bulk.turns.wait(SocketId(0), alone);
        assert_eq!(bulk.turns.pop(), Some(SocketId(1)));
        assert!(bulk.turns.is_turn(SocketId(1), other));
        bulk.turns.charge(other, QUANTUM as u32);
        bulk.turns.wait(SocketId(1), other);
        assert_eq!(bulk.turns.pop(), Some(SocketId(0)));
        assert!(bulk.turns.is_turn(SocketId(0), alone));
        assert!(bulk.turns.may_send(alone), "everybody sends in every round");
        bulk.turns.charge(alone, FRAME);
        assert!(!bulk.turns.may_send(alone), "one frame: the rest was sent before");
    }

    #[test]
    fn an_interrupted_turn_goes_on_before_others_and_one_that_is_over_does_not() {
        let bulk = Bulk::new(3);
        for (index, share) in bulk.shares.iter().enumerate() {
            bulk.turns.wait(SocketId(index as u64), share);
        }
        let next = || {
            let id = bulk.turns.pop().expect("somebody waits");
            let share = &bulk.shares[id.0 as usize];
            assert!(bulk.turns.is_turn(id, share));
            assert!(bulk.turns.may_send(share));
            (id, share)
        };
        let (id, first) = next();
        bulk.turns.charge(first, QUANTUM as u32);
        bulk.turns.wait(id, first);
        let (id, second) = next();
        bulk.turns.charge(second, 1);
        // The shard has sent enough.
        bulk.turns.wait(id, second);
        assert_eq!(next().0, SocketId(2));
        assert_eq!(next().0, SocketId(1));
        assert_eq!(next().0, SocketId(0));
    }

    #[test]
    fn a_turn_that_is_not_wanted_any_more_is_skipped_and_no_place_is_doubled() {
        let bulk = Bulk::new(1);
        let share = &bulk.shares[0];
        for _ in 0..3 {
            bulk.turns.wait(SocketId(0), share);
            share.forgo_turn();
        }
        assert_eq!(bulk.turns.pop(), Some(SocketId(0)));
        assert!(!bulk.turns.is_turn(SocketId(0), share));
        assert_eq!(bulk.turns.pop(), None);
        assert!(bulk.turns.is_empty());
    }
}
