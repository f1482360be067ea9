//! Time and rate as values. Nothing here reads a clock.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A point in time: nanoseconds since an epoch that the caller chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The epoch.
    pub const ZERO: Self = Self(0);
    /// Later than any event; the deadline of what never happens.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the epoch (the unit of the timestamp option).
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Time since `earlier`; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Nanos> for Instant {
    type Output = Self;
    /// Saturates at [`Instant::FAR_FUTURE`].
    fn add(self, span: Nanos) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Nanos> for Instant {
    fn add_assign(&mut self, span: Nanos) {
        *self = *self + span;
    }
}

impl Sub<Nanos> for Instant {
    type Output = Self;
    /// Saturates at [`Instant::ZERO`].
    fn sub(self, span: Nanos) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// Longer than any measured time; "not yet measured" for minima.
    pub const MAX: Self = Self(u64::MAX);

    /// `n` microseconds.
    pub const fn from_micros(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }
    /// `n` milliseconds.
    pub const fn from_millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }
    /// `n` seconds.
    pub const fn from_secs(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }
    /// Whole microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }
    /// Whole milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }
    /// Seconds, for reports.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// The difference, or zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
    /// The product, or the longest time.
    pub const fn saturating_mul(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl core::ops::Div<u64> for Nanos {
    type Output = Self;
    fn div(self, n: u64) -> Self {
        Self(self.0 / n)
    }
}

impl From<core::time::Duration> for Nanos {
    /// Saturates after 584 years.
    fn from(duration: core::time::Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for core::time::Duration {
    fn from(span: Nanos) -> Self {
        Self::from_nanos(span.0)
    }
}

/// Bytes per second, as `SO_MAX_PACING_RATE` and `tcpi_pacing_rate` count.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

impl From<u32> for Rate {
    /// The four-byte form of `SO_MAX_PACING_RATE`: all ones are no limit.
    fn from(rate: u32) -> Self {
        if rate == u32::MAX { Self::UNLIMITED } else { Self(rate.into()) }
    }
}

impl Rate {
    /// No limit: all ones, as in Linux.
    pub const UNLIMITED: Self = Self(u64::MAX);

    /// The rate that moves `bytes` in `span`; unlimited when `span` is zero.
    pub fn from_bytes_in(bytes: u64, span: Nanos) -> Self {
        if span.0 == 0 {
            return Self::UNLIMITED;
        }
        let rate = u128::from(bytes) * 1_000_000_000 / u128::from(span.0);
        Self(u64::try_from(rate).unwrap_or(u64::MAX - 1))
    }

    /// `n` bits per second.
    pub const fn from_bits(n: u64) -> Self {
        Self(n / 8)
    }

    /// Time that `bytes` take at this rate; zero when unlimited, forever at rate zero.
    pub fn time_for(self, bytes: u64) -> Nanos {
        match self {
            Self::UNLIMITED => Nanos::ZERO,
            Self(0) => Nanos::MAX,
            Self(rate) => {
                let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
                Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
        }
    }

    /// Bytes that pass in `span` at this rate.
    pub fn bytes_in(self, span: Nanos) -> u64 {
        let bytes = u128::from(self.0) * u128::from(span.0) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNLIMITED => f.write_str("unlimited"),
            Self(rate) => write!(f, "{rate} B/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_saturates_at_both_ends() {
        assert_eq!(Instant::FAR_FUTURE + Nanos(1), Instant::FAR_FUTURE);
        assert_eq!(Instant::ZERO - Nanos(1), Instant::ZERO);
        assert_eq!(Instant::ZERO.since(Instant::from_nanos(5)), Nanos::ZERO);
    }

    #[test]
    fn rate_and_time_are_inverse() {
        let rate = Rate::from_bits(100_000_000);
        assert_eq!(rate.time_for(12_500), Nanos::from_millis(1));
        assert_eq!(rate.bytes_in(Nanos::from_millis(1)), 12_500);
        assert_eq!(Rate::UNLIMITED.time_for(u64::MAX), Nanos::ZERO);
        assert_eq!(Rate(0).time_for(1), Nanos::MAX);
        assert_eq!(Rate::from_bytes_in(1, Nanos::ZERO), Rate::UNLIMITED);
    }
}
