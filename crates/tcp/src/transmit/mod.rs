//! The parts of the way out that know no connection: how large frames are, how much may be below,
//! when they depart, and the seam downward.

pub mod autosize;
pub mod egress;
pub mod late;
pub mod pacer;
pub mod small_queue;

use crate::time::Instant;

/// Why [`Connection::transmit`](crate::connection::Connection::transmit) stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TxBlocked {
    /// Everything written was sent.
    NoData,
    /// The handshake is not complete, or the connection is over.
    NotOpen,
    /// The next frame departs at this time.
    Pacing(Instant),
    /// The congestion window is full.
    Cwnd,
    /// The peer's window is full.
    Rwnd,
    /// A short segment waits for the ACK of another one, or for more data (`TCP_CORK`).
    Nagle,
    /// A frame waits to grow (`tso_should_defer`).
    Defer,
    /// A short write waits for a completion (autocorking).
    Autocork,
    /// Frames much finer than what was written take more memory than the send buffer allows; an ACK
    /// resumes.
    Memory,
    /// Enough is below TCP; a completion resumes.
    SmallQueue,
    /// The qdisc dropped the frame; it stays queued.
    Egress,
    /// Enough for one visit; the run list resumes.
    Yield,
}
