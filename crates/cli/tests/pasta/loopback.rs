//! Clients of published ports at loopback addresses of the host.

use super::namespace::in_namespace;
use super::options::{answer_by, answer_to};
use super::published::Server;
use super::{Namespace, PATIENCE, PROGRAM, TARGET, host, join, pasta};
use std::env;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::thread;

/// In the namespace: tells each client of both protocols who it is, and to where it has come.
pub(super) fn say_who_asks(at: SocketAddr) {
    let (listener, socket) = (TcpListener::bind(at), UdpSocket::bind(at));
    let (listener, socket) = (listener.expect("a port"), socket.expect("a port"));
    println!("listening");
    thread::spawn(move || {
        while let Ok((_, client)) = socket.recv_from(&mut [0; 10]) {
            socket
                .send_to(client.ip().to_canonical().to_string().as_bytes(), client)
                .expect("sent");
        }
    });
    while let Ok((mut stream, client)) = listener.accept() {
        let own = stream.local_addr().expect("an address").ip().to_canonical();
        let said = format!("{} {own}", client.ip().to_canonical());
        stream.write_all(said.as_bytes()).expect("sent");
    }
}

fn at(host: &str, port: &str) -> SocketAddr {
    let port = port.parse().expect("a number");
    SocketAddr::new(host.parse().expect("an address"), port)
}

/// The options that publish a port, and no others.
fn on(port: &str) -> [&str; 8] {
    ["-t", port, "-u", port, "-T", "none", "-U", "none"]
}

/// Asks by TCP, from an address of the host.
fn ask(from: &str, to: SocketAddr) -> String {
    let domain = socket2::Domain::for_address(to);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&at(from, "0").into()).expect("an address of the host");
    socket.connect(&to.into()).expect("it is published");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut text = String::new();
    // Nobody may listen there, which is told by a reset.
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
fn clients_at_the_loopback_of_the_host_come_to_that_of_the_namespace_and_from_it() {
    in_namespace(|| {
        host();
        // The server does not listen but at the loopback addresses, and would not be found else.
        for (port, own, hosts) in [
            ("5557", "127.0.0.1", &[("127.0.0.1", "127.0.0.1"), ("127.0.0.2", "127.0.0.3")][..]),
            ("5558", "::1", &[("::1", "::1")]),
        ] {
            let namespace = Namespace::new();
            join(&namespace, &[&["--host-lo-to-ns-lo"], &on(port)[..]].concat());
            let _server = Server::start(&namespace, "say who asks", &at(own, port).to_string());
            for (from, to) in hosts {
                let to = at(to, port);
                assert_eq!(ask(from, to), format!("{own} {own}"), "{from} {to}");
                assert_eq!(answer_to(from, to), own, "{from} {to}");
            }
            // Another address of the host is that of the namespace, too.
            assert_eq!(ask("192.0.2.10", at("192.0.2.10", port)), "");
        }
    });
}

#[test]
fn without_a_word_they_come_by_the_interface_and_other_clients_always_do() {
    in_namespace(|| {
        host();
        for (port, options, client) in [
            ("5557", &["--host-lo-to-ns-lo"][..], "127.0.0.1"),
            ("5558", &[], "192.0.2.1"),
            ("5559", &["--host-lo-to-ns-lo", "--no-splice"], "192.0.2.1"),
        ] {
            let namespace = Namespace::new();
            join(&namespace, &[options, &on(port)].concat());
            let server = at("0.0.0.0", port).to_string();
            let _server = Server::start(&namespace, "say who asks", &server);
            let [loopback, own] = ["127.0.0.1", "192.0.2.10"].map(|host| at(host, port));
            let seen = ask("127.0.0.1", loopback);
            assert_eq!(seen.split(' ').next(), Some(client), "{options:?}");
            assert_eq!(answer_to("127.0.0.1", loopback), client, "{options:?}");
            assert_eq!(ask("192.0.2.10", own), "192.0.2.1 192.0.2.10", "{options:?}");
            assert_eq!(answer_to("192.0.2.10", own), "192.0.2.1", "{options:?}");
        }
    });
}

/// The socket in the namespace has the port of its client, and is no server.
#[test]
fn the_port_of_a_client_at_the_loopback_is_free_on_the_host_when_the_client_is_gone() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        let options = ["-t", "none", "-u", "auto", "-T", "none", "-U", "none"];
        join(&namespace, &[&["--host-lo-to-ns-lo"], &options[..]].concat());
        let _server = Server::start(&namespace, "say who asks", "127.0.0.1:5557");
        let client = UdpSocket::bind("127.0.0.1:6000").expect("a port");
        assert_eq!(answer_by(&client, at("127.0.0.1", "5557")), "127.0.0.1");
        drop(client);
        // Ports are opened in their order, so this one shows that the other was looked at.
        let _later = Server::start(&namespace, "say who asks", "127.0.0.1:7000");
        assert_eq!(answer_to("127.0.0.1", at("127.0.0.1", "7000")), "127.0.0.1");
        UdpSocket::bind("0.0.0.0:6000").expect("nobody has the port");
    });
}

/// Between two looks of a process at its queues many connections may come.
#[test]
fn the_loopback_of_a_command_has_more_clients_at_once_than_sockets_wait() {
    in_namespace(|| {
        host();
        let options = "--config-net -q --host-lo-to-ns-lo -t auto -u none -T none -U none --";
        let mut command = pasta(&options.split(' ').collect::<Vec<_>>());
        command.arg(env::current_exe().expect("this binary"));
        command.args(["--exact", "inside", "--nocapture"]).stdout(Stdio::null());
        command.env(PROGRAM, "say who asks").env(TARGET, "127.0.0.1:5557");
        let mut child = command.spawn().expect("it runs");
        let to = at("127.0.0.1", "5557");
        while TcpStream::connect(to).is_err() {}
        let all = (0..200).map(|_| thread::spawn(move || ask("127.0.0.1", to)));
        for one in all.collect::<Vec<_>>() {
            assert_eq!(one.join().expect("no panic"), "127.0.0.1 127.0.0.1");
        }
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    });
}
