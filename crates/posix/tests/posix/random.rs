//! Any sequence of calls with any arguments ends in an answer, and closing everything leaves
//! nothing.
//!
//! `cargo test` makes random ones for a few seconds; docs/fuzzing.md tells of more.

use super::*;
use neap_posix::{EpollEvent, PollFd};
use std::time::Duration;

/// Arbitrary bytes as a source of decisions; zeros when they are used up.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u32 {
        u32::from_ne_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[usize::from(self.byte()) % list.len()]
    }

    fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    fn fd(&mut self) -> Fd {
        2 + Fd::from(self.below(20))
    }

    fn flags(&mut self) -> i32 {
        let all = [MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_MORE, MSG_NOSIGNAL, MSG_OOB, MSG_ERRQUEUE];
        let (one, other) = (self.of(&all), self.of(&all));
        match self.below(3) {
            0 => 0,
            1 => one,
            _ => one | other,
        }
    }

    fn address(&mut self) -> Vec<u8> {
        let port = self.of(&[0u16, 80, 81, 5000]);
        let ip = self.of(&[
            "127.0.0.1",
            "0.0.0.0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "192.0.2.1",
            "192.0.2.9",
            "[::ffff:192.0.2.9]",
            "[2001:db8::9]",
        ]);
        let mut bytes = address(&format!("{ip}:{port}")).to_vec();
        match self.below(8) {
            0 => bytes.truncate(usize::from(self.below(30))),
            1 => bytes[0] = self.byte(),
            _ => {}
        }
        bytes
    }
}

fn open_or_name(p: &mut Process, source: &mut Source<'_>) {
    let (fd, address) = (source.fd(), source.address());
    let call = &mut Call::new();
    match source.below(7) {
        6 => drop(p.posix.pipe2(source.of(&[0, O_NONBLOCK, 3]))),
        0 | 1 => {
            let kind = source.of(&[SOCK_STREAM, SOCK_STREAM, SOCK_DGRAM, 7]);
            let flags = source.of(&[0, SOCK_NONBLOCK, 0x10]);
            let _ = p.posix.socket(source.of(&[AF_INET, AF_INET6, 1]), kind | flags, 0);
        }
        2 => drop(p.posix.bind(p.now, fd, &address)),
        3 => drop(p.posix.listen(p.now, fd, source.word() as i32)),
        4 => drop(p.posix.connect(p.now, call, fd, &address)),
        _ => drop(p.posix.accept(p.now, call, fd, source.of(&[0, SOCK_NONBLOCK, 3]))),
    }
    let _ = (p.posix.getsockname(fd), p.posix.getpeername(p.now, fd));
}

fn transfer(p: &mut Process, source: &mut Source<'_>) {
    let (fd, flags, address) = (source.fd(), source.flags(), source.address());
    let len = source.of(&[0usize, 1, 100, 5000, 200_000]);
    let mut buf = vec![7; len];
    let (posix, now, call) = (&mut p.posix, p.now, &mut Call::new());
    // The same call twice, as a thread that waits makes it.
    let (turn, other) = (source.below(9), source.fd());
    let mut control = [0; 64];
    let control = &mut control[..usize::from(source.of(&[0u8, 10, 30, 64]))];
    for _ in 0..2 {
        let is_over = match turn {
            0 => !matches!(posix.send(now, call, fd, &buf, flags), Ok(Outcome::Wait(_))),
            1 => {
                let to = Some(&address[..]);
                !matches!(posix.send_to(now, call, fd, &buf, flags, to), Ok(Outcome::Wait(_)))
            }
            2 => !matches!(posix.recv(now, call, fd, &mut buf, flags), Ok(Outcome::Wait(_))),
            3 => {
                let flags = flags | source.of(&[0, MSG_ERRQUEUE]);
                let outcome = posix.recv_msg(now, call, fd, &mut buf, control, flags);
                !matches!(outcome, Ok(Outcome::Wait(_)))
            }
            4 => !matches!(posix.write(now, call, fd, &buf), Ok(Outcome::Wait(_))),
            5 => {
                let flags = source.of(&[0, SPLICE_F_NONBLOCK, SPLICE_F_MORE, 64]);
                !matches!(posix.splice(now, call, fd, other, len, flags), Ok(Outcome::Wait(_)))
            }
            6 => {
                let to = Some(&address[..]).filter(|_| len == 100);
                let one = || Outgoing { data: &buf, control, to, sent: 0 };
                let mut messages = [one(), one(), one()];
                let outcome = posix.send_mmsg(now, call, fd, &mut messages, flags);
                !matches!(outcome, Ok(Outcome::Wait(_)))
            }
            7 => {
                let (first, second) = buf.split_at_mut(len / 2);
                let [first, second] =
                    [first, second].map(|buf| Incoming { buf, ..Incoming::default() });
                let flags = flags | source.of(&[0, MSG_WAITFORONE]);
                let outcome = posix.recv_mmsg(now, call, fd, &mut [first, second], flags);
                !matches!(outcome, Ok(Outcome::Wait(_)))
            }
            _ => !matches!(posix.read(now, call, fd, &mut buf), Ok(Outcome::Wait(_))),
        };
        if is_over {
            break;
        }
        while posix.stack().poll(0, now).0 <= now {}
    }
}

fn control(p: &mut Process, source: &mut Source<'_>) {
    let (fd, other) = (source.fd(), source.fd());
    let value = (u64::from(source.word()) << 32 | u64::from(source.word())).to_ne_bytes();
    let level = source.of(&[SOL_SOCKET, SOL_TCP, SOL_IP, SOL_IPV6, SOL_UDP]);
    let name = match source.below(72) {
        70 | 71 => TCP_NEAP_NOTSENT_LOWAT_US,
        name => i32::from(name),
    };
    let (mut value, mut small) = (value, [1, 0, 0, 0]);
    if name == SO_MAX_PACING_RATE {
        // At a byte per second what is left to be sent outlasts any test.
        (value[3], small[3]) = (value[3] | 1, 1);
    }
    let len = usize::from(source.below(9));
    let mut out = [0; 300];
    let (posix, now) = (&mut p.posix, p.now);
    match source.below(10) {
        9 => {
            let (level, name) = source.of(&[
                (SOL_IP, IP_RECVERR),
                (SOL_IPV6, IPV6_RECVERR),
                (SOL_IP, IP_TRANSPARENT),
                (SOL_IPV6, IPV6_FREEBIND),
            ]);
            let _ = posix.setsockopt(now, fd, level, name, &int(i32::from(source.below(3))));
        }
        0 => drop(posix.setsockopt(now, fd, level, name, &value[..len])),
        1 => drop(posix.setsockopt(now, fd, level, name, &small)),
        2 => drop(posix.getsockopt(now, fd, level, name, &mut out[..len * 37])),
        3 => drop(posix.fcntl(fd, i32::from(source.below(5)), i64::from(source.fd()))),
        4 => drop(posix.ioctl(now, fd, source.of(&[FIONREAD, SIOCOUTQ, SIOCOUTQNSD, FIONBIO]), 1)),
        5 => drop(posix.epoll_create1(0)),
        6 => {
            let events = source.of(&[POLLIN, POLLOUT | EPOLLET, POLLIN | POLLOUT | EPOLLONESHOT]);
            let operation =
                source.of(&[EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL]);
            let event = EpollEvent { events, data: 1 };
            let _ = posix.epoll_ctl(fd, operation, other, event);
        }
        7 => drop(posix.epoll_wait(now, &mut Call::new(), fd, 5, source.of(&[0, 10, -1]))),
        _ => {
            let mut fds = [fd, other].map(|fd| PollFd { fd, events: -1, revents: 0 });
            drop(posix.poll(now, &mut Call::new(), &mut fds, 0));
        }
    }
}

/// A router finds fault with a packet that left, or with one that never did.
fn report(p: &mut Process, source: &mut Source<'_>) {
    let sent = p.wire.ends().sent.clone();
    let Some(packet) = sent.get(usize::from(source.below(8)) % sent.len().max(1)) else { return };
    let mut quote = packet.to_vec();
    match source.below(6) {
        0 => quote.truncate(usize::from(source.byte())),
        1 => {
            let at = usize::from(source.below(48)) % quote.len().max(1);
            quote[at] ^= source.byte();
        }
        _ => {}
    }
    let (kind, code) = (source.of(&[1, 2, 3, 3, 4, 11, 12]), source.below(17));
    let word = source.of(&[0, 600, 1300, 0x0800_0000]);
    let message = match quote.first().map(|byte| byte >> 4) {
        Some(4) => errors::icmp_v4(&quote, [kind, code], word),
        _ => errors::icmp_v6(&quote, [kind, code], word),
    };
    p.wire.ends().arriving.push_back(message);
    p.settle();
}

/// Makes the calls that the bytes say, then closes everything.
fn run(bytes: &[u8]) {
    let (mut p, source) = (Process::new(), &mut Source(bytes));
    while !source.0.is_empty() {
        match source.below(12) {
            11 => {
                let (old, new) = (source.fd(), source.fd());
                drop(p.posix.dup3(p.now, &mut Call::new(), old, new, source.of(&[0, O_CLOEXEC])));
            }
            10 => report(&mut p, source),
            0..=2 => open_or_name(&mut p, source),
            3..=5 => transfer(&mut p, source),
            6 | 7 => control(&mut p, source),
            8 => drop(p.posix.shutdown(p.now, source.fd(), i32::from(source.below(4)))),
            _ => drop(p.posix.close(p.now, &mut Call::new(), source.fd())),
        }
        if source.below(3) == 0 {
            p.pass(Nanos(u64::from(source.word()) >> source.below(32)));
        }
    }
    p.posix.close_all(p.now);
    assert!((0..100).all(|fd| !p.posix.owns(fd)));
    p.pass(Nanos::from_secs(4000));
    let usage = p.posix.stack().usage();
    let tcp = usage.tcp;
    assert_eq!((tcp.connections, tcp.listeners, tcp.time_wait), (0, 0, 0));
    assert_eq!((usage.udp, usage.names), (0, 0));
}

#[test]
fn calls() {
    bolero::check!()
        .with_test_time(Duration::from_secs(3))
        .with_max_len(8192)
        .with_shrink_time(Duration::from_secs(5))
        .for_each(|bytes: &[u8]| run(bytes));
}
