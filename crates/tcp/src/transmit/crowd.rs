//! How a driver treats the flows that it paces, by the number of its timers that expire.
//!
//! Each wake-up and each frame costs a driver of many slow flows more than the bytes do. So their
//! departures share wake-ups, and their frames are larger, though never larger than Linux's.

use crate::time::{Instant, Nanos};

/// Time over which timers are counted.
const SPAN: Nanos = Nanos::from_millis(10);
/// With so many of them in that time, departures share wake-ups: a thousand per second.
const SHARING: u32 = 10;

/// The size of frames depends on the mean number of timers over this time. A flow of 1 Mbit/s sends
/// once in 93 ms or more often.
const MEMORY: Nanos = Nanos::from_millis(160);
/// Timers per second, in the mean of that time, from which on frames may be larger.
const MANY: u64 = 1000;
/// The same for frames that are larger still.
const MOST: u64 = 25_000;
/// Segments of such frames. With eight, a flow of 1 Mbit/s sends for 93 ms at once. Linux's frames
/// have ten there.
const SEGMENTS_OF_MANY: u8 = 4;
const SEGMENTS_OF_MOST: u8 = 8;

/// How a driver treats the flows that it paces, by the number of its timers that expire. The
/// default is that of a driver with few.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crowd {
    /// Departures of several flows should share a wake-up
    /// ([`Pacer::deadline`](super::pacer::Pacer::deadline)).
    pub shares_wake_ups: bool,
    /// Segments that a frame may have however slow its flow is, where nothing waits below and
    /// Linux's rule allows as many.
    pub segments: u8,
}

/// Counts the timers of a driver. Cost: an addition for each, and two divisions in 10 ms.
#[derive(Debug, Default)]
pub struct CrowdMeter {
    crowd: Crowd,
    /// Timers since `began`.
    timers: u32,
    began: Instant,
    /// The mean number per second.
    mean: u64,
}

impl CrowdMeter {
    /// Counts a timer that has expired.
    pub fn count(&mut self) {
        self.timers = self.timers.saturating_add(1);
    }

    /// Returns how the driver treats flows at `now`.
    pub fn at(&mut self, now: Instant) -> Crowd {
        let passed = now.since(self.began);
        if passed >= SPAN {
            let per_second = u64::from(self.timers) * 1_000_000_000 / passed.0;
            let part = passed.0.min(MEMORY.0);
            self.mean = (self.mean * (MEMORY.0 - part) + per_second * part) / MEMORY.0;
            self.crowd.shares_wake_ups = self.timers >= SHARING;
            self.crowd.segments = self.segments();
            (self.timers, self.began) = (0, now);
        }
        self.crowd
    }

    /// The frames are twice as large as those before, so half as many timers keep them.
    fn segments(&self) -> u8 {
        let is_kept = |segments, number| {
            let has_them = self.crowd.segments >= segments;
            self.mean >= if has_them { number / 2 } else { number }
        };
        if is_kept(SEGMENTS_OF_MOST, MOST) {
            SEGMENTS_OF_MOST
        } else if is_kept(SEGMENTS_OF_MANY, MANY) {
            SEGMENTS_OF_MANY
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments after so many timers in each of some spans.
    fn after(meter: &mut CrowdMeter, timers: u64, spans: u32) -> u8 {
        for _ in 0..spans {
            (0..timers).for_each(|_| meter.count());
            let now = meter.began + SPAN;
            assert_eq!(meter.at(now).shares_wake_ups, timers >= 10);
        }
        meter.crowd.segments
    }

    #[test]
    fn larger_frames_do_not_end_what_they_are_for() {
        let mut meter = CrowdMeter::default();
        assert_eq!(after(&mut meter, 9, 100), 0);
        assert_eq!(after(&mut meter, 11, 100), 4);
        assert_eq!(after(&mut meter, 6, 100), 4);
        assert_eq!(after(&mut meter, 260, 100), 8);
        assert_eq!(after(&mut meter, 130, 100), 8);
        assert_eq!(after(&mut meter, 120, 100), 4);
        assert_eq!(after(&mut meter, 4, 100), 0);
    }

    #[test]
    fn bursts_count_by_their_mean() {
        let mut meter = CrowdMeter::default();
        for _ in 0..20 {
            after(&mut meter, 100, 1);
            after(&mut meter, 0, 4);
        }
        assert_eq!(meter.crowd.segments, 4);
        // A timer at the end of a long pause.
        meter.count();
        let now = meter.began + Nanos::from_secs(5);
        assert_eq!(meter.at(now), Crowd::default());
    }
}
