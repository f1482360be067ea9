//! Doors on arbitrary clients: what they say is nonsense, or makes sense and is spoiled at some
//! places, comes in any pieces, and ends at any moment.
//!
//! It runs in real time, with a client on the host and a stack behind the doors. The thread of the
//! doors may not panic, answers all the time, and has no connection left in the end. `cargo test`
//! runs it for a few seconds; docs/fuzzing.md tells of more.

// Other tests use the rest of it.
#[allow(dead_code)]
#[path = "doors/world.rs"]
mod world;

use neap::control::Application;
use neap_gateway::doors::{Door, Users};
use socket2::SockRef;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use world::{FAR, World, any, echo};

const TIME: Duration = Duration::from_secs(3);

/// What clients say that know the protocols. The server echoes at port 7, nobody is at port 9.
const SENSE: [&[u8]; 12] = [
    b"",
    b"\x05\x01\x00\x05\x01\x00\x01\x0a\x01\x00\x02\x00\x07data",
    b"\x05\x01\x00\x05\x01\x00\x03\x09both.test\x00\x07data",
    b"\x05\x02\x00\x02\x01\x02me\x06secret\x05\x01\x00\x01\x0a\x01\x00\x02\x00\x09",
    b"\x05\x01\x00\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00",
    b"CONNECT both.test:7 HTTP/1.1\r\nHost: both.test:7\r\n\r\ndata",
    b"GET http://both.test:7/a?b HTTP/1.1\r\nConnection: x\r\nX: y\r\n\r\nmore",
    b"POST http://10.1.0.2:7/ HTTP/1.0\r\nContent-Length: 4\r\n\r\ndatamore",
    b"PUT http://both.test:7/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\
      T: x\r\n\r\nmore",
    b"CONNECT nowhere.test:7 HTTP/1.1\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n\r\n",
    b"\x16\x03\x01\x00\x47\x01\x00\x00\x43\x03\x0300000000000000000000000000000000\x00\x00\x02\
      \x13\x01\x01\x00\x00\x18\x00\x00\x00\x0e\x00\x0c\x00\x00\x09both.test\x00\x0a\x00\x02\x00\x00",
    b"\x00\x00\x00\x03\x09both.test\x00\x07data",
];

/// A client.
struct Client<'a> {
    door: usize,
    text: Vec<u8>,
    /// Bytes of a piece.
    piece: usize,
    /// It waits for something after each piece.
    is_patient: bool,
    /// It ends its stream, and waits for the end.
    ends: bool,
    datagram: &'a [u8],
}

impl<'a> Client<'a> {
    /// A client of the first bytes, that says what others are.
    fn new(bytes: &'a [u8], doors: usize) -> Option<Self> {
        let (&[what, sense, at, value, piece], rest) = bytes.split_first_chunk()?;
        let mut text = SENSE[usize::from(sense) % SENSE.len()].to_vec();
        if value != 0 && !text.is_empty() {
            let at = usize::from(at) % text.len();
            text[at] ^= value;
        }
        text.extend_from_slice(rest);
        Some(Self {
            door: usize::from(what) % doors,
            text,
            piece: usize::from(piece) + 1,
            is_patient: what & 0x40 != 0,
            ends: what & 0x80 != 0,
            datagram: rest,
        })
    }

    fn run(self, at: SocketAddr) {
        let Ok(mut stream) = TcpStream::connect(at) else { return };
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        let mut answer = [0; 4096];
        for piece in self.text.chunks(self.piece.max(self.text.len() / 16)) {
            if stream.write_all(piece).is_err() {
                break;
            }
            if self.is_patient {
                let count = stream.read(&mut answer).unwrap_or(0);
                self.associated(&answer[..count]);
            }
        }
        if self.ends {
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut answer);
        }
        // No connection of this client stays in TIME-WAIT.
        let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    }

    /// Sends a datagram where an answer says that it may go.
    fn associated(&self, answer: &[u8]) {
        if let [.., 5, 0, 0, 1, a, b, c, d, high, low] = *answer
            && a == 127
        {
            let to = SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low])));
            let socket = UdpSocket::bind(any()).expect("a socket");
            for datagram in [SENSE[11], self.datagram] {
                let _ = socket.send_to(datagram, to);
            }
        }
    }
}

#[test]
fn doors() {
    let users = || {
        let mut users = Users::default();
        assert!(users.add("me", "secret"));
        users
    };
    let tunnel = || format!("{FAR}:7").parse().expect("a target");
    let world = World::new(vec![
        Door::Socks5 { listen: any(), users: Users::default() },
        Door::Socks5 { listen: any(), users: users() },
        Door::Http { listen: any(), users: Users::default(), tls: None },
        Door::Http { listen: any(), users: users(), tls: None },
        Door::Sni { listen: any() },
        Door::Client { listen: any(), target: tunnel() },
    ]);
    world.serve(7, echo);
    world.serve(443, echo);
    let (at, inspector) = (world.at.clone(), world.inspector.clone());
    let shared = Mutex::new((at, inspector));
    bolero::check!().with_test_time(TIME).with_max_len(400).for_each(|bytes: &[u8]| {
        let shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(client) = Client::new(bytes, shared.0.len()) else { return };
        let at = shared.0[client.door].expect("it listens");
        client.run(at);
        assert!(!shared.1.gauges().is_empty(), "the doors do not answer");
    });
    world.handle.drain(Duration::from_secs(3600)).expect("they run");
    let figures = world.wait().expect("no connection is left");
    let ends = [figures.full, figures.unauthorised, figures.malformed, figures.slow];
    let ends = ends.into_iter().chain([figures.given_up, figures.unreached]).sum::<u64>();
    // Each mapping is an association, whose connection has no other half.
    let ends = ends + figures.finished + figures.lost + figures.mappings;
    assert_eq!(ends, figures.accepted, "each connection has one end: {figures:?}");
}
