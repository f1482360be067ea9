//! `TCP_INFO`: what `ss -tin` shows, and where the bytes of a flow are.

use crate::congestion::{CaState, PathModel};
use crate::state::State;
use crate::time::{Nanos, Rate};
use crate::transmit::TxBlocked;

/// Figures of one connection, by the names of `struct tcp_info` without the prefix. Counts are wire
/// segments, sizes bytes, times nanoseconds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TcpInfo {
    /// State.
    pub state: State,
    /// Congestion state.
    pub ca_state: CaState,
    /// Congestion control.
    pub congestion: &'static str,
    /// What it thinks of the path, where it has a model.
    pub model: Option<PathModel>,
    /// Timeouts in a row.
    pub retransmits: u32,
    /// Unanswered probes (zero window, keepalive).
    pub probes: u32,
    /// Doublings of the RTO, or of the time between two probes of a closed window.
    pub backoff: u32,
    /// Retransmission timeout.
    pub rto: Nanos,
    /// Delayed-ACK timeout.
    pub ato: Nanos,
    /// ACKs do not wait for data: the value of `TCP_QUICKACK`.
    pub quickack: bool,
    /// Payload bytes of a full segment.
    pub snd_mss: u32,
    /// Estimated segment size of the peer.
    pub rcv_mss: u32,
    /// MSS that we advertised, less the options of every segment.
    pub advmss: u32,
    /// Path MTU.
    pub pmtu: u32,
    /// In flight and not acknowledged.
    pub unacked: u32,
    /// SACKed.
    pub sacked: u32,
    /// Thought lost.
    pub lost: u32,
    /// Retransmitted and out.
    pub retrans: u32,
    /// Smoothed round-trip time.
    pub rtt: Nanos,
    /// Its mean deviation.
    pub rttvar: Nanos,
    /// Minimum round-trip time; `None` before the first sample.
    pub min_rtt: Option<Nanos>,
    /// The receiver's estimate of the round-trip time.
    pub rcv_rtt: Nanos,
    /// Receive space of the last round trip.
    pub rcv_space: u32,
    /// Limit of the advertised window.
    pub rcv_ssthresh: u32,
    /// What that limit never exceeds (`TCP_WINDOW_CLAMP`).
    pub window_clamp: u32,
    /// Slow-start threshold; `u32::MAX` when there was no congestion yet.
    pub snd_ssthresh: u32,
    /// Congestion window.
    pub snd_cwnd: u32,
    /// Reordering degree.
    pub reordering: u32,
    /// The peer's window.
    pub snd_wnd: u32,
    /// Our window.
    pub rcv_wnd: u32,
    /// Retransmissions ever.
    pub total_retrans: u32,
    /// Pacing rate.
    pub pacing_rate: Rate,
    /// How far the schedule of paced departures runs ahead: what pacing still holds back, and what
    /// timers add to their delay (`tcp_pacing_delay`).
    pub pacing_delay: Nanos,
    /// `SO_MAX_PACING_RATE`.
    pub max_pacing_rate: Rate,
    /// Payload bytes acknowledged; the FIN counts as one, as in Linux.
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
    /// Delivery rate; `None` before the first sample.
    pub delivery_rate: Option<Rate>,
    /// Whether the application limited the delivery rate.
    pub delivery_rate_app_limited: bool,
    /// Segments delivered.
    pub delivered: u64,
    /// Delivered segments that were marked with CE.
    pub delivered_ce: u32,
    /// Segments that DSACKs named.
    pub dsack_dups: u32,
    /// Reordering was seen.
    pub reord_seen: bool,
    /// Payload bytes written and not sent (`SIOCOUTQNSD`).
    pub notsent_bytes: u32,
    /// Payload bytes sent and not acknowledged.
    pub unacked_bytes: u32,
    /// Payload bytes that the application can read.
    pub unread_bytes: u32,
    /// Memory in qdiscs and devices (`skmem t`).
    pub below_bytes: u64,
    /// The part of the bytes below TCP that devices have.
    pub device_bytes: u64,
    /// Send buffer (`skmem tb`).
    pub sndbuf: u32,
    /// Memory of the write queue (`skmem w`).
    pub wmem_queued: u32,
    /// Receive buffer (`skmem rb`).
    pub rcvbuf: u32,
    /// Memory of what was received and not read (`skmem r`).
    pub rmem_alloc: u32,
    /// Why the flow is not sending.
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
    /// Time since data was last sent; `None` if never.
    pub last_data_sent: Option<Nanos>,
    /// Time since data last came in order; before the first, since the connection opened.
    pub last_data_recv: Nanos,
    /// Time since the last ACK arrived.
    pub last_ack_recv: Nanos,
    /// Data segments that came out of order.
    pub rcv_ooopack: u32,
    /// Retransmission timeouts.
    pub timeouts: Timeouts,
    /// ECN was agreed.
    pub ecn: bool,
    /// Data with an ECN codepoint came.
    pub ecn_seen: bool,
    /// Timestamps are in use.
    pub timestamps: bool,
    /// SACK is in use.
    pub sack: bool,
    /// Shift of the peer's windows.
    pub snd_wscale: u8,
    /// Shift of our windows.
    pub rcv_wscale: u8,
}

/// Retransmission timeouts since a connection began, those of its SYN or SYN-ACK included
/// (`tcpi_total_rto`, `tcpi_total_rto_recoveries`, `tcpi_total_rto_time`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// Timeouts.
    pub total: u32,
    /// Rows of them without an acknowledgment in between.
    pub rows: u32,
    /// Time from the first timeout of each row until the loss was repaired.
    pub time: Nanos,
}
