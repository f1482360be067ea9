//! The receiving NIC: checksums, and joining segments that follow each other.

use super::packet::{Packet, copy, four_tuple};
use bytes::BytesMut;
use neap_stack::device::{Received, RxChecksum};
use neap_stack::frame::Frame;
use neap_stack::gso;
use neap_stack::wire::Protocol;
use neap_stack::wire::checksum::{self, Pseudo};
use neap_stack::wire::tcp::{self, CHECKSUM_AT};
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
pub(super) struct ReceiveOffload {
    /// Verifies checksums, so that the host need not.
    pub(super) verifies: bool,
    /// Joins segments; only those that it has verified.
    pub(super) joins: bool,
}

/// Segments of one flow that follow each other.
struct SegmentRun<'a> {
    first: &'a Frame,
    /// Where the TCP header begins in the headers.
    tcp: usize,
    /// Bytes of payload of each segment but the last.
    size: usize,
    count: usize,
    payload_len: usize,
    /// Flags of the last segment that the whole gets.
    last: u8,
}

impl ReceiveOffload {
    /// Turns packets into what the host receives, in order. Copies each byte once.
    pub(super) fn hand_over<'a>(
        self,
        packets: impl Iterator<Item = &'a Packet> + Clone,
        out: &mut VecDeque<Received>,
    ) {
        let mut rest = packets;
        while let Some(Packet { frame, flipped }) = rest.next() {
            let may_join = self.verifies && self.joins && flipped.is_none();
            let Some(mut run) = may_join.then(|| SegmentRun::begin(frame)).flatten() else {
                out.push_back(self.single(frame, *flipped));
                continue;
            };
            let following = rest.clone();
            while !run.is_over() {
                let mut ahead = rest.clone();
                let Some(next) = ahead.next() else { break };
                if next.flipped.is_some() || !run.take(&next.frame) {
                    break;
                }
                rest = ahead;
            }
            out.push_back(run.finish(following.map(|packet| &packet.frame)));
        }
    }

    /// One packet. A NIC leaves what has a bad checksum to the host.
    fn single(self, frame: &Frame, flipped: Option<u64>) -> Received {
        if self.verifies && flipped.is_none() {
            return Received { data: frame.to_bytes(), gso_size: 0, checksum: RxChecksum::Good };
        }
        let mut finished = copy(frame);
        gso::finish_checksum(&mut finished);
        let mut data = finished.to_bytes();
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

/// Whether the TCP checksum of a packet is right when the NIC has finished it; others have none.
pub(super) fn is_sound(packet: &Frame) -> bool {
    let Some((from, to)) = four_tuple(packet.headers.as_slice()) else { return true };
    let at = if from.is_ipv4() { 20 } else { 40 };
    let Some(pseudo) = Pseudo::of(from.ip(), to.ip(), Protocol::TCP) else { return false };
    let mut finished = copy(packet);
    gso::finish_checksum(&mut finished);
    let Some(header) = finished.headers.as_slice().get(at..) else { return false };
    let mut sum = pseudo.with_len((header.len() + packet.payload.len() as usize) as u32);
    sum.add(header);
    finished.payload.chunks().iter().for_each(|chunk| sum.add(chunk));
    sum.finish() == 0
}

fn sequence(headers: &[u8], tcp: usize) -> u32 {
    let at = tcp + 4;
    u32::from_be_bytes([headers[at], headers[at + 1], headers[at + 2], headers[at + 3]])
}

impl<'a> SegmentRun<'a> {
    /// Begins with a TCP segment that has payload and may be followed.
    fn begin(first: &'a Frame) -> Option<Self> {
        let headers = first.headers.as_slice();
        let tcp = match headers.first()? >> 4 {
            4 if headers.get(9) == Some(&6) => 20,
            6 if headers.get(6) == Some(&6) => 40,
            _ => return None,
        };
        let size = first.payload.len() as usize;
        let flags = headers.get(tcp + FLAGS_AT)?;
        let begins = flags & !Flags::CWR.bits() == Flags::ACK.bits();
        (size > 0 && begins && headers.len() >= tcp + tcp::HEADER_LEN).then_some(Self {
            first,
            tcp,
            size,
            count: 1,
            payload_len: size,
            last: 0,
        })
    }

    fn is_over(&self) -> bool {
        self.last != 0 || self.payload_len < self.count * self.size
    }

    /// Whether `next` continues this; then it is part of it.
    fn take(&mut self, next: &Frame) -> bool {
        let (first, own) = (self.first.headers.as_slice(), next.headers.as_slice());
        let (tcp, len) = (self.tcp, next.payload.len() as usize);
        let fits = len > 0
            && len <= self.size
            && first.len() == own.len()
            && first.len() + self.payload_len + len <= MAX_JOINED;
        if !fits {
            return false;
        }
        // All but lengths, identification, checksums, sequence number and flags must agree.
        let same = |range: core::ops::Range<usize>| first[range.clone()] == own[range];
        let is_same_ip = if tcp == 20 {
            same(0..2) && same(6..10) && same(12..20)
        } else {
            same(0..4) && same(6..40)
        };
        let flags = own[tcp + FLAGS_AT];
        let follows = is_same_ip
            && same(tcp..tcp + 4)
            && same(tcp + 8..tcp + FLAGS_AT)
            && same(tcp + FLAGS_AT + 1..tcp + CHECKSUM_AT)
            && same(tcp + CHECKSUM_AT + 2..own.len())
            && flags & !LAST == Flags::ACK.bits()
            && sequence(own, tcp) == sequence(first, tcp).wrapping_add(self.payload_len as u32);
        if follows {
            self.count += 1;
            self.payload_len += len;
            self.last = flags & LAST;
        }
        follows
    }

    /// The whole; `rest` begins with its second segment.
    fn finish(self, rest: impl Iterator<Item = &'a Frame>) -> Received {
        let Self { first, tcp, size, count, payload_len, last } = self;
        let header_len = first.headers.len();
        let mut data = BytesMut::with_capacity(header_len + payload_len);
        data.extend_from_slice(first.headers.as_slice());
        data[tcp + FLAGS_AT] |= last;
        if tcp == 20 {
            let total = (header_len + payload_len) as u16;
            data[2..4].copy_from_slice(&total.to_be_bytes());
            data[10..12].fill(0);
            let sum = checksum::of(&data[..20]);
            data[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            let len = (header_len - tcp + payload_len) as u16;
            data[4..6].copy_from_slice(&len.to_be_bytes());
        }
        let frames = core::iter::once(first).chain(rest).take(count);
        for chunk in frames.flat_map(|frame| frame.payload.chunks()) {
            data.extend_from_slice(chunk);
        }
        let gso_size = if count == 1 { 0 } else { size as u16 };
        Received { data: data.freeze(), gso_size, checksum: RxChecksum::Good }
    }
}
