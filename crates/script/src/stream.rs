//! The bytes that connections of a script carry: a function of stream and position, so that whoever
//! receives knows what each byte must be.

use bytes::Bytes;

/// The bytes of one stream. Cost: a few multiplications for each byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream(u64);

/// The bytes that the peer sends in a connection: what is read is compared with them.
pub(crate) const PEER_BYTES: Stream = Stream(1);

/// The bytes that the application writes to a descriptor: payloads are compared with them.
pub(crate) const WRITTEN_BYTES: Stream = Stream(2);

impl Stream {
    /// The byte at a position: bits of a product, mixed so that neither a shift nor another stream
    /// fits.
    fn byte(self, position: u64) -> u8 {
        let spread = (position ^ self.0.rotate_right(8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((spread ^ (spread >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 56) as u8
    }

    /// The `len` bytes from a position on.
    pub(crate) fn bytes(self, from: u64, len: usize) -> Bytes {
        (from..).take(len).map(|position| self.byte(position)).collect()
    }

    /// The index in `bytes` of the first that is not what the stream has from a position on.
    pub(crate) fn mismatch(self, from: u64, bytes: &[u8]) -> Option<usize> {
        bytes.iter().zip(from..).position(|(byte, position)| *byte != self.byte(position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_a_stream_fits_and_neither_a_shift_nor_another_stream_does() {
        let stream = PEER_BYTES;
        let mut whole = stream.bytes(0, 20_000).to_vec();
        for (start, end) in [(0, 1), (0, 20_000), (7, 30), (9_999, 10_020)] {
            assert_eq!(stream.mismatch(start as u64, &whole[start..end]), None);
        }
        for shift in 1..19_900 {
            assert!(stream.mismatch(0, &whole[shift..shift + 20]).is_some(), "shift {shift}");
        }
        assert!(WRITTEN_BYTES.mismatch(0, &whole[..20]).is_some());
        whole[33] ^= 1;
        assert_eq!(stream.mismatch(5, &whole[5..]), Some(28));
    }
}
