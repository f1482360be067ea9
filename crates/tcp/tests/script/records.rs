//! `MSG_EOR`, `MSG_MORE`, and large writes that leave while they are copied.

use crate::peer::{Hello, Peer};
use neap_tcp::config::Config;
use neap_tcp::connection::WriteFlags;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::segment::Flags;
use neap_tcp::transmit::TxBlocked;
use neap_tcp::transmit::egress::{GsoLimits, Verdict};

const EOR: WriteFlags = WriteFlags::EOR;
const MORE: WriteFlags = WriteFlags::MORE;

/// MSS 1000 and super-frames, nothing in flight.
fn sender() -> Peer {
    let config = Config { half_cwnd: false, tso_autosizing: false, ..Config::default() };
    let options = SocketOptions { send_buffer: Some(4 << 20), ..SocketOptions::default() };
    let hello = Hello { window: 257 << 7, ..Hello::default() };
    let mut peer = Peer::established(config, options, hello);
    peer.wire.gso = GsoLimits { max_size: 65_536, max_segs: 64 };
    peer.transmit();
    peer
}

#[test]
fn a_record_ends_its_frame() {
    // Linux's tcp_eor_no-coalesce-small: of what waits, 400 + 400 bytes leave together and the
    // next write does not join them.
    let mut peer = sender();
    assert_eq!(peer.connection.write(&[0; 10_400], WriteFlags::empty()), Ok(10_400));
    assert_eq!(peer.connection.write(&[0; 400], EOR), Ok(400));
    assert_eq!(peer.connection.write(&[0; 10_000], WriteFlags::empty()), Ok(10_000));
    peer.transmit();
    assert_eq!(peer.sent(), [(0, 10_000)]);
    peer.advance_ms(10);
    peer.ack(10_000);
    let out = peer.take();
    assert_eq!(
        out.iter().map(|out| (out.seq(), out.len())).collect::<Vec<_>>(),
        [(10_000, 800), (10_800, 10_000)]
    );
    assert!(out[0].has(Flags::PSH), "the receiver's GRO keeps the border, too");
}

#[test]
fn a_record_is_kept_when_it_is_refused_cut_and_sent_again() {
    let mut peer = sender();
    peer.wire.verdict = Verdict::Dropped;
    assert_eq!(peer.connection.write(&[0; 2500], EOR), Ok(2500));
    assert_eq!(peer.connection.write(&[0; 300], EOR), Ok(300));
    assert_eq!(peer.connection.write(&[0; 2000], WriteFlags::empty()), Ok(2000));
    peer.transmit();
    peer.wire.verdict = Verdict::Queued;
    peer.transmit();
    // Records that others follow are not held by Nagle, though they end in short segments.
    assert_eq!(peer.sent_bytes(), 4800);
    peer.advance_ms(1000);
    let mut again = peer.sent();
    for acked in [1000, 2500, 2800] {
        peer.advance_ms(1);
        peer.ack(acked);
        again.extend(peer.sent());
    }
    for border in [2500, 2800] {
        let crosses = |&(seq, len): &(i32, u32)| seq < border && seq + len as i32 > border;
        assert!(!again.iter().any(crosses), "{again:?}");
    }
    assert!(!again.is_empty());
}

#[test]
fn a_short_write_ends_no_record_and_each_record_costs_a_buffer() {
    let options = SocketOptions { send_buffer: Some(20_000), ..SocketOptions::default() };
    let mut peer = Peer::established(Config::default(), options, Hello::default());
    let mut taken = 0;
    while peer.connection.write(&[0; 10], EOR).is_ok() {
        taken += 1;
    }
    assert!(taken <= 20_000 / 896 + 1, "{taken} records of ten bytes");
    let mut peer = sender();
    peer.set(SocketOption::SendBuffer(4608));
    let took = peer.connection.write(&[0; 60_000], EOR);
    assert_eq!(took, Ok(16_000), "one buffer");
    peer.transmit();
    assert_eq!(peer.sent_bytes(), 10_000);
    peer.wire.verdict = Verdict::Dropped;
    peer.advance_ms(10);
    peer.ack(10_000);
    assert_eq!(peer.connection.write(&[0; 100], WriteFlags::empty()), Ok(100));
    peer.wire.verdict = Verdict::Queued;
    peer.transmit();
    assert_eq!(peer.sent().last(), Some(&(10_000, 6100)));
}

#[test]
fn a_final_record_waits_for_nagle_but_not_to_grow() {
    let mut peer = sender();
    peer.write_with(300, EOR);
    assert_eq!(peer.sent(), [(0, 300)]);
    assert_eq!(peer.write_with(300, EOR), TxBlocked::Nagle);
    peer.write_with(300, EOR);
    assert_eq!(peer.sent(), [(300, 300)], "Nagle holds only the last of the queue");
    peer.advance_ms(10);
    peer.ack(600);
    assert_eq!(peer.sent(), [(600, 300)]);
}

#[test]
fn what_said_that_more_follows_waits_for_it() {
    let mut peer = sender();
    peer.set(SocketOption::NoDelay(true));
    assert_eq!(peer.write_with(400, MORE), TxBlocked::Nagle);
    peer.transmit();
    peer.nothing();
    assert_eq!(peer.write_with(1700, MORE), TxBlocked::Nagle);
    let out = peer.one();
    assert_eq!((out.seq(), out.len()), (0, 2000), "whole segments leave");
    peer.write(50);
    let out = peer.one();
    assert_eq!((out.seq(), out.len()), (2000, 150), "the last write lets the rest go");
    assert!(out.has(Flags::PSH));
}

#[test]
fn an_ack_ends_the_wait_but_does_not_push() {
    let mut peer = sender();
    peer.set(SocketOption::NoDelay(true));
    peer.write(1000);
    peer.take();
    assert_eq!(peer.write_with(400, MORE), TxBlocked::Nagle);
    peer.advance_ms(10);
    peer.ack(1000);
    let out = peer.one();
    assert_eq!((out.seq(), out.len()), (1000, 400));
    assert!(!out.has(Flags::PSH), "nobody said that the data ends here");
}

#[test]
fn neither_an_empty_write_nor_data_that_acknowledges_nothing_new_ends_the_wait() {
    let mut peer = sender();
    peer.set(SocketOption::NoDelay(true));
    peer.write_with(400, MORE);
    assert_eq!(peer.connection.write(&[], WriteFlags::empty()), Ok(0));
    peer.transmit();
    peer.nothing();
    for _ in 0..2 {
        peer.data(100);
        assert!(peer.take().iter().all(|out| out.len() == 0), "the data alone is acknowledged");
    }
    // Data out of order asks for transmission, and so does a new ACK.
    let apart = peer.data_at(1000, 100);
    peer.inject(apart);
    assert_eq!(peer.sent_bytes(), 400);
    peer.write_with(400, MORE);
    peer.ack(400);
    assert_eq!(peer.sent(), [(400, 400)]);
}

#[test]
fn data_in_order_ends_the_wait_while_later_data_waits_for_other() {
    // With data out of order Linux predicts no header (`tcp_data_queue_ofo`), and the slow path
    // asks for transmission; so does the segment that brings what was missing.
    let mut peer = sender();
    peer.set(SocketOption::NoDelay(true));
    for start in [1000, 2000] {
        let apart = peer.data_at(start, 100);
        peer.inject(apart);
    }
    peer.take();
    for (start, len, left) in [(0, 500, 400), (500, 500, 400), (1100, 900, 400), (2100, 100, 0)] {
        peer.write_with(400, MORE);
        peer.nothing();
        peer.next = start;
        peer.data(len);
        assert_eq!(peer.sent_bytes(), left, "{len} bytes from {start}");
    }
}

#[test]
fn what_waits_alone_for_more_goes_with_the_probe_timer() {
    let mut peer = sender();
    peer.write_with(400, MORE);
    peer.nothing();
    peer.advance_ms(199);
    peer.nothing();
    peer.advance_ms(60);
    assert_eq!(peer.one().len(), 400);
}

#[test]
fn an_option_that_pushes_ends_the_wait() {
    for option in [SocketOption::NoDelay(true), SocketOption::Cork(false)] {
        let mut peer = sender();
        peer.write_with(400, MORE);
        peer.set(option.clone());
        peer.transmit();
        assert_eq!(peer.one().len(), 400, "{option:?}");
    }
}

#[test]
fn a_large_write_leaves_while_it_is_copied() {
    let mut peer = sender();
    // The goal of a buffer is half the peer's largest window.
    assert_eq!(peer.connection.size_goal(), 16_000);
    peer.window = 1 << 20;
    peer.ack(0);
    peer.take();
    let sent = peer.connection.send(peer.now, &[0; 200_000], WriteFlags::empty(), &mut peer.wire);
    assert_eq!(sent, Ok(200_000));
    assert_eq!(peer.wire.out.len(), 1, "the first window left before the caller transmits");
    assert_eq!(peer.sent(), [(0, 10_000)]);
}

#[test]
fn a_push_on_the_way_sends_whole_segments_only_and_marks_no_application_limit() {
    let mut peer = sender();
    peer.wire.completes = true;
    peer.window = 1 << 20;
    peer.ack(0);
    let mut acked = 0;
    for _ in 0..10 {
        peer.send(100_000, WriteFlags::empty());
        acked += 100_000;
        while peer.info().bytes_sent < acked as u64 {
            peer.advance_ms(10);
            peer.ack(peer.info().bytes_sent as i32);
        }
        peer.advance_ms(10);
        peer.ack(acked);
    }
    peer.take();
    // A short segment waits for its ACK, a second one behind it: then a large write.
    peer.write(100);
    peer.write(100);
    assert_eq!(peer.send(300_050, WriteFlags::empty()), 300_050);
    let lens: Vec<u32> = peer.take().iter().map(crate::peer::Out::len).collect();
    let short: Vec<&u32> = lens.iter().filter(|&&len| len % 1000 != 0).collect();
    assert_eq!(short.len(), 1, "the first; the end waits for its ACK: {lens:?}");
    assert!(lens.len() > 4, "{lens:?}");
}
