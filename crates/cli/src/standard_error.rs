//! Lines on the standard error, where nobody may listen any more.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a pipe takes at once if it has room for any (`PIPE_BUF`).
const AT_ONCE: usize = 4096;

/// Lines that were lost since the last one that was written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Says a line. It is lost where it cannot be written, as on a full disk or into a pipe that nobody
/// reads: a network goes on without its lines, while `eprintln!` panics or waits. The next line
/// says how many were lost.
pub(crate) fn say(line: &dyn Display) {
    write(&io::stderr(), &LOST, &format!("{line}\n"));
}

/// The standard error as a place for lines that are lost where it cannot take them. Each is one
/// write.
pub(crate) struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write(&io::stderr(), &LOST, &String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a text, as far as that does not wait.
fn write(to: &impl AsFd, lost: &AtomicU64, text: &str) {
    let before = lost.swap(0, Ordering::Relaxed);
    let is_written = if before > 0 {
        let text = format!("({before} lines were lost here)\n{text}");
        write_all(to, text.as_bytes())
    } else {
        write_all(to, text.as_bytes())
    };
    if !is_written {
        lost.fetch_add(before + 1, Ordering::Relaxed);
    }
}

/// Whether something was written.
fn write_all(to: &impl AsFd, text: &[u8]) -> bool {
    let mut rest = text;
    while !rest.is_empty() && has_room(to) {
        match rustix::io::write(to, &rest[..rest.len().min(AT_ONCE)]) {
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    rest.len() < text.len()
}

fn has_room(to: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(to, PollFlags::OUT)];
    loop {
        match poll(&mut polled, Some(&Timespec::default())) {
            Ok(count) => return count > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_pipe_that_nobody_reads_loses_lines_and_is_waited_for_by_nobody() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let lost = AtomicU64::new(0);
        let long = "x".repeat(AT_ONCE - 1) + "\n";
        let mut written = 0;
        while lost.load(Ordering::Relaxed) == 0 {
            write(&writer, &lost, &long);
            written += AT_ONCE;
        }
        write(&writer, &lost, "lost, too\n");
        let mut taken = vec![0; written - AT_ONCE];
        reader.read_exact(&mut taken).expect("what was written");
        write(&writer, &lost, "there is room again\n");
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("text");
        assert_eq!(rest, "(2 lines were lost here)\nthere is room again\n");
    }

    #[test]
    fn where_nobody_can_read_nothing_happens() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let lost = AtomicU64::new(0);
        write(&writer, &lost, "a line\n");
        assert_eq!(lost.into_inner(), 1);
    }
}
