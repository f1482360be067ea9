//! A network that changes while its hosts run.

use super::common::{self, Shared, WireConfig, World};
use super::{SECOND, address, connect, pattern, transfer};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use neap_stack::device::{
    LinkMonitor, LinkState, LinkStatus, Received, RxChecksum, RxQueue, Steering,
};
use neap_stack::drop_reason::DropReason;
use neap_stack::error::{AddressFault, NetError};
use neap_stack::event::StackEvent;
use neap_stack::interface::{Address, InterfaceId};
use neap_stack::neighbor::NeighborState;
use neap_stack::route::{Prefix, Route, RouteEntry};
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{
    ConnectOptions, ListenOptions, Stack, StackConfig, StackError, UdpOptions,
};
use neap_stack::stats::IpCounter;
use neap_tcp::connection::{ConnectionError, ReadError};
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos};
use std::sync::Arc;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn cidr(text: &str) -> Address {
    text.parse().unwrap()
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

/// A route without further wishes.
fn via(interface: InterfaceId, to: &str, gateway: Option<&str>) -> RouteEntry {
    let route = Route { interface, gateway: gateway.map(ip), mtu: None, pref_src: None };
    RouteEntry { prefix: prefix(to), metric: 0, route }
}

/// A second wire between the hosts.
struct Wire {
    a: InterfaceId,
    b: InterfaceId,
    ab: Shared,
}

fn second_wire(world: &mut World, wire: &WireConfig, a: &str, b: &str) -> Wire {
    let (ab, ba) = (Shared::default(), Shared::default());
    let (a_end, b_end) = (common::device(wire, 3, &ab, &ba), common::device(wire, 4, &ba, &ab));
    let a = world.a.add_interface(world.now, a_end, &[cidr(a)]).unwrap();
    let b = world.b.add_interface(world.now, b_end, &[cidr(b)]).unwrap();
    Wire { a, b, ab }
}

fn sent(direction: &Shared) -> usize {
    direction.lock().unwrap().sent.len()
}

#[test]
fn a_second_interface_comes_and_goes_under_a_running_host() {
    let mut world = World::new(&WireConfig::default());
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    let wire = second_wire(&mut world, &WireConfig::default(), "10.1.0.1/24", "10.1.0.2/24");
    assert!(wire.a > world.a_interface);
    let (other, far) = connect(&mut world, "10.1.0.2:80");
    assert_eq!(other.local_addr(), SocketAddr::new(ip("10.1.0.1"), other.local_addr().port()));
    transfer(&mut world, &other, &far, &pattern(300_000));
    transfer(&mut world, &client, &server, &pattern(300_000));

    world.a.remove_interface(world.now, wire.a).unwrap();
    assert_eq!(
        world.a.remove_interface(world.now, wire.a),
        Err(NetError::NoInterface(wire.a)),
        "once"
    );
    let to = address("10.1.0.2:81");
    let refused = world.a.connect(world.now, to, ConnectOptions::default());
    assert_eq!(refused.map(drop), Err(SocketError::NetworkUnreachable));
    assert!(world.a.routes().iter().all(|entry| entry.route.interface == world.a_interface));
    transfer(&mut world, &client, &server, &pattern(300_000));

    // The name is not used again.
    let again = second_wire(&mut world, &WireConfig::default(), "10.2.0.1/24", "10.2.0.2/24");
    assert!(again.a > wire.a);
    assert_eq!(world.a.interfaces(world.now).len(), 2);
}

/// A queue that has lost packets.
struct Lossy(u64);

impl RxQueue for Lossy {
    fn receive(&mut self, _: Instant) -> Option<Received> {
        None
    }

    fn drops(&self) -> u64 {
        self.0
    }
}

impl LinkMonitor for Lossy {
    fn look(&mut self) -> LinkStatus {
        LinkStatus::new(LinkState::Up)
    }

    fn lost_before_queues(&mut self) -> u64 {
        self.0
    }
}

#[test]
fn what_a_device_has_lost_is_told_by_interface() {
    let mut world = World::new(&WireConfig::default());
    let (to, from) = (Shared::default(), Shared::default());
    let mut device = common::device(&WireConfig::default(), 3, &to, &from);
    device.queues[0].rx = Box::new(Lossy(3));
    device.monitor = Some(Box::new(Lossy(40)));
    let lossy = world.a.add_interface(world.now, device, &[cidr("10.1.0.1/24")]).unwrap();
    world.run(Nanos::from_millis(1));
    let dropped =
        world.a.interfaces(world.now).iter().map(|info| info.rx_dropped).collect::<Vec<_>>();
    assert_eq!(dropped, [0, 43]);
    assert_eq!(world.a.receive_drops(), 43);
    world.a.remove_interface(world.now, lossy).unwrap();
    assert_eq!(world.a.receive_drops(), 43, "they were lost all the same");
}

/// All flows come to the queue that the last digits of the ports of this host name.
struct ByPort;

impl Steering for ByPort {
    fn queue_of(&self, local: SocketAddr, _: SocketAddr) -> usize {
        usize::from(local.port() % 3)
    }
}

#[test]
fn a_connection_belongs_to_the_shard_where_its_packets_arrive() {
    let config = |shards| StackConfig { shards, ..common::config(1) };
    let now = Instant::from_nanos(1);
    for (steering, crossed) in [(Some(Arc::new(ByPort) as Arc<dyn Steering>), 0), (None, 1)] {
        let stack = Stack::new(config(3)).unwrap();
        let ends: Vec<_> = (0..3).map(|_| (Shared::default(), Shared::default())).collect();
        let mut devices =
            ends.iter().map(|(to, from)| common::device(&WireConfig::default(), 1, to, from));
        let mut device = devices.next().unwrap();
        device.queues.extend(devices.flat_map(|device| device.queues));
        device.steering = steering;
        stack.add_interface(now, device, &[cidr("10.0.0.1/24")]).unwrap();
        // Shards in turn would be 0, 1 and 2.
        let handles = [3001, 3002, 3003].map(|port| {
            let local = Some(SocketAddr::new(ip("10.0.0.1"), port));
            let options = ConnectOptions { local, ..ConnectOptions::default() };
            stack.connect(now, address("10.0.0.2:80"), options).unwrap()
        });
        (0..3).for_each(|shard| _ = stack.poll(shard, now));
        let later = now + Nanos::from_secs(1);
        for (queue, (to, from)) in ends.iter().enumerate() {
            let syns = core::mem::take(&mut to.lock().unwrap().sent);
            for syn in syns {
                let port = usize::from(u16::from_be_bytes([syn[20], syn[21]]));
                assert_eq!(crossed == 0, port % 3 == queue, "port {port} in queue {queue}");
                let reset = reset_of(&syn);
                ends[port % 3].1.lock().unwrap().packets.push_back((later, reset));
            }
            assert!(from.lock().unwrap().sent.is_empty());
        }
        (0..3).for_each(|shard| _ = stack.poll(shard, later));
        assert_eq!(stack.usage().tcp.connections, 0, "all are reset");
        drop(handles);
        assert_eq!(stack.ip_counters().get(IpCounter::CrossShard), 3 * crossed);
    }
}

/// The reset that refuses the SYN of a packet.
fn reset_of(syn: &[u8]) -> Received {
    let mut data = syn[..40].to_vec();
    data[2..4].copy_from_slice(&40u16.to_be_bytes());
    data[12..20].rotate_left(4);
    data[20..24].rotate_left(2);
    let acknowledged = u32::from_be_bytes(syn[24..28].try_into().unwrap()).wrapping_add(1);
    data[28..32].copy_from_slice(&acknowledged.to_be_bytes());
    data[32..34].copy_from_slice(&[0x50, 0x14]);
    data[10..12].fill(0);
    let sum = data[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = sum.sum::<u32>();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    data[10..12].copy_from_slice(&checksum.to_be_bytes());
    Received { data: data.into(), gso_size: 0, checksum: RxChecksum::Good }
}

#[test]
fn what_waits_in_a_removed_interface_is_dropped_and_its_credits_return() {
    let mut world = World::new(&WireConfig { ring: 2, ..WireConfig::default() });
    let (client, _server) = connect(&mut world, "10.0.0.2:80");
    assert!(client.write(world.now, &pattern(200_000)).unwrap() > 0);
    assert!(client.info(world.now).below_bytes > 0);
    let waiting = {
        let info = world.a.interfaces(world.now).remove(0);
        assert!(info.ports[0].qdisc.backlog_packets > 0);
        u64::from(info.ports[0].qdisc.backlog_packets) + info.ports[0].ring_frames
    };
    world.a.remove_interface(world.now, world.a_interface).unwrap();
    world.run(Nanos::from_millis(1));
    assert_eq!(world.a.drops().get(DropReason::LinkDown), waiting);
    assert_eq!(client.info(world.now).below_bytes, 0);
}

#[test]
fn a_connection_without_a_way_fails_when_it_times_out_and_goes_on_if_the_way_comes_back() {
    let mut world = World::new(&WireConfig::default());
    let (lost, _server) = connect(&mut world, "10.0.0.2:80");
    let network = prefix("10.0.0.0/24");
    let connected = world.a.remove_route(network, world.a_interface, None).unwrap();
    lost.write(world.now, b"nobody hears this").unwrap();
    world.run(Nanos::from_secs(30));
    assert_eq!(lost.read(world.now, &mut [0; 10]), Err(ReadError::WouldBlock), "it waits");
    world.a.add_route(connected).unwrap();
    assert!(world.run_until(Nanos::from_secs(120), |world| {
        let info = lost.info(world.now);
        info.unacked == 0 && info.notsent_bytes == 0
    }));

    world.a.remove_route(network, world.a_interface, None).unwrap();
    lost.write(world.now, b"nor this").unwrap();
    world.run(Nanos::from_secs(3000));
    let error = lost.read(world.now, &mut [0; 10]);
    assert_eq!(error, Err(ReadError::Failed(ConnectionError::NetworkUnreachable)));
}

#[test]
fn a_route_change_moves_open_flows_at_their_next_segment() {
    let mut world = World::new(&WireConfig::default());
    let wire = second_wire(&mut world, &WireConfig::default(), "10.1.0.1/24", "10.1.0.2/24");
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    transfer(&mut world, &client, &server, &pattern(100_000));
    assert_eq!(sent(&wire.ab), 0);
    world.a.add_route(via(wire.a, "10.0.0.2/32", Some("10.1.0.2"))).unwrap();
    let before = sent(&world.ab);
    transfer(&mut world, &client, &server, &pattern(100_000));
    assert_eq!(sent(&world.ab), before, "all went the other way");
    assert!(sent(&wire.ab) > 0);
}

#[test]
fn open_flows_follow_the_mtu_of_their_interface_down_and_up() {
    let mut world = World::new(&WireConfig { gso_max_size: 0, ..WireConfig::default() });
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    transfer(&mut world, &client, &server, &pattern(100_000));
    let largest = |world: &World| {
        let mut direction = world.ab.lock().unwrap();
        let largest = direction.sent.iter().map(Bytes::len).max();
        direction.sent.clear();
        largest.unwrap()
    };
    assert_eq!(largest(&world), 1500);
    world.a.set_mtu(world.a_interface, 1300).unwrap();
    transfer(&mut world, &client, &server, &pattern(100_000));
    assert_eq!((largest(&world), client.info(world.now).pmtu), (1300, 1300));
    world.a.set_mtu(world.a_interface, 1500).unwrap();
    transfer(&mut world, &client, &server, &pattern(100_000));
    assert_eq!((largest(&world), client.info(world.now).pmtu), (1500, 1500));

    for mtu in [1279, 1501] {
        let error = world.a.set_mtu(world.a_interface, mtu).unwrap_err();
        assert!(matches!(error, NetError::Mtu { least: 1280, most: 1500, .. }), "{error}");
    }
    // What the device says counts, and bounds what may be set.
    let mut status = LinkStatus::new(LinkState::Up);
    status.mtu = Some(1400);
    world.a.set_link_status(world.now, world.a_interface, status).unwrap();
    transfer(&mut world, &client, &server, &pattern(100_000));
    assert_eq!(largest(&world), 1400);
    assert!(world.a.set_mtu(world.a_interface, 1500).is_err());
}

#[test]
fn segments_in_flight_that_no_longer_fit_are_cut_again() {
    let mut world = World::new(&WireConfig { gso_max_size: 0, ..WireConfig::default() });
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    // All that is sent now is lost; what replaces it is smaller.
    world.ab.lock().unwrap().filter = Some(Box::new(|packet| packet.len() <= 1300));
    let data = pattern(50_000);
    assert_eq!(client.write(world.now, &data), Ok(data.len()));
    world.run(Nanos::from_millis(5));
    world.a.set_mtu(world.a_interface, 1300).unwrap();
    let mut read = Vec::new();
    assert!(world.run_until(Nanos::from_secs(60), |world| {
        let mut buf = [0; 65_536];
        while let Ok(count) = server.read(world.now, &mut buf) {
            read.extend_from_slice(&buf[..count]);
        }
        read.len() == data.len()
    }));
    assert_eq!(read, data);
}

#[test]
fn an_address_that_is_removed_keeps_its_sockets_and_takes_no_packets() {
    let mut world = World::new(&WireConfig::default());
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    let listener = world.a.listen(address("10.0.0.1:90"), ListenOptions::default()).unwrap();
    world.a.add_address(world.a_interface, cidr("10.0.0.7/24")).unwrap();
    world.a.remove_address(world.a_interface, ip("10.0.0.1")).unwrap();

    // A new connection has the other address, which has taken the route over.
    let (second, far) = connect(&mut world, "10.0.0.2:81");
    assert_eq!(second.local_addr().ip(), ip("10.0.0.7"));
    transfer(&mut world, &second, &far, &pattern(10_000));
    let before = world.a.drops().get(DropReason::IpOtherHost);
    server.write(world.now, b"to nobody").unwrap();
    world.run(SECOND);
    assert!(world.a.drops().get(DropReason::IpOtherHost) > before);
    assert_eq!(client.read(world.now, &mut [0; 9]), Err(ReadError::WouldBlock));
    assert_eq!(
        world.a.check_local(ip("10.0.0.1"), false),
        Err(SocketError::AddressNotAvailable),
        "no new socket is bound to it"
    );

    // It comes back, and with it what was sent.
    world.a.add_address(world.a_interface, cidr("10.0.0.1/24")).unwrap();
    assert!(
        world.run_until(Nanos::from_secs(60), |world| {
            client.read(world.now, &mut [0; 9]).is_ok()
        })
    );
    let to = listener.local_addr();
    let late = world.b.connect(world.now, to, ConnectOptions::default()).unwrap();
    assert!(world.run_until(SECOND, |_| listener.accept().is_ok()));
    drop(late);
}

#[test]
fn the_route_to_a_network_goes_with_the_last_address_in_it() {
    let mut world = World::new(&WireConfig::default());
    let wire = second_wire(&mut world, &WireConfig::default(), "10.0.0.11/24", "10.0.0.12/24");
    let (a, network) = (&world.a, prefix("10.0.0.0/24"));
    let connected = || a.routes().into_iter().find(|entry| entry.prefix == network);
    let source = || connected().and_then(|entry| entry.route.pref_src);
    a.add_address(world.a_interface, cidr("10.0.0.5/24")).unwrap();
    assert_eq!(source(), Some(ip("10.0.0.1")));
    a.remove_address(world.a_interface, ip("10.0.0.1")).unwrap();
    assert_eq!(source(), Some(ip("10.0.0.5")));
    a.remove_address(world.a_interface, ip("10.0.0.5")).unwrap();
    assert_eq!(connected().map(|entry| entry.route.interface), Some(wire.a), "the other wire");
    a.remove_address(wire.a, ip("10.0.0.11")).unwrap();
    assert_eq!(connected(), None);
    // IPv6 is left as it was.
    assert_eq!(a.routes().len(), 1);
}

#[test]
fn an_ipv6_source_is_chosen_for_the_destination_and_not_for_the_router() {
    let world = World::new(&WireConfig::default());
    let (a, interface) = (&world.a, world.a_interface);
    a.add_address(interface, cidr("fe80::1/64")).unwrap();
    a.add_route(via(interface, "::/0", Some("fe80::2"))).unwrap();
    assert_eq!(a.source_for(ip("2001:db8:1::9")), Ok(ip("fd00::1")), "of the right scope");
    assert_eq!(a.source_for(ip("fe80::9")), Ok(ip("fe80::1")));
    assert_eq!(a.source_for(ip("fd00::9")), Ok(ip("fd00::1")));
    a.add_address(interface, cidr("2001:db8::1/64")).unwrap();
    assert_eq!(a.source_for(ip("2001:db8:1::9")), Ok(ip("2001:db8::1")), "with more common bits");
    assert_eq!(a.source_for(ip("fd01::9")), Ok(ip("fd00::1")));
}

#[test]
fn addresses_of_ipv6_that_stand_for_ipv4_are_on_no_wire() {
    let world = World::new(&WireConfig::default());
    world.a.add_route(via(world.a_interface, "::/0", Some("fd00::2"))).unwrap();
    let options = UdpOptions { only_v6: true, ..UdpOptions::default() };
    let socket = world.a.bind_udp(address("[::]:0"), options).unwrap();
    let sent = socket.send_to(world.now, Bytes::new(), Some(address("[::ffff:10.0.0.2]:9")));
    assert_eq!(sent, Err(SocketError::NetworkUnreachable));
}

#[test]
fn the_port_that_a_listener_is_given_does_not_tell_that_of_the_next() {
    let world = World::new(&WireConfig::default());
    let listen = |_| world.a.listen(address("10.0.0.1:0"), ListenOptions::default()).unwrap();
    let ports: Vec<_> = (0..32).map(listen).map(|one| one.local_addr().port()).collect();
    let mut steps: Vec<_> = ports.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
    steps.sort_unstable();
    steps.dedup();
    assert!(steps.len() > 28, "{ports:?}");
}

#[test]
fn a_connection_that_opens_after_all_has_no_error() {
    let mut world = World::new(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    world.ab.lock().unwrap().filter = Some(Box::new(|_| false));
    let to = listener.local_addr();
    let client = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
    world.run(SECOND / 10);
    let network = prefix("10.0.0.0/24");
    let route = world.a.remove_route(network, world.a_interface, None).unwrap();
    world.run(SECOND + SECOND);
    world.a.add_route(route).unwrap();
    world.ab.lock().unwrap().filter = None;
    world.run(SECOND + SECOND);
    assert_eq!(client.state(world.now), State::Established);
    assert_eq!(client.take_error(world.now), None);
}

#[test]
fn routes_go_with_the_source_that_they_prefer_and_with_the_last_address() {
    let world = World::new(&WireConfig::default());
    let a = &world.a;
    a.add_address(world.a_interface, cidr("10.0.0.5/24")).unwrap();
    let mut entry = via(world.a_interface, "192.0.2.0/24", Some("10.0.0.2"));
    entry.route.pref_src = Some(ip("10.0.0.5"));
    a.add_route(entry).unwrap();
    a.add_route(via(world.a_interface, "0.0.0.0/0", Some("10.0.0.2"))).unwrap();
    a.remove_address(world.a_interface, ip("10.0.0.5")).unwrap();
    assert!(!a.routes().contains(&entry));
    assert!(a.source_for(ip("192.0.2.9")).is_ok(), "by the default route");
    a.remove_address(world.a_interface, ip("10.0.0.1")).unwrap();
    assert_eq!(a.source_for(ip("192.0.2.9")), Err(SocketError::NetworkUnreachable));
}

#[test]
fn changes_that_make_no_sense_are_refused_by_name() {
    let mut world = World::new(&WireConfig::default());
    let wire = second_wire(&mut world, &WireConfig::default(), "10.1.0.1/24", "10.1.0.2/24");
    let (a, first) = (&world.a, world.a_interface);
    a.remove_interface(world.now, wire.a).unwrap();

    let gone = via(wire.a, "192.0.2.0/24", None);
    assert_eq!(a.add_route(gone), Err(NetError::NoInterface(wire.a)));
    let far = via(first, "192.0.2.0/24", Some("10.9.9.9"));
    let error = a.add_route(far).unwrap_err();
    assert_eq!(error, NetError::GatewayUnreachable { gateway: ip("10.9.9.9"), interface: first });
    assert!(error.to_string().starts_with("gateway 10.9.9.9: "), "{error}");
    let own = via(first, "192.0.2.0/24", Some("10.0.0.1"));
    assert_eq!(a.add_route(own), Err(NetError::GatewayIsOwn { gateway: ip("10.0.0.1") }));
    let mixed = via(first, "192.0.2.0/24", Some("fd00::2"));
    assert!(matches!(a.add_route(mixed), Err(NetError::Family { argument: "gateway", .. })));
    let mut foreign = via(first, "192.0.2.0/24", None);
    foreign.route.pref_src = Some(ip("10.7.7.7"));
    assert_eq!(a.add_route(foreign), Err(NetError::NotOwn { address: ip("10.7.7.7") }));

    let good = via(first, "192.0.2.0/24", Some("10.0.0.2"));
    a.add_route(good).unwrap();
    let exists = NetError::RouteExists { prefix: good.prefix, metric: 0 };
    assert_eq!(a.add_route(good), Err(exists));
    assert_eq!(a.replace_route(via(first, "192.0.2.0/24", None)), Ok(Some(good)));
    let none = NetError::NoRoute { prefix: prefix("198.51.100.0/24"), interface: first };
    assert_eq!(a.remove_route(prefix("198.51.100.0/24"), first, None), Err(none));
    assert!(a.remove_route(good.prefix, first, Some(7)).is_err(), "no such metric");

    for (text, fault) in [
        ("0.0.0.0/8", AddressFault::Unspecified),
        ("127.0.0.5/8", AddressFault::Loopback),
        ("224.0.0.1/24", AddressFault::Multicast),
        ("255.255.255.255/32", AddressFault::Broadcast),
        ("10.3.0.0/24", AddressFault::Network),
        ("10.3.0.255/24", AddressFault::Network),
        ("::/64", AddressFault::Unspecified),
        ("ff02::1/64", AddressFault::Multicast),
    ] {
        let address = cidr(text);
        let error = NetError::Address { address, fault };
        assert_eq!(a.add_address(first, address), Err(error.clone()), "{text}");
        let device =
            common::device(&WireConfig::default(), 9, &Shared::default(), &Shared::default());
        let refused = a.add_interface(world.now, device, &[address]);
        assert_eq!(refused.err(), Some(StackError::Net(error)));
    }
    let exists = NetError::AddressExists { address: ip("10.0.0.1"), interface: first };
    assert_eq!(a.add_address(first, cidr("10.0.0.1/16")), Err(exists));
    let none = NetError::NoAddress { address: ip("10.0.0.9"), interface: first };
    assert_eq!(a.remove_address(first, ip("10.0.0.9")), Err(none));
    for last in ["10.3.0.0/31", "10.3.0.1/31", "10.4.0.0/32"] {
        a.add_address(first, cidr(last)).unwrap();
    }
}

#[test]
fn a_permanent_neighbour_is_believed_and_nobody_asks() {
    let mut world = World::new(&WireConfig { ethernet: true, ..WireConfig::default() });
    let (a, first) = (&world.a, world.a_interface);
    let link = [2, 0, 0, 0, 0, 2];
    a.add_neighbor(world.now, first, ip("10.0.0.2"), link).unwrap();
    let to = address("10.0.0.2:80");
    let listener = world.b.listen(to, ListenOptions::default()).unwrap();
    let client = a.connect(world.now, to, ConnectOptions::default()).unwrap();
    let packet = world.ab.lock().unwrap().sent[0].clone();
    assert_eq!((&packet[..6], &packet[12..14]), (&link[..], &[8, 0][..]), "IPv4 at once, no ARP");
    assert!(world.run_until(SECOND, |_| listener.accept().is_ok()));
    drop(client);
    world.run(SECOND);

    let (_, known) = world.a.neighbors(world.now)[0];
    assert_eq!((known.state, known.link), (NeighborState::Permanent, Some(link)));
    world.a.flush_neighbors(first).unwrap();
    assert_eq!(world.a.neighbors(world.now).len(), 1, "it stays");
    world.a.remove_neighbor(first, ip("10.0.0.2")).unwrap();
    let none = NetError::NoNeighbor { address: ip("10.0.0.2"), interface: first };
    assert_eq!(world.a.remove_neighbor(first, ip("10.0.0.2")), Err(none));
    let plain = World::new(&WireConfig::default());
    let error = plain.a.add_neighbor(plain.now, plain.a_interface, ip("10.0.0.2"), link);
    assert_eq!(error, Err(NetError::NoNeighbors(plain.a_interface)));
}

#[test]
fn what_waits_for_a_neighbour_that_is_forgotten_is_dropped_and_counted() {
    let world = World::new(&WireConfig { ethernet: true, ..WireConfig::default() });
    let nobody = address("10.0.0.99:80");
    let socket = world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap();
    socket.send_to(world.now, Bytes::from_static(b"?"), Some(nobody)).unwrap();
    assert!(socket.bytes_below() > 0);
    world.a.remove_neighbor(world.a_interface, ip("10.0.0.99")).unwrap();
    assert_eq!(world.a.drops().get(DropReason::Neighbor), 1);
    assert_eq!(socket.bytes_below(), 0);
}

#[test]
fn a_link_that_goes_down_and_comes_back_resumes_its_flows() {
    let mut world = World::new(&WireConfig::default());
    let events = world.a.subscribe();
    let (client, server) = connect(&mut world, "10.0.0.2:80");
    let interface = world.a_interface;
    let down = LinkStatus::new(LinkState::Down);
    world.a.set_link_status(world.now, interface, down).unwrap();
    world.ba.lock().unwrap().filter = Some(Box::new(|_| false));
    let before = sent(&world.ab);
    client.write(world.now, b"hello").unwrap();
    server.write(world.now, b"world").unwrap();
    world.run(Nanos::from_secs(10));
    assert_eq!(sent(&world.ab), before);
    let outward = world.a.interfaces(world.now)[0].ports[0].link_drops;
    assert!(outward > 0, "what was to leave");
    assert_eq!(world.a.drops().get(DropReason::LinkDown), outward);
    assert_eq!(world.a.interfaces(world.now)[0].link, LinkState::Down);
    world.a.set_link_status(world.now, interface, LinkStatus::new(LinkState::Up)).unwrap();
    world.ba.lock().unwrap().filter = None;
    let mut read = (false, false);
    assert!(world.run_until(Nanos::from_secs(60), |world| {
        read.0 |= client.read(world.now, &mut [0; 5]).is_ok();
        read.1 |= server.read(world.now, &mut [0; 5]).is_ok();
        read == (true, true)
    }));
    assert_eq!(events.take(), Some(StackEvent::LinkDown { interface }));
    assert_eq!(events.take(), Some(StackEvent::LinkUp { interface }));
    assert_eq!(events.take(), None);
}

/// Data is written and delivered; then its ACKs wait in the device of the writer.
fn acks_that_wait_in_a_device(world: &mut World) -> (TcpHandle, TcpHandle) {
    let (client, server) = connect(world, "10.0.0.2:80");
    client.write(world.now, &pattern(2000)).unwrap();
    world.settle();
    world.now += Nanos::from_millis(1);
    world.b.poll(0, world.now);
    world.now += Nanos::from_millis(1);
    assert!(client.info(world.now).unacked > 0);
    assert!(!world.ba.lock().unwrap().packets.is_empty());
    (client, server)
}

#[test]
fn what_came_before_the_link_was_lost_is_received() {
    let mut world = World::new(&WireConfig::default());
    let (client, _server) = acks_that_wait_in_a_device(&mut world);
    let down = LinkStatus::new(LinkState::Down);
    world.a.set_link_status(world.now, world.a_interface, down).unwrap();
    world.settle();
    assert_eq!(client.info(world.now).unacked, 0);
    assert_eq!(world.a.drops().get(DropReason::LinkDown), 0);
}

#[test]
fn what_waits_in_the_device_of_an_interface_that_is_disabled_is_dropped_and_counted() {
    let mut world = World::new(&WireConfig::default());
    let (client, _server) = acks_that_wait_in_a_device(&mut world);
    world.a.set_link(world.now, world.a_interface, false).unwrap();
    world.settle();
    assert!(client.info(world.now).unacked > 0);
    assert!(world.a.drops().get(DropReason::LinkDown) > 0);
}

#[test]
fn no_route_leads_through_an_interface_that_is_disabled() {
    let mut world = World::new(&WireConfig::default());
    let wire = second_wire(&mut world, &WireConfig::default(), "10.1.0.1/24", "10.1.0.2/24");
    world.a.add_route(via(world.a_interface, "192.0.2.0/24", None)).unwrap();
    let backup = RouteEntry { metric: 9, ..via(wire.a, "192.0.2.0/24", None) };
    world.a.add_route(backup).unwrap();
    assert_eq!(world.a.source_for(ip("192.0.2.1")), Ok(ip("10.0.0.1")));
    world.a.set_link(world.now, world.a_interface, false).unwrap();
    assert_eq!(world.a.source_for(ip("192.0.2.1")), Ok(ip("10.1.0.1")), "the other way");
    assert_eq!(world.a.source_for(ip("10.0.0.2")), Err(SocketError::NetworkUnreachable));
    world.a.set_link(world.now, world.a_interface, true).unwrap();
    assert_eq!(world.a.source_for(ip("192.0.2.1")), Ok(ip("10.0.0.1")));
    assert_eq!(wire.b, world.b_interface.max(wire.b));
}

#[test]
fn a_disabled_interface_leaves_its_network_to_another_one() {
    let mut world = World::new(&WireConfig::default());
    second_wire(&mut world, &WireConfig::default(), "10.0.0.3/24", "10.0.0.4/24");
    world.a.add_route(via(world.a_interface, "0.0.0.0/0", Some("10.0.0.2"))).unwrap();
    assert_eq!(world.a.source_for(ip("10.0.0.9")), Ok(ip("10.0.0.1")));
    world.a.set_link(world.now, world.a_interface, false).unwrap();
    assert_eq!(world.a.source_for(ip("10.0.0.9")), Ok(ip("10.0.0.3")));
    world.a.set_link(world.now, world.a_interface, true).unwrap();
    assert_eq!(world.a.source_for(ip("10.0.0.9")), Ok(ip("10.0.0.1")));
}

#[test]
fn sockets_hear_at_once_that_their_device_is_gone() {
    let mut world = World::new(&WireConfig::default());
    let wire = second_wire(&mut world, &WireConfig::default(), "10.1.0.1/24", "10.1.0.2/24");
    let events = world.a.subscribe();
    let (open, _far) = connect(&mut world, "10.0.0.2:80");
    let (other, far) = connect(&mut world, "10.1.0.2:80");
    let to = address("10.0.0.99:80");
    let opening = world.a.connect(world.now, to, ConnectOptions::default()).unwrap();
    let datagrams = world.a.bind_udp(address("0.0.0.0:0"), UdpOptions::default()).unwrap();
    datagrams.connect(Some(address("10.0.0.2:53"))).unwrap();
    let unconnected = world.a.bind_udp(address("0.0.0.0:0"), UdpOptions::default()).unwrap();

    let gone = LinkStatus::new(LinkState::Gone);
    world.a.set_link_status(world.now, world.a_interface, gone).unwrap();
    let down = ConnectionError::NetworkDown;
    assert_eq!(open.read(world.now, &mut [0; 5]), Err(ReadError::Failed(down)));
    assert_eq!(opening.read(world.now, &mut [0; 5]), Err(ReadError::Failed(down)));
    assert_eq!(datagrams.recv_from().map(drop), Err(SocketError::Reported(down)));
    assert_eq!(unconnected.recv_from().map(drop), Err(SocketError::WouldBlock), "another is left");
    let refused = world.a.connect(world.now, to, ConnectOptions::default());
    assert_eq!(refused.map(drop), Err(SocketError::NetworkUnreachable));
    let (interface, name) = (world.a_interface, "wire1".to_owned());
    assert_eq!(events.take(), Some(StackEvent::DeviceGone { interface, name }));
    transfer(&mut world, &other, &far, &pattern(100_000));

    let listener = world.a.listen(address("0.0.0.0:90"), ListenOptions::default()).unwrap();
    assert_eq!(listener.accept().map(drop), Err(SocketError::WouldBlock));
    world.a.set_link_status(world.now, wire.a, gone).unwrap();
    assert!(listener.readiness().bits().contains(Ready::ERROR));
    assert_eq!(listener.accept().map(drop), Err(SocketError::Reported(down)));
    assert_eq!(listener.accept().map(drop), Err(SocketError::WouldBlock), "told once");
    assert_eq!(unconnected.recv_from().map(drop), Err(SocketError::Reported(down)));
    assert_eq!(unconnected.recv_from().map(drop), Err(SocketError::WouldBlock), "told once");
}

#[test]
fn a_flow_that_has_another_way_survives_the_loss_of_a_device() {
    let mut world = World::new(&WireConfig::default());
    let wire = second_wire(&mut world, &WireConfig::default(), "10.1.0.1/24", "10.1.0.2/24");
    // The addresses of the flow are on neither wire.
    for (stack, interface, own) in
        [(&world.a, wire.a, "10.5.0.1/32"), (&world.b, wire.b, "10.5.0.2/32")]
    {
        stack.add_address(interface, cidr(own)).unwrap();
    }
    for metric in [0, 1] {
        let (a, b) =
            if metric == 0 { (world.a_interface, world.b_interface) } else { (wire.a, wire.b) };
        let entry = |interface, to| {
            let mut entry = RouteEntry { metric, ..via(interface, to, None) };
            entry.route.pref_src =
                Some(ip(if to == "10.5.0.2/32" { "10.5.0.1" } else { "10.5.0.2" }));
            entry
        };
        world.a.add_route(entry(a, "10.5.0.2/32")).unwrap();
        world.b.add_route(entry(b, "10.5.0.1/32")).unwrap();
    }
    let (client, server) = connect(&mut world, "10.5.0.2:80");
    assert_eq!(sent(&wire.ab), 0);
    let gone = LinkStatus::new(LinkState::Gone);
    world.a.set_link_status(world.now, world.a_interface, gone).unwrap();
    world.b.set_link_status(world.now, world.b_interface, gone).unwrap();
    transfer(&mut world, &client, &server, &pattern(100_000));
    assert!(sent(&wire.ab) > 0);
}

#[test]
fn the_events_of_a_stack_come_in_order() {
    let mut world = World::new(&WireConfig::default());
    let events = world.a.subscribe();
    let wire = second_wire(&mut world, &WireConfig::default(), "10.1.0.1/24", "10.1.0.2/24");
    let interface = wire.a;
    let address = cidr("10.2.0.1/24");
    world.a.add_address(interface, address).unwrap();
    world.a.remove_address(interface, address.ip).unwrap();
    world.a.set_mtu(interface, 1000).unwrap();
    world.a.set_mtu(interface, 1000).unwrap();
    world.a.remove_interface(world.now, interface).unwrap();
    world.a.shut_down(world.now);
    let all: Vec<_> = core::iter::from_fn(|| events.take()).collect();
    assert_eq!(
        all,
        [
            StackEvent::InterfaceAdded { interface },
            StackEvent::AddressAdded { interface, address },
            StackEvent::AddressRemoved { interface, address: address.ip },
            StackEvent::MtuChanged { interface, mtu: 1000 },
            StackEvent::InterfaceRemoved { interface },
        ]
    );
    assert!(events.is_over());
}

/// Those that active queue management drops at other times than a frame's arrival, too.
#[test]
fn all_frames_that_a_qdisc_drops_are_among_the_drops() {
    let world = World::new(&WireConfig { ring: 1, ..WireConfig::default() });
    let qdisc = "fq_codel limit 10 drop_batch 1".parse().unwrap();
    world.a.set_qdisc(world.now, world.a_interface, &qdisc).unwrap();
    for port in 1000..1020 {
        let local = SocketAddr::new(ip("10.0.0.1"), port);
        let socket = world.a.bind_udp(local, UdpOptions::default()).unwrap();
        for _ in 0..10 {
            let data = Bytes::from(vec![0; 1000]);
            let _ = socket.send_to(world.now, data, Some(address("10.0.0.2:9")));
        }
    }
    let dropped = world.a.qdiscs(world.now, world.a_interface)[0].stats.drops;
    assert!(dropped > 0);
    assert_eq!(world.a.drops().get(DropReason::QdiscDrop), dropped);
}
