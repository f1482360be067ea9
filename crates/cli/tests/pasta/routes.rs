//! Hosts of many routes and addresses, and options that take a part of them only.

use super::folder::Folder;
use super::namespace::{in_namespace, run};
use super::{NO_PORTS, SHOW, finish, host, network, pasta};

/// The default route of the namespace when it is that of the host.
const DEFAULT: &str = "route default via 192.0.2.1 dev eth7";

/// A second interface of the host, which has no default route.
fn second_interface() {
    run("ip link add eth8 type veth peer name far8");
    run("ip link set far8 up");
    run("ip link set eth8 up");
    run("ip address add 198.51.100.10/24 dev eth8");
}

/// Addresses and routes of a command's namespace.
fn seen(options: &[&str]) -> Vec<String> {
    network(pasta(&[&["--config-net", "-q"], options, &NO_PORTS, &SHOW].concat()))
}

#[track_caller]
fn check(seen: &[String], expected: &[&str]) {
    for line in expected {
        assert!(seen.iter().any(|other| other == line), "{line} is missing: {seen:?}");
    }
}

/// So many routes to networks of an interface.
fn add_routes(count: u32, interface: &str) {
    let line = |i| format!("route add 10.{}.{}.0/24 dev {interface}\n", i >> 8, i & 255);
    let folder = Folder::new("pasta-routes");
    let file = folder.write("batch", &(0..count).map(line).collect::<String>());
    run(&format!("ip -batch {file}"));
}

#[test]
fn another_address_may_have_the_routes_of_the_host() {
    in_namespace(|| {
        host();
        check(&seen(&["-a", "192.0.2.77"]), &["\"192.0.2.77\"/24", DEFAULT]);
    });
}

#[test]
fn one_address_may_have_the_routes_of_several() {
    in_namespace(|| {
        host();
        run("ip address add 198.51.100.5/24 dev eth7");
        let seen = seen(&["--no-copy-addrs"]);
        check(&seen, &[DEFAULT, "route 198.51.100.0/24 via - dev eth7"]);
    });
}

#[test]
fn of_a_route_by_two_interfaces_one_way_is_left() {
    in_namespace(|| {
        host();
        second_interface();
        let hops = "nexthop via 192.0.2.1 dev eth7 nexthop via 198.51.100.1 dev eth8";
        run(&format!("ip route replace default {hops}"));
        check(&seen(&[]), &[DEFAULT]);
        check(&seen(&["-i", "eth8"]), &["route default via 198.51.100.1 dev eth8"]);
    });
}

#[test]
fn many_routes_of_another_interface_are_no_hindrance() {
    in_namespace(|| {
        host();
        second_interface();
        add_routes(4200, "eth8");
        check(&seen(&[]), &[DEFAULT]);
    });
}

#[test]
fn of_too_many_routes_the_default_route_is_left() {
    in_namespace(|| {
        host();
        add_routes(2100, "eth7");
        let seen = seen(&["-4"]);
        check(&seen, &[DEFAULT]);
        assert!(seen.len() < 10, "{seen:?}");
    });
}

#[test]
fn a_route_that_leads_nowhere_is_left_out_and_told_of() {
    in_namespace(|| {
        host();
        // The kernel keeps a route whose router it can no longer reach.
        run("ip route add 10.99.0.0/24 dev eth7");
        run("ip route add 203.0.113.0/24 via 10.99.0.1");
        run("ip route del 10.99.0.0/24 dev eth7");
        let command = pasta(&[&["--config-net"], &NO_PORTS[..], &SHOW].concat());
        let (status, stdout, stderr) = finish(command);
        assert!(
            status == Some(0) && !stdout.contains("203.0.113.0"),
            "{status:?} {stdout}{stderr}"
        );
        assert!(stderr.contains("does not take: 1 "), "{stderr}");
        check(&seen(&[]), &[DEFAULT]);
    });
}

#[test]
fn an_address_that_the_host_gives_up_is_none_of_the_namespace() {
    in_namespace(|| {
        host();
        run("ip address add 2001:db8::dead/64 dev eth7 nodad preferred_lft 0");
        let seen = seen(&[]);
        check(&seen, &["\"2001:db8::10\"/64"]);
        assert!(!seen.iter().any(|line| line.contains("2001:db8::dead")), "{seen:?}");
    });
}
