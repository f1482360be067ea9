//! Threads that do anything with the same descriptors.

use super::*;
use crate::common::in_namespace;
use neap::posix::EpollEvent;
use std::thread;

const THREADS: u64 = 4;
const CALLS: u32 = 20_000;
/// Descriptors that the threads share.
const DESCRIPTORS: u64 = 24;

/// Chooses, the same in every run (xorshift).
struct Choice(u64);

impl Choice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % most
    }

    fn fd(&mut self) -> Fd {
        3 + self.below(DESCRIPTORS) as Fd
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

fn ignore<T>(_: T) {}

/// Makes one call that does not wait for long. What it answers does not matter.
fn act(posix: &Process, choice: &mut Choice, to: &Encoded) {
    let (fd, other, mut buf) = (choice.fd(), choice.fd(), [0; 3000]);
    match choice.below(16) {
        0 => ignore(posix.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)),
        1 => ignore(posix.socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0)),
        2 => ignore(posix.connect(fd, to)),
        3 => ignore(posix.bind(fd, &ours(0)).and_then(|()| posix.listen(fd, 5))),
        4 => {
            // To itself, over the loopback.
            if let Ok(address) = posix.getsockname(other) {
                ignore(posix.connect(fd, &encode(address)));
            }
        }
        5 => ignore(posix.accept(fd, SOCK_NONBLOCK)),
        6 => ignore(posix.send(fd, &buf, MSG_DONTWAIT)),
        7 => {
            let flags = choice.of(&[0, MSG_PEEK, MSG_WAITALL]);
            ignore(posix.recv(fd, &mut buf, MSG_DONTWAIT | flags));
        }
        8 => ignore(posix.shutdown(fd, choice.of(&[SHUT_RD, SHUT_WR, SHUT_RDWR]))),
        9 => ignore(posix.close(fd)),
        10 => ignore(posix.fcntl(fd, F_DUPFD, 3)),
        11 if choice.below(3) == 0 => ignore(posix.epoll_create1(0)),
        11 => ignore(posix.pipe2(O_NONBLOCK)),
        12 | 13 => {
            let operation =
                choice.of(&[EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL]);
            let manner = choice.of(&[0, EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE]);
            let event = EpollEvent { events: EPOLLIN | EPOLLOUT | manner, data: 1 };
            ignore(posix.epoll_ctl(fd, operation, other, event));
        }
        14 => ignore(posix.epoll_wait(fd, 5, choice.of(&[0, 1]))),
        _ => {
            let mut fds = [fd, other].map(|fd| PollFd { fd, events: POLLIN as i16, revents: 0 });
            ignore(posix.poll(&mut fds, choice.of(&[0, 1])));
            ignore(posix.splice(fd, other, 5000, SPLICE_F_NONBLOCK));
        }
    }
}

#[test]
fn nothing_hangs_and_nothing_is_left() {
    in_namespace(|| {
        let (stack, posix) = process();
        let (listener, address) = Family::V4.kernel_listener();
        let to = encode(address);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // It resets what it has not read.
                drop(stream);
            }
        });
        thread::scope(|scope| {
            for seed in 1..=THREADS {
                let (posix, to) = (&posix, &to);
                scope.spawn(move || {
                    let mut choice = Choice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                    (0..CALLS).for_each(|_| act(posix, &mut choice, to));
                });
            }
        });
        posix.close_all();
        let host = stack.host();
        let open = || (host.usage().udp, host.usage().tcp.listeners);
        eventually(open, |open| *open == (0, 0));
        // Each port is free: nothing holds one any more.
        let fd = tcp(&posix);
        posix.bind(fd, &ours(7)).expect("free");
    });
}
