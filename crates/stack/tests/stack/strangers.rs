//! What a host answers to strangers, and that strangers do not use up what others are told.

use super::{SECOND, address, connect};
use crate::common::{self, WireConfig, World};
use bytes::Bytes;
use neap_stack::drop_reason::DropReason;
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::stack::{ConnectOptions, ListenOptions, UdpOptions};
use neap_stack::stats::IpCounter;
use neap_stack::wire::checksum;
use neap_tcp::connection::{ConnectionError, WriteFlags};
use neap_tcp::counters::Counter;
use neap_tcp::time::Nanos;

const MILLISECOND: Nanos = Nanos::from_millis(1);

/// A packet from `10.0.<net>.<host>` to 10.0.0.2, its checksums right.
fn packet(net: u8, host: u8, protocol: u8, transport: &[u8], sum_at: usize) -> Bytes {
    let len = (20 + transport.len()) as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, net, host];
    packet.extend([10, 0, 0, 2]);
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    let sum = checksum::of(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut summed = Vec::new();
    // ICMP has no pseudo-header.
    if protocol != 1 {
        summed.extend_from_slice(&packet[12..20]);
        summed.extend([0, protocol]);
        summed.extend((transport.len() as u16).to_be_bytes());
    }
    summed.extend(transport);
    let sum = checksum::of(&summed);
    packet.extend(transport);
    packet[20 + sum_at..22 + sum_at].copy_from_slice(&sum.to_be_bytes());
    packet.into()
}

/// An ACK to port 9, where nobody listens.
fn stray_ack(net: u8, host: u8) -> Bytes {
    let mut tcp = [0; 20];
    tcp[..4].copy_from_slice(&[0x30, 0x39, 0, 9]);
    (tcp[12], tcp[13]) = (5 << 4, 0x10);
    packet(net, host, 6, &tcp, 16)
}

/// A datagram to port 9.
fn stray_datagram(net: u8, host: u8) -> Bytes {
    packet(net, host, 17, &[0x30, 0x39, 0, 9, 0, 8, 0, 0], 6)
}

/// A SYN to port 80, its checksum not filled in.
const SYN: [u8; 20] = [0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];

/// A frame of IPv4 from host 1 to a station.
fn frame(station: [u8; 6], packet: &[u8]) -> Bytes {
    let mut frame = station.to_vec();
    frame.extend([2, 0, 0, 0, 0, 1, 8, 0]);
    frame.extend(packet);
    frame.into()
}

/// 20,000 packets a second to b, each from another address, or all from one.
fn flood(world: &mut World, span: Nanos, stray: fn(u8, u8) -> Bytes, are_many: bool) {
    for round in 0..span.as_millis() {
        for one in 0..20 {
            let host = if are_many { (round * 20 + one) as u8 } else { 9 };
            common::inject(&world.ab, world.now, stray(7, host));
        }
        world.run(MILLISECOND);
    }
}

#[test]
fn nobody_listens_means_refused() {
    for to in ["10.0.0.2:80", "[fd00::2]:80"] {
        let mut world = World::new(&WireConfig::default());
        let client = world.a.connect(world.now, address(to), ConnectOptions::default()).unwrap();
        world.run(SECOND);
        assert!(client.readiness().bits().contains(Ready::ERROR));
        assert_eq!(client.take_error(world.now), Some(ConnectionError::Refused));
        assert_eq!(world.a.usage().tcp.connections, 0);
        assert_eq!(world.b.tcp_counter(Counter::OutRsts), 1);
    }
}

#[test]
fn an_ack_is_no_cookie_where_none_was_sent() {
    // One blind guess in 2^24 would open a connection.
    let mut world = World::new(&WireConfig::default());
    let _listener = world.b.listen(address("10.0.0.2:9"), ListenOptions::default()).unwrap();
    common::inject(&world.ab, world.now, stray_ack(0, 1));
    world.run(MILLISECOND);
    assert_eq!(world.b.tcp_counter(Counter::SyncookiesSent), 0);
    assert_eq!(world.b.tcp_counter(Counter::SyncookiesFailed), 0, "the guess was looked at");
    assert_eq!(world.b.tcp_counter(Counter::OutRsts), 1);
}

#[test]
fn a_flood_to_a_closed_port_delays_no_refusal() {
    for are_many in [false, true] {
        let mut world = World::new(&WireConfig::default());
        flood(&mut world, Nanos::from_millis(100), stray_ack, are_many);
        let begun = world.now;
        let to = address("10.0.0.2:81");
        let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
        let mut error = None;
        while error.is_none() && world.now.since(begun) < Nanos::from_secs(1) {
            flood(&mut world, MILLISECOND, stray_ack, are_many);
            error = client.take_error(world.now);
        }
        assert_eq!(error, Some(ConnectionError::Refused));
        assert!(world.now.since(begun) <= Nanos::from_millis(4), "two ways of a millisecond");
        assert_eq!(world.b.drops().get(DropReason::RateLimited), 0);
    }
}

#[test]
fn all_of_five_hundred_connects_at_once_are_refused() {
    let mut world = World::new(&WireConfig { ring: 1000, ..WireConfig::default() });
    let clients: Vec<_> = (0..500)
        .map(|_| {
            let to = address("10.0.0.2:81");
            world.a.connect(world.now, to, ConnectOptions::default()).unwrap()
        })
        .collect();
    world.run(Nanos::from_millis(100));
    for client in clients {
        assert_eq!(client.take_error(world.now), Some(ConnectionError::Refused));
    }
    assert_eq!(world.b.tcp_counter(Counter::OutRsts), 500);
}

#[test]
fn one_stranger_does_not_use_up_the_errors_for_others() {
    let mut world = World::new(&WireConfig::default());
    let to = address("10.0.0.2:99");
    flood(&mut world, Nanos::from_millis(200), stray_datagram, false);
    let sent = world.b.ip_counters().get(IpCounter::IcmpOutDestUnreachs);
    assert_eq!(sent, 6, "a burst for the one who asks");
    assert_eq!(world.b.drops().get(DropReason::RateLimited), 4000 - sent);
    let client = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    client.connect(Some(to)).unwrap();
    client.send_to(world.now, Bytes::from_static(b"x"), None).unwrap();
    flood(&mut world, Nanos::from_millis(10), stray_datagram, false);
    assert_eq!(client.recv_from().unwrap_err(), SocketError::Refused);
}

#[test]
fn strangers_from_many_addresses_meet_the_limit_of_the_host() {
    let mut world = World::new(&WireConfig::default());
    flood(&mut world, Nanos::from_millis(1000), stray_datagram, true);
    let sent = world.b.ip_counters().get(IpCounter::IcmpOutDestUnreachs);
    assert!((800..=1200).contains(&sent), "{sent}");
}

#[test]
fn errors_that_a_host_sends_to_itself_are_not_limited() {
    let mut world = World::new(&WireConfig::default());
    let client = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    client.connect(Some(address("10.0.0.1:99"))).unwrap();
    for _ in 0..100 {
        client.send_to(world.now, Bytes::from_static(b"x"), None).unwrap();
        world.run(MILLISECOND);
        assert_eq!(client.recv_from().unwrap_err(), SocketError::Refused);
    }
}

#[test]
fn what_comes_to_all_stations_is_refused_to_nobody() {
    // RFC 1122 section 3.2.2: no ICMP error for a datagram sent as a link-layer broadcast. Linux
    // discards segments of TCP, too (`pkt_type != PACKET_HOST`).
    let strays = [
        (stray_datagram(0, 1), DropReason::NoSocket),
        (packet(0, 1, 6, &SYN, 16), DropReason::Broadcast),
        (packet(0, 1, 253, &[0; 4], 0), DropReason::IpProtocol),
    ];
    for (stray, reason) in strays {
        let mut world = World::new(&WireConfig { ethernet: true, ..WireConfig::default() });
        let _listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
        common::inject(&world.ab, world.now, frame([0xff; 6], &stray));
        world.run(SECOND);
        assert_eq!(world.b.drops().get(reason), 1, "{reason:?}");
        assert!(world.ba.lock().unwrap().sent.is_empty(), "{reason:?}");
    }
}

#[test]
fn a_connection_is_challenged_however_many_challenges_others_had() {
    let mut world = World::new(&WireConfig { checksum: false, ..WireConfig::default() });
    let first_syn = |world: &World| {
        let direction = world.ab.lock().unwrap();
        let is_syn = |packet: &&Bytes| packet.len() > 33 && packet[33] == 2;
        direction.sent.iter().rfind(is_syn).unwrap().clone()
    };
    let _one = connect(&mut world, "10.0.0.2:80");
    let to_one = first_syn(&world);
    let _other = connect(&mut world, "10.0.0.2:81");
    let to_other = first_syn(&world);
    for _ in 0..1000 {
        common::inject(&world.ab, world.now, to_one.clone());
    }
    world.run(MILLISECOND);
    assert_eq!(world.b.tcp_counter(Counter::ChallengeACK), 1);
    common::inject(&world.ab, world.now, to_other);
    world.run(MILLISECOND);
    assert_eq!(world.b.tcp_counter(Counter::ChallengeACK), 2);
}

#[test]
fn a_syn_ack_that_is_sent_again_counts_as_sent_too() {
    // Linux 6.18 counts so, whether the SYN came again or the timer expired (`tcp_rtx_synack`).
    let mut world = World::new(&WireConfig::default());
    let _listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    world.ba.lock().unwrap().filter = Some(Box::new(|_| false));
    let counters = |world: &World| {
        let counters =
            [Counter::OutSegs, Counter::RetransSegs, Counter::SynRetrans, Counter::Timeouts];
        counters.map(|counter| world.b.tcp_counter(counter))
    };
    let syn = packet(0, 1, 6, &SYN, 16);
    let steps = [([1, 0, 0, 0], 600), ([2, 1, 1, 0], 100), ([2, 1, 1, 0], 300)];
    for (counts, pause) in steps {
        common::inject(&world.ab, world.now, syn.clone());
        world.run(MILLISECOND);
        assert_eq!(counters(&world), counts);
        world.run(Nanos::from_millis(pause));
    }
    world.run(SECOND);
    assert_eq!(counters(&world), [3, 2, 2, 1]);
    world.run(Nanos::from_secs(100));
    assert_eq!(counters(&world), [7, 6, 6, 6], "the last timeout ends the request");
}

#[test]
fn what_comes_from_all_hosts_of_a_network_is_answered_to_nobody() {
    // RFC 1122 sections 3.2.1.3 and 3.2.2: a source that is no single host is discarded, and no
    // ICMP error answers it.
    let ping = packet(0, 255, 1, &[8, 0, 0, 0, 0, 0, 0, 0], 2);
    for stray in [ping, stray_datagram(0, 255), packet(0, 255, 6, &SYN, 16)] {
        let mut world = World::new(&WireConfig { ethernet: true, ..WireConfig::default() });
        let _listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
        common::inject(&world.ab, world.now, frame([2, 0, 0, 0, 0, 2], &stray));
        world.run(Nanos::from_secs(3));
        assert!(world.ba.lock().unwrap().sent.is_empty());
        assert_eq!(world.b.drops().get(DropReason::IpMartian), 1);
    }
}

/// Linux counts a bad checksum beside the errors that it is one of.
#[test]
fn a_flipped_bit_counts_as_an_error_and_as_a_bad_checksum() {
    let mut world = World::new(&WireConfig::default());
    // A SYN to a port that nobody listens at, whole but for the bit.
    let mut syn = [0; 20];
    syn[..4].copy_from_slice(&[0x30, 0x39, 0, 80]);
    syn[12..14].copy_from_slice(&[0x50, 0x02]);
    let whole = packet(0, 1, 6, &syn, 16);
    let mut bad = whole.to_vec();
    bad[35] ^= 1;
    common::inject(&world.ab, world.now, bad.into());
    world.settle();
    let tcp = |world: &World| {
        [Counter::InErrs, Counter::InCsumErrors].map(|counter| world.b.tcp_counter(counter))
    };
    assert_eq!(tcp(&world), [1, 1]);
    assert_eq!(world.b.drops().get(DropReason::TcpChecksum), 1);

    // A header that contradicts itself under a right checksum is an error alone.
    syn[12] = 0x40;
    common::inject(&world.ab, world.now, packet(0, 1, 6, &syn, 16));
    world.settle();
    assert_eq!(tcp(&world), [2, 1]);

    // The checksum is looked at before the total length, which the bit may be in.
    for (count, (byte, bit)) in (1..).zip([(8, 1), (2, 0x40), (3, 1)]) {
        let mut bad = whole.to_vec();
        bad[byte] ^= bit;
        common::inject(&world.ab, world.now, bad.into());
        world.settle();
        let errors = [IpCounter::IpInHdrErrors, IpCounter::IpInCsumErrors];
        let errors = errors.map(|counter| world.b.ip_counters().get(counter));
        assert_eq!(errors, [count, count], "byte {byte}");
    }
}

/// The drop of a packet that its neighbour does not take is counted once, and no message was bad.
#[test]
fn an_answer_to_a_neighbour_that_is_not_there_is_one_drop() {
    let mut world = World::new(&WireConfig { ethernet: true, ..WireConfig::default() });
    let ping = packet(0, 9, 1, &[8, 0, 0, 0, 0, 0, 0, 0], 2);
    common::inject(&world.ab, world.now, frame([2, 0, 0, 0, 0, 2], &ping));
    world.run(Nanos::from_secs(4));
    let counts = [DropReason::Neighbor, DropReason::Icmp].map(|why| world.b.drops().get(why));
    assert_eq!(counts, [1, 0]);
}

#[test]
fn an_ack_to_a_neighbour_that_is_gone_is_one_drop() {
    let wire = WireConfig { ethernet: true, checksum: false, ..WireConfig::default() };
    let mut world = World::new(&wire);
    let (client, _server) = connect(&mut world, "10.0.0.2:80");
    client.send(world.now, b"hello", WriteFlags::empty()).unwrap();
    world.run(SECOND);
    let has_data = |frame: &&Bytes| frame.ends_with(b"hello");
    let data = world.ab.lock().unwrap().sent.iter().find(has_data).cloned().unwrap();
    // Its segment still comes, but nobody answers for its address any more.
    world.run(Nanos::from_secs(60));
    world.ab.lock().unwrap().filter = Some(Box::new(|_| false));
    for _ in 0..20 {
        common::inject(&world.ab, world.now, data.clone());
        world.run(SECOND);
    }
    assert!(world.b.drops().get(DropReason::Neighbor) > 0);
    assert_eq!(world.b.drops().get(DropReason::Icmp), 0);
}
