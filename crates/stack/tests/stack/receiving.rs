//! What a driver that is slower than its senders lets wait in the device.

use super::connect;
use crate::common::{WireConfig, World};
use neap_tcp::time::Nanos;

#[test]
fn windows_do_not_grow_while_data_waits_for_the_driver() {
    const FLOWS: u64 = 20;
    /// Of the driver of the receiver, which takes 128 KiB each.
    const ROUNDS: usize = 1500;
    let delay = Nanos::from_micros(5);
    let mut world = World::new(&WireConfig { delay, ring: 4096, ..WireConfig::default() });
    let flows: Vec<_> =
        (0..FLOWS).map(|flow| connect(&mut world, &format!("10.0.0.2:{}", 1000 + flow))).collect();
    let data = vec![0; 65_536];
    let mut buf = vec![0; 65_536];
    let mut most_waits = 0;
    for _ in 0..ROUNDS {
        for _ in 0..20 {
            for (from, _) in &flows {
                while from.write(world.now, &data).is_ok() {}
            }
            world.a.poll(0, world.now);
            world.now += Nanos::from_micros(5);
        }
        world.b.poll(0, world.now);
        for (_, to) in &flows {
            while to.read(world.now, &mut buf).is_ok() {}
        }
        let mut wire = world.ab.lock().unwrap();
        wire.sent.clear();
        let waits = wire.packets.iter().map(|(_, packet)| packet.data.len() as u64).sum::<u64>();
        most_waits = most_waits.max(waits);
    }
    assert!(most_waits > 128 << 10, "the driver is not slow: {most_waits}");
    assert!(most_waits < FLOWS * (128 << 10), "{most_waits} bytes wait");
}
