//! TCP segments as values: header fields, options and payload, not their encoding.
//!
//! The codec is `neap_stack::wire::tcp`.

use crate::seq::SeqNumber;
use bytes::Bytes;
use smallvec::SmallVec;

bitflags::bitflags! {
    /// Control bits of the header (RFC 9293 section 3.1, RFC 3168), with their wire values.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// The sender has no more data.
        const FIN = 0x01;
        /// Synchronise sequence numbers.
        const SYN = 0x02;
        /// Reset the connection.
        const RST = 0x04;
        /// Push: deliver without waiting for more.
        const PSH = 0x08;
        /// The acknowledgment field is significant.
        const ACK = 0x10;
        /// The urgent pointer is significant.
        const URG = 0x20;
        /// ECN echo.
        const ECE = 0x40;
        /// Congestion window reduced.
        const CWR = 0x80;
    }
}

/// ECN codepoint of an IP header (RFC 3168 section 5), with its wire value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct = 0,
    /// ECN-capable, ECT(1).
    Ect1 = 1,
    /// ECN-capable, ECT(0).
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

/// A half-open range of sequence numbers that arrived: `left..right` (RFC 2018).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// First sequence number of the block.
    pub left: SeqNumber,
    /// The sequence number just behind the block.
    pub right: SeqNumber,
}

/// The timestamp option (RFC 7323 section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// `TSval`: the sender's clock.
    pub value: u32,
    /// `TSecr`: the echoed clock of the receiver.
    pub echo: u32,
}

/// SACK blocks of one segment. The option space has room for four at most.
pub type SackBlocks = SmallVec<[SackBlock; 4]>;

/// Options of a segment. Absent options are `None`, `false` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size in bytes (RFC 9293 section 3.7.1); SYN only.
    pub mss: Option<u16>,
    /// Shift of the window (RFC 7323 section 2); SYN only.
    pub window_scale: Option<u8>,
    /// Whether SACK may be used (RFC 2018); SYN only.
    pub sack_permitted: bool,
    /// Timestamps (RFC 7323).
    pub timestamps: Option<Timestamps>,
    /// SACK or DSACK blocks (RFC 2018, RFC 2883).
    pub sack: SackBlocks,
}

impl Options {
    /// Returns the bytes that these options take in the header, padded as Linux pads them: every
    /// option on a four-byte boundary.
    pub fn wire_len(&self) -> usize {
        let mut len = 0;
        if self.mss.is_some() {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 4;
        }
        if self.timestamps.is_some() {
            len += 12;
        } else if self.sack_permitted {
            len += 4;
        }
        if !self.sack.is_empty() {
            len += 4 + 8 * self.sack.len();
        }
        len
    }
}

/// Payload of a segment, as slices of shared pages. Two slices are enough for a super-frame that
/// spans a page border.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    chunks: SmallVec<[Bytes; 2]>,
    len: u32,
}

impl Payload {
    /// Returns an empty payload.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a slice. Empty slices are left out.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.len += u32::try_from(chunk.len()).expect("a payload is under 4 GiB");
            self.chunks.push(chunk);
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the slices in order.
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// Takes the slices out.
    pub fn take_chunks(&mut self) -> SmallVec<[Bytes; 2]> {
        self.len = 0;
        core::mem::take(&mut self.chunks)
    }

    /// Removes the first `bytes` bytes (at most all).
    pub fn advance(&mut self, bytes: u32) {
        let mut left = bytes.min(self.len);
        self.len -= left;
        while left > 0 {
            let first = &mut self.chunks[0];
            let first_len = first.len() as u32;
            if first_len <= left {
                left -= first_len;
                self.chunks.remove(0);
            } else {
                bytes::Buf::advance(first, left as usize);
                left = 0;
            }
        }
    }

    /// Returns the bytes `start..start + len` as slices of the same pages, clamped to what is
    /// there.
    #[must_use]
    pub fn slice(&self, start: u32, len: u32) -> Self {
        let (mut skip, mut want) = (start as usize, len as usize);
        let mut part = Self::new();
        for chunk in &self.chunks {
            if want == 0 {
                break;
            }
            if skip >= chunk.len() {
                skip -= chunk.len();
                continue;
            }
            let take = want.min(chunk.len() - skip);
            part.push(chunk.slice(skip..skip + take));
            want -= take;
            skip = 0;
        }
        part
    }

    /// Cuts at `at` (clamped): keeps the bytes before it and returns the others.
    #[must_use]
    pub fn split_off(&mut self, at: u32) -> Self {
        let rest = self.slice(at, u32::MAX);
        self.truncate(at);
        rest
    }

    /// Keeps the first `bytes` bytes (at most all).
    pub fn truncate(&mut self, bytes: u32) {
        let mut keep = bytes.min(self.len);
        self.len = keep;
        let mut used = 0;
        for chunk in &mut self.chunks {
            if keep == 0 {
                break;
            }
            let take = keep.min(chunk.len() as u32);
            chunk.truncate(take as usize);
            keep -= take;
            used += 1;
        }
        self.chunks.truncate(used);
    }
}

impl From<Bytes> for Payload {
    fn from(chunk: Bytes) -> Self {
        let mut payload = Self::new();
        payload.push(chunk);
        payload
    }
}

/// One TCP segment, or a super-segment (TSO, GRO) of pieces with `gso_size` bytes each.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// Sequence number of the first byte, or of the SYN.
    pub seq: SeqNumber,
    /// Next sequence number that the sender expects; meaningful with [`Flags::ACK`].
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: Flags,
    /// Window field as on the wire, not scaled.
    pub window: u16,
    /// Urgent pointer as on the wire.
    pub urgent: u16,
    /// Options.
    pub options: Options,
    /// Data.
    pub payload: Payload,
    /// Payload bytes of each wire segment of a super-segment; 0 for an ordinary segment.
    pub gso_size: u16,
    /// ECN codepoint of the IP packet.
    pub ecn: Ecn,
}

impl Segment {
    /// Returns how many sequence numbers the segment takes: payload, SYN and FIN.
    pub fn seq_len(&self) -> u32 {
        self.payload.len()
            + u32::from(self.flags.contains(Flags::SYN))
            + u32::from(self.flags.contains(Flags::FIN))
    }

    /// Returns the sequence number just behind the segment.
    pub fn end_seq(&self) -> SeqNumber {
        self.seq + self.seq_len()
    }

    /// Returns the number of wire segments, at least one.
    pub fn segments(&self) -> u32 {
        if self.gso_size == 0 {
            1
        } else {
            self.payload.len().div_ceil(u32::from(self.gso_size)).max(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_cut_at_both_ends() {
        let mut payload = Payload::from(Bytes::from_static(b"abc"));
        payload.push(Bytes::from_static(b"defg"));
        payload.advance(2);
        payload.truncate(4);
        assert_eq!(payload.chunks().concat(), b"cdef");
        payload.advance(1);
        assert_eq!(payload.chunks().len(), 1);
        payload.advance(100);
        assert!(payload.is_empty() && payload.chunks().is_empty());
    }

    #[test]
    fn option_space_is_padded() {
        let mut options = Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps::default()),
            ..Options::default()
        };
        assert_eq!(options.wire_len(), 20);
        options = Options { sack_permitted: true, ..Options::default() };
        assert_eq!(options.wire_len(), 4);
    }
}
