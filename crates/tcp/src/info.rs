//! Figures of a connection (`TCP_INFO`): what `ss -tin` shows, and where the bytes of a flow are.

use crate::congestion::{CaState, PathModel};
use crate::state::State;
use crate::time::{Nanos, Rate};
use crate::transmit::TxBlocked;

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
    /// Estimated payload of the peer's full segments.
    pub rcv_mss: u32,
    /// MSS that this end advertised, less the options of every segment.
    pub advmss: u32,
    /// Path MTU.
    pub pmtu: u32,
    /// Segments in flight that are not acknowledged.
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
    /// Payload bytes received.
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
    /// Whether reordering was seen.
    pub reord_seen: bool,
    /// Payload bytes written and not sent (`SIOCOUTQNSD`).
    pub notsent_bytes: u32,
    /// Payload bytes sent and not acknowledged.
    pub unacked_bytes: u32,
    /// Payload bytes that the application can read.
    pub unread_bytes: u32,
    /// Bytes of memory in qdiscs and devices (`t` of `skmem`).
    pub below_bytes: u64,
    /// Payload bytes that devices hold, a part of the bytes below TCP.
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
