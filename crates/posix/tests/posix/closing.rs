//! `shutdown`, `close`, linger, resets.

use super::*;

fn linger(on: i32, seconds: i32) -> [u8; 8] {
    let mut value = [0; 8];
    value[..4].copy_from_slice(&int(on));
    value[4..].copy_from_slice(&int(seconds));
    value
}

#[test]
fn shutdown_ends_one_direction_and_the_peer_reads_the_end() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    assert_eq!(p.posix.shutdown(p.now, client, 3), Err(Errno::EINVAL));
    assert_eq!(p.posix.shutdown(p.now, client, -1), Err(Errno::EINVAL));
    assert_eq!(p.posix.shutdown(p.now, client, SHUT_WR), Ok(()));
    assert_eq!(p.recv(server, 10, 0), Ok(vec![]));
    assert_eq!(p.send(client, b"late", MSG_NOSIGNAL), Err(Errno::EPIPE));
    assert_eq!(p.send(client, b"late", 0), Err(Errno::EPIPE));
    assert_eq!(p.send(server, b"still", 0), Ok(5));
    assert_eq!(p.recv(client, 10, 0), Ok(b"still".to_vec()));
}

#[test]
fn shutdown_needs_a_connection() {
    let mut p = Process::new();
    let fd = p.tcp();
    assert_eq!(p.posix.shutdown(p.now, fd, SHUT_RDWR), Err(Errno::ENOTCONN));
    let listener = p.listen("127.0.0.1:80");
    assert_eq!(p.posix.shutdown(p.now, listener, SHUT_WR), Ok(()));
    assert_eq!(p.connect(fd, "127.0.0.1:80"), Ok(()));
    // To end the reading of a listener is to stop listening.
    assert_eq!(p.posix.shutdown(p.now, listener, SHUT_RD), Ok(()));
    let other = p.tcp();
    assert_eq!(p.connect(other, "127.0.0.1:80"), Err(Errno::ECONNREFUSED));
    assert_eq!(p.posix.listen(p.now, listener, 1), Ok(()), "its port is still its own");
    assert_eq!(p.connect(other, "127.0.0.1:80"), Ok(()));
}

#[test]
fn a_reset_is_an_error_once_and_the_end_afterwards() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.set(client, SOL_SOCKET, SO_LINGER, &linger(1, 0)).expect("known");
    p.close(client);
    let all = POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP;
    assert_eq!(p.ready(server) & all, all);
    assert_eq!(p.recv(server, 10, 0), Err(Errno::ECONNRESET));
    assert_eq!(p.recv(server, 10, 0), Ok(vec![]));
    assert_eq!(p.send(server, b"x", 0), Err(Errno::EPIPE));
    assert_eq!(p.posix.shutdown(p.now, server, SHUT_WR), Err(Errno::ENOTCONN));
    assert_eq!(p.posix.getpeername(p.now, server), Err(Errno::ENOTCONN));
}

#[test]
fn a_peek_that_tells_of_a_reset_ends_pollerr() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.set(client, SOL_SOCKET, SO_LINGER, &linger(1, 0)).expect("known");
    p.close(client);
    assert_ne!(p.ready(server) & POLLERR, 0);
    assert_eq!(p.recv(server, 10, MSG_PEEK), Err(Errno::ECONNRESET));
    assert_eq!(p.ready(server) & POLLERR, 0);
}

#[test]
fn a_stream_that_has_ended_stays_at_its_end_after_a_reset() {
    for flags in [0, MSG_PEEK, MSG_TRUNC] {
        let mut p = Process::new();
        let (client, server, _) = p.pair();
        p.send(server, b"bye", 0).expect("room");
        p.close(server);
        p.settle();
        assert_eq!(p.send(client, b"x", 0), Ok(1), "answered by a reset");
        assert_eq!(p.recv(client, 10, 0), Ok(b"bye".to_vec()));
        assert_eq!(p.recv(client, 10, flags), Ok(vec![]));
        assert_ne!(p.ready(client) & POLLERR, 0, "the error is left for a write");
        assert_eq!(p.send(client, b"x", 0), Err(Errno::EPIPE));
        assert_eq!(p.get(client, SOL_SOCKET, SO_ERROR), Ok(0));
    }
}

#[test]
fn a_reset_fails_a_write_with_its_own_error_first() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.set(client, SOL_SOCKET, SO_LINGER, &linger(1, 0)).expect("known");
    p.close(client);
    p.settle();
    assert_eq!(p.send(server, b"x", 0), Err(Errno::ECONNRESET));
    assert_eq!(p.send(server, b"x", 0), Err(Errno::EPIPE));
}

#[test]
fn close_with_unread_data_resets() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.send(client, b"unread", 0).expect("room");
    p.settle();
    p.close(server);
    assert_eq!(p.recv(client, 10, 0), Err(Errno::ECONNRESET));
}

#[test]
fn a_lingering_close_waits_for_the_peer_or_its_time() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.set(client, SOL_SOCKET, SO_LINGER, &linger(1, 5)).expect("known");
    p.send(client, b"last words", 0).expect("room");
    let begin = p.now;
    p.close(client);
    assert_eq!(p.now, begin, "the peer's stack has it all at once");
    assert_eq!(p.recv(server, 20, 0), Ok(b"last words".to_vec()));
    assert_eq!(p.recv(server, 20, 0), Ok(vec![]));

    // The peer's window is closed, so its end cannot be had.
    let (client, _server, _) = {
        let listener = p.listen("127.0.0.1:81");
        let client = p.tcp();
        p.connect(client, "127.0.0.1:81").expect("somebody listens");
        (client, p.accept(listener), listener)
    };
    p.set(client, SOL_SOCKET, SO_LINGER, &linger(1, 5)).expect("known");
    p.set_nonblocking(client);
    while p.send(client, &[0; 65536], 0).is_ok() {
        p.settle();
    }
    let begin = p.now;
    p.close(client);
    assert_eq!(p.now.since(begin), Nanos::from_secs(5));
    assert_eq!(p.posix.fcntl(client, F_GETFL, 0), Err(Errno::EBADF));
}

#[test]
fn connect_to_no_family_ends_a_connection_and_the_socket_is_new() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let nothing = [0u8; 16];
    let ended = p.once(|posix, now, call| posix.connect(now, call, client, &nothing));
    assert_eq!(ended, Ok(()));
    assert_eq!(p.recv(server, 10, 0), Err(Errno::ECONNRESET));
    assert_eq!(p.ready(client) & (POLLOUT | POLLHUP), POLLOUT | POLLHUP);
    assert_eq!(p.connect(client, "127.0.0.1:80"), Ok(()));
}

#[test]
fn the_last_descriptor_closes_the_connection() {
    let mut p = Process::new();
    let (client, server, listener) = p.pair();
    let copy = p.posix.fcntl(client, F_DUPFD, 0).expect("a descriptor");
    p.close(client);
    assert_eq!(p.recv(server, 1, 0), Err(Errno::EAGAIN));
    p.close(copy);
    assert_eq!(p.recv(server, 1, 0), Ok(vec![]));
    let again = p.once(|posix, now, call| posix.close(now, call, copy));
    assert_eq!(again, Err(Errno::EBADF));
    p.close(listener);
    let other = p.tcp();
    assert_eq!(p.connect(other, "127.0.0.1:80"), Err(Errno::ECONNREFUSED));
    p.posix.close_all(p.now);
    assert!(!p.posix.owns(other) && !p.posix.owns(server));
    p.pass(Nanos::from_secs(70));
    assert_eq!(p.posix.stack().usage().tcp.connections, 0);
}

const CLOSED: u32 = POLLOUT | POLLWRNORM | POLLHUP;
const ENDED: u32 = POLLIN | POLLRDNORM | POLLRDHUP;

impl Process {
    pub(super) fn unspecified(&mut self, fd: Fd) -> Result<(), Errno> {
        self.once(|posix, now, call| posix.connect(now, call, fd, &[0; 16]))
    }

    fn state(&mut self, fd: Fd) -> u8 {
        let mut state = [0];
        let len = self.posix.getsockopt(self.now, fd, SOL_TCP, TCP_INFO, &mut state);
        assert_eq!(len, Ok(1));
        state[0]
    }

    /// `SO_ERROR` as a descriptor tells it, with `poll` before and after.
    fn told(&mut self, fd: Fd) -> (u32, i32, u32) {
        let before = self.ready(fd);
        let error = self.get(fd, SOL_SOCKET, SO_ERROR).expect("a socket");
        (before, error, self.ready(fd))
    }
}

#[test]
fn a_socket_whose_connection_waits_is_closed() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.posix.shutdown(p.now, client, SHUT_WR).expect("connected");
    p.settle();
    p.posix.shutdown(p.now, server, SHUT_WR).expect("connected");
    p.settle();
    assert_eq!(p.posix.stack().usage().tcp.time_wait, 1);
    assert_eq!(p.state(client), TCP_CLOSE);
    for how in [SHUT_RD, SHUT_WR, SHUT_RDWR] {
        assert_eq!(p.posix.shutdown(p.now, client, how), Err(Errno::ENOTCONN));
    }
    assert_eq!(p.posix.getpeername(p.now, client), Err(Errno::ENOTCONN));
    let mut peer = [0; 16];
    let len = p.posix.getsockopt(p.now, client, SOL_SOCKET, SO_PEERNAME, &mut peer);
    assert_eq!((len, &peer[..8]), (Ok(16), &[2, 0, 0, 80, 127, 0, 0, 1][..]), "it is remembered");
    assert_eq!(p.recv(client, 1, 0), Ok(vec![]));
    assert_eq!(p.ready(client), CLOSED | ENDED);
    assert_eq!(p.connect(client, "127.0.0.1:80"), Err(Errno::EISCONN));
    assert_eq!(p.unspecified(client), Ok(()));
    assert_eq!(p.told(client), (CLOSED, 0, CLOSED), "no reset was sent");
    assert_eq!(p.posix.stack().usage().tcp.time_wait, 1);
    let len = p.posix.getsockopt(p.now, client, SOL_SOCKET, SO_PEERNAME, &mut peer);
    assert_eq!(len, Err(Errno::ENOTCONN));
}

#[test]
fn who_cuts_a_connection_short_finds_the_error_of_a_reset() {
    let mut p = Process::new();
    let reset = Errno::ECONNRESET;
    let expected = (CLOSED | POLLERR, reset.0, CLOSED);
    let (client, _, _) = p.pair();
    assert_eq!(p.unspecified(client), Ok(()));
    assert_eq!(p.told(client), expected);
    for how in [SHUT_RD, SHUT_WR, SHUT_RDWR] {
        let opening = p.tcp();
        p.set_nonblocking(opening);
        assert_eq!(p.connect(opening, "192.0.2.9:1"), Err(Errno::EINPROGRESS));
        assert_eq!(p.posix.shutdown(p.now, opening, how), Ok(()));
        assert_eq!(p.told(opening), expected, "{how}");
        assert_eq!(p.recv(opening, 1, 0), Err(Errno::ENOTCONN));
        assert_eq!(p.connect(opening, "192.0.2.9:1"), Err(Errno::EINPROGRESS));
    }
    // Reading and writing tell it, too, once; a new connection forgets it.
    let cut = |p: &mut Process| {
        let fd = p.tcp();
        p.connect(fd, "127.0.0.1:80").expect("somebody listens");
        p.unspecified(fd).expect("connected");
        fd
    };
    let fd = cut(&mut p);
    assert_eq!(p.recv(fd, 1, MSG_OOB), Err(Errno::EINVAL), "which looks at no error");
    assert_eq!(p.recv(fd, 1, 0), Err(reset));
    assert_eq!(p.recv(fd, 1, 0), Err(Errno::ENOTCONN));
    let fd = cut(&mut p);
    assert_eq!(p.send(fd, b"x", 0), Err(reset));
    assert_eq!(p.send(fd, b"x", 0), Err(Errno::EPIPE));
    let ((_reader, empty), (full, writer)) = (p.pipe(), p.pipe());
    p.fill(writer, b"x").expect("room");
    let fd = cut(&mut p);
    assert_eq!(p.splice(fd, empty, 1, 0), Err(reset));
    assert_eq!(p.splice(fd, empty, 1, 0), Err(Errno::ENOTCONN));
    let fd = cut(&mut p);
    assert_eq!(p.splice(full, fd, 1, 0), Err(reset));
    assert_eq!(p.splice(full, fd, 1, 0), Err(Errno::EPIPE));
    let fd = cut(&mut p);
    assert_eq!(p.connect(fd, "127.0.0.1:80"), Ok(()));
    assert_eq!(p.told(fd), (POLLOUT | POLLWRNORM, 0, POLLOUT | POLLWRNORM));
    let listener = p.listen("127.0.0.1:81");
    assert_eq!(p.unspecified(listener), Ok(()));
    assert_eq!(p.told(listener), (CLOSED, 0, CLOSED), "a listener has none");
}

#[test]
fn shutdown_without_a_connection_marks_the_socket() {
    let mut p = Process::new();
    let listener = p.listen("127.0.0.1:80");
    let ((_reader, empty), (full, writer)) = (p.pipe(), p.pipe());
    p.fill(writer, b"yy").expect("room");
    for (how, fresh, open) in [
        (SHUT_RD, CLOSED | ENDED, POLLOUT | POLLWRNORM | ENDED),
        (SHUT_WR, CLOSED, POLLOUT | POLLWRNORM),
        (SHUT_RDWR, CLOSED | ENDED, CLOSED | ENDED),
    ] {
        let (reads, writes) = (how != SHUT_WR, how != SHUT_RD);
        let fd = p.tcp();
        assert_eq!(p.posix.shutdown(p.now, fd, how), Err(Errno::ENOTCONN));
        assert_eq!(p.ready(fd), fresh);
        let nothing = if reads { Ok(vec![]) } else { Err(Errno::ENOTCONN) };
        assert_eq!(p.recv(fd, 1, 0), nothing);
        let nothing = if reads { Ok(0) } else { Err(Errno::ENOTCONN) };
        assert_eq!(p.splice(fd, empty, 1, 0), nothing);
        assert_eq!(p.send(fd, b"x", 0), Err(Errno::EPIPE));
        assert_eq!(p.splice(full, fd, 1, 0), Err(Errno::EPIPE));
        p.connect(fd, "127.0.0.1:80").expect("somebody listens");
        p.set_nonblocking(fd);
        let peer = p.accept(listener);
        assert_eq!(p.ready(fd), open, "{how}");
        let sent = if writes { Err(Errno::EPIPE) } else { Ok(1) };
        assert_eq!(p.send(fd, b"x", 0), sent);
        assert_eq!(p.splice(full, fd, 1, 0), sent);
        let nothing = if reads { Ok(vec![]) } else { Err(Errno::EAGAIN) };
        assert_eq!(p.recv(fd, 1, 0), nothing);
        let nothing = if reads { Ok(0) } else { Err(Errno::EAGAIN) };
        assert_eq!(p.splice(fd, empty, 1, 0), nothing);
        assert_eq!(p.send(peer, b"abc", 0), Ok(3));
        assert_eq!(p.recv(fd, 10, MSG_WAITALL), Ok(b"abc".to_vec()), "what comes can be read");
        // No FIN was sent before.
        assert_eq!(p.state(fd), TCP_ESTABLISHED);
        assert_eq!(p.posix.shutdown(p.now, fd, SHUT_WR), Ok(()));
        assert_eq!(p.recv(peer, 1, 0), if writes { Ok(vec![]) } else { Ok(b"x".to_vec()) });
        // Who ends the connection begins anew.
        assert_eq!(p.unspecified(fd), Ok(()));
        assert_eq!(p.told(fd), (CLOSED | POLLERR, Errno::ECONNRESET.0, CLOSED));
        let opening = p.tcp();
        p.set_nonblocking(opening);
        assert_eq!(p.posix.shutdown(p.now, opening, how), Err(Errno::ENOTCONN));
        assert_eq!(p.connect(opening, "192.0.2.9:1"), Err(Errno::EINPROGRESS));
        let hang_up = if how == SHUT_RDWR { POLLHUP } else { 0 };
        assert_eq!(p.ready(opening), if reads { ENDED | hang_up } else { 0 });
    }
}
