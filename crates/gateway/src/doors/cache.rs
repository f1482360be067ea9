//! Addresses of names that were looked up.
//!
//! Cost: O(1) for each look. It has two generations: a name that is not looked for while
//! [`GENERATION`] others are is forgotten.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names after which the oldest are forgotten. There are at most twice as many.
const GENERATION: usize = 2048;
/// The longest that addresses hold, whatever the server says.
const LONGEST: Duration = Duration::from_secs(3600);
/// The shortest, so that those who come together ask once.
const SHORTEST: Duration = Duration::from_secs(1);
/// How long it holds that a name has no address.
const NOTHING: Duration = Duration::from_secs(10);

/// What is known of names.
#[derive(Debug, Default)]
pub(super) struct Cache {
    recent: HashMap<Arc<str>, Entry>,
    older: HashMap<Arc<str>, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    /// None if the name has no address.
    addresses: Arc<[IpAddr]>,
    until: Instant,
}

impl Cache {
    /// The addresses of a name, which may be none; `None` if nothing is known.
    pub(super) fn get(&mut self, name: &Arc<str>, now: Instant) -> Option<Arc<[IpAddr]>> {
        if let Some(entry) = self.recent.get(name) {
            return (entry.until > now).then(|| entry.addresses.clone());
        }
        let entry = self.older.remove(name).filter(|entry| entry.until > now)?;
        self.insert(name.clone(), entry.clone());
        Some(entry.addresses)
    }

    /// Notes addresses, and how long they hold.
    pub(super) fn put(
        &mut self,
        name: Arc<str>,
        addresses: Arc<[IpAddr]>,
        ttl: Duration,
        now: Instant,
    ) {
        let ttl = if addresses.is_empty() { NOTHING } else { ttl.clamp(SHORTEST, LONGEST) };
        self.insert(name, Entry { addresses, until: now + ttl });
    }

    fn insert(&mut self, name: Arc<str>, entry: Entry) {
        if self.recent.insert(name, entry).is_none() && self.recent.len() > GENERATION {
            self.older = std::mem::take(&mut self.recent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_hold_for_their_time_within_bounds_and_names_are_bounded() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        let second = Duration::from_secs(1);
        let address: Arc<[IpAddr]> = Arc::new([IpAddr::from([192, 0, 2, 1])]);
        let name = |text: &str| Arc::<str>::from(text);
        for (text, ttl, holds) in [("zero", 0, 1), ("year", 31_536_000, 3600), ("minute", 60, 60)] {
            cache.put(name(text), address.clone(), second * ttl, start);
            let at = |cache: &mut Cache, time| cache.get(&name(text), start + time);
            assert!(at(&mut cache, second * holds - second / 2).is_some(), "{text}");
            assert!(at(&mut cache, second * holds).is_none(), "{text}");
        }
        cache.put(name("none"), Arc::new([]), second * 3600, start);
        assert_eq!(cache.get(&name("none"), start).as_deref(), Some(&[][..]));
        assert!(cache.get(&name("none"), start + NOTHING).is_none());
        for number in 0..10 * GENERATION {
            cache.put(name(&number.to_string()), address.clone(), second * 60, start);
            assert!(cache.recent.len() + cache.older.len() <= 2 * GENERATION + 1);
        }
        assert!(cache.get(&name("0"), start).is_none());
        assert!(cache.get(&name(&(10 * GENERATION - 1).to_string()), start).is_some());
    }
}
