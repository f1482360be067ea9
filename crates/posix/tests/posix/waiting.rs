//! Which of several calls that wait for one socket are woken.

use super::*;
use neap_posix::PollFd;
use neap_stack::wait::Condition;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A call that waits in a thread of its own.
struct Waiting {
    call: Call,
    wakes: Arc<Wakes>,
}

impl Waiting {
    /// Makes an attempt, which has to wait, and goes to sleep.
    fn new<T>(
        p: &mut Process,
        make: impl FnOnce(&mut Posix, Instant, &mut Call) -> Result<Outcome<T>, Errno>,
    ) -> Self {
        let mut waiting = Self { call: Call::new(), wakes: Arc::default() };
        let outcome = make(&mut p.posix, p.now, &mut waiting.call);
        assert!(matches!(outcome, Ok(Outcome::Wait(_))));
        waiting.sleep(false);
        waiting
    }

    fn sleep(&mut self, drives: bool) {
        assert!(self.call.arm(&Waker::from(self.wakes.clone()), drives));
    }

    fn get_up(&mut self) {
        self.call.disarm(&Waker::from(self.wakes.clone()));
    }

    fn wakes(&self) -> usize {
        self.wakes.0.load(SeqCst)
    }
}

fn wakes(all: &[Waiting]) -> Vec<usize> {
    all.iter().map(Waiting::wakes).collect()
}

fn to_receive(p: &mut Process, fd: Fd, flags: i32) -> Waiting {
    Waiting::new(p, |posix, now, call| posix.recv(now, call, fd, &mut [0; 9], flags))
}

/// The call is made again, and is over.
fn receive(p: &mut Process, fd: Fd, waiting: &mut Waiting, flags: i32) -> usize {
    let received = p.posix.recv(p.now, &mut waiting.call, fd, &mut [0; 9], flags);
    received.expect("a datagram").done().expect("no wait")
}

fn udp_at(p: &mut Process, at: &str) -> Fd {
    let fd = p.udp();
    p.bind(fd, at).expect("a free port");
    fd
}

fn send_to(p: &mut Process, to: &str, count: usize) {
    let (from, to) = (p.udp(), address(to));
    for _ in 0..count {
        let sent =
            p.once(|posix, now, call| posix.send_to(now, call, from, b"datagram", 0, Some(&to)));
        assert_eq!(sent, Ok(8));
    }
    p.settle();
}

#[test]
fn a_datagram_wakes_one_of_the_calls_that_wait_to_receive() {
    let mut p = Process::new();
    let fd = udp_at(&mut p, "127.0.0.1:53");
    let mut calls: Vec<_> = (0..4).map(|_| to_receive(&mut p, fd, 0)).collect();
    let mut fds = [PollFd { fd, events: POLLIN as i16, revents: 0 }];
    let poll = Waiting::new(&mut p, |posix, now, call| posix.poll(now, call, &mut fds, -1));
    send_to(&mut p, "127.0.0.1:53", 1);
    assert_eq!(wakes(&calls), [1, 0, 0, 0]);
    assert_eq!(poll.wakes(), 1, "who only looks is always woken");
    assert_eq!(receive(&mut p, fd, &mut calls[0], 0), 8);
    send_to(&mut p, "127.0.0.1:53", 2);
    assert_eq!(wakes(&calls), [1, 1, 1, 0]);
    calls[..3].iter_mut().for_each(Waiting::get_up);
    p.posix.shutdown(p.now, fd, SHUT_RD).expect_err("not connected, and shut nevertheless");
    assert_eq!(wakes(&calls), [1, 1, 1, 1], "the end wakes all");
}

#[test]
fn a_call_that_drives_the_stack_is_woken_before_others() {
    let mut p = Process::new();
    let fd = udp_at(&mut p, "127.0.0.1:53");
    let mut calls: Vec<_> = (0..3).map(|_| to_receive(&mut p, fd, 0)).collect();
    calls[2].get_up();
    calls[2].sleep(true);
    send_to(&mut p, "127.0.0.1:53", 1);
    assert_eq!(wakes(&calls), [0, 0, 1]);
}

#[test]
fn who_leaves_the_datagram_that_it_was_woken_for_wakes_the_next() {
    let mut p = Process::new();
    let fd = udp_at(&mut p, "127.0.0.1:53");
    let mut calls: Vec<_> = (0..3).map(|_| to_receive(&mut p, fd, MSG_PEEK)).collect();
    send_to(&mut p, "127.0.0.1:53", 1);
    assert_eq!(wakes(&calls), [1, 0, 0]);
    assert_eq!(receive(&mut p, fd, &mut calls[0], MSG_PEEK), 8);
    assert_eq!(wakes(&calls), [1, 1, 0]);
    assert_eq!(receive(&mut p, fd, &mut calls[1], 0), 8);
    assert_eq!(wakes(&calls), [1, 1, 0], "nothing is left");
}

#[test]
fn a_connection_wakes_one_of_the_calls_that_wait_to_accept() {
    let mut p = Process::new();
    let listener = p.listen("127.0.0.1:80");
    let accept = |posix: &mut Posix, now, call: &mut Call| posix.accept(now, call, listener, 0);
    let mut calls: Vec<_> = (0..3).map(|_| Waiting::new(&mut p, accept)).collect();
    let client = p.tcp();
    p.connect(client, "127.0.0.1:80").expect("somebody listens");
    assert_eq!(wakes(&calls), [1, 0, 0]);
    // The process has no descriptor left for it.
    let mut fds = Vec::new();
    while let Ok(fd) = p.posix.socket(AF_INET, SOCK_DGRAM, 0) {
        fds.push(fd);
    }
    let refused = p.posix.accept(p.now, &mut calls[0].call, listener, 0);
    assert_eq!(refused.map(|_| ()), Err(Errno::EMFILE));
    assert_eq!(wakes(&calls), [1, 1, 0], "the connection is there for another");
    p.close(fds[0]);
    let accepted = p.posix.accept(p.now, &mut calls[1].call, listener, 0);
    assert!(matches!(accepted, Ok(Outcome::Done(_))));
    assert_eq!(wakes(&calls), [1, 1, 0]);
}

#[test]
fn bytes_of_a_stream_wake_all_that_wait_to_read() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let calls: Vec<_> = (0..3).map(|_| to_receive(&mut p, server, 0)).collect();
    p.send(client, b"x", 0).expect("room");
    p.settle();
    assert_eq!(wakes(&calls), [1, 1, 1]);
}
