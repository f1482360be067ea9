//! Queueing disciplines: where frames wait in front of a device.

pub mod fifo;

use crate::frame::Frame;
use neap_tcp::time::Instant;
pub use neap_tcp::transmit::egress::Verdict;

/// What `dequeue` found.
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
    /// Dequeues that were put off (shaping, pacing).
    pub overlimits: u64,
    /// Frames that the device gave back.
    pub requeues: u64,
    /// Bytes waiting, by [`Frame::wire_len`].
    pub backlog_bytes: u64,
    /// Super-frames waiting.
    pub backlog_packets: u32,
}

/// A queueing discipline. O(1) per frame; owned by a port and called under its lock, so it must
/// never call out.
pub trait Qdisc: Send {
    /// Its name as `tc` prints it.
    fn kind(&self) -> &'static str;

    /// Takes the frame, or gives it (or another one) up and says so.
    fn enqueue(&mut self, frame: Frame, now: Instant, dropped: &mut Dropped) -> Verdict;

    /// The next frame that may go at `now`; an AQM may give up others on the way.
    fn dequeue(&mut self, now: Instant, dropped: &mut Dropped) -> Dequeued;

    /// Puts a frame that the device gave back in front of everything.
    fn requeue(&mut self, frame: Frame);

    /// Whether frames are held until their departure (`fq`).
    fn holds_until_departure(&self) -> bool {
        false
    }

    /// Whether an empty queue may be passed by (`TCQ_F_CAN_BYPASS`).
    fn can_bypass(&self) -> bool {
        false
    }

    /// Figures since the start and now.
    fn stats(&self) -> QdiscStats;
}
