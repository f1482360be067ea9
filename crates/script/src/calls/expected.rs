//! Whether a reply is what the script expects.

use super::control::{self, ControlMessage};
use super::value::{expectation, plain_integer, structure, wrong};
use crate::ast::{CallSpec, Value, ValueKind};
use crate::constants;
use crate::cursor::SyntaxError;
use crate::host::Reply;
use neap_posix::{EpollEvent, Errno};

/// What a script expects of a reply; what it does not say may be anything.
#[derive(Debug, Default)]
pub(crate) struct ExpectedReply {
    /// What the call returns, which is -1 if it fails.
    pub(super) result: Option<i64>,
    /// The error; without one the call must not fail.
    errno: Option<Errno>,
    /// The result is a descriptor, which the host may number as it likes.
    pub(super) is_descriptor: bool,
    /// The value of an option or of an `ioctl`.
    value: Option<Value>,
    /// `msg_flags`
    pub(super) flags: Option<i64>,
    /// Control messages of a received message.
    pub(super) control: Vec<ControlMessage>,
    /// `revents` of each entry of a `poll`.
    pub(super) revents: Vec<Option<i64>>,
    /// The first events that `epoll_wait` reports.
    pub(super) events: Option<Vec<EpollEvent>>,
}

impl ExpectedReply {
    /// The result and the error that stand behind a call.
    pub(super) fn new(spec: &CallSpec) -> Result<Self, SyntaxError> {
        let result = &spec.result;
        let error = |what: String| SyntaxError { at: result.at, what };
        let mut expected = Self { result: plain_integer(result), ..Self::default() };
        if expected.result.is_none() {
            return Err(error("expected a number".into()));
        }
        if let Some(name) = &spec.errno {
            let errno = Errno::named(name);
            expected.errno = Some(errno.ok_or_else(|| error(format!("unknown error {name}")))?);
        }
        Ok(expected)
    }

    /// The call is to give this value.
    pub(super) fn expect_value(&mut self, value: &Value) -> Result<(), SyntaxError> {
        check_comparable(value)?;
        self.value = Some(value.clone());
        Ok(())
    }

    /// Compares a reply. The error says what differs.
    pub(crate) fn compare(&self, reply: &Reply) -> Result<(), String> {
        if reply.errno() != self.errno {
            let expected = match self.errno {
                Some(errno) => constants::show_errno(errno),
                None => self.result.unwrap_or(0).to_string(),
            };
            return Err(format!("returned {reply}, expected {expected}"));
        }
        let fits = match self.is_descriptor {
            true => (self.result >= Some(0)) == (reply.value() >= 0),
            false => self.result == Some(reply.value()),
        };
        if !fits {
            let expected = self.result.unwrap_or(0);
            return Err(format!("returned {}, expected {expected}", reply.value()));
        }
        if reply.errno().is_none() {
            self.compare_outputs(reply)?;
        }
        Ok(())
    }

    /// Compares what a call that succeeded gave besides its result.
    fn compare_outputs(&self, reply: &Reply) -> Result<(), String> {
        if let Some(value) = &self.value {
            compare_value(value, &reply.data)?;
        }
        if let Some(flags) = self.flags.filter(|&flags| flags != i64::from(reply.flags)) {
            let is = constants::show_bits("MSG_", reply.flags.cast_unsigned());
            let expected = constants::show_bits("MSG_", flags as u32);
            return Err(format!("msg_flags is {is}, expected {expected}"));
        }
        control::compare(&self.control, &reply.control)?;
        for (one, expected) in reply.fds.iter().zip(&self.revents) {
            let revents = one.revents.cast_unsigned();
            if let Some(expected) = expected.filter(|&expected| expected != i64::from(revents)) {
                let is = constants::show_bits("POLL", revents.into());
                let expected = constants::show_bits("POLL", expected as u32);
                return Err(format!("revents is {is}, expected {expected}"));
            }
        }
        if let Some(events) = &self.events
            && !events.iter().take(reply.events.len()).eq(reply.events.iter())
        {
            return Err(format!(
                "events are {}, expected {}",
                show_events(&reply.events),
                show_events(events)
            ));
        }
        Ok(())
    }
}

/// Events of epoll as a script writes them.
fn show_events(events: &[EpollEvent]) -> String {
    let show = |event: &EpollEvent| {
        format!("{{events={}, fd={}}}", constants::show_bits("EPOLL", event.events), event.data)
    };
    events.iter().map(show).collect::<Vec<_>>().join(", ")
}

/// An integer of the host: little-endian, of four bytes with a sign.
fn integer_of(bytes: &[u8]) -> i64 {
    let mut value = [0; 8];
    let len = bytes.len().min(8);
    value[..len].copy_from_slice(&bytes[..len]);
    let value = i64::from_le_bytes(value);
    if len == 4 { i64::from(value as i32) } else { value }
}

/// Checks that a value is one that [`compare_value`] can compare.
fn check_comparable(value: &Value) -> Result<(), SyntaxError> {
    match &value.kind {
        ValueKind::Text(_) => Ok(()),
        ValueKind::Fields(_) => {
            structure(value)?.0.iter().try_for_each(|field| expectation(&field.value).map(|_| ()))
        }
        ValueKind::List(values) => match &values[..] {
            [value] => check_comparable(value),
            _ => Err(wrong(value, "one value in brackets")),
        },
        _ => expectation(value).map(|_| ()),
    }
}

/// Compares the value of an option or of an `ioctl`. The error says what differs.
fn compare_value(expected: &Value, data: &[u8]) -> Result<(), String> {
    match &expected.kind {
        ValueKind::Any => Ok(()),
        ValueKind::Text(text) if text == data => Ok(()),
        ValueKind::Text(text) => {
            let (is, text) = (data.escape_ascii(), text.escape_ascii());
            Err(format!("the value is \"{is}\", expected \"{text}\""))
        }
        ValueKind::Fields(_) => compare_fields(expected, data),
        ValueKind::List(values) => match values.first() {
            Some(value) => compare_value(value, data),
            None => Ok(()),
        },
        _ => match plain_integer(expected) {
            Some(expected) if integer_of(data) == expected => Ok(()),
            // An unsigned one.
            Some(expected) if data.len() == 4 && integer_of(data) as u32 == expected as u32 => {
                Ok(())
            }
            Some(expected) => {
                Err(format!("the value is {}, expected {expected}", integer_of(data)))
            }
            None => Err("the expected value is no number".into()),
        },
    }
}

/// Compares a structure field by field. The error says what differs.
fn compare_fields(expected: &Value, data: &[u8]) -> Result<(), String> {
    let (fields, size) = structure(expected).map_err(|error| error.what)?;
    if data.len() != fields.len() * size {
        return Err(format!("the value has {} bytes", data.len()));
    }
    for (field, bytes) in fields.iter().zip(data.chunks(size)) {
        if let Some(expected) =
            plain_integer(&field.value).filter(|&value| value != integer_of(bytes))
        {
            let name = field.name.as_deref().unwrap_or_default();
            return Err(format!("{name} is {}, expected {expected}", integer_of(bytes)));
        }
    }
    Ok(())
}
