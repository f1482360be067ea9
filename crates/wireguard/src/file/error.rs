//! Where something is in a file, and what is wrong there.

use std::fmt;
use std::path::PathBuf;

/// A place in a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1; `None` for the file as a whole.
    pub line: Option<usize>,
    /// The section's name, without brackets.
    pub section: Option<String>,
    /// The key.
    pub key: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(section) = &self.section {
            write!(f, ": [{section}]")?;
            if let Some(key) = &self.key {
                write!(f, " {key}")?;
            }
        } else if let Some(key) = &self.key {
            write!(f, ": {key}")?;
        }
        Ok(())
    }
}

/// Reason why a configuration file is of no use. It never has text of a file in it that may be a
/// secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
#[non_exhaustive]
pub struct FileError {
    /// Where.
    pub place: Place,
    /// What is wrong, and what is expected.
    pub problem: String,
}

/// Something in a configuration file that the user should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// Where.
    pub place: Place,
    /// What it is.
    pub problem: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}
