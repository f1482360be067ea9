//! What the values of a script stand for: numbers, and structures with named fields.

use crate::ast::{Field, Value, ValueKind};
use crate::cursor::SyntaxError;
use core::net::{IpAddr, Ipv4Addr};
use neap_posix::abi;

/// Structures that are values of options, and the bytes of each of their fields.
const STRUCTURES: [(&[&str], usize); 2] = [(&["onoff", "linger"], 4), (&["tv_sec", "tv_usec"], 8)];

/// The error of a value that should be something else.
pub(super) fn wrong(value: &Value, what: &str) -> SyntaxError {
    SyntaxError { at: value.at, what: format!("expected {what}") }
}

/// The number that is written, or that the names in it have; `None` if it is none.
pub(super) fn plain_integer(value: &Value) -> Option<i64> {
    match &value.kind {
        ValueKind::Integer(value) => Some(*value),
        ValueKind::Name(name) => abi::number(name),
        ValueKind::Or(parts) => {
            parts.iter().try_fold(0, |sum, part| Some(sum | plain_integer(part)?))
        }
        ValueKind::Function(name, arguments) if name == "htons" => {
            plain_integer(arguments.first()?)
        }
        _ => None,
    }
}

/// The number that is written, or that the names in it have.
pub(super) fn integer(value: &Value) -> Result<i64, SyntaxError> {
    plain_integer(value).ok_or_else(|| wrong(value, "a number or the name of one"))
}

/// A number that is written with brackets around it or without.
pub(super) fn bracketed(value: &Value) -> Result<i64, SyntaxError> {
    match &value.kind {
        ValueKind::List(values) => match &values[..] {
            [value] => integer(value),
            _ => Err(wrong(value, "one value in brackets")),
        },
        _ => integer(value),
    }
}

/// A number that something is to be; `None` for `...`.
pub(super) fn expectation(value: &Value) -> Result<Option<i64>, SyntaxError> {
    if value.kind == ValueKind::Any { Ok(None) } else { integer(value).map(Some) }
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

/// The value of the first field that has one of these names.
pub(super) fn field<'a>(fields: &'a [Field], names: &[&str]) -> Option<&'a Value> {
    fields
        .iter()
        .find(|field| field.name.as_deref().is_some_and(|name| names.contains(&name)))
        .map(|field| &field.value)
}

/// The fields of a structure that is the value of an option, and the bytes of each.
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

/// An address with dots or colons, perhaps in a call that would convert it.
pub(super) fn ip(value: &Value) -> Option<IpAddr> {
    match &value.kind {
        ValueKind::Text(text) => core::str::from_utf8(text).ok()?.parse().ok(),
        ValueKind::Function(name, arguments) if ["inet_addr", "inet_pton"].contains(&&name[..]) => {
            ip(arguments.last()?)
        }
        _ if plain_integer(value) == Some(0) => Some(Ipv4Addr::UNSPECIFIED.into()),
        _ => None,
    }
}
