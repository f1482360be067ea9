//! Several threads at one socket: who gets what, and what ends their waits.

use super::*;
use crate::common::{expect_end, in_namespace};
use neap::posix::Errno;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::Mutex;
use std::thread;

#[test]
fn each_connection_goes_to_one_of_the_threads_that_accept() {
    const THREADS: usize = 4;
    const EACH: usize = 8;
    in_namespace(|| {
        let (_stack, posix) = process();
        let (listener, address) = listener(&posix);
        let peers = Mutex::new(BTreeSet::new());
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let accepted = posix.accept(listener, 0).expect("a connection");
                        assert!(peers.lock().expect("no panic").insert(accepted.peer));
                        assert_eq!(posix.send(accepted.fd, b"x", 0), Ok(1));
                        posix.close(accepted.fd).expect("open");
                    }
                });
            }
            for _ in 0..THREADS * EACH {
                let mut stream = TcpStream::connect(address).expect("somebody listens");
                stream.read_exact(&mut [0]).expect("a byte");
                expect_end(&mut stream);
            }
        });
        assert_eq!(peers.lock().expect("no panic").len(), THREADS * EACH);
    });
}

#[test]
fn a_call_that_waits_keeps_its_file_when_the_descriptor_is_closed() {
    in_namespace(|| {
        let (_stack, posix) = process();
        let (fd, mut theirs) = pair(&posix);
        let (say, hear) = announcement();
        thread::scope(|scope| {
            let posix = &posix;
            let reader = scope.spawn(move || {
                announce(&say);
                let mut buf = [0; 9];
                posix.recv(fd, &mut buf, 0).map(|len| buf[..len].to_vec())
            });
            until_asleep(&hear);
            posix.close(fd).expect("open");
            assert_eq!(posix.recv(fd, &mut [0; 9], 0), Err(Errno::EBADF));
            // The number is another file's, which the reader does not see.
            assert_eq!(udp(posix), fd);
            theirs.write_all(b"late").expect("room");
            assert_eq!(reader.join().expect("a thread"), Ok(b"late".to_vec()));
        });
        // The last who had the file is gone.
        expect_end(&mut theirs);
    });
}

#[test]
fn shutdown_ends_what_other_threads_wait_for() {
    in_namespace(|| {
        let (_stack, posix) = process();
        let (fd, _theirs) = pair(&posix);
        let (listener, _) = listener(&posix);
        let (say, hear) = announcement();
        thread::scope(|scope| {
            let (posix, say) = (&posix, &say);
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(move || {
                        announce(say);
                        posix.recv(fd, &mut [0; 9], 0)
                    })
                })
                .collect();
            let acceptor = scope.spawn(move || {
                announce(say);
                posix.accept(listener, 0)
            });
            until_all_asleep(&hear, 4);
            posix.shutdown(fd, SHUT_RD).expect("connected");
            for reader in readers {
                assert_eq!(reader.join().expect("a thread"), Ok(0));
            }
            posix.shutdown(listener, SHUT_RD).expect("it listens");
            assert_eq!(acceptor.join().expect("a thread"), Err(Errno::EINVAL));
        });
    });
}

#[test]
fn duplicates_share_the_file_and_the_last_closes_it() {
    in_namespace(|| {
        let (_stack, posix) = process();
        let (fd, mut theirs) = pair(&posix);
        let twin = posix.fcntl(fd, F_DUPFD, 0).expect("a descriptor");
        posix.close(fd).expect("open");
        assert_eq!(posix.send(twin, b"x", 0), Ok(1));
        theirs.read_exact(&mut [0]).expect("a byte");
        posix.close(twin).expect("open");
        expect_end(&mut theirs);
    });
}

#[test]
fn the_end_of_the_stack_ends_the_waits() {
    in_namespace(|| {
        let (stack, posix) = process();
        let (fd, _theirs) = pair(&posix);
        let (listener, _) = listener(&posix);
        let set = posix.epoll_create1(0).expect("a descriptor");
        let event = neap::posix::EpollEvent { events: EPOLLIN, data: 1 };
        posix.epoll_ctl(set, EPOLL_CTL_ADD, listener, event).expect("a new one");
        let (say, hear) = announcement();
        thread::scope(|scope| {
            let (posix, say) = (&posix, &say);
            let reader = scope.spawn(move || {
                announce(say);
                posix.recv(fd, &mut [0; 9], 0)
            });
            let [poller, of_listener] = [fd, listener].map(|fd| {
                scope.spawn(move || {
                    announce(say);
                    poll_one(posix, fd, POLLIN, -1)
                })
            });
            let of_set = scope.spawn(move || {
                announce(say);
                posix.epoll_wait(set, 1, -1)
            });
            until_all_asleep(&hear, 4);
            drop(stack);
            let read = reader.join().expect("a thread");
            assert!(matches!(read, Ok(0) | Err(Errno::ECONNABORTED)), "{read:?}");
            assert_ne!(poller.join().expect("a thread") & (POLLIN | POLLHUP | POLLERR), 0);
            let end = POLLIN | POLLERR | POLLHUP;
            assert_eq!(of_listener.join().expect("a thread"), end);
            let told = of_set.join().expect("a thread").expect("an event");
            assert_eq!(told, [neap::posix::EpollEvent { events: end, data: 1 }]);
        });
    });
}

#[test]
fn a_thread_that_waits_sleeps() {
    in_namespace(|| {
        let (_stack, posix) = process();
        let (fd, mut theirs) = pair(&posix);
        let set = posix.epoll_create1(0).expect("a descriptor");
        let event = neap::posix::EpollEvent { events: EPOLLIN, data: 1 };
        posix.epoll_ctl(set, EPOLL_CTL_ADD, fd, event).expect("a new one");
        let (say, hear) = announcement();
        thread::scope(|scope| {
            let (posix, say) = (&posix, &say);
            let waits = [
                scope.spawn(move || {
                    announce(say);
                    posix.epoll_wait(set, 1, -1).expect("an event");
                }),
                scope.spawn(move || {
                    announce(say);
                    assert_eq!(poll_one(posix, fd, POLLIN, -1), POLLIN);
                }),
            ];
            let names = waits.each_ref().map(|_| until_asleep(&hear));
            let wakes = |thread: i32| {
                let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status"));
                let status = status.expect("a thread");
                let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
                let count = line.and_then(|line| line.split_whitespace().last());
                count.and_then(|count| count.parse::<u64>().ok()).expect("a count")
            };
            let before = names.map(wakes);
            thread::sleep(Duration::from_millis(300));
            for (name, before) in names.into_iter().zip(before) {
                // The timers of a connection that was just opened may be among them.
                let woke = wakes(name) - before;
                assert!(woke <= 10, "a thread woke {woke} times for nothing");
            }
            theirs.write_all(b"x").expect("room");
            for wait in waits {
                wait.join().expect("a thread");
            }
        });
    });
}
