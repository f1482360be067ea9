//! Departure times (Linux's `tcp_update_skb_after_send`, EDT).

use crate::time::{Instant, Nanos, Rate};

/// Segments at the start of a connection that leave back to back.
const FREE_SEGMENTS: u64 = 10;

/// The schedule of one connection's departures.
#[derive(Clone, Debug)]
pub struct Pacer {
    /// `tcp_wstamp_ns`: departure of the last frame, or the earliest of the next.
    next: Instant,
    /// `sk_pacing_rate`.
    rate: Rate,
    /// `SO_MAX_PACING_RATE`.
    max_rate: Rate,
    /// Whether the controller or the application asked for pacing.
    is_needed: bool,
}

impl Default for Pacer {
    fn default() -> Self {
        Self {
            next: Instant::ZERO,
            rate: Rate::UNLIMITED,
            max_rate: Rate::UNLIMITED,
            is_needed: false,
        }
    }
}

impl Pacer {
    /// The rate now, with its limit applied.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// `SO_MAX_PACING_RATE`.
    pub fn max_rate(&self) -> Rate {
        self.max_rate
    }

    /// Caps the rate; lowering takes effect at once, raising at the next [`set_rate`](Self::set_rate).
    pub fn set_max_rate(&mut self, max: Rate) {
        self.max_rate = max;
        self.rate = self.rate.min(max);
        if max != Rate::UNLIMITED {
            self.is_needed = true;
        }
    }

    /// The rate by the controller or by the common formula.
    pub fn set_rate(&mut self, rate: Rate) {
        self.rate = rate.min(self.max_rate);
    }

    /// The controller asks for pacing, or no longer does.
    pub fn set_needed(&mut self, needed: bool) {
        self.is_needed = needed || self.max_rate != Rate::UNLIMITED;
    }

    /// Whether departures are spaced.
    pub fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Departure of the last frame, or the earliest of the next one.
    pub fn next_departure(&self) -> Instant {
        self.next
    }

    /// By how much the schedule runs ahead of `now`: what timers add to their delay.
    pub fn backlog(&self, now: Instant) -> Nanos {
        self.next.since(now)
    }

    /// A frame of `bytes` payload bytes leaves: returns its departure and moves the schedule.
    /// `spaced` says whether somebody executes it, `segments_out` how many data segments the
    /// connection has sent, this frame included. Lateness is made good by at most half a gap.
    pub fn depart(&mut self, now: Instant, bytes: u32, spaced: bool, segments_out: u64) -> Instant {
        let planned = self.next;
        let departure = planned.max(now);
        self.next = departure;
        let has_rate = self.rate != Rate::UNLIMITED && self.rate.0 != 0;
        if spaced && has_rate && segments_out >= FREE_SEGMENTS {
            let gap = self.rate.time_for(u64::from(bytes));
            let credit = departure.since(planned).0.min(gap.0 / 2);
            self.next += Nanos(gap.0 - credit);
        }
        departure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn paced() -> Pacer {
        let mut pacer = Pacer::default();
        pacer.set_max_rate(Rate(1_000_000));
        pacer.set_rate(Rate(1_000_000));
        pacer
    }

    #[test]
    fn first_ten_segments_leave_at_once_then_gaps() {
        let mut pacer = paced();
        let now = Instant::from_nanos(5 * MS);
        assert_eq!(pacer.depart(now, 1000, true, 9), now);
        assert_eq!(pacer.depart(now, 1000, true, 10), now);
        assert_eq!(pacer.next_departure(), now + Nanos::from_millis(1));
        assert_eq!(pacer.depart(now, 1000, true, 11), now + Nanos::from_millis(1));
        assert_eq!(pacer.backlog(now), Nanos::from_millis(2));
    }

    #[test]
    fn lateness_is_made_good_by_half_a_gap_at_most() {
        let mut pacer = paced();
        let start = Instant::from_nanos(100 * MS);
        pacer.depart(start, 1000, true, 100);
        pacer.depart(start, 1000, true, 100);
        assert_eq!(pacer.next_departure(), start + Nanos(1_500_000));
        let late = start + Nanos(1_700_000);
        pacer.depart(late, 1000, true, 100);
        assert_eq!(pacer.next_departure(), late + Nanos(800_000));
        let later = late + Nanos(50 * MS);
        pacer.depart(later, 1000, true, 100);
        assert_eq!(pacer.next_departure(), later + Nanos(500_000));
    }

    #[test]
    fn a_limit_asks_for_pacing_and_caps() {
        let mut pacer = Pacer::default();
        assert!(!pacer.is_needed());
        pacer.set_rate(Rate(5000));
        pacer.set_max_rate(Rate(1000));
        assert_eq!(pacer.rate(), Rate(1000));
        pacer.set_max_rate(Rate(4000));
        assert_eq!(pacer.rate(), Rate(1000), "raised by the next update");
        pacer.set_rate(Rate(5000));
        assert_eq!(pacer.rate(), Rate(4000));
        pacer.set_max_rate(Rate::UNLIMITED);
        pacer.set_needed(false);
        assert!(!pacer.is_needed());
    }
}
