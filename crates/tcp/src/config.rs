//! Every constant of a connection, by its sysctl name, with Linux's unit and default.

pub use crate::congestion::{Controllers, FrameRule, HyStartRule};

use thiserror::Error;

/// Memory that one buffer costs beside its payload (`SKB_TRUESIZE` of an empty buffer in Linux).
pub const BUFFER_OVERHEAD: u32 = 896;

/// `min default max` of a buffer, in bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    /// Granted even under memory pressure.
    pub min: u32,
    /// At the start.
    pub default: u32,
    /// Autotuning never goes beyond.
    pub max: u32,
}

/// The ports that the stack chooses from, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The lowest.
    pub low: u16,
    /// The highest.
    pub high: u16,
}

/// How the round-trip bonus of autosizing is bounded (Linux 65466904b015, and its price).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TsoBonus {
    /// None, as before it.
    Off,
    /// As Linux since 2022: up to a full super-frame on any short path.
    Linux,
    /// The frame takes no longer to leave than `neap.tcp_tso_max_usecs`.
    Bounded,
}

/// What the small-queue limit is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallQueueRule {
    /// `tcp_limit_output_bytes`, whatever the rate (Linux 46d3ceabd8d9, 2012).
    Fixed,
    /// Two frames or a time's worth of the rate, capped (Linux 605ad7f184b6, 2014).
    Rate,
}

/// When the next ACK is too far away to wait for it with a frame that could grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TsoDefer {
    /// When it is expected later than half a round trip or a millisecond from now (Linux
    /// 295ce1eb36ae, 2025).
    NextAck,
    /// When less than half a round trip has passed since the oldest frame left (before it).
    HalfRtt,
}

/// Settings of a host and its connections: sysctls with Linux's names, units and defaults, and rule
/// switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `net.ipv4.tcp_limit_output_bytes`: hard cap of the small-queue limit, bytes. `u32::MAX` with
    /// [`small_queues`](Self::small_queues) off.
    pub tcp_limit_output_bytes: u32,
    /// `net.ipv4.tcp_min_tso_segs`: segments per frame at the least.
    pub tcp_min_tso_segs: u32,
    /// `net.ipv4.tcp_tso_rtt_log`: the bonus halves with every 2^n microseconds of minimum RTT.
    pub tcp_tso_rtt_log: u32,
    /// `net.ipv4.tcp_tso_win_divisor`: share of the window that one deferral may wait for.
    pub tcp_tso_win_divisor: u32,
    /// `net.ipv4.tcp_autocorking`.
    pub tcp_autocorking: bool,
    /// `net.ipv4.tcp_wmem`.
    pub tcp_wmem: BufferSizes,
    /// `net.ipv4.tcp_rmem`.
    pub tcp_rmem: BufferSizes,
    /// `net.ipv4.tcp_moderate_rcvbuf`: receive-buffer autotuning.
    pub tcp_moderate_rcvbuf: bool,
    /// `net.ipv4.tcp_window_scaling`.
    pub tcp_window_scaling: bool,
    /// `net.ipv4.tcp_timestamps`.
    pub tcp_timestamps: bool,
    /// `net.ipv4.tcp_sack`.
    pub tcp_sack: bool,
    /// `net.ipv4.tcp_dsack`.
    pub tcp_dsack: bool,
    /// `net.ipv4.tcp_ecn`: 0 never, 1 ask and accept, 2 accept only.
    pub tcp_ecn: u8,
    /// `net.ipv4.tcp_ecn_fallback`: a SYN that is sent again does not ask for ECN (RFC 3168
    /// section 6.1.1.1).
    pub tcp_ecn_fallback: bool,
    /// `net.ipv4.tcp_frto`.
    pub tcp_frto: bool,
    /// `net.ipv4.tcp_early_retrans`: tail loss probes when not 0.
    pub tcp_early_retrans: u8,
    /// `net.ipv4.tcp_reordering`: initial reordering degree in segments.
    pub tcp_reordering: u32,
    /// `net.ipv4.tcp_max_reordering`.
    pub tcp_max_reordering: u32,
    /// `net.ipv4.tcp_slow_start_after_idle`.
    pub tcp_slow_start_after_idle: bool,
    /// `net.ipv4.tcp_pacing_ss_ratio`: percent.
    pub tcp_pacing_ss_ratio: u32,
    /// `net.ipv4.tcp_pacing_ca_ratio`: percent.
    pub tcp_pacing_ca_ratio: u32,
    /// `neap.tcp_internal_pacing`: connections pace themselves where no qdisc does it.
    pub internal_pacing: bool,
    /// `neap.tcp_pacing_credit`: a late departure shortens the gap behind it, by half at the most.
    pub pacing_credit: bool,
    /// `neap.tcp_pacing_free_segs`: segments at the start of a connection that leave back to back.
    pub pacing_free_segments: u32,
    /// `neap.timer_slack_ns`: timers of a shard may wait so long for others, nanoseconds: twice
    /// the `timer_slack` of `fq`, since less than half a gap late costs no rate.
    pub timer_slack_ns: u32,
    /// `net.ipv4.tcp_notsent_lowat`: bytes; `u32::MAX` is off.
    pub tcp_notsent_lowat: u32,
    /// `neap.tcp_notsent_lowat_us`: the mark as microseconds of a connection's pacing rate, at
    /// least two frames; 0 is off. The lower of the two marks holds.
    pub tcp_notsent_lowat_us: u32,
    /// `neap.tcp_notsent_lowat_half`: a waiting writer is woken below half the mark (Linux
    /// a74f0fa082b7); off, below the mark itself, so by every ACK.
    pub notsent_lowat_half: bool,
    /// `net.ipv4.tcp_syn_retries`: SYNs sent again with doubled timeouts, after the linear ones.
    pub tcp_syn_retries: u32,
    /// `net.ipv4.tcp_syn_linear_timeouts`: SYNs sent again after a second each before timeouts
    /// double.
    pub tcp_syn_linear_timeouts: u32,
    /// `net.ipv4.tcp_synack_retries`.
    pub tcp_synack_retries: u32,
    /// `net.ipv4.tcp_retries2`: timeouts of an established connection before it is given up.
    pub tcp_retries2: u32,
    /// `net.ipv4.tcp_orphan_retries`: the same after close; 0 means 8.
    pub tcp_orphan_retries: u32,
    /// `net.ipv4.tcp_fin_timeout`: seconds in FIN-WAIT-2 after close.
    pub tcp_fin_timeout: u32,
    /// `net.ipv4.tcp_keepalive_time`: seconds.
    pub tcp_keepalive_time: u32,
    /// `net.ipv4.tcp_keepalive_intvl`: seconds.
    pub tcp_keepalive_intvl: u32,
    /// `net.ipv4.tcp_keepalive_probes`.
    pub tcp_keepalive_probes: u32,
    /// `net.ipv4.tcp_rto_min_us`: microseconds.
    pub tcp_rto_min_us: u32,
    /// `net.ipv4.tcp_rto_max_ms`: milliseconds.
    pub tcp_rto_max_ms: u32,
    /// `net.ipv4.tcp_invalid_ratelimit`: milliseconds between challenge ACKs of one connection.
    pub tcp_invalid_ratelimit: u32,
    /// `net.ipv4.tcp_syncookies`: 0 never, 1 when the SYN queue overflows, 2 always.
    pub tcp_syncookies: u8,
    /// `net.ipv4.tcp_max_syn_backlog`: half-open connections per listener.
    pub tcp_max_syn_backlog: u32,
    /// `net.core.somaxconn`: accept queue of a listener at the most.
    pub somaxconn: u32,
    /// `net.core.wmem_max`: the most that `SO_SNDBUF` may ask, bytes.
    pub wmem_max: u32,
    /// `net.core.rmem_max`: the most that `SO_RCVBUF` may ask, bytes.
    pub rmem_max: u32,
    /// `net.ipv4.tcp_congestion_control`.
    pub tcp_congestion_control: String,
    /// `net.ipv4.tcp_abort_on_overflow`: reset instead of silence when the accept queue is full.
    pub tcp_abort_on_overflow: bool,
    /// `net.ipv4.tcp_base_mss` floor for a peer's MSS option: `net.ipv4.tcp_min_snd_mss`.
    pub tcp_min_snd_mss: u32,
    /// `neap.tcp_small_queues`: the small-queue check, on unless an experiment turns it off.
    pub small_queues: bool,
    /// `neap.tcp_small_queue_rule`: `fixed` or `rate`.
    pub small_queue_rule: SmallQueueRule,
    /// `neap.tcp_small_queue_spare`: frames that may be unacknowledged whatever is below, the one
    /// that leaves included.
    pub small_queue_spare: u32,
    /// `neap.tcp_small_queue_cap_paced`: `tcp_limit_output_bytes` holds for paced flows too.
    pub small_queue_cap_paced: bool,
    /// `neap.tcp_late_completions`: the limit adapts to devices that complete late.
    pub late_completions: bool,
    /// `neap.tcp_skb_overhead`: bytes that a frame below counts beside its payload.
    pub skb_overhead: u32,
    /// `neap.tcp_half_cwnd`: a frame takes at most half of the window.
    pub half_cwnd: bool,
    /// `neap.tcp_tso_defer`: `next_ack` or `half_rtt`.
    pub tso_defer: TsoDefer,
    /// `neap.tcp_hystart`: `off`, `linux` or `rfc9406`; what CUBIC does in slow start.
    pub hystart: HyStartRule,
    /// `neap.tcp_tso_autosizing`: sizing at transmit; off sends super-frames as large as possible.
    pub tso_autosizing: bool,
    /// `neap.tcp_tso_at_write`: a buffer gets its size when it is written, for half a millisecond
    /// of the pacing rate of that moment, and leaves as it is (`tcp_xmit_size_goal` before
    /// 605ad7f184b6).
    pub tso_at_write: bool,
    /// `neap.tcp_tso_bonus`: `off`, `linux` or `bounded`.
    pub tso_bonus: TsoBonus,
    /// `neap.tcp_tso_max_usecs`: with the bounded bonus, the longest time in microseconds that one
    /// frame may take at the flow's rate; the small-queue limit is twice that. Where the round trip
    /// is 32 ms or more, only the millisecond of the pacing rate bounds frames.
    pub tso_max_usecs: u32,
    /// `net.ipv4.ip_local_port_range`: where ports are chosen from, of TCP and UDP.
    pub ip_local_port_range: PortRange,
    /// `net.ipv4.tcp_max_tw_buckets`: connections in TIME-WAIT at the most; 0 keeps none.
    pub tcp_max_tw_buckets: u32,
    /// `net.ipv4.ipfrag_high_thresh`: memory of incomplete datagrams of both families, bytes.
    pub ipfrag_high_thresh: u32,
    /// `net.ipv4.ipfrag_time`: seconds that a datagram may stay incomplete.
    pub ipfrag_time: u32,
    /// The congestion controllers that connections choose from; no sysctl.
    pub controllers: Controllers,
}

impl Config {
    /// How large frames are: bounded in time, or as in Linux.
    pub fn frame_rule(&self) -> FrameRule {
        match self.tso_bonus {
            TsoBonus::Bounded => FrameRule::Bounded { usecs: self.tso_max_usecs },
            TsoBonus::Off | TsoBonus::Linux => FrameRule::Linux,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tcp_limit_output_bytes: 4 << 20,
            tcp_min_tso_segs: 2,
            tcp_tso_rtt_log: 9,
            tcp_tso_win_divisor: 3,
            tcp_autocorking: true,
            tcp_wmem: BufferSizes { min: 4096, default: 16384, max: 4 << 20 },
            tcp_rmem: BufferSizes { min: 4096, default: 131_072, max: 6 << 20 },
            tcp_moderate_rcvbuf: true,
            tcp_window_scaling: true,
            tcp_timestamps: true,
            tcp_sack: true,
            tcp_dsack: true,
            tcp_ecn: 2,
            tcp_ecn_fallback: true,
            tcp_frto: true,
            tcp_early_retrans: 3,
            tcp_reordering: 3,
            tcp_max_reordering: 300,
            tcp_slow_start_after_idle: true,
            tcp_pacing_ss_ratio: 200,
            tcp_pacing_ca_ratio: 120,
            internal_pacing: true,
            pacing_credit: true,
            pacing_free_segments: 10,
            timer_slack_ns: 20_000,
            tcp_notsent_lowat: u32::MAX,
            tcp_notsent_lowat_us: 0,
            notsent_lowat_half: true,
            tcp_syn_retries: 6,
            tcp_syn_linear_timeouts: 4,
            tcp_synack_retries: 5,
            tcp_retries2: 15,
            tcp_orphan_retries: 0,
            tcp_fin_timeout: 60,
            tcp_keepalive_time: 7200,
            tcp_keepalive_intvl: 75,
            tcp_keepalive_probes: 9,
            tcp_rto_min_us: 200_000,
            tcp_rto_max_ms: 120_000,
            tcp_invalid_ratelimit: 500,
            tcp_syncookies: 1,
            tcp_max_syn_backlog: 1024,
            somaxconn: 4096,
            wmem_max: 4 << 20,
            rmem_max: 4 << 20,
            tcp_congestion_control: "cubic".into(),
            tcp_abort_on_overflow: false,
            tcp_min_snd_mss: 48,
            small_queues: true,
            small_queue_rule: SmallQueueRule::Rate,
            small_queue_spare: 2,
            small_queue_cap_paced: true,
            late_completions: true,
            skb_overhead: BUFFER_OVERHEAD,
            half_cwnd: true,
            tso_defer: TsoDefer::NextAck,
            hystart: HyStartRule::Rfc9406,
            tso_autosizing: true,
            tso_at_write: false,
            tso_bonus: TsoBonus::Bounded,
            tso_max_usecs: 300,
            ip_local_port_range: PortRange { low: 32_768, high: 60_999 },
            tcp_max_tw_buckets: 262_144,
            ipfrag_high_thresh: 4 << 20,
            ipfrag_time: 30,
            controllers: Controllers::default(),
        }
    }
}

/// A sysctl that cannot be set.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SysctlError {
    /// No such name.
    #[error("unknown sysctl {0}")]
    Unknown(String),
    /// It can only be read.
    #[error("{0} can only be read")]
    ReadOnly(String),
    /// The value does not parse or is out of range.
    #[error("{name}: {value:?} is not {expected}")]
    Value {
        /// The sysctl's name.
        name: String,
        /// What was given.
        value: String,
        /// What it should have been.
        expected: String,
    },
}
