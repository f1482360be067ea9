//! Segments of attackers, to packets and back.

use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use neap_stack::frame::{Frame, Headers};
use neap_stack::wire::checksum::Pseudo;
use neap_stack::wire::{ChecksumBy, Ports, Protocol, ipv4, ipv6, tcp};
use neap_tcp::segment::Segment;

const HOP_LIMIT: u8 = 64;

/// Returns the packet of a segment; `None` if the two addresses are not of one family.
pub fn emit(from: SocketAddr, to: SocketAddr, segment: Segment) -> Option<Frame> {
    let mut headers = Headers::default();
    let ports = Ports { source: from.port(), destination: to.port() };
    let pseudo = Pseudo::of(from.ip(), to.ip(), Protocol::TCP)?;
    tcp::emit(&mut headers, ports, &segment, pseudo, ChecksumBy::Stack);
    let len = (headers.len() as u32 + segment.payload.len()) as u16;
    match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Header {
            source,
            destination,
            protocol: Protocol::TCP,
            ttl: HOP_LIMIT,
            dscp: 0,
            ecn: segment.ecn,
            identification: 0,
            dont_fragment: true,
        }
        .emit(&mut headers, len),
        (IpAddr::V6(source), IpAddr::V6(destination)) => ipv6::Header {
            source,
            destination,
            protocol: Protocol::TCP,
            hop_limit: HOP_LIMIT,
            dscp: 0,
            ecn: segment.ecn,
            flow_label: 0,
        }
        .emit(&mut headers, len),
        _ => return None,
    }
    Some(Frame::new(headers, segment.payload))
}

/// Returns the segment of a packet with its addresses (from, to); `None` if it is not TCP.
pub fn parse(packet: &Bytes) -> Option<(SocketAddr, SocketAddr, Segment)> {
    let (source, destination, protocol, payload): (IpAddr, IpAddr, _, _) =
        match packet.first()? >> 4 {
            4 => {
                let packet = ipv4::parse(packet).ok()?;
                let header = packet.header;
                (header.source.into(), header.destination.into(), header.protocol, packet.payload)
            }
            _ => {
                let packet = ipv6::parse(packet).ok()?;
                let header = packet.header;
                (header.source.into(), header.destination.into(), header.protocol, packet.payload)
            }
        };
    if protocol != Protocol::TCP {
        return None;
    }
    let (ports, segment) = tcp::parse(packet.slice(payload), None).ok()?;
    let at = |ip, port| SocketAddr::new(ip, port);
    Some((at(source, ports.source), at(destination, ports.destination), segment))
}
