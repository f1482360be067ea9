//! Closing: RFC 9293 section 3.6, RFC 1122 section 4.2.2.13, RFC 2525 section 2.17.

use crate::peer::{Hello, IRS, ISS, Peer, at};
use neap_tcp::config::Config;
use neap_tcp::connection::{ConnectionError, ReadError, Readiness, WriteError, WriteFlags};
use neap_tcp::counters::Counter;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::segment::Flags;
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::time_wait::TimeWaitVerdict;
use neap_tcp::transmit::egress::Verdict;

fn fin(peer: &mut Peer) {
    let segment = peer.segment(peer.next, Flags::ACK | Flags::FIN);
    peer.next += 1;
    peer.inject(segment);
}

#[test]
fn half_close_still_receives() {
    let mut peer = Peer::plain();
    peer.write(100);
    peer.connection.shutdown_write();
    peer.transmit();
    let out = peer.take();
    assert_eq!((out[0].len(), out[1].len(), out[1].seq()), (100, 0, 100));
    assert!(out[1].has(Flags::FIN));
    assert_eq!(peer.connection.write(b"x", WriteFlags::empty()), Err(WriteError::Closed));
    peer.ack(101);
    assert_eq!(peer.connection.state(), State::FinWait2);
    // The application may wait as long as it likes.
    peer.advance_ms(100_000_000);
    peer.nothing();
    peer.data(5000);
    assert_eq!(peer.read().len(), 5000);
    fin(&mut peer);
    assert_eq!(peer.connection.read(peer.now, &mut [0; 10]), Ok(0));
    assert_eq!(peer.connection.state(), State::TimeWait);
}

#[test]
fn a_fin_rides_on_the_last_data() {
    let mut peer = Peer::plain();
    peer.set(SocketOption::Cork(true));
    peer.write(100);
    peer.nothing();
    peer.connection.shutdown_write();
    peer.transmit();
    let out = peer.one();
    assert!(out.has(Flags::FIN) && out.len() == 100);
}

#[test]
fn a_lost_fin_is_probed_and_repeated() {
    let mut peer = Peer::plain();
    let start = peer.now;
    peer.connection.shutdown_write();
    peer.transmit();
    assert!(peer.one().has(Flags::FIN));
    peer.advance_ms(3000);
    let out = peer.take();
    assert!(out.iter().all(|out| out.has(Flags::FIN) && out.seq() == 0));
    let times: Vec<_> = out.iter().map(|out| out.at.since(start).as_millis()).collect();
    // The probe is due at the timeout or before; then timeouts that double.
    assert_eq!(times[0], 210);
    assert!(times.len() >= 4, "{times:?}");
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps[..3], [210, 420, 840]);
    peer.ack(1);
    assert_eq!(peer.connection.state(), State::FinWait2);
}

#[test]
fn time_wait_answers_with_the_right_numbers() {
    let mut peer = Peer::established(
        Config::default(),
        SocketOptions::default(),
        Hello { timestamps: true, ..Hello::default() },
    );
    peer.write(100);
    peer.data(50);
    peer.connection.shutdown_write();
    peer.transmit();
    peer.take();
    peer.advance_ms(10);
    peer.ack(101);
    fin(&mut peer);
    assert_eq!(peer.connection.state(), State::TimeWait);
    let ack = peer.one();
    assert_eq!((ack.seq(), ack.ack(), ack.segment.flags), (101, 51, Flags::ACK));
    let mut rest = peer.connection.take_time_wait().expect("once");
    assert!(peer.connection.take_time_wait().is_none());
    assert_eq!(rest.deadline(), peer.now + Nanos::from_secs(60));
    let again = peer.segment(50, Flags::ACK | Flags::FIN);
    peer.now += Nanos::from_secs(1);
    let TimeWaitVerdict::Ack(answer) = rest.on_segment(peer.now, &again, true) else {
        panic!("a repeated FIN is answered");
    };
    assert_eq!((answer.seq, answer.ack), (at(101, ISS), at(51, IRS)));
    assert_eq!(answer.window, ack.segment.window);
    assert_eq!(
        answer.options.timestamps.map(|ts| ts.echo),
        again.options.timestamps.map(|ts| ts.value)
    );
    assert_eq!(rest.deadline(), peer.now + Nanos::from_secs(60));
}

#[test]
fn simultaneous_close() {
    let mut peer = Peer::plain();
    peer.connection.shutdown_write();
    peer.transmit();
    peer.take();
    fin(&mut peer);
    assert_eq!(peer.connection.state(), State::Closing);
    let ack = peer.one();
    assert_eq!((ack.seq(), ack.ack()), (1, 1));
    peer.ack(1);
    assert_eq!(peer.connection.state(), State::TimeWait);
    assert!(peer.connection.is_closed());
}

#[test]
fn passive_close() {
    let mut peer = Peer::plain();
    peer.data(10);
    fin(&mut peer);
    assert_eq!(peer.connection.state(), State::CloseWait);
    let ready = peer.connection.readiness();
    assert!(ready.contains(Readiness::READABLE | Readiness::READ_CLOSED | Readiness::WRITABLE));
    assert_eq!(peer.read().len(), 10);
    peer.take();
    peer.write(20);
    assert_eq!(peer.sent(), [(0, 20)]);
    // The ACK of the FIN was lost: the FIN comes again.
    let again = peer.segment(10, Flags::ACK | Flags::FIN);
    peer.inject(again);
    assert_eq!(peer.one().ack(), 11);
    peer.connection.shutdown_write();
    assert_eq!(peer.connection.state(), State::LastAck);
    peer.transmit();
    assert!(peer.one().has(Flags::FIN));
    peer.ack(21);
    assert_eq!(peer.connection.state(), State::Closed);
    assert!(peer.connection.take_time_wait().is_none());
    assert_eq!(peer.connection.take_error(), None);
}

#[test]
fn data_after_close_is_reset() {
    let mut peer = Peer::plain();
    peer.connection.close(peer.now);
    peer.transmit();
    peer.take();
    peer.ack(1);
    peer.data(10);
    let reset = peer.one();
    assert!(reset.has(Flags::RST));
    assert_eq!(reset.seq(), 1);
    assert_eq!(peer.connection.state(), State::Closed);
    assert_eq!(peer.count(Counter::AbortOnData), 1);
}

#[test]
fn data_after_both_directions_were_shut_is_reset() {
    let mut peer = Peer::plain();
    peer.connection.shutdown_read();
    peer.data(10);
    assert_eq!(peer.connection.state(), State::Established, "shut for reading alone it is dropped");
    peer.connection.shutdown_write();
    peer.transmit();
    peer.take();
    peer.data(10);
    assert!(peer.one().has(Flags::RST));
    assert_eq!(peer.count(Counter::AbortOnData), 1);
}

#[test]
fn a_close_with_unread_data_resets() {
    let mut peer = Peer::plain();
    peer.data(10);
    peer.take();
    peer.connection.close(peer.now);
    peer.transmit();
    let reset = peer.one();
    assert_eq!((reset.segment.flags, reset.seq(), reset.ack()), (Flags::RST | Flags::ACK, 0, 10));
    assert_eq!(peer.connection.state(), State::Closed);
    assert_eq!((peer.count(Counter::AbortOnClose), peer.count(Counter::AbortOnData)), (1, 0));
}

#[test]
fn linger_of_zero_resets_and_gives_up_what_is_queued() {
    let options = SocketOptions { linger: Some(Nanos::ZERO), ..SocketOptions::default() };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    peer.write(20_000);
    peer.take();
    peer.connection.close(peer.now);
    peer.transmit();
    let reset = peer.one();
    assert!(reset.has(Flags::RST));
    assert_eq!(reset.seq(), 10_000, "behind what was sent");
    assert_eq!(peer.info().wmem_queued, 0);
    assert_eq!((peer.count(Counter::AbortOnClose), peer.count(Counter::AbortOnData)), (0, 1));
}

/// A peer in whose connection both ends have sent their FIN; ours is sent if `is_sent`.
fn both_ended(is_sent: bool) -> Peer {
    let options = SocketOptions { linger: Some(Nanos::ZERO), ..SocketOptions::default() };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    peer.data(10);
    fin(&mut peer);
    peer.connection.shutdown_write();
    if is_sent {
        peer.transmit();
    }
    assert_eq!(peer.connection.state(), State::LastAck);
    peer.take();
    peer
}

#[test]
fn linger_of_zero_sends_no_reset_behind_both_fins() {
    let mut peer = both_ended(true);
    peer.read();
    peer.take();
    peer.connection.close(peer.now);
    peer.transmit();
    peer.nothing();
    assert_eq!(peer.connection.state(), State::Closed);
    // Nor does it to a peer that has sent its FIN at the same time.
    let options = SocketOptions { linger: Some(Nanos::ZERO), ..SocketOptions::default() };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    peer.connection.shutdown_write();
    peer.transmit();
    fin(&mut peer);
    peer.take();
    assert_eq!(peer.connection.state(), State::Closing);
    peer.connection.close(peer.now);
    peer.transmit();
    peer.nothing();
    assert_eq!(peer.connection.state(), State::Closed);
}

#[test]
fn unread_data_and_a_fin_that_was_not_sent_reset_behind_the_fin_of_the_peer() {
    for is_sent in [true, false] {
        let mut peer = both_ended(is_sent);
        if !is_sent {
            peer.read();
            peer.take();
        }
        peer.connection.close(peer.now);
        peer.transmit();
        assert!(peer.one().has(Flags::RST), "{is_sent}");
        assert_eq!(peer.connection.state(), State::Closed);
    }
}

#[test]
fn an_orphan_waits_a_minute_for_the_fin() {
    let mut peer = Peer::plain();
    peer.connection.close(peer.now);
    peer.transmit();
    peer.ack(1);
    peer.take();
    peer.advance_ms(59_999);
    assert_eq!(peer.connection.state(), State::FinWait2);
    peer.advance_ms(2);
    assert_eq!(peer.connection.state(), State::Closed);
    peer.nothing();
}

#[test]
fn an_orphan_waits_for_three_and_a_half_timeouts_at_least() {
    let config = Config { tcp_fin_timeout: 0, ..Config::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), Hello::default());
    peer.connection.close(peer.now);
    peer.transmit();
    peer.ack(1);
    peer.take();
    let rto = peer.info().rto.as_millis();
    peer.advance_ms(rto * 7 / 2 - 1);
    assert_eq!(peer.connection.state(), State::FinWait2);
    peer.advance_ms(10);
    assert_eq!(peer.connection.state(), State::Closed);
}

#[test]
fn a_short_minimum_of_the_timeout_does_not_end_a_connection_sooner() {
    let config = Config { tcp_rto_min_us: 1000, tcp_retries2: 8, ..Config::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), Hello::default());
    let start = peer.now;
    peer.write(100);
    while peer.connection.state() != State::Closed {
        peer.advance_ms(1000);
        assert!(peer.ms_since(start) < 300_000);
    }
    // Eight doublings of 200 ms.
    assert!((102_000..=240_000).contains(&peer.ms_since(start)), "{}", peer.ms_since(start));
}

#[test]
fn an_orphan_with_data_is_given_up_sooner() {
    let mut peer = Peer::plain();
    let start = peer.now;
    peer.write(100);
    peer.connection.close(peer.now);
    peer.transmit();
    while peer.connection.state() != State::Closed {
        peer.advance_ms(1000);
        assert!(peer.ms_since(start) < 300_000);
    }
    // Eight doublings of 200 ms, counted from the first timeout.
    assert!((102_000..=210_000).contains(&peer.ms_since(start)), "{}", peer.ms_since(start));
}

#[test]
fn a_reset_in_any_state_ends_everything() {
    for state in 0..4 {
        let mut peer = Peer::plain();
        peer.write(20_000);
        match state {
            0 => {}
            1 => peer.connection.shutdown_write(),
            2 => fin(&mut peer),
            _ => {
                fin(&mut peer);
                peer.connection.shutdown_write();
            }
        }
        peer.transmit();
        peer.take();
        let reset = peer.segment(peer.next, Flags::RST);
        peer.inject(reset);
        assert_eq!(peer.connection.state(), State::Closed);
        assert_eq!(peer.connection.deadline(), Instant::FAR_FUTURE);
        peer.nothing();
        // A stream that has ended stays at its end.
        let has_ended = state >= 2;
        let error = if state == 2 { ConnectionError::BrokenPipe } else { ConnectionError::Reset };
        let read = if has_ended { Ok(0) } else { Err(ReadError::Failed(error)) };
        assert_eq!(peer.connection.peek(&mut [0; 10]), read);
        assert_eq!(peer.connection.read(peer.now, &mut [0; 10]), Ok(0), "an error is told once");
        assert_eq!(peer.connection.take_error(), has_ended.then_some(error));
        assert_eq!(peer.info().wmem_queued, 0);
        assert_eq!(peer.account.bytes(), 0);
    }
}

#[test]
fn shutting_the_reading_side_drops_what_waits() {
    let mut peer = Peer::plain();
    peer.data(30_000);
    assert_eq!(peer.connection.unread(), 30_000);
    peer.connection.shutdown_read();
    assert_eq!(peer.connection.unread(), 0);
    assert_eq!(peer.connection.read(peer.now, &mut [0; 10]), Ok(0));
    peer.connection.close(peer.now);
    peer.transmit();
    assert!(peer.take().iter().any(|out| out.has(Flags::FIN)), "nothing unread, so no reset");
}

#[test]
fn a_refused_last_ack_leaves_time_wait() {
    let mut peer = Peer::plain();
    peer.connection.shutdown_write();
    peer.transmit();
    peer.take();
    peer.ack(1);
    assert_eq!(peer.connection.state(), State::FinWait2);
    peer.wire.verdict = Verdict::Dropped;
    fin(&mut peer);
    assert_eq!(peer.connection.state(), State::TimeWait);
    assert!(peer.connection.is_closed());
    assert!(peer.connection.take_time_wait().is_some());
}

#[test]
fn a_fin_alone_is_no_data() {
    let mut peer = Peer::plain();
    peer.write(1000);
    peer.advance_ms(10);
    peer.ack(1000);
    peer.take();
    let before = peer.info();
    peer.advance_ms(10);
    peer.connection.shutdown_write();
    peer.transmit();
    assert!(peer.one().has(Flags::FIN));
    let info = peer.info();
    assert_eq!((info.data_segs_out, info.bytes_sent), (before.data_segs_out, before.bytes_sent));
    assert_eq!(info.last_data_sent, Some(Nanos::from_millis(20)));
}
