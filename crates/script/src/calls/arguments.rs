//! Arguments of a system call as numbers, addresses and sizes of buffers.

use super::control::{self, ControlMessage};
use super::value::{bracketed, expectation, field, fields, integer, ip, structure, wrong};
use crate::ast::{CallSpec, Value, ValueKind};
use crate::cursor::{Position, SyntaxError};
use crate::settings::Settings;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use neap_posix::abi::{AF_INET, AF_INET6, AF_UNSPEC};
use neap_posix::sockaddr::{self, SIZE_V4, SIZE_V6};
use neap_posix::{EpollEvent, Fd, PollFd};

/// Bytes of one call, in all its buffers.
const MAX_SIZE: usize = 64 << 20;

/// Buffers of one call: some more than `UIO_MAXIOV`, which is refused.
const MAX_BUFFERS: usize = 2048;

/// Longest address: more than any system takes.
const MAX_ADDRESS_LEN: usize = 256;

/// An address as a call takes it.
pub(super) struct Address {
    /// The `struct sockaddr`.
    pub(super) bytes: Vec<u8>,
    /// The address as packets have it; `None` if its family or length is not right.
    pub(super) socket_addr: Option<SocketAddr>,
    /// Its family is `AF_UNSPEC`.
    pub(super) is_unspecified: bool,
}

/// Arguments by their index, with what `...` stands for.
pub(super) struct Arguments<'a> {
    pub(super) spec: &'a CallSpec,
    pub(super) settings: &'a Settings,
    pub(super) at: Position,
}

/// A message that a call is to fill, and what the script expects in it:
/// `{msg_iov(2)=[...], msg_flags=..., msg_control=[...]}`
pub(super) struct MessageToFill {
    /// Sizes of the buffers.
    pub(super) sizes: Vec<usize>,
    /// `msg_flags`; `None` if they may be any.
    pub(super) flags: Option<i64>,
    /// The control messages.
    pub(super) control: Vec<ControlMessage>,
}

impl Arguments<'_> {
    /// An error of the call as a whole.
    pub(super) fn error(&self, what: impl Into<String>) -> SyntaxError {
        SyntaxError { at: self.at, what: what.into() }
    }

    /// Checks that there are so many arguments.
    pub(super) fn count(&self, fewest: usize, most: usize) -> Result<(), SyntaxError> {
        if (fewest..=most).contains(&self.spec.arguments.len()) {
            return Ok(());
        }
        let count = if most > fewest { format!("{fewest} or {most}") } else { most.to_string() };
        let plural = if most == 1 { "" } else { "s" };
        Err(self.error(format!("{} takes {count} argument{plural}", self.spec.name)))
    }

    /// Whether there is an argument with this index.
    pub(super) fn has(&self, index: usize) -> bool {
        self.spec.arguments.len() > index
    }

    /// The argument as it is written.
    pub(super) fn value(&self, index: usize) -> Result<&Value, SyntaxError> {
        self.spec
            .arguments
            .get(index)
            .ok_or_else(|| self.error(format!("{} takes more arguments", self.spec.name)))
    }

    /// A number.
    pub(super) fn integer(&self, index: usize) -> Result<i64, SyntaxError> {
        integer(self.value(index)?)
    }

    /// `...`: what a script has no say in.
    pub(super) fn any(&self, index: usize) -> Result<(), SyntaxError> {
        let value = self.value(index)?;
        if value.kind == ValueKind::Any { Ok(()) } else { Err(wrong(value, "...")) }
    }

    /// `..., size`: the size of a buffer whose bytes are the next ones of the stream.
    pub(super) fn buffer(&self, index: usize) -> Result<usize, SyntaxError> {
        self.any(index)?;
        self.size(index + 1)
    }

    /// `[{..., 100}, {..., 200}], 2`: the sizes of buffers, and how many there are.
    pub(super) fn vector(&self, index: usize) -> Result<Vec<usize>, SyntaxError> {
        buffers(self.value(index)?, Some(self.integer(index + 1)?))
    }

    /// A number of 32 bits, with or without a sign.
    pub(super) fn int(&self, index: usize) -> Result<i32, SyntaxError> {
        let value = self.integer(index)?;
        i32::try_from(value)
            .or_else(|_| u32::try_from(value).map(u32::cast_signed))
            .map_err(|_| self.error(format!("{value} does not fit an int")))
    }

    /// How many bytes there are.
    pub(super) fn size(&self, index: usize) -> Result<usize, SyntaxError> {
        let value = self.integer(index)?;
        usize::try_from(value)
            .ok()
            .filter(|&size| size <= MAX_SIZE)
            .ok_or_else(|| self.error(format!("{value} is not a size")))
    }

    /// `[5, 6]`: the two ends of a pipe.
    pub(super) fn pair(&self, index: usize) -> Result<(i64, i64), SyntaxError> {
        let value = self.value(index)?;
        match &value.kind {
            ValueKind::List(ends) => match ends.as_slice() {
                [reader, writer] => integer(reader).ok().zip(integer(writer).ok()),
                _ => None,
            },
            _ => None,
        }
        .ok_or_else(|| wrong(value, "[the end that reads, the end that writes]"))
    }

    /// `NULL` or 0.
    pub(super) fn no_offset(&self, index: usize) -> Result<(), SyntaxError> {
        let value = self.value(index)?;
        match is_null(value) {
            true => Ok(()),
            false => Err(wrong(value, "NULL: neither pipes nor sockets have offsets")),
        }
    }

    /// The domain of a socket; `...` is the script's.
    pub(super) fn domain(&self, index: usize) -> Result<i32, SyntaxError> {
        match self.value(index)?.kind {
            ValueKind::Any => {
                Ok(if self.settings.is_v6 || self.settings.is_mapped { AF_INET6 } else { AF_INET })
            }
            _ => self.int(index),
        }
    }

    /// The address as a socket of the script's family takes it.
    fn mapped(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.settings.is_mapped => {
                (ip.to_ipv6_mapped(), address.port()).into()
            }
            _ => address,
        }
    }

    /// An address and its length: `...` for `default`, or the fields as the call is to take them.
    /// The length may be `...`, or anything.
    pub(super) fn address(
        &self,
        index: usize,
        default: SocketAddr,
    ) -> Result<Address, SyntaxError> {
        let value = self.value(index)?;
        let (family, address) = match &value.kind {
            ValueKind::Any => {
                let address = self.mapped(default);
                (i64::from(if address.is_ipv4() { AF_INET } else { AF_INET6 }), address)
            }
            _ => written_address(value)?,
        };
        let mut bytes = sockaddr::encode(address).to_vec();
        let family = u16::try_from(family).map_err(|_| wrong(value, "a family of 16 bits"))?;
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        let family = i32::from(family);
        let len = self.value(index + 1)?;
        if len.kind != ValueKind::Any {
            let len = usize::try_from(integer(len)?).ok().filter(|&len| len <= MAX_ADDRESS_LEN);
            let len = len.ok_or_else(|| wrong(value, "an address of 256 bytes at most"))?;
            bytes.resize(len, 0);
        }
        let least = match family {
            AF_INET => SIZE_V4,
            AF_INET6 => SIZE_V6,
            _ => usize::MAX,
        };
        let socket_addr = SocketAddr::new(address.ip().to_canonical(), address.port());
        Ok(Address {
            socket_addr: (bytes.len() >= least).then_some(socket_addr),
            is_unspecified: family == AF_UNSPEC && bytes.len() >= 2,
            bytes,
        })
    }

    /// An address and its length as [`address`](Self::address) takes them; `None` for `NULL` and 0.
    pub(super) fn optional_address(
        &self,
        index: usize,
        default: SocketAddr,
    ) -> Result<Option<Address>, SyntaxError> {
        let len = expectation(self.value(index + 1)?)?;
        match is_null(self.value(index)?) && len.unwrap_or(0) == 0 {
            true => Ok(None),
            false => self.address(index, default).map(Some),
        }
    }

    /// `{msg_name(...)=..., msg_iov(1)=[...], msg_flags=...}`: sizes of the buffers of a message.
    pub(super) fn message_to_send(&self, index: usize) -> Result<Vec<usize>, SyntaxError> {
        let value = self.value(index)?;
        let fields = fields(value, &["msg_name", "msg_iov", "msg_flags"])?;
        field(fields, &["msg_flags"]).map(expectation).transpose()?;
        message_buffers(value)
    }

    /// `{msg_name(...)=..., msg_iov(1)=[...], msg_flags=..., msg_control=[...]}`
    pub(super) fn message_to_fill(&self, index: usize) -> Result<MessageToFill, SyntaxError> {
        let value = self.value(index)?;
        let fields = fields(value, &["msg_name", "msg_iov", "msg_flags", "msg_control"])?;
        let flags = field(fields, &["msg_flags"]).map(expectation).transpose()?.flatten();
        let control = field(fields, &["msg_control"]).map(control::expected).transpose()?;
        let sizes = message_buffers(value)?;
        Ok(MessageToFill { sizes, flags, control: control.unwrap_or_default() })
    }

    /// The length of an option's value, in brackets.
    pub(super) fn option_len(&self, index: usize) -> Result<usize, SyntaxError> {
        let value = self.value(index)?;
        usize::try_from(bracketed(value)?)
            .ok()
            .filter(|&len| len <= MAX_SIZE)
            .ok_or_else(|| wrong(value, "a size in brackets"))
    }

    /// The value of an option in `len` bytes.
    pub(super) fn option_bytes(&self, index: usize, len: usize) -> Result<Vec<u8>, SyntaxError> {
        let value = self.value(index)?;
        let mut bytes = match &value.kind {
            ValueKind::Text(text) => text.clone(),
            ValueKind::Fields(_) => {
                let (fields, size) = structure(value)?;
                let mut bytes = Vec::new();
                for field in fields {
                    bytes.extend_from_slice(&integer(&field.value)?.to_le_bytes()[..size]);
                }
                bytes
            }
            _ => bracketed(value)?.to_le_bytes().to_vec(),
        };
        bytes.resize(len, 0);
        Ok(bytes)
    }

    /// Entries of a poll, and the `revents` that the script expects of each; `None` if they may be
    /// any. The count of entries is the argument behind them.
    pub(super) fn poll_entries(
        &self,
        index: usize,
        fd_of: impl Fn(i64) -> Fd,
    ) -> Result<Vec<(PollFd, Option<i64>)>, SyntaxError> {
        let value = self.value(index)?;
        let ValueKind::List(entries) = &value.kind else {
            return Err(wrong(value, "[{fd=4, events=POLLIN, revents=0}]"));
        };
        check_count(value, entries.len(), Some(self.integer(index + 1)?))?;
        let entry = |entry: &Value| {
            let fields = fields(entry, &["fd", "events", "revents"])?;
            let part = |name: &str| {
                let value = field(fields, &[name]).ok_or_else(|| wrong(entry, name))?;
                integer(value)
            };
            let fd = part("fd")?;
            let events = part("events")? as i16;
            let fd = if fd < 0 { -1 } else { fd_of(fd) };
            let expected = field(fields, &["revents"]).map(expectation).transpose()?;
            Ok((PollFd { fd, events, revents: 0 }, expected.flatten()))
        };
        entries.iter().map(entry).collect()
    }

    /// `{events=EPOLLIN, fd=4}`; nothing for `...`.
    pub(super) fn epoll_event(&self, index: usize) -> Result<EpollEvent, SyntaxError> {
        let value = self.value(index)?;
        match &value.kind {
            ValueKind::Any | ValueKind::Integer(0) => Ok(EpollEvent::default()),
            _ => written_event(value),
        }
    }

    /// The events that an `epoll_wait` is to report; `None` for any.
    pub(super) fn epoll_events(
        &self,
        index: usize,
    ) -> Result<Option<Vec<EpollEvent>>, SyntaxError> {
        let value = self.value(index)?;
        match &value.kind {
            ValueKind::Any => Ok(None),
            ValueKind::List(events) => {
                events.iter().map(written_event).collect::<Result<_, _>>().map(Some)
            }
            _ => Ok(Some(vec![written_event(value)?])),
        }
    }
}

/// Whether a value is `NULL` or 0.
fn is_null(value: &Value) -> bool {
    match &value.kind {
        ValueKind::Integer(value) => *value == 0,
        ValueKind::Name(name) => name == "NULL",
        _ => false,
    }
}

/// Checks how many values a list has.
fn check_count(list: &Value, len: usize, count: Option<i64>) -> Result<(), SyntaxError> {
    match count {
        _ if len > MAX_BUFFERS => Err(wrong(list, &format!("{MAX_BUFFERS} at most"))),
        Some(count) if count != len as i64 => Err(wrong(list, &format!("{count} of these"))),
        _ => Ok(()),
    }
}

/// Sizes of `[{..., 100}, {..., 200}]`, which are as many as `count` says.
fn buffers(value: &Value, count: Option<i64>) -> Result<Vec<usize>, SyntaxError> {
    let ValueKind::List(buffers) = &value.kind else {
        return Err(wrong(value, "[{..., size}]"));
    };
    check_count(value, buffers.len(), count)?;
    let mut left = MAX_SIZE;
    let mut sizes = Vec::new();
    for buffer in buffers {
        let size = match &buffer.kind {
            ValueKind::Fields(fields) => match &fields[..] {
                [base, len] if base.value.kind == ValueKind::Any => integer(&len.value)?,
                _ => return Err(wrong(buffer, "{..., size}")),
            },
            _ => return Err(wrong(buffer, "{..., size}")),
        };
        let size = usize::try_from(size).ok().filter(|&size| size <= left);
        let size = size.ok_or_else(|| wrong(buffer, "64 MiB at most in all"))?;
        left -= size;
        sizes.push(size);
    }
    Ok(sizes)
}

/// Sizes of the buffers of `{msg_name(...)=..., msg_iov(1)=[...]}`.
fn message_buffers(message: &Value) -> Result<Vec<usize>, SyntaxError> {
    let ValueKind::Fields(fields) = &message.kind else { return Err(wrong(message, "a message")) };
    if let Some(name) = field(fields, &["msg_name"])
        && name.kind != ValueKind::Any
    {
        return Err(wrong(name, "..."));
    }
    let iov = fields.iter().find(|field| field.name.as_deref() == Some("msg_iov"));
    let iov = iov.ok_or_else(|| wrong(message, "msg_iov"))?;
    buffers(&iov.value, iov.count)
}

/// `{events=EPOLLIN, fd=4}`
fn written_event(value: &Value) -> Result<EpollEvent, SyntaxError> {
    let named = fields(value, &["events", "fd", "u32", "u64", "ptr"])?;
    let events = field(named, &["events"]).ok_or_else(|| wrong(value, "events"))?;
    let data = field(named, &["fd", "u32", "u64", "ptr"]).map(integer).transpose()?;
    Ok(EpollEvent { events: integer(events)? as u32, data: data.unwrap_or(0) as u64 })
}

/// `{sa_family = AF_INET, sin_port = htons(80), sin_addr = inet_addr("192.0.2.1")}`, and the same
/// of IPv6. Port and address may be left out of other families.
fn written_address(value: &Value) -> Result<(i64, SocketAddr), SyntaxError> {
    let known = ["sa_family", "sin_port", "sin6_port", "sin_addr", "sin6_addr"];
    let fields = fields(value, &known)?;
    let family = field(fields, &["sa_family"]).ok_or_else(|| wrong(value, "sa_family"))?;
    let family = integer(family)?;
    let is_v6 = family == i64::from(AF_INET6);
    let port = match field(fields, &["sin_port", "sin6_port"]) {
        Some(port) => u16::try_from(integer(port)?).map_err(|_| wrong(port, "a port"))?,
        None if is_v6 || family == i64::from(AF_INET) => return Err(wrong(value, "sin_port")),
        None => 0,
    };
    let address = match field(fields, &["sin_addr", "sin6_addr"]) {
        Some(written) => {
            let kind = if is_v6 { "an address of IPv6" } else { "an address of IPv4" };
            ip(written).filter(|ip| ip.is_ipv6() == is_v6).ok_or_else(|| wrong(written, kind))?
        }
        None if is_v6 || family == i64::from(AF_INET) => return Err(wrong(value, "sin_addr")),
        None => Ipv4Addr::UNSPECIFIED.into(),
    };
    Ok((family, (address, port).into()))
}
