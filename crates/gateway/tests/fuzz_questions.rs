//! A whole gateway that passes questions on to a resolver, as it does by default: arbitrary
//! questions of its guest, over UDP and over TCP, and arbitrary answers of the resolver, in any
//! order, from others as well.
//!
//! No thread may panic, and nothing is left in the end. Over UDP the guest gets messages from the
//! resolver that it has asked, each with the ID of a question of its own, and no more of them than
//! questions.
//! `cargo test` runs it for a few seconds; docs/fuzzing.md tells of more.

mod fuzz_world;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use fuzz_world::source::Source;
use fuzz_world::{FAR, GUEST, MOST_PACKETS, World, config, turned, watch_threads};
use neap::device::Medium;
use neap_gateway::Resolver;
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(3);
/// What the guest takes for the resolver, and ports of the guest.
const ASKED: [u8; 4] = FAR[3];
const PORTS: [u16; 3] = [40_000, 40_001, 40_002];
/// A header has so many bytes (RFC 1035 section 4.1.1).
const HEADER: usize = 12;
/// Most questions that the resolver remembers.
const MOST_HEARD: usize = 8;
const NAMES: [&[u8]; 4] =
    [b"\x03web\x07example\0", b"\x03web\x07example\x03org\0", b"\0", b"\xc0\x0c"];
const TYPES: [u8; 6] = [1, 28, 16, 252, 251, 41];

/// The resolver, and a stranger beside it.
struct Resolvers {
    socket: UdpSocket,
    stranger: UdpSocket,
    listener: TcpListener,
    stream: Option<TcpStream>,
    /// Questions, and where each came from.
    heard: VecDeque<(Vec<u8>, SocketAddr)>,
}

impl Resolvers {
    fn new() -> Self {
        let bind = || UdpSocket::bind("127.0.0.1:0").expect("a port");
        // Another program may have the port of the other protocol.
        let (socket, listener) = std::iter::repeat_with(bind)
            .find_map(|socket| {
                let at = socket.local_addr().expect("an address");
                Some((socket, TcpListener::bind(at).ok()?))
            })
            .expect("there are many ports");
        let stranger = bind();
        for socket in [&socket, &stranger] {
            socket.set_nonblocking(true).expect("a setting");
        }
        listener.set_nonblocking(true).expect("a setting");
        Self { socket, stranger, listener, stream: None, heard: VecDeque::new() }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("an address")
    }

    /// Takes what has come.
    fn hear(&mut self) {
        let mut question = [0; 5000];
        while let Ok((length, from)) = self.socket.recv_from(&mut question) {
            self.heard.push_back((question[..length].to_vec(), from));
            if self.heard.len() > MOST_HEARD {
                self.heard.pop_front();
            }
        }
        if let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true).expect("a setting");
            self.stream = Some(stream);
        }
    }

    /// Answers a question that was heard, well or ill.
    fn answer(&mut self, source: &mut Source<'_>) {
        let at = usize::from(source.byte());
        if self.heard.is_empty() {
            return;
        }
        let (question, to) = &self.heard[at % self.heard.len()];
        let answer = spoiled(answer_to(question, source), source);
        let by = if source.byte() & 7 == 7 { &self.stranger } else { &self.socket };
        // The socket of the question may be closed.
        let _ = by.send_to(&answer, to);
    }

    /// Says something on the last connection, and perhaps ends it.
    fn answer_by_stream(&mut self, source: &mut Source<'_>) {
        let Some(stream) = &mut self.stream else { return };
        let mut question = [0; 5000];
        let length = stream.read(&mut question).unwrap_or(0);
        let answer = answer_to(question[..length].get(2..).unwrap_or_default(), source);
        let answer = [&(answer.len() as u16).to_be_bytes()[..], &answer].concat();
        let _ = stream.write(&spoiled(answer, source));
        if source.byte() & 7 == 7 {
            self.stream = None;
        }
    }
}

/// The answer to a question: its header with other flags, and what the input says.
fn answer_to(question: &[u8], source: &mut Source<'_>) -> Vec<u8> {
    let mut answer = question.to_vec();
    if let [_, _, flags, code, ..] = &mut answer[..] {
        *flags |= 0x80 | source.pick(&[0, 0, 2, 4]);
        *code |= source.pick(&[0, 0x80, 0x82, 0x83, 5]);
    }
    let len = source.byte();
    answer.extend(source.take(len.into()));
    answer
}

fn spoiled(mut bytes: Vec<u8>, source: &mut Source<'_>) -> Vec<u8> {
    let how = source.byte();
    if how & 0x40 != 0 && !bytes.is_empty() {
        let at = usize::from(source.byte()) % bytes.len();
        bytes[at] ^= source.byte();
    }
    if how & 0x80 != 0 {
        bytes.truncate(source.short().into());
    }
    bytes
}

/// A question of the guest.
fn question(source: &mut Source<'_>) -> Vec<u8> {
    if source.byte() & 7 == 7 {
        let len = source.short() % 1400;
        return source.take(len.into()).to_vec();
    }
    let (id, flags) = (source.byte() % 4, source.pick(&[1, 1, 1, 0x20, 0x28, 0x81]));
    let count = source.pick(&[1, 1, 1, 0, 2]);
    let mut question = vec![0, id, flags, 0, 0, count, 0, 0, 0, 0, 0, 0];
    for _ in 0..count {
        question.extend(source.pick(&NAMES));
        question.extend([0, source.pick(&TYPES), 0, 1]);
    }
    spoiled(question, source)
}

/// Who has asked with which ID, and how many answers are to come.
type Open = HashMap<(u16, [u8; 2]), usize>;

/// Notes what may be a question.
fn note(packet: &[u8], open: &mut Open) {
    if let Ok(SlicedPacket { transport: Some(TransportSlice::Udp(udp)), .. }) =
        SlicedPacket::from_ip(packet)
        && let [high, low, ..] = udp.payload()
    {
        *open.entry((udp.source_port(), [*high, *low])).or_default() += 1;
    }
}

/// Notes an answer; the guest must have asked for it.
fn check(packet: &[u8], open: &mut Open) {
    let parsed = SlicedPacket::from_ip(packet);
    assert!(parsed.is_ok(), "{packet:?}: {parsed:?}");
    let parsed = parsed.expect("a packet");
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) = (parsed.net, parsed.transport)
    else {
        return;
    };
    assert_eq!((ip.header().source(), udp.source_port()), (ASKED, 53), "{packet:?}");
    let answer = udp.payload();
    assert!(answer.len() >= HEADER && answer[2] & 0x80 != 0, "{answer:?} is no answer");
    let left = open.get_mut(&(udp.destination_port(), [answer[0], answer[1]]));
    let left = left.filter(|left| **left > 0);
    *left.expect("the guest has asked for it") -= 1;
}

fn run(input: &[u8]) {
    let mut resolvers = Resolvers::new();
    let mut config = config();
    config.resolver = Resolver::Server(resolvers.address());
    let world = World::start(Medium::Ip, config, |interface| interface);
    let (mut source, mut last, mut open) = (Source(input), None::<Vec<u8>>, Open::new());
    for _ in 0..MOST_PACKETS {
        if source.0.is_empty() {
            break;
        }
        let mut packet = Vec::new();
        let builder = PacketBuilder::ipv4(GUEST, ASKED, 64);
        match source.byte() % 8 {
            0..=2 => {
                let (port, question) = (source.pick(&PORTS), question(&mut source));
                builder.udp(port, 53).write(&mut packet, &question).expect("it is short");
            }
            3 | 4 => resolvers.answer(&mut source),
            5 => resolvers.answer_by_stream(&mut source),
            6 => {
                let tcp = builder.tcp(source.pick(&PORTS), 53, 1, 64_000).syn();
                tcp.write(&mut packet, &[]).expect("it is short");
            }
            _ => {
                let turned = last.take().and_then(|packet| turned(&packet, &mut source));
                packet = turned.unwrap_or_default();
            }
        }
        note(&packet, &mut open);
        // A full cable loses it.
        if !packet.is_empty() && world.cable.send(&packet).is_err() {
            continue;
        }
        if let Some(received) = world.receive() {
            check(&received, &mut open);
            last = Some(received);
        }
        resolvers.hear();
    }
    world.end();
}

#[test]
fn questions() {
    let panicked = watch_threads();
    bolero::check!().with_test_time(TIME).with_max_len(4000).for_each(|bytes: &[u8]| {
        run(bytes);
        assert!(!panicked.load(SeqCst), "a thread has panicked");
    });
}
