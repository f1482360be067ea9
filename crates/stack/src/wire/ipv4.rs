//! IPv4 headers (RFC 791).

use super::{Fragment, Protocol, be, checksum, ecn_of};
use crate::wire::headers::Headers;
use core::net::Ipv4Addr;
use core::ops::Range;
use neap_tcp::segment::Ecn;

/// Size in bytes of a header without options, the only kind that is emitted.
pub const HEADER_LEN: usize = 20;

/// Most bytes behind such a header: the total length says no more than 65,535.
pub const MAX_PAYLOAD: u16 = u16::MAX - HEADER_LEN as u16;

const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;

/// Fields of the IPv4 header that a receiver or sender uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: Protocol,
    /// Hops left.
    pub ttl: u8,
    /// Differentiated services codepoint, 0 to 63.
    pub dscp: u8,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// Identification (RFC 6864: without meaning when `dont_fragment`).
    pub identification: u16,
    /// Whether routers must not fragment the packet (DF).
    pub dont_fragment: bool,
}

/// Parsed IPv4 packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Header of the packet.
    pub header: Header,
    /// Place in its datagram, if the packet is a fragment.
    pub fragment: Option<Fragment>,
    /// Range of the payload: behind the options, without link padding.
    pub payload: Range<usize>,
}

/// Reason why bytes are not an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The packet is shorter than its header says.
    #[error("IPv4 packet truncated")]
    Truncated,
    /// The version is not 4.
    #[error("IP version is not 4")]
    Version,
    /// The header length is below 20 bytes or beyond the packet.
    #[error("bad IPv4 header length")]
    HeaderLength,
    /// The total length is below the header length.
    #[error("bad IPv4 total length")]
    TotalLength,
    /// The header checksum is wrong.
    #[error("bad IPv4 header checksum")]
    Checksum,
    /// A fragment reaches beyond the largest datagram, or has an impossible length.
    #[error("bad IPv4 fragment")]
    Fragment,
    /// An option has an impossible length.
    #[error("bad IPv4 option")]
    Option,
    /// The packet says by which hosts it goes, which no host follows (`accept_source_route`).
    #[error("IPv4 source route")]
    SourceRoute,
}

/// Judges the options of a header. Apart from source routes none means anything here.
fn check_options(mut options: &[u8]) -> Result<(), Error> {
    loop {
        options = match options {
            [] | [END_OF_OPTIONS, ..] => return Ok(()),
            [NO_OPERATION, rest @ ..] => rest,
            [LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE, ..] => return Err(Error::SourceRoute),
            [_, len, ..] if *len >= 2 => options.get(usize::from(*len)..).ok_or(Error::Option)?,
            _ => return Err(Error::Option),
        }
    }
}

/// Parses and verifies a packet. Options are skipped. The checksum is verified before anything that
/// it covers is believed, but for the lengths that it needs (`ip_rcv_core`).
pub fn parse(packet: &[u8]) -> Result<Packet, Error> {
    let (header, header_len, total_len) = parse_header(packet)?;
    if checksum::of(&packet[..header_len]) != 0 {
        return Err(Error::Checksum);
    }
    if total_len < header_len {
        return Err(Error::TotalLength);
    }
    if total_len > packet.len() {
        return Err(Error::Truncated);
    }
    check_options(&packet[HEADER_LEN..header_len])?;
    let word = u16::from_be_bytes([packet[6], packet[7]]);
    let more = word & 0x2000 != 0;
    let offset = (word & 0x1fff) * 8;
    let payload = header_len..total_len;
    if !more && offset == 0 {
        return Ok(Packet { header, fragment: None, payload });
    }
    if usize::from(offset) + total_len > 0xffff
        || payload.is_empty()
        || (more && payload.len() % 8 != 0)
    {
        return Err(Error::Fragment);
    }
    let fragment = Fragment { identification: header.identification.into(), offset, more };
    Ok(Packet { header, fragment: Some(fragment), payload })
}

/// The header of a packet that may be cut short behind it, as ICMP errors quote it: neither total
/// length nor checksum is judged. Returns header, header length and fragment offset in bytes.
pub(crate) fn parse_quoted(packet: &[u8]) -> Result<(Header, usize, u16), Error> {
    let (header, header_len, _) = parse_header(packet)?;
    let offset = (u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff) * 8;
    Ok((header, header_len, offset))
}

/// Header, its length and the total length; at least `header length` bytes are there.
fn parse_header(packet: &[u8]) -> Result<(Header, usize, usize), Error> {
    let bytes = packet.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
    if bytes[0] >> 4 != 4 {
        return Err(Error::Version);
    }
    let header_len = usize::from(bytes[0] & 15) * 4;
    if header_len < HEADER_LEN {
        return Err(Error::HeaderLength);
    }
    if header_len > packet.len() {
        return Err(Error::Truncated);
    }
    let header = Header {
        source: Ipv4Addr::from_bits(be!(u32, bytes, 12)),
        destination: Ipv4Addr::from_bits(be!(u32, bytes, 16)),
        protocol: Protocol(bytes[9]),
        ttl: bytes[8],
        dscp: bytes[1] >> 2,
        ecn: ecn_of(bytes[1]),
        identification: be!(u16, bytes, 4),
        dont_fragment: bytes[6] & 0x40 != 0,
    };
    Ok((header, header_len, usize::from(be!(u16, bytes, 2))))
}

impl Header {
    /// Writes the header of a whole datagram in front of `headers`.
    ///
    /// Transport header and payload together have `payload_len` bytes, at most 65,515: no total
    /// length can express more.
    pub fn emit(&self, headers: &mut Headers, payload_len: u16) {
        self.write(headers, payload_len, 0);
    }

    /// Writes the header of one fragment in front. Its identification is that of the fragment.
    pub fn emit_fragment(&self, headers: &mut Headers, payload_len: u16, fragment: Fragment) {
        let more = if fragment.more { 0x2000 } else { 0 };
        let header = Self { identification: fragment.identification as u16, ..*self };
        header.write(headers, payload_len, more | (fragment.offset / 8));
    }

    fn write(&self, headers: &mut Headers, payload_len: u16, fragment_word: u16) {
        debug_assert!(payload_len <= MAX_PAYLOAD, "an IPv4 packet has at most 65535 bytes");
        let total = (HEADER_LEN as u16).saturating_add(payload_len);
        let flags = if self.dont_fragment { 0x4000 } else { 0 };
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = 0x45;
        bytes[1] = self.dscp << 2 | self.ecn as u8;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.identification.to_be_bytes());
        bytes[6..8].copy_from_slice(&(flags | fragment_word).to_be_bytes());
        bytes[8] = self.ttl;
        bytes[9] = self.protocol.0;
        bytes[12..16].copy_from_slice(&self.source.octets());
        bytes[16..].copy_from_slice(&self.destination.octets());
        let sum = checksum::of(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        headers.prepend(HEADER_LEN).copy_from_slice(&bytes);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn header() -> Header {
        Header {
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(10, 0, 0, 2),
            protocol: Protocol::UDP,
            ttl: 64,
            dscp: 11,
            ecn: Ecn::Ect0,
            identification: 0x1234,
            dont_fragment: true,
        }
    }

    /// `header` with `options` words of options and `payload` bytes, checksum right.
    fn packet(header: &Header, options: usize, payload: usize) -> Vec<u8> {
        let mut headers = Headers::default();
        header.emit(&mut headers, (options * 4 + payload) as u16);
        let mut bytes = headers.as_slice().to_vec();
        bytes.resize(bytes.len() + options * 4, 1);
        bytes[0] += options as u8;
        resum(&mut bytes, options);
        bytes.resize(bytes.len() + payload, 0xaa);
        bytes
    }

    fn resum(bytes: &mut [u8], options: usize) {
        bytes[10..12].fill(0);
        let sum = checksum::of(&bytes[..20 + options * 4]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    #[test]
    fn source_routes_and_impossible_options_are_refused() {
        for (option, expected) in [
            ([131, 4, 4, 0], Error::SourceRoute),
            ([1, 137, 3, 4], Error::SourceRoute),
            ([7, 5, 4, 0], Error::Option),
            ([7, 1, 0, 0], Error::Option),
            ([1, 1, 1, 7], Error::Option),
        ] {
            let mut bytes = packet(&header(), 1, 7);
            bytes[20..24].copy_from_slice(&option);
            resum(&mut bytes, 1);
            assert_eq!(parse(&bytes), Err(expected), "{option:?}");
        }
        let mut bytes = packet(&header(), 1, 7);
        bytes[20..24].copy_from_slice(&[0, 131, 9, 9]);
        resum(&mut bytes, 1);
        assert!(parse(&bytes).is_ok(), "nothing behind the end is an option");
    }

    #[test]
    fn options_and_padding_are_left_out_of_the_payload() {
        for options in 0..=10 {
            let mut bytes = packet(&header(), options, 7);
            bytes.extend_from_slice(&[0; 13]);
            let start = 20 + options * 4;
            let expected = Packet { header: header(), fragment: None, payload: start..start + 7 };
            assert_eq!(parse(&bytes), Ok(expected));
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = packet(&header(), 3, 9);
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]), Err(Error::Truncated), "{len}");
        }
    }

    #[test]
    fn bad_fields_are_told_apart() {
        let good = packet(&header(), 0, 16);
        let with = |change: &[(usize, u8)]| {
            let mut bad = good.clone();
            for &(at, value) in change {
                bad[at] = value;
            }
            resum(&mut bad, 0);
            parse(&bad)
        };
        assert_eq!(with(&[(0, 0x65)]), Err(Error::Version));
        assert_eq!(with(&[(0, 0x44)]), Err(Error::HeaderLength));
        assert_eq!(with(&[(3, 19)]), Err(Error::TotalLength));
        assert_eq!(with(&[(3, 40)]), Err(Error::Truncated));
        assert_eq!(with(&[(6, 0x20), (3, 35)]), Err(Error::Fragment), "not a multiple of eight");
        assert_eq!(with(&[(6, 0x20), (3, 20)]), Err(Error::Fragment), "empty");
        assert_eq!(with(&[(6, 0x1f), (7, 0xff)]), Err(Error::Fragment), "beyond 65535");
        let mut bad = good.clone();
        bad[8] = 1;
        assert_eq!(parse(&bad), Err(Error::Checksum));
    }

    #[test]
    fn fragments_round_trip() {
        let fragment = Fragment { identification: 0x1234, offset: 1480, more: true };
        let mut headers = Headers::default();
        let header = Header { dont_fragment: false, ..header() };
        header.emit_fragment(&mut headers, 16, fragment);
        let bytes = [headers.as_slice(), &[0; 16]].concat();
        let expected = Packet { header, fragment: Some(fragment), payload: 20..36 };
        assert_eq!(parse(&bytes), Ok(expected));
    }
}
