//! Start-up to the end: what each version does over time.

use crate::check_snapshot;
use core::fmt::Write;
use neap_lab::bottleneck::{BottleneckPath, BottleneckRun, Flow, FlowFigures};
use neap_lab::link::Policer;
use neap_lab::rng::Ppm;
use neap_tcp::info::TcpInfo;
use neap_tcp::time::{Nanos, Rate};

const MS: Nanos = Nanos::from_millis(1);

fn ms(n: u64) -> Nanos {
    MS.saturating_mul(n)
}

/// 20 Mbit/s, 40 ms, a buffer of two products.
fn path() -> BottleneckPath {
    BottleneckPath::new(Rate::from_bits(20_000_000), ms(40))
}

fn experiment(path: &BottleneckPath, flows: &[Flow]) -> BottleneckRun {
    BottleneckRun::new(path, flows, 1).expect("a world")
}

/// Rate, window and round-trip time in units of the path.
fn state(path: &BottleneckPath, info: &TcpInfo) -> [f64; 3] {
    let product = path.payload_rate() * path.rtt.as_secs_f64();
    [
        info.pacing_rate.0 as f64 / path.payload_rate(),
        f64::from(info.snd_cwnd) * f64::from(info.snd_mss) / product,
        info.rtt.0 as f64 / path.base_rtt().0 as f64,
    ]
}

/// One flow from the beginning, through its first cycles.
fn start(controller: &'static str) -> String {
    let path = path();
    let mut world = experiment(&path, &[Flow::bulk(controller)]);
    let mut text = "start-up, drain, cycle: time, rate, window, round-trip time\n".to_owned();
    let (mut peak, mut settled) = (0.0f64, f64::MAX);
    for step in 3..=50 {
        world.run_until(ms(step * 20)).expect("a run");
        let [rate, cwnd, rtt] = state(&path, &world.info(0).expect("it runs"));
        writeln!(text, "{:>6} ms {rate:>6.2} {cwnd:>6.2} {rtt:>6.2}", step * 20).expect("a string");
        peak = peak.max(rate);
        if step > 30 {
            settled = settled.min(rtt);
        }
    }
    assert!(peak > 2.0, "start-up doubles the rate each round: {peak}\n{text}");
    assert!(settled < 1.15, "the queue of start-up is drained: {settled}\n{text}");
    text
}

/// How often and how long the window is small.
fn probe_rtt(controller: &'static str) -> String {
    let path = path();
    let mut world = experiment(&path, &[Flow::bulk(controller)]);
    let (mut visits, mut small, mut least) = (0, 0, f64::MAX);
    let mut was_small = false;
    for step in 100..=2400 {
        world.run_until(ms(step * 10)).expect("a run");
        let [_, cwnd, _] = state(&path, &world.info(0).expect("it runs"));
        let is_small = cwnd < 0.7;
        (visits, small) = (visits + u32::from(is_small && !was_small), small + u32::from(is_small));
        (was_small, least) = (is_small, least.min(cwnd));
    }
    // Ten seconds after the lowest sample with four segments, or after one of the cycle that is no
    // higher; five seconds after it with half the product.
    let (expected, window) =
        if controller == "bbr" { (2..=2, 0.0..0.1) } else { (3..=4, 0.4..0.6) };
    assert!(expected.contains(&visits), "{visits}: {least} for {small}");
    assert!(window.contains(&least), "{least}");
    let each = small * 10 / visits;
    assert!((200..=360).contains(&each), "{each} ms");
    format!("PROBE_RTT in 23 s: {visits} visits of {each} ms, least window {least:.2}\n")
}

fn measure(path: &BottleneckPath, flows: &[Flow], from: u64, to: u64) -> Vec<FlowFigures> {
    experiment(path, flows).measure(ms(from), ms(to)).expect("a run")
}

/// An application at a fifth of the link for a time, then without bounds.
fn application(controller: &'static str) -> String {
    let path = path();
    let slow = Rate((path.payload_rate() / 5.0) as u64);
    let flow = Flow { at_most: Some(slow), ..Flow::bulk(controller) };
    let figures = measure(&path, &[flow], 1000, 4000)[0];
    assert!((0.195..0.205).contains(&figures.share), "{figures:?}");
    assert!(figures.rtt < 1.1, "{figures:?}");
    let paused = Flow { pause: Some((ms(3000), ms(5500))), ..Flow::bulk(controller) };
    let mut world = experiment(&path, &[paused]);
    world.run_until(ms(2900)).expect("a run");
    let dropped = world.dropped();
    let after = world.measure(ms(5600), ms(6600)).expect("a run")[0];
    let burst = world.dropped() - dropped;
    assert!(after.share > 0.93, "the bandwidth is remembered: {after:?}");
    assert_eq!(burst, 0, "and not exceeded");
    format!(
        "application at 20 %: goodput {:.1} %, round-trip time {:.2}\n\
         after a pause of 2.5 s: goodput {:.1} % in the first second, {burst} drops\n",
        figures.share * 100.0,
        figures.rtt,
        after.share * 100.0,
    )
}

fn loss_and_marks(controller: &'static str) -> String {
    let lossy = BottleneckPath { loss: Ppm(10_000), ..path() };
    let loss = measure(&lossy, &[Flow::bulk(controller)], 1000, 11_000)[0];
    assert!(loss.share > 0.75, "{loss:?}");
    let marked = BottleneckPath { marks: Ppm(1000), ..path() };
    let marks = measure(&marked, &[Flow::bulk(controller)], 1000, 11_000)[0];
    // Version 1 does not answer; version 3 gives way.
    let bounds = if controller == "bbr" { 0.95..1.01 } else { 0.3..0.95 };
    assert!(bounds.contains(&marks.share), "{marks:?}");
    format!(
        "1 % loss: goodput {:.1} %\n0.1 % marks: goodput {:.1} %, round-trip time {:.2}\n",
        loss.share * 100.0,
        marks.share * 100.0,
        marks.rtt
    )
}

/// Half of the link passes, and what is over is lost.
fn policer(controller: &'static str) -> String {
    let path = path();
    let policed = Policer { rate: Rate(path.rate.0 / 2), burst: path.rate.bytes_in(ms(20)) };
    let path = BottleneckPath { policer: Some(policed), ..path };
    let figures = measure(&path, &[Flow::bulk(controller)], 2000, 22_000)[0];
    let share = figures.share * 2.0;
    assert!(share > 0.8, "{figures:?}");
    assert!(figures.resent < 0.1, "{figures:?}");
    format!("policer: goodput {:.1} %, sent again {:.1} %\n", share * 100.0, figures.resent * 100.0)
}

fn sharing(controller: &'static str) -> String {
    let path = path();
    let late = Flow { begins: ms(3000), ..Flow::bulk(controller) };
    let two = measure(&path, &[Flow::bulk(controller), late], 10_000, 30_000);
    let shares = [two[0].share, two[1].share];
    assert!(shares[0] + shares[1] > 0.93, "{two:?}");
    assert!(shares[0].min(shares[1]) > 0.3, "neither starves: {two:?}");
    let mut text = format!(
        "two flows, the second 3 s later: {:.1} % and {:.1} %\n",
        shares[0] * 100.0,
        shares[1] * 100.0
    );
    // In a deep buffer CUBIC takes half a minute to forget its slow start.
    for (buffer_permille, from, to) in [(1000, 10, 30), (2000, 10, 30), (4000, 30, 55)] {
        let path = BottleneckPath { buffer_permille, ..path.clone() };
        let flows = [Flow::bulk(controller), Flow::bulk("cubic")];
        let beside = measure(&path, &flows, from * 1000, to * 1000);
        let ratio = beside[0].share / beside[1].share;
        if controller == "bbr3" {
            assert!((0.5..=2.0).contains(&ratio), "{buffer_permille}: {beside:?}");
        }
        writeln!(
            text,
            "beside CUBIC, buffer {:.1}: {:.1} % and {:.1} %, {ratio:.2} times",
            buffer_permille as f64 / 1000.0,
            beside[0].share * 100.0,
            beside[1].share * 100.0
        )
        .expect("a string");
    }
    text
}

fn table(controller: &'static str) {
    let parts = [start, probe_rtt, application, loss_and_marks, policer, sharing];
    let text = parts.map(|part| part(controller)).join("\n");
    check_snapshot(&format!("behaviours-{controller}.txt"), &text);
}

#[test]
fn bbr_over_time() {
    table("bbr");
}

#[test]
fn bbr3_over_time() {
    table("bbr3");
}
