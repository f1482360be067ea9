//! By which queue of a device a flow sends.

use super::connect;
use crate::common::{WireConfig, World};
use neap_tcp::options::SocketOption;
use neap_tcp::time::Nanos;

#[test]
fn a_flow_that_sent_in_bulk_keeps_its_queue_while_something_is_in_flight() {
    let delay = Nanos::from_micros(5);
    let wire = WireConfig { delay, ring: 4096, bulk: true, ..WireConfig::default() };
    let mut world = World::new(&wire);
    let (from, to) = connect(&mut world, "10.0.0.2:1000");
    from.set_option(world.now, SocketOption::NoDelay(true)).expect("valid");
    let mut data = vec![0; 65_536];
    let last = |world: &World| *world.ab.lock().unwrap().bulk_sent.last().expect("a frame");

    assert!(from.write(world.now, &data[..1000]).is_ok());
    assert!(!last(&world), "a thousand bytes are no bulk");
    let (mut sent, mut is_over) = (0, false);
    while !is_over {
        if sent < 16 << 20 {
            sent += from.write(world.now, &data).unwrap_or(0);
        }
        world.now += delay;
        world.a.poll(0, world.now);
        world.b.poll(0, world.now);
        while to.read(world.now, &mut data).is_ok() {}
        let info = from.info(world.now);
        is_over = sent >= 16 << 20 && info.unacked_bytes + info.notsent_bytes == 0;
    }
    assert!(last(&world), "16 MB in a few milliseconds are bulk");

    // Each write finds the one before in flight: its ACK waits in the device.
    for _ in 0..50 {
        world.now += Nanos::from_millis(20);
        assert!(from.write(world.now, &data[..1000]).is_ok());
        assert!(last(&world), "it would overtake what waits in the bulk queue");
        for _ in 0..2 {
            world.a.poll(0, world.now);
            world.now += delay;
            world.b.poll(0, world.now);
            while to.read(world.now, &mut data).is_ok() {}
        }
    }
    world.run(Nanos::from_secs(1));
    assert_eq!(from.info(world.now).unacked_bytes, 0);
    assert!(from.write(world.now, &data[..1000]).is_ok());
    assert!(!last(&world), "nothing is in flight, and little was sent");
}
