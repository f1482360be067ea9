//! Queueing disciplines at a sender whose own link is the bottleneck.

use bytes::Bytes;
use core::cell::RefCell;
use core::net::SocketAddr;
use neap_lab::app::session::{self, Ending, Plan, Reading, SharedSessionLog, Turns, Writing};
use neap_lab::app::{App, Step};
use neap_lab::histogram::Times;
use neap_lab::link::{Link, LinkConfig, NicConfig, PathConfig};
use neap_lab::oracle;
use neap_lab::pattern::Pattern;
use neap_lab::rng::{Ppm, Rng};
use neap_lab::world::{HostId, World, WorldConfig};
use neap_stack::interface::{Address, InterfaceId};
use neap_stack::qdisc::config::QdiscConfig;
use neap_stack::qdisc::report::{Report, Xstats};
use neap_stack::socket::SocketError;
use neap_stack::socket::udp::UdpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack, StackConfig, UdpOptions};
use neap_tcp::options::SocketOptions;
use neap_tcp::time::{Instant, Nanos, Rate};
use std::rc::Rc;

/// Two hosts: `a` sends, behind a qdisc, over a link that is all there is.
struct Pair {
    world: World,
    link: Link,
    a: HostId,
    b: HostId,
    rng: Rng,
    next_port: u16,
}

impl Pair {
    fn new(rate: Rate, rtt: Nanos, qdisc: &str) -> Self {
        let mut world = World::new(WorldConfig::default());
        let mut host = || world.add_host(StackConfig::default()).expect("a host");
        let (a, b) = (host(), host());
        let nic = NicConfig::default();
        let path = PathConfig::clean(rate, rtt / 2);
        let config = LinkConfig { nics: [nic.clone(), nic], paths: [path.clone(), path] };
        let address = |text: &str| text.parse::<Address>().expect("an address");
        let (ours, theirs) = (address("10.0.0.1/24"), address("10.0.0.2/24"));
        let link = world.add_link(&config, [(a, &[ours]), (b, &[theirs])]).expect("a link");
        let mut pair = Self { world, link, a, b, rng: Rng::new(1), next_port: 5000 };
        pair.replace(qdisc);
        pair
    }

    fn replace(&mut self, qdisc: &str) {
        let config: QdiscConfig = qdisc.parse().expect("well formed");
        let stack = self.world.stack(self.a);
        stack.set_qdisc(self.world.now(), self.interface(), &config).expect("it is there");
    }

    fn interface(&self) -> InterfaceId {
        self.world.interfaces(self.a).next().expect("a link").0
    }

    fn report(&self) -> Report {
        self.world.stack(self.a).qdiscs(self.world.now(), self.interface()).remove(0)
    }

    fn run(&mut self, span: Nanos) {
        let until = self.world.now() + span;
        self.world.run_until(until).expect("a sound world");
    }

    fn port(&mut self) -> SocketAddr {
        self.next_port += 1;
        SocketAddr::new("10.0.0.2".parse().expect("an address"), self.next_port)
    }

    /// A connection from `a` to `b`: the log of each.
    fn connect(
        &mut self,
        writes: Writing,
        answers: Writing,
        rate: Rate,
    ) -> (SharedSessionLog, SharedSessionLog) {
        let remote = self.port();
        let plan = |writing: Writing, reads: Pattern| Plan {
            ending: if writing.bytes == u64::MAX { Ending::Stay } else { Ending::HalfClose },
            writing,
            reading: reading(reads),
        };
        let (there, back) = (writes.pattern, answers.pattern);
        let (rng, stack) = (self.rng.fork(remote.port().into()), self.world.stack(self.b));
        let options = ListenOptions::default();
        let (server, sink) =
            session::server(stack, remote, options, plan(answers, there), rng.fork(1))
                .expect("free");
        let options = SocketOptions { max_pacing_rate: rate, ..SocketOptions::default() };
        let options = ConnectOptions { options, ..ConnectOptions::default() };
        let now = self.world.now();
        let (client, source) =
            session::client(remote, options, now, plan(writes, back), rng.fork(2));
        self.world.add_app(self.b, server);
        self.world.add_app(self.a, client);
        (source, sink)
    }

    fn bulk(&mut self, bytes: u64, rate: Rate) -> (SharedSessionLog, SharedSessionLog) {
        let seed = u64::from(self.next_port);
        self.connect(writing(seed, bytes), writing(seed + 1, 0), rate)
    }

    /// Sends datagrams whenever `plan` says, and records how long they took.
    fn datagrams(&mut self, plan: DatagramPlan) -> (Rc<RefCell<Datagrams>>, UdpHandle) {
        let remote = self.port();
        let log = Rc::new(RefCell::new(Datagrams::default()));
        let local = SocketAddr::new("10.0.0.1".parse().expect("an address"), 0);
        let sender = self.world.stack(self.a).bind_udp(local, UdpOptions::default()).expect("free");
        sender.connect(Some(remote)).expect("the same family");
        sender.set_max_pacing_rate(plan.max_pacing_rate);
        let receiver =
            self.world.stack(self.b).bind_udp(remote, UdpOptions::default()).expect("free");
        receiver.set_buffers(Some(1 << 24), None);
        let next = self.world.now();
        let app = Source { socket: sender.clone(), plan, next, log: log.clone() };
        self.world.add_app(self.a, app);
        self.world.add_app(self.b, Sink { socket: receiver, log: log.clone() });
        (log, sender)
    }
}

fn writing(seed: u64, bytes: u64) -> Writing {
    Writing {
        pattern: Pattern::new(seed),
        bytes,
        chunk: (128 << 10, 128 << 10),
        zero_copy: Ppm::NEVER,
        pause: Ppm::NEVER,
        rest: Nanos::ZERO,
        turns: None,
    }
}

fn reading(pattern: Pattern) -> Reading {
    Reading {
        pattern,
        chunk: (128 << 10, 128 << 10),
        zero_copy: Ppm::NEVER,
        pause: Ppm::NEVER,
        rest: Nanos::ZERO,
        late: Nanos::ZERO,
    }
}

/// Datagrams of `bytes`, one each `gap`, or whenever the socket takes one.
struct DatagramPlan {
    bytes: usize,
    gap: Option<Nanos>,
    max_pacing_rate: Rate,
}

#[derive(Debug, Default)]
struct Datagrams {
    sent: u64,
    refused: u64,
    received: u64,
    /// From the call that sent it.
    took: Times,
    last: Instant,
    stops: bool,
}

/// Datagrams that a source sends at one instant.
const MOST_AT_ONCE: u64 = 1000;

struct Source {
    socket: UdpHandle,
    plan: DatagramPlan,
    next: Instant,
    log: Rc<RefCell<Datagrams>>,
}

impl App for Source {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        let mut log = self.log.borrow_mut();
        let (mut did, most) = (false, log.sent + MOST_AT_ONCE);
        while self.next <= now && !log.stops {
            if log.sent >= most {
                // A queue that drops is never full, and no program sends in no time.
                self.next = now + Nanos::from_millis(1);
                break;
            }
            let mut data = vec![0; self.plan.bytes];
            data[..8].copy_from_slice(&now.as_nanos().to_be_bytes());
            match self.socket.send_to(now, Bytes::from(data), None) {
                Ok(()) => log.sent += 1,
                // Without a plan of its own it waits to be writable.
                Err(SocketError::WouldBlock) if self.plan.gap.is_none() => break,
                Err(SocketError::WouldBlock) => log.refused += 1,
                Err(error) => panic!("{error}"),
            }
            did = true;
            self.next += self.plan.gap.unwrap_or_default();
        }
        let next = if self.next > now { self.next } else { Instant::FAR_FUTURE };
        Step { did, next }
    }
}

struct Sink {
    socket: UdpHandle,
    log: Rc<RefCell<Datagrams>>,
}

impl App for Sink {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        let mut log = self.log.borrow_mut();
        let mut did = false;
        while let Ok(datagram) = self.socket.recv_from() {
            let stamp = datagram.data.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            log.took.record(now.since(Instant::from_nanos(stamp)));
            log.received += 1;
            log.last = now;
            did = true;
        }
        Step { did, next: Instant::FAR_FUTURE }
    }
}

/// (sum x)^2 / (n * sum x^2): 1 if all are equal.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// What each flow got in `span`.
fn goodputs(pair: &mut Pair, sinks: &[SharedSessionLog], span: Nanos) -> Vec<f64> {
    let before: Vec<_> = sinks.iter().map(|log| log.borrow().read).collect();
    pair.run(span);
    let got = sinks.iter().zip(before).map(|(log, before)| log.borrow().read - before);
    got.map(|bytes| bytes as f64).collect()
}

#[test]
fn flows_through_fq_get_equal_shares() {
    let rate = Rate::from_bits(100_000_000);
    let mut pair = Pair::new(rate, Nanos::from_millis(20), "fq");
    let mut sinks = Vec::new();
    for n in 0..32 {
        // They start one after the other.
        pair.run(Nanos::from_millis(n % 7));
        sinks.push(pair.bulk(u64::MAX, Rate::UNLIMITED).1);
    }
    pair.run(Nanos::from_secs(3));
    let shares = goodputs(&mut pair, &sinks, Nanos::from_secs(3));
    let (index, total) = (jain(&shares), shares.iter().sum::<f64>() / 3.0);
    assert!(index > 0.99, "{index} of {shares:?}");
    assert!(total > 0.93 * rate.0 as f64, "{total} B/s");
    println!("Jain's index {index:.5}, {:.1} Mbit/s", total * 8.0 / 1e6);
}

/// Time from each request of 64 bytes to its answer, over `span`.
fn transactions(pair: &mut Pair, log: &SharedSessionLog, span: Nanos) -> Times {
    let mut times = Times::default();
    let until = pair.world.now() + span;
    let (mut answers, mut asked) = (log.borrow().read / 64, pair.world.now());
    while pair.world.step(until).expect("a sound world").is_some() {
        let now_answered = log.borrow().read / 64;
        if now_answered > answers {
            // The next request left when this answer came.
            times.record(pair.world.now().since(asked));
            (answers, asked) = (now_answered, pair.world.now());
        }
    }
    times
}

#[test]
fn a_short_request_waits_for_one_quantum_of_each_flow_at_most() {
    const FLOWS: u64 = 32;
    let rate = Rate::from_bits(100_000_000);
    let rtt = Nanos::from_millis(10);
    let mut waits = Vec::new();
    for qdisc in ["pfifo_fast", "fq"] {
        let mut pair = Pair::new(rate, rtt, qdisc);
        let turns = |ahead| Some(Turns { bytes: 64, per: 64, ahead });
        let asks = Writing { turns: turns(1), ..writing(100, u64::MAX) };
        let answers = Writing { turns: turns(0), ..writing(101, u64::MAX) };
        let (log, _) = pair.connect(asks, answers, Rate::UNLIMITED);
        for _ in 0..FLOWS {
            pair.bulk(u64::MAX, Rate::UNLIMITED);
        }
        pair.run(Nanos::from_secs(3));
        let times = transactions(&mut pair, &log, Nanos::from_secs(4));
        assert!(times.count() > 20, "{qdisc}: {} transactions", times.count());
        waits.push(times.max().saturating_sub(rtt));
        println!(
            "{qdisc}: beyond the round trip p50 {:?}, longest {:?}",
            times.percentile(50.0).saturating_sub(rtt),
            times.max().saturating_sub(rtt)
        );
    }
    // The frames in the ring and the two hosts' lateness come on top.
    let quantum = rate.time_for(FLOWS * 3028);
    let bound = quantum + rate.time_for(2 * 3028) + Nanos::from_micros(200);
    assert!(waits[1] <= bound, "{:?} instead of {bound:?}", waits[1]);
    assert!(waits[0] > waits[1], "without fq: {:?}", waits[0]);
}

#[test]
fn throttled_flows_leave_at_their_stamps() {
    const FLOWS: u64 = 40;
    let (rate, each) = (Rate::from_bits(1_000_000_000), Rate(1_000_000));
    let mut pair = Pair::new(rate, Nanos::from_millis(2), "fq");
    let sinks: Vec<_> = (0..FLOWS).map(|_| pair.bulk(u64::MAX, each).1).collect();
    pair.run(Nanos::from_secs(1));
    pair.link.clear_stats(pair.world.now());
    let shares = goodputs(&mut pair, &sinks, Nanos::from_secs(2));
    let Xstats::Fq(figures) = pair.report().xstats else { panic!("an fq") };
    assert!(figures.throttled > 10_000, "{figures:?}");
    for share in &shares {
        let error = share / (2 * each.0) as f64 - 1.0;
        assert!(error.abs() < 0.005, "{error}");
    }
    // 10 us of slack, up to 50 us until the host wakes, and whoever leaves at the same time.
    let below = pair.link.stats(0, pair.world.now()).below;
    println!("after the stamp: p50 {:?}, p99 {:?}", below.percentile(50.0), below.percentile(99.0));
    assert!(below.percentile(50.0) < Nanos::from_micros(100), "{:?}", below.percentile(50.0));
    assert!(below.max() < Nanos::from_millis(1), "{:?}", below.max());
}

/// What waits of a flood that does not yield is kept near the target, if it is a little too much;
/// CoDel does not keep up with one that is far too much, but nobody else suffers from it.
#[test]
fn fq_codel_holds_its_target_against_a_flood() {
    let (rate, rtt) = (Rate::from_bits(10_000_000), Nanos::from_millis(20));
    // The flood's half of the link is 493 datagrams in a second.
    for (per_second, is_held) in [(518, true), (1250, false)] {
        let mut pair = Pair::new(rate, rtt, "fq_codel");
        let gap = Some(Nanos(1_000_000_000 / per_second));
        let plan = DatagramPlan { bytes: 1200, gap, max_pacing_rate: Rate::UNLIMITED };
        let (flood, socket) = pair.datagrams(plan);
        socket.set_buffers(None, Some(1 << 24));
        let (_, sink) = pair.bulk(u64::MAX, Rate::UNLIMITED);
        let turns = |ahead| Some(Turns { bytes: 64, per: 64, ahead });
        let asks = Writing { turns: turns(1), ..writing(100, u64::MAX) };
        let answers = Writing { turns: turns(0), ..writing(101, u64::MAX) };
        let (log, _) = pair.connect(asks, answers, Rate::UNLIMITED);
        let early = transactions(&mut pair, &log, Nanos::from_secs(10));
        flood.borrow_mut().took.clear();
        let before = sink.borrow().read;
        let late = transactions(&mut pair, &log, Nanos::from_secs(10));
        let share = (sink.borrow().read - before) as f64 / 10.0 / rate.0 as f64;
        let took = &flood.borrow().took;
        let waits = [50.0, 95.0].map(|percent| took.percentile(percent).saturating_sub(rtt / 2));
        let requests = [&early, &late].map(|times| times.percentile(99.0).saturating_sub(rtt));
        println!("{}", pair.report());
        println!("requests wait {requests:?}, TCP's share {share:.3}, the flood waits {waits:?}");
        // A frame of each flow, 3000 bytes, and as much in the ring.
        let bound = rate.time_for(4 * 3000);
        assert!(requests.iter().all(|wait| *wait < bound), "{requests:?}");
        assert!(share > 0.43, "TCP has {share}");
        // Twice the target in the qdisc, two frames in the ring.
        let held = Nanos::from_millis(2 * 5) + rate.time_for(2 * 3000);
        assert!(!is_held || waits[0] < held, "the flood waits {waits:?}");
    }
}

#[test]
fn datagrams_are_spaced_by_fq_and_pushed_back_on() {
    let rate = Rate(500_000);
    let mut pair = Pair::new(Rate::from_bits(100_000_000), Nanos::from_millis(2), "fq");
    // So short that the limit of the flow comes before that of the account.
    let plan = DatagramPlan { bytes: 100, gap: None, max_pacing_rate: rate };
    let (log, socket) = pair.datagrams(plan);
    pair.run(Nanos::from_millis(500));
    let before = log.borrow().received;
    pair.run(Nanos::from_secs(2));
    let bytes = (log.borrow().received - before) * (100 + 28);
    let error = bytes as f64 / (2 * rate.0) as f64 - 1.0;
    assert!(error.abs() < 0.01, "{error}");
    let Xstats::Fq(figures) = pair.report().xstats else { panic!("an fq") };
    assert!(figures.flows_plimit > 0, "the limit of the flow came first: {figures:?}");
    log.borrow_mut().stops = true;
    pair.run(Nanos::from_secs(1));
    let log = log.borrow();
    assert_eq!(
        (log.sent, socket.bytes_below()),
        (log.received, 0),
        "nothing that was taken is lost"
    );
}

/// Every kind in turn, all under load.
#[test]
fn replacing_loses_no_credit() {
    let kinds = [
        "fq",
        "pfifo_fast",
        "fq quantum 1514 flow_limit 20 maxrate 20mbit",
        "fq_codel limit 50",
        "tbf rate 30mbit burst 4kb limit 60kb",
        "codel",
        "fq horizon 1ms horizon_cap",
        "mq fq",
        "tbf rate 50mbit burst 70kb latency 20ms",
        "pfifo_fast limit 5",
    ];
    let mut pair = Pair::new(Rate::from_bits(50_000_000), Nanos::from_millis(4), "fq");
    let mut logs = Vec::new();
    for n in 0..12 {
        let rate = if n % 3 == 0 { Rate(200_000) } else { Rate::UNLIMITED };
        logs.push(pair.bulk(600_000, rate));
    }
    let plan = DatagramPlan { bytes: 1000, gap: None, max_pacing_rate: Rate(300_000) };
    let (datagrams, socket) = pair.datagrams(plan);
    for round in 0..60 {
        pair.replace(kinds[round * 7 % kinds.len()]);
        pair.run(Nanos::from_millis(17));
    }
    assert!(logs.iter().any(|(log, _)| !oracle::is_over(log)), "there was load to the end");
    datagrams.borrow_mut().stops = true;
    pair.replace("fq");
    pair.run(Nanos::from_secs(120));
    for (source, sink) in &logs {
        let ends = [(&*source.borrow(), 600_000), (&*sink.borrow(), 0)];
        oracle::check_delivery(ends).expect("all arrives");
    }
    assert_eq!(socket.bytes_below(), 0);
    oracle::check_empty(&pair.world, pair.a).expect("nothing is left below");
    let stats = pair.report().stats;
    assert_eq!((stats.backlog_bytes, stats.backlog_packets), (0, 0));
    assert!(datagrams.borrow().received > 100);
}
