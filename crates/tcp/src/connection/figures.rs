//! Fills in `TCP_INFO` ([`TcpInfo`]).

use super::Connection;
use super::deadlines::Deadline;
use crate::info::{TcpInfo, Timeouts, Timer, TimerKind};
use crate::state::State;
use crate::time::{Instant, Nanos};

impl Connection {
    /// Returns all figures of the connection at `now`.
    pub fn info(&self, now: Instant) -> TcpInfo {
        let (sender, receiver) = (&self.sender, &self.receiver);
        let counts = sender.counts();
        let (recovery, totals) = (sender.recovery(), sender.totals());
        let times = self.chronograph.times(now);
        let is_opening = matches!(self.state, State::SynSent | State::SynReceived);
        let min_rtt = Some(sender.rtt().min_rtt()).filter(|&min| min != Nanos::MAX);
        TcpInfo {
            state: self.state,
            ca_state: recovery.state(),
            congestion: sender.controller().name(),
            model: sender.controller().model(),
            retransmits: recovery.timeouts_in_row().max(u32::from(self.opening.retransmits)),
            probes: self.liveness.probes_out(),
            backoff: sender.rtt().shift().max(self.liveness.window_backoff().into()),
            rto: sender.rtt().rto(),
            ato: receiver.ato(),
            snd_mss: sender.mss(),
            largest_frame: self.largest_frame(),
            quickack: receiver.quickack(),
            rcv_mss: receiver.rcv_mss(),
            advmss: receiver.advmss(),
            pmtu: self.path.mtu,
            // The SYN is one.
            unacked: counts.packets_out + u32::from(is_opening),
            sacked: counts.sacked_out,
            lost: counts.lost_out,
            retrans: counts.retrans_out,
            rtt: sender.rtt().srtt(),
            rttvar: sender.rtt().rttvar(),
            min_rtt,
            rcv_rtt: receiver.rcv_rtt(),
            rcv_space: receiver.rcv_space(),
            rcv_ssthresh: receiver.rcv_ssthresh(),
            window_clamp: receiver.window_clamp(),
            snd_ssthresh: sender.window().ssthresh,
            snd_cwnd: sender.window().cwnd,
            reordering: recovery.reordering(),
            snd_wnd: sender.wnd(),
            rcv_wnd: receiver.wnd(),
            total_retrans: totals.total_retransmitted,
            pacing_rate: sender.pacer().rate(),
            pacing_delay: sender.pacer().backlog(now),
            max_pacing_rate: sender.pacer().max_rate(),
            bytes_acked: totals.bytes_acked,
            bytes_received: receiver.bytes_received() + u64::from(receiver.is_finished()),
            bytes_sent: totals.bytes_sent,
            bytes_retrans: totals.bytes_retransmitted,
            segs_out: self.segs_out,
            segs_in: self.segs_in,
            data_segs_out: totals.data_segs_out,
            data_segs_in: self.data_segs_in,
            delivery_rate: sender.rate().rate(sender.mss()),
            delivery_rate_app_limited: sender.rate().is_rate_app_limited(),
            // Linux counts the SYN.
            delivered: sender.rate().delivered() + u64::from(self.state.is_synchronized()),
            delivered_ce: sender.rate().delivered_ce(),
            dsack_dups: totals.dsack_dups,
            reord_seen: recovery.reorderings(),
            notsent_bytes: sender.unsent(),
            unacked_bytes: sender.unacked(),
            unread_bytes: receiver.unread(),
            ofo_bytes: receiver.ofo_bytes(),
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
            last_data_sent: (sender.last_sent() != Instant::ZERO)
                .then(|| now.since(sender.last_sent())),
            last_data_recv: now.since(receiver.last_data().max(self.opening.sent_at)),
            last_ack_recv: now.since(sender.last_ack_at()),
            rcv_ooopack: receiver.ofo_segments(),
            timeouts: self
                .rare
                .as_ref()
                .map_or(Timeouts::default(), |rare| rare.timeouts.totals(now)),
            ecn: sender.ecn(),
            ecn_seen: receiver.has_seen_ecn(),
            timestamps: self.opening.timestamps,
            sack: sender.sack(),
            snd_wscale: self.opening.snd_wscale,
            rcv_wscale: self.opening.rcv_wscale,
        }
    }

    /// Returns the timer that `ss -o` shows: what `icsk_pending` or `sk_timer` has in Linux.
    pub fn timer(&self, now: Instant) -> Option<Timer> {
        let retransmits =
            self.sender.recovery().timeouts_in_row().max(u32::from(self.opening.retransmits));
        let probes = self.liveness.probes_out();
        let kinds = [
            (Deadline::Retransmit, TimerKind::Retransmit, retransmits),
            (Deadline::LossProbe, TimerKind::Retransmit, retransmits),
            (Deadline::Reorder, TimerKind::Retransmit, retransmits),
            (Deadline::Probe, TimerKind::Persist, probes),
            (Deadline::Keepalive, TimerKind::Keepalive, probes),
            (Deadline::Orphan, TimerKind::Keepalive, probes),
        ];
        let armed = kinds.into_iter().find(|(deadline, ..)| self.deadlines.is_armed(*deadline));
        armed.map(|(deadline, kind, tries)| {
            Timer::new(kind, self.deadlines.get(deadline).since(now), tries)
        })
    }
}
