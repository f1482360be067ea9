//! A script on the kernel, in the namespace that this process was started in, and what it tells the
//! process that started it.

use super::kernel::{self, Kernel};
use super::{about, load, print};
use neap_lab::script::ast::Script;
use neap_lab::script::report::Failure;
use neap_lab::script::runner;
use neap_lab::script::settings::Settings;
use std::path::{Path, PathBuf};

/// How a script ended on the kernel. The first line of what the child prints is a word, with the line of a
/// difference; what there is to say follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As the script says.
    Passed,
    /// The kernel does something else at this line.
    Differs(u32, String),
    /// The kernel lacks something.
    Skipped(String),
    /// It could not be run.
    Failed(String),
}

impl Verdict {
    fn write(&self) -> String {
        match self {
            Self::Passed => "passed\n".into(),
            Self::Differs(line, said) => format!("differs {line}\n{said}"),
            Self::Skipped(why) => format!("skipped\n{why}"),
            Self::Failed(said) => format!("failed\n{said}"),
        }
    }

    /// What a child printed; `None` if it is none of this program.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (first, said) = text.split_once('\n')?;
        let said = said.trim_end().to_owned();
        Some(match first.split_once(' ') {
            Some(("differs", line)) => Self::Differs(line.parse().ok()?, said),
            None if first == "passed" => Self::Passed,
            None if first == "skipped" => Self::Skipped(said),
            None if first == "failed" => Self::Failed(said),
            _ => return None,
        })
    }
}

/// Runs one script and prints its verdict. Whether it passed.
pub(super) fn main(files: &[PathBuf]) -> bool {
    let [file] = files else { return false };
    let verdict = verdict(file);
    print(&verdict.write());
    verdict == Verdict::Passed
}

fn verdict(file: &Path) -> Verdict {
    let (script, settings) = match load(file) {
        Ok(loaded) => loaded,
        Err(said) => return Verdict::Failed(said),
    };
    match kernel::lacks(&settings) {
        Ok(None) => {}
        Ok(Some(what)) => return Verdict::Skipped(what),
        Err(failure) => return Verdict::Failed(about(file, None, &failure)),
    }
    match on_kernel(&script, &settings) {
        Ok(()) => Verdict::Passed,
        Err(failure) => {
            let said = about(file, failure.place(), &failure);
            match failure {
                Failure::Differs(difference) => Verdict::Differs(difference.at.line, said),
                _ => Verdict::Failed(said),
            }
        }
    }
}

fn on_kernel(script: &Script, settings: &Settings) -> Result<(), Failure> {
    runner::run(script, settings, &mut Kernel::new(settings)?)
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
            assert_eq!(Verdict::read(&verdict.write()), Some(verdict));
        }
        for other in ["", "unshare: unshare failed\n", "differs\n", "differs x\n", "passed 1\n"] {
            assert_eq!(Verdict::read(other), None, "{other}");
        }
    }
}
