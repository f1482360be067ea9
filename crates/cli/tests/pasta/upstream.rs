//! Namespaces whose flows go through a proxy. Those of tunnels are with the tests of WireGuard.

use super::namespace::in_namespace;
use super::{NO_PORTS, Namespace, PATIENCE, answer, host, join, succeed};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

const PROXY: &str = "192.0.2.10:3128";
/// A question for the address of `www.test`.
const QUESTION: &[u8] =
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x04test\x00\x00\x01\x00\x01";

/// In the namespace: asks a resolver for a name, and who is there for an answer.
pub(super) fn ask_by_name(resolver: SocketAddr) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.send_to(QUESTION, resolver).expect("sent");
    let mut answered = [0; 100];
    let (count, from) = socket.recv_from(&mut answered).expect("an answer");
    assert_eq!(from, resolver);
    let address: [u8; 4] = answered[count - 4..count].try_into().expect("an address");
    println!("said {}", answer((Ipv4Addr::from(address), 80).into()));
}

/// Takes a connection to whatever it asks for, and gives back the first line of that.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let (mut lines, mut asked) = (BufReader::new(stream.try_clone()?), String::new());
    lines.read_line(&mut asked)?;
    while lines.read_line(&mut String::new())? > "\r\n".len() {}
    stream.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{asked}").as_bytes())
}

#[test]
fn names_are_the_proxys_to_resolve_whichever_resolver_is_asked() {
    in_namespace(|| {
        host();
        let listener = TcpListener::bind(PROXY).expect("a port");
        thread::spawn(move || {
            for stream in listener.incoming() {
                // It is looked at from the start whether somebody is there.
                let _ = serve(stream.expect("a connection"));
            }
        });
        let namespace = Namespace::new();
        let url = format!("http://{PROXY}");
        join(&namespace, &[&["--upstream", &url], &NO_PORTS[..]].concat());
        for resolver in ["192.0.2.1:53", "198.51.100.53:53"] {
            let said = succeed(namespace.program("ask by name", resolver));
            assert!(said.contains("said CONNECT www.test:80 HTTP/1.1"), "{resolver}: {said}");
        }
    });
}
