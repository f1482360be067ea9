//! What is not acceptable: RFC 5961, RFC 7323 section 5, RFC 9293 section 3.10.7.4.

use crate::peer::{Hello, IRS, ISS, Peer, at, pattern};
use bytes::Bytes;
use neap_tcp::config::Config;
use neap_tcp::counters::Counter;
use neap_tcp::options::SocketOptions;
use neap_tcp::segment::{Flags, Payload, Timestamps};
use neap_tcp::state::State;
use neap_tcp::time::Nanos;

fn with_timestamps() -> Peer {
    let hello = Hello { timestamps: true, ..Hello::default() };
    Peer::established(Config::default(), SocketOptions::default(), hello)
}

#[test]
fn a_reset_counts_only_at_exactly_the_next_number() {
    let mut peer = Peer::plain();
    peer.data(100);
    peer.take();
    for seq in [1, 101, 99, 5000] {
        let reset = peer.segment(seq, Flags::RST);
        peer.inject(reset);
        assert_eq!(peer.connection.state(), State::Established, "{seq}");
    }
    // Two were in the window (and one of them was within the rate limit).
    let challenge = peer.one();
    assert_eq!((challenge.segment.flags, challenge.ack()), (Flags::ACK, 100));
    assert_eq!(peer.count(Counter::ChallengeACK), 1);
    let reset = peer.segment(100, Flags::RST);
    peer.inject(reset);
    assert_eq!(peer.connection.state(), State::Closed);
    peer.nothing();
}

#[test]
fn a_reset_outside_the_window_is_dropped_in_silence() {
    let mut peer = Peer::plain();
    for seq in [-1, -100_000, 500_000, i32::MAX, i32::MIN] {
        let reset = peer.segment(seq, Flags::RST | Flags::ACK);
        peer.inject(reset);
    }
    peer.nothing();
    assert_eq!(peer.connection.state(), State::Established);
    assert_eq!(peer.count(Counter::OutOfWindow), 5);
}

#[test]
fn a_reset_at_the_number_of_the_fin_counts_too() {
    // Some stacks reset at the number before their FIN (Linux's `tcp_reset_check`).
    let mut peer = Peer::plain();
    let fin = peer.segment(0, Flags::ACK | Flags::FIN);
    peer.inject(fin);
    assert_eq!(peer.one().ack(), 1);
    let reset = peer.segment(0, Flags::RST);
    peer.inject(reset);
    assert_eq!(peer.connection.state(), State::Closed);
}

#[test]
fn a_syn_never_resets() {
    let mut peer = Peer::plain();
    for seq in [0, 100, -5000, 700_000] {
        peer.advance_ms(600);
        let mut syn = peer.syn(Flags::SYN);
        syn.seq = at(seq, IRS);
        peer.inject(syn);
        let challenge = peer.one();
        assert_eq!((challenge.segment.flags, challenge.ack()), (Flags::ACK, 0), "{seq}");
    }
    assert_eq!(peer.connection.state(), State::Established);
    assert_eq!(peer.count(Counter::SYNChallenge), 4);
}

#[test]
fn blind_data_with_a_bad_ack_is_not_taken() {
    let mut peer = Peer::plain();
    peer.write(100);
    peer.take();
    let mut future = peer.data_at(0, 10);
    future.ack = at(101, ISS);
    peer.inject(future);
    assert_eq!(peer.one().segment.flags, Flags::ACK);
    peer.now += Nanos::from_millis(500);
    let mut old = peer.data_at(0, 10);
    old.ack = at(-100_000, ISS);
    peer.inject(old);
    assert_eq!(peer.one().segment.flags, Flags::ACK);
    assert_eq!(peer.count(Counter::ChallengeACK), 2);
    let mut without = peer.data_at(0, 10);
    without.flags = Flags::PSH;
    peer.inject(without);
    peer.nothing();
    assert_eq!(peer.connection.unread(), 0);
    assert_eq!(peer.info().bytes_received, 0);
}

#[test]
fn segments_outside_the_window_are_answered_and_dropped() {
    let mut peer = Peer::plain();
    peer.data(1000);
    peer.take();
    let window = peer.info().rcv_wnd as i32;
    let beyond = peer.data_at(1000 + window + 1, 10);
    peer.inject(beyond);
    let ack = peer.one();
    assert_eq!((ack.ack(), ack.sacks()), (1000, vec![]));
    let old = peer.data_at(0, 1000);
    peer.inject(old);
    let ack = peer.one();
    assert_eq!((ack.ack(), ack.sacks()), (1000, vec![(0, 1000)]), "reported as a duplicate");
    // Old segments without data are answered once per half second.
    for _ in 0..10 {
        let probe = peer.segment(-500, Flags::ACK);
        peer.inject(probe);
    }
    assert_eq!(peer.take().len(), 1);
    assert_eq!(peer.info().bytes_received, 1000);
}

#[test]
fn data_is_cut_at_the_window() {
    let mut peer = Peer::plain();
    let window = peer.info().rcv_wnd as usize;
    let mut segment = peer.segment(0, Flags::ACK | Flags::FIN);
    segment.payload = Payload::from(Bytes::from(pattern(0, window + 5000)));
    peer.inject(segment);
    assert_eq!(peer.connection.unread() as usize, window);
    assert_eq!(peer.connection.state(), State::Established, "its FIN was outside");
    assert_eq!(peer.read(), pattern(0, window));
}

#[test]
fn of_overlapping_segments_the_first_bytes_count() {
    let mut peer = Peer::plain();
    let paint = |peer: &Peer, seq: i32, len: usize, byte: u8| {
        let mut segment = peer.segment(seq, Flags::ACK);
        segment.payload = Payload::from(Bytes::from(vec![byte; len]));
        segment
    };
    for (seq, len, byte) in [(100, 100, 1), (300, 100, 2), (50, 400, 3), (0, 500, 4), (0, 600, 5)] {
        let segment = paint(&peer, seq, len, byte);
        peer.inject(segment);
    }
    let read = peer.read();
    // What is in order replaces nothing that is acknowledged or was SACKed.
    let want: [(usize, u8); 7] = [(50, 4), (50, 3), (100, 1), (100, 3), (100, 2), (50, 3), (50, 4)];
    let mut expected: Vec<u8> = want.iter().flat_map(|&(n, byte)| vec![byte; n]).collect();
    expected.extend(vec![5; 100]);
    assert_eq!(read, expected);
}

#[test]
fn paws_refuses_old_segments_and_answers() {
    let mut peer = with_timestamps();
    peer.advance_ms(100);
    peer.data(100);
    peer.take();
    let mut old = peer.data_at(100, 100);
    old.options.timestamps.as_mut().expect("on").value -= 1000;
    peer.inject(old);
    assert_eq!(peer.one().ack(), 100);
    assert_eq!(peer.connection.unread(), 100);
    assert_eq!(peer.count(Counter::PAWSEstab), 1);
    // One tick of disorder is tolerated, and a reset does not need a timestamp.
    let mut slightly = peer.data_at(100, 100);
    slightly.options.timestamps.as_mut().expect("on").value -= 1;
    peer.inject(slightly);
    assert_eq!(peer.connection.unread(), 200);
    let mut reset = peer.segment(200, Flags::RST);
    reset.options.timestamps.as_mut().expect("on").value -= 1000;
    peer.inject(reset);
    assert_eq!(peer.connection.state(), State::Closed);
}

#[test]
fn paws_tolerates_a_reordered_ack_only_if_it_says_nothing_new() {
    let mut peer = with_timestamps();
    peer.write(5000);
    peer.advance_ms(100);
    peer.ack(0);
    peer.take();
    let lagging = |peer: &Peer, ms: u32| {
        let mut segment = peer.segment(peer.next, Flags::ACK);
        segment.options.timestamps.as_mut().expect("on").value -= ms;
        segment
    };
    // A duplicate ACK within 1.2 RTO.
    let duplicate = lagging(&peer, 50);
    peer.inject(duplicate);
    assert_eq!(peer.count(Counter::PAWSEstab), 0);
    // One that acknowledges, or that moves the window, is refused.
    let mut acks = lagging(&peer, 50);
    acks.ack = at(1000, ISS);
    peer.inject(acks);
    assert_eq!((peer.count(Counter::PAWSEstab), peer.info().bytes_acked), (1, 1));
    let mut opens = lagging(&peer, 50);
    opens.window += 1;
    peer.inject(opens);
    assert_eq!((peer.count(Counter::PAWSEstab), peer.info().snd_wnd), (2, 64_000));
    let stale = lagging(&peer, 1000);
    peer.inject(stale);
    assert_eq!(peer.count(Counter::PAWSEstab), 3);
}

#[test]
fn an_old_ack_is_no_duplicate() {
    let hello = Hello { sack: false, ..Hello::default() };
    let mut peer = Peer::established(Config::default(), SocketOptions::default(), hello);
    peer.write(10_000);
    peer.advance_ms(10);
    peer.ack(4000);
    peer.take();
    for _ in 0..10 {
        // Reordered by the network.
        peer.ack(2000);
    }
    assert_eq!(peer.count(Counter::RenoRecovery), 0);
    assert_eq!(peer.info().snd_cwnd, 14);
    assert_eq!(peer.info().sacked, 0);
}

#[test]
fn a_flood_of_duplicate_acks_counts_as_no_more_than_was_sent() {
    let hello = Hello { sack: false, ..Hello::default() };
    let mut peer = Peer::established(Config::default(), SocketOptions::default(), hello);
    peer.write(30_000);
    peer.advance_ms(10);
    for _ in 0..1000 {
        peer.ack(0);
    }
    let info = peer.info();
    assert!(info.delivered <= u64::from(info.unacked), "{} of {}", info.delivered, info.unacked);
    assert!(info.unacked <= 30, "{}", info.unacked);
}

#[test]
fn a_window_that_shrinks_is_obeyed_and_survived() {
    let mut peer = Peer::plain();
    peer.write(20_000);
    assert_eq!(peer.sent_bytes(), 10_000);
    peer.window = 4096;
    peer.advance_ms(10);
    peer.ack(2000);
    // 8000 are out, and the window covers 4096 of them.
    peer.nothing();
    assert_eq!(peer.info().snd_wnd, 4096);
    // What is beyond the window is still what is repeated; nothing new goes.
    peer.advance_ms(2000);
    assert!(peer.sent().iter().all(|&(seq, len)| seq + len as i32 <= 10_000));
    peer.window = 64_000;
    peer.ack(10_000);
    assert!(peer.sent().contains(&(10_000, 1000)) || peer.info().unacked_bytes > 0);
    assert_eq!(peer.connection.state(), State::Established);
}

#[test]
fn one_byte_segments_out_of_order_are_bounded_in_memory() {
    let mut peer = Peer::plain();
    let limit = peer.info().rcvbuf;
    let window = peer.info().rcv_wnd as i32;
    for i in 0..100_000 {
        let seq = 1 + (i * 7919) % window.max(1) / 2 * 2;
        let segment = peer.data_at(seq, 1);
        peer.inject(segment);
        if i % 100 == 0 {
            peer.advance_ms(1);
            let acks = peer.take();
            assert!(acks.len() <= 110, "an ACK for each segment at the most");
        }
    }
    assert!(peer.info().rcvbuf <= limit.max(6 << 20));
    assert!(peer.count(Counter::OFODrop) + peer.count(Counter::OfoPruned) > 0);
    // The stream is still taken.
    let all = peer.data_at(0, window as usize / 2);
    peer.inject(all);
    assert!(peer.read().len() >= window as usize / 2);
}

#[test]
fn tiny_sack_blocks_are_bounded_in_memory_and_work() {
    let hello = Hello { mss: Some(48), window: 7_000_000, ..Hello::default() };
    let options = SocketOptions { send_buffer: Some(300_000), ..SocketOptions::default() };
    let mut peer = Peer::established(Config::default(), options, hello);
    peer.wire.completes = true;
    let mut upto = 0;
    while peer.info().snd_cwnd < 6000 {
        while peer.try_write(100_000) > 0 {}
        peer.transmit();
        peer.advance(Nanos::from_micros(200));
        for (seq, len) in peer.sent() {
            upto = seq + len as i32;
            peer.ack(upto);
        }
    }
    while peer.try_write(100_000) > 0 {}
    peer.transmit();
    let end = peer.end();
    assert!(end - upto > 100_000);
    peer.take();
    let sndbuf = peer.info().sndbuf;
    peer.advance(Nanos::from_micros(200));
    let mut left = upto + 48;
    while left < end {
        let blocks: Vec<_> = (0..4).map(|i| (left + i * 96, left + i * 96 + 48)).collect();
        peer.ack_sack(upto, &blocks);
        left += 4 * 96;
        peer.take();
    }
    let memory = peer.info().wmem_queued;
    assert!(memory <= 2 * (sndbuf + 2 * 66_560) + 66_560, "{memory} of {sndbuf}");
    assert!(peer.count(Counter::WqueueTooBig) > 0);
    assert_eq!(peer.connection.state(), State::Established);
}

#[test]
fn a_sack_block_that_begins_at_una_is_counted_and_dropped() {
    let mut peer = Peer::plain();
    peer.write(10_000);
    peer.advance_ms(10);
    peer.ack(1000);
    peer.ack_sack(1000, &[(1000, 2000)]);
    assert_eq!((peer.count(Counter::SACKDiscard), peer.info().sacked), (1, 0));
    peer.ack_sack(1000, &[(2000, 3000)]);
    assert_eq!((peer.count(Counter::SACKDiscard), peer.info().sacked), (1, 1));
}

#[test]
fn senseless_sack_blocks_are_counted_and_dropped() {
    let mut peer = Peer::plain();
    peer.write(10_000);
    peer.advance_ms(10);
    for blocks in [[(5000, 4000)], [(9000, 20_000)], [(3000, 3000)], [(20_000, 21_000)]] {
        peer.ack_sack(0, &blocks);
    }
    assert_eq!(peer.count(Counter::SACKDiscard), 4);
    assert_eq!(peer.info().sacked, 0);
    assert_eq!(peer.info().lost, 0);
}

#[test]
fn a_peer_that_acknowledges_byte_by_byte_gains_no_window() {
    let mut peer = Peer::plain();
    peer.write(10_000);
    peer.advance_ms(10);
    for upto in 1..=10_000 {
        peer.ack(upto);
    }
    // As many segments as were acknowledged, not as many as ACKs (RFC 3465).
    assert!(peer.info().snd_cwnd <= 20, "{}", peer.info().snd_cwnd);
}

#[test]
fn timestamps_that_were_not_agreed_are_ignored() {
    let mut peer = Peer::plain();
    peer.write(100);
    let mut ack = peer.segment(0, Flags::ACK);
    ack.ack = at(100, ISS);
    ack.options.timestamps = Some(Timestamps { value: 0, echo: u32::MAX / 2 });
    peer.advance_ms(10);
    peer.inject(ack);
    assert_eq!(peer.info().rtt, Nanos::from_millis(10));
    assert_eq!(peer.info().bytes_acked, 101);
}

#[test]
fn a_reset_at_the_end_of_the_highest_sack_block_is_challenged() {
    let mut peer = Peer::plain();
    let beyond = peer.data_at(1000, 500);
    peer.inject(beyond);
    assert_eq!(peer.one().sacks(), [(1000, 1500)]);
    let reset = peer.segment(1500, Flags::RST);
    peer.inject(reset);
    assert_eq!(peer.connection.state(), State::Established);
    assert_eq!(peer.count(Counter::ChallengeACK), 1);
    // A peer that meant it answers the challenge with a reset at the next number.
    assert_eq!(peer.one().ack(), 0);
    let reset = peer.segment(0, Flags::RST);
    peer.inject(reset);
    assert_eq!(peer.connection.state(), State::Closed);
}
