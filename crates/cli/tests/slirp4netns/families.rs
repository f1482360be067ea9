//! Families that a guest does not have.

use crate::guest::{Guest, outside};
use crate::namespace::{in_namespace, run};
use serde_json::Value;
use std::net::{SocketAddr, UdpSocket};
use std::thread;

/// In the namespace.
pub(crate) fn send_a_datagram(to: SocketAddr) {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).expect("a port");
    socket.send_to(b"anybody?", to).expect("sent");
}

#[test]
fn ipv6_of_a_guest_that_was_not_given_it_does_not_go_out() {
    in_namespace(|| {
        outside();
        run("ip address add 2001:db8::1/64 dev outside nodad");
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c"]);
        // The guest makes itself a network of IPv6, as if the gateway were its router.
        guest.run("send a datagram", "10.0.2.2:9");
        guest.ip_until("neighbour show 10.0.2.2", "lladdr");
        let gateway = &guest.ip_json("neighbour show 10.0.2.2")[0]["lladdr"];
        let gateway = gateway.as_str().expect("it has answered");
        guest.ip("address add fd00::100/64 dev tap0 nodad");
        for neighbour in ["fd00::1", "fd00::2", "fd00::3"] {
            guest.ip(&format!("neighbour add {neighbour} lladdr {gateway} dev tap0"));
        }
        guest.ip("route add default via fd00::1 dev tap0");
        // A host outside, and what stands for the host and its resolver where there is IPv6.
        let targets = ["[2001:db8::1]:9", "[fd00::2]:9", "[fd00::3]:53"];
        for target in targets {
            guest.run("send a datagram", target);
        }
        let name = format!("{}/slirp4netns", guest.server_pid());
        let counters = loop {
            let shown = guest.look(&["nstat", "-azj", "--name", "slirp4netns"]);
            let shown: Value = serde_json::from_str(&shown).expect("JSON");
            let counters = ["GatewayDeniedDatagrams", "GatewayMappingsMade", "GatewayDnsQuestions"]
                .map(|counter| shown[&name][counter].as_u64().expect("a counter"));
            if counters.iter().sum::<u64>() == 1 + targets.len() as u64 {
                break counters;
            }
            thread::yield_now();
        };
        assert_eq!(counters, [3, 1, 0]);
    });
}
