//! Parser of scripts: lines of options, then events.

mod packet;
mod value;

use crate::ast::{CallSpec, Event, EventKind, Script, Setting, When};
use crate::cursor::{Cursor, Parsed, Position, SyntaxError};
use crate::expression;
use neap_tcp::time::Nanos;

/// Longest time that a script may speak of: some years.
const MAX_SECONDS: u64 = 100_000_000;

/// Parses a whole script.
///
/// # Errors
/// [`SyntaxError`] with the place.
pub fn parse(text: &str) -> Parsed<Script> {
    let mut script = Script::default();
    let mut cursor = Cursor::new(text);
    while !cursor.is_at_end() {
        if cursor.looks_at("--") {
            script.options.push(option(&mut cursor)?);
        } else if cursor.looks_at("`") {
            sysctls(&mut cursor, &mut script)?;
        } else {
            let is_v6 = script.options.iter().any(Setting::is_v6);
            script.events.push(event(&mut cursor, is_v6)?);
        }
    }
    cursor.check_comments()?;
    if script.events.is_empty() {
        return Err(cursor.error("a script without events"));
    }
    remarks(text, &mut script)?;
    Ok(script)
}

/// What comments tell the runner: `linux: skip, REASON`; `linux: differs, REASON` beside or above
/// the event where Linux does something else.
fn remarks(text: &str, script: &mut Script) -> Parsed<()> {
    for (line, number) in text.lines().zip(1..) {
        let Some(begin) = comment(line) else { continue };
        let Some(remark) = line[begin..].trim_start_matches(['#', '/', ' ']).strip_prefix("linux:")
        else {
            continue;
        };
        let column = line[..begin].chars().count() as u32 + 1;
        let error = |what: &str| {
            let at = Position { line: number, column };
            Err(SyntaxError { at, what: what.to_owned() })
        };
        let (kind, reason) = remark.split_once(',').unwrap_or((remark, ""));
        let reason = reason.trim().to_owned();
        match kind.trim() {
            "differs" | "skip" if reason.is_empty() => {
                return error("linux: differs and linux: skip need a comma and a reason");
            }
            "differs" if script.differs_on_linux.is_some() => {
                return error("a script ends at its first difference; there is no second one");
            }
            "differs" => {
                let event = script.events.iter().find(|event| event.at.line >= number);
                let Some(event) = event else { return error("no event follows this remark") };
                script.differs_on_linux = Some(event.at.line);
            }
            "skip" => script.not_for_linux = Some(reason),
            _ => return error("expected linux: differs or linux: skip"),
        }
    }
    Ok(())
}

/// Where the comment of a line begins, `#` or `//`.
fn comment(line: &str) -> Option<usize> {
    let begins = [line.find('#'), line.find("//")];
    begins.into_iter().flatten().min()
}

/// `--name=value`
fn option(cursor: &mut Cursor<'_>) -> Parsed<Setting> {
    let at = cursor.position();
    cursor.expect("--")?;
    let name = cursor.take_while(|char| char.is_ascii_alphanumeric() || char == '_').to_owned();
    cursor.expect("=")?;
    let quoted = cursor.eat("\"");
    let value = match quoted {
        true => cursor.take_until("\"")?.to_owned(),
        false => cursor.take_while(|char| !char.is_whitespace()).to_owned(),
    };
    Ok(Setting { at, name, value })
}

/// `sysctl -q name=value` lines between back quotes; there is no shell.
fn sysctls(cursor: &mut Cursor<'_>, script: &mut Script) -> Parsed<()> {
    cursor.expect("`")?;
    while !cursor.eat("`") {
        let at = cursor.position();
        if !cursor.eat_name("sysctl") {
            return Err(cursor.expected("sysctl: there is no shell"));
        }
        for flag in ["-q", "-w"] {
            cursor.eat(flag);
        }
        cursor.skip_blanks();
        let name = cursor.take_while(|char| char.is_ascii_alphanumeric() || "._".contains(char));
        cursor.expect("=")?;
        let quoted = cursor.eat("\"");
        let value = cursor.take_while(|char| match char {
            '"' | '`' | '\n' | ';' => false,
            char => quoted || !char.is_whitespace(),
        });
        if quoted {
            cursor.expect("\"")?;
        }
        script.sysctls.push(Setting { at, name: name.to_owned(), value: value.trim().to_owned() });
        while cursor.eat(";") || cursor.eat("&&") {}
    }
    Ok(())
}

fn event(cursor: &mut Cursor<'_>, is_v6: bool) -> Parsed<Event> {
    let at = cursor.position();
    let start = *cursor;
    let (when, until) = when(cursor)?;
    let kind = if cursor.eat("<") {
        let packet_at = cursor.position();
        let spec = packet::packet(cursor, is_v6)?;
        packet::check_inbound(&spec).map_err(|what| SyntaxError { at: packet_at, what })?;
        EventKind::Inject(spec)
    } else if cursor.eat(">") {
        let packet_at = cursor.position();
        let spec = packet::packet(cursor, is_v6)?;
        packet::check_outbound(&spec).map_err(|what| SyntaxError { at: packet_at, what })?;
        EventKind::Expect(spec)
    } else if cursor.eat("%{") {
        EventKind::Assert(expression::block(cursor)?)
    } else {
        EventKind::Call(call(cursor)?)
    };
    if until.is_some() && !matches!(kind, EventKind::Call(_)) {
        return Err(SyntaxError { at, what: "only a system call lasts".into() });
    }
    if matches!(when, When::Any | When::Between(..) | When::AfterBetween(..))
        && !matches!(kind, EventKind::Expect(_))
    {
        return Err(SyntaxError {
            at,
            what: "only an outbound packet may come at any time".into(),
        });
    }
    let text = cursor.since(&start).split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(Event { at, when, until, text, kind })
}

/// Time, and where a call's time ends. Nothing is `+0`.
fn when(cursor: &mut Cursor<'_>) -> Parsed<(When, Option<Nanos>)> {
    if cursor.eat("*") {
        return Ok((When::Any, None));
    }
    let relative = cursor.eat("+");
    let begins_here = cursor.peek().is_some_and(|char| char.is_ascii_digit() || char == '.');
    if !relative && !begins_here {
        return Ok((When::After(Nanos::ZERO), None));
    }
    let from = seconds(cursor)?;
    let mut until = None;
    if cursor.eat("...") {
        until = Some(seconds(cursor)?);
    } else if cursor.eat("~") {
        if relative {
            cursor.eat("+");
        }
        let to = seconds(cursor)?;
        if to < from {
            return Err(cursor.error("a range that ends before it begins"));
        }
        return Ok((
            if relative { When::AfterBetween(from, to) } else { When::Between(from, to) },
            None,
        ));
    }
    if until.is_some_and(|until| until < from) {
        return Err(cursor.error("a call that ends before it begins"));
    }
    Ok((if relative { When::After(from) } else { When::At(from) }, until))
}

/// `1.25`, `.5`, `3`; the digits end before `...`.
fn seconds(cursor: &mut Cursor<'_>) -> Parsed<Nanos> {
    cursor.skip_blanks();
    let mut start = *cursor;
    let whole = cursor.take_while(|char| char.is_ascii_digit());
    let mut fraction = "";
    if !cursor.looks_at("...") && cursor.peek_raw() == Some('.') {
        cursor.bump();
        fraction = cursor.take_while(|char| char.is_ascii_digit());
    }
    if whole.is_empty() && fraction.is_empty() {
        return Err(start.expected("a time in seconds"));
    }
    let seconds: u64 = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(u64::MAX) };
    if seconds > MAX_SECONDS || fraction.len() > 9 {
        return Err(start.expected("a time that is not so long, in nanoseconds at the finest"));
    }
    let nanos: u64 = format!("{fraction:0<9}").parse().unwrap_or(0);
    Ok(Nanos(seconds * 1_000_000_000 + nanos))
}

/// `name(arguments) = result`
fn call(cursor: &mut Cursor<'_>) -> Parsed<CallSpec> {
    let Some(name) = cursor.name() else {
        return Err(cursor.expected("<, >, %{ or a system call"));
    };
    cursor.expect("(")?;
    let arguments = value::list(cursor, ")", 0)?;
    cursor.expect("=")?;
    let result = value::value(cursor, 0)?;
    let mut errno = None;
    let mut ahead = *cursor;
    if let Some(name) = ahead.name().filter(|name| name.starts_with('E')) {
        errno = Some(name.to_owned());
        *cursor = ahead;
    }
    if errno.is_some() && cursor.eat("(") {
        cursor.take_until(")")?;
    }
    Ok(CallSpec { name: name.to_owned(), arguments, result, errno })
}
