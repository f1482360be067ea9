//! Descriptors with addresses of others, towards sockets of the kernel.

use super::*;
use crate::common::foreign::{LONG, Link, Opening, addresses, stack, udp_client};
use crate::common::in_namespace;
use std::io::{Read, Write};

fn fd(posix: &Process, family: Family, kind: i32) -> Fd {
    let v4 = family == Family::V4;
    let fd = posix.socket(if v4 { AF_INET } else { AF_INET6 }, kind, 0).expect("a descriptor");
    let (level, name) = if v4 { (SOL_IP, IP_TRANSPARENT) } else { (SOL_IPV6, IPV6_TRANSPARENT) };
    posix.setsockopt(fd, level, name, &1i32.to_ne_bytes()).expect("an option");
    fd
}

#[test]
fn a_listener_has_an_address_of_others() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = stack(family, Link::Tap);
            let posix = stack.posix(3);
            let fd = fd(&posix, family, SOCK_STREAM);
            let [own, other, _] = addresses(family).map(|ip| SocketAddr::new(ip, 80));
            posix.bind(fd, &encode(own)).expect("allowed");
            posix.listen(fd, 5).expect("bound");
            let client = Opening::new(own);
            let accepted = posix.accept(fd, 0).expect("a connection");
            let mut theirs = client.wait().expect("accepted");
            assert_eq!(posix.getsockname(accepted.fd), Ok(own));
            assert_eq!(accepted.peer, theirs.local_addr().expect("an address"));
            theirs.write_all(b"question").expect("room");
            let mut buf = [0; 8];
            assert_eq!(posix.recv(accepted.fd, &mut buf, MSG_WAITALL), Ok(8));
            assert_eq!(posix.write(accepted.fd, b"answer"), Ok(6));
            posix.close(accepted.fd).expect("open");
            let mut answer = Vec::new();
            theirs.read_to_end(&mut answer).expect("an answer");
            assert_eq!(answer, b"answer");
            let refused = Opening::new(other).refused();
            assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
        }
    });
}

#[test]
fn connections_and_datagrams_leave_from_an_address_of_others() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = stack(family, Link::Tun);
            let posix = stack.posix(3);
            let own = SocketAddr::new(addresses(family)[0], 5000);
            let (listener, to) = family.kernel_listener();
            let stream = fd(&posix, family, SOCK_STREAM);
            posix.bind(stream, &encode(own)).expect("allowed");
            posix.connect(stream, &encode(to)).expect("somebody listens");
            let (mut theirs, from) = listener.accept().expect("a connection");
            assert_eq!(from, own);
            theirs.write_all(b"hello").expect("room");
            let mut buf = [0; 8];
            assert_eq!(posix.recv(stream, &mut buf, 0), Ok(5));
            // A datagram to the address is for the socket that is bound to it.
            let datagrams = fd(&posix, family, SOCK_DGRAM);
            posix.bind(datagrams, &encode(own)).expect("allowed");
            let client = udp_client(family, own, 64, 0);
            client.set_read_timeout(LONG).expect("a timeout");
            client.send(b"ping").expect("sent");
            assert_eq!(posix.recv(datagrams, &mut buf, 0), Ok(4));
            let to = encode(client.local_addr().expect("an address"));
            assert_eq!(posix.send_to(datagrams, b"pong!", 0, Some(&to)), Ok(5));
            assert_eq!(client.recv(&mut buf).expect("an answer"), 5);
        }
    });
}
