//! An echo server on descriptors: one thread accepts, others wait for one epoll set.
//!
//! Needs `CAP_NET_ADMIN`. Try it with `nc 10.9.0.2 7`.

use neap::posix::abi::*;
use neap::posix::{EpollEvent, Errno, Fd, Process, sockaddr};
use std::error::Error;
use std::sync::Arc;
use std::thread;

/// Threads that serve.
const THREADS: usize = 2;

/// Sends back what has come, as far as it goes without waiting: a client that does not read must
/// not hold a thread. What does not go stays in the receive buffer, whose window then stops the
/// client. Returns what to wait for next, and `None` at the end of the stream.
fn echo(posix: &Process, fd: Fd) -> Result<Option<u32>, Errno> {
    let mut buf = [0; 4096];
    let len = match posix.recv(fd, &mut buf, MSG_PEEK | MSG_DONTWAIT) {
        Ok(0) => return Ok(None),
        Ok(len) => len,
        Err(Errno::EAGAIN) => return Ok(Some(EPOLLIN)),
        Err(error) => return Err(error),
    };
    match posix.send(fd, &buf[..len], MSG_NOSIGNAL | MSG_DONTWAIT) {
        Ok(sent) => posix.recv(fd, &mut buf[..sent], MSG_DONTWAIT).map(|_| Some(EPOLLIN)),
        Err(Errno::EAGAIN) => Ok(Some(EPOLLOUT)),
        Err(error) => Err(error),
    }
}

fn serve(posix: &Process, set: Fd) -> Result<(), Errno> {
    loop {
        for event in posix.epoll_wait(set, 16, -1)? {
            let fd = event.data as Fd;
            if let Ok(Some(events)) = echo(posix, fd) {
                // One thread has had it; any may have it next.
                posix.epoll_ctl(set, EPOLL_CTL_MOD, fd, request(fd, events))?;
            } else {
                posix.close(fd)?;
            }
        }
    }
}

fn request(fd: Fd, events: u32) -> EpollEvent {
    EpollEvent { events: events | EPOLLONESHOT, data: fd as u64 }
}

/// Serves the connections of `listener`, each by any of the threads.
///
/// # Errors
/// Why accepting failed. The threads stay with the connections that they have.
pub(crate) fn run(posix: &Arc<Process>, listener: Fd) -> Result<(), Errno> {
    let set = posix.epoll_create1(0)?;
    for _ in 0..THREADS {
        let posix = posix.clone();
        thread::spawn(move || serve(&posix, set));
    }
    loop {
        let fd = posix.accept(listener, 0)?.fd;
        posix.epoll_ctl(set, EPOLL_CTL_ADD, fd, request(fd, EPOLLIN))?;
    }
}

#[allow(dead_code)] // The tests use the rest.
fn main() -> Result<(), Box<dyn Error>> {
    let stack = neap::Stack::builder()
        .tun("neap0")
        .host_address("10.9.0.1/24")
        .address("10.9.0.2/24")
        .build()?;
    let posix = Arc::new(stack.posix(3));
    let listener = posix.socket(AF_INET, SOCK_STREAM, 0)?;
    posix.bind(listener, &sockaddr::encode("10.9.0.2:7".parse()?))?;
    posix.listen(listener, 128)?;
    Ok(run(&posix, listener)?)
}
