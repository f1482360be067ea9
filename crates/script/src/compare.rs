//! A packet that was sent beside the one that a script expects.

use crate::ast::{ACK, FLAG_LETTERS, OptionSpec, PacketSpec, TcpSpec, URG};
use crate::connections::{Connection, TimestampClock};
use crate::packet::Segment;
use crate::stream::WRITTEN_BYTES;
use neap_tcp::segment::Ecn;

/// Control bits as letters.
fn show_flags(flags: u16) -> String {
    let shown: String = FLAG_LETTERS
        .iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|&(_, letter)| letter)
        .collect();
    if shown.is_empty() { "-".into() } else { shown }
}

fn show_ecn(ecn: Ecn) -> &'static str {
    match ecn {
        Ecn::NotEct => "noecn",
        Ecn::Ect0 => "ect0",
        Ecn::Ect1 => "ect1",
        Ecn::Ce => "ce",
    }
}

fn show_option(option: &OptionSpec, connection: &Connection) -> String {
    match option {
        OptionSpec::Nop => "nop".into(),
        OptionSpec::End => "eol".into(),
        OptionSpec::Mss(mss) => format!("mss {mss}"),
        OptionSpec::WindowScale(shift) => format!("wscale {shift}"),
        OptionSpec::SackPermitted => "sackOK".into(),
        OptionSpec::Sack(blocks) => {
            let blocks: Vec<_> = blocks.iter().map(|(l, r)| format!("{l}:{r}")).collect();
            format!("sack {}", blocks.join(" "))
        }
        OptionSpec::Timestamps(value, echo) => {
            format!("TS val {} ecr {echo}", connection.show_timestamp(*value))
        }
        OptionSpec::FastOpen(cookie) => format!("FO {}", hex(cookie)),
        OptionSpec::Other(kind, value) => format!("kind {kind} {}", hex(value)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A segment in the language of scripts.
pub(crate) fn show(ecn: Ecn, segment: &Segment, connection: &Connection) -> String {
    let mut text = String::from("> ");
    if ecn != Ecn::NotEct {
        text += &format!("[{}] ", show_ecn(ecn));
    }
    let len = segment.payload.len() as u32;
    let end = segment.seq.wrapping_add(len);
    text += &format!("{} {}:{end}({len})", show_flags(segment.flags), segment.seq);
    if segment.flags & ACK != 0 {
        text += &format!(" ack {}", segment.ack);
    }
    text += &format!(" win {}", segment.window);
    if segment.flags & URG != 0 {
        text += &format!(" urg {}", segment.urgent);
    }
    if !segment.options.is_empty() {
        let options: Vec<_> =
            segment.options.iter().map(|option| show_option(option, connection)).collect();
        text += &format!(" <{}>", options.join(","));
    }
    text
}

/// What is different about a segment that has the numbers of the script, in words.
pub(crate) fn differences(
    spec: &PacketSpec,
    expected: &TcpSpec,
    ecn: Ecn,
    segment: &Segment,
    connection: &mut Connection,
    clock: TimestampClock,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |name: &str, is: String, expected: String| {
        if is != expected {
            found.push(format!("{name} is {is}, expected {expected}"));
        }
    };
    differ("flags", show_flags(segment.flags), show_flags(expected.flags));
    differ("seq", segment.seq.to_string(), expected.seq.to_string());
    differ("length", segment.payload.len().to_string(), expected.len.to_string());
    if let Some(ack) = expected.ack {
        differ("ack", segment.ack.to_string(), ack.to_string());
    }
    if let Some(window) = expected.window {
        differ("win", segment.window.to_string(), window.to_string());
    }
    if let Some(urgent) = expected.urgent {
        differ("urg", segment.urgent.to_string(), urgent.to_string());
    }
    if let Some(wanted) = spec.ecn {
        differ("ECN", show_ecn(ecn).into(), show_ecn(wanted).into());
    }
    if let Some(options) = &expected.options {
        found.extend(option_differences(options, segment, connection, clock));
    }
    if found.is_empty() {
        let at = u64::from(segment.seq.wrapping_sub(1));
        if let Some(wrong) = WRITTEN_BYTES.mismatch(at, &segment.payload) {
            let byte = at + wrong as u64;
            found.push(format!("byte {wrong} of the payload is not byte {byte} that was written"));
        }
    }
    found
}

/// What is different about the options of a segment, in words.
fn option_differences(
    expected: &[OptionSpec],
    segment: &Segment,
    connection: &mut Connection,
    clock: TimestampClock,
) -> Vec<String> {
    let show_all = |options: &[OptionSpec], connection: &Connection| {
        let shown: Vec<_> = options.iter().map(|option| show_option(option, connection)).collect();
        format!("<{}>", shown.join(","))
    };
    let alike = |a: &OptionSpec, b: &OptionSpec| match (a, b) {
        (OptionSpec::Timestamps(_, a), OptionSpec::Timestamps(_, b)) => a == b,
        (a, b) => a == b,
    };
    let same = segment.options.len() == expected.len()
        && segment.options.iter().zip(expected).all(|(a, b)| alike(a, b));
    let mut found = Vec::new();
    for (real, script) in segment.options.iter().zip(expected) {
        if let (OptionSpec::Timestamps(real, _), OptionSpec::Timestamps(script, _)) = (real, script)
            && let Err(what) = connection.note_timestamp(*script, *real, clock)
        {
            found.push(what);
        }
    }
    if !same {
        let is = show_all(&segment.options, connection);
        let shown: Vec<_> = expected
            .iter()
            .map(|option| match option {
                OptionSpec::Timestamps(value, echo) => format!("TS val {value} ecr {echo}"),
                option => show_option(option, connection),
            })
            .collect();
        found.push(format!("options are {is}, expected <{}>", shown.join(",")));
    }
    found
}
