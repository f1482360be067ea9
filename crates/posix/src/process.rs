//! The calls of a process on a running stack: they wait.

use crate::answer::{Accepted, PollFd, Received};
use crate::call::{Call, Outcome};
use crate::epoll::EpollEvent;
use crate::errno::Errno;
use crate::{Fd, Posix};
use core::net::SocketAddr;
use neap_stack::stack::Stack;
use neap_stack::wait::{Drive, WriteTally};
use neap_tcp::time::Instant;
use std::sync::Arc;

/// The sockets of one process on a running stack, by descriptor: [`Posix`], whose calls wait where
/// those of Linux do. Threads share it. A thread that waits drives the stack meanwhile, as one in
/// a call of a blocking socket does.
///
/// Nothing interrupts a call: there are no signals. When the stack ends, its connections fail with
/// `ECONNABORTED`, and calls that wait for them return.
#[derive(Debug)]
pub struct Process {
    posix: Posix,
    drive: Arc<dyn Drive>,
    /// What all its threads have sent.
    sent: WriteTally,
}

impl Process {
    /// A process without sockets on `stack`, which `drive` drives; its first descriptor is
    /// `first_fd`.
    pub fn new(stack: Arc<Stack>, drive: Arc<dyn Drive>, first_fd: Fd) -> Self {
        Self { posix: Posix::new(stack, first_fd), drive, sent: WriteTally::default() }
    }

    /// The stack, for figures.
    pub fn stack(&self) -> &Stack {
        self.posix.stack()
    }

    /// Whether this descriptor is open here.
    pub fn owns(&self, fd: Fd) -> bool {
        self.posix.owns(fd)
    }

    fn now(&self) -> Instant {
        self.drive.now()
    }

    /// Makes a call, again and again while it waits. Where the first attempt brings nothing, as
    /// `is_empty` says of an answer, what has arrived is taken before the call returns with that.
    fn run<T>(
        &self,
        call: &mut Call,
        is_empty: impl Fn(&T) -> bool,
        mut make: impl FnMut(Instant, &mut Call) -> Result<Outcome<T>, Errno>,
    ) -> Result<T, Errno> {
        let mut outcome = make(self.now(), call);
        let brings_nothing = match &outcome {
            Ok(Outcome::Done(answer)) => is_empty(answer),
            Ok(Outcome::Wait(_)) => false,
            Err(error) => *error == Errno::EAGAIN,
        };
        if brings_nothing {
            self.drive.look_in(call.shard());
            *call = Call::new();
            outcome = make(self.now(), call);
        }
        let mut done = 0;
        loop {
            match outcome {
                Ok(Outcome::Done(answer)) => return Ok(answer),
                Err(error) => return Err(error),
                // What was transferred may have made room for more.
                Ok(Outcome::Wait(_)) if call.done > done => {}
                // Sleeps until the call is worth another attempt, or its time is over.
                Ok(Outcome::Wait(until)) => {
                    self.drive.wait(call.shard(), until, call);
                }
            }
            done = call.done;
            outcome = make(self.now(), call);
        }
    }

    /// As [`run`](Self::run) for a call whose every answer brings something.
    fn call<T>(
        &self,
        make: impl FnMut(Instant, &mut Call) -> Result<Outcome<T>, Errno>,
    ) -> Result<T, Errno> {
        self.run(&mut Call::new(), |_| false, make)
    }

    /// As [`call`](Self::call) for one that answers how many bytes it has sent. Between two of them
    /// what has arrived is taken.
    fn send_by(
        &self,
        make: impl FnMut(Instant, &mut Call) -> Result<Outcome<usize>, Errno>,
    ) -> Result<usize, Errno> {
        let mut call = Call::new();
        let sent = self.run(&mut call, |_| false, make)?;
        self.sent.add(sent, &*self.drive, call.shard());
        Ok(sent)
    }
}

/// The system calls, as [`Posix`] has them, without the time and without an attempt that waits.
impl Process {
    /// `socket(2)`.
    ///
    /// # Errors
    /// As [`Posix::socket`].
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<Fd, Errno> {
        self.posix.socket(domain, kind, protocol)
    }

    /// `bind(2)`. Port 0 is chosen at once.
    ///
    /// # Errors
    /// As [`Posix::bind`].
    pub fn bind(&self, fd: Fd, address: &[u8]) -> Result<(), Errno> {
        self.posix.bind(self.now(), fd, address)
    }

    /// `listen(2)`; again on a listener it changes the backlog.
    ///
    /// # Errors
    /// As [`Posix::listen`].
    pub fn listen(&self, fd: Fd, backlog: i32) -> Result<(), Errno> {
        self.posix.listen(self.now(), fd, backlog)
    }

    /// `accept4(2)`; waits as `SO_RCVTIMEO` says. Several threads may wait: each gets a connection
    /// of its own.
    ///
    /// # Errors
    /// As [`Posix::accept`].
    pub fn accept(&self, fd: Fd, flags: i32) -> Result<Accepted, Errno> {
        self.call(|now, call| self.posix.accept(now, call, fd, flags))
    }

    /// `connect(2)`; waits as `SO_SNDTIMEO` says.
    ///
    /// # Errors
    /// As [`Posix::connect`].
    pub fn connect(&self, fd: Fd, address: &[u8]) -> Result<(), Errno> {
        self.call(|now, call| self.posix.connect(now, call, fd, address))
    }

    /// `shutdown(2)`; calls that wait in this direction return.
    ///
    /// # Errors
    /// As [`Posix::shutdown`].
    pub fn shutdown(&self, fd: Fd, how: i32) -> Result<(), Errno> {
        self.posix.shutdown(self.now(), fd, how)
    }

    /// `close(2)`; waits as `SO_LINGER` says. A call of another thread that waits keeps the file.
    ///
    /// # Errors
    /// As [`Posix::close`].
    pub fn close(&self, fd: Fd) -> Result<(), Errno> {
        self.call(|now, call| self.posix.close(now, call, fd))
    }

    /// `read(2)`.
    ///
    /// # Errors
    /// As [`Posix::read`].
    pub fn read(&self, fd: Fd, buf: &mut [u8]) -> Result<usize, Errno> {
        self.call(|now, call| self.posix.read(now, call, fd, buf))
    }

    /// `write(2)`.
    ///
    /// # Errors
    /// As [`Posix::write`].
    pub fn write(&self, fd: Fd, data: &[u8]) -> Result<usize, Errno> {
        self.send_by(|now, call| self.posix.write(now, call, fd, data))
    }

    /// `recv(2)`; waits as `SO_RCVTIMEO` says.
    ///
    /// # Errors
    /// As [`Posix::recv`].
    pub fn recv(&self, fd: Fd, buf: &mut [u8], flags: i32) -> Result<usize, Errno> {
        self.call(|now, call| self.posix.recv(now, call, fd, buf, flags))
    }

    /// `recvfrom(2)`; waits as `SO_RCVTIMEO` says.
    ///
    /// # Errors
    /// As [`Posix::recv_from`].
    pub fn recv_from(&self, fd: Fd, buf: &mut [u8], flags: i32) -> Result<Received, Errno> {
        self.call(|now, call| self.posix.recv_from(now, call, fd, buf, flags))
    }

    /// `recvmsg(2)`; waits as `SO_RCVTIMEO` says.
    ///
    /// # Errors
    /// As [`Posix::recv_msg`].
    pub fn recv_msg(
        &self,
        fd: Fd,
        buf: &mut [u8],
        control: &mut [u8],
        flags: i32,
    ) -> Result<Received, Errno> {
        self.call(|now, call| self.posix.recv_msg(now, call, fd, buf, control, flags))
    }

    /// `send(2)`; waits as `SO_SNDTIMEO` says, until everything is taken.
    ///
    /// # Errors
    /// As [`Posix::send`].
    pub fn send(&self, fd: Fd, data: &[u8], flags: i32) -> Result<usize, Errno> {
        self.send_by(|now, call| self.posix.send(now, call, fd, data, flags))
    }

    /// `sendto(2)`, `sendmsg(2)`; waits as `SO_SNDTIMEO` says, until everything is taken.
    ///
    /// # Errors
    /// As [`Posix::send_to`].
    pub fn send_to(
        &self,
        fd: Fd,
        data: &[u8],
        flags: i32,
        to: Option<&[u8]>,
    ) -> Result<usize, Errno> {
        self.send_by(|now, call| self.posix.send_to(now, call, fd, data, flags, to))
    }

    /// `getsockname(2)`.
    ///
    /// # Errors
    /// As [`Posix::getsockname`].
    pub fn getsockname(&self, fd: Fd) -> Result<SocketAddr, Errno> {
        self.posix.getsockname(fd)
    }

    /// `getpeername(2)`.
    ///
    /// # Errors
    /// As [`Posix::getpeername`].
    pub fn getpeername(&self, fd: Fd) -> Result<SocketAddr, Errno> {
        self.posix.getpeername(self.now(), fd)
    }

    /// `setsockopt(2)`.
    ///
    /// # Errors
    /// As [`Posix::setsockopt`].
    pub fn setsockopt(&self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.posix.setsockopt(self.now(), fd, level, name, value)
    }

    /// `getsockopt(2)`: writes the value, as much as fits `out`, and answers its size.
    ///
    /// # Errors
    /// As [`Posix::getsockopt`].
    pub fn getsockopt(
        &self,
        fd: Fd,
        level: i32,
        name: i32,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        self.posix.getsockopt(self.now(), fd, level, name, out)
    }

    /// `fcntl(2)`.
    ///
    /// # Errors
    /// As [`Posix::fcntl`].
    pub fn fcntl(&self, fd: Fd, command: i32, argument: i64) -> Result<i32, Errno> {
        self.posix.fcntl(fd, command, argument)
    }

    /// `ioctl(2)`; the answer is what it writes through its pointer.
    ///
    /// # Errors
    /// As [`Posix::ioctl`].
    pub fn ioctl(&self, fd: Fd, request: u64, argument: i32) -> Result<i32, Errno> {
        self.posix.ioctl(self.now(), fd, request, argument)
    }

    /// `poll(2)`: how many of `fds` have something; waits up to `timeout_ms` milliseconds, forever
    /// if that is negative.
    ///
    /// # Errors
    /// As [`Posix::poll`].
    pub fn poll(&self, fds: &mut [PollFd], timeout_ms: i32) -> Result<usize, Errno> {
        let is_none = |count: &usize| *count == 0;
        self.run(&mut Call::new(), is_none, |now, call| self.posix.poll(now, call, fds, timeout_ms))
    }

    /// `epoll_create(2)`.
    ///
    /// # Errors
    /// As [`Posix::epoll_create`].
    pub fn epoll_create(&self, size: i32) -> Result<Fd, Errno> {
        self.posix.epoll_create(size)
    }

    /// `epoll_create1(2)`.
    ///
    /// # Errors
    /// As [`Posix::epoll_create1`].
    pub fn epoll_create1(&self, flags: i32) -> Result<Fd, Errno> {
        self.posix.epoll_create1(flags)
    }

    /// `epoll_ctl(2)`; a thread that waits for the set sees the change.
    ///
    /// # Errors
    /// As [`Posix::epoll_ctl`].
    pub fn epoll_ctl(
        &self,
        epfd: Fd,
        operation: i32,
        fd: Fd,
        event: EpollEvent,
    ) -> Result<(), Errno> {
        self.posix.epoll_ctl(epfd, operation, fd, event)
    }

    /// `epoll_wait(2)`: what is ready, at most `most` events; waits up to `timeout_ms`
    /// milliseconds, forever if that is negative.
    ///
    /// # Errors
    /// As [`Posix::epoll_wait`].
    pub fn epoll_wait(
        &self,
        epfd: Fd,
        most: i32,
        timeout_ms: i32,
    ) -> Result<Vec<EpollEvent>, Errno> {
        self.run(&mut Call::new(), Vec::is_empty, |now, call| {
            self.posix.epoll_wait(now, call, epfd, most, timeout_ms)
        })
    }

    /// `pipe2(2)`: the end that reads and the one that writes.
    ///
    /// # Errors
    /// As [`Posix::pipe2`].
    pub fn pipe2(&self, flags: i32) -> Result<[Fd; 2], Errno> {
        self.posix.pipe2(flags)
    }

    /// `splice(2)` without offsets.
    ///
    /// # Errors
    /// As [`Posix::splice`].
    pub fn splice(&self, input: Fd, output: Fd, len: usize, flags: u32) -> Result<usize, Errno> {
        self.send_by(|now, call| self.posix.splice(now, call, input, output, len, flags))
    }

    /// Closes all descriptors, as the end of the process does. Nothing lingers.
    pub fn close_all(&self) {
        self.posix.close_all(self.now());
    }
}
