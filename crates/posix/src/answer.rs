//! Results of calls.

use crate::Fd;
use core::net::SocketAddr;

/// Result of `accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// The new socket.
    pub fd: Fd,
    /// Address of the peer, as the listener's family shows it.
    pub peer: SocketAddr,
}

/// Result of a receiving call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Value that the call returns: the bytes received, or with `MSG_TRUNC` the size of the
    /// datagram.
    pub len: usize,
    /// Flags of the message (`msg_flags`): `MSG_TRUNC` if a datagram was cut, `MSG_CTRUNC` if
    /// control messages were, `MSG_ERRQUEUE`.
    pub flags: i32,
    /// Sender of the datagram, or destination of the packet that an error is about. It is `None`
    /// for the bytes of TCP, as in Linux.
    pub from: Option<SocketAddr>,
    /// Bytes of control messages (`msg_controllen`).
    pub control: usize,
}

impl Received {
    pub(crate) fn bytes(len: usize) -> Self {
        Self { len, flags: 0, from: None, control: 0 }
    }
}

/// One message of `sendmmsg` (`struct mmsghdr`).
#[derive(Debug, Default)]
pub struct Outgoing<'a> {
    /// Data.
    pub data: &'a [u8],
    /// Control messages, laid out as cmsg(3) says (`msg_control`).
    pub control: &'a [u8],
    /// Where it goes; `None` is the connected peer.
    pub to: Option<&'a [u8]>,
    /// Bytes that were sent (`msg_len`), which the call fills in.
    pub sent: usize,
}

/// One message of `recvmmsg` (`struct mmsghdr`).
#[derive(Debug, Default)]
pub struct Incoming<'a> {
    /// Buffer for data.
    pub buf: &'a mut [u8],
    /// Buffer for control messages (`msg_control`).
    pub control: &'a mut [u8],
    /// What was received, which the call fills in; `None` of a message that did not come.
    pub received: Option<Received>,
}

/// Descriptor and events of one `poll` (`struct pollfd`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollFd {
    /// Descriptor. A negative one is ignored.
    pub fd: Fd,
    /// Events asked for, as `POLL*`.
    pub events: i16,
    /// Events that came: those asked for, and `POLLERR`, `POLLHUP`, `POLLNVAL`.
    pub revents: i16,
}
