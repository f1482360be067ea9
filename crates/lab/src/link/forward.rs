//! What a router does to a packet: where it goes, hop limit, "packet too big".

use bytes::Bytes;
use core::net::IpAddr;
use neap_stack::frame::{Frame, Headers};
use neap_stack::wire::{Protocol, checksum, icmp, icmpv6, ipv4, ipv6};
use neap_tcp::segment::{Ecn, Payload};

/// Bytes of a packet that an ICMP error quotes (RFC 1812 section 4.3.2.3, RFC 4443 section 2.4).
const QUOTE_V4: usize = 548;
const QUOTE_V6: usize = 1232;

const HOP_LIMIT: u8 = 64;

/// The destination of an IP packet.
pub(crate) fn destination(packet: &Frame) -> Option<IpAddr> {
    let headers = packet.headers.as_slice();
    match headers.first()? >> 4 {
        4 => Some(IpAddr::from(*headers.get(16..20)?.first_chunk::<4>()?)),
        6 => Some(IpAddr::from(*headers.get(24..40)?.first_chunk::<16>()?)),
        _ => None,
    }
}

/// Takes one from the hop limit; false if the packet may go no further.
pub(crate) fn age(packet: &mut Frame) -> bool {
    let headers = packet.headers.as_mut_slice();
    let is_v4 = headers.first().is_some_and(|byte| byte >> 4 == 4);
    let at = if is_v4 { 8 } else { 7 };
    if headers.get(at).is_none_or(|&limit| limit <= 1) {
        return false;
    }
    headers[at] -= 1;
    if is_v4 {
        headers[10..12].fill(0);
        let sum = checksum::of(&headers[..ipv4::HEADER_LEN]);
        headers[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    true
}

/// The ICMP error that tells the sender of `packet` that the next hop takes only `mtu` bytes, as if
/// the destination itself had sent it.
pub(super) fn too_big(packet: &Frame, mtu: u16) -> Option<Frame> {
    let link_len = usize::from(packet.link_len);
    let whole = packet.to_bytes().slice(link_len..);
    let mut headers = Headers::default();
    let body;
    if whole.first()? >> 4 == 4 {
        let original = ipv4::parse(&whole).ok()?.header;
        body = quote(&whole, QUOTE_V4);
        icmp::Message::FragmentationNeeded { mtu }.emit(&mut headers, &body);
        let len = headers.len() as u32 + body.len();
        ipv4::Header {
            source: original.destination,
            destination: original.source,
            protocol: Protocol::ICMP,
            ttl: HOP_LIMIT,
            dscp: 0,
            ecn: Ecn::NotEct,
            identification: 0,
            dont_fragment: false,
        }
        .emit(&mut headers, len as u16);
    } else {
        let original = ipv6::parse(&whole).ok()?.header;
        body = quote(&whole, QUOTE_V6);
        let (source, destination) = (original.destination, original.source);
        let message = icmpv6::Message::PacketTooBig { mtu: mtu.into() };
        message.emit(&mut headers, source, destination, &body);
        let len = headers.len() as u32 + body.len();
        ipv6::Header {
            source,
            destination,
            protocol: Protocol::ICMPV6,
            hop_limit: HOP_LIMIT,
            dscp: 0,
            ecn: Ecn::NotEct,
            flow_label: 0,
        }
        .emit(&mut headers, len as u16);
    }
    let link = packet.headers.as_slice().get(..link_len)?;
    if let Some((addresses, kind)) = link.split_first_chunk::<12>() {
        let (to, from) = addresses.split_at(6);
        headers.prepend(link_len).copy_from_slice(&[from, to, kind].concat());
    }
    Some(Frame { link_len: packet.link_len, ..Frame::new(headers, body) })
}

fn quote(whole: &Bytes, most: usize) -> Payload {
    whole.slice(..whole.len().min(most)).into()
}
