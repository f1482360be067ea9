//! System calls of a script on the kernel, made by a thread of their own, as some of them wait.

use neap::device::socket::{self, Queued};
use neap_lab::script::host::{Call, EpollEvent, PollEntry, Reply};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, Protocol, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType,
};
use rustix::pipe::SpliceFlags;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// What a call answered, when, and the descriptors that it opened.
struct Answer {
    reply: Reply,
    opened: Vec<OwnedFd>,
    at: Instant,
}

type Job = Box<dyn FnOnce() -> (Reply, Vec<OwnedFd>) + Send>;

/// Descriptors of a script, and the thread that makes its calls.
pub(super) struct Calls {
    open: BTreeMap<i32, Arc<OwnedFd>>,
    jobs: Sender<Job>,
    answers: Receiver<Answer>,
    /// Readable when an answer is there.
    answered: Arc<OwnedFd>,
}

type Result<T> = rustix::io::Result<T>;

impl Calls {
    pub(super) fn new() -> Result<Self> {
        let (jobs, work) = channel::<Job>();
        let (done, answers) = channel();
        let answered = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let signal = answered.clone();
        thread::spawn(move || {
            for job in work {
                let (reply, opened) = job();
                let answer = Answer { reply, opened, at: Instant::now() };
                if done.send(answer).is_err() {
                    return;
                }
                // A counter that is full wakes as well.
                let _ = rustix::io::write(&signal, &1u64.to_ne_bytes());
            }
        });
        Ok(Self { open: BTreeMap::new(), jobs, answers, answered })
    }

    /// Becomes readable when a call returned.
    pub(super) fn answered(&self) -> &OwnedFd {
        &self.answered
    }

    /// Begins a call, and waits for it for so long.
    pub(super) fn begin(&mut self, call: Call, patience: Duration) -> Option<(Instant, Reply)> {
        let job = match self.job(call) {
            Ok(job) => job,
            Err(errno) => return Some((Instant::now(), failed(errno))),
        };
        // The thread lives as long as the sender.
        let _ = self.jobs.send(job);
        match self.answers.recv_timeout(patience) {
            Ok(answer) => Some(self.take(answer)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// The answer of a call that waited.
    pub(super) fn poll(&mut self) -> Option<(Instant, Reply)> {
        self.answers.try_recv().ok().map(|answer| self.take(answer))
    }

    fn take(&mut self, answer: Answer) -> (Instant, Reply) {
        // Empty already if nobody slept on it.
        let _ = rustix::io::read(&self.answered, &mut [0; 8]);
        let mut reply = answer.reply;
        let numbers: Vec<_> = answer.opened.iter().map(AsRawFd::as_raw_fd).collect();
        match numbers[..] {
            [one] => reply.result = one.into(),
            [reader, writer] => reply.ends = [reader, writer],
            _ => {}
        }
        self.open.extend(numbers.into_iter().zip(answer.opened.into_iter().map(Arc::new)));
        (answer.at, reply)
    }

    fn fd(&self, fd: i32) -> Result<Arc<OwnedFd>> {
        self.open.get(&fd).cloned().ok_or(Errno::BADF)
    }

    fn job(&mut self, call: Call) -> Result<Job> {
        Ok(match call {
            Call::Socket(domain, kind, protocol) => {
                Box::new(move || opened(open_socket(domain, kind, protocol)))
            }
            Call::Accept(fd, flags) => {
                let fd = self.fd(fd)?;
                let flags = SocketFlags::from_bits_retain(flags as u32);
                Box::new(move || opened(rustix::net::accept_with(&fd, flags)))
            }
            Call::EpollCreate(flags) => {
                let flags = epoll::CreateFlags::from_bits_retain(flags as u32);
                Box::new(move || opened(epoll::create(flags)))
            }
            Call::Pipe => Box::new(move || match rustix::pipe::pipe() {
                Ok((reader, writer)) => (Reply::ok(0), vec![reader, writer]),
                Err(errno) => (failed(errno), Vec::new()),
            }),
            Call::Splice(from, to, len, flags) => {
                let (from, to) = (self.fd(from)?, self.fd(to)?);
                let flags = SpliceFlags::from_bits_retain(flags);
                plain(move || rustix::pipe::splice(&from, None, &to, None, len, flags))
            }
            Call::Close(fd) => {
                let fd = self.open.remove(&fd).ok_or(Errno::BADF)?;
                Box::new(move || {
                    drop(fd);
                    (Reply::ok(0), Vec::new())
                })
            }
            Call::Poll(entries, timeout) => {
                let fds: Vec<_> =
                    entries.iter().map(|entry| self.open.get(&entry.fd).cloned()).collect();
                Box::new(move || (poll(&entries, &fds, timeout), Vec::new()))
            }
            Call::EpollControl(epoll, operation, fd, event) => {
                let (epoll, fd) = (self.fd(epoll)?, self.fd(fd)?);
                plain(move || control(&epoll, operation, &fd, event).map(|()| 0))
            }
            Call::EpollWait(epoll, most, timeout) => {
                let epoll = self.fd(epoll)?;
                Box::new(move || (wait(&epoll, most, timeout).unwrap_or_else(failed), Vec::new()))
            }
            other => self.socket_job(other)?,
        })
    }

    fn socket_job(&self, call: Call) -> Result<Job> {
        Ok(match call {
            Call::Bind(fd, address) => {
                let fd = self.fd(fd)?;
                plain(move || rustix::net::bind(&fd, &address).map(|()| 0))
            }
            Call::Listen(fd, backlog) => {
                let fd = self.fd(fd)?;
                plain(move || rustix::net::listen(&fd, backlog).map(|()| 0))
            }
            Call::Connect(fd, address) => {
                let fd = self.fd(fd)?;
                plain(move || rustix::net::connect(&fd, &address).map(|()| 0))
            }
            Call::Shutdown(fd, how) => {
                let fd = self.fd(fd)?;
                let how = match how {
                    0 => Shutdown::Read,
                    1 => Shutdown::Write,
                    2 => Shutdown::Both,
                    _ => return Err(Errno::INVAL),
                };
                plain(move || rustix::net::shutdown(&fd, how).map(|()| 0))
            }
            Call::Receive(fd, sizes, flags) => {
                let fd = self.fd(fd)?;
                Box::new(move || {
                    (receive(&fd, &sizes, 0, flags).unwrap_or_else(failed), Vec::new())
                })
            }
            Call::ReceiveMessage(fd, sizes, room, flags) => {
                let fd = self.fd(fd)?;
                Box::new(move || {
                    (receive(&fd, &sizes, room, Some(flags)).unwrap_or_else(failed), Vec::new())
                })
            }
            Call::Send(fd, pieces, flags, address) => {
                let fd = self.fd(fd)?;
                plain(move || {
                    let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
                    let Some(flags) = flags else { return rustix::io::writev(&fd, &slices) };
                    let flags = SendFlags::from_bits_retain(flags as u32);
                    let mut none = SendAncillaryBuffer::default();
                    match address {
                        Some(to) => rustix::net::sendmsg_addr(&fd, &to, &slices, &mut none, flags),
                        None => rustix::net::sendmsg(&fd, &slices, &mut none, flags),
                    }
                })
            }
            other => self.setting_job(other)?,
        })
    }

    fn setting_job(&self, call: Call) -> Result<Job> {
        Ok(match call {
            Call::GetOption(fd, level, name, len) => {
                let fd = self.fd(fd)?;
                Box::new(move || {
                    let mut value = vec![0; len];
                    let reply = match socket::option(&fd, level, name, &mut value) {
                        Ok(len) => {
                            value.truncate(len);
                            Reply::data(0, value)
                        }
                        Err(errno) => failed(errno),
                    };
                    (reply, Vec::new())
                })
            }
            Call::SetOption(fd, level, name, value) => {
                let fd = self.fd(fd)?;
                plain(move || socket::set_option(&fd, level, name, &value).map(|()| 0))
            }
            Call::Fcntl(fd, command, argument) => {
                let fd = self.fd(fd)?;
                plain(move || match command {
                    1 => rustix::io::fcntl_getfd(&fd).map(|flags| flags.bits() as usize),
                    2 => {
                        let flags = FdFlags::from_bits_retain(argument as u32);
                        rustix::io::fcntl_setfd(&fd, flags).map(|()| 0)
                    }
                    3 => rustix::fs::fcntl_getfl(&fd).map(|flags| flags.bits() as usize),
                    4 => {
                        let flags = OFlags::from_bits_retain(argument as u32);
                        rustix::fs::fcntl_setfl(&fd, flags).map(|()| 0)
                    }
                    _ => Err(Errno::INVAL),
                })
            }
            Call::Ioctl(fd, request, _) => {
                let fd = self.fd(fd)?;
                Box::new(move || (request_int(&fd, request), Vec::new()))
            }
            _ => return Err(Errno::NOSYS),
        })
    }
}

fn failed(errno: Errno) -> Reply {
    Reply::error(errno.raw_os_error())
}

fn opened(fd: Result<OwnedFd>) -> (Reply, Vec<OwnedFd>) {
    match fd {
        Ok(fd) => (Reply::ok(0), vec![fd]),
        Err(errno) => (failed(errno), Vec::new()),
    }
}

fn plain(call: impl FnOnce() -> Result<usize> + Send + 'static) -> Job {
    Box::new(move || {
        let reply = call().map_or_else(failed, |value| Reply::ok(value as i64));
        (reply, Vec::new())
    })
}

fn open_socket(domain: i32, kind: i32, protocol: i32) -> Result<OwnedFd> {
    let flags = kind as u32 & SocketFlags::all().bits();
    let kind = SocketType::from_raw(kind as u32 & !flags);
    let protocol = core::num::NonZeroU32::new(protocol as u32).map(Protocol::from_raw);
    let family = AddressFamily::from_raw(domain as u16);
    rustix::net::socket_with(family, kind, SocketFlags::from_bits_retain(flags), protocol)
}

fn receive(fd: &OwnedFd, sizes: &[usize], room: usize, flags: Option<i32>) -> Result<Reply> {
    let mut buffers: Vec<_> = sizes.iter().map(|&size| vec![0; size]).collect();
    let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
    let mut control = vec![0; room];
    let (len, flags) = match flags {
        None => (rustix::io::readv(fd, &mut slices)?, 0),
        Some(flags) => {
            let message = socket::receive_message(fd, &mut slices, &mut control, flags)?;
            control.truncate(message.control);
            (message.len, message.flags)
        }
    };
    let mut data = buffers.concat();
    data.truncate(len);
    Ok(Reply { flags, control, ..Reply::data(len as i64, data) })
}

fn request_int(fd: &OwnedFd, request: u32) -> Reply {
    let what = match request {
        0x541b => Queued::Siocinq,
        0x5411 => Queued::Siocoutq,
        0x894b => Queued::Siocoutqnsd,
        _ => return failed(Errno::NOTTY),
    };
    match socket::queued(fd, what) {
        Ok(value) => Reply::data(0, value.to_le_bytes().to_vec()),
        Err(errno) => failed(errno),
    }
}

fn timespec(millis: i32) -> Option<Timespec> {
    let millis = i64::from(millis);
    (millis >= 0).then(|| Timespec { tv_sec: millis / 1000, tv_nsec: (millis % 1000) * 1_000_000 })
}

fn poll(entries: &[PollEntry], fds: &[Option<Arc<OwnedFd>>], timeout: i32) -> Reply {
    let mut known = Vec::new();
    let mut entries = entries.to_vec();
    for (entry, fd) in entries.iter_mut().zip(fds) {
        match fd {
            Some(fd) => {
                known.push(PollFd::new(fd, PollFlags::from_bits_retain(entry.events as u16)));
            }
            None if entry.fd >= 0 => entry.revents = PollFlags::NVAL.bits() as i16,
            None => {}
        }
    }
    let timeout = timespec(timeout);
    if let Err(errno) = rustix::event::poll(&mut known, timeout.as_ref()) {
        return failed(errno);
    }
    let mut known = known.iter();
    for (entry, fd) in entries.iter_mut().zip(fds) {
        if fd.is_some() {
            entry.revents = known.next().map_or(0, |found| found.revents().bits() as i16);
        }
    }
    let ready = entries.iter().filter(|entry| entry.revents != 0).count();
    Reply { entries, ..Reply::ok(ready as i64) }
}

fn control(epoll: &OwnedFd, operation: i32, fd: &OwnedFd, event: EpollEvent) -> Result<()> {
    let flags = epoll::EventFlags::from_bits_retain(event.events);
    let data = epoll::EventData::new_u64(event.data);
    match operation {
        1 => epoll::add(epoll, fd, data, flags),
        2 => epoll::delete(epoll, fd),
        3 => epoll::modify(epoll, fd, data, flags),
        _ => Err(Errno::INVAL),
    }
}

fn wait(epoll: &OwnedFd, most: usize, timeout: i32) -> Result<Reply> {
    let mut events =
        vec![
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
            most
        ];
    let timeout = timespec(timeout);
    let count = epoll::wait(epoll, &mut events[..], timeout.as_ref())?;
    let events = events[..count]
        .iter()
        .map(|event| EpollEvent { events: { event.flags }.bits(), data: { event.data }.u64() })
        .collect();
    Ok(Reply { events, ..Reply::ok(count as i64) })
}
