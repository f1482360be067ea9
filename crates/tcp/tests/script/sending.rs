//! When data leaves: Nagle in Minshall's form, `TCP_CORK`, autocorking, pacing, deferral, local
//! drops (Linux's `tcp_write_xmit`).

use crate::peer::{Hello, Out, Peer};
use neap_tcp::config::Config;
use neap_tcp::congestion::CaState;
use neap_tcp::connection::Path;
use neap_tcp::counters::Counter;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::segment::Flags;
use neap_tcp::time::{Nanos, Rate};
use neap_tcp::transmit::TxBlocked;
use neap_tcp::transmit::egress::{GsoLimits, Verdict};

#[test]
fn nagle_holds_a_second_short_segment_until_the_first_is_acknowledged() {
    let mut peer = Peer::plain();
    peer.write(100);
    assert_eq!(peer.sent(), [(0, 100)]);
    assert_eq!(peer.write(100), TxBlocked::Nagle);
    peer.write(100);
    peer.nothing();
    peer.ack(100);
    assert_eq!(peer.sent(), [(100, 200)]);
}

#[test]
fn nagle_lets_a_short_segment_follow_full_ones() {
    let mut peer = Peer::plain();
    peer.write(2500);
    assert_eq!(peer.sent().iter().map(|sent| sent.1).sum::<u32>(), 2500);
    peer.write(100);
    peer.nothing();
    // A full segment may always go.
    peer.write(1000);
    assert_eq!(peer.sent(), [(2500, 1000)]);
}

#[test]
fn nodelay_sends_each_write() {
    let options = SocketOptions { nodelay: true, ..SocketOptions::default() };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    for i in 0..5 {
        peer.write(100);
        assert_eq!(peer.sent(), [(i * 100, 100)]);
    }
}

#[test]
fn setting_nodelay_pushes_what_waits() {
    let mut peer = Peer::plain();
    peer.write(100);
    peer.write(100);
    peer.take();
    peer.set(SocketOption::NoDelay(true));
    assert_eq!(peer.sent(), [(100, 100)]);
}

#[test]
fn cork_holds_short_segments_and_uncorking_sends_them() {
    let mut peer = Peer::plain();
    peer.set(SocketOption::Cork(true));
    assert_eq!(peer.write(300), TxBlocked::Nagle);
    peer.nothing();
    peer.write(900);
    assert_eq!(peer.sent(), [(0, 1000)]);
    peer.set(SocketOption::Cork(false));
    assert_eq!(peer.sent(), [(1000, 200)]);
}

#[test]
fn a_corked_tail_leaves_when_the_probe_timer_fires() {
    // Linux's bound of 200 ms on `TCP_CORK`.
    let mut peer = Peer::plain();
    peer.set(SocketOption::Cork(true));
    peer.write(300);
    peer.advance_ms(199);
    peer.nothing();
    peer.advance_ms(30);
    assert_eq!(peer.sent(), [(0, 300)]);
}

#[test]
fn pushed_segments_carry_psh() {
    let mut peer = Peer::plain();
    peer.write(100);
    assert!(peer.one().has(Flags::PSH));
    peer.ack(100);
    peer.write(5000);
    let out = peer.take();
    assert!(out.last().is_some_and(|out| out.has(Flags::PSH)));
}

#[test]
fn a_short_write_is_corked_while_frames_are_below() {
    let options = SocketOptions { nodelay: true, ..SocketOptions::default() };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    peer.wire.completes = false;
    peer.write(2000);
    peer.take();
    assert_eq!(peer.write(100), TxBlocked::Autocork);
    peer.write(100);
    peer.nothing();
    assert_eq!(peer.count(Counter::AutoCorking), 2);
    // The completion sends both as one.
    peer.complete(peer.wire.credits.len());
    assert_eq!(peer.sent(), [(2000, 200)]);
}

#[test]
fn an_ack_or_an_option_ends_what_autocorking_holds() {
    type Step = fn(&mut Peer);
    let steps: [Step; 3] = [
        |peer| {
            peer.ack(1000);
        },
        |peer| peer.set(SocketOption::NoDelay(true)),
        |peer| peer.set(SocketOption::Cork(false)),
    ];
    for step in steps {
        let options = SocketOptions { nodelay: true, ..SocketOptions::default() };
        let mut peer = Peer::established(Config::default(), options, Hello::default());
        peer.wire.completes = false;
        peer.write(2000);
        peer.take();
        assert_eq!(peer.write(100), TxBlocked::Autocork);
        step(&mut peer);
        assert_eq!(peer.sent(), [(2000, 100)]);
    }
}

#[test]
fn nothing_is_corked_when_nothing_is_unacknowledged() {
    let options = SocketOptions { nodelay: true, ..SocketOptions::default() };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    peer.wire.completes = false;
    peer.write(100);
    peer.take();
    // The ACK came before the completion (Linux a181ceb501b3).
    peer.ack(100);
    peer.write(100);
    assert_eq!(peer.sent(), [(100, 100)]);
}

#[test]
fn paced_frames_leave_at_the_rate() {
    let max_pacing_rate = Rate(1_000_000);
    let options = SocketOptions { max_pacing_rate, ..SocketOptions::default() };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    let start = peer.now;
    assert_eq!(peer.try_write(40_000), 40_000);
    let mut acked = 0;
    peer.transmit();
    let mut frames = Vec::new();
    for _ in 0..4000 {
        let out = peer.take();
        frames.extend(out.iter().map(|out| (out.at, out.len())));
        // Everything is acknowledged one round trip later.
        peer.advance(Nanos::from_micros(20));
        let due = peer.now - Nanos::from_millis(10);
        let upto: u32 = frames.iter().filter(|(at, _)| *at <= due).map(|(_, len)| len).sum();
        if upto as i32 > acked {
            acked = upto as i32;
            peer.ack(acked);
        }
        if acked == 40_000 {
            break;
        }
    }
    assert_eq!(acked, 40_000);
    // The first ten segments are free; then a byte takes a microsecond.
    // After a pause half of the first gap is made good.
    let paced: Vec<_> = frames.iter().skip_while(|(at, _)| *at == start).skip(1).collect();
    for pair in paced.windows(2) {
        let gap = pair[1].0.since(pair[0].0).as_micros();
        assert!(gap + 60 >= u64::from(pair[0].1), "{gap} us after {} bytes", pair[0].1);
    }
    let span = paced.last().expect("some").0.since(paced[0].0).as_micros();
    assert!((span as u32).abs_diff(paced.iter().map(|frame| frame.1).sum::<u32>()) < 4000);
    assert!(peer.count(Counter::PacingBlocked) > 5);
}

#[test]
fn a_qdisc_that_holds_frames_gets_the_departures_at_once() {
    let max_pacing_rate = Rate(1_000_000);
    let options = SocketOptions { max_pacing_rate, ..SocketOptions::default() };
    let hello = Hello { window: 4_000_000, ..Hello::default() };
    let mut peer = Peer::established(Config::default(), options, hello);
    peer.wire.holds_until_departure = true;
    peer.write(10_000);
    peer.advance_ms(10);
    peer.ack(10_000);
    peer.take();
    peer.write(10_000);
    let out = peer.take();
    assert_eq!(out.iter().map(super::peer::Out::len).sum::<u32>(), 10_000);
    assert!(out.iter().all(|out| out.at == peer.now));
    for pair in out.windows(2) {
        let gap = pair[1].departure.since(pair[0].departure).as_micros();
        assert!(gap == u64::from(pair[0].len()) || pair[0].departure == peer.now, "{gap}");
    }
    assert!(out.last().is_some_and(|out| out.departure > peer.now));
}

#[test]
fn a_controller_can_be_changed_and_brings_its_pacing() {
    let mut peer = Peer::plain();
    assert_eq!(peer.info().congestion, "cubic");
    peer.set(SocketOption::Congestion("bbr3".into()));
    assert_eq!(peer.info().congestion, "bbr3");
    peer.write(60_000);
    peer.advance_ms(10);
    peer.ack(10_000);
    let info = peer.info();
    assert!(matches!(info.blocked, TxBlocked::Pacing(_)), "{:?}", info.blocked);
    peer.set(SocketOption::Congestion("cubic".into()));
    let info = peer.info();
    assert!(!matches!(info.blocked, TxBlocked::Pacing(_)), "{:?}", info.blocked);
    let unknown = SocketOption::Congestion("vegas".into());
    assert!(peer.connection.set_option(peer.now, unknown).is_err());
    assert_eq!(peer.info().congestion, "cubic");
}

#[test]
fn lowering_the_rate_takes_effect_at_once() {
    let mut peer = Peer::plain();
    peer.set(SocketOption::MaxPacingRate(Rate(100_000)));
    peer.write(20_000);
    peer.take();
    peer.advance_ms(10);
    peer.ack(10_000);
    let start = peer.now;
    peer.advance_ms(1000);
    let mut out = peer.take();
    out.retain(|out| out.seq() >= 10_000);
    out.dedup_by_key(|out| out.seq());
    let last = out.iter().find(|out| out.seq() == 18_000).expect("all of it");
    assert!(last.at.since(start) >= Nanos::from_millis(80), "{:?}", last.at.since(start));
}

#[test]
fn a_local_drop_enters_cwr_and_the_data_is_sent_later() {
    let mut peer = Peer::plain();
    peer.wire.verdict = Verdict::Dropped;
    assert_eq!(peer.write(20_000), TxBlocked::Egress);
    assert_eq!(peer.info().ca_state, CaState::Cwr);
    assert_eq!(peer.info().unacked, 0, "nothing was sent");
    assert_eq!(peer.info().notsent_bytes, 20_000);
    assert_eq!(peer.account.bytes(), 0);
    assert_eq!(peer.count(Counter::LocalCongestion), 1);
    peer.wire.verdict = Verdict::Queued;
    // Nothing is in flight, so a timer must bring it back.
    peer.advance_ms(250);
    let bytes = peer.sent();
    assert_eq!(bytes[0].0, 0);
    let mut upto = bytes.iter().map(|&(seq, len)| seq + len as i32).max().expect("some");
    for _ in 0..50 {
        peer.advance_ms(10);
        peer.ack(upto);
        upto = peer.sent().iter().map(|&(seq, len)| seq + len as i32).max().unwrap_or(upto);
    }
    assert_eq!(upto, 20_000);
    assert_eq!(peer.info().total_retrans, 0);
}

#[test]
fn a_congested_qdisc_takes_the_frame_and_enters_cwr() {
    let mut peer = Peer::plain();
    peer.wire.verdict = Verdict::Congested;
    peer.write(2000);
    assert_eq!(peer.info().ca_state, CaState::Cwr);
    assert_eq!(peer.sent(), [(0, 2000)]);
}

#[test]
fn a_dropped_retransmission_is_repeated() {
    let mut peer = Peer::plain();
    peer.write(1000);
    peer.take();
    peer.wire.verdict = Verdict::Dropped;
    peer.advance_ms(400);
    assert!(peer.count(Counter::RetransFail) >= 1);
    assert_eq!(peer.info().retrans, 0);
    peer.wire.verdict = Verdict::Queued;
    peer.advance_ms(2000);
    assert!(peer.sent().contains(&(0, 1000)));
}

#[test]
fn a_frame_is_deferred_only_while_an_ack_is_near() {
    let mut peer = Peer::established(
        Config { tcp_min_tso_segs: 8, ..Config::default() },
        SocketOptions::default(),
        Hello::default(),
    );
    peer.write(30_000);
    peer.take();
    // Half of the flight is acknowledged: two segments more than a third of the window.
    peer.advance_ms(10);
    let mut deferred = false;
    for upto in 1..=10 {
        deferred |= peer.ack(upto * 1000) == TxBlocked::Defer;
        peer.advance(Nanos::from_micros(50));
    }
    assert_eq!(deferred, peer.count(Counter::TsoDeferred) > 0);
    // Deferred or not, no data waits longer than the next ACKs.
    let sent = peer.sent_bytes();
    assert!(sent >= 15_000, "{sent}");
}

#[test]
fn what_remains_deferred_leaves_with_the_next_ack() {
    let config = Config { tcp_min_tso_segs: 8, ..Config::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), Hello::default());
    peer.write(60_000);
    peer.take();
    let mut upto = 0;
    for _ in 0..400 {
        peer.advance(Nanos::from_micros(900));
        upto = (upto + 1000).min(peer.info().bytes_sent as i32);
        peer.ack(upto);
        if upto == 60_000 {
            break;
        }
    }
    assert_eq!(upto, 60_000);
    assert_eq!(peer.info().total_retrans, 0);
}

#[test]
fn a_frame_never_exceeds_what_the_path_takes() {
    // Two segments at the least would be 130 KB where the MTU is 64 KB.
    let mut peer = Peer::opening(
        Config::default(),
        SocketOptions::default(),
        Hello { mss: Some(65_483), window: 60_000, wscale: Some(14), ..Hello::default() },
    );
    let path = neap_tcp::connection::Path { mtu: 65_535, ip_header: 20 };
    peer.connection.on_path_change(peer.now, path);
    peer.wire.mtu = 65_535;
    let mut peer = peer.shake();
    peer.window = 65_535 << 14;
    peer.ack(0);
    for _ in 0..50 {
        while peer.try_write(60_000) > 0 {}
        peer.transmit();
        peer.advance_ms(1);
        let upto = peer.take().iter().map(|out| out.seq() + out.len() as i32).max();
        peer.ack(upto.expect("data"));
    }
    assert!(peer.info().bytes_acked > 500_000);
}

#[test]
fn retransmitted_frames_with_sack_blocks_fit_the_path() {
    // 46 segments of 1423 bytes fill 64 KB but for 25 bytes.
    let hello = Hello { mss: Some(1435), timestamps: true, window: 8_000_000, ..Hello::default() };
    let config = Config { tso_autosizing: false, small_queues: false, ..Config::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), hello);
    let mut upto = 0;
    for _ in 0..8 {
        while peer.try_write(60_000) > 0 {}
        peer.transmit();
        peer.advance_ms(10);
        for (seq, len) in peer.sent() {
            upto = seq + len as i32;
            peer.ack(upto);
        }
    }
    while peer.try_write(60_000) > 0 {}
    peer.transmit();
    let flight = peer.sent();
    let end = flight.iter().map(|&(seq, len)| seq + len as i32).max().expect("data");
    let first = flight[0].1;
    assert_eq!(first, 46 * 1423);
    // Holes in the other direction fill the option space of what we send.
    for seq in [2000, 4000, 6000] {
        let segment = peer.data_at(seq, 1000);
        peer.inject(segment);
    }
    peer.take();
    peer.advance_ms(10);
    peer.ack_sack(upto, &[(upto + first as i32, end)]);
    peer.advance_ms(5);
    let repeated = peer.sent();
    assert!(repeated.contains(&(upto, 45 * 1423)), "{repeated:?}");
}

#[test]
fn a_retransmission_that_is_cut_finer_has_no_more_segments_than_the_path_takes() {
    let config = Config { tso_autosizing: false, ..Config::default() };
    let hello = Hello { window: 1 << 20, ..Hello::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), hello);
    peer.wire.gso = GsoLimits { max_size: 65_536, max_segs: 64 };
    peer.wire.completes = true;
    for _ in 0..5 {
        peer.try_write(200_000);
        peer.transmit();
        for _ in 0..20 {
            peer.advance_ms(10);
            peer.ack(peer.info().bytes_sent as i32);
        }
    }
    assert!(peer.info().snd_cwnd >= 64);
    // Four holes in what arrives: SACK blocks take room from every segment.
    for hole in 1..=4 {
        let segment = peer.data_at(hole * 20, 10);
        peer.inject(segment);
    }
    peer.take();
    peer.write(20_000);
    peer.take();
    peer.wire.mtu = 92;
    peer.connection.on_path_change(peer.now, Path { mtu: 92, ip_header: 20 });
    peer.transmit();
    let out = peer.take();
    assert!(!out.is_empty());
    for out in out {
        assert!(out.segment.segments() <= 64, "{} segments", out.segment.segments());
    }
}

#[test]
fn a_visit_ends_when_the_driver_has_sent_enough_and_the_next_one_goes_on() {
    let mut peer = Peer::plain();
    peer.wire.budget = 3;
    assert_eq!(peer.write(8000), TxBlocked::Yield);
    assert_eq!(peer.take().len(), 3);
    // What is owed leaves all the same: only new data waits.
    peer.wire.budget = 0;
    peer.data(100);
    peer.data(100);
    let acks = peer.take();
    assert!(acks.iter().all(|out| out.len() == 0));
    assert_eq!(acks.last().map(Out::ack), Some(200));
    peer.wire.budget = usize::MAX;
    peer.transmit();
    assert_eq!(peer.end(), 8000);
}

#[test]
fn a_frame_has_at_most_64_segments() {
    let config = Config { tso_autosizing: false, half_cwnd: false, ..Config::default() };
    let hello = Hello { mss: Some(100), window: 1 << 20, ..Hello::default() };
    let options = SocketOptions { send_buffer: Some(1 << 20), ..SocketOptions::default() };
    let mut peer = Peer::established(config, options, hello);
    peer.wire.gso = GsoLimits { max_size: 65_536, max_segs: 65_535 };
    peer.wire.completes = true;
    let mut most = 0;
    for _ in 0..10 {
        peer.try_write(100_000);
        peer.transmit();
        most = peer.take().iter().map(|out| out.segment.segments()).max().unwrap_or(0).max(most);
        peer.advance_ms(10);
        peer.ack(peer.info().bytes_sent as i32);
    }
    assert_eq!(most, 64);
}

#[test]
fn a_refused_frame_whose_rest_would_be_corked_does_not_wake_its_own_socket() {
    let mut peer = Peer::plain();
    peer.wire.completes = false;
    peer.set(SocketOption::NoDelay(true));
    peer.write(1000);
    peer.wire.verdict = Verdict::Dropped;
    assert_eq!(peer.try_write(1500), 1500);
    assert_eq!(peer.transmit(), TxBlocked::Egress);
    assert!(!peer.take_wake(), "it would be refused again, at the same instant, for ever");
}

/// Payload bytes of the segments that left, in order.
fn pieces(peer: &mut Peer) -> Vec<u32> {
    let pieces_of = |out: Out| match u32::from(out.segment.gso_size) {
        0 => vec![out.len()],
        size => vec![size; (out.len() / size) as usize],
    };
    peer.take().into_iter().flat_map(pieces_of).collect()
}

fn narrow() -> Hello {
    Hello { mss: Some(1460), wscale: None, window: 1200, ..Hello::default() }
}

#[test]
fn segments_are_half_of_a_window_that_holds_fewer_than_two() {
    let mut peer = Peer::established(Config::default(), SocketOptions::default(), narrow());
    peer.write(8400);
    assert_eq!(pieces(&mut peer), [600, 600]);
    // An ACK that tells of a hole takes its room from the segment.
    let beyond = peer.data_at(1000, 100);
    peer.inject(beyond);
    peer.take();
    peer.ack(1200);
    assert_eq!(pieces(&mut peer)[..2], [588, 588]);
}

#[test]
fn segments_are_full_once_the_window_has_grown() {
    let mut peer = Peer::established(Config::default(), SocketOptions::default(), narrow());
    peer.write(1200);
    assert_eq!(pieces(&mut peer), [600, 600]);
    peer.window = 64_000;
    peer.ack(1200);
    peer.write(2920);
    assert_eq!(pieces(&mut peer), [1460, 1460]);
}

#[test]
fn a_fin_does_not_go_beyond_the_window() {
    let mut peer = Peer::established(Config::default(), SocketOptions::default(), Hello::default());
    peer.write(1000);
    peer.advance_ms(10);
    peer.window = 128;
    peer.ack(1000);
    peer.take();
    peer.try_write(128);
    peer.connection.shutdown_write();
    peer.transmit();
    let data = peer.one();
    assert_eq!((data.len(), data.has(Flags::FIN)), (128, false));
    peer.advance_ms(10);
    peer.ack(1128);
    assert!(peer.one().has(Flags::FIN));
}
