//! Who goes on when the others had their turn.

use crate::token::Slot;
use std::collections::{HashSet, VecDeque};

/// Bytes that flows in their turns move before new events are looked at. At 10 Gbit/s it takes
/// 0.4 ms, for which a datagram or a flow that sends little waits at the most.
const ROUND: u64 = 512 << 10;
/// Times that the stack is driven before bulk flows have their turns. More of each flow is there
/// then, which leaves in one call.
pub(crate) const LOOKS: usize = 4;
/// A visit that moves so many bytes is that of a bulk flow.
pub(crate) const BULK: u64 = 64 << 10;

/// What is served in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Turn {
    Flow(usize),
    Guests,
    Dhcp,
    Dhcp6,
    Published(usize),
    Mapping(Slot),
    Pings,
    Echo(Slot),
    Crossing(Slot),
}

/// Those that wait for their turn, each once. They have it in rounds: everybody who waits when a
/// round begins is next once, until enough was moved.
///
/// Cost: O(1) to wait and to be next. A visit that leaves nothing to do costs nothing here.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    order: VecDeque<Turn>,
    waiting: HashSet<Turn>,
    /// Turns that are left of this round.
    left: usize,
    /// Bytes that flows have moved since the round began.
    moved: u64,
}

impl Turns {
    /// Puts one at the end, unless it waits already.
    pub(crate) fn push(&mut self, turn: Turn) {
        if self.waiting.insert(turn) {
            self.order.push_back(turn);
        }
    }

    pub(crate) fn begin_round(&mut self) {
        (self.left, self.moved) = (self.order.len(), 0);
    }

    /// Counts what a flow has moved, bytes.
    pub(crate) fn add_moved(&mut self, bytes: u64) {
        self.moved += bytes;
    }

    /// Who has its turn now; `None` at the end of the round.
    pub(crate) fn next_in_round(&mut self) -> Option<Turn> {
        if self.left == 0 || self.moved >= ROUND {
            return None;
        }
        self.left -= 1;
        let turn = self.order.pop_front()?;
        self.waiting.remove(&turn);
        Some(turn)
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_has_one_turn_in_a_round() {
        let mut turns = Turns::default();
        turns.push(Turn::Guests);
        turns.push(Turn::Flow(1));
        turns.push(Turn::Guests);
        assert_eq!(turns.len(), 2);
        turns.begin_round();
        assert_eq!(turns.next_in_round(), Some(Turn::Guests));
        turns.push(Turn::Guests);
        assert_eq!(turns.next_in_round(), Some(Turn::Flow(1)));
        assert_eq!(turns.next_in_round(), None);
        turns.begin_round();
        assert_eq!(turns.next_in_round(), Some(Turn::Guests));
        assert!(turns.is_empty());
    }

    #[test]
    fn a_round_ends_when_enough_was_moved_and_the_next_one_goes_on_there() {
        let mut turns = Turns::default();
        (1..=3).for_each(|flow| turns.push(Turn::Flow(flow)));
        turns.begin_round();
        turns.add_moved(ROUND - 1);
        assert_eq!(turns.next_in_round(), Some(Turn::Flow(1)));
        turns.add_moved(1);
        assert_eq!(turns.next_in_round(), None);
        turns.begin_round();
        assert_eq!(turns.next_in_round(), Some(Turn::Flow(2)));
    }
}
