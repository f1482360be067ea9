//! The timer at whose end a worker comes to look.

use crate::alarm::timespec;
use neap_tcp::time::{Instant, Nanos};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A timer that the worker can wait for alone, and in its epoll set.
///
/// An end that came while the worker slept on the set also ends its next wait for the timer alone,
/// unless a lease begins in between. So a wait may be over before the lease is: the worker then
/// looks too early, and judges by a clock whether a whole lease has passed. Cost: one system call
/// to begin, and one for a wait.
#[derive(Debug)]
pub(crate) struct Lease {
    timer: OwnedFd,
    /// When the lease ends, nanoseconds, if it was moved last; 0 if not. Threads may set the timer
    /// at the same time. Then it may end earlier than this says, and the worker looks too early.
    moved_to: AtomicU64,
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
        Ok(Self { timer, moved_to: AtomicU64::new(0) })
    }

    /// Begins a lease, which ends after `length`.
    pub(crate) fn begin(&self, length: Nanos) {
        self.set(length.0.max(1));
    }

    /// The lease that runs ends `length` after `now`, or somewhat earlier, but not before `least`
    /// has passed.
    pub(crate) fn extend(&self, now: Instant, least: Nanos, length: Nanos) {
        let moved_to = Instant::from_nanos(self.moved_to.load(Ordering::Relaxed));
        if moved_to.since(now) < least {
            self.begin(length);
            self.moved_to.store((now + length).as_nanos(), Ordering::Relaxed);
        }
    }

    /// Stops the timer: the lease that runs does not end.
    pub(crate) fn stop(&self) {
        self.set(0);
    }

    /// Sets the timer; 0 stops it.
    fn set(&self, nanos: u64) {
        self.moved_to.store(0, Ordering::Relaxed);
        let time = Itimerspec { it_interval: timespec(0), it_value: timespec(nanos) };
        // It fails only for times that are none.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time);
    }

    /// Ends the lease at once.
    pub(crate) fn end(&self) {
        self.begin(Nanos(1));
    }

    /// Sleeps until the lease ends, also if it has not begun.
    pub(crate) fn wait(&self) {
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(&self.timer, &mut [0; 8]));
    }
}

/// So many stays after one that outlasted the lease are expected to outlast it as well.
const PERSISTENCE: u8 = 8;

/// How long leaders stay, compared with a lease: from their first sleep until they leave.
///
/// If a stay outlasts the lease that runs, then the end of the lease wakes the worker in vain. A
/// leader can stop the timer before it sleeps, and begins it again when it leaves: two system calls
/// instead of a wake-up. So the timer is stopped where at least one stay in
/// [`PERSISTENCE`] outlasts the lease, as those of a paced flow do, and not where all are short, as
/// those of a client that waits for answers are.
///
/// Cost: a load, and a store when a leader leaves that has slept.
#[derive(Debug, Default)]
pub(crate) struct Stays {
    /// Among so many stays from now on one is expected to be long.
    expected: AtomicU8,
}

impl Stays {
    /// Whether a stay that begins may well be long.
    pub(crate) fn may_be_long(&self) -> bool {
        self.expected.load(Ordering::Relaxed) > 0
    }

    /// A stay is over. The leader alone calls this.
    pub(crate) fn note(&self, was_long: bool) {
        let expected = self.expected.load(Ordering::Relaxed);
        let expected = if was_long { PERSISTENCE } else { expected.saturating_sub(1) };
        self.expected.store(expected, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_stay_is_expected_for_some_time_after_the_last_one() {
        let stays = Stays::default();
        assert!(!stays.may_be_long());
        stays.note(true);
        for _ in 0..PERSISTENCE {
            assert!(stays.may_be_long());
            stays.note(false);
        }
        assert!(!stays.may_be_long());
    }
}
