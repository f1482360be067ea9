//! Interfaces that take any destination, and sockets with addresses of others.

use super::common::{Shared, WireConfig, World, inject};
use super::{SECOND, address, connect, pattern, transfer};
use bytes::Bytes;
use neap_stack::drop_reason::DropReason;
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::udp::SendDatagram;
use neap_stack::stack::{BindOptions, ConnectOptions, ListenOptions, UdpOptions};
use neap_stack::wire::checksum;
use neap_tcp::connection::ConnectionError;
use neap_tcp::options::SocketOptions;
use neap_tcp::state::State;
use neap_tcp::time::Nanos;

const FOREIGN: [&str; 2] = ["192.0.2.7:80", "[2001:db8::7]:80"];

fn ethernet() -> WireConfig {
    WireConfig { ethernet: true, ..WireConfig::default() }
}

/// What was sent in this direction, from the IP header on.
fn sent(direction: &Shared) -> Vec<Bytes> {
    direction.lock().unwrap().sent.clone()
}

#[test]
fn a_listener_on_all_addresses_serves_those_of_others() {
    for wire in [WireConfig::default(), ethernet()] {
        let mut world = World::with_any_destination(&wire);
        assert!(world.b.interfaces(world.now)[0].any_destination);
        let listener = world.b.listen(address("[::]:80"), ListenOptions::default()).unwrap();
        for to in FOREIGN {
            let client =
                world.a.connect(world.now, address(to), ConnectOptions::default()).unwrap();
            assert!(
                world.run_until(SECOND, |_| listener.readiness().bits().contains(Ready::READABLE))
            );
            let (server, _) = listener.accept().unwrap();
            assert_eq!(server.local_addr(), address(to));
            transfer(&mut world, &client, &server, &pattern(100_000));
            transfer(&mut world, &server, &client, &pattern(100_000));
            // What is left of the connection answers from the foreign address, too.
            server.close(world.now);
            world.run(SECOND);
            client.close(world.now);
            world.run(SECOND);
            assert_eq!(client.state(world.now), State::Closed, "{to}");
            assert_eq!(world.b.usage().tcp.time_wait, 1);
            world.run(Nanos::from_secs(120));
        }
    }
}

#[test]
fn own_addresses_keep_working() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    transfer(&mut world, &client, &server, &pattern(100_000));
    world.b.remove_address(world.b_interface, "10.0.0.2".parse().unwrap()).unwrap();
    let error = world.b.check_local("10.0.0.2".parse().unwrap(), false);
    assert_eq!(error, Err(SocketError::AddressNotAvailable));
}

#[test]
fn who_takes_no_foreign_packets_drops_and_counts_them() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let listener = world.a.listen(address("[::]:80"), ListenOptions::default()).unwrap();
    let options = ConnectOptions {
        local: Some(address("192.0.2.7:0")),
        transparent: true,
        ..ConnectOptions::default()
    };
    // Towards an interface that takes only what is for its own addresses.
    let route = neap_stack::route::Route {
        interface: world.b_interface,
        gateway: Some("10.0.0.1".parse().unwrap()),
        mtu: None,
        pref_src: None,
    };
    let prefix = "198.51.100.0/24".parse().unwrap();
    world.b.add_route(neap_stack::route::RouteEntry { prefix, metric: 0, route }).unwrap();
    let client = world.b.connect(world.now, address("198.51.100.1:80"), options).unwrap();
    world.run(SECOND);
    assert_eq!(client.state(world.now), State::SynSent);
    assert!(listener.accept().is_err());
    assert!(world.a.drops().get(DropReason::IpOtherHost) > 0);
    assert_eq!(world.a.drops().get(DropReason::NoSocketForeign), 0);
}

#[test]
fn a_foreign_address_without_a_socket_refuses() {
    for to in FOREIGN {
        let mut world = World::with_any_destination(&ethernet());
        let client = world.a.connect(world.now, address(to), ConnectOptions::default()).unwrap();
        world.run(SECOND);
        assert_eq!(client.take_error(world.now), Some(ConnectionError::Refused));
        assert_eq!(world.b.drops().get(DropReason::NoSocketForeign), 1);
        let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let udp = world.a.bind_udp(address(any), UdpOptions::default()).unwrap();
        udp.connect(Some(address(to))).unwrap();
        udp.send_to(world.now, Bytes::from_static(b"anybody?"), None).unwrap();
        world.run(SECOND);
        assert_eq!(udp.take_error(), Some(ConnectionError::Refused.into()));
        assert_eq!(world.b.drops().get(DropReason::NoSocketForeign), 2);
        assert_eq!(world.b.drops().get(DropReason::NoSocket), 0);
    }
}

/// An IPv4 packet without payload, of a protocol that nobody knows.
fn packet(source: [u8; 4], destination: [u8; 4]) -> Bytes {
    let mut packet = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0];
    packet.extend(source);
    packet.extend(destination);
    let sum = checksum::of(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.into()
}

#[test]
fn what_cannot_be_one_host_elsewhere_is_not_taken() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let reasons = [
        ([127, 0, 0, 1], DropReason::IpMartian),
        ([0, 0, 0, 0], DropReason::IpOtherHost),
        ([0, 1, 2, 3], DropReason::IpOtherHost),
        ([224, 0, 0, 5], DropReason::IpOtherHost),
        ([255, 255, 255, 255], DropReason::Broadcast),
        ([10, 0, 0, 255], DropReason::Broadcast),
        ([192, 0, 2, 7], DropReason::IpProtocol),
    ];
    for (destination, reason) in reasons {
        let before = world.b.drops().get(reason);
        inject(&world.ab, world.now, packet([10, 0, 0, 1], destination));
        world.settle();
        assert_eq!(world.b.drops().get(reason), before + 1, "{destination:?}");
    }
    // Neither an own address nor that of the destination is a source of what comes from outside.
    for (count, source) in (2..).zip([[10, 0, 0, 2], [192, 0, 2, 7]]) {
        inject(&world.ab, world.now, packet(source, [192, 0, 2, 7]));
        world.settle();
        assert_eq!(world.b.drops().get(DropReason::IpMartian), count, "{source:?}");
    }
}

#[test]
fn what_all_stations_of_a_link_get_is_for_none_in_particular() {
    let mut world = World::with_any_destination(&ethernet());
    let frame = |station: [u8; 6]| {
        let mut frame = station.to_vec();
        frame.extend([2, 0, 0, 0, 0, 1, 8, 0]);
        frame.extend_from_slice(&packet([10, 0, 0, 1], [192, 0, 2, 7]));
        Bytes::from(frame)
    };
    inject(&world.ab, world.now, frame([0xff; 6]));
    world.settle();
    assert_eq!(world.b.drops().get(DropReason::IpOtherHost), 1);
    inject(&world.ab, world.now, frame([2, 0, 0, 0, 0, 2]));
    world.settle();
    assert_eq!(world.b.drops().get(DropReason::IpProtocol), 1);
}

#[test]
fn fragments_to_a_foreign_address_are_put_together() {
    let mut world = World::with_any_destination(&WireConfig::default());
    for (any, to) in [("0.0.0.0:53", "192.0.2.7:53"), ("[::]:54", "[2001:db8::7]:54")] {
        let server = world.b.bind_udp(address(any), UdpOptions::default()).unwrap();
        let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let client = world.a.bind_udp(address(any), UdpOptions::default()).unwrap();
        let data = Bytes::from(pattern(5000));
        client.send_to(world.now, data.clone(), Some(address(to))).unwrap();
        world.run(SECOND);
        let datagram = server.recv_from().unwrap();
        assert_eq!((datagram.data, datagram.to), (data, address(to)));
    }
}

#[test]
fn sockets_that_ask_for_it_have_addresses_of_others() {
    for (from, to) in [("192.0.2.7:0", "10.0.0.1:80"), ("[2001:db8::7]:4000", "[fd00::1]:80")] {
        let mut world = World::with_any_destination(&WireConfig::default());
        let (from, to) = (address(from), address(to));
        let listener = world.a.listen(to, ListenOptions::default()).unwrap();
        let refused = ConnectOptions { local: Some(from), ..ConnectOptions::default() };
        let asked = ConnectOptions { transparent: true, ..refused.clone() };
        let error = world.b.connect(world.now, to, refused).unwrap_err();
        assert_eq!(error, SocketError::AddressNotAvailable);
        let client = world.b.connect(world.now, to, asked).unwrap();
        assert!(world.run_until(SECOND, |_| listener.readiness().bits().contains(Ready::READABLE)));
        let (server, peer) = listener.accept().unwrap();
        assert_eq!((peer.ip(), peer), (from.ip(), client.local_addr()));
        transfer(&mut world, &client, &server, &pattern(100_000));
        client.close(world.now);
        server.close(world.now);
        world.run(SECOND);

        let udp = world.a.bind_udp(to, UdpOptions::default()).unwrap();
        let own = world.b.bind_udp(from, UdpOptions::default());
        assert_eq!(own.err(), Some(SocketError::AddressNotAvailable));
        let transparent = UdpOptions { transparent: true, ..UdpOptions::default() };
        let sender = world.b.bind_udp(from, transparent).unwrap();
        sender.send_to(world.now, Bytes::from_static(b"hello"), Some(to)).unwrap();
        world.run(SECOND);
        let datagram = udp.recv_from().unwrap();
        assert_eq!(datagram.from, sender.local_addr());
        udp.send_to(world.now, Bytes::from_static(b"and back"), Some(datagram.from)).unwrap();
        world.run(SECOND);
        assert_eq!(&sender.recv_from().unwrap().data[..], b"and back");
    }
}

#[test]
fn a_datagram_may_leave_from_any_address_of_a_transparent_socket() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let to = address("10.0.0.1:53");
    let udp = world.a.bind_udp(to, UdpOptions::default()).unwrap();
    let send = |world: &World, transparent| {
        let options = UdpOptions { transparent, ..UdpOptions::default() };
        let socket = world.b.bind_udp(address("0.0.0.0:0"), options).unwrap();
        let data = Bytes::from_static(b"hello");
        let from = Some(address("192.0.2.9:0"));
        socket.send_batch(world.now, [SendDatagram { from, ..SendDatagram::new(data, Some(to)) }]).1
    };
    assert_eq!(send(&world, false), Err(SocketError::AddressNotAvailable));
    assert_eq!(send(&world, true), Ok(()));
    world.run(SECOND);
    assert_eq!(udp.recv_from().unwrap().from.ip(), address("192.0.2.9:0").ip());
}

#[test]
fn a_transparent_listener_is_bound_to_an_address_of_others() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let to = address("192.0.2.7:80");
    let error = world.b.listen(to, ListenOptions::default()).unwrap_err();
    assert_eq!(error, SocketError::AddressNotAvailable);
    let error = world.b.bind_tcp(to, BindOptions::default()).unwrap_err();
    assert_eq!(error, SocketError::AddressNotAvailable);
    let transparent = BindOptions { transparent: true, ..BindOptions::default() };
    let bound = world.b.bind_tcp(to, transparent).unwrap();
    let options = SocketOptions { hop_limit: 9, ..SocketOptions::default() };
    let options = ListenOptions { transparent: true, options, ..ListenOptions::default() };
    let listener = bound.listen(to, options).unwrap();
    let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
    let other = address("192.0.2.8:80");
    let other = world.a.connect(world.now, other, ConnectOptions::default()).unwrap();
    world.run(SECOND);
    assert!(client.readiness().bits().contains(Ready::WRITABLE));
    assert_eq!(other.take_error(world.now), Some(ConnectionError::Refused));
    assert!(listener.accept().is_ok());
    assert!(sent(&world.ba).iter().any(|packet| packet[8] == 9));
}
