//! Run list: the sockets that the driver of a shard is asked to visit.
//!
//! A socket is on the list of its shard at most once, so the list is bounded by the number of
//! sockets, and a push allocates only while the list grows for the first time.

use super::ports::Claim;
use super::socket_id::SocketId;
use super::turns::{Share, Turns};
use crate::driving::doorbell::Doorbell;
use crate::passed::PassedTime;
use crate::sync::{Mutex, lock};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use neap_tcp::counters::Counters;
use neap_tcp::memory::HostMemory;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::crowd::Crowd;
use std::sync::Arc;
use std::task::Wake;

/// Frames that all sockets of a shard send between two looks at what has arrived. Each may be
/// answered by an ACK at once, and the queue from the kernel to a TUN holds few packets, 500 by the
/// kernel's default. A frame that the host cuts into segments counts as half of them, since every
/// second one is answered.
const SEND_BUDGET: u32 = 128;

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

/// Departures share wake-ups.
const SHARES: u8 = 1 << 7;

/// The run list of one shard, and what else its sockets share.
#[derive(Debug)]
pub(crate) struct RunList {
    shard: usize,
    counters: Arc<Counters>,
    queue: Mutex<Vec<SocketId>>,
    turns: Turns,
    /// Frames sent since the receive side was looked at.
    sent: AtomicU32,
    /// A timer may wait so long for others, so that one wake-up serves all that are due together.
    slack: AtomicU64,
    /// Segments of a [`Crowd`], and [`SHARES`].
    crowd: AtomicU8,
    passed: Arc<PassedTime>,
    bell: Arc<Doorbell>,
}

impl RunList {
    pub(crate) fn new(shard: usize, memory: Arc<HostMemory>) -> Self {
        Self {
            shard,
            counters: Arc::new(Counters::of_host(memory)),
            queue: Mutex::default(),
            turns: Turns::default(),
            sent: AtomicU32::new(0),
            slack: AtomicU64::new(0),
            crowd: AtomicU8::new(0),
            passed: Arc::default(),
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

    /// The latest time that is known to have passed, which its driver and its devices tell.
    pub(crate) fn passed(&self) -> &Arc<PassedTime> {
        &self.passed
    }

    /// `neap.timer_slack_ns`, for what is planned from now on.
    pub(crate) fn set_slack(&self, slack: Nanos) {
        self.slack.store(slack.0, Ordering::Relaxed);
    }

    /// How paced flows are treated, by the number of the timers that expire.
    pub(crate) fn crowd(&self) -> Crowd {
        let crowd = self.crowd.load(Ordering::Relaxed);
        Crowd { shares_wake_ups: crowd & SHARES != 0, segments: crowd & !SHARES }
    }

    /// Only the driver calls this.
    pub(crate) fn set_crowd(&self, crowd: Crowd) {
        if crowd != self.crowd() {
            let shares = if crowd.shares_wake_ups { SHARES } else { 0 };
            self.crowd.store(crowd.segments | shares, Ordering::Relaxed);
        }
    }

    /// The bell that calls the shard's driver.
    pub(crate) fn bell(&self) -> &Arc<Doorbell> {
        &self.bell
    }

    /// Whether no socket is on the list, and none waits for its turn to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty() && lock(&self.queue).is_empty()
    }

    /// Moves the sockets on the list to `into`, which is empty.
    pub(crate) fn take(&self, into: &mut Vec<SocketId>) {
        core::mem::swap(&mut *lock(&self.queue), into);
    }

    /// Whether the shard's sockets have sent so much that what has arrived is to be looked at
    /// first.
    fn has_sent_enough(&self) -> bool {
        self.sent.load(Ordering::Relaxed) >= SEND_BUDGET
    }

    /// Whether the shard's sockets have sent since [`restart_budget`](Self::restart_budget).
    pub(crate) fn has_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed) > 0
    }

    /// Takes out the socket whose turn to send may be next, unless enough was sent. Its cell's
    /// [`begin_turn`](RunCell::begin_turn) says whether it has its turn.
    pub(crate) fn next_turn(&self) -> Option<SocketId> {
        if self.has_sent_enough() { None } else { self.turns.pop() }
    }

    /// Most rounds that have begun while one socket waited for its turn.
    pub(crate) fn longest_wait(&self) -> u32 {
        self.turns.longest_wait()
    }

    /// What has arrived was looked at: the sockets may send again.
    pub(crate) fn restart_budget(&self) {
        self.sent.store(0, Ordering::Relaxed);
    }

    fn push(&self, id: SocketId) {
        lock(&self.queue).push(id);
    }
}

/// A socket as its shard knows it: what is asked of it, what the wheel knows, and its turn to
/// send. 48 bytes, shared by the socket and the waker in its account.
#[derive(Debug)]
pub(crate) struct RunCell {
    id: SocketId,
    list: Arc<RunList>,
    /// The earliest deadline that the wheel knows or will know once the run list was read.
    filed: AtomicU64,
    share: Share,
    is_queued: AtomicBool,
    work: AtomicU8,
    /// `SO_REUSEADDR` of a connection, which is here because a byte in its socket would be eight.
    reuse_address: AtomicBool,
    /// Whether its port was given to it; here for the same reason.
    has_given_port: AtomicBool,
}

#[cfg(all(target_pointer_width = "64", not(loom)))]
const _: () = assert!(size_of::<RunCell>() <= 48, "an idle connection would grow");

impl RunCell {
    pub(crate) fn new(id: SocketId, list: Arc<RunList>) -> Arc<Self> {
        Arc::new(Self {
            id,
            list,
            filed: AtomicU64::new(u64::MAX),
            share: Share::default(),
            is_queued: AtomicBool::new(false),
            work: AtomicU8::new(0),
            reuse_address: AtomicBool::new(false),
            has_given_port: AtomicBool::new(false),
        })
    }

    /// How a connection has its port, as the tables of ports have counted it.
    pub(crate) fn claim(&self) -> Claim {
        Claim {
            reuse: self.reuse_address.load(Ordering::Relaxed),
            is_given: self.has_given_port.load(Ordering::Relaxed),
        }
    }

    /// Stores how a connection has its port, under the lock of the tables of ports.
    pub(crate) fn store_claim(&self, claim: Claim) {
        self.reuse_address.store(claim.reuse, Ordering::Relaxed);
        self.has_given_port.store(claim.is_given, Ordering::Relaxed);
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

    /// Whether the socket may send one more frame of new data: the shard has not sent enough, and
    /// others who wait do not come first.
    pub(crate) fn may_send(&self) -> bool {
        !self.list.has_sent_enough() && self.list.turns.may_send(&self.share)
    }

    /// The socket has sent a frame with so many bytes of payload, which may be answered by so many
    /// ACKs.
    pub(crate) fn count_sent(&self, bytes: u32, answers: u32) {
        self.list.sent.fetch_add(answers, Ordering::Relaxed);
        self.list.turns.charge(&self.share, bytes);
    }

    /// The socket has sent all that it could, or [may not send](Self::may_send) and waits for its
    /// turn.
    pub(crate) fn set_wants_turn(&self, wants_turn: bool) {
        if wants_turn {
            self.list.turns.wait(self.id, &self.share);
            self.list.bell.ring(Instant::ZERO);
        } else {
            self.share.forgo_turn();
        }
    }

    /// The driver has taken the socket out by [`RunList::next_turn`]. Whether it is to be visited.
    pub(crate) fn begin_turn(&self) -> bool {
        self.list.turns.is_turn(self.id, &self.share)
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
