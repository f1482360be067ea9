//! Parts of the way out that know no connection: sizes of frames, the limit of bytes below TCP,
//! departure times, and the interface downward.

pub mod autosize;
pub mod crowd;
pub mod egress;
pub mod late;
pub mod pacer;
pub mod small_queue;

use crate::time::Instant;
use core::fmt;

/// Reason why [`Connection::transmit`](crate::connection::Connection::transmit) stopped, which is
/// why a flow is not sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TxBlocked {
    /// Everything written was sent: the application has no more data.
    NoData,
    /// The handshake is not complete, or the connection is closed.
    NotOpen,
    /// Pacing: the next frame departs at this time.
    Pacing(Instant),
    /// The congestion window is full.
    Cwnd,
    /// The peer's window is full.
    Rwnd,
    /// Nagle or `TCP_CORK`: a short segment waits for the ACK of another one, or for more data.
    Nagle,
    /// A frame waits to grow (`tcp_tso_should_defer`).
    Defer,
    /// Autocorking: a short write waits until a frame below TCP is complete.
    Autocork,
    /// Frames that are much smaller than the writes take more memory than the send buffer allows.
    /// An ACK resumes the flow.
    Memory,
    /// The small-queue limit: enough bytes are below TCP. A completion resumes the flow.
    SmallQueue,
    /// The qdisc dropped the frame, which stays queued.
    Egress,
    /// The flow has sent enough for one visit, and continues after the others.
    Yield,
}

impl TxBlocked {
    /// Returns the name of the reason for programs, which never changes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoData => "no_data",
            Self::NotOpen => "not_open",
            Self::Pacing(_) => "pacing",
            Self::Cwnd => "cwnd",
            Self::Rwnd => "rwnd",
            Self::Nagle => "nagle",
            Self::Defer => "defer",
            Self::Autocork => "autocork",
            Self::Memory => "memory",
            Self::SmallQueue => "small_queue",
            Self::Egress => "egress",
            Self::Yield => "yield",
        }
    }
}

impl fmt::Display for TxBlocked {
    /// Prints the reason in words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NoData => "everything written was sent",
            Self::NotOpen => "the connection is not open",
            Self::Pacing(_) => "pacing holds the next frame back",
            Self::Cwnd => "the congestion window is full",
            Self::Rwnd => "the peer's window is full",
            Self::Nagle => "a short segment waits for an ACK or for more data",
            Self::Defer => "a frame waits to grow",
            Self::Autocork => "a short write waits for a frame below TCP",
            Self::Memory => "the frames in flight take all memory of the send buffer",
            Self::SmallQueue => "enough bytes are in qdisc and device",
            Self::Egress => "the qdisc dropped the frame",
            Self::Yield => "other flows send first",
        })
    }
}
