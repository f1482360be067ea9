//! Another stack as the upstream of a gateway: what guests send goes through it, and errors come
//! back as what they are.

use crate::world::{
    FAR, PATIENCE, SlowReader, answer_over_udp, any, cable, dns, echo, question, route_v6, serve,
    stacks,
};
use neap::{IcmpMessage, IcmpOptions, IcmpSocket, InterfaceConfig, Stack, TcpStream, UdpSocket};
use neap_gateway::{
    Figures, Gateway, GatewayConfig, GatewayHandle, Inspector, Publication, Resolver,
    StackUpstream, Transport,
};
use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

const GUEST: &str = "10.9.0.2";
const GUEST_V6: &str = "fd09::2";

/// A guest, a gateway whose upstream is a stack, and a server behind that.
struct World {
    guest: Arc<Stack>,
    far: Arc<Stack>,
    handle: GatewayHandle,
    inspector: Inspector,
    thread: JoinHandle<Figures>,
}

impl World {
    fn new() -> Self {
        Self::with_mtu(1500)
    }

    /// A world whose way out takes packets of so many bytes.
    fn with_mtu(mtu: u16) -> Self {
        Self::with(mtu, &[53])
    }

    /// A world whose way out takes packets of so many bytes, and whose resolvers have these ports
    /// of the server.
    fn with(mtu: u16, resolvers: &[u16]) -> Self {
        let (near, far) = stacks(false);
        near.set_mtu(near.host().interfaces()[0].id, mtu).expect("it takes as many");
        route_v6(&near);
        let (one, other) = cable();
        let interface = InterfaceConfig::new(one).any_destination(true);
        let own = ["10.9.0.1/24", "fd09::1/64"].map(|text| text.parse().expect("an address"));
        let interface = own.into_iter().fold(interface, InterfaceConfig::address);
        let own = Arc::new(Stack::builder().interface(interface).build().expect("a stack"));
        let guest = Stack::builder().device(other).address("10.9.0.2/24").gateway("10.9.0.1");
        let guest = guest.address(format!("{GUEST_V6}/64")).gateway("fd09::1");
        let guest = Arc::new(guest.build().expect("a stack"));
        let upstream = Box::new(StackUpstream::new(near));
        let mut config = GatewayConfig::default();
        let resolver = |port| format!("{FAR}:{port}").parse().expect("an address");
        config.resolver = Resolver::Through(resolvers.iter().map(resolver).collect());
        config.takes_all_dns = true;
        let gateway = Gateway::new(own, upstream, config);
        let mut gateway = gateway.expect("a gateway");
        assert_eq!(gateway.passes_echo(), [true; 2]);
        let (handle, inspector) = (gateway.handle(), gateway.inspector());
        let thread = thread::spawn(move || {
            gateway.run().expect("it runs");
            gateway.figures()
        });
        Self { guest, far, handle, inspector, thread }
    }

    fn end(self) -> Figures {
        self.handle.stop();
        self.thread.join().expect("no panic")
    }
}

#[test]
fn connections_go_through_the_stack_and_refusals_come_back() {
    let world = World::new();
    serve(&world.far, 7, echo);
    let mut stream = TcpStream::connect(&world.guest, format!("{FAR}:7")).expect("it is open");
    let sent: Vec<u8> = (0..3 << 20).map(|index| (index % 251) as u8).collect();
    let mut writer = stream.try_clone().expect("a handle");
    let expected = sent.clone();
    let writes = thread::spawn(move || {
        writer.write_all(&sent).expect("sent");
        writer.shutdown(std::net::Shutdown::Write).expect("open");
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("the end");
    writes.join().expect("no panic");
    assert!(received == expected, "{} bytes", received.len());
    let error = TcpStream::connect(&world.guest, format!("{FAR}:9")).expect_err("nobody listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let error = TcpStream::connect(&world.guest, "192.0.2.1:9").expect_err("there is no route");
    assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
    let figures = world.end();
    assert_eq!((figures.opened, figures.unreached), (1, 2));
}

#[test]
fn a_gateway_waits_until_the_far_side_of_its_upstream_has_acknowledged_all() {
    let ends: [fn(&GatewayHandle) -> std::io::Result<()>; 2] =
        [|handle| handle.drain(PATIENCE * 60), |handle| handle.finish(PATIENCE * 60)];
    for end in ends {
        let World { guest, far, handle, inspector, thread } = World::new();
        let reader = SlowReader::start(&far);
        let mut stream = TcpStream::connect(&guest, format!("{FAR}:7")).expect("it is open");
        // The far side has ended its stream, so all is over once the stack has taken the bytes.
        assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
        stream.write_all(&[7; SlowReader::BYTES]).expect("sent");
        drop(stream);
        while inspector.figures().finished == 0 {
            thread::yield_now();
        }
        end(&handle).expect("it runs");
        // Requests are answered one after the other, and between two the gateway may end.
        (0..3).for_each(|_| drop(handle.published().expect("it runs")));
        assert_eq!(reader.read().expect("the end, not a reset"), SlowReader::BYTES);
        thread.join().expect("it ends by itself");
    }
}

#[test]
fn datagrams_go_through_the_stack_and_errors_come_back() {
    let world = World::new();
    let far = UdpSocket::bind(&world.far, format!("{FAR}:9")).expect("a socket");
    let guest = UdpSocket::bind(&world.guest, format!("{GUEST}:0")).expect("a socket");
    guest.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    guest.connect(format!("{FAR}:9")).expect("connected");
    let mut bytes = [0; 100];
    for text in ["one", "two"] {
        guest.send(text.as_bytes()).expect("sent");
        let (count, from) = far.recv_from(&mut bytes).expect("a datagram");
        assert_eq!(&bytes[..count], text.as_bytes());
        far.send_to(b"answer", from).expect("sent");
        assert_eq!(guest.recv(&mut bytes).expect("an answer"), 6);
    }
    drop(far);
    guest.send(b"anybody?").expect("sent");
    let error = guest.recv(&mut bytes).expect_err("nobody has the port");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let figures = world.end();
    assert_eq!((figures.datagrams_out, figures.undelivered_datagrams), (3, 1));
}

#[test]
fn a_datagram_that_is_longer_than_the_first_link_is_cut_for_it() {
    const MTU: u16 = 1400;
    let world = World::with_mtu(MTU);
    let far = UdpSocket::bind(&world.far, format!("{FAR}:9")).expect("a socket");
    let guest = UdpSocket::bind(&world.guest, format!("{GUEST}:0")).expect("a socket");
    guest.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    guest.connect(format!("{FAR}:9")).expect("connected");
    // What fits the guest's own link has the don't-fragment bit.
    let mut bytes = [0; 2000];
    for length in [1450, 1373, 1372] {
        guest.send(&vec![7; length]).expect("sent");
        let (count, _) = far.recv_from(&mut bytes).expect("a datagram");
        assert_eq!(count, length);
    }
    let figures = world.end();
    assert_eq!((figures.datagrams_out, figures.unsent_datagrams), (3, 0));
    assert_eq!(figures.undelivered_datagrams, 0);
}

#[test]
fn pings_go_through_the_stack() {
    let world = World::new();
    let options = IcmpOptions { foreign: false, own: true, interface: None, transparent: false };
    let socket = IcmpSocket::open(&world.guest, options).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let [from, to] = [GUEST, FAR].map(|text| text.parse().expect("an address"));
    for sequence in 1..=3 {
        let request = IcmpMessage::new(from, to, vec![8, 0, 0, 0, 0x12, 0x34, 0, sequence, b'x']);
        socket.send(&request).expect("sent");
        let reply = socket.recv().expect("a reply");
        assert_eq!((reply.source, reply.echo()), (to, Some((0x1234, u16::from(sequence)))));
        assert_eq!(reply.data[8..], *b"x");
    }
    let figures = world.end();
    assert_eq!((figures.echoes_out, figures.echoes_in), (3, 3));
}

#[test]
fn a_ping_that_is_longer_than_the_first_link_is_cut_for_it() {
    const MTU: u16 = 1400;
    let world = World::with_mtu(MTU);
    let options = IcmpOptions { foreign: false, own: true, interface: None, transparent: false };
    let socket = IcmpSocket::open(&world.guest, options).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let [from, to] = [GUEST, FAR].map(|text| text.parse().expect("an address"));
    // The first one is longer by a byte than what the way out takes. Linux lets nothing be cut that
    // fits its own link, so what the guest says of it says nothing of the gateway's link.
    let pings = [(1, 1381), (2, 1380)];
    for (sequence, length) in pings {
        let head = [8, 0, 0, 0, 0x12, 0x34, 0, sequence];
        let data = [&head[..], &vec![b'x'; length - head.len()]].concat();
        let mut request = IcmpMessage::new(from, to, data);
        request.dont_fragment = true;
        socket.send(&request).expect("sent");
    }
    for (sequence, length) in pings {
        let reply = socket.recv().expect("a reply");
        let expected = (to, Some((0x1234, u16::from(sequence))), length);
        assert_eq!((reply.source, reply.echo(), reply.data.len()), expected);
    }
    let figures = world.end();
    assert_eq!((figures.echoes_out, figures.unsent_echoes), (2, 0));
    assert_eq!((figures.echoes_in, figures.undelivered_echoes), (2, 0));
}

#[test]
fn a_family_without_an_address_is_unreachable_and_the_other_one_goes_on() {
    let world = World::new();
    serve(&world.far, 7, echo);
    let connect = |to: &str| TcpStream::connect(&world.guest, to);
    let error = connect("[2001:db8::1]:7").expect_err("nothing can be sent from");
    assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
    connect(&format!("{FAR}:7")).expect("it is open");

    let socket = UdpSocket::bind(&world.guest, format!("[{GUEST_V6}]:0")).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.set_receive_errors(true).expect("such a socket");
    socket.connect("[2001:db8::1]:9").expect("connected");
    socket.send(b"anybody?").expect("sent");
    let error = socket.recv(&mut [0; 100]).expect_err("nothing can be sent from");
    assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);

    let options = IcmpOptions { foreign: false, own: true, interface: None, transparent: false };
    let socket = IcmpSocket::open(&world.guest, options).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let [from, to] = [GUEST_V6, "2001:db8::1"].map(|text| text.parse().expect("an address"));
    let request = vec![128, 0, 0, 0, 0x12, 0x34, 0, 1, b'x'];
    socket.send(&IcmpMessage::new(from, to, request)).expect("sent");
    let unreachable = |message: &IcmpMessage| message.data[..2] == [1, 0];
    while !unreachable(&socket.recv().expect("an error")) {}

    let figures = world.end();
    assert_eq!((figures.opened, figures.unreached, figures.no_port), (1, 1, 0));
    assert_eq!((figures.unsent_datagrams, figures.unsent_echoes), (1, 1));
}

/// A guest's socket that asks the resolver of the gateway.
fn asking(world: &World) -> UdpSocket {
    let socket = UdpSocket::bind(&world.guest, format!("{GUEST}:0")).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.connect("10.9.0.1:53").expect("connected");
    socket
}

/// The code of an answer.
fn code(answer: &[u8]) -> u8 {
    answer[3] & 15
}

#[test]
fn names_are_asked_by_datagrams_of_random_ports_and_ids() {
    let world = World::new();
    let [server, stranger] = [53, 54]
        .map(|port| UdpSocket::bind(&world.far, format!("{FAR}:{port}")).expect("a socket"));
    let guest = asking(&world);
    let (mut bytes, mut ports, mut ids) = ([0; 1000], HashSet::new(), HashSet::new());
    for id in 0..8 {
        guest.send(&question("both.test", id)).expect("sent");
        let (count, from) = server.recv_from(&mut bytes).expect("the question");
        let answer = answer_over_udp(&bytes[..count]);
        let mut other = answer.clone();
        other[0] ^= 1;
        ids.insert([answer[0], answer[1]]);
        ports.insert(from.port());
        // Of somebody else, and to another question: it says that the name does not exist.
        other[3] |= 3;
        server.send_to(&other, from).expect("sent");
        (other[0], other[1]) = (answer[0], answer[1]);
        stranger.send_to(&other, from).expect("sent");
        server.send_to(&answer, from).expect("sent");
        let count = guest.recv(&mut bytes).expect("an answer");
        assert_eq!(bytes[..2], id.to_be_bytes());
        assert_eq!((code(&bytes[..count]), &bytes[2..count]), (0, &answer[2..]));
    }
    assert!(ports.len() > 4 && ids.len() > 4, "{ports:?} {ids:?}");
    let figures = world.end();
    assert_eq!((figures.dns_questions, figures.dns_answers, figures.bad_dns), (8, 8, 16));
}

#[test]
fn an_answer_that_is_cut_is_asked_for_over_tcp() {
    let world = World::new();
    dns(&world.far);
    let guest = asking(&world);
    let mut bytes = [0; 1000];
    let question = question("cut.test", 7);
    guest.send(&question).expect("sent");
    let count = guest.recv(&mut bytes).expect("an answer");
    assert!(code(&bytes[..count]) == 0 && bytes[2] & 2 > 0, "it is cut: {:?}", &bytes[..count]);
    let mut stream = TcpStream::connect(&world.guest, "10.9.0.1:53").expect("it is open");
    let length = u16::try_from(question.len()).expect("short").to_be_bytes();
    stream.write_all(&[&length[..], &question].concat()).expect("sent");
    let mut length = [0; 2];
    stream.read_exact(&mut length).expect("an answer");
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).expect("an answer");
    assert!(answer.ends_with(&[10, 1, 0, 2]), "{answer:?}");
    assert_eq!(world.end().opened, 1);
}

#[test]
fn a_resolver_that_refuses_datagrams_has_no_answer() {
    let world = World::new();
    let guest = asking(&world);
    guest.send(&question("both.test", 7)).expect("sent");
    let mut bytes = [0; 1000];
    let count = guest.recv(&mut bytes).expect("an answer");
    assert_eq!(code(&bytes[..count]), 2);
    assert_eq!(world.end().unanswered_dns, 1);
}

#[test]
fn a_resolver_that_cannot_answer_is_followed_by_the_next() {
    /// A port that nobody has, of one that is silent, and of one that says that it cannot.
    const PORTS: [u16; 3] = [1053, 2053, 3053];
    let [_, silent, helpless] = PORTS;
    for first in PORTS {
        let world = World::with(1500, &[first, 53]);
        let servers = [silent, helpless, 53]
            .map(|port| UdpSocket::bind(&world.far, format!("{FAR}:{port}")).expect("a socket"));
        let [_silent, unable, able] = servers;
        let answers = thread::spawn(move || {
            let mut bytes = [0; 1000];
            if first == helpless {
                let (count, from) = unable.recv_from(&mut bytes).expect("the question");
                let mut answer = answer_over_udp(&bytes[..count]);
                answer.truncate(count);
                // SERVFAIL, and no answers.
                answer[3] = answer[3] & 0xf0 | 2;
                answer[7] = 0;
                unable.send_to(&answer, from).expect("sent");
            }
            // Who has answered is asked first from then on.
            for _ in 0..2 {
                let (count, from) = able.recv_from(&mut bytes).expect("the question");
                able.send_to(&answer_over_udp(&bytes[..count]), from).expect("sent");
            }
        });
        let guest = asking(&world);
        let mut bytes = [0; 1000];
        for id in 0..2 {
            guest.send(&question("both.test", id)).expect("sent");
            let count = guest.recv(&mut bytes).expect("an answer");
            assert_eq!((bytes[..2].to_vec(), code(&bytes[..count])), (vec![0, id as u8], 0));
        }
        answers.join().expect("both were asked");
        let figures = world.end();
        assert_eq!((figures.dns_answers, figures.unanswered_dns), (2, 0), "{first}");
    }
}

#[test]
fn a_resolver_that_takes_no_connection_is_followed_by_the_next() {
    let world = World::with(1500, &[1053, 53]);
    dns(&world.far);
    let mut stream =
        TcpStream::connect(&world.guest, "10.9.0.1:53").expect("the next one takes it");
    let question = question("both.test", 7);
    let length = u16::try_from(question.len()).expect("short").to_be_bytes();
    stream.write_all(&[&length[..], &question].concat()).expect("sent");
    stream.read_exact(&mut [0; 2]).expect("an answer");
    assert_eq!(world.end().opened, 1);
}

#[test]
fn a_published_port_is_open_once_the_guest_has_accepted() {
    let world = World::new();
    serve(&world.guest, 7, echo);
    let publish = |port: u16| {
        let publication = Publication {
            transport: Transport::Tcp,
            port: any(),
            guest: format!("{GUEST}:{port}").parse().expect("an address"),
            stand_in: "10.9.0.1".parse().expect("an address"),
        };
        world.handle.publish(publication).expect("a port");
    };
    publish(7);
    publish(9);
    let published = world.handle.published().expect("it runs");
    let [mut open, mut closed] = [0, 1].map(|index: usize| {
        let port = published[index].publication.port;
        std::net::TcpStream::connect(port).expect("the host accepts")
    });
    let error = closed.read(&mut [0; 10]).expect_err("the guest refuses");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    open.write_all(b"hello").expect("sent");
    open.read_exact(&mut [0; 5]).expect("the echo");
    let figures = world.end();
    assert_eq!((figures.opened, figures.unreached, figures.lost), (1, 1, 0));
}
