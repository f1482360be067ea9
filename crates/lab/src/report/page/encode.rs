//! Series as text that a page carries: short, and exact to three hundredths of a percent.
//!
//! Cost: 2.7 bytes per value, or a few bytes for all of a series that does not change.

use serde::Serialize;

/// Codes of values above zero, less one.
const CODES: f64 = 65534.0;

/// Values of a series.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Values {
    /// All are the same.
    Constant(f64),
    /// Codes of 16 bits in base64, the lower byte first: 0 is zero, 1 is `least`, 65535 is `most`,
    /// and equal steps between them are equal ratios.
    Coded {
        /// Smallest value above zero.
        least: f64,
        /// Largest value.
        most: f64,
        /// The codes.
        codes: String,
    },
}

impl Values {
    /// Encodes values; what is below zero or no number is zero.
    pub(super) fn new(values: &[f64]) -> Self {
        let first = values.first().copied().filter(|first| *first > 0.0).unwrap_or(0.0);
        let positive = || values.iter().copied().filter(|value| *value > 0.0);
        if values.iter().all(|value| *value == first) || positive().next().is_none() {
            return Self::Constant(first);
        }
        let least = positive().fold(f64::INFINITY, f64::min);
        let most = positive().fold(0.0, f64::max);
        let span = (most / least).ln();
        let code = |value: f64| match value {
            value if value > 0.0 && span > 0.0 => {
                1 + ((value / least).ln() / span * CODES).round() as u16
            }
            value => u16::from(value > 0.0),
        };
        let bytes = values.iter().flat_map(|value| code(*value).to_le_bytes());
        Self::Coded { least, most, codes: base64(bytes) }
    }
}

/// Bytes as base64 (RFC 4648, section 4).
fn base64(bytes: impl Iterator<Item = u8>) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |bits: u32| char::from(LETTERS[(bits & 63) as usize]);
    let mut bytes = bytes.peekable();
    let mut text = String::new();
    while bytes.peek().is_some() {
        let three = [bytes.next(), bytes.next(), bytes.next()];
        let byte = |index: usize| u32::from(three[index].unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        text.push(letter(bits >> 18));
        text.push(letter(bits >> 12));
        text.push(if three[1].is_some() { letter(bits >> 6) } else { '=' });
        text.push(if three[2].is_some() { letter(bits) } else { '=' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_short() {
        assert_eq!(Values::new(&[3.0; 9]), Values::Constant(3.0));
        assert_eq!(Values::new(&[]), Values::Constant(0.0));
        assert_eq!(Values::new(&[f64::NAN, -1.0]), Values::Constant(0.0));
        let codes = |values: &[f64]| match Values::new(values) {
            Values::Coded { least, most, codes } => (least, most, codes),
            Values::Constant(value) => panic!("all are {value}"),
        };
        assert_eq!(codes(&[0.0, 5.0]), (5.0, 5.0, "AAABAA==".to_owned()));
        assert_eq!(codes(&[1.0, 0.0, 1e6]), (1.0, 1e6, "AQAAAP//".to_owned()));
    }

    #[test]
    fn base64_is_as_in_the_rfc() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.bytes()), text);
        }
    }
}
