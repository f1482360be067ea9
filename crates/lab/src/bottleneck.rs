//! Bottleneck: flows of chosen congestion controllers through one queue that drops at its tail.
//!
//! There are two hosts, a fast NIC, and a slower hop behind it.

use crate::app::group::{Group, GroupConfig, SharedGroupLog, Traffic};
use crate::link::{Bottleneck, Link, LinkConfig, NicConfig, PathConfig, Policer};
use crate::rng::{Ppm, Rng};
use crate::world::{HostId, World, WorldConfig};
use core::net::SocketAddr;
use neap_stack::interface::Address;
use neap_stack::stack::{ConnectOptions, ListenOptions, StackConfig};
use neap_tcp::config::{BufferSizes, Config, MemoryPages};
use neap_tcp::info::TcpInfo;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::{Instant, Nanos, Rate};

/// Reason why an experiment could not be done.
pub type Failure = Box<dyn core::error::Error>;

/// What Ethernet adds to each IP packet on the wire, bytes.
const ETHERNET: u64 = 38;
/// Bytes of one write at most.
const WRITE: u64 = 256 << 10;
/// Lateness of the hosts: that of a real one with high-resolution timers.
const LATENESS: Nanos = Nanos::from_micros(10);

/// Path through the bottleneck.
#[derive(Clone, Debug)]
pub struct BottleneckPath {
    /// Rate of the bottleneck on the wire.
    pub rate: Rate,
    /// Round-trip time without any queue.
    pub rtt: Nanos,
    /// Size of the queue in front of the bottleneck, in thousandths of bandwidth times round-trip
    /// time.
    pub buffer_permille: u64,
    /// Share of the segments that are lost at random.
    pub loss: Ppm,
    /// Share of the segments that are marked CE at random.
    pub marks: Ppm,
    /// A token bucket in front of the bottleneck.
    pub policer: Option<Policer>,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
}

impl BottleneckPath {
    /// Returns a clean path with a deep buffer.
    ///
    /// Packets are as large as possible while a round trip holds about a thousand, so that runs are
    /// cheap. The MSS is at most half of the first window, which is 64 KB.
    pub fn new(rate: Rate, rtt: Nanos) -> Self {
        let mtu = (rate.bytes_in(rtt) / 1000).clamp(1500, 32_000) as u16;
        let (loss, marks) = (Ppm::NEVER, Ppm::NEVER);
        Self { rate, rtt, buffer_permille: 2000, loss, marks, policer: None, mtu }
    }

    /// Returns the most bytes of payload per second: headers and Ethernet's share are subtracted.
    pub fn payload_rate(&self) -> f64 {
        let payload = f64::from(self.mtu) - 52.0;
        self.rate.0 as f64 * payload / (f64::from(self.mtu) + ETHERNET as f64)
    }

    /// Returns the round-trip time of a single segment.
    pub fn base_rtt(&self) -> Nanos {
        self.rtt + self.rate.time_for(u64::from(self.mtu) + ETHERNET)
    }

    fn link(&self) -> LinkConfig {
        let bytes = (self.rate.bytes_in(self.rtt) * self.buffer_permille / 1000)
            .max(u64::from(self.mtu) + ETHERNET);
        let hop = Bottleneck { rate: self.rate, packets: usize::MAX, bytes };
        let nic_rate = Rate(self.rate.0.saturating_mul(4).max(Rate::from_bits(1_000_000_000).0));
        let there = PathConfig {
            bottleneck: Some(hop),
            loss: self.loss,
            congestion_marks: self.marks,
            policer: self.policer,
            ..PathConfig::clean(nic_rate, self.rtt / 2)
        };
        let back = PathConfig::clean(nic_rate, self.rtt / 2);
        let nic = NicConfig { mtu: self.mtu, ..NicConfig::default() };
        LinkConfig { nics: [nic.clone(), nic], paths: [there, back] }
    }
}

/// One flow through the bottleneck.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Name of its congestion controller.
    pub controller: &'static str,
    /// Time at which it begins, from the start of the run.
    pub begins: Nanos,
    /// Highest rate at which its application writes, every 10 ms.
    pub at_most: Option<Rate>,
    /// Times between which it writes nothing.
    pub pause: Option<(Nanos, Nanos)>,
}

impl Flow {
    /// Returns a flow that always has something to send.
    pub fn bulk(controller: &'static str) -> Self {
        Self { controller, begins: Nanos::ZERO, at_most: None, pause: None }
    }

    fn group(&self) -> Group {
        let Self { at_most: rate, pause, controller, .. } = *self;
        let options = SocketOptions { congestion: Some(controller), ..SocketOptions::default() };
        group(Traffic::Produced { write: WRITE, rate, pause }, options)
    }
}

/// Connections whose ends poll, so that room and data never wait for a wake-up.
fn group(traffic: Traffic, options: SocketOptions) -> Group {
    let client = ConnectOptions { options, ..ConnectOptions::default() };
    let server = ListenOptions::default();
    Group::new(GroupConfig { traffic, read_rate: None, polls: true, client, server })
}

/// Figures of one flow over the measured time.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowFigures {
    /// Acknowledged payload as a share of what the bottleneck carries.
    pub share: f64,
    /// Mean smoothed round-trip time, divided by that of a single segment.
    pub rtt: f64,
    /// Share of the sent bytes that were sent again.
    pub resent: f64,
}

/// World with flows through a bottleneck, which the caller runs.
pub struct BottleneckRun {
    world: World,
    link: Link,
    path: BottleneckPath,
    start: Instant,
    /// The log of each flow's group.
    logs: Vec<SharedGroupLog>,
}

impl BottleneckRun {
    /// Sets up the world. Nothing has run.
    ///
    /// # Errors
    /// [`Failure`] for a configuration that the stack refuses.
    pub fn new(path: &BottleneckPath, flows: &[Flow], seed: u64) -> Result<Self, Failure> {
        let mut world =
            World::new(WorldConfig { seed, wake_jitter: LATENESS, ..WorldConfig::default() });
        let config = host_config(path);
        let mut host =
            || world.add_host(StackConfig { config: config.clone(), ..Default::default() });
        let (a, b): (HostId, HostId) = (host()?, host()?);
        let link = world.add_link(
            &path.link(),
            [(a, &["10.0.0.1/24".parse::<Address>()?]), (b, &["10.0.0.2/24".parse()?])],
        )?;
        let remote: SocketAddr = "10.0.0.2:5201".parse()?;
        // It reads what all flows write: their groups have their own controllers.
        let server = group(Traffic::Bulk { bytes: None, write: WRITE }, SocketOptions::default());
        let server = server.server(world.stack(b), remote)?;
        world.add_app(b, server);
        let start = world.now();
        let mut logs = Vec::new();
        for flow in flows {
            let group = flow.group();
            let (begin, rng) = (start + flow.begins, Rng::new(seed));
            world.add_app(a, group.client(remote, begin, Instant::FAR_FUTURE, rng));
            logs.push(group.log());
        }
        Ok(Self { world, link, path: path.clone(), start, logs })
    }

    /// Runs until this time after the start.
    ///
    /// # Errors
    /// [`Failure`] for a host that spins.
    pub fn run_until(&mut self, time: Nanos) -> Result<(), Failure> {
        Ok(self.world.run_until(self.start + time)?)
    }

    /// Returns the figures of a flow's sender; `None` before the flow begins.
    pub fn info(&self, flow: usize) -> Option<TcpInfo> {
        let log = self.logs.get(flow)?.borrow();
        let handle = log.clients.first()?.handle.as_ref();
        handle.map(|handle| handle.info(self.world.now()))
    }

    /// Returns how many segments the bottleneck's queue has dropped.
    pub fn dropped(&self) -> u64 {
        self.link.stats(0, self.world.now()).dropped
    }

    /// Runs from one time to another and measures each flow.
    ///
    /// # Errors
    /// [`Failure`] for a host that spins.
    pub fn measure(&mut self, from: Nanos, to: Nanos) -> Result<Vec<FlowFigures>, Failure> {
        /// Readings of the round-trip time.
        const READINGS: u64 = 500;
        self.run_until(from)?;
        let flows = 0..self.logs.len();
        let before: Vec<_> = flows.clone().map(|flow| self.info(flow)).collect();
        let mut rtts = vec![0.0; before.len()];
        for reading in 1..=READINGS {
            self.run_until(from + Nanos((to.0 - from.0) / READINGS * reading))?;
            for flow in flows.clone() {
                rtts[flow] += self.info(flow).map_or(0.0, |info| info.rtt.0 as f64);
            }
        }
        let (seconds, base) = (Nanos(to.0 - from.0).as_secs_f64(), self.path.base_rtt().0 as f64);
        let figures = flows.map(|flow| {
            let Some(after) = self.info(flow) else { return FlowFigures::default() };
            let (acked, sent, resent) = before[flow]
                .as_ref()
                .map_or((0, 0, 0), |info| (info.bytes_acked, info.bytes_sent, info.bytes_retrans));
            let acked = (after.bytes_acked - acked) as f64;
            FlowFigures {
                share: acked / seconds / self.path.payload_rate(),
                rtt: rtts[flow] / READINGS as f64 / base,
                resent: (after.bytes_retrans - resent) as f64
                    / ((after.bytes_sent - sent) as f64).max(1.0),
            }
        });
        Ok(figures.collect())
    }
}

/// Buffers that never limit a flow.
fn host_config(path: &BottleneckPath) -> Config {
    let needed = 8 * path.rate.bytes_in(path.rtt) + (16 << 20);
    let max = u32::try_from(needed).unwrap_or(u32::MAX).min(i32::MAX as u32);
    let buffers = BufferSizes { min: 4096, default: 1 << 20, max };
    let tcp_mem = MemoryPages::of_machine(1 << 40);
    Config { tcp_wmem: buffers, tcp_rmem: buffers, tcp_mem, tcp_ecn: 1, ..Config::default() }
}

/// Cell of a grid: one flow over one path.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Name of the congestion controller.
    pub controller: &'static str,
    /// Rate of the bottleneck, in Mbit/s.
    pub mbit: u64,
    /// Round-trip time, in milliseconds.
    pub rtt_ms: u64,
    /// Size of the buffer, in thousandths of bandwidth times round-trip time.
    pub buffer_permille: u64,
    /// Random loss, in parts per million.
    pub loss: u32,
}

/// Heading of a table of [`Cell::row`]s.
pub const GRID_HEADER: &str = "\
 Mbit/s  RTT ms  buffer  loss   measured  goodput    RTT  resent
                    BDP     %          s        %  /base       %";

/// Packets that a cell of a quick table may cost.
const AFFORDABLE_PACKETS: u64 = 24_000;

impl Cell {
    fn path(&self) -> BottleneckPath {
        let rate = Rate::from_bits(self.mbit * 1_000_000);
        let path = BottleneckPath::new(rate, Nanos::from_millis(self.rtt_ms));
        BottleneckPath { buffer_permille: self.buffer_permille, loss: Ppm(self.loss), ..path }
    }

    /// Returns how long to measure so that it costs little: at most 11 s, in which BBR version 1
    /// has one PROBE_RTT and version 3 has two. Shorter measurements have few or none of them.
    pub fn affordable(&self) -> Nanos {
        let path = self.path();
        let time = path.rate.time_for(AFFORDABLE_PACKETS * u64::from(path.mtu));
        let all = Nanos::from_secs(11);
        // A PROBE_RTT of a long path is too much of less; and with loss, the rate falls from one
        // probe to the next, 63 round trips apart. A small buffer is a policer to version 1, which
        // it believes for 48.
        let rounds = match (self.loss, self.buffer_permille) {
            (1.., _) => 200,
            (0, ..1000) => 120,
            _ => 0,
        };
        let cycles = path.rtt.saturating_mul(rounds);
        if path.rtt >= Nanos::from_millis(100) { all } else { time.max(cycles).min(all) }
    }

    /// Returns whether three frames, which every window has on top, fit a quarter of the product.
    ///
    /// If they do not, a queue of that length is part of the algorithm.
    pub fn has_room_for_frames(&self) -> bool {
        let path = self.path();
        let product = path.rate.bytes_in(path.rtt);
        product >= 12 * u64::from(path.mtu) && path.rtt >= Nanos::from_millis(4)
    }

    /// Runs the flow: start-up, and then the measured time.
    ///
    /// # Errors
    /// [`Failure`] for a host that spins.
    pub fn run(&self, measured: Nanos, seed: u64) -> Result<FlowFigures, Failure> {
        let path = self.path();
        let from = path.rtt.saturating_mul(30).max(Nanos::from_millis(100));
        let mut experiment = BottleneckRun::new(&path, &[Flow::bulk(self.controller)], seed)?;
        let figures = experiment.measure(from, from + measured)?;
        figures.first().copied().ok_or_else(|| "no flow".into())
    }

    /// Returns the figures as a line of a table.
    pub fn row(&self, measured: Nanos, figures: &FlowFigures) -> String {
        format!(
            "{:>7} {:>7} {:>7.1} {:>5.1} {:>10.2} {:>8.1} {:>6.2} {:>7.2}",
            self.mbit,
            self.rtt_ms,
            self.buffer_permille as f64 / 1000.0,
            f64::from(self.loss) / 10_000.0,
            measured.as_secs_f64(),
            figures.share * 100.0,
            figures.rtt,
            figures.resent * 100.0,
        )
    }
}
