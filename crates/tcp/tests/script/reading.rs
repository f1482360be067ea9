//! `SO_RCVLOWAT`, and what else a reader sees.

use crate::peer::{Hello, Peer};
use neap_tcp::config::{BufferSizes, Config};
use neap_tcp::connection::{ReadError, Readiness};
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::segment::Flags;

fn is_readable(peer: &Peer) -> bool {
    peer.connection.readiness().contains(Readiness::READABLE)
}

fn reader(lowat: u32) -> Peer {
    let mut peer = Peer::plain();
    peer.set(SocketOption::ReceiveLowat(lowat));
    peer
}

#[test]
fn a_reader_is_woken_by_as_many_bytes_as_it_asked_for() {
    let mut peer = reader(3000);
    let mut buf = [0; 10_000];
    for _ in 0..2 {
        peer.data(1000);
        assert!(!is_readable(&peer));
        assert!(peer.connection.take_edges().is_empty());
        let waits = peer.connection.read_low_water(peer.now, &mut buf);
        assert_eq!(waits, Err(ReadError::WouldBlock));
    }
    peer.data(1000);
    assert!(is_readable(&peer));
    assert!(peer.connection.take_edges().contains(Readiness::READABLE));
    assert_eq!(peer.connection.read_low_water(peer.now, &mut buf), Ok(3000));
    // Who asks for less waits for less, and who does not wait gets what is there.
    peer.data(100);
    assert_eq!(peer.connection.read_low_water(peer.now, &mut buf[..60]), Ok(60));
    assert_eq!(peer.connection.read(peer.now, &mut buf), Ok(40));
    assert_eq!(peer.connection.read_low_water(peer.now, &mut buf), Err(ReadError::WouldBlock));
}

#[test]
fn the_end_of_the_stream_and_a_lowered_mark_wake() {
    let mut peer = reader(3000);
    peer.data(500);
    peer.connection.take_edges();
    peer.set(SocketOption::ReceiveLowat(0));
    assert_eq!(peer.connection.options().receive_lowat, 1);
    assert!(is_readable(&peer));
    assert!(peer.connection.take_edges().contains(Readiness::READABLE));
    peer.set(SocketOption::ReceiveLowat(3000));
    assert!(!is_readable(&peer));
    let fin = peer.segment(peer.next, Flags::FIN | Flags::ACK);
    peer.inject(fin);
    assert!(is_readable(&peer));
    let mut buf = [0; 1000];
    assert_eq!(peer.connection.read_low_water(peer.now, &mut buf), Ok(500));
    assert_eq!(peer.connection.read_low_water(peer.now, &mut buf), Ok(0));
}

#[test]
fn the_mark_never_asks_for_more_than_the_window_lets_come() {
    // The buffer grows for the mark unless it was set, and then the mark is half of it.
    let config = Config {
        tcp_rmem: BufferSizes { min: 4096, default: 16_384, max: 1 << 20 },
        ..Config::default()
    };
    let mut peer = Peer::established(config, SocketOptions::default(), Hello::default());
    peer.set(SocketOption::ReceiveLowat(200_000));
    let mut sent = 0;
    while !is_readable(&peer) {
        assert!(sent < 400_000, "{sent} bytes and no reader");
        peer.data(1000);
        peer.advance_ms(1);
        peer.take();
        sent += 1000;
    }
    assert!(sent >= 200_000, "woken after {sent}");
    let mut peer = Peer::plain();
    peer.set(SocketOption::ReceiveBuffer(10_000));
    peer.set(SocketOption::ReceiveLowat(1 << 30));
    assert_eq!(peer.connection.options().receive_lowat, 10_000);
}

#[test]
fn urgent_data_stays_in_the_stream() {
    let mut peer = Peer::plain();
    let mut segment = peer.data_at(0, 100);
    segment.flags |= Flags::URG;
    segment.urgent = 50;
    peer.next += 100;
    peer.inject(segment);
    assert_eq!(peer.read(), crate::peer::pattern(0, 100));
}
