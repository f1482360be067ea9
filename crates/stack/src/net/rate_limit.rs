//! Rate limit of answers that strangers can provoke (`net.ipv4.icmp_msgs_per_sec`,
//! `icmp_msgs_burst`).

use crate::sync::{Mutex, lock};
use neap_tcp::time::Instant;

/// Answers per second.
const PER_SECOND: u64 = 1000;
/// Answers that may leave at once after a pause.
const BURST: u64 = 50;
/// Nanoseconds that one answer costs. Credit is counted in nanoseconds, so that nothing is lost by
/// rounding.
const COST: u64 = 1_000_000_000 / PER_SECOND;

/// A token bucket. O(1); one mutex.
#[derive(Debug, Default)]
pub(crate) struct RateLimit(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    credit: u64,
    last: Instant,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { credit: BURST * COST, last: Instant::ZERO }
    }
}

impl RateLimit {
    /// Whether one more answer may be sent at `now`; if so, it is counted.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        let mut bucket = lock(&self.0);
        let earned = now.since(bucket.last).0;
        bucket.credit = bucket.credit.saturating_add(earned).min(BURST * COST);
        bucket.last = bucket.last.max(now);
        let allows = bucket.credit >= COST;
        if allows {
            bucket.credit -= COST;
        }
        allows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_tcp::time::Nanos;

    #[test]
    fn answers_are_limited_in_burst_and_rate() {
        let limit = RateLimit::default();
        let now = Instant::from_nanos(5_000_000_000);
        let burst = (0..100).filter(|_| limit.allows(now)).count();
        assert_eq!(burst, 50);
        assert!(!limit.allows(now));
        assert!(limit.allows(now + Nanos::from_millis(1)));
        assert!(!limit.allows(now), "time that runs back earns nothing");
    }
}
