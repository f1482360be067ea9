//! What is missing or wrong is said, with what to do about it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use neap::Stack;
use neap::device::{Packet, PacketConfig, Tun, TunConfig};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::common::{Family, in_namespace, run, skip};

/// Runs in a thread that has given up all rights.
fn as_nobody<T: Send>(f: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let nobody = Uid::from_raw(65_534);
            // The effective capabilities go with the user.
            set_thread_res_uid(nobody, nobody, nobody).ok()?;
            Some(f())
        });
        thread.join().expect("no panic")
    })
}

fn refusal(stack: Result<Stack, neap::BuildError>) -> String {
    stack.expect_err("refused").to_string()
}

fn expect_words(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text:?}");
    }
}

#[test]
fn a_missing_privilege_says_how_to_get_it() {
    in_namespace(|| {
        run("ip link add v0 type veth peer name v1");
        run("ip link set v0 up");
        let answers = as_nobody(|| {
            let tun = Stack::builder()
                .tun("t0")
                .host_address("10.9.0.1/24")
                .address("10.9.0.2/24")
                .build();
            let packet = Packet::open(&PacketConfig::new("v0"));
            (refusal(tun), packet.expect_err("refused").to_string())
        });
        let Some((tun, packet)) = answers else { return skip("no right to become another user") };
        // Who gets as far as the capability depends on the mode of the node.
        let mode = fs::metadata("/dev/net/tun").expect("the driver").permissions().mode();
        if mode & 0o006 == 0o006 {
            expect_words(&tun, &["CAP_NET_ADMIN", "run as root", "unshare -rn"]);
        } else {
            expect_words(&tun, &["may not open /dev/net/tun", "run as root", "chmod 666"]);
        }
        expect_words(&packet, &["CAP_NET_RAW", "run as root", "unshare -rn"]);
    });
}

#[test]
fn a_missing_device_is_named() {
    in_namespace(|| {
        let absent = Packet::open(&PacketConfig::new("absent0")).expect_err("no such interface");
        expect_words(&absent.to_string(), &["absent0", "ip link"]);
        run("ip link add v0 type veth peer name v1");
        let down = Packet::open(&PacketConfig::new("v0")).expect_err("down");
        expect_words(&down.to_string(), &["v0 is down", "ip link set v0 up"]);
        let loopback = Packet::open(&PacketConfig::new("lo")).expect_err("no Ethernet");
        expect_words(&loopback.to_string(), &["lo is not an Ethernet interface"]);
        let occupied = Family::V4.stack();
        let busy =
            Stack::builder().tun("t0").host_address("10.9.0.1/24").address("10.9.0.2/24").build();
        expect_words(&refusal(busy), &["t0 is in use", "another name"]);
        drop(occupied);
        let bad =
            Stack::builder().tun("a/b").host_address("10.9.0.1/24").address("10.9.0.2/24").build();
        expect_words(&refusal(bad), &["a/b", "cannot name an interface"]);
        let none = Stack::builder().address("10.9.0.2/24").build();
        expect_words(&refusal(none), &["needs a device", "Builder::tun"]);
    });
}

#[test]
fn a_bad_address_shows_a_good_one() {
    in_namespace(|| {
        for address in ["10.9.0.2", "10.9.0.2/33", "10.9.0/24", "fd00::2/129", ""] {
            let stack =
                Stack::builder().tun("t0").host_address("10.9.0.1/24").address(address).build();
            let text = refusal(stack);
            expect_words(&text, &[&format!("{address:?}"), "10.9.0.2/24"]);
        }
        let stack =
            Stack::builder().tun("t0").host_address("10.9.0.1").address("10.9.0.2/24").build();
        expect_words(&refusal(stack), &["host address \"10.9.0.1\"", "10.9.0.1/24"]);
    });
}

/// What the builder says about these settings, on a TUN that is not opened.
fn refused(describe: impl FnOnce(neap::Builder) -> neap::Builder) -> String {
    refusal(describe(Stack::builder().tun("t0")).build())
}

#[test]
fn an_address_that_no_host_can_have_is_refused_by_argument() {
    let cases = [
        ("10.9.0.0/24", "network"),
        ("10.9.0.255/24", "broadcast"),
        ("255.255.255.255/32", "all hosts"),
        ("127.0.0.1/8", "loopback"),
        ("::1/128", "loopback"),
        ("0.0.0.0/0", "unspecified"),
        ("::/64", "unspecified"),
        ("224.0.0.9/24", "group"),
        ("ff02::1/64", "group"),
    ];
    for (address, reason) in cases {
        let own = refused(|builder| builder.address(address));
        expect_words(&own, &[&format!("address {address}: "), reason, "for instance 10.9.0.2/24"]);
        let host = refused(|builder| builder.address("10.9.0.2/24").host_address(address));
        expect_words(&host, &[&format!("host address {address}: "), reason]);
    }
    expect_words(&refused(|builder| builder), &["needs an address", "Builder::address"]);
    let twice = refused(|builder| builder.address("10.9.0.2/24").address("10.9.0.2/16"));
    expect_words(&twice, &["address 10.9.0.2/16: it was given twice"]);
    let same = refused(|builder| builder.host_address("10.9.0.2/24").address("10.9.0.2/24"));
    expect_words(&same, &["address 10.9.0.2/24: it is the host address too", "give each its own"]);
    let gateway = refused(|builder| builder.address("10.9.0.2/24").gateway("10.9.0.1/24"));
    expect_words(&gateway, &["gateway \"10.9.0.1/24\": it is no IP address"]);
    let route = refused(|builder| builder.route("192.0.2.0", "10.9.0.1"));
    expect_words(&route, &["route \"192.0.2.0\": ", "192.0.2.0/24"]);
}

#[test]
fn settings_may_be_typed() {
    in_namespace(|| {
        let own: std::net::IpAddr = "10.9.0.2".parse().expect("an address");
        let net: ipnet::IpNet = "fd00:9::2/64".parse().expect("a network");
        let stack = Stack::builder()
            .tun("t0")
            .host_address(String::from("10.9.0.1/24"))
            .host_address("fd00:9::1/64")
            .address((own, 24))
            .address(net)
            .gateway("10.9.0.1")
            .gateway("fd00:9::1".parse::<std::net::Ipv6Addr>().expect("an address"))
            .route("192.0.2.0/24", "10.9.0.9")
            .build()
            .expect("a stack");
        let addresses = &stack.host().interfaces()[0].addresses;
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.9.0.2/24", "fd00:9::2/64"]);
        let routes = stack.host().routes();
        let via = |prefix: &str| {
            let of = |entry: &&neap::net::RouteEntry| entry.prefix.to_string() == prefix;
            routes.iter().find(of).and_then(|entry| entry.route.gateway).map(|ip| ip.to_string())
        };
        assert_eq!(via("0.0.0.0/0").as_deref(), Some("10.9.0.1"));
        assert_eq!(via("::/0").as_deref(), Some("fd00:9::1"));
        assert_eq!(via("192.0.2.0/24").as_deref(), Some("10.9.0.9"));
    });
}

#[test]
fn links_of_two_hosts_have_no_broadcast_address() {
    in_namespace(|| {
        for (host, own) in [("10.9.0.0/31", "10.9.0.1/31"), ("fd00:9::/127", "fd00:9::1/127")] {
            let stack = Stack::builder().tun("t0").host_address(host).address(own).build();
            drop(stack.expect("both addresses of the link are those of hosts"));
        }
        for own in ["10.9.0.0/32", "fd00:9::/128"] {
            drop(Stack::builder().tun("t0").address(own).build().expect("a host alone"));
        }
    });
}

#[test]
fn a_gateway_is_in_an_own_network_and_another_host() {
    in_namespace(|| {
        let outside = refused(|builder| builder.address("10.9.0.2/24").gateway("10.8.0.1"));
        expect_words(&outside, &["gateway 10.8.0.1: ", "none of the networks"]);
        let own = refused(|builder| builder.address("10.9.0.2/24").gateway("10.9.0.2"));
        expect_words(&own, &["gateway 10.9.0.2: ", "own address"]);
    });
}

#[test]
fn an_address_of_the_kernel_is_refused_and_two_stacks_may_share_theirs() {
    in_namespace(|| {
        run("ip link add v0 type veth peer name v1");
        run("ip address add 192.0.2.7/24 dev v1");
        run("ip address add fd00:7::7/64 dev v1 nodad");
        run("ip link set v0 up");
        run("ip link set v1 up");
        let packet = |address: &str| {
            let device = Packet::open(&PacketConfig::new("v0")).expect("a device").into_device();
            Stack::builder().device(device).address(address).build()
        };
        for address in ["192.0.2.7/24", "fd00:7::7/64"] {
            let words = [&format!("address {address}: the kernel has it on v1"), "ip address del"];
            expect_words(&refusal(packet(address)), &words.map(|word: &str| word));
        }
        let first = packet("192.0.2.8/24").expect("a free address");
        let second = Stack::builder().tun("t0").address("192.0.2.8/24").build();
        drop((first, second.expect("it is of another link")));
    });
}

#[test]
fn a_stack_prints_its_interfaces_and_nothing_from_within() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let text = format!("{stack:?} {:?}", stack.host());
        expect_words(&text, &["t0: [\"10.9.0.2/24\"]"]);
        assert!(text.len() < 200, "{text}");
    });
}

#[test]
fn an_address_is_checked_in_every_way_to_give_it() {
    in_namespace(|| {
        run("ip link add v0 type veth peer name v1");
        run("ip address add 192.0.2.7/24 dev v1");
        run("ip link set v0 up");
        run("ip link set v1 up");
        let own = |address: &str| {
            let device = Packet::open(&PacketConfig::new("v0")).expect("a device").into_device();
            let address = address.parse().expect("an address");
            neap::InterfaceConfig::new(device).address(address)
        };
        let stack = Family::V4.stack();
        let cases = [
            ("192.0.2.7/24", "the kernel has it on v1"),
            ("10.9.0.1/24", "the kernel has it on t0"),
            ("192.0.2.255/24", "broadcast"),
            ("127.0.0.1/8", "loopback"),
        ];
        let interface = stack.host().interfaces()[0].id;
        for (address, reason) in cases {
            let words = [&*format!("address {address}: "), reason];
            expect_words(&refusal(Stack::builder().interface(own(address)).build()), &words);
            let added = stack.add_interface(own(address)).expect_err("refused").to_string();
            expect_words(&added, &words);
            let parsed = address.parse().expect("an address");
            let added = stack.add_address(interface, parsed).expect_err("refused").to_string();
            expect_words(&added, &words);
        }
        let again = "192.0.2.8/16".parse().expect("an address");
        let twice = stack.add_interface(own("192.0.2.8/24").address(again)).expect_err("refused");
        expect_words(&twice.to_string(), &["address 192.0.2.8/16: it was given twice"]);
    });
}

#[test]
fn a_second_device_and_an_address_off_the_link_are_refused() {
    let twice = Stack::builder().tun("t0").tun("t1").address("10.9.0.2/24").build();
    expect_words(&refusal(twice), &["tun \"t1\"", "Builder::interface"]);
    let off = |own: &str| Stack::builder().tun("t0").host_address("10.9.0.1/24").address(own);
    let words = ["address 10.8.0.2/24", "not in the network of the host address 10.9.0.1/24"];
    expect_words(&refusal(off("10.8.0.2/24").build()), &words);
    in_namespace(|| {
        for (own, another) in [("10.8.0.2/32", "fd00:9::2/64"), ("10.8.0.2/24", "10.9.0.2/24")] {
            off(own).address(another).build().expect("it may get routes later");
        }
    });
}

#[test]
fn a_setting_of_the_device_is_refused_where_there_are_interfaces_alone() {
    in_namespace(|| {
        let refused = |describe: fn(neap::Builder) -> neap::Builder| {
            let config = TunConfig { name: Some("t0".to_owned()), ..TunConfig::default() };
            let tun = Tun::open(&config).expect("a TUN").into_device();
            let own = "10.9.0.2/24".parse().expect("an address");
            let interface = neap::InterfaceConfig::new(tun).address(own);
            refusal(describe(Stack::builder().interface(interface)).build())
        };
        let expect = |text: String, setting: &str, place: &str| {
            expect_words(&text, &[setting, "Builder::tun", place]);
        };
        let text = refused(|builder| builder.gateway("10.9.0.1"));
        expect(text, "gateway 10.9.0.1: ", "InterfaceConfig::gateway");
        let text = refused(|builder| builder.route("192.0.2.0/24", "10.9.0.1"));
        expect(text, "route 192.0.2.0/24 via 10.9.0.1: ", "InterfaceConfig::route");
        let text = refused(|builder| builder.qdisc("fq"));
        expect(text, "qdisc \"fq\": ", "InterfaceConfig::qdisc");
        let text = refused(|builder| builder.any_destination(true));
        expect(text, "any_destination: ", "InterfaceConfig::any_destination");
        let text = refused(|builder| builder.address("10.9.0.3/24"));
        expect(text, "address 10.9.0.3/24: ", "InterfaceConfig::address");
        let text = refused(|builder| builder.host_address("10.9.0.1/24"));
        expect(text, "host address 10.9.0.1/24: ", "neap::device::configure_link");
    });
}

#[test]
fn the_kernel_s_end_is_the_router_of_a_host_without_a_network() {
    in_namespace(|| {
        let router = ["10.9.0.1", "fd00:9::1"];
        let far = ["10.66.0.1", "fd00:66::1"];
        run("ip address add 10.66.0.1/32 dev lo");
        run("ip address add fd00:66::1/128 dev lo nodad");
        let mut builder = Stack::builder().tun("t0");
        for (host, own) in [("10.9.0.1/24", "10.9.0.2/32"), ("fd00:9::1/64", "fd00:9::2/128")] {
            builder = builder.host_address(host).address(own);
        }
        let stack = builder.gateway(router[0]).gateway(router[1]).build().expect("a stack");
        let connect = |to: &str| {
            let listener = std::net::TcpListener::bind((to, 0)).expect("bind");
            let address = listener.local_addr().expect("an address");
            neap::TcpStream::connect(&stack, address).map(drop)
        };
        for to in router.into_iter().chain(far) {
            connect(to).unwrap_or_else(|error| panic!("{to}: {error}"));
        }
    });
}

#[test]
fn a_bad_sysctl_is_named_with_what_it_takes() {
    let refused = |name, value| refusal(Stack::builder().sysctl(name, value).build());
    expect_words(&refused("net.ipv4.tcp_wmen", "1"), &["unknown sysctl net.ipv4.tcp_wmen"]);
    expect_words(&refused("net.ipv4.tcp_sack", "yes"), &["net.ipv4.tcp_sack", "yes", "0 or 1"]);
    expect_words(&refused("net.ipv4.tcp_wmem", "4096"), &["net.ipv4.tcp_wmem", "three sizes"]);
    let control = refused("net.ipv4.tcp_congestion_control", "bbrr");
    expect_words(&control, &["bbrr", "tcp_congestion_control"]);
}
