//! What went wrong, as a person reads it: what differs, and what happened before.

use super::cursor::{Position, SyntaxError};
use super::host::HostFailure;
use core::fmt;
use neap_tcp::time::Nanos;
use std::collections::VecDeque;

/// Events that a report shows.
const SHOWN: usize = 16;

/// The latest events.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(VecDeque<(Nanos, String)>);

impl History {
    /// An event at its time, or at that of the event before if a packet left while that was waited for.
    pub(crate) fn add(&mut self, at: Nanos, what: String) {
        let at = self.0.back().map_or(at, |(before, _)| at.max(*before));
        if self.0.len() == SHOWN {
            self.0.pop_front();
        }
        self.0.push_back((at, what));
    }
}

/// A difference between script and host.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The event of the script.
    pub at: Position,
    /// In words.
    pub what: String,
    /// What the script says.
    pub expected: String,
    /// What happened, where there is something to show.
    pub is: Option<(Nanos, String)>,
    pub(crate) history: History,
    /// What came after, unasked.
    pub(crate) later: Vec<(Nanos, String)>,
}

/// Why a script did not pass.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// The script is not in the language.
    #[error("{0}")]
    Syntax(#[from] SyntaxError),
    /// The host does something else.
    #[error("{0}")]
    Differs(Box<Difference>),
    /// The host cannot go on; at the event, once one has begun.
    #[error("{}the host cannot go on: {failure}", Place(*at))]
    Host {
        /// Where in the script.
        at: Option<Position>,
        /// What failed.
        failure: HostFailure,
    },
}

impl From<HostFailure> for Failure {
    fn from(failure: HostFailure) -> Self {
        Self::Host { at: None, failure }
    }
}

impl Failure {
    /// Where in the script.
    pub fn place(&self) -> Option<Position> {
        match self {
            Self::Syntax(error) => Some(error.at),
            Self::Differs(difference) => Some(difference.at),
            Self::Host { at, .. } => *at,
        }
    }

    /// The same, at this place if it has none.
    pub(crate) fn at(self, at: Position) -> Self {
        match self {
            Self::Host { at: None, failure } => Self::Host { at: Some(at), failure },
            other => other,
        }
    }
}

/// A place in front of what is said of it, if there is one.
struct Place(Option<Position>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |at| write!(f, "{at}: "))
    }
}

/// Seconds with microseconds.
pub(crate) struct Clock(pub(crate) Nanos);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        write!(f, "{:>4}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.at, self.what)?;
        writeln!(f, "    script            {}", self.expected)?;
        if let Some((at, is)) = &self.is {
            writeln!(f, "    happened {}  {is}", Clock(*at))?;
        }
        for (at, later) in &self.later {
            writeln!(f, "    then     {}  {later}", Clock(*at))?;
        }
        if !self.history.0.is_empty() {
            writeln!(f, "  before:")?;
        }
        for (at, what) in &self.history.0 {
            writeln!(f, "             {}  {what}", Clock(*at))?;
        }
        Ok(())
    }
}
