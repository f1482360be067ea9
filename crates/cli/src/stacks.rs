//! Which running stacks a command asks.

use clap::Args;
use neap::control::{self, ControlError, Endpoint, StackReport};
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Exit status for arguments that are not understood, as clap has it.
const BAD_ARGUMENTS: u8 = 2;

#[derive(Args, Clone, Debug)]
pub(crate) struct Stacks {
    /// Only the stacks of this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Only the stacks of this name, such as gateway or perf
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Why a command has nothing to print, or not all.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments make no sense.
    Arguments(String),
    /// There is no such stack, or no more.
    NoStack(String),
    /// A stack does not answer, or something else cannot be had.
    Nothing(String),
    /// Whoever reads what is printed has read enough.
    Unread,
}

impl Failure {
    /// Tells the user of it.
    pub(crate) fn report(self, command: &str) -> ExitCode {
        match self {
            Self::Arguments(why) => {
                eprintln!("neap {command}: {why}");
                ExitCode::from(BAD_ARGUMENTS)
            }
            Self::NoStack(why) | Self::Nothing(why) => {
                eprintln!("neap {command}: {why}");
                ExitCode::FAILURE
            }
            Self::Unread => ExitCode::SUCCESS,
        }
    }
}

impl Stacks {
    /// The control sockets of the chosen stacks; one at least.
    pub(crate) fn find(&self) -> Result<Vec<Endpoint>, Failure> {
        let mut found =
            control::endpoints().map_err(|error| Failure::Nothing(error.to_string()))?;
        let folder = control::folder();
        if found.is_empty() {
            return Err(Failure::NoStack(format!(
                "no stack of this user is running (there is no socket in {})",
                folder.display()
            )));
        }
        let all: Vec<_> = found.iter().map(|one| format!("{} {}", one.pid, one.name)).collect();
        found.retain(|one| {
            self.pid.is_none_or(|pid| pid == one.pid)
                && self.name.as_ref().is_none_or(|name| *name == one.name)
        });
        if found.is_empty() {
            return Err(Failure::NoStack(format!(
                "no such stack; there are (pid, name): {}",
                all.join(", ")
            )));
        }
        Ok(found)
    }

    /// Asks each chosen stack. One that ends meanwhile is left out, and those that do not answer
    /// are told beside the answers. It fails if there is no answer at all.
    pub(crate) fn ask<T>(
        &self,
        question: impl Fn(&Endpoint) -> Result<T, ControlError>,
    ) -> Result<(Vec<(StackReport, T)>, Silent), Failure> {
        let found = self.find()?;
        let mut answers = Vec::new();
        let (mut ended, mut silent) = (Vec::new(), Silent::default());
        for endpoint in found {
            match endpoint.stack().and_then(|stack| Ok((stack, question(&endpoint)?))) {
                Ok(answer) => answers.push(answer),
                Err(error) if has_ended(&error) => ended.push(error),
                Err(error) => silent.note(endpoint, error),
            }
        }
        if answers.is_empty() {
            silent.tell()?;
            return Err(Failure::NoStack(said(&ended)));
        }
        Ok((answers, silent))
    }
}

/// Whether the error means that there is no such stack any more.
fn has_ended(error: &ControlError) -> bool {
    let ControlError::System { source, .. } = error else { return false };
    matches!(
        source.kind(),
        ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
    )
}

/// Why stacks that are there have no part in what is printed.
#[derive(Debug, Default)]
#[must_use = "the user has to know that something is missing"]
pub(crate) struct Silent(Vec<(Endpoint, ControlError)>);

impl Silent {
    /// Notes why a stack gives no answer. One that has ended is none.
    pub(crate) fn note(&mut self, endpoint: Endpoint, error: ControlError) {
        if !has_ended(&error) {
            self.0.push((endpoint, error));
        }
    }

    /// The stacks that are there and do not answer.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.0.iter().map(|(endpoint, _)| endpoint)
    }

    /// A failure if there is any.
    pub(crate) fn tell(self) -> Result<(), Failure> {
        if self.0.is_empty() {
            return Ok(());
        }
        let all = self.0.iter().map(|(endpoint, error)| {
            let Endpoint { pid, name, .. } = endpoint;
            format!("process {pid} ({name}) does not answer: {error}")
        });
        Err(Failure::Nothing(all.collect::<Vec<_>>().join("; ")))
    }
}

fn said(errors: &[ControlError]) -> String {
    let all: Vec<_> = errors.iter().map(ControlError::to_string).collect();
    all.join("; ")
}

/// Prints to the standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::Unread),
        Err(error) => Err(Failure::Nothing(format!("the standard output: {error}"))),
    }
}

/// The line above what is printed of one of several stacks.
pub(crate) fn title(stack: &StackReport) -> String {
    let addresses = stack.addresses.join(" ");
    format!("# {} {} ({}) {addresses}", stack.pid, stack.name, stack.program).trim_end().to_owned()
}
