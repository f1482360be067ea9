//! Sysctls that are set while the stack runs, where it takes calls of an application to see what
//! they do. The others, and the check that each has a row, are in the tests of `neap-lab`.

#[allow(dead_code, reason = "shared by several tests")]
mod common;

use bytes::Bytes;
use common::{Filter, WireConfig, World};
use core::net::SocketAddr;
use neap_stack::drop_reason::DropReason;
use neap_stack::socket::SocketError;
use neap_stack::socket::icmp::{IcmpMessage, IcmpOptions};
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, UdpOptions};
use neap_tcp::counters::Counter;
use neap_tcp::options::SocketOption;
use neap_tcp::time::Nanos;

/// Calls its second argument at the moment of the change; the answer is a figure.
type Observe = fn(&mut World, &dyn Fn(&World)) -> u64;

/// One sysctl: what it is set to, and what differs for it.
struct Row {
    name: &'static str,
    value: &'static str,
    observe: Observe,
    /// Without the change, and with it.
    expected: (u64, u64),
}

const ROWS: &[Row] = &[
    Row {
        name: "net.core.wmem_max",
        value: "10000",
        observe: |world, set| {
            let (client, _) = open(world);
            set(world);
            client.set_option(world.now, SocketOption::SendBuffer(1 << 20)).unwrap();
            client.info(world.now).sndbuf.into()
        },
        expected: (2 << 20, 20_000),
    },
    Row {
        name: "net.core.rmem_max",
        value: "10000",
        observe: |world, set| {
            let (client, _) = open(world);
            set(world);
            client.set_option(world.now, SocketOption::ReceiveBuffer(1 << 20)).unwrap();
            client.info(world.now).rcvbuf.into()
        },
        expected: (2 << 20, 20_000),
    },
    Row {
        name: "net.core.somaxconn",
        value: "3",
        // The listener that is open keeps its bound.
        observe: |world, set| {
            let old = listen(world, 80);
            set(world);
            let new = listen(world, 81);
            let waiting = |world: &mut World, listener: &ListenerHandle| {
                let port = listener.local_addr().port();
                let _clients: Vec<_> = (0..10).map(|_| connect(world, port)).collect();
                world.run(Nanos::from_millis(100));
                core::iter::from_fn(|| listener.accept().ok()).count() as u64
            };
            1000 * waiting(world, &old) + waiting(world, &new)
        },
        expected: (10_010, 10_004),
    },
    Row {
        name: "net.ipv4.tcp_abort_on_overflow",
        value: "1",
        observe: |world, set| {
            let options = ListenOptions { backlog: 1, ..ListenOptions::default() };
            let _listener = world.b.listen(address(80), options).unwrap();
            set(world);
            let clients: Vec<_> = (0..5).map(|_| connect(world, 80)).collect();
            world.run(Nanos::from_millis(100));
            drop(clients);
            u64::from(world.b.tcp_counter(Counter::OutRsts) > 0)
        },
        expected: (0, 1),
    },
    Row {
        name: "net.ipv4.tcp_max_syn_backlog",
        value: "2",
        observe: |world, set| {
            world.b.set_sysctl("net.ipv4.tcp_syncookies", "0").unwrap();
            let _listener = listen(world, 80);
            set(world);
            cut(&world.ba);
            let _clients: Vec<_> = (0..6).map(|_| connect(world, 80)).collect();
            world.run(Nanos::from_millis(100));
            world.b.usage().tcp.requests as u64
        },
        expected: (6, 2),
    },
    Row {
        name: "net.ipv4.tcp_synack_retries",
        value: "1",
        // The request was there before the change.
        observe: |world, set| {
            let _listener = listen(world, 80);
            cut(&world.ba);
            let client = connect(world, 80);
            world.run(Nanos::from_millis(100));
            // Its SYNs would begin anew.
            cut(&world.ab);
            set(world);
            world.run(Nanos::from_secs(8));
            drop(client);
            world.b.usage().tcp.requests as u64
        },
        expected: (1, 0),
    },
    Row {
        name: "net.ipv4.tcp_invalid_ratelimit",
        value: "0",
        observe: |world, set| {
            let (client, server) = open(world);
            set(world);
            client.write(world.now, b"once").unwrap();
            world.run(Nanos::from_millis(100));
            let before = world.b.tcp_counter(Counter::OutSegs);
            // An empty segment far from the window, again and again.
            let stray = stray_of(world);
            for _ in 0..5 {
                common::inject(&world.ab, world.now, stray.clone());
                world.run(Nanos::from_millis(1));
            }
            drop(server);
            world.b.tcp_counter(Counter::OutSegs) - before
        },
        expected: (1, 5),
    },
    Row {
        name: "net.ipv4.tcp_fin_timeout",
        value: "5",
        observe: |world, set| {
            let (client, server) = open(world);
            set(world);
            // The peer never closes.
            drop(client);
            world.run(Nanos::from_secs(20));
            let waiting = world.a.usage().tcp.time_wait as u64;
            drop(server);
            waiting
        },
        expected: (1, 0),
    },
    Row {
        name: "net.ipv4.tcp_max_orphans",
        value: "2",
        observe: |world, set| {
            let _listener = listen(world, 80);
            let clients: Vec<_> = (0..5).map(|_| connect(world, 80)).collect();
            world.run(Nanos::from_millis(10));
            set(world);
            cut(&world.ab);
            drop(clients);
            world.run(Nanos::from_millis(10));
            world.a.usage().tcp.orphans as u64
        },
        expected: (5, 2),
    },
    Row {
        name: "net.ipv4.tcp_mem",
        value: "1 2 3",
        observe: |world, set| {
            let (client, server) = open(world);
            set(world);
            while client.write(world.now, &[1; 10_000]).is_ok() {
                world.run(Nanos::from_millis(1));
            }
            u64::from(server.unread(world.now) > 20_000)
        },
        expected: (1, 0),
    },
    Row {
        name: "net.ipv4.tcp_tw_reuse",
        value: "1",
        observe: |world, set| {
            leave_in_time_wait(world);
            set(world);
            world.run(Nanos::from_secs(2));
            u64::from(world.a.connect(world.now, address(80), ConnectOptions::default()).is_ok())
        },
        expected: (0, 1),
    },
    Row {
        name: "net.ipv4.tcp_tw_reuse_delay",
        value: "5000",
        observe: |world, set| {
            world.a.set_sysctl("net.ipv4.tcp_tw_reuse", "1").unwrap();
            leave_in_time_wait(world);
            set(world);
            world.run(Nanos::from_secs(2));
            u64::from(world.a.connect(world.now, address(80), ConnectOptions::default()).is_ok())
        },
        expected: (1, 0),
    },
    Row {
        name: "net.ipv4.udp_mem",
        value: "1 2 3",
        observe: |world, set| {
            set(world);
            datagrams_kept(world, 10, 1000)
        },
        expected: (10, 2),
    },
    Row {
        name: "net.ipv4.udp_rmem_min",
        value: "8000",
        observe: |world, set| {
            world.b.set_sysctl("net.ipv4.udp_mem", "1 2 3").unwrap();
            set(world);
            datagrams_kept(world, 10, 1000)
        },
        expected: (2, 4),
    },
    Row {
        name: "net.ipv4.tcp_orphan_retries",
        value: "1",
        observe: |world, set| {
            let (client, _server) = open(world);
            cut(&world.ab);
            client.write(world.now, b"lost").unwrap();
            set(world);
            drop(client);
            world.run(Nanos::from_secs(5));
            world.a.usage().tcp.connections as u64
        },
        expected: (1, 0),
    },
    Row {
        name: "net.ipv4.tcp_keepalive_time",
        value: "10",
        // A timer that runs is not moved; the next one is.
        observe: |world, set| {
            let (client, _server) = open(world);
            set(world);
            client.set_option(world.now, SocketOption::KeepAlive(true)).unwrap();
            world.run(Nanos::from_secs(35));
            world.a.tcp_counter(Counter::KeepAlive)
        },
        expected: (0, 1),
    },
    Row {
        name: "net.ipv4.tcp_max_tw_buckets",
        value: "2",
        observe: |world, set| {
            let listener = listen(world, 80);
            set(world);
            for _ in 0..5 {
                let client = connect(world, 80);
                world.run(Nanos::from_millis(10));
                drop(client);
                world.run(Nanos::from_millis(10));
                drop(listener.accept());
                world.run(Nanos::from_millis(10));
            }
            world.a.usage().tcp.time_wait as u64
        },
        expected: (5, 2),
    },
    Row {
        name: "net.ipv4.ip_local_port_range",
        value: "7 7",
        observe: |world, set| {
            let _listener = listen(world, 80);
            set(world);
            let tcp = connect(world, 80).local_addr().port();
            let udp =
                world.a.bind_udp("0.0.0.0:0".parse().unwrap(), UdpOptions::default()).unwrap();
            u64::from(tcp == 7) + u64::from(udp.local_addr().port() == 7)
        },
        expected: (0, 2),
    },
    Row {
        name: "net.ipv4.ip_default_ttl",
        value: "7",
        // The connection is open already.
        observe: |world, set| {
            let (client, _server) = open(world);
            set(world);
            client.write(world.now, b"hop").unwrap();
            world.run(Nanos::from_millis(1));
            let direction = world.ab.lock().unwrap();
            // The TTL of the last packet.
            u64::from(direction.sent.last().unwrap()[8])
        },
        expected: (64, 7),
    },
    Row {
        name: "net.ipv4.icmp_echo_ignore_all",
        value: "1",
        observe: |world, set| {
            set(world);
            echoes(world, "10.0.0.1", "10.0.0.2", 8)
        },
        expected: (1, 0),
    },
    Row {
        name: "net.ipv6.icmp.echo_ignore_all",
        value: "1",
        observe: |world, set| {
            set(world);
            echoes(world, "fd00::1", "fd00::2", 128)
        },
        expected: (1, 0),
    },
    Row {
        name: "net.ipv4.icmp_msgs_burst",
        value: "0",
        observe: |world, set| {
            set(world);
            refusals(world, "10.0.0.2:9")
        },
        expected: (6, 0),
    },
    Row {
        name: "net.ipv4.icmp_msgs_per_sec",
        value: "0",
        // Without a limit for the destination, in four seconds a burst of about 50, or as many
        // again and again.
        observe: |world, set| {
            world.b.set_sysctl("net.ipv4.icmp_ratelimit", "0").unwrap();
            set(world);
            let sent: u64 = (0..40).map(|_| refusals(world, "10.0.0.2:9")).sum();
            u64::from(sent > 200)
        },
        expected: (1, 0),
    },
    Row {
        name: "net.ipv4.icmp_ratelimit",
        value: "0",
        observe: |world, set| {
            set(world);
            refusals(world, "10.0.0.2:9")
        },
        expected: (6, 10),
    },
    Row {
        name: "net.ipv6.icmp.ratelimit",
        value: "0",
        observe: |world, set| {
            set(world);
            refusals(world, "[fd00::2]:9")
        },
        expected: (6, 10),
    },
    Row {
        name: "net.ipv4.ipfrag_high_thresh",
        value: "1000",
        observe: |world, set| {
            set(world);
            datagram_in_fragments(world, Nanos::ZERO)
        },
        expected: (1, 0),
    },
    Row {
        name: "net.ipv4.ipfrag_time",
        value: "1",
        // The first fragment was there before the change.
        observe: |world, set| {
            let socket = world.b.bind_udp(address(9), UdpOptions::default()).unwrap();
            let pieces = fragments(world);
            common::inject(&world.ab, world.now, pieces[0].clone());
            world.run(Nanos::from_millis(1));
            set(world);
            world.run(Nanos::from_secs(2));
            for piece in &pieces[1..] {
                common::inject(&world.ab, world.now, piece.clone());
                world.run(Nanos::from_millis(1));
            }
            u64::from(socket.recv_from().is_ok())
        },
        expected: (1, 0),
    },
];

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], port))
}

fn listen(world: &World, port: u16) -> ListenerHandle {
    world.b.listen(address(port), ListenOptions::default()).unwrap()
}

fn connect(world: &World, port: u16) -> TcpHandle {
    world.a.connect(world.now, address(port), ConnectOptions::default()).unwrap()
}

/// A connection from a to b, both ends.
fn open(world: &mut World) -> (TcpHandle, TcpHandle) {
    let listener = listen(world, 80);
    let client = connect(world, 80);
    world.run(Nanos::from_millis(10));
    (client, listener.accept().unwrap().0)
}

/// Host a has one port for connections, and that of its last connection to b is in TIME-WAIT.
fn leave_in_time_wait(world: &mut World) {
    world.a.set_sysctl("net.ipv4.ip_local_port_range", "40000 40000").unwrap();
    let (client, server) = open(world);
    client.close(world.now);
    world.run(Nanos::from_millis(10));
    server.close(world.now);
    world.run(Nanos::from_millis(10));
    assert_eq!(world.a.usage().tcp.time_wait, 1);
}

/// How many of so many datagrams of `len` bytes are there when their reader comes.
fn datagrams_kept(world: &mut World, count: u64, len: usize) -> u64 {
    let sender = world.a.bind_udp("0.0.0.0:0".parse().unwrap(), UdpOptions::default()).unwrap();
    let reader = world.b.bind_udp(address(9), UdpOptions::default()).unwrap();
    for _ in 0..count {
        sender.send_to(world.now, vec![7; len].into(), Some(address(9))).unwrap();
        world.run(Nanos::from_millis(1));
    }
    core::iter::from_fn(|| reader.recv_from().ok()).count() as u64
}

/// How many of ten datagrams to a closed port a hears of, and 100 ms pass.
fn refusals(world: &mut World, to: &str) -> u64 {
    let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let sender = world.a.bind_udp(any.parse().unwrap(), UdpOptions::default()).unwrap();
    sender.connect(Some(to.parse().unwrap())).unwrap();
    let mut refused = 0;
    for _ in 0..10 {
        sender.send_to(world.now, Bytes::from_static(b"?"), None).unwrap();
        world.run(Nanos::from_millis(3));
        refused += u64::from(matches!(sender.recv_from(), Err(SocketError::Refused)));
    }
    world.run(Nanos::from_millis(70));
    refused
}

/// The answers to an echo request, whose kind differs by the family. One that stays without an
/// answer is counted.
fn echoes(world: &mut World, from: &str, to: &str, kind: u8) -> u64 {
    let options = IcmpOptions { own: true, ..IcmpOptions::default() };
    let sender = world.a.open_icmp(options).unwrap();
    let data = vec![kind, 0, 0, 0, 0x12, 0x34, 0, 1];
    let request = IcmpMessage::new(from.parse().unwrap(), to.parse().unwrap(), data);
    sender.send(world.now, &request).unwrap();
    world.run(Nanos::from_millis(100));
    let answers = u64::from(sender.recv().is_ok());
    assert_eq!(world.b.drops().get(DropReason::IgnoredEcho), 1 - answers);
    answers
}

/// Nothing arrives by this direction from now on.
fn cut(direction: &common::Shared) {
    let nothing: Filter = Box::new(|_| false);
    direction.lock().unwrap().filter = Some(nothing);
}

/// The last packet that a sent, but without payload and from far behind the window.
fn stray_of(world: &World) -> Bytes {
    let sent = world.ab.lock().unwrap().sent.last().unwrap().clone();
    let header = usize::from(sent[0] & 15) * 4;
    let offset = usize::from(sent[header + 12] >> 4) * 4;
    let mut packet = sent[..header + offset].to_vec();
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[header + 4] ^= 0x40;
    fix_checksums(&mut packet, header);
    packet.into()
}

fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from));
    let mut sum = words.sum::<u32>() + start;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn fix_checksums(packet: &mut [u8], header: usize) {
    packet[10..12].fill(0);
    let ip = sum(&packet[..header], 0);
    packet[10..12].copy_from_slice(&ip.to_be_bytes());
    packet[header + 16..header + 18].fill(0);
    let addresses = u32::from(!sum(&packet[12..20], 0));
    let len = (packet.len() - header) as u32;
    let tcp = sum(&packet[header..], addresses + 6 + len);
    packet[header + 16..header + 18].copy_from_slice(&tcp.to_be_bytes());
}

/// What a sends for a datagram of 3000 bytes; it does not arrive.
fn fragments(world: &mut World) -> Vec<Bytes> {
    let sender = world.a.bind_udp("0.0.0.0:0".parse().unwrap(), UdpOptions::default()).unwrap();
    cut(&world.ab);
    world.ab.lock().unwrap().sent.clear();
    sender.send_to(world.now, Bytes::from_static(&[7; 3000]), Some(address(9))).unwrap();
    world.run(Nanos::from_millis(10));
    let mut direction = world.ab.lock().unwrap();
    direction.filter = None;
    direction.sent.clone()
}

/// Whether a datagram arrives whose fragments come with `pause` between them.
fn datagram_in_fragments(world: &mut World, pause: Nanos) -> u64 {
    let socket = world.b.bind_udp(address(9), UdpOptions::default()).unwrap();
    for piece in fragments(world) {
        common::inject(&world.ab, world.now, piece);
        world.run(pause + Nanos::from_millis(1));
    }
    u64::from(socket.recv_from().is_ok())
}

#[test]
fn what_is_set_on_a_running_stack_acts() {
    let mut wrong = Vec::new();
    for Row { name, value, observe, expected } in ROWS {
        let without = observe(&mut World::new(&WireConfig::default()), &|_| {});
        let with = observe(&mut World::new(&WireConfig::default()), &|world| {
            world.a.set_sysctl(name, value).unwrap();
            world.b.set_sysctl(name, value).unwrap();
        });
        if (without, with) != *expected {
            wrong.push(format!("{name}: {:?}, not {expected:?}", (without, with)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What a SYN offered holds until the connection is open, whatever the settings say meanwhile.
#[test]
fn settings_that_change_during_a_handshake_break_no_agreement() {
    for (name, value) in [
        ("net.ipv4.tcp_window_scaling", "0"),
        ("net.ipv4.tcp_timestamps", "0"),
        ("net.ipv4.tcp_sack", "0"),
        ("net.ipv4.tcp_rmem", "4096 8192 8192"),
    ] {
        let mut world = World::new(&WireConfig::default());
        let listener = listen(&world, 80);
        let client = connect(&world, 80);
        world.settle();
        world.a.set_sysctl(name, value).unwrap();
        // The socket is visited, and takes the settings up.
        let _ = client.write(world.now, b"");
        world.run(Nanos::from_millis(10));
        let server = listener.accept().unwrap().0;
        let data = vec![7; 300_000];
        let (mut written, mut read) = (0, 0);
        world.run_until(Nanos::from_secs(60), |world| {
            while let Ok(count) = server.write(world.now, &data[written..]) {
                written += count;
                if count == 0 {
                    break;
                }
            }
            let mut buf = [0; 65_536];
            while let Ok(count) = client.read(world.now, &mut buf) {
                read += count;
                if count == 0 {
                    break;
                }
            }
            read == data.len()
        });
        assert_eq!(read, data.len(), "{name}");
        let retransmitted = world.b.tcp_counter(Counter::RetransSegs);
        assert_eq!(retransmitted, 0, "{name}: the ends disagree about the window");
        assert_eq!(
            world.a.config().get(name).map(|text| text.replace('\t', " ")).as_deref(),
            Some(value)
        );
    }
}

/// Unlike in Linux, where an accepted socket has what its listener took when it was made.
#[test]
fn an_accepted_connection_goes_by_the_settings_of_its_own_time() {
    let mut world = World::new(&WireConfig::default());
    let listener = listen(&world, 80);
    world.b.set_sysctl("net.ipv4.tcp_rmem", "4096 50000 6291456").unwrap();
    let _client = connect(&world, 80);
    world.run(Nanos::from_millis(10));
    let accepted = listener.accept().unwrap().0;
    assert_eq!(accepted.info(world.now).rcvbuf, 50_000);
}

#[test]
fn two_threads_that_set_sysctls_do_not_undo_each_other() {
    let world = World::new(&WireConfig::default());
    std::thread::scope(|scope| {
        for name in ["net.ipv4.tcp_retries2", "net.ipv4.tcp_synack_retries"] {
            let stack = &world.a;
            scope.spawn(move || {
                for value in 1..200 {
                    stack.set_sysctl(name, &value.to_string()).unwrap();
                    assert_eq!(stack.config().get(name), Some(value.to_string()));
                }
            });
        }
    });
}
