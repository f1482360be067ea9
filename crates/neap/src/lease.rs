//! The timer at whose end a worker comes to look.

use crate::alarm::timespec;
use neap_tcp::time::Nanos;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io;

/// A timer that the worker can wait for alone, and in its epoll set.
///
/// An end that came while the worker slept on the set also ends its next wait for the timer alone:
/// it looks once more than it had to. Cost: one system call to begin, and one for a wait.
#[derive(Debug)]
pub(crate) struct Lease {
    timer: OwnedFd,
}

impl Lease {
    /// A lease that does not run, with this token in `set`.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub(crate) fn new(set: &OwnedFd, token: u64) -> io::Result<Self> {
        // It blocks: a read waits for the end.
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(set, &timer, epoll::EventData::new_u64(token), flags)?;
        Ok(Self { timer })
    }

    /// Begins a lease, which ends after `length`.
    pub(crate) fn begin(&self, length: Nanos) {
        let time = Itimerspec { it_interval: timespec(0), it_value: timespec(length.0.max(1)) };
        // It fails only for times that are none.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time);
    }

    /// Ends the lease at once.
    pub(crate) fn end(&self) {
        self.begin(Nanos(1));
    }

    /// Sleeps until the lease ends, also if it has not begun.
    pub(crate) fn wait(&self) {
        // Interrupted by a signal, the worker looks once more than it had to.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }
}
