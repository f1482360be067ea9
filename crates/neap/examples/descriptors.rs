//! An echo server on descriptors: one thread accepts, others wait for one epoll set.
//!
//! Needs `CAP_NET_ADMIN`. Try it with `nc 10.9.0.2 7`.

use neap::posix::abi::*;
use neap::posix::{EpollEvent, Errno, Fd, Process, sockaddr};
use std::error::Error;
use std::thread;

/// Threads that serve.
const THREADS: usize = 2;

/// Sends back what has come. Whether the connection goes on.
fn echo(posix: &Process, fd: Fd) -> Result<bool, Errno> {
    let mut buf = [0; 4096];
    match posix.recv(fd, &mut buf, MSG_DONTWAIT) {
        Ok(0) => Ok(false),
        Ok(len) => posix.send(fd, &buf[..len], MSG_NOSIGNAL).map(|_| true),
        Err(Errno::EAGAIN) => Ok(true),
        Err(error) => Err(error),
    }
}

fn serve(posix: &Process, set: Fd) -> Result<(), Errno> {
    loop {
        for event in posix.epoll_wait(set, 16, -1)? {
            let fd = event.data as Fd;
            if echo(posix, fd).unwrap_or(false) {
                // One thread has had it; any may have it next.
                posix.epoll_ctl(set, EPOLL_CTL_MOD, fd, request(fd))?;
            } else {
                posix.close(fd)?;
            }
        }
    }
}

fn request(fd: Fd) -> EpollEvent {
    EpollEvent { events: EPOLLIN | EPOLLONESHOT, data: fd as u64 }
}

fn main() -> Result<(), Box<dyn Error>> {
    let stack = neap::Stack::builder()
        .tun("neap0")
        .host_address("10.9.0.1/24")
        .address("10.9.0.2/24")
        .build()?;
    let posix = stack.posix(3);
    let listener = posix.socket(AF_INET, SOCK_STREAM, 0)?;
    posix.bind(listener, &sockaddr::encode("10.9.0.2:7".parse()?))?;
    posix.listen(listener, 128)?;
    let set = posix.epoll_create1(0)?;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| serve(&posix, set));
        }
        loop {
            let accepted = posix.accept(listener, 0)?;
            println!("{} is here", accepted.peer);
            posix.epoll_ctl(set, EPOLL_CTL_ADD, accepted.fd, request(accepted.fd))?;
        }
    })
}
