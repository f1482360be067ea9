//! Interface from a connection to the host below it.

use super::autosize::Load;
use super::crowd::Crowd;
use super::small_queue::TxCredit;
use crate::segment::Segment;
use crate::time::{Instant, Nanos};

/// Fate of a frame at the qdisc (Linux's `NET_XMIT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame was taken.
    Queued,
    /// The frame was taken, but the queue is congested (`NET_XMIT_CN`): the sender should enter
    /// CWR.
    Congested,
    /// The frame was dropped and counted. Nothing was sent.
    Dropped,
}

/// Largest super-frames that the path down can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoLimits {
    /// Largest IP packet in bytes, link header excluded (`gso_max_size`); never below the MTU.
    pub max_size: u32,
    /// Most wire segments in one super-frame (`gso_max_segs`); 1 means no super-frames.
    pub max_segs: u32,
}

/// Path down of one socket. `&mut dyn` costs one indirect call per super-frame.
pub trait Egress {
    /// Sends `segment`, not before `departure` if
    /// [`holds_until_departure`](Self::holds_until_departure) says that departures are kept.
    ///
    /// After [`Verdict::Dropped`] the credit has been returned, and the caller acts as if it had
    /// never called.
    fn enqueue(
        &mut self,
        segment: Segment,
        departure: Instant,
        credit: Option<TxCredit>,
    ) -> Verdict;

    /// Returns whether there is a way to the peer. What is dropped without one is no sign of
    /// congestion in this host. The default is true.
    fn has_way(&self) -> bool {
        true
    }

    /// Returns the time as far as the host knows it: `now`, or a later time that has passed.
    ///
    /// The connection asks before each frame. A call that sends many frames has a `now` that grows
    /// old, and a frame that is stamped too early makes its round trip longer than it was.
    fn time(&mut self, now: Instant) -> Instant {
        now
    }

    /// Returns the current limits of super-frames.
    fn gso(&self) -> GsoLimits;

    /// Returns whether a qdisc on the path holds frames until their departure, as `fq` does. If
    /// not, the connection itself waits with the same departure times (internal pacing).
    fn holds_until_departure(&self) -> bool;

    /// Returns whether no frame ever waits behind another one below TCP, so that the size of a
    /// frame costs no delay.
    ///
    /// Frames are then on the wire when [`enqueue`](Self::enqueue) returns (a TUN behind a plain
    /// FIFO), or when they depart (behind `fq`).
    fn completes_on_enqueue(&self) -> bool {
        false
    }

    /// Returns whether this visit has sent enough, so that the caller looks for arrived packets
    /// first.
    ///
    /// Otherwise many flows that all have room would fill the peer's way back with ACKs.
    fn is_exhausted(&self) -> bool {
        false
    }

    /// Returns how the driver treats paced flows, by the number of its timers that expire.
    fn crowd(&self) -> Crowd {
        Crowd::default()
    }

    /// Returns the shift by which the device wants the rate divided for autosizing and the
    /// small-queue limit (`sk_pacing_shift`). 10 is about one millisecond.
    fn pacing_shift(&self) -> u32 {
        10
    }

    /// Returns the time from a frame's last bit on the wire to its completion, as far as it is
    /// known.
    ///
    /// The small-queue limit has to cover it, since the frame counts as below TCP until then.
    fn completion_lateness(&self) -> Nanos {
        Nanos::ZERO
    }

    /// Takes how many payload bytes this call has sent, and how often the flow doubles the time
    /// that may be queued, in parts of 256.
    ///
    /// The host keeps [`load`](Self::load) by it.
    fn count_load(&mut self, _bytes: u64, _boost: u16) {}

    /// Returns what the flows that send through the same device do together; `None` if it is not
    /// known.
    fn load(&self) -> Option<Load> {
        None
    }
}
