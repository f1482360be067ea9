//! Hashing of what a peer can choose.

use core::hash::BuildHasher;
use siphasher::sip::SipHasher13;

/// SipHash-1-3 under a key that nobody outside this host knows.
#[derive(Clone, Copy)]
pub(crate) struct Keyed(u64, u64);

impl Keyed {
    /// The key that belongs to a random seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed, seed.rotate_left(32) ^ 0x6a09_e667_f3bc_c908)
    }
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

impl core::fmt::Debug for Keyed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keyed")
    }
}
