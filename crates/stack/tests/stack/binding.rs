//! Which socket of several has an address and port, and which may have it beside others.

use super::address;
use super::common::{WireConfig, World};
use bytes::Bytes;
use neap_stack::route::{Route, RouteEntry};
use neap_stack::socket::SocketError;
use neap_stack::socket::udp::UdpHandle;
use neap_stack::stack::{BindOptions, ConnectOptions, ListenOptions, UdpOptions};
use neap_tcp::time::Nanos;

fn shared(world: &World, local: &str) -> UdpHandle {
    let options = UdpOptions { reuse_address: true, ..UdpOptions::default() };
    world.a.bind_udp(address(local), options).unwrap()
}

/// Sends a datagram from host b to `to`.
fn send(world: &mut World, socket: &UdpHandle, to: &str) {
    socket.send_to(world.now, Bytes::from_static(b"x"), Some(address(to))).unwrap();
    world.run(Nanos::from_millis(10));
}

fn received(socket: &UdpHandle) -> usize {
    core::iter::from_fn(|| socket.recv_from().ok()).count()
}

#[test]
fn of_equal_sockets_the_one_that_was_bound_last_gets_a_datagram() {
    let mut world = World::new(&WireConfig::default());
    let sender = world.b.bind_udp(address("10.0.0.2:9"), UdpOptions::default()).unwrap();
    let mut sockets = Vec::new();
    for count in 0..20 {
        sockets.push(shared(&world, "0.0.0.0:53"));
        send(&mut world, &sender, "10.0.0.1:53");
        assert_eq!(received(&sockets[count]), 1, "{count}");
    }
    // Whoever comes later may have the place of one that left.
    for left in [0, 5, 18, 10] {
        sockets.remove(left);
        sockets.push(shared(&world, "0.0.0.0:53"));
        send(&mut world, &sender, "10.0.0.1:53");
        assert_eq!(received(&sockets[19]), 1, "{left}");
    }
    sockets.pop();
    send(&mut world, &sender, "10.0.0.1:53");
    assert_eq!(received(&sockets[18]), 1);
}

#[test]
fn a_socket_of_ipv4_comes_before_one_of_both_families() {
    let mut world = World::new(&WireConfig::default());
    let sender = world.b.bind_udp(address("[::]:9"), UdpOptions::default()).unwrap();
    let v4 = shared(&world, "0.0.0.0:53");
    let later: Vec<_> = (0..8).map(|_| shared(&world, "[::]:53")).collect();
    send(&mut world, &sender, "10.0.0.1:53");
    assert_eq!(received(&v4), 1);
    send(&mut world, &sender, "[fd00::1]:53");
    assert_eq!(received(&later[7]), 1);
    // A connected one and one with the very address come before both.
    later[3].connect(Some(address("10.0.0.2:9"))).unwrap();
    send(&mut world, &sender, "10.0.0.1:53");
    assert_eq!(received(&later[3]), 1);
}

/// Host a with a second address, which host b reaches over the same wire.
fn with_second_address() -> World {
    let world = World::new(&WireConfig::default());
    world.a.add_address(world.a_interface, "10.0.0.9/32".parse().unwrap()).unwrap();
    world
}

#[test]
fn a_connected_socket_has_the_address_that_it_was_given() {
    let mut world = with_second_address();
    let peer = world.b.bind_udp(address("10.0.0.2:9"), UdpOptions::default()).unwrap();
    let socket = world.a.bind_udp(address("[::]:53"), UdpOptions::default()).unwrap();
    let ask = |world: &mut World| {
        for to in ["10.0.0.1:53", "10.0.0.9:53"] {
            send(world, &peer, to);
        }
        received(&socket)
    };
    assert_eq!(ask(&mut world), 2);
    socket.connect(Some(peer.local_addr())).unwrap();
    assert_eq!(socket.name(), address("10.0.0.1:53"));
    assert_eq!(ask(&mut world), 1, "what is sent to another address is not for it");
    // It stays, though connections to the peer begin elsewhere from now on.
    let interface = world.a_interface;
    let pref_src = Some("10.0.0.9".parse().unwrap());
    let route = Route { interface, gateway: None, mtu: None, pref_src };
    let prefix = "10.0.0.2/32".parse().unwrap();
    world.a.add_route(RouteEntry { prefix, metric: 0, route }).unwrap();
    let source = |world: &mut World| {
        let to = Some(peer.local_addr());
        socket.send_to(world.now, Bytes::from_static(b"x"), to).unwrap();
        world.run(Nanos::from_millis(10));
        peer.recv_from().unwrap().from
    };
    assert_eq!((socket.name(), source(&mut world)), (address("10.0.0.1:53"), socket.name()));
    socket.connect(Some(address("10.0.0.2:10"))).unwrap();
    assert_eq!(socket.name(), address("10.0.0.1:53"), "kept");
    socket.connect(None).unwrap();
    assert_eq!(socket.name(), address("[::]:53"));
    assert_eq!((ask(&mut world), source(&mut world)), (2, address("10.0.0.9:53")));
}

#[test]
fn a_socket_connected_to_its_own_host_does_not_reach_another() {
    let world = World::new(&WireConfig::default());
    let socket = world.a.bind_udp(address("0.0.0.0:53"), UdpOptions::default()).unwrap();
    socket.connect(Some(address("127.0.0.1:9"))).unwrap();
    let other = Some(address("10.0.0.2:9"));
    assert_eq!(socket.connect(other), Err(SocketError::InvalidArgument));
    socket.connect(None).unwrap();
    socket.connect(other).unwrap();
}

#[test]
fn connections_of_other_addresses_and_families_do_not_prevent_listening() {
    let mut world = World::new(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let local = Some(address("10.0.0.1:443"));
    let options = ConnectOptions { local, ..ConnectOptions::default() };
    let client = world.a.connect(world.now, listener.local_addr(), options).unwrap();
    world.run(Nanos::from_millis(10));
    let only_v6 = [true, false];
    let free = |world: &World| {
        let all = ["127.0.0.1:443", "10.0.0.1:443", "0.0.0.0:443", "[fd00::1]:443", "[::]:443"];
        all.into_iter()
            .flat_map(|to| only_v6.map(|only_v6| (to, only_v6)))
            .filter(|&(to, only_v6)| {
                let none = (ListenOptions::default(), BindOptions::default());
                let options = ListenOptions { reuse_address: false, only_v6, ..none.0 };
                let is_dual = to.starts_with("[::]") && !only_v6;
                let bound = world.a.bind_tcp(address(to), BindOptions { is_dual, ..none.1 });
                let may_bind = bound.is_ok();
                drop(bound);
                let listener = world.a.listen(address(to), options);
                assert_eq!(listener.is_ok(), may_bind, "{to}");
                listener.is_ok()
            })
            .map(|(to, only_v6)| format!("{to} {only_v6}"))
            .collect::<Vec<_>>()
    };
    let others = ["127.0.0.1:443 true", "127.0.0.1:443 false", "[fd00::1]:443 true"];
    let others: Vec<_> =
        others.into_iter().chain(["[fd00::1]:443 false", "[::]:443 true"]).collect();
    assert_eq!(free(&world), others);
    client.abort(world.now);
    world.run(Nanos::from_millis(10));
    assert_eq!(free(&world).len(), 10);
}

#[test]
fn a_chosen_port_is_one_that_the_address_does_not_share() {
    let mut world = World::new(&WireConfig::default());
    world.a.set_sysctl("net.ipv4.ip_local_port_range", "40000 40009").unwrap();
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let tcp = |to: &str| world.a.bind_tcp(address(to), BindOptions::default());
    let udp = |to: &str| world.a.bind_udp(address(to), UdpOptions::default());
    let taken = SocketError::AddressInUse;
    let bound: Vec<_> = (0..10).map(|_| tcp("127.0.0.1:0").unwrap()).collect();
    let sockets: Vec<_> = (0..10).map(|_| udp("127.0.0.1:0").unwrap()).collect();
    for to in ["127.0.0.1:0", "0.0.0.0:0"] {
        assert_eq!((tcp(to).unwrap_err(), udp(to).unwrap_err()), (taken, taken), "{to}");
    }
    for to in ["127.0.0.2:0", "[::1]:0"] {
        let port = tcp(to).unwrap().local_addr().port();
        assert!((40_000..40_010).contains(&port), "{to}");
        assert_eq!(udp(to).unwrap().local_addr().ip(), address(to).ip());
    }
    drop((bound, sockets));
    // A port that one gave back is found again.
    assert!(tcp("0.0.0.0:0").is_ok() && udp("0.0.0.0:0").is_ok());
    let connect = |world: &World| {
        let to = listener.local_addr();
        world.a.connect(world.now, to, ConnectOptions::default()).unwrap()
    };
    let clients: Vec<_> = (0..10).map(|_| connect(&world)).collect();
    world.run(Nanos::from_millis(10));
    let tcp = |to: &str| world.a.bind_tcp(address(to), BindOptions::default());
    let listen = |to: &str| world.a.listen(address(to), ListenOptions::default());
    assert_eq!((tcp("10.0.0.1:0").unwrap_err(), listen("0.0.0.0:0").unwrap_err()), (taken, taken));
    assert!(tcp("127.0.0.1:0").is_ok() && listen("127.0.0.1:0").is_ok());
    clients[3].abort(world.now);
    assert_eq!(tcp("10.0.0.1:0").unwrap().local_addr().port(), clients[3].local_addr().port());
}

#[test]
fn an_address_is_shared_with_connections_that_have_the_switch_too() {
    let mut world = World::new(&WireConfig::default());
    let shares = |world: &World, reuse_address| {
        let options = ListenOptions { reuse_address, ..ListenOptions::default() };
        let bind = BindOptions { reuse_address, ..BindOptions::default() };
        let listens = world.b.listen(address("0.0.0.0:80"), options).is_ok();
        assert_eq!(world.b.bind_tcp(address("10.0.0.2:80"), bind).is_ok(), listens);
        listens
    };
    let serve = |world: &mut World, reuse_address| {
        let options = ListenOptions { reuse_address, ..ListenOptions::default() };
        let listener = world.b.listen(address("10.0.0.2:80"), options).unwrap();
        let to = listener.local_addr();
        let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
        world.run(Nanos::from_millis(10));
        let (server, _) = listener.accept().unwrap();
        listener.close(world.now);
        (client, server)
    };
    let (of_one, one) = serve(&mut world, true);
    assert!(shares(&world, true) && !shares(&world, false));
    one.set_reuse(false);
    assert!(!shares(&world, true));
    one.set_reuse(true);
    assert!(shares(&world, true));
    // TIME-WAIT has what the connection had.
    one.close(world.now);
    world.run(Nanos::from_millis(10));
    of_one.close(world.now);
    world.run(Nanos::from_millis(10));
    assert_eq!(world.b.usage().tcp.time_wait, 1);
    one.set_reuse(false);
    assert!(shares(&world, true) && !shares(&world, false));
    world.run(Nanos::from_secs(61));
    assert!(shares(&world, false));
    let (_client, other) = serve(&mut world, false);
    assert!(!shares(&world, true));
    other.abort(world.now);
    assert!(shares(&world, true) && shares(&world, false));
    // A client has the switch that it was given.
    let listener = world.b.listen(address("10.0.0.2:81"), ListenOptions::default()).unwrap();
    for reuse_address in [false, true] {
        let options = ConnectOptions { reuse_address, ..ConnectOptions::default() };
        let client = world.a.connect(world.now, listener.local_addr(), options).unwrap();
        let own = client.local_addr();
        assert_eq!(world.a.listen(own, ListenOptions::default()).is_ok(), reuse_address);
    }
}

#[test]
fn who_connects_from_a_port_has_it_as_one_who_binds_it() {
    let mut world = with_second_address();
    let servers: Vec<_> = ["10.0.0.2:7", "10.0.0.2:8"]
        .map(|to| world.b.listen(address(to), ListenOptions::default()).unwrap())
        .into();
    let from = |world: &World, local: &str, server: usize, reuse_address| {
        let local = Some(address(local));
        let options = ConnectOptions { local, reuse_address, ..ConnectOptions::default() };
        world.a.connect(world.now, servers[server].local_addr(), options)
    };
    let taken = Some(SocketError::AddressInUse);
    // The port of a listener, which nobody shares, and that of a bound socket.
    let listener = world.a.listen(address("0.0.0.0:5557"), ListenOptions::default()).unwrap();
    for reuse_address in [false, true] {
        assert_eq!(from(&world, "10.0.0.1:5557", 0, reuse_address).err(), taken);
    }
    listener.close(world.now);
    let bind = BindOptions { reuse_address: true, ..BindOptions::default() };
    let bound = world.a.bind_tcp(address("10.0.0.1:5557"), bind).unwrap();
    assert_eq!(from(&world, "10.0.0.1:5557", 0, false).err(), taken);
    assert!(from(&world, "10.0.0.1:5557", 0, true).is_ok());
    // Another address has ports of its own.
    assert!(from(&world, "10.0.0.9:5557", 0, false).is_ok());
    drop(bound);
    world.run(Nanos::from_millis(10));
    // That of a connection, and what is left of one.
    let alone = from(&world, "10.0.0.1:5555", 0, false).unwrap();
    for reuse_address in [false, true] {
        assert_eq!(from(&world, "10.0.0.1:5555", 1, reuse_address).err(), taken);
    }
    let shared = from(&world, "10.0.0.1:5556", 0, true).unwrap();
    assert_eq!(from(&world, "10.0.0.1:5556", 1, false).err(), taken);
    let beside = from(&world, "10.0.0.1:5556", 1, true).unwrap();
    world.run(Nanos::from_millis(10));
    assert_eq!(from(&world, "10.0.0.1:5556", 1, true).err(), taken, "the same ends");
    beside.abort(world.now);
    alone.close(world.now);
    shared.close(world.now);
    world.run(Nanos::from_millis(10));
    while let Ok((server, _)) = servers[0].accept() {
        server.close(world.now);
    }
    world.run(Nanos::from_millis(10));
    assert_eq!(world.a.usage().tcp.time_wait, 2);
    assert_eq!(from(&world, "10.0.0.1:5555", 1, true).err(), taken);
    assert_eq!(from(&world, "10.0.0.1:5556", 1, false).err(), taken);
    assert!(from(&world, "10.0.0.1:5556", 1, true).is_ok());
}

#[test]
fn a_bound_socket_connects_from_its_port_whatever_shares_it() {
    let mut world = World::new(&WireConfig::default());
    let to = ["10.0.0.2:7", "10.0.0.2:8"].map(address);
    let _servers = to.map(|to| world.b.listen(to, ListenOptions::default()).unwrap());
    let bind = BindOptions { reuse_address: true, ..BindOptions::default() };
    let local = address("10.0.0.1:5555");
    let [one, other] = [(); 2].map(|()| world.a.bind_tcp(local, bind).unwrap());
    let options = || ConnectOptions { local: Some(local), ..ConnectOptions::default() };
    let _first = one.connect(world.now, to[0], options()).unwrap();
    let second = other.connect(world.now, to[0], options()).map(drop);
    assert_eq!(second, Err(SocketError::AddressInUse), "the same ends");
    let second = other.connect(world.now, to[1], options()).unwrap();
    world.run(Nanos::from_millis(10));
    assert_eq!(second.local_addr(), local);
    assert_eq!(world.b.usage().tcp.connections, 2);
}
