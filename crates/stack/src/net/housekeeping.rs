//! Housekeeping: the next time at which a host has to forget old connections and fragments, or ask
//! neighbours again.

use crate::driving::doorbell::Doorbell;
use core::sync::atomic::{AtomicU64, Ordering};
use neap_tcp::time::Instant;
use std::sync::Arc;

/// The earliest due time of all that the driver of shard 0 does for the whole host.
///
/// Cost: one atomic operation to schedule, a load to ask.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    due: AtomicU64,
    /// The bell of shard 0.
    bell: Arc<Doorbell>,
}

impl Housekeeping {
    pub(crate) fn new(bell: Arc<Doorbell>) -> Self {
        Self { due: AtomicU64::new(u64::MAX), bell }
    }

    /// Makes sure that the driver comes by `due`.
    pub(crate) fn schedule(&self, due: Instant) {
        if due.as_nanos() < self.due.fetch_min(due.as_nanos(), Ordering::AcqRel) {
            self.bell.ring(due);
        }
    }

    /// The earliest time scheduled; [`Instant::FAR_FUTURE`] if there is none.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::from_nanos(self.due.load(Ordering::Acquire))
    }

    /// Whether something is due at `now`. If so, nothing is scheduled any more, and the caller
    /// schedules what it finds to come later.
    pub(crate) fn take_due(&self, now: Instant) -> bool {
        let is_due = self.deadline() <= now;
        if is_due {
            self.due.store(u64::MAX, Ordering::Release);
        }
        is_due
    }
}
