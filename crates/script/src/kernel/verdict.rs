//! Verdict about a script on the kernel, and its text, by which one process tells another.

use super::KernelHost;
use super::namespace;
use crate::ast::Script;
use crate::report::Failure;
use crate::runner;
use crate::settings::Settings;
use core::fmt;
use core::str::FromStr;
use std::path::Path;

/// Result of a script on the kernel.
///
/// Its text is a line with a word, which has the line of the script behind it if there is a
/// difference. A description follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel did what the script says.
    Passed,
    /// The kernel does something else at this line of the script.
    Differs(u32, String),
    /// The kernel lacks something.
    Skipped(String),
    /// The script could not be run.
    Failed(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => writeln!(f, "passed"),
            Self::Differs(line, said) => write!(f, "differs {line}\n{said}"),
            Self::Skipped(why) => write!(f, "skipped\n{why}"),
            Self::Failed(said) => write!(f, "failed\n{said}"),
        }
    }
}

/// Error of a text that is not a [`Verdict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the verdict on a script")]
pub struct NoVerdict;

impl FromStr for Verdict {
    type Err = NoVerdict;

    fn from_str(text: &str) -> Result<Self, NoVerdict> {
        let (first, said) = text.split_once('\n').ok_or(NoVerdict)?;
        let said = said.trim_end().to_owned();
        match first.split_once(' ') {
            Some(("differs", line)) => {
                Ok(Self::Differs(line.parse().map_err(|_| NoVerdict)?, said))
            }
            None if first == "passed" => Ok(Self::Passed),
            None if first == "skipped" => Ok(Self::Skipped(said)),
            None if first == "failed" => Ok(Self::Failed(said)),
            _ => Err(NoVerdict),
        }
    }
}

/// Runs a script on the kernel, in the network namespace of this process. `file` is the script's
/// file, for messages.
pub fn run(script: &Script, file: &Path) -> Verdict {
    match check(script) {
        Ok(verdict) => verdict,
        Err(failure) => {
            let said = failure.in_file(file);
            match failure {
                Failure::Differs(difference) => Verdict::Differs(difference.at.line, said),
                _ => Verdict::Failed(said),
            }
        }
    }
}

fn check(script: &Script) -> Result<Verdict, Failure> {
    let settings = Settings::new(script)?;
    if let Some(what) = namespace::what_is_missing(&settings)? {
        return Ok(Verdict::Skipped(what));
    }
    runner::run(script, &settings, &mut KernelHost::new(&settings)?)?;
    Ok(Verdict::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_survive_the_way_through_a_pipe() {
        for verdict in [
            Verdict::Passed,
            Verdict::Differs(7, "t.pkt:7:1: length\n    script".into()),
            Verdict::Skipped("no fq".into()),
            Verdict::Failed("t.pkt:1:1: unknown".into()),
        ] {
            assert_eq!(verdict.to_string().parse(), Ok(verdict));
        }
        for other in ["", "unshare: unshare failed\n", "differs\n", "differs x\n", "passed 1\n"] {
            assert_eq!(other.parse::<Verdict>(), Err(NoVerdict), "{other}");
        }
    }
}
