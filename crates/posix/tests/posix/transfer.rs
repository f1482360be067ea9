//! Sending and receiving on connections.

use super::*;

#[test]
fn sockets_without_connections_have_errors_of_their_own() {
    let mut p = Process::new();
    let (fresh, listener) = (p.tcp(), p.listen("127.0.0.1:80"));
    for fd in [fresh, listener] {
        assert_eq!(p.recv(fd, 1, 0), Err(Errno::ENOTCONN));
        assert_eq!(p.send(fd, b"x", 0), Err(Errno::EPIPE));
    }
    assert_eq!(p.recv(99, 1, 0), Err(Errno::EBADF));
    let set = p.posix.epoll_create1(0).expect("a descriptor");
    assert_eq!(p.recv(set, 1, 0), Err(Errno::ENOTSOCK));
    let read = p.once(|posix, now, call| posix.read(now, call, set, &mut [0]));
    assert_eq!(read, Err(Errno::EINVAL));
    let write = p.once(|posix, now, call| posix.write(now, call, set, &[0]));
    assert_eq!(write, Err(Errno::EINVAL));
}

#[test]
fn what_cannot_be_done_is_refused() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    for flag in [MSG_OOB, MSG_FASTOPEN] {
        assert_eq!(p.send(client, b"x", flag), Err(Errno::EOPNOTSUPP));
    }
    let (fresh, listener) = (p.tcp(), p.listen("127.0.0.1:81"));
    for (fd, errno) in
        [(server, Errno::EINVAL), (fresh, Errno::EINVAL), (listener, Errno::ENOTCONN)]
    {
        assert_eq!(p.recv(fd, 1, MSG_OOB), Err(errno));
    }
    assert_eq!(p.recv(server, 1, MSG_ERRQUEUE), Err(Errno::EAGAIN));
    assert_eq!(p.recv(server, 1, 0), Err(Errno::EAGAIN), "nothing was sent");
}

#[test]
fn peek_leaves_and_trunc_drops() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.send(client, b"abcdefgh", 0).expect("room");
    assert_eq!(p.recv(server, 3, MSG_PEEK), Ok(b"abc".to_vec()));
    assert_eq!(p.recv(server, 3, MSG_PEEK | MSG_TRUNC), Ok(vec![0; 3]));
    assert_eq!(p.recv(server, 3, MSG_TRUNC), Ok(vec![0; 3]), "untouched");
    assert_eq!(p.recv(server, 100, 0), Ok(b"defgh".to_vec()));
    assert_eq!(p.recv(server, 100, MSG_PEEK), Err(Errno::EAGAIN));
    assert_eq!(p.recv(server, 100, MSG_TRUNC), Err(Errno::EAGAIN));
    let both = MSG_PEEK | MSG_TRUNC;
    assert_eq!(p.recv(server, 100, both), Err(Errno::EAGAIN), "no end of the stream");
    p.posix.shutdown(p.now, client, SHUT_WR).expect("connected");
    assert_eq!(p.recv(server, 100, MSG_PEEK), Ok(vec![]));
    assert_eq!(p.recv(server, 100, MSG_TRUNC), Ok(vec![]));
    assert_eq!(p.recv(server, 100, both), Ok(vec![]));
}

#[test]
fn an_empty_buffer_ends_a_read_and_not_a_receive() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let read = p.once(|posix, now, call| posix.read(now, call, server, &mut []));
    assert_eq!(read, Ok(0));
    assert_eq!(p.recv(server, 0, 0), Err(Errno::EAGAIN), "as in Linux");
    p.send(client, b"x", 0).expect("room");
    assert_eq!(p.recv(server, 0, 0), Ok(vec![]));
    assert_eq!(p.send(client, b"", 0), Ok(0));
}

#[test]
fn a_blocking_write_goes_on_where_it_stood() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let (mut call, mut got, mut waits) = (Call::new(), Vec::new(), 0);
    loop {
        let sent = p.posix.send(p.now, &mut call, client, &data, 0).expect("open");
        if let Outcome::Done(sent) = sent {
            assert_eq!(sent, data.len());
            break;
        }
        waits += 1;
        let due = p.settle();
        match p.recv(server, 100_000, 0) {
            Ok(more) => got.extend(more),
            Err(error) => {
                assert_eq!(error, Errno::EAGAIN);
                p.now = due;
            }
        }
    }
    assert!(waits > 1);
    while got.len() < data.len() {
        match p.recv(server, 100_000, 0) {
            Ok(more) => got.extend(more),
            Err(_) => p.pass(Nanos::from_millis(10)),
        }
    }
    assert!(got == data);
}

#[test]
fn a_send_timeout_answers_what_was_taken_and_then_again() {
    let mut p = Process::new();
    let (client, _server, _) = p.pair();
    let mut second = [0; 16];
    second[0] = 1;
    p.set(client, SOL_SOCKET, SO_SNDTIMEO_NEW, &second).expect("known");
    let data = vec![0; 20_000_000];
    let begin = p.now;
    let sent = p.block(|posix, now, call| posix.send(now, call, client, &data, 0));
    let sent = sent.expect("an end").expect("some went");
    assert!(sent > 0 && sent < data.len());
    assert_eq!(p.now.since(begin), Nanos::from_secs(1));
    // A new call may take what is free below the mark at which a sleeper is woken.
    while p.send(client, &data, 0).is_ok() {}
    let sent = p.block(|posix, now, call| posix.send(now, call, client, &data, 0));
    assert_eq!(sent, Some(Err(Errno::EAGAIN)));
    assert_eq!(p.now.since(begin), Nanos::from_secs(2));
}

#[test]
fn a_write_that_fails_half_way_tells_what_went_and_keeps_the_error() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let (data, mut call) = (vec![0; 20_000_000], Call::new());
    let outcome = p.posix.send(p.now, &mut call, client, &data, 0);
    assert!(matches!(outcome, Ok(Outcome::Wait(_))));
    p.settle();
    p.close(server);
    p.settle();
    let sent = p.posix.send(p.now, &mut call, client, &data, 0).expect("partial").done();
    assert!(sent.is_some_and(|sent| sent > 0));
    assert_eq!(p.send(client, b"x", 0), Err(Errno::ECONNRESET));
}

#[test]
fn waitall_waits_for_all_and_the_low_mark_for_as_much() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let mut buf = [0; 10];
    let mut call = Call::new();
    p.send(client, b"abcd", 0).expect("room");
    p.settle();
    let read = p.posix.recv(p.now, &mut call, server, &mut buf, MSG_WAITALL);
    assert!(matches!(read, Ok(Outcome::Wait(_))));
    p.send(client, b"efghijkl", 0).expect("room");
    p.settle();
    let read = p.posix.recv(p.now, &mut call, server, &mut buf, MSG_WAITALL);
    assert_eq!(read, Ok(Outcome::Done(10)));
    assert_eq!(&buf, b"abcdefghij");

    p.set(server, SOL_SOCKET, SO_RCVLOWAT, &int(5)).expect("known");
    assert_eq!(p.ready(server) & POLLIN, 0, "two bytes are below the mark");
    let read = p.posix.recv(p.now, &mut Call::new(), server, &mut buf, 0);
    assert!(matches!(read, Ok(Outcome::Wait(_))));
    p.send(client, b"lmnop", 0).expect("room");
    assert_ne!(p.ready(server) & POLLIN, 0);
}

#[test]
fn waitall_ends_with_the_stream_or_the_timeout() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let mut buf = [0; 10];
    let mut half = [0; 16];
    half[8..12].copy_from_slice(&500_000u32.to_ne_bytes());
    p.set(server, SOL_SOCKET, SO_RCVTIMEO_OLD, &half).expect("known");
    p.send(client, b"abc", 0).expect("room");
    p.settle();
    let begin = p.now;
    let read = p.block(|posix, now, call| posix.recv(now, call, server, &mut buf, MSG_WAITALL));
    assert_eq!(read, Some(Ok(3)));
    assert_eq!(p.now.since(begin), Nanos::from_millis(500));
    let read = p.block(|posix, now, call| posix.recv(now, call, server, &mut buf, 0));
    assert_eq!(read, Some(Err(Errno::EAGAIN)));
    p.send(client, b"abc", 0).expect("room");
    p.posix.shutdown(p.now, client, SHUT_WR).expect("connected");
    p.settle();
    let read = p.block(|posix, now, call| posix.recv(now, call, server, &mut buf, MSG_WAITALL));
    assert_eq!(read, Some(Ok(3)));
    let peek = MSG_WAITALL | MSG_PEEK;
    let read = p.block(|posix, now, call| posix.recv(now, call, server, &mut buf, peek));
    assert_eq!(read, Some(Ok(0)));
}

#[test]
fn a_peek_that_waited_in_vain_for_more_shows_what_is_there() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let mut half = [0; 16];
    half[8..12].copy_from_slice(&500_000u32.to_ne_bytes());
    p.set(server, SOL_SOCKET, SO_RCVTIMEO_OLD, &half).expect("known");
    p.send(client, b"abc", 0).expect("room");
    p.settle();
    for (low_water, flags) in [(1, MSG_PEEK | MSG_WAITALL), (100, MSG_PEEK)] {
        p.set(server, SOL_SOCKET, SO_RCVLOWAT, &int(low_water)).expect("known");
        let (begin, mut buf) = (p.now, [0; 10]);
        let read = p.block(|posix, now, call| posix.recv(now, call, server, &mut buf, flags));
        assert_eq!((read, &buf[..4]), (Some(Ok(3)), &b"abc\0"[..]));
        assert_eq!(p.now.since(begin), Nanos::from_millis(500));
        let flags = flags | MSG_TRUNC;
        let read = p.block(|posix, now, call| posix.recv(now, call, server, &mut buf, flags));
        assert_eq!(read, Some(Ok(3)));
    }
    assert_eq!(p.recv(server, 10, 0), Ok(b"abc".to_vec()));
    let read = p.block(|posix, now, call| posix.recv(now, call, server, &mut [0; 10], MSG_PEEK));
    assert_eq!(read, Some(Err(Errno::EAGAIN)));
}

#[test]
fn a_peek_that_waits_for_all_takes_nothing_meanwhile() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let (mut buf, mut call) = ([0; 6], Call::new());
    p.send(client, b"abc", 0).expect("room");
    p.settle();
    let flags = MSG_WAITALL | MSG_PEEK;
    let read = p.posix.recv(p.now, &mut call, server, &mut buf, flags);
    assert!(matches!(read, Ok(Outcome::Wait(_))));
    p.send(client, b"defg", 0).expect("room");
    p.settle();
    assert_eq!(p.posix.recv(p.now, &mut call, server, &mut buf, flags), Ok(Outcome::Done(6)));
    assert_eq!(&buf, b"abcdef");
    assert_eq!(p.recv(server, 10, 0), Ok(b"abcdefg".to_vec()));
}

#[test]
fn more_holds_a_short_segment_until_the_rest_comes() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.set(client, SOL_TCP, TCP_NODELAY, &int(1)).expect("known");
    p.send(client, b"head", MSG_MORE).expect("room");
    p.settle();
    assert_eq!(p.recv(server, 10, 0), Err(Errno::EAGAIN));
    assert_eq!(p.posix.ioctl(p.now, client, SIOCOUTQNSD, 0), Ok(4));
    p.send(client, b"tail", 0).expect("room");
    assert_eq!(p.recv(server, 10, 0), Ok(b"headtail".to_vec()));
}

#[test]
fn queues_are_counted_at_both_ends() {
    let mut p = Process::new();
    let (client, server, listener) = p.pair();
    p.set(client, SOL_TCP, TCP_CORK, &int(1)).expect("known");
    p.send(client, b"12345", 0).expect("room");
    let ioctl = |p: &mut Process, fd, request| p.posix.ioctl(p.now, fd, request, 0);
    assert_eq!(ioctl(&mut p, client, SIOCOUTQ), Ok(5));
    assert_eq!(ioctl(&mut p, client, SIOCOUTQNSD), Ok(5));
    p.set(client, SOL_TCP, TCP_CORK, &int(0)).expect("known");
    assert_eq!(ioctl(&mut p, client, SIOCOUTQ), Ok(5), "in flight");
    assert_eq!(ioctl(&mut p, client, SIOCOUTQNSD), Ok(0));
    p.settle();
    assert_eq!(ioctl(&mut p, server, FIONREAD), Ok(5));
    assert_eq!(ioctl(&mut p, server, SIOCATMARK), Ok(0));
    assert_eq!(ioctl(&mut p, listener, FIONREAD), Err(Errno::EINVAL));
    assert_eq!(ioctl(&mut p, server, 0x1234), Err(Errno::ENOTTY));
    assert_eq!(p.posix.ioctl(p.now, server, FIONBIO, 1), Ok(0));
    assert_eq!(p.posix.fcntl(server, F_GETFL, 0), Ok(O_RDWR | O_NONBLOCK));
}

#[test]
fn the_end_of_the_stream_ends_a_wait_for_more() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.set(server, SOL_SOCKET, SO_RCVLOWAT, &int(100)).expect("room for so many");
    p.send(client, b"abcdef", 0).expect("room");
    p.posix.shutdown(p.now, client, SHUT_WR).expect("connected");
    p.settle();
    for (flags, bytes) in [(MSG_PEEK, 6), (MSG_PEEK | MSG_WAITALL, 6), (0, 6), (0, 0)] {
        let read = p.once(|posix, now, call| posix.recv(now, call, server, &mut [0; 50], flags));
        assert_eq!(read, Ok(bytes), "{flags}");
    }
}

#[test]
fn the_rest_before_the_end_of_the_stream_is_all_there_is() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.send(client, b"abcdef", 0).expect("room");
    p.posix.shutdown(p.now, client, SHUT_WR).expect("connected");
    p.settle();
    let read = p.once(|posix, now, call| posix.recv(now, call, server, &mut [0; 50], MSG_WAITALL));
    assert_eq!(read, Ok(6));
}
