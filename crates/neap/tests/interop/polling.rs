//! The poller: level, edge, one-shot; sockets of several stacks and descriptors of the kernel.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use neap::device::{LinkState, Packet, PacketConfig};
use neap::{ConnectOptions, Event, Events, Poller, SocketOption, Stack};

use crate::common::{Family, Pattern, expect_end, expect_nothing_left, in_namespace, run};
use crate::links::{Elsewhere, veth};

/// Longer than anything here takes.
const LONG: Option<Duration> = Some(Duration::from_secs(30));
/// Time in which something that must not come would have come.
const MOMENT: Option<Duration> = Some(Duration::from_millis(20));

fn poller() -> Poller {
    Poller::new().expect("a poller")
}

fn wait(poller: &Poller, timeout: Option<Duration>) -> Vec<Event> {
    let mut events = Vec::new();
    poller.wait(&mut events, timeout).expect("a wait");
    events
}

fn event(token: u64, events: Events) -> Event {
    Event { token, events }
}

#[test]
fn a_level_is_reported_as_long_as_it_is_there() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (mut ours, mut theirs) = Family::V4.pair(&stack);
        let poller = poller();
        poller.add(&ours, 1, Events::IN | Events::RDHUP).expect("a socket");
        assert_eq!(wait(&poller, MOMENT), []);
        theirs.write_all(b"ab").expect("bytes");
        for _ in 0..3 {
            assert_eq!(wait(&poller, LONG), [event(1, Events::IN)]);
        }
        ours.read_exact(&mut [0; 2]).expect("bytes");
        assert_eq!(wait(&poller, MOMENT), []);
        poller.modify(&ours, 2, Events::IN | Events::OUT).expect("a change");
        assert_eq!(wait(&poller, LONG), [event(2, Events::OUT)]);
        theirs.shutdown(Shutdown::Write).expect("shutdown");
        poller.modify(&ours, 3, Events::IN | Events::RDHUP).expect("a change");
        assert_eq!(wait(&poller, LONG), [event(3, Events::IN | Events::RDHUP)]);
        ours.shutdown(Shutdown::Write).expect("shutdown");
        let all = Events::IN | Events::RDHUP | Events::HUP;
        assert_eq!(wait(&poller, LONG), [event(3, all)]);
        let twice = poller.add(&ours, 4, Events::IN).expect_err("it is there");
        assert_eq!(twice.kind(), ErrorKind::AlreadyExists);
        poller.remove(&ours).expect("it is there");
        assert_eq!(poller.remove(&ours).expect_err("it is gone").kind(), ErrorKind::NotFound);
        assert_eq!(wait(&poller, MOMENT), []);
    });
}

#[test]
fn an_edge_is_reported_once_and_again_when_more_comes() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (mut ours, mut theirs) = Family::V4.pair(&stack);
        theirs.set_nodelay(true).expect("an option");
        let poller = poller();
        poller.add(&ours, 1, Events::IN | Events::ET).expect("a socket");
        for _ in 0..3 {
            // Nobody reads: what comes behind unread data is an edge all the same.
            theirs.write_all(b"x").expect("a byte");
            assert_eq!(wait(&poller, LONG), [event(1, Events::IN)]);
            assert_eq!(wait(&poller, MOMENT), []);
        }
        ours.read_exact(&mut [0; 3]).expect("bytes");
        assert_eq!(wait(&poller, MOMENT), []);
        poller.modify(&ours, 1, Events::IN | Events::OUT | Events::ET).expect("a change");
        assert_eq!(wait(&poller, LONG), [event(1, Events::OUT)]);
        assert_eq!(wait(&poller, MOMENT), []);
    });
}

#[test]
fn a_one_shot_waits_until_it_is_asked_again() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (ours, mut theirs) = Family::V4.pair(&stack);
        for how in [Events::ONESHOT, Events::ONESHOT | Events::ET] {
            let poller = poller();
            poller.add(&ours, 1, Events::IN | how).expect("a socket");
            theirs.write_all(b"x").expect("a byte");
            assert_eq!(wait(&poller, LONG), [event(1, Events::IN)]);
            theirs.write_all(b"x").expect("a byte");
            assert_eq!(wait(&poller, MOMENT), []);
            poller.modify(&ours, 2, Events::IN | how).expect("a change");
            assert_eq!(wait(&poller, LONG), [event(2, Events::IN)]);
        }
    });
}

#[test]
fn an_error_that_was_taken_is_reported_no_more() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (ours, theirs) = Family::V4.pair(&stack);
        let poller = poller();
        poller.add(&ours, 1, Events::empty()).expect("a socket");
        rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).expect("an option");
        drop(theirs);
        assert_eq!(wait(&poller, LONG), [event(1, Events::ERR | Events::HUP)]);
        let error = ours.take_error().expect("a state").expect("an error");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(wait(&poller, LONG), [event(1, Events::HUP)]);
    });
}

#[test]
fn a_record_of_the_error_queue_is_an_error_until_it_is_taken() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let ours = neap::UdpSocket::bind(&stack, (family.ours(), 0)).expect("bind");
        ours.set_nonblocking(true).expect("a mode");
        ours.set_receive_errors(true).expect("set");
        let poller = poller();
        poller.add(&ours, 1, Events::empty()).expect("a socket");
        assert_eq!(wait(&poller, MOMENT), []);
        let closed = SocketAddr::new(family.kernel(), 9);
        ours.send_to(b"anybody?", closed).expect("sent");
        assert_eq!(wait(&poller, LONG), [event(1, Events::ERR)]);
        let refused = ours.recv_from(&mut [0; 9]).expect_err("nobody there");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // The error was told, and its record waits.
        assert_eq!(wait(&poller, LONG), [event(1, Events::ERR)]);
        ours.recv_error().expect("a record");
        assert_eq!(wait(&poller, MOMENT), []);
    });
}

#[test]
fn listeners_datagrams_and_descriptors_in_one_poller() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (listener, address) = family.listener(&stack);
        listener.set_nonblocking(true).expect("a mode");
        let ours = neap::UdpSocket::bind(&stack, (family.ours(), 0)).expect("bind");
        let theirs = std::net::UdpSocket::bind((family.kernel(), 0)).expect("bind");
        let (mut near, far) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let poller = poller();
        poller.add(&listener, 1, Events::IN).expect("a listener");
        poller.add(&ours, 2, Events::IN).expect("a socket");
        poller.add(&far, 3, Events::IN | Events::ET).expect("a descriptor");
        assert_eq!(wait(&poller, MOMENT), []);
        let client = thread::spawn(move || TcpStream::connect(address));
        assert_eq!(wait(&poller, LONG), [event(1, Events::IN)]);
        drop(listener.accept().expect("a client"));
        drop(client.join().expect("a thread").expect("a connection"));
        let to = ours.local_addr().expect("an address");
        theirs.send_to(b"datagram", to).expect("a datagram");
        assert_eq!(wait(&poller, LONG), [event(2, Events::IN)]);
        assert_eq!(ours.recv(&mut [0; 100]).expect("a datagram"), 8);
        near.write_all(b"x").expect("a byte");
        assert_eq!(wait(&poller, LONG), [event(3, Events::IN)]);
        assert_eq!(wait(&poller, MOMENT), []);
        poller.modify(&far, 4, Events::IN).expect("a change");
        assert_eq!(wait(&poller, LONG), [event(4, Events::IN)]);
        poller.remove(&far).expect("it is there");
        assert_eq!(wait(&poller, MOMENT), []);
    });
}

#[test]
fn another_thread_ends_a_wait_or_adds_to_it() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (ours, mut theirs) = Family::V4.pair(&stack);
        theirs.write_all(b"x").expect("a byte");
        let poller = poller();
        poller.notify();
        assert_eq!(wait(&poller, LONG), [], "notified before");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| wait(&poller, LONG));
            thread::sleep(Duration::from_millis(5));
            poller.notify();
            assert_eq!(waiter.join().expect("a thread"), []);
            let waiter = scope.spawn(|| wait(&poller, LONG));
            thread::sleep(Duration::from_millis(5));
            poller.add(&ours, 1, Events::IN).expect("a socket");
            assert_eq!(waiter.join().expect("a thread"), [event(1, Events::IN)]);
        });
    });
}

#[test]
fn a_poller_leads_when_another_leader_leaves() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (ours, mut theirs) = Family::V4.pair(&stack);
        let (mut other, mut their_other) = Family::V4.pair(&stack);
        let poller = poller();
        poller.add(&ours, 1, Events::IN | Events::ET).expect("a socket");
        thread::scope(|scope| {
            let reader = scope.spawn(move || other.read(&mut [0; 1]));
            for round in 0..50 {
                theirs.write_all(b"x").expect("a byte");
                assert_eq!(wait(&poller, LONG), [event(1, Events::IN)], "round {round}");
                if round == 25 {
                    their_other.write_all(b"x").expect("a byte");
                }
            }
            assert_eq!(reader.join().expect("a thread").expect("a byte"), 1);
        });
    });
}

#[test]
fn sockets_of_two_stacks_in_one_poller() {
    in_namespace(|| {
        let build = |name: &str, kernel: &str, ours: &str| {
            neap::Stack::builder()
                .tun(name)
                .host_address(kernel)
                .address(ours)
                .build()
                .expect("a stack")
        };
        let stacks =
            [build("t1", "10.1.0.1/24", "10.1.0.2/24"), build("t2", "10.2.0.1/24", "10.2.0.2/24")];
        let listener = std::net::TcpListener::bind("0.0.0.0:0").expect("bind");
        let port = listener.local_addr().expect("an address").port();
        let poller = poller();
        let mut pairs = Vec::new();
        for (token, stack) in stacks.iter().enumerate() {
            let to = format!("10.{}.0.1:{port}", token + 1);
            let ours = neap::TcpStream::connect(stack, to).expect("connect");
            poller.add(&ours, token as u64, Events::IN).expect("a socket");
            pairs.push((ours, listener.accept().expect("accept").0));
        }
        for round in 0..20 {
            let token = round % 2;
            let (ours, theirs) = &mut pairs[token];
            theirs.write_all(b"x").expect("a byte");
            assert_eq!(wait(&poller, LONG), [event(token as u64, Events::IN)]);
            ours.read_exact(&mut [0]).expect("a byte");
        }
    });
}

#[test]
fn a_poller_keeps_no_socket_open() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        // Never waited for, or waited for in vain; removed, or left to the end of the poller.
        for (waits, removes) in [(false, false), (false, true), (true, false), (true, true)] {
            let (ours, mut theirs) = Family::V4.pair(&stack);
            let poller = poller();
            poller.add(&ours, 1, Events::IN).expect("a socket");
            if waits {
                assert_eq!(wait(&poller, MOMENT), []);
            }
            if removes {
                poller.remove(&ours).expect("it is there");
            }
            drop(ours);
            expect_end(&mut theirs);
            assert_eq!(wait(&poller, MOMENT), [], "a closed socket has left");
        }
    });
}

#[test]
fn edge_triggered_writers_with_small_marks_get_through() {
    const WRITERS: usize = 16;
    const LEN: usize = 400_000;
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let poller = poller();
        let mut writers = Vec::new();
        thread::scope(|scope| {
            for index in 0..WRITERS {
                let (ours, theirs) = family.pair(&stack);
                ours.set_nonblocking(true).expect("a mode");
                let mark = [1, 1000, 20_000, 4 << 20][index % 4];
                ours.set_option(SocketOption::NotSentLowat(mark)).expect("an option");
                poller.add(&ours, index as u64, Events::OUT | Events::ET).expect("a socket");
                scope.spawn(move || {
                    Pattern(index as u64).receive(&mut &theirs, LEN as u64);
                    expect_end(&mut &theirs);
                });
                writers.push((ours, Pattern(index as u64).bytes(LEN), 0));
            }
            let mut left = WRITERS;
            while left > 0 {
                for event in wait(&poller, LONG) {
                    let (stream, data, sent) = &mut writers[event.token as usize];
                    // Until it is refused, as a user of edges must; a short count will do.
                    while *sent < data.len() {
                        match stream.write(&data[*sent..]) {
                            Ok(wrote) if wrote < data.len() - *sent => {
                                *sent += wrote;
                                break;
                            }
                            Ok(wrote) => *sent += wrote,
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                                break;
                            }
                        }
                    }
                    if *sent == data.len() {
                        poller.remove(stream).expect("it is there");
                        stream.shutdown(Shutdown::Write).expect("shutdown");
                        left -= 1;
                    }
                }
            }
        });
        assert_eq!(wait(&poller, MOMENT), []);
    });
}

/// One client of the poller's echo, with what it got and could not give back yet.
struct Client {
    stream: neap::TcpStream,
    pending: Vec<u8>,
    at_end: bool,
}

impl Client {
    /// Reads or writes what can be; whether the client is done.
    fn go_on(&mut self) -> bool {
        loop {
            if self.pending.is_empty() {
                if self.at_end {
                    return true;
                }
                let mut buf = [0; 20_000];
                match self.stream.read(&mut buf) {
                    Ok(0) => self.at_end = true,
                    Ok(len) => self.pending.extend_from_slice(&buf[..len]),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        return false;
                    }
                }
            } else {
                match self.stream.write(&self.pending) {
                    Ok(len) => drop(self.pending.drain(..len)),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        return false;
                    }
                }
            }
        }
    }

    fn interest(&self) -> Events {
        if self.pending.is_empty() { Events::IN } else { Events::OUT }
    }
}

/// Echoes to `expected` clients from one thread.
fn serve(listener: &neap::TcpListener, expected: usize) {
    let poller = poller();
    let mut clients: Vec<Option<Client>> = Vec::new();
    let mut served = 0;
    listener.set_nonblocking(true).expect("a mode");
    poller.add(listener, u64::MAX, Events::IN).expect("a listener");
    while served < expected {
        let events = wait(&poller, LONG);
        assert!(!events.is_empty());
        for event in events {
            if event.token == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).expect("a mode");
                    poller.add(&stream, clients.len() as u64, Events::IN).expect("a socket");
                    clients.push(Some(Client { stream, pending: Vec::new(), at_end: false }));
                }
                continue;
            }
            let client = &mut clients[event.token as usize];
            let Some(current) = client else { continue };
            let before = current.interest();
            if current.go_on() {
                // Closed, and so gone from the poller.
                *client = None;
                served += 1;
            } else if current.interest() != before {
                let interest = current.interest();
                poller.modify(&current.stream, event.token, interest).expect("a change");
            }
        }
    }
    assert_eq!(wait(&poller, MOMENT), []);
}

#[test]
fn one_thread_serves_fifty_sockets_with_a_poller() {
    const CLIENTS: u64 = 50;
    const LEN: u64 = 300_000;
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let (listener, address) = family.listener(&stack);
            thread::scope(|scope| {
                for seed in 0..CLIENTS {
                    scope.spawn(move || {
                        let stream = TcpStream::connect(address).expect("connect");
                        thread::scope(|scope| {
                            scope.spawn(|| {
                                Pattern(seed).send(&mut &stream, LEN);
                                stream.shutdown(Shutdown::Write).expect("shutdown");
                            });
                            Pattern(seed).receive(&mut &stream, LEN);
                            expect_end(&mut &stream);
                        });
                    });
                }
                serve(&listener, CLIENTS as usize);
            });
            expect_nothing_left(&stack, 1);
        }
    });
}

/// Whether the descriptor is readable, now or within a minute.
fn is_readable(outer: &rustix::fd::OwnedFd, waits: bool) -> bool {
    use rustix::event::{Timespec, epoll};
    let timeout = Timespec { tv_sec: if waits { 60 } else { 0 }, tv_nsec: 0 };
    let data = epoll::EventData::new_u64(0);
    let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data }; 4];
    // A busy kernel interrupts the call without a signal.
    let wait = || epoll::wait(outer, &mut events, Some(&timeout));
    rustix::io::retry_on_intr(wait).expect("a set") > 0
}

#[test]
fn a_poller_has_a_descriptor_for_another_event_loop() {
    use rustix::event::epoll;
    in_namespace(|| {
        let stack = Family::V4.stack();
        for mode in [Events::empty(), Events::ET] {
            let (ours, mut theirs) = Family::V4.pair(&stack);
            ours.set_nonblocking(true).expect("a mode");
            let poller = Poller::new().expect("descriptors");
            let outer = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a set");
            let data = epoll::EventData::new_u64(0);
            epoll::add(&outer, &poller, data, epoll::EventFlags::IN).expect("added");
            poller.add(&ours, 7, Events::IN | mode).expect("added");
            let mut events = Vec::new();
            let mut look = || {
                poller.wait(&mut events, Some(Duration::ZERO)).expect("a wait");
                events.clone()
            };
            let quiet = |look: &mut dyn FnMut() -> Vec<Event>| {
                let looks = (0..10).take_while(|_| is_readable(&outer, false));
                let count = looks.inspect(|_| assert!(look().is_empty())).count();
                assert!(count < 10, "it stays readable and there is nothing");
            };
            for round in 0..100 {
                quiet(&mut look);
                theirs.write_all(&[round]).expect("a byte");
                loop {
                    assert!(is_readable(&outer, true), "the byte was missed");
                    if !look().is_empty() {
                        break;
                    }
                }
                if mode.is_empty() {
                    assert!(is_readable(&outer, false), "it is still there");
                    assert_eq!(look().len(), 1);
                }
                let mut byte = [0];
                (&ours).read_exact(&mut byte).expect("the byte");
                assert_eq!(byte, [round]);
            }
            quiet(&mut look);
            poller.notify();
            assert!(is_readable(&outer, false));
            quiet(&mut look);
        }
    });
}

/// Time that the calling thread has had a processor.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Each socket of an interface that goes down has an error, which its queue's thread reports.
#[test]
fn a_poller_that_follows_sleeps_while_a_link_of_two_queues_is_down() {
    in_namespace(|| {
        let there = Elsewhere::new();
        veth(&there);
        let config = PacketConfig { queues: 2, ..PacketConfig::new("v0") };
        let device = Packet::open(&config).expect("a device").into_device();
        let stack = Stack::builder().device(device).address("10.9.0.2/24").build().expect("one");
        let interface = stack.host().interfaces()[0].id;
        let nobody = "10.9.0.77".parse().expect("an address");
        stack.add_neighbor(interface, nobody, [2, 0, 0, 0, 0, 1]).expect("an Ethernet");
        // On both shards, as the hash deals them out.
        let open = |port: u16| {
            let to = SocketAddr::new(nobody, port);
            let options = ConnectOptions::default();
            neap::TcpStream::connect_nonblocking(&stack, to, options).expect("a SYN")
        };
        let streams: Vec<_> = (1..=12).map(open).collect();
        let is_down = || stack.host().interfaces()[0].link == LinkState::Down;
        run("ip link set v0 down");
        while !is_down() {
            thread::yield_now();
        }
        for mut stream in &streams {
            stream.set_nonblocking(false).expect("a mode");
            stream.set_read_timeout(Some(Duration::from_millis(400))).expect("a timeout");
            thread::scope(|scope| {
                // It leads, and the poller follows.
                scope.spawn(move || {
                    let _ = stream.read(&mut [0; 10]);
                });
                let poller = poller();
                poller.add(stream, 1, Events::IN).expect("a socket");
                let before = thread_time();
                wait(&poller, Some(Duration::from_millis(300)));
                let used = thread_time() - before;
                assert!(used < Duration::from_millis(30), "{used:?} of a processor");
            });
        }
    });
}
