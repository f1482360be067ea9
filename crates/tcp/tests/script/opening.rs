//! Opening: RFC 9293 sections 3.5 and 3.10.7, RFC 7323, RFC 6298 section 5.

use crate::peer::{Hello, ISS, Peer, RTT};
use neap_tcp::config::Config;
use neap_tcp::connection::{ConnectionError, ReadError, Readiness, WriteError, WriteFlags};
use neap_tcp::counters::Counter;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::segment::{Ecn, Flags, Timestamps};
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos};

fn opening(hello: Hello) -> Peer {
    Peer::opening(Config::default(), SocketOptions::default(), hello)
}

fn established(hello: Hello) -> Peer {
    opening(hello).shake()
}

/// When SYNs were sent again, in milliseconds, and when the open was given up.
fn syn_times(config: Config) -> (Vec<u64>, u64) {
    let mut peer = Peer::opening(config, SocketOptions::default(), Hello::default());
    let start = peer.now;
    peer.transmit();
    peer.one();
    while peer.connection.state() == State::SynSent {
        let due = peer.connection.deadline();
        peer.advance(due.since(peer.now));
    }
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::TimedOut));
    assert_eq!(peer.connection.deadline(), Instant::FAR_FUTURE);
    let times = peer.take().iter().map(|out| out.at.since(start).as_millis()).collect();
    (times, peer.now.since(start).as_millis())
}

#[test]
fn a_syn_is_repeated_each_second_four_times_then_after_doubled_pauses() {
    let (times, end) = syn_times(Config::default());
    assert_eq!(times, [1000, 2000, 3000, 4000, 5000, 7000, 11_000, 19_000, 35_000, 67_000]);
    assert_eq!(end, 131_000, "as Linux documents tcp_syn_retries");
    let (times, end) = syn_times(Config { tcp_syn_linear_timeouts: 0, ..Config::default() });
    assert_eq!(times, [1000, 3000, 7000, 15_000, 31_000, 63_000]);
    assert_eq!(end, 127_000, "RFC 6298");
}

#[test]
fn only_the_first_syn_asks_for_ecn() {
    let ecn = Flags::ECE | Flags::CWR;
    for (fallback, want) in [(true, false), (false, true)] {
        let config = Config { tcp_ecn: 1, tcp_ecn_fallback: fallback, ..Config::default() };
        let hello = Hello { ecn: true, ..Hello::default() };
        let mut peer = Peer::opening(config, SocketOptions::default(), hello);
        peer.transmit();
        assert!(peer.one().has(ecn));
        peer.advance_ms(1000);
        assert_eq!(peer.one().segment.flags.intersects(ecn), want);
        // The answer may be to the first.
        let synack = peer.syn(Flags::SYN | Flags::ACK);
        peer.inject(synack);
        peer.take();
        peer.write(100);
        assert_eq!(peer.one().segment.ecn, Ecn::Ect0);
    }
}

#[test]
fn the_syn_of_an_active_open_counts_as_acknowledged() {
    let mut peer = established(Hello::default());
    assert_eq!(peer.info().bytes_acked, 1);
    peer.write(100);
    peer.advance_ms(10);
    peer.ack(100);
    assert_eq!(peer.info().bytes_acked, 101);
}

#[test]
fn the_user_timeout_ends_an_open() {
    let user_timeout = Some(Nanos::from_secs(5));
    let options = SocketOptions { user_timeout, ..SocketOptions::default() };
    let mut peer = Peer::opening(Config::default(), options, Hello::default());
    peer.transmit();
    peer.advance_ms(10_000);
    assert_eq!(peer.take().len(), 5);
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::TimedOut));
}

#[test]
fn after_a_lost_synack_the_timeout_is_three_seconds_until_there_is_a_sample() {
    let mut peer = opening(Hello::default());
    peer.transmit();
    peer.advance_ms(1000);
    assert_eq!(peer.take().len(), 2);
    peer.advance_ms(10);
    let synack = peer.syn(Flags::SYN | Flags::ACK);
    peer.inject(synack);
    assert_eq!(peer.connection.state(), State::Established);
    assert_eq!(peer.info().rto, Nanos::from_secs(3));
    assert_eq!(peer.info().rtt, Nanos::ZERO);
    peer.write(10);
    peer.advance_ms(10);
    peer.ack(10);
    assert_eq!(peer.info().rto, Nanos::from_millis(210));
}

#[test]
fn a_repeated_synack_is_answered_by_one_challenge_ack_per_half_second() {
    let mut peer = Peer::plain();
    for _ in 0..5 {
        let synack = peer.syn(Flags::SYN | Flags::ACK);
        peer.inject(synack);
    }
    let ack = peer.one();
    assert_eq!((ack.seq(), ack.ack(), ack.segment.flags), (0, 0, Flags::ACK));
    assert_eq!(peer.count(Counter::SYNChallenge), 5);
    assert_eq!(peer.count(Counter::ChallengeACK), 1);
    peer.advance_ms(500);
    let synack = peer.syn(Flags::SYN | Flags::ACK);
    peer.inject(synack);
    peer.one();
    assert_eq!(peer.connection.state(), State::Established);
}

#[test]
fn simultaneous_open_by_two_synacks() {
    let mut peer = opening(Hello { timestamps: true, ..Hello::default() });
    peer.transmit();
    peer.one();
    peer.advance(RTT);
    let syn = peer.syn(Flags::SYN);
    peer.inject(syn);
    assert_eq!(peer.connection.state(), State::SynReceived);
    let synack = peer.one();
    assert_eq!(synack.segment.flags, Flags::SYN | Flags::ACK);
    assert_eq!((synack.seq(), synack.ack()), (-1, 0));
    assert_eq!(synack.segment.options.window_scale, Some(10));
    assert!(synack.segment.options.timestamps.is_some_and(|ts| ts.echo != 0));
    // It was lost; it is repeated.
    peer.advance_ms(1000);
    assert_eq!(peer.one().segment.flags, Flags::SYN | Flags::ACK);
    let theirs = peer.syn(Flags::SYN | Flags::ACK);
    peer.inject(theirs);
    assert_eq!(peer.connection.state(), State::Established);
    assert_eq!(peer.info().snd_wnd, 64_000, "the window of a SYN is not scaled");
    peer.take();
    peer.write(100);
    assert_eq!(peer.sent(), [(0, 100)]);
    peer.data(100);
    assert_eq!(peer.read().len(), 100);
}

#[test]
fn simultaneous_open_by_a_syn_and_a_synack_in_one_batch() {
    let mut peer = opening(Hello::default());
    peer.transmit();
    peer.one();
    peer.advance(RTT);
    // Nothing is sent between the two.
    for flags in [Flags::SYN, Flags::SYN | Flags::ACK] {
        let segment = peer.syn(flags);
        peer.connection.on_segment(peer.now, segment);
    }
    assert_eq!(peer.connection.state(), State::Established);
    peer.transmit();
    let ack = peer.one();
    assert_eq!((ack.segment.flags, ack.seq(), ack.ack()), (Flags::ACK, 0, 0));
    peer.advance_ms(5000);
    peer.nothing();
}

#[test]
fn simultaneous_open_by_a_plain_ack() {
    let mut peer = opening(Hello::default());
    peer.transmit();
    peer.advance(RTT);
    let syn = peer.syn(Flags::SYN);
    peer.inject(syn);
    peer.take();
    peer.ack(0);
    assert_eq!(peer.connection.state(), State::Established);
    peer.write(100);
    assert_eq!(peer.sent(), [(0, 100)]);
}

#[test]
fn an_answered_syn_leads_to_a_connection() {
    let hello = Hello { timestamps: true, ecn: true, ..Hello::default() };
    let config = Config { tcp_ecn: 2, ..Config::default() };
    let mut peer = Peer::answering(config, hello);
    assert_eq!(peer.connection.state(), State::SynReceived);
    peer.transmit();
    let synack = peer.one();
    assert_eq!(synack.segment.flags, Flags::SYN | Flags::ACK | Flags::ECE);
    assert_eq!((synack.seq(), synack.ack()), (-1, 0));
    let options = &synack.segment.options;
    assert!(options.sack_permitted && options.timestamps.is_some_and(|ts| ts.echo != 0));
    assert_eq!(options.window_scale, Some(10));
    assert_eq!(peer.counters.get(Counter::PassiveOpens), 0, "it is not open yet");
    peer.advance(RTT);
    peer.ack(0);
    assert_eq!(peer.connection.state(), State::Established);
    assert_eq!(peer.info().min_rtt, Some(RTT));
    let opens = [Counter::PassiveOpens, Counter::ActiveOpens];
    assert_eq!(opens.map(|counter| peer.counters.get(counter)), [1, 0]);
    peer.write(100);
    assert_eq!(peer.sent(), [(0, 100)]);
    peer.data(100);
    assert_eq!(peer.read().len(), 100);
}

#[test]
fn the_answer_to_a_syn_has_no_option_that_the_peer_did_not_offer() {
    let hello = Hello { mss: None, wscale: None, sack: false, ..Hello::default() };
    let mut peer = Peer::answering(Config::default(), hello);
    peer.transmit();
    let options = peer.one().segment.options;
    assert_eq!((options.window_scale, options.sack_permitted), (None, false));
    assert_eq!((options.timestamps, options.mss), (None, Some(1460)));
}

#[test]
fn a_syn_that_comes_again_is_answered_again_at_a_limited_rate() {
    let mut peer = Peer::answering(Config::default(), Hello::default());
    peer.transmit();
    peer.one();
    let syn = peer.syn(Flags::SYN);
    for _ in 0..3 {
        peer.inject(syn.clone());
    }
    assert_eq!(peer.one().segment.flags, Flags::SYN | Flags::ACK);
    assert_eq!(peer.connection.state(), State::SynReceived);
    peer.ack(0);
    assert_eq!(peer.connection.state(), State::Established);
    assert_eq!(peer.info().min_rtt, None, "which of both was acknowledged is not known");
}

#[test]
fn an_answered_syn_that_leads_to_nothing_is_given_up() {
    let config = Config { tcp_synack_retries: 2, ..Config::default() };
    let mut peer = Peer::answering(config, Hello::default());
    let start = peer.now;
    peer.transmit();
    peer.one();
    while peer.connection.state() == State::SynReceived {
        let due = peer.connection.deadline();
        peer.advance(due.since(peer.now));
    }
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::TimedOut));
    let times = peer.take();
    let times: Vec<_> = times.iter().map(|out| out.at.since(start).as_millis()).collect();
    assert_eq!(times, [1000, 3000]);
}

#[test]
fn a_reset_and_an_icmp_error_end_an_answered_syn() {
    let mut peer = Peer::answering(Config::default(), Hello::default());
    peer.transmit();
    let reset = peer.segment(0, Flags::RST);
    peer.inject(reset);
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::Reset));

    let mut peer = Peer::answering(Config::default(), Hello::default());
    peer.transmit();
    assert!(peer.connection.is_in_flight(ISS), "the SYN-ACK");
    peer.connection.on_unreachable(ConnectionError::HostUnreachable);
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::HostUnreachable));
}

#[test]
fn an_ack_of_nothing_we_sent_is_reset_in_syn_received() {
    let mut peer = opening(Hello::default());
    peer.transmit();
    let syn = peer.syn(Flags::SYN);
    peer.inject(syn);
    peer.take();
    peer.ack(5);
    let reset = peer.one();
    assert_eq!((reset.seq(), reset.segment.flags), (5, Flags::RST));
    assert_eq!(peer.connection.state(), State::SynReceived);
}

#[test]
fn a_close_in_syn_received_sends_the_fin_after_the_handshake() {
    let mut peer = opening(Hello::default());
    peer.transmit();
    let syn = peer.syn(Flags::SYN);
    peer.inject(syn);
    peer.take();
    peer.connection.shutdown_write();
    peer.transmit();
    peer.nothing();
    // The SYN-ACK is still what is repeated.
    peer.advance_ms(1000);
    assert!(peer.one().has(Flags::SYN));
    peer.ack(0);
    assert_eq!(peer.connection.state(), State::FinWait1);
    let fin = peer.one();
    assert_eq!((fin.seq(), fin.segment.flags & Flags::FIN), (0, Flags::FIN));
    peer.ack(1);
    assert_eq!(peer.connection.state(), State::FinWait2);
}

#[test]
fn a_refused_open_fails_at_once() {
    let mut peer = opening(Hello::default());
    peer.transmit();
    peer.take();
    // Without an ACK of our SYN anybody could have sent it.
    let blind = peer.segment(-1, Flags::RST);
    peer.inject(blind);
    let mut wrong = peer.segment(-1, Flags::RST | Flags::ACK);
    wrong.ack = ISS;
    peer.inject(wrong);
    assert_eq!(peer.connection.state(), State::SynSent);
    peer.nothing();
    let right = peer.segment(-1, Flags::RST | Flags::ACK);
    peer.inject(right);
    assert_eq!(peer.connection.state(), State::Closed);
    let error = ConnectionError::Refused;
    assert_eq!(peer.connection.write(b"x", WriteFlags::empty()), Err(WriteError::Failed(error)));
    assert_eq!(peer.connection.write(b"x", WriteFlags::empty()), Err(WriteError::Closed));
    assert_eq!(peer.connection.read(peer.now, &mut [0]), Ok(0));
    peer.nothing();
}

#[test]
fn an_old_synack_is_reset_and_forgotten() {
    let mut peer = opening(Hello::default());
    peer.transmit();
    peer.take();
    let mut old = peer.syn(Flags::SYN | Flags::ACK);
    old.ack = ISS + 500;
    peer.inject(old);
    let reset = peer.one();
    assert_eq!((reset.seq(), reset.segment.flags), (499, Flags::RST));
    assert_eq!(peer.connection.state(), State::SynSent);
    assert_eq!(peer.connection.read(peer.now, &mut [0]), Err(ReadError::WouldBlock));
}

#[test]
fn a_synack_that_echoes_the_future_is_reset() {
    let mut peer = opening(Hello { timestamps: true, ..Hello::default() });
    peer.transmit();
    let sent = peer.one().segment.options.timestamps.expect("asked for");
    let mut synack = peer.syn(Flags::SYN | Flags::ACK);
    let echo = sent.value.wrapping_add(60_000);
    synack.options.timestamps = Some(Timestamps { value: 1, echo });
    peer.inject(synack);
    assert_eq!(peer.one().segment.flags, Flags::RST);
    assert_eq!(peer.connection.state(), State::SynSent);
}

#[test]
fn the_least_mss_that_is_obeyed_is_tcp_min_snd_mss() {
    for mss in [1, 10, 48] {
        for timestamps in [false, true] {
            let mut peer = established(Hello { mss: Some(mss), timestamps, ..Hello::default() });
            let want = if timestamps { 36 } else { 48 };
            assert_eq!(peer.info().snd_mss, want);
            peer.write(1000);
            for _ in 0..100 {
                let upto = peer.take().iter().map(|out| out.seq() + out.len() as i32).max();
                let Some(upto) = upto else { break };
                peer.advance_ms(10);
                peer.ack(upto);
            }
            assert_eq!(peer.info().bytes_acked, 1001);
        }
    }
}

#[test]
fn odd_values_of_the_mss_option() {
    for (mss, want) in [(None, 536), (Some(0), 536), (Some(u16::MAX), 1460), (Some(1461), 1460)] {
        let peer = established(Hello { mss, ..Hello::default() });
        assert_eq!(peer.info().snd_mss, want, "{mss:?}");
    }
}

#[test]
fn a_window_scale_above_14_counts_as_14() {
    for (wscale, want) in [(Some(15), 14), (Some(255), 14), (Some(14), 14), (None, 0)] {
        let mut peer = established(Hello { wscale, ..Hello::default() });
        assert_eq!(peer.info().snd_wscale, want);
        assert_eq!(peer.info().rcv_wscale, if wscale.is_some() { 10 } else { 0 });
        peer.window = u32::MAX;
        peer.ack(0);
        let _ = peer.data(1);
        assert!(peer.info().snd_wnd <= 65535 << 14);
    }
}

#[test]
fn data_with_the_synack_is_delivered() {
    let mut peer = opening(Hello::default());
    peer.transmit();
    peer.take();
    let mut synack = peer.syn(Flags::SYN | Flags::ACK);
    synack.payload = peer.data_at(0, 100).payload;
    peer.next = 100;
    peer.inject(synack);
    assert_eq!(peer.one().ack(), 100);
    assert_eq!(peer.read(), crate::peer::pattern(0, 100));
}

#[test]
fn an_unreachable_report_ends_an_open_and_is_remembered_later() {
    let mut peer = opening(Hello::default());
    peer.transmit();
    peer.connection.on_unreachable(ConnectionError::HostUnreachable);
    assert_eq!(peer.connection.state(), State::Closed);
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::HostUnreachable));
    let mut peer = Peer::plain();
    peer.connection.on_unreachable(ConnectionError::NetworkUnreachable);
    assert_eq!(peer.connection.state(), State::Established);
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::NetworkUnreachable));
}

#[test]
fn an_unreachable_report_that_was_asked_for_is_told_once_and_ends_nothing() {
    let unreachable = ConnectionError::HostUnreachable;
    let mut peer = Peer::plain();
    peer.set(SocketOption::ReceiveErrors(true));
    peer.connection.on_unreachable(unreachable);
    assert!(peer.connection.readiness().contains(Readiness::ERROR));
    let now = peer.now;
    let read = peer.connection.read(now, &mut [0; 10]);
    assert_eq!(read, Err(ReadError::Failed(unreachable)));
    assert!(!peer.connection.readiness().contains(Readiness::ERROR));
    assert_eq!(peer.connection.read(now, &mut [0; 10]), Err(ReadError::WouldBlock));
    peer.connection.on_unreachable(unreachable);
    assert_eq!(
        peer.connection.write(b"x", WriteFlags::empty()),
        Err(WriteError::Failed(unreachable))
    );
    assert_eq!(peer.connection.write(b"x", WriteFlags::empty()), Ok(1));
    // What ends the connection takes the place of what is not told yet.
    peer.connection.on_unreachable(unreachable);
    peer.connection.abort();
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::Aborted));
    assert_eq!(peer.connection.take_error(), None);
}

#[test]
fn an_ack_takes_a_soft_error_away() {
    let mut peer = Peer::plain();
    peer.write(100);
    peer.connection.on_unreachable(ConnectionError::HostUnreachable);
    peer.ack(100);
    assert_eq!(peer.connection.take_error(), None);
}

/// The peer's answer to the third SYN, or to the third SYN-ACK, which echoes the last one or the
/// first.
fn opened_late(is_passive: bool, timestamps: bool, echoes_first: bool) -> Peer {
    let hello = Hello { timestamps, ..Hello::default() };
    let mut peer =
        if is_passive { Peer::answering(Config::default(), hello) } else { opening(hello) };
    peer.transmit();
    let first = peer.take().remove(0).segment.options.timestamps;
    // Two timeouts: at one and two seconds, the SYN-ACK's at one and three.
    peer.advance_ms(3000);
    let sent = peer.take();
    let last = sent.last().expect("they were repeated").segment.options.timestamps;
    peer.advance(RTT);
    if let Some(echoed) = if echoes_first { first } else { last } {
        peer.echo = echoed.value;
    }
    if is_passive {
        peer.ack(0);
    } else {
        let synack = peer.syn(Flags::SYN | Flags::ACK);
        peer.inject(synack);
    }
    assert_eq!(peer.connection.state(), State::Established);
    peer.take();
    peer
}

#[test]
fn a_connection_whose_syns_were_lost_begins_with_one_segment() {
    for is_passive in [false, true] {
        for timestamps in [false, true] {
            let mut peer = opened_late(is_passive, timestamps, false);
            peer.try_write(20_000);
            peer.transmit();
            let said = (is_passive, timestamps);
            assert_eq!((peer.info().snd_cwnd, peer.sent().len()), (1, 1), "{said:?}");
        }
        // The echo tells that nothing was lost.
        assert_eq!(opened_late(is_passive, true, true).info().snd_cwnd, 10);
    }
}

#[test]
fn a_handshake_that_was_repeated_is_timed_by_the_echo_or_falls_back_to_three_seconds() {
    for is_passive in [false, true] {
        assert_eq!(opened_late(is_passive, false, false).info().rto, Nanos::from_secs(3));
        let by_echo = opened_late(is_passive, true, false).info();
        assert!((RTT..=RTT + RTT).contains(&by_echo.rtt), "{:?}", by_echo.rtt);
        assert!(by_echo.rto < Nanos::from_millis(300), "{:?}", by_echo.rto);
    }
}

#[test]
fn a_linger_time_of_zero_resets_what_is_not_open_yet() {
    let mut peer = Peer::answering(Config::default(), Hello::default());
    peer.transmit();
    peer.one();
    peer.set(SocketOption::Linger(Some(Nanos::ZERO)));
    peer.connection.close(peer.now);
    peer.transmit();
    assert!(peer.one().has(Flags::RST));
    assert_eq!(peer.connection.state(), State::Closed);
}

#[test]
fn the_reset_of_what_is_not_open_yet_has_the_number_behind_the_syn() {
    for wscale in [None, Some(7)] {
        let mut peer = Peer::answering(Config::default(), Hello { wscale, ..Hello::default() });
        peer.transmit();
        let syn_ack = peer.one();
        peer.connection.abort();
        peer.transmit();
        assert_eq!(peer.one().seq(), syn_ack.seq() + 1);
    }
}

#[test]
fn a_syn_that_is_sent_again_counts_as_retransmitted() {
    let mut peer = Peer::opening(Config::default(), SocketOptions::default(), Hello::default());
    peer.transmit();
    peer.advance_ms(3500);
    assert_eq!(peer.take().len(), 4);
    assert_eq!(peer.count(Counter::OutSegs), 1);
    assert_eq!((peer.count(Counter::RetransSegs), peer.count(Counter::SynRetrans)), (3, 3));
    assert_eq!(peer.info().total_retrans, 3);
}

#[test]
fn a_syn_ack_that_is_sent_again_counts_as_sent_too() {
    let mut peer = Peer::answering(Config::default(), Hello::default());
    peer.transmit();
    let syn = peer.syn(Flags::SYN);
    peer.inject(syn);
    peer.advance_ms(1500);
    assert_eq!(peer.take().len(), 3, "the first, one for the SYN, one for the timer");
    assert_eq!(peer.count(Counter::OutSegs), 3);
    assert_eq!((peer.count(Counter::RetransSegs), peer.count(Counter::SynRetrans)), (2, 2));
}

#[test]
fn the_largest_segment_of_the_application_counts_the_options() {
    let options = SocketOptions { max_segment: Some(1000), ..SocketOptions::default() };
    for (timestamps, payload) in [(true, 988), (false, 1000)] {
        let hello = Hello { mss: Some(1460), timestamps, ..Hello::default() };
        let mut peer = Peer::established(Config::default(), options.clone(), hello);
        peer.write(5000);
        assert_eq!(peer.info().snd_mss, payload);
    }
}

#[test]
fn the_largest_segment_of_the_application_acts_in_the_handshake_alone() {
    let hello = Hello { mss: Some(1460), ..Hello::default() };
    let mut peer = Peer::established(Config::default(), SocketOptions::default(), hello.clone());
    let before = peer.info().snd_mss;
    peer.set(SocketOption::MaxSegment(100));
    peer.write(1000);
    assert_eq!(peer.sent(), [(0, 1000)]);
    assert_eq!(peer.info().snd_mss, before);
    let mut peer = Peer::opening(Config::default(), SocketOptions::default(), hello.clone());
    peer.set(SocketOption::MaxSegment(100));
    let mut peer = peer.shake();
    peer.write(1000);
    assert_eq!(peer.info().snd_mss, 100);
}

#[test]
fn figures_of_a_connection_that_opens_are_those_of_its_syn() {
    let options = SocketOptions { max_segment: Some(1000), ..SocketOptions::default() };
    for (options, advmss, snd_mss) in [(SocketOptions::default(), 1460, 524), (options, 1000, 988)]
    {
        let mut peer = Peer::opening(Config::default(), options, Hello::default());
        peer.transmit();
        let info = peer.info();
        assert_eq!((info.advmss, info.snd_mss, info.unacked), (advmss, snd_mss, 1));
        let info = peer.shake().info();
        assert_eq!(info.unacked, 0);
    }
}

#[test]
fn the_fin_of_the_peer_counts_as_a_byte_received() {
    let mut peer = Peer::plain();
    peer.data(100);
    peer.data_with(50, Ecn::NotEct, Flags::FIN);
    assert_eq!(peer.info().bytes_received, 151);
}

#[test]
fn the_low_water_mark_that_is_set_before_makes_room_in_the_buffer() {
    let options = SocketOptions { receive_lowat: 1_000_000, ..SocketOptions::default() };
    let peer = Peer::established(Config::default(), options, Hello::default());
    assert!(peer.info().rcvbuf >= 1_000_000, "{}", peer.info().rcvbuf);
}
