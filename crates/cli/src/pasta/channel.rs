//! How the two halves of the face talk: a line of JSON for each message, which may bring
//! descriptors.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Longest message, bytes: all ports of both protocols, in decimal.
const MOST_BYTES: usize = 4 << 20;
const PIECE: usize = 64 << 10;
/// Most descriptors of a message: those of a device.
const MOST_DESCRIPTORS: usize = 2;

/// One end.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    /// What came behind the message that was taken last.
    rest: Vec<u8>,
    /// The descriptors that came with it, those of a message with the place where it begins.
    descriptors: VecDeque<(usize, Vec<OwnedFd>)>,
}

/// Two ends. An end whose process ends is seen by the other.
pub(super) fn pair() -> io::Result<(Channel, OwnedFd)> {
    let (own, other) = UnixStream::pair()?;
    Ok((Channel::new(own.into()), other.into()))
}

impl Channel {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, rest: Vec::new(), descriptors: VecDeque::new() }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `BrokenPipe` if the other end is gone.
    pub(super) fn send(
        &mut self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let mut sent = 0;
        while sent < line.len() {
            let parts = [IoSlice::new(&line[sent..])];
            sent += sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
            control.clear();
        }
        Ok(())
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other end is gone; `InvalidData` for what is no such message.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut looked_at = 0;
        let end = loop {
            if let Some(end) = self.rest[looked_at..].iter().position(|byte| *byte == b'\n') {
                break looked_at + end;
            }
            looked_at = self.rest.len();
            if looked_at > MOST_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.rest.resize(looked_at + PIECE, 0);
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(&mut self.rest[looked_at..])];
            let count = recvmsg(&self.socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
            self.rest.truncate(looked_at + count);
            let mut descriptors = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(came) = message {
                    descriptors.extend(came);
                }
            }
            if !descriptors.is_empty() {
                // The kernel ends what is received with what a descriptor came with (`unix(7)`).
                let body = self.rest.strip_suffix(b"\n").unwrap_or(&self.rest);
                let before = body.iter().rposition(|byte| *byte == b'\n');
                let begin = before.map_or(0, |newline| newline + 1);
                self.descriptors.push_back((begin, descriptors));
            }
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let message = serde_json::from_slice(&self.rest[..end])?;
        self.rest.drain(..=end);
        let is_its_own = self.descriptors.front().is_some_and(|(begin, _)| *begin <= end);
        let own = if is_its_own { self.descriptors.pop_front() } else { None };
        for (begin, _) in &mut self.descriptors {
            *begin -= end + 1;
        }
        Ok((message, own.map_or_else(Vec::new, |(_, descriptors)| descriptors)))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn long_messages_and_descriptors_arrive_in_order() {
        let (mut own, other) = pair().expect("a pair");
        let mut other = Channel::new(other);
        let long: Vec<u16> = (0..60_000).collect();
        let sender = std::thread::spawn({
            let long = long.clone();
            move || {
                own.send(&"short", &[]).expect("sent");
                own.send(&long, &[]).expect("sent");
                let (reader, _writer) = std::io::pipe().expect("a pipe");
                own.send(&"a pipe", &[reader.as_fd()]).expect("sent");
            }
        });
        assert_eq!(other.receive::<String>().expect("a message").0, "short");
        assert_eq!(other.receive::<Vec<u16>>().expect("a message").0, long);
        let (text, mut pipe) = other.receive::<String>().expect("a message");
        sender.join().expect("sent");
        let mut bytes = Vec::new();
        let mut pipe = std::fs::File::from(pipe.remove(0));
        pipe.read_to_end(&mut bytes).expect("the writer is gone");
        assert!(text == "a pipe" && bytes.is_empty());
        let end = other.receive::<String>().expect_err("the other end is gone");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn descriptors_stay_with_their_message_when_several_wait() {
        let count = |takes_some| if takes_some { 2 } else { 0 };
        let (mut own, other) = pair().expect("a pair");
        let mut other = Channel::new(other);
        for takes_some in [false, true, false, true] {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            let both = [reader.as_fd(), writer.as_fd()];
            own.send(&takes_some, &both[..count(takes_some)]).expect("sent");
        }
        for takes_some in [false, true, false, true] {
            let (told, descriptors) = other.receive::<bool>().expect("a message");
            assert_eq!((told, descriptors.len()), (takes_some, count(takes_some)));
        }
    }

    #[test]
    fn nonsense_is_told() {
        let (mut own, other) = pair().expect("a pair");
        own.send(&"text", &[]).expect("sent");
        let error = Channel::new(other).receive::<u16>().expect_err("no number");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
