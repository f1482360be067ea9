//! Two connections over a toy path in virtual time: the connection's own behaviour, without a host.

use bytes::Bytes;
use neap_tcp::config::Config;
use neap_tcp::connection::{Connection, Path, ReadError, Readiness, Setup, WriteError, WriteFlags};
use neap_tcp::counters::{Counter, Counters};
use neap_tcp::options::SocketOptions;
use neap_tcp::segment::{Flags, Segment};
use neap_tcp::sender::pages::Unpooled;
use neap_tcp::seq::SeqNumber;
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::egress::{Egress, GsoLimits, Verdict};
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

const DELAY: Nanos = Nanos::from_millis(10);
/// One way's rate: 100 Mbit/s.
const NANOS_PER_BYTE: u64 = 80;

/// What happens to the nth wire segment with data of one direction.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Deliver,
    Lose,
    Delay(Nanos),
    Twice,
}

type Fates = dyn FnMut(u64, &Segment) -> Fate;

struct Wire {
    busy_until: Instant,
    order: u64,
    arrivals: BTreeMap<(Instant, u64), Segment>,
    on_wire: VecDeque<(Instant, TxCredit)>,
    fate: Box<Fates>,
    counted: u64,
    now: Instant,
}

impl Egress for Wire {
    fn enqueue(&mut self, segment: Segment, _: Instant, mut credit: Option<TxCredit>) -> Verdict {
        let header = 40 + segment.options.wire_len() as u32;
        assert!(header + segment.payload.len() <= self.gso().max_size, "an impossible packet");
        let pieces = segment.segments();
        let size = u32::from(segment.gso_size).max(1);
        for piece in 0..pieces {
            let mut part = segment.clone();
            if pieces > 1 {
                part.payload = segment.payload.slice(piece * size, size);
                part.seq = segment.seq + piece * size;
                part.gso_size = 0;
                let last = piece + 1 == pieces;
                part.flags.set(Flags::FIN, last && segment.flags.contains(Flags::FIN));
            }
            let bytes = u64::from(part.payload.len()) + 78;
            self.busy_until = self.busy_until.max(self.now) + Nanos(bytes * NANOS_PER_BYTE);
            let mut fate = Fate::Deliver;
            if !part.payload.is_empty() {
                self.counted += 1;
                fate = (self.fate)(self.counted, &part);
            }
            let mut at = self.busy_until + DELAY;
            if let Fate::Delay(more) = fate {
                at += more;
            }
            for _ in 0..match fate {
                Fate::Lose => 0,
                Fate::Twice => 2,
                _ => 1,
            } {
                self.order += 1;
                self.arrivals.insert((at, self.order), part.clone());
            }
        }
        if let Some(credit) = credit.take() {
            self.on_wire.push_back((self.busy_until, credit));
        }
        Verdict::Queued
    }

    fn gso(&self) -> GsoLimits {
        GsoLimits { max_size: 65535, max_segs: 65535 }
    }

    fn holds_until_departure(&self) -> bool {
        false
    }
}

impl Wire {
    fn next(&self) -> Instant {
        let arrival = self.arrivals.first_key_value().map(|(&(at, _), _)| at);
        let done = self.on_wire.front().map(|&(at, _)| at);
        arrival.into_iter().chain(done).min().unwrap_or(Instant::FAR_FUTURE)
    }
}

struct End {
    connection: Connection,
    counters: Arc<Counters>,
    wire: Wire,
    to_write: Bytes,
    read: Vec<u8>,
    reads: bool,
    closes: bool,
    eof: bool,
}

struct Pair {
    now: Instant,
    ends: [End; 2],
    client_account: Arc<TxAccount>,
}

fn end(now: Instant, isn: u32, config: Config, mtu: u32) -> (End, Arc<TxAccount>) {
    let counters = Arc::new(Counters::default());
    let account = TxAccount::new(Waker::noop().clone());
    let setup = Setup {
        controller: config.controllers.make(&config.tcp_congestion_control).expect("known"),
        config: Arc::new(config),
        counters: counters.clone(),
        pages: Arc::new(Unpooled),
        account: account.clone(),
        isn: SeqNumber(isn),
        ts_offset: isn,
        path: Path { mtu, ip_header: 20 },
        options: SocketOptions::default().into(),
    };
    let end = End {
        connection: Connection::connect(now, setup),
        counters,
        wire: Wire {
            busy_until: now,
            order: 0,
            arrivals: BTreeMap::new(),
            on_wire: VecDeque::new(),
            fate: Box::new(|_, _| Fate::Deliver),
            counted: 0,
            now,
        },
        to_write: Bytes::new(),
        read: Vec::new(),
        reads: true,
        closes: false,
        eof: false,
    };
    (end, account)
}

impl Pair {
    /// Both ends open at once: the handshake is the simultaneous open.
    fn new(config: &Config) -> Self {
        Self::with_mtu(config, 1500)
    }

    fn with_mtu(config: &Config, mtu: u32) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let (client, client_account) = end(now, u32::MAX - 5000, config.clone(), mtu);
        let (server, _) = end(now, 77, config.clone(), mtu);
        Self { now, ends: [client, server], client_account }
    }

    fn app(&mut self, side: usize) {
        let now = self.now;
        let end = &mut self.ends[side];
        while !end.to_write.is_empty() {
            let chunk = end.to_write.slice(..end.to_write.len().min(50_000));
            match end.connection.write(&chunk, WriteFlags::empty()) {
                Ok(wrote) => {
                    let _ = end.to_write.split_to(wrote);
                }
                Err(WriteError::WouldBlock) => break,
                Err(error) => panic!("write: {error}"),
            }
        }
        if end.closes && end.to_write.is_empty() && end.connection.state() == State::Established {
            end.connection.shutdown_write();
        }
        if end.closes && end.to_write.is_empty() && end.connection.state() == State::CloseWait {
            end.connection.shutdown_write();
        }
        let mut buf = [0; 10_000];
        while end.reads && !end.eof {
            match end.connection.read(now, &mut buf) {
                Ok(0) => end.eof = true,
                Ok(read) => end.read.extend_from_slice(&buf[..read]),
                Err(ReadError::WouldBlock) => break,
                Err(ReadError::Failed(_)) => end.eof = true,
            }
        }
    }

    /// Runs until nothing is left to do or `until`.
    fn run(&mut self, until: Instant) {
        for _ in 0..2_000_000 {
            for side in 0..2 {
                self.app(side);
                let now = self.now;
                let end = &mut self.ends[side];
                end.wire.now = now;
                end.connection.transmit(now, &mut end.wire);
            }
            let next = self
                .ends
                .iter()
                .map(|end| end.wire.next().min(end.connection.deadline()))
                .min()
                .expect("two ends");
            if next > until {
                return;
            }
            self.now = self.now.max(next);
            self.step();
        }
        panic!("livelock at {:?}", self.now);
    }

    fn step(&mut self) {
        for side in 0..2 {
            let now = self.now;
            let wire = &mut self.ends[side].wire;
            while wire.on_wire.front().is_some_and(|&(at, _)| at <= now) {
                wire.on_wire.pop_front();
            }
            let mut arrived = Vec::new();
            while wire.arrivals.first_key_value().is_some_and(|(&(at, _), _)| at <= now) {
                arrived.extend(wire.arrivals.pop_first().map(|(_, segment)| segment));
            }
            let peer = &mut self.ends[1 - side];
            for segment in arrived {
                peer.connection.on_segment(now, segment);
            }
            let end = &mut self.ends[side];
            if end.connection.deadline() <= now {
                end.connection.on_deadline(now);
            }
        }
    }

    fn seconds(&self, seconds: u64) -> Instant {
        self.now + Nanos::from_secs(seconds)
    }

    fn count(&self, side: usize, counter: Counter) -> u64 {
        self.ends[side].counters.get(counter)
    }
}

fn pattern(len: usize) -> Bytes {
    (0..len).map(|i| (i * 31 + i / 253) as u8).collect::<Vec<_>>().into()
}

/// Transfers `len` bytes with the given fates; returns the pair after the close.
fn transfer(len: usize, fate: impl FnMut(u64, &Segment) -> Fate + 'static) -> Pair {
    transfer_with(&Config::default(), len, fate)
}

fn transfer_with(
    config: &Config,
    len: usize,
    fate: impl FnMut(u64, &Segment) -> Fate + 'static,
) -> Pair {
    let mut pair = Pair::new(config);
    let data = pattern(len);
    pair.ends[0].to_write = data.clone();
    pair.ends[0].closes = true;
    pair.ends[1].closes = true;
    pair.ends[0].wire.fate = Box::new(fate);
    pair.run(pair.seconds(300));
    assert!(pair.ends[1].read == data, "{} of {len} bytes", pair.ends[1].read.len());
    assert!(pair.ends[1].eof);
    assert_eq!(pair.client_account.bytes(), 0);
    pair
}

#[test]
fn simultaneous_open_then_data_then_close() {
    let pair = transfer(2_000_000, |_, _| Fate::Deliver);
    assert_eq!(pair.count(0, Counter::RetransSegs), 0);
    let states = [0, 1].map(|side| pair.ends[side].connection.state());
    assert!(states.contains(&State::TimeWait), "{states:?}");
    let info = pair.ends[0].connection.info(pair.now);
    assert_eq!(info.bytes_acked, 2_000_000 + 2, "SYN and FIN count");
}

#[test]
fn one_loss_is_repaired_without_a_timeout() {
    let pair = transfer(2_000_000, |n, _| if n == 300 { Fate::Lose } else { Fate::Deliver });
    assert_eq!(pair.count(0, Counter::RetransSegs), 1);
    assert_eq!(pair.count(0, Counter::Timeouts), 0);
    assert_eq!(pair.count(0, Counter::SackRecovery), 1);
}

#[test]
fn a_lost_tail_is_repaired_by_a_probe() {
    let data = 100_000u64;
    let segments = data.div_ceil(1448);
    let pair =
        transfer(data as usize, move |n, _| if n == segments { Fate::Lose } else { Fate::Deliver });
    assert_eq!(pair.count(0, Counter::LossProbes), 1);
    assert_eq!(pair.count(0, Counter::Timeouts), 0);
}

#[test]
fn random_loss_of_two_percent() {
    let mut state = 12345u64;
    let pair = transfer(3_000_000, move |_, _| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if (state >> 33).is_multiple_of(50) { Fate::Lose } else { Fate::Deliver }
    });
    let retransmitted = pair.count(0, Counter::RetransSegs);
    assert!((20..120).contains(&retransmitted), "{retransmitted}");
}

#[test]
fn a_blackout_ends_in_a_timeout_and_goes_on() {
    let pair =
        transfer(
            1_000_000,
            |n, _| {
                if (200..260).contains(&n) { Fate::Lose } else { Fate::Deliver }
            },
        );
    assert!(pair.count(0, Counter::RetransSegs) >= 60);
}

#[test]
fn reordering_costs_no_window_once_known() {
    let pair = transfer(3_000_000, |n, _| {
        if n.is_multiple_of(50) { Fate::Delay(Nanos::from_millis(3)) } else { Fate::Deliver }
    });
    let info = pair.ends[0].connection.info(pair.now);
    assert!(info.reord_seen > 0);
    let undone = pair.count(0, Counter::FullUndo)
        + pair.count(0, Counter::PartialUndo)
        + pair.count(0, Counter::DSACKUndo);
    assert!(pair.count(0, Counter::SackRecovery) <= undone + 1);
}

#[test]
fn duplicates_are_reported_and_harmless() {
    let pair =
        transfer(500_000, |n, _| if n.is_multiple_of(10) { Fate::Twice } else { Fate::Deliver });
    assert!(pair.count(1, Counter::DSACKOldSent) > 0);
    assert_eq!(pair.count(0, Counter::RetransSegs), 0);
}

#[test]
fn without_sack_and_timestamps_losses_are_repaired_too() {
    let config = Config { tcp_sack: false, tcp_timestamps: false, ..Config::default() };
    let pair = transfer_with(&config, 1_000_000, |n, _| {
        if n.is_multiple_of(97) { Fate::Lose } else { Fate::Deliver }
    });
    assert!(pair.count(0, Counter::RenoRecovery) > 0);
}

#[test]
fn a_closed_window_is_probed_and_opens_again() {
    let mut pair = Pair::new(&Config::default());
    let data = pattern(9_000_000);
    pair.ends[0].to_write = data.clone();
    pair.ends[1].reads = false;
    pair.run(pair.seconds(30));
    assert!(pair.count(0, Counter::WinProbe) >= 3, "probes");
    assert_eq!(pair.ends[0].connection.state(), State::Established);
    pair.ends[1].reads = true;
    pair.run(pair.seconds(300));
    assert!(pair.ends[1].read == data);
}

#[test]
fn a_dead_peer_is_given_up() {
    let mut pair = Pair::new(&Config::default());
    pair.run(pair.seconds(1));
    pair.ends[0].to_write = pattern(10_000);
    pair.ends[0].wire.fate = Box::new(|_, _| Fate::Lose);
    pair.run(pair.seconds(2000));
    assert_eq!(pair.ends[0].connection.state(), State::Closed);
    assert_eq!(pair.count(0, Counter::AbortOnTimeout), 1);
}

#[test]
fn half_close_lets_the_other_direction_finish() {
    let mut pair = Pair::new(&Config::default());
    let (up, down) = (pattern(100_000), pattern(400_000));
    pair.ends[0].to_write = up.clone();
    pair.ends[0].closes = true;
    pair.run(pair.seconds(5));
    assert_eq!(pair.ends[0].connection.state(), State::FinWait2);
    pair.ends[1].to_write = down.clone();
    pair.ends[1].closes = true;
    pair.run(pair.seconds(5));
    assert!(pair.ends[0].read == down && pair.ends[1].read == up);
    assert_eq!(pair.ends[0].connection.state(), State::TimeWait);
    assert_eq!(pair.ends[1].connection.state(), State::Closed);
}

/// A retransmission may have SACK blocks that the original had not.
#[test]
fn options_that_come_later_fit_into_the_largest_packet() {
    let mut pair = Pair::with_mtu(&Config::default(), 65_535);
    let data = pattern(20_000_000);
    for (side, period) in [(0, 7), (1, 5)] {
        pair.ends[side].to_write = data.clone();
        pair.ends[side].closes = true;
        let fate = move |n: u64, _: &Segment| match n % period {
            0 => Fate::Lose,
            _ => Fate::Deliver,
        };
        pair.ends[side].wire.fate = Box::new(fate);
    }
    pair.run(pair.seconds(300));
    assert!(pair.ends.iter().all(|end| end.read == data));
    assert!(pair.count(0, Counter::RetransSegs) > 20);
}

#[test]
fn a_writer_that_goes_by_readiness_gets_a_larger_buffer() {
    let mut pair = Pair::new(&Config::default());
    pair.run(pair.seconds(1));
    let before = pair.ends[0].connection.info(pair.now).sndbuf;
    for _ in 0..1000 {
        let connection = &mut pair.ends[0].connection;
        while connection.readiness().contains(Readiness::WRITABLE) {
            assert_eq!(
                connection.write(&[7; 500], WriteFlags::empty()),
                Ok(500),
                "it is never refused"
            );
        }
        pair.now += Nanos::from_millis(1);
        pair.run(pair.now);
    }
    let after = pair.ends[0].connection.info(pair.now).sndbuf;
    assert!(after > 4 * before, "{before} to {after}");
}

#[test]
fn size_of_a_connection() {
    let size = size_of::<Connection>();
    assert!(size <= 1216, "{size} bytes");
}
