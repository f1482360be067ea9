//! Interleavings of threads that wait to take things from one socket, of which each thing wakes
//! one: who gives up, who only looks, who takes without waiting, and who brings. A thing that is
//! there while its waiters sleep is a deadlock here.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p neap-stack --release --test loom_waiting`
#![cfg(loom)]

use loom::model::Builder;
use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use neap_stack::socket::readiness::{Readiness, Ready, ReadyState};
use std::task::{Wake, Waker};

fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A thread that sleeps until it is woken.
#[derive(Default)]
struct Sleep {
    is_over: Mutex<bool>,
    ends: Condvar,
    wakes: AtomicUsize,
}

impl Sleep {
    fn wait(&self) {
        let mut is_over = self.is_over.lock().unwrap();
        while !*is_over {
            is_over = self.ends.wait(is_over).unwrap();
        }
        *is_over = false;
    }
}

impl Wake for Sleep {
    fn wake(self: std::sync::Arc<Self>) {
        self.wakes.fetch_add(1, SeqCst);
        *self.is_over.lock().unwrap() = true;
        self.ends.notify_all();
    }
}

/// A socket with a queue of things.
#[derive(Default)]
struct Socket {
    readiness: Readiness,
    queue: Mutex<usize>,
}

impl Socket {
    fn bring(&self, count: usize) {
        let mut queue = self.queue.lock().unwrap();
        *queue += count;
        self.readiness.signal_each(Ready::READABLE, count);
    }

    fn take(&self) -> bool {
        let mut queue = self.queue.lock().unwrap();
        let has_one = *queue > 0;
        *queue -= usize::from(has_one);
        if *queue == 0 {
            self.readiness.clear(Ready::READABLE);
        }
        has_one
    }

    fn peek(&self) -> bool {
        let queue = self.queue.lock().unwrap();
        if *queue > 0 {
            self.readiness.pass_on();
        }
        *queue > 0
    }

    /// Whether an attempt is worth it: something came since `seen`.
    fn is_met(&self, seen: ReadyState) -> bool {
        let now = self.readiness.state();
        now.generation() != seen.generation() && now.bits().contains(Ready::READABLE)
    }

    /// Waits until `attempt` succeeds.
    fn wait(&self, sleep: &std::sync::Arc<Sleep>, drives: bool, attempt: impl Fn() -> bool) {
        let waker = Waker::from(sleep.clone());
        loop {
            let seen = self.readiness.state();
            if attempt() {
                return;
            }
            if self.readiness.register_exclusive(seen, Ready::READABLE, &waker, drives) {
                sleep.wait();
                self.readiness.unregister(&waker);
            }
        }
    }

    /// Waits to take one, for no time at all. Whether it got one.
    fn wait_in_vain(&self) -> bool {
        let waker = Waker::from(std::sync::Arc::new(Sleep::default()));
        let seen = self.readiness.state();
        if self.take() {
            return true;
        }
        if self.readiness.register_exclusive(seen, Ready::READABLE, &waker, false) {
            self.readiness.unregister(&waker);
        }
        self.is_met(seen) && self.take()
    }
}

fn waits_to_take(socket: &Arc<Socket>, drives: bool) -> thread::JoinHandle<usize> {
    let socket = socket.clone();
    thread::spawn(move || {
        let sleep = std::sync::Arc::new(Sleep::default());
        socket.wait(&sleep, drives, || socket.take());
        sleep.wakes.load(SeqCst)
    })
}

#[test]
fn each_of_two_things_finds_a_waiter() {
    bounded(|| {
        let socket = Arc::new(Socket::default());
        let waiters = [waits_to_take(&socket, false), waits_to_take(&socket, true)];
        socket.bring(1);
        socket.bring(1);
        waiters.into_iter().for_each(|waiter| assert!(waiter.join().unwrap() <= 2));
    });
}

#[test]
fn things_that_come_at_once_find_all_their_waiters() {
    bounded(|| {
        let socket = Arc::new(Socket::default());
        let waiters = [waits_to_take(&socket, false), waits_to_take(&socket, false)];
        socket.bring(2);
        waiters.into_iter().for_each(|waiter| assert!(waiter.join().unwrap() <= 1));
    });
}

#[test]
fn who_gives_up_keeps_no_wake_up_from_another() {
    bounded(|| {
        let socket = Arc::new(Socket::default());
        let waiter = waits_to_take(&socket, false);
        let hasty = {
            let socket = socket.clone();
            thread::spawn(move || socket.wait_in_vain())
        };
        socket.bring(1);
        if hasty.join().unwrap() {
            socket.bring(1);
        }
        waiter.join().unwrap();
    });
}

#[test]
fn who_only_looks_passes_the_wake_up_on() {
    bounded(|| {
        let socket = Arc::new(Socket::default());
        let looks = {
            let socket = socket.clone();
            thread::spawn(move || {
                let sleep = std::sync::Arc::new(Sleep::default());
                socket.wait(&sleep, true, || socket.peek());
            })
        };
        let waiter = waits_to_take(&socket, false);
        socket.bring(1);
        waiter.join().unwrap();
        // Whoever looks later than the other has taken waits for the next.
        socket.bring(1);
        looks.join().unwrap();
    });
}

#[test]
fn who_takes_without_waiting_leaves_no_waiter_behind() {
    bounded(|| {
        let socket = Arc::new(Socket::default());
        let waiter = waits_to_take(&socket, false);
        socket.bring(1);
        if socket.take() {
            socket.bring(1);
        }
        waiter.join().unwrap();
    });
}
