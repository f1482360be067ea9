//! Ethernet II headers.

use super::be;
use crate::wire::headers::Headers;

/// Size of the header, in bytes.
pub const HEADER_LEN: usize = 14;

/// Broadcast address, which every station receives.
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// Protocol that a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
}

/// Header of an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Station that gets the frame.
    pub destination: [u8; 6],
    /// Station that sent it.
    pub source: [u8; 6],
    /// Protocol behind the header.
    pub ether_type: EtherType,
}

/// Reason why bytes are not an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are shorter than the header.
    #[error("Ethernet header truncated")]
    Truncated,
    /// An IEEE 802.3 length is where the type should be.
    #[error("frame of IEEE 802.3 with a length, not Ethernet II")]
    Length,
}

/// Returns whether the address names a group of stations.
pub fn is_multicast(address: [u8; 6]) -> bool {
    address[0] & 1 == 1
}

/// Parses the link header. The payload starts at [`HEADER_LEN`].
pub fn parse(frame: &[u8]) -> Result<Header, Error> {
    let bytes = frame.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
    let ether_type = be!(u16, bytes, 12);
    if ether_type < 0x0600 {
        return Err(Error::Length);
    }
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *bytes;
    Ok(Header {
        destination: [d0, d1, d2, d3, d4, d5],
        source: [s0, s1, s2, s3, s4, s5],
        ether_type: EtherType(ether_type),
    })
}

impl Header {
    /// Writes the link header in front of `headers`.
    pub fn emit(&self, headers: &mut Headers) {
        let bytes = headers.prepend(HEADER_LEN);
        bytes[..6].copy_from_slice(&self.destination);
        bytes[6..12].copy_from_slice(&self.source);
        bytes[12..].copy_from_slice(&self.ether_type.0.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_truncation() {
        let header = Header { destination: BROADCAST, source: [1; 6], ether_type: EtherType::ARP };
        let mut headers = Headers::default();
        header.emit(&mut headers);
        assert_eq!(parse(headers.as_slice()), Ok(header));
        for len in 0..HEADER_LEN {
            assert_eq!(parse(&headers.as_slice()[..len]), Err(Error::Truncated));
        }
        headers.as_mut_slice()[12] = 5;
        assert_eq!(parse(headers.as_slice()), Err(Error::Length));
        assert!(is_multicast(BROADCAST) && !is_multicast([2, 0, 0, 0, 0, 1]));
    }
}
