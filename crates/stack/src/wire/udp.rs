//! UDP headers (RFC 768).

use super::{ChecksumBy, Ports, be};
use crate::wire::checksum::Pseudo;
use crate::wire::headers::Headers;
use bytes::{Buf, Bytes};
use neap_tcp::segment::Payload;

/// Size of the header, in bytes.
pub const HEADER_LEN: usize = 8;

/// Offset of the checksum in the header.
pub const CHECKSUM_AT: usize = 6;

/// Largest payload over IPv4 (65535 - 20 - 8).
pub const MAX_PAYLOAD_V4: usize = 65_507;

/// Largest payload over IPv6 without jumbograms (65535 - 8).
pub const MAX_PAYLOAD_V6: usize = 65_527;

/// Received datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Ports of the datagram.
    pub ports: Ports,
    /// Data, a slice of the received packet.
    pub payload: Bytes,
}

/// Rule by which the checksum is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// The checksum is known to be good.
    Not,
    /// The checksum is verified if there is one (IPv4: a field of zero means none).
    IfPresent(Pseudo),
    /// There must be a checksum (IPv6, RFC 8200 section 8.1).
    Always(Pseudo),
}

/// Reason why bytes are not a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The datagram is shorter than its header, or than its length field says.
    #[error("UDP datagram truncated")]
    Truncated,
    /// The length field is below the header length.
    #[error("bad UDP length")]
    Length,
    /// The checksum is wrong, or absent over IPv6.
    #[error("bad UDP checksum")]
    Checksum,
}

/// Parses header and payload. Bytes behind the datagram's length are cut off.
pub fn parse(mut data: Bytes, verify: Verify) -> Result<Datagram, Error> {
    let bytes = data.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
    let ports = Ports { source: be!(u16, bytes, 0), destination: be!(u16, bytes, 2) };
    let len = usize::from(be!(u16, bytes, 4));
    let has_checksum = be!(u16, bytes, 6) != 0;
    if len < HEADER_LEN {
        return Err(Error::Length);
    }
    if len > data.len() {
        return Err(Error::Truncated);
    }
    data.truncate(len);
    let is_good = match verify {
        Verify::Not => true,
        Verify::IfPresent(pseudo) => !has_checksum || pseudo.verifies(&data),
        Verify::Always(pseudo) => has_checksum && pseudo.verifies(&data),
    };
    if !is_good {
        return Err(Error::Checksum);
    }
    data.advance(HEADER_LEN);
    Ok(Datagram { ports, payload: data })
}

/// Writes the header in front of `payload`, which has at most [`MAX_PAYLOAD_V4`] or
/// [`MAX_PAYLOAD_V6`] bytes. A checksum of zero is sent as its other form.
pub fn emit(
    headers: &mut Headers,
    ports: Ports,
    payload: &Payload,
    pseudo: Pseudo,
    checksum: ChecksumBy,
) {
    let len = (HEADER_LEN as u32).saturating_add(payload.len());
    debug_assert!(len <= 0xffff, "a UDP datagram has at most 65535 bytes");
    let bytes = headers.prepend(HEADER_LEN);
    bytes[..2].copy_from_slice(&ports.source.to_be_bytes());
    bytes[2..4].copy_from_slice(&ports.destination.to_be_bytes());
    bytes[4..6].copy_from_slice(&(len.min(0xffff) as u16).to_be_bytes());
    let mut sum = pseudo.with_len(len);
    let field = match checksum {
        ChecksumBy::Device => sum.fold(),
        ChecksumBy::Stack => {
            sum.add(bytes);
            for chunk in payload.chunks() {
                sum.add(chunk);
            }
            match sum.finish() {
                0 => 0xffff,
                sum => sum,
            }
        }
    };
    bytes[CHECKSUM_AT..].copy_from_slice(&field.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Protocol;
    use core::net::Ipv4Addr;

    const PORTS: Ports = Ports { source: 53, destination: 4000 };

    fn pseudo() -> Pseudo {
        Pseudo::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, Protocol::UDP)
    }

    fn datagram(payload: &'static [u8]) -> Vec<u8> {
        let mut headers = Headers::default();
        let slices = Payload::from(Bytes::from_static(payload));
        emit(&mut headers, PORTS, &slices, pseudo(), ChecksumBy::Stack);
        [headers.as_slice(), payload].concat()
    }

    #[test]
    fn round_trip_truncation_and_padding() {
        let mut bytes = datagram(b"payload");
        let expected = Datagram { ports: PORTS, payload: Bytes::from_static(b"payload") };
        for verify in [Verify::Not, Verify::IfPresent(pseudo()), Verify::Always(pseudo())] {
            assert_eq!(parse(bytes.clone().into(), verify), Ok(expected.clone()));
        }
        for len in 0..bytes.len() {
            let cut = parse(Bytes::copy_from_slice(&bytes[..len]), Verify::Not);
            assert_eq!(cut, Err(Error::Truncated));
        }
        bytes.extend_from_slice(&[0; 9]);
        assert_eq!(parse(bytes.into(), Verify::Always(pseudo())), Ok(expected));
    }

    #[test]
    fn bad_lengths_and_checksums() {
        let mut bytes = datagram(b"x");
        for len in 0..8 {
            bytes[5] = len;
            assert_eq!(parse(bytes.clone().into(), Verify::Not), Err(Error::Length));
        }
        bytes = datagram(b"x");
        bytes[8] ^= 1;
        let verify = |bytes: &[u8], verify| parse(Bytes::copy_from_slice(bytes), verify).err();
        assert_eq!(verify(&bytes, Verify::IfPresent(pseudo())), Some(Error::Checksum));
        bytes[6..8].fill(0);
        assert_eq!(verify(&bytes, Verify::IfPresent(pseudo())), None);
        assert_eq!(verify(&bytes, Verify::Always(pseudo())), Some(Error::Checksum));
    }

    #[test]
    fn a_checksum_is_never_sent_as_zero() {
        let sum = |word: [u8; 2]| {
            let mut headers = Headers::default();
            let payload = Payload::from(Bytes::copy_from_slice(&word));
            emit(&mut headers, PORTS, &payload, pseudo(), ChecksumBy::Stack);
            u16::from_be_bytes([headers.as_slice()[6], headers.as_slice()[7]])
        };
        // The word that makes the sum all ones.
        let word = sum([0, 0]).to_be_bytes();
        assert_eq!(sum(word), 0xffff);
    }
}
