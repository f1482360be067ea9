//! Sessions: single connections whose two ends each follow a plan of writing, reading and resting.
//!
//! Random choices are drawn while a session runs. Each end checks what it reads.

use super::App;
use super::client::Client;
use super::server::{Acceptor, Server};
use super::stream::{Failed, Stream};
use super::task::{Task, Turn};
use crate::pattern::Pattern;
use crate::rng::{Ppm, Rng};
use core::net::SocketAddr;
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack};
use neap_tcp::connection::{ConnectionError, ReadError};
use neap_tcp::time::{Instant, Nanos};
use std::cell::RefCell;
use std::rc::Rc;

/// Plan by which an application writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writing {
    /// Bytes that it writes.
    pub pattern: Pattern,
    /// Number of bytes; `u64::MAX` is without end.
    pub bytes: u64,
    /// Least and most bytes of one write.
    pub chunk: (u64, u64),
    /// Share of the writes that give `Bytes` instead of a copy.
    pub zero_copy: Ppm,
    /// Share of the writes after which the application rests.
    pub pause: Ppm,
    /// The longest rest.
    pub rest: Nanos,
    /// Rule for an end that writes only in answer to what it has read.
    pub turns: Option<Turns>,
}

/// Turns of request and response: `ahead + read / per` times `bytes` may have been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Bytes of one message.
    pub bytes: u64,
    /// Bytes of the peer's message.
    pub per: u64,
    /// Messages before the first answer: 1 for the end that asks, 0 for the end that answers.
    pub ahead: u64,
}

/// Plan by which an application reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Bytes that have to come.
    pub pattern: Pattern,
    /// Least and most bytes of one read.
    pub chunk: (u64, u64),
    /// Share of the reads that take `Bytes` instead of a copy.
    pub zero_copy: Ppm,
    /// Share of the reads after which the application rests.
    pub pause: Ppm,
    /// The longest rest.
    pub rest: Nanos,
    /// Time after the start in which the application reads nothing.
    pub late: Nanos,
}

/// Way in which an application leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// `shutdown` after its last byte, and close after the peer's.
    HalfClose,
    /// Close after its last byte, whatever the peer does.
    Close,
    /// Reset once this many bytes were written and read together.
    Abort(u64),
    /// The application does not leave.
    Stay,
}

/// Plan of one end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How this end writes.
    pub writing: Writing,
    /// How this end reads.
    pub reading: Reading,
    /// How this end leaves.
    pub ending: Ending,
}

/// Record of one end of a session.
#[derive(Debug, Default)]
pub struct SessionLog {
    /// The connection, while it is open.
    pub handle: Option<TcpHandle>,
    /// Bytes that the stack took.
    pub written: u64,
    /// Bytes that this end has read.
    pub read: u64,
    /// First byte that was not that of the pattern.
    pub wrong_at: Option<u64>,
    /// Whether the end of the peer's stream was read.
    pub at_end: bool,
    /// Error with which the connection failed.
    pub error: Option<ConnectionError>,
    /// Whether the application has left.
    pub is_over: bool,
}

/// Log that the application and its observers share.
pub type SharedSessionLog = Rc<RefCell<SessionLog>>;

/// Returns the application that connects to `remote` at `start` and follows `plan`, and its log.
pub fn client(
    remote: SocketAddr,
    options: ConnectOptions,
    start: Instant,
    plan: Plan,
    rng: Rng,
) -> (impl App + use<>, SharedSessionLog) {
    let log = SharedSessionLog::default();
    let end = SessionEnd::new(plan, log.clone(), rng);
    (Client::new(remote, options, start, end), log)
}

/// Returns the application that listens on `local` of this host, accepts one connection and follows
/// `plan`, and its log.
///
/// # Errors
/// Those of [`Stack::listen`].
pub fn server(
    stack: &Stack,
    local: SocketAddr,
    options: ListenOptions,
    plan: Plan,
    rng: Rng,
) -> Result<(impl App + use<>, SharedSessionLog), SocketError> {
    let listener = stack.listen(local, options)?;
    let log = SharedSessionLog::default();
    let acceptor = OneSession { end: Some(SessionEnd::new(plan, log.clone(), rng)) };
    Ok((Server::new(listener, acceptor), log))
}

/// The acceptor of one connection.
struct OneSession {
    end: Option<SessionEnd>,
}

impl Acceptor for OneSession {
    type Task = SessionEnd;

    fn sleeps(&self) -> bool {
        false
    }

    fn tick(&self) -> Option<Nanos> {
        None
    }

    fn accept(&mut self, _: Instant, _: SocketAddr) -> SessionEnd {
        self.end.take().expect("an acceptor that is full accepts nothing")
    }

    fn is_full(&self) -> bool {
        self.end.is_none()
    }
}

/// One end of a session. It polls: the moments at which it draws are those of its host's turns.
struct SessionEnd {
    plan: Plan,
    log: SharedSessionLog,
    rng: Rng,
    buffer: Vec<u8>,
    writes_again: Instant,
    reads_again: Instant,
    /// The handshake is over.
    is_open: bool,
    has_shut: bool,
}

/// Whether reading or writing can go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Again,
    Waits,
}

impl SessionEnd {
    fn new(plan: Plan, log: SharedSessionLog, rng: Rng) -> Self {
        Self {
            plan,
            log,
            rng,
            buffer: Vec::new(),
            writes_again: Instant::ZERO,
            reads_again: Instant::ZERO,
            is_open: false,
            has_shut: false,
        }
    }

    /// Bytes that may have been written when so many were read.
    fn allowance(&self, read: u64) -> u64 {
        let Writing { bytes, turns, .. } = &self.plan.writing;
        let Some(turns) = turns else { return *bytes };
        let messages = turns.ahead + read / turns.per.max(1);
        messages.saturating_mul(turns.bytes).min(*bytes)
    }

    fn write(&mut self, now: Instant, stream: &mut Stream) -> Result<Progress, Failed> {
        let ready = stream.handle.readiness().bits();
        self.is_open |= ready.contains(Ready::WRITABLE);
        let allowed = self.allowance(stream.read) - stream.written;
        let must_wait = self.writes_again > now || !ready.contains(Ready::WRITABLE);
        if must_wait || self.has_shut || allowed == 0 {
            return Ok(Progress::Waits);
        }
        let writing = &self.plan.writing;
        if stream.pending.is_empty() {
            let (low, high) = writing.chunk;
            let mut chunk = vec![0; self.rng.log_range(low, high).min(allowed) as usize];
            writing.pattern.fill(stream.written, &mut chunk);
            stream.pending = chunk.into();
        }
        let copies = !self.rng.chance(writing.zero_copy);
        if !stream.write_pending(now, copies)? {
            return Ok(Progress::Waits);
        }
        if self.rng.chance(writing.pause) {
            self.writes_again = now + self.rng.time(writing.rest);
        }
        Ok(Progress::Again)
    }

    fn read(&mut self, now: Instant, stream: &mut Stream) -> Result<Progress, Failed> {
        let ready = stream.handle.readiness().bits();
        let may = Ready::READABLE | Ready::ERROR;
        let at_end = self.log.borrow().at_end;
        if self.reads_again > now || at_end || !ready.intersects(may) {
            return Ok(Progress::Waits);
        }
        let reading = &self.plan.reading;
        let result = if self.rng.chance(reading.zero_copy) {
            stream.handle.read_bytes(now).map(|data| data.map(|data| self.check(stream, &data)))
        } else {
            let (low, high) = reading.chunk;
            let mut buffer = core::mem::take(&mut self.buffer);
            buffer.resize(self.rng.log_range(low, high) as usize, 0);
            let result = stream.handle.read(now, &mut buffer);
            let result = result.map(|n| (n > 0).then(|| self.check(stream, &buffer[..n])));
            self.buffer = buffer;
            result
        };
        match result {
            Ok(Some(())) => {
                if self.rng.chance(self.plan.reading.pause) {
                    self.reads_again = now + self.rng.time(self.plan.reading.rest);
                }
                Ok(Progress::Again)
            }
            Ok(None) => {
                self.log.borrow_mut().at_end = true;
                Ok(Progress::Again)
            }
            Err(ReadError::WouldBlock) => Ok(Progress::Waits),
            Err(ReadError::Failed(error)) => Err(Failed(Some(error))),
        }
    }

    /// Counts what was read, and compares it with the pattern.
    fn check(&self, stream: &mut Stream, data: &[u8]) {
        if let Some(offset) = self.plan.reading.pattern.mismatch(stream.read, data) {
            self.log.borrow_mut().wrong_at.get_or_insert(stream.read + offset as u64);
        }
        stream.read += data.len() as u64;
    }

    /// Ends the connection when the plan says so; true if it did.
    fn leave(&mut self, now: Instant, stream: &Stream) -> bool {
        if !self.is_open {
            return false;
        }
        let has_written = stream.written >= self.plan.writing.bytes;
        match self.plan.ending {
            Ending::Abort(after) if stream.written + stream.read >= after => {
                stream.handle.abort(now);
                true
            }
            Ending::Stay => false,
            Ending::Close if has_written => true,
            _ => {
                if has_written && !self.has_shut {
                    self.has_shut = true;
                    stream.handle.shutdown_write(now);
                }
                self.has_shut && self.log.borrow().at_end
            }
        }
    }

    fn fail(&self, error: Option<ConnectionError>) {
        let mut log = self.log.borrow_mut();
        log.error = error.or(log.error).or(Some(ConnectionError::Aborted));
    }
}

impl Task for SessionEnd {
    fn sleeps(&self) -> bool {
        false
    }

    fn begin(&mut self, now: Instant, handle: &TcpHandle) {
        self.log.borrow_mut().handle = Some(handle.clone());
        (self.writes_again, self.reads_again) = (now, now + self.plan.reading.late);
    }

    fn turn(&mut self, now: Instant, stream: &mut Stream) -> Result<Turn, Failed> {
        let (mut did, mut is_over) = (false, false);
        while !is_over {
            // What has arrived is read even if nothing can be written any more.
            let (wrote, read) = (self.write(now, stream), self.read(now, stream));
            for failed in [&wrote, &read].into_iter().filter_map(|result| result.as_ref().err()) {
                self.fail(failed.0);
                is_over = true;
            }
            is_over = is_over || self.leave(now, stream);
            let again = |result| matches!(result, Ok(Progress::Again));
            if !again(wrote) && !again(read) {
                break;
            }
            did = true;
        }
        let later = |at: Instant| if at > now { at } else { Instant::FAR_FUTURE };
        let next = later(self.writes_again).min(later(self.reads_again));
        Ok(Turn { next, did, is_over })
    }

    fn note(&mut self, stream: &Stream) {
        let mut log = self.log.borrow_mut();
        (log.written, log.read) = (stream.written, stream.read);
    }

    fn end(&mut self, _: Instant, _: bool) {
        let mut log = self.log.borrow_mut();
        log.is_over = true;
        log.handle = None;
    }

    fn refuse(&mut self, _: Instant, error: SocketError) {
        self.fail(Some(match error {
            SocketError::NetworkUnreachable => ConnectionError::NetworkUnreachable,
            _ => ConnectionError::Aborted,
        }));
        self.log.borrow_mut().is_over = true;
    }
}
