//! Packets of devices of the real world on their way into a link: parsed, and cut as a card does.

use super::offload::pseudo;
use core::ops::Range;
use neap_stack::device::{Received, RxChecksum};
use neap_stack::frame::{Frame, Gso, GsoKind, HEADER_ROOM, Headers, PartialChecksum};
use neap_stack::gso;
use neap_stack::wire::ethernet::{self, EtherType};
use neap_stack::wire::{ChecksumBy, Protocol, ipv4, ipv6, tcp, udp};

/// Bits of the fragment field of IPv4 that a packet without fragments has as zero: "more fragments"
/// and the offset.
const FRAGMENT_BITS: u16 = 0x3fff;

/// Where the headers of a packet are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Bytes of the link header.
    link_len: usize,
    /// The protocol of the transport header, where it begins and how long it is; `None` for a
    /// packet that is not IP, a fragment, or one with extension headers.
    transport: Option<(Protocol, usize, usize)>,
    /// Bytes of the IP header without options; 0 for a packet that is not IP.
    ip_len: usize,
}

impl Layout {
    /// `None` for what is no packet of the medium.
    fn of(data: &[u8], is_ethernet: bool) -> Option<Self> {
        let link_len = if is_ethernet { ethernet::HEADER_LEN } else { 0 };
        let packet = data.get(link_len..)?;
        let version = packet.first().map(|byte| byte >> 4);
        let is_v4 = match version {
            _ if is_ethernet => {
                let kind = ethernet::parse(data).ok()?.ether_type;
                if kind != EtherType::IPV4 && kind != EtherType::IPV6 {
                    return Some(Self { link_len, transport: None, ip_len: 0 });
                }
                kind == EtherType::IPV4
            }
            Some(version @ (4 | 6)) => version == 4,
            _ => return None,
        };
        let transport = if is_v4 { transport_v4(packet) } else { transport_v6(packet) };
        let transport = transport.map(|(protocol, at, len)| (protocol, link_len + at, len));
        let ip_len = if is_v4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        Some(Self { link_len, transport, ip_len })
    }

    fn is_v4(&self) -> bool {
        self.ip_len == ipv4::HEADER_LEN
    }

    /// Where the IP packet ends. What follows on Ethernet fills a short frame up.
    fn end(&self, data: &[u8]) -> usize {
        let packet = &data[self.link_len..];
        let len = match self.transport {
            Some(_) if self.is_v4() => usize::from(u16::from_be_bytes([packet[2], packet[3]])),
            Some(_) => ipv6::HEADER_LEN + usize::from(u16::from_be_bytes([packet[4], packet[5]])),
            None => packet.len(),
        };
        (self.link_len + len).min(data.len())
    }

    /// Bytes that go into the headers of the frame: enough for the checksum at `partial`.
    fn header_len(&self, data: &[u8], partial: Option<PartialChecksum>) -> usize {
        let own = match self.transport {
            Some((_, at, len)) => at + len,
            None => (self.link_len + self.ip_len).min(data.len()),
        };
        let field = partial.map_or(0, |PartialChecksum { start, offset }| {
            usize::from(start) + usize::from(offset) + 2
        });
        own.max(field)
    }
}

/// Protocol, place and length of the transport header of an IPv4 packet.
fn transport_v4(packet: &[u8]) -> Option<(Protocol, usize, usize)> {
    let header = packet.first_chunk::<{ ipv4::HEADER_LEN }>()?;
    let at = usize::from(header[0] & 15) * 4;
    let is_whole = u16::from_be_bytes([header[6], header[7]]) & FRAGMENT_BITS == 0;
    let is_sound = header[0] >> 4 == 4 && at >= ipv4::HEADER_LEN && is_whole;
    is_sound.then(|| transport(packet, Protocol(header[9]), at)).flatten()
}

/// The same for IPv6.
fn transport_v6(packet: &[u8]) -> Option<(Protocol, usize, usize)> {
    let header = packet.first_chunk::<{ ipv6::HEADER_LEN }>()?;
    (header[0] >> 4 == 6).then(|| transport(packet, Protocol(header[6]), ipv6::HEADER_LEN))?
}

fn transport(packet: &[u8], protocol: Protocol, at: usize) -> Option<(Protocol, usize, usize)> {
    let segment = packet.get(at..)?;
    let len = match protocol {
        Protocol::TCP => usize::from(segment.get(12)? >> 4) * 4,
        Protocol::UDP => udp::HEADER_LEN,
        _ => return None,
    };
    let least = if protocol == Protocol::TCP { tcp::HEADER_LEN } else { udp::HEADER_LEN };
    (len >= least && len <= segment.len()).then_some((protocol, at, len))
}

/// Gives the wire packets of what a device received to `each`, in order; returns whether it could
/// be read. Payloads are slices of what was received.
///
/// A super-packet of another protocol than TCP and UDP cannot be cut, nor one with more than 128
/// bytes of headers, nor one of more datagrams than [`gso::MOST_DATAGRAMS`].
pub(super) fn packets(received: Received, is_ethernet: bool, mut each: impl FnMut(Frame)) -> bool {
    let Received { mut data, gso_size, checksum } = received;
    let Some(layout) = Layout::of(&data, is_ethernet) else { return false };
    data.truncate(layout.end(&data));
    let partial = match checksum {
        RxChecksum::Partial(partial) => Some(partial),
        RxChecksum::Good | RxChecksum::Unknown => None,
    };
    let header_len = layout.header_len(&data, partial);
    if header_len > HEADER_ROOM || header_len > data.len() {
        return false;
    }
    let frame = |payload: Range<usize>| {
        let mut headers = Headers::default();
        headers.prepend(header_len).copy_from_slice(&data[..header_len]);
        let link_len = layout.link_len as u8;
        Frame { link_len, checksum: partial, ..Frame::new(headers, data.slice(payload).into()) }
    };
    let protocol = layout.transport.map(|(protocol, ..)| protocol);
    let size = usize::from(gso_size);
    if size == 0 || header_len + size >= data.len() {
        let mut frame = frame(header_len..data.len());
        if checksum == RxChecksum::Good && protocol == Some(Protocol::TCP) {
            leave_checksum(&mut frame, &layout);
        }
        each(frame);
        return true;
    }
    let kind = match (protocol, layout.is_v4()) {
        (Some(Protocol::TCP), true) => GsoKind::Tcp4,
        (Some(Protocol::TCP), false) => GsoKind::Tcp6,
        (Some(Protocol::UDP), true) => GsoKind::Udp4,
        (Some(Protocol::UDP), false) => GsoKind::Udp6,
        _ => return false,
    };
    let datagrams = (data.len() - header_len).div_ceil(size);
    if protocol == Some(Protocol::UDP) && datagrams > gso::MOST_DATAGRAMS {
        return false;
    }
    let whole = frame(header_len..data.len());
    let whole = Frame { gso: Some(Gso { size: gso_size, kind }), ..whole };
    gso::segment(whole, ChecksumBy::Device).for_each(each);
    true
}

/// Leaves the checksum of a TCP segment to the device, as it is known to be right. Such segments
/// can be joined.
fn leave_checksum(frame: &mut Frame, layout: &Layout) {
    let Some((_, at, _)) = layout.transport else { return };
    let payload_len = frame.payload.len();
    let headers = frame.headers.as_mut_slice();
    let len = (headers.len() - at) as u32 + payload_len;
    let Some(pseudo) = pseudo(&headers[layout.link_len..], Protocol::TCP) else { return };
    let sum = pseudo.with_len(len).fold();
    headers[at + tcp::CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
    frame.checksum = Some(PartialChecksum { start: at as u16, offset: tcp::CHECKSUM_AT as u16 });
}
