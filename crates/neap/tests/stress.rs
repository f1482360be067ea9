//! Real threads own a socket while segments, completions and timers arrive for it: nothing is lost,
//! nobody waits for ever, and everything is given back. Over the loopback of one stack, which needs
//! no privileges, and over a TUN with two queues.

#[allow(dead_code, reason = "shared with the tests against the kernel")]
mod common;
#[path = "common/exchange.rs"]
mod exchange;
#[path = "common/island.rs"]
mod island;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{
    Family, Pattern, expect_end, expect_nothing_below, expect_nothing_left, in_namespace,
};
use exchange::Exchange;
use island::island;
use neap::SocketOption;
use neap::device::TunConfig;
use neap::info::DropReason;
use neap::time::Nanos;
use neap::{Stack, TcpListener, TcpStream, UdpSocket, WriteFlags};

fn pair(stack: &Stack, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let address = listener.local_addr().expect("an address");
    let client = TcpStream::connect(stack, address).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    (client, server)
}

/// Asks and sets whatever does not change the stream, until it is over.
fn meddle(stack: &Stack, stream: &TcpStream, is_over: &AtomicBool) {
    let mut round = 0_u32;
    while !is_over.load(Ordering::SeqCst) {
        let info = stream.info();
        assert!(info.bytes_acked <= info.bytes_sent + 2, "{info:?}");
        let option = match round % 4 {
            0 => SocketOption::NoDelay(round.is_multiple_of(8)),
            1 => SocketOption::QuickAck(i32::from(round.is_multiple_of(3))),
            2 => SocketOption::KeepAliveIdle(Nanos::from_secs(60)),
            _ => SocketOption::KeepAlive(round.is_multiple_of(5)),
        };
        stream.set_option(option).expect("an option");
        if round.is_multiple_of(16) {
            stack.host().flows();
            stack.host().interfaces();
        }
        round = round.wrapping_add(1);
        // Two cores are few for so many threads.
        thread::yield_now();
    }
}

/// Ends those who [`meddle`] with the last of the threads that hold it, also if they fail.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Both directions of both ends at once, and threads that meddle with each end.
fn busy_stream(stack: &Stack, ends: &(TcpStream, TcpStream), seed: u64, len: u64) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Arc::new(Over(&is_over));
        for (one, other) in [(0, 1), (1, 0)] {
            let end = |index| if index == 0 { &ends.0 } else { &ends.1 };
            let (from, to) = (end(one), end(other));
            let (is_over, over) = (&is_over, over.clone());
            scope.spawn(move || {
                Pattern(seed + one).send(&mut &*from, len);
                from.shutdown(Shutdown::Write).expect("shutdown");
            });
            scope.spawn(move || {
                let _over = over;
                Pattern(seed + one).receive(&mut &*to, len);
                expect_end(&mut &*to);
            });
            scope.spawn(move || meddle(stack, from, is_over));
        }
    });
}

#[test]
fn streams_of_the_loopback_with_six_threads_each() {
    const LEN: u64 = 8 << 20;
    let stack = island(2);
    let local = ["10.9.0.2:80", "[fd00:9::2]:80", "127.0.0.1:81"];
    let listeners = local.map(|local| TcpListener::bind(&stack, local).expect("bind"));
    let pairs: Vec<_> = listeners.iter().map(|listener| pair(&stack, listener)).collect();
    thread::scope(|scope| {
        for (seed, ends) in (0..).step_by(2).zip(&pairs) {
            let stack = &stack;
            scope.spawn(move || busy_stream(stack, ends, seed, LEN));
        }
    });
    expect_nothing_below(&stack);
    drop(pairs);
    drop(listeners);
    // The ends that closed first stay in TIME_WAIT.
    common::eventually(|| stack.host().usage(), |usage| usage.names == 0);
}

#[test]
fn streams_over_a_tun_with_two_queues() {
    const LEN: u64 = 8 << 20;
    in_namespace(|| {
        let family = Family::V4;
        let config = TunConfig { name: Some("t0".into()), queues: 2, ..TunConfig::default() };
        let stack = Stack::builder()
            .tun_with(config)
            .host_address(family.cidr(family.kernel()))
            .address(family.cidr(family.ours()))
            .build()
            .expect("a stack");
        let pairs: Vec<_> = (0..6).map(|_| family.pair(&stack)).collect();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let over = Arc::new(Over(&is_over));
            for (_, theirs) in &pairs {
                scope.spawn(move || {
                    std::io::copy(&mut &*theirs, &mut &*theirs).expect("an echo");
                    theirs.shutdown(Shutdown::Write).expect("shutdown");
                });
            }
            for (seed, (ours, _)) in (0..).zip(&pairs) {
                let (stack, is_over, over) = (&stack, &is_over, over.clone());
                scope.spawn(move || {
                    Pattern(seed).send(&mut &*ours, LEN);
                    ours.shutdown(Shutdown::Write).expect("shutdown");
                });
                scope.spawn(move || {
                    let _over = over;
                    Pattern(seed).receive(&mut &*ours, LEN);
                    expect_end(&mut &*ours);
                });
                scope.spawn(move || meddle(stack, ours, is_over));
            }
        });
        expect_nothing_below(&stack);
    });
}

/// Threads that take things from one socket, or only look at them, and others that drive the stack
/// meanwhile: each thing finds a thread.
#[test]
fn threads_that_wait_for_one_socket_share_what_comes() {
    const DATAGRAMS: u64 = 6_000;
    // What the receive buffer holds.
    const WINDOW: u64 = 50;
    const THREADS: usize = 4;
    let stack = island(1);
    let socket = UdpSocket::bind(&stack, "127.0.0.1:0").expect("a free port");
    let to = socket.local_addr().expect("an address");
    let received = AtomicU64::new(0);
    thread::scope(|scope| {
        let receive = || {
            let mut buf = [0; 8];
            while socket.recv(&mut buf).expect("a datagram") > 0 {
                received.fetch_add(1, Ordering::SeqCst);
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(receive)).collect();
        scope.spawn(|| while socket.peek(&mut [0; 8]).expect("a datagram") > 0 {});
        let sender = UdpSocket::bind(&stack, "127.0.0.1:0").expect("a free port");
        for sent in 0..DATAGRAMS {
            // One at a time now and then: all threads sleep.
            let window = if sent.is_multiple_of(7) { 1 } else { WINDOW };
            while sent >= received.load(Ordering::SeqCst) + window {
                thread::yield_now();
            }
            sender.send_to(b"datagram", to).expect("sent");
        }
        // The end of the one that looks, and of the others.
        while threads.iter().any(|thread| !thread.is_finished()) {
            sender.send_to(b"", to).expect("sent");
            thread::yield_now();
        }
        sender.send_to(b"", to).expect("sent");
    });
    assert_eq!(received.into_inner(), DATAGRAMS);
}

/// What no round trip over a TUN can be shorter than, by the [least exchange](Exchange::least) of
/// this machine.
///
/// A segment and its ACK take the same way through the kernel as a request and its answer, and
/// besides the socket's, and caches are cold. So the least of them takes longer, and work of others
/// on the machine makes it longer still. Half of the exchange leaves room for a processor that is
/// faster at one time than at another; it is measured before and after each connection, and the
/// least counts. A clock that halves round trips is found where they take no longer than an
/// exchange, and one that makes them vanish always.
fn floor(least: Duration) -> Nanos {
    Nanos::from(least / 2)
}

#[test]
fn no_round_trip_is_shorter_than_the_device_while_one_thread_writes_and_another_drives() {
    const ROUNDS: usize = 30_000;
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let mut exchange = Exchange::open();
        let mut least = exchange.least();
        let mut shortest = Nanos::MAX;
        for seed in 0..3 {
            let (ours, theirs) = family.pair(&stack);
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                let _over = Over(&is_over);
                // The peer's ACKs come with every echo; this thread waits for them, and so drives.
                let theirs = &theirs;
                scope.spawn(move || {
                    std::io::copy(&mut &*theirs, &mut &*theirs).expect("an echo");
                    theirs.shutdown(Shutdown::Write).expect("shutdown");
                });
                let (ours, is_over, stack) = (&ours, &is_over, &stack);
                scope.spawn(move || {
                    let no_delay = SocketOption::NoDelay(true);
                    ours.set_option(no_delay).expect("an option");
                    // Short writes and long ones: frames that leave at once, and calls that own
                    // the socket for long.
                    let data = vec![7; 200_000];
                    for round in 0..ROUNDS {
                        let len = if round.is_multiple_of(500) { data.len() } else { 100 };
                        (&*ours).write_all(&data[..len]).expect("written");
                    }
                    ours.shutdown(Shutdown::Write).expect("shutdown");
                });
                scope.spawn(move || meddle(stack, ours, is_over));
                let mut buf = vec![0; 100_000];
                while (&*ours).read(&mut buf).expect("an echo") > 0 {}
            });
            let min_rtt = ours.info().min_rtt.expect("a round trip");
            least = least.min(exchange.least());
            assert!(
                min_rtt >= floor(least),
                "{min_rtt:?} on connection {seed}, exchange {least:?}"
            );
            shortest = shortest.min(min_rtt);
        }
        println!("figures: {shortest:?} at least, an exchange without a stack {least:?}");
    });
}

#[test]
fn several_writers_of_one_socket_lose_nothing() {
    const WRITERS: u8 = 4;
    const LEN: u32 = 1 << 20;
    let stack = island(2);
    let any = SocketAddr::new(Family::V4.ours(), 0);
    let listener = TcpListener::bind(&stack, any).expect("bind");
    let (client, mut server) = pair(&stack, &listener);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let client = &client;
                // The upper bits of a byte say who wrote it, the lower ones count.
                scope.spawn(move || {
                    let mut sent = 0_u32;
                    let mut size = 1;
                    while sent < LEN {
                        let bytes: Vec<u8> = (sent..LEN.min(sent + size))
                            .map(|index| writer << 6 | (index % 61) as u8)
                            .collect();
                        (&*client).write_all(&bytes).expect("written");
                        sent += bytes.len() as u32;
                        size = size % 9000 + 13;
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
            client.shutdown(Shutdown::Write).expect("shutdown");
        });
        let mut next = [0_u32; WRITERS as usize];
        let mut buf = vec![0; 100_000];
        loop {
            let len = server.read(&mut buf).expect("data");
            if len == 0 {
                break;
            }
            for byte in &buf[..len] {
                let writer = usize::from(byte >> 6);
                assert_eq!(u32::from(byte & 63), next[writer] % 61, "of writer {writer}");
                next[writer] += 1;
            }
        }
        assert_eq!(next, [LEN; WRITERS as usize]);
    });
}

#[test]
fn timers_run_while_threads_own_the_sockets() {
    const LEN: u64 = 256 << 10;
    let stack = island(2);
    let any = SocketAddr::new(Family::V4.ours(), 0);
    let listener = TcpListener::bind(&stack, any).expect("bind");
    let (client, server) = pair(&stack, &listener);
    // Pacing makes every burst wait for a timer; reads that time out add more.
    client.set_max_pacing_rate(Some(2 << 20)).expect("a rate");
    server.set_read_timeout(Some(Duration::from_millis(2))).expect("a timeout");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| meddle(&stack, &client, &is_over));
        scope.spawn(|| meddle(&stack, &server, &is_over));
        scope.spawn(|| {
            Pattern(1).send(&mut &client, LEN);
            client.shutdown(Shutdown::Write).expect("shutdown");
        });
        let mut got = 0;
        let mut buf = [0; 5000];
        loop {
            match (&server).read(&mut buf) {
                Ok(0) => break,
                Ok(len) => {
                    Pattern(1).check(got, &buf[..len]);
                    got += len as u64;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        assert_eq!(got, LEN);
    });
    expect_nothing_below(&stack);
}

#[test]
fn connections_come_and_go_on_many_threads() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 100;
    const LEN: u64 = 20_000;
    let stack = island(2);
    let any = SocketAddr::new(Family::V4.ours(), 0);
    let listener = TcpListener::bind(&stack, any).expect("bind");
    let address = listener.local_addr().expect("an address");
    thread::scope(|scope| {
        for _ in 0..2 {
            let listener = &listener;
            scope.spawn(move || {
                for stream in listener.incoming().take((THREADS / 2 * ROUNDS) as usize) {
                    let mut stream = stream.expect("accept");
                    let mut seed = [0; 8];
                    stream.read_exact(&mut seed).expect("a seed");
                    Pattern(u64::from_be_bytes(seed)).send(&mut stream, LEN);
                    // The client resets: nothing stays in TIME_WAIT.
                    let mut rest = Vec::new();
                    let error = stream.read_to_end(&mut rest).expect_err("a reset");
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                }
            });
        }
        for thread in 0..THREADS {
            let stack = &stack;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let seed = thread * ROUNDS + round;
                    let mut stream = TcpStream::connect(stack, address).expect("connect");
                    stream.write_all(&seed.to_be_bytes()).expect("written");
                    Pattern(seed).receive(&mut stream, LEN);
                    stream.set_linger(Some(Duration::ZERO)).expect("an option");
                }
            });
        }
    });
    expect_nothing_left(&stack, 1);
}

/// Connects and ends in one of four ways: a close, resets, or no patience for the handshake.
fn come_and_go(stack: &Stack, to: SocketAddr, thread: u32, round: u32) {
    let what = (thread + round) % 4;
    if what == 3 {
        let limit = Duration::from_micros(u64::from(thread * round % 300 + 1));
        let _ = TcpStream::connect_timeout(stack, to, limit);
        return;
    }
    let mut stream = match TcpStream::connect(stack, to) {
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => return,
        connected => connected.expect("connect"),
    };
    stream.write_all(&[7; 500]).expect("written");
    if what > 0 {
        stream.set_linger(Some(Duration::ZERO)).expect("an option");
    }
    if what < 2 {
        stream.read_exact(&mut [0; 500]).expect("an echo");
    }
}

/// Ports are few, so most connections have the ports of others that have just ended.
#[test]
fn connects_aborts_and_closes_of_64_threads_leave_nothing() {
    const THREADS: u32 = 64;
    const ROUNDS: u32 = 50;
    let stack = island(2);
    // Some are in TIME-WAIT, others are used again at once, and they may run out.
    stack.set_sysctl("net.ipv4.ip_local_port_range", "40000 40999").expect("a range");
    let any = SocketAddr::new(Family::V4.ours(), 80);
    let listener = TcpListener::bind(&stack, any).expect("bind");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            let (listener, is_over) = (&listener, &is_over);
            scope.spawn(move || {
                while let Ok((mut stream, _)) = listener.accept()
                    && !is_over.load(Ordering::SeqCst)
                {
                    let mut buf = [0; 1000];
                    while let Ok(len) = stream.read(&mut buf)
                        && len > 0
                        && stream.write_all(&buf[..len]).is_ok()
                    {}
                }
            });
        }
        let clients: Vec<_> = (0..THREADS)
            .map(|thread| {
                let stack = &stack;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        come_and_go(stack, any, thread, round);
                    }
                })
            })
            .collect();
        let ends: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::SeqCst);
        // One for each thread that accepts; ports may be few by now.
        let from = |port| neap::ConnectOptions {
            local: Some(SocketAddr::new(any.ip(), port)),
            ..neap::ConnectOptions::default()
        };
        for port in 50_000..50_004 {
            drop(TcpStream::connect_with(&stack, any, from(port), None).expect("connect"));
        }
        ends.into_iter().for_each(|end| end.expect("a client"));
    });
    let host = stack.host();
    listener.set_nonblocking(true).expect("an option");
    common::eventually(
        || {
            // A thread may have ended with a connection that its client had given up, and left one
            // of the last in its place.
            while listener.accept().is_ok() {}
            host.usage()
        },
        |usage| {
            let left = usage.tcp.connections + usage.tcp.requests + usage.tcp.waiting;
            left == 0 && usage.names == 1 && usage.loopback_bytes == 0
        },
    );
    assert_eq!(host.drops_for(DropReason::LoopbackFull), 0);
    expect_nothing_below(&stack);
}

#[test]
fn a_stack_that_ends_lets_everybody_go() {
    for _ in 0..20 {
        let stack = island(2);
        let any = SocketAddr::new(Family::V4.ours(), 0);
        let listener = TcpListener::bind(&stack, any).expect("bind");
        let pairs: Vec<_> = (0..4).map(|_| pair(&stack, &listener)).collect();
        thread::scope(|scope| {
            let listener = &listener;
            scope.spawn(move || {
                let error = listener.accept().expect_err("the stack ends");
                assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
            });
            for (client, server) in &pairs {
                scope.spawn(move || {
                    let mut client = client;
                    // Until it fails: the server never ends the stream.
                    while client.write(&[7; 30_000]).is_ok() {}
                });
                scope.spawn(move || {
                    let mut server = server;
                    let mut buf = [0; 30_000];
                    while server.read(&mut buf).is_ok_and(|len| len > 0) {}
                });
            }
            drop(stack);
        });
    }
}

#[test]
fn a_blocking_read_waits_for_its_low_water_mark_or_its_timeout() {
    let stack = island(2);
    let listener = TcpListener::bind(&stack, "10.9.0.2:80").expect("bind");
    let (client, server) = pair(&stack, &listener);
    server.set_option(SocketOption::ReceiveLowat(5)).expect("an option");
    let mut buf = [0; 100];
    let reader = thread::spawn(move || {
        let first = (&server).read(&mut buf).expect("five bytes");
        server.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let mut count = first;
        // On a busy machine a timeout may pass before the rest is sent.
        for _ in 0..1000 {
            match (&server).read(&mut buf) {
                Ok(more) => count += more,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            if count >= 8 {
                break;
            }
        }
        (first, count)
    });
    for part in [&b"12"[..], b"3", b"45"] {
        client.send(part, WriteFlags::EOR).expect("room");
    }
    // Only a reader that took all five bytes at once has two more to wait for.
    while client.info().unacked_bytes > 0 {
        thread::yield_now();
    }
    client.send(b"67", WriteFlags::MORE).expect("room");
    client.send(b"8", WriteFlags::empty()).expect("room");
    let (first, count) = reader.join().expect("the reader");
    assert!(first >= 5, "{first} bytes");
    assert_eq!(count, 8);
}
