//! A link between two devices of the real world: packets in, packets out, by the same queues and
//! impairments as between hosts of the lab. It reads no clock: every call gets the time.
//!
//! Each end is as the port of a router. What comes in is cut into wire packets, which enter the
//! path one by one. What goes out is joined again where packets follow each other. Decisions about
//! what the queue lets pass depend on the seed and on the order of those packets alone. Queues,
//! policers, changes and outages depend on times.
//!
//! Cost: per wire packet one copy of its headers, one allocation and one entry of a queue; payloads
//! are not copied, except those that are damaged. [`RelayConfig::most_packets`] bounds the memory.

use super::config::{ENDS, LinkChange, NicConfig, PathConfig};
use super::direction::Direction;
use super::intake;
use super::offload::{self, SegmentRun};
use super::packet::{Packet, network_len};
use super::stats::LinkStats;
use crate::rng::Rng;
use neap_stack::device::Received;
use neap_stack::frame::Frame;
use neap_tcp::time::Instant;

/// Configuration of a [`Relay`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayConfig {
    /// Path that begins at each end. A path without a bottleneck has one of its own rate with a
    /// queue of 1000 packets.
    pub paths: [PathConfig; ENDS],
    /// What changes, in the order of the times.
    pub changes: Vec<LinkChange>,
    /// Most packets that are on their way in both directions together. What comes beyond is dropped
    /// and counted.
    pub most_packets: usize,
}

impl RelayConfig {
    /// Packets that a relay holds by default: a quarter of a second at 10 Gbit/s, about 400 MB.
    pub const MOST_PACKETS: usize = 262_144;
}

/// Counters of one direction of a [`Relay`], by the end where packets come in.
#[derive(Clone, Debug, Default)]
pub struct RelayStats {
    /// Frames that came in, super-frames counted once.
    pub frames_in: u64,
    /// Bytes of the packets that came in, each with its own headers from that of IP on.
    pub bytes_in: u64,
    /// Frames that went out, joined ones counted once.
    pub frames_out: u64,
    /// Bytes of the packets that went out, as `bytes_in`.
    pub bytes_out: u64,
    /// Frames that cannot be read or cut: no IP packet on a TUN, headers of more than 128 bytes,
    /// super-packets of other protocols than TCP and UDP.
    pub unreadable: u64,
    /// Packets dropped because [`RelayConfig::most_packets`] were on their way.
    pub overflow: u64,
    /// Packets on their way, in queues and on the wire.
    pub contents: u64,
    /// The counters that links of the lab have. `packets` came in and `delivered` went out.
    pub link: LinkStats,
}

/// Link between two devices of the real world.
#[derive(Debug)]
pub struct Relay {
    directions: [Direction; ENDS],
    stats: [RelayStats; ENDS],
    most_packets: usize,
    changes: Vec<LinkChange>,
    next_change: usize,
    start: Instant,
    is_ethernet: bool,
}

impl Relay {
    /// Returns a link that begins at `start`. Packets begin with their Ethernet header if
    /// `is_ethernet` says so, else with that of IP.
    pub fn new(config: RelayConfig, rng: &Rng, start: Instant, is_ethernet: bool) -> Self {
        let nic = NicConfig::default();
        let direction = |from: usize| {
            Direction::new(&nic, &nic, &config.paths[from], &rng.fork(from as u64), start, true)
        };
        Self {
            directions: [direction(0), direction(1)],
            stats: Default::default(),
            most_packets: config.most_packets,
            changes: config.changes,
            next_change: 0,
            start,
            is_ethernet,
        }
    }

    /// Takes a packet that the device of `end` received at `now`. Times must not go backwards.
    pub fn enter(&mut self, end: usize, now: Instant, received: Received) {
        self.change(now);
        let (stats, most) = (&mut self.stats[end], self.most_packets);
        stats.frames_in += 1;
        let [first, second] = &mut self.directions;
        let (there, back) = if end == 0 { (first, second) } else { (second, first) };
        let each = |frame: Frame| {
            stats.bytes_in += network_len(&frame) as u64;
            if there.contents() + back.contents() >= most {
                stats.overflow += 1;
                there.stats.packets += 1;
                return;
            }
            there.enter_from_outside(now, Box::new(Packet::new(frame)), back);
        };
        if !intake::packets(received, self.is_ethernet, each) {
            stats.unreadable += 1;
        }
    }

    /// Lets happen what is due at `now` inside of the link: turns of queues, and changes.
    pub fn advance(&mut self, now: Instant) {
        self.change(now);
        for direction in &mut self.directions {
            direction.path.advance(now, &mut direction.stats);
        }
    }

    /// Makes the changes that are due at `now`, each after the turns that were due before it.
    fn change(&mut self, now: Instant) {
        while let Some(change) = self.changes.get(self.next_change)
            && self.start + change.at <= now
        {
            for direction in &mut self.directions {
                direction.path.advance(self.start + change.at, &mut direction.stats);
            }
            for &end in &change.from {
                self.directions[end].apply(change);
            }
            self.next_change += 1;
        }
    }

    /// Returns the next frame for the device at the other end of `from`, if a packet has arrived
    /// there by `now`. Segments that follow each other are one super-frame. `dues` becomes the
    /// times at which its packets have arrived.
    pub fn leave(&mut self, from: usize, now: Instant, dues: &mut Vec<Instant>) -> Option<Frame> {
        let direction = &mut self.directions[from];
        dues.clear();
        let (due, packet) = direction.take_arrived(now)?;
        let Packet { mut frame, flipped } = *packet;
        dues.push(due);
        let stats = &mut self.stats[from];
        stats.frames_out += 1;
        stats.bytes_out += network_len(&frame) as u64;
        if let Some(bit) = flipped {
            offload::damage(&mut frame, bit);
            return Some(frame);
        }
        // A checksum that is finished may be wrong, and would seem right in a super-frame.
        let run = frame.checksum.and_then(|_| SegmentRun::begin(&frame));
        let Some(mut run) = run else { return Some(frame) };
        while !run.is_over() {
            let is_next = |next: &Packet| {
                next.flipped.is_none()
                    && next.frame.checksum.is_some()
                    && run.take(&frame, &next.frame)
            };
            let Some((due, mut next)) = direction.take_arrived_if(now, is_next) else { break };
            dues.push(due);
            stats.bytes_out += network_len(&next.frame) as u64;
            next.frame
                .payload
                .take_chunks()
                .into_iter()
                .for_each(|chunk| frame.payload.push(chunk));
        }
        run.finish(&mut frame);
        Some(frame)
    }

    /// Returns when [`advance`](Self::advance) or [`leave`](Self::leave) next has something to do.
    pub fn next_event(&self) -> Instant {
        (0..ENDS).map(|from| self.next_arrival(from)).fold(self.next_turn(), Instant::min)
    }

    /// Returns when [`advance`](Self::advance) next has something to do.
    pub fn next_turn(&self) -> Instant {
        let change = self.changes.get(self.next_change);
        let change = change.map_or(Instant::FAR_FUTURE, |change| self.start + change.at);
        let turns = self.directions.iter().map(|direction| direction.path.next_event());
        turns.fold(change, Instant::min)
    }

    /// Returns when [`leave`](Self::leave) next has a frame that came in at `from`.
    pub fn next_arrival(&self, from: usize) -> Instant {
        self.directions[from].path.next_arrival()
    }

    /// Returns the counters of the packets that come in at `end`.
    pub fn stats(&self, end: usize, now: Instant) -> RelayStats {
        let direction = &self.directions[end];
        RelayStats {
            contents: direction.contents() as u64,
            link: direction.stats_at(now),
            ..self.stats[end].clone()
        }
    }

    /// Returns how many packets are on their way in both directions.
    pub fn contents(&self) -> usize {
        self.directions.iter().map(Direction::contents).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{CoDel, Discipline};
    use super::super::tests::{SIZE, START, frame};
    use super::*;
    use crate::rng::Ppm;
    use bytes::Bytes;
    use neap_stack::device::RxChecksum;
    use neap_stack::gso;
    use neap_stack::wire::Protocol;
    use neap_stack::wire::checksum::Pseudo;
    use neap_tcp::segment::Flags;
    use neap_tcp::time::{Nanos, Rate};

    const DELAY: Nanos = Nanos::from_millis(1);
    const ETHERNET: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];

    fn relay(change: impl Fn(&mut PathConfig), is_ethernet: bool) -> Relay {
        let mut path = PathConfig::clean(Rate::UNLIMITED, DELAY);
        change(&mut path);
        let (paths, changes) = ([path.clone(), path], Vec::new());
        let config = RelayConfig { paths, changes, most_packets: 100 };
        Relay::new(config, &Rng::new(1), START, is_ethernet)
    }

    /// A super-frame as a TUN or an Ethernet interface hands it over.
    fn received(seq: u32, segments: u32, link: &[u8]) -> Received {
        let frame = frame(seq, segments, Flags::ACK | Flags::PSH);
        let data: Bytes = [link, &frame.to_bytes()].concat().into();
        let mut partial = frame.checksum.expect("left to the device");
        partial.start += link.len() as u16;
        let gso_size = if segments > 1 { SIZE as u16 } else { 0 };
        Received { data, gso_size, checksum: RxChecksum::Partial(partial) }
    }

    fn all(relay: &mut Relay, now: Instant) -> Vec<Frame> {
        relay.advance(now);
        let mut dues = Vec::new();
        core::iter::from_fn(|| relay.leave(0, now, &mut dues)).collect()
    }

    #[test]
    fn a_super_frame_is_cut_and_joined_to_what_it_was() {
        for link in [&[][..], &ETHERNET] {
            let mut relay = relay(|_| {}, !link.is_empty());
            let whole = received(1000, 5, link);
            relay.enter(0, START, whole.clone());
            assert_eq!(relay.contents(), 5);
            assert_eq!(relay.next_event(), START + DELAY);
            assert!(all(&mut relay, START + DELAY - Nanos(1)).is_empty());
            let out = all(&mut relay, START + DELAY);
            assert_eq!(out.len(), 1);
            assert_eq!(out[0].to_bytes(), whole.data);
            assert_eq!(out[0].gso.map(|gso| gso.size), Some(SIZE as u16));
            assert_eq!(RxChecksum::Partial(out[0].checksum.expect("a place")), whole.checksum);
            let stats = relay.stats(0, START + DELAY);
            assert_eq!((stats.frames_in, stats.frames_out), (1, 1));
            assert_eq!((stats.link.packets, stats.link.delivered), (5, 5));
            assert_eq!((stats.bytes_in, stats.bytes_out), (5 * 1040, 5 * 1040));
        }
    }

    #[test]
    fn segments_around_a_lost_one_are_not_joined() {
        let mut relay = relay(|path| path.scripted.packets = vec![2], false);
        relay.enter(0, START, received(1000, 5, &[]));
        let out = all(&mut relay, START + DELAY);
        let payloads: Vec<u32> = out.iter().map(|frame| frame.payload.len()).collect();
        assert_eq!(payloads, [2 * SIZE, 2 * SIZE]);
        assert!(out[0].headers.as_slice()[33] & Flags::PSH.bits() == 0);
        assert!(out[1].headers.as_slice()[33] & Flags::PSH.bits() != 0);
        assert_eq!(relay.stats(0, START).link.lost, 1);
    }

    #[test]
    fn a_change_is_later_than_what_was_due_before_it_and_earlier_than_what_comes_after_it() {
        let ms = Nanos::from_millis;
        let codel = Discipline::CoDel(CoDel::default());
        // A packet of 1078 bytes on the wire takes a millisecond.
        let path = PathConfig { discipline: codel, ..PathConfig::clean(Rate(1_078_000), DELAY) };
        let is_down = Some(true);
        let change = LinkChange { at: ms(2), from: vec![0], is_down, ..LinkChange::default() };
        let (paths, changes) = ([path.clone(), path], vec![change]);
        let config = RelayConfig { paths, changes, most_packets: 100 };
        let mut relay = Relay::new(config, &Rng::new(1), START, false);
        relay.enter(0, START, received(0, 1, &[]));
        relay.enter(0, START + ms(3), received(SIZE, 1, &[]));
        assert_eq!(all(&mut relay, START + ms(3)).len(), 1, "it left before the outage");
        assert_eq!(all(&mut relay, START + ms(9)).len(), 0, "it came in the outage");
        assert_eq!(relay.stats(0, START + ms(9)).link.lost, 1);
    }

    #[test]
    fn damage_is_one_bit_behind_the_link_header_and_shows_in_the_checksum() {
        let mut relay = relay(|path| path.corruption = Ppm::percent(100), true);
        for seq in 0..50 {
            relay.enter(0, START, received(seq * SIZE, 1, &ETHERNET));
        }
        for (seq, damaged) in all(&mut relay, START + DELAY).iter().enumerate() {
            let mut sound = frame(seq as u32 * SIZE, 1, Flags::ACK | Flags::PSH);
            gso::finish_checksum(&mut sound);
            let (found, wanted) = (damaged.to_bytes(), sound.to_bytes());
            assert_eq!(found[..14], ETHERNET);
            let differ = found[14..].iter().zip(&wanted).map(|(a, b)| (a ^ b).count_ones());
            assert_eq!(differ.sum::<u32>(), 1);
            assert_eq!(damaged.checksum, None);
        }
        assert_eq!(relay.stats(0, START).link.corrupted, 50);
    }

    #[test]
    fn frames_of_other_protocols_pass_as_they_are() {
        let mut relay = relay(|path| path.congestion_marks = Ppm::percent(100), true);
        let others: [&[u8]; 3] = [
            &[&ETHERNET[..12], &[8, 6], &[0x45; 28]].concat(),
            &[&ETHERNET[..12], &[8, 6]].concat(),
            &[&ETHERNET[..], &[0x45, 0, 0, 24, 0, 0, 0x20, 0], &[6; 16]].concat(),
        ];
        for data in others {
            let (data, checksum) = (Bytes::copy_from_slice(data), RxChecksum::Unknown);
            relay.enter(0, START, Received { data, gso_size: 0, checksum });
        }
        let out = all(&mut relay, START + DELAY);
        assert_eq!(out.iter().map(Frame::to_bytes).collect::<Vec<_>>(), others);
        assert_eq!(relay.stats(0, START).link.marked, 0);
    }

    /// A datagram of UDP over IPv6 that the kernel did not cut (`UDP_SEGMENT`).
    fn super_datagram(payload: usize) -> Vec<u8> {
        let mut data = vec![0; 40];
        data[0] = 0x60;
        data[4..6].copy_from_slice(&(8 + payload as u16).to_be_bytes());
        data[6] = 17;
        data[8..40].fill(7);
        data.extend_from_slice(&[0, 1, 0, 2]);
        data.extend_from_slice(&(8 + payload as u16).to_be_bytes());
        data.extend_from_slice(&[0, 0]);
        data.extend((0..payload).map(|i| i as u8));
        data
    }

    #[test]
    fn a_super_datagram_is_cut_into_datagrams() {
        let mut relay = relay(|_| {}, false);
        let whole = super_datagram(250);
        let received =
            Received { data: whole.clone().into(), gso_size: 100, checksum: RxChecksum::Good };
        relay.enter(0, START, received);
        let mut payload = Vec::new();
        for (mut piece, len) in all(&mut relay, START + DELAY).into_iter().zip([100, 100, 50]) {
            gso::finish_checksum(&mut piece);
            let bytes = piece.to_bytes();
            assert_eq!(bytes.len(), 48 + len);
            assert_eq!(bytes[4..6], (8 + len as u16).to_be_bytes());
            let address = [7; 16].into();
            assert!(Pseudo::v6(address, address, Protocol::UDP).verifies(&bytes[40..]));
            payload.extend_from_slice(&bytes[48..]);
        }
        assert_eq!(payload, whole[48..]);
    }

    #[test]
    fn what_exceeds_the_memory_or_cannot_be_read_is_counted() {
        let mut relay = relay(|_| {}, false);
        for seq in 0..3 {
            relay.enter(0, START, received(seq * 50 * SIZE, 50, &[]));
        }
        let stats = relay.stats(0, START);
        assert_eq!((stats.overflow, stats.contents, stats.link.packets), (50, 100, 150));
        for (data, gso_size) in [(&[][..], 0), (&[0x15; 40], 0), (&[0x45; 60], 10)] {
            let (data, checksum) = (Bytes::copy_from_slice(data), RxChecksum::Unknown);
            relay.enter(1, START, Received { data, gso_size, checksum });
        }
        assert_eq!(relay.stats(1, START).unreadable, 3);
        // One datagram more than Linux would send.
        for (payload, unreadable) in [(128, 3), (129, 4)] {
            let data = super_datagram(payload).into();
            let received = Received { data, gso_size: 1, checksum: RxChecksum::Unknown };
            relay.enter(1, START, received);
            assert_eq!(relay.stats(1, START).unreadable, unreadable);
        }
    }

    #[test]
    fn any_bytes_pass_or_are_counted() {
        let mut rng = Rng::new(11);
        for is_ethernet in [false, true] {
            let mut relay = relay(|path| path.mtu = Some(120), is_ethernet);
            let mut dues = Vec::new();
            for _ in 0..20_000 {
                let mut data: Vec<u8> = (0..rng.below(200)).map(|_| rng.next_u64() as u8).collect();
                let at = if is_ethernet { 14 } else { 0 };
                if let Some(byte) = data.get_mut(at) {
                    *byte = rng.pick(&[0x45, 0x46, 0x60, 0x4f]);
                }
                if let Some(kind) = data.get_mut(12..14).filter(|_| is_ethernet) {
                    kind.copy_from_slice(&rng.pick(&[[8, 0], [0x86, 0xdd], [8, 6]]));
                }
                if let Some(byte) = data.get_mut(at + rng.pick(&[6, 9])) {
                    *byte = rng.pick(&[6, 17]);
                }
                let partial = neap_stack::frame::PartialChecksum {
                    start: rng.below(64) as u16,
                    offset: rng.below(64) as u16,
                };
                let sum = [RxChecksum::Good, RxChecksum::Unknown, RxChecksum::Partial(partial)];
                let (gso_size, checksum) = (rng.pick(&[0, 0, 1, 20]), rng.pick(&sum));
                relay.enter(0, START, Received { data: data.into(), gso_size, checksum });
                relay.advance(START + DELAY);
                while relay.leave(0, START + DELAY, &mut dues).is_some() {}
                while relay.leave(1, START + DELAY, &mut dues).is_some() {}
            }
            let stats = relay.stats(0, START);
            assert!(stats.frames_out > 1000 && stats.unreadable > 1000, "{stats:?}");
        }
    }
}
