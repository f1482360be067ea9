//! What people see: a line per stream and interval, and the summary, in iperf3's columns.

use std::io::Write;
use std::net::SocketAddr;

use super::net::{self, Info};
use super::plan::Plan;
use super::protocol::{Cookie, ProtocolError, Results, StreamResults};
use super::streams::{DataError, Extremes, Figures, Interval, Role, Stream};

const RULE: &str = "- - - - - - - - - - - - - - - - - - - - - - - - -";

/// Processor time of one side as per cent of the wall time of the test.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    pub total: f64,
    pub user: f64,
    pub system: f64,
}

/// A test whose streams are connected.
pub(crate) struct Start<'a> {
    pub plan: &'a Plan,
    pub cookie: &'a Cookie,
    /// Number, own address and peer's address of each stream.
    pub streams: Vec<(u32, SocketAddr, SocketAddr)>,
    /// MSS of the control connection, bytes.
    pub default_mss: u32,
    /// Bytes.
    pub send_buffer: usize,
    /// Bytes.
    pub receive_buffer: usize,
}

impl<'a> Start<'a> {
    /// # Errors
    /// A stream that has been reset meanwhile has no addresses.
    pub(crate) fn new(
        plan: &'a Plan,
        cookie: &'a Cookie,
        streams: &[Stream],
        default_mss: u32,
    ) -> Result<Self, DataError> {
        let mut all = Vec::with_capacity(streams.len());
        let mut buffers = (0, 0);
        for stream in streams {
            let (id, socket) = (stream.figures.id, &stream.socket);
            let failed = |source| DataError::Stream { id, source };
            all.push((
                id,
                socket.local_addr().map_err(failed)?,
                socket.peer_addr().map_err(failed)?,
            ));
            buffers = net::buffer_sizes(socket).map_err(failed)?;
        }
        Ok(Self {
            plan,
            cookie,
            streams: all,
            default_mss,
            send_buffer: buffers.0,
            receive_buffer: buffers.1,
        })
    }
}

/// One end of a stream in the summary.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    pub bytes: u64,
    pub seconds: f64,
}

/// One stream in the summary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamSummary {
    pub id: u32,
    pub sent: Side,
    pub received: Side,
    /// `None` where the sender does not know it.
    pub retransmits: Option<u64>,
    /// All zero where the peer is the sender.
    pub extremes: Extremes,
}

/// The figures of a whole test.
pub(crate) struct Summary {
    pub role: Role,
    pub streams: Vec<StreamSummary>,
    pub cpu: Cpu,
    pub remote_cpu: Cpu,
    pub congestion: Option<String>,
    pub remote_congestion: Option<String>,
    /// False if the peer has not told its figures.
    pub complete: bool,
}

/// What one side has measured.
pub(crate) struct Own {
    role: Role,
    streams: Vec<Figures>,
    seconds: f64,
    cpu: Cpu,
    congestion: Option<String>,
}

impl Own {
    pub(crate) fn new(role: Role, streams: &[Stream], seconds: f64, cpu: Cpu) -> Self {
        let congestion = streams.first().and_then(|stream| net::congestion(&stream.socket));
        Self {
            role,
            streams: streams.iter().map(|stream| stream.figures).collect(),
            seconds,
            cpu,
            congestion,
        }
    }

    /// What the peer is told.
    pub(crate) fn results(&self) -> Results {
        let sends = self.role == Role::Sender;
        let stream = |figures: &Figures| StreamResults {
            id: figures.id.into(),
            bytes: figures.bytes,
            retransmits: if sends {
                figures.extremes.retransmits.try_into().unwrap_or(i64::MAX)
            } else {
                -1
            },
            end_time: self.seconds,
            ..StreamResults::default()
        };
        Results {
            cpu_util_total: self.cpu.total,
            cpu_util_user: self.cpu.user,
            cpu_util_system: self.cpu.system,
            sender_has_retransmits: if sends { 1 } else { -1 },
            congestion_used: self.congestion.clone(),
            streams: self.streams.iter().map(stream).collect(),
        }
    }
}

impl Summary {
    /// Puts this side's figures and the peer's together.
    ///
    /// # Errors
    /// The peer's results lack a stream.
    pub(crate) fn new(own: &Own, peer: Option<&Results>) -> Result<Self, ProtocolError> {
        let role = own.role;
        let mut streams = Vec::with_capacity(own.streams.len());
        for figures in &own.streams {
            let here = Side { bytes: figures.bytes, seconds: own.seconds };
            let told = peer.map(|peer| peer.stream(figures.id)).transpose()?;
            let there = told.map_or(Side::default(), |told| Side {
                bytes: told.bytes,
                seconds: (told.end_time - told.start_time).max(0.0),
            });
            let (sent, received) = if role == Role::Sender { (here, there) } else { (there, here) };
            let retransmits = match (role, peer, told) {
                (Role::Sender, ..) => Some(figures.extremes.retransmits),
                (_, Some(peer), Some(told)) if peer.sender_has_retransmits == 1 => {
                    told.retransmits.try_into().ok()
                }
                _ => None,
            };
            streams.push(StreamSummary {
                id: figures.id,
                sent,
                received,
                retransmits,
                extremes: figures.extremes,
            });
        }
        Ok(Self {
            role,
            streams,
            cpu: own.cpu,
            remote_cpu: peer.map_or(Cpu::default(), |peer| Cpu {
                total: peer.cpu_util_total,
                user: peer.cpu_util_user,
                system: peer.cpu_util_system,
            }),
            congestion: own.congestion.clone(),
            remote_congestion: peer.and_then(|peer| peer.congestion_used.clone()),
            complete: peer.is_some(),
        })
    }

    /// Bytes of all streams in the longest of their times, and their retransmissions as far as they
    /// are known.
    pub(crate) fn sum(&self) -> (Side, Side, Option<u64>) {
        let mut sum = (Side::default(), Side::default(), None);
        for stream in &self.streams {
            for (total, side) in [(&mut sum.0, stream.sent), (&mut sum.1, stream.received)] {
                total.bytes = total.bytes.saturating_add(side.bytes);
                total.seconds = total.seconds.max(side.seconds);
            }
            if let Some(retransmits) = stream.retransmits {
                sum.2 = Some(sum.2.unwrap_or(0_u64).saturating_add(retransmits));
            }
        }
        sum
    }
}

/// Bits per second; 0 in no time.
pub(crate) fn bits_per_second(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 }
}

/// Three digits and the largest unit that keeps them before the point, in four columns.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:4.digits$} {}", units[unit])
}

fn bytes(value: u64) -> String {
    scaled(value as f64, 1024.0, &["Bytes", "KBytes", "MBytes", "GBytes", "TBytes"])
}

fn rate(value: u64, seconds: f64) -> String {
    let units = ["bits/sec", "Kbits/sec", "Mbits/sec", "Gbits/sec", "Tbits/sec"];
    scaled(bits_per_second(value, seconds), 1000.0, &units)
}

fn columns(id: Option<u32>, start: f64, end: f64, moved: u64) -> String {
    let id = id.map_or("SUM".to_owned(), |id| format!("{id:3}"));
    format!("[{id}] {start:6.2}-{end:<6.2} sec  {}  {}", bytes(moved), rate(moved, end - start))
}

/// Where the bytes of a sender are at the end of an interval, and what blocked it meanwhile.
fn whereabouts(id: u32, info: &Info) -> String {
    let at = &info.bytes;
    let [unsent, in_flight, qdisc, device] =
        [at.unsent, at.in_flight, at.qdisc, at.device].map(bytes);
    let places = format!(
        "unsent {}, in flight {} (below TCP, as memory: qdisc {}, device {})",
        unsent.trim_start(),
        in_flight.trim_start(),
        qdisc.trim_start(),
        device.trim_start()
    );
    let busy = info.spent.busy.max(1) as f64;
    let share = |&(name, nanos): &(&str, u64)| {
        let percent = 100.0 * nanos as f64 / busy;
        (percent >= 0.5).then(|| format!("{name} {percent:.0} %"))
    };
    let blocks: Vec<_> = info.spent.blocks().iter().filter_map(share).collect();
    let blocks = if blocks.is_empty() { "nothing".to_owned() } else { blocks.join(", ") };
    format!("[{id:3}]   {places}; blocked by {blocks}")
}

/// Writes the report for people. Errors of the output are ignored: a test goes on when nobody
/// reads.
pub(crate) struct TextReport<W> {
    out: W,
    headed: bool,
    verbose: bool,
}

impl<W: Write> TextReport<W> {
    pub(crate) fn new(out: W, verbose: bool) -> Self {
        Self { out, headed: false, verbose }
    }

    pub(crate) fn line(&mut self, line: &str) {
        let _ = writeln!(self.out, "{line}");
    }

    pub(crate) fn start(&mut self, start: &Start<'_>) {
        self.headed = false;
        for (id, local, remote) in &start.streams {
            self.line(&format!(
                "[{id:3}] local {} port {} connected to {} port {}",
                local.ip(),
                local.port(),
                remote.ip(),
                remote.port()
            ));
        }
    }

    pub(crate) fn interval(&mut self, interval: &Interval) {
        let sends = interval.streams.iter().any(|stream| stream.sender.is_some());
        if !std::mem::replace(&mut self.headed, true) {
            let retransmits = if sends { "         Retr  Cwnd" } else { "" };
            self.line(&format!("[ ID] Interval           Transfer     Bitrate{retransmits}"));
        }
        let omitted = if interval.omitted { "(omitted)" } else { "" };
        let tail = |sender: Option<(u64, Info)>| match sender {
            Some((retransmits, info)) => {
                format!("  {retransmits:3}   {}       {omitted}", bytes(info.snd_cwnd))
            }
            None => format!("{:18}{omitted}", ""),
        };
        let mut sum = (0_u64, 0_u64);
        for stream in &interval.streams {
            sum = (
                sum.0.saturating_add(stream.bytes),
                sum.1 + stream.sender.map_or(0, |sender| sender.0),
            );
            let line = columns(Some(stream.id), interval.start, interval.end, stream.bytes);
            self.line(&(line + &tail(stream.sender)));
            if let Some((_, info)) = stream.sender.filter(|_| self.verbose) {
                self.line(&whereabouts(stream.id, &info));
            }
        }
        if interval.streams.len() > 1 {
            let tail =
                if sends { format!("  {:3}             {omitted}", sum.1) } else { tail(None) };
            self.line(&(columns(None, interval.start, interval.end, sum.0) + &tail));
            self.line(RULE);
        }
    }

    pub(crate) fn summary(&mut self, summary: &Summary) {
        if summary.streams.len() == 1 {
            self.line(RULE);
        }
        let (sent, received, retransmits) = summary.sum();
        let head = if retransmits.is_some() { "         Retr" } else { "" };
        self.line(&format!("[ ID] Interval           Transfer     Bitrate{head}"));
        for stream in &summary.streams {
            let id = Some(stream.id);
            self.sides(summary, id, stream.sent, stream.received, stream.retransmits);
        }
        if summary.streams.len() > 1 {
            self.sides(summary, None, sent, received, retransmits);
        }
    }

    fn sides(
        &mut self,
        summary: &Summary,
        id: Option<u32>,
        sent: Side,
        received: Side,
        retransmits: Option<u64>,
    ) {
        if summary.complete || summary.role == Role::Sender {
            let tail = match retransmits {
                Some(retransmits) => format!("  {retransmits:3}             sender"),
                None => format!("{:18}sender", ""),
            };
            self.line(&(columns(id, 0.0, sent.seconds, sent.bytes) + &tail));
        }
        if summary.complete || summary.role == Role::Receiver {
            self.line(&format!(
                "{}{:18}receiver",
                columns(id, 0.0, received.seconds, received.bytes),
                ""
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::net::{Spent, Whereabouts};
    use super::super::streams::StreamInterval;
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        for (value, text) in [
            (0, "0.00 Bytes"),
            (1023, "1023 Bytes"),
            (1024, "1.00 KBytes"),
            (393_216, " 384 KBytes"),
            (12_582_912, "12.0 MBytes"),
            (u64::MAX, "16777216 TBytes"),
        ] {
            assert_eq!(bytes(value), text);
        }
        assert_eq!(rate(12_500_000, 1.0), " 100 Mbits/sec");
        assert_eq!(rate(12_500_000, 0.0), "0.00 bits/sec");
    }

    fn interval(streams: u32, sender: bool) -> Interval {
        let info = Info { snd_cwnd: 1_111_490, ..Info::default() };
        let stream =
            |id| StreamInterval { id, bytes: 6 << 20, sender: sender.then_some((7, info)) };
        Interval {
            start: 0.5,
            end: 1.0,
            omitted: false,
            streams: (0..streams).map(stream).collect(),
        }
    }

    #[test]
    fn columns_are_iperf3s() {
        let mut report = TextReport::new(Vec::new(), false);
        report.interval(&interval(1, true));
        report.interval(&interval(2, false));
        let text = String::from_utf8(report.out).unwrap();
        let expected = "\
[ ID] Interval           Transfer     Bitrate         Retr  Cwnd
[  0]   0.50-1.00   sec  6.00 MBytes   101 Mbits/sec    7   1.06 MBytes       
[  0]   0.50-1.00   sec  6.00 MBytes   101 Mbits/sec                  
[  1]   0.50-1.00   sec  6.00 MBytes   101 Mbits/sec                  
[SUM]   0.50-1.00   sec  12.0 MBytes   201 Mbits/sec                  
- - - - - - - - - - - - - - - - - - - - - - - - -
";
        assert_eq!(text, expected);
    }

    #[test]
    fn bytes_have_places_and_waits_have_names() {
        let info = Info {
            bytes: Whereabouts { unsent: 65_536, qdisc: 0, device: 3000, in_flight: 1 << 20 },
            spent: Spent {
                busy: 1_000_000,
                small_queue: 200_000,
                congestion_window: 625_000,
                pacing: 1000,
                ..Spent::default()
            },
            ..Info::default()
        };
        let text = "[  5]   unsent 64.0 KBytes, in flight 1.00 MBytes (below TCP, as memory: \
                    qdisc 0.00 Bytes, device 2.93 KBytes); blocked by cwnd 62 %, small queue 20 %";
        assert_eq!(whereabouts(5, &info), text);
        assert!(whereabouts(5, &Info::default()).ends_with("blocked by nothing"));
    }

    #[test]
    fn sums_of_what_a_peer_tells_do_not_overflow() {
        let side = Side { bytes: u64::MAX, seconds: 1.0 };
        let stream = |id| StreamSummary {
            id,
            sent: side,
            received: side,
            retransmits: Some(u64::MAX),
            extremes: Extremes::default(),
        };
        let summary = Summary {
            role: Role::Receiver,
            streams: vec![stream(1), stream(3)],
            cpu: Cpu::default(),
            remote_cpu: Cpu::default(),
            congestion: None,
            remote_congestion: None,
            complete: true,
        };
        assert_eq!(summary.sum().0.bytes, u64::MAX);
        assert_eq!(summary.sum().2, Some(u64::MAX));
        TextReport::new(Vec::new(), false).summary(&summary);
    }
}
