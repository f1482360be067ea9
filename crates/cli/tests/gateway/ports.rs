//! Published ports: `-p`, with servers in the sandbox and clients outside.

use super::namespace::{in_namespace, run};
use super::{SERVER, SERVER_V6, finish, gateway, in_network, to};
use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdin, Stdio};
use std::thread;
use std::time::Duration;

/// Ports of the servers in the sandbox.
const TCP: u16 = 8000;
const UDP: u16 = 5300;

/// Programs in the sandbox.
pub(super) fn inside(program: &str, _: &str) -> bool {
    match program {
        "tell clients" => tell_clients(),
        _ => return false,
    }
    true
}

/// Tells clients of both families and protocols how they are seen, until the input ends.
fn tell_clients() {
    let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), UDP);
    let socket = UdpSocket::bind(any).expect("a port");
    thread::spawn(move || {
        let mut question = [0; 100];
        while let Ok((_, from)) = socket.recv_from(&mut question) {
            socket.send_to(seen(from).as_bytes(), from).expect("sent");
        }
    });
    for offset in 0..2 {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), TCP + offset);
        let listener = TcpListener::bind(any).expect("a port");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let from = stream.peer_addr().expect("connected");
                stream.write_all(seen(from).as_bytes()).expect("sent");
            }
        });
    }
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn seen(from: SocketAddr) -> String {
    from.ip().to_canonical().to_string()
}

/// A sandbox with the servers.
struct Servers {
    child: Child,
    _stdin: ChildStdin,
}

impl Servers {
    fn start(options: &[&str]) -> Self {
        let own = env::current_exe().expect("the test knows its binary");
        let own = own.to_str().expect("a name");
        let inside = ["--", own, "--exact", "inside", "--nocapture"];
        let mut command = gateway(&[options, &inside].concat());
        command.env(super::PROGRAM, "tell clients").env(super::TARGET, "");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("neap runs");
        let stdin = child.stdin.take().expect("a pipe");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.expect("text") == "ready"), "the sandbox has ended");
        thread::spawn(move || lines.for_each(drop));
        Self { child, _stdin: stdin }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask_tcp(server: SocketAddr) -> String {
    let mut stream = TcpStream::connect(server).expect("the port is published");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

fn ask_udp(server: SocketAddr) -> String {
    let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    socket.connect(server).expect("a route");
    socket.send(b"who am I?").expect("sent");
    let mut answer = [0; 100];
    let count = socket.recv(&mut answer).expect("an answer from where it was asked");
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

#[test]
fn what_leaves_from_published_ports_has_the_mark() {
    in_namespace(|| {
        in_network(|| {
            let ports = ["-p", "18000:8000", "-p", "15300:5300/udp"];
            let _servers = Servers::start(&[&ports[..], &["--mark", "0x7"]].concat());
            let server: SocketAddr = format!("{SERVER}:18000").parse().expect("an address");
            let mut client = TcpStream::connect(server).expect("the port is published");
            client.read_exact(&mut [0]).expect("an answer");
            let shown = run("ss -Haneut sport = :18000 or sport = :15300");
            // The connection, and a socket of each family for each port.
            assert_eq!(shown.lines().count(), 5, "{shown}");
            assert!(shown.lines().all(|line| line.contains("fwmark:0x7")), "{shown}");
        });
    });
}

#[test]
fn clients_of_published_ports_are_seen_by_their_addresses() {
    in_namespace(|| {
        in_network(|| {
            let ports = ["-p", "18000-18001:8000-8001", "-p", "15300:5300/udp"];
            let _servers = Servers::start(&ports);
            let at = |ip: &str, port: u16| SocketAddr::new(ip.parse().expect("an address"), port);
            for ip in [SERVER, SERVER_V6] {
                for port in [18000, 18001] {
                    assert_eq!(ask_tcp(at(ip, port)), ip);
                }
                assert_eq!(ask_udp(at(ip, 15300)), ip);
            }
            // A guest would not answer a loopback address: these clients are the gateway's.
            for (ip, gateway) in [("127.0.0.1", "10.0.2.2"), ("::1", "fd00::2")] {
                assert_eq!(ask_tcp(at(ip, 18000)), gateway);
                assert_eq!(ask_udp(at(ip, 15300)), gateway);
            }
        });
    });
}

#[test]
fn a_port_of_one_address_is_not_that_of_others() {
    in_namespace(|| {
        in_network(|| {
            let _servers = Servers::start(&["-p", "127.0.0.1:18000:8000"]);
            assert_eq!(ask_tcp(to("127.0.0.1:18000")), "10.0.2.2");
            assert!(TcpStream::connect((SERVER, 18000)).is_err());
        });
    });
}

#[test]
fn a_taken_port_is_told_in_one_line() {
    in_namespace(|| {
        in_network(|| {
            let _taken = TcpListener::bind("0.0.0.0:18000").expect("a port");
            let _taken_udp = UdpSocket::bind("0.0.0.0:18000").expect("a port");
            for (ports, hint) in [
                ("18000:80", "0.0.0.0:18000 is taken"),
                ("18000:80/udp", "0.0.0.0:18000 is taken"),
                ("203.0.113.9:80:80", "not have the address of 203.0.113.9:80"),
            ] {
                let (status, _, stderr) = finish(gateway(&["-p", ports, "--", "true"]));
                let is_one_line = stderr.trim_end().lines().count() == 1;
                assert!(status == Some(1) && is_one_line, "{ports}: {status:?} {stderr}");
                assert!(stderr.contains(hint), "{ports}: {stderr}");
            }
        });
    });
}
