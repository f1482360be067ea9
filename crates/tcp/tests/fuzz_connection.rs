//! A connection fed with arbitrary segments, deadlines and application calls.
//!
//! `cargo test` runs it for a few seconds. `BOLERO_RANDOM_TEST_TIME_MS=600000 cargo test --test
//! fuzz_connection` runs it for ten minutes, `BOLERO_RANDOM_SEED=...` repeats a failure, and
//! `./fuzz` runs it under libFuzzer.

use bytes::Bytes;
use neap_tcp::config::{BufferSizes, Config};
use neap_tcp::congestion;
use neap_tcp::connection::{Connection, ConnectionError, Path, Setup, WriteFlags};
use neap_tcp::counters::Counters;
use neap_tcp::handshake::{Accepted, Negotiated};
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::segment::{Ecn, Flags, Payload, SackBlock, Segment, Timestamps};
use neap_tcp::sender::pages::Unpooled;
use neap_tcp::seq::SeqNumber;
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos, Rate};
use neap_tcp::transmit::egress::{Egress, GsoLimits, Verdict};
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// Send and receive buffers grow to this at the most.
const BUFFER: u32 = 256 << 10;

/// Arbitrary bytes as a source of decisions; zeros when they are used up.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn bit(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn short(&mut self) -> u32 {
        u32::from(self.byte()) << 8 | u32::from(self.byte())
    }

    fn word(&mut self) -> u32 {
        self.short() << 16 | self.short()
    }

    /// Small numbers more often than large ones.
    fn size(&mut self) -> u32 {
        match self.byte() % 4 {
            0 => u32::from(self.byte()) % 8,
            1 => u32::from(self.byte()),
            2 => self.short() % 3000,
            _ => self.short(),
        }
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.byte()) % of.len()]
    }
}

struct Wire {
    gso: GsoLimits,
    path: Path,
    verdict: Verdict,
    holds: bool,
    completes: bool,
    credits: Vec<TxCredit>,
    iss: SeqNumber,
    irs: SeqNumber,
    /// End of what was sent.
    nxt: SeqNumber,
    /// Highest acknowledgment sent.
    acked: SeqNumber,
    /// TSval sent last.
    clock: u32,
    sent: usize,
    /// Where records end, as offsets in the stream.
    records: BTreeSet<u32>,
}

/// The byte of a stream at the offset from its start.
fn byte_at(offset: u32) -> u8 {
    (offset.wrapping_mul(31) ^ (offset >> 8)) as u8
}

fn stream(from: u32, len: u32) -> Vec<u8> {
    (0..len).map(|i| byte_at(from.wrapping_add(i))).collect()
}

impl Egress for Wire {
    fn enqueue(&mut self, segment: Segment, _: Instant, credit: Option<TxCredit>) -> Verdict {
        self.sent += 1;
        self.check(&segment);
        if self.verdict == Verdict::Dropped {
            return Verdict::Dropped;
        }
        if !segment.flags.contains(Flags::RST) {
            self.nxt = self.nxt.later(segment.end_seq());
            if segment.flags.contains(Flags::ACK) {
                self.acked = self.acked.later(segment.ack);
            }
        }
        if let Some(timestamps) = segment.options.timestamps {
            self.clock = timestamps.value;
        }
        if !self.completes {
            self.credits.extend(credit);
        }
        self.verdict
    }

    fn gso(&self) -> GsoLimits {
        self.gso
    }

    fn holds_until_departure(&self) -> bool {
        self.holds
    }
}

impl Wire {
    fn check(&self, segment: &Segment) {
        let options = segment.options.wire_len() as u32;
        assert!(options <= 40, "{segment:?}");
        let header = self.path.ip_header + 20 + options;
        let len = segment.payload.len();
        let piece = if segment.gso_size == 0 { len } else { u32::from(segment.gso_size) };
        // No path is so narrow that nothing at all fits.
        assert!(piece + header <= self.path.mtu.max(header + 8), "{segment:?} {:?}", self.path);
        assert!(segment.segments() <= 64, "{segment:?}");
        if len > 8 && segment.segments() > 2 {
            // A single segment may be cut in two, when options came since that take its place.
            assert!(len + header <= self.gso.max_size, "{len} bytes: {segment:?}");
        }
        let start = segment.seq.bytes_since(self.iss + 1);
        if len > 1 {
            let inside = start.wrapping_add(1)..start.wrapping_add(len);
            let crosses = inside.start < inside.end && self.records.range(inside).next().is_some();
            assert!(!crosses, "a frame goes beyond the end of a record: {segment:?}");
        }
        let bytes: Vec<u8> = segment.payload.chunks().concat();
        assert!(bytes == stream(start, len), "other bytes than those that were written");
    }
}

struct World {
    now: Instant,
    connection: Connection,
    account: Arc<TxAccount>,
    wire: Wire,
    /// The window field of the peer's segments.
    window: u16,
    written: u32,
    read: u32,
    /// Reading was shut down, so what arrives is dropped.
    is_deaf: bool,
    /// The path was narrower than any host takes, so that frames in flight were cut to crumbs.
    is_narrow: bool,
    sndbuf: u32,
    rcvbuf: u32,
}

fn config(source: &mut Source<'_>) -> Config {
    let bits = source.byte();
    Config {
        tcp_sack: bits & 1 == 0,
        tcp_timestamps: bits & 2 == 0,
        tcp_window_scaling: bits & 4 == 0,
        tcp_ecn: if bits & 8 == 0 { 1 } else { 0 },
        tcp_frto: bits & 16 == 0,
        tcp_early_retrans: if bits & 32 == 0 { 3 } else { 0 },
        tso_autosizing: bits & 64 == 0,
        small_queues: bits & 128 == 0,
        tcp_wmem: BufferSizes { min: 4096, default: 16384, max: BUFFER },
        tcp_rmem: BufferSizes { min: 4096, default: source.pick(&[4096, 131_072]), max: BUFFER },
        wmem_max: BUFFER / 2,
        rmem_max: BUFFER / 2,
        tcp_min_tso_segs: source.pick(&[2, 1, 40]),
        tcp_congestion_control: source.pick(&["cubic", "reno"]).into(),
        tcp_limit_output_bytes: source.pick(&[4 << 20, 40_000, 1]),
        ..Config::default()
    }
}

impl World {
    fn new(source: &mut Source<'_>) -> Self {
        let now = Instant::from_nanos(u64::from(source.word()) << (source.byte() % 24));
        let config = config(source);
        let iss = SeqNumber(source.pick(&[0, u32::MAX - 1000, 1 << 31]));
        let irs = SeqNumber(source.pick(&[u32::MAX - 5000, 77, u32::MAX / 2]));
        let path = Path {
            mtu: source.pick(&[1500, 9000, 576, 65_535]),
            ip_header: source.pick(&[20, 40]),
        };
        let gso = GsoLimits {
            max_size: source.pick(&[65_535, 1500, 20_000]).max(path.mtu),
            max_segs: source.pick(&[64, 1, 65_535]),
        };
        let account = TxAccount::new(Waker::noop().clone());
        let setup = Setup {
            controller: config.controllers.make(&config.tcp_congestion_control).expect("known"),
            config: Arc::new(config.clone()),
            counters: Arc::new(Counters::default()),
            pages: Arc::new(Unpooled),
            account: account.clone(),
            isn: iss,
            ts_offset: source.pick(&[0, u32::MAX]),
            path,
            options: SocketOptions::default().into(),
        };
        let connection = if source.bit() {
            Connection::connect(now, setup)
        } else {
            let negotiated = Negotiated {
                mss: source.pick(&[1460, 48, 536, u16::MAX]),
                snd_wscale: config.tcp_window_scaling.then(|| source.byte() % 15),
                rcv_wscale: if config.tcp_window_scaling { source.byte() % 15 } else { 0 },
                sack: config.tcp_sack,
                ts_recent: config.tcp_timestamps.then(|| source.word()),
                ecn: config.tcp_ecn == 1,
            };
            let accepted = Accepted {
                iss,
                irs,
                negotiated,
                snd_wnd: source.short() << 7,
                rcv_wnd: source.short(),
                ts_offset: 0,
                synack_rtt: source.bit().then(|| Nanos(u64::from(source.word()))),
                synack_timeouts: (0, Nanos::ZERO),
                is_first_echoed: false,
            };
            Connection::accept(now, setup, accepted)
        };
        let completes = source.bit();
        let wire = Wire {
            gso,
            path,
            verdict: Verdict::Queued,
            holds: source.bit(),
            completes,
            credits: Vec::new(),
            iss,
            irs,
            nxt: iss + 1,
            acked: irs + 1,
            clock: 0,
            sent: 0,
            records: BTreeSet::new(),
        };
        Self {
            now,
            connection,
            account,
            wire,
            window: u16::MAX,
            written: 0,
            read: 0,
            is_deaf: false,
            is_narrow: false,
            sndbuf: 0,
            rcvbuf: 0,
        }
    }

    fn una(&self) -> SeqNumber {
        self.wire.nxt - self.connection.info(self.now).unacked_bytes
    }

    fn payload(&self, seq: SeqNumber, len: u32) -> Payload {
        Payload::from(Bytes::from(stream(seq.bytes_since(self.wire.irs + 1), len)))
    }

    fn segment(&self) -> Segment {
        let mut segment = Segment {
            seq: self.wire.acked,
            ack: self.wire.nxt,
            flags: Flags::ACK,
            window: self.window,
            ..Segment::default()
        };
        let value = (self.now.as_millis() as u32).wrapping_add(99);
        segment.options.timestamps = Some(Timestamps { value, echo: self.wire.clock });
        segment
    }

    /// A segment of which every field may be nonsense.
    fn any_segment(&self, source: &mut Source<'_>) -> Segment {
        let mut segment = self.segment();
        match source.byte() % 4 {
            0 => {}
            1 => segment.seq += source.size(),
            2 => segment.seq = segment.seq - source.size(),
            _ => segment.seq = SeqNumber(source.word()),
        }
        match source.byte() % 5 {
            0 => {}
            1 => segment.ack += source.size(),
            2 => segment.ack = segment.ack - source.size(),
            3 => segment.ack = self.una() + source.size(),
            _ => segment.ack = SeqNumber(source.word()),
        }
        segment.flags = Flags::from_bits_retain(source.byte());
        if source.byte() > 16 {
            segment.flags.remove(Flags::SYN | Flags::RST | Flags::FIN);
            segment.flags |= Flags::ACK;
        }
        if self.connection.state() == State::SynSent && segment.flags.contains(Flags::SYN) {
            // The stream of bytes that is checked starts there.
            segment.seq = self.wire.irs;
        }
        segment.window = source.short() as u16;
        segment.urgent = segment.window;
        let options = source.byte();
        segment.options.mss = (options & 1 != 0).then(|| source.short() as u16);
        segment.options.window_scale = (options & 2 != 0).then(|| source.byte());
        segment.options.sack_permitted = options & 4 != 0;
        match options >> 3 & 3 {
            0 => segment.options.timestamps = None,
            1 => {
                let (value, echo) = (source.word(), source.word());
                segment.options.timestamps = Some(Timestamps { value, echo });
            }
            _ => {}
        }
        let base = source.pick(&[self.una(), segment.ack, self.wire.nxt]);
        for _ in 0..(options >> 5) % 5 {
            let left = base + source.size() - u32::from(source.byte());
            segment.options.sack.push(SackBlock {
                left,
                right: left + source.size() - u32::from(source.byte() % 4),
            });
        }
        segment.payload = self
            .payload(segment.seq + u32::from(segment.flags.contains(Flags::SYN)), source.size());
        segment.gso_size = source.pick(&[0, 0, 1, 536, 1448]);
        segment.ecn = source.pick(&[Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce]);
        segment
    }

    fn arrive(&mut self, source: &mut Source<'_>, kind: u8) {
        let mut segment = match kind {
            0 => self.any_segment(source),
            _ => self.segment(),
        };
        if source.byte() < 20 {
            self.window = source.pick(&[u16::MAX, 0, 1, 100, 10_000]);
        }
        match kind {
            // The peer's SYN, alone or with an ACK.
            1 => {
                segment.seq = self.wire.irs;
                segment.flags = source.pick(&[Flags::SYN | Flags::ACK, Flags::SYN]);
                segment.options.mss = Some(source.pick(&[1460, 1, 0, 500, u16::MAX]));
                segment.options.window_scale = source.bit().then(|| source.byte());
                segment.options.sack_permitted = source.bit();
                if source.bit() {
                    segment.flags |= Flags::ECE;
                }
            }
            // The next data.
            2 => segment.payload = self.payload(segment.seq, source.size()),
            // Data above a hole.
            3 => {
                segment.seq += source.size();
                segment.payload = self.payload(segment.seq, source.size());
            }
            // An ACK of a part, with SACK blocks above it.
            4 => {
                let una = self.una();
                segment.ack = una + source.size().min(self.wire.nxt.bytes_since(una));
                for _ in 0..source.byte() % 4 {
                    let left = segment.ack + source.size();
                    segment.options.sack.push(SackBlock { left, right: left + source.size() });
                }
            }
            5 => segment.flags |= Flags::FIN,
            6 => segment.flags = Flags::RST,
            _ => {}
        }
        self.connection.on_segment(self.now, segment);
    }

    fn apply(&mut self, source: &mut Source<'_>) {
        let now = self.now;
        match source.byte() % 32 {
            0..6 => self.arrive(source, 0),
            6 => self.arrive(source, 1),
            7..10 => self.arrive(source, 2),
            10..12 => self.arrive(source, 3),
            12..15 => self.arrive(source, 4),
            15 => {
                let kind = match source.byte() {
                    0..4 => 5,
                    4 => 6,
                    _ => 7,
                };
                self.arrive(source, kind);
            }
            16..19 => self.write(source),
            19 => self.read_some(source),
            20..23 => {
                let span = Nanos(u64::from(source.short()) << source.pick(&[0, 8, 16, 24]));
                self.now += span;
            }
            23..26 => {
                // At the next deadline, to the nanosecond.
                let due = self.connection.deadline();
                if due != Instant::FAR_FUTURE {
                    self.now = self.now.max(due);
                }
            }
            26 | 27 => {
                let keep = usize::from(source.byte()).min(self.wire.credits.len());
                self.wire.credits.drain(keep..);
            }
            28 => {
                self.wire.verdict =
                    source.pick(&[Verdict::Queued, Verdict::Dropped, Verdict::Congested]);
            }
            29 => self.set_option(source),
            30 => {
                let mtu = source.pick(&[1500, 576, 68, 0, 9000, 1280, 65_535]);
                self.is_narrow |= mtu < 552;
                self.wire.path = Path { mtu, ..self.wire.path };
                self.wire.gso.max_size = self.wire.gso.max_size.max(mtu);
                self.connection.on_path_change(now, self.wire.path);
            }
            _ => match source.byte() % 64 {
                0 => self.connection.shutdown_write(),
                1 => {
                    self.connection.shutdown_read();
                    self.is_deaf = true;
                }
                2 => {
                    self.connection.close(now);
                    self.is_deaf = true;
                }
                3 => self.connection.abort(),
                4 => self.connection.on_unreachable(ConnectionError::HostUnreachable),
                5 => drop(self.connection.take_time_wait()),
                6 => drop(self.connection.take_error()),
                7 => {
                    let option = SocketOption::ReceiveErrors(source.bit());
                    drop(self.connection.set_option(now, option));
                }
                _ => self.wire.completes = source.bit(),
            },
        }
    }

    fn write(&mut self, source: &mut Source<'_>) {
        let data = stream(self.written, source.size());
        let flags = WriteFlags::from_bits_truncate(source.byte() >> 4);
        let (len, now) = (data.len(), self.now);
        let wrote = match source.byte() % 3 {
            0 => self.connection.write(&data, flags),
            1 => self.connection.write_bytes(&mut Bytes::from(data), flags),
            _ => {
                // It sends any number of times; what leaves at one time is counted elsewhere.
                let sent = self.wire.sent;
                let wrote = self.connection.send(now, &data, flags, &mut self.wire);
                self.wire.sent = sent;
                wrote
            }
        };
        if flags.contains(WriteFlags::EOR) && len > 0 && wrote == Ok(len) {
            self.wire.records.insert(self.written.wrapping_add(len as u32));
        }
        self.written = self.written.wrapping_add(wrote.unwrap_or(0) as u32);
    }

    fn read_some(&mut self, source: &mut Source<'_>) {
        let mut buf = vec![0; source.size() as usize];
        let _ = self.connection.peek(&mut buf);
        let got = if source.bit() {
            let read = self.connection.read(self.now, &mut buf).unwrap_or(0);
            buf.truncate(read);
            buf
        } else {
            self.connection
                .read_bytes(self.now)
                .ok()
                .flatten()
                .map_or(Vec::new(), |slice| slice.to_vec())
        };
        let right = got == stream(self.read, got.len() as u32);
        assert!(right || self.is_deaf, "other bytes than those that were sent");
        self.read = self.read.wrapping_add(got.len() as u32);
    }

    fn set_option(&mut self, source: &mut Source<'_>) {
        let span = Nanos(u64::from(source.word()));
        let option = match source.byte() % 16 {
            0 => SocketOption::NoDelay(source.bit()),
            1 => SocketOption::Cork(source.bit()),
            2 => SocketOption::QuickAck(source.bit().into()),
            3 => SocketOption::KeepAlive(source.bit()),
            4 => SocketOption::KeepAliveIdle(span.saturating_mul(10)),
            5 => SocketOption::KeepAliveInterval(span.saturating_mul(10)),
            6 => SocketOption::KeepAliveCount(u32::from(source.byte())),
            7 => SocketOption::UserTimeout(span),
            8 => SocketOption::Linger(source.bit().then_some(Nanos::ZERO)),
            9 => SocketOption::SendBuffer(source.word() >> (source.byte() % 32)),
            10 => SocketOption::ReceiveBuffer(source.word() >> (source.byte() % 32)),
            11 => SocketOption::MaxSegment(source.short() as u16),
            12 => SocketOption::MaxPacingRate(Rate(u64::from(source.word()))),
            13 => SocketOption::Congestion(
                congestion::BUILT_IN[usize::from(source.byte() % 4)].into(),
            ),
            14 => SocketOption::ReceiveLowat(source.word() >> (source.byte() % 32)),
            _ => SocketOption::NotSentLowat(source.word() >> (source.byte() % 32)),
        };
        // What was taken by a larger buffer stays when it shrinks.
        self.sndbuf = self.sndbuf.max(self.connection.info(self.now).sndbuf);
        let _ = self.connection.set_option(self.now, option);
        self.sndbuf = self.sndbuf.max(self.connection.info(self.now).sndbuf);
    }

    /// Runs what is due and sends, as a host does.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 64, "a deadline stays in the past: {:#?}", self.connection);
            if self.connection.deadline() <= self.now {
                self.connection.on_deadline(self.now);
            }
            self.connection.transmit(self.now, &mut self.wire);
            if self.connection.deadline() > self.now {
                break;
            }
        }
    }

    fn check(&mut self) {
        let info = self.connection.info(self.now);
        let state = self.connection.state();
        // What leaves at one time is in flight afterwards, or an ACK, or a probe.
        let most = 200 + 2 * info.unacked as usize;
        assert!(self.wire.sent <= most, "{} segments in one step", self.wire.sent);
        self.wire.sent = 0;
        assert!(info.unacked_bytes <= 1 << 30);
        assert!(
            info.sacked + info.lost <= info.unacked && info.retrans <= info.unacked,
            "{info:#?}"
        );
        assert!(info.snd_cwnd >= 1 && info.snd_mss >= 8 && info.rto <= Nanos::from_secs(120));
        self.sndbuf = self.sndbuf.max(info.sndbuf);
        self.rcvbuf = self.rcvbuf.max(info.rcvbuf);
        assert!(info.notsent_bytes + info.unacked_bytes <= self.sndbuf + 66_560, "{info:#?}");
        // What waits counts by the segment size of the moment; what was sent, by its frames, and
        // those may be of a single small segment each.
        let most = 2 * (self.sndbuf + 2 * 66_560);
        let is_known = info.notsent_bytes == 0 && !self.is_narrow && info.snd_mss >= 536;
        assert!(!is_known || info.wmem_queued <= most, "{} of {}", info.wmem_queued, self.sndbuf);
        let most = 2 * self.rcvbuf.max(131_072) + 66_560;
        assert!(info.rmem_alloc <= most, "{} of {}", info.rmem_alloc, self.rcvbuf);
        let below: u64 = self.wire.credits.iter().map(|credit| u64::from(credit.bytes())).sum();
        assert_eq!(self.account.bytes(), below, "credits");
        if state == State::Closed {
            assert_eq!(self.connection.deadline(), Instant::FAR_FUTURE);
            assert_eq!((info.unacked, info.notsent_bytes), (0, 0));
        } else if info.unacked > 0 || info.notsent_bytes > 0 {
            let waits = self.connection.deadline() != Instant::FAR_FUTURE;
            assert!(waits, "silent for ever: {info:#?}");
        }
    }
}

fn run(bytes: &[u8]) {
    let mut source = Source(bytes);
    let mut world = World::new(&mut source);
    world.settle();
    if source.byte() > 32 && world.connection.state() == State::SynSent {
        world.arrive(&mut source, 1);
    }
    while !source.is_empty() {
        world.apply(&mut source);
        if !source.bit() {
            world.settle();
            world.check();
        }
    }
    world.settle();
    world.check();
    world.connection.abort();
    world.settle();
    world.wire.credits.clear();
    assert_eq!(world.account.bytes(), 0);
}

#[test]
fn connection() {
    bolero::check!()
        .with_test_time(Duration::from_secs(3))
        .with_max_len(8192)
        .with_shrink_time(Duration::from_secs(5))
        .for_each(|bytes: &[u8]| run(bytes));
}
