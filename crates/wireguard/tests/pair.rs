//! Two stacks, each on a WireGuard device of its own, joined by UDP sockets of the loopback.

#[path = "../../cli/tests/common/namespace.rs"]
mod namespace;
#[path = "pair/paced.rs"]
mod paced;

use namespace::{in_namespace, run};
use neap::{Stack, TcpListener, TcpStream};
use neap_wireguard::{Peer, PresharedKey, PrivateKey, Wireguard, WireguardConfig, WireguardHandle};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The longest that something may take: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// One end of a tunnel.
struct End {
    stack: Stack,
    handle: WireguardHandle,
}

/// An interface on a port that the host chooses, without peers.
fn open(key: &PrivateKey) -> Wireguard {
    Wireguard::open(&WireguardConfig::new(key.clone())).expect("a socket")
}

fn peer(key: &PrivateKey, inside: IpAddr, shared: &PresharedKey) -> Peer {
    let mut peer = Peer::new(key.public_key());
    peer.allowed_ips = vec![inside.into()];
    peer.preshared_key = Some(shared.clone());
    peer
}

/// Two ends. Each knows the other's address inside, and the first also where the second is.
fn pair(insides: [&str; 2], loopback: &str) -> [End; 2] {
    let keys = [(); 2].map(|()| PrivateKey::generate().expect("random bytes"));
    let shared = PresharedKey::generate().expect("random bytes");
    let devices = [open(&keys[0]), open(&keys[1])];
    let handles = [devices[0].handle(), devices[1].handle()];
    let loopback: IpAddr = loopback.parse().expect("an address");
    let port = handles[1].status().listen_port;
    for (index, handle) in handles.iter().enumerate() {
        let inside = insides[1 - index].parse().expect("an address");
        let mut peer = peer(&keys[1 - index], inside, &shared);
        peer.endpoint = (index == 0).then_some(SocketAddr::new(loopback, port));
        handle.set_peers(vec![peer]).expect("a peer");
    }
    let mut handles = handles.into_iter();
    let mut insides = insides.into_iter();
    devices.map(|device| {
        let inside = insides.next().expect("two");
        let len = if inside.contains(':') { 64 } else { 24 };
        let stack = Stack::builder()
            .device(device.into_device())
            .address(format!("{inside}/{len}"))
            .build()
            .expect("a stack");
        End { stack, handle: handles.next().expect("two") }
    })
}

/// Bytes that a generator makes, so that both ends know them.
fn pattern(from: usize, buffer: &mut [u8]) {
    for (at, byte) in (from..).zip(buffer) {
        *byte = (at.wrapping_mul(2_654_435_761) >> 13) as u8;
    }
}

fn write_pattern(stream: &mut TcpStream, total: usize) {
    let mut buffer = vec![0; 1 << 17];
    let mut at = 0;
    while at < total {
        let len = buffer.len().min(total - at);
        pattern(at, &mut buffer[..len]);
        stream.write_all(&buffer[..len]).expect("written");
        at += len;
    }
}

fn read_pattern(stream: &mut TcpStream, total: usize) {
    let (mut buffer, mut expected) = (vec![0; 1 << 17], vec![0; 1 << 17]);
    let mut at = 0;
    while at < total {
        let len = stream.read(&mut buffer).expect("read");
        assert!(len > 0, "the end after {at} bytes");
        pattern(at, &mut expected[..len]);
        assert!(buffer[..len] == expected[..len], "other bytes between {at} and {}", at + len);
        at += len;
    }
}

/// Bytes there and back through a tunnel.
fn transfer(insides: [&str; 2], loopback: &str, total: usize) -> [End; 2] {
    transfer_between(pair(insides, loopback), insides[1], total)
}

/// The same between two ends, of which the second has this address inside.
fn transfer_between([near, far]: [End; 2], inside: &str, total: usize) -> [End; 2] {
    let to = SocketAddr::new(inside.parse().expect("an address"), 80);
    let listener = TcpListener::bind(&far.stack, to).expect("a listener");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            read_pattern(&mut stream, total);
            write_pattern(&mut stream, total);
        });
        let mut stream = TcpStream::connect(&near.stack, to).expect("a connection");
        write_pattern(&mut stream, total);
        read_pattern(&mut stream, total);
    });
    [near, far]
}

fn counter(end: &End, name: &str) -> u64 {
    let status = end.handle.status();
    status.counters.iter().find(|(is, _)| *is == name).expect(name).1
}

#[test]
fn bytes_pass_both_ways_and_both_sides_count_the_same() {
    let [near, far] = transfer(["10.7.0.1", "10.7.0.2"], "127.0.0.1", 30_000_000);
    // Until nothing is on its way.
    let begin = Instant::now();
    let (here, there) = loop {
        let statuses = (near.handle.status(), far.handle.status());
        if statuses.0.peers[0].sent == statuses.1.peers[0].received {
            break statuses;
        }
        assert!(begin.elapsed() < PATIENCE, "datagrams are lost on the way: {statuses:?}");
        std::thread::yield_now();
    };
    let (here, there) = (&here.peers[0], &there.peers[0]);
    assert!(here.sent > 30_000_000 && here.received > 30_000_000, "{here:?}");
    assert!(here.latest_handshake.is_some() && there.latest_handshake.is_some());
    assert_eq!((here.failed_handshakes, there.failed_handshakes), (0, 0));
    assert!(here.has_preshared_key);
    for end in [&near, &far] {
        let dropped: u64 = end
            .handle
            .status()
            .counters
            .iter()
            .filter(|(name, _)| name.starts_with("dropped"))
            .map(|(_, count)| count)
            .sum();
        assert_eq!(dropped, 0, "{:?}", end.handle.status());
        let (frames, datagrams) = (counter(end, "frames_sealed"), counter(end, "datagrams_sealed"));
        assert!(datagrams > 4 * frames, "{frames} frames of {datagrams} datagrams");
    }
}

#[test]
fn ipv6_within_and_without() {
    transfer(["fd07::1", "fd07::2"], "::1", 3_000_000);
}

#[test]
fn datagrams_alike_leave_by_one_call_and_arrive_as_they_were() {
    let [v4, v6] = [["10.7.6.1", "10.7.6.2"], ["fd07::1", "fd07::2"]];
    for (insides, loopback) in [(v4, "127.0.0.1"), (v4, "::1"), (v6, "127.0.0.1")] {
        let [near, far] = pair(insides, loopback);
        let [here, there] = insides.map(|inside| SocketAddr::new(inside.parse().expect("one"), 9));
        let source = neap::UdpSocket::bind(&near.stack, here).expect("a socket");
        let sink = neap::UdpSocket::bind(&far.stack, there).expect("a socket");
        // A route and a session.
        source.send_to(b"first", there).expect("sent");
        assert_eq!(sink.recv_from(&mut [0; 10]).expect("a datagram").0, 5);
        let counts = || ["sends", "frames_sealed", "datagrams_sealed"].map(|is| counter(&near, is));
        let before = counts();
        let mut bytes = vec![0; 39 * 1200 + 700];
        pattern(0, &mut bytes);
        let datagram = |data: &[u8]| neap::Datagram {
            data: data.to_vec().into(),
            peer: there,
            local: None,
            interface: None,
            hop_limit: Some(9),
            // A class, and ECT(1).
            tos: Some(0x29),
            dont_fragment: true,
            arrival: None,
        };
        let datagrams: Vec<_> = bytes.chunks(1200).map(datagram).collect();
        assert_eq!(source.send_batch(&datagrams).expect("sent"), 40);
        let mut arrived = Vec::new();
        while arrived.len() < 40 {
            sink.recv_batch(&mut arrived, 64).expect("datagrams");
        }
        assert_eq!(counts(), [before[0] + 1, before[1] + 1, before[2] + 40]);
        for (sent, arrived) in datagrams.iter().zip(&arrived) {
            assert!(sent.data == arrived.data, "other bytes");
            let arrival = arrived.arrival.expect("it says how it came");
            assert_eq!((arrival.tos, arrival.hop_limit, arrival.dont_fragment), (0x29, 9, true));
        }
    }
}

/// Times that threads of this process have slept, the calling thread excepted.
fn sleeps() -> u64 {
    let own = std::fs::canonicalize("/proc/thread-self").expect("a thread");
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    let threads = threads.map(|thread| thread.expect("a thread").path());
    let others = threads.filter(|thread| thread.file_name() != own.file_name());
    let of = |thread: std::path::PathBuf| {
        let status = std::fs::read_to_string(thread.join("status")).unwrap_or_default();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.map_or(0, |count| count.trim().parse::<u64>().expect("a number"))
    };
    others.map(of).sum()
}

/// Waits for two seconds in which no other thread is woken. Keepalives are far between.
fn expect_rest() {
    let is_at_rest = || {
        let before = sleeps();
        std::thread::sleep(std::time::Duration::from_secs(2));
        sleeps() == before
    };
    assert!((0..30).any(|_| is_at_rest()), "something wakes up all the time");
}

#[test]
fn both_ends_live_in_one_thread_of_tokio_which_rests_afterwards() {
    use neap::tokio::{TcpListener, TcpStream};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const TOTAL: usize = 3_000_000;
    in_namespace(|| {
        run("ip link set lo up");
        let mut sent = vec![0; TOTAL];
        pattern(0, &mut sent);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let [near, far] = pair(["10.7.7.1", "10.7.7.2"], "127.0.0.1");
            let to: SocketAddr = "10.7.7.2:80".parse().expect("an address");
            let listener = TcpListener::bind(&far.stack, to).await.expect("a listener");
            let server = async {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut bytes = vec![0; TOTAL];
                stream.read_exact(&mut bytes).await.expect("received");
                stream.write_all(&bytes).await.expect("sent");
                stream
            };
            let client = async {
                let mut stream = TcpStream::connect(&near.stack, to).await.expect("a connection");
                stream.write_all(&sent).await.expect("sent");
                let mut back = vec![0; TOTAL];
                stream.read_exact(&mut back).await.expect("received");
                assert!(back == sent, "other bytes");
                stream
            };
            let streams = tokio::join!(server, client);
            tokio::task::spawn_blocking(expect_rest).await.expect("rest");
            drop(streams);
        });
    });
}

#[test]
fn a_peer_that_nobody_can_reach_holds_up_no_other() {
    let [near, far] = pair(["10.7.1.1", "10.7.1.2"], "127.0.0.1");
    let mut peers = Vec::new();
    let other = PrivateKey::generate().expect("random bytes");
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let mut dead = Peer::new(other.public_key());
    dead.allowed_ips = vec!["10.7.1.3/32".parse().expect("a prefix")];
    dead.endpoint = Some(silent.local_addr().expect("an address"));
    peers.push(dead);
    let known = near.handle.status().peers.remove(0);
    let mut alive = Peer::new(known.public_key);
    alive.allowed_ips = known.allowed_ips;
    alive.endpoint = known.endpoint;
    peers.push(alive);
    near.handle.set_peers(peers).expect("peers");
    // Without the key that they shared before.
    let known = far.handle.status().peers.remove(0);
    let mut back = Peer::new(known.public_key);
    back.allowed_ips = known.allowed_ips;
    far.handle.set_peers(vec![back]).expect("a peer");
    let lost: SocketAddr = "10.7.1.3:80".parse().expect("an address");
    let to: SocketAddr = "10.7.1.2:80".parse().expect("an address");
    let listener = TcpListener::bind(&far.stack, to).expect("a listener");
    let udp = neap::UdpSocket::bind(&near.stack, "10.7.1.1:9").expect("a socket");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            read_pattern(&mut stream, 1_000_000);
        });
        for _ in 0..300 {
            let _ = udp.send_to(&[0; 1000], lost);
        }
        let mut stream = TcpStream::connect(&near.stack, to).expect("a connection");
        write_pattern(&mut stream, 1_000_000);
    });
    let status = near.handle.status();
    assert!(status.peers[0].latest_handshake.is_none() && status.peers[0].sent > 0);
    assert!(counter(&near, "dropped_waiting") > 0);
}

#[test]
fn a_transfer_goes_on_while_both_ends_change_their_ports() {
    const TOTAL: usize = 40_000_000;
    let [near, far] = pair(["10.7.2.1", "10.7.2.2"], "127.0.0.1");
    let to: SocketAddr = "10.7.2.2:80".parse().expect("an address");
    let listener = TcpListener::bind(&far.stack, to).expect("a listener");
    let ports = || [near.handle.status().listen_port, far.handle.status().listen_port];
    let before = ports();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            read_pattern(&mut stream, TOTAL);
        });
        let mut stream = TcpStream::connect(&near.stack, to).expect("a connection");
        for (part, handle) in [&near.handle, &far.handle, &near.handle].into_iter().enumerate() {
            let (from, to) = (part * TOTAL / 4, (part + 1) * TOTAL / 4);
            let mut buffer = vec![0; to - from];
            pattern(from, &mut buffer);
            stream.write_all(&buffer).expect("written");
            handle.set_listen_port(0).expect("another port");
        }
        let mut buffer = vec![0; TOTAL / 4];
        pattern(TOTAL / 4 * 3, &mut buffer);
        stream.write_all(&buffer).expect("written");
        // The reader's end ends the scope.
    });
    assert!(ports().iter().all(|port| !before.contains(port)), "{before:?}");
    assert!(near.handle.status().peers[0].endpoint.is_some_and(|at| at.port() == ports()[1]));
    assert!(counter(&far, "roamed") >= 1);
}

/// Hands datagrams of at most `most` bytes on to `to`, until one is empty.
fn narrow_path(socket: &std::net::UdpSocket, to: SocketAddr, most: usize) {
    let (mut buffer, mut back) = ([0; 2048], None);
    while let Ok((len @ 1.., from)) = socket.recv_from(&mut buffer) {
        let next = if from == to {
            back
        } else {
            back = Some(from);
            Some(to)
        };
        if let Some(next) = next.filter(|_| len <= most) {
            let _ = socket.send_to(&buffer[..len], next);
        }
    }
}

#[test]
fn a_path_that_loses_large_packets_without_a_word_is_passed_by_smaller_ones() {
    let [near, far] = pair(["10.7.3.1", "10.7.3.2"], "127.0.0.1");
    let middle = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let at = middle.local_addr().expect("an address");
    let known = near.handle.status().peers.remove(0);
    near.handle.set_endpoint(&known.public_key, at).expect("a peer");
    let to: SocketAddr = "10.7.3.2:80".parse().expect("an address");
    let listener = TcpListener::bind(&far.stack, to).expect("a listener");
    std::thread::scope(|scope| {
        let other = known.endpoint.expect("the far end");
        let narrow = scope.spawn(move || narrow_path(&middle, other, 1400));
        let reader = scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            read_pattern(&mut stream, 1_000_000);
        });
        let mut stream = TcpStream::connect(&near.stack, to).expect("a connection");
        write_pattern(&mut stream, 1_000_000);
        reader.join().expect("all has come");
        let end = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        end.send_to(&[], at).expect("sent");
        narrow.join().expect("the end");
    });
    assert_eq!(counter(&near, "black_holes"), 1);
}

#[test]
fn a_connection_to_where_nobody_is_fails_at_once() {
    let pairs = [(["10.7.5.1", "10.7.5.2"], "10.7.5.9"), (["fd07::1", "fd07::2"], "fd07::9")];
    for (insides, nobody) in pairs {
        let [near, _far] = pair(insides, "127.0.0.1");
        let to = SocketAddr::new(nobody.parse().expect("an address"), 80);
        let error = TcpStream::connect(&near.stack, to).expect_err("no way there");
        assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable, "{nobody}");
    }
}

#[test]
fn a_path_that_takes_no_full_packet_is_looked_at_a_few_times() {
    in_namespace(|| {
        run("ip link set lo up mtu 1280");
        for (insides, loopback) in
            [(["10.7.4.1", "10.7.4.2"], "127.0.0.1"), (["10.7.4.1", "10.7.4.2"], "::1")]
        {
            let ends = transfer(insides, loopback, 1_000_000);
            assert_eq!(counter(&ends[0], "path_mtu_changes"), 1);
            for end in &ends {
                let (looks, cut) = (counter(end, "path_looks"), counter(end, "sent_fragmentable"));
                assert!(looks <= 8 && cut > 10, "{looks} looks and {cut} super-frames");
            }
        }
    });
}

#[test]
fn a_tunnel_that_needs_no_ipv6_inside_follows_a_path_that_takes_less() {
    in_namespace(|| {
        run("ip link set lo up mtu 800");
        let insides = ["10.7.5.1", "10.7.5.2"];
        let ends = pair(insides, "127.0.0.1");
        for end in &ends {
            let error = end.handle.set_least_mtu(Some(575)).expect_err("too small");
            assert!(error.to_string().contains("576 to 1280"), "{error}");
            end.handle.set_least_mtu(Some(576)).expect("it may be so small");
        }
        for end in &transfer_between(ends, insides[1], 300_000) {
            assert_eq!(counter(end, "sent_fragmentable"), 0, "{:?}", end.handle.status());
        }
    });
}
