//! The report in iperf3's own JSON form (`-J`): the same keys with the same meaning.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::net::Info;
use super::plan::Until;
use super::report::{Start, StreamSummary, Summary, bits_per_second};
use super::streams::{Interval, Role};

/// Reports of single streams that are kept; a test of hours with many streams loses its last ones.
const MAX_KEPT: usize = 500_000;

/// The whole document.
#[derive(Debug, Default, Serialize)]
pub(crate) struct JsonReport {
    start: StartJson,
    intervals: Vec<IntervalJson>,
    end: EndJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    kept: usize,
}

#[derive(Debug, Default, Serialize)]
struct StartJson {
    connected: Vec<ConnectedJson>,
    version: String,
    system_info: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<TimestampJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connecting_to: Option<HostJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_connection: Option<HostJson>,
    #[serde(flatten)]
    test: Option<TestJson>,
}

#[derive(Debug, Serialize)]
struct HostJson {
    host: String,
    port: u16,
}

#[derive(Debug, Serialize)]
struct TimestampJson {
    time: String,
    timesecs: u64,
}

#[derive(Debug, Serialize)]
struct ConnectedJson {
    socket: u32,
    local_host: String,
    local_port: u16,
    remote_host: String,
    remote_port: u16,
}

#[derive(Debug, Serialize)]
struct TestJson {
    cookie: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_mss: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_mss_default: Option<u32>,
    target_bitrate: u64,
    sock_bufsize: usize,
    sndbuf_actual: usize,
    rcvbuf_actual: usize,
    test_start: TestStartJson,
}

#[derive(Debug, Serialize)]
struct TestStartJson {
    protocol: &'static str,
    num_streams: u32,
    blksize: u32,
    omit: u64,
    duration: u64,
    bytes: u64,
    blocks: u64,
    reverse: u8,
    tos: u8,
    target_bitrate: u64,
}

#[derive(Debug, Serialize)]
struct IntervalJson {
    streams: Vec<MovedJson>,
    sum: MovedJson,
}

/// Bytes in a time, of one stream or of all.
#[derive(Debug, Default, Serialize)]
struct MovedJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<u32>,
    start: f64,
    end: f64,
    seconds: f64,
    bytes: u64,
    bits_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retransmits: Option<u64>,
    #[serde(flatten)]
    connection: Option<ConnectionJson>,
    #[serde(flatten)]
    extremes: Option<ExtremesJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted: Option<bool>,
    sender: bool,
}

#[derive(Debug, Serialize)]
struct ConnectionJson {
    snd_cwnd: u64,
    snd_wnd: u64,
    rtt: u32,
    rttvar: u32,
    pmtu: u32,
    neap: FlowJson,
}

/// What iperf3 has no names for: where a sender's bytes are, and what its time was spent on.
#[derive(Debug, Serialize)]
struct FlowJson {
    unsent_bytes: u64,
    qdisc_bytes: u64,
    device_bytes: u64,
    in_flight_bytes: u64,
    busy_us: u64,
    sndbuf_limited_us: u64,
    rwnd_limited_us: u64,
    cwnd_limited_us: u64,
    small_queue_limited_us: u64,
    pacing_limited_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked_by: Option<&'static str>,
}

impl FlowJson {
    fn new(info: &Info) -> Self {
        let (bytes, spent) = (&info.bytes, &info.spent);
        Self {
            unsent_bytes: bytes.unsent,
            qdisc_bytes: bytes.qdisc,
            device_bytes: bytes.device,
            in_flight_bytes: bytes.in_flight,
            busy_us: spent.busy / 1000,
            sndbuf_limited_us: spent.send_buffer / 1000,
            rwnd_limited_us: spent.receive_window / 1000,
            cwnd_limited_us: spent.congestion_window / 1000,
            small_queue_limited_us: spent.small_queue / 1000,
            pacing_limited_us: spent.pacing / 1000,
            blocked_by: spent.blocks().first().map(|&(name, _)| name),
        }
    }
}

#[derive(Debug, Serialize)]
struct ExtremesJson {
    max_snd_cwnd: u64,
    max_snd_wnd: u64,
    max_rtt: u32,
    min_rtt: u32,
    mean_rtt: u64,
}

#[derive(Debug, Default, Serialize)]
struct EndJson {
    #[serde(flatten)]
    all: Option<EndOfTestJson>,
}

#[derive(Debug, Serialize)]
struct EndOfTestJson {
    streams: Vec<EndStreamJson>,
    sum_sent: MovedJson,
    sum_received: MovedJson,
    cpu_utilization_percent: CpuJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    sender_tcp_congestion: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receiver_tcp_congestion: Option<String>,
}

#[derive(Debug, Serialize)]
struct EndStreamJson {
    sender: MovedJson,
    receiver: MovedJson,
}

#[derive(Debug, Serialize)]
struct CpuJson {
    host_total: f64,
    host_user: f64,
    host_system: f64,
    remote_total: f64,
    remote_user: f64,
    remote_system: f64,
}

impl MovedJson {
    fn new(socket: Option<u32>, start: f64, end: f64, bytes: u64, sender: bool) -> Self {
        let seconds = end - start;
        let bits_per_second = bits_per_second(bytes, seconds);
        Self { socket, start, end, seconds, bytes, bits_per_second, sender, ..Self::default() }
    }
}

impl JsonReport {
    pub(crate) fn new() -> Self {
        let uname = rustix::system::uname();
        let parts =
            [uname.sysname(), uname.nodename(), uname.release(), uname.version(), uname.machine()];
        let start = StartJson {
            version: format!("neap {}", env!("CARGO_PKG_VERSION")),
            system_info: parts.map(std::ffi::CStr::to_string_lossy).join(" "),
            ..StartJson::default()
        };
        Self { start, ..Self::default() }
    }

    pub(crate) fn connecting(&mut self, host: &str, port: u16) {
        self.start.connecting_to = Some(HostJson { host: host.to_owned(), port });
    }

    pub(crate) fn accepted(&mut self, from: SocketAddr) {
        self.start.accepted_connection =
            Some(HostJson { host: from.ip().to_string(), port: from.port() });
    }

    pub(crate) fn start(&mut self, start: &Start<'_>) {
        let connected = |(id, local, remote): &(u32, SocketAddr, SocketAddr)| ConnectedJson {
            socket: *id,
            local_host: local.ip().to_string(),
            local_port: local.port(),
            remote_host: remote.ip().to_string(),
            remote_port: remote.port(),
        };
        self.start.connected = start.streams.iter().map(connected).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.start.timestamp = Some(TimestampJson { time: http_date(now), timesecs: now });
        let (duration, bytes, blocks) = match start.plan.until {
            Until::Time(time) => (time.as_secs(), 0, 0),
            Until::Bytes(bytes) => (0, bytes, 0),
            Until::Blocks(blocks) => (0, 0, blocks),
        };
        let mss = start.plan.socket.max_segment;
        self.start.test = Some(TestJson {
            cookie: start.cookie.text(),
            tcp_mss: mss,
            tcp_mss_default: mss.is_none().then_some(start.default_mss),
            target_bitrate: 0,
            sock_bufsize: start.plan.socket.buffer_size.unwrap_or(0),
            sndbuf_actual: start.send_buffer,
            rcvbuf_actual: start.receive_buffer,
            test_start: TestStartJson {
                protocol: "TCP",
                num_streams: start.plan.streams,
                blksize: start.plan.block,
                omit: start.plan.omit.as_secs(),
                duration,
                bytes,
                blocks,
                reverse: start.plan.reverse.into(),
                tos: 0,
                target_bitrate: 0,
            },
        });
    }

    pub(crate) fn interval(&mut self, interval: &Interval) {
        self.kept += interval.streams.len();
        if self.kept > MAX_KEPT {
            return;
        }
        let (start, end) = (interval.start, interval.end);
        let mut total = (0_u64, None);
        let mut streams = Vec::with_capacity(interval.streams.len());
        for stream in &interval.streams {
            total.0 = total.0.saturating_add(stream.bytes);
            let mut moved =
                MovedJson::new(Some(stream.id), start, end, stream.bytes, stream.sender.is_some());
            moved.omitted = Some(interval.omitted);
            if let Some((retransmits, info)) = stream.sender {
                total.1 = Some(total.1.unwrap_or(0) + retransmits);
                moved.retransmits = Some(retransmits);
                moved.connection = Some(ConnectionJson {
                    snd_cwnd: info.snd_cwnd,
                    snd_wnd: info.snd_wnd,
                    rtt: info.rtt,
                    rttvar: info.rttvar,
                    pmtu: info.pmtu,
                    neap: FlowJson::new(&info),
                });
            }
            streams.push(moved);
        }
        let mut sum = MovedJson::new(None, start, end, total.0, total.1.is_some());
        sum.retransmits = total.1;
        sum.omitted = Some(interval.omitted);
        self.intervals.push(IntervalJson { streams, sum });
    }

    pub(crate) fn summary(&mut self, summary: &Summary) {
        let sends = summary.role == Role::Sender;
        let (sent, received, retransmits) = summary.sum();
        let mut sum_sent = MovedJson::new(None, 0.0, sent.seconds, sent.bytes, sends);
        sum_sent.retransmits = retransmits;
        let (own, remote) = (summary.congestion.clone(), summary.remote_congestion.clone());
        let (sender, receiver) = if sends { (own, remote) } else { (remote, own) };
        self.end.all = Some(EndOfTestJson {
            streams: summary.streams.iter().map(|stream| end_stream(stream, sends)).collect(),
            sum_sent,
            sum_received: MovedJson::new(None, 0.0, received.seconds, received.bytes, sends),
            cpu_utilization_percent: CpuJson {
                host_total: summary.cpu.total,
                host_user: summary.cpu.user,
                host_system: summary.cpu.system,
                remote_total: summary.remote_cpu.total,
                remote_user: summary.remote_cpu.user,
                remote_system: summary.remote_cpu.system,
            },
            sender_tcp_congestion: sender,
            receiver_tcp_congestion: receiver,
        });
    }

    pub(crate) fn error(&mut self, error: &str) {
        self.error = Some(error.to_owned());
    }

    /// The document as text.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string_pretty(self)
            .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

fn end_stream(stream: &StreamSummary, sends: bool) -> EndStreamJson {
    let mut sender =
        MovedJson::new(Some(stream.id), 0.0, stream.sent.seconds, stream.sent.bytes, sends);
    sender.retransmits = stream.retransmits;
    sender.extremes = stream.retransmits.map(|_| ExtremesJson {
        max_snd_cwnd: stream.extremes.max_snd_cwnd,
        max_snd_wnd: stream.extremes.max_snd_wnd,
        max_rtt: stream.extremes.max_rtt,
        min_rtt: stream.extremes.min_rtt,
        mean_rtt: stream.extremes.mean_rtt(),
    });
    let receiver =
        MovedJson::new(Some(stream.id), 0.0, stream.received.seconds, stream.received.bytes, sends);
    EndStreamJson { sender, receiver }
}

/// Seconds since 1970 as `Sat, 21 Nov 2026 10:47:34 GMT`.
fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, so that the leap day is the last of its year.
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + u64::from(month >= 10);
    format!(
        "{}, {of_month:02} {} {year} {:02}:{:02}:{:02} GMT",
        DAYS[(day % 7) as usize],
        MONTHS[((month + 2) % 12) as usize],
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(http_date(1_795_258_054), "Sat, 21 Nov 2026 10:47:34 GMT");
        assert_eq!(http_date(1_798_761_599), "Thu, 31 Dec 2026 23:59:59 GMT");
    }

    #[test]
    fn a_failed_test_is_a_document_with_an_error() {
        let mut report = JsonReport::new();
        report.error("no route");
        let value: serde_json::Value = serde_json::from_str(&report.text()).unwrap();
        assert_eq!(value["error"], "no route");
        assert_eq!(value["start"]["connected"], serde_json::json!([]));
        assert_eq!(value["end"], serde_json::json!({}));
    }
}
