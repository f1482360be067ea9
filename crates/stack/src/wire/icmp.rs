//! ICMP for IPv4 (RFC 792, RFC 1191), and the packets that ICMP errors of both versions quote.

use super::{Ports, Protocol, be, checksum::Checksum, ipv4, ipv6};
use crate::wire::headers::Headers;
use core::net::IpAddr;
use neap_tcp::segment::Payload;
use neap_tcp::seq::SeqNumber;

/// Size of the header in front of the body, in bytes. The body is echo data or the quoted packet.
pub const HEADER_LEN: usize = 8;

/// Most bytes of a packet that an error quotes, so that the whole error stays within 576 bytes (RFC
/// 1812 section 4.3.2.3).
pub const MAX_QUOTE: usize = 576 - ipv4::HEADER_LEN - HEADER_LEN;

pub(crate) const ECHO_REPLY: u8 = 0;
pub(crate) const UNREACHABLE: u8 = 3;
pub(crate) const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;
const SOURCE_QUENCH: u8 = 4;
const REDIRECT: u8 = 5;

/// Whether a type is that of an error, about which no error is sent (RFC 1122 section 3.2.2).
pub(crate) fn is_error(kind: u8) -> bool {
    matches!(kind, UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
}

/// Whether messages of a type are fine although a host has no use for them, such as redirects and
/// questions for the time: the types up to 18 (`NR_ICMP_TYPES`) without those of errors about
/// packets, of which each code must make sense.
pub(crate) fn is_ignored(kind: u8) -> bool {
    kind <= 18 && !matches!(kind, UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM)
}

/// Reason why a destination is unreachable: the code of type 3, except for 4, which has a message
/// of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Unreachable {
    /// Network unreachable.
    Network = 0,
    /// Host unreachable.
    Host = 1,
    /// Protocol unreachable. It is a hard error for a connection.
    Protocol = 2,
    /// Port unreachable. It is a hard error for a connection.
    Port = 3,
    /// Source route failed.
    SourceRouteFailed = 5,
    /// Network unknown.
    NetworkUnknown = 6,
    /// Host unknown.
    HostUnknown = 7,
    /// Source host isolated.
    HostIsolated = 8,
    /// Network administratively prohibited.
    NetworkProhibited = 9,
    /// Host administratively prohibited.
    HostProhibited = 10,
    /// Network unreachable for this type of service.
    NetworkTos = 11,
    /// Host unreachable for this type of service.
    HostTos = 12,
    /// Filtered.
    PacketFiltered = 13,
    /// Precedence violation.
    PrecedenceViolation = 14,
    /// Precedence cut off.
    PrecedenceCutoff = 15,
}

impl Unreachable {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Network,
            1 => Self::Host,
            2 => Self::Protocol,
            3 => Self::Port,
            5 => Self::SourceRouteFailed,
            6 => Self::NetworkUnknown,
            7 => Self::HostUnknown,
            8 => Self::HostIsolated,
            9 => Self::NetworkProhibited,
            10 => Self::HostProhibited,
            11 => Self::NetworkTos,
            12 => Self::HostTos,
            13 => Self::PacketFiltered,
            14 => Self::PrecedenceViolation,
            15 => Self::PrecedenceCutoff,
            _ => return None,
        })
    }
}

/// Time that was exceeded. The codes are the same in both versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TimeExceeded {
    /// The hop count reached zero.
    Transit = 0,
    /// Fragments did not all come in time.
    Reassembly = 1,
}

impl TimeExceeded {
    pub(super) fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Transit),
            1 => Some(Self::Reassembly),
            _ => None,
        }
    }
}

/// ICMP message without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Ping request. Its body comes back in the reply.
    EchoRequest {
        /// Identifier, usually one per process.
        identifier: u16,
        /// Sequence number.
        sequence: u16,
    },
    /// Answer to a ping request.
    EchoReply {
        /// Identifier of the request.
        identifier: u16,
        /// Sequence number of the request.
        sequence: u16,
    },
    /// A packet could not be delivered; the body quotes it.
    Unreachable(Unreachable),
    /// A packet was too big for the next link and may not be fragmented; the body quotes it.
    FragmentationNeeded {
        /// MTU of that link in bytes, or 0 from routers older than RFC 1191.
        mtu: u16,
    },
    /// A packet's time was exceeded; the body quotes it.
    TimeExceeded(TimeExceeded),
    /// A header field made no sense; the body quotes the packet.
    ParameterProblem {
        /// Offset of the field in the packet.
        pointer: u8,
    },
}

/// Reason why bytes are not an ICMP message that the stack understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The message is shorter than its header.
    #[error("ICMP message truncated")]
    Truncated,
    /// The checksum is wrong.
    #[error("bad ICMP checksum")]
    Checksum,
    /// A host has no use for this type or code.
    #[error("unknown ICMP type {kind} code {code}")]
    Unknown {
        /// Type of the message.
        kind: u8,
        /// Code of the message.
        code: u8,
    },
    /// RFC 4861 section 7.1 demands that this neighbour discovery message is ignored.
    #[error("bad neighbour discovery message")]
    Neighbor,
    /// The error does not quote the beginning of a packet.
    #[error("ICMP error quotes no packet")]
    Quote,
}

/// Parses and verifies an IPv4 payload. Returns the message and its body.
pub fn parse(bytes: &[u8]) -> Result<(Message, &[u8]), Error> {
    let (header, body) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
    if super::checksum::of(bytes) != 0 {
        return Err(Error::Checksum);
    }
    let [kind, code, _, _, a, b, c, d] = *header;
    let (identifier, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let unknown = Error::Unknown { kind, code };
    let message = match (kind, code) {
        (ECHO_REQUEST, 0) => Message::EchoRequest { identifier, sequence },
        (ECHO_REPLY, 0) => Message::EchoReply { identifier, sequence },
        (UNREACHABLE, 4) => Message::FragmentationNeeded { mtu: sequence },
        (UNREACHABLE, _) => Message::Unreachable(Unreachable::from_code(code).ok_or(unknown)?),
        (TIME_EXCEEDED, _) => Message::TimeExceeded(TimeExceeded::from_code(code).ok_or(unknown)?),
        (PARAMETER_PROBLEM, 0) => Message::ParameterProblem { pointer: a },
        _ => return Err(unknown),
    };
    Ok((message, body))
}

impl Message {
    /// Writes the message in front of its body.
    pub fn emit(&self, headers: &mut Headers, body: &Payload) {
        let bytes = headers.prepend(HEADER_LEN);
        bytes.copy_from_slice(&self.first_words());
        let mut sum = Checksum::new();
        sum.add(bytes);
        for chunk in body.chunks() {
            sum.add(chunk);
        }
        bytes[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    }

    /// Type, code, a checksum of 0, and the rest of the header.
    pub(crate) fn first_words(&self) -> [u8; HEADER_LEN] {
        let pair = |kind, high: u16, low: u16| {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            [kind, 0, 0, 0, a, b, c, d]
        };
        match *self {
            Self::EchoRequest { identifier, sequence } => pair(ECHO_REQUEST, identifier, sequence),
            Self::EchoReply { identifier, sequence } => pair(ECHO_REPLY, identifier, sequence),
            Self::Unreachable(code) => [UNREACHABLE, code as u8, 0, 0, 0, 0, 0, 0],
            Self::FragmentationNeeded { mtu } => {
                let [high, low] = mtu.to_be_bytes();
                [UNREACHABLE, 4, 0, 0, 0, 0, high, low]
            }
            Self::TimeExceeded(code) => [TIME_EXCEEDED, code as u8, 0, 0, 0, 0, 0, 0],
            Self::ParameterProblem { pointer } => [PARAMETER_PROBLEM, 0, 0, 0, pointer, 0, 0, 0],
        }
    }
}

/// Beginning of a packet of this host that an ICMP error quotes.
///
/// Anyone can forge one: a sequence number outside the window shows that (RFC 5927).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Source of the packet: this host, if the error is for it.
    pub source: IpAddr,
    /// Destination of the packet.
    pub destination: IpAddr,
    /// Transport protocol of the packet.
    pub protocol: Protocol,
    /// Ports of the packet, if it is TCP or UDP and quoted that far.
    pub ports: Option<Ports>,
    /// Sequence number of the packet, if it is TCP and quoted that far.
    pub seq: Option<SeqNumber>,
    /// Offset of the transport header in the quote. It is behind the quote if that is cut off
    /// before.
    pub transport_at: usize,
}

impl Quoted {
    /// Parses the body of an ICMP error.
    pub fn v4(body: &[u8]) -> Result<Self, Error> {
        let (header, header_len, offset) = ipv4::parse_quoted(body).map_err(|_| Error::Quote)?;
        let at = if offset > 0 { body.len() } else { header_len };
        Ok(Self::new(header.source.into(), header.destination.into(), header.protocol, body, at))
    }

    /// Parses the body of an ICMPv6 error.
    pub fn v6(body: &[u8]) -> Result<Self, Error> {
        let (header, transport) = ipv6::parse_quoted(body).map_err(|_| Error::Quote)?;
        let at = body.len() - transport.len();
        Ok(Self::new(header.source.into(), header.destination.into(), header.protocol, body, at))
    }

    fn new(
        source: IpAddr,
        destination: IpAddr,
        protocol: Protocol,
        body: &[u8],
        transport_at: usize,
    ) -> Self {
        let transport = &body[transport_at..];
        let is_tcp = protocol == Protocol::TCP;
        let ports = if is_tcp || protocol == Protocol::UDP {
            transport
                .first_chunk::<4>()
                .map(|b| Ports { source: be!(u16, b, 0), destination: be!(u16, b, 2) })
        } else {
            None
        };
        let seq = transport.first_chunk::<8>().filter(|_| is_tcp);
        let seq = seq.map(|bytes| SeqNumber(be!(u32, bytes, 4)));
        Self { source, destination, protocol, ports, seq, transport_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Fragment, tcp};
    use bytes::Bytes;
    use neap_tcp::segment::Segment;

    fn emitted(message: Message, body: &[u8]) -> Vec<u8> {
        let mut headers = Headers::default();
        message.emit(&mut headers, &Bytes::copy_from_slice(body).into());
        [headers.as_slice(), body].concat()
    }

    #[test]
    fn messages_round_trip() {
        let mut messages = vec![
            Message::EchoRequest { identifier: 1, sequence: 0xfffe },
            Message::EchoReply { identifier: 0x8000, sequence: 2 },
            Message::FragmentationNeeded { mtu: 1400 },
            Message::TimeExceeded(TimeExceeded::Transit),
            Message::TimeExceeded(TimeExceeded::Reassembly),
            Message::ParameterProblem { pointer: 20 },
        ];
        let codes = (0..=255).filter_map(Unreachable::from_code);
        messages.extend(codes.map(Message::Unreachable));
        assert_eq!(messages.len(), 6 + 15);
        for message in messages {
            let mut bytes = emitted(message, b"odd body!");
            assert_eq!(parse(&bytes), Ok((message, &b"odd body!"[..])));
            for len in 0..HEADER_LEN {
                assert_eq!(parse(&bytes[..len]), Err(Error::Truncated));
            }
            bytes[9] ^= 4;
            assert_eq!(parse(&bytes), Err(Error::Checksum));
        }
    }

    #[test]
    fn every_type_and_code_parses_or_fails() {
        for kind in 0..=255 {
            for code in 0..=255 {
                let mut bytes = [kind, code, 0, 0, 0, 0, 0, 0];
                let sum = crate::wire::checksum::of(&bytes);
                bytes[2..4].copy_from_slice(&sum.to_be_bytes());
                if let Err(error) = parse(&bytes) {
                    assert_eq!(error, Error::Unknown { kind, code });
                }
            }
        }
    }

    fn segment_bytes() -> (Headers, Segment) {
        let segment = Segment { seq: SeqNumber(0x0102_0304), ..Segment::default() };
        let mut headers = Headers::default();
        let pseudo = tcp::tests::pseudo();
        tcp::emit(
            &mut headers,
            tcp::tests::PORTS,
            &segment,
            pseudo,
            crate::wire::ChecksumBy::Stack,
        );
        (headers, segment)
    }

    #[test]
    fn quotes_give_what_they_hold() {
        let (mut headers, segment) = segment_bytes();
        let ip = ipv4::Header { protocol: Protocol::TCP, ..ipv4::tests::header() };
        ip.emit(&mut headers, 1000);
        let bytes = headers.as_slice();
        let full = Quoted::v4(&bytes[..28]).unwrap();
        assert_eq!(full.source, IpAddr::from(ip.source));
        assert_eq!(full.destination, IpAddr::from(ip.destination));
        assert_eq!((full.ports, full.seq), (Some(tcp::tests::PORTS), Some(segment.seq)));
        for len in 0..28 {
            match Quoted::v4(&bytes[..len]) {
                Err(error) => assert!(len < 20 && error == Error::Quote),
                Ok(quoted) => {
                    assert_eq!(quoted.ports.is_some(), len >= 24);
                    assert_eq!(quoted.seq, None);
                }
            }
        }
    }

    #[test]
    fn quotes_of_ipv6_and_of_later_fragments() {
        let (mut headers, segment) = segment_bytes();
        let ip = ipv6::tests::header();
        let mut fragment = Fragment { identification: 7, offset: 0, more: true };
        let mut later = headers.clone();
        ip.emit_fragment(&mut headers, 24, fragment);
        let first = Quoted::v6(headers.as_slice()).unwrap();
        assert_eq!((first.ports, first.seq), (Some(tcp::tests::PORTS), Some(segment.seq)));
        fragment.offset = 8;
        ip.emit_fragment(&mut later, 24, fragment);
        let later = Quoted::v6(later.as_slice()).unwrap();
        assert_eq!((later.protocol, later.ports, later.seq), (Protocol::TCP, None, None));
        for len in 0..headers.len() {
            let _ = Quoted::v6(&headers.as_slice()[..len]);
        }
    }
}
