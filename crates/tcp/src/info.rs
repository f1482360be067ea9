//! Figures of a connection (`TCP_INFO`): what `ss -tin` shows, and where the bytes of a flow are.

use crate::congestion::{CaState, PathModel};
use crate::state::State;
use crate::time::{Nanos, Rate};
use crate::transmit::TxBlocked;
use core::fmt;

/// Figures of one connection, by the names of Linux's `struct tcp_info` without the prefix.
///
/// Counts are wire segments, sizes are bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TcpInfo {
    /// State of the connection.
    pub state: State,
    /// State of congestion control.
    pub ca_state: CaState,
    /// Name of the congestion controller.
    pub congestion: &'static str,
    /// Model of the path that the congestion controller has, such as BBR's.
    pub model: Option<PathModel>,
    /// Retransmission timeouts in a row.
    pub retransmits: u32,
    /// Unanswered probes of a zero window or by keepalive.
    pub probes: u32,
    /// How often the RTO, or the time between two probes of a closed window, was doubled.
    pub backoff: u32,
    /// Retransmission timeout (RTO).
    pub rto: Nanos,
    /// Estimated time by which ACKs are delayed.
    pub ato: Nanos,
    /// Whether ACKs are sent without waiting for data: the value of `TCP_QUICKACK`.
    pub quickack: bool,
    /// Payload bytes of a full segment.
    pub snd_mss: u32,
    /// Payload bytes of the largest frame that the device takes, which are full segments; those of
    /// one segment before anything was sent. Writes of as many bytes leave no small rests.
    pub largest_frame: u32,
    /// Estimated payload of the peer's full segments.
    pub rcv_mss: u32,
    /// MSS that this end advertised, less the options of every segment.
    pub advmss: u32,
    /// Path MTU.
    pub pmtu: u32,
    /// Segments in flight that are not acknowledged. Those of a handshake count too.
    pub unacked: u32,
    /// Segments in flight that the peer has SACKed.
    pub sacked: u32,
    /// Segments in flight that are marked lost.
    pub lost: u32,
    /// Retransmitted segments in flight.
    pub retrans: u32,
    /// Smoothed round-trip time.
    pub rtt: Nanos,
    /// Mean deviation of the round-trip time.
    pub rttvar: Nanos,
    /// Minimum round-trip time; `None` before the first sample.
    pub min_rtt: Option<Nanos>,
    /// Round-trip time that the receiver of this end estimates.
    pub rcv_rtt: Nanos,
    /// Receive space of the last round trip, in bytes (`tcpi_rcv_space`).
    pub rcv_space: u32,
    /// Current limit of the advertised window, in bytes.
    pub rcv_ssthresh: u32,
    /// Largest value of that limit, in bytes (`TCP_WINDOW_CLAMP`).
    pub window_clamp: u32,
    /// Slow-start threshold, in segments; `u32::MAX` before the first congestion.
    pub snd_ssthresh: u32,
    /// Congestion window, in segments.
    pub snd_cwnd: u32,
    /// Reordering degree, in segments.
    pub reordering: u32,
    /// Window that the peer advertises, in bytes.
    pub snd_wnd: u32,
    /// Window that this end advertises, in bytes.
    pub rcv_wnd: u32,
    /// Retransmitted segments since the connection began.
    pub total_retrans: u32,
    /// Rate at which departures are paced.
    pub pacing_rate: Rate,
    /// Time until the next paced frame may leave, timer delays included (`tcp_pacing_delay`).
    pub pacing_delay: Nanos,
    /// Limit of the pacing rate that the application set (`SO_MAX_PACING_RATE`).
    pub max_pacing_rate: Rate,
    /// Payload bytes acknowledged. A FIN counts as one, as in Linux.
    pub bytes_acked: u64,
    /// Payload bytes received. A FIN counts as one, as in Linux.
    pub bytes_received: u64,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Payload bytes retransmitted.
    pub bytes_retrans: u64,
    /// Segments sent.
    pub segs_out: u64,
    /// Segments received.
    pub segs_in: u64,
    /// Data segments sent.
    pub data_segs_out: u64,
    /// Data segments received.
    pub data_segs_in: u64,
    /// Rate at which data was delivered; `None` before the first sample.
    pub delivery_rate: Option<Rate>,
    /// Whether the application limited the delivery rate.
    pub delivery_rate_app_limited: bool,
    /// Segments delivered.
    pub delivered: u64,
    /// Delivered segments that were marked with CE.
    pub delivered_ce: u32,
    /// Segments that the peer reported as duplicates (DSACK).
    pub dsack_dups: u32,
    /// How often reordering was seen.
    pub reord_seen: u32,
    /// Payload bytes written and not sent (`SIOCOUTQNSD`).
    pub notsent_bytes: u32,
    /// Payload bytes sent and not acknowledged.
    pub unacked_bytes: u32,
    /// Payload bytes that the application can read.
    pub unread_bytes: u32,
    /// Bytes that came out of order and wait for those in front of them.
    pub ofo_bytes: u32,
    /// Bytes of memory in qdiscs and devices (`t` of `skmem`).
    pub below_bytes: u64,
    /// Bytes of memory that devices hold, a part of the bytes below TCP. Qdiscs have the rest.
    pub device_bytes: u64,
    /// Send buffer, in bytes of memory (`tb` of `skmem`).
    pub sndbuf: u32,
    /// Bytes of memory in the write queue (`w` of `skmem`).
    pub wmem_queued: u32,
    /// Receive buffer, in bytes of memory (`rb` of `skmem`).
    pub rcvbuf: u32,
    /// Bytes of memory of received and unread data (`r` of `skmem`).
    pub rmem_alloc: u32,
    /// Reason why the flow is not sending.
    pub blocked: TxBlocked,
    /// Time with data to send or in flight.
    pub busy_time: Nanos,
    /// Busy time limited by the peer's window.
    pub rwnd_limited: Nanos,
    /// Busy time limited by the send buffer.
    pub sndbuf_limited: Nanos,
    /// Busy time held back by the small-queue limit.
    pub small_queue_limited: Nanos,
    /// Busy time held back by pacing.
    pub pacing_limited: Nanos,
    /// Busy time limited by the congestion window.
    pub cwnd_limited: Nanos,
    /// Time since data was last sent; `None` if none was sent.
    pub last_data_sent: Option<Nanos>,
    /// Time since data last arrived in order, or since the connection opened.
    pub last_data_recv: Nanos,
    /// Time since the last ACK arrived.
    pub last_ack_recv: Nanos,
    /// Data segments that arrived out of order.
    pub rcv_ooopack: u32,
    /// Retransmission timeouts.
    pub timeouts: Timeouts,
    /// Whether both ends agreed on ECN.
    pub ecn: bool,
    /// Whether data with an ECN codepoint arrived.
    pub ecn_seen: bool,
    /// Whether timestamps are used.
    pub timestamps: bool,
    /// Whether SACK is used.
    pub sack: bool,
    /// Shift of the peer's windows.
    pub snd_wscale: u8,
    /// Shift of the windows of this end.
    pub rcv_wscale: u8,
}

/// Retransmission timeouts since the connection began, those of its SYN or SYN-ACK included
/// (`tcpi_total_rto`, `tcpi_total_rto_recoveries`, `tcpi_total_rto_time`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// Number of timeouts.
    pub total: u32,
    /// Number of rows of timeouts, each without an acknowledgment in between.
    pub rows: u32,
    /// Time from the first timeout of each row until the loss was repaired.
    pub time: Nanos,
}

/// What a socket waits for by time (`idiag_timer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimerKind {
    /// An acknowledgment: retransmission timeout, tail loss probe or reordering window.
    Retransmit,
    /// An open window of the peer, or room below: the next probe.
    Persist,
    /// A sign of life, or the end of an orphan in FIN-WAIT-2.
    Keepalive,
    /// The end of TIME-WAIT.
    TimeWait,
}

impl TimerKind {
    /// Returns the name that `ss -o` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retransmit => "on",
            Self::Persist => "persist",
            Self::Keepalive => "keepalive",
            Self::TimeWait => "timewait",
        }
    }
}

/// The timer of a socket, as `ss -o` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timer {
    /// What the socket waits for.
    pub kind: TimerKind,
    /// Time until it expires.
    pub left: Nanos,
    /// How often it has expired in a row without an answer.
    pub tries: u32,
}

impl Timer {
    /// Returns a timer that expires after `left`.
    pub const fn new(kind: TimerKind, left: Nanos, tries: u32) -> Self {
        Self { kind, left, tries }
    }
}

impl fmt::Display for TcpInfo {
    /// Prints one line by the names of `ss -tin`, with units, and at its end where the bytes are
    /// and why the flow is not sending.
    ///
    /// Values that are zero or not measured are left out, as by `ss`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print_settings(f)?;
        self.print_path(f)?;
        self.print_traffic(f)?;
        self.print_recovery(f)?;
        self.print_limits(f)?;
        let Self { notsent_bytes, unacked_bytes, below_bytes, device_bytes, .. } = *self;
        write!(f, " unsent:{notsent_bytes} in_flight:{unacked_bytes} below:{below_bytes}")?;
        write!(
            f,
            " device:{device_bytes} unread:{} blocked:{}",
            self.unread_bytes,
            self.blocked.name()
        )
    }
}

/// Prints ` name:value` if the value is not its default.
fn some<T: Copy + fmt::Display + Default + PartialEq>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: T,
) -> fmt::Result {
    if value == T::default() { Ok(()) } else { write!(f, " {name}:{value:.3}") }
}

impl TcpInfo {
    fn print_settings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.state)?;
        let words = [
            (self.timestamps, "ts"),
            (self.sack, "sack"),
            (self.ecn, "ecn"),
            (self.ecn_seen, "ecnseen"),
        ];
        for (_, word) in words.iter().filter(|(is_on, _)| *is_on) {
            write!(f, " {word}")?;
        }
        write!(f, " {} wscale:{},{}", self.congestion, self.snd_wscale, self.rcv_wscale)
    }

    fn print_path(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " rto:{:.3}", self.rto)?;
        some(f, "backoff", self.backoff)?;
        write!(f, " rtt:{:.3}/{:.3}", self.rtt, self.rttvar)?;
        some(f, "minrtt", self.min_rtt.unwrap_or_default())?;
        some(f, "ato", self.ato)?;
        write!(f, " mss:{} pmtu:{} rcvmss:{}", self.snd_mss, self.pmtu, self.rcv_mss)?;
        write!(f, " advmss:{} cwnd:{}", self.advmss, self.snd_cwnd)?;
        if self.snd_ssthresh != u32::MAX {
            write!(f, " ssthresh:{}", self.snd_ssthresh)?;
        }
        if let Some(model) = &self.model {
            write!(f, " model:(bw:{:.3},mrtt:{:.3})", model.bandwidth, model.min_rtt)?;
        }
        Ok(())
    }

    fn print_traffic(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        some(f, "bytes_sent", self.bytes_sent)?;
        some(f, "bytes_retrans", self.bytes_retrans)?;
        some(f, "bytes_acked", self.bytes_acked)?;
        some(f, "bytes_received", self.bytes_received)?;
        some(f, "segs_out", self.segs_out)?;
        some(f, "segs_in", self.segs_in)?;
        some(f, "data_segs_out", self.data_segs_out)?;
        some(f, "data_segs_in", self.data_segs_in)?;
        some(f, "lastsnd", self.last_data_sent.unwrap_or_default())?;
        write!(f, " lastrcv:{:.3} lastack:{:.3}", self.last_data_recv, self.last_ack_recv)?;
        write!(f, " pacing_rate:{:.3}", self.pacing_rate)?;
        if self.max_pacing_rate != Rate::UNLIMITED {
            write!(f, " max_pacing_rate:{:.3}", self.max_pacing_rate)?;
        }
        some(f, "delivery_rate", self.delivery_rate.unwrap_or_default())?;
        if self.delivery_rate_app_limited {
            f.write_str(" app_limited")?;
        }
        some(f, "delivered", self.delivered)?;
        some(f, "delivered_ce", self.delivered_ce)
    }

    fn print_recovery(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " ca_state:{}", self.ca_state)?;
        some(f, "unacked", self.unacked)?;
        if self.total_retrans > 0 {
            write!(f, " retrans:{}/{}", self.retrans, self.total_retrans)?;
        }
        some(f, "retransmits", self.retransmits)?;
        some(f, "probes", self.probes)?;
        some(f, "lost", self.lost)?;
        some(f, "sacked", self.sacked)?;
        some(f, "dsack_dups", self.dsack_dups)?;
        some(f, "reordering", self.reordering)?;
        some(f, "reord_seen", self.reord_seen)?;
        some(f, "rcv_ooopack", self.rcv_ooopack)?;
        some(f, "rto_count", self.timeouts.total)
    }

    fn print_limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        some(f, "busy", self.busy_time)?;
        some(f, "rwnd_limited", self.rwnd_limited)?;
        some(f, "sndbuf_limited", self.sndbuf_limited)?;
        some(f, "small_queue_limited", self.small_queue_limited)?;
        some(f, "pacing_limited", self.pacing_limited)?;
        some(f, "cwnd_limited", self.cwnd_limited)?;
        some(f, "rcv_rtt", self.rcv_rtt)?;
        write!(f, " rcv_space:{} rcv_ssthresh:{}", self.rcv_space, self.rcv_ssthresh)?;
        write!(f, " snd_wnd:{} rcv_wnd:{}", self.snd_wnd, self.rcv_wnd)?;
        write!(f, " skmem:(r{},rb{}", self.rmem_alloc, self.rcvbuf)?;
        write!(f, ",t{},tb{},w{})", self.below_bytes, self.sndbuf, self.wmem_queued)
    }
}
