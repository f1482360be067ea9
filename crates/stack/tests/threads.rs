//! Real threads on one host: applications that own sockets while a driver brings segments,
//! completions and timers, and applications that drive.
#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "real time and threads")]

use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use core::time::Duration;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::Why;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack, StackConfig};
use neap_tcp::connection::{ReadError, WriteError};
use neap_tcp::time::{Instant, Nanos};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

const FLOWS: usize = 4;
const BYTES: usize = 3_000_000;

struct Clock(std::time::Instant);

impl Clock {
    fn now(&self) -> Instant {
        Instant::ZERO + Nanos::from(self.0.elapsed()) + Nanos::from_secs(1)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits until `handle` is ready for any of `bits`; every other caller drives instead of sleeping.
fn wait(stack: &Stack, clock: &Clock, handle: &TcpHandle, bits: Ready, drives: bool) {
    let waker: Waker = Arc::new(Unpark(thread::current())).into();
    loop {
        let seen = handle.readiness();
        if seen.bits().intersects(bits | Ready::ERROR) {
            return;
        }
        if drives && stack.poll(0, clock.now()).1 != Why::Busy {
            continue;
        }
        if handle.register(seen, bits | Ready::ERROR, &waker) {
            thread::park_timeout(Duration::from_secs(5));
        }
    }
}

fn byte(flow: usize, at: usize) -> u8 {
    (at.wrapping_mul(31).wrapping_add(at >> 8).wrapping_add(flow)) as u8
}

fn send(stack: &Stack, clock: &Clock, handle: &TcpHandle, flow: usize) {
    let data: Vec<u8> = (0..BYTES).map(|at| byte(flow, at)).collect();
    let mut sent = 0;
    while sent < data.len() {
        let end = data.len().min(sent + 10_000 * (flow + 1));
        match handle.write(clock.now(), &data[sent..end]) {
            Ok(count) => sent += count,
            Err(WriteError::WouldBlock) => {
                wait(stack, clock, handle, Ready::WRITABLE, flow.is_multiple_of(2));
            }
            Err(error) => panic!("{error}"),
        }
    }
    handle.shutdown_write(clock.now());
}

fn receive(stack: &Stack, clock: &Clock, handle: &TcpHandle, flow: usize) {
    let mut at = 0;
    let mut buf = vec![0; 50_000];
    loop {
        match handle.read(clock.now(), &mut buf) {
            Ok(0) => break,
            Ok(count) => {
                for (i, got) in buf[..count].iter().enumerate() {
                    assert_eq!(*got, byte(flow, at + i), "flow {flow} at {}", at + i);
                }
                at += count;
            }
            Err(ReadError::WouldBlock) => wait(stack, clock, handle, Ready::READABLE, false),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(at, BYTES);
}

#[test]
fn owners_drivers_and_waiters_lose_nothing() {
    let stack = Stack::new(StackConfig::default()).unwrap();
    let clock = Clock(std::time::Instant::now());
    let to = "127.0.0.1:80".parse().unwrap();
    let listener = stack.listen(to, ListenOptions::default()).unwrap();
    let clients: Vec<_> = (0..FLOWS)
        .map(|_| stack.connect(clock.now(), to, ConnectOptions::default()).unwrap())
        .collect();
    while listener.queued().1 < FLOWS {
        stack.poll(0, clock.now());
    }
    let servers: Vec<_> = (0..FLOWS).map(|_| listener.accept().unwrap()).collect();
    let is_over = AtomicBool::new(false);
    let (stack, clock, is_over) = (&stack, &clock, &is_over);
    thread::scope(|scope| {
        let driver = scope.spawn(move || {
            stack.set_kick(0, Some(Arc::new(Unpark(thread::current())).into()));
            while !is_over.load(SeqCst) {
                let now = clock.now();
                let (next, why) = stack.poll(0, now);
                match why {
                    Why::MoreWork => {}
                    Why::Busy => thread::yield_now(),
                    _ => thread::park_timeout(
                        Duration::from(next.since(now)).min(Duration::from_secs(5)),
                    ),
                }
            }
        });
        let mut workers = Vec::new();
        for (flow, client) in clients.iter().enumerate() {
            let pair = servers.iter().find(|(_, peer)| *peer == client.local_addr());
            let server = &pair.unwrap().0;
            workers.push(scope.spawn(move || send(stack, clock, client, flow)));
            workers.push(scope.spawn(move || receive(stack, clock, server, flow)));
        }
        for worker in workers {
            worker.join().unwrap();
        }
        is_over.store(true, SeqCst);
        driver.thread().unpark();
    });
    assert_eq!(stack.flows(clock.now()).len(), 2 * FLOWS);
    drop(clients);
    drop(servers);
    let deadline = clock.now() + Nanos::from_secs(5);
    while stack.usage().tcp.connections > 0 {
        assert!(clock.now() < deadline, "{:?}", stack.usage());
        stack.poll(0, clock.now());
    }
}

/// As many ports as threads, which have one each at most: there is always one that is free.
#[test]
fn two_who_listen_on_any_port_at_once_get_two() {
    let stack = Stack::new(StackConfig::default()).unwrap();
    stack.set_sysctl("net.ipv4.ip_local_port_range", "40000 40001").unwrap();
    let to = "127.0.0.1:0".parse().unwrap();
    let listen = || {
        for _ in 0..200_000 {
            let listener = stack.listen(to, ListenOptions::default()).unwrap();
            listener.close(Instant::ZERO);
        }
    };
    thread::scope(|scope| {
        scope.spawn(listen);
        scope.spawn(listen);
    });
}
