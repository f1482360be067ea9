//! A container that attacks its gateway at the link: frames of Ethernet, ARP and neighbour
//! discovery, DHCP, and some of the shared attacks. The gateway is `neap pasta`, which answers for
//! all addresses. The attacker sends by a packet socket at the container's end of the TAP.

use crate::common::{Family, run};
use crate::floods::{Flood, MEMORY, anybody, datagram, syn, udp_datagram_of};
use crate::ground::{Aims, DESCRIPTORS, Foe, Ground, at, turn};
use crate::guests::TOO_MANY;
use crate::host::Host;
use crate::mac::{self, FOE, GATEWAY};
use crate::peers::{RECEIVER, SENDER, endure_on};
use crate::victim::{DISCARD, ECHO, SOURCE, TAP, Victim};
use crate::wire::Wire;
use crate::world;
use bytes::Bytes;
use neap::device::{Frame, Headers, Packet, PacketConfig};
use neap_lab::hostile::{Attack, packet};
use neap_lab::rng::{Ppm, Rng};
use neap_lab::world::{Actor, Outbox};
use neap_stack::wire::checksum::{Checksum, Pseudo};
use neap_stack::wire::ethernet::{self, EtherType};
use neap_stack::wire::icmpv6::{Message, multicast_link};
use neap_stack::wire::{Fragment, Protocol, arp, ipv6};
use neap_tcp::segment::{Flags, Segment};
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::Instant;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

/// Makes a test over one family of each function.
macro_rules! over {
    ($module:ident $family:ident $($name:ident)+) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    let _turn = super::turn();
                    super::super::common::in_namespace(|| {
                        super::$name(crate::common::Family::$family);
                    });
                }
            )+
        }
    };
}

over! { v4 V4
    floods_of_arp floods_of_dhcp frames_that_are_none syns_of_many_stations fragments
    echoes_to_neighbours_that_do_not_exist windows_of_zero
}

over! { v6 V6
    floods_of_discovery floods_of_dhcp frames_that_are_none syns_of_many_stations fragments
    echoes_to_neighbours_that_do_not_exist windows_of_zero tiny_segments
}

/// Runs an attack in the namespace of a container, whose kernel has the honest flow.
fn inside(family: Family, attack: impl FnOnce(Ground) + Send) {
    inside_and_called(family, "none", |_| false, attack);
}

/// As [`inside`]. The gateway publishes `ports`, and the attacker has those of the container's
/// address that `is_called` says.
pub(crate) fn inside_and_called(
    family: Family,
    ports: &str,
    is_called: fn(u16) -> bool,
    attack: impl FnOnce(Ground) + Send,
) {
    let guest = Host::new(true);
    // The honest flow has a neighbour whom nobody replaces: who sits on the link can always take
    // the place of another.
    let victim = Victim::of_tap(family, &guest, ports);
    guest.inside(move || {
        let [own, router] = world::link(family);
        let nodad = if family == Family::V4 { "" } else { "nodad" };
        let ip = if family == Family::V4 { "ip" } else { "ip -6" };
        run(&format!("ip link set {TAP} up"));
        run(&format!("ip address add {} dev {TAP} {nodad}", family.cidr(own)));
        let station = mac::show(GATEWAY);
        run(&format!("ip neighbour replace {router} lladdr {station} dev {TAP} nud permanent"));
        run(&format!("{ip} route replace default via {router} dev {TAP}"));
        let device = Packet::open(&PacketConfig::new(TAP)).expect("a socket").into_device();
        let queue = device.queues.into_iter().next().expect("a queue");
        let wire = Wire::of(mac::attacked_by_packets(queue, move |to| {
            to.ip() != own || is_called(to.port())
        }));
        attack(Ground::on(victim, wire, at(family, ECHO)));
    });
}

/// A flood of frames that goes on until it has reached its aims.
fn endure(family: Family, make: impl FnMut(&mut Rng) -> Option<Frame> + Send, aims: Aims) {
    inside(family, move |ground| {
        Ground { aims, ..ground }.endure(MEMORY, &mut Flood::new(make));
    });
}

/// A host of the container's network, which is none of those that are there.
fn neighbour(family: Family, rng: &mut Rng) -> IpAddr {
    let host = rng.range(16, 254);
    match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, host as u8).into(),
        Family::V6 => {
            let others = rng.below(16) as u16;
            Ipv6Addr::new(0xfd00, 0x192, 0, 0, 0, 1, others, host as u16).into()
        }
    }
}

fn v4(ip: IpAddr) -> Ipv4Addr {
    match ip {
        IpAddr::V4(v4) => v4,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V6(v6) => v6,
        IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
    }
}

/// Requests for every address, replies, claims, probes, and what is none of these.
fn floods_of_arp(family: Family) {
    endure(
        family,
        move |rng| {
            let sender = v4(neighbour(family, rng));
            let station = mac::any(rng);
            let anything = Ipv4Addr::from_bits(rng.next_u64() as u32);
            let target = rng.pick(&[anything, sender, Ipv4Addr::new(192, 0, 2, 1)]);
            let packet = arp::Packet {
                operation: rng.pick(&[arp::Operation::Request, arp::Operation::Reply]),
                sender_link: station,
                sender: rng.pick(&[sender, sender, Ipv4Addr::UNSPECIFIED]),
                target_link: rng.pick(&[[0; 6], GATEWAY]),
                target,
            };
            let mut headers = Headers::default();
            packet.emit(&mut headers);
            let mut bytes = headers.as_slice().to_vec();
            if rng.chance(Ppm::percent(20)) {
                bytes.truncate(rng.below(28) as usize);
            } else if rng.chance(Ppm::percent(20)) {
                bytes[rng.below(8) as usize] = rng.next_u64() as u8;
            }
            let to = rng.pick(&[ethernet::BROADCAST, GATEWAY]);
            Some(mac::between(station, to, EtherType::ARP, &bytes))
        },
        &[&["drop.arp_invalid"]],
    );
}

/// Solicitations and advertisements of neighbours and of routers.
fn floods_of_discovery(family: Family) {
    endure(
        family,
        move |rng| {
            let (source, station) = (v6(neighbour(family, rng)), mac::any(rng));
            let anything = Ipv6Addr::from(u128::from(rng.next_u64()) << 64 | 7);
            let target = rng.pick(&[anything, source, v6(world::link(family)[1])]);
            let link = rng.pick(&[None, Some(station)]);
            let [solicited, replace, router] = [0; 3].map(|_| rng.chance(Ppm::percent(50)));
            // Timers and a prefix for all addresses, which nobody has.
            let mut advertised = vec![0; 8];
            advertised.extend([3, 4, 64, 0xc0, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 0]);
            advertised.extend(source.octets());
            let (message, body) = match rng.below(4) {
                0 => (Message::NeighborSolicitation { target, source_link: link }, Vec::new()),
                1 => {
                    let target_link = link;
                    let said = Message::NeighborAdvertisement {
                        target,
                        target_link,
                        router,
                        solicited,
                        replace,
                    };
                    (said, Vec::new())
                }
                2 => (Message::RouterSolicitation { source_link: link }, Vec::new()),
                _ => {
                    let said = Message::RouterAdvertisement {
                        hop_limit: 1,
                        managed: true,
                        other: true,
                        lifetime: 9000,
                    };
                    (said, advertised)
                }
            };
            let from = rng.pick(&[source, source, Ipv6Addr::UNSPECIFIED]);
            let to =
                rng.pick(&[v6(world::link(family)[1]), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)]);
            let mut headers = Headers::default();
            message.emit(&mut headers, from, to, &Bytes::from(body.clone()).into());
            let mut bytes = [headers.as_slice(), &body].concat();
            if rng.chance(Ppm::percent(20)) {
                // A wrong checksum, or an option without a length.
                let last = bytes.len() - 1;
                bytes[rng.pick(&[2, last])] ^= rng.next_u64() as u8 | 1;
            } else if rng.chance(Ppm::percent(20)) {
                bytes.truncate(rng.range(1, bytes.len() as u64) as usize);
            }
            let header = ipv6::Header {
                source: from,
                destination: to,
                protocol: Protocol::ICMPV6,
                hop_limit: rng.pick(&[255, 255, 255, 64]),
                dscp: 0,
                ecn: neap::device::Ecn::NotEct,
                flow_label: 0,
            };
            let mut headers = Headers::default();
            header.emit(&mut headers, bytes.len() as u16);
            let packet = [headers.as_slice(), &bytes].concat();
            let group = to.octets()[0] == 0xff;
            let station_to = if group { multicast_link(to) } else { GATEWAY };
            Some(mac::between(station, station_to, EtherType::IPV6, &packet))
        },
        &[&["drop.icmp_csum"], &["drop.icmp_invalid"]],
    );
}

/// Messages of clients that nobody has seen before (RFC 2131 section 2, RFC 8415 section 8), and
/// of clients that make no sense.
fn floods_of_dhcp(family: Family) {
    let make = move |rng: &mut Rng| {
        let station = mac::any(rng);
        let mut message = if family == Family::V4 {
            let mut message = vec![0; 236];
            message[..4].copy_from_slice(&[1, 1, 6, 0]);
            message[4..8].copy_from_slice(&(rng.next_u64() as u32).to_be_bytes());
            message[28..34].copy_from_slice(&station);
            let client = rng.next_u64().to_be_bytes();
            message.extend([99, 130, 83, 99, 53, 1, rng.pick(&[1, 3, 4, 7, 8]), 61, 9, 0]);
            message.extend(client);
            message.extend([50, 4, 192, 0, 2, rng.next_u64() as u8, 255]);
            message
        } else {
            let number = rng.next_u64().to_be_bytes();
            let mut message =
                vec![rng.pick(&[1, 3, 4, 5, 6, 8, 11]), number[0], number[1], number[2]];
            message.extend([0, 1, 0, 10, 0, 3, 0, 1]);
            message.extend(station);
            message.extend([0, 3, 0, 12]);
            message.extend([0; 12]);
            message
        };
        if rng.chance(Ppm::percent(20)) {
            message.truncate(rng.below(message.len() as u64) as usize);
        }
        let (from, to): (SocketAddr, SocketAddr) = match family {
            Family::V4 => (([0; 4], 68).into(), ([255; 4], 67).into()),
            Family::V6 => {
                let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
                let own = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, rng.range(16, 99) as u16);
                ((own, 546).into(), (group, 547).into())
            }
        };
        let packet = udp_datagram_of(from, to, &message.into())?.to_bytes();
        let (kind, to) = match to.ip() {
            IpAddr::V4(_) => (EtherType::IPV4, ethernet::BROADCAST),
            IpAddr::V6(group) => (EtherType::IPV6, multicast_link(group)),
        };
        Some(mac::between(station, to, kind, &packet))
    };
    endure(family, make, &[&["GatewayDhcpDropped"]]);
}

/// Frames with tags and lengths, to others, of unknown kinds, and packets with wrong lengths.
fn frames_that_are_none(family: Family) {
    let make = move |rng: &mut Rng| {
        let from = mac::any(rng);
        let packet = packet::emit(anybody(family, rng), at(family, ECHO), syn(rng))?.to_bytes();
        let mut packet = packet.to_vec();
        let ip = if family == Family::V4 { EtherType::IPV4 } else { EtherType::IPV6 };
        let (to, kind) = match rng.below(6) {
            0 => {
                // A tag of a VLAN (IEEE 802.1Q).
                packet = [&[0, rng.next_u64() as u8][..], &ip.0.to_be_bytes(), &packet].concat();
                (GATEWAY, EtherType(rng.pick(&[0x8100, 0x88a8])))
            }
            1 => (GATEWAY, EtherType(rng.below(0x600) as u16)),
            2 => (mac::any(rng), ip),
            3 => (GATEWAY, EtherType(rng.range(0x600, 0xffff) as u16)),
            4 => {
                packet.truncate(rng.below(packet.len() as u64) as usize);
                (GATEWAY, ip)
            }
            _ => {
                // Lengths of headers and of the packet, versions, next headers.
                let at = rng.pick(&[0, 2, 3, 4, 5, 6]);
                packet[at] = rng.next_u64() as u8;
                (GATEWAY, ip)
            }
        };
        Some(mac::between(from, to, kind, &packet))
    };
    endure(family, make, &[&["drop.link_header"], &["drop.unhandled_proto"], &["drop.ip_inhdr"]]);
}

/// Number of the calls of [`Callers`].
const CALL: u32 = 7;

/// Hosts on the link that call, answer no question for their stations, and in the end hang up.
struct Callers<F> {
    flood: Flood<F>,
    called: Rc<RefCell<BTreeSet<SocketAddr>>>,
    to: SocketAddr,
}

impl<F: FnMut(&mut Rng) -> Option<Frame>> Actor for Callers<F> {
    fn receive(&mut self, _: Instant, _: &Bytes, _: &mut Outbox) {}

    fn next(&self) -> Instant {
        self.flood.next()
    }

    fn wake(&mut self, now: Instant, out: &mut Outbox) {
        self.flood.wake(now, out);
    }
}

impl<F: FnMut(&mut Rng) -> Option<Frame>> Foe for Callers<F> {
    fn part(&mut self, _: Instant, out: &mut Outbox) {
        let reset = Segment { seq: SeqNumber(CALL + 1), flags: Flags::RST, ..Segment::default() };
        for &from in self.called.borrow().iter() {
            out.extend(packet::emit(from, self.to, reset.clone()));
        }
    }
}

/// SYNs of hosts on the link that answer no question for their stations.
fn syns_of_many_stations(family: Family) {
    inside(family, move |ground| {
        let called = Rc::<RefCell<BTreeSet<SocketAddr>>>::default();
        let (noted, to) = (called.clone(), at(family, ECHO));
        let flood = Flood::new(move |rng: &mut Rng| {
            let from = SocketAddr::new(neighbour(family, rng), rng.range(1024, 1031) as u16);
            noted.borrow_mut().insert(from);
            let packet = packet::emit(from, to, Segment { seq: SeqNumber(CALL), ..syn(rng) })?;
            Some(mac::around(mac::any(rng), &packet))
        });
        let mut foe = Callers { flood, called, to };
        Ground { aims: TOO_MANY, ..ground }.endure_and(MEMORY, &mut foe, |figures| {
            assert!(figures["GatewayFlows"] <= u64::from(DESCRIPTORS), "{figures:?}");
        });
    });
}

/// Parts of datagrams that do not become whole.
fn fragments(family: Family) {
    let make = move |rng: &mut Rng| {
        let part = Fragment {
            offset: 8 * rng.below(180) as u16,
            more: rng.chance(Ppm::percent(90)),
            identification: (rng.next_u64() as u16).into(),
        };
        let body = vec![0; 8 * rng.range(1, 150) as usize];
        let (from, to) = (neighbour(family, rng), at(family, ECHO).ip());
        let packet = datagram(from, to, Protocol::UDP, Some(part), &body)?;
        Some(mac::around(FOE, &packet))
    };
    endure(family, make, &[&["drop.dup_frag"]]);
}

/// Long pings of the gateway by hosts on the link that do not exist: the answers wait for their
/// stations.
fn echoes_to_neighbours_that_do_not_exist(family: Family) {
    let router = world::link(family)[1];
    let make = move |rng: &mut Rng| {
        let (protocol, kind) = match family {
            Family::V4 => (Protocol::ICMP, 8),
            Family::V6 => (Protocol::ICMPV6, 128),
        };
        let mut body = vec![7; 8 << 10];
        body[..8].copy_from_slice(&[kind, 0, 0, 0, 0, 1, 0, 1]);
        let from = neighbour(family, rng);
        let mut sum = match family {
            Family::V4 => Checksum::new(),
            Family::V6 => Pseudo::of(from, router, protocol)?.with_len(body.len() as u32),
        };
        sum.add(&body);
        body[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let packet = datagram(from, router, protocol, None, &body)?;
        Some(mac::around(mac::any(rng), &packet))
    };
    endure(family, make, &[&["drop.neigh_failed"]]);
}

fn windows_of_zero(family: Family) {
    inside(family, |ground| {
        endure_on(ground, family, Attack::NeverReads, SOURCE, 20, 0, SENDER);
    });
}

fn tiny_segments(family: Family) {
    inside(family, |ground| {
        endure_on(ground, family, Attack::TinySegments, DISCARD, 50, 200_000, RECEIVER);
    });
}
