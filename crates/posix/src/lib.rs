//! Socket interface of Linux on a neap stack: descriptors, calls, flags, options and errors.
//!
//! It is for programs that make system calls themselves: a script, a plug-in of a test tool, a
//! library that is loaded before the C library.
//!
//! It has no clock, and [`Posix`] never waits. A call that would wait on Linux returns
//! [`Outcome::Wait`], which says until when; the caller polls the stack, lets time pass, and
//! repeats the call *with the same [`Call`]* until it answers [`Outcome::Done`] or fails. The
//! `Call` keeps what a thread in the kernel would keep on its stack: the files that it works on,
//! when the wait began and how many bytes are done. So a blocking send of a large buffer is
//! repeated with the whole buffer, and goes on where it stood. This is how hosts in virtual time
//! use it.
//!
//! [`Process`] is the same on a running stack: its calls wait, and threads that wait drive the
//! stack meanwhile (`neap::Stack::posix`).
//!
//! Threads may share both. Each file has a lock of its own, and the table of descriptors is
//! locked to look one up.
//!
//! ```
//! use neap_posix::{abi::*, sockaddr, Call, Outcome, Posix};
//! use neap_stack::stack::{Stack, StackConfig};
//! use neap_tcp::time::Instant;
//!
//! let stack = Stack::new(StackConfig::default())?;
//! let (posix, now) = (Posix::new(stack, 3), Instant::from_nanos(1_000_000_000));
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
//! Cost: a call takes the mutex of the table to look its descriptor up in a vector, and that of its
//! file to see what it is.
//!
//! # Versions
//!
//! This crate is an internal part of `neap` and promises nothing: any version may change anything.
//! Depend on `neap`, which re-exports by name what it promises.
#![forbid(unsafe_code)]

pub mod abi;
mod answer;
mod call;
mod calls;
mod cmsg;
mod epoll;
pub mod errno;
mod file;
mod pipe;
mod process;
pub mod sockaddr;
mod socket;
mod sync;
mod table;
mod tcp_info;
mod watch;

pub use answer::{Accepted, Incoming, Outgoing, PollFd, Received};
pub use call::{Call, Outcome};
pub use epoll::EpollEvent;
pub use errno::Errno;
pub use process::Process;

use neap_stack::stack::Stack;
use neap_tcp::time::Instant;
use std::sync::{Arc, Mutex};
use table::Table;

/// File descriptor.
pub type Fd = i32;

/// Sockets of one process on one [`Stack`], by descriptor. Threads may share it.
#[derive(Debug)]
pub struct Posix {
    stack: Arc<Stack>,
    table: Table,
    /// Held by a thread that puts one epoll set into another.
    nesting: Mutex<()>,
}

impl Posix {
    /// Returns a process without sockets, whose first descriptor is `first_fd`.
    pub fn new(stack: impl Into<Arc<Stack>>, first_fd: Fd) -> Self {
        let table = Table::new(first_fd.max(0));
        Self { stack: stack.into(), table, nesting: Mutex::new(()) }
    }

    /// Returns the stack, which the caller polls.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Returns whether this descriptor is open here.
    pub fn owns(&self, fd: Fd) -> bool {
        self.table.file(fd).is_ok()
    }

    /// Closes all descriptors, as the end of a process does.
    pub fn close_all(&self, now: Instant) {
        for fd in self.table.descriptors() {
            // Nobody is left to linger for.
            let _ = self.close(now, &mut Call::new(), fd);
        }
    }
}
