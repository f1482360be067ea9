//! Routers in a row between the gateway and a server: hop limits, path MTU, pings, and what the
//! routers say of datagrams.

use super::host::{Host, await_links};
use super::namespace::{in_namespace, run};
use super::{finish, gateway, in_sandbox};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

/// The server.
const SERVER: &str = "203.0.113.2";
const SERVER_V6: &str = "2001:db8:3::2";
/// Its port of datagrams.
const PORT: u16 = 7;
/// Error number of Linux: a datagram is longer than the way takes.
const EMSGSIZE: i32 = 90;
/// MTU of the link before the server.
const MTU: usize = 1400;
/// What a guest sees of the way: the gateway, the two routers, the server.
const HOPS: [&str; 4] = ["10.0.2.2", "192.0.2.2", "198.51.100.2", SERVER];
const HOPS_V6: [&str; 4] = ["fd00::2", "2001:db8:1::2", "2001:db8:2::2", SERVER_V6];

/// The hosts behind this one, which is the gateway's. They are gone when this is.
struct Path {
    routers: [Host; 2],
    server: Host,
}

/// Addresses of the ends of the links, from here to the server.
const LINKS: [[&str; 4]; 3] = [
    ["192.0.2.1/24", "2001:db8:1::1/64", "192.0.2.2/24", "2001:db8:1::2/64"],
    ["198.51.100.1/24", "2001:db8:2::1/64", "198.51.100.2/24", "2001:db8:2::2/64"],
    ["203.0.113.1/24", "2001:db8:3::1/64", "203.0.113.2/24", "2001:db8:3::2/64"],
];

impl Path {
    fn new() -> Self {
        let path = Self { routers: [Host::new(true), Host::new(true)], server: Host::new(true) };
        let Self { routers: [first, second], server } = &path;
        run("ip link set lo up");
        let hosts = [None, Some(first), Some(second), Some(server)];
        for (index, [near, near_v6, far, far_v6]) in LINKS.into_iter().enumerate() {
            let (left, right) = (hosts[index], hosts[index + 1].expect("only the first is here"));
            let name = if left.is_some() { "moving" } else { "right" };
            run(&format!("ip link add {name} type veth peer name left"));
            run(&format!("ip link set left netns {}", right.pid()));
            on(right, || up("left", far, far_v6));
            if let Some(left) = left {
                run(&format!("ip link set moving netns {} name right", left.pid()));
            }
            at(left, || up("right", near, near_v6));
        }
        run("ip route add default via 192.0.2.2");
        run("ip -6 route add default via 2001:db8:1::2");
        for (host, ways) in [
            (first, ["default via 198.51.100.2", "default via 2001:db8:2::2"]),
            (second, ["192.0.2.0/24 via 198.51.100.1", "2001:db8:1::/64 via 2001:db8:2::1"]),
            (server, ["default via 203.0.113.1", "default via 2001:db8:3::1"]),
        ] {
            on(host, || {
                ways.iter().for_each(|way| drop(run(&format!("ip route add {way}"))));
                run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
                // Every error is sent: the test asks for many at once.
                run("sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0");
            });
        }
        await_links(&["right"]);
        for router in [first, second] {
            on(router, || await_links(&["left", "right"]));
        }
        on(server, || await_links(&["left"]));
        on(second, || run(&format!("ip link set right mtu {MTU}")));
        on(server, || run(&format!("ip link set left mtu {MTU}")));
        path
    }

    /// The server tells who has sent it a datagram how long that was.
    fn tell_lengths(&self) {
        for address in [SERVER, SERVER_V6] {
            let ip: IpAddr = address.parse().expect("an address");
            let socket = self.server.inside(|| UdpSocket::bind((ip, PORT)).expect("a port"));
            thread::spawn(move || {
                let mut data = [0; 1 << 16];
                while let Ok((count, from)) = socket.recv_from(&mut data) {
                    socket.send_to(count.to_string().as_bytes(), from).expect("sent");
                }
            });
        }
    }
}

fn on<T: Send>(host: &Host, what: impl FnOnce() -> T + Send) -> T {
    host.inside(what)
}

fn at(host: Option<&Host>, what: impl FnOnce() + Send) {
    match host {
        Some(host) => on(host, what),
        None => what(),
    }
}

fn up(link: &str, address: &str, address_v6: &str) {
    run(&format!("ip address add {address} dev {link}"));
    run(&format!("ip address add {address_v6} dev {link} nodad"));
    // Link-local addresses, which routers ask their neighbours from, are there at once.
    run(&format!("sysctl -qw net.ipv6.conf.{link}.accept_dad=0"));
    run(&format!("ip link set {link} up"));
    run("ip link set lo up");
}

/// Lets every user send pings, or none.
fn allow_pings(does: bool) {
    let range = if does { "0 2147483647" } else { "1 0" };
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", range).expect("a setting");
}

/// What a shell in a sandbox prints, and what the gateway says.
fn shell(script: &str, options: &[&str]) -> (String, String) {
    let mut arguments = options.to_vec();
    arguments.extend(["--", "sh", "-c", script]);
    let (_, stdout, stderr) = finish(gateway(&arguments));
    (stdout, stderr)
}

/// The hops that `traceroute` shows.
fn hops(options: &str, to: &str) -> Vec<String> {
    // One at a time, as the gateway limits the rate of its own errors.
    let (text, stderr) = shell(&format!("traceroute -n -q 1 -N 1 -w 30 -m 8 {options} {to}"), &[]);
    let lines = text.lines().skip(1);
    let hops: Vec<_> =
        lines.filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)).collect();
    assert!(!hops.is_empty(), "{text}{stderr}");
    hops
}

#[test]
fn traceroute_shows_the_gateway_and_the_routers_behind_it() {
    in_namespace(|| {
        let _path = Path::new();
        allow_pings(true);
        for options in ["", "-I", "-T"] {
            assert_eq!(hops(options, SERVER), HOPS, "{options}");
            assert_eq!(hops(options, SERVER_V6), HOPS_V6, "{options}");
        }
    });
}

#[test]
fn pings_pass_where_the_host_lets_them() {
    in_namespace(|| {
        let path = Path::new();
        allow_pings(true);
        for (to, options, received) in [
            (SERVER, "", 3),
            (SERVER_V6, "", 3),
            // They are cut for the host's own link. Routers cut the fragments of IPv4 only, so the
            // first one of IPv6 is lost and tells how long they may be.
            (SERVER, "-s 8000", 3),
            (SERVER_V6, "-s 8000", 2),
        ] {
            // With more than one, ping waits for the last no longer than the others took.
            let one = format!("ping -n -c 1 -W 30 {options} {to}");
            let (text, _) = shell(&format!("{one}; {one}; {one}"), &[]);
            assert_eq!(text.matches(" 1 received").count(), received, "{text}");
        }
        let (text, _) = shell(&format!("ping -n -c 1 -t 2 -W 30 {SERVER}"), &[]);
        assert!(text.contains("From 192.0.2.2 ") && text.contains("exceeded"), "{text}");
        // The policy, a way that does not exist, and one that a router does not have.
        let (text, _) = shell(&format!("ping -n -c 1 -W 30 {SERVER}"), &["--deny", SERVER]);
        assert!(text.contains(&format!("From {SERVER} ")) && text.contains("iltered"), "{text}");
        run("ip route add unreachable 198.18.0.0/15");
        let (text, _) = shell("ping -n -c 1 -W 30 198.18.0.1", &[]);
        assert!(text.contains("Unreachable"), "{text}");
        on(&path.routers[1], || run("ip route add prohibit 198.19.0.0/16"));
        run("ip route add 198.19.0.0/16 via 192.0.2.2");
        let (text, _) = shell("ping -n -c 1 -W 30 198.19.0.1", &[]);
        assert!(text.contains("From 198.51.100.2 ") && text.contains("iltered"), "{text}");

        allow_pings(false);
        let (text, said) = shell(&format!("ping -n -c 1 -W 1 {SERVER}"), &[]);
        assert!(text.contains("0 received"), "{text}");
        assert_eq!(said.matches("ping_group_range").count(), 1, "{said}");
    });
}

#[test]
fn guests_learn_the_path_mtu() {
    in_namespace(|| {
        let path = Path::new();
        path.tell_lengths();
        // Before the second sandbox the host knows the path already.
        for address in [SERVER, SERVER_V6, SERVER, SERVER_V6] {
            let server = SocketAddr::new(address.parse().expect("an address"), PORT);
            in_sandbox("path mtu", &server.to_string(), &[]);
        }
    });
}

#[test]
fn what_only_the_link_of_the_host_is_too_small_for_is_cut_outside() {
    in_namespace(|| {
        let path = Path::new();
        on(&path.routers[1], || run("ip link set right mtu 1500"));
        on(&path.server, || run("ip link set left mtu 1500"));
        path.tell_lengths();
        allow_pings(true);
        for address in [SERVER, SERVER_V6] {
            let server = SocketAddr::new(address.parse().expect("an address"), PORT);
            in_sandbox("long datagrams", &server.to_string(), &[]);
            // Linux asks that what fits the interface of the sandbox is not cut.
            for size in [5000, 1000] {
                let (said, _) = shell(&format!("ping -n -c 1 -s {size} -W 30 {address}"), &[]);
                assert!(said.contains(" 1 received"), "{said}");
            }
        }
    });
}

#[test]
fn pings_that_may_not_be_cut_are_not_cut_and_the_guest_is_told() {
    in_namespace(|| {
        let _path = Path::new();
        allow_pings(true);
        for (to, headers) in [(SERVER, 28), (SERVER_V6, 48)] {
            // Longer than the link of a router takes. The second one is known to be too long before
            // it leaves.
            for (sizes, received) in [([MTU; 2], 0), ([MTU - headers; 2], 2)] {
                let pings = sizes.map(|size| format!("ping -n -c 1 -M do -s {size} -W 30 {to}"));
                // The kernel of a sandbox learns, and says so itself next time: each has its own.
                let said = pings.map(|ping| shell(&format!("{ping} 2>&1"), &[]).0).concat();
                assert_eq!(said.matches(" 1 received").count(), received, "{said}");
                let said = said.replace("mtu = ", "mtu=");
                assert_eq!(said.matches("mtu=1400").count(), 2 - received, "{said}");
            }
        }
    });
}

/// The machine's own link gets another MTU, and then it is gone for a moment.
#[test]
fn a_transfer_goes_on_while_the_link_of_the_host_changes() {
    in_namespace(|| {
        let path = Path::new();
        let listener = on(&path.server, || TcpListener::bind((SERVER, 0)).expect("a port"));
        let server = listener.local_addr().expect("an address");
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut bytes = Vec::new();
                let mut read_more = |stream: &TcpStream| {
                    stream.take(1 << 20).read_to_end(&mut bytes).expect("received")
                };
                read_more(&stream);
                run("ip link set right mtu 1300");
                read_more(&stream);
                on(&path.routers[0], || {
                    run("ip link set left down");
                    run("ip link set left up");
                });
                read_more(&stream);
                run("ip link set right mtu 9000");
                stream.read_to_end(&mut bytes).expect("received");
                stream.write_all(&bytes).expect("sent");
            });
            in_sandbox("echo", &server.to_string(), &[]);
        });
    });
}

/// A socket that only `server` answers to.
fn connected(server: SocketAddr) -> UdpSocket {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).expect("a socket");
    socket.connect(server).expect("a route");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    socket
}

/// Whether the kernel of the sandbox may cut what a socket sends.
fn set_may_cut(socket: &UdpSocket, may: bool) {
    let set = if socket.local_addr().expect("an address").is_ipv4() {
        use Ipv4PathMtuDiscovery as Discovery;
        set_ip_mtu_discover(socket, if may { Discovery::WANT } else { Discovery::DO })
    } else {
        use Ipv6PathMtuDiscovery as Discovery;
        set_ipv6_mtu_discover(socket, if may { Discovery::WANT } else { Discovery::DO })
    };
    set.expect("a setting");
}

/// Sends a datagram of so many bytes, and is told that they have arrived.
fn passes(socket: &UdpSocket, length: usize) {
    socket.send(&vec![7; length]).expect("it fits");
    let mut answer = [0; 10];
    let count = socket.recv(&mut answer).expect("it arrives");
    assert_eq!(String::from_utf8_lossy(&answer[..count]), length.to_string());
}

/// In the sandbox: datagrams that fit its own interface alone, from a socket of which nothing was
/// asked.
pub(super) fn send_long(server: SocketAddr) {
    let socket = connected(server);
    for length in [4000, 4000, 4000, 1000, 32_730, 2000, 4000] {
        passes(&socket, length);
    }
    // Several of them at once.
    let lengths = [30_000, 30_000, 30_000, 1000];
    for length in lengths {
        socket.send(&vec![7; length]).expect("it fits");
    }
    for length in lengths {
        let mut answer = [0; 10];
        let count = socket.recv(&mut answer).expect("it arrives");
        assert_eq!(String::from_utf8_lossy(&answer[..count]), length.to_string());
    }
}

/// In the sandbox: datagrams that may not be cut become shorter, others are cut.
pub(super) fn learn_mtu(server: SocketAddr) {
    let socket = connected(server);
    set_may_cut(&socket, false);
    // More than the link of the router takes, and not more than that of the host.
    let answer = socket.send(&[7; 1420]).and_then(|_| socket.recv(&mut [0; 10]));
    let error = answer.expect_err("it is too long");
    assert_eq!(error.raw_os_error(), Some(EMSGSIZE), "{error}");
    let headers = if server.is_ipv4() { 28 } else { 48 };
    for (length, may) in [(MTU - headers, false), (5000, true), (20_000, true)] {
        set_may_cut(&socket, may);
        passes(&socket, length);
    }
}
