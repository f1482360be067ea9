//! Two ends that disagree about their connection do not answer each other for ever: the rate of
//! answers to invalid segments is limited (`tcp_invalid_ratelimit`), and resets are answered by
//! nothing.
//!
//! Both ends are put into arbitrary states, each against a peer of its own, and are then joined:
//! what one sends arrives at the other at once. No application reads or writes, and timers run. The
//! first segment is arbitrary, too.

use bytes::Bytes;
use neap_tcp::config::Config;
use neap_tcp::connection::{Connection, Path, Setup, WriteFlags};
use neap_tcp::counters::Counters;
use neap_tcp::handshake::{Accepted, Negotiated, Offer, Request, RequestVerdict};
use neap_tcp::options::SocketOptions;
use neap_tcp::orphan::{Remains, RemainsVerdict};
use neap_tcp::segment::{Flags, Options, Payload, Segment, Timestamps};
use neap_tcp::sender::pages::Unpooled;
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::time_wait::{Ends, TimeWait};
use neap_tcp::transmit::egress::{Egress, GsoLimits, Verdict};
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// `tcp_invalid_ratelimit` by default.
const PERIOD: Nanos = Nanos::from_millis(500);
/// `tcp_synack_retries` by default.
const SYNACK_RETRIES: u32 = 5;
/// Segments that may cross before time passes: all that both ends have to send and to acknowledge,
/// and then one answer of each.
const AT_ONCE: usize = 100;
/// Periods until what was in flight has been sent, acknowledged or backed off.
const SETTLING: usize = 8;
/// Periods that are watched then, and segments that may cross in each: a timer of each end may
/// expire, which sends at most a few segments, each of which is answered once. What the ends have
/// written comes on top, since all of it may leave when a timeout that was backed off is over.
const WATCHED: usize = 24;
const PER_PERIOD: usize = 16;
/// The MSS of both ends.
const MSS: u16 = 1460;

/// What brings an end into its state.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// Bytes of the peer arrive.
    Receive(u16),
    /// Bytes of the peer arrive behind a gap.
    ReceiveBeyond(u16),
    /// The application writes, and what the window allows leaves.
    Write(u16),
    /// The peer acknowledges all that was sent, with this window.
    Acknowledge(u16),
    /// The peer's FIN arrives.
    Fin,
    Shutdown,
    Close,
    /// Time passes, and timers run.
    Wait(u16),
}

impl Move {
    /// Segments of what it writes.
    fn segments(&self) -> usize {
        match self {
            Self::Write(bytes) => bytes.div_ceil(MSS).into(),
            _ => 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Established,
    SynSent,
    SynReceived,
    Request,
    TimeWait,
    Nobody,
}

#[derive(Clone, Debug)]
struct Recipe {
    kind: Kind,
    moves: Vec<Move>,
    timestamps: bool,
    sack: bool,
    scale: Option<u8>,
    clock: u32,
    /// By how much its numbers are beside those of the other end.
    iss_off: i32,
    irs_off: i32,
}

/// One end of what was a connection.
enum End {
    Connection(Box<Connection>),
    Request(Request),
    Remains(Remains),
    /// Nothing: each segment that is no reset is answered with one.
    Nobody,
}

#[derive(Default)]
struct Wire(VecDeque<Segment>);

impl Egress for Wire {
    fn enqueue(&mut self, segment: Segment, _: Instant, _: Option<TxCredit>) -> Verdict {
        self.0.push_back(segment);
        Verdict::Queued
    }

    fn gso(&self) -> GsoLimits {
        GsoLimits { max_size: 1500, max_segs: 1 }
    }

    fn holds_until_departure(&self) -> bool {
        false
    }
}

const PATH: Path = Path { mtu: 1500, ip_header: 20 };

fn setup(iss: SeqNumber, recipe: &Recipe) -> Setup {
    let config = Config {
        tcp_timestamps: recipe.timestamps,
        tcp_sack: recipe.sack,
        tcp_window_scaling: recipe.scale.is_some(),
        ..Config::default()
    };
    Setup {
        controller: config.controllers.make("reno").expect("known"),
        config: Arc::new(config),
        counters: Arc::new(Counters::default()),
        pages: Arc::new(Unpooled),
        account: TxAccount::new(Waker::noop().clone()),
        isn: iss,
        ts_offset: recipe.clock,
        path: PATH,
        options: Arc::new(SocketOptions::default()),
    }
}

/// The peer that an end has before the two are joined.
struct Builder {
    now: Instant,
    wire: Wire,
    /// The peer's next number, and what it has got.
    seq: SeqNumber,
    acked: SeqNumber,
    timestamps: bool,
}

impl Builder {
    fn segment(&self, flags: Flags) -> Segment {
        let value = self.now.as_millis() as u32;
        Segment {
            seq: self.seq,
            ack: self.acked,
            flags,
            window: 500,
            options: Options {
                timestamps: self.timestamps.then_some(Timestamps { value, echo: 0 }),
                ..Options::default()
            },
            ..Segment::default()
        }
    }

    fn arrive(&mut self, connection: &mut Connection, segment: Segment) {
        connection.on_segment(self.now, segment);
        self.leave(connection);
    }

    fn leave(&mut self, connection: &mut Connection) {
        connection.transmit(self.now, &mut self.wire);
        for segment in self.wire.0.drain(..) {
            self.acked = self.acked.later(segment.end_seq());
        }
    }

    fn apply(&mut self, connection: &mut Connection, step: Move) {
        let data = |len: u16| Payload::from(Bytes::from(vec![7; usize::from(len)]));
        match step {
            Move::Receive(len) => {
                let segment = Segment { payload: data(len), ..self.segment(Flags::ACK) };
                self.seq = segment.end_seq();
                self.arrive(connection, segment);
            }
            Move::ReceiveBeyond(len) => {
                let segment =
                    Segment { seq: self.seq + 100, payload: data(len), ..self.segment(Flags::ACK) };
                self.arrive(connection, segment);
            }
            Move::Write(len) => {
                let _ = connection.write(&vec![1; usize::from(len)], WriteFlags::empty());
                connection.transmit(self.now, &mut self.wire);
                self.wire.0.clear();
            }
            Move::Acknowledge(window) => {
                self.leave(connection);
                let segment = Segment { window, ..self.segment(Flags::ACK) };
                self.arrive(connection, segment);
            }
            Move::Fin => {
                let segment = self.segment(Flags::ACK | Flags::FIN);
                self.seq = segment.end_seq();
                self.arrive(connection, segment);
            }
            Move::Shutdown => connection.shutdown_write(),
            Move::Close => {
                connection.close(self.now);
            }
            Move::Wait(ms) => {
                let until = self.now + Nanos::from_millis(ms.into());
                while connection.deadline() <= until {
                    self.now = self.now.max(connection.deadline());
                    connection.on_deadline(self.now);
                    connection.transmit(self.now, &mut self.wire);
                }
                self.now = until;
            }
        }
        self.wire.0.clear();
    }
}

impl End {
    /// An end in the state of its recipe. Its own numbers begin at `iss`, the peer's at `irs`.
    fn new(start: Instant, iss: SeqNumber, irs: SeqNumber, recipe: &Recipe) -> Self {
        let negotiated = Negotiated {
            mss: MSS,
            snd_wscale: recipe.scale,
            rcv_wscale: recipe.scale.unwrap_or(0),
            sack: recipe.sack,
            ts_recent: recipe.timestamps.then_some(start.as_millis() as u32),
            ecn: false,
        };
        let config = Config { tcp_timestamps: recipe.timestamps, ..Config::default() };
        let offer = Offer::new(&config, 20, MSS, 65_536, u32::MAX);
        let mut builder = Builder {
            now: start,
            wire: Wire::default(),
            seq: irs + 1,
            acked: iss + 1,
            timestamps: recipe.timestamps,
        };
        let syn = Segment { seq: irs, ..offer.syn(start, irs, 0) };
        let mut connection = match recipe.kind {
            Kind::Nobody => return Self::Nobody,
            Kind::Request => {
                return Self::Request(Request::new(start, &syn, iss, recipe.clock, &offer));
            }
            Kind::TimeWait => {
                let ends = Ends {
                    rcv_nxt: irs + 1,
                    snd_nxt: iss + 1,
                    rcv_wnd: 500,
                    rcv_wscale: negotiated.rcv_wscale,
                    ts_recent: negotiated.ts_recent,
                    ts_offset: 7,
                    ratelimit_ms: 500,
                    quiet_until: Instant::ZERO,
                };
                return Self::Remains(Remains::TimeWait(TimeWait::new(start, ends)));
            }
            Kind::SynSent | Kind::SynReceived => {
                let mut connection = Connection::connect(start, setup(iss, recipe));
                builder.leave(&mut connection);
                if matches!(recipe.kind, Kind::SynReceived) {
                    builder.arrive(&mut connection, syn);
                }
                return Self::Connection(connection.into());
            }
            Kind::Established => Connection::accept(
                start,
                setup(iss, recipe),
                Accepted {
                    iss,
                    irs,
                    negotiated,
                    snd_wnd: 64_000,
                    rcv_wnd: 64_240,
                    ts_offset: recipe.clock,
                    synack_rtt: Some(Nanos::from_millis(10)),
                    synack_timeouts: (0, Nanos::ZERO),
                    is_first_echoed: false,
                },
            ),
        };
        let third = builder.segment(Flags::ACK);
        builder.arrive(&mut connection, third);
        for &step in &recipe.moves {
            builder.apply(&mut connection, step);
        }
        Self::Connection(connection.into())
    }

    fn deadline(&self) -> Instant {
        match self {
            Self::Connection(connection) => connection.deadline(),
            Self::Request(request) => request.deadline(),
            Self::Remains(remains) => remains.deadline(),
            Self::Nobody => Instant::FAR_FUTURE,
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Wire) {
        match self {
            Self::Connection(connection) => {
                connection.on_deadline(now);
                connection.transmit(now, out);
            }
            Self::Request(request) => match request.on_deadline(now, SYNACK_RETRIES) {
                RequestVerdict::Retransmit(segment) => out.0.push_back(segment),
                RequestVerdict::Closed => *self = Self::Nobody,
                _ => {}
            },
            Self::Remains(remains) => {
                let verdict = remains.on_deadline(now);
                self.do_for_remains(verdict, None, out);
            }
            Self::Nobody => {}
        }
        self.end(now);
    }

    /// A connection that is over leaves TIME-WAIT or nothing.
    fn end(&mut self, now: Instant) {
        let Self::Connection(connection) = self else { return };
        if let Some(time_wait) = connection.take_time_wait() {
            *self = Self::Remains(Remains::TimeWait(time_wait));
        } else if let Some(remains) = connection.take_remains(now) {
            *self = Self::Remains(remains);
        } else if connection.is_closed() {
            *self = Self::Nobody;
        }
    }

    fn on_segment(&mut self, now: Instant, segment: Segment, recipe: &Recipe, out: &mut Wire) {
        match self {
            Self::Connection(connection) => {
                connection.on_segment(now, segment);
                connection.transmit(now, out);
            }
            Self::Request(request) => match request.on_segment(now, &segment, &Config::default()) {
                RequestVerdict::Drop => {}
                RequestVerdict::Retransmit(answer)
                | RequestVerdict::Challenge(answer)
                | RequestVerdict::Reset(answer) => out.0.push_back(answer),
                RequestVerdict::Closed => *self = Self::Nobody,
                RequestVerdict::Accepted(accepted) => {
                    let setup = setup(accepted.iss, recipe);
                    let mut connection = Connection::accept(now, setup, accepted);
                    connection.on_segment(now, segment);
                    connection.transmit(now, out);
                    *self = Self::Connection(connection.into());
                }
            },
            Self::Remains(remains) => {
                let verdict = remains.on_segment(now, &segment, true);
                self.do_for_remains(verdict, Some(&segment), out);
            }
            Self::Nobody => out.0.extend(reset_for(&segment)),
        }
        self.end(now);
    }
}

impl End {
    fn do_for_remains(&mut self, verdict: RemainsVerdict, cause: Option<&Segment>, out: &mut Wire) {
        match verdict {
            RemainsVerdict::Drop => {}
            RemainsVerdict::Send(answer) => out.0.push_back(answer),
            RemainsVerdict::Remove => *self = Self::Nobody,
            RemainsVerdict::Reset(reset) => {
                *self = Self::Nobody;
                out.0.push_back(reset);
            }
            RemainsVerdict::Reopen { .. } => {
                *self = Self::Nobody;
                out.0.extend(cause.and_then(reset_for));
            }
        }
    }
}

/// What a host answers to a segment of no connection (RFC 9293 section 3.10.7.1).
fn reset_for(segment: &Segment) -> Option<Segment> {
    if segment.flags.contains(Flags::RST) {
        return None;
    }
    Some(if segment.flags.contains(Flags::ACK) {
        Segment { seq: segment.ack, flags: Flags::RST, ..Segment::default() }
    } else {
        let flags = Flags::RST | Flags::ACK;
        Segment { ack: segment.end_seq(), flags, ..Segment::default() }
    })
}

struct Pair<'a> {
    now: Instant,
    ends: [End; 2],
    recipes: [&'a Recipe; 2],
    /// Towards each end.
    wires: [Wire; 2],
}

impl Pair<'_> {
    /// Lets all that is on the way arrive; how many segments that were.
    fn settle(&mut self) -> Result<usize, TestCaseError> {
        let mut crossed = 0;
        let mut last = VecDeque::new();
        loop {
            let before = crossed;
            for to in [0, 1] {
                let Some(segment) = self.wires[to].0.pop_front() else { continue };
                crossed += 1;
                last.push_back((to, segment.clone()));
                if last.len() > 8 {
                    last.pop_front();
                }
                let back = &mut self.wires[1 - to];
                self.ends[to].on_segment(self.now, segment, self.recipes[to], back);
            }
            if crossed == before {
                return Ok(crossed);
            }
            prop_assert!(crossed <= AT_ONCE, "no end at one instant: {last:#?}");
        }
    }

    /// How many segments cross in the next period.
    fn period(&mut self) -> Result<usize, TestCaseError> {
        let end = self.now + PERIOD;
        let mut crossed = self.settle()?;
        loop {
            let due = self.ends[0].deadline().min(self.ends[1].deadline());
            if due >= end {
                self.now = end;
                return Ok(crossed);
            }
            self.now = self.now.max(due);
            for at in [0, 1] {
                if self.ends[at].deadline() <= self.now {
                    self.ends[at].on_deadline(self.now, &mut self.wires[1 - at]);
                }
            }
            crossed += self.settle()?;
        }
    }
}

fn offset() -> impl Strategy<Value = i32> {
    prop_oneof![
        4 => Just(0),
        3 => -3..4_i32,
        3 => -3000..3000_i32,
        2 => -70_000..70_000_i32,
        1 => any::<i32>(),
    ]
}

fn step() -> impl Strategy<Value = Move> {
    prop_oneof![
        3 => (1..3000_u16).prop_map(Move::Receive),
        1 => (1..3000_u16).prop_map(Move::ReceiveBeyond),
        3 => (1..6000_u16).prop_map(Move::Write),
        3 => prop_oneof![Just(0), 0..600_u16].prop_map(Move::Acknowledge),
        1 => Just(Move::Fin),
        1 => Just(Move::Shutdown),
        1 => Just(Move::Close),
        1 => (1..2000_u16).prop_map(Move::Wait),
    ]
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let kind = prop_oneof![
        12 => Just(Kind::Established),
        1 => Just(Kind::SynSent),
        1 => Just(Kind::SynReceived),
        1 => Just(Kind::Request),
        1 => Just(Kind::TimeWait),
        1 => Just(Kind::Nobody),
    ];
    let moves = prop::collection::vec(step(), 0..8);
    let scale = prop_oneof![Just(None), Just(Some(0)), Just(Some(7))];
    let clock = prop_oneof![Just(0), Just(1000), any::<u32>()];
    (kind, moves, any::<bool>(), any::<bool>(), scale, clock, offset(), offset()).prop_map(
        |(kind, moves, timestamps, sack, scale, clock, iss_off, irs_off)| Recipe {
            kind,
            moves,
            timestamps,
            sack,
            scale,
            clock,
            iss_off,
            irs_off,
        },
    )
}

/// The segment that begins the exchange: flags, numbers beside those of its sender, timestamp.
fn first() -> impl Strategy<Value = (u8, i32, i32, Option<u32>, u16)> {
    let stamp = prop_oneof![2 => Just(None), 1 => any::<u32>().prop_map(Some)];
    (any::<u8>(), offset(), offset(), stamp, 0..1000_u16)
}

fn beside(number: SeqNumber, by: i32) -> SeqNumber {
    SeqNumber(number.0.wrapping_add_signed(by))
}

/// Joins two ends; the most segments that crossed in a period once all had settled.
fn join(
    recipes: [&Recipe; 2],
    numbers: (u32, u32),
    first: (u8, i32, i32, Option<u32>, u16),
) -> Result<usize, TestCaseError> {
    let start = Instant::from_nanos(1_000_000_000_000);
    let (one, two) = (SeqNumber(numbers.0), SeqNumber(numbers.1));
    let ends = [
        End::new(
            start,
            beside(one, recipes[0].iss_off),
            beside(two, recipes[0].irs_off),
            recipes[0],
        ),
        End::new(
            start,
            beside(two, recipes[1].iss_off),
            beside(one, recipes[1].irs_off),
            recipes[1],
        ),
    ];
    let now = start + Nanos::from_secs(20);
    let mut pair = Pair { now, ends, recipes, wires: [Wire::default(), Wire::default()] };
    let (flags, seq, ack, stamp, len) = first;
    pair.wires[0].0.push_back(Segment {
        seq: beside(two + 1, seq),
        ack: beside(one + 1, ack),
        flags: Flags::from_bits_truncate(flags),
        window: 500,
        options: Options {
            timestamps: stamp.map(|value| Timestamps { value, echo: 0 }),
            ..Options::default()
        },
        payload: Payload::from(Bytes::from(vec![3; usize::from(len)])),
        ..Segment::default()
    });
    for _ in 0..SETTLING {
        pair.period()?;
    }
    let mut most = 0;
    for _ in 0..WATCHED {
        most = most.max(pair.period()?);
    }
    Ok(most)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_two_states_answer_each_other_for_ever(
        one in recipe(),
        two in recipe(),
        numbers in any::<(u32, u32)>(),
        first in first(),
    ) {
        let most = join([&one, &two], numbers, first)?;
        let written: usize = one.moves.iter().chain(&two.moves).map(Move::segments).sum();
        prop_assert!(most <= PER_PERIOD + 2 * written, "{} segments in {:?}", most, PERIOD);
    }
}

/// Each end acknowledges what the other has never sent, and is in its window.
#[test]
fn two_ends_that_acknowledge_too_much_fall_silent() {
    for timestamps in [false, true] {
        let recipe = |irs_off| Recipe {
            kind: Kind::Established,
            moves: vec![Move::Receive(1000)],
            timestamps,
            sack: true,
            scale: None,
            clock: 0,
            iss_off: 0,
            irs_off,
        };
        let most = join([&recipe(0), &recipe(0)], (1, 1 << 31), (Flags::ACK.bits(), 0, 0, None, 1))
            .expect("an end");
        assert!(most <= 2, "{most}");
    }
}
