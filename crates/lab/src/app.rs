//! Applications: state machines that write and read as a plan says, and check what they read.

pub(crate) mod page;
mod sink;
mod source;
pub mod traffic;
mod udp;
mod wire;
pub mod writer;

pub use sink::Sink;
pub use source::Source;
pub use udp::{Listener, Talker};

use crate::pattern::Pattern;
use crate::rng::{Ppm, Rng};
use bytes::Bytes;
use core::net::SocketAddr;
use neap_stack::listener::ListenerHandle;
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack};
use neap_tcp::connection::{ConnectionError, ReadError, WriteError};
use neap_tcp::time::{Instant, Nanos};
use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;

/// What an application did in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When it wants a turn even if nothing happens on its host.
    pub next: Instant,
    /// It changed something, so the host may have more to do.
    pub did: bool,
}

impl Step {
    /// Nothing to do until something happens.
    pub const IDLE: Self = Self { next: Instant::FAR_FUTURE, did: false };
}

/// An application. It gets a turn after everything that happens on its host, unless it
/// [sleeps](Self::sleeps), and must do all it can.
pub trait App {
    /// One turn.
    fn step(&mut self, stack: &Stack, now: Instant) -> Step;

    /// Whether it promises to call `waker` when it has something to do, or to say when in
    /// [`Step::next`]; then it gets a turn only at the start and at these times. Asked once.
    fn sleeps(&mut self, waker: &Waker) -> bool {
        let _ = waker;
        false
    }
}

/// How an application writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writing {
    /// What.
    pub pattern: Pattern,
    /// How much; `u64::MAX` for ever.
    pub bytes: u64,
    /// Least and most bytes of one write.
    pub chunk: (u64, u64),
    /// Writes of `Bytes` instead of copies.
    pub zero_copy: Ppm,
    /// Writes after which the application rests.
    pub pause: Ppm,
    /// For how long at the most.
    pub rest: Nanos,
    /// Writes only in answer to what was read.
    pub turns: Option<Turns>,
}

/// Request and response: `ahead + read / per` times `bytes` may have been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Bytes of one message.
    pub bytes: u64,
    /// Bytes of the peer's message.
    pub per: u64,
    /// Messages before the first answer: 1 for who asks, 0 for who answers.
    pub ahead: u64,
}

/// How an application reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// What must come.
    pub pattern: Pattern,
    /// Least and most bytes of one read.
    pub chunk: (u64, u64),
    /// Reads of `Bytes` instead of copies.
    pub zero_copy: Ppm,
    /// Reads after which the application rests.
    pub pause: Ppm,
    /// For how long at the most.
    pub rest: Nanos,
    /// Nothing is read for so long at first.
    pub late: Nanos,
}

/// How an application leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// `shutdown` after the last byte, close after the peer's.
    HalfClose,
    /// Close after the last byte, whatever the peer does.
    Close,
    /// Reset once so many bytes were written and read, together.
    Abort(u64),
    /// Not at all.
    Stay,
}

/// What one end of a connection does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its writes.
    pub writing: Writing,
    /// Its reads.
    pub reading: Reading,
    /// Its end.
    pub ending: Ending,
}

/// What has become of a plan.
#[derive(Debug, Default)]
pub struct Log {
    /// The connection, while it is open.
    pub handle: Option<TcpHandle>,
    /// Bytes that the stack took.
    pub written: u64,
    /// Bytes that came.
    pub read: u64,
    /// The first byte that was not what the pattern says.
    pub wrong_at: Option<u64>,
    /// The peer's end was read.
    pub at_end: bool,
    /// Why it failed.
    pub error: Option<ConnectionError>,
    /// The application has left.
    pub is_over: bool,
}

/// A log that the application and the experiment share.
pub type SharedLog = Rc<RefCell<Log>>;

/// One end of an open connection with its plan.
struct Session {
    handle: TcpHandle,
    plan: Plan,
    log: SharedLog,
    rng: Rng,
    /// Generated and not yet taken.
    waiting: Bytes,
    buffer: Vec<u8>,
    rests_until: (Instant, Instant),
    /// The handshake is over.
    is_open: bool,
    has_shut: bool,
}

/// Whether a part of a session can go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Again,
    Waits,
}

impl Session {
    fn new(handle: TcpHandle, plan: Plan, log: SharedLog, rng: Rng, now: Instant) -> Self {
        log.borrow_mut().handle = Some(handle.clone());
        let rests_until = (now, now + plan.reading.late);
        let (waiting, buffer) = (Bytes::new(), Vec::new());
        let (is_open, has_shut) = (false, false);
        Self { handle, plan, log, rng, waiting, buffer, rests_until, is_open, has_shut }
    }

    fn step(&mut self, now: Instant) -> Step {
        let mut did = false;
        while !self.log.borrow().is_over {
            let wrote = self.write(now);
            let read = self.read(now);
            self.leave(now);
            if wrote == Turn::Waits && read == Turn::Waits {
                break;
            }
            did = true;
        }
        let (write, read) = self.rests_until;
        let later = |at: Instant| if at > now { at } else { Instant::FAR_FUTURE };
        Step { next: later(write).min(later(read)), did }
    }

    /// Bytes that may have been written by now.
    fn allowance(&self) -> u64 {
        let Writing { bytes, turns, .. } = &self.plan.writing;
        let Some(turns) = turns else { return *bytes };
        let messages = turns.ahead + self.log.borrow().read / turns.per.max(1);
        messages.saturating_mul(turns.bytes).min(*bytes)
    }

    fn write(&mut self, now: Instant) -> Turn {
        let ready = self.handle.readiness().bits();
        self.is_open |= ready.contains(Ready::WRITABLE);
        let written = self.log.borrow().written;
        let allowed = self.allowance() - written;
        let must_wait = self.rests_until.0 > now || !ready.contains(Ready::WRITABLE);
        if must_wait || self.has_shut || allowed == 0 {
            return Turn::Waits;
        }
        if self.waiting.is_empty() {
            let (low, high) = self.plan.writing.chunk;
            let mut chunk = vec![0; self.rng.log_range(low, high).min(allowed) as usize];
            self.plan.writing.pattern.fill(written, &mut chunk);
            self.waiting = chunk.into();
        }
        let wrote = if self.rng.chance(self.plan.writing.zero_copy) {
            self.handle.write_bytes(now, &mut self.waiting)
        } else {
            let wrote = self.handle.write(now, &self.waiting);
            if let Ok(n) = wrote {
                bytes::Buf::advance(&mut self.waiting, n);
            }
            wrote
        };
        match wrote {
            Ok(n) => {
                self.log.borrow_mut().written += n as u64;
                if self.rng.chance(self.plan.writing.pause) {
                    self.rests_until.0 = now + self.rng.time(self.plan.writing.rest);
                }
                Turn::Again
            }
            Err(WriteError::WouldBlock) => Turn::Waits,
            Err(WriteError::Closed) => self.fail(None),
            Err(WriteError::Failed(error)) => self.fail(Some(error)),
        }
    }

    fn read(&mut self, now: Instant) -> Turn {
        let ready = self.handle.readiness().bits();
        let may = Ready::READABLE | Ready::ERROR;
        let at_end = self.log.borrow().at_end;
        if self.rests_until.1 > now || at_end || !ready.intersects(may) {
            return Turn::Waits;
        }
        let result = if self.rng.chance(self.plan.reading.zero_copy) {
            self.handle.read_bytes(now).map(|data| data.map(|data| self.check(&data)))
        } else {
            let (low, high) = self.plan.reading.chunk;
            let mut buffer = core::mem::take(&mut self.buffer);
            buffer.resize(self.rng.log_range(low, high) as usize, 0);
            let result = self.handle.read(now, &mut buffer);
            let result = result.map(|n| (n > 0).then(|| self.check(&buffer[..n])));
            self.buffer = buffer;
            result
        };
        match result {
            Ok(Some(())) => {
                if self.rng.chance(self.plan.reading.pause) {
                    self.rests_until.1 = now + self.rng.time(self.plan.reading.rest);
                }
                Turn::Again
            }
            Ok(None) => {
                self.log.borrow_mut().at_end = true;
                Turn::Again
            }
            Err(ReadError::WouldBlock) => Turn::Waits,
            Err(ReadError::Failed(error)) => self.fail(Some(error)),
        }
    }

    fn check(&mut self, data: &[u8]) {
        let mut log = self.log.borrow_mut();
        let at = log.read;
        if let Some(offset) = self.plan.reading.pattern.mismatch(at, data) {
            log.wrong_at.get_or_insert(at + offset as u64);
        }
        log.read += data.len() as u64;
    }

    fn fail(&mut self, error: Option<ConnectionError>) -> Turn {
        let mut log = self.log.borrow_mut();
        log.error = error.or(log.error).or(Some(ConnectionError::Aborted));
        log.is_over = true;
        log.handle = None;
        Turn::Waits
    }

    /// Ends the connection when the plan says so.
    fn leave(&mut self, now: Instant) {
        let mut log = self.log.borrow_mut();
        if log.is_over || !self.is_open {
            return;
        }
        let has_written = log.written >= self.plan.writing.bytes;
        log.is_over = match self.plan.ending {
            Ending::Abort(after) if log.written + log.read >= after => {
                self.handle.abort(now);
                true
            }
            Ending::Stay => false,
            Ending::Close if has_written => {
                self.handle.close(now);
                true
            }
            _ => {
                if has_written && !self.has_shut {
                    self.has_shut = true;
                    self.handle.shutdown_write(now);
                }
                let is_over = self.has_shut && log.at_end;
                if is_over {
                    self.handle.close(now);
                }
                is_over
            }
        };
        if log.is_over {
            log.handle = None;
        }
    }
}

/// Opens a connection and follows its plan.
pub struct Client {
    remote: SocketAddr,
    options: ConnectOptions,
    at: Instant,
    start: Option<(Plan, Rng)>,
    log: SharedLog,
    session: Option<Session>,
}

impl Client {
    /// Connects to `remote` at the time `at`.
    pub fn new(
        remote: SocketAddr,
        options: ConnectOptions,
        at: Instant,
        plan: Plan,
        rng: Rng,
    ) -> (Self, SharedLog) {
        let log = SharedLog::default();
        let start = Some((plan, rng));
        (Self { remote, options, at, start, log: log.clone(), session: None }, log)
    }
}

impl App for Client {
    fn step(&mut self, stack: &Stack, now: Instant) -> Step {
        if now < self.at {
            return Step { next: self.at, did: false };
        }
        let mut did = false;
        if let Some((plan, rng)) = self.start.take() {
            did = true;
            match stack.connect(now, self.remote, self.options.clone()) {
                Ok(handle) => {
                    let log = self.log.clone();
                    self.session = Some(Session::new(handle, plan, log, rng, now));
                }
                Err(error) => {
                    let mut log = self.log.borrow_mut();
                    log.is_over = true;
                    log.error = Some(match error {
                        SocketError::NetworkUnreachable => ConnectionError::NetworkUnreachable,
                        _ => ConnectionError::Aborted,
                    });
                }
            }
        }
        step_session(&mut self.session, now, did)
    }
}

/// One turn of a session, which is dropped when it is over.
fn step_session(session: &mut Option<Session>, now: Instant, did: bool) -> Step {
    let Some(open) = session else { return Step { did, ..Step::IDLE } };
    let step = open.step(now);
    let is_over = open.log.borrow().is_over;
    if is_over {
        *session = None;
    }
    Step { did: step.did || did || is_over, ..step }
}

/// Accepts one connection and follows its plan.
pub struct Server {
    listener: Option<ListenerHandle>,
    start: Option<(Plan, Rng)>,
    log: SharedLog,
    session: Option<Session>,
}

impl Server {
    /// Listens on `local` of this host.
    ///
    /// # Errors
    /// As [`Stack::listen`].
    pub fn new(
        stack: &Stack,
        local: SocketAddr,
        options: ListenOptions,
        plan: Plan,
        rng: Rng,
    ) -> Result<(Self, SharedLog), SocketError> {
        let listener = Some(stack.listen(local, options)?);
        let log = SharedLog::default();
        let start = Some((plan, rng));
        Ok((Self { listener, start, log: log.clone(), session: None }, log))
    }
}

impl App for Server {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        let mut did = false;
        let accepted = self.listener.as_ref().and_then(|listener| listener.accept().ok());
        if let Some((handle, _)) = accepted {
            did = true;
            if let Some((plan, rng)) = self.start.take() {
                self.session = Some(Session::new(handle, plan, self.log.clone(), rng, now));
            }
            if let Some(listener) = self.listener.take() {
                listener.close(now);
            }
        }
        step_session(&mut self.session, now, did)
    }
}
