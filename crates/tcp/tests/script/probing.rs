//! Zero-window probes, keepalive, user timeout and giving up: RFC 9293 sections 3.8.3, 3.8.4 and
//! 3.8.6.1, RFC 5482, Linux's `tcp_probe_timer`, `tcp_keepalive_timer`, `tcp_write_timeout`.

use crate::peer::{Hello, Peer};
use neap_tcp::config::Config;
use neap_tcp::connection::ConnectionError;
use neap_tcp::counters::Counter;
use neap_tcp::options::{OptionError, SocketOption, SocketOptions};
use neap_tcp::segment::Flags;
use neap_tcp::state::State;
use neap_tcp::time::Nanos;
use neap_tcp::transmit::TxBlocked;
use neap_tcp::transmit::egress::Verdict;

/// A connection whose peer has closed its window, with data waiting.
fn closed_window(options: SocketOptions) -> Peer {
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    peer.write(1000);
    peer.advance_ms(10);
    peer.window = 0;
    peer.ack(1000);
    peer.take();
    assert_eq!(peer.write(5000), TxBlocked::Rwnd);
    peer
}

#[test]
fn a_closed_window_is_probed_with_doubling_intervals() {
    let mut peer = closed_window(SocketOptions::default());
    let start = peer.now;
    let mut times = Vec::new();
    for _ in 0..4000 {
        peer.advance_ms(100);
        for probe in peer.take() {
            // An old number, without data, so that the peer must answer.
            assert_eq!((probe.seq(), probe.len(), probe.segment.flags), (999, 0, Flags::ACK));
            times.push(probe.at.since(start).as_millis());
            assert_eq!((peer.info().probes, peer.info().backoff), (1, times.len() as u32));
            peer.ack(1000);
            assert_eq!((peer.info().probes, peer.info().backoff), (0, times.len() as u32));
        }
    }
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let first = times[0];
    assert!((200..=220).contains(&first), "{first}");
    for (index, gap) in gaps.iter().enumerate() {
        let want = (first << (index + 1)).min(120_000);
        assert!(gap.abs_diff(want) <= 100 + want / 50, "gap {index}: {gap}, {want} expected");
    }
    assert!(times.len() >= 10);
    assert_eq!(peer.connection.state(), State::Established, "as long as it answers");
}

/// The peer answers each probe of a closed window until `end_ms`. Whether the connection is there.
fn outlives_a_closed_window(peer: &mut Peer, end_ms: u64) -> bool {
    let start = peer.now;
    while peer.ms_since(start) < end_ms && peer.connection.state() != State::Closed {
        peer.advance_ms(100);
        for _ in peer.take() {
            peer.ack(1000);
        }
    }
    peer.connection.state() != State::Closed
}

#[test]
fn what_was_written_before_the_close_waits_for_a_peer_that_answers_probes() {
    for held_ms in [1000, 60_000, 150_000] {
        let mut peer = closed_window(SocketOptions::default());
        assert!(outlives_a_closed_window(&mut peer, held_ms));
        peer.connection.close(peer.now);
        peer.transmit();
        assert!(outlives_a_closed_window(&mut peer, 190_000 - held_ms), "{held_ms}");
        peer.window = 64_000;
        peer.ack(1000);
        assert_eq!(peer.sent_bytes(), 5000, "{held_ms}");
    }
}

#[test]
fn a_window_that_never_opens_is_not_probed_for_ever_after_the_close() {
    let mut peer = closed_window(SocketOptions::default());
    peer.connection.close(peer.now);
    assert!(outlives_a_closed_window(&mut peer, 200_000));
    // Ten doublings of 200 ms are longer than 120 s.
    assert!(!outlives_a_closed_window(&mut peer, 150_000));
}

#[test]
fn an_opened_window_resumes_at_once() {
    let mut peer = closed_window(SocketOptions::default());
    peer.advance_ms(5000);
    peer.take();
    peer.window = 64_000;
    peer.ack(1000);
    assert_eq!(peer.sent_bytes(), 5000);
    peer.ack(6000);
    peer.window = 0;
    peer.ack(6000);
    peer.write(100);
    peer.take();
    peer.advance_ms(250);
    assert_eq!(peer.take().len(), 1, "the back-off begins anew");
}

#[test]
fn a_small_window_is_used_by_the_probe() {
    let mut peer = closed_window(SocketOptions::default());
    peer.window = 128;
    peer.ack(1000);
    peer.nothing();
    // Too small for a segment: what fits goes when the probe is due.
    peer.advance_ms(250);
    assert_eq!(peer.sent(), [(1000, 128)]);
}

#[test]
fn a_silent_peer_with_a_closed_window_is_given_up_after_tcp_retries2() {
    let mut peer = closed_window(SocketOptions::default());
    let start = peer.now;
    while peer.connection.state() != State::Closed {
        peer.advance_ms(1000);
        assert!(peer.ms_since(start) < 2_000_000);
    }
    // 15 doublings of 200 ms up to 120 s are 924.6 s.
    assert!((924_000..1_050_000).contains(&peer.ms_since(start)), "{}", peer.ms_since(start));
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::TimedOut));
}

#[test]
fn a_peer_that_falls_silent_after_answers_to_probes_is_given_up() {
    let mut peer = closed_window(SocketOptions::default());
    let start = peer.now;
    while peer.ms_since(start) < 3_600_000 {
        peer.advance_ms(1000);
        if !peer.take().is_empty() {
            peer.ack(1000);
        }
    }
    let silent = peer.now;
    peer.advance_ms(15 * 120_000);
    assert_eq!(peer.connection.state(), State::Established);
    assert_eq!((peer.take().len(), peer.info().probes), (15, 15));
    peer.advance_ms(120_000);
    assert_eq!(peer.connection.state(), State::Closed, "{}", peer.ms_since(silent));
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::TimedOut));
}

#[test]
fn the_user_timeout_ends_probing_even_if_the_peer_answers() {
    let user_timeout = Some(Nanos::from_secs(10));
    let mut peer = closed_window(SocketOptions { user_timeout, ..SocketOptions::default() });
    let start = peer.now;
    while peer.connection.state() != State::Closed {
        peer.advance_ms(100);
        if !peer.take().is_empty() {
            peer.ack(1000);
        }
        assert!(peer.ms_since(start) < 60_000);
    }
    assert!((10_000..30_000).contains(&peer.ms_since(start)), "{}", peer.ms_since(start));
}

#[test]
fn unacknowledged_data_is_given_up_after_tcp_retries2() {
    let mut peer = Peer::plain();
    peer.write(100);
    peer.take();
    let start = peer.now;
    peer.advance_ms(900_000);
    assert_eq!(peer.connection.state(), State::Established);
    let times: Vec<_> = peer.take().iter().map(|out| out.at.since(start).as_millis()).collect();
    let last = times.windows(2).last().map(|pair| pair[1] - pair[0]);
    assert_eq!(last, Some(120_000), "the longest timeout: {times:?}");
    peer.advance_ms(300_000);
    assert_eq!(peer.connection.state(), State::Closed);
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::TimedOut));
    assert_eq!(peer.count(Counter::AbortOnTimeout), 1);
}

#[test]
fn the_user_timeout_ends_retransmission() {
    let user_timeout = Some(Nanos::from_secs(3));
    let options = SocketOptions { user_timeout, ..SocketOptions::default() };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    peer.write(100);
    peer.advance_ms(2900);
    assert_eq!(peer.connection.state(), State::Established);
    peer.advance_ms(4000);
    assert_eq!(peer.connection.state(), State::Closed);
}

#[test]
fn the_user_timeout_ends_retransmission_when_it_is_over() {
    let user_timeout = Some(Nanos::from_secs(3));
    let options = SocketOptions { user_timeout, ..SocketOptions::default() };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    let start = peer.now;
    peer.write(100);
    while peer.connection.state() != State::Closed {
        peer.advance_ms(1);
        assert!(peer.ms_since(start) < 4_000);
    }
    // It counts from the first timeout.
    assert!(peer.ms_since(start) >= 3_000);
}

/// A connection whose peer has closed its window while 3000 bytes are in flight.
fn closed_over_data(options: SocketOptions) -> Peer {
    let config = Config { tcp_retries2: 3, ..Config::default() };
    let mut peer = Peer::established(config, options, Hello::default());
    peer.write(3000);
    peer.take();
    peer.advance_ms(10);
    peer.window = 0;
    peer.ack(0);
    peer.nothing();
    peer
}

/// The time in steps of 100 ms until the connection is closed. The peer answers probes.
fn time_until_closed(peer: &mut Peer, answers: bool) -> Option<u64> {
    for step in 1..20_000 {
        peer.advance_ms(100);
        for (seq, len) in peer.sent() {
            assert_eq!((seq, len), (0, 1000), "one segment, the oldest");
            if answers {
                peer.ack(0);
            }
        }
        if peer.connection.state() == State::Closed {
            return Some(step * 100);
        }
    }
    None
}

#[test]
fn a_peer_that_closes_its_window_over_data_in_flight_is_probed_while_it_answers() {
    let mut peer = closed_over_data(SocketOptions::default());
    assert_eq!(time_until_closed(&mut peer, true), None);
    assert_eq!(peer.count(Counter::Timeouts), 0);
    let info = peer.info();
    assert_eq!((info.retransmits, info.snd_cwnd), (0, 1));
    assert!(info.backoff > 8);
    // A window ends it, and the silence before is no silence of the peer.
    peer.window = 64_000;
    peer.ack(0);
    peer.advance_ms(130_000);
    assert_eq!(peer.connection.state(), State::Established, "the first timeout of a row");
    peer.take();
    peer.ack(3000);
    peer.write(1000);
    assert_eq!(peer.sent(), [(3000, 1000)]);
}

#[test]
fn a_peer_that_closes_its_window_over_data_in_flight_and_falls_silent_is_given_up() {
    let mut peer = closed_over_data(SocketOptions::default());
    peer.advance_ms(100_000);
    assert!(!peer.take().is_empty());
    peer.ack(0);
    // The first timeout after twice the longest one.
    let silence = time_until_closed(&mut peer, false).expect("closed");
    assert!((240_000..=360_000).contains(&silence), "{silence}");
    assert_eq!(peer.count(Counter::AbortOnTimeout), 1);
}

#[test]
fn the_user_timeout_ends_the_probing_of_a_window_closed_over_data() {
    let user_timeout = Some(Nanos::from_secs(3));
    let options = SocketOptions { user_timeout, ..SocketOptions::default() };
    let mut peer = closed_over_data(options);
    let time = time_until_closed(&mut peer, true).expect("closed");
    assert!((3000..=3500).contains(&time), "{time}");
}

#[test]
fn a_probe_that_the_qdisc_drops_is_tried_again_without_back_off() {
    let user_timeout = Some(Nanos::from_secs(3));
    let options = SocketOptions { user_timeout, ..SocketOptions::default() };
    let mut peer = closed_window(options);
    peer.wire.verdict = Verdict::Dropped;
    peer.advance_ms(2950);
    // The first after 210 ms, the others every 500 ms.
    let info = peer.info();
    assert_eq!((info.probes, info.backoff), (6, 0));
    peer.advance_ms(500);
    assert_eq!(peer.connection.state(), State::Closed);

    let mut peer = closed_window(SocketOptions::default());
    peer.wire.verdict = Verdict::Dropped;
    peer.advance_ms(2950);
    peer.wire.verdict = Verdict::Queued;
    peer.advance_ms(500);
    assert_eq!(peer.take().len(), 1);
    assert_eq!((peer.info().probes, peer.info().backoff), (7, 1));
    peer.window = 64_000;
    peer.ack(1000);
    assert_eq!((peer.info().probes, peer.info().backoff), (0, 0));
}

#[test]
fn a_retransmission_that_the_qdisc_drops_is_tried_again_without_back_off() {
    let config = Config { tcp_early_retrans: 0, ..Config::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), Hello::default());
    peer.write(1000);
    peer.take();
    peer.wire.verdict = Verdict::Dropped;
    peer.advance_ms(3050);
    assert_eq!(peer.info().backoff, 0);
    let dropped = peer.count(Counter::RetransFail);
    assert!((6..=7).contains(&dropped), "{dropped}");
    peer.wire.verdict = Verdict::Queued;
    peer.advance_ms(500);
    assert_eq!(peer.sent(), [(0, 1000)]);
    assert_eq!(peer.info().backoff, 1);
}

/// How long a connection lasts whose qdisc drops all that it sends from now on, in seconds.
fn lasts_behind_a_qdisc_that_drops_all(mut peer: Peer) -> Option<u64> {
    peer.wire.verdict = Verdict::Dropped;
    peer.write(1000);
    (1..10_000).find(|_| {
        peer.advance_ms(1000);
        peer.connection.state() == State::Closed
    })
}

#[test]
fn a_qdisc_that_drops_every_retransmission_ends_the_connection_as_a_silent_peer_does() {
    let mut peer = Peer::established(Config::default(), SocketOptions::default(), Hello::default());
    peer.write(1000);
    peer.take();
    // The time of 15 timeouts that double from 200 ms to 120 s.
    let time = lasts_behind_a_qdisc_that_drops_all(peer).expect("closed");
    assert!((924..=1045).contains(&time), "{time}");
}

#[test]
fn a_qdisc_that_drops_everything_new_ends_the_connection() {
    let peer = Peer::established(Config::default(), SocketOptions::default(), Hello::default());
    // `tcp_retries2` probes without an answer, one every 500 ms.
    let time = lasts_behind_a_qdisc_that_drops_all(peer).expect("closed");
    assert!((7..=9).contains(&time), "{time}");
}

#[test]
fn a_keepalive_that_the_qdisc_drops_counts_for_nothing_and_is_tried_again() {
    let options = SocketOptions {
        keepalive: true,
        keepalive_idle: Some(Nanos::from_secs(10)),
        keepalive_interval: Some(Nanos::from_secs(5)),
        keepalive_count: Some(2),
        ..SocketOptions::default()
    };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    peer.wire.verdict = Verdict::Dropped;
    peer.advance_ms(60_000);
    assert_eq!((peer.connection.state(), peer.info().probes), (State::Established, 0));
    peer.wire.verdict = Verdict::Queued;
    peer.advance_ms(500);
    assert_eq!((peer.take().len(), peer.info().probes), (1, 1));
}

#[test]
fn a_syn_that_the_qdisc_drops_when_it_is_sent_again_is_tried_again_without_back_off() {
    let config = Config { tcp_syn_linear_timeouts: 0, tcp_syn_retries: 20, ..Config::default() };
    let mut peer = Peer::opening(config, SocketOptions::default(), Hello::default());
    peer.transmit();
    assert_eq!(peer.take().len(), 1);
    peer.wire.verdict = Verdict::Dropped;
    // At one second, and each half after it.
    peer.advance_ms(3100);
    peer.wire.verdict = Verdict::Queued;
    peer.advance_ms(500);
    assert_eq!(peer.take().len(), 1, "after 3.5 s");
    peer.advance_ms(1800);
    assert_eq!(peer.take().len(), 0);
    peer.advance_ms(200);
    assert_eq!(peer.take().len(), 1, "two seconds later");
}

#[test]
fn what_is_beyond_a_window_that_was_taken_back_is_not_sent_again() {
    let mut peer = Peer::plain();
    peer.write(10_000);
    peer.take();
    peer.window = 2500;
    peer.advance_ms(10);
    peer.ack(0);
    peer.advance_ms(20_000);
    let again = peer.sent();
    assert!(!again.is_empty() && again.iter().all(|&(seq, len)| seq + len as i32 <= 2000));
}

#[test]
fn the_time_of_a_closed_window_does_not_count_for_what_is_sent_afterwards() {
    let user_timeout = Some(Nanos::from_secs(10));
    let mut peer = closed_window(SocketOptions { user_timeout, ..SocketOptions::default() });
    peer.advance_ms(9_000);
    peer.take();
    peer.window = 64_000;
    peer.ack(1000);
    assert_eq!(peer.sent_bytes(), 5000);
    peer.advance_ms(8_000);
    assert_eq!(peer.connection.state(), State::Established);
    peer.advance_ms(4_000);
    assert_eq!(peer.connection.state(), State::Closed);
}

#[test]
fn the_time_of_the_open_does_not_count_for_what_is_sent_afterwards() {
    let user_timeout = Some(Nanos::from_secs(10));
    let options = SocketOptions { user_timeout, ..SocketOptions::default() };
    let mut peer = Peer::opening(Config::default(), options, Hello::default());
    peer.transmit();
    peer.advance_ms(1100);
    let synack = peer.syn(Flags::SYN | Flags::ACK);
    peer.inject(synack);
    peer.advance_ms(8_000);
    peer.write(100);
    peer.advance_ms(8_000);
    assert_eq!(peer.connection.state(), State::Established);
    peer.advance_ms(10_000);
    assert_eq!(peer.connection.state(), State::Closed);
}

#[test]
fn tcp_retries2_bounds_the_timeouts() {
    let config = Config { tcp_retries2: 3, ..Config::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), Hello::default());
    peer.write(100);
    peer.advance_ms(10_000);
    assert_eq!(peer.connection.state(), State::Closed);
}

#[test]
fn keepalive_probes_an_idle_peer_and_gives_up() {
    let mut peer = Peer::plain();
    let start = peer.now;
    peer.set(SocketOption::KeepAlive(true));
    peer.set(SocketOption::KeepAliveIdle(Nanos::from_secs(10)));
    peer.set(SocketOption::KeepAliveInterval(Nanos::from_secs(2)));
    peer.set(SocketOption::KeepAliveCount(3));
    peer.advance_ms(10_000);
    let probe = peer.one();
    assert_eq!((probe.seq(), probe.len(), probe.at.since(start).as_millis()), (-1, 0, 10_000));
    peer.ack(0);
    // An answer begins the idle time anew.
    peer.advance_ms(9_999);
    peer.nothing();
    peer.advance_ms(1);
    peer.one();
    peer.advance_ms(4000);
    assert_eq!(peer.take().len(), 2);
    peer.advance_ms(2000);
    assert_eq!(peer.connection.state(), State::Closed);
    assert!(peer.one().has(Flags::RST));
    assert_eq!(peer.connection.take_error(), Some(ConnectionError::TimedOut));
}

#[test]
fn keepalive_leaves_a_busy_connection_alone() {
    let mut peer = Peer::plain();
    peer.set(SocketOption::KeepAlive(true));
    peer.set(SocketOption::KeepAliveIdle(Nanos::from_secs(1)));
    for i in 1..10 {
        peer.write(10);
        peer.advance_ms(900);
        peer.ack(i * 10);
    }
    assert!(peer.take().iter().all(|out| out.seq() >= 0));
    assert_eq!(peer.count(Counter::KeepAlive), 0);
    peer.set(SocketOption::KeepAlive(false));
    peer.advance_ms(100_000);
    peer.nothing();
}

#[test]
fn keepalive_times_of_nothing_are_a_tick() {
    let options = SocketOptions {
        keepalive: true,
        keepalive_idle: Some(Nanos::ZERO),
        keepalive_interval: Some(Nanos::ZERO),
        keepalive_count: Some(100),
        ..SocketOptions::default()
    };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    peer.write(10);
    peer.advance_ms(5);
    assert_eq!(peer.take().len(), 1, "data in flight takes the place of probes");
    peer.ack(10);
    peer.advance_ms(5);
    assert!((3..=6).contains(&peer.take().len()), "a probe per millisecond");
    assert_eq!(peer.connection.state(), State::Established);
}

#[test]
fn keepalive_options_have_bounds() {
    let mut peer = Peer::plain();
    let mut set = |option| peer.connection.set_option(peer.now, option);
    let range = |name| Err(OptionError::Range(name));
    assert_eq!(set(SocketOption::KeepAliveCount(0)), range("TCP_KEEPCNT"));
    assert_eq!(set(SocketOption::KeepAliveCount(128)), range("TCP_KEEPCNT"));
    assert_eq!(set(SocketOption::KeepAliveIdle(Nanos::ZERO)), range("TCP_KEEPIDLE"));
    assert_eq!(
        set(SocketOption::KeepAliveInterval(Nanos::from_secs(32768))),
        range("TCP_KEEPINTVL")
    );
    assert_eq!(set(SocketOption::MaxSegment(87)), range("TCP_MAXSEG"));
}

#[test]
fn options_that_are_set_as_a_whole_have_the_same_bounds() {
    let sound = SocketOptions::default();
    assert_eq!(sound.check(), Ok(()));
    let none = Some(Nanos::ZERO);
    for (options, name) in [
        (SocketOptions { keepalive_idle: none, ..sound.clone() }, "TCP_KEEPIDLE"),
        (SocketOptions { keepalive_interval: none, ..sound.clone() }, "TCP_KEEPINTVL"),
        (SocketOptions { keepalive_count: Some(0), ..sound.clone() }, "TCP_KEEPCNT"),
        (SocketOptions { max_segment: Some(87), ..sound.clone() }, "TCP_MAXSEG"),
        (SocketOptions { priority: 16, ..sound }, "SO_PRIORITY"),
    ] {
        assert_eq!(options.check(), Err(OptionError::Range(name)));
    }
}

#[test]
fn a_fin_behind_a_closed_window_waits_until_it_opens() {
    let mut peer = Peer::established(Config::default(), SocketOptions::default(), Hello::default());
    peer.write(1000);
    peer.advance_ms(10);
    peer.window = 0;
    peer.ack(1000);
    peer.take();
    peer.connection.shutdown_write();
    peer.transmit();
    peer.nothing();
    peer.advance_ms(250);
    let probe = peer.one();
    assert_eq!((probe.seq(), probe.len(), probe.segment.flags), (999, 0, Flags::ACK));
    peer.advance_ms(20_000);
    peer.take();
    peer.window = 64_000;
    peer.ack(1000);
    assert!(peer.one().has(Flags::FIN));
}

#[test]
fn a_tail_probe_waits_no_longer_than_the_longest_timeout() {
    const LONGEST: u64 = 1000;
    let config = Config { tcp_rto_max_ms: LONGEST as u32, ..Config::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), Hello::default());
    let mut acked = 0;
    let mut exchange = |peer: &mut Peer, rtt| {
        peer.write(1000);
        peer.advance_ms(rtt);
        acked += 1000;
        peer.ack(acked);
    };
    (100..700).step_by(2).for_each(|rtt| exchange(&mut peer, rtt));
    assert_eq!(peer.info().total_retrans, 0);
    peer.take();
    peer.write(2000);
    peer.advance_ms(700);
    peer.ack(acked + 1000);
    // The timeout of what is left would be over, if the ACK had not set the timer anew.
    peer.advance_ms(220);
    peer.write(1000);
    assert_eq!((peer.take().len(), peer.info().total_retrans), (2, 0));
    assert!(peer.info().rtt.saturating_mul(2) > Nanos::from_millis(LONGEST + 100));
    peer.advance_ms(LONGEST + 1);
    assert_eq!(peer.take().len(), 1, "a probe or a timeout");
}
