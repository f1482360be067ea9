//! Queueing disciplines, in which frames wait in front of a device.
//!
//! A [`QdiscConfig`](config::QdiscConfig) names one by `tc`'s words; a [`Report`](report::Report)
//! has the figures that `tc -s qdisc` prints. A port has one qdisc; a device of several queues has
//! one at each, as `mq` arranges it.

pub mod codel;
pub mod config;
pub mod fifo;
pub mod fq;
pub mod fq_codel;
pub mod kinds;
mod lists;
mod param;
pub mod report;
pub mod shaped;
pub mod tbf;

#[cfg(all(test, not(loom)))]
mod property_tests;

use crate::frame::Frame;
use neap_tcp::lateness::Departures;
use neap_tcp::time::Instant;
pub use neap_tcp::transmit::egress::Verdict;

/// Result of [`Qdisc::dequeue`].
#[expect(clippy::large_enum_variant, reason = "a box would cost an allocation per frame")]
#[derive(Debug)]
pub enum Dequeued {
    /// A frame to give to the device.
    Frame(Frame),
    /// Frames wait, but none may go before this instant.
    NotBefore(Instant),
    /// No frame waits.
    Empty,
}

/// Frames that a qdisc drops. The caller drops them outside of the qdisc's lock, since the drop of
/// a credit wakes a socket.
pub type Dropped = smallvec::SmallVec<[Frame; 1]>;

/// Figures that all qdiscs have (`tc -s qdisc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QdiscStats {
    /// Bytes sent, headers of every wire segment included.
    pub bytes: u64,
    /// Super-frames sent.
    pub packets: u64,
    /// Super-frames dropped.
    pub drops: u64,
    /// How often a dequeue was put off by shaping.
    pub overlimits: u64,
    /// Frames that the device gave back.
    pub requeues: u64,
    /// Bytes that wait, by [`Frame::wire_len`].
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

/// Queueing discipline of one port.
///
/// The port calls it under its lock, so it must never call out. A frame should cost O(1), or O(log
/// n) where departure times are kept in order.
pub trait Qdisc: Send {
    /// Takes the frame, or drops it or others by moving them to `dropped`.
    fn enqueue(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict;

    /// Returns the next frame that may go at `now`. It may drop others before, as AQM does.
    fn dequeue(&mut self, now: Instant, dropped: &mut Dropped) -> Dequeued;

    /// Returns how many frames wait.
    fn len(&self) -> usize;

    /// Returns whether no frame waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all frames, those of one flow in their order, for the qdisc that replaces this one.
    fn into_frames(self: Box<Self>) -> Vec<Frame>;

    /// Returns whether frames are held until their departure, as `fq` does.
    fn holds_until_departure(&self) -> bool {
        false
    }

    /// Returns whether frames wait for each other at a rate of the qdisc, as in `tbf`. A qdisc that
    /// no frame may bypass and that holds none until its departure counts as one of these.
    fn shapes(&self) -> bool {
        !self.can_bypass() && !self.holds_until_departure()
    }

    /// Adds the lateness of frames that were held until their departure.
    fn add_departures(&self, _: &mut Departures) {}

    /// Returns whether a frame may bypass the empty queue (`TCQ_F_CAN_BYPASS`).
    fn can_bypass(&self) -> bool {
        false
    }

    /// Returns the figures that all qdiscs have.
    fn stats(&self) -> QdiscStats;

    /// Returns kind and parameters, with defaults filled in. A qdisc of a user's own returns what
    /// it was made with, [`QdiscSetup::config`](kinds::QdiscSetup::config).
    fn config(&self) -> config::QdiscConfig;

    /// Returns the figures of this kind alone. Times in them are relative to `now`.
    fn xstats(&self, _now: Instant) -> report::Xstats {
        report::Xstats::None
    }
}
