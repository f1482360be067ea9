//! Writers of every kind at the low-water mark: none sleeps while it may write, none is woken too
//! early, and none is woken more often than once per half mark.

mod application;

use application::{Readers, Waits, WriterLog, WriterPlan, Writers};
use neap_lab::link::{LinkConfig, NicConfig, PathConfig};
use neap_lab::rng::Ppm;
use neap_lab::world::{World, WorldConfig};
use neap_stack::interface::Address;
use neap_stack::stack::StackConfig;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::{Nanos, Rate};

const WRITERS: usize = 100;
/// Low-water marks; 0 is none.
const MARKS: [u32; 6] = [1, 2000, 16_384, 131_072, 4 << 20, 0];
/// `SO_SNDBUF` doubled; `None` is tuned by the stack.
const BUFFERS: [Option<u32>; 3] = [Some(20_000), Some(8 << 20), None];

#[derive(Clone, Copy, Debug)]
struct Net {
    name: &'static str,
    rate: Rate,
    delay: Nanos,
    loss: Ppm,
    /// Bytes of each writer.
    bytes: u64,
}

const NETS: [Net; 4] = [
    Net {
        name: "10 Mbit/s, 20 ms",
        rate: Rate::from_bits(10_000_000),
        delay: Nanos::from_millis(10),
        loss: Ppm::NEVER,
        bytes: 60_000,
    },
    Net {
        name: "10 Mbit/s, 20 ms, 1 % lost",
        rate: Rate::from_bits(10_000_000),
        delay: Nanos::from_millis(10),
        loss: Ppm::percent(1),
        bytes: 60_000,
    },
    Net {
        name: "1 Gbit/s, 1 ms",
        rate: Rate::from_bits(1_000_000_000),
        delay: Nanos::from_micros(500),
        loss: Ppm::NEVER,
        bytes: 1_000_000,
    },
    Net {
        name: "1 Gbit/s, 1 ms, 1 % lost",
        rate: Rate::from_bits(1_000_000_000),
        delay: Nanos::from_micros(500),
        loss: Ppm::percent(1),
        bytes: 400_000,
    },
];

fn plan(index: usize, waits: Waits, bytes: u64) -> WriterPlan {
    let options = SocketOptions {
        notsent_lowat: MARKS[index % MARKS.len()],
        send_buffer: BUFFERS[index / MARKS.len() % BUFFERS.len()],
        ..SocketOptions::default()
    };
    let chunk = [1000, 16_384, 100_000][index / (MARKS.len() * BUFFERS.len()) % 3];
    WriterPlan { waits, options, chunk, bytes }
}

/// Runs a world to its end; the logs, and how long it took.
fn run(net: &Net, plans: Vec<WriterPlan>) -> (Vec<WriterLog>, Nanos) {
    let total: u64 = plans.iter().map(|plan| plan.bytes).sum();
    let mut world = World::new(WorldConfig { seed: 7, ..WorldConfig::default() });
    let hosts = [0, 1].map(|_| world.add_host(StackConfig::default()).expect("a host"));
    let address = |text: &str| Address::new(text.parse().expect("an address"), 24).expect("valid");
    let (near, far) = (address("10.0.0.1"), address("10.0.0.2"));
    let path = PathConfig { loss: net.loss, ..PathConfig::clean(net.rate, net.delay) };
    let nic = NicConfig::default();
    let link = LinkConfig {
        nics: [nic.clone(), nic],
        paths: [path, PathConfig::clean(net.rate, net.delay)],
    };
    world.add_link(&link, [(hosts[0], &[near]), (hosts[1], &[far])]).expect("a link");
    let to = "10.0.0.2:5000".parse().expect("an address");
    let (readers, received) = Readers::new(world.stack(hosts[1]), to).expect("a listener");
    world.add_app(hosts[1], readers);
    let (writers, logs) = Writers::new(to, plans);
    world.add_app(hosts[0], writers);
    let start = world.now();
    let patience = start + Nanos::from_secs(300);
    while *received.borrow() < total {
        let step: Option<_> = world.step(patience).expect("time passes");
        assert!(step.is_some(), "{}: {} of {total} bytes came", net.name, received.borrow());
    }
    let took = world.now().since(start);
    (logs.take(), took)
}

/// What a writer writes after a wake-up at the least: half a mark, or a third of the send buffer,
/// but a segment in any case.
fn quantum(plan: &WriterPlan, log: &WriterLog) -> u64 {
    let mark = match plan.options.notsent_lowat {
        0 => u32::MAX,
        mark => mark,
    };
    let sndbuf = plan.options.send_buffer.unwrap_or(46_080);
    let mss = log.info.as_ref().map_or(1448, |info| info.snd_mss);
    u64::from((mark / 2).min(sndbuf / 3).max(mss))
}

fn check(net: &Net, waits: Waits) {
    let plans: Vec<_> = (0..WRITERS).map(|index| plan(index, waits, net.bytes)).collect();
    let (logs, took) = run(net, plans.clone());
    for (index, (plan, log)) in plans.iter().zip(&logs).enumerate() {
        let what = || format!("{}, {waits:?}, {index}: {:?}\n{log:?}", net.name, plan.options);
        assert_eq!((log.written, log.error), (net.bytes, None), "{}", what());
        assert_eq!(log.woken_above, None, "woken too early: {}", what());
        assert_eq!(log.overslept, None, "a wake-up was lost: {}", what());
        let most = log.written.div_ceil(quantum(plan, log)) + 2;
        assert!(log.wakeups <= most + most / 4, "{} wake-ups: {}", log.wakeups, what());
    }
    let bits = 8.0 * (net.bytes * WRITERS as u64) as f64 / took.as_secs_f64();
    assert!(net.loss != Ppm::NEVER || bits > 0.8 * 8.0 * net.rate.0 as f64, "{bits} bit/s");
}

#[test]
fn blocking_writers() {
    NETS.iter().for_each(|net| check(net, Waits::Blocking));
}

#[test]
fn edge_triggered_writers() {
    NETS.iter().for_each(|net| check(net, Waits::Edges));
}

#[test]
fn async_writers() {
    NETS.iter().for_each(|net| check(net, Waits::Async));
}

#[test]
fn wakeups_are_throughput_by_half_the_mark() {
    let net = Net { bytes: 20_000_000, ..NETS[2] };
    for waits in [Waits::Blocking, Waits::Edges, Waits::Async] {
        let mut last = f64::INFINITY;
        for mark in [65_536, 262_144, 1 << 20] {
            let options = SocketOptions {
                notsent_lowat: mark,
                send_buffer: Some(8 << 20),
                ..SocketOptions::default()
            };
            let plan = WriterPlan { waits, options, chunk: 16_384, bytes: net.bytes };
            let (logs, took) = run(&net, vec![plan]);
            let expected = net.bytes as f64 / took.as_secs_f64() / f64::from(mark / 2);
            let per_second = logs[0].wakeups as f64 / took.as_secs_f64();
            let ratio = per_second / expected;
            // The mark is looked at before each buffer (64 KB here), so as much may be written
            // beyond it.
            let half = f64::from(mark / 2);
            // A task that comes by anyway leaves fewer wake-ups.
            let share = if waits == Waits::Async { 0.0 } else { 0.9 };
            let least = share * half / (half + 65_536.0 + 16_384.0);
            assert!((least..=1.1).contains(&ratio), "{waits:?}, {mark}: {ratio} of {expected}");
            assert!(per_second <= last, "{waits:?}, {mark}: {per_second}");
            last = per_second;
        }
    }
}

#[test]
fn a_mark_in_time_follows_the_link() {
    for (net, least, most) in [(NETS[0], 2_000, 60_000), (NETS[2], 100_000, 3_500_000)] {
        let options = SocketOptions {
            notsent_lowat_us: 10_000,
            send_buffer: Some(8 << 20),
            ..SocketOptions::default()
        };
        let bytes = net.rate.bytes_in(Nanos::from_secs(2));
        let plan = WriterPlan { waits: Waits::Edges, options, chunk: 16_384, bytes };
        let (logs, took) = run(&net, vec![plan]);
        let log = &logs[0];
        // Half of ten milliseconds of a rate that pacing sets above the link's: twice the window
        // per round trip, where the window may be twice what is in flight, which waits below too.
        let quantum = log.written / log.wakeups.max(1);
        assert!((least..=most).contains(&quantum), "{}: {quantum} bytes a wake-up", net.name);
        assert_eq!(log.overslept, None);
        let bits = 8.0 * bytes as f64 / took.as_secs_f64();
        assert!(bits > 0.8 * 8.0 * net.rate.0 as f64, "{bits} bit/s");
    }
}
