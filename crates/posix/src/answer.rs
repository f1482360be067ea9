//! What calls answer.

use crate::Fd;
use core::net::SocketAddr;

/// What `accept` took from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// The new socket.
    pub fd: Fd,
    /// The peer, as the listener's family shows it.
    pub peer: SocketAddr,
}

/// What a receiving call brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// What the call returns: bytes, or with `MSG_TRUNC` the size of the datagram.
    pub len: usize,
    /// `msg_flags`: `MSG_TRUNC` where a datagram was cut, `MSG_CTRUNC` where control messages were,
    /// `MSG_ERRQUEUE`.
    pub flags: i32,
    /// Who sent the datagram, or whom the packet of an error was for; nothing for the bytes of TCP,
    /// as in Linux.
    pub from: Option<SocketAddr>,
    /// `msg_controllen`: bytes of control messages.
    pub control: usize,
}

impl Received {
    pub(crate) fn bytes(len: usize) -> Self {
        Self { len, flags: 0, from: None, control: 0 }
    }
}

/// `struct pollfd`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollFd {
    /// Descriptor; a negative one is ignored.
    pub fd: Fd,
    /// `POLL*` that are asked for.
    pub events: i16,
    /// What came, of these and `POLLERR`, `POLLHUP`, `POLLNVAL`.
    pub revents: i16,
}
