//! Pipes, and `splice` between them and connections.

use super::*;
use neap_posix::EpollEvent;

impl Process {
    pub(super) fn pipe(&mut self) -> (Fd, Fd) {
        let [reader, writer] = self.posix.pipe2(O_NONBLOCK).expect("descriptors");
        (reader, writer)
    }

    pub(super) fn fill(&mut self, fd: Fd, data: &[u8]) -> Result<usize, Errno> {
        self.once(|posix, now, call| posix.write(now, call, fd, data))
    }

    fn drain(&mut self, fd: Fd, len: usize) -> Result<Vec<u8>, Errno> {
        let mut buf = vec![0; len];
        let read = self.once(|posix, now, call| posix.read(now, call, fd, &mut buf))?;
        buf.truncate(read);
        Ok(buf)
    }

    pub(super) fn splice(
        &mut self,
        from: Fd,
        to: Fd,
        len: usize,
        flags: u32,
    ) -> Result<usize, Errno> {
        self.settle();
        self.once(|posix, now, call| posix.splice(now, call, from, to, len, flags))
    }
}

/// Bytes that tell their place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn a_pipe_gives_what_it_took_and_holds_sixteen_pages() {
    let mut p = Process::new();
    let (reader, writer) = p.pipe();
    let data = pattern(70_000);
    assert_eq!(p.fill(writer, &data), Ok(65_536));
    assert_eq!((p.fill(writer, b"x"), p.ready(writer)), (Err(Errno::EAGAIN), 0));
    assert_eq!(p.drain(reader, 5000), Ok(data[..5000].to_vec()));
    assert_eq!(p.fill(writer, &data[..4097]), Ok(4096), "one page is free");
    assert_eq!(
        p.drain(reader, 100_000).expect("data"),
        [&data[5000..65_536], &data[..4096]].concat()
    );
    assert_eq!(p.drain(reader, 1), Err(Errno::EAGAIN));
    p.close(writer);
    assert_eq!((p.drain(reader, 1), p.ready(reader)), (Ok(vec![]), POLLHUP));
}

#[test]
fn small_writes_share_a_page_and_are_never_parted() {
    let mut p = Process::new();
    let (reader, writer) = p.pipe();
    for _ in 0..6553 {
        assert_eq!(p.fill(writer, b"0123456789"), Ok(10));
    }
    assert_eq!(p.fill(writer, b"0123456789"), Err(Errno::EAGAIN), "six bytes are free");
    assert_eq!(p.posix.ioctl(p.now, reader, SIOCINQ, 0), Ok(65_530));
}

#[test]
fn a_pipe_that_nobody_reads_is_broken() {
    let mut p = Process::new();
    let (reader, writer) = p.pipe();
    let (other, filled) = p.pipe();
    p.close(reader);
    p.fill(filled, b"x").expect("room");
    assert_eq!(p.fill(writer, b"x"), Err(Errno::EPIPE));
    assert_eq!(p.fill(writer, b""), Ok(0), "nothing is never too much");
    assert_eq!(p.splice(other, writer, 1, 0), Err(Errno::EPIPE));
    assert_eq!(p.ready(writer), POLLOUT | POLLWRNORM | POLLERR);
}

#[test]
fn a_duplicate_keeps_an_end_open() {
    let mut p = Process::new();
    let (reader, writer) = p.pipe();
    let copy = p.posix.fcntl(writer, F_DUPFD, 0).expect("a descriptor");
    p.close(writer);
    assert_eq!(p.drain(reader, 1), Err(Errno::EAGAIN));
    p.close(copy);
    assert_eq!(p.drain(reader, 1), Ok(vec![]));
    p.close(reader);
    assert_eq!(p.pipe(), (reader, writer), "nothing is left");
}

#[test]
fn what_waits_for_a_pipe_is_woken_by_its_other_end() {
    let mut p = Process::new();
    let (reader, writer) = p.pipe();
    let set = p.posix.epoll_create1(0).expect("a descriptor");
    let event = EpollEvent { events: POLLIN | EPOLLET, data: 7 };
    assert_eq!(p.posix.epoll_ctl(set, EPOLL_CTL_ADD, reader, event), Ok(()));
    let news = |p: &mut Process| {
        p.once(|posix, now, call| posix.epoll_wait(now, call, set, 4, 0)).expect("a set").len()
    };
    assert_eq!(news(&mut p), 0);
    for _ in 0..2 {
        p.fill(writer, b"x").expect("room");
        assert_eq!((news(&mut p), news(&mut p)), (1, 0), "once for each write");
    }
    p.close(writer);
    assert_eq!(news(&mut p), 1);
}

#[test]
fn a_stream_passes_through_pipes_whole() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    let ((first, into), (second, onward)) = (p.pipe(), p.pipe());
    let data = pattern(300_000);
    let (mut sent, mut got, mut moved) = (0, Vec::new(), [0; 3]);
    for _ in 0..10_000 {
        sent += p.fill(into, &data[sent..]).unwrap_or(0);
        moved[0] += p.splice(first, client, 9_999, 0).unwrap_or(0);
        p.set_nonblocking(server);
        moved[1] += p.splice(server, onward, 7_777, 0).unwrap_or(0);
        got.extend(p.drain(second, 5_555).unwrap_or_default());
        if got.len() == data.len() {
            break;
        }
        p.pass(Nanos::from_millis(1));
    }
    assert!(got == data, "{} of {}", got.len(), data.len());
    moved[2] = got.len();
    assert_eq!(moved, [data.len(); 3]);
}

#[test]
fn what_a_full_socket_does_not_take_stays_in_the_pipe() {
    let mut p = Process::new();
    let (client, _server, _) = p.pair();
    p.set_nonblocking(client);
    let (reader, writer) = p.pipe();
    let data = pattern(60_000);
    let mut taken = 0;
    loop {
        p.fill(writer, &data).expect("room");
        match p.splice(reader, client, 60_000, 0) {
            Ok(60_000) => taken += 60_000,
            other => {
                let left = 60_000 - other.unwrap_or(0);
                assert_eq!(p.posix.ioctl(p.now, reader, SIOCINQ, 0), Ok(left as i32));
                break;
            }
        }
        assert!(taken < 100_000_000);
    }
    assert_eq!(p.splice(reader, client, 1, 0), Err(Errno::EAGAIN));
}

#[test]
fn splice_moves_between_pipes_and_refuses_the_rest() {
    let mut p = Process::new();
    let (client, server, listener) = p.pair();
    let ((first, into), (second, onward)) = (p.pipe(), p.pipe());
    p.fill(into, b"abcdef").expect("room");
    assert_eq!(p.splice(first, onward, 4, 0), Ok(4));
    assert_eq!((p.drain(second, 9), p.drain(first, 9)), (Ok(b"abcd".to_vec()), Ok(b"ef".to_vec())));
    for (ends, error) in [
        ((client, server), Errno::EINVAL),
        ((first, into), Errno::EINVAL),
        ((into, client), Errno::EBADF),
        ((client, first), Errno::EBADF),
        ((listener, into), Errno::ENOTCONN),
        ((first, client), Errno::EAGAIN),
        ((99, into), Errno::EBADF),
    ] {
        assert_eq!(p.splice(ends.0, ends.1, 1, 0), Err(error), "{ends:?}");
    }
    assert_eq!(p.splice(client, into, 1, 64), Err(Errno::EINVAL));
    assert_eq!(p.splice(99, 99, 0, 0), Ok(0));
    assert_eq!(p.posix.pipe2(1), Err(Errno::EINVAL));
}

#[test]
fn a_reader_waits_for_a_writer() {
    let mut p = Process::new();
    let [reader, writer] = p.posix.pipe2(0).expect("descriptors");
    let mut call = Call::new();
    let mut buf = [0; 4];
    let first = p.posix.read(p.now, &mut call, reader, &mut buf).expect("no error");
    assert!(first.done().is_none());
    p.fill(writer, b"x").expect("room");
    let second = p.posix.read(p.now, &mut call, reader, &mut buf).expect("no error");
    assert_eq!(second.done(), Some(1));
    assert_eq!(p.drain(writer, 1), Err(Errno::EBADF));
    assert_eq!(p.fill(reader, b"x"), Err(Errno::EBADF));
    assert_eq!(p.posix.fcntl(writer, F_GETFL, 0), Ok(O_WRONLY));
}

#[test]
fn a_pipe_takes_nothing_from_a_socket_of_datagrams_and_gives_it_nothing() {
    let mut p = Process::new();
    let ((_reader, empty), (full, writer)) = (p.pipe(), p.pipe());
    p.fill(writer, b"x").expect("room");
    let (unbound, connected) = (p.udp(), p.udp());
    p.connect(connected, "127.0.0.1:500").expect("nothing is sent");
    for fd in [unbound, connected] {
        assert_eq!(p.splice(fd, empty, 1, 0), Err(Errno::EINVAL));
        assert_eq!(p.splice(full, fd, 1, 0), Err(Errno::EINVAL));
        // The wrong end of a pipe is told first if it is the first.
        assert_eq!(p.splice(writer, fd, 1, 0), Err(Errno::EBADF));
    }
    assert_eq!(p.drain(full, 2), Ok(b"x".to_vec()), "it is still there");
}
