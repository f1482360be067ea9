//! Attacks on a gateway: floods to addresses of others, which it accepts, holds, refuses and
//! ignores.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use neap_lab::hostile::packet;
use neap_lab::rng::Rng;

use crate::common::foreign::addresses;
use crate::common::{Family, eventually, run};
use crate::floods::{Flood, MEMORY, syn, udp_datagram};
use crate::flow::visit;
use crate::ground::{Ground, foe_address, for_each_family};
use crate::victim::{DAYTIME, DISCARD, ECHO, SOURCE};

for_each_family! {
    syns_of_many_sources, syns_of_one_source, syns_that_nobody_decides_about,
    datagrams_of_many_sources, datagrams_of_one_source,
}

/// Any host of any network.
fn any_source(family: Family, rng: &mut Rng) -> SocketAddr {
    let bytes: [u8; 2] = (rng.next_u64() as u16).to_be_bytes();
    let ip = match family {
        Family::V4 => Ipv4Addr::new(10, 66, bytes[0], bytes[1].clamp(1, 254)).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x66, 1, u16::from_be_bytes(bytes), 0, 0, 0, 1).into(),
    };
    SocketAddr::new(ip, rng.range(1024, 65_535) as u16)
}

/// Any port of one host.
fn one_source(family: Family, rng: &mut Rng) -> SocketAddr {
    SocketAddr::new(foe_address(family), rng.range(1024, 65_535) as u16)
}

/// Any address that the gateway takes, at one of these ports.
fn any_destination(family: Family, rng: &mut Rng, ports: &[u16]) -> SocketAddr {
    SocketAddr::new(rng.pick(&addresses(family)), rng.pick(ports))
}

fn ground(family: Family) -> Ground {
    let ground = Ground::of_gateway(family);
    if family == Family::V6 {
        run("ip route add fd00:66:1::/48 dev evil");
    }
    ground
}

/// SYNs of these sources to these ports; new clients are served meanwhile, or at least afterwards.
fn endure(
    family: Family,
    source: fn(Family, &mut Rng) -> SocketAddr,
    ports: &'static [u16],
    serves_newcomers: bool,
) {
    let mut ground = ground(family);
    let echo = SocketAddr::new(addresses(family)[1], ECHO);
    ground.aims = &[&["drop_tcp_pending_full", "drop_tcp_pending_source"]];
    ground.newcomers = serves_newcomers.then_some(echo);
    ground.endure_and(
        MEMORY,
        &mut Flood::new(|rng| {
            let to = any_destination(family, rng, ports);
            packet::emit(source(family, rng), to, syn(rng))
        }),
        |_| {
            eventually(|| visit(echo).is_ok(), |is_served| *is_served);
        },
    );
}

fn syns_of_many_sources(family: Family) {
    endure(family, any_source, &[ECHO, DISCARD, DAYTIME, SOURCE, 1], false);
}

fn syns_of_one_source(family: Family) {
    endure(family, one_source, &[ECHO, DISCARD, DAYTIME, SOURCE, 1], true);
}

fn syns_that_nobody_decides_about(family: Family) {
    endure(family, one_source, &[DISCARD], true);
}

/// Datagrams of these sources, of which one port is echoed and the others are refused by ICMP.
fn endure_datagrams(family: Family, source: fn(Family, &mut Rng) -> SocketAddr) {
    let mut ground = ground(family);
    ground.newcomers = Some(SocketAddr::new(addresses(family)[1], ECHO));
    ground.aims = &[&["drop_rate_limited"]];
    let foe = &mut Flood::new(|rng| {
        let to = any_destination(family, rng, &[ECHO, 1, 2, 3]);
        let from = source(family, rng);
        udp_datagram(rng, from, to)
    });
    ground.endure(MEMORY, foe);
}

fn datagrams_of_many_sources(family: Family) {
    endure_datagrams(family, any_source);
}

fn datagrams_of_one_source(family: Family) {
    endure_datagrams(family, one_source);
}
