//! The keys of one section, taken one by one: what nobody takes is unknown.

use super::error::{FileError, Place, Warning};
use super::lines::{Entry, Section};
use super::source::Source;
use std::path::Path;
use zeroize::Zeroizing;

/// What reading one file needs and finds.
pub(super) struct Context<'a> {
    /// The file.
    pub(super) file: &'a Path,
    /// Where variables come from.
    pub(super) source: &'a dyn Source,
    /// What the user should know of.
    pub(super) warnings: Vec<Warning>,
    /// The first key whose secret value is written in the file.
    pub(super) first_secret: Option<Place>,
}

impl Context<'_> {
    /// The place of a section, or of a key in it.
    pub(super) fn place(&self, section: &str, line: usize, key: Option<&str>) -> Place {
        Place {
            file: self.file.to_owned(),
            line: Some(line),
            section: Some(section).filter(|name| !name.is_empty()).map(str::to_owned),
            key: key.map(str::to_owned),
        }
    }

    /// Notes something that the user should know of.
    pub(super) fn warn(&mut self, place: Place, problem: impl Into<String>) {
        self.warnings.push(Warning { place, problem: problem.into() });
    }
}

/// The keys of a section that nobody has taken yet.
pub(super) struct Keys<'a, 'b> {
    pub(super) context: &'a mut Context<'b>,
    section: &'a Section,
    /// Its name as it is documented.
    name: &'static str,
    left: Vec<&'a Entry>,
    /// The names that were asked for.
    known: Vec<&'static str>,
}

/// The value of a key, with a variable's in its place.
pub(super) struct Value {
    pub(super) text: Zeroizing<String>,
    pub(super) place: Place,
    /// Whether it is the value of a variable.
    is_variable: bool,
}

impl Value {
    /// An error that says what is expected here.
    pub(super) fn wrong(&self, problem: impl Into<String>) -> FileError {
        FileError { place: self.place.clone(), problem: problem.into() }
    }

    /// The value as a type that is read from text. As for wg(8) spaces within mean nothing.
    pub(super) fn parse<T: std::str::FromStr>(&self, expected: &str) -> Result<T, FileError> {
        // Text that never grows leaves no copies of keys behind.
        let mut text = Zeroizing::new(String::with_capacity(self.text.len()));
        text.extend(self.text.split_ascii_whitespace());
        text.parse().map_err(|_| self.wrong(format!("expected {expected}")))
    }

    /// The parts between commas or spaces, as wg-quick has it, empty ones left out.
    pub(super) fn parts(&self) -> impl Iterator<Item = &str> {
        let is_between = |c: char| c == ',' || c.is_ascii_whitespace();
        self.text.split(is_between).filter(|part| !part.is_empty())
    }

    /// The value as a whole number, decimal or with `0x`.
    pub(super) fn number(&self, least: u32, most: u32, expected: &str) -> Result<u32, FileError> {
        let text = self.text.as_str();
        let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        // `parse` takes a sign.
        let number = number.filter(|_| text.starts_with(|first: char| first.is_ascii_digit()));
        number
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.wrong(format!("expected {expected}")))
    }
}

/// The variable of the environment that a value names by a `$` in front.
pub(super) fn variable(value: &str) -> Option<&str> {
    value.strip_prefix('$').filter(|name| !name.starts_with('$'))
}

impl<'a, 'b> Keys<'a, 'b> {
    /// All keys of a section, which is documented by this name.
    pub(super) fn new(
        context: &'a mut Context<'b>,
        section: &'a Section,
        name: &'static str,
    ) -> Self {
        let left = section.entries.iter().collect();
        Self { context, section, name, left, known: Vec::new() }
    }

    /// The place of the section.
    pub(super) fn place(&self) -> Place {
        self.context.place(self.name, self.section.line, None)
    }

    fn place_of(&self, key: &str, line: usize) -> Place {
        self.context.place(self.name, line, Some(key))
    }

    /// An error about a key that is missing, or one that is too much.
    pub(super) fn missing(&self, key: &'static str, problem: impl Into<String>) -> FileError {
        let place = self.place_of(key, self.section.line);
        FileError { place, problem: problem.into() }
    }

    /// Takes the entries of a key.
    fn entries(&mut self, key: &'static str) -> Vec<&'a Entry> {
        self.known.push(key);
        let (found, left) =
            self.left.drain(..).partition(|entry| entry.key.eq_ignore_ascii_case(key));
        self.left = left;
        found
    }

    /// Takes the values of a key that may be given several times.
    pub(super) fn all(&mut self, key: &'static str) -> Result<Vec<Value>, FileError> {
        let entries = self.entries(key);
        entries.into_iter().map(|entry| self.value(key, entry)).collect()
    }

    /// Takes the value of a key that counts once: the first one, as for wireproxy. For wg(8) the
    /// last one does, so that the user is told.
    pub(super) fn one(&mut self, key: &'static str) -> Result<Option<Value>, FileError> {
        let entries = self.entries(key);
        let Some((first, others)) = entries.split_first() else { return Ok(None) };
        for other in others {
            let place = self.place_of(key, other.line);
            let problem = format!("this does not count: the value in line {} does", first.line);
            self.context.warn(place, problem);
        }
        self.value(key, first).map(Some)
    }

    /// Takes the value of a key that has to be there.
    pub(super) fn needed(&mut self, key: &'static str, expected: &str) -> Result<Value, FileError> {
        let missing = self.missing(key, format!("missing: expected {expected}"));
        self.one(key)?.ok_or(missing)
    }

    /// Takes the value of a key that is a secret.
    pub(super) fn secret(&mut self, key: &'static str) -> Result<Option<Value>, FileError> {
        let value = self.one(key)?;
        if let Some(value) = value.as_ref().filter(|value| !value.is_variable) {
            self.context.first_secret.get_or_insert_with(|| value.place.clone());
        }
        Ok(value)
    }

    /// Takes keys that are accepted and do nothing here.
    pub(super) fn ignored(&mut self, key: &'static str, why: &str) {
        for entry in self.entries(key) {
            let place = self.place_of(key, entry.line);
            self.context.warn(place, why);
        }
    }

    /// The value of an entry, in which `$$` in front is a `$`.
    fn value(&self, key: &str, entry: &Entry) -> Result<Value, FileError> {
        let place = self.place_of(key, entry.line);
        let Some(name) = variable(&entry.value) else {
            let text = entry.value.strip_prefix('$').unwrap_or(&entry.value);
            let text = Zeroizing::new(text.to_owned());
            return Ok(Value { text, place, is_variable: false });
        };
        match self.context.source.variable(name) {
            Some(text) => Ok(Value { text, place, is_variable: true }),
            // A password that begins with `$` would be told otherwise.
            None => {
                let problem = "the environment variable that the value names is not set; \
                               a value that begins with $ itself is written with $$";
                Err(FileError { place, problem: problem.to_owned() })
            }
        }
    }

    /// Ends the section: each key that is left is unknown, unless other values are made from its
    /// own.
    pub(super) fn end(self) -> Result<(), FileError> {
        let Some(entry) = self.left.iter().find(|entry| !entry.is_used) else { return Ok(()) };
        let problem = match self.known.as_slice() {
            [] => "expected a section such as [Interface] before it".to_owned(),
            known => format!("unknown key: expected one of {}", known.join(", ")),
        };
        Err(FileError { place: self.place_of(&entry.key, entry.line), problem })
    }
}
