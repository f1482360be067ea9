//! Memory of a host: `tcp_mem`, orphans, and what is left of connections.

use super::{SECOND, address, connect, connect_many};
use crate::common::{self, Filter, Shared, WireConfig, World};
use bytes::Bytes;
use neap_stack::drop_reason::DropReason;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, StackConfig, UdpOptions};
use neap_stack::stats::IpCounter;
use neap_tcp::config::{Config, MemoryPages};
use neap_tcp::connection::{ConnectionError, ReadError};
use neap_tcp::counters::Counter;
use neap_tcp::state::State;
use neap_tcp::time::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// Whether a waker was used.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn ms(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}

/// Lets nothing pass from now on, or everything.
fn cut(direction: &Shared, is_cut: bool) {
    let nothing: Filter = Box::new(|_| false);
    direction.lock().unwrap().filter = is_cut.then_some(nothing);
}

/// So many connections from a to b, both ends.
fn open(world: &mut World, count: usize) -> Vec<(TcpHandle, TcpHandle)> {
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let mut open = Vec::new();
    while open.len() < count {
        let to = listener.local_addr();
        let clients: Vec<_> = (0..(count - open.len()).min(100))
            .map(|_| world.a.connect(world.now, to, ConnectOptions::default()).unwrap())
            .collect();
        world.run(ms(10));
        for client in clients {
            open.push((client, listener.accept().unwrap().0));
        }
    }
    open
}

#[test]
fn a_fin_that_nobody_acknowledges_costs_a_host_little_and_ends() {
    let mut world = World::new(&WireConfig::default());
    let pairs = open(&mut world, 500);
    let (clients, servers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    clients.iter().for_each(|client| client.close(world.now));
    world.run(ms(10));
    // The clients are gone, and the FINs of the servers with them.
    cut(&world.ab, true);
    drop(servers);
    world.run(ms(10));
    let usage = world.b.usage();
    assert_eq!((usage.tcp.orphans, usage.tcp.connections), (500, 500));
    world.run(SECOND);
    let usage = world.b.usage();
    assert_eq!((usage.tcp.orphans, usage.tcp.connections, usage.names), (500, 0, 0));
    assert_eq!(world.b.open_connections(), 500, "their end is not acknowledged");
    let fins = world.b.tcp_counter(Counter::RetransSegs);
    world.run(Nanos::from_secs(10));
    assert!(world.b.tcp_counter(Counter::RetransSegs) >= fins + 3 * 500);
    world.run(Nanos::from_secs(100));
    assert_eq!((world.b.usage().tcp.orphans, world.b.open_connections()), (0, 0));
    assert_eq!(world.b.tcp_counter(Counter::AbortOnTimeout), 500);
}

#[test]
fn a_late_ack_of_the_fin_ends_what_is_left_of_a_connection() {
    let mut world = World::new(&WireConfig::default());
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    client.close(world.now);
    world.run(ms(10));
    cut(&world.ab, true);
    server.close(world.now);
    world.run(SECOND);
    assert_eq!((world.b.usage().tcp.orphans, world.b.usage().tcp.connections), (1, 0));
    cut(&world.ab, false);
    world.run(Nanos::from_secs(2));
    assert_eq!(world.b.usage().tcp.orphans, 0);
    assert_eq!(world.a.usage().tcp.time_wait, 1);
}

#[test]
fn who_waits_for_the_end_of_all_connections_hears_of_the_last_ack_of_a_fin() {
    let mut world = World::new(&WireConfig::default());
    let (_client, server) = connect(&mut world, "10.0.0.2:80");
    cut(&world.ab, true);
    server.close(world.now);
    world.run(SECOND);
    assert_eq!(world.b.usage().tcp.orphans, 1);
    world.b.begin_close(world.now);
    let woken = Arc::new(Woken::default());
    assert!(world.b.register_drained(&Waker::from(woken.clone())));
    cut(&world.ab, false);
    world.run(Nanos::from_secs(2));
    // The peer has yet to close.
    assert_eq!((world.b.usage().tcp.time_wait, world.b.open_connections()), (1, 0));
    assert!(woken.0.load(Ordering::SeqCst));
}

#[test]
fn the_end_of_a_stack_resets_what_is_left_of_connections() {
    let mut world = World::new(&WireConfig::default());
    let mut pairs = open(&mut world, 2);
    let (orphan, half) = (pairs.remove(0), pairs.remove(0));
    // One FIN is not acknowledged, the other one is not answered.
    half.1.close(world.now);
    world.run(ms(10));
    cut(&world.ab, true);
    orphan.1.close(world.now);
    world.run(SECOND);
    let tcp = world.b.usage().tcp;
    assert_eq!((tcp.connections, tcp.orphans, tcp.time_wait), (0, 1, 1));
    world.b.shut_down(world.now);
    world.run(ms(10));
    for (client, _) in [orphan, half] {
        let told = (client.state(world.now), client.take_error(world.now));
        assert!(matches!(told, (State::Closed, Some(_))), "{told:?}");
    }
}

#[test]
fn too_many_orphans_are_reset_and_the_first_ones_stay() {
    let config = Config { tcp_max_orphans: 20, ..Config::default() };
    let config = StackConfig { config, ..common::config(2) };
    let mut world = World::with(&WireConfig::default(), common::config(1), config);
    let pairs = open(&mut world, 50);
    let (clients, servers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    cut(&world.ab, true);
    for server in &servers {
        server.close(world.now);
        assert!(world.b.usage().tcp.orphans <= 20);
    }
    world.run(SECOND);
    assert_eq!(world.b.usage().tcp.orphans, 20);
    assert_eq!(world.b.tcp_counter(Counter::AbortOnMemory), 30);
    let is_reset = |client: &&TcpHandle| {
        client.read(world.now, &mut [0]) == Err(ReadError::Failed(ConnectionError::Reset))
    };
    assert_eq!(clients.iter().filter(is_reset).count(), 30);
    // A lower bound ends those that are left at their next timeout.
    world.b.set_sysctl("net.ipv4.tcp_max_orphans", "5").unwrap();
    world.run(Nanos::from_secs(4));
    assert_eq!(world.b.usage().tcp.orphans, 5);
    assert_eq!(world.b.tcp_counter(Counter::AbortOnMemory), 45);
}

#[test]
fn fin_wait_2_without_an_application_is_small_answers_and_ends() {
    let mut world = World::new(&WireConfig::default());
    let mut pairs = open(&mut world, 3);
    let (last, first) = (pairs.pop().unwrap(), pairs.remove(0));
    for (client, _) in [&first, &last] {
        client.close(world.now);
    }
    world.run(ms(10));
    let usage = world.a.usage().tcp;
    assert_eq!((usage.connections, usage.time_wait, usage.orphans), (1, 2, 0));
    assert_eq!(first.0.state(world.now), State::Closed);
    // Data that nobody will read is reset, as by the connection.
    first.1.write(world.now, b"late").unwrap();
    world.run(ms(10));
    assert_eq!(world.a.usage().tcp.time_wait, 1);
    assert_eq!(world.a.tcp_counter(Counter::AbortOnData), 1);
    let told = first.1.read(world.now, &mut [0]);
    assert!(matches!(told, Err(ReadError::Failed(_))) || told == Ok(0), "{told:?}");
    // The peer's FIN is acknowledged, and its quiet time begins.
    world.run(Nanos::from_secs(50));
    last.1.close(world.now);
    world.run(ms(10));
    assert_eq!(world.b.usage().tcp.connections, 1);
    world.run(Nanos::from_secs(50));
    assert_eq!(world.a.usage().tcp.time_wait, 1);
    world.run(Nanos::from_secs(11));
    assert_eq!(world.a.usage().tcp.time_wait, 0);
}

#[test]
fn connections_that_nobody_reads_stay_within_tcp_mem_and_lose_no_byte() {
    let tcp_mem = MemoryPages { low: 256, pressure: 384, high: 512 };
    let config =
        StackConfig { config: Config { tcp_mem, ..Config::default() }, ..common::config(2) };
    let mut world = World::with(&WireConfig::default(), common::config(1), config);
    let pairs = open(&mut world, 100);
    let mut written = vec![0_usize; pairs.len()];
    let data: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
    for _ in 0..200 {
        for ((client, _), written) in pairs.iter().zip(&mut written) {
            if *written < data.len() {
                *written += client.write(world.now, &data[*written..]).unwrap_or(0);
            }
        }
        world.run(ms(1));
        let pages = world.b.usage().memory_pages;
        assert!(pages <= 600, "{pages}");
    }
    assert!(world.b.usage().is_under_pressure);
    assert_eq!(world.b.tcp_counter(Counter::MemoryPressures), 1);
    assert!(world.b.tcp_counter(Counter::RcvQDrop) > 0);
    let text = world.b.usage().to_string();
    assert!(text.contains("TCP: inuse 100 orphan 0 tw 0 alloc 100 mem "), "{text}");
    // Everything arrives once it is read.
    let mut read = vec![0; pairs.len()];
    let mut buffer = vec![0; 1 << 16];
    let is_over = world.run_until(Nanos::from_secs(300), |world| {
        for (((client, server), written), read) in pairs.iter().zip(&mut written).zip(&mut read) {
            while *written < data.len() {
                match client.write(world.now, &data[*written..]) {
                    Ok(more) => *written += more,
                    Err(_) => break,
                }
            }
            while let Ok(count @ 1..) = server.read(world.now, &mut buffer) {
                assert_eq!(buffer[..count], data[*read..*read + count]);
                *read += count;
            }
        }
        read.iter().all(|&read| read == data.len())
    });
    assert!(is_over, "{read:?}");
    assert!(!world.b.usage().is_under_pressure);
    assert!(world.b.tcp_counter(Counter::MemoryPressuresChrono) >= 190);
    drop(pairs);
    world.run(Nanos::from_secs(70));
    assert_eq!(world.b.usage().memory_pages, 0);
}

#[test]
fn writers_to_closed_windows_stay_within_tcp_mem_and_go_on_later() {
    let tcp_mem = MemoryPages { low: 256, pressure: 384, high: 512 };
    let config =
        StackConfig { config: Config { tcp_mem, ..Config::default() }, ..common::config(1) };
    let mut world = World::with(&WireConfig::default(), config, common::config(2));
    let pairs = open(&mut world, 100);
    let mut written = vec![0_usize; pairs.len()];
    let total = 1 << 20;
    let push = |world: &World, written: &mut Vec<usize>| {
        for ((client, _), written) in pairs.iter().zip(written) {
            while *written < total {
                match client.write(world.now, &[7; 8192]) {
                    Ok(more) => *written += more,
                    Err(_) => break,
                }
            }
        }
    };
    for _ in 0..300 {
        push(&world, &mut written);
        world.run(ms(1));
        // Each may have its least beyond that.
        let pages = world.a.usage().memory_pages;
        assert!(pages <= 512 + 2 * 100, "{pages}");
    }
    assert!(world.a.usage().is_under_pressure);
    let mut buffer = vec![0; 1 << 16];
    let mut read = 0;
    let is_over = world.run_until(Nanos::from_secs(300), |world| {
        push(world, &mut written);
        for (_, server) in &pairs {
            while let Ok(count @ 1..) = server.read(world.now, &mut buffer) {
                read += count;
            }
        }
        read >= 100 * total
    });
    assert!(is_over, "{read}");
    world.run(Nanos::from_secs(2));
    assert_eq!(world.a.usage().memory_pages, 0, "idle connections hold nothing");
}

#[test]
fn datagrams_that_nobody_reads_stay_within_udp_mem() {
    let udp_mem = MemoryPages { low: 256, pressure: 384, high: 512 };
    let config =
        StackConfig { config: Config { udp_mem, ..Config::default() }, ..common::config(2) };
    let mut world = World::with(&WireConfig::default(), common::config(1), config);
    let bind = |port: u16| {
        world.b.bind_udp(address(&format!("10.0.0.2:{port}")), UdpOptions::default()).unwrap()
    };
    let servers: Vec<_> = (1000..1100).map(bind).collect();
    let client = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    let flood = |world: &mut World| {
        for few in (0..20).flat_map(|_| servers.chunks(10)) {
            for server in few {
                let data = vec![7; 1000].into();
                client.send_to(world.now, data, Some(server.local_addr())).unwrap();
            }
            world.run(ms(1));
            let pages = world.b.usage().udp_memory_pages;
            assert!(pages <= 512, "{pages}");
        }
        world.b.usage().udp_memory_pages
    };
    let of = |world: &World, counter| world.b.ip_counters().get(counter);
    assert_eq!(flood(&mut world), 256);
    assert!(of(&world, IpCounter::UdpMemErrors) > 1000);
    assert_eq!(of(&world, IpCounter::UdpRcvbufErrors), 0);
    let dropped = world.b.drops().get(DropReason::ProtocolMemory);
    assert_eq!(dropped, of(&world, IpCounter::UdpMemErrors));
    assert_eq!(dropped, of(&world, IpCounter::UdpInErrors));
    let text = world.b.usage().to_string();
    assert!(text.contains("UDP: inuse 100 mem 256"), "{text}");
    // What is read makes room, a page for each socket apart, and a closed socket has none.
    let received: u64 = servers
        .iter()
        .map(|server| core::iter::from_fn(|| server.recv_from().ok()).count() as u64)
        .sum();
    assert_eq!(received, of(&world, IpCounter::UdpInDatagrams));
    assert_eq!(world.b.usage().udp_memory_pages, 100);
    flood(&mut world);
    drop(servers);
    assert_eq!(world.b.usage().udp_memory_pages, 0);
}

#[test]
fn a_socket_with_little_takes_datagrams_while_others_fill_the_memory() {
    let udp_mem = MemoryPages { low: 16, pressure: 16, high: 32 };
    let config =
        StackConfig { config: Config { udp_mem, ..Config::default() }, ..common::config(2) };
    let mut world = World::with(&WireConfig::default(), common::config(1), config);
    let bind = |to| world.b.bind_udp(address(to), UdpOptions::default()).unwrap();
    let (hog, other) = (bind("10.0.0.2:1"), bind("10.0.0.2:2"));
    let client = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    for _ in 0..100 {
        client.send_to(world.now, vec![7; 1000].into(), Some(hog.local_addr())).unwrap();
        world.run(ms(1));
    }
    assert_eq!(world.b.usage().udp_memory_pages, 16);
    for _ in 0..3 {
        client.send_to(world.now, vec![7; 1000].into(), Some(other.local_addr())).unwrap();
        world.run(ms(1));
    }
    // Two of 1640 bytes are less than udp_rmem_min.
    assert_eq!(core::iter::from_fn(|| other.recv_from().ok()).count(), 2);
}

/// A device slices packets from large buffers.
#[test]
fn a_datagram_that_nobody_reads_keeps_no_buffer_of_the_device() {
    let mut world = World::new(&WireConfig::default());
    let server = world.b.bind_udp(address("10.0.0.2:9"), UdpOptions::default()).unwrap();
    let client = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    client.send_to(world.now, vec![7; 1000].into(), Some(server.local_addr())).unwrap();
    world.run(ms(10));
    assert_eq!(server.recv_from().unwrap().data.len(), 1000);
    let packet = world.ab.lock().unwrap().sent.pop().expect("the datagram");
    let packet = Bytes::copy_from_slice(&packet);
    common::inject(&world.ab, world.now, packet.clone());
    world.run(ms(10));
    world.ab.lock().unwrap().sent.clear();
    assert!(packet.is_unique());
    assert_eq!(server.recv_from().unwrap().data.len(), 1000);
}

#[test]
fn records_of_errors_count_for_udp_mem() {
    let udp_mem = MemoryPages { low: 2, pressure: 2, high: 2 };
    let config =
        StackConfig { config: Config { udp_mem, ..Config::default() }, ..common::config(1) };
    let mut world = World::with(&WireConfig::default(), config, common::config(2));
    let client = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    client.set_receive_errors(true, false);
    client.connect(Some(address("10.0.0.2:9"))).unwrap();
    let ask = |world: &mut World| {
        for _ in 0..20 {
            // Every other call tells the error of the one before.
            let _ = client.send_to(world.now, vec![7; 500].into(), None);
            world.run(Nanos::from_secs(1));
        }
    };
    ask(&mut world);
    let records = core::iter::from_fn(|| client.next_error()).count();
    assert_eq!(records, 8192 / (768 + 500));
    assert!(world.a.drops().get(DropReason::ErrorQueue) > 0);
    assert_eq!(world.a.usage().udp_memory_pages, 1);
    ask(&mut world);
    assert_eq!(world.a.usage().udp_memory_pages, 2);
    client.clear_errors();
    assert_eq!(world.a.usage().udp_memory_pages, 1);
}

#[test]
fn nobody_gets_in_while_memory_is_used_up() {
    let tcp_mem = MemoryPages { low: 16, pressure: 24, high: 32 };
    let config =
        StackConfig { config: Config { tcp_mem, ..Config::default() }, ..common::config(2) };
    let mut world = World::with(&WireConfig::default(), common::config(1), config);
    let pairs = open(&mut world, 40);
    for (client, _) in &pairs {
        client.write(world.now, &[1; 4000]).unwrap();
    }
    world.run(ms(10));
    assert!(world.b.usage().memory_pages > 32, "each has its first segment");
    let listener = world.b.listen(address("10.0.0.2:90"), ListenOptions::default()).unwrap();
    let to = listener.local_addr();
    let late = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
    world.run(ms(10));
    assert_eq!((world.b.usage().tcp.requests, late.state(world.now)), (0, State::SynSent));
    assert!(world.b.tcp_counter(Counter::ListenDrops) > 0);
    for (_, server) in &pairs {
        while let Ok(1..) = server.read(world.now, &mut [0; 5000]) {}
    }
    world.run(Nanos::from_secs(2));
    assert_eq!(late.state(world.now), State::Established);
}

#[test]
fn ten_thousand_connections_come_and_go() {
    let mut world =
        World::new(&WireConfig { delay: Nanos::from_micros(10), ..WireConfig::default() });
    // Source ports are a few steps apart, so those towards one port would be all used once.
    let listeners = ["10.0.0.2:80", "10.0.0.2:81"]
        .map(|at| world.b.listen(address(at), ListenOptions::default()).unwrap());
    for round in 0..100 {
        let (clients, servers) = connect_many(&mut world, &listeners[round % 2], 100);
        for client in &clients {
            client.write(world.now, b"x").unwrap();
        }
        world.run(Nanos::from_millis(1));
        for (server, _) in &servers {
            assert_eq!(server.read(world.now, &mut [0; 2]), Ok(1));
            server.close(world.now);
        }
        world.run(Nanos::from_millis(1));
        drop(clients);
        drop(servers);
        world.run(Nanos::from_millis(5));
        world.ab.lock().unwrap().sent.clear();
        world.ba.lock().unwrap().sent.clear();
    }
    assert_eq!(world.b.usage().tcp.time_wait, 10_000);
    world.run(Nanos::from_secs(61));
    for usage in [world.a.usage(), world.b.usage()] {
        assert_eq!((usage.tcp.connections, usage.tcp.time_wait), (0, 0));
    }
    assert_eq!((world.a.usage().names, world.b.usage().names), (0, 2));
}
