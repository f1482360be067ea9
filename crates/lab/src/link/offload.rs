//! The receiving NIC: checksums, damage, and joining segments that follow each other.

use super::packet::{Packet, copy, four_tuple};
use bytes::BytesMut;
use core::net::IpAddr;
use neap_stack::device::{Received, RxChecksum};
use neap_stack::frame::{Frame, Gso, GsoKind};
use neap_stack::gso;
use neap_stack::wire::checksum::{self, PartialChecksum, Pseudo};
use neap_stack::wire::tcp::{self, CHECKSUM_AT};
use neap_stack::wire::{Protocol, ipv4, ipv6};
use neap_tcp::segment::Flags;
use std::collections::VecDeque;

/// Largest IP packet that is joined, in bytes.
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
pub(super) struct SegmentRun {
    /// Where the IP header begins in the headers.
    ip: usize,
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
                if next.flipped.is_some() || !run.take(frame, &next.frame) {
                    break;
                }
                rest = ahead;
            }
            out.push_back(run.received(frame, following.map(|packet| &packet.frame)));
        }
    }

    /// One packet. A NIC leaves what has a bad checksum to the host.
    fn single(self, frame: &Frame, flipped: Option<u64>) -> Received {
        if self.verifies && flipped.is_none() {
            return Received { data: frame.to_bytes(), gso_size: 0, checksum: RxChecksum::Good };
        }
        let mut finished = copy(frame);
        match flipped {
            Some(bit) => damage(&mut finished, bit),
            None => gso::finish_checksum(&mut finished),
        }
        Received { data: finished.to_bytes(), gso_size: 0, checksum: RxChecksum::Unknown }
    }
}

/// Flips a bit, counted from the end of the link header, of a packet whose checksum was right
/// before. Copies the payload.
pub(super) fn damage(frame: &mut Frame, bit: u64) {
    gso::finish_checksum(frame);
    let at = usize::from(frame.link_len) + (bit / 8) as usize;
    let header_len = frame.headers.len();
    let mask = 1 << (bit % 8);
    if let Some(byte) = frame.headers.as_mut_slice().get_mut(at) {
        *byte ^= mask;
        return;
    }
    let mut payload = BytesMut::from(&*frame.payload.chunks().concat());
    if let Some(byte) = payload.get_mut(at - header_len) {
        *byte ^= mask;
    }
    frame.payload = payload.freeze().into();
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

impl SegmentRun {
    /// Begins with a TCP segment that has payload and may be followed.
    pub(super) fn begin(first: &Frame) -> Option<Self> {
        let headers = first.headers.as_slice();
        let ip = usize::from(first.link_len);
        let packet = headers.get(ip..)?;
        let tcp = ip
            + match packet.first()? {
                0x45 if packet.get(9) == Some(&Protocol::TCP.0) => ipv4::HEADER_LEN,
                version if version >> 4 == 6 && packet.get(6) == Some(&Protocol::TCP.0) => {
                    ipv6::HEADER_LEN
                }
                _ => return None,
            };
        let size = first.payload.len() as usize;
        let flags = headers.get(tcp + FLAGS_AT)?;
        let begins = flags & !Flags::CWR.bits() == Flags::ACK.bits();
        (size > 0 && begins && headers.len() >= tcp + tcp::HEADER_LEN).then_some(Self {
            ip,
            tcp,
            size,
            count: 1,
            payload_len: size,
            last: 0,
        })
    }

    /// Whether nothing may follow.
    pub(super) fn is_over(&self) -> bool {
        self.last != 0 || self.payload_len < self.count * self.size
    }

    fn is_v4(&self) -> bool {
        self.tcp - self.ip == ipv4::HEADER_LEN
    }

    /// Whether `next` continues what `first` begins; then it is part of it.
    pub(super) fn take(&mut self, first: &Frame, next: &Frame) -> bool {
        let (first, own) = (first.headers.as_slice(), next.headers.as_slice());
        let (ip, tcp, len) = (self.ip, self.tcp, next.payload.len() as usize);
        let fits = len > 0
            && len <= self.size
            && first.len() == own.len()
            && first.len() - ip + self.payload_len + len <= MAX_JOINED;
        if !fits {
            return false;
        }
        // All but lengths, identification, checksums, sequence number and flags must agree.
        let same = |range: core::ops::Range<usize>| first[range.clone()] == own[range];
        let is_same_ip = if self.is_v4() {
            same(0..ip + 2) && same(ip + 6..ip + 10) && same(ip + 12..tcp)
        } else {
            same(0..ip + 4) && same(ip + 6..tcp)
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

    /// Writes lengths, flags and the checksum of IP of the whole into the headers of its first
    /// segment.
    fn write_headers(&self, headers: &mut [u8]) {
        let (ip, tcp) = (self.ip, self.tcp);
        headers[tcp + FLAGS_AT] |= self.last;
        let from_tcp = headers.len() - tcp + self.payload_len;
        if self.is_v4() {
            let total = (from_tcp + ipv4::HEADER_LEN) as u16;
            let header = &mut headers[ip..tcp];
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header[10..12].fill(0);
            let sum = checksum::of(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            headers[ip + 4..ip + 6].copy_from_slice(&(from_tcp as u16).to_be_bytes());
        }
    }

    /// The whole, as a host receives it; `rest` begins with its second segment.
    fn received<'a>(self, first: &'a Frame, rest: impl Iterator<Item = &'a Frame>) -> Received {
        let header_len = first.headers.len();
        let mut data = BytesMut::with_capacity(header_len + self.payload_len);
        data.extend_from_slice(first.headers.as_slice());
        self.write_headers(&mut data);
        let frames = core::iter::once(first).chain(rest).take(self.count);
        for chunk in frames.flat_map(|frame| frame.payload.chunks()) {
            data.extend_from_slice(chunk);
        }
        let gso_size = if self.count == 1 { 0 } else { self.size as u16 };
        Received { data: data.freeze(), gso_size, checksum: RxChecksum::Good }
    }

    /// Makes the first segment the head of a super-frame, to which the payload of all segments is
    /// appended already. Its checksum is left to the device.
    pub(super) fn finish(self, whole: &mut Frame) {
        if self.count == 1 {
            return;
        }
        let (ip, tcp) = (self.ip, self.tcp);
        let kind = if self.is_v4() { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
        let headers = whole.headers.as_mut_slice();
        self.write_headers(headers);
        let len = (headers.len() - tcp + self.payload_len) as u32;
        if let Some(pseudo) = pseudo(&headers[ip..], Protocol::TCP) {
            let sum = pseudo.with_len(len).fold();
            headers[tcp + CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
        }
        let (start, offset) = (tcp as u16, CHECKSUM_AT as u16);
        whole.checksum = Some(PartialChecksum { start, offset });
        whole.gso = Some(Gso { size: self.size as u16, kind });
    }
}

/// The pseudo-header of an IP packet for a transport protocol.
pub(super) fn pseudo(packet: &[u8], protocol: Protocol) -> Option<Pseudo> {
    let (from, to): (IpAddr, IpAddr) = match packet.first()? >> 4 {
        4 => {
            let at = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
            (at(12)?, at(16)?)
        }
        _ => {
            let at = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
            (at(8)?, at(24)?)
        }
    };
    Pseudo::of(from, to, protocol)
}
