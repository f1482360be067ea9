//! Contents of a scenario file. Unknown keys are errors everywhere.

mod hostile;
mod session;
mod story;

pub(super) use hostile::HostileSpec;
pub(super) use session::{EndingSpec, SessionSpec};
pub use story::Role;
pub(super) use story::{BarSpec, StorySpec, ValueSpec};

use super::units::{Room, Share, Size, Speed, Time};
use neap_tcp::time::Nanos;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;

/// The parameter of a sweep whose values are the names of columns.
pub(super) const COLUMN: &str = "column";

/// A name that must exist elsewhere, with its place in the file.
pub(super) type Name = Spanned<String>;

/// Contents of a scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Line that says what the scenario shows.
    pub about: String,
    /// Advice on which figures to look at.
    #[serde(default)]
    pub look_at: Option<String>,
    /// Seed of all randomness.
    #[serde(default = "one")]
    pub seed: u64,
    /// Time before anything is measured.
    #[serde(default)]
    pub warm_up: Option<Time>,
    /// Time over which figures are measured.
    pub duration: Time,
    /// Time between two looks at sockets and queues; a thousandth of the duration by default.
    #[serde(default)]
    pub sample: Option<Time>,
    /// Whether all addresses are IPv6.
    #[serde(default)]
    pub ipv6: bool,
    /// Hosts by name.
    pub host: BTreeMap<String, HostSpec>,
    /// Routers by name.
    #[serde(default)]
    pub router: BTreeMap<String, Spanned<RouterSpec>>,
    /// Links by name.
    pub link: BTreeMap<String, Spanned<LinkSpec>>,
    /// Applications by name.
    #[serde(default)]
    pub app: BTreeMap<String, Spanned<AppSpec>>,
    /// Sessions by name.
    #[serde(default)]
    pub session: BTreeMap<String, Spanned<SessionSpec>>,
    /// Hostile peers by name.
    #[serde(default)]
    pub hostile: BTreeMap<String, Spanned<HostileSpec>>,
    /// Oracles that watch the run. A run in which one of their rules is broken fails.
    #[serde(default)]
    pub oracles: Option<Oracles>,
    /// Changes of links and of the settings of hosts, in any order.
    #[serde(default)]
    pub event: Vec<Spanned<EventSpec>>,
    /// Expectations about figures.
    #[serde(default)]
    pub expect: Vec<Spanned<Expectation>>,
    /// Columns of a comparison. Each sets some parameters; the sweep takes all of them as `column`.
    #[serde(default)]
    pub column: Vec<Column>,
    /// Names of the columns with published measurements.
    #[serde(default)]
    pub published: Vec<Name>,
    /// Figures that are shown for each column.
    #[serde(default)]
    pub row: Vec<RowSpec>,
    /// The chart that makes the point of the scenario.
    #[serde(default)]
    pub story: Option<StorySpec>,
    /// Parameters with the values that they take.
    #[serde(default)]
    pub sweep: BTreeMap<Name, Vec<toml::Value>>,
}

/// Oracles that watch a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Oracles {
    /// The rules that always hold, and everything written must arrive.
    Delivery,
    /// The rules that always hold. A connection may fail if it says so.
    Survival,
}

const fn one() -> u64 {
    1
}

/// Host of a scenario.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Name of the profile of its settings, such as `linux-6.18`.
    #[serde(default)]
    pub profile: Option<Name>,
    /// Sysctls by name. They are set after the profile.
    #[serde(default)]
    pub sysctl: BTreeMap<Name, toml::Value>,
    /// Queueing discipline of all its interfaces, in `tc`'s words.
    #[serde(default)]
    pub qdisc: Option<Name>,
    /// Longest time by which it notices an event late, or quantiles: `[["50%", "43us"], ...]`.
    #[serde(default)]
    pub lateness: Option<LatenessSpec>,
    /// Processor time of one turn.
    #[serde(default)]
    pub per_wakeup: Option<Time>,
    /// Processor time of one poll of the stack. Unless it is zero, a turn has one poll, and what
    /// arrives meanwhile is seen by the next.
    #[serde(default)]
    pub per_poll: Option<Time>,
    /// Whether each connection has a timer of its own for its next departure, as in Linux 4.13
    /// (218af599fa63), so that each expiration is an interrupt. Only the count changes.
    #[serde(default)]
    pub timer_per_flow: bool,
    /// Time from the wake-up of an application to its turn.
    #[serde(default)]
    pub per_switch: Option<Time>,
    /// Its network cards.
    #[serde(default)]
    pub nic: NicSpec,
}

/// Lateness of a host.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum LatenessSpec {
    /// Lateness that is uniform up to this.
    UpTo(Time),
    /// Quantiles of the lateness.
    Quantiles(Vec<(Share, Time)>),
}

/// The network cards of a host, by `ethtool`'s names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSpec {
    /// Largest IP packet, in bytes.
    pub mtu: Option<u16>,
    /// Whether the card cuts super-frames (TSO).
    pub tso: Option<bool>,
    /// Whether there are super-frames at all, including those that the stack would cut.
    pub gso: Option<bool>,
    /// Whether the card joins received segments.
    pub gro: Option<bool>,
    /// Whether checksums are left to the card.
    pub checksums: Option<bool>,
    /// Transmit descriptors.
    pub ring: Option<usize>,
    /// Receive descriptors.
    pub rx_ring: Option<usize>,
    /// Bytes of the largest super-frame.
    pub gso_max_size: Option<Size>,
    /// Most segments of a super-frame.
    pub gso_max_segs: Option<u32>,
    /// Time from a frame's last bit to its completion.
    pub completion_delay: Option<Time>,
    /// Whether the driver gives frames up before they have left (`skb_orphan`), so that sockets
    /// count nothing as below them.
    #[serde(default)]
    pub completes_early: bool,
    /// `tx-usecs`, microseconds.
    pub tx_usecs: Option<u32>,
    /// `tx-frames`, beside `tx_usecs`; 0 is no limit.
    pub tx_frames: Option<u32>,
    /// `rx-usecs`, microseconds.
    pub rx_usecs: Option<u32>,
    /// `rx-frames`, beside `rx_usecs`; 0 is no limit.
    pub rx_frames: Option<u32>,
    /// Byte queue limits; on unless said otherwise.
    pub bql: Option<bool>,
    /// `sk_pacing_shift`.
    pub pacing_shift: Option<u8>,
}

/// Router of a scenario. Its queues are described at its links.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterSpec {}

/// Loss in bursts, see [`crate::link::GilbertElliott`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstsSpec {
    /// Share of the packets that change the state from good to bad.
    pub to_bad: Share,
    /// Share of the packets that change the state from bad to good.
    pub to_good: Share,
    /// Loss in the bad state; all by default.
    #[serde(default = "certain")]
    pub loss_in_bad: Share,
    /// Loss in the good state; none by default.
    #[serde(default)]
    pub loss_in_good: Option<Share>,
}

const fn certain() -> Share {
    Share(crate::rng::Ppm::percent(100))
}

/// CoDel at a queue, see [`crate::link::CoDel`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodelSpec {
    /// Acceptable standing delay; 5 ms by default.
    pub target: Option<Time>,
    /// Time for which it must be exceeded; 100 ms by default.
    pub interval: Option<Time>,
    /// Marks instead of drops; on by default.
    pub ecn: Option<bool>,
}

/// RED at a queue, see [`crate::link::Red`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedSpec {
    /// Mean backlog in bytes below which nothing is dropped.
    pub min: Size,
    /// Mean backlog in bytes above which everything is dropped.
    pub max: Size,
    /// Share of the packets that is dropped where the mean backlog is `max`.
    pub probability: Share,
    /// Marks instead of drops where the sender allows it.
    #[serde(default)]
    pub ecn: bool,
}

/// Aggregation at a queue, see [`crate::link::Wifi`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WifiSpec {
    /// Time that each aggregate costs beside its payload.
    pub overhead: Time,
    /// Most frames of an aggregate.
    pub frames: u32,
    /// Longest airtime of an aggregate's payload.
    pub airtime: Time,
}

/// A policer, see [`crate::link::Policer`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicerSpec {
    /// Tokens per second.
    pub rate: Speed,
    /// Tokens that the bucket holds.
    pub burst: Size,
}

/// A slower hop behind the card.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BottleneckSpec {
    /// The rate of the hop.
    pub rate: Speed,
    /// The room in its queue; 1000 packets by default.
    pub buffer: Option<Room>,
}

/// Makes [`LinkSpec`] and [`DirectionSpec`], which share what can be said of one direction.
macro_rules! directions {
    ($($(#[$doc:meta])* $field:ident: $kind:ty,)+) => {
        /// Link of a scenario. Its keys hold in both directions unless one direction says
        /// otherwise.
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct LinkSpec {
            /// Names of two hosts or routers.
            pub ends: [Name; 2],
            /// Keys that differ from the first end to the second.
            #[serde(default)]
            pub there: DirectionSpec,
            /// Keys that differ from the second end to the first.
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
            /// Returns all keys of one direction.
            pub fn direction(&self, from: usize) -> DirectionSpec {
                let own = if from == 0 { &self.there } else { &self.back };
                DirectionSpec { $($field: own.$field.clone().or_else(|| self.$field.clone()),)+ }
            }
        }
    };
}

/// The key by which a queue is managed, if there is one.
macro_rules! managed {
    ($said:expr) => {
        match $said {
            said if said.codel.is_some() => Some("codel"),
            said if said.red.is_some() => Some("red"),
            said if said.mark_above.is_some() => Some("mark_above"),
            _ => None,
        }
    };
}

impl LinkSpec {
    /// The key of both directions by which queues are managed.
    pub(super) fn managed(&self) -> Option<&'static str> {
        managed!(self)
    }
}

impl DirectionSpec {
    /// The key of this direction by which its queue is managed.
    pub(super) fn managed(&self) -> Option<&'static str> {
        managed!(self)
    }

    /// Whether packets of a host wait for something other than its card.
    pub(super) fn has_hop(&self) -> bool {
        self.bottleneck.is_some() || self.wifi.is_some() || self.trace.is_some()
    }
}

directions! {
    /// Rate of the wire.
    rate: Speed,
    /// Propagation delay.
    delay: Time,
    /// Room in the router's port that sends into this link, or in front of wifi or a trace. A
    /// bottleneck has its own.
    buffer: Room,
    /// A slower hop behind the card of a host.
    bottleneck: BottleneckSpec,
    /// CoDel manages the queue of port or hop. A host's card alone has none, but a bottleneck has.
    codel: CodelSpec,
    /// Random early detection manages the queue of port or hop; not with wifi.
    red: RedSpec,
    /// The queue of port or hop marks what finds more bytes waiting; not with wifi.
    mark_above: Size,
    /// Aggregation at port or hop.
    wifi: WifiSpec,
    /// A recorded rate at port or hop: a file in mahimahi's format beside the scenario. Each
    /// opportunity carries an IP packet of 1500 bytes.
    trace: Name,
    /// A policer in front of port or hop.
    policer: PolicerSpec,
    /// Largest packet of a hop that says so by ICMP.
    mtu: u16,
    /// Share of the packets that are lost at random.
    loss: Share,
    /// Loss in bursts.
    bursts: BurstsSpec,
    /// These packets are lost, counted from 0.
    drop: Vec<u64>,
    /// All packets, from the start of the world: begin and end.
    outages: Vec<(Time, Time)>,
    /// Share of the packets of which one bit is flipped.
    corrupt: Share,
    /// Share of the packets that arrive twice.
    duplicate: Share,
    /// Share of the packets that others overtake.
    reorder: Share,
    /// How late a packet is at most that others overtake, or that comes again.
    reorder_delay: Time,
    /// Most delay that each packet may have beside `delay`; order is kept.
    jitter: Time,
    /// Share of the packets that are marked as by a congested router.
    mark: Share,
}

/// Kind of an application's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AppKind {
    /// Writes without end.
    Bulk,
    /// Writes `bytes` and closes.
    Transfer,
    /// Writes a request, waits for the response, and repeats.
    RequestResponse,
    /// Writes bursts with pauses between them.
    OnOff,
    /// Writes a message in every interval.
    Paced,
    /// Sends a UDP datagram in every interval.
    Udp,
    /// Writes bulk and urgent messages on one connection.
    Mixed,
}

/// Way in which the clients of a host wait for their sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriterKind {
    /// A thread per connection.
    #[default]
    Blocking,
    /// One thread that waits for all of them, edge-triggered.
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
            /// The kind of their traffic.
            pub kind: AppKind,
            /// The host that connects and sends.
            pub from: Name,
            /// The host that listens.
            pub to: Name,
            /// Number of connections.
            #[serde(default = "one_flow")]
            pub count: u32,
            /// Time at which the first begins, from the start of the world.
            #[serde(default)]
            pub start: Option<Time>,
            /// Time within which the others begin at random after it.
            #[serde(default)]
            pub stagger: Option<Time>,
            /// Time at which they stop, from the start of the world.
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
    /// Bytes of the whole transfer.
    bytes: Size, for Transfer;
    /// Bytes of one write at most.
    write: Size, for Bulk | Transfer;
    /// Bytes of a request.
    request: Size, for RequestResponse;
    /// Bytes of a response; with a barrier, of all responses to one query together.
    response: Size, for RequestResponse;
    /// Time from a response to the next request.
    think: Time, for RequestResponse;
    /// The next requests of all clients wait for the last response to any of them: one query of
    /// many servers. Latencies are those of whole queries then.
    barrier: bool, for RequestResponse;
    /// `SO_MAX_PACING_RATE` of the servers.
    response_rate: Speed, for RequestResponse;
    /// Mean bytes of a burst.
    burst: Size, for OnOff;
    /// Mean pause between two bursts.
    off: Time, for OnOff;
    /// Bytes of one message. A datagram has 8 or more, which say when it was due.
    message: Size, for Paced | Udp;
    /// Time between two messages.
    interval: Time, for Paced | Udp | Mixed;
    /// Bytes of an urgent message.
    urgent: Size, for Mixed;
    /// Bytes of a bulk frame.
    frame: Size, for Mixed;
    /// How the clients wait for their sockets.
    writer: WriterKind, for Bulk | Transfer | RequestResponse | OnOff | Paced | Mixed;
    /// The servers read no faster than this.
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

/// A change of a link, or of the settings of a host.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventSpec {
    /// Time at which the change happens, from the start of the world.
    pub at: Time,
    /// The host whose sysctls are set.
    pub host: Option<Name>,
    /// Sysctls by their names, for connections that are open too.
    #[serde(default)]
    pub sysctl: BTreeMap<Name, toml::Value>,
    /// The link that changes.
    pub link: Option<Name>,
    /// End from which on the link changes; both by default.
    pub from: Option<Name>,
    /// The new rate.
    pub rate: Option<Speed>,
    /// The new propagation delay.
    pub delay: Option<Time>,
    /// The new share of packets lost at random.
    pub loss: Option<Share>,
    /// Whether the link loses everything that comes from then on. What a queue that decides at
    /// arrival has taken still arrives.
    pub down: Option<bool>,
}

/// A named setting of several parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Name of the column.
    pub name: Name,
    /// Parameters and their values, as in a sweep.
    #[serde(default)]
    pub set: BTreeMap<String, toml::Value>,
}

/// A figure that is shown for each column.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowSpec {
    /// Description of the figure in words, with its unit.
    pub what: String,
    /// The name of the figure.
    pub figure: Name,
    /// Factor by which the figure is multiplied when it is shown.
    #[serde(default)]
    pub scale: Option<f64>,
    /// Digits behind the point.
    #[serde(default)]
    pub digits: usize,
    /// Published measurements.
    #[serde(default)]
    pub published: Vec<Published>,
}

impl RowSpec {
    pub(super) fn scale(&self) -> f64 {
        self.scale.unwrap_or(1.0)
    }
}

/// Published measurement.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Values of the sweep for which it holds.
    #[serde(default)]
    pub when: BTreeMap<Name, toml::Value>,
    /// Values by the columns named as published; empty if nothing was measured.
    pub values: Vec<String>,
    /// Reason why the runs differ, if they do: what follows "because".
    #[serde(default)]
    pub why: Option<String>,
}

/// Expectation about a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// Text in plain words, where `{}` is the value. By default it is the figure's name and where
    /// it holds.
    ///
    /// An expectation with a text needs no bounds: it only tells the value then.
    #[serde(default)]
    pub says: Option<String>,
    /// Factor by which the figure is multiplied when it is told.
    #[serde(default)]
    pub scale: Option<f64>,
    /// The name of the figure.
    pub figure: Name,
    /// Lower bound of the figure.
    pub at_least: Option<f64>,
    /// Upper bound of the figure.
    pub at_most: Option<f64>,
    /// Values of the sweep for which it must hold; all runs by default.
    #[serde(default)]
    pub when: BTreeMap<Name, toml::Value>,
    /// Values that select the run by whose figure this figure is divided.
    #[serde(default)]
    pub relative_to: BTreeMap<Name, toml::Value>,
    /// Values that select the run whose figure is subtracted.
    #[serde(default)]
    pub more_than: BTreeMap<Name, toml::Value>,
}

impl Scenario {
    /// Returns the time between two samples.
    pub fn sample(&self) -> Nanos {
        let default = Nanos((self.duration.0.0 / 1000).max(1));
        self.sample.map_or(default, |Time(sample)| sample)
    }
}
