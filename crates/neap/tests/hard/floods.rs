//! Floods: packets that ask for no answer, most of them from forged addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::Bytes;
use neap::device::Frame;
use neap_lab::hostile::packet;
use neap_lab::rng::{Ppm, Rng};
use neap_lab::world::{Actor, Outbox};
use neap_stack::frame::Headers;
use neap_stack::wire::checksum::{Checksum, Pseudo};
use neap_stack::wire::{ChecksumBy, Fragment, Ports, Protocol, ipv4, ipv6, udp};
use neap_tcp::segment::{Flags, Options, Segment, Timestamps};
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::{Instant, Nanos};

use crate::common::Family;
use crate::ground::{Foe, Ground, at, for_each_family};
use crate::victim::{DISCARD, ECHO};
use crate::wire::frame;

/// Packets of a flood per second: bounded, so that the processor time which they take from the
/// honest flow is the victim's and not the generator's.
const RATE: u64 = 20_000;
/// Time between two bursts.
const TICK: Nanos = Nanos::from_millis(1);

/// Memory that a flood may cost the victim, bytes: 4096 half-open connections of 400 bytes, 4 MiB
/// of fragments, the blocks of a queue of the device.
pub(crate) const MEMORY: u64 = 24 << 20;

/// Sends what `make` makes.
pub(crate) struct Flood<F> {
    make: F,
    rng: Rng,
    next: Instant,
}

impl<F: FnMut(&mut Rng) -> Option<Frame>> Flood<F> {
    pub(crate) fn new(make: F) -> Self {
        Self { make, rng: Rng::new(1), next: Instant::ZERO }
    }
}

impl<F: FnMut(&mut Rng) -> Option<Frame>> Actor for Flood<F> {
    fn receive(&mut self, _: Instant, _: &Bytes, _: &mut Outbox) {}

    fn next(&self) -> Instant {
        self.next
    }

    fn wake(&mut self, now: Instant, out: &mut Outbox) {
        // A generator that was kept from running makes up for one tick and no more.
        self.next = (self.next + TICK).max(now);
        let burst = RATE * TICK.0 / 1_000_000_000;
        out.extend((0..burst).filter_map(|_| (self.make)(&mut self.rng)));
    }
}

impl<F: FnMut(&mut Rng) -> Option<Frame>> Foe for Flood<F> {
    fn part(&mut self, _: Instant, _: &mut Outbox) {}
}

/// Any host of the attacker's network, and any port.
pub(crate) fn anybody(family: Family, rng: &mut Rng) -> SocketAddr {
    let [third, fourth] = [rng.range(0, 255), rng.range(1, 254)].map(|byte| byte as u8);
    let ip = match family {
        Family::V4 => Ipv4Addr::new(10, 66, third, fourth).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x66, 0, 0, 0, 0, third.into(), fourth.into()).into(),
    };
    SocketAddr::new(ip, rng.range(1024, 65_535) as u16)
}

fn number(rng: &mut Rng) -> SeqNumber {
    SeqNumber(rng.next_u64() as u32)
}

pub(crate) fn syn(rng: &mut Rng) -> Segment {
    Segment {
        seq: number(rng),
        flags: Flags::SYN,
        window: 65_535,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 0 }),
            ..Options::default()
        },
        ..Segment::default()
    }
}

fn with_flags(rng: &mut Rng, flags: Flags) -> Segment {
    let payload = Bytes::from(vec![0; rng.below(200) as usize]).into();
    Segment {
        seq: number(rng),
        ack: number(rng),
        flags,
        window: rng.next_u64() as u16,
        payload,
        ..Segment::default()
    }
}

fn endure(family: Family, make: impl FnMut(&mut Rng) -> Option<Frame>) {
    Ground::new(family).endure(MEMORY, &mut Flood::new(make));
}

for_each_family! {
    syns, acks, resets, fins, land, fragments, datagrams, icmp, junk_options,
    injection_into_a_known_connection,
}

fn syns(family: Family) {
    endure(family, |rng| packet::emit(anybody(family, rng), at(family, ECHO), syn(rng)));
}

/// A segment with these flags, from anybody to the echo server.
fn bare(family: Family, rng: &mut Rng, flags: Flags) -> Option<Frame> {
    packet::emit(anybody(family, rng), at(family, ECHO), with_flags(rng, flags))
}

fn acks(family: Family) {
    endure(family, |rng| bare(family, rng, Flags::ACK));
}

fn resets(family: Family) {
    endure(family, |rng| bare(family, rng, Flags::RST));
}

fn fins(family: Family) {
    let all = Flags::FIN | Flags::SYN | Flags::RST | Flags::PSH | Flags::ACK | Flags::URG;
    endure(family, move |rng| {
        let flags = rng.pick(&[Flags::FIN, Flags::FIN | Flags::ACK, all, Flags::empty()]);
        let to = at(family, rng.pick(&[ECHO, 1]));
        packet::emit(anybody(family, rng), to, with_flags(rng, flags))
    });
}

/// A packet from the victim to itself (CERT CA-1997-28).
fn land(family: Family) {
    endure(family, |rng| {
        let victim = at(family, rng.pick(&[ECHO, DISCARD, 1]));
        let segment = if rng.chance(Ppm::percent(50)) {
            syn(rng)
        } else {
            with_flags(rng, Flags::SYN | Flags::ACK)
        };
        packet::emit(victim, victim, segment)
    });
}

/// A packet of this protocol and these bytes, or a fragment of one, from one host to another.
/// `None` if the addresses are not of one family.
pub(crate) fn datagram(
    from: IpAddr,
    to: IpAddr,
    protocol: Protocol,
    fragment: Option<Fragment>,
    body: &[u8],
) -> Option<Frame> {
    let (mut headers, len) = (Headers::default(), body.len() as u16);
    let (ttl, ecn) = (64, neap::device::Ecn::NotEct);
    match (from, to) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = ipv4::Header {
                source,
                destination,
                protocol,
                ttl,
                dscp: 0,
                ecn,
                identification: fragment.map_or(0, |part| part.identification as u16),
                dont_fragment: false,
            };
            match fragment {
                Some(part) => header.emit_fragment(&mut headers, len, part),
                None => header.emit(&mut headers, len),
            }
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = ipv6::Header {
                source,
                destination,
                protocol,
                hop_limit: ttl,
                dscp: 0,
                ecn,
                flow_label: 0,
            };
            match fragment {
                Some(part) => header.emit_fragment(&mut headers, len, part),
                None => header.emit(&mut headers, len),
            }
        }
        _ => return None,
    }
    Some(frame([headers.as_slice(), body].concat()))
}

fn fragments(family: Family) {
    endure(family, |rng| {
        // No datagram becomes whole; some parts overlap.
        let part = Fragment {
            offset: 8 * rng.below(180) as u16,
            more: rng.chance(Ppm::percent(90)),
            identification: (rng.next_u64() as u16).into(),
        };
        let body = vec![0; 8 * rng.range(1, 150) as usize];
        let from = anybody(family, rng).ip();
        datagram(from, family.ours(), Protocol::UDP, Some(part), &body)
    });
}

fn datagrams(family: Family) {
    endure(family, |rng| {
        let (from, to) = (anybody(family, rng), at(family, rng.pick(&[ECHO, 1, 2, 3])));
        udp_datagram(rng, from, to)
    });
}

/// A datagram of UDP with some zeros.
pub(crate) fn udp_datagram(rng: &mut Rng, from: SocketAddr, to: SocketAddr) -> Option<Frame> {
    udp_datagram_of(from, to, &Bytes::from(vec![0; rng.below(1200) as usize]))
}

/// A datagram of UDP with this content.
pub(crate) fn udp_datagram_of(from: SocketAddr, to: SocketAddr, payload: &Bytes) -> Option<Frame> {
    let mut headers = Headers::default();
    let ports = Ports { source: from.port(), destination: to.port() };
    let pseudo = Pseudo::of(from.ip(), to.ip(), Protocol::UDP)?;
    let body = payload.clone().into();
    udp::emit(&mut headers, ports, &body, pseudo, ChecksumBy::Stack);
    let body = [headers.as_slice(), payload].concat();
    datagram(from.ip(), to.ip(), Protocol::UDP, None, &body)
}

/// Echo requests, and errors that quote segments of nobody or of the honest flow.
fn icmp(family: Family) {
    let ground = Ground::new(family);
    let (theirs, ours) = ground.flow.ends;
    // Kinds and codes: an echo request, "fragmentation needed" or "packet too big", two kinds of
    // "unreachable", "time exceeded". Then the bytes of a quote: the IP header and 8 more.
    let (protocol, kinds, quoted_len) = match family {
        Family::V4 => (Protocol::ICMP, [(8, 0), (3, 4), (3, 1), (3, 3), (11, 0)], 28),
        Family::V6 => (Protocol::ICMPV6, [(128, 0), (2, 0), (1, 0), (1, 4), (3, 0)], 48),
    };
    let foe = &mut Flood::new(move |rng| {
        let quoted = if rng.chance(Ppm::percent(50)) { theirs } else { anybody(family, rng) };
        let segment = with_flags(rng, Flags::ACK);
        let quote = packet::emit(ours, quoted, segment)?.to_bytes();
        let (kind, code) = rng.pick(&kinds);
        // The MTU is that of a path which nobody has.
        let mut body = vec![kind, code, 0, 0, 0, 0, 0, rng.pick(&[0, 68, 255])];
        body.extend(&quote[..quoted_len]);
        let from = anybody(family, rng).ip();
        let mut sum = match family {
            Family::V4 => Checksum::new(),
            Family::V6 => Pseudo::of(from, ours.ip(), protocol)?.with_len(body.len() as u32),
        };
        sum.add(&body);
        body[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        datagram(from, ours.ip(), protocol, None, &body)
    });
    ground.endure(MEMORY, foe);
}

/// SYNs, and segments of the honest flow, whose options are nonsense.
fn junk_options(family: Family) {
    let ground = Ground::new(family);
    let (theirs, ours) = ground.flow.ends;
    let foe = &mut Flood::new(move |rng| {
        let is_syn = rng.chance(Ppm::percent(50));
        let from = if is_syn { anybody(family, rng) } else { theirs };
        let mut bytes = vec![0; 60];
        bytes[..2].copy_from_slice(&from.port().to_be_bytes());
        bytes[2..4].copy_from_slice(&ours.port().to_be_bytes());
        bytes[4..12].copy_from_slice(&rng.next_u64().to_be_bytes());
        // Any length of the header, also one beyond the packet.
        bytes[12] = (rng.range(5, 15) as u8) << 4;
        bytes[13] = if is_syn { Flags::SYN.bits() } else { Flags::ACK.bits() };
        bytes[14..16].copy_from_slice(&(rng.next_u64() as u16).to_be_bytes());
        for option in &mut bytes[20..] {
            // Kinds that mean something, and lengths.
            let any = rng.next_u64() as u8;
            *option = rng.pick(&[0, 1, 2, 3, 4, 5, 8, 10, 34, 255, any]);
        }
        bytes.truncate(rng.range(20, 60) as usize);
        let pseudo = Pseudo::of(from.ip(), ours.ip(), Protocol::TCP)?;
        let mut sum = pseudo.with_len(bytes.len() as u32);
        sum.add(&bytes);
        let sum = sum.finish();
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        datagram(from.ip(), ours.ip(), Protocol::TCP, None, &bytes)
    });
    ground.endure(MEMORY, foe);
}

/// RST, SYN, data and FIN with the addresses and ports of the honest flow, and any number.
fn injection_into_a_known_connection(family: Family) {
    let ground = Ground::new(family);
    let (theirs, ours) = ground.flow.ends;
    let foe = &mut Flood::new(move |rng| {
        let kinds =
            [Flags::RST, Flags::RST | Flags::ACK, Flags::SYN, Flags::ACK, Flags::FIN | Flags::ACK];
        let flags = rng.pick(&kinds);
        packet::emit(theirs, ours, with_flags(rng, flags))
    });
    ground.endure(MEMORY, foe);
}
