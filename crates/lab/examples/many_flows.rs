//! The fourth experiment's load without its report: 800 flows of 6,000,000 B/s over 40 Gbit/s.
//! Prints how many virtual seconds pass in a second of this machine.
//!
//! `cargo run --release -p neap-lab --example many_flows [FLOWS] [MILLISECONDS]`

use neap_lab::app::group::{Group, GroupConfig, Traffic};
use neap_lab::link::{Coalescing, LinkConfig, NicConfig, PathConfig};
use neap_lab::rng::Rng;
use neap_lab::world::{World, WorldConfig};
use neap_stack::interface::Address;
use neap_stack::stack::{ConnectOptions, ListenOptions, StackConfig};
use neap_tcp::config::Config;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::{Instant, Nanos, Rate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let flows = arguments.next().transpose()?.unwrap_or(800);
    let millis = arguments.next().transpose()?.unwrap_or(500);
    let mut world =
        World::new(WorldConfig { wake_jitter: Nanos::from_micros(5), ..WorldConfig::default() });
    let mut host = || world.add_host(host_config());
    let (a, b) = (host()?, host()?);
    let nic = NicConfig {
        descriptors: 4096,
        rx_coalescing: Coalescing { delay: Nanos::from_micros(10), frames: 64 },
        tx_coalescing: Coalescing { delay: Nanos::from_micros(10), frames: 64 },
        ..NicConfig::default()
    };
    let path = PathConfig::clean(Rate::from_bits(40_000_000_000), Nanos::from_micros(25));
    let config = LinkConfig { nics: [nic.clone(), nic], paths: [path.clone(), path] };
    let addresses: [Address; 2] = ["10.0.0.1/24".parse()?, "10.0.0.2/24".parse()?];
    let ends = [(a, &addresses[..1]), (b, &addresses[1..])];
    let link = world.add_link(&config, ends)?;
    let options = SocketOptions { max_pacing_rate: Rate(6_000_000), ..SocketOptions::default() };
    let group = Group::new(GroupConfig {
        traffic: Traffic::Bulk { bytes: None, write: 65_536 },
        read_rate: None,
        polls: false,
        client: ConnectOptions { options, ..ConnectOptions::default() },
        server: ListenOptions::default(),
    });
    let remote = "10.0.0.2:5001".parse()?;
    let server = group.server(world.stack(b), remote)?;
    world.add_app(b, server);
    let mut rng = Rng::new(1);
    for _ in 0..flows {
        let start = world.now() + rng.time(Nanos::from_millis(100));
        world.add_app(a, group.client(remote, start, Instant::FAR_FUTURE, rng.fork(1)));
    }
    let warm_up = world.now() + Nanos::from_millis(200);
    world.run_until(warm_up)?;
    let log = group.log();
    let (before, turns) = (log.borrow().delivered(), world.cpu_stats(a).turns);
    link.clear_stats(world.now());
    let clock = std::time::Instant::now();
    world.run_until(warm_up + Nanos::from_millis(millis))?;
    let elapsed = clock.elapsed().as_secs_f64();
    let virtual_time = millis as f64 / 1e3;
    let delivered = (log.borrow().delivered() - before) as f64 / virtual_time;
    let stats = link.stats(0, world.now());
    println!(
        "{:.2} Gbit/s of payload, {:.0} B/s per flow",
        delivered * 8e-9,
        delivered / flows as f64
    );
    println!(
        "{:.0} frames/s, {:.0} segments/s, {:.0} packets/s back, {:.0} turns/s, wrong {:?}",
        stats.frames as f64 / virtual_time,
        stats.segments as f64 / virtual_time,
        link.stats(1, world.now()).packets as f64 / virtual_time,
        (world.cpu_stats(a).turns - turns) as f64 / virtual_time,
        log.borrow().wrong_at,
    );
    println!(
        "{elapsed:.2} s for {virtual_time} s: {:.1} s per virtual second",
        elapsed / virtual_time
    );
    Ok(())
}

/// Frames of a millisecond of the rate, as Linux's: four segments.
fn host_config() -> StackConfig {
    let config = Config { tso_max_usecs: 1000, ..Config::default() };
    StackConfig { config, ..StackConfig::default() }
}
