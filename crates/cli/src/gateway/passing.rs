//! What the two halves of `neap gateway run` tell each other over a socket: descriptors, that the
//! gateway is ready, why there is no network, and that the command was stopped or continued.

use neap::device::TunQueue;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Longest reason, bytes.
const MOST_TEXT: usize = 1024;

/// The text of a device with a thread of the kernel.
const HAS_THREAD: &str = "thread";
/// Most descriptors of a message.
const MOST_DESCRIPTORS: usize = 2;

/// What comes before the text of a message.
const INPUT: u8 = b'i';
const DEVICE: u8 = b'd';
const READY: u8 = b'r';
const FAILED: u8 = b'f';
const STOPPED: u8 = b's';
const CONTINUED: u8 = b'c';

/// A message between the two halves.
#[derive(Debug)]
pub(super) enum Message {
    /// The standard input of the command, from the half of the host, for the first process: the
    /// socket is in its place. It comes behind [`Ready`](Self::Ready).
    Input(OwnedFd),
    /// The device of the sandbox, from its half.
    Device(TunQueue),
    /// The gateway serves the device, from the half of the host.
    Ready,
    /// There is no network, from either half, and why.
    Failed(String),
    /// A signal has stopped the command, from the first process.
    Stopped,
    /// The first process has passed `SIGCONT` on to the command. What it has told before is of the
    /// time before that.
    Continued,
}

/// The two ends. A half that ends is seen by the other.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a message. It is lost if the other half has ended, which that half's status tells.
pub(super) fn send(socket: &impl AsFd, message: &Message) -> io::Result<()> {
    let (kind, text, descriptors) = match message {
        Message::Input(descriptor) => (INPUT, "", [Some(descriptor), None]),
        Message::Device(TunQueue { main, bulk, has_bulk_thread }) => {
            (DEVICE, if *has_bulk_thread { HAS_THREAD } else { "" }, [Some(main), bulk.as_ref()])
        }
        Message::Ready => (READY, "", [None; 2]),
        Message::Stopped => (STOPPED, "", [None; 2]),
        Message::Continued => (CONTINUED, "", [None; 2]),
        Message::Failed(why) => (FAILED, why.as_str(), [None; 2]),
    };
    let text = &text.as_bytes()[..text.len().min(MOST_TEXT - 1)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptors.into_iter().flatten().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let parts = [IoSlice::new(std::slice::from_ref(&kind)), IoSlice::new(text)];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for a message.
///
/// # Errors
/// `UnexpectedEof` if the other half has ended; `InvalidData` for what is no message.
pub(super) fn receive(socket: &impl AsFd) -> io::Result<Message> {
    let mut bytes = [0; MOST_TEXT];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let count = recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    let mut descriptors = descriptors.into_iter();
    match (bytes[..count].split_first(), descriptors.next()) {
        (None, _) => Err(io::ErrorKind::UnexpectedEof.into()),
        (Some((&INPUT, _)), Some(descriptor)) => Ok(Message::Input(descriptor)),
        (Some((&DEVICE, text)), Some(main)) => {
            let has_bulk_thread = text == HAS_THREAD.as_bytes();
            Ok(Message::Device(TunQueue { main, bulk: descriptors.next(), has_bulk_thread }))
        }
        (Some((&READY, _)), _) => Ok(Message::Ready),
        (Some((&STOPPED, _)), _) => Ok(Message::Stopped),
        (Some((&CONTINUED, _)), _) => Ok(Message::Continued),
        (Some((&FAILED, text)), _) => {
            Ok(Message::Failed(String::from_utf8_lossy(text).into_owned()))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_descriptor_arrives_open_and_a_reason_as_it_was() {
        let (a, b) = pair().expect("a pair");
        let mut file = tempfile();
        file.write_all(b"the same file").expect("room");
        file.rewind().expect("a file");
        let bulk = Some(tempfile().into());
        let device = TunQueue { main: OwnedFd::from(file), bulk, has_bulk_thread: true };
        send(&a, &Message::Device(device)).expect("sent");
        send(&a, &Message::Failed("no user namespaces".to_owned())).expect("sent");
        let Ok(Message::Device(device)) = receive(&b) else { panic!("descriptors") };
        assert!(device.bulk.is_some() && device.has_bulk_thread);
        let mut text = String::new();
        std::fs::File::from(device.main).read_to_string(&mut text).expect("a file");
        assert_eq!(text, "the same file");
        let Ok(Message::Failed(why)) = receive(&b) else { panic!("a reason") };
        assert_eq!(why, "no user namespaces");
        drop(a);
        let end = receive(&b).expect_err("the other half has ended");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    fn tempfile() -> std::fs::File {
        use rustix::fs::MemfdFlags;
        rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).expect("memory").into()
    }
}
