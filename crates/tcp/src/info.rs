//! `TCP_INFO`: what `ss -tin` shows, and where the bytes of a flow are.

use crate::congestion::PathModel;
use crate::connection::Connection;
use crate::sender::recovery::CaState;
use crate::state::State;
use crate::time::{Instant, Nanos, Rate};
use crate::transmit::TxBlocked;

/// Figures of one connection, by the names of `struct tcp_info` without the prefix. Counts are wire
/// segments, sizes bytes, times nanoseconds.
#[derive(Clone, Debug, PartialEq)]
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
    /// That rate was limited by the application.
    pub delivery_rate_app_limited: bool,
    /// Segments delivered.
    pub delivered: u64,
    /// Of these, marked.
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
    /// Of it, what devices have.
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
    /// Of it, limited by the peer's window.
    pub rwnd_limited: Nanos,
    /// Of it, limited by the send buffer.
    pub sndbuf_limited: Nanos,
    /// Of it, held back by the small-queue limit.
    pub small_queue_limited: Nanos,
    /// Of it, held back by pacing.
    pub pacing_limited: Nanos,
    /// Of it, limited by the congestion window.
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

impl Connection {
    /// All figures at `now`.
    pub fn info(&self, now: Instant) -> TcpInfo {
        let (sender, receiver) = (&self.sender, &self.receiver);
        let counts = sender.board.counts();
        let recovery = &sender.recovery;
        let times = self.chronograph.times(now);
        let min_rtt = Some(sender.rtt.min_rtt()).filter(|&min| min != Nanos::MAX);
        TcpInfo {
            state: self.state,
            ca_state: recovery.state,
            congestion: sender.controller.name(),
            model: sender.controller.model(),
            retransmits: recovery.retransmits.max(u32::from(self.syn_retransmits)),
            probes: self.probes_out.into(),
            backoff: sender.rtt.shift().max(self.probe_backoff.into()),
            rto: sender.rtt.rto(),
            ato: receiver.ato(),
            snd_mss: sender.mss,
            quickack: receiver.quickack(),
            rcv_mss: receiver.rcv_mss(),
            advmss: receiver.advmss(),
            pmtu: self.path.mtu,
            unacked: counts.packets_out,
            sacked: counts.sacked_out,
            lost: counts.lost_out,
            retrans: counts.retrans_out,
            rtt: sender.rtt.srtt(),
            rttvar: sender.rtt.rttvar(),
            min_rtt,
            rcv_rtt: receiver.rcv_rtt(),
            rcv_space: receiver.rcv_space(),
            rcv_ssthresh: receiver.rcv_ssthresh(),
            window_clamp: receiver.window_clamp(),
            snd_ssthresh: sender.window.ssthresh,
            snd_cwnd: sender.window.cwnd,
            reordering: recovery.reordering,
            snd_wnd: sender.wnd,
            rcv_wnd: receiver.wnd(),
            total_retrans: sender.total_retransmitted,
            pacing_rate: sender.pacer.rate(),
            pacing_delay: sender.pacer.backlog(now),
            max_pacing_rate: sender.pacer.max_rate(),
            bytes_acked: sender.bytes_acked,
            bytes_received: receiver.bytes_received(),
            bytes_sent: sender.bytes_sent,
            bytes_retrans: sender.bytes_retransmitted,
            segs_out: self.segs_out,
            segs_in: self.segs_in,
            data_segs_out: sender.data_segs_out,
            data_segs_in: self.data_segs_in,
            delivery_rate: sender.rate.rate(sender.mss),
            delivery_rate_app_limited: sender.rate.is_rate_app_limited(),
            // Linux counts the SYN.
            delivered: sender.rate.delivered() + u64::from(self.state.is_synchronized()),
            delivered_ce: sender.rate.delivered_ce(),
            dsack_dups: sender.dsack_dups,
            reord_seen: recovery.rack.has_seen_reordering(),
            notsent_bytes: sender.queue.len(),
            unacked_bytes: sender.nxt.bytes_since(sender.una),
            unread_bytes: receiver.unread(),
            below_bytes: self.account.bytes(),
            device_bytes: self.account.device_bytes(),
            sndbuf: self.sndbuf,
            wmem_queued: self.memory(),
            rcvbuf: receiver.rcvbuf(),
            rmem_alloc: receiver.rmem_alloc(),
            blocked: self.blocked,
            busy_time: times.busy,
            rwnd_limited: times.rwnd,
            sndbuf_limited: times.sndbuf,
            small_queue_limited: times.small_queue,
            pacing_limited: times.pacing,
            cwnd_limited: times.cwnd,
            last_data_sent: (sender.last_sent != Instant::ZERO)
                .then(|| now.since(sender.last_sent)),
            last_data_recv: now.since(receiver.last_data().max(self.syn_sent_at)),
            last_ack_recv: now.since(sender.last_ack_at),
            rcv_ooopack: receiver.ofo_segments(),
            timeouts: self
                .rare
                .as_ref()
                .map_or(Timeouts::default(), |rare| rare.timeouts.totals(now)),
            ecn: sender.ecn,
            ecn_seen: receiver.has_seen_ecn(),
            timestamps: self.timestamps,
            sack: sender.sack,
            snd_wscale: self.snd_wscale,
            rcv_wscale: self.rcv_wscale,
        }
    }
}

/// Retransmission timeouts since a connection began, those of its SYN or SYN-ACK included
/// (`tcpi_total_rto`, `tcpi_total_rto_recoveries`, `tcpi_total_rto_time`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeouts.
    pub total: u32,
    /// Rows of them without an acknowledgment in between.
    pub rows: u32,
    /// Time from the first timeout of each row until the loss was repaired.
    pub time: Nanos,
}

/// Counts [`Timeouts`]. O(1).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimeoutTally {
    timeouts: Timeouts,
    /// First timeout of a row that goes on.
    since: Option<Instant>,
}

impl TimeoutTally {
    /// `row` timeouts, the first of a row, that took `time` altogether.
    pub(crate) fn after_row(row: u32, time: Nanos) -> Self {
        Self { timeouts: Timeouts { total: row, rows: 1, time }, since: None }
    }

    /// A timeout (`tcp_update_rto_stats`).
    pub(crate) fn count(&mut self, now: Instant, is_first_of_row: bool) {
        let timeouts = &mut self.timeouts;
        timeouts.total = timeouts.total.saturating_add(1);
        if is_first_of_row {
            timeouts.rows = timeouts.rows.saturating_add(1);
            self.since = Some(now);
        }
    }

    /// The loss is repaired (`tcp_update_rto_time`).
    pub(crate) fn end_row(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.timeouts.time = self.timeouts.time + now.since(since);
        }
    }

    /// The figures at `now`.
    fn totals(&self, now: Instant) -> Timeouts {
        let running = self.since.map_or(Nanos::ZERO, |since| now.since(since));
        Timeouts { time: self.timeouts.time + running, ..self.timeouts }
    }
}

/// What the time of a busy flow is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Spent {
    Sending,
    Rwnd,
    Sndbuf,
    SmallQueue,
    Pacing,
    Cwnd,
}

/// Integrals over [`TxBlocked`] (Linux's chronographs, and neap's finer ones). O(1) per change; no
/// memory before the first data.
#[derive(Clone, Debug, Default)]
pub struct Chronograph(Option<Box<Running>>);

#[derive(Clone, Debug)]
struct Running {
    since: Instant,
    /// `None` while idle.
    now_on: Option<Spent>,
    totals: [Nanos; 6],
}

impl Running {
    /// The totals at `now`.
    fn totals(&self, now: Instant) -> [Nanos; 6] {
        let mut totals = self.totals;
        if let Some(spent) = self.now_on {
            totals[spent as usize] = totals[spent as usize] + now.since(self.since);
        }
        totals
    }
}

/// What a chronograph has measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// All but idle time.
    pub busy: Nanos,
    /// Limited by the peer's window.
    pub rwnd: Nanos,
    /// Limited by the send buffer.
    pub sndbuf: Nanos,
    /// Held back by the small-queue limit.
    pub small_queue: Nanos,
    /// Held back by pacing.
    pub pacing: Nanos,
    /// Limited by the congestion window.
    pub cwnd: Nanos,
}

impl Chronograph {
    /// From `now` on the flow is blocked by `blocked`; `in_flight` says whether anything is out,
    /// `starved` whether the application was refused room while the window has some.
    pub fn turn(&mut self, now: Instant, blocked: TxBlocked, in_flight: bool, starved: bool) {
        let next = match blocked {
            TxBlocked::NoData if starved => Some(Spent::Sndbuf),
            TxBlocked::NoData if in_flight => Some(Spent::Sending),
            TxBlocked::NoData | TxBlocked::NotOpen => None,
            TxBlocked::Rwnd => Some(Spent::Rwnd),
            TxBlocked::Memory => Some(Spent::Sndbuf),
            TxBlocked::SmallQueue | TxBlocked::Autocork => Some(Spent::SmallQueue),
            TxBlocked::Pacing(_) => Some(Spent::Pacing),
            TxBlocked::Cwnd => Some(Spent::Cwnd),
            TxBlocked::Nagle | TxBlocked::Defer | TxBlocked::Egress | TxBlocked::Yield => {
                Some(Spent::Sending)
            }
        };
        if next.is_none() && self.0.is_none() {
            return;
        }
        let start = || Box::new(Running { since: now, now_on: next, totals: [Nanos::ZERO; 6] });
        let running = self.0.get_or_insert_with(start);
        if next != running.now_on {
            running.totals = running.totals(now);
            running.since = now;
            running.now_on = next;
        }
    }

    /// The totals at `now`.
    pub fn times(&self, now: Instant) -> Times {
        let Some(running) = &self.0 else { return Times::default() };
        let totals = running.totals(now);
        let of = |spent: Spent| totals[spent as usize];
        Times {
            busy: totals.iter().fold(Nanos::ZERO, |sum, &part| sum + part),
            rwnd: of(Spent::Rwnd),
            sndbuf: of(Spent::Sndbuf),
            small_queue: of(Spent::SmallQueue),
            pacing: of(Spent::Pacing),
            cwnd: of(Spent::Cwnd),
        }
    }
}
