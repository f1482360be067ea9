//! A whole gateway on arbitrary frames of a guest on Ethernet, as a TAP brings them: nonsense, ARP
//! and neighbour discovery of any addresses, and packets in frames to anybody. The gateway answers
//! for all addresses and is the router of the link.
//!
//! No thread may panic, bounds hold, and nothing is left in the end. What the guest gets are frames
//! from the address of the gateway, and no ARP or advertisement names another one.
//! `cargo test` runs it for a few seconds; docs/fuzzing.md tells of more.

mod fuzz_world;

use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, Ethernet2Slice, NetSlice, PacketBuilder,
    SlicedPacket, TransportSlice,
};
use fuzz_world::source::Source;
use fuzz_world::{
    FAR, FAR_V6, GUEST, GUEST_V6, MOST_PACKETS, World, config, packet, turned, watch_threads,
};
use neap::device::Medium;
use neap::net::{Prefix, RouterAdvertisement};
use std::net::IpAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(3);

const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Addresses of guests: two hosts, one like the gateway, and one of a group, which no host has.
const GUESTS: [[u8; 6]; 4] =
    [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3], GATEWAY, [1, 0, 0x5e, 0, 0, 1]];
/// Whom frames go to: the gateway, everybody, all nodes, all routers, somebody else.
const TO: [[u8; 6]; 5] =
    [GATEWAY, [0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 2], [2, 0, 0, 0, 0, 9]];
const LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const ROUTER: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const ALL_ROUTERS: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
/// Bytes of a frame before its packet.
const HEADER: usize = 14;
/// Types of ICMPv6: router and neighbour discovery, and a redirect (RFC 4861).
const DISCOVERY: [u8; 5] = [133, 134, 135, 136, 137];
const ADVERTISEMENT: u8 = 136;

/// The frame that an input asks for; nothing if it makes no sense. `last` is what the gateway sent.
fn frame(source: &mut Source<'_>, last: &mut Option<Vec<u8>>) -> Vec<u8> {
    let (from, to) = (source.pick(&GUESTS), source.pick(&TO));
    let in_frame = |packet: Vec<u8>| {
        let kind = match packet.first().map(|first| first >> 4) {
            Some(6) => EtherType::IPV6,
            _ => EtherType::IPV4,
        };
        [&to[..], &from, &kind.0.to_be_bytes(), &packet].concat()
    };
    let mut built = match source.byte() % 8 {
        0 => {
            let len = source.short() % 1500;
            source.take(len.into()).to_vec()
        }
        // A turned frame comes often, as it continues something.
        1 | 2 => match last.take() {
            Some(frame) if frame.len() > HEADER => {
                answer(&frame, source).or_else(|| turned(&frame[HEADER..], source).map(in_frame))
            }
            _ => None,
        }
        .unwrap_or_default(),
        3 | 4 => arp(from, to, source).unwrap_or_default(),
        5 | 6 => discovery(from, to, source).unwrap_or_default(),
        _ => in_frame(packet(source, &mut None)),
    };
    let spoils = source.byte();
    if spoils & 0xc0 == 0xc0 && !built.is_empty() {
        let at = usize::from(source.byte()) % built.len();
        built[at] ^= source.byte();
    }
    built
}

/// A message of ARP.
fn arp(from: [u8; 6], to: [u8; 6], source: &mut Source<'_>) -> Option<Vec<u8>> {
    let operation = ArpOperation(source.pick(&[1, 2, 1, 2, 0, 7]));
    let own: [[u8; 4]; 4] = [GUEST, [0; 4], FAR[0], FAR[2]];
    let sender = source.pick(&own);
    let arp = message(operation, source.pick(&[from, GATEWAY, [0xff; 6]]), sender, source)?;
    write(PacketBuilder::ethernet2(from, to).arp(arp))
}

fn message(
    operation: ArpOperation,
    hardware: [u8; 6],
    sender: [u8; 4],
    source: &mut Source<'_>,
) -> Option<ArpPacket> {
    let target = source.pick(&[FAR[0], FAR[1], FAR[2], FAR[3], FAR[4], GUEST]);
    let (kind, ip) = (ArpHardwareId::ETHERNET, EtherType::IPV4);
    let their = source.pick(&[[0; 6], GATEWAY]);
    ArpPacket::new(kind, ip, operation, &hardware, &sender, &their, &target).ok()
}

/// A message of router or neighbour discovery.
fn discovery(from: [u8; 6], to: [u8; 6], source: &mut Source<'_>) -> Option<Vec<u8>> {
    let (kind, code) = (source.pick(&DISCOVERY), source.byte() / 0xf0);
    let own = source.pick(&[GUEST_V6, LINK_LOCAL, [0; 16], ROUTER]);
    let whom = source.pick(&[FAR_V6[1], ROUTER, ALL_NODES, ALL_ROUTERS, FAR_V6[0]]);
    let builder = PacketBuilder::ethernet2(from, to).ipv6(own, whom, source.pick(&[255, 255, 64]));
    let flags = [source.byte(), source.byte(), 0, 0];
    let target = source.pick(&[FAR_V6[0], FAR_V6[1], GUEST_V6, ROUTER]);
    let mut body = if kind == 133 { Vec::new() } else { target.to_vec() };
    // Options, each with its length in words of eight bytes.
    for _ in 0..source.byte() % 3 {
        let (option, words) = (source.pick(&[1, 2, 3, 5, 14]), source.byte() % 3);
        body.extend([option, words]);
        body.extend(source.pick(&GUESTS));
    }
    let mut bytes = Vec::new();
    let written = builder.icmpv6_raw(kind, code, flags).write(&mut bytes, &body);
    written.ok().map(|()| bytes)
}

/// The answer to a question of the gateway: who has an address.
fn answer(frame: &[u8], source: &mut Source<'_>) -> Option<Vec<u8>> {
    let parsed = SlicedPacket::from_ethernet(frame).ok()?;
    let from = source.pick(&GUESTS);
    match parsed.net? {
        NetSlice::Arp(arp) => {
            let sender = arp.target_protocol_addr().try_into().ok()?;
            let arp = message(ArpOperation::REPLY, from, sender, source)?;
            write(PacketBuilder::ethernet2(from, GATEWAY).arp(arp))
        }
        NetSlice::Ipv6(ip) if is_discovery(&parsed.transport) => {
            let target = frame.get(HEADER + 48..HEADER + 64)?;
            let whom = ip.header().source();
            let builder = PacketBuilder::ethernet2(from, GATEWAY);
            let builder = builder.ipv6(target.try_into().ok()?, whom, 255);
            let option = [&[2, 1][..], &from].concat();
            let body = [target, &option].concat();
            let mut bytes = Vec::new();
            let flags = [source.byte(), 0, 0, 0];
            let written = builder.icmpv6_raw(ADVERTISEMENT, 0, flags).write(&mut bytes, &body);
            written.ok().map(|()| bytes)
        }
        _ => None,
    }
}

fn is_discovery(transport: &Option<TransportSlice<'_>>) -> bool {
    matches!(transport, Some(TransportSlice::Icmpv6(icmp)) if DISCOVERY.contains(&icmp.type_u8()))
}

fn write(arp: etherparse::PacketBuilderStep<ArpPacket>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    arp.write(&mut bytes).ok().map(|()| bytes)
}

/// What the gateway sends is a frame of its own address, and says of no address that somebody else
/// has it.
fn check(frame: &[u8]) {
    let parsed = SlicedPacket::from_ethernet(frame);
    assert!(parsed.is_ok(), "{frame:?}: {parsed:?}");
    let header = Ethernet2Slice::from_slice_without_fcs(frame).expect("a frame");
    assert_eq!(header.source(), GATEWAY, "{frame:?}");
    let parsed = parsed.expect("a frame");
    match parsed.net {
        Some(NetSlice::Arp(arp)) => assert_eq!(arp.sender_hw_addr(), GATEWAY, "{frame:?}"),
        Some(NetSlice::Ipv6(_)) => {
            let body = &frame[HEADER + 40..];
            if is_discovery(&parsed.transport) && body[0] == ADVERTISEMENT {
                let own = [&[2, 1][..], &GATEWAY].concat();
                assert!(body.len() == 24 || body[24..] == own, "{frame:?}");
            }
        }
        _ => {}
    }
}

fn run(input: &[u8]) {
    let world = World::start(Medium::Ethernet(GATEWAY), config(), |interface| {
        let all: [IpAddr; 2] = [[0; 4].into(), [0; 16].into()];
        let [v4, v6] = all.map(Prefix::of_all);
        let interface = interface.proxy(v4).proxy(v6).peer(GUEST.into()).peer(GUEST_V6.into());
        let interface = interface.address("fe80::1/64".parse().expect("an address"));
        interface.router_advertisements(RouterAdvertisement::default())
    });
    let (mut source, mut last) = (Source(input), None);
    for _ in 0..MOST_PACKETS {
        if source.0.is_empty() {
            break;
        }
        let frame = frame(&mut source, &mut last);
        // A full cable loses it.
        if !frame.is_empty() && world.cable.send(&frame).is_err() {
            continue;
        }
        if let Some(received) = world.receive() {
            check(&received);
            last = Some(received);
        }
    }
    world.end();
}

#[test]
fn frames() {
    let panicked = watch_threads();
    bolero::check!().with_test_time(TIME).with_max_len(4000).for_each(|bytes: &[u8]| {
        run(bytes);
        assert!(!panicked.load(SeqCst), "a thread has panicked");
    });
}
