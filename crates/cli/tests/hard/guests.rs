//! Guests that use up what a gateway has of the machine: descriptors, connections, questions.

use crate::common::{Family, run};
use crate::floods::{Flood, MEMORY, anybody, datagram, syn, udp_datagram_of};
use crate::ground::{Aims, Figures, Ground, foe_address, for_family};
use crate::victim::{DAYTIME, ECHO};
use crate::world::DNS;
use bytes::Bytes;
use neap::device::Frame;
use neap_lab::hostile::packet;
use neap_lab::rng::Rng;
use neap_stack::wire::Protocol;
use neap_stack::wire::checksum::{Checksum, Pseudo};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

mod v4 {
    super::for_family! { V4
        syns_to_many_destinations syns_of_one_guest syns_to_hosts_that_do_not_answer
        datagrams_of_many_ports questions_without_answers pings_of_many_identifiers
    }
}

mod v6 {
    super::for_family! { V6
        syns_to_many_destinations syns_of_one_guest syns_to_hosts_that_do_not_answer
        datagrams_of_many_ports questions_without_answers pings_of_many_identifiers
    }
}

/// Descriptors of the gateway are [`DESCRIPTORS`](crate::ground::DESCRIPTORS), of which it keeps 64
/// for itself and gives four fifths to datagrams.
const MOST_MAPPINGS: u64 = (1024 - 64) / 5 * 4;
/// Most identifiers of pings.
const MOST_PINGS: u64 = 1024;

/// Any host behind the gateway.
fn any_host(family: Family, rng: &mut Rng) -> IpAddr {
    let last = rng.range(2, 254) as u8;
    match family {
        Family::V4 => Ipv4Addr::new(10, 9, 0, last).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

/// Any port of the attacker's own address.
fn any_port(family: Family, rng: &mut Rng) -> SocketAddr {
    SocketAddr::new(foe_address(family), rng.range(1024, 65_535) as u16)
}

/// An attack that goes on until it has reached its aims.
fn endure(
    family: Family,
    make: impl FnMut(&mut Rng) -> Option<Frame>,
    aims: Aims,
    look: impl FnOnce(&Figures),
) {
    let ground = Ground { aims, ..Ground::new(family) };
    ground.endure_and(MEMORY, &mut Flood::new(make), look);
}

/// What counts SYNs that were too many: of all guests, of one, and of what descriptors there are.
pub(crate) const TOO_MANY: Aims =
    &[&["GatewayFull", "drop.tcp_pending_full", "drop.tcp_pending_source"]];

fn syns_to_many_destinations(family: Family) {
    let make = move |rng: &mut Rng| {
        let to = SocketAddr::new(any_host(family, rng), rng.pick(&[ECHO, DAYTIME, 1]));
        packet::emit(anybody(family, rng), to, syn(rng))
    };
    endure(family, make, TOO_MANY, |_| {});
}

fn syns_of_one_guest(family: Family) {
    let make = move |rng: &mut Rng| {
        let to = SocketAddr::new(any_host(family, rng), ECHO);
        packet::emit(any_port(family, rng), to, syn(rng))
    };
    endure(family, make, TOO_MANY, |_| {});
}

fn syns_to_hosts_that_do_not_answer(family: Family) {
    let ground = Ground { aims: TOO_MANY, ..Ground::new(family) };
    // The world forwards nothing.
    let network = family.text("10.11.0.0", "fd00:11::");
    run(&format!("ip route add {} dev t0", family.cidr(network)));
    let silent = SocketAddr::new(family.text("10.11.0.9", "fd00:11::9"), ECHO);
    let foe = &mut Flood::new(|rng| packet::emit(any_port(family, rng), silent, syn(rng)));
    ground.endure(MEMORY, foe);
}

fn datagrams_of_many_ports(family: Family) {
    let make = move |rng: &mut Rng| {
        let to = SocketAddr::new(any_host(family, rng), rng.pick(&[ECHO, 1]));
        udp_datagram_of(anybody(family, rng), to, &Bytes::from_static(b"anybody?"))
    };
    endure(family, make, &[&["GatewayFullMappings"]], |figures| {
        assert!(figures["GatewayMappings"] <= MOST_MAPPINGS, "{figures:?}");
    });
}

/// Questions for names that nobody has asked for before (RFC 1035 section 4.1).
fn questions_without_answers(family: Family) {
    let make = move |rng: &mut Rng| {
        let id = (rng.next_u64() as u16).to_be_bytes();
        let name = format!("{:016x}", rng.next_u64());
        let head = [id[0], id[1], 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 16];
        let question = [&head[..], name.as_bytes(), &[0, 0, 1, 0, 1]].concat();
        let to = SocketAddr::new(any_host(family, rng), DNS);
        udp_datagram_of(anybody(family, rng), to, &question.into())
    };
    endure(family, make, &[&["GatewayFullDns"]], |_| {});
}

fn pings_of_many_identifiers(family: Family) {
    let make = move |rng: &mut Rng| {
        let (protocol, kind) = match family {
            Family::V4 => (Protocol::ICMP, 8),
            Family::V6 => (Protocol::ICMPV6, 128),
        };
        let id = (rng.next_u64() as u16).to_be_bytes();
        let mut body = vec![kind, 0, 0, 0, id[0], id[1], 0, 1, 7, 7, 7, 7];
        let (from, to) = (anybody(family, rng).ip(), any_host(family, rng));
        let mut sum = match family {
            Family::V4 => Checksum::new(),
            Family::V6 => Pseudo::of(from, to, protocol)?.with_len(body.len() as u32),
        };
        sum.add(&body);
        body[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        datagram(from, to, protocol, None, &body)
    };
    endure(family, make, &[&["GatewayFullEchoes"]], |figures| {
        assert!(figures["GatewayEchoesOut"] <= figures["GatewayEchoesIn"] + MOST_PINGS);
    });
}
