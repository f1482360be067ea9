//! What the flows that send through one device queue do together.
//!
//! Flows share a queue by what each may have in it. If each decided that by its own figures alone,
//! any shares would stay as they are. A flow that tries whether more delivers more would take it
//! from the others (see `neap_tcp::transmit::autosize`). So two figures are common: the rate of
//! all, and the mean of what each has learnt about late completions. Neither needs a list of flows.
//!
//! Cost: two loads per visit of a flow, four loads and three stores if it sends. 40 bytes.

use crate::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use neap_tcp::time::{Instant, Nanos, Rate};
use neap_tcp::transmit::autosize::Load;

/// The rate is measured over so much time: longer than bursts, as in `neap_tcp`'s steady rate.
const WINDOW: Nanos = Nanos::from_millis(8);

/// Visits over which the mean is taken: few enough that a flow that is alone finds itself in it at
/// once.
const VISITS: u64 = 16;

/// Figures of one device queue. Threads that count at once may lose one of their visits.
#[derive(Debug, Default)]
pub(crate) struct CommonLoad {
    /// Begin of the window, in nanoseconds; 0 before the first visit.
    since: AtomicU64,
    /// Bytes sent since then.
    sent: AtomicU64,
    /// Bytes per second of the last window; 0 before the first.
    rate: AtomicU64,
    /// Bytes that one visit sends; 0 before the first.
    usual: AtomicU64,
    /// Doublings, in parts of 256.
    boost: AtomicU16,
}

impl CommonLoad {
    /// Returns the figures, without what only the device knows; `None` before the first window is
    /// over.
    pub(crate) fn get(&self) -> Option<Load> {
        let (rate, boost) = (Rate(self.rate.load(Relaxed)), self.boost.load(Relaxed));
        (rate.0 > 0).then_some(Load { rate, boost, is_at_once: false })
    }

    /// Takes a visit of a flow that has sent so many bytes, and its own doublings in parts of 256.
    pub(crate) fn count(&self, now: Instant, bytes: u64, boost: u16) {
        self.count_rate(now, bytes);
        let usual = self.usual.load(Relaxed);
        // The first visit is all that there is.
        let all = if usual == 0 { bytes } else { usual.saturating_mul(VISITS) }.max(1);
        let (part, old) = (bytes.min(all), self.boost.load(Relaxed));
        if old != boost {
            let sum = u64::from(old) * (all - part) + u64::from(boost) * part;
            // A mean of two numbers is no larger than either.
            self.boost.store((sum / all) as u16, Relaxed);
        }
        let usual = if usual == 0 { bytes } else { usual - usual / VISITS + bytes / VISITS };
        self.usual.store(usual.max(1), Relaxed);
    }

    fn count_rate(&self, now: Instant, bytes: u64) {
        let since = Instant::from_nanos(self.since.load(Relaxed));
        let (elapsed, sent) = (now.since(since), self.sent.load(Relaxed));
        if since == Instant::ZERO || elapsed >= WINDOW {
            if since != Instant::ZERO {
                self.rate.store(Rate::from_bytes_in(sent, elapsed).0.max(1), Relaxed);
            }
            self.since.store(now.as_nanos(), Relaxed);
            self.sent.store(bytes, Relaxed);
        } else {
            self.sent.store(sent.saturating_add(bytes), Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Flows that each send so many bytes per millisecond, with these doublings, for 100 ms.
    fn load(flows: &[(u64, u16)]) -> Load {
        let common = CommonLoad::default();
        for ms in 1..=100 {
            for &(bytes, boost) in flows {
                common.count(Instant::ZERO + Nanos::from_millis(ms), bytes, boost << 8);
            }
        }
        common.get().expect("windows are over")
    }

    #[test]
    fn a_flow_that_is_alone_finds_itself() {
        let load = load(&[(100_000, 3)]);
        assert_eq!(load.boost, 3 << 8);
        assert_eq!(load.rate, Rate(100_000_000));
    }

    #[test]
    fn several_have_the_sum_of_rates_and_the_mean_of_doublings() {
        let ten: Vec<_> = (0..10).map(|flow| (10_000, if flow == 0 { 5 } else { 0 })).collect();
        let load = load(&ten);
        assert_eq!(load.rate, Rate(100_000_000));
        assert!((64..192).contains(&load.boost), "half a doubling: {}", load.boost);
    }

    #[test]
    fn who_sends_little_hardly_counts() {
        let load = load(&[(100, 0), (100_000, 4), (100, 0)]);
        assert!(load.boost > 4 * 256 - 64, "{}", load.boost);
    }

    #[test]
    fn nothing_is_known_before_a_window_is_over() {
        let common = CommonLoad::default();
        assert_eq!(common.get(), None);
        common.count(Instant::from_nanos(1), u64::MAX / 64, 0);
        common.count(Instant::from_nanos(1), u64::MAX / 64, 0);
        assert_eq!(common.get(), None);
    }
}
