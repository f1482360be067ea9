//! Datagrams with both addresses, hop limit and TOS; forwarders.

use super::common::{self, Shared, WireConfig, World, inject};
use super::{SECOND, address};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr, SocketAddrV6};
use neap_stack::device::{Received, RxChecksum};
use neap_stack::drop_reason::DropReason;
use neap_stack::interface::Address;
use neap_stack::qdisc::config::QdiscConfig;
use neap_stack::socket::SocketError;
use neap_stack::socket::errors::ErrorOrigin;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::udp::{ReceivedDatagram, Refusal, SendDatagram, UdpHandle};
use neap_stack::stack::{Stack, UdpForwarderOptions, UdpOptions};
use neap_stack::stats::IpCounter;
use neap_tcp::connection::ConnectionError;
use neap_tcp::time::Nanos;

pub(super) fn ethernet() -> WireConfig {
    WireConfig { ethernet: true, ..WireConfig::default() }
}

pub(super) fn bind(stack: &Stack, local: &str) -> UdpHandle {
    stack.bind_udp(address(local), UdpOptions::default()).unwrap()
}

pub(super) fn forwarder(stack: &Stack) -> UdpHandle {
    stack.forward_udp(UdpForwarderOptions::default()).unwrap()
}

pub(super) fn to(remote: SocketAddr, data: &'static [u8]) -> SendDatagram {
    SendDatagram::new(Bytes::from_static(data), Some(remote))
}

pub(super) fn send(
    world: &World,
    socket: &UdpHandle,
    datagram: SendDatagram,
) -> Result<(), SocketError> {
    socket.send_batch(world.now, [datagram]).1
}

pub(super) fn received(socket: &UdpHandle) -> Vec<ReceivedDatagram> {
    core::iter::from_fn(|| socket.recv_from().ok()).collect()
}

/// Frames that were sent in a direction since the last call, without the link header of Ethernet.
pub(super) fn taken(direction: &Shared, is_ethernet: bool) -> Vec<Bytes> {
    let sent = core::mem::take(&mut direction.lock().unwrap().sent);
    sent.into_iter().map(|frame| frame.slice(if is_ethernet { 14 } else { 0 }..)).collect()
}

#[test]
fn a_datagram_says_how_it_came() {
    for wire in [WireConfig::default(), ethernet()] {
        for (own, peer) in [("10.0.0.2:53", "10.0.0.1:0"), ("[fd00::2]:53", "[fd00::1]:0")] {
            let mut world = World::new(&wire);
            let server = bind(&world.b, "[::]:53");
            let client = bind(&world.a, peer);
            client.set_hop_limits(7, 8);
            client.set_tos(0xb9, 0xba);
            let is_v4 = own.starts_with('1');
            let of_socket = if is_v4 { (7, 0xb9) } else { (8, 0xba) };
            // In one packet, and in fragments.
            for len in [3, 4000] {
                let data: Bytes = vec![1; len].into();
                let datagram = SendDatagram::new(data.clone(), Some(address(own)));
                send(&world, &client, datagram.clone()).unwrap();
                let one = SendDatagram { hop_limit: Some(33), tos: Some(3), ..datagram };
                send(&world, &client, one).unwrap();
                world.run(SECOND);
                let got = received(&server);
                let said: Vec<_> = got.iter().map(|one| (one.hop_limit, one.tos)).collect();
                assert_eq!(said, [of_socket, (33, 3)], "{own} {len}");
                for one in got {
                    assert_eq!((one.from, one.to), (client.local_addr(), address(own)));
                    assert_eq!(one.interface, Some(world.b_interface));
                    assert_eq!((one.data, one.is_broadcast), (data.clone(), false));
                }
            }
        }
    }
    let mut world = World::new(&WireConfig::default());
    let socket = bind(&world.a, "127.0.0.1:53");
    send(&world, &socket, to(address("127.0.0.1:53"), b"self")).unwrap();
    world.settle();
    assert_eq!(received(&socket)[0].interface, None);
}

#[test]
fn a_datagram_without_a_hop_is_refused() {
    let world = World::new(&WireConfig::default());
    let client = bind(&world.a, "10.0.0.1:0");
    let datagram = SendDatagram { hop_limit: Some(0), ..to(address("10.0.0.2:53"), b"x") };
    assert_eq!(send(&world, &client, datagram), Err(SocketError::InvalidArgument));
}

#[test]
fn the_tos_byte_chooses_the_band() {
    for (remote, bands) in [("10.0.0.2:53", [0, 2, 6, 4, 6]), ("[fd00::2]:53", [0; 5])] {
        let mut world = World::new(&WireConfig::default());
        let client = bind(&world.a, "[::]:0");
        for tos in [0, 0x08, 0x10, 0x18, 0xb8 & !8 | 3] {
            let datagram = SendDatagram { tos: Some(tos), ..to(address(remote), b"x") };
            send(&world, &client, datagram).unwrap();
            world.run(SECOND);
        }
        let chosen = world.ab.lock().unwrap().priorities.clone();
        assert_eq!(chosen, bands, "{remote}");
    }
}

#[test]
fn a_datagram_leaves_by_the_interface_that_it_names() {
    let mut world = World::new(&WireConfig::default());
    let (there, back) = (Shared::default(), Shared::default());
    let device = super::common::device(&WireConfig::default(), 9, &there, &back);
    let addresses: [Address; 1] = ["192.0.2.1/24".parse().unwrap()];
    let other = world.a.add_interface(world.now, device, &addresses).unwrap();
    let client = bind(&world.a, "0.0.0.0:0");
    let remote = address("10.0.0.2:53");
    for interface in [None, Some(other), Some(world.a_interface)] {
        send(&world, &client, SendDatagram { interface, ..to(remote, b"x") }).unwrap();
    }
    world.run(SECOND);
    // What no route leads to by that interface is on its link.
    let strays = taken(&there, false);
    assert_eq!(strays.len(), 1);
    assert_eq!(strays[0][12..20], [192, 0, 2, 1, 10, 0, 0, 2]);
    assert_eq!(taken(&world.ab, false).len(), 2);
    world.a.remove_interface(world.now, other).unwrap();
    let gone = SendDatagram { interface: Some(other), ..to(remote, b"x") };
    assert_eq!(send(&world, &client, gone), Err(SocketError::NetworkUnreachable));
}

#[test]
fn a_connected_socket_keeps_its_way_beside_datagrams_that_name_another() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let options = UdpOptions { transparent: true, ..UdpOptions::default() };
    let socket = world.b.bind_udp(address("0.0.0.0:53"), options).unwrap();
    let client = bind(&world.a, "10.0.0.1:0");
    socket.connect(Some(client.local_addr())).unwrap();
    let from = Some(address("192.0.2.9:53"));
    for from in [from, None, from] {
        let interface = from.map(|_| world.b_interface);
        let data = Bytes::from_static(b"x");
        let datagram = SendDatagram { from, interface, ..SendDatagram::new(data, None) };
        send(&world, &socket, datagram).unwrap();
    }
    world.run(SECOND);
    let sources: Vec<_> = received(&client).iter().map(|one| one.from.to_string()).collect();
    assert_eq!(sources, ["192.0.2.9:53", "10.0.0.2:53", "192.0.2.9:53"]);
}

#[test]
fn a_socket_sends_from_its_own_port_alone() {
    let world = World::with_any_destination(&WireConfig::default());
    let options = UdpOptions { transparent: true, ..UdpOptions::default() };
    let socket = world.b.bind_udp(address("0.0.0.0:53"), options).unwrap();
    let with = |from: &str| {
        let from = Some(address(from));
        SendDatagram { from, ..to(address("10.0.0.1:9"), b"x") }
    };
    for from in ["192.0.2.9:0", "192.0.2.9:53", "0.0.0.0:53", "10.0.0.2:0"] {
        assert_eq!(send(&world, &socket, with(from)), Ok(()), "{from}");
    }
    for from in ["192.0.2.9:54", "10.0.0.255:53", "224.0.0.1:53", "127.0.0.1:1"] {
        let error = Err(SocketError::AddressNotAvailable);
        assert_eq!(send(&world, &socket, with(from)), error, "{from}");
    }
    let other_family = send(&world, &socket, with("[2001:db8::1]:53"));
    assert_eq!(other_family, Err(SocketError::AddressFamily));
}

#[test]
fn a_socket_bound_to_an_address_sends_from_it_alone() {
    let world = World::with_any_destination(&WireConfig::default());
    world.b.add_address(world.b_interface, "10.0.0.3/24".parse().unwrap()).unwrap();
    for (transparent, others) in [(false, Err(SocketError::AddressNotAvailable)), (true, Ok(()))] {
        let options = UdpOptions { transparent, ..UdpOptions::default() };
        let socket = world.b.bind_udp(address("10.0.0.2:0"), options).unwrap();
        let outcomes = ["10.0.0.2:0", "10.0.0.3:0", "192.0.2.1:0"].map(|from| {
            let from = Some(address(from));
            send(&world, &socket, SendDatagram { from, ..to(address("10.0.0.1:9"), b"x") })
        });
        assert_eq!(outcomes, [Ok(()), others, others]);
    }
}

#[test]
fn a_forwarder_takes_what_no_socket_takes_and_answers_from_there() {
    for wire in [WireConfig::default(), ethernet()] {
        let mut world = World::with_any_destination(&wire);
        let forwarder = forwarder(&world.b);
        assert_eq!(world.b.usage().udp, 1);
        let dns = bind(&world.b, "[::]:53");
        for (own, remotes) in [
            ("10.0.0.1:0", ["192.0.2.7:1", "198.51.100.8:65535", "10.0.0.2:9"]),
            ("[fd00::1]:0", ["[2001:db8::7]:1", "[2001:db8:1::8]:65535", "[fd00::2]:9"]),
        ] {
            let client = bind(&world.a, own);
            client.set_tos(0x2e, 0x2e);
            client.set_hop_limits(12, 12);
            for remote in remotes.map(address) {
                for len in [5, 4000] {
                    let data: Bytes = vec![7; len].into();
                    client.send_to(world.now, data.clone(), Some(remote)).unwrap();
                    world.run(SECOND);
                    let one = forwarder.recv_from().unwrap();
                    assert_eq!((one.from, one.to), (client.local_addr(), remote));
                    assert_eq!((one.hop_limit, one.tos), (12, 0x2e));
                    assert_eq!((one.interface, &one.data), (Some(world.b_interface), &data));
                    let answer = SendDatagram {
                        from: Some(one.to),
                        hop_limit: Some(3),
                        tos: Some(0xff),
                        ..SendDatagram::new(one.data, Some(one.from))
                    };
                    send(&world, &forwarder, answer).unwrap();
                    world.run(SECOND);
                    let one = client.recv_from().unwrap();
                    assert_eq!((one.from, one.hop_limit, one.tos), (remote, 3, 0xff));
                    assert_eq!(one.data, data);
                }
            }
            // A socket comes first, at any address.
            let remote = SocketAddr::new(address(remotes[0]).ip(), 53);
            send(&world, &client, to(remote, b"dns")).unwrap();
            world.run(SECOND);
            assert_eq!(received(&dns)[0].to, remote);
            assert!(received(&forwarder).is_empty());
        }
        drop(forwarder);
        assert_eq!(world.b.usage().udp, 1);
        let client = bind(&world.a, "10.0.0.1:0");
        client.connect(Some(address("192.0.2.7:1"))).unwrap();
        client.send_to(world.now, Bytes::new(), None).unwrap();
        world.run(SECOND);
        assert_eq!(client.take_error(), Some(SocketError::Refused));
    }
}

#[test]
fn a_forwarder_takes_what_its_options_name() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let with = |options| world.b.forward_udp(options).unwrap();
    let all = UdpForwarderOptions::default;
    let narrow = with(UdpForwarderOptions {
        interface: Some(world.b_interface),
        destinations: Some("192.0.2.0/24".parse().unwrap()),
        ports: 100..=200,
    });
    let elsewhere = with(UdpForwarderOptions { interface: Some(world.a_interface), ..all() });
    // Both hosts count their interfaces from 0.
    assert_eq!(world.a_interface, world.b_interface);
    let v6 = with(UdpForwarderOptions { destinations: Some("::/0".parse().unwrap()), ..all() });
    drop(elsewhere);
    let client = bind(&world.a, "[::]:0");
    for (remote, expected) in [
        ("192.0.2.1:100", 0),
        ("192.0.2.255:200", 0),
        ("192.0.2.1:99", 2),
        ("192.0.2.1:201", 2),
        ("192.0.3.1:150", 2),
        ("[2001:db8::1]:150", 1),
    ] {
        send(&world, &client, to(address(remote), b"x")).unwrap();
        world.run(SECOND);
        let got = [&narrow, &v6].map(|one| received(one).len());
        let mut wanted = [0; 2];
        if expected < 2 {
            wanted[expected] = 1;
        }
        assert_eq!(got, wanted, "{remote}");
    }
    assert_eq!(world.b.ip_counters().get(IpCounter::UdpNoPorts), 3);
}

#[test]
fn a_forwarder_is_no_socket_of_its_own_host() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let forwarder = forwarder(&world.b);
    let own = bind(&world.b, "10.0.0.2:0");
    own.connect(Some(address("10.0.0.2:9"))).unwrap();
    own.send_to(world.now, Bytes::new(), None).unwrap();
    world.settle();
    assert_eq!(own.take_error(), Some(SocketError::Refused));
    assert!(received(&forwarder).is_empty());
    assert_eq!(forwarder.connect(Some(address("10.0.0.1:9"))), Err(SocketError::InvalidArgument));
    // It has no address and no port of its own.
    for from in [None, Some("192.0.2.1:0"), Some("0.0.0.0:9")] {
        let from = from.map(address);
        let datagram = SendDatagram { from, ..to(address("10.0.0.1:9"), b"x") };
        assert_eq!(send(&world, &forwarder, datagram), Err(SocketError::AddressNotAvailable));
    }
}

#[test]
fn one_source_leaves_room_in_a_forwarder_for_others() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let forwarder = forwarder(&world.b);
    forwarder.set_buffers(Some(100 * (640 + 100)), None);
    let options = UdpOptions { transparent: true, ..UdpOptions::default() };
    let flood = |world: &mut World, from: &str, remote: &str, count: usize| {
        let client = world.a.bind_udp(address(from), options).unwrap();
        for _ in 0..count {
            let data = Bytes::from_static(&[0; 100]);
            client.send_to(world.now, data, Some(address(remote))).unwrap();
            world.run(Nanos::from_millis(2));
        }
    };
    flood(&mut world, "10.0.0.1:1", "192.0.2.1:9", 300);
    let dropped = world.b.drops().get(DropReason::SocketReceiveBuffer);
    assert_eq!(dropped, 250);
    assert_eq!(world.b.ip_counters().get(IpCounter::UdpRcvbufErrors), dropped);
    // Another port of the same host is the same source.
    flood(&mut world, "10.0.0.1:2", "192.0.2.2:9", 1);
    assert_eq!(world.b.drops().get(DropReason::SocketReceiveBuffer), dropped + 1);
    flood(&mut world, "10.0.0.77:1", "192.0.2.1:9", 10);
    flood(&mut world, "[fd00::1]:1", "[2001:db8::1]:9", 10);
    let got = received(&forwarder);
    let from = |ip: &str| {
        let ip: IpAddr = ip.parse().unwrap();
        got.iter().filter(|one| one.from.ip() == ip).count()
    };
    assert_eq!([from("10.0.0.1"), from("10.0.0.77"), from("fd00::1")], [50, 10, 10]);
    flood(&mut world, "10.0.0.1:2", "192.0.2.2:9", 60);
    assert_eq!(received(&forwarder).len(), 50);
}

#[test]
fn what_icmp_says_of_forwarded_datagrams_is_in_the_error_queue() {
    for (foreign, peer, kind) in
        [("192.0.2.7:53", "10.0.0.1:9", 3), ("[2001:db8::7]:53", "[fd00::1]:9", 1)]
    {
        let (foreign, peer) = (address(foreign), address(peer));
        let mut world = World::with_any_destination(&WireConfig::default());
        let forwarder = forwarder(&world.b);
        let datagram = SendDatagram { from: Some(foreign), ..to(peer, b"hello") };
        // Who does not ask hears nothing.
        send(&world, &forwarder, datagram.clone()).unwrap();
        world.run(SECOND);
        assert!(forwarder.next_error().is_none());
        forwarder.set_receive_errors(true, true);
        let bits = |forwarder: &UdpHandle| forwarder.readiness().bits() & Ready::ERROR;
        for _ in 0..2 {
            send(&world, &forwarder, datagram.clone()).unwrap();
        }
        world.run(SECOND);
        assert_eq!(bits(&forwarder), Ready::ERROR);
        // No call fails for it.
        send(&world, &forwarder, datagram.clone()).unwrap();
        world.run(SECOND);
        assert_eq!(forwarder.recv_from().unwrap_err(), SocketError::WouldBlock);
        for _ in 0..3 {
            assert_eq!(bits(&forwarder), Ready::ERROR);
            let record = forwarder.next_error().unwrap();
            assert_eq!((record.source, record.destination), (Some(foreign), peer));
            assert_eq!((record.error, record.kind), (ConnectionError::Refused, kind));
            assert_eq!(record.offender, Some(peer.ip()));
            assert_eq!(&record.data[..], b"hello");
        }
        assert!(forwarder.next_error().is_none() && bits(&forwarder).is_empty());
        // The records leave room for datagrams.
        forwarder.set_buffers(Some(20_000), None);
        for _ in 0..100 {
            send(&world, &forwarder, datagram.clone()).unwrap();
            world.run(SECOND);
        }
        let kept = core::iter::from_fn(|| forwarder.next_error()).count();
        assert_eq!(kept, 6, "a quarter of the buffer");
        assert!(world.b.drops().get(DropReason::ErrorQueue) > 90);
    }
}

#[test]
fn an_error_about_a_datagram_is_for_the_forwarder_of_its_interface() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let device = common::device(&WireConfig::default(), 9, &Shared::default(), &Shared::default());
    let second = world.b.add_interface(world.now, device, &[]).unwrap();
    let [other, own] = [second, world.b_interface].map(|interface| {
        let interface = Some(interface);
        let options = UdpForwarderOptions { interface, ..UdpForwarderOptions::default() };
        let forwarder = world.b.forward_udp(options).unwrap();
        forwarder.set_receive_errors(true, true);
        forwarder
    });
    for (foreign, guest) in [("192.0.2.7:53", "10.0.0.1:9"), ("[2001:db8::7]:53", "[fd00::1]:9")] {
        let from = Some(address(foreign));
        send(&world, &own, SendDatagram { from, ..to(address(guest), b"hello") }).unwrap();
        world.run(SECOND);
        assert_eq!(own.next_error().map(|record| record.source), Some(from), "{guest}");
        assert!(other.next_error().is_none(), "{guest}");
    }
}

#[test]
fn a_transparent_socket_hears_of_errors_about_foreign_addresses() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let options = UdpOptions { transparent: true, ..UdpOptions::default() };
    let socket = world.b.bind_udp(address("0.0.0.0:53"), options).unwrap();
    socket.set_receive_errors(true, true);
    let (from, peer) = (address("192.0.2.7:53"), address("10.0.0.1:9"));
    send(&world, &socket, SendDatagram { from: Some(from), ..to(peer, b"hello") }).unwrap();
    world.run(SECOND);
    assert_eq!(socket.recv_from().unwrap_err(), SocketError::Refused);
    let record = socket.next_error().unwrap();
    assert_eq!((record.source, record.destination), (Some(from), peer));
    assert_eq!(record.origin, ErrorOrigin::Icmp);
}

#[test]
fn a_forwarder_refuses_by_icmp_in_the_name_of_the_destination() {
    use ConnectionError as E;
    for (own, remote, errors) in [
        (
            "10.0.0.1:0",
            "192.0.2.7:9",
            [E::NetworkUnreachable, E::HostUnreachable, E::Refused, E::HostUnreachable],
        ),
        (
            "[fd00::1]:0",
            "[2001:db8::7]:9",
            [E::NetworkUnreachable, E::HostUnreachable, E::Refused, E::Forbidden],
        ),
    ] {
        let reasons = [Refusal::Network, Refusal::Host, Refusal::Port, Refusal::Prohibited];
        for (why, error) in reasons.into_iter().zip(errors) {
            for len in [0, 10, 4000] {
                let mut world = World::with_any_destination(&WireConfig::default());
                let forwarder = forwarder(&world.b);
                let client = bind(&world.a, own);
                client.set_receive_errors(true, true);
                let data: Bytes = vec![9; len].into();
                client.send_to(world.now, data.clone(), Some(address(remote))).unwrap();
                world.run(SECOND);
                let datagram = forwarder.recv_from().unwrap();
                forwarder.refuse(world.now, &datagram, why).unwrap();
                world.run(SECOND);
                let record = client.next_error().unwrap();
                assert_eq!((record.error, record.destination), (error, address(remote)));
                assert_eq!(record.source, Some(client.local_addr()));
                assert_eq!(record.offender, Some(address(remote).ip()));
                assert!(data.starts_with(&record.data) && record.data.len() >= len.min(500));
            }
        }
    }
}

#[test]
fn refusals_are_under_the_limits_of_icmp() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let forwarder = forwarder(&world.b);
    let client = bind(&world.a, "10.0.0.1:0");
    send(&world, &client, to(address("192.0.2.7:9"), b"x")).unwrap();
    world.run(SECOND);
    let datagram = forwarder.recv_from().unwrap();
    for _ in 0..20 {
        forwarder.refuse(world.now, &datagram, Refusal::Port).unwrap();
    }
    assert_eq!(world.b.ip_counters().get(IpCounter::IcmpOutDestUnreachs), 6);
    assert_eq!(world.b.drops().get(DropReason::RateLimited), 14);
    // Nobody speaks for all hosts, and a socket for its own addresses alone.
    let mut broadcast = datagram.clone();
    broadcast.to = address("10.0.0.255:9");
    let error = Err(SocketError::AddressNotAvailable);
    assert_eq!(forwarder.refuse(world.now, &broadcast, Refusal::Port), error);
    let socket = bind(&world.b, "0.0.0.0:0");
    assert_eq!(socket.refuse(world.now, &datagram, Refusal::Port), error);
}

fn super_frames() -> WireConfig {
    WireConfig { gso_udp: true, ..WireConfig::default() }
}

/// Lengths of the frames that leave when datagrams with data of these lengths are sent in a batch.
fn frames_of(world: &mut World, socket: &UdpHandle, to: &str, lengths: &[usize]) -> Vec<usize> {
    let to = Some(address(to));
    let datagram = |&len: &usize| SendDatagram::new(vec![len as u8; len].into(), to);
    let (sent, outcome) = socket.send_batch(world.now, lengths.iter().map(datagram));
    assert_eq!((sent, outcome), (lengths.len(), Ok(())));
    world.run(Nanos::from_millis(10));
    taken(&world.ab, false).iter().map(Bytes::len).collect()
}

#[test]
fn datagrams_alike_leave_in_one_frame() {
    for (own, to, headers) in
        [("10.0.0.1:0", "10.0.0.2:53", 28), ("[fd00::1]:0", "[fd00::2]:53", 48)]
    {
        let mut world = World::new(&super_frames());
        let (server, client) = (bind(&world.b, "[::]:53"), bind(&world.a, own));
        for (lengths, frames) in [
            (&[1000, 1000, 1000][..], &[3000][..]),
            // A shorter one ends a frame, and a longer one begins another.
            (&[1000, 1000, 400, 400], &[2400, 400]),
            (&[1000, 1200, 1200], &[1000, 2400]),
            (&[0, 0, 10, 0, 10], &[0, 0, 10, 0, 10]),
        ] {
            let sent = frames_of(&mut world, &client, to, lengths);
            let expected: Vec<_> = frames.iter().map(|len| len + headers).collect();
            assert_eq!(sent, expected, "{lengths:?} to {to}");
            let arrived: Vec<_> = received(&server).iter().map(|got| got.data.len()).collect();
            assert_eq!(arrived, lengths, "to {to}");
        }
        // Those that are longer than the path takes leave one by one, in fragments.
        let most = 1500 - headers;
        assert_eq!(frames_of(&mut world, &client, to, &[most, most]), [2 * most + headers]);
        assert_eq!(frames_of(&mut world, &client, to, &[most + 1, most + 1]).len(), 4);
        assert_eq!(frames_of(&mut world, &client, to, &[2000, 2000]).len(), 4);
        assert_eq!(received(&server).len(), 6);
        // 64 of them, and what one packet holds.
        assert_eq!(frames_of(&mut world, &client, to, &[10; 100]), [640 + headers, 360 + headers]);
        let sent = frames_of(&mut world, &client, to, &[1400; 50]);
        assert_eq!(sent, [46 * 1400 + headers, 4 * 1400 + headers]);
        assert_eq!(received(&server).len(), 150);
        assert_eq!(client.bytes_below(), 0, "all credit has come back");
    }
}

#[test]
fn datagrams_leave_one_by_one_where_they_differ_or_nothing_takes_super_frames() {
    let mut world = World::new(&super_frames());
    let client = bind(&world.a, "10.0.0.1:0");
    let like = SendDatagram::new(vec![1; 100].into(), Some(address("10.0.0.2:53")));
    let others = [
        SendDatagram { to: Some(address("10.0.0.2:54")), ..like.clone() },
        SendDatagram { tos: Some(8), ..like.clone() },
        SendDatagram { hop_limit: Some(3), ..like.clone() },
        SendDatagram { interface: Some(world.a_interface), ..like.clone() },
    ];
    for other in others {
        let (sent, _) = client.send_batch(world.now, [like.clone(), other.clone()]);
        assert_eq!(sent, 2);
        world.run(Nanos::from_millis(10));
        assert_eq!(taken(&world.ab, false).len(), 2, "{other:?}");
    }
    // To this host itself, and where a qdisc spaces packets.
    let own = bind(&world.a, "10.0.0.1:53");
    assert_eq!(frames_of(&mut world, &client, "10.0.0.1:53", &[9, 9]), []);
    assert_eq!(received(&own).len(), 2);
    let tbf: QdiscConfig = "tbf rate 10mbit burst 20k limit 100k".parse().expect("a qdisc");
    world.a.set_qdisc(world.now, world.a_interface, &tbf).expect("set");
    assert_eq!(frames_of(&mut world, &client, "10.0.0.2:53", &[9, 9]).len(), 2);
    let mut plain = World::new(&WireConfig::default());
    let client = bind(&plain.a, "10.0.0.1:0");
    assert_eq!(frames_of(&mut plain, &client, "10.0.0.2:53", &[9, 9]).len(), 2);
}

#[test]
fn a_super_frame_of_datagrams_is_cut_where_the_qdisc_came_later() {
    let mut world = World::new(&WireConfig { ring: 1, ..super_frames() });
    let (server, client) = (bind(&world.b, "10.0.0.2:53"), bind(&world.a, "10.0.0.1:0"));
    let to = Some(address("10.0.0.2:53"));
    for size in [500, 1000] {
        let batch = (0..10).map(|_| SendDatagram::new(vec![7; size].into(), to));
        assert_eq!(client.send_batch(world.now, batch).0, 10);
    }
    // The second frame waits for the ring.
    let tbf: QdiscConfig = "tbf rate 10mbit burst 2k limit 100k".parse().expect("a qdisc");
    world.a.set_qdisc(world.now, world.a_interface, &tbf).expect("set");
    world.run(SECOND);
    let lengths: Vec<_> = received(&server).iter().map(|got| got.data.len()).collect();
    assert_eq!(lengths, [[500; 10], [1000; 10]].concat());
}

/// A packet of UDP over IPv4 with this payload, from 10.0.0.1:1000 to 10.0.0.2:53, without a
/// checksum.
fn packet(payload: &[u8]) -> Bytes {
    let mut packet = vec![0; 28];
    let len = u16::try_from(28 + payload.len()).unwrap();
    (packet[0], packet[8], packet[9]) = (0x45, 64, 17);
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
    packet[16..20].copy_from_slice(&[10, 0, 0, 2]);
    let words = packet[..20].chunks(2);
    let sum: u32 = words.map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..22].copy_from_slice(&1000u16.to_be_bytes());
    packet[22..24].copy_from_slice(&53u16.to_be_bytes());
    packet[24..26].copy_from_slice(&(len - 20).to_be_bytes());
    packet.extend_from_slice(payload);
    packet.into()
}

/// Lets the host B receive a packet of so many bytes of payload that the device says to be of
/// datagrams of `segment` bytes.
fn receive_joined(world: &mut World, len: usize, segment: u16) -> Bytes {
    let payload: Bytes = super::pattern(len).into();
    let (data, checksum) = (packet(&payload), RxChecksum::Good);
    let received = Received { data, gso_size: segment, checksum };
    world.ab.lock().unwrap().packets.push_back((world.now, received));
    world.settle();
    payload
}

#[test]
fn a_super_datagram_is_received_as_its_datagrams() {
    let mut world = World::new(&WireConfig::default());
    let server = bind(&world.b, "10.0.0.2:53");
    let count = |world: &World| world.b.ip_counters().get(IpCounter::UdpInDatagrams);
    for (len, segment, lengths) in [
        (1000, 300, &[300, 300, 300, 100][..]),
        (900, 300, &[300, 300, 300]),
        (300, 300, &[300]),
        (200, 300, &[200]),
        (0, 300, &[0]),
        (200, 0, &[200]),
        (128, 1, &[1; 128]),
    ] {
        let before = count(&world);
        let payload = receive_joined(&mut world, len, segment);
        let got = received(&server);
        let got_lengths: Vec<_> = got.iter().map(|one| one.data.len()).collect();
        assert_eq!(got_lengths, lengths, "{len} bytes by {segment}");
        let data: Vec<_> = got.iter().flat_map(|one| one.data.to_vec()).collect();
        assert_eq!(data, payload);
        assert!(got.iter().all(|one| one.from == address("10.0.0.1:1000")));
        assert_eq!(count(&world) - before, lengths.len() as u64);
    }
    // More than any sender of Linux joins.
    let dropped = |world: &World| world.b.drops().get(DropReason::UdpHeader);
    let before = dropped(&world);
    receive_joined(&mut world, 129, 1);
    assert_eq!((received(&server).len(), dropped(&world) - before), (0, 1));
}

#[test]
fn each_datagram_without_room_of_a_super_datagram_is_counted() {
    let mut world = World::new(&WireConfig::default());
    let server = bind(&world.b, "10.0.0.2:53");
    server.set_buffers(Some(4096), None);
    receive_joined(&mut world, 10_000, 1000);
    let got = received(&server).len();
    assert!((1..10).contains(&got), "{got}");
    let lost = 10 - got as u64;
    assert_eq!(world.b.drops().get(DropReason::SocketReceiveBuffer), lost);
    assert_eq!(world.b.ip_counters().get(IpCounter::UdpRcvbufErrors), lost);
}

#[test]
fn a_mapped_source_in_a_packet_of_ipv6_is_nobody() {
    // draft-itojun-v6ops-v4mapped-harmful; Linux's `ip6_rcv_core`. A socket for both families
    // shows it as a peer of IPv4, and may take it for this host.
    let mut world = World::new(&WireConfig::default());
    let server = bind(&world.b, "[::]:53");
    let mut packet = vec![0x60, 0, 0, 0, 0, 12, 17, 64];
    packet.extend([0; 10]);
    packet.extend([0xff, 0xff, 127, 0, 0, 1]);
    packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    let mut udp = vec![0x30, 0x39, 0, 53, 0, 12, 0, 0, b'e', b'v', b'i', b'l'];
    let mut pseudo = packet[8..40].to_vec();
    pseudo.extend([0, 0, 0, 12, 0, 0, 0, 17]);
    pseudo.extend(&udp);
    let sum = neap_stack::wire::checksum::of(&pseudo);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    packet.extend(udp);
    inject(&world.ab, world.now, packet.into());
    world.run(SECOND);
    let got = received(&server);
    assert!(got.is_empty(), "from {:?}", got[0].from);
    assert_eq!(world.b.drops().get(DropReason::IpMartian), 1);
}

#[test]
fn the_port_of_a_socket_does_not_tell_that_of_the_next() {
    let world = World::new(&WireConfig::default());
    let sockets: Vec<_> = (0..32).map(|_| bind(&world.a, "0.0.0.0:0")).collect();
    let ports: Vec<_> = sockets.iter().map(|socket| socket.local_addr().port()).collect();
    let steps = ports.windows(2).map(|two| two[1].wrapping_sub(two[0]));
    let mut different: Vec<_> = steps.collect();
    different.sort_unstable();
    different.dedup();
    assert!(different.len() > 28, "{ports:?}");
}

#[test]
fn a_socket_of_both_families_takes_the_datagrams_of_its_own_port_alone() {
    let mut world = World::new(&WireConfig::default());
    let both = bind(&world.a, "[::]:500");
    let sender = bind(&world.b, "0.0.0.0:0");
    // The table of ports tells about one pair in a hundred apart by their numbers only.
    for port in 1..=1000 {
        send(&world, &sender, to(SocketAddr::from(([10, 0, 0, 1], port)), b"x")).unwrap();
        world.run(Nanos::from_millis(1));
        assert_eq!(received(&both).len(), usize::from(port == 500), "to port {port}");
    }
}

#[test]
fn a_socket_connected_to_an_address_with_a_scope_hears_the_answer() {
    let mut world = World::new(&WireConfig::default());
    let (server, client) = (bind(&world.b, "[fd00::2]:53"), bind(&world.a, "[::]:0"));
    let peer = SocketAddrV6::new("fd00::2".parse().unwrap(), 53, 5, 1);
    client.connect(Some(peer.into())).unwrap();
    client.send_to(world.now, Bytes::from_static(b"question"), None).unwrap();
    world.run(SECOND);
    let question = received(&server).remove(0);
    send(&world, &server, to(question.from, b"answer")).unwrap();
    world.run(SECOND);
    assert_eq!(received(&client).len(), 1);
}
