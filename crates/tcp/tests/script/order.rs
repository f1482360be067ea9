//! The order of the checks of a segment: one test for each row of `docs/input-order.md`.

use crate::peer::{Hello, IRS, ISS, Out, Peer, RTT, at};
use neap_tcp::config::Config;
use neap_tcp::connection::ConnectionError;
use neap_tcp::counters::Counter;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::segment::{Flags, SackBlock, Segment, Timestamps};
use neap_tcp::state::State;
use neap_tcp::time::Nanos;

/// A timestamp that no peer has reached yet.
const AHEAD: u32 = 1 << 30;

fn with_timestamps() -> Peer {
    let hello = Hello { timestamps: true, ..Hello::default() };
    let mut peer = Peer::established(Config::default(), SocketOptions::default(), hello);
    peer.advance_ms(5000);
    peer
}

fn opening() -> Peer {
    let hello = Hello { timestamps: true, ..Hello::default() };
    let mut peer = Peer::opening(Config::default(), SocketOptions::default(), hello);
    peer.transmit();
    peer.echo = peer.one().segment.options.timestamps.expect("on").value;
    peer.advance(RTT);
    peer
}

/// A connection that got the peer's FIN.
fn finished() -> Peer {
    let mut peer = with_timestamps();
    let fin = peer.segment(0, Flags::ACK | Flags::FIN);
    peer.inject(fin);
    peer.next = 1;
    assert_eq!(peer.one().ack(), 1);
    peer
}

fn with_value(mut segment: Segment, change: i32) -> Segment {
    let timestamps = segment.options.timestamps.as_mut().expect("on");
    timestamps.value = timestamps.value.wrapping_add_signed(change);
    segment
}

fn with_ack(mut segment: Segment, ack: i32) -> Segment {
    segment.ack = at(ack, ISS);
    segment
}

fn echo(out: &Out) -> u32 {
    out.segment.options.timestamps.expect("on").echo
}

fn is_ack(out: &Out, ack: i32) -> bool {
    out.segment.flags == Flags::ACK && out.len() == 0 && out.ack() == ack
}

/// The peer's data in order is taken and acknowledged.
fn goes_on(peer: &mut Peer) {
    let before = peer.info().bytes_received;
    peer.data(100);
    assert_eq!(peer.info().bytes_received, before + 100, "genuine data is taken");
    peer.advance_ms(100);
    assert!(peer.take().iter().any(|out| out.ack() == peer.next));
}

// Before the ACK.

#[test]
fn without_a_control_flag_nothing_is_answered() {
    let mut peer = with_timestamps();
    for seq in [0, -500, 1 << 20] {
        for flags in [Flags::empty(), Flags::PSH, Flags::FIN] {
            let mut segment = peer.data_at(seq, 10);
            segment.flags = flags;
            let old = with_value(segment.clone(), -1000);
            let ahead = with_value(segment, AHEAD as i32);
            peer.inject(old);
            peer.inject(ahead);
        }
    }
    peer.nothing();
    assert_eq!(peer.count(Counter::NoControlFlag), 18);
    goes_on(&mut peer);
}

#[test]
fn old_data_by_paws_is_answered_each_time() {
    let mut peer = with_timestamps();
    peer.data(100);
    peer.take();
    for seq in [0, 100] {
        let old = with_value(peer.data_at(seq, 100), -6000);
        peer.inject(old);
        assert!(is_ack(&peer.one(), 100));
    }
    assert_eq!(peer.count(Counter::PAWSEstab), 2);
    assert_eq!(peer.info().bytes_received, 100);
}

#[test]
fn an_old_ack_by_paws_below_the_window_is_dropped_in_silence() {
    let mut peer = with_timestamps();
    peer.data(100);
    peer.take();
    let old = with_value(peer.segment(50, Flags::ACK), -6000);
    peer.inject(old);
    peer.nothing();
    assert_eq!((peer.count(Counter::PAWSOldAck), peer.count(Counter::PAWSEstab)), (1, 0));
}

#[test]
fn an_old_ack_by_paws_with_news_is_answered_at_the_limited_rate() {
    let mut peer = with_timestamps();
    peer.write(100);
    peer.take();
    for _ in 0..3 {
        let old = with_ack(with_value(peer.segment(0, Flags::ACK), -6000), 100);
        peer.inject(old);
    }
    assert!(is_ack(&peer.one(), 0));
    assert_eq!(peer.info().bytes_acked, 1);
    assert_eq!(peer.count(Counter::PAWSEstab), 3);
    assert_eq!(peer.count(Counter::ACKSkippedPAWS), 2);
}

#[test]
fn an_old_syn_by_paws_is_challenged() {
    let mut peer = with_timestamps();
    let syn = with_value(peer.segment(0, Flags::SYN), -6000);
    peer.inject(syn);
    assert!(is_ack(&peer.one(), 0));
    assert_eq!(peer.count(Counter::SYNChallenge), 1);
    assert_eq!(peer.count(Counter::ChallengeACK), 1);
}

#[test]
fn a_reset_needs_no_timestamp_of_its_time() {
    let mut peer = with_timestamps();
    let reset = with_value(peer.segment(0, Flags::RST), -6000);
    peer.inject(reset);
    assert_eq!(peer.connection.state(), State::Closed);
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::Reset));
}

#[test]
fn data_outside_the_window_is_answered_each_time() {
    let mut peer = with_timestamps();
    peer.data(100);
    peer.take();
    let beyond = peer.info().rcv_wnd as i32 + 101;
    for seq in [-1000, beyond, -1000, beyond] {
        let outside = with_value(peer.data_at(seq, 50), AHEAD as i32);
        peer.inject(outside);
        let ack = peer.one();
        assert!(is_ack(&ack, 100));
        assert_eq!(ack.sacks(), if seq < 0 { vec![(seq, seq + 50)] } else { vec![] });
        peer.advance_ms(1);
    }
    assert_eq!(peer.count(Counter::OutOfWindow), 4);
    goes_on(&mut peer);
}

#[test]
fn an_ack_outside_the_window_is_answered_at_the_limited_rate() {
    let mut peer = with_timestamps();
    let beyond = peer.info().rcv_wnd as i32 + 1;
    for seq in [-1, beyond, -1000, beyond] {
        let outside = with_value(peer.segment(seq, Flags::ACK), AHEAD as i32);
        peer.inject(outside);
    }
    assert!(is_ack(&peer.one(), 0));
    assert_eq!(peer.count(Counter::ACKSkippedSeq), 3);
    peer.advance_ms(500);
    let outside = peer.segment(beyond, Flags::ACK);
    peer.inject(outside);
    assert!(is_ack(&peer.one(), 0));
    goes_on(&mut peer);
}

#[test]
fn a_syn_outside_the_window_is_challenged() {
    let mut peer = with_timestamps();
    for seq in [-100_000, 1 << 20] {
        let syn = with_value(peer.segment(seq, Flags::SYN), AHEAD as i32);
        peer.inject(syn);
        assert!(is_ack(&peer.one(), 0));
        peer.advance_ms(500);
    }
    assert_eq!(peer.count(Counter::SYNChallenge), 2);
    goes_on(&mut peer);
}

#[test]
fn a_reset_outside_the_window_says_nothing() {
    let mut peer = with_timestamps();
    for seq in [-1, -100_000, 1 << 20] {
        let reset = with_value(peer.segment(seq, Flags::RST | Flags::ACK), AHEAD as i32);
        peer.inject(reset);
    }
    peer.nothing();
    goes_on(&mut peer);
}

#[test]
fn a_reset_at_the_number_of_the_fin_ends_the_connection() {
    let mut peer = finished();
    let reset = peer.segment(0, Flags::RST);
    peer.inject(reset);
    assert_eq!(peer.connection.state(), State::Closed);
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::BrokenPipe));
}

#[test]
fn a_reset_at_the_next_number_ends_the_connection_whatever_it_acknowledges() {
    for ack in [0, 100_000, -100_000] {
        let mut peer = with_timestamps();
        let reset = with_ack(peer.segment(0, Flags::RST | Flags::ACK), ack);
        peer.inject(reset);
        assert_eq!(peer.connection.state(), State::Closed);
        peer.nothing();
    }
}

#[test]
fn a_reset_elsewhere_in_the_window_is_challenged() {
    let mut peer = with_timestamps();
    let reset = with_value(peer.segment(1, Flags::RST), AHEAD as i32);
    peer.inject(reset);
    assert!(is_ack(&peer.one(), 0));
    assert_eq!(peer.count(Counter::ChallengeACK), 1);
    goes_on(&mut peer);
}

#[test]
fn a_syn_in_the_window_is_challenged() {
    let mut peer = with_timestamps();
    for (seq, flags) in [(0, Flags::SYN), (5, Flags::SYN | Flags::ACK), (9, Flags::SYN)] {
        let syn = with_value(peer.segment(seq, flags), AHEAD as i32);
        peer.inject(syn);
        assert!(is_ack(&peer.one(), 0));
        peer.advance_ms(500);
    }
    assert_eq!(peer.count(Counter::SYNChallenge), 3);
    goes_on(&mut peer);
}

// The ACK.

/// A segment with data, a timestamp far ahead and `ack` arrives twice: one challenge, and nothing
/// of the segment counts.
fn a_bad_ack_changes_nothing(ack: i32) {
    let mut peer = with_timestamps();
    peer.set(SocketOption::KeepAliveIdle(Nanos::from_secs(60)));
    peer.set(SocketOption::KeepAlive(true));
    peer.write(100);
    peer.advance_ms(10);
    peer.ack(100);
    let heard = peer.now;
    peer.data(100);
    let heard_by = peer.info().last_ack_recv;
    peer.take();
    peer.advance_ms(30_000);
    for _ in 0..2 {
        let bad = with_ack(with_value(peer.data_at(100, 10), AHEAD as i32), ack);
        peer.inject(bad);
    }
    let challenge = peer.one();
    assert!(is_ack(&challenge, 100));
    let genuine = peer.segment(0, Flags::ACK).options.timestamps.expect("on").value;
    assert_eq!(genuine - echo(&challenge), 30_000, "the echo is that of the genuine data");
    assert_eq!((peer.count(Counter::ChallengeACK), peer.count(Counter::ACKSkipped)), (1, 1));
    assert_eq!(peer.info().bytes_received, 100);
    assert!(peer.info().last_ack_recv >= heard_by + Nanos::from_millis(30_000));
    // The keepalive probe leaves as if the segment had not come.
    peer.advance(Nanos::from_secs(60).saturating_sub(peer.now.since(heard)));
    assert_eq!(peer.one().seq(), 99);
    assert_eq!(peer.info().probes, 1);
    let bad = with_ack(peer.segment(100, Flags::ACK), ack);
    peer.inject(bad);
    assert_eq!(peer.info().probes, 1, "it answers no probe");
    peer.take();
    goes_on(&mut peer);
}

#[test]
fn an_ack_of_what_was_never_sent_changes_nothing() {
    for ack in [101, 1 << 20, i32::MAX] {
        a_bad_ack_changes_nothing(ack);
    }
}

#[test]
fn an_ack_older_than_the_window_changes_nothing() {
    for ack in [-100_000, i32::MIN + 200] {
        a_bad_ack_changes_nothing(ack);
    }
}

#[test]
fn an_ack_older_than_the_first_byte_changes_nothing() {
    // The window is larger than what was acknowledged so far.
    a_bad_ack_changes_nothing(-2);
}

#[test]
fn challenges_and_duplicate_acks_share_one_limit() {
    let mut peer = with_timestamps();
    let reset = peer.segment(5, Flags::RST);
    let outside = peer.segment(-500, Flags::ACK);
    let future = with_ack(peer.segment(0, Flags::ACK), 1000);
    let syn = peer.segment(0, Flags::SYN);
    for segments in [[reset.clone(), outside.clone()], [outside, future.clone()], [future, syn]] {
        for segment in segments {
            peer.inject(segment);
        }
        assert!(is_ack(&peer.one(), 0));
        peer.advance_ms(500);
    }
}

#[test]
fn closing_states_challenge_bad_acks_too() {
    for closes_first in [false, true] {
        let mut peer = if closes_first { with_timestamps() } else { finished() };
        peer.connection.shutdown_write();
        peer.transmit();
        assert!(peer.one().has(Flags::FIN));
        let state = peer.connection.state();
        for ack in [2, -100_000] {
            for _ in 0..2 {
                let bad = with_ack(with_value(peer.segment(peer.next, Flags::ACK), 1000), ack);
                peer.inject(bad);
            }
            assert!(is_ack(&peer.one(), peer.next));
            assert_eq!(peer.connection.state(), state);
            let due = peer.connection.deadline();
            peer.now += Nanos::from_millis(500);
            assert!(peer.now < due || state != State::LastAck || due != peer.now);
        }
        peer.now = peer.now.max(peer.connection.deadline());
        peer.ack(1);
        let next = if closes_first { State::FinWait2 } else { State::Closed };
        assert_eq!(peer.connection.state(), next);
    }
}

#[test]
fn an_old_ack_brings_its_data_and_timestamp_and_nothing_else() {
    let mut peer = with_timestamps();
    peer.set(SocketOption::KeepAliveIdle(Nanos::from_secs(60)));
    peer.set(SocketOption::KeepAlive(true));
    peer.write(1000);
    peer.advance_ms(10);
    peer.ack(1000);
    peer.take();
    let heard = peer.now;
    let window = peer.info().snd_wnd;
    peer.advance_ms(20_000);
    let mut old = with_ack(peer.segment(0, Flags::ACK | Flags::ECE), 500);
    old.window = 1;
    let old = with_value(old, 1);
    peer.inject(old);
    peer.nothing();
    assert_eq!(peer.info().snd_wnd, window);
    assert_eq!(peer.info().last_ack_recv, peer.now.since(heard));
    let old = with_ack(peer.data_at(0, 10), 500);
    peer.inject(old);
    peer.next = 10;
    peer.advance_ms(100);
    let ack = peer.one();
    assert_eq!(ack.ack(), 10);
    assert_eq!(echo(&ack), peer.segment(0, Flags::ACK).options.timestamps.expect("on").value - 100);
    // Data in order puts the keepalive probe off, as in `keepalive_time_elapsed`.
    peer.advance_ms(59_000);
    peer.nothing();
    peer.advance_ms(1000);
    assert_eq!(peer.one().seq(), 999);
}

#[test]
fn an_old_ack_without_data_does_not_put_off_the_keepalive_probe() {
    let mut peer = with_timestamps();
    peer.set(SocketOption::KeepAliveIdle(Nanos::from_secs(60)));
    peer.set(SocketOption::KeepAlive(true));
    peer.write(1000);
    peer.advance_ms(10);
    peer.ack(1000);
    peer.take();
    peer.advance_ms(30_000);
    let old = with_ack(peer.segment(0, Flags::ACK), 500);
    peer.inject(old);
    peer.advance_ms(30_000);
    assert_eq!(peer.one().seq(), 999);
}

#[test]
fn the_sack_blocks_of_an_old_ack_count() {
    let mut peer = with_timestamps();
    peer.write(5000);
    peer.advance_ms(10);
    // Segments have 988 bytes beside their timestamps.
    peer.ack(988);
    let mut old = with_ack(peer.segment(0, Flags::ACK), 500);
    old.options.sack.push(SackBlock { left: at(1976, ISS), right: at(2964, ISS) });
    peer.inject(old);
    assert_eq!(peer.info().sacked, 1);
}

#[test]
fn a_timestamp_counts_up_to_the_last_ack_that_was_sent() {
    let mut peer = with_timestamps();
    let first = peer.segment(0, Flags::ACK).options.timestamps.expect("on").value;
    peer.data(100);
    peer.take();
    peer.advance_ms(10);
    // Out of order: its timestamp is not the one to echo (RFC 7323 section 4.3).
    let beyond = peer.data_at(200, 100);
    peer.inject(beyond);
    assert_eq!(echo(&peer.one()), first);
    peer.advance_ms(10);
    let second = peer.segment(0, Flags::ACK).options.timestamps.expect("on").value;
    peer.data(100);
    assert_eq!(echo(&peer.one()), second);
}

// The data.

#[test]
fn what_comes_behind_a_fin_is_ignored() {
    let mut peer = finished();
    peer.advance_ms(600);
    for _ in 0..3 {
        let behind = peer.data_at(1, 50);
        peer.inject(behind);
    }
    peer.nothing();
    assert_eq!(peer.count(Counter::OutOfWindow), 3);
    assert_eq!(peer.connection.state(), State::CloseWait);
}

#[test]
fn a_repeated_fin_is_answered_each_time() {
    let mut peer = finished();
    for _ in 0..3 {
        let fin = peer.segment(0, Flags::ACK | Flags::FIN);
        peer.inject(fin);
        let ack = peer.one();
        assert!(is_ack(&ack, 1));
        assert_eq!(ack.sacks(), [(0, 1)]);
    }
}

#[test]
fn data_that_runs_on_behind_the_fin_is_a_duplicate() {
    let mut peer = finished();
    let over = peer.data_at(0, 50);
    peer.inject(over);
    assert!(is_ack(&peer.one(), 1));
    assert_eq!(peer.connection.state(), State::CloseWait);
    assert_eq!(peer.connection.unread(), 0);
}

#[test]
fn data_or_a_fin_behind_a_gap_resets_an_orphan() {
    for has_data in [true, false] {
        let mut peer = with_timestamps();
        peer.connection.close(peer.now);
        peer.transmit();
        peer.take();
        let mut segment = peer.segment(10, Flags::ACK | Flags::FIN);
        if has_data {
            segment = peer.data_at(0, 10);
        }
        peer.inject(segment);
        assert!(peer.one().has(Flags::RST), "data: {has_data}");
        assert_eq!(peer.connection.state(), State::Closed);
        assert_eq!(peer.count(Counter::AbortOnData), 1);
    }
}

#[test]
fn answers_stay_inside_a_window_that_was_taken_back() {
    let mut peer = Peer::plain();
    peer.write(5000);
    peer.advance_ms(10);
    peer.window = 1024;
    peer.ack(1000);
    peer.take();
    let outside = peer.data_at(-10, 10);
    peer.inject(outside);
    let answer = peer.one();
    assert_eq!((answer.seq(), answer.ack(), answer.len()), (2024, 0, 0));
    peer.window = 64_000;
    peer.ack(2000);
    peer.take();
    let outside = peer.data_at(-10, 10);
    peer.inject(outside);
    assert_eq!(peer.one().seq(), 5000);
    peer.window = 512;
    peer.ack(3000);
    peer.take();
    peer.connection.abort();
    peer.transmit();
    let reset = peer.one();
    assert!(reset.has(Flags::RST));
    assert_eq!(reset.seq(), 3512);
}

// SYN-SENT.

#[test]
fn in_syn_sent_an_ack_of_something_else_is_reset() {
    let mut peer = opening();
    for (ack, flags) in [(-1, Flags::ACK), (1, Flags::ACK | Flags::SYN), (-500, Flags::ACK)] {
        let stray = with_ack(peer.segment(-1, flags), ack);
        peer.inject(stray);
        let reset = peer.one();
        assert_eq!((reset.segment.flags, reset.seq()), (Flags::RST, ack));
    }
    assert_eq!(peer.connection.state(), State::SynSent);
    peer.advance_ms(8);
    assert!(peer.one().has(Flags::SYN), "it is asked again soon");
}

#[test]
fn in_syn_sent_a_reset_counts_only_with_the_right_ack() {
    let mut peer = opening();
    let without = peer.segment(-1, Flags::RST);
    peer.inject(without);
    let wrong = with_ack(peer.segment(-1, Flags::RST | Flags::ACK), -1);
    peer.inject(wrong);
    peer.nothing();
    assert_eq!(peer.connection.state(), State::SynSent);
    let right = peer.segment(-1, Flags::RST | Flags::ACK);
    peer.inject(right);
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::Refused));
    peer.nothing();
}

#[test]
fn in_syn_sent_an_echo_that_the_syn_cannot_have_carried_is_refused_before_a_reset_counts() {
    let mut peer = opening();
    let sent = peer.echo;
    for (flags, is_answered) in [(Flags::SYN, true), (Flags::RST, false)] {
        for echo in [sent - 1, sent + RTT.as_millis() as u32 + 1, sent ^ (1 << 31)] {
            let mut segment = peer.segment(-1, flags | Flags::ACK);
            segment.options.timestamps = Some(Timestamps { value: 1, echo });
            peer.inject(segment);
            let out = peer.take();
            assert_eq!(out.iter().any(|out| out.has(Flags::RST)), is_answered, "{out:?}");
        }
    }
    assert_eq!(peer.count(Counter::PAWSActive), 6);
    assert_eq!(peer.connection.state(), State::SynSent);
    let synack = peer.syn(Flags::SYN | Flags::ACK);
    peer.inject(synack);
    assert_eq!(peer.connection.state(), State::Established);
}

#[test]
fn in_syn_sent_an_ack_alone_is_ignored() {
    let mut peer = opening();
    let ack = peer.segment(0, Flags::ACK);
    peer.inject(ack);
    peer.nothing();
    assert_eq!(peer.connection.state(), State::SynSent);
}

// SYN-RECEIVED of a simultaneous open; that of a listener is in handshake/mod.rs.

fn crossed() -> Peer {
    let mut peer = opening();
    let syn = peer.syn(Flags::SYN);
    peer.inject(syn);
    assert_eq!(peer.connection.state(), State::SynReceived);
    peer.take();
    peer
}

#[test]
fn in_syn_received_an_ack_of_something_else_is_reset() {
    let mut peer = crossed();
    let wrong = with_ack(with_value(peer.segment(0, Flags::ACK), AHEAD as i32), 5);
    peer.inject(wrong);
    let reset = peer.one();
    assert_eq!((reset.segment.flags, reset.seq()), (Flags::RST, 5));
    assert_eq!(peer.connection.state(), State::SynReceived);
    let ack = peer.segment(0, Flags::ACK);
    peer.inject(ack);
    assert_eq!(peer.connection.state(), State::Established);
    goes_on(&mut peer);
}

#[test]
fn in_syn_received_a_synack_counts_only_with_the_right_ack() {
    let mut peer = crossed();
    let mut wrong = peer.syn(Flags::SYN | Flags::ACK);
    wrong.ack = at(5, ISS);
    peer.inject(wrong);
    assert_eq!(peer.connection.state(), State::SynReceived);
    assert_eq!(peer.count(Counter::SYNChallenge), 1);
    let challenge = peer.one();
    assert!(is_ack(&challenge, 0));
    assert_eq!(challenge.seq(), 0);
    let right = peer.syn(Flags::SYN | Flags::ACK);
    peer.inject(right);
    assert_eq!(peer.connection.state(), State::Established);
}

#[test]
fn in_syn_received_only_a_reset_at_the_next_number_counts() {
    let mut peer = crossed();
    let reset = peer.segment(5, Flags::RST);
    peer.inject(reset);
    assert_eq!(peer.connection.state(), State::SynReceived);
    assert_eq!(peer.count(Counter::ChallengeACK), 1);
    let reset = peer.segment(0, Flags::RST);
    peer.inject(reset);
    assert_eq!(peer.connection.state(), State::Closed);
    assert_eq!(IRS + 1, at(0, IRS));
}
