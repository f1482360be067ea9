//! Host on which a script runs: system calls, the wire, and time.

use crate::constants;
use bytes::Bytes;
use core::fmt;
use neap_posix::{EpollEvent, Errno, Fd, PollFd};
use neap_tcp::time::Nanos;

/// System call with its arguments, which need not make sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemCall {
    /// `socket`
    Socket {
        /// `AF_*`
        domain: i32,
        /// `SOCK_*`, with flags.
        kind: i32,
        /// `IPPROTO_*`
        protocol: i32,
    },
    /// `bind`
    Bind {
        /// The socket.
        fd: Fd,
        /// A `struct sockaddr` of any family and length.
        address: Vec<u8>,
    },
    /// `listen`
    Listen {
        /// The socket.
        fd: Fd,
        /// Connections that may wait to be accepted.
        backlog: i32,
    },
    /// `accept`, `accept4`
    Accept {
        /// The listener.
        fd: Fd,
        /// `SOCK_*`
        flags: i32,
    },
    /// `connect`
    Connect {
        /// The socket.
        fd: Fd,
        /// A `struct sockaddr` of any family and length.
        address: Vec<u8>,
    },
    /// `read`, `readv`; the bytes are [`Reply::data`].
    Read {
        /// The descriptor.
        fd: Fd,
        /// Sizes of the buffers.
        sizes: Vec<usize>,
    },
    /// `recv`, `recvfrom`, `recvmsg`; the bytes are [`Reply::data`].
    Receive {
        /// The socket.
        fd: Fd,
        /// Sizes of the buffers.
        sizes: Vec<usize>,
        /// Bytes of the buffer for control messages.
        control_len: usize,
        /// `MSG_*`
        flags: i32,
    },
    /// `write`, `writev`
    Write {
        /// The descriptor.
        fd: Fd,
        /// The bytes, buffer by buffer.
        pieces: Vec<Bytes>,
    },
    /// `send`, `sendto`, `sendmsg`
    Send {
        /// The socket.
        fd: Fd,
        /// The bytes, buffer by buffer.
        pieces: Vec<Bytes>,
        /// `MSG_*`
        flags: i32,
        /// A `struct sockaddr` of any family and length.
        address: Option<Vec<u8>>,
    },
    /// `shutdown`
    Shutdown {
        /// The socket.
        fd: Fd,
        /// `SHUT_*`
        how: i32,
    },
    /// `close`
    Close {
        /// The descriptor.
        fd: Fd,
    },
    /// `getsockopt`; the value is [`Reply::data`].
    GetOption {
        /// The socket.
        fd: Fd,
        /// `SOL_*`
        level: i32,
        /// Number of the option.
        name: i32,
        /// Bytes of the buffer for the value.
        len: usize,
    },
    /// `setsockopt`
    SetOption {
        /// The socket.
        fd: Fd,
        /// `SOL_*`
        level: i32,
        /// Number of the option.
        name: i32,
        /// The value as the call reads it.
        value: Vec<u8>,
    },
    /// `fcntl` with a number as its argument.
    Fcntl {
        /// The descriptor.
        fd: Fd,
        /// `F_*`
        command: i32,
        /// The argument, 0 if there is none.
        argument: i32,
    },
    /// `ioctl` with a pointer to an int, whose value is [`Reply::data`] afterwards.
    Ioctl {
        /// The descriptor.
        fd: Fd,
        /// `FIONREAD` and so on.
        request: u32,
        /// Value of the int before the call.
        argument: i32,
    },
    /// `poll`; the result is in [`Reply::fds`].
    Poll {
        /// Descriptors and events asked for.
        fds: Vec<PollFd>,
        /// Timeout in milliseconds; a negative one is without limit.
        timeout_ms: i32,
    },
    /// `epoll_create`
    EpollCreate {
        /// Size, which means nothing.
        size: i32,
    },
    /// `epoll_create1`
    EpollCreate1 {
        /// `EPOLL_CLOEXEC`
        flags: i32,
    },
    /// `epoll_ctl`
    EpollControl {
        /// The epoll set.
        epoll: Fd,
        /// `EPOLL_CTL_*`
        operation: i32,
        /// Descriptor that is added, changed or removed.
        fd: Fd,
        /// Events asked for.
        event: EpollEvent,
    },
    /// `epoll_wait`; the events are [`Reply::events`].
    EpollWait {
        /// The epoll set.
        epoll: Fd,
        /// Number of events that there is room for.
        max_events: usize,
        /// Timeout in milliseconds; a negative one is without limit.
        timeout_ms: i32,
    },
    /// `pipe`; the descriptors are [`Reply::pipe`].
    Pipe,
    /// `splice` without offsets.
    Splice {
        /// Descriptor that the bytes come from.
        input: Fd,
        /// Descriptor that they go to.
        output: Fd,
        /// Most bytes.
        len: usize,
        /// `SPLICE_F_*`
        flags: u32,
    },
}

/// Result of a system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Value that the call returned, or its error.
    pub result: Result<i64, Errno>,
    /// Received bytes, or the value of an option or of an `ioctl`.
    pub data: Vec<u8>,
    /// `msg_flags` of a received message.
    pub flags: i32,
    /// Control messages of a received message, as the C library lays them out.
    pub control: Vec<u8>,
    /// The descriptors of a `poll`.
    pub fds: Vec<PollFd>,
    /// Events of an `epoll_wait`.
    pub events: Vec<EpollEvent>,
    /// Ends of a `pipe`: the reading one, the writing one.
    pub pipe: [Fd; 2],
}

impl Reply {
    /// Returns the reply of a call that returned `result` and nothing besides.
    pub fn returned(result: Result<i64, Errno>) -> Self {
        Self {
            result,
            data: Vec::new(),
            flags: 0,
            control: Vec::new(),
            fds: Vec::new(),
            events: Vec::new(),
            pipe: [0; 2],
        }
    }

    /// Returns the reply of a call that succeeded.
    pub fn ok(value: impl Into<i64>) -> Self {
        Self::returned(Ok(value.into()))
    }

    /// Returns the reply of a call that succeeded and returned a count.
    pub fn count(count: usize) -> Self {
        Self::ok(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Returns the reply of a call that failed.
    pub fn error(errno: Errno) -> Self {
        Self::returned(Err(errno))
    }

    /// Returns the value that the C library returns.
    pub fn value(&self) -> i64 {
        self.result.unwrap_or(-1)
    }

    /// Returns the error of a call that failed.
    pub fn errno(&self) -> Option<Errno> {
        self.result.err()
    }
}

/// What the call returned, as `strace` shows it.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.result {
            Ok(value) => write!(f, "{value}"),
            Err(errno) => f.write_str(&constants::show_errno(errno)),
        }
    }
}

/// Packet that the host sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentPacket {
    /// Time at which it left, from the start of the script.
    pub at: Nanos,
    /// IP packet. A super-frame is one packet.
    pub packet: Bytes,
}

/// Reason why a host could not go on, other than a difference that the script tests for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HostFailure(pub String);

/// Host on which scripts run. Times count from the start of the script.
pub trait Host {
    /// Returns the current time.
    fn now(&self) -> Nanos;

    /// Lets time pass until `until`, or until a packet left or a blocked call returned.
    ///
    /// # Errors
    /// [`HostFailure`].
    fn wait(&mut self, until: Nanos) -> Result<(), HostFailure>;

    /// Lets a packet of the peer arrive now.
    ///
    /// # Errors
    /// [`HostFailure`].
    fn inject(&mut self, packet: Bytes) -> Result<(), HostFailure>;

    /// Takes the next packet that has left.
    fn take_sent(&mut self) -> Option<SentPacket>;

    /// Makes a system call, and returns its reply, or `None` if it blocks.
    ///
    /// The reply of a call that blocks comes from [`take_reply`](Self::take_reply). One call may
    /// block at a time. `will_block` says that the script expects it to block.
    ///
    /// # Errors
    /// [`HostFailure`].
    fn call(&mut self, call: SystemCall, will_block: bool) -> Result<Option<Reply>, HostFailure>;

    /// Takes the reply of the call that blocked, and the time at which it returned.
    fn take_reply(&mut self) -> Option<(Nanos, Reply)>;

    /// Sets the clock back by the time that an event was late, and returns by how much it moved.
    ///
    /// A host whose clock cannot be stopped does so, so that the times that follow keep their
    /// distance. In virtual time nothing moves: what is late was so by the stack's own choice.
    fn set_clock_back(&mut self, by: Nanos) -> Nanos;

    /// Returns how late an event that takes `span` may be, beyond a script's tolerance.
    fn slack(&self, span: Nanos) -> Nanos;
}
