//! Epoll sets that threads wait for.

use super::*;
use crate::common::in_namespace;
use neap::posix::EpollEvent;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

struct Set<'a> {
    posix: &'a Process,
    fd: Fd,
}

impl<'a> Set<'a> {
    fn new(posix: &'a Process) -> Self {
        Self { posix, fd: posix.epoll_create1(0).expect("a descriptor") }
    }

    fn control(&self, operation: i32, fd: Fd, events: u32) {
        let event = EpollEvent { events, data: fd as u64 };
        self.posix.epoll_ctl(self.fd, operation, fd, event).expect("fine");
    }

    fn add(&self, fd: Fd, events: u32) {
        self.control(EPOLL_CTL_ADD, fd, events);
    }

    fn wait(&self, timeout_ms: i32) -> Vec<(Fd, u32)> {
        let found = self.posix.epoll_wait(self.fd, 16, timeout_ms).expect("a set");
        found.iter().map(|event| (event.data as Fd, event.events)).collect()
    }
}

/// Starts threads that wait for `set` and serve each descriptor that it reports, until `quit` is
/// readable.
fn serve<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    threads: usize,
    set: &'scope Set<'_>,
    quit: Fd,
    one: impl Fn() + Copy + Send + 'scope,
) {
    for _ in 0..threads {
        scope.spawn(move || {
            loop {
                for (ready, _) in set.wait(-1) {
                    if ready == quit {
                        return;
                    }
                    one();
                }
            }
        });
    }
}

#[test]
fn levels_edges_and_one_shots() {
    in_namespace(|| {
        let (_stack, posix) = process();
        let (fd, mut theirs) = pair(&posix);
        let [level, edge, once] = [0; 3].map(|_| Set::new(&posix));
        level.add(fd, EPOLLIN);
        edge.add(fd, EPOLLIN | EPOLLET);
        once.add(fd, EPOLLIN | EPOLLONESHOT);
        assert_eq!(level.wait(MOMENT), []);
        for _ in 0..2 {
            theirs.write_all(b"x").expect("room");
            assert_eq!(edge.wait(-1), [(fd, EPOLLIN)]);
            assert_eq!(edge.wait(MOMENT), []);
            assert_eq!(level.wait(-1), [(fd, EPOLLIN)]);
            assert_eq!(level.wait(-1), [(fd, EPOLLIN)]);
        }
        assert_eq!(once.wait(-1), [(fd, EPOLLIN)]);
        assert_eq!(once.wait(MOMENT), []);
        once.control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
        assert_eq!(once.wait(-1), [(fd, EPOLLIN)]);
        assert_eq!(posix.recv(fd, &mut [0; 9], 0), Ok(2));
        assert_eq!(level.wait(MOMENT), []);
    });
}

#[test]
fn a_thread_that_waits_sees_what_is_added_removed_and_closed() {
    in_namespace(|| {
        let (_stack, posix) = process();
        let (first, mut of_first) = pair(&posix);
        let (second, mut of_second) = pair(&posix);
        let (inner, outer) = (Set::new(&posix), Set::new(&posix));
        outer.add(inner.fd, EPOLLIN);
        of_first.write_all(b"x").expect("room");
        assert_eq!(poll_one(&posix, first, POLLIN, -1), POLLIN);
        let (say, hear) = announcement();
        let waits = |set: &Set<'_>, cause: &mut dyn FnMut()| {
            thread::scope(|scope| {
                let say = say.clone();
                let waiter = scope.spawn(move || {
                    announce(&say);
                    set.wait(-1)
                });
                until_asleep(&hear);
                cause();
                waiter.join().expect("a thread")
            })
        };
        assert_eq!(waits(&inner, &mut || inner.add(first, EPOLLIN)), [(first, EPOLLIN)]);
        assert_eq!(posix.recv(first, &mut [0; 9], 0), Ok(1));
        // What is removed or closed is not told; what is left is.
        let got = waits(&inner, &mut || {
            inner.control(EPOLL_CTL_DEL, first, 0);
            of_first.write_all(b"x").expect("room");
            inner.add(second, EPOLLIN);
            of_second.write_all(b"x").expect("room");
        });
        assert_eq!(got, [(second, EPOLLIN)]);
        assert_eq!(posix.recv(second, &mut [0; 9], 0), Ok(1));
        let got = waits(&outer, &mut || of_second.write_all(b"x").expect("room"));
        assert_eq!(got, [(inner.fd, EPOLLIN)], "a set within a set");
        posix.close(second).expect("open");
        assert_eq!(outer.wait(MOMENT), []);
        assert_eq!(waits(&outer, &mut || inner.add(first, EPOLLIN)), [(inner.fd, EPOLLIN)]);
    });
}

#[test]
fn an_edge_goes_to_one_thread_and_none_is_lost() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 300;
    in_namespace(|| {
        let (_stack, posix) = process();
        let (fd, mut theirs) = pair(&posix);
        posix.fcntl(fd, F_SETFL, i64::from(O_NONBLOCK)).expect("open");
        let [quit, quitter] = posix.pipe2(0).expect("descriptors");
        let set = Set::new(&posix);
        set.add(fd, EPOLLIN | EPOLLET);
        set.add(quit, EPOLLIN);
        let told = AtomicUsize::new(0);
        thread::scope(|scope| {
            serve(scope, THREADS, &set, quit, || {
                told.fetch_add(1, Ordering::SeqCst);
                let mut buf = [0; 9];
                while let Ok(got) = posix.recv(fd, &mut buf, 0) {
                    assert_eq!(posix.send(fd, &buf[..got], 0), Ok(got));
                }
            });
            for round in 0..ROUNDS {
                // The answer is sent before the reader finds nothing more: the next byte may be
                // read by it, and the edge by another.
                theirs.write_all(&[round as u8]).expect("room");
                let mut back = [0];
                theirs.read_exact(&mut back).expect("an answer");
                assert_eq!(back, [round as u8]);
            }
            assert_eq!(posix.write(quitter, b"x"), Ok(1));
        });
        assert!(told.load(Ordering::SeqCst) <= ROUNDS, "one thread per edge");
    });
}

#[test]
fn a_one_shot_has_one_thread_at_a_time() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 300;
    in_namespace(|| {
        let (_stack, posix) = process();
        let (fd, mut theirs) = pair(&posix);
        let [quit, quitter] = posix.pipe2(0).expect("descriptors");
        let set = Set::new(&posix);
        set.add(fd, EPOLLIN | EPOLLONESHOT);
        set.add(quit, EPOLLIN);
        let at_work = AtomicUsize::new(0);
        thread::scope(|scope| {
            serve(scope, THREADS, &set, quit, || {
                assert_eq!(at_work.fetch_add(1, Ordering::SeqCst), 0);
                let mut buf = [0; 9];
                let got = posix.recv(fd, &mut buf, MSG_DONTWAIT).expect("data");
                assert_eq!(posix.send(fd, &buf[..got], 0), Ok(got));
                at_work.fetch_sub(1, Ordering::SeqCst);
                set.control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
            });
            for round in 0..ROUNDS {
                theirs.write_all(&[round as u8]).expect("room");
                theirs.read_exact(&mut [0]).expect("an answer");
            }
            assert_eq!(posix.write(quitter, b"x"), Ok(1));
        });
    });
}

#[test]
fn exclusive_sets_share_a_listener_and_no_connection_is_left() {
    const THREADS: usize = 3;
    const CONNECTIONS: usize = 60;
    in_namespace(|| {
        let (_stack, posix) = process();
        let (listener, address) = listener(&posix);
        posix.fcntl(listener, F_SETFL, i64::from(O_NONBLOCK)).expect("open");
        let [quit, quitter] = posix.pipe2(0).expect("descriptors");
        let accepted = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let set = Set::new(&posix);
                    set.add(listener, EPOLLIN | EPOLLEXCLUSIVE);
                    set.add(quit, EPOLLIN);
                    loop {
                        for (ready, _) in set.wait(-1) {
                            if ready == quit {
                                return posix.close(set.fd).expect("open");
                            }
                            while let Ok(one) = posix.accept(listener, 0) {
                                accepted.fetch_add(1, Ordering::SeqCst);
                                assert_eq!(posix.send(one.fd, b"x", 0), Ok(1));
                                posix.close(one.fd).expect("open");
                            }
                        }
                    }
                });
            }
            for _ in 0..CONNECTIONS {
                let mut stream = TcpStream::connect(address).expect("somebody listens");
                stream.read_exact(&mut [0]).expect("a byte");
            }
            assert_eq!(posix.write(quitter, b"x"), Ok(1));
        });
        assert_eq!(accepted.load(Ordering::SeqCst), CONNECTIONS);
    });
}
