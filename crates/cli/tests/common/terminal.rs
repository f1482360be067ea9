//! Programs in a pseudo terminal, as somebody at a keyboard sees them.

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::process::{Command, ExitStatus};

/// Which streams of a program are the terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    Output,
    Errors,
}

/// A terminal that is nobody's yet: the end of who types, and that of a program.
pub(crate) fn terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo terminal");
    grantpt(&ours).expect("it is ours");
    unlockpt(&ours).expect("it is ours");
    let name = ptsname(&ours, Vec::new()).expect("a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let theirs = rustix::fs::open(&*name, flags, Mode::empty()).expect("the other end");
    (File::from(ours), File::from(theirs))
}

/// Runs a program with one of its streams in a terminal of so many columns; what the terminal got,
/// with lines that end as in a file, and how the program ended.
pub(crate) fn in_terminal(
    mut command: Command,
    columns: u16,
    shows: Shows,
) -> (String, ExitStatus) {
    let (mut ours, theirs) = terminal();
    let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).expect("a size");
    command.env("TERM", "xterm-256color");
    let (output, errors) = match shows {
        Shows::Output => (theirs.into(), std::process::Stdio::null()),
        Shows::Errors => (std::process::Stdio::null(), theirs.into()),
    };
    let mut child = command.stdout(output).stderr(errors).spawn().expect("the program runs");
    // The command holds the other end too: without it, reading ends with the program.
    drop(command);
    let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
    // The end is EIO.
    while let Ok(count) = ours.read(&mut buffer) {
        got.extend_from_slice(&buffer[..count]);
    }
    let status = child.wait().expect("the program ends");
    (String::from_utf8_lossy(&got).replace("\r\n", "\n"), status)
}
