//! Datagrams in fragments: errors about them, counters, and identifications.

use super::common::{self, WireConfig, World};
use super::{SECOND, address, pattern};
use bytes::Bytes;
use core::net::IpAddr;
use neap_stack::drop_reason::DropReason;
use neap_stack::socket::SocketError;
use neap_stack::socket::icmp::{IcmpMessage, IcmpOptions};
use neap_stack::socket::readiness::Ready;
use neap_stack::stack::{ConnectOptions, ListenOptions, UdpOptions};
use neap_stack::stats::IpCounter;
use neap_stack::wire::checksum;
use neap_tcp::time::Nanos;

const FAMILIES: [(&str, &str); 2] = [("10.0.0.1:0", "10.0.0.2:9"), ("[fd00::1]:0", "[fd00::2]:9")];

/// Offset in bytes of a packet that is a fragment.
fn offset(packet: &[u8]) -> Option<u16> {
    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    match packet[0] >> 4 {
        4 => (word(6) & 0x3fff != 0).then(|| (word(6) & 0x1fff) * 8),
        _ => (packet[6] == 44).then(|| word(42) & !7),
    }
}

#[test]
fn a_port_without_socket_is_reported_for_a_datagram_in_fragments() {
    for (from, to) in FAMILIES {
        let mut world = World::new(&WireConfig::default());
        let client = world.a.bind_udp(address(from), UdpOptions::default()).unwrap();
        client.connect(Some(address(to))).unwrap();
        client.send_to(world.now, Bytes::from(pattern(20_000)), None).unwrap();
        world.run(SECOND);
        assert!(client.readiness().bits().contains(Ready::ERROR), "{to}");
        assert_eq!(client.recv_from().unwrap_err(), SocketError::Refused);
    }
}

/// Room for some fragments is no room for a datagram.
#[test]
fn a_datagram_in_fragments_waits_until_all_of_them_fit() {
    for (from, to) in FAMILIES {
        let mut world = World::new(&WireConfig { ring: 1, ..WireConfig::default() });
        let qdisc = "pfifo_fast limit 4".parse().unwrap();
        world.a.set_qdisc(world.now, world.a_interface, &qdisc).unwrap();
        let server = world.b.bind_udp(address(to), UdpOptions::default()).unwrap();
        let client = world.a.bind_udp(address(from), UdpOptions::default()).unwrap();
        let (mut sent, mut arrived) = (0, 0);
        for _ in 0..200 {
            while client.readiness().bits().contains(Ready::WRITABLE) {
                let data = Bytes::from(pattern(4000));
                match client.send_to(world.now, data, Some(address(to))) {
                    Ok(()) => sent += 1,
                    Err(error) => assert_eq!(error, SocketError::WouldBlock),
                }
            }
            world.run(Nanos::from_millis(5));
            arrived += core::iter::from_fn(|| server.recv_from().ok()).count();
        }
        world.run(SECOND);
        arrived += core::iter::from_fn(|| server.recv_from().ok()).count();
        assert!(arrived == sent && sent >= 100, "{sent} sent to {to}, {arrived} arrived");
    }
}

#[test]
fn a_datagram_in_fragments_that_can_never_fit_is_refused() {
    for (from, to) in FAMILIES {
        let mut world = World::new(&WireConfig::default());
        // The last fragment alone would fit.
        let qdisc = "tbf rate 8mbit burst 2000 limit 3500".parse().unwrap();
        world.a.set_qdisc(world.now, world.a_interface, &qdisc).unwrap();
        let client = world.a.bind_udp(address(from), UdpOptions::default()).unwrap();
        let data = Bytes::from(pattern(6100));
        let refused = client.send_to(world.now, data, Some(address(to)));
        assert_eq!(refused, Err(SocketError::NoBuffers), "{to}");
        world.run(SECOND);
        let counters = world.a.ip_counters();
        let is_v4 = address(to).is_ipv4();
        let [fails, oks, out] = if is_v4 {
            [IpCounter::IpFragFails, IpCounter::IpFragOKs, IpCounter::UdpOutDatagrams]
        } else {
            [IpCounter::Ip6FragFails, IpCounter::Ip6FragOKs, IpCounter::Udp6OutDatagrams]
        };
        assert_eq!([fails, oks, out].map(|counter| counters.get(counter)), [1, 0, 0]);
    }
}

#[test]
fn the_sender_hears_that_fragments_did_not_come() {
    for (from, to) in FAMILIES {
        for (what, is_told) in [("the first", false), ("a later one", true)] {
            let mut world = World::new(&WireConfig::default());
            let is_first_lost = !is_told;
            world.ab.lock().unwrap().filter = Some(Box::new(move |packet| {
                offset(packet).is_none_or(|offset| (offset == 0) != is_first_lost)
            }));
            let client = world.a.bind_udp(address(from), UdpOptions::default()).unwrap();
            let data = Bytes::from(pattern(5000));
            client.send_to(world.now, data, Some(address(to))).unwrap();
            world.run(Nanos::from_secs(29));
            let early = world.ba.lock().unwrap().sent.len();
            assert_eq!(early, 0);
            world.run(Nanos::from_secs(2));
            let sent = world.ba.lock().unwrap().sent.clone();
            assert_eq!(sent.len(), usize::from(is_told), "{what} of {to} is lost");
            let fails = [IpCounter::IpReasmFails, IpCounter::Ip6ReasmFails];
            let fails = fails.map(|counter| world.b.ip_counters().get(counter));
            assert_eq!(fails, if address(to).is_ipv4() { [1, 0] } else { [0, 1] });
            for error in sent {
                let (icmp, expected) = if error[0] >> 4 == 4 { (20, 11) } else { (40, 3) };
                assert_eq!(error[icmp..icmp + 2], [expected, 1]);
                // What it quotes is the first fragment.
                assert_eq!(offset(&error[icmp + 8..]), Some(0));
            }
        }
    }
}

/// An IPv4 packet in two, the first one with `len` bytes of data.
fn cut(packet: &[u8], len: usize) -> [Bytes; 2] {
    let part = |data: &[u8], word: u16| {
        let mut part = packet[..20].to_vec();
        part[2..4].copy_from_slice(&(20 + data.len() as u16).to_be_bytes());
        part[6..8].copy_from_slice(&word.to_be_bytes());
        part[10..12].fill(0);
        let sum = checksum::of(&part);
        part[10..12].copy_from_slice(&sum.to_be_bytes());
        part.extend(data);
        Bytes::from(part)
    };
    let (first, second) = packet[20..].split_at(len);
    [part(first, 0x2000), part(second, len as u16 / 8)]
}

#[test]
fn each_packet_counts_once_as_received() {
    let mut world = World::new(&WireConfig { checksum: false, ..WireConfig::default() });
    let _listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    world.ab.lock().unwrap().filter = Some(Box::new(|_| false));
    let to = address("10.0.0.2:80");
    let _client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
    world.run(Nanos::from_millis(10));
    let syn = world.ab.lock().unwrap().sent[0].clone();
    let received = |world: &World| world.b.ip_counters().get(IpCounter::IpInReceives);
    for part in cut(&syn, 24).into_iter().rev() {
        common::inject(&world.ab, world.now, part);
    }
    world.run(Nanos::from_millis(10));
    let answers = world.ba.lock().unwrap().sent.len();
    assert_eq!((received(&world), answers), (2, 1), "a SYN in two");
    // To another host.
    let mut other = cut(&syn, 24)[0].to_vec();
    other[6..8].fill(0);
    other[19] = 77;
    other[10..12].fill(0);
    let sum = checksum::of(&other[..20]);
    other[10..12].copy_from_slice(&sum.to_be_bytes());
    common::inject(&world.ab, world.now, other.into());
    world.run(Nanos::from_millis(10));
    assert_eq!(received(&world), 3);
    assert_eq!(world.b.ip_counters().get(IpCounter::IpInAddrErrors), 1);
}

#[test]
fn identifications_of_fragments_do_not_follow_what_else_is_sent() {
    let mut world = World::new(&WireConfig::default());
    let bind = || world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    let (large, small) = (bind(), bind());
    let to = Some(address("10.0.0.2:9"));
    let mut identifications = Vec::new();
    for _ in 0..2 {
        large.send_to(world.now, Bytes::from(pattern(5000)), to).unwrap();
        (0..5).for_each(|_| small.send_to(world.now, Bytes::from_static(b"x"), to).unwrap());
        world.run(SECOND);
        let sent = core::mem::take(&mut world.ab.lock().unwrap().sent);
        let first = sent.iter().find(|packet| offset(packet) == Some(0)).unwrap();
        identifications.push(u16::from_be_bytes([first[4], first[5]]));
    }
    assert_eq!(identifications[1], identifications[0].wrapping_add(1));
}

#[test]
fn an_unknown_message_of_ipv6_that_is_no_error_is_none() {
    let mut world = World::new(&WireConfig::default());
    let options = IcmpOptions { own: true, foreign: false, ..IcmpOptions::default() };
    let socket = world.a.open_icmp(options).unwrap();
    let ends: [IpAddr; 2] = ["fd00::1", "fd00::2"].map(|one| one.parse().unwrap());
    for (kind, errors) in [(130, 0), (77, 1)] {
        let data = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        socket.send(world.now, &IcmpMessage::new(ends[0], ends[1], data)).unwrap();
        world.run(SECOND);
        assert_eq!(world.b.ip_counters().get(IpCounter::Icmp6InErrors), errors, "type {kind}");
    }
}

#[test]
fn the_largest_datagram_arrives_over_the_least_mtu_of_all_hosts() {
    let mut world = World::new(&WireConfig { mtu: 576, ..WireConfig::default() });
    let server = world.b.bind_udp(address("10.0.0.2:9"), UdpOptions::default()).unwrap();
    let client = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    let data = Bytes::from(pattern(65_507));
    client.send_to(world.now, data.clone(), Some(server.local_addr())).unwrap();
    world.run(SECOND);
    assert_eq!(world.ab.lock().unwrap().sent.len(), 119);
    assert_eq!(server.recv_from().unwrap().data, data);
}

/// The first fragment of a datagram of IPv6 from fd00::1 to fd00::2, whose fragment header is
/// followed by a header of kind `next`.
fn first_fragment(next: u8, data: &[u8]) -> Bytes {
    let mut packet = vec![0x60, 0, 0, 0, 0, 8 + data.len() as u8, 44, 64];
    for last in [1, 2] {
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    packet.extend([next, 0, 0, 1, 0, 0, 0, 7]);
    packet.extend(data);
    packet.into()
}

#[test]
fn a_first_fragment_without_the_whole_chain_of_headers_is_refused() {
    const DESTINATION_OPTIONS: u8 = 60;
    // An extension header of 16 bytes, with the header of UDP or half of it behind it.
    let options = [&[17, 1, 1, 12][..], &[0; 12]].concat();
    let behind = |len| [&options[..], &[0; 8][..len]].concat();
    for (next, data, is_taken) in [
        (6, vec![0; 16], false),
        (6, vec![0; 24], true),
        (17, vec![0; 8], true),
        (58, vec![0; 8], true),
        (99, vec![0; 8], true),
        (DESTINATION_OPTIONS, options[..8].to_vec(), false),
        (DESTINATION_OPTIONS, options.clone(), false),
        (DESTINATION_OPTIONS, behind(8), true),
    ] {
        let mut world = World::new(&WireConfig::default());
        let packet = first_fragment(next, &data);
        common::inject(&world.ab, world.now, packet.clone());
        world.run(SECOND);
        let drops = world.b.drops().get(DropReason::Ipv6Extension);
        let errors = world.b.ip_counters().get(IpCounter::Ip6InHdrErrors);
        let answers = world.ba.lock().unwrap().sent.clone();
        let refused = u64::from(!is_taken);
        assert_eq!((drops, errors), (refused, refused), "{next} {}", data.len());
        assert_eq!(answers.len() as u64, refused, "{next} {}", data.len());
        if let Some(answer) = answers.first() {
            assert_eq!(answer[40..42], [4, 3], "the first fragment has not all headers");
            assert_eq!((&answer[44..48], &answer[48..]), (&[0; 4][..], &packet[..]));
        }
    }
}
