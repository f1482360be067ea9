//! What a listing of sockets says (`ss`): states, queues, timers and drops.

use super::common::{WireConfig, World};
use super::{SECOND, address, connect};
use bytes::Bytes;
use neap_stack::socket::udp::SendDatagram;
use neap_stack::stack::{
    BucketInfo, ConnectOptions, ListenOptions, Stack, TcpForwarderOptions, UdpOptions,
};
use neap_tcp::info::{Timer, TimerKind};
use neap_tcp::options::SocketOption;
use neap_tcp::state::State;
use neap_tcp::time::Nanos;

/// The timer of the only connection.
fn timer(world: &World, stack: &Stack) -> Option<Timer> {
    stack.sockets(world.now).flows[0].timer
}

fn bucket(world: &World, stack: &Stack) -> Option<BucketInfo> {
    stack.sockets(world.now).buckets.first().cloned()
}

#[test]
fn a_connection_waits_for_what_ss_says() {
    let mut world = World::new(&WireConfig::default());
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    world.run(SECOND);
    assert_eq!(timer(&world, &world.a), None, "nothing is in flight");
    client.set_option(world.now, SocketOption::KeepAlive(true)).unwrap();
    let keepalive = timer(&world, &world.a).unwrap();
    assert_eq!((keepalive.kind, keepalive.tries), (TimerKind::Keepalive, 0));
    assert!(keepalive.left <= Nanos::from_secs(7200) && keepalive.left > Nanos::from_secs(7000));
    // Nothing comes through: timeouts in a row.
    world.ab.lock().unwrap().filter = Some(Box::new(|_| false));
    client.write(world.now, b"lost").unwrap();
    world.run(SECOND);
    let lost = timer(&world, &world.a).unwrap();
    assert_eq!(lost.kind, TimerKind::Retransmit);
    assert!(lost.tries >= 1 && lost.left > Nanos::ZERO, "{lost:?}");
    world.ab.lock().unwrap().filter = None;
    world.run(Nanos::from_secs(10));
    assert_eq!(timer(&world, &world.a).unwrap().kind, TimerKind::Keepalive);
    // A reader that does not read closes its window.
    let window = vec![0; 1 << 20];
    while client.write(world.now, &window).is_ok() {
        world.run(SECOND);
    }
    world.run(Nanos::from_secs(5));
    let closed = timer(&world, &world.a).unwrap();
    assert_eq!(closed.kind, TimerKind::Persist, "{closed:?}");
    drop(server);
}

#[test]
fn connections_without_a_socket_are_listed() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let forwarder = world.b.forward_tcp(TcpForwarderOptions::default()).unwrap();
    let open = |world: &World, to| {
        world.a.connect(world.now, address(to), ConnectOptions::default()).unwrap()
    };
    let pending = open(&world, "192.0.2.7:80");
    world.run(Nanos::from_millis(10));
    let listed = bucket(&world, &world.b).unwrap();
    assert_eq!((listed.local, listed.remote), (address("192.0.2.7:80"), pending.local_addr()));
    assert_eq!((listed.state, listed.timer), (State::SynReceived, None));
    drop(forwarder);
    pending.abort(world.now);
    world.run(Nanos::from_millis(10));
    assert_eq!(bucket(&world, &world.b), None);

    // The SYN passes, nothing else does.
    let mut syns = 0;
    world.ab.lock().unwrap().filter = Some(Box::new(move |_| {
        syns += 1;
        syns == 1
    }));
    let client = open(&world, "10.0.0.2:80");
    world.run(Nanos::from_millis(10));
    let tries = |world: &World| {
        let half_open = bucket(world, &world.b).unwrap();
        assert_eq!((half_open.state, half_open.remote), (State::SynReceived, client.local_addr()));
        let timer = half_open.timer.unwrap();
        assert!(timer.kind == TimerKind::Retransmit && timer.left > Nanos::ZERO, "{timer:?}");
        timer.tries
    };
    assert_eq!(tries(&world), 0);
    world.run(SECOND + SECOND / 2);
    assert_eq!(tries(&world), 1);
    world.ab.lock().unwrap().filter = None;
    world.run(Nanos::from_secs(10));
    let listed = world.b.sockets(world.now);
    assert_eq!((listed.buckets.len(), listed.listeners[0].queued), (0, 1));

    let (server, _) = listener.accept().unwrap();
    client.shutdown_write(world.now);
    world.run(Nanos::from_millis(10));
    server.shutdown_write(world.now);
    world.run(Nanos::from_millis(10));
    drop((client, server));
    world.run(Nanos::from_millis(10));
    let waiting = bucket(&world, &world.a).unwrap();
    assert_eq!(waiting.state, State::TimeWait);
    let timer = waiting.timer.unwrap();
    assert_eq!(timer.kind, TimerKind::TimeWait);
    assert!(timer.left <= Nanos::from_secs(60) && timer.left > Nanos::from_secs(59), "{timer:?}");
}

#[test]
fn datagrams_that_find_no_room_are_counted() {
    let mut world = World::new(&WireConfig::default());
    let server = world.b.bind_udp(address("[::]:53"), UdpOptions::default()).unwrap();
    let client = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    server.set_buffers(Some(4096), None);
    for _ in 0..100 {
        let to = Some(address("10.0.0.2:53"));
        let datagram = SendDatagram::new(Bytes::from_static(&[0; 1000]), to);
        client.send_batch(world.now, [datagram]).1.unwrap();
        world.run(Nanos::from_millis(5));
    }
    let listed = &world.b.sockets(world.now).udp[0];
    assert!(listed.is_dual && listed.remote.is_none(), "{listed:?}");
    assert!(listed.rmem_alloc > 0 && listed.rmem_alloc <= listed.rcvbuf, "{listed:?}");
    let received = core::iter::from_fn(|| server.recv_from().ok()).count() as u64;
    assert_eq!(listed.drops + received, 100);
    let listed = &world.b.sockets(world.now).udp[0];
    assert_eq!(listed.rmem_alloc, 0);
}

#[test]
fn a_connected_datagram_socket_is_listed_with_the_address_that_it_sends_from() {
    let world = World::new(&WireConfig::default());
    let socket = world.a.bind_udp(address("[::]:9"), UdpOptions::default()).unwrap();
    let shown = || {
        let listed = &world.a.sockets(world.now).udp[0];
        (listed.local, listed.is_dual, listed.remote)
    };
    assert_eq!(shown(), (address("[::]:9"), true, None));
    let remote = address("10.0.0.2:53");
    socket.connect(Some(remote)).unwrap();
    assert_eq!(shown(), (address("10.0.0.1:9"), false, Some(remote)));
    socket.connect(None).unwrap();
    assert_eq!(shown(), (address("[::]:9"), true, None));
}
