//! What a scenario file says. Unknown keys are errors everywhere.

mod hostile;
mod session;

pub(super) use hostile::HostileSpec;
pub(super) use session::{EndingSpec, SessionSpec};

use super::units::{Room, Share, Size, Speed, Time};
use neap_tcp::time::Nanos;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;

/// The parameter of a sweep whose values are the names of columns.
pub(super) const COLUMN: &str = "column";

/// A name that must exist elsewhere, with its place in the file.
pub(super) type Name = Spanned<String>;

/// A whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// One line: what it shows.
    pub about: String,
    /// What to look at in its figures.
    #[serde(default)]
    pub look_at: Option<String>,
    /// Of all randomness.
    #[serde(default = "one")]
    pub seed: u64,
    /// Before anything is measured.
    #[serde(default)]
    pub warm_up: Option<Time>,
    /// Over which is measured.
    pub duration: Time,
    /// Between two looks at sockets and queues; a thousandth of the duration by default.
    #[serde(default)]
    pub sample: Option<Time>,
    /// Addresses are of IPv6.
    #[serde(default)]
    pub ipv6: bool,
    /// Hosts by name.
    pub host: BTreeMap<String, HostSpec>,
    /// Routers by name.
    #[serde(default)]
    pub router: BTreeMap<String, RouterSpec>,
    /// Links by name.
    pub link: BTreeMap<String, Spanned<LinkSpec>>,
    /// Applications by name.
    #[serde(default)]
    pub app: BTreeMap<String, Spanned<AppSpec>>,
    /// Single connections by name.
    #[serde(default)]
    pub session: BTreeMap<String, Spanned<SessionSpec>>,
    /// Hostile peers by name.
    #[serde(default)]
    pub hostile: BTreeMap<String, Spanned<HostileSpec>>,
    /// What is watched beside the figures: a run in which it does not hold fails.
    #[serde(default)]
    pub oracles: Option<Oracles>,
    /// What happens to links, in any order.
    #[serde(default)]
    pub event: Vec<EventSpec>,
    /// Figures that must hold.
    #[serde(default)]
    pub expect: Vec<Spanned<Expectation>>,
    /// What is compared: each sets some parameters. The sweep takes all of them, as `column`.
    #[serde(default)]
    pub column: Vec<Column>,
    /// Names of the columns that others have measured.
    #[serde(default)]
    pub published: Vec<Name>,
    /// Figures that are shown for each column.
    #[serde(default)]
    pub row: Vec<RowSpec>,
    /// Parameters with the values that they take.
    #[serde(default)]
    pub sweep: BTreeMap<Name, Vec<toml::Value>>,
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Oracles {
    /// All that holds always, and that everything arrives that was written.
    Delivery,
    /// All that holds always; a connection may fail, if it says so.
    Survival,
}

const fn one() -> u64 {
    1
}

/// A host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Rules of a year, or neap's own.
    #[serde(default)]
    pub profile: Option<Name>,
    /// Settings by their names, over the profile.
    #[serde(default)]
    pub sysctl: BTreeMap<Name, toml::Value>,
    /// Queueing discipline of all its interfaces, as `tc` would be told.
    #[serde(default)]
    pub qdisc: Option<Name>,
    /// How late it notices an event at the most; or quantiles: `[["50%", "43us"], ...]`.
    #[serde(default)]
    pub lateness: Option<LatenessSpec>,
    /// Processor time of one turn.
    #[serde(default)]
    pub per_wakeup: Option<Time>,
    /// Each packet arms a timer of its own, which is an interrupt, as in Linux 4.13 (218af599fa63).
    /// Only the count changes.
    #[serde(default)]
    pub timer_per_flow: bool,
    /// From the wake-up of an application to its turn.
    #[serde(default)]
    pub per_switch: Option<Time>,
    /// Its network cards.
    #[serde(default)]
    pub nic: NicSpec,
}

/// How late a host is.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum LatenessSpec {
    /// Up to so much.
    UpTo(Time),
    /// By quantiles.
    Quantiles(Vec<(Share, Time)>),
}

/// The network cards of a host, by `ethtool`'s names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSpec {
    /// Largest IP packet.
    pub mtu: Option<u16>,
    /// Segmentation offload.
    pub tso: Option<bool>,
    /// Super-frames at all: those that the stack would cut, too.
    pub gso: Option<bool>,
    /// Received segments are joined by the card.
    pub gro: Option<bool>,
    /// Checksums are left to the card.
    pub checksums: Option<bool>,
    /// Transmit descriptors.
    pub ring: Option<usize>,
    /// Receive descriptors.
    pub rx_ring: Option<usize>,
    /// Largest super-frame.
    pub gso_max_size: Option<Size>,
    /// Most segments of a super-frame.
    pub gso_max_segs: Option<u32>,
    /// From a frame's last bit to its completion.
    pub completion_delay: Option<Time>,
    /// `tx-usecs` and `tx-frames`.
    pub tx_usecs: Option<u32>,
    /// See `tx_usecs`.
    pub tx_frames: Option<u32>,
    /// `rx-usecs` and `rx-frames`.
    pub rx_usecs: Option<u32>,
    /// See `rx_usecs`.
    pub rx_frames: Option<u32>,
    /// Byte queue limits; on unless said otherwise.
    pub bql: Option<bool>,
    /// `sk_pacing_shift`.
    pub pacing_shift: Option<u8>,
}

/// A router. All about its queues is said at its links.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterSpec {}

/// Loss in bursts.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstsSpec {
    /// Per packet, from good to bad.
    pub to_bad: Share,
    /// Per packet, from bad to good.
    pub to_good: Share,
    /// Loss in the bad state.
    #[serde(default = "certain")]
    pub loss_in_bad: Share,
    /// Loss in the good state.
    #[serde(default)]
    pub loss_in_good: Option<Share>,
}

const fn certain() -> Share {
    Share(crate::rng::Ppm::percent(100))
}

/// CoDel.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodelSpec {
    /// 5 ms by default.
    pub target: Option<Time>,
    /// 100 ms by default.
    pub interval: Option<Time>,
    /// On by default.
    pub ecn: Option<bool>,
}

/// RED.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedSpec {
    /// Bytes.
    pub min: Size,
    /// Bytes.
    pub max: Size,
    /// At `max`.
    pub probability: Share,
    /// Marks instead of drops.
    #[serde(default)]
    pub ecn: bool,
}

/// Aggregation.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WifiSpec {
    /// Of each aggregate.
    pub overhead: Time,
    /// Frames at the most.
    pub frames: u32,
    /// Airtime at the most.
    pub airtime: Time,
}

/// Policer.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicerSpec {
    /// Tokens.
    pub rate: Speed,
    /// Bucket.
    pub burst: Size,
}

/// A slower hop behind the card.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BottleneckSpec {
    /// Its rate.
    pub rate: Speed,
    /// Its buffer, 1000 packets by default.
    pub buffer: Option<Room>,
}

/// Makes [`LinkSpec`] and [`DirectionSpec`], which share what can be said of one direction.
macro_rules! directions {
    ($($(#[$doc:meta])* $field:ident: $kind:ty,)+) => {
        /// A link: what is said here holds in both directions.
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct LinkSpec {
            /// Names of two hosts or routers.
            pub ends: [Name; 2],
            /// What differs from the first end to the second.
            #[serde(default)]
            pub there: DirectionSpec,
            /// What differs from the second end to the first.
            #[serde(default)]
            pub back: DirectionSpec,
            $($(#[$doc])* #[serde(default)] pub $field: Option<$kind>,)+
        }

        /// One direction of a link.
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct DirectionSpec {
            $($(#[$doc])* #[serde(default)] pub $field: Option<$kind>,)+
        }

        impl LinkSpec {
            /// All that is said of one direction.
            pub fn direction(&self, from: usize) -> DirectionSpec {
                let own = if from == 0 { &self.there } else { &self.back };
                DirectionSpec { $($field: own.$field.clone().or_else(|| self.$field.clone()),)+ }
            }
        }
    };
}

directions! {
    /// Of the wire.
    rate: Speed,
    /// Propagation.
    delay: Time,
    /// Of the router's port that sends into this link.
    buffer: Room,
    /// A slower hop behind the card of a host.
    bottleneck: BottleneckSpec,
    /// Manages the queue of port or hop.
    codel: CodelSpec,
    /// Likewise.
    red: RedSpec,
    /// Likewise: marks above so many bytes.
    mark_above: Size,
    /// Aggregation at port or hop.
    wifi: WifiSpec,
    /// A recorded rate at port or hop: a file in mahimahi's format beside the scenario.
    trace: Name,
    /// In front of port or hop.
    policer: PolicerSpec,
    /// Largest packet of a hop that says so by ICMP.
    mtu: u16,
    /// Of each packet.
    loss: Share,
    /// In bursts.
    bursts: BurstsSpec,
    /// These packets, counted from 0.
    drop: Vec<u64>,
    /// All packets, from the start of the world: begin and end.
    outages: Vec<(Time, Time)>,
    /// One bit of the packet flips.
    corrupt: Share,
    /// Arrives twice.
    duplicate: Share,
    /// Is overtaken.
    reorder: Share,
    /// By so much at the most.
    reorder_delay: Time,
    /// More delay, order kept, at the most.
    jitter: Time,
    /// Marked as congested.
    mark: Share,
}

/// What an application does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AppKind {
    /// Writes for ever.
    Bulk,
    /// Writes `bytes` and closes.
    Transfer,
    /// Asks and waits.
    RequestResponse,
    /// Bursts and pauses.
    OnOff,
    /// A message in every interval.
    Paced,
    /// The same by UDP.
    Udp,
    /// Bulk and urgent messages on one connection.
    Mixed,
}

/// Who writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriterKind {
    /// A thread per connection.
    #[default]
    Blocking,
    /// One thread that waits for all of them, by edges.
    Edge,
    /// Tasks of one executor.
    Async,
}

/// Makes [`AppSpec`], and the table of its optional keys.
macro_rules! apps {
    ($($(#[$doc:meta])* $field:ident: $type:ty, for $($kind:ident)|+;)+) => {
        /// A group of equal applications.
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct AppSpec {
            /// What they do.
            pub kind: AppKind,
            /// The host that connects and sends.
            pub from: Name,
            /// The host that listens.
            pub to: Name,
            /// How many.
            #[serde(default = "one_flow")]
            pub count: u32,
            /// When the first begins, from the start of the world.
            #[serde(default)]
            pub start: Option<Time>,
            /// The others begin at random within this after it.
            #[serde(default)]
            pub stagger: Option<Time>,
            /// When they stop.
            #[serde(default)]
            pub stop: Option<Time>,
            $($(#[$doc])* #[serde(default)] pub $field: Option<$type>,)+
        }

        impl AppSpec {
            /// The first key that is given and means nothing for this kind.
            pub(super) fn misplaced(&self) -> Option<&'static str> {
                $(if self.$field.is_some() && !matches!(self.kind, $(AppKind::$kind)|+) {
                    return Some(stringify!($field));
                })+
                None
            }
        }
    };
}

const fn one_flow() -> u32 {
    1
}

apps! {
    /// In all.
    bytes: Size, for Transfer;
    /// Of one write.
    write: Size, for Bulk | Transfer;
    /// Of a request.
    request: Size, for RequestResponse;
    /// Of a response.
    response: Size, for RequestResponse;
    /// Between response and request.
    think: Time, for RequestResponse;
    /// Mean bytes of a burst.
    burst: Size, for OnOff;
    /// Mean pause.
    off: Time, for OnOff;
    /// Of one message.
    message: Size, for Paced | Udp;
    /// Between two messages.
    interval: Time, for Paced | Udp | Mixed;
    /// Of an urgent message.
    urgent: Size, for Mixed;
    /// Of a bulk frame.
    frame: Size, for Mixed;
    /// Who writes.
    writer: WriterKind, for Bulk | Transfer | RequestResponse | OnOff | Paced | Mixed;
    /// The other end reads no faster.
    read_rate: Speed, for Bulk | Transfer | OnOff | Paced | Mixed;
    /// `TCP_NODELAY`.
    nodelay: bool, for Bulk | Transfer | RequestResponse | OnOff | Paced | Mixed;
    /// `SO_SNDBUF` as asked.
    sndbuf: Size, for Bulk | Transfer | RequestResponse | OnOff | Paced | Mixed;
    /// `SO_RCVBUF` as asked, of the other end.
    rcvbuf: Size, for Bulk | Transfer | RequestResponse | OnOff | Paced | Mixed;
    /// `TCP_NOTSENT_LOWAT`.
    notsent_lowat: Size, for Bulk | Transfer | RequestResponse | OnOff | Paced | Mixed;
    /// The same as a time at the pacing rate, in microseconds.
    notsent_lowat_us: u32, for Bulk | Transfer | RequestResponse | OnOff | Paced | Mixed;
    /// `SO_MAX_PACING_RATE`.
    pacing_rate: Speed, for Bulk | Transfer | RequestResponse | OnOff | Paced | Mixed;
    /// `SO_KEEPALIVE` at both ends, with `TCP_KEEPIDLE`.
    keepalive: Time, for Bulk | Transfer | RequestResponse | OnOff | Paced | Mixed;
    /// `SO_PRIORITY`.
    priority: u8, for Bulk | Transfer | RequestResponse | OnOff | Paced | Mixed;
}

/// Something that happens to a link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventSpec {
    /// From the start of the world.
    pub at: Time,
    /// To which link.
    pub link: Name,
    /// Only from this end on.
    pub from: Option<Name>,
    /// Another rate.
    pub rate: Option<Speed>,
    /// Another delay.
    pub delay: Option<Time>,
    /// Another loss.
    pub loss: Option<Share>,
    /// Cut, or whole again.
    pub down: Option<bool>,
}

/// A named setting of several parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// What it is called.
    pub name: Name,
    /// Parameters and their values, as in a sweep.
    #[serde(default)]
    pub set: BTreeMap<String, toml::Value>,
}

/// A figure that is shown for each column.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowSpec {
    /// In words, with its unit.
    pub what: String,
    /// Its name.
    pub figure: Name,
    /// It is shown multiplied by this.
    #[serde(default)]
    pub scale: Option<f64>,
    /// Digits behind the point.
    #[serde(default)]
    pub digits: usize,
    /// What others have measured.
    #[serde(default)]
    pub published: Vec<Published>,
}

impl RowSpec {
    pub(super) fn scale(&self) -> f64 {
        self.scale.unwrap_or(1.0)
    }
}

/// A measurement of others.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// With these values of the sweep only.
    #[serde(default)]
    pub when: BTreeMap<Name, toml::Value>,
    /// By the columns named as published; empty where nothing was measured.
    pub values: Vec<String>,
    /// Why the runs differ, if they do.
    #[serde(default)]
    pub why: Option<String>,
}

/// A figure that must hold.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// In plain words, where `{}` is the value; its name and where it holds if nothing is said.
    /// With words an expectation needs no bounds: then it only tells.
    #[serde(default)]
    pub says: Option<String>,
    /// The value is said multiplied by this.
    #[serde(default)]
    pub scale: Option<f64>,
    /// Its name.
    pub figure: Name,
    /// No less.
    pub at_least: Option<f64>,
    /// No more.
    pub at_most: Option<f64>,
    /// Only in runs with these values of the sweep.
    #[serde(default)]
    pub when: BTreeMap<Name, toml::Value>,
    /// Divided by the figure of the run with these values in place of its own.
    #[serde(default)]
    pub relative_to: BTreeMap<Name, toml::Value>,
    /// Less the figure of the run with these values in place of its own.
    #[serde(default)]
    pub more_than: BTreeMap<Name, toml::Value>,
}

impl Scenario {
    /// Between two samples.
    pub fn sample(&self) -> Nanos {
        let default = Nanos((self.duration.0.0 / 1000).max(1));
        self.sample.map_or(default, |Time(sample)| sample)
    }
}
