//! A stack as the gateway of an Ethernet: the kernel is a host behind a TAP. Broadcast before there
//! are addresses, router discovery, neighbours, and fragments to addresses of others.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::OwnedFd;

use neap::device::{LinkConfig, Tun, TunConfig, configure_link};
use neap::net::RouterAdvertisement;
use neap::{
    Datagram, IcmpOptions, IcmpSocket, InterfaceConfig, Stack, UdpForwarder, UdpForwarderOptions,
};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with, sockopt};

use crate::common::foreign::{EACH, LONG, Link, addresses, interface, networks, stack, udp_client};
use crate::common::{Family, Pattern, eventually, in_namespace, run, skip};

/// A word of what `ip` says about the kernel's end.
fn word_of_link(command: &str, nth: usize) -> String {
    let said = run(command);
    said.split_whitespace().nth(nth).expect("a line about t0").to_owned()
}

/// A socket that sees all frames of the namespace from their Ethernet headers on.
fn frames() -> UdpSocket {
    const ETH_P_ALL: u32 = 3;
    let protocol = Protocol::from_raw((ETH_P_ALL << 8).try_into().expect("not zero"));
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(protocol));
    let socket: OwnedFd = socket.expect("root of the namespace");
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(LONG).expect("a timeout");
    socket
}

/// The first frame that is right.
fn frame(frames: &UdpSocket, is_right: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut frame = [0; 2000];
    loop {
        let len = frames.recv(&mut frame).expect("a frame");
        if is_right(&frame[..len]) {
            return frame[..len].to_vec();
        }
    }
}

/// The Ethernet address of the kernel's end.
fn kernels_link() -> [u8; 6] {
    let text = word_of_link("ip -br link show dev t0", 2);
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect();
    bytes.try_into().expect("six bytes")
}

#[test]
fn a_host_without_an_address_asks_all_for_one_and_is_answered() {
    in_namespace(|| {
        let config = TunConfig { name: Some("t0".into()), tap: true, ..TunConfig::default() };
        let tap = Tun::open(&config).expect("a TAP");
        for interface in ["all", "t0"] {
            let path = format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
            std::fs::write(path, "0").expect("a setting");
        }
        configure_link("t0", &LinkConfig::default()).expect("up");
        let own = "10.9.0.2/24".parse().expect("an address");
        let interface = InterfaceConfig::new(tap.into_device()).address(own).any_destination(true);
        let stack = Stack::builder().interface(interface).build().expect("a stack");
        let id = stack.host().interfaces()[0].id;
        // What is broadcast is for a socket, not for a forwarder.
        let forwarder = UdpForwarder::new(&stack, UdpForwarderOptions::default());
        let forwarder = forwarder.expect("a forwarder");
        forwarder.set_nonblocking(true).expect("a mode");
        let server = neap::UdpSocket::bind(&stack, "0.0.0.0:67").expect("a free port");
        server.set_broadcast(true).expect("set");
        server.set_read_timeout(LONG).expect("a timeout");

        run("ip route add 255.255.255.255 dev t0");
        let client = UdpSocket::bind("0.0.0.0:68").expect("a free port");
        client.set_broadcast(true).expect("set");
        client.set_read_timeout(LONG).expect("a timeout");
        client.send_to(b"discover", "255.255.255.255:67").expect("sent");
        let mut asked = Vec::new();
        server.recv_batch(&mut asked, 1).expect("a question");
        let asked = asked.remove(0);
        assert_eq!((&asked.data[..], asked.peer), (&b"discover"[..], at("0.0.0.0:68")));
        let arrival = asked.arrival.expect("it was received");
        assert!(arrival.is_broadcast && arrival.interface == Some(id), "{arrival:?}");
        assert!(forwarder.recv().is_err());

        // To all hosts of the interface that it came in by.
        let offer = Datagram {
            interface: arrival.interface,
            ..Datagram::new(&b"offer to all"[..], at("255.255.255.255:68"))
        };
        assert_eq!(server.send_batch(&[offer]).expect("sent"), 1);
        let mut buf = [0; 20];
        let (len, from) = client.recv_from(&mut buf).expect("an offer");
        assert_eq!((&buf[..len], from), (&b"offer to all"[..], at("10.9.0.2:67")));

        // To the address that the client is to have, at its Ethernet address, without ARP.
        let (frames, link) = (frames(), kernels_link());
        let yours: IpAddr = "10.9.0.77".parse().expect("an address");
        stack.add_neighbor(id, yours, link).expect("an Ethernet");
        server.send_to(b"offer", SocketAddr::new(yours, 68)).expect("sent");
        let to_you = [10, 9, 0, 77];
        let offer = frame(&frames, |frame| frame[12..14] == [8, 0] && frame[30..34] == to_you);
        assert_eq!((&offer[..6], &offer[42..47]), (&link[..], &b"offer"[..]));
        run("ip address add 10.9.0.77/24 dev t0");
        server.send_to(b"yours", SocketAddr::new(yours, 68)).expect("sent");
        let (len, from) = client.recv_from(&mut buf).expect("it has the address");
        assert_eq!((&buf[..len], from), (&b"yours"[..], at("10.9.0.2:67")));
    });
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[test]
fn a_router_solicitation_is_answered_at_once_and_alone() {
    in_namespace(|| {
        let advertisement = RouterAdvertisement { hop_limit: 77, ..RouterAdvertisement::default() };
        let router = "fe80::2/64".parse().expect("an address");
        let interface =
            interface(Family::V6, Link::Tap).address(router).router_advertisements(advertisement);
        let _stack = Stack::builder().interface(interface).build().expect("a stack");
        let own = eventually(
            || run("ip -6 -o address show dev t0 scope link"),
            |text| text.contains("fe80:") && !text.contains("tentative"),
        );
        let own = own.split_whitespace().nth(3).and_then(|cidr| cidr.split('/').next());
        let own: Ipv6Addr = own.expect("an address").parse().expect("an address");
        let index = word_of_link("ip -o link show dev t0", 0);
        let index: u32 = index.trim_end_matches(':').parse().expect("an index");
        let frames = frames();
        let protocol = Protocol::from_raw(58.try_into().expect("ICMPv6"));
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET6, SocketType::RAW, flags, Some(protocol));
        let socket = UdpSocket::from(socket.expect("root of the namespace"));
        sockopt::set_ipv6_multicast_hops(&socket, 255).expect("set");
        let routers = SocketAddrV6::new("ff02::2".parse().expect("a group"), 0, 0, index);
        for _ in 0..2 {
            // Type and code; the kernel fills in the checksum.
            socket.send_to(&[133, 0, 0, 0, 0, 0, 0, 0], routers).expect("sent");
            let answer = frame(&frames, |frame| {
                frame[12..14] == [0x86, 0xdd]
                    && (frame[20], frame[54]) == (58, 134)
                    && frame[38..54] == own.octets()
            });
            let source: Ipv6Addr = "fe80::2".parse().expect("an address");
            assert_eq!(answer[22..38], source.octets());
            assert_eq!((answer[21], answer[58]), (255, 77), "hop limits");
            assert_eq!(answer[..6], kernels_link());
        }
    });
}

#[test]
fn neighbours_are_answered_for_every_address_of_a_network_and_no_other() {
    in_namespace(|| {
        for family in Family::BOTH {
            let _stack = stack(family, Link::Tap);
            let network = networks(family)[0].split('/').next().expect("an address");
            let other = family.text("203.0.113.0", "2001:db9::");
            let len = if family == Family::V4 { 24 } else { 64 };
            run(&format!("ip route add {other}/{len} dev t0"));
            let host = |network: IpAddr, nth: u8| -> IpAddr {
                match network {
                    IpAddr::V4(ip) => (ip.to_bits() + u32::from(nth)).to_be_bytes().into(),
                    IpAddr::V6(ip) => (ip.to_bits() + u128::from(nth)).to_be_bytes().into(),
                }
            };
            let network: IpAddr = network.parse().expect("an address");
            let socket = UdpSocket::bind((family.kernel(), 0)).expect("bind");
            for nth in 1..=100 {
                // The errors of those before: nobody has the port.
                let to = SocketAddr::new(host(network, nth), 9);
                while socket.send_to(b"x", to).is_err() {}
            }
            let known = || -> BTreeSet<(String, String)> {
                let said = run("ip neighbour show dev t0");
                let words = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
                let known = words.filter(|words| words.get(1) == Some(&"lladdr"));
                known.map(|words| (words[0].to_owned(), words[2].to_owned())).collect()
            };
            let wanted: BTreeSet<_> = (1..=100).map(|nth| host(network, nth).to_string()).collect();
            let known = eventually(known, |known| {
                wanted.iter().all(|one| known.iter().any(|(address, _)| address == one))
            });
            let links: BTreeSet<_> = known.into_iter().map(|(_, link)| link).collect();
            assert_eq!(links.len(), 1, "{links:?}");
            let other = host(other, 5);
            while socket.send_to(b"x", SocketAddr::new(other, 9)).is_err() {}
            eventually(
                || run(&format!("ip neighbour show dev t0 {other}")),
                |said| said.contains("FAILED"),
            );
        }
    });
}

#[test]
fn fragments_to_addresses_of_others_are_put_together_both_ways() {
    const LEN: usize = 8000;
    in_namespace(|| {
        for (family, link) in EACH {
            let stack = stack(family, link);
            run("ip link set t0 mtu 1500");
            eventually(|| stack.host().interfaces()[0].capabilities.mtu, |mtu| *mtu == 1500);
            let forwarder = UdpForwarder::new(&stack, UdpForwarderOptions::default());
            let forwarder = forwarder.expect("a forwarder");
            forwarder.set_read_timeout(LONG).expect("a timeout");
            for (nth, address) in (1..).zip(addresses(family)) {
                let client = udp_client(family, SocketAddr::new(address, nth), 64, 0);
                let question = Pattern(nth.into()).bytes(LEN);
                client.send(&question).expect("sent");
                let asked = forwarder.recv().expect("a question");
                assert_eq!(asked.local, Some(SocketAddr::new(address, nth)));
                assert!(asked.data == question, "{} bytes", asked.data.len());
                forwarder.send(&asked.reply(asked.data.clone())).expect("sent");
                let mut answer = vec![0; 2 * LEN];
                let len = client.recv(&mut answer).expect("an answer");
                assert!(answer[..len] == question, "{len} bytes");
            }
        }
    });
}

#[test]
fn large_pings_of_addresses_of_others_are_answered() {
    in_namespace(|| {
        if std::process::Command::new("ping").arg("-V").output().is_err() {
            return skip("no ping");
        }
        for (family, link) in EACH {
            let stack = stack(family, link);
            let socket = IcmpSocket::open(&stack, IcmpOptions::default()).expect("a socket");
            let answering = std::thread::spawn(move || {
                while let Ok(message) = socket.recv() {
                    if let Some(reply) = message.echo_reply() {
                        socket.send(&reply).expect("a reply");
                    }
                }
            });
            for address in addresses(family) {
                let said = run(&format!("ping -n -c 2 -i 0.2 -s 4000 -W 30 {address}"));
                assert!(said.contains(&format!("4008 bytes from {address}")), "{said}");
            }
            drop(stack);
            answering.join().expect("no panic");
        }
    });
}
