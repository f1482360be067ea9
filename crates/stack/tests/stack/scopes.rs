//! A host with two links, and peers with link-local addresses on the second one.

use super::common::{self, Shared, WireConfig, World};
use super::{SECOND, address, pattern, transfer};
use bytes::Bytes;
use core::net::{SocketAddr, SocketAddrV6};
use neap_stack::drop_reason::DropReason;
use neap_stack::interface::InterfaceId;
use neap_stack::route::{Route, RouteEntry};
use neap_stack::socket::SocketError;
use neap_stack::socket::icmp::{IcmpMessage, IcmpOptions};
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::socket::udp::{Refusal, SendDatagram, UdpHandle};
use neap_stack::stack::{
    ConnectOptions, ListenOptions, Stack, TcpForwarderOptions, UdpForwarderOptions, UdpOptions,
};
use neap_tcp::connection::ConnectionError;
use neap_tcp::options::SocketOptions;
use neap_tcp::state::State;
use neap_tcp::time::Nanos;

/// A world in which a has `fe80::1` on the first link and `fe80::2` on the second one, where b has
/// `fe80::9`. On the first link is nobody with such an address.
struct Links {
    world: World,
    /// Of a, on the second link.
    a: InterfaceId,
    /// Of b, on the second link.
    b: InterfaceId,
    /// From a to b on the second link.
    ab: Shared,
    /// From b to a on the second link.
    ba: Shared,
}

impl Links {
    fn new(wire: &WireConfig) -> Self {
        let world = World::new(wire);
        world.a.add_address(world.a_interface, "fe80::1/64".parse().unwrap()).unwrap();
        let (ab, ba) = (Shared::default(), Shared::default());
        let (a_end, b_end) = (common::device(wire, 3, &ab, &ba), common::device(wire, 4, &ba, &ab));
        let own = |text: &str| [text.parse().unwrap()];
        let a = world.a.add_interface(world.now, a_end, &own("fe80::2/64")).unwrap();
        let b = world.b.add_interface(world.now, b_end, &own("fe80::9/64")).unwrap();
        Self { world, a, b, ab, ba }
    }

    fn both() -> [Self; 2] {
        [false, true].map(|ethernet| Self::new(&WireConfig { ethernet, ..WireConfig::default() }))
    }

    /// Nothing of what has happened was sent on the first link.
    fn check_first_link(&self) {
        let sent = self.world.ab.lock().unwrap().sent.clone();
        assert_eq!(sent, Vec::<Bytes>::new());
    }

    /// An address of b as a names it.
    fn peer(&self, port: u16) -> SocketAddr {
        on("fe80::9", port, self.a)
    }

    /// The address of a on the second link, as b names it.
    fn own(&self, port: u16) -> SocketAddr {
        on("fe80::2", port, self.b)
    }
}

/// An address of the link of an interface.
fn on(ip: &str, port: u16, interface: InterfaceId) -> SocketAddr {
    SocketAddrV6::new(ip.parse().unwrap(), port, 0, interface.index()).into()
}

fn bind(stack: &Stack, local: &str) -> UdpHandle {
    stack.bind_udp(address(local), UdpOptions::default()).unwrap()
}

fn word() -> Bytes {
    Bytes::from_static(b"word")
}

fn open(world: &mut World, by_a: bool, to: SocketAddr) -> (TcpHandle, TcpHandle) {
    let (from, there) = if by_a { (&world.a, &world.b) } else { (&world.b, &world.a) };
    let listener = there.listen(address("[::]:80"), ListenOptions::default()).unwrap();
    let client = from.connect(world.now, to, ConnectOptions::default()).unwrap();
    world.run(SECOND);
    let (server, peer) = listener.accept().expect("a connection");
    assert_eq!(peer, server.remote_addr());
    assert_eq!(client.remote_addr(), to);
    (client, server)
}

#[test]
fn a_connection_to_an_address_with_a_scope_is_made_on_that_link() {
    for mut links in Links::both() {
        let to = links.peer(80);
        let (client, server) = open(&mut links.world, true, to);
        assert_eq!(client.local_addr(), on("fe80::2", client.local_addr().port(), links.a));
        transfer(&mut links.world, &client, &server, &pattern(100_000));
        transfer(&mut links.world, &server, &client, &pattern(100_000));
        links.check_first_link();
    }
}

#[test]
fn a_connection_that_came_on_a_link_is_answered_there_to_its_end() {
    for mut links in Links::both() {
        let to = links.own(80);
        let (client, server) = open(&mut links.world, false, to);
        assert_eq!(server.remote_addr(), links.peer(client.local_addr().port()));
        transfer(&mut links.world, &server, &client, &pattern(100_000));
        // Its way is looked for again when the network has changed.
        let world = &mut links.world;
        world.a.add_address(world.a_interface, "fe80::3/64".parse().unwrap()).unwrap();
        transfer(&mut links.world, &server, &client, &pattern(100_000));
        // Whoever closes first answers a FIN that comes again from TIME-WAIT.
        server.shutdown_write(links.world.now);
        links.world.run(SECOND);
        let now = links.world.now;
        let mut fin_comes_again = 2;
        let mut lossy = links.ab.lock().unwrap();
        lossy.filter = Some(Box::new(move |_| {
            fin_comes_again -= i32::from(fin_comes_again > 0);
            fin_comes_again == 0
        }));
        drop(lossy);
        client.shutdown_write(now);
        drop(server);
        links.world.run(Nanos::from_secs(10));
        let state = client.state(links.world.now);
        assert_eq!(state, State::Closed, "its FIN was acknowledged");
        links.check_first_link();
    }
}

#[test]
fn a_refused_connection_is_reset_on_its_link() {
    for mut links in Links::both() {
        let client =
            links.world.b.connect(links.world.now, links.own(81), ConnectOptions::default());
        let client = client.unwrap();
        links.world.run(SECOND);
        assert_eq!(client.take_error(links.world.now), Some(ConnectionError::Refused));
        links.check_first_link();
    }
}

#[test]
fn a_ping_is_answered_on_its_link() {
    for mut links in Links::both() {
        let options =
            IcmpOptions { own: true, foreign: false, transparent: false, interface: None };
        let pings = links.world.b.open_icmp(options).unwrap();
        let echo = Bytes::from_static(&[128, 0, 0, 0, 0, 1, 0, 1]);
        let (from, to) = ("fe80::9".parse().unwrap(), "fe80::2".parse().unwrap());
        pings.send(links.world.now, &IcmpMessage::new(from, to, echo)).unwrap();
        links.world.run(SECOND);
        assert_eq!(pings.recv().unwrap().kind(), 129);
        links.check_first_link();
    }
}

#[test]
fn a_socket_of_icmp_answers_on_the_link_of_the_message() {
    let mut links = Links::new(&WireConfig::default());
    let options = IcmpOptions { own: true, foreign: false, transparent: false, interface: None };
    let [near, far] = [&links.world.a, &links.world.b].map(|one| one.open_icmp(options.clone()));
    let (near, far) = (near.unwrap(), far.unwrap());
    let echo = Bytes::from_static(&[128, 0, 0, 0, 0, 1, 0, 1]);
    let (from, to) = ("fe80::9".parse().unwrap(), "fe80::2".parse().unwrap());
    far.send(links.world.now, &IcmpMessage::new(from, to, echo)).unwrap();
    links.world.run(SECOND);
    assert_eq!(far.recv().unwrap().kind(), 129, "that of the host");
    let message = near.recv().unwrap();
    assert_eq!(message.interface, Some(links.a));
    near.send(links.world.now, &message.echo_reply().unwrap()).unwrap();
    links.world.run(SECOND);
    assert_eq!(far.recv().unwrap().source, to);
    links.check_first_link();
}

#[test]
fn a_datagram_for_nobody_is_refused_on_its_link() {
    for mut links in Links::both() {
        let client = bind(&links.world.b, "[::]:0");
        client.connect(Some(links.own(9))).unwrap();
        client.send_to(links.world.now, word(), None).unwrap();
        links.world.run(SECOND);
        assert_eq!(client.recv_from().unwrap_err(), SocketError::Refused);
        links.check_first_link();
    }
}

#[test]
fn datagrams_go_to_the_link_of_their_address_and_show_it() {
    for mut links in Links::both() {
        let (client, server) = (bind(&links.world.a, "[::]:0"), bind(&links.world.b, "[::]:53"));
        client.send_to(links.world.now, word(), Some(links.peer(53))).unwrap();
        links.world.run(SECOND);
        let question = server.recv_from().unwrap();
        assert_eq!(question.from, links.own(client.local_addr().port()));
        // Their sender is answered as it is shown.
        server.send_to(links.world.now, word(), Some(question.from)).unwrap();
        links.world.run(SECOND);
        assert_eq!(client.recv_from().unwrap().from, links.peer(53));
        // A connected socket does the same, and hears of that peer only.
        client.connect(Some(links.peer(53))).unwrap();
        assert_eq!(client.remote_addr(), Some(links.peer(53)));
        let batch = (0..3).map(|_| SendDatagram::new(word(), None));
        assert_eq!(client.send_batch(links.world.now, batch), (3, Ok(())));
        links.world.run(SECOND);
        assert_eq!(core::iter::from_fn(|| server.recv_from().ok()).count(), 3);
        server.send_to(links.world.now, word(), Some(question.from)).unwrap();
        links.world.run(SECOND);
        assert_eq!(client.recv_from().unwrap().from, links.peer(53));
        // Its link is that of a link-local address which names none.
        client.send_to(links.world.now, word(), Some(address("[fe80::9]:53"))).unwrap();
        links.world.run(SECOND);
        assert!(server.recv_from().is_ok());
        links.check_first_link();
    }
}

#[test]
fn a_connected_datagram_socket_shows_the_link_of_its_own_address() {
    let links = Links::new(&WireConfig::default());
    let socket = bind(&links.world.a, "[::]:0");
    let port = socket.local_addr().port();
    socket.connect(Some(links.peer(53))).unwrap();
    assert_eq!(socket.name(), on("fe80::2", port, links.a));
    assert_eq!(links.world.a.sockets(links.world.now).udp[0].local, socket.name());
    socket.connect(None).unwrap();
    assert_eq!(socket.name(), address(&format!("[::]:{port}")));
}

#[test]
fn what_is_left_of_a_connection_is_listed_with_the_link_of_both_ends() {
    let mut links = Links::new(&WireConfig::default());
    let to = links.peer(80);
    let (client, server) = open(&mut links.world, true, to);
    let own = client.local_addr();
    client.shutdown_write(links.world.now);
    links.world.run(SECOND);
    server.shutdown_write(links.world.now);
    links.world.run(SECOND);
    drop((client, server));
    links.world.settle();
    let listed = links.world.a.sockets(links.world.now).buckets;
    let [waiting] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((waiting.state, waiting.local, waiting.remote), (State::TimeWait, own, to));
}

#[test]
fn connections_that_are_not_open_yet_are_listed_with_the_link_of_both_ends() {
    let mut links = Links::new(&WireConfig::default());
    let _listener = links.world.a.listen(address("[::]:80"), ListenOptions::default()).unwrap();
    let _forwarder = links.world.a.forward_tcp(TcpForwarderOptions::default()).unwrap();
    // Nothing of what a answers arrives.
    links.ab.lock().unwrap().filter = Some(Box::new(|_| false));
    for port in [80, 81] {
        let options = ConnectOptions::default();
        let client = links.world.b.connect(links.world.now, links.own(port), options).unwrap();
        links.world.run(Nanos::from_millis(10));
        let listed = links.world.a.sockets(links.world.now).buckets;
        let of_port = listed.iter().find(|one| one.local.port() == port).expect("a connection");
        assert_eq!(of_port.local, on("fe80::2", port, links.a));
        assert_eq!(of_port.remote, links.peer(client.local_addr().port()));
        assert_eq!(of_port.state, State::SynReceived);
    }
}

#[test]
fn a_socket_that_is_connected_to_another_link_sends_from_the_address_there() {
    for mut links in Links::both() {
        let (client, server) = (bind(&links.world.a, "[::]:0"), bind(&links.world.b, "[::]:53"));
        client.connect(Some(on("fe80::9", 53, links.world.a_interface))).unwrap();
        client.connect(Some(links.peer(53))).unwrap();
        client.send_to(links.world.now, word(), None).unwrap();
        links.world.run(SECOND);
        let question = server.recv_from().unwrap();
        assert_eq!(question.from, links.own(client.local_addr().port()));
        server.send_to(links.world.now, word(), Some(question.from)).unwrap();
        links.world.run(SECOND);
        assert_eq!(client.recv_from().unwrap().from, links.peer(53));
        links.check_first_link();
    }
}

#[test]
fn a_datagram_cannot_be_sent_from_an_address_of_another_link() {
    let links = Links::new(&WireConfig::default());
    let socket = bind(&links.world.a, "[::]:0");
    let send = |from: &str, to: SocketAddr| {
        let from = Some(address(from));
        let datagram = SendDatagram { from, ..SendDatagram::new(word(), Some(to)) };
        socket.send_batch(links.world.now, [datagram]).1
    };
    assert_eq!(send("[fe80::1]:0", links.peer(53)), Err(SocketError::InvalidArgument));
    assert_eq!(send("[fe80::2]:0", links.peer(53)), Ok(()));
    // One of all links may be named on each, and one's own host is on none.
    assert_eq!(send("[fd00::1]:0", links.peer(53)), Ok(()));
    assert_eq!(send("[fe80::1]:0", address("[fe80::2]:53")), Ok(()));
    // Without a scope it is the first link.
    assert_eq!(send("[fe80::2]:0", address("[fe80::9]:53")), Err(SocketError::InvalidArgument));
    assert_eq!(send("[fe80::1]:0", address("[fe80::9]:53")), Ok(()));
}

#[test]
fn no_router_is_asked_for_a_link_local_address_without_a_scope() {
    let wire = WireConfig { ethernet: true, ..WireConfig::default() };
    let mut world = World::new(&wire);
    world.b.add_address(world.b_interface, "fe80::9/64".parse().unwrap()).unwrap();
    // Nobody has this address.
    let gateway = Some("fd00::77".parse().unwrap());
    let route = Route { interface: world.a_interface, gateway, mtu: None, pref_src: None };
    let entry = RouteEntry { prefix: "::/0".parse().unwrap(), metric: 0, route };
    world.a.add_route(entry).unwrap();
    let (client, server) = (bind(&world.a, "[::]:0"), bind(&world.b, "[::]:53"));
    let peer = address("[fe80::9]:53");
    client.send_to(world.now, word(), Some(peer)).unwrap();
    world.run(SECOND);
    assert!(server.recv_from().is_ok());
    client.connect(Some(peer)).unwrap();
    assert_eq!(client.remote_addr(), Some(on("fe80::9", 53, world.a_interface)));
    client.send_to(world.now, word(), None).unwrap();
    world.run(SECOND);
    assert!(server.recv_from().is_ok());
    let to = on("fe80::9", 80, world.a_interface);
    open(&mut world, true, to);
    let asks_for_router = |frame: &Bytes| {
        let router: core::net::Ipv6Addr = "fd00::77".parse().unwrap();
        frame.windows(16).any(|part| part == router.octets())
    };
    assert!(!world.ab.lock().unwrap().sent.iter().any(asks_for_router));
}

#[test]
fn a_server_answers_a_peer_on_the_link_that_it_asked_on() {
    for mut links in Links::both() {
        let (server, client) = (bind(&links.world.a, "[::]:53"), bind(&links.world.b, "[::]:0"));
        client.send_to(links.world.now, word(), Some(links.own(53))).unwrap();
        links.world.run(SECOND);
        let question = server.recv_from().unwrap();
        let answer = SendDatagram {
            from: Some(question.to),
            ..SendDatagram::new(word(), Some(question.from))
        };
        assert_eq!(server.send_batch(links.world.now, [answer.clone()]).1, Ok(()));
        links.world.run(SECOND);
        assert_eq!(client.recv_from().unwrap().from, links.own(53));
        // The interface that is asked for has to be that of the address.
        let elsewhere = SendDatagram { interface: Some(links.world.a_interface), ..answer };
        let refused = server.send_batch(links.world.now, [elsewhere]).1;
        assert_eq!(refused, Err(SocketError::InvalidArgument));
        server.refuse(links.world.now, &question, Refusal::Port).unwrap();
        links.world.run(SECOND);
        links.check_first_link();
    }
}

#[test]
fn a_link_that_is_not_there_cannot_be_reached() {
    let links = Links::new(&WireConfig::default());
    let world = &links.world;
    for scope in [1, links.a.index() + 1] {
        let to = SocketAddr::from(SocketAddrV6::new("fe80::9".parse().unwrap(), 53, 0, scope));
        let none = Err(SocketError::NetworkUnreachable);
        let connected = world.a.connect(world.now, to, ConnectOptions::default());
        assert_eq!(connected.map(drop), none);
        let socket = bind(&world.a, "[::]:0");
        assert_eq!(socket.connect(Some(to)), none);
        assert_eq!(socket.send_to(world.now, word(), Some(to)), none);
    }
}

#[test]
fn an_address_without_a_scope_is_on_the_first_link() {
    let mut links = Links::new(&WireConfig::default());
    let socket = bind(&links.world.a, "[::]:0");
    let first = on("fe80::9", 53, links.world.a_interface);
    socket.connect(Some(address("[fe80::9]:53"))).unwrap();
    assert_eq!(socket.remote_addr(), Some(first));
    // So it does not hear of the host with that address on the second one.
    let server = bind(&links.world.b, "[::]:53");
    server.send_to(links.world.now, word(), Some(links.own(socket.local_addr().port()))).unwrap();
    links.world.run(SECOND);
    assert_eq!(socket.recv_from().unwrap_err(), SocketError::WouldBlock);
    let options = ConnectOptions::default();
    let client = links.world.a.connect(links.world.now, address("[fe80::9]:53"), options);
    assert_eq!(client.unwrap().remote_addr(), first);
}

#[test]
fn own_addresses_need_no_scope_and_have_none() {
    let mut links = Links::new(&WireConfig::default());
    let server = bind(&links.world.a, "[::]:53");
    let socket = bind(&links.world.a, "[::]:0");
    for to in [address("[fe80::2]:53"), on("fe80::2", 53, links.a)] {
        socket.connect(Some(to)).unwrap();
        socket.send_to(links.world.now, word(), None).unwrap();
        links.world.settle();
        let question = server.recv_from().unwrap();
        assert_eq!(question.from.ip(), to.ip());
        server.send_to(links.world.now, word(), Some(question.from)).unwrap();
        links.world.settle();
        assert_eq!(socket.recv_from().unwrap().data, word());
    }
    let listener = links.world.a.listen(address("[::]:80"), ListenOptions::default()).unwrap();
    let to = on("fe80::2", 80, links.a);
    let client = links.world.a.connect(links.world.now, to, ConnectOptions::default()).unwrap();
    links.world.run(SECOND);
    assert!(listener.accept().is_ok());
    assert!(client.readiness().bits().contains(Ready::WRITABLE));
}

#[test]
fn two_links_have_a_connection_each_with_the_same_addresses_and_ports() {
    let mut links = Links::new(&WireConfig::default());
    let world = &mut links.world;
    world.b.add_address(world.b_interface, "fe80::9/64".parse().unwrap()).unwrap();
    let listener = world.b.listen(address("[::]:80"), ListenOptions::default()).unwrap();
    let local = Some(address("[fe80::1]:5000"));
    let clients = [world.a_interface, links.a].map(|link| {
        let options = ConnectOptions { local, reuse_address: true, ..ConnectOptions::default() };
        world.a.connect(world.now, on("fe80::9", 80, link), options).unwrap()
    });
    world.run(SECOND);
    let peers = [(); 2].map(|()| listener.accept().unwrap());
    let mut scopes = peers.each_ref().map(|(_, peer)| *peer);
    scopes.sort();
    let links = [world.b_interface, links.b];
    assert_eq!(scopes, links.map(|link| on("fe80::1", 5000, link)));
    for (server, peer) in &peers {
        let at = links.iter().position(|&link| *peer == on("fe80::1", 5000, link)).unwrap();
        transfer(world, &clients[at], server, &pattern(10_000));
        transfer(world, server, &clients[at], &pattern(10_000));
    }
}

#[test]
fn who_is_not_on_the_link_is_told_of_to_the_socket_that_asked() {
    let wire = WireConfig { ethernet: true, ..WireConfig::default() };
    let mut links = Links::new(&wire);
    let socket = bind(&links.world.a, "[::]:0");
    socket.set_receive_errors(true, true);
    let to = on("fe80::77", 53, links.a);
    socket.connect(Some(to)).unwrap();
    socket.send_to(links.world.now, word(), None).unwrap();
    let client = links.world.a.connect(links.world.now, to, ConnectOptions::default()).unwrap();
    links.world.run(Nanos::from_secs(5));
    assert_eq!(socket.next_error().unwrap().destination, to);
    let error = client.take_error(links.world.now);
    assert_eq!(error, Some(ConnectionError::HostUnreachable));
    links.check_first_link();
}

#[test]
fn forwarders_answer_on_the_link_of_the_guest() {
    let mut links = Links::new(&WireConfig::default());
    let world = &mut links.world;
    let tcp = world.a.forward_tcp(TcpForwarderOptions::default()).unwrap();
    let udp = world.a.forward_udp(UdpForwarderOptions::default()).unwrap();
    let to = on("fe80::2", 80, links.b);
    let connect = |world: &World| world.b.connect(world.now, to, ConnectOptions::default());
    let accepted = connect(world).unwrap();
    world.run(Nanos::from_millis(100));
    let pending = tcp.receive().unwrap();
    let server = pending.accept(world.now, SocketOptions::default()).unwrap();
    world.run(Nanos::from_millis(100));
    transfer(world, &server, &accepted, &pattern(10_000));
    let rejected = connect(world).unwrap();
    world.run(Nanos::from_millis(100));
    tcp.receive().unwrap().reject(world.now, Refusal::Port);
    world.run(Nanos::from_millis(100));
    assert_eq!(rejected.take_error(world.now), Some(ConnectionError::Refused));
    let guest = bind(&world.b, "[::]:0");
    guest.connect(Some(on("fe80::2", 53, links.b))).unwrap();
    guest.send_to(world.now, word(), None).unwrap();
    world.run(SECOND);
    let question = udp.recv_from().unwrap();
    let answer =
        SendDatagram { from: Some(question.to), ..SendDatagram::new(word(), Some(question.from)) };
    assert_eq!(udp.send_batch(world.now, [answer]).1, Ok(()));
    udp.refuse(world.now, &question, Refusal::Port).unwrap();
    world.run(SECOND);
    assert_eq!(guest.recv_from().unwrap_err(), SocketError::Refused);
    assert_eq!(guest.recv_from().unwrap().data, word());
    links.check_first_link();
}

#[test]
fn a_peer_with_an_own_address_of_another_link_is_not_heard() {
    let mut links = Links::new(&WireConfig::default());
    links.world.b.add_address(links.b, "fe80::1/64".parse().unwrap()).unwrap();
    let server = bind(&links.world.a, "[::]:53");
    let martians = |links: &Links| links.world.a.drops().get(DropReason::IpMartian);
    for (from, dropped) in [("[fe80::9]:0", 0), ("[fe80::1]:0", 1)] {
        let client = bind(&links.world.b, from);
        client.send_to(links.world.now, word(), Some(links.own(53))).unwrap();
        links.world.run(SECOND);
        assert_eq!(server.recv_from().is_ok(), dropped == 0, "{from}");
        assert_eq!(martians(&links), dropped, "{from}");
    }
}

#[test]
fn who_is_told_of_missing_fragments_is_told_on_the_first_link() {
    let mut links = Links::new(&WireConfig::default());
    let mut passed = 0;
    links.ba.lock().unwrap().filter = Some(Box::new(move |_| {
        passed += 1;
        passed == 1
    }));
    let client = bind(&links.world.b, "[fe80::9]:0");
    let data = Bytes::from(pattern(5000));
    client.send_to(links.world.now, data, Some(links.own(53))).unwrap();
    links.world.run(Nanos::from_secs(70));
    assert!(links.ba.lock().unwrap().sent.len() > 1, "fragments");
    let first = links.world.ab.lock().unwrap();
    let [message] = &first.sent[..] else { panic!("{:?}", first.sent) };
    let ip = |at: usize| message[at..at + 16].try_into().map(u128::from_be_bytes).unwrap();
    let ends = [8, 24].map(|at| core::net::Ipv6Addr::from(ip(at)).to_string());
    assert_eq!(ends, ["fe80::2", "fe80::9"]);
    assert_eq!(message[40..42], [3, 1], "a time that was exceeded, for fragments");
    assert!(links.ab.lock().unwrap().sent.is_empty());
}
