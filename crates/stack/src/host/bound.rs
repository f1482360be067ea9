//! TCP addresses that sockets are bound to before they listen or connect.

use crate::flow::overlap;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// An address that `bind` gave to a TCP socket (Linux's `inet_bind_bucket`). It keeps the port from
/// others until the socket is closed. About 64 bytes.
#[derive(Debug)]
pub(crate) struct Bound {
    local: SocketAddr,
    is_dual: bool,
    reuse: AtomicBool,
}

impl Bound {
    /// `is_dual` says that `local` is `[::]` and stands for `0.0.0.0` too.
    pub(crate) fn new(local: SocketAddr, is_dual: bool, reuse: bool) -> Self {
        Self { local, is_dual, reuse: AtomicBool::new(reuse) }
    }

    /// The address, with the port that was chosen if none was asked for.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether it is `[::]` and stands for `0.0.0.0` too.
    pub(crate) fn is_dual(&self) -> bool {
        self.is_dual
    }

    /// Whether it has `SO_REUSEADDR`.
    pub(crate) fn reuse(&self) -> bool {
        self.reuse.load(Relaxed)
    }

    /// Sets `SO_REUSEADDR`.
    pub(crate) fn set_reuse(&self, on: bool) {
        self.reuse.store(on, Relaxed);
    }

    /// Whether packets to `other` could be for this socket.
    pub(crate) fn meets(&self, other: SocketAddr) -> bool {
        self.local.port() == other.port() && (self.is_dual || overlap(self.local, other))
    }

    /// Whether two sockets want packets of each other.
    pub(crate) fn meets_bound(&self, other: &Self) -> bool {
        self.meets(other.local) || other.meets(self.local)
    }
}
