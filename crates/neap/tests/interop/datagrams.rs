//! UDP and ICMP.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use neap::Stack;
use neap::device::{Packet, PacketConfig};
use neap::info::IpCounter;
use nix::sys::socket::sockopt::UdpGsoSegment;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use crate::common::{Family, Pattern, in_namespace, skip};
use crate::links::{Elsewhere, add_address, veth};

/// For a datagram that must come: they are not lost here.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// Payloads of one packet, of the largest one, of several fragments, and of the largest datagram.
const SIZES: [usize; 8] = [0, 1, 1200, 1452, 1472, 1473, 9000, 65_507];

#[test]
fn datagrams_come_back_from_the_kernel() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let theirs = UdpSocket::bind((family.kernel(), 0)).expect("bind");
            let address = theirs.local_addr().expect("an address");
            let kernel = thread::spawn(move || {
                let mut buf = vec![0; 1 << 16];
                for _ in SIZES {
                    let (len, from) = theirs.recv_from(&mut buf).expect("a datagram");
                    theirs.send_to(&buf[..len], from).expect("sent");
                }
            });
            let ours = neap::UdpSocket::bind(&stack, SocketAddr::new(family.ours(), 0));
            let ours = ours.expect("bind");
            ours.set_read_timeout(LONG).expect("a timeout");
            let mut buf = vec![0; 1 << 16];
            for (seed, size) in (0..).zip(SIZES) {
                let data = Pattern(seed).bytes(size);
                assert_eq!(ours.send_to(&data, address).expect("sent"), size);
                let (len, from) = ours.recv_from(&mut buf).expect("the echo");
                assert_eq!((len, from), (size, address));
                assert!(buf[..len] == data, "{size} bytes");
            }
            kernel.join().expect("the kernel's end");
        }
    });
}

#[test]
fn datagrams_of_the_kernel_are_answered() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let ours = neap::UdpSocket::bind(&stack, SocketAddr::new(family.ours(), 0));
            let ours = ours.expect("bind");
            let address = ours.local_addr().expect("an address");
            let theirs = UdpSocket::bind((family.kernel(), 0)).expect("bind");
            theirs.connect(address).expect("connect");
            theirs.set_read_timeout(LONG).expect("a timeout");
            let server = thread::spawn(move || {
                let mut buf = vec![0; 1 << 16];
                for _ in SIZES {
                    let (len, from) = ours.recv_from(&mut buf).expect("a datagram");
                    ours.send_to(&buf[..len], from).expect("sent");
                }
            });
            let mut buf = vec![0; 1 << 16];
            for (seed, size) in (0..).zip(SIZES) {
                let data = Pattern(seed).bytes(size);
                theirs.send(&data).expect("sent");
                let len = theirs.recv(&mut buf).expect("the echo");
                assert!(buf[..len] == data, "{size} bytes");
            }
            server.join().expect("the stack's end");
        }
    });
}

#[test]
fn the_ttl_of_each_socket_is_read_and_set() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let local = SocketAddr::new(family.ours(), 0);
            let kernel = std::net::TcpListener::bind((family.kernel(), 0)).expect("bind");
            let remote = kernel.local_addr().expect("an address");
            let stream = neap::TcpStream::connect(&stack, remote).expect("a connection");
            let listener = neap::TcpListener::bind(&stack, local).expect("bind");
            let socket = neap::UdpSocket::bind(&stack, local).expect("bind");
            let ttls =
                || [stream.ttl(), listener.ttl(), socket.ttl()].map(|ttl| ttl.expect("read"));
            assert_eq!(ttls(), [64; 3]);
            for bad in [0, 256] {
                let error = stream.set_ttl(bad).expect_err("out of range");
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                assert!(error.to_string().contains("1 to 255"), "{error}");
            }
            stream.set_ttl(1).expect("set");
            listener.set_ttl(2).expect("set");
            socket.set_ttl(3).expect("set");
            assert_eq!(ttls(), [1, 2, 3]);
            // One hop leads to the kernel.
            let (mut theirs, _) = kernel.accept().expect("a connection");
            (&stream).write_all(b"hop").expect("written");
            let mut buf = [0; 3];
            theirs.read_exact(&mut buf).expect("read");
            // What the listener accepts inherits it.
            let client = std::net::TcpStream::connect(listener.local_addr().expect("an address"));
            let (child, _) = listener.accept().expect("a connection");
            assert_eq!(child.ttl().expect("read"), 2);
            drop(client);
        }
    });
}

#[test]
fn datagrams_to_closed_ports_are_refused_both_ways() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let ours = neap::UdpSocket::bind(&stack, SocketAddr::new(family.ours(), 0));
            let ours = ours.expect("bind");
            ours.set_read_timeout(LONG).expect("a timeout");
            ours.connect(SocketAddr::new(family.kernel(), 9)).expect("connect");
            ours.send(b"anybody?").expect("sent");
            let refused = ours.recv(&mut [0; 16]).expect_err("nobody is there");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

            let theirs = UdpSocket::bind((family.kernel(), 0)).expect("bind");
            theirs.set_read_timeout(LONG).expect("a timeout");
            theirs.connect((family.ours(), 9)).expect("connect");
            theirs.send(b"anybody?").expect("sent");
            let refused = theirs.recv(&mut [0; 16]).expect_err("nobody is there");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        }
    });
}

#[test]
fn a_receive_timeout_and_non_blocking_mode_of_udp() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let ours = neap::UdpSocket::bind(&stack, SocketAddr::new(family.ours(), 0));
        let ours = ours.expect("bind");
        ours.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let late = ours.recv_from(&mut [0; 16]).expect_err("nothing comes");
        assert_eq!(late.kind(), ErrorKind::WouldBlock);
        ours.set_nonblocking(true).expect("a mode");
        let late = ours.recv_from(&mut [0; 16]).expect_err("nothing is there");
        assert_eq!(late.kind(), ErrorKind::WouldBlock);
    });
}

/// A socket of the kernel that sends echo requests, if it may.
fn ping_socket(family: Family) -> Option<UdpSocket> {
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").ok()?;
    let (domain, protocol) = match family {
        Family::V4 => (AddressFamily::INET, ipproto::ICMP),
        Family::V6 => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(domain, SocketType::DGRAM, flags, Some(protocol)).ok()?;
    Some(socket.into())
}

#[test]
fn the_stack_answers_a_ping() {
    in_namespace(|| {
        for family in Family::BOTH {
            let Some(socket) = ping_socket(family) else {
                return skip("no right to open an ICMP socket");
            };
            let stack = family.stack();
            socket.connect((family.ours(), 0)).expect("connect");
            socket.set_read_timeout(LONG).expect("a timeout");
            let (request, reply) = if family == Family::V4 { (8, 0) } else { (128, 129) };
            let mut buf = vec![0; 1 << 16];
            for (sequence, size) in [0, 56, 1400, 4000, 60_000].into_iter().enumerate() {
                let mut echo = vec![request, 0, 0, 0, 0, 0, 0, sequence as u8];
                echo.extend(Pattern(9).bytes(size));
                socket.send(&echo).expect("sent");
                let len = socket.recv(&mut buf).expect("a reply");
                assert_eq!((buf[0], buf[7]), (reply, sequence as u8));
                assert!(buf[8..len] == echo[8..], "{size} bytes");
            }
            if family == Family::V4 {
                assert_eq!(stack.host().ip_counter(IpCounter::IcmpOutEchoReps), 5);
            }
        }
    });
}

#[test]
fn a_connected_socket_hears_its_peer_alone_and_may_look_before_it_takes() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let theirs = UdpSocket::bind((family.kernel(), 0)).expect("bind");
        let stranger = UdpSocket::bind((family.kernel(), 0)).expect("bind");
        let peer = theirs.local_addr().expect("an address");
        let ours = neap::UdpSocket::bind(&stack, "0.0.0.0:0").expect("bind");
        let unconnected = ours.peer_addr().expect_err("no peer");
        assert_eq!(unconnected.kind(), ErrorKind::NotConnected);
        assert_eq!(ours.send(b"x").expect_err("no peer").kind(), ErrorKind::InvalidInput);
        ours.connect(peer).expect("connect");
        assert_eq!(ours.peer_addr().expect("a peer"), peer);
        let own = ours.local_addr().expect("an address");
        assert_eq!(own.ip(), family.ours(), "as on Linux, the address that is sent from");
        stranger.send_to(b"stranger", own).expect("sent");
        theirs.send_to(b"peer", own).expect("sent");
        ours.set_read_timeout(LONG).expect("a timeout");
        let mut buf = [0; 16];
        assert_eq!(ours.peek_from(&mut buf).expect("a datagram"), (4, peer));
        assert_eq!(ours.peek(&mut buf).expect("a datagram"), 4);
        assert_eq!(ours.recv(&mut buf).expect("a datagram"), 4);
        assert_eq!(&buf[..4], b"peer");
        assert!(format!("{ours:?}").contains(&own.port().to_string()));
    });
}

#[test]
fn datagrams_alike_reach_the_kernel_from_one_frame() {
    // 46 of 1,400 bytes fill a frame; the last one is shorter. The kernel's buffer holds them.
    const COUNT: usize = 60;
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let ours = neap::UdpSocket::bind(&stack, SocketAddr::new(family.ours(), 0));
            let ours = ours.expect("bind");
            let peer = UdpSocket::bind((family.kernel(), 0)).expect("bind");
            peer.set_read_timeout(LONG).expect("a timeout");
            let to = peer.local_addr().expect("an address");
            let length = |index: usize| if index + 1 == COUNT { 77 } else { 1400 };
            let batch: Vec<_> = (0..COUNT)
                .map(|index| neap::Datagram::new(Pattern(index as u64).bytes(length(index)), to))
                .collect();
            let frames = || stack.host().interfaces()[0].ports[0].frames;
            let before = frames();
            assert_eq!(ours.send_batch(&batch).expect("sent"), COUNT);
            let mut buf = [0; 2000];
            for index in 0..COUNT {
                let len = peer.recv(&mut buf).expect("a datagram");
                assert_eq!(len, length(index));
                Pattern(index as u64).check(0, &buf[..len]);
            }
            assert!(frames() - before < 10, "{} frames", frames() - before);
        }
    });
}

/// Has the kernel send super-datagrams (`UDP_SEGMENT`) to a stack, and checks what arrives.
fn receive_super_datagrams(stack: &Stack, theirs: &UdpSocket, own: IpAddr) {
    // 46 of 1,400 bytes fill one; the last is shorter. One that is not longer than a part is plain.
    const PARTS: [(usize, usize); 4] = [(46, 1400), (3, 1000), (20, 77), (1, 1000)];
    let ours = neap::UdpSocket::bind(stack, SocketAddr::new(own, 0)).expect("bind");
    let to = ours.local_addr().expect("an address");
    ours.set_read_timeout(LONG).expect("a timeout");
    for (seed, (count, length)) in (0..).zip(PARTS) {
        nix::sys::socket::setsockopt(theirs, UdpGsoSegment, &(length as i32)).expect("Linux 4.18");
        let data = Pattern(seed).bytes(count * length - 7);
        theirs.send_to(&data, to).expect("sent");
        let mut buf = vec![0; 1 << 16];
        let mut got = Vec::new();
        for index in 0..count {
            let (len, from) = ours.recv_from(&mut buf).expect("a datagram");
            assert_eq!(len, if index + 1 < count { length } else { length - 7 });
            assert_eq!(from, theirs.local_addr().expect("an address"));
            got.extend_from_slice(&buf[..len]);
        }
        assert!(got == data, "{count} of {length} bytes");
    }
}

#[test]
fn super_datagrams_of_the_kernel_arrive_whole_over_a_tun() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let theirs = UdpSocket::bind((family.kernel(), 0)).expect("bind");
            receive_super_datagrams(&stack, &theirs, family.ours());
        }
    });
}

#[test]
fn super_datagrams_of_the_kernel_arrive_whole_over_a_packet_socket() {
    in_namespace(|| {
        let there = Elsewhere::new();
        veth(&there);
        let device = Packet::open(&PacketConfig::new("v0")).expect("a device").into_device();
        let stack = Stack::builder().device(device).address("10.9.0.2/24").build();
        let stack = stack.expect("a stack");
        let theirs = there.run(|| {
            add_address("v1", "10.9.0.1/24");
            UdpSocket::bind("10.9.0.1:0").expect("bind")
        });
        receive_super_datagrams(&stack, &theirs, Family::V4.ours());
    });
}

#[test]
fn batches_carry_many_datagrams_to_many_peers() {
    const EACH: usize = 20;
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let ours = neap::UdpSocket::bind(&stack, "0.0.0.0:0").expect("bind");
        let own = SocketAddr::new(family.ours(), ours.local_addr().expect("an address").port());
        ours.set_read_timeout(LONG).expect("a timeout");
        let peers: Vec<_> =
            (0..3).map(|_| UdpSocket::bind((family.kernel(), 0)).expect("bind")).collect();
        let addresses: Vec<_> =
            peers.iter().map(|peer| peer.local_addr().expect("an address")).collect();
        let batch: Vec<_> = (0..EACH * peers.len())
            .map(|index| {
                let data = Pattern(index as u64).bytes(100 + index);
                neap::Datagram::new(data, addresses[index % addresses.len()])
            })
            .collect();
        let mut sent = 0;
        while sent < batch.len() {
            sent += ours.send_batch(&batch[sent..]).expect("sent");
        }
        let mut buf = [0; 2000];
        for (at, peer) in peers.iter().enumerate() {
            peer.set_read_timeout(LONG).expect("a timeout");
            for nth in 0..EACH {
                let index = nth * peers.len() + at;
                let (len, from) = peer.recv_from(&mut buf).expect("a datagram");
                assert_eq!((len, from), (100 + index, own));
                Pattern(index as u64).check(0, &buf[..len]);
                peer.send_to(&buf[..len], from).expect("sent");
            }
        }
        let mut all = Vec::new();
        while all.len() < batch.len() {
            let before = all.len();
            let count = ours.recv_batch(&mut all, 7).expect("some");
            assert!(count <= 7 && all.len() == before + count);
        }
        for datagram in &all {
            assert_eq!(datagram.local, Some(own));
            assert!(batch.iter().any(|one| one.data == datagram.data && one.peer == datagram.peer));
        }
        // What comes with its own address may go back from it, but not from another's.
        let mut answer = all.swap_remove(0);
        assert_eq!(ours.send_batch(&[answer.clone()]).expect("sent"), 1);
        answer.local = Some(SocketAddr::new(family.kernel(), 0));
        let foreign = ours.send_batch(&[answer]).expect_err("not our address");
        assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable);
        ours.set_nonblocking(true).expect("a mode");
        let none = ours.recv_batch(&mut all, 7).expect_err("nothing is there");
        assert_eq!(none.kind(), ErrorKind::WouldBlock);
    });
}
