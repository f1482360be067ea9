//! The seam downward: what a connection needs from the host below it.

use super::small_queue::TxCredit;
use crate::segment::Segment;
use crate::time::{Instant, Nanos};

/// What became of a frame at the qdisc (Linux's `NET_XMIT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Taken.
    Queued,
    /// Taken, but the queue is congested (`NET_XMIT_CN`): the sender should enter CWR.
    Congested,
    /// Not taken; the frame is gone and counted. Nothing was sent.
    Dropped,
}

/// Sizes of the super-frames that the way down can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoLimits {
    /// Largest IP packet in bytes, link header excluded (`gso_max_size`); never below the MTU.
    pub max_size: u32,
    /// Most wire segments in one super-frame (`gso_max_segs`); 1 means no super-frames.
    pub max_segs: u32,
}

/// The way down of one socket. `&mut dyn`: one indirect call per super-frame.
pub trait Egress {
    /// Sends `segment` not before `departure` (meaningful where
    /// [`holds_until_departure`](Self::holds_until_departure)). On [`Verdict::Dropped`] the credit
    /// has been returned and the caller acts as if it had never called.
    fn enqueue(
        &mut self,
        segment: Segment,
        departure: Instant,
        credit: Option<TxCredit>,
    ) -> Verdict;

    /// Super-frame limits of the path now.
    fn gso(&self) -> GsoLimits;

    /// Whether a qdisc on the path holds frames until their departure (`fq`). If not, the
    /// connection itself waits (internal pacing) with the same stamps.
    fn holds_until_departure(&self) -> bool;

    /// Whether frames are on the wire when [`enqueue`](Self::enqueue) returns (a TUN behind a plain
    /// FIFO) or when they depart (behind `fq`), so that none ever waits for another one below: the
    /// size of a frame then costs no delay.
    fn completes_on_enqueue(&self) -> bool {
        false
    }

    /// Whether this visit has sent enough: the caller looks for what has arrived before the rest.
    /// Otherwise many flows that all have room would fill the peer's way back with ACKs.
    fn is_exhausted(&self) -> bool {
        false
    }

    /// The shift by which the device asks to divide the rate for autosizing and the small-queue
    /// limit (`sk_pacing_shift`): 10 is about one millisecond.
    fn pacing_shift(&self) -> u32 {
        10
    }

    /// From the last bit of a frame on the wire to its completion, as far as it is known: the
    /// small-queue limit must cover it, for until then the frame counts as below.
    fn completion_lateness(&self) -> Nanos {
        Nanos::ZERO
    }
}
