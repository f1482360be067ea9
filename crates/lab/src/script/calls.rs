//! System calls as a script writes them, to and from those of a host.

mod arguments;
mod check;
mod control;

use super::ast::{CallSpec, Value};
use super::connections::{PEER_BYTES, WRITTEN_BYTES, stream_bytes};
use super::cursor::SyntaxError;
use super::host::{Call, Descriptor, Reply};
use super::settings::Settings;
use arguments::Arguments;
pub(crate) use check::Check;
use core::net::SocketAddr;
use std::collections::BTreeMap;

/// A descriptor that no host has open.
const NOT_OPEN: Descriptor = 999_999;

const MSG_PEEK: i32 = 0x2;
const MSG_TRUNC: i32 = 0x20;
const MSG_ERRQUEUE: i32 = 0x2000;

/// What the script's number of a descriptor stands for.
#[derive(Clone, Copy, Debug)]
struct Open {
    real: Descriptor,
    /// Bytes written so far.
    written: u64,
    /// Bytes read so far.
    read: u64,
    /// What is read was written by the script or came from the peer.
    is_pipe: bool,
}

/// The script's descriptors.
#[derive(Debug, Default)]
pub(crate) struct Descriptors(BTreeMap<i64, Open>);

/// What a call means for the connections of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Nothing.
    None,
    /// A socket got this address.
    Binds(i64, SocketAddr),
    /// A socket listens.
    Listens(i64),
    /// A socket connects.
    Connects(i64, SocketAddr),
    /// A descriptor is made from another.
    Accepts,
}

/// What is to be done with the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    None,
    Opens,
    Closes(i64),
    Writes(i64),
    Reads(i64),
    /// Takes bytes off the stream unseen.
    Drops(i64),
    /// Two descriptors.
    OpensPair(i64, i64),
    /// Takes bytes off one stream and adds them to another.
    Moves(i64, i64),
}

/// A call ready to be made, and what is known of its answer.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) call: Call,
    pub(crate) meaning: Meaning,
    pub(crate) check: Check,
    effect: Effect,
}

impl Descriptors {
    fn open(&mut self, script: i64, real: Descriptor, is_pipe: bool) {
        self.0.insert(script, Open { real, written: 0, read: 0, is_pipe });
    }

    fn real(&self, script: i64) -> Descriptor {
        self.0.get(&script).map_or(NOT_OPEN, |open| open.real)
    }

    /// The host's descriptor, if the script has it open.
    pub(crate) fn get(&self, script: i64) -> Option<Descriptor> {
        self.0.get(&script).map(|open| open.real)
    }

    /// The call of a host that the script asks for.
    ///
    /// # Errors
    /// A call that does not exist, or arguments that it does not take.
    pub(crate) fn prepare(
        &self,
        spec: &CallSpec,
        settings: &Settings,
        at: super::cursor::Position,
    ) -> Result<Prepared, SyntaxError> {
        let arguments = Arguments { spec, settings, at };
        let mut check = Check::new(spec)?;
        let (call, meaning, effect) = match spec.name.as_str() {
            "socket" | "bind" | "listen" | "accept" | "accept4" | "connect" | "shutdown"
            | "close" => self.socket_call(&arguments)?,
            "read" | "readv" | "recv" | "recvfrom" | "recvmsg" => {
                self.receiving_call(&arguments, &mut check)?
            }
            "write" | "writev" | "send" | "sendto" | "sendmsg" => self.sending_call(&arguments)?,
            _ => self.other_call(&arguments, &mut check)?,
        };
        Ok(Prepared { call, meaning, check, effect })
    }

    fn fd(
        &self,
        arguments: &Arguments<'_>,
        index: usize,
    ) -> Result<(i64, Descriptor), SyntaxError> {
        let script = arguments.integer(index)?;
        Ok((script, self.real(script)))
    }

    fn socket_call(
        &self,
        arguments: &Arguments<'_>,
    ) -> Result<(Call, Meaning, Effect), SyntaxError> {
        let name = arguments.spec.name.as_str();
        if name == "socket" {
            arguments.count(3)?;
            let domain = arguments.domain(0)?;
            let call = Call::Socket(domain, arguments.int(1)?, arguments.int(2)?);
            return Ok((call, Meaning::None, Effect::Opens));
        }
        let (script, fd) = self.fd(arguments, 0)?;
        Ok(match name {
            "bind" => {
                let address = arguments.address(1, arguments.settings.bind_address())?;
                let call = Call::Bind(fd, arguments.mapped(address));
                (call, Meaning::Binds(script, address), Effect::None)
            }
            "listen" => {
                (Call::Listen(fd, arguments.int(1)?), Meaning::Listens(script), Effect::None)
            }
            "accept" | "accept4" => {
                let flags = if name == "accept4" { arguments.int(3)? } else { 0 };
                (Call::Accept(fd, flags), Meaning::Accepts, Effect::Opens)
            }
            "connect" => {
                let address = arguments.address(1, arguments.settings.connect_address())?;
                let call = Call::Connect(fd, arguments.mapped(address));
                (call, Meaning::Connects(script, address), Effect::None)
            }
            "shutdown" => (Call::Shutdown(fd, arguments.int(1)?), Meaning::None, Effect::None),
            _ => (Call::Close(fd), Meaning::None, Effect::Closes(script)),
        })
    }

    fn receiving_call(
        &self,
        arguments: &Arguments<'_>,
        check: &mut Check,
    ) -> Result<(Call, Meaning, Effect), SyntaxError> {
        let (script, fd) = self.fd(arguments, 0)?;
        let (call, flags) = match arguments.spec.name.as_str() {
            "read" => (Call::Receive(fd, vec![arguments.size(2)?], None), 0),
            "readv" => {
                let sizes = arguments.pieces(arguments.value(1)?)?;
                (Call::Receive(fd, sizes, None), 0)
            }
            "recvmsg" => {
                let message = arguments.message(1)?;
                check.expect_flags(message.flags);
                let (flags, room) = (arguments.int(2)?, control::room(&message.control));
                check.expect_control(message.control);
                (Call::ReceiveMessage(fd, message.pieces, room, flags), flags)
            }
            _ => {
                let flags = arguments.int(3)?;
                (Call::Receive(fd, vec![arguments.size(2)?], Some(flags)), flags)
            }
        };
        let effect = match flags {
            // What the peer sent is not what an error quotes.
            flags if flags & (MSG_PEEK | MSG_ERRQUEUE) != 0 => Effect::None,
            flags if flags & MSG_TRUNC != 0 => Effect::Drops(script),
            _ => Effect::Reads(script),
        };
        Ok((call, Meaning::None, effect))
    }

    fn sending_call(
        &self,
        arguments: &Arguments<'_>,
    ) -> Result<(Call, Meaning, Effect), SyntaxError> {
        let (script, fd) = self.fd(arguments, 0)?;
        let mut address = None;
        let (sizes, flags) = match arguments.spec.name.as_str() {
            "write" => (vec![arguments.size(2)?], None),
            "writev" => (arguments.pieces(arguments.value(1)?)?, None),
            "send" => (vec![arguments.size(2)?], Some(arguments.int(3)?)),
            "sendto" => {
                address = arguments.optional_address(4, arguments.settings.connect_address())?;
                (vec![arguments.size(2)?], Some(arguments.int(3)?))
            }
            _ => {
                let message = arguments.message(1)?;
                (message.pieces, Some(arguments.int(2)?))
            }
        };
        let mut at = self.0.get(&script).map_or(0, |open| open.written);
        let mut pieces = Vec::new();
        for size in sizes {
            pieces.push(stream_bytes(WRITTEN_BYTES, at, size));
            at += size as u64;
        }
        let connects = address.map_or(Meaning::None, |to| Meaning::Connects(script, to));
        Ok((Call::Send(fd, pieces, flags, address), connects, Effect::Writes(script)))
    }

    fn other_call(
        &self,
        arguments: &Arguments<'_>,
        check: &mut Check,
    ) -> Result<(Call, Meaning, Effect), SyntaxError> {
        let mut effect = Effect::None;
        let call = match arguments.spec.name.as_str() {
            "setsockopt" => {
                arguments.count(5)?;
                let fd = self.fd(arguments, 0)?.1;
                let value = arguments.option_bytes(3, arguments.size(4)?)?;
                Call::SetOption(fd, arguments.int(1)?, arguments.int(2)?, value)
            }
            "getsockopt" => {
                arguments.count(5)?;
                let len = arguments.option_len(4)?;
                check.expect_value(arguments.value(3)?);
                let fd = self.fd(arguments, 0)?.1;
                Call::GetOption(fd, arguments.int(1)?, arguments.int(2)?, len)
            }
            "fcntl" => {
                let command = arguments.int(1)?;
                if command == 0 {
                    effect = Effect::Opens;
                }
                let argument = if arguments.has(2) { arguments.int(2)? } else { 0 };
                Call::Fcntl(self.fd(arguments, 0)?.1, command, argument)
            }
            "ioctl" => {
                let request = arguments.size(1)? as u32;
                let mut value = 0;
                if arguments.has(2) {
                    check.expect_value(arguments.value(2)?);
                    value = arguments.integer_in(arguments.value(2)?).unwrap_or(0) as i32;
                }
                Call::Ioctl(self.fd(arguments, 0)?.1, request, value)
            }
            "poll" => {
                let entries = arguments.poll_entries(0, |fd| self.real(fd))?;
                check.expect_revents(entries.iter().map(|(_, revents)| *revents).collect());
                Call::Poll(entries.into_iter().map(|(entry, _)| entry).collect(), arguments.int(2)?)
            }
            "epoll_create" | "epoll_create1" => {
                effect = Effect::Opens;
                let flags =
                    if arguments.spec.name == "epoll_create" { 0 } else { arguments.int(0)? };
                Call::EpollCreate(flags)
            }
            "epoll_ctl" => {
                let (epoll, fd) = (self.fd(arguments, 0)?.1, self.fd(arguments, 2)?.1);
                Call::EpollControl(epoll, arguments.int(1)?, fd, arguments.epoll_event(3)?)
            }
            "epoll_wait" => {
                check.expect_events(arguments.epoll_events(1)?);
                let most = arguments.size(2)?;
                Call::EpollWait(self.fd(arguments, 0)?.1, most, arguments.int(3)?)
            }
            _ => return self.pipe_call(arguments),
        };
        Ok((call, Meaning::None, effect))
    }

    fn pipe_call(&self, arguments: &Arguments<'_>) -> Result<(Call, Meaning, Effect), SyntaxError> {
        let (call, effect) = match arguments.spec.name.as_str() {
            "pipe" => {
                arguments.count(1)?;
                let (reader, writer) = arguments.pair(0)?;
                (Call::Pipe, Effect::OpensPair(reader, writer))
            }
            "splice" => {
                arguments.count(6)?;
                arguments.no_offset(1)?;
                arguments.no_offset(3)?;
                let (from, input) = self.fd(arguments, 0)?;
                let (to, output) = self.fd(arguments, 2)?;
                let (len, flags) = (arguments.size(4)?, arguments.int(5)?.cast_unsigned());
                (Call::Splice(input, output, len, flags), Effect::Moves(from, to))
            }
            name => return Err(arguments.error(format!("unknown system call {name}"))),
        };
        Ok((call, Meaning::None, effect))
    }

    /// Takes over what a call changed. The error says what was wrong with the bytes that it read.
    pub(crate) fn finish(
        &mut self,
        prepared: &Prepared,
        reply: &Reply,
        result: &Value,
    ) -> Result<(), String> {
        if reply.errno.is_some() {
            return Ok(());
        }
        match prepared.effect {
            Effect::None => {}
            Effect::Opens => {
                let script = arguments::plain_integer(result).unwrap_or(reply.result);
                self.open(script, reply.result as Descriptor, false);
            }
            Effect::OpensPair(reader, writer) => {
                self.open(reader, reply.ends[0], true);
                self.open(writer, reply.ends[1], true);
            }
            Effect::Moves(from, to) => {
                let moved = reply.result.max(0) as u64;
                if let Some(open) = self.0.get_mut(&from) {
                    open.read += moved;
                }
                if let Some(open) = self.0.get_mut(&to) {
                    open.written += moved;
                }
            }
            Effect::Closes(script) => {
                self.0.remove(&script);
            }
            Effect::Writes(script) => {
                if let Some(open) = self.0.get_mut(&script) {
                    open.written += reply.result.max(0) as u64;
                }
            }
            Effect::Drops(script) => {
                if let Some(open) = self.0.get_mut(&script) {
                    open.read += reply.result.max(0) as u64;
                }
            }
            Effect::Reads(script) => {
                if let Some(open) = self.0.get_mut(&script) {
                    let at = open.read;
                    open.read += reply.result.max(0) as u64;
                    let own = open.is_pipe && WRITTEN_BYTES.mismatch(at, &reply.data).is_none();
                    if let Some(wrong) = PEER_BYTES.mismatch(at, &reply.data).filter(|_| !own) {
                        return Err(format!(
                            "byte {wrong} that was read is not byte {} of the stream",
                            at + wrong as u64
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}
