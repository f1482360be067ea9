//! A stack with nothing to do: no thread of it is woken, whatever its threads wait in.

use std::io::{Read, Write};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use neap::device::{Packet, PacketConfig};
use neap::posix::abi::{AF_INET, EPOLL_CTL_ADD, EPOLLIN, SOCK_STREAM};
use neap::posix::sockaddr::encode;
use neap::posix::{EpollEvent, Fd, PollFd, Process};
use neap::{Events, Poller, Stack, TcpStream};

use crate::common::{
    Family, allow_descriptors, eventually, expect_one_wake_up_for_each_probe,
    expect_that_nothing_wakes, in_namespace, run, sleeps_of,
};
use crate::links::{Elsewhere, add_address, veth};

/// `POLLIN`.
const IN: i16 = 1;

/// Keeps the kernel from sending anything on its own account.
fn quieten() {
    run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
}

/// A stack whose peer sends nothing on its own account.
fn quiet_stack() -> Stack {
    quieten();
    Family::V4.stack()
}

#[test]
fn threads_that_accept_and_read_are_not_woken() {
    in_namespace(|| {
        let stack = quiet_stack();
        let idle = Family::V4.pairs(&stack, 1000);
        let (ours, mut theirs) = Family::V4.pair(&stack);
        let (listener, address) = Family::V4.listener(&stack);
        let accepting = thread::spawn(move || listener.accept().map(|(stream, _)| stream));
        let reading = thread::spawn(move || (&ours).read(&mut [0; 10]));
        expect_that_nothing_wakes();
        // They wait for what they get.
        theirs.write_all(b"a").expect("write");
        assert_eq!(reading.join().expect("a thread").expect("data"), 1);
        let _client = std::net::TcpStream::connect(address).expect("connect");
        accepting.join().expect("a thread").expect("a connection");
        drop(idle);
    });
}

#[test]
fn a_poller_with_a_thousand_connections_is_not_woken() {
    in_namespace(|| {
        let stack = quiet_stack();
        let mut idle = Family::V4.pairs(&stack, 1000);
        let poller = Poller::new().expect("descriptors");
        for ((ours, _), token) in idle.iter().zip(0..) {
            poller.add(ours, token, Events::IN | Events::RDHUP).expect("a socket");
        }
        let waiting = thread::spawn(move || {
            let mut events = Vec::new();
            poller.wait(&mut events, None).expect("a wait");
            events.first().map(|event| event.token)
        });
        expect_that_nothing_wakes();
        idle[700].1.write_all(b"a").expect("write");
        assert_eq!(waiting.join().expect("a thread"), Some(700));
    });
}

#[test]
fn a_stack_that_nobody_waits_for_is_not_woken() {
    in_namespace(|| {
        let stack = quiet_stack();
        let idle = Family::V4.pairs(&stack, 1000);
        let (ours, mut theirs) = Family::V4.pair(&stack);
        expect_that_nothing_wakes();
        // Nobody reads: the worker takes what comes, and has its rest again.
        theirs.write_all(b"a").expect("write");
        expect_that_nothing_wakes();
        assert_eq!((&ours).read(&mut [0; 10]).expect("data"), 1);
        drop(idle);
    });
}

/// Descriptors of the stack that are connected to the kernel, and the kernel's ends of them.
fn connected(posix: &Process, count: usize) -> Vec<(Fd, std::net::TcpStream)> {
    allow_descriptors();
    let (listener, address) = Family::V4.kernel_listener();
    let one = |_| {
        let fd = posix.socket(AF_INET, SOCK_STREAM, 0).expect("a descriptor");
        posix.connect(fd, &encode(address)).expect("somebody listens");
        (fd, listener.accept().expect("accept").0)
    };
    (0..count).map(one).collect()
}

#[test]
fn descriptors_that_are_polled_wake_nobody() {
    in_namespace(|| {
        let stack = quiet_stack();
        let posix = stack.posix(3);
        let mut idle = connected(&posix, 1000);
        let mut waits: Vec<_> =
            idle.iter().map(|(fd, _)| PollFd { fd: *fd, events: IN, revents: 0 }).collect();
        thread::scope(|scope| {
            let polling = scope.spawn(|| {
                let ready = posix.poll(&mut waits, -1);
                ready.map(|ready| (ready, waits[700].revents))
            });
            expect_that_nothing_wakes();
            idle[700].1.write_all(b"a").expect("write");
            assert_eq!(polling.join().expect("a thread"), Ok((1, IN)));
        });
    });
}

#[test]
fn a_set_of_a_thousand_descriptors_wakes_nobody() {
    in_namespace(|| {
        let stack = quiet_stack();
        let posix = stack.posix(3);
        let mut idle = connected(&posix, 1000);
        let set = posix.epoll_create1(0).expect("a descriptor");
        for (fd, _) in &idle {
            let event = EpollEvent { events: EPOLLIN, data: *fd as u64 };
            posix.epoll_ctl(set, EPOLL_CTL_ADD, *fd, event).expect("a socket");
        }
        thread::scope(|scope| {
            let waiting = scope.spawn(|| posix.epoll_wait(set, 16, -1));
            expect_that_nothing_wakes();
            idle[700].1.write_all(b"a").expect("write");
            let found = waiting.join().expect("a thread").expect("a set");
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].data, idle[700].0 as u64);
        });
    });
}

#[test]
fn a_timer_wakes_a_stack_that_nobody_waits_for_once() {
    in_namespace(|| {
        let stack = quiet_stack();
        let probed = Family::V4.probed_pairs(&stack);
        expect_one_wake_up_for_each_probe(&stack);
        drop(probed);
    });
}

#[test]
fn a_timer_wakes_one_of_the_threads_that_accept_and_read_once() {
    in_namespace(|| {
        let stack = quiet_stack();
        let mut probed = Family::V4.probed_pairs(&stack);
        let (listener, address) = Family::V4.listener(&stack);
        let accepting = thread::spawn(move || listener.accept().map(|(stream, _)| stream));
        expect_one_wake_up_for_each_probe(&stack);
        let (ours, mut theirs) = probed.pop().expect("a connection");
        let reading = thread::spawn(move || {
            let got = (&ours).read(&mut [0; 10]);
            (got, ours)
        });
        expect_one_wake_up_for_each_probe(&stack);
        let _client = std::net::TcpStream::connect(address).expect("connect");
        accepting.join().expect("a thread").expect("a connection");
        // The reader leads now, alone.
        expect_one_wake_up_for_each_probe(&stack);
        theirs.write_all(b"a").expect("write");
        assert_eq!(reading.join().expect("a thread").0.expect("data"), 1);
    });
}

#[test]
fn a_timer_wakes_a_poller_once() {
    in_namespace(|| {
        let stack = quiet_stack();
        let mut probed = Family::V4.probed_pairs(&stack);
        let poller = Poller::new().expect("descriptors");
        for ((ours, _), token) in probed.iter().zip(0..) {
            poller.add(ours, token, Events::IN).expect("a socket");
        }
        let waiting = thread::spawn(move || {
            let mut events = Vec::new();
            poller.wait(&mut events, None).expect("a wait");
            events.first().map(|event| event.token)
        });
        expect_one_wake_up_for_each_probe(&stack);
        probed[2].1.write_all(b"a").expect("write");
        assert_eq!(waiting.join().expect("a thread"), Some(2));
    });
}

#[test]
fn a_timer_wakes_a_thread_that_polls_descriptors_once() {
    in_namespace(|| {
        let stack = quiet_stack();
        let probed = Family::V4.probed_pairs(&stack);
        let posix = stack.posix(3);
        let mut polled = connected(&posix, 1);
        let mut waits = [PollFd { fd: polled[0].0, events: IN, revents: 0 }];
        thread::scope(|scope| {
            let polling = scope.spawn(|| posix.poll(&mut waits, -1));
            expect_one_wake_up_for_each_probe(&stack);
            polled[0].1.write_all(b"a").expect("write");
            assert_eq!(polling.join().expect("a thread"), Ok(1));
        });
        drop(probed);
    });
}

#[test]
fn two_queues_of_a_network_card_are_not_woken() {
    in_namespace(|| {
        let there = Elsewhere::new();
        quieten();
        there.run(quieten);
        veth(&there);
        let kernel = there.run(|| {
            add_address("v1", "10.9.0.1/24");
            std::net::TcpListener::bind("10.9.0.1:0").expect("a listener")
        });
        let config = PacketConfig { queues: 2, ..PacketConfig::new("v0") };
        let device = Packet::open(&config).expect("a device").into_device();
        let stack = Stack::builder().device(device).address("10.9.0.2/24").build().expect("one");
        let address = kernel.local_addr().expect("an address");
        let pair = |_| {
            let ours = TcpStream::connect(&stack, address).expect("connect");
            (ours, kernel.accept().expect("accept").0)
        };
        // On both shards, as the hash deals them out.
        let mut pairs: Vec<_> = (0..20).map(pair).collect();
        let poller = Poller::new().expect("descriptors");
        for ((ours, _), token) in pairs[1..].iter().zip(1..) {
            poller.add(ours, token, Events::IN).expect("a socket");
        }
        thread::scope(|scope| {
            let (ours, mut theirs) = pairs.remove(0);
            let reading = scope.spawn(move || (&ours).read(&mut [0; 10]));
            let polling = scope.spawn(|| {
                let mut events = Vec::new();
                poller.wait(&mut events, None).expect("a wait");
                events.first().map(|event| event.token)
            });
            expect_that_nothing_wakes();
            theirs.write_all(b"a").expect("write");
            pairs[6].1.write_all(b"a").expect("write");
            assert_eq!(reading.join().expect("a thread").expect("data"), 1);
            assert_eq!(polling.join().expect("a thread"), Some(7));
        });
    });
}

/// A worker may be busy with what the stack has to do, and a thread sleeps while it waits for a
/// lock, so the thread has several tries.
#[test]
fn a_thread_that_spins_does_not_sleep_before_its_time() {
    in_namespace(|| {
        quieten();
        let spinning = Stack::builder()
            .tun("t0")
            .host_address(Family::V4.cidr(Family::V4.kernel()))
            .address(Family::V4.cidr(Family::V4.ours()))
            .spin(Duration::from_secs(10))
            .build()
            .expect("a stack on a TUN");
        let (ours, _theirs) = Family::V4.pair(&spinning);
        let poller = Poller::new().expect("descriptors");
        poller.add(&ours, 0, Events::IN).expect("a socket");
        let wait = Duration::from_millis(20);
        let sleeps = || sleeps_of("/proc/thread-self".as_ref());
        let in_poller = || {
            let (before, mut events) = (sleeps(), Vec::new());
            poller.wait(&mut events, Some(wait)).expect("a wait");
            sleeps() - before
        };
        ours.set_read_timeout(Some(wait)).expect("a timeout");
        let in_read = || {
            let before = sleeps();
            (&ours).read(&mut [0; 10]).expect_err("nothing comes");
            sleeps() - before
        };
        assert!((0..50).any(|_| in_poller() == 0), "a poller sleeps");
        assert!((0..50).any(|_| in_read() == 0), "a read sleeps");
    });
}

/// What comes within the budget ends no sleep. A thread sleeps while it waits for a lock, and may
/// find at once what has come while it waited for a processor, so most waits decide.
#[test]
fn a_thread_that_polls_busily_does_not_sleep_before_its_budget_is_over() {
    const WAITS: usize = 20;
    in_namespace(|| {
        quieten();
        for (budget, sleeps_most_times) in
            [(Duration::from_secs(10), false), (Duration::ZERO, true)]
        {
            let stack = Stack::builder()
                .tun("t0")
                .host_address(Family::V4.cidr(Family::V4.kernel()))
                .address(Family::V4.cidr(Family::V4.ours()))
                .busy_poll(budget)
                .build()
                .expect("a stack on a TUN");
            let (ours, mut theirs) = Family::V4.pair(&stack);
            let poller = Poller::new().expect("descriptors");
            poller.add(&ours, 0, Events::IN).expect("a socket");
            let (ask, asked) = mpsc::channel();
            let answering = thread::spawn(move || {
                for () in asked {
                    // Long enough for a thread without a budget to fall asleep.
                    thread::sleep(Duration::from_millis(20));
                    theirs.write_all(b"a").expect("written");
                }
            });
            let waits_asleep = |wait: &dyn Fn()| {
                let sleeps_in_one = |_: &usize| {
                    let sleeps = || sleeps_of("/proc/thread-self".as_ref());
                    ask.send(()).expect("a thread that answers");
                    let before = sleeps();
                    wait();
                    sleeps() > before
                };
                (0..WAITS).filter(sleeps_in_one).count()
            };
            let read = || assert_eq!((&ours).read(&mut [0; 10]).expect("read"), 1);
            let of_reads = waits_asleep(&read);
            let of_polls = waits_asleep(&|| {
                let mut events = Vec::new();
                while events.is_empty() {
                    poller.wait(&mut events, None).expect("a wait");
                }
                read();
            });
            for count in [of_reads, of_polls] {
                assert_eq!(count > WAITS / 2, sleeps_most_times, "{of_reads} and {of_polls} slept");
            }
            drop((ask, ours, poller));
            answering.join().expect("the end");
        }
    });
}

/// The poller may drive at first, and again in the next wait where the reader is late. The reader
/// keeps the lead from when it has it. A thread sleeps while it waits for a lock, so most waits
/// decide.
#[test]
fn a_poller_sleeps_while_another_thread_polls_busily_for_it() {
    const WAITS: usize = 20;
    in_namespace(|| {
        quieten();
        let busy = Stack::builder()
            .tun("t0")
            .host_address(Family::V4.cidr(Family::V4.kernel()))
            .address(Family::V4.cidr(Family::V4.ours()))
            .busy_poll(Duration::from_secs(3600))
            .spin(Duration::from_secs(3600))
            .build()
            .expect("a stack on a TUN");
        let (ours, mut theirs) = Family::V4.pair(&busy);
        let (other, _others) = Family::V4.pair(&busy);
        let poller = Poller::new().expect("descriptors");
        poller.add(&other, 0, Events::IN).expect("a socket");
        let reading = thread::spawn(move || (&ours).read(&mut [0; 10]));
        let sleeps = || sleeps_of("/proc/thread-self".as_ref());
        let sleeps_in_one = |_: &usize| {
            let (before, mut events) = (sleeps(), Vec::new());
            poller.wait(&mut events, Some(Duration::from_millis(20))).expect("a wait");
            sleeps() > before
        };
        let asleep = || (0..WAITS).filter(sleeps_in_one).count();
        eventually(asleep, |asleep| *asleep > WAITS / 2);
        theirs.write_all(b"a").expect("write");
        assert_eq!(reading.join().expect("a thread").expect("data"), 1);
    });
}

#[test]
fn a_thread_that_polls_busily_sleeps_when_its_budget_is_over() {
    in_namespace(|| {
        quieten();
        let busy = Stack::builder()
            .tun("t0")
            .host_address(Family::V4.cidr(Family::V4.kernel()))
            .address(Family::V4.cidr(Family::V4.ours()))
            .busy_poll(Duration::from_micros(100))
            .build()
            .expect("a stack on a TUN");
        let (ours, mut theirs) = Family::V4.pair(&busy);
        let reading = thread::spawn(move || (&ours).read(&mut [0; 10]));
        expect_that_nothing_wakes();
        theirs.write_all(b"a").expect("write");
        assert_eq!(reading.join().expect("a thread").expect("data"), 1);
    });
}
