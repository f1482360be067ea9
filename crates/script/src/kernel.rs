//! This machine's Linux as a host for scripts: its sockets, a TUN as its wire, real time.
//!
//! The network namespace of the process is changed for good, so each script runs in a process of
//! its own in a new namespace (`unshare --net`), which only root can make.

mod calls;
#[allow(unsafe_code)]
mod ffi;
mod namespace;
mod verdict;

pub use verdict::{NoVerdict, Verdict, run};

use crate::host::{Host, HostFailure, Reply, SentPacket, SystemCall};
use crate::report::Failure;
use crate::settings::Settings;
use bytes::Bytes;
use calls::Caller;
use namespace::failure;
use neap_device::{Tun, TunConfig};
use neap_posix::abi::{IPPROTO_TCP, TCP_CONGESTION};
use neap_posix::{Errno, Fd};
use neap_stack::device::{QueuePair, Received, TxQueue};
use neap_stack::frame::{Frame, Headers};
use neap_tcp::segment::Payload;
use neap_tcp::time::{Instant as Moment, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a call that should not wait may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Ticks of the kernel's timers and what a busy machine adds.
const SLACK: Nanos = Nanos::from_millis(8);

/// Host that is this machine's Linux, in the network namespace of this process.
#[derive(Debug)]
pub struct KernelHost {
    /// When the script began, later by what [`Host::set_clock_back`] said.
    begin: Instant,
    queue: QueuePair,
    caller: Caller,
    /// What each socket is told to use, since not every controller may be the default of a
    /// namespace.
    congestion_control: String,
    sent: VecDeque<SentPacket>,
    /// The reply of the call that blocked, and when it returned.
    late_reply: Option<(Nanos, Reply)>,
}

/// Whether the kernel was asked for something whose argument is not passed, as it is no number.
fn is_out_of_reach(reply: Option<&Reply>) -> bool {
    reply.is_some_and(|reply| reply.errno() == Some(Errno::EFAULT))
}

/// Whether a packet is what the kernel says of itself on an interface with IPv6: it speaks to
/// groups.
fn is_chatter(packet: &Bytes) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6) && packet.get(24) == Some(&0xff)
}

impl KernelHost {
    /// Prepares the namespace of this process.
    ///
    /// # Errors
    /// [`Failure::Syntax`] for a sysctl that the system refuses, [`Failure::Host`] for anything
    /// else that it refuses.
    pub fn new(settings: &Settings) -> Result<Self, Failure> {
        let name = Some(namespace::INTERFACE.into());
        let config = TunConfig { name, bulk_queue: false, ..TunConfig::default() };
        let tun = Tun::open(&config).map_err(|error| failure("tun", error))?;
        namespace::prepare(settings)?;
        let mut device = tun.into_device();
        Ok(Self {
            queue: device.queues.pop().ok_or_else(|| failure("tun", "no queue"))?,
            caller: Caller::new().map_err(|error| failure("eventfd", error))?,
            congestion_control: namespace::congestion_control(settings),
            sent: VecDeque::new(),
            late_reply: None,
            begin: Instant::now(),
        })
    }

    fn since_begin(&self, at: Instant) -> Nanos {
        Nanos(at.saturating_duration_since(self.begin).as_nanos() as u64)
    }

    /// Takes what has come.
    fn receive(&mut self) {
        let at = self.now();
        while let Some(Received { data: packet, .. }) = self.queue.rx.receive(Moment::ZERO) {
            if !is_chatter(&packet) {
                self.sent.push_back(SentPacket { at, packet });
            }
        }
        if self.late_reply.is_none() {
            let reply = self.caller.poll();
            self.late_reply = reply.map(|(at, reply)| (self.since_begin(at), reply));
        }
    }

    /// Tells a new socket its congestion control.
    fn set_congestion_control(&mut self, fd: Fd) {
        let value = self.congestion_control.clone().into_bytes();
        let (level, name) = (IPPROTO_TCP, TCP_CONGESTION);
        let set = SystemCall::SetOption { fd, level, name, value };
        // A socket of another protocol has none.
        let _ = self.caller.begin(set, PATIENCE);
    }
}

impl Host for KernelHost {
    fn now(&self) -> Nanos {
        self.since_begin(Instant::now())
    }

    fn wait(&mut self, until: Nanos) -> Result<(), HostFailure> {
        loop {
            self.receive();
            let left = until.saturating_sub(self.now());
            if left == Nanos::ZERO || !self.sent.is_empty() || self.late_reply.is_some() {
                return Ok(());
            }
            let timeout = Timespec {
                tv_sec: (left.0 / 1_000_000_000) as i64,
                tv_nsec: (left.0 % 1_000_000_000) as _,
            };
            let descriptor = self.queue.descriptor.as_ref();
            let descriptor = descriptor.ok_or_else(|| failure("tun", "no descriptor"))?;
            let mut fds = [
                PollFd::new(descriptor, PollFlags::IN),
                PollFd::new(self.caller.replied(), PollFlags::IN),
            ];
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(failure("poll", errno)),
            }
        }
    }

    fn inject(&mut self, packet: Bytes) -> Result<(), HostFailure> {
        let frame = Frame::new(Headers::default(), Payload::from(packet));
        let tx: &mut dyn TxQueue = &mut *self.queue.tx;
        tx.submit(frame, Moment::ZERO).map_err(|_| failure("tun", "the kernel takes no packet"))?;
        match tx.errors() {
            0 => Ok(()),
            _ => Err(failure("tun", "the kernel refused a packet")),
        }
    }

    fn take_sent(&mut self) -> Option<SentPacket> {
        self.receive();
        self.sent.pop_front()
    }

    fn call(&mut self, call: SystemCall, will_block: bool) -> Result<Option<Reply>, HostFailure> {
        let patience = if will_block { Duration::ZERO } else { PATIENCE };
        let takes_number = matches!(call, SystemCall::Fcntl { .. } | SystemCall::Ioctl { .. });
        let makes_socket = matches!(call, SystemCall::Socket { .. });
        let reply = self.caller.begin(call, patience).map(|(_, reply)| reply);
        if takes_number && is_out_of_reach(reply.as_ref()) {
            return Err(failure("fcntl and ioctl", "the runner passes numbers only"));
        }
        if makes_socket && let Some(Reply { result: Ok(fd), .. }) = &reply {
            self.set_congestion_control(*fd as Fd);
        }
        Ok(reply)
    }

    fn take_reply(&mut self) -> Option<(Nanos, Reply)> {
        self.receive();
        self.late_reply.take()
    }

    fn set_clock_back(&mut self, by: Nanos) -> Nanos {
        self.begin += Duration::from_nanos(by.0);
        for sent in &mut self.sent {
            sent.at = sent.at.saturating_sub(by);
        }
        by
    }

    fn slack(&self, span: Nanos) -> Nanos {
        // The wheel of the kernel's timers is the coarser the longer they run.
        SLACK + Nanos(span.0 / 8)
    }
}
