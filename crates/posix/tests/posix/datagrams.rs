//! UDP.

use super::batches::receive_many;
use super::*;

pub(super) fn pair(p: &mut Process) -> (Fd, Fd) {
    let (a, b) = (p.udp(), p.udp());
    p.bind(a, "127.0.0.1:500").expect("free");
    (a, b)
}

pub(super) fn send_to(
    p: &mut Process,
    fd: Fd,
    data: &[u8],
    to: Option<&str>,
) -> Result<usize, Errno> {
    let to = to.map(address);
    p.once(|posix, now, call| posix.send_to(now, call, fd, data, MSG_DONTWAIT, to.as_deref()))
}

#[test]
fn who_finds_no_port_without_asking_for_one_may_try_again() {
    let mut p = Process::new();
    p.posix.stack().set_sysctl("net.ipv4.ip_local_port_range", "40000 40000").expect("a range");
    let (taken, asks, sends) = (p.udp(), p.udp(), p.udp());
    p.bind(taken, "0.0.0.0:0").expect("the only one");
    assert_eq!(p.bind(asks, "0.0.0.0:0"), Err(Errno::EADDRINUSE));
    assert_eq!(send_to(&mut p, sends, b"x", Some("127.0.0.1:500")), Err(Errno::EAGAIN));
    assert_eq!(p.connect(sends, "127.0.0.1:500"), Err(Errno::EAGAIN));
    // There is no room to wait for, so a call that may wait says so at once.
    let to = address("127.0.0.1:500");
    let mut messages = [Outgoing { data: b"x", to: Some(&to), ..Outgoing::default() }];
    let sent = p.once(|posix, now, call| posix.send_mmsg(now, call, sends, &mut messages, 0));
    assert_eq!(sent, Err(Errno::EAGAIN));
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
    // Each message of a call tells of the end, unless the call does not wait for it.
    let empty = |count| Some(Ok(vec![vec![]; count]));
    assert_eq!(receive_many(&mut p, b, 3, 0), empty(3));
    assert_eq!(receive_many(&mut p, b, 3, MSG_WAITFORONE), empty(1));
    assert_eq!(receive_many(&mut p, b, 3, MSG_DONTWAIT), Some(Err(Errno::EAGAIN)));
}

#[test]
fn who_sends_after_a_shutdown_is_told_of_a_missing_peer_and_of_an_error_first() {
    let mut p = Process::new();
    let fresh = p.udp();
    let bound = p.udp();
    p.bind(bound, "127.0.0.1:53").expect("free");
    for fd in [fresh, bound] {
        assert_eq!(p.posix.shutdown(p.now, fd, SHUT_WR), Err(Errno::ENOTCONN));
        assert_eq!(p.send(fd, b"x", 0), Err(Errno::EDESTADDRREQ));
        assert_eq!(send_to(&mut p, fd, b"x", Some("127.0.0.1:9")), Err(Errno::EPIPE));
    }
    let fd = p.udp();
    p.connect(fd, "127.0.0.1:9").expect("nothing is sent");
    assert_eq!(p.send(fd, b"x", 0), Ok(1));
    assert_ne!(p.ready(fd) & POLLERR, 0);
    assert_eq!(p.posix.shutdown(p.now, fd, SHUT_WR), Ok(()));
    assert_eq!(p.send(fd, b"x", 0), Err(Errno::ECONNREFUSED));
    assert_eq!(p.send(fd, b"x", 0), Err(Errno::EPIPE));
}

#[test]
fn a_shutdown_is_found_behind_all_that_is_wrong_with_a_datagram() {
    // The kernel answers the same calls alike (`udp_sendmsg`, `__ip_append_data`).
    let mut p = Process::new();
    let (fresh, failed) = (p.udp(), p.udp());
    p.connect(failed, "127.0.0.1:9").expect("nothing is sent");
    assert_eq!(p.send(failed, b"x", 0), Ok(1));
    p.settle();
    for (fd, shut, last) in
        [(fresh, Err(Errno::ENOTCONN), Errno::EPIPE), (failed, Ok(()), Errno::ECONNREFUSED)]
    {
        assert_eq!(p.posix.shutdown(p.now, fd, SHUT_WR), shut);
        for (to, len, error) in [
            ("127.0.0.1:0", 1, Errno::EINVAL),
            ("127.0.0.1:9", 70_000, Errno::EMSGSIZE),
            ("127.0.0.1:0", 70_000, Errno::EMSGSIZE),
            ("127.0.0.1:9", 65_530, Errno::EMSGSIZE),
            ("127.255.255.255:9", 1, Errno::EACCES),
            ("127.0.0.1:9", 1, last),
            ("127.0.0.1:9", 1, Errno::EPIPE),
        ] {
            assert_eq!(send_to(&mut p, fd, &vec![0; len], Some(to)), Err(error), "{to}, {len}");
        }
    }
    let unreachable = send_to(&mut p, fresh, b"x", Some("203.0.113.1:9"));
    assert_eq!(unreachable, Err(Errno::ENETUNREACH));
    let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    assert_eq!(p.posix.shutdown(p.now, fd, SHUT_WR), Err(Errno::ENOTCONN));
    for (to, len, error) in [
        ("[::1]:0", 1, Errno::EINVAL),
        ("[::1]:0", 70_000, Errno::EINVAL),
        ("[::1]:9", 70_000, Errno::EMSGSIZE),
        ("[::ffff:127.0.0.1]:0", 70_000, Errno::EMSGSIZE),
        ("[::1]:9", 1, Errno::EPIPE),
    ] {
        assert_eq!(send_to(&mut p, fd, &vec![0; len], Some(to)), Err(error), "{to}, {len}");
    }
}

#[test]
fn what_is_wrong_with_a_datagram_leaves_the_pending_error_to_the_next() {
    // The kernel answers the same calls alike.
    let mut p = Process::new();
    let fd = p.udp();
    p.connect(fd, "127.0.0.1:9").expect("nothing is sent");
    assert_eq!(p.send(fd, b"x", 0), Ok(1));
    p.settle();
    assert_eq!(send_to(&mut p, fd, b"x", Some("127.0.0.1:0")), Err(Errno::EINVAL));
    assert_eq!(send_to(&mut p, fd, b"x", Some("127.255.255.255:9")), Err(Errno::EACCES));
    assert_eq!(p.send(fd, &[0; 70_000], 0), Err(Errno::EMSGSIZE));
    assert_eq!(p.send(fd, b"x", 0), Err(Errno::ECONNREFUSED));
    assert_eq!(p.send(fd, b"x", 0), Ok(1));
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
fn a_peer_without_a_port_is_none() {
    let mut p = Process::new();
    let fd = p.udp();
    p.connect(fd, "127.0.0.1:0").expect("an address");
    assert_eq!(p.posix.getpeername(p.now, fd), Err(Errno::ENOTCONN));
    assert_eq!(p.get(fd, SOL_SOCKET, SO_PEERNAME), Err(Errno::ENOTCONN));
    let name = p.posix.getsockname(fd).expect("open");
    assert_eq!(name.ip().to_string(), "127.0.0.1", "the way out has an address");
    assert_eq!(p.send(fd, b"x", 0), Err(Errno::EINVAL));
    assert_eq!(p.posix.shutdown(p.now, fd, SHUT_RD), Ok(()));
}

#[test]
fn datagrams_to_no_address_are_for_this_host() {
    let mut p = Process::new();
    for (any, own) in [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]"), ("[::ffff:0:0]", "127.0.0.1")] {
        let open = |p: &mut Process, ip: &str| {
            let domain = if ip.starts_with('[') { AF_INET6 } else { AF_INET };
            p.posix.socket(domain, SOCK_DGRAM, 0).expect("a descriptor")
        };
        let (receiver, sender) = (open(&mut p, own), open(&mut p, any));
        p.bind(receiver, &format!("{own}:700")).expect("free");
        let any = format!("{any}:700");
        assert_eq!(send_to(&mut p, sender, b"x", Some(&any)), Ok(1), "{any}");
        assert_eq!(p.connect(sender, &any), Ok(()), "{any}");
        let peer = p.posix.getpeername(p.now, sender).expect("connected");
        assert_eq!(peer.ip().to_canonical().to_string(), own.trim_matches(['[', ']']));
        assert_eq!(send_to(&mut p, sender, b"y", Some(&any)), Ok(1), "{any}");
        assert_eq!(p.send(sender, b"z", 0), Ok(1), "{any}");
        for data in [b"x", b"y", b"z"] {
            assert_eq!(p.recv(receiver, 10, 0), Ok(data.to_vec()), "{any}");
        }
        p.close(receiver);
    }
}

#[test]
fn no_address_is_the_own_one_of_a_socket_that_has_one() {
    let mut p = Process::new();
    let (sender, receiver) = (p.udp(), p.udp());
    p.bind(sender, "192.0.2.1:0").expect("an own address");
    p.bind(receiver, "192.0.2.1:700").expect("an own address");
    assert_eq!(send_to(&mut p, sender, b"x", Some("0.0.0.0:700")), Ok(1));
    assert_eq!(p.recv(receiver, 10, 0), Ok(b"x".to_vec()));
    let (client, server) = (p.tcp(), p.listen("192.0.2.1:80"));
    p.bind(client, "192.0.2.1:0").expect("an own address");
    assert_eq!(p.connect(client, "0.0.0.0:80"), Ok(()));
    p.accept(server);
}

#[test]
fn datagrams_come_with_msg_oob_as_without() {
    let mut p = Process::new();
    let (a, b) = pair(&mut p);
    assert_eq!(p.recv(a, 10, MSG_OOB), Err(Errno::EAGAIN));
    assert_eq!(send_to(&mut p, b, b"x", Some("127.0.0.1:500")), Ok(1));
    assert_eq!(p.recv(a, 10, MSG_OOB), Ok(b"x".to_vec()));
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
fn broadcast_needs_the_option() {
    let mut p = Process::new();
    let fd = p.udp();
    let all = ["192.0.2.255:9", "192.0.2.255:10", "127.255.255.255:9"];
    for to in all {
        assert_eq!(send_to(&mut p, fd, b"x", Some(to)), Err(Errno::EACCES));
        assert_eq!(p.connect(fd, to), Err(Errno::EACCES));
    }
    assert_eq!(send_to(&mut p, fd, b"x", Some("255.255.255.255:9")), Err(Errno::ENETUNREACH));
    assert_eq!(p.connect(fd, "255.255.255.255:9"), Err(Errno::ENETUNREACH));
    assert_eq!(p.get(fd, SOL_SOCKET, SO_BROADCAST), Ok(0));
    p.set(fd, SOL_SOCKET, SO_BROADCAST, &int(5)).expect("known");
    assert_eq!(p.get(fd, SOL_SOCKET, SO_BROADCAST), Ok(1));
    for to in all {
        assert_eq!(send_to(&mut p, fd, b"x", Some(to)), Ok(1));
        assert_eq!(p.connect(fd, to), Ok(()));
    }
    let other = p.udp();
    assert_eq!(p.bind(other, "192.0.2.255:0"), Ok(()));
    p.set(fd, SOL_SOCKET, SO_BROADCAST, &int(0)).expect("known");
    let nothing = [0u8; 16];
    p.once(|posix, now, call| posix.connect(now, call, fd, &nothing)).expect("fine");
    assert_eq!(send_to(&mut p, fd, b"x", Some(all[0])), Err(Errno::EACCES));
    assert_eq!(send_to(&mut p, fd, b"x", Some("192.0.2.254:9")), Ok(1));
    // The option is there for TCP too, and does nothing.
    let tcp = p.tcp();
    p.set(tcp, SOL_SOCKET, SO_BROADCAST, &int(1)).expect("known");
    assert_eq!(p.get(tcp, SOL_SOCKET, SO_BROADCAST), Ok(1));
}

#[test]
fn a_broadcast_comes_back_to_its_own_host() {
    let mut p = Process::new();
    let (fd, other) = (p.udp(), p.udp());
    p.bind(fd, "0.0.0.0:67").expect("free");
    p.set(other, SOL_SOCKET, SO_BROADCAST, &int(1)).expect("known");
    p.set(fd, SOL_IP, IP_PKTINFO, &int(1)).expect("known");
    assert_eq!(send_to(&mut p, other, b"all", Some("192.0.2.255:67")), Ok(3));
    p.settle();
    let (got, control) = recv_msg(&mut p, fd, 0).expect("one");
    assert_eq!(got.len, 3);
    // The interface, the address of an answer, and the one that it was sent to.
    let info = [&int(1)[..], &[192, 0, 2, 1, 192, 0, 2, 255]].concat();
    assert_eq!(control, [(SOL_IP, IP_PKTINFO, info)]);
}

/// One control message with its padding.
pub(super) fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut bytes = (CMSG_HEADER_LEN + data.len()).to_ne_bytes().to_vec();
    bytes.extend([level.to_ne_bytes(), kind.to_ne_bytes()].concat());
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Level, kind and data of each control message.
fn messages(mut control: &[u8]) -> Vec<(i32, i32, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some((header, _)) = control.split_first_chunk::<CMSG_HEADER_LEN>() {
        let len = usize::from_ne_bytes(header[..8].try_into().expect("eight"));
        let int = |at: usize| i32::from_ne_bytes(header[at..at + 4].try_into().expect("four"));
        all.push((int(8), int(12), control[CMSG_HEADER_LEN..len].to_vec()));
        control = &control[len.next_multiple_of(8).min(control.len())..];
    }
    all
}

type WithControl = (neap_posix::Received, Vec<(i32, i32, Vec<u8>)>);

fn recv_msg(p: &mut Process, fd: Fd, flags: i32) -> Result<WithControl, Errno> {
    let (mut buf, mut control) = ([0; 100], [0; 256]);
    let got = p.once(|posix, now, call| {
        posix.recv_msg(now, call, fd, &mut buf, &mut control, flags | MSG_DONTWAIT)
    })?;
    let control = messages(&control[..got.control]);
    Ok((got, control))
}

fn send_msg(p: &mut Process, fd: Fd, control: &[u8], to: &str) -> Result<usize, Errno> {
    let to = address(to);
    p.once(|posix, now, call| {
        posix.send_msg(now, call, fd, b"data", control, MSG_DONTWAIT, Some(&to))
    })
}

#[test]
fn control_messages_say_how_a_datagram_came() {
    let mut p = Process::new();
    let fd = p.udp();
    p.bind(fd, "127.0.0.1:500").expect("free");
    let sender = p.udp();
    p.set(sender, SOL_IP, IP_TOS, &int(0xb9)).expect("known");
    p.set(sender, SOL_IP, IP_TTL, &int(9)).expect("known");
    let to = Some("127.0.0.1:500");
    send_to(&mut p, sender, b"x", to).expect("room");
    p.settle();
    assert_eq!(recv_msg(&mut p, fd, 0).expect("one").1, [], "nobody asked");
    let own = [127, 0, 0, 1];
    let all = [
        (IP_PKTINFO, IP_PKTINFO, [&int(1)[..], &own, &own].concat()),
        (IP_RECVTTL, IP_TTL, int(9).to_vec()),
        (IP_RECVTOS, IP_TOS, vec![0xb9]),
        (IP_RECVORIGDSTADDR, IP_ORIGDSTADDR, address("127.0.0.1:500").to_vec()),
    ];
    let mut wanted = Vec::new();
    for (option, kind, data) in all {
        assert_eq!(p.get(fd, SOL_IP, option), Ok(0));
        p.set(fd, SOL_IP, option, &int(1)).expect("known");
        assert_eq!(p.get(fd, SOL_IP, option), Ok(1));
        wanted.push((SOL_IP, kind, data));
        send_to(&mut p, sender, b"x", to).expect("room");
        p.settle();
        assert_eq!(recv_msg(&mut p, fd, MSG_PEEK).expect("one").1, wanted);
        let (got, control) = recv_msg(&mut p, fd, 0).expect("one");
        assert_eq!((got.flags, control), (0, wanted.clone()));
    }
    // What does not fit is cut, and the call says so.
    send_to(&mut p, sender, b"x", to).expect("room");
    p.settle();
    let (mut buf, mut control) = ([0; 100], [0; 40]);
    let got = p.once(|posix, now, call| {
        posix.recv_msg(now, call, fd, &mut buf, &mut control, MSG_DONTWAIT)
    });
    let got = got.expect("one");
    assert_eq!((got.flags, got.control), (MSG_CTRUNC, 32));
    for option in [IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR] {
        p.set(fd, SOL_IP, option, &int(0)).expect("known");
    }
    send_to(&mut p, sender, b"x", to).expect("room");
    p.settle();
    assert_eq!(recv_msg(&mut p, fd, 0).expect("one").1, []);
}

#[test]
fn a_datagram_says_how_many_were_dropped_before_it() {
    let mut p = Process::new();
    let (a, b) = pair(&mut p);
    p.set(a, SOL_SOCKET, SO_RCVBUF, &int(1)).expect("the least buffer");
    for (level, name) in [(SOL_SOCKET, SO_RXQ_OVFL), (SOL_IP, IP_RECVTTL)] {
        assert_eq!(p.get(a, level, name), Ok(0));
        p.set(a, level, name, &int(7)).expect("known");
        assert_eq!(p.get(a, level, name), Ok(1));
    }
    let receive = |p: &mut Process| {
        let (mut buf, mut control) = ([0; 10], [0; 100]);
        let got = p.once(|posix, now, call| {
            posix.recv_msg(now, call, a, &mut buf, &mut control, MSG_DONTWAIT)
        })?;
        Ok::<_, Errno>(messages(&control[..got.control]))
    };
    let ttl = (SOL_IP, IP_TTL, int(64).to_vec());
    for _ in 0..10 {
        assert_eq!(send_to(&mut p, b, b"x", Some("127.0.0.1:500")), Ok(1));
    }
    p.settle();
    let mut queued = 0;
    while let Ok(messages) = receive(&mut p) {
        assert_eq!(messages, core::slice::from_ref(&ttl), "nothing was dropped before it");
        queued += 1;
    }
    assert!((1..10).contains(&queued), "{queued}");
    for _ in 0..2 {
        assert_eq!(send_to(&mut p, b, b"x", Some("127.0.0.1:500")), Ok(1));
        p.settle();
        let dropped = (SOL_SOCKET, SO_RXQ_OVFL, int(10 - queued).to_vec());
        assert_eq!(receive(&mut p), Ok(vec![dropped, ttl.clone()]));
    }
    assert_eq!(p.set(a, SOL_SOCKET, SO_RXQ_OVFL, &[1]), Err(Errno::EINVAL));
    p.set(a, SOL_SOCKET, SO_RXQ_OVFL, &int(0)).expect("known");
    assert_eq!(send_to(&mut p, b, b"x", Some("127.0.0.1:500")), Ok(1));
    p.settle();
    assert_eq!(receive(&mut p), Ok(vec![ttl.clone()]));
    // The count is kept for what was queued while nobody asked.
    assert_eq!(send_to(&mut p, b, b"x", Some("127.0.0.1:500")), Ok(1));
    p.settle();
    p.set(a, SOL_SOCKET, SO_RXQ_OVFL, &int(1)).expect("known");
    let dropped = (SOL_SOCKET, SO_RXQ_OVFL, int(10 - queued).to_vec());
    assert_eq!(receive(&mut p), Ok(vec![dropped, ttl]));
}

#[test]
fn a_stream_has_no_control_messages() {
    let mut p = Process::new();
    let fd = p.tcp();
    for option in [IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR] {
        assert_eq!(p.set(fd, SOL_IP, option, &int(1)), Err(Errno::ENOPROTOOPT));
        assert_eq!(p.get(fd, SOL_IP, option), Err(Errno::ENOPROTOOPT));
    }
}

#[test]
fn a_socket_of_ipv6_hears_of_both_families() {
    let mut p = Process::new();
    let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    p.bind(fd, "[::]:500").expect("free");
    for option in [IPV6_RECVPKTINFO, IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS, IPV6_RECVORIGDSTADDR] {
        p.set(fd, SOL_IPV6, option, &int(1)).expect("known");
        assert_eq!(p.get(fd, SOL_IPV6, option), Ok(1));
    }
    let sender = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    p.set(sender, SOL_IPV6, IPV6_TCLASS, &int(0x2e)).expect("known");
    p.set(sender, SOL_IPV6, IPV6_UNICAST_HOPS, &int(3)).expect("known");
    send_to(&mut p, sender, b"x", Some("[::1]:500")).expect("room");
    p.settle();
    let own = |ip: &str| {
        let ip: core::net::Ipv6Addr = ip.parse().expect("an address");
        [&ip.octets()[..], &int(1)].concat()
    };
    let wanted = [
        (SOL_IPV6, IPV6_PKTINFO, own("::1")),
        (SOL_IPV6, IPV6_HOPLIMIT, int(3).to_vec()),
        (SOL_IPV6, IPV6_TCLASS, int(0x2e).to_vec()),
        (SOL_IPV6, IPV6_ORIGDSTADDR, address("[::1]:500").to_vec()),
    ];
    assert_eq!(recv_msg(&mut p, fd, 0).expect("one").1, wanted);
    // Of IPv4 the address is mapped, and the rest is what the options of IPv4 ask for.
    p.set(fd, SOL_IP, IP_RECVTTL, &int(1)).expect("known");
    send_to(&mut p, sender, b"x", Some("[::ffff:127.0.0.1]:500")).expect("room");
    p.settle();
    let wanted =
        [(SOL_IPV6, IPV6_PKTINFO, own("::ffff:127.0.0.1")), (SOL_IP, IP_TTL, int(64).to_vec())];
    assert_eq!(recv_msg(&mut p, fd, 0).expect("one").1, wanted);
}

#[test]
fn a_link_local_address_names_its_link_and_shows_it() {
    let mut p = Process::new();
    let first = p.posix.stack().interface_ids()[0];
    let one = |text: &str| text.parse().expect("a prefix");
    p.posix.stack().add_address(first, one("fe80::1/64")).expect("it is there");
    let second = Wire::default();
    let own = [one("fe80::2/64")];
    let added = p.posix.stack().add_interface(p.now, second.device(), &own).expect("a queue");
    assert_eq!(added.index(), 3);
    let peer = "[fe80::9%3]:53".parse().expect("an address");
    let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    let elsewhere = "[fe80::9%4]:53";
    assert_eq!(send_to(&mut p, fd, b"x", Some(elsewhere)), Err(Errno::ENETUNREACH));
    assert_eq!(send_to(&mut p, fd, b"x", Some("[fe80::9%3]:53")), Ok(1));
    p.connect(fd, "[fe80::9%3]:53").expect("nothing is sent");
    assert_eq!(p.posix.getpeername(p.now, fd), Ok(peer));
    assert_eq!(p.send(fd, b"y", 0), Ok(1));
    p.settle();
    assert_eq!(p.wire.ends().sent.len(), 0);
    let sent = core::mem::take(&mut second.ends().sent);
    assert_eq!(sent.len(), 2);
    // The answer is the same packet the other way round, which has the same checksum.
    let packet = &sent[1];
    let parts = [&packet[..8], &packet[24..40], &packet[8..24], &packet[42..44], &packet[40..42]];
    let answer = [&parts.concat()[..], &packet[44..]].concat();
    second.ends().arriving.push_back(answer.into());
    p.settle();
    let mut buf = [0; 9];
    let received = p
        .once(|posix, now, call| posix.recv_from(now, call, fd, &mut buf, MSG_DONTWAIT))
        .expect("the answer");
    assert_eq!(received.from, Some(peer));
    // A bound address is that of the whole host, whatever its scope.
    let bound = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    p.bind(bound, "[fe80::2%2]:500").expect("free");
    assert_eq!(p.posix.getsockname(bound), Ok("[fe80::2]:500".parse().expect("an address")));
}

#[test]
fn connecting_to_a_link_local_address_asks_the_way_on_its_link() {
    let mut p = Process::new();
    let second = Wire::default();
    let own = ["2001:db8:1::2/64".parse().expect("a prefix")];
    let added = p.posix.stack().add_interface(p.now, second.device(), &own).expect("a queue");
    assert_eq!(added.index(), 3);
    let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    p.connect(fd, "[fe80::9%3]:53").expect("nothing is sent");
    assert_eq!(p.send(fd, b"x", 0), Ok(1));
    p.settle();
    assert_eq!((p.wire.ends().sent.len(), second.ends().sent.len()), (0, 1));
    // No route leads there, and no link is named. As on Linux, the socket has a port from then on.
    let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    assert_eq!(p.connect(fd, "[fe80::9]:53"), Err(Errno::ENETUNREACH));
    assert_ne!(p.posix.getsockname(fd).expect("open").port(), 0);
    assert_eq!(p.posix.getpeername(p.now, fd), Err(Errno::ENOTCONN));
}

#[test]
fn a_connected_socket_tells_the_mtu_of_its_own_way() {
    let mut p = Process::new();
    let own = ["2001:db8:1::2/64".parse().expect("a prefix")];
    let second = p.posix.stack().add_interface(p.now, Wire::default().device(), &own);
    let second = second.expect("a queue");
    p.posix.stack().set_mtu(second, 1420).expect("it is there");
    assert_eq!(second.index(), 3);
    // A peer is on the link of its scope.
    let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    for (peer, mtu) in [("[fe80::9%3]:53", 1420), ("[fe80::9%2]:53", 1500)] {
        p.connect(fd, peer).expect("nothing is sent");
        assert_eq!(p.get(fd, SOL_IPV6, IPV6_MTU), Ok(mtu), "{peer}");
    }
    // Groups are on the link of the own address, whatever the routes say. None leads there.
    let fd = p.udp();
    p.bind(fd, "192.0.2.1:0").expect("free");
    p.connect(fd, "239.1.2.3:9").expect("nothing is sent");
    assert_eq!(p.get(fd, SOL_IP, IP_MTU), Ok(1500));
}

/// The latest packet that the process sent by its interface.
fn latest(p: &Process) -> Bytes {
    p.wire.ends().sent.back().cloned().expect("a packet")
}

#[test]
fn control_messages_say_how_a_datagram_is_to_leave() {
    let mut p = Process::new();
    let fd = p.udp();
    let to = "192.0.2.9:9";
    let pktinfo = |index: i32, source: [u8; 4]| {
        message(SOL_IP, IP_PKTINFO, &[&int(index)[..], &source, &[0; 4]].concat())
    };
    let ttl = message(SOL_IP, IP_TTL, &int(5));
    let tos = message(SOL_IP, IP_TOS, &int(0xb9));
    let own = pktinfo(0, [192, 0, 2, 1]);
    assert_eq!(send_msg(&mut p, fd, &[ttl, tos, own].concat(), to), Ok(4));
    p.settle();
    let packet = latest(&p);
    assert_eq!((packet[1], packet[8], &packet[12..16]), (0xb9, 5, &[192, 0, 2, 1][..]));
    // One byte is enough for a TOS, and messages of other levels are for others.
    let byte = message(SOL_IP, IP_TOS, &[0x10]);
    let foreign = message(SOL_IPV6, IPV6_TCLASS, &int(3));
    assert_eq!(send_msg(&mut p, fd, &[byte, foreign].concat(), to), Ok(4));
    p.settle();
    assert_eq!((latest(&p)[1], latest(&p)[8]), (0x10, 64));
    // By the interface of that number; there is one besides the loopback.
    assert_eq!(send_msg(&mut p, fd, &pktinfo(2, [0; 4]), "203.0.113.1:9"), Ok(4));
    assert_eq!(send_msg(&mut p, fd, &pktinfo(0, [0; 4]), "203.0.113.1:9"), Err(Errno::ENETUNREACH));
    for index in [3, -1] {
        assert_eq!(send_msg(&mut p, fd, &pktinfo(index, [0; 4]), to), Err(Errno::ENODEV));
    }
    let good = message(SOL_IP, IP_TTL, &int(5));
    for bad in [
        pktinfo(0, [198, 51, 100, 1]),
        message(SOL_IP, IP_TTL, &int(0)),
        message(SOL_IP, IP_TTL, &int(256)),
        message(SOL_IP, IP_TTL, &[5]),
        message(SOL_IP, IP_TOS, &int(256)),
        message(SOL_IP, IP_TOS, &[1, 2]),
        message(SOL_IP, IP_RECVERR, &int(1)),
        message(SOL_IP, IP_PKTINFO, &[0; 11]),
        message(SOL_SOCKET, SO_MARK, &int(1)),
        good[..19].to_vec(),
    ] {
        assert_eq!(send_msg(&mut p, fd, &bad, to), Err(Errno::EINVAL), "{bad:?}");
    }
    // Who connects need not name the peer for its family to be known.
    p.connect(fd, to).expect("nothing is sent");
    let sent = p
        .once(|posix, now, call| posix.send_msg(now, call, fd, b"data", &good, MSG_DONTWAIT, None));
    assert_eq!(sent, Ok(4));
    p.settle();
    assert_eq!(latest(&p)[8], 5);
}

#[test]
fn control_messages_of_ipv6_say_how_a_datagram_is_to_leave() {
    let mut p = Process::new();
    let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    let to = "[2001:db8::9]:9";
    let pktinfo = |source: &str| {
        let ip: core::net::Ipv6Addr = source.parse().expect("an address");
        message(SOL_IPV6, IPV6_PKTINFO, &[&ip.octets()[..], &int(0)].concat())
    };
    let hops = message(SOL_IPV6, IPV6_HOPLIMIT, &int(5));
    let class = message(SOL_IPV6, IPV6_TCLASS, &int(0xb9));
    let all = [hops, class, pktinfo("2001:db8::1")].concat();
    assert_eq!(send_msg(&mut p, fd, &all, to), Ok(4));
    p.settle();
    let packet = latest(&p);
    assert_eq!((packet[0] << 4 | packet[1] >> 4, packet[7]), (0xb9, 5));
    let default = message(SOL_IPV6, IPV6_HOPLIMIT, &int(-1));
    assert_eq!(send_msg(&mut p, fd, &default, to), Ok(4));
    p.settle();
    assert_eq!(latest(&p)[7], 64);
    // An address of IPv4 goes by its mapped form.
    let v4 = "[::ffff:192.0.2.9]:9";
    assert_eq!(send_msg(&mut p, fd, &pktinfo("::ffff:192.0.2.1"), v4), Ok(4));
    p.settle();
    assert_eq!(latest(&p)[12..16], [192, 0, 2, 1]);
    assert_eq!(send_msg(&mut p, fd, &pktinfo("2001:db8::1"), v4), Err(Errno::EINVAL));
    for bad in [
        pktinfo("2001:db8:1::1"),
        pktinfo("::ffff:192.0.2.1"),
        message(SOL_IPV6, IPV6_HOPLIMIT, &int(0)),
        message(SOL_IPV6, IPV6_HOPLIMIT, &int(256)),
        message(SOL_IPV6, IPV6_TCLASS, &int(-2)),
        message(SOL_IPV6, IPV6_RECVERR, &int(1)),
    ] {
        assert_eq!(send_msg(&mut p, fd, &bad, to), Err(Errno::EINVAL), "{bad:?}");
    }
}

#[test]
fn who_answers_with_the_message_that_came_over_the_loopback_is_heard() {
    let v4 = (AF_INET, "0.0.0.0:53", SOL_IP, IP_PKTINFO);
    let v6 = (AF_INET6, "[::]:53", SOL_IPV6, IPV6_RECVPKTINFO);
    for ((domain, any, level, option), to, own) in [
        (v4, "127.0.0.1:53", "127.0.0.1:54"),
        (v4, "192.0.2.1:53", "192.0.2.1:54"),
        (v6, "[::1]:53", "[::1]:54"),
        (v6, "[2001:db8::1]:53", "[2001:db8::1]:54"),
        (v6, "[::ffff:127.0.0.1]:53", "[::ffff:127.0.0.1]:54"),
    ] {
        let mut p = Process::new();
        let server = p.posix.socket(domain, SOCK_DGRAM, 0).expect("a descriptor");
        p.bind(server, any).expect("free");
        p.set(server, level, option, &int(1)).expect("known");
        let client = p.posix.socket(domain, SOCK_DGRAM, 0).expect("a descriptor");
        p.bind(client, own).expect("free");
        assert_eq!(send_to(&mut p, client, b"question", Some(to)), Ok(8));
        p.settle();
        let (_, control) = recv_msg(&mut p, server, 0).expect("one");
        let [(level, kind, info)] = &control[..] else { panic!("one message: {control:?}") };
        let info = message(*level, *kind, info);
        assert_eq!(send_msg(&mut p, server, &info, own), Ok(4), "{own}");
        p.settle();
        let (got, _) = recv_msg(&mut p, client, 0).expect("an answer");
        assert_eq!(got.from, Some(to.parse().expect("an address")));
        // By the loopback no other host is reached.
        let elsewhere = match (domain, own.contains("ffff")) {
            (AF_INET, _) => "192.0.2.9:9",
            (_, true) => "[::ffff:192.0.2.9]:9",
            (_, false) => "[2001:db8::9]:9",
        };
        assert_eq!(send_msg(&mut p, server, &info, elsewhere), Err(Errno::ENETUNREACH));
    }
}

#[test]
fn the_tos_byte_is_set_and_read() {
    let mut p = Process::new();
    let fd = p.udp();
    assert_eq!(p.get(fd, SOL_IP, IP_TOS), Ok(0));
    // As in Linux, of a larger number the low byte counts.
    for (value, tos) in [(0xb9, 0xb9), (0x1ff, 0xff), (-1, 0xff), (0, 0)] {
        p.set(fd, SOL_IP, IP_TOS, &int(value)).expect("known");
        assert_eq!(p.get(fd, SOL_IP, IP_TOS), Ok(tos));
        send_to(&mut p, fd, b"x", Some("192.0.2.9:9")).expect("room");
        p.settle();
        assert_eq!(i32::from(latest(&p)[1]), tos);
    }
    assert_eq!(p.set(fd, SOL_IPV6, IPV6_TCLASS, &int(1)), Err(Errno::ENOPROTOOPT));
    let v6 = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    for (value, expected) in [(0x2e, Ok(())), (-1, Ok(())), (256, Err(Errno::EINVAL))] {
        assert_eq!(p.set(v6, SOL_IPV6, IPV6_TCLASS, &int(value)), expected);
    }
    assert_eq!(p.get(v6, SOL_IPV6, IPV6_TCLASS), Ok(0), "-1 is the default");
}

#[test]
fn the_error_queue_says_what_the_packet_was_sent_from() {
    let mut p = Process::new();
    let fd = p.udp();
    p.set(fd, SOL_IP, IP_RECVERR, &int(1)).expect("known");
    p.set(fd, SOL_IP, IP_PKTINFO, &int(1)).expect("known");
    send_to(&mut p, fd, b"x", Some("127.0.0.1:9")).expect("sent");
    p.settle();
    let (_, control) = recv_msg(&mut p, fd, MSG_ERRQUEUE).expect("a record");
    let kinds: Vec<_> = control.iter().map(|(_, kind, _)| *kind).collect();
    assert_eq!(kinds, [IP_PKTINFO, IP_RECVERR]);
    assert_eq!(control[0].2[8..], [127, 0, 0, 1]);
}
