//! The bytes that large flows carry: one page that repeats, so that writing is a slice of it and
//! checking a comparison.

use bytes::Bytes;
use std::sync::OnceLock;

use crate::pattern::Pattern;

/// A prime, so that no segment size divides it: what is missing or doubled does not match.
pub(super) const PERIOD: usize = 65_521;

/// Most bytes of one slice.
pub(super) const LONGEST: usize = PERIODS * PERIOD;

const PERIODS: usize = 5;

fn page() -> &'static Bytes {
    static PAGE: OnceLock<Bytes> = OnceLock::new();
    PAGE.get_or_init(|| {
        let mut period = vec![0; PERIOD];
        Pattern::new(0x6e65_6170).fill(0, &mut period);
        period.repeat(PERIODS + 1).into()
    })
}

/// The bytes of a stream from `at` on, at most [`LONGEST`] of them.
pub(crate) fn slice(at: u64, len: usize) -> Bytes {
    let start = (at % PERIOD as u64) as usize;
    page().slice(start..start + len.min(LONGEST))
}

/// Whether `data` is what the stream has from `at` on.
pub(super) fn matches(mut at: u64, mut data: &[u8]) -> bool {
    while !data.is_empty() {
        let start = (at % PERIOD as u64) as usize;
        let len = data.len().min(PERIOD);
        if data[..len] != page()[start..start + len] {
            return false;
        }
        at += len as u64;
        data = &data[len..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_slice_matches_only_where_it_is_from() {
        for (at, len) in [(0, 10), (65_500, 100), (1_000_000_007, LONGEST)] {
            let data = slice(at, len);
            assert!(data.len() == len && matches(at, &data));
            assert!(!matches(at + 1460, &data) && !matches(at + 1, &data));
        }
        let long: Vec<u8> = (0..5).flat_map(|i| slice(7 + i * 50_000, 50_000)).collect();
        assert!(matches(7, &long));
    }
}
