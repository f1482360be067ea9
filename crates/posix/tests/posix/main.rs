//! The socket face in virtual time: both ends are descriptors of one host, over its loopback; or
//! the peer is a device that swallows everything, and says what a test has it say.
#![cfg(not(loom))]

mod batches;
mod closing;
mod datagrams;
mod errors;
mod families;
mod foreign;
mod opening;
mod options;
mod pipes;
mod process;
mod random;
mod readiness;
mod transfer;
mod waiting;

use bytes::Bytes;
use neap_posix::abi::*;
use neap_posix::sockaddr::{self, Encoded};
use neap_posix::{Call, Errno, Fd, Incoming, Outcome, Outgoing, Posix};
use neap_stack::device::{
    Capabilities, Completed, Completion, Device, Medium, QueuePair, Received, RxChecksum, RxQueue,
    TxQueue,
};
use neap_stack::frame::Frame;
use neap_stack::stack::{Stack, StackConfig};
use neap_tcp::time::{Instant, Nanos};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// A process on a host in virtual time.
struct Process {
    posix: Posix,
    now: Instant,
    wire: Wire,
}

/// Frames that [`Wire`] remembers.
const REMEMBERED: usize = 8;

/// Takes frames, remembers the latest, and answers what tests put into it.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<Ends>>);

#[derive(Default)]
struct Ends {
    sent: VecDeque<Bytes>,
    arriving: VecDeque<Bytes>,
}

impl Wire {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().expect("no test panics with it")
    }

    /// A device at this wire.
    fn device(&self) -> Device {
        let capabilities = Capabilities {
            medium: Medium::Ip,
            mtu: 1500,
            gso_max_size: 65_536,
            gso_max_segs: 44,
            gso_udp: true,
            checksum_tx: true,
            checksum_rx: true,
            completion: Completion::OnSubmit,
            pacing_shift: 10,
        };
        let (tx, rx) = (Box::new(self.clone()), Box::new(self.clone()));
        let queues = vec![QueuePair { tx, rx, bulk: None, descriptor: None }];
        Device { name: "hole".into(), capabilities, queues, steering: None, monitor: None }
    }
}

impl TxQueue for Wire {
    fn submit(&mut self, frame: Frame, _now: Instant) -> Result<(), Frame> {
        let mut ends = self.ends();
        if ends.sent.len() == REMEMBERED {
            ends.sent.pop_front();
        }
        ends.sent.push_back(frame.to_bytes());
        Ok(())
    }
    fn flush(&mut self, _now: Instant) {}
    fn reap(&mut self, _now: Instant) -> Completed {
        Completed::default()
    }
    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }
}

impl RxQueue for Wire {
    fn receive(&mut self, _now: Instant) -> Option<Received> {
        let data = self.ends().arriving.pop_front()?;
        Some(Received { data, gso_size: 0, checksum: RxChecksum::Unknown })
    }
    fn next_event(&self) -> Instant {
        if self.ends().arriving.is_empty() { Instant::FAR_FUTURE } else { Instant::ZERO }
    }
}

fn address(text: &str) -> Encoded {
    sockaddr::encode(text.parse().expect("an address"))
}

fn int(value: i32) -> [u8; 4] {
    value.to_ne_bytes()
}

impl Process {
    fn new() -> Self {
        let stack = Stack::new(StackConfig::default()).expect("default settings");
        let now = Instant::from_nanos(1_000_000_000);
        let wire = Wire::default();
        let addresses =
            ["192.0.2.1/24", "2001:db8::1/64"].map(|one| one.parse().expect("a prefix"));
        stack.add_interface(now, wire.device(), &addresses).expect("a queue");
        Self { posix: Posix::new(stack, 3), now, wire }
    }

    /// Lets the host do what is due.
    fn settle(&mut self) -> Instant {
        loop {
            let (due, _) = self.posix.stack().poll(0, self.now);
            if due > self.now {
                return due;
            }
        }
    }

    fn pass(&mut self, span: Nanos) {
        let end = self.now + span;
        loop {
            let due = self.settle();
            if due > end {
                break;
            }
            self.now = due;
        }
        self.now = end;
        self.settle();
    }

    /// Makes a call as a thread that sleeps while it has to; `None` if it would for ever.
    fn block<T>(
        &mut self,
        mut make: impl FnMut(&mut Posix, Instant, &mut Call) -> Result<Outcome<T>, Errno>,
    ) -> Option<Result<T, Errno>> {
        let mut call = Call::new();
        loop {
            let until = match make(&mut self.posix, self.now, &mut call) {
                Ok(Outcome::Done(answer)) => return Some(Ok(answer)),
                Err(error) => return Some(Err(error)),
                Ok(Outcome::Wait(until)) => until,
            };
            let before = self.now;
            let next = self.settle().min(until);
            match make(&mut self.posix, self.now, &mut call) {
                Ok(Outcome::Done(answer)) => return Some(Ok(answer)),
                Err(error) => return Some(Err(error)),
                Ok(Outcome::Wait(_)) if next == Instant::FAR_FUTURE => return None,
                Ok(Outcome::Wait(_)) => self.now = next.max(before),
            }
        }
    }

    /// Makes a call once; what would wait is an error of the test.
    fn once<T>(
        &mut self,
        make: impl FnOnce(&mut Posix, Instant, &mut Call) -> Result<Outcome<T>, Errno>,
    ) -> Result<T, Errno> {
        let outcome = make(&mut self.posix, self.now, &mut Call::new())?;
        Ok(outcome.done().expect("no wait"))
    }

    fn tcp(&mut self) -> Fd {
        self.posix.socket(AF_INET, SOCK_STREAM, 0).expect("a descriptor")
    }

    fn udp(&mut self) -> Fd {
        self.posix.socket(AF_INET, SOCK_DGRAM, 0).expect("a descriptor")
    }

    fn bind(&mut self, fd: Fd, to: &str) -> Result<(), Errno> {
        self.posix.bind(self.now, fd, &address(to))
    }

    fn listen(&mut self, to: &str) -> Fd {
        let fd = self.tcp();
        self.bind(fd, to).expect("a free port");
        self.posix.listen(self.now, fd, 10).expect("nobody listens");
        fd
    }

    fn connect(&mut self, fd: Fd, to: &str) -> Result<(), Errno> {
        let to = address(to);
        self.block(|posix, now, call| posix.connect(now, call, fd, &to)).expect("an end")
    }

    fn accept(&mut self, fd: Fd) -> Fd {
        let accepted = self.block(|posix, now, call| posix.accept(now, call, fd, 0));
        accepted.expect("somebody").expect("a connection").fd
    }

    /// A connection to port 80: client, server, listener.
    fn pair(&mut self) -> (Fd, Fd, Fd) {
        let listener = self.listen("127.0.0.1:80");
        let client = self.tcp();
        self.connect(client, "127.0.0.1:80").expect("somebody listens");
        let server = self.accept(listener);
        (client, server, listener)
    }

    fn set_nonblocking(&mut self, fd: Fd) {
        assert_eq!(self.posix.fcntl(fd, F_SETFL, i64::from(O_NONBLOCK)), Ok(0));
    }

    fn set(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.posix.setsockopt(self.now, fd, level, name, value)
    }

    fn get(&mut self, fd: Fd, level: i32, name: i32) -> Result<i32, Errno> {
        let mut out = [0; 4];
        let len = self.posix.getsockopt(self.now, fd, level, name, &mut out)?;
        assert_eq!(len, 4);
        Ok(i32::from_ne_bytes(out))
    }

    fn send(&mut self, fd: Fd, data: &[u8], flags: i32) -> Result<usize, Errno> {
        self.once(|posix, now, call| posix.send(now, call, fd, data, flags | MSG_DONTWAIT))
    }

    /// What is there, without a wait.
    fn recv(&mut self, fd: Fd, len: usize, flags: i32) -> Result<Vec<u8>, Errno> {
        self.settle();
        let mut buf = vec![0; len];
        let read = self
            .once(|posix, now, call| posix.recv(now, call, fd, &mut buf, flags | MSG_DONTWAIT))?;
        buf.truncate(read);
        Ok(buf)
    }

    fn close(&mut self, fd: Fd) {
        self.block(|posix, now, call| posix.close(now, call, fd)).expect("an end").expect("open");
    }

    /// What `poll` finds now.
    fn ready(&mut self, fd: Fd) -> u32 {
        use neap_posix::PollFd;
        self.settle();
        let mut fds = [PollFd { fd, events: -1, revents: 0 }];
        let count = self.once(|posix, now, call| posix.poll(now, call, &mut fds, 0));
        let revents = u32::from(fds[0].revents as u16);
        assert_eq!(count, Ok(usize::from(revents != 0)));
        revents
    }
}
