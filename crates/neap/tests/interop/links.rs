//! Paths with more than one link: routers with a small MTU, and Ethernet through AF_PACKET.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;

use neap::Stack;
use neap::device::{Packet, PacketConfig, TunConfig};
use neap::info::{InterfaceInfo, IpCounter};
use neap::net::Neighbor;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::common::{Family, Pattern, eventually, expect_end, in_namespace, run};
use crate::network::exchange;

/// Another network namespace, which ends when this is dropped or the test ends.
pub(crate) struct Elsewhere {
    process: Child,
}

impl Elsewhere {
    pub(crate) fn new() -> Self {
        let script = "ip link set lo up && echo ready && cat";
        let mut process = Command::new("unshare")
            .args(["-n", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        let mut line = String::new();
        let stdout = process.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Self { process }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Runs there, in a thread of its own; sockets and programs made by it stay there.
    pub(crate) fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/proc/{}/ns/net", self.pid())).expect("a namespace");
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), kind).expect("entered");
                f()
            });
            thread.join().expect("no panic")
        })
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A veth pair: `v0` here and `v1` there, both up.
pub(crate) fn veth(there: &Elsewhere) {
    run("ip link add v0 type veth peer name v1");
    run(&format!("ip link set v1 netns {}", there.pid()));
    run("ip link set v0 up");
    there.run(|| run("ip link set v1 up"));
    // Until the kernel has taken notice that the link is there, it drops what is sent.
    let is_up = |shown: &String| shown.contains(" state UP ");
    eventually(|| run("ip -o link show v0"), is_up);
    eventually(|| there.run(|| run("ip -o link show v1")), is_up);
}

/// `address` for `ip address add`: usable at once.
pub(crate) fn add_address(name: &str, cidr: &str) {
    let nodad = if cidr.contains(':') { "nodad" } else { "" };
    run(&format!("ip address add {cidr} dev {name} {nodad}"));
}

/// Bulk to a server of the kernel and back, each byte verified. Returns our end, still open.
fn there_and_back(stack: &Stack, listener: TcpListener, len: u64) -> neap::TcpStream {
    let address = listener.local_addr().expect("an address");
    let (there, back) = (Pattern(1), Pattern(2));
    let kernel = thread::spawn(move || {
        let (mut theirs, _) = listener.accept().expect("accept");
        there.receive(&mut theirs, len);
        back.send(&mut theirs, len);
        theirs.shutdown(Shutdown::Write).expect("shutdown");
        expect_end(&mut theirs);
    });
    let mut ours = neap::TcpStream::connect(stack, address).expect("connect");
    there.send(&mut ours, len);
    back.receive(&mut ours, len);
    expect_end(&mut ours);
    ours.shutdown(Shutdown::Write).expect("shutdown");
    kernel.join().expect("the kernel's end");
    ours
}

/// The kernel here routes between `t0` and `v0`.
fn router(family: Family, there: &Elsewhere) {
    veth(there);
    let (near, far) = (family.text("10.8.0.1", "fd00:8::1"), family.text("10.8.0.2", "fd00:8::2"));
    add_address("v0", &family.cidr(near));
    let network = family.text("10.9.0.0", "fd00:9::");
    there.run(|| {
        add_address("v1", &family.cidr(far));
        run(&format!("ip route add {} via {near}", family.cidr(network)));
    });
    let forward = family.text("1.0.0.0", "::").is_ipv4();
    let switch = if forward { "ipv4/ip_forward" } else { "ipv6/conf/all/forwarding" };
    std::fs::write(format!("/proc/sys/net/{switch}"), "1").expect("a sysctl");
    wait_for(far);
}

/// Until the far end answers the kernel: a busy machine sets a new veth up seconds late, and the
/// kernel tells meanwhile that its neighbour is unreachable.
fn wait_for(far: IpAddr) {
    let closed = SocketAddr::new(far, 9);
    let is_there = || match TcpStream::connect(closed) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionRefused,
    };
    assert!((0..10).any(|_| is_there()), "{far} does not answer");
}

/// Bytes of the headers of IP and TCP.
fn headers(family: Family) -> u32 {
    if family == Family::V4 { 40 } else { 60 }
}

fn far_listener(family: Family, there: &Elsewhere) -> TcpListener {
    there.run(|| TcpListener::bind((family.text("10.8.0.2", "fd00:8::2"), 0)).expect("bind"))
}

#[test]
fn a_smaller_mtu_behind_a_router_is_learnt() {
    in_namespace(|| {
        for family in Family::BOTH {
            let there = Elsewhere::new();
            router(family, &there);
            // Only the way there is narrow, and the far end believes in 1500 bytes: its MSS tells
            // nothing, and what it sends passes.
            let network = family.cidr(family.text("10.8.0.0", "fd00:8::"));
            run(&format!("ip route del {network} dev v0"));
            run(&format!("ip route add {network} dev v0 mtu lock 1280"));
            let stack = Stack::builder()
                .tun("t0")
                .host_address(family.cidr(family.kernel()))
                .address(family.cidr(family.ours()))
                .gateway(family.kernel())
                .build()
                .expect("a stack");
            let ours = there_and_back(&stack, far_listener(family, &there), 4 << 20);
            let info = ours.info();
            let options = 12;
            assert_eq!((info.pmtu, info.advmss), (1280, 1500 - headers(family) - options));
            // The next connection knows from the start.
            let listener = far_listener(family, &there);
            let address = listener.local_addr().expect("an address");
            let again = neap::TcpStream::connect(&stack, address).expect("connect");
            assert_eq!(again.info().pmtu, 1280);
            drop(stack);
            run("ip link del v0");
        }
    });
}

#[test]
fn a_small_mtu_of_our_own_is_kept() {
    in_namespace(|| {
        for family in Family::BOTH {
            let there = Elsewhere::new();
            router(family, &there);
            run("ip tuntap add dev t0 mode tun vnet_hdr");
            run("ip link set t0 mtu 1280");
            let stack = Stack::builder()
                .tun("t0")
                .host_address(family.cidr(family.kernel()))
                .address(family.cidr(family.ours()))
                .gateway(family.kernel())
                .build()
                .expect("a stack");
            let ours = there_and_back(&stack, far_listener(family, &there), 4 << 20);
            let info = ours.info();
            let mss = 1280 - headers(family) - 12;
            assert_eq!((info.pmtu, info.advmss), (1280, mss));
            assert!(info.rcv_mss <= mss, "{info:?}");
            drop(stack);
            run("ip link del v0");
            run("ip link del t0");
        }
    });
}

/// A stack on `v0` whose other end is the kernel elsewhere.
fn packet_stack(family: Family, gateway: bool) -> Stack {
    let device = Packet::open(&PacketConfig::new("v0")).expect("a device").into_device();
    let mut builder = Stack::builder().device(device).address(family.cidr(family.ours()));
    if gateway {
        builder = builder.gateway(family.kernel());
    }
    builder.build().expect("a stack")
}

fn neighbors(stack: &Stack) -> Vec<Neighbor> {
    stack.host().interfaces().into_iter().flat_map(|each| each.neighbors).collect()
}

#[test]
fn ethernet_between_two_namespaces() {
    const LEN: u64 = 16 << 20;
    in_namespace(|| {
        for family in Family::BOTH {
            let there = Elsewhere::new();
            veth(&there);
            there.run(|| add_address("v1", &family.cidr(family.kernel())));
            let stack = packet_stack(family, false);
            let listener = there.run(|| TcpListener::bind((family.kernel(), 0)).expect("bind"));
            drop(there_and_back(&stack, listener, LEN));
            let found = neighbors(&stack);
            let kernel = found.iter().find(|each| each.address == family.kernel());
            assert!(kernel.is_some_and(|each| each.link.is_some()), "{found:?}");
            let theirs = there.run(|| run(&format!("ip neighbour show {}", family.ours())));
            assert!(theirs.contains("lladdr"), "{theirs:?}");

            // The kernel asks first this time.
            there.run(|| run("ip neighbour flush dev v1"));
            drop(stack);
            let stack = packet_stack(family, false);
            let (listener, address) = family.listener(&stack);
            let mut theirs = there.run(|| TcpStream::connect(address).expect("connect"));
            let (mut ours, _) = listener.accept().expect("accept");
            let pattern = Pattern(3);
            let server = thread::spawn(move || pattern.send(&mut ours, LEN));
            pattern.receive(&mut theirs, LEN);
            expect_end(&mut theirs);
            server.join().expect("our end");
            run("ip link del v0");
        }
    });
}

#[test]
fn ethernet_through_a_gateway() {
    const LEN: u64 = 4 << 20;
    in_namespace(|| {
        for family in Family::BOTH {
            let there = Elsewhere::new();
            veth(&there);
            let beyond = family.text("10.77.0.1", "fd00:77::1");
            there.run(|| {
                add_address("v1", &family.cidr(family.kernel()));
                add_address("lo", &family.cidr(beyond));
            });
            let listener = there.run(|| TcpListener::bind((beyond, 0)).expect("bind"));
            let stack = packet_stack(family, true);
            drop(there_and_back(&stack, listener, LEN));
            let found = neighbors(&stack);
            assert!(found.iter().all(|each| each.address != beyond), "{found:?}");
            drop(stack);
            run("ip link del v0");
        }
    });
}

#[test]
fn an_ethernet_address_that_nobody_has_is_unreachable() {
    in_namespace(|| {
        for family in Family::BOTH {
            let there = Elsewhere::new();
            veth(&there);
            let stack = packet_stack(family, false);
            let nobody = SocketAddr::new(family.text("10.9.0.99", "fd00:9::99"), 80);
            let error = neap::TcpStream::connect(&stack, nobody).expect_err("nobody answers");
            assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable, "{error}");
            drop(stack);
            run("ip link del v0");
        }
    });
}

#[test]
fn requests_and_replies_over_ethernet() {
    in_namespace(|| {
        let family = Family::V4;
        let there = Elsewhere::new();
        veth(&there);
        there.run(|| add_address("v1", &family.cidr(family.kernel())));
        let stack = packet_stack(family, false);
        let listener = there.run(|| TcpListener::bind((family.kernel(), 0)).expect("bind"));
        let address = listener.local_addr().expect("an address");
        let mut ours = neap::TcpStream::connect(&stack, address).expect("connect");
        let (mut theirs, _) = listener.accept().expect("accept");
        let kernel = thread::spawn(move || {
            let mut byte = [0];
            while theirs.read(&mut byte).expect("a request") == 1 {
                theirs.write_all(&byte).expect("a reply");
            }
        });
        for round in 0..1000_u32 {
            let request = [round as u8];
            ours.write_all(&request).expect("a request");
            let mut reply = [0];
            ours.read_exact(&mut reply).expect("a reply");
            assert_eq!(reply, request);
        }
        ours.shutdown(Shutdown::Write).expect("shutdown");
        kernel.join().expect("the kernel's end");
    });
}

/// Connections of both directions over two queues: the kernel's fan-out and the stack agree on
/// their shards.
#[test]
fn no_packet_is_handed_from_one_shard_to_another() {
    in_namespace(|| {
        for family in Family::BOTH {
            let there = Elsewhere::new();
            veth(&there);
            there.run(|| add_address("v1", &family.cidr(family.kernel())));
            let config = PacketConfig { queues: 2, ..PacketConfig::new("v0") };
            let device = Packet::open(&config).expect("a device").into_device();
            let address = family.cidr(family.ours());
            let stack = Stack::builder().device(device).address(address).build().expect("a stack");
            talk_both_ways(&stack, family, &there);
            drop(stack);
            run("ip link del v0");
        }
    });
}

/// Opens 32 connections each way, with a few bytes on each, and looks at the counter.
fn talk_both_ways(stack: &Stack, family: Family, there: &Elsewhere) {
    let far = there.run(|| TcpListener::bind((family.kernel(), 0)).expect("bind"));
    let far_address = far.local_addr().expect("an address");
    let (near, near_address) = family.listener(stack);
    let mut pairs = Vec::new();
    for _ in 0..32 {
        let ours = neap::TcpStream::connect(stack, far_address).expect("connect");
        pairs.push((ours, far.accept().expect("accept").0));
        let theirs = there.run(|| TcpStream::connect(near_address).expect("connect"));
        pairs.push((near.accept().expect("accept").0, theirs));
    }
    for (ours, theirs) in &mut pairs {
        exchange(ours, theirs, 10_000);
    }
    let host = stack.host();
    assert_eq!(host.ip_counter(IpCounter::CrossShard), 0);
    let frames = |interface: &InterfaceInfo| interface.ports.iter().map(|port| port.frames).min();
    let least = host.interfaces().iter().filter_map(frames).min();
    assert!(least.is_some_and(|frames| frames > 50), "both queues are used: {least:?}");
}

/// The kernel gives a packet of a multi-queue TUN to the queue that its flow was last sent by. Only
/// the first answer comes earlier than the kernel notes that (`tun_flow_update`).
#[test]
fn a_tun_of_two_queues_hands_only_first_answers_to_another_shard() {
    in_namespace(|| {
        let config = TunConfig { name: Some("t0".into()), queues: 2, ..TunConfig::default() };
        let (kernel, ours) =
            (Family::V4.cidr(Family::V4.kernel()), Family::V4.cidr(Family::V4.ours()));
        let builder = Stack::builder().tun_with(config).host_address(kernel).address(ours);
        let stack = builder.build().expect("a stack");
        let far = TcpListener::bind((Family::V4.kernel(), 0)).expect("bind");
        let far_address = far.local_addr().expect("an address");
        let mut pairs: Vec<_> = (0..8)
            .map(|_| {
                let ours = neap::TcpStream::connect(&stack, far_address).expect("connect");
                (ours, far.accept().expect("accept").0)
            })
            .collect();
        let crossed = || stack.host().ip_counter(IpCounter::CrossShard);
        let of_opening = crossed();
        assert!(of_opening <= 8, "{of_opening}");
        for (ours, theirs) in &mut pairs {
            exchange(ours, theirs, 10_000);
        }
        assert_eq!(crossed(), of_opening);
    });
}
