//! Arguments and results of system calls.

use crate::ast::{Field, Value, ValueKind};
use crate::cursor::{Cursor, Parsed};

/// Levels of brackets.
const MAX_DEPTH: u32 = 16;

/// Values up to `end`, with commas between.
pub(super) fn list(cursor: &mut Cursor<'_>, end: &str, depth: u32) -> Parsed<Vec<Value>> {
    let mut values = Vec::new();
    if cursor.eat(end) {
        return Ok(values);
    }
    loop {
        values.push(value(cursor, depth + 1)?);
        if cursor.eat(end) {
            return Ok(values);
        }
        if !cursor.eat(",") {
            return Err(cursor.expected(&format!("a comma or {end:?}")));
        }
    }
}

/// One value.
pub(super) fn value(cursor: &mut Cursor<'_>, depth: u32) -> Parsed<Value> {
    let at = cursor.position();
    let first = simple(cursor, depth)?;
    if !cursor.looks_at("|") {
        return Ok(first);
    }
    let mut all = vec![first];
    while cursor.eat("|") {
        all.push(simple(cursor, depth)?);
    }
    Ok(Value { at, kind: ValueKind::Or(all) })
}

fn simple(cursor: &mut Cursor<'_>, depth: u32) -> Parsed<Value> {
    let at = cursor.position();
    if depth > MAX_DEPTH {
        return Err(cursor.error("too deep"));
    }
    let kind = if cursor.eat("...") {
        ValueKind::Any
    } else if cursor.eat("[") {
        ValueKind::List(list(cursor, "]", depth)?)
    } else if cursor.eat("{") {
        ValueKind::Fields(fields(cursor, depth)?)
    } else if cursor.eat("\"") {
        ValueKind::Text(text(cursor)?)
    } else if let Some(name) = cursor.name() {
        match cursor.eat("(") {
            true => ValueKind::Function(name.to_owned(), list(cursor, ")", depth)?),
            false => ValueKind::Name(name.to_owned()),
        }
    } else {
        shifted(cursor)?
    };
    Ok(Value { at, kind })
}

/// Bytes up to the quote, with the escapes that packetdrill knows.
fn text(cursor: &mut Cursor<'_>) -> Parsed<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let mut here = *cursor;
        match cursor.bump() {
            None => return Err(cursor.expected("a closing quote")),
            Some('"') => return Ok(bytes),
            Some('\\') => bytes.push(escape(cursor).ok_or_else(|| here.expected("an escape"))?),
            Some(char) => bytes.extend(char.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
}

/// `f`, `n`, `r`, `t`, `v` or `x` and two digits.
fn escape(cursor: &mut Cursor<'_>) -> Option<u8> {
    Some(match cursor.bump()? {
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        'x' => {
            let digits = [cursor.bump()?.to_digit(16)?, cursor.bump()?.to_digit(16)?];
            (digits[0] * 16 + digits[1]) as u8
        }
        _ => return None,
    })
}

/// `1`, `1<<10`
fn shifted(cursor: &mut Cursor<'_>) -> Parsed<ValueKind> {
    let Ok(value) = cursor.integer() else { return Err(cursor.expected("a value")) };
    if !cursor.eat("<<") {
        return Ok(ValueKind::Integer(value));
    }
    let shift: u32 = cursor.integer_as()?;
    match value.checked_shl(shift) {
        Some(value) => Ok(ValueKind::Integer(value)),
        None => Err(cursor.error("shifted too far")),
    }
}

/// `name=value` or `value`, up to the brace. A name may be followed by a length: `msg_iov(1)=...`.
fn fields(cursor: &mut Cursor<'_>, depth: u32) -> Parsed<Vec<Field>> {
    let mut fields = Vec::new();
    while !cursor.eat("}") {
        let mut ahead = *cursor;
        let mut name = ahead.name();
        let mut count = None;
        if name.is_some() && ahead.eat("(") {
            if !ahead.eat("...") {
                count = ahead.integer().ok();
            }
            ahead.eat(")");
        }
        match name.is_some() && ahead.eat("=") {
            true => *cursor = ahead,
            false => (name, count) = (None, None),
        }
        let value = value(cursor, depth + 1)?;
        fields.push(Field { name: name.map(str::to_owned), count, value });
        if !cursor.looks_at("}") && !cursor.eat(",") {
            return Err(cursor.expected("a comma or a closing brace"));
        }
    }
    Ok(fields)
}
