//! ICMP messages to and from addresses of others, errors that a gateway sends, and its hop.

use super::common::{Shared, WireConfig, World, inject};
use super::{SECOND, address, pattern, transfer};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use neap_stack::drop_reason::DropReason;
use neap_stack::interface::InterfaceOptions;
use neap_stack::socket::SocketError;
use neap_stack::socket::icmp::{IcmpErrorKind, IcmpHandle, IcmpMessage, IcmpOptions};
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::udp::UdpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, UdpOptions};
use neap_stack::stats::IpCounter;
use neap_tcp::connection::ConnectionError;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::Nanos;

const MILLISECOND: Nanos = Nanos::from_millis(1);
/// An address of others, the guest, which is host a, and the gateway, which is host b.
const FAMILIES: [(&str, &str, &str); 2] =
    [("192.0.2.7", "10.0.0.1", "10.0.0.2"), ("2001:db8::7", "fd00::1", "fd00::2")];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn media() -> [WireConfig; 2] {
    [WireConfig::default(), WireConfig { ethernet: true, ..WireConfig::default() }]
}

/// A socket of the guest, which sees what is for itself.
fn guest(world: &World) -> IcmpHandle {
    let options =
        IcmpOptions { foreign: false, own: true, transparent: false, ..IcmpOptions::default() };
    world.a.open_icmp(options).unwrap()
}

fn gateway(world: &World) -> IcmpHandle {
    world.b.open_icmp(IcmpOptions::default()).unwrap()
}

/// An echo request with a body of so many bytes.
fn request(from: &str, to: &str, len: usize) -> IcmpMessage {
    let kind = if ip(to).is_ipv4() { 8 } else { 128 };
    let mut data = vec![kind, 0, 0, 0, 0x12, 0x34, 0, 1];
    data.extend(pattern(len));
    IcmpMessage::new(ip(from), ip(to), data)
}

#[test]
fn pings_of_foreign_addresses_reach_the_socket_and_are_answered_by_it() {
    for wire in media() {
        for (foreign, own, _) in FAMILIES {
            let mut world = World::with_any_destination(&wire);
            let (guest, gateway) = (guest(&world), gateway(&world));
            // The larger one travels in fragments, both ways.
            for len in [56, 4000] {
                let mut asked = request("0.0.0.0", foreign, len);
                if ip(own).is_ipv6() {
                    asked.source = ip("::");
                }
                (asked.hop_limit, asked.tos) = (17, 0xb9);
                asked.dont_fragment = len == 56;
                guest.send(world.now, &asked).unwrap();
                world.run(SECOND);
                assert!(gateway.readiness().bits().contains(Ready::READABLE));
                let heard = gateway.recv().unwrap();
                assert_eq!((heard.source, heard.destination), (ip(own), ip(foreign)));
                assert_eq!((heard.hop_limit, heard.tos), (17, 0xb9));
                assert_eq!(heard.interface, Some(world.b_interface));
                assert_eq!(heard.dont_fragment, len == 56);
                assert_eq!(heard.echo(), Some((0x1234, 1)));
                assert_eq!(heard.data[8..], asked.data[8..]);
                assert_eq!(gateway.recv(), Err(SocketError::WouldBlock));
                assert!(!gateway.readiness().bits().contains(Ready::READABLE));

                gateway.send(world.now, &heard.echo_reply().unwrap()).unwrap();
                world.run(SECOND);
                let answer = guest.recv().unwrap();
                assert_eq!((answer.source, answer.destination), (ip(foreign), ip(own)));
                assert_eq!((answer.echo(), answer.tos), (Some((0x1234, 1)), 0xb9));
                assert_eq!(answer.hop_limit, 64);
                assert_eq!(answer.data[8..], asked.data[8..]);
            }
            assert_eq!((guest.bytes_below(), gateway.bytes_below()), (0, 0));
        }
    }
}

#[test]
fn a_message_that_must_not_be_cut_leaves_whole_or_not_at_all() {
    for (foreign, own, _) in FAMILIES {
        let mut world = World::with_any_destination(&WireConfig::default());
        let (guest, gateway) = (guest(&world), gateway(&world));
        let mtu = world.a.path_mtu(world.now, ip(foreign)).unwrap();
        let headers = if ip(own).is_ipv4() { 28 } else { 48 };
        let send = |len: u32, dont_fragment: bool| {
            let mut asked = request(own, foreign, len as usize);
            asked.dont_fragment = dont_fragment;
            guest.send(world.now, &asked)
        };
        assert_eq!(send(mtu - headers, true), Ok(()));
        assert_eq!(send(mtu - headers + 1, true), Err(SocketError::MessageTooLong));
        assert_eq!(send(mtu - headers + 1, false), Ok(()));
        world.run(SECOND);
        assert!(gateway.recv().unwrap().dont_fragment);
        assert!(!gateway.recv().unwrap().dont_fragment, "it was cut");
        assert_eq!(gateway.recv(), Err(SocketError::WouldBlock));
        assert_eq!(guest.bytes_below(), 0);
    }
}

#[test]
fn without_a_socket_pings_of_foreign_addresses_are_dropped_or_answered_as_set() {
    for answers_echo in [false, true] {
        for (foreign, own, near) in FAMILIES {
            let options = InterfaceOptions { answers_echo, ..InterfaceOptions::default() };
            let mut world = World::with_gateway(&WireConfig::default(), options);
            let guest = guest(&world);
            guest.send(world.now, &request(own, foreign, 8)).unwrap();
            world.run(SECOND);
            let dropped = world.b.drops().get(DropReason::NoSocketForeign);
            assert_eq!(dropped, u64::from(!answers_echo));
            assert_eq!(guest.recv().is_ok(), answers_echo);
            // The own address is answered in any case.
            guest.send(world.now, &request(own, near, 8)).unwrap();
            world.run(SECOND);
            assert_eq!(guest.recv().unwrap().source, ip(near));
        }
    }
}

#[test]
fn a_socket_hears_of_the_hosts_own_messages_if_it_asks() {
    for wire in media() {
        for (_, own, near) in FAMILIES {
            let mut world = World::with_any_destination(&wire);
            let guest = guest(&world);
            let options = IcmpOptions { own: true, ..IcmpOptions::default() };
            let (curious, other) = (world.b.open_icmp(options).unwrap(), gateway(&world));
            guest.send(world.now, &request(own, near, 8)).unwrap();
            world.run(SECOND);
            let heard = curious.recv().unwrap();
            assert!(heard.is_echo_request() && heard.destination == ip(near));
            assert_eq!(curious.recv(), Err(SocketError::WouldBlock), "no neighbour discovery");
            assert_eq!(other.recv(), Err(SocketError::WouldBlock));
            assert!(guest.recv().unwrap().echo().is_some(), "the stack answers all the same");
            // A reply that nobody waits for is no error.
            assert_eq!(world.a.drops().get(DropReason::Icmp), 0);
        }
    }
}

#[test]
fn each_socket_that_asks_has_a_copy_and_one_interface_may_be_asked_for() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let guest = guest(&world);
    let on = |interface| IcmpOptions { interface: Some(interface), ..IcmpOptions::default() };
    let here = world.b.open_icmp(on(world.b_interface)).unwrap();
    let other = another_interface(&world);
    let elsewhere = world.b.open_icmp(on(other)).unwrap();
    let all = gateway(&world);
    assert_eq!(world.b.usage().icmp, 3);
    guest.send(world.now, &request("10.0.0.1", "192.0.2.7", 8)).unwrap();
    world.run(SECOND);
    assert!(here.recv().is_ok() && all.recv().is_ok());
    assert_eq!(elsewhere.recv(), Err(SocketError::WouldBlock));
    drop((here, elsewhere, all));
    assert_eq!(world.b.usage().icmp, 0);
}

/// The name of another interface of b.
fn another_interface(world: &World) -> neap_stack::interface::InterfaceId {
    let (to, from) = (Shared::default(), Shared::default());
    let device = super::common::device(&WireConfig::default(), 3, &to, &from);
    world.b.add_interface(world.now, device, &[]).unwrap()
}

#[test]
fn what_finds_the_buffer_full_is_counted_and_dropped() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let (guest, gateway) = (guest(&world), gateway(&world));
    gateway.set_buffers(Some(20_000), None);
    for _ in 0..1000 {
        guest.send(world.now, &request("10.0.0.1", "192.0.2.7", 352)).unwrap();
        world.run(MILLISECOND);
    }
    world.run(SECOND);
    let held = core::iter::from_fn(|| gateway.recv().ok()).count() as u64;
    assert_eq!(held, 20, "a thousand bytes each");
    assert_eq!(world.b.drops().get(DropReason::SocketReceiveBuffer), 1000 - held);
    assert_eq!(world.b.drops().get(DropReason::NoSocketForeign), 0);
}

#[test]
fn any_type_passes_and_a_wrong_checksum_does_not() {
    for (foreign, own, _) in FAMILIES {
        let mut world = World::with_any_destination(&WireConfig::default());
        let (guest, gateway) = (guest(&world), gateway(&world));
        let kind = if ip(own).is_ipv4() { 13 } else { 200 };
        let data = vec![kind, 7, 1, 1, 1, 2, 3, 4, 5, 6, 7];
        guest.send(world.now, &IcmpMessage::new(ip(own), ip(foreign), data)).unwrap();
        world.run(SECOND);
        let heard = gateway.recv().unwrap();
        assert_eq!(
            (heard.kind(), heard.code(), &heard.data[4..]),
            (kind, 7, &[1, 2, 3, 4, 5, 6, 7][..])
        );

        let sent = world.ab.lock().unwrap().sent.last().unwrap().clone();
        let mut bad = sent.to_vec();
        *bad.last_mut().unwrap() ^= 1;
        inject(&world.ab, world.now, bad.into());
        world.run(SECOND);
        assert_eq!(gateway.recv(), Err(SocketError::WouldBlock));
        assert_eq!(world.b.drops().get(DropReason::IcmpChecksum), 1);
    }
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let world = World::with_any_destination(&WireConfig::default());
    let (guest, gateway) = (guest(&world), gateway(&world));
    let send = |handle: &IcmpHandle, message: &IcmpMessage| handle.send(world.now, message);
    let ping = request("192.0.2.7", "10.0.0.2", 8);
    assert_eq!(send(&guest, &ping), Err(SocketError::AddressNotAvailable), "not transparent");
    let mut bad = request("192.0.2.7", "10.0.0.1", 8);
    bad.data.truncate(7);
    assert_eq!(send(&gateway, &bad), Err(SocketError::InvalidArgument));
    for (to, error) in [
        ("224.0.0.1", SocketError::InvalidArgument),
        ("0.0.0.0", SocketError::InvalidArgument),
        ("10.0.0.255", SocketError::Reported(ConnectionError::Forbidden)),
        ("fd00::1", SocketError::AddressFamily),
        ("203.0.113.1", SocketError::NetworkUnreachable),
    ] {
        let mut message = ping.clone();
        message.destination = ip(to);
        assert_eq!(send(&gateway, &message), Err(error), "{to}");
    }
    let long = request("192.0.2.7", "10.0.0.1", 65_536);
    assert_eq!(send(&gateway, &long), Err(SocketError::MessageTooLong));
    assert_eq!(gateway.bytes_below(), 0);
    world.b.shut_down(world.now);
    assert_eq!(gateway.recv(), Err(SocketError::ShutDown));
    assert_eq!(send(&gateway, &request("192.0.2.7", "10.0.0.1", 8)), Err(SocketError::ShutDown));
    let closed = world.b.open_icmp(IcmpOptions::default());
    assert_eq!(closed.map(drop), Err(SocketError::ShutDown));
}

#[test]
fn a_full_way_down_pushes_messages_back() {
    let wire = WireConfig { ring: 1, ..WireConfig::default() };
    let mut world = World::with_any_destination(&wire);
    let gateway = gateway(&world);
    gateway.set_buffers(None, Some(10_000));
    let send = |world: &World| gateway.send(world.now, &request("192.0.2.7", "10.0.0.1", 1000));
    let accepted = (0..100).take_while(|_| send(&world).is_ok()).count();
    assert!((5..20).contains(&accepted), "{accepted}");
    assert_eq!(send(&world), Err(SocketError::WouldBlock));
    assert!(!gateway.readiness().bits().contains(Ready::WRITABLE));
    world.run(SECOND);
    assert!(gateway.readiness().bits().contains(Ready::WRITABLE));
    assert!(send(&world).is_ok());
}

/// A UDP socket of the guest that is connected to an address of others and has sent a datagram; the
/// packet of that.
fn datagram(world: &mut World, to: &str) -> (UdpHandle, Bytes) {
    let any = if ip(to).is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let udp = world.a.bind_udp(address(any), UdpOptions::default()).unwrap();
    udp.set_receive_errors(true, true);
    let to = core::net::SocketAddr::new(ip(to), 9);
    udp.connect(Some(to)).unwrap();
    udp.send_to(world.now, Bytes::from_static(b"anybody?"), None).unwrap();
    let packet = world.ab.lock().unwrap().sent.last().unwrap().clone();
    (udp, packet)
}

/// Loses all that the guest sends, so that the gateway itself answers nothing.
fn deafen(world: &World) {
    world.ab.lock().unwrap().filter = Some(Box::new(|_| false));
}

#[test]
fn errors_of_each_kind_reach_the_guest_whose_packet_they_quote() {
    let v4 = [
        (IcmpErrorKind::Unreachable { code: 0 }, ConnectionError::NetworkUnreachable),
        (IcmpErrorKind::Unreachable { code: 1 }, ConnectionError::HostUnreachable),
        (IcmpErrorKind::Unreachable { code: 3 }, ConnectionError::Refused),
        (IcmpErrorKind::Unreachable { code: 13 }, ConnectionError::HostUnreachable),
        (IcmpErrorKind::PacketTooBig { mtu: 1400 }, ConnectionError::MessageTooLong),
        (IcmpErrorKind::TimeExceeded, ConnectionError::HostUnreachable),
    ];
    let v6 = [
        (IcmpErrorKind::Unreachable { code: 0 }, ConnectionError::NetworkUnreachable),
        (IcmpErrorKind::Unreachable { code: 1 }, ConnectionError::Forbidden),
        (IcmpErrorKind::Unreachable { code: 3 }, ConnectionError::HostUnreachable),
        (IcmpErrorKind::Unreachable { code: 4 }, ConnectionError::Refused),
        (IcmpErrorKind::PacketTooBig { mtu: 1400 }, ConnectionError::MessageTooLong),
        (IcmpErrorKind::TimeExceeded, ConnectionError::HostUnreachable),
    ];
    for ((foreign, _, near), kinds) in FAMILIES.into_iter().zip([v4, v6]) {
        for (kind, error) in kinds {
            for from in [foreign, near] {
                let mut world = World::with_any_destination(&WireConfig::default());
                let gateway = gateway(&world);
                deafen(&world);
                let (udp, packet) = datagram(&mut world, foreign);
                assert_eq!(gateway.send_error(world.now, ip(from), &packet, kind), Ok(true));
                world.run(SECOND);
                let record = udp.next_error().unwrap_or_else(|| panic!("{kind:?} over {foreign}"));
                assert_eq!((record.error, record.offender), (error, Some(ip(from))));
                let mtu = if let IcmpErrorKind::PacketTooBig { mtu } = kind { mtu } else { 0 };
                assert_eq!(record.info, mtu);
            }
        }
    }
}

#[test]
fn a_ping_that_was_too_long_for_its_way_teaches_the_path_mtu() {
    for (foreign, own, _) in FAMILIES {
        let mut world = World::with_any_destination(&WireConfig::default());
        let (guest, gateway) = (guest(&world), gateway(&world));
        let asked = request(own, foreign, 1400);
        guest.send(world.now, &asked).unwrap();
        world.run(MILLISECOND);
        let packet = world.ab.lock().unwrap().sent.last().unwrap().clone();
        assert!(ip(own).is_ipv6() || packet[6] & 0x40 == 0, "routers may cut it");
        let error = IcmpErrorKind::PacketTooBig { mtu: 1300 };
        assert_eq!(gateway.send_error(world.now, ip(foreign), &packet, error), Ok(true));
        world.run(MILLISECOND);
        assert_eq!(world.a.path_mtu(world.now, ip(foreign)), Some(1300));
        assert_eq!(world.a.link_mtu(ip(foreign)), Some(1500), "the link is not the path");
        let before = world.ab.lock().unwrap().sent.len();
        guest.send(world.now, &asked).unwrap();
        world.run(MILLISECOND);
        let sent = world.ab.lock().unwrap().sent[before..].to_vec();
        assert!(sent.len() == 2 && sent.iter().all(|packet| packet.len() <= 1300), "{foreign}");
    }
}

#[test]
fn a_report_about_a_ping_that_was_not_sent_teaches_no_path_mtu() {
    for (foreign, own, _) in FAMILIES {
        let mut world = World::with_any_destination(&WireConfig::default());
        let (guest, gateway) = (guest(&world), gateway(&world));
        let listener = world.b.listen(address("[::]:80"), ListenOptions::default()).unwrap();
        let to = core::net::SocketAddr::new(ip(foreign), 80);
        let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
        world.run(SECOND);
        let (server, _) = listener.accept().unwrap();
        let before = client.info(world.now).snd_mss;
        let sent = request(own, foreign, 1400);
        guest.send(world.now, &sent).unwrap();
        // The guest answers who asks in the name of the foreign host.
        gateway.send(world.now, &request(foreign, own, 1400)).unwrap();
        world.run(MILLISECOND);
        let answer = world.ab.lock().unwrap().sent.last().unwrap().clone();
        let mut other = sent.to_packet().to_vec();
        *other.iter_mut().rev().nth(1400).expect("a sequence number") ^= 1;
        for packet in [answer, request(own, foreign, 1400).to_packet(), other.into()] {
            let error = IcmpErrorKind::PacketTooBig { mtu: 1280 };
            assert_eq!(gateway.send_error(world.now, ip(foreign), &packet, error), Ok(true));
            world.run(SECOND);
        }
        transfer(&mut world, &client, &server, &pattern(10_000));
        assert_eq!(world.a.path_mtu(world.now, ip(foreign)), Some(1500), "{foreign}");
        assert_eq!(client.info(world.now).snd_mss, before);
    }
}

#[test]
fn errors_keep_to_the_limit_and_to_the_rules() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let gateway = gateway(&world);
    deafen(&world);
    let (_udp, packet) = datagram(&mut world, "192.0.2.7");
    let kind = IcmpErrorKind::Unreachable { code: 1 };
    let send = |packet: &Bytes, kind| gateway.send_error(world.now, ip("192.0.2.7"), packet, kind);
    let sent = (0..20).filter(|_| send(&packet, kind).unwrap()).count();
    assert_eq!((sent, world.b.drops().get(DropReason::RateLimited)), (6, 14));
    assert_eq!(world.b.ip_counters().get(IpCounter::IcmpOutDestUnreachs), 6);

    let change = |at: usize, value: u8| {
        let mut changed = packet.to_vec();
        changed[at] = value;
        Bytes::from(changed)
    };
    let ping = request("10.0.0.1", "192.0.2.7", 8).to_packet();
    let unreachable = {
        let mut error = ping.to_vec();
        error[20] = 3;
        Bytes::from(error)
    };
    let group = request("10.0.0.1", "224.0.0.1", 8);
    let all = request("10.0.0.1", "10.0.0.255", 8);
    let mut v6_error = request("fd00::1", "2001:db8::7", 8);
    v6_error.data = vec![1; 16].into();
    for (what, bad) in [
        ("nothing", Bytes::new()),
        ("no IP", change(0, 0x15)),
        ("cut off", packet.slice(..19)),
        ("a later fragment", change(7, 3)),
        ("an error", unreachable),
        ("a group", group.to_packet()),
        ("all hosts", all.to_packet()),
        ("from nobody", request("0.0.0.0", "192.0.2.7", 8).to_packet()),
        ("an error of IPv6", v6_error.to_packet()),
    ] {
        assert_eq!(send(&bad, kind), Err(SocketError::InvalidArgument), "{what}");
    }
    for code in [4, 16, 255] {
        let kind = IcmpErrorKind::Unreachable { code };
        assert_eq!(send(&packet, kind), Err(SocketError::InvalidArgument), "code {code}");
    }
    // An error about a ping is allowed: the limit is what withholds it.
    assert_eq!(send(&ping, kind), Ok(false));
    assert_eq!(
        gateway.send_error(world.now, ip("fd00::9"), &ping, kind),
        Err(SocketError::AddressFamily)
    );
}

#[test]
fn reports_to_a_foreign_address_reach_the_connection_that_has_it() {
    for (foreign, own, _) in FAMILIES {
        let mut world = World::with_any_destination(&WireConfig::default());
        let (guest, gateway) = (guest(&world), gateway(&world));
        let listener = world.b.listen(address("[::]:80"), ListenOptions::default()).unwrap();
        let to = core::net::SocketAddr::new(ip(foreign), 80);
        let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
        world.run(SECOND);
        let (server, _) = listener.accept().unwrap();
        let mss = server.info(world.now).snd_mss;
        // A packet of the server is lost, and reported by the guest as too big.
        server.write(world.now, &pattern(1000)).unwrap();
        let packet = world.ba.lock().unwrap().sent.last().unwrap().clone();
        let error = IcmpErrorKind::PacketTooBig { mtu: 1300 };
        assert_eq!(guest.send_error(world.now, ip(own), &packet, error), Ok(true));
        world.run(MILLISECOND);
        let headers = if ip(own).is_ipv4() { 40 } else { 60 };
        assert!(mss > 1300 - headers, "{mss}");
        assert!(server.info(world.now).snd_mss <= 1300 - headers);
        assert_eq!(gateway.recv(), Err(SocketError::WouldBlock), "the connection has it");
        let mut buf = [0; 2000];
        assert_eq!(client.read(world.now, &mut buf), Ok(1000));
        transfer(&mut world, &server, &client, &pattern(100_000));

        // One about what this host has not sent is for the socket.
        let mut stray = packet.to_vec();
        stray[if ip(own).is_ipv4() { 21 } else { 41 }] ^= 1;
        assert_eq!(guest.send_error(world.now, ip(own), &stray.into(), error), Ok(true));
        world.run(MILLISECOND);
        let heard = gateway.recv().unwrap();
        assert_eq!((heard.source, heard.destination), (ip(own), ip(foreign)));
        assert_eq!(world.b.drops().get(DropReason::Icmp), 0);
    }
}

#[test]
fn a_packet_without_a_hop_left_is_answered_by_the_gateway() {
    for wire in media() {
        for (foreign, _, near) in FAMILIES {
            let mut world = World::with_any_destination(&wire);
            let (gateway, is_v4) = (gateway(&world), ip(foreign).is_ipv4());
            let listener = world.b.listen(address("[::]:80"), ListenOptions::default()).unwrap();
            let (udp, _) = datagram(&mut world, near);
            world.run(SECOND);
            while udp.next_error().is_some() {}
            let any = if is_v4 { "0.0.0.0:0" } else { "[::]:0" };
            let udp = world.a.bind_udp(address(any), UdpOptions::default()).unwrap();
            udp.set_receive_errors(true, true);
            udp.set_hop_limits(1, 1);
            let to = core::net::SocketAddr::new(ip(foreign), 33_434);
            udp.send_to(world.now, Bytes::from_static(b"probe"), Some(to)).unwrap();
            world.run(SECOND);
            let record = udp.next_error().expect("time exceeded");
            assert_eq!((record.offender, record.code), (Some(ip(near)), 0));
            assert_eq!(record.kind, if is_v4 { 11 } else { 3 });
            // TCP and pings end there too.
            let options = SocketOptions { hop_limit: 1, ..SocketOptions::default() };
            let to = core::net::SocketAddr::new(ip(foreign), 80);
            let connect = ConnectOptions { options, ..ConnectOptions::default() };
            let client = world.a.connect(world.now, to, connect).unwrap();
            let mut ping = request(FAMILIES[usize::from(!is_v4)].1, foreign, 8);
            ping.hop_limit = 1;
            let guest = guest(&world);
            guest.send(world.now, &ping).unwrap();
            world.run(Nanos::from_millis(10));
            assert!(listener.accept().is_err());
            assert_eq!(gateway.recv(), Err(SocketError::WouldBlock));
            let told = guest.recv().unwrap();
            assert_eq!((told.source, told.kind()), (ip(near), if is_v4 { 11 } else { 3 }));
            drop(client);
            let counter =
                if is_v4 { IpCounter::IcmpOutTimeExcds } else { IpCounter::Icmp6OutTimeExcds };
            assert_eq!(world.b.ip_counters().get(counter), 3);
            assert_eq!(world.b.drops().get(DropReason::HopLimit), 3);
            // With two hops they arrive.
            ping.hop_limit = 2;
            guest.send(world.now, &ping).unwrap();
            world.run(SECOND);
            assert_eq!(gateway.recv().unwrap().hop_limit, 2);
            assert_eq!(world.b.drops().get(DropReason::RateLimited), 0);
        }
    }
}

#[test]
fn the_own_hop_is_limited_counted_and_may_be_switched_off() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let guest = guest(&world);
    let mut ping = request("10.0.0.1", "192.0.2.7", 8);
    ping.hop_limit = 1;
    for _ in 0..100 {
        guest.send(world.now, &ping).unwrap();
    }
    world.run(Nanos::from_millis(500));
    assert_eq!(world.b.drops().get(DropReason::HopLimit), 100);
    assert_eq!(world.b.ip_counters().get(IpCounter::IcmpOutTimeExcds), 6);
    assert_eq!(world.b.drops().get(DropReason::RateLimited), 94);
    assert_eq!(world.b.ip_counters().get(IpCounter::IpInHdrErrors), 100);
    // An own address is the end of the way: no hop is needed behind it.
    ping.destination = ip("10.0.0.2");
    while guest.recv().is_ok() {}
    guest.send(world.now, &ping).unwrap();
    world.run(SECOND);
    assert_eq!(guest.recv().unwrap().kind(), 0);
    // No error is sent about an error.
    let error = vec![3, 1, 0, 0, 0, 0, 0, 0];
    let mut error = IcmpMessage::new(ip("10.0.0.1"), ip("192.0.2.7"), error);
    error.hop_limit = 1;
    world.run(Nanos::from_secs(10));
    guest.send(world.now, &error).unwrap();
    world.run(SECOND);
    assert_eq!(world.b.ip_counters().get(IpCounter::IcmpOutTimeExcds), 6);
    assert_eq!(world.b.drops().get(DropReason::HopLimit), 101);

    let options = InterfaceOptions { ignores_hop_limit: true, ..InterfaceOptions::default() };
    let mut world = World::with_gateway(&WireConfig::default(), options);
    let (guest, gateway) = (self::guest(&world), gateway(&world));
    ping.destination = ip("192.0.2.7");
    guest.send(world.now, &ping).unwrap();
    world.run(SECOND);
    assert_eq!(gateway.recv().unwrap().hop_limit, 1);
    assert_eq!(world.b.drops().get(DropReason::HopLimit), 0);
}

#[test]
fn an_echo_is_answered_with_its_tos() {
    for (_, own, near) in FAMILIES {
        let mut world = World::with_any_destination(&WireConfig::default());
        let guest = guest(&world);
        let mut asked = request(own, near, 8);
        asked.tos = 0x10;
        guest.send(world.now, &asked).unwrap();
        world.run(SECOND);
        assert_eq!(guest.recv().unwrap().tos, 0x10, "{near}");
    }
}

/// `icmp_send` keeps the service that the packet asked for and adds a precedence; `icmp6_send` does
/// neither.
#[test]
fn an_error_of_ipv4_has_the_tos_of_the_packet_and_a_precedence() {
    for (tos, in_error) in [(0, 0xc0), (0x10, 0xd0), (0xb8, 0xd8)] {
        for (_, own, near) in FAMILIES {
            let mut world = World::with_any_destination(&WireConfig::default());
            let guest = guest(&world);
            let own = SocketAddr::new(ip(own), 1000);
            let client = world.a.bind_udp(own, UdpOptions::default()).unwrap();
            client.set_tos(tos, tos);
            // Nobody is at port 9.
            let to = SocketAddr::new(ip(near), 9);
            client.send_to(world.now, Bytes::from_static(b"x"), Some(to)).unwrap();
            world.run(SECOND);
            let expected = if own.is_ipv4() { in_error } else { 0 };
            assert_eq!(guest.recv().unwrap().tos, expected, "{near}, {tos:#x}");
        }
    }
}

#[test]
fn an_unknown_protocol_is_pointed_at_behind_extension_headers() {
    let mut world = World::new(&WireConfig::default());
    for (extensions, pointer) in [(0, 6), (1, 40), (2, 48)] {
        let mut packet = vec![0x60, 0, 0, 0, 0, 8 * extensions + 4, 60, 64];
        for last in [1, 2] {
            packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        for _ in 0..extensions {
            // Destination options, which are padding.
            packet.extend([60, 0, 1, 4, 0, 0, 0, 0]);
        }
        packet[pointer] = 253;
        packet.extend([0; 4]);
        inject(&world.ab, world.now, packet.into());
        world.run(SECOND);
        let sent = world.ba.lock().unwrap().sent.last().cloned().expect("an error");
        assert_eq!(sent[40..42], [4, 1]);
        assert_eq!(sent[44..48], (pointer as u32).to_be_bytes());
    }
}

#[test]
fn messages_that_a_host_has_no_use_for_are_no_errors() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let guest = guest(&world);
    for (kind, errors) in [(5, 0), (13, 0), (17, 0), (3, 1), (42, 2)] {
        let data = vec![kind, 77, 0, 0, 0, 0, 0, 0];
        guest.send(world.now, &IcmpMessage::new(ip("10.0.0.1"), ip("10.0.0.2"), data)).unwrap();
        world.run(SECOND);
        assert_eq!(world.b.ip_counters().get(IpCounter::IcmpInErrors), errors, "type {kind}");
    }
    assert_eq!(world.b.drops().get(DropReason::Icmp), 5);
}

#[test]
fn a_message_that_nobody_reads_keeps_no_buffer_of_the_device() {
    // SECURITY.md: what waits for long is copied.
    let mut world = World::new(&WireConfig::default());
    let options =
        IcmpOptions { foreign: false, own: true, transparent: false, ..IcmpOptions::default() };
    let socket = world.b.open_icmp(options).unwrap();
    let packet = request("10.0.0.1", "10.0.0.2", 56);
    let asker = world.a.open_icmp(IcmpOptions::default()).unwrap();
    asker.send(world.now, &packet).unwrap();
    let sent = world.ab.lock().unwrap().sent.last().unwrap().clone();
    world.ab.lock().unwrap().packets.clear();
    let block = Bytes::copy_from_slice(&sent);
    inject(&world.ab, world.now, block.clone());
    world.run(SECOND);
    assert!(socket.readiness().bits().contains(Ready::READABLE));
    world.ba.lock().unwrap().sent.clear();
    assert!(block.is_unique(), "the message in the socket pins the buffer of the device");
}

#[test]
fn an_error_that_waits_in_the_qdisc_keeps_no_buffer_of_the_device() {
    let mut world = World::new(&WireConfig { ring: 0, ..WireConfig::default() });
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0];
    packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = neap_stack::wire::checksum::of(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    // Without a checksum, to port 9, where nobody is.
    packet.extend([0x30, 0x39, 0, 9, 0, 8, 0, 0]);
    let block = Bytes::from(packet);
    inject(&world.ab, world.now, block.clone());
    world.run(MILLISECOND);
    assert_eq!(world.b.ip_counters().get(IpCounter::IcmpOutDestUnreachs), 1);
    assert!(block.is_unique(), "the quote in the qdisc pins the buffer of the device");
}
