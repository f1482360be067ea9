//! The lines of a file: sections, and keys with values. What they mean is not known here.
//!
//! The rules are those of wg(8) and of the library by which wireproxy reads its files: names of
//! sections and keys have no case, `=` or `:` is between key and value, `#` and `;` begin comments,
//! quotes keep what is in them as it is, those of `"""` and `` ` `` over several lines as well, and
//! `\` at the end goes on in the next line.

use super::error::{FileError, Place};
use std::path::Path;
use zeroize::Zeroizing;

/// Longest name of a key that an error repeats, bytes. A base64 key is longer.
const LONGEST_KEY: usize = 24;

/// What may be around a value.
const QUOTES: [&str; 4] = ["\"\"\"", "\"", "'", "`"];
/// What may be around a value of several lines.
const LONG_QUOTES: [&str; 2] = ["\"\"\"", "`"];

/// A section with its keys. The one before the first has no name.
pub(super) struct Section {
    pub(super) name: String,
    /// Line of its name.
    pub(super) line: usize,
    pub(super) entries: Vec<Entry>,
}

/// A key with its value.
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Zeroizing<String>,
    /// Whether another value is made from this one, so that its key may be any.
    pub(super) is_used: bool,
}

/// Reads the lines of a file. The first section is the one without a name.
pub(super) fn sections(file: &Path, bytes: &[u8]) -> Result<Vec<Section>, FileError> {
    let wrong = |line: usize, section: Option<&str>, problem: &str| FileError {
        place: Place {
            file: file.to_owned(),
            line: Some(line),
            section: section.map(str::to_owned),
            key: None,
        },
        problem: problem.to_owned(),
    };
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let texts = bytes.split(|&byte| byte == b'\n').zip(1..).map(|(line, number)| {
        text(line).ok_or_else(|| wrong(number, None, "expected text in UTF-8"))
    });
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    let mut all = vec![Section { name: String::new(), line: 1, entries: Vec::new() }];
    let mut lines = texts.into_iter().zip(1..);
    while let Some((whole, number)) = lines.next() {
        let line = whole.trim();
        let last = all.last_mut().expect("there is one without a name");
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let closed = rest.split_once(']').filter(|(_, rest)| is_comment(rest));
            let name = closed.map(|(name, _)| name.trim()).filter(|name| is_word(name));
            let name = name.ok_or_else(|| {
                wrong(number, None, "expected a section, such as [Interface] or [Peer]")
            })?;
            all.push(Section { name: name.to_owned(), line: number, entries: Vec::new() });
            continue;
        }
        let section = Some(last.name.as_str()).filter(|name| !name.is_empty());
        let (key, value) = line
            .split_once(['=', ':'])
            .map(|(key, value)| (key.trim(), value.trim()))
            .filter(|(key, _)| is_word(key))
            .ok_or_else(|| {
                wrong(number, section, "expected KEY = VALUE, a [Section], or a comment with #")
            })?;
        let mut rest = lines.by_ref().map(|(line, _)| line);
        let value = match (open_quote(value), value.strip_suffix('\\')) {
            (Some(quote), _) => quoted(whole, quote, rest).ok_or_else(|| {
                let problem = format!("expected the end of the quotes {quote} in a later line");
                wrong(number, section, &problem)
            })?,
            (None, Some(begin)) => continued(begin, rest.by_ref().map(str::trim)),
            (None, None) => Zeroizing::new(plain(value).to_owned()),
        };
        last.entries.push(Entry { key: key.to_owned(), line: number, value, is_used: false });
    }
    Ok(all)
}

/// The text of a line. A comment may have any bytes, where it is sure to be one.
fn text(line: &[u8]) -> Option<&str> {
    let end = match str::from_utf8(line) {
        Ok(text) => return Some(text),
        Err(error) => error.valid_up_to(),
    };
    let text = str::from_utf8(&line[..end]).ok()?;
    let (before, _) = text.split_once(['#', ';'])?;
    (!QUOTES.iter().any(|quote| before.contains(quote))).then_some(before)
}

/// Whether text can be the name of a section or a key. Keys of WireGuard and passwords seldom are,
/// so that an error may repeat what is.
fn is_word(text: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=LONGEST_KEY).contains(&text.len()) && text.bytes().all(is_fine)
}

fn is_comment(text: &str) -> bool {
    let text = text.trim_start();
    text.is_empty() || text.starts_with(['#', ';'])
}

/// The quotes that a value begins with and that do not end in its line.
fn open_quote(value: &str) -> Option<&'static str> {
    let is_open = |quote: &&str| {
        let rest = value.strip_prefix(*quote);
        rest.is_some_and(|rest| !rest.contains(*quote))
    };
    LONG_QUOTES.into_iter().find(is_open)
}

/// A value that begins in a line behind these quotes, and ends before the last of them in a later
/// line; `None` if there is no such line. Nothing is a comment in it. What is behind it is of no
/// meaning.
fn quoted<'a>(
    begin: &'a str,
    quote: &str,
    lines: impl Iterator<Item = &'a str>,
) -> Option<Zeroizing<String>> {
    let (_, begin) = begin.split_once(quote)?;
    let mut parts = vec![begin];
    for line in lines {
        parts.push("\n");
        if let Some((end, _)) = line.rsplit_once(quote) {
            parts.push(end);
            return Some(Zeroizing::new(parts.concat()));
        }
        parts.push(line);
    }
    None
}

/// A value without quotes and comment.
fn plain(value: &str) -> &str {
    for quote in QUOTES {
        let quoted = value.strip_prefix(quote).and_then(|rest| rest.split_once(quote));
        if let Some((inside, rest)) = quoted
            && is_comment(rest)
        {
            return inside;
        }
    }
    value.find(['#', ';']).map_or(value, |end| value[..end].trim_end())
}

/// A value that goes on in the lines that follow.
fn continued<'a>(begin: &str, lines: impl Iterator<Item = &'a str>) -> Zeroizing<String> {
    let mut parts = vec![begin];
    for line in lines {
        let (part, goes_on) = match line.strip_suffix('\\') {
            Some(part) => (part, true),
            None => (line, false),
        };
        parts.push(part);
        if !goes_on {
            break;
        }
    }
    let whole = Zeroizing::new(parts.concat());
    Zeroizing::new(whole.trim().to_owned())
}
