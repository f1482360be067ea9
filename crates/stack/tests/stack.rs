//! Two hosts over a wire in virtual time: what IP, UDP and TCP sockets promise.

#[path = "stack/binding.rs"]
mod binding;
#[path = "stack/broadcast.rs"]
mod broadcast;
mod common;
#[path = "stack/datagrams.rs"]
mod datagrams;
#[path = "stack/discovery.rs"]
mod discovery;
#[path = "stack/foreign.rs"]
mod foreign;
#[path = "stack/forwarding.rs"]
mod forwarding;
#[path = "stack/fragments.rs"]
mod fragments;
#[path = "stack/icmp.rs"]
mod icmp;
#[path = "stack/listening.rs"]
mod listening;
#[path = "stack/listing.rs"]
mod listing;
#[path = "stack/memory.rs"]
mod memory;
#[path = "stack/network.rs"]
mod network;
#[path = "stack/opening.rs"]
mod opening;
#[path = "stack/receiving.rs"]
mod receiving;
#[path = "stack/scopes.rs"]
mod scopes;
#[path = "stack/sending.rs"]
mod sending;
#[path = "stack/strangers.rs"]
mod strangers;
#[path = "stack/waking.rs"]
mod waking;
#[path = "stack/ways.rs"]
mod ways;

use bytes::Bytes;
use common::{WireConfig, World};
use core::net::SocketAddr;
use neap_stack::drop_reason::DropReason;
use neap_stack::socket::SocketError;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::socket::udp::SendDatagram;
use neap_stack::stack::{BindOptions, ConnectOptions, ListenOptions, Stack, UdpOptions};
use neap_stack::stats::IpCounter;
use neap_tcp::connection::{ConnectionError, ReadError, WriteError};
use neap_tcp::counters::Counter;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::time::{Instant, Nanos};

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

const SECOND: Nanos = Nanos::from_secs(1);

/// Opens a connection from a to b; both ends.
fn connect(world: &mut World, to: &str) -> (TcpHandle, TcpHandle) {
    let listener = world.b.listen(address(to), ListenOptions::default()).unwrap();
    let client =
        world.a.connect(world.now, listener.local_addr(), ConnectOptions::default()).unwrap();
    let mut server = None;
    assert!(world.run_until(Nanos::from_secs(10), |_| {
        server = listener.accept().ok();
        server.is_some()
    }));
    assert!(client.readiness().bits().contains(Ready::WRITABLE));
    (client, server.unwrap().0)
}

/// Opens so many connections from a to a listener of b, and accepts them all: what a has, and what
/// b has with the addresses of a.
fn connect_many(
    world: &mut World,
    listener: &ListenerHandle,
    count: usize,
) -> (Vec<TcpHandle>, Vec<(TcpHandle, SocketAddr)>) {
    let to = listener.local_addr();
    let clients: Vec<_> = (0..count)
        .map(|_| world.a.connect(world.now, to, ConnectOptions::default()).unwrap())
        .collect();
    let mut servers = Vec::new();
    assert!(world.run_until(SECOND, |_| {
        while let Ok(pair) = listener.accept() {
            servers.push(pair);
        }
        servers.len() == count
    }));
    (clients, servers)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[1]).collect()
}

/// Sends `data` and reads it at the other end.
fn transfer(world: &mut World, from: &TcpHandle, to: &TcpHandle, data: &[u8]) {
    let (mut written, mut read) = (0, Vec::new());
    let done = world.run_until(Nanos::from_secs(120), |world| {
        while written < data.len() {
            match from.write(world.now, &data[written..]) {
                Ok(count) => written += count,
                Err(WriteError::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let mut buf = [0; 65_536];
        loop {
            match to.read(world.now, &mut buf) {
                Ok(0) => panic!("end of stream"),
                Ok(count) => read.extend_from_slice(&buf[..count]),
                Err(ReadError::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        read.len() >= data.len()
    });
    assert!(done, "only {} of {} bytes", read.len(), data.len());
    assert!(read == data, "other bytes");
}

#[test]
fn udp_crosses_both_families_and_media() {
    for ethernet in [false, true] {
        for (from, to) in [("10.0.0.1:0", "10.0.0.2:53"), ("[fd00::1]:0", "[fd00::2]:53")] {
            let mut world = World::new(&WireConfig { ethernet, ..WireConfig::default() });
            let server = world.b.bind_udp(address(to), UdpOptions::default()).unwrap();
            let client = world.a.bind_udp(address(from), UdpOptions::default()).unwrap();
            let data = Bytes::from_static(b"question");
            client.send_to(world.now, data.clone(), Some(address(to))).unwrap();
            world.run(SECOND);
            let received = server.recv_from().unwrap();
            assert_eq!((received.data, received.from), (data, client.local_addr()));
            assert_eq!(server.recv_from().unwrap_err(), SocketError::WouldBlock);
            server.send_to(world.now, Bytes::from_static(b"answer"), Some(received.from)).unwrap();
            world.run(SECOND);
            assert_eq!(&client.recv_from().unwrap().data[..], b"answer");
            assert_eq!(client.bytes_below(), 0);
        }
    }
}

#[test]
fn large_datagrams_travel_in_fragments() {
    for (from, to) in [("10.0.0.1:0", "10.0.0.2:53"), ("[fd00::1]:0", "[fd00::2]:53")] {
        let mut world = World::new(&WireConfig::default());
        let server = world.b.bind_udp(address(to), UdpOptions::default()).unwrap();
        let client = world.a.bind_udp(address(from), UdpOptions::default()).unwrap();
        let data = Bytes::from(pattern(20_000));
        client.send_to(world.now, data.clone(), Some(address(to))).unwrap();
        world.run(SECOND);
        assert_eq!(server.recv_from().unwrap().data, data);
        assert!(world.ab.lock().unwrap().sent.iter().all(|packet| packet.len() <= 1500));
        let too_long = Bytes::from(vec![0; 65_528]);
        let refused = client.send_to(world.now, too_long, Some(address(to)));
        assert_eq!(refused.unwrap_err(), SocketError::MessageTooLong);
        assert_eq!(client.bytes_below(), 0);
    }
}

#[test]
fn a_port_without_socket_is_reported_to_the_connected_sender() {
    for (from, to) in [("10.0.0.1:0", "10.0.0.2:9"), ("[fd00::1]:0", "[fd00::2]:9")] {
        let mut world = World::new(&WireConfig::default());
        let client = world.a.bind_udp(address(from), UdpOptions::default()).unwrap();
        client.connect(Some(address(to))).unwrap();
        client.send_to(world.now, Bytes::from_static(b"x"), None).unwrap();
        world.run(SECOND);
        assert!(client.readiness().bits().contains(Ready::ERROR));
        assert_eq!(client.recv_from().unwrap_err(), SocketError::Refused);
        assert_eq!(client.recv_from().unwrap_err(), SocketError::WouldBlock);
        assert_eq!(world.b.drops().get(DropReason::NoSocket), 1);
    }
}

#[test]
fn a_full_way_down_pushes_datagrams_back() {
    let wire = WireConfig { ring: 1, ..WireConfig::default() };
    let mut world = World::new(&wire);
    let client = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    client.set_buffers(None, Some(10_000));
    let send = |world: &World| {
        client.send_to(world.now, Bytes::from(vec![0; 1000]), Some(address("10.0.0.2:9")))
    };
    let accepted = (0..100).take_while(|_| send(&world).is_ok()).count();
    assert!((5..20).contains(&accepted), "{accepted}");
    assert!(!client.readiness().bits().contains(Ready::WRITABLE));
    world.run(SECOND);
    assert!(client.readiness().bits().contains(Ready::WRITABLE));
    assert!(send(&world).is_ok());
    world.run(SECOND);
    assert_eq!(client.bytes_below(), 0);
}

#[test]
fn the_device_is_told_once_of_a_batch_of_datagrams() {
    for ethernet in [false, true] {
        let wire = WireConfig { ethernet, ..WireConfig::default() };
        let mut world = World::new(&wire);
        let server = world.b.bind_udp(address("10.0.0.2:53"), UdpOptions::default()).unwrap();
        let client = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
        client.connect(Some(server.local_addr())).unwrap();
        client.send_to(world.now, Bytes::from_static(b"resolves the neighbour"), None).unwrap();
        world.run(Nanos::from_millis(100));
        let flushes = |world: &World| world.ab.lock().unwrap().flushes;
        // One of the datagrams travels in fragments.
        let datagram =
            |n: usize| SendDatagram::new(vec![n as u8; if n == 7 { 4000 } else { n }].into(), None);
        for (count, told) in [(1, 1), (2, 1), (20, 1)] {
            let before = flushes(&world);
            let (sent, outcome) = client.send_batch(world.now, (0..count).map(datagram));
            assert_eq!((sent, outcome), (count, Ok(())));
            assert_eq!(flushes(&world) - before, told, "{count} datagrams");
            world.run(Nanos::from_millis(100));
        }
        let mut received = 0;
        while server.recv_from().is_ok() {
            received += 1;
        }
        assert_eq!(received, 1 + 1 + 2 + 20);
        // A batch that ends early is told of, too.
        let before = flushes(&world);
        let too_long = SendDatagram { data: vec![0; 70_000].into(), ..datagram(0) };
        let batch = [datagram(1), datagram(2), too_long];
        let (sent, outcome) = client.send_batch(world.now, batch);
        assert_eq!((sent, outcome), (2, Err(SocketError::MessageTooLong)));
        assert_eq!(flushes(&world) - before, 1);
    }
}

/// The hop limits of all packets that were sent in one direction.
fn hop_limits(direction: &common::Shared) -> Vec<u8> {
    let direction = direction.lock().unwrap();
    let hops = |packet: &Bytes| if packet[0] >> 4 == 4 { packet[8] } else { packet[7] };
    direction.sent.iter().map(hops).collect()
}

#[test]
fn packets_take_the_hops_that_their_socket_says() {
    for (to, dual_hops) in [("10.0.0.2:80", 11), ("[fd00::2]:80", 12)] {
        let mut world = World::new(&WireConfig::default());
        let with = |hop_limit| SocketOptions { hop_limit, ..SocketOptions::default() };
        let options = ListenOptions {
            options: with(12),
            options_v4: Some(with(11)),
            ..ListenOptions::default()
        };
        let listener = world.b.listen(address("[::]:80"), options).unwrap();
        let options = ConnectOptions { options: with(5), ..ConnectOptions::default() };
        let client = world.a.connect(world.now, address(to), options).unwrap();
        world.run(Nanos::from_millis(10));
        let (server, _) = listener.accept().unwrap();
        server.write(world.now, b"from a child").unwrap();
        world.run(Nanos::from_millis(100));
        assert!(hop_limits(&world.ab).iter().all(|hops| *hops == 5), "from the SYN on");
        let answers = hop_limits(&world.ba);
        assert!(answers.iter().all(|hops| *hops == dual_hops), "{answers:?} from the SYN-ACK on");
        client.set_option(world.now, SocketOption::HopLimit(0)).unwrap();
        client.write(world.now, b"the default").unwrap();
        world.run(Nanos::from_millis(1));
        assert_eq!(hop_limits(&world.ab).last(), Some(&64));
    }
}

#[test]
fn datagrams_take_the_hops_that_their_socket_says() {
    for (to, set, hops) in [
        ("10.0.0.2:53", (0, 9), 64),
        ("10.0.0.2:53", (7, 9), 7),
        ("[fd00::2]:53", (7, 0), 64),
        ("[fd00::2]:53", (7, 9), 9),
    ] {
        let mut world = World::new(&WireConfig::default());
        let client = world.a.bind_udp(address("[::]:0"), UdpOptions::default()).unwrap();
        client.set_hop_limits(set.0, set.1);
        // In fragments.
        client.send_to(world.now, vec![0; 4000].into(), Some(address(to))).unwrap();
        world.run(Nanos::from_millis(100));
        assert_eq!(hop_limits(&world.ab), [hops; 3], "{to} {set:?}");
    }
}

#[test]
fn a_child_of_a_listener_for_both_families_has_the_options_of_its_own() {
    for (to, receive_errors) in [("10.0.0.2:80", true), ("[fd00::2]:80", false)] {
        let mut world = World::new(&WireConfig::default());
        let mut options = ListenOptions::default();
        let v4 = SocketOptions { receive_errors: true, ..SocketOptions::default() };
        options.options_v4 = Some(v4);
        let listener = world.b.listen(address("[::]:80"), options).unwrap();
        let _client = world.a.connect(world.now, address(to), ConnectOptions::default()).unwrap();
        world.run(Nanos::from_millis(10));
        let (server, _) = listener.accept().unwrap();
        assert_eq!(server.options(world.now).receive_errors, receive_errors, "{to}");
    }
}

#[test]
fn a_full_receive_buffer_drops_and_counts() {
    let mut world = World::new(&WireConfig::default());
    let server = world.b.bind_udp(address("0.0.0.0:53"), UdpOptions::default()).unwrap();
    server.set_buffers(Some(3000), None);
    let client = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    for _ in 0..10 {
        let to = Some(address("10.0.0.2:53"));
        client.send_to(world.now, Bytes::from(vec![0; 500]), to).unwrap();
    }
    world.run(SECOND);
    let received = core::iter::from_fn(|| server.recv_from().ok()).count() as u64;
    let dropped = world.b.drops().get(DropReason::SocketReceiveBuffer);
    assert!(received > 0 && received + dropped == 10, "{received} {dropped}");
    assert_eq!(world.b.ip_counters().get(IpCounter::UdpRcvbufErrors), dropped);
}

#[test]
fn sockets_of_one_host_reach_each_other() {
    let mut world = World::new(&WireConfig::default());
    for to in ["10.0.0.1:80", "127.0.0.1:81", "[fd00::1]:80", "[::1]:81"] {
        let listener = world.a.listen(address(to), ListenOptions::default()).unwrap();
        let client = world.a.connect(world.now, address(to), ConnectOptions::default()).unwrap();
        let mut server = None;
        assert!(world.run_until(SECOND, |_| {
            server = listener.accept().ok();
            server.is_some()
        }));
        transfer(&mut world, &client, &server.unwrap().0, &pattern(300_000));
    }
    assert!(world.ab.lock().unwrap().sent.is_empty());
}

#[test]
fn tcp_transfers_over_every_kind_of_wire() {
    for ethernet in [false, true] {
        for (gso_max_size, checksum) in [(65_535, true), (0, true), (0, false)] {
            for to in ["10.0.0.2:80", "[fd00::2]:80"] {
                let wire = WireConfig { ethernet, gso_max_size, checksum, ..WireConfig::default() };
                let mut world = World::new(&wire);
                let (client, server) = connect(&mut world, to);
                transfer(&mut world, &client, &server, &pattern(1_000_000));
                transfer(&mut world, &server, &client, &pattern(100_000));
                assert_eq!(world.a.tcp_counter(Counter::RetransSegs), 0);
                world.run(SECOND);
                for flow in world.a.flows(world.now) {
                    assert_eq!((flow.info.below_bytes, flow.info.device_bytes), (0, 0));
                }
            }
        }
    }
}

#[test]
fn no_round_trip_is_shorter_than_the_wire_when_packets_come_during_a_poll() {
    let wire = WireConfig::default();
    let round_trip = wire.delay + wire.delay;
    let stall = Nanos::from_micros(700);
    let mut world = World::new(&wire);
    for direction in [&world.ab, &world.ba] {
        direction.lock().unwrap().stall = stall;
    }
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    // Those of the handshake, and those of data.
    for _ in 0..3 {
        for end in [&client, &server] {
            let shortest = end.info(world.now).min_rtt.expect("a round trip");
            assert!(shortest >= round_trip && shortest <= round_trip + stall, "{shortest:?}");
        }
        transfer(&mut world, &client, &server, &pattern(50_000));
        transfer(&mut world, &server, &client, &pattern(50_000));
    }
}

#[test]
fn a_closed_connection_leaves_nothing() {
    let mut world = World::new(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    for _ in 0..3 {
        let to = listener.local_addr();
        let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
        let mut server = None;
        world.run_until(SECOND, |_| {
            server = listener.accept().ok();
            server.is_some()
        });
        let server = server.unwrap().0;
        transfer(&mut world, &client, &server, b"hello");
        client.close(world.now);
        world.run(SECOND);
        assert_eq!(server.read(world.now, &mut [0; 10]), Ok(0));
        drop(server);
        drop(client);
        world.run(SECOND);
    }
    assert_eq!(world.a.usage().tcp.connections, 0);
    assert_eq!(world.a.usage().tcp.time_wait, 3);
    assert_eq!(world.a.usage().names, 0);
    assert_eq!(world.b.usage().names, 1, "the listener");
    world.run(Nanos::from_secs(61));
    assert_eq!(world.a.usage().tcp.time_wait, 0);
    assert_eq!(world.b.usage().tcp.connections, 0);
}

#[test]
fn a_silent_neighbour_is_an_unreachable_host() {
    let mut world = World::new(&WireConfig { ethernet: true, ..WireConfig::default() });
    let to = address("10.0.0.77:80");
    let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
    world.run(Nanos::from_secs(10));
    assert!(world.a.drops().get(DropReason::Neighbor) > 0);
    world.run(Nanos::from_secs(200));
    assert_eq!(client.take_error(world.now), Some(ConnectionError::HostUnreachable));
    // As if a router had said so, which is this host.
    let record = client.next_error(world.now).expect("over IPv4 it is kept");
    assert_eq!((record.kind, record.code, record.destination), (3, 1, to));
    assert_eq!(record.offender, Some(address("10.0.0.1:0").ip()));
    assert_eq!(record.data[..4], [client.local_addr().port().to_be_bytes(), [0, 80]].concat());
    assert_eq!(client.next_error(world.now), None);
}

#[test]
fn errors_of_binding_and_routing_are_told() {
    let world = World::new(&WireConfig::default());
    let listen = |text: &str| world.a.listen(address(text), ListenOptions::default());
    let first = listen("0.0.0.0:80").unwrap();
    assert_eq!(listen("10.0.0.1:80").unwrap_err(), SocketError::AddressInUse);
    assert_eq!(listen("10.0.0.9:81").unwrap_err(), SocketError::AddressNotAvailable);
    assert_eq!(listen("[::]:80").unwrap_err(), SocketError::AddressInUse, "it is 0.0.0.0 too");
    let only_v6 = ListenOptions { only_v6: true, ..ListenOptions::default() };
    let other = world.a.listen(address("[::]:80"), only_v6).unwrap();
    assert_ne!(listen("10.0.0.1:0").unwrap().local_addr().port(), 0);
    first.close(world.now);
    drop(other);
    listen("10.0.0.1:80").unwrap();
    let connect = |text: &str| {
        world.a.connect(world.now, address(text), ConnectOptions::default()).unwrap_err()
    };
    assert_eq!(connect("192.0.2.1:80"), SocketError::NetworkUnreachable);
    assert_eq!(connect("10.0.0.2:0"), SocketError::InvalidArgument);
    let bind = |text: &str| world.a.bind_udp(address(text), UdpOptions::default());
    let bound = bind("10.0.0.1:53").unwrap();
    assert_eq!(bind("0.0.0.0:53").unwrap_err(), SocketError::AddressInUse);
    drop(bound);
    bind("0.0.0.0:53").unwrap();
}

#[test]
fn a_bound_port_is_kept_from_all_others_until_it_is_given_back() {
    let world = World::new(&WireConfig::default());
    let bind = |text: &str, is_dual, reuse_address| {
        let options = BindOptions { is_dual, reuse_address, ..BindOptions::default() };
        world.a.bind_tcp(address(text), options)
    };
    let listen = |text: &str, reuse_address| {
        let options = ListenOptions { reuse_address, ..ListenOptions::default() };
        world.a.listen(address(text), options)
    };
    let taken = SocketError::AddressInUse;
    let bound = bind("10.0.0.1:80", false, false).unwrap();
    assert_eq!(bind("0.0.0.0:80", false, true).unwrap_err(), taken, "both must share");
    assert_eq!(bind("[::]:80", true, false).unwrap_err(), taken, "it is 0.0.0.0 too");
    assert_eq!(listen("10.0.0.1:80", true).unwrap_err(), taken);
    bind("[::]:80", false, false).unwrap();
    bound.set_reuse(true);
    let second = bind("10.0.0.1:80", false, true).unwrap();
    let listener = bound.listen(bound.local_addr(), ListenOptions::default()).unwrap();
    let again = second.listen(second.local_addr(), ListenOptions::default());
    assert_eq!(again.unwrap_err(), taken, "one listens");
    listener.close(world.now);
    drop((bound, second));
    listen("10.0.0.1:80", false).unwrap();
    let chosen = bind("10.0.0.1:0", false, false).unwrap().local_addr();
    assert_ne!(chosen.port(), 0);
    assert_eq!(bind("10.0.0.9:81", false, false).unwrap_err(), SocketError::AddressNotAvailable);
}

#[test]
fn a_flow_prints_as_ss_does() {
    let mut world = World::new(&WireConfig::default());
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    transfer(&mut world, &client, &server, &pattern(5_000));
    let [flow] = &world.a.flows(world.now)[..] else { panic!("one flow") };
    let text = flow.to_string();
    let (addresses, info) = text.split_once("\n\t ").expect("two lines");
    assert_eq!(addresses, format!("{} {}", client.local_addr(), client.remote_addr()));
    assert!(info.starts_with("ESTAB ts sack cubic wscale:"), "{info}");
    for figure in ["bytes_sent:5000", "ca_state:open", "rto:2", "ms rtt:", "blocked:no_data"] {
        assert!(info.contains(figure), "{figure}: {info}");
    }
    assert!(!info.contains("lost:") && !info.contains("ssthresh:4294967295"), "{info}");
    // Whoever prints the struct reads units as well.
    let debug = format!("{:?}", flow.info);
    assert!(!debug.contains("Nanos") && !debug.contains("Instant"), "{debug}");
}

#[test]
fn a_smaller_path_mtu_is_learnt_and_forged_ones_are_not_believed() {
    let mut world = World::new(&WireConfig { gso_max_size: 0, ..WireConfig::default() });
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    transfer(&mut world, &client, &server, &pattern(5_000));
    let sent: Vec<_> = world.ab.lock().unwrap().sent.clone();
    let data_packet = sent.iter().find(|packet| packet.len() == 1500).unwrap().clone();
    inject_too_big(&mut world, &data_packet, 1000);
    world.run(SECOND);
    assert_eq!(client.info(world.now).pmtu, 1500, "that segment is no longer in flight");
    assert!(world.a.drops().get(DropReason::Icmp) > 0);

    // A router that lets only 1000 bytes through, and says so.
    let lost = std::sync::Arc::new(std::sync::Mutex::new(None));
    let seen = lost.clone();
    world.ab.lock().unwrap().filter = Some(Box::new(move |packet| {
        let fits = packet.len() <= 1000;
        if !fits {
            seen.lock().unwrap().get_or_insert(Bytes::copy_from_slice(packet));
        }
        fits
    }));
    let data = pattern(200_000);
    let mut written = 0;
    let mut read = 0;
    let done = world.run_until(Nanos::from_secs(60), |world| {
        if let Some(packet) = lost.lock().unwrap().take() {
            inject_too_big(world, &packet, 1000);
        }
        while let Ok(count) = client.write(world.now, &data[written..]) {
            written += count;
            if written == data.len() {
                break;
            }
        }
        let mut buf = [0; 65_536];
        while let Ok(count) = server.read(world.now, &mut buf) {
            read += count;
        }
        read == data.len()
    });
    assert!(done, "only {read} bytes");
    assert_eq!(client.info(world.now).pmtu, 1000);
    let (again, _) = {
        let listener = world.b.listen(address("10.0.0.2:81"), ListenOptions::default()).unwrap();
        let to = listener.local_addr();
        (world.a.connect(world.now, to, ConnectOptions::default()).unwrap(), listener)
    };
    assert_eq!(again.info(world.now).pmtu, 1000, "the route has learnt it");
}

/// Lets host a receive "fragmentation needed" about `packet` from a router.
fn inject_too_big(world: &mut World, packet: &[u8], mtu: u16) {
    use neap_stack::frame::Headers;
    use neap_stack::wire::{Protocol, icmp, ipv4};
    let quote = Bytes::copy_from_slice(&packet[..28]);
    let mut headers = Headers::default();
    let body = quote.clone().into();
    icmp::Message::FragmentationNeeded { mtu }.emit(&mut headers, &body);
    let len = headers.len() as u16 + quote.len() as u16;
    ipv4::Header {
        source: "10.0.0.2".parse().unwrap(),
        destination: "10.0.0.1".parse().unwrap(),
        protocol: Protocol::ICMP,
        ttl: 64,
        dscp: 0,
        ecn: neap_tcp::segment::Ecn::NotEct,
        identification: 0,
        dont_fragment: true,
    }
    .emit(&mut headers, len);
    let bytes = [headers.as_slice(), &quote].concat();
    common::inject(&world.ba, world.now, bytes.into());
}

#[test]
fn the_end_of_a_stack_resets_its_peers() {
    let mut world = World::new(&WireConfig::default());
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    world.b.shut_down(world.now);
    world.run(SECOND);
    assert_eq!(client.read(world.now, &mut [0; 1]), Err(ReadError::Failed(ConnectionError::Reset)));
    let aborted = Err(ReadError::Failed(ConnectionError::Aborted));
    assert_eq!(server.read(world.now, &mut [0; 1]), aborted);
    let refused = world.b.listen(address("10.0.0.2:81"), ListenOptions::default());
    assert_eq!(refused.unwrap_err(), SocketError::ShutDown);
}

#[test]
fn the_end_of_a_stack_sends_no_fin_before_the_reset() {
    /// A thread that waits to accept: woken by the end of the listener, it lets go of what it has,
    /// and the driver comes by.
    struct Acceptor {
        host: std::sync::Weak<Stack>,
        accepted: std::sync::Mutex<Option<TcpHandle>>,
        now: Instant,
    }
    impl std::task::Wake for Acceptor {
        fn wake(self: std::sync::Arc<Self>) {
            let accepted = self.accepted.lock().unwrap().take();
            assert!(accepted.is_some(), "woken once");
            drop(accepted);
            if let Some(host) = self.host.upgrade() {
                host.poll(0, self.now);
            }
        }
    }
    let mut world = World::new(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let _client =
        world.a.connect(world.now, address("10.0.0.2:80"), ConnectOptions::default()).unwrap();
    world.run(SECOND);
    let accepted = std::sync::Mutex::new(Some(listener.accept().unwrap().0));
    let World { now, b, ba, .. } = world;
    let before = ba.lock().unwrap().sent.len();
    let host = std::sync::Arc::new(b);
    let acceptor = Acceptor { host: std::sync::Arc::downgrade(&host), accepted, now };
    let waker = std::sync::Arc::new(acceptor).into();
    assert!(listener.register(listener.readiness(), Ready::READ_CLOSED, &waker));
    host.shut_down(now);
    host.poll(0, now);
    let sent = &ba.lock().unwrap().sent[before..];
    let (fin, rst) = (0x01, 0x04);
    let flags: Vec<u8> = sent.iter().map(|packet| packet[33] & (fin | rst)).collect();
    assert_eq!(flags, [rst]);
}

#[test]
fn pings_are_answered() {
    use neap_stack::frame::Headers;
    use neap_stack::wire::{Protocol, icmp, ipv4};
    let mut world = World::new(&WireConfig::default());
    let body = Bytes::from(pattern(3000));
    let mut headers = Headers::default();
    let message = icmp::Message::EchoRequest { identifier: 7, sequence: 1 };
    message.emit(&mut headers, &body.clone().into());
    let len = headers.len() as u16 + body.len() as u16;
    ipv4::Header {
        source: "10.0.0.2".parse().unwrap(),
        destination: "10.0.0.1".parse().unwrap(),
        protocol: Protocol::ICMP,
        ttl: 64,
        dscp: 0,
        ecn: neap_tcp::segment::Ecn::NotEct,
        identification: 0,
        dont_fragment: false,
    }
    .emit(&mut headers, len);
    let bytes = [headers.as_slice(), &body].concat();
    common::inject(&world.ba, world.now, bytes.into());
    world.run(SECOND);
    let sent = world.ab.lock().unwrap().sent.clone();
    assert_eq!(sent.len(), 3, "the reply is as long as the request, in fragments");
    assert!(sent.iter().all(|packet| packet.len() <= 1500));
    assert_eq!(world.a.ip_counters().get(IpCounter::IcmpOutEchoReps), 1);
}

#[test]
fn routes_lead_through_a_gateway_and_strangers_are_not_forwarded() {
    use neap_stack::route::{Route, RouteEntry};
    let mut world = World::new(&WireConfig { ethernet: true, ..WireConfig::default() });
    let entry = RouteEntry {
        prefix: "0.0.0.0/0".parse().unwrap(),
        metric: 0,
        route: Route {
            interface: world.a_interface,
            gateway: Some("10.0.0.2".parse().unwrap()),
            mtu: None,
            pref_src: None,
        },
    };
    world.a.add_route(entry).unwrap();
    let qdisc = "pfifo_fast limit 10".parse().unwrap();
    world.a.set_qdisc(world.now, world.a_interface, &qdisc).unwrap();
    let to = address("192.0.2.1:80");
    let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
    assert_eq!(client.local_addr().ip(), address("10.0.0.1:0").ip());
    world.run(Nanos::from_millis(10));
    assert_eq!(world.b.drops().get(DropReason::IpOtherHost), 1);
    let (_, neighbor) = world.a.neighbors(world.now)[0];
    assert_eq!(
        (neighbor.address, neighbor.link),
        (address("10.0.0.2:0").ip(), Some([2, 0, 0, 0, 0, 2]))
    );
    assert_eq!(world.a.remove_route(entry.prefix, world.a_interface, None), Ok(entry));
}

#[test]
fn packets_that_nobody_may_believe_are_dropped_and_counted() {
    let mut world = World::new(&WireConfig::default());
    let server = world.a.bind_udp(address("10.0.0.1:53"), UdpOptions::default()).unwrap();
    let client = world.b.bind_udp(address("10.0.0.2:99"), UdpOptions::default()).unwrap();
    client.send_to(world.now, Bytes::from_static(b"good"), Some(server.local_addr())).unwrap();
    let good = world.ba.lock().unwrap().sent.last().unwrap().to_vec();
    world.run(SECOND);
    assert_eq!(&server.recv_from().unwrap().data[..], b"good");
    let mut damage = |reason: DropReason, at: usize, value: u8, refresh: bool| {
        let mut bad = good.clone();
        bad[at] = value;
        if refresh {
            bad[10..12].fill(0);
            let sum = neap_stack::wire::checksum::of(&bad[..20]);
            bad[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        common::inject(&world.ba, world.now, bad.into());
        world.run(SECOND);
        assert_eq!(world.a.drops().get(reason), 1, "{reason:?}");
        assert!(server.recv_from().is_err());
    };
    damage(DropReason::UnhandledProtocol, 0, 0x75, false);
    damage(DropReason::IpHeader, 8, 1, false);
    damage(DropReason::IpMartian, 12, 127, true);
    damage(DropReason::IpOtherHost, 19, 7, true);
    damage(DropReason::IpProtocol, 9, 200, true);
    damage(DropReason::UdpChecksum, 30, 0, false);
    damage(DropReason::UdpHeader, 25, 7, false);
    let mut own = good.clone();
    own[15] = 1;
    common::inject(&world.ba, world.now, own.into());
    world.run(SECOND);
    assert_eq!(world.a.drops().get(DropReason::IpHeader), 2, "the checksum covers the addresses");
}

#[test]
fn time_wait_answers_with_the_priority_of_its_socket() {
    let mut world = World::new(&WireConfig { checksum: false, ..WireConfig::default() });
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    server.set_option(world.now, SocketOption::Priority(6)).unwrap();
    server.close(world.now);
    world.run(SECOND);
    client.close(world.now);
    world.run(SECOND);
    assert_eq!(world.b.usage().tcp.time_wait, 1);
    let fin = world.ab.lock().unwrap().sent.last().unwrap().clone();
    let before = world.ba.lock().unwrap().priorities.len();
    common::inject(&world.ab, world.now, fin);
    world.run(SECOND);
    assert_eq!(world.ba.lock().unwrap().priorities[before..], [6], "one ACK");
}

#[test]
fn small_packets_of_one_batch_are_joined() {
    let mut world = World::new(&WireConfig { gso_max_size: 0, ..WireConfig::default() });
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    transfer(&mut world, &client, &server, &pattern(1_000_000));
    let packets = world.ab.lock().unwrap().sent.len() as u64;
    let received = world.b.ip_counters().get(IpCounter::IpInReceives);
    assert!(packets > 690 && received * 4 < packets, "{packets} packets, {received} received");
    let acks = world.ba.lock().unwrap().sent.len() as u64;
    assert!(acks * 4 < packets, "{acks} ACKs for {packets} packets");
    assert!(world.b.tcp_counter(Counter::InSegs) >= packets);
}

#[test]
fn a_last_ack_that_the_queue_drops_leaves_time_wait() {
    let mut world = World::new(&WireConfig::default());
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    // The host closes first, and its FIN is acknowledged.
    server.shutdown_write(world.now);
    world.run(Nanos::from_millis(100));
    // For a moment its queue has no room: no packet is as short as this bucket.
    let full = "tbf rate 8mbit burst 40b limit 10000b".parse().unwrap();
    world.b.set_qdisc(world.now, world.b_interface, &full).unwrap();
    client.close(world.now);
    world.run(Nanos::from_millis(50));
    assert!(world.b.drops().get(DropReason::QdiscDrop) > 0);
    let usage = world.b.usage().tcp;
    assert_eq!((usage.connections, usage.time_wait), (0, 1));
    let empty = "pfifo_fast".parse().unwrap();
    world.b.set_qdisc(world.now, world.b_interface, &empty).unwrap();
    // The peer's FIN comes again.
    world.run(SECOND);
    assert_eq!(world.b.tcp_counter(Counter::OutRsts), 0, "the FIN that comes again is answered");
}
