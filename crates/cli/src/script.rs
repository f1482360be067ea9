//! `neap lab script`: runs scripts in the language of packetdrill, on neap in virtual time or, with
//! `--kernel`, on this machine's Linux in a network namespace made for each.

mod calls;
mod kernel;

use clap::Args as ClapArgs;
use kernel::Kernel;
use neap_lab::script::ast::Script;
use neap_lab::script::neap_host::Neap;
use neap_lab::script::report::Failure;
use neap_lab::script::settings::Settings;
use neap_lab::script::{parser, runner};
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
        return inside(&files);
    }
    let next = AtomicUsize::new(0);
    let ends = Mutex::new(Vec::new());
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let end = if args.kernel { on_this_machine(file) } else { run(file, on_neap) };
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

fn load(file: &Path) -> Result<(Script, Settings), String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let script = parser::parse(&text).map_err(|error| error.to_string())?;
    let settings =
        Settings::new(&script.options, &script.sysctls).map_err(|error| error.to_string())?;
    Ok((script, settings))
}

fn run(file: &Path, on: fn(&Script, &Settings) -> Result<(), Failure>) -> End {
    let name = file.display();
    match load(file) {
        Err(error) => End::Failed(format!("{name}:{error}")),
        Ok((script, settings)) => match on(&script, &settings) {
            Ok(()) => End::Passed,
            Err(error) => End::Failed(format!("{name}:{error}")),
        },
    }
}

fn on_neap(script: &Script, settings: &Settings) -> Result<(), Failure> {
    runner::run(script, settings, &mut Neap::new(settings)?)
}

fn on_kernel(script: &Script, settings: &Settings) -> Result<(), Failure> {
    runner::run(script, settings, &mut Kernel::new(settings)?)
}

/// Runs one script on the kernel in this process's namespace.
fn inside(files: &[PathBuf]) -> bool {
    for file in files {
        if let End::Failed(why) = run(file, on_kernel) {
            print(&why);
            return false;
        }
    }
    true
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
        Err(error) => return End::Failed(format!("{}:{error}", file.display())),
    };
    if let Some(why) = script.not_for_linux {
        return End::Skipped(why);
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return End::Failed(format!("this program: {error}")),
    };
    let child = Command::new("unshare")
        .args(["--net", "--"])
        .arg(program)
        .args(["lab", "script", "--kernel", "--inside"])
        .arg(file)
        .output();
    let output = match child {
        Ok(output) => output,
        Err(error) => return End::Failed(format!("unshare: {error}")),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    match (output.status.success(), script.differs_on_linux) {
        (true, None) => End::Passed,
        (false, Some(_)) => End::Differs,
        (false, None) => End::Failed(said),
        (true, Some(_)) => End::Failed(format!(
            "{}: passes on the kernel, although it says that Linux differs",
            file.display()
        )),
    }
}
