//! Connections that an application decides about, with clients of the kernel behind a TUN or a TAP;
//! and connections that leave from addresses of others.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::Duration;

use neap::info::{Counter, DropReason};
use neap::time::Nanos;
use neap::{
    ConnectOptions, Events, PendingConnection, Poller, Refusal, SocketOptions, Stack, TcpForwarder,
    TcpForwarderOptions, TcpStream,
};

use crate::asleep::{announce, announcement, until_asleep};
use crate::common::foreign::{
    EACH, Forger, LONG, Link, Opening, addresses, interface, networks, seen, sniffer, stack,
    udp_client,
};
use crate::common::{
    Family, Pattern, eventually, expect_end, expect_nothing_left, in_namespace, run,
};
use crate::transparent_echo::{Args, Echo};

/// Time of a wait that must end without what is waited for.
const MOMENT: Duration = Duration::from_millis(20);

fn forwarder(stack: &Stack, options: TcpForwarderOptions) -> TcpForwarder {
    let forwarder = TcpForwarder::new(stack, options).expect("a forwarder");
    forwarder.set_read_timeout(LONG).expect("a timeout");
    forwarder
}

/// A stack on a TUN, and a forwarder of everything.
fn forwarded(family: Family) -> (Stack, TcpForwarder) {
    let stack = stack(family, Link::Tun);
    let forwarder = forwarder(&stack, TcpForwarderOptions::default());
    (stack, forwarder)
}

fn at(family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(addresses(family)[0], port)
}

/// A client of the kernel that knocks, and what the stack makes of it.
fn knock(forwarder: &TcpForwarder, to: SocketAddr) -> (Opening, PendingConnection) {
    let client = Opening::new(to);
    (client, forwarder.recv().expect("a SYN"))
}

/// Data both ways, and the end in both directions. The kernel's end is closed first, so the
/// TIME-WAIT is the kernel's.
fn transfer(ours: TcpStream, theirs: std::net::TcpStream, len: u64) {
    thread::scope(|scope| {
        scope.spawn(|| {
            Pattern(1).send(&mut &theirs, len);
            theirs.shutdown(Shutdown::Write).expect("shutdown");
        });
        scope.spawn(|| Pattern(2).send(&mut &ours, len));
        scope.spawn(|| {
            Pattern(1).receive(&mut &ours, len);
            expect_end(&mut &ours);
        });
        Pattern(2).receive(&mut &theirs, len);
    });
    drop(ours);
    expect_end(&mut &theirs);
    drop(theirs);
}

#[test]
fn every_address_accepts_and_carries_data_both_ways() {
    in_namespace(|| {
        for (family, link) in EACH {
            let stack = stack(family, link);
            let forwarder = forwarder(&stack, TcpForwarderOptions::default());
            for (nth, address) in (1..).zip(addresses(family)) {
                let sniffer = sniffer();
                let to = SocketAddr::new(address, 1000 * u16::from(nth));
                let client = Opening::with(to, 40 + nth, 0x2c * nth);
                let own = client.local_addr();
                let pending = forwarder.recv().expect("a SYN");
                assert_eq!((pending.local_addr(), pending.peer_addr()), (to, own));
                let arrival = pending.arrival();
                assert_eq!((arrival.hop_limit, arrival.tos), (40 + nth, 0x2c * nth));
                assert_eq!(arrival.interface, Some(stack.host().interfaces()[0].id));
                assert_eq!(forwarder.queued(), (1, 0));
                assert!(pending.take_error().expect("a state").is_none());
                let options = SocketOptions { hop_limit: 9, ..SocketOptions::default() };
                let ours = pending.accept_with(options, LONG).expect("a client");
                assert_eq!(ours.local_addr().expect("an address"), to);
                assert_eq!(ours.peer_addr().expect("an address"), own);
                let theirs = client.wait().expect("it was accepted");
                assert_eq!(seen(&sniffer, address).0, 9, "the SYN-ACK");
                transfer(ours, theirs, 2 << 20);
            }
            expect_nothing_left(&stack, 0);
            assert_eq!(stack.host().tcp_counter(Counter::PassiveOpens), 3);
        }
    });
}

#[test]
fn a_connection_leaves_from_any_address() {
    in_namespace(|| {
        for (family, link) in EACH {
            let stack = stack(family, link);
            for (nth, address) in (1..).zip(addresses(family)) {
                let sniffer = sniffer();
                let (listener, to) = family.kernel_listener();
                // A port that is asked for, and one that is chosen.
                let port = if nth == 1 { 4000 } else { 0 };
                let local = Some(SocketAddr::new(address, port));
                let refused = ConnectOptions { local, ..ConnectOptions::default() };
                let error = TcpStream::connect_with(&stack, to, refused, LONG);
                let error = error.expect_err("an address of others");
                assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
                let options = SocketOptions { hop_limit: 30 + nth, ..SocketOptions::default() };
                let options = ConnectOptions {
                    local,
                    options,
                    transparent: true,
                    ..ConnectOptions::default()
                };
                let ours = TcpStream::connect_with(&stack, to, options, LONG).expect("a listener");
                let (theirs, from) = listener.accept().expect("a connection");
                theirs.set_read_timeout(LONG).expect("a timeout");
                assert_eq!(from, ours.local_addr().expect("an address"));
                assert_eq!(from.ip(), address);
                assert!(port == 0 || port == from.port());
                assert_eq!(seen(&sniffer, address), (30 + nth, 0), "the SYN");
                transfer(ours, theirs, 1 << 20);
            }
            expect_nothing_left(&stack, 0);
        }
    });
}

#[test]
fn a_refusal_is_the_error_of_the_kernels_connect() {
    use ErrorKind as E;
    let told = [
        (None, E::ConnectionRefused, E::ConnectionRefused),
        (Some(Refusal::Network), E::NetworkUnreachable, E::NetworkUnreachable),
        (Some(Refusal::Host), E::HostUnreachable, E::HostUnreachable),
        (Some(Refusal::Port), E::ConnectionRefused, E::ConnectionRefused),
        (Some(Refusal::Prohibited), E::HostUnreachable, E::PermissionDenied),
    ];
    in_namespace(|| {
        for (family, link) in EACH {
            let stack = stack(family, link);
            let forwarder = forwarder(&stack, TcpForwarderOptions::default());
            for (refusal, v4, v6) in told {
                let (client, pending) = knock(&forwarder, at(family, 80));
                match refusal {
                    None => pending.reset(),
                    Some(refusal) => pending.reject(refusal),
                }
                let wanted = if family == Family::V4 { v4 } else { v6 };
                assert_eq!(client.refused(), wanted, "{family:?} {refusal:?}");
                assert_eq!(forwarder.queued(), (0, 0));
            }
            // Nobody decided.
            let (client, pending) = knock(&forwarder, at(family, 80));
            drop(pending);
            assert_eq!(client.refused(), E::ConnectionRefused);
        }
    });
}

#[test]
fn an_ignored_syn_comes_again_and_a_repeated_one_joins() {
    in_namespace(|| {
        let (stack, forwarder) = forwarded(Family::V4);
        let (client, first) = knock(&forwarder, at(Family::V4, 80));
        first.ignore();
        assert_eq!(stack.host().drops_for(DropReason::PendingIgnored), 1);
        let second = forwarder.recv().expect("the kernel tries again");
        assert_eq!(second.peer_addr(), client.local_addr());
        // One more SYN of the kernel belongs to what is held.
        let sniffer = sniffer();
        assert_eq!(seen(&sniffer, Family::V4.kernel()).0, 64, "the third SYN");
        assert_eq!(forwarder.queued(), (1, 0));
        let ours = second.accept().expect("a client");
        transfer(ours, client.wait().expect("accepted"), 1000);
    });
}

#[test]
fn an_accept_does_not_wait_longer_than_it_was_told() {
    in_namespace(|| {
        for family in Family::BOTH {
            let (stack, forwarder) = forwarded(family);
            let (client, pending) = knock(&forwarder, at(family, 80));
            let zero = pending.accept_with(SocketOptions::default(), Some(Duration::ZERO));
            assert_eq!(zero.expect_err("no time").kind(), ErrorKind::InvalidInput);
            assert_eq!(client.refused(), ErrorKind::ConnectionRefused);
            // A client whose host says nothing.
            let nobody = family.text("10.9.0.66", "fd00:9::66");
            let from = SocketAddr::new(nobody, 4000);
            let forger = Forger::new(family);
            forger.syn(from, at(family, 80), 1000);
            let pending = forwarder.recv().expect("a SYN");
            let late = pending.accept_with(SocketOptions::default(), Some(MOMENT));
            assert_eq!(late.expect_err("no client").kind(), ErrorKind::TimedOut);
            expect_nothing_left(&stack, 0);
            // Its place is free again.
            let options = TcpForwarderOptions { max_pending: 1, ..TcpForwarderOptions::default() };
            drop(forwarder);
            let forwarder = self::forwarder(&stack, options);
            for _ in 0..3 {
                forger.syn(from, at(family, 80), 1000);
                let pending = forwarder.recv().expect("room for a SYN");
                let late = pending.accept_with(SocketOptions::default(), Some(MOMENT));
                assert_eq!(late.expect_err("no client").kind(), ErrorKind::TimedOut);
            }
        }
    });
}

#[test]
fn an_accept_that_does_not_wait_is_told_by_a_poller() {
    in_namespace(|| {
        for family in Family::BOTH {
            let (stack, forwarder) = forwarded(family);
            forwarder.set_nonblocking(true).expect("a mode");
            let none = forwarder.recv().expect_err("nobody knocked");
            assert_eq!(none.kind(), ErrorKind::WouldBlock);
            let poller = Poller::new().expect("a poller");
            poller.add(&forwarder, 1, Events::IN).expect("added");
            let mut events = Vec::new();
            poller.wait(&mut events, Some(MOMENT)).expect("a wait");
            assert!(events.is_empty(), "{events:?}");
            let client = Opening::new(at(family, 80));
            let next = |events: &mut Vec<neap::Event>| {
                events.clear();
                while events.is_empty() {
                    poller.wait(events, LONG).expect("an event");
                }
                (events[0].token, events[0].events)
            };
            assert_eq!(next(&mut events), (1, Events::IN));
            let pending = forwarder.recv().expect("a SYN");
            poller.wait(&mut events, Some(Duration::ZERO)).expect("a wait");
            assert!(events.is_empty(), "received: {events:?}");
            let ours = pending.accept_nonblocking(SocketOptions::default()).expect("decided");
            poller.add(&ours, 2, Events::OUT).expect("added");
            assert_eq!(next(&mut events), (2, Events::OUT));
            assert!(ours.take_error().expect("a state").is_none());
            poller.remove(&ours).expect("it was added");
            ours.set_nonblocking(false).expect("a mode");
            transfer(ours, client.wait().expect("accepted"), 1 << 20);

            // A client that has gone answers by a reset.
            let (client, pending) = (Opening::new(at(family, 81)), next(&mut events));
            assert_eq!(pending, (1, Events::IN));
            let pending = forwarder.recv().expect("a SYN");
            drop(client);
            let ours = pending.accept_nonblocking(SocketOptions::default()).expect("decided");
            poller.add(&ours, 3, Events::OUT).expect("added");
            let (token, came) = next(&mut events);
            assert!(token == 3 && came.contains(Events::ERR), "{token} {came:?}");
            let error = ours.take_error().expect("a state").expect("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            drop(ours);
            expect_nothing_left(&stack, 0);
        }
    });
}

#[test]
fn a_poller_tells_of_every_new_syn_once() {
    in_namespace(|| {
        let (_stack, forwarder) = forwarded(Family::V4);
        forwarder.set_nonblocking(true).expect("a mode");
        let poller = Poller::new().expect("a poller");
        poller.add(&forwarder, 5, Events::IN | Events::ET).expect("added");
        let mut events = Vec::new();
        for port in 1..4 {
            let _client = Opening::new(at(Family::V4, port));
            events.clear();
            while events.is_empty() {
                poller.wait(&mut events, LONG).expect("an event");
            }
            assert_eq!((events[0].token, events[0].events), (5, Events::IN));
            events.clear();
            poller.wait(&mut events, Some(MOMENT)).expect("a wait");
            assert!(events.is_empty(), "{events:?}");
            assert_eq!(forwarder.queued(), (usize::from(port), usize::from(port)));
        }
        for port in 1..4 {
            assert_eq!(forwarder.recv().expect("a SYN").local_addr().port(), port);
        }
        assert_eq!(forwarder.recv().expect_err("no more").kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn a_client_may_take_its_syn_back() {
    in_namespace(|| {
        for family in Family::BOTH {
            let (_stack, forwarder) = forwarded(family);
            let forger = Forger::new(family);
            let (from, to) = (SocketAddr::new(family.kernel(), 4000), at(family, 80));
            forger.syn(from, to, 1000);
            let pending = forwarder.recv().expect("a SYN");
            // Numbers of somebody else count for nothing, and a later packet says so.
            forger.reset(from, to, 3000);
            forger.syn(SocketAddr::new(from.ip(), 4001), to, 1000);
            let other = forwarder.recv().expect("a SYN");
            assert!(pending.take_error().expect("a state").is_none());
            forger.reset(from, to, 1001);
            let error = eventually(|| pending.take_error().expect("a state"), Option::is_some);
            assert_eq!(error.expect("over").kind(), ErrorKind::ConnectionReset);
            assert_eq!(forwarder.queued(), (1, 0));
            let accepted = pending.accept().expect_err("nothing to accept");
            assert_eq!(accepted.kind(), ErrorKind::ConnectionReset);
            other.ignore();
        }
    });
}

#[test]
fn what_nobody_decides_about_expires() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = stack(family, Link::Tun);
            // Before the client sends its SYN again, but not before it is taken.
            let expiry = Nanos::from_millis(500);
            let options = TcpForwarderOptions { expiry, ..TcpForwarderOptions::default() };
            let forwarder = forwarder(&stack, options);
            let (client, pending) = knock(&forwarder, at(family, 80));
            let error = eventually(|| pending.take_error().expect("a state"), Option::is_some);
            assert_eq!(error.expect("over").kind(), ErrorKind::TimedOut);
            // On a busy machine those that the client sends again may have expired too.
            assert!(stack.host().drops_for(DropReason::PendingExpired) >= 1);
            eventually(|| stack.host().usage().pending, |pending| *pending == 0);
            let accepted = pending.accept().expect_err("its time is over");
            assert_eq!(accepted.kind(), ErrorKind::TimedOut);
            // The next SYN of the client is a new attempt.
            let ours = loop {
                match forwarder.recv().expect("a SYN").accept() {
                    Ok(ours) => break ours,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut),
                }
            };
            drop(client.wait().expect("accepted"));
            expect_end(&mut &ours);
        }
    });
}

#[test]
fn bounds_hold_for_each_source_and_in_total_and_drops_are_counted() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = stack(family, Link::Tun);
            let options = TcpForwarderOptions {
                max_pending: 10,
                max_per_source: 4,
                ..TcpForwarderOptions::default()
            };
            let forwarder = forwarder(&stack, options);
            let forger = Forger::new(family);
            let source = |nth: u8| match family {
                Family::V4 => format!("10.66.0.{nth}").parse().expect("an address"),
                // Any addresses of one network are one source.
                Family::V6 => format!("fd00:66:0:{nth}::1").parse().expect("an address"),
            };
            for nth in 1..=4 {
                for port in 1..=100 {
                    forger.syn(SocketAddr::new(source(nth), port), at(family, 80), 1000);
                }
            }
            let counts = || {
                let host = stack.host();
                let of = |reason| host.drops_for(reason);
                (of(DropReason::PendingSource), of(DropReason::PendingFull))
            };
            let (of_source, of_all) = eventually(counts, |(a, b)| a + b == 390);
            assert!(of_source > 0 && of_all > 0, "{of_source} {of_all}");
            assert_eq!((forwarder.queued(), stack.host().usage().pending), ((10, 10), 10));
            let held: Vec<_> = (0..10).map(|_| forwarder.recv().expect("a SYN")).collect();
            let mut places = BTreeMap::<_, u32>::new();
            for one in &held {
                *places.entry(one.peer_addr().ip()).or_default() += 1;
            }
            assert!(places.values().all(|count| *count <= 4), "{places:?}");
            // A place that is given back is for the next.
            held.into_iter().for_each(PendingConnection::ignore);
            let (client, pending) = knock(&forwarder, at(family, 80));
            let ours = pending.accept().expect("a client");
            transfer(ours, client.wait().expect("accepted"), 1000);
        }
    });
}

#[test]
fn threads_share_a_forwarder_under_load() {
    const CLIENTS: usize = 400;
    const THREADS: usize = 4;
    const LEN: u64 = 100_000;
    in_namespace(|| {
        for family in Family::BOTH {
            let (stack, forwarder) = forwarded(family);
            let seen = std::sync::Mutex::new(BTreeSet::new());
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    let forwarder = forwarder.clone();
                    let seen = &seen;
                    scope.spawn(move || {
                        while let Ok(pending) = forwarder.recv() {
                            let ends = (pending.peer_addr(), pending.local_addr());
                            seen.lock().expect("no panic").insert(ends);
                            let ours = pending.accept().expect("a client");
                            // What is for port 1 ends the server.
                            if ours.local_addr().expect("an address").port() == 1 {
                                return;
                            }
                            Pattern(3).receive(&mut &ours, LEN);
                            Pattern(4).send(&mut &ours, LEN);
                        }
                    });
                }
                let clients: Vec<_> = (0..8)
                    .map(|nth| {
                        scope.spawn(move || {
                            for one in 0..CLIENTS / 8 {
                                let port = 1000 + (8 * one + nth) as u16;
                                let client = Opening::new(at(family, port));
                                let theirs = client.wait().expect("accepted");
                                Pattern(3).send(&mut &theirs, LEN);
                                Pattern(4).receive(&mut &theirs, LEN);
                                expect_end(&mut &theirs);
                            }
                        })
                    })
                    .collect();
                for client in clients {
                    client.join().expect("a client");
                }
                for _ in 0..THREADS {
                    drop(Opening::new(at(family, 1)).wait().expect("accepted"));
                }
            });
            assert_eq!(seen.into_inner().expect("no panic").len(), CLIENTS + THREADS);
            eventually(|| stack.host().usage().tcp.connections, |left| *left == 0);
            assert_eq!(stack.host().usage().pending, 0);
        }
    });
}

#[test]
fn others_are_served_while_a_source_floods() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = stack(family, Link::Tun);
        let options = TcpForwarderOptions { max_per_source: 16, ..TcpForwarderOptions::default() };
        let forwarder = forwarder(&stack, options);
        let flood = thread::spawn(move || {
            let forger = Forger::new(family);
            for port in 1..=20_000 {
                let from = SocketAddr::new(family.text("10.66.0.1", "fd00:66::1"), port);
                forger.syn(from, at(family, 9), 1000);
            }
        });
        let serving = {
            let forwarder = forwarder.clone();
            thread::spawn(move || {
                let mut held = Vec::new();
                while let Ok(pending) = forwarder.recv() {
                    match pending.local_addr().port() {
                        // Those of the flood are not decided about.
                        9 => held.push(pending),
                        1 => return held.len(),
                        _ => drop(pending.accept().expect("a client").write_all(b"hello")),
                    }
                }
                held.len()
            })
        };
        for _ in 0..50 {
            let mut theirs = Opening::new(at(family, 80)).wait().expect("accepted");
            let mut hello = [0; 5];
            std::io::Read::read_exact(&mut theirs, &mut hello).expect("a greeting");
        }
        flood.join().expect("a flood");
        let _last = Opening::new(at(family, 1));
        assert_eq!(serving.join().expect("a server"), 16);
        // What the queue of the device did not take is counted there.
        let lost = stack.host().receive_drops();
        let dropped = stack.host().drops_for(DropReason::PendingSource);
        assert!(dropped > 0 && dropped + lost <= 20_000 - 16, "{dropped} {lost}");
    });
}

#[test]
fn the_end_of_a_forwarder_or_a_stack_resets_what_is_pending() {
    in_namespace(|| {
        for family in Family::BOTH {
            let (stack, forwarder) = forwarded(family);
            let (first, held) = knock(&forwarder, at(family, 80));
            let second = Opening::new(at(family, 81));
            eventually(|| forwarder.queued(), |queued| *queued == (2, 1));
            drop(forwarder.clone());
            assert_eq!(forwarder.queued(), (2, 1), "a clone is not the last");
            drop(forwarder);
            assert_eq!(first.refused(), ErrorKind::ConnectionRefused);
            assert_eq!(second.refused(), ErrorKind::ConnectionRefused);
            let over = held.accept().expect_err("the forwarder is gone");
            assert_eq!(over.kind(), ErrorKind::ConnectionAborted);

            let forwarder = self::forwarder(&stack, TcpForwarderOptions::default());
            let (third, held) = knock(&forwarder, at(family, 82));
            let fourth = Opening::new(at(family, 83));
            eventually(|| forwarder.queued(), |queued| *queued == (2, 1));
            stack.close(Duration::from_secs(60));
            assert_eq!(third.refused(), ErrorKind::ConnectionRefused);
            assert_eq!(fourth.refused(), ErrorKind::ConnectionRefused);
            let error = held.take_error().expect("a state").expect("over");
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
            let error = forwarder.recv().expect_err("the stack is gone");
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        }
    });
}

#[test]
fn a_thread_that_waits_is_woken_by_the_end() {
    in_namespace(|| {
        let (stack, forwarder) = forwarded(Family::V4);
        let poller = Poller::new().expect("a poller");
        poller.add(&forwarder, 3, Events::IN).expect("added");
        thread::scope(|scope| {
            let (say, hear) = announcement();
            let forwarder = &forwarder;
            let waiting = scope.spawn(move || {
                announce(&say);
                forwarder.recv().map(drop)
            });
            until_asleep(&hear);
            drop(stack);
            let error = waiting.join().expect("no panic").expect_err("the stack is gone");
            assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        });
        let mut events = Vec::new();
        while events.is_empty() {
            poller.wait(&mut events, LONG).expect("an event");
        }
        assert!(events[0].events.contains(Events::ERR), "{events:?}");
    });
}

#[test]
fn the_end_of_the_device_is_told_once() {
    in_namespace(|| {
        for family in Family::BOTH {
            let (stack, forwarder) = forwarded(family);
            let (_client, held) = knock(&forwarder, at(family, 80));
            thread::scope(|scope| {
                let waiting = scope.spawn(|| forwarder.recv().map(drop));
                run("ip link del t0");
                let error = waiting.join().expect("no panic").expect_err("the device is gone");
                assert_eq!(error.kind(), ErrorKind::NetworkDown);
            });
            forwarder.set_nonblocking(true).expect("a mode");
            assert_eq!(forwarder.recv().expect_err("none").kind(), ErrorKind::WouldBlock);
            let error = held.accept().expect_err("no way to the client");
            assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
            assert_eq!(stack.host().usage().pending, 0);
            // A new device brings new clients to the same forwarder.
            let id = stack.add_interface(interface(family, Link::Tap)).expect("an interface");
            forwarder.set_nonblocking(false).expect("a mode");
            let (client, pending) = knock(&forwarder, at(family, 81));
            assert_eq!(pending.arrival().interface, Some(id));
            let ours = pending.accept().expect("a client");
            transfer(ours, client.wait().expect("accepted"), 1000);
        }
    });
}

#[test]
fn options_choose_what_is_taken() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = stack(family, Link::Tun);
        let web = TcpForwarderOptions { ports: 80..=81, ..TcpForwarderOptions::default() };
        let web = forwarder(&stack, web);
        let network = "198.51.100.0/24".parse().expect("a network");
        let rest =
            TcpForwarderOptions { destinations: Some(network), ..TcpForwarderOptions::default() };
        let rest = forwarder(&stack, rest);
        let other = SocketAddr::new(addresses(family)[2], 443);
        let (_, first) = knock(&web, at(family, 81));
        assert_eq!(first.local_addr(), at(family, 81));
        let (_, second) = knock(&rest, other);
        assert_eq!(second.local_addr(), other);
        assert_eq!(Opening::new(at(family, 443)).refused(), ErrorKind::ConnectionRefused);
        // A listener comes before forwarders, and a datagram is none of theirs.
        let (listener, address) = family.listener(&stack);
        drop(Opening::new(address).wait().expect("a listener"));
        drop(listener.accept().expect("a connection"));
        let datagram = udp_client(family, at(family, 80), 64, 0);
        datagram.send(b"x").expect("sent");
        let refused = datagram.recv(&mut [0; 4]).expect_err("no socket");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert_eq!((web.queued(), rest.queued()), ((1, 0), (1, 0)));
        web.set_read_timeout(Some(MOMENT)).expect("a timeout");
        assert_eq!(web.recv().expect_err("nobody").kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn the_transparent_echo_serves_a_network() {
    let args = |text: &str| {
        let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Args::parse(&args)
    };
    let wrong = |text: &str| args(text).expect_err("an argument is wrong").to_string();
    assert_eq!(wrong("t0 10.9.0.1/24"), "2 arguments: expected TUN KERNEL_CIDR OUR_CIDR NETWORK");
    assert!(wrong("t0 10.9.0.1 10.9.0.2/24 192.0.2.0/24").starts_with("KERNEL_CIDR: "));
    assert!(wrong("t0 10.9.0.1/24 x/24 192.0.2.0/24").starts_with("OUR_CIDR: "));
    assert!(wrong("t0 10.9.0.1/24 10.9.0.2/24 192.0.2.0/33").starts_with("NETWORK: "));
    in_namespace(|| {
        for family in Family::BOTH {
            let network = networks(family)[0];
            let [kernel, ours] = [family.kernel(), family.ours()].map(|one| family.cidr(one));
            let args = Args::parse(&["t0".into(), kernel, ours, network.into()]);
            let (stack, echo) = Echo::new(&args.expect("arguments")).expect("a TUN");
            let outside = family.text("203.0.113.9", "2001:db9::9");
            for network in [network.to_owned(), outside.to_string()] {
                run(&format!("ip route add {network} dev t0"));
            }
            thread::scope(|scope| {
                let serving = scope.spawn(|| echo.serve());
                for (nth, address) in (0..).zip(&addresses(family)[..2]) {
                    let theirs = Opening::new(SocketAddr::new(*address, 7 + nth)).wait();
                    let theirs = theirs.expect("accepted");
                    scope.spawn({
                        let theirs = theirs.try_clone().expect("a descriptor");
                        move || {
                            Pattern(9).send(&mut &theirs, 1 << 20);
                            theirs.shutdown(Shutdown::Write).expect("shutdown");
                        }
                    });
                    Pattern(9).receive(&mut &theirs, 1 << 20);
                    expect_end(&mut &theirs);
                    let datagrams = udp_client(family, SocketAddr::new(*address, nth + 1), 64, 0);
                    datagrams.send(b"datagram").expect("sent");
                    assert_eq!(datagrams.recv(&mut [0; 20]).expect("an echo"), 8);
                }
                let refused = Opening::new(SocketAddr::new(outside, 7)).refused();
                assert_eq!(refused, ErrorKind::ConnectionRefused);
                drop(stack);
                let error = serving.join().expect("no panic");
                assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
            });
        }
    });
}
