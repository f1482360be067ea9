//! Arguments of a system call as numbers, addresses and bytes.

use super::control::{self, ControlMessage};
use crate::script::ast::{CallSpec, Field, Value, ValueKind};
use crate::script::constants;
use crate::script::cursor::{Position, SyntaxError};
use crate::script::host::{Descriptor, EpollEvent, PollEntry};
use crate::script::settings::Settings;
use core::net::{IpAddr, SocketAddr};

const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;

/// Largest buffer of one call.
const MAX_SIZE: usize = 64 << 20;

/// Arguments by their index, with what `...` stands for.
pub(super) struct Arguments<'a> {
    pub(super) spec: &'a CallSpec,
    pub(super) settings: &'a Settings,
    pub(super) at: Position,
}

/// `{msg_iov(2)=[...], msg_flags=..., msg_control=[...]}`
pub(super) struct Message {
    pub(super) pieces: Vec<usize>,
    pub(super) flags: Option<i64>,
    pub(super) control: Vec<ControlMessage>,
}

/// A number that is written as one.
pub(super) fn plain_integer(value: &Value) -> Option<i64> {
    match &value.kind {
        ValueKind::Integer(value) => Some(*value),
        ValueKind::Name(name) => constants::value(name),
        ValueKind::Or(parts) => {
            parts.iter().try_fold(0, |sum, part| Some(sum | plain_integer(part)?))
        }
        ValueKind::Call(name, arguments) if name == "htons" => plain_integer(arguments.first()?),
        _ => None,
    }
}

pub(super) fn wrong(value: &Value, what: &str) -> SyntaxError {
    SyntaxError { at: value.at, what: format!("expected {what}") }
}

pub(super) fn field<'a>(fields: &'a [Field], names: &[&str]) -> Option<&'a Value> {
    fields
        .iter()
        .find(|field| field.name.as_deref().is_some_and(|name| names.contains(&name)))
        .map(|field| &field.value)
}

fn text(value: &Value) -> Option<&str> {
    match &value.kind {
        ValueKind::Text(text) => core::str::from_utf8(text).ok(),
        ValueKind::Call(_, arguments) => text(arguments.last()?),
        _ => None,
    }
}

impl Arguments<'_> {
    pub(super) fn error(&self, what: impl Into<String>) -> SyntaxError {
        SyntaxError { at: self.at, what: what.into() }
    }

    pub(super) fn count(&self, count: usize) -> Result<(), SyntaxError> {
        match self.spec.arguments.len() == count {
            true => Ok(()),
            false => Err(self.error(format!("{} takes {count} arguments", self.spec.name))),
        }
    }

    pub(super) fn has(&self, index: usize) -> bool {
        self.spec.arguments.len() > index
    }

    pub(super) fn value(&self, index: usize) -> Result<&Value, SyntaxError> {
        self.spec
            .arguments
            .get(index)
            .ok_or_else(|| self.error(format!("{} takes more arguments", self.spec.name)))
    }

    pub(super) fn integer(&self, index: usize) -> Result<i64, SyntaxError> {
        let value = self.value(index)?;
        plain_integer(value).ok_or_else(|| wrong(value, "a number or the name of one"))
    }

    pub(super) fn int(&self, index: usize) -> Result<i32, SyntaxError> {
        let value = self.integer(index)?;
        i32::try_from(value)
            .or_else(|_| u32::try_from(value).map(u32::cast_signed))
            .map_err(|_| self.error(format!("{value} does not fit an int")))
    }

    pub(super) fn size(&self, index: usize) -> Result<usize, SyntaxError> {
        let value = self.integer(index)?;
        usize::try_from(value)
            .ok()
            .filter(|&size| size <= MAX_SIZE)
            .ok_or_else(|| self.error(format!("{value} is not a size")))
    }

    /// `[5, 6]`
    pub(super) fn pair(&self, index: usize) -> Result<(i64, i64), SyntaxError> {
        let value = self.value(index)?;
        match &value.kind {
            ValueKind::List(ends) => match ends.as_slice() {
                [reader, writer] => plain_integer(reader).zip(plain_integer(writer)),
                _ => None,
            },
            _ => None,
        }
        .ok_or_else(|| wrong(value, "[the end that reads, the end that writes]"))
    }

    /// `NULL` or 0.
    pub(super) fn no_offset(&self, index: usize) -> Result<(), SyntaxError> {
        let value = self.value(index)?;
        let is_null = matches!(&value.kind, ValueKind::Name(name) if name == "NULL");
        match is_null || plain_integer(value) == Some(0) {
            true => Ok(()),
            false => Err(wrong(value, "NULL: neither pipes nor sockets have offsets")),
        }
    }

    pub(super) fn domain(&self, index: usize) -> Result<i32, SyntaxError> {
        match self.value(index)?.kind {
            ValueKind::Any => {
                Ok(if self.settings.is_v6 || self.settings.is_mapped { AF_INET6 } else { AF_INET })
            }
            _ => self.int(index),
        }
    }

    /// The address as a socket of the script's family takes it.
    pub(super) fn mapped(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.settings.is_mapped => {
                (ip.to_ipv6_mapped(), address.port()).into()
            }
            _ => address,
        }
    }

    pub(super) fn address(
        &self,
        index: usize,
        default: SocketAddr,
    ) -> Result<SocketAddr, SyntaxError> {
        Ok(self.optional_address(index, default)?.unwrap_or(default))
    }

    /// An address; `None` for `NULL` and 0.
    pub(super) fn optional_address(
        &self,
        index: usize,
        default: SocketAddr,
    ) -> Result<Option<SocketAddr>, SyntaxError> {
        let value = self.value(index)?;
        let fields = match &value.kind {
            ValueKind::Any => return Ok(Some(default)),
            ValueKind::Integer(0) => return Ok(None),
            ValueKind::Name(name) if name == "NULL" => return Ok(None),
            ValueKind::Fields(fields) => fields,
            _ => return Err(wrong(value, "... or {sa_family = AF_INET, ...}")),
        };
        let port = field(fields, &["sin_port", "sin6_port"]).and_then(plain_integer);
        let port = port.and_then(|port| u16::try_from(port).ok());
        let ip = match field(fields, &["sin_addr", "sin6_addr"]) {
            None => Some(default.ip()),
            Some(value) => match plain_integer(value) {
                Some(0) if default.is_ipv4() => Some(IpAddr::from([0; 4])),
                _ => text(value).and_then(|text| text.parse().ok()),
            },
        };
        match (ip, port) {
            (Some(ip), Some(port)) => Ok(Some((ip, port).into())),
            _ => Err(wrong(value, "an address with sin_port and sin_addr")),
        }
    }

    /// Sizes of `[{..., 100}, {..., 200}]`.
    pub(super) fn pieces(&self, value: &Value) -> Result<Vec<usize>, SyntaxError> {
        let ValueKind::List(pieces) = &value.kind else {
            return Err(wrong(value, "[{..., size}]"));
        };
        let size = |piece: &Value| match &piece.kind {
            ValueKind::Fields(fields) => fields
                .last()
                .and_then(|field| plain_integer(&field.value))
                .and_then(|size| usize::try_from(size).ok())
                .filter(|&size| size <= MAX_SIZE)
                .ok_or_else(|| wrong(piece, "{..., size}")),
            _ => Err(wrong(piece, "{..., size}")),
        };
        pieces.iter().map(size).collect()
    }

    pub(super) fn message(&self, index: usize) -> Result<Message, SyntaxError> {
        let value = self.value(index)?;
        let ValueKind::Fields(fields) = &value.kind else {
            return Err(wrong(value, "{msg_iov(1)=[{..., size}], ...}"));
        };
        let Some(pieces) = field(fields, &["msg_iov"]) else { return Err(wrong(value, "msg_iov")) };
        let flags = field(fields, &["msg_flags"]).and_then(plain_integer);
        let control = field(fields, &["msg_control"]).map(control::expected).transpose()?;
        Ok(Message { pieces: self.pieces(pieces)?, flags, control: control.unwrap_or_default() })
    }

    /// A number, or one in brackets.
    pub(super) fn integer_in(&self, value: &Value) -> Option<i64> {
        match &value.kind {
            ValueKind::List(values) => plain_integer(values.first()?),
            _ => plain_integer(value),
        }
    }

    pub(super) fn option_len(&self, index: usize) -> Result<usize, SyntaxError> {
        let value = self.value(index)?;
        self.integer_in(value)
            .and_then(|len| usize::try_from(len).ok())
            .filter(|&len| len <= MAX_SIZE)
            .ok_or_else(|| wrong(value, "a size in brackets"))
    }

    /// The value of an option in `len` bytes.
    pub(super) fn option_bytes(&self, index: usize, len: usize) -> Result<Vec<u8>, SyntaxError> {
        let value = self.value(index)?;
        let mut bytes = match &value.kind {
            ValueKind::Text(text) => text.clone(),
            ValueKind::Fields(fields) => {
                let size = if len >= 16 { 8 } else { 4 };
                let mut bytes = Vec::new();
                for field in fields {
                    let Some(value) = plain_integer(&field.value) else {
                        return Err(wrong(&field.value, "a number"));
                    };
                    bytes.extend_from_slice(&value.to_le_bytes()[..size]);
                }
                bytes
            }
            _ => match self.integer_in(value) {
                Some(value) => value.to_le_bytes().to_vec(),
                None => return Err(wrong(value, "the value of an option")),
            },
        };
        bytes.resize(len, 0);
        Ok(bytes)
    }

    /// Entries of a poll, and what the script expects of each.
    pub(super) fn poll_entries(
        &self,
        index: usize,
        real: impl Fn(i64) -> Descriptor,
    ) -> Result<Vec<(PollEntry, Option<i64>)>, SyntaxError> {
        let value = self.value(index)?;
        let ValueKind::List(entries) = &value.kind else {
            return Err(wrong(value, "[{fd=4, events=POLLIN, revents=0}]"));
        };
        let entry = |entry: &Value| {
            let ValueKind::Fields(fields) = &entry.kind else { return None };
            let fd = field(fields, &["fd"]).and_then(plain_integer)?;
            let events = field(fields, &["events"]).and_then(plain_integer)? as i16;
            let fd = if fd < 0 { -1 } else { real(fd) };
            let expected = field(fields, &["revents"]).and_then(plain_integer);
            Some((PollEntry { fd, events, revents: 0 }, expected))
        };
        entries
            .iter()
            .map(|value| entry(value).ok_or_else(|| wrong(value, "fd and events")))
            .collect()
    }

    /// `{events=EPOLLIN, fd=4}`; nothing for `...`.
    pub(super) fn epoll_event(&self, index: usize) -> Result<EpollEvent, SyntaxError> {
        let value = self.value(index)?;
        match &value.kind {
            ValueKind::Any => Ok(EpollEvent { events: 0, data: 0 }),
            ValueKind::Integer(0) => Ok(EpollEvent { events: 0, data: 0 }),
            _ => one_event(value),
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
                events.iter().map(one_event).collect::<Result<_, _>>().map(Some)
            }
            _ => Ok(Some(vec![one_event(value)?])),
        }
    }
}

fn one_event(value: &Value) -> Result<EpollEvent, SyntaxError> {
    let ValueKind::Fields(fields) = &value.kind else {
        return Err(wrong(value, "{events=EPOLLIN, fd=4}"));
    };
    let events = field(fields, &["events"]).and_then(plain_integer);
    let data = field(fields, &["fd", "u32", "u64", "ptr"]).and_then(plain_integer);
    match events {
        Some(events) => Ok(EpollEvent { events: events as u32, data: data.unwrap_or(0) as u64 }),
        None => Err(wrong(value, "events")),
    }
}
