//! Byte counts of the kernel's own packetdrill scripts, with the rules of `linux-6.18`: MSS 1000,
//! ten segments of initial window, a peer's window of 32896 bytes unless noted. Those of `MSG_EOR`
//! are in `records`.

use super::peer::{Hello, Out, Peer};
use neap_tcp::config::{BufferSizes, Config};
use neap_tcp::connection::Readiness;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::profile::Profile;
use neap_tcp::segment::Flags;
use neap_tcp::time::Nanos;

fn linux() -> Config {
    Profile::Linux6_18.config()
}

fn hello() -> Hello {
    Hello { window: 257 << 7, ..Hello::default() }
}

/// As a write of the kernel, which sends whenever a buffer is full: half of the largest window.
struct Writer {
    left: usize,
    buffer: usize,
}

impl Writer {
    /// Writes until refused.
    fn step(&mut self, peer: &mut Peer) {
        while self.left > 0 {
            let unsent = peer.info().notsent_bytes as usize;
            let fills = self.buffer - unsent % self.buffer;
            let wrote = peer.try_write(fills.min(self.left));
            self.left -= wrote;
            peer.transmit();
            if wrote == 0 {
                return;
            }
        }
    }

    fn woken(&mut self, peer: &mut Peer) {
        if peer.connection.readiness().contains(Readiness::WRITABLE) {
            self.step(peer);
        }
    }
}

/// `tcp_blocking_blocking-write`.
#[test]
fn a_blocking_write_returns_when_two_thirds_of_the_buffer_are_enough() {
    let config = Config { tcp_min_tso_segs: 10, ..linux() };
    let hello = Hello { window: 50_000, ..Hello::default() };
    let mut peer = Peer::established(config, SocketOptions::default(), hello);
    peer.set(SocketOption::SendBuffer(21_000));
    assert_eq!(peer.info().sndbuf, 42_000);
    let mut writer = Writer { left: 61_000, buffer: 25_000 };
    writer.step(&mut peer);
    // The peer acknowledges frame by frame. At 35000 four are left, each of which counts 896 bytes
    // beside its payload.
    for upto in [5_000, 10_000, 17_000, 20_000, 30_000, 35_000, 36_000] {
        assert!(writer.left > 0, "returned before {upto} was acknowledged");
        peer.advance_ms(10);
        peer.ack(upto);
        writer.woken(&mut peer);
    }
    assert_eq!(writer.left, 0);
}

/// `tcp_tcp_info-sndbuf-limited`.
#[test]
fn time_limited_by_the_send_buffer() {
    let mut peer = Peer::established(
        linux(),
        SocketOptions::default(),
        Hello { window: 4_000_000, ..Hello::default() },
    );
    peer.window = 4_000_000;
    peer.ack(0);
    peer.set(SocketOption::SendBuffer(10_000));
    assert_eq!(peer.info().sndbuf, 20_000);
    let mut writer = Writer { left: 150_000, buffer: 65_000 };
    writer.step(&mut peer);
    for (ms, upto) in [(10, 10_000), (10, 30_000), (10, 70_000), (20, 95_000)] {
        peer.advance_ms(ms);
        // What the script acknowledges is more than what is sent here: neap cuts frames in half.
        let upto = upto.min(peer.end());
        peer.ack(upto);
        writer.woken(&mut peer);
    }
    let info = peer.info();
    assert_eq!((info.busy_time, info.rwnd_limited), (Nanos::from_millis(50), Nanos::ZERO));
    let limited = info.sndbuf_limited.as_millis();
    assert!((18..=22).contains(&limited), "{limited} ms");
}

/// `tcp_slow_start_slow-start-fq-ack-per-2pkt`: `fq` holds the packets, and cwnd grows
/// nevertheless.
#[test]
fn slow_start_through_fq() {
    let hello = Hello { mss: Some(1460), window: 257 << 8, wscale: Some(8), ..Hello::default() };
    let mut peer = Peer::opening(linux(), SocketOptions::default(), hello);
    peer.wire.holds_until_departure = true;
    peer.transmit();
    peer.take();
    peer.advance_ms(100);
    let synack = peer.syn(Flags::SYN | Flags::ACK);
    peer.inject(synack);
    peer.take();
    peer.write(40_000);
    let first = peer.take();
    assert_eq!(first.iter().map(Out::len).collect::<Vec<_>>(), [2920; 5]);
    assert!(first.iter().all(|out| out.departure == peer.now), "the first ten are free");
    peer.advance_ms(105);
    let start = peer.now;
    let mut departures = Vec::new();
    for (k, ms) in [0, 3, 5, 14, 15].into_iter().enumerate() {
        peer.advance(Nanos::from_millis(ms).saturating_sub(peer.now.since(start)));
        peer.ack(2920 * (k as i32 + 1));
        assert_eq!(peer.info().snd_cwnd, 12 + 2 * k as u32);
        departures.extend(peer.take().iter().map(|out| (out.departure, out.len())));
    }
    let times: Vec<_> = departures.iter().map(|&(at, _)| at.since(start).0 as f64 / 1e6).collect();
    // The script has whole milliseconds and a tolerance of four.
    for (got, want) in times.iter().zip([0.0, 4.0, 12.0, 19.0, 26.0]) {
        assert!((got - want).abs() < 1.2, "{times:?}");
    }
    assert!(departures.iter().take(5).all(|&(_, len)| len == 2920));
}

fn wmem(default: u32) -> BufferSizes {
    BufferSizes { min: 4096, default, max: 4 << 20 }
}

/// What a write that does not block takes, of 59000 bytes.
#[test]
fn what_a_write_takes() {
    for (sndbuf, lowat, want) in
        [(50_000, 0, 58_000), (50_000, 32_000, 42_000), (262_144, 4000, 26_000)]
    {
        let config = Config { tcp_wmem: wmem(sndbuf), ..linux() };
        let options = SocketOptions { notsent_lowat: lowat, ..SocketOptions::default() };
        let mut peer = Peer::established(config, options, hello());
        let mut writer = Writer { left: 59_000, buffer: 16_000 };
        writer.step(&mut peer);
        assert_eq!(59_000 - writer.left, want, "sndbuf {sndbuf}, mark {lowat}");
    }
}

/// A mark of 4000: each of the first ACKs lets 4000 bytes leave, and the writer is woken when the
/// last ones do.
#[test]
fn the_writer_is_woken_when_half_the_mark_is_left() {
    let config = Config { tcp_wmem: wmem(262_144), tcp_notsent_lowat: 4000, ..linux() };
    let mut peer = Peer::established(config, SocketOptions::default(), hello());
    assert_eq!(peer.connection.options().notsent_lowat, 0, "the option is not the sysctl");
    let mut writer = Writer { left: 59_000, buffer: 16_000 };
    writer.step(&mut peer);
    assert_eq!(59_000 - writer.left, 26_000);
    assert_eq!(peer.sent_bytes(), 10_000);
    for upto in [2000, 4000, 6000, 8000] {
        assert!(!peer.connection.readiness().contains(Readiness::WRITABLE), "before {upto}");
        peer.ack(upto);
        assert_eq!(peer.sent_bytes(), 4000, "after {upto}");
    }
    assert!(peer.connection.readiness().contains(Readiness::WRITABLE));
}
