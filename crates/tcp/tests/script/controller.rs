//! What a congestion controller is told: samples of ACKs, and events.

use crate::peer::{Hello, Peer};
use neap_tcp::config::Config;
use neap_tcp::options::SocketOptions;

fn with(config: Config) -> Peer {
    Peer::established(config, SocketOptions::default(), Hello::default())
}

/// Rate that is known after one frame of ten segments or so, in bytes per second. Its ACKs come for
/// two segments each, a millisecond apart.
fn rate_of_one_frame(controller: &str) -> u64 {
    let config = Config {
        tcp_congestion_control: controller.into(),
        half_cwnd: false,
        tso_autosizing: false,
        ..Config::default()
    };
    let mut peer = with(config);
    // What is sent before the first delivery counts as limited by the application.
    peer.write(1000);
    peer.take();
    peer.advance_ms(10);
    peer.ack(1000);
    peer.advance_ms(10);
    peer.try_write(40_000);
    peer.transmit();
    let frame = peer.take().remove(0);
    assert!(frame.len() >= 10_000, "{}", frame.len());
    peer.advance_ms(10);
    for upto in (3000..=1000 + frame.len() as i32).step_by(2000) {
        peer.ack(upto);
        peer.advance_ms(1);
    }
    peer.info().delivery_rate.expect("known").0
}

#[test]
fn each_ack_for_a_part_of_a_frame_is_a_sample_of_the_delivery_rate() {
    for controller in ["cubic", "bbr"] {
        let rate = rate_of_one_frame(controller);
        // Ten segments in 14 ms are 714 kB/s; the first two in 10 ms are 200 kB/s.
        assert!(rate > 500_000, "{controller}: {rate} bytes per second");
    }
}
