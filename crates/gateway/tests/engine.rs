//! A gateway on a device of this test, which speaks raw packets to it.

mod common;

use bytes::Bytes;
use etherparse::{
    IpNumber, NetSlice, PacketBuilder, PacketBuilderStep, SlicedPacket, TcpHeader, TcpHeaderSlice,
    TransportSlice,
};
use neap::control::{Application, RelayReport};
use neap::time::Rate;
use neap::{Events, Poller, TcpStream};
use neap_gateway::proxy::{Protocol, Proxy};
use neap_gateway::{
    Client, Destination, Direct, End, Far, FarDatagrams, FarEcho, Figures, Gateway, GatewayConfig,
    GatewayHandle, Inspector, MOST_PIECE, Publication, Resolver, Translation, Transport, Upstream,
};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Far above what anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

const GUEST: [u8; 4] = [10, 0, 2, 100];
const FAR: [u8; 4] = [192, 0, 2, 7];
const PORT: u16 = 40_000;

/// Far sides that never open, or fail at once.
struct Scripted {
    /// How long connections may take to open.
    patience: Option<Duration>,
    errors: Arc<Mutex<Vec<Errno>>>,
    /// Tells of connections that were begun, and of those that have ended.
    news: Sender<&'static str>,
}

struct Opening {
    until: Option<Instant>,
    /// Something to wait for; nothing comes.
    socket: UnixStream,
    _other: UnixStream,
    news: Sender<&'static str>,
}

impl Upstream for Scripted {
    fn connect(&self, _: &Destination, _: Client) -> io::Result<Box<dyn Far>> {
        if let Some(errno) = self.errors.lock().expect("no panic").pop() {
            return Err(errno.into());
        }
        let (socket, other) = UnixStream::pair()?;
        self.news.send("begun").expect("the test waits");
        let until = self.patience.map(|patience| Instant::now() + patience);
        Ok(Box::new(Opening { until, socket, _other: other, news: self.news.clone() }))
    }

    fn datagrams(&self, _: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Far for Opening {
    fn is_open(&mut self) -> io::Result<bool> {
        Ok(false)
    }
    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
        poller.add(&self.socket, token, events)
    }
    fn opens_until(&self) -> Option<Instant> {
        self.until
    }
}

impl End for Opening {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        unreachable!("it is not open")
    }
    fn send(&mut self, _: &mut VecDeque<Bytes>, _: usize) -> io::Result<usize> {
        unreachable!("it is not open")
    }
    fn finish(&mut self) -> io::Result<()> {
        unreachable!("it is not open")
    }
    fn reset(&mut self) {
        self.news.send("reset").expect("the test waits");
    }
}

/// A gateway that runs, and the guest's end of its cable.
struct World {
    cable: UnixDatagram,
    news: Receiver<&'static str>,
    handle: GatewayHandle,
    inspector: Inspector,
    /// What connections are to fail with, the next one last.
    errors: Arc<Mutex<Vec<Errno>>>,
    engine: JoinHandle<Figures>,
}

impl World {
    fn new(errors: &[Errno]) -> Self {
        Self::with_patience(errors, None)
    }

    fn with_patience(errors: &[Errno], patience: Option<Duration>) -> Self {
        let (news, told) = channel();
        let errors = Arc::new(Mutex::new(errors.iter().rev().copied().collect()));
        let upstream = Box::new(Scripted { patience, errors: errors.clone(), news });
        Self::over(upstream, GatewayConfig::default(), told, errors)
    }

    fn over(
        upstream: Box<dyn Upstream>,
        config: GatewayConfig,
        news: Receiver<&'static str>,
        errors: Arc<Mutex<Vec<Errno>>>,
    ) -> Self {
        let (gateway, cable) = common::gateway(upstream, config);
        cable.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let (handle, inspector) = (gateway.handle(), gateway.inspector());
        Self { cable, news, handle, inspector, errors, engine: common::run(gateway) }
    }

    /// The guest sends a segment without data.
    fn send(&self, port: u16, is_syn: bool) {
        let builder = PacketBuilder::ipv4(GUEST, FAR, 64);
        let packet = if is_syn {
            builder.tcp(port, 80, 1000, 64_000).syn()
        } else {
            builder.tcp(port, 80, 1001, 0).rst()
        };
        let mut bytes = Vec::new();
        packet.write(&mut bytes, &[]).expect("a packet");
        self.cable.send(&bytes).expect("sent");
    }

    /// What the guest gets: type and code of an ICMP error, or `None` for a reset.
    fn answer(&self) -> Option<(u8, u8)> {
        let mut bytes = [0; 2048];
        let count = self.cable.recv(&mut bytes).expect("an answer");
        let packet = SlicedPacket::from_ip(&bytes[..count]).expect("a packet");
        let Some(NetSlice::Ipv4(ip)) = packet.net else { panic!("not IPv4") };
        if ip.payload_ip_number() == IpNumber::ICMP {
            return Some((ip.payload().payload[0], ip.payload().payload[1]));
        }
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("not TCP") };
        assert!(tcp.rst(), "not a reset");
        None
    }

    fn news(&self) -> &'static str {
        self.news.recv_timeout(PATIENCE).expect("news")
    }

    fn end(self) -> Figures {
        self.handle.stop();
        self.engine.join().expect("no panic")
    }
}

#[test]
fn a_guest_that_gives_up_ends_the_far_connection_at_once() {
    let world = World::new(&[]);
    world.send(PORT, true);
    assert_eq!(world.news(), "begun");
    world.send(PORT, false);
    assert_eq!(world.news(), "reset");
    // The next connection of the same ports is another one.
    world.send(PORT, true);
    assert_eq!(world.news(), "begun");
    let figures = world.end();
    assert_eq!((figures.given_up, figures.unreached), (1, 0));
}

#[test]
fn a_guest_is_told_why_the_far_connection_failed() {
    let expected = [
        (Errno::CONNREFUSED, None),
        (Errno::NETUNREACH, Some((3, 0))),
        (Errno::HOSTUNREACH, Some((3, 1))),
        (Errno::NODEV, Some((3, 0))),
        (Errno::ACCESS, Some((3, 13))),
        (Errno::MFILE, None),
        (Errno::ADDRNOTAVAIL, Some((3, 0))),
    ];
    let world = World::new(&expected.map(|(errno, _)| errno));
    for (port, (errno, answer)) in (PORT..).zip(expected) {
        world.send(port, true);
        assert_eq!(world.answer(), answer, "{errno}");
    }
    let figures = world.end();
    assert_eq!((figures.full, figures.no_port, figures.unreached), (1, 1, 5));
}

#[test]
fn a_far_side_that_does_not_answer_is_silence_for_the_guest() {
    let world = World::new(&[Errno::TIMEDOUT]);
    world.send(PORT, true);
    wait_until(|| world.inspector.figures().unreached == 1);
    // The guest repeats it: another try, before which all is said of the first one.
    world.send(PORT, true);
    assert_eq!(world.news(), "begun");
    world.cable.set_nonblocking(true).expect("a mode");
    let error = world.cable.recv(&mut [0; 2048]).expect_err("the guest hears nothing");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    assert_eq!(world.end().unreached, 1);
}

/// An upstream that fails in one way.
struct Failing(Errno);

impl Upstream for Failing {
    fn connect(&self, _: &Destination, _: Client) -> io::Result<Box<dyn Far>> {
        Err(self.0.into())
    }

    fn datagrams(&self, _: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
        Err(self.0.into())
    }

    fn echo(&self, _: bool) -> io::Result<Box<dyn FarEcho>> {
        Err(self.0.into())
    }
}

#[test]
fn a_lack_of_descriptors_does_not_say_that_pings_are_not_allowed() {
    for (errno, passes) in [(Errno::MFILE, true), (Errno::ACCESS, false)] {
        let upstream = Box::new(Failing(errno));
        let (gateway, _cable) = common::gateway(upstream, GatewayConfig::default());
        assert_eq!(gateway.passes_echo(), [passes; 2], "{errno}");
    }
}

/// An upstream that has pings at first, for which it has no room, and loses its interface.
struct Lost(AtomicUsize);

impl Upstream for Lost {
    fn connect(&self, _: &Destination, _: Client) -> io::Result<Box<dyn Far>> {
        Err(Errno::NODEV.into())
    }

    fn datagrams(&self, _: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
        Err(Errno::NODEV.into())
    }

    fn leaves_by_host(&self) -> bool {
        false
    }

    fn echo(&self, _: bool) -> io::Result<Box<dyn FarEcho>> {
        // It is asked for each family at the start.
        let is_first = self.0.fetch_add(1, Relaxed) < 2;
        Err(if is_first { Errno::MFILE } else { Errno::NODEV }.into())
    }
}

#[test]
fn a_ping_whose_interface_is_gone_is_told_that_there_is_no_way() {
    let (_news, told) = channel();
    let upstream = Box::new(Lost(AtomicUsize::new(0)));
    let world = World::over(upstream, GatewayConfig::default(), told, Arc::default());
    let mut bytes = Vec::new();
    let request = PacketBuilder::ipv4(GUEST, FAR, 64).icmpv4_echo_request(7, 1);
    request.write(&mut bytes, b"anybody").expect("a packet");
    world.cable.send(&bytes).expect("sent");
    assert_eq!(world.answer(), Some((3, 0)));
    let figures = world.end();
    assert_eq!((figures.unsent_echoes, figures.full_echoes), (1, 0));
}

#[test]
fn a_host_without_ports_is_not_asked_for_each_connection() {
    // As many ICMP errors as one guest gets at once.
    let world = World::new(&[Errno::ADDRNOTAVAIL; 5]);
    for port in PORT..PORT + 5 {
        world.send(port, true);
        assert_eq!(world.answer(), Some((3, 0)));
    }
    let left = world.errors.lock().expect("no panic").len();
    assert!(left > 0, "the host was asked each time");
    let figures = world.end();
    assert_eq!((figures.no_port, figures.full), (5, 0));
}

#[test]
fn a_gateway_that_drains_refuses_what_is_new_and_ends_with_the_last_flow() {
    let world = World::new(&[]);
    world.send(PORT, true);
    assert_eq!(world.news(), "begun");
    world.handle.drain(PATIENCE * 60).expect("it runs");
    // Another request is answered behind that one.
    world.handle.published().expect("it runs");
    world.send(PORT + 1, true);
    assert_eq!(world.answer(), None);
    world.send(PORT, false);
    assert_eq!(world.news(), "reset");
    let figures = world.engine.join().expect("it ends by itself");
    assert_eq!((figures.draining, figures.full, figures.given_up), (1, 0, 1));
}

#[test]
fn a_run_that_ends_resets_what_is_not_finished() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let mut config = GatewayConfig::default();
    let to = Ipv4Addr::LOCALHOST.into();
    config.translations = vec![Translation::address(Ipv4Addr::from(FAR).into(), to)];
    let (_, told) = channel();
    let world = World::over(Box::new(Direct), config, told, Arc::default());
    let guest = |seq: u32| PacketBuilder::ipv4(GUEST, FAR, 64).tcp(PORT, port, seq, 64_000);
    let send = |builder: PacketBuilderStep<TcpHeader>, data: &[u8]| {
        let mut bytes = Vec::new();
        builder.write(&mut bytes, data).expect("a packet");
        world.cable.send(&bytes).expect("sent");
    };
    send(guest(1000).syn(), b"");
    let mut bytes = [0; 2048];
    let count = world.cable.recv(&mut bytes).expect("an answer");
    let packet = SlicedPacket::from_ip(&bytes[..count]).expect("a packet");
    let Some(TransportSlice::Tcp(answer)) = packet.transport else { panic!("not TCP") };
    assert!(answer.syn() && answer.ack());
    send(guest(1001).ack(answer.sequence_number() + 1).psh(), b"half of it");
    let (mut stream, _) = listener.accept().expect("the gateway connects");
    stream.read_exact(&mut [0; 10]).expect("what was passed on");
    world.end();
    let error = stream.read(&mut [0; 10]).expect_err("that was not the end");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

/// A port of this machine that leads to port 80 of the guest.
fn publish(world: &World) -> SocketAddr {
    let port = (Ipv4Addr::LOCALHOST, 0).into();
    let guest = (Ipv4Addr::from(GUEST), 80).into();
    let stand_in = Ipv4Addr::new(10, 0, 2, 2).into();
    let transport = Transport::Tcp;
    let publication = Publication { transport, port, guest, stand_in };
    world.handle.publish(publication).expect("published");
    world.handle.published().expect("it runs")[0].publication.port
}

/// Waits until something holds.
fn wait_until(is_it: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_it() {
        assert!(start.elapsed() < PATIENCE, "it does not become so");
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_resets_before_the_guest_has_answered_ends_the_flow_at_once() {
    let world = World::new(&[]);
    let to = publish(&world);
    let [stays, goes] = [(); 2].map(|()| {
        let client = std::net::TcpStream::connect(to).expect("a connection");
        world.cable.recv(&mut [0; 2048]).expect("a SYN, which is not answered");
        client
    });
    let flows = || world.inspector.holdings().expect("it runs").flows.len();
    wait_until(|| flows() == 2);
    // An end is no reset.
    stays.shutdown(Shutdown::Write).expect("open");
    rustix::net::sockopt::set_socket_linger(&goes, Some(Duration::ZERO)).expect("an option");
    drop(goes);
    wait_until(|| world.inspector.figures().given_up > 0);
    assert_eq!(flows(), 1);
    assert_eq!(world.end().given_up, 1);
    drop(stays);
}

#[test]
fn a_gateway_that_drains_waits_for_what_a_guest_has_not_read() {
    // More than the guest takes before it reads, and one piece.
    const SENT: usize = 40_000;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let far = Ipv4Addr::new(10, 0, 2, 7);
    let mut config = GatewayConfig::default();
    config.translations = vec![Translation::address(far.into(), Ipv4Addr::LOCALHOST.into())];
    let (_, told) = channel();
    let World { cable, handle, inspector, engine, .. } =
        World::over(Box::new(Direct), config, told, Arc::default());
    let guest = common::guest(cable);
    guest.set_sysctl("net.ipv4.tcp_rmem", "4096 16384 16384").expect("a small buffer");
    let mut client = TcpStream::connect(&guest, (far, port)).expect("a connection");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (mut server, _) = listener.accept().expect("the gateway connects");
    client.shutdown(Shutdown::Write).expect("open");
    server.write_all(&[7; SENT]).expect("sent");
    drop(server);
    wait_until(|| inspector.figures().finished > 0);
    handle.drain(PATIENCE * 60).expect("it runs");
    // Requests are answered one after the other, and between two the gateway may end.
    (0..3).for_each(|_| drop(handle.published().expect("it runs")));
    let mut received = Vec::new();
    client.read_to_end(&mut received).expect("the end, not a reset");
    assert_eq!(received.len(), SENT);
    drop(client);
    engine.join().expect("it ends by itself");
}

#[test]
fn a_guest_that_is_gone_without_a_word_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let mut config = GatewayConfig::default();
    let to = Ipv4Addr::LOCALHOST.into();
    config.translations = vec![Translation::address(Ipv4Addr::from(FAR).into(), to)];
    let (stack, cable) = common::stack();
    cable.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    for name in ["time", "intvl", "probes"] {
        let name = format!("net.ipv4.tcp_keepalive_{name}");
        stack.set_sysctl(&name, "1").expect("a setting");
    }
    let gateway = Gateway::new(stack, Box::new(Direct), config).expect("a gateway");
    let handle = gateway.handle();
    let engine = common::run(gateway);
    let send = |builder: PacketBuilderStep<TcpHeader>| {
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &[]).expect("a packet");
        cable.send(&bytes).expect("sent");
    };
    let guest = |seq: u32| PacketBuilder::ipv4(GUEST, FAR, 64).tcp(PORT, port, seq, 64_000);
    send(guest(1000).syn());
    let mut bytes = [0; 2048];
    let count = cable.recv(&mut bytes).expect("an answer");
    let packet = SlicedPacket::from_ip(&bytes[..count]).expect("a packet");
    let Some(TransportSlice::Tcp(answer)) = packet.transport else { panic!("not TCP") };
    assert!(answer.syn() && answer.ack());
    send(guest(1001).ack(answer.sequence_number() + 1));
    let (mut stream, _) = listener.accept().expect("the gateway connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let error = stream.read(&mut [0; 10]).expect_err("that was not the end");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    handle.stop();
    assert_eq!(engine.join().expect("no panic").lost, 1);
}

#[test]
fn a_run_that_ends_resets_both_ends_of_a_crossing() {
    let bind = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let (server, door) = (bind(), bind());
    let [to, at] = [&server, &door].map(|one| one.local_addr().expect("an address"));
    let (mut gateway, _cable) = common::gateway(Box::new(Direct), GatewayConfig::default());
    gateway.cross(Transport::Tcp, door.into(), to).expect("a socket that listens");
    let handle = gateway.handle();
    let engine = common::run(gateway);
    let mut client = std::net::TcpStream::connect(at).expect("it is open");
    let (mut stream, _) = server.accept().expect("the gateway connects");
    stream.write_all(b"half of it").expect("sent");
    client.read_exact(&mut [0; 10]).expect("what was passed on");
    handle.stop();
    engine.join().expect("no panic");
    for end in [&mut client, &mut stream] {
        let error = end.read(&mut [0; 10]).expect_err("that was not the end");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_run_that_ends_resets_guests_of_a_stack_that_goes_on() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let mut config = GatewayConfig::default();
    let far = Ipv4Addr::new(10, 0, 2, 7);
    config.translations = vec![Translation::address(far.into(), Ipv4Addr::LOCALHOST.into())];
    let (stack, cable) = common::stack();
    let gateway = Gateway::new(stack.clone(), Box::new(Direct), config).expect("a gateway");
    let handle = gateway.handle();
    let engine = common::run(gateway);
    let guest = common::guest(cable);
    let mut client = TcpStream::connect(&guest, (far, port)).expect("a connection");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (mut stream, _) = listener.accept().expect("the gateway connects");
    stream.write_all(b"half of it").expect("sent");
    client.read_exact(&mut [0; 10]).expect("what was passed on");
    handle.stop();
    engine.join().expect("no panic");
    let error = client.read(&mut [0; 10]).expect_err("that was not the end");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    drop(stack);
}

#[test]
fn the_time_of_a_drain_is_the_longest() {
    let world = World::new(&[]);
    world.send(PORT, true);
    assert_eq!(world.news(), "begun");
    world.handle.drain(Duration::from_millis(10)).expect("it runs");
    let figures = world.engine.join().expect("it ends by itself");
    assert_eq!(figures.given_up, 0);
}

/// A datagram of a guest that has left, to a proxy that has not answered yet.
fn last_datagram() -> (World, TcpListener) {
    let proxy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = proxy.local_addr().expect("an address");
    let upstream = Box::new(Proxy::new(Protocol::Socks5, server, None));
    let world = World::over(upstream, GatewayConfig::default(), channel().1, Arc::default());
    let mut packet = Vec::new();
    let datagram = PacketBuilder::ipv4(GUEST, FAR, 64).udp(PORT, 9);
    datagram.write(&mut packet, b"last").expect("a packet");
    world.cable.send(&packet).expect("sent");
    (world, proxy)
}

#[test]
fn the_last_datagrams_of_guests_wait_for_an_association() {
    let (world, proxy) = last_datagram();
    let (mut stream, _) = proxy.accept().expect("a connection");
    world.handle.finish(PATIENCE).expect("it runs");
    // It is answered behind the other request, unless the run has ended.
    let _ = world.handle.published();
    let relay = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = relay.local_addr().expect("an address").port().to_be_bytes();
    let granted = [&[5, 0, 5, 0, 0, 1, 127, 0, 0, 1][..], &port].concat();
    stream.write_all(&granted).expect("sent");
    let figures = world.engine.join().expect("no panic");
    assert_eq!((figures.datagrams_out, figures.unsent_datagrams), (1, 0));
}

#[test]
fn datagrams_that_wait_for_an_association_at_the_end_are_counted() {
    let (world, proxy) = last_datagram();
    let _stream = proxy.accept().expect("a connection");
    assert_eq!(world.end().unsent_datagrams, 1);
}

#[test]
fn a_far_side_that_does_not_open_in_its_time_is_an_unreachable_host() {
    let world = World::with_patience(&[], Some(Duration::from_millis(10)));
    world.send(PORT, true);
    assert_eq!(world.news(), "begun");
    assert_eq!(world.news(), "reset");
    assert_eq!(world.answer(), Some((3, 1)));
    assert_eq!(world.end().unreached, 1);
}

#[test]
fn datagrams_that_the_upstream_does_not_carry_are_refused_and_counted() {
    let world = World::new(&[]);
    let mut bytes = Vec::new();
    let packet = PacketBuilder::ipv4(GUEST, FAR, 64).udp(PORT, 9);
    packet.write(&mut bytes, b"anybody?").expect("a packet");
    world.cable.send(&bytes).expect("sent");
    assert_eq!(world.answer(), Some((3, 13)));
    assert_eq!(world.end().uncarried_datagrams, 1);
}

#[test]
fn what_is_sent_to_an_own_address_of_the_gateway_is_refused_and_counted() {
    let mut config = GatewayConfig::default();
    let own = [10, 0, 2, 2];
    config.own_addresses = vec![Ipv4Addr::from(own).into()];
    let (_, told) = channel();
    let world = World::over(Box::new(Direct), config, told, Arc::default());
    let mut syn = Vec::new();
    let builder = || PacketBuilder::ipv4(GUEST, own, 64);
    builder().tcp(PORT, 80, 1000, 64_000).syn().write(&mut syn, &[]).expect("a packet");
    let mut datagram = Vec::new();
    builder().udp(PORT, 9).write(&mut datagram, b"anybody?").expect("a packet");
    for (packet, answer) in [(syn, None), (datagram, Some((3, 3)))] {
        world.cable.send(&packet).expect("sent");
        assert_eq!(world.answer(), answer);
    }
    let figures = world.end();
    assert_eq!((figures.unreached, figures.unsent_datagrams), (1, 1));
}

/// Asks the gateway for addresses of names over one connection, all questions at once.
fn ask_over_tcp(questions: u16, rate: Option<Rate>) {
    let mut config = GatewayConfig::default();
    config.rate = rate;
    config.resolver = Resolver::Names;
    config.translations = vec![Translation::resolver("10.0.2.3:53".parse().expect("an address"))];
    let (_, told) = channel();
    let World { cable, handle, engine, .. } =
        World::over(Box::new(Direct), config, told, Arc::default());
    let guest = common::guest(cable);
    let mut stream = TcpStream::connect(&guest, "10.0.2.3:53").expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // The address of `example.org`, behind the length of the question and its ID.
    let rest = b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x01\x00\x01";
    let length = (2 + rest.len() as u16).to_be_bytes();
    let question = |id: u16| [&length[..], &id.to_be_bytes(), rest].concat();
    let asked: Vec<u8> = (0..questions).flat_map(question).collect();
    stream.write_all(&asked).expect("sent");
    for id in 0..questions {
        let mut length = [0; 2];
        stream.read_exact(&mut length).expect("an answer");
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut answer).expect("all of it");
        assert_eq!(answer[..2], id.to_be_bytes());
    }
    handle.stop();
    engine.join().expect("no panic");
}

#[test]
fn a_question_over_tcp_is_answered() {
    ask_over_tcp(1, None);
    ask_over_tcp(1, Some(Rate(1_000_000)));
}

#[test]
fn more_answers_over_tcp_than_may_wait_are_all_sent() {
    ask_over_tcp(1000, None);
}

/// Far sides that are open and have no room. A connection to [`HELD`](Self::HELD) holds the thread
/// of the gateway until it may go on.
struct Full {
    /// Bytes that a call is worth to its connections.
    at_once: usize,
    news: Sender<&'static str>,
    goes_on: Receiver<()>,
}

impl Full {
    const HELD: u16 = 81;
}

struct FullFar {
    at_once: usize,
    socket: UnixStream,
    _other: UnixStream,
}

impl Upstream for Full {
    fn connect(&self, to: &Destination, _: Client) -> io::Result<Box<dyn Far>> {
        if to.address.port() == Self::HELD {
            self.news.send("held").expect("the test waits");
            self.goes_on.recv().expect("the test lets it go on");
            return Err(Errno::CONNREFUSED.into());
        }
        let (socket, other) = UnixStream::pair()?;
        Ok(Box::new(FullFar { at_once: self.at_once, socket, _other: other }))
    }

    fn datagrams(&self, _: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Far for FullFar {
    fn is_open(&mut self) -> io::Result<bool> {
        Ok(true)
    }
    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
        poller.add(&self.socket, token, events)
    }
}

impl End for FullFar {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        Err(io::ErrorKind::WouldBlock.into())
    }
    fn send(&mut self, _: &mut VecDeque<Bytes>, _: usize) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
    fn at_once(&self) -> usize {
        self.at_once
    }
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn reset(&mut self) {}
}

#[test]
fn connections_that_stall_hold_little_together() {
    const FLOWS: usize = 16;
    const AT_ONCE: usize = 192 << 10;
    const BOUND: usize = 256 * 4096;
    /// What each takes beyond the bound.
    const SMALL: usize = 4 << 10;
    let (stack, cable) = common::stack();
    stack.set_sysctl("net.ipv4.tcp_mem", "192 256 8192").expect("bounds");
    let ((news, _told), (_go_on, goes_on)) = (channel(), channel());
    let upstream = Box::new(Full { at_once: AT_ONCE, news, goes_on });
    let gateway = Gateway::new(stack, upstream, GatewayConfig::default()).expect("a gateway");
    let (handle, inspector) = (gateway.handle(), gateway.inspector());
    let engine = common::run(gateway);
    let guest = common::guest(cable);
    let connect = || {
        let client = TcpStream::connect(&guest, "10.0.2.7:80").expect("a connection");
        client.set_nonblocking(true).expect("an option");
        client
    };
    let held = || -> Vec<usize> {
        let flows = inspector.holdings().expect("it runs").flows;
        flows.iter().map(|flow| flow.held).collect()
    };
    let until = |clients: &mut [TcpStream], is_it: &dyn Fn(&[usize]) -> bool| {
        let start = Instant::now();
        loop {
            for client in &mut *clients {
                while client.write(&[0; 16 << 10]).is_ok() {}
            }
            let held = held();
            let sum: usize = held.iter().sum();
            assert!(sum <= BOUND + AT_ONCE + MOST_PIECE + FLOWS * SMALL, "{held:?}");
            if is_it(&held) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{held:?}");
            std::thread::yield_now();
        }
    };
    let mut clients: Vec<_> = (0..FLOWS).map(|_| connect()).collect();
    until(&mut clients, &|held| {
        inspector.figures().memory_pressures > 0 && held.iter().all(|&held| held > 0)
    });
    let wait = |word: &str| {
        let wait = |relay: &RelayReport| relay.waits_for.iter().any(|own| own == word);
        let relays = inspector.relays();
        relays.len() == FLOWS && relays.values().all(wait)
    };
    until(&mut clients, &|_| wait("memory") && wait("far"));
    // There is time to receive more.
    let rounds = Cell::new(0);
    until(&mut clients, &|_| rounds.replace(rounds.get() + 1) == 1000);
    for client in clients {
        client.set_linger(Some(Duration::ZERO)).expect("an option");
    }
    until(&mut [], &<[usize]>::is_empty);
    // The others are gone, and their bytes with them.
    until(&mut [connect()], &|held| held[0] >= AT_ONCE);
    handle.stop();
    assert_eq!(engine.join().expect("no panic").memory_pressures, 1);
}

#[test]
fn under_a_rate_a_guest_that_is_lost_behind_its_bytes_ends_the_flow() {
    let mut config = GatewayConfig::default();
    config.rate = Some(Rate(1_000_000));
    let (news, told) = channel();
    let (go_on, goes_on) = channel();
    let upstream = Box::new(Full { at_once: 1, news, goes_on });
    let world = World::over(upstream, config, told, Arc::default());
    let send = |builder: PacketBuilderStep<TcpHeader>, data: &[u8]| {
        let mut bytes = Vec::new();
        builder.write(&mut bytes, data).expect("a packet");
        world.cable.send(&bytes).expect("sent");
    };
    let answer = |is_it: fn(&TcpHeaderSlice<'_>) -> bool| loop {
        let mut bytes = [0; 2048];
        let count = world.cable.recv(&mut bytes).expect("an answer");
        let packet = SlicedPacket::from_ip(&bytes[..count]).expect("a packet");
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { continue };
        let header = TcpHeaderSlice::from_slice(tcp.header_slice()).expect("a header");
        if is_it(&header) {
            return header.sequence_number();
        }
    };
    let guest = |port: u16, to: u16, seq: u32| {
        PacketBuilder::ipv4(GUEST, FAR, 64).tcp(port, to, seq, 64_000)
    };
    send(guest(PORT, 80, 1000).syn(), b"");
    let next = answer(|tcp| tcp.syn() && tcp.ack()) + 1;
    send(guest(PORT, 80, 1001).ack(next), b"");
    // Requests are answered between the turns of flows, so the first turn is over by now.
    (0..5).for_each(|_| drop(world.handle.published().expect("it runs")));
    // Bytes and the loss behind them come while the gateway is busy: it sees both at once.
    send(guest(PORT + 1, Full::HELD, 1000).syn(), b"");
    assert_eq!(world.news(), "held");
    send(guest(PORT, 80, 1001).ack(next).psh(), b"first");
    send(guest(PORT, 80, 1006).ack(next).psh(), b"second");
    send(guest(PORT, 80, 1012).rst(), b"");
    // The stack answers this one only when the connection is no more.
    send(guest(PORT, 80, 1012).ack(next), b"");
    answer(|tcp| tcp.rst() && !tcp.syn());
    go_on.send(()).expect("it waits");
    let start = Instant::now();
    while world.inspector.figures().lost == 0 {
        assert!(start.elapsed() < PATIENCE, "no event tells of the loss any more");
        std::thread::yield_now();
    }
    world.end();
}
