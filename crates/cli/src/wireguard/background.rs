//! The way into the background: this process runs the program once more, waits until the tunnel is
//! there, and ends.

use super::Failure;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::setsid;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// The program that runs, wherever its file is now.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Tells the new process that the standard input is the socket of the one that waits.
pub(super) const OPTION: &str = "--in-background";

/// Runs the program in the background, and returns when its tunnel is there or it has failed.
pub(super) fn start() -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::System(format!("the background: {error}"));
    let (mut own, theirs) = UnixStream::pair().map_err(failed)?;
    let mut child = Command::new(OWN_PROGRAM)
        .arg0("neap")
        .args(std::env::args_os().skip(1))
        .arg(OPTION)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .map_err(failed)?;
    // Nothing comes if the process ends.
    if own.read(&mut [0]).map_err(failed)? > 0 {
        return Ok(ExitCode::SUCCESS);
    }
    // It has told why.
    let status = child.wait().map_err(failed)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.filter(|&code| code != 0).unwrap_or(1)))
}

/// What the process in the background tells the one that waits for it.
#[derive(Debug)]
pub(super) struct Waiting {
    socket: UnixStream,
    /// What standard streams become, as files may be out of reach in the end.
    null: OwnedFd,
}

impl Waiting {
    /// Leaves the session of the terminal.
    pub(super) fn new() -> io::Result<Self> {
        setsid()?;
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        Ok(Self { socket, null })
    }

    /// The tunnel is there. Nobody reads what is written from now on.
    pub(super) fn tell(mut self) -> io::Result<()> {
        rustix::stdio::dup2_stdout(&self.null)?;
        rustix::stdio::dup2_stderr(&self.null)?;
        self.socket.write_all(&[1])
    }
}
