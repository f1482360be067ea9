//! The other end of a connection, played by hand: a test says which segments arrive and when, and
//! sees every segment that leaves. Sequence numbers are relative: 0 is the first data byte of a
//! direction, -1 its SYN. Both initial numbers are close to the wrap.
#![allow(dead_code)] // Each test program uses a part of it.

use bytes::Bytes;
use neap_tcp::config::Config;
use neap_tcp::congestion::CongestionControl;
use neap_tcp::connection::{Connection, Path, ReadError, Setup, WriteFlags};
use neap_tcp::counters::{Counter, Counters};
use neap_tcp::info::TcpInfo;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::segment::{Ecn, Flags, Options, Payload, SackBlock, Segment, Timestamps};
use neap_tcp::sender::pages::Unpooled;
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::TxBlocked;
use neap_tcp::transmit::egress::{Egress, GsoLimits, Verdict};
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// Initial sequence number of the connection under test.
pub(crate) const ISS: SeqNumber = SeqNumber(u32::MAX - 3000);
/// Initial sequence number of the peer.
pub(crate) const IRS: SeqNumber = SeqNumber(u32::MAX - 1500);
/// The round-trip time of the handshake.
pub(crate) const RTT: Nanos = Nanos::from_millis(10);
/// What the peer's clock adds to its timestamps.
const PEER_CLOCK: u32 = 7_000_000;

/// A segment that left.
#[derive(Clone, Debug)]
pub(crate) struct Out {
    /// When it was handed down.
    pub(crate) at: Instant,
    /// The stamp that it carries.
    pub(crate) departure: Instant,
    pub(crate) segment: Segment,
}

impl Out {
    /// Relative sequence number.
    pub(crate) fn seq(&self) -> i32 {
        self.segment.seq.bytes_since(ISS + 1) as i32
    }

    /// Relative acknowledgment number.
    pub(crate) fn ack(&self) -> i32 {
        self.segment.ack.bytes_since(IRS + 1) as i32
    }

    pub(crate) fn len(&self) -> u32 {
        self.segment.payload.len()
    }

    pub(crate) fn has(&self, flags: Flags) -> bool {
        self.segment.flags.contains(flags)
    }

    /// Relative SACK blocks.
    pub(crate) fn sacks(&self) -> Vec<(i32, i32)> {
        let relative = |seq: SeqNumber| seq.bytes_since(IRS + 1) as i32;
        self.segment.options.sack.iter().map(|b| (relative(b.left), relative(b.right))).collect()
    }
}

/// The way down: keeps what leaves, and its credits until they are completed.
pub(crate) struct Wire {
    pub(crate) gso: GsoLimits,
    pub(crate) verdict: Verdict,
    pub(crate) holds_until_departure: bool,
    /// Frames of data that may leave in one visit.
    pub(crate) budget: usize,
    /// Frames complete as soon as they were handed down.
    pub(crate) completes: bool,
    /// The connection knows that they always do.
    pub(crate) is_at_once: bool,
    pub(crate) credits: VecDeque<TxCredit>,
    pub(crate) out: Vec<Out>,
    pub(crate) mtu: u32,
    now: Instant,
}

impl Egress for Wire {
    fn enqueue(
        &mut self,
        segment: Segment,
        departure: Instant,
        credit: Option<TxCredit>,
    ) -> Verdict {
        assert!(segment.options.wire_len() <= 40, "{segment:?}");
        let header = 40 + segment.options.wire_len() as u32;
        let piece = match segment.gso_size {
            0 => segment.payload.len(),
            size => u32::from(size),
        };
        if !segment.flags.contains(Flags::SYN) {
            assert!(piece + header <= self.mtu.max(header + 8), "{segment:?}");
            let size = segment.payload.len() + header;
            assert!(size <= self.gso.max_size.max(self.mtu), "{size} bytes in a frame");
        }
        if self.verdict == Verdict::Dropped {
            return Verdict::Dropped;
        }
        self.out.push(Out { at: self.now, departure, segment });
        if let Some(credit) = credit
            && !self.completes
        {
            self.credits.push_back(credit);
        }
        self.verdict
    }

    fn gso(&self) -> GsoLimits {
        self.gso
    }

    fn holds_until_departure(&self) -> bool {
        self.holds_until_departure
    }

    fn completes_on_enqueue(&self) -> bool {
        self.is_at_once
    }

    fn is_exhausted(&self) -> bool {
        self.out.len() >= self.budget
    }
}

/// Whether the socket was woken by a completion.
#[derive(Default)]
pub(crate) struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What the peer's SYN says.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    pub(crate) mss: Option<u16>,
    pub(crate) wscale: Option<u8>,
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    pub(crate) ecn: bool,
    /// Window in bytes (of the SYN, and of later segments unless changed).
    pub(crate) window: u32,
}

impl Default for Hello {
    fn default() -> Self {
        let window = 64_000;
        Self { mss: Some(1000), wscale: Some(7), sack: true, timestamps: false, ecn: false, window }
    }
}

/// The peer, the connection and the time.
pub(crate) struct Peer {
    pub(crate) now: Instant,
    pub(crate) connection: Connection,
    pub(crate) counters: Arc<Counters>,
    pub(crate) account: Arc<TxAccount>,
    pub(crate) wire: Wire,
    pub(crate) woken: Arc<Woken>,
    /// Bytes that later segments of the peer announce as window.
    pub(crate) window: u32,
    /// What the peer acknowledges, relative.
    pub(crate) acked: i32,
    /// The peer's next sequence number, relative.
    pub(crate) next: i32,
    /// The timestamp that the peer echoes next.
    pub(crate) echo: u32,
    hello: Hello,
    written: usize,
}

/// The bytes that [`Peer::write`] writes: those of the whole stream from `from`.
pub(crate) fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|i| (i * 31 + i / 253) as u8).collect()
}

pub(crate) fn at(offset: i32, base: SeqNumber) -> SeqNumber {
    SeqNumber(base.0.wrapping_add(1).wrapping_add(offset as u32))
}

impl Peer {
    /// A connection in SYN-SENT that has not sent anything.
    pub(crate) fn opening(config: Config, options: SocketOptions, hello: Hello) -> Self {
        let controller = config.controllers.make(&config.tcp_congestion_control).expect("known");
        Self::controlled(config, options, hello, controller)
    }

    /// The same with a controller of the test's own.
    pub(crate) fn controlled(
        config: Config,
        options: SocketOptions,
        hello: Hello,
        controller: Box<dyn CongestionControl>,
    ) -> Self {
        Self::around(config, options, hello, controller, Connection::connect)
    }

    /// A connection in SYN-RECEIVED that answers the peer's SYN and has not sent anything.
    pub(crate) fn answering(config: Config, hello: Hello) -> Self {
        let controller = config.controllers.make(&config.tcp_congestion_control).expect("known");
        let options = SocketOptions::default();
        // The SYN is that of a peer which is thrown away.
        let syn = Self::opening(config.clone(), options.clone(), hello.clone()).syn(Flags::SYN);
        let answer = |now, setup| Connection::answer(now, setup, &syn);
        Self::around(config, options, hello, controller, answer)
    }

    fn around(
        config: Config,
        options: SocketOptions,
        hello: Hello,
        controller: Box<dyn CongestionControl>,
        open: impl FnOnce(Instant, Setup) -> Connection,
    ) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let counters = Arc::new(Counters::default());
        let woken = Arc::new(Woken::default());
        let account = TxAccount::new(Waker::from(woken.clone()));
        let setup = Setup {
            config: Arc::new(config),
            counters: counters.clone(),
            pages: Arc::new(Unpooled),
            account: account.clone(),
            controller,
            isn: ISS,
            ts_offset: u32::MAX - 500,
            path: Path { mtu: 1500, ip_header: 20 },
            options: options.into(),
        };
        let wire = Wire {
            gso: GsoLimits { max_size: 65535, max_segs: 64 },
            verdict: Verdict::Queued,
            budget: usize::MAX,
            holds_until_departure: false,
            completes: true,
            is_at_once: false,
            credits: VecDeque::new(),
            out: Vec::new(),
            mtu: 1500,
            now,
        };
        Self {
            now,
            connection: open(now, setup),
            counters,
            account,
            wire,
            woken,
            window: hello.window,
            acked: 0,
            next: 0,
            echo: 0,
            hello,
            written: 0,
        }
    }

    /// An established connection; the handshake took [`RTT`].
    pub(crate) fn established(config: Config, options: SocketOptions, hello: Hello) -> Self {
        Self::opening(config, options, hello).shake()
    }

    /// With everything at its default.
    pub(crate) fn plain() -> Self {
        Self::established(Config::default(), SocketOptions::default(), Hello::default())
    }

    /// The handshake.
    pub(crate) fn shake(mut self) -> Self {
        self.transmit();
        let syn = self.one();
        assert!(syn.has(Flags::SYN) && !syn.has(Flags::ACK));
        self.advance(RTT);
        let synack = self.syn(Flags::SYN | Flags::ACK);
        self.inject(synack);
        let ack = self.one();
        assert_eq!((ack.seq(), ack.ack(), ack.len()), (0, 0, 0));
        self
    }

    // What the peer sends.

    /// The peer's SYN or SYN-ACK, by its [`Hello`].
    pub(crate) fn syn(&self, flags: Flags) -> Segment {
        let mut segment = self.segment(-1, flags);
        segment.window = self.hello.window.min(65535) as u16;
        if self.hello.ecn {
            segment.flags |= Flags::ECE;
            segment.flags.set(Flags::CWR, !flags.contains(Flags::ACK));
        }
        segment.options.mss = self.hello.mss;
        segment.options.window_scale = self.hello.wscale;
        segment.options.sack_permitted = self.hello.sack;
        segment
    }

    /// A segment of the peer at `seq`, with today's ACK number, window and timestamps.
    pub(crate) fn segment(&self, seq: i32, flags: Flags) -> Segment {
        let value = (self.now.as_millis() as u32).wrapping_add(PEER_CLOCK);
        let timestamps = Timestamps { value, echo: self.echo };
        Segment {
            seq: at(seq, IRS),
            ack: at(self.acked, ISS),
            flags,
            window: (self.window >> self.hello.wscale.unwrap_or(0).min(14)).min(65535) as u16,
            options: Options {
                timestamps: self.hello.timestamps.then_some(timestamps),
                ..Options::default()
            },
            ..Segment::default()
        }
    }

    /// `segment` arrives, and what it causes leaves.
    pub(crate) fn inject(&mut self, segment: Segment) -> TxBlocked {
        self.connection.on_segment(self.now, segment);
        self.transmit()
    }

    /// The peer acknowledges everything up to `upto`.
    pub(crate) fn ack(&mut self, upto: i32) -> TxBlocked {
        self.ack_sack(upto, &[])
    }

    /// ... with SACK blocks.
    pub(crate) fn ack_sack(&mut self, upto: i32, blocks: &[(i32, i32)]) -> TxBlocked {
        self.acked = upto;
        let mut segment = self.segment(self.next, Flags::ACK);
        segment.options.sack = blocks
            .iter()
            .map(|&(left, right)| SackBlock { left: at(left, ISS), right: at(right, ISS) })
            .collect();
        self.inject(segment)
    }

    /// A data segment of the peer, not injected and not counted as sent.
    pub(crate) fn data_at(&self, seq: i32, len: usize) -> Segment {
        let mut segment = self.segment(seq, Flags::ACK);
        segment.payload = Payload::from(Bytes::from(pattern(seq.max(0) as usize, len)));
        segment
    }

    /// The peer's next `len` bytes arrive.
    pub(crate) fn data(&mut self, len: usize) -> TxBlocked {
        let segment = self.data_at(self.next, len);
        self.next += len as i32;
        self.inject(segment)
    }

    /// ... with ECN codepoint and further flags.
    pub(crate) fn data_with(&mut self, len: usize, ecn: Ecn, flags: Flags) -> TxBlocked {
        let mut segment = self.data_at(self.next, len);
        segment.ecn = ecn;
        segment.flags |= flags;
        self.next += len as i32;
        self.inject(segment)
    }

    // The application.

    /// Writes `len` bytes of the pattern and transmits; all must be taken.
    pub(crate) fn write(&mut self, len: usize) -> TxBlocked {
        assert_eq!(self.try_write(len), len);
        self.transmit()
    }

    /// Writes what fits of `len` bytes; does not transmit.
    pub(crate) fn try_write(&mut self, len: usize) -> usize {
        let wrote =
            self.connection.write(&pattern(self.written, len), WriteFlags::empty()).unwrap_or(0);
        self.written += wrote;
        wrote
    }

    /// Writes `len` bytes with `flags`, and transmits.
    pub(crate) fn write_with(&mut self, len: usize, flags: WriteFlags) -> TxBlocked {
        let data = pattern(self.written, len);
        assert_eq!(self.connection.write(&data, flags), Ok(len));
        self.written += len;
        self.transmit()
    }

    /// Writes `len` bytes, of which large parts leave on the way; how many were taken.
    pub(crate) fn send(&mut self, len: usize, flags: WriteFlags) -> usize {
        let data = pattern(self.written, len);
        self.wire.now = self.now;
        let sent = self.connection.send(self.now, &data, flags, &mut self.wire).unwrap_or(0);
        self.written += sent;
        self.transmit();
        sent
    }

    /// Reads all there is.
    pub(crate) fn read(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buf = [0; 5000];
        loop {
            match self.connection.read(self.now, &mut buf) {
                Ok(0) | Err(ReadError::WouldBlock) => return all,
                Ok(read) => all.extend_from_slice(&buf[..read]),
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn set(&mut self, option: SocketOption) {
        self.connection.set_option(self.now, option).expect("a valid option");
        self.transmit();
    }

    // Time and the way down.

    pub(crate) fn transmit(&mut self) -> TxBlocked {
        self.wire.now = self.now;
        self.connection.transmit(self.now, &mut self.wire)
    }

    /// Lets `span` pass; deadlines run when they are due.
    pub(crate) fn advance(&mut self, span: Nanos) {
        self.run_to(self.now + span);
    }

    pub(crate) fn advance_ms(&mut self, ms: u64) {
        self.advance(Nanos::from_millis(ms));
    }

    fn run_to(&mut self, until: Instant) {
        for _ in 0..100_000 {
            let due = self.connection.deadline();
            if due > until {
                self.now = until;
                return;
            }
            self.now = self.now.max(due);
            self.connection.on_deadline(self.now);
            self.transmit();
        }
        panic!("a deadline never passes");
    }

    /// Completes the oldest `frames` frames below TCP and transmits if that woke the socket.
    pub(crate) fn complete(&mut self, frames: usize) {
        for _ in 0..frames {
            drop(self.wire.credits.pop_front().expect("a frame below"));
        }
        if self.take_wake() {
            self.transmit();
        }
    }

    /// Whether a completion woke the socket since the last call.
    pub(crate) fn take_wake(&self) -> bool {
        self.woken.0.swap(false, Ordering::SeqCst)
    }

    // What left.

    /// Everything that left since the last call.
    pub(crate) fn take(&mut self) -> Vec<Out> {
        let out = std::mem::take(&mut self.wire.out);
        for out in &out {
            if let Some(timestamps) = out.segment.options.timestamps {
                self.echo = timestamps.value;
            }
        }
        out
    }

    /// The one segment that left.
    pub(crate) fn one(&mut self) -> Out {
        let mut out = self.take();
        assert_eq!(out.len(), 1, "{out:#?}");
        out.remove(0)
    }

    /// Nothing left.
    pub(crate) fn nothing(&mut self) {
        let out = self.take();
        assert!(out.is_empty(), "{out:#?}");
    }

    /// What left, as (sequence number, length) of segments with data.
    pub(crate) fn sent(&mut self) -> Vec<(i32, u32)> {
        self.take().iter().filter(|out| out.len() > 0).map(|out| (out.seq(), out.len())).collect()
    }

    /// Bytes of data that left.
    pub(crate) fn sent_bytes(&mut self) -> u32 {
        self.sent().iter().map(|&(_, len)| len).sum()
    }

    /// The end of what was sent, relative.
    pub(crate) fn end(&self) -> i32 {
        let info = self.info();
        // The SYN counts.
        (info.bytes_acked as u32 + info.unacked_bytes) as i32 - 1
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.counters.get(counter)
    }

    pub(crate) fn info(&self) -> TcpInfo {
        self.connection.info(self.now)
    }

    /// Milliseconds since `start`.
    pub(crate) fn ms_since(&self, start: Instant) -> u64 {
        self.now.since(start).as_millis()
    }
}
