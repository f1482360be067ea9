//! UDP.

use super::*;

fn pair(p: &mut Process) -> (Fd, Fd) {
    let (a, b) = (p.udp(), p.udp());
    p.bind(a, "127.0.0.1:500").expect("free");
    (a, b)
}

fn send_to(p: &mut Process, fd: Fd, data: &[u8], to: Option<&str>) -> Result<usize, Errno> {
    let to = to.map(address);
    p.once(|posix, now, call| posix.send_to(now, call, fd, data, MSG_DONTWAIT, to.as_deref()))
}

#[test]
fn datagrams_come_whole_or_cut_and_say_so() {
    let mut p = Process::new();
    let (a, b) = pair(&mut p);
    for _ in 0..4 {
        assert_eq!(send_to(&mut p, b, b"abcdef", Some("127.0.0.1:500")), Ok(6));
    }
    p.settle();
    assert_eq!(p.posix.ioctl(p.now, a, FIONREAD, 0), Ok(6));
    let mut buf = [0; 3];
    let mut receive = |p: &mut Process, flags| {
        p.once(|posix, now, call| posix.recv_from(now, call, a, &mut buf, flags | MSG_DONTWAIT))
    };
    let from = p.posix.getsockname(b).expect("open");
    assert_ne!(from.port(), 0, "sending chose one");
    let peeked = receive(&mut p, MSG_PEEK).expect("one");
    assert_eq!((peeked.len, peeked.flags), (3, MSG_TRUNC));
    assert_eq!(peeked.from.map(|from| from.port()), Some(from.port()));
    let got = receive(&mut p, MSG_TRUNC).expect("one");
    assert_eq!((got.len, got.flags), (6, MSG_TRUNC));
    assert_eq!(p.recv(a, 100, 0), Ok(b"abcdef".to_vec()));
    assert_eq!(p.recv(a, 100, 0), Ok(b"abcdef".to_vec()));
    assert_eq!(p.recv(a, 100, 0), Ok(b"abcdef".to_vec()));
    assert_eq!(p.recv(a, 100, 0), Err(Errno::EAGAIN));
}

#[test]
fn a_datagram_needs_somewhere_to_go() {
    let mut p = Process::new();
    let fd = p.udp();
    assert_eq!(send_to(&mut p, fd, b"x", None), Err(Errno::EDESTADDRREQ));
    assert_eq!(send_to(&mut p, fd, b"x", Some("127.0.0.1:0")), Err(Errno::EINVAL));
    assert_eq!(send_to(&mut p, fd, b"x", Some("203.0.113.1:9")), Err(Errno::ENETUNREACH));
    assert_eq!(send_to(&mut p, fd, b"x", Some("[::1]:9")), Err(Errno::EAFNOSUPPORT));
    assert_eq!(send_to(&mut p, fd, &[0; 65508], Some("127.0.0.1:9")), Err(Errno::EMSGSIZE));
    assert_eq!(p.send(fd, b"x", MSG_MORE), Err(Errno::EOPNOTSUPP));
    assert_eq!(p.posix.getpeername(p.now, fd), Err(Errno::ENOTCONN));
}

#[test]
fn a_connected_socket_hears_of_closed_ports() {
    let mut p = Process::new();
    let fd = p.udp();
    p.connect(fd, "127.0.0.1:9").expect("nothing is sent");
    assert_eq!(p.posix.getpeername(p.now, fd), Ok("127.0.0.1:9".parse().expect("one")));
    let name = p.posix.getsockname(fd).expect("open");
    assert_eq!(name.ip().to_string(), "127.0.0.1", "the way out has an address");
    assert_eq!(p.send(fd, b"x", 0), Ok(1));
    assert_ne!(p.ready(fd) & POLLERR, 0);
    assert_eq!(p.recv(fd, 1, 0), Err(Errno::ECONNREFUSED));
    assert_eq!(p.ready(fd) & POLLERR, 0);
    let nothing = [0u8; 16];
    p.once(|posix, now, call| posix.connect(now, call, fd, &nothing)).expect("fine");
    assert_eq!(p.posix.getpeername(p.now, fd), Err(Errno::ENOTCONN));
}

#[test]
fn shutdown_of_a_datagram_socket() {
    let mut p = Process::new();
    let (a, b) = pair(&mut p);
    assert_eq!(p.posix.shutdown(p.now, a, SHUT_RD), Err(Errno::ENOTCONN));
    assert_eq!(p.ready(a) & (POLLIN | POLLRDHUP), POLLIN | POLLRDHUP, "and yet");
    p.connect(b, "127.0.0.1:500").expect("nothing is sent");
    assert_eq!(p.posix.shutdown(p.now, b, SHUT_WR), Ok(()));
    assert_eq!(p.send(b, b"x", 0), Err(Errno::EPIPE));
    assert_eq!(p.ready(b) & (POLLHUP | POLLRDHUP), 0);
    assert_eq!(p.posix.shutdown(p.now, b, SHUT_RD), Ok(()));
    assert_eq!(p.ready(b) & (POLLHUP | POLLRDHUP), POLLHUP | POLLRDHUP);
}

#[test]
fn buffers_asked_for_before_the_port_hold() {
    let mut p = Process::new();
    let fd = p.udp();
    p.set(fd, SOL_SOCKET, SO_RCVBUF, &int(3000)).expect("known");
    assert_eq!(p.get(fd, SOL_SOCKET, SO_RCVBUF), Ok(6000));
    p.bind(fd, "127.0.0.1:500").expect("free");
    assert_eq!(p.get(fd, SOL_SOCKET, SO_RCVBUF), Ok(6000));
    let from = p.udp();
    for _ in 0..20 {
        send_to(&mut p, from, &[0; 500], Some("127.0.0.1:500")).expect("room");
    }
    p.settle();
    let got = (0..20).take_while(|_| p.recv(fd, 500, 0).is_ok()).count();
    assert!((1..20).contains(&got), "{got}");
}

#[test]
fn the_peer_takes_a_chosen_port_with_it() {
    let mut p = Process::new();
    let nothing = [0u8; 16];
    let name = |p: &Process, fd| p.posix.getsockname(fd).expect("open").to_string();
    let leave = |p: &mut Process, fd| {
        p.once(|posix, now, call| posix.connect(now, call, fd, &nothing)).expect("fine");
    };
    let fd = p.udp();
    leave(&mut p, fd);
    assert_eq!(name(&p, fd), "0.0.0.0:0", "that needs no port");
    p.connect(fd, "127.0.0.1:9").expect("nothing is sent");
    leave(&mut p, fd);
    assert_eq!(name(&p, fd), "0.0.0.0:0");
    p.bind(fd, "127.0.0.1:0").expect("it has none");
    let (other, own) = (p.udp(), name(&p, fd));
    send_to(&mut p, other, b"x", Some(&own)).expect("somebody is there");
    assert_ne!(p.ready(fd) & POLLIN, 0);
    leave(&mut p, fd);
    assert_eq!(p.recv(fd, 1, 0), Err(Errno::EAGAIN), "what came for the port is gone with it");
    assert_eq!(name(&p, fd), "127.0.0.1:0", "the address was asked for");
    assert_eq!(send_to(&mut p, fd, b"x", Some("127.0.0.1:9")), Ok(1));
    assert!(name(&p, fd).starts_with("127.0.0.1:") && !name(&p, fd).ends_with(":0"));
    leave(&mut p, fd);
    p.bind(fd, "127.0.0.1:500").expect("it has none");
    p.connect(fd, "127.0.0.1:9").expect("nothing is sent");
    leave(&mut p, fd);
    assert_eq!(name(&p, fd), "127.0.0.1:500", "this one it keeps");
    assert_eq!(p.bind(fd, "127.0.0.1:501"), Err(Errno::EINVAL));
}

#[test]
fn a_port_can_be_shared_afterwards_and_no_more() {
    let mut p = Process::new();
    for (port, first, then, expected) in
        [(600, 0, 1, Ok(())), (601, 1, 0, Err(Errno::EADDRINUSE)), (602, 1, 1, Ok(()))]
    {
        let to = format!("127.0.0.1:{port}");
        let (a, b) = (p.udp(), p.udp());
        p.set(a, SOL_SOCKET, SO_REUSEADDR, &int(first)).expect("known");
        p.bind(a, &to).expect("free");
        p.set(a, SOL_SOCKET, SO_REUSEADDR, &int(then)).expect("known");
        p.set(b, SOL_SOCKET, SO_REUSEADDR, &int(1)).expect("known");
        assert_eq!(p.bind(b, &to), expected, "{port}");
    }
}

#[test]
fn destinations_of_no_family_or_the_other() {
    let mut p = Process::new();
    let send = |p: &mut Process, fd, to: &[u8]| {
        p.once(|posix, now, call| posix.send_to(now, call, fd, b"x", MSG_DONTWAIT, Some(to)))
    };
    let mut v4: Vec<u8> = address("127.0.0.1:9").to_vec();
    let fd = p.udp();
    v4[0] = AF_UNSPEC as u8;
    assert_eq!(send(&mut p, fd, &v4), Ok(1));
    assert_eq!(send(&mut p, fd, &v4[..15]), Err(Errno::EINVAL));
    v4[0] = 1;
    assert_eq!(send(&mut p, fd, &v4), Err(Errno::EAFNOSUPPORT));
    v4[0] = AF_INET as u8;
    let v6 = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    assert_eq!(send(&mut p, v6, &v4), Ok(1));
    assert_eq!(send(&mut p, v6, &v4[..15]), Err(Errno::EINVAL));
    assert_eq!(send(&mut p, v6, &[0; 28]), Err(Errno::EDESTADDRREQ));
    assert_eq!(send(&mut p, v6, &[1, 0, 0, 0]), Err(Errno::EINVAL));
    p.connect(v6, "[::1]:9").expect("nothing is sent");
    assert_eq!(send(&mut p, v6, &[0; 28]), Ok(1), "to the peer");
    let only = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    p.set(only, SOL_IPV6, IPV6_V6ONLY, &int(1)).expect("not bound");
    assert_eq!(send(&mut p, only, &v4), Err(Errno::ENETUNREACH));
}

#[test]
fn only_who_waits_hears_that_reading_has_ended() {
    let mut p = Process::new();
    let fd = p.udp();
    p.connect(fd, "127.0.0.1:9").expect("nothing is sent");
    assert_eq!(p.posix.shutdown(p.now, fd, SHUT_RD), Ok(()));
    assert_eq!(p.recv(fd, 1, 0), Err(Errno::EAGAIN));
    let mut buf = [0];
    let waited = p.block(|posix, now, call| posix.recv(now, call, fd, &mut buf, 0));
    assert_eq!(waited, Some(Ok(0)));
    p.set_nonblocking(fd);
    let tried = p.block(|posix, now, call| posix.recv(now, call, fd, &mut buf, 0));
    assert_eq!(tried, Some(Err(Errno::EAGAIN)));
}

#[test]
fn nobody_speaks_to_all_hosts_of_a_network() {
    let mut p = Process::new();
    let fd = p.udp();
    for to in ["192.0.2.255:9", "192.0.2.255:10"] {
        assert_eq!(send_to(&mut p, fd, b"x", Some(to)), Err(Errno::EACCES));
        assert_eq!(p.connect(fd, to), Err(Errno::EACCES));
    }
    assert_eq!(send_to(&mut p, fd, b"x", Some("255.255.255.255:9")), Err(Errno::ENETUNREACH));
    assert_eq!(p.connect(fd, "255.255.255.255:9"), Err(Errno::ENETUNREACH));
    assert_eq!(p.set(fd, SOL_SOCKET, SO_BROADCAST, &int(1)), Err(Errno::ENOPROTOOPT));
    assert_eq!(p.bind(fd, "192.0.2.255:0"), Err(Errno::EADDRNOTAVAIL));
    assert_eq!(send_to(&mut p, fd, b"x", Some("192.0.2.254:9")), Ok(1));
}
