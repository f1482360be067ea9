//! One rule each, ACK by ACK.

use super::*;
use crate::congestion::HyStartRule;

const MSS: u32 = 1000;
const RTT: Nanos = Nanos::from_millis(10);
/// 100 segments of 1000 bytes in 10 ms, margin subtracted.
const PACED: u64 = 10_000_000 / 100 * 99;

/// A flow whose ACKs come once per round trip.
struct Flow {
    bbr: Bbr3,
    window: Window,
    now: Instant,
    delivered: u64,
}

impl Flow {
    fn new() -> Self {
        let (mut bbr, mut window) = (Bbr3::default(), Window::new(10));
        let now = Instant::ZERO + Nanos::from_secs(1);
        let start = Start {
            now,
            srtt: RTT,
            min_rtt: RTT,
            mss: MSS,
            frame_rule: FrameRule::Linux,
            hystart: HyStartRule::Rfc9406,
            delivered: 0,
            lost: 0,
            random: 7,
        };
        bbr.init(&start, &mut window);
        Self { bbr, window, now, delivered: 0 }
    }

    /// A round trip that delivered so many segments and left so many in flight.
    fn sample(&mut self, delivered: u32, in_flight: u32) -> AckSample {
        self.now += RTT;
        let prior_delivered = self.delivered;
        self.delivered += u64::from(delivered);
        AckSample {
            now: self.now,
            acked_sacked: delivered,
            prior_in_flight: in_flight,
            in_flight,
            tx_in_flight: in_flight,
            delivered,
            prior_delivered,
            total_delivered: self.delivered,
            interval: RTT,
            rtt: Some(RTT),
            srtt: RTT,
            min_rtt: RTT,
            mss: MSS,
            has_sack: true,
            frame_rule: FrameRule::Linux,
            next_departure: self.now,
            ..AckSample::default()
        }
    }

    fn take(&mut self, sample: &AckSample) {
        self.bbr.on_ack(sample, &mut self.window);
    }

    fn round(&mut self, delivered: u32, in_flight: u32) {
        let sample = self.sample(delivered, in_flight);
        self.take(&sample);
    }

    /// So many segments of one frame are lost; so many were before, since it left.
    fn lose(&mut self, segments: u32, before: u32, tx_in_flight: u32) {
        let lost = LostSegments {
            segments,
            tx_in_flight,
            lost: before + segments,
            is_app_limited: false,
            total_delivered: self.delivered,
        };
        self.bbr.on_lost(self.now, &lost, &self.window);
    }

    /// At 100 segments per round trip, start-up and drain over.
    fn probing() -> Self {
        let mut flow = Self::new();
        for delivered in [10, 20, 40, 80, 100, 100, 100, 100] {
            flow.round(delivered, 190);
        }
        assert_eq!(flow.bbr.state, Mode::Drain);
        flow.round(100, 100);
        assert!(flow.bbr.state.is_probe_bw());
        flow
    }

    /// Goes on until the state is this.
    fn until(&mut self, state: Mode) {
        for _ in 0..1000 {
            if self.bbr.state == state {
                return;
            }
            self.round(100, 100);
        }
        panic!("never {state:?}");
    }
}

#[test]
fn start_up_ends_after_three_rounds_without_growth_and_is_drained() {
    let mut flow = Flow::new();
    for delivered in [10, 20, 40, 80, 100, 100, 100] {
        flow.round(delivered, 190);
        assert_eq!(flow.bbr.state, Mode::Startup, "{delivered}");
    }
    assert_eq!(flow.bbr.pacing_rate.0, PACED * 710 / 256);
    flow.round(100, 190);
    assert_eq!(flow.bbr.state, Mode::Drain);
    assert_eq!(flow.bbr.pacing_rate.0, PACED / 2);
    flow.round(100, 101);
    assert_eq!(flow.bbr.state, Mode::Drain);
    flow.round(100, 100);
    assert_eq!(flow.bbr.state, Mode::Cruise, "down is over when it begins");
    let mut flow = Flow::probing();
    (flow.bbr.state, flow.bbr.drain_round) = (Mode::Drain, flow.bbr.rounds.count);
    (0..3).for_each(|_| flow.round(100, 190));
    assert_eq!(flow.bbr.state, Mode::Drain);
    flow.round(100, 190);
    assert_eq!(flow.bbr.state, Mode::Down, "it gives up after three rounds");
}

#[test]
fn start_up_ends_by_loss_after_a_round_in_recovery() {
    let mut flow = Flow::new();
    for delivered in [10, 20, 40, 80] {
        flow.round(delivered, 190);
    }
    let lossy = |flow: &mut Flow, frames, lost| {
        let (state, losses) = (CaState::Recovery, frames);
        let sample = AckSample { state, losses, lost, ..flow.sample(100, 190) };
        (0..frames).for_each(|_| flow.lose(1, 0, 190));
        flow.take(&sample);
    };
    lossy(&mut flow, 6, 20);
    assert_eq!(flow.bbr.state, Mode::Startup, "not yet a round");
    lossy(&mut flow, 0, 20);
    assert_eq!(flow.bbr.state, Mode::Drain);
    assert_eq!(flow.bbr.volume.longterm, 100);
    for (frames, lost) in [(5, 20), (6, 3)] {
        let mut flow = Flow::new();
        for delivered in [10, 20, 40, 80] {
            flow.round(delivered, 190);
        }
        lossy(&mut flow, frames, lost);
        lossy(&mut flow, 0, lost);
        assert_eq!(flow.bbr.state, Mode::Startup, "{frames} frames, {lost} lost");
    }
}

#[test]
fn the_cycle_goes_down_cruises_refills_and_goes_up() {
    let mut flow = Flow::probing();
    let mut seen = vec![flow.bbr.state];
    let mut cruise = Nanos::ZERO;
    while seen.len() < 5 {
        let in_flight = if flow.bbr.state == Mode::Up { 130 } else { 100 };
        flow.round(100, in_flight);
        let state = flow.bbr.state;
        assert_eq!(flow.bbr.pacing_rate.0, PACED * u64::from(state.pacing_gain()) / 256);
        cruise = cruise + if state == Mode::Cruise { RTT } else { Nanos::ZERO };
        if seen.last() != Some(&state) {
            seen.push(state);
        }
    }
    use Mode::{Cruise, Down, Refill, Up};
    assert_eq!(seen, [Cruise, Refill, Up, Down, Cruise]);
    // 63 rounds, less 0 or 1 by chance, of 10 ms.
    assert!((600..=640).contains(&cruise.as_millis()), "{cruise:?}");
}

#[test]
fn probes_come_every_two_to_three_seconds_on_long_paths() {
    let mut flow = Flow::probing();
    flow.until(Mode::Cruise);
    let (from, mut samples) = (flow.bbr.probing, 0);
    while flow.bbr.state == Mode::Cruise {
        flow.now += Nanos::from_millis(90);
        flow.round(100, 100);
        samples += 1;
    }
    assert!((20..=31).contains(&samples), "{samples} rounds of 100 ms after {from:?}");
}

#[test]
fn too_much_loss_in_a_probe_limits_the_volume() {
    let mut flow = Flow::probing();
    flow.until(Mode::Up);
    flow.round(100, 125);
    flow.lose(2, 0, 150);
    assert_eq!(flow.bbr.state, Mode::Up, "2 of 150 are few");
    flow.lose(5, 2, 150);
    assert_eq!(flow.bbr.state, Mode::Down);
    // The threshold was crossed by the first segment of the frame.
    assert_eq!(flow.bbr.volume.longterm, 145);
    flow.lose(50, 7, 150);
    assert_eq!(flow.bbr.volume.longterm, 145, "once per probe");
    flow.until(Mode::Cruise);
    flow.round(100, 100);
    assert!(flow.window.cwnd <= 145 - 21, "{}: headroom", flow.window.cwnd);
    flow.until(Mode::Up);
    flow.round(100, 145);
    assert_eq!(flow.bbr.state, Mode::Down, "the next probe only touches the limit");
    flow.round(100, 100);
    assert_eq!(flow.bbr.state, Mode::Refill, "and as that was safe, it probes again at once");
}

#[test]
fn the_limit_grows_in_a_probe_that_it_stops() {
    let mut flow = Flow::probing();
    flow.until(Mode::Refill);
    flow.bbr.volume.longterm = 120;
    flow.until(Mode::Up);
    let mut limits = vec![];
    for _ in 0..4 {
        assert_eq!(flow.bbr.state, Mode::Up);
        flow.window.cwnd = flow.bbr.volume.longterm;
        let sample = AckSample { is_cwnd_limited: true, ..flow.sample(100, 110) };
        flow.take(&sample);
        limits.push(flow.bbr.volume.longterm);
    }
    let growth: Vec<_> = limits.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(growth.windows(2).all(|pair| pair[1] > pair[0]), "{growth:?}");
}

#[test]
fn loss_in_cruise_lowers_the_short_term_model_by_what_was_not_delivered() {
    let mut flow = Flow::probing();
    flow.until(Mode::Cruise);
    flow.round(100, 100);
    flow.lose(1, 0, 100);
    flow.round(90, 100);
    flow.round(90, 100);
    assert_eq!(flow.bbr.bw(), Rate(10_000_000), "100 were delivered within the round");
    flow.lose(1, 0, 100);
    flow.round(90, 90);
    flow.round(90, 90);
    assert_eq!(flow.bbr.bw(), Rate(9_000_000));
    flow.lose(50, 0, 100);
    flow.round(10, 90);
    flow.round(10, 90);
    flow.lose(50, 0, 100);
    flow.round(10, 90);
    flow.round(10, 90);
    assert!(flow.bbr.bw() >= Rate(6_300_000), "{:?}: no more than 0.3 per round", flow.bbr.bw());
    flow.until(Mode::Refill);
    assert_eq!(flow.bbr.bw(), Rate(10_000_000), "a probe forgets it");
    assert_eq!(flow.bbr.volume.shortterm, UNLIMITED);
}

#[test]
fn marks_cut_the_volume_and_end_probes_and_start_up() {
    let mut flow = Flow::probing();
    flow.until(Mode::Cruise);
    flow.round(100, 120);
    flow.bbr.on_event(CongestionEvent::Cwr, flow.now, &mut flow.window);
    flow.round(100, 120);
    assert_eq!(flow.bbr.volume.shortterm, 85);
    flow.round(100, 85);
    assert_eq!(flow.bbr.volume.shortterm, 85, "once per mark");
    flow.until(Mode::Up);
    flow.bbr.on_event(CongestionEvent::Cwr, flow.now, &mut flow.window);
    flow.round(100, 125);
    assert_eq!((flow.bbr.state, flow.bbr.volume.longterm), (Mode::Down, 125));

    let mut flow = Flow::new();
    for delivered in [10, 20, 40] {
        flow.round(delivered, 190);
    }
    flow.bbr.on_event(CongestionEvent::Cwr, flow.now, &mut flow.window);
    flow.round(80, 190);
    assert_eq!(flow.bbr.state, Mode::Startup);
    flow.bbr.on_event(CongestionEvent::Cwr, flow.now, &mut flow.window);
    flow.round(100, 190);
    assert_eq!(flow.bbr.state, Mode::Drain, "two rounds in a row");
}

#[test]
fn what_was_spurious_is_taken_back() {
    let mut flow = Flow::probing();
    flow.until(Mode::Up);
    flow.round(100, 125);
    let cwnd = flow.window.cwnd;
    flow.lose(20, 0, 150);
    flow.bbr.ssthresh(flow.now, &flow.window);
    assert_eq!(flow.bbr.state, Mode::Down);
    assert_ne!(flow.bbr.volume.longterm, UNLIMITED);
    flow.window.cwnd = 20;
    flow.bbr.on_event(CongestionEvent::Undo, flow.now, &mut flow.window);
    assert_eq!(flow.bbr.state, Mode::Refill);
    assert_eq!((flow.bbr.volume.longterm, flow.window.cwnd), (UNLIMITED, cwnd));
}

#[test]
fn the_round_trip_time_is_probed_every_five_seconds_at_half_the_product() {
    let mut flow = Flow::probing();
    let higher = Some(RTT + Nanos(1));
    let mut rounds = 0;
    while flow.bbr.state != Mode::ProbeRtt {
        let sample = AckSample { rtt: higher, ..flow.sample(100, 100) };
        flow.take(&sample);
        rounds += 1;
    }
    assert!((485..=501).contains(&rounds), "{rounds}");
    assert_eq!(flow.window.cwnd, 50);
    assert!(flow.bbr.marks_app_limited());
    assert_eq!(flow.bbr.min_rtt.value, RTT, "remembered for ten");
    let small = flow.now;
    while flow.bbr.state == Mode::ProbeRtt {
        let sample = AckSample { rtt: higher, is_app_limited: true, ..flow.sample(50, 50) };
        flow.take(&sample);
    }
    let held = flow.now.since(small);
    assert!((200..=240).contains(&held.as_millis()), "{held:?}");
    assert_eq!(flow.bbr.state, Mode::Cruise);
    assert!(flow.window.cwnd > 150, "{}", flow.window.cwnd);
}

#[test]
fn a_slow_application_changes_nothing_and_after_idle_it_starts_at_the_bandwidth() {
    let mut flow = Flow::probing();
    flow.until(Mode::Cruise);
    for _ in 0..400 {
        let sample = AckSample { is_app_limited: true, ..flow.sample(5, 5) };
        flow.take(&sample);
    }
    assert_eq!(flow.bbr.bandwidth.max(), Rate(10_000_000));
    flow.until(Mode::Up);
    let event = CongestionEvent::TxStart { last_sent: flow.now, is_app_limited: true };
    flow.now += Nanos::from_secs(6);
    flow.bbr.on_event(event, flow.now, &mut flow.window);
    assert_eq!(flow.bbr.pacing_rate.0, PACED);
    flow.round(5, 5);
    assert_ne!(flow.bbr.state, Mode::ProbeRtt, "the pause has drained the queue");
}
