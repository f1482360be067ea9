//! Host that is neap in virtual time.

use crate::ast::Script;
use crate::cursor::SyntaxError;
use crate::host::{Host, HostFailure, Reply, SentPacket, SystemCall};
use crate::machine::{EndlessWork, Machine, START};
use crate::report::Failure;
use crate::runner;
use crate::settings::Settings;
use bytes::Bytes;
use neap_posix::abi::FIONBIO;
use neap_posix::{Errno, Fd, Outcome};
use neap_stack::interface::Address;
use neap_stack::stack::StackConfig;
use neap_stack::wait::Condition;
use neap_tcp::time::{Instant, Nanos};

/// First descriptor: what a process has open from the start comes before.
const FIRST_FD: Fd = 3;

/// How often the stack and a call that blocks may make work for each other at one instant.
const MAX_ROUNDS: u32 = 20_000;

/// A system call that has begun.
#[derive(Debug)]
struct StartedCall {
    call: SystemCall,
    /// What the socket face keeps of a call from one attempt to the next.
    progress: neap_posix::Call,
    /// Bytes received so far.
    received: Vec<u8>,
    /// When it returns at the latest, once it blocks.
    until: Instant,
}

/// Host that runs the calls of a script on a [`Machine`].
#[derive(Debug)]
pub struct VirtualHost {
    machine: Machine,
    blocked: Option<StartedCall>,
    /// The reply of the call that blocked, and when it returned.
    late_reply: Option<(Nanos, Reply)>,
}

fn failure(error: impl core::fmt::Display) -> HostFailure {
    HostFailure(error.to_string())
}

impl VirtualHost {
    /// Returns a host with one interface, as the settings say.
    ///
    /// # Errors
    /// [`Failure::Syntax`] for a sysctl that neap does not have, [`Failure::Host`] for a stack that
    /// cannot be made.
    pub fn new(settings: &Settings) -> Result<Self, Failure> {
        let mut config = StackConfig { seed: 1, ..StackConfig::default() };
        for sysctl in &settings.sysctls {
            let set = config.config.set(&sysctl.name, &sysctl.value);
            set.map_err(|error| SyntaxError { at: sysctl.at, what: error.to_string() })?;
        }
        let mut machine = Machine::new(config, settings.mtu, FIRST_FD).map_err(failure)?;
        if let Some(qdisc) = &settings.qdisc {
            machine.set_qdisc(qdisc.clone());
        }
        let address = Address::new(settings.local_ip, if settings.is_v6 { 64 } else { 16 });
        machine.add_address(address.map_err(failure)?).map_err(failure)?;
        Ok(Self { machine, blocked: None, late_reply: None })
    }

    /// Does all that is due now, the call that blocks included.
    fn settle(&mut self) -> Result<(), HostFailure> {
        for _ in 0..MAX_ROUNDS {
            self.machine.poll().map_err(failure)?;
            let sent = self.machine.sent();
            let now = self.machine.now();
            // As a thread that sleeps, it looks again when it is woken, or its time is over.
            let is_awake = |one: &mut StartedCall| now >= one.until || one.progress.is_met();
            if let Some(started) = self.blocked.take_if(is_awake)
                && let Some(reply) = self.attempt(started)
            {
                self.late_reply = Some((self.machine.elapsed(), reply));
            }
            if self.machine.sent() == sent && !self.machine.stack().has_work(0) {
                return Ok(());
            }
        }
        Err(failure(EndlessWork))
    }

    /// Makes a call, or goes on with it. `None` if it blocks.
    fn attempt(&mut self, mut started: StartedCall) -> Option<Reply> {
        // What the first attempt transferred may have made room for more.
        for _ in 0..2 {
            match make_call(&mut self.machine, &mut started) {
                Ok(Outcome::Done(reply)) => return Some(reply),
                Ok(Outcome::Wait(until)) => started.until = until,
                Err(errno) => return Some(Reply::error(errno)),
            }
        }
        self.blocked = Some(started);
        None
    }
}

/// Runs a script on neap in virtual time.
///
/// # Errors
/// [`Failure`]: the first difference, or that something cannot be run.
pub fn run(script: &Script) -> Result<(), Failure> {
    let settings = Settings::new(script)?;
    runner::run(script, &settings, &mut VirtualHost::new(&settings)?)
}

/// Makes a call once, as far as it goes without waiting.
fn make_call(machine: &mut Machine, started: &mut StartedCall) -> Result<Outcome<Reply>, Errno> {
    let now = machine.now();
    let posix = machine.posix();
    let StartedCall { call, progress, received, .. } = started;
    Ok(Outcome::Done(match call {
        SystemCall::Socket { domain, kind, protocol } => {
            Reply::ok(posix.socket(*domain, *kind, *protocol)?)
        }
        SystemCall::Bind { fd, address } => {
            posix.bind(now, *fd, address)?;
            Reply::ok(0)
        }
        SystemCall::Listen { fd, backlog } => {
            posix.listen(now, *fd, *backlog)?;
            Reply::ok(0)
        }
        SystemCall::Accept { fd, flags } => {
            let accepted = posix.accept(now, progress, *fd, *flags)?;
            return Ok(accepted.map(|accepted| Reply::ok(accepted.fd)));
        }
        SystemCall::Connect { fd, address } => {
            let connected = posix.connect(now, progress, *fd, address)?;
            return Ok(connected.map(|()| Reply::ok(0)));
        }
        SystemCall::Read { fd, sizes } => {
            received.resize(sizes.iter().sum(), 0);
            let read = posix.read(now, progress, *fd, received)?;
            return Ok(read.map(|len| {
                received.truncate(len);
                Reply { data: core::mem::take(received), ..Reply::count(len) }
            }));
        }
        SystemCall::Receive { fd, sizes, control_len, flags } => {
            received.resize(sizes.iter().sum(), 0);
            let mut control = vec![0; *control_len];
            let message = posix.recv_msg(now, progress, *fd, received, &mut control, *flags)?;
            return Ok(message.map(|message| {
                received.truncate(message.len);
                control.truncate(message.control);
                let data = core::mem::take(received);
                Reply { data, flags: message.flags, control, ..Reply::count(message.len) }
            }));
        }
        SystemCall::Write { fd, pieces } => {
            let written = posix.write(now, progress, *fd, &pieces.concat())?;
            return Ok(written.map(Reply::count));
        }
        SystemCall::Send { fd, pieces, flags, address } => {
            let (data, to) = (pieces.concat(), address.as_deref());
            let sent = posix.send_to(now, progress, *fd, &data, *flags, to)?;
            return Ok(sent.map(Reply::count));
        }
        SystemCall::Shutdown { fd, how } => {
            posix.shutdown(now, *fd, *how)?;
            Reply::ok(0)
        }
        SystemCall::Close { fd } => {
            return Ok(posix.close(now, progress, *fd)?.map(|()| Reply::ok(0)));
        }
        SystemCall::GetOption { fd, level, name, len } => {
            let mut value = vec![0; *len];
            let len = posix.getsockopt(now, *fd, *level, *name, &mut value)?;
            value.truncate(len);
            Reply { data: value, ..Reply::ok(0) }
        }
        SystemCall::SetOption { fd, level, name, value } => {
            posix.setsockopt(now, *fd, *level, *name, value)?;
            Reply::ok(0)
        }
        SystemCall::Fcntl { fd, command, argument } => {
            Reply::ok(posix.fcntl(*fd, *command, (*argument).into())?)
        }
        SystemCall::Ioctl { fd, request, argument } => {
            let request = u64::from(*request);
            let answer = posix.ioctl(now, *fd, request, *argument)?;
            let value = if request == FIONBIO { *argument } else { answer };
            Reply { data: value.to_le_bytes().to_vec(), ..Reply::ok(0) }
        }
        SystemCall::Poll { fds, timeout_ms } => {
            let ready = posix.poll(now, progress, fds, *timeout_ms)?;
            return Ok(ready.map(|ready| Reply { fds: fds.clone(), ..Reply::count(ready) }));
        }
        SystemCall::EpollCreate { size } => Reply::ok(posix.epoll_create(*size)?),
        SystemCall::EpollCreate1 { flags } => Reply::ok(posix.epoll_create1(*flags)?),
        SystemCall::EpollControl { epoll, operation, fd, event } => {
            posix.epoll_ctl(*epoll, *operation, *fd, *event)?;
            Reply::ok(0)
        }
        SystemCall::EpollWait { epoll, max_events, timeout_ms } => {
            let max = i32::try_from(*max_events).unwrap_or(i32::MAX);
            let events = posix.epoll_wait(now, progress, *epoll, max, *timeout_ms)?;
            return Ok(events.map(|events| {
                let count = events.len();
                Reply { events, ..Reply::count(count) }
            }));
        }
        SystemCall::Pipe => Reply { pipe: posix.pipe2(0)?, ..Reply::ok(0) },
        SystemCall::Splice { input, output, len, flags } => {
            let moved = posix.splice(now, progress, *input, *output, *len, *flags)?;
            return Ok(moved.map(Reply::count));
        }
    }))
}

impl Host for VirtualHost {
    fn now(&self) -> Nanos {
        self.machine.elapsed()
    }

    fn wait(&mut self, until: Nanos) -> Result<(), HostFailure> {
        let end = START + until;
        loop {
            self.settle()?;
            if self.machine.sent() > 0 || self.late_reply.is_some() || self.machine.now() >= end {
                return Ok(());
            }
            let returns = self.blocked.as_ref().map_or(Instant::FAR_FUTURE, |call| call.until);
            self.machine.advance(end.min(returns));
        }
    }

    fn inject(&mut self, packet: Bytes) -> Result<(), HostFailure> {
        if !self.machine.inject(packet) {
            return Err(failure("too many packets wait to be received"));
        }
        self.settle()
    }

    fn take_sent(&mut self) -> Option<SentPacket> {
        self.machine.take_sent()
    }

    fn call(&mut self, call: SystemCall, _will_block: bool) -> Result<Option<Reply>, HostFailure> {
        let until = self.machine.now();
        let progress = neap_posix::Call::new();
        let reply = self.attempt(StartedCall { call, progress, received: Vec::new(), until });
        self.settle()?;
        Ok(reply)
    }

    fn take_reply(&mut self) -> Option<(Nanos, Reply)> {
        self.late_reply.take()
    }

    fn set_clock_back(&mut self, _by: Nanos) -> Nanos {
        Nanos::ZERO
    }

    fn slack(&self, _span: Nanos) -> Nanos {
        Nanos::ZERO
    }
}
