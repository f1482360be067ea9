//! Numbers with units, read as `tc` reads them and printed for people.

use core::fmt;

/// Units of rate in bits per second; "bps" are bytes, as in `tc`.
const RATES: [(&str, u64); 13] = [
    ("", 1),
    ("bit", 1),
    ("kbit", 1_000),
    ("mbit", 1_000_000),
    ("gbit", 1_000_000_000),
    ("kibit", 1 << 10),
    ("mibit", 1 << 20),
    ("gibit", 1 << 30),
    ("bps", 8),
    ("kbps", 8_000),
    ("mbps", 8_000_000),
    ("gbps", 8_000_000_000),
    ("tbit", 1_000_000_000_000),
];

/// Reads a decimal number with one of these units, and returns it in the smallest of them.
///
/// Returns `None` if the text is no such number, or the number is too large.
pub fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.to_ascii_lowercase();
    let scale = units.iter().find(|(name, _)| *name == unit)?.1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 12 || fraction.contains('.') {
        return None;
    }
    let whole = u128::from(whole.parse::<u64>().ok()?) * u128::from(scale);
    let mut part = 0;
    if !fraction.is_empty() {
        let digits = u128::from(fraction.parse::<u64>().ok()?);
        part = digits * u128::from(scale) / 10_u128.pow(fraction.len() as u32);
    }
    u64::try_from(whole + part).ok()
}

/// Reads a rate, in bits per second.
pub(crate) fn parse_rate(text: &str) -> Option<u64> {
    parse(text, &RATES)
}

/// Prints a number in the largest of these units that it reaches, each a power of ten.
///
/// The number is exact, or cut off behind as many digits as the format asks for (`{:.3}`).
pub(crate) fn print(f: &mut fmt::Formatter<'_>, value: u128, units: &[(&str, u64)]) -> fmt::Result {
    let reached = units.iter().rfind(|(_, scale)| value >= u128::from(*scale));
    let (name, scale) = *reached.unwrap_or(&units[0]);
    let (whole, part) = (value / u128::from(scale), value % u128::from(scale));
    let digits = scale.ilog10() as usize;
    let mut fraction = format!("{part:0digits$}");
    fraction.truncate(f.precision().unwrap_or(digits).min(digits));
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    write!(f, "{whole}{point}{fraction}{name}")
}
