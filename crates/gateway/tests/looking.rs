//! What others see of a gateway between a guest on a stack of this test and sockets of the host.

mod common;

use neap::control::{Application, RelayReport};
use neap::{Stack, TcpListener as GuestListener};
use neap_gateway::{
    Direct, Gateway, GatewayConfig, GatewayHandle, Inspector, Publication, Transport,
};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far above what anything takes.
const PATIENCE: Duration = Duration::from_secs(60);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
const STAND_IN: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// A gateway that runs, and the stack of its guest.
struct World {
    guest: Arc<Stack>,
    handle: GatewayHandle,
    inspector: Inspector,
}

impl World {
    fn new() -> Self {
        let config = GatewayConfig::default();
        let (gateway, cable): (Gateway, _) = common::gateway(Box::new(Direct), config);
        let (handle, inspector) = (gateway.handle(), gateway.inspector());
        let guest = Arc::new(common::guest(cable));
        common::run(gateway);
        Self { guest, handle, inspector }
    }

    /// Publishes a port of the guest; returns the address and port of the host.
    fn publish(&self, transport: Transport, port: u16) -> SocketAddr {
        let (any, guest) = ((Ipv4Addr::LOCALHOST, 0).into(), (GUEST, port).into());
        let publication = Publication { transport, port: any, guest, stand_in: STAND_IN.into() };
        self.handle.publish(publication).expect("published");
        self.handle.published().expect("it runs")[0].publication.port
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.handle.stop();
    }
}

/// Looks, after each `step`, until `look` has found something.
fn until<T>(mut step: impl FnMut(), look: impl Fn() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        step();
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "it is not there");
        std::thread::yield_now();
    }
}

#[test]
fn bytes_for_a_guest_that_does_not_read_wait_for_the_peer() {
    let world = World::new();
    let _listener = GuestListener::bind(&world.guest, (GUEST, 80)).expect("a listener");
    let mut client = TcpStream::connect(world.publish(Transport::Tcp, 80)).expect("connected");
    client.set_nonblocking(true).expect("an option");
    let relay = until(
        || while client.write(&[0; 64 << 10]).is_ok() {},
        || -> Option<RelayReport> {
            let (ends, relay) = world.inspector.relays().into_iter().next()?;
            assert_eq!(ends.1, (GUEST, 80).into());
            (relay.waits_for == ["peer"] && relay.held_for_peer > 0).then_some(relay)
        },
    );
    assert_eq!((relay.held_for_far, relay.not_sent, relay.in_flight), (0, Some(0), Some(0)));
}
