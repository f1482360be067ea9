//! Whether the gateway tells the namespace that it is a router of IPv6.

use super::namespace::{in_namespace, run};
use super::{NO_PORTS, Namespace, host, join, pasta, succeed};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::Read;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::time::Duration;

/// Types of messages (RFC 4861 section 4).
const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;
/// Twice the longest that a router takes to answer (RFC 4861 section 10, `MAX_RA_DELAY_TIME`).
pub(super) const LONGEST: Duration = Duration::from_secs(1);
/// How long an answer that must come is waited for.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// In the namespace: asks all routers of the link, and says whether one answers in time.
pub(super) fn ask(patience: Duration) {
    let protocol = Some(Protocol::ICMPV6);
    let mut socket = Socket::new(Domain::IPV6, Type::RAW, protocol).expect("a raw socket");
    socket.set_read_timeout(Some(patience)).expect("a timeout");
    socket.set_multicast_hops_v6(255).expect("a hop limit");
    let group: Ipv6Addr = "ff02::2".parse().expect("a group");
    // The interface is the first one beside the loopback.
    let routers = SockAddr::from(SocketAddrV6::new(group, 0, 0, 2));
    socket.send_to(&[SOLICITATION, 0, 0, 0, 0, 0, 0, 0], &routers).expect("sent");
    let mut message = [0; 1500];
    // Other messages of neighbours come, too.
    while socket.read(&mut message).is_ok() && message[0] != ADVERTISEMENT {}
    println!("router {}.", message[0] == ADVERTISEMENT);
}

#[test]
fn routers_are_advertised_unless_the_interface_has_its_addresses_and_routes() {
    in_namespace(|| {
        host();
        // The router of the host is no answer for the namespace.
        let ask = |namespace: &Namespace, program: &str| {
            succeed(namespace.program(program, "127.0.0.1:1"))
        };
        let namespace = Namespace::new();
        let pid = namespace.pid();
        succeed(pasta(&[&["--quiet"], &NO_PORTS[..], &[pid.as_str()]].concat()));
        run(&format!("nsenter -t {pid} -n ip link set eth7 up"));
        // An address that is not there yet sends no question.
        let tentative = format!("nsenter -t {pid} -n ip -6 addr show dev eth7 tentative");
        while !run(&tentative).is_empty() {
            std::thread::yield_now();
        }
        assert!(ask(&namespace, "ask for a router").contains("router true."));
        let namespace = Namespace::new();
        join(&namespace, &NO_PORTS);
        assert!(ask(&namespace, "ask for no router").contains("router false."));
        let show = |what: &str| run(&format!("nsenter -t {} -n ip -6 {what}", namespace.pid()));
        assert_eq!(show("route show proto ra"), "");
        assert_eq!(show("addr show dynamic"), "");
    });
}
