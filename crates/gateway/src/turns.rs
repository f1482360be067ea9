//! Who goes on when the others had their turn.

use crate::token::Slot;
use std::collections::{HashSet, VecDeque};

/// Bytes that flows in their turns move before new events are looked at. At 10 Gbit/s it takes
/// 0.4 ms, for which a datagram or a flow that sends little waits at the most.
pub(crate) const ROUND: u64 = 512 << 10;
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

/// Those that wait for their turn, each once.
///
/// Cost: O(1) to wait and to be next. A visit that leaves nothing to do costs nothing here.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    order: VecDeque<Turn>,
    waiting: HashSet<Turn>,
}

impl Turns {
    /// Puts one at the end, unless it waits already.
    pub(crate) fn push(&mut self, turn: Turn) {
        if self.waiting.insert(turn) {
            self.order.push_back(turn);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Turn> {
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
    fn who_waits_has_one_turn_at_a_time() {
        let mut turns = Turns::default();
        turns.push(Turn::Guests);
        turns.push(Turn::Flow(1));
        turns.push(Turn::Guests);
        assert_eq!(turns.len(), 2);
        assert_eq!(turns.pop(), Some(Turn::Guests));
        turns.push(Turn::Guests);
        assert_eq!(turns.pop(), Some(Turn::Flow(1)));
        assert_eq!(turns.pop(), Some(Turn::Guests));
        assert!(turns.is_empty());
    }
}
