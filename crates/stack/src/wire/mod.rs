//! Packet formats: parsed from bytes into values, emitted from values.
//!
//! A parser checks every length before it reads and never panics; its result holds only what the
//! format allows. Parsers take slices and return positions or slices of them, so nothing is copied;
//! payloads are cut from the received `Bytes` by moving its ends.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod headers;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod nd_option;
pub mod tcp;
pub mod udp;

#[cfg(test)]
mod oracle_tests;

use checksum::PartialChecksum;
use headers::Headers;
use neap_tcp::segment::Ecn;

/// IP protocol number: the IPv4 protocol field, the IPv6 next header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP for IPv4.
    pub const ICMP: Self = Self(1);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// ICMP for IPv6.
    pub const ICMPV6: Self = Self(58);
    /// End of an IPv6 packet: nothing follows.
    pub const NO_NEXT_HEADER: Self = Self(59);
}

/// Ports of a TCP segment or UDP datagram, in the direction of travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Port of the sender.
    pub source: u16,
    /// Port of the receiver.
    pub destination: u16,
}

/// Place of a fragment in its datagram, from the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Identification of the datagram: 16 bits in IPv4, 32 in IPv6.
    pub identification: u32,
    /// Offset of the data in the datagram's payload, in bytes; a multiple of eight.
    pub offset: u16,
    /// Whether further fragments follow.
    pub more: bool,
}

/// Party that finishes a transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumBy {
    /// The stack: the emitted field is final.
    Stack,
    /// The device, or [`gso::finish_checksum`](crate::net::gso::finish_checksum). The emitted field
    /// holds the folded sum of the pseudo-header with the length of the whole super-frame.
    Device,
}

/// Returns the mark that tells a device to finish the checksum of the transport header, which is
/// the last of `headers` and has `transport_len` bytes.
///
/// All headers have to be there before. `field` is the offset of the checksum in the transport
/// header: [`tcp::CHECKSUM_AT`] or [`udp::CHECKSUM_AT`].
pub fn partial_checksum(headers: &Headers, transport_len: usize, field: usize) -> PartialChecksum {
    let start = headers.len().saturating_sub(transport_len);
    PartialChecksum { start: start as u16, offset: field as u16 }
}

/// The ECN codepoint in the low two bits of a traffic class.
pub(crate) fn ecn_of(traffic_class: u8) -> Ecn {
    match traffic_class & 3 {
        0 => Ecn::NotEct,
        1 => Ecn::Ect1,
        2 => Ecn::Ect0,
        _ => Ecn::Ce,
    }
}

/// The big-endian word at a constant position of an array; out of bounds is a compile-time matter.
macro_rules! be {
    (u16, $bytes:expr, $at:literal) => {
        u16::from_be_bytes([$bytes[$at], $bytes[$at + 1]])
    };
    (u32, $bytes:expr, $at:literal) => {
        u32::from_be_bytes([$bytes[$at], $bytes[$at + 1], $bytes[$at + 2], $bytes[$at + 3]])
    };
}
pub(crate) use be;
