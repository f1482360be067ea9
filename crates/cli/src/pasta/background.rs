//! The way into the background: this process runs the program once more, waits until the network is
//! there, and ends. So whoever has called it knows when to go on.

use super::Failure;
use super::channel::{self, Channel};
use super::inside::OWN_PROGRAM;
use crate::gateway::command::exit_code;
use nix::unistd::close;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::setsid;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// Runs the program in the background, and returns when its network is there or it has failed.
pub(super) fn start() -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::System(format!("the background: {error}"));
    close_inherited().map_err(failed)?;
    let (mut channel, theirs) = channel::pair().map_err(failed)?;
    let mut arguments = std::env::args_os().skip(1).peekable();
    // `neap pasta ...` and `pasta ...` have the same arguments behind the name.
    if !super::is_called_pasta() {
        arguments.next();
    }
    let mut child = Command::new(OWN_PROGRAM)
        .arg0("neap")
        .args(["pasta", "--in-background"])
        .args(arguments)
        .stdin(Stdio::from(theirs))
        .spawn()
        .map_err(failed)?;
    match channel.receive::<()>() {
        Ok(_) => Ok(ExitCode::SUCCESS),
        // It has told why.
        Err(_) => child.wait().map(exit_code).map_err(failed),
    }
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
pub(super) struct Waiting {
    channel: Channel,
    /// What standard streams become, as files may be out of reach in the end.
    null: OwnedFd,
}

impl Waiting {
    /// Leaves the session of the terminal. The standard input is the socket of the other process.
    pub(super) fn new() -> io::Result<Self> {
        setsid()?;
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        Ok(Self { channel: Channel::new(socket), null })
    }

    /// The network is there. Nobody reads what is written from now on.
    pub(super) fn tell(mut self) -> io::Result<()> {
        rustix::stdio::dup2_stdout(&self.null)?;
        rustix::stdio::dup2_stderr(&self.null)?;
        self.channel.send(&(), &[])
    }
}
