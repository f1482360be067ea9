//! A whole gateway on arbitrary packets of its guest: nonsense, segments and datagrams that make
//! sense, and its own packets turned around and spoiled, so that handshakes get past the stack. The
//! far sides are in memory and send back what they get.
//!
//! It runs in real time, in the threads that a gateway has. No thread may panic, the bounds of
//! flows and mappings hold, nothing leaves for where the policy is against it, what the guest gets
//! are packets, and nothing is left in the end.
//! `cargo test` runs it for a few seconds; docs/fuzzing.md tells of more.

mod fuzz_world;

use etherparse::SlicedPacket;
use fuzz_world::source::Source;
use fuzz_world::{MOST_PACKETS, World, config, packet, watch_threads};
use neap::device::Medium;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(3);

fn run(input: &[u8]) {
    let world = World::start(Medium::Ip, config(), |interface| interface);
    let (mut source, mut last) = (Source(input), None);
    for _ in 0..MOST_PACKETS {
        if source.0.is_empty() {
            break;
        }
        let packet = packet(&mut source, &mut last);
        // A full cable loses it.
        if !packet.is_empty() && world.cable.send(&packet).is_err() {
            continue;
        }
        if let Some(received) = world.receive() {
            if let Err(why) = SlicedPacket::from_ip(&received) {
                panic!("{received:?}: {why:?}");
            }
            last = Some(received);
        }
    }
    world.end();
}

#[test]
fn gateway() {
    let panicked = watch_threads();
    bolero::check!().with_test_time(TIME).with_max_len(4000).for_each(|bytes: &[u8]| {
        run(bytes);
        assert!(!panicked.load(SeqCst), "a thread has panicked");
    });
}
