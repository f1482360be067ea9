//! The way into the background: this process runs the program once more, waits until the network is
//! there, and ends. So whoever has called it knows when to go on.
//!
//! The folder stays that of the caller until the command leaves it: files that it reads again may
//! have relative paths.

use crate::gateway::command::exit_code;
use nix::unistd::close;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::setsid;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// The program that runs, wherever its file is now.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Tells the new process that the standard input is the socket of the one that waits.
const OPTION: &str = "--in-background";

/// Runs a command of the program in the background, and returns when its network is there or it has
/// failed.
///
/// # Errors
/// There is no descriptor or process left.
pub(crate) fn start(
    command: &str,
    arguments: impl Iterator<Item = OsString>,
) -> io::Result<ExitCode> {
    close_inherited()?;
    let (mut own, theirs) = UnixStream::pair()?;
    let mut child = Command::new(OWN_PROGRAM)
        .arg0("neap")
        .args([command, OPTION])
        .args(arguments)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()?;
    // Nothing comes if the process ends.
    if own.read_exact(&mut [0]).is_ok() {
        return Ok(ExitCode::SUCCESS);
    }
    // It has told why.
    let status = child.wait()?;
    Ok(if status.success() { ExitCode::FAILURE } else { exit_code(status) })
}

/// Closes all descriptors but the standard streams: what the caller has open, such as a lock, is
/// not for the background.
fn close_inherited() -> io::Result<()> {
    let names = fs::read_dir("/proc/self/fd")?.map(|entry| entry.map(|entry| entry.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    for number in names.iter().filter_map(|name| name.to_str()?.parse::<i32>().ok()) {
        if number > 2 {
            // That of the folder itself is closed.
            let _ = close(number);
        }
    }
    Ok(())
}

/// What the process in the background tells the one that waits for it.
#[derive(Debug)]
pub(crate) struct Waiting {
    socket: UnixStream,
    /// What standard streams become, as files may be out of reach in the end.
    null: OwnedFd,
}

impl Waiting {
    /// Leaves the session of the terminal. The standard input is the socket of the other process.
    ///
    /// # Errors
    /// The process leads a session already, or there are no descriptors left.
    pub(crate) fn new() -> io::Result<Self> {
        setsid()?;
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        Ok(Self { socket, null })
    }

    /// The network is there. Nobody reads what is written from now on.
    ///
    /// # Errors
    /// The other process is gone.
    pub(crate) fn tell(mut self) -> io::Result<()> {
        rustix::stdio::dup2_stdout(&self.null)?;
        rustix::stdio::dup2_stderr(&self.null)?;
        self.socket.write_all(&[1])
    }
}
