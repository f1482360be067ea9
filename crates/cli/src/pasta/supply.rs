//! Sockets of the namespace for the gateway, which is outside of it: the process in the namespace
//! makes them in advance and puts each into a queue, from which the gateway takes them. The queue
//! of the kernel bounds how many wait.

use neap_gateway::{GuestSockets, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    sockopt::set_socket_send_buffer_size,
};
use socket2::{Domain, Socket, Type};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Kinds of sockets: whether each is one of TCP, and of IPv6.
const KINDS: [(bool, bool); 4] = [(true, false), (true, true), (false, false), (false, true)];
/// Memory of a queue in bytes, of which a socket takes about 800.
const QUEUE: usize = 24 << 10;
/// How long the gateway waits for a socket. The process in the namespace makes many in that time,
/// unless it is kept from running.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The gateway's ends of the queues, by kind.
#[derive(Debug)]
pub(super) struct Supply([Queue; KINDS.len()]);

#[derive(Debug)]
struct Queue {
    end: OwnedFd,
    /// Nothing came the last time, in spite of all patience: then nobody waits before something has
    /// come again.
    is_dry: AtomicBool,
}

/// The other ends.
#[derive(Debug)]
pub(super) struct Sources(pub(super) [Source; KINDS.len()]);

/// Queues that are empty.
pub(super) fn queues() -> io::Result<(Supply, Sources)> {
    let pair = |(is_tcp, is_v6)| {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (end, source) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        set_socket_send_buffer_size(&source, QUEUE)?;
        let queue = Queue { end, is_dry: AtomicBool::new(false) };
        io::Result::Ok((queue, Source { end: source, is_tcp, is_v6 }))
    };
    let [first, second, third, fourth] = KINDS.map(pair);
    let [first, second, third, fourth] = [first?, second?, third?, fourth?];
    let queues = Supply([first.0, second.0, third.0, fourth.0]);
    Ok((queues, Sources([first.1, second.1, third.1, fourth.1])))
}

impl GuestSockets for Supply {
    fn open(&self, transport: Transport, is_v6: bool) -> io::Result<OwnedFd> {
        let wanted = (transport == Transport::Tcp, is_v6);
        let queue = KINDS.iter().zip(&self.0).find(|(kind, _)| **kind == wanted);
        let (_, queue) = queue.ok_or(io::ErrorKind::NotFound)?;
        queue.take()
    }
}

impl Queue {
    fn take(&self) -> io::Result<OwnedFd> {
        let mut taken = receive(&self.end);
        if is_empty(&taken) && !self.is_dry.load(Ordering::Relaxed) {
            // What it is that has come tells the next look.
            let _ = poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&PATIENCE));
            taken = receive(&self.end);
        }
        self.is_dry.store(is_empty(&taken), Ordering::Relaxed);
        taken
    }
}

fn is_empty(taken: &io::Result<OwnedFd>) -> bool {
    taken.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Takes the first socket of a queue.
fn receive(end: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(end, &mut [IoSliceMut::new(&mut [0])], &mut control, flags)?;
    let mut sockets = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    // Without one the process in the namespace is gone, or there is no descriptor for it.
    sockets.next().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// An end at which the process in the namespace puts sockets in.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) end: OwnedFd,
    pub(super) is_tcp: bool,
    pub(super) is_v6: bool,
}

impl Source {
    /// Fills the queue. There is room again when the descriptor is writable.
    ///
    /// # Errors
    /// Nobody takes from it any more, or the kernel gives no such sockets.
    pub(super) fn fill(&self) -> io::Result<()> {
        let kind = if self.is_tcp { Type::STREAM } else { Type::DGRAM };
        let domain = if self.is_v6 { Domain::IPV6 } else { Domain::IPV4 };
        loop {
            let socket = Socket::new(domain, kind.nonblocking().cloexec(), None)?;
            let sockets = [socket.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&sockets));
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.end, &[IoSlice::new(&[0])], &mut control, flags) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_gives_sockets_of_its_kind_has_a_bound_and_is_told_when_nobody_takes_them() {
        let (supply, Sources(sources)) = queues().expect("descriptors");
        for source in &sources {
            let is_v6 = source.is_v6;
            let (transport, kind) = match source.is_tcp {
                true => (Transport::Tcp, Type::STREAM),
                false => (Transport::Udp, Type::DGRAM),
            };
            let domain = if is_v6 { Domain::IPV6 } else { Domain::IPV4 };
            // A kernel may have no IPv6.
            if source.fill().is_err() && is_v6 {
                continue;
            }
            for _ in 0..3 {
                let mut count = 0;
                while let Ok(socket) = supply.open(transport, is_v6) {
                    let socket = Socket::from(socket);
                    assert_eq!(socket.r#type().expect("a kind"), kind);
                    assert_eq!(socket.domain().expect("a family"), domain);
                    count += 1;
                }
                assert!((1..=100).contains(&count), "{count}");
                source.fill().expect("there is room again");
            }
        }
        drop(supply);
        // A child that another test forks has the ends until it runs its program.
        while sources[0].fill().is_ok() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_empty_queue_is_waited_for_once_and_an_abandoned_one_is_told() {
        let (supply, sources) = queues().expect("descriptors");
        let none = || supply.open(Transport::Tcp, true).expect_err("nothing is there").kind();
        assert_eq!([none(), none()], [io::ErrorKind::WouldBlock; 2]);
        assert!(supply.0[1].is_dry.load(Ordering::Relaxed));
        drop(sources);
        while none() == io::ErrorKind::WouldBlock {
            std::thread::yield_now();
        }
        assert_eq!(none(), io::ErrorKind::UnexpectedEof);
    }
}
