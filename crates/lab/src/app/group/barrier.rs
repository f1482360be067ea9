//! The barrier at which the clients of a group wait for each other between two queries.

use super::{EndLog, Group, GroupLog};
use neap_tcp::time::Instant;

/// Place at which clients wait until all of them have come. Cost of a query: one look at each
/// connection of the group.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// Number of clients that wait.
    waiting: usize,
    /// Number of clients that will never come again.
    gone: usize,
    /// Number of times that the barrier has opened.
    opened: u64,
    /// Time at which it opened last.
    opened_at: Instant,
    /// Time of the first request since then.
    asked_at: Option<Instant>,
    /// Retransmission timeouts of all connections until then.
    timeouts: u64,
}

impl Group {
    /// Returns when the barrier opened for those who have come `arrivals` times, or `None` before
    /// that.
    pub(super) fn passed(&self, arrivals: u64) -> Option<Instant> {
        let barrier = self.barrier.borrow();
        (barrier.opened >= arrivals).then_some(barrier.opened_at)
    }

    /// Notes that a client sends its request.
    pub(super) fn ask(&self, now: Instant) {
        self.barrier.borrow_mut().asked_at.get_or_insert(now);
    }

    /// Lets a client wait.
    pub(super) fn arrive(&self, now: Instant) {
        self.barrier.borrow_mut().waiting += 1;
        self.open_barrier(now);
    }

    /// Lets the others go on without a client, which waits or not.
    pub(super) fn leave(&self, now: Instant, is_waiting: bool) {
        let mut barrier = self.barrier.borrow_mut();
        barrier.gone += 1;
        barrier.waiting -= usize::from(is_waiting);
        drop(barrier);
        self.open_barrier(now);
    }

    /// Opens the barrier if all clients are there, which ends a query.
    fn open_barrier(&self, now: Instant) {
        let mut barrier = self.barrier.borrow_mut();
        let mut log = self.log.borrow_mut();
        if barrier.waiting == 0 || barrier.waiting + barrier.gone < log.clients.len() {
            return;
        }
        let timeouts = log.timeouts(now);
        // The first opening ends no query.
        if let Some(asked_at) = barrier.asked_at.take() {
            let time = now.since(asked_at);
            log.latency.record(time);
            log.queries.count += 1;
            log.queries.time = log.queries.time + time;
            log.queries.with_timeout += u64::from(timeouts > barrier.timeouts);
        }
        (barrier.waiting, barrier.opened, barrier.opened_at) = (0, barrier.opened + 1, now);
        barrier.timeouts = timeouts;
    }
}

impl GroupLog {
    /// Retransmission timeouts of all connections that are open.
    fn timeouts(&self, now: Instant) -> u64 {
        let of = |end: &EndLog| {
            let info = end.handle.as_ref().map(|handle| handle.info(now));
            info.map_or(0, |info| u64::from(info.timeouts.total))
        };
        self.clients.iter().chain(&self.servers).map(of).sum()
    }
}
