//! Packets of a script to and from bytes, at any flags and options, sensible or not.

use crate::ast::{IcmpSpec, OptionSpec};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use neap_stack::wire::Protocol;
use neap_stack::wire::checksum::{self, Pseudo};
use neap_tcp::segment::Ecn;

/// Bytes of headers without options.
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;

/// Hops that a packet of the peer has left.
const HOPS: u8 = 64;

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    /// The sender.
    pub(crate) from: SocketAddr,
    /// The receiver.
    pub(crate) to: SocketAddr,
}

/// A TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Control bits, NS as 0x100.
    pub(crate) flags: u16,
    /// First sequence number.
    pub(crate) seq: u32,
    /// Acknowledgement number, without the flag too.
    pub(crate) ack: u32,
    /// Window field as on the wire.
    pub(crate) window: u16,
    /// Urgent pointer.
    pub(crate) urgent: u16,
    /// Options in order.
    pub(crate) options: Vec<OptionSpec>,
    /// The bytes that it carries.
    pub(crate) payload: Bytes,
}

/// A packet that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    /// A segment with the numbers of the wire.
    Tcp {
        /// Who sends it to whom.
        flow: Flow,
        /// ECN codepoint.
        ecn: Ecn,
        /// The segment.
        segment: Segment,
    },
    /// Something else, described.
    Other(String),
}

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet is malformed: {0}")]
pub(crate) struct Malformed(&'static str);

/// The options as bytes, not padded.
fn options_bytes(options: &[OptionSpec]) -> Vec<u8> {
    let mut out = Vec::new();
    for option in options {
        let (kind, value): (u8, Vec<u8>) = match option {
            OptionSpec::End => {
                out.push(0);
                continue;
            }
            OptionSpec::Nop => {
                out.push(1);
                continue;
            }
            OptionSpec::Mss(mss) => (2, mss.to_be_bytes().into()),
            OptionSpec::WindowScale(shift) => (3, vec![*shift]),
            OptionSpec::SackPermitted => (4, Vec::new()),
            OptionSpec::Sack(blocks) => {
                let bytes = blocks
                    .iter()
                    .flat_map(|&(left, right)| [left.to_be_bytes(), right.to_be_bytes()].concat());
                (5, bytes.collect())
            }
            OptionSpec::Timestamps(value, echo) => {
                (8, [value.to_be_bytes(), echo.to_be_bytes()].concat())
            }
            OptionSpec::FastOpen(cookie) => (34, cookie.clone()),
            OptionSpec::Other(kind, value) => (*kind, value.clone()),
        };
        // The parser lets no more than 40 bytes pass.
        out.extend([kind, (value.len() + 2) as u8]);
        out.extend(value);
    }
    out
}

fn parse_options(mut field: &[u8]) -> Result<Vec<OptionSpec>, Malformed> {
    let bad = Malformed("options");
    let mut options = Vec::new();
    while let [kind, rest @ ..] = field {
        match kind {
            0 => {
                options.push(OptionSpec::End);
                field = rest;
            }
            1 => {
                options.push(OptionSpec::Nop);
                field = rest;
            }
            &kind => {
                let len = usize::from(*rest.first().ok_or(bad)?).checked_sub(2).ok_or(bad)?;
                let value = rest.get(1..1 + len).ok_or(bad)?;
                field = &rest[1 + len..];
                options.push(parse_option(kind, value));
            }
        }
    }
    Ok(options)
}

/// One option that has a length.
fn parse_option(kind: u8, value: &[u8]) -> OptionSpec {
    let word = |at: usize| be32(value, at);
    match (kind, value.len()) {
        (2, 2) => OptionSpec::Mss(be16(value, 0)),
        (3, 1) => OptionSpec::WindowScale(value[0]),
        (4, 0) => OptionSpec::SackPermitted,
        (5, len) if len % 8 == 0 && len > 0 => {
            OptionSpec::Sack((0..len / 8).map(|i| (word(8 * i), word(8 * i + 4))).collect())
        }
        (8, 8) => OptionSpec::Timestamps(word(0), word(4)),
        (34, _) => OptionSpec::FastOpen(value.to_vec()),
        (kind, _) => OptionSpec::Other(kind, value.to_vec()),
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The IP header for `len` bytes behind it.
fn ip_header(from: IpAddr, to: IpAddr, protocol: Protocol, ecn: Ecn, len: usize) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = (IPV4_LEN + len) as u16;
            let mut header = vec![0x45, ecn as u8];
            header.extend(total.to_be_bytes());
            header.extend([0, 0, 0x40, 0, HOPS, protocol.0, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            let sum = checksum::of(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        }
        (from, to) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            let mut header = vec![0x60, (ecn as u8) << 4, 0, 0];
            header.extend((len as u16).to_be_bytes());
            header.extend([protocol.0, HOPS]);
            header.extend(octets(from));
            header.extend(octets(to));
            header
        }
    }
}

impl Segment {
    /// The segment as bytes, without IP header.
    fn bytes(&self, flow: Flow) -> Vec<u8> {
        let mut options = options_bytes(&self.options);
        // Padded as whoever writes a script expects: with ends of the list.
        options.resize(options.len().next_multiple_of(4), 0);
        let words = ((TCP_LEN + options.len()) / 4) as u8;
        let mut bytes = Vec::with_capacity(TCP_LEN + options.len() + self.payload.len());
        bytes.extend(flow.from.port().to_be_bytes());
        bytes.extend(flow.to.port().to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.extend([(words << 4) | (self.flags >> 8) as u8, self.flags as u8]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.urgent.to_be_bytes());
        bytes.extend(options);
        bytes.extend_from_slice(&self.payload);
        if let Some(pseudo) = Pseudo::of(flow.from.ip(), flow.to.ip(), Protocol::TCP) {
            let mut sum = pseudo.with_len(bytes.len() as u32);
            sum.add(&bytes);
            let sum = sum.finish();
            bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    /// The whole IP packet.
    pub(crate) fn packet(&self, flow: Flow, ecn: Ecn) -> Bytes {
        let segment = self.bytes(flow);
        let mut packet = ip_header(flow.from.ip(), flow.to.ip(), Protocol::TCP, ecn, segment.len());
        packet.extend(segment);
        packet.into()
    }
}

/// An ICMP error of `router` about a segment that the host sent on `flow` with the wire's number
/// `seq`. It quotes as much of it as RFC 792 asks for and packetdrill quotes: ports and sequence
/// number.
pub(crate) fn icmp(spec: &IcmpSpec, router: IpAddr, flow: Flow, seq: u32) -> Bytes {
    let (from, to) = (flow.from.ip(), flow.to.ip());
    let len = TCP_LEN + spec.quoted_len as usize;
    let mut quote = ip_header(from, to, Protocol::TCP, Ecn::NotEct, len);
    quote.extend(flow.from.port().to_be_bytes());
    quote.extend(flow.to.port().to_be_bytes());
    quote.extend(seq.to_be_bytes());
    let mut message = vec![spec.kind, spec.code, 0, 0];
    message.extend(spec.mtu.to_be_bytes());
    message.extend(quote);
    let mut sum = match spec.protocol {
        Protocol::ICMPV6 => Pseudo::of(router, from, Protocol::ICMPV6)
            .map(|pseudo| pseudo.with_len(message.len() as u32))
            .unwrap_or_default(),
        _ => checksum::Checksum::default(),
    };
    sum.add(&message);
    let sum = sum.finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = ip_header(router, from, spec.protocol, Ecn::NotEct, message.len());
    packet.extend(message);
    packet.into()
}

/// Reads a packet that a host sent.
///
/// # Errors
/// [`Malformed`].
pub(crate) fn parse(packet: &Bytes) -> Result<Packet, Malformed> {
    let version = packet.first().ok_or(Malformed("empty"))? >> 4;
    let (from, to, protocol, ecn, at): (IpAddr, IpAddr, _, _, _) = match version {
        4 => {
            let header = packet.first_chunk::<IPV4_LEN>().ok_or(Malformed("short IPv4 header"))?;
            let octets = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
            let len = usize::from(header[0] & 15) * 4;
            (octets(12).into(), octets(16).into(), Protocol(header[9]), header[1] & 3, len)
        }
        6 => {
            let header = packet.first_chunk::<IPV6_LEN>().ok_or(Malformed("short IPv6 header"))?;
            let octets =
                |at: usize| header[at..].first_chunk::<16>().map_or([0; 16], |found| *found);
            let ecn = (header[1] >> 4) & 3;
            (octets(8).into(), octets(24).into(), Protocol(header[6]), ecn, IPV6_LEN)
        }
        _ => return Err(Malformed("neither IPv4 nor IPv6")),
    };
    if protocol != Protocol::TCP {
        let body = packet.get(at..).unwrap_or_default();
        let (kind, code) = (body.first().copied().unwrap_or(0), body.get(1).copied().unwrap_or(0));
        let what = match protocol {
            Protocol::ICMP => format!("icmp type {kind} code {code}"),
            Protocol::ICMPV6 => format!("icmpv6 type {kind} code {code}"),
            Protocol(number) => format!("IP protocol {number}"),
        };
        return Ok(Packet::Other(format!("{what} to {to}")));
    }
    let (ports, segment) = parse_segment(&packet.slice(at.min(packet.len())..))?;
    let flow = Flow { from: (from, ports.0).into(), to: (to, ports.1).into() };
    let ecn = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce][usize::from(ecn)];
    Ok(Packet::Tcp { flow, ecn, segment })
}

/// Reads a segment: its ports, and the rest.
fn parse_segment(bytes: &Bytes) -> Result<((u16, u16), Segment), Malformed> {
    let header = bytes.first_chunk::<TCP_LEN>().ok_or(Malformed("short TCP header"))?;
    let len = usize::from(header[12] >> 4) * 4;
    let options = bytes.get(TCP_LEN..len).ok_or(Malformed("TCP data offset"))?;
    let segment = Segment {
        flags: (u16::from(header[12] & 1) << 8) | u16::from(header[13]),
        seq: be32(header, 4),
        ack: be32(header, 8),
        window: be16(header, 14),
        urgent: be16(header, 18),
        options: parse_options(options)?,
        payload: bytes.slice(len..),
    };
    Ok(((be16(header, 0), be16(header, 2)), segment))
}
