//! Timing wheel of one shard: which of many ids is due.
//!
//! Eleven levels of 64 slots cover every `u64` time, so no entry is ever clamped; a bitmap per
//! level finds the first slot in use. An id has at most one entry. Deadlines that move later cost
//! nothing: the entry stays where it is, its owner finds at expiry that it is early, and files the
//! id again. Deadlines that move earlier move the entry.
//!
//! Cost: insert and remove are O(1) with one hash of the id; an entry moves down at most one level
//! per level it was filed above, in total O(1) amortised; `next` reads eleven words. A wheel is 11
//! KiB; an entry is 40 bytes and is recycled, so that memory follows the most ids ever filed at
//! once.

use hashbrown::HashTable;
use neap_tcp::time::{Instant, Nanos};

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = 11;
/// The list of what was due when it was filed.
const OVERDUE: usize = LEVELS * SLOTS;
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    /// The tick at whose start the entry is due.
    due: u64,
    previous: u32,
    next: u32,
    list: u16,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    /// Not later than the earliest `due` of the entries; exact unless entries were removed.
    earliest: u64,
}

const EMPTY: List = List { head: NIL, earliest: u64::MAX };

/// Timing wheel: deadlines by id, in ticks.
///
/// An entry never expires before its deadline, and is late by less than one tick if
/// [`expire`](Self::expire) is called when [`next`](Self::next) says.
#[derive(Debug)]
pub struct Wheel {
    tick: u64,
    /// All ticks up to this one have been expired.
    current: u64,
    occupied: [u64; LEVELS],
    lists: Box<[List; OVERDUE + 1]>,
    entries: Vec<Entry>,
    free: u32,
    /// Places of `entries`, by id.
    by_id: HashTable<u32>,
}

/// Ids come from this host, not from a peer: a multiplicative hash is enough.
fn hash(id: u64) -> u64 {
    (id ^ (id >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26)
}

impl Wheel {
    /// Returns an empty wheel whose deadlines are rounded up to multiples of `tick`, which is at
    /// least a nanosecond: a microsecond for sockets, a millisecond for neighbours.
    pub fn new(tick: Nanos) -> Self {
        Self {
            tick: tick.0.max(1),
            current: 0,
            occupied: [0; LEVELS],
            lists: Box::new([EMPTY; OVERDUE + 1]),
            entries: Vec::new(),
            free: NIL,
            by_id: HashTable::new(),
        }
    }

    /// Files `id` at `at`, unless it is filed at that time or earlier already.
    /// [`Instant::FAR_FUTURE`] files nothing.
    pub fn insert(&mut self, at: Instant, id: u64) {
        if at == Instant::FAR_FUTURE {
            return;
        }
        let due = at.as_nanos().div_ceil(self.tick);
        if let Some(place) = self.find(id) {
            if self.entries[place as usize].due > due {
                self.unlink(place);
                self.entries[place as usize].due = due;
                self.link(place);
            }
            return;
        }
        let place = self.allocate(Entry { id, due, previous: NIL, next: NIL, list: 0 });
        let entries = &self.entries;
        self.by_id.insert_unique(hash(id), place, |&place| hash(entries[place as usize].id));
        self.link(place);
    }

    /// Removes `id`.
    pub fn remove(&mut self, id: u64) {
        if let Some(place) = self.find(id) {
            self.unlink(place);
            self.release(place);
        }
    }

    /// Calls `due` once for each id that is due at `now`. The ids are no longer filed.
    ///
    /// Earlier ticks come first as far as they lie in different slots. Ids of one tick come in an
    /// unspecified order, which is always the same.
    pub fn expire(&mut self, now: Instant, due: &mut impl FnMut(u64)) {
        self.expire_list(OVERDUE, due);
        let now = now.as_nanos() / self.tick;
        while let Some((level, slot)) = self.first_slot() {
            let start = self.slot_start(level, slot);
            if start > now {
                break;
            }
            self.current = start;
            let list = level * SLOTS + slot;
            if level == 0 {
                self.expire_list(list, due);
            } else {
                self.cascade(list, due);
            }
        }
        self.current = self.current.max(now);
    }

    /// Returns when to call [`expire`](Self::expire) next; [`Instant::FAR_FUTURE`] if nothing is
    /// filed.
    ///
    /// It is the tick at which the earliest entry is due, or after a removal possibly an earlier
    /// one. Calling `expire` then always makes it later or expires something.
    pub fn next(&self) -> Instant {
        let tick = if self.lists[OVERDUE].head != NIL {
            self.current
        } else if let Some((level, slot)) = self.first_slot() {
            self.lists[level * SLOTS + slot].earliest
        } else {
            return Instant::FAR_FUTURE;
        };
        Instant::from_nanos(tick.saturating_mul(self.tick))
    }

    /// Returns the number of ids filed.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns whether no id is filed.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    fn find(&self, id: u64) -> Option<u32> {
        self.by_id.find(hash(id), |&place| self.entries[place as usize].id == id).copied()
    }

    /// The slot that comes next. Entries of a level lie in slots behind the current one and share
    /// all higher digits with the current tick, so the lowest level in use comes first.
    fn first_slot(&self) -> Option<(usize, usize)> {
        self.occupied
            .iter()
            .enumerate()
            .find(|(_, occupied)| **occupied != 0)
            .map(|(level, occupied)| (level, occupied.trailing_zeros() as usize))
    }

    fn slot_start(&self, level: usize, slot: usize) -> u64 {
        let shift = BITS * level as u32;
        let above = self.current.checked_shr(shift + BITS).unwrap_or(0);
        (above.checked_shl(shift + BITS).unwrap_or(0)) | ((slot as u64) << shift)
    }

    /// The list for a tick: the level of the highest base-64 digit in which it differs from the
    /// current tick, the slot of that digit.
    fn list_for(&self, due: u64) -> usize {
        if due <= self.current {
            return OVERDUE;
        }
        let level = (63 - (due ^ self.current).leading_zeros()) / BITS;
        let slot = (due >> (BITS * level)) as usize % SLOTS;
        level as usize * SLOTS + slot
    }

    fn link(&mut self, place: u32) {
        let due = self.entries[place as usize].due;
        let list = self.list_for(due);
        let head = self.lists[list].head;
        self.lists[list].head = place;
        self.lists[list].earliest = self.lists[list].earliest.min(due);
        if list != OVERDUE {
            self.occupied[list / SLOTS] |= 1 << (list % SLOTS);
        }
        if head != NIL {
            self.entries[head as usize].previous = place;
        }
        let entry = &mut self.entries[place as usize];
        (entry.previous, entry.next, entry.list) = (NIL, head, list as u16);
    }

    fn unlink(&mut self, place: u32) {
        let Entry { previous, next, list, .. } = self.entries[place as usize];
        if next != NIL {
            self.entries[next as usize].previous = previous;
        }
        if previous != NIL {
            self.entries[previous as usize].next = next;
        } else if next != NIL {
            self.lists[usize::from(list)].head = next;
        } else {
            self.clear(usize::from(list));
        }
    }

    /// Empties a list and returns its first entry.
    fn clear(&mut self, list: usize) -> u32 {
        let head = self.lists[list].head;
        self.lists[list] = EMPTY;
        if list != OVERDUE {
            self.occupied[list / SLOTS] &= !(1 << (list % SLOTS));
        }
        head
    }

    fn expire_list(&mut self, list: usize, due: &mut impl FnMut(u64)) {
        let mut place = self.clear(list);
        while place != NIL {
            let Entry { id, next, .. } = self.entries[place as usize];
            self.release(place);
            due(id);
            place = next;
        }
    }

    /// Files the entries of a slot again, now that its time has begun: they go down, or are due.
    fn cascade(&mut self, list: usize, due: &mut impl FnMut(u64)) {
        let mut place = self.clear(list);
        while place != NIL {
            let next = self.entries[place as usize].next;
            self.link(place);
            place = next;
        }
        self.expire_list(OVERDUE, due);
    }

    fn allocate(&mut self, entry: Entry) -> u32 {
        if self.free == NIL {
            self.entries.push(entry);
            return u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 timers");
        }
        let place = self.free;
        self.free = self.entries[place as usize].next;
        self.entries[place as usize] = entry;
        place
    }

    fn release(&mut self, place: u32) {
        let id = self.entries[place as usize].id;
        if let Ok(occupied) = self.by_id.find_entry(hash(id), |&other| other == place) {
            occupied.remove();
        }
        self.entries[place as usize].next = self.free;
        self.free = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    fn expired(wheel: &mut Wheel, now: Instant) -> Vec<u64> {
        let mut ids = Vec::new();
        wheel.expire(now, &mut |id| ids.push(id));
        ids
    }

    #[test]
    fn an_entry_expires_at_its_tick_and_not_before() {
        let mut wheel = Wheel::new(Nanos::from_millis(1));
        let deadline = at(200) + Nanos(1);
        wheel.insert(deadline, 7);
        assert_eq!(wheel.next(), at(201));
        assert!(expired(&mut wheel, deadline).is_empty());
        assert_eq!(expired(&mut wheel, at(201)), [7]);
        assert_eq!(wheel.next(), Instant::FAR_FUTURE);
        assert!(wheel.is_empty());
    }

    #[test]
    fn an_earlier_time_moves_the_entry_and_a_later_one_does_not() {
        let mut wheel = Wheel::new(Nanos::from_millis(1));
        wheel.insert(at(5000), 1);
        wheel.insert(at(40), 1);
        wheel.insert(at(9000), 1);
        assert_eq!((wheel.len(), wheel.next()), (1, at(40)));
        assert_eq!(expired(&mut wheel, at(40)), [1]);
        assert_eq!(wheel.next(), Instant::FAR_FUTURE);
    }

    #[test]
    fn what_is_due_when_filed_expires_at_the_next_call() {
        let mut wheel = Wheel::new(Nanos::from_millis(1));
        assert!(expired(&mut wheel, at(100)).is_empty());
        wheel.insert(at(100), 1);
        wheel.insert(at(3), 2);
        assert!(wheel.next() <= at(100));
        assert_eq!(expired(&mut wheel, at(100)), [2, 1]);
        assert_eq!(wheel.next(), Instant::FAR_FUTURE);
    }

    #[test]
    fn far_times_and_removal() {
        let mut wheel = Wheel::new(Nanos(1));
        wheel.insert(Instant::FAR_FUTURE, 1);
        assert!(wheel.is_empty());
        wheel.insert(Instant::FAR_FUTURE - Nanos(1), 2);
        wheel.insert(at(7_200_000), 3);
        wheel.remove(3);
        wheel.remove(3);
        assert_eq!((wheel.len(), wheel.next()), (1, Instant::FAR_FUTURE - Nanos(1)));
        assert!(expired(&mut wheel, at(7_200_000)).is_empty());
        assert_eq!(expired(&mut wheel, Instant::FAR_FUTURE), [2]);
    }

    #[test]
    fn places_are_recycled() {
        let mut wheel = Wheel::new(Nanos::from_micros(8));
        for round in 0..100_000u64 {
            let now = Instant::ZERO + Nanos::from_micros(100 * round);
            expired(&mut wheel, now);
            wheel.insert(now + Nanos::from_micros(50 + round % 1000), round);
        }
        assert!(wheel.entries.len() < 16, "{} places", wheel.entries.len());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u64),
        Remove(u64),
        Advance(u64),
        AdvanceToNext,
    }

    fn step() -> impl Strategy<Value = Step> {
        let span = (0u32..44, any::<u64>()).prop_map(|(bits, n)| n & ((1 << bits) - 1));
        prop_oneof![
            4 => (span.clone(), 0u64..20).prop_map(|(after, id)| Step::Insert(after, id)),
            1 => (0u64..20).prop_map(Step::Remove),
            2 => span.prop_map(Step::Advance),
            3 => Just(Step::AdvanceToNext),
        ]
    }

    proptest! {
        /// Against a sorted map: nothing early, nothing later than a tick, `next` never late and
        /// never stuck.
        #[test]
        fn behaves_as_a_sorted_map(steps in prop::collection::vec(step(), 1..200)) {
            const TICK: u64 = 1000;
            let mut wheel = Wheel::new(Nanos(TICK));
            let mut model = BTreeMap::new();
            let mut now = 0u64;
            for step in steps {
                match step {
                    Step::Insert(after, id) => {
                        let due = now + after;
                        wheel.insert(Instant::from_nanos(due), id);
                        let filed = model.entry(id).or_insert(due);
                        // Within one tick, which of two times was kept cannot be told.
                        if due.div_ceil(TICK) < filed.div_ceil(TICK) {
                            *filed = due;
                        }
                        continue;
                    }
                    Step::Remove(id) => {
                        wheel.remove(id);
                        model.remove(&id);
                        continue;
                    }
                    Step::Advance(span) => now += span,
                    Step::AdvanceToNext => {
                        let next = wheel.next();
                        if next == Instant::FAR_FUTURE {
                            prop_assert!(model.is_empty());
                            continue;
                        }
                        let earliest = model.values().min().expect("next says so");
                        prop_assert!(next.as_nanos() <= (earliest.div_ceil(TICK) * TICK).max(now));
                        now = now.max(next.as_nanos());
                    }
                }
                let before = (wheel.next(), wheel.len());
                let ids = expired(&mut wheel, Instant::from_nanos(now));
                if before.0 <= Instant::from_nanos(now) {
                    prop_assert!(wheel.next() > before.0 || wheel.len() < before.1);
                }
                let tick = now / TICK;
                for id in ids {
                    let due = model.remove(&id).expect("each id once");
                    prop_assert!(due <= now, "early");
                }
                prop_assert!(model.values().all(|due| due.div_ceil(TICK) > tick), "late");
                prop_assert_eq!(wheel.len(), model.len());
            }
        }
    }
}
