//! One rule each, ACK by ACK.

use super::*;
use crate::congestion::HyStartRule;

const MSS: u32 = 1000;
const RTT: Nanos = Nanos::from_millis(10);

/// A flow whose ACKs come once per round trip.
struct Flow {
    bbr: Bbr,
    window: Window,
    now: Instant,
    delivered: u64,
}

impl Flow {
    fn new() -> Self {
        let (mut bbr, mut window) = (Bbr::default(), Window::new(10));
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
            delivered,
            prior_delivered,
            total_delivered: self.delivered,
            interval: RTT,
            rtt: Some(RTT),
            srtt: RTT,
            min_rtt: RTT,
            mss: MSS,
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

    /// At 100 segments per round trip, start-up and drain over.
    fn cruising() -> Self {
        let mut flow = Self::new();
        for delivered in [10, 20, 40, 80, 100, 100, 100, 100] {
            flow.round(delivered, 250);
        }
        flow.round(100, 100);
        assert_eq!(flow.bbr.mode, Mode::ProbeBw);
        flow
    }

    fn rate(&self) -> u64 {
        self.bbr.pacing_rate.0
    }
}

/// 100 segments of 1000 bytes in 10 ms, margin subtracted.
const PACED: u64 = 10_000_000 / 100 * 99;

#[test]
fn start_up_ends_after_three_rounds_without_growth_and_is_drained() {
    let mut flow = Flow::new();
    for delivered in [10, 20, 40, 80, 100, 100, 100] {
        flow.round(delivered, 250);
        assert_eq!(flow.bbr.mode, Mode::Startup, "{delivered}");
    }
    assert_eq!(flow.rate(), PACED * 739 / 256);
    flow.round(100, 250);
    assert_eq!(flow.bbr.mode, Mode::Drain);
    assert_eq!(flow.rate(), PACED * 88 / 256);
    // The product and three frames of a millisecond at the rate of the flow.
    let target = flow.bbr.inflight(Rate(10_000_000), UNIT);
    assert_eq!(flow.window.ssthresh, 100 + 3 * 28);
    flow.round(100, target + 1);
    assert_eq!(flow.bbr.mode, Mode::Drain);
    flow.round(100, target);
    assert_eq!(flow.bbr.mode, Mode::ProbeBw);
}

#[test]
fn what_waits_for_its_departure_is_not_in_the_network() {
    let mut flow = Flow::new();
    for delivered in [10, 20, 40, 80, 100, 100, 100, 100] {
        flow.round(delivered, 250);
    }
    let mut sample = flow.sample(100, 200);
    sample.next_departure = sample.now + Nanos::from_millis(9);
    flow.take(&sample);
    assert_eq!(flow.bbr.mode, Mode::ProbeBw, "90 of 200 are delivered until then");
}

#[test]
fn a_slow_application_does_not_end_start_up_and_does_not_lower_the_rate() {
    let mut flow = Flow::new();
    flow.round(50, 50);
    let rate = flow.rate();
    for _ in 0..20 {
        let sample = AckSample { is_app_limited: true, ..flow.sample(5, 5) };
        flow.take(&sample);
    }
    assert_eq!((flow.bbr.mode, flow.rate()), (Mode::Startup, rate));
    let sample = AckSample { is_app_limited: true, ..flow.sample(80, 80) };
    flow.take(&sample);
    assert!(flow.rate() > rate, "but what it delivers at the most counts");
}

#[test]
fn the_cycle_probes_drains_and_cruises() {
    let mut flow = Flow::cruising();
    assert_ne!(flow.bbr.pacing_gain, UNIT * 3 / 4, "nothing to drain at first");
    let mut gains = Vec::new();
    for _ in 0..40 {
        // Full of what the phase wants, so that each takes a round trip and a bit.
        flow.now += Nanos::from_micros(1);
        flow.round(100, 240);
        gains.push(flow.bbr.pacing_gain);
        let paced = PACED * u64::from(flow.bbr.pacing_gain) / 256;
        assert!(flow.rate().abs_diff(paced) <= paced / 1000);
    }
    let first = gains.iter().position(|&gain| gain == 320).expect("a probe");
    assert_eq!(gains[first..first + 16], [CYCLE, CYCLE].concat());
}

#[test]
fn a_probe_lasts_until_the_volume_is_there_or_something_is_lost() {
    let mut flow = Flow::cruising();
    while flow.bbr.pacing_gain != 320 {
        flow.now += Nanos::from_micros(1);
        flow.round(100, 240);
    }
    for _ in 0..5 {
        flow.round(100, 120);
        flow.now += Nanos::from_micros(1);
        assert_eq!(flow.bbr.pacing_gain, 320);
    }
    let sample = AckSample { losses: 1, ..flow.sample(100, 120) };
    flow.take(&sample);
    assert_eq!(flow.bbr.pacing_gain, 192);
    flow.round(100, 100);
    assert_eq!(flow.bbr.pacing_gain, UNIT, "drained at once");
}

#[test]
fn the_round_trip_time_is_probed_after_ten_seconds_without_a_lower_one() {
    let mut flow = Flow::cruising();
    let higher = Some(RTT + Nanos(1_000));
    let mut rounds = 0;
    while flow.bbr.mode != Mode::ProbeRtt {
        let sample = AckSample { rtt: higher, ..flow.sample(100, 100) };
        flow.take(&sample);
        rounds += 1;
    }
    assert!((985..=1001).contains(&rounds), "{rounds}");
    assert_eq!(flow.window.cwnd, MIN_WINDOW);
    assert!(flow.bbr.marks_app_limited());
    let small = flow.now;
    while flow.bbr.mode == Mode::ProbeRtt {
        assert_eq!(flow.window.cwnd, MIN_WINDOW);
        let sample = AckSample { rtt: higher, is_app_limited: true, ..flow.sample(4, 4) };
        flow.take(&sample);
    }
    let held = flow.now.since(small);
    assert!(held > PROBE_RTT_TIME && held < PROBE_RTT_TIME + RTT.saturating_mul(4), "{held:?}");
    assert!(flow.window.cwnd >= 200, "{}: restored", flow.window.cwnd);
    assert_eq!(flow.bbr.min_rtt.value, RTT + Nanos(1_000), "what was measured counts");
}

#[test]
fn recovery_conserves_packets_for_a_round_and_then_restores_the_window() {
    let mut flow = Flow::cruising();
    flow.round(100, 100);
    let cwnd = flow.window.cwnd;
    flow.bbr.ssthresh(flow.now, &flow.window);
    flow.now += Nanos::from_millis(1);
    let lossy = |flow: &mut Flow| {
        let mut sample = flow.sample(10, 60);
        // In the middle of a round.
        sample.prior_delivered = 0;
        (sample.state, sample.losses) = (CaState::Recovery, 20);
        sample
    };
    let sample = lossy(&mut flow);
    flow.take(&sample);
    assert_eq!(flow.window.cwnd, 70, "in flight and what was delivered");
    let sample = AckSample { losses: 0, ..lossy(&mut flow) };
    flow.take(&sample);
    assert_eq!(flow.window.cwnd, 70);
    let sample = AckSample { state: CaState::Recovery, ..flow.sample(10, 60) };
    flow.take(&sample);
    assert_eq!(flow.window.cwnd, 80, "then slow start");
    flow.round(10, 60);
    assert!(flow.window.cwnd >= cwnd - 2, "{} and {cwnd}", flow.window.cwnd);
}

#[test]
fn a_timeout_starts_the_search_for_a_full_pipe_over_and_the_window_comes_back() {
    let mut flow = Flow::cruising();
    flow.round(100, 100);
    let cwnd = flow.window.cwnd;
    flow.bbr.ssthresh(flow.now, &flow.window);
    flow.bbr.on_event(CongestionEvent::Loss, flow.now, &mut flow.window);
    flow.window.cwnd = 1;
    let sample = AckSample { state: CaState::Loss, ..flow.sample(1, 1) };
    flow.take(&sample);
    assert_eq!(flow.window.cwnd, MIN_WINDOW);
    flow.round(10, 10);
    assert!(flow.window.cwnd >= cwnd - 2, "{} and {cwnd}", flow.window.cwnd);
}

#[test]
fn after_idle_it_starts_at_the_bandwidth() {
    let mut flow = Flow::cruising();
    while flow.bbr.pacing_gain != 320 {
        flow.now += Nanos::from_micros(1);
        flow.round(100, 240);
    }
    let event = CongestionEvent::TxStart { last_sent: flow.now, is_app_limited: true };
    flow.now += Nanos::from_secs(11);
    flow.bbr.on_event(event, flow.now, &mut flow.window);
    assert_eq!(flow.rate(), PACED);
    flow.round(4, 4);
    assert_ne!(flow.bbr.mode, Mode::ProbeRtt, "the pause has drained the queue");
}

#[test]
fn a_policed_rate_is_paced_at_without_probes() {
    let mut flow = Flow::cruising();
    let mut lost = 0;
    for _ in 0..9 {
        lost += 40;
        let sample = AckSample { losses: 40, total_lost: lost, ..flow.sample(100, 240) };
        flow.take(&sample);
    }
    assert_eq!(flow.bbr.policer.rate(), Some(Rate(10_000_000)));
    for _ in 0..40 {
        flow.now += Nanos::from_micros(1);
        flow.round(100, 240);
        assert_eq!(flow.rate(), PACED);
    }
    let probes = (0..20).any(|_| {
        flow.now += Nanos::from_micros(1);
        flow.round(100, 240);
        flow.bbr.pacing_gain == 320
    });
    assert!(probes, "it is believed for 48 round trips");
}

#[test]
fn frames_are_single_segments_at_a_trickle() {
    let mut flow = Flow::new();
    assert_eq!((flow.bbr.min_tso_segs(), flow.bbr.sndbuf_expand()), (Some(2), 3));
    flow.bbr.pacing_rate = Rate::from_bits(1_000_000);
    assert_eq!(flow.bbr.min_tso_segs(), Some(1));
}
