//! One bulk flow over a link, small queues off and on: what waits below the socket.
//!
//! Two neap hosts, MTU 1500, TSO, GRO, a ring of 256 descriptors with byte queue limits, CUBIC. Off
//! means `neap.tcp_small_queues=0` and nothing else.

use crate::app::{Client, Ending, Plan, Reading, Server, SharedLog, Writing};
use crate::histogram::Times;
use crate::link::{Coalescing, Link, LinkConfig, NicConfig, PathConfig};
use crate::pattern::Pattern;
use crate::rng::{Ppm, Rng, mix};
use crate::world::{HostId, World, WorldConfig};
use core::fmt;
use core::net::SocketAddr;
use neap_stack::interface::Address;
use neap_stack::stack::{ConnectOptions, ListenOptions, StackConfig};
use neap_tcp::config::Config;
use neap_tcp::time::{Nanos, Rate};
use serde::Serialize;

/// Readings of the round-trip time per run.
const SAMPLES: u64 = 1000;

/// Least goodput with small queues on, of that with them off.
const GOODPUT_SHARE: f64 = 0.99;

/// One speed at which the experiment runs.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// What it is called.
    pub name: &'static str,
    /// Of the link.
    pub rate: Rate,
    /// Round-trip time of the empty link.
    pub rtt: Nanos,
    /// Before anything is measured.
    pub warm_up: Nanos,
    /// Over which is measured.
    pub measured: Nanos,
    /// What may wait below the socket, in 99 of 100 frames, with small queues on; `None` where two
    /// frames of two segments, the least that works, already take longer than that would be.
    pub bound: Option<Nanos>,
}

/// The four speeds that are printed.
pub const SETTINGS: [Setting; 4] = [
    Setting {
        name: "10 Mbit/s",
        rate: Rate::from_bits(10_000_000),
        rtt: Nanos::from_millis(1),
        warm_up: Nanos::from_secs(8),
        measured: Nanos::from_secs(12),
        bound: None,
    },
    Setting {
        name: "100 Mbit/s",
        rate: Rate::from_bits(100_000_000),
        rtt: Nanos::from_millis(1),
        warm_up: Nanos::from_secs(3),
        measured: Nanos::from_secs(4),
        bound: Some(Nanos::from_micros(1200)),
    },
    Setting {
        name: "1 Gbit/s",
        rate: Rate::from_bits(1_000_000_000),
        rtt: Nanos::from_millis(1),
        warm_up: Nanos::from_millis(800),
        measured: Nanos::from_millis(1200),
        bound: Some(Nanos::from_millis(1)),
    },
    Setting {
        name: "10 Gbit/s",
        rate: Rate::from_bits(10_000_000_000),
        rtt: Nanos::from_micros(200),
        warm_up: Nanos::from_millis(300),
        measured: Nanos::from_millis(250),
        bound: Some(Nanos::from_millis(1)),
    },
];

/// What one run has measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Speed of the link.
    pub link: &'static str,
    /// Round-trip time of the empty link, milliseconds.
    pub base_rtt_ms: f64,
    /// `neap.tcp_small_queues`.
    pub small_queues: bool,
    /// Payload that the receiving application read, Mbit/s.
    pub goodput_mbit: f64,
    /// Median delay from the frame's departure from TCP to its last bit on the wire, milliseconds.
    pub below_p50_ms: f64,
    /// The same, of 99 in 100 frames.
    pub below_p99_ms: f64,
    /// Median of the smoothed round-trip time, milliseconds.
    pub srtt_ms: f64,
    /// Frames with data, super-frames counted once.
    pub frames: u64,
    /// Of these, super-frames.
    pub super_frames: u64,
    /// Wire segments with data.
    pub segments: u64,
    /// Segments sent again, from the start on.
    pub retransmitted: u32,
    /// Hash of when each frame left, in both directions, and how long it was.
    pub hash: String,
}

/// All runs, and what they say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Off and on at each speed.
    pub runs: Vec<Run>,
    /// One line per speed.
    pub verdicts: Vec<String>,
    /// Every speed kept its bound and its goodput.
    pub holds: bool,
    /// Hash of all runs.
    pub hash: String,
}

/// Why an experiment could not be done.
pub type Failure = Box<dyn core::error::Error>;

/// Runs all settings. `progress` sees each run when it is done.
///
/// # Errors
/// [`Failure`]: a fault of the stack, or what `progress` said.
pub fn run_all(
    seed: u64,
    mut progress: impl FnMut(&Run) -> Result<(), Failure>,
) -> Result<Report, Failure> {
    let mut runs = Vec::new();
    let (mut verdicts, mut holds, mut hash) = (Vec::new(), true, 0);
    for setting in &SETTINGS {
        for small_queues in [false, true] {
            let (run, digest) = run(setting, small_queues, seed)?;
            hash = mix(hash ^ digest);
            progress(&run)?;
            runs.push(run);
        }
        if let [.., off, on] = runs.as_slice() {
            let verdict = Verdict::of(setting, off, on);
            holds &= verdict.holds;
            verdicts.push(verdict.to_string());
        }
    }
    Ok(Report { runs, verdicts, holds, hash: format!("{hash:016x}") })
}

/// One run: the figures, and the hash as a number.
fn run(setting: &Setting, small_queues: bool, seed: u64) -> Result<(Run, u64), Failure> {
    let mut bulk = Bulk::new(setting, small_queues, seed)?;
    let start = bulk.world.now() + setting.warm_up;
    bulk.world.run_until(start)?;
    bulk.link.clear_stats();
    let read_before = bulk.sink.borrow().read;
    let mut srtt = Times::default();
    let mut retransmitted = 0;
    for sample in 1..=SAMPLES {
        bulk.world.run_until(start + Nanos(setting.measured.0 / SAMPLES * sample))?;
        let source = bulk.source.borrow();
        let handle = source.handle.as_ref().ok_or("the connection is gone")?;
        let info = handle.info(bulk.world.now());
        srtt.record(info.rtt);
        retransmitted = info.total_retrans;
    }
    let elapsed = bulk.world.now().since(start);
    let sink = bulk.sink.borrow();
    if let Some(at) = sink.wrong_at {
        return Err(format!("byte {at} of the stream is wrong").into());
    }
    let stats = bulk.link.stats(0);
    let digest = mix(stats.digest ^ mix(bulk.link.stats(1).digest ^ sink.read));
    let millis = |time: Nanos| time.0 as f64 / 1e6;
    let run = Run {
        link: setting.name,
        base_rtt_ms: millis(setting.rtt),
        small_queues,
        goodput_mbit: (sink.read - read_before) as f64 * 8.0 / elapsed.as_secs_f64() / 1e6,
        below_p50_ms: millis(stats.below.percentile(50.0)),
        below_p99_ms: millis(stats.below.percentile(99.0)),
        srtt_ms: millis(srtt.percentile(50.0)),
        frames: stats.frames,
        super_frames: stats.super_frames,
        segments: stats.segments,
        retransmitted,
        hash: format!("{digest:016x}"),
    };
    Ok((run, digest))
}

/// A world with one flow that never ends.
struct Bulk {
    world: World,
    link: Link,
    source: SharedLog,
    sink: SharedLog,
}

impl Bulk {
    fn new(setting: &Setting, small_queues: bool, seed: u64) -> Result<Self, Failure> {
        let mut world = World::new(WorldConfig { seed, ..WorldConfig::default() });
        let config = Config { small_queues, ..Config::default() };
        let mut host = || {
            let config = StackConfig { config: config.clone(), ..StackConfig::default() };
            world.add_host(config)
        };
        let (a, b): (HostId, HostId) = (host()?, host()?);
        let link = world.add_link(
            &link_config(setting),
            [(a, &["10.0.0.1/24".parse::<Address>()?]), (b, &["10.0.0.2/24".parse()?])],
        )?;
        let remote: SocketAddr = "10.0.0.2:5201".parse()?;
        let (there, back) = (Pattern::new(1), Pattern::new(2));
        let rng = Rng::new(seed);
        let sink_plan = plan(back, 0, there);
        let (server, sink) =
            Server::new(world.stack(b), remote, ListenOptions::default(), sink_plan, rng.fork(1))?;
        let at = world.now();
        let source_plan = plan(there, u64::MAX, back);
        let (client, source) =
            Client::new(remote, ConnectOptions::default(), at, source_plan, rng.fork(2));
        world.add_app(b, server);
        world.add_app(a, client);
        Ok(Self { world, link, source, sink })
    }
}

fn link_config(setting: &Setting) -> LinkConfig {
    let nic = NicConfig {
        rx_coalescing: Coalescing { delay: Nanos::from_micros(20), frames: 64 },
        ..NicConfig::default()
    };
    let path = PathConfig::clean(setting.rate, setting.rtt / 2);
    LinkConfig { nics: [nic.clone(), nic], paths: [path.clone(), path] }
}

/// As iperf3: writes of 128 KiB, reads of as much.
fn plan(writes: Pattern, bytes: u64, reads: Pattern) -> Plan {
    let chunk = (128 << 10, 128 << 10);
    let (never, none) = (Ppm::NEVER, Nanos::ZERO);
    Plan {
        writing: Writing {
            pattern: writes,
            bytes,
            chunk,
            zero_copy: never,
            pause: never,
            rest: none,
            turns: None,
        },
        reading: Reading {
            pattern: reads,
            chunk,
            zero_copy: never,
            pause: never,
            rest: none,
            late: none,
        },
        ending: Ending::Stay,
    }
}

/// What off and on say about one speed.
struct Verdict {
    link: &'static str,
    below_off_ms: f64,
    below_on_ms: f64,
    share: f64,
    bound: Option<Nanos>,
    holds: bool,
}

impl Verdict {
    fn of(setting: &Setting, off: &Run, on: &Run) -> Self {
        let share = on.goodput_mbit / off.goodput_mbit;
        let within = |bound: Nanos| on.below_p99_ms < bound.0 as f64 / 1e6;
        Self {
            link: setting.name,
            below_off_ms: off.below_p99_ms,
            below_on_ms: on.below_p99_ms,
            share,
            bound: setting.bound,
            holds: share >= GOODPUT_SHARE && setting.bound.is_none_or(within),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { link, below_off_ms, below_on_ms, share, bound, holds } = self;
        let percent = share * 100.0;
        write!(
            f,
            "{link}: p99 {below_on_ms:.2} ms below the socket instead of {below_off_ms:.2} ms, \
             with {percent:.1} % of the goodput"
        )?;
        let word = if *holds { "holds" } else { "DOES NOT HOLD" };
        match bound {
            Some(bound) => {
                let bound = bound.0 as f64 / 1e6;
                write!(f, ": {word} (bound: {bound:.1} ms, 99 %)")
            }
            None => write!(f, ": {word} (bound: 99 %)"),
        }
    }
}

/// Head of the table of runs.
pub const HEADER: &str = "\
link         base RTT  small     goodput  delay below socket    smoothed    frames  segments  sent
                      queues      Mbit/s   p50, ms   p99, ms    RTT, ms                      again";

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues = if self.small_queues { "on" } else { "off" };
        write!(
            f,
            "{:<10}  {:>6.1} ms  {:>6}  {:>10.1}  {:>8.3}  {:>8.3}  {:>9.3}  {:>8}  {:>8}  {:>4}",
            self.link,
            self.base_rtt_ms,
            queues,
            self.goodput_mbit,
            self.below_p50_ms,
            self.below_p99_ms,
            self.srtt_ms,
            self.frames,
            self.segments,
            self.retransmitted,
        )
    }
}

/// What is printed in front of the table.
pub const INTRODUCTION: &str = "\
Two neap hosts over an emulated link in virtual time; one bulk flow, MTU 1500, CUBIC, TSO and GRO,
a transmit ring of 256 descriptors with byte queue limits; hosts wake up to 50 us late.
Delay below the socket: from a frame's departure from TCP to its last bit on the wire.
Smoothed RTT: its median. Frames: super-frames count once.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_the_same_every_time_and_small_queues_are_small() {
        let setting = Setting {
            warm_up: Nanos::from_millis(200),
            measured: Nanos::from_millis(300),
            ..SETTINGS[1]
        };
        let run = |on| run(&setting, on, 7).expect("a run").0;
        let (off, on) = (run(false), run(true));
        assert_eq!(on, run(true));
        assert!(off.below_p99_ms > 10.0 * on.below_p99_ms, "{off}\n{on}");
        assert!(on.goodput_mbit > 0.99 * off.goodput_mbit, "{off}\n{on}");
        let bound = setting.bound.expect("this speed has one");
        assert!(on.below_p99_ms < bound.0 as f64 / 1e6, "{on}");
    }
}
