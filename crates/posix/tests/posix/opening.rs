//! `socket`, `bind`, `listen`, `connect`, `accept`, names.

use super::*;

#[test]
fn sockets_of_unknown_kinds_are_refused_each_with_its_error() {
    let p = Process::new();
    let socket = |domain, kind, protocol| p.posix.socket(domain, kind, protocol);
    assert_eq!(socket(1, SOCK_STREAM, 0), Err(Errno::EAFNOSUPPORT));
    assert_eq!(socket(AF_INET, 5, 0), Err(Errno::ESOCKTNOSUPPORT));
    assert_eq!(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP), Err(Errno::EPROTONOSUPPORT));
    assert_eq!(socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), Err(Errno::EPROTONOSUPPORT));
    assert_eq!(socket(AF_INET, SOCK_STREAM | 0x10, 0), Err(Errno::EINVAL));
    assert_eq!(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP), Ok(3));
    assert_eq!(socket(AF_INET6, SOCK_DGRAM, IPPROTO_UDP), Ok(4));
    assert_eq!(p.posix.fcntl(3, F_GETFL, 0), Ok(O_RDWR | O_NONBLOCK));
    assert_eq!(p.posix.fcntl(3, F_GETFD, 0), Ok(FD_CLOEXEC));
    assert_eq!(p.posix.fcntl(4, F_GETFL, 0), Ok(O_RDWR));
}

#[test]
fn the_lowest_descriptor_is_given_and_a_duplicate_shares_its_flags() {
    let mut p = Process::new();
    let (a, b) = (p.tcp(), p.tcp());
    assert_eq!((a, b), (3, 4));
    assert_eq!(p.posix.fcntl(a, F_DUPFD, 10), Ok(10));
    assert_eq!(p.posix.fcntl(a, F_DUPFD_CLOEXEC, 0), Ok(5));
    assert_eq!(p.posix.fcntl(5, F_GETFD, 0), Ok(FD_CLOEXEC));
    assert_eq!(p.posix.fcntl(10, F_GETFD, 0), Ok(0));
    p.set_nonblocking(10);
    assert_eq!(p.posix.fcntl(a, F_GETFL, 0), Ok(O_RDWR | O_NONBLOCK));
    p.bind(a, "127.0.0.1:700").expect("free");
    p.close(a);
    assert_eq!(p.posix.getsockname(10), Ok("127.0.0.1:700".parse().expect("an address")));
    assert_eq!(p.tcp(), 3);
    assert_eq!(p.posix.fcntl(a, 77, 0), Err(Errno::EINVAL));
    assert_eq!(p.posix.fcntl(a, F_DUPFD, -1), Err(Errno::EINVAL));
    assert_eq!(p.posix.fcntl(9, F_GETFL, 0), Err(Errno::EBADF));
    assert_eq!(p.posix.fcntl(-1, F_GETFL, 0), Err(Errno::EBADF));
    assert!(p.posix.owns(10) && !p.posix.owns(9) && !p.posix.owns(0));
}

#[test]
fn bind_judges_the_address_before_the_socket() {
    let mut p = Process::new();
    let fd = p.tcp();
    let v6 = address("[::1]:80");
    assert_eq!(p.posix.bind(p.now, fd, &v6), Err(Errno::EAFNOSUPPORT));
    assert_eq!(p.posix.bind(p.now, fd, &address("127.0.0.1:80")[..10]), Err(Errno::EINVAL));
    assert_eq!(p.bind(fd, "198.51.100.1:80"), Err(Errno::EADDRNOTAVAIL));
    assert_eq!(p.bind(fd, "127.0.0.1:80"), Ok(()));
    assert_eq!(p.bind(fd, "127.0.0.1:81"), Err(Errno::EINVAL), "bound already");
    assert_eq!(p.bind(fd, "198.51.100.1:80"), Err(Errno::EADDRNOTAVAIL), "the address comes first");
    let other = p.posix.socket(AF_INET6, SOCK_STREAM, 0).expect("a descriptor");
    assert_eq!(p.bind(other, "[2001:db8::99]:90"), Err(Errno::EADDRNOTAVAIL));
    assert_eq!(p.bind(other, "[::1]:90"), Ok(()));
    assert_eq!(p.bind(other, "[2001:db8::99]:90"), Err(Errno::EINVAL), "the socket comes first");
    let other = p.tcp();
    assert_eq!(p.bind(other, "0.0.0.0:80"), Err(Errno::EADDRINUSE));
    assert_eq!(p.bind(other, "127.0.0.1:0"), Ok(()));
    assert_ne!(p.posix.getsockname(other).expect("open").port(), 0, "chosen at once");
    assert_eq!(p.posix.bind(p.now, 77, &v6), Err(Errno::EBADF));
}

#[test]
fn reuse_shares_a_port_until_somebody_listens() {
    let mut p = Process::new();
    let (a, b, c) = (p.tcp(), p.tcp(), p.tcp());
    for fd in [a, b, c] {
        p.set(fd, SOL_SOCKET, SO_REUSEADDR, &int(1)).expect("known");
    }
    assert_eq!(p.bind(a, "127.0.0.1:80"), Ok(()));
    assert_eq!(p.bind(b, "127.0.0.1:80"), Ok(()));
    assert_eq!(p.posix.listen(p.now, a, 1), Ok(()));
    assert_eq!(p.posix.listen(p.now, b, 1), Err(Errno::EADDRINUSE));
    assert_eq!(p.bind(c, "127.0.0.1:80"), Err(Errno::EADDRINUSE));
}

#[test]
fn listen_finds_a_port_and_again_changes_the_backlog() {
    let mut p = Process::new();
    let fd = p.tcp();
    assert_eq!(p.posix.listen(p.now, fd, 0), Ok(()));
    let name = p.posix.getsockname(fd).expect("open");
    assert!(name.ip().is_unspecified() && name.port() != 0);
    assert_eq!(p.get(fd, SOL_SOCKET, SO_ACCEPTCONN), Ok(1));
    let backlog = |p: &mut Process| {
        let mut info = [0; 280];
        p.posix.getsockopt(p.now, fd, SOL_TCP, TCP_INFO, &mut info).expect("known");
        (info[0], u32::from_ne_bytes(info[28..32].try_into().expect("four")))
    };
    assert_eq!(backlog(&mut p), (TCP_LISTEN, 0));
    assert_eq!(p.posix.listen(p.now, fd, -1), Ok(()));
    assert_eq!(backlog(&mut p), (TCP_LISTEN, 4096), "somaxconn");
    let udp = p.udp();
    assert_eq!(p.posix.listen(p.now, udp, 1), Err(Errno::EOPNOTSUPP));
    let (client, ..) = p.pair();
    assert_eq!(p.posix.listen(p.now, client, 1), Err(Errno::EINVAL));
}

#[test]
fn a_connect_that_does_not_wait_goes_from_progress_to_done_to_connected() {
    let mut p = Process::new();
    p.listen("127.0.0.1:80");
    let fd = p.tcp();
    p.set_nonblocking(fd);
    let to = address("127.0.0.1:80");
    let connect = |p: &mut Process| p.once(|posix, now, call| posix.connect(now, call, fd, &to));
    assert_eq!(connect(&mut p), Err(Errno::EINPROGRESS));
    assert_eq!(connect(&mut p), Err(Errno::EALREADY));
    assert_eq!(p.posix.getpeername(p.now, fd), Err(Errno::ENOTCONN));
    assert_eq!(p.send(fd, b"early", 0), Err(Errno::EAGAIN));
    p.settle();
    assert_eq!(connect(&mut p), Ok(()));
    assert_eq!(connect(&mut p), Err(Errno::EISCONN));
    assert_eq!(p.posix.getpeername(p.now, fd), Ok("127.0.0.1:80".parse().expect("one")));
}

#[test]
fn a_refused_connect_leaves_a_socket_that_can_try_again() {
    let mut p = Process::new();
    let fd = p.tcp();
    p.bind(fd, "127.0.0.1:5000").expect("free");
    assert_eq!(p.connect(fd, "127.0.0.1:81"), Err(Errno::ECONNREFUSED));
    assert_eq!(p.posix.getsockname(fd), Ok("127.0.0.1:5000".parse().expect("one")));
    p.listen("127.0.0.1:81");
    assert_eq!(p.connect(fd, "127.0.0.1:81"), Ok(()));
    assert_eq!(p.posix.getsockname(fd), Ok("127.0.0.1:5000".parse().expect("one")));
}

#[test]
fn so_error_tells_of_a_refused_connect_once() {
    let mut p = Process::new();
    let fd = p.tcp();
    p.set_nonblocking(fd);
    assert_eq!(p.connect(fd, "127.0.0.1:81"), Err(Errno::EINPROGRESS));
    let ready = p.ready(fd);
    assert_eq!(ready & (POLLERR | POLLHUP | POLLOUT), POLLERR | POLLHUP | POLLOUT);
    assert_eq!(p.get(fd, SOL_SOCKET, SO_ERROR), Ok(Errno::ECONNREFUSED.0));
    assert_eq!(p.get(fd, SOL_SOCKET, SO_ERROR), Ok(0));
    assert_eq!(p.ready(fd) & POLLERR, 0);
}

#[test]
fn a_connect_into_nothing_ends_by_the_send_timeout_or_by_the_retries() {
    let mut p = Process::new();
    let fd = p.tcp();
    let mut second = [0; 16];
    second[0] = 1;
    p.set(fd, SOL_SOCKET, SO_SNDTIMEO_OLD, &second).expect("known");
    let begin = p.now;
    assert_eq!(p.connect(fd, "192.0.2.9:80"), Err(Errno::EINPROGRESS));
    assert_eq!(p.now.since(begin), Nanos::from_secs(1));
    assert_eq!(p.connect(fd, "192.0.2.9:80"), Err(Errno::EALREADY), "a second later");
    p.set(fd, SOL_SOCKET, SO_SNDTIMEO_OLD, &[0; 16]).expect("known");
    assert_eq!(p.connect(fd, "192.0.2.9:80"), Err(Errno::ETIMEDOUT));
    let waited = p.now.since(begin).as_millis();
    assert!((127_000..140_000).contains(&waited), "{waited} ms: six retries");
}

#[test]
fn connect_tells_bad_addresses_apart() {
    let mut p = Process::new();
    let fd = p.tcp();
    assert_eq!(p.connect(fd, "203.0.113.1:80"), Err(Errno::ENETUNREACH));
    assert_eq!(p.connect(fd, "224.0.0.1:80"), Err(Errno::ENETUNREACH));
    assert_eq!(p.connect(fd, "[::1]:80"), Err(Errno::EAFNOSUPPORT));
    let short = address("127.0.0.1:80");
    let cut = p.once(|posix, now, call| posix.connect(now, call, fd, &short[..1]));
    assert_eq!(cut, Err(Errno::EINVAL));
    let (client, _, listener) = p.pair();
    assert_eq!(p.connect(listener, "127.0.0.1:80"), Err(Errno::EISCONN));
    // The same two ends are taken.
    let local = p.posix.getsockname(client).expect("open").to_string();
    let twin = p.tcp();
    p.set(twin, SOL_SOCKET, SO_REUSEADDR, &int(1)).expect("known");
    assert_eq!(p.bind(twin, &local), Err(Errno::EADDRINUSE), "the client does not share");
    p.set(client, SOL_SOCKET, SO_REUSEADDR, &int(1)).expect("known");
    p.bind(twin, &local).expect("shared");
    assert_eq!(p.connect(twin, "127.0.0.1:80"), Err(Errno::EADDRNOTAVAIL));
}

#[test]
fn accept_waits_for_somebody_or_the_receive_timeout() {
    let mut p = Process::new();
    let listener = p.listen("127.0.0.1:80");
    let mut timeout = [0; 16];
    timeout[8..12].copy_from_slice(&500_000u32.to_ne_bytes());
    p.set(listener, SOL_SOCKET, SO_RCVTIMEO_OLD, &timeout).expect("known");
    let begin = p.now;
    let accepted = p.block(|posix, now, call| posix.accept(now, call, listener, 0));
    assert_eq!(accepted, Some(Err(Errno::EAGAIN)));
    assert_eq!(p.now.since(begin), Nanos::from_millis(500));
    let client = p.tcp();
    p.connect(client, "127.0.0.1:80").expect("somebody listens");
    let flags = SOCK_NONBLOCK | SOCK_CLOEXEC;
    let accepted = p.once(|posix, now, call| posix.accept(now, call, listener, flags));
    let accepted = accepted.expect("a connection");
    assert_eq!(Ok(accepted.peer), p.posix.getsockname(client));
    assert_eq!(p.posix.fcntl(accepted.fd, F_GETFL, 0), Ok(O_RDWR | O_NONBLOCK));
    assert_eq!(p.posix.fcntl(accepted.fd, F_GETFD, 0), Ok(FD_CLOEXEC));
    p.set_nonblocking(listener);
    let mut accept = |fd, flags| p.once(|posix, now, call| posix.accept(now, call, fd, flags));
    assert_eq!(accept(listener, 0), Err(Errno::EAGAIN));
    assert_eq!(accept(listener, 1), Err(Errno::EINVAL));
    assert_eq!(accept(client, 0), Err(Errno::EINVAL));
    assert_eq!(accept(99, 0), Err(Errno::EBADF));
    let udp = p.udp();
    let answer = p.once(|posix, now, call| posix.accept(now, call, udp, 0));
    assert_eq!(answer, Err(Errno::EOPNOTSUPP));
}

#[test]
fn ipv6_serves_ipv4_too_and_shows_mapped_addresses() {
    let mut p = Process::new();
    let listener = p.posix.socket(AF_INET6, SOCK_STREAM, 0).expect("a descriptor");
    p.bind(listener, "[::]:80").expect("free");
    p.posix.listen(p.now, listener, 5).expect("free");
    let taken = p.tcp();
    assert_eq!(p.bind(taken, "127.0.0.1:80"), Err(Errno::EADDRINUSE));
    for to in ["127.0.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
        let domain = if to.starts_with('[') { AF_INET6 } else { AF_INET };
        let client = p.posix.socket(domain, SOCK_STREAM, 0).expect("a descriptor");
        assert_eq!(p.connect(client, to), Ok(()), "{to}");
        assert_eq!(p.posix.getpeername(p.now, client), Ok(to.parse().expect("one")));
        assert_ne!(p.ready(listener) & POLLIN, 0);
        let server = p.accept(listener);
        let peer = p.posix.getpeername(p.now, server).expect("connected");
        assert!(peer.is_ipv6(), "{peer}");
        let is_v4 = !to.starts_with("[::1");
        assert_eq!(peer.to_string().starts_with("[::ffff:127.0.0.1]"), is_v4, "{peer}");
    }
    let only = p.posix.socket(AF_INET6, SOCK_STREAM, 0).expect("a descriptor");
    p.set(only, SOL_IPV6, IPV6_V6ONLY, &int(1)).expect("known");
    assert_eq!(p.bind(only, "[::ffff:127.0.0.1]:90"), Err(Errno::EINVAL));
    p.bind(only, "[::]:90").expect("free");
    p.posix.listen(p.now, only, 5).expect("free");
    let both = p.tcp();
    assert_eq!(p.bind(both, "0.0.0.0:90"), Ok(()));
    assert_eq!(p.set(only, SOL_IPV6, IPV6_V6ONLY, &int(0)), Err(Errno::EINVAL), "bound");
}

#[test]
fn names_of_sockets_without_ends_are_unspecified() {
    let mut p = Process::new();
    let fd = p.tcp();
    assert_eq!(p.posix.getsockname(fd), Ok("0.0.0.0:0".parse().expect("one")));
    assert_eq!(p.posix.getpeername(p.now, fd), Err(Errno::ENOTCONN));
    let set = p.posix.epoll_create1(0).expect("a descriptor");
    assert_eq!(p.posix.getsockname(set), Err(Errno::ENOTSOCK));
    assert_eq!(p.posix.getsockname(99), Err(Errno::EBADF));
}

#[test]
fn a_wildcard_of_both_families_meets_the_listeners_of_both() {
    let mut p = Process::new();
    let bind = |p: &mut Process, to: &str, reuse: i32, v6_only: i32| {
        let domain = if to.starts_with('[') { AF_INET6 } else { AF_INET };
        let fd = p.posix.socket(domain, SOCK_STREAM, 0).expect("a descriptor");
        p.set(fd, SOL_SOCKET, SO_REUSEADDR, &int(reuse)).expect("known");
        if domain == AF_INET6 {
            p.set(fd, SOL_IPV6, IPV6_V6ONLY, &int(v6_only)).expect("not bound");
        }
        p.bind(fd, to).map(|()| fd)
    };
    for reuse in [0, 1] {
        let port = 8000 + reuse;
        let (v4, v6) = (format!("127.0.0.1:{port}"), format!("[::]:{port}"));
        let listener = bind(&mut p, &v4, reuse, 0).expect("free");
        p.posix.listen(p.now, listener, 1).expect("free");
        assert_eq!(bind(&mut p, &v6, reuse, 0), Err(Errno::EADDRINUSE));
        let only = bind(&mut p, &v6, reuse, 1).expect("the other family");
        assert_eq!(p.posix.listen(p.now, only, 1), Ok(()));
        assert_eq!(bind(&mut p, &v6, reuse, 0), Err(Errno::EADDRINUSE));
        let (v4, v6) = (format!("127.0.0.1:{}", port + 10), format!("[::]:{}", port + 10));
        let wide = bind(&mut p, &v6, reuse, 0).expect("free");
        p.posix.listen(p.now, wide, 1).expect("free");
        assert_eq!(bind(&mut p, &v4, reuse, 0), Err(Errno::EADDRINUSE));
    }
    // Two that reuse may be bound; the first to listen has it.
    let wide = bind(&mut p, "[::]:9000", 1, 0).expect("free");
    let narrow = bind(&mut p, "127.0.0.1:9000", 1, 0).expect("shared");
    assert_eq!(p.posix.listen(p.now, wide, 1), Ok(()));
    assert_eq!(p.posix.listen(p.now, narrow, 1), Err(Errno::EADDRINUSE));
}

#[test]
fn types_and_protocols_have_bounds() {
    let p = Process::new();
    for (domain, kind, protocol, expected) in [
        (AF_INET, SOCK_STREAM, -1, Errno::EINVAL),
        (AF_INET, SOCK_STREAM, 263, Errno::EINVAL),
        (AF_INET6, SOCK_DGRAM, 1000, Errno::EINVAL),
        (AF_INET, 4, -1, Errno::EINVAL),
        (AF_INET, 11, 0, Errno::EINVAL),
        (AF_INET6, 15, 0, Errno::EINVAL),
        (AF_INET, SOCK_STREAM | 0x40, 0, Errno::EINVAL),
        (AF_INET, 0, 0, Errno::ESOCKTNOSUPPORT),
        (AF_INET, 5, 0, Errno::ESOCKTNOSUPPORT),
        (AF_INET, SOCK_RAW, 0, Errno::EPROTONOSUPPORT),
        (AF_INET, SOCK_STREAM, IPPROTO_UDP, Errno::EPROTONOSUPPORT),
        (AF_INET, SOCK_STREAM, 262, Errno::EPROTONOSUPPORT),
        (AF_UNSPEC, SOCK_STREAM, 0, Errno::EAFNOSUPPORT),
        (100, 11, -1, Errno::EAFNOSUPPORT),
        (99, 11, 0, Errno::EAFNOSUPPORT),
        (-1, 11, 0, Errno::EAFNOSUPPORT),
        (1, 11, 0, Errno::EINVAL),
        (45, 15, 0, Errno::EINVAL),
    ] {
        let made = p.posix.socket(domain, kind, protocol);
        assert_eq!(made, Err(expected), "{domain} {kind} {protocol}");
    }
}

#[test]
fn descriptors_and_flags_have_bounds() {
    let mut p = Process::new();
    let fd = p.tcp();
    for command in [F_DUPFD, F_DUPFD_CLOEXEC] {
        for least in [-1, 1 << 20, i64::from(i32::MAX)] {
            assert_eq!(p.posix.fcntl(fd, command, least), Err(Errno::EINVAL), "{least}");
        }
    }
    let kept = O_APPEND | O_NOATIME | O_NONBLOCK;
    assert_eq!(p.posix.fcntl(fd, F_SETFL, i64::from(kept)), Ok(0));
    assert_eq!(p.posix.fcntl(fd, F_GETFL, 0), Ok(O_RDWR | kept));
    for refused in [O_DIRECT, O_ASYNC] {
        assert_eq!(p.posix.fcntl(fd, F_SETFL, i64::from(refused)), Err(Errno::EINVAL));
    }
    assert_eq!(p.posix.fcntl(fd, F_GETFL, 0), Ok(O_RDWR | kept), "nothing of it was set");
    assert_eq!(p.posix.fcntl(fd, F_SETFL, 0), Ok(0));
    assert_eq!(p.posix.fcntl(fd, F_GETFL, 0), Ok(O_RDWR));
    let set = p.posix.epoll_create1(0).expect("a descriptor");
    assert_eq!(p.posix.fcntl(set, F_SETFL, i64::from(O_ASYNC | O_APPEND)), Ok(0));
    assert_eq!(p.posix.fcntl(set, F_GETFL, 0), Ok(O_RDWR | O_APPEND));
}

#[test]
fn an_address_is_as_long_as_it_may_be() {
    let mut p = Process::new();
    let mut long = [0; 129];
    long[..16].copy_from_slice(&address("127.0.0.1:1"));
    let (tcp, udp) = (p.tcp(), p.udp());
    for (len, expected) in [(15, Errno::EINVAL), (129, Errno::EINVAL), (128, Errno::ECONNREFUSED)] {
        let connected = p.block(|posix, now, call| posix.connect(now, call, tcp, &long[..len]));
        assert_eq!(connected, Some(Err(expected)), "{len}");
    }
    assert_eq!(p.posix.bind(p.now, udp, &long), Err(Errno::EINVAL));
    for fd in [tcp, udp] {
        let to = Some(&long[..]);
        let sent = p.once(|posix, now, call| posix.send_to(now, call, fd, b"x", 0, to));
        assert_eq!(sent, Err(Errno::EINVAL));
    }
    assert_eq!(p.posix.bind(p.now, udp, &long[..128]), Ok(()));
}

#[test]
fn all_hosts_of_a_network_are_nobody_to_connect_to() {
    let mut p = Process::new();
    let tcp = p.tcp();
    assert_eq!(p.connect(tcp, "192.0.2.255:9"), Err(Errno::ENETUNREACH));
    assert_eq!(p.connect(tcp, "255.255.255.255:9"), Err(Errno::ENETUNREACH));
    assert_eq!(p.connect(tcp, "127.255.255.255:9"), Err(Errno::ENETUNREACH));
    for own in ["192.0.2.255:0", "127.255.255.255:0"] {
        assert_eq!(p.bind(tcp, own), Err(Errno::EADDRNOTAVAIL));
    }
    assert_eq!(p.connect(tcp, "127.0.0.1:0"), Err(Errno::EINVAL), "nobody listens on port 0");
}

#[test]
fn a_connection_waits_in_its_queue_while_there_is_no_descriptor_for_it() {
    let mut p = Process::new();
    let (listener, client) = (p.tcp(), p.tcp());
    p.bind(listener, "127.0.0.1:700").expect("free");
    p.posix.listen(p.now, listener, 1).expect("bound");
    p.set_nonblocking(listener);
    p.set_nonblocking(client);
    let to = address("127.0.0.1:700");
    let call = &mut Call::new();
    assert_eq!(p.posix.connect(p.now, call, client, &to), Err(Errno::EINPROGRESS));
    p.settle();
    let mut last = client;
    let full = loop {
        match p.posix.fcntl(client, F_DUPFD, 0) {
            Ok(fd) => last = fd,
            Err(error) => break error,
        }
    };
    assert_eq!(full, Errno::EMFILE);
    assert_eq!(p.posix.accept(p.now, call, listener, 0), Err(Errno::EMFILE));
    assert_eq!(p.posix.socket(AF_INET, SOCK_STREAM, 0), Err(Errno::EMFILE));
    p.close(last - 5);
    let accepted = p.posix.accept(p.now, call, listener, 0);
    let Ok(Outcome::Done(accepted)) = accepted else { panic!("{accepted:?}") };
    let fd = accepted.fd;
    assert_eq!(fd, last - 5, "the lowest that is free");
    assert_eq!(p.send(client, b"still here", 0), Ok(10));
    assert_eq!(p.recv(fd, 10, 0), Ok(b"still here".to_vec()));
}

#[test]
fn a_socket_bound_without_a_port_gets_one_towards_each_peer() {
    // The kernel does the same with the same calls.
    let mut p = Process::new();
    p.posix.stack().set_sysctl("net.ipv4.ip_local_port_range", "40000 40003").expect("a range");
    let sock = |p: &mut Process, kind| {
        let fd = p.posix.socket(AF_INET, kind, 0).expect("a descriptor");
        assert_eq!(p.get(fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT), Ok(0));
        p.set(fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT, &[5]).expect("a byte is enough");
        assert_eq!(p.get(fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT), Ok(1));
        fd
    };
    let name = |p: &Process, fd| p.posix.getsockname(fd).expect("open").to_string();
    let in_range = |p: &Process, fd, ip: &str| {
        let name = p.posix.getsockname(fd).expect("open");
        assert_eq!(name.ip().to_string(), ip);
        assert!((40_000..=40_003).contains(&name.port()), "{name}");
    };
    // An address without a port can be replaced.
    for kind in [SOCK_STREAM, SOCK_DGRAM] {
        let fd = sock(&mut p, kind);
        for to in ["127.0.0.2:0", "127.0.0.3:0", "127.0.0.4:77"] {
            assert_eq!(p.bind(fd, to), Ok(()));
            assert_eq!(name(&p, fd), to);
        }
        assert_eq!(p.bind(fd, "127.0.0.2:0"), Err(Errno::EINVAL));
    }
    // Four ports, and four connections to each of two peers.
    for to in ["127.0.0.1:90", "127.0.0.1:91"] {
        p.listen(to);
        for nth in 0..6 {
            let fd = sock(&mut p, SOCK_STREAM);
            p.bind(fd, "127.0.0.2:0").expect("an own address");
            if nth < 4 {
                assert_eq!(p.connect(fd, to), Ok(()));
                in_range(&p, fd, "127.0.0.2");
            } else {
                assert_eq!(p.connect(fd, to), Err(Errno::EADDRNOTAVAIL));
                assert_eq!(name(&p, fd), "127.0.0.2:0");
            }
        }
    }
    let listener = sock(&mut p, SOCK_STREAM);
    p.bind(listener, "127.0.0.5:0").expect("an own address");
    p.posix.listen(p.now, listener, 1).expect("a free port");
    in_range(&p, listener, "127.0.0.5");
    let datagrams = sock(&mut p, SOCK_DGRAM);
    p.bind(datagrams, "127.0.0.2:0").expect("an own address");
    assert_eq!(p.connect(datagrams, "127.0.0.1:9"), Ok(()));
    in_range(&p, datagrams, "127.0.0.2");
    let late = sock(&mut p, SOCK_STREAM);
    p.bind(late, "127.0.0.2:0").expect("an own address");
    p.set(late, SOL_IP, IP_BIND_ADDRESS_NO_PORT, &[]).expect("nothing is 0");
    assert_eq!(p.posix.listen(p.now, late, 1), Err(Errno::EADDRINUSE));
    assert_eq!(name(&p, late), "127.0.0.2:0");
}
