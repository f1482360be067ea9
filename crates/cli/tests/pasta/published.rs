//! Clients of published ports that the guest sees by one address.

use super::namespace::{in_namespace, run};
use super::{NO_PORTS, Namespace, PATIENCE, finish, host, join, pasta, succeed};
use socket2::{Domain, Socket, Type};
use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Who gets no answer for so long asks again.
const AGAIN: Duration = Duration::from_millis(100);

/// Addresses of clients that have the same port.
const CLIENTS: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// In the namespace: once two clients have asked, answers each by its question.
pub(super) fn answer_two_by_datagram(at: SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a port");
    println!("listening");
    let (mut questions, mut question) = (HashMap::new(), [0]);
    while let Ok((_, client)) = socket.recv_from(&mut question) {
        questions.insert(question, client);
        if questions.len() == 2 {
            for (question, client) in &questions {
                socket.send_to(question, client).expect("sent");
            }
        }
    }
}

/// In the namespace: answers each datagram, from the address that the route prefers.
pub(super) fn answer_each_by_datagram(at: SocketAddr) {
    let socket = UdpSocket::bind(at).expect("a port");
    println!("listening");
    let mut question = [0];
    while let Ok((_, client)) = socket.recv_from(&mut question) {
        socket.send_to(&question, client).expect("sent");
    }
}

/// In the namespace: once two clients are there, answers each by its question.
pub(super) fn answer_two(at: SocketAddr) {
    let listener = TcpListener::bind(at).expect("a port");
    println!("listening");
    let accept = || listener.accept().expect("a client").0;
    for mut client in [accept(), accept()] {
        let mut question = [0];
        client.read_exact(&mut question).expect("a question");
        client.write_all(&question).expect("sent");
    }
}

/// In the namespace: asks from the port 5000.
pub(super) fn ask_from_a_port(server: SocketAddr) {
    let socket = UdpSocket::bind("0.0.0.0:5000").expect("a port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.send_to(b"question", server).expect("sent");
    let (_, from) = socket.recv_from(&mut [0; 100]).expect("an answer");
    assert_eq!(from, server);
}

/// A program of this binary that listens in a namespace, until this is dropped.
pub(super) struct Server(Child);

impl Server {
    pub(super) fn start(namespace: &Namespace, program: &str, at: &str) -> Self {
        let mut command = namespace.program(program, at);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.expect("text").contains("listening")));
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn clients_with_the_same_port_get_each_their_own_datagrams() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        join(&namespace, &["-t", "none", "-u", "5557", "-T", "none", "-U", "none"]);
        let _server = Server::start(&namespace, "answer two by datagram", "0.0.0.0:5557");
        let clients = CLIENTS.map(|address| {
            let client = UdpSocket::bind((address, 6000)).expect("a port");
            client.set_read_timeout(Some(AGAIN)).expect("a timeout");
            client
        });
        let mut is_answered = [false; 2];
        while is_answered != [true; 2] {
            for (question, client) in clients.iter().enumerate() {
                client.send_to(&[question as u8], "127.0.0.1:5557").expect("sent");
            }
            for (question, client) in clients.iter().enumerate() {
                let mut answer = [0];
                if client.recv(&mut answer).is_ok() {
                    assert_eq!(usize::from(answer[0]), question);
                    is_answered[question] = true;
                }
            }
        }
    });
}

/// The stand-in is the router's link-local address, which a server answers from its own one.
#[test]
fn a_server_of_ipv6_that_is_bound_to_no_address_answers_by_datagram() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        // The link-local address is there at once.
        let setting = "echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad";
        let mut command = Command::new("nsenter");
        command.args(["-t", &namespace.pid(), "-n", "sh", "-c", setting]);
        succeed(command);
        join(&namespace, &["-t", "none", "-u", "5557", "-T", "none", "-U", "none"]);
        let _server = Server::start(&namespace, "answer each by datagram", "[::]:5557");
        for (question, host) in ["::1", "2001:db8::10", "127.0.0.1"].into_iter().enumerate() {
            let client = UdpSocket::bind(if host.contains(':') { "[::]:0" } else { "0.0.0.0:0" });
            let client = client.expect("a port");
            client.set_read_timeout(Some(AGAIN)).expect("a timeout");
            client.connect((host, 5557)).expect("a way");
            let mut answer = [u8::MAX];
            while client.recv(&mut answer).is_err() {
                client.send(&[question as u8]).expect("sent");
            }
            assert_eq!(usize::from(answer[0]), question);
        }
    });
}

#[test]
fn clients_with_the_same_port_have_each_their_own_connection() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        join(&namespace, &["-t", "5557", "-u", "none", "-T", "none", "-U", "none"]);
        let _server = Server::start(&namespace, "answer two", "0.0.0.0:5557");
        let to: SocketAddr = "127.0.0.1:5557".parse().expect("an address");
        let clients = CLIENTS.map(|address| {
            let own: SocketAddr = format!("{address}:6000").parse().expect("an address");
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            client.bind(&own.into()).expect("a port");
            client.connect(&to.into()).expect("it is published");
            TcpStream::from(client)
        });
        // Either may be the first one to be answered.
        for (question, mut client) in clients.iter().enumerate() {
            client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            client.write_all(&[question as u8]).expect("sent");
        }
        for (question, mut client) in clients.iter().enumerate() {
            let mut answer = [0];
            client.read_exact(&mut answer).expect("an answer");
            assert_eq!(usize::from(answer[0]), question);
        }
    });
}

/// The server is not behind the interface that the port is published on.
#[test]
fn a_port_of_one_interface_carries_no_other_datagrams_of_the_guest() {
    in_namespace(|| {
        host();
        run("ip address add 203.0.113.7/24 dev far");
        let socket = UdpSocket::bind("203.0.113.7:0").expect("a port");
        let server = socket.local_addr().expect("an address").to_string();
        thread::spawn(move || {
            let (_, client) = socket.recv_from(&mut [0; 100]).expect("a question");
            socket.send_to(b"answer", client).expect("sent");
        });
        let namespace = Namespace::new();
        join(&namespace, &[&["-u", "%eth7/5000"], &NO_PORTS[..2], &NO_PORTS[4..]].concat());
        succeed(namespace.program("ask from a port", &server));
    });
}

/// The ports below 20 that somebody listens at, by protocol and family.
fn listening(listing: &str) -> BTreeSet<(String, u8, u16)> {
    let mut all = BTreeSet::new();
    for line in listing.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [protocol, _, _, _, local, ..] = words[..] else { continue };
        let (address, port) = local.rsplit_once(':').expect("a port");
        let port = port.parse().expect("a number");
        let families: &[u8] = match address {
            "*" => &[4, 6],
            address if address.starts_with('[') => &[6],
            _ => &[4],
        };
        let is_listed = (1..20).contains(&port);
        let of_port = families.iter().map(|&family| (protocol.to_owned(), family, port));
        all.extend(of_port.filter(|_| is_listed));
    }
    all
}

/// Who listens on the host and in the namespace while a command runs there.
fn while_it_runs(mut pasta: Command) -> [BTreeSet<(String, u8, u16)>; 2] {
    let all = "~20-65535";
    pasta.args(["--config-net", "-q", "-t", all, "-u", all, "-T", all, "-U", all]);
    pasta.args(["--", "sh", "-c", "ss -Hltun; echo there; read end"]);
    let mut child = pasta.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let lines = lines.map(|line| line.expect("text")).take_while(|line| line != "there");
    let inside = lines.collect::<Vec<_>>().join("\n");
    let outside = run("ss -Hltun");
    drop(child.stdin.take());
    child.wait().expect("it ends");
    [listening(&outside), listening(&inside)]
}

#[test]
fn all_ports_are_those_of_both_families_that_are_free_as_with_the_real_pasta() {
    in_namespace(|| {
        host();
        let _v4 = TcpListener::bind("0.0.0.0:17").expect("a port");
        let _udp = UdpSocket::bind("0.0.0.0:17").expect("a port");
        let v6 = Socket::new(Domain::IPV6, Type::STREAM, None).expect("a socket");
        v6.set_only_v6(true).expect("an option");
        v6.bind(&"[::]:18".parse::<SocketAddr>().expect("an address").into()).expect("a port");
        v6.listen(1).expect("it listens");
        let own = while_it_runs(pasta(&[]));
        let all = ["tcp", "udp"].into_iter().flat_map(|protocol| {
            let both = [4, 6].into_iter();
            both.flat_map(move |family| (1..20).map(move |port| (protocol, family, port)))
        });
        let all: BTreeSet<_> =
            all.map(|(name, family, port)| (name.to_owned(), family, port)).collect();
        assert_eq!(own, [all.clone(), all]);
        let mut real = Command::new("pasta");
        if real.arg("--version").output().is_err() {
            return super::namespace::skip("pasta is not installed");
        }
        let mut real = Command::new("pasta");
        real.args(["--runas", "0"]).stderr(Stdio::null());
        assert_eq!(own, while_it_runs(real));
    });
}

#[test]
fn ports_that_take_too_many_descriptors_are_refused_in_one_line() {
    in_namespace(|| {
        host();
        let neap = pasta(&["--config-net", "-t", "1-1000", "-u", "none", "--", "true"]);
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 1000 && exec \"$@\"", "sh"]);
        limited.arg(neap.get_program()).args(neap.get_args());
        let (status, _, stderr) = finish(limited);
        let told = stderr.contains("take 2000 descriptors") && stderr.contains("ulimit -n");
        assert!(status == Some(1) && told && stderr.lines().count() == 1, "{status:?} {stderr}");
    });
}
