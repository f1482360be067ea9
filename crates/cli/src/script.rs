//! `neap lab script`: runs scripts in the language of packetdrill, on neap in virtual time or, with
//! `--kernel`, on this machine's Linux in a network namespace made for each.

mod calls;
mod inside;
mod kernel;

use clap::Args as ClapArgs;
use inside::Verdict;
use neap_lab::script::ast::Script;
use neap_lab::script::cursor::{Position, SyntaxError};
use neap_lab::script::neap_host::Neap;
use neap_lab::script::report::Failure;
use neap_lab::script::settings::Settings;
use neap_lab::script::{parser, runner};
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Scripts of the kernel that run at the same time: most of the time they wait.
const AT_ONCE: usize = 6;

/// How often a script may fail on the kernel before it counts.
const TRIES: u32 = 3;

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
enum End {
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
        gather(path, &mut files);
    }
    if args.inside {
        return inside::main(&files);
    }
    let next = AtomicUsize::new(0);
    let ends = Mutex::new(Vec::new());
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let end = if args.kernel { on_this_machine(file) } else { run(file) };
            say(args, file, &end);
            ends.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(end);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..if args.kernel { AT_ONCE } else { 1 } {
            scope.spawn(work);
        }
    });
    let ends = ends.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let count = |test: fn(&End) -> bool| ends.iter().filter(|end| test(end)).count();
    let (passed, failed) =
        (count(|end| matches!(end, End::Passed)), count(|end| matches!(end, End::Failed(_))));
    let (differs, skipped) =
        (count(|end| matches!(end, End::Differs)), count(|end| matches!(end, End::Skipped(_))));
    print(&format!(
        "{passed} passed, {failed} failed, {differs} differ as they say, {skipped} skipped"
    ));
    failed == 0 && !ends.is_empty()
}

/// A line for whoever reads; if nobody does, the exit status still tells.
fn print(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{}", line.trim_end());
}

fn say(args: &Args, file: &Path, end: &End) {
    match end {
        End::Failed(why) => print(&format!("FAILED {why}")),
        _ if args.quiet => {}
        End::Passed => print(&format!("ok {}", file.display())),
        End::Differs => print(&format!("differs {}", file.display())),
        End::Skipped(why) => print(&format!("skipped {}: {why}", file.display())),
    }
}

/// A script, or those of a folder in order.
fn gather(path: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(path) else {
        files.push(path.to_owned());
        return;
    };
    let mut entries: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() || entry.extension().is_some_and(|end| end == "pkt") {
            gather(&entry, files);
        }
    }
}

/// Reads a script. The error says which file and where.
fn load(file: &Path) -> Result<(Script, Settings), String> {
    let text = std::fs::read_to_string(file).map_err(|error| about(file, None, &error))?;
    let bad = |error: SyntaxError| about(file, Some(error.at), &error);
    let script = parser::parse(&text).map_err(bad)?;
    let settings = Settings::new(&script.options, &script.sysctls).map_err(bad)?;
    Ok((script, settings))
}

/// What is said of a script, behind its name and, where there is one, the place.
fn about(file: &Path, place: Option<Position>, what: &impl Display) -> String {
    let blank = if place.is_some() { "" } else { " " };
    format!("{}:{blank}{what}", file.display())
}

fn run(file: &Path) -> End {
    let (script, settings) = match load(file) {
        Ok(loaded) => loaded,
        Err(said) => return End::Failed(said),
    };
    match on_neap(&script, &settings) {
        Ok(()) => End::Passed,
        Err(failure) => End::Failed(about(file, failure.place(), &failure)),
    }
}

fn on_neap(script: &Script, settings: &Settings) -> Result<(), Failure> {
    runner::run(script, settings, &mut Neap::new(settings)?)
}

/// Runs a script on the kernel, again if it fails: a busy machine is late.
fn on_this_machine(file: &Path) -> End {
    let mut end = in_namespace(file);
    for _ in 1..TRIES {
        if matches!(end, End::Failed(_)) {
            end = in_namespace(file);
        }
    }
    end
}

/// Runs this program again in a namespace that ends with it.
fn in_namespace(file: &Path) -> End {
    let script = match load(file) {
        Ok((script, _)) => script,
        Err(said) => return End::Failed(said),
    };
    if let Some(why) = script.not_for_linux {
        return End::Skipped(why);
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return End::Failed(about(file, None, &format!("this program: {error}"))),
    };
    let child = Command::new("unshare")
        .args(["--net", "--"])
        .arg(program)
        .args(["lab", "script", "--kernel", "--inside"])
        .arg(file)
        .output();
    let output = match child {
        Ok(output) => output,
        Err(error) => return End::Failed(about(file, None, &format!("unshare: {error}"))),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    match Verdict::read(&said) {
        Some(Verdict::Skipped(why)) => End::Skipped(why),
        Some(verdict) => end(file, script.differs_on_linux, verdict),
        None => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let what = format!("no namespace to run it in, which only root gets: {said}{errors}");
            End::Failed(about(file, None, &what))
        }
    }
}

/// How a script ended that ran on the kernel, given the line where it says that Linux differs.
fn end(file: &Path, differs: Option<u32>, verdict: Verdict) -> End {
    match (verdict, differs) {
        (Verdict::Passed, None) => End::Passed,
        (Verdict::Passed, Some(line)) => {
            let what = "the kernel does the same, although the script says that it differs";
            End::Failed(format!("{}:{line}: {what}", file.display()))
        }
        (Verdict::Differs(line, _), Some(expected)) if line == expected => End::Differs,
        (Verdict::Differs(_, said), Some(expected)) => End::Failed(format!(
            "{said}\n    the script says that Linux differs at line {expected}, not here"
        )),
        (Verdict::Differs(_, said) | Verdict::Failed(said), _) => End::Failed(said),
        (Verdict::Skipped(why), _) => End::Skipped(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_difference_where_the_script_says_is_one_that_it_says() {
        let end = |verdict, differs| end(Path::new("t.pkt"), differs, verdict);
        let differs = || Verdict::Differs(12, "t.pkt:12:1: flags".into());
        assert!(matches!(end(Verdict::Passed, None), End::Passed));
        assert!(matches!(end(differs(), Some(12)), End::Differs));
        for (verdict, at) in [
            (differs(), None),
            (differs(), Some(11)),
            (Verdict::Failed("t.pkt:3:1: unknown".into()), Some(12)),
            (Verdict::Passed, Some(12)),
        ] {
            let End::Failed(said) = end(verdict, at) else { panic!("{at:?}") };
            assert!(said.starts_with("t.pkt:"), "{said}");
        }
    }

    #[test]
    fn a_script_that_cannot_be_read_is_named() {
        let said = load(Path::new("/nowhere/t.pkt")).expect_err("no file");
        assert!(said.starts_with("/nowhere/t.pkt: "), "{said}");
    }
}
