//! The receiving NIC: checksums, and joining segments that follow each other.

use super::direction::Packet;
use bytes::{Bytes, BytesMut};
use neap_stack::device::{Received, RxChecksum};
use neap_stack::frame::Frame;
use neap_stack::gso;
use neap_stack::wire::checksum;
use neap_stack::wire::tcp::CHECKSUM_AT;
use neap_tcp::segment::Flags;
use std::collections::VecDeque;

/// Largest packet that is joined, IP header included.
const MAX_JOINED: usize = 65_535;

/// Flags after which nothing is joined.
const LAST: u8 = Flags::PSH.bits() | Flags::FIN.bits();

/// Where the flags are in a TCP header.
const FLAGS_AT: usize = 13;

/// What a NIC does with what arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receiver {
    /// Verifies checksums, so that the host need not.
    pub(super) verifies: bool,
    /// Joins segments; only those that it has verified.
    pub(super) joins: bool,
}

/// Segments of one flow that follow each other.
struct Joined {
    first: Frame,
    /// Where the TCP header begins.
    tcp: usize,
    /// Payload of each but the last.
    size: usize,
    rest: Vec<Frame>,
    payload_len: usize,
    is_over: bool,
}

impl Receiver {
    /// Turns packets into what the host receives, in order.
    pub(super) fn hand_over(
        self,
        packets: impl Iterator<Item = Packet>,
        out: &mut VecDeque<Received>,
    ) {
        let mut joined: Option<Joined> = None;
        for Packet { frame, flipped } in packets {
            let mut next = Some(frame);
            if let Some(run) = &mut joined {
                next = next.and_then(|frame| run.take(frame, flipped.is_some()));
            }
            let Some(frame) = next else { continue };
            if let Some(run) = joined.take() {
                out.push_back(run.finish());
            }
            if self.verifies && self.joins && flipped.is_none() {
                match Joined::begin(frame) {
                    Ok(run) => joined = Some(run),
                    Err(frame) => out.push_back(self.single(frame, None)),
                }
            } else {
                out.push_back(self.single(frame, flipped));
            }
        }
        out.extend(joined.map(Joined::finish));
    }

    /// One packet. A NIC leaves what has a bad checksum to the host.
    fn single(self, mut frame: Frame, flipped: Option<u64>) -> Received {
        if self.verifies && flipped.is_none() {
            return Received { data: frame.to_bytes(), gso_size: 0, checksum: RxChecksum::Good };
        }
        gso::finish_checksum(&mut frame);
        let mut data = frame.to_bytes();
        if let Some(bit) = flipped {
            let mut bytes = BytesMut::from(data);
            if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
                *byte ^= 1 << (bit % 8);
            }
            data = bytes.freeze();
        }
        Received { data, gso_size: 0, checksum: RxChecksum::Unknown }
    }
}

impl Joined {
    /// Begins with a TCP segment that has payload and may be followed; others come back.
    #[expect(clippy::result_large_err, reason = "the frame itself comes back")]
    fn begin(first: Frame) -> Result<Self, Frame> {
        let headers = first.headers.as_slice();
        let tcp = match headers.first().map(|byte| byte >> 4) {
            Some(4) if headers.get(9) == Some(&6) => 20,
            Some(6) if headers.get(6) == Some(&6) => 40,
            _ => return Err(first),
        };
        let size = first.payload.len() as usize;
        let begins = headers
            .get(tcp + FLAGS_AT)
            .is_some_and(|&flags| flags & !Flags::CWR.bits() == Flags::ACK.bits());
        if size == 0 || !begins {
            return Err(first);
        }
        Ok(Self { first, tcp, size, rest: Vec::new(), payload_len: size, is_over: false })
    }

    /// Takes `next` if it continues this; otherwise it comes back.
    fn take(&mut self, next: Frame, is_damaged: bool) -> Option<Frame> {
        let len = next.payload.len() as usize;
        let fits = !self.is_over
            && !is_damaged
            && len > 0
            && len <= self.size
            && self.first.headers.len() + self.payload_len + len <= MAX_JOINED;
        if !fits || next.headers.as_slice().len() != self.first.headers.as_slice().len() {
            return Some(next);
        }
        let (first, tcp) = (self.first.headers.as_slice(), self.tcp);
        let mut headers = next.headers.clone();
        let own = headers.as_mut_slice();
        let flags = own[tcp + FLAGS_AT];
        let seq = u32::from_be_bytes([own[tcp + 4], own[tcp + 5], own[tcp + 6], own[tcp + 7]]);
        let expected =
            u32::from_be_bytes([first[tcp + 4], first[tcp + 5], first[tcp + 6], first[tcp + 7]])
                .wrapping_add(self.payload_len as u32);
        // All but lengths, identification, checksums, sequence number and flags must agree.
        own[2..6].copy_from_slice(&first[2..6]);
        if tcp == 20 {
            own[10..12].copy_from_slice(&first[10..12]);
        }
        own[tcp + 4..tcp + 8].copy_from_slice(&first[tcp + 4..tcp + 8]);
        own[tcp + FLAGS_AT] = first[tcp + FLAGS_AT];
        let sum = tcp + CHECKSUM_AT;
        own[sum..sum + 2].copy_from_slice(&first[sum..sum + 2]);
        if seq != expected || flags & !LAST != Flags::ACK.bits() || *own != *first {
            return Some(next);
        }
        self.is_over = flags & LAST != 0 || len < self.size;
        self.payload_len += len;
        self.first.headers.as_mut_slice()[tcp + FLAGS_AT] |= flags & LAST;
        self.rest.push(next);
        None
    }

    fn finish(self) -> Received {
        let Self { mut first, tcp, size, rest, payload_len, .. } = self;
        let headers = first.headers.as_mut_slice();
        if tcp == 20 {
            let total = (headers.len() + payload_len) as u16;
            headers[2..4].copy_from_slice(&total.to_be_bytes());
            headers[10..12].fill(0);
            let sum = checksum::of(&headers[..20]);
            headers[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            let len = (headers.len() - tcp + payload_len) as u16;
            headers[4..6].copy_from_slice(&len.to_be_bytes());
        }
        let gso_size = if rest.is_empty() { 0 } else { size as u16 };
        let mut data = BytesMut::with_capacity(first.headers.len() + payload_len);
        data.extend_from_slice(first.headers.as_slice());
        let frames = core::iter::once(&first).chain(&rest);
        for chunk in frames.flat_map(|frame| frame.payload.chunks()) {
            data.extend_from_slice(chunk);
        }
        let data: Bytes = data.freeze();
        Received { data, gso_size, checksum: RxChecksum::Good }
    }
}
