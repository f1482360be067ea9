//! Packets on a link.

use core::net::{IpAddr, SocketAddr};
use neap_stack::frame::Frame;
use neap_stack::wire::Protocol;

/// Bytes of Ethernet's header.
const ETHERNET_HEADER: u64 = 14;
/// Shortest Ethernet frame without its check sequence.
const ETHERNET_MIN: u64 = 60;
/// Bytes that Ethernet adds on the wire: preamble 8, frame check sequence 4, gap 12.
const ETHERNET_WIRE: u64 = 24;

/// A packet on a link. It moves from queue to queue, and so is boxed.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) frame: Frame,
    /// The bit that the wire flipped, counted from the end of the link header.
    pub(super) flipped: Option<u64>,
}

impl Packet {
    pub(crate) fn new(frame: Frame) -> Self {
        Self { frame, flipped: None }
    }

    /// A bit of it was flipped.
    pub(crate) fn is_damaged(&self) -> bool {
        self.flipped.is_some()
    }
}

/// Bytes of a packet without the link header that it may have: of its IP packet.
pub(super) fn network_len(frame: &Frame) -> usize {
    frame.len() - usize::from(frame.link_len)
}

/// Bytes of a packet on the wire.
pub(super) fn on_wire(frame: &Frame) -> u64 {
    (network_len(frame) as u64 + ETHERNET_HEADER).max(ETHERNET_MIN) + ETHERNET_WIRE
}

/// A second packet with the same bytes. It has no credit.
pub(super) fn copy(packet: &Frame) -> Frame {
    Frame {
        headers: packet.headers.clone(),
        payload: packet.payload.clone(),
        credit: None,
        ..*packet
    }
}

/// Addresses and ports of a TCP segment: its sender's, its receiver's.
pub(crate) type FourTuple = (SocketAddr, SocketAddr);

/// The four-tuple of an IP packet; `None` if it carries no TCP.
pub(crate) fn four_tuple(headers: &[u8]) -> Option<FourTuple> {
    let (protocol, addresses, ports): (u8, [IpAddr; 2], &[u8]) = match headers.first()? >> 4 {
        4 => {
            let at = |from: usize| Some(IpAddr::from(*headers.get(from..)?.first_chunk::<4>()?));
            let len = usize::from(headers[0] & 15) * 4;
            (*headers.get(9)?, [at(12)?, at(16)?], headers.get(len..)?)
        }
        6 => {
            let at = |from: usize| Some(IpAddr::from(*headers.get(from..)?.first_chunk::<16>()?));
            (*headers.get(6)?, [at(8)?, at(24)?], headers.get(40..)?)
        }
        _ => return None,
    };
    if protocol != Protocol::TCP.0 {
        return None;
    }
    let port = |at: usize| Some(u16::from_be_bytes(*ports.get(at..)?.first_chunk::<2>()?));
    let [from, to] = addresses;
    Some((SocketAddr::new(from, port(0)?), SocketAddr::new(to, port(2)?)))
}
