//! Time, lengths of time and rates, as values. Nothing here reads a clock.

use crate::units;
use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::str::FromStr;

/// Point in time: nanoseconds since an epoch that the caller chose.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The epoch.
    pub const ZERO: Self = Self(0);
    /// Point in time later than any event, for deadlines that never come.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// Returns the instant `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole milliseconds since the epoch (the unit of the timestamp option).
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
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

impl fmt::Debug for Instant {
    /// Prints the time since the epoch, as [`Nanos`] prints it, or `never`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FAR_FUTURE => f.write_str("never"),
            Self(nanos) => fmt::Display::fmt(&Nanos(nanos), f),
        }
    }
}

/// Length of time in nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Zero nanoseconds.
    pub const ZERO: Self = Self(0);
    /// Longest length of time. As a minimum it means "not yet measured".
    pub const MAX: Self = Self(u64::MAX);

    /// Returns a length of `n` microseconds.
    pub const fn from_micros(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }
    /// Returns a length of `n` milliseconds.
    pub const fn from_millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }
    /// Returns a length of `n` seconds.
    pub const fn from_secs(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }
    /// Returns the whole microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }
    /// Returns the whole milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }
    /// Returns the length in seconds, for reports.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// Returns the difference, or zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
    /// Returns the product, or the longest time.
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

impl fmt::Display for Nanos {
    /// Prints the time with its unit, exactly: `87.178us`. A precision cuts it off: `{:.1}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
        match *self {
            Self::MAX => f.write_str("forever"),
            Self(nanos) => units::print(f, nanos.into(), &units),
        }
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Rate in bytes per second, the unit of `SO_MAX_PACING_RATE` and `tcpi_pacing_rate`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

impl From<u32> for Rate {
    /// Takes the four-byte form of `SO_MAX_PACING_RATE`: all ones are no limit.
    fn from(rate: u32) -> Self {
        if rate == u32::MAX { Self::UNLIMITED } else { Self(rate.into()) }
    }
}

impl Rate {
    /// Rate without limit: all ones, as in Linux.
    pub const UNLIMITED: Self = Self(u64::MAX);

    /// Returns the rate that moves `bytes` in `span`; unlimited if `span` is zero.
    pub fn from_bytes_in(bytes: u64, span: Nanos) -> Self {
        if span.0 == 0 {
            return Self::UNLIMITED;
        }
        let rate = u128::from(bytes) * 1_000_000_000 / u128::from(span.0);
        Self(u64::try_from(rate).unwrap_or(u64::MAX - 1))
    }

    /// Returns a rate of `n` bits per second.
    pub const fn from_bits(n: u64) -> Self {
        Self(n / 8)
    }

    /// Returns a rate of `n` kilobits per second.
    pub const fn from_kbit(n: u64) -> Self {
        Self(n.saturating_mul(125))
    }

    /// Returns a rate of `n` megabits per second.
    pub const fn from_mbit(n: u64) -> Self {
        Self(n.saturating_mul(125_000))
    }

    /// Returns the time that `bytes` take at this rate; zero if unlimited, forever at rate zero.
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

    /// Returns the bytes that pass in `span` at this rate.
    pub fn bytes_in(self, span: Nanos) -> u64 {
        let bytes = u128::from(self.0) * u128::from(span.0) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Rate {
    /// Prints bits per second, exactly: `25.3Mbit/s`. A precision cuts it off: `{:.1}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units =
            [("bit/s", 1), ("kbit/s", 1_000), ("Mbit/s", 1_000_000), ("Gbit/s", 1_000_000_000)];
        match *self {
            Self::UNLIMITED => f.write_str("unlimited"),
            Self(bytes) => units::print(f, u128::from(bytes) * 8, &units),
        }
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error of reading a [`Rate`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a rate: write a number with its unit, for instance 48Mbit or 6mbps (bytes)")]
pub struct RateError(String);

crate::debug_as_display!(RateError);

impl FromStr for Rate {
    type Err = RateError;

    /// Reads a rate as `tc` does: `48Mbit` and `1.5gbit` are bits per second, `6mbps` are bytes per
    /// second, a number alone is bits per second.
    fn from_str(text: &str) -> Result<Self, RateError> {
        let bits = units::parse_rate(text).ok_or_else(|| RateError(text.to_owned()))?;
        Ok(Self::from_bits(bits))
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

    #[test]
    fn values_print_with_units() {
        assert_eq!(format!("{:?}", Nanos(87_178)), "87.178us");
        assert_eq!(
            format!("{:?} {:?} {:?}", Nanos::ZERO, Nanos(999), Nanos::MAX),
            "0ns 999ns forever"
        );
        assert_eq!(
            format!("{} {:.1}", Nanos(1_000_000_001), Nanos(1_290_000)),
            "1.000000001s 1.2ms"
        );
        assert_eq!(format!("{:?}", Instant::from_nanos(2_597_943_821_954)), "2597.943821954s");
        assert_eq!(format!("{:?}", Instant::FAR_FUTURE), "never");
        assert_eq!(format!("{:?} {:?}", Rate::from_kbit(25_300), Rate(1)), "25.3Mbit/s 8bit/s");
        assert_eq!(format!("{} {:.0}", Rate::UNLIMITED, Rate(3_164_043)), "unlimited 25Mbit/s");
    }

    #[test]
    fn a_rate_is_read_with_its_unit() {
        assert_eq!("48Mbit".parse(), Ok(Rate::from_mbit(48)));
        assert_eq!("6mbps".parse(), Ok(Rate::from_mbit(48)));
        assert_eq!("1.5gbit".parse(), Ok(Rate::from_mbit(1500)));
        let error = "48 Mbit".parse::<Rate>().expect_err("a space");
        assert!(error.to_string().starts_with("\"48 Mbit\" is not a rate: write"), "{error}");
    }
}
