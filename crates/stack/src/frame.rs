//! One super-packet on its way down: headers, payload slices, and what the device must still do.

use crate::wire::{checksum, ipv4};

pub use crate::wire::checksum::PartialChecksum;
pub use crate::wire::headers::{HEADER_ROOM, Headers};

use bytes::Bytes;
use neap_tcp::segment::{Ecn, Payload};
use neap_tcp::time::{Instant, Rate};
use neap_tcp::transmit::small_queue::TxCredit;

/// Set in [`Frame::flow`] where no connected socket stands behind the frame: resets, SYN-ACKs,
/// ICMP, and datagrams of an unconnected socket. The rest is a keyed hash.
pub const ORPHAN: u64 = 1 << 63;

/// Set in [`Frame::flow`] of a connected UDP socket, whose numbers are counted apart from those of
/// TCP sockets.
pub const DATAGRAM: u64 = 1 << 62;

/// The kind of a super-frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// A super-frame: its payload is cut into pieces of `size` bytes by device or by `gso`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Payload bytes of each wire segment.
    pub size: u16,
    /// What the headers are.
    pub kind: GsoKind,
}

/// One super-packet on its way down (Linux's `sk_buff`). Dropping it is its completion: the credit
/// returns its bytes wherever that happens.
#[derive(Debug)]
pub struct Frame {
    /// Link, IP and transport headers.
    pub headers: Headers,
    /// Bytes of the link header at the front of `headers` (0 on TUN, 14 on Ethernet).
    pub link_len: u8,
    /// Payload.
    pub payload: Payload,
    /// Set when the payload exceeds one wire segment.
    pub gso: Option<Gso>,
    /// Set when the transport checksum is not finished.
    pub checksum: Option<PartialChecksum>,
    /// Not before this (EDT); [`Instant::ZERO`] when unpaced.
    pub departure: Instant,
    /// `skb->priority`, 0 to 15: the band of `pfifo_fast` and `fq`.
    pub priority: u8,
    /// `sk_pacing_rate` for the qdisc that spaces frames without a stamp (`fq`, UDP).
    pub pacing_rate: Rate,
    /// Identifies the flow for fair queueing: the socket's number, or [`ORPHAN`] and a keyed hash.
    pub flow: u64,
    /// ECN codepoint of the IP header.
    pub ecn: Ecn,
    /// The share of the socket's account; `None` for pure ACKs and what no socket sent.
    pub credit: Option<TxCredit>,
}

impl Frame {
    /// A frame without a link header that leaves as it is and at once, of no flow and no account.
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
            credit: None,
        }
    }

    /// Bytes of headers and payload as they stand, one header for a super-frame (Linux's
    /// `skb->len`).
    pub fn len(&self) -> usize {
        self.headers.len() + self.payload.len() as usize
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Wire segments that it becomes.
    pub fn segments(&self) -> u32 {
        self.gso.map_or(1, |gso| self.payload.len().div_ceil(u32::from(gso.size)).max(1))
    }

    /// Bytes on the wire after segmentation, each piece with its own headers (`qdisc_pkt_len`).
    pub fn wire_len(&self) -> usize {
        self.payload.len() as usize + self.segments() as usize * self.headers.len()
    }

    /// Memory that it holds: what the socket's account counts, or its bytes (`skb->truesize`).
    pub fn memory(&self) -> usize {
        self.credit.as_ref().map_or(self.len(), |credit| credit.bytes() as usize)
    }

    /// Marks that it met congestion, if its sender said that it may be (RFC 3168); whether it is
    /// marked now (`INET_ECN_set_ce`).
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

    /// All bytes in one buffer, for captures and devices that need them contiguous.
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
