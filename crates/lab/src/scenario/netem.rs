//! A link in the words of `tc qdisc ... netem`, for the real world.
//!
//! The words become the keys that a link has in a scenario file, and are checked as those are.

use super::model::LinkSpec;
use super::source::{Files, SourceFile};
use super::units::{Room, Share, Size, Speed, Time};
use crate::link::{ENDS, RelayConfig};
use core::fmt::Display;
use core::str::FromStr;
use neap_tcp::time::{Nanos, Rate};
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;

/// Error of reading a link in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word}: {what}")]
pub struct NetemError {
    /// Word where the error is, or the key that it stands for.
    pub word: String,
    /// Description of the error, and of what is expected.
    pub what: String,
}

impl NetemError {
    fn new(word: &str, what: impl Display) -> Self {
        Self { word: word.to_owned(), what: what.to_string() }
    }
}

/// All words, for the error about one that is unknown.
const KNOWN: &str = "delay, loss, reorder, duplicate, corrupt, rate, limit, codel, red, \
                     mark_above, mark, police, wifi, trace, mtu, drop, outage; there, back, both";

/// Keys of a scenario's link with their values in TOML.
type Keys = BTreeMap<&'static str, String>;

/// Directions that words are about.
const BOTH: usize = ENDS;

/// Reads a link.
///
/// Words are about both directions, behind `there` about the one from the first end to the second,
/// behind `back` about the other one, and behind `both` about both again.
///
/// | words | stand for |
/// |---|---|
/// | `delay TIME [JITTER]` | delay, evenly from TIME - JITTER to TIME + JITTER; the order is kept |
/// | `loss [random] SHARE` | loss at random |
/// | `loss gemodel P [R [1-H [1-K]]]` | loss in bursts (Gilbert and Elliott) |
/// | `reorder SHARE [TIME]` | packets that come up to TIME later; the delay by default |
/// | `duplicate SHARE` | packets that come again, up to the TIME of `reorder` later |
/// | `corrupt SHARE` | packets of which one bit is flipped |
/// | `rate RATE` | rate of the link, with what Ethernet adds to each packet |
/// | `limit N` or `limit SIZE` | most packets or bytes in its queue; 1000 packets by default |
/// | `codel [target TIME] [interval TIME] [noecn]` | controlled delay (RFC 8289) |
/// | `red min SIZE max SIZE probability SHARE [ecn]` | random early detection |
/// | `mark_above SIZE`, `mark SHARE` | congestion marks: above a backlog, at random |
/// | `police rate RATE burst SIZE` | token bucket in front that drops |
/// | `wifi overhead TIME frames N airtime TIME` | aggregation of a wifi station |
/// | `trace FILE` | recorded rate, in mahimahi's format |
/// | `mtu BYTES` | largest IP packet; larger ones are answered by ICMP |
/// | `drop N,N,...` | packets that are lost, counted from 0 |
/// | `outage FROM TO` | time in which all are lost, from the start; may be repeated |
///
/// # Errors
/// The word that is not understood, and what is expected there.
pub fn parse(words: &[String], files: &Files<'_>) -> Result<RelayConfig, NetemError> {
    let mut reader = Words { words, next: 0 };
    let mut sections = [Keys::new(), Keys::new(), Keys::new()];
    let mut section = BOTH;
    while let Some(word) = reader.take() {
        match word {
            "there" => section = 0,
            "back" => section = 1,
            "both" => section = BOTH,
            word => reader.option(word, &mut sections[section])?,
        }
    }
    reorder_by_the_delay(&mut sections)?;
    link_of(&sections, files)
}

/// Each direction that reorders without a time does so by its own delay.
fn reorder_by_the_delay(sections: &mut [Keys; ENDS + 1]) -> Result<(), NetemError> {
    for from in 0..ENDS {
        let says = |section: &usize| sections[*section].contains_key("reorder");
        let Some(section) = [from, BOTH].into_iter().find(says) else { continue };
        if sections[section].contains_key("reorder_delay") {
            continue;
        }
        let delay = [from, BOTH].iter().find_map(|&section| sections[section].get(DELAY)).cloned();
        let what = "needs a delay, or a time: how late packets are";
        let delay = delay.ok_or_else(|| NetemError::new("reorder", what))?;
        sections[from].insert("reorder_delay", delay);
    }
    for keys in sections {
        keys.remove(DELAY);
    }
    Ok(())
}

/// Stands for the delay as it was said, which is no key.
const DELAY: &str = "delay as said";

/// A document with one link, whose keys are those of a scenario.
#[derive(Deserialize)]
struct Document {
    link: Spanned<LinkSpec>,
}

fn link_of(sections: &[Keys; ENDS + 1], files: &Files<'_>) -> Result<RelayConfig, NetemError> {
    let table = |name: &str, keys: &Keys| {
        let lines: String = keys.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        format!("[{name}]\n{lines}")
    };
    let mut text = table("link", &sections[BOTH]);
    text.push_str("ends = [\"there\", \"back\"]\n");
    text.push_str(&table("link.there", &sections[0]));
    text.push_str(&table("link.back", &sections[1]));
    let error = |error: super::ScenarioError| NetemError::new(&error.key, error.what);
    let source = SourceFile { file: "words".to_owned(), text };
    let parsed = toml::from_str(&source.text);
    let Document { mut link } = parsed.map_err(|wrong| error(source.parse_error(&wrong)))?;
    let unlimited = Speed(Rate::UNLIMITED);
    let _ = link.get_mut().rate.get_or_insert(unlimited);
    let path = |from| source.relay_path(&link, from, false, files).map_err(error);
    let (paths, changes) = ([path(0)?, path(1)?], Vec::new());
    Ok(RelayConfig { paths, changes, most_packets: RelayConfig::MOST_PACKETS })
}

/// Reads a length of time with its unit, such as `20ms`.
///
/// # Errors
/// What is expected.
pub fn time(text: &str) -> Result<Nanos, &'static str> {
    text.parse().map(|Time(time)| time)
}

/// The words that are left.
struct Words<'a> {
    words: &'a [String],
    next: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).map(String::as_str)
    }

    fn take(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.next += 1;
        Some(word)
    }

    /// The next word, if it is this one.
    fn accept(&mut self, wanted: &str) -> bool {
        let is_there = self.peek() == Some(wanted);
        self.next += usize::from(is_there);
        is_there
    }

    /// The next word, if it is a quantity of this kind.
    fn maybe<T: FromStr>(&mut self) -> Option<(T, &'a str)> {
        let text = self.peek()?;
        let value = text.parse().ok()?;
        self.next += 1;
        Some((value, text))
    }

    /// The next word, which must be a quantity of this kind.
    fn value<T: FromStr<Err: Display>>(
        &mut self,
        option: &str,
    ) -> Result<(T, &'a str), NetemError> {
        let text = self.take().unwrap_or_default();
        let value = text.parse().map_err(|expected| {
            let found = if text.is_empty() { "nothing".to_owned() } else { format!("{text:?}") };
            NetemError::new(option, format_args!("expected {expected}; found {found}"))
        })?;
        Ok((value, text))
    }

    fn number<T: FromStr>(&mut self, option: &str) -> Result<T, NetemError> {
        let text = self.take().unwrap_or_default();
        let what = format!("expected a number; found {text:?}");
        text.parse().map_err(|_| NetemError::new(option, what))
    }

    /// A quantity as a string of TOML.
    fn quoted<T: FromStr<Err: Display>>(&mut self, option: &str) -> Result<String, NetemError> {
        Ok(quote(self.value::<T>(option)?.1))
    }

    /// The quantity behind this word.
    fn named<T: FromStr<Err: Display>>(
        &mut self,
        option: &str,
        name: &str,
    ) -> Result<String, NetemError> {
        if !self.accept(name) {
            return Err(NetemError::new(option, format_args!("expected {name:?} and its value")));
        }
        self.quoted::<T>(option)
    }

    /// Reads what belongs to an option.
    fn option(&mut self, word: &str, keys: &mut Keys) -> Result<(), NetemError> {
        match word {
            "delay" => return self.delay(keys),
            "loss" => return self.loss(keys),
            "reorder" => {
                keys.insert("reorder", self.quoted::<Share>(word)?);
                if let Some((_, time)) = self.maybe::<Time>() {
                    keys.insert("reorder_delay", quote(time));
                }
            }
            "duplicate" => drop(keys.insert("duplicate", self.quoted::<Share>(word)?)),
            "corrupt" => drop(keys.insert("corrupt", self.quoted::<Share>(word)?)),
            "mark" => drop(keys.insert("mark", self.quoted::<Share>(word)?)),
            "rate" => drop(keys.insert("rate", self.quoted::<Speed>(word)?)),
            "limit" => drop(keys.insert("buffer", self.limit()?)),
            "mark_above" => drop(keys.insert("mark_above", self.quoted::<Size>(word)?)),
            "mtu" => drop(keys.insert("mtu", self.number::<u16>(word)?.to_string())),
            "codel" => drop(keys.insert("codel", self.codel()?)),
            "red" => {
                let (min, max) =
                    (self.named::<Size>(word, "min")?, self.named::<Size>(word, "max")?);
                let probability = self.named::<Share>(word, "probability")?;
                let ecn = self.accept("ecn");
                let red = format!(
                    "{{ min = {min}, max = {max}, probability = {probability}, ecn = {ecn} }}"
                );
                keys.insert("red", red);
            }
            "police" => {
                let rate = self.named::<Speed>(word, "rate")?;
                let burst = self.named::<Size>(word, "burst")?;
                keys.insert("policer", format!("{{ rate = {rate}, burst = {burst} }}"));
            }
            "wifi" => {
                let overhead = self.named::<Time>(word, "overhead")?;
                let frames = if self.accept("frames") { self.number::<u32>(word)? } else { 0 };
                let airtime = self.named::<Time>(word, "airtime")?;
                let wifi =
                    format!("{{ overhead = {overhead}, frames = {frames}, airtime = {airtime} }}");
                keys.insert("wifi", wifi);
            }
            "trace" => {
                let file = self.take().filter(|file| !file.contains(['\'', '\n']));
                let what = "expected the name of a file, without quotes in it";
                let file = file.ok_or_else(|| NetemError::new(word, what))?;
                keys.insert("trace", format!("'{file}'"));
            }
            "drop" => {
                let list = self.take().unwrap_or_default();
                let is_list = list.split(',').all(|one| one.parse::<u64>().is_ok());
                let what = "expected numbers of packets, such as 0,7,8";
                let list = Some(list).filter(|_| is_list);
                let list = list.ok_or_else(|| NetemError::new(word, what))?;
                keys.insert("drop", format!("[{list}]"));
            }
            "outage" => {
                let (from, to) = (self.quoted::<Time>(word)?, self.quoted::<Time>(word)?);
                let outages = keys.entry("outages").or_insert_with(|| "[]".to_owned());
                let others = outages.strip_suffix(']').unwrap_or("[");
                *outages = format!("{others}[{from}, {to}],]");
            }
            unknown => {
                let what = format!("is no option of a link; there are {KNOWN}");
                return Err(NetemError::new(unknown, what));
            }
        }
        Ok(())
    }

    /// netem's jitter goes both ways from the delay.
    fn delay(&mut self, keys: &mut Keys) -> Result<(), NetemError> {
        let (Time(delay), _) = self.value::<Time>("delay")?;
        let jitter = self.maybe::<Time>().map_or(Nanos::ZERO, |(Time(jitter), _)| jitter);
        if jitter > delay {
            return Err(NetemError::new("delay", "the jitter is larger than the delay"));
        }
        keys.insert("delay", nanos(delay.saturating_sub(jitter)));
        keys.insert("jitter", nanos(jitter.saturating_mul(2)));
        keys.insert(DELAY, nanos(delay));
        Ok(())
    }

    fn loss(&mut self, keys: &mut Keys) -> Result<(), NetemError> {
        if !self.accept("gemodel") {
            self.accept("random");
            keys.insert("loss", self.quoted::<Share>("loss")?);
            return Ok(());
        }
        let (Share(p), to_bad) = self.value::<Share>("loss")?;
        let rest: Vec<&str> =
            core::iter::from_fn(|| self.maybe::<Share>()).take(3).map(|(_, text)| text).collect();
        // The chain leaves the bad state with what p leaves over, unless it is said (tc-netem(8)).
        let to_good = rest.first().map_or(format!("{}ppm", 1_000_000 - p.0), ToString::to_string);
        let in_bad = rest.get(1).unwrap_or(&"100%");
        let in_good = rest.get(2).unwrap_or(&"0%");
        let bursts = format!(
            "{{ to_bad = \"{to_bad}\", to_good = \"{to_good}\", loss_in_bad = \"{in_bad}\", \
             loss_in_good = \"{in_good}\" }}"
        );
        keys.insert("bursts", bursts);
        Ok(())
    }

    /// A number without a unit counts packets, as in netem.
    fn limit(&mut self) -> Result<String, NetemError> {
        let word = self.take().unwrap_or_default();
        let is_number = word.parse::<u64>().is_ok();
        let text = if is_number { format!("{word} packets") } else { word.to_owned() };
        let is_room = text.parse::<Room>().is_ok();
        let what = "expected packets above zero, such as 1000, or bytes, such as 256k";
        is_room.then(|| quote(&text)).ok_or_else(|| NetemError::new("limit", what))
    }

    fn codel(&mut self) -> Result<String, NetemError> {
        let mut said = Vec::new();
        while let Some(word) = self.peek() {
            let setting = match word {
                "target" | "interval" => {
                    format!("{word} = {}", self.named::<Time>("codel", word)?)
                }
                "ecn" | "noecn" => {
                    self.accept(word);
                    format!("ecn = {}", word == "ecn")
                }
                _ => break,
            };
            said.push(setting);
        }
        Ok(format!("{{ {} }}", said.join(", ")))
    }
}

fn quote(text: &str) -> String {
    format!("\"{text}\"")
}

fn nanos(time: Nanos) -> String {
    quote(&format!("{}ns", time.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Bottleneck, CoDel, Discipline, PathConfig};
    use crate::rng::Ppm;

    fn read(line: &str) -> Result<[PathConfig; ENDS], String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let files = |name: &str| match name {
            "lte.trace" => Ok("1\n2\n".to_owned()),
            other => Err(format!("there is no file {other}")),
        };
        parse(&words, &files).map(|config| config.paths).map_err(|error| error.to_string())
    }

    #[test]
    fn the_words_of_netem_become_a_path() {
        let line = "delay 40ms 5ms loss 1% reorder 25% duplicate 1% corrupt 0.1% rate 50mbit \
                    limit 1mb codel";
        let [there, back] = read(line).expect("a link");
        assert_eq!(there, back);
        let ms = Nanos::from_millis;
        assert_eq!((there.delay, there.jitter, there.reorder_delay), (ms(35), ms(10), ms(40)));
        assert_eq!((there.loss, there.corruption), (Ppm::percent(1), Ppm(1000)));
        assert_eq!((there.reordering, there.duplication), (Ppm::percent(25), Ppm::percent(1)));
        assert_eq!(there.discipline, Discipline::CoDel(CoDel::default()));
        let (rate, packets, bytes) = (Rate::from_mbit(50), usize::MAX, 1 << 20);
        assert_eq!(there.bottleneck, Some(Bottleneck { rate, packets, bytes }));
    }

    #[test]
    fn directions_differ_where_they_are_told_to() {
        let line = "delay 10ms there rate 20mbit limit 50 back rate 1mbit delay 20ms loss 5% \
                    both mtu 1400";
        let [there, back] = read(line).expect("a link");
        assert_eq!((there.rate, back.rate), (Rate::from_mbit(20), Rate::from_mbit(1)));
        assert_eq!((there.delay, back.delay), (Nanos::from_millis(10), Nanos::from_millis(20)));
        assert_eq!((there.loss, back.loss), (Ppm::NEVER, Ppm::percent(5)));
        assert_eq!((there.mtu, back.mtu), (Some(1400), Some(1400)));
        assert_eq!(there.bottleneck.map(|hop| hop.packets), Some(50));
        let [clean, _] = read("").expect("a link");
        assert_eq!((clean.rate, clean.delay), (Rate::UNLIMITED, Nanos::ZERO));
    }

    #[test]
    fn each_direction_reorders_by_its_own_delay() {
        let ms = Nanos::from_millis;
        let delays = |line: &str| read(line).expect("a link").map(|path| path.reorder_delay);
        let all = |there, back| [ms(there), ms(back)];
        assert_eq!(delays("delay 20ms reorder 25% there delay 100ms"), all(100, 20));
        assert_eq!(delays("reorder 25% there delay 100ms back delay 30ms"), all(100, 30));
        assert_eq!(delays("delay 20ms reorder 25% 5ms there delay 100ms"), all(5, 5));
        assert_eq!(delays("delay 20ms reorder 25% 5ms there reorder 1%"), all(20, 5));
        assert!(read("reorder 25% there delay 100ms").is_err());
    }

    #[test]
    fn every_option_of_the_lab_has_words() {
        let [path, _] = read(
            "loss gemodel 1% 20% 90% 0.1% mark 2% police rate 10mbit burst 64k drop 0,7 \
             outage 1s 2s outage 3s 4s trace lte.trace red min 10k max 30k probability 10% ecn",
        )
        .expect("a link");
        let bursts = path.bursts.expect("bursts");
        assert_eq!((bursts.to_bad, bursts.loss_in_good), (Ppm::percent(1), Ppm(1000)));
        assert_eq!(path.scripted.packets, [0, 7]);
        assert_eq!(path.scripted.outages.len(), 2);
        assert!(path.policer.is_some() && path.trace.is_some());
        assert!(matches!(path.discipline, Discipline::Red(red) if red.ecn));
        let [one, _] = read("loss gemodel 3%").expect("a link");
        assert_eq!(one.bursts.map(|bursts| bursts.to_good), Some(Ppm::percent(97)));
        let [wifi, _] =
            read("rate 100mbit wifi overhead 200us frames 32 airtime 4ms").expect("a link");
        assert_eq!(wifi.wifi.map(|wifi| wifi.frames), Some(32));
        let [codel, _] = read("codel target 1ms interval 20ms noecn").expect("a link");
        let (target, interval) = (Nanos::from_millis(1), Nanos::from_millis(20));
        assert_eq!(codel.discipline, Discipline::CoDel(CoDel { target, interval, ecn: false }));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_expected() {
        for (line, hint) in [
            ("delay", "delay: expected a time with its unit"),
            ("delay 40", "found \"40\""),
            ("delay 1ms 2ms", "larger than the delay"),
            ("loss 101%", "a share from"),
            ("loss 5", "a share from"),
            ("reorder 25%", "needs a delay"),
            ("speed 5mbit", "is no option of a link; there are delay"),
            ("rate 5", "a rate above zero"),
            ("limit x", "limit: expected packets above zero"),
            ("limit 0", "limit: expected packets above zero"),
            ("limit 0k", "limit: expected packets above zero"),
            ("police 5mbit", "expected \"rate\""),
            ("police rate 5mbit burst 100", "policer: a burst below 1538 bytes"),
            ("red min 5k max 4k probability 1%", "red: min must be below max"),
            ("codel mark_above 5k", "a queue is managed once"),
            ("mark_above 5k wifi overhead 1ms frames 3 airtime 4ms", "excludes wifi"),
            ("mtu 60", "mtu: no link carries less than 68 bytes"),
            ("trace nowhere", "there is no file nowhere"),
            ("drop 5,3", "ascending"),
            ("outage 2s 1s", "each must end after it begins"),
        ] {
            let error = read(line).expect_err(line);
            assert!(error.contains(hint), "{line}: {error}");
        }
    }
}
