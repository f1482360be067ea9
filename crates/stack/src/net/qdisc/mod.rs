//! Queueing disciplines: where frames wait in front of a device.
//!
//! A [`QdiscConfig`](config::QdiscConfig) says which one, by `tc`'s names; a
//! [`Report`](report::Report) is what `tc -s qdisc` prints. A port has one; a device of several
//! queues has one at each, as `mq` arranges it.

pub mod codel;
pub mod config;
pub mod fifo;
pub mod fq;
pub mod fq_codel;
pub mod kinds;
mod lists;
mod param;
pub mod report;
pub mod tbf;

#[cfg(all(test, not(loom)))]
mod property_tests;

use crate::frame::Frame;
use neap_tcp::lateness::Departures;
use neap_tcp::time::Instant;
pub use neap_tcp::transmit::egress::Verdict;

/// What `dequeue` found.
#[expect(clippy::large_enum_variant, reason = "a box would cost an allocation per frame")]
#[derive(Debug)]
pub enum Dequeued {
    /// A frame to submit.
    Frame(Frame),
    /// Frames wait, but none may go before this instant.
    NotBefore(Instant),
    /// The queue is empty.
    Empty,
}

/// Frames that a qdisc gave up. They are handed out so that the caller drops them outside its lock:
/// the drop of a credit wakes a socket.
pub type Dropped = smallvec::SmallVec<[Frame; 1]>;

/// `tc -s qdisc` figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QdiscStats {
    /// Bytes sent, headers of every wire segment included.
    pub bytes: u64,
    /// Super-frames sent.
    pub packets: u64,
    /// Super-frames dropped.
    pub drops: u64,
    /// Dequeues that were put off (shaping).
    pub overlimits: u64,
    /// Frames that the device gave back.
    pub requeues: u64,
    /// Bytes waiting, by [`Frame::wire_len`].
    pub backlog_bytes: u64,
    /// Super-frames waiting.
    pub backlog_packets: u32,
}

impl QdiscStats {
    /// A frame of so many bytes came in.
    pub fn on_queued(&mut self, bytes: u64) {
        self.backlog_packets += 1;
        self.backlog_bytes += bytes;
    }

    /// A frame left, whatever became of it.
    pub fn on_left(&mut self, bytes: u64) {
        self.backlog_packets -= 1;
        self.backlog_bytes -= bytes;
    }

    /// A frame left for the device.
    pub fn on_sent(&mut self, bytes: u64) {
        self.on_left(bytes);
        self.bytes += bytes;
        self.packets += 1;
    }

    /// Adds the figures of another queue of the same device (`mq`).
    pub fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.packets += other.packets;
        self.drops += other.drops;
        self.overlimits += other.overlimits;
        self.requeues += other.requeues;
        self.backlog_bytes += other.backlog_bytes;
        self.backlog_packets += other.backlog_packets;
    }
}

/// A queueing discipline. O(1) per frame, O(log n) where it keeps times in order; owned by a port
/// and called under its lock, so it must never call out.
pub trait Qdisc: Send {
    /// Takes the frame, or gives it (or others) up and says so.
    fn enqueue(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict;

    /// The next frame that may go at `now`; an AQM may give up others on the way.
    fn dequeue(&mut self, now: Instant, dropped: &mut Dropped) -> Dequeued;

    /// Frames that wait.
    fn len(&self) -> usize;

    /// Whether none waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All frames, those of one flow in their order: for the qdisc that takes this one's place.
    fn into_frames(self: Box<Self>) -> Vec<Frame>;

    /// Whether frames are held until their departure (`fq`).
    fn holds_until_departure(&self) -> bool {
        false
    }

    /// Adds how late frames left that were held until their departure.
    fn add_departures(&self, _: &mut Departures) {}

    /// Whether an empty queue may be passed by (`TCQ_F_CAN_BYPASS`).
    fn can_bypass(&self) -> bool {
        false
    }

    /// Figures since the start and now.
    fn stats(&self) -> QdiscStats;

    /// Kind and parameters, the defaults filled in. A qdisc of a user's own answers what it was
    /// made with, [`QdiscSetup::config`](kinds::QdiscSetup::config).
    fn config(&self) -> config::QdiscConfig;

    /// Figures of this kind alone. `now` is what times are told from.
    fn xstats(&self, _now: Instant) -> report::Xstats {
        report::Xstats::None
    }
}
