//! The first process of a sandbox. Whatever is started in the sandbox ends with it
//! (`pid_namespaces(7)`), and it ends with the command, or with the gateway.
//!
//! It has one thread: in front of a new namespace of processes a process cannot have more.

use super::command::{
    self, SignalsFrom, exit_code_of_wait, not_ignored, pass_on, show_own_processes,
};
use super::job::{self, FORWARDED};
use super::passing::{self, Message};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, set_parent_process_death_signal, wait,
};
use signal_hook::consts::{SIGCHLD, SIGCONT};
use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Runs this program once more as the first process of the new namespace, and that one the command.
/// Returns its exit status.
pub(super) fn start(command: &[OsString]) -> ExitCode {
    let mut init = Command::new("/proc/self/exe");
    init.arg0("neap").args(["gateway", "inside", "--init", "--"]).args(command);
    supervise(&mut init, None).unwrap_or_else(|error| failed(&"the first process", &error))
}

/// The first process, whose standard input is the socket of the host's half. It gives the command
/// the one that it gets from there.
pub(super) fn main(command: &[OsString]) -> ExitCode {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed(&"the first process", &error.into());
    }
    let host = match take_input() {
        Ok(host) => host,
        Err(error) => return failed(&"the standard input", &error),
    };
    show_own_processes();
    let (program, arguments) = command.split_first().expect("clap requires one");
    let ended = supervise(Command::new(program).args(arguments), Some(&host));
    ended.unwrap_or_else(|error| failed(&Path::new(program).display(), &error))
}

fn failed(what: &dyn Display, error: &io::Error) -> ExitCode {
    // It fails for no signal that exists.
    let _ = job::lines_appear();
    command::not_run("neap gateway", what, error)
}

/// Puts the standard input of the command in the place of the socket, which is returned.
fn take_input() -> io::Result<OwnedFd> {
    let host = io::stdin().as_fd().try_clone_to_owned()?;
    let Message::Input(input) = passing::receive(&host)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    rustix::stdio::dup2_stdin(input)?;
    Ok(host)
}

/// Runs a process and passes signals on to it, until it has ended. Others that have lost their
/// parent are taken note of when they end. `host` is told when a signal stops the process, as the
/// first process of a namespace cannot stop itself, and when it was to go on.
fn supervise(command: &mut Command, host: Option<&OwnedFd>) -> io::Result<ExitCode> {
    let mut signals = SignalsFrom::new(not_ignored(&FORWARDED).into_iter().chain([SIGCHLD]))?;
    let child = command.spawn()?;
    let child = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let child = child.ok_or(io::ErrorKind::NotFound)?;
    for signal in signals.forever() {
        if signal.signal != SIGCHLD {
            pass_on(&signal, child);
            if signal.signal == SIGCONT {
                tell(host, &Message::Continued);
            }
        } else if let Some(status) = reap(child, host)? {
            return Ok(exit_code_of_wait(status));
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

fn tell(host: Option<&OwnedFd>, what: &Message) {
    // The first process ends with the other half.
    let _ = host.map(|host| passing::send(host, what));
}

/// Takes note of processes that have ended or were stopped. The status of `child`, if it has ended.
fn reap(child: Pid, host: Option<&OwnedFd>) -> io::Result<Option<WaitStatus>> {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if pid == child && status.stopped() => {
                tell(host, &Message::Stopped);
            }
            Ok(Some((pid, status))) if pid == child => return Ok(Some(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(Errno::CHILD) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}
