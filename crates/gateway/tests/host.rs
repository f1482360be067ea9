//! A gateway between a guest on a stack of this test and sockets of the host: published UDP ports,
//! and what a guest is told where the host has no way.

mod common;
#[path = "../../cli/tests/common/namespace.rs"]
mod namespace;

use namespace::{in_namespace, run};
use neap::{
    IcmpMessage, IcmpOptions, IcmpSocket, Stack, TcpStream as GuestTcp, UdpSocket as GuestUdp,
};
use neap_gateway::proxy::{Protocol, Proxy};
use neap_gateway::{
    Direct, DirectFrom, Figures, Gateway, GatewayConfig, GatewayHandle, Outbound, Policy,
    Publication, Translation, Transport, Upstream,
};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Far above what anything takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// A guest and its published port.
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
const PORT: u16 = 7;

/// A gateway that runs, and the stack of its guest.
struct World {
    guest: Arc<Stack>,
    handle: GatewayHandle,
    engine: JoinHandle<Figures>,
}

impl World {
    fn new(upstream: Box<dyn Upstream>, config: GatewayConfig) -> Self {
        let (gateway, cable) = common::gateway(upstream, config);
        let (handle, guest) = (gateway.handle(), Arc::new(common::guest(cable)));
        Self { guest, handle, engine: common::run(gateway) }
    }

    /// Publishes the port of the guest on all addresses of the host; returns the port there.
    fn publish(&self) -> u16 {
        let any = (Ipv4Addr::UNSPECIFIED, 0).into();
        let stand_in = Ipv4Addr::new(10, 0, 2, 2).into();
        let transport = Transport::Udp;
        let publication = Publication { transport, port: any, guest: at_guest(), stand_in };
        self.handle.publish(publication).expect("published");
        self.handle.published().expect("it runs")[0].publication.port.port()
    }

    /// A socket of the guest that answers each datagram with so many bytes.
    fn answer(&self, bytes: usize) -> GuestUdp {
        let socket = GuestUdp::bind(&self.guest, (GUEST, PORT)).expect("a socket");
        let own = socket.clone();
        thread::spawn(move || {
            let mut buffer = [0; 2000];
            while let Ok((_, from)) = own.recv_from(&mut buffer) {
                let _ = own.send_to(&vec![1; bytes], from);
            }
        });
        socket
    }

    fn end(self) -> Figures {
        self.handle.stop();
        self.engine.join().expect("no panic")
    }
}

fn at_guest() -> SocketAddr {
    (GUEST, PORT).into()
}

/// A client of the host's loopback that speaks to one server.
fn client(server: Ipv4Addr, port: u16) -> UdpSocket {
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    client.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    client.connect((server, port)).expect("connected");
    client
}

/// Asks until there is an answer.
fn ask(client: &UdpSocket) -> io::Result<usize> {
    let mut got = Err(io::ErrorKind::NotFound.into());
    for _ in 0..PATIENCE.as_secs() {
        client.send(b"hello").expect("sent");
        got = client.recv(&mut [0; 2000]);
        if got.is_ok() {
            break;
        }
    }
    got
}

/// A guest sends datagrams until it is told why they do not arrive: by this code of ICMP.
fn assert_is_told(world: &World, far: Ipv4Addr, code: u8) {
    let socket = GuestUdp::bind(&world.guest, (GUEST, PORT)).expect("a socket");
    socket.set_receive_errors(true).expect("set");
    socket.set_nonblocking(true).expect("set");
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        // It may be the error of an earlier one.
        let _ = socket.send_to(b"hello", (far, 9));
        thread::sleep(Duration::from_millis(100));
        if let Ok(record) = socket.recv_error() {
            return assert_eq!((record.kind, record.code), (3, code));
        }
    }
    panic!("the guest is told nothing");
}

#[test]
fn a_guest_is_told_of_answers_that_are_longer_than_the_path_takes() {
    in_namespace(|| {
        run("ip link set lo up");
        // What a router has told the host.
        run("ip route change local 127.0.0.1 dev lo table local mtu 1280");
        let world = World::new(Box::new(Direct), GatewayConfig::default());
        let port = world.publish();
        // It fits the MTU of the guest, which does not let it be cut.
        let _guest = world.answer(1400);
        let got = ask(&client(Ipv4Addr::LOCALHOST, port));
        assert_eq!(got.expect("the guest has learned the path MTU"), 1400);
        assert!(world.end().undelivered_datagrams > 0);
    });
}

#[test]
fn answers_that_are_longer_than_the_link_of_the_host_takes_are_cut() {
    in_namespace(|| {
        run("ip link set lo up mtu 1280");
        let world = World::new(Box::new(Direct), GatewayConfig::default());
        let port = world.publish();
        let _guest = world.answer(1400);
        let client = client(Ipv4Addr::LOCALHOST, port);
        // The second one is known to be too long.
        for _ in 0..2 {
            assert_eq!(ask(&client).expect("it comes in fragments"), 1400);
        }
        let figures = world.end();
        assert_eq!((figures.undelivered_datagrams, figures.unsent_datagrams), (0, 0));
    });
}

#[test]
fn a_client_gets_its_answer_from_the_address_that_it_asked() {
    let world = World::new(Box::new(Direct), GatewayConfig::default());
    let port = world.publish();
    let _guest = world.answer(5);
    for server in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)] {
        assert_eq!(ask(&client(server, port)).expect("an answer"), 5, "{server}");
    }
    world.end();
}

#[test]
fn what_a_guest_begins_from_a_published_port_leaves_as_all_else() {
    in_namespace(|| {
        run("ip link set lo up");
        run("ip address add 192.0.2.1/24 dev lo");
        run("ip address add 192.0.2.2/24 dev lo");
        let (ours, real) = (Ipv4Addr::new(192, 0, 2, 2), Ipv4Addr::new(192, 0, 2, 1));
        let outbound = Outbound { v4: Some(ours), ..Outbound::default() };
        let far = Ipv4Addr::new(10, 0, 2, 9).into();
        let mut config = GatewayConfig::default();
        config.outbound = outbound.clone();
        config.translations = vec![Translation::address(far, real.into())];
        let world = World::new(Box::new(DirectFrom(outbound)), config);
        let port = world.publish();
        let server = server(real);
        let guest = world.answer(5);
        let to = SocketAddr::new(far, server.local_addr().expect("a port").port());
        guest.send_to(b"hello", to).expect("sent");
        let (_, from) = server.recv_from(&mut [0; 100]).expect("it comes");
        assert_eq!(from.ip(), ours);
        assert_eq!(ask(&client(Ipv4Addr::LOCALHOST, port)).expect("the port answers itself"), 5);
        world.end();
    });
}

/// A socket of the host that waits for datagrams.
fn server(at: Ipv4Addr) -> UdpSocket {
    let server = UdpSocket::bind((at, 0)).expect("a socket");
    server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    server
}

#[test]
fn dscp_and_ecn_pass_in_both_directions() {
    const EF_ECT_0: u8 = 46 << 2 | 2;
    const CE: u8 = 3;
    let far = Ipv4Addr::new(10, 0, 2, 9);
    let mut config = GatewayConfig::default();
    config.translations = vec![Translation::address(far.into(), Ipv4Addr::LOCALHOST.into())];
    let world = World::new(Box::new(Direct), config);
    let server = server(Ipv4Addr::LOCALHOST);
    rustix::net::sockopt::set_ip_recvtos(&server, true).expect("set");
    let guest = GuestUdp::bind(&world.guest, (GUEST, PORT)).expect("a socket");
    guest.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    guest.set_tos(EF_ECT_0).expect("set");
    let port = server.local_addr().expect("a port").port();
    guest.send_to(b"hello", (far, port)).expect("sent");
    let (mut data, mut control) = ([0; 100], nix::cmsg_space!(u8));
    let parts = &mut [io::IoSliceMut::new(&mut data)];
    let (descriptor, flags) = (server.as_raw_fd(), MsgFlags::empty());
    let arrived = recvmsg::<SockaddrIn>(descriptor, parts, Some(&mut control), flags);
    let arrived = arrived.expect("it comes");
    let from: SocketAddrV4 = arrived.address.expect("an address").into();
    let said: Vec<_> = arrived.cmsgs().expect("there is room").collect();
    assert!(matches!(said[..], [ControlMessageOwned::Ipv4Tos(EF_ECT_0)]), "{said:?}");
    rustix::net::sockopt::set_ip_tos(&server, CE).expect("set");
    server.send_to(b"answer", from).expect("sent");
    let mut answers = Vec::new();
    guest.recv_batch(&mut answers, 1).expect("the answer");
    assert_eq!(answers[0].arrival.expect("it was received").tos, CE);
    world.end();
}

#[test]
fn the_hosts_loopback_is_reached_beside_an_interface_that_all_else_leaves_by() {
    in_namespace(|| {
        run("ip link set lo up");
        run("ip link add out type veth peer name nobody");
        run("ip link set nobody up");
        run("ip address add 192.0.2.1/24 dev out");
        run("ip link set out up");
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").expect("a setting");
        let outbound = Outbound { interface_v4: Some("out".into()), ..Outbound::default() };
        let (loopback, elsewhere) = (Ipv4Addr::new(10, 0, 2, 7), Ipv4Addr::new(10, 0, 2, 8));
        let mut config = GatewayConfig::default();
        config.outbound = outbound.clone();
        config.translations = vec![
            Translation::address(loopback.into(), Ipv4Addr::LOCALHOST.into()),
            Translation::address(elsewhere.into(), Ipv4Addr::new(192, 0, 2, 9).into()),
        ];
        let world = World::new(Box::new(DirectFrom(outbound)), config);
        let server = server(Ipv4Addr::LOCALHOST);
        let port = server.local_addr().expect("a port").port();
        let guest = GuestUdp::bind(&world.guest, (GUEST, PORT)).expect("a socket");
        guest.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        guest.send_to(b"there?", (elsewhere, 9)).expect("sent");
        guest.send_to(b"hello", (loopback, port)).expect("sent");
        let mut data = [0; 100];
        let (_, from) = server.recv_from(&mut data).expect("it comes");
        assert_eq!(from.ip(), Ipv4Addr::LOCALHOST);
        server.send_to(b"answer", from).expect("sent");
        let (count, from) = guest.recv_from(&mut data).expect("the answer");
        assert_eq!((&data[..count], from), (&b"answer"[..], (loopback, port).into()));
        let options =
            IcmpOptions { foreign: false, own: true, interface: None, transparent: false };
        let icmp = IcmpSocket::open(&world.guest, options).expect("a socket");
        icmp.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        for to in [elsewhere, loopback] {
            let request = vec![8, 0, 0, 0, 0, 1, 0, 2, b'x'];
            icmp.send(&IcmpMessage::new(GUEST.into(), to.into(), request)).expect("sent");
        }
        let reply = icmp.recv().expect("the reply");
        assert_eq!((reply.kind(), reply.source), (0, loopback.into()));
        assert_eq!(world.end().mappings, 2);
    });
}

#[test]
fn what_a_guest_sends_before_there_is_a_gateway_waits_for_it() {
    let (stack, cable) = common::stack();
    let guest = common::guest(cable);
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let far = Ipv4Addr::new(10, 0, 2, 9).into();
    let socket = GuestUdp::bind(&guest, (GUEST, PORT)).expect("a socket");
    let to = SocketAddr::new(far, server.local_addr().expect("a port").port());
    socket.send_to(b"hello", to).expect("sent");
    // Whoever waits for a socket of the stack drives it.
    let idle = GuestUdp::bind(&stack, "10.0.2.2:9").expect("a socket");
    idle.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
    idle.recv_from(&mut [0; 10]).expect_err("nothing comes");
    let mut config = GatewayConfig::default();
    config.translations = vec![Translation::address(far, Ipv4Addr::LOCALHOST.into())];
    let gateway = Gateway::new(stack, Box::new(Direct), config).expect("a gateway");
    let handle = gateway.handle();
    let engine = common::run(gateway);
    let (length, _) = server.recv_from(&mut [0; 10]).expect("it comes");
    assert_eq!(length, 5);
    handle.stop();
    engine.join().expect("no panic");
}

#[test]
fn a_host_without_ipv6_has_no_way_and_ports_enough() {
    in_namespace(|| {
        run("ip link set lo up");
        run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
        let (far, real) = (Ipv4Addr::new(10, 0, 2, 9), "2001:db8::1".parse().expect("an address"));
        let mut config = GatewayConfig::default();
        config.translations = vec![Translation::address(far.into(), real)];
        let world = World::new(Box::new(Direct), config);
        let error = GuestTcp::connect(&world.guest, (far, 80)).expect_err("there is no way");
        assert_eq!(error.kind(), io::ErrorKind::NetworkUnreachable, "{error}");
        assert_is_told(&world, far, 0);
        let figures = world.end();
        assert_eq!((figures.unreached, figures.no_port), (1, 0));
        assert!(figures.unsent_datagrams > 0);
    });
}

#[test]
fn an_outbound_address_that_the_host_has_not_is_no_lack_of_ports_or_room() {
    let outbound = Outbound { v4: Some(Ipv4Addr::new(203, 0, 113, 9)), ..Outbound::default() };
    let mut config = GatewayConfig::default();
    config.outbound = outbound.clone();
    let world = World::new(Box::new(DirectFrom(outbound)), config);
    let far = Ipv4Addr::new(10, 0, 2, 9);
    let error = GuestTcp::connect(&world.guest, (far, 80)).expect_err("there is no way");
    assert_eq!(error.kind(), io::ErrorKind::NetworkUnreachable, "{error}");
    assert_is_told(&world, far, 0);
    let figures = world.end();
    assert_eq!((figures.no_port, figures.full_mappings, figures.unreached), (0, 0, 0));
    assert!(figures.no_address > 1, "a connection, and datagrams");
}

#[test]
fn an_upstream_that_cannot_be_reached_is_an_unreachable_host() {
    // No connection to this address can be made.
    let proxy = Proxy::new(Protocol::Socks5, (Ipv4Addr::BROADCAST, 1080).into(), None);
    let world = World::new(Box::new(proxy), GatewayConfig::default());
    assert_is_told(&world, Ipv4Addr::new(10, 0, 2, 9), 1);
    let figures = world.end();
    assert!(figures.unsent_datagrams > 0);
    assert_eq!(figures.full_mappings, 0);
}

#[test]
fn datagrams_that_the_policy_is_against_are_refused_and_counted() {
    let far = Ipv4Addr::new(10, 0, 2, 9);
    let mut config = GatewayConfig::default();
    let mut policy = Policy::default();
    policy.deny("10.0.2.9/32".parse().expect("a prefix"));
    config.policy = policy;
    let world = World::new(Box::new(Direct), config);
    assert_is_told(&world, far, 13);
    let figures = world.end();
    assert!(figures.denied_datagrams > 0);
    assert_eq!((figures.mappings, figures.datagrams_out), (0, 0));
}
