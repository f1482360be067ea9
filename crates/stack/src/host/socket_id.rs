//! Names of sockets.

/// Name of a socket for timers, the run list and turns. It is never used twice: the upper half
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId(pub u64);
