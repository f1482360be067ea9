//! Frame: a packet or super-packet on its way down, with headers, payload slices, and what the
//! device must still do.

use crate::wire::{Protocol, checksum, ipv4, tcp, udp};

pub use crate::wire::checksum::PartialChecksum;
pub use crate::wire::headers::{HEADER_ROOM, Headers};

use bytes::Bytes;
use neap_tcp::segment::{Ecn, Payload};
use neap_tcp::time::{Instant, Rate};
use neap_tcp::transmit::small_queue::TxCredit;

/// Bit of [`Frame::flow`] for frames without a connected socket: resets, SYN-ACKs, ICMP, and
/// datagrams of an unconnected socket. The other bits are a keyed hash.
pub const ORPHAN: u64 = 1 << 63;

/// Bit of [`Frame::flow`] for connected UDP sockets, which have numbers of their own beside those
/// of TCP sockets.
pub const DATAGRAM: u64 = 1 << 62;

/// Protocols of a super-frame's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4: each piece is a datagram (`UDP_SEGMENT`).
    Udp4,
    /// UDP over IPv6.
    Udp6,
}

impl GsoKind {
    /// Whether the IP header is that of IPv4.
    pub(crate) const fn is_v4(self) -> bool {
        matches!(self, Self::Tcp4 | Self::Udp4)
    }

    /// Protocol of the transport header.
    pub(crate) const fn protocol(self) -> Protocol {
        match self {
            Self::Tcp4 | Self::Tcp6 => Protocol::TCP,
            Self::Udp4 | Self::Udp6 => Protocol::UDP,
        }
    }

    /// Offset of the checksum in the transport header.
    pub(crate) const fn checksum_at(self) -> usize {
        match self {
            Self::Tcp4 | Self::Tcp6 => tcp::CHECKSUM_AT,
            Self::Udp4 | Self::Udp6 => udp::CHECKSUM_AT,
        }
    }
}

/// Segmentation of a super-frame: the device or the stack cuts its payload into pieces of `size`
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Payload bytes of each wire segment.
    pub size: u16,
    /// Protocols of the headers.
    pub kind: GsoKind,
}

/// Packet or super-packet on its way down (Linux's `sk_buff`).
///
/// Dropping it is its completion: the credit returns its bytes, wherever that happens.
#[derive(Debug)]
pub struct Frame {
    /// Link, IP and transport headers.
    pub headers: Headers,
    /// Size of the link header at the front of `headers`, in bytes (0 on TUN, 14 on Ethernet).
    pub link_len: u8,
    /// Payload.
    pub payload: Payload,
    /// Segmentation, if the payload exceeds one wire segment.
    pub gso: Option<Gso>,
    /// Place of the transport checksum, if that is not finished.
    pub checksum: Option<PartialChecksum>,
    /// Earliest departure (EDT); [`Instant::ZERO`] if the frame is not paced.
    pub departure: Instant,
    /// Priority, 0 to 15, as `skb->priority`: the band in `pfifo_fast` and `fq`.
    pub priority: u8,
    /// `sk_pacing_rate`, for a qdisc that spaces frames without a departure time (`fq`, UDP).
    pub pacing_rate: Rate,
    /// Flow for fair queueing: the socket's number, or [`ORPHAN`] and a keyed hash.
    pub flow: u64,
    /// ECN codepoint of the IP header.
    pub ecn: Ecn,
    /// Whether the flow moves bulk data, and wants the bulk queue of a device that has one
    /// ([`BulkQueue`](crate::device::BulkQueue)).
    pub is_bulk: bool,
    /// Credit in the socket's account; `None` for pure ACKs and for frames without a socket.
    pub credit: Option<TxCredit>,
}

impl Frame {
    /// Returns a frame without a link header, flow or credit, which leaves as it is and at once.
    pub fn new(headers: Headers, payload: Payload) -> Self {
        Self {
            headers,
            link_len: 0,
            payload,
            gso: None,
            checksum: None,
            departure: Instant::ZERO,
            priority: 0,
            pacing_rate: Rate::UNLIMITED,
            flow: 0,
            ecn: Ecn::NotEct,
            is_bulk: false,
            credit: None,
        }
    }

    /// Returns the bytes of headers and payload as they are, one header for a super-frame (Linux's
    /// `skb->len`).
    pub fn len(&self) -> usize {
        self.headers.len() + self.payload.len() as usize
    }

    /// Returns whether headers and payload are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of wire segments.
    pub fn segments(&self) -> u32 {
        self.gso.map_or(1, |gso| self.payload.len().div_ceil(u32::from(gso.size)).max(1))
    }

    /// Returns the bytes on the wire after segmentation, each piece with its own headers
    /// (`qdisc_pkt_len`).
    pub fn wire_len(&self) -> usize {
        self.payload.len() as usize + self.segments() as usize * self.headers.len()
    }

    /// Returns the bytes of memory that the frame counts for: those in the socket's account, or its
    /// length (`skb->truesize`).
    pub fn memory(&self) -> usize {
        self.credit.as_ref().map_or(self.len(), |credit| credit.bytes() as usize)
    }

    /// Whether it is a packet of IPv4, before it has a link header.
    pub(crate) fn is_v4(&self) -> bool {
        self.headers.as_slice().first().is_some_and(|byte| byte >> 4 == 4)
    }

    /// Marks the frame with CE if its sender supports ECN (RFC 3168; `INET_ECN_set_ce`). Returns
    /// whether the frame is marked now.
    pub fn set_ce(&mut self) -> bool {
        let Some(ip) = self.headers.as_mut_slice().get_mut(usize::from(self.link_len)..) else {
            return false;
        };
        match ip {
            [version, tos, ..] if *version >> 4 == 4 && *tos & 3 != 0 => {
                *tos |= 3;
                let len = usize::from(*version & 15) * 4;
                let Some(header) = ip.get_mut(..len.max(ipv4::HEADER_LEN)) else { return false };
                header[10..12].fill(0);
                let sum = checksum::of(header);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            [version, class, ..] if *version >> 4 == 6 && *class & 0x30 != 0 => *class |= 0x30,
            _ => return false,
        }
        self.ecn = Ecn::Ce;
        true
    }

    /// Returns all bytes in one buffer, for captures and for devices that need them contiguous.
    pub fn to_bytes(&self) -> Bytes {
        let mut all = bytes::BytesMut::with_capacity(self.len());
        all.extend_from_slice(self.headers.as_slice());
        for chunk in self.payload.chunks() {
            all.extend_from_slice(chunk);
        }
        all.freeze()
    }
}

/// A frame of `payload` bytes behind 40 bytes of headers, for tests of what frames pass through.
#[cfg(all(test, not(loom)))]
pub(crate) fn test_frame(payload: usize) -> Frame {
    let mut headers = Headers::default();
    headers.prepend(40);
    Frame::new(headers, Payload::from(Bytes::from(vec![0; payload])))
}
