//! Where packets may go: groups, sources that stay on their host, and destinations without a way.

use super::common::{self, Shared, WireConfig, World};
use super::{SECOND, address};
use bytes::Bytes;
use neap_stack::device::{LinkState, LinkStatus};
use neap_stack::neighbor::NeighborState;
use neap_stack::route::{Route, RouteEntry};
use neap_stack::socket::SocketError;
use neap_stack::socket::icmp::{IcmpMessage, IcmpOptions};
use neap_stack::socket::udp::{SendDatagram, UdpHandle};
use neap_stack::stack::{ConnectOptions, Stack, UdpForwarderOptions, UdpOptions};
use neap_stack::stats::IpCounter;
use neap_tcp::connection::ConnectionError;

const DOWN: SocketError = SocketError::Reported(ConnectionError::NetworkDown);

fn ethernet() -> World {
    World::with_any_destination(&WireConfig { ethernet: true, ..WireConfig::default() })
}

fn bind(world: &World, local: &str) -> UdpHandle {
    world.a.bind_udp(address(local), UdpOptions::default()).unwrap()
}

fn send(world: &World, socket: &UdpHandle, datagram: SendDatagram) -> Result<(), SocketError> {
    socket.send_batch(world.now, [datagram]).1
}

fn to(remote: &str) -> SendDatagram {
    SendDatagram::new(Bytes::from_static(b"x"), Some(address(remote)))
}

#[test]
fn nothing_leaves_from_a_loopback_address() {
    // RFC 1122 section 3.2.1.3 (g), RFC 4291 section 2.5.3.
    for (own, near, far) in [
        ("127.0.0.1:0", "10.0.0.1:9", "10.0.0.2:9"),
        ("127.3.2.1:0", "10.0.0.1:9", "192.0.2.1:9"),
        ("[::1]:0", "[fd00::1]:9", "[fd00::2]:9"),
    ] {
        let mut world = ethernet();
        let refused = Err(SocketError::InvalidArgument);
        let socket = bind(&world, own);
        assert_eq!(send(&world, &socket, to(far)), refused, "{own} to {far}");
        assert_eq!(socket.connect(Some(address(far))), refused);
        let group = if own.starts_with('[') { "[ff05::7]:9" } else { "239.1.2.3:9" };
        assert_eq!(send(&world, &socket, to(group)), refused);
        assert_eq!(send(&world, &socket, to(near)), Ok(()));
        let options = UdpOptions { transparent: true, ..UdpOptions::default() };
        let transparent = world.a.bind_udp(address(own), options).unwrap();
        assert_eq!(send(&world, &transparent, to(far)), refused);
        let forwarder = world.a.forward_udp(UdpForwarderOptions::default()).unwrap();
        let mut from = address(own);
        from.set_port(53);
        let datagram = SendDatagram { from: Some(from), ..to(far) };
        assert_eq!(send(&world, &forwarder, datagram), refused);
        for transparent in [false, true] {
            let local = Some(address(own));
            let options = ConnectOptions { local, transparent, ..ConnectOptions::default() };
            let opened = world.a.connect(world.now, address(far), options);
            assert_eq!(opened.map(drop), refused);
        }
        let icmp = world.a.open_icmp(IcmpOptions::default()).unwrap();
        let kind = if from.is_ipv4() { 8 } else { 128 };
        let ping = IcmpMessage::new(from.ip(), address(far).ip(), vec![kind, 0, 0, 0, 0, 1, 0, 1]);
        assert_eq!(icmp.send(world.now, &ping), Err(SocketError::NetworkUnreachable));
        world.run(SECOND);
        assert!(world.ab.lock().unwrap().sent.is_empty());
    }
}

#[test]
fn a_datagram_to_a_group_goes_to_the_stations_of_the_group() {
    // RFC 1112 section 6.4, RFC 2464 section 7. The route to all else has a router.
    for (group, link) in [
        ("224.0.0.251:5353", [0x01, 0x00, 0x5e, 0, 0, 251]),
        ("239.129.2.3:9", [0x01, 0x00, 0x5e, 1, 2, 3]),
        ("[ff02::fb]:5353", [0x33, 0x33, 0, 0, 0, 0xfb]),
        ("[ff0e::1:203:405]:9", [0x33, 0x33, 2, 3, 4, 5]),
    ] {
        let mut world = ethernet();
        let socket = bind(&world, "[::]:0");
        socket.set_hop_limits(9, 9);
        send(&world, &socket, to(group)).unwrap();
        send(&world, &socket, SendDatagram { hop_limit: Some(5), ..to(group) }).unwrap();
        world.run(SECOND);
        let sent = world.ab.lock().unwrap().sent.clone();
        assert_eq!(sent.len(), 2, "nobody is asked for {group}");
        for (frame, hops) in sent.iter().zip([1, 5]) {
            let is_v4 = frame[12..14] == [8, 0];
            assert_eq!((&frame[..6], frame[14 + if is_v4 { 8 } else { 7 }]), (&link[..], hops));
        }
        assert!(world.a.neighbors(world.now).is_empty());
    }
}

/// Host a has a second interface with an address of each family, which all routes lead through.
/// Returns its wire.
fn with_routes_elsewhere(world: &World) -> Shared {
    let there = Shared::default();
    let device = common::device(&WireConfig::default(), 9, &there, &Shared::default());
    let addresses = ["192.0.2.1/24", "2001:db8::1/64"].map(|own| own.parse().unwrap());
    let interface = world.a.add_interface(world.now, device, &addresses).unwrap();
    for (prefix, gateway) in [("0.0.0.0/0", "192.0.2.9"), ("::/0", "2001:db8::9")] {
        let gateway = Some(gateway.parse().unwrap());
        let route = Route { interface, gateway, mtu: None, pref_src: None };
        world
            .a
            .add_route(RouteEntry { prefix: prefix.parse().unwrap(), metric: 0, route })
            .unwrap();
    }
    there
}

#[test]
fn what_is_for_many_leaves_by_the_interface_of_its_source() {
    for has_routes in [false, true] {
        for (own, far) in [
            ("10.0.0.1:0", "255.255.255.255:9"),
            ("10.0.0.1:0", "239.1.2.3:9"),
            ("[fd00::1]:0", "[ff05::7]:9"),
        ] {
            let mut world = World::new(&WireConfig::default());
            let there = has_routes.then(|| with_routes_elsewhere(&world));
            let bound = bind(&world, own);
            let any = if own.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let unbound = bind(&world, any);
            if far.starts_with("255") {
                let forbidden = Err(SocketError::Reported(ConnectionError::Forbidden));
                assert_eq!(send(&world, &bound, to(far)), forbidden);
                assert_eq!(bound.connect(Some(address(far))), forbidden);
                bound.set_broadcast(true);
                unbound.set_broadcast(true);
            }
            assert_eq!(send(&world, &bound, to(far)), Ok(()), "{own} to {far}");
            let from = Some(address(own));
            assert_eq!(send(&world, &unbound, SendDatagram { from, ..to(far) }), Ok(()));
            assert_eq!(bound.connect(Some(address(far))), Ok(()));
            for _ in 0..2 {
                let sent = bound.send_to(world.now, Bytes::from_static(b"x"), None);
                assert_eq!(sent, Ok(()));
            }
            let unreachable = Err(SocketError::NetworkUnreachable);
            let by_route = if has_routes { Ok(()) } else { unreachable };
            assert_eq!(send(&world, &unbound, to(far)), by_route);
            // Who is connected has a source, too.
            let near = if any.starts_with('[') { "[fd00::2]:9" } else { "10.0.0.2:9" };
            unbound.connect(Some(address(near))).unwrap();
            assert_eq!(send(&world, &unbound, to(far)), Ok(()));
            world.run(SECOND);
            assert_eq!(world.ab.lock().unwrap().sent.len(), 5, "{own} to {far}");
            if let Some(there) = there {
                assert_eq!(there.lock().unwrap().sent.len(), 1);
            }
        }
    }
}

#[test]
fn what_is_said_of_a_socket_of_many_is_of_the_interface_of_its_source() {
    for (own, far) in [("10.0.0.1:0", "239.1.2.3:9"), ("[fd00::1]:0", "[ff05::7]:9")] {
        let world = World::new(&WireConfig::default());
        with_routes_elsewhere(&world);
        let elsewhere = world.a.interfaces(world.now).last().unwrap().id;
        let bound = bind(&world, own);
        bound.connect(Some(address(far))).unwrap();
        let any = if own.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let unbound = bind(&world, any);
        let near = if any.starts_with('[') { "[fd00::2]:9" } else { "10.0.0.2:9" };
        unbound.connect(Some(address(near))).unwrap();
        unbound.connect(Some(address(far))).unwrap();
        for socket in [&bound, &unbound] {
            let by = world.a.interface_of(world.now, socket.name(), socket.remote_addr());
            assert_eq!(by, Some(world.a_interface), "{own} to {far}");
        }
        let gone = LinkStatus::new(LinkState::Gone);
        world.a.set_link_status(world.now, elsewhere, gone).unwrap();
        for socket in [&bound, &unbound] {
            assert_eq!(socket.recv_from().unwrap_err(), SocketError::WouldBlock);
        }
        world.a.set_link_status(world.now, world.a_interface, gone).unwrap();
        for socket in [&bound, &unbound] {
            assert_eq!(socket.recv_from().unwrap_err(), DOWN, "{own} to {far}");
        }
    }
}

#[test]
fn a_source_of_the_other_family_says_nothing_of_the_way_to_many() {
    let world = World::new(&WireConfig::default());
    let there = with_routes_elsewhere(&world);
    let socket = bind(&world, "[::]:0");
    socket.connect(Some(address("[fd00::2]:9"))).unwrap();
    assert_eq!(send(&world, &socket, to("239.1.2.3:9")), Ok(()));
    assert_eq!([&world.ab, &there].map(|wire| wire.lock().unwrap().sent.len()), [0, 1]);
}

#[test]
fn a_datagram_to_many_that_is_too_long_is_told_the_mtu_of_its_way() {
    for (own, far) in [("10.0.0.1:0", "239.1.2.3:9"), ("[fd00::1]:0", "[ff05::7]:9")] {
        let world = World::new(&WireConfig::default());
        let socket = bind(&world, own);
        socket.set_receive_errors(true, true);
        let long = |len: usize, interface| {
            let data = Bytes::from(vec![0; len]);
            let to = Some(address(far));
            SendDatagram { interface, dont_fragment: true, ..SendDatagram::new(data, to) }
        };
        for len in [2000, 65_530] {
            for interface in [None, Some(world.a_interface)] {
                let sent = send(&world, &socket, long(len, interface));
                assert_eq!(sent, Err(SocketError::MessageTooLong));
                assert_eq!(socket.next_error().unwrap().info, 1500, "{own} to {far}");
            }
        }
    }
}

#[test]
fn a_connected_socket_tells_the_mtu_of_its_way() {
    for (own, far) in [("10.0.0.1:0", "239.1.2.3:9"), ("[fd00::1]:0", "[ff05::7]:9")] {
        let world = World::new(&WireConfig::default());
        let socket = bind(&world, own);
        assert_eq!(socket.path_mtu(world.now), None);
        socket.connect(Some(address(far))).unwrap();
        assert_eq!(socket.path_mtu(world.now), Some(1500), "{own} to {far}");
        with_routes_elsewhere(&world);
        world.a.set_mtu(world.a_interface, 1420).unwrap();
        assert_eq!(socket.path_mtu(world.now), Some(1420), "not by the routes");
        let unbound = bind(&world, if own.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" });
        unbound.connect(Some(address(far))).unwrap();
        assert_eq!(unbound.path_mtu(world.now), Some(1500), "by the routes");
        unbound.connect(None).unwrap();
        assert_eq!(unbound.path_mtu(world.now), None);
        world.a.set_link(world.now, world.a_interface, false).unwrap();
        assert_eq!(socket.path_mtu(world.now), None, "{own} to {far}");
    }
}

#[test]
fn a_socket_connects_to_what_has_a_way() {
    let mut world = World::new(&WireConfig::default());
    let socket = bind(&world, "[::]:0");
    for far in ["192.0.2.1:9", "[2001:db8::1]:9"] {
        assert_eq!(socket.connect(Some(address(far))), Err(SocketError::NetworkUnreachable));
        assert_eq!(socket.remote_addr(), None);
    }
    for near in ["[fd00::2]:9", "10.0.0.2:9", "127.0.0.1:9", "[::]:9", "0.0.0.0:9"] {
        assert_eq!(socket.connect(Some(address(near))), Ok(()), "{near}");
    }
    assert_eq!(socket.connect(None), Ok(()));
    // Whose first way is by IPv4 has no other until it has no peer.
    assert_eq!(socket.connect(Some(address("10.0.0.2:9"))), Ok(()));
    let by_v6 = Some(address("[fd00::2]:9"));
    assert_eq!(socket.connect(by_v6), Err(SocketError::AddressFamily));
    assert_eq!(send(&world, &socket, to("[fd00::2]:9")), Err(SocketError::AddressFamily));
    assert_eq!(socket.connect(Some(address("[::]:9"))), Ok(()));
    assert_eq!(socket.remote_addr(), Some(address("127.0.0.1:9")));
    assert_eq!(socket.connect(None), Ok(()));
    assert_eq!(socket.connect(by_v6), Ok(()));
    world.a.set_link(world.now, world.a_interface, false).unwrap();
    let lost = socket.connect(Some(address("10.0.0.2:9")));
    assert_eq!(lost, Err(SocketError::NetworkUnreachable));
    world.settle();
}

#[test]
fn a_datagram_counts_as_sent_when_it_was_taken() {
    for (far, unreachable, out, refused) in [
        ("10.0.0.2:9", "192.0.2.1:9", IpCounter::UdpOutDatagrams, IpCounter::UdpSndbufErrors),
        (
            "[fd00::2]:9",
            "[2001:db8::1]:9",
            IpCounter::Udp6OutDatagrams,
            IpCounter::Udp6SndbufErrors,
        ),
    ] {
        let world = World::new(&WireConfig { ring: 1, ..WireConfig::default() });
        let qdisc = "pfifo_fast limit 2".parse().unwrap();
        world.a.set_qdisc(world.now, world.a_interface, &qdisc).unwrap();
        let counted = || [out, refused].map(|counter| world.a.ip_counters().get(counter));
        let (first, second) = (bind(&world, "[::]:0"), bind(&world, "[::]:0"));
        let lost = send(&world, &first, to(unreachable));
        assert_eq!((lost, counted()), (Err(SocketError::NetworkUnreachable), [0, 0]));
        let taken = (0..10).take_while(|_| send(&world, &first, to(far)).is_ok()).count() as u64;
        assert!((2..5).contains(&taken), "{taken}");
        // It may be tried again, so it is not lost.
        assert_eq!(send(&world, &first, to(far)), Err(SocketError::WouldBlock));
        assert_eq!(counted(), [taken, 0]);
        assert_eq!(send(&world, &second, to(far)), Err(SocketError::NoBuffers));
        assert_eq!(counted(), [taken, 1]);
    }
}

#[test]
fn each_family_has_counters_of_its_own() {
    let of_v4 = [
        IpCounter::IpOutRequests,
        IpCounter::UdpOutDatagrams,
        IpCounter::IpFragOKs,
        IpCounter::IpFragCreates,
        IpCounter::IpReasmReqds,
        IpCounter::IpReasmOKs,
        IpCounter::UdpInDatagrams,
        IpCounter::UdpNoPorts,
    ];
    let of_v6 = [
        IpCounter::Ip6OutRequests,
        IpCounter::Udp6OutDatagrams,
        IpCounter::Ip6FragOKs,
        IpCounter::Ip6FragCreates,
        IpCounter::Ip6ReasmReqds,
        IpCounter::Ip6ReasmOKs,
        IpCounter::Udp6InDatagrams,
        IpCounter::Udp6NoPorts,
    ];
    for (host, own, other) in [("10.0.0.2", of_v4, of_v6), ("[fd00::2]", of_v6, of_v4)] {
        let mut world = World::new(&WireConfig::default());
        let server = world.b.bind_udp(address("[::]:53"), UdpOptions::default()).unwrap();
        let client = bind(&world, "[::]:0");
        let datagram = |port, len| {
            let to = Some(address(&format!("{host}:{port}")));
            SendDatagram::new(vec![1; len].into(), to)
        };
        send(&world, &client, datagram(53, 4000)).unwrap();
        send(&world, &client, datagram(54, 10)).unwrap();
        world.run(SECOND);
        assert_eq!(server.recv_from().unwrap().data.len(), 4000);
        let at = |counters: [IpCounter; 8]| {
            let both = [&world.a, &world.b].map(Stack::ip_counters);
            counters.map(|counter| both.iter().map(|one| one.get(counter)).sum::<u64>())
        };
        assert_eq!((at(own), at(other)), ([3, 2, 1, 3, 3, 1, 1, 1], [0; 8]), "{host}");
    }
}

#[test]
fn neighbours_are_forgotten_with_the_link() {
    let mut world = ethernet();
    let socket = bind(&world, "0.0.0.0:0");
    let permanent = address("10.0.0.9:0").ip();
    let interface = world.a_interface;
    world.a.add_neighbor(world.now, interface, permanent, [2, 0, 0, 0, 0, 9]).unwrap();
    let resolve = |world: &mut World| {
        send(world, &socket, to("10.0.0.2:9")).unwrap();
        world.run(SECOND);
        assert_eq!(world.a.neighbors(world.now).len(), 2);
    };
    let is_forgotten = |world: &World| {
        let left = world.a.neighbors(world.now);
        left.len() == 1 && left[0].1.state == NeighborState::Permanent
    };
    let set = |world: &World, status| {
        world.a.set_link_status(world.now, interface, status).unwrap();
    };
    resolve(&mut world);
    set(&world, LinkStatus::new(LinkState::Down));
    assert!(is_forgotten(&world), "the link is down");
    set(&world, LinkStatus::new(LinkState::Up));
    resolve(&mut world);
    let mut status = LinkStatus::new(LinkState::Up);
    status.address = Some([2, 0, 0, 0, 0, 1]);
    set(&world, status);
    assert!(!is_forgotten(&world), "the address is the same");
    world.a.set_link(world.now, interface, false).unwrap();
    assert!(is_forgotten(&world), "the interface is disabled");
    world.a.set_link(world.now, interface, true).unwrap();
    resolve(&mut world);
    status.address = Some([2, 0, 0, 0, 0, 7]);
    set(&world, status);
    assert!(is_forgotten(&world), "the station is another one");
}

#[test]
fn whoever_waits_at_an_interface_hears_that_its_device_is_gone() {
    let world = World::with_any_destination(&WireConfig::default());
    let device = common::device(&WireConfig::default(), 9, &Shared::default(), &Shared::default());
    let second = world.b.add_interface(world.now, device, &[]).unwrap();
    let wanted = [Some(world.b_interface), Some(second), None];
    let datagrams = wanted.map(|interface| {
        let options = UdpForwarderOptions { interface, ..UdpForwarderOptions::default() };
        world.b.forward_udp(options).unwrap()
    });
    let messages = wanted.map(|interface| {
        let options = IcmpOptions { interface, ..IcmpOptions::default() };
        world.b.open_icmp(options).unwrap()
    });
    let told = || {
        let of_udp = datagrams.each_ref().map(|one| one.recv_from().unwrap_err());
        let of_icmp = messages.each_ref().map(|one| one.recv().unwrap_err());
        assert_eq!(of_udp, of_icmp);
        of_udp
    };
    let quiet = SocketError::WouldBlock;
    let gone = LinkStatus::new(LinkState::Gone);
    world.b.set_link_status(world.now, world.b_interface, gone).unwrap();
    assert_eq!(told(), [DOWN, quiet, quiet]);
    assert_eq!(told(), [quiet; 3], "once");
    world.b.set_link_status(world.now, second, gone).unwrap();
    assert_eq!(told(), [quiet, DOWN, DOWN]);
    assert_eq!(told(), [quiet; 3]);
}
