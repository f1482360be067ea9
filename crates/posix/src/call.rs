//! State of one system call: its progress, and what it waits for.

use crate::Fd;
use crate::errno::Errno;
use crate::file::File;
use crate::table::Table;
use crate::watch::{CHANGED, READ, Seen, Watch, wanted};
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::wait::Condition;
use neap_tcp::time::{Instant, Nanos};
use smallvec::SmallVec;
use std::sync::Arc;
use std::task::Waker;

/// Result of an attempt of a call that may wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The call is over, with this result.
    Done(T),
    /// The call waits, at most until this time ([`Instant::FAR_FUTURE`] without a limit). Repeating
    /// it earlier does no harm.
    Wait(Instant),
}

impl<T> Outcome<T> {
    /// Applies `change` to the result of a call that is over.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Done(answer) => Outcome::Done(change(answer)),
            Self::Wait(until) => Outcome::Wait(until),
        }
    }

    /// Returns the result, or `None` if the call waits.
    pub fn done(self) -> Option<T> {
        match self {
            Self::Done(answer) => Some(answer),
            Self::Wait(_) => None,
        }
    }
}

/// A file that a call works on.
#[derive(Debug)]
struct Watching {
    file: Arc<File>,
    /// Its words before the latest attempt.
    seen: Seen,
    /// `POLL*` events that the call waits for; `None` if it does not wait for this file.
    events: Option<u32>,
    /// The call takes what comes: of several such calls one is woken by each thing.
    takes: bool,
}

impl Watching {
    /// Whether the file has changed since the attempt, so that another is worth it.
    fn has_changed(&self) -> bool {
        self.is_worth_a_look(&self.file.words())
    }

    fn is_worth_a_look(&self, words: &Seen) -> bool {
        let Some(events) = self.events else { return false };
        let interest = wanted(events);
        // The first word is the file's own: any change of it counts. Of the others a gain of what
        // is waited for does.
        let gained = words.iter().zip(&self.seen).enumerate().any(|(at, (now, seen))| {
            let counts = if at == 0 { CHANGED } else { interest };
            now.generation() != seen.generation() && now.bits().intersects(counts)
        });
        gained || words.len() != self.seen.len()
    }

    fn arm(&self, waker: &Waker, drives: bool) -> bool {
        let Some(events) = self.events else { return true };
        let words = self.file.words();
        // What nobody here waits for may have come since the attempt: only the present counts.
        if self.is_worth_a_look(&words) {
            return false;
        }
        match self.takes {
            true => self.file.register_exclusive(&words, wanted(events), waker, drives),
            false => self.file.register(&words, wanted(events), waker),
        }
    }
}

/// State of one system call, which the caller keeps while the call waits.
///
/// It holds the files of the call, as a thread in the kernel does: closing their descriptors does
/// not change the call. Each new call begins with a new `Call`.
#[derive(Debug, Default)]
pub struct Call {
    since: Option<Instant>,
    /// Bytes that were transferred. In a `connect` it is 1 if this call began the connection.
    pub(crate) done: usize,
    /// The connection that a `close` waits for (`SO_LINGER`). Its descriptor is gone already.
    pub(crate) lingers: Option<TcpHandle>,
    files: SmallVec<[Watching; 1]>,
}

impl Call {
    /// Returns the state of a call that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the call has waited.
    pub(crate) fn is_repeated(&self) -> bool {
        self.since.is_some()
    }

    /// The file of the descriptor. A call that has waited goes on with the file that it had.
    ///
    /// # Errors
    /// `EBADF`.
    pub(crate) fn file(&mut self, table: &Table, fd: Fd) -> Result<Arc<File>, Errno> {
        self.nth_file(0, table, fd)
    }

    /// As [`file`](Self::file) for a call with several descriptors, which are asked for in order.
    ///
    /// # Errors
    /// `EBADF`.
    pub(crate) fn nth_file(
        &mut self,
        at: usize,
        table: &Table,
        fd: Fd,
    ) -> Result<Arc<File>, Errno> {
        if self.is_repeated()
            && let Some(known) = self.files.get_mut(at)
        {
            known.seen = known.file.words();
            return Ok(known.file.clone());
        }
        let file = table.file(fd)?;
        self.files.truncate(at);
        let seen = file.words();
        self.files.push(Watching { file: file.clone(), seen, events: None, takes: false });
        Ok(file)
    }

    /// Forgets the files, for a call that looks its descriptors up at every attempt.
    pub(crate) fn forget_files(&mut self) {
        self.files.clear();
    }

    /// Waits for events of the file at this place, if the call waits.
    pub(crate) fn wait_for(&mut self, at: usize, events: u32) {
        if let Some(watching) = self.files.get_mut(at) {
            watching.events = Some(events);
        }
    }

    /// The end of a wait that may take `timeout`; `None` is forever.
    pub(crate) fn deadline(&mut self, now: Instant, timeout: Option<Nanos>) -> Instant {
        let since = *self.since.get_or_insert(now);
        timeout.map_or(Instant::FAR_FUTURE, |timeout| since + timeout)
    }

    /// Waits for events of the first file, up to a timeout; `None` when that is over.
    pub(crate) fn wait<T>(
        &mut self,
        now: Instant,
        timeout: Option<Nanos>,
        events: u32,
    ) -> Option<Outcome<T>> {
        self.wait_at(0, now, timeout, events)
    }

    /// As [`wait`](Self::wait) for the file at this place. The next attempt takes what comes.
    pub(crate) fn wait_at<T>(
        &mut self,
        at: usize,
        now: Instant,
        timeout: Option<Nanos>,
        events: u32,
    ) -> Option<Outcome<T>> {
        self.files.iter_mut().for_each(|watching| watching.events = None);
        self.wait_for(at, events);
        if let Some(watching) = self.files.get_mut(at) {
            // A writer leaves the error for a reader to take.
            watching.takes = events & READ != 0;
        }
        let until = self.deadline(now, timeout);
        (now < until).then_some(Outcome::Wait(until))
    }

    /// The shard whose driver brings what the call waits for.
    pub(crate) fn shard(&self) -> usize {
        if let Some(handle) = &self.lingers {
            return handle.shard();
        }
        let waits = self.files.iter().find(|watching| watching.events.is_some());
        waits.or(self.files.first()).map_or(0, |watching| watching.file.shard())
    }
}

/// Met when any of the files that the call waits for has changed since its latest attempt; for a
/// `close` that lingers, when its connection has nothing left that the peer must acknowledge.
impl Condition for Call {
    fn is_met(&mut self) -> bool {
        match &self.lingers {
            Some(handle) => handle.readiness().bits().contains(Ready::ALL_ACKED),
            None => self.files.iter().any(Watching::has_changed),
        }
    }

    fn arm(&mut self, waker: &Waker, drives: bool) -> bool {
        if let Some(handle) = &self.lingers {
            let seen = handle.readiness();
            return !seen.bits().contains(Ready::ALL_ACKED)
                && handle.register(seen, Ready::ALL_ACKED, waker);
        }
        self.files.iter().all(|watching| watching.arm(waker, drives))
    }

    fn disarm(&mut self, waker: &Waker) {
        if let Some(handle) = &self.lingers {
            return handle.unregister(waker);
        }
        let waits = self.files.iter().filter(|watching| watching.events.is_some());
        waits.for_each(|watching| watching.file.unregister(waker));
    }
}
