//! Departures: who executes the stamps, what passes the gate, and what waits longer because of
//! them.

use super::peer::{Hello, Out, Peer};
use neap_tcp::config::Config;
use neap_tcp::counters::Counter;
use neap_tcp::lateness::Departures;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::time::{Instant, Nanos, Rate};
use neap_tcp::transmit::TxBlocked;

/// A flow that moves a byte in a microsecond, its free segments spent.
fn paced() -> Peer {
    paced_with(Config::default())
}

fn paced_with(config: Config) -> Peer {
    let max_pacing_rate = Rate(1_000_000);
    let options = SocketOptions { max_pacing_rate, ..SocketOptions::default() };
    let hello = Hello { window: 4_000_000, ..Hello::default() };
    let mut peer = Peer::established(config, options, hello);
    peer.write(10_000);
    peer.advance_ms(15);
    let end = peer.end();
    peer.ack(end);
    peer.take();
    peer
}

/// When each frame leaves the host: a qdisc executes its stamp.
fn leaves(out: &Out) -> Instant {
    out.at.max(out.departure)
}

#[test]
fn the_schedule_goes_on_when_a_qdisc_takes_over_and_when_it_is_gone() {
    let mut peer = paced();
    let mut frames = Vec::new();
    let mut acked = peer.end();
    peer.try_write(60_000);
    peer.transmit();
    for step in 0..3000 {
        // Every 3 ms the qdisc comes or goes.
        peer.wire.holds_until_departure = (step / 150) % 2 == 1;
        frames.extend(peer.take());
        peer.advance(Nanos::from_micros(20));
        let due = peer.now - Nanos::from_millis(10);
        let arrived = frames.iter().filter(|out| leaves(out) <= due);
        let upto = arrived.map(|out| out.seq() + out.len() as i32).max().unwrap_or(acked);
        if upto > acked {
            acked = upto;
            peer.ack(acked);
        }
    }
    assert!(frames.iter().any(|out| out.departure > out.at), "the qdisc had its turns");
    let total: u32 = frames.iter().map(Out::len).sum();
    assert_eq!(total, 60_000);
    let mut worst = 0;
    for pair in frames.windows(2).skip(1) {
        let gap = leaves(&pair[1]).since(leaves(&pair[0])).as_micros();
        let want = u64::from(pair[0].len());
        assert!(gap + 100 >= want / 2, "a burst: {gap} us behind {want} bytes");
        worst = worst.max(gap.saturating_sub(want));
    }
    assert!(worst < 2000, "a gap of {worst} us more than planned: a frame takes 2000");
    let span = leaves(&frames[frames.len() - 1]).since(leaves(&frames[0])).as_micros();
    let planned = u64::from(total - frames[frames.len() - 1].len());
    assert!(span.abs_diff(planned) < planned / 100 + 1000, "{span} us for {planned} bytes");
}

/// Bytes that left at each time in half a second of a flow of this rate, whose frames are taken at
/// once and acknowledged a tenth of a millisecond later.
fn bursts(rate: Rate, is_at_once: bool) -> Vec<u32> {
    let options = SocketOptions { max_pacing_rate: rate, ..SocketOptions::default() };
    let hello = Hello { window: 8_000_000, ..Hello::default() };
    let mut peer = Peer::established(Config::default(), options, hello);
    peer.wire.is_at_once = is_at_once;
    let (mut bursts, mut acked) = (Vec::new(), 0);
    // What leaves at the start, in another manner, is not counted.
    let start = peer.now + Nanos::from_millis(200);
    while peer.now < start + Nanos::from_millis(500) {
        while peer.try_write(20_000) == 20_000 {}
        peer.transmit();
        let frames = peer.take();
        peer.advance(Nanos::from_micros(100));
        let Some(last) = frames.last() else { continue };
        acked = acked.max(last.seq() + last.len() as i32);
        if peer.now >= start {
            bursts.push(frames.iter().map(Out::len).sum());
        }
        peer.ack(acked);
    }
    bursts
}

#[test]
fn where_nothing_waits_below_one_wake_up_serves_what_is_due_soon() {
    for (mbit, most) in [(1000, 131_072), (200, 131_072), (48, 60_000), (1, 2000)] {
        let rate = Rate::from_bits(mbit * 1_000_000);
        let bursts = bursts(rate, true);
        let largest = *bursts.iter().max().expect("bursts");
        assert!(largest <= most && largest > most * 9 / 10, "{mbit} Mbit/s: {largest} at once");
        let sum: f64 = bursts.iter().map(|&bytes| f64::from(bytes)).sum();
        let share = 2.0 * sum / rate.0 as f64;
        assert!((0.97..1.03).contains(&share), "{mbit} Mbit/s: {share}");
        let fewest = sum / f64::from(largest);
        assert!((bursts.len() as f64) < fewest * 1.05 + 2.0, "{mbit} Mbit/s: {}", bursts.len());
    }
    // A device in which frames wait gets one at a time.
    let largest = bursts(Rate::from_bits(1_000_000_000), false).into_iter().max();
    assert!(largest <= Some(65_535), "{largest:?}");
}

#[test]
fn a_probe_for_a_paced_tail_sends_nothing_old_and_waits_for_the_new() {
    let mut peer = paced();
    // 2000 bytes in two seconds: far longer than a probe waits.
    peer.set(SocketOption::MaxPacingRate(Rate(1000)));
    assert!(matches!(peer.write(4000), TxBlocked::Pacing(_)));
    let first = peer.sent();
    assert_eq!(first.len(), 1, "{first:?}");
    peer.advance_ms(600);
    assert_eq!(peer.sent(), [], "the next frame is not due, and nothing is lost");
    assert_eq!(peer.count(Counter::LossProbes), 0);
    assert_eq!(peer.info().total_retrans, 0);
}

#[test]
fn the_timeout_waits_for_what_pacing_holds_back() {
    let mut peer = paced();
    peer.wire.holds_until_departure = true;
    peer.set(SocketOption::MaxPacingRate(Rate(10_000)));
    let start = peer.now;
    peer.write(8000);
    let last = peer.take().last().map(leaves).expect("all of it is below");
    assert!(last.since(start) > Nanos::from_millis(500));
    while peer.count(Counter::Timeouts) + peer.count(Counter::LossProbes) == 0 {
        peer.advance_ms(1);
    }
    assert!(peer.now > last, "{} ms", peer.ms_since(start));
}

#[test]
fn pacing_puts_no_timer_off_for_longer_than_the_longest_timeout() {
    // `inet_csk_reset_xmit_timer` cuts what `tcp_reset_xmit_timer` has added.
    const LONGEST: u64 = 1000;
    let config = Config { tcp_rto_max_ms: LONGEST as u32, ..Config::default() };
    for tcp_early_retrans in [0, 3] {
        let mut peer = paced_with(Config { tcp_early_retrans, ..config.clone() });
        peer.wire.holds_until_departure = true;
        peer.set(SocketOption::MaxPacingRate(Rate(1000)));
        let start = peer.now;
        peer.write(8000);
        let last = peer.take().last().map(leaves).expect("all of it is below");
        assert!(last.since(start) > Nanos::from_millis(3 * LONGEST));
        let timers = |peer: &Peer| peer.count(Counter::Timeouts) + peer.count(Counter::LossProbes);
        while timers(&peer) == 0 {
            peer.advance_ms(1);
        }
        assert!(peer.ms_since(start) <= LONGEST + 1, "{} ms", peer.ms_since(start));
        peer.advance_ms(2 * LONGEST);
        assert!(timers(&peer) <= 4, "it is no more than one in that time");
    }
    // The probe of a closed window.
    let mut peer = paced_with(config);
    peer.set(SocketOption::MaxPacingRate(Rate(300)));
    peer.write(3000);
    let end = peer.one();
    peer.window = 0;
    peer.ack(end.seq() + end.len() as i32);
    let start = peer.now;
    while peer.count(Counter::WinProbe) == 0 {
        peer.advance_ms(1);
    }
    assert!(peer.ms_since(start) <= LONGEST + 1, "{} ms", peer.ms_since(start));
}

#[test]
fn lateness_is_recorded_where_frames_leave() {
    let mut peer = paced();
    peer.write(20_000);
    let TxBlocked::Pacing(at) = peer.transmit() else { panic!("not paced") };
    peer.now = at + Nanos::from_micros(70);
    peer.connection.on_deadline(peer.now);
    peer.transmit();
    let mut departures = Departures::default();
    departures.add(&peer.counters.lateness);
    assert_eq!(departures.max(), Nanos::from_micros(70));
}

#[test]
fn four_bytes_of_ones_are_no_limit() {
    let mut peer = paced();
    assert_eq!(peer.info().max_pacing_rate, Rate(1_000_000));
    peer.set(SocketOption::MaxPacingRate32(5000));
    assert_eq!((peer.info().max_pacing_rate, peer.info().pacing_rate), (Rate(5000), Rate(5000)));
    peer.set(SocketOption::MaxPacingRate32(u32::MAX));
    assert_eq!(peer.info().max_pacing_rate, Rate::UNLIMITED);
    peer.advance_ms(1000);
    let end = peer.end();
    peer.write(5000);
    assert_eq!(peer.sent().iter().map(|&(_, len)| len).sum::<u32>(), 5000, "all at once");
    assert_eq!(peer.end(), end + 5000);
    peer.set(SocketOption::MaxPacingRate(Rate(u64::from(u32::MAX))));
    assert_eq!(peer.info().max_pacing_rate, Rate(u64::from(u32::MAX)), "eight bytes can say so");
}

#[test]
fn without_internal_pacing_only_a_qdisc_paces() {
    let config = Config { internal_pacing: false, ..Config::default() };
    let options = SocketOptions { max_pacing_rate: Rate(100_000), ..SocketOptions::default() };
    let mut peer = Peer::established(config, options, Hello::default());
    peer.write(20_000);
    assert_eq!(peer.sent_bytes(), 10_000);
    peer.advance_ms(10);
    peer.ack(10_000);
    assert_eq!(peer.sent_bytes(), 10_000, "at once");
}

#[test]
fn a_pure_ack_departs_now_although_data_is_paced() {
    let mut peer = paced();
    peer.take();
    peer.wire.holds_until_departure = true;
    peer.write(5000);
    let data = peer.take();
    assert!(data.last().is_some_and(|out| out.departure > out.at), "the data is held");
    peer.data(100);
    peer.data(100);
    let acks = peer.take();
    let now = peer.now;
    assert!(acks.iter().any(|ack| ack.ack() == 200 && ack.len() == 0 && ack.departure == now));
}
