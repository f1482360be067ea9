//! neap as a host for scripts: one stack whose device is the script, in virtual time.

use super::host::{Call, EpollEvent, Host, HostFailure, PollEntry, Reply, Sent};
use super::settings::Settings;
use bytes::Bytes;
use core::net::IpAddr;
use neap_stack::device::{
    Capabilities, Completed, Completion, Device, Medium, QueuePair, Received, RxChecksum, RxQueue,
    TxQueue,
};
use neap_stack::frame::Frame;
use neap_stack::interface::Address;
use neap_stack::posix::{self, Errno, Outcome, Posix, sockaddr};
use neap_stack::route::{Entry, Prefix, Route};
use neap_stack::stack::{Stack, StackConfig};
use neap_tcp::time::{Instant, Nanos};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// When scripts begin.
const START: Instant = Instant::from_nanos(1_000_000_000_000);

/// First descriptor; what is below belongs to nobody.
const FIRST_DESCRIPTOR: i32 = 3;

/// Polls at one instant after which the stack is thought to spin.
const MAX_POLLS: u32 = 20_000;

/// What is between the stack and the script.
#[derive(Debug, Default)]
struct Wire {
    sent: VecDeque<Sent>,
    arriving: VecDeque<Bytes>,
    completed: Completed,
}

/// The device's two halves and the runner share it.
#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<Wire>>);

impl Shared {
    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TxQueue for Shared {
    fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame> {
        let mut wire = self.wire();
        wire.completed.frames += 1;
        wire.completed.bytes += frame.len() as u64;
        wire.sent.push_back(Sent { at: now.since(START), packet: frame.to_bytes() });
        Ok(())
    }

    fn flush(&mut self, _now: Instant) {}

    fn reap(&mut self, _now: Instant) -> Completed {
        core::mem::take(&mut self.wire().completed)
    }

    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }
}

impl RxQueue for Shared {
    fn receive(&mut self, _now: Instant) -> Option<Received> {
        let data = self.wire().arriving.pop_front()?;
        Some(Received { data, gso_size: 0, checksum: RxChecksum::Unknown })
    }

    fn next_event(&self) -> Instant {
        if self.wire().arriving.is_empty() { Instant::FAR_FUTURE } else { Instant::ZERO }
    }
}

/// A call that has not returned, with what it has done so far.
#[derive(Debug)]
struct Waiting {
    call: Call,
    progress: Progress,
    until: Instant,
}

/// What a call has done so far.
#[derive(Debug, Default)]
struct Progress {
    call: posix::Call,
    /// What it has received.
    buffer: Vec<u8>,
}

/// neap in virtual time.
#[derive(Debug)]
pub struct Neap {
    posix: Posix,
    wire: Shared,
    now: Instant,
    /// When the stack wants to be polled.
    due: Instant,
    waiting: Option<Waiting>,
    reply: Option<(Nanos, Reply)>,
}

fn failure(error: impl core::fmt::Display) -> HostFailure {
    HostFailure(error.to_string())
}

impl Neap {
    /// A host with one interface, as the settings say.
    ///
    /// # Errors
    /// [`HostFailure`] for a sysctl that neap does not have.
    pub fn new(settings: &Settings) -> Result<Self, HostFailure> {
        let mut config = StackConfig { seed: 1, ..StackConfig::default() };
        for sysctl in &settings.sysctls {
            let set = config.config.set(&sysctl.name, &sysctl.value);
            set.map_err(|error| HostFailure(format!("{}: {error}", sysctl.at)))?;
        }
        let wire = Shared::default();
        let device = Device {
            name: "script".into(),
            capabilities: Capabilities {
                medium: Medium::Ip,
                mtu: settings.mtu,
                gso_max_size: 65_535,
                gso_max_segs: 65_535,
                checksum_tx: true,
                checksum_rx: false,
                completion: Completion::OnSubmit,
                pacing_shift: 10,
            },
            queues: vec![QueuePair {
                tx: Box::new(wire.clone()),
                rx: Box::new(wire.clone()),
                #[cfg(unix)]
                descriptor: None,
            }],
        };
        let stack = Stack::new(config).map_err(failure)?;
        let prefix = if settings.is_v6 { 64 } else { 16 };
        let address = Address::new(settings.local_ip, prefix).map_err(failure)?;
        let interface = stack.add_interface(START, device, &[address]).map_err(failure)?;
        let has_qdisc =
            settings.qdisc.as_ref().is_none_or(|qdisc| stack.set_qdisc(START, interface, qdisc));
        if !has_qdisc {
            return Err(failure("qdisc"));
        }
        let any: IpAddr = match settings.local_ip {
            IpAddr::V4(_) => [0; 4].into(),
            IpAddr::V6(_) => [0; 16].into(),
        };
        let everything = Prefix::new(any, 0).map_err(failure)?;
        if !stack.add_route(Entry {
            prefix: everything,
            metric: 0,
            route: Route {
                interface: interface.0,
                gateway: None,
                mtu: None,
                pref_src: Some(settings.local_ip),
            },
        }) {
            return Err(failure("route"));
        }
        let posix = Posix::new(stack, FIRST_DESCRIPTOR);
        Ok(Self { posix, wire, now: START, due: START, waiting: None, reply: None })
    }

    /// Does all that is due now.
    fn run(&mut self) -> Result<(), HostFailure> {
        for _ in 0..MAX_POLLS {
            let (due, _) = self.posix.stack().poll(0, self.now);
            self.due = due;
            let sent = self.wire.wire().sent.len();
            self.repeat();
            let is_quiet = self.wire.wire().sent.len() == sent && !self.posix.stack().has_work(0);
            if due > self.now && is_quiet {
                return Ok(());
            }
        }
        Err(failure("the stack has work for ever at one instant"))
    }

    /// Repeats the call that waits.
    fn repeat(&mut self) {
        let Some(mut waiting) = self.waiting.take() else { return };
        match self.perform(&waiting.call, &mut waiting.progress) {
            Ok(reply) => self.reply = Some((self.now.since(START), reply)),
            Err(until) => self.waiting = Some(Waiting { until, ..waiting }),
        }
    }

    /// Makes a call. `Err` says until when it waits.
    fn perform(&mut self, call: &Call, progress: &mut Progress) -> Result<Reply, Instant> {
        match self.try_call(call, progress) {
            Ok(Outcome::Done(reply)) => Ok(reply),
            Ok(Outcome::Wait(wait)) => Err(wait.until),
            Err(Errno(errno)) => Ok(Reply::error(errno)),
        }
    }

    fn try_call(&mut self, call: &Call, progress: &mut Progress) -> Result<Outcome<Reply>, Errno> {
        let (posix, now) = (&mut self.posix, self.now);
        let value = |value: i32| Ok(Outcome::Done(Reply::ok(value.into())));
        match call {
            Call::Socket(domain, kind, protocol) => value(posix.socket(*domain, *kind, *protocol)?),
            Call::Bind(fd, address) => {
                posix.bind(now, *fd, &sockaddr::encode(*address))?;
                value(0)
            }
            Call::Listen(fd, backlog) => {
                posix.listen(now, *fd, *backlog)?;
                value(0)
            }
            Call::Accept(fd, flags) => Ok(posix
                .accept(now, &mut progress.call, *fd, *flags)?
                .map(|accepted| Reply::ok(accepted.fd.into()))),
            Call::Connect(fd, address) => {
                let address = sockaddr::encode(*address);
                Ok(posix.connect(now, &mut progress.call, *fd, &address)?.map(|()| Reply::ok(0)))
            }
            Call::Shutdown(fd, how) => {
                posix.shutdown(now, *fd, *how)?;
                value(0)
            }
            Call::Close(fd) => {
                Ok(posix.close(now, &mut progress.call, *fd)?.map(|()| Reply::ok(0)))
            }
            Call::Receive(fd, sizes, flags) => self.receive(*fd, sizes, 0, *flags, progress),
            Call::ReceiveMessage(fd, sizes, room, flags) => {
                self.receive(*fd, sizes, *room, Some(*flags), progress)
            }
            Call::Send(fd, pieces, flags, address) => {
                let data = pieces.concat();
                let to = address.map(sockaddr::encode);
                let sent = match flags {
                    None => posix.write(now, &mut progress.call, *fd, &data)?,
                    Some(flags) => {
                        posix.send_to(now, &mut progress.call, *fd, &data, *flags, to.as_deref())?
                    }
                };
                Ok(sent.map(|len| Reply::ok(len as i64)))
            }
            other => self.try_other(other, progress),
        }
    }

    fn receive(
        &mut self,
        fd: i32,
        sizes: &[usize],
        control_room: usize,
        flags: Option<i32>,
        progress: &mut Progress,
    ) -> Result<Outcome<Reply>, Errno> {
        let Progress { call, buffer } = progress;
        buffer.resize(sizes.iter().sum(), 0);
        let mut control = vec![0; control_room];
        let received = match flags {
            None => self.posix.read(self.now, call, fd, buffer)?.map(|len| (len, 0, 0)),
            Some(flags) => {
                let buffers = (&mut buffer[..], &mut control[..]);
                let received = self.posix.recv_msg(self.now, call, fd, buffers, flags)?;
                received.map(|received| (received.len, received.flags, received.control))
            }
        };
        Ok(received.map(|(len, flags, control_len)| {
            let mut data = core::mem::take(buffer);
            data.truncate(len);
            control.truncate(control_len);
            Reply { flags, control, ..Reply::data(len as i64, data) }
        }))
    }

    fn try_other(&mut self, call: &Call, progress: &mut Progress) -> Result<Outcome<Reply>, Errno> {
        let (posix, now) = (&mut self.posix, self.now);
        Ok(Outcome::Done(match call {
            Call::GetOption(fd, level, name, len) => {
                let mut value = vec![0; *len];
                let len = posix.getsockopt(now, *fd, *level, *name, &mut value)?;
                value.truncate(len);
                Reply::data(0, value)
            }
            Call::SetOption(fd, level, name, value) => {
                posix.setsockopt(now, *fd, *level, *name, value)?;
                Reply::ok(0)
            }
            Call::Fcntl(fd, command, argument) => {
                Reply::ok(posix.fcntl(*fd, *command, (*argument).into())?.into())
            }
            Call::Ioctl(fd, request, argument) => {
                let value = posix.ioctl(now, *fd, (*request).into(), *argument)?;
                Reply::data(0, value.to_le_bytes().to_vec())
            }
            Call::EpollCreate(flags) => Reply::ok(posix.epoll_create1(*flags)?.into()),
            Call::EpollControl(epoll, operation, fd, event) => {
                let event = posix::EpollEvent { events: event.events, data: event.data };
                posix.epoll_ctl(*epoll, *operation, *fd, event)?;
                Reply::ok(0)
            }
            Call::EpollWait(epoll, most, timeout) => {
                let most = i32::try_from(*most).unwrap_or(i32::MAX);
                let events = posix.epoll_wait(now, &mut progress.call, *epoll, most, *timeout)?;
                return Ok(events.map(|events| {
                    let count = events.len() as i64;
                    let event = |event: posix::EpollEvent| EpollEvent {
                        events: event.events,
                        data: event.data,
                    };
                    Reply { events: events.into_iter().map(event).collect(), ..Reply::ok(count) }
                }));
            }
            Call::Poll(entries, timeout) => {
                let to = |entry: &PollEntry| posix::PollFd {
                    fd: entry.fd,
                    events: entry.events,
                    revents: 0,
                };
                let mut fds: Vec<_> = entries.iter().map(to).collect();
                let ready = posix.poll(now, &mut progress.call, &mut fds, *timeout)?;
                let from = |one: posix::PollFd| PollEntry {
                    fd: one.fd,
                    events: one.events,
                    revents: one.revents,
                };
                let entries = fds.into_iter().map(from).collect();
                return Ok(ready.map(|ready| Reply { entries, ..Reply::ok(ready as i64) }));
            }
            Call::Pipe => Reply { ends: posix.pipe2(0)?, ..Reply::ok(0) },
            Call::Splice(from, to, len, flags) => {
                let moved = posix.splice(now, &mut progress.call, (*from, *to), *len, *flags)?;
                return Ok(moved.map(|moved| Reply::ok(moved as i64)));
            }
            _ => return Err(Errno::EINVAL),
        }))
    }
}

impl Host for Neap {
    fn now(&self) -> Nanos {
        self.now.since(START)
    }

    fn wait(&mut self, until: Nanos) -> Result<(), HostFailure> {
        loop {
            self.run()?;
            if !self.wire.wire().sent.is_empty() || self.reply.is_some() {
                return Ok(());
            }
            let end = START + until;
            if self.now >= end {
                return Ok(());
            }
            let returns = self.waiting.as_ref().map_or(Instant::FAR_FUTURE, |one| one.until);
            self.now = self.due.min(returns).min(end).max(self.now);
        }
    }

    fn inject(&mut self, packet: Bytes) -> Result<(), HostFailure> {
        self.wire.wire().arriving.push_back(packet);
        self.run()
    }

    fn take_sent(&mut self) -> Option<Sent> {
        self.wire.wire().sent.pop_front()
    }

    fn call(&mut self, call: Call, _lasts: bool) -> Result<Option<Reply>, HostFailure> {
        let mut progress = Progress::default();
        let reply = match self.perform(&call, &mut progress) {
            Ok(reply) => Some(reply),
            Err(until) => {
                self.waiting = Some(Waiting { call, progress, until });
                None
            }
        };
        self.run()?;
        Ok(reply)
    }

    fn take_reply(&mut self) -> Option<(Nanos, Reply)> {
        self.reply.take()
    }

    fn set_back(&mut self, _by: Nanos) {}

    fn slack(&self, _span: Nanos) -> Nanos {
        Nanos::ZERO
    }
}
