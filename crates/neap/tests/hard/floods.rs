//! Floods: packets that ask for no answer, most of them from forged addresses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bytes::Bytes;
use neap::device::Frame;
use neap_lab::hostile::packet;
use neap_lab::rng::{Ppm, Rng};
use neap_lab::world::{Actor, Outbox};
use neap_stack::frame::Headers;
use neap_stack::wire::checksum::{self, Pseudo};
use neap_stack::wire::{ChecksumBy, Fragment, Ports, Protocol, ipv4, udp};
use neap_tcp::segment::{Flags, Options, Segment, Timestamps};
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::{Instant, Nanos};

use crate::common::in_namespace;
use crate::ground::{Foe, Ground, at, turn};
use crate::victim::{DISCARD, ECHO};
use crate::wire::frame;

/// Packets of a flood per second: bounded, so that the processor time which they take from the
/// honest flow is the victim's and not the generator's.
const RATE: u64 = 20_000;
/// Time between two bursts.
const TICK: Nanos = Nanos::from_millis(1);

/// Memory that a flood may cost the victim, bytes: 4096 half-open connections of 400 bytes, 4 MiB
/// of fragments, the blocks of a queue of the device.
const MEMORY: u64 = 24 << 20;

/// Sends what `make` makes.
struct Flood<F> {
    make: F,
    rng: Rng,
    next: Instant,
}

impl<F: FnMut(&mut Rng) -> Option<Frame>> Flood<F> {
    fn new(make: F) -> Self {
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
fn anybody(rng: &mut Rng) -> SocketAddr {
    let [third, fourth] = [rng.range(0, 255), rng.range(1, 254)].map(|byte| byte as u8);
    let ip = Ipv4Addr::new(10, 66, third, fourth);
    SocketAddr::new(ip.into(), rng.range(1024, 65_535) as u16)
}

fn number(rng: &mut Rng) -> SeqNumber {
    SeqNumber(rng.next_u64() as u32)
}

fn syn(rng: &mut Rng) -> Segment {
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

fn endure(make: impl FnMut(&mut Rng) -> Option<Frame>) {
    Ground::new().endure(MEMORY, &mut Flood::new(make));
}

#[test]
fn syns() {
    let _turn = turn();
    in_namespace(|| endure(|rng| packet::emit(anybody(rng), at(ECHO), syn(rng))));
}

#[test]
fn acks() {
    let _turn = turn();
    in_namespace(|| {
        endure(|rng| packet::emit(anybody(rng), at(ECHO), with_flags(rng, Flags::ACK)));
    });
}

#[test]
fn resets() {
    let _turn = turn();
    in_namespace(|| {
        endure(|rng| packet::emit(anybody(rng), at(ECHO), with_flags(rng, Flags::RST)));
    });
}

#[test]
fn fins() {
    let _turn = turn();
    in_namespace(|| {
        let all = Flags::FIN | Flags::SYN | Flags::RST | Flags::PSH | Flags::ACK | Flags::URG;
        endure(move |rng| {
            let flags = rng.pick(&[Flags::FIN, Flags::FIN | Flags::ACK, all, Flags::empty()]);
            packet::emit(anybody(rng), at(rng.pick(&[ECHO, 1])), with_flags(rng, flags))
        });
    });
}

/// A packet from the victim to itself (CERT CA-1997-28).
#[test]
fn land() {
    let _turn = turn();
    in_namespace(|| {
        endure(|rng| {
            let port = rng.pick(&[ECHO, DISCARD, 1]);
            let segment = if rng.chance(Ppm::percent(50)) {
                syn(rng)
            } else {
                with_flags(rng, Flags::SYN | Flags::ACK)
            };
            packet::emit(at(port), at(port), segment)
        });
    });
}

/// A datagram of this protocol and these bytes, to the victim.
fn datagram(from: IpAddr, protocol: Protocol, identification: u16, body: &[u8]) -> Option<Frame> {
    let mut headers = Headers::default();
    header(from, protocol, identification)?.emit(&mut headers, body.len() as u16);
    Some(frame([headers.as_slice(), body].concat()))
}

fn header(from: IpAddr, protocol: Protocol, identification: u16) -> Option<ipv4::Header> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from, at(0).ip()) else { return None };
    Some(ipv4::Header {
        source,
        destination,
        protocol,
        ttl: 64,
        dscp: 0,
        ecn: neap::device::Ecn::NotEct,
        identification,
        dont_fragment: false,
    })
}

#[test]
fn fragments() {
    let _turn = turn();
    in_namespace(|| {
        endure(|rng| {
            // No datagram becomes whole; some parts overlap.
            let identification = rng.next_u64() as u16;
            let part = Fragment {
                offset: 8 * rng.below(180) as u16,
                more: rng.chance(Ppm::percent(90)),
                identification: identification.into(),
            };
            let body = vec![0; 8 * rng.range(1, 150) as usize];
            let mut headers = Headers::default();
            let header = header(anybody(rng).ip(), Protocol::UDP, identification)?;
            header.emit_fragment(&mut headers, body.len() as u16, part);
            Some(frame([headers.as_slice(), &body].concat()))
        });
    });
}

#[test]
fn datagrams() {
    let _turn = turn();
    in_namespace(|| {
        endure(|rng| {
            let (from, to) = (anybody(rng), at(rng.pick(&[ECHO, 1, 2, 3])));
            let payload = Bytes::from(vec![0; rng.below(1200) as usize]);
            let mut headers = Headers::default();
            let ports = Ports { source: from.port(), destination: to.port() };
            let pseudo = Pseudo::of(from.ip(), to.ip(), Protocol::UDP)?;
            let body = payload.clone().into();
            udp::emit(&mut headers, ports, &body, pseudo, ChecksumBy::Stack);
            datagram(from.ip(), Protocol::UDP, 0, &[headers.as_slice(), &payload].concat())
        });
    });
}

/// Echo requests, and errors that quote segments of nobody or of the honest flow.
#[test]
fn icmp() {
    let _turn = turn();
    in_namespace(|| {
        let ground = Ground::new();
        let (theirs, ours) = ground.flow.ends;
        let foe = &mut Flood::new(move |rng| {
            let quoted = if rng.chance(Ppm::percent(50)) { theirs } else { anybody(rng) };
            let segment = with_flags(rng, Flags::ACK);
            let quote = packet::emit(ours, quoted, segment)?.to_bytes();
            let kind = rng.pick(&[(8, 0), (3, 4), (3, 1), (3, 3), (11, 0)]);
            // The MTU of "fragmentation needed" is that of a path which nobody has.
            let mut body = vec![kind.0, kind.1, 0, 0, 0, 0, 0, rng.pick(&[0, 68, 255])];
            body.extend(&quote[..28]);
            let sum = checksum::of(&body);
            body[2..4].copy_from_slice(&sum.to_be_bytes());
            datagram(anybody(rng).ip(), Protocol::ICMP, 0, &body)
        });
        ground.endure(MEMORY, foe);
    });
}

/// SYNs, and segments of the honest flow, whose options are nonsense.
#[test]
fn junk_options() {
    let _turn = turn();
    in_namespace(|| {
        let ground = Ground::new();
        let (theirs, ours) = ground.flow.ends;
        let foe = &mut Flood::new(move |rng| {
            let is_syn = rng.chance(Ppm::percent(50));
            let from = if is_syn { anybody(rng) } else { theirs };
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
            datagram(from.ip(), Protocol::TCP, 0, &bytes)
        });
        ground.endure(MEMORY, foe);
    });
}

/// RST, SYN, data and FIN with the addresses and ports of the honest flow, and any number.
#[test]
fn injection_into_a_known_connection() {
    let _turn = turn();
    in_namespace(|| {
        let ground = Ground::new();
        let (theirs, ours) = ground.flow.ends;
        let foe = &mut Flood::new(move |rng| {
            let kinds = [
                Flags::RST,
                Flags::RST | Flags::ACK,
                Flags::SYN,
                Flags::ACK,
                Flags::FIN | Flags::ACK,
            ];
            let flags = rng.pick(&kinds);
            packet::emit(theirs, ours, with_flags(rng, flags))
        });
        ground.endure(MEMORY, foe);
    });
}
