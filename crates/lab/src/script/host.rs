//! What a script runs on: system calls, the wire, and time.

use bytes::Bytes;
use core::net::SocketAddr;
use neap_tcp::time::Nanos;

/// A descriptor of the host.
pub type Descriptor = i32;

/// A Linux error number.
pub type Errno = i32;

/// One descriptor of a `poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollEntry {
    /// Descriptor.
    pub fd: Descriptor,
    /// `POLLIN` and so on: what is asked for.
    pub events: i16,
    /// What holds.
    pub revents: i16,
}

/// One event of an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// `EPOLLIN` and so on.
    pub events: u32,
    /// What the application gave with the descriptor.
    pub data: u64,
}

/// A system call with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// `socket(domain, type, protocol)`
    Socket(i32, i32, i32),
    /// `bind`
    Bind(Descriptor, SocketAddr),
    /// `listen(fd, backlog)`
    Listen(Descriptor, i32),
    /// `accept4(fd, .., flags)`; the address comes in the reply.
    Accept(Descriptor, i32),
    /// `connect`
    Connect(Descriptor, SocketAddr),
    /// `read`, `recv`, `readv`: buffers of these sizes, flags; data comes in the reply.
    /// `None` for the calls without flags.
    Receive(Descriptor, Vec<usize>, Option<i32>),
    /// `recvmsg`: buffers of these sizes, bytes for control messages, flags; data and control messages
    /// come in the reply.
    ReceiveMessage(Descriptor, Vec<usize>, usize, i32),
    /// `write`, `send`, `writev`, `sendmsg`: the pieces, flags (`None` for the calls without), address.
    Send(Descriptor, Vec<Bytes>, Option<i32>, Option<SocketAddr>),
    /// `shutdown(fd, how)`
    Shutdown(Descriptor, i32),
    /// `close`
    Close(Descriptor),
    /// `getsockopt(fd, level, name, .., len)`; the value comes in the reply.
    GetOption(Descriptor, i32, i32, usize),
    /// `setsockopt(fd, level, name, value)`
    SetOption(Descriptor, i32, i32, Vec<u8>),
    /// `fcntl(fd, command, argument)`
    Fcntl(Descriptor, i32, i32),
    /// `ioctl(fd, request, &int)`; the integer comes in the reply.
    Ioctl(Descriptor, u32, i32),
    /// `poll(entries, timeout in ms)`; the entries come in the reply.
    Poll(Vec<PollEntry>, i32),
    /// `epoll_create1(flags)`
    EpollCreate(i32),
    /// `epoll_ctl(epfd, operation, fd, event)`
    EpollControl(Descriptor, i32, Descriptor, EpollEvent),
    /// `epoll_wait(epfd, .., most, timeout in ms)`; events come in the reply.
    EpollWait(Descriptor, usize, i32),
    /// `pipe`; the two ends come in the reply.
    Pipe,
    /// `splice(from, NULL, to, NULL, len, flags)`
    Splice(Descriptor, Descriptor, usize, u32),
}

/// What a system call answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Returned value, or the error.
    pub result: i64,
    /// The error, if the call failed; `result` is -1 then.
    pub errno: Option<Errno>,
    /// Received bytes, or the value of an option or of an `ioctl`.
    pub data: Vec<u8>,
    /// Flags of a received message.
    pub flags: i32,
    /// Control messages of a received message, as the C library lays them out.
    pub control: Vec<u8>,
    /// Of `poll`.
    pub entries: Vec<PollEntry>,
    /// Of `epoll_wait`.
    pub events: Vec<EpollEvent>,
    /// Of `pipe`: the end that reads and the one that writes.
    pub ends: [Descriptor; 2],
}

impl Reply {
    /// Success.
    pub fn ok(result: i64) -> Self {
        Self { result, ..Self::default() }
    }

    /// Failure.
    pub fn error(errno: Errno) -> Self {
        Self { result: -1, errno: Some(errno), ..Self::default() }
    }

    /// Success with bytes.
    pub fn data(result: i64, data: Vec<u8>) -> Self {
        Self { result, data, ..Self::default() }
    }
}

/// A packet that the host sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When it left, since the start of the script.
    pub at: Nanos,
    /// The IP packet; a super-frame is one.
    pub packet: Bytes,
}

/// Why a host could not go on; nothing that a script tests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HostFailure(pub String);

/// Something that scripts run on. Times count from the start of the script.
pub trait Host {
    /// Now.
    fn now(&self) -> Nanos;

    /// Lets time pass until `until`, or until a packet left or a blocked call returned.
    ///
    /// # Errors
    /// [`HostFailure`].
    fn wait(&mut self, until: Nanos) -> Result<(), HostFailure>;

    /// The peer's packet arrives now.
    ///
    /// # Errors
    /// [`HostFailure`].
    fn inject(&mut self, packet: Bytes) -> Result<(), HostFailure>;

    /// The next packet that has left.
    fn take_sent(&mut self) -> Option<Sent>;

    /// Makes a system call. `None` if it blocks: its reply comes from [`take_reply`](Self::take_reply).
    /// One call may block at a time. `lasts` says that the script expects it to block.
    ///
    /// # Errors
    /// [`HostFailure`].
    fn call(&mut self, call: Call, lasts: bool) -> Result<Option<Reply>, HostFailure>;

    /// The reply of the call that blocked, and when it returned.
    fn take_reply(&mut self) -> Option<(Nanos, Reply)>;

    /// What was to happen at some time happened so much later: a clock that cannot be stopped is set back, so that
    /// the times that follow keep their distance.
    fn set_back(&mut self, by: Nanos);

    /// How late something that takes `span` may be, beyond a script's tolerance.
    fn slack(&self, span: Nanos) -> Nanos;
}
