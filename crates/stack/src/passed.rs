//! What is known to have passed of the time.

use core::sync::atomic::{AtomicU64, Ordering};
use neap_tcp::time::Instant;

/// The latest of the times that were read from the clock of a shard's driver.
///
/// A call of an application brings the time of its beginning. Until it has waited for the socket,
/// or has sent the hundredth frame, that time is old, and the driver or a device has brought later
/// ones. So the core needs no clock, and every face of the sockets gains alike.
///
/// Cost: a relaxed load to ask, an atomic maximum to tell.
#[derive(Debug, Default)]
pub(crate) struct PassedTime(AtomicU64);

impl PassedTime {
    /// The latest time that was told, and `now` if that is later.
    pub(crate) fn latest(&self, now: Instant) -> Instant {
        now.max(Instant::from_nanos(self.0.load(Ordering::Relaxed)))
    }

    /// This time has passed.
    pub(crate) fn tell(&self, time: Instant) {
        self.0.fetch_max(time.as_nanos(), Ordering::Relaxed);
    }
}
