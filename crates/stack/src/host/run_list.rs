//! Run list: the sockets that the driver of a shard is asked to visit.
//!
//! A socket is on the list of its shard at most once, so the list is bounded by the number of
//! sockets, and a push allocates only while the list grows for the first time.

use crate::doorbell::Doorbell;
use crate::sync::{Mutex, lock};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use neap_tcp::counters::Counters;
use neap_tcp::time::{Instant, Nanos};
use std::sync::Arc;
use std::task::Wake;

/// Frames that all sockets of a shard send between two looks at what has arrived. Each may be
/// answered by an ACK at once, and the queue from the kernel to a TUN holds 500 packets.
const SEND_BUDGET: u32 = 128;

/// Name of a socket for timers and the run list. It is never used twice: the upper half counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId(pub u64);

bitflags::bitflags! {
    /// What a socket is asked to do (Linux's `sk_tsq_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Work: u8 {
        /// Completions made room below, or work was left: transmit.
        const TRANSMIT = 1;
        /// A deadline may have passed.
        const DEADLINE = 2;
        /// The application has dropped its last handle.
        const CLOSE = 4;
        /// The stack shuts down, or nobody will accept the connection.
        const ABORT = 8;
    }
}

/// The run list of one shard, and what else its sockets share.
#[derive(Debug)]
pub(crate) struct RunList {
    shard: usize,
    counters: Arc<Counters>,
    queue: Mutex<Vec<SocketId>>,
    /// Frames sent since the receive side was looked at.
    sent: AtomicU32,
    /// A timer may wait so long for others, so that one wake-up serves all that are due together.
    slack: AtomicU64,
    bell: Arc<Doorbell>,
}

impl RunList {
    pub(crate) fn new(shard: usize) -> Self {
        Self {
            shard,
            counters: Arc::default(),
            queue: Mutex::default(),
            sent: AtomicU32::new(0),
            slack: AtomicU64::new(0),
            bell: Arc::default(),
        }
    }

    pub(crate) fn shard(&self) -> usize {
        self.shard
    }

    /// The counters of the shard's sockets.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) fn slack(&self) -> Nanos {
        Nanos(self.slack.load(Ordering::Relaxed))
    }

    /// `neap.timer_slack_ns`, for what is planned from now on.
    pub(crate) fn set_slack(&self, slack: Nanos) {
        self.slack.store(slack.0, Ordering::Relaxed);
    }

    /// The bell that calls the shard's driver.
    pub(crate) fn bell(&self) -> &Arc<Doorbell> {
        &self.bell
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }

    /// Moves the sockets on the list to `into`, which is empty.
    pub(crate) fn take(&self, into: &mut Vec<SocketId>) {
        core::mem::swap(&mut *lock(&self.queue), into);
    }

    /// A socket of the shard has sent a frame.
    pub(crate) fn count_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the shard's sockets have sent so much that what has arrived is to be looked at
    /// first.
    pub(crate) fn has_sent_enough(&self) -> bool {
        self.sent.load(Ordering::Relaxed) >= SEND_BUDGET
    }

    /// What has arrived was looked at: the sockets may send again.
    pub(crate) fn restart_budget(&self) {
        self.sent.store(0, Ordering::Relaxed);
    }

    fn push(&self, id: SocketId) {
        lock(&self.queue).push(id);
    }
}

/// A socket as its shard knows it: what is asked of it, and what the wheel knows. 32 bytes, shared
/// by the socket and the waker in its account.
#[derive(Debug)]
pub(crate) struct RunCell {
    id: SocketId,
    list: Arc<RunList>,
    /// The earliest deadline that the wheel knows or will know once the run list was read.
    filed: AtomicU64,
    is_queued: AtomicBool,
    work: AtomicU8,
}

impl RunCell {
    pub(crate) fn new(id: SocketId, list: Arc<RunList>) -> Arc<Self> {
        Arc::new(Self {
            id,
            list,
            filed: AtomicU64::new(u64::MAX),
            is_queued: AtomicBool::new(false),
            work: AtomicU8::new(0),
        })
    }

    pub(crate) fn id(&self) -> SocketId {
        self.id
    }

    /// The run list of the socket's shard.
    pub(crate) fn list(&self) -> &RunList {
        &self.list
    }

    /// Asks the driver for `work`. Never works itself, so it may be called from anywhere.
    pub(crate) fn request(&self, work: Work) {
        self.work.fetch_or(work.bits(), Ordering::AcqRel);
        self.enqueue();
        self.list.bell.ring(Instant::ZERO);
    }

    /// Makes known when the socket next has something to do. Only a deadline that is earlier than
    /// what the wheel knows costs more than a load.
    pub(crate) fn publish(&self, deadline: Instant) {
        let due = deadline.as_nanos();
        if due < self.filed.load(Ordering::Acquire)
            && due < self.filed.fetch_min(due, Ordering::AcqRel)
        {
            self.enqueue();
            self.list.bell.ring(deadline + self.list.slack());
        }
    }

    /// Lets the driver forget a socket whose name was released.
    pub(crate) fn retire(&self) {
        self.enqueue();
    }

    fn enqueue(&self) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.list.push(self.id);
        }
    }

    /// The driver has taken the socket off the list. The deadline to file, and what is asked.
    pub(crate) fn take(&self) -> (Instant, Work) {
        // Before the look at what is asked: whatever comes later queues the socket again. An
        // exchange, so that it sees what was asked before the last queueing.
        self.is_queued.swap(false, Ordering::AcqRel);
        let filed = Instant::from_nanos(self.filed.load(Ordering::Acquire));
        (filed, Work::from_bits_truncate(self.work.swap(0, Ordering::AcqRel)))
    }

    /// The wheel has let the socket's deadline go.
    pub(crate) fn on_expired(&self) {
        self.filed.store(u64::MAX, Ordering::Release);
    }
}

impl Wake for RunCell {
    fn wake(self: Arc<Self>) {
        self.request(Work::TRANSMIT);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.request(Work::TRANSMIT);
    }
}
