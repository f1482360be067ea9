//! Datagrams to all hosts of a network, and hosts that have no address yet.

use super::common::{WireConfig, World, config, inject};
use super::datagrams::{bind, ethernet, forwarder, received, send, taken, to};
use super::{SECOND, address};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use neap_stack::drop_reason::DropReason;
use neap_stack::route::{Route, RouteEntry};
use neap_stack::socket::SocketError;
use neap_stack::socket::udp::SendDatagram;
use neap_stack::stack::{ConnectOptions, UdpOptions};
use neap_stack::stats::IpCounter;
use neap_tcp::connection::ConnectionError;
use neap_tcp::state::State;

const FORBIDDEN: SocketError = SocketError::Reported(ConnectionError::Forbidden);

#[test]
fn broadcast_needs_the_option() {
    let mut world = World::new(&ethernet());
    let socket = bind(&world.a, "0.0.0.0:0");
    let all = address("10.0.0.255:67");
    assert_eq!(send(&world, &socket, to(all, b"x")), Err(FORBIDDEN));
    assert_eq!(socket.connect(Some(all)), Err(FORBIDDEN));
    // Without a route to all hosts it is not the option that is missing.
    let everybody = address("255.255.255.255:67");
    assert_eq!(send(&world, &socket, to(everybody, b"x")), Err(SocketError::NetworkUnreachable));
    let interface = Some(world.a_interface);
    let by_link = SendDatagram { interface, ..to(everybody, b"x") };
    assert_eq!(send(&world, &socket, by_link.clone()), Err(FORBIDDEN));
    socket.set_broadcast(true);
    assert!(socket.broadcast());
    send(&world, &socket, to(all, b"x")).unwrap();
    send(&world, &socket, by_link).unwrap();
    socket.connect(Some(all)).unwrap();
    socket.send_to(world.now, Bytes::from_static(b"x"), None).unwrap();
    world.run(SECOND);
    let sent = world.ab.lock().unwrap().sent.clone();
    assert_eq!(sent.len(), 3, "without a word of ARP");
    for frame in sent {
        assert_eq!(frame[..6], [0xff; 6]);
        assert_eq!(frame[26..30], [10, 0, 0, 1], "from the address of the interface");
    }
}

#[test]
fn a_broadcast_reaches_every_socket_that_fits() {
    for wire in [WireConfig::default(), ethernet()] {
        let mut world = World::with_any_destination(&wire);
        let reuse = UdpOptions { reuse_address: true, ..UdpOptions::default() };
        let listen = |world: &World, local: &str| world.b.bind_udp(address(local), reuse).unwrap();
        let takers = ["0.0.0.0:67", "[::]:67", "10.0.0.255:67"].map(|one| listen(&world, one));
        let others = ["10.0.0.2:67", "0.0.0.0:68", "255.255.255.255:67"];
        let others = others.map(|one| listen(&world, one));
        let forwarder = forwarder(&world.b);
        let client = bind(&world.a, "0.0.0.0:68");
        client.set_broadcast(true);
        let own = bind(&world.a, "0.0.0.0:67");
        send(&world, &client, to(address("10.0.0.255:67"), b"to all")).unwrap();
        world.run(SECOND);
        for taker in &takers {
            let got = received(taker);
            assert_eq!(got.len(), 1, "{}", taker.local_addr());
            assert!(got[0].is_broadcast && got[0].to == address("10.0.0.255:67"));
            assert_eq!(got[0].from, address("10.0.0.1:68"));
        }
        assert!(others.iter().chain([&forwarder]).all(|one| received(one).is_empty()));
        // The host that sends is one of all.
        let got = received(&own);
        assert_eq!((got.len(), got[0].interface), (1, None));
        // Whoever is bound to a broadcast address sends from an own one.
        takers[2].send_to(world.now, Bytes::new(), Some(address("10.0.0.1:68"))).unwrap();
        world.run(SECOND);
        assert_eq!(received(&client)[0].from, address("10.0.0.2:67"));
        // Nobody says that nobody is there.
        send(&world, &client, to(address("10.0.0.255:99"), b"to none")).unwrap();
        world.run(SECOND);
        assert_eq!(world.b.ip_counters().get(IpCounter::UdpIgnoredMulti), 1);
        assert_eq!(world.b.ip_counters().get(IpCounter::IcmpOutMsgs), 0);
    }
}

#[test]
fn only_udp_speaks_to_all_hosts() {
    let mut world = World::new(&WireConfig::default());
    let everybody = address("10.0.0.255:80");
    let error = world.a.connect(world.now, everybody, ConnectOptions::default()).unwrap_err();
    assert_eq!(error, SocketError::NetworkUnreachable);
    // An echo request to all hosts, as a stranger sends it.
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 255];
    let sum = neap_stack::wire::checksum::of(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend([8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    inject(&world.ab, world.now, packet.into());
    world.settle();
    assert_eq!(world.b.drops().get(DropReason::Broadcast), 1);
    assert!(taken(&world.ba, false).is_empty());
}

#[test]
fn the_loopback_has_a_broadcast_address_like_any_network() {
    let mut world = World::new(&WireConfig::default());
    let all = address("127.255.255.255:67");
    let socket = bind(&world.a, "0.0.0.0:0");
    assert_eq!(send(&world, &socket, to(all, b"x")), Err(FORBIDDEN));
    assert_eq!(socket.connect(Some(all)), Err(FORBIDDEN));
    socket.set_broadcast(true);
    let reuse = UdpOptions { reuse_address: true, ..UdpOptions::default() };
    let listen = |local: &str| world.a.bind_udp(address(local), reuse).unwrap();
    let takers = ["0.0.0.0:67", "[::]:67", "127.255.255.255:67"].map(listen);
    let other = listen("127.0.0.1:67");
    send(&world, &socket, to(all, b"to all")).unwrap();
    world.run(SECOND);
    for taker in &takers {
        let got = received(taker);
        assert_eq!(got.len(), 1, "{}", taker.local_addr());
        assert!(got[0].is_broadcast && got[0].to == all && got[0].interface.is_none());
        assert_eq!(got[0].from.ip(), address("127.0.0.1:0").ip());
    }
    assert!(received(&other).is_empty());
    // Whoever is bound to it sends from an own address.
    takers[2].send_to(world.now, Bytes::new(), Some(other.local_addr())).unwrap();
    world.run(SECOND);
    assert_eq!(received(&other)[0].from, address("127.0.0.1:67"));
    socket.connect(Some(all)).unwrap();
    assert_eq!(socket.name().ip(), address("127.0.0.1:0").ip());
    // Sockets of other kinds have nothing to do with it.
    let error = world.a.connect(world.now, all, ConnectOptions::default()).unwrap_err();
    assert_eq!(error, SocketError::NetworkUnreachable);
    let options = neap_stack::stack::ListenOptions::default();
    let error = world.a.listen(all, options).unwrap_err();
    assert_eq!(error, SocketError::AddressNotAvailable);
    assert!(taken(&world.ab, false).is_empty());
}

/// A host without an address of IPv4, and a server on the other end of the wire.
fn unconfigured() -> World {
    let mut world = World::with(&ethernet(), config(1), config(2));
    world.a.remove_address(world.a_interface, "10.0.0.1".parse().unwrap()).unwrap();
    world.settle();
    world
}

#[test]
fn a_host_without_an_address_asks_all_for_one_and_hears_the_answer() {
    let mut world = unconfigured();
    let client = bind(&world.a, "0.0.0.0:68");
    let server = bind(&world.b, "0.0.0.0:67");
    client.set_broadcast(true);
    server.set_broadcast(true);
    let everybody = address("255.255.255.255:67");
    let interface = Some(world.a_interface);
    let discover = SendDatagram { interface, ..to(everybody, b"discover") };
    // No route leads to all hosts.
    let lost = send(&world, &client, to(everybody, b"x"));
    assert_eq!(lost, Err(SocketError::NetworkUnreachable));
    send(&world, &client, discover).unwrap();
    world.run(SECOND);
    let asked = server.recv_from().unwrap();
    assert_eq!((asked.from, asked.to), (address("0.0.0.0:68"), everybody));
    assert!(asked.is_broadcast);
    // To all, by the interface that the question came in by.
    let answer = SendDatagram {
        interface: asked.interface,
        ..to(address("255.255.255.255:68"), b"offer to all")
    };
    send(&world, &server, answer).unwrap();
    world.run(SECOND);
    let offer = client.recv_from().unwrap();
    assert_eq!((&offer.data[..], offer.from), (&b"offer to all"[..], address("10.0.0.2:67")));
    // To the address that the client is to have, at its Ethernet address.
    let yours: IpAddr = "10.0.0.77".parse().unwrap();
    world.b.add_neighbor(world.now, world.b_interface, yours, [2, 0, 0, 0, 0, 1]).unwrap();
    send(&world, &server, to(SocketAddr::new(yours, 68), b"offer")).unwrap();
    world.run(SECOND);
    let offer = client.recv_from().unwrap();
    assert_eq!((&offer.data[..], offer.to), (&b"offer"[..], SocketAddr::new(yours, 68)));
    assert!(!offer.is_broadcast);
    world.b.remove_neighbor(world.b_interface, yours).unwrap();
    // A datagram for a port that nobody has is not answered from an address that is not there.
    world.b.add_neighbor(world.now, world.b_interface, yours, [2, 0, 0, 0, 0, 1]).unwrap();
    send(&world, &server, to(SocketAddr::new(yours, 99), b"nobody")).unwrap();
    world.run(SECOND);
    assert_eq!(world.a.ip_counters().get(IpCounter::IcmpOutMsgs), 0);
    // With the address the host is like any other.
    world.a.add_address(world.a_interface, "10.0.0.77/24".parse().unwrap()).unwrap();
    send(&world, &server, to(SocketAddr::new(yours, 68), b"yours")).unwrap();
    let other: IpAddr = "10.0.0.78".parse().unwrap();
    world.b.add_neighbor(world.now, world.b_interface, other, [2, 0, 0, 0, 0, 1]).unwrap();
    let before = world.a.drops().get(DropReason::IpOtherHost);
    send(&world, &server, to(SocketAddr::new(other, 68), b"not yours")).unwrap();
    world.run(SECOND);
    assert_eq!(received(&client).len(), 1);
    assert_eq!(world.a.drops().get(DropReason::IpOtherHost), before + 1);
}

#[test]
fn tcp_does_not_come_to_a_host_without_an_address() {
    let mut world = unconfigured();
    let options = neap_stack::stack::ListenOptions::default();
    let listener = world.a.listen(address("0.0.0.0:80"), options).unwrap();
    let to: IpAddr = "10.0.0.77".parse().unwrap();
    world.b.add_neighbor(world.now, world.b_interface, to, [2, 0, 0, 0, 0, 1]).unwrap();
    let to = SocketAddr::new(to, 80);
    let client = world.b.connect(world.now, to, ConnectOptions::default()).unwrap();
    world.run(SECOND);
    assert_eq!(client.state(world.now), State::SynSent);
    assert!(listener.accept().is_err());
}

#[test]
fn all_hosts_of_an_interface_that_takes_any_destination_are_all_hosts() {
    let wire = ethernet();
    let mut world = World::with_any_destination(&wire);
    let route = Route { interface: world.a_interface, gateway: None, mtu: None, pref_src: None };
    let prefix = "255.255.255.255/32".parse().unwrap();
    world.a.add_route(RouteEntry { prefix, metric: 0, route }).unwrap();
    let client = bind(&world.a, "0.0.0.0:68");
    client.set_broadcast(true);
    let server = bind(&world.b, "0.0.0.0:67");
    send(&world, &client, to(address("255.255.255.255:67"), b"x")).unwrap();
    world.run(SECOND);
    assert!(received(&server)[0].is_broadcast);
}
