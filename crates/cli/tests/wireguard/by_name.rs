//! Clients of doors that lead to a name.

use super::near::{FROM_TUNNEL, SOCKS, TO_NEAR};
use super::world::{NAME, NEAR_INSIDE, TELL, World};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

/// Sections of doors by name, besides those of [`DOORS`](super::near::DOORS).
pub(super) const SECTIONS: &str = "
    [SNI]
    BindAddress = 127.0.0.1:8443
    [UDPProxyTunnel]
    BindAddress = 127.0.0.1:8010
    Target = www.example.test:9
    InactivityTimeout = 30
    [TCPServerTunnel]
    ListenPort = 7002
    Target = localhost:7001
";
const SNI: u16 = 8443;
const TO_NAME: u16 = 8010;
const FROM_TUNNEL_BY_NAME: u16 = 7002;

/// A block of bytes behind its length.
fn block(length: usize, bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[4 - length..], bytes].concat()
}

/// The first message of a TLS client that asks for the name (RFC 8446 section 4.1.2, RFC 6066
/// section 3).
fn hello() -> Vec<u8> {
    let entry = [&[0][..], &block(2, NAME.as_bytes())].concat();
    let extensions = [&[0, 0][..], &block(2, &block(2, &entry))].concat();
    let suites = block(2, &[0x13, 1]);
    let body =
        [&[3, 3][..], &[7; 32], &block(1, &[]), &suites, &block(1, &[0]), &block(2, &extensions)];
    let message = [&[1][..], &block(3, &body.concat())].concat();
    [&[22, 3, 1][..], &block(2, &message)].concat()
}

/// The door for TLS passes the first message on as it is.
fn tls() {
    let mut stream = TcpStream::connect(("127.0.0.1", SNI)).expect("a door");
    stream.write_all(&hello()).expect("sent");
    let mut back = vec![0; hello().len()];
    stream.read_exact(&mut back).expect("the echo");
    assert_eq!(back, hello());
}

fn client() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    socket
}

/// A port that leads to the name, and an association of SOCKS5 (RFC 1928 section 7).
fn datagrams() {
    let mut bytes = [0; 1000];
    let socket = client();
    socket.send_to(b"who?", ("127.0.0.1", TO_NAME)).expect("sent");
    let count = socket.recv(&mut bytes).expect("an answer");
    assert_eq!(&bytes[..count], b"who?");

    let mut control = TcpStream::connect(("127.0.0.1", SOCKS)).expect("a door");
    control.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).expect("sent");
    let mut answer = [0; 12];
    control.read_exact(&mut answer).expect("an association");
    assert_eq!(answer[..6], [5, 0, 5, 0, 0, 1]);
    let port = u16::from_be_bytes([answer[10], answer[11]]);
    let place = [&[3][..], &block(1, NAME.as_bytes()), &TELL.to_be_bytes()].concat();
    let request = [&[0; 3][..], &place, b"and you?"].concat();
    socket.send_to(&request, ("127.0.0.1", port)).expect("sent");
    let count = socket.recv(&mut bytes).expect("an answer");
    assert!(bytes[..count].ends_with(b"and you?"), "{:?}", &bytes[..count]);
}

/// Ports of the tunnel lead to a server of the near host, by its address and by its name.
fn servers(world: &World) {
    let listener = TcpListener::bind(("127.0.0.1", TO_NEAR)).expect("a port");
    for port in [FROM_TUNNEL, FROM_TUNNEL_BY_NAME] {
        let connect = || TcpStream::connect((NEAR_INSIDE[0], port)).expect("a port");
        let mut client = world.host.inside(connect);
        let (mut server, _) = listener.accept().expect("a connection");
        server.write_all(b"hello").expect("sent");
        let mut bytes = [0; 5];
        client.read_exact(&mut bytes).expect("received");
        assert_eq!(&bytes, b"hello", "port {port}");
    }
}

/// Uses all of these doors.
pub(super) fn all(world: &World) {
    tls();
    datagrams();
    servers(world);
}
