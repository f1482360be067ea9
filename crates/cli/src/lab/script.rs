//! `neap lab script`: runs scripts in the language of packetdrill, on neap in virtual time or, with
//! `--kernel`, on this machine's Linux in a network namespace made for each.

use clap::Args as ClapArgs;
use neap_script::ast::Script;
use neap_script::kernel::{self, Verdict};
use neap_script::parser;
use neap_script::report::Failure;
use neap_script::settings::Settings;
use neap_script::virtual_host;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Scripts of the kernel that run at the same time: most of the time they wait.
const AT_ONCE: usize = 6;

/// Pauses before a script that failed on the kernel is tried again: a machine that is busy now is
/// not so for ever.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5)];

/// Run scripts in the language of packetdrill
#[derive(ClapArgs, Clone, Debug)]
pub(crate) struct Args {
    /// Scripts, or folders of them (*.pkt)
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Run on this machine's Linux, each script in a network namespace of its own (root)
    #[arg(long)]
    kernel: bool,
    /// Print only failures and the count
    #[arg(long, short)]
    quiet: bool,
    /// The network namespace is there already
    #[arg(long, hide = true)]
    inside: bool,
}

/// How a script ended.
enum Outcome {
    Passed,
    /// The kernel differs, as the script says.
    Differs,
    Skipped(String),
    Failed(String),
}

/// Runs the scripts. Whether all did what they should.
pub(crate) fn main(args: &Args) -> bool {
    let mut files = Vec::new();
    for path in &args.files {
        find_scripts(path, &mut files);
    }
    if args.inside {
        return run_inside(&files);
    }
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = if args.kernel { run_on_kernel(file) } else { run_on_neap(file) };
            print_outcome(file, &outcome, args.quiet);
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..if args.kernel { AT_ONCE } else { 1 } {
            scope.spawn(work);
        }
    });
    let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    let count = |test: fn(&Outcome) -> bool| outcomes.iter().filter(|one| test(one)).count();
    let passed = count(|one| matches!(one, Outcome::Passed));
    let failed = count(|one| matches!(one, Outcome::Failed(_)));
    let differs = count(|one| matches!(one, Outcome::Differs));
    let skipped = count(|one| matches!(one, Outcome::Skipped(_)));
    print(&format!(
        "{passed} passed, {failed} failed, {differs} differ as they say, {skipped} skipped"
    ));
    failed == 0 && !outcomes.is_empty()
}

/// A line for whoever reads; if nobody does, the exit status still tells.
fn print(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{}", line.trim_end());
}

fn print_outcome(file: &Path, outcome: &Outcome, is_quiet: bool) {
    match outcome {
        Outcome::Failed(why) => print(&format!("FAILED {why}")),
        _ if is_quiet => {}
        Outcome::Passed => print(&format!("ok {}", file.display())),
        Outcome::Differs => print(&format!("differs {}", file.display())),
        Outcome::Skipped(why) => print(&format!("skipped {}: {why}", file.display())),
    }
}

/// A script, or those of a folder in order.
fn find_scripts(path: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(path) else {
        files.push(path.to_owned());
        return;
    };
    let mut entries: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() || entry.extension().is_some_and(|end| end == "pkt") {
            find_scripts(&entry, files);
        }
    }
}

/// What is said of a file that cannot be used.
fn about(file: &Path, what: &str) -> String {
    format!("{}: {what}", file.display())
}

/// Reads a script and checks its settings. The error says which file and where.
fn load(file: &Path) -> Result<Script, String> {
    let text = std::fs::read_to_string(file).map_err(|error| about(file, &error.to_string()))?;
    let checked = parser::parse(&text).and_then(|script| {
        Settings::new(&script)?;
        Ok(script)
    });
    checked.map_err(|error| Failure::from(error).in_file(file))
}

fn run_on_neap(file: &Path) -> Outcome {
    let run = |script| virtual_host::run(&script).map_err(|failure| failure.in_file(file));
    match load(file).and_then(run) {
        Ok(()) => Outcome::Passed,
        Err(said) => Outcome::Failed(said),
    }
}

/// Runs a script on the kernel, again if it fails: a busy machine is late.
fn run_on_kernel(file: &Path) -> Outcome {
    let script = match load(file) {
        Ok(script) => script,
        Err(said) => return Outcome::Failed(said),
    };
    if let Some(why) = script.not_for_linux {
        return Outcome::Skipped(why);
    }
    let mut outcome = run_in_namespace(file, script.differs_on_linux);
    for pause in PAUSES {
        if matches!(outcome, Outcome::Failed(_)) {
            std::thread::sleep(pause);
            outcome = run_in_namespace(file, script.differs_on_linux);
        }
    }
    outcome
}

/// Runs this program again in a namespace that ends with it. `differs` is the line where the script
/// says that Linux differs.
fn run_in_namespace(file: &Path, differs: Option<u32>) -> Outcome {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Outcome::Failed(about(file, &format!("this program: {error}"))),
    };
    let child = Command::new("unshare")
        .args(["--net", "--"])
        .arg(program)
        .args(["lab", "script", "--kernel", "--inside"])
        .arg(file)
        .output();
    let output = match child {
        Ok(output) => output,
        Err(error) => return Outcome::Failed(about(file, &format!("unshare: {error}"))),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    match said.parse() {
        Ok(verdict) => outcome(file, differs, verdict),
        Err(_) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let what = format!("no namespace to run it in, which only root gets: {said}{errors}");
            Outcome::Failed(about(file, &what))
        }
    }
}

/// Runs one script in the namespace of this process and prints the verdict for the program that
/// started it. Whether the script passed.
fn run_inside(files: &[PathBuf]) -> bool {
    let [file] = files else { return false };
    let verdict = match load(file) {
        Ok(script) => kernel::run(&script, file),
        Err(said) => Verdict::Failed(said),
    };
    print(&verdict.to_string());
    verdict == Verdict::Passed
}

/// How a script ended that ran on the kernel, given the line where it says that Linux differs.
fn outcome(file: &Path, differs: Option<u32>, verdict: Verdict) -> Outcome {
    match (verdict, differs) {
        (Verdict::Passed, None) => Outcome::Passed,
        (Verdict::Passed, Some(line)) => {
            let what = "the kernel does the same, although the script says that it differs";
            Outcome::Failed(format!("{}:{line}: {what}", file.display()))
        }
        (Verdict::Differs(line, _), Some(expected)) if line == expected => Outcome::Differs,
        (Verdict::Differs(_, said), Some(expected)) => Outcome::Failed(format!(
            "{said}\n    the script says that Linux differs at line {expected}, not here"
        )),
        (Verdict::Differs(_, said) | Verdict::Failed(said), _) => Outcome::Failed(said),
        (Verdict::Skipped(why), _) => Outcome::Skipped(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_difference_where_the_script_says_is_one_that_it_says() {
        let outcome = |verdict, differs| outcome(Path::new("t.pkt"), differs, verdict);
        let differs = || Verdict::Differs(12, "t.pkt:12:1: flags".into());
        assert!(matches!(outcome(Verdict::Passed, None), Outcome::Passed));
        assert!(matches!(outcome(differs(), Some(12)), Outcome::Differs));
        for (verdict, at) in [
            (differs(), None),
            (differs(), Some(11)),
            (Verdict::Failed("t.pkt:3:1: unknown".into()), Some(12)),
            (Verdict::Passed, Some(12)),
        ] {
            let Outcome::Failed(said) = outcome(verdict, at) else { panic!("{at:?}") };
            assert!(said.starts_with("t.pkt:"), "{said}");
        }
    }

    #[test]
    fn a_script_that_cannot_be_read_is_named() {
        let said = load(Path::new("/nowhere/t.pkt")).expect_err("no file");
        assert!(said.starts_with("/nowhere/t.pkt: "), "{said}");
    }
}
