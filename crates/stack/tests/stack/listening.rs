//! Listeners: their queues, half-open connections, and their end.

use neap_stack::drop_reason::DropReason;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions};
use neap_tcp::connection::{ConnectionError, ReadError};
use neap_tcp::counters::Counter;
use neap_tcp::time::Nanos;

use crate::common::{WireConfig, World, config};
use crate::{SECOND, address, connect_many, pattern, transfer};

#[test]
fn a_full_accept_queue_holds_handshakes_back() {
    let mut world = World::new(&WireConfig::default());
    let options = ListenOptions { backlog: 2, ..ListenOptions::default() };
    let listener = world.b.listen(address("10.0.0.2:80"), options).unwrap();
    let to = listener.local_addr();
    let clients: Vec<_> = (0..6)
        .map(|_| world.a.connect(world.now, to, ConnectOptions::default()).unwrap())
        .collect();
    world.run(Nanos::from_millis(100));
    assert_eq!(listener.queued().1, 3, "backlog and one, as in Linux");
    assert!(world.b.tcp_counter(Counter::ListenOverflows) > 0);
    assert!(world.b.drops().get(DropReason::ListenerFull) > 0);
    let mut accepted = Vec::new();
    world.run_until(Nanos::from_secs(30), |_| {
        while let Ok(pair) = listener.accept() {
            accepted.push(pair);
        }
        accepted.len() == clients.len()
    });
    assert_eq!(accepted.len(), 6, "retransmissions complete the handshakes once there is room");
}

#[test]
fn closing_a_listener_resets_its_children() {
    let mut world = World::new(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let to = listener.local_addr();
    let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
    world.run(SECOND);
    assert_eq!(listener.queued(), (0, 1));
    drop(listener);
    world.run(SECOND);
    assert_eq!(client.read(world.now, &mut [0; 1]), Err(ReadError::Failed(ConnectionError::Reset)));
    assert_eq!(world.b.usage().names, 0);
}

#[test]
fn a_syn_queue_that_overflows_speaks_in_cookies() {
    let mut server = config(2);
    server.config.tcp_max_syn_backlog = 1;
    let mut world = World::with(&WireConfig::default(), config(1), server);
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let (clients, servers) = connect_many(&mut world, &listener, 20);
    assert!(world.b.tcp_counter(Counter::SyncookiesRecv) >= 18);
    for client in &clients {
        let pair = servers.iter().find(|(_, remote)| *remote == client.local_addr());
        transfer(&mut world, client, &pair.unwrap().0, &pattern(10_000));
    }
}

#[test]
fn half_open_connections_are_asked_again_and_given_up() {
    let mut world = World::new(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    // The SYN passes, nothing else does: the client never answers.
    let mut syns = 0;
    world.ab.lock().unwrap().filter = Some(Box::new(move |_| {
        syns += 1;
        syns == 1
    }));
    let to = listener.local_addr();
    let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
    world.run(Nanos::from_millis(10));
    assert_eq!(listener.queued(), (1, 0));
    client.abort(world.now);
    world.run(Nanos::from_secs(120));
    assert_eq!(listener.queued(), (0, 0));
    let sent = world.ba.lock().unwrap().sent.len();
    assert_eq!(sent, 6, "one SYN-ACK and tcp_synack_retries");
}

/// `N` connections from `a` to this listener of `b`, of which nothing but the SYNs has arrived.
fn silent_clients<const N: usize>(world: &mut World, listener: &ListenerHandle) -> [TcpHandle; N] {
    let mut packets = 0;
    world.ab.lock().unwrap().filter = Some(Box::new(move |_| {
        packets += 1;
        packets <= N
    }));
    let to = listener.local_addr();
    let connect = |_| world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
    let clients = core::array::from_fn(connect);
    world.run(Nanos::from_millis(10));
    clients
}

#[test]
fn half_open_connections_are_given_up_earlier_where_they_take_more_than_half_of_the_queue() {
    const CLIENTS: usize = 12;
    let mut world = World::new(&WireConfig::default());
    world.b.set_sysctl("net.ipv4.tcp_max_syn_backlog", "16").unwrap();
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    for client in silent_clients::<CLIENTS>(&mut world, &listener) {
        client.abort(world.now);
    }
    world.run(Nanos::from_secs(6));
    assert_eq!(listener.queued(), (CLIENTS, 0), "after two repetitions");
    world.run(Nanos::from_secs(2));
    assert_eq!(listener.queued(), (8, 0), "half of the queue");
    world.run(Nanos::from_secs(120));
    assert_eq!(listener.queued(), (0, 0));
    let sent = world.ba.lock().unwrap().sent.len();
    assert_eq!(sent, 3 * CLIENTS + 3 * 8, "the others are asked tcp_synack_retries times");
}

#[test]
fn a_slow_client_is_waited_for_where_the_accept_queue_alone_is_short() {
    let mut world = World::new(&WireConfig::default());
    let options = ListenOptions { backlog: 8, ..ListenOptions::default() };
    let listener = world.b.listen(address("10.0.0.2:80"), options).unwrap();
    let [slow, others @ ..] = silent_clients::<9>(&mut world, &listener);
    for client in &others {
        client.abort(world.now);
    }
    world.run(Nanos::from_secs(6));
    assert_eq!(listener.queued(), (9, 0));
    world.ab.lock().unwrap().filter = None;
    world.run(Nanos::from_secs(2));
    assert_eq!(listener.accept().unwrap().0.remote_addr(), slow.local_addr(), "SYN-ACK 4");
}
