//! Names in the place of addresses, and what a resolver's answer leads to.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use neap::Stack;

use crate::common::{Family, in_namespace};

/// A stack that knows one name, with these addresses.
fn stack(addresses: &'static [&'static str]) -> Stack {
    let family = Family::V4;
    let resolver = move |name: &str, port: u16| match name {
        "server.test" => {
            let address = |text: &&str| SocketAddr::new(text.parse().expect("an address"), port);
            Ok(addresses.iter().map(address).collect())
        }
        _ => Err(ErrorKind::NotFound.into()),
    };
    Stack::builder()
        .tun("t0")
        .host_address(family.cidr(family.kernel()))
        .address(family.cidr(family.ours()))
        .resolver(resolver)
        .build()
        .expect("a stack on a TUN")
}

#[test]
fn a_name_is_connected_to_by_the_first_address_that_answers() {
    in_namespace(|| {
        // Nobody has a route to the first, and nobody listens at the second.
        let stack = stack(&["fd00:77::1", "10.9.0.2", "10.9.0.1"]);
        let (listener, address) = Family::V4.kernel_listener();
        let name = format!("server.test:{}", address.port());
        let kernel = thread::spawn(move || {
            for _ in 0..3 {
                listener.accept().expect("a connection").0.write_all(b"hello").expect("written");
            }
        });
        let mut streams = [
            neap::TcpStream::connect(&stack, &name).expect("an address that answers"),
            neap::TcpStream::connect(&stack, ("server.test", address.port())).expect("as before"),
            neap::TcpStream::connect_timeout(&stack, name, Duration::from_secs(60)).expect("again"),
        ];
        for stream in &mut streams {
            assert_eq!(stream.peer_addr().expect("a peer"), address);
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("a greeting");
            assert_eq!(text, "hello");
        }
        kernel.join().expect("the kernel's end");
        let error = neap::TcpStream::connect(&stack, "unknown.test:80").expect_err("unknown");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_silent_address_leaves_time_for_the_next_one() {
    in_namespace(|| {
        let stack = stack(&["10.9.0.77", "10.9.0.1"]);
        crate::common::run("ip route add blackhole 10.9.0.77");
        let (_listener, address) = Family::V4.kernel_listener();
        let name = ("server.test", address.port());
        let timeout = Duration::from_secs(4);
        let stream = neap::TcpStream::connect_timeout(&stack, name, timeout).expect("the second");
        assert_eq!(stream.peer_addr().expect("a peer"), address);
        let none = neap::TcpStream::connect_timeout(&stack, name, Duration::ZERO);
        assert_eq!(none.expect_err("no time").kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn without_a_resolver_a_name_is_refused_and_an_address_is_not() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (_listener, address) = Family::V4.kernel_listener();
        let error = neap::TcpStream::connect(&stack, "localhost:80").expect_err("a name");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("Builder::resolver"), "{error}");
        neap::TcpStream::connect(&stack, address.to_string()).expect("text of an address");
    });
}

#[test]
fn the_peer_of_a_socket_is_the_first_address_with_a_way() {
    in_namespace(|| {
        let stack = stack(&["fd00:77::1", "10.9.0.1"]);
        let theirs = std::net::UdpSocket::bind((Family::V4.kernel(), 0)).expect("bind");
        let port = theirs.local_addr().expect("an address").port();
        let ours = neap::UdpSocket::bind(&stack, "[::]:0").expect("bind");
        ours.connect(("server.test", port)).expect("connected");
        ours.send(b"here").expect("sent");
        let mut buf = [0; 8];
        assert_eq!(theirs.recv(&mut buf).expect("a datagram"), 4);
        let far = SocketAddr::new("fd00:77::1".parse().expect("an address"), port);
        let other = ours.connect(far).expect_err("it is of IPv4 since it is connected");
        assert_eq!(other.kind(), ErrorKind::InvalidInput);
        let fresh = neap::UdpSocket::bind(&stack, "[::]:0").expect("bind");
        let none = fresh.connect(far).expect_err("no way");
        assert_eq!(none.kind(), ErrorKind::NetworkUnreachable);
    });
}

#[test]
fn datagrams_go_to_names_too() {
    in_namespace(|| {
        let stack = stack(&["10.9.0.1"]);
        let theirs = std::net::UdpSocket::bind((Family::V4.kernel(), 0)).expect("bind");
        let port = theirs.local_addr().expect("an address").port();
        let ours = neap::UdpSocket::bind(&stack, "0.0.0.0:0").expect("bind");
        ours.send_to(b"one", ("server.test", port)).expect("sent");
        ours.connect(("server.test", port)).expect("connected");
        ours.send(b"two").expect("sent");
        let mut buf = [0; 8];
        for text in [b"one", b"two"] {
            assert_eq!(theirs.recv(&mut buf).expect("a datagram"), 3);
            assert_eq!(&buf[..3], text);
        }
    });
}
