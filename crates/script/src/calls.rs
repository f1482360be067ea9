//! System calls as a script writes them, made into calls of a host, and what their replies mean.

mod arguments;
mod control;
mod expected;
mod value;

use crate::ast::CallSpec;
use crate::cursor::{Position, SyntaxError};
use crate::host::{Reply, SystemCall};
use crate::settings::Settings;
use crate::stream::{PEER_BYTES, WRITTEN_BYTES};
use arguments::Arguments;
use bytes::Bytes;
use core::cell::Cell;
use core::net::SocketAddr;
use expected::ExpectedReply;
use neap_posix::Fd;
use neap_posix::abi::{F_DUPFD, F_DUPFD_CLOEXEC, MSG_ERRQUEUE, MSG_PEEK, MSG_TRUNC};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A descriptor as the script numbers it.
pub(crate) type ScriptFd = i64;

/// A descriptor that no host has open.
const NOT_OPEN: Fd = 999_999;

/// Calls by name, with the fewest and the most arguments.
const ARGUMENT_COUNTS: &[(&str, usize, usize)] = &[
    ("accept", 3, 3),
    ("accept4", 4, 4),
    ("bind", 3, 3),
    ("close", 1, 1),
    ("connect", 3, 3),
    ("epoll_create", 1, 1),
    ("epoll_create1", 1, 1),
    ("epoll_ctl", 4, 4),
    ("epoll_wait", 4, 4),
    ("fcntl", 2, 3),
    ("getsockopt", 5, 5),
    ("ioctl", 2, 3),
    ("listen", 2, 2),
    ("pipe", 1, 1),
    ("poll", 3, 3),
    ("read", 3, 3),
    ("readv", 3, 3),
    ("recv", 4, 4),
    ("recvfrom", 6, 6),
    ("recvmsg", 3, 3),
    ("send", 4, 4),
    ("sendmsg", 3, 3),
    ("sendto", 6, 6),
    ("setsockopt", 5, 5),
    ("shutdown", 2, 2),
    ("socket", 3, 3),
    ("splice", 6, 6),
    ("write", 3, 3),
    ("writev", 3, 3),
];

/// Most events of one `epoll_wait`.
const MAX_EVENTS: usize = 65_536;

/// What a descriptor of the script stands for.
#[derive(Clone, Debug)]
struct OpenFd {
    /// The host's number of it.
    fd: Fd,
    /// What went through it so far. Its duplicates have the same.
    passed: Rc<Cell<Passed>>,
    /// What is read may be what the script has written, not only what the peer has sent.
    is_pipe: bool,
}

/// Bytes of the two streams of a descriptor.
#[derive(Clone, Copy, Debug, Default)]
struct Passed {
    written: u64,
    read: u64,
}

/// The script's descriptors.
#[derive(Debug, Default)]
pub(crate) struct Descriptors(BTreeMap<ScriptFd, OpenFd>);

/// What a call means for the connections of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEffect {
    /// Nothing.
    None,
    /// A socket gets this address.
    Bind(ScriptFd, SocketAddr),
    /// A socket listens.
    Listen(ScriptFd),
    /// A socket connects to this peer.
    Connect(ScriptFd, SocketAddr),
    /// A socket gives its peer up.
    Disconnect(ScriptFd),
    /// A socket is made for a connection of a peer.
    Accept,
}

/// What a call that succeeded changed about descriptors and the bytes that went through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DescriptorEffect {
    None,
    /// There is one more.
    Open,
    /// There is one more for what this one stands for.
    Duplicate(ScriptFd),
    /// There are two more: the end of a pipe that reads, and the one that writes.
    OpenPipe(ScriptFd, ScriptFd),
    Close(ScriptFd),
    Write(ScriptFd),
    /// The bytes are in the reply.
    Read(ScriptFd),
    /// The bytes were taken off the stream unseen.
    Discard(ScriptFd),
    /// The bytes were taken off the first stream and added to the second.
    Splice(ScriptFd, ScriptFd),
}

/// A call ready to be made, and what is known of its answer.
#[derive(Debug)]
pub(crate) struct PreparedCall {
    /// Its name.
    pub(crate) name: String,
    /// What the host is asked for.
    pub(crate) call: SystemCall,
    /// What that means for connections.
    pub(crate) on_connections: ConnectionEffect,
    /// What the script says that the host answers.
    pub(crate) expected: ExpectedReply,
    on_descriptors: DescriptorEffect,
}

impl PreparedCall {
    /// The script's number of the descriptor that the call made, if it made one.
    pub(crate) fn opened(&self, reply: &Reply) -> Option<ScriptFd> {
        let fd = reply.result.ok()?;
        self.on_descriptors.opens().then(|| self.expected.result.unwrap_or(fd))
    }
}

impl DescriptorEffect {
    /// Whether the call returns a new descriptor.
    fn opens(self) -> bool {
        matches!(self, Self::Open | Self::Duplicate(_))
    }
}

/// What receiving with these flags does to a stream.
fn effect_of_receiving(fd: ScriptFd, flags: i32) -> DescriptorEffect {
    match flags {
        // What an error quotes is not what the peer sent.
        flags if flags & (MSG_PEEK | MSG_ERRQUEUE) != 0 => DescriptorEffect::None,
        flags if flags & MSG_TRUNC != 0 => DescriptorEffect::Discard(fd),
        _ => DescriptorEffect::Read(fd),
    }
}

impl Descriptors {
    /// The host's descriptor, if the script has it open.
    pub(crate) fn get(&self, script_fd: ScriptFd) -> Option<Fd> {
        self.0.get(&script_fd).map(|open| open.fd)
    }

    /// The host's descriptor, or one that is not open.
    fn fd(&self, script_fd: ScriptFd) -> Fd {
        self.get(script_fd).unwrap_or(NOT_OPEN)
    }

    /// The next bytes that the script writes to a descriptor, in pieces of these sizes.
    fn pieces(&self, script_fd: ScriptFd, sizes: &[usize]) -> Vec<Bytes> {
        let mut at = self.0.get(&script_fd).map_or(0, |open| open.passed.get().written);
        let piece = |&size: &usize| {
            let piece = WRITTEN_BYTES.bytes(at, size);
            at += size as u64;
            piece
        };
        sizes.iter().map(piece).collect()
    }

    /// The call of a host that the script asks for.
    ///
    /// # Errors
    /// A call that does not exist, or arguments that it does not take.
    pub(crate) fn prepare(
        &self,
        spec: &CallSpec,
        settings: &Settings,
        at: Position,
    ) -> Result<PreparedCall, SyntaxError> {
        let name = spec.name.as_str();
        let arguments = Arguments { spec, settings, at };
        if let Some(&(_, fewest, most)) = ARGUMENT_COUNTS.iter().find(|(known, ..)| *known == name)
        {
            arguments.count(fewest, most)?;
        }
        let mut expected = ExpectedReply::new(spec)?;
        let mut on_connections = ConnectionEffect::None;
        let mut on_descriptors = DescriptorEffect::None;
        // The script's number of the descriptor that an argument names, and the host's.
        let script_fd = |index| arguments.integer(index);
        let fd = |index| script_fd(index).map(|script_fd| self.fd(script_fd));
        let call = match name {
            "socket" => {
                on_descriptors = DescriptorEffect::Open;
                let (kind, protocol) = (arguments.int(1)?, arguments.int(2)?);
                SystemCall::Socket { domain: arguments.domain(0)?, kind, protocol }
            }
            "bind" => {
                let address = arguments.address(1, settings.bind_address())?;
                if let Some(local) = address.socket_addr {
                    on_connections = ConnectionEffect::Bind(script_fd(0)?, local);
                }
                SystemCall::Bind { fd: fd(0)?, address: address.bytes }
            }
            "listen" => {
                on_connections = ConnectionEffect::Listen(script_fd(0)?);
                SystemCall::Listen { fd: fd(0)?, backlog: arguments.int(1)? }
            }
            "accept" | "accept4" => {
                on_connections = ConnectionEffect::Accept;
                on_descriptors = DescriptorEffect::Open;
                arguments.any(1)?;
                arguments.any(2)?;
                let flags = if name == "accept4" { arguments.int(3)? } else { 0 };
                SystemCall::Accept { fd: fd(0)?, flags }
            }
            "connect" => {
                let address = arguments.address(1, settings.connect_address())?;
                if let Some(peer) = address.socket_addr {
                    on_connections = ConnectionEffect::Connect(script_fd(0)?, peer);
                } else if address.is_unspecified {
                    on_connections = ConnectionEffect::Disconnect(script_fd(0)?);
                }
                SystemCall::Connect { fd: fd(0)?, address: address.bytes }
            }
            "read" => {
                on_descriptors = DescriptorEffect::Read(script_fd(0)?);
                SystemCall::Read { fd: fd(0)?, sizes: vec![arguments.buffer(1)?] }
            }
            "readv" => {
                on_descriptors = DescriptorEffect::Read(script_fd(0)?);
                SystemCall::Read { fd: fd(0)?, sizes: arguments.vector(1)? }
            }
            "recv" | "recvfrom" => {
                let (sizes, flags) = (vec![arguments.buffer(1)?], arguments.int(3)?);
                if name == "recvfrom" {
                    arguments.any(4)?;
                    arguments.any(5)?;
                }
                on_descriptors = effect_of_receiving(script_fd(0)?, flags);
                SystemCall::Receive { fd: fd(0)?, sizes, control_len: 0, flags }
            }
            "recvmsg" => {
                let (message, flags) = (arguments.message_to_fill(1)?, arguments.int(2)?);
                let control_len = control::room(&message.control);
                (expected.flags, expected.control) = (message.flags, message.control);
                on_descriptors = effect_of_receiving(script_fd(0)?, flags);
                SystemCall::Receive { fd: fd(0)?, sizes: message.sizes, control_len, flags }
            }
            "write" => {
                on_descriptors = DescriptorEffect::Write(script_fd(0)?);
                let pieces = self.pieces(script_fd(0)?, &[arguments.buffer(1)?]);
                SystemCall::Write { fd: fd(0)?, pieces }
            }
            "writev" => {
                on_descriptors = DescriptorEffect::Write(script_fd(0)?);
                let pieces = self.pieces(script_fd(0)?, &arguments.vector(1)?);
                SystemCall::Write { fd: fd(0)?, pieces }
            }
            "send" => {
                on_descriptors = DescriptorEffect::Write(script_fd(0)?);
                let pieces = self.pieces(script_fd(0)?, &[arguments.buffer(1)?]);
                SystemCall::Send { fd: fd(0)?, pieces, flags: arguments.int(3)?, address: None }
            }
            "sendto" => {
                let address = arguments.optional_address(4, settings.connect_address())?;
                if let Some(peer) = address.as_ref().and_then(|address| address.socket_addr) {
                    on_connections = ConnectionEffect::Connect(script_fd(0)?, peer);
                }
                on_descriptors = DescriptorEffect::Write(script_fd(0)?);
                let pieces = self.pieces(script_fd(0)?, &[arguments.buffer(1)?]);
                let address = address.map(|address| address.bytes);
                SystemCall::Send { fd: fd(0)?, pieces, flags: arguments.int(3)?, address }
            }
            "sendmsg" => {
                on_descriptors = DescriptorEffect::Write(script_fd(0)?);
                let pieces = self.pieces(script_fd(0)?, &arguments.message_to_send(1)?);
                SystemCall::Send { fd: fd(0)?, pieces, flags: arguments.int(2)?, address: None }
            }
            "shutdown" => SystemCall::Shutdown { fd: fd(0)?, how: arguments.int(1)? },
            "close" => {
                on_descriptors = DescriptorEffect::Close(script_fd(0)?);
                SystemCall::Close { fd: fd(0)? }
            }
            "getsockopt" => {
                let len = arguments.option_len(4)?;
                expected.expect_value(arguments.value(3)?)?;
                let (level, name) = (arguments.int(1)?, arguments.int(2)?);
                SystemCall::GetOption { fd: fd(0)?, level, name, len }
            }
            "setsockopt" => {
                let value = arguments.option_bytes(3, arguments.size(4)?)?;
                let (level, name) = (arguments.int(1)?, arguments.int(2)?);
                SystemCall::SetOption { fd: fd(0)?, level, name, value }
            }
            "fcntl" => {
                let command = arguments.int(1)?;
                if matches!(command, F_DUPFD | F_DUPFD_CLOEXEC) {
                    on_descriptors = DescriptorEffect::Duplicate(script_fd(0)?);
                }
                let argument = if arguments.has(2) { arguments.int(2)? } else { 0 };
                SystemCall::Fcntl { fd: fd(0)?, command, argument }
            }
            "ioctl" => {
                let request = arguments.int(1)?.cast_unsigned();
                let mut argument = 0;
                if arguments.has(2) {
                    let value = arguments.value(2)?;
                    expected.expect_value(value)?;
                    argument = value::bracketed(value)? as i32;
                }
                SystemCall::Ioctl { fd: fd(0)?, request, argument }
            }
            "poll" => {
                let entries = arguments.poll_entries(0, |script_fd| self.fd(script_fd))?;
                let (fds, revents) = entries.into_iter().unzip();
                expected.revents = revents;
                SystemCall::Poll { fds, timeout_ms: arguments.int(2)? }
            }
            "epoll_create" => {
                on_descriptors = DescriptorEffect::Open;
                SystemCall::EpollCreate { size: arguments.int(0)? }
            }
            "epoll_create1" => {
                on_descriptors = DescriptorEffect::Open;
                SystemCall::EpollCreate1 { flags: arguments.int(0)? }
            }
            "epoll_ctl" => {
                let (operation, event) = (arguments.int(1)?, arguments.epoll_event(3)?);
                SystemCall::EpollControl { epoll: fd(0)?, operation, fd: fd(2)?, event }
            }
            "epoll_wait" => {
                expected.events = arguments.epoll_events(1)?;
                let (max_events, timeout_ms) = (arguments.size(2)?, arguments.int(3)?);
                if max_events > MAX_EVENTS {
                    return Err(arguments.error(format!("{MAX_EVENTS} events at most")));
                }
                SystemCall::EpollWait { epoll: fd(0)?, max_events, timeout_ms }
            }
            "pipe" => {
                let (reader, writer) = arguments.pair(0)?;
                on_descriptors = DescriptorEffect::OpenPipe(reader, writer);
                SystemCall::Pipe
            }
            "splice" => {
                arguments.no_offset(1)?;
                arguments.no_offset(3)?;
                on_descriptors = DescriptorEffect::Splice(script_fd(0)?, script_fd(2)?);
                let (len, flags) = (arguments.size(4)?, arguments.int(5)?.cast_unsigned());
                SystemCall::Splice { input: fd(0)?, output: fd(2)?, len, flags }
            }
            name => return Err(arguments.error(format!("unknown system call {name}"))),
        };
        expected.is_descriptor = on_descriptors.opens();
        Ok(PreparedCall { name: spec.name.clone(), call, on_connections, expected, on_descriptors })
    }

    /// Takes over what a call changed. The error says what was wrong with the bytes that it read.
    pub(crate) fn finish(&mut self, prepared: &PreparedCall, reply: &Reply) -> Result<(), String> {
        let Ok(result) = reply.result else { return Ok(()) };
        let bytes = result.max(0) as u64;
        match prepared.on_descriptors {
            DescriptorEffect::None => {}
            DescriptorEffect::Open => {
                if let Some(script_fd) = prepared.opened(reply) {
                    self.open(script_fd, result as Fd, false);
                }
            }
            DescriptorEffect::Duplicate(source) => {
                let source = self.0.get(&source).cloned();
                if let Some((script_fd, open)) = prepared.opened(reply).zip(source) {
                    self.0.insert(script_fd, OpenFd { fd: result as Fd, ..open });
                }
            }
            DescriptorEffect::OpenPipe(reader, writer) => {
                self.open(reader, reply.pipe[0], true);
                self.open(writer, reply.pipe[1], true);
            }
            DescriptorEffect::Close(script_fd) => {
                self.0.remove(&script_fd);
            }
            DescriptorEffect::Write(script_fd) => self.count_written(script_fd, bytes),
            DescriptorEffect::Discard(script_fd) => self.count_read(script_fd, bytes),
            DescriptorEffect::Splice(from, to) => {
                self.count_read(from, bytes);
                self.count_written(to, bytes);
            }
            DescriptorEffect::Read(script_fd) => {
                let open = self.0.get(&script_fd);
                let checked = open.map_or(Ok(()), |open| open.check_read(&reply.data));
                self.count_read(script_fd, bytes);
                checked?;
            }
        }
        Ok(())
    }

    fn open(&mut self, script_fd: ScriptFd, fd: Fd, is_pipe: bool) {
        self.0.insert(script_fd, OpenFd { fd, passed: Rc::default(), is_pipe });
    }

    fn count_written(&self, script_fd: ScriptFd, bytes: u64) {
        if let Some(open) = self.0.get(&script_fd) {
            let passed = open.passed.get();
            open.passed.set(Passed { written: passed.written + bytes, ..passed });
        }
    }

    fn count_read(&self, script_fd: ScriptFd, bytes: u64) {
        if let Some(open) = self.0.get(&script_fd) {
            let passed = open.passed.get();
            open.passed.set(Passed { read: passed.read + bytes, ..passed });
        }
    }
}

impl OpenFd {
    /// Compares what was read next with what the peer sent, or the script wrote into the pipe.
    fn check_read(&self, data: &[u8]) -> Result<(), String> {
        let at = self.passed.get().read;
        let is_own = self.is_pipe && WRITTEN_BYTES.mismatch(at, data).is_none();
        match PEER_BYTES.mismatch(at, data).filter(|_| !is_own) {
            None => Ok(()),
            Some(index) => {
                let byte = at + index as u64;
                Err(format!("byte {index} that was read is not byte {byte} of the stream"))
            }
        }
    }
}
