//! Options of the gateway's own, which pasta itself does not have.

use super::ends::ends;
use super::folder::Folder;
use super::namespace::{in_namespace, run};
use super::{NO_PORTS, Namespace, host, join, pasta, succeed};
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;

/// A server of the host, in a network that is another one than that of the namespace.
const SERVER: &str = "203.0.113.7";

/// In the namespace: says how a connection begins.
pub(super) fn try_to_connect(server: SocketAddr) {
    match TcpStream::connect(server) {
        Ok(_) => println!("connected."),
        Err(error) => println!("{:?}.", error.kind()),
    }
}

/// In the namespace: has a connection, and tries to get a second one.
pub(super) fn connect_twice(server: SocketAddr) {
    let _first = TcpStream::connect(server).expect("the server accepts");
    try_to_connect(server);
}

fn is_echoed(stream: &mut TcpStream) {
    stream.write_all(b"x").expect("sent");
    stream.read_exact(&mut [0]).expect("an echo");
}

/// In the namespace: keeps a connection while new ones are refused.
pub(super) fn outlast(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).expect("the server accepts");
    is_echoed(&mut stream);
    println!("connected.");
    let error = loop {
        match TcpStream::connect(server) {
            Ok(_) => thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    is_echoed(&mut stream);
    println!("kept.");
}

/// The network of the host with a server that echoes.
fn serve() -> String {
    host();
    run(&format!("ip address add {SERVER}/24 dev far"));
    let listener = TcpListener::bind((SERVER, 0)).expect("a port");
    let server = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            thread::spawn(move || io::copy(&mut &stream, &mut &stream));
        }
    });
    server.to_string()
}

/// The metrics that are served at a port.
pub(super) fn metrics(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("they are served");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[test]
fn destinations_are_denied_but_for_those_that_are_allowed() {
    in_namespace(|| {
        let server = serve();
        let deny = ["--deny", "203.0.113.0/24"];
        for (more, said) in [(&[][..], "HostUnreachable."), (&["--allow", SERVER], "connected.")] {
            let namespace = Namespace::new();
            join(&namespace, &[&deny, more, &NO_PORTS].concat());
            let answer = succeed(namespace.program("try to connect", &server));
            assert!(answer.contains(said), "{more:?}: {answer}");
        }
    });
}

#[test]
fn who_asks_for_it_is_told_of_flows_that_are_denied() {
    in_namespace(|| {
        let (server, folder) = (serve(), Folder::new("pasta-denied"));
        // The level is that of the gateway, and quiet is what the rest of the program is.
        for level in ["--log=info --quiet", "--debug", "--trace"] {
            let (namespace, log) = (Namespace::new(), folder.path().join(level));
            let mut command = pasta(&["--config-net", "--deny", "203.0.113.0/24", "-l"]);
            command.arg(&log).args(level.split(' ')).args(NO_PORTS).arg(namespace.pid());
            succeed(command);
            succeed(namespace.program("try to connect", &server));
            let is_told = |line: &str| {
                line.starts_with("refused by the policy guest=192.0.2.10:")
                    && line.contains(&format!(" wanted={server} "))
            };
            while !fs::read_to_string(&log).expect("a file").lines().any(is_told) {
                thread::yield_now();
            }
        }
    });
}

#[test]
fn flows_that_are_too_many_are_refused_and_the_log_says_so() {
    in_namespace(|| {
        let (server, folder, namespace) = (serve(), Folder::new("pasta-flows"), Namespace::new());
        let log = folder.path().join("log");
        let (options, pid) = (["--config-net", "--flows", "1", "-l"], namespace.pid());
        let mut command = pasta(&options);
        command.arg(&log).args(NO_PORTS).arg(pid);
        succeed(command);
        let answer = succeed(namespace.program("connect twice", &server));
        assert!(answer.contains("ConnectionRefused."), "{answer}");
        let is_told = |line: &str| line.starts_with("refused: too many at the same time flows=1");
        while !fs::read_to_string(&log).expect("a file").lines().any(is_told) {
            thread::yield_now();
        }
    });
}

#[test]
fn open_flows_go_on_after_a_signal_and_new_ones_are_refused() {
    in_namespace(|| {
        let (server, folder, namespace) = (serve(), Folder::new("pasta-drain"), Namespace::new());
        let file = folder.path().join("pid");
        let file = file.to_str().expect("a name");
        join(&namespace, &[&["--drain", "3600", "-P", file], &NO_PORTS[..]].concat());
        let gateway = fs::read_to_string(file).expect("a file").trim().parse().expect("a number");
        let mut guest = namespace.program("outlast", &server);
        let mut guest = guest.stdout(Stdio::piped()).spawn().expect("it runs");
        let lines = BufReader::new(guest.stdout.take().expect("a pipe")).lines();
        let mut lines = lines.map(|line| line.expect("text"));
        assert!(lines.any(|line| line.contains("connected.")));
        run(&format!("kill -TERM {gateway}"));
        assert!(lines.any(|line| line.contains("kept.")));
        lines.for_each(drop);
        assert!(guest.wait().expect("it ends").success());
        assert!(ends(gateway), "it goes on without flows");
    });
}

#[test]
fn metrics_are_served_at_a_port_and_at_a_socket_that_is_removed_in_the_end() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        join(&namespace, &[&["--metrics", "127.0.0.1:9100"], &NO_PORTS[..]].concat());
        let text = metrics("127.0.0.1:9100");
        assert!(text.contains("GatewayOpened"), "{text}");
        drop(namespace);

        let (folder, namespace) = (Folder::new("pasta-metrics"), Namespace::new());
        let (options, pid) = (["--config-net", "-q", "--metrics", "unix:socket"], namespace.pid());
        let mut command = pasta(&options);
        command.args(NO_PORTS).arg(pid).current_dir(folder.path());
        succeed(command);
        let socket = folder.path().join("socket");
        assert!(socket.exists());
        drop(namespace);
        while socket.exists() {
            thread::yield_now();
        }
    });
}
