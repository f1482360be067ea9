//! What a congestion controller is told: samples of ACKs, and events.

use crate::peer::{Hello, Peer};
use neap_tcp::config::Config;
use neap_tcp::congestion::{AckSample, CaState, CongestionControl, CongestionEvent, Window};
use neap_tcp::counters::Counter;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::time::{Instant, Nanos};
use std::sync::{Arc, Mutex};

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

#[test]
fn the_controller_that_is_in_use_goes_on_when_it_is_chosen_again() {
    let mut peer = with(Config { tcp_congestion_control: "bbr".into(), ..Config::default() });
    for round in 0..5 {
        peer.write(1000);
        peer.take();
        peer.advance_ms(10);
        peer.ack(1000 * (round + 1));
    }
    let model = peer.info().model;
    assert!(model.is_some());
    peer.set(SocketOption::Congestion("bbr".into()));
    assert_eq!(peer.info().model, model);
    peer.set(SocketOption::Congestion("cubic".into()));
    peer.set(SocketOption::Congestion("bbr".into()));
    assert_ne!(peer.info().model, model);
}

/// Keeps the events that it is told of.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Vec<CongestionEvent>>>);

impl CongestionControl for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn on_ack(&mut self, _: &AckSample, _: &mut Window) {}

    fn ssthresh(&mut self, _: Instant, window: &Window) -> u32 {
        (window.cwnd / 2).max(2)
    }

    fn on_event(&mut self, event: CongestionEvent, _: Instant, _: &mut Window) {
        self.0.lock().expect("no panic").push(event);
    }
}

#[test]
fn each_timeout_is_an_event_even_in_recovery() {
    let recorder = Recorder::default();
    let (config, options) = (Config::default(), SocketOptions::default());
    let controller = Box::new(recorder.clone());
    let mut peer = Peer::controlled(config, options, Hello::default(), controller).shake();
    peer.write(20_000);
    peer.take();
    peer.advance_ms(10);
    peer.ack_sack(0, &[(1000, 10_000)]);
    let reduced = (peer.info().ca_state, peer.info().snd_ssthresh);
    assert_eq!(reduced, (CaState::Recovery, 5));
    peer.advance_ms(1000);
    let losses = peer.count(Counter::Timeouts);
    assert!(losses > 1, "{losses} timeouts");
    assert_eq!(peer.info().snd_ssthresh, 5, "the loss was known, so nothing more is reduced");
    let events = recorder.0.lock().expect("no panic").clone();
    assert_eq!(events[..2], [CongestionEvent::Recovery, CongestionEvent::Loss]);
    let told = events.iter().filter(|&&event| event == CongestionEvent::Loss).count();
    assert_eq!(told as u64, losses);
}

/// Short messages, each of which is acknowledged late.
fn late_acks(controller: &str) -> Peer {
    let config = Config { tcp_congestion_control: controller.into(), ..Config::default() };
    let mut peer = with(config);
    for _ in 0..15 {
        peer.write(100);
        peer.take();
        peer.advance_ms(50);
        peer.ack(peer.end());
        peer.advance_ms(950);
    }
    peer
}

#[test]
fn a_delayed_ack_is_no_minimum_of_bbr() {
    for controller in ["bbr", "bbr3"] {
        let peer = late_acks(controller);
        let model = peer.info().model.expect("BBR has one");
        assert!(model.min_rtt <= Nanos::from_millis(11), "{controller}: {:?}", model.min_rtt);
    }
}

#[test]
fn an_ack_may_be_delayed_if_it_is_for_one_short_segment() {
    // What is written, what of it is acknowledged first, and whether that may have waited.
    let cases = [(100, 100, true), (1000, 1000, false), (1100, 1000, false), (1100, 1100, false)];
    for (written, acked, may_be_delayed) in cases {
        let recorder = Delays::default();
        let (config, options) = (Config::default(), SocketOptions::default());
        let controller = Box::new(recorder.clone());
        let mut peer = Peer::controlled(config, options, Hello::default(), controller).shake();
        peer.write(written);
        peer.take();
        peer.advance_ms(50);
        peer.ack(acked);
        let told = recorder.0.lock().expect("no panic").last().copied();
        assert_eq!(told, Some(may_be_delayed), "{acked} of {written}");
    }
}

/// Keeps for each ACK whether it may have been delayed.
#[derive(Clone, Debug, Default)]
struct Delays(Arc<Mutex<Vec<bool>>>);

impl CongestionControl for Delays {
    fn name(&self) -> &'static str {
        "delays"
    }

    fn on_ack(&mut self, sample: &AckSample, _: &mut Window) {
        self.0.lock().expect("no panic").push(sample.is_ack_delayed);
    }

    fn ssthresh(&mut self, _: Instant, window: &Window) -> u32 {
        (window.cwnd / 2).max(2)
    }

    fn on_event(&mut self, _: CongestionEvent, _: Instant, _: &mut Window) {}
}
