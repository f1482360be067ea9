//! Settings of a connection, by sysctl name, with Linux's units and defaults.

use crate::congestion::Controllers;
pub use crate::congestion::{FrameRule, HyStartRule};

/// Memory that one buffer costs beside its payload (`SKB_TRUESIZE` of an empty buffer in Linux).
pub const BUFFER_OVERHEAD: u32 = 896;

/// Smallest, first and largest size of a buffer, in bytes of memory, as in `tcp_rmem` and
/// `tcp_wmem`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    /// Size in bytes that a connection may use while the host is under memory pressure; see
    /// [`memory`](crate::memory).
    pub min: u32,
    /// Size in bytes of a new connection's buffer.
    pub default: u32,
    /// Size in bytes that autotuning does not exceed.
    pub max: u32,
}

/// Bounds of the memory of all sockets of a protocol together, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPages {
    /// Within it buffers grow freely, and an existing pressure ends. Above it a UDP socket takes
    /// nothing unless it holds less than `udp_rmem_min`.
    pub low: u32,
    /// Above it pressure begins: buffers do not grow, and a connection that has more than its share
    /// takes nothing. It means nothing for UDP.
    pub pressure: u32,
    /// Above it nobody takes anything.
    pub high: u32,
}

impl MemoryPages {
    /// Returns the bounds of `tcp_mem` that Linux computes for a machine with so many bytes of
    /// memory: 4.7, 6.25 and 9.4 % of it (`tcp_init_mem`).
    pub const fn of_machine(bytes: u64) -> Self {
        Self::of_share(bytes, 16)
    }

    /// Returns the bounds of `udp_mem` that Linux computes for a machine with so many bytes of
    /// memory, twice those of `tcp_mem` (`udp_init`).
    pub const fn of_machine_for_udp(bytes: u64) -> Self {
        Self::of_share(bytes, 8)
    }

    const fn of_share(bytes: u64, divisor: u64) -> Self {
        let pressure = bytes / 4096 / divisor;
        let pressure = if pressure > MOST_PAGES { MOST_PAGES } else { pressure };
        let pressure = if pressure < 128 { 128 } else { pressure as u32 };
        let low = pressure / 4 * 3;
        Self { low, pressure, high: low * 2 }
    }
}

/// The second bound at the most, so that the third is a sysctl's value.
const MOST_PAGES: u64 = 1 << 30;

/// The ports that the stack chooses from, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// The lowest.
    pub low: u16,
    /// The highest.
    pub high: u16,
}

/// Bound of the round-trip bonus, by which autosizing makes frames larger on short paths (Linux
/// 65466904b015).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TsoBonus {
    /// There is no bonus, as before 2022.
    Off,
    /// The bonus has no bound in time, as in Linux since 2022: any short path gets frames up to the
    /// largest size.
    Linux,
    /// A frame with its bonus takes at most `neap.tcp_tso_max_usecs` at the flow's rate.
    Bounded,
}

/// Rule that computes the small-queue limit: how many bytes of one socket may be below TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SmallQueueRule {
    /// The limit is `tcp_limit_output_bytes` at every rate (Linux 46d3ceabd8d9, 2012).
    Fixed,
    /// The limit is two frames, or the bytes of a millisecond at the flow's rate if that is more,
    /// and at most `tcp_limit_output_bytes` (Linux 605ad7f184b6, 2014).
    Rate,
}

/// Rule that decides whether a frame that could grow is sent now or waits for the next ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TsoDefer {
    /// The frame is sent if the next ACK is expected later than half a round trip or a millisecond
    /// from now (Linux 295ce1eb36ae, 2025).
    NextAck,
    /// The frame is sent if less than half a round trip has passed since the oldest frame in flight
    /// left, as Linux did before 2025.
    HalfRtt,
}

/// Settings of a stack and its connections: sysctls with Linux's names, units and defaults, and
/// switches between rules.
///
/// Each stack has its own. [`Config::set`] takes a sysctl by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `net.ipv4.tcp_limit_output_bytes`: hard cap of the small-queue limit, in bytes. It acts as
    /// `u32::MAX` where [`small_queues`](Self::small_queues) is off.
    pub tcp_limit_output_bytes: u32,
    /// `net.ipv4.tcp_min_tso_segs`: fewest segments of a frame.
    pub tcp_min_tso_segs: u32,
    /// `net.ipv4.tcp_tso_rtt_log`: each 2^n microseconds of the minimum round-trip time halve the
    /// round-trip bonus of frame sizes.
    pub tcp_tso_rtt_log: u32,
    /// `net.ipv4.tcp_tso_win_divisor`: a deferred frame is sent when it fills one nth of the
    /// window.
    pub tcp_tso_win_divisor: u32,
    /// `net.ipv4.tcp_autocorking`: small writes wait while earlier bytes are below TCP.
    pub tcp_autocorking: bool,
    /// `net.ipv4.tcp_wmem`: send buffer.
    pub tcp_wmem: BufferSizes,
    /// `net.ipv4.tcp_rmem`: receive buffer.
    pub tcp_rmem: BufferSizes,
    /// `net.ipv4.tcp_moderate_rcvbuf`: the receive buffer grows as fast as the application reads.
    pub tcp_moderate_rcvbuf: bool,
    /// `net.ipv4.tcp_window_scaling`: windows above 64 KiB (RFC 7323).
    pub tcp_window_scaling: bool,
    /// `net.ipv4.tcp_timestamps`: the timestamp option (RFC 7323).
    pub tcp_timestamps: bool,
    /// `net.ipv4.tcp_sack`: selective acknowledgments (RFC 2018).
    pub tcp_sack: bool,
    /// `net.ipv4.tcp_dsack`: reports of duplicates in SACK blocks (RFC 2883).
    pub tcp_dsack: bool,
    /// `net.ipv4.tcp_retrans_collapse`: short segments that are lost are sent again as one.
    pub tcp_retrans_collapse: bool,
    /// `net.ipv4.tcp_ecn`: 0 never uses ECN, 1 asks for it and accepts it, 2 only accepts it.
    pub tcp_ecn: u8,
    /// `net.ipv4.tcp_ecn_fallback`: a SYN that is sent again does not ask for ECN (RFC 3168
    /// section 6.1.1.1).
    pub tcp_ecn_fallback: bool,
    /// `net.ipv4.tcp_frto`: detection of spurious timeouts (F-RTO, RFC 5682).
    pub tcp_frto: bool,
    /// `net.ipv4.tcp_early_retrans`: 3 and 4 turn tail loss probes on; every other value turns them
    /// off.
    pub tcp_early_retrans: u8,
    /// `net.ipv4.tcp_reordering`: initial reordering degree, in segments.
    pub tcp_reordering: u32,
    /// `net.ipv4.tcp_max_reordering`: largest reordering degree, in segments.
    pub tcp_max_reordering: u32,
    /// `net.ipv4.tcp_slow_start_after_idle`: the congestion window shrinks while a flow is idle.
    pub tcp_slow_start_after_idle: bool,
    /// `net.ipv4.tcp_pacing_ss_ratio`: pacing rate in slow start, in percent of the window per
    /// round trip.
    pub tcp_pacing_ss_ratio: u32,
    /// `net.ipv4.tcp_pacing_ca_ratio`: pacing rate in congestion avoidance, in percent of the
    /// window per round trip.
    pub tcp_pacing_ca_ratio: u32,
    /// `neap.tcp_internal_pacing`: connections pace themselves if no qdisc paces them.
    pub internal_pacing: bool,
    /// `neap.tcp_pacing_credit`: a late departure shortens the next gap, by at most half, or by
    /// what `pacing_debt_us` lets. Without it no lateness is made good.
    pub pacing_credit: bool,
    /// `neap.tcp_pacing_debt_us`: lateness of the host, in microseconds, that a paced flow makes
    /// good in full and at once. It bounds the burst. With 0 flows make good what they do in Linux.
    pub pacing_debt_us: u32,
    /// `neap.tcp_pacing_arrears_us`: lateness of the host above `pacing_debt_us`, in microseconds,
    /// that a flow with `SO_MAX_PACING_RATE` makes good by gaps that are a quarter shorter. What is
    /// above both is lost.
    pub pacing_arrears_us: u32,
    /// `neap.tcp_pacing_free_segs`: segments at the start of a connection that are not paced.
    pub pacing_free_segments: u32,
    /// `neap.tcp_reply_ack_us`: time in microseconds that the ACK of more than a segment waits for
    /// the reply, beyond twice what replies take, where the two sides take turns: the peer has sent
    /// at most 32 KiB since this side sent data, and a segment that is not full ended it, with PSH.
    /// It waits four times as long at most. 0 is Linux's rule: the ACK leaves at once.
    pub reply_ack_us: u32,
    /// `neap.timer_slack_ns`: time in nanoseconds that a timer may wait, so that one wake-up serves
    /// several timers.
    ///
    /// The default is twice the `timer_slack` of `fq`: a departure that is less than half a gap
    /// late costs no rate.
    pub timer_slack_ns: u32,
    /// `net.ipv4.tcp_notsent_lowat`: unsent bytes at which a writer has to wait; `u32::MAX` is off.
    pub tcp_notsent_lowat: u32,
    /// `neap.tcp_notsent_lowat_us`: the low-water mark as microseconds of the connection's pacing
    /// rate, at least two frames; 0 is off. The lower of the two marks holds.
    pub tcp_notsent_lowat_us: u32,
    /// `neap.tcp_notsent_lowat_half`: a waiting writer is woken when less than half of the mark is
    /// unsent (Linux a74f0fa082b7). Off: below the mark itself, which is about once per ACK.
    pub notsent_lowat_half: bool,
    /// `net.ipv4.tcp_syn_retries`: retransmissions of a SYN with doubled timeouts, after the linear
    /// ones.
    pub tcp_syn_retries: u32,
    /// `net.ipv4.tcp_syn_linear_timeouts`: retransmissions of a SYN, one second apart, before
    /// timeouts double.
    pub tcp_syn_linear_timeouts: u32,
    /// `net.ipv4.tcp_synack_retries`: retransmissions of a SYN-ACK.
    pub tcp_synack_retries: u32,
    /// `net.ipv4.tcp_retries2`: timeouts after which an established connection is given up.
    pub tcp_retries2: u32,
    /// `net.ipv4.tcp_orphan_retries`: timeouts after which a connection that the application has
    /// closed is given up; 0 means 8, or none if timeouts are as long as they get.
    pub tcp_orphan_retries: u32,
    /// `net.ipv4.tcp_fin_timeout`: seconds that a closed connection stays in FIN-WAIT-2.
    pub tcp_fin_timeout: u32,
    /// `net.ipv4.tcp_keepalive_time`: seconds of silence before the first keepalive probe.
    pub tcp_keepalive_time: u32,
    /// `net.ipv4.tcp_keepalive_intvl`: seconds between keepalive probes.
    pub tcp_keepalive_intvl: u32,
    /// `net.ipv4.tcp_keepalive_probes`: unanswered probes after which a connection is given up.
    pub tcp_keepalive_probes: u32,
    /// `net.ipv4.tcp_rto_min_us`: shortest retransmission timeout, in microseconds.
    pub tcp_rto_min_us: u32,
    /// `net.ipv4.tcp_rto_max_ms`: longest retransmission timeout, in milliseconds.
    pub tcp_rto_max_ms: u32,
    /// `net.ipv4.tcp_invalid_ratelimit`: least milliseconds between two challenge ACKs of one
    /// connection.
    pub tcp_invalid_ratelimit: u32,
    /// `net.ipv4.tcp_syncookies`: 0 never sends SYN cookies, 1 does when the SYN queue is full, 2
    /// always.
    pub tcp_syncookies: u8,
    /// `net.ipv4.tcp_max_syn_backlog`: most half-open connections of a listener.
    pub tcp_max_syn_backlog: u32,
    /// `net.core.somaxconn`: most connections of a listener that wait to be accepted.
    pub somaxconn: u32,
    /// `net.core.wmem_max`: largest value that `SO_SNDBUF` takes, in bytes.
    pub wmem_max: u32,
    /// `net.core.rmem_max`: largest value that `SO_RCVBUF` takes, in bytes.
    pub rmem_max: u32,
    /// `net.ipv4.tcp_congestion_control`: name of the congestion controller of new connections.
    ///
    /// Above 2 % of random loss the rate of `bbr3` collapses, as its draft wants; `bbr` keeps it.
    pub tcp_congestion_control: String,
    /// `net.ipv4.tcp_abort_on_overflow`: a connection is reset if the accept queue is full;
    /// otherwise its last ACK is ignored.
    pub tcp_abort_on_overflow: bool,
    /// `net.ipv4.tcp_min_snd_mss`: smallest MSS in bytes that a peer can make a connection use.
    pub tcp_min_snd_mss: u32,
    /// `neap.tcp_small_queues`: the small-queue check, which limits the bytes of a socket below
    /// TCP.
    pub small_queues: bool,
    /// `neap.tcp_small_queue_rule`: `fixed` or `rate`.
    pub small_queue_rule: SmallQueueRule,
    /// `neap.tcp_small_queue_spare`: a frame passes the small-queue check if at most this many
    /// frames, itself included, are then unacknowledged.
    pub small_queue_spare: u32,
    /// `neap.tcp_small_queue_cap_paced`: `tcp_limit_output_bytes` also caps paced flows.
    pub small_queue_cap_paced: bool,
    /// `neap.tcp_late_completions`: the small-queue limit adapts to devices that complete frames
    /// late.
    pub late_completions: bool,
    /// `neap.tcp_skb_overhead`: bytes that a frame below TCP counts beside its payload.
    pub skb_overhead: u32,
    /// `neap.tcp_half_cwnd`: a frame takes at most half of the congestion window.
    pub half_cwnd: bool,
    /// `neap.tcp_tso_defer`: `next_ack` or `half_rtt`.
    pub tso_defer: TsoDefer,
    /// `neap.tcp_hystart`: `off`, `linux` or `rfc9406`; how CUBIC leaves slow start.
    pub hystart: HyStartRule,
    /// `neap.tcp_tso_autosizing`: frames get their size when they are sent. Off: frames are as
    /// large as the path takes.
    pub tso_autosizing: bool,
    /// `neap.tcp_tso_at_write`: a buffer gets its size when it is written, half a millisecond of
    /// the pacing rate at that moment, and is sent as it is (`tcp_xmit_size_goal` before Linux
    /// 605ad7f184b6).
    pub tso_at_write: bool,
    /// `neap.tcp_tso_bonus`: `off`, `linux` or `bounded`.
    pub tso_bonus: TsoBonus,
    /// `neap.tcp_tso_max_usecs`: with the bounded bonus, the longest time in microseconds that one
    /// frame may take at the flow's rate. The small-queue limit is twice that.
    ///
    /// At round-trip times of 32 ms and more, frames take up to a millisecond of the pacing rate.
    pub tso_max_usecs: u32,
    /// `net.ipv4.ip_default_ttl`: TTL of IPv4 packets whose socket says no other, 1 to 255.
    pub ip_default_ttl: u8,
    /// `net.ipv4.ip_local_port_range`: where ports are chosen from, of TCP and UDP.
    pub ip_local_port_range: PortRange,
    /// `net.ipv4.tcp_mem`: memory of all connections together. The default is that of a machine
    /// with 8 GiB: 384, 512 and 768 MiB. See [`MemoryPages::of_machine`].
    pub tcp_mem: MemoryPages,
    /// `net.ipv4.udp_mem`: memory of what waits in all UDP sockets together. The default is that of
    /// a machine with 8 GiB: 768, 1024 and 1536 MiB. See [`MemoryPages::of_machine_for_udp`].
    pub udp_mem: MemoryPages,
    /// `net.ipv4.udp_rmem_min`: bytes that a UDP socket may hold above the first bound of
    /// `udp_mem`.
    pub udp_rmem_min: u32,
    /// `net.ipv4.tcp_max_orphans`: connections that no application has any more and whose end the
    /// peer has not acknowledged; more are reset.
    pub tcp_max_orphans: u32,
    /// `net.ipv4.tcp_max_tw_buckets`: connections in TIME-WAIT at the most; 0 keeps none.
    pub tcp_max_tw_buckets: u32,
    /// `net.ipv4.tcp_tw_reuse`: whether `connect` may choose a port whose last connection to the
    /// same peer is in TIME-WAIT: 0 never, 1 always, 2 on the loopback.
    pub tcp_tw_reuse: u8,
    /// `net.ipv4.tcp_tw_reuse_delay`: milliseconds in TIME-WAIT before that.
    pub tcp_tw_reuse_delay: u32,
    /// `net.ipv4.icmp_echo_ignore_all`: no echo request of IPv4 is answered.
    pub icmp_echo_ignore_all: bool,
    /// `net.ipv6.icmp.echo_ignore_all`: no echo request of IPv6 is answered.
    pub icmp6_echo_ignore_all: bool,
    /// `net.ipv4.icmp_msgs_burst`: ICMP errors of the host that may leave at once after a pause.
    pub icmp_msgs_burst: u32,
    /// `net.ipv4.icmp_msgs_per_sec`: ICMP errors of the host per second, of both families.
    pub icmp_msgs_per_sec: u32,
    /// `net.ipv4.icmp_ratelimit`: milliseconds between two ICMP errors to one IPv4 address; 0 is no
    /// limit.
    pub icmp_ratelimit: u32,
    /// `net.ipv6.icmp.ratelimit`: milliseconds between two ICMP errors to one IPv6 address; 0 is no
    /// limit.
    pub icmp6_ratelimit: u32,
    /// `net.ipv4.ipfrag_high_thresh`: memory of incomplete datagrams of both families, bytes.
    pub ipfrag_high_thresh: u32,
    /// `net.ipv4.ipfrag_time`: seconds that a datagram may stay incomplete.
    pub ipfrag_time: u32,
    /// The congestion controllers that connections choose from; no sysctl.
    pub controllers: Controllers,
}

impl Config {
    /// Whether a tail that nobody acknowledges is probed (`tcp_schedule_loss_probe`).
    pub(crate) fn has_loss_probes(&self) -> bool {
        matches!(self.tcp_early_retrans, 3 | 4)
    }

    /// Returns the rule for the size of frames.
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
            tcp_rmem: BufferSizes { min: 4096, default: 131_072, max: 32 << 20 },
            tcp_moderate_rcvbuf: true,
            tcp_window_scaling: true,
            tcp_timestamps: true,
            tcp_sack: true,
            tcp_dsack: true,
            tcp_retrans_collapse: true,
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
            pacing_debt_us: 50_000,
            pacing_arrears_us: 250_000,
            pacing_free_segments: 10,
            reply_ack_us: 1000,
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
            ip_default_ttl: 64,
            ip_local_port_range: PortRange { low: 32_768, high: 60_999 },
            tcp_mem: MemoryPages::of_machine(8 << 30),
            udp_mem: MemoryPages::of_machine_for_udp(8 << 30),
            udp_rmem_min: 4096,
            tcp_max_orphans: 262_144,
            tcp_max_tw_buckets: 262_144,
            tcp_tw_reuse: 2,
            tcp_tw_reuse_delay: 1000,
            icmp_echo_ignore_all: false,
            icmp6_echo_ignore_all: false,
            icmp_msgs_burst: 50,
            icmp_msgs_per_sec: 1000,
            icmp_ratelimit: 1000,
            icmp6_ratelimit: 100,
            ipfrag_high_thresh: 4 << 20,
            ipfrag_time: 30,
            controllers: Controllers::default(),
        }
    }
}
