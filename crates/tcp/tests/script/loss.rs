//! Loss, reordering and congestion: RFC 6298, RFC 5682, RFC 6675, RFC 8985, RFC 6937, RFC 3168.

use crate::peer::{Hello, ISS, Out, Peer, at};
use neap_tcp::config::Config;
use neap_tcp::congestion::CaState;
use neap_tcp::connection::Path;
use neap_tcp::counters::Counter;
use neap_tcp::options::SocketOptions;
use neap_tcp::segment::{Ecn, Flags};
use neap_tcp::time::Nanos;

pub(crate) fn with(config: Config, hello: Hello) -> Peer {
    Peer::established(config, SocketOptions::default(), hello)
}

/// Ten segments in flight, sent now; ten more wait.
pub(crate) fn flight() -> Peer {
    flight_of(Config::default(), Hello::default())
}

pub(crate) fn flight_of(config: Config, hello: Hello) -> Peer {
    let mut peer = with(config, hello);
    peer.write(20_000);
    assert_eq!(peer.sent_bytes(), 10_000);
    peer
}

#[test]
fn timeouts_double_and_a_retransmission_gives_no_sample() {
    let mut peer = with(Config { tcp_early_retrans: 0, ..Config::default() }, Hello::default());
    let start = peer.now;
    peer.write(100);
    peer.take();
    peer.advance_ms(4000);
    let times: Vec<_> = peer.take().iter().map(|out| out.at.since(start).as_millis()).collect();
    assert_eq!(times, [210, 630, 1470, 3150]);
    assert_eq!(peer.info().backoff, 4);
    // Karn: the ACK says nothing of the round trip, and the back-off stays until a sample comes.
    peer.ack(100);
    assert_eq!(peer.info().rtt, Nanos::from_millis(10));
    assert_eq!(peer.info().backoff, 4);
    peer.write(100);
    peer.advance_ms(10);
    peer.ack(200);
    assert_eq!((peer.info().backoff, peer.info().rtt), (0, Nanos::from_millis(10)));
}

#[test]
fn with_timestamps_a_retransmission_is_timed_by_its_echo() {
    let hello = Hello { timestamps: true, ..Hello::default() };
    let mut peer = with(Config { tcp_early_retrans: 0, ..Config::default() }, hello);
    peer.write(100);
    peer.take();
    peer.advance_ms(215);
    assert_eq!(peer.take().len(), 1);
    peer.advance_ms(10);
    peer.ack(100);
    assert_eq!(peer.info().backoff, 0);
    assert!(peer.info().rtt < Nanos::from_millis(20));
}

#[test]
fn limited_transmit_sends_new_data_for_the_first_sacks() {
    let mut peer = flight();
    peer.advance_ms(10);
    peer.ack_sack(0, &[(2000, 3000)]);
    assert_eq!(peer.info().ca_state, CaState::Disorder);
    let out = peer.sent();
    assert_eq!(out, [(10_000, 1000)], "RFC 3042");
    assert_eq!(peer.info().total_retrans, 0);
}

#[test]
fn three_segments_above_a_hole_start_recovery() {
    let mut peer = flight();
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 4000)]);
    assert_eq!(peer.info().ca_state, CaState::Recovery);
    assert_eq!(peer.sent().first(), Some(&(0, 1000)), "what is lost goes first");
    assert_eq!(peer.count(Counter::SackRecovery), 1);
    assert_eq!(peer.info().snd_ssthresh, 7, "CUBIC's beta of 0.7");
    peer.advance_ms(10);
    peer.ack(10_000);
    assert_eq!(peer.info().ca_state, CaState::Open);
    assert!(peer.info().snd_cwnd <= 8, "{}", peer.info().snd_cwnd);
    assert_eq!(peer.info().total_retrans, 1);
}

#[test]
fn less_than_three_wait_for_the_reordering_window() {
    let mut peer = flight();
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 2000)]);
    peer.take();
    let start = peer.now;
    assert!(peer.connection.deadline() < start + peer.info().rto, "no timeout is due");
    peer.advance_ms(4);
    // A quarter of the minimum round trip.
    let out = peer.take();
    assert_eq!(out.first().map(|out| (out.seq(), out.len())), Some((0, 1000)));
    assert_eq!(out[0].at.since(start).as_micros(), 2500);
    assert_eq!(peer.info().ca_state, CaState::Recovery);
}

#[test]
fn reordering_within_the_window_is_no_loss() {
    let mut peer = flight();
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 2000)]);
    peer.advance_ms(2);
    peer.ack(2000);
    peer.advance_ms(1);
    assert_eq!(peer.info().ca_state, CaState::Open);
    assert!(peer.info().reord_seen > 0);
    assert_eq!(peer.info().total_retrans, 0);
}

#[test]
fn proportional_reduction_sends_seven_for_ten() {
    let mut peer = flight();
    peer.advance_ms(10);
    let mut sent = 0;
    for right in 2..=10 {
        peer.ack_sack(0, &[(1000, right * 1000)]);
        sent += peer.sent_bytes() / 1000;
    }
    // The window goes from 10 to 7 while nine of ten are delivered, and the hole is repaired.
    assert!((5..=8).contains(&sent), "{sent}");
    let info = peer.info();
    assert!(info.unacked - info.sacked - info.lost + info.retrans <= 8);
}

#[test]
fn a_lost_tail_is_probed_after_two_round_trips() {
    let mut peer = with(Config::default(), Hello::default());
    peer.write(3000);
    peer.take();
    let start = peer.now;
    peer.advance_ms(100);
    let out = peer.take();
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].seq(), out[0].len()), (2000, 1000));
    assert_eq!(out[0].at.since(start).as_millis(), 22, "two round trips and the slack");
    assert_eq!(peer.count(Counter::LossProbes), 1);
    // The probe arrived, and so had everything else: no reduction.
    peer.ack_sack(3000, &[(2000, 3000)]);
    assert_eq!(peer.info().snd_cwnd, 10);
    assert_eq!(peer.count(Counter::LossProbeRecovery), 0);
}

#[test]
fn tail_loss_probes_need_three_or_four_in_their_sysctl() {
    for (value, probes) in [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)] {
        let config = Config { tcp_early_retrans: value, ..Config::default() };
        let mut peer = with(config, Hello::default());
        peer.write(3000);
        peer.advance_ms(100);
        assert_eq!(peer.count(Counter::LossProbes), probes, "{value}");
    }
}

#[test]
fn a_probe_that_repairs_the_tail_reduces_the_window() {
    let mut peer = with(Config::default(), Hello::default());
    peer.write(3000);
    peer.take();
    peer.advance_ms(28);
    assert_eq!(peer.sent(), [(2000, 1000)]);
    peer.advance_ms(10);
    peer.ack(3000);
    // Nothing says that it was a duplicate; the next ACK decides.
    peer.write(1000);
    peer.advance_ms(10);
    peer.ack(4000);
    assert_eq!(peer.count(Counter::LossProbeRecovery), 1);
    assert_eq!(peer.info().snd_ssthresh, 7);
}

#[test]
fn a_probe_prefers_new_data() {
    let mut peer = flight();
    peer.advance_ms(28);
    assert_eq!(peer.sent(), [(10_000, 1000)], "beyond the window");
    assert_eq!(peer.count(Counter::LossProbes), 1);
    peer.advance_ms(1000);
    assert_eq!(peer.count(Counter::LossProbes), 1, "one probe at a time");
}

#[test]
fn a_timeout_repeats_the_first_segment_and_slow_starts() {
    let mut peer =
        flight_of(Config { tcp_early_retrans: 0, ..Config::default() }, Hello::default());
    peer.advance_ms(210);
    assert_eq!(peer.sent(), [(0, 1000)]);
    let info = peer.info();
    assert_eq!((info.ca_state, info.snd_cwnd, info.lost), (CaState::Loss, 1, 10));
    assert_eq!(info.snd_ssthresh, 7);
    peer.advance_ms(10);
    peer.ack(1000);
    // F-RTO: new data, not retransmissions, after the first ACK (RFC 5682 step 2b).
    assert_eq!(peer.sent(), [(10_000, 1000), (11_000, 1000)]);
    peer.advance_ms(10);
    // A duplicate ACK for them: the timeout was right.
    peer.ack_sack(1000, &[(10_000, 12_000)]);
    let out = peer.sent();
    assert_eq!(out.first().map(|sent| sent.0), Some(1000));
    assert_eq!(peer.info().ca_state, CaState::Loss);
    assert_eq!(peer.count(Counter::SpuriousRTOs), 0);
}

#[test]
fn a_timeout_marks_nothing_that_was_just_sent() {
    let config = Config { tcp_early_retrans: 0, ..Config::default() };
    let mut peer = with(config, Hello::default());
    peer.write(1000);
    peer.advance_ms(10);
    peer.ack(1000);
    peer.write(1000);
    peer.advance_ms(207);
    peer.take();
    peer.write(3000);
    peer.take();
    peer.advance_ms(3);
    assert_eq!(peer.sent(), [(1000, 1000)]);
    let info = peer.info();
    assert_eq!((info.ca_state, info.lost), (CaState::Loss, 1), "RFC 8985 section 6.3");
    assert_eq!((info.unacked, info.snd_cwnd), (4, 4), "three in flight, and one again");
    peer.advance_ms(7);
    peer.ack_sack(1000, &[(2000, 5000)]);
    peer.advance_ms(3);
    peer.ack(5000);
    assert_eq!(peer.info().total_retrans, 1, "what came is not sent again");
    assert_eq!(peer.info().ca_state, CaState::Open);
}

#[test]
fn an_ack_sets_the_time_anew_that_bounds_a_tail_probe() {
    let hello = Hello::default();
    let mut peer = with(Config::default(), hello);
    // Round trips of 100 ms: a timeout of 300 ms, a probe of one segment after 400.
    for _ in 0..50 {
        peer.write(1000);
        peer.take();
        peer.advance_ms(100);
        peer.ack(peer.end());
    }
    peer.write(2000);
    peer.take();
    peer.advance_ms(110);
    peer.ack(peer.end() - 1000);
    let (begin, rto) = (peer.now, peer.info().rto);
    peer.advance_ms(500);
    let probe = peer.take().remove(0);
    assert_eq!(probe.at.since(begin).as_millis(), rto.as_millis());
    assert_eq!(peer.count(Counter::LossProbes), 1);
}

#[test]
fn what_is_lost_is_cut_at_the_end_of_a_window_that_was_taken_back() {
    let mut peer = flight();
    peer.advance_ms(10);
    // A multiple of the window's unit.
    peer.window = 11 * 128;
    peer.ack_sack(0, &[(2000, 10_000)]);
    assert_eq!(peer.sent(), [(0, 1000), (1000, 408)]);
    peer.advance_ms(10);
    peer.window = 64_000;
    peer.ack_sack(1408, &[(2000, 10_000)]);
    assert_eq!(peer.sent().first(), Some(&(1408, 592)));
    peer.advance_ms(10);
    peer.ack(10_000);
    assert_eq!(peer.info().retrans, 0);
}

#[test]
fn ece_reduces_once_per_window_and_is_answered_by_cwr() {
    let config = Config { tcp_ecn: 1, ..Config::default() };
    let mut peer = flight_of(config, Hello { ecn: true, ..Hello::default() });
    peer.advance_ms(10);
    let mut cwr = 0;
    for upto in 1..=5 {
        peer.acked = upto * 1000;
        let ack = peer.segment(peer.next, Flags::ACK | Flags::ECE);
        peer.inject(ack);
        for out in peer.take() {
            assert_eq!(out.segment.ecn, Ecn::Ect0);
            cwr += u32::from(out.has(Flags::CWR));
        }
    }
    assert_eq!(cwr, 1);
    assert_eq!(peer.info().ca_state, CaState::Cwr);
    assert_eq!(peer.info().snd_ssthresh, 7);
    for upto in 6..=12 {
        peer.ack(upto * 1000);
    }
    assert_eq!(peer.info().ca_state, CaState::Open);
    assert_eq!(peer.info().snd_cwnd, 7);
    assert_eq!(peer.info().total_retrans, 0);
}

#[test]
fn retransmissions_are_not_ecn_capable() {
    let config = Config { tcp_ecn: 1, ..Config::default() };
    let mut peer = flight_of(config, Hello { ecn: true, ..Hello::default() });
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 5000)]);
    let out = peer.take();
    assert_eq!((out[0].seq(), out[0].segment.ecn), (0, Ecn::NotEct), "RFC 3168 section 6.1.5");
}

#[test]
fn without_sack_three_duplicate_acks_start_recovery() {
    let hello = Hello { sack: false, ..Hello::default() };
    let mut peer = flight_of(Config::default(), hello);
    peer.advance_ms(10);
    for duplicates in 1..=2 {
        // Not so soon that the segment is deferred.
        peer.advance_ms(2);
        peer.ack(0);
        assert_eq!(peer.sent(), [(9000 + duplicates * 1000, 1000)]);
    }
    peer.ack(0);
    assert_eq!(peer.info().ca_state, CaState::Recovery);
    assert_eq!(peer.sent().first(), Some(&(0, 1000)));
    // A partial ACK names the next hole (RFC 6582), and PRR lets it go with the next duplicate.
    peer.advance_ms(10);
    peer.ack(4000);
    assert_eq!(peer.info().lost, 1);
    peer.ack(4000);
    assert_eq!(peer.sent().first(), Some(&(4000, 1000)));
    peer.advance_ms(10);
    peer.ack(peer.end());
    assert_eq!(peer.info().ca_state, CaState::Recovery, "until more is acknowledged");
    peer.advance_ms(10);
    peer.ack(peer.end());
    assert_eq!(peer.info().ca_state, CaState::Open);
}

#[test]
fn without_sack_copies_of_a_timeout_start_no_second_recovery() {
    let hello = Hello { sack: false, ..Hello::default() };
    let mut peer = with(Config { tcp_frto: false, ..Config::default() }, hello);
    peer.write(40_000);
    assert_eq!(peer.sent_bytes(), 10_000);
    // Segments 0, 2 and 6 are lost, and so are all ACKs.
    peer.advance_ms(210);
    assert_eq!(peer.sent(), [(0, 1000)]);
    let reduced = peer.info().snd_ssthresh;
    for upto in [2000, 6000] {
        peer.advance_ms(10);
        peer.ack(upto);
        assert_eq!(peer.sent().first().map(|sent| sent.0), Some(upto));
    }
    peer.advance_ms(10);
    // The copy of the seventh fills the last hole; those of the next three come behind it.
    peer.ack(10_000);
    assert_eq!(peer.info().ca_state, CaState::Loss, "until more is acknowledged");
    for _ in 0..3 {
        peer.advance_ms(2);
        peer.ack(10_000);
    }
    assert_eq!(peer.count(Counter::RenoRecovery), 0, "RFC 6582 section 3.2");
    assert_eq!(peer.info().snd_ssthresh, reduced);
    peer.advance_ms(10);
    peer.ack(11_000);
    assert_eq!(peer.info().ca_state, CaState::Open);
}

#[test]
fn a_lost_retransmission_is_repeated_without_a_timeout() {
    let mut peer = flight();
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 10_000)]);
    assert_eq!(peer.sent().first(), Some(&(0, 1000)));
    // New data sent after it is delivered a round trip later, the retransmission is not.
    peer.advance_ms(12);
    let end = peer.info().bytes_sent as i32 - 1000;
    peer.ack_sack(0, &[(1000, end)]);
    peer.advance_ms(5);
    assert_eq!(peer.sent().first(), Some(&(0, 1000)));
    assert_eq!(peer.count(Counter::Timeouts), 0);
    assert_eq!(peer.count(Counter::LostRetransmit), 1);
}

#[test]
fn reneged_sacks_are_forgotten_at_a_timeout() {
    let mut peer =
        flight_of(Config { tcp_early_retrans: 0, ..Config::default() }, Hello::default());
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 10_000)]);
    peer.take();
    // The first segment is acknowledged, what was SACKed is not: the receiver gave it up.
    peer.ack(1000);
    peer.take();
    peer.advance_ms(1000);
    assert!(peer.count(Counter::SACKReneging) >= 1);
    assert!(peer.sent().iter().any(|sent| sent.0 == 1000));
    let mut upto = 1000;
    for _ in 0..40 {
        peer.advance_ms(10);
        upto = (upto + 1000).min(20_000);
        peer.ack(upto);
    }
    assert_eq!(peer.info().bytes_acked, 20_001);
}

/// The one that is given up begins a frame, and the others of the frame were never SACKed.
#[test]
fn a_reneged_sack_of_the_first_segment_alone_is_forgotten_at_a_timeout() {
    let mut peer =
        flight_of(Config { tcp_early_retrans: 0, ..Config::default() }, Hello::default());
    peer.advance_ms(10);
    peer.ack_sack(0, &[(2000, 3000)]);
    peer.take();
    peer.ack(2000);
    peer.take();
    peer.advance_ms(1000);
    assert_eq!(peer.count(Counter::SACKReneging), 1);
    assert_eq!(peer.sent().first(), Some(&(2000, 1000)));
}

/// SACKs of what is sent later say nothing about the segment that was given up.
#[test]
fn a_reneged_segment_is_sent_again_although_more_is_written_and_sacked() {
    let mut peer =
        flight_of(Config { tcp_early_retrans: 0, ..Config::default() }, Hello::default());
    peer.advance_ms(10);
    peer.ack_sack(0, &[(2000, 10_000)]);
    peer.take();
    peer.ack(2000);
    peer.take();
    let mut sent = Vec::new();
    for round in 0..10 {
        peer.advance_ms(100);
        peer.write(1000);
        sent.extend(peer.sent());
        let next = 10_000 + 1000 * round;
        peer.ack_sack(2000, &[(next, next + 1000)]);
        sent.extend(peer.sent());
    }
    assert!(sent.contains(&(2000, 1000)), "{sent:?}");
}

#[test]
fn a_smaller_path_cuts_and_repeats_what_is_in_flight() {
    let mut peer = flight_of(Config::default(), Hello::default());
    let before = peer.info().snd_cwnd;
    peer.wire.mtu = 600;
    peer.connection.on_path_change(peer.now, Path { mtu: 600, ip_header: 20 });
    peer.transmit();
    let out = peer.take();
    assert_eq!(out.first().map(crate::peer::Out::seq), Some(0));
    assert!(out.iter().all(|out| {
        let piece =
            if out.segment.gso_size > 0 { u32::from(out.segment.gso_size) } else { out.len() };
        piece <= 560
    }));
    assert_eq!(peer.info().snd_mss, 560);
    assert!(peer.info().snd_cwnd >= before.min(10), "no congestion: {}", peer.info().snd_cwnd);
    let mut upto = 10_000;
    for _ in 0..200 {
        peer.advance_ms(10);
        peer.ack(upto.min(20_000));
        upto =
            peer.sent().iter().map(|&(seq, len)| seq + len as i32).max().unwrap_or(upto).max(upto);
        if peer.info().bytes_acked == 20_001 {
            break;
        }
    }
    assert_eq!(peer.info().bytes_acked, 20_001);
    assert_eq!(peer.count(Counter::Timeouts), 0);
}

#[test]
fn a_short_segment_that_fits_a_smaller_path_is_not_repeated() {
    let mut peer = Peer::plain();
    peer.write(100);
    peer.take();
    peer.connection.on_path_change(peer.now, Path { mtu: 900, ip_header: 20 });
    peer.transmit();
    peer.nothing();
    let info = peer.info();
    assert_eq!((info.ca_state, info.lost, info.retrans), (CaState::Open, 0, 0));
}

#[test]
fn a_smaller_path_does_not_put_the_timeout_off_until_something_is_repeated() {
    let mut peer = with(Config { tcp_early_retrans: 0, ..Config::default() }, Hello::default());
    peer.wire.completes = false;
    peer.write(1000);
    peer.take();
    let timeout = peer.connection.deadline();
    peer.advance_ms(150);
    peer.wire.mtu = 600;
    peer.connection.on_path_change(peer.now, Path { mtu: 600, ip_header: 20 });
    peer.transmit();
    peer.nothing();
    assert_eq!(peer.connection.deadline(), timeout, "the original is still below");
    peer.complete(1);
    assert_eq!(peer.take().len(), 1);
    assert_eq!(peer.connection.deadline(), timeout + Nanos::from_millis(150), "from the copy on");
}

#[test]
fn a_path_that_grows_or_is_absurd_is_survived() {
    let mut peer = flight();
    for mtu in [9000, 1500, 68, 40, 0, u32::MAX, 1500] {
        peer.wire.mtu = mtu.max(100);
        peer.connection.on_path_change(peer.now, Path { mtu, ip_header: 20 });
        peer.advance_ms(1);
    }
    let mut ack = peer.segment(0, Flags::ACK);
    ack.ack = at(1000, ISS);
    peer.inject(ack);
    assert_eq!(peer.info().bytes_acked, 1001);
}

#[test]
fn an_idle_flow_restarts_with_its_initial_window() {
    let mut peer = with(Config::default(), Hello { window: 4_000_000, ..Hello::default() });
    let mut upto = 0;
    for _ in 0..5 {
        peer.try_write(60_000);
        peer.transmit();
        peer.advance_ms(10);
        for (seq, len) in peer.sent() {
            upto = seq + len as i32;
            peer.ack(upto);
        }
    }
    while peer.info().unacked > 0 {
        peer.advance_ms(10);
        upto = peer.sent().iter().map(|&(seq, len)| seq + len as i32).max().unwrap_or(upto);
        peer.ack(upto);
    }
    let before = peer.info().snd_cwnd;
    assert!(before > 40);
    peer.advance_ms(60_000);
    peer.try_write(10_000);
    peer.transmit();
    assert_eq!(peer.info().snd_cwnd, 10);
    assert!(peer.info().snd_ssthresh >= before / 4 * 3);
}

#[test]
fn more_duplicates_than_segments_are_reordering_without_sack() {
    let mut peer = with(Config::default(), Hello { sack: false, ..Hello::default() });
    peer.write(8000);
    peer.advance_ms(10);
    for _ in 0..7 {
        peer.ack(0);
    }
    assert_eq!(peer.count(Counter::RenoReorder), 0, "one is missing, seven came");
    assert_eq!(peer.info().reordering, 3);
    peer.ack(0);
    assert_eq!(peer.count(Counter::RenoReorder), 1);
    assert_eq!(peer.info().reordering, 8, "the flight");
    peer.ack(8000);
    peer.take();
    peer.advance_ms(10);
    peer.write(1000);
    peer.ack(8000);
    assert_eq!(peer.count(Counter::RenoReorder), 1, "the recovery is not over");
    peer.ack(9000);
    peer.write(1000);
    peer.ack(9000);
    assert_eq!(peer.count(Counter::RenoReorder), 2);
    assert_eq!(peer.info().reordering, 8, "never lowered");
}

#[test]
fn a_timeout_leaves_the_degree_of_reordering_where_duplicates_are_all_that_is_known() {
    // `tcp_enter_loss` looks at what was SACKed after `tcp_timeout_mark_lost` has forgotten it.
    let mut peer = with(Config::default(), Hello { sack: false, ..Hello::default() });
    peer.write(8000);
    peer.advance_ms(10);
    for _ in 0..8 {
        peer.ack(0);
    }
    peer.ack(8000);
    peer.take();
    peer.advance_ms(10);
    peer.write(1000);
    peer.ack(9000);
    assert_eq!(peer.info().reordering, 8);
    peer.take();
    peer.write(6000);
    peer.advance_ms(10);
    for _ in 0..5 {
        peer.ack(9000);
    }
    assert_eq!((peer.info().ca_state, peer.info().sacked), (CaState::Disorder, 5));
    peer.advance_ms(2000);
    assert_eq!(peer.info().ca_state, CaState::Loss);
    assert_eq!(peer.info().reordering, 8);
}

#[test]
fn a_tail_probe_that_cannot_go_does_not_put_the_timeout_off() {
    let mut peer = Peer::opening(Config::default(), SocketOptions::default(), Hello::default());
    peer.transmit();
    peer.take();
    peer.advance_ms(500);
    let synack = peer.syn(Flags::SYN | Flags::ACK);
    peer.inject(synack);
    peer.take();
    let (rto, begun) = (peer.connection.info(peer.now).rto, peer.now);
    peer.wire.completes = false;
    peer.write(1000);
    peer.take();
    // The probe is due after two round trips and 200 ms, while its original still waits below.
    peer.advance_ms(1250);
    assert_eq!(peer.take().len(), 0);
    peer.complete(1);
    peer.advance(rto.saturating_sub(peer.now.since(begun)) + Nanos::from_millis(1));
    let again = peer.take();
    assert_eq!(again.iter().map(Out::seq).collect::<Vec<_>>(), [0], "after {rto:?}");
}

#[test]
fn a_probe_whose_dsack_comes_behind_the_last_ack_reduces_nothing() {
    let mut peer = with(Config::default(), Hello::default());
    peer.write(3000);
    peer.take();
    peer.advance_ms(30);
    assert_eq!(peer.sent(), [(2000, 1000)], "the tail is probed");
    // The path was slow for once: the ACK of the originals comes, and then that of the probe.
    peer.ack(3000);
    peer.advance_ms(10);
    peer.ack_sack(3000, &[(2000, 3000)]);
    assert_eq!(peer.count(Counter::DSACKRecv), 1);
    let before = (peer.info().snd_cwnd, peer.info().snd_ssthresh);
    peer.write(1000);
    peer.take();
    peer.advance_ms(10);
    peer.ack(4000);
    assert_eq!(peer.count(Counter::LossProbeRecovery), 0);
    assert!(peer.info().snd_cwnd >= before.0, "{} < {}", peer.info().snd_cwnd, before.0);
    assert_eq!(peer.info().snd_ssthresh, before.1);
}

#[test]
fn frto_without_room_for_new_data_sends_lost_data_again_at_once() {
    // The first waits for a larger window, the second is a short segment that Nagle would hold.
    let config = Config { tcp_early_retrans: 0, ..Config::default() };
    let mut peer = with(config.clone(), Hello { window: 3500, ..Hello::default() });
    peer.try_write(10_000);
    peer.transmit();
    assert_eq!(peer.sent_bytes(), 3000);
    peer.advance_ms(215);
    assert_eq!(peer.sent(), [(0, 1000)]);
    peer.window = 2500;
    peer.ack(1000);
    assert_eq!(peer.sent().first(), Some(&(1000, 1000)));

    let mut peer = with(config, Hello::default());
    peer.write(3000);
    for _ in 0..2 {
        peer.write(100);
    }
    assert_eq!(peer.sent_bytes(), 3100);
    peer.advance_ms(215);
    assert_eq!(peer.sent(), [(0, 1000)]);
    peer.ack(1000);
    assert_eq!(peer.sent(), [(3100, 100)]);
}

#[test]
fn without_sack_the_parts_of_a_segment_are_one_delivery() {
    let mut peer = with(Config::default(), Hello { sack: false, ..Hello::default() });
    peer.write(1000);
    peer.take();
    let before = peer.info().delivered;
    for part in 1..=10 {
        peer.advance_ms(1);
        peer.ack(part * 100);
    }
    assert_eq!(peer.info().delivered, before + 1);
}

#[test]
fn a_copy_that_is_lost_behind_a_timeout_reduces_anew_though_only_a_timer_finds_it() {
    let config = Config { tcp_early_retrans: 0, tcp_frto: false, ..Config::default() };
    let mut peer = with(config, Hello::default());
    // The network reorders, so RACK waits before it takes a segment for lost.
    peer.write(3000);
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 2000)]);
    peer.ack(3000);
    peer.take();
    peer.write(10_000);
    peer.take();
    peer.advance_ms(250);
    assert_eq!(peer.sent(), [(3000, 1000)]);
    peer.advance_ms(10);
    peer.ack(4000);
    assert_eq!(peer.sent(), [(4000, 1000), (5000, 1000)]);
    peer.advance_ms(10);
    // The copy at 4000 is lost as well.
    peer.ack_sack(4000, &[(5000, 6000)]);
    let reduced = peer.info().snd_ssthresh;
    assert_eq!(peer.info().ca_state, CaState::Loss);
    peer.take();
    peer.advance_ms(3);
    assert!(peer.sent().contains(&(4000, 1000)));
    let info = peer.info();
    assert_eq!(info.ca_state, CaState::Recovery);
    assert!(info.snd_ssthresh < reduced, "{} {reduced}", info.snd_ssthresh);
    assert_eq!(peer.count(Counter::LostRetransmit), 1);
}
