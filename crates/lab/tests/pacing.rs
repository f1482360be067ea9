//! Paced flows in virtual time: their rate, their bursts, who executes their stamps, and how often
//! a timer wakes the host for them.

use bytes::Bytes;
use neap_lab::app::{App, Step};
use neap_lab::link::{Coalescing, Departed, Link, LinkConfig, NicConfig, PathConfig};
use neap_lab::world::{HostId, World, WorldConfig};
use neap_stack::qdisc::config::QdiscConfig;
use neap_stack::qdisc::fq;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack, StackConfig};
use neap_tcp::config::Config;
use neap_tcp::counters::Counter;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::{Instant, Nanos, Rate};
use std::collections::BTreeMap;

const ADDRESSES: [&str; 2] = ["10.0.0.1/24", "10.0.0.2/24"];
const SERVER: &str = "10.0.0.2:5201";

/// Opens so many connections one after the other, and writes whenever it may.
struct Senders {
    count: usize,
    next: Instant,
    options: SocketOptions,
    handles: Vec<TcpHandle>,
    data: Bytes,
}

impl App for Senders {
    fn step(&mut self, stack: &Stack, now: Instant) -> Step {
        let mut did = false;
        while self.handles.len() < self.count && self.next <= now {
            self.next = now + Nanos(50_021_003 / self.count as u64);
            let options = ConnectOptions { options: self.options.clone(), ..Default::default() };
            let remote = SERVER.parse().expect("an address");
            self.handles.push(stack.connect(now, remote, options).expect("a connection"));
            did = true;
        }
        for handle in &self.handles {
            let ready = handle.readiness().bits();
            if ready.contains(neap_stack::socket::readiness::Ready::WRITABLE) {
                did |= handle.write_bytes(now, &mut self.data.clone()).is_ok();
            }
        }
        let is_complete = self.handles.len() == self.count;
        Step { did, next: if is_complete { Instant::FAR_FUTURE } else { self.next } }
    }
}

/// Accepts all and reads all.
struct Receivers {
    listener: ListenerHandle,
    handles: Vec<TcpHandle>,
}

impl App for Receivers {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        let mut did = false;
        while let Ok((handle, _)) = self.listener.accept() {
            self.handles.push(handle);
            did = true;
        }
        for handle in &self.handles {
            let ready = handle.readiness().bits();
            if ready.contains(neap_stack::socket::readiness::Ready::READABLE) {
                while matches!(handle.read_bytes(now), Ok(Some(_))) {
                    did = true;
                }
            }
        }
        Step { did, ..Step::IDLE }
    }
}

/// One run: so many flows, each limited to `rate`.
struct Run {
    world: World,
    sender: HostId,
    link: Link,
}

struct Setting {
    flows: usize,
    rate: Rate,
    mtu: u16,
    wire: Rate,
    wake_jitter: Nanos,
}

impl Setting {
    fn new(flows: usize, mbit: u64) -> Self {
        Self {
            flows,
            rate: Rate::from_bits(mbit * 1_000_000),
            mtu: 1500,
            wire: Rate::from_bits(400_000_000_000),
            wake_jitter: Nanos::from_micros(50),
        }
    }

    fn start(&self) -> Run {
        let config = WorldConfig { seed: 5, wake_jitter: self.wake_jitter, ..Default::default() };
        let mut world = World::new(config);
        let host = || StackConfig { config: Config::default(), ..StackConfig::default() };
        let sender = world.add_host(host()).expect("a host");
        let receiver = world.add_host(host()).expect("a host");
        let coalescing = Coalescing { delay: Nanos::from_micros(20), frames: 64 };
        let nic = NicConfig {
            mtu: self.mtu,
            descriptors: 4096,
            rx_coalescing: coalescing,
            tx_coalescing: coalescing,
            ..NicConfig::default()
        };
        let path = PathConfig::clean(self.wire, Nanos::from_micros(500));
        let link = LinkConfig { nics: [nic.clone(), nic], paths: [path.clone(), path] };
        let [a, b] = ADDRESSES.map(|cidr| [cidr.parse().expect("an address")]);
        let link = world.add_link(&link, [(sender, &a), (receiver, &b)]).expect("a link");
        let options = SocketOptions { max_pacing_rate: self.rate, ..SocketOptions::default() };
        let listener = world
            .stack(receiver)
            .listen(SERVER.parse().expect("an address"), ListenOptions::default());
        let listener = listener.expect("a listener");
        world.add_app(receiver, Receivers { listener, handles: Vec::new() });
        let data = Bytes::from(vec![7; 64 << 10]);
        let (count, next) = (self.flows, world.now());
        world.add_app(sender, Senders { count, next, options, handles: Vec::new(), data });
        Run { world, sender, link }
    }
}

impl Run {
    fn pass(&mut self, span: Nanos) {
        let until = self.world.now() + span;
        self.world.run_until(until).expect("a sound world");
    }

    /// What leaves until `span` has passed, by flow: from the last call on, or
    /// from [`Link::trace`].
    fn traced(&mut self, span: Nanos) -> BTreeMap<u64, Vec<Departed>> {
        self.pass(span);
        let mut flows = BTreeMap::<u64, Vec<Departed>>::new();
        for departed in self.link.trace(0) {
            flows.entry(departed.flow).or_default().push(departed);
        }
        flows
    }

    fn set_qdisc(&self, qdisc: &QdiscConfig) {
        let stack = self.world.stack(self.sender);
        let (interface, ..) = self.world.interfaces(self.sender).next().expect("a link");
        stack.set_qdisc(self.world.now(), interface, qdisc).expect("the interface is there");
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.world.stack(self.sender).tcp_counter(counter)
    }
}

/// The rate from the first departure to the last: whole frames, whole gaps.
fn rate_error(departures: &[Departed], rate: Rate) -> f64 {
    let [first, .., last] = departures else { panic!("hardly any frames") };
    let bytes: u64 = departures[..departures.len() - 1].iter().map(|d| u64::from(d.bytes)).sum();
    let measured = bytes as f64 / last.at.since(first.at).as_secs_f64();
    measured / rate.0 as f64 - 1.0
}

/// A bucket that runs out at the rate never holds more than the frame that has just come, and what
/// was due while the host was late.
fn check_bursts(departures: &[Departed], rate: Rate, lateness: Nanos) {
    let largest = departures.iter().map(|d| f64::from(d.bytes)).fold(0.0, f64::max);
    let most = largest + rate.0 as f64 * lateness.as_secs_f64();
    let (mut level, mut last) = (0.0, departures[0].at);
    for departed in departures {
        level = f64::max(level - rate.0 as f64 * departed.at.since(last).as_secs_f64(), 0.0);
        level += f64::from(departed.bytes);
        last = departed.at;
        assert!(level <= most, "{level} bytes at once, a frame has {largest}: {departed:?}");
    }
}

/// How late a host of the lab may be: jitter, timer slack and the tick of the wheel.
const LATE: Nanos = Nanos::from_micros(72);

/// How late a frame may be so that many flows share wake-ups: a 16th of its gap, and a millisecond.
fn shared_lateness(rate: Rate, frame: u64) -> Nanos {
    Nanos((rate.time_for(frame).0 / 16).min(1 << 20))
}

/// Runs for `span`, after slow start, with the stamps executed by the connections or by `qdisc`.
fn check_rate(setting: &Setting, qdisc: &QdiscConfig, span: Nanos) {
    let mut run = setting.start();
    run.set_qdisc(qdisc);
    run.pass(Nanos::from_millis(300));
    run.link.trace(0);
    let flows = run.traced(span);
    assert_eq!(flows.len(), setting.flows);
    let largest = flows.values().flatten().map(|departed| departed.bytes).max().unwrap_or(0);
    let most_late = LATE + shared_lateness(setting.rate, largest.into());
    for (flow, departures) in &flows {
        let error = rate_error(departures, setting.rate);
        assert!(error.abs() < 0.005, "flow {flow}: {:.3} % off", error * 100.0);
        check_bursts(departures, setting.rate, most_late);
    }
    let departures = run.world.stack(run.sender).departures();
    let late = departures.percentile(99.0);
    assert!(departures.count() > 0 && late.0 <= most_late.0 * 5 / 4, "{late:?}");
}

const SECOND: Nanos = Nanos::from_secs(1);

fn pfifo_fast() -> QdiscConfig {
    QdiscConfig::default()
}

fn fq() -> QdiscConfig {
    QdiscConfig::Fq(fq::Config::default())
}

#[test]
fn one_megabit_per_second() {
    for flows in [1, 10, 100, 800] {
        check_rate(&Setting::new(flows, 1), &pfifo_fast(), SECOND);
    }
    check_rate(&Setting::new(100, 1), &fq(), SECOND);
}

#[test]
fn forty_eight_megabits_per_second() {
    for flows in [1, 10, 100] {
        check_rate(&Setting::new(flows, 48), &pfifo_fast(), SECOND);
    }
    check_rate(&Setting::new(10, 48), &fq(), SECOND);
}

#[test]
fn a_gigabit_per_second() {
    for flows in [1, 10] {
        check_rate(&Setting::new(flows, 1000), &pfifo_fast(), SECOND);
    }
    // A hundred for less than a second: 100 Gbit/s are many packets.
    let setting = Setting { mtu: 9000, ..Setting::new(100, 1000) };
    check_rate(&setting, &pfifo_fast(), SECOND / 10);
    check_rate(&Setting::new(1, 1000), &fq(), SECOND);
}

/// What a host that comes up to 20 ms late sends of a flow of 48 Mbit/s: by how much its rate is
/// wrong, and the departures.
fn late_host(qdisc: &QdiscConfig, sysctls: &[(&str, &str)]) -> (f64, Vec<Departed>) {
    host_late_by(20, qdisc, sysctls)
}

/// The same for a host that comes up to so many milliseconds late.
fn host_late_by(
    millis: u64,
    qdisc: &QdiscConfig,
    sysctls: &[(&str, &str)],
) -> (f64, Vec<Departed>) {
    let setting = Setting { wake_jitter: Nanos::from_millis(millis), ..Setting::new(1, 48) };
    let mut run = setting.start();
    for (name, value) in sysctls {
        run.world.stack(run.sender).set_sysctl(name, value).expect("a sysctl");
    }
    run.set_qdisc(qdisc);
    run.pass(SECOND);
    run.link.trace(0);
    let mut flows = run.traced(Nanos::from_secs(5));
    let (_, departures) = flows.pop_first().expect("a flow");
    (rate_error(&departures, setting.rate), departures)
}

#[test]
fn a_late_host_keeps_the_rate_and_bounds_the_burst() {
    let rate = Setting::new(1, 48).rate;
    let (error, departures) = late_host(&pfifo_fast(), &[]);
    assert!(error.abs() < 0.01, "{:.2} % off", error * 100.0);
    check_bursts(&departures, rate, Nanos::from_millis(20) + LATE);
    let (error, departures) = late_host(&fq(), &[]);
    assert!(error.abs() < 0.01, "{:.2} % off, with fq", error * 100.0);
    check_bursts(&departures, rate, Nanos::from_millis(20) + LATE);
    // A debt of 2 ms bounds the burst, and costs rate.
    let (error, departures) = late_host(&pfifo_fast(), &[("neap.tcp_pacing_debt_us", "2000")]);
    assert!(error < -0.1, "{:.2} % off", error * 100.0);
    check_bursts(&departures, rate, Nanos::from_millis(2) + LATE);
    // As Linux: half a gap.
    let (error, departures) = late_host(&pfifo_fast(), &[("neap.tcp_pacing_debt_us", "0")]);
    assert!(error < -0.5, "{:.2} % off", error * 100.0);
    check_bursts(&departures, rate, Nanos::from_micros(500));
}

#[test]
fn waits_longer_than_the_debt_cost_no_rate() {
    for qdisc in [pfifo_fast(), fq()] {
        let (error, _) = host_late_by(40, &qdisc, &[("neap.tcp_pacing_arrears_us", "0")]);
        assert!(error < -0.02, "{:.2} % off with the debt alone", error * 100.0);
        let (error, departures) = host_late_by(40, &qdisc, &[]);
        assert!(error.abs() < 0.01, "{:.2} % off", error * 100.0);
        // Arrears leave a third faster than the rate, and make no longer burst.
        let faster = Rate(Setting::new(1, 48).rate.0 * 4 / 3);
        check_bursts(&departures, faster, Nanos::from_millis(50) + LATE);
    }
}

#[test]
fn a_qdisc_that_comes_and_goes_makes_no_gap_and_no_burst() {
    for flows in [1, 10] {
        let setting = Setting::new(flows, 48);
        let mut run = setting.start();
        run.set_qdisc(&fq());
        run.pass(Nanos::from_millis(300));
        run.link.trace(0);
        let mut blocked = run.counter(Counter::PacingBlocked);
        let mut all = BTreeMap::<u64, Vec<Departed>>::new();
        for step in 0..12 {
            let is_internal = step % 2 == 0;
            if is_internal {
                run.set_qdisc(&pfifo_fast());
            } else {
                run.set_qdisc(&fq());
            }
            for (flow, departures) in run.traced(Nanos::from_millis(50)) {
                all.entry(flow).or_default().extend(departures);
            }
            let before = std::mem::replace(&mut blocked, run.counter(Counter::PacingBlocked));
            assert_eq!(blocked - before > 10, is_internal, "who waits in step {step}");
        }
        for departures in all.values() {
            let error = rate_error(departures, setting.rate);
            assert!(error.abs() < 0.005, "{:.3} % off", error * 100.0);
            check_bursts(departures, setting.rate, LATE);
            for pair in departures.windows(2) {
                let gap = pair[1].at.since(pair[0].at);
                let frames = setting.rate.time_for(2 * u64::from(pair[0].bytes));
                assert!(gap <= frames, "{gap:?} behind {:?}", pair[0]);
            }
        }
        assert_eq!(run.counter(Counter::RetransSegs), 0);
    }
}

/// Timer wake-ups and frames of 800 flows at 6,000,000 bytes per second over 100 Gbit/s.
fn wakeups(qdisc: &QdiscConfig) -> (u64, u64) {
    let setting = Setting { wire: Rate::from_bits(100_000_000_000), ..Setting::new(800, 48) };
    let mut run = setting.start();
    run.set_qdisc(qdisc);
    run.pass(Nanos::from_millis(150));
    run.link.trace(0);
    let before = run.counter(Counter::TimerWakeups);
    let flows = run.traced(Nanos::from_millis(100));
    assert_eq!(flows.len(), 800);
    for departures in flows.values() {
        let error = rate_error(departures, setting.rate);
        assert!(error.abs() < 0.005, "{:.3} % off", error * 100.0);
    }
    let frames = flows.values().map(|departures| departures.len() as u64).sum();
    (run.counter(Counter::TimerWakeups) - before, frames)
}

#[test]
fn timers_shared_by_800_flows_wake_no_more_often_than_those_of_a_qdisc() {
    let (internal, frames) = wakeups(&pfifo_fast());
    let (qdisc, _) = wakeups(&fq());
    assert!(internal <= qdisc, "{internal} wake-ups, {qdisc} of the qdisc");
    assert!(qdisc * 100 < frames, "{qdisc} wake-ups for {frames} frames");
}
