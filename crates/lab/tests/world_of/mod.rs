//! The world of a seed.

use neap_lab::app::session::{
    self, Ending, Plan, Reading, SessionLog, SharedSessionLog, Turns, Writing,
};
use neap_lab::link::{
    Bottleneck, CoDel, Coalescing, Discipline, GilbertElliott, Link, LinkConfig, NicConfig,
    PathConfig, Red, Wifi,
};
use neap_lab::oracle::{self, FlowOracle};
use neap_lab::pattern::Pattern;
use neap_lab::rng::{Ppm, Rng};
use neap_lab::world::{HostId, World, WorldConfig};
use neap_stack::drop_reason::DropReason;
use neap_stack::interface::Address;
use neap_stack::stack::{ConnectOptions, ListenOptions, StackConfig};
use neap_tcp::config::{BufferSizes, Config, TsoBonus};
use neap_tcp::counters::Counter;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::{Instant, Nanos, Rate};
use std::net::SocketAddr;
use std::ops::AddAssign;

/// Applications must have left by then.
const LONGEST: Nanos = Nanos::from_secs(1200);
/// And their connections be forgotten so much later: TIME-WAIT, orphans that give up.
const REST: Nanos = Nanos::from_secs(1200);

/// What happened in a world, so that a test can tell whether its worlds are worth anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Events {
    pub(crate) bytes: u64,
    pub(crate) lost: u64,
    pub(crate) early_drops: u64,
    pub(crate) bad_checksums: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) too_big: u64,
    pub(crate) marked: u64,
    pub(crate) retransmitted: u64,
    pub(crate) timeouts: u64,
    pub(crate) spurious: u64,
    pub(crate) paced: u64,
    pub(crate) throttled: u64,
    pub(crate) resets: u64,
}

impl Events {
    fn of(world: &World, hosts: [HostId; 2], link: &Link) -> Self {
        let mut events = Self::default();
        for (end, host) in hosts.into_iter().enumerate() {
            let (stats, stack) = (link.stats(end), world.stack(host));
            let count = |counter| stack.tcp_counter(counter);
            events += Self {
                bytes: 0,
                lost: stats.lost + stats.dropped + stats.ring_drops,
                early_drops: stats.early_drops,
                bad_checksums: stack.drops().get(DropReason::TcpChecksum),
                duplicated: stats.duplicated,
                reordered: stats.reordered,
                too_big: stats.too_big,
                marked: stats.marked,
                retransmitted: count(Counter::RetransSegs),
                timeouts: count(Counter::Timeouts),
                spurious: count(Counter::DSACKUndo) + count(Counter::LossUndo),
                paced: count(Counter::PacingBlocked),
                throttled: count(Counter::SmallQueueThrottled),
                resets: count(Counter::OutRsts),
            };
        }
        events
    }

    /// Every number, with its name.
    pub(crate) fn named(&self) -> [(&'static str, u64); 14] {
        [
            ("bytes", self.bytes),
            ("lost", self.lost),
            ("early drops", self.early_drops),
            ("bad checksums", self.bad_checksums),
            ("duplicated", self.duplicated),
            ("reordered", self.reordered),
            ("too big", self.too_big),
            ("marked", self.marked),
            ("retransmitted", self.retransmitted),
            ("timeouts", self.timeouts),
            ("spurious", self.spurious),
            ("paced", self.paced),
            ("throttled", self.throttled),
            ("resets", self.resets),
        ]
    }
}

impl AddAssign for Events {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.lost += other.lost;
        self.early_drops += other.early_drops;
        self.bad_checksums += other.bad_checksums;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.too_big += other.too_big;
        self.marked += other.marked;
        self.retransmitted += other.retransmitted;
        self.timeouts += other.timeouts;
        self.spurious += other.spurious;
        self.paced += other.paced;
        self.throttled += other.throttled;
        self.resets += other.resets;
    }
}

/// What a world came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) steps: u64,
    pub(crate) finished: Instant,
    pub(crate) digests: [u64; 2],
    pub(crate) events: Events,
}

/// One connection and what must become of it.
struct Pair {
    client: SharedSessionLog,
    server: SharedSessionLog,
    /// Bytes that each writes.
    bytes: [u64; 2],
    /// One end resets, or leaves without reading all: then only what was read is judged.
    is_cut: bool,
}

/// Runs the world of `seed` to its end.
pub(crate) fn run(seed: u64) -> Result<Outcome, String> {
    let mut rng = Rng::new(seed).fork(100);
    let jitter = if rng.chance(Ppm::percent(80)) { Nanos::from_micros(50) } else { Nanos::ZERO };
    let mut world = World::new(WorldConfig { seed, wake_jitter: jitter, ..WorldConfig::default() });
    let profile = Profile::draw(&mut rng);
    let config = profile.link(&mut rng);
    let is_clean = !profile.is_lossy && config.paths.iter().all(|path| path.bottleneck.is_none());
    let configs = [0, 1].map(|_| host_config(&mut rng, &profile, is_clean));
    let [a, b] = configs.map(|config| {
        let config = StackConfig { config, ..StackConfig::default() };
        world.add_host(config).expect("a sound configuration")
    });
    let is_v6 = profile.is_v6;
    let addresses =
        if is_v6 { ["fd00::1/64", "fd00::2/64"] } else { ["10.0.0.1/24", "10.0.0.2/24"] };
    let addresses: [Address; 2] = addresses.map(|text| text.parse().expect("an address"));
    let ends = [(a, &addresses[..1]), (b, &addresses[1..])];
    let link = world.add_link(&config, ends).expect("a link");
    let count = rng.pick(&[1, 1, 1, 2, 2, 3, 5]);
    let pairs: Vec<Pair> =
        (0..count).map(|i| pair(&mut world, [a, b], addresses[1], i, &mut rng, &profile)).collect();
    let context = |fault: String| format!("{fault}\n  {config:?}\n  {profile:?}");
    let at_once = [0, 1].map(|end| {
        let NicConfig { tx_coalescing, completion_delay, .. } = &config.nics[end];
        *tx_coalescing == Coalescing::NONE && *completion_delay == Nanos::ZERO
    });
    finish(&mut world, [a, b], &link, at_once, &pairs).map_err(context)
}

fn finish(
    world: &mut World,
    hosts: [HostId; 2],
    link: &Link,
    completes_at_once: [bool; 2],
    pairs: &[Pair],
) -> Result<Outcome, String> {
    let mut oracle = FlowOracle::default();
    let mut steps = 0;
    let start = world.now();
    let all_left =
        || pairs.iter().all(|p| oracle::is_over(&p.client) && oracle::is_over(&p.server));
    while !all_left() {
        let Some(host) = world.step(start + LONGEST).map_err(|fault| fault.to_string())? else {
            break;
        };
        steps += 1;
        oracle.check(world, host)?;
        if completes_at_once[host.0] {
            FlowOracle::check_wire(world, host, link, host.0)?;
        }
    }
    let finished = world.now();
    for pair in pairs {
        pair.check().map_err(|fault| format!("after {steps} steps, {finished:?}: {fault}"))?;
    }
    world.run_until(finished + REST).map_err(|fault| fault.to_string())?;
    for host in hosts {
        oracle::check_empty(world, host)?;
    }
    if link.contents() != 0 {
        return Err(format!("{} packets never left the link", link.contents()));
    }
    let bytes = pairs.iter().map(|p| p.client.borrow().read + p.server.borrow().read).sum();
    let digests = [link.stats(0).digest, link.stats(1).digest];
    let events = Events { bytes, ..Events::of(world, hosts, link) };
    Ok(Outcome { steps, finished, digests, events })
}

impl Pair {
    fn check(&self) -> Result<(), String> {
        let (client, server): (&SessionLog, &SessionLog) =
            (&self.client.borrow(), &self.server.borrow());
        if self.is_cut {
            oracle::check_prefix(client, server)?;
            return oracle::check_prefix(server, client);
        }
        oracle::check_delivery([(client, self.bytes[0]), (server, self.bytes[1])])
    }
}

/// What the parts of a world have in common, so that it ends in time.
#[derive(Debug)]
struct Profile {
    is_v6: bool,
    rate: Rate,
    delay: Nanos,
    /// Bytes that one connection may carry: some seconds of the link.
    budget: u64,
    is_lossy: bool,
}

impl Profile {
    fn draw(rng: &mut Rng) -> Self {
        let rate = Rate(rng.log_range(20_000, 1_250_000_000));
        let delay = Nanos(rng.log_range(1_000, 200_000_000));
        let budget = (rate.0 * 4).clamp(20_000, 1_000_000);
        Self {
            is_v6: rng.chance(Ppm::percent(30)),
            rate,
            delay,
            budget,
            is_lossy: rng.chance(Ppm::percent(70)),
        }
    }

    fn link(&self, rng: &mut Rng) -> LinkConfig {
        let mut mtu = || {
            let least = if self.is_v6 { 1280 } else { 576 };
            rng.pick(&[1500, 1500, 1500, 9000, least, 1400]).max(least)
        };
        let (first, second) = (mtu(), mtu());
        let second = if rng.chance(Ppm::percent(60)) { first } else { second };
        let least = first.min(second);
        LinkConfig {
            nics: [nic(rng, first), nic(rng, second)],
            paths: [self.path(rng, least), self.path(rng, least)],
        }
    }

    fn path(&self, rng: &mut Rng, mtu: u16) -> PathConfig {
        let mut path = PathConfig::clean(self.rate, self.delay);
        if rng.chance(Ppm::percent(30)) {
            path.bottleneck = Some(Bottleneck {
                rate: Rate((self.rate.0 / rng.range(1, 10)).max(10_000)),
                packets: rng.log_range(4, 1000) as usize,
                bytes: rng.log_range(20_000, 2_000_000),
            });
        }
        if rng.chance(Ppm::percent(15)) && mtu > 1400 {
            path.mtu = Some(rng.range(1280, 1400) as u16);
        }
        if rng.chance(Ppm::percent(20)) {
            path.congestion_marks = Ppm(rng.log_range(100, 50_000) as u32);
        }
        if !self.is_lossy {
            return path;
        }
        self.manage(rng, &mut path);
        let mut some = |most: u64| match rng.below(3) {
            0 => Ppm::NEVER,
            _ => Ppm(rng.log_range(100, most) as u32),
        };
        path.loss = some(40_000);
        path.corruption = some(20_000);
        path.duplication = some(50_000);
        path.reordering = some(100_000);
        path.reorder_delay = Nanos(rng.log_range(1_000, self.delay.0 * 3 + 1_000));
        path.jitter = rng.time(self.delay / 2);
        path
    }
}

impl Profile {
    /// Queues that drop, mark, hold back and aggregate, and loss in bursts.
    fn manage(&self, rng: &mut Rng, path: &mut PathConfig) {
        if rng.chance(Ppm::percent(10)) {
            path.bursts = Some(GilbertElliott {
                to_bad: Ppm(rng.log_range(100, 10_000) as u32),
                to_good: Ppm::percent(rng.range(10, 60) as u32),
                loss_in_bad: Ppm::percent(rng.range(10, 90) as u32),
                loss_in_good: Ppm::NEVER,
            });
        }
        if path.bottleneck.is_none() {
            return;
        }
        let ecn = rng.chance(Ppm::percent(50));
        path.discipline = match rng.below(6) {
            0 => Discipline::CoDel(CoDel { ecn, ..CoDel::default() }),
            1 => {
                let min = rng.log_range(3_000, 60_000);
                let (max, probability) = (min * 3, Ppm::percent(10));
                Discipline::Red(Red { min, max, probability, weight_log: 5, ecn })
            }
            2 => Discipline::MarkAbove(rng.log_range(3_000, 60_000)),
            _ => Discipline::DropTail,
        };
        if rng.chance(Ppm::percent(15)) {
            path.wifi = Some(Wifi {
                overhead: Nanos(rng.log_range(50_000, 1_000_000)),
                frames: rng.range(1, 64) as u32,
                airtime: Nanos::from_millis(rng.range(1, 6)),
            });
        }
    }
}

fn nic(rng: &mut Rng, mtu: u16) -> NicConfig {
    let mut coalescing = || match rng.below(2) {
        0 => Coalescing::NONE,
        _ => Coalescing {
            delay: Nanos(rng.log_range(1_000, 2_000_000)),
            frames: rng.range(1, 64) as u32,
        },
    };
    let (tx_coalescing, rx_coalescing) = (coalescing(), coalescing());
    let checksums = rng.chance(Ppm::percent(70));
    NicConfig {
        mtu,
        descriptors: rng.pick(&[1, 2, 4, 16, 256, 256, 256]),
        gso_max_size: rng.pick(&[u32::from(mtu), 16_384, 65_536, 65_536]),
        gso_max_segs: rng.pick(&[2, 16, 65_535, 65_535]),
        checksums,
        gro: checksums && rng.chance(Ppm::percent(70)),
        tx_coalescing,
        rx_coalescing,
        completion_delay: match rng.below(4) {
            0 => Nanos(rng.log_range(1_000, 2_000_000)),
            _ => Nanos::ZERO,
        },
        rx_descriptors: rng.pick(&[64, 512, 4096]),
        ..NicConfig::default()
    }
}

fn host_config(rng: &mut Rng, profile: &Profile, is_clean: bool) -> Config {
    let mut config = Config::default();
    let mut often = |percent| rng.chance(Ppm::percent(percent));
    config.tcp_sack = often(85);
    config.tcp_dsack = often(85);
    config.tcp_timestamps = often(80);
    config.tcp_window_scaling = often(85);
    config.tcp_frto = often(80);
    config.tcp_autocorking = often(80);
    config.small_queues = often(80);
    config.tso_autosizing = often(85);
    config.tcp_moderate_rcvbuf = often(80);
    config.tcp_slow_start_after_idle = often(80);
    config.tcp_early_retrans = if often(80) { 3 } else { 0 };
    config.tso_bonus = if often(70) { TsoBonus::Bounded } else { TsoBonus::Linux };
    config.tcp_congestion_control = if often(70) { "cubic".into() } else { "reno".into() };
    // A cookie is only in what follows the handshake at once: if that is lost, the next segment is
    // answered by a reset, as in Linux.
    config.tcp_syncookies = if is_clean && often(20) { 2 } else { 1 };
    config.tcp_limit_output_bytes = rng.pick(&[4 << 20, 4 << 20, 131_072, 20_000, 1]);
    config.tcp_ecn = rng.pick(&[0, 1, 1, 2, 2]);
    config.tcp_min_tso_segs = rng.pick(&[1, 2, 2, 8]);
    config.tcp_rto_min_us = rng.pick(&[200_000, 200_000, 20_000, 5_000]);
    // Lost windows are retried often enough for a world to end.
    config.tcp_rto_max_ms = rng.pick(&[1_000, 2_000, 10_000]);
    config.tcp_retries2 = 60;
    config.tcp_orphan_retries = 60;
    config.tcp_syn_retries = 30;
    config.tcp_synack_retries = 30;
    config.tcp_notsent_lowat = rng.pick(&[u32::MAX, u32::MAX, 16_384, 1]);
    let size = |rng: &mut Rng| {
        let default = rng.log_range(4_608, 262_144) as u32;
        let max = default.saturating_mul(1 << rng.below(5));
        BufferSizes { min: 4096, default, max: max.max(16_384) }
    };
    if rng.chance(Ppm::percent(50)) {
        config.tcp_wmem = size(rng);
        config.tcp_rmem = size(rng);
    }
    // Otherwise it would take years.
    if profile.delay > Nanos::from_millis(50) {
        config.tcp_rto_min_us = 200_000;
    }
    config
}

fn pair(
    world: &mut World,
    [a, b]: [HostId; 2],
    server_address: Address,
    index: u64,
    rng: &mut Rng,
    profile: &Profile,
) -> Pair {
    let remote = SocketAddr::new(server_address.ip, 5000 + index as u16);
    let patterns = [rng.next_u64(), rng.next_u64()].map(Pattern::new);
    let kind = rng.below(10);
    let mut bytes = match kind {
        0..4 => [rng.log_range(1, profile.budget), 0],
        4..6 => [0, rng.log_range(1, profile.budget)],
        _ => [rng.log_range(1, profile.budget), rng.log_range(1, profile.budget)],
    };
    let mut turns = [None, None];
    if kind == 9 {
        let (ask, answer) = (rng.log_range(1, 3000), rng.log_range(1, 20_000));
        let rounds = rng.range(1, 20);
        bytes = [ask * rounds, answer * rounds];
        turns[0] = Some(Turns { bytes: ask, per: answer, ahead: 1 });
        turns[1] = Some(Turns { bytes: answer, per: ask, ahead: 0 });
    }
    let mut endings = [Ending::HalfClose; 2];
    let mut is_cut = false;
    let end = usize::from(rng.chance(Ppm::percent(50)));
    if rng.chance(Ppm::percent(10)) {
        endings[end] = Ending::Abort(rng.below(bytes[0] + bytes[1] + 1));
        is_cut = true;
    } else if rng.chance(Ppm::percent(25)) && bytes[1 - end] == 0 {
        endings[end] = Ending::Close;
    } else if rng.chance(Ppm::percent(5)) {
        endings[end] = Ending::Close;
        is_cut = true;
    }
    let plans = [0, 1].map(|end| Plan {
        writing: writing(rng, patterns[end], bytes[end], turns[end], profile),
        reading: reading(rng, patterns[1 - end]),
        ending: endings[end],
    });
    let [client_plan, server_plan] = plans;
    let listen = ListenOptions { options: options(rng, is_cut), ..ListenOptions::default() };
    let server = session::server(world.stack(b), remote, listen, server_plan, rng.fork(index));
    let (server_app, server) = server.expect("a free port");
    world.add_app(b, server_app);
    let at = world.now() + rng.time(Nanos::from_millis(200));
    let connect = ConnectOptions { options: options(rng, is_cut), ..ConnectOptions::default() };
    let (app, client) = session::client(remote, connect, at, client_plan, rng.fork(1000 + index));
    world.add_app(a, app);
    Pair { client, server, bytes, is_cut }
}

fn writing(
    rng: &mut Rng,
    pattern: Pattern,
    bytes: u64,
    turns: Option<Turns>,
    profile: &Profile,
) -> Writing {
    // Each write may wait for the ACK of the one before it.
    let least = bytes / (100_000_000_000 / (profile.delay.0 + 50_000_000));
    let high = rng.log_range(1, 200_000).max(least);
    Writing {
        pattern,
        bytes,
        chunk: (rng.range(1.max(least), high), high),
        zero_copy: rng.pick(&[Ppm::NEVER, Ppm::percent(30), Ppm::percent(100)]),
        pause: rng.pick(&[Ppm::NEVER, Ppm::percent(1), Ppm::percent(10)]),
        rest: Nanos(rng.log_range(1_000, 300_000_000)),
        turns,
    }
}

fn reading(rng: &mut Rng, pattern: Pattern) -> Reading {
    let high = rng.log_range(200, 200_000);
    Reading {
        pattern,
        chunk: (rng.range(1, high), high),
        zero_copy: rng.pick(&[Ppm::NEVER, Ppm::percent(30), Ppm::percent(100)]),
        pause: rng.pick(&[Ppm::NEVER, Ppm::NEVER, Ppm::percent(1), Ppm::percent(10)]),
        rest: Nanos(rng.log_range(1_000, 300_000_000)),
        late: match rng.below(10) {
            0 => Nanos::from_secs(rng.range(1, 20)),
            _ => Nanos::ZERO,
        },
    }
}

fn options(rng: &mut Rng, is_cut: bool) -> SocketOptions {
    let mut options =
        SocketOptions { nodelay: rng.chance(Ppm::percent(30)), ..SocketOptions::default() };
    if rng.chance(Ppm::percent(15)) {
        options.send_buffer = Some(rng.log_range(4_608, 500_000) as u32);
    }
    if rng.chance(Ppm::percent(15)) {
        options.receive_buffer = Some(rng.log_range(2_304, 500_000) as u32);
    }
    if rng.chance(Ppm::percent(10)) {
        options.max_segment = Some(rng.range(88, 1460) as u16);
    }
    if rng.chance(Ppm::percent(10)) {
        options.max_pacing_rate = Rate(rng.log_range(50_000, 100_000_000));
    }
    // Who hears nothing of a reset must find out.
    if is_cut {
        options.keepalive = true;
        options.keepalive_idle = Some(Nanos::from_secs(10));
        options.keepalive_interval = Some(Nanos::from_secs(2));
    }
    options
}
