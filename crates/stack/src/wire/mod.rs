//! Packet formats: parsed from bytes into values, emitted from values.
//!
//! A parser checks every length before it reads and never panics; what it returns holds only what
//! the format allows. Parsers take slices and return positions or slices of them, so nothing is
//! copied; payloads are cut from the received `Bytes` by moving its ends.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod headers;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod tcp;
pub mod udp;

#[cfg(test)]
mod oracle_tests;

use checksum::PartialChecksum;
use headers::Headers;
use neap_tcp::segment::Ecn;

/// An IP protocol number (the IPv4 protocol field, the IPv6 next header).
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
    /// IPv6: nothing follows.
    pub const NO_NEXT_HEADER: Self = Self(59);
}

/// The ports of a TCP segment or UDP datagram, in the direction of travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Sender's port.
    pub source: u16,
    /// Receiver's port.
    pub destination: u16,
}

/// What the IP header says of one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Identification: 16 bits in IPv4, 32 in IPv6.
    pub identification: u32,
    /// Where the data belongs in the datagram's payload, in bytes; a multiple of eight.
    pub offset: u16,
    /// Whether further fragments follow.
    pub more: bool,
}

/// Who finishes a transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumBy {
    /// The emitter: the field is final.
    Stack,
    /// The device or [`gso::finish_checksum`](crate::net::gso::finish_checksum): the field holds
    /// the folded sum of the pseudo-header with the length of the whole super-frame.
    Device,
}

/// The mark that tells a device to finish the checksum of the transport header of `transport_len`
/// bytes, which is the last of `headers`; to be made once all headers are there. `field` is where
/// the checksum lies in it: [`tcp::CHECKSUM_AT`] or [`udp::CHECKSUM_AT`].
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
