//! Calls that wait: data, connections, datagrams, room, and time.

use super::*;
use crate::common::{Pattern, expect_nothing_below, in_namespace};
use neap::posix::Errno;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Instant;

#[test]
fn two_threads_send_and_receive_on_one_descriptor() {
    const LEN: usize = 12 << 20;
    in_namespace(|| {
        let (stack, posix) = process();
        let (fd, theirs) = pair(&posix);
        let data = Pattern(1).bytes(LEN);
        thread::scope(|scope| {
            scope.spawn(|| {
                std::io::copy(&mut &theirs, &mut &theirs).expect("an echo");
                theirs.shutdown(Shutdown::Write).expect("shutdown");
            });
            scope.spawn(|| {
                assert_eq!(posix.send(fd, &data, 0), Ok(LEN), "until everything is taken");
                posix.shutdown(fd, SHUT_WR).expect("connected");
            });
            let mut got = vec![0; LEN];
            assert_eq!(posix.recv(fd, &mut got, MSG_WAITALL), Ok(LEN));
            Pattern(1).check(0, &got);
            assert_eq!(posix.recv(fd, &mut got, 0), Ok(0));
        });
        posix.close(fd).expect("open");
        drop(theirs);
        drop(posix);
        expect_nothing_below(&stack);
    });
}

#[test]
fn the_kernel_connects_and_is_answered() {
    in_namespace(|| {
        let (_stack, posix) = process();
        let (listener, address) = listener(&posix);
        let client = thread::spawn(move || {
            let mut stream = TcpStream::connect(address).expect("somebody listens");
            stream.write_all(b"question").expect("room");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("an answer");
            (stream.local_addr().expect("an address"), answer)
        });
        let accepted = posix.accept(listener, 0).expect("a connection");
        let mut buf = [0; 8];
        assert_eq!(posix.recv(accepted.fd, &mut buf, MSG_WAITALL), Ok(8));
        assert_eq!(&buf, b"question");
        assert_eq!(posix.write(accepted.fd, b"answer"), Ok(6));
        posix.close(accepted.fd).expect("open");
        let (peer, answer) = client.join().expect("a client");
        assert_eq!((peer, &answer[..]), (accepted.peer, &b"answer"[..]));
    });
}

#[test]
fn a_connect_that_is_refused_says_so() {
    in_namespace(|| {
        let (_stack, posix) = process();
        let (listener, address) = Family::V4.kernel_listener();
        drop(listener);
        let fd = tcp(&posix);
        assert_eq!(posix.connect(fd, &encode(address)), Err(Errno::ECONNREFUSED));
        // The same socket may try again.
        let (listener, address) = Family::V4.kernel_listener();
        assert_eq!(posix.connect(fd, &encode(address)), Ok(()));
        drop(listener);
    });
}

#[test]
fn waits_end_at_their_time() {
    in_namespace(|| {
        let (_stack, posix) = process();
        let (fd, theirs) = pair(&posix);
        let short = Duration::from_millis(30);
        let lasts = |what: &str, call: &mut dyn FnMut()| {
            let begin = Instant::now();
            call();
            assert!(begin.elapsed() >= short, "{what} ended after {:?}", begin.elapsed());
        };
        set_timeout(&posix, fd, SO_RCVTIMEO, short);
        set_timeout(&posix, fd, SO_SNDTIMEO, short);
        let mut buf = [0; 100];
        lasts("recv", &mut || assert_eq!(posix.recv(fd, &mut buf, 0), Err(Errno::EAGAIN)));
        lasts("poll", &mut || assert_eq!(poll_one(&posix, fd, POLLIN, 30), 0));
        let set = posix.epoll_create1(0).expect("a descriptor");
        lasts("epoll_wait", &mut || assert_eq!(posix.epoll_wait(set, 1, 30), Ok(vec![])));
        let (mut sent, chunk) = (0, vec![7; 1 << 20]);
        lasts("send", &mut || {
            loop {
                match posix.send(fd, &chunk, 0) {
                    Ok(some) => sent += some,
                    Err(error) => break assert_eq!(error, Errno::EAGAIN),
                }
            }
        });
        // A part that comes is not the whole, and is what there is when the time is over.
        thread::scope(|scope| {
            scope.spawn(|| (&theirs).read_exact(&mut vec![0; sent]).expect("all of it"));
            (&theirs).write_all(b"part").expect("room");
            assert_eq!(poll_one(&posix, fd, POLLIN, -1), POLLIN);
            let got = posix.recv(fd, &mut buf, MSG_WAITALL).expect("in time");
            assert_eq!(&buf[..got], b"part");
        });
        // The kernel drops what goes to nobody.
        let fd = tcp(&posix);
        set_timeout(&posix, fd, SO_SNDTIMEO, short);
        let nobody = encode("10.9.0.77:9".parse().expect("an address"));
        lasts("connect", &mut || {
            assert_eq!(posix.connect(fd, &nobody), Err(Errno::EINPROGRESS));
        });
    });
}

#[test]
fn datagrams_go_both_ways_and_each_to_one_thread() {
    in_namespace(|| {
        let (_stack, posix) = process();
        let (theirs, address) = kernel_udp();
        let fd = udp(&posix);
        posix.bind(fd, &ours(0)).expect("a free port");
        let here = posix.getsockname(fd).expect("a socket");
        let (say, hear) = announcement();
        thread::scope(|scope| {
            let receivers: Vec<_> = (0..3)
                .map(|_| {
                    let say = say.clone();
                    let posix = &posix;
                    scope.spawn(move || {
                        announce(&say);
                        let mut buf = [0; 16];
                        let got = posix.recv_from(fd, &mut buf, 0).expect("a datagram");
                        assert_eq!((got.len, got.from), (1, Some(address)));
                        buf[0]
                    })
                })
                .collect();
            until_all_asleep(&hear, receivers.len());
            for byte in 0..3 {
                theirs.send_to(&[byte], here).expect("a route");
            }
            let mut got: Vec<_> =
                receivers.into_iter().map(|one| one.join().expect("a thread")).collect();
            got.sort_unstable();
            assert_eq!(got, [0, 1, 2]);
        });
        assert_eq!(posix.send_to(fd, b"back", 0, Some(&encode(address))), Ok(4));
        let mut buf = [0; 16];
        assert_eq!(theirs.recv_from(&mut buf).expect("a datagram"), (4, here));
    });
}

#[test]
fn poll_waits_for_any_of_many_and_follows_a_socket_that_becomes_another() {
    in_namespace(|| {
        let (_stack, posix) = process();
        let (fd, mut theirs) = pair(&posix);
        let (listener, address) = listener(&posix);
        let datagrams = udp(&posix);
        let wait = |wanted: Fd, mut cause: Box<dyn FnMut() + '_>| {
            let (say, hear) = announcement();
            thread::scope(|scope| {
                let posix = &posix;
                let waiter = scope.spawn(move || {
                    let all = [fd, listener, datagrams];
                    let mut fds = all.map(|fd| PollFd { fd, events: POLLIN as i16, revents: 0 });
                    announce(&say);
                    assert_eq!(posix.poll(&mut fds, -1), Ok(1));
                    let ready = fds.iter().find(|one| one.revents != 0).expect("one");
                    (ready.fd, ready.revents as u32)
                });
                until_asleep(&hear);
                cause();
                assert_eq!(waiter.join().expect("a thread"), (wanted, POLLIN));
            });
        };
        wait(fd, Box::new(|| theirs.write_all(b"x").expect("room")));
        assert_eq!(posix.recv(fd, &mut [0; 9], 0), Ok(1));
        let mut clients = Vec::new();
        wait(listener, Box::new(|| clients.push(TcpStream::connect(address).expect("a listener"))));
        posix.accept(listener, 0).expect("a connection");
        // The socket gets its port while it is waited for.
        let (sender, _) = kernel_udp();
        wait(
            datagrams,
            Box::new(|| {
                posix.bind(datagrams, &ours(0)).expect("a free port");
                let here = posix.getsockname(datagrams).expect("a socket");
                sender.send_to(b"x", here).expect("a route");
            }),
        );
    });
}

#[test]
fn a_bound_port_is_nobody_elses() {
    in_namespace(|| {
        let (stack, posix) = process();
        let other = stack.posix(3);
        let holder = tcp(&posix);
        posix.bind(holder, &ours(0)).expect("a free port");
        let address = posix.getsockname(holder).expect("a socket");
        assert_eq!(other.bind(tcp(&other), &encode(address)), Err(Errno::EADDRINUSE));
        let taken = neap::TcpListener::bind(&stack, address).expect_err("it is bound");
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
        posix.listen(holder, 1).expect("its own port");
        posix.close(holder).expect("open");
        other.bind(tcp(&other), &encode(address)).expect("it is free");
    });
}
