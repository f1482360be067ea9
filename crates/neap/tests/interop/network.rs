//! A network that changes under a running stack, by calls and by what the kernel does to its end.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{RecvError, TryRecvError};
use std::thread;

use neap::device::{LinkConfig, LinkState, Packet, PacketConfig, Tun, TunConfig, configure_link};
use neap::info::{DropReason, IpCounter};
use neap::net::{Address, InterfaceId, NetError, Route, RouteEntry};
use neap::{InterfaceConfig, Stack, StackEvent, StackEvents};

use crate::common::{Family, PATIENCE, Pattern, eventually, in_namespace, run};
use crate::links::{Elsewhere, add_address, veth};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn cidr(text: &str) -> Address {
    text.parse().expect("an address with its prefix length")
}

/// The interface of the only device.
fn first(stack: &Stack) -> InterfaceId {
    stack.host().interfaces()[0].id
}

/// Both ways over an open connection, each byte verified.
pub(crate) fn exchange(ours: &mut neap::TcpStream, theirs: &mut TcpStream, len: u64) {
    let (there, back) = (Pattern(1), Pattern(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            there.receive(theirs, len);
            back.send(theirs, len);
        });
        there.send(ours, len);
        back.receive(ours, len);
    });
}

/// Waits for an event that `is_right` knows; others may come before.
fn expect(events: &StackEvents, is_right: impl Fn(&StackEvent) -> bool) -> StackEvent {
    loop {
        let event = events.recv_timeout(PATIENCE / 4).expect("an event");
        if is_right(&event) {
            return event;
        }
    }
}

/// A TUN whose kernel's end has this address.
fn tun(name: &str, address: &str) -> InterfaceConfig {
    tun_with(name, address, 1)
}

fn tun_with(name: &str, address: &str, queues: usize) -> InterfaceConfig {
    let config = TunConfig { name: Some(name.into()), queues, ..TunConfig::default() };
    let tun = Tun::open(&config).expect("a TUN");
    let address = cidr(address);
    let addresses = vec![(address.ip, address.prefix.len())];
    configure_link(name, &LinkConfig { addresses, ..LinkConfig::default() }).expect("an address");
    InterfaceConfig::new(tun.into_device())
}

fn pair_over(stack: &Stack, kernel: &str) -> (neap::TcpStream, TcpStream) {
    let listener = std::net::TcpListener::bind((ip(kernel), 0)).expect("bind");
    let address = listener.local_addr().expect("an address");
    let ours = neap::TcpStream::connect(stack, address).expect("connect");
    let (theirs, _) = listener.accept().expect("accept");
    (ours, theirs)
}

/// A stack on one end of a veth pair, whose other end is elsewhere.
fn over_veth(own: &[&str]) -> (Elsewhere, Stack) {
    let there = Elsewhere::new();
    veth(&there);
    there.run(|| add_address("v1", "10.9.0.1/24"));
    let device = Packet::open(&PacketConfig::new("v0")).expect("a device").into_device();
    let builder = Stack::builder().device(device);
    let stack = own.iter().fold(builder, |builder, address| builder.address(*address));
    (there, stack.build().expect("a stack"))
}

#[test]
fn a_second_device_comes_and_goes() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (mut ours, mut theirs) = Family::V4.pair(&stack);
        let events = stack.events().expect("descriptors");
        // It has more queues than the stack has workers.
        let config = tun_with("t1", "10.7.0.1/24", 2).address(cidr("10.7.0.2/24"));
        let second = stack.add_interface(config).expect("a second TUN");
        assert_eq!(events.try_recv(), Ok(StackEvent::InterfaceAdded { interface: second }));
        let (mut other, mut far) = pair_over(&stack, "10.7.0.1");
        assert_eq!(other.local_addr().expect("an address").ip(), ip("10.7.0.2"));
        exchange(&mut other, &mut far, 4 << 20);
        exchange(&mut ours, &mut theirs, 1 << 20);

        stack.remove_interface(second).expect("it is there");
        assert_eq!(stack.remove_interface(second), Err(NetError::NoInterface(second)));
        run("ip link show t0");
        let gone = std::process::Command::new("ip").args(["link", "show", "t1"]).output();
        assert!(!gone.expect("ip runs").status.success(), "the device is closed");
        let error = neap::TcpStream::connect(&stack, (ip("10.7.0.1"), 9)).expect_err("no route");
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{error}");
        exchange(&mut ours, &mut theirs, 1 << 20);
        drop(stack);
        assert_eq!(events.recv(), Ok(StackEvent::InterfaceRemoved { interface: second }));
        while events.try_recv().is_ok() {}
        assert_eq!(events.recv(), Err(RecvError));
        assert_eq!(events.try_recv(), Err(TryRecvError::Disconnected));
    });
}

#[test]
fn a_stack_of_several_devices_is_built() {
    in_namespace(|| {
        let stack = Stack::builder()
            .interface(tun("t0", "10.9.0.1/24").address(cidr("10.9.0.2/24")))
            .interface(tun("t1", "fd00:7::1/64").address(cidr("fd00:7::2/64")).mtu(1300))
            .build()
            .expect("a stack");
        let (mut ours, mut theirs) = pair_over(&stack, "10.9.0.1");
        exchange(&mut ours, &mut theirs, 1 << 20);
        let (mut ours, mut theirs) = pair_over(&stack, "fd00:7::1");
        exchange(&mut ours, &mut theirs, 1 << 20);
        assert_eq!(ours.info().pmtu, 1300);
    });
}

#[test]
fn addresses_and_routes_change_under_the_kernel_s_eyes() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let interface = first(&stack);
        let (mut ours, mut theirs) = Family::V4.pair(&stack);
        stack.add_address(interface, cidr("10.9.0.77/24")).expect("a new address");
        let listener = neap::TcpListener::bind(&stack, (ip("10.9.0.77"), 0)).expect("bind");
        let to = listener.local_addr().expect("an address");
        let mut far = TcpStream::connect(to).expect("the kernel reaches it");
        let (mut near, _) = listener.accept().expect("accept");
        exchange(&mut near, &mut far, 1 << 20);

        // Beyond the link, by a route that comes and goes.
        run("ip address add 10.66.0.1/32 dev lo");
        let prefix = "10.66.0.0/16".parse().expect("a prefix");
        let route =
            Route { interface, gateway: Some(ip("10.9.0.1")), mtu: Some(1200), pref_src: None };
        let entry = RouteEntry { prefix, metric: 0, route };
        stack.add_route(entry).expect("a route");
        let (mut out, mut back) = pair_over(&stack, "10.66.0.1");
        exchange(&mut out, &mut back, 1 << 20);
        assert_eq!(out.info().pmtu, 1200);
        assert_eq!(stack.remove_route(prefix, interface, None), Ok(entry));
        let error = neap::TcpStream::connect(&stack, (ip("10.66.0.1"), 9)).expect_err("no route");
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{error}");

        // What is removed is not ours, and the others go on.
        stack.remove_address(interface, ip("10.9.0.77")).expect("it is there");
        exchange(&mut ours, &mut theirs, 1 << 20);
        let not_ours = || stack.host().drops_for(DropReason::IpOtherHost);
        let before = not_ours();
        far.write_all(b"nobody is here").expect("buffered");
        eventually(not_ours, |count| *count > before);
    });
}

#[test]
fn flows_follow_the_mtu_of_the_kernel_s_device() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let interface = first(&stack);
        let events = stack.events().expect("descriptors");
        let (mut ours, mut theirs) = Family::V4.pair(&stack);
        exchange(&mut ours, &mut theirs, 1 << 20);
        assert_eq!(ours.info().pmtu, 1500);
        for mtu in [1280, 1400, 1500] {
            run(&format!("ip link set t0 mtu {mtu}"));
            assert_eq!(
                expect(&events, |event| matches!(event, StackEvent::MtuChanged { .. })),
                StackEvent::MtuChanged { interface, mtu }
            );
            exchange(&mut ours, &mut theirs, 1 << 20);
            assert_eq!(ours.info().pmtu, u32::from(mtu));
        }
        stack.set_mtu(interface, 1000).expect("less than the device takes");
        exchange(&mut ours, &mut theirs, 1 << 20);
        assert_eq!(ours.info().pmtu, 1000);
        let error = stack.set_mtu(interface, 1501).expect_err("more than the device takes");
        assert!(error.to_string().starts_with("mtu 1501: "), "{error}");
    });
}

/// Both ends of a connection that rests, then the link goes down and comes back.
fn resumes(stack: &Stack, events: &StackEvents, device: &str, pair: (neap::TcpStream, TcpStream)) {
    let (mut ours, mut theirs) = pair;
    let interface = first(stack);
    exchange(&mut ours, &mut theirs, 1 << 20);
    run(&format!("ip link set {device} down"));
    expect(events, |event| *event == StackEvent::LinkDown { interface });
    assert_eq!(stack.host().interfaces()[0].link, LinkState::Down);
    ours.write_all(b"through").expect("buffered");
    run(&format!("ip link set {device} up"));
    expect(events, |event| *event == StackEvent::LinkUp { interface });
    let mut bytes = [0; 7];
    theirs.read_exact(&mut bytes).expect("what waited");
    assert_eq!(&bytes, b"through");
    exchange(&mut ours, &mut theirs, 1 << 20);
}

#[test]
fn a_tun_that_goes_down_and_comes_back_resumes_its_flows() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let events = stack.events().expect("descriptors");
        let pair = Family::V4.pair(&stack);
        resumes(&stack, &events, "t0", pair);
    });
}

#[test]
fn a_tun_that_is_moved_to_another_namespace_lives_on() {
    in_namespace(|| {
        let there = Elsewhere::new();
        let stack = Family::V4.stack();
        let interface = first(&stack);
        let events = stack.events().expect("descriptors");
        let (listener, address) = Family::V4.listener(&stack);
        run("ip link set t0 down");
        expect(&events, |event| *event == StackEvent::LinkDown { interface });
        run(&format!("ip link set t0 netns {}", there.pid()));
        // The state of the link is out of reach from here on.
        let seen = expect(&events, |event| {
            matches!(event, StackEvent::LinkUp { .. } | StackEvent::DeviceGone { .. })
        });
        assert_eq!(seen, StackEvent::LinkUp { interface });

        there.run(|| run("ip link set t0 up"));
        there.run(|| add_address("t0", "10.9.0.1/24"));
        let mut far = there.run(|| TcpStream::connect(address).expect("connect"));
        let (mut near, _) = listener.accept().expect("accept");
        exchange(&mut near, &mut far, 1 << 20);
        let (mut ours, mut theirs) = there.run(|| pair_over(&stack, "10.9.0.1"));
        exchange(&mut ours, &mut theirs, 1 << 20);

        there.run(|| run("ip link del t0"));
        let name = "t0".to_owned();
        expect(&events, |event| *event == StackEvent::DeviceGone { interface, name: name.clone() });
    });
}

#[test]
fn a_veth_that_goes_down_and_comes_back_resumes_its_flows() {
    in_namespace(|| {
        let (there, stack) = over_veth(&["10.9.0.2/24"]);
        let events = stack.events().expect("descriptors");
        let (ours, theirs) = there.run(|| pair_over(&stack, "10.9.0.1"));
        resumes(&stack, &events, "v0", (ours, theirs));
    });
}

#[test]
fn a_device_of_two_queues_that_is_deleted_is_closed() {
    in_namespace(|| {
        let there = Elsewhere::new();
        veth(&there);
        let config = PacketConfig { queues: 2, ..PacketConfig::new("v0") };
        let device = Packet::open(&config).expect("a device").into_device();
        let stack = Stack::builder().device(device).address("10.9.0.2/24").build();
        let stack = stack.expect("a stack");
        let interface = first(&stack);
        let events = stack.events().expect("descriptors");
        // The sockets of the namespace, below a line with the names of the columns.
        let sockets = || {
            let listing = std::fs::read_to_string("/proc/net/packet").expect("a listing");
            listing.lines().count() - 1
        };
        assert!(sockets() >= 2);
        // The sockets tell of this, and not of the next.
        run("ip link set v0 down");
        expect(&events, |event| *event == StackEvent::LinkDown { interface });
        run("ip link del v0");
        expect(&events, |event| matches!(event, StackEvent::DeviceGone { .. }));
        eventually(sockets, |count| *count == 0);
    });
}

/// A read that waits, a connection being opened and datagrams hear that the device is gone.
fn is_told(stack: &Stack, mut ours: neap::TcpStream, delete: &str, nobody: &str) {
    let events = stack.events().expect("descriptors");
    let interface = first(stack);
    let name = stack.host().interfaces()[0].name.clone();
    let socket = neap::UdpSocket::bind(stack, "0.0.0.0:0").expect("bind");
    let listener = neap::TcpListener::bind(stack, "0.0.0.0:0").expect("bind");
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().map(drop));
        let reader = scope.spawn(|| ours.read(&mut [0; 10]).map(drop));
        let receiver = scope.spawn(|| socket.recv_from(&mut [0; 10]).map(drop));
        let opening = scope.spawn(|| neap::TcpStream::connect(stack, (ip(nobody), 9)).map(drop));
        eventually(|| stack.host().usage().tcp.connections, |count| *count == 2);
        run(delete);
        for (what, thread) in
            [("read", reader), ("recv_from", receiver), ("connect", opening), ("accept", accepting)]
        {
            let error = thread.join().expect("no panic").expect_err("it is gone");
            assert_eq!(error.kind(), ErrorKind::NetworkDown, "{what}: {error}");
            assert_eq!(error.to_string(), "network is down", "{what}");
        }
    });
    let gone = expect(&events, |event| matches!(event, StackEvent::DeviceGone { .. }));
    assert_eq!(gone, StackEvent::DeviceGone { interface, name });
    let error = neap::TcpStream::connect(stack, (ip(nobody), 9)).expect_err("nothing is left");
    assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{error}");
    assert!(stack.host().interfaces().is_empty());
}

#[test]
fn a_tun_that_is_deleted_is_told_to_sockets_and_events() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (ours, _theirs) = Family::V4.pair(&stack);
        // Nobody answers there: the kernel does not forward.
        is_told(&stack, ours, "ip link del t0", "10.9.0.200");
        // The stack goes on with another device.
        let config = tun("t1", "10.7.0.1/24").address(cidr("10.7.0.2/24"));
        stack.add_interface(config).expect("another TUN");
        let (mut ours, mut theirs) = pair_over(&stack, "10.7.0.1");
        exchange(&mut ours, &mut theirs, 1 << 20);
    });
}

#[test]
fn a_veth_that_is_deleted_is_told_to_sockets_and_events() {
    in_namespace(|| {
        let (there, stack) = over_veth(&["10.9.0.2/24"]);
        let (ours, _theirs) = there.run(|| pair_over(&stack, "10.9.0.1"));
        is_told(&stack, ours, "ip link del v0", "10.9.0.200");
    });
}

#[test]
fn frames_follow_the_ethernet_address_of_the_kernel_s_device() {
    in_namespace(|| {
        let (there, stack) = over_veth(&["10.9.0.2/24"]);
        run("ip link set v0 address 02:00:00:00:00:77");
        let is_new = |stack: &Stack| {
            let medium = stack.host().interfaces()[0].capabilities.medium;
            medium == neap::device::Medium::Ethernet([2, 0, 0, 0, 0, 0x77])
        };
        eventually(|| is_new(&stack), |is_new| *is_new);
        let (mut ours, mut theirs) = there.run(|| pair_over(&stack, "10.9.0.1"));
        exchange(&mut ours, &mut theirs, 1 << 20);
        let known = there.run(|| run("ip neighbour show 10.9.0.2"));
        assert!(known.contains("02:00:00:00:00:77"), "{known}");
    });
}

#[test]
fn an_address_that_the_kernel_gets_later_is_told() {
    in_namespace(|| {
        let (_there, stack) = over_veth(&["10.9.0.2/24", "fd00:9::2/64"]);
        let events = stack.events().expect("descriptors");
        let interface = first(&stack);
        let is_taken = |event: &StackEvent| matches!(event, StackEvent::AddressTaken { .. });
        let taken = |address| StackEvent::AddressTaken {
            interface,
            address: ip(address),
            owner: "v0".to_owned(),
        };
        run("ip address add 10.9.0.3/24 dev v0");
        run("ip address add 10.9.0.2/24 dev v0");
        assert_eq!(expect(&events, is_taken), taken("10.9.0.2"));
        // It is told once, and again when it comes back.
        run("ip address add 10.9.0.4/24 dev v0");
        add_address("v0", "fd00:9::2/64");
        assert_eq!(expect(&events, is_taken), taken("fd00:9::2"));
        let count = || stack.host().ip_counter(IpCounter::AddressesTaken);
        assert_eq!(count(), 2);
        run("ip address flush dev v0");
        run("ip link set v0 mtu 1400");
        expect(&events, |event| matches!(event, StackEvent::MtuChanged { .. }));
        run("ip address add 10.9.0.2/24 dev v0");
        assert_eq!(expect(&events, is_taken), taken("10.9.0.2"));
        assert_eq!(count(), 3);
    });
}

#[test]
fn the_descriptor_of_events_is_readable_while_some_wait() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let events = stack.events().expect("descriptors");
        let poller = neap::Poller::new().expect("descriptors");
        poller.add(&events.as_fd(), 7, neap::Events::IN).expect("a descriptor");
        let mut ready = Vec::new();
        let at_once = Some(std::time::Duration::ZERO);
        poller.wait(&mut ready, at_once).expect("a wait");
        assert!(ready.is_empty(), "{ready:?}");
        stack.add_address(first(&stack), cidr("10.9.0.5/24")).expect("an address");
        poller.wait(&mut ready, Some(PATIENCE / 4)).expect("a wait");
        assert_eq!(ready.iter().map(|event| event.token).collect::<Vec<_>>(), [7]);
        assert!(matches!(events.try_recv(), Ok(StackEvent::AddressAdded { .. })));
        assert_eq!(events.try_recv(), Err(TryRecvError::Empty));
        poller.wait(&mut ready, at_once).expect("a wait");
        assert!(ready.is_empty(), "{ready:?}");
    });
}
