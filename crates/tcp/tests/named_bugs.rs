//! Bugs of other stacks, by name: each had users stall or flood. One test each.

#[path = "peer/mod.rs"]
mod peer;

use neap_tcp::config::Config;
use neap_tcp::congestion::{CaState, Controllers};
use neap_tcp::options::SocketOptions;
use neap_tcp::time::Nanos;
use neap_tcp::transmit::TxBlocked;
use neap_tcp::transmit::egress::Verdict;
use peer::{Hello, Peer};

const CONTROLLERS: [&str; 2] = ["cubic", "reno"];

fn with(controller: &str, hello: Hello) -> Peer {
    let config = Config { tcp_congestion_control: controller.into(), ..Config::default() };
    Peer::established(config, SocketOptions::default(), hello)
}

/// Sends for `rounds` round trips, acknowledging every frame.
fn run(peer: &mut Peer, rounds: usize, per_round: usize) {
    for _ in 0..rounds {
        peer.try_write(per_round);
        peer.transmit();
        peer.advance_ms(10);
        for (seq, len) in peer.sent() {
            peer.ack(seq + len as i32);
        }
    }
}

/// gVisor #11632: the congestion window grew without bound until its arithmetic overflowed, and
/// the flow stopped.
#[test]
fn the_congestion_window_does_not_overflow() {
    for name in CONTROLLERS {
        // The window itself.
        let mut controller = Controllers::default().make(name).expect("known");
        let mut window = neap_tcp::congestion::Window::new(10);
        let mut sample = neap_tcp::congestion::AckSample::default();
        sample.acked = u32::MAX / 2;
        sample.acked_sacked = u32::MAX / 2;
        sample.is_cwnd_limited = true;
        sample.rtt = Some(Nanos::from_millis(1));
        sample.srtt = Nanos::from_millis(1);
        sample.min_rtt = Nanos::from_millis(1);
        sample.mss = 1448;
        for i in 0..100_000u64 {
            sample.now = neap_tcp::time::Instant::from_nanos(i << 30);
            sample.total_delivered = i << 31;
            controller.on_ack(&sample, &mut window);
            assert!(window.cwnd >= 10 && window.cwnd <= window.clamp, "{name}: {window:?}");
        }
        // The products that are made of it: rate, buffer, frame size, threshold.
        let mut peer = with(name, Hello { mss: Some(1460), wscale: Some(14), ..Hello::default() });
        peer.window = 65535 << 14;
        peer.ack(0);
        run(&mut peer, 300, 2_000_000);
        let info = peer.info();
        assert!(info.snd_cwnd >= 10 && info.sndbuf <= 4 << 20, "{info:?}");
        assert!(info.bytes_acked > 100_000_000, "{name}: {}", info.bytes_acked);
    }
}

/// Seastar #1015: the window was compared with a quantity of another unit, so that far less than it
/// was in flight. What limits a flow is the number of segments in flight.
#[test]
fn the_window_limits_what_is_in_flight() {
    for name in CONTROLLERS {
        let mut peer = with(name, Hello { window: 4_000_000, ..Hello::default() });
        for _ in 0..12 {
            while peer.try_write(60_000) > 0 {}
            let blocked = peer.transmit();
            let info = peer.info();
            if blocked == TxBlocked::Cwnd {
                assert_eq!(info.unacked, info.snd_cwnd, "{name}: segments");
                assert_eq!(info.unacked_bytes, info.snd_cwnd * info.snd_mss);
            }
            assert!(info.unacked <= info.snd_cwnd);
            // Below TCP is another quantity with another limit.
            assert_eq!(info.below_bytes, 0);
            peer.advance_ms(10);
            for (seq, len) in peer.sent() {
                peer.ack(seq + len as i32);
            }
        }
        assert!(peer.info().snd_cwnd > 60);
        // Short segments count as segments too.
        let options = SocketOptions { nodelay: true, ..SocketOptions::default() };
        let config = Config { tcp_congestion_control: name.into(), ..Config::default() };
        let mut peer = Peer::established(config, options, Hello::default());
        for _ in 0..30 {
            peer.try_write(10);
            peer.transmit();
        }
        assert_eq!((peer.info().unacked, peer.info().unacked_bytes), (10, 100));
    }
}

/// VPP 33d1441f9: the window grew although the application, not the window, limited the flow; then
/// a burst met a path that had never carried it (RFC 7661).
#[test]
fn the_window_does_not_grow_while_the_application_limits_the_flow() {
    for name in CONTROLLERS {
        let mut peer = with(name, Hello::default());
        run(&mut peer, 500, 3000);
        assert!(peer.info().snd_cwnd <= 10, "{name}: {}", peer.info().snd_cwnd);
        // Nor while the peer's window does.
        let mut peer = with(name, Hello { window: 5120, ..Hello::default() });
        run(&mut peer, 500, 20_000);
        assert!(peer.info().snd_cwnd <= 10, "{name}: {}", peer.info().snd_cwnd);
        // And it grows when the window is the limit, so that the test tests something.
        let mut peer = with(name, Hello::default());
        run(&mut peer, 3, 60_000);
        assert!(peer.info().snd_cwnd > 20);
    }
}

/// gVisor 5f8c66e26: ACKs in CUBIC's congestion avoidance reduced the window where the curve lay
/// below it.
#[test]
fn acks_never_reduce_the_window() {
    for name in CONTROLLERS {
        let mut peer = with(name, Hello { window: 4_000_000, ..Hello::default() });
        run(&mut peer, 6, 600_000);
        // A loss, then a long recovery far below the former maximum, and an undo above it.
        while peer.try_write(60_000) > 0 {}
        peer.transmit();
        peer.advance_ms(10);
        let (una, end) = (peer.info().bytes_acked as i32 - 1, peer.end());
        peer.ack_sack(una, &[(una + 10_000, end)]);
        peer.advance_ms(15);
        peer.ack(end);
        peer.take();
        run(&mut peer, 1, 1000);
        assert_eq!(peer.info().ca_state, CaState::Open);
        let mut last = peer.info().snd_cwnd;
        for round in 0..400 {
            while peer.try_write(60_000) > 0 {}
            peer.transmit();
            // The curve is asked at odd times too: at once, and after long silence.
            peer.advance_ms([10, 1, 150, 10][round % 4]);
            for (seq, len) in peer.sent() {
                peer.ack(seq + len as i32);
                let cwnd = peer.info().snd_cwnd;
                if peer.info().ca_state == CaState::Open {
                    assert!(cwnd >= last, "{name}: {last} to {cwnd} in round {round}");
                }
                last = cwnd;
            }
        }
    }
}

/// Demikernel #1625: the sequence number was advanced although the way down had not taken the data,
/// which then was never sent.
#[test]
fn a_refused_frame_advances_nothing() {
    let mut peer = with("cubic", Hello::default());
    for refusals in 0..20 {
        let before = peer.info();
        peer.wire.verdict = Verdict::Dropped;
        peer.try_write(1500);
        assert!(matches!(peer.transmit(), TxBlocked::Egress | TxBlocked::Cwnd | TxBlocked::Nagle));
        let after = peer.info();
        assert_eq!(after.unacked_bytes, before.unacked_bytes, "after {refusals} refusals");
        assert_eq!(after.bytes_sent, before.bytes_sent);
        assert_eq!(after.unacked, before.unacked);
        assert_eq!(peer.account.bytes(), 0);
        peer.nothing();
        peer.wire.verdict = Verdict::Queued;
        let mut upto = peer.end();
        for _ in 0..100 {
            peer.advance_ms(10);
            for out in peer.take().iter().filter(|out| out.len() > 0) {
                // The bytes are those of the stream at this place, none left out.
                assert!(out.seq() <= upto);
                let bytes: Vec<u8> = out.segment.payload.chunks().concat();
                assert_eq!(bytes, peer::pattern(out.seq() as usize, bytes.len()));
                upto = upto.max(out.seq() + bytes.len() as i32);
            }
            peer.ack(upto);
        }
        assert_eq!(peer.info().notsent_bytes, 0);
    }
    assert_eq!(peer.info().bytes_acked, 30_001);
    // A FIN too.
    peer.connection.shutdown_write();
    peer.wire.verdict = Verdict::Dropped;
    peer.transmit();
    peer.nothing();
    peer.wire.verdict = Verdict::Queued;
    peer.advance_ms(1000);
    let out = peer.take();
    assert_eq!(out.first().map(peer::Out::seq), Some(30_000));
    assert!(out[0].has(neap_tcp::segment::Flags::FIN));
}
