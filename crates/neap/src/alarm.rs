//! The time at which a sleep on descriptors ends.

use neap_tcp::time::Instant;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// A timerfd in an epoll set. The timeout of `epoll_wait(2)` counts whole milliseconds, and that of
/// `epoll_pwait2(2)` is late by the thread's timer slack (50 us); this is neither. Set and due: one
/// system call each at most.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: OwnedFd,
    /// When the timer fires, nanoseconds. A time that moved later by less than half is left:
    /// setting it each time would cost more than a look that is too early now and then.
    armed: AtomicU64,
}

impl Alarm {
    /// An alarm whose event in `set` has this token.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub(crate) fn new(set: &OwnedFd, token: u64) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // An edge for each expiry: it need not be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(set, &timer, epoll::EventData::new_u64(token), flags)?;
        Ok(Self { timer, armed: AtomicU64::new(u64::MAX) })
    }

    /// Goes off at `at`, or somewhat earlier; never for the far future.
    pub(crate) fn set(&self, at: Instant, now: Instant) {
        let armed = Instant::from_nanos(self.armed.load(Ordering::Relaxed));
        let is_set = armed > now && armed <= at && armed.since(now).0 >= at.since(now).0 / 2;
        // One that has gone off need not be stopped.
        let is_silent = armed <= now || armed == Instant::FAR_FUTURE;
        if is_set || (at == Instant::FAR_FUTURE && is_silent) {
            return;
        }
        self.set_exactly(at);
    }

    /// Goes off at `at`, and not earlier; never for the far future.
    pub(crate) fn set_exactly(&self, at: Instant) {
        // A time of zero stops the timer.
        let nanos = if at == Instant::FAR_FUTURE { 0 } else { at.as_nanos().max(1) };
        let time = Itimerspec { it_interval: timespec(0), it_value: timespec(nanos) };
        // It fails only for times that are none.
        if timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &time).is_ok() {
            self.armed.store(at.as_nanos(), Ordering::Relaxed);
        }
    }
}

/// A length or point of time as system calls take it.
pub(crate) fn timespec(nanos: u64) -> Timespec {
    Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 }
}
