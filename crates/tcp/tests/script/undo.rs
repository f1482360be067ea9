//! Retransmissions that were needless: how the sender finds out and undoes what they did (RFC 3708,
//! RFC 4015, RFC 5682), and what it learns of reordering (RFC 8985).

use crate::loss::{flight, flight_of, with};
use crate::peer::{Hello, Out, Peer};
use neap_tcp::config::Config;
use neap_tcp::congestion::CaState;
use neap_tcp::counters::Counter;
use neap_tcp::time::Nanos;

#[test]
fn a_spurious_timeout_is_undone_by_frto() {
    let mut peer =
        flight_of(Config { tcp_early_retrans: 0, ..Config::default() }, Hello::default());
    peer.advance_ms(215);
    assert_eq!(peer.sent(), [(0, 1000)]);
    peer.ack(1000);
    peer.take();
    // The original of the second segment arrives, which was never retransmitted.
    peer.ack(2000);
    let info = peer.info();
    assert_eq!(peer.count(Counter::SpuriousRTOs), 1);
    assert_eq!((info.ca_state, info.lost), (CaState::Open, 0));
    assert!(info.snd_cwnd >= 10, "{}", info.snd_cwnd);
    assert!(info.snd_ssthresh >= 10 || info.snd_ssthresh == u32::MAX, "{}", info.snd_ssthresh);
    assert_eq!(info.total_retrans, 1);
}

#[test]
fn a_delayed_flight_is_found_out_by_timestamps() {
    let hello = Hello { mss: Some(1012), timestamps: true, ..Hello::default() };
    let mut peer = flight_of(Config { tcp_early_retrans: 0, ..Config::default() }, hello);
    let echo_of_originals = peer.echo;
    peer.advance_ms(215);
    assert_eq!(peer.sent(), [(0, 1000)]);
    peer.echo = echo_of_originals;
    peer.ack(1000);
    assert_eq!(peer.count(Counter::LossUndo), 1, "the ACK is older than the retransmission");
    assert_eq!(peer.info().ca_state, CaState::Open);
    assert!(peer.info().snd_cwnd >= 10);
}

#[test]
fn a_flight_that_is_later_than_a_round_trip_behind_a_timeout_is_not_sent_again() {
    let hello = Hello { mss: Some(1012), timestamps: true, ..Hello::default() };
    let mut peer = flight_of(Config { tcp_early_retrans: 0, ..Config::default() }, hello);
    let echo_of_originals = peer.echo;
    peer.advance_ms(215);
    assert_eq!(peer.sent(), [(0, 1000)]);
    // Long enough for the ACK to be that of the copy, but for its echo (RFC 8985 section 6.2).
    peer.advance_ms(15);
    peer.echo = echo_of_originals;
    peer.ack(1000);
    assert_eq!(peer.count(Counter::LossUndo), 1);
    let info = peer.info();
    assert_eq!((info.ca_state, info.lost, info.total_retrans), (CaState::Open, 0, 1));
}

#[test]
fn a_probe_and_a_timeout_that_were_both_needless_are_undone() {
    let mut peer = Peer::plain();
    peer.write(1000);
    peer.advance_ms(425);
    assert_eq!(peer.sent(), [(0, 1000); 3], "the original, the probe and the timeout's copy");
    let before = peer.info().snd_cwnd;
    peer.ack(1000);
    peer.ack_sack(1000, &[(0, 1000)]);
    assert_eq!(peer.count(Counter::DSACKUndo), 0, "one of the copies may have been needed");
    peer.ack_sack(1000, &[(0, 1000)]);
    assert_eq!(peer.count(Counter::DSACKUndo), 1);
    assert!(peer.info().snd_cwnd >= 10 && before < 10, "{before} {}", peer.info().snd_cwnd);
}

/// A lost tail is repaired by a probe, for which the window is reduced.
fn probed() -> Peer {
    let hello = Hello { mss: Some(1012), timestamps: true, ..Hello::default() };
    let mut peer = with(Config::default(), hello);
    peer.write(3000);
    peer.take();
    peer.advance_ms(28);
    let probe = peer.one();
    assert_eq!((probe.seq(), probe.len()), (2000, 1000));
    peer.echo = clock_of(&probe);
    peer.advance_ms(10);
    peer.ack(3000);
    exchange(&mut peer);
    assert_eq!(peer.count(Counter::LossProbeRecovery), 1);
    peer
}

/// One segment and its ACK.
fn exchange(peer: &mut Peer) {
    peer.write(1000);
    peer.echo = clock_of(&peer.one());
    peer.advance_ms(10);
    peer.ack(peer.end());
}

fn clock_of(out: &Out) -> u32 {
    out.segment.options.timestamps.expect("in use").value
}

#[test]
fn a_timeout_long_after_a_probe_is_found_out_by_timestamps() {
    let mut peer = probed();
    peer.advance_ms(10_000);
    exchange(&mut peer);
    peer.write(1000);
    let echo_of_original = clock_of(&peer.one());
    peer.advance_ms(500);
    assert_eq!(peer.info().ca_state, CaState::Loss);
    peer.echo = echo_of_original;
    peer.ack(peer.end());
    assert_eq!(peer.count(Counter::LossUndo), 1);
}

/// The timestamp clock wraps, so a time that is so long ago seems to be in the future.
#[test]
fn a_loss_weeks_after_a_probe_is_not_undone() {
    let mut peer = probed();
    peer.advance(Nanos::from_secs(30 * 24 * 3600));
    exchange(&mut peer);
    peer.write(20_000);
    peer.take();
    peer.advance_ms(10);
    let (upto, cwnd) = (peer.acked, peer.info().snd_cwnd);
    peer.ack_sack(upto, &[(upto + 1000, upto + cwnd as i32 * 1000)]);
    let again = peer.take().remove(0);
    assert_eq!((again.seq(), peer.info().ca_state), (upto, CaState::Recovery));
    let reduced = peer.info().snd_ssthresh;
    peer.advance_ms(10);
    peer.echo = clock_of(&again);
    peer.ack(peer.end());
    assert_eq!(peer.count(Counter::FullUndo), 0, "the segment was lost");
    assert_eq!(peer.info().snd_ssthresh, reduced);
}

#[test]
fn a_recovery_whose_retransmissions_were_held_back_is_undone_when_the_segment_comes() {
    // Whether the late segment comes with all others, or with a part of them.
    for acked in [2000, 4000] {
        let mut peer = with(Config::default(), Hello::default());
        // Small queues hold a retransmission back while its original counts as below.
        peer.wire.completes = false;
        peer.write(4000);
        assert_eq!(peer.sent_bytes(), 4000);
        peer.advance_ms(10);
        let before = peer.info().snd_cwnd;
        // Reordering by three segments: taken for loss.
        peer.ack_sack(0, &[(1000, 4000)]);
        assert_eq!(peer.info().ca_state, CaState::Recovery);
        peer.ack(acked);
        assert_eq!(peer.count(Counter::PartialUndo) + peer.count(Counter::FullUndo), 1, "{acked}");
        let info = peer.info();
        assert!(info.ca_state <= CaState::Disorder && info.total_retrans == 0, "{info:?}");
        assert!(info.snd_cwnd >= before && info.snd_ssthresh >= before, "{}", info.snd_ssthresh);
    }
}

#[test]
fn a_recovery_that_dsack_disproves_is_undone() {
    let mut peer = flight();
    peer.advance_ms(10);
    // Reordering by more than three segments: taken for loss.
    peer.ack_sack(0, &[(1000, 5000)]);
    assert_eq!(peer.info().ca_state, CaState::Recovery);
    assert_eq!(peer.sent().first(), Some(&(0, 1000)));
    peer.ack(5000);
    peer.take();
    // The retransmission was a duplicate.
    peer.advance_ms(10);
    peer.ack_sack(10_000, &[(0, 1000)]);
    assert_eq!(peer.count(Counter::DSACKUndo) + peer.count(Counter::FullUndo), 1);
    let info = peer.info();
    assert!(info.snd_cwnd >= 10, "{}", info.snd_cwnd);
    assert!(info.snd_ssthresh >= 10);
    assert_eq!(info.dsack_dups, 1);
}

/// Wait for a hole below one SACKed segment, in microseconds, after a needless retransmission of
/// `hole`.
fn wait_after_a_needless_retransmission(peer: &mut Peer, hole: i32) -> u64 {
    assert_eq!(peer.sent().first(), Some(&(hole, 1000)));
    peer.advance_ms(10);
    peer.ack_sack(peer.end(), &[(hole, hole + 1000)]);
    peer.write(20_000);
    peer.take();
    peer.advance_ms(10);
    let upto = peer.acked;
    let start = peer.now;
    peer.ack_sack(upto, &[(upto + 1000, upto + 2000)]);
    assert!(peer.connection.deadline() < start + peer.info().rto, "no timeout is due");
    peer.connection.deadline().since(start).as_micros()
}

#[test]
fn dsack_widens_the_reordering_window_where_the_network_reorders() {
    let mut peer = flight();
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 3000)]);
    peer.ack(3000);
    peer.ack_sack(3000, &[(4000, 8000)]);
    peer.take();
    peer.advance_ms(3);
    assert_eq!(
        wait_after_a_needless_retransmission(&mut peer, 3000),
        5000,
        "two quarters of a round trip"
    );
}

/// How long RACK waits for a hole below one SACKed segment, in microseconds. The hole fills in
/// time.
fn reordering_wait(peer: &mut Peer) -> u64 {
    peer.write(20_000);
    peer.take();
    peer.advance_ms(10);
    let (upto, start) = (peer.acked, peer.now);
    peer.ack_sack(upto, &[(upto + 1000, upto + 2000)]);
    let wait = peer.connection.deadline().since(start).as_micros();
    peer.ack(upto + 2000);
    acknowledge_all(peer);
    wait
}

fn acknowledge_all(peer: &mut Peer) {
    for _ in 0..2 {
        peer.advance_ms(10);
        peer.ack(peer.end());
    }
}

/// A segment that is later than the reordering window is sent again; then it comes, and an ACK of
/// its own reports the copy.
fn needless_retransmission(peer: &mut Peer) {
    peer.write(20_000);
    peer.take();
    peer.advance_ms(10);
    let (upto, before) = (peer.acked, peer.info().total_retrans);
    peer.ack_sack(upto, &[(upto + 1000, upto + 2000)]);
    peer.advance_ms(12);
    assert_eq!(peer.info().total_retrans, before + 1, "sent again");
    peer.ack(upto + 2000);
    peer.advance_ms(1);
    peer.ack_sack(upto + 2000, &[(upto, upto + 1000)]);
    acknowledge_all(peer);
}

#[test]
fn dsack_on_an_ack_that_delivers_nothing_widens_the_reordering_window() {
    let mut peer = with(Config::default(), Hello::default());
    assert_eq!(reordering_wait(&mut peer), 2500, "a quarter of a round trip");
    assert!(peer.info().reord_seen > 0);
    for quarters in 2..=3 {
        needless_retransmission(&mut peer);
        assert_eq!(reordering_wait(&mut peer), quarters * 2500, "RFC 8985 section 6.2 step 4");
    }
}

#[test]
fn dsack_without_reordering_leaves_the_reordering_window() {
    let mut peer = flight();
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 5000)]);
    assert_eq!(
        wait_after_a_needless_retransmission(&mut peer, 0),
        2500,
        "a quarter of a round trip"
    );
}

#[test]
fn more_duplicates_than_retransmissions_are_no_dsacks() {
    let mut peer = flight();
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 5000)]);
    peer.take();
    peer.ack_sack(5000, &[(0, 3000)]);
    assert_eq!(peer.count(Counter::DSACKIgnoredDubious), 1);
    assert_eq!(peer.info().dsack_dups, 3);
    peer.ack(peer.end());
    assert_eq!(peer.count(Counter::DSACKUndo) + peer.count(Counter::FullUndo), 0);
}

#[test]
fn a_needless_probe_leaves_later_tails_to_be_probed() {
    let mut peer = with(Config::default(), Hello::default());
    peer.write(3000);
    peer.take();
    peer.advance_ms(30);
    peer.take();
    peer.ack(3000);
    peer.ack_sack(3000, &[(2000, 3000)]);
    peer.write(3000);
    peer.take();
    peer.advance_ms(100);
    assert_eq!(peer.sent(), [(5000, 1000)], "the next tail is probed, too");
}

#[test]
fn a_loss_behind_a_spurious_timeout_is_a_recovery() {
    let config = Config { tcp_early_retrans: 0, tcp_timestamps: false, ..Config::default() };
    let mut peer = flight_of(config, Hello { timestamps: false, ..Hello::default() });
    peer.advance_ms(215);
    assert_eq!(peer.sent(), [(0, 1000)]);
    // The first segment is late, and the second one lost.
    peer.ack_sack(0, &[(2000, 10_000)]);
    assert_eq!(peer.count(Counter::SpuriousRTOs), 1);
    assert_eq!((peer.info().ca_state, peer.info().snd_ssthresh), (CaState::Recovery, 7));
}

#[test]
fn a_loss_beside_a_late_segment_waits_for_no_timeout() {
    let mut peer = with(Config { small_queues: false, ..Config::default() }, Hello::default());
    // Retransmissions are held back while their originals count as below.
    peer.wire.completes = false;
    peer.write(10_000);
    assert_eq!(peer.sent_bytes(), 10_000);
    peer.advance_ms(10);
    // The first segment is late, and the sixth one lost.
    peer.ack_sack(0, &[(1000, 5000), (6000, 10_000)]);
    assert_eq!((peer.info().ca_state, peer.info().lost), (CaState::Recovery, 2));
    peer.nothing();
    peer.ack_sack(5000, &[(6000, 10_000)]);
    assert_eq!(peer.count(Counter::PartialUndo), 1);
    assert_eq!((peer.info().ca_state, peer.info().lost), (CaState::Disorder, 0));
    peer.wire.credits.clear();
    peer.advance_ms(3);
    assert_eq!(peer.sent(), [(5000, 1000)], "after a quarter of a round trip");
    assert_eq!(peer.info().ca_state, CaState::Recovery);
}

#[test]
fn a_dsack_of_a_segment_that_was_never_sent_again_undoes_nothing() {
    let mut peer = flight();
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 6000)]);
    assert_eq!(peer.sent().first(), Some(&(0, 1000)));
    // The network made a second copy of the fourth segment.
    peer.advance_ms(10);
    peer.ack_sack(0, &[(3000, 4000), (1000, 6000)]);
    assert_eq!(peer.count(Counter::DSACKOfoRecv), 1);
    assert_eq!(peer.count(Counter::DSACKUndo), 0);
    assert_eq!(peer.info().ca_state, CaState::Recovery);
}
