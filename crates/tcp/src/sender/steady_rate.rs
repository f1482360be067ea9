//! Delivery rate over milliseconds: the rate of a link, without its bursts.
//!
//! A delivery-rate sample lasts one round trip. Below a millisecond it shows how a shaper spends
//! its saved tokens, or how a receiver batches its ACKs, at several times the rate of the link; and
//! a queue sized by it is as many times too long. This counts over a window that evens that out. 16
//! bytes per connection, O(1) per ACK.

use crate::time::{Instant, Nanos, Rate};

/// Longer than what a shaper usually saves, shorter than a change of rate that matters.
const WINDOW: Nanos = Nanos::from_millis(8);

/// Estimator of the segments delivered over the last whole window.
#[derive(Clone, Copy, Debug, Default)]
pub struct SteadyRate {
    since: Instant,
    /// Segments delivered by then, modulo 2^32.
    delivered: u32,
    /// Segments per second of the last window; 0 is not known.
    per_second: u32,
}

impl SteadyRate {
    /// Takes an ACK after which `delivered` segments of the connection are delivered. An ACK with
    /// `is_app_limited` teaches nothing.
    pub fn on_ack(&mut self, now: Instant, delivered: u64, is_app_limited: bool) {
        let elapsed = now.since(self.since);
        let delivered = delivered as u32;
        if is_app_limited || self.since == Instant::ZERO {
            (self.since, self.delivered, self.per_second) = (now, delivered, 0);
        } else if elapsed >= WINDOW {
            let segments = u128::from(delivered.wrapping_sub(self.delivered));
            let per_second = segments * 1_000_000_000 / u128::from(elapsed.0);
            self.per_second = u32::try_from(per_second).unwrap_or(u32::MAX).max(1);
            (self.since, self.delivered) = (now, delivered);
        }
    }

    /// Returns the rate of the last window in segments of `mss` bytes; `None` before there is one.
    pub fn rate(&self, mss: u32) -> Option<Rate> {
        (self.per_second != 0).then(|| Rate(u64::from(self.per_second) * u64::from(mss)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_within_a_window_do_not_show() {
        let mut steady = SteadyRate::default();
        let (mut now, mut delivered) = (Instant::from_nanos(1), 0);
        for _ in 0..20 {
            // 20 segments within 20 microseconds, then nothing for a while.
            for _ in 0..20 {
                now += Nanos::from_micros(1);
                delivered += 1;
                steady.on_ack(now, delivered, false);
            }
            now += Nanos::from_micros(1980);
            let rate = steady.rate(1000).unwrap_or(Rate(10_000_000));
            assert!(rate.0.abs_diff(10_000_000) < 1_600_000, "{rate:?}");
        }
        assert!(steady.rate(1000).is_some());
    }

    #[test]
    fn an_idle_application_is_no_rate() {
        let mut steady = SteadyRate::default();
        let mut now = Instant::from_nanos(1);
        for delivered in 0..100 {
            now += Nanos::from_millis(1);
            steady.on_ack(now, delivered, false);
        }
        assert_eq!(steady.rate(1), Some(Rate(1000)));
        steady.on_ack(now, 100, true);
        assert_eq!(steady.rate(1), None);
    }
}
