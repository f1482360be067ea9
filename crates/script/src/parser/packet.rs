//! Packets: `[ect0] P. 1:1001(1000) ack 1 win 257 <nop,nop,TS val 1 ecr 2>`, and ICMP errors.

use crate::ast::{ACK, Body, FLAG_LETTERS, IcmpSpec, OptionSpec, PacketSpec, RST, TcpSpec};
use crate::cursor::{Cursor, Parsed};
use neap_stack::wire::Protocol;
use neap_tcp::segment::Ecn;

/// Largest payload of one packet.
const MAX_LEN: u32 = 65_535;

/// Headers of IPv4 and TCP without options.
const HEADERS_LEN: u32 = 40;

/// Most bytes of the options of one segment.
const MAX_OPTIONS_LEN: usize = 40;

fn options_len(options: &[OptionSpec]) -> usize {
    options.iter().map(OptionSpec::wire_len).sum()
}

/// Checks that a packet of the peer leaves nothing open.
pub(super) fn check_inbound(spec: &PacketSpec) -> Result<(), String> {
    match &spec.body {
        Body::Tcp(tcp) if tcp.window.is_none() && tcp.flags & RST == 0 => {
            Err("a segment of the peer needs win".into())
        }
        Body::Tcp(tcp) => match &tcp.options {
            None => Err("the options of a segment of the peer cannot be any".into()),
            Some(options) => {
                let headers = HEADERS_LEN + options_len(options).next_multiple_of(4) as u32;
                match MAX_LEN.checked_sub(headers) {
                    Some(most) if tcp.len > most => {
                        Err(format!("{most} bytes at most fit a packet with these options"))
                    }
                    _ => Ok(()),
                }
            }
        },
        Body::Icmp(_) => Ok(()),
    }
}

/// Checks that a packet is one that a script can expect of the host.
pub(super) fn check_outbound(spec: &PacketSpec) -> Result<(), String> {
    match &spec.body {
        Body::Tcp(_) => Ok(()),
        Body::Icmp(_) => Err("ICMP errors can come from the peer only".into()),
    }
}

/// The packet that follows `<` or `>`.
pub(super) fn packet(cursor: &mut Cursor<'_>, is_v6: bool) -> Parsed<PacketSpec> {
    let mut ecn = None;
    if cursor.eat("[") {
        ecn = Some(match cursor.name() {
            Some("noecn") => Ecn::NotEct,
            Some("ect0") => Ecn::Ect0,
            Some("ect1") => Ecn::Ect1,
            Some("ce") => Ecn::Ce,
            _ => return Err(cursor.expected("noecn, ect0, ect1 or ce")),
        });
        cursor.expect("]")?;
    }
    let mut ports = None;
    if cursor.peek().is_some_and(|char| char.is_ascii_digit()) {
        let from = cursor.integer_as()?;
        cursor.expect(">")?;
        ports = Some((from, cursor.integer_as()?));
    }
    let mut ahead = *cursor;
    let body = if cursor.eat_name("icmp") {
        Body::Icmp(icmp(cursor, if is_v6 { Protocol::ICMPV6 } else { Protocol::ICMP })?)
    } else if let Some(protocol @ ("udp" | "icmpv6" | "ipv4" | "ipv6" | "gre")) = ahead.name() {
        return Err(
            cursor.error(format!("packets are TCP segments or icmp errors, not {protocol}"))
        );
    } else {
        Body::Tcp(tcp(cursor)?)
    };
    Ok(PacketSpec { ports, ecn, body })
}

fn flags(cursor: &mut Cursor<'_>) -> Parsed<u16> {
    cursor.skip_blanks();
    let mut start = *cursor;
    let mut flags = 0;
    if cursor.eat("-") {
        return Ok(flags);
    }
    while let Some(char) = cursor.peek_raw() {
        let Some(&(bit, _)) = FLAG_LETTERS.iter().find(|(_, letter)| *letter == char) else {
            break;
        };
        flags |= bit;
        cursor.bump();
    }
    if flags == 0 { Err(start.expected("control bits such as S. or P.")) } else { Ok(flags) }
}

/// `first:end(len)`: the first number and the length.
fn range(cursor: &mut Cursor<'_>) -> Parsed<(u32, u32)> {
    let first = cursor.integer_u32()?;
    cursor.expect(":")?;
    let mut here = *cursor;
    let end = cursor.integer_u32()?;
    cursor.expect("(")?;
    let len = cursor.integer_u32()?;
    cursor.expect(")")?;
    if len > MAX_LEN || first.wrapping_add(len) != end {
        return Err(here.expected(&format!("{}, first number and length", first.wrapping_add(len))));
    }
    Ok((first, len))
}

fn tcp(cursor: &mut Cursor<'_>) -> Parsed<TcpSpec> {
    let flags = flags(cursor)?;
    let (seq, len) = range(cursor)?;
    let mut spec = TcpSpec {
        flags,
        seq,
        len,
        ack: None,
        window: None,
        urgent: None,
        options: Some(Vec::new()),
    };
    if cursor.eat_name("ack") {
        spec.ack = Some(cursor.integer_u32()?);
    }
    if cursor.eat_name("win") {
        spec.window = Some(cursor.integer_as()?);
    }
    if cursor.eat_name("urg") {
        spec.urgent = Some(cursor.integer_as()?);
    }
    if cursor.eat("<") {
        spec.options = options(cursor)?;
    }
    if (spec.ack.is_some()) != (flags & ACK != 0) {
        return Err(cursor.error("ack and the flag . belong together"));
    }
    Ok(spec)
}

fn options(cursor: &mut Cursor<'_>) -> Parsed<Option<Vec<OptionSpec>>> {
    if cursor.eat("...") {
        cursor.expect(">")?;
        return Ok(None);
    }
    let mut options = Vec::new();
    while !cursor.eat(">") {
        let mut start = *cursor;
        options.push(option(cursor)?);
        let len = options_len(&options);
        if len > MAX_OPTIONS_LEN {
            return Err(
                start.error(format!("{len} bytes of options, of {MAX_OPTIONS_LEN} at most"))
            );
        }
        if !cursor.looks_at(">") && !cursor.eat(",") {
            return Err(cursor.expected("a comma or >"));
        }
    }
    Ok(Some(options))
}

fn option(cursor: &mut Cursor<'_>) -> Parsed<OptionSpec> {
    let mut start = *cursor;
    Ok(match cursor.name() {
        Some("nop") => OptionSpec::Nop,
        Some("eol") => OptionSpec::End,
        Some("mss") => OptionSpec::Mss(cursor.integer_as()?),
        Some("wscale") => OptionSpec::WindowScale(cursor.integer_as()?),
        Some("sackOK") => OptionSpec::SackPermitted,
        Some("sack") => OptionSpec::Sack(blocks(cursor)?),
        Some("TS") => {
            if !cursor.eat_name("val") {
                return Err(cursor.expected("val"));
            }
            let value = cursor.integer_u32()?;
            if !cursor.eat_name("ecr") {
                return Err(cursor.expected("ecr"));
            }
            OptionSpec::Timestamps(value, cursor.integer_u32()?)
        }
        Some("FO") => OptionSpec::FastOpen(hex(cursor)?),
        Some("kind") => {
            let kind = cursor.integer_as()?;
            OptionSpec::Other(kind, hex(cursor)?)
        }
        _ => return Err(start.expected("a TCP option")),
    })
}

fn blocks(cursor: &mut Cursor<'_>) -> Parsed<Vec<(u32, u32)>> {
    let mut blocks = Vec::new();
    while cursor.peek().is_some_and(|char| char.is_ascii_digit()) {
        let left = cursor.integer_u32()?;
        cursor.expect(":")?;
        blocks.push((left, cursor.integer_u32()?));
    }
    if blocks.is_empty() { Err(cursor.expected("a block such as 1001:2001")) } else { Ok(blocks) }
}

fn hex(cursor: &mut Cursor<'_>) -> Parsed<Vec<u8>> {
    cursor.skip_blanks();
    let mut start = *cursor;
    let digits = cursor.take_while(|char| char.is_ascii_hexdigit());
    let byte = |pair: &[u8]| {
        core::str::from_utf8(pair)
            .ok()
            .filter(|pair| pair.len() == 2)
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| start.expected("bytes in hexadecimal"))
}

/// Names of destination-unreachable codes, in IPv4.
const UNREACHABLE: [(&str, u8); 8] = [
    ("net_unreachable", 0),
    ("host_unreachable", 1),
    ("protocol_unreachable", 2),
    ("port_unreachable", 3),
    ("frag_needed", 4),
    ("source_route_failed", 5),
    ("net_prohibited", 9),
    ("host_prohibited", 10),
];

/// Names of destination-unreachable codes, in IPv6.
const UNREACHABLE_V6: [(&str, u8); 4] =
    [("no_route", 0), ("admin_prohibited", 1), ("address_unreachable", 3), ("port_unreachable", 4)];

fn icmp(cursor: &mut Cursor<'_>, protocol: Protocol) -> Parsed<IcmpSpec> {
    let v4 = protocol == Protocol::ICMP;
    let mut start = *cursor;
    let kind = match (cursor.name(), v4) {
        (Some("unreachable"), true) => 3,
        (Some("source_quench"), true) => 4,
        (Some("time_exceeded"), true) => 11,
        (Some("unreachable"), false) => 1,
        (Some("packet_too_big"), false) => 2,
        (Some("time_exceeded"), false) => 3,
        _ => return Err(start.expected("a type of ICMP error")),
    };
    let mut code = 0;
    let codes: &[(&str, u8)] = if v4 { &UNREACHABLE } else { &UNREACHABLE_V6 };
    if let Some(&(_, number)) = codes.iter().find(|(name, _)| cursor.eat_name(name)) {
        code = number;
    }
    let mtu = if cursor.eat_name("mtu") { cursor.integer_u32()? } else { 0 };
    cursor.expect("[")?;
    let (quoted_seq, quoted_len) = range(cursor)?;
    cursor.expect("]")?;
    Ok(IcmpSpec { protocol, kind, code, mtu, quoted_seq, quoted_len })
}
