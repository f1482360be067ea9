//! Open files: what descriptors refer to (Linux's `struct file`).

use crate::epoll::{Set, Watched, Watchers};
use crate::errno::Errno;
use crate::pipe::PipeEnd;
use crate::socket::SharedSocket;
use crate::watch::{Seen, Watch};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use neap_stack::socket::readiness::{Ready, ReadyState};
use std::task::Waker;

/// What is open.
#[derive(Debug)]
pub(crate) enum Object {
    Socket(Box<SharedSocket>),
    Epoll(Set),
    Pipe(PipeEnd),
}

/// An open file. Descriptors share it, and calls that are under way: it is closed when the last of
/// them has let it go.
#[derive(Debug)]
pub(crate) struct File {
    nonblocking: AtomicBool,
    idle_flags: AtomicI32,
    pub(crate) object: Object,
    watchers: Watchers,
}

impl File {
    pub(crate) fn new(object: Object, nonblocking: bool) -> Self {
        Self {
            nonblocking: AtomicBool::new(nonblocking),
            idle_flags: AtomicI32::new(0),
            object,
            watchers: Watchers::default(),
        }
    }

    /// `O_NONBLOCK`: whether calls return rather than wait.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Relaxed);
    }

    /// Flags that are kept and not heeded.
    pub(crate) fn idle_flags(&self) -> i32 {
        self.idle_flags.load(Relaxed)
    }

    pub(crate) fn set_idle_flags(&self, flags: i32) {
        self.idle_flags.store(flags, Relaxed);
    }

    /// The socket that it is.
    ///
    /// # Errors
    /// `ENOTSOCK`.
    pub(crate) fn socket(&self) -> Result<&SharedSocket, Errno> {
        match &self.object {
            Object::Socket(socket) => Ok(socket),
            Object::Epoll(_) | Object::Pipe(_) => Err(Errno::ENOTSOCK),
        }
    }

    fn watch(&self) -> &dyn Watch {
        match &self.object {
            Object::Socket(socket) => &**socket,
            Object::Epoll(set) => set,
            Object::Pipe(end) => end,
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.watchers.leave();
    }
}

impl Watch for File {
    fn events(&self) -> u32 {
        self.watch().events()
    }

    fn words(&self) -> Seen {
        self.watch().words()
    }

    fn register(&self, seen: &[ReadyState], interest: Ready, waker: &Waker) -> bool {
        self.watch().register(seen, interest, waker)
    }

    fn register_exclusive(
        &self,
        seen: &[ReadyState],
        interest: Ready,
        waker: &Waker,
        drives: bool,
    ) -> bool {
        self.watch().register_exclusive(seen, interest, waker, drives)
    }

    fn unregister(&self, waker: &Waker) {
        self.watch().unregister(waker);
    }

    fn shard(&self) -> usize {
        self.watch().shard()
    }
}

impl Watched for File {
    fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    fn as_set(&self) -> Option<&Set> {
        match &self.object {
            Object::Epoll(set) => Some(set),
            Object::Socket(_) | Object::Pipe(_) => None,
        }
    }
}
