//! ARP for IPv4 over Ethernet (RFC 826).

use super::be;
use crate::wire::headers::Headers;
use core::net::Ipv4Addr;

/// Size of a packet, in bytes.
pub const LEN: usize = 28;

/// Operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Request: who has the target address?
    Request,
    /// Reply: the sender has its address.
    Reply,
}

/// ARP packet, which binds the sender's two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Request or reply.
    pub operation: Operation,
    /// Sender's link address.
    pub sender_link: [u8; 6],
    /// Sender's address; unspecified in a probe (RFC 5227).
    pub sender: Ipv4Addr,
    /// Target's link address; zero in a request.
    pub target_link: [u8; 6],
    /// Target's address.
    pub target: Ipv4Addr,
}

/// Reason why bytes are not an ARP packet that the stack understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are shorter than a packet.
    #[error("ARP packet truncated")]
    Truncated,
    /// The packet is not about Ethernet and IPv4.
    #[error("ARP for another kind of link or address")]
    Kind,
    /// The operation is neither request nor reply.
    #[error("unknown ARP operation {0}")]
    Operation(u16),
    /// The sender claims a group address of link or network.
    #[error("ARP sender claims a group address")]
    Sender,
}

/// Parses the bytes behind the link header. Padding behind the packet is ignored.
pub fn parse(packet: &[u8]) -> Result<Packet, Error> {
    let bytes = packet.first_chunk::<LEN>().ok_or(Error::Truncated)?;
    if bytes[..6] != [0, 1, 8, 0, 6, 4] {
        return Err(Error::Kind);
    }
    let operation = match be!(u16, bytes, 6) {
        1 => Operation::Request,
        2 => Operation::Reply,
        other => return Err(Error::Operation(other)),
    };
    let [.., a0, a1, a2, a3, a4, a5, s0, s1, s2, s3, b0, b1, b2, b3, b4, b5, t0, t1, t2, t3] =
        *bytes;
    let sender_link = [a0, a1, a2, a3, a4, a5];
    let sender = Ipv4Addr::new(s0, s1, s2, s3);
    if super::ethernet::is_multicast(sender_link) || sender.is_multicast() || sender.is_broadcast()
    {
        return Err(Error::Sender);
    }
    Ok(Packet {
        operation,
        sender_link,
        sender,
        target_link: [b0, b1, b2, b3, b4, b5],
        target: Ipv4Addr::new(t0, t1, t2, t3),
    })
}

impl Packet {
    /// Writes the packet to `headers`. The link header goes in front of it.
    pub fn emit(&self, headers: &mut Headers) {
        let bytes = headers.prepend(LEN);
        bytes[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        let operation: u16 = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        bytes[6..8].copy_from_slice(&operation.to_be_bytes());
        bytes[8..14].copy_from_slice(&self.sender_link);
        bytes[14..18].copy_from_slice(&self.sender.octets());
        bytes[18..24].copy_from_slice(&self.target_link);
        bytes[24..].copy_from_slice(&self.target.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_bad_input() {
        let packet = Packet {
            operation: Operation::Reply,
            sender_link: [2, 0, 0, 0, 0, 1],
            sender: Ipv4Addr::new(10, 0, 0, 1),
            target_link: [2, 0, 0, 0, 0, 2],
            target: Ipv4Addr::new(10, 0, 0, 2),
        };
        let mut headers = Headers::default();
        packet.emit(&mut headers);
        let bytes = headers.as_slice();
        assert_eq!(parse(bytes), Ok(packet));
        assert_eq!(parse(&[bytes, &[0; 18]].concat()), Ok(packet), "padding of a short frame");
        for len in 0..LEN {
            assert_eq!(parse(&bytes[..len]), Err(Error::Truncated));
        }
        let with = |at: usize, value: u8| {
            let mut bad = bytes.to_vec();
            bad[at] = value;
            parse(&bad)
        };
        assert_eq!(with(1, 6), Err(Error::Kind));
        assert_eq!(with(7, 3), Err(Error::Operation(3)));
        assert_eq!(with(8, 3), Err(Error::Sender));
        assert_eq!(with(14, 224), Err(Error::Sender));
    }
}
