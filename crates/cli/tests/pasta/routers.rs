//! Whether the gateway tells the namespace that it is a router of IPv6.

use super::namespace::{in_namespace, run};
use super::{NO_PORTS, Namespace, host, join, pasta, succeed};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6, TcpListener};
use std::thread;
use std::time::Duration;

/// Types of messages (RFC 4861 section 4).
const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;
/// Hosts get addresses by DHCPv6 (RFC 4861 section 4.2).
const MANAGED: u8 = 0x80;
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
    println!("managed {}.", message[5] & MANAGED != 0);
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
        let said = ask(&namespace, "ask for a router");
        assert!(said.contains("router true.") && said.contains("managed true."), "{said}");
        let namespace = Namespace::new();
        join(&namespace, &NO_PORTS);
        assert!(ask(&namespace, "ask for no router").contains("router false."));
        let show = |what: &str| run(&format!("nsenter -t {} -n ip -6 {what}", namespace.pid()));
        assert_eq!(show("route show proto ra"), "");
        assert_eq!(show("addr show dynamic"), "");
    });
}

/// A server of the host.
fn serve(address: &str) -> String {
    let address: IpAddr = address.parse().expect("an address");
    let listener = TcpListener::bind((address, 0)).expect("a port");
    let server = listener.local_addr().expect("an address");
    thread::spawn(move || listener.incoming().for_each(drop));
    server.to_string()
}

#[test]
fn a_guest_that_makes_its_own_address_is_answered() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        let pid = namespace.pid();
        succeed(pasta(&[&["--quiet"], &NO_PORTS[..], &[pid.as_str()]].concat()));
        let inside = |line: &str| run(&format!("nsenter -t {pid} -n {line}"));
        inside("ip link set eth7 up");
        // Of the prefix that is advertised.
        let show = "ip -6 -o address show dev eth7 scope global";
        while inside(show).is_empty() || inside(&format!("{show} tentative")).contains("inet6") {
            thread::yield_now();
        }
        assert!(!inside(show).contains("2001:db8::10/"), "it has the address of the host");
        run("ip address add 2001:db8:7::7/64 dev far nodad");
        succeed(namespace.program("connect in the end", &serve("2001:db8:7::7")));
    });
}

#[test]
fn a_guest_of_another_address_is_answered_where_the_router_is_in_no_network_of_it() {
    in_namespace(|| {
        host();
        run("ip address add 203.0.113.7/24 dev far");
        let namespace = Namespace::new();
        let pid = namespace.pid();
        let options = ["-q", "-4", "-a", "192.0.2.77", "-n", "24", "-g", "198.51.100.1"];
        succeed(pasta(&[&options[..], &NO_PORTS, &[pid.as_str()]].concat()));
        for line in [
            "link set eth7 up",
            "address add 192.0.2.99/24 dev eth7",
            "route add default via 198.51.100.1 dev eth7 onlink",
        ] {
            run(&format!("nsenter -t {pid} -n ip {line}"));
        }
        succeed(namespace.program("connect in the end", &serve("203.0.113.7")));
    });
}
