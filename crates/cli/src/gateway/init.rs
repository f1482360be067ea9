//! The first process of a sandbox. Whatever is started in the sandbox ends with it
//! (`pid_namespaces(7)`), and it ends with the command, or with the gateway.
//!
//! It has one thread: in front of a new namespace of processes a process cannot have more.

use super::run::FORWARDED;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, set_parent_process_death_signal, wait,
};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGQUIT};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Exit statuses of a command that cannot be run, as shells have them.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs this program once more as the first process of the new namespace, and that one the command.
/// Returns its exit status.
pub(super) fn start(command: &[OsString]) -> ExitCode {
    let mut init = Command::new("/proc/self/exe");
    init.arg0("neap").args(["gateway", "inside", "--init", "--"]).args(command);
    supervise(&mut init).unwrap_or_else(|error| failed("the first process", &error))
}

/// The first process.
pub(super) fn main(command: &[OsString]) -> ExitCode {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed("the first process", &error.into());
    }
    // The processes of the sandbox are seen there, and only they. A machine that hides a part of
    // its own does not allow it.
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let _ = mount("proc", "/proc", "proc", flags, None);
    let (program, arguments) = command.split_first().expect("clap requires one");
    let ended = supervise(Command::new(program).args(arguments));
    ended.unwrap_or_else(|error| failed(&Path::new(program).display().to_string(), &error))
}

fn failed(what: &str, error: &io::Error) -> ExitCode {
    eprintln!("neap gateway: {what}: {error}");
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    ExitCode::from(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE })
}

/// Runs a process and passes signals on to it, until it has ended. Others that have lost their
/// parent are taken note of when they end.
fn supervise(command: &mut Command) -> io::Result<ExitCode> {
    let mut signals = Signals::new(FORWARDED.into_iter().chain([SIGCHLD]))?;
    let child = command.spawn()?;
    let child = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let child = child.ok_or(io::ErrorKind::NotFound)?;
    let has_terminal = io::stdin().is_terminal();
    for signal in signals.forever() {
        if signal == SIGCHLD {
            if let Some(status) = reap(child)? {
                return Ok(exit_code(status));
            }
        } else if let Some(signal) = Signal::from_named_raw(signal)
            // The terminal sends these to all processes in the foreground.
            && !(has_terminal && [SIGINT, SIGQUIT].contains(&signal.as_raw()))
        {
            // It may have ended meanwhile.
            let _ = kill_process(child, signal);
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

/// Takes note of processes that have ended. The status of `child`, if it is among them.
fn reap(child: Pid) -> io::Result<Option<WaitStatus>> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == child => return Ok(Some(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(Errno::CHILD) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The exit status of the command; of one that a signal ended what shells make of it.
fn exit_code(status: WaitStatus) -> ExitCode {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|by| 128 + by));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
