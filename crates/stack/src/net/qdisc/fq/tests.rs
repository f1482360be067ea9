//! The rules of `fq`, one by one.

use super::*;
use crate::frame::{HEADER_ROOM, test_frame};
use neap_tcp::segment::Ecn;

/// Bytes of a whole frame in these tests, headers included.
const LEN: u32 = 1000;
const PAYLOAD: usize = 960;

fn us(n: u64) -> Instant {
    Instant::from_nanos(1_000_000_000) + Nanos::from_micros(n)
}

/// The flow of the frame that is held.
const HELD: u64 = 1 << 40;

struct Bench {
    fq: Fq,
    dropped: Dropped,
}

impl Bench {
    /// Turns of two frames, a first turn of four; no slack.
    fn new(config: Config) -> Self {
        let config = Config {
            quantum: config.quantum.or(Some(2 * LEN)),
            initial_quantum: config.initial_quantum.or(Some(4 * LEN)),
            timer_slack: Nanos::ZERO,
            ..config
        };
        Self { fq: Fq::new(config, 1500, 7), dropped: Dropped::new() }
    }

    fn put(&mut self, frame: Frame, now: Instant) -> Verdict {
        self.fq.enqueue(frame, now, &mut self.dropped)
    }

    fn flow(&mut self, flow: u64, count: u32, now: Instant) {
        for _ in 0..count {
            assert_eq!(self.put(frame(flow), now), Verdict::Queued);
        }
    }

    /// A rate that delays nothing keeps all frames off the fast path; one that is held for long
    /// lets flows be seen to be empty.
    fn without_fast_path(config: Config) -> Self {
        let (maxrate, horizon) = (Rate(u64::MAX - 1), Nanos::from_secs(100));
        let mut bench = Self::new(Config { maxrate, horizon, ..config });
        bench.put(stamped(HELD, us(90_000_000)), us(0));
        bench
    }

    fn take(&mut self, now: Instant) -> Result<Frame, Option<Instant>> {
        match self.fq.dequeue(now, &mut self.dropped) {
            Dequeued::Frame(frame) => Ok(frame),
            Dequeued::NotBefore(at) => Err(Some(at)),
            Dequeued::Empty => Err(None),
        }
    }

    /// Flows of all that may go now, and what comes then.
    fn all(&mut self, now: Instant) -> (Vec<u64>, Option<Instant>) {
        let mut flows = Vec::new();
        loop {
            match self.take(now) {
                Ok(frame) => flows.push(frame.flow),
                Err(next) => return (flows, next),
            }
        }
    }

    fn figures(&self) -> FqStats {
        match self.fq.xstats(us(0)) {
            Xstats::Fq(figures) => figures,
            other => panic!("{other:?}"),
        }
    }
}

fn frame(flow: u64) -> Frame {
    Frame { flow, ..test_frame(PAYLOAD) }
}

fn stamped(flow: u64, departure: Instant) -> Frame {
    Frame { departure, ..frame(flow) }
}

fn rated(flow: u64, rate: u64) -> Frame {
    Frame { pacing_rate: Rate(rate), ..frame(flow) }
}

#[test]
fn defaults_are_those_of_linux() {
    let Config { limit, flow_limit, buckets, orphan_mask, refill_delay, .. } = Config::default();
    assert_eq!((limit, flow_limit, buckets, orphan_mask), (10_000, 100, 1024, 1023));
    assert_eq!(refill_delay, Nanos::from_millis(40));
    let Config { low_rate_threshold, timer_slack, horizon, horizon_drop, .. } = Config::default();
    assert_eq!((low_rate_threshold, timer_slack), (Rate(68_750), Nanos::from_micros(10)));
    assert_eq!((horizon, horizon_drop), (Nanos::from_secs(10), true));
    assert_eq!(Config::default().weights, [589_824, 196_608, 65_536]);
    let QdiscConfig::Fq(built) = Fq::new(Config::default(), 1514, 0).config() else {
        panic!("an fq");
    };
    assert_eq!((built.quantum, built.initial_quantum), (Some(3028), Some(15_140)));
}

#[test]
fn a_new_flow_has_a_long_first_turn_and_then_all_take_turns() {
    let mut bench = Bench::without_fast_path(Config::default());
    for flow in [1, 2] {
        bench.flow(flow, 9, us(0));
    }
    let expected = [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 1, 2];
    assert_eq!(bench.all(us(0)).0, expected);
}

#[test]
fn new_flows_go_before_old_ones() {
    let mut bench = Bench::without_fast_path(Config::default());
    bench.flow(1, 20, us(0));
    for _ in 0..5 {
        bench.take(us(0)).expect("plenty waits");
    }
    bench.flow(2, 1, us(1));
    assert_eq!(bench.take(us(1)).map(|frame| frame.flow), Ok(2));
}

/// A flow that sends one frame after the other is not new each time.
#[test]
fn an_emptied_new_flow_passes_through_the_old_ones() {
    let mut bench =
        Bench::without_fast_path(Config { quantum: Some(4 * LEN), ..Config::default() });
    bench.flow(1, 20, us(0));
    for _ in 0..5 {
        bench.take(us(0)).expect("plenty waits");
    }
    // Three more of flow 1's turn.
    bench.flow(2, 1, us(1));
    let mut order = Vec::new();
    for again in [false, true, false, false, false] {
        order.push(bench.take(us(1)).expect("plenty waits").flow);
        if again {
            bench.flow(2, 1, us(1));
        }
    }
    assert_eq!(order, [2, 1, 1, 1, 2]);
}

#[test]
fn bands_share_by_weight() {
    let mut bench = Bench::new(Config { flow_limit: 5000, limit: 5000, ..Config::default() });
    for (flow, priority) in [(0, 6), (1, 0), (2, 2)] {
        for _ in 0..2000 {
            let verdict = bench.put(Frame { priority, ..frame(flow) }, us(0));
            assert_eq!(verdict, Verdict::Queued);
        }
    }
    assert_eq!(bench.figures().band_pkt_count, [1992, 2000, 2000], "eight took the fast path");
    let mut sent = [0; 3];
    // Two rounds of 13 times 65536 bytes.
    for _ in 0..2 * 13 * 65_536 / LEN {
        sent[bench.take(us(0)).expect("plenty waits").flow as usize] += 1;
    }
    let share = |flow: usize, weight: i32| (sent[flow] - 2 * 65_536 / 1000 * weight).abs() <= 10;
    assert!(share(0, 9) && share(1, 3) && share(2, 1), "{sent:?}");
}

#[test]
fn each_band_and_each_flow_has_its_limit() {
    let mut bench = Bench::new(Config { limit: 20, flow_limit: 5, ..Config::default() });
    bench.flow(0, 8, us(0));
    let verdicts: Vec<_> = (0..7).map(|_| bench.put(frame(1), us(0))).collect();
    assert_eq!(verdicts.iter().filter(|&&v| v == Verdict::Dropped).count(), 2);
    for flow in 2..5 {
        bench.flow(flow, 5, us(0));
    }
    assert_eq!(bench.put(frame(5), us(0)), Verdict::Dropped, "twenty wait in this band");
    assert_eq!(bench.put(Frame { priority: 6, ..frame(5) }, us(0)), Verdict::Queued);
    let figures = bench.figures();
    assert_eq!((figures.flows_plimit, figures.band_drops), (2, [0, 1, 0]));
    assert_eq!(figures.band_pkt_count, [1, 20, 0]);
    assert_eq!((bench.dropped.len(), bench.fq.stats().drops), (3, 3));
    assert_eq!(bench.all(us(0)).0.len(), 29);
    assert_eq!(bench.figures().band_pkt_count, [0; 3]);
    assert_eq!((bench.fq.stats().backlog_bytes, bench.fq.len()), (0, 0));
}

#[test]
fn frames_leave_at_their_stamps() {
    let mut bench = Bench::new(Config::default());
    bench.put(stamped(1, us(100)), us(0));
    bench.put(stamped(2, us(50)), us(0));
    bench.put(stamped(1, us(200)), us(0));
    assert_eq!(bench.take(us(0)).unwrap_err(), Some(us(50)));
    assert_eq!(bench.all(us(50)), (vec![2], Some(us(100))));
    assert_eq!(bench.figures().throttled_flows, 1);
    assert_eq!(bench.all(us(99)), (vec![], Some(us(100))));
    assert_eq!(bench.all(us(120)), (vec![1], Some(us(200))));
    assert_eq!(bench.all(us(200)), (vec![1], None));
    assert_eq!(bench.fq.stats().bytes, 3 * u64::from(LEN));
}

#[test]
fn the_driver_comes_once_for_what_is_due_within_the_slack() {
    let mut bench = Bench::new(Config::default());
    bench.fq.config.timer_slack = Nanos::from_micros(10);
    for flow in 0..8 {
        bench.put(stamped(flow, us(100 + flow)), us(0));
    }
    assert_eq!(bench.take(us(0)).unwrap_err(), Some(us(110)));
    let (flows, next) = bench.all(us(110));
    assert_eq!((flows.len(), next), (8, None));
}

#[test]
fn stamps_out_of_order_are_put_in_order() {
    let mut bench = Bench::new(Config::default());
    for at in [300, 100, 200, 100, 400] {
        bench.put(stamped(1, us(at)), us(0));
    }
    let mut times = Vec::new();
    let mut now = us(0);
    loop {
        match bench.take(now) {
            Ok(frame) => {
                assert_eq!(frame.departure, now);
                times.push(now);
            }
            Err(Some(at)) => now = at,
            Err(None) => break,
        }
    }
    assert_eq!(times, [100, 100, 200, 300, 400].map(us));
}

/// A pure ACK does not wait behind paced data of its connection (T38).
#[test]
fn an_earlier_frame_brings_its_flow_forward() {
    let mut bench = Bench::new(Config::default());
    bench.put(stamped(1, us(500)), us(0));
    bench.take(us(0)).unwrap_err();
    bench.put(stamped(1, us(300)), us(0));
    assert_eq!(bench.take(us(0)).unwrap_err(), Some(us(300)));
    // Off the fast path.
    bench.fq.config.maxrate = Rate(u64::MAX - 1);
    bench.put(frame(1), us(10));
    assert_eq!(bench.all(us(10)), (vec![1], Some(us(300))));
    assert_eq!(bench.all(us(300)).0, [1]);
    assert_eq!(bench.all(us(500)), (vec![1], None));
}

#[test]
fn stamps_beyond_the_horizon_are_dropped_or_cut() {
    let far = us(0) + Nanos::from_secs(10) + Nanos(1);
    let mut bench = Bench::new(Config::default());
    assert_eq!(bench.put(stamped(1, far), us(0)), Verdict::Dropped);
    assert_eq!(bench.put(stamped(1, us(10_000_000)), us(0)), Verdict::Queued);
    assert_eq!(bench.figures().horizon_drops, 1);
    let mut bench = Bench::new(Config { horizon_drop: false, ..Config::default() });
    bench.put(stamped(1, far + Nanos::from_secs(1)), us(0));
    assert_eq!(bench.take(us(0)).unwrap_err(), Some(us(10_000_000)));
    assert_eq!((bench.figures().horizon_caps, bench.figures().horizon_drops), (1, 0));
}

#[test]
fn the_fast_path_is_for_frames_that_nobody_is_before() {
    let mut bench = Bench::new(Config::default());
    bench.flow(1, 1, us(0));
    assert_eq!((bench.figures().fastpath_packets, bench.figures().flows), (1, 0));
    // A frame of the future has a flow, and does not bar the fast path once it is set aside.
    bench.put(stamped(2, us(100)), us(0));
    bench.flow(3, 1, us(0));
    assert_eq!((bench.figures().fastpath_packets, bench.figures().flows), (1, 2));
    assert_eq!(bench.all(us(0)), (vec![1, 3], Some(us(100))));
    bench.flow(4, 1, us(1));
    assert_eq!(bench.figures().fastpath_packets, 2);
    // The flow set aside is due now: the newcomer must not pass it by.
    bench.flow(2, 1, us(100));
    assert_eq!(bench.figures().fastpath_packets, 2);
    assert_eq!(bench.all(us(100)).0, [4, 2, 2]);
    // At most eight.
    bench.flow(5, 10, us(200));
    assert_eq!(bench.figures().fastpath_packets, 10);
    assert_eq!(bench.all(us(200)).0.len(), 10);
    // Not for what is to be spaced.
    bench.put(rated(6, 1_000_000), us(300));
    assert_eq!(bench.figures().fastpath_packets, 10);
}

#[test]
fn sockets_of_a_rate_have_turns_and_gaps_between_them() {
    let mut bench = Bench::new(Config::default());
    for _ in 0..40 {
        bench.put(rated(1, 1_000_000), us(0));
    }
    let mut left = Vec::new();
    let mut now = us(0);
    while bench.fq.len() > 0 {
        match bench.take(now) {
            Ok(_) => left.push(now.since(us(0)).as_micros()),
            Err(at) => now = at.expect("frames wait"),
        }
    }
    // The first turn at once, then turns of 2000 bytes each 2 ms.
    assert_eq!(left[..8], [0, 0, 0, 0, 2000, 2000, 4000, 4000]);
    assert_eq!(left[39], 2000 * 18);
}

#[test]
fn slow_sockets_have_no_turns() {
    let mut bench = Bench::new(Config::default());
    for _ in 0..4 {
        bench.put(rated(1, 50_000), us(0));
    }
    let mut now = us(0);
    let mut left = Vec::new();
    while bench.fq.len() > 0 {
        match bench.take(now) {
            Ok(_) => left.push(now.since(us(0)).as_millis()),
            Err(at) => now = at.expect("frames wait"),
        }
    }
    assert_eq!(left, [0, 20, 40, 60]);
}

#[test]
fn maxrate_holds_for_stamped_frames_too_and_lateness_is_made_good_by_half_a_gap() {
    let mut bench = late_driver(Nanos::ZERO, 5);
    // 300 us late: the next gap is so much shorter. 900 us late: by half a gap.
    assert_eq!(bench.all(us(1301)), (vec![1], Some(us(2001))));
    assert_eq!(bench.all(us(2901)), (vec![1], Some(us(3401))));
    // With a stamp later than the rate asks for, lateness counts from the stamp.
    bench.put(stamped(2, us(10_000)), us(2901));
    bench.put(stamped(2, us(10_000)), us(2901));
    bench.all(us(3401));
    bench.all(us(9000));
    assert_eq!(bench.all(us(10_000)), (vec![2], Some(us(11_000))));
}

/// A flow of 1,000,000 bytes per second with so many frames, the first of which has left.
fn late_driver(debt: Nanos, frames: u32) -> Bench {
    let mut bench = Bench::new(Config { maxrate: Rate(1_000_000), debt, ..Config::default() });
    for _ in 0..frames {
        bench.put(stamped(1, us(1)), us(1));
    }
    assert_eq!(bench.all(us(1)), (vec![1], Some(us(1001))));
    bench
}

#[test]
fn a_late_driver_costs_no_rate_up_to_the_debt() {
    // What was due in 7.3 ms leaves at once, and the next frame by the old schedule.
    let mut bench = late_driver(Nanos::from_millis(50), 200);
    assert_eq!(bench.all(us(8301)), (vec![1; 8], Some(us(9001))));
    assert_eq!(bench.all(us(9001)), (vec![1], Some(us(10_001))));
    // Of 90 ms the debt makes good 50.
    let (burst, next) = bench.all(us(100_001));
    assert_eq!((burst.len(), next), (51, Some(us(101_001))));
    // As in Linux.
    let mut bench = late_driver(Nanos::ZERO, 200);
    assert_eq!(bench.all(us(8301)), (vec![1], Some(us(8801))));
}

#[test]
fn a_full_device_or_an_empty_flow_is_no_debt() {
    // The driver stopped behind a frame, so the device and not the rate made it wait.
    let mut bench = late_driver(Nanos::from_millis(50), 10);
    bench.put(stamped(2, us(500)), us(500));
    assert_eq!(bench.take(us(500)).expect("a frame").flow, 2);
    assert_eq!(bench.all(us(6001)), (vec![1], Some(us(6501))));
    // The flow had nothing more to send for a while.
    let mut bench = late_driver(Nanos::from_millis(50), 2);
    assert_eq!(bench.all(us(8001)), (vec![1], None));
    for _ in 0..5 {
        bench.put(stamped(1, us(1)), us(9001));
    }
    assert_eq!(bench.all(us(9001)), (vec![1], Some(us(9501))));
}

#[test]
fn a_gap_is_a_second_at_most() {
    let mut bench = Bench::new(Config::default());
    bench.put(rated(1, 1), us(0));
    bench.put(rated(1, 1), us(0));
    assert_eq!(bench.all(us(0)), (vec![1], Some(us(1_000_000))));
    assert_eq!(bench.figures().pkts_too_long, 1);
}

#[test]
fn nopacing_ignores_rates_but_not_stamps() {
    let mut bench = Bench::new(Config { pacing: false, ..Config::default() });
    for _ in 0..9 {
        bench.put(rated(1, 1000), us(0));
    }
    bench.put(stamped(2, us(7)), us(0));
    assert_eq!(bench.all(us(0)), (vec![1; 9], Some(us(7))));
    assert!(!bench.fq.holds_until_departure());
}

#[test]
fn an_idle_flow_has_a_whole_turn_again_after_the_refill_delay() {
    for (idle, expected) in [(39_000, [1, 2, 2]), (41_000, [1, 1, 2])] {
        let mut bench = Bench::without_fast_path(Config::default());
        // Five frames: the first turn, one of the second; one frame of credit is left.
        bench.flow(1, 5, us(0));
        bench.all(us(0));
        bench.flow(1, 3, us(idle));
        bench.flow(2, 3, us(idle));
        let flows: Vec<_> = (0..3).map(|_| bench.take(us(idle)).unwrap().flow).collect();
        assert_eq!(flows, expected, "after {idle} us");
    }
}

#[test]
fn frames_that_leave_late_are_marked() {
    let mut bench = Bench::new(Config { ce_threshold: Nanos::from_millis(1), ..Config::default() });
    for (flow, ecn) in [(1, 2), (2, 0)] {
        let mut frame = stamped(flow, us(10));
        frame.headers.as_mut_slice()[..2].copy_from_slice(&[0x45, ecn]);
        bench.put(frame, us(0));
    }
    let mut marks = Vec::new();
    while let Ok(frame) = bench.take(us(1011)) {
        let is_marked = frame.headers.as_slice()[1] & 3 == 3;
        assert_eq!(is_marked, frame.ecn == Ecn::Ce);
        marks.push((frame.flow, is_marked));
    }
    assert_eq!(marks, [(1, true), (2, false)]);
    assert_eq!(bench.figures().ce_mark, 1);
    assert!(frame(1).headers.len() < HEADER_ROOM);
}

#[test]
fn what_has_no_socket_shares_few_flows() {
    let mut bench = Bench::without_fast_path(Config { orphan_mask: 3, ..Config::default() });
    for n in 0..1000u64 {
        bench.put(Frame { flow: ORPHAN | n.wrapping_mul(0x9e37_79b9), ..frame(0) }, us(0));
    }
    assert!(bench.figures().flows <= 1 + 4, "{}", bench.figures().flows);
    assert_eq!(bench.figures().flows_plimit, 1000 - 400);
}

#[test]
fn flows_are_forgotten_after_a_while_and_never_too_many() {
    let mut bench = Bench::without_fast_path(Config { buckets: 1, ..Config::default() });
    for flow in 1..64 {
        bench.flow(flow, 1, us(0));
    }
    bench.flow(64, 1, us(0));
    assert_eq!((bench.figures().flows, bench.figures().allocation_errors), (64, 1));
    assert_eq!(bench.all(us(0)).0.len(), 64, "one took the fast path");
    assert_eq!(bench.figures().inactive_flows, 63);
    bench.flow(100, 1, us(2));
    assert_eq!((bench.figures().flows, bench.figures().gc_flows), (64, 1), "the oldest made room");
    bench.all(us(2));
    bench.flow(101, 1, us(4_000_000));
    assert_eq!(bench.figures().gc_flows, 1 + 8, "eight at a time");
    bench.all(us(4_000_000));
    for flow in 200..210 {
        bench.flow(flow, 1, us(8_000_000));
    }
    assert_eq!(bench.figures().flows, 11, "those of the last three seconds, and the held one");
}

#[test]
fn nothing_is_lost_on_the_way_to_another_qdisc() {
    let mut bench = Bench::new(Config::default());
    bench.flow(1, 12, us(0));
    for at in [300, 100, 200] {
        bench.put(stamped(2, us(at)), us(0));
    }
    bench.put(rated(3, 1000), us(0));
    bench.put(rated(3, 1000), us(0));
    bench.take(us(0)).expect("flow 1 waits");
    let frames = Box::new(bench.fq).into_frames();
    assert_eq!(frames.len(), 16);
    let stamps: Vec<_> = frames.iter().filter(|f| f.flow == 2).map(|f| f.departure).collect();
    assert_eq!(stamps, [100, 200, 300].map(us));
}

#[test]
fn frames_that_no_flow_has_room_for_are_bounded_and_leave_at_no_earlier_time() {
    let config = Config { buckets: 1, limit: 100, flow_limit: 10, ..Config::default() };
    let mut fq = Fq::new(config, 1500, 3);
    let (now, mut dropped) = (us(0), Dropped::new());
    let mut put = |fq: &mut Fq, flow: u64, departure: Instant| {
        let frame = Frame { flow, departure, ..crate::frame::test_frame(100) };
        fq.enqueue(frame, now, &mut dropped)
    };
    let later = now + Nanos::from_secs(1);
    for flow in 1..=64 {
        assert_eq!(put(&mut fq, flow, later), Verdict::Queued, "a flow of its own");
    }
    assert_eq!(put(&mut fq, 65, later), Verdict::Dropped);
    for _ in 0..100 {
        assert_eq!(put(&mut fq, 65, now), Verdict::Queued);
    }
    assert_eq!(put(&mut fq, 65, now), Verdict::Dropped);
    assert_eq!((fq.len(), fq.stats().drops), (164, 2));
}
