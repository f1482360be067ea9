//! Generic receive offload on bytes: the packets of one batch that follow each other in a flow of
//! TCP, and datagrams of UDP of one length with the same ends, become one super-packet, so that the
//! stack parses headers once for up to 64 KB.
//!
//! The rules are those of Linux's `inet_gro_receive`, `tcp_gro_receive` and
//! `udp_gro_receive_segment`. The stack has those of TCP too (`neap_stack::gro`), for devices whose
//! packets lie apart, and it takes datagrams apart again for their receivers. Here packets lie one
//! behind the other and in the cache, so their payload is moved together: a copy of its bytes
//! instead of the stack's way for each packet.

use crate::ip::{HEADER_V4, HEADER_V6};
use core::ops::Range;
use neap_stack::gso::MOST_DATAGRAMS;
use neap_stack::wire::checksum;

const TCP: u8 = 6;
const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
/// Least and most bytes of a TCP header.
const TCP_HEADER: usize = 20;
/// The largest super-packet, which an IP header can say.
const MOST: usize = 65_535;
/// Flags of TCP: FIN, SYN, RST, PSH, ACK, URG, ECE, CWR.
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

/// Packets of one batch.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    /// Where packets are, in order.
    packets: Vec<Packet>,
    /// What became of them.
    merged: Vec<Merged>,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    at: usize,
    len: usize,
}

/// One packet, or several that became one.
#[derive(Clone, Copy, Debug)]
struct Merged {
    at: usize,
    len: usize,
    /// Payload of the first packet; all have as much but the last.
    size: usize,
    count: usize,
    headers: Option<Layout>,
    /// Nothing can follow it.
    is_over: bool,
}

/// A packet of TCP or UDP that may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    protocol: u8,
    /// Bytes of the IP header.
    ip: usize,
    /// Bytes of both headers.
    all: usize,
}

impl Layout {
    /// `None` if the packet has to stay as it is.
    fn of(packet: &[u8]) -> Option<Self> {
        let (ip, protocol) = match packet.first()? {
            // Without options, and no fragment.
            0x45 if packet.len() > HEADER_V4 => {
                let is_whole = packet[6] & 0x3f == 0 && packet[7] == 0;
                is_whole.then_some((HEADER_V4, packet[9]))?
            }
            first if first >> 4 == 6 && packet.len() > HEADER_V6 => (HEADER_V6, packet[6]),
            _ => return None,
        };
        let transport = &packet[ip..];
        let len = match protocol {
            TCP => Self::of_tcp(transport)?,
            UDP => Self::of_udp(transport)?,
            _ => return None,
        };
        (transport.len() > len).then_some(Self { protocol, ip, all: ip + len })
    }

    /// Bytes of the TCP header.
    fn of_tcp(tcp: &[u8]) -> Option<usize> {
        let &[flags] = tcp.get(13..14)?.first_chunk()?;
        let len = usize::from(tcp[12] >> 4) * 4;
        let may_wait = flags & !(ECE | CWR | PSH | FIN) == ACK && len >= TCP_HEADER;
        may_wait.then_some(len)
    }

    /// Bytes of the UDP header, if the datagram is as long as its packet says.
    fn of_udp(udp: &[u8]) -> Option<usize> {
        let &[high, low] = udp.get(4..6)?.first_chunk()?;
        (usize::from(u16::from_be_bytes([high, low])) == udp.len()).then_some(UDP_HEADER)
    }

    /// Whether a packet with these headers is the last of its super-packet.
    fn ends(self, headers: &[u8]) -> bool {
        self.protocol == TCP && headers[self.ip + 13] & (PSH | FIN) != 0
    }
}

impl Merger {
    /// Begins a batch.
    pub(crate) fn begin(&mut self) {
        self.packets.clear();
        self.merged.clear();
    }

    /// Adds a packet of `len` bytes that begins at `at`, behind the one before.
    pub(crate) fn add(&mut self, at: usize, len: usize) {
        self.packets.push(Packet { at, len });
    }

    /// Merges what may be merged. Payload moves towards the front.
    pub(crate) fn merge(&mut self, room: &mut [u8]) {
        for Packet { at, len } in self.packets.drain(..) {
            let packet = &room[at..at + len];
            let headers = Layout::of(packet);
            if let (Some(last), Some(next)) = (self.merged.last_mut(), headers)
                && last.takes(room, at, len, next)
            {
                last.append(room, at, len, next);
                continue;
            }
            let size = headers.map_or(0, |layout| len - layout.all);
            let ends = headers.is_none_or(|layout| layout.ends(packet));
            self.merged.push(Merged { at, len, size, count: 1, headers, is_over: ends });
        }
        for merged in &self.merged {
            merged.finish(room);
        }
    }

    /// The packets: where each is, and the payload of its segments if it has several.
    pub(crate) fn packets(&self) -> impl Iterator<Item = (Range<usize>, u16)> + '_ {
        self.merged.iter().map(|merged| {
            let gso_size = if merged.count > 1 { merged.size as u16 } else { 0 };
            (merged.at..merged.at + merged.len, gso_size)
        })
    }
}

impl Merged {
    /// Whether the packet at `at` continues this one.
    fn takes(&self, room: &[u8], at: usize, len: usize, next: Layout) -> bool {
        let Some(layout) = self.headers.filter(|_| !self.is_over) else { return false };
        let payload = len - next.all;
        if next != layout || payload > self.size || self.len + payload > MOST {
            return false;
        }
        let (first, second) = (&room[self.at..][..layout.all], &room[at..][..layout.all]);
        let (ip, transport, next) = (layout.ip, &first[layout.ip..], &second[layout.ip..]);
        // Of IPv4 the identification, the length and the checksum may differ; of IPv6 the length.
        let same_ip = if ip == HEADER_V4 {
            first[..2] == second[..2]
                && first[6..10] == second[6..10]
                && first[12..20] == second[12..20]
        } else {
            first[..4] == second[..4] && first[6..40] == second[6..40]
        };
        let same_ports = transport[..4] == next[..4];
        let follows = match layout.protocol {
            TCP => follows(transport, next, (self.len - layout.all) as u32),
            // Both have a checksum, or none has.
            _ => {
                let has_sum = |udp: &[u8]| udp[6..8] != [0, 0];
                self.count < MOST_DATAGRAMS && has_sum(transport) == has_sum(next)
            }
        };
        same_ip && same_ports && follows
    }

    fn append(&mut self, room: &mut [u8], at: usize, len: usize, next: Layout) {
        let payload = at + next.all..at + len;
        let ends = next.ends(&room[at..]);
        if ends {
            room[self.at + next.ip + 13] |= room[at + next.ip + 13] & (PSH | FIN);
        }
        self.is_over = ends || payload.len() < self.size;
        let end = self.at + self.len;
        self.len += payload.len();
        self.count += 1;
        room.copy_within(payload, end);
    }

    /// Writes the length of what was merged.
    fn finish(&self, room: &mut [u8]) {
        let Some(layout) = self.headers.filter(|_| self.count > 1) else { return };
        let header = &mut room[self.at..][..layout.ip];
        if layout.ip == HEADER_V4 {
            header[2..4].copy_from_slice(&(self.len as u16).to_be_bytes());
            header[10..12].fill(0);
            let sum = checksum::of(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            header[4..6].copy_from_slice(&((self.len - HEADER_V6) as u16).to_be_bytes());
        }
        if layout.protocol == UDP {
            let len = (self.len - layout.ip) as u16;
            room[self.at + layout.ip..][4..6].copy_from_slice(&len.to_be_bytes());
        }
    }
}

/// Whether a TCP header follows another one with `sent` bytes behind it.
fn follows(tcp: &[u8], next: &[u8], sent: u32) -> bool {
    let word = |bytes: &[u8]| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    word(&next[4..]) == word(&tcp[4..]).wrapping_add(sent)
        && tcp[8..13] == next[8..13]
        && next[13] & CWR == 0
        && (tcp[13] ^ next[13]) & !(PSH | FIN | CWR) == 0
        && tcp[14..16] == next[14..16]
        && tcp[18..] == next[18..]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD: usize = 100;

    /// A TCP packet whose payload is made of its sequence numbers.
    fn packet(is_v6: bool, seq: u32, len: usize) -> Vec<u8> {
        let ip = if is_v6 { HEADER_V6 } else { HEADER_V4 };
        let mut packet = vec![0; ip + TCP_HEADER + len];
        let total = packet.len() as u16;
        if is_v6 {
            (packet[0], packet[6], packet[7]) = (0x60, TCP, 64);
            packet[4..6].copy_from_slice(&(total - HEADER_V6 as u16).to_be_bytes());
        } else {
            (packet[0], packet[8], packet[9]) = (0x45, 64, TCP);
            packet[2..4].copy_from_slice(&total.to_be_bytes());
            let sum = checksum::of(&packet[..HEADER_V4]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        packet[ip + 4..ip + 8].copy_from_slice(&seq.to_be_bytes());
        (packet[ip + 12], packet[ip + 13]) = (0x50, ACK);
        for (byte, index) in packet[ip + TCP_HEADER..].iter_mut().zip(0..) {
            *byte = seq.wrapping_add(index) as u8;
        }
        packet
    }

    /// What becomes of packets with some room behind each: bytes, and payload of segments.
    fn merged(packets: &[Vec<u8>]) -> Vec<(Vec<u8>, u16)> {
        let (mut room, mut merger) = (Vec::new(), Merger::default());
        merger.begin();
        for packet in packets {
            merger.add(room.len(), packet.len());
            room.extend_from_slice(packet);
            room.extend_from_slice(&[0xee; 48]);
        }
        merger.merge(&mut room);
        merger.packets().map(|(range, size)| (room[range].to_vec(), size)).collect()
    }

    #[test]
    fn packets_that_follow_each_other_become_one() {
        for is_v6 in [false, true] {
            let seqs = (0..5).map(|index| (u32::MAX - 150).wrapping_add(index * PAYLOAD as u32));
            let mut packets: Vec<_> = seqs.map(|seq| packet(is_v6, seq, PAYLOAD)).collect();
            packets.push(packet(is_v6, (u32::MAX - 150).wrapping_add(500), 40));
            packets.push(packet(is_v6, (u32::MAX - 150).wrapping_add(540), PAYLOAD));
            let merged = merged(&packets);
            assert_eq!(merged.len(), 2, "a shorter one is the last");
            let whole = packet(is_v6, u32::MAX - 150, 5 * PAYLOAD + 40);
            assert_eq!(merged[0], (whole, PAYLOAD as u16));
            assert_eq!(merged[1], (packets[6].clone(), 0));
        }
    }

    #[test]
    fn a_push_is_kept_and_ends_it() {
        let mut second = packet(false, 100, PAYLOAD);
        second[HEADER_V4 + 13] |= PSH;
        let third = packet(false, 200, PAYLOAD);
        let merged = merged(&[packet(false, 0, PAYLOAD), second, third.clone()]);
        assert_eq!(merged.len(), 2);
        assert_eq!(merged[0].0[HEADER_V4 + 13], ACK | PSH);
        assert_eq!(merged[1], (third, 0));
    }

    #[test]
    fn whatever_differs_keeps_packets_apart() {
        // Offset in the second packet, and bits that are turned over.
        let tcp = HEADER_V4;
        let changes: [(usize, u8); 16] = [
            (1, 3),
            (6, 0x20),
            (8, 1),
            (9, 1),
            (12, 1),
            (19, 1),
            (tcp, 1),
            (tcp + 3, 1),
            (tcp + 7, 1),
            (tcp + 11, 1),
            (tcp + 13, CWR),
            (tcp + 13, ECE),
            (tcp + 13, 0x02),
            (tcp + 13, 0x04),
            (tcp + 14, 1),
            (tcp + 19, 1),
        ];
        for (at, bits) in changes {
            let first = packet(false, 0, PAYLOAD);
            let mut second = packet(false, 100, PAYLOAD);
            second[at] ^= bits;
            let packets = [first, second];
            let merged = merged(&packets);
            assert_eq!(merged, packets.map(|packet| (packet, 0)), "byte {at}");
        }
        let (long, ack) = (packet(false, 100, PAYLOAD + 1), packet(false, 100, 0));
        for second in [long, ack, packet(true, 100, PAYLOAD), vec![0x45; 19], Vec::new()] {
            assert_eq!(merged(&[packet(false, 0, PAYLOAD), second]).len(), 2);
        }
    }

    #[test]
    fn a_super_packet_is_no_larger_than_its_header_can_say() {
        let packets: Vec<_> = (0..60).map(|index| packet(false, index * 1400, 1400)).collect();
        let datagrams = vec![datagram(false, 0, 1400); 60];
        for packets in [packets, datagrams] {
            let merged = merged(&packets);
            assert_eq!(merged.len(), 2);
            assert!(merged[0].0.len() <= MOST && merged[0].0.len() > MOST - 1500);
        }
        let merged = merged(&vec![datagram(false, 0, 20); 130]);
        let lens: Vec<_> = merged.iter().map(|(bytes, _)| bytes.len()).collect();
        assert_eq!(lens, [28 + 128 * 20, 28 + 2 * 20], "the stack takes no more");
    }

    /// A datagram whose payload is made of a number.
    fn datagram(is_v6: bool, number: u32, len: usize) -> Vec<u8> {
        let mut whole = packet(is_v6, number, len);
        let ip = if is_v6 { HEADER_V6 } else { HEADER_V4 };
        whole.drain(ip + UDP_HEADER..ip + TCP_HEADER);
        let total = whole.len() as u16;
        if is_v6 {
            whole[6] = UDP;
            whole[4..6].copy_from_slice(&(total - HEADER_V6 as u16).to_be_bytes());
        } else {
            whole[9] = UDP;
            whole[2..4].copy_from_slice(&total.to_be_bytes());
            whole[10..12].fill(0);
            let sum = checksum::of(&whole[..HEADER_V4]);
            whole[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        whole[ip..ip + UDP_HEADER].copy_from_slice(&[0, 7, 0, 9, 0, 0, 0xab, 0xcd]);
        whole[ip + 4..ip + 6].copy_from_slice(&(total - ip as u16).to_be_bytes());
        whole
    }

    #[test]
    fn datagrams_of_one_length_become_one() {
        for is_v6 in [false, true] {
            let lens = [PAYLOAD, PAYLOAD, PAYLOAD, 40, PAYLOAD];
            let datagrams = [0, 100, 200, 300, 400].into_iter().zip(lens);
            let datagrams: Vec<_> =
                datagrams.map(|(number, len)| datagram(is_v6, number, len)).collect();
            let merged = merged(&datagrams);
            assert_eq!(merged.len(), 2, "a shorter one is the last");
            assert_eq!(merged[0], (datagram(is_v6, 0, 340), PAYLOAD as u16));
            assert_eq!(merged[1], (datagrams[4].clone(), 0));
        }
    }

    #[test]
    fn whatever_differs_keeps_datagrams_apart() {
        let first = datagram(false, 0, PAYLOAD);
        // The class, DF, the hops, a protocol, addresses, ports, and a length that is not that of
        // the packet.
        for at in [1, 6, 8, 9, 12, 19, HEADER_V4, HEADER_V4 + 3, HEADER_V4 + 5] {
            let mut second = datagram(false, 100, PAYLOAD);
            second[at] ^= if at == 6 { 0x40 } else { 1 };
            let packets = [first.clone(), second];
            assert_eq!(merged(&packets), packets.clone().map(|packet| (packet, 0)), "byte {at}");
        }
        let mut without_sum = datagram(false, 100, PAYLOAD);
        without_sum[HEADER_V4 + 6..HEADER_V4 + 8].fill(0);
        let (long, empty) = (datagram(false, 100, PAYLOAD + 1), datagram(false, 100, 0));
        let others = [without_sum, long, empty, datagram(true, 100, PAYLOAD)];
        for second in others.into_iter().chain([packet(false, 100, PAYLOAD), vec![0x45; 21]]) {
            assert_eq!(merged(&[first.clone(), second]).len(), 2);
        }
    }
}
