//! Whether a reply is what the script expects.

use super::arguments::plain_integer;
use super::control::{self, ControlMessage};
use crate::script::ast::{CallSpec, Field, Value, ValueKind};
use crate::script::constants;
use crate::script::cursor::SyntaxError;
use crate::script::host::{EpollEvent, Reply};

/// What a script expects of a reply. Descriptors that a call makes are taken as they come.
#[derive(Debug, Default)]
pub(crate) struct Check {
    result: Option<i64>,
    /// `None`: the call must not fail.
    errno: Option<i32>,
    makes_descriptor: bool,
    value: Option<Value>,
    flags: Option<i64>,
    control: Vec<ControlMessage>,
    revents: Vec<Option<i64>>,
    events: Option<Vec<EpollEvent>>,
}

impl Check {
    pub(super) fn new(spec: &CallSpec) -> Result<Self, SyntaxError> {
        let result = &spec.result;
        let error = |what: String| SyntaxError { at: result.at, what };
        let mut check = Self { result: plain_integer(result), ..Self::default() };
        check.makes_descriptor = matches!(
            spec.name.as_str(),
            "socket" | "accept" | "accept4" | "epoll_create" | "epoll_create1"
        );
        if check.result.is_none() {
            return Err(error("expected a number".into()));
        }
        if let Some(name) = &spec.errno {
            check.errno = constants::errno(name);
            if check.errno.is_none() {
                return Err(error(format!("unknown error {name}")));
            }
        }
        Ok(check)
    }

    pub(super) fn expect_value(&mut self, value: &Value) {
        self.value = Some(value.clone());
    }

    pub(super) fn expect_flags(&mut self, flags: Option<i64>) {
        self.flags = flags;
    }

    pub(super) fn expect_control(&mut self, control: Vec<ControlMessage>) {
        self.control = control;
    }

    pub(super) fn expect_revents(&mut self, revents: Vec<Option<i64>>) {
        self.revents = revents;
    }

    pub(super) fn expect_events(&mut self, events: Option<Vec<EpollEvent>>) {
        self.events = events;
    }

    /// The error says what differs.
    pub(crate) fn reply(&self, reply: &Reply) -> Result<(), String> {
        if reply.errno != self.errno {
            let expected = match self.errno {
                Some(errno) => constants::show_errno(errno),
                None => self.result.unwrap_or(0).to_string(),
            };
            let is = reply.errno.map_or_else(|| reply.result.to_string(), constants::show_errno);
            return Err(format!("returned {is}, expected {expected}"));
        }
        let fits = match self.makes_descriptor {
            true => (self.result >= Some(0)) == (reply.result >= 0),
            false => self.result == Some(reply.result),
        };
        if !fits {
            let expected = self.result.unwrap_or(0);
            return Err(format!("returned {}, expected {expected}", reply.result));
        }
        if reply.errno.is_none() {
            self.outputs(reply)?;
        }
        Ok(())
    }

    fn outputs(&self, reply: &Reply) -> Result<(), String> {
        if let Some(value) = &self.value {
            same_value(value, &reply.data)?;
        }
        if let Some(flags) = self.flags.filter(|&flags| flags != i64::from(reply.flags)) {
            let is = constants::show_bits("MSG_", reply.flags as u32);
            let expected = constants::show_bits("MSG_", flags as u32);
            return Err(format!("msg_flags is {is}, expected {expected}"));
        }
        control::compare(&self.control, &reply.control)?;
        for (entry, expected) in reply.entries.iter().zip(&self.revents) {
            let revents = entry.revents as u16;
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

fn show_events(events: &[EpollEvent]) -> String {
    let show = |event: &EpollEvent| {
        format!("{{events={}, fd={}}}", constants::show_bits("EPOLL", event.events), event.data)
    };
    events.iter().map(show).collect::<Vec<_>>().join(", ")
}

/// Little-endian, as this machine's.
fn integer(bytes: &[u8]) -> i64 {
    let mut value = [0; 8];
    let len = bytes.len().min(8);
    value[..len].copy_from_slice(&bytes[..len]);
    let value = i64::from_le_bytes(value);
    if len == 4 { i64::from(value as i32) } else { value }
}

fn same_value(expected: &Value, data: &[u8]) -> Result<(), String> {
    match &expected.kind {
        ValueKind::Any => Ok(()),
        ValueKind::Text(text) if text == data => Ok(()),
        ValueKind::Text(text) => {
            let (is, text) = (data.escape_ascii(), text.escape_ascii());
            Err(format!("the value is \"{is}\", expected \"{text}\""))
        }
        ValueKind::Fields(fields) => same_fields(fields, data),
        ValueKind::List(values) => match values.first() {
            Some(value) => same_value(value, data),
            None => Ok(()),
        },
        _ => match plain_integer(expected) {
            Some(expected) if integer(data) == expected => Ok(()),
            // An unsigned one.
            Some(expected) if data.len() == 4 && integer(data) as u32 == expected as u32 => Ok(()),
            Some(expected) => Err(format!("the value is {}, expected {expected}", integer(data))),
            None => Err("the expected value is no number".into()),
        },
    }
}

fn same_fields(fields: &[Field], data: &[u8]) -> Result<(), String> {
    let size = (data.len() / fields.len().max(1)).max(1);
    for (field, bytes) in fields.iter().zip(data.chunks(size)) {
        if let Some(expected) = plain_integer(&field.value).filter(|&value| value != integer(bytes))
        {
            let name = field.name.as_deref().unwrap_or("a field");
            return Err(format!("{name} is {}, expected {expected}", integer(bytes)));
        }
    }
    Ok(())
}
