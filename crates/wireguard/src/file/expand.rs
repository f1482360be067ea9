//! `%(name)s` in values: the value of another key, as the library by which wireproxy reads its
//! files has it.

use super::error::{FileError, Place};
use super::lines::Section;
use super::source::MOST_BYTES;
use std::path::Path;
use zeroize::Zeroizing;

/// How often a value is looked at again for names that came with others.
const DEPTH: usize = 99;

/// Puts values in the places of their names: those of the same section, or else those before the
/// first section. A name that is there in neither stays as it is, with all that follow it.
///
/// # Errors
/// A value becomes longer than a file may be.
pub(super) fn expand(file: &Path, sections: &mut [Section]) -> Result<(), FileError> {
    let counts = sections.iter().map(|section| section.entries.len()).enumerate();
    let all: Vec<At> =
        counts.flat_map(|(section, count)| (0..count).map(move |entry| (section, entry))).collect();
    let mut made = Vec::new();
    for at in all {
        let (value, used) = expanded(sections, at).ok_or_else(|| too_long(file, sections, at))?;
        made.extend(value.map(|value| (at, value)));
        for (section, entry) in used {
            sections[section].entries[entry].is_used = true;
        }
    }
    // Names stand for what the file has.
    for ((section, entry), value) in made {
        sections[section].entries[entry].value = value;
    }
    Ok(())
}

fn too_long(file: &Path, sections: &[Section], (section, entry): At) -> FileError {
    let Section { name, entries, .. } = &sections[section];
    let place = Place {
        file: file.to_owned(),
        line: Some(entries[entry].line),
        section: Some(name.clone()).filter(|name| !name.is_empty()),
        key: Some(entries[entry].key.clone()),
    };
    let problem =
        format!("too long with the values that it names: expected at most {MOST_BYTES} bytes");
    FileError { place, problem }
}

/// Section and entry.
type At = (usize, usize);

/// A value with others in the places of their names, if it has any, and where these are; `None` if
/// that is too long.
fn expanded(sections: &[Section], at: At) -> Option<(Option<Zeroizing<String>>, Vec<At>)> {
    let (mut value, mut used) = (None::<Zeroizing<String>>, Vec::new());
    for _ in 0..DEPTH {
        let text = value.as_ref().unwrap_or(&sections[at.0].entries[at.1].value);
        let Some((whole, name)) = named(text) else { break };
        let own = find(sections, at.0, name).filter(|found| *found != at);
        let Some(found) = own.or_else(|| find(sections, 0, name)) else { break };
        let other = &sections[found.0].entries[found.1].value;
        value = Some(replaced(text, whole, other)?);
        used.push(found);
    }
    Some((value, used))
}

/// The first `%(name)s` of a value, and the name in it.
fn named(value: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    while let Some(begin) = value[from..].find("%(").map(|at| from + at) {
        let name = &value[begin + 2..];
        match name.find(')') {
            Some(len) if len > 0 && name[len + 1..].starts_with('s') => {
                return Some((&value[begin..begin + len + 4], &name[..len]));
            }
            _ => from = begin + 2,
        }
    }
    None
}

/// The first entry of a section with this key.
fn find(sections: &[Section], section: usize, key: &str) -> Option<At> {
    let mut entries = sections[section].entries.iter();
    let entry = entries.position(|entry| entry.key.eq_ignore_ascii_case(key))?;
    Some((section, entry))
}

/// A text with another one in all places of `part`; `None` if it is too long. It never grows, so
/// that no copies of keys are left behind.
fn replaced(text: &str, part: &str, by: &str) -> Option<Zeroizing<String>> {
    let count = text.matches(part).count();
    let len = text.len() - count * part.len() + count.checked_mul(by.len())?;
    if len > MOST_BYTES {
        return None;
    }
    let mut whole = Zeroizing::new(String::with_capacity(len));
    for (index, between) in text.split(part).enumerate() {
        if index > 0 {
            whole.push_str(by);
        }
        whole.push_str(between);
    }
    Some(whole)
}
