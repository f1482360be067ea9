//! UDP, and some of TCP, where a socket or a peer has to do with one family alone.

use super::datagrams::send_to;
use super::*;

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
fn a_peer_of_ipv4_on_a_socket_of_ipv6() {
    let mut p = Process::new();
    let connect = |p: &mut Process, fd, to: &[u8]| {
        p.once(|posix, now, call| posix.connect(now, call, fd, to))
    };
    let mut v4: Vec<u8> = address("127.0.0.1:9").to_vec();
    let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    assert_eq!(connect(&mut p, fd, &v4), Ok(()));
    let peer = p.posix.getpeername(p.now, fd).expect("connected");
    assert_eq!(peer.to_string(), "[::ffff:127.0.0.1]:9");
    assert_eq!(connect(&mut p, fd, &v4[..15]), Err(Errno::EINVAL));
    let only = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    p.set(only, SOL_IPV6, IPV6_V6ONLY, &int(1)).expect("not bound");
    assert_eq!(connect(&mut p, only, &v4), Err(Errno::EAFNOSUPPORT));
    assert_eq!(connect(&mut p, only, &v4[..15]), Err(Errno::EAFNOSUPPORT));
    v4[0] = 1;
    assert_eq!(connect(&mut p, fd, &v4), Err(Errno::EINVAL), "too short comes first");
    v4.resize(28, 0);
    assert_eq!(connect(&mut p, fd, &v4), Err(Errno::EAFNOSUPPORT));
}

#[test]
fn a_socket_has_to_do_with_the_family_that_it_is_bound_to() {
    // The kernel answers the same calls alike.
    let mut p = Process::new();
    let only_v6 = |p: &mut Process, fd| p.get(fd, SOL_IPV6, IPV6_V6ONLY).expect("known");
    let name = |p: &Process, fd| p.posix.getsockname(fd).expect("open").to_string();
    for kind in [SOCK_DGRAM, SOCK_STREAM] {
        let open = |p: &mut Process| p.posix.socket(AF_INET6, kind, 0).expect("a descriptor");
        // The own end shows that it is of IPv4.
        for (own, is_any) in [("[::ffff:0.0.0.0]:500", true), ("[::ffff:127.0.0.1]:501", false)] {
            let fd = open(&mut p);
            p.bind(fd, own).expect("free");
            assert_eq!((name(&p, fd), only_v6(&mut p, fd)), (own.to_string(), 0));
            if kind == SOCK_DGRAM {
                let refused = send_to(&mut p, fd, b"x", Some("[::1]:9"));
                assert_eq!(refused, Err(Errno::EAFNOSUPPORT));
                assert_eq!(send_to(&mut p, fd, b"x", Some("[::ffff:127.0.0.1]:9")), Ok(1));
            }
            for to in ["[::1]:9", "[2001:db8::9]:9"] {
                assert_eq!(p.connect(fd, to), Err(Errno::EAFNOSUPPORT), "{own} to {to}");
            }
            // No address means this host, by IPv4.
            let to_self = p.connect(fd, "[::]:9");
            let nobody = Err(Errno::ECONNREFUSED);
            assert_eq!(to_self, if kind == SOCK_DGRAM { Ok(()) } else { nobody });
            if is_any && kind == SOCK_STREAM {
                p.posix.listen(p.now, fd, 1).expect("bound");
                assert_eq!(name(&p, fd), own);
            }
            p.close(fd);
        }
        // An address of IPv6 is for IPv6 alone, and so is its socket from then on.
        let fd = open(&mut p);
        p.bind(fd, "[::]:500").expect("free");
        assert_eq!(only_v6(&mut p, fd), 0);
        p.close(fd);
        let fd = open(&mut p);
        assert_eq!(p.bind(fd, "[2001:db8:9::1]:500"), Err(Errno::EADDRNOTAVAIL));
        assert_eq!(only_v6(&mut p, fd), 0);
        p.bind(fd, "[::1]:500").expect("free");
        assert_eq!(only_v6(&mut p, fd), 1);
        assert_eq!(p.set(fd, SOL_IPV6, IPV6_V6ONLY, &int(0)), Err(Errno::EINVAL));
        if kind == SOCK_DGRAM {
            let refused = send_to(&mut p, fd, b"x", Some("[::ffff:127.0.0.1]:9"));
            assert_eq!(refused, Err(Errno::ENETUNREACH));
        }
        assert_eq!(p.connect(fd, "[::ffff:127.0.0.1]:9"), Err(Errno::ENETUNREACH));
        if kind == SOCK_STREAM {
            p.posix.listen(p.now, fd, 1).expect("bound");
            let client = open(&mut p);
            p.connect(client, "[::1]:500").expect("somebody listens");
            let accepted = p.accept(fd);
            assert_eq!((only_v6(&mut p, accepted), only_v6(&mut p, client)), (1, 0));
            p.close(client);
        }
        p.close(fd);
        let fd = open(&mut p);
        p.set(fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT, &int(1)).expect("known");
        p.bind(fd, "[::1]:0").expect("free");
        assert_eq!(only_v6(&mut p, fd), 1);
        assert_eq!(p.set(fd, SOL_IPV6, IPV6_V6ONLY, &int(0)), Ok(()));
    }
}

#[test]
fn who_is_connected_by_ipv4_has_to_do_with_no_other_family() {
    // The kernel answers the same calls alike.
    for own in [None, Some("[::]:0"), Some("[::ffff:0.0.0.0]:0"), Some("[::ffff:127.0.0.1]:0")] {
        let mut p = Process::new();
        let receiver = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
        p.bind(receiver, "[::]:700").expect("free");
        let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
        if let Some(own) = own {
            p.bind(fd, own).expect("free");
        }
        p.connect(fd, "[::ffff:127.0.0.1]:700").expect("nothing is sent");
        for to in ["[::1]:700", "[2001:db8::9]:9", "[ff05::7]:9"] {
            let refused = send_to(&mut p, fd, b"x", Some(to));
            assert_eq!(refused, Err(Errno::EAFNOSUPPORT), "{own:?} to {to}");
        }
        for to in ["[::]:700", "[::ffff:0.0.0.0]:700", "[::ffff:127.0.0.1]:700"] {
            assert_eq!(send_to(&mut p, fd, b"x", Some(to)), Ok(1), "{own:?} to {to}");
            assert_eq!(p.recv(receiver, 10, 0), Ok(b"x".to_vec()));
        }
        assert_eq!(p.connect(fd, "[::1]:700"), Err(Errno::EAFNOSUPPORT));
        assert_eq!(p.connect(fd, "[::]:700"), Ok(()));
        let peer = p.posix.getpeername(p.now, fd).expect("connected").to_string();
        assert_eq!(peer, "[::ffff:127.0.0.1]:700");
    }
    // Who was connected by IPv6 first goes on with both.
    let mut p = Process::new();
    let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    for peer in ["[::1]:700", "[::ffff:127.0.0.1]:700", "[::1]:700"] {
        p.connect(fd, peer).expect("nothing is sent");
        for to in ["[::1]:701", "[::ffff:127.0.0.1]:701"] {
            assert_eq!(send_to(&mut p, fd, b"x", Some(to)), Ok(1), "{peer}, {to}");
        }
    }
}
