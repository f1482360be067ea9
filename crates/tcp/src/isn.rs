//! Numbers that an off-path attacker must not guess: initial sequence numbers and timestamp offsets
//! (RFC 6528, RFC 7323 section 5.4).
//!
//! They are keyed hashes of the two ends. Cost: one SipHash of 52 bytes per connection.

use crate::seq::SeqNumber;
use crate::time::Instant;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use siphasher::sip::{SipHasher13, SipHasher24};

/// A keyed hash of the pair of ends and two words.
#[derive(Clone, Copy)]
pub(crate) struct TupleHash {
    key: (u64, u64),
}

impl TupleHash {
    /// A key for `purpose`, from the host's seed. Keys of different purposes are independent.
    pub(crate) fn from_seed(seed: u64, purpose: u64) -> Self {
        let derive = SipHasher13::new_with_keys(seed, purpose);
        Self { key: (derive.hash(&[0]), derive.hash(&[1])) }
    }

    pub(crate) fn hash(&self, local: SocketAddr, remote: SocketAddr, words: [u64; 2]) -> u64 {
        let mut bytes = [0; 52];
        bytes[..16].copy_from_slice(&octets(local));
        bytes[16..32].copy_from_slice(&octets(remote));
        bytes[32..34].copy_from_slice(&local.port().to_be_bytes());
        bytes[34..36].copy_from_slice(&remote.port().to_be_bytes());
        bytes[36..44].copy_from_slice(&words[0].to_be_bytes());
        bytes[44..].copy_from_slice(&words[1].to_be_bytes());
        SipHasher24::new_with_keys(self.key.0, self.key.1).hash(&bytes)
    }
}

impl fmt::Debug for TupleHash {
    /// The key stays secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TupleHash")
    }
}

fn octets(end: SocketAddr) -> [u8; 16] {
    match end.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Secret keys of one host for sequence numbers and timestamps.
#[derive(Clone, Copy, Debug)]
pub struct Secrets {
    sequence: TupleHash,
    timestamp: TupleHash,
}

impl Secrets {
    /// Derives the keys from one random `seed`.
    pub fn from_seed(seed: u64) -> Self {
        Self { sequence: TupleHash::from_seed(seed, 1), timestamp: TupleHash::from_seed(seed, 2) }
    }

    /// Returns the initial sequence number of a connection between two ends (RFC 6528 section 3).
    ///
    /// It is a hash of the ends plus a clock of 64 ns per number, as in Linux, so that a new
    /// connection between the same ends starts behind the old one.
    pub fn isn(&self, now: Instant, local: SocketAddr, remote: SocketAddr) -> SeqNumber {
        let hash = self.sequence.hash(local, remote, [0; 2]) as u32;
        SeqNumber(hash.wrapping_add((now.as_nanos() >> 6) as u32))
    }

    /// Returns the offset that this end adds to its clock in timestamps towards `remote`.
    ///
    /// It is the same for every connection between these ends, so that PAWS holds across
    /// connections. The uptime stays hidden.
    pub fn ts_offset(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        self.timestamp.hash(local, remote, [0; 2]) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Nanos;

    fn end(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn numbers_depend_on_every_part_of_the_tuple_and_on_the_seed() {
        let secrets = Secrets::from_seed(7);
        let (a, b) = (end("10.0.0.1:80"), end("10.0.0.2:4000"));
        let isn = |secrets: Secrets, a, b| secrets.isn(Instant::ZERO, a, b);
        let base = isn(secrets, a, b);
        assert_eq!(isn(secrets, a, b), base);
        for other in ["10.0.0.2:4001", "10.0.0.3:4000", "[fd00::1]:4000"] {
            assert_ne!(isn(secrets, a, end(other)), base);
            assert_ne!(secrets.ts_offset(a, end(other)), secrets.ts_offset(a, b));
        }
        assert_ne!(isn(secrets, b, a), base);
        assert_ne!(isn(Secrets::from_seed(8), a, b), base);
        assert_ne!(secrets.ts_offset(a, b), base.0);
    }

    #[test]
    fn sequence_numbers_move_on_with_time() {
        let secrets = Secrets::from_seed(7);
        let (a, b) = (end("10.0.0.1:80"), end("10.0.0.2:4000"));
        let first = secrets.isn(Instant::ZERO, a, b);
        let second = secrets.isn(Instant::ZERO + Nanos::from_millis(1), a, b);
        assert_eq!(second.bytes_since(first), 1_000_000 / 64);
    }
}
