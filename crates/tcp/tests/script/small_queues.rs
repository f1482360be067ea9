//! TCP Small Queues: what is below TCP, and what resumes when it completes.

use crate::peer::{Hello, Peer};
use neap_tcp::config::Config;
use neap_tcp::counters::Counter;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::TxBlocked;
use neap_tcp::transmit::egress::{GsoLimits, Verdict};
use std::collections::VecDeque;

/// A flow that has a window of hundreds of segments and nothing in flight, over a device that
/// completes when it is told to.
fn wide(config: Config) -> Peer {
    let hello = Hello { window: 8_000_000, ..Hello::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), hello);
    let mut upto = 0;
    for _ in 0..7 {
        while peer.try_write(60_000) > 0 {}
        peer.transmit();
        peer.advance_ms(10);
        for (seq, len) in peer.sent() {
            upto = seq + len as i32;
            peer.ack(upto);
        }
    }
    while peer.info().unacked > 0 {
        upto = peer.sent().iter().map(|&(seq, len)| seq + len as i32).max().unwrap_or(upto);
        peer.advance_ms(10);
        peer.ack(upto);
    }
    assert_eq!(peer.info().notsent_bytes, 0);
    peer.take();
    peer.wire.completes = false;
    peer
}

#[test]
fn at_most_two_frames_or_a_time_of_the_rate_are_below() {
    let mut peer = wide(Config::default());
    while peer.try_write(60_000) > 0 {}
    assert_eq!(peer.transmit(), TxBlocked::SmallQueue);
    let frames: Vec<_> = peer.sent().iter().map(|&(_, len)| len).collect();
    let largest = u64::from(*frames.iter().max().expect("frames")) + 896;
    let queue = peer.info().pacing_rate.0 >> 10;
    let below = peer.account.bytes();
    assert!(below <= (2 * largest).max(queue) + largest, "{below} below, frames {frames:?}");
    assert!(frames.len() >= 2);
    assert_eq!(peer.count(Counter::SmallQueueThrottled), 1);
    // Nothing more goes, however often it is asked.
    assert_eq!(peer.transmit(), TxBlocked::SmallQueue);
    peer.nothing();
    // A completion wakes the socket, and no more leaves than was completed.
    let mut sent = Vec::new();
    for _ in 0..frames.len() {
        peer.complete(1);
        sent.extend(peer.take());
        assert!(peer.account.bytes() <= below);
    }
    assert!(!sent.is_empty());
}

#[test]
fn tcp_limit_output_bytes_caps_frames_and_queue() {
    let config = Config { tcp_limit_output_bytes: 40_000, ..Config::default() };
    let mut peer = wide(config);
    while peer.try_write(60_000) > 0 {}
    assert_eq!(peer.transmit(), TxBlocked::SmallQueue);
    let out = peer.sent();
    let largest = out.iter().map(|&(_, len)| u64::from(len)).max().expect("frames") + 896;
    assert!(peer.account.bytes() < 40_000 + largest, "{} {largest}", peer.account.bytes());
}

#[test]
fn with_small_queues_off_the_window_is_the_limit() {
    let mut peer = wide(Config { small_queues: false, ..Config::default() });
    while peer.try_write(60_000) > 0 {}
    assert_ne!(peer.transmit(), TxBlocked::SmallQueue);
    assert!(peer.account.bytes() > 200_000);
}

#[test]
fn a_device_that_completes_only_with_the_next_frame_does_not_stop_the_flow() {
    let mut peer = wide(Config::default());
    let start = peer.info().bytes_acked;
    let mut in_network: VecDeque<(Instant, i32)> = VecDeque::new();
    for _ in 0..3000 {
        while peer.try_write(60_000) > 0 {}
        peer.transmit();
        for out in peer.take() {
            in_network.push_back((out.at, out.seq() + out.len() as i32));
        }
        // Every frame but the last one handed down is complete.
        while peer.wire.credits.len() > 1 {
            peer.complete(1);
            for out in peer.take() {
                in_network.push_back((out.at, out.seq() + out.len() as i32));
            }
        }
        peer.advance(Nanos::from_micros(100));
        let mut upto = None;
        while in_network
            .front()
            .is_some_and(|&(at, _)| peer.now.since(at) >= Nanos::from_millis(10))
        {
            upto = in_network.pop_front().map(|(_, end)| end);
        }
        if let Some(upto) = upto {
            peer.ack(upto);
        }
    }
    assert_eq!(peer.count(Counter::Timeouts), 0);
    assert_eq!(peer.info().total_retrans, 0);
    let moved = peer.info().bytes_acked - start;
    assert!(moved > 3_000_000, "{moved} bytes in 300 ms");
}

#[test]
fn what_is_acknowledged_counts_as_below_no_longer_though_it_is_not_complete() {
    for adapts in [true, false] {
        let config = Config { late_completions: adapts, small_queue_spare: 0, ..Config::default() };
        let mut peer = wide(config);
        while peer.try_write(60_000) > 0 {}
        assert_eq!(peer.transmit(), TxBlocked::SmallQueue);
        let sent = peer.sent();
        let &(seq, len) = sent.last().expect("frames");
        peer.take();
        peer.advance_ms(1);
        peer.ack(seq + len as i32);
        assert_eq!(peer.transmit(), TxBlocked::SmallQueue);
        assert!(peer.account.bytes() > 0, "nothing is complete");
        assert_eq!(!peer.sent().is_empty(), adapts);
    }
}

/// One flow over a link of 100 Mbit/s and a round trip of 0.4 ms whose device reports completions
/// `late` after the wire took a frame. Returns the goodput in Mbit/s and the retransmissions.
fn over_100_mbit(late: Nanos) -> (u64, u32) {
    const NANOS_PER_BYTE: u64 = 80;
    let hello = Hello { mss: Some(1448), window: 4_000_000, ..Hello::default() };
    let mut peer = Peer::opening(Config::default(), SocketOptions::default(), hello);
    peer.transmit();
    peer.take();
    peer.advance(Nanos::from_micros(400));
    let synack = peer.syn(neap_tcp::segment::Flags::SYN | neap_tcp::segment::Flags::ACK);
    peer.inject(synack);
    peer.take();
    peer.wire.completes = false;
    let start = peer.now;
    let mut wire_free = peer.now;
    let mut completions: VecDeque<Instant> = VecDeque::new();
    let mut acks: VecDeque<(Instant, i32)> = VecDeque::new();
    // Long enough for the limit to have found its length.
    let end = start + Nanos::from_secs(2);
    while peer.now < end {
        while peer.try_write(60_000) > 0 {}
        peer.transmit();
        for out in peer.take().into_iter().filter(|out| out.len() > 0) {
            let bytes = out.segment.segments() * 90 + out.len();
            wire_free = wire_free.max(peer.now) + Nanos(u64::from(bytes) * NANOS_PER_BYTE);
            completions.push_back(wire_free + late);
            let upto = out.seq() + out.len() as i32;
            acks.push_back((wire_free + Nanos::from_micros(400), upto));
        }
        let due = [completions.front().copied(), acks.front().map(|ack| ack.0)];
        let next = due.into_iter().flatten().min().unwrap_or(end);
        let next = next.min(peer.connection.deadline()).min(end);
        peer.advance(next.since(peer.now));
        while completions.front().is_some_and(|&at| at <= peer.now) {
            completions.pop_front();
            peer.wire.credits.pop_front();
        }
        let mut upto = None;
        while acks.front().is_some_and(|&(at, _)| at <= peer.now) {
            upto = acks.pop_front().map(|(_, upto)| upto);
        }
        if let Some(upto) = upto {
            peer.acked = upto;
            let ack = peer.segment(0, neap_tcp::segment::Flags::ACK);
            peer.connection.on_segment(peer.now, ack);
        }
    }
    let bits = peer.info().bytes_acked * 8;
    (bits / 2_000_000, peer.info().total_retrans)
}

#[test]
fn one_flow_fills_100_mbit_although_completions_are_late() {
    for (late, least) in [(0, 93), (200, 93), (1000, 90)] {
        let (mbit, retransmitted) = over_100_mbit(Nanos::from_micros(late));
        assert!(mbit >= least, "{mbit} Mbit/s with completions {late} us late");
        assert_eq!(retransmitted, 0);
    }
}

#[test]
fn a_retransmission_waits_for_its_original_and_is_resumed_by_its_completion() {
    let mut peer = Peer::plain();
    peer.wire.completes = false;
    peer.write(10_000);
    assert_eq!(peer.take().len(), 2);
    peer.advance_ms(10);
    // The device holds the first frame; the other one arrived.
    let first = peer.wire.credits.pop_front().expect("two");
    peer.wire.credits.clear();
    peer.ack_sack(0, &[(2000, 4000)]);
    peer.advance_ms(5);
    assert!(peer.info().lost > 0);
    assert_eq!(peer.count(Counter::SpuriousRtxHostQueues), 1);
    assert!(peer.sent().iter().all(|&(seq, _)| seq >= 4000), "not the original");
    assert_eq!(peer.info().total_retrans, 0);
    peer.take_wake();
    let before = peer.now;
    drop(first);
    assert!(peer.take_wake(), "the completion of the original wakes");
    peer.transmit();
    let out = peer.take();
    let repeated = out.iter().find(|out| out.seq() == 0).expect("the lost frame");
    assert_eq!(repeated.at, before);
    assert_eq!(peer.count(Counter::Timeouts), 0);
}

/// What a qdisc drops returns its credit at once, so a mark that was left before would wake the
/// socket for the next try, which the qdisc drops as well.
#[test]
fn a_retransmission_that_the_qdisc_drops_does_not_wake_the_socket() {
    let config = Config { tcp_autocorking: false, ..Config::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), Hello::default());
    peer.set(SocketOption::NoDelay(true));
    peer.wire.completes = false;
    // The device holds the second message only. The last four arrive.
    let mut second = None;
    for message in 0..6 {
        peer.write(100);
        assert_eq!(peer.take().len(), 1);
        let credit = peer.wire.credits.pop_front();
        if message == 1 {
            second = credit;
        }
    }
    peer.advance_ms(10);
    peer.wire.verdict = Verdict::Dropped;
    peer.ack_sack(0, &[(200, 600)]);
    peer.advance_ms(5);
    assert!(peer.count(Counter::RetransFail) > 0);
    peer.take_wake();
    let before = peer.count(Counter::RetransFail);
    peer.transmit();
    assert!(peer.count(Counter::RetransFail) > before, "it is tried again");
    assert!(!peer.take_wake(), "nothing has changed");
    drop(second);
}

#[test]
fn t7_also_for_the_retransmission_of_a_timeout() {
    let mut peer = Peer::plain();
    peer.wire.completes = false;
    peer.write(2000);
    peer.take();
    peer.advance_ms(5000);
    assert!(peer.count(Counter::Timeouts) >= 1);
    assert!(peer.sent().is_empty(), "the original has not left this host");
    peer.take_wake();
    peer.wire.credits.clear();
    assert!(peer.take_wake());
    peer.transmit();
    assert_eq!(peer.sent().first().map(|sent| sent.0), Some(0));
}

#[test]
fn credits_return_to_zero_when_the_connection_dies() {
    let mut peer = wide(Config::default());
    while peer.try_write(60_000) > 0 {}
    peer.transmit();
    peer.connection.abort();
    peer.transmit();
    assert!(peer.account.bytes() > 0, "still below");
    peer.wire.credits.clear();
    assert_eq!(peer.account.bytes(), 0);
}

#[test]
fn frames_of_a_tiny_mss_do_not_multiply_the_send_buffer() {
    let options = SocketOptions { send_buffer: Some(100_000), ..SocketOptions::default() };
    let config = Config { tcp_min_tso_segs: 1, ..Config::default() };
    let hello = Hello { window: 8_000_000, mss: Some(48), ..Hello::default() };
    let mut peer = Peer::established(config, options, hello);
    peer.wire.gso = GsoLimits { max_size: 65_536, max_segs: 64 };
    let mut read = 0;
    let mut stopped = 0;
    let most = 2 * (100_000 + 2 * (65_536 + 896)) + 65_536;
    for round in 0..20 {
        while peer.try_write(60_000) > 0 {}
        stopped += u64::from(peer.transmit() == TxBlocked::Memory);
        assert!(peer.info().wmem_queued <= most, "{round}: {:?}", peer.info());
        read = peer.sent().iter().map(|&(seq, len)| seq + len as i32).max().unwrap_or(read);
        peer.advance_ms(300);
        peer.ack(read);
    }
    assert!(stopped > 0, "{:?}", peer.info());
    assert!(peer.count(Counter::WqueueTooBig) >= stopped);
    // ACKs alone move it on, and all arrives.
    while peer.info().unacked > 0 {
        peer.advance_ms(300);
        read = peer.sent().iter().map(|&(seq, len)| seq + len as i32).max().unwrap_or(read);
        peer.ack(read);
    }
    assert_eq!(peer.info().notsent_bytes, 0);
}
