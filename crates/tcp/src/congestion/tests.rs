//! What holds for every controller, and the faults of other stacks that must not come back.

use super::*;
use proptest::prelude::*;

/// Those whose window only grows by ACKs.
const LOSS_BASED: [&str; 2] = ["reno", "cubic"];

fn make(name: &str) -> Box<dyn CongestionControl> {
    Controllers::default().make(name).expect("a known name")
}

fn controllers() -> impl Iterator<Item = Box<dyn CongestionControl>> {
    LOSS_BASED.iter().map(|name| make(name))
}

fn limited(ms: u64, acked: u32) -> AckSample {
    AckSample {
        now: Instant::ZERO + Nanos::from_millis(ms),
        acked_sacked: acked,
        acked,
        min_rtt: Nanos::from_millis(10),
        rtt: Some(Nanos::from_millis(10)),
        is_cwnd_limited: true,
        ..AckSample::default()
    }
}

#[test]
fn windows_saturate_instead_of_overflowing() {
    for mut controller in controllers() {
        for ssthresh in [u32::MAX, 2] {
            let mut window = Window::new(u32::MAX - 1);
            (window.clamp, window.ssthresh) = (u32::MAX, ssthresh);
            for ms in 0..10 {
                let sample = limited(ms * 100_000, u32::MAX);
                controller.on_ack(&sample, &mut window);
                assert!(window.cwnd >= u32::MAX - 1);
            }
        }
    }
}

#[test]
fn growth_counts_segments_acknowledged_and_not_acks() {
    for name in LOSS_BASED {
        let grow = |acks: u32, acked: u32| {
            let mut controller = make(name);
            let mut window = Window::new(100);
            for _ in 0..acks {
                controller.on_ack(&limited(0, acked), &mut window);
            }
            window.cwnd
        };
        assert_eq!(grow(20, 4), 180, "{name}");
        assert_eq!(grow(40, 2), 180, "{name}");
    }
}

#[test]
fn no_growth_when_not_cwnd_limited() {
    for mut controller in controllers() {
        for ssthresh in [u32::MAX, 2] {
            let mut window = Window::new(10);
            window.ssthresh = ssthresh;
            let before = window;
            for ms in 0..1000 {
                let sample = AckSample { is_cwnd_limited: false, ..limited(ms * 10, 10) };
                controller.on_ack(&sample, &mut window);
            }
            assert_eq!(window, before);
        }
    }
}

#[test]
fn acks_do_not_reduce_the_window_below_the_plateau() {
    for mut controller in controllers() {
        let mut window = Window::new(1000);
        window.ssthresh = controller.ssthresh(Instant::ZERO, &window);
        // The window is above what the curve says for a long time.
        window.cwnd = 1500;
        for ms in 0..20_000 {
            let before = window.cwnd;
            controller.on_ack(&limited(ms, 1), &mut window);
            assert!(window.cwnd >= before);
        }
    }
}

fn start(now: Instant, hystart: HyStartRule) -> Start {
    Start {
        now,
        srtt: Nanos::ZERO,
        min_rtt: Nanos::MAX,
        mss: 1000,
        frame_rule: FrameRule::Linux,
        hystart,
        delivered: 0,
        lost: 0,
        random: 1,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ack(Box<AckSample>),
    Reduce(CongestionEvent),
    Event(CongestionEvent),
}

/// What may come with an ACK besides: rates, losses, states.
fn model_sample() -> impl Strategy<Value = AckSample> {
    let nanos = || prop_oneof![Just(0), 0..20_000_000_000u64, any::<u64>()];
    let count = || prop_oneof![0..100u32, any::<u32>()];
    let states = [CaState::Open, CaState::Cwr, CaState::Recovery, CaState::Loss];
    let state = prop::sample::select(states.to_vec());
    let counts = (count(), count(), count(), count(), count());
    (sample(), nanos(), nanos(), counts, state, 0..70_000u32, any::<[u64; 2]>()).prop_map(
        |(sample, interval, departure, counts, state, mss, totals)| AckSample {
            interval: Nanos(interval),
            next_departure: Instant::from_nanos(departure),
            delivered: counts.0,
            losses: counts.1,
            lost: counts.2,
            in_flight: counts.3,
            tx_in_flight: counts.4,
            prior_in_flight: counts.3,
            state,
            mss,
            prior_delivered: totals[0],
            total_delivered: totals[0].max(totals[1]),
            total_lost: totals[1] as u32,
            ..sample
        },
    )
}

fn sample() -> impl Strategy<Value = AckSample> {
    let nanos = prop_oneof![Just(u64::MAX), 0..20_000_000_000u64, any::<u64>()];
    let acked = prop_oneof![0..100u32, any::<u32>()];
    (nanos.clone(), nanos, acked, any::<[bool; 4]>()).prop_map(|(min_rtt, rtt, acked, bits)| {
        AckSample {
            acked_sacked: acked,
            min_rtt: Nanos(min_rtt),
            rtt: bits[0].then_some(Nanos(rtt)),
            is_cwnd_limited: bits[1],
            is_round_start: bits[2],
            has_sack: bits[3],
            ..AckSample::default()
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    use CongestionEvent::{Cwr, Loss, Open, Recovery, TxStart, Undo};
    prop_oneof![
        8 => sample().prop_map(|sample| Step::Ack(Box::new(sample))),
        1 => prop::sample::select(vec![Recovery, Cwr, Loss]).prop_map(Step::Reduce),
        1 => prop::sample::select(vec![Open, Undo]).prop_map(Step::Event),
        1 => any::<u64>().prop_map(|at| {
            let last_sent = Instant::from_nanos(at);
            Step::Event(TxStart { last_sent, is_app_limited: at & 1 == 0 })
        }),
    ]
}

/// Every rule for leaving slow start.
const HYSTART: [HyStartRule; 3] = [HyStartRule::Off, HyStartRule::Linux, HyStartRule::Rfc9406];

proptest! {
    #[test]
    fn acks_never_reduce_a_window_and_nothing_makes_it_zero(
        name in prop::sample::select(LOSS_BASED.to_vec()),
        hystart in prop::sample::select(HYSTART.to_vec()),
        initial in prop_oneof![1..100u32, 1..=u32::MAX],
        clamp in prop_oneof![Just(1u32 << 20), 1..=u32::MAX],
        steps in prop::collection::vec((0..5_000_000_000u64, step()), 1..100),
    ) {
        let mut controller = make(name);
        let mut window = Window { clamp, ..Window::new(initial.min(clamp)) };
        let mut now = Instant::ZERO;
        controller.init(&start(now, hystart), &mut window);
        for (gap, step) in steps {
            now += Nanos(gap);
            let before = window;
            match step {
                Step::Ack(sample) => {
                    controller.on_ack(&AckSample { now, hystart, ..*sample }, &mut window);
                    prop_assert!(window.cwnd >= before.cwnd, "{before:?} to {window:?}");
                    prop_assert!(window.cwnd <= clamp);
                    prop_assert!(before.cwnd.saturating_add(sample.acked_sacked).saturating_add(1)
                        >= window.cwnd, "faster than slow start");
                }
                Step::Reduce(event) => {
                    window.ssthresh = controller.ssthresh(now, &window);
                    prop_assert!(window.ssthresh >= 2);
                    let cwnd = if event == CongestionEvent::Loss { 1 } else { window.ssthresh };
                    window.cwnd = cwnd.min(clamp);
                    controller.on_event(event, now, &mut window);
                }
                Step::Event(event) => controller.on_event(event, now, &mut window),
            }
            prop_assert!(window.cwnd > 0);
        }
    }
    /// Whatever ACKs say, even of counts that go back: no panic, no window of nothing, none above
    /// the clamp, and a rate.
    #[test]
    fn a_model_of_nonsense_is_still_a_window_and_a_rate(
        name in prop::sample::select(vec!["bbr", "bbr3"]),
        clamp in prop_oneof![Just(1u32 << 20), 1..=u32::MAX],
        steps in prop::collection::vec(
            (0..5_000_000_000u64, model_sample(), prop::option::of(step())),
            1..100,
        ),
    ) {
        let mut controller = make(name);
        let mut window = Window { clamp, ..Window::new(10.min(clamp)) };
        let mut now = Instant::ZERO;
        controller.init(&start(now, HyStartRule::Rfc9406), &mut window);
        for (gap, sample, step) in steps {
            now += Nanos(gap);
            if sample.losses > 0 {
                let lost = LostSegments {
                    segments: sample.losses,
                    tx_in_flight: sample.tx_in_flight,
                    lost: sample.lost,
                    is_app_limited: false,
                    total_delivered: sample.total_delivered,
                };
                controller.on_lost(now, &lost, &window);
            }
            match step {
                Some(Step::Reduce(event)) => {
                    prop_assert_eq!(controller.ssthresh(now, &window), window.ssthresh);
                    controller.on_event(event, now, &mut window);
                }
                Some(Step::Event(event)) => controller.on_event(event, now, &mut window),
                _ => {}
            }
            controller.on_ack(&AckSample { now, ..sample }, &mut window);
            prop_assert!(window.cwnd > 0 && window.cwnd <= clamp);
            prop_assert!(controller.pacing_rate().is_some_and(|rate| rate != Rate::UNLIMITED));
        }
    }
}
