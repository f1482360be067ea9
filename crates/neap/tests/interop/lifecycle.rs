//! How connections and stacks begin and end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use neap::Stack;
use neap::info::Counter;

use crate::asleep::{announce, announcement, until_all_asleep, until_asleep};
use crate::common::{
    Family, Pattern, eventually, expect_end, expect_nothing_left, fill, in_namespace, run,
};

#[test]
fn a_peer_that_closes_with_unread_data_resets_us() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let (mut ours, mut theirs) = family.pair(&stack);
            ours.write_all(&Pattern(1).bytes(100_000)).expect("written");
            theirs.read_exact(&mut [0; 10]).expect("some of it");
            drop(theirs);
            let error = ours.read(&mut [0; 16]).expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            // The error is told once, then the stream is over.
            assert_eq!(ours.read(&mut [0; 16]).expect("the end"), 0);
            assert_eq!(ours.write(b"x").expect_err("over").kind(), ErrorKind::BrokenPipe);
            for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
                let error = ours.shutdown(how).expect_err("nothing is connected");
                assert_eq!(error.kind(), ErrorKind::NotConnected);
            }
            drop(ours);
            expect_nothing_left(&stack, 0);
        }
    });
}

#[test]
fn a_linger_of_zero_resets_the_peer() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let (mut ours, mut theirs) = family.pair(&stack);
            ours.write_all(b"hello").expect("written");
            theirs.read_exact(&mut [0; 5]).expect("read");
            ours.set_linger(Some(Duration::ZERO)).expect("an option");
            drop(ours);
            let error = theirs.read(&mut [0; 16]).expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            expect_nothing_left(&stack, 0);
        }
    });
}

#[test]
fn closing_with_unread_data_resets_the_peer() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (mut ours, mut theirs) = family.pair(&stack);
        theirs.write_all(b"never read").expect("written");
        let mut first = [0];
        ours.read_exact(&mut first).expect("one byte");
        drop(ours);
        let error = theirs.read(&mut [0; 16]).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        expect_nothing_left(&stack, 0);
    });
}

#[test]
fn what_was_written_before_a_drop_arrives() {
    const LEN: u64 = 3 << 20;
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (mut ours, mut theirs) = family.pair(&stack);
        let pattern = Pattern(2);
        let kernel = thread::spawn(move || {
            pattern.receive(&mut theirs, LEN);
            expect_end(&mut theirs);
        });
        pattern.send(&mut ours, LEN);
        drop(ours);
        kernel.join().expect("the kernel's end");
    });
}

#[test]
fn close_lingers_until_all_is_acknowledged() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (mut ours, mut theirs) = family.pair(&stack);
        // Far longer than the test may take: the acknowledgement ends the wait, and nothing else.
        ours.set_linger(Some(Duration::from_secs(3600))).expect("an option");
        ours.write_all(b"to the last byte").expect("written");
        let before = stack.host().flows();
        assert_eq!(before.len(), 1);
        ours.close().expect("acknowledged in time");
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).expect("all");
        assert_eq!(got, b"to the last byte");
    });
}

#[test]
fn a_close_that_lingers_says_how_it_failed() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        // The peer reads nothing, so its window closes and the FIN cannot leave.
        let (ours, theirs) = family.pair(&stack);
        ours.set_linger(Some(Duration::from_millis(50))).expect("an option");
        ours.set_nonblocking(true).expect("a mode");
        fill(&ours);
        let late = ours.close().expect_err("the peer reads nothing");
        assert_eq!(late.kind(), ErrorKind::WouldBlock);
        drop(theirs);
        // Data that nobody has read makes it a reset.
        let (ours, mut theirs) = family.pair(&stack);
        ours.set_linger(Some(Duration::from_secs(3600))).expect("an option");
        theirs.write_all(b"never read").expect("written");
        ours.peek(&mut [0; 16]).expect("it came");
        let reset = ours.close().expect_err("a reset");
        assert_eq!(reset.kind(), ErrorKind::ConnectionAborted);
        let reset = theirs.read(&mut [0; 16]).expect_err("a reset");
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_clone_that_is_dropped_closes_nothing_and_a_close_is_for_all() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (mut ours, mut theirs) = family.pair(&stack);
        drop(ours.try_clone().expect("a clone"));
        ours.write_all(b"one").expect("still open");
        theirs.read_exact(&mut [0; 3]).expect("read");
        let (mut second, third) = (ours.clone(), ours.clone());
        thread::scope(|scope| {
            let (say, hear) = announcement();
            let third = &third;
            let waiting = scope.spawn(move || {
                announce(&say);
                { third }.read(&mut [0; 16])
            });
            until_asleep(&hear);
            ours.close().expect("closed");
            assert_eq!(waiting.join().expect("a reader").expect("the end"), 0);
        });
        expect_end(&mut theirs);
        assert_eq!(second.read(&mut [0; 16]).expect("the end"), 0);
        let error = second.write(b"x").expect_err("it is closed for all");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn refused_both_ways() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let closed = SocketAddr::new(family.kernel(), 9);
            let error = neap::TcpStream::connect(&stack, closed).expect_err("nobody listens");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            let error = TcpStream::connect((family.ours(), 9)).expect_err("nobody listens");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            expect_nothing_left(&stack, 0);
        }
    });
}

#[test]
fn a_silent_address_times_out() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = Stack::builder()
                .tun("t0")
                .host_address(family.cidr(family.kernel()))
                .address(family.cidr(family.ours()))
                .sysctl("net.ipv4.tcp_syn_linear_timeouts", "0")
                .sysctl("net.ipv4.tcp_syn_retries", "1")
                .build()
                .expect("a stack");
            // No answer of the kernel's ICMP either: it is told to lose these packets.
            let silent = SocketAddr::new(family.text("10.9.0.77", "fd00:9::77"), 80);
            let blackhole = if silent.is_ipv4() { "ip route" } else { "ip -6 route" };
            run(&format!("{blackhole} add blackhole {}", silent.ip()));
            let short = Duration::from_millis(50);
            let error = neap::TcpStream::connect_timeout(&stack, silent, short).expect_err("late");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            let error = neap::TcpStream::connect(&stack, silent).expect_err("no answer");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            expect_nothing_left(&stack, 0);
        }
    });
}

#[test]
fn addresses_that_cannot_be_used() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let kind =
            |local: &str| neap::TcpListener::bind(&stack, local).expect_err("refused").kind();
        let listener = neap::TcpListener::bind(&stack, "10.9.0.2:80");
        assert_eq!(kind("10.9.0.2:80"), ErrorKind::AddrInUse);
        assert_eq!(kind("10.9.0.3:80"), ErrorKind::AddrNotAvailable);
        drop(listener);
        let connect =
            |remote: &str| neap::TcpStream::connect(&stack, remote).expect_err("refused").kind();
        assert_eq!(connect("192.0.2.1:80"), ErrorKind::NetworkUnreachable);
        assert_eq!(connect("[fd00:9::1]:80"), ErrorKind::NetworkUnreachable);
        assert_eq!(connect("10.9.0.1:0"), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_hundred_clients_at_once_are_accepted() {
    const CLIENTS: u64 = 100;
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let (listener, address) = family.listener(&stack);
            thread::scope(|scope| {
                for id in 0..CLIENTS {
                    scope.spawn(move || {
                        let mut stream = TcpStream::connect(address).expect("connect");
                        stream.write_all(&id.to_be_bytes()).expect("written");
                        let mut answer = [0; 8];
                        stream.read_exact(&mut answer).expect("an answer");
                        assert_eq!(u64::from_be_bytes(answer), !id);
                    });
                }
                let mut seen = Vec::new();
                for stream in listener.incoming().take(CLIENTS as usize) {
                    let mut stream = stream.expect("accept");
                    let mut id = [0; 8];
                    stream.read_exact(&mut id).expect("an id");
                    let id = u64::from_be_bytes(id);
                    stream.write_all(&(!id).to_be_bytes()).expect("written");
                    expect_end(&mut stream);
                    seen.push(id);
                }
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..CLIENTS));
            });
            expect_nothing_left(&stack, 1);
        }
    });
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("procfs").count()
}

#[test]
fn dropping_the_stack_resets_its_peers_and_ends_its_threads() {
    in_namespace(|| {
        let family = Family::V4;
        let before = threads();
        let stack = family.stack();
        assert!(threads() > before);
        let (listener, address) = family.listener(&stack);
        let pairs: Vec<_> = (0..5).map(|_| family.pair(&stack)).collect();
        let client = TcpStream::connect(address).expect("connect");
        // The last segment of its handshake may still be in the TUN.
        eventually(|| stack.host().usage().tcp.waiting, |count| *count == 1);
        let (mut held, mut peers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        peers.push(client);
        let mut waiting = Vec::new();
        let (say, hear) = announcement();
        for stream in held.drain(..3) {
            let say = say.clone();
            waiting.push(thread::spawn(move || {
                announce(&say);
                (&stream).read(&mut [0; 16])
            }));
        }
        waiting.push(thread::spawn(move || {
            // Held while it waits for another one: its end is the stack's, not ours.
            let _queued = listener.accept()?;
            announce(&say);
            listener.accept().map(|_| 0)
        }));
        until_all_asleep(&hear, 4);
        drop(stack);
        for thread in waiting {
            let error = thread.join().expect("no panic").expect_err("the stack is gone");
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
        }
        for mut peer in peers {
            let error = peer.read(&mut [0; 16]).expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        eventually(threads, |now| *now == before);
        // Sockets that are still held fail, and do not keep the device.
        for mut stream in held {
            let error = stream.write(b"x").expect_err("the stack is gone");
            assert!(
                matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe),
                "{error}"
            );
            let links = run("ip -o link");
            assert!(!links.contains("t0"), "{links}");
        }
        let again = family.stack();
        let (mut ours, theirs) = family.pair(&again);
        drop(theirs);
        expect_end(&mut ours);
    });
}

/// Bytes of memory that the process has and that belong to no file, as code does.
fn own_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Opens and closes connections: the kernel closes first, so nothing of them stays here.
fn open_and_close(stack: &Stack, family: Family, connections: usize) {
    let (theirs, address) = family.kernel_listener();
    let (ours, own_address) = family.listener(stack);
    let served = connections / 2;
    thread::scope(|scope| {
        scope.spawn(move || {
            for mut stream in theirs.incoming().take(connections - served).flatten() {
                stream.write_all(b"x").expect("written");
            }
        });
        for index in 0..connections - served {
            let mut stream = neap::TcpStream::connect(stack, address).expect("connect");
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a byte");
            if index % 2 == 0 {
                expect_end(&mut stream);
            } else {
                stream.set_linger(Some(Duration::ZERO)).expect("an option");
            }
        }
    });
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..served {
                let mut stream = TcpStream::connect(own_address).expect("connect");
                stream.write_all(b"x").expect("written");
                stream.shutdown(Shutdown::Write).expect("shutdown");
                expect_end(&mut stream);
            }
        });
        for stream in ours.incoming().take(served) {
            let mut stream = stream.expect("accept");
            stream.read_exact(&mut [0]).expect("a byte");
            expect_end(&mut stream);
        }
    });
}

#[test]
fn ten_thousand_connections_leave_nothing() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        open_and_close(&stack, family, 2_000);
        expect_nothing_left(&stack, 0);
        // What connections leave grows each time. A heap may grow once, where threads meet.
        let mut rounds = 0;
        let grows = |rounds: &mut u64| {
            let before = own_memory();
            open_and_close(&stack, family, 10_000);
            expect_nothing_left(&stack, 0);
            *rounds += 1;
            own_memory().saturating_sub(before) >= 2 << 20
        };
        while grows(&mut rounds) {
            assert!(rounds < 5, "each round takes memory");
        }
        let opened = stack.host().tcp_counter(Counter::ActiveOpens);
        let accepted = stack.host().tcp_counter(Counter::PassiveOpens);
        let each = 1_000 + 5_000 * rounds;
        assert_eq!((opened, accepted), (each, each));
    });
}

#[test]
fn closing_the_stack_sends_all_that_was_written_and_resets_who_does_not_end() {
    const LEN: u64 = 1 << 20;
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (listener, address) = family.listener(&stack);
        let pattern = Pattern(7);
        let pairs: Vec<_> = (0..4).map(|_| family.pair(&stack)).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let peers: Vec<_> = theirs
            .into_iter()
            .map(|mut peer| {
                thread::spawn(move || {
                    pattern.receive(&mut peer, LEN);
                    expect_end(&mut peer);
                })
            })
            .collect();
        for stream in &ours {
            pattern.send(&mut &*stream, LEN);
        }
        // One is held to the end, the others are closed already.
        let held = ours.into_iter().next().expect("one of them");
        assert_eq!(stack.close(Duration::from_secs(60)), 0, "all ended in time");
        for peer in peers {
            peer.join().expect("it received everything");
        }
        expect_end(&mut &held);
        let over = listener.accept().expect_err("the stack is gone");
        assert_eq!(over.kind(), ErrorKind::ConnectionAborted);
        drop(listener);

        let stack = family.stack();
        let (_ours, mut theirs) = family.pair(&stack);
        let (_listener, unaccepted) = family.listener(&stack);
        let mut waiting = TcpStream::connect(unaccepted).expect("it listens");
        eventually(|| stack.host().usage().tcp.waiting, |count| *count == 1);
        assert_eq!(stack.close(Duration::from_millis(50)), 2, "the peer does not close");
        expect_end(&mut theirs);
        let error = waiting.read(&mut [0; 16]).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let refused = TcpStream::connect_timeout(&address, Duration::from_millis(50));
        refused.expect_err("nobody is there");
    });
}
