//! Waiting: what can be waited for, and how a thread waits on a running stack.
//!
//! A [`Source`] is a socket as a waiter sees it: a word to read, and a place to leave a waker.
//! Blocking sockets, pollers, tasks of a runtime and descriptors all wait for sources. Tasks and
//! pollers sleep in their own ways. A thread in a blocking call gives its [`Condition`] to
//! [`Drive::wait`], which sleeps and drives the stack.
//!
//! No wake-up is lost: a waiter reads the word, tries its call, leaves its waker with the word that
//! it read, and sleeps only if the word has not changed in between.

use crate::socket::forwarder::{ForwarderHandle, PendingHandle, PendingWatch};
use crate::socket::icmp::IcmpHandle;
use crate::socket::listener::ListenerHandle;
use crate::socket::readiness::{Ready, ReadyState};
use crate::socket::tcp::TcpHandle;
use crate::socket::udp::UdpHandle;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use neap_tcp::time::Instant;
use std::fmt::Debug;
use std::task::Waker;

/// Socket that can be waited for.
pub trait Source {
    /// Returns what the socket is ready for, and the generation to register with.
    fn readiness(&self) -> ReadyState;

    /// Registers `waker` for the next time that the socket becomes ready for any of `interest`,
    /// even if it was ready before.
    ///
    /// Returns false and registers nothing if the socket has become ready for something since
    /// `seen`.
    ///
    /// The waker wakes a thread or a task. It calls no socket: the thread that calls it may own the
    /// one that it would wait for.
    #[must_use = "false means: look again"]
    fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool;

    /// As [`register`](Self::register) for a waiter that takes what comes: of several, one is woken
    /// by each connection, datagram or message. One that `drives` the stack comes first.
    ///
    /// Who was woken, or may have been woken before it unregistered, tries its call. The bytes of a
    /// stream wake all.
    #[must_use = "false means: look again"]
    fn register_exclusive(
        &self,
        seen: ReadyState,
        interest: Ready,
        waker: &Waker,
        drives: bool,
    ) -> bool {
        let _ = drives;
        self.register(seen, interest, waker)
    }

    /// Removes a waker that was registered.
    fn unregister(&self, waker: &Waker);

    /// Returns the shard whose driver brings what is waited for.
    fn shard(&self) -> usize;
}

macro_rules! source {
    ($handle:ty, $shard:expr $(, $exclusive:item)?) => {
        impl Source for $handle {
            fn readiness(&self) -> ReadyState {
                Self::readiness(self)
            }
            fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
                Self::register(self, seen, interest, waker)
            }
            $($exclusive)?
            fn unregister(&self, waker: &Waker) {
                Self::unregister(self, waker);
            }
            fn shard(&self) -> usize {
                let shard: fn(&Self) -> usize = $shard;
                shard(self)
            }
        }
    };
}

/// A source whose calls take things one by one. Such ones belong to the first shard.
macro_rules! source_of_things {
    ($handle:ty) => {
        source!(
            $handle,
            |_| 0,
            fn register_exclusive(
                &self,
                seen: ReadyState,
                interest: Ready,
                waker: &Waker,
                drives: bool,
            ) -> bool {
                Self::register_exclusive(self, seen, interest, waker, drives)
            }
        );
    };
}

source!(TcpHandle, Self::shard);
source!(PendingHandle, Self::shard);
source!(PendingWatch, Self::shard);
source_of_things!(ListenerHandle);
source_of_things!(UdpHandle);
source_of_things!(IcmpHandle);
source_of_things!(ForwarderHandle);

/// Condition that a thread waits for, from one source or from many.
pub trait Condition {
    /// Returns whether the condition is met, so that the call that waits is worth another try.
    fn is_met(&mut self) -> bool;

    /// Leaves `waker` with everything that can meet the condition. Returns false if it is met
    /// already; part of it may have the waker then.
    ///
    /// A thread that `drives` is awake when something comes: of those of whom one is woken it is
    /// the first.
    #[must_use = "false means: look again"]
    fn arm(&mut self, waker: &Waker, drives: bool) -> bool;

    /// Takes `waker` out of everything that [`arm`](Self::arm) left it with (`poll_freewait`), so
    /// that a thread whose wait is over leaves nothing behind.
    fn disarm(&mut self, waker: &Waker);
}

/// Running stack, as the threads that wait on it see it.
///
/// A thread that waits drives a shard if no other thread does: it polls the shard and sleeps on its
/// devices.
pub trait Drive: Debug + Send + Sync {
    /// Returns the time by the clock of this stack.
    fn now(&self) -> Instant;

    /// Polls a shard once if no other thread does. A call that does not wait takes arrived packets
    /// by this before it refuses.
    fn look_in(&self, shard: usize);

    /// Returns the tally of what was written to sockets of a shard.
    fn written(&self, shard: usize) -> &WriteTally;

    /// Counts `bytes` that the calling thread has written to a socket of a shard. Once per 64 KiB
    /// it [looks in](Self::look_in): a writer who never waits would take nothing that arrives
    /// (Linux's `sendmsg` works off its backlog).
    fn count_written(&self, shard: usize, bytes: usize) {
        if self.written(shard).add(bytes) {
            self.look_in(shard);
        }
    }

    /// Blocks the calling thread until `condition` is met or `deadline` passes. Returns whether it
    /// is met. It looks again once the condition is disarmed: a wake-up that came at the last
    /// moment was perhaps for this thread alone.
    ///
    /// A thread whose condition is met tries its call.
    ///
    /// The thread drives `shard` meanwhile. The condition may be met on any shard.
    fn wait(&self, shard: usize, deadline: Instant, condition: &mut dyn Condition) -> bool;
}

/// Bytes that were written to the sockets of a shard, of all threads and faces together.
///
/// Each socket by itself would count too late: a hundred of them write 6 MB before the first has
/// written 64 KiB.
///
/// Cost: one atomic addition per write.
#[derive(Debug, Default)]
pub struct WriteTally(AtomicU64);

impl WriteTally {
    /// Bytes between two looks at what has arrived.
    const LOOK_IN: u64 = 64 << 10;

    /// Counts `bytes`. Returns whether they complete 64 KiB, so that a look at what has arrived is
    /// due.
    fn add(&self, bytes: usize) -> bool {
        let before = self.0.fetch_add(bytes as u64, Relaxed);
        before / Self::LOOK_IN != (before + bytes as u64) / Self::LOOK_IN
    }
}
