//! Reports of failures for people: what differs, and what happened before.

use crate::cursor::{Position, SyntaxError};
use crate::host::HostFailure;
use core::fmt;
use neap_tcp::time::Nanos;
use std::collections::VecDeque;
use std::path::Path;

/// Events before a difference that a report shows.
const MAX_EVENTS: usize = 16;

/// The latest events of a run, for whoever reads what went wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(VecDeque<(Nanos, String)>);

impl History {
    /// Adds an event at its time, or at the time of the event before if that is later: times never
    /// go back, although a packet may leave while something else is waited for.
    pub(crate) fn add(&mut self, at: Nanos, what: String) {
        let at = self.0.back().map_or(at, |(before, _)| at.max(*before));
        if self.0.len() == MAX_EVENTS {
            self.0.pop_front();
        }
        self.0.push_back((at, what));
    }
}

/// Difference between a script and a host.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Place of the event in the script.
    pub at: Position,
    /// Description of the difference.
    pub what: String,
    /// Text of the event in the script.
    pub expected: String,
    /// Time and description of what happened instead, if there is any.
    pub happened: Option<(Nanos, String)>,
    /// Events that happened before.
    pub(crate) history: History,
    /// Packets that left afterwards and that nobody had expected yet.
    pub(crate) later: Vec<(Nanos, String)>,
}

/// Reason why a script did not pass.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// The script is not in the language.
    #[error("{0}")]
    Syntax(#[from] SyntaxError),
    /// The host did something else than the script says.
    #[error("{0}")]
    Differs(Box<Difference>),
    /// The host could not go on.
    #[error("{}the host cannot go on: {failure}", Place(*at))]
    Host {
        /// Place of the event in the script, once one has begun.
        at: Option<Position>,
        /// Reason of the host.
        failure: HostFailure,
    },
}

impl From<HostFailure> for Failure {
    fn from(failure: HostFailure) -> Self {
        Self::Host { at: None, failure }
    }
}

impl Failure {
    /// Returns the failure with the name of the script's file and the place in it.
    pub fn in_file(&self, file: &Path) -> String {
        let blank = if self.place().is_some() { "" } else { " " };
        format!("{}:{blank}{self}", file.display())
    }

    /// Returns the place in the script, if one is to blame.
    pub fn place(&self) -> Option<Position> {
        match self {
            Self::Syntax(error) => Some(error.at),
            Self::Differs(difference) => Some(difference.at),
            Self::Host { at, .. } => *at,
        }
    }

    /// Says of a failure without a place that it is at this one.
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

/// A time in seconds with microseconds.
pub(crate) struct Seconds(pub(crate) Nanos);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        write!(f, "{:>4}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.at, self.what)?;
        writeln!(f, "    script            {}", self.expected)?;
        if let Some((at, happened)) = &self.happened {
            writeln!(f, "    happened {}  {happened}", Seconds(*at))?;
        }
        for (at, later) in &self.later {
            writeln!(f, "    then     {}  {later}", Seconds(*at))?;
        }
        if !self.history.0.is_empty() {
            writeln!(f, "  before:")?;
        }
        for (at, what) in &self.history.0 {
            writeln!(f, "             {}  {what}", Seconds(*at))?;
        }
        Ok(())
    }
}
