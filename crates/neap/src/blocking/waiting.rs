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
    pub(crate) fn deadline(timeout: &AtomicU64) -> Instant {
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

/// Tries until the call does not refuse for want of readiness, or the time is over.
pub(crate) fn wait<T, E: Clone + PartialEq>(
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
