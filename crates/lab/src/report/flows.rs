//! Record of what held each flow: the gate that it stopped at, for how long, and its pauses.
//!
//! A connection stops at a gate ([`TxBlocked`]) at the end of each turn of its host, and nothing
//! but a turn of that host moves it. So one look after each turn sees every change.
//!
//! Cost: `TCP_INFO` of at most [`WATCHED`] connections per end of each application after each turn
//! of the host of that end, and a few hundred bytes for each of them.

use crate::app::group::{EndLog, GroupLog, SharedGroupLog};
use crate::link::ENDS;
use crate::world::{HostId, World};
use neap_stack::socket::tcp::WeakTcpHandle;
use neap_tcp::congestion::CaState;
use neap_tcp::info::TcpInfo;
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos, Rate};
use neap_tcp::transmit::TxBlocked;

/// Connections that are watched at each end of an application, at the most: the first ones.
pub const WATCHED: usize = 64;

/// Pauses that are kept of each flow: the longest.
const PAUSES: usize = 3;

/// Number of gates.
const GATES: usize = Gate::ALL.len();

/// Time by gate.
type Times = [Nanos; GATES];

/// Reason why a flow sent nothing at a moment: [`TxBlocked`], where the lack of data is told apart
/// by what the application did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Gate {
    /// The handshake was not complete.
    Opening,
    /// Everything written was acknowledged: the application had nothing to send.
    Idle,
    /// Everything written was in flight: the application had no more data.
    InFlight,
    /// The bytes in flight filled the send buffer, so that the application could write no more.
    SendBuffer,
    /// Pacing held the next frame.
    Pacing,
    /// The congestion window was full.
    Cwnd,
    /// The peer's window was full.
    Rwnd,
    /// A short segment waited for an ACK or for more data.
    Nagle,
    /// A frame waited to grow.
    Defer,
    /// A short write waited for a frame below TCP.
    Autocork,
    /// Enough bytes were in qdisc and device.
    SmallQueue,
    /// The qdisc had dropped the frame.
    Egress,
    /// Other flows of the host sent first.
    Yield,
    /// A reason that this list does not have.
    Other,
}

impl Gate {
    /// All gates, in the order of their numbers.
    pub const ALL: [Self; 14] = [
        Self::Opening,
        Self::Idle,
        Self::InFlight,
        Self::SendBuffer,
        Self::Pacing,
        Self::Cwnd,
        Self::Rwnd,
        Self::Nagle,
        Self::Defer,
        Self::Autocork,
        Self::SmallQueue,
        Self::Egress,
        Self::Yield,
        Self::Other,
    ];

    /// Returns the short name of the gate, for labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opening => "handshake",
            Self::Idle => "no data",
            Self::InFlight => "all in flight",
            Self::SendBuffer => "send buffer",
            Self::Pacing => "pacing",
            Self::Cwnd => "congestion window",
            Self::Rwnd => "receive window",
            Self::Nagle => "Nagle",
            Self::Defer => "deferral",
            Self::Autocork => "autocork",
            Self::SmallQueue => "small queue",
            Self::Egress => "qdisc drop",
            Self::Yield => "other flows",
            Self::Other => "other",
        }
    }

    /// Returns what the gate means, in words that complete "while ...".
    pub const fn words(self) -> &'static str {
        match self {
            Self::Opening => "the handshake was not complete",
            Self::Idle => "the application had nothing to send",
            Self::InFlight => "everything written was in flight, and the application gave no more",
            Self::SendBuffer => "bytes in flight filled the send buffer",
            Self::Pacing => "pacing held the next frame until its time",
            Self::Cwnd => "the congestion window was full of bytes in flight",
            Self::Rwnd => "the peer's receive window was full",
            Self::Nagle => "a short segment waited for an ACK or for more data",
            Self::Defer => "a frame waited to grow",
            Self::Autocork => "a short write waited for a frame below TCP",
            Self::SmallQueue => "enough bytes were in qdisc and device",
            Self::Egress => "the qdisc had dropped the frame",
            Self::Yield => "other flows of the host sent first",
            Self::Other => "another reason held it",
        }
    }

    fn of(info: &TcpInfo) -> Self {
        match info.blocked {
            TxBlocked::NotOpen => Self::Opening,
            TxBlocked::NoData if info.unacked_bytes > 0 => Self::InFlight,
            TxBlocked::NoData => Self::Idle,
            TxBlocked::Memory => Self::SendBuffer,
            TxBlocked::Pacing(_) => Self::Pacing,
            TxBlocked::Cwnd => Self::Cwnd,
            TxBlocked::Rwnd => Self::Rwnd,
            TxBlocked::Nagle => Self::Nagle,
            TxBlocked::Defer => Self::Defer,
            TxBlocked::Autocork => Self::Autocork,
            TxBlocked::SmallQueue => Self::SmallQueue,
            TxBlocked::Egress => Self::Egress,
            TxBlocked::Yield => Self::Yield,
            _ => Self::Other,
        }
    }
}

/// Time in which a flow handed no data down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// Time from the end of the warm-up to the last frame before the pause, or to the beginning of
    /// the connection.
    pub from: Nanos,
    /// Length of the pause.
    pub length: Nanos,
    /// Time by gate, in the order of [`Gate::ALL`].
    pub held: Times,
    /// Retransmission timeouts that expired in it, its end included.
    pub timeouts: u32,
    /// Whether a retransmission ended it.
    pub repaired: bool,
    /// Whether lost segments were being repaired when it began.
    pub recovering: bool,
    /// Whether the recording ended before the pause.
    pub is_open: bool,
}

impl Pause {
    /// Returns the gate that held the flow for most of the pause.
    pub fn gate(&self) -> Gate {
        longest(&self.held)
    }
}

/// The gate with the longest time.
fn longest(held: &Times) -> Gate {
    let gates = Gate::ALL.into_iter().rev();
    gates.max_by_key(|gate| held[*gate as usize]).unwrap_or(Gate::Other)
}

/// Record of one end of a connection that sent data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowRecord {
    /// Number of the connection among those of its end, from 0.
    pub connection: usize,
    /// Time by gate, in the order of [`Gate::ALL`].
    pub held: Times,
    /// The longest pauses, longest first.
    pub pauses: Vec<Pause>,
    /// Payload bytes that were acknowledged. A FIN counts as one.
    pub acked: u64,
    /// Segments that were sent again.
    pub retransmitted: u64,
    /// Retransmission timeouts, and the time of the pauses in which they expired.
    pub timeouts: u32,
    /// See [`timeouts`](Self::timeouts).
    pub timed_out: Nanos,
    /// Means over the time that was recorded: congestion window and peer's window in bytes, and
    /// smoothed round-trip time in milliseconds.
    pub cwnd: f64,
    /// See [`cwnd`](Self::cwnd).
    pub window: f64,
    /// See [`cwnd`](Self::cwnd).
    pub srtt_ms: f64,
    /// Smallest round-trip time of the connection, milliseconds; 0 before the first sample.
    pub min_rtt_ms: f64,
    /// Mean pacing rate while pacing held the flow, Mbit/s; 0 if it never did.
    pub pacing_mbit: f64,
}

impl FlowRecord {
    /// Returns the time that was recorded.
    pub fn time(&self) -> Nanos {
        self.held.iter().fold(Nanos::ZERO, |sum, &part| sum + part)
    }
}

/// Direction of the data of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// The client sends, which opened the connection.
    #[default]
    Client,
    /// The server sends.
    Server,
}

/// Slowest link on the way of an application's data.
#[derive(Clone, Debug, PartialEq)]
pub struct Slowest {
    /// Name of the link and its direction.
    pub link: String,
    /// Most that the link carries, Mbit/s, headers included.
    pub mbit: f64,
    /// What it carried, Mbit/s, headers and all other traffic included. Where a trace limits the
    /// link, both count opportunities, each as a full packet: small packets have more bytes on the
    /// wire than they take of an opportunity.
    pub carried_mbit: f64,
}

/// Record of the flows of one application, from which [`Explanation`](super::Explanation) is made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppFlows {
    /// Name of the application.
    pub app: String,
    /// End that sent more bytes.
    pub side: Side,
    /// Connections of the application.
    pub connections: usize,
    /// Whether the application sends datagrams, which pass no gates.
    pub sends_datagrams: bool,
    /// Those of the first [`WATCHED`] connections that were open in the time that was recorded.
    pub flows: Vec<FlowRecord>,
    /// Payload that arrived, Mbit/s, of all connections.
    pub goodput_mbit: f64,
    /// Slowest link on the way; none if several ways lead to the receiver.
    pub slowest: Option<Slowest>,
    /// For each sample of the recording, the share of time by gate, in the order of [`Gate::ALL`].
    /// All are zero while there is no connection.
    pub shares: Vec<[f32; GATES]>,
}

/// What a look at a connection saw.
#[derive(Clone)]
struct Seen {
    at: Instant,
    gate: Gate,
    info: TcpInfo,
}

impl Seen {
    fn new(at: Instant, info: TcpInfo) -> Self {
        Self { at, gate: Gate::of(&info), info }
    }

    fn is_recovering(&self) -> bool {
        matches!(self.info.ca_state, CaState::Recovery | CaState::Loss)
    }
}

/// One end of a connection while it is watched.
struct Watched {
    handle: WeakTcpHandle,
    begun: Instant,
    first: Seen,
    last: Seen,
    record: FlowRecord,
    pause: Pause,
    /// Sums of values times nanoseconds.
    sums: Sums,
    is_over: bool,
}

/// See [`FlowRecord`].
#[derive(Default)]
struct Sums {
    cwnd: f64,
    window: f64,
    srtt: f64,
    pacing: f64,
}

impl Watched {
    fn new(handle: WeakTcpHandle, connection: usize, begun: Instant, first: Seen) -> Self {
        let mut watched = Self {
            handle,
            begun,
            first: first.clone(),
            last: first,
            record: FlowRecord { connection, ..FlowRecord::default() },
            pause: Pause::default(),
            sums: Sums::default(),
            is_over: false,
        };
        watched.pause = watched.pause_from_here();
        watched
    }

    fn pause_from_here(&self) -> Pause {
        let from = self.last.at.since(self.begun);
        Pause { from, recovering: self.last.is_recovering(), ..Pause::default() }
    }

    /// Looks at the connection; the time by gate since the last look is added to `shared`.
    fn look(&mut self, now: Instant, end: &EndLog, shared: &mut Times) {
        if self.is_over {
            return;
        }
        let info = self.handle.upgrade().map(|handle| handle.info(now));
        self.pass(now, info.as_ref(), shared);
        let Some(info) = info else {
            self.finish(Some(end));
            return;
        };
        let ended = matches!(info.state, State::FinWait2 | State::TimeWait | State::Closed);
        let sent = info.data_segs_out > self.last.info.data_segs_out;
        let before = core::mem::replace(&mut self.last, Seen::new(now, info));
        let (old, new) = (&before.info, &self.last.info);
        self.pause.timeouts += new.timeouts.total.saturating_sub(old.timeouts.total);
        if sent {
            self.pause.repaired = new.total_retrans > old.total_retrans;
            self.end_pause();
        }
        if ended {
            self.finish(None);
        }
    }

    /// The time since the last look was spent at the gate that was seen then.
    fn pass(&mut self, now: Instant, info: Option<&TcpInfo>, shared: &mut Times) {
        let time = now.since(self.last.at);
        let before = &self.last.info;
        let waited = info.is_some_and(|info| info.sndbuf_limited > before.sndbuf_limited);
        // Only the stack's own clock tells that a write was refused.
        let gate = if waited { Gate::SendBuffer } else { self.last.gate } as usize;
        for held in [&mut self.record.held, &mut self.pause.held, shared] {
            held[gate] = held[gate] + time;
        }
        self.pause.length = self.pause.length + time;
        let nanos = time.0 as f64;
        self.sums.cwnd += f64::from(before.snd_cwnd) * f64::from(before.snd_mss) * nanos;
        self.sums.window += f64::from(before.snd_wnd) * nanos;
        self.sums.srtt += before.rtt.0 as f64 * nanos;
        if gate == Gate::Pacing as usize && before.pacing_rate != Rate::UNLIMITED {
            self.sums.pacing += before.pacing_rate.0 as f64 * nanos;
        }
    }

    fn end_pause(&mut self) {
        let next = self.pause_from_here();
        let pause = core::mem::replace(&mut self.pause, next);
        if pause.timeouts > 0 {
            self.record.timeouts += pause.timeouts;
            self.record.timed_out = self.record.timed_out + pause.length;
        }
        let pauses = &mut self.record.pauses;
        let place = pauses.partition_point(|other| other.length >= pause.length);
        if place < PAUSES && pause.length > Nanos::ZERO {
            pauses.truncate(PAUSES - 1);
            pauses.insert(place, pause);
        }
    }

    /// Nothing more is counted. `end` has the log of a connection that is gone with its last
    /// figures.
    fn finish(&mut self, end: Option<&EndLog>) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        let (first, last) = (&self.first.info, &self.last.info);
        let acked = match end {
            Some(end) if !end.has_failed => end.written.max(last.bytes_acked),
            _ => last.bytes_acked,
        };
        let time = self.record.time().0.max(1) as f64;
        let paced = self.record.held[Gate::Pacing as usize].0.max(1) as f64;
        self.record.acked = acked - first.bytes_acked;
        self.record.retransmitted = u64::from(last.total_retrans - first.total_retrans);
        self.record.cwnd = self.sums.cwnd / time;
        self.record.window = self.sums.window / time;
        self.record.srtt_ms = self.sums.srtt / time / 1e6;
        self.record.min_rtt_ms = last.min_rtt.map_or(0.0, |rtt| rtt.0 as f64 / 1e6);
        self.record.pacing_mbit = self.sums.pacing / paced * 8e-6;
        // What waits for the peer to close is no pause.
        if end.is_none() && !matches!(last.state, State::FinWait2 | State::TimeWait | State::Closed)
        {
            self.pause.is_open = true;
            self.end_pause();
        }
    }
}

/// One end of an application.
#[derive(Default)]
struct SideWatch {
    /// By the number of the connection.
    ends: Vec<Option<Watched>>,
    /// Time by gate since the last sample.
    sample: Times,
    shares: Vec<[f32; GATES]>,
}

impl SideWatch {
    fn look(&mut self, now: Instant, begun: Instant, logs: &[EndLog]) {
        let logs = &logs[..logs.len().min(WATCHED)];
        self.ends.resize_with(logs.len(), || None);
        for (connection, (log, end)) in logs.iter().zip(&mut self.ends).enumerate() {
            match (&mut *end, &log.handle) {
                (Some(end), _) => end.look(now, log, &mut self.sample),
                (None, Some(handle)) => {
                    let seen = Seen::new(now, handle.info(now));
                    *end = Some(Watched::new(handle.downgrade(), connection, begun, seen));
                }
                (None, None) => {}
            }
        }
    }

    fn sample(&mut self) {
        let times = core::mem::take(&mut self.sample);
        let sum = times.iter().fold(Nanos::ZERO, |sum, &part| sum + part).0.max(1) as f64;
        self.shares.push(times.map(|time| (time.0 as f64 / sum) as f32));
    }

    fn acked(&self) -> u64 {
        self.ends.iter().flatten().map(|end| end.record.acked).sum()
    }
}

/// Application whose flows are watched.
pub(crate) struct FlowSource {
    pub(crate) app: String,
    pub(crate) sends_datagrams: bool,
    /// The hosts of its clients and of its servers.
    pub(crate) hosts: [HostId; ENDS],
    pub(crate) log: SharedGroupLog,
}

struct AppWatch<'a> {
    source: &'a FlowSource,
    sides: [SideWatch; ENDS],
    /// Bytes that had arrived at all clients at the beginning.
    answered: u64,
}

/// The logs of one end.
pub(super) fn logs(log: &GroupLog, side: usize) -> &[EndLog] {
    if side == 0 { &log.clients } else { &log.servers }
}

/// Bytes of one end that have arrived at the other.
pub(super) fn arrived(log: &GroupLog, side: usize, now: Instant) -> u64 {
    logs(log, 1 - side).iter().map(|receiver| receiver.received(now)).sum()
}

/// Watches the flows of all applications from its beginning on.
pub(crate) struct FlowRecorder<'a> {
    begun: Instant,
    apps: Vec<AppWatch<'a>>,
}

impl<'a> FlowRecorder<'a> {
    pub(crate) fn begin(world: &World, sources: &'a [FlowSource]) -> Self {
        let apps = sources.iter().map(|source| AppWatch {
            source,
            sides: Default::default(),
            answered: arrived(&source.log.borrow(), 1, world.now()),
        });
        let mut recorder = Self { begun: world.now(), apps: apps.collect() };
        recorder.look(world.now(), None);
        recorder
    }

    /// A host has had its turn; without one, all flows are looked at.
    pub(crate) fn look(&mut self, now: Instant, turn: Option<HostId>) {
        for AppWatch { source: FlowSource { hosts, log, .. }, sides, .. } in &mut self.apps {
            for (side, host) in hosts.iter().enumerate() {
                if turn.is_none_or(|turn| turn == *host) {
                    sides[side].look(now, self.begun, logs(&log.borrow(), side));
                }
            }
        }
    }

    /// Ends a sample.
    pub(crate) fn sample(&mut self, now: Instant) {
        self.look(now, None);
        self.apps.iter_mut().flat_map(|app| &mut app.sides).for_each(SideWatch::sample);
    }

    /// The records; what arrived at servers and the slowest link are not known here.
    pub(crate) fn finish(mut self, now: Instant) -> Vec<AppFlows> {
        self.look(now, None);
        let seconds = now.since(self.begun).as_secs_f64();
        let finish = |AppWatch { source, mut sides, answered: before }: AppWatch<'_>| {
            let FlowSource { app, sends_datagrams, log, .. } = source;
            sides
                .iter_mut()
                .flat_map(|side| &mut side.ends)
                .flatten()
                .for_each(|end| end.finish(None));
            let side = usize::from(sides[1].acked() > sides[0].acked());
            let SideWatch { ends, shares, .. } = core::mem::take(&mut sides[side]);
            let flows: Vec<_> = ends.into_iter().flatten().map(|end| end.record).collect();
            let arrived = match side {
                0 => flows.iter().map(|flow| flow.acked).sum(),
                _ => arrived(&log.borrow(), side, now).saturating_sub(before),
            };
            AppFlows {
                app: app.clone(),
                side: [Side::Client, Side::Server][side],
                connections: logs(&log.borrow(), side).len(),
                sends_datagrams: *sends_datagrams,
                flows,
                goodput_mbit: arrived as f64 * 8e-6 / seconds,
                slowest: None,
                shares,
            }
        };
        self.apps.into_iter().map(finish).collect()
    }
}

#[cfg(test)]
impl FlowRecorder<'_> {
    /// Compares the times of all connections that are open with the clocks of the stack, which has
    /// its own sums. Returns how many it compared.
    pub(crate) fn check_clocks(&self) -> usize {
        let sides = self.apps.iter().flat_map(|app| &app.sides);
        let open = sides.flat_map(|side| side.ends.iter().flatten()).filter(|end| !end.is_over);
        open.map(Watched::check_clocks).count()
    }
}

#[cfg(test)]
impl Watched {
    fn check_clocks(&self) {
        let (first, last) = (&self.first.info, &self.last.info);
        let clock = |of: fn(&TcpInfo) -> Nanos| Nanos(of(last).0 - of(first).0);
        let sum = |gates: &[Gate]| {
            let times = gates.iter().map(|gate| self.record.held[*gate as usize]);
            times.fold(Nanos::ZERO, |sum, time| sum + time)
        };
        let all = Gate::ALL.map(|gate| (gate, self.record.held[gate as usize]));
        assert_eq!(self.record.time(), self.last.at.since(self.first.at), "{all:?}");
        let idle = sum(&[Gate::Opening, Gate::Idle]);
        assert_eq!(self.record.time(), idle + clock(|info| info.busy_time), "{all:?}");
        let check = |gates: &[Gate], of: fn(&TcpInfo) -> Nanos| {
            assert_eq!(sum(gates), clock(of), "{gates:?}: {all:?}");
        };
        check(&[Gate::Rwnd], |info| info.rwnd_limited);
        check(&[Gate::SendBuffer], |info| info.sndbuf_limited);
        check(&[Gate::SmallQueue, Gate::Autocork], |info| info.small_queue_limited);
        check(&[Gate::Pacing], |info| info.pacing_limited);
        check(&[Gate::Cwnd], |info| info.cwnd_limited);
    }
}
