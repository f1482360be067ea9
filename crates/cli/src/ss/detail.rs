//! What the options of `ss` add to a socket, in its words.

use neap::control::{
    MappingReport, MemoryReport, RelayReport, SocketReport, StackReport, TcpReport, TimerReport,
};
use std::fmt::Display;

/// Degree of reordering that is not worth a word, as in `ss`.
const USUAL_REORDERING: u32 = 3;
/// A pacing rate without a limit.
const NO_LIMIT: u64 = u64::MAX;

/// `-o`
pub(super) fn timer(timer: &TimerReport) -> String {
    format!("timer:({},{},{})", timer.kind, left(timer.left / 1_000_000), timer.tries)
}

/// Milliseconds as `ss -o` prints them.
fn left(ms: u64) -> String {
    let (minutes, seconds, ms) = (ms / 60_000, ms / 1000 % 60, ms % 1000);
    match (minutes, seconds) {
        (0, 0) => format!("{ms:03}ms"),
        (0, 1..=9) if ms > 0 => format!("{seconds}.{ms:03}ms"),
        (0, _) => format!("{seconds}sec"),
        (10.., _) | (_, 0) => format!("{minutes}min"),
        _ => format!("{minutes}min{seconds}sec"),
    }
}

/// `-e`
pub(super) fn extended(stack: &StackReport, socket: &SocketReport) -> String {
    let mut words = Vec::new();
    if stack.uid != 0 {
        words.push(format!("uid:{}", stack.uid));
    }
    words.extend(socket.id.map(|id| format!("sk:{id:x}")));
    let is_any = socket.local.is_ipv6() && socket.remote.is_none();
    if is_any {
        words.push(format!("v6only:{}", u8::from(!socket.dual)));
    }
    words.push("<->".to_owned());
    words.join(" ")
}

/// `-m`. neap has no forward allocation, no memory for options and no backlog.
pub(super) fn memory(memory: &MemoryReport) -> String {
    let MemoryReport { rmem_alloc, rcvbuf, below, sndbuf, wmem_queued, drops, .. } = memory;
    let drops = drops.map(|drops| format!(",d{drops}")).unwrap_or_default();
    format!("skmem:(r{rmem_alloc},rb{rcvbuf},t{below},tb{sndbuf},f0,w{wmem_queued},o0,bl0{drops})")
}

/// Words of a line, with those left out that say nothing.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn flag(&mut self, is_on: bool, word: &str) {
        if is_on {
            self.0.push(word.to_owned());
        }
    }

    fn always(&mut self, name: &str, value: impl Display) {
        self.0.push(format!("{name}:{value}"));
    }

    fn some(&mut self, name: &str, value: impl Into<u64>) {
        let value = value.into();
        if value > 0 {
            self.always(name, value);
        }
    }

    /// Nanoseconds as milliseconds.
    fn time(&mut self, name: &str, nanos: u64) {
        if nanos > 0 {
            self.always(name, millis(nanos));
        }
    }

    /// A part of the busy time.
    fn limited(&mut self, name: &str, nanos: u64, busy: u64) {
        if nanos >= 1_000_000 {
            let percent = 100.0 * nanos as f64 / busy.max(1) as f64;
            self.always(name, format_args!("{}ms({percent:.1}%)", nanos / 1_000_000));
        }
    }
}

/// Nanoseconds as milliseconds with microseconds, in six digits as `%g`.
fn millis(nanos: u64) -> String {
    let ms = (nanos / 1000) as f64 / 1000.0;
    let whole_digits = if ms >= 1.0 { ms.log10() as usize + 1 } else { 1 };
    let text = format!("{ms:.*}", 3.min(6_usize.saturating_sub(whole_digits)));
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Parts of 256, as a factor.
fn gain(parts: u32) -> String {
    let text = format!("{:.5}", f64::from(parts) / 256.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Bytes per second as `ss` prints rates.
fn rate(bytes: u64) -> String {
    format!("{}bps", u128::from(bytes) * 8)
}

/// `-i`: the words of `ss` in its order, then those of neap: what blocks the flow, and its bytes by
/// place.
pub(super) fn tcp(tcp: &TcpReport) -> String {
    let mut words = Words::default();
    path(&mut words, tcp);
    traffic(&mut words, tcp);
    recovery(&mut words, tcp);
    places(&mut words, tcp);
    words.0.join(" ")
}

fn path(words: &mut Words, tcp: &TcpReport) {
    words.flag(tcp.timestamps, "ts");
    words.flag(tcp.sack, "sack");
    words.flag(tcp.ecn, "ecn");
    words.flag(tcp.ecn_seen, "ecnseen");
    words.flag(true, &tcp.congestion);
    if tcp.snd_wscale | tcp.rcv_wscale != 0 {
        words.always("wscale", format_args!("{},{}", tcp.snd_wscale, tcp.rcv_wscale));
    }
    words.time("rto", tcp.rto);
    words.some("backoff", tcp.backoff);
    if tcp.rtt > 0 {
        words.always("rtt", format_args!("{}/{}", millis(tcp.rtt), millis(tcp.rttvar)));
    }
    words.time("ato", tcp.ato);
    words.some("mss", tcp.snd_mss);
    words.some("pmtu", tcp.pmtu);
    words.some("rcvmss", tcp.rcv_mss);
    words.some("advmss", tcp.advmss);
    words.some("cwnd", tcp.snd_cwnd);
    words.some("ssthresh", tcp.snd_ssthresh.unwrap_or(0));
}

fn traffic(words: &mut Words, tcp: &TcpReport) {
    words.some("bytes_sent", tcp.bytes_sent);
    words.some("bytes_retrans", tcp.bytes_retrans);
    words.some("bytes_acked", tcp.bytes_acked);
    words.some("bytes_received", tcp.bytes_received);
    words.some("segs_out", tcp.segs_out);
    words.some("segs_in", tcp.segs_in);
    words.some("data_segs_out", tcp.data_segs_out);
    words.some("data_segs_in", tcp.data_segs_in);
    if let Some((bandwidth, min_rtt, pacing, cwnd)) = tcp.model {
        let min_rtt = if min_rtt == u64::MAX { 0 } else { min_rtt };
        let mut model = format!("bw:{},mrtt:{}", rate(bandwidth), millis(min_rtt));
        for (name, parts) in [("pacing_gain", pacing), ("cwnd_gain", cwnd)] {
            if parts > 0 {
                model += &format!(",{name}:{}", gain(parts));
            }
        }
        words.always(&tcp.congestion, format_args!("({model})"));
    }
    if tcp.rtt > 0 {
        let window = u128::from(tcp.snd_cwnd) * u128::from(tcp.snd_mss);
        let bits = window * 8 * 1_000_000_000 / u128::from(tcp.rtt);
        words.flag(true, &format!("send {bits}bps"));
    }
    // As in the kernel, where what was never sent counts from the beginning.
    let times = [
        ("lastsnd", tcp.last_data_sent.unwrap_or(tcp.last_ack_recv)),
        ("lastrcv", tcp.last_data_recv),
        ("lastack", tcp.last_ack_recv),
    ];
    times.iter().for_each(|(name, nanos)| words.some(name, nanos / 1_000_000));
    if tcp.pacing_rate > 0 && tcp.pacing_rate != NO_LIMIT {
        let mut paced = format!("pacing_rate {}", rate(tcp.pacing_rate));
        if tcp.max_pacing_rate != NO_LIMIT {
            paced += &format!("/{}", rate(tcp.max_pacing_rate));
        }
        words.flag(true, &paced);
    }
    if let Some(delivered) = tcp.delivery_rate {
        words.flag(true, &format!("delivery_rate {}", rate(delivered)));
    }
    words.some("delivered", tcp.delivered);
    words.some("delivered_ce", tcp.delivered_ce);
    words.flag(tcp.delivery_rate_app_limited, "app_limited");
}

fn recovery(words: &mut Words, tcp: &TcpReport) {
    if tcp.busy_time >= 1_000_000 {
        words.always("busy", format_args!("{}ms", tcp.busy_time / 1_000_000));
    }
    words.limited("rwnd_limited", tcp.rwnd_limited, tcp.busy_time);
    words.limited("sndbuf_limited", tcp.sndbuf_limited, tcp.busy_time);
    words.some("unacked", tcp.unacked);
    if tcp.retrans + tcp.total_retrans > 0 {
        words.always("retrans", format_args!("{}/{}", tcp.retrans, tcp.total_retrans));
    }
    words.some("lost", tcp.lost);
    words.some("sacked", tcp.sacked);
    words.some("dsack_dups", tcp.dsack_dups);
    if tcp.reordering != USUAL_REORDERING {
        words.some("reordering", tcp.reordering);
    }
    words.some("reord_seen", tcp.reord_seen);
    words.time("rcv_rtt", tcp.rcv_rtt);
    words.some("rcv_space", tcp.rcv_space);
    words.some("rcv_ssthresh", tcp.rcv_ssthresh);
    words.some("notsent", tcp.notsent_bytes);
    words.time("minrtt", tcp.min_rtt.unwrap_or(0));
    words.some("rcv_ooopack", tcp.rcv_ooopack);
    words.some("snd_wnd", tcp.snd_wnd);
    words.some("rcv_wnd", tcp.rcv_wnd);
}

fn places(words: &mut Words, tcp: &TcpReport) {
    words.limited("small_queue_limited", tcp.small_queue_limited, tcp.busy_time);
    words.limited("pacing_limited", tcp.pacing_limited, tcp.busy_time);
    words.limited("cwnd_limited", tcp.cwnd_limited, tcp.busy_time);
    words.always("blocked", &tcp.blocked);
    words.always("write_queue", tcp.notsent_bytes);
    words.always("qdisc", tcp.below_bytes.saturating_sub(tcp.device_bytes));
    words.always("device", tcp.device_bytes);
    words.always("wire", u64::from(tcp.unacked_bytes).saturating_sub(tcp.below_bytes));
}

/// `-i` of a connection that is relayed: where to, the bytes that are there, and what they wait
/// for.
pub(super) fn relay(relay: &RelayReport) -> String {
    let mut words = Words::default();
    words.always("far", relay.far);
    words.always("held_for_far", relay.held_for_far);
    words.always("held_for_peer", relay.held_for_peer);
    if let Some(not_sent) = relay.not_sent {
        words.always("far_write_queue", not_sent);
    }
    if let Some(in_flight) = relay.in_flight {
        words.always("far_wire", in_flight);
    }
    if !relay.waits_for.is_empty() {
        words.always("waits_for", relay.waits_for.join(","));
    }
    words.0.join(" ")
}

/// `-i` of a mapping: when it was used last, and whom it speaks with.
pub(super) fn mapping(mapping: &MappingReport) -> String {
    let mut words = Words::default();
    words.flag(mapping.published, "published");
    words.always("lastused", mapping.last_used / 1_000_000);
    if !mapping.peers.is_empty() {
        let peers: Vec<_> = mapping.peers.iter().map(ToString::to_string).collect();
        words.always("peers", peers.join(","));
    }
    words.0.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_says_when_it_was_used_and_for_whom() {
        let mut report = MappingReport::default();
        report.last_used = 1_999_999;
        assert_eq!(mapping(&report), "lastused:1");
        report.published = true;
        report.peers = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().expect("one")).into();
        assert_eq!(mapping(&report), "published lastused:1 peers:192.0.2.1,2001:db8::1");
    }

    #[test]
    fn a_relay_says_what_is_known_of_it() {
        let mut report = RelayReport::new("192.0.2.7:80".parse().expect("an address"));
        assert_eq!(relay(&report), "far:192.0.2.7:80 held_for_far:0 held_for_peer:0");
        (report.held_for_far, report.not_sent, report.in_flight) = (1, Some(2), Some(3));
        report.waits_for = vec!["far".to_owned(), "rate".to_owned()];
        assert_eq!(
            relay(&report),
            "far:192.0.2.7:80 held_for_far:1 held_for_peer:0 far_write_queue:2 far_wire:3 \
             waits_for:far,rate"
        );
    }

    #[test]
    fn times_are_printed_as_by_ss() {
        assert_eq!(left(7), "007ms");
        assert_eq!(left(1200), "1.200ms");
        assert_eq!(left(5000), "5sec");
        assert_eq!(left(45_600), "45sec");
        assert_eq!(left(114_000), "1min54sec");
        assert_eq!(left(119 * 60_000 + 30_000), "119min");
        assert_eq!(millis(18_000), "0.018");
        assert_eq!(millis(204_000_000), "204");
        assert_eq!(millis(30_900), "0.03");
        assert_eq!(millis(12_345_678_000), "12345.7");
        assert_eq!(gain(739), "2.88672");
    }
}
