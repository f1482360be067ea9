//! Patterns: the bytes of a stream as a function of stream and position, so that a receiver knows
//! what each byte must be.

use crate::rng::mix;

/// Eight bytes per step of the generator.
const WORD: u64 = 8;

/// Bytes of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern(u64);

impl Pattern {
    /// Returns the stream of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5851_f42d_4c95_7f2d))
    }

    fn word(self, index: u64) -> [u8; 8] {
        mix(self.0.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
    }

    /// Writes the bytes from position `at` on.
    pub fn fill(self, at: u64, out: &mut [u8]) {
        self.walk(at, out.len(), |range, word| out[range].copy_from_slice(word));
    }

    /// Returns the first position in `bytes` that differs from the stream from `at` on.
    pub fn mismatch(self, at: u64, bytes: &[u8]) -> Option<usize> {
        let mut wrong = None;
        self.walk(at, bytes.len(), |range, word| {
            if wrong.is_none() && bytes[range.clone()] != *word {
                let differs = |i: &usize| bytes[range.start + i] != word[*i];
                wrong = (0..word.len()).find(differs).map(|i| range.start + i);
            }
        });
        wrong
    }

    /// Visits the words that cover `len` bytes from `at`, cut at both ends.
    fn walk(self, at: u64, len: usize, mut visit: impl FnMut(core::ops::Range<usize>, &[u8])) {
        let mut done = 0;
        while done < len {
            let position = at + done as u64;
            let skip = (position % WORD) as usize;
            let word = self.word(position / WORD);
            let take = (word.len() - skip).min(len - done);
            visit(done..done + take, &word[skip..skip + take]);
            done += take;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_a_stream_fits_and_any_shift_does_not() {
        let pattern = Pattern::new(3);
        let mut whole = [0; 100];
        pattern.fill(0, &mut whole);
        for start in 0..40 {
            for end in start..60 {
                assert_eq!(pattern.mismatch(start as u64, &whole[start..end]), None);
            }
            assert!(pattern.mismatch(start as u64 + 1, &whole[start..start + 20]).is_some());
        }
        whole[33] ^= 1;
        assert_eq!(pattern.mismatch(5, &whole[5..]), Some(28));
    }
}
