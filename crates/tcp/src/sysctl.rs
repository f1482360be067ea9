//! Settings by name: one table of every field of [`Config`] with Linux's name, unit and range, and
//! with what a change acts on.

use crate::config::{
    BufferSizes, Config, HyStartRule, MemoryPages, PortRange, SmallQueueRule, TsoBonus, TsoDefer,
};
use core::fmt;
use core::str::FromStr;
use thiserror::Error;

/// The controller of connections that choose none.
const CONGESTION_CONTROL: &str = "net.ipv4.tcp_congestion_control";

/// The names of all congestion controllers: read, not set.
const AVAILABLE_CONGESTION_CONTROL: &str = "net.ipv4.tcp_available_congestion_control";

/// Objects on which a change of a sysctl acts while the stack runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActsOn {
    /// Open connections, when they next send, receive or time out; and new ones.
    OpenConnections,
    /// Connections that open from then on.
    NewConnections,
    /// Listeners that exist, from the next segment or timeout of a half-open connection on.
    OpenListeners,
    /// Later calls of `listen`.
    NewListeners,
    /// Later calls that set socket options.
    LaterOptions,
    /// The host as a whole, at once.
    Host,
}

impl fmt::Display for ActsOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenConnections => "open connections",
            Self::NewConnections => "new connections",
            Self::OpenListeners => "open listeners",
            Self::NewListeners => "later calls of `listen`",
            Self::LaterOptions => "later socket options",
            Self::Host => "the host, at once",
        })
    }
}

/// Sysctl, as a row of the table of all settings.
#[derive(Debug)]
#[non_exhaustive]
pub struct Sysctl {
    /// The name, as in `net.ipv4.tcp_sack`.
    pub name: &'static str,
    /// The unit of its values; empty for switches, names and plain numbers.
    pub unit: &'static str,
    /// Description of its values.
    pub values: &'static str,
    /// Objects on which a change acts while the stack runs.
    pub acts_on: ActsOn,
    /// Description of what it does.
    pub about: &'static str,
    get: fn(&Config) -> String,
    /// `None` if the text is not what is expected; then nothing has changed.
    set: fn(&mut Config, &str) -> Option<()>,
}

/// Error of reading or setting a sysctl.
#[derive(Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SysctlError {
    /// There is no sysctl of this name.
    #[error("unknown sysctl {name}{hint}", name = .0, hint = hint(.0))]
    Unknown(String),
    /// The sysctl can only be read.
    #[error("{0} can only be read")]
    ReadOnly(String),
    /// The value cannot be parsed or is out of range.
    #[error("{name}: {value:?} is not {expected}")]
    Value {
        /// Name of the sysctl.
        name: String,
        /// The value that was given.
        value: String,
        /// What it should have been.
        expected: String,
    },
}

crate::debug_as_display!(SysctlError);

/// What a kind of value should look like.
macro_rules! expected {
    (int $low:literal $high:literal) => {
        concat!("an integer from ", $low, " to ", $high)
    };
    (switch) => {
        "0 or 1"
    };
    (sizes) => {
        "three sizes in bytes, min default max, each from 1 to 2147483647"
    };
    (pages) => {
        "three numbers of pages, low pressure high, each from 1 to 2147483647 and in this order"
    };
    (bonus) => {
        "off, linux or bounded"
    };
    (rule) => {
        "fixed or rate"
    };
    (hystart) => {
        "off, linux or rfc9406"
    };
    (defer) => {
        "next_ack or half_rtt"
    };
    (controller) => {
        "the name of a congestion controller"
    };
    (ports) => {
        "two ports, low high, from 1 to 65535 and in this order"
    };
}

/// Makes the table, and fails to compile when a field of [`Config`] is missing from it or
/// appears twice.
macro_rules! sysctls {
    ($(
        $name:literal $field:ident: $kind:ident $($low:literal..$high:literal)?,
        $unit:literal, $acts_on:ident, $about:literal;
    )+) => {
        const SYSCTLS: &[Sysctl] = &[$(Sysctl {
            name: $name,
            unit: $unit,
            values: expected!($kind $($low $high)?),
            acts_on: ActsOn::$acts_on,
            about: $about,
            get: |config| show::$kind(&config.$field),
            set: |config, text| {
                config.$field = parse::$kind(text $(, $low, $high)?)?;
                Some(())
            },
        },)+];

        const _: fn(&Config) = |config| {
            let Config { $($field: _,)+ controllers: _ } = config;
        };
    };
}

// Ranges are those of Linux where it has one; times are bounded so that no product overflows.
sysctls! {
    "net.core.rmem_max" rmem_max: int 2304..2147483647, "bytes", LaterOptions,
        "The most that `SO_RCVBUF` may ask for.";
    "net.core.somaxconn" somaxconn: int 0..2147483647, "connections", NewListeners,
        "The most that may wait to be accepted, whatever `listen` asked for.";
    "net.core.wmem_max" wmem_max: int 4608..2147483647, "bytes", LaterOptions,
        "The most that `SO_SNDBUF` may ask for.";
    "net.ipv4.icmp_echo_ignore_all" icmp_echo_ignore_all: switch, "", Host,
        "Echo requests (ping) of IPv4 are not answered.";
    "net.ipv4.icmp_msgs_burst" icmp_msgs_burst: int 0..2147483647, "messages", Host,
        "ICMP errors of the host that may leave at once after a pause.";
    "net.ipv4.icmp_msgs_per_sec" icmp_msgs_per_sec: int 0..2147483647, "messages", Host,
        "ICMP errors of the host per second, of both families.";
    "net.ipv4.icmp_ratelimit" icmp_ratelimit: int 0..2147483647, "milliseconds", Host,
        "The time between two ICMP errors to one IPv4 address, after a burst of 6; 0 is no limit.";
    "net.ipv4.ip_default_ttl" ip_default_ttl: int 1..255, "hops", Host,
        "The TTL of IPv4 packets, unless the socket's `IP_TTL` says another.";
    "net.ipv4.ip_local_port_range" ip_local_port_range: ports, "ports", Host,
        "Where the stack chooses ports from, for TCP and UDP.";
    "net.ipv4.ipfrag_high_thresh" ipfrag_high_thresh: int 0..2147483647, "bytes", Host,
        "Memory for incomplete datagrams, of IPv4 and IPv6 together.";
    "net.ipv4.ipfrag_time" ipfrag_time: int 0..2147483, "seconds", Host,
        "How long a datagram may stay incomplete; those that wait already, too.";
    "net.ipv4.tcp_abort_on_overflow" tcp_abort_on_overflow: switch, "", OpenListeners,
        "A full accept queue answers with a reset, not with silence.";
    "net.ipv4.tcp_autocorking" tcp_autocorking: switch, "", OpenConnections,
        "A small write waits while an earlier frame is below TCP.";
    "net.ipv4.tcp_congestion_control" tcp_congestion_control: controller, "", NewConnections,
        "The controller of connections that choose none with `TCP_CONGESTION`.";
    "net.ipv4.tcp_dsack" tcp_dsack: switch, "", OpenConnections,
        "Data that arrives twice is reported (RFC 2883).";
    "net.ipv4.tcp_early_retrans" tcp_early_retrans: int 0..4, "", OpenConnections,
        "3 and 4 turn tail loss probes on; every other value turns them off.";
    "net.ipv4.tcp_ecn" tcp_ecn: int 0..2, "", NewConnections,
        "0: no ECN. 1: ask for it and accept it. 2: accept it.";
    "net.ipv4.tcp_ecn_fallback" tcp_ecn_fallback: switch, "", OpenConnections,
        "A SYN that is sent again does not ask for ECN.";
    "net.ipv4.tcp_fin_timeout" tcp_fin_timeout: int 0..2147483, "seconds", OpenConnections,
        "How long a closed connection waits for its peer's FIN; 3.5 timeouts at least.";
    "net.ipv4.tcp_frto" tcp_frto: switch, "", OpenConnections,
        "After a timeout, new data tells whether it was spurious (RFC 5682).";
    "net.ipv4.tcp_invalid_ratelimit" tcp_invalid_ratelimit: int 0..2147483647, "milliseconds", OpenConnections,
        "The least time between two answers to invalid segments.";
    "net.ipv4.tcp_keepalive_intvl" tcp_keepalive_intvl: int 1..2147483, "seconds", OpenConnections,
        "The time between two keepalive probes.";
    "net.ipv4.tcp_keepalive_probes" tcp_keepalive_probes: int 0..255, "probes", OpenConnections,
        "Probes without an answer before the connection is given up.";
    "net.ipv4.tcp_keepalive_time" tcp_keepalive_time: int 1..2147483, "seconds", OpenConnections,
        "Silence before the first keepalive probe. A timer that runs already ends first.";
    "net.ipv4.tcp_limit_output_bytes" tcp_limit_output_bytes: int 0..2147483647, "bytes", OpenConnections,
        "The most that one connection has below TCP.";
    "net.ipv4.tcp_max_orphans" tcp_max_orphans: int 0..2147483647, "connections", Host,
        "Connections without an application whose end nobody has acknowledged. More are reset.";
    "net.ipv4.tcp_max_reordering" tcp_max_reordering: int 1..2147483647, "segments", OpenConnections,
        "The largest degree of reordering that a connection learns.";
    "net.ipv4.tcp_max_syn_backlog" tcp_max_syn_backlog: int 0..2147483647, "connections", OpenListeners,
        "Half-open connections of one listener.";
    "net.ipv4.tcp_max_tw_buckets" tcp_max_tw_buckets: int 0..2147483647, "connections", Host,
        "Connections in TIME-WAIT. Beyond it the oldest gives way; 0 keeps none.";
    "net.ipv4.tcp_mem" tcp_mem: pages, "pages of 4096 bytes", Host,
        "Memory of all connections: where pressure ends, where it begins, the most.";
    "net.ipv4.tcp_min_snd_mss" tcp_min_snd_mss: int 48..65535, "bytes", NewConnections,
        "The least MSS that is believed of a peer.";
    "net.ipv4.tcp_min_tso_segs" tcp_min_tso_segs: int 1..255, "segments", OpenConnections,
        "The least size of a frame that has enough data.";
    "net.ipv4.tcp_moderate_rcvbuf" tcp_moderate_rcvbuf: switch, "", OpenConnections,
        "The receive buffer grows with the reader.";
    "net.ipv4.tcp_notsent_lowat" tcp_notsent_lowat: int 0..4294967295, "bytes", OpenConnections,
        "Unsent bytes at which a writer is refused; 0 refuses every write; 4294967295 is off.";
    "net.ipv4.tcp_orphan_retries" tcp_orphan_retries: int 0..255, "timeouts", OpenConnections,
        "Timeouts after `close` before the connection is given up; 0 means 8.";
    "net.ipv4.tcp_pacing_ca_ratio" tcp_pacing_ca_ratio: int 0..1000, "percent", OpenConnections,
        "The pacing rate in congestion avoidance, of the window per round trip.";
    "net.ipv4.tcp_pacing_ss_ratio" tcp_pacing_ss_ratio: int 0..1000, "percent", OpenConnections,
        "The pacing rate in slow start, of the window per round trip.";
    "net.ipv4.tcp_reordering" tcp_reordering: int 1..2147483647, "segments", OpenConnections,
        "The degree of reordering at the start. A timeout brings an open connection back to it.";
    "net.ipv4.tcp_retrans_collapse" tcp_retrans_collapse: switch, "", OpenConnections,
        "Short segments that are lost are sent again as one.";
    "net.ipv4.tcp_retries2" tcp_retries2: int 0..255, "timeouts", OpenConnections,
        "Timeouts, doubled from 200 ms, before an open connection is given up.";
    "net.ipv4.tcp_rmem" tcp_rmem: sizes, "bytes", OpenConnections,
        "The receive buffer: least, at the start, most. The start is for new connections.";
    "net.ipv4.tcp_rto_max_ms" tcp_rto_max_ms: int 1000..120000, "milliseconds", NewConnections,
        "The longest retransmission timeout.";
    "net.ipv4.tcp_rto_min_us" tcp_rto_min_us: int 1..2147483647, "microseconds", NewConnections,
        "The shortest retransmission timeout, without the round trip.";
    "net.ipv4.tcp_sack" tcp_sack: switch, "", NewConnections,
        "Selective acknowledgments are offered (RFC 2018).";
    "net.ipv4.tcp_slow_start_after_idle" tcp_slow_start_after_idle: switch, "", OpenConnections,
        "The window shrinks while a connection is idle.";
    "net.ipv4.tcp_syn_linear_timeouts" tcp_syn_linear_timeouts: int 0..127, "timeouts", OpenConnections,
        "SYNs sent again after a second each, before timeouts double.";
    "net.ipv4.tcp_syn_retries" tcp_syn_retries: int 1..127, "timeouts", OpenConnections,
        "SYNs sent again with doubled timeouts, after the linear ones.";
    "net.ipv4.tcp_synack_retries" tcp_synack_retries: int 0..255, "timeouts", OpenListeners,
        "SYN-ACKs sent again before a half-open connection is forgotten. Fewer, two at the least, \
         while more than half of `tcp_max_syn_backlog` wait and most of them do not answer.";
    "net.ipv4.tcp_syncookies" tcp_syncookies: int 0..2, "", OpenListeners,
        "SYN cookies. 0: never. 1: when `tcp_max_syn_backlog` is reached. 2: always.";
    "net.ipv4.tcp_timestamps" tcp_timestamps: switch, "", NewConnections,
        "Timestamps are offered (RFC 7323).";
    "net.ipv4.tcp_tso_rtt_log" tcp_tso_rtt_log: int 0..255, "", OpenConnections,
        "The bonus of short paths halves with every 2^n microseconds of round trip.";
    "net.ipv4.tcp_tso_win_divisor" tcp_tso_win_divisor: int 0..255, "", OpenConnections,
        "A frame waits to grow until it is the n-th part of the window.";
    "net.ipv4.tcp_tw_reuse" tcp_tw_reuse: int 0..2, "", Host,
        "`connect` chooses ports in TIME-WAIT, too. 0: never. 1: always. 2: on the loopback.";
    "net.ipv4.tcp_tw_reuse_delay" tcp_tw_reuse_delay: int 1..60000, "milliseconds", Host,
        "The time in TIME-WAIT before `tcp_tw_reuse` allows it.";
    "net.ipv4.tcp_window_scaling" tcp_window_scaling: switch, "", NewConnections,
        "Window scaling is offered (RFC 7323).";
    "net.ipv4.tcp_wmem" tcp_wmem: sizes, "bytes", OpenConnections,
        "The send buffer: least, at the start, most. The start is for new connections.";
    "net.ipv4.udp_mem" udp_mem: pages, "pages of 4096 bytes", Host,
        "Memory of UDP sockets: above the first for those with little, no meaning, the most.";
    "net.ipv4.udp_rmem_min" udp_rmem_min: int 1..2147483647, "bytes", Host,
        "What a UDP socket may hold above the first bound of `udp_mem`.";
    "net.ipv6.icmp.echo_ignore_all" icmp6_echo_ignore_all: switch, "", Host,
        "Echo requests (ping) of IPv6 are not answered.";
    "net.ipv6.icmp.ratelimit" icmp6_ratelimit: int 0..2147483647, "milliseconds", Host,
        "The time between two ICMP errors to one IPv6 address, after a burst of 6; 0 is no limit.";
    "neap.tcp_internal_pacing" internal_pacing: switch, "", OpenConnections,
        "Connections pace themselves where no qdisc does it.";
    "neap.tcp_pacing_credit" pacing_credit: switch, "", OpenConnections,
        "A late departure shortens the gap behind it: by half, or by what `tcp_pacing_debt_us` lets.";
    "neap.tcp_pacing_debt_us" pacing_debt_us: int 0..1000000, "microseconds", OpenConnections,
        "Lateness of the host that a paced flow makes good at once. It bounds the burst.";
    "neap.tcp_pacing_arrears_us" pacing_arrears_us: int 0..250000, "microseconds", OpenConnections,
        "Lateness above `tcp_pacing_debt_us`, made good by gaps shorter by a quarter.";
    "neap.tcp_pacing_free_segs" pacing_free_segments: int 0..2147483647, "segments", OpenConnections,
        "Segments at the start of a connection that leave back to back.";
    "neap.tcp_reply_ack_us" reply_ack_us: int 0..10000, "microseconds", OpenConnections,
        "Time that an ACK waits for the reply beyond twice what replies take; 0: ACKs leave at once.";
    "neap.tcp_half_cwnd" half_cwnd: switch, "", OpenConnections,
        "A frame takes at most half of the congestion window.";
    "neap.tcp_hystart" hystart: hystart, "", OpenConnections,
        "How CUBIC leaves slow start: HyStart++, Linux's HyStart, or by losses alone.";
    "neap.tcp_late_completions" late_completions: switch, "", OpenConnections,
        "The small-queue limit adapts to devices that complete late.";
    "neap.tcp_skb_overhead" skb_overhead: int 0..65536, "bytes", OpenConnections,
        "What a frame below TCP counts for besides its payload.";
    "neap.tcp_small_queue_cap_paced" small_queue_cap_paced: switch, "", OpenConnections,
        "`tcp_limit_output_bytes` holds for paced connections too.";
    "neap.tcp_small_queue_rule" small_queue_rule: rule, "", OpenConnections,
        "The small-queue limit is `tcp_limit_output_bytes`, or follows the rate below it.";
    "neap.tcp_small_queue_spare" small_queue_spare: int 0..64, "frames", OpenConnections,
        "Frames that may be in flight whatever the small-queue limit says.";
    "neap.tcp_notsent_lowat_us" tcp_notsent_lowat_us: int 0..60000000, "microseconds", OpenConnections,
        "The low-water mark as a time of the pacing rate; 0 is off. The lower mark holds.";
    "neap.tcp_notsent_lowat_half" notsent_lowat_half: switch, "", OpenConnections,
        "A waiting writer is woken below half the low-water mark; off, below all of it.";
    "neap.tcp_small_queues" small_queues: switch, "", OpenConnections,
        "What one connection has below TCP is limited.";
    "neap.tcp_tso_autosizing" tso_autosizing: switch, "", OpenConnections,
        "Frames follow the rate; off, they are as large as they can be.";
    "neap.tcp_tso_at_write" tso_at_write: switch, "", OpenConnections,
        "A frame gets its size when it is written, as before Linux 605ad7f184b6.";
    "neap.tcp_tso_bonus" tso_bonus: bonus, "", OpenConnections,
        "Larger frames on short paths: none, as in Linux, or bounded in time.";
    "neap.tcp_tso_defer" tso_defer: defer, "", OpenConnections,
        "How long a frame waits to grow: by the next ACK, or half a round trip.";
    "neap.tcp_tso_max_usecs" tso_max_usecs: int 1..1000000, "microseconds", OpenConnections,
        "With `neap.tcp_tso_bonus` bounded, the longest time one frame takes at the rate.";
    "neap.timer_slack_ns" timer_slack_ns: int 0..1000000000, "nanoseconds", Host,
        "A timer may wait so long for others, so that one wake-up serves both.";
}

/// From text; `None` if it is not what is expected.
mod parse {
    use super::{
        BufferSizes, FromStr, HyStartRule, MemoryPages, PortRange, SmallQueueRule, TsoBonus,
        TsoDefer,
    };

    pub(super) fn int<T: TryFrom<u32>>(text: &str, low: u32, high: u32) -> Option<T> {
        let value = u32::from_str(text).ok().filter(|value| (low..=high).contains(value))?;
        T::try_from(value).ok()
    }

    pub(super) fn switch(text: &str) -> Option<bool> {
        int::<u8>(text, 0, 1).map(|value| value == 1)
    }

    pub(super) fn sizes(text: &str) -> Option<BufferSizes> {
        let mut values = text.split_whitespace().map(|text| int(text, 1, i32::MAX as u32));
        let mut next = || values.next().flatten();
        let sizes = BufferSizes { min: next()?, default: next()?, max: next()? };
        values.next().is_none().then_some(sizes)
    }

    pub(super) fn pages(text: &str) -> Option<MemoryPages> {
        let BufferSizes { min: low, default: pressure, max: high } = sizes(text)?;
        (low <= pressure && pressure <= high).then_some(MemoryPages { low, pressure, high })
    }

    pub(super) fn bonus(text: &str) -> Option<TsoBonus> {
        match text {
            "off" => Some(TsoBonus::Off),
            "linux" => Some(TsoBonus::Linux),
            "bounded" => Some(TsoBonus::Bounded),
            _ => None,
        }
    }

    pub(super) fn rule(text: &str) -> Option<SmallQueueRule> {
        match text {
            "fixed" => Some(SmallQueueRule::Fixed),
            "rate" => Some(SmallQueueRule::Rate),
            _ => None,
        }
    }

    pub(super) fn hystart(text: &str) -> Option<HyStartRule> {
        match text {
            "off" => Some(HyStartRule::Off),
            "linux" => Some(HyStartRule::Linux),
            "rfc9406" => Some(HyStartRule::Rfc9406),
            _ => None,
        }
    }

    pub(super) fn defer(text: &str) -> Option<TsoDefer> {
        match text {
            "next_ack" => Some(TsoDefer::NextAck),
            "half_rtt" => Some(TsoDefer::HalfRtt),
            _ => None,
        }
    }

    /// Any name: [`Config::set`](super::Config::set) has asked for one that exists.
    pub(super) fn controller(text: &str) -> Option<String> {
        Some(text.into())
    }

    pub(super) fn ports(text: &str) -> Option<PortRange> {
        let mut values = text.split_whitespace().map(|text| int(text, 1, u16::MAX.into()));
        let mut next = || values.next().flatten();
        let range = PortRange { low: next()?, high: next()? };
        (values.next().is_none() && range.low <= range.high).then_some(range)
    }
}

/// To text, in the form that is parsed.
mod show {
    use super::{
        BufferSizes, HyStartRule, MemoryPages, PortRange, SmallQueueRule, TsoBonus, TsoDefer,
    };

    pub(super) fn int(value: &impl ToString) -> String {
        value.to_string()
    }

    pub(super) fn switch(value: &bool) -> String {
        u8::from(*value).to_string()
    }

    /// Separated by tabs, as `/proc/sys` shows them.
    pub(super) fn sizes(BufferSizes { min, default, max }: &BufferSizes) -> String {
        format!("{min}\t{default}\t{max}")
    }

    /// Separated by tabs, as `/proc/sys` shows them.
    pub(super) fn pages(MemoryPages { low, pressure, high }: &MemoryPages) -> String {
        format!("{low}\t{pressure}\t{high}")
    }

    pub(super) fn bonus(value: &TsoBonus) -> String {
        match value {
            TsoBonus::Off => "off".into(),
            TsoBonus::Linux => "linux".into(),
            TsoBonus::Bounded => "bounded".into(),
        }
    }

    pub(super) fn rule(value: &SmallQueueRule) -> String {
        match value {
            SmallQueueRule::Fixed => "fixed".into(),
            SmallQueueRule::Rate => "rate".into(),
        }
    }

    pub(super) fn hystart(value: &HyStartRule) -> String {
        match value {
            HyStartRule::Off => "off".into(),
            HyStartRule::Linux => "linux".into(),
            HyStartRule::Rfc9406 => "rfc9406".into(),
        }
    }

    pub(super) fn defer(value: &TsoDefer) -> String {
        match value {
            TsoDefer::NextAck => "next_ack".into(),
            TsoDefer::HalfRtt => "half_rtt".into(),
        }
    }

    pub(super) fn controller(value: &str) -> String {
        value.into()
    }

    /// Separated by a tab, as `/proc/sys` shows them.
    pub(super) fn ports(PortRange { low, high }: &PortRange) -> String {
        format!("{low}\t{high}")
    }
}

impl Config {
    /// Sets the sysctl `name`, such as `net.ipv4.tcp_sack`, to `value` in Linux's units. White
    /// space around the value is ignored.
    ///
    /// # Errors
    /// [`SysctlError::Unknown`] if there is no such name, [`SysctlError::Value`] if the value
    /// cannot be parsed or is out of range, [`SysctlError::ReadOnly`] for
    /// `net.ipv4.tcp_available_congestion_control`. Nothing has changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SysctlError> {
        if name == AVAILABLE_CONGESTION_CONTROL {
            return Err(SysctlError::ReadOnly(name.into()));
        }
        let sysctl = find(name).ok_or_else(|| SysctlError::Unknown(name.into()))?;
        let error = |expected: String| {
            Err(SysctlError::Value { name: name.into(), value: value.into(), expected })
        };
        if name == CONGESTION_CONTROL
            && let Err(unknown) = self.controllers.find(value.trim())
        {
            return error(format!("one of {}", unknown.available));
        }
        match (sysctl.set)(self, value.trim()) {
            Some(()) => Ok(()),
            None => error(sysctl.values.to_owned()),
        }
    }

    /// Returns the value of the sysctl `name` as text that [`set`](Self::set) takes; `None` if
    /// there is no such name.
    ///
    /// `net.ipv4.tcp_available_congestion_control` gives the names of the controllers.
    pub fn get(&self, name: &str) -> Option<String> {
        if name == AVAILABLE_CONGESTION_CONTROL {
            return Some(self.controllers.names().collect::<Vec<_>>().join(" "));
        }
        find(name).map(|sysctl| (sysctl.get)(self))
    }

    /// All sysctls that can be set.
    pub fn sysctls() -> &'static [Sysctl] {
        SYSCTLS
    }
}

/// Linear: settings are not read by name on any path that matters.
fn find(name: &str) -> Option<&'static Sysctl> {
    SYSCTLS.iter().find(|sysctl| sysctl.name == name)
}

/// What to do about an unknown name: the name that was meant, if one is near.
fn hint(name: &str) -> String {
    let dotted = name.trim().replace('/', ".");
    let distance = |known: &&Sysctl| {
        // A name without its directory is as near as can be.
        let is_tail = known.name.rsplit('.').next() == Some(&*dotted);
        if is_tail { 0 } else { strsim::osa_distance(known.name, &dotted) }
    };
    let nearest = SYSCTLS.iter().map(|known| (distance(&known), known.name)).min();
    match nearest {
        Some((0..=FARTHEST, known)) => format!(": did you mean {known}?"),
        _ => String::new(),
    }
}

/// Most changed letters between a name and the one that was meant.
const FARTHEST: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn names() -> impl Iterator<Item = &'static str> {
        Config::sysctls().iter().map(|sysctl| sysctl.name)
    }

    #[test]
    fn an_unknown_name_says_which_one_was_meant() {
        for typo in ["net.ipv4.tcp_sac", "net/ipv4/tcp_sack", "tcp_sack", " net.ipv4.tcp_sack "] {
            let error = Config::default().set(typo, "1").expect_err("unknown").to_string();
            let expected = format!("unknown sysctl {typo}: did you mean net.ipv4.tcp_sack?");
            assert_eq!(error, expected);
        }
        let error = SysctlError::Unknown("vm.swappiness".into()).to_string();
        assert_eq!(error, "unknown sysctl vm.swappiness");
    }

    #[test]
    fn names_are_unique() {
        let unique: BTreeSet<_> = names().collect();
        assert_eq!(unique.len(), names().count());
    }

    #[test]
    fn every_default_survives_being_set_and_refuses_nonsense() {
        let mut config = Config::default();
        for name in names() {
            let value = config.get(name).expect("a listed name");
            assert_eq!(config.set(name, &format!(" {value}\n")), Ok(()), "{name}");
            for nonsense in ["", "-1", "1 0", "4294967296", "nonsense", "1 2 3 4", "0 0 0"] {
                assert!(config.set(name, nonsense).is_err(), "{name}={nonsense:?}");
            }
        }
        assert_eq!(config, Config::default());
    }

    #[test]
    fn every_field_is_changed_by_its_own_name_alone() {
        for name in names() {
            let default = Config::default();
            let candidates = [
                "0", "1", "4", "1000", "5000", "reno", "linux", "fixed", "half_rtt", "1 2 3", "1 2",
            ];
            let changed = candidates.iter().find_map(|value| {
                let mut config = Config::default();
                (config.set(name, value).is_ok() && config != default).then_some(config)
            });
            let changed = changed.unwrap_or_else(|| panic!("{name} cannot be changed"));
            let differing = names().filter(|other| default.get(other) != changed.get(other));
            assert_eq!(differing.collect::<Vec<_>>(), [name]);
        }
    }

    #[test]
    fn sizes_are_separated_by_white_space() {
        let mut config = Config::default();
        config.set("net.ipv4.tcp_wmem", "4096\t16384  4194304").expect("three sizes");
        assert_eq!(config.tcp_wmem, BufferSizes { min: 4096, default: 16384, max: 4 << 20 });
        assert_eq!(config.get("net.ipv4.tcp_wmem").as_deref(), Some("4096\t16384\t4194304"));
    }

    #[test]
    fn the_list_of_controllers_is_read_and_not_set() {
        let mut config = Config::default();
        let names = config.get(AVAILABLE_CONGESTION_CONTROL).expect("it is there");
        assert!(names.split(' ').any(|name| name == config.tcp_congestion_control));
        for name in names.split(' ') {
            assert_eq!(config.set("net.ipv4.tcp_congestion_control", name), Ok(()));
        }
        let refused = config.set(AVAILABLE_CONGESTION_CONTROL, "cubic");
        assert_eq!(refused, Err(SysctlError::ReadOnly(AVAILABLE_CONGESTION_CONTROL.into())));
    }

    #[test]
    fn errors_say_what_is_expected() {
        let mut config = Config::default();
        let error = |result: Result<(), SysctlError>| result.expect_err("a bad value").to_string();
        assert_eq!(
            error(config.set("net.ipv4.tcp_nothing", "1")),
            "unknown sysctl net.ipv4.tcp_nothing"
        );
        assert_eq!(
            error(config.set("net.ipv4.tcp_min_tso_segs", "0")),
            "net.ipv4.tcp_min_tso_segs: \"0\" is not an integer from 1 to 255"
        );
        assert_eq!(
            error(config.set("net.ipv4.tcp_congestion_control", "vegas")),
            "net.ipv4.tcp_congestion_control: \"vegas\" is not one of reno, cubic, bbr, bbr3"
        );
    }
}
