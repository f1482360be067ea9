//! Fragmentation on send, for datagrams larger than the path's MTU (RFC 791, RFC 8200 section 4.5).
//!
//! Cost per fragment: its headers and one reference per payload slice; nothing is copied.

use crate::frame::{Frame, Headers};
use crate::net::gso::{Cutter, finish_checksum, share};
use crate::wire::{Fragment, ipv4, ipv6};
use core::iter::FusedIterator;
use neap_tcp::segment::Payload;
use smallvec::SmallVec;

/// Cuts a datagram of UDP or ICMP into fragments of at most `mtu` bytes each, IP header included.
///
/// `identification` must differ from that of other datagrams between the two addresses. A frame
/// that fits, or whose headers leave no room for data, is returned as it is. The caller decides
/// whether a frame may be fragmented: fragments are sent without DF.
pub(crate) fn fragment(mut frame: Frame, mtu: usize, identification: u32) -> Fragments {
    debug_assert!(frame.gso.is_none(), "super-frames are segmented, not fragmented");
    let layout = Layout::of(&frame, mtu);
    let mut chunks = SmallVec::new();
    if layout.is_some() {
        finish_checksum(&mut frame);
        chunks = frame.payload.take_chunks();
    }
    let cutter = Cutter::new(chunks);
    Fragments { rest: Some(frame), layout, cutter, offset: 0, identification }
}

/// Iterator over the fragments of one datagram, in order.
#[derive(Debug)]
pub(crate) struct Fragments {
    /// Headers of the whole and the credit of what is still to come.
    rest: Option<Frame>,
    layout: Option<Layout>,
    cutter: Cutter,
    offset: usize,
    identification: u32,
}

#[derive(Debug)]
struct Layout {
    ip: IpHeader,
    /// Start of the transport header in the headers.
    transport: usize,
    /// Data bytes of each fragment but the last; a multiple of eight.
    unit: usize,
}

#[derive(Debug)]
enum IpHeader {
    V4(ipv4::Header),
    V6(ipv6::Header),
}

impl Layout {
    /// `None` if there is nothing to cut, or no way to do it.
    fn of(frame: &Frame, mtu: usize) -> Option<Self> {
        let link_len = usize::from(frame.link_len);
        let packet = frame.headers.as_slice().get(link_len..)?;
        if packet.len() + frame.payload.len() as usize <= mtu {
            return None;
        }
        let (ip, ip_len, overhead) = if packet.first()? >> 4 == 4 {
            let (header, ip_len, _) = ipv4::parse_quoted(packet).ok()?;
            (IpHeader::V4(ipv4::Header { dont_fragment: false, ..header }), ip_len, ip_len)
        } else {
            let (header, transport) = ipv6::parse_quoted(packet).ok()?;
            let ip_len = packet.len() - transport.len();
            (IpHeader::V6(header), ip_len, ip_len + ipv6::FRAGMENT_HEADER_LEN)
        };
        let unit = mtu.saturating_sub(overhead) & !7;
        let transport_len = packet.len() - ip_len;
        (unit > 0 && transport_len <= unit).then_some(Self {
            ip,
            transport: link_len + ip_len,
            unit,
        })
    }

    /// Headers of one fragment: link, IP, and in the first one the transport header.
    fn headers(&self, whole: &Frame, fragment: Fragment, payload: &Payload) -> Headers {
        let (lower, transport) = whole.headers.as_slice().split_at(self.transport);
        let mut headers = Headers::default();
        if fragment.offset == 0 {
            headers.prepend(transport.len()).copy_from_slice(transport);
        }
        let len = u16::try_from(headers.len() + payload.len() as usize).unwrap_or(u16::MAX);
        match &self.ip {
            IpHeader::V4(header) => header.emit_fragment(&mut headers, len, fragment),
            IpHeader::V6(header) => header.emit_fragment(&mut headers, len, fragment),
        }
        let link = &lower[..usize::from(whole.link_len)];
        headers.prepend(link.len()).copy_from_slice(link);
        headers
    }
}

impl Iterator for Fragments {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let mut rest = self.rest.take()?;
        let Some(layout) = &self.layout else {
            return Some(rest);
        };
        let transport_len = rest.headers.len() - layout.transport;
        let in_headers = if self.offset == 0 { transport_len } else { 0 };
        let payload = self.cutter.take(layout.unit - in_headers);
        let fragment = Fragment {
            identification: self.identification,
            offset: u16::try_from(self.offset).unwrap_or(u16::MAX),
            more: !self.cutter.is_empty(),
        };
        self.offset += in_headers + payload.len() as usize;
        let headers = layout.headers(&rest, fragment, &payload);
        let mut piece = if fragment.more {
            let piece = share(&mut rest, payload.len());
            self.rest = Some(rest);
            piece
        } else {
            rest
        };
        (piece.headers, piece.payload) = (headers, payload);
        Some(piece)
    }
}

impl FusedIterator for Fragments {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::gso::tests::account;
    use crate::net::reassembly::{Config, Part, Reassembler};
    use crate::wire::checksum::Pseudo;
    use crate::wire::{self, ChecksumBy, Ports, Protocol, udp};
    use bytes::Bytes;
    use neap_tcp::time::Instant;
    use neap_tcp::transmit::small_queue::TxCredit;

    const PORTS: Ports = Ports { source: 1, destination: 2 };

    fn datagram(is_v4: bool, payload: &Bytes, by: ChecksumBy) -> (Frame, Pseudo) {
        let mut headers = Headers::default();
        let data = Payload::from(payload.clone());
        let len = (udp::HEADER_LEN + payload.len()) as u16;
        let (v4, v6) = (wire::ipv4::tests::header(), wire::ipv6::tests::header());
        let pseudo = if is_v4 {
            Pseudo::v4(v4.source, v4.destination, Protocol::UDP)
        } else {
            Pseudo::v6(v6.source, v6.destination, Protocol::UDP)
        };
        udp::emit(&mut headers, PORTS, &data, pseudo, by);
        if is_v4 {
            v4.emit(&mut headers, len);
        } else {
            ipv6::Header { protocol: Protocol::UDP, ..v6 }.emit(&mut headers, len);
        }
        headers.prepend(14).fill(7);
        let mark = wire::partial_checksum(&headers, udp::HEADER_LEN, udp::CHECKSUM_AT);
        let frame = Frame {
            link_len: 14,
            checksum: (by == ChecksumBy::Device).then_some(mark),
            ..Frame::new(headers, data)
        };
        (frame, pseudo)
    }

    #[test]
    fn fragments_are_reassembled() {
        for is_v4 in [true, false] {
            for len in [1472, 1473, 2000, 1480 * 3, 65_507 - 48] {
                for mtu in [1280, 1500, 1501, 9000] {
                    round_trip(is_v4, len, mtu);
                }
            }
        }
    }

    fn round_trip(is_v4: bool, len: usize, mtu: usize) {
        let payload: Bytes = (0..len).map(|i| (i / 7) as u8).collect();
        let (mut frame, pseudo) = datagram(is_v4, &payload, ChecksumBy::Device);
        let account = account();
        frame.credit = Some(TxCredit::charge(&account, len as u32 + 300));
        let fits = frame.len() - 14 <= mtu;
        let mut reassembler = Reassembler::new(Config::default(), 1);
        let mut whole = None;
        for piece in fragment(frame, mtu, 99) {
            assert!(whole.is_none() && piece.len() - 14 <= mtu);
            assert_eq!(piece.headers.as_slice()[..14], [7; 14]);
            let bytes = piece.to_bytes().slice(14..);
            let part = if is_v4 {
                let packet = ipv4::parse(&bytes).expect("a good fragment");
                assert!(fits || !packet.header.dont_fragment);
                Part::v4(&packet, &bytes)
            } else {
                Part::v6(&ipv6::parse(&bytes).expect("a good fragment"), &bytes)
            };
            assert_eq!(part.is_none(), fits);
            if let Some(part) = part {
                whole = reassembler.push(Instant::ZERO, &part).expect("no refusal");
            }
        }
        assert_eq!(account.bytes(), 0);
        if !fits {
            let whole = whole.expect("all fragments came");
            assert_eq!(whole.protocol, Protocol::UDP);
            let parsed = udp::parse(whole.data, udp::Verify::Always(pseudo));
            assert_eq!(parsed, Ok(udp::Datagram { ports: PORTS, payload }));
        }
    }

    #[test]
    fn an_mtu_without_room_leaves_the_frame_whole() {
        for mtu in [0, 1, 27, 28] {
            let payload = Bytes::from_static(&[1; 100]);
            let (frame, _) = datagram(true, &payload, ChecksumBy::Stack);
            let pieces: Vec<_> = fragment(frame, mtu, 1).collect();
            assert_eq!(pieces.len(), if mtu < 28 { 1 } else { 14 });
        }
    }
}
