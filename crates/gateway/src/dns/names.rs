//! Addresses that stand for names.
//!
//! Cost: O(1) per look, O(log n) for a new name, and at most [`MOST_NAMES`] names, each with its
//! text and about 100 bytes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// First address of the range: 198.18.0.0/15, which is for tests of networks (RFC 2544) and is
/// routed nowhere.
const FIRST: u32 = u32::from_be_bytes([198, 18, 0, 0]);
/// Addresses of the range.
const RANGE: u32 = 1 << 17;
/// Most names at the same time.
const MOST_NAMES: usize = 1 << 14;

/// A guest may keep an address for so long.
pub(crate) const TTL: Duration = Duration::from_secs(10);
/// An address that was not looked at for so long may stand for another name. Programs keep
/// addresses longer than the TTL says.
const KEPT: Duration = Duration::from_secs(600);

/// A bounded table of names, and the addresses that stand for them.
#[derive(Debug, Default)]
pub struct Names {
    of_name: HashMap<Arc<str>, usize>,
    entries: Vec<Entry>,
    /// Each entry once, by the time when it was last looked at, as it was when it came here: the
    /// earliest on top.
    ages: BinaryHeap<Reverse<(Instant, usize)>>,
}

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    last_used: Instant,
}

impl Names {
    /// Whether an address is of the range whose addresses stand for names.
    pub fn is_stand_in(address: IpAddr) -> bool {
        index(address).is_some()
    }

    /// The address that stands for a name. `None` if there are too many names that are in use.
    pub fn address(&mut self, name: &str, now: Instant) -> Option<Ipv4Addr> {
        if let Some(&index) = self.of_name.get(name) {
            self.entries[index].last_used = now;
            return Some(stand_in(index));
        }
        let name: Arc<str> = name.into();
        let entry = Entry { name: name.clone(), last_used: now };
        let index = if self.entries.len() < MOST_NAMES {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let index = self.unused(now)?;
            let old = std::mem::replace(&mut self.entries[index], entry);
            self.of_name.remove(&old.name);
            index
        };
        self.of_name.insert(name, index);
        self.ages.push(Reverse((now, index)));
        Some(stand_in(index))
    }

    /// The name that an address stands for, which is in use then.
    pub fn name(&mut self, address: IpAddr, now: Instant) -> Option<Arc<str>> {
        let entry = self.entries.get_mut(index(address)?)?;
        entry.last_used = now;
        Some(entry.name.clone())
    }

    /// Takes out an entry that is not in use. One that was looked at goes back with its new time,
    /// so that it costs a step here once in [`KEPT`] at most.
    fn unused(&mut self, now: Instant) -> Option<usize> {
        let is_kept = |last_used: Instant| now.saturating_duration_since(last_used) < KEPT;
        loop {
            // No entry was last used before the time that the first one came with.
            let &Reverse((known, _)) = self.ages.peek()?;
            if is_kept(known) {
                return None;
            }
            let Reverse((_, index)) = self.ages.pop()?;
            let last_used = self.entries[index].last_used;
            if !is_kept(last_used) {
                return Some(index);
            }
            self.ages.push(Reverse((last_used, index)));
        }
    }
}

fn stand_in(index: usize) -> Ipv4Addr {
    let index = u32::try_from(index).expect("the table is smaller than the range");
    // The first address of a network is that of no host.
    Ipv4Addr::from(FIRST + 1 + index)
}

/// The place of the name that an address may stand for.
fn index(address: IpAddr) -> Option<usize> {
    let IpAddr::V4(v4) = address else { return None };
    let offset = u32::from(v4).checked_sub(FIRST).filter(|&offset| offset < RANGE)?;
    // An address without a place is of the range, and stands for nothing.
    Some(offset.checked_sub(1).map_or(usize::MAX, |index| index as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stands_for_its_name_as_long_as_it_is_in_use() {
        let (mut names, start) = (Names::default(), Instant::now());
        let first = names.address("first.example", start).expect("room");
        assert_eq!(first, Ipv4Addr::new(198, 18, 0, 1));
        assert_eq!(names.address("first.example", start), Some(first));
        assert_eq!(names.name(first.into(), start).as_deref(), Some("first.example"));
        assert_eq!(names.name(Ipv4Addr::new(198, 18, 0, 2).into(), start), None);
        assert_eq!(names.name(Ipv4Addr::new(198, 18, 0, 0).into(), start), None);
        for count in 1..MOST_NAMES {
            names.address(&format!("{count}.example"), start).expect("room");
        }
        assert_eq!(names.address("beyond.example", start), None, "all are in use");
        let later = start + KEPT;
        assert!(names.name(first.into(), later).is_some());
        let reused = names.address("beyond.example", later).expect("some are not in use");
        assert_ne!(reused, first, "this one is");
        assert_eq!(names.name(reused.into(), later).as_deref(), Some("beyond.example"));
        assert_eq!(names.of_name.len(), MOST_NAMES, "the name that it stood for is forgotten");
        assert_eq!(names.ages.len(), MOST_NAMES);
    }

    #[test]
    fn addresses_that_programs_have_connected_to_are_free_again_in_time() {
        let (mut names, start) = (Names::default(), Instant::now());
        let after = |millis| start + Duration::from_millis(millis);
        for count in 0..MOST_NAMES - 1 {
            let address = names.address(&format!("{count}.example"), start).expect("room");
            assert!(names.name(address.into(), after(10)).is_some());
        }
        let late = names.address("late.example", after(500_000)).expect("room");
        let later = after(700_000);
        for count in 1..MOST_NAMES {
            let reused = names.address(&format!("{count}.new.example"), later);
            assert!(reused.is_some_and(|reused| reused != late), "{count} are in use again");
        }
        assert_eq!(names.address("beyond.example", later), None, "all are in use again");
        let end = after(500_000) + KEPT;
        assert_eq!(names.address("beyond.example", end), Some(late));
        assert_eq!((names.of_name.len(), names.ages.len()), (MOST_NAMES, MOST_NAMES));
    }

    #[test]
    fn the_range_ends_where_it_ends() {
        let is_stand_in = |text: &str| Names::is_stand_in(text.parse().expect("an address"));
        assert!(is_stand_in("198.18.0.0") && is_stand_in("198.19.255.255"));
        assert!(!is_stand_in("198.17.255.255") && !is_stand_in("198.20.0.0"));
        assert!(!is_stand_in("::ffff:198.18.0.1"));
    }
}
