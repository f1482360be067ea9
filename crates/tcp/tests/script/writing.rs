//! Room for writers: `TCP_NOTSENT_LOWAT`, the half rule, `SOCK_NOSPACE`, and the mark as time.

use crate::peer::{Hello, Peer};
use bytes::Bytes;
use neap_tcp::config::Config;
use neap_tcp::connection::{Readiness, WriteError, WriteFlags};
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::time::{Nanos, Rate};
use neap_tcp::transmit::egress::GsoLimits;

/// MSS 1000, ten segments at first, buffers of 16 segments: the setting of Linux's own scripts.
fn writer(lowat: u32, sndbuf: u32) -> Peer {
    let options = SocketOptions {
        notsent_lowat: lowat,
        send_buffer: Some(sndbuf),
        ..SocketOptions::default()
    };
    let hello = Hello { mss: Some(1000), window: 257 << 7, wscale: Some(7), ..Hello::default() };
    let mut peer = Peer::established(Config::default(), options, hello);
    peer.wire.gso = GsoLimits { max_size: 65_536, max_segs: 64 };
    peer.transmit();
    peer
}

fn is_writable(peer: &Peer) -> bool {
    peer.connection.readiness().contains(Readiness::WRITABLE)
}

/// Writes as a thread that sends after every buffer, as Linux does; returns what was taken.
fn fill(peer: &mut Peer) -> usize {
    let mut total = 0;
    loop {
        let wrote = peer.try_write(16_000);
        peer.transmit();
        total += wrote;
        if wrote < 16_000 {
            return total;
        }
    }
}

#[test]
fn a_writer_fills_to_the_mark_and_is_woken_below_half_of_it() {
    let mut peer = writer(20_000, 1 << 20);
    let wrote = fill(&mut peer);
    assert_eq!(peer.info().bytes_sent, 10_000, "the initial window");
    // The limit is looked at before each buffer of 16000.
    assert!((30_000..46_000).contains(&wrote), "{wrote}");
    assert!(!is_writable(&peer));
    peer.connection.take_edges();
    let mut acked = 0;
    let mut woken = Vec::new();
    while peer.info().notsent_bytes > 0 {
        acked += 1000;
        peer.advance_ms(1);
        peer.ack(acked);
        let unsent = peer.info().notsent_bytes;
        assert_eq!(is_writable(&peer), unsent < 10_000, "{unsent}");
        if peer.connection.take_edges().contains(Readiness::WRITABLE) {
            woken.push(unsent);
        }
    }
    assert_eq!(woken.len(), 1, "one refused write, one edge: {woken:?}");
    assert!(woken[0] < 10_000);
}

#[test]
fn a_mark_of_one_byte_wakes_when_all_is_sent() {
    let mut peer = writer(1, 1 << 20);
    fill(&mut peer);
    let mut acked = 0;
    for _ in 0..40 {
        assert_eq!(is_writable(&peer), peer.info().notsent_bytes == 0);
        acked = (acked + 1000).min(peer.info().bytes_sent as i32);
        peer.advance_ms(1);
        peer.ack(acked);
    }
    assert!(is_writable(&peer));
}

#[test]
fn the_sysctl_is_the_mark_of_who_set_none() {
    let config = Config { tcp_notsent_lowat: 4000, ..Config::default() };
    let options = SocketOptions { send_buffer: Some(1 << 20), ..SocketOptions::default() };
    let mut peer = Peer::established(config, options, Hello::default());
    let wrote = fill(&mut peer);
    assert!(wrote < 46_000, "{wrote}");
    assert!(!is_writable(&peer));
    assert_eq!(peer.connection.options().notsent_lowat, 0, "as getsockopt shows it");
    peer.set(SocketOption::NotSentLowat(1 << 20));
    assert!(is_writable(&peer));
    assert!(peer.connection.take_edges().contains(Readiness::WRITABLE), "raised: an edge");
}

#[test]
fn a_mark_of_nothing_refuses_even_the_first_write() {
    // `sk_stream_memory_free` is asked before each new buffer, and nothing is not below nothing.
    let config = Config { tcp_notsent_lowat: 0, ..Config::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), Hello::default());
    assert!(!is_writable(&peer));
    assert_eq!(peer.try_write(100), 0);
    peer.nothing();
    let mut data = Bytes::from_static(b"abc");
    let refused = peer.connection.write_bytes(&mut data, WriteFlags::empty());
    assert_eq!(refused, Err(WriteError::WouldBlock));
    peer.set(SocketOption::NotSentLowat(1));
    assert_eq!(peer.try_write(100), 100);
}

#[test]
fn room_comes_when_data_leaves_without_an_ack() {
    // Paced, with a window that has room: no ACK comes while the queue drains.
    let mut peer = writer(4000, 1 << 20);
    peer.set(SocketOption::MaxPacingRate(Rate(1_000_000)));
    peer.write(10_000);
    peer.advance_ms(20);
    peer.ack(10_000);
    assert!(fill(&mut peer) >= 4000);
    assert!(!is_writable(&peer));
    peer.connection.take_edges();
    let before = peer.info().bytes_acked;
    for _ in 0..400 {
        peer.advance(Nanos::from_micros(100));
        let unsent = peer.info().notsent_bytes;
        if unsent < 2000 {
            break;
        }
        assert!(!is_writable(&peer), "{unsent}");
    }
    assert_eq!(peer.info().bytes_acked, before);
    assert!(is_writable(&peer));
    assert!(peer.connection.take_edges().contains(Readiness::WRITABLE));
}

#[test]
fn a_refused_writer_gets_its_edge_though_the_level_never_left() {
    let mut peer = writer(4000, 1 << 20);
    peer.write(4000);
    peer.ack(4000);
    peer.connection.take_edges();
    assert!(is_writable(&peer));
    // Refused, and in the same call all of it leaves.
    let wrote = peer.try_write(40_000);
    assert!(wrote < 40_000);
    peer.advance_ms(10);
    peer.transmit();
    let mut acked = 4000;
    while peer.info().notsent_bytes >= 2000 {
        acked += 1000;
        peer.advance_ms(1);
        peer.ack(acked);
    }
    assert!(peer.connection.take_edges().contains(Readiness::WRITABLE));
    assert!(peer.connection.take_edges().is_empty(), "once");
}

#[test]
fn a_third_of_the_buffer_must_be_free() {
    let mut peer = writer(0, 42_000);
    peer.write(10_000);
    while peer.try_write(1000) > 0 {}
    peer.transmit();
    assert_eq!(
        peer.connection.write(&[0; 1000], WriteFlags::empty()),
        Err(WriteError::WouldBlock),
        "memory is at its limit"
    );
    let mut acked = 0;
    while !is_writable(&peer) {
        let info = peer.info();
        assert!(info.sndbuf - info.wmem_queued.min(info.sndbuf) < info.wmem_queued / 2);
        acked += 1000;
        peer.advance_ms(1);
        peer.ack(acked);
    }
    let info = peer.info();
    assert!(info.wmem_queued <= info.sndbuf / 3 * 2 + 1, "{} of 42000", info.wmem_queued);
}

#[test]
fn a_mark_in_time_follows_the_rate_and_never_falls_below_two_frames() {
    let mut peer = writer(0, 4 << 20);
    peer.set(SocketOption::NotSentLowatMicros(20_000));
    let drain = |peer: &mut Peer| {
        for _ in 0..2000 {
            peer.advance_ms(1);
            peer.ack(peer.info().bytes_sent as i32);
            if peer.info().notsent_bytes == 0 {
                return;
            }
        }
        panic!("{} bytes stay", peer.info().notsent_bytes);
    };
    let taken = |peer: &mut Peer| {
        while peer.try_write(1000) > 0 {}
        peer.info().notsent_bytes
    };
    // With more than a frame's worth refused, what is taken is the mark and at most a buffer more.
    for rate in [10_000_000, 3_000_000, 1_000_000] {
        peer.set(SocketOption::MaxPacingRate(Rate(rate)));
        drain(&mut peer);
        let rate = peer.info().pacing_rate;
        let mark = rate.bytes_in(Nanos::from_micros(20_000)) as u32;
        let bytes = taken(&mut peer);
        assert!((mark..=mark + 17_000).contains(&bytes), "{bytes} bytes at {rate:?}");
        assert!(!is_writable(&peer));
        peer.set(SocketOption::NotSentLowatMicros(10 * 20_000));
        assert!(is_writable(&peer));
        peer.set(SocketOption::NotSentLowatMicros(20_000));
        drain(&mut peer);
    }
    // Next to no rate: a frame is two segments then.
    peer.set(SocketOption::MaxPacingRate(Rate(10_000)));
    let least = taken(&mut peer);
    assert!((4000..=20_000).contains(&least), "{least}");
    drain(&mut peer);
    peer.set(SocketOption::NotSentLowat(1));
    peer.write(1000);
    peer.write(1000);
    assert!(peer.info().notsent_bytes > 0);
    assert!(!is_writable(&peer), "the lower mark holds");
}

#[test]
fn outq_counts_what_is_not_acknowledged_and_nsd_what_was_never_sent() {
    let mut peer = writer(0, 1 << 20);
    peer.write(30_000);
    assert_eq!((peer.connection.outq(), peer.connection.outq_nsd()), (30_000, 20_000));
    peer.advance_ms(1);
    peer.ack(5000);
    let sent = peer.info().bytes_sent as u32;
    assert_eq!((peer.connection.outq(), peer.connection.outq_nsd()), (25_000, 30_000 - sent));
    peer.connection.shutdown_write();
    assert_eq!(peer.connection.outq(), 25_001, "the FIN counts");
}

#[test]
fn data_behind_unread_data_is_an_edge() {
    let mut peer = Peer::plain();
    peer.data(100);
    assert!(peer.connection.take_edges().contains(Readiness::READABLE));
    peer.data(100);
    assert!(peer.connection.take_edges().contains(Readiness::READABLE));
    peer.ack(0);
    assert!(!peer.connection.take_edges().contains(Readiness::READABLE), "no data, no edge");
}

#[test]
fn an_error_that_was_taken_is_no_error_any_more() {
    let mut peer = Peer::plain();
    let reset = peer.segment(0, neap_tcp::segment::Flags::RST);
    peer.inject(reset);
    assert!(peer.connection.readiness().contains(Readiness::ERROR));
    assert!(peer.connection.take_error().is_some());
    let ready = peer.connection.readiness();
    assert!(!ready.contains(Readiness::ERROR));
    assert!(ready.contains(Readiness::READ_CLOSED | Readiness::WRITE_CLOSED));
}

#[test]
fn small_writes_count_as_buffers_of_the_size_goal() {
    let mut peer = writer(0, 1 << 20);
    peer.set(SocketOption::Cork(true));
    let size = peer.connection.size_goal();
    assert_eq!(size, 16_000);
    let memory = |bytes: u32| bytes + bytes.div_ceil(size) * 896;
    // What was sent counts by its frames, what waits by full buffers.
    for part in 1..=90u32 {
        assert_eq!(peer.try_write(10), 10);
        assert_eq!(peer.info().wmem_queued, memory(part * 10));
    }
    for part in 1..=40u32 {
        let mut bytes = bytes::Bytes::from_static(&[0; 1000]);
        assert_eq!(peer.connection.write_bytes(&mut bytes, WriteFlags::empty()), Ok(1000));
        assert_eq!(peer.info().wmem_queued, memory(900 + part * 1000));
    }
}

#[test]
fn the_largest_frame_is_full_segments_that_the_device_takes() {
    let mut peer = writer(u32::MAX, 1 << 20);
    let mss = peer.info().snd_mss;
    for (max_size, max_segs, segments) in
        [(65_536, 65_535, 64), (65_536, 44, 44), (16_384, 64, 16_304 / mss), (1500, 1, 1)]
    {
        peer.wire.gso = GsoLimits { max_size, max_segs };
        peer.transmit();
        assert_eq!(peer.info().largest_frame, segments * mss, "{max_size}, {max_segs}");
    }
}
