//! Things that can be watched: events by Linux's numbers, and words that change.

use crate::abi::*;
use core::fmt::Debug;
use neap_stack::socket::readiness::{Ready, ReadyState};
use smallvec::SmallVec;
use std::task::Waker;

/// Readings of the words of something that can be watched: a socket's own, and that of the
/// socket of the stack behind it.
pub(crate) type Seen = SmallVec<[ReadyState; 2]>;

/// `POLL*` of something to read.
pub(crate) const READ: u32 = POLLIN | POLLRDNORM;
/// `POLL*` of room to write.
pub(crate) const WRITE: u32 = POLLOUT | POLLWRNORM;

/// Changes of the words of pipes and epoll sets, and of a socket that becomes another. Any change
/// is worth a look.
pub(crate) const CHANGED: Ready = Ready::READABLE;

/// What `poll` and epoll can watch (the `poll` of Linux's `struct file_operations`).
pub(crate) trait Watch: Debug + Send + Sync {
    /// What it is ready for, as `POLL*`.
    fn events(&self) -> u32;

    /// The words whose changes end a wait.
    fn words(&self) -> Seen;

    /// Leaves `waker` with each word; false if one has changed since `seen`.
    #[must_use = "false means: look again"]
    fn register(&self, seen: &[ReadyState], interest: Ready, waker: &Waker) -> bool;

    /// As [`register`](Self::register) for a call that takes what comes, as
    /// [`Source::register_exclusive`](neap_stack::wait::Source::register_exclusive).
    #[must_use = "false means: look again"]
    fn register_exclusive(
        &self,
        seen: &[ReadyState],
        interest: Ready,
        waker: &Waker,
        drives: bool,
    ) -> bool {
        let _ = drives;
        self.register(seen, interest, waker)
    }

    /// Forgets a waker that was registered.
    fn unregister(&self, waker: &Waker);

    /// The shard whose driver brings what happens to it. Of an epoll set it is that of one of its
    /// sockets.
    fn shard(&self) -> usize;
}

/// Changes of a socket that can bring one of these events.
pub(crate) fn wanted(events: u32) -> Ready {
    let mut ready = Ready::ERROR | Ready::ERROR_QUEUE | Ready::READ_CLOSED | Ready::WRITE_CLOSED;
    ready.set(Ready::READABLE, events & READ != 0);
    ready.set(Ready::WRITABLE, events & (WRITE | POLLWRBAND) != 0);
    ready
}
