//! A command that runs in namespaces of its own: what it is told, and how it ends.

use crate::standard_error::say;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, WaitStatus, kill_process};
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

/// Exit statuses of a command that cannot be run, as shells have them.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Says, in the name of `face`, that a command cannot be run.
pub(crate) fn not_run(face: &str, command: &dyn Display, error: &io::Error) -> ExitCode {
    say(&format_args!("{face}: {command}: {error}"));
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    ExitCode::from(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE })
}

/// The exit status of a command; of one that a signal ended what shells make of it.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    code(status.code(), status.signal())
}

/// As [`exit_code`], of what the first process of a namespace is told.
pub(super) fn exit_code_of_wait(status: WaitStatus) -> ExitCode {
    code(status.exit_status(), status.terminating_signal())
}

fn code(exit_status: Option<i32>, signal: Option<i32>) -> ExitCode {
    let code = exit_status.or_else(|| signal.map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Shows in `/proc` the processes of the namespace, and only them. A machine that hides a part of
/// its own does not allow it.
pub(crate) fn show_own_processes() {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let _ = mount("proc", "/proc", "proc", flags, None);
}

/// Those of `signals` that this process has not ignored since its start. What is ignored stays so
/// for a command, as `nohup(1)` wants it, while one that is handled is not.
pub(crate) fn not_ignored(signals: &[i32]) -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    signals.iter().copied().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}

/// Signals by which a terminal stops the processes in the foreground, or one behind.
pub(super) const STOPS: [i32; 3] = [SIGTSTP, SIGTTIN, SIGTTOU];

/// Signals that a terminal sends to all processes in the foreground.
const OF_TERMINALS: [i32; 6] = [SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH];

/// Signals of this process, and where they come from.
pub(super) type SignalsFrom = SignalsInfo<WithOrigin>;

/// Passes a signal on to the command `to`. Those that a terminal sends reach it without help, as
/// they go to all processes in the foreground.
pub(super) fn pass_on(signal: &Origin, to: Pid) {
    let by_terminal =
        matches!(signal.cause, Cause::Kernel) && OF_TERMINALS.contains(&signal.signal);
    if !by_terminal && let Some(signal) = Signal::from_named_raw(signal.signal) {
        // The command may have ended meanwhile.
        let _ = kill_process(to, signal);
    }
}
