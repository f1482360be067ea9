//! Connections that are opened anew where others have just ended, and ports that run out.

use core::any::Any;
use neap_stack::drop_reason::DropReason;
use neap_stack::socket::SocketError;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{BindOptions, ConnectOptions, ListenOptions, Stack, StackConfig};
use neap_tcp::congestion::{AckSample, CongestionControl, CongestionEvent, Window};
use neap_tcp::counters::Counter;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::{Instant, Nanos};
use std::sync::{Arc, Mutex, mpsc};

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
fn options_out_of_range_and_unknown_controllers_open_nothing() {
    let world = World::new(&WireConfig::default());
    let sound = SocketOptions::default();
    let bad = SocketOptions { keepalive_idle: Some(Nanos::ZERO), ..sound.clone() };
    let unknown = SocketOptions { congestion: Some("nosuch"), ..sound.clone() };
    let refused = Some(SocketError::InvalidArgument);
    let (peer, own) = (address("10.0.0.1:80"), address("10.0.0.2:80"));
    for bad in [bad, unknown] {
        for (options, options_v4) in [(bad.clone(), None), (sound.clone(), Some(bad.clone()))] {
            let options = ListenOptions { options, options_v4, ..ListenOptions::default() };
            assert_eq!(world.b.listen(own, options).err(), refused);
        }
        let options = ConnectOptions { options: bad, ..ConnectOptions::default() };
        assert_eq!(world.b.connect(world.now, peer, options).err(), refused);
    }
}

#[test]
fn a_handshake_that_leads_to_no_connection_is_counted() {
    let mut world = World::new(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let unknown = SocketOptions { congestion: Some("nosuch"), ..SocketOptions::default() };
    listener.set_options(unknown, None);
    let _client =
        world.a.connect(world.now, listener.local_addr(), ConnectOptions::default()).unwrap();
    world.run(Nanos::from_millis(100));
    assert_eq!(listener.accept().err(), Some(SocketError::WouldBlock));
    assert_eq!(world.b.tcp_counter(Counter::ListenDrops), 1);
    assert_eq!(world.b.drops().get(DropReason::ListenerFull), 1);
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

/// Host a has one port for connections; it connects from it to `listener` and closes first. When
/// that port may be had again is asked every 10 ms. Returns the connections in TIME-WAIT and the
/// milliseconds until then.
fn time_until_reuse(world: &mut World, listener: &ListenerHandle) -> (usize, Option<u64>) {
    let to = listener.local_addr();
    world.a.set_sysctl("net.ipv4.ip_local_port_range", "40000 40000").unwrap();
    let connect = |world: &World| world.a.connect(world.now, to, ConnectOptions::default());
    let client = connect(world).unwrap();
    world.run(Nanos::from_millis(5));
    let (server, _) = listener.accept().unwrap();
    client.close(world.now);
    world.run(Nanos::from_millis(5));
    server.close(world.now);
    world.run(Nanos::from_millis(5));
    let waiting = world.a.usage().tcp.time_wait;
    for ms in 1..=2000 {
        match connect(world) {
            Ok(next) => {
                assert_eq!(next.local_addr().port(), 40_000);
                world.run(Nanos::from_millis(5));
                let (server, _) = listener.accept().unwrap();
                transfer(world, &next, &server, &pattern(10_000));
                return (waiting, Some(ms * 10));
            }
            Err(error) => assert_eq!(error, SocketError::AddressNotAvailable),
        }
        world.run(Nanos::from_millis(10));
    }
    (waiting, None)
}

fn listen_on(stack: &Stack, to: &str) -> ListenerHandle {
    stack.listen(address(to), ListenOptions::default()).unwrap()
}

#[test]
fn a_port_in_time_wait_is_had_again_on_the_loopback_after_a_second() {
    for to in ["127.0.0.1:80", "[::1]:80"] {
        let mut world = World::new(&WireConfig::default());
        let listener = listen_on(&world.a, to);
        let (waiting, time) = time_until_reuse(&mut world, &listener);
        assert_eq!(waiting, 1);
        assert!((980..=1030).contains(&time.expect("within 20 s")), "{time:?}");
        assert_eq!(world.a.usage().tcp.time_wait, 0);
        assert_eq!(world.a.tcp_counter(Counter::TimeWaitRecycled), 1);
    }
}

#[test]
fn a_port_in_time_wait_towards_another_host_is_had_again_if_tcp_tw_reuse_says_so() {
    let time = |sysctls: &[(&str, &str)]| {
        let mut world = World::new(&WireConfig::default());
        for (name, value) in sysctls {
            world.a.set_sysctl(name, value).unwrap();
        }
        let listener = listen_on(&world.b, "10.0.0.2:80");
        let (waiting, time) = time_until_reuse(&mut world, &listener);
        assert_eq!(waiting, 1);
        let recycled = world.a.tcp_counter(Counter::TimeWaitRecycled);
        assert_eq!(recycled, u64::from(time.is_some()));
        time
    };
    let on = ("net.ipv4.tcp_tw_reuse", "1");
    assert_eq!(time(&[]), None);
    assert_eq!(time(&[("net.ipv4.tcp_tw_reuse", "0")]), None);
    let second = time(&[on]).expect("within 20 s");
    assert!((980..=1030).contains(&second), "{second}");
    let later = time(&[on, ("net.ipv4.tcp_tw_reuse_delay", "5000")]).expect("within 20 s");
    assert!((4980..=5030).contains(&later), "{later}");
    assert_eq!(time(&[on, ("net.ipv4.tcp_timestamps", "0")]), None, "nothing tells old segments");
}

#[test]
fn who_shares_a_port_in_time_wait_connects_from_it_at_once() {
    let mut world = World::new(&WireConfig::default());
    let listener = listen_on(&world.b, "10.0.0.2:80");
    let local = Some(address("10.0.0.1:5000"));
    for round in 0..3 {
        let options = ConnectOptions { local, reuse_address: true, ..ConnectOptions::default() };
        let client = world.a.connect(world.now, listener.local_addr(), options).unwrap();
        world.run(Nanos::from_millis(5));
        assert_eq!(world.a.tcp_counter(Counter::TimeWaitRecycled), round);
        let (server, _) = listener.accept().unwrap();
        transfer(&mut world, &client, &server, &pattern(10_000));
        client.close(world.now);
        world.run(Nanos::from_millis(5));
        server.close(world.now);
        world.run(Nanos::from_millis(5));
        assert_eq!(world.a.usage().tcp.time_wait, 1);
    }
    let options = ConnectOptions { local, ..ConnectOptions::default() };
    let alone = world.a.connect(world.now, listener.local_addr(), options);
    assert_eq!(alone.unwrap_err(), SocketError::AddressInUse);
}

#[test]
fn a_host_that_connects_to_itself_all_the_time_does_not_run_out_of_ports() {
    let mut world = World::new(&WireConfig::default());
    world.a.set_sysctl("net.ipv4.ip_local_port_range", "40000 40099").unwrap();
    let listener = listen_on(&world.a, "127.0.0.1:80");
    let mut refused = 0;
    for _ in 0..2000 {
        match world.a.connect(world.now, listener.local_addr(), ConnectOptions::default()) {
            Ok(client) => {
                world.run(Nanos::from_millis(1));
                let (server, _) = listener.accept().unwrap();
                client.close(world.now);
                world.run(Nanos::from_millis(1));
                server.close(world.now);
            }
            Err(error) => {
                assert_eq!(error, SocketError::AddressNotAvailable);
                refused += 1;
            }
        }
        world.run(Nanos::from_millis(10));
    }
    assert!(refused < 200, "100 ports, and a second for each: {refused}");
    assert!(world.a.tcp_counter(Counter::TimeWaitRecycled) > 1500);
}

#[test]
fn a_port_that_a_connection_was_given_is_not_chosen_for_another() {
    // `__inet_hash_connect` skips the buckets of bound sockets.
    for reuse_address in [false, true] {
        let mut world = World::new(&WireConfig::default());
        world.a.set_sysctl("net.ipv4.ip_local_port_range", "40000 40001").unwrap();
        let connect = |world: &World, local: Option<&str>, port: u16| {
            let local = local.map(address);
            let options = ConnectOptions { local, reuse_address, ..ConnectOptions::default() };
            let to = address(&format!("10.0.0.2:{port}"));
            world.a.connect(world.now, to, options)
        };
        let given = connect(&world, Some("10.0.0.1:40000"), 7).unwrap();
        let chosen = connect(&world, None, 8).unwrap();
        assert_eq!(chosen.local_addr().port(), 40001);
        let refused = Err(SocketError::AddressNotAvailable);
        assert_eq!(connect(&world, None, 8).map(drop), refused);
        // What was chosen is shared by connections to other ends.
        let other = connect(&world, None, 9).unwrap();
        assert_eq!(other.local_addr().port(), 40001);
        given.abort(world.now);
        world.settle();
        assert_eq!(connect(&world, None, 8).unwrap().local_addr().port(), 40000);
    }
}

#[test]
fn a_given_port_is_not_chosen_before_nothing_is_left_of_its_connection() {
    // Owners of an `inet_bind_bucket` keep it as it is: accepted connections and those in TIME-WAIT
    // are owners too (`__inet_inherit_port`, `inet_twsk_bind_unhash`).
    let of_connection = |world: &mut World| {
        let listener = listen_on(&world.b, "10.0.0.2:7");
        let local = Some(address("10.0.0.1:40000"));
        let options = ConnectOptions { local, ..ConnectOptions::default() };
        let own = world.a.connect(world.now, listener.local_addr(), options).unwrap();
        world.run(Nanos::from_millis(5));
        (own, listener.accept().unwrap().0)
    };
    let of_bound_socket = |world: &mut World| {
        let listener = listen_on(&world.b, "10.0.0.2:7");
        let local = address("10.0.0.1:40000");
        let bound = world.a.bind_tcp(local, BindOptions::default()).unwrap();
        let options = ConnectOptions { local: Some(local), ..ConnectOptions::default() };
        let own = bound.connect(world.now, listener.local_addr(), options).unwrap();
        world.run(Nanos::from_millis(5));
        (own, listener.accept().unwrap().0)
    };
    let of_listener = |world: &mut World| {
        let listener = listen_on(&world.a, "10.0.0.1:40000");
        let options = ConnectOptions::default();
        let peer = world.b.connect(world.now, listener.local_addr(), options).unwrap();
        world.run(Nanos::from_millis(5));
        (listener.accept().unwrap().0, peer)
    };
    type Open<'a> = &'a dyn Fn(&mut World) -> (TcpHandle, TcpHandle);
    let ways: [(&str, Open<'_>); 3] =
        [("given", &of_connection), ("bound", &of_bound_socket), ("accepted", &of_listener)];
    for (way, open) in ways {
        let mut world = World::new(&WireConfig::default());
        world.a.set_sysctl("net.ipv4.ip_local_port_range", "40000 40000").unwrap();
        let chosen = |world: &World| {
            let to = address("10.0.0.2:8");
            let opened = world.a.connect(world.now, to, ConnectOptions::default());
            opened.map(|one| one.local_addr().port())
        };
        let refused = Err(SocketError::AddressNotAvailable);
        let (own, peer) = open(&mut world);
        assert_eq!(chosen(&world), refused, "{way}: open");
        own.close(world.now);
        drop(own);
        assert_eq!(chosen(&world), refused, "{way}: FIN-WAIT-1");
        world.run(Nanos::from_millis(5));
        assert_eq!(chosen(&world), refused, "{way}: FIN-WAIT-2");
        peer.close(world.now);
        world.run(Nanos::from_millis(5));
        assert_eq!(world.a.usage().tcp.time_wait, 1);
        assert_eq!(chosen(&world), refused, "{way}: TIME-WAIT");
        world.run(Nanos::from_secs(61));
        assert_eq!(world.a.usage().tcp.time_wait, 0);
        assert_eq!(chosen(&world), Ok(40000), "{way}");
    }
}

#[test]
fn a_port_is_chosen_again_when_nothing_is_left_of_those_that_it_was_given_to() {
    // The last owner that `connect` did not bind takes the state of the bucket with it, and others
    // may stay (`inet_bind2_bucket_destroy`).
    let mut world = World::new(&WireConfig::default());
    world.a.add_address(world.a_interface, "10.0.0.9/32".parse().unwrap()).unwrap();
    world.a.set_sysctl("net.ipv4.ip_local_port_range", "40000 40000").unwrap();
    let connect = |world: &World, local: Option<&str>, port: u16| {
        let local = local.map(address);
        let options = ConnectOptions { local, ..ConnectOptions::default() };
        world.a.connect(world.now, address(&format!("10.0.0.2:{port}")), options)
    };
    let port = |world: &World, port| connect(world, None, port).map(|one| one.local_addr().port());
    let refused = Err(SocketError::AddressNotAvailable);
    let listeners = ["10.0.0.2:7", "10.0.0.2:9"].map(|to| listen_on(&world.b, to));
    let long = connect(&world, None, 7).unwrap();
    let given = connect(&world, Some("10.0.0.9:40000"), 9).unwrap();
    assert_eq!(port(&world, 8), refused);
    given.abort(world.now);
    assert_eq!(port(&world, 8), Ok(40_000), "it was reset");

    let given = connect(&world, Some("10.0.0.9:40000"), 9).unwrap();
    given.set_reuse(true);
    world.run(Nanos::from_millis(5));
    let (peer, _) = listeners[1].accept().unwrap();
    given.close(world.now);
    world.run(Nanos::from_millis(5));
    peer.close(world.now);
    world.run(Nanos::from_millis(5));
    assert_eq!(world.a.usage().tcp.time_wait, 1);
    assert_eq!(port(&world, 8), refused, "TIME-WAIT");
    world.run(Nanos::from_secs(61));
    assert_eq!(world.a.usage().tcp.time_wait, 0);
    assert_eq!(port(&world, 8), Ok(40_000), "TIME-WAIT is over");
    drop(long);
}

#[test]
fn a_port_in_time_wait_is_had_again_where_a_listener_had_it_meanwhile() {
    let mut world = World::new(&WireConfig::default());
    world.a.add_address(world.a_interface, "10.0.0.9/32".parse().unwrap()).unwrap();
    world.a.set_sysctl("net.ipv4.tcp_tw_reuse", "1").unwrap();
    world.a.set_sysctl("net.ipv4.ip_local_port_range", "40000 40001").unwrap();
    let server = listen_on(&world.b, "10.0.0.2:80");
    let to = server.local_addr();
    let connect = |world: &World| world.a.connect(world.now, to, ConnectOptions::default());
    let refused = |world: &World| {
        assert_eq!(connect(world).map(drop), Err(SocketError::AddressNotAvailable));
    };
    let client = connect(&world).unwrap();
    let port = client.local_addr().port();
    world.run(Nanos::from_millis(5));
    let (peer, _) = server.accept().unwrap();
    client.close(world.now);
    world.run(Nanos::from_millis(5));
    peer.close(world.now);
    world.run(Nanos::from_millis(5));
    assert_eq!(world.a.usage().tcp.time_wait, 1);
    let listener = listen_on(&world.a, &format!("10.0.0.9:{port}"));
    let _other = connect(&world).unwrap();
    refused(&world);
    listener.close(world.now);
    refused(&world);
    world.run(Nanos::from_millis(1100));
    assert_eq!(connect(&world).unwrap().local_addr().port(), port);
}

/// A controller whose factory is where a test acts while a connection is opened.
#[derive(Debug)]
struct Meanwhile;

impl CongestionControl for Meanwhile {
    fn name(&self) -> &'static str {
        "meanwhile"
    }

    fn on_ack(&mut self, _sample: &AckSample, _window: &mut Window) {}

    fn ssthresh(&mut self, _now: Instant, window: &Window) -> u32 {
        window.cwnd
    }

    fn on_event(&mut self, _event: CongestionEvent, _now: Instant, _window: &mut Window) {}
}

#[test]
fn a_port_that_a_socket_gets_after_it_was_chosen_is_chosen_no_more() {
    const OWN: &str = "127.0.0.1:40000";
    type Take = fn(&Stack) -> Box<dyn Any + Send>;
    let bind: Take = |stack| Box::new(stack.bind_tcp(address(OWN), BindOptions::default()));
    let listen: Take = |stack| Box::new(stack.listen(address(OWN), ListenOptions::default()));
    let connect: Take = |stack| {
        let options = ConnectOptions { local: Some(address(OWN)), ..ConnectOptions::default() };
        Box::new(stack.connect(Instant::ZERO, address("127.0.0.1:7"), options))
    };
    for (how, take) in [("bound", bind), ("listens", listen), ("was given it", connect)] {
        type Act = Box<dyn FnOnce() + Send>;
        let act: Arc<Mutex<Option<Act>>> = Arc::default();
        let mut config = StackConfig::default();
        let later = act.clone();
        let factory = move || -> Box<dyn CongestionControl> {
            if let Some(act) = later.lock().unwrap().take() {
                act();
            }
            Box::new(Meanwhile)
        };
        config.config.controllers.register("meanwhile", factory).unwrap();
        let stack = Arc::new(Stack::new(config).unwrap());
        stack.set_sysctl("net.ipv4.ip_local_port_range", "40000 40000").unwrap();
        let (sender, taken) = mpsc::channel();
        let other = stack.clone();
        *act.lock().unwrap() = Some(Box::new(move || sender.send(take(&other)).unwrap()));
        let options = SocketOptions { congestion: Some("meanwhile"), ..SocketOptions::default() };
        let options = ConnectOptions { options, ..ConnectOptions::default() };
        let opened = stack.connect(Instant::ZERO, address("127.0.0.1:80"), options);
        assert_eq!(opened.map(drop), Err(SocketError::AddressNotAvailable), "a socket {how}");
        // What it took is there until now.
        drop(taken.try_recv().expect("the controller was made"));
    }
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

#[test]
fn a_syn_that_nobody_takes_does_not_end_time_wait() {
    let mut world = World::new(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let to = listener.local_addr();
    let options =
        || ConnectOptions { local: Some(address("10.0.0.1:5000")), ..ConnectOptions::default() };
    let client = world.a.connect(world.now, to, options()).unwrap();
    world.run(SECOND);
    let (server, _) = listener.accept().unwrap();
    drop(listener);
    server.close(world.now);
    world.run(SECOND);
    client.close(world.now);
    world.run(SECOND);
    // Answers are lost, so that the client does not end the connection.
    world.ba.lock().unwrap().filter = Some(Box::new(|_| false));
    let _again = world.a.connect(world.now, to, options()).unwrap();
    world.run(SECOND);
    assert_eq!(world.b.usage().tcp.time_wait, 1);
    assert_eq!(world.b.tcp_counter(Counter::OutRsts), 0);
}
