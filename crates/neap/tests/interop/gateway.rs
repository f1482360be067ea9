//! A stack as the gateway of the kernel: on a TAP it answers for prefixes and advertises itself,
//! and it answers pings of addresses that nobody has.

use std::process::Command;
use std::thread;
use std::time::Duration;

use neap::device::{LinkConfig, Tun, TunConfig, configure_link};
use neap::info::{DropReason, IpCounter};
use neap::net::{
    Address, AdvertisedDnsServer, AdvertisedPrefix, InterfaceId, Prefix, RouterAdvertisement,
};
use neap::{Event, Events, IcmpErrorKind, IcmpOptions, IcmpSocket, InterfaceConfig, Poller, Stack};

use crate::asleep::{announce, announcement, until_asleep};
use crate::common::{eventually, in_namespace, run, skip};

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

fn cidr(text: &str) -> Address {
    text.parse().expect("an address with its prefix length")
}

fn advertisement() -> RouterAdvertisement {
    RouterAdvertisement {
        mtu: Some(1400),
        prefixes: vec![AdvertisedPrefix::new(prefix("fd00:9::/64"))],
        rdnss: vec![AdvertisedDnsServer {
            address: "fd00:9::3".parse().expect("an address"),
            lifetime: 600,
        }],
        ..RouterAdvertisement::default()
    }
}

/// A gateway on the TAP `t0`, whose kernel's end takes what routers advertise.
fn gateway() -> (Stack, InterfaceId) {
    let config = TunConfig { name: Some("t0".into()), tap: true, ..TunConfig::default() };
    let tap = Tun::open(&config).expect("a TAP");
    for (name, value) in [("disable_ipv6", "0"), ("accept_ra", "2"), ("autoconf", "1")] {
        let path = format!("/proc/sys/net/ipv6/conf/t0/{name}");
        std::fs::write(path, value).expect("a setting of the kernel");
    }
    let addresses = vec![("10.9.0.1".parse().expect("an address"), 24)];
    configure_link("t0", &LinkConfig { addresses, ..LinkConfig::default() }).expect("an address");
    run("ip route add 198.51.100.0/24 dev t0");
    run("ip route add default via 10.9.0.2");
    let interface = InterfaceConfig::new(tap.into_device())
        .address(cidr("10.9.0.2/24"))
        .address(cidr("fd00:9::2/64"))
        .address(cidr("fe80::2/64"))
        .any_destination(true)
        .proxy(prefix("198.51.100.0/24"))
        .proxy(prefix("fd00:9::/64"))
        .router_advertisements(advertisement());
    let stack = Stack::builder().interface(interface).build().expect("a stack on a TAP");
    let id = stack.host().interfaces()[0].id;
    (stack, id)
}

/// Whether a program runs here; says so if not.
fn has(program: &str) -> bool {
    let runs = Command::new(program).arg("-V").output().is_ok();
    if !runs {
        skip(&format!("no {program}"));
    }
    runs
}

/// What a command prints, whether it succeeds or not.
fn output(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().expect("a program")).args(words).output().expect(line);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Answers pings of addresses of others, but for those of one address, which is unreachable, until
/// the stack is gone.
fn answer(socket: &IcmpSocket, unreachable: &str) {
    let unreachable: std::net::IpAddr = unreachable.parse().expect("an address");
    while let Ok(message) = socket.recv() {
        if message.destination == unreachable {
            let error = IcmpErrorKind::Unreachable { code: 13 };
            let from = "0.0.0.0".parse().expect("an address");
            socket.send_error(from, &message.to_packet(), error).expect("an error");
        } else if let Some(reply) = message.echo_reply() {
            socket.send(&reply).expect("a reply");
        }
    }
}

#[test]
fn the_kernel_reaches_everything_through_a_gateway() {
    in_namespace(|| {
        if !has("ping") {
            return;
        }
        let (stack, interface) = gateway();
        // Without a socket nobody answers.
        let dropped = || stack.host().drops_for(DropReason::NoSocketForeign);
        while dropped() == 0 {
            output("ping -n -c 1 -W 1 203.0.113.9");
        }
        let socket = IcmpSocket::open(&stack, IcmpOptions::default()).expect("a socket");
        let answering = thread::spawn(move || answer(&socket, "203.0.113.13"));

        // Addresses of the prefix are asked for by ARP, all others go to the gateway.
        for to in ["198.51.100.5", "198.51.100.77", "198.51.100.200", "203.0.113.9", "10.9.0.2"] {
            run(&format!("ping -n -c 2 -i 0.2 -W 30 {to}"));
        }
        let neighbours = run("ip -4 neighbour show dev t0");
        let link = |address: &str| {
            let line = neighbours.lines().find(|line| line.starts_with(address));
            line.and_then(|line| line.split_whitespace().nth(2)).map(str::to_owned)
        };
        let gateways = link("10.9.0.2 ");
        assert!(gateways.is_some(), "{neighbours}");
        for address in ["198.51.100.5 ", "198.51.100.77 ", "198.51.100.200 "] {
            assert_eq!(link(address), gateways, "{address}: {neighbours}");
        }
        let refused = output("ping -n -c 1 -W 30 203.0.113.13");
        assert!(refused.contains("From 10.9.0.2 ") && refused.contains("iltered"), "{refused}");

        // An address by SLAAC, though the gateway answers for all of its prefix, with a route.
        let addresses = || run("ip -6 address show dev t0 scope global");
        let is_there = |text: &String| text.contains("fd00:9::") && !text.contains("tentative");
        let address = eventually(addresses, is_there);
        assert!(!address.contains("dadfailed"), "{address}");
        let route = run("ip -6 route show default");
        assert!(route.contains("via fe80::2 dev t0"), "{route}");
        let mtu = std::fs::read_to_string("/proc/sys/net/ipv6/conf/t0/mtu").expect("an MTU");
        assert_eq!(mtu.trim(), "1400");
        for to in ["fd00:9::1234", "fd00:9::2", "2001:db8::9"] {
            run(&format!("ping -n -c 2 -i 0.2 -W 30 {to}"));
        }

        // The gateway is the first hop, and what is behind it comes with the second.
        for (to, hop) in [("203.0.113.9", "10.9.0.2"), ("2001:db8::9", "fd00:9::2")] {
            let first = output(&format!("ping -n -c 1 -t 1 -W 30 {to}"));
            assert!(first.contains(&format!("From {hop} icmp_seq=1 Time")), "{first}");
            run(&format!("ping -n -c 1 -t 2 -W 30 {to}"));
        }
        assert_eq!(stack.host().drops_for(DropReason::HopLimit), 2);
        assert_eq!(stack.host().ip_counter(IpCounter::IcmpOutTimeExcds), 1);
        if has("traceroute") {
            let hops = run("traceroute -n -I -q 1 -w 30 -m 4 203.0.113.9");
            let of = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
            let hops: Vec<_> = hops.lines().skip(1).filter_map(of).collect();
            assert_eq!(hops, ["10.9.0.2", "203.0.113.9"]);
        }

        // The end of the router takes its route away.
        stack.set_router_advertisement(interface, None).expect("it is there");
        eventually(|| run("ip -6 route show default"), |route| !route.contains("fe80::2"));
        drop(stack);
        answering.join().expect("no panic");
    });
}

#[test]
fn a_poller_and_a_non_blocking_socket_tell_of_pings() {
    in_namespace(|| {
        if !has("ping") {
            return;
        }
        let (stack, _) = gateway();
        let socket = IcmpSocket::open(&stack, IcmpOptions::default()).expect("a socket");
        socket.set_nonblocking(true).expect("a mode");
        assert_eq!(socket.recv().expect_err("none").kind(), std::io::ErrorKind::WouldBlock);
        let poller = Poller::new().expect("a poller");
        poller.add(&socket, 7, Events::IN).expect("a socket");
        let mut events = Vec::new();
        poller.wait(&mut events, Some(Duration::from_millis(20))).expect("a wait");
        assert_eq!(events, []);
        thread::scope(|scope| {
            let ping = scope.spawn(|| run("ping -n -c 1 -W 30 203.0.113.9"));
            poller.wait(&mut events, Some(Duration::from_secs(30))).expect("a wait");
            assert_eq!(events, [Event { token: 7, events: Events::IN }]);
            let message = socket.recv().expect("a message");
            assert_eq!(message.source.to_string(), "10.9.0.1");
            socket.send(&message.echo_reply().expect("a ping")).expect("a reply");
            ping.join().expect("an answer");
        });
        socket.set_nonblocking(false).expect("a mode");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        assert_eq!(socket.recv().expect_err("none").kind(), std::io::ErrorKind::WouldBlock);
        socket.set_read_timeout(None).expect("a timeout");
        thread::scope(|scope| {
            let (say, hear) = announcement();
            let socket = &socket;
            let waiting = scope.spawn(move || {
                announce(&say);
                socket.recv().map(drop)
            });
            until_asleep(&hear);
            drop(stack);
            waiting.join().expect("no panic").expect_err("the stack is gone");
        });
    });
}
