//! Calls of a process on a running stack, which wait where Linux's do.

use crate::answer::{Accepted, Incoming, Outgoing, PollFd, Received};
use crate::call::{Call, Outcome};
use crate::epoll::EpollEvent;
use crate::errno::Errno;
use crate::{Fd, Posix};
use core::net::SocketAddr;
use neap_stack::stack::Stack;
use neap_stack::wait::Drive;
use neap_tcp::time::Instant;
use std::sync::Arc;

/// Sockets of one process on a running stack, by descriptor. Calls wait where those of Linux do.
///
/// It is [`Posix`] with waiting. Threads share it. A thread that waits drives the stack meanwhile,
/// as one in a call of a blocking socket does.
///
/// Nothing interrupts a call: there are no signals. When the stack ends, its connections fail with
/// `ECONNABORTED`, and calls that wait for them return.
#[derive(Debug)]
pub struct Process {
    posix: Posix,
    drive: Arc<dyn Drive>,
}

impl Process {
    /// Returns a process without sockets on `stack`, which `drive` drives. Its first descriptor is
    /// `first_fd`.
    #[doc(hidden)]
    pub fn new(stack: Arc<Stack>, drive: Arc<dyn Drive>, first_fd: Fd) -> Self {
        Self { posix: Posix::new(stack, first_fd), drive }
    }

    /// Returns the stack, for figures.
    pub fn stack(&self) -> &Stack {
        self.posix.stack()
    }

    /// Returns whether this descriptor is open here.
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
        self.drive.count_written(call.shard(), sent);
        Ok(sent)
    }
}

/// System calls of [`Posix`], which wait here and take no time argument.
impl Process {
    /// `socket(2)`: makes a socket.
    ///
    /// # Errors
    /// Those of [`Posix::socket`].
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<Fd, Errno> {
        self.posix.socket(domain, kind, protocol)
    }

    /// `bind(2)`: gives a socket an address. Port 0 is replaced by a free port at once.
    ///
    /// # Errors
    /// Those of [`Posix::bind`].
    pub fn bind(&self, fd: Fd, address: &[u8]) -> Result<(), Errno> {
        self.posix.bind(self.now(), fd, address)
    }

    /// `listen(2)`: makes a socket listen. On a listener it changes the backlog.
    ///
    /// # Errors
    /// Those of [`Posix::listen`].
    pub fn listen(&self, fd: Fd, backlog: i32) -> Result<(), Errno> {
        self.posix.listen(self.now(), fd, backlog)
    }

    /// `accept4(2)`: takes a connection from a listener. It waits up to `SO_RCVTIMEO`. If several
    /// threads wait, each gets a connection of its own.
    ///
    /// # Errors
    /// Those of [`Posix::accept`].
    pub fn accept(&self, fd: Fd, flags: i32) -> Result<Accepted, Errno> {
        self.call(|now, call| self.posix.accept(now, call, fd, flags))
    }

    /// `connect(2)`: opens a connection, or sets the peer of a UDP socket. It waits up to
    /// `SO_SNDTIMEO`.
    ///
    /// # Errors
    /// Those of [`Posix::connect`].
    pub fn connect(&self, fd: Fd, address: &[u8]) -> Result<(), Errno> {
        self.call(|now, call| self.posix.connect(now, call, fd, address))
    }

    /// `shutdown(2)`: ends one or both directions of a connection. Calls that wait in a direction
    /// that ends return.
    ///
    /// # Errors
    /// Those of [`Posix::shutdown`].
    pub fn shutdown(&self, fd: Fd, how: i32) -> Result<(), Errno> {
        self.posix.shutdown(self.now(), fd, how)
    }

    /// `close(2)`: closes a descriptor. It waits up to the time of `SO_LINGER`. A call of another
    /// thread that waits keeps the file.
    ///
    /// # Errors
    /// Those of [`Posix::close`].
    pub fn close(&self, fd: Fd) -> Result<(), Errno> {
        self.call(|now, call| self.posix.close(now, call, fd))
    }

    /// `dup3(2)`: makes `new` another descriptor of the file of `old`, and closes what it was.
    ///
    /// # Errors
    /// Those of [`Posix::dup3`].
    pub fn dup3(&self, old: Fd, new: Fd, flags: i32) -> Result<Fd, Errno> {
        self.call(|now, call| self.posix.dup3(now, call, old, new, flags))
    }

    /// `read(2)`: receives like `recv` without flags.
    ///
    /// # Errors
    /// Those of [`Posix::read`].
    pub fn read(&self, fd: Fd, buf: &mut [u8]) -> Result<usize, Errno> {
        self.call(|now, call| self.posix.read(now, call, fd, buf))
    }

    /// `write(2)`: sends like `send` without flags.
    ///
    /// # Errors
    /// Those of [`Posix::write`].
    pub fn write(&self, fd: Fd, data: &[u8]) -> Result<usize, Errno> {
        self.send_by(|now, call| self.posix.write(now, call, fd, data))
    }

    /// `recv(2)`: receives bytes or a datagram. It waits up to `SO_RCVTIMEO`.
    ///
    /// # Errors
    /// Those of [`Posix::recv`].
    pub fn recv(&self, fd: Fd, buf: &mut [u8], flags: i32) -> Result<usize, Errno> {
        self.call(|now, call| self.posix.recv(now, call, fd, buf, flags))
    }

    /// `recvfrom(2)`: receives bytes or a datagram, and its sender. It waits up to `SO_RCVTIMEO`.
    ///
    /// # Errors
    /// Those of [`Posix::recv_from`].
    pub fn recv_from(&self, fd: Fd, buf: &mut [u8], flags: i32) -> Result<Received, Errno> {
        self.call(|now, call| self.posix.recv_from(now, call, fd, buf, flags))
    }

    /// `recvmsg(2)`: receives data and control messages. It waits up to `SO_RCVTIMEO`.
    ///
    /// # Errors
    /// Those of [`Posix::recv_msg`].
    pub fn recv_msg(
        &self,
        fd: Fd,
        buf: &mut [u8],
        control: &mut [u8],
        flags: i32,
    ) -> Result<Received, Errno> {
        self.call(|now, call| self.posix.recv_msg(now, call, fd, buf, control, flags))
    }

    /// `send(2)`: sends data. It waits up to `SO_SNDTIMEO` until everything is taken.
    ///
    /// # Errors
    /// Those of [`Posix::send`].
    pub fn send(&self, fd: Fd, data: &[u8], flags: i32) -> Result<usize, Errno> {
        self.send_by(|now, call| self.posix.send(now, call, fd, data, flags))
    }

    /// `sendmsg(2)`: sends data with control messages. It waits up to `SO_SNDTIMEO` until
    /// everything is taken.
    ///
    /// # Errors
    /// Those of [`Posix::send_msg`].
    pub fn send_msg(
        &self,
        fd: Fd,
        data: &[u8],
        control: &[u8],
        flags: i32,
        to: Option<&[u8]>,
    ) -> Result<usize, Errno> {
        self.send_by(|now, call| self.posix.send_msg(now, call, fd, data, control, flags, to))
    }

    /// `sendto(2)`: sends data to an address. It waits up to `SO_SNDTIMEO` until everything is
    /// taken.
    ///
    /// # Errors
    /// Those of [`Posix::send_to`].
    pub fn send_to(
        &self,
        fd: Fd,
        data: &[u8],
        flags: i32,
        to: Option<&[u8]>,
    ) -> Result<usize, Errno> {
        self.send_by(|now, call| self.posix.send_to(now, call, fd, data, flags, to))
    }

    /// `sendmmsg(2)`: sends messages and returns how many were sent. It waits up to `SO_SNDTIMEO`
    /// for room.
    ///
    /// # Errors
    /// Those of [`Posix::send_mmsg`].
    pub fn send_mmsg(
        &self,
        fd: Fd,
        messages: &mut [Outgoing<'_>],
        flags: i32,
    ) -> Result<usize, Errno> {
        let mut call = Call::new();
        let make = |now, call: &mut Call| self.posix.send_mmsg(now, call, fd, messages, flags);
        let sent = self.run(&mut call, |_| false, make)?;
        let bytes = messages[..sent].iter().map(|message| message.sent).sum();
        self.drive.count_written(call.shard(), bytes);
        Ok(sent)
    }

    /// `recvmmsg(2)`: receives messages and returns how many came. It waits up to `SO_RCVTIMEO` for
    /// all of them, or with `MSG_WAITFORONE` for the first alone.
    ///
    /// # Errors
    /// Those of [`Posix::recv_mmsg`].
    pub fn recv_mmsg(
        &self,
        fd: Fd,
        messages: &mut [Incoming<'_>],
        flags: i32,
    ) -> Result<usize, Errno> {
        self.call(|now, call| self.posix.recv_mmsg(now, call, fd, messages, flags))
    }

    /// `getsockname(2)`: returns the socket's own address.
    ///
    /// # Errors
    /// Those of [`Posix::getsockname`].
    pub fn getsockname(&self, fd: Fd) -> Result<SocketAddr, Errno> {
        self.posix.getsockname(fd)
    }

    /// `getpeername(2)`: returns the peer's address.
    ///
    /// # Errors
    /// Those of [`Posix::getpeername`].
    pub fn getpeername(&self, fd: Fd) -> Result<SocketAddr, Errno> {
        self.posix.getpeername(self.now(), fd)
    }

    /// `setsockopt(2)`: sets an option of a socket.
    ///
    /// # Errors
    /// Those of [`Posix::setsockopt`].
    pub fn setsockopt(&self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.posix.setsockopt(self.now(), fd, level, name, value)
    }

    /// `getsockopt(2)`: writes the value of an option to `out`, as much as fits, and returns its
    /// size.
    ///
    /// # Errors
    /// Those of [`Posix::getsockopt`].
    pub fn getsockopt(
        &self,
        fd: Fd,
        level: i32,
        name: i32,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        self.posix.getsockopt(self.now(), fd, level, name, out)
    }

    /// `fcntl(2)`: duplicates a descriptor, or reads and sets its flags.
    ///
    /// # Errors
    /// Those of [`Posix::fcntl`].
    pub fn fcntl(&self, fd: Fd, command: i32, argument: i64) -> Result<i32, Errno> {
        self.posix.fcntl(fd, command, argument)
    }

    /// `ioctl(2)`: returns the value that Linux writes through the pointer.
    ///
    /// # Errors
    /// Those of [`Posix::ioctl`].
    pub fn ioctl(&self, fd: Fd, request: u64, argument: i32) -> Result<i32, Errno> {
        self.posix.ioctl(self.now(), fd, request, argument)
    }

    /// `poll(2)`: fills in the events of `fds` and returns how many have any. It waits up to
    /// `timeout_ms` milliseconds, and without limit if that is negative.
    ///
    /// # Errors
    /// Those of [`Posix::poll`].
    pub fn poll(&self, fds: &mut [PollFd], timeout_ms: i32) -> Result<usize, Errno> {
        let is_none = |count: &usize| *count == 0;
        self.run(&mut Call::new(), is_none, |now, call| self.posix.poll(now, call, fds, timeout_ms))
    }

    /// `epoll_create(2)`: makes an epoll set.
    ///
    /// # Errors
    /// Those of [`Posix::epoll_create`].
    pub fn epoll_create(&self, size: i32) -> Result<Fd, Errno> {
        self.posix.epoll_create(size)
    }

    /// `epoll_create1(2)`: makes an epoll set with flags.
    ///
    /// # Errors
    /// Those of [`Posix::epoll_create1`].
    pub fn epoll_create1(&self, flags: i32) -> Result<Fd, Errno> {
        self.posix.epoll_create1(flags)
    }

    /// `epoll_ctl(2)`: adds a descriptor to an epoll set, changes or removes it. A thread that
    /// waits for the set sees the change.
    ///
    /// # Errors
    /// Those of [`Posix::epoll_ctl`].
    pub fn epoll_ctl(
        &self,
        epfd: Fd,
        operation: i32,
        fd: Fd,
        event: EpollEvent,
    ) -> Result<(), Errno> {
        self.posix.epoll_ctl(epfd, operation, fd, event)
    }

    /// `epoll_wait(2)`: returns at most `most` events. It waits up to `timeout_ms` milliseconds,
    /// and without limit if that is negative.
    ///
    /// # Errors
    /// Those of [`Posix::epoll_wait`].
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

    /// `pipe2(2)`: makes a pipe and returns its reading end and its writing end.
    ///
    /// # Errors
    /// Those of [`Posix::pipe2`].
    pub fn pipe2(&self, flags: i32) -> Result<[Fd; 2], Errno> {
        self.posix.pipe2(flags)
    }

    /// `splice(2)`: moves bytes between a pipe and a pipe or connection, without offsets.
    ///
    /// # Errors
    /// Those of [`Posix::splice`].
    pub fn splice(&self, input: Fd, output: Fd, len: usize, flags: u32) -> Result<usize, Errno> {
        self.send_by(|now, call| self.posix.splice(now, call, input, output, len, flags))
    }

    /// Closes all descriptors, as the end of a process does. Nothing lingers.
    pub fn close_all(&self) {
        self.posix.close_all(self.now());
    }
}
