//! The few fields of a packet's IP header that a tunnel looks at, and ECN at its ends (RFC 6040).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use neap_stack::wire::checksum;
pub(crate) use neap_stack::wire::ipv4::HEADER_LEN as HEADER_V4;
pub(crate) use neap_stack::wire::ipv6::HEADER_LEN as HEADER_V6;

/// The two bits of ECN in the byte that follows the version: Not-ECT, ECT(1), ECT(0), CE.
const NOT_ECT: u8 = 0;
const ECT1: u8 = 1;
const ECT0: u8 = 2;
pub(crate) const CE: u8 = 3;

/// What a tunnel wants to know of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Bytes of the whole packet, as its header says.
    pub(crate) len: usize,
    /// ECN, in the two lower bits.
    pub(crate) ecn: u8,
}

impl Header {
    /// The header at the front of `packet`; `None` if it is none, or says more bytes than there
    /// are. `packet` may be longer.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let header = Self::of_headers(packet)?;
        (header.len <= packet.len()).then_some(header)
    }

    /// The header at the front of `headers`, whose payload is elsewhere.
    pub(crate) fn of_headers(headers: &[u8]) -> Option<Self> {
        let word = |at: usize| usize::from(u16::from_be_bytes([headers[at], headers[at + 1]]));
        match headers.first()? >> 4 {
            4 if headers.len() >= HEADER_V4 => {
                let len = word(2);
                let (source, destination): ([u8; 4], [u8; 4]) =
                    (headers[12..16].try_into().ok()?, headers[16..20].try_into().ok()?);
                Some(Self {
                    source: Ipv4Addr::from(source).into(),
                    destination: Ipv4Addr::from(destination).into(),
                    len: (len >= HEADER_V4).then_some(len)?,
                    ecn: headers[1] & 3,
                })
            }
            6 if headers.len() >= HEADER_V6 => {
                let (source, destination): ([u8; 16], [u8; 16]) =
                    (headers[8..24].try_into().ok()?, headers[24..40].try_into().ok()?);
                Some(Self {
                    source: Ipv6Addr::from(source).into(),
                    destination: Ipv6Addr::from(destination).into(),
                    len: HEADER_V6 + word(4),
                    ecn: headers[1] >> 4 & 3,
                })
            }
            _ => None,
        }
    }
}

/// The sequence number of a TCP segment whose headers these are.
pub(crate) fn tcp_sequence(headers: &[u8]) -> Option<[u8; 4]> {
    const TCP: u8 = 6;
    let transport = match headers.first()? >> 4 {
        4 if *headers.get(9)? == TCP => usize::from(headers[0] & 15) * 4,
        6 if *headers.get(6)? == TCP => HEADER_V6,
        _ => return None,
    };
    headers.get(transport + 4..)?.first_chunk().copied()
}

/// What becomes of a packet when it leaves a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arriving {
    /// It arrives with this codepoint.
    As(u8),
    /// It is dropped: a router has marked what was not to be marked.
    Dropped,
}

/// The codepoint that a packet arrives with, by that of the packet itself and of the outer header
/// (RFC 6040 section 4.2).
pub(crate) fn decapsulated(inner: u8, outer: u8) -> Arriving {
    match (inner, outer) {
        (NOT_ECT, CE) => Arriving::Dropped,
        (_, CE) => Arriving::As(CE),
        (ECT0, ECT1) => Arriving::As(ECT1),
        _ => Arriving::As(inner),
    }
}

/// Sets the codepoint of a packet that [`Header::parse`] took.
pub(crate) fn set_ecn(packet: &mut [u8], ecn: u8) {
    if packet[0] >> 4 == 6 {
        packet[1] = packet[1] & !0x30 | ecn << 4;
        return;
    }
    let old = u16::from_be_bytes([packet[0], packet[1]]);
    packet[1] = packet[1] & !3 | ecn;
    let new = u16::from_be_bytes([packet[0], packet[1]]);
    let sum = checksum::update(u16::from_be_bytes([packet[10], packet[11]]), old, new);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(len: u16, tos: u8) -> Vec<u8> {
        let mut packet = vec![0; usize::from(len.max(20))];
        packet[0] = 0x45;
        packet[1] = tos;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = checksum::of(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    #[test]
    fn headers_are_read_and_padding_is_left_out() {
        let mut packet = v4(30, 2);
        packet.extend_from_slice(&[0; 2]);
        let header = Header::parse(&packet).expect("a header");
        assert_eq!((header.len, header.ecn), (30, ECT0));
        assert_eq!(header.source, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(header.destination, IpAddr::from([10, 0, 0, 2]));
        let mut packet = vec![0; 48];
        (packet[0], packet[1], packet[5]) = (0x60, 0x30, 8);
        let header = Header::parse(&packet).expect("a header");
        assert_eq!((header.len, header.ecn), (48, CE));
    }

    #[test]
    fn what_is_no_packet_is_refused() {
        for packet in [&v4(30, 0)[..29], &v4(19, 0), &[0x45; 19], &[0x60; 39], &[], &[0; 100]] {
            assert_eq!(Header::parse(packet), None);
        }
    }

    #[test]
    fn the_table_of_rfc_6040() {
        // Rows: inner Not-ECT, ECT(1), ECT(0), CE. Columns: outer in the same order.
        let table = [
            [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None],
            [Some(ECT1), Some(ECT1), Some(ECT1), Some(CE)],
            [Some(ECT0), Some(ECT1), Some(ECT0), Some(CE)],
            [Some(CE), Some(CE), Some(CE), Some(CE)],
        ];
        for (inner, row) in (0..).zip(table) {
            for (outer, expected) in (0..).zip(row) {
                let expected = expected.map_or(Arriving::Dropped, Arriving::As);
                assert_eq!(decapsulated(inner, outer), expected, "{inner} in {outer}");
            }
        }
    }

    #[test]
    fn a_mark_keeps_the_checksum_right() {
        let mut packet = v4(20, 0xb8 | 2);
        set_ecn(&mut packet, CE);
        assert_eq!((packet[1], checksum::of(&packet)), (0xb8 | 3, 0));
        let mut packet = vec![0x61, 0x2f, 0, 0];
        set_ecn(&mut packet, ECT1);
        assert_eq!(packet[1], 0x1f);
    }
}
