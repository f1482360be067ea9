//! Timestamps of the peer: `TS.Recent` and PAWS (RFC 7323 section 5).

use crate::time::{Instant, Nanos};

/// After this long without an update `TS.Recent` proves nothing: 24 days, in seconds.
const OUTDATED: u32 = 24 * 24 * 60 * 60;

/// Last timestamp of the peer (`TS.Recent`) and its age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TsRecent {
    value: u32,
    /// When it was taken, in seconds.
    stamp: u32,
}

impl TsRecent {
    /// Starts with the timestamp of the peer's SYN.
    pub fn new(now: Instant, value: u32) -> Self {
        Self { value, stamp: seconds(now) }
    }

    /// Returns the value to echo.
    pub fn value(self) -> u32 {
        self.value
    }

    /// Returns whether `value` shows that its segment is an old duplicate (Linux's
    /// `tcp_paws_check`). The timestamp may lag by `slack` ticks.
    pub fn refuses(self, now: Instant, value: u32, slack: u32) -> bool {
        let lag = self.value.wrapping_sub(value) as i32;
        let slack = i32::try_from(slack).unwrap_or(i32::MAX);
        lag > slack && self.value != 0 && seconds(now).wrapping_sub(self.stamp) < OUTDATED
    }

    /// Takes over the timestamp of a segment that starts at or before the last acknowledgment sent,
    /// unless it is older (`tcp_replace_ts_recent`).
    pub fn replace(&mut self, now: Instant, value: u32) {
        if !self.refuses(now, value, 0) {
            *self = Self::new(now, value);
        }
    }

    /// Returns how far the timestamp of a reordered ACK may lag, in milliseconds (ticks): 1.2 times
    /// the retransmission timeout (`tcp_disordered_ack_check`).
    pub fn replay_window(rto: Nanos) -> u32 {
        u32::try_from(rto.as_millis().saturating_mul(6) / 5).unwrap_or(u32::MAX)
    }
}

fn seconds(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_timestamps_are_refused_for_24_days() {
        let start = Instant::from_nanos(5_000_000_000);
        let mut recent = TsRecent::new(start, u32::MAX);
        assert!(!recent.refuses(start, 3, 0), "the clock wraps");
        assert!(recent.refuses(start, u32::MAX - 1, 0));
        assert!(!recent.refuses(start, u32::MAX - 1, 1));
        recent.replace(start, u32::MAX - 1);
        assert_eq!(recent.value(), u32::MAX);
        let later = start + Nanos::from_secs(u64::from(OUTDATED));
        assert!(!recent.refuses(later, 1 << 31, 0));
        recent.replace(later, 1 << 31);
        assert_eq!(recent.value(), 1 << 31);
    }

    #[test]
    fn a_zero_timestamp_of_the_syn_proves_nothing() {
        assert!(!TsRecent::new(Instant::ZERO, 0).refuses(Instant::ZERO, u32::MAX, 0));
    }
}
