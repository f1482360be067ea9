//! Quantities of scenario files, written as `tc` and `ip` write them.

use crate::rng::Ppm;
use core::str::FromStr;
use neap_tcp::time::{Nanos, Rate};
use serde::de::{Deserializer, Error, Unexpected, Visitor};

/// Splits a number from its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    number.is_finite().then(|| (number, text[end..].trim()))
}

/// A number of units, rounded; `None` beyond what fits.
fn whole(number: f64, unit: f64) -> Option<u64> {
    let product = (number * unit).round();
    (product < 9.0e18).then_some(product as u64)
}

fn time(text: &str) -> Option<Nanos> {
    let (number, unit) = split(text)?;
    let nanos = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        _ => return None,
    };
    whole(number, nanos).map(Nanos)
}

fn rate(text: &str) -> Option<Rate> {
    let text = text.trim();
    // A number alone could be meant in any unit.
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    text.parse().ok().filter(|rate| has_unit && *rate != Rate(0))
}

fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let bytes = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1024.0,
        "m" | "mb" => 1024.0 * 1024.0,
        "g" | "gb" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    whole(number, bytes)
}

fn share(text: &str) -> Option<Ppm> {
    let (number, unit) = split(text)?;
    let ppm = match unit {
        "%" => 1e4,
        "ppm" => 1.0,
        _ => return None,
    };
    // What is above zero must not become zero: it would never happen.
    let may_be = |&ppm: &u64| ppm <= 1_000_000 && (ppm > 0 || number == 0.0);
    whole(number, ppm).filter(may_be).map(|ppm| Ppm(ppm as u32))
}

/// Room in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Most packets.
    pub packets: usize,
    /// Most bytes.
    pub bytes: u64,
}

fn buffer(text: &str) -> Option<Buffer> {
    let text = text.trim();
    if let Some(packets) = text.strip_suffix("packets").or_else(|| text.strip_suffix("p")) {
        let packets = packets.trim().parse().ok().filter(|&packets| packets > 0)?;
        return Some(Buffer { packets, bytes: u64::MAX });
    }
    size(text).and_then(buffer_of)
}

/// Room for so many bytes. An empty queue takes a packet of any size, so room for nothing would be
/// the same as room for one byte: whoever writes 0 has something else in mind.
fn buffer_of(bytes: u64) -> Option<Buffer> {
    (bytes > 0).then_some(Buffer { packets: usize::MAX, bytes })
}

/// Makes a type of a scenario file from a function that reads text, with what it expects.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($inner:ty) = $parse:ident, $expected:literal, $number:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub $inner);

        impl FromStr for $name {
            type Err = &'static str;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $parse(text).map(Self).ok_or($expected)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_str<E: Error>(self, text: &str) -> Result<$name, E> {
                        let wrong = |expected| E::invalid_value(Unexpected::Str(text), &expected);
                        text.parse().map_err(wrong)
                    }
                    fn visit_i64<E: Error>(self, number: i64) -> Result<$name, E> {
                        let plain: fn(u64) -> Option<$inner> = $number;
                        let wrong = || E::invalid_value(Unexpected::Signed(number), &$expected);
                        let number = u64::try_from(number).map_err(|_| wrong())?;
                        plain(number).map($name).ok_or_else(wrong)
                    }
                }
                deserializer.deserialize_any(Text)
            }
        }
    };
}

quantity! {
    /// A length of time: `"20ms"`.
    Time(Nanos) = time, "a time with its unit, such as \"20ms\" (ns, us, ms, s, min)", |_| None
}
quantity! {
    /// A rate: `"100mbit"`, or in bytes `"6000000bps"`.
    Speed(Rate) = rate, "a rate above zero with its unit, such as \"100mbit\" (bit, kbit, mbit, gbit; bps is bytes)", |_| None
}
quantity! {
    /// A number of bytes: `65536`, `"64k"`.
    Size(u64) = size, "a number of bytes, such as 65536 or \"64k\"", Some
}
quantity! {
    /// A share: `"1%"`.
    Share(Ppm) = share, "a share from \"0%\" to \"100%\", or in \"ppm\", in whole ppm", |_| None
}
quantity! {
    /// Room in a queue: `"1000 packets"`, `"256k"`.
    Room(Buffer) = buffer, "a buffer above zero, such as \"1000 packets\" or \"256k\"", buffer_of
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn quantities_are_read_with_their_units_only() {
        assert_eq!("1.5ms".parse(), Ok(Time(Nanos::from_micros(1500))));
        assert_eq!("100mbit".parse(), Ok(Speed(Rate(12_500_000))));
        assert_eq!("6000000bps".parse(), Ok(Speed(Rate(6_000_000))));
        assert_eq!("64k".parse(), Ok(Size(65_536)));
        assert_eq!("0.5%".parse(), Ok(Share(Ppm(5000))));
        let packets = Buffer { packets: 100, bytes: u64::MAX };
        assert_eq!("100 packets".parse(), Ok(Room(packets)));
        for nothing in ["0 packets", "0p", "0", "0k"] {
            assert!(nothing.parse::<Room>().is_err(), "{nothing}");
        }
        assert!(toml::from_str::<BTreeMap<String, Room>>("buffer = 0").is_err());
        assert!("100".parse::<Speed>().is_err() && "18446744074gbit".parse::<Speed>().is_err());
        for wrong in ["5", "ms", "-1ms", "1e3ms", "9999999999999s", ""] {
            assert!(wrong.parse::<Time>().is_err(), "{wrong}");
        }
        assert!("0mbit".parse::<Speed>().is_err() && "101%".parse::<Share>().is_err());
        assert_eq!("0%".parse(), Ok(Share(Ppm(0))));
        assert_eq!("0.0001%".parse(), Ok(Share(Ppm(1))));
        assert!("0.00001%".parse::<Share>().is_err() && "0.4ppm".parse::<Share>().is_err());
    }
}
