//! Any sequence of calls with any arguments ends in an answer, and closing everything leaves nothing.

use super::*;
use neap_stack::posix::{EpollEvent, PollFd};

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.next() as usize % list.len()]
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn fd(&mut self) -> Fd {
        2 + self.below(20) as Fd
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
        let ip =
            self.of(&["127.0.0.1", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "192.0.2.1"]);
        let mut bytes = address(&format!("{ip}:{port}")).to_vec();
        match self.below(8) {
            0 => bytes.truncate(self.below(30) as usize),
            1 => bytes[0] = self.next() as u8,
            _ => {}
        }
        bytes
    }
}

fn open_or_name(p: &mut Process, rng: &mut Rng) {
    let (fd, address) = (rng.fd(), rng.address());
    let call = &mut Call::new();
    match rng.below(6) {
        0 | 1 => {
            let kind = rng.of(&[SOCK_STREAM, SOCK_STREAM, SOCK_DGRAM, 7]);
            let flags = rng.of(&[0, SOCK_NONBLOCK, 0x10]);
            let _ = p.posix.socket(rng.of(&[AF_INET, AF_INET6, 1]), kind | flags, 0);
        }
        2 => drop(p.posix.bind(p.now, fd, &address)),
        3 => drop(p.posix.listen(p.now, fd, rng.next() as i32)),
        4 => drop(p.posix.connect(p.now, call, fd, &address)),
        _ => drop(p.posix.accept(p.now, call, fd, rng.of(&[0, SOCK_NONBLOCK, 3]))),
    }
    let _ = (p.posix.getsockname(fd), p.posix.getpeername(p.now, fd));
}

fn transfer(p: &mut Process, rng: &mut Rng) {
    let (fd, flags, address) = (rng.fd(), rng.flags(), rng.address());
    let len = rng.of(&[0usize, 1, 100, 5000, 200_000]);
    let mut buf = vec![7; len];
    let (posix, now, call) = (&mut p.posix, p.now, &mut Call::new());
    // The same call twice, as a thread that waits makes it.
    let turn = rng.below(4);
    for _ in 0..2 {
        let is_over = match turn {
            0 => !matches!(posix.send(now, call, fd, &buf, flags), Ok(Outcome::Wait(_))),
            1 => {
                let to = Some(&address[..]);
                !matches!(posix.send_to(now, call, fd, &buf, flags, to), Ok(Outcome::Wait(_)))
            }
            2 => !matches!(posix.recv(now, call, fd, &mut buf, flags), Ok(Outcome::Wait(_))),
            _ => !matches!(posix.read(now, call, fd, &mut buf), Ok(Outcome::Wait(_))),
        };
        if is_over {
            break;
        }
        while posix.stack().poll(0, now).0 <= now {}
    }
    posix.take_sigpipe();
}

fn control(p: &mut Process, rng: &mut Rng) {
    let (fd, other) = (rng.fd(), rng.fd());
    let value = rng.next().to_ne_bytes();
    let level = rng.of(&[SOL_SOCKET, SOL_TCP, SOL_IP, SOL_IPV6, SOL_UDP]);
    let name = rng.below(70) as i32;
    let len = rng.below(9) as usize;
    let mut out = [0; 300];
    let (posix, now) = (&mut p.posix, p.now);
    match rng.below(9) {
        0 => drop(posix.setsockopt(now, fd, level, name, &value[..len])),
        1 => drop(posix.setsockopt(now, fd, level, name, &[1, 0, 0, 0])),
        2 => drop(posix.getsockopt(now, fd, level, name, &mut out[..len * 37])),
        3 => drop(posix.fcntl(fd, rng.below(5) as i32, i64::from(rng.fd()))),
        4 => drop(posix.ioctl(now, fd, rng.of(&[FIONREAD, SIOCOUTQ, SIOCOUTQNSD, FIONBIO]), 1)),
        5 => drop(posix.epoll_create1(0)),
        6 => {
            let events = rng.of(&[POLLIN, POLLOUT | EPOLLET, POLLIN | POLLOUT | EPOLLONESHOT]);
            let operation = rng.of(&[EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL]);
            let event = EpollEvent { events, data: 1 };
            let _ = posix.epoll_ctl(fd, operation, other, event);
        }
        7 => drop(posix.epoll_wait(now, &mut Call::new(), fd, 5, rng.of(&[0, 10, -1]))),
        _ => {
            let mut fds = [fd, other].map(|fd| PollFd { fd, events: -1, revents: 0 });
            drop(posix.poll(now, &mut Call::new(), &mut fds, 0));
        }
    }
}

#[test]
fn every_call_is_answered_and_nothing_is_left() {
    for seed in 0..40 {
        let (mut p, mut rng) = (Process::new(), Rng(seed));
        for _ in 0..1500 {
            match rng.below(10) {
                0..=2 => open_or_name(&mut p, &mut rng),
                3..=5 => transfer(&mut p, &mut rng),
                6 | 7 => control(&mut p, &mut rng),
                8 => drop(p.posix.shutdown(p.now, rng.fd(), rng.below(4) as i32)),
                _ => drop(p.posix.close(p.now, &mut Call::new(), rng.fd())),
            }
            if rng.below(3) == 0 {
                p.pass(Nanos(rng.below(50_000_000)));
            }
        }
        p.posix.close_all(p.now);
        assert!((0..100).all(|fd| !p.posix.owns(fd)));
        p.pass(Nanos::from_secs(4000));
        let usage = p.posix.stack().usage();
        let tcp = usage.tcp;
        assert_eq!((tcp.connections, tcp.listeners, tcp.time_wait), (0, 0, 0), "seed {seed}");
        assert_eq!((usage.udp, usage.names), (0, 0), "seed {seed}");
    }
}
