//! Descriptors on a stack, with the calls, flags, options and errors of Linux.
//!
//! [`Stack::posix`](crate::Stack::posix) makes a [`Process`], whose calls wait as those of Linux
//! do. [`Posix`] is the same without waiting, for a stack that is driven by hand. [`abi`] has the
//! numbers of Linux, and [`sockaddr`] turns addresses into bytes and back.

pub use neap_posix::{
    Accepted, Call, EpollEvent, Errno, Fd, Incoming, Outcome, Outgoing, PollFd, Posix, Process,
    Received, abi, sockaddr,
};
