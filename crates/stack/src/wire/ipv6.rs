//! IPv6 headers and extension headers (RFC 8200).

use super::{Fragment, Protocol, be, ecn_of};
use crate::wire::headers::Headers;
use core::net::Ipv6Addr;
use core::ops::Range;
use neap_tcp::segment::Ecn;

/// Size in bytes of the fixed header, the only one that is emitted besides the fragment header.
pub const HEADER_LEN: usize = 40;

/// Size of the fragment header, in bytes.
pub const FRAGMENT_HEADER_LEN: usize = 8;

/// Offset of the fixed header's field that names the next header.
const NEXT_HEADER_AT: usize = 6;

/// Extension headers that are walked before a packet is refused; and options in each of them
/// (Linux's `max_hbh_opts_number`, `max_dst_opts_number`).
const MAX_EXTENSIONS: usize = 8;
const MAX_OPTIONS: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// Fields of the IPv6 header that a receiver or sender uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Protocol of the payload, behind all extension headers.
    pub protocol: Protocol,
    /// Hops left.
    pub hop_limit: u8,
    /// Differentiated services codepoint, 0 to 63.
    pub dscp: u8,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// Parsed IPv6 packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Header of the packet.
    pub header: Header,
    /// Place in its datagram, if the packet is a fragment.
    ///
    /// `header.protocol` is then what the whole datagram begins with, which may be another
    /// extension header: see [`upper_layer`].
    pub fragment: Option<Fragment>,
    /// Whether there is a fragment header, if only one that makes no difference (RFC 6946).
    pub has_fragment_header: bool,
    /// Range of the payload: behind the extension headers, without link padding.
    pub payload: Range<usize>,
}

/// Reason why bytes are not an IPv6 packet for a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The packet is shorter than its headers say.
    #[error("IPv6 packet truncated")]
    Truncated,
    /// The version is not 6.
    #[error("IP version is not 6")]
    Version,
    /// An extension header reaches beyond the payload, or is where it may not be.
    #[error("bad IPv6 extension header")]
    Extension,
    /// There are more extension headers or options than a host will walk.
    #[error("too many IPv6 extension headers or options")]
    TooMany,
    /// The receiver must understand an option and does not.
    #[error("unknown IPv6 option at {pointer}")]
    Option {
        /// Offset of the option in the packet, for a parameter problem.
        pointer: u32,
        /// Whether the sender wants a report.
        report: ReportRule,
    },
    /// A routing header has segments left, and hosts do not forward.
    #[error("IPv6 routing header at {pointer}")]
    Routing {
        /// Offset of the header's type in the packet, for a parameter problem.
        pointer: u32,
    },
    /// A fragment reaches beyond the largest datagram, or has an impossible length.
    #[error("bad IPv6 fragment")]
    Fragment,
}

/// Rule by which an unknown option asks for a parameter problem (RFC 8200 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportRule {
    /// Discard the packet in silence.
    Never,
    /// Report always.
    Always,
    /// Report unless the packet was for a group.
    UnlessMulticast,
}

/// Parses a packet up to its transport header or, if it is a fragment, its fragment data.
pub fn parse(packet: &[u8]) -> Result<Packet, Error> {
    let (mut header, next) = parse_header(packet)?;
    let end = HEADER_LEN + usize::from(u16::from_be_bytes([packet[4], packet[5]]));
    let packet = packet.get(..end).ok_or(Error::Truncated)?;
    let walked = walk(next, packet, HEADER_LEN)?;
    header.protocol = walked.protocol;
    let payload = walked.at..end;
    if let Some(fragment) = walked.fragment
        && (payload.is_empty()
            || usize::from(fragment.offset) + payload.len() > 0xffff
            || (fragment.more && payload.len() % 8 != 0))
    {
        return Err(Error::Fragment);
    }
    let Walked { fragment, has_fragment_header, .. } = walked;
    Ok(Packet { header, fragment, has_fragment_header, payload })
}

/// Walks to the transport header in a reassembled datagram, whose `payload` begins with `protocol`.
/// Returns the transport protocol and where it starts.
pub fn upper_layer(protocol: Protocol, payload: &[u8]) -> Result<(Protocol, usize), Error> {
    let walked = walk(protocol.0, payload, 0)?;
    match walked.fragment {
        None => Ok((walked.protocol, walked.at)),
        Some(_) => Err(Error::Extension),
    }
}

/// Whether the first fragment of a datagram, whose data begins with the header of kind `next`, has
/// all extension headers and the header behind them, of which `least` says the size in bytes.
pub(crate) fn has_all_headers(
    mut next: Protocol,
    data: &[u8],
    least: impl Fn(Protocol) -> usize,
) -> bool {
    let mut at = 0;
    for _ in 0..=MAX_EXTENSIONS {
        let bytes = data.get(at..).unwrap_or_default();
        let len = match (next.0, bytes) {
            (HOP_BY_HOP | ROUTING | DESTINATION, [_, len, ..]) => 8 + usize::from(*len) * 8,
            (FRAGMENT, [_, ..]) => FRAGMENT_HEADER_LEN,
            (HOP_BY_HOP | ROUTING | DESTINATION | FRAGMENT, _) => return false,
            _ => return at + least(next) <= data.len(),
        };
        (next, at) = (Protocol(bytes[0]), at + len);
    }
    // Such a datagram is refused for the number of its headers.
    true
}

/// A packet that may be cut short, as ICMPv6 errors quote it. Returns the header and what is left
/// of the transport header; empty if the packet is a fragment other than the first.
pub(crate) fn parse_quoted(packet: &[u8]) -> Result<(Header, &[u8]), Error> {
    let (mut header, next) = parse_header(packet)?;
    let walked = walk(next, packet, HEADER_LEN)?;
    header.protocol = walked.protocol;
    let is_later = walked.fragment.is_some_and(|fragment| fragment.offset > 0);
    let transport = if is_later { &[] } else { &packet[walked.at..] };
    Ok((header, transport))
}

/// Offset in a packet of the field that names the protocol behind all extension headers, or the
/// last header that is there; for a parameter problem (RFC 4443 section 3.4). In the first of
/// several fragments it may be behind the fragment header.
pub(crate) fn protocol_field(packet: &[u8]) -> usize {
    let (mut field, mut at) = (NEXT_HEADER_AT, HEADER_LEN);
    for _ in 0..=MAX_EXTENSIONS {
        let Some([_, len, ..]) = packet.get(at..) else { break };
        let len = match packet.get(field) {
            Some(&FRAGMENT) => FRAGMENT_HEADER_LEN,
            Some(&(HOP_BY_HOP | ROUTING | DESTINATION)) => 8 + usize::from(*len) * 8,
            _ => break,
        };
        (field, at) = (at, at + len);
    }
    field
}

/// The fixed header and its next-header field.
fn parse_header(packet: &[u8]) -> Result<(Header, u8), Error> {
    let bytes = packet.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
    let first = be!(u32, bytes, 0);
    if first >> 28 != 6 {
        return Err(Error::Version);
    }
    let class = (first >> 20) as u8;
    let (_, addresses) = bytes.split_at(8);
    let (addresses, _) = addresses.as_chunks::<16>();
    let header = Header {
        source: addresses[0].into(),
        destination: addresses[1].into(),
        protocol: Protocol(bytes[6]),
        hop_limit: bytes[7],
        dscp: class >> 2,
        ecn: ecn_of(class),
        flow_label: first & 0xf_ffff,
    };
    Ok((header, bytes[6]))
}

/// Where a walk over extension headers ended.
struct Walked {
    protocol: Protocol,
    at: usize,
    fragment: Option<Fragment>,
    has_fragment_header: bool,
}

/// Walks from the header of kind `next` at `at`. A fragment header that makes a difference ends
/// the walk; an atomic fragment (RFC 6946) is passed by.
fn walk(mut next: u8, packet: &[u8], mut at: usize) -> Result<Walked, Error> {
    let start = at;
    let mut has_fragment_header = false;
    for _ in 0..=MAX_EXTENSIONS {
        let is_extension = matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION);
        if !is_extension {
            let protocol = Protocol(next);
            return Ok(Walked { protocol, at, fragment: None, has_fragment_header });
        }
        let rest = packet.get(at..).unwrap_or_default();
        let bytes = rest.first_chunk::<8>().ok_or(Error::Extension)?;
        if next == FRAGMENT {
            let word = be!(u16, bytes, 2);
            let (offset, more) = (word & 0xfff8, word & 1 != 0);
            (next, at) = (bytes[0], at + FRAGMENT_HEADER_LEN);
            has_fragment_header = true;
            if offset != 0 || more {
                let identification = be!(u32, bytes, 4);
                let fragment = Some(Fragment { identification, offset, more });
                let protocol = Protocol(next);
                return Ok(Walked { protocol, at, fragment, has_fragment_header });
            }
            continue;
        }
        let len = 8 + usize::from(bytes[1]) * 8;
        let extension = rest.get(..len).ok_or(Error::Extension)?;
        match next {
            HOP_BY_HOP if at != start => return Err(Error::Extension),
            ROUTING if bytes[3] != 0 => {
                return Err(Error::Routing { pointer: at as u32 + 2 });
            }
            ROUTING => {}
            _ => check_options(&extension[2..], at + 2)?,
        }
        (next, at) = (bytes[0], at + len);
    }
    Err(Error::TooMany)
}

/// Whether a host that knows only padding may go on behind these options, which start at `at`.
fn check_options(mut options: &[u8], mut at: usize) -> Result<(), Error> {
    let mut count = 0;
    while let [kind, rest @ ..] = options {
        if *kind == 0 {
            (options, at) = (rest, at + 1);
            continue;
        }
        let [len, rest @ ..] = rest else {
            return Err(Error::Extension);
        };
        let rest = rest.get(usize::from(*len)..).ok_or(Error::Extension)?;
        if *kind != 1 {
            let pointer = at as u32;
            let report = match kind >> 6 {
                0 => None,
                1 => Some(ReportRule::Never),
                2 => Some(ReportRule::Always),
                _ => Some(ReportRule::UnlessMulticast),
            };
            if let Some(report) = report {
                return Err(Error::Option { pointer, report });
            }
            count += 1;
            if count > MAX_OPTIONS {
                return Err(Error::TooMany);
            }
        }
        at += 2 + usize::from(*len);
        options = rest;
    }
    Ok(())
}

impl Header {
    /// Writes the header of a whole datagram in front of `headers`. Transport header and payload
    /// together have `payload_len` bytes.
    pub fn emit(&self, headers: &mut Headers, payload_len: u16) {
        self.write(headers, payload_len, self.protocol.0);
    }

    /// Writes header and fragment header in front. `payload_len` is without the fragment header.
    pub fn emit_fragment(&self, headers: &mut Headers, payload_len: u16, fragment: Fragment) {
        let bytes = headers.prepend(FRAGMENT_HEADER_LEN);
        bytes[0] = self.protocol.0;
        let word = (fragment.offset & 0xfff8) | u16::from(fragment.more);
        bytes[2..4].copy_from_slice(&word.to_be_bytes());
        bytes[4..].copy_from_slice(&fragment.identification.to_be_bytes());
        let len = payload_len.saturating_add(FRAGMENT_HEADER_LEN as u16);
        self.write(headers, len, FRAGMENT);
    }

    fn write(&self, headers: &mut Headers, payload_len: u16, next: u8) {
        let class = u32::from(self.dscp << 2 | self.ecn as u8);
        let first = 6 << 28 | class << 20 | (self.flow_label & 0xf_ffff);
        let bytes = headers.prepend(HEADER_LEN);
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..6].copy_from_slice(&payload_len.to_be_bytes());
        bytes[6] = next;
        bytes[7] = self.hop_limit;
        bytes[8..24].copy_from_slice(&self.source.octets());
        bytes[24..].copy_from_slice(&self.destination.octets());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn header() -> Header {
        Header {
            source: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
            destination: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
            protocol: Protocol::TCP,
            hop_limit: 64,
            dscp: 46,
            ecn: Ecn::Ce,
            flow_label: 0xabcde,
        }
    }

    /// A packet of `parts` behind a fixed header whose next header is `next`.
    fn packet(next: u8, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        let mut headers = Headers::default();
        let header = Header { protocol: Protocol(next), ..header() };
        header.emit(&mut headers, body.len() as u16);
        [headers.as_slice(), &body].concat()
    }

    const PAD: [u8; 8] = [6, 0, 1, 4, 0, 0, 0, 0];

    fn extension(next: u8) -> [u8; 8] {
        [next, 0, 1, 4, 0, 0, 0, 0]
    }

    #[test]
    fn extension_headers_are_walked() {
        let bytes = packet(
            HOP_BY_HOP,
            &[
                &[ROUTING, 0, 5, 2, 0, 0, 1, 0],
                &[DESTINATION, 0, 0, 0, 0, 0, 0, 0],
                &[FRAGMENT, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                &[6, 0, 0, 0, 0, 0, 0, 9],
                b"segment",
            ],
        );
        let expected =
            Packet { header: header(), fragment: None, has_fragment_header: true, payload: 80..87 };
        assert_eq!(parse(&bytes), Ok(expected.clone()), "router alert, atomic fragment");
        assert_eq!(parse(&[&bytes[..], &[0; 5]].concat()), Ok(expected), "link padding");
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]), Err(Error::Truncated), "{len}");
        }
    }

    #[test]
    fn extensions_that_reach_too_far_are_refused() {
        let bytes = packet(DESTINATION, &[&PAD, b"segment"]);
        for len in 0..8 {
            let mut short = bytes.clone();
            short[5] = len;
            assert_eq!(parse(&short), Err(Error::Extension), "{len}");
        }
        let mut long = bytes.clone();
        long[41] = 1;
        assert_eq!(parse(&long), Err(Error::Extension));
        let mut long = bytes;
        long[43] = 5;
        assert_eq!(parse(&long), Err(Error::Extension), "option beyond its header");
    }

    #[test]
    fn chains_are_bounded_and_ordered() {
        let chain = |n: usize| {
            let mut parts = vec![extension(DESTINATION); n - 1];
            parts.push(extension(6));
            parse(&packet(DESTINATION, &[&parts.concat()])).map(|p| p.payload.start)
        };
        assert_eq!(chain(MAX_EXTENSIONS), Ok(40 + 8 * MAX_EXTENSIONS));
        assert_eq!(chain(MAX_EXTENSIONS + 1), Err(Error::TooMany));
        let bytes = packet(DESTINATION, &[&extension(HOP_BY_HOP), &PAD]);
        assert_eq!(parse(&bytes), Err(Error::Extension));
        let many = [[6, 2].as_slice(), &[2, 0].repeat(11)].concat();
        assert_eq!(parse(&packet(HOP_BY_HOP, &[&many])), Err(Error::TooMany));
    }

    #[test]
    fn unknown_options_act_by_their_high_bits() {
        let with = |kind: u8| parse(&packet(HOP_BY_HOP, &[&[6, 0, 0, kind, 2, 0, 0, 0]]));
        let error = |report| Err(Error::Option { pointer: 43, report });
        assert!(with(0x3e).is_ok());
        assert_eq!(with(0x7e), error(ReportRule::Never));
        assert_eq!(with(0xbe), error(ReportRule::Always));
        assert_eq!(with(0xfe), error(ReportRule::UnlessMulticast));
        let routing = packet(ROUTING, &[&[6, 0, 0, 1, 0, 0, 0, 0]]);
        assert_eq!(parse(&routing), Err(Error::Routing { pointer: 42 }));
    }

    #[test]
    fn fragments_round_trip() {
        let fragment = Fragment { identification: 0xdead_beef, offset: 1232, more: true };
        let mut headers = Headers::default();
        header().emit_fragment(&mut headers, 16, fragment);
        let mut bytes = [headers.as_slice(), &[0; 16]].concat();
        let expected = Packet {
            header: header(),
            fragment: Some(fragment),
            has_fragment_header: true,
            payload: 48..64,
        };
        assert_eq!(parse(&bytes), Ok(expected));
        bytes[5] = 23;
        assert_eq!(parse(&bytes), Err(Error::Fragment));
        bytes[5] = 24;
        bytes[42..44].copy_from_slice(&[0xff, 0xf9]);
        assert_eq!(parse(&bytes), Err(Error::Fragment));
    }

    #[test]
    fn a_reassembled_datagram_is_walked_on() {
        let payload = [&PAD[..], b"segment"].concat();
        assert_eq!(upper_layer(Protocol(DESTINATION), &payload), Ok((Protocol::TCP, 8)));
        assert_eq!(upper_layer(Protocol::UDP, &payload), Ok((Protocol::UDP, 0)));
        let nested = [6, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(upper_layer(Protocol(FRAGMENT), &nested), Err(Error::Extension));
    }
}
