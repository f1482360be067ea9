//! Kind and parameters of a queueing discipline, typed and as `tc` writes them.

use super::Qdisc;
use super::codel::{self, Codel, Law, MAX_INTERVAL};
use super::fifo::{BANDS, PfifoFast};
use super::fq::{self, Fq};
use super::fq_codel::{self, FqCodel};
use super::kinds::{BUILT_IN, CustomQdisc, QdiscSetup};
use super::param::{self, Bits, Size, Time};
use super::shaped::Shaped;
use super::tbf::{self, Tbf};
use crate::device::{Capabilities, Medium};
use crate::wire::ethernet;
use core::fmt;
use core::ops::RangeInclusive;
use core::str::{FromStr, SplitAsciiWhitespace};
use neap_tcp::time::{Nanos, Rate};
use thiserror::Error;

/// The longest `debt` of `fq`.
const MAX_DEBT: Nanos = Nanos::from_secs(1);

/// A turn shorter than this makes the round robin spin (`quantum`).
const QUANTUM: RangeInclusive<u32> = 256..=1 << 20;

/// Queueing discipline with its parameters.
///
/// [`FromStr`] parses the words that follow `tc qdisc replace dev DEV root`, and
/// [`Display`](fmt::Display) prints them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QdiscConfig {
    /// `pfifo_fast`: three bands in strict order of priority.
    PfifoFast {
        /// Most frames that wait in each band (`txqueuelen` of the device in Linux).
        limit: u32,
    },
    /// `fq`: fair queueing with departure times.
    Fq(fq::Config),
    /// `fq_codel`: fair queueing under CoDel.
    FqCodel(fq_codel::Config),
    /// `codel`: one queue under CoDel.
    Codel(codel::Config),
    /// `tbf`: the token bucket filter.
    Tbf(tbf::Config),
    /// `tbf` with another qdisc below it, which holds and orders the frames: the words of `tbf`,
    /// and behind them those of the other one.
    Shaped(tbf::Config, Box<Self>),
    /// `mq`: one of these at each queue of the device, which is how neap arranges every qdisc.
    Mq(Box<Self>),
    /// One of a user's own, see [`QdiscConfig::custom`].
    Custom(CustomQdisc),
}

impl Default for QdiscConfig {
    /// Returns `pfifo_fast`, the kernel's `net.core.default_qdisc`.
    fn default() -> Self {
        Self::PfifoFast { limit: PfifoFast::TXQUEUELEN as u32 }
    }
}

/// Reason why a description of a qdisc was refused.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QdiscError {
    /// The text is empty.
    #[error("no qdisc is named; there are {BUILT_IN}")]
    Empty,
    /// There is no qdisc of this name.
    #[error("unknown qdisc {kind:?}; there are {available}")]
    UnknownKind {
        /// Name that was given.
        kind: String,
        /// Names that there are.
        available: String,
    },
    /// The name of a kind to be registered is not one visible word.
    #[error("qdisc name {0:?}: use one visible word")]
    Name(&'static str),
    /// The name of a kind to be registered is that of another one.
    #[error("a qdisc {0:?} is there already: choose another name")]
    Taken(&'static str),
    /// The qdisc has no such parameter.
    #[error("{kind} has no parameter {name:?}")]
    UnknownParameter {
        /// Name of the qdisc.
        kind: &'static str,
        /// The parameter that was given.
        name: String,
    },
    /// The text ends behind the name of this parameter.
    #[error("parameter {0:?} needs a value")]
    MissingValue(String),
    /// The value is not of the parameter's kind, or out of its range.
    #[error("{value:?} is no value for {name}: it must be {expected}")]
    BadValue {
        /// Name of the parameter.
        name: String,
        /// The value that was given.
        value: String,
        /// The values that the parameter takes.
        expected: &'static str,
    },
    /// The qdisc needs a parameter that was not given.
    #[error("{kind} needs {name}")]
    MissingParameter {
        /// Name of the qdisc.
        kind: &'static str,
        /// Name of the missing parameter.
        name: &'static str,
    },
}

neap_tcp::debug_as_display!(QdiscError);

/// Bytes of a whole packet with its link header (`psched_mtu`).
fn psched_mtu(capabilities: &Capabilities) -> u32 {
    let header = match capabilities.medium {
        Medium::Ip => 0,
        Medium::Ethernet(_) => ethernet::HEADER_LEN as u32,
    };
    u32::from(capabilities.mtu) + header
}

impl QdiscConfig {
    /// Returns the name of the qdisc.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::PfifoFast { .. } => "pfifo_fast",
            Self::Fq(_) => "fq",
            Self::FqCodel(_) => "fq_codel",
            Self::Codel(_) => "codel",
            Self::Tbf(_) | Self::Shaped(..) => "tbf",
            Self::Mq(_) => "mq",
            Self::Custom(own) => own.name(),
        }
    }

    /// Describes a qdisc of your own. `factory` makes one for each queue of a device, when the
    /// qdisc is set. Use [`QdiscKinds`](super::kinds::QdiscKinds) to give it by name.
    pub fn custom(
        name: &'static str,
        factory: impl Fn(&QdiscSetup<'_>) -> Box<dyn Qdisc> + Send + Sync + 'static,
    ) -> Self {
        Self::Custom(CustomQdisc::new(name, factory))
    }

    /// Makes an empty qdisc for one queue of a device. `seed` decides which flows share a bucket
    /// and must be secret.
    pub fn build(&self, capabilities: &Capabilities, seed: u64) -> Box<dyn Qdisc> {
        let mtu = psched_mtu(capabilities);
        match self {
            Self::PfifoFast { limit } => Box::new(PfifoFast::new(*limit as usize)),
            Self::Fq(config) => Box::new(Fq::new(*config, mtu, seed)),
            Self::FqCodel(config) => Box::new(FqCodel::new(*config, mtu, seed)),
            Self::Codel(config) => Box::new(Codel::new(*config, mtu)),
            Self::Tbf(config) => Box::new(Tbf::new(*config)),
            Self::Shaped(config, child) => {
                Box::new(Shaped::new(*config, child.build(capabilities, seed)))
            }
            Self::Mq(child) => child.build(capabilities, seed),
            Self::Custom(own) => own.build(&QdiscSetup { config: self, capabilities, seed }),
        }
    }
}

/// The words behind the name of a qdisc.
struct Words<'a> {
    kind: &'static str,
    words: SplitAsciiWhitespace<'a>,
    name: &'a str,
}

impl<'a> Words<'a> {
    fn next_name(&mut self) -> Option<&'a str> {
        self.name = self.words.next()?;
        Some(self.name)
    }

    /// The last name and all behind it, which are then read.
    fn rest(&mut self) -> String {
        let rest: Vec<_> = core::iter::once(self.name).chain(self.words.by_ref()).collect();
        rest.join(" ")
    }

    fn unknown(&self) -> QdiscError {
        QdiscError::UnknownParameter { kind: self.kind, name: self.name.to_owned() }
    }

    fn value<T>(
        &mut self,
        parse: impl FnOnce(&str) -> Option<T>,
        expected: &'static str,
    ) -> Result<T, QdiscError> {
        let name = self.name.to_owned();
        let Some(value) = self.words.next() else { return Err(QdiscError::MissingValue(name)) };
        let bad = || QdiscError::BadValue { name, value: value.to_owned(), expected };
        parse(value).ok_or_else(bad)
    }

    fn count(&mut self) -> Result<u32, QdiscError> {
        self.value(param::count, "a number of packets")
    }

    fn size(&mut self) -> Result<u32, QdiscError> {
        self.value(param::size, "bytes, such as 1514 or 32Mb")
    }

    fn quantum(&mut self) -> Result<u32, QdiscError> {
        let size = |text: &str| param::size(text).filter(|bytes| QUANTUM.contains(bytes));
        self.value(size, "256 bytes to 1 Mb")
    }

    fn rate(&mut self) -> Result<Rate, QdiscError> {
        let rate = |text: &str| param::rate(text).filter(|rate| rate.0 > 0);
        self.value(rate, "a rate above zero, such as 48mbit")
    }

    fn time(&mut self) -> Result<Nanos, QdiscError> {
        self.value(param::time, "a time, such as 5ms")
    }

    /// `target`, `interval`, `ce_threshold`, `ecn` and `noecn`; false if it is none of them.
    fn law(&mut self, law: &mut Law) -> Result<bool, QdiscError> {
        match self.name {
            "target" => law.target = self.time()?,
            "interval" => {
                let within = |time: &Nanos| *time > Nanos::ZERO && *time <= MAX_INTERVAL;
                let time = |text: &str| param::time(text).filter(within);
                law.interval = self.value(time, "a time of at most 4s")?;
            }
            "ce_threshold" => law.ce_threshold = self.time()?,
            "ecn" => law.ecn = true,
            "noecn" => law.ecn = false,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn unknown(kind: &str) -> QdiscError {
    QdiscError::UnknownKind { kind: kind.to_owned(), available: BUILT_IN.to_owned() }
}

impl FromStr for QdiscConfig {
    type Err = QdiscError;

    fn from_str(text: &str) -> Result<Self, QdiscError> {
        let mut words = text.split_ascii_whitespace();
        let kind = words.next().ok_or(QdiscError::Empty)?;
        let behind = |kind| Words { kind, words: words.clone(), name: "" };
        match kind {
            "pfifo_fast" => pfifo_fast(behind("pfifo_fast")),
            "fq" => fq(behind("fq")).map(Self::Fq),
            "fq_codel" => fq_codel(behind("fq_codel")).map(Self::FqCodel),
            "codel" => codel(behind("codel")).map(Self::Codel),
            "tbf" => tbf(behind("tbf")),
            "mq" => {
                let (_, child) = text.trim_ascii_start().split_at("mq".len());
                let child = match words.next() {
                    None => Self::default(),
                    Some("mq") => return Err(unknown("mq under mq")),
                    Some(_) => child.parse()?,
                };
                Ok(Self::Mq(Box::new(child)))
            }
            other => Err(unknown(other)),
        }
    }
}

fn pfifo_fast(mut words: Words<'_>) -> Result<QdiscConfig, QdiscError> {
    let mut limit = PfifoFast::TXQUEUELEN as u32;
    while let Some(name) = words.next_name() {
        match name {
            "limit" => limit = words.count()?,
            _ => return Err(words.unknown()),
        }
    }
    Ok(QdiscConfig::PfifoFast { limit })
}

fn fq(mut words: Words<'_>) -> Result<fq::Config, QdiscError> {
    let mut config = fq::Config::default();
    while let Some(name) = words.next_name() {
        match name {
            "limit" => config.limit = words.count()?,
            "flow_limit" => config.flow_limit = words.count()?,
            "quantum" => config.quantum = Some(words.quantum()?),
            "initial_quantum" => config.initial_quantum = Some(words.size()?),
            "maxrate" => config.maxrate = words.rate()?,
            "buckets" => {
                let is_size = |n: &u32| n.is_power_of_two() && *n <= 1 << 18;
                let buckets = |text: &str| param::count(text).filter(is_size);
                config.buckets = words.value(buckets, "a power of two up to 262144")?;
            }
            "orphan_mask" => {
                let is_mask = |n: &u32| n.checked_add(1).is_some_and(u32::is_power_of_two);
                let mask = |text: &str| param::count(text).filter(is_mask);
                config.orphan_mask = words.value(mask, "a power of two less one")?;
            }
            "pacing" => config.pacing = true,
            "nopacing" => config.pacing = false,
            "refill_delay" => config.refill_delay = words.time()?,
            "low_rate_threshold" => {
                config.low_rate_threshold = words.value(param::rate, "a rate")?;
            }
            "ce_threshold" => config.ce_threshold = words.time()?,
            "timer_slack" => config.timer_slack = words.time()?,
            "debt" => {
                let within = |text: &str| param::time(text).filter(|time| *time <= MAX_DEBT);
                config.debt = words.value(within, "a time of at most 1s")?;
            }
            "horizon" => config.horizon = words.time()?,
            "horizon_drop" => config.horizon_drop = true,
            "horizon_cap" => config.horizon_drop = false,
            "bands" => {
                let three = |text: &str| param::count(text).filter(|&n| n as usize == BANDS);
                words.value(three, "3")?;
            }
            "priomap" => {
                for band in &mut config.priomap {
                    let of_band = |text: &str| text.parse().ok().filter(|&n: &u8| n < BANDS as u8);
                    *band = words.value(of_band, "sixteen bands of 0 to 2")?;
                }
            }
            "weights" => {
                for weight in &mut config.weights {
                    let range = |n: &u32| (16_384..=1 << 30).contains(n);
                    let bytes = |text: &str| param::size(text).filter(range);
                    *weight = words.value(bytes, "three weights of at least 16384")?;
                }
            }
            _ => return Err(words.unknown()),
        }
    }
    Ok(config)
}

fn fq_codel(mut words: Words<'_>) -> Result<fq_codel::Config, QdiscError> {
    let mut config = fq_codel::Config::default();
    while let Some(name) = words.next_name() {
        match name {
            "limit" => config.limit = words.count()?,
            "flows" => {
                let flows = |text: &str| param::count(text).filter(|n| (1..=65_536).contains(n));
                config.flows = words.value(flows, "1 to 65536")?;
            }
            "quantum" => config.quantum = Some(words.quantum()?),
            "memory_limit" => config.memory_limit = words.size()?,
            "drop_batch" => {
                let batch = |text: &str| param::count(text).filter(|&n| n > 0);
                config.drop_batch = words.value(batch, "at least 1")?;
            }
            _ if words.law(&mut config.law)? => {}
            _ => return Err(words.unknown()),
        }
    }
    Ok(config)
}

fn codel(mut words: Words<'_>) -> Result<codel::Config, QdiscError> {
    let mut config = codel::Config::default();
    while let Some(name) = words.next_name() {
        match name {
            "limit" => config.limit = words.count()?,
            _ if words.law(&mut config.law)? => {}
            _ => return Err(words.unknown()),
        }
    }
    Ok(config)
}

fn tbf(mut words: Words<'_>) -> Result<QdiscConfig, QdiscError> {
    let (mut rate, mut burst, mut limit, mut latency) = (None, None, None, None);
    let (mut peak_rate, mut peak_size, mut child) = (None, None, None);
    while let Some(name) = words.next_name() {
        match name {
            "rate" => rate = Some(words.rate()?),
            "burst" | "buffer" | "maxburst" => burst = Some(words.size()?),
            "limit" => limit = Some(words.size()?),
            "latency" => latency = Some(words.time()?),
            "peakrate" => peak_rate = Some(words.rate()?),
            "mtu" | "minburst" => peak_size = Some(words.size()?),
            "pfifo_fast" | "fq" | "fq_codel" | "codel" | "tbf" => {
                child = Some(words.rest().parse::<QdiscConfig>()?);
            }
            _ => return Err(words.unknown()),
        }
    }
    let missing = |name| QdiscError::MissingParameter { kind: "tbf", name };
    let rate = rate.ok_or_else(|| missing("rate"))?;
    let burst = burst.ok_or_else(|| missing("burst"))?;
    let peak = match (peak_rate, peak_size) {
        (Some(rate), Some(size)) => Some((rate, size)),
        (None, None) => None,
        (Some(_), None) => return Err(missing("mtu with its peakrate")),
        (None, Some(_)) => return Err(missing("peakrate with its mtu")),
    };
    // What comes in within the latency, and the bucket; with a peak rate the lesser of both.
    let by_latency = |latency| {
        let within = |rate: Rate, bucket: u32| rate.bytes_in(latency).saturating_add(bucket.into());
        let at_peak = peak.map_or(u64::MAX, |(rate, size)| within(rate, size));
        u32::try_from(within(rate, burst).min(at_peak)).unwrap_or(u32::MAX)
    };
    let limit = limit.or(latency.map(by_latency));
    // The other qdisc has a limit of its own.
    let limit = limit.or(child.is_some().then_some(burst));
    let limit = limit.ok_or_else(|| missing("limit or latency"))?;
    let config = tbf::Config { rate, burst, limit, peak };
    Ok(match child {
        None => QdiscConfig::Tbf(config),
        Some(child) => QdiscConfig::Shaped(config, Box::new(child)),
    })
}

fn print_tbf(f: &mut fmt::Formatter<'_>, config: &tbf::Config) -> fmt::Result {
    let tbf::Config { rate, burst, limit, peak } = config;
    write!(f, " rate {} burst {} limit {}", Bits(*rate), Size(*burst), Size(*limit))?;
    peak.map_or(Ok(()), |(rate, size)| write!(f, " peakrate {} mtu {}", Bits(rate), Size(size)))
}

impl fmt::Display for QdiscConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind())?;
        match self {
            Self::PfifoFast { limit } => write!(f, " limit {limit}p"),
            Self::Fq(config) => print_fq(f, config),
            Self::FqCodel(config) => {
                let fq_codel::Config { limit, flows, .. } = config;
                write!(f, " limit {limit}p flows {flows}")?;
                print_size(f, "quantum", config.quantum)?;
                print_law(f, &config.law)?;
                let memory = Size(config.memory_limit);
                write!(f, " memory_limit {memory} drop_batch {}", config.drop_batch)
            }
            Self::Codel(codel::Config { limit, law }) => {
                write!(f, " limit {limit}p")?;
                print_law(f, law)
            }
            Self::Tbf(config) => print_tbf(f, config),
            Self::Shaped(config, child) => {
                print_tbf(f, config)?;
                write!(f, " {child}")
            }
            Self::Mq(child) => write!(f, " {child}"),
            Self::Custom(_) => Ok(()),
        }
    }
}

fn print_size(f: &mut fmt::Formatter<'_>, name: &str, size: Option<u32>) -> fmt::Result {
    size.map_or(Ok(()), |size| write!(f, " {name} {size}b"))
}

fn print_threshold(f: &mut fmt::Formatter<'_>, threshold: Nanos) -> fmt::Result {
    if threshold == Nanos::MAX {
        return Ok(());
    }
    write!(f, " ce_threshold {}", Time(threshold))
}

fn print_law(f: &mut fmt::Formatter<'_>, law: &Law) -> fmt::Result {
    write!(f, " target {} interval {}", Time(law.target), Time(law.interval))?;
    print_threshold(f, law.ce_threshold)?;
    f.write_str(if law.ecn { " ecn" } else { " noecn" })
}

fn print_fq(f: &mut fmt::Formatter<'_>, config: &fq::Config) -> fmt::Result {
    let fq::Config { limit, flow_limit, buckets, orphan_mask, .. } = config;
    write!(f, " limit {limit}p flow_limit {flow_limit}p buckets {buckets}")?;
    write!(f, " orphan_mask {orphan_mask}")?;
    if !config.pacing {
        f.write_str(" nopacing")?;
    }
    write!(f, " bands {BANDS} priomap")?;
    config.priomap.iter().try_for_each(|band| write!(f, " {band}"))?;
    f.write_str(" weights")?;
    config.weights.iter().try_for_each(|weight| write!(f, " {weight}"))?;
    print_size(f, "quantum", config.quantum)?;
    print_size(f, "initial_quantum", config.initial_quantum)?;
    write!(f, " low_rate_threshold {}", Bits(config.low_rate_threshold))?;
    if config.maxrate != Rate::UNLIMITED {
        write!(f, " maxrate {}", Bits(config.maxrate))?;
    }
    write!(f, " refill_delay {}", Time(config.refill_delay))?;
    print_threshold(f, config.ce_threshold)?;
    if config.debt != fq::Config::default().debt {
        write!(f, " debt {}", Time(config.debt))?;
    }
    let horizon = if config.horizon_drop { "horizon_drop" } else { "horizon_cap" };
    let (slack, length) = (Time(config.timer_slack), Time(config.horizon));
    write!(f, " timer_slack {slack} horizon {length} {horizon}")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<QdiscConfig, QdiscError> {
        text.parse()
    }

    #[test]
    fn parameters_are_those_of_tc() {
        let text = "fq quantum 3028 flow_limit 200 maxrate 1gbit nopacing horizon 2s horizon_cap \
                    debt 2ms";
        let expected = fq::Config {
            quantum: Some(3028),
            flow_limit: 200,
            maxrate: Rate(125_000_000),
            pacing: false,
            horizon: Nanos::from_secs(2),
            horizon_drop: false,
            debt: Nanos::from_millis(2),
            ..fq::Config::default()
        };
        assert_eq!(parse(text), Ok(QdiscConfig::Fq(expected)));
        let Ok(QdiscConfig::FqCodel(config)) = parse("fq_codel target 1ms noecn memory_limit 4Mb")
        else {
            panic!("well formed");
        };
        assert_eq!((config.law.target, config.law.ecn), (Nanos::from_millis(1), false));
        assert_eq!((config.memory_limit, config.flows), (4 << 20, 1024));
        let tbf = "tbf rate 8mbit burst 10kb latency 50ms peakrate 16mbit mtu 1514";
        let expected = tbf::Config {
            rate: Rate(1_000_000),
            burst: 10_240,
            limit: 60_240,
            peak: Some((Rate(2_000_000), 1514)),
        };
        assert_eq!(parse(tbf), Ok(QdiscConfig::Tbf(expected)));
        // 50 ms of the peak rate are less than the bucket.
        let tbf = "tbf rate 8mbit burst 1mb latency 50ms peakrate 9mbit mtu 1514";
        let Ok(QdiscConfig::Tbf(config)) = parse(tbf) else { panic!("well formed") };
        assert_eq!(config.limit, 57_764);
        assert_eq!(parse(" mq  fq ").map(|mq| mq.to_string()).unwrap().get(..5), Some("mq fq"));
        assert_eq!(parse("mq"), Ok(QdiscConfig::Mq(Box::default())));
    }

    #[test]
    fn what_is_printed_reads_back() {
        for text in [
            "pfifo_fast limit 10",
            "fq weights 65536 65536 65536 priomap 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 bands 3",
            "fq quantum 1514 initial_quantum 9000 maxrate 48mbit ce_threshold 4ms buckets 64",
            "fq debt 0ms",
            "fq_codel limit 100p flows 16 quantum 300 ce_threshold 1ms drop_batch 1",
            "codel limit 100 target 2ms interval 20ms ecn",
            "tbf rate 100mbit burst 32kb limit 1mb",
            "mq fq_codel",
        ] {
            let config = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(parse(&config.to_string()), Ok(config));
        }
    }

    #[test]
    fn nonsense_is_told_by_kind() {
        assert_eq!(parse("  "), Err(QdiscError::Empty));
        assert_eq!(parse("htb"), Err(unknown("htb")));
        let unknown = QdiscError::UnknownParameter { kind: "fq", name: "target".into() };
        assert_eq!(parse("fq target 5ms"), Err(unknown));
        assert_eq!(parse("fq limit"), Err(QdiscError::MissingValue("limit".into())));
        let missing = QdiscError::MissingParameter { kind: "tbf", name: "burst" };
        assert_eq!(parse("tbf rate 1mbit limit 1k"), Err(missing));
        for text in [
            "fq quantum 0",
            "fq quantum 2mb",
            "fq maxrate 0",
            "fq buckets 1000",
            "fq buckets 524288",
            "fq orphan_mask 1000",
            "fq orphan_mask 4294967295",
            "fq bands 4",
            "fq priomap 0 1 3",
            "fq weights 1 1 1",
            "fq horizon soon",
            "fq_codel flows 0",
            "fq_codel interval 5s",
            "fq_codel drop_batch 0",
            "codel interval 0ms",
            "tbf rate 0 burst 1k limit 1k",
        ] {
            let error = parse(text).expect_err(text);
            assert!(matches!(error, QdiscError::BadValue { .. }), "{text}: {error}");
        }
        assert!(parse("mq mq fq").is_err());
        assert!(parse(&"mq ".repeat(200_000)).is_err(), "as deep as its text is long");
    }
}
