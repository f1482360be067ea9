//! Connections that are opened anew where others have just ended, and ports that run out.

use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::stack::{ConnectOptions, ListenOptions};
use neap_tcp::counters::Counter;
use neap_tcp::time::Nanos;

use crate::common::{WireConfig, World};
use crate::{SECOND, address, pattern, transfer};

#[test]
fn a_reset_and_a_new_syn_may_come_in_one_batch() {
    let mut world = World::new(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let options =
        || ConnectOptions { local: Some(address("10.0.0.1:5000")), ..ConnectOptions::default() };
    for round in 0..3u64 {
        let client = world.a.connect(world.now, listener.local_addr(), options()).unwrap();
        // Far less than the SYN's first timeout.
        world.run(Nanos::from_millis(100));
        assert!(client.readiness().bits().contains(Ready::WRITABLE), "round {round}");
        assert_eq!(world.b.tcp_counter(Counter::PassiveOpens), round + 1);
        client.abort(world.now);
    }
}

#[test]
fn a_port_is_searched_once_where_none_is_free() {
    let mut world = World::new(&WireConfig::default());
    world.a.set_sysctl("net.ipv4.ip_local_port_range", "40000 40003").unwrap();
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let connect = |world: &mut World| {
        let to = listener.local_addr();
        world.a.connect(world.now, to, ConnectOptions::default())
    };
    let clients: Vec<_> = (0..4).map(|_| connect(&mut world).unwrap()).collect();
    for _ in 0..3 {
        assert_eq!(connect(&mut world).unwrap_err(), SocketError::AddressNotAvailable);
    }
    world.run(SECOND);
    // Ports that a connection gives back are found, and so are those of a wider range.
    let port = clients[2].local_addr().port();
    clients[2].abort(world.now);
    let fifth = connect(&mut world).unwrap();
    assert_eq!(fifth.local_addr().port(), port);
    assert_eq!(connect(&mut world).unwrap_err(), SocketError::AddressNotAvailable);
    world.a.set_sysctl("net.ipv4.ip_local_port_range", "40000 40004").unwrap();
    let sixth = connect(&mut world).unwrap();
    assert_eq!(sixth.local_addr().port(), 40_004);
    world.run(SECOND);
    assert_eq!(world.a.usage().tcp.connections, 5);
}

/// Clients of the host itself that give up before they hear of the SYN-ACK.
#[test]
fn half_open_connections_of_the_host_itself_end_with_their_clients() {
    let mut world = World::new(&WireConfig::default());
    let listener = world.a.listen(address("10.0.0.1:80"), ListenOptions::default()).unwrap();
    for _ in 0..500 {
        let to = listener.local_addr();
        let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
        client.abort(world.now);
    }
    world.run(Nanos::from_millis(100));
    let usage = world.a.usage().tcp;
    assert_eq!((usage.connections, usage.requests, usage.waiting), (0, 0, 0));
}

#[test]
fn a_port_in_time_wait_is_opened_again_by_a_new_syn() {
    let mut world = World::new(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let to = listener.local_addr();
    let options =
        || ConnectOptions { local: Some(address("10.0.0.1:5000")), ..ConnectOptions::default() };
    for round in 0..3u64 {
        let client = world.a.connect(world.now, to, options()).unwrap();
        let again = world.a.connect(world.now, to, options());
        assert_eq!(again.unwrap_err(), SocketError::AddressInUse);
        world.run(SECOND);
        let (server, _) = listener.accept().unwrap();
        transfer(&mut world, &client, &server, &pattern(10_000));
        server.close(world.now);
        world.run(SECOND);
        client.close(world.now);
        world.run(SECOND);
        assert_eq!(world.b.usage().tcp.time_wait, 1);
        assert_eq!(world.a.usage().tcp.connections, 0);
        assert_eq!(world.b.tcp_counter(Counter::PassiveOpens), round + 1);
    }
}
