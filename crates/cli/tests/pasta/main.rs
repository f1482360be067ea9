//! The pasta face: namespaces of others, commands, ports of both sides; beside the real pasta where
//! it is a matter of addresses and routes.
//!
//! The programs in the namespaces are functions of this test binary, which runs itself there.

#[path = "../common/namespace.rs"]
mod namespace;

#[path = "../common/confined.rs"]
mod confined;
mod confinement;
mod dhcp;
mod dhcp6;
mod ends;
mod files;
#[path = "../common/folder.rs"]
mod folder;
mod keeps;
mod loopback;
mod options;
mod own;
mod published;
#[path = "../common/resolver.rs"]
mod resolver;
mod routers;
mod routes;
mod upstream;

use namespace::{in_namespace, run};
use serde_json::Value;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

/// Names the program of this binary that runs in a namespace, and its address.
const PROGRAM: &str = "NEAP_TEST_PROGRAM";
const TARGET: &str = "NEAP_TEST_TARGET";

/// The longest that something may take: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The options that forward no port.
const NO_PORTS: [&str; 8] = ["-t", "none", "-u", "none", "-T", "none", "-U", "none"];

/// The network of a host with a default route of both families.
fn host() {
    run("ip link set lo up");
    run("ip link add eth7 type veth peer name far");
    run("ip link set far up");
    run("ip link set eth7 up");
    run("ip address add 192.0.2.10/24 dev eth7");
    run("ip address add 2001:db8::10/64 dev eth7 nodad");
    run("ip route add default via 192.0.2.1 dev eth7");
    run("ip -6 route add default via fe80::1 dev eth7");
}

/// A process in a network namespace of its own.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        Self::by("unshare -n")
    }

    /// The namespace, and others with it, that a command line makes.
    fn by(line: &str) -> Self {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        // It ends with this process, however that one ends.
        command.args(words).args(["sh", "-c", "echo there; exec cat"]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("unshare runs");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        out.read_line(&mut line).expect("a line");
        Self(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// A program of this binary in the namespace.
    fn program(&self, program: &str, target: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid(), "-n"]).arg(env::current_exe().expect("this binary"));
        command.args(["--exact", "inside", "--nocapture"]);
        command.env(PROGRAM, program).env(TARGET, target);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What this binary does in a namespace.
#[test]
fn inside() {
    let Ok(program) = env::var(PROGRAM) else { return };
    let target: SocketAddr = env::var(TARGET).expect("a target").parse().expect("an address");
    match program.as_str() {
        "serve" => serve(target),
        "ask" => ask(target),
        "ask by datagram" => ask_by_datagram(target),
        "solicit" => dhcp6::solicit(PATIENCE),
        "solicit in vain" => dhcp6::solicit(routers::LONGEST),
        "get a lease" => dhcp6::get_a_lease(),
        "ask a resolver" => confinement::ask(target),
        "greet a resolver" => confinement::greet(target),
        "ask by datagrams" => options::ask_by_datagrams(target),
        "answer datagrams" => options::answer_datagrams(target),
        "take a port" => options::take_a_port(target),
        "answer two by datagram" => published::answer_two_by_datagram(target),
        "answer two" => published::answer_two(target),
        "say who asks" => loopback::say_who_asks(target),
        "answer each by datagram" => published::answer_each_by_datagram(target),
        "ask from a port" => published::ask_from_a_port(target),
        "connect in the end" => while TcpStream::connect(target).is_err() {},
        "try to connect" => own::try_to_connect(target),
        "connect twice" => own::connect_twice(target),
        "outlast" => own::outlast(target),
        "upload and end" => ends::upload_and_end(target),
        "ask by name" => upstream::ask_by_name(target),
        "ask for a router" => routers::ask(routers::PATIENCE),
        "ask for no router" => routers::ask(routers::LONGEST),
        other => panic!("there is no program {other}"),
    }
}

/// Tells one client of TCP how it is seen.
fn serve(at: SocketAddr) {
    let listener = TcpListener::bind(at).expect("a port");
    println!("listening");
    let (mut stream, client) = listener.accept().expect("a client");
    stream.write_all(client.ip().to_string().as_bytes()).expect("sent");
}

fn ask(server: SocketAddr) {
    println!("answer {}", answer(server));
}

fn answer(server: SocketAddr) -> String {
    let mut stream = TcpStream::connect(server).expect("the server accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

fn ask_by_datagram(server: SocketAddr) {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).expect("a port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.send_to(b"question", server).expect("sent");
    let (count, from) = socket.recv_from(&mut [0; 100]).expect("an answer");
    assert_eq!((count, from), (6, server));
}

fn pasta(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
    command.args(["pasta", "--runas", "0"]).args(arguments).stdin(Stdio::null());
    command
}

fn finish(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (status.code(), stdout, stderr)
}

/// Runs to the end; it must succeed.
fn succeed(command: Command) -> String {
    let (status, stdout, stderr) = finish(command);
    assert!(status == Some(0), "{status:?}\n{stdout}{stderr}");
    stdout
}

/// Starts a server of this binary in the namespace, and waits until it listens.
fn start_server(namespace: &Namespace, at: &str) -> Child {
    let mut server =
        namespace.program("serve", at).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    assert!(lines.any(|line| line.expect("text").contains("listening")));
    server
}

/// Joins the network of a namespace with this one; it is there when this returns.
fn join(namespace: &Namespace, options: &[&str]) {
    let (pid, base) = (namespace.pid(), ["--config-net", "--quiet"]);
    succeed(pasta(&[&base, options, &[pid.as_str()]].concat()));
}

/// Addresses and routes in a namespace, each a line.
fn network(command: Command) -> Vec<String> {
    let text = succeed(command);
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let list: Value = serde_json::from_str(line).expect("JSON of ip");
        for entry in list.as_array().expect("a list") {
            let text = |key: &str| entry[key].as_str().unwrap_or("-").to_owned();
            if entry.get("addr_info").is_none() {
                let (dst, gateway) = (text("dst"), text("gateway"));
                // A route of the kernel for each address is as good as one that was copied.
                if !dst.starts_with("fe80") {
                    found.push(format!("route {dst} via {gateway} dev {}", text("dev")));
                }
                continue;
            }
            if text("ifname") == "lo" {
                continue;
            }
            found.push(format!("interface {} mtu {}", text("ifname"), entry["mtu"]));
            for address in entry["addr_info"].as_array().expect("a list") {
                if address["scope"] != "link" {
                    found.push(format!("{}/{}", address["local"], address["prefixlen"]));
                }
            }
        }
    }
    found.sort();
    found
}

const SHOW: [&str; 4] = ["--", "sh", "-c", "ip -j addr; echo; ip -j route; echo; ip -6 -j route"];

#[test]
fn a_command_sees_the_addresses_and_routes_that_the_real_pasta_gives() {
    in_namespace(|| {
        host();
        let options = ["--config-net", "--quiet"];
        let own = network(pasta(&[&options[..], &NO_PORTS, &SHOW].concat()));
        assert!(own.contains(&"interface eth7 mtu 65520".to_owned()), "{own:?}");
        assert!(own.contains(&"route default via 192.0.2.1 dev eth7".to_owned()), "{own:?}");
        let mut real = Command::new("pasta");
        real.args(["--runas", "0"]).args(options).args(NO_PORTS).args(SHOW);
        if real.output().is_err() {
            writeln!(std::io::stderr(), "SKIP: pasta is not installed").expect("stderr");
            return;
        }
        assert_eq!(own, network(real));
    });
}

#[test]
fn all_addresses_and_routes_of_the_interface_are_copied() {
    in_namespace(|| {
        host();
        run("ip address add 192.0.2.77/24 dev eth7");
        run("ip address add 198.51.100.5/32 dev eth7");
        run("ip route add 203.0.113.0/24 via 192.0.2.2");
        run("ip route add 198.51.100.64/26 dev eth7");
        run("ip -6 route add 2001:db8:5::/48 via 2001:db8::2");
        let mut host = Command::new("sh");
        host.args(["-c", "ip -j addr show dev eth7; ip -j route; ip -6 -j route"]);
        let mut expected = network(host);
        expected.retain(|line| !line.starts_with("interface "));
        let options = ["--config-net", "--quiet"];
        let mut own = network(pasta(&[&options[..], &NO_PORTS, &SHOW].concat()));
        own.retain(|line| !line.starts_with("interface "));
        assert_eq!(own, expected);
    });
}

#[test]
fn options_say_what_the_host_does_not() {
    in_namespace(|| {
        host();
        let options = [
            "--config-net",
            "-q",
            "-I",
            "tap0",
            "-a",
            "10.0.2.100",
            "-n",
            "24",
            "-g",
            "10.0.2.2",
            "-4",
            "-m",
            "1500",
        ];
        let own = network(pasta(&[&options[..], &NO_PORTS, &SHOW].concat()));
        let expected = [
            "\"10.0.2.100\"/24",
            "interface tap0 mtu 1500",
            "route 10.0.2.0/24 via - dev tap0",
            "route default via 10.0.2.2 dev tap0",
        ];
        assert_eq!(own, expected);
    });
}

#[test]
fn the_gateway_has_the_ethernet_address_that_is_asked_for() {
    in_namespace(|| {
        host();
        let mac = "02:00:5e:00:53:01";
        let script = "until ip neighbour show 192.0.2.1 | grep lladdr
                      do ping -n -c 1 -W 1 192.0.2.1 >/dev/null; done";
        let base = ["--config-net", "-q", "-M", mac];
        let shown = succeed(pasta(&[&base, &NO_PORTS[..], &["--", "sh", "-c", script]].concat()));
        assert!(shown.contains(mac), "{shown}");
    });
}

/// Two interfaces reach the server's network; the route takes one, and the option the other.
#[test]
fn flows_leave_by_the_interface_that_an_option_names() {
    in_namespace(|| {
        host();
        run("ip link add eth8 type veth peer name far8");
        run("ip link set far8 up");
        run("ip link set eth8 up");
        run("ip address add 198.51.100.10/24 dev eth8");
        run("ip route add default via 198.51.100.1 dev eth8 metric 500");
        let namespace = Namespace::new();
        let options = ["--outbound-if4", "eth8", "-i", "eth7"];
        join(&namespace, &[&options, &NO_PORTS[..]].concat());
        let mut client = namespace.program("ask", "203.0.113.9:80");
        let mut client =
            client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        // The host asks for the router of the interface by which the connection is to leave.
        while !run("ip neighbour show dev eth8").contains("198.51.100.1 ") {
            thread::yield_now();
        }
        assert!(!run("ip neighbour show dev eth7").contains("192.0.2.1 "));
        let _ = client.kill();
        client.wait().expect("it ends");
        // Connections to the loopback of the host are behind no interface.
        let listener = TcpListener::bind("127.0.0.1:7777").expect("a port");
        let server = thread::spawn(move || {
            listener.accept().expect("a client").0.write_all(b"127.0.0.1").expect("sent");
        });
        let said = succeed(namespace.program("ask", "192.0.2.1:7777"));
        assert!(said.contains("answer 127.0.0.1"), "{said}");
        server.join().expect("served");
    });
}

#[test]
fn published_ports_show_the_client_and_the_gateway_for_the_host_itself() {
    in_namespace(|| {
        host();
        run("ip address add 203.0.113.7/24 dev far");
        let namespace = Namespace::new();
        join(&namespace, &["-t", "8080-8081:80-81", "-u", "none", "-T", "none", "-U", "none"]);
        for (client, port, seen) in [
            ("127.0.0.1", 8080, "192.0.2.1"),
            ("192.0.2.10", 8080, "192.0.2.1"),
            ("203.0.113.7", 8081, "203.0.113.7"),
        ] {
            let mut server = start_server(&namespace, &format!("0.0.0.0:{}", port - 8000));
            // A client of one's own address has that address.
            let server_address = format!("{client}:{port}").parse().expect("an address");
            assert_eq!(answer(server_address), seen, "{client}");
            server.wait().expect("it ends");
        }
        let mut server = start_server(&namespace, "[::]:80");
        assert_eq!(answer("[::1]:8080".parse().expect("an address")), "fe80::1");
        server.wait().expect("it ends");
    });
}

#[test]
fn the_namespace_reaches_the_loopback_of_the_host_where_it_may() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        join(&namespace, &["-t", "none", "-u", "none", "-T", "7777", "-U", "7778"]);
        // Once by a port of its own loopback, once by the address of the gateway.
        for target in ["127.0.0.1:7777", "192.0.2.1:7777"] {
            let listener = TcpListener::bind("127.0.0.1:7777").expect("a port");
            let server = std::thread::spawn(move || {
                let (mut stream, client) = listener.accept().expect("a client");
                stream.write_all(client.ip().to_string().as_bytes()).expect("sent");
            });
            let said = succeed(namespace.program("ask", target));
            assert!(said.contains("answer 127.0.0.1"), "{said}");
            server.join().expect("served");
        }
        let socket = UdpSocket::bind("127.0.0.1:7778").expect("a port");
        let server = std::thread::spawn(move || {
            let (_, client) = socket.recv_from(&mut [0; 100]).expect("a question");
            socket.send_to(b"answer", client).expect("sent");
        });
        succeed(namespace.program("ask by datagram", "127.0.0.1:7778"));
        server.join().expect("served");
    });
}

#[test]
fn without_the_mapping_the_loopback_of_the_host_is_out_of_reach() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        join(&namespace, &[&NO_PORTS[..], &["--no-map-gw"]].concat());
        let _listener = TcpListener::bind("127.0.0.1:7777").expect("a port");
        let (status, stdout, _) = finish(namespace.program("ask", "192.0.2.1:7777"));
        assert!(status != Some(0), "{stdout}");
    });
}

#[test]
fn what_the_user_denies_is_out_of_reach_by_followed_ports_too() {
    in_namespace(|| {
        host();
        let _denied = TcpListener::bind("127.0.0.1:7777").expect("a port");
        let _allowed = TcpListener::bind("[::1]:7779").expect("a port");
        let namespace = Namespace::new();
        join(&namespace, &["--no-map-gw", "--deny", "127.0.0.0/8"]);
        succeed(namespace.program("connect in the end", "[::1]:7779"));
        for target in ["127.0.0.1:7777", "192.0.2.1:7777"] {
            let (status, stdout, _) = finish(namespace.program("ask", target));
            assert!(status != Some(0), "{target}: {stdout}");
        }
        let refused = ["--no-map-gw", "--deny", "127.0.0.0/8", "--deny", "::1", "-T", "7777"];
        let (status, _, said) =
            finish(pasta(&[&["--config-net"], &refused[..], &["--", "true"]].concat()));
        assert!(status == Some(1) && said.contains("--deny"), "{status:?} {said}");
    });
}

#[test]
fn no_icmp_answers_no_echo_requests() {
    in_namespace(|| {
        host();
        fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").expect("a setting");
        let targets = ["192.0.2.1", "fe80::1%eth7"];
        // A wrong answer comes at once, so it takes no long wait to tell that none comes.
        for (option, seconds, status) in [(None, "60", 0), (Some("--no-icmp"), "1", 1)] {
            let namespace = Namespace::new();
            join(&namespace, &[&NO_PORTS[..], option.as_slice()].concat());
            for to in targets {
                let mut ping = Command::new("nsenter");
                ping.args(["-t", &namespace.pid(), "-n", "ping", "-c1", "-W", seconds, to]);
                assert_eq!(finish(ping).0, Some(status), "{option:?} {to}");
            }
        }
    });
}

#[test]
fn a_host_that_lets_nobody_ping_is_told_of_unless_it_is_to_be_quiet() {
    in_namespace(|| {
        host();
        let (nobody, all) = ("1 0", "0 2147483647");
        for (range, option, count) in [
            (nobody, None, 1),
            (nobody, Some("--quiet"), 0),
            (nobody, Some("--no-icmp"), 0),
            (all, None, 0),
        ] {
            fs::write("/proc/sys/net/ipv4/ping_group_range", range).expect("a setting");
            let (namespace, base) = (Namespace::new(), ["--config-net"]);
            let pid = namespace.pid();
            let options = [&base, &NO_PORTS[..], option.as_slice(), &[pid.as_str()]].concat();
            let (status, _, said) = finish(pasta(&options));
            assert_eq!(status, Some(0), "{said}");
            assert_eq!(said.matches("ping_group_range").count(), count, "{option:?}: {said}");
        }
    });
}

#[test]
fn a_limit_of_descriptors_that_is_too_low_is_told() {
    in_namespace(|| {
        host();
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 60; exec \"$0\" pasta --runas 0 -- true"]);
        command.arg(env!("CARGO_BIN_EXE_neap")).stdin(Stdio::null());
        let (status, _, said) = finish(command);
        assert!(status == Some(1) && said.contains("ulimit -n"), "{status:?} {said}");
    });
}

#[test]
fn listeners_are_followed() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        join(&namespace, &["-u", "none", "-U", "none"]);
        let mut server = start_server(&namespace, "0.0.0.0:5555");
        assert_eq!(answer_in_the_end("127.0.0.1:5555"), "192.0.2.1");
        server.wait().expect("it ends");
    });
}

/// Asks until there is an answer.
fn answer_in_the_end(server: &str) -> String {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        assert!(std::time::Instant::now() < until, "the port is never published");
        let mut text = String::new();
        let stream = TcpStream::connect(server);
        if stream.is_ok_and(|mut stream| stream.read_to_string(&mut text).is_ok()) {
            return text;
        }
        thread::yield_now();
    }
}

#[test]
fn a_port_that_is_taken_is_published_when_it_becomes_free() {
    in_namespace(|| {
        host();
        let folder = folder::Folder::new("pasta-taken");
        let log = folder.write("log", "");
        let taken = TcpListener::bind("0.0.0.0:5556").expect("a port");
        let namespace = Namespace::new();
        let mut server = start_server(&namespace, "0.0.0.0:5556");
        let options = ["--config-net", "-u", "none", "-T", "none", "-U", "none", "-l", &log];
        succeed(pasta(&[&options[..], &[namespace.pid().as_str()]].concat()));
        drop(taken);
        assert_eq!(answer_in_the_end("127.0.0.1:5556"), "192.0.2.1");
        let said = fs::read_to_string(&log).expect("a file");
        assert_eq!(said.matches("TCP port 5556").count(), 1, "{said}");
        server.wait().expect("it ends");
    });
}

#[test]
fn the_background_ends_with_the_process_of_the_namespace() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        let file = env::temp_dir().join(format!("neap-pasta-{}", std::process::id()));
        let path = file.to_str().expect("a path");
        join(&namespace, &[&NO_PORTS[..], &["-P", path]].concat());
        let pid = std::fs::read_to_string(&file).expect("the file of the process ID");
        std::fs::remove_file(&file).expect("it is there");
        let status = format!("/proc/{}/status", pid.trim());
        let lives = || {
            // Nobody may be there to take the exit status.
            std::fs::read_to_string(&status).is_ok_and(|text| !text.contains("State:\tZ"))
        };
        assert!(lives());
        drop(namespace);
        let until = std::time::Instant::now() + PATIENCE;
        while lives() {
            assert!(std::time::Instant::now() < until, "it goes on without its namespace");
            std::thread::yield_now();
        }
    });
}

#[test]
fn the_status_of_the_command_is_passed_on_and_it_is_root_there() {
    in_namespace(|| {
        host();
        let status = |script: &str| {
            let options = [&["-q"], &NO_PORTS[..], &["--", "sh", "-c", script]].concat();
            finish(pasta(&options))
        };
        assert_eq!(status("exit 7").0, Some(7));
        assert_eq!(status("exec sh -c 'kill -TERM $$'; sleep 9").0, Some(0), "PID 1 is not killed");
        let (code, stdout, stderr) = status("id -u; echo $$");
        assert_eq!((code, stdout.as_str()), (Some(0), "0\n1\n"), "{stderr}");
        let missing = [&["-q"], &NO_PORTS[..], &["--", "/no/such/command"]].concat();
        let (code, _, stderr) = finish(pasta(&missing));
        assert!(code == Some(127) && stderr.contains("/no/such/command"), "{code:?} {stderr}");
    });
}

#[test]
fn the_gateway_is_shown_to_its_user_until_it_ends() {
    in_namespace(|| {
        host();
        let folder = env::temp_dir().join(format!("neap-pasta-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let namespace = Namespace::new();
        let pid = namespace.pid();
        let mut command =
            pasta(&[&["--config-net", "-q"], &NO_PORTS[..], &[pid.as_str()]].concat());
        command.env("XDG_RUNTIME_DIR", &folder);
        succeed(command);
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.args(["nstat", "-az", "--name", "pasta"]).env("XDG_RUNTIME_DIR", &folder);
        let shown = succeed(command);
        assert!(shown.contains("pasta") && shown.contains("GatewayOpened"), "{shown}");
        drop(namespace);
        let sockets = folder.join("neap");
        while fs::read_dir(&sockets).expect("the folder stays").next().is_some() {
            thread::yield_now();
        }
        fs::remove_dir_all(&folder).expect("the folder is ours");
    });
}

#[test]
fn bad_arguments_end_with_status_2_and_a_taken_port_with_a_line() {
    for (arguments, hint) in [
        (&["--mtu", "1"] as &[&str], "expected 68 to 65520"),
        (&["-t", "http"], "is no port"),
        (&["--socket", "x"], "of passt"),
        (&["--migrate-exit"], "of passt"),
        (&["--pcap", "x"], "tcpdump"),
        (&["--stats", "1"], "neap nstat"),
        (&["--mac-addr", "01:00:00:00:00:00"], "expected a host's"),
        (&["--outbound-if6", "neap-absent", "--", "true"], "an interface of this host"),
        (&["--interface", "neap-absent", "--", "true"], "an interface of this host"),
        (&["--userns", "/no/such", "--", "true"], "--userns: expected a PID"),
        (&["--netns-only"], "--netns-only: expected a PID"),
        (&["--runas", "no such user", "--", "true"], "LOGIN:GROUP"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.arg("pasta").args(arguments).stdin(Stdio::null());
        let (status, _, stderr) = finish(command);
        assert!(status == Some(2) && stderr.contains(hint), "{arguments:?}: {status:?} {stderr}");
    }
    in_namespace(|| {
        host();
        let _taken = TcpListener::bind("0.0.0.0:8080").expect("a port");
        let (status, _, stderr) = finish(pasta(&["-t", "8080", "--", "true"]));
        assert!(status == Some(1) && stderr.contains("choose a free one"), "{status:?} {stderr}");
        let (status, _, stderr) = finish(pasta(&["--netns", "/no/such/folder/ns"]));
        assert!(status == Some(1) && stderr.contains("--netns"), "{status:?} {stderr}");
        let (status, _, stderr) = finish(pasta(&["-o", "203.0.113.9", "--", "true"]));
        let is_said = stderr.contains("does not have the address");
        assert!(status == Some(2) && is_said, "{status:?} {stderr}");
    });
}
