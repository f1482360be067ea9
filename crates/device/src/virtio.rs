//! Virtio-net header in front of each packet of a TUN device or an AF_PACKET socket. It says which
//! work is left to the other side: checksum, segmentation.
//!
//! Sources: Virtio 1.2 section 5.1.6; `linux/virtio_net.h`.

use neap_stack::device::RxChecksum;
use neap_stack::frame::{Frame, GsoKind, PartialChecksum};

/// Bytes of the header as both devices exchange it (`struct virtio_net_hdr`, no `num_buffers`).
pub(crate) const HEADER_LEN: usize = 10;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;
/// Where the flags are in a TCP header, and CWR among them.
const TCP_FLAGS: usize = 13;
const TCP_CWR: u8 = 0x80;

/// The fields, in the order of the wire. Multi-byte fields have the byte order of the host (the
/// legacy layout, which TUN and AF_PACKET keep unless told otherwise).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl Header {
    /// What the kernel has to do for `frame`; `None` if the frame contradicts itself.
    pub(crate) fn of(frame: &Frame) -> Option<Self> {
        let mut header = Self::default();
        let headers = frame.headers.as_slice();
        if let Some(PartialChecksum { start, offset }) = frame.checksum {
            header.flags = F_NEEDS_CSUM;
            header.checksum_start = start;
            header.checksum_offset = offset;
        }
        if let Some(gso) = frame.gso {
            // The kernel takes super-frames only with a checksum still to be finished.
            let transport = usize::from(frame.checksum?.start);
            if gso.size == 0 {
                return None;
            }
            header.gso_type = match gso.kind {
                GsoKind::Tcp4 => GSO_TCPV4,
                GsoKind::Tcp6 => GSO_TCPV6,
                GsoKind::Udp4 | GsoKind::Udp6 => GSO_UDP_L4,
            };
            let is_tcp = header.gso_type != GSO_UDP_L4;
            if is_tcp && *headers.get(transport + TCP_FLAGS)? & TCP_CWR != 0 {
                header.gso_type |= GSO_ECN;
            }
            header.gso_size = gso.size;
        }
        header.header_len = u16::try_from(headers.len()).ok()?;
        Some(header)
    }

    pub(crate) fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let fields = [self.header_len, self.gso_size, self.checksum_start, self.checksum_offset];
        for (place, field) in bytes[2..].chunks_exact_mut(2).zip(fields) {
            place.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: [u8; HEADER_LEN]) -> Self {
        let [flags, gso_type, rest @ ..] = bytes;
        let field = |at: usize| u16::from_ne_bytes([rest[at], rest[at + 1]]);
        Self {
            flags,
            gso_type,
            header_len: field(0),
            gso_size: field(2),
            checksum_start: field(4),
            checksum_offset: field(6),
        }
    }

    /// Payload bytes of each segment that was coalesced; 0 for a single packet.
    pub(crate) fn received_gso_size(self) -> u16 {
        if self.gso_type == GSO_NONE { 0 } else { self.gso_size }
    }

    /// What the header says of the checksum of a received packet of `len` bytes. A place outside
    /// the packet is not believed.
    pub(crate) fn received_checksum(self, len: usize) -> RxChecksum {
        let (start, offset) = (self.checksum_start, self.checksum_offset);
        let end = usize::from(start) + usize::from(offset) + 2;
        if self.flags & F_NEEDS_CSUM != 0 && end <= len {
            RxChecksum::Partial(PartialChecksum { start, offset })
        } else if self.flags & F_DATA_VALID != 0 {
            RxChecksum::Good
        } else {
            RxChecksum::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_stack::frame::{Gso, Headers};
    use neap_tcp::segment::Payload;

    fn frame(tcp_flags: u8) -> Frame {
        let mut headers = Headers::default();
        headers.prepend(40)[20 + TCP_FLAGS] = tcp_flags;
        Frame {
            gso: Some(Gso { size: 1460, kind: GsoKind::Tcp4 }),
            checksum: Some(PartialChecksum { start: 20, offset: 16 }),
            ..Frame::new(headers, Payload::from(bytes::Bytes::from_static(&[7; 4000])))
        }
    }

    #[test]
    fn a_super_frame_survives_the_codec() {
        let header = Header::of(&frame(0x10)).expect("well formed");
        assert_eq!(
            header,
            Header {
                flags: F_NEEDS_CSUM,
                gso_type: GSO_TCPV4,
                header_len: 40,
                gso_size: 1460,
                checksum_start: 20,
                checksum_offset: 16
            }
        );
        let bytes = header.encode();
        assert_eq!(bytes[..2], [1, 1]);
        assert_eq!(bytes[2..4], 40u16.to_ne_bytes());
        assert_eq!(Header::decode(bytes), header);
    }

    #[test]
    fn cwr_sets_the_ecn_bit() {
        let mut cwr = frame(TCP_CWR);
        assert_eq!(Header::of(&cwr).map(|h| h.gso_type), Some(GSO_TCPV4 | GSO_ECN));
        cwr.gso = Some(Gso { size: 1440, kind: GsoKind::Tcp6 });
        assert_eq!(Header::of(&cwr).map(|h| h.gso_type), Some(GSO_TCPV6 | GSO_ECN));
        cwr.gso = None;
        assert_eq!(Header::of(&cwr).map(|h| h.gso_type), Some(GSO_NONE));
    }

    #[test]
    fn contradictions_are_refused() {
        let no_checksum = Frame { checksum: None, ..frame(0) };
        assert_eq!(Header::of(&no_checksum), None);
        let outside =
            Frame { checksum: Some(PartialChecksum { start: 60, offset: 16 }), ..frame(0) };
        assert_eq!(Header::of(&outside), None);
        let zero = Frame { gso: Some(Gso { size: 0, kind: GsoKind::Tcp4 }), ..frame(0) };
        assert_eq!(Header::of(&zero), None);
    }

    #[test]
    fn a_received_checksum_must_lie_in_the_packet() {
        let partial = Header {
            flags: F_NEEDS_CSUM,
            checksum_start: 20,
            checksum_offset: 16,
            ..Header::default()
        };
        let place = PartialChecksum { start: 20, offset: 16 };
        assert_eq!(partial.received_checksum(38), RxChecksum::Partial(place));
        assert_eq!(partial.received_checksum(37), RxChecksum::Unknown);
        let valid = Header { flags: F_DATA_VALID, ..Header::default() };
        assert_eq!(valid.received_checksum(40), RxChecksum::Good);
        assert_eq!(Header::default().received_checksum(40), RxChecksum::Unknown);
    }

    #[test]
    fn gso_size_counts_only_with_a_gso_type() {
        let stray = Header { gso_size: 1460, ..Header::default() };
        assert_eq!(stray.received_gso_size(), 0);
        assert_eq!(Header { gso_type: GSO_TCPV6 | GSO_ECN, ..stray }.received_gso_size(), 1460);
    }
}
