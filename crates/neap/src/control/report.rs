//! What the protocol says of a stack, its sockets and its counters.

use crate::info::{BucketInfo, FlowInfo, ListenerInfo, State, Timer, UdpInfo};
use neap_tcp::info::TcpInfo;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// The process that has a stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StackReport {
    /// Version of the protocol.
    pub neap: u32,
    /// Number of the process.
    pub pid: u32,
    /// Name of the stack.
    pub name: String,
    /// Name of the program.
    pub program: String,
    /// Number of the user.
    pub uid: u32,
    /// Nanoseconds since the stack's clock began.
    pub uptime: u64,
    /// Addresses of the stack with their prefix lengths.
    #[serde(default)]
    pub addresses: Vec<String>,
}

/// A counter or a gauge.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct CounterReport {
    /// Its name, for TCP, IP and UDP as `nstat` prints it; `drop.` and a reason for packets that
    /// were dropped.
    pub name: String,
    /// Its value.
    pub value: u64,
    /// Whether it may fall.
    #[serde(default)]
    pub gauge: bool,
}

/// The timer of a socket.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimerReport {
    /// `on`, `persist`, `keepalive` or `timewait`.
    pub kind: String,
    /// Nanoseconds until it expires.
    pub left: u64,
    /// How often it has expired in a row.
    pub tries: u32,
}

impl From<Timer> for TimerReport {
    fn from(Timer { kind, left, tries, .. }: Timer) -> Self {
        Self { kind: kind.name().to_owned(), left: left.0, tries }
    }
}

/// Memory of a socket, in bytes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// What was received and not read.
    pub rmem_alloc: u64,
    /// Receive buffer.
    pub rcvbuf: u64,
    /// What is in qdiscs and devices.
    pub below: u64,
    /// Send buffer.
    pub sndbuf: u64,
    /// What is in the write queue.
    pub wmem_queued: u64,
    /// Datagrams that were dropped for lack of memory, of a UDP socket.
    pub drops: Option<u64>,
}

/// What an application holds of a connection that it relays to another one, the far side.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayReport {
    /// The address that the other connection goes to, or comes from.
    pub far: SocketAddr,
    /// Bytes that the application has taken for the far side, which has not taken them yet.
    #[serde(default)]
    pub held_for_far: u64,
    /// Bytes that the application has taken for this connection's peer, of which this connection's
    /// socket has taken none yet.
    #[serde(default)]
    pub held_for_peer: u64,
    /// Bytes that the socket of the far side has taken and not sent; `None` if it has no such
    /// queue.
    #[serde(default)]
    pub not_sent: Option<u64>,
    /// Bytes that the socket of the far side has sent, and that are not acknowledged.
    #[serde(default)]
    pub in_flight: Option<u64>,
    /// What bytes of the relay wait for: `peer` or `far`, which take no more now; `rate`, which
    /// gives them their turn; `memory`, as all relays together hold too much to take more.
    #[serde(default)]
    pub waits_for: Vec<String>,
}

impl RelayReport {
    /// Returns a relay to this address, which holds nothing.
    pub fn new(far: SocketAddr) -> Self {
        let (held_for_far, held_for_peer, waits_for) = (0, 0, Vec::new());
        Self { far, held_for_far, held_for_peer, not_sent: None, in_flight: None, waits_for }
    }
}

/// An address and port of a peer, or an identifier of its pings, for which an application has a
/// socket elsewhere.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default)]
#[non_exhaustive]
pub struct MappingReport {
    /// Nanoseconds since it was used last.
    pub last_used: u64,
    /// Whom the peer has sent to lately.
    pub peers: Vec<IpAddr>,
    /// Whether it is that of a published port, which does not age.
    pub published: bool,
}

/// A socket, or a connection without one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SocketReport {
    /// `tcp` or `udp`; `icmp` or `icmp6` for pings, whose ports are identifiers.
    pub netid: String,
    /// State, by the names that `ss` prints.
    pub state: String,
    /// Bytes received and unread, as `ss` has them; of a listener the connections that wait.
    pub recv_q: u64,
    /// Bytes written and not acknowledged; of a listener the connections that may wait; of a UDP
    /// socket the bytes below it.
    pub send_q: u64,
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Whether a socket on `[::]` serves IPv4 as well.
    #[serde(default)]
    pub dual: bool,
    /// The peer's address and port.
    pub remote: Option<SocketAddr>,
    /// Where the application relays the connection to.
    pub far: Option<SocketAddr>,
    /// What the application holds of a connection that it relays.
    #[serde(default)]
    pub relay: Option<RelayReport>,
    /// What is known of a mapping of the application: `local` is then the end outside, unspecified
    /// where that is not known, and `remote` the peer in the stack.
    #[serde(default)]
    pub mapping: Option<MappingReport>,
    /// Name of the interface that it is bound to by its link-local address, or else by which its
    /// packets leave now; `None` on the loopback, without a peer, and without a route.
    #[serde(default)]
    pub interface: Option<String>,
    /// Number of the socket among those of its protocol; `None` for a connection without a socket.
    pub id: Option<u64>,
    /// What it waits for by time.
    pub timer: Option<TimerReport>,
    /// Its memory.
    pub memory: Option<MemoryReport>,
    /// Figures of a connection.
    pub tcp: Option<TcpReport>,
}

/// Names of states as `ss` prints them.
const fn state_name(state: State) -> &'static str {
    match state {
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECV",
        State::Established => "ESTAB",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        State::TimeWait => "TIME-WAIT",
        State::Closed => "UNCONN",
    }
}

impl SocketReport {
    /// Returns a socket of this kind and state, of which nothing else is known.
    pub fn new(netid: &str, state: &str, local: SocketAddr) -> Self {
        Self {
            netid: netid.to_owned(),
            state: state.to_owned(),
            recv_q: 0,
            send_q: 0,
            local,
            dual: false,
            remote: None,
            far: None,
            relay: None,
            mapping: None,
            interface: None,
            id: None,
            timer: None,
            memory: None,
            tcp: None,
        }
    }

    /// A socket of a connection that the application relays, if it does.
    pub(super) fn relayed(self, relay: Option<RelayReport>) -> Self {
        Self { far: relay.as_ref().map(|relay| relay.far), relay, ..self }
    }

    pub(super) fn of_flow(flow: &FlowInfo) -> Self {
        let info = &flow.info;
        let memory = MemoryReport {
            rmem_alloc: info.rmem_alloc.into(),
            rcvbuf: info.rcvbuf.into(),
            below: info.below_bytes,
            sndbuf: info.sndbuf.into(),
            wmem_queued: info.wmem_queued.into(),
            drops: None,
        };
        Self {
            recv_q: info.unread_bytes.into(),
            send_q: u64::from(info.notsent_bytes) + u64::from(info.unacked_bytes),
            remote: Some(flow.remote),
            id: Some(flow.id),
            timer: flow.timer.map(TimerReport::from),
            memory: Some(memory),
            tcp: Some(TcpReport::from(info)),
            ..Self::new("tcp", state_name(flow.state), flow.local)
        }
    }

    pub(super) fn of_listener(listener: &ListenerInfo) -> Self {
        Self {
            recv_q: listener.queued as u64,
            send_q: listener.max_queued as u64,
            dual: listener.is_dual,
            id: Some(listener.id),
            ..Self::new("tcp", "LISTEN", listener.local)
        }
    }

    pub(super) fn of_bucket(bucket: &BucketInfo) -> Self {
        Self {
            remote: Some(bucket.remote),
            timer: bucket.timer.map(TimerReport::from),
            ..Self::new("tcp", state_name(bucket.state), bucket.local)
        }
    }

    pub(super) fn of_udp(udp: &UdpInfo) -> Self {
        let memory = MemoryReport {
            rmem_alloc: udp.rmem_alloc.into(),
            rcvbuf: udp.rcvbuf.into(),
            below: udp.below_bytes,
            sndbuf: udp.sndbuf.into(),
            wmem_queued: 0,
            drops: Some(udp.drops),
        };
        let state = if udp.remote.is_some() { "ESTAB" } else { "UNCONN" };
        Self {
            recv_q: udp.rmem_alloc.into(),
            send_q: udp.below_bytes,
            dual: udp.is_dual,
            remote: udp.remote,
            id: Some(udp.id),
            memory: Some(memory),
            ..Self::new("udp", state, udp.local)
        }
    }
}

/// The fields of [`TcpReport`], each with its value from a [`TcpInfo`].
macro_rules! tcp_report {
    ($info:ident: $($(#[$doc:meta])* $field:ident: $type:ty = $value:expr,)+) => {
        /// Figures of a connection, by the names and with the meanings of
        /// [`TcpInfo`](crate::TcpInfo): counts, bytes, nanoseconds, and bytes per second.
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct TcpReport {
            $(
                #[doc = concat!("`", stringify!($field), "` of `TcpInfo`.")]
                $(#[$doc])*
                pub $field: $type,
            )+
        }

        impl From<&TcpInfo> for TcpReport {
            fn from($info: &TcpInfo) -> Self {
                Self { $($field: $value,)+ }
            }
        }
    };
}

tcp_report! { info:
    ca_state: String = info.ca_state.to_string(),
    congestion: String = info.congestion.to_owned(),
    /// Bandwidth, minimum round-trip time, and both gains in parts of 256.
    model: Option<(u64, u64, u32, u32)> = info.model.as_ref().map(|model| {
        (model.bandwidth.0, model.min_rtt.0, model.pacing_gain, model.cwnd_gain)
    }),
    retransmits: u32 = info.retransmits,
    probes: u32 = info.probes,
    backoff: u32 = info.backoff,
    rto: u64 = info.rto.0,
    ato: u64 = info.ato.0,
    quickack: bool = info.quickack,
    snd_mss: u32 = info.snd_mss,
    largest_frame: u32 = info.largest_frame,
    rcv_mss: u32 = info.rcv_mss,
    advmss: u32 = info.advmss,
    pmtu: u32 = info.pmtu,
    unacked: u32 = info.unacked,
    sacked: u32 = info.sacked,
    lost: u32 = info.lost,
    retrans: u32 = info.retrans,
    rtt: u64 = info.rtt.0,
    rttvar: u64 = info.rttvar.0,
    min_rtt: Option<u64> = info.min_rtt.map(|time| time.0),
    rcv_rtt: u64 = info.rcv_rtt.0,
    rcv_space: u32 = info.rcv_space,
    rcv_ssthresh: u32 = info.rcv_ssthresh,
    window_clamp: u32 = info.window_clamp,
    /// `None` before the first congestion.
    snd_ssthresh: Option<u32> = Some(info.snd_ssthresh).filter(|&limit| limit != u32::MAX),
    snd_cwnd: u32 = info.snd_cwnd,
    reordering: u32 = info.reordering,
    snd_wnd: u32 = info.snd_wnd,
    rcv_wnd: u32 = info.rcv_wnd,
    total_retrans: u32 = info.total_retrans,
    pacing_rate: u64 = info.pacing_rate.0,
    pacing_delay: u64 = info.pacing_delay.0,
    max_pacing_rate: u64 = info.max_pacing_rate.0,
    bytes_acked: u64 = info.bytes_acked,
    bytes_received: u64 = info.bytes_received,
    bytes_sent: u64 = info.bytes_sent,
    bytes_retrans: u64 = info.bytes_retrans,
    segs_out: u64 = info.segs_out,
    segs_in: u64 = info.segs_in,
    data_segs_out: u64 = info.data_segs_out,
    data_segs_in: u64 = info.data_segs_in,
    delivery_rate: Option<u64> = info.delivery_rate.map(|rate| rate.0),
    delivery_rate_app_limited: bool = info.delivery_rate_app_limited,
    delivered: u64 = info.delivered,
    delivered_ce: u32 = info.delivered_ce,
    dsack_dups: u32 = info.dsack_dups,
    reord_seen: u32 = info.reord_seen,
    notsent_bytes: u32 = info.notsent_bytes,
    unacked_bytes: u32 = info.unacked_bytes,
    unread_bytes: u32 = info.unread_bytes,
    ofo_bytes: u32 = info.ofo_bytes,
    below_bytes: u64 = info.below_bytes,
    device_bytes: u64 = info.device_bytes,
    blocked: String = info.blocked.name().to_owned(),
    busy_time: u64 = info.busy_time.0,
    rwnd_limited: u64 = info.rwnd_limited.0,
    sndbuf_limited: u64 = info.sndbuf_limited.0,
    small_queue_limited: u64 = info.small_queue_limited.0,
    pacing_limited: u64 = info.pacing_limited.0,
    cwnd_limited: u64 = info.cwnd_limited.0,
    last_data_sent: Option<u64> = info.last_data_sent.map(|time| time.0),
    last_data_recv: u64 = info.last_data_recv.0,
    last_ack_recv: u64 = info.last_ack_recv.0,
    rcv_ooopack: u32 = info.rcv_ooopack,
    /// Their number.
    timeouts: u32 = info.timeouts.total,
    ecn: bool = info.ecn,
    ecn_seen: bool = info.ecn_seen,
    timestamps: bool = info.timestamps,
    sack: bool = info.sack,
    snd_wscale: u8 = info.snd_wscale,
    rcv_wscale: u8 = info.rcv_wscale,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_line_without_the_fields_of_later_versions_is_read() {
        let line = json!({
            "netid": "tcp", "state": "ESTAB", "recv_q": 1, "send_q": 2,
            "local": "192.0.2.1:80", "remote": "10.0.2.100:4000", "far": "192.0.2.7:80",
            "id": 3, "timer": null, "memory": null, "tcp": null, "later": [1],
        });
        let socket: SocketReport = serde_json::from_value(line).expect("a report");
        assert_eq!(socket.far, Some(address("192.0.2.7:80")));
        assert_eq!(socket.relay, None);
    }

    #[test]
    fn a_relay_keeps_its_address_where_earlier_versions_look_for_it() {
        let mut relay = RelayReport::new(address("192.0.2.7:80"));
        relay.waits_for.push("far".to_owned());
        let report = SocketReport::new("tcp", "ESTAB", address("192.0.2.1:80"));
        let report = report.relayed(Some(relay.clone()));
        let line = serde_json::to_value(&report).expect("JSON");
        assert_eq!(line["far"], Value::from("192.0.2.7:80"));
        let socket: SocketReport = serde_json::from_value(line).expect("a report");
        assert_eq!(socket.relay, Some(relay));
    }
}
