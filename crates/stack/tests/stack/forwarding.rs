//! Pending connections: SYNs that an application decides about before they are answered.

use super::common::{Shared, WireConfig, World, inject};
use super::{SECOND, address, pattern, transfer};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use neap_stack::device::{LinkState, LinkStatus};
use neap_stack::drop_reason::DropReason;
use neap_stack::frame::Headers;
use neap_stack::interface::InterfaceOptions;
use neap_stack::socket::SocketError;
use neap_stack::socket::forwarder::{ForwarderHandle, PendingHandle, Refusal};
use neap_stack::socket::icmp::{IcmpErrorKind, IcmpMessage, IcmpOptions};
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, TcpForwarderOptions};
use neap_stack::wire::checksum::Pseudo;
use neap_stack::wire::{ChecksumBy, Ports, Protocol, ipv4, ipv6, tcp};
use neap_tcp::connection::ConnectionError;
use neap_tcp::counters::Counter;
use neap_tcp::options::SocketOptions;
use neap_tcp::segment::{Ecn, Flags, Segment};
use neap_tcp::seq::SeqNumber;
use neap_tcp::state::State;
use neap_tcp::time::Nanos;

const FOREIGN: [&str; 2] = ["192.0.2.7:80", "[2001:db8::7]:80"];

fn forwarded() -> (World, ForwarderHandle) {
    let world = World::with_any_destination(&WireConfig::default());
    let forwarder = world.b.forward_tcp(TcpForwarderOptions::default()).unwrap();
    (world, forwarder)
}

#[test]
fn a_connection_that_comes_before_there_is_a_forwarder_waits_in_an_unread_device() {
    let options = InterfaceOptions { begins_unread: true, ..InterfaceOptions::default() };
    let mut world = World::with_gateway(&WireConfig::default(), options);
    let client = open(&world, FOREIGN[0]);
    world.run(Nanos::from_millis(10));
    assert_eq!(client.state(world.now), State::SynSent);
    let forwarder = world.b.forward_tcp(TcpForwarderOptions::default()).unwrap();
    assert!(world.b.begin_reading(world.b_interface).unwrap());
    world.run(Nanos::from_millis(10));
    // It is the first SYN, not one that was sent again.
    let pending = forwarder.receive().expect("the SYN has waited");
    let _server = pending.accept(world.now, SocketOptions::default()).unwrap();
    world.run(Nanos::from_millis(10));
    assert_eq!(client.state(world.now), State::Established);
    assert!(!world.b.begin_reading(world.b_interface).unwrap());
}

fn open(world: &World, to: &str) -> TcpHandle {
    world.a.connect(world.now, address(to), ConnectOptions::default()).unwrap()
}

/// A SYN of a's to this address, and what b makes of it.
fn pending(world: &mut World, forwarder: &ForwarderHandle, to: &str) -> (TcpHandle, PendingHandle) {
    let client = open(world, to);
    world.run(Nanos::from_millis(10));
    (client, forwarder.receive().unwrap())
}

/// A segment as a packet, from any source to any destination.
fn packet(from: SocketAddr, to: SocketAddr, segment: &Segment) -> Bytes {
    let mut headers = Headers::default();
    let pseudo = Pseudo::of(from.ip(), to.ip(), Protocol::TCP).unwrap();
    let ports = Ports { source: from.port(), destination: to.port() };
    let len = tcp::emit(&mut headers, ports, segment, pseudo, ChecksumBy::Stack) as u16;
    match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Header {
            source,
            destination,
            protocol: Protocol::TCP,
            ttl: 33,
            dscp: 10,
            ecn: Ecn::NotEct,
            identification: 1,
            dont_fragment: true,
        }
        .emit(&mut headers, len),
        (IpAddr::V6(source), IpAddr::V6(destination)) => ipv6::Header {
            source,
            destination,
            protocol: Protocol::TCP,
            hop_limit: 33,
            dscp: 10,
            ecn: Ecn::NotEct,
            flow_label: 0,
        }
        .emit(&mut headers, len),
        _ => panic!("two families"),
    }
    Bytes::copy_from_slice(headers.as_slice())
}

fn bare(flags: Flags, seq: u32) -> Segment {
    Segment { seq: SeqNumber(seq), flags, window: 1000, ..Segment::default() }
}

fn syn_from(world: &mut World, from: &str, seq: u32) {
    let syn = packet(address(from), address("192.0.2.7:80"), &bare(Flags::SYN, seq));
    inject(&world.ab, world.now, syn);
    world.settle();
}

/// TCP segments that were sent in this direction.
fn segments(direction: &Shared) -> Vec<(Flags, SeqNumber, SeqNumber)> {
    let sent = direction.lock().unwrap().sent.clone();
    let tcp = sent.iter().filter(|packet| packet[0] >> 4 == 4 && packet[9] == 6);
    tcp.map(|packet| {
        let (_, segment) = tcp::parse(packet.slice(20..), None).unwrap();
        (segment.flags, segment.seq, segment.ack)
    })
    .collect()
}

#[test]
fn an_accepted_connection_carries_data_both_ways() {
    for ethernet in [false, true] {
        let wire = WireConfig { ethernet, ..WireConfig::default() };
        let mut world = World::with_any_destination(&wire);
        let forwarder = world.b.forward_tcp(TcpForwarderOptions::default()).unwrap();
        for to in FOREIGN {
            let (client, pending) = pending(&mut world, &forwarder, to);
            assert_eq!(client.state(world.now), State::SynSent, "nobody has answered");
            assert_eq!(pending.local_addr(), address(to));
            assert_eq!(pending.remote_addr(), client.local_addr());
            assert_eq!((pending.hop_limit(), pending.tos()), (64, 0));
            assert_eq!(pending.interface(), Some(world.b_interface));
            assert!(pending.max_segment().is_some_and(|mss| mss > 1400));
            assert_eq!(world.b.usage().pending, 1);
            let server = pending.accept(world.now, SocketOptions::default()).unwrap();
            assert_eq!((world.b.usage().pending, forwarder.places()), (0, 1));
            assert!(!server.readiness().bits().contains(Ready::WRITABLE));
            assert!(
                world.run_until(SECOND, |_| server.readiness().bits().contains(Ready::WRITABLE))
            );
            assert_eq!(forwarder.places(), 0, "the handshake is over");
            transfer(&mut world, &client, &server, &pattern(100_000));
            transfer(&mut world, &server, &client, &pattern(100_000));
            client.close(world.now);
            world.run(SECOND);
            server.close(world.now);
            world.run(SECOND);
            assert_eq!(server.state(world.now), State::Closed);
        }
        assert_eq!(world.b.tcp_counter(Counter::PassiveOpens), 2);
        let drops: Vec<_> = world.b.drops().iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(drops, []);
    }
}

#[test]
fn options_act_from_the_synack_on() {
    let (mut world, forwarder) = forwarded();
    let (client, pending) = pending(&mut world, &forwarder, FOREIGN[0]);
    let options =
        SocketOptions { hop_limit: 9, max_segment: Some(600), ..SocketOptions::default() };
    let _server = pending.accept(world.now, options).unwrap();
    world.run(SECOND);
    assert!(client.info(world.now).snd_mss <= 600);
    assert!(world.ba.lock().unwrap().sent.iter().all(|packet| packet[8] == 9));
}

#[test]
fn options_out_of_range_reset_the_connection() {
    let (mut world, forwarder) = forwarded();
    let (client, pending) = pending(&mut world, &forwarder, FOREIGN[0]);
    let options = SocketOptions { keepalive_idle: Some(Nanos::ZERO), ..SocketOptions::default() };
    let accepted = pending.accept(world.now, options);
    assert_eq!(accepted.unwrap_err(), SocketError::InvalidArgument);
    world.run(SECOND);
    assert_eq!(client.take_error(world.now), Some(ConnectionError::Refused));
    assert_eq!((world.b.usage().pending, forwarder.places()), (0, 0));
}

#[test]
fn a_reset_connection_is_refused() {
    for to in FOREIGN {
        let (mut world, forwarder) = forwarded();
        let (client, first) = pending(&mut world, &forwarder, to);
        first.reset(world.now);
        world.run(SECOND);
        assert_eq!(client.take_error(world.now), Some(ConnectionError::Refused));
        let (client, second) = pending(&mut world, &forwarder, to);
        drop(second);
        world.run(SECOND);
        assert_eq!(client.take_error(world.now), Some(ConnectionError::Refused), "nobody decided");
        assert_eq!((world.b.usage().pending, forwarder.places()), (0, 0));
    }
}

#[test]
fn each_rejection_is_what_the_peer_is_told() {
    use ConnectionError as E;
    let told = [
        (Refusal::Network, E::NetworkUnreachable, E::NetworkUnreachable),
        (Refusal::Host, E::HostUnreachable, E::HostUnreachable),
        (Refusal::Port, E::Refused, E::Refused),
        (Refusal::Prohibited, E::HostUnreachable, E::Forbidden),
    ];
    for (rejection, v4, v6) in told {
        for (to, error) in FOREIGN.into_iter().zip([v4, v6]) {
            let (mut world, forwarder) = forwarded();
            let (client, pending) = pending(&mut world, &forwarder, to);
            pending.reject(world.now, rejection);
            world.run(Nanos::from_millis(10));
            assert_eq!(client.take_error(world.now), Some(error), "{rejection:?} of {to}");
            assert_eq!(world.b.usage().pending, 0);
        }
    }
}

#[test]
fn the_error_of_another_host_quotes_the_syn() {
    for (to, router) in FOREIGN.into_iter().zip(["198.51.100.1", "2001:db8:1::1"]) {
        let (mut world, forwarder) = forwarded();
        let socket = world.b.open_icmp(IcmpOptions::default()).unwrap();
        let (client, pending) = pending(&mut world, &forwarder, to);
        let (router, packet) = (router.parse().unwrap(), pending.to_packet());
        let error = IcmpMessage::of_error(router, &packet, IcmpErrorKind::TimeExceeded);
        socket.send(world.now, &error.unwrap()).unwrap();
        pending.ignore();
        world.run(Nanos::from_millis(10));
        let told = client.take_error(world.now);
        assert_eq!(told, Some(ConnectionError::HostUnreachable), "{to}");
    }
}

#[test]
fn rejections_are_limited_like_other_errors() {
    let (mut world, forwarder) = forwarded();
    for port in 0..20 {
        syn_from(&mut world, &format!("10.0.0.1:{}", 4000 + port), 1);
        forwarder.receive().unwrap().reject(world.now, Refusal::Host);
    }
    world.settle();
    assert_eq!(world.b.drops().get(DropReason::RateLimited), 14);
}

#[test]
fn an_ignored_syn_comes_again() {
    let (mut world, forwarder) = forwarded();
    let (client, first) = pending(&mut world, &forwarder, FOREIGN[0]);
    first.ignore();
    assert_eq!(forwarder.receive().err(), Some(SocketError::WouldBlock));
    assert_eq!(world.b.drops().get(DropReason::PendingIgnored), 1);
    assert!(segments(&world.ba).is_empty());
    world.run(SECOND);
    let server = forwarder.receive().unwrap().accept(world.now, SocketOptions::default()).unwrap();
    world.run(SECOND);
    transfer(&mut world, &client, &server, &pattern(1000));
}

#[test]
fn repeated_syns_join_the_pending_connection() {
    let (mut world, forwarder) = forwarded();
    let (client, pending) = pending(&mut world, &forwarder, FOREIGN[1]);
    world.run(Nanos::from_secs(20));
    assert_eq!(client.state(world.now), State::SynSent);
    assert_eq!(forwarder.receive().err(), Some(SocketError::WouldBlock));
    let server = pending.accept(world.now, SocketOptions::default()).unwrap();
    world.run(Nanos::from_millis(10));
    transfer(&mut world, &client, &server, &pattern(1000));
}

#[test]
fn a_new_attempt_takes_the_place_of_the_old_one() {
    let (mut world, forwarder) = forwarded();
    syn_from(&mut world, "10.0.0.9:4000", 1000);
    let pending = forwarder.receive().unwrap();
    syn_from(&mut world, "10.0.0.9:4000", 77_000);
    assert_eq!(forwarder.queued(), (1, 0));
    assert_eq!((pending.hop_limit(), pending.tos()), (33, 40));
    let _server = pending.accept(world.now, SocketOptions::default()).unwrap();
    let synack = segments(&world.ba)[0];
    assert_eq!((synack.0, synack.2), (Flags::SYN | Flags::ACK, SeqNumber(77_001)));
}

#[test]
fn a_peer_may_reset_what_is_pending() {
    let (mut world, forwarder) = forwarded();
    syn_from(&mut world, "10.0.0.9:4000", 1000);
    let pending = forwarder.receive().unwrap();
    let reset = |world: &mut World, seq| {
        let reset =
            packet(address("10.0.0.9:4000"), address("192.0.2.7:80"), &bare(Flags::RST, seq));
        inject(&world.ab, world.now, reset);
        world.settle();
    };
    reset(&mut world, 2000);
    assert_eq!(pending.error(), None, "a number that only the peer knows");
    reset(&mut world, 1001);
    assert_eq!(pending.error(), Some(ConnectionError::Reset.into()));
    assert!(pending.readiness().bits().contains(Ready::ERROR));
    let error = pending.accept(world.now, SocketOptions::default()).unwrap_err();
    assert_eq!(error, ConnectionError::Reset.into());
    // What is over is not received any more, and nothing was sent.
    syn_from(&mut world, "10.0.0.9:4000", 5000);
    reset(&mut world, 5001);
    assert_eq!(forwarder.receive().err(), Some(SocketError::WouldBlock));
    assert_eq!(segments(&world.ba), []);
    assert_eq!(forwarder.places(), 0);
}

#[test]
fn a_peer_may_reset_an_accepted_connection() {
    let (mut world, forwarder) = forwarded();
    syn_from(&mut world, "10.0.0.9:4000", 1000);
    let server = forwarder.receive().unwrap().accept(world.now, SocketOptions::default()).unwrap();
    let reset = packet(address("10.0.0.9:4000"), address("192.0.2.7:80"), &bare(Flags::RST, 1001));
    inject(&world.ab, world.now, reset);
    world.settle();
    assert_eq!(server.take_error(world.now), Some(ConnectionError::Reset));
    assert_eq!((forwarder.places(), world.b.usage().tcp.connections), (0, 0));
}

#[test]
fn a_handshake_without_an_end_is_given_up() {
    let (mut world, forwarder) = forwarded();
    syn_from(&mut world, "10.0.0.9:4000", 1000);
    let server = forwarder.receive().unwrap().accept(world.now, SocketOptions::default()).unwrap();
    assert_eq!(forwarder.places(), 1);
    world.run(Nanos::from_secs(100));
    assert_eq!(server.take_error(world.now), Some(ConnectionError::TimedOut));
    assert_eq!(forwarder.places(), 0);
    let synacks = segments(&world.ba).len();
    assert_eq!(synacks, 6, "tcp_synack_retries");
}

#[test]
fn what_nobody_decides_about_expires() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let options =
        TcpForwarderOptions { expiry: Nanos::from_secs(5), ..TcpForwarderOptions::default() };
    let forwarder = world.b.forward_tcp(options).unwrap();
    let (client, held) = pending(&mut world, &forwarder, FOREIGN[0]);
    syn_from(&mut world, "10.0.0.9:4000", 1000);
    world.run(Nanos::from_secs(4));
    assert_eq!(held.error(), None);
    assert_eq!(world.b.usage().pending, 2);
    world.run(SECOND);
    assert_eq!(held.error(), Some(ConnectionError::TimedOut.into()));
    assert_eq!(world.b.drops().get(DropReason::PendingExpired), 2);
    // The next SYN is a new attempt. A value that is held keeps its place, as it keeps memory.
    world.run(Nanos::from_secs(2));
    let again = forwarder.receive().unwrap();
    assert_eq!(again.remote_addr(), client.local_addr());
    assert_eq!(forwarder.places(), 2);
    drop(held);
    assert_eq!(forwarder.places(), 1);
}

#[test]
fn a_flood_of_one_source_ends_in_counted_drops_and_leaves_others_in() {
    for source in ["10.0.0.9", "2001:db8:9::"] {
        let mut world = World::with_any_destination(&WireConfig::default());
        let most = TcpForwarderOptions { max_per_source: 8, ..TcpForwarderOptions::default() };
        let forwarder = world.b.forward_tcp(most).unwrap();
        for number in 0..1000u16 {
            let (from, to) = match source.parse().unwrap() {
                from @ IpAddr::V4(_) => (from, FOREIGN[0]),
                // Any address of the network.
                IpAddr::V6(from) => {
                    (IpAddr::V6((from.to_bits() + u128::from(number)).into()), FOREIGN[1])
                }
            };
            let from = SocketAddr::new(from, 4000 + number);
            inject(&world.ab, world.now, packet(from, address(to), &bare(Flags::SYN, 1)));
            world.settle();
        }
        assert_eq!((world.b.usage().pending, forwarder.places()), (8, 8));
        assert_eq!(world.b.drops().get(DropReason::PendingSource), 992);
        let client = open(&world, FOREIGN[0]);
        world.run(Nanos::from_millis(10));
        let honest = core::iter::from_fn(|| forwarder.receive().ok())
            .find(|pending| pending.remote_addr() == client.local_addr());
        assert!(honest.is_some());
    }
}

#[test]
fn a_flood_of_many_sources_is_bounded_and_passes() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let options = TcpForwarderOptions {
        max_pending: 64,
        expiry: Nanos::from_secs(3),
        ..TcpForwarderOptions::default()
    };
    let forwarder = world.b.forward_tcp(options).unwrap();
    for number in 0..2000u32 {
        let from = SocketAddr::new(IpAddr::V4((0x0b00_0000 + number).into()), 4000);
        inject(&world.ab, world.now, packet(from, address(FOREIGN[0]), &bare(Flags::SYN, 1)));
        world.settle();
    }
    assert_eq!(world.b.usage().pending, 64);
    assert_eq!(world.b.drops().get(DropReason::PendingFull), 1936);
    assert_eq!(segments(&world.ba), [], "nobody is answered");
    // The next client has a place at once, that of the oldest.
    let client = open(&world, FOREIGN[0]);
    world.run(Nanos::from_millis(1));
    let is_its = |one: &PendingHandle| one.remote_addr() == client.local_addr();
    let server = core::iter::from_fn(|| forwarder.receive().ok()).find(is_its);
    assert_eq!(world.b.drops().get(DropReason::PendingFull), 1937);
    let server = server.expect("it is there");
    let server = server.accept(world.now, SocketOptions::default()).unwrap();
    assert_eq!(world.b.usage().pending, 0, "nobody else is undecided");
    world.run(SECOND);
    transfer(&mut world, &client, &server, &pattern(1000));
}

#[test]
fn a_full_forwarder_takes_more_when_handshakes_are_over() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let options = TcpForwarderOptions { max_pending: 1, ..TcpForwarderOptions::default() };
    let forwarder = world.b.forward_tcp(options).unwrap();
    let (_first, one) = pending(&mut world, &forwarder, FOREIGN[0]);
    let _server = one.accept(world.now, SocketOptions::default()).unwrap();
    let second = open(&world, FOREIGN[1]);
    world.run(Nanos::from_millis(1));
    assert_eq!(world.b.drops().get(DropReason::PendingFull), 1);
    world.run(Nanos::from_millis(1100));
    assert_eq!(forwarder.receive().unwrap().remote_addr(), second.local_addr());
}

#[test]
fn sockets_come_first_and_only_what_is_wanted_is_taken() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let listener = world.b.listen(
        address("192.0.2.7:81"),
        ListenOptions { transparent: true, ..ListenOptions::default() },
    );
    let listener = listener.unwrap();
    let forwarder = world
        .b
        .forward_tcp(TcpForwarderOptions {
            interface: Some(world.b_interface),
            destinations: Some("192.0.2.0/24".parse().unwrap()),
            ports: 80..=99,
            ..TcpForwarderOptions::default()
        })
        .unwrap();
    let taken = open(&world, "192.0.2.8:80");
    let others: Vec<_> = ["192.0.2.7:81", "192.0.2.8:100", "192.0.3.1:80", "10.0.0.2:80"]
        .map(|to| open(&world, to))
        .into();
    world.run(SECOND);
    assert!(listener.accept().is_ok());
    let errors = others.iter().map(|client| client.take_error(world.now));
    let refused = Some(ConnectionError::Refused);
    assert_eq!(errors.collect::<Vec<_>>(), [None, refused, refused, refused]);
    assert_eq!(forwarder.receive().unwrap().remote_addr(), taken.local_addr());
    assert_eq!(forwarder.receive().err(), Some(SocketError::WouldBlock));
}

#[test]
fn an_interface_without_the_flag_forwards_only_what_is_for_its_own_addresses() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let forwarder = world.a.forward_tcp(TcpForwarderOptions::default()).unwrap();
    inject(
        &world.ba,
        world.now,
        packet(address("10.0.0.2:4000"), address("192.0.2.7:80"), &bare(Flags::SYN, 1)),
    );
    world.settle();
    assert_eq!(world.a.drops().get(DropReason::IpOtherHost), 1);
    assert_eq!(forwarder.receive().err(), Some(SocketError::WouldBlock));
    let client =
        world.b.connect(world.now, address("10.0.0.1:80"), ConnectOptions::default()).unwrap();
    world.run(Nanos::from_millis(10));
    let server = forwarder.receive().unwrap().accept(world.now, SocketOptions::default()).unwrap();
    world.run(Nanos::from_millis(10));
    transfer(&mut world, &client, &server, &pattern(1000));
}

#[test]
fn the_end_of_a_forwarder_refuses_what_is_pending() {
    let (mut world, forwarder) = forwarded();
    let (first, held) = pending(&mut world, &forwarder, FOREIGN[0]);
    let second = open(&world, FOREIGN[1]);
    world.run(Nanos::from_millis(10));
    drop(forwarder);
    world.run(Nanos::from_millis(10));
    for client in [first, second] {
        assert_eq!(client.take_error(world.now), Some(ConnectionError::Refused));
    }
    assert_eq!(held.error(), Some(SocketError::ShutDown));
    assert_eq!(held.accept(world.now, SocketOptions::default()).err(), Some(SocketError::ShutDown));
    let third = open(&world, FOREIGN[0]);
    world.run(Nanos::from_millis(10));
    assert_eq!(third.take_error(world.now), Some(ConnectionError::Refused));
}

#[test]
fn the_end_of_the_host_ends_its_forwarders() {
    let (mut world, forwarder) = forwarded();
    let (client, held) = pending(&mut world, &forwarder, FOREIGN[0]);
    world.b.shut_down(world.now);
    world.run(Nanos::from_millis(10));
    assert_eq!(client.take_error(world.now), Some(ConnectionError::Refused));
    assert_eq!(forwarder.receive().err(), Some(SocketError::ShutDown));
    assert_eq!(held.error(), Some(SocketError::ShutDown));
    assert_eq!(
        world.b.forward_tcp(TcpForwarderOptions::default()).err(),
        Some(SocketError::ShutDown)
    );
}

#[test]
fn a_forwarder_of_a_removed_device_fails_once() {
    let (mut world, forwarder) = forwarded();
    let gone = LinkStatus::new(LinkState::Gone);
    world.b.set_link_status(world.now, world.b_interface, gone).unwrap();
    world.settle();
    let error = SocketError::Reported(ConnectionError::NetworkDown);
    assert_eq!(forwarder.receive().err(), Some(error));
    assert_eq!(forwarder.receive().err(), Some(SocketError::WouldBlock));
}

#[test]
fn a_flow_in_time_wait_may_be_opened_again() {
    let (mut world, forwarder) = forwarded();
    let from = || ConnectOptions { local: Some(address("10.0.0.1:5000")), ..Default::default() };
    for round in 0..3 {
        let client = world.a.connect(world.now, address(FOREIGN[0]), from()).unwrap();
        world.run(Nanos::from_millis(10));
        let pending = forwarder.receive().unwrap();
        let server = pending.accept(world.now, SocketOptions::default()).unwrap();
        world.run(Nanos::from_millis(10));
        transfer(&mut world, &client, &server, &pattern(1000));
        // TIME-WAIT is at the forwarder's host.
        server.close(world.now);
        world.run(SECOND);
        client.close(world.now);
        world.run(SECOND);
        assert_eq!(world.b.usage().tcp.time_wait, 1, "round {round}");
    }
}

#[test]
fn a_reset_and_a_new_syn_may_come_in_one_batch() {
    let (mut world, forwarder) = forwarded();
    let from = || ConnectOptions { local: Some(address("10.0.0.1:5000")), ..Default::default() };
    for round in 0..3 {
        let client = world.a.connect(world.now, address(FOREIGN[0]), from()).unwrap();
        world.run(Nanos::from_millis(10));
        let pending = forwarder.receive();
        let pending = pending.unwrap_or_else(|_| panic!("round {round}"));
        let _server = pending.accept(world.now, SocketOptions::default()).unwrap();
        world.run(Nanos::from_millis(10));
        assert!(client.readiness().bits().contains(Ready::WRITABLE), "round {round}");
        client.abort(world.now);
    }
}

#[test]
fn what_is_no_syn_is_reset() {
    let (mut world, forwarder) = forwarded();
    let ack = Segment { ack: SeqNumber(500), ..bare(Flags::ACK, 1) };
    for segment in [ack, bare(Flags::SYN | Flags::FIN, 1), bare(Flags::FIN, 1)] {
        let data = packet(address("10.0.0.1:4000"), address(FOREIGN[0]), &segment);
        inject(&world.ab, world.now, data);
    }
    world.settle();
    assert_eq!(forwarder.receive().err(), Some(SocketError::WouldBlock));
    assert!(segments(&world.ba).iter().all(|sent| sent.0.contains(Flags::RST)));
    assert_eq!(world.b.drops().get(DropReason::NoSocketForeign), 3);
}
