//! Arguments of a system call as numbers, addresses and bytes.

use super::control::{self, ControlMessage};
use crate::script::ast::{CallSpec, Field, Value, ValueKind};
use crate::script::constants;
use crate::script::cursor::{Position, SyntaxError};
use crate::script::host::{Descriptor, EpollEvent, PollEntry};
use crate::script::settings::Settings;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use neap_stack::posix::abi::{AF_INET, AF_INET6, AF_UNSPEC};
use neap_stack::posix::sockaddr::{self, SIZE_V4, SIZE_V6};

/// Bytes of one call, in all its buffers.
const MAX_SIZE: usize = 64 << 20;

/// Buffers of one call: some more than `UIO_MAXIOV`, which is refused.
const MAX_PIECES: usize = 2048;

/// Longest address: more than any system takes.
const MAX_ADDRESS_LEN: usize = 256;

/// Structures that are values of options, and the bytes of each of their fields.
const STRUCTURES: [(&[&str], usize); 2] = [(&["onoff", "linger"], 4), (&["tv_sec", "tv_usec"], 8)];

/// An address as a call takes it.
pub(super) struct Address {
    pub(super) bytes: Vec<u8>,
    /// Where it leads, as packets have it; `None` if its family or length is not right.
    pub(super) to: Option<SocketAddr>,
    /// Its family is `AF_UNSPEC`.
    pub(super) is_unspecified: bool,
}

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

/// A number or the name of one.
pub(super) fn number(value: &Value) -> Result<i64, SyntaxError> {
    plain_integer(value).ok_or_else(|| wrong(value, "a number or the name of one"))
}

/// The same as an expectation; `None` for `...`.
pub(super) fn expectation(value: &Value) -> Result<Option<i64>, SyntaxError> {
    if value.kind == ValueKind::Any { Ok(None) } else { number(value).map(Some) }
}

/// The fields of a structure: each at most once, and none but these.
pub(super) fn fields<'a>(value: &'a Value, known: &[&str]) -> Result<&'a [Field], SyntaxError> {
    let form = || format!("{{{}}}", known.join("=..., ") + "=...");
    let ValueKind::Fields(fields) = &value.kind else { return Err(wrong(value, &form())) };
    for (index, field) in fields.iter().enumerate() {
        let is_known = field.name.as_deref().is_some_and(|name| known.contains(&name));
        let is_again = fields[..index].iter().any(|before| before.name == field.name);
        if !is_known || is_again {
            let name = field.name.as_deref().unwrap_or("a value without a name");
            let what = if is_again { "comes twice" } else { "is no field here" };
            let what = format!("{name} {what}: expected {}", form());
            return Err(SyntaxError { at: field.value.at, what });
        }
    }
    Ok(fields)
}

/// The fields of the value of an option, and the bytes of each.
pub(super) fn structure(value: &Value) -> Result<(&[Field], usize), SyntaxError> {
    let ValueKind::Fields(named) = &value.kind else { return Err(wrong(value, "a structure")) };
    let first = named.first().and_then(|field| field.name.as_deref()).unwrap_or_default();
    let found = STRUCTURES.iter().find(|(names, _)| names.first() == Some(&first));
    let Some(&(names, size)) = found else {
        return Err(wrong(value, "{onoff=..., linger=...} or {tv_sec=..., tv_usec=...}"));
    };
    let named = fields(value, names)?;
    match named.len() == names.len() {
        true => Ok((named, size)),
        false => Err(wrong(value, &names.join(" and "))),
    }
}

/// A dotted or colon-separated address, perhaps in a call that would convert it.
fn ip(value: &Value) -> Option<IpAddr> {
    match &value.kind {
        ValueKind::Text(text) => core::str::from_utf8(text).ok()?.parse().ok(),
        ValueKind::Call(name, arguments) if ["inet_addr", "inet_pton"].contains(&&name[..]) => {
            ip(arguments.last()?)
        }
        _ if plain_integer(value) == Some(0) => Some(Ipv4Addr::UNSPECIFIED.into()),
        _ => None,
    }
}

pub(super) fn field<'a>(fields: &'a [Field], names: &[&str]) -> Option<&'a Value> {
    fields
        .iter()
        .find(|field| field.name.as_deref().is_some_and(|name| names.contains(&name)))
        .map(|field| &field.value)
}

impl Arguments<'_> {
    pub(super) fn error(&self, what: impl Into<String>) -> SyntaxError {
        SyntaxError { at: self.at, what: what.into() }
    }

    pub(super) fn count(&self, fewest: usize, most: usize) -> Result<(), SyntaxError> {
        if (fewest..=most).contains(&self.spec.arguments.len()) {
            return Ok(());
        }
        let count = if most > fewest { format!("{fewest} or {most}") } else { most.to_string() };
        let plural = if most == 1 { "" } else { "s" };
        Err(self.error(format!("{} takes {count} argument{plural}", self.spec.name)))
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
        number(self.value(index)?)
    }

    /// `...`: what a script has no say in.
    pub(super) fn any(&self, index: usize) -> Result<(), SyntaxError> {
        let value = self.value(index)?;
        if value.kind == ValueKind::Any { Ok(()) } else { Err(wrong(value, "...")) }
    }

    /// `..., size`: what is read or written is the next bytes of the stream.
    pub(super) fn buffer(&self, index: usize) -> Result<usize, SyntaxError> {
        self.any(index)?;
        self.size(index + 1)
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
    fn mapped(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.settings.is_mapped => {
                (ip.to_ipv6_mapped(), address.port()).into()
            }
            _ => address,
        }
    }

    /// An address and its length: `...` for `default`, or the fields as the call is to take them. The
    /// length may be `...`, or anything.
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
            let len = usize::try_from(number(len)?).ok().filter(|&len| len <= MAX_ADDRESS_LEN);
            let len = len.ok_or_else(|| wrong(value, "an address of 256 bytes at most"))?;
            bytes.resize(len, 0);
        }
        let least = match family {
            AF_INET => SIZE_V4,
            AF_INET6 => SIZE_V6,
            _ => usize::MAX,
        };
        let to = SocketAddr::new(address.ip().to_canonical(), address.port());
        Ok(Address {
            to: (bytes.len() >= least).then_some(to),
            is_unspecified: family == AF_UNSPEC && bytes.len() >= 2,
            bytes,
        })
    }

    /// The same; `None` for `NULL` and 0.
    pub(super) fn optional_address(
        &self,
        index: usize,
        default: SocketAddr,
    ) -> Result<Option<Address>, SyntaxError> {
        let value = self.value(index)?;
        let is_null = match &value.kind {
            ValueKind::Integer(value) => *value == 0,
            ValueKind::Name(name) => name == "NULL",
            _ => false,
        };
        match is_null && expectation(self.value(index + 1)?)?.unwrap_or(0) == 0 {
            true => Ok(None),
            false => self.address(index, default).map(Some),
        }
    }

    /// Sizes of `[{..., 100}, {..., 200}]`, which are as many as `count` says.
    pub(super) fn pieces(
        &self,
        value: &Value,
        count: Option<i64>,
    ) -> Result<Vec<usize>, SyntaxError> {
        let ValueKind::List(pieces) = &value.kind else {
            return Err(wrong(value, "[{..., size}]"));
        };
        self.counted(value, pieces.len(), count)?;
        let mut left = MAX_SIZE;
        let mut sizes = Vec::new();
        for piece in pieces {
            let size = match &piece.kind {
                ValueKind::Fields(fields) => match &fields[..] {
                    [base, len] if base.value.kind == ValueKind::Any => number(&len.value)?,
                    _ => return Err(wrong(piece, "{..., size}")),
                },
                _ => return Err(wrong(piece, "{..., size}")),
            };
            let size = usize::try_from(size).ok().filter(|&size| size <= left);
            let size = size.ok_or_else(|| wrong(piece, "64 MiB at most in all"))?;
            left -= size;
            sizes.push(size);
        }
        Ok(sizes)
    }

    fn counted(&self, list: &Value, len: usize, count: Option<i64>) -> Result<(), SyntaxError> {
        match count {
            _ if len > MAX_PIECES => Err(wrong(list, &format!("{MAX_PIECES} at most"))),
            Some(count) if count != len as i64 => Err(wrong(list, &format!("{count} of these"))),
            _ => Ok(()),
        }
    }

    /// `{msg_name(...)=..., msg_iov(1)=[...], msg_flags=..., msg_control=[...]}`
    pub(super) fn message(&self, index: usize, receives: bool) -> Result<Message, SyntaxError> {
        let value = self.value(index)?;
        let known = ["msg_name", "msg_iov", "msg_flags", "msg_control"];
        let fields = fields(value, &known[..if receives { 4 } else { 3 }])?;
        if let Some(name) = field(fields, &["msg_name"])
            && name.kind != ValueKind::Any
        {
            return Err(wrong(name, "..."));
        }
        let iov = fields.iter().find(|field| field.name.as_deref() == Some("msg_iov"));
        let Some(iov) = iov else { return Err(wrong(value, "msg_iov")) };
        let flags = field(fields, &["msg_flags"]).map(expectation).transpose()?.flatten();
        let control = field(fields, &["msg_control"]).map(control::expected).transpose()?;
        Ok(Message {
            pieces: self.pieces(&iov.value, iov.count)?,
            flags,
            control: control.unwrap_or_default(),
        })
    }

    /// A number, or one in brackets.
    pub(super) fn integer_in(&self, value: &Value) -> Result<i64, SyntaxError> {
        match &value.kind {
            ValueKind::List(values) => match &values[..] {
                [value] => number(value),
                _ => Err(wrong(value, "one value in brackets")),
            },
            _ => number(value),
        }
    }

    pub(super) fn option_len(&self, index: usize) -> Result<usize, SyntaxError> {
        let value = self.value(index)?;
        usize::try_from(self.integer_in(value)?)
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
                    bytes.extend_from_slice(&number(&field.value)?.to_le_bytes()[..size]);
                }
                bytes
            }
            _ => self.integer_in(value)?.to_le_bytes().to_vec(),
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
        self.counted(value, entries.len(), Some(self.integer(index + 1)?))?;
        let entry = |entry: &Value| {
            let fields = fields(entry, &["fd", "events", "revents"])?;
            let part = |name: &str| {
                let value = field(fields, &[name]).ok_or_else(|| wrong(entry, name))?;
                number(value)
            };
            let fd = part("fd")?;
            let events = part("events")? as i16;
            let fd = if fd < 0 { -1 } else { real(fd) };
            let expected = field(fields, &["revents"]).map(expectation).transpose()?;
            Ok((PollEntry { fd, events, revents: 0 }, expected.flatten()))
        };
        entries.iter().map(entry).collect()
    }

    /// `{events=EPOLLIN, fd=4}`; nothing for `...`.
    pub(super) fn epoll_event(&self, index: usize) -> Result<EpollEvent, SyntaxError> {
        let value = self.value(index)?;
        match &value.kind {
            ValueKind::Any | ValueKind::Integer(0) => Ok(EpollEvent { events: 0, data: 0 }),
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
    let named = fields(value, &["events", "fd", "u32", "u64", "ptr"])?;
    let events = field(named, &["events"]).ok_or_else(|| wrong(value, "events"))?;
    let data = field(named, &["fd", "u32", "u64", "ptr"]).map(number).transpose()?;
    Ok(EpollEvent { events: number(events)? as u32, data: data.unwrap_or(0) as u64 })
}

/// `{sa_family = AF_INET, sin_port = htons(80), sin_addr = inet_addr("192.0.2.1")}`, and the same of
/// IPv6. Port and address may be left out of other families.
fn written_address(value: &Value) -> Result<(i64, SocketAddr), SyntaxError> {
    let known = ["sa_family", "sin_port", "sin6_port", "sin_addr", "sin6_addr"];
    let fields = fields(value, &known)?;
    let family = field(fields, &["sa_family"]).ok_or_else(|| wrong(value, "sa_family"))?;
    let family = number(family)?;
    let is_v6 = family == i64::from(AF_INET6);
    let port = match field(fields, &["sin_port", "sin6_port"]) {
        Some(port) => u16::try_from(number(port)?).map_err(|_| wrong(port, "a port"))?,
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
