//! ICMPv6 (RFC 4443), with the messages of neighbour and router discovery (RFC 4861 sections 4.1 to
//! 4.4).

pub use super::icmp::{Error, Quoted, TimeExceeded};
use super::nd_option::{NdOption, options};
use super::{Protocol, checksum::Pseudo, ethernet, ipv6};
use crate::wire::headers::Headers;
use core::net::Ipv6Addr;
use neap_tcp::segment::Payload;

/// Size of the header in front of the body, in bytes. The body is echo data or the quoted packet.
pub const HEADER_LEN: usize = 8;

/// Most bytes of a packet that an error quotes, so that the whole error stays within the least MTU
/// (RFC 4443 section 2.4).
pub const MAX_QUOTE: usize = 1280 - ipv6::HEADER_LEN - HEADER_LEN;

/// Hop limit of neighbour discovery. It proves that no router forwarded the packet.
pub const NEIGHBOR_HOP_LIMIT: u8 = 255;

/// Bytes of a neighbour message without options, and of its link address option.
const NEIGHBOR_LEN: usize = 24;
const LINK_OPTION_LEN: usize = 8;

pub(crate) const UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
pub(crate) const ECHO_REQUEST: u8 = 128;
pub(crate) const ECHO_REPLY: u8 = 129;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// Whether a type is that of an error or a redirect, about which no error is sent (RFC 4443 section
/// 2.4).
pub(crate) fn is_error(kind: u8) -> bool {
    kind < ECHO_REQUEST || kind == REDIRECT
}

/// Whether a message is a neighbour solicitation, as far as its type says.
pub(crate) fn is_solicitation(message: &[u8]) -> bool {
    message.first() == Some(&SOLICITATION)
}

/// Whether a message is one of neighbour or router discovery, which only a link concerns.
pub(crate) fn is_discovery(kind: u8) -> bool {
    (ROUTER_SOLICITATION..=REDIRECT).contains(&kind)
}

const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;

const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

const MANAGED: u8 = 0x80;
const OTHER: u8 = 0x40;
/// Bytes of the reachable time and the retransmission timer, the beginning of the body of a router
/// advertisement.
pub(crate) const ROUTER_TIMERS_LEN: usize = 8;

/// Reason why a destination is unreachable: the code of type 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Unreachable {
    /// No route.
    NoRoute = 0,
    /// Administratively prohibited.
    Prohibited = 1,
    /// Beyond the scope of the source address.
    BeyondScope = 2,
    /// Address unreachable.
    Address = 3,
    /// Port unreachable. It is a hard error for a connection.
    Port = 4,
    /// Source address failed ingress or egress policy.
    SourcePolicy = 5,
    /// Reject route.
    RejectRoute = 6,
}

impl Unreachable {
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::NoRoute,
            1 => Self::Prohibited,
            2 => Self::BeyondScope,
            3 => Self::Address,
            4 => Self::Port,
            5 => Self::SourcePolicy,
            6 => Self::RejectRoute,
            _ => return None,
        })
    }
}

/// Kind of a parameter problem: the code of type 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Problem {
    /// The value of a header field makes no sense.
    Field = 0,
    /// The next header is unknown, so the protocol is unreachable.
    NextHeader = 1,
    /// An option is unknown.
    Option = 2,
    /// The first fragment of a datagram has not all of its headers (RFC 7112).
    Chain = 3,
}

impl Problem {
    fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Field),
            1 => Some(Self::NextHeader),
            2 => Some(Self::Option),
            3 => Some(Self::Chain),
            _ => None,
        }
    }
}

/// ICMPv6 message without its body.
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
    /// A packet was too big for the next link; the body quotes it.
    PacketTooBig {
        /// MTU of that link, in bytes.
        mtu: u32,
    },
    /// A packet's time was exceeded; the body quotes it.
    TimeExceeded(TimeExceeded),
    /// A header field made no sense; the body quotes the packet.
    ParameterProblem {
        /// Kind of the problem.
        problem: Problem,
        /// Offset of the field in the packet.
        pointer: u32,
    },
    /// Neighbour solicitation: who has `target`? It has no body.
    NeighborSolicitation {
        /// Address to be resolved.
        target: Ipv6Addr,
        /// Link address of the sender; `None` when it probes for duplicates.
        source_link: Option<[u8; 6]>,
    },
    /// Neighbour advertisement: `target` is at `target_link`. It has no body.
    NeighborAdvertisement {
        /// Address that was asked for, or that has moved.
        target: Ipv6Addr,
        /// Link address of the target. It may be absent when solicited by unicast.
        target_link: Option<[u8; 6]>,
        /// Whether the sender is a router.
        router: bool,
        /// Whether the message answers a solicitation.
        solicited: bool,
        /// Whether the message replaces a cached link address.
        replace: bool,
    },
    /// Router solicitation: which routers are on the link? It has no body.
    RouterSolicitation {
        /// Link address of the sender, if it has said it.
        source_link: Option<[u8; 6]>,
    },
    /// Router advertisement. Its body is two timers in milliseconds, of four bytes each (reachable
    /// time and retransmission timer), and then options ([`nd_option`](super::nd_option)).
    RouterAdvertisement {
        /// Hop limit that hosts should use; 0 says nothing.
        hop_limit: u8,
        /// Addresses are to be had by DHCPv6.
        managed: bool,
        /// Other settings are to be had by DHCPv6.
        other: bool,
        /// Seconds for which the sender is a default router; 0 if it is none.
        lifetime: u16,
    },
}

/// Parses and verifies the payload of an IPv6 packet with this header: checksum, and for neighbour
/// discovery the rules of RFC 4861 sections 6.1 and 7.1. Returns the message and its body.
pub fn parse<'a>(ip: &ipv6::Header, bytes: &'a [u8]) -> Result<(Message, &'a [u8]), Error> {
    let (header, body) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
    if !Pseudo::v6(ip.source, ip.destination, Protocol::ICMPV6).verifies(bytes) {
        return Err(Error::Checksum);
    }
    let [kind, code, _, _, a, b, c, d] = *header;
    let (identifier, sequence) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let word = u32::from_be_bytes([a, b, c, d]);
    let unknown = Error::Unknown { kind, code };
    let message = match (kind, code) {
        (ECHO_REQUEST, 0) => Message::EchoRequest { identifier, sequence },
        (ECHO_REPLY, 0) => Message::EchoReply { identifier, sequence },
        (UNREACHABLE, _) => Message::Unreachable(Unreachable::from_code(code).ok_or(unknown)?),
        // The code is to be ignored (RFC 4443 section 3.2).
        (PACKET_TOO_BIG, _) => Message::PacketTooBig { mtu: word },
        (TIME_EXCEEDED, _) => Message::TimeExceeded(TimeExceeded::from_code(code).ok_or(unknown)?),
        (PARAMETER_PROBLEM, _) => {
            let problem = Problem::from_code(code).ok_or(unknown)?;
            Message::ParameterProblem { problem, pointer: word }
        }
        (ROUTER_SOLICITATION, 0) => return Ok((router_solicitation(ip, body)?, &[])),
        (ROUTER_ADVERTISEMENT, 0) => {
            check_router_advertisement(ip, body)?;
            let (managed, other) = (b & MANAGED != 0, b & OTHER != 0);
            Message::RouterAdvertisement { hop_limit: a, managed, other, lifetime: sequence }
        }
        (SOLICITATION, 0) => return Ok((solicitation(ip, body)?, &[])),
        (ADVERTISEMENT, 0) => return Ok((advertisement(ip, a, body)?, &[])),
        _ => return Err(unknown),
    };
    Ok((message, body))
}

/// Target and options of a neighbour message.
struct Neighbor {
    target: Ipv6Addr,
    source_link: Option<[u8; 6]>,
    target_link: Option<[u8; 6]>,
}

fn neighbor(ip: &ipv6::Header, body: &[u8]) -> Result<Neighbor, Error> {
    let (target, mut options) = body.split_first_chunk::<16>().ok_or(Error::Truncated)?;
    let target = Ipv6Addr::from(*target);
    if ip.hop_limit != NEIGHBOR_HOP_LIMIT || target.is_multicast() {
        return Err(Error::Neighbor);
    }
    let mut neighbor = Neighbor { target, source_link: None, target_link: None };
    while !options.is_empty() {
        let [kind, words, ..] = *options else {
            return Err(Error::Neighbor);
        };
        let len = usize::from(words) * 8;
        let option = options.get(..len).filter(|option| !option.is_empty());
        let option = option.ok_or(Error::Neighbor)?;
        if let Some(&[_, _, a, b, c, d, e, f]) = option.first_chunk::<LINK_OPTION_LEN>() {
            let link = Some([a, b, c, d, e, f]).filter(|link| !ethernet::is_multicast(*link));
            match kind {
                SOURCE_LINK => neighbor.source_link = link,
                TARGET_LINK => neighbor.target_link = link,
                _ => {}
            }
        }
        options = &options[len..];
    }
    Ok(neighbor)
}

fn solicitation(ip: &ipv6::Header, body: &[u8]) -> Result<Message, Error> {
    let Neighbor { target, source_link, .. } = neighbor(ip, body)?;
    let is_probe = ip.source.is_unspecified();
    if is_probe && (source_link.is_some() || ip.destination != solicited_node(target)) {
        return Err(Error::Neighbor);
    }
    Ok(Message::NeighborSolicitation { target, source_link })
}

fn advertisement(ip: &ipv6::Header, flags: u8, body: &[u8]) -> Result<Message, Error> {
    let Neighbor { target, target_link, .. } = neighbor(ip, body)?;
    let solicited = flags & SOLICITED != 0;
    if solicited && ip.destination.is_multicast() {
        return Err(Error::Neighbor);
    }
    Ok(Message::NeighborAdvertisement {
        target,
        target_link,
        router: flags & ROUTER != 0,
        solicited,
        replace: flags & OVERRIDE != 0,
    })
}

/// RFC 4861 section 6.1.1
fn router_solicitation(ip: &ipv6::Header, body: &[u8]) -> Result<Message, Error> {
    if ip.hop_limit != NEIGHBOR_HOP_LIMIT {
        return Err(Error::Neighbor);
    }
    let mut source_link = None;
    for option in options(body) {
        if let NdOption::SourceLink(link) = option? {
            source_link = Some(link).filter(|link| !ethernet::is_multicast(*link));
        }
    }
    if ip.source.is_unspecified() && source_link.is_some() {
        return Err(Error::Neighbor);
    }
    Ok(Message::RouterSolicitation { source_link })
}

/// RFC 4861 section 6.1.2
fn check_router_advertisement(ip: &ipv6::Header, body: &[u8]) -> Result<(), Error> {
    if ip.hop_limit != NEIGHBOR_HOP_LIMIT || !ip.source.is_unicast_link_local() {
        return Err(Error::Neighbor);
    }
    let behind = body.get(ROUTER_TIMERS_LEN..).ok_or(Error::Truncated)?;
    options(behind).try_for_each(|option| option.map(drop))
}

/// Returns the multicast group that a host joins for an address (RFC 4291 section 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let low = address.to_bits() & 0xff_ffff;
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | low)
}

/// Returns the Ethernet address of an IPv6 group (RFC 2464 section 7).
pub fn multicast_link(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

impl Message {
    /// Writes the message in front of its body (empty for solicitations and for advertisements of
    /// neighbours) and returns the size. The addresses are those of the IPv6 header that follows.
    pub fn emit(
        &self,
        headers: &mut Headers,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        body: &Payload,
    ) -> usize {
        let len = self.header_len();
        let bytes = headers.prepend(len);
        bytes[..HEADER_LEN].copy_from_slice(&self.first_words());
        if let Self::NeighborSolicitation { target, source_link: link }
        | Self::NeighborAdvertisement { target, target_link: link, .. } = self
        {
            bytes[HEADER_LEN..NEIGHBOR_LEN].copy_from_slice(&target.octets());
            let is_solicitation = matches!(self, Self::NeighborSolicitation { .. });
            if let Some(link) = link {
                bytes[NEIGHBOR_LEN] = if is_solicitation { SOURCE_LINK } else { TARGET_LINK };
                bytes[NEIGHBOR_LEN + 1] = 1;
                bytes[NEIGHBOR_LEN + 2..].copy_from_slice(link);
            }
        }
        if let Self::RouterSolicitation { source_link: Some(link) } = self {
            bytes[HEADER_LEN..HEADER_LEN + 2].copy_from_slice(&[SOURCE_LINK, 1]);
            bytes[HEADER_LEN + 2..].copy_from_slice(link);
        }
        let pseudo = Pseudo::v6(source, destination, Protocol::ICMPV6);
        let mut sum = pseudo.with_len((len as u32).saturating_add(body.len()));
        sum.add(bytes);
        for chunk in body.chunks() {
            sum.add(chunk);
        }
        bytes[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        len
    }

    fn header_len(&self) -> usize {
        match self {
            Self::NeighborSolicitation { source_link: link, .. }
            | Self::NeighborAdvertisement { target_link: link, .. } => {
                NEIGHBOR_LEN + if link.is_some() { LINK_OPTION_LEN } else { 0 }
            }
            Self::RouterSolicitation { source_link: Some(_) } => HEADER_LEN + LINK_OPTION_LEN,
            _ => HEADER_LEN,
        }
    }

    pub(crate) fn first_words(&self) -> [u8; HEADER_LEN] {
        let words = |kind, code, word: u32| {
            let [a, b, c, d] = word.to_be_bytes();
            [kind, code, 0, 0, a, b, c, d]
        };
        let pair = |kind, high, low| words(kind, 0, u32::from(high) << 16 | u32::from(low));
        match *self {
            Self::EchoRequest { identifier, sequence } => pair(ECHO_REQUEST, identifier, sequence),
            Self::EchoReply { identifier, sequence } => pair(ECHO_REPLY, identifier, sequence),
            Self::Unreachable(code) => words(UNREACHABLE, code as u8, 0),
            Self::PacketTooBig { mtu } => words(PACKET_TOO_BIG, 0, mtu),
            Self::TimeExceeded(code) => words(TIME_EXCEEDED, code as u8, 0),
            Self::ParameterProblem { problem, pointer } => {
                words(PARAMETER_PROBLEM, problem as u8, pointer)
            }
            Self::NeighborSolicitation { .. } => words(SOLICITATION, 0, 0),
            Self::NeighborAdvertisement { router, solicited, replace, .. } => {
                let flag = |set, flag| if set { flag } else { 0 };
                let flags =
                    flag(router, ROUTER) | flag(solicited, SOLICITED) | flag(replace, OVERRIDE);
                words(ADVERTISEMENT, 0, u32::from(flags) << 24)
            }
            Self::RouterSolicitation { .. } => words(ROUTER_SOLICITATION, 0, 0),
            Self::RouterAdvertisement { hop_limit, managed, other, lifetime } => {
                let flag = |set, flag| if set { flag } else { 0 };
                let flags = flag(managed, MANAGED) | flag(other, OTHER);
                let [high, low] = lifetime.to_be_bytes();
                [ROUTER_ADVERTISEMENT, 0, 0, 0, hop_limit, flags, high, low]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn ip() -> ipv6::Header {
        ipv6::Header {
            protocol: Protocol::ICMPV6,
            hop_limit: NEIGHBOR_HOP_LIMIT,
            ..ipv6::tests::header()
        }
    }

    fn emitted(ip: &ipv6::Header, message: Message, body: &[u8]) -> Vec<u8> {
        let mut headers = Headers::default();
        let payload = Bytes::copy_from_slice(body).into();
        let len = message.emit(&mut headers, ip.source, ip.destination, &payload);
        assert_eq!(len, headers.len());
        [headers.as_slice(), body].concat()
    }

    fn solicitation_of(target: Ipv6Addr, source_link: Option<[u8; 6]>) -> Message {
        Message::NeighborSolicitation { target, source_link }
    }

    fn advertisement_of(target_link: Option<[u8; 6]>, solicited: bool) -> Message {
        let target = ip().source;
        let (router, replace) = (false, true);
        Message::NeighborAdvertisement { target, target_link, router, solicited, replace }
    }

    #[test]
    fn messages_round_trip() {
        let mut messages = vec![
            Message::EchoRequest { identifier: 1, sequence: 0xfffe },
            Message::EchoReply { identifier: 0x8000, sequence: 2 },
            Message::PacketTooBig { mtu: 0x12345 },
            Message::TimeExceeded(TimeExceeded::Transit),
            Message::TimeExceeded(TimeExceeded::Reassembly),
        ];
        messages.extend((0..=255).filter_map(Unreachable::from_code).map(Message::Unreachable));
        messages.extend(
            (0..=255)
                .filter_map(Problem::from_code)
                .map(|problem| Message::ParameterProblem { problem, pointer: 1 << 20 }),
        );
        assert_eq!(messages.len(), 5 + 7 + 4);
        for message in messages {
            let mut bytes = emitted(&ip(), message, b"odd body!");
            assert_eq!(parse(&ip(), &bytes), Ok((message, &b"odd body!"[..])));
            for len in 0..HEADER_LEN {
                assert_eq!(parse(&ip(), &bytes[..len]), Err(Error::Truncated));
            }
            bytes[9] ^= 4;
            assert_eq!(parse(&ip(), &bytes), Err(Error::Checksum));
        }
    }

    #[test]
    fn neighbour_messages_round_trip() {
        let link = Some([2, 0, 0, 0, 0, 9]);
        for message in [
            solicitation_of(ip().destination, link),
            solicitation_of(ip().destination, None),
            advertisement_of(link, true),
            advertisement_of(None, false),
        ] {
            let bytes = emitted(&ip(), message, &[]);
            assert_eq!(parse(&ip(), &bytes), Ok((message, &[][..])));
            for len in 0..bytes.len() {
                assert!(parse(&ip(), &bytes[..len]).is_err());
            }
        }
    }

    #[test]
    fn neighbour_messages_keep_the_rules() {
        let check = |ip: &ipv6::Header, message| {
            parse(ip, &emitted(ip, message, &[])).map(|(message, _)| message)
        };
        let target = ip().destination;
        let link = Some([2, 0, 0, 0, 0, 9]);
        let refused = Err(Error::Neighbor);
        let far = ipv6::Header { hop_limit: 254, ..ip() };
        assert_eq!(check(&far, solicitation_of(target, link)), refused);
        assert_eq!(check(&ip(), solicitation_of(solicited_node(target), link)), refused);
        let group = ipv6::Header {
            source: Ipv6Addr::UNSPECIFIED,
            destination: solicited_node(target),
            ..ip()
        };
        assert!(check(&group, solicitation_of(target, None)).is_ok());
        assert_eq!(check(&group, solicitation_of(target, link)), refused);
        assert_eq!(check(&group, advertisement_of(link, true)), refused);
        assert!(check(&group, advertisement_of(link, false)).is_ok());
        // An option of length zero would never end.
        let endless = emitted(&ip(), solicitation_of(target, None), &[1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(parse(&ip(), &endless), refused.map(|m: Message| (m, &[][..])));
        let unknown = emitted(&ip(), solicitation_of(target, None), &[14, 1, 0, 0, 0, 0, 0, 0]);
        assert!(parse(&ip(), &unknown).is_ok());
    }

    #[test]
    fn router_messages_round_trip_and_keep_the_rules() {
        let link = Some([2, 0, 0, 0, 0, 9]);
        let router = ipv6::Header { source: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1), ..ip() };
        for message in [
            Message::RouterSolicitation { source_link: link },
            Message::RouterSolicitation { source_link: None },
        ] {
            let bytes = emitted(&router, message, &[]);
            assert_eq!(parse(&router, &bytes), Ok((message, &[][..])));
        }
        let message = Message::RouterAdvertisement {
            hop_limit: 64,
            managed: true,
            other: false,
            lifetime: 1800,
        };
        let body = [0, 0, 0, 1, 0, 0, 0, 2, 5, 1, 0, 0, 0, 0, 5, 0xdc];
        let bytes = emitted(&router, message, &body);
        assert_eq!(parse(&router, &bytes), Ok((message, &body[..])));
        let refused = |ip: &ipv6::Header, message, body: &[u8]| {
            parse(ip, &emitted(ip, message, body)).unwrap_err()
        };
        let far = ipv6::Header { hop_limit: 254, ..router };
        let solicitation = Message::RouterSolicitation { source_link: link };
        let nobody = ipv6::Header { source: Ipv6Addr::UNSPECIFIED, ..router };
        assert_eq!(refused(&far, solicitation, &[]), Error::Neighbor);
        assert_eq!(refused(&nobody, solicitation, &[]), Error::Neighbor);
        assert_eq!(refused(&router, solicitation, &[1, 0, 0, 0, 0, 0, 0, 0]), Error::Neighbor);
        assert_eq!(refused(&far, message, &body), Error::Neighbor);
        assert_eq!(refused(&ip(), message, &body), Error::Neighbor, "not from a link");
        assert_eq!(refused(&router, message, &body[..7]), Error::Truncated);
        assert_eq!(refused(&router, message, &body[..12]), Error::Neighbor);
    }

    #[test]
    fn group_addresses() {
        let node = solicited_node("fe80::2aa:ff:fe28:9c5a".parse().unwrap());
        assert_eq!(node, "ff02::1:ff28:9c5a".parse::<Ipv6Addr>().unwrap());
        assert_eq!(multicast_link(node), [0x33, 0x33, 0xff, 0x28, 0x9c, 0x5a]);
    }
}
