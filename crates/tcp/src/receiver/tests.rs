use super::*;
use crate::config::{BufferSizes, MemoryPages};
use crate::memory::HostMemory;
use crate::segment::Timestamps;
use crate::segment::{Ecn, Payload};

mod replies;

const MSS: u32 = 1000;

struct Host {
    rx: Receiver,
    now: Instant,
    counters: Arc<Counters>,
    estimates: Estimates,
}

fn setup() -> Terms {
    Terms {
        irs: SeqNumber(u32::MAX - 500),
        wnd: 64_000,
        wscale: 7,
        advmss: MSS as u16,
        mss: MSS as u16,
        ts_recent: None,
        sack: true,
        ecn: true,
        rcvbuf: None,
    }
}

/// A buffer that does not grow: growth asks for quick ACKs.
fn fixed() -> Terms {
    Terms { rcvbuf: Some(131_072), ..setup() }
}

impl Host {
    fn with(setup: &Terms) -> Self {
        Self::of(Config::default(), setup, Arc::default())
    }

    fn of(config: Config, setup: &Terms, counters: Arc<Counters>) -> Self {
        let now = Instant::from_nanos(1 << 40);
        let rx = Receiver::new(now, Arc::new(config), counters.clone(), setup);
        let estimates = Estimates {
            srtt: Nanos::from_millis(20),
            rto: Nanos::from_millis(220),
            rto_min: Nanos::from_millis(200),
            ..Estimates::default()
        };
        Self { rx, now, counters, estimates }
    }

    fn new() -> Self {
        Self::with(&setup())
    }

    fn at(&self, offset: u32) -> SeqNumber {
        self.rx.irs() + 1 + offset
    }

    fn segment(&self, offset: u32, len: u32, flags: Flags) -> Segment {
        let data: Vec<u8> = (offset..offset + len).map(|i| i as u8).collect();
        Segment {
            seq: self.at(offset),
            flags: flags | Flags::ACK,
            payload: Payload::from(Bytes::from(data)),
            ..Segment::default()
        }
    }

    fn input(&mut self, mut segment: Segment) -> Intake {
        self.rx.on_segment(self.now, &mut segment, self.estimates)
    }

    fn data(&mut self, offset: u32, len: u32) -> Disposition {
        let segment = self.segment(offset, len, Flags::PSH);
        self.input(segment).disposition
    }

    /// Sends an ACK whatever is due. Returns the window.
    fn ack(&mut self) -> u32 {
        let window = self.rx.next_window();
        self.rx.on_ack_sent(window);
        window.wnd
    }

    /// Sends the ACKs due now.
    fn acks(&mut self) -> usize {
        let mut sent = 0;
        while self.rx.ack_due() == AckDue::Now {
            self.ack();
            sent += 1;
        }
        sent
    }

    /// Fills the window from `offset` on, by segments that are read and acknowledged at once.
    fn take_window(&mut self, offset: &mut u32) {
        for _ in 0..self.rx.adv().bytes_since(self.rx.nxt()) / MSS {
            self.data(*offset, MSS);
            *offset += MSS;
            self.read(2 * MSS as usize);
            self.acks();
        }
    }

    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        let read = self.rx.read(self.now, &mut buf);
        buf.truncate(read);
        buf
    }

    fn wait(&mut self, millis: u64) {
        self.now += Nanos::from_millis(millis);
        self.rx.on_deadline(self.now, self.estimates);
    }

    /// Full segments from number `first`, read at once. Returns the ACKs sent.
    fn stream(&mut self, first: u32, count: u32) -> usize {
        let mut acks = 0;
        for i in first..first + count {
            self.data(i * MSS, MSS);
            acks += self.acks();
            self.read(MSS as usize);
            self.wait(1);
        }
        acks
    }

    fn blocks(&self) -> Vec<(u32, u32)> {
        let first = self.at(0);
        let offset = |seq: SeqNumber| seq.bytes_since(first);
        self.rx.sack_blocks(4).iter().map(|b| (offset(b.left), offset(b.right))).collect()
    }

    /// Data in order until the quick ACKs of the start are spent. Returns the next offset.
    fn settle(&mut self) -> u32 {
        let mut offset = 0;
        loop {
            self.data(offset, 100);
            offset += 100;
            if self.rx.ack_due() != AckDue::Now {
                self.read(1 << 20);
                self.ack();
                return offset;
            }
            self.read(1 << 20);
            self.ack();
        }
    }
}

#[test]
fn what_is_kept_for_long_is_collapsed_when_that_is_due() {
    // Dates have 32 bits and begin anew after 49 days. Two of them say something else.
    for millis in [0, 1, 2, 1 << 32, 1000 + (1 << 32)] {
        let mut host = Host::new();
        host.now = Instant::from_nanos(6_000) + Nanos::from_millis(millis);
        host.data(0, 10_000);
        host.ack();
        assert!(host.rx.queue.has_kept());
        host.now = host.rx.deadline();
        host.wait(0);
        assert!(host.rx.deadline() > host.now, "at {millis} ms: the deadline stays in the past");
    }
}

#[test]
fn an_idle_receiver_is_small() {
    assert!(size_of::<Receiver>() <= 400, "{}", size_of::<Receiver>());
    let mut host = Host::new();
    assert_eq!(host.rx.deadline(), Instant::FAR_FUTURE);
    host.data(0, 10);
    host.data(10, 10_000);
    host.read(20_000);
    host.ack();
    assert!(host.rx.queue.holds_heap());
    assert_eq!(host.rx.deadline(), host.now + IDLE_RELEASE);
    host.wait(1_000);
    assert!(!host.rx.queue.holds_heap());
    assert_eq!(host.rx.deadline(), Instant::FAR_FUTURE);
}

#[test]
fn the_start_is_acknowledged_without_delay_and_later_every_second_segment() {
    let mut host = Host::with(&fixed());
    assert_eq!(host.stream(0, 16), 16);
    host.stream(16, 50);
    assert_eq!(host.stream(66, 40), 20);
}

#[test]
fn a_lone_small_segment_waits_40_ms() {
    let mut host = Host::new();
    let offset = host.settle();
    host.data(offset, 100);
    let AckDue::Delayed(at) = host.rx.ack_due() else { panic!("{:?}", host.rx.ack_due()) };
    assert_eq!(at.since(host.now), ATO_MIN);
    assert_eq!(host.rx.deadline(), at);
    host.wait(39);
    assert_ne!(host.rx.ack_due(), AckDue::Now);
    host.wait(1);
    assert_eq!(host.rx.ack_due(), AckDue::Now);
    assert_eq!(host.counters.get(Counter::DelayedACKs), 1);
    assert_eq!(host.rx.ato(), Nanos::from_millis(80), "a missed delay inflates the estimate");
    host.ack();
    assert_eq!(host.rx.ack_due(), AckDue::None);
}

#[test]
fn the_delay_stays_below_the_least_retransmission_timeout() {
    let mut host = Host::new();
    let mut offset = host.settle();
    host.estimates =
        Estimates { srtt: Nanos::from_secs(3), rto: Nanos::from_secs(9), ..host.estimates };
    for _ in 0..8 {
        host.data(offset, 100);
        offset += 100;
        host.wait(1_000);
        host.acks();
    }
    host.data(offset, 100);
    let AckDue::Delayed(at) = host.rx.ack_due() else { panic!("{:?}", host.rx.ack_due()) };
    assert_eq!(at.since(host.now), Nanos::from_millis(199));
}

#[test]
fn reading_all_of_a_pushed_segment_is_acknowledged_unless_the_sides_take_turns() {
    let mut host = Host::new();
    let offset = host.settle();
    host.data(offset, 100);
    assert_ne!(host.rx.ack_due(), AckDue::Now);
    host.read(1_000);
    assert_eq!(host.acks(), 1);

    host.data(offset + 100, 100);
    host.rx.on_data_sent(host.now);
    host.ack();
    assert!(!host.rx.quickack());
    host.data(offset + 200, 100);
    host.read(1_000);
    assert!(matches!(host.rx.ack_due(), AckDue::Delayed(_)), "it goes with the reply");
    host.rx.set_quickack(1);
    assert_eq!(host.rx.ack_due(), AckDue::Now);
    host.ack();
    assert!(host.rx.quickack());

    host.rx.set_quickack(0);
    host.data(offset + 300, 100);
    host.rx.set_quickack(1);
    assert!(matches!(host.rx.ack_due(), AckDue::Delayed(_)), "it was not read");
    host.read(1_000);
    host.acks();

    host.rx.set_quickack(0);
    host.data(offset + 400, 100);
    host.read(1_000);
    host.rx.set_quickack(2);
    assert_eq!(host.rx.ack_due(), AckDue::Now);
    assert!(!host.rx.quickack(), "even values are for once");
}

#[test]
fn the_ack_of_a_handshake_waits_where_acks_wait_for_data() {
    for (quickack, due) in [(1, Nanos::ZERO), (0, DELACK_MAX)] {
        let mut host = Host::new();
        host.rx.set_quickack(quickack);
        host.rx.owe_handshake_ack(host.now);
        let at = match host.rx.ack_due() {
            AckDue::None => panic!("none"),
            AckDue::Now => host.now,
            AckDue::Delayed(at) => at,
        };
        assert_eq!(at.since(host.now), due);
        assert!(host.rx.quickack());
    }
}

#[test]
fn who_waits_for_more_is_acknowledged_at_once() {
    for (lowat, urgent) in [(1, false), (10_000, true)] {
        let mut host = Host::new();
        let offset = host.settle();
        host.rx.set_rcvbuf(4_096);
        host.rx.set_quickack(0);
        host.estimates.lowat = lowat;
        for segment in 0..2 {
            host.data(offset + segment * 1_000, 1_000);
        }
        assert_eq!(host.rx.ack_due() == AckDue::Now, urgent, "{lowat}");
    }
}

#[test]
fn a_fin_is_taken_in_order_only() {
    let mut host = Host::new();
    let fin = host.segment(20, 10, Flags::FIN);
    assert_eq!(
        host.input(fin.clone()),
        Intake { disposition: Disposition::OutOfOrder, readable: 0, fin: false }
    );
    assert_eq!(host.blocks(), [(20, 31)], "the FIN is reported with its data");
    host.acks();
    let late = host.segment(25, 10, Flags::PSH);
    assert_eq!(host.input(late).disposition, Disposition::Duplicate, "cut at the FIN");
    let intake = {
        let segment = host.segment(0, 20, Flags::PSH);
        host.input(segment)
    };
    assert_eq!(intake, Intake { disposition: Disposition::InOrder, readable: 30, fin: true });
    assert_eq!(host.rx.nxt(), host.at(31));
    assert!(host.rx.is_finished());
    assert!(host.acks() >= 1);
    assert_eq!(host.input(fin).disposition, Disposition::Duplicate);
    assert_eq!(host.blocks(), [(20, 31)]);
    assert_eq!(host.data(31, 5), Disposition::OutOfWindow, "nothing comes behind a FIN");
    assert_eq!(host.read(100), (0..30).collect::<Vec<u8>>());
}

#[test]
fn a_bare_fin_is_taken_at_a_closed_window() {
    let mut host = Host::with(&Terms { wnd: 0, ..setup() });
    let fin = host.segment(0, 0, Flags::FIN);
    assert!(host.input(fin).fin);
    assert_eq!(host.acks(), 1);
}

#[test]
fn a_bare_fin_ahead_of_its_data_waits() {
    let mut host = Host::new();
    let fin = host.segment(10, 0, Flags::FIN);
    assert_eq!(host.input(fin).disposition, Disposition::OutOfOrder);
    assert_eq!(host.blocks(), [(10, 11)], "so that the sender repeats what is before it");
    let segment = host.segment(0, 10, Flags::empty());
    assert_eq!(
        host.input(segment),
        Intake { disposition: Disposition::InOrder, readable: 10, fin: true }
    );
}

#[test]
fn an_ack_reports_the_last_duplicate_and_what_touches_it() {
    let mut host = Host::new();
    host.data(0, 3_000);
    host.acks();
    assert_eq!(host.data(0, 500), Disposition::Duplicate);
    assert_eq!(host.data(1_000, 500), Disposition::Duplicate);
    assert_eq!(host.blocks(), [(1_000, 1_500)]);
    host.ack();
    assert_eq!((host.rx.ack_due(), host.blocks()), (AckDue::None, vec![]));
    assert_eq!(host.counters.get(Counter::DSACKOldSent), 2);
    host.data(5_000, 100);
    host.data(5_050, 100);
    assert_eq!(host.blocks(), [(5_050, 5_100), (5_000, 5_150)]);
    assert_eq!(host.counters.get(Counter::DSACKOfoSent), 1);
    assert_eq!(host.rx.sack_blocks(1).len(), 1);
    assert!(host.rx.sack_blocks(0).is_empty());
}

#[test]
fn a_partly_old_segment_gives_its_new_bytes() {
    let mut host = Host::new();
    host.data(0, 100);
    host.acks();
    let segment = host.segment(50, 100, Flags::PSH);
    assert_eq!(host.input(segment).readable, 50);
    assert_eq!(host.blocks(), [(50, 100)]);
    assert_eq!(host.read(1_000), (0..150).map(|i| i as u8).collect::<Vec<_>>());
}

#[test]
fn out_of_order_acks_are_immediate_then_compressed() {
    let mut host = Host::with(&fixed());
    host.stream(0, 66);
    let mut immediate = 0;
    for i in 67..87 {
        host.data(i * MSS, MSS);
        immediate += host.acks();
    }
    assert_eq!(immediate, 3);
    assert!(matches!(host.rx.ack_due(), AckDue::Delayed(_)));
    host.wait(1);
    assert_eq!(host.acks(), 1);
    host.data(66 * MSS, MSS);
    assert_eq!(host.acks(), 1, "the gap is filled");
}

#[test]
fn without_sack_every_out_of_order_segment_gets_an_ack() {
    let mut host = Host::with(&Terms { sack: false, ..setup() });
    for i in 1..4 {
        host.data(i * MSS, MSS);
    }
    assert!(host.blocks().is_empty());
    assert_eq!(host.acks(), 3);
    for i in 4..7 {
        host.data(i * MSS, MSS);
    }
    host.data(0, MSS);
    assert_eq!(host.acks(), 1, "new data is no duplicate ACK");
}

#[test]
fn a_probe_of_a_closed_window_is_answered() {
    let mut host = Host::with(&Terms { wnd: 1_000, rcvbuf: Some(4_096), ..setup() });
    let mut offset = 0;
    while host.rx.adv() != host.rx.nxt() {
        let len = host.rx.adv().bytes_since(host.rx.nxt()).min(MSS);
        assert_eq!(host.data(offset, len), Disposition::InOrder);
        offset += len;
        host.ack();
    }
    let held = host.rx.rmem_alloc();
    assert_eq!(host.data(offset, 1), Disposition::OutOfWindow);
    assert_eq!(host.acks(), 1);
    assert_eq!(host.rx.rmem_alloc(), held);
    assert_eq!(host.counters.get(Counter::OutOfWindow), 1);
    host.read(1 << 20);
    assert_eq!(host.acks(), 1, "the window opened");
    assert!(host.rx.wnd() > 0);
}

#[test]
fn data_is_cut_at_the_edge() {
    let mut host = Host::with(&Terms { wnd: 1_000, ..setup() });
    let segment = host.segment(0, 1_500, Flags::FIN);
    assert_eq!(
        host.input(segment),
        Intake { disposition: Disposition::InOrder, readable: 1_000, fin: false }
    );
    assert_eq!(host.rx.nxt(), host.rx.adv());
    let mut host = Host::with(&Terms { wnd: 1_000, ..setup() });
    assert_eq!(host.data(900, 500), Disposition::OutOfOrder);
    assert_eq!(host.blocks(), [(900, 1_000)]);
    assert_eq!(host.data(1_000, 1), Disposition::OutOfWindow);
    assert_eq!(host.data(1 << 30, 1), Disposition::OutOfWindow);
}

#[test]
fn small_reads_do_not_open_the_window_by_little() {
    let setup = Terms { wnd: 30_000, rcvbuf: Some(65_536), ..setup() };
    let mut host = Host::with(&setup);
    let mut offset = 0;
    while host.rx.adv().bytes_since(host.rx.nxt()) >= MSS {
        host.data(offset, MSS);
        offset += MSS;
        host.ack();
    }
    let before = host.rx.remaining();
    let mut reads = 0;
    while host.acks() == 0 {
        assert_eq!(host.read(100).len(), 100);
        reads += 1;
    }
    assert!(reads >= 10, "{reads}");
    assert!(host.rx.remaining() >= (2 * before).max(MSS));
}

impl Receiver {
    fn remaining(&self) -> u32 {
        self.window.remaining(self.nxt)
    }
}

#[test]
fn ece_is_repeated_until_cwr() {
    let mut host = Host::new();
    let offset = host.settle();
    let mut marked = host.segment(offset, 100, Flags::empty());
    marked.ecn = Ecn::Ce;
    host.input(marked);
    assert_eq!(host.rx.ack_due(), AckDue::Now);
    assert!(host.rx.ece());
    host.ack();
    assert!(host.rx.ece());
    let mut answered = host.segment(offset + 100, 100, Flags::CWR);
    answered.ecn = Ecn::Ect0;
    host.input(answered);
    assert!(!host.rx.ece());
    assert_eq!(host.acks(), 1);

    let mut host = Host::with(&Terms { ecn: false, ..setup() });
    let mut marked = host.segment(0, 100, Flags::empty());
    marked.ecn = Ecn::Ce;
    host.input(marked);
    assert!(!host.rx.ece());
}

#[test]
fn the_buffer_follows_the_reader_up_to_the_maximum() {
    let max = 6 << 20;
    let tcp_rmem = BufferSizes { max, ..Config::default().tcp_rmem };
    let mut host = Host::of(Config { tcp_rmem, ..Config::default() }, &setup(), Arc::default());
    let mut offset = 0_u32;
    for _ in 0..60 {
        let sent = host.rx.adv().bytes_since(host.rx.nxt()) / MSS;
        for _ in 0..sent.min(5_000) {
            host.data(offset, MSS);
            offset = offset.wrapping_add(MSS);
            host.read(2 * MSS as usize);
            host.acks();
        }
        host.now += Nanos::from_millis(10);
    }
    assert_eq!(host.rx.rcvbuf(), max);
    assert!(host.rx.wnd() > max / 2, "{}", host.rx.wnd());
    assert!(host.rx.rcv_rtt() <= Nanos::from_millis(20), "{:?}", host.rx.rcv_rtt());
    assert_eq!(host.rx.bytes_received(), u64::from(offset));

    let mut host = Host::with(&Terms { rcvbuf: Some(65_536), wnd: 32_000, ..setup() });
    for i in 0..10_000 {
        host.data(i * MSS, MSS);
        host.read(2 * MSS as usize);
        host.acks();
        host.now += Nanos::from_micros(100);
    }
    assert_eq!(host.rx.rcvbuf(), 65_536, "SO_RCVBUF ends autotuning");
}

#[test]
fn the_round_trip_is_measured_by_timestamps() {
    let mut host = Host::with(&Terms { ts_recent: Some(7), ..setup() });
    for i in 0..10 {
        let mut segment = host.segment(i * MSS, MSS, Flags::PSH);
        segment.options.timestamps = Some(Timestamps { value: 8 + i, echo: 100 + i });
        host.estimates.tsval = 130 + i;
        host.input(segment);
        host.read(MSS as usize);
        host.acks();
        host.now += Nanos::from_millis(1);
    }
    assert_eq!(host.rx.rcv_rtt(), Nanos::from_millis(30));
}

#[test]
fn timestamps_are_taken_from_the_segment_at_the_left_edge() {
    let mut host = Host::with(&Terms { ts_recent: Some(100), ..setup() });
    assert!(host.rx.paws_refuses(host.now, 99, 0));
    assert!(!host.rx.paws_refuses(host.now, 99, 1));
    host.rx.update_ts_recent(host.now, host.at(1), 105);
    assert_eq!(host.rx.ts_recent(), 100, "not at the left edge");
    host.rx.update_ts_recent(host.now, host.at(0), 105);
    host.rx.update_ts_recent(host.now, host.at(0), 104);
    assert_eq!(host.rx.ts_recent(), 105);
}

#[test]
fn unacceptable_segments_are_answered_at_a_limited_rate() {
    let mut host = Host::new();
    host.data(0, 100);
    host.acks();
    assert_eq!(host.rx.acceptable(host.at(0) - 1, host.at(0) - 1), Acceptable::Old);
    assert_eq!(host.rx.acceptable(host.at(100), host.at(100)), Acceptable::Yes);
    assert_eq!(host.rx.acceptable(host.rx.adv(), host.rx.adv()), Acceptable::Yes);
    let beyond = host.rx.adv() + 1;
    assert_eq!(host.rx.acceptable(beyond, beyond), Acceptable::Beyond);
    let probe = host.segment(0, 0, Flags::empty());
    for expected in [1, 0] {
        host.rx.on_unacceptable(host.now, &probe, Counter::ACKSkippedSeq);
        assert_eq!(host.acks(), expected);
    }
    host.wait(500);
    host.rx.on_unacceptable(host.now, &probe, Counter::ACKSkippedSeq);
    assert_eq!(host.acks(), 1);
    let old = host.segment(0, 50, Flags::empty());
    host.rx.on_unacceptable(host.now, &old, Counter::ACKSkippedSeq);
    assert_eq!(host.blocks(), [(0, 50)]);
    assert_eq!(host.acks(), 1);
}

#[test]
fn out_of_order_data_yields_to_data_in_order() {
    let rcvbuf = 100_000;
    let mut host = Host::with(&Terms { wnd: 65_535, rcvbuf: Some(rcvbuf), ..setup() });
    for i in 0..215 {
        host.data(2 + 301 * i, 300);
        assert!(host.rx.rmem_alloc() <= rcvbuf + OVERHEAD + 300, "{}", host.rx.rmem_alloc());
    }
    assert!(host.counters.get(Counter::OFODrop) > 0);
    let edge = host.rx.adv();
    let mut offset = 0;
    while host.rx.nxt() != edge {
        let len = edge.bytes_since(host.rx.nxt()).min(MSS);
        let at = host.rx.nxt().bytes_since(host.at(0));
        assert_eq!(host.data(at, len), Disposition::InOrder);
        assert!(host.rx.rmem_alloc() <= rcvbuf + rcvbuf / 8, "{}", host.rx.rmem_alloc());
        offset = at + len;
    }
    assert!(host.counters.get(Counter::OfoPruned) > 0);
    let got = host.read(1 << 20);
    assert!(got.len() as u32 >= offset);
    assert!(got.iter().enumerate().all(|(i, &byte)| byte == i as u8));
}

#[test]
fn single_bytes_between_holes_do_not_fill_the_buffer_with_overhead() {
    // The window is 3 MB wide and the buffer may grow to 6 MB.
    let mut host = Host::with(&Terms { wnd: 3_000_000, wscale: 10, ..setup() });
    for i in 0..30_000 {
        host.data(2 + 2 * i, 1);
        let (held, bytes) = (host.rx.rmem_alloc(), host.rx.ofo_bytes());
        assert!(held <= 65_536 + 2 * bytes, "{held} for {bytes}");
    }
    assert!(host.counters.get(Counter::OFODrop) > 0);
    // From the other end, what is there gives way: the lowest holes are filled first.
    let mut host = Host::with(&Terms { wnd: 3_000_000, wscale: 10, ..setup() });
    for i in (0..30_000).rev() {
        assert_eq!(host.data(2 + 2 * i, 1), Disposition::OutOfOrder);
        let (held, bytes) = (host.rx.rmem_alloc(), host.rx.ofo_bytes());
        assert!(held <= 65_536 + 2 * bytes, "{held} for {bytes}");
    }
    assert!(host.counters.get(Counter::OfoPruned) > 0);
    // Segments of a usual size are kept however many holes there are.
    let mut host = Host::with(&Terms { wnd: 3_000_000, wscale: 10, ..setup() });
    for i in 0..1_400 {
        assert_eq!(host.data(2 * MSS * i + MSS, MSS), Disposition::OutOfOrder);
    }
    assert_eq!(host.counters.get(Counter::OfoPruned), 0);
}

/// Counters of a host whose `tcp_mem` is 16, 32 and 64 pages.
fn small_memory() -> Arc<Counters> {
    let memory = Arc::new(HostMemory::default());
    let tcp_mem = MemoryPages { low: 16, pressure: 32, high: 64 };
    memory.set_limits(&Config { tcp_mem, ..Config::default() }, 1);
    Arc::new(Counters::of_host(memory))
}

#[test]
fn without_memory_of_the_host_nothing_out_of_order_is_kept_and_one_segment_in_order() {
    let counters = small_memory();
    counters.memory.add_connection();
    let mut host = Host::of(Config::default(), &setup(), counters.clone());
    let wide = Terms { wnd: 400_000, ..setup() };
    let mut others = [(); 2].map(|()| (Host::of(Config::default(), &wide, counters.clone()), 0));
    for turn in (0..2).cycle() {
        let (other, offset) = &mut others[turn];
        assert_eq!(other.data(*offset, MSS), Disposition::InOrder, "{offset}");
        *offset += MSS;
        if counters.memory.host().is_exhausted() {
            break;
        }
    }
    assert_eq!(host.data(2 * MSS, MSS), Disposition::Dropped);
    assert_eq!(counters.get(Counter::OFODrop), 1);
    assert_eq!(host.data(0, MSS), Disposition::InOrder, "its reader has nothing to read");
    assert_eq!(host.data(MSS, MSS), Disposition::Dropped);
    assert_eq!(counters.get(Counter::RcvQDrop), 1);
    assert_eq!(host.rx.ack_due(), AckDue::Now);
    assert_eq!(host.rx.nxt(), host.at(MSS), "what is acknowledged is there");
    // What was acknowledged is read, and then there is room again.
    for (other, offset) in &mut others {
        assert_eq!(other.data(*offset, MSS), Disposition::Dropped);
    }
    for (other, offset) in &mut others {
        assert_eq!(other.read(1 << 20).len() as u32, *offset);
        assert_eq!(other.data(*offset, MSS), Disposition::InOrder);
    }
    assert_eq!(host.data(MSS, MSS), Disposition::InOrder);
    assert_eq!(counters.get(Counter::MemoryPressures), 1);
    drop((host, others));
    assert_eq!(counters.memory.host().pages(), 0);
}

#[test]
fn under_pressure_what_is_out_of_order_gives_way_and_buffers_do_not_grow() {
    let counters = small_memory();
    let mut host =
        Host::of(Config::default(), &Terms { wnd: 400_000, ..setup() }, counters.clone());
    let mut kept = 0;
    while !counters.memory.host().is_under_pressure() {
        kept += 1;
        assert_eq!(host.data(2 * MSS * kept, MSS), Disposition::OutOfOrder);
    }
    let before = host.rx.rcvbuf();
    (0..64).for_each(|_| counters.memory.add_connection());
    // Each may have a page now: what comes in order takes the place of what is out of order.
    assert_eq!(host.data(0, MSS), Disposition::InOrder);
    assert!(host.rx.rmem_alloc() < 32 * 4096 && counters.get(Counter::OfoPruned) > 0);
    assert!(counters.get(Counter::PruneCalled) > 0);
    assert_eq!(host.rx.rcvbuf(), before);
}

#[test]
fn a_shrunk_buffer_keeps_its_promise() {
    let mut host = Host::new();
    let edge = host.rx.adv();
    host.rx.set_rcvbuf(2_304);
    while host.rx.nxt() != edge {
        let at = host.rx.nxt().bytes_since(host.at(0));
        let len = edge.bytes_since(host.rx.nxt()).min(MSS);
        assert_eq!(host.data(at, len), Disposition::InOrder);
        host.ack();
        let given = host.rx.adv().bytes_since(edge);
        assert!(given < 2_304 / 8 + 2 * 128, "{given}");
    }
    assert_eq!(host.read(1 << 20).len(), 64_000);
    assert_eq!(host.acks(), 1);
    assert!(host.rx.adv().after(edge));
}

#[test]
fn autotuning_can_be_turned_off() {
    let config = Config {
        tcp_moderate_rcvbuf: false,
        tcp_rmem: BufferSizes { min: 4096, default: 100_000, max: 1 << 20 },
        ..Config::default()
    };
    let counters = Arc::new(Counters::default());
    let now = Instant::from_nanos(1);
    let mut rx = Receiver::new(now, Arc::new(config), counters, &setup());
    let mut buf = vec![0; 10_000];
    for i in 0..2_000_u32 {
        let mut segment = Segment {
            seq: rx.nxt(),
            payload: Payload::from(Bytes::from(vec![0; 10_000])),
            ..Segment::default()
        };
        let now = Instant::from_nanos(u64::from(i) * 1_000_000);
        rx.on_segment(now, &mut segment, Estimates::default());
        rx.read(now, &mut buf);
        let window = rx.next_window();
        rx.on_ack_sent(window);
    }
    assert_eq!(rx.rcvbuf(), 100_000);
}

#[test]
fn slices_are_handed_over_without_a_copy() {
    let mut host = Host::new();
    let page = Bytes::from(vec![9; 20_000]);
    let at = page.as_ptr();
    let segment = Segment { seq: host.at(0), payload: Payload::from(page), ..Segment::default() };
    host.input(segment);
    let slice = host.rx.read_bytes(host.now).unwrap();
    assert_eq!((slice.as_ptr(), slice.len()), (at, 20_000));
    assert!(host.rx.read_bytes(host.now).is_none());
    host.data(20_000, 10);
    let mut buf = [0; 4];
    assert_eq!(host.rx.peek(&mut buf), 4);
    assert_eq!(host.rx.unread(), 10);
    assert_eq!(host.rx.discard(), 10);
    assert_eq!((host.rx.unread(), host.rx.rmem_alloc()), (0, 0));
}

#[test]
fn a_byte_by_byte_sender_cannot_walk_the_edge() {
    let rcvbuf = 100_000;
    let mut host = Host::with(&Terms { wnd: 50_000, rcvbuf: Some(rcvbuf), ..setup() });
    let mut offset = 0;
    while host.data(offset, 1) == Disposition::InOrder {
        offset += 1;
        host.ack();
        assert!(offset < 2 * rcvbuf, "the window never closes");
    }
    assert!(host.rx.rmem_alloc() <= rcvbuf + rcvbuf / 8 + 1_024, "{}", host.rx.rmem_alloc());
}

#[test]
fn discarding_opens_the_window_and_keeps_what_was_reported() {
    let mut host = Host::with(&Terms { wnd: 3_000, rcvbuf: Some(4_096), ..setup() });
    host.data(1_000, 100);
    host.acks();
    host.data(0, 900);
    host.acks();
    assert_eq!(host.rx.discard(), 900);
    assert!(host.rx.has_holes());
    host.data(900, 100);
    host.acks();
    while host.rx.adv() != host.rx.nxt() {
        let at = host.rx.nxt().bytes_since(host.at(0));
        host.data(at, host.rx.adv().bytes_since(host.rx.nxt()).min(MSS));
        host.ack();
    }
    assert!(host.rx.discard() > 0);
    assert_eq!(host.acks(), 1);
    assert!(host.rx.wnd() > 0);
}

#[test]
fn the_window_of_a_short_path_shrinks_to_its_share_while_it_is_held() {
    let share = 16 * MSS;
    for (round_trip_us, is_bound) in [(500, true), (5000, false)] {
        let mut host = Host::new();
        let (mut offset, mut wnd) = (0_u32, [0; 2]);
        for (held, wnd) in [None, Some(share)].into_iter().zip(&mut wnd) {
            host.rx.hold_buffer(held, Nanos::MAX);
            for _ in 0..20 {
                let edge = host.rx.adv();
                for _ in 0..edge.bytes_since(host.rx.nxt()) / MSS {
                    host.data(offset, MSS);
                    offset += MSS;
                    host.read(2 * MSS as usize);
                    host.acks();
                    assert!(host.rx.adv().at_or_after(edge), "nothing promised is taken back");
                }
                host.now += Nanos::from_micros(round_trip_us);
            }
            *wnd = host.rx.wnd();
        }
        assert!(wnd[0] > 4 * share, "{wnd:?}");
        assert_eq!(wnd[1] <= share + MSS, is_bound, "{round_trip_us} us: {wnd:?}");
    }
}

#[test]
fn what_waits_in_the_device_makes_no_path_long() {
    let wait = Nanos::from_millis(100);
    for (path, is_bound) in [(Nanos::from_millis(1), true), (wait, false), (Nanos::MAX, false)] {
        let mut host = Host::new();
        let (mut offset, share) = (0_u32, 16 * MSS);
        host.rx.hold_buffer(Some(share), path);
        for _ in 0..20 {
            host.take_window(&mut offset);
            host.now += wait;
        }
        assert_eq!(host.rx.wnd() <= share + MSS, is_bound, "{path:?}: {}", host.rx.wnd());
    }
}

#[test]
fn the_buffer_of_a_short_path_does_not_grow_while_it_is_held() {
    for (round_trip_ms, held, grows) in [(10, true, false), (60, true, true), (10, false, true)] {
        let mut host = Host::new();
        host.rx.hold_buffer(held.then_some(u32::MAX), Nanos::MAX);
        let before = host.rx.rcvbuf();
        let mut offset = 0_u32;
        for _ in 0..20 {
            host.take_window(&mut offset);
            host.now += Nanos::from_millis(round_trip_ms);
        }
        assert_eq!(host.rx.rcvbuf() > before, grows, "{round_trip_ms} ms, held: {held}");
        if grows {
            continue;
        }
        // What was taken while it was held does not count as one round trip afterwards.
        host.rx.hold_buffer(None, Nanos::MAX);
        host.data(offset, MSS);
        host.read(2 * MSS as usize);
        assert!(host.rx.rcvbuf() < 2 << 20, "{} after the hold", host.rx.rcvbuf());
    }
}
