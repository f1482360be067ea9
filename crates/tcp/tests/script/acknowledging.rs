//! When ACKs leave and what they say: RFC 9293 section 3.8.6.3, RFC 2018, RFC 2883, RFC 3168.

use crate::peer::{Hello, Peer};
use neap_tcp::config::Config;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::segment::{Ecn, Flags};
use neap_tcp::time::Nanos;

fn ecn() -> Peer {
    let config = Config { tcp_ecn: 1, ..Config::default() };
    let hello = Hello { ecn: true, ..Hello::default() };
    Peer::established(config, SocketOptions::default(), hello)
}

/// A connection whose quick ACKs are used up.
fn settled() -> Peer {
    let mut peer = Peer::plain();
    let mut acked_before = true;
    for _ in 0..200 {
        peer.data(1000);
        peer.advance(Nanos::from_micros(100));
        let acks = !peer.take().is_empty();
        peer.read();
        peer.transmit();
        peer.take();
        if acks && !acked_before {
            break;
        }
        acked_before = acks;
    }
    peer
}

#[test]
fn the_first_acks_are_quick() {
    let mut peer = Peer::plain();
    let mut immediate = 0;
    for _ in 0..40 {
        peer.data(1000);
        peer.advance(Nanos::from_micros(100));
        let acks = peer.take().len();
        peer.read();
        peer.take();
        if acks == 0 {
            break;
        }
        immediate += 1;
    }
    // Sixteen, of which the SYN-ACK took one; while the window grows they are not used up.
    assert!((15..40).contains(&immediate), "{immediate}");
}

#[test]
fn later_every_second_segment_is_acknowledged() {
    let mut peer = settled();
    let mut acks = Vec::new();
    for i in 1..=20 {
        peer.data(1000);
        peer.advance(Nanos::from_micros(100));
        // An application that reads slowly delays them (`tcp_recvmsg` sends them then).
        peer.read();
        peer.transmit();
        acks.extend(peer.take().iter().map(|_| i));
    }
    assert_eq!(acks, (1..=10).map(|i| 2 * i).collect::<Vec<_>>());
}

#[test]
fn a_single_segment_is_acknowledged_after_the_delay() {
    let mut peer = settled();
    let start = peer.now;
    peer.data(1000);
    peer.nothing();
    peer.advance_ms(200);
    let ack = peer.one();
    let after = ack.at.since(start).as_millis();
    assert!((40..=200).contains(&after), "{after} ms");
}

#[test]
fn an_ack_rides_on_data() {
    let mut peer = settled();
    peer.data(100);
    peer.nothing();
    peer.write(50);
    let out = peer.one();
    assert_eq!((out.len(), out.ack()), (50, peer.next));
    peer.advance_ms(100);
    peer.nothing();
}

#[test]
fn quickack_acknowledges_what_was_read() {
    let mut peer = settled();
    peer.set(SocketOption::QuickAck(0));
    assert!(!peer.info().quickack);
    peer.data(100);
    peer.set(SocketOption::QuickAck(1));
    peer.nothing();
    peer.set(SocketOption::QuickAck(0));
    peer.read();
    peer.nothing();
    peer.set(SocketOption::QuickAck(1));
    assert_eq!(peer.one().ack(), peer.next);
    assert!(peer.info().quickack);
}

#[test]
fn out_of_order_data_is_acknowledged_at_once_and_named() {
    let mut peer = settled();
    let base = peer.next;
    let relative = |(left, right): (i32, i32)| (left - base, right - base);
    let mut seen = Vec::new();
    for seq in [2000, 4000, 6000] {
        let segment = peer.data_at(base + seq, 1000);
        peer.inject(segment);
        let ack = peer.one();
        assert_eq!(ack.ack(), base);
        seen = ack.sacks().into_iter().map(relative).collect();
    }
    assert_eq!(seen, [(6000, 7000), (4000, 5000), (2000, 3000)]);
    // The hole is filled in part: at once again.
    let segment = peer.data_at(base, 2000);
    peer.inject(segment);
    let ack = peer.one();
    assert_eq!(ack.ack() - base, 3000);
    assert_eq!(ack.sacks().len(), 2);
    let rest = peer.data_at(base + 3000, 4000);
    peer.inject(rest);
    let ack = peer.one();
    let named: Vec<_> = ack.sacks().into_iter().map(relative).collect();
    assert_eq!((ack.ack() - base, named), (7000, vec![(4000, 5000)]), "what came twice");
}

#[test]
fn as_many_ranges_as_are_remembered_are_named_in_one_visit() {
    // Three in an ACK, beside the timestamps.
    let hello = Hello { timestamps: true, ..Hello::default() };
    let mut peer = Peer::established(Config::default(), SocketOptions::default(), hello);
    let base = peer.next;
    let lefts: Vec<_> = (1..=64).map(|nth| base + 400 * nth).collect();
    for &left in &lefts {
        let segment = peer.data_at(left, 200);
        peer.connection.on_segment(peer.now, segment);
    }
    peer.transmit();
    let acks = peer.take();
    let named = |left| acks.iter().any(|ack| ack.sacks().contains(&(left, left + 200)));
    let forgotten: Vec<_> = lefts.iter().filter(|&&left| !named(left)).collect();
    assert!(forgotten.is_empty(), "no ACK names {forgotten:?}");
}

#[test]
fn duplicates_are_named_once_each() {
    let mut peer = settled();
    let base = peer.next;
    peer.data(1000);
    peer.data(1000);
    peer.take();
    for (seq, len) in [(-2000, 1000), (0, 500)] {
        let segment = peer.data_at(base + seq, len);
        peer.inject(segment);
        let ack = peer.one();
        assert_eq!(ack.sacks(), [(base + seq, base + seq + len as i32)]);
    }
    peer.data(1000);
    peer.advance_ms(300);
    assert!(peer.take().iter().all(|out| out.sacks().is_empty()));
}

#[test]
fn ece_from_ce_until_cwr() {
    let mut peer = ecn();
    peer.data_with(1000, Ecn::Ect0, Flags::empty());
    assert!(!peer.one().has(Flags::ECE));
    peer.data_with(1000, Ecn::Ce, Flags::empty());
    assert!(peer.one().has(Flags::ECE));
    for _ in 0..3 {
        peer.data_with(1000, Ecn::Ect0, Flags::empty());
        peer.advance_ms(300);
        assert!(peer.take().iter().all(|out| out.has(Flags::ECE)));
    }
    peer.write(10);
    assert!(peer.one().has(Flags::ECE), "on data too");
    peer.data_with(1000, Ecn::Ect0, Flags::CWR);
    assert!(!peer.one().has(Flags::ECE));
}

#[test]
fn without_negotiation_ecn_marks_mean_nothing() {
    let mut peer = Peer::plain();
    peer.data_with(1000, Ecn::Ce, Flags::empty());
    assert!(!peer.one().has(Flags::ECE));
    peer.write(10_000);
    assert!(peer.take().iter().all(|out| out.segment.ecn == Ecn::NotEct));
    let mut ack = peer.segment(peer.next, Flags::ACK | Flags::ECE);
    ack.ack = crate::peer::at(10_000, crate::peer::ISS);
    peer.advance_ms(10);
    peer.inject(ack);
    assert_eq!(peer.info().snd_cwnd, 20, "slow start");
}

#[test]
fn a_read_that_opens_a_closed_window_is_told() {
    let mut peer = Peer::plain();
    loop {
        let window = peer.info().rcv_wnd;
        if window < 1000 {
            break;
        }
        peer.data(1000);
        peer.advance_ms(1);
    }
    peer.advance_ms(300);
    peer.take();
    peer.read();
    peer.transmit();
    let update = peer.one();
    assert!(update.segment.window > 0 && update.len() == 0);
    // What did not fit the window is not acknowledged.
    assert_eq!(update.ack() as u64, peer.info().bytes_received);
}
