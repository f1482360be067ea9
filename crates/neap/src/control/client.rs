//! The side that asks.

use super::report::{CounterReport, SocketReport, StackReport};
use super::{ControlError, VERSION, folder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::PathBuf;
use std::time::Duration;

/// The longest that an answer may stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// A control socket of a running stack.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint {
    /// Number of the process.
    pub pid: u32,
    /// Name of the stack.
    pub name: String,
    /// Path of the socket.
    pub path: PathBuf,
}

/// Lines that are no reports.
#[derive(Deserialize)]
#[serde(untagged)]
enum Mark {
    End { end: usize },
    Failed { error: String },
}

impl Endpoint {
    /// Asks for the process.
    ///
    /// # Errors
    /// The process is gone or does not answer in time.
    pub fn stack(&self) -> Result<StackReport, ControlError> {
        Ok(self.ask::<StackReport>("stack")?.0)
    }

    /// Asks for the sockets.
    ///
    /// # Errors
    /// As [`stack`](Self::stack).
    pub fn sockets(&self) -> Result<Vec<SocketReport>, ControlError> {
        Ok(self.ask("sockets")?.1)
    }

    /// Asks for the counters and gauges.
    ///
    /// # Errors
    /// As [`stack`](Self::stack).
    pub fn counters(&self) -> Result<Vec<CounterReport>, ControlError> {
        Ok(self.ask("counters")?.1)
    }

    /// Asks for what the application has of a subject ([`Application::lines`]). Each line is JSON.
    ///
    /// # Errors
    /// As [`stack`](Self::stack); [`ControlError::NoAnswer`] if the application does not know the
    /// subject.
    ///
    /// [`Application::lines`]: super::Application::lines
    pub fn lines(&self, subject: &str) -> Result<Vec<String>, ControlError> {
        let lines: Vec<serde_json::Value> = self.ask(subject)?.1;
        Ok(lines.iter().map(ToString::to_string).collect())
    }

    fn wrong(&self, problem: impl Into<String>) -> ControlError {
        ControlError::Protocol { path: self.path.clone(), problem: problem.into() }
    }

    fn no_answer(&self, reason: String) -> ControlError {
        ControlError::NoAnswer { path: self.path.clone(), reason }
    }

    fn ask<T: DeserializeOwned>(&self, what: &str) -> Result<(StackReport, Vec<T>), ControlError> {
        let system = ControlError::system(&self.path);
        let mut stream = folder::connect(&self.path, Some(PATIENCE)).map_err(&system)?;
        let what = serde_json::Value::from(what);
        let request = format!("{{\"neap\":{VERSION},\"get\":{what}}}\n");
        stream.write_all(request.as_bytes()).map_err(&system)?;
        let mut lines = BufReader::new(stream).lines();
        let mut next = || match lines.next() {
            Some(Ok(line)) => Ok(line),
            Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => {
                Err(self.wrong("no answer in time"))
            }
            Some(Err(error)) => Err(system(error)),
            None => Err(system(ErrorKind::UnexpectedEof.into())),
        };
        let first = next()?;
        if let Ok(Mark::Failed { error }) = serde_json::from_str(&first) {
            return Err(self.no_answer(error));
        }
        let head: StackReport =
            serde_json::from_str(&first).map_err(|error| self.wrong(error.to_string()))?;
        let mut reports = Vec::new();
        loop {
            let line = next()?;
            match serde_json::from_str(&line) {
                Ok(Mark::End { end }) if end == reports.len() => return Ok((head, reports)),
                Ok(Mark::End { .. }) => return Err(self.wrong("a part of the answer is lost")),
                Ok(Mark::Failed { error }) => return Err(self.no_answer(error)),
                Err(_) => {}
            }
            let report = serde_json::from_str(&line);
            reports.push(report.map_err(|error| self.wrong(error.to_string()))?);
        }
    }
}
