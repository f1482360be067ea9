//! What an interface answers for others on its link, and what it says and hears as a router.

use crate::common::{self, Shared, WireConfig, World};
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use neap_stack::drop_reason::DropReason;
use neap_stack::error::NetError;
use neap_stack::event::StackEvent;
use neap_stack::frame::Headers;
use neap_stack::neighbor::NeighborState;
use neap_stack::route::Prefix;
use neap_stack::router::{
    AdvertisedDnsServer, AdvertisedDomain, AdvertisedPrefix, RouterAdvertisement,
};
use neap_stack::socket::udp::SendDatagram;
use neap_stack::stack::UdpOptions;
use neap_stack::stats::IpCounter;
use neap_stack::wire::{Protocol, arp, ethernet, icmpv6, ipv6};
use neap_tcp::segment::{Ecn, Payload};
use neap_tcp::time::Nanos;

const MILLISECOND: Nanos = Nanos::from_millis(1);
const SECOND: Nanos = Nanos::from_secs(1);
/// The link addresses of the guest, which is host a, and of the gateway, which is host b.
const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 1];
const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn ethernet() -> World {
    World::new(&WireConfig { ethernet: true, ..WireConfig::default() })
}

fn v4(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn proxy(world: &World, prefixes: &[&str]) {
    let prefixes = prefixes.iter().map(|text| text.parse::<Prefix>().unwrap()).collect();
    world.b.set_proxies(world.b_interface, prefixes).unwrap();
}

/// All frames of an EtherType that were sent in a direction, without their link headers.
fn sent(direction: &Shared, ether_type: ethernet::EtherType) -> Vec<Bytes> {
    let direction = direction.lock().unwrap();
    let frames = direction.sent.iter();
    let is_it = |frame: &&Bytes| ethernet::parse(frame).unwrap().ether_type == ether_type;
    frames.filter(is_it).map(|frame| frame.slice(ethernet::HEADER_LEN..)).collect()
}

/// Who answers an ARP request of the guest.
fn ask_arp(world: &mut World, sender: &str, target: &str) -> Option<[u8; 6]> {
    let request = arp::Packet {
        operation: arp::Operation::Request,
        sender_link: GUEST,
        sender: v4(sender),
        target_link: [0; 6],
        target: v4(target),
    };
    let mut headers = Headers::default();
    request.emit(&mut headers);
    let ether_type = ethernet::EtherType::ARP;
    ethernet::Header { destination: ethernet::BROADCAST, source: GUEST, ether_type }
        .emit(&mut headers);
    let before = sent(&world.ba, ether_type).len();
    common::inject(&world.ab, world.now, Bytes::copy_from_slice(headers.as_slice()));
    world.run(MILLISECOND);
    let answers = sent(&world.ba, ether_type).split_off(before);
    let answers: Vec<_> = answers.iter().map(|data| arp::parse(data).unwrap()).collect();
    assert!(answers.len() <= 1, "{answers:?}");
    answers.first().map(|answer| {
        assert_eq!((answer.operation, answer.target_link), (arp::Operation::Reply, GUEST));
        assert_eq!((answer.sender, answer.target), (v4(target), v4(sender)));
        answer.sender_link
    })
}

/// A message of the guest in its Ethernet frame.
fn icmpv6_frame(source: &str, destination: &str, message: icmpv6::Message, body: &[u8]) -> Bytes {
    let (source, destination) = (v6(source), v6(destination));
    let mut headers = Headers::default();
    let payload = Payload::from(Bytes::copy_from_slice(body));
    let len = message.emit(&mut headers, source, destination, &payload) + body.len();
    let header = ipv6::Header {
        source,
        destination,
        protocol: Protocol::ICMPV6,
        hop_limit: 255,
        dscp: 0,
        ecn: Ecn::NotEct,
        flow_label: 0,
    };
    header.emit(&mut headers, len as u16);
    let link =
        if destination.is_multicast() { icmpv6::multicast_link(destination) } else { GATEWAY };
    let ether_type = ethernet::EtherType::IPV6;
    ethernet::Header { destination: link, source: GUEST, ether_type }.emit(&mut headers);
    [headers.as_slice(), body].concat().into()
}

/// The ICMPv6 messages that were sent in a direction, each with its header and its body.
fn messages(direction: &Shared) -> Vec<(ipv6::Header, icmpv6::Message, Bytes)> {
    let packets = sent(direction, ethernet::EtherType::IPV6);
    let parsed = packets.iter().filter_map(|data| {
        let packet = ipv6::parse(data).unwrap();
        if packet.header.protocol != Protocol::ICMPV6 {
            return None;
        }
        let (message, body) = icmpv6::parse(&packet.header, &data[packet.payload]).unwrap();
        Some((packet.header, message, Bytes::copy_from_slice(body)))
    });
    parsed.collect()
}

/// What the gateway answers to a solicitation of the guest.
fn ask_nd(
    world: &mut World,
    source: &str,
    destination: Option<&str>,
    target: &str,
) -> Option<(ipv6::Header, icmpv6::Message)> {
    let is_probe = v6(source).is_unspecified();
    let message = icmpv6::Message::NeighborSolicitation {
        target: v6(target),
        source_link: Some(GUEST).filter(|_| !is_probe),
    };
    let group = icmpv6::solicited_node(v6(target)).to_string();
    let frame = icmpv6_frame(source, destination.unwrap_or(&group), message, &[]);
    let before = messages(&world.ba).len();
    common::inject(&world.ab, world.now, frame);
    world.run(MILLISECOND);
    let mut answers = messages(&world.ba).split_off(before);
    assert!(answers.len() <= 1, "{answers:?}");
    answers.pop().map(|(header, message, _)| (header, message))
}

#[test]
fn arp_is_answered_for_a_prefix() {
    let mut world = ethernet();
    assert_eq!(ask_arp(&mut world, "10.0.0.1", "10.0.0.77"), None);
    proxy(&world, &["10.0.0.64/26", "192.0.2.0/24"]);
    for target in ["10.0.0.65", "10.0.0.127", "192.0.2.1", "10.0.0.2"] {
        assert_eq!(ask_arp(&mut world, "10.0.0.1", target), Some(GATEWAY), "{target}");
    }
    for target in ["10.0.0.63", "10.0.0.128", "192.0.3.1"] {
        assert_eq!(ask_arp(&mut world, "10.0.0.1", target), None, "{target}");
    }
    let info = &world.b.interfaces(world.now)[0];
    assert_eq!(info.proxies.len(), 2);
    let guest = info.neighbors.iter().find(|one| one.address == v4("10.0.0.1")).unwrap();
    assert_eq!((guest.link, guest.state), (Some(GUEST), NeighborState::Stale), "learned");
    proxy(&world, &[]);
    assert_eq!(ask_arp(&mut world, "10.0.0.1", "10.0.0.65"), None);
}

#[test]
fn a_guest_may_have_any_address_of_the_prefix() {
    let mut world = ethernet();
    proxy(&world, &["10.0.0.0/24"]);
    // A probe (RFC 5227), then the announcement.
    assert_eq!(ask_arp(&mut world, "0.0.0.0", "10.0.0.99"), None);
    assert_eq!(ask_arp(&mut world, "10.0.0.99", "10.0.0.99"), None);
    // It asks for others, and is a known neighbour then: another guest is not misled.
    assert_eq!(ask_arp(&mut world, "10.0.0.99", "10.0.0.98"), Some(GATEWAY));
    assert_eq!(ask_arp(&mut world, "10.0.0.98", "10.0.0.99"), None);
    // The own address is defended against a probe.
    assert_eq!(ask_arp(&mut world, "0.0.0.0", "10.0.0.2"), Some(GATEWAY));
}

#[test]
fn solicitations_are_answered_for_a_prefix_without_override() {
    let mut world = ethernet();
    assert_eq!(ask_nd(&mut world, "fd00::1", None, "2001:db8::5"), None);
    proxy(&world, &["2001:db8::/32", "fd00::1:0/112", "10.0.0.0/8"]);
    for target in ["2001:db8::5", "2001:db8:1:2:3:4:5:6", "fd00::1:7"] {
        let answer = ask_nd(&mut world, "fd00::1", None, target);
        let (header, answer) = answer.unwrap_or_else(|| panic!("no answer for {target}"));
        assert_eq!((header.source, header.destination), (v6("fd00::2"), v6("fd00::1")));
        let expected = icmpv6::Message::NeighborAdvertisement {
            target: v6(target),
            target_link: Some(GATEWAY),
            router: false,
            solicited: true,
            replace: false,
        };
        assert_eq!(answer, expected);
    }
    let own = ask_nd(&mut world, "fd00::1", None, "fd00::2").unwrap().1;
    assert!(matches!(own, icmpv6::Message::NeighborAdvertisement { replace: true, .. }));
    for target in ["2001:db9::5", "fd00::2:7"] {
        assert_eq!(ask_nd(&mut world, "fd00::1", None, target), None, "{target}");
    }
    // Duplicate address detection of a guest that wants the address, and its own address.
    assert_eq!(ask_nd(&mut world, "::", None, "2001:db8::5"), None);
    assert_eq!(ask_nd(&mut world, "2001:db8::9", None, "2001:db8::9"), None);
    assert!(ask_nd(&mut world, "2001:db8::9", None, "2001:db8::8").is_some());
    assert_eq!(ask_nd(&mut world, "fd00::1", None, "2001:db8::9"), None, "it is a neighbour");
}

#[test]
fn a_neighbour_that_asks_whether_a_proxied_address_is_still_there_is_answered() {
    let mut world = ethernet();
    let target = "2001:db8::5";
    let ask = |world: &mut World| ask_nd(world, "fd00::1", Some(target), target);
    assert_eq!(ask(&mut world), None);
    proxy(&world, &["2001:db8::/32"]);
    assert!(ask(&mut world).is_some());
    // Nothing else is taken there.
    let echo = icmpv6::Message::EchoRequest { identifier: 1, sequence: 1 };
    let dropped = world.b.drops().get(DropReason::IpOtherHost);
    common::inject(&world.ab, world.now, icmpv6_frame("fd00::1", target, echo, &[]));
    world.run(MILLISECOND);
    assert_eq!(world.b.drops().get(DropReason::IpOtherHost), dropped + 1);
}

#[test]
fn a_link_without_neighbours_has_no_proxies() {
    let world = World::new(&WireConfig::default());
    let prefixes = vec!["10.0.0.0/24".parse().unwrap()];
    let refused = world.b.set_proxies(world.b_interface, prefixes);
    assert_eq!(refused, Err(NetError::NoNeighbors(world.b_interface)));
}

fn advertisement() -> RouterAdvertisement {
    RouterAdvertisement {
        mtu: Some(1400),
        other: true,
        prefixes: vec![AdvertisedPrefix::new("2001:db8:1::/64".parse().unwrap())],
        rdnss: vec![AdvertisedDnsServer { address: v6("2001:db8:1::3"), lifetime: 600 }],
        dnssl: vec![AdvertisedDomain { name: "example.org".into(), lifetime: 600 }],
        ..RouterAdvertisement::default()
    }
}

/// Makes host b a router.
fn advertise(world: &mut World) {
    world.b.add_address(world.b_interface, "fe80::2/64".parse().unwrap()).unwrap();
    let set = world.b.set_router_advertisement(world.now, world.b_interface, Some(advertisement()));
    set.unwrap();
}

/// The router advertisements among what b has sent: where each went, and its lifetime.
fn advertisements(world: &World) -> Vec<(Ipv6Addr, u16)> {
    let all = messages(&world.ba).into_iter().filter_map(|(header, message, _)| match message {
        icmpv6::Message::RouterAdvertisement { lifetime, .. } => {
            assert_eq!((header.source, header.hop_limit), (v6("fe80::2"), 255));
            Some((header.destination, lifetime))
        }
        _ => None,
    });
    all.collect()
}

#[test]
fn a_router_is_heard_by_a_host_on_its_link() {
    for is_ethernet in [true, false] {
        let wire = WireConfig { ethernet: is_ethernet, ..WireConfig::default() };
        let mut world = World::new(&wire);
        let events = world.a.subscribe();
        advertise(&mut world);
        world.run(SECOND);
        assert_eq!(world.a.routers(world.a_interface).unwrap(), [], "nobody wants to know");
        world.a.set_hears_routers(world.a_interface, true).unwrap();
        world.a.add_address(world.a_interface, "fe80::1/64".parse().unwrap()).unwrap();
        while events.take().is_some() {}
        world.a.solicit_routers(world.now, world.a_interface).unwrap();
        world.run(SECOND);
        let interface = world.a_interface;
        assert_eq!(events.take(), Some(StackEvent::RouterAdvertised { interface }));
        let routers = world.a.routers(world.a_interface).unwrap();
        assert_eq!(routers.len(), 1);
        assert_eq!(
            (routers[0].address, &*routers[0].advertisement),
            (v6("fe80::2"), &advertisement())
        );
        assert_eq!(routers[0].link, is_ethernet.then_some(GATEWAY));
        world.a.set_hears_routers(world.a_interface, false).unwrap();
        assert_eq!(world.a.routers(world.a_interface).unwrap(), []);
    }
}

#[test]
fn a_solicitation_is_answered_soon_and_to_whom_it_came_from() {
    let mut world = ethernet();
    advertise(&mut world);
    world.run(Nanos::from_secs(60));
    let all = v6("ff02::1");
    assert_eq!(advertisements(&world), [(all, 1800); 3], "after 3, 19 and 35 s");
    let solicit = |world: &mut World, from: &str| {
        let source_link = Some(GUEST).filter(|_| from != "::");
        let message = icmpv6::Message::RouterSolicitation { source_link };
        common::inject(&world.ab, world.now, icmpv6_frame(from, "ff02::2", message, &[]));
        world.run(Nanos::from_millis(501));
    };
    solicit(&mut world, "fe80::1");
    assert_eq!(advertisements(&world)[3..], [(v6("fe80::1"), 1800)]);
    let neighbors = world.b.interfaces(world.now)[0].neighbors.clone();
    assert!(neighbors.iter().any(|one| one.address == IpAddr::from(v6("fe80::1"))));
    solicit(&mut world, "::");
    assert_eq!(advertisements(&world)[4..], [(all, 1800)]);
    solicit(&mut world, "::");
    assert_eq!(advertisements(&world).len(), 5, "not within three seconds");
    world.run(Nanos::from_secs(3));
    assert_eq!(advertisements(&world)[5..], [(all, 1800)]);
}

#[test]
fn neighbours_are_told_that_they_have_a_router() {
    let mut world = ethernet();
    advertise(&mut world);
    world.run(SECOND);
    let is_router = |world: &mut World, target| {
        let answer = ask_nd(world, "fe80::1", None, target).unwrap().1;
        matches!(answer, icmpv6::Message::NeighborAdvertisement { router: true, .. })
    };
    assert!(is_router(&mut world, "fe80::2"));
    world.b.set_router_advertisement(world.now, world.b_interface, None).unwrap();
    assert!(!is_router(&mut world, "fe80::2"));
}

#[test]
fn the_link_hears_of_the_end_of_its_router() {
    type End = fn(&mut World);
    let ends: [End; 4] = [
        |world| world.b.set_link(world.now, world.b_interface, false).unwrap(),
        |world| world.b.set_router_advertisement(world.now, world.b_interface, None).unwrap(),
        |world| world.b.remove_interface(world.now, world.b_interface).unwrap(),
        |world| {
            world.b.shut_down(world.now);
            world.b.remove_interfaces(world.now);
        },
    ];
    for end in ends {
        let mut world = ethernet();
        advertise(&mut world);
        world.run(Nanos::from_secs(100));
        end(&mut world);
        world.run(Nanos::from_secs(1000));
        assert_eq!(advertisements(&world)[3..], [(v6("ff02::1"), 0)]);
    }
}

#[test]
fn a_link_that_comes_back_hears_of_its_router_again() {
    let mut world = ethernet();
    advertise(&mut world);
    world.run(Nanos::from_secs(100));
    world.b.set_link(world.now, world.b_interface, false).unwrap();
    world.run(Nanos::from_secs(1000));
    world.b.set_link(world.now, world.b_interface, true).unwrap();
    world.run(Nanos::from_secs(2));
    assert_eq!(advertisements(&world)[3..], [(v6("ff02::1"), 0)], "addresses are not settled");
    world.run(Nanos::from_secs(1));
    assert_eq!(advertisements(&world)[4..], [(v6("ff02::1"), 1800)]);
}

#[test]
fn what_cannot_be_advertised_is_refused() {
    let world = ethernet();
    let set = |what| world.b.set_router_advertisement(world.now, world.b_interface, Some(what));
    assert_eq!(set(advertisement()), Err(NetError::NoLinkLocal(world.b_interface)));
    let bad = RouterAdvertisement { mtu: Some(100), ..advertisement() };
    let refused = set(bad).unwrap_err();
    assert!(matches!(refused, NetError::RouterAdvertisement { .. }), "{refused}");
}

#[test]
fn discovery_in_fragments_is_ignored() {
    // RFC 6980 section 5.
    let mut world = ethernet();
    let message = icmpv6::Message::NeighborSolicitation {
        target: v6("fd00::2"),
        source_link: Some([2, 0, 0, 0, 0, 66]),
    };
    let whole = icmpv6_frame("fd00::77", "fd00::2", message, &[]);
    let data = whole[54..].to_vec();
    let len = data.len();
    // Two fragments, and one that is all of its datagram.
    for (identification, range, more) in [(7, 0..24, true), (7, 24..len, false), (8, 0..len, false)]
    {
        let mut frame = whole[..54].to_vec();
        frame[18..20].copy_from_slice(&(8 + range.len() as u16).to_be_bytes());
        frame[20] = 44;
        frame.extend([58, 0]);
        frame.extend((range.start as u16 | u16::from(more)).to_be_bytes());
        frame.extend([0, 0, 0, identification]);
        frame.extend(&data[range]);
        common::inject(&world.ab, world.now, frame.into());
        world.run(MILLISECOND);
    }
    assert_eq!(world.b.ip_counters().get(IpCounter::Icmp6InErrors), 2);
    let known: Vec<_> =
        world.b.neighbors(world.now).into_iter().map(|(_, one)| one.address).collect();
    assert!(!known.contains(&IpAddr::V6(v6("fd00::77"))), "{known:?}");
}

#[test]
fn a_flood_of_advertisements_is_one_event_and_a_bounded_list() {
    let mut world = ethernet();
    world.b.set_hears_routers(world.b_interface, true).unwrap();
    let events = world.b.subscribe();
    let message = icmpv6::Message::RouterAdvertisement {
        hop_limit: 64,
        managed: false,
        other: false,
        lifetime: 1800,
    };
    for router in 1..=1000 {
        let from = format!("fe80::{router:x}");
        common::inject(&world.ab, world.now, icmpv6_frame(&from, "ff02::1", message, &[0; 8]));
        world.run(MILLISECOND);
    }
    let interface = world.b_interface;
    assert_eq!(events.take(), Some(StackEvent::RouterAdvertised { interface }));
    assert_eq!(events.take(), None);
    assert_eq!(world.b.routers(world.b_interface).unwrap().len(), 8);
    assert_eq!(world.b.drops().get(DropReason::RouterTable), 992);
    // Not from the link: RFC 4861 section 6.1.2.
    let errors = world.b.ip_counters().get(IpCounter::Icmp6InErrors);
    common::inject(&world.ab, world.now, icmpv6_frame("fd00::9", "ff02::1", message, &[0; 8]));
    world.run(MILLISECOND);
    assert_eq!(world.b.ip_counters().get(IpCounter::Icmp6InErrors), errors + 1);
}

#[test]
fn a_ping_to_all_nodes_is_answered_from_an_own_address() {
    // RFC 4443 section 4.2.
    for group in ["ff02::1", "ff02::1:ff00:2"] {
        let mut world = ethernet();
        let request = icmpv6::Message::EchoRequest { identifier: 1, sequence: 2 };
        common::inject(&world.ab, world.now, icmpv6_frame("fd00::1", group, request, b"hello"));
        world.run(SECOND);
        let answers: Vec<_> = messages(&world.ba)
            .into_iter()
            .filter(|(_, message, _)| matches!(message, icmpv6::Message::EchoReply { .. }))
            .collect();
        assert_eq!(answers.len(), 1, "{group}");
        assert_eq!(answers[0].0.source, v6("fd00::2"), "{group}");
    }
}

/// A gateway whose address has moved to another card says nothing under the old one.
#[test]
fn a_neighbour_in_use_that_falls_silent_is_asked_and_then_looked_for_again() {
    for (own, peer) in [("10.0.0.1:9", "10.0.0.2:9"), ("[fd00::1]:9", "[fd00::2]:9")] {
        let mut world = ethernet();
        let client = world.a.bind_udp(own.parse().unwrap(), UdpOptions::default()).unwrap();
        let say = |world: &World| {
            let datagram = SendDatagram::new(Bytes::from_static(b"x"), peer.parse().ok());
            let _ = client.send_batch(world.now, [datagram]);
        };
        say(&world);
        // It answers, and is stale after 45 s.
        world.run(Nanos::from_secs(60));
        world.ba.lock().unwrap().filter = Some(Box::new(|_| false));
        world.ab.lock().unwrap().sent.clear();
        for _ in 0..20 {
            say(&world);
            world.run(SECOND);
        }
        let sent = world.ab.lock().unwrap().sent.clone();
        let are_for_many: Vec<_> = sent
            .iter()
            .map(|frame| (frame, ethernet::parse(frame).unwrap()))
            .filter(|(frame, link)| match link.ether_type {
                ethernet::EtherType::ARP => true,
                _ => frame[ethernet::HEADER_LEN + 6] == Protocol::ICMPV6.0,
            })
            .map(|(_, link)| link.destination[0] & 1 != 0)
            .collect();
        assert!(are_for_many.len() > 6, "{peer}: {are_for_many:?}");
        let (first, later) = are_for_many.split_at(3);
        assert!(first == [false; 3] && !later.contains(&false), "{peer}: {are_for_many:?}");
    }
}

#[test]
fn a_neighbour_that_does_not_repeat_its_link_address_is_still_there() {
    let mut world = ethernet();
    let client = world.a.bind_udp("[fd00::1]:9".parse().unwrap(), UdpOptions::default()).unwrap();
    let say = |world: &World| {
        let datagram = SendDatagram::new(Bytes::from_static(b"x"), "[fd00::2]:9".parse().ok());
        let _ = client.send_batch(world.now, [datagram]);
    };
    say(&world);
    // It answers, and is stale after 45 s. From then on it answers as Linux does.
    world.run(Nanos::from_secs(60));
    world.ba.lock().unwrap().filter = Some(Box::new(|_| false));
    world.ab.lock().unwrap().sent.clear();
    let answer = icmpv6::Message::NeighborAdvertisement {
        target: v6("fd00::2"),
        target_link: None,
        router: false,
        solicited: true,
        replace: false,
    };
    let is_asked =
        |message: &icmpv6::Message| matches!(message, icmpv6::Message::NeighborSolicitation { .. });
    let mut asked = 0;
    for _ in 0..20 {
        say(&world);
        world.run(SECOND);
        let questions = messages(&world.ab).iter().filter(|(_, one, _)| is_asked(one)).count();
        if questions > asked {
            asked = questions;
            let mut frame = icmpv6_frame("fd00::2", "fd00::1", answer, &[]).to_vec();
            frame[..6].copy_from_slice(&GUEST);
            common::inject(&world.ba, world.now, frame.into());
        }
    }
    assert_eq!(asked, 1);
    let neighbors = world.a.neighbors(world.now);
    let known = neighbors.into_iter().find(|(_, one)| one.address == IpAddr::V6(v6("fd00::2")));
    assert_eq!(known.map(|(_, one)| one.state), Some(NeighborState::Reachable));
}

/// A reply to all may be what its sender says to everybody, whether it hears this host or not.
#[test]
fn a_reply_by_broadcast_makes_no_neighbour_reachable() {
    for (destination, state) in
        [(GUEST, NeighborState::Reachable), (ethernet::BROADCAST, NeighborState::Delay)]
    {
        let mut world = ethernet();
        world.ba.lock().unwrap().filter = Some(Box::new(|_| false));
        let client = world.a.bind_udp("10.0.0.1:9".parse().unwrap(), UdpOptions::default());
        let datagram = SendDatagram::new(Bytes::from_static(b"x"), "10.0.0.2:9".parse().ok());
        client.unwrap().send_batch(world.now, [datagram]).1.unwrap();
        let reply = arp::Packet {
            operation: arp::Operation::Reply,
            sender_link: GATEWAY,
            sender: v4("10.0.0.2"),
            target_link: GUEST,
            target: v4("10.0.0.1"),
        };
        let mut headers = Headers::default();
        reply.emit(&mut headers);
        let ether_type = ethernet::EtherType::ARP;
        ethernet::Header { destination, source: GATEWAY, ether_type }.emit(&mut headers);
        common::inject(&world.ba, world.now, Bytes::copy_from_slice(headers.as_slice()));
        world.run(MILLISECOND);
        assert_eq!(sent(&world.ab, ethernet::EtherType::IPV4).len(), 1, "the datagram leaves");
        let known = world.a.neighbors(world.now);
        let known = known.iter().find(|(_, one)| one.address == IpAddr::V4(v4("10.0.0.2")));
        assert_eq!(known.map(|(_, one)| one.state), Some(state));
    }
}

#[test]
fn who_asks_without_its_link_address_is_answered_alone() {
    let mut world = ethernet();
    let client = world.a.bind_udp("[fd00::1]:9".parse().unwrap(), UdpOptions::default()).unwrap();
    let datagram = SendDatagram::new(Bytes::from_static(b"x"), "[fd00::2]:9".parse().ok());
    client.send_batch(world.now, [datagram]).1.unwrap();
    world.run(SECOND);
    world.ba.lock().unwrap().sent.clear();
    let counted = |world: &World| world.b.ip_counters().get(IpCounter::Ip6OutRequests);
    let before = counted(&world);
    let question =
        icmpv6::Message::NeighborSolicitation { target: v6("fd00::2"), source_link: None };
    common::inject(&world.ab, world.now, icmpv6_frame("fd00::1", "fd00::2", question, &[]));
    world.run(SECOND);
    let sent = world.ba.lock().unwrap().sent.clone();
    let [frame] = &sent[..] else { panic!("{} frames", sent.len()) };
    assert_eq!(counted(&world), before + 1);
    assert_eq!(frame[0] & 1, 0, "for one station");
    let (header, message, _) = messages(&world.ba).remove(0);
    assert_eq!(header.destination, v6("fd00::1"));
    assert!(matches!(
        message,
        icmpv6::Message::NeighborAdvertisement { solicited: true, target_link: Some(_), .. }
    ));
}
