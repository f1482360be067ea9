//! The system calls of a script on the kernel, made by a thread of their own, as some of them wait.

use super::ffi;
use crate::host::{Reply, SystemCall};
use neap_posix::abi::{F_DUPFD, F_DUPFD_CLOEXEC};
use neap_posix::{EpollEvent, Fd, PollFd};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFlags, Timespec, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType};
use rustix::pipe::SpliceFlags;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A reply, and when the call returned.
type TimedReply = (Instant, Reply);

/// The thread that makes the calls of a script, one after the other.
#[derive(Debug)]
pub(super) struct Caller {
    calls: Sender<SystemCall>,
    replies: Receiver<TimedReply>,
    /// Readable when a reply is there, and once after a reply that was taken first.
    replied: Arc<OwnedFd>,
}

impl Caller {
    /// Starts the thread, which ends with the value.
    pub(super) fn new() -> Result<Self> {
        let (calls, work) = channel::<SystemCall>();
        let (done, replies) = channel();
        let replied = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let signal = replied.clone();
        thread::spawn(move || {
            let mut process = Process::default();
            for call in work {
                let reply = process.call(call).unwrap_or_else(failed);
                if done.send((Instant::now(), reply)).is_err() {
                    return;
                }
                // A counter that is full wakes as well.
                let _ = rustix::io::write(&signal, &1u64.to_ne_bytes());
            }
        });
        Ok(Self { calls, replies, replied })
    }

    /// Becomes readable when a call returned.
    pub(super) fn replied(&self) -> &OwnedFd {
        &self.replied
    }

    /// Begins a call, and waits for its reply for so long.
    pub(super) fn begin(&mut self, call: SystemCall, patience: Duration) -> Option<TimedReply> {
        // The thread lives as long as the sender.
        let _ = self.calls.send(call);
        self.replies.recv_timeout(patience).ok()
    }

    /// The reply of a call that waited. Until another comes, nothing is readable then.
    pub(super) fn poll(&mut self) -> Option<TimedReply> {
        // First, and also without a reply: the thread signals after it has replied, so `begin` may
        // have taken the reply of this signal.
        let _ = rustix::io::read(&self.replied, &mut [0; 8]);
        self.replies.try_recv().ok()
    }
}

/// The descriptors of a script.
#[derive(Debug, Default)]
struct Process {
    open: BTreeMap<Fd, OwnedFd>,
}

impl Process {
    fn fd(&self, fd: Fd) -> Result<&OwnedFd> {
        self.open.get(&fd).ok_or(Errno::BADF)
    }

    /// Keeps a descriptor that a call made.
    fn keep(&mut self, fd: OwnedFd) -> Fd {
        let number = fd.as_raw_fd();
        self.open.insert(number, fd);
        number
    }

    /// Makes a call, which may wait.
    fn call(&mut self, call: SystemCall) -> Result<Reply> {
        Ok(match call {
            SystemCall::Socket { domain, kind, protocol } => {
                Reply::ok(self.keep(socket(domain, kind, protocol)?))
            }
            SystemCall::Bind { fd, address } => {
                ffi::bind(self.fd(fd)?, &address)?;
                Reply::ok(0)
            }
            SystemCall::Listen { fd, backlog } => {
                rustix::net::listen(self.fd(fd)?, backlog)?;
                Reply::ok(0)
            }
            SystemCall::Accept { fd, flags } => {
                let flags = SocketFlags::from_bits_retain(flags.cast_unsigned());
                let accepted = rustix::net::accept_with(self.fd(fd)?, flags)?;
                Reply::ok(self.keep(accepted))
            }
            SystemCall::Connect { fd, address } => {
                ffi::connect(self.fd(fd)?, &address)?;
                Reply::ok(0)
            }
            SystemCall::Read { fd, sizes } => {
                let mut buffers = Buffers::new(&sizes);
                let len = rustix::io::readv(self.fd(fd)?, &mut buffers.slices())?;
                Reply { data: buffers.into_bytes(len), ..Reply::count(len) }
            }
            SystemCall::Receive { fd, sizes, control_len, flags } => {
                let (mut buffers, mut control) = (Buffers::new(&sizes), vec![0; control_len]);
                let message =
                    ffi::recvmsg(self.fd(fd)?, &mut buffers.slices(), &mut control, flags)?;
                control.truncate(message.control_len);
                let data = buffers.into_bytes(message.len);
                Reply { data, flags: message.flags, control, ..Reply::count(message.len) }
            }
            SystemCall::Write { fd, pieces } => {
                let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
                Reply::count(rustix::io::writev(self.fd(fd)?, &slices)?)
            }
            SystemCall::Send { fd, pieces, flags, address } => {
                let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
                let address = address.unwrap_or_default();
                Reply::count(ffi::sendmsg(self.fd(fd)?, &slices, &address, flags)?)
            }
            SystemCall::Shutdown { fd, how } => {
                ffi::shutdown(self.fd(fd)?, how)?;
                Reply::ok(0)
            }
            SystemCall::Close { fd } => {
                drop(self.open.remove(&fd).ok_or(Errno::BADF)?);
                Reply::ok(0)
            }
            SystemCall::GetOption { fd, level, name, len } => {
                let mut value = vec![0; len];
                let len = ffi::getsockopt(self.fd(fd)?, level, name, &mut value)?;
                value.truncate(len);
                Reply { data: value, ..Reply::ok(0) }
            }
            SystemCall::SetOption { fd, level, name, value } => {
                ffi::setsockopt(self.fd(fd)?, level, name, &value)?;
                Reply::ok(0)
            }
            SystemCall::Fcntl { fd, command: command @ (F_DUPFD | F_DUPFD_CLOEXEC), argument } => {
                let is_cloexec = command == F_DUPFD_CLOEXEC;
                let duplicate = ffi::duplicate(self.fd(fd)?, argument, is_cloexec)?;
                Reply::ok(self.keep(duplicate))
            }
            SystemCall::Fcntl { fd, command, argument } => {
                Reply::ok(ffi::fcntl(self.fd(fd)?, command, argument)?)
            }
            SystemCall::Ioctl { fd, request, argument } => {
                let value = ffi::ioctl(self.fd(fd)?, request, argument)?;
                Reply { data: value.to_le_bytes().to_vec(), ..Reply::ok(0) }
            }
            SystemCall::Poll { fds, timeout_ms } => self.poll(fds, timeout_ms)?,
            SystemCall::EpollCreate { size } => Reply::ok(self.keep(ffi::epoll_create(size)?)),
            SystemCall::EpollCreate1 { flags } => {
                let flags = CreateFlags::from_bits_retain(flags.cast_unsigned());
                Reply::ok(self.keep(epoll::create(flags)?))
            }
            SystemCall::EpollControl { epoll, operation, fd, event } => {
                ffi::epoll_ctl(self.fd(epoll)?, operation, self.fd(fd)?, event)?;
                Reply::ok(0)
            }
            SystemCall::EpollWait { epoll, max_events, timeout_ms } => {
                let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
                let mut events = vec![none; max_events];
                let timeout = timespec(timeout_ms);
                let count = epoll::wait(self.fd(epoll)?, &mut events[..], timeout.as_ref())?;
                events.truncate(count);
                let events = events.into_iter().map(|Event { flags, data }| EpollEvent {
                    events: flags.bits(),
                    data: data.u64(),
                });
                Reply { events: events.collect(), ..Reply::count(count) }
            }
            SystemCall::Pipe => {
                let (reader, writer) = rustix::pipe::pipe()?;
                Reply { pipe: [self.keep(reader), self.keep(writer)], ..Reply::ok(0) }
            }
            SystemCall::Splice { input, output, len, flags } => {
                let (input, output) = (self.fd(input)?, self.fd(output)?);
                let flags = SpliceFlags::from_bits_retain(flags);
                Reply::count(rustix::pipe::splice(input, None, output, None, len, flags)?)
            }
        })
    }

    /// `poll`, in which a descriptor that the script does not have open is one that is not open.
    fn poll(&self, mut fds: Vec<PollFd>, timeout_ms: i32) -> Result<Reply> {
        let is_open = |one: &PollFd| one.fd < 0 || self.open.contains_key(&one.fd);
        // What is not open is ready at once.
        let timeout_ms = if fds.iter().all(is_open) { timeout_ms } else { 0 };
        let mut known = Vec::new();
        for one in &mut fds {
            match self.open.get(&one.fd) {
                Some(fd) => {
                    let events = PollFlags::from_bits_retain(one.events.cast_unsigned());
                    known.push(rustix::event::PollFd::new(fd, events));
                }
                None if one.fd >= 0 => one.revents = PollFlags::NVAL.bits().cast_signed(),
                None => {}
            }
        }
        rustix::event::poll(&mut known, timespec(timeout_ms).as_ref())?;
        let mut known = known.iter();
        for one in fds.iter_mut().filter(|one| self.open.contains_key(&one.fd)) {
            let found = known.next().map_or(PollFlags::empty(), rustix::event::PollFd::revents);
            one.revents = found.bits().cast_signed();
        }
        let ready = fds.iter().filter(|one| one.revents != 0).count();
        Ok(Reply { fds, ..Reply::count(ready) })
    }
}

fn failed(errno: Errno) -> Reply {
    Reply::error(neap_posix::Errno(errno.raw_os_error()))
}

fn socket(domain: i32, kind: i32, protocol: i32) -> Result<OwnedFd> {
    let flags = kind.cast_unsigned() & SocketFlags::all().bits();
    let kind = SocketType::from_raw(kind.cast_unsigned() & !flags);
    let protocol = core::num::NonZeroU32::new(protocol.cast_unsigned()).map(Protocol::from_raw);
    let family = AddressFamily::from_raw(domain as u16);
    rustix::net::socket_with(family, kind, SocketFlags::from_bits_retain(flags), protocol)
}

/// The buffers of a call that receives.
struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    fn new(sizes: &[usize]) -> Self {
        Self(sizes.iter().map(|&size| vec![0; size]).collect())
    }

    fn slices(&mut self) -> Vec<IoSliceMut<'_>> {
        self.0.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect()
    }

    /// The first `len` bytes of all.
    fn into_bytes(self, len: usize) -> Vec<u8> {
        let mut bytes = self.0.concat();
        bytes.truncate(len);
        bytes
    }
}

/// A timeout of `poll` and `epoll_wait`: negative is forever.
fn timespec(timeout_ms: i32) -> Option<Timespec> {
    let millis = i64::from(timeout_ms);
    (millis >= 0).then(|| Timespec { tv_sec: millis / 1000, tv_nsec: (millis % 1000) * 1_000_000 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_after_its_reply_was_taken_wakes_once() {
        let (calls, _work) = channel();
        let (done, replies) = channel();
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let replied = Arc::new(eventfd(0, flags).expect("a descriptor"));
        let signal = || rustix::io::write(&*replied, &1u64.to_ne_bytes()).expect("signalled");
        let is_readable = || {
            let mut fds = [rustix::event::PollFd::new(&*replied, PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&Timespec::default())).expect("a poll") > 0
        };
        let mut caller = Caller { calls, replies, replied: replied.clone() };
        done.send((Instant::now(), Reply::ok(1))).expect("sent");
        assert!(caller.begin(SystemCall::Pipe, Duration::ZERO).is_some());
        signal();
        assert!(is_readable());
        assert!(caller.poll().is_none());
        assert!(!is_readable());
        done.send((Instant::now(), Reply::ok(2))).expect("sent");
        signal();
        assert!(caller.poll().is_some());
        assert!(!is_readable());
    }
}
