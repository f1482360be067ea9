//! `struct tcp_info` of Linux 6.18, byte for byte.

use crate::abi::*;
use neap_tcp::config::Config;
use neap_tcp::congestion::CaState;
use neap_tcp::congestion::PathModel;
use neap_tcp::info::TcpInfo;
use neap_tcp::state::State;
use neap_tcp::time::{Nanos, Rate};

/// `sizeof(struct tcp_info)`.
pub(super) const SIZE: usize = 280;

/// `TCP_INFINITE_SSTHRESH`.
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// `TCP_INIT_CWND`.
const INIT_CWND: u32 = 10;

/// The structure, written field by field.
struct Writer([u8; SIZE]);

impl Writer {
    fn u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }
    fn u16(&mut self, at: usize, value: u32) {
        let value = u16::try_from(value).unwrap_or(u16::MAX);
        self.0[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    }
    fn u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    fn u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    fn micros(&mut self, at: usize, span: Nanos) {
        self.u32(at, u32::try_from(span.as_micros()).unwrap_or(u32::MAX));
    }
    fn millis(&mut self, at: usize, span: Nanos) {
        self.u32(at, u32::try_from(span.as_millis()).unwrap_or(u32::MAX));
    }
}

/// `struct tcp_bbr_info`, five words: bandwidth in bytes per second, low and high, minimum RTT in
/// microseconds, gains.
pub(super) fn model(model: &PathModel) -> [u8; 20] {
    let Rate(bandwidth) = model.bandwidth;
    let min_rtt = u32::try_from(model.min_rtt.as_micros()).unwrap_or(u32::MAX);
    let (low, high) = (bandwidth as u32, (bandwidth >> 32) as u32);
    let mut bytes = [0; 20];
    let words = [low, high, min_rtt, model.pacing_gain, model.cwnd_gain];
    for (at, word) in bytes.chunks_exact_mut(4).zip(words) {
        at.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// `tcpi_state`.
pub(super) const fn state_number(state: State) -> u8 {
    match state {
        State::SynSent => TCP_SYN_SENT,
        State::SynReceived => TCP_SYN_RECV,
        State::Established => TCP_ESTABLISHED,
        State::FinWait1 => TCP_FIN_WAIT1,
        State::FinWait2 => TCP_FIN_WAIT2,
        State::CloseWait => TCP_CLOSE_WAIT,
        State::Closing => TCP_CLOSING,
        State::LastAck => TCP_LAST_ACK,
        // What waits in TIME-WAIT is not the socket.
        State::TimeWait | State::Closed => TCP_CLOSE,
    }
}

const fn ca_state_number(state: CaState) -> u8 {
    match state {
        CaState::Open => 0,
        CaState::Disorder => 1,
        CaState::Cwr => 2,
        CaState::Recovery => 3,
        CaState::Loss => 4,
    }
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// What a socket that sends nothing has in any state.
fn silent(state: u8, config: &Config, max_pacing_rate: Rate) -> Writer {
    let mut out = Writer([0; SIZE]);
    out.u8(0, state);
    out.u32(80, INIT_CWND);
    out.u32(88, config.tcp_reordering);
    out.u64(104, max_pacing_rate.0);
    out.u64(112, max_pacing_rate.0);
    out
}

/// The structure of a socket without a connection.
pub(super) fn fresh(config: &Config, max_pacing_rate: Rate) -> [u8; SIZE] {
    let mut out = silent(TCP_CLOSE, config, max_pacing_rate);
    out.u8(7, 1);
    out.u32(8, 1_000_000);
    out.u32(16, 536);
    out.u32(72, 250_000);
    out.u32(76, INFINITE_SSTHRESH);
    out.u32(148, u32::MAX);
    out.0
}

/// The structure of a listener. `queued` connections wait to be accepted, `most` may; these two are
/// where a connection has its flight.
pub(super) fn listener(
    config: &Config,
    max_pacing_rate: Rate,
    queued: usize,
    most: usize,
) -> [u8; SIZE] {
    let mut out = silent(TCP_LISTEN, config, max_pacing_rate);
    out.u32(24, narrow(queued as u64));
    out.u32(28, narrow(most as u64));
    out.0
}

/// The structure of a connection (`tcp_get_info`). What neap does not count is 0: fields for Fast
/// Open, rehashing and accurate ECN.
pub(super) fn connection(info: &TcpInfo) -> [u8; SIZE] {
    let mut out = Writer([0; SIZE]);
    head(&mut out, info);
    out.millis(44, info.last_data_sent.unwrap_or(info.last_ack_recv));
    out.millis(52, info.last_data_recv);
    out.millis(56, info.last_ack_recv);
    out.u32(60, info.pmtu);
    out.u32(64, info.rcv_ssthresh);
    out.micros(68, info.rtt);
    // Before the first sample Linux shows a quarter of the first timeout.
    let is_measured = info.rtt > Nanos::ZERO;
    out.micros(72, if is_measured { info.rttvar } else { Nanos::from_millis(250) });
    out.u32(76, info.snd_ssthresh.min(INFINITE_SSTHRESH));
    out.u32(80, info.snd_cwnd);
    out.u32(84, info.advmss);
    out.u32(88, info.reordering);
    out.micros(92, info.rcv_rtt);
    out.u32(96, info.rcv_space);
    out.u32(100, info.total_retrans);
    out.u64(104, info.pacing_rate.0);
    out.u64(112, info.max_pacing_rate.0);
    out.u64(120, info.bytes_acked);
    out.u64(128, info.bytes_received);
    out.u32(136, info.segs_out as u32);
    out.u32(140, info.segs_in as u32);
    out.u32(144, info.notsent_bytes);
    let min_rtt = info.min_rtt.map_or(u64::MAX, Nanos::as_micros);
    out.u32(148, narrow(min_rtt));
    out.u32(152, info.data_segs_in as u32);
    out.u32(156, info.data_segs_out as u32);
    out.u64(160, info.delivery_rate.map_or(0, |rate| rate.0));
    out.u64(168, info.busy_time.as_micros());
    out.u64(176, info.rwnd_limited.as_micros());
    out.u64(184, info.sndbuf_limited.as_micros());
    out.u32(192, info.delivered as u32);
    out.u32(196, info.delivered_ce);
    out.u64(200, info.bytes_sent);
    out.u64(208, info.bytes_retrans);
    out.u32(216, info.dsack_dups);
    out.u32(220, info.reord_seen);
    out.u32(224, info.rcv_ooopack);
    out.u32(228, info.snd_wnd);
    out.u32(232, info.rcv_wnd);
    out.u16(240, info.timeouts.total);
    out.u16(242, info.timeouts.rows);
    out.millis(244, info.timeouts.time);
    out.0
}

/// State, flags and counts, to `tcpi_retrans`.
fn head(out: &mut Writer, info: &TcpInfo) {
    out.u8(0, state_number(info.state));
    out.u8(1, ca_state_number(info.ca_state));
    out.u8(2, info.retransmits.min(255) as u8);
    out.u8(3, info.probes.min(255) as u8);
    out.u8(4, info.backoff.min(255) as u8);
    let flags = [
        (info.timestamps, TCPI_OPT_TIMESTAMPS),
        (info.sack, TCPI_OPT_SACK),
        (info.snd_wscale | info.rcv_wscale != 0, TCPI_OPT_WSCALE),
        (info.ecn, TCPI_OPT_ECN),
        (info.ecn_seen, TCPI_OPT_ECN_SEEN),
    ];
    let set = flags.iter().filter(|(is_set, _)| *is_set);
    out.u8(5, set.fold(0, |all, (_, flag)| all | flag));
    out.u8(6, (info.snd_wscale & 15) | (info.rcv_wscale << 4));
    out.u8(7, u8::from(info.delivery_rate_app_limited));
    out.micros(8, info.rto);
    out.micros(12, info.ato);
    out.u32(16, info.snd_mss);
    out.u32(20, info.rcv_mss);
    out.u32(24, info.unacked);
    out.u32(28, info.sacked);
    out.u32(32, info.lost);
    out.u32(36, info.retrans);
}
