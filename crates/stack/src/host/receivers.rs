//! How much each flow may be sent at once, where many receive in bulk through a slow driver.
//!
//! What senders may send and the driver has not received waits in the device. With a window of a
//! megabyte for each of 32 flows that are 32 MB: a packet behind them waits for 25 ms, and their
//! bytes have left the processor's cache before they are received.
//!
//! Cost: a flow that is counted costs two loads per visit, and an addition per [`SPAN`].

use crate::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use neap_tcp::time::{Instant, Nanos};

/// Bytes that all bulk flows together may be sent at once. They stay in the cache of one processor,
/// and a fast driver receives them in a millisecond.
const TOGETHER: u32 = 3 << 19;
/// Each may be sent so many, a full frame: with less, frames and their ACKs would be small and
/// many.
const LEAST: u32 = 64 << 10;
/// Time over which flows are counted.
const SPAN: Nanos = Nanos::from_millis(16);

/// The bulk flows of a shard. Threads that count at once may lose one of them.
#[derive(Debug)]
pub(crate) struct Receivers {
    /// When the span began, in nanoseconds.
    since: AtomicU64,
    /// Number of the span; a flow is counted once in each.
    span: AtomicU16,
    /// Flows of this span so far.
    flows: AtomicU32,
    share: AtomicU32,
}

impl Default for Receivers {
    fn default() -> Self {
        let (since, flows) = (AtomicU64::new(0), AtomicU32::new(0));
        Self { since, span: AtomicU16::new(1), flows, share: AtomicU32::new(TOGETHER) }
    }
}

impl Receivers {
    /// Counts a flow that has received in bulk. `counted_in` is the span in which it was counted
    /// last, 0 before the first.
    pub(crate) fn count(&self, now: Instant, counted_in: &mut u16) {
        let mut span = self.span.load(Relaxed);
        if now.since(Instant::from_nanos(self.since.load(Relaxed))) >= SPAN {
            let flows = self.flows.swap(0, Relaxed);
            self.share.store((TOGETHER / flows.max(1)).max(LEAST), Relaxed);
            self.since.store(now.as_nanos(), Relaxed);
            span = span.wrapping_add(1).max(1);
            self.span.store(span, Relaxed);
        }
        if *counted_in != span {
            *counted_in = span;
            self.flows.fetch_add(1, Relaxed);
        }
    }

    /// Whether no more than one flow receives in bulk.
    pub(crate) fn is_one(&self) -> bool {
        self.share() == TOGETHER
    }

    /// Bytes that each flow may be sent at once.
    pub(crate) fn share(&self) -> u32 {
        self.share.load(Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn flows_share_what_the_driver_receives_in_a_short_time() {
        let receivers = Receivers::default();
        let mut counted = vec![0; 1000];
        let mut begin = 1000;
        // Each has a segment per millisecond, for three spans.
        for (flows, share) in [(1, TOGETHER), (8, TOGETHER / 8), (1000, LEAST), (2, TOGETHER / 2)] {
            for ms in 0..48 {
                let now = Instant::ZERO + Nanos::from_millis(begin + ms);
                counted[..flows].iter_mut().for_each(|counted| receivers.count(now, counted));
            }
            assert_eq!(receivers.share(), share, "{flows} flows");
            begin += 48;
        }
    }
}
