//! Options, each by its effect.

use super::folder::Folder;
use super::namespace::{in_namespace, run};
use super::own::metrics;
use super::published::Server;
use super::{NO_PORTS, Namespace, answer_in_the_end, finish, host, join, network, pasta};
use super::{start_server, succeed};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// A question that nobody has answered for so long is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// In the namespace, and outside: asks until there is an answer.
pub(super) fn ask_by_datagrams(server: SocketAddr) {
    answer_to("0.0.0.0", server);
    println!("answered.");
}

/// Asks by UDP from an address until there is an answer, which it returns.
pub(super) fn answer_to(from: &str, server: SocketAddr) -> String {
    answer_by(&UdpSocket::bind((from, 0)).expect("a port"), server)
}

/// Asks by UDP from a socket until there is an answer, which it returns.
pub(super) fn answer_by(socket: &UdpSocket, server: SocketAddr) -> String {
    socket.set_read_timeout(Some(AGAIN)).expect("a timeout");
    let mut answer = [0; 100];
    loop {
        socket.send_to(b"question", server).expect("sent");
        if let Ok((count, sender)) = socket.recv_from(&mut answer) {
            assert_eq!(sender, server);
            return String::from_utf8_lossy(&answer[..count]).into_owned();
        }
    }
}

/// In the namespace, and outside: answers all questions.
pub(super) fn answer_datagrams(at: SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a port");
    println!("listening");
    while let Ok((_, client)) = socket.recv_from(&mut [0; 100]) {
        // Who has asked may be gone.
        let _ = socket.send_to(b"answer", client);
    }
}

/// In the namespace: nobody has the UDP port.
pub(super) fn take_a_port(at: SocketAddr) {
    drop(UdpSocket::bind(at).expect("nobody has the port"));
}

/// A program of this binary in a namespace, until this is dropped.
struct Running(std::process::Child);

impl Running {
    fn start(namespace: &Namespace, program: &str, target: &str) -> Self {
        let mut command = namespace.program(program, target);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("it runs"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn who_listens_on_the_host_is_followed_in_the_namespace_and_the_other_way_round() {
    in_namespace(|| {
        host();
        let to = |text: &str| text.parse().expect("an address");
        let listener = TcpListener::bind("127.0.0.1:7777").expect("a port");
        thread::spawn(move || listener.incoming().for_each(drop));
        thread::spawn(move || answer_datagrams(to("127.0.0.1:7778")));
        let namespace = Namespace::new();
        let _server = Running::start(&namespace, "answer datagrams", "0.0.0.0:5557");
        join(&namespace, &["-t", "none", "-u", "auto", "-T", "auto", "-U", "auto"]);
        succeed(namespace.program("connect in the end", "127.0.0.1:7777"));
        succeed(namespace.program("ask by datagrams", "127.0.0.1:7778"));
        ask_by_datagrams(to("127.0.0.1:5557"));
    });
}

#[test]
fn a_tcp_port_that_is_listed_is_free_for_udp_in_the_namespace() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        join(&namespace, &["-t", "8080", "-u", "auto", "-T", "none", "-U", "auto"]);
        succeed(namespace.program("take a port", "0.0.0.0:8080"));
    });
}

#[test]
fn a_tcp_port_of_the_namespace_that_is_that_of_the_host_is_free_for_udp_on_the_host() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        join(&namespace, &["-t", "none", "-u", "auto", "-T", "7777", "-U", "none"]);
        for any in ["0.0.0.0:7777", "[::]:7777"] {
            take_a_port(any.parse().expect("an address"));
        }
    });
}

#[test]
fn a_tcp_port_that_was_published_is_free_for_udp_in_the_namespace() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        join(&namespace, &["-t", "auto", "-u", "auto", "-T", "auto", "-U", "auto"]);
        // UDP of the host leaves it out, as its kernel gives it to clients.
        let _server = Server::start(&namespace, "answer two", "0.0.0.0:40000");
        // Who connects to such a port may get it for itself, and be connected with itself.
        while run("ss -Hltn sport = :40000").is_empty() {
            thread::yield_now();
        }
        // The look that has published it is over when the next one publishes another port.
        let mut other = start_server(&namespace, "0.0.0.0:5555");
        answer_in_the_end("127.0.0.1:5555");
        other.wait().expect("it ends");
        succeed(namespace.program("take a port", "0.0.0.0:40000"));
    });
}

#[test]
fn udp_leaves_out_ports_of_clients_that_somebody_listens_at_by_tcp_on_the_host() {
    in_namespace(|| {
        host();
        let _listener = TcpListener::bind("127.0.0.1:40000").expect("a port");
        let namespace = Namespace::new();
        join(&namespace, &["-t", "none", "-u", "none", "-T", "none", "-U", "auto"]);
        succeed(namespace.program("take a port", "0.0.0.0:40000"));
    });
}

#[test]
fn protocols_that_are_switched_off_do_not_pass() {
    in_namespace(|| {
        host();
        for (port, option, program, counter) in [
            (9101, "--no-tcp", "ask", "GatewayDenied_total"),
            (9102, "--no-udp", "ask by datagrams", "GatewayDeniedDatagrams_total"),
        ] {
            let (namespace, address) = (Namespace::new(), format!("127.0.0.1:{port}"));
            join(&namespace, &[&[option, "--metrics", &address], &NO_PORTS[..]].concat());
            let _client = Running::start(&namespace, program, "192.0.2.99:7");
            let is_counted = |line: &str| {
                line.contains(counter) && !line.starts_with('#') && !line.ends_with(" 0")
            };
            let text = loop {
                let text = metrics(&address);
                if text.lines().any(is_counted) {
                    break text;
                }
                thread::yield_now();
            };
            for opened in ["GatewayOpened_total 0\n", "GatewayMappingsMade_total 0\n"] {
                assert!(text.contains(opened), "{option}: {text}");
            }
        }
    });
}

/// Whether a command line succeeds in a namespace.
fn succeeds(namespace: &Namespace, line: &str) -> bool {
    let mut command = Command::new("nsenter");
    command.args(["-t", &namespace.pid(), "-n"]).args(line.split(' '));
    finish(command).0 == Some(0)
}

/// A wrong answer comes at once, so it takes no long wait to tell that none comes.
#[test]
fn what_helps_guests_to_a_network_can_be_switched_off() {
    in_namespace(|| {
        host();
        let start = |option: Option<&str>| {
            let namespace = Namespace::new();
            join(&namespace, &[&NO_PORTS[..], option.as_slice()].concat());
            namespace
        };
        if Command::new("busybox").arg("udhcpc").arg("--help").output().is_ok() {
            let client = "busybox udhcpc -i eth7 -nq -s /bin/true -t 3 -T";
            assert!(succeeds(&start(None), &format!("{client} 60")));
            assert!(!succeeds(&start(Some("--no-dhcp")), &format!("{client} 1")));
        }
        let said = succeed(start(Some("--no-dhcpv6")).program("solicit in vain", "127.0.0.1:1"));
        assert!(said.contains("no offer."), "{said}");
        // The gateway stands for all addresses, whoever has them.
        let is_known = |namespace: &Namespace| {
            let _ = succeeds(namespace, "ping -c 1 -W 1 2001:db8::99");
            let line = format!("nsenter -t {} -n ip -6 neighbour", namespace.pid());
            run(&line).contains("2001:db8::99 dev eth7 lladdr")
        };
        let namespace = start(None);
        while !is_known(&namespace) {}
        assert!(!is_known(&start(Some("--no-ndp"))));
    });
}

#[test]
fn the_interface_has_the_ethernet_address_and_the_routes_that_are_asked_for() {
    in_namespace(|| {
        host();
        run("ip route add 203.0.113.0/24 via 192.0.2.2");
        let mac = "02:00:5e:00:53:07";
        let show = ["--", "ip", "-o", "link", "show", "eth7"];
        let link = succeed(pasta(&[&["-q", "--ns-mac-addr", mac], &NO_PORTS[..], &show].concat()));
        assert!(link.contains(mac), "{link}");
        let routes = |option: Option<&str>| {
            let base = ["--config-net", "-q"];
            network(pasta(&[&base, option.as_slice(), &NO_PORTS[..], &super::SHOW].concat()))
        };
        let has =
            |routes: &[String], start: &str| routes.iter().any(|line| line.starts_with(start));
        let (all, few) = (routes(None), routes(Some("--no-copy-routes")));
        assert!(has(&all, "route 203.0.113.0/24 via 192.0.2.2"), "{all:?}");
        assert!(!has(&few, "route 203.0.113.0/24"), "{few:?}");
        assert!(has(&few, "route default via 192.0.2.1"), "{few:?}");
    });
}

#[test]
fn ports_are_bound_where_the_list_says() {
    in_namespace(|| {
        host();
        for (list, bound) in [
            ("8080", &["0.0.0.0:8080"][..]),
            ("%eth7/8080:80", &["0.0.0.0%eth7:8080"]),
            ("192.0.2.10%eth7/8080", &["192.0.2.10%eth7:8080"]),
            ("127.0.0.1/9000-9003,~9001-9002", &["127.0.0.1:9000", "127.0.0.1:9003"]),
        ] {
            let (folder, namespace) = (Folder::new("pasta-ports"), Namespace::new());
            let file = folder.path().join("pid");
            let options = ["-4", "-t", list, "-u", "none", "-T", "none", "-U", "none", "-P"];
            join(&namespace, &[&options[..], &[file.to_str().expect("a name")]].concat());
            let table = run("ss -Hltn");
            let own = table.lines().filter_map(|line| line.split_whitespace().nth(3));
            let mut own: Vec<_> = own.collect();
            own.sort_unstable();
            assert_eq!(own, bound, "{list}");
            drop(namespace);
            let gateway = std::fs::read_to_string(&file).expect("a file");
            assert!(super::ends::ends(gateway.trim().parse().expect("a number")));
        }
    });
}

#[test]
fn an_mtu_of_0_leaves_that_of_the_interface() {
    in_namespace(|| {
        host();
        let show = ["--", "ip", "-o", "link", "show", "eth7"];
        let base = ["--config-net", "-q", "--mtu", "0"];
        let link = succeed(pasta(&[&base, &NO_PORTS[..], &show].concat()));
        assert!(link.contains(" mtu 1500 "), "{link}");
    });
}
