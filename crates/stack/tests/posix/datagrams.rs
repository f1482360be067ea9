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
    assert_eq!(p.recv(a, 1, 0), Ok(vec![]), "and yet");
    p.connect(b, "127.0.0.1:500").expect("nothing is sent");
    assert_eq!(p.posix.shutdown(p.now, b, SHUT_WR), Ok(()));
    assert_eq!(p.send(b, b"x", 0), Err(Errno::EPIPE));
    assert!(!p.posix.take_sigpipe(), "streams only");
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
