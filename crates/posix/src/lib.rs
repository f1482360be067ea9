//! The socket face: descriptors, calls, flags, options and errors as Linux has them, for whatever
//! brings its own system calls: a script, a test tool's plug-in, a library that is loaded before
//! the C library.
//!
//! It has no clock and never waits. A call that would wait on Linux answers
//! [`Outcome::Wait`], which says for what and until when; the caller polls the stack, lets time
//! pass, and repeats the call *with the same [`Call`]* until it answers [`Outcome::Done`] or fails.
//! The `Call` keeps what a thread in the kernel would keep on its stack: when the wait began and
//! how many bytes are done. So a blocking send of a large buffer is repeated with the whole buffer,
//! and goes on where it stood.
//!
//! ```
//! use neap_posix::{abi::*, sockaddr, Call, Outcome, Posix};
//! use neap_stack::stack::{Stack, StackConfig};
//! use neap_tcp::time::Instant;
//!
//! let stack = Stack::new(StackConfig::default())?;
//! let (mut posix, now) = (Posix::new(stack, 3), Instant::from_nanos(1_000_000_000));
//! let listener = posix.socket(AF_INET, SOCK_STREAM, 0)?;
//! let address = sockaddr::encode("127.0.0.1:80".parse()?);
//! posix.bind(now, listener, &address)?;
//! posix.listen(now, listener, 1)?;
//! let client = posix.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)?;
//! assert!(posix.connect(now, &mut Call::new(), client, &address).is_err(), "EINPROGRESS");
//! let mut call = Call::new();
//! let accepted = loop {
//!     match posix.accept(now, &mut call, listener, 0)? {
//!         Outcome::Done(accepted) => break accepted,
//!         Outcome::Wait(_) => posix.stack().poll(0, now),
//!     };
//! };
//! assert_eq!(posix.getpeername(now, accepted.fd)?, posix.getsockname(client)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An option that the stack does not have is refused with `ENOPROTOOPT`, unless it is set to what
//! holds anyway. Numbers are in [`abi`] alone; [`errno::Errno`] is what fails.
//!
//! Cost: a call looks its descriptor up in a vector; `bind` looks at all descriptors.

#![forbid(unsafe_code)]

pub mod abi;
mod control;
mod epoll;
pub mod errno;
mod error_queue;
mod names;
mod options;
mod pipe;
mod poll;
pub mod sockaddr;
mod socket;
mod table;
mod tcp_info;
mod transfer;

pub use epoll::EpollEvent;
pub use errno::Errno;
pub use poll::PollFd;
pub use socket::Accepted;
pub use transfer::Received;

use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::Stack;
use neap_tcp::time::{Instant, Nanos};
use smallvec::SmallVec;
use table::Table;

/// A descriptor.
pub type Fd = i32;

/// What a call that may wait answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It is over.
    Done(T),
    /// A thread would sleep here.
    Wait(Wait),
}

impl<T> Outcome<T> {
    /// The same with another answer.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Done(answer) => Outcome::Done(change(answer)),
            Self::Wait(wait) => Outcome::Wait(wait),
        }
    }

    /// The answer, or `None` if the call waits.
    pub fn done(self) -> Option<T> {
        match self {
            Self::Done(answer) => Some(answer),
            Self::Wait(_) => None,
        }
    }
}

/// What a call waits for: any of these, or the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Descriptors, each with its `POLL*` events. To repeat the call earlier does no harm.
    pub on: SmallVec<[(Fd, u32); 2]>,
    /// The call answers then, whatever came; [`Instant::FAR_FUTURE`] if it has no limit.
    pub until: Instant,
}

/// What one system call has done so far, kept by the caller while the call waits. A new call begins
/// with a new one.
#[derive(Debug, Default)]
pub struct Call {
    since: Option<Instant>,
    done: usize,
    /// Of `close`: the connection that lingers, its descriptor gone already.
    lingers: Option<TcpHandle>,
}

impl Call {
    /// A call that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the call has waited.
    fn is_repeated(&self) -> bool {
        self.since.is_some()
    }

    /// The end of a wait that may take `timeout`; `None` is forever.
    fn deadline(&mut self, now: Instant, timeout: Option<Nanos>) -> Instant {
        let since = *self.since.get_or_insert(now);
        timeout.map_or(Instant::FAR_FUTURE, |timeout| since + timeout)
    }

    /// Waits for events of one descriptor, up to a timeout; `None` when that is over.
    fn wait<T>(
        &mut self,
        now: Instant,
        timeout: Option<Nanos>,
        on: (Fd, u32),
    ) -> Option<Outcome<T>> {
        let until = self.deadline(now, timeout);
        (now < until).then(|| Outcome::Wait(Wait { on: [on].into_iter().collect(), until }))
    }
}

/// The sockets of one process on one [`Stack`], by descriptor.
#[derive(Debug)]
pub struct Posix {
    stack: Stack,
    table: Table,
}

impl Posix {
    /// A process without sockets; its first descriptor is `first_fd`.
    pub fn new(stack: Stack, first_fd: Fd) -> Self {
        Self { stack, table: Table::new(first_fd.max(0)) }
    }

    /// The stack, to be polled by the caller.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Whether this descriptor is open here.
    pub fn owns(&self, fd: Fd) -> bool {
        self.table.id(fd).is_ok()
    }

    /// Resets all connections and closes all descriptors, as the end of the process would close
    /// them.
    pub fn close_all(&mut self, now: Instant) {
        for fd in self.table.descriptors() {
            // Nobody is left to linger for.
            let _ = self.close(now, &mut Call::new(), fd);
        }
    }
}
