//! What is forgotten when it has not been used for long: places of a table, by the time when each
//! is to be looked at. What was used meanwhile is put there again with its new time.
//!
//! Cost: O(log n) each time that one is looked at, which is once per timeout; use costs nothing. A
//! place that was given up before its time stays until then, but there are at most as many of those
//! as others, and [`FEW`] more.

use crate::token::Slot;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// So many places that were given up are of no account.
const FEW: usize = 64;

/// Places, of which the one to be looked at first is on top.
#[derive(Debug, Default)]
pub(crate) struct Ages(BinaryHeap<Reverse<(Instant, Slot)>>);

impl Ages {
    /// Has a place looked at when it is `due`.
    pub(crate) fn set(&mut self, due: Instant, slot: Slot) {
        self.0.push(Reverse((due, slot)));
    }

    /// Forgets places that were given up, if there are more of them than of the `live` ones. O(1)
    /// for each that was set.
    pub(crate) fn drop_gone(&mut self, live: usize, is_live: impl Fn(Slot) -> bool) {
        if self.0.len() > 2 * live + FEW {
            self.0.retain(|Reverse((_, slot))| is_live(*slot));
        }
    }

    /// How many places there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// When the first one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|&Reverse((due, _))| due)
    }

    /// Takes the first one if it is due.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Slot> {
        self.next().filter(|due| *due <= now)?;
        self.0.pop().map(|Reverse((_, slot))| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Generation;
    use std::time::Duration;

    #[test]
    fn the_earliest_is_taken_first_whenever_it_was_set() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let slot = |key| Slot { key, generation: Generation::default() };
        let mut ages = Ages::default();
        for key in [3, 1, 2] {
            ages.set(start + second * key, slot(key as usize));
        }
        assert_eq!((ages.take(start), ages.next()), (None, Some(start + second)));
        let end = start + 2 * second;
        assert_eq!([ages.take(end), ages.take(end)], [Some(slot(1)), Some(slot(2))]);
        assert_eq!((ages.take(end), ages.next()), (None, Some(start + 3 * second)));
    }
}
