//! Values as `tc` reads and prints them: rates, times, sizes, counts.

use core::fmt;
use neap_tcp::time::{Nanos, Rate};
use neap_tcp::units;

/// Units of time and how many nanoseconds they have; a number alone is in microseconds.
const TIMES: [(&str, u64); 12] = [
    ("", 1_000),
    ("us", 1_000),
    ("usec", 1_000),
    ("usecs", 1_000),
    ("ms", 1_000_000),
    ("msec", 1_000_000),
    ("msecs", 1_000_000),
    ("s", 1_000_000_000),
    ("sec", 1_000_000_000),
    ("secs", 1_000_000_000),
    ("ns", 1),
    ("nsec", 1),
];

/// Units of size in bytes, powers of 1024.
const SIZES: [(&str, u64); 8] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kb", 1 << 10),
    ("m", 1 << 20),
    ("mb", 1 << 20),
    ("g", 1 << 30),
    ("gb", 1 << 30),
];

pub(super) fn time(text: &str) -> Option<Nanos> {
    units::parse(text, &TIMES).map(Nanos)
}

pub(super) fn size(text: &str) -> Option<u32> {
    units::parse(text, &SIZES).and_then(|bytes| bytes.try_into().ok())
}

pub(super) fn rate(text: &str) -> Option<Rate> {
    text.parse().ok()
}

/// A number, with a `p` behind it where packets are counted.
pub(super) fn count(text: &str) -> Option<u32> {
    text.strip_suffix('p').unwrap_or(text).parse().ok()
}

/// A number in the largest unit that divides it.
fn largest(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fits = |(_, scale): &&(&str, u64)| value >= *scale && value.is_multiple_of(*scale);
    let (name, scale) = units.iter().find(fits).unwrap_or(&units[units.len() - 1]);
    write!(f, "{}{name}", value / scale)
}

/// Prints a time exactly.
pub(super) struct Time(pub(super) Nanos);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
        largest(f, self.0.0, &units)
    }
}

/// Prints a rate exactly.
pub(super) struct Bits(pub(super) Rate);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("Kbit", 1_000), ("bit", 1)];
        largest(f, self.0.0.saturating_mul(8), &units)
    }
}

/// Prints a size exactly.
pub(super) struct Size(pub(super) u32);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        largest(f, self.0.into(), &[("Mb", 1 << 20), ("Kb", 1 << 10), ("b", 1)])
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_tc() {
        assert_eq!(time("5"), Some(Nanos::from_micros(5)));
        assert_eq!(time("1.5ms"), Some(Nanos::from_micros(1500)));
        assert_eq!(time("10s"), Some(Nanos::from_secs(10)));
        assert_eq!(size("32Mb"), Some(32 << 20));
        assert_eq!(size("1514"), Some(1514));
        assert_eq!(rate("550kbit"), Some(Rate(68_750)));
        assert_eq!(rate("1Gbit"), Some(Rate(125_000_000)));
        assert_eq!(rate("100kbps"), Some(Rate(100_000)));
        assert_eq!(rate("8"), Some(Rate(1)));
        assert_eq!(count("100p"), Some(100));
    }

    #[test]
    fn what_is_no_number_or_too_large_is_refused() {
        for text in ["", "ms", "-1ms", "1..5s", "1.2.3s", ".5s", "1xs", "99999999999999999999s"] {
            assert_eq!(time(text), None, "{text}");
        }
        assert_eq!((size("4096mb"), size("5gb")), (None, None));
        assert_eq!(rate("18446744073709551615tbit"), None);
        assert_eq!((count("p"), count("-1"), count("4294967296")), (None, None, None));
    }

    #[test]
    fn printed_values_read_back() {
        for value in [0, 1, 999, 1_000, 1_500, 2_000_000, 10_000_000_000] {
            assert_eq!(time(&Time(Nanos(value)).to_string()), Some(Nanos(value)));
            assert_eq!(rate(&Bits(Rate(value)).to_string()), Some(Rate(value)));
            if let Ok(value) = u32::try_from(value) {
                assert_eq!(size(&Size(value).to_string()), Some(value));
            }
        }
        assert_eq!(Time(Nanos::from_millis(40)).to_string(), "40ms");
        assert_eq!(Bits(Rate(68_750)).to_string(), "550Kbit");
    }
}
