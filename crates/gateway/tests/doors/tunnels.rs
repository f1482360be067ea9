//! Tunnels with one target, standard input and output, the end of a run.

use crate::world::{FAR, NEAR, PATIENCE, SlowReader, World, any, echo, named, skip};
use neap::control::Application;
use neap::net::{Prefix, Route, RouteEntry};
use neap_gateway::doors::{Door, Target, Users};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

fn target(text: &str) -> Target {
    text.parse().expect("a target")
}

#[test]
fn a_client_tunnel_leads_to_its_target() {
    let world = World::new(vec![
        Door::Client { listen: any(), target: target("both.test:7") },
        Door::Client { listen: any(), target: target("10.1.0.2:9") },
    ]);
    world.serve(7, echo);
    let mut stream = world.client(0);
    stream.write_all(b"hello").expect("sent");
    let mut back = [0; 5];
    stream.read_exact(&mut back).expect("the echo");
    assert_eq!(&back, b"hello");
    let client = stream.local_addr().expect("an address");
    let far = world.inspector.relays();
    let view = far.iter().next().expect("a flow");
    assert_eq!(
        (view.0.0.ip().to_string(), view.0.1.to_string()),
        (NEAR.into(), "10.1.0.2:7".into())
    );
    assert_eq!(view.1.far, client);
    let error = world.client(1).read(&mut back).expect_err("nobody listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let figures = world.end();
    assert_eq!((figures.opened, figures.unreached), (1, 1));
    let error = stream.read(&mut back).expect_err("the run has ended");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_server_tunnel_leads_to_the_host() {
    let host = TcpListener::bind(any()).expect("a port");
    let port = host.local_addr().expect("an address").port();
    let world = World::new(vec![
        Door::Server { listen_port: 8080, target: host.local_addr().expect("bound").into() },
        Door::Server { listen_port: 8081, target: target(&format!("localhost:{port}")) },
        Door::Server { listen_port: 8082, target: target("127.0.0.1:1") },
    ]);
    for door in [8080, 8081] {
        let mut stream =
            neap::TcpStream::connect(&world.far, format!("{NEAR}:{door}")).expect("it is open");
        stream.write_all(b"hello").expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("open");
        let (mut accepted, _) = host.accept().expect("a connection");
        let mut bytes = Vec::new();
        accepted.read_to_end(&mut bytes).expect("the end");
        assert_eq!(bytes, b"hello");
        accepted.write_all(b"answer").expect("sent");
        drop(accepted);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("the end");
        assert_eq!(bytes, b"answer");
    }
    // The reset may come before the call has returned.
    let refused = neap::TcpStream::connect(&world.far, format!("{NEAR}:8082"))
        .and_then(|mut stream| stream.read(&mut [0; 10]));
    let error = refused.expect_err("nobody listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    world.until(|figures| figures.finished == 2);
    let figures = world.end();
    assert_eq!((figures.bytes_out, figures.bytes_in), (12, 10));
}

#[test]
fn a_server_tunnel_leads_to_a_name_of_the_host_where_the_stack_has_no_servers() {
    let host = TcpListener::bind(any()).expect("a port");
    let port = host.local_addr().expect("an address").port();
    // The host alone takes it for a name with the address 127.0.0.1, and asks nobody.
    let own = Door::Server { listen_port: 8080, target: target(&format!("0x7f000001:{port}")) };
    let none = Door::Server { listen_port: 8081, target: target("0x7f00000100:1") };
    let world = World::with(vec![own, none], false, |config| config.resolver.servers.clear());
    for _ in 0..2 {
        let mut stream =
            neap::TcpStream::connect(&world.far, format!("{NEAR}:8080")).expect("it is open");
        let (mut accepted, _) = host.accept().expect("a connection");
        accepted.write_all(b"hello").expect("sent");
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).expect("received");
        assert_eq!(&bytes, b"hello");
    }
    // The reset may come before the call has returned.
    let refused = neap::TcpStream::connect(&world.far, format!("{NEAR}:8081"))
        .and_then(|mut stream| stream.read(&mut [0; 10]));
    assert_eq!(refused.expect_err("no address").kind(), ErrorKind::ConnectionReset);
    let figures = world.end();
    assert_eq!((figures.lookups, figures.failed_lookups, figures.questions), (3, 1, 0));
}

#[test]
fn a_client_behind_the_stack_has_no_more_connections_than_one_may_have() {
    let host = TcpListener::bind(any()).expect("a port");
    let door = Door::Server { listen_port: 8080, target: host.local_addr().expect("bound").into() };
    let world = World::with(vec![door], false, |config| config.most_of_a_client = 2);
    let connect = || neap::TcpStream::connect(&world.far, format!("{NEAR}:8080"));
    let held = [0, 1].map(|_| (connect().expect("it is open"), host.accept().expect("one")));
    let refused = connect().and_then(|mut stream| stream.read(&mut [0; 10]));
    assert_eq!(refused.expect_err("no room").kind(), ErrorKind::ConnectionReset);
    drop(held);
    let figures = world.end();
    assert_eq!((figures.full, figures.opened), (1, 2));
}

#[test]
fn datagrams_of_each_client_have_a_port_and_answers_come_back() {
    let timeout = Some(Duration::from_millis(50));
    let world = World::new(vec![
        Door::Udp { listen: any(), target: target("both.test:9"), timeout: None },
        Door::Udp { listen: any(), target: target("10.1.0.2:9"), timeout },
    ]);
    let far = neap::UdpSocket::bind(&world.far, format!("{FAR}:9")).expect("a socket");
    let mut bytes = [0; 100];
    let clients = [0, 0, 1].map(|door| {
        let client = UdpSocket::bind(any()).expect("a socket");
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        client.connect(world.at(door)).expect("connected");
        client
    });
    let mut ports = Vec::new();
    for client in &clients[..2] {
        for text in ["first", "second"] {
            client.send(text.as_bytes()).expect("sent");
            let (count, from) = far.recv_from(&mut bytes).expect("a datagram");
            assert_eq!(&bytes[..count], text.as_bytes());
            ports.push(from.port());
            far.send_to(b"answer", from).expect("sent");
            let count = client.recv(&mut bytes).expect("an answer");
            assert_eq!(&bytes[..count], b"answer");
        }
    }
    assert!(ports[0] == ports[1] && ports[2] == ports[3] && ports[0] != ports[2], "{ports:?}");
    // Somebody else than the target knows the port.
    let stranger = neap::UdpSocket::bind(&world.far, format!("{FAR}:10")).expect("a socket");
    stranger.send_to(b"x", format!("{NEAR}:{}", ports[0])).expect("sent");
    world.until(|figures| figures.bad_datagrams == 1);
    // The client that is quiet is forgotten, and gets another port.
    let mut port_of_quiet = || {
        clients[2].send(b"again").expect("sent");
        far.recv_from(&mut bytes).expect("a datagram").1.port()
    };
    let first = port_of_quiet();
    let mut port = first;
    while port == first {
        std::thread::park_timeout(Duration::from_millis(60));
        port = port_of_quiet();
    }
    let figures = world.end();
    assert!(figures.mappings >= 4, "{figures:?}");
}

/// The route to the network of the far side's IPv4 or IPv6 address.
fn route(world: &World, network: &str, len: u8) -> RouteEntry {
    let interface = world.near.host().interfaces()[0].id;
    let prefix = Prefix::new(network.parse().expect("an address"), len).expect("a prefix");
    let route = Route { interface, gateway: None, mtu: None, pref_src: None };
    RouteEntry { prefix, metric: 0, route }
}

#[test]
fn datagrams_to_a_name_go_to_the_first_address_that_has_a_route() {
    let target = target("both.test:9");
    let udp = Door::Udp { listen: any(), target, timeout: None };
    let socks5 = Door::Socks5 { listen: any(), users: Users::default() };
    let world = World::with(vec![udp, socks5], true, |_| {});
    let far = neap::UdpSocket::bind(&world.far, "[::]:9").expect("a socket");
    far.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let [v4, v6] = [("10.1.0.0", 24), ("fd01::", 64)].map(|(ip, len)| route(&world, ip, len));
    let client = UdpSocket::bind(any()).expect("a socket");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut control = world.client(1);
    control.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).expect("sent");
    let mut answer = [0; 12];
    control.read_exact(&mut answer).expect("an association");
    let port = u16::from_be_bytes([answer[10], answer[11]]);
    let relay = SocketAddr::new(any().ip(), port);
    let mut bytes = [0; 100];
    let mut ask = |to: SocketAddr, is_v6: bool| {
        let place = if to == relay { named("both.test", 9) } else { Vec::new() };
        let header = if to == relay { &[0, 0, 0][..] } else { &[] };
        client.send_to(&[header, &place, b"question"].concat(), to).expect("sent");
        let (count, from) = far.recv_from(&mut bytes).expect("a datagram");
        assert_eq!(&bytes[..count], b"question");
        assert_eq!(from.ip().to_canonical().is_ipv6(), is_v6);
        far.send_to(b"answer", from).expect("sent");
        let count = client.recv(&mut bytes).expect("an answer");
        assert!(bytes[..count].ends_with(b"answer"));
    };
    world.near.remove_route(v6.prefix, v6.route.interface, None).expect("it was there");
    for _ in 0..2 {
        ask(world.at(0), false);
        ask(relay, false);
    }
    assert_eq!(world.inspector.figures().unsent_datagrams, 0);
    // The route to the address that the client has is gone: its next datagram finds another one.
    world.near.remove_route(v4.prefix, v4.route.interface, None).expect("it was there");
    world.near.add_route(v6).expect("it was gone");
    client.send_to(b"lost", world.at(0)).expect("sent");
    world.until(|figures| figures.unsent_datagrams == 1);
    ask(world.at(0), true);
    ask(relay, true);
    world.end();
}

#[test]
fn standard_input_and_output_are_one_connection_and_the_run_ends_with_it() {
    let (input, mut writer) = std::io::pipe().expect("a pipe");
    let (mut reader, output) = std::io::pipe().expect("a pipe");
    let target = target("both.test:7");
    let door = Door::Stdio { target, input: input.into(), output: output.into() };
    let world = World::new(Vec::new());
    world.serve(7, echo);
    world.handle.open(door).expect("it runs");
    let sent: Vec<u8> = (0..1 << 20).map(|index| (index % 251) as u8).collect();
    let expected = sent.clone();
    let writes = std::thread::spawn(move || writer.write_all(&sent).expect("sent"));
    let mut received = Vec::new();
    reader.read_to_end(&mut received).expect("the end");
    writes.join().expect("no panic");
    assert!(received == expected, "{} bytes", received.len());
    assert_eq!(world.wait().expect("a good end").finished, 1);
}

#[test]
fn standard_input_without_a_target_is_an_error_that_says_why() {
    let (input, _writer) = std::io::pipe().expect("a pipe");
    let (_reader, output) = std::io::pipe().expect("a pipe");
    let target = target("10.1.0.2:9");
    let door = Door::Stdio { target, input: input.into(), output: output.into() };
    let error = World::new(vec![door]).wait().expect_err("nobody listens");
    assert_eq!(error.to_string(), "10.1.0.2:9: the target refuses the connection");
}

#[test]
fn the_run_goes_on_behind_standard_streams_while_another_door_is_open() {
    for stdio_target in ["both.test:7", "10.1.0.2:9", "no.such.name.test:7"] {
        let (input, writer) = std::io::pipe().expect("a pipe");
        let (_reader, output) = std::io::pipe().expect("a pipe");
        let (input, output) = (input.into(), output.into());
        let stdio = Door::Stdio { target: target(stdio_target), input, output };
        let other = Door::Client { listen: any(), target: target("10.1.0.2:7") };
        let world = World::new(vec![other, stdio]);
        world.serve(7, echo);
        drop(writer);
        world.until(|figures| figures.finished + figures.unreached == 1);
        let mut stream = world.client(0);
        stream.write_all(b"one").expect("sent");
        stream.read_exact(&mut [0; 3]).expect("the echo");
        world.end();
    }
}

#[test]
fn doors_that_drain_take_nothing_new_and_end_with_the_last_connection() {
    let world = World::new(vec![Door::Client { listen: any(), target: target("10.1.0.2:7") }]);
    world.serve(7, echo);
    let mut stream = world.client(0);
    stream.write_all(b"one").expect("sent");
    stream.read_exact(&mut [0; 3]).expect("the echo");
    world.handle.drain(PATIENCE * 60).expect("it runs");
    while std::net::TcpStream::connect(world.at(0)).is_ok() {
        std::thread::yield_now();
    }
    stream.write_all(b"two").expect("sent");
    stream.read_exact(&mut [0; 3]).expect("the echo");
    drop(stream);
    // Those that came before the drain are connections as well.
    assert!(world.wait().expect("a good end").finished >= 1);
}

#[test]
fn doors_that_drain_wait_for_what_the_far_side_has_not_acknowledged() {
    let world = World::new(vec![Door::Client { listen: any(), target: target("10.1.0.2:7") }]);
    let far = SlowReader::start(&world.far);
    let mut stream = world.client(0);
    // The far side has ended its stream, so that all is over once the stack has taken the bytes.
    assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
    stream.write_all(&[7; SlowReader::BYTES]).expect("sent");
    drop(stream);
    world.until(|figures| figures.finished == 1);
    let handle = world.handle.clone();
    let closed = handle
        .open(Door::Client { listen: any(), target: target("10.1.0.2:7") })
        .and_then(|id| handle.close(id).map(|()| id))
        .expect("it runs");
    handle.drain(PATIENCE * 60).expect("it runs");
    let ended = std::thread::spawn(move || world.wait());
    // Requests are answered one after the other, and between two the run may end.
    for _ in 0..3 {
        let error = handle.close(closed).expect_err("it is closed already");
        assert_eq!(error.kind(), ErrorKind::NotFound, "it waits for the far side");
    }
    assert_eq!(far.read().expect("the end, not a reset"), SlowReader::BYTES);
    ended.join().expect("no panic").expect("a good end");
}

#[test]
fn connections_that_stall_hold_little_together() {
    const FLOWS: usize = 64;
    const BOUND: u64 = 256 * 4096;
    /// What one visit may take more, and what each connection takes beyond the bound.
    const VISIT: u64 = 512 << 10;
    const SMALL: u64 = 4 << 10;
    let door = Door::Client { listen: any(), target: target("10.1.0.2:7") };
    let world = World::with(vec![door], false, |config| {
        config.stack.set_sysctl("net.ipv4.tcp_mem", "192 256 8192").expect("bounds");
    });
    world.far.set_sysctl("net.ipv4.tcp_rmem", "4096 16384 16384").expect("a small buffer");
    let listener = neap::TcpListener::bind(&world.far, "10.1.0.2:7").expect("a listener");
    // Nobody reads what comes.
    std::thread::spawn(move || {
        let mut all = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            all.push(stream);
        }
    });
    let connect = || {
        let client = world.client(0);
        client.set_nonblocking(true).expect("an option");
        client
    };
    let until = |clients: &mut [TcpStream], is_it: &mut dyn FnMut(u64, u64) -> bool| {
        let start = Instant::now();
        loop {
            for client in &mut *clients {
                while client.write(&[0; 16 << 10]).is_ok() {}
            }
            let gauges = world.inspector.gauges();
            let value = |name| gauges.iter().find(|gauge| gauge.0 == name).map(|gauge| gauge.1);
            let (Some(flows), Some(held)) = (value("DoorsFlows"), value("DoorsHeldBytes")) else {
                panic!("they run");
            };
            assert!(held <= BOUND + VISIT + FLOWS as u64 * SMALL, "{held} bytes of {flows}");
            if is_it(flows, held) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{held} bytes of {flows}");
        }
    };
    let mut clients: Vec<_> = (0..FLOWS).map(|_| connect()).collect();
    until(&mut clients, &mut |_, _| world.inspector.figures().memory_pressures > 0);
    // There is time to receive more.
    let mut rounds = 0;
    until(&mut clients, &mut |flows, _| {
        rounds += usize::from(flows == FLOWS as u64);
        rounds == 500
    });
    for client in clients {
        socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("an option");
    }
    until(&mut [], &mut |flows, held| flows + held == 0);
    // The others are gone, and their bytes with them.
    until(&mut [connect()], &mut |_, held| held > SMALL);
    assert_eq!(world.end().memory_pressures, 1);
}

#[test]
fn doors_are_opened_and_closed_while_they_run() {
    let world = World::new(Vec::new());
    let (ended, far_ends) = std::sync::mpsc::channel();
    world.serve(7, move |mut stream| {
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).expect("it was sent");
        stream.write_all(&bytes).expect("open");
        let _ = ended.send(stream.read(&mut bytes).map_err(|error| error.kind()));
    });
    // Nobody else takes a port of this address while it is free.
    let free = TcpListener::bind("127.0.0.77:0").expect("a port");
    let listen = free.local_addr().expect("an address");
    let door = || Door::Client { listen, target: target("10.1.0.2:7") };
    let error = world.handle.open(door()).expect_err("somebody has the port");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(free);
    let mut last = None;
    for _ in 0..3 {
        let id = world.handle.open(door()).expect("the port is free");
        assert!(last < Some(id), "{last:?} {id:?}");
        last = Some(id);
        let mut stream = std::net::TcpStream::connect(listen).expect("it is open");
        stream.write_all(b"hello").expect("sent");
        stream.read_exact(&mut [0; 5]).expect("the echo");
        world.handle.close(id).expect("it was open");
        assert_eq!(world.handle.close(id).expect_err("no more").kind(), ErrorKind::NotFound);
        std::net::TcpStream::connect(listen).expect_err("it is closed");
        // An end of the stream would make what was cut look whole.
        let near_end = stream.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(near_end, Err(ErrorKind::ConnectionReset));
        let far_end = far_ends.recv_timeout(PATIENCE).expect("the far half ends as well");
        assert_eq!(far_end, Err(ErrorKind::ConnectionReset));
    }
    world.until(|figures| figures.closed == 3);
    let handle = world.handle.clone();
    world.end();
    let error = handle.open(door()).expect_err("the run has ended");
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_door_on_all_addresses_is_one_of_both_families() {
    let all = "[::]:0".parse().expect("an address");
    let Ok(probe) = TcpListener::bind("[::1]:0") else {
        return skip("no IPv6");
    };
    drop(probe);
    let world = World::new(vec![
        Door::Client { listen: all, target: target("10.1.0.2:7") },
        Door::Udp { listen: all, target: target("10.1.0.2:9"), timeout: None },
    ]);
    world.serve(7, echo);
    let far = neap::UdpSocket::bind(&world.far, format!("{FAR}:9")).expect("a socket");
    let [tcp, udp] = [0, 1].map(|door| world.at(door).port());
    let mut bytes = [0; 100];
    for host in ["127.0.0.1", "[::1]"] {
        let mut stream = std::net::TcpStream::connect(format!("{host}:{tcp}")).expect("open");
        stream.write_all(b"hello").expect("sent");
        stream.read_exact(&mut [0; 5]).expect("the echo");
        let client = UdpSocket::bind(format!("{host}:0")).expect("a socket");
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        client.connect(format!("{host}:{udp}")).expect("connected");
        client.send(b"question").expect("sent");
        let (_, from) = far.recv_from(&mut bytes).expect("a datagram");
        // Answers of one length leave by one call.
        for _ in 0..3 {
            far.send_to(b"answer", from).expect("sent");
        }
        for _ in 0..3 {
            assert_eq!(client.recv(&mut bytes).expect("an answer"), 6);
        }
    }
    world.end();
}
