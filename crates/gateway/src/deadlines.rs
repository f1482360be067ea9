//! Deadlines of what is in tables, each not before those that were set earlier.
//!
//! Cost: O(1) for each deadline. One whose entry is over earlier is dropped as soon as it is the
//! first, so that nothing wakes up for it.

use crate::token::Slot;
use std::collections::VecDeque;
use std::time::Instant;

/// Deadlines, in the order in which they were set.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(VecDeque<(Instant, Slot)>);

impl Deadlines {
    pub(crate) fn set(&mut self, due: Instant, slot: Slot) {
        self.0.push_back((due, slot));
    }

    /// Drops the first ones as long as they are over.
    pub(crate) fn drop_first(&mut self, is_over: impl Fn(Slot) -> bool) {
        while self.0.pop_front_if(|(_, slot)| is_over(*slot)).is_some() {}
    }

    /// When the first one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.front().map(|&(due, _)| due)
    }

    /// Takes the first one if it is due.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Slot> {
        self.0.pop_front_if(|(due, _)| *due <= now).map(|(_, slot)| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Generation;
    use std::time::Duration;

    #[test]
    fn the_first_is_taken_when_it_is_due_and_dropped_when_it_is_over() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let slot = |key| Slot { key, generation: Generation::default() };
        let mut deadlines = Deadlines::default();
        (1..=3).for_each(|key| deadlines.set(start + second * key, slot(key as usize)));
        assert_eq!(deadlines.take(start), None);
        deadlines.drop_first(|slot| slot.key != 2);
        assert_eq!(deadlines.next(), Some(start + 2 * second));
        assert_eq!(deadlines.take(start + 2 * second), Some(slot(2)));
        assert_eq!(deadlines.take(start + 2 * second), None);
        assert_eq!(deadlines.next(), Some(start + 3 * second));
    }
}
