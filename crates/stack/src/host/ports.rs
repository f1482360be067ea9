//! Local ports: which are taken, and which one a new connection gets (RFC 6056).

use core::ops::RangeInclusive;
use hashbrown::HashTable;

/// Counters of the double-hash algorithm; a remote's ports cannot be predicted from those of
/// another unless both fall on the same counter and the key is known.
const PERTURBATIONS: usize = 64;

/// How many connections use each local port. O(1) per open and close; 8 bytes per port in use.
#[derive(Debug, Default)]
pub(crate) struct PortUses(HashTable<(u16, u32)>);

impl PortUses {
    fn hash(port: u16) -> u64 {
        // Local ports are not chosen by peers: a multiplication spreads them well enough.
        u64::from(port).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// One more connection uses `port`.
    pub(crate) fn add(&mut self, port: u16) {
        let hash = Self::hash(port);
        self.0
            .entry(hash, |used| used.0 == port, |used| Self::hash(used.0))
            .or_insert((port, 0))
            .into_mut()
            .1 += 1;
    }

    /// One connection less.
    pub(crate) fn remove(&mut self, port: u16) {
        if let Ok(mut entry) = self.0.find_entry(Self::hash(port), |used| used.0 == port) {
            entry.get_mut().1 -= 1;
            if entry.get().1 == 0 {
                entry.remove();
            }
        }
    }

    /// Whether a connection uses `port`.
    pub(crate) fn is_used(&self, port: u16) -> bool {
        self.0.find(Self::hash(port), |used| used.0 == port).is_some()
    }

    /// Ports in use.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Chooses ephemeral ports by the double-hash algorithm (RFC 6056 section 3.3.4), as Linux does.
#[derive(Debug)]
pub(crate) struct Ephemeral {
    range: RangeInclusive<u16>,
    perturbation: [u32; PERTURBATIONS],
}

impl Ephemeral {
    /// Chooses nothing before it has a range; `seed` starts the counters.
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = seed;
        let perturbation = core::array::from_fn(|_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 32) as u32
        });
        // An empty range: no port can be chosen until limits are set.
        Self { range: RangeInclusive::new(1, 0), perturbation }
    }

    /// Chooses within `range` from now on (`net.ipv4.ip_local_port_range`).
    pub(crate) fn set_range(&mut self, range: RangeInclusive<u16>) {
        self.range = range;
    }

    /// The first port that `is_free` for a flow whose remote end and local address hash to `hash`.
    /// O(1) while ports are plenty; tries the whole range before it gives up.
    pub(crate) fn choose(&mut self, hash: u64, is_free: impl Fn(u16) -> bool) -> Option<u16> {
        let (low, high) = (u32::from(*self.range.start()), u32::from(*self.range.end()));
        let count = (high + 1).checked_sub(low).filter(|&count| count > 0)?;
        let perturbation = &mut self.perturbation[(hash >> 58) as usize % PERTURBATIONS];
        let offset = (hash as u32).wrapping_add(*perturbation);
        for tried in 0..count {
            let port = (low + offset.wrapping_add(tried) % count) as u16;
            if is_free(port) {
                *perturbation = perturbation.wrapping_add(tried + 1);
                return Some(port);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(range: RangeInclusive<u16>, seed: u64) -> Ephemeral {
        let mut ephemeral = Ephemeral::new(seed);
        assert_eq!(ephemeral.choose(3, |_| true), None, "no range yet");
        ephemeral.set_range(range);
        ephemeral
    }

    #[test]
    fn uses_are_counted_down_to_nothing() {
        let mut uses = PortUses::default();
        uses.add(80);
        uses.add(80);
        uses.remove(80);
        assert!(uses.is_used(80));
        uses.remove(80);
        uses.remove(80);
        assert!(!uses.is_used(80) && uses.len() == 0);
    }

    #[test]
    fn the_whole_range_is_tried_and_no_more() {
        let mut ephemeral = within(40_000..=40_003, 1);
        let mut taken = Vec::new();
        while let Some(port) = ephemeral.choose(7, |port| !taken.contains(&port)) {
            taken.push(port);
        }
        taken.sort_unstable();
        assert_eq!(taken, [40_000, 40_001, 40_002, 40_003]);
        assert_eq!(within(u16::MAX..=u16::MAX, 1).choose(3, |_| true), Some(u16::MAX));
    }

    #[test]
    fn two_opens_to_one_peer_get_different_ports_even_if_the_first_is_free_again() {
        let mut ephemeral = within(32_768..=60_999, 9);
        assert_ne!(ephemeral.choose(7, |_| true), ephemeral.choose(7, |_| true));
    }
}
