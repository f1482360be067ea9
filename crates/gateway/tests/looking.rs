//! What others see of a gateway between a guest on a stack of this test and sockets of the host.

mod common;

use neap::control::{Application, RelayReport, SocketReport};
use neap::{Stack, TcpListener as GuestListener, UdpSocket as GuestUdp};
use neap_gateway::{
    Direct, Gateway, GatewayConfig, GatewayHandle, Inspector, Publication, Translation, Transport,
};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far above what anything takes.
const PATIENCE: Duration = Duration::from_secs(60);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
/// What the guest calls the loopback of the host.
const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 7);
const STAND_IN: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// A gateway that runs, and the stack of its guest.
struct World {
    guest: Arc<Stack>,
    handle: GatewayHandle,
    inspector: Inspector,
}

impl World {
    fn new() -> Self {
        let mut config = GatewayConfig::default();
        config.translations = vec![Translation::address(FAR.into(), Ipv4Addr::LOCALHOST.into())];
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

#[test]
fn mappings_of_guests_and_published_ports_have_both_ends() {
    let world = World::new();
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    server.set_read_timeout(Some(PATIENCE)).expect("an option");
    let to = server.local_addr().expect("an address");
    let guest = GuestUdp::bind(&world.guest, (GUEST, 4000)).expect("a port");
    assert!(world.inspector.sockets().is_empty(), "nobody has sent anything");
    guest.send_to(b"hello", (FAR, to.port())).expect("sent");
    let (_, outside) = server.recv_from(&mut [0; 16]).expect("it has come");
    let published = world.publish(Transport::Udp, 5000);
    let sockets = world.inspector.sockets();
    let of = |port: u16| -> &SocketReport {
        let guest = Some((GUEST, port).into());
        sockets.iter().find(|one| one.remote == guest).expect("it is listed")
    };
    assert_eq!(sockets.len(), 2);
    let (own, port) = (of(4000), of(5000));
    assert!(sockets.iter().all(|one| (one.netid.as_str(), one.state.as_str()) == ("udp", "ESTAB")));
    assert_eq!((own.local.port(), port.local), (outside.port(), published));
    let [own, port] = [own, port].map(|one| one.mapping.as_ref().expect("a mapping"));
    assert_eq!(own.peers, [to.ip()]);
    assert!(!own.published && port.published && port.peers.is_empty());
    // It is of now: another datagram makes it younger than the other one.
    guest.send_to(b"again", (FAR, to.port())).expect("sent");
    server.recv_from(&mut [0; 16]).expect("it has come");
    let sockets = world.inspector.sockets();
    let age = |is_published: bool| {
        let mut all = sockets.iter().filter_map(|one| one.mapping.as_ref());
        all.find(|one| one.published == is_published).expect("it is listed").last_used
    };
    assert!(age(false) < age(true));
}
