//! Standard input and output as one end of a relay.
//!
//! The descriptors stay in blocking mode, as other processes may share them: each call is made only
//! where `poll(2)` says that it does not wait.

use crate::relay::{End, MOST_PIECE, take_front};
use bytes::Bytes;
use neap::{Events, Poller};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes that a pipe takes without waiting once it is writable (`PIPE_BUF`).
const PIPE: usize = 4096;
/// The same of a terminal (`WAKEUP_CHARS` of Linux).
const TERMINAL: usize = 256;

/// Two descriptors.
#[derive(Debug)]
pub(super) struct Stdio {
    input: OwnedFd,
    /// `None` once it has ended.
    output: Option<OwnedFd>,
    /// Bytes that one call writes.
    most: usize,
}

impl Stdio {
    pub(super) fn new(input: OwnedFd, output: OwnedFd) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&output)?.st_mode);
        let most = match kind {
            FileType::CharacterDevice => TERMINAL,
            FileType::RegularFile => MOST_PIECE,
            _ => PIPE,
        };
        Ok(Self { input, output: Some(output), most })
    }

    /// Adds both to a poller. A file is always ready, and is in none.
    pub(super) fn enter(&self, poller: &Poller, token: u64) -> io::Result<()> {
        enter(&self.input, poller, token, Events::IN | Events::ET)?;
        match &self.output {
            Some(output) => enter(output, poller, token, Events::OUT | Events::ET),
            None => Ok(()),
        }
    }
}

fn enter(file: &OwnedFd, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
    let file = file.as_fd();
    match poller.add(&file, token, events) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        result => result,
    }
}

/// The error of a call, with the stream that it is about: the user has to know which one is lost.
fn named(stream: &str, errno: Errno) -> io::Error {
    let error = io::Error::from(errno);
    match error.kind() {
        // The caller asks for this one.
        io::ErrorKind::WouldBlock => error,
        kind => io::Error::new(kind, format!("{stream}: {error}")),
    }
}

/// # Errors
/// `WouldBlock` if a call would wait.
fn check(file: &impl AsFd, events: PollFlags) -> io::Result<()> {
    let mut entries = [PollFd::new(file, events)];
    match poll(&mut entries, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        // A signal is told only where nothing is ready.
        Ok(0) | Err(Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
        Ok(_) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes a call where it does not wait. One that a signal has ended is made again.
///
/// # Errors
/// `WouldBlock` if it would wait; those of the call, with the name of the stream.
fn without_wait<T>(
    file: &impl AsFd,
    events: PollFlags,
    stream: &str,
    mut call: impl FnMut() -> rustix::io::Result<T>,
) -> io::Result<T> {
    loop {
        check(file, events)?;
        match call() {
            Err(Errno::INTR) => {}
            result => return result.map_err(|errno| named(stream, errno)),
        }
    }
}

impl End for Stdio {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        let mut piece = Vec::new();
        let count = without_wait(&self.input, PollFlags::IN, "the standard input", || {
            piece.resize(MOST_PIECE, 0);
            rustix::io::read(&self.input, &mut piece)
        })?;
        piece.truncate(count);
        Ok((count > 0).then(|| piece.into()))
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        let (Some(output), Some(first)) = (&self.output, pieces.front()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let count = first.len().min(most).min(self.most);
        let sent = without_wait(output, PollFlags::OUT, "the standard output", || {
            rustix::io::write(output, &first[..count])
        })?;
        take_front(pieces, sent);
        Ok(sent)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.output = None;
        Ok(())
    }

    fn reset(&mut self) {
        self.output = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_call_that_a_signal_ends_is_made_again_where_it_does_not_wait() {
        let (mut read, mut write) = io::pipe().expect("a pipe");
        let mut results = vec![Ok(5), Err(Errno::INTR), Err(Errno::INTR)];
        write.write_all(b"x").expect("room");
        let file = read.try_clone().expect("a descriptor");
        let got = without_wait(&file, PollFlags::IN, "it", || results.pop().expect("no more"));
        assert_eq!(got.expect("the third time"), 5);
        // Another process reads from the same pipe.
        let taken = without_wait(&file, PollFlags::IN, "it", || {
            read.read_exact(&mut [0]).expect("a byte");
            Err::<(), _>(Errno::INTR)
        });
        assert_eq!(taken.expect_err("nothing is left").kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn an_output_that_takes_nothing_is_named() {
        let input = std::fs::File::open("/dev/null").expect("Linux has it");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let (read, write) = io::pipe().expect("a pipe");
        drop(read);
        for (output, why) in [
            (
                OwnedFd::from(full.expect("Linux has it")),
                "the standard output: No space left on device",
            ),
            (OwnedFd::from(write), "the standard output: Broken pipe"),
        ] {
            let input = input.try_clone().expect("a descriptor");
            let mut stdio = Stdio::new(input.into(), output).expect("two descriptors");
            let sent = stdio.send(&mut VecDeque::from([Bytes::from_static(b"x")]), 1);
            let error = sent.expect_err("nobody takes it").to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
