//! Segmentation in software, for devices that take no super-frames (Linux's `tcp_gso_segment` and
//! `__udp_gso_segment`), and transport checksums, for devices that do not finish them.
//!
//! Cost per piece: one copy of the headers, one reference per payload slice, one sum over the
//! payload if the checksum is finished; no allocation while a piece spans at most two slices.

use crate::frame::{Frame, GsoKind, PartialChecksum};
use crate::wire::checksum::{self, Checksum, Pseudo};
use crate::wire::{ChecksumBy, Protocol, ipv4, ipv6, tcp, udp};
use bytes::Bytes;
use core::iter::FusedIterator;
use core::net::{Ipv4Addr, Ipv6Addr};
use neap_tcp::segment::{Flags, Payload};
use neap_tcp::transmit::small_queue::TxCredit;
use smallvec::SmallVec;

/// Most datagrams of one super-datagram that is received: `UDP_MAX_SEGMENTS` of newer kernels. A
/// packet that claims more is no sender's of Linux, and would take as long as so many packets.
pub const MOST_DATAGRAMS: usize = 128;

/// Cuts `frame` into its wire segments, in order. A frame that is not too large, or whose headers
/// are not those of its [`GsoKind`], is the only piece.
///
/// Each piece takes its payload's share of the credit. The last one takes the rest with the ticket,
/// so that the frame counts as below TCP until its last piece is on the wire.
pub fn segment(mut frame: Frame, checksum: ChecksumBy) -> Pieces {
    let layout = Layout::of(&frame);
    let chunks = if layout.is_some() { frame.payload.take_chunks() } else { SmallVec::new() };
    Pieces { rest: Some(frame), layout, cutter: Cutter::new(chunks), checksum, is_first: true }
}

/// Iterator over the wire segments of one super-frame.
#[derive(Debug)]
pub struct Pieces {
    /// Headers of the next piece, the credit of all pieces to come, and no payload.
    rest: Option<Frame>,
    layout: Option<Layout>,
    cutter: Cutter,
    checksum: ChecksumBy,
    is_first: bool,
}

/// Where things are in the headers of a super-frame.
#[derive(Debug)]
struct Layout {
    kind: GsoKind,
    /// Start of the IP header.
    ip: usize,
    /// Start of the TCP or UDP header.
    transport: usize,
    size: usize,
    pseudo: Pseudo,
}

impl Layout {
    /// `None` if there is nothing to cut.
    fn of(frame: &Frame) -> Option<Self> {
        let gso = frame.gso?;
        let size = usize::from(gso.size);
        if size == 0 || frame.payload.len() as usize <= size {
            return None;
        }
        let ip = usize::from(frame.link_len);
        let packet = frame.headers.as_slice().get(ip..)?;
        let protocol = gso.kind.protocol();
        let (header_len, pseudo) = match gso.kind {
            GsoKind::Tcp4 | GsoKind::Udp4 => {
                let header = packet.first_chunk::<{ ipv4::HEADER_LEN }>()?;
                let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
                let source = Ipv4Addr::new(s0, s1, s2, s3);
                let destination = Ipv4Addr::new(d0, d1, d2, d3);
                let header_len = usize::from(header[0] & 15) * 4;
                (header_len, Pseudo::v4(source, destination, protocol))
            }
            GsoKind::Tcp6 | GsoKind::Udp6 => {
                let (addresses, _) = packet.get(8..ipv6::HEADER_LEN)?.as_chunks::<16>();
                let [source, destination] = *addresses.first_chunk::<2>()?;
                let (source, destination) = (Ipv6Addr::from(source), Ipv6Addr::from(destination));
                (ipv6::HEADER_LEN, Pseudo::v6(source, destination, protocol))
            }
        };
        let segment = packet.get(header_len..)?;
        let (least, transport_len) = match protocol {
            Protocol::UDP => (udp::HEADER_LEN, udp::HEADER_LEN),
            _ => (tcp::HEADER_LEN, usize::from(segment.get(12)? >> 4) * 4),
        };
        let is_sound = header_len >= ipv4::HEADER_LEN
            && transport_len >= least
            && transport_len == segment.len();
        let transport = ip + header_len;
        is_sound.then_some(Self { kind: gso.kind, ip, transport, size, pseudo })
    }
}

impl Iterator for Pieces {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let mut rest = self.rest.take()?;
        let Some(layout) = &self.layout else {
            if self.checksum == ChecksumBy::Stack {
                finish_checksum(&mut rest);
            }
            if rest.payload.len() <= rest.gso.map_or(0, |gso| u32::from(gso.size)) {
                rest.gso = None;
            }
            return Some(rest);
        };
        let payload = self.cutter.take(layout.size);
        let is_last = self.cutter.is_empty();
        let mut piece = if is_last {
            rest
        } else {
            let piece = share(&mut rest, payload.len());
            layout.step(rest.headers.as_mut_slice(), payload.len());
            self.rest = Some(rest);
            piece
        };
        piece.gso = None;
        piece.payload = payload;
        layout.finish(&mut piece, self.is_first, is_last, self.checksum);
        self.is_first = false;
        Some(piece)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let pieces = match &self.layout {
            Some(layout) => self.cutter.left().div_ceil(layout.size),
            None => usize::from(self.rest.is_some()),
        };
        (pieces, Some(pieces))
    }
}

impl ExactSizeIterator for Pieces {}
impl FusedIterator for Pieces {}

/// A frame like `rest` without payload, with the credit of `bytes` of it.
pub(crate) fn share(rest: &mut Frame, bytes: u32) -> Frame {
    Frame {
        headers: rest.headers.clone(),
        link_len: rest.link_len,
        payload: Payload::new(),
        gso: None,
        checksum: rest.checksum,
        departure: rest.departure,
        pacing_rate: rest.pacing_rate,
        priority: rest.priority,
        flow: rest.flow,
        ecn: rest.ecn,
        is_bulk: rest.is_bulk,
        credit: rest.credit.as_mut().map(|credit| TxCredit::split(credit, bytes)),
    }
}

impl Layout {
    /// Moves the headers on to the next piece: sequence number of TCP, IP identification.
    fn step(&self, headers: &mut [u8], bytes: u32) {
        if self.kind.protocol() == Protocol::TCP {
            let at = self.transport + 4;
            let seq = word32(headers, at).wrapping_add(bytes);
            headers[at..at + 4].copy_from_slice(&seq.to_be_bytes());
        }
        if self.kind.is_v4() {
            let at = self.ip + 4;
            let id = u16::from_be_bytes([headers[at], headers[at + 1]]).wrapping_add(1);
            headers[at..at + 2].copy_from_slice(&id.to_be_bytes());
        }
    }

    /// Writes lengths, flags and checksums of one piece, whose payload is in place.
    fn finish(&self, piece: &mut Frame, is_first: bool, is_last: bool, by: ChecksumBy) {
        let payload_len = piece.payload.len();
        let headers = piece.headers.as_mut_slice();
        piece.checksum = Some(self.finish_headers(headers, payload_len, is_first, is_last));
        if by == ChecksumBy::Stack {
            finish_checksum(piece);
        }
    }

    /// Writes lengths and flags of a piece with `payload_len` bytes behind its headers, and the sum
    /// of its pseudo-header. Returns where the transport checksum is to be finished.
    fn finish_headers(
        &self,
        headers: &mut [u8],
        payload_len: u32,
        is_first: bool,
        is_last: bool,
    ) -> PartialChecksum {
        let transport_len = (headers.len() - self.transport) as u32 + payload_len;
        if self.kind.protocol() == Protocol::UDP {
            let at = self.transport + 4;
            headers[at..at + 2].copy_from_slice(&length_field(transport_len as usize));
        } else {
            let flags = &mut headers[self.transport + 13];
            if !is_first {
                *flags &= !Flags::CWR.bits();
            }
            if !is_last {
                *flags &= !(Flags::FIN | Flags::PSH).bits();
            }
        }
        let ip_len = |start: usize| length_field(headers.len() - start + payload_len as usize);
        if self.kind.is_v4() {
            let total = ip_len(self.ip);
            let ip = &mut headers[self.ip..self.transport];
            ip[2..4].copy_from_slice(&total);
            ip[10..12].fill(0);
            let sum = checksum::of(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            let len = ip_len(self.ip + ipv6::HEADER_LEN);
            headers[self.ip + 4..self.ip + 6].copy_from_slice(&len);
        }
        let partial = self.pseudo.with_len(transport_len).fold();
        let at = self.transport + self.kind.checksum_at();
        headers[at..at + 2].copy_from_slice(&partial.to_be_bytes());
        PartialChecksum { start: self.transport as u16, offset: self.kind.checksum_at() as u16 }
    }
}

/// Writes the wire segments of `frame` as packets in one piece each, with their checksums, and
/// hands them to `take` in order. A frame that is not too large is the only one.
///
/// A device that encrypts needs them like this. `packet` is room that is used again. Cost per
/// packet: one copy of its bytes, and one sum over them while they are in the cache.
pub fn write_packets(frame: &Frame, packet: &mut Vec<u8>, mut take: impl FnMut(&[u8])) {
    let layout = Layout::of(frame);
    let size = layout.as_ref().map_or(usize::MAX, |layout| layout.size);
    let mut headers = frame.headers.clone();
    let mut left = frame.payload.len() as usize;
    let mut chunks = frame.payload.chunks().iter();
    let mut chunk: &[u8] = &[];
    let mut is_first = true;
    loop {
        packet.clear();
        packet.extend_from_slice(headers.as_slice());
        let payload_len = size.min(left);
        left -= payload_len;
        let mut missing = payload_len;
        while missing > 0 {
            if chunk.is_empty() {
                let Some(next) = chunks.next() else { break };
                chunk = next;
                continue;
            }
            let (now, later) = chunk.split_at(missing.min(chunk.len()));
            packet.extend_from_slice(now);
            missing -= now.len();
            chunk = later;
        }
        let mut partial = frame.checksum;
        if let Some(layout) = &layout {
            let headers = &mut packet[..headers.len()];
            partial = Some(layout.finish_headers(headers, payload_len as u32, is_first, left == 0));
        }
        if let Some(PartialChecksum { start, offset }) = partial
            && let Some(transport) = packet.get_mut(usize::from(start)..)
        {
            let sum = never_zero(checksum::of(transport));
            let field = usize::from(offset)..usize::from(offset) + 2;
            if let Some(field) = transport.get_mut(field) {
                field.copy_from_slice(&sum.to_be_bytes());
            }
        }
        take(packet);
        let Some(layout) = layout.as_ref().filter(|_| left > 0) else { return };
        layout.step(headers.as_mut_slice(), payload_len as u32);
        is_first = false;
    }
}

/// Zero would mean "none" to UDP; for the others it is the same number.
fn never_zero(sum: u16) -> u16 {
    if sum == 0 { 0xffff } else { sum }
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn length_field(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

/// Finishes a partial transport checksum (Linux's `skb_checksum_help`), for a device that does not.
///
/// A super-frame has to be cut first. A mark that lies outside the headers is dropped.
pub fn finish_checksum(frame: &mut Frame) {
    let Some(PartialChecksum { start, offset }) = frame.checksum.take() else {
        return;
    };
    let Some(transport) = frame.headers.as_mut_slice().get_mut(usize::from(start)..) else {
        return;
    };
    let mut sum = Checksum::new();
    sum.add(transport);
    for chunk in frame.payload.chunks() {
        sum.add(chunk);
    }
    let sum = never_zero(sum.finish());
    let field = usize::from(offset)..usize::from(offset) + 2;
    if let Some(field) = transport.get_mut(field) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

/// Cuts slices off the front of a payload. O(1) per slice that is touched.
#[derive(Debug)]
pub(crate) struct Cutter {
    current: Bytes,
    behind: smallvec::IntoIter<[Bytes; 2]>,
    left: usize,
}

impl Cutter {
    pub(crate) fn new(chunks: SmallVec<[Bytes; 2]>) -> Self {
        let left = chunks.iter().map(Bytes::len).sum();
        Self { current: Bytes::new(), behind: chunks.into_iter(), left }
    }

    /// The next `want` bytes, or what is left.
    pub(crate) fn take(&mut self, want: usize) -> Payload {
        let mut payload = Payload::new();
        let mut want = want.min(self.left);
        self.left -= want;
        while want > 0 {
            if self.current.is_empty() {
                match self.behind.next() {
                    Some(chunk) => self.current = chunk,
                    None => break,
                }
            }
            let cut = want.min(self.current.len());
            payload.push(self.current.split_to(cut));
            want -= cut;
        }
        payload
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Bytes not taken yet.
    pub(crate) fn left(&self) -> usize {
        self.left
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::frame::{Gso, Headers};
    use crate::wire::{self, Ports, ethernet};
    use neap_tcp::segment::{Ecn, Options, Segment, Timestamps};
    use neap_tcp::seq::SeqNumber;
    use neap_tcp::time::{Instant, Rate};
    use neap_tcp::transmit::small_queue::TxAccount;
    use std::sync::Arc;
    use std::task::Waker;

    const PORTS: Ports = Ports { source: 1, destination: 2 };

    pub(crate) fn account() -> Arc<TxAccount> {
        TxAccount::new(Waker::noop().clone())
    }

    fn pattern(len: usize) -> Bytes {
        (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    /// The four option lengths that data segments have.
    fn option_sets() -> Vec<Options> {
        let timestamps = Some(Timestamps { value: 1, echo: 2 });
        let sack = |n| core::iter::repeat_n(Default::default(), n).collect();
        vec![
            Options::default(),
            Options { timestamps, ..Options::default() },
            Options { timestamps, sack: sack(1), ..Options::default() },
            Options { timestamps, sack: sack(3), ..Options::default() },
        ]
    }

    fn in_pages(payload: &Bytes, page: usize) -> Payload {
        let mut pages = Payload::new();
        for start in (0..payload.len()).step_by(page) {
            pages.push(payload.slice(start..payload.len().min(start + page)));
        }
        pages
    }

    fn pseudo(kind: GsoKind) -> Pseudo {
        let (v4, v6) = (wire::ipv4::tests::header(), wire::ipv6::tests::header());
        if kind.is_v4() {
            Pseudo::v4(v4.source, v4.destination, kind.protocol())
        } else {
            Pseudo::v6(v6.source, v6.destination, kind.protocol())
        }
    }

    /// The IP header in front of a transport header, which has `len` bytes with its data.
    fn emit_ip(headers: &mut Headers, kind: GsoKind, len: usize) {
        let (protocol, len) = (kind.protocol(), len as u16);
        if kind.is_v4() {
            let header = wire::ipv4::tests::header();
            ipv4::Header { protocol, identification: 0xffff, ..header }.emit(headers, len);
        } else {
            ipv6::Header { protocol, ..wire::ipv6::tests::header() }.emit(headers, len);
        }
    }

    /// A super-frame whose payload is in pages of `page` bytes.
    fn super_frame(kind: GsoKind, options: Options, payload: &Bytes, page: usize) -> Frame {
        let mut segment = Segment {
            seq: SeqNumber(u32::MAX - 100),
            ack: SeqNumber(9),
            flags: Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR,
            window: 500,
            options,
            ..Segment::default()
        };
        segment.payload = in_pages(payload, page);
        let mut headers = Headers::default();
        let tcp_len = tcp::emit(&mut headers, PORTS, &segment, pseudo(kind), ChecksumBy::Device);
        emit_ip(&mut headers, kind, tcp_len + payload.len());
        let ether_type =
            if kind.is_v4() { ethernet::EtherType::IPV4 } else { ethernet::EtherType::IPV6 };
        ethernet::Header { destination: [2; 6], source: [4; 6], ether_type }.emit(&mut headers);
        let checksum = wire::partial_checksum(&headers, tcp_len, tcp::CHECKSUM_AT);
        Frame {
            headers,
            link_len: 14,
            payload: segment.payload,
            gso: Some(Gso { size: 1448, kind }),
            checksum: Some(checksum),
            departure: Instant::from_nanos(77),
            pacing_rate: Rate::UNLIMITED,
            priority: 3,
            flow: 5,
            ecn: Ecn::Ect0,
            is_bulk: false,
            credit: None,
        }
    }

    /// What a receiver makes of one piece: IP identification and the segment.
    fn received(piece: &Frame) -> (u32, Segment) {
        let bytes = piece.to_bytes().slice(14..);
        if bytes[0] >> 4 == 4 {
            let packet = ipv4::parse(&bytes).expect("a good IPv4 packet");
            assert_eq!(packet.payload.end, bytes.len());
            let header = packet.header;
            let pseudo = Pseudo::v4(header.source, header.destination, header.protocol);
            let parsed = tcp::parse(bytes.slice(packet.payload), Some(pseudo));
            (header.identification.into(), parsed.expect("a good segment").1)
        } else {
            let packet = ipv6::parse(&bytes).expect("a good IPv6 packet");
            assert_eq!(packet.payload.end, bytes.len());
            let header = packet.header;
            let pseudo = Pseudo::v6(header.source, header.destination, header.protocol);
            let parsed = tcp::parse(bytes.slice(packet.payload), Some(pseudo));
            (0, parsed.expect("a good segment").1)
        }
    }

    fn check(mut frame: Frame, size: u16, payload: &[u8]) {
        let account = account();
        let overhead = 768;
        let charged = payload.len() as u32 + overhead;
        let credit = TxCredit::charge(&account, charged);
        let ticket = credit.ticket();
        frame.credit = Some(credit);
        frame.gso = Some(Gso { size, kind: frame.gso.expect("a super-frame").kind });
        let count = frame.segments() as usize;
        let wire_len = frame.wire_len();
        let mut written = Vec::new();
        write_packets(&frame, &mut Vec::new(), |packet| written.push(packet.to_vec()));
        let is_v4 = frame.gso.is_some_and(|gso| gso.kind == GsoKind::Tcp4);
        let (mut at, mut wire, mut id) = (0, 0, 0xffffu32);
        let pieces = segment(frame, ChecksumBy::Stack);
        assert_eq!((pieces.len(), written.len()), (count, count));
        for (index, piece) in pieces.enumerate() {
            assert_eq!(piece.to_bytes(), written[index]);
            let (is_first, is_last) = (index == 0, index + 1 == count);
            let (identification, segment) = received(&piece);
            let len = segment.payload.len() as usize;
            assert_eq!(segment.payload.chunks().concat(), payload[at..at + len]);
            assert_eq!(len, usize::from(size).min(payload.len() - at));
            assert_eq!(segment.seq, SeqNumber(u32::MAX - 100) + at as u32);
            assert_eq!(segment.flags.contains(Flags::CWR), is_first);
            assert_eq!(segment.flags.contains(Flags::PSH), is_last);
            assert_eq!(segment.flags.contains(Flags::FIN), is_last);
            assert!(segment.flags.contains(Flags::ACK) && segment.window == 500);
            assert_eq!(identification, if is_v4 { id & 0xffff } else { 0 });
            assert_eq!((piece.gso, piece.checksum), (None, None));
            assert_eq!((piece.departure, piece.priority), (Instant::from_nanos(77), 3));
            assert_eq!((piece.flow, piece.ecn, piece.link_len), (5, Ecn::Ect0, 14));
            id += 1;
            at += len;
            wire += piece.len();
            let before = account.bytes();
            assert!(account.holds(ticket));
            drop(piece);
            let share = if is_last { len as u64 + u64::from(overhead) } else { len as u64 };
            assert_eq!(before - account.bytes(), share);
        }
        assert_eq!((at, wire, account.bytes()), (payload.len(), wire_len, 0));
        assert!(!account.holds(ticket));
    }

    #[test]
    fn every_size_conserves_bytes_sums_and_credit() {
        let payload = pattern(65_535 - 20 - 60);
        for size in 1..=u16::MAX {
            // Small sizes make many pieces: a shorter frame keeps their count near a hundred.
            let len = payload.len().min(usize::from(size) * 100 + usize::from(size) / 2);
            let payload = payload.slice(..len);
            let sets = option_sets();
            let options = sets[usize::from(size) % sets.len()].clone();
            let kind = if size % 3 == 0 { GsoKind::Tcp6 } else { GsoKind::Tcp4 };
            check(super_frame(kind, options, &payload, 32 << 10), size, &payload);
        }
    }

    #[test]
    fn every_option_length_page_size_and_version() {
        for kind in [GsoKind::Tcp4, GsoKind::Tcp6] {
            for options in option_sets() {
                for page in [1, 2, 3, 999, 4096, 1 << 16] {
                    for (size, len) in [(1, 2), (8, 64), (999, 5000), (1448, 2896), (1448, 1448)] {
                        let payload = pattern(len);
                        let frame = super_frame(kind, options.clone(), &payload, page);
                        check(frame, size, &payload);
                    }
                }
            }
        }
    }

    /// A super-frame of datagrams whose payload is in pages of `page` bytes.
    fn super_datagram(kind: GsoKind, size: u16, payload: &Bytes, page: usize) -> Frame {
        let data = in_pages(payload, page);
        let mut headers = Headers::default();
        udp::emit(&mut headers, PORTS, &data, pseudo(kind), ChecksumBy::Device);
        emit_ip(&mut headers, kind, udp::HEADER_LEN + payload.len());
        let checksum = wire::partial_checksum(&headers, udp::HEADER_LEN, udp::CHECKSUM_AT);
        let (gso, checksum) = (Some(Gso { size, kind }), Some(checksum));
        Frame { gso, checksum, ..Frame::new(headers, data) }
    }

    #[test]
    fn datagrams_of_a_super_frame_are_whole() {
        for (size, len, page) in
            [(1, 5, 2), (1400, 64_400, 1400), (1400, 3000, 999), (999, 1000, 7)]
        {
            for kind in [GsoKind::Udp4, GsoKind::Udp6] {
                let payload = pattern(len);
                let frame = super_datagram(kind, size, &payload, page);
                let (count, wire_len) = (frame.segments() as usize, frame.wire_len());
                let mut written = Vec::new();
                write_packets(&frame, &mut Vec::new(), |packet| written.push(packet.to_vec()));
                let pieces = segment(frame, ChecksumBy::Stack);
                assert_eq!((pieces.len(), written.len()), (count, count));
                let (mut data, mut wire) = (Vec::new(), 0);
                for (index, piece) in pieces.enumerate() {
                    let bytes = piece.to_bytes();
                    assert_eq!(bytes, written[index]);
                    let (pseudo, transport) = if kind.is_v4() {
                        let packet = ipv4::parse(&bytes).expect("a good IPv4 packet");
                        let header = packet.header;
                        assert_eq!(header.identification, 0xffff_u16.wrapping_add(index as u16));
                        let (from, to) = (header.source, header.destination);
                        (Pseudo::v4(from, to, Protocol::UDP), packet.payload)
                    } else {
                        let packet = ipv6::parse(&bytes).expect("a good IPv6 packet");
                        let (from, to) = (packet.header.source, packet.header.destination);
                        (Pseudo::v6(from, to, Protocol::UDP), packet.payload)
                    };
                    assert_eq!(transport.end, bytes.len());
                    let verify = udp::Verify::Always(pseudo);
                    let got = udp::parse(bytes.slice(transport), verify).expect("a good datagram");
                    assert_eq!(got.ports, PORTS);
                    assert_eq!(got.payload.len(), usize::from(size).min(len - data.len()));
                    data.extend_from_slice(&got.payload);
                    wire += bytes.len();
                }
                assert_eq!((data, wire), (payload.to_vec(), wire_len));
            }
        }
    }

    #[test]
    fn partial_checksums_of_pieces_are_finished_later() {
        let payload = pattern(3001);
        let frame = super_frame(GsoKind::Tcp4, Options::default(), &payload, 700);
        let mut at = 0;
        for mut piece in segment(frame, ChecksumBy::Device) {
            let mark = PartialChecksum { start: 34, offset: 16 };
            assert_eq!(piece.checksum, Some(mark));
            finish_checksum(&mut piece);
            at += received(&piece).1.payload.len();
        }
        assert_eq!(at, 3001);
    }

    #[test]
    fn what_cannot_be_cut_stays_whole() {
        let payload = pattern(3000);
        let make = || super_frame(GsoKind::Tcp4, Options::default(), &payload, 3000);
        let mut plain = make();
        plain.gso = None;
        let mut odd = make();
        odd.headers.as_mut_slice()[14] = 0x4f;
        let mut short = make();
        short.gso = Some(Gso { size: 3000, kind: GsoKind::Tcp4 });
        for frame in [plain, odd, short] {
            let mut pieces = segment(frame, ChecksumBy::Stack);
            assert_eq!(pieces.next().map(|piece| piece.payload.len()), Some(3000));
            assert!(pieces.next().is_none());
        }
    }

    #[test]
    fn a_mark_outside_the_headers_is_dropped() {
        let mut frame = super_frame(GsoKind::Tcp6, Options::default(), &pattern(10), 10);
        let before = frame.to_bytes();
        for (start, offset) in [(128, 0), (74, 0), (60, 13), (0, u16::MAX)] {
            frame.checksum = Some(PartialChecksum { start, offset });
            finish_checksum(&mut frame);
            assert_eq!((frame.checksum, frame.to_bytes()), (None, before.clone()));
        }
    }
}
