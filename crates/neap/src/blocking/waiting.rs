//! How the calls of one socket wait.

use crate::clock;
use crate::condition::Gained;
use crate::engine::Engine;
use neap_stack::socket::readiness::Ready;
use neap_stack::wait::{Drive, Source};
use neap_tcp::time::{Instant, Nanos};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub(crate) const WRITE_READY: Ready =
    Ready::WRITABLE.union(Ready::WRITE_CLOSED).union(Ready::ERROR);
/// The error queue has a record, or will have none.
pub(crate) const ERROR_READY: Ready = Ready::ERROR_QUEUE.union(Ready::READ_CLOSED);
pub(crate) const READ_READY: Ready = Ready::READABLE.union(Ready::READ_CLOSED).union(Ready::ERROR);

/// How the calls of one socket wait.
#[derive(Debug, Default)]
pub(crate) struct WaitMode {
    pub(crate) nonblocking: AtomicBool,
    /// Nanoseconds; 0 waits for ever.
    pub(crate) read_timeout: AtomicU64,
    pub(crate) write_timeout: AtomicU64,
}

impl WaitMode {
    fn deadline(timeout: &AtomicU64) -> Instant {
        match timeout.load(Relaxed) {
            0 => Instant::FAR_FUTURE,
            nanos => clock::now() + Nanos(nanos),
        }
    }

    pub(crate) fn set(timeout: &AtomicU64, duration: Option<Duration>) -> io::Result<()> {
        match duration {
            Some(Duration::ZERO) => Err(io::ErrorKind::InvalidInput.into()),
            Some(duration) => {
                timeout.store(Nanos::from(duration).0, Relaxed);
                Ok(())
            }
            None => {
                timeout.store(0, Relaxed);
                Ok(())
            }
        }
    }

    pub(crate) fn get(timeout: &AtomicU64) -> Option<Duration> {
        match timeout.load(Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }
}

/// A socket and the way in which its calls wait.
pub(crate) struct Caller<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) source: &'a dyn Source,
    pub(crate) mode: &'a WaitMode,
}

impl Caller<'_> {
    /// Tries until `attempt` answers something else than `would_block`, or `timeout` is over. In
    /// non-blocking mode it takes in what has arrived, and tries once more.
    pub(crate) fn wait_for<T, E: Clone + PartialEq>(
        &self,
        interest: Ready,
        timeout: Option<&AtomicU64>,
        would_block: &E,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        if !self.mode.nonblocking.load(Relaxed) {
            let deadline = timeout.map_or(Instant::FAR_FUTURE, WaitMode::deadline);
            return wait(self.engine, self.source, interest, deadline, would_block, attempt);
        }
        match attempt() {
            Err(refused) if refused == *would_block => {
                self.engine.look_in(self.source.shard());
                attempt()
            }
            done => done,
        }
    }
}

fn wait<T, E: Clone + PartialEq>(
    engine: &Engine,
    source: &dyn Source,
    interest: Ready,
    deadline: Instant,
    would_block: &E,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    loop {
        let seen = source.readiness();
        match attempt() {
            Err(refused) if refused == *would_block => {}
            done => return done,
        }
        let mut condition = Gained { source, interest, seen };
        if !engine.wait(source.shard(), deadline, &mut condition) {
            return Err(would_block.clone());
        }
    }
}
