//! What a driver that is slower than its senders lets wait in the device, and what waits behind
//! that.

use super::{address, connect};
use crate::common::{WireConfig, World, inject};
use bytes::Bytes;
use neap_stack::device::Received;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, Why};
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos};
use std::collections::VecDeque;

/// Flows to a receiver that is slower than they are.
struct Slow {
    world: World,
    flows: Vec<(TcpHandle, TcpHandle)>,
    buf: Vec<u8>,
}

impl Slow {
    fn new(flows: u64, bulk: bool) -> Self {
        let delay = Nanos::from_micros(5);
        let wire = WireConfig { delay, ring: 4096, bulk, ..WireConfig::default() };
        let mut world = World::new(&wire);
        let flows = (0..flows)
            .map(|flow| connect(&mut world, &format!("10.0.0.2:{}", 1000 + flow)))
            .collect();
        Self { world, flows, buf: vec![0; 65_536] }
    }

    /// The senders send what they may; then the receiver's driver does one round, and its
    /// applications take what came.
    fn round(&mut self) {
        let Self { world, flows, buf } = self;
        for _ in 0..20 {
            for (from, _) in &*flows {
                while from.write(world.now, buf).is_ok() {}
            }
            world.a.poll(0, world.now);
            world.now += Nanos::from_micros(5);
        }
        world.b.poll(0, world.now);
        for (_, to) in &*flows {
            while to.read(world.now, buf).is_ok() {}
        }
        world.ab.lock().unwrap().sent.clear();
    }
}

fn bytes(packets: &VecDeque<(Instant, Received)>) -> u64 {
    packets.iter().map(|(_, packet)| packet.data.len() as u64).sum()
}

#[test]
fn windows_do_not_grow_while_data_waits_for_the_driver() {
    const FLOWS: u64 = 20;
    let mut slow = Slow::new(FLOWS, false);
    let mut most_waits = 0;
    for _ in 0..1500 {
        slow.round();
        most_waits = most_waits.max(bytes(&slow.world.ab.lock().unwrap().packets));
    }
    assert!(most_waits > 128 << 10, "the driver is not slow: {most_waits}");
    assert!(most_waits < FLOWS * (128 << 10), "{most_waits} bytes wait");
}

#[test]
fn a_packet_of_another_flow_does_not_wait_behind_those_of_bulk_flows() {
    let mut slow = Slow::new(20, true);
    for _ in 0..1500 {
        slow.round();
    }
    let waits = bytes(&slow.world.ab.lock().unwrap().bulk);
    assert!(waits > 512 << 10, "{waits} bytes wait in the bulk queue");
    let out_of_order = |(_, to): &(_, TcpHandle)| to.info(slow.world.now).rcv_ooopack;
    let out_of_order: u32 = slow.flows.iter().map(out_of_order).sum();
    assert_eq!(out_of_order, 0, "a flow that comes to the bulk queue keeps its order");
    let connecting =
        slow.world.a.connect(slow.world.now, address("10.0.0.2:1"), ConnectOptions::default());
    let connecting = connecting.unwrap();
    // To the device and up to the host, where nobody listens.
    slow.round();
    slow.world.now += Nanos::from_micros(5);
    slow.world.a.poll(0, slow.world.now);
    assert_eq!(
        connecting.state(slow.world.now),
        State::Closed,
        "the answer waits behind bulk flows"
    );
}

#[test]
fn the_bulk_queue_has_its_turn_beside_a_flood_of_other_packets() {
    let mut slow = Slow::new(1, true);
    while bytes(&slow.world.ab.lock().unwrap().bulk) == 0 {
        slow.round();
    }
    let received = |slow: &Slow| slow.flows[0].1.info(slow.world.now).bytes_received;
    let (before, flood) = (received(&slow), Bytes::from(vec![0; 1 << 10]));
    for _ in 0..1500 {
        for _ in 0..256 {
            inject(&slow.world.ab, slow.world.now, flood.clone());
        }
        slow.round();
    }
    assert!(received(&slow) > before + (1 << 20), "starved by a flood");
}

#[test]
fn a_driver_does_not_sleep_while_one_of_both_queues_has_packets() {
    let mut slow = Slow::new(0, true);
    let flood = Bytes::from(vec![0; 64]);
    for _ in 0..256 * 1200 {
        inject(&slow.world.ab, slow.world.now, flood.clone());
    }
    while slow.world.b.poll(0, slow.world.now).1 == Why::MoreWork {
        slow.world.now += Nanos::from_micros(1);
    }
    let left = slow.world.ab.lock().unwrap().packets.len();
    assert_eq!(left, 0, "the driver sleeps in front of them");
}
