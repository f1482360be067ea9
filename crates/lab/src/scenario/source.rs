//! Text of a scenario file, and the places of its errors.

use core::fmt;
use core::ops::Range;
use toml::Spanned;

/// Function that returns the text of a file that a scenario names.
pub type Files<'a> = dyn Fn(&str) -> Result<String, String> + Sync + 'a;

/// Error of a scenario file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// Name of the file as it was given.
    pub file: String,
    /// Line of the error; the first is 1.
    pub line: usize,
    /// Key or table on that line.
    pub key: String,
    /// Description of the error, and of a right value.
    pub what: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, key, what } = self;
        write!(f, "{file}:{line}: {key}: {what}")
    }
}

impl core::error::Error for ScenarioError {}

/// Scenario file as text.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// The file's name, for messages.
    pub file: String,
    /// The file's text.
    pub text: String,
}

impl SourceFile {
    /// An error at an offset of the text.
    pub(in crate::scenario) fn error_at(
        &self,
        offset: usize,
        what: impl fmt::Display,
    ) -> ScenarioError {
        let before = &self.text[..offset.min(self.text.len())];
        let line = before.matches('\n').count();
        let text = self.text.lines().nth(line).unwrap_or_default();
        let key = text.split('=').next().unwrap_or(text).trim();
        let key = key.trim_matches(['[', ']', ' ', '"', ',']).to_owned();
        ScenarioError { file: self.file.clone(), line: line + 1, key, what: what.to_string() }
    }

    pub(in crate::scenario) fn error<T>(
        &self,
        at: &Spanned<T>,
        what: impl fmt::Display,
    ) -> ScenarioError {
        self.error_at(at.span().start, what)
    }

    /// An error at a key of the table that begins at `table`.
    pub(in crate::scenario) fn error_in(
        &self,
        table: Range<usize>,
        key: &str,
        what: impl fmt::Display,
    ) -> ScenarioError {
        let mut offset = table.start;
        let begins = |line: &str| {
            let line = line.trim_start().trim_start_matches('{').trim_start();
            line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(['=', '.']))
        };
        for (number, line) in self.text[table.start..].split_inclusive('\n').enumerate() {
            if begins(line) {
                return self.error_at(offset, what);
            }
            if number > 0 && line.starts_with('[') {
                break;
            }
            offset += line.len();
        }
        let mut error = self.error_at(table.start, what);
        error.key = key.to_owned();
        error
    }

    /// What the parser says about the text.
    pub(in crate::scenario) fn parse_error(&self, error: &toml::de::Error) -> ScenarioError {
        let offset = error.span().map_or(0, |span| span.start);
        self.error_at(offset, error.message())
    }
}
