//! Many flows of one host that all have something to send, and a processor that is their
//! bottleneck: everybody gets the same, and nobody waits for long.
//!
//! Links lose nothing and have room for all windows, so that the shares are those of the stack and
//! not of congestion control.

use bytes::Bytes;
use core::net::SocketAddr;
use neap_lab::app::{App, Step};
use neap_lab::link::{Coalescing, Departed, Link, LinkConfig, NicConfig, PathConfig};
use neap_lab::world::{Cpu, HostId, World, WorldConfig};
use neap_stack::interface::Address;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack, StackConfig};
use neap_tcp::config::{Config, MemoryPages};
use neap_tcp::options::SocketOptions;
use neap_tcp::time::{Instant, Nanos, Rate};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// A device between the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// What a TUN is: frames are gone when they are handed over, and the peer is near.
    Tun,
    /// A card with a ring, interrupts that wait for others, and a wire.
    Nic,
    /// The same with a wire that is slower than the processor.
    SlowNic,
}

/// Writes to all flows as far as they take it, from the beginning of each on.
struct Source {
    flows: Vec<(Instant, TcpHandle)>,
    data: Bytes,
}

impl App for Source {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        let mut next = Instant::FAR_FUTURE;
        for (begin, flow) in &self.flows {
            if *begin > now {
                next = next.min(*begin);
                continue;
            }
            // A full buffer is no news: it is tried again at the next turn.
            while flow.write_bytes(now, &mut self.data.clone()).is_ok() {}
        }
        Step { did: false, next }
    }
}

/// Reads all that comes, and counts it by the peer's port.
struct Sink {
    listener: ListenerHandle,
    flows: Vec<(u16, TcpHandle)>,
    read: Rc<RefCell<HashMap<u16, u64>>>,
}

impl App for Sink {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        while let Ok((flow, peer)) = self.listener.accept() {
            self.flows.push((peer.port(), flow));
        }
        let mut did = false;
        for (port, flow) in &self.flows {
            while let Ok(Some(data)) = flow.read_bytes(now) {
                *self.read.borrow_mut().entry(*port).or_default() += data.len() as u64;
                did = true;
            }
        }
        Step { did, next: Instant::FAR_FUTURE }
    }
}

struct Bulk {
    sender: HostId,
    world: World,
    link: Link,
    read: Rc<RefCell<HashMap<u16, u64>>>,
}

impl Bulk {
    /// `flows` connections that are open and send. Each begins `apart` after the one before.
    fn new(path: Path, gso: bool, flows: usize, apart: Nanos) -> Self {
        let mut world = World::new(WorldConfig::default());
        let tcp_mem = MemoryPages::of_machine(1 << 40);
        let config = StackConfig {
            config: Config { tcp_mem, ..Config::default() },
            ..StackConfig::default()
        };
        let mut host = || world.add_host(config.clone()).expect("a host");
        let (sender, receiver) = (host(), host());
        let gso_max_size = if gso { 16 << 10 } else { 1500 };
        let (nic, clean) = match path {
            Path::Tun => {
                let nic = NicConfig { gso_max_size, ..NicConfig::default() };
                (nic, PathConfig::clean(Rate::from_bits(400_000_000_000), Nanos::from_micros(5)))
            }
            Path::Nic | Path::SlowNic => {
                let delay = Nanos::from_micros(50);
                let coalescing = Coalescing { delay, frames: 32 };
                let nic = NicConfig {
                    gso_max_size,
                    tx_coalescing: coalescing,
                    rx_coalescing: coalescing,
                    ..NicConfig::default()
                };
                let bits = if path == Path::Nic { 10_000_000_000 } else { 1_000_000_000 };
                (nic, PathConfig::clean(Rate::from_bits(bits), Nanos::from_micros(100)))
            }
        };
        // The rings hold what all windows allow: nothing is lost or waits there for the next poll.
        let nic = NicConfig { descriptors: 1 << 16, rx_descriptors: 1 << 20, ..nic };
        let config = LinkConfig { nics: [nic.clone(), nic], paths: [clean.clone(), clean] };
        let address = |text: &str| text.parse::<Address>().expect("an address");
        let ends = [address("10.0.0.1/16"), address("10.0.0.2/16")];
        let link = world
            .add_link(&config, [(sender, &ends[..1]), (receiver, &ends[1..])])
            .expect("a link");
        let server: SocketAddr = "10.0.0.2:80".parse().expect("an address");
        let options = ListenOptions { backlog: 4096, ..ListenOptions::default() };
        let listener = world.stack(receiver).listen(server, options).expect("free");
        let read = Rc::default();
        let sink = Sink { listener, flows: Vec::new(), read: Rc::clone(&read) };
        world.add_app(receiver, sink);
        let send_buffer = Some(4 << 20);
        let options = SocketOptions { send_buffer, ..SocketOptions::default() };
        let options = ConnectOptions { options, ..ConnectOptions::default() };
        let now = world.now();
        let stack = world.stack(sender);
        let connect = |number| {
            let flow = stack.connect(now, server, options.clone()).expect("a port");
            (now + apart.saturating_mul(number), flow)
        };
        let flows = (0..flows as u64).map(connect).collect();
        let data = Bytes::from(vec![7; 64 << 10]);
        world.add_app(sender, Source { flows, data });
        if path != Path::SlowNic {
            // The processor is the bottleneck: a poll takes so long.
            let per_poll = Nanos::from_millis(5);
            world.set_cpu(sender, Cpu { per_poll, ..Cpu::up_to(Nanos::ZERO) });
        }
        Self { sender, world, link, read }
    }

    fn run(&mut self, span: Nanos) {
        let until = self.world.now() + span;
        self.world.run_until(until).expect("a sound world");
    }
}

/// (sum x)^2 / (n * sum x^2): 1 if all are equal.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Frames of one flow that follow each other at one time.
struct Visit {
    flow: u64,
    /// They are the rest of a turn that the end of a poll had interrupted.
    goes_on: bool,
}

/// The visits as a trace shows them. Who was the last of a poll may have had more to send, and goes
/// on when it is there again.
fn visits(frames: &[Departed]) -> Vec<Visit> {
    let mut groups: Vec<&Departed> = frames.iter().collect();
    groups.dedup_by_key(|frame| (frame.at, frame.flow));
    let mut interrupted = HashSet::new();
    let mut visits = Vec::new();
    for (place, frame) in groups.iter().enumerate() {
        let goes_on = interrupted.remove(&frame.flow);
        visits.push(Visit { flow: frame.flow, goes_on });
        if groups.get(place + 1).is_none_or(|next| next.at != frame.at) {
            interrupted.insert(frame.flow);
        }
    }
    visits
}

/// The most turns that any other flow had between two visits of one.
fn longest_wait(visits: &[Visit], flows: usize) -> u32 {
    let mut had: HashMap<u64, Vec<usize>> = HashMap::new();
    for (place, visit) in visits.iter().enumerate() {
        had.entry(visit.flow).or_default().push(place);
    }
    assert_eq!(had.len(), flows, "a flow had no turn at all");
    let mut longest = 0;
    for places in had.values() {
        for gap in places.windows(2) {
            let mut others: HashMap<u64, u32> = HashMap::new();
            let between = &visits[gap[0] + 1..gap[1]];
            for visit in between.iter().filter(|visit| !visit.goes_on) {
                *others.entry(visit.flow).or_default() += 1;
            }
            longest = longest.max(others.into_values().max().unwrap_or(0));
        }
    }
    longest
}

fn flows_share(path: Path, gso: bool, flows: usize) {
    let mut bulk = Bulk::new(path, gso, flows, Nanos::ZERO);
    // Long enough for the windows to be larger than what a poll may send.
    bulk.run(Nanos::from_secs(1));
    bulk.read.borrow_mut().clear();
    bulk.link.trace(0);
    bulk.run(Nanos::from_secs(5));
    let shares: Vec<f64> = bulk.read.borrow().values().map(|&bytes| bytes as f64).collect();
    let visits = visits(&bulk.link.trace(0));
    let index = jain(&shares) * shares.len() as f64 / flows as f64;
    let wait = longest_wait(&visits, flows);
    // The stack's own account: rounds that began while one waited.
    let rounds = bulk.world.stack(bulk.sender).usage().longest_wait;
    assert!(rounds <= 2, "{path:?}, super-frames {gso}, {flows} flows: {rounds} rounds");
    assert!(index >= 0.98, "{path:?}, super-frames {gso}, {flows} flows: Jain's index {index}");
    // A flow whose frames are still below wants no turn, so one more of another may lie between.
    assert!(wait <= 3, "{path:?}, super-frames {gso}, {flows} flows: {wait} turns of another");
}

fn shares_on(path: Path) {
    for gso in [true, false] {
        for flows in [10, 100, 1000] {
            flows_share(path, gso, flows);
        }
    }
}

#[test]
fn flows_over_a_tun_have_equal_shares_and_nobody_waits_for_more_than_two_rounds() {
    shares_on(Path::Tun);
}

#[test]
fn flows_over_a_card_have_equal_shares_and_nobody_waits_for_more_than_two_rounds() {
    shares_on(Path::Nic);
}

/// Nothing is lost, so congestion control makes nothing equal. What a flow may have below depends
/// on its own rate, and must not keep that rate as it is. No flow gains by trying larger queues.
#[test]
fn flows_that_begin_later_get_their_share_of_a_slow_card() {
    for gso in [true, false] {
        for flows in [10, 100] {
            let span = Nanos::from_secs(2);
            let mut bulk = Bulk::new(Path::SlowNic, gso, flows, span / flows as u64);
            bulk.run(span);
            bulk.read.borrow_mut().clear();
            bulk.run(Nanos::from_secs(5));
            let shares: Vec<f64> = bulk.read.borrow().values().map(|&bytes| bytes as f64).collect();
            let index = jain(&shares) * shares.len() as f64 / flows as f64;
            let bits = shares.iter().sum::<f64>() * 8.0 / 5.0;
            let what = format!("super-frames {gso}, {flows} flows");
            assert!(index >= 0.98, "{what}: Jain's index {index}");
            assert!(bits > 930e6, "{what}: {bits} bits per second");
        }
    }
}
