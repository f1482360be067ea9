//! Sockets of IPv6 that serve IPv4 too.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use neap::Stack;
use neap::{ListenOptions, UdpOptions};

use crate::common::{Family, eventually, in_namespace, run};

const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// A stack on a TUN with addresses of both families at each end.
fn stack() -> Stack {
    let [v4, v6] = Family::BOTH;
    let stack = Stack::builder()
        .tun("t0")
        .host_address(v4.cidr(v4.kernel()))
        .address(v4.cidr(v4.ours()))
        .address(v6.cidr(v6.ours()))
        .build()
        .expect("a stack on a TUN");
    run(&format!("ip addr add {} dev t0 nodad", v6.cidr(v6.kernel())));
    // The kernel takes packets for the address only when it has a route for it, a little later.
    let is_there = |routes: &String| routes.contains(&v6.kernel().to_string());
    eventually(|| run("ip -6 route show table local"), is_there);
    stack
}

/// As a socket of IPv6 shows it.
fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[test]
fn a_listener_on_all_addresses_of_ipv6_accepts_ipv4_and_shows_it_mapped() {
    in_namespace(|| {
        let stack = stack();
        let ours = neap::TcpListener::bind(&stack, "[::]:0").expect("bind");
        let port = ours.local_addr().expect("an address").port();
        // The kernel's own listener is the measure.
        let theirs = std::net::TcpListener::bind(("::", 0)).expect("bind");
        let their_port = theirs.local_addr().expect("an address").port();
        for family in Family::BOTH {
            let mut client = TcpStream::connect((family.ours(), port)).expect("connect");
            let (mut stream, peer) = ours.accept().expect("accept");
            let from = client.local_addr().expect("an address");
            assert_eq!(peer, mapped(from));
            assert_eq!(stream.peer_addr().expect("a peer"), mapped(from));
            let own = stream.local_addr().expect("an address");
            assert_eq!(own, mapped(SocketAddr::new(family.ours(), port)));
            stream.write_all(b"hello").expect("written");
            client.read_exact(&mut [0; 5]).expect("read");

            let to = SocketAddr::new(family.kernel(), their_port);
            let client = neap::TcpStream::connect(&stack, to).expect("connect");
            let (_, seen) = theirs.accept().expect("accept");
            assert_eq!(seen, mapped(client.local_addr().expect("an address")), "as Linux");
        }
        assert!(!ours.only_v6().expect("known"));
        let any = SocketAddr::new(Family::V4.text("0.0.0.0", "::"), port);
        let taken = neap::TcpListener::bind(&stack, any).expect_err("it is 0.0.0.0 too");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        drop(ours);
        neap::TcpListener::bind(&stack, any).expect("it is free again");
    });
}

#[test]
fn a_listener_of_ipv6_only_leaves_ipv4_to_others() {
    in_namespace(|| {
        let stack = stack();
        let options = ListenOptions { only_v6: true, ..ListenOptions::default() };
        let ours = neap::TcpListener::bind_with(&stack, "[::]:80", options).expect("bind");
        assert!(ours.only_v6().expect("known"));
        let refused = TcpStream::connect((Family::V4.ours(), 80)).expect_err("nobody listens");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let other = neap::TcpListener::bind(&stack, "0.0.0.0:80").expect("it is free");
        for (family, listener) in Family::BOTH.into_iter().zip([&other, &ours]) {
            let client = TcpStream::connect((family.ours(), 80)).expect("connect");
            let (_, peer) = listener.accept().expect("accept");
            assert_eq!(peer, client.local_addr().expect("an address"));
        }
        // One address of IPv6 serves no other family, and one of IPv4 serves IPv4.
        for (own, expected) in [(Family::V6.ours(), true), (Family::V4.ours(), false)] {
            let listener = neap::TcpListener::bind(&stack, (own, 0)).expect("bind");
            let socket = neap::UdpSocket::bind(&stack, (own, 0)).expect("bind");
            let both = [listener.only_v6().expect("known"), socket.only_v6().expect("known")];
            assert_eq!(both, [expected; 2], "{own}");
        }
    });
}

#[test]
fn a_mapped_address_is_connected_to_by_ipv4() {
    in_namespace(|| {
        let stack = stack();
        let (listener, address) = Family::V4.kernel_listener();
        let ours = neap::TcpStream::connect(&stack, mapped(address)).expect("connect");
        assert_eq!(ours.peer_addr().expect("a peer"), mapped(address));
        let (_, from) = listener.accept().expect("accept");
        assert_eq!(ours.local_addr().expect("an address"), mapped(from));
    });
}

#[test]
fn datagrams_of_both_families_come_to_one_socket() {
    in_namespace(|| {
        let stack = stack();
        let ours = neap::UdpSocket::bind(&stack, "[::]:53").expect("bind");
        ours.set_read_timeout(LONG).expect("a timeout");
        let mut buf = [0; 16];
        for family in Family::BOTH {
            let theirs = UdpSocket::bind((family.kernel(), 0)).expect("bind");
            theirs.set_read_timeout(LONG).expect("a timeout");
            theirs.send_to(b"ask", (family.ours(), 53)).expect("sent");
            let (len, from) = ours.recv_from(&mut buf).expect("a datagram");
            let peer = theirs.local_addr().expect("an address");
            assert_eq!((len, from), (3, mapped(peer)));
            ours.send_to(b"answer", from).expect("sent");
            assert_eq!(theirs.recv(&mut buf).expect("an answer"), 6);
            // The unmapped address will do as well, as on Linux.
            ours.send_to(b"answer", peer).expect("sent");
            assert_eq!(theirs.recv(&mut buf).expect("an answer"), 6);
        }
        assert_eq!(
            neap::UdpSocket::bind(&stack, "0.0.0.0:53").expect_err("taken").kind(),
            ErrorKind::AddrInUse
        );
        let options = UdpOptions { only_v6: true, ..UdpOptions::default() };
        let only = neap::UdpSocket::bind_with(&stack, "[::]:54", options).expect("bind");
        neap::UdpSocket::bind(&stack, "0.0.0.0:54").expect("it is free");
        let foreign = only.send_to(b"x", (Family::V4.kernel(), 9)).expect_err("not its family");
        assert_eq!(foreign.kind(), ErrorKind::InvalidInput);
    });
}
