//! `setsockopt` and `getsockopt`.

use super::*;

fn info(p: &mut Process, fd: Fd) -> [u8; 280] {
    let mut out = [0xee; 280];
    let len = p.posix.getsockopt(p.now, fd, SOL_TCP, TCP_INFO, &mut out);
    assert_eq!(len, Ok(280));
    out
}

fn word(info: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(info[at..at + 4].try_into().expect("four"))
}

fn long(info: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(info[at..at + 8].try_into().expect("eight"))
}

#[test]
fn values_are_kept_before_during_and_after_a_connection() {
    let values = [
        (SOL_TCP, TCP_NODELAY, 1),
        (SOL_TCP, TCP_CORK, 1),
        (SOL_TCP, TCP_KEEPIDLE, 17),
        (SOL_TCP, TCP_KEEPINTVL, 18),
        (SOL_TCP, TCP_KEEPCNT, 19),
        (SOL_TCP, TCP_USER_TIMEOUT, 2500),
        (SOL_TCP, TCP_NOTSENT_LOWAT, 12345),
        (SOL_TCP, TCP_NEAP_NOTSENT_LOWAT_US, 5000),
        (SOL_SOCKET, SO_KEEPALIVE, 1),
        (SOL_SOCKET, SO_PRIORITY, 6),
        (SOL_SOCKET, SO_REUSEADDR, 1),
        (SOL_SOCKET, SO_RCVLOWAT, 2),
    ];
    let mut p = Process::new();
    let (_, server, listener) = p.pair();
    let fresh = p.tcp();
    for fd in [fresh, listener, server] {
        for (level, name, value) in values {
            assert_eq!(p.set(fd, level, name, &int(value)), Ok(()), "{level} {name}");
            assert_eq!(p.get(fd, level, name), Ok(value), "{level} {name}");
        }
    }
    assert_eq!(p.connect(fresh, "127.0.0.1:80"), Ok(()));
    let child = p.accept(listener);
    for fd in [fresh, child] {
        for (level, name, value) in values {
            let value = if (fd, name) == (child, SO_PRIORITY) { 0 } else { value };
            assert_eq!(p.get(fd, level, name), Ok(value), "{level} {name}");
        }
    }
}

#[test]
fn defaults_are_those_of_linux() {
    let mut p = Process::new();
    let fd = p.tcp();
    let values = [
        (SOL_SOCKET, SO_TYPE, SOCK_STREAM),
        (SOL_SOCKET, SO_PROTOCOL, IPPROTO_TCP),
        (SOL_SOCKET, SO_DOMAIN, AF_INET),
        (SOL_SOCKET, SO_ERROR, 0),
        (SOL_SOCKET, SO_SNDBUF, 16384),
        (SOL_SOCKET, SO_RCVBUF, 131_072),
        (SOL_SOCKET, SO_RCVLOWAT, 1),
        (SOL_SOCKET, SO_SNDLOWAT, 1),
        (SOL_TCP, TCP_MAXSEG, 536),
        (SOL_TCP, TCP_KEEPIDLE, 7200),
        (SOL_TCP, TCP_KEEPINTVL, 75),
        (SOL_TCP, TCP_KEEPCNT, 9),
        (SOL_TCP, TCP_SYNCNT, 6),
        (SOL_TCP, TCP_LINGER2, 60),
        (SOL_TCP, TCP_QUICKACK, 1),
        (SOL_TCP, TCP_NOTSENT_LOWAT, 0),
        (SOL_IP, IP_TTL, 64),
        (SOL_IP, IP_MTU_DISCOVER, 1),
    ];
    for (level, name, value) in values {
        assert_eq!(p.get(fd, level, name), Ok(value), "{level} {name}");
    }
    let mut out = [0; 20];
    let len = p.posix.getsockopt(p.now, fd, SOL_TCP, TCP_CONGESTION, &mut out);
    assert_eq!((len, &out[..6]), (Ok(16), &b"cubic\0"[..]));
    let len = p.posix.getsockopt(p.now, fd, SOL_SOCKET, SO_MAX_PACING_RATE, &mut out);
    assert_eq!((len, out[..8].to_vec()), (Ok(8), vec![0xff; 8]));
    assert_eq!(p.get(fd, SOL_SOCKET, SO_MAX_PACING_RATE), Ok(-1));
}

#[test]
fn what_neap_does_not_have_is_refused_and_what_it_is_can_be_read() {
    let mut p = Process::new();
    let fd = p.tcp();
    let refused = [
        (SOL_SOCKET, SO_REUSEPORT),
        (SOL_SOCKET, SO_OOBINLINE),
        (SOL_SOCKET, SO_ZEROCOPY),
        (SOL_SOCKET, SO_SNDLOWAT),
        (SOL_SOCKET, SO_TYPE),
        (SOL_TCP, TCP_DEFER_ACCEPT),
        (SOL_TCP, TCP_FASTOPEN),
        (SOL_TCP, TCP_SYNCNT),
        (SOL_TCP, 999),
        (SOL_IP, IP_RECVERR_RFC4884),
        (SOL_IPV6, IPV6_RECVERR),
        (SOL_IP, IP_TOS),
        (SOL_IPV6, IPV6_V6ONLY),
        (99, 1),
    ];
    for (level, name) in refused {
        let set = p.set(fd, level, name, &int(1));
        assert_eq!(set, Err(Errno::ENOPROTOOPT), "{level} {name}");
    }
    assert_eq!(p.set(fd, SOL_SOCKET, SO_REUSEPORT, &int(0)), Ok(()), "as it is");
    assert_eq!(p.get(fd, SOL_SOCKET, SO_REUSEPORT), Ok(0));
    assert_eq!(p.set(fd, SOL_IP, IP_TTL, &[64]), Ok(()), "one byte is enough");
    let mut byte = [0];
    assert_eq!(p.posix.getsockopt(p.now, fd, SOL_IP, IP_TTL, &mut byte), Ok(1));
    assert_eq!(byte, [64]);
    for (level, name) in [(SOL_SOCKET, 999), (SOL_TCP, 999), (SOL_IP, 999)] {
        assert_eq!(p.get(fd, level, name), Err(Errno::ENOPROTOOPT), "{level} {name}");
    }
    for (level, name) in [(SOL_IPV6, IPV6_V6ONLY), (SOL_UDP, 1), (99, 1)] {
        assert_eq!(p.get(fd, level, name), Err(Errno::EOPNOTSUPP), "{level} {name}");
    }
    assert_eq!(p.get(fd, SOL_IP, IP_MTU), Err(Errno::ENOTCONN));
    assert_eq!(p.get(99, SOL_IP, IP_MTU), Err(Errno::EBADF));
    let set = p.posix.epoll_create1(0).expect("a descriptor");
    assert_eq!(p.get(set, SOL_SOCKET, SO_ERROR), Err(Errno::ENOTSOCK));
    let udp = p.udp();
    assert_eq!(p.set(udp, SOL_TCP, TCP_NODELAY, &int(1)), Err(Errno::ENOPROTOOPT));
    assert_eq!(p.get(udp, SOL_TCP, TCP_NODELAY), Err(Errno::EOPNOTSUPP));
}

#[test]
fn bad_values_have_linux_errors() {
    let mut p = Process::new();
    let fd = p.tcp();
    let bad = [
        (TCP_KEEPIDLE, 0),
        (TCP_KEEPIDLE, 32768),
        (TCP_KEEPINTVL, -1),
        (TCP_KEEPCNT, 0),
        (TCP_KEEPCNT, 128),
        (TCP_MAXSEG, 87),
        (TCP_MAXSEG, 40000),
        (TCP_USER_TIMEOUT, -1),
    ];
    for (name, value) in bad {
        assert_eq!(p.set(fd, SOL_TCP, name, &int(value)), Err(Errno::EINVAL), "{name}");
    }
    assert_eq!(p.set(fd, SOL_TCP, TCP_NODELAY, &[1, 0, 0]), Err(Errno::EINVAL));
    assert_eq!(p.set(fd, SOL_TCP, TCP_CONGESTION, b"nonsense"), Err(Errno::ENOENT));
    assert_eq!(p.set(fd, SOL_TCP, TCP_CONGESTION, b""), Err(Errno::EINVAL));
    assert_eq!(p.set(fd, SOL_SOCKET, SO_LINGER, &[0; 7]), Err(Errno::EINVAL));
    assert_eq!(p.set(fd, SOL_SOCKET, SO_RCVTIMEO_OLD, &[0; 15]), Err(Errno::EINVAL));
    let mut late = [0; 16];
    late[8..12].copy_from_slice(&1_000_000u32.to_ne_bytes());
    assert_eq!(p.set(fd, SOL_SOCKET, SO_RCVTIMEO_OLD, &late), Err(Errno::EDOM));
    assert_eq!(p.set(fd, SOL_TCP, TCP_MAXSEG, &int(0)), Ok(()), "none");
}

#[test]
fn buffers_are_doubled_bounded_and_inherited() {
    let mut p = Process::new();
    let (_, _, listener) = p.pair();
    p.set(listener, SOL_SOCKET, SO_SNDBUF, &int(10_000)).expect("known");
    p.set(listener, SOL_SOCKET, SO_RCVBUF, &int(1)).expect("known");
    let client = p.tcp();
    p.set(client, SOL_SOCKET, SO_SNDBUF, &int(i32::MAX)).expect("known");
    assert_eq!(p.get(client, SOL_SOCKET, SO_SNDBUF), Ok(8 << 20));
    p.connect(client, "127.0.0.1:80").expect("somebody listens");
    assert_eq!(p.get(client, SOL_SOCKET, SO_SNDBUF), Ok(8 << 20));
    let child = p.accept(listener);
    assert_eq!(p.get(child, SOL_SOCKET, SO_SNDBUF), Ok(20_000));
    assert_eq!(p.get(child, SOL_SOCKET, SO_RCVBUF), Ok(2304));
    let mut words = [0; 36];
    let len = p.posix.getsockopt(p.now, child, SOL_SOCKET, SO_MEMINFO, &mut words);
    assert_eq!(len, Ok(36));
    assert_eq!((word(&words, 4), word(&words, 12)), (2304, 20_000));
}

#[test]
fn the_memory_of_datagrams_and_their_drops_can_be_read() {
    let mut p = Process::new();
    let (receiver, sender) = (p.udp(), p.udp());
    let words = |p: &Process, fd| {
        let mut bytes = [0; 36];
        let len = p.posix.getsockopt(p.now, fd, SOL_SOCKET, SO_MEMINFO, &mut bytes);
        assert_eq!(len, Ok(36));
        [0, 2, 8].map(|at| word(&bytes, 4 * at) as usize)
    };
    assert_eq!(words(&p, receiver), [0; 3], "it has no port yet");
    p.set(receiver, SOL_SOCKET, SO_RCVBUF, &int(3000)).expect("known");
    p.bind(receiver, "127.0.0.1:500").expect("free");
    p.connect(sender, "127.0.0.1:500").expect("nothing is sent");
    for _ in 0..10 {
        p.send(sender, &[0; 500], 0).expect("room");
    }
    let [_, below, _] = words(&p, sender);
    assert!((5000..20_000).contains(&below), "{below}");
    p.settle();
    assert_eq!(words(&p, sender), [0; 3]);
    let [waiting, _, drops] = words(&p, receiver);
    let taken = core::iter::from_fn(|| p.recv(receiver, 500, 0).ok()).count();
    assert!((1..10).contains(&taken) && waiting >= 500 * taken, "{waiting} for {taken}");
    assert_eq!((drops, words(&p, receiver)), (10 - taken, [0, 0, drops]));
}

#[test]
fn the_controller_is_chosen_before_and_inherited() {
    let mut p = Process::new();
    let (client, _, listener) = p.pair();
    p.set(listener, SOL_TCP, TCP_CONGESTION, b"reno\0junk").expect("there");
    let other = p.tcp();
    p.set(other, SOL_TCP, TCP_CONGESTION, b"reno").expect("there");
    p.connect(other, "127.0.0.1:80").expect("somebody listens");
    let child = p.accept(listener);
    let name = |fd| {
        let mut out = [0; 5];
        p.posix.getsockopt(p.now, fd, SOL_TCP, TCP_CONGESTION, &mut out).map(|_| out)
    };
    assert_eq!(name(child), Ok(*b"reno\0"));
    assert_eq!(name(other), Ok(*b"reno\0"));
    assert_eq!(name(client), Ok(*b"cubic"), "cut to what there is room for");
}

#[test]
fn linger_and_timeouts_come_back_as_they_went() {
    let mut p = Process::new();
    let fd = p.tcp();
    let mut linger = [0; 8];
    (linger[0], linger[4]) = (1, 9);
    p.set(fd, SOL_SOCKET, SO_LINGER, &linger).expect("known");
    let mut out = [0; 16];
    assert_eq!(p.posix.getsockopt(p.now, fd, SOL_SOCKET, SO_LINGER, &mut out), Ok(8));
    assert_eq!(out[..8], linger);
    let mut timeout = [0; 16];
    (timeout[0], timeout[8]) = (3, 40);
    p.set(fd, SOL_SOCKET, SO_SNDTIMEO_OLD, &timeout).expect("known");
    assert_eq!(p.posix.getsockopt(p.now, fd, SOL_SOCKET, SO_SNDTIMEO_NEW, &mut out), Ok(16));
    assert_eq!(out, timeout);
}

#[test]
fn the_pacing_rate_has_two_sizes() {
    let mut p = Process::new();
    let (client, ..) = p.pair();
    p.set(client, SOL_SOCKET, SO_MAX_PACING_RATE, &int(250_000)).expect("known");
    assert_eq!(p.get(client, SOL_SOCKET, SO_MAX_PACING_RATE), Ok(250_000));
    let large = 10_000_000_000u64;
    p.set(client, SOL_SOCKET, SO_MAX_PACING_RATE, &large.to_ne_bytes()).expect("known");
    assert_eq!(long(&info(&mut p, client), 112), large);
    assert_eq!(p.get(client, SOL_SOCKET, SO_MAX_PACING_RATE), Ok(-1), "more than fits");
    p.set(client, SOL_SOCKET, SO_MAX_PACING_RATE, &int(-1)).expect("known");
    assert_eq!(long(&info(&mut p, client), 112), u64::MAX);
}

/// What `getsockopt` of Linux 6.18 wrote for a new socket, times since boot left out.
#[test]
fn tcp_info_of_a_new_socket_is_that_of_linux() {
    let mut p = Process::new();
    let fd = p.tcp();
    let out = info(&mut p, fd);
    let known = [(0, 7 | 1 << 56), (8, 1_000_000), (16, 536), (72, 250_000 | 0x7fff_ffff << 32)];
    let more = [(80, 10), (88, 3), (104, u64::MAX), (112, u64::MAX), (144, 0xffff_ffff << 32)];
    let mut expected = [0; 280];
    for (at, value) in known.into_iter().chain(more) {
        expected[at..at + 8].copy_from_slice(&u64::to_ne_bytes(value));
    }
    assert_eq!(out, expected);
}

#[test]
fn tcp_info_of_a_connection_has_its_figures_where_linux_has_them() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.send(client, &[1; 1000], 0).expect("room");
    p.settle();
    p.recv(server, 1000, 0).expect("data");
    p.pass(Nanos::from_millis(500));
    let (out, peer) = (info(&mut p, client), info(&mut p, server));
    assert_eq!(out[0], TCP_ESTABLISHED);
    assert_eq!(out[5], TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE);
    assert_eq!(out[6], peer[6].rotate_left(4), "shifts of both");
    assert_eq!(word(&out, 8) / 1000, 200, "rto in microseconds");
    assert_eq!(word(&out, 60), 65535, "pmtu of the loopback");
    assert_eq!(word(&out, 76), 0x7fff_ffff, "ssthresh");
    assert_eq!(word(&out, 80), 10, "cwnd");
    assert_eq!(word(&out, 44), 500, "milliseconds since data was sent");
    assert_eq!((long(&out, 120), long(&peer, 128)), (1001, 1000), "acked with the SYN, received");
    assert_eq!((word(&out, 156), word(&peer, 152)), (1, 1), "data segments");
    assert_eq!(long(&out, 200), 1000, "sent");
    assert_eq!(word(&out, 228), word(&peer, 232), "the window of one is that of the other");
    let mut short = [0xee; 10];
    assert_eq!(p.posix.getsockopt(p.now, client, SOL_TCP, TCP_INFO, &mut short[..7]), Ok(7));
    assert_eq!((&short[..7], short[7]), (&out[..7], 0xee));
}

#[test]
fn bbr_tells_its_model_and_the_others_nothing() {
    let mut p = Process::new();
    let (client, server, listener) = p.pair();
    let mut out = [0xee; 20];
    for fd in [client, listener] {
        assert_eq!(p.posix.getsockopt(p.now, fd, SOL_TCP, TCP_CC_INFO, &mut out), Ok(0));
    }
    p.posix.setsockopt(p.now, server, SOL_TCP, TCP_CONGESTION, b"bbr").expect("there is one");
    assert_eq!(p.posix.getsockopt(p.now, server, SOL_TCP, TCP_CC_INFO, &mut out), Ok(20));
    assert_eq!((word(&out, 12), word(&out, 16)), (739, 739), "2.885 in parts of 256");
}

#[test]
fn the_address_of_the_peer_is_an_option_too() {
    let mut p = Process::new();
    let (client, ..) = p.pair();
    let mut out = [0; 16];
    assert_eq!(p.posix.getsockopt(p.now, client, SOL_SOCKET, SO_PEERNAME, &mut out), Ok(16));
    assert_eq!(out[..], address("127.0.0.1:80")[..]);
    let mtu = p.get(client, SOL_IP, IP_MTU).expect("connected");
    assert_eq!(mtu, 65535);
}

#[test]
fn datagrams_have_the_options_that_they_do_not_heed() {
    let mut p = Process::new();
    let fd = p.udp();
    for bound in [false, true] {
        assert_eq!(p.set(fd, SOL_SOCKET, SO_KEEPALIVE, &int(1)), Ok(()), "{bound}");
        assert_eq!(p.get(fd, SOL_SOCKET, SO_KEEPALIVE), Ok(1));
        let linger = [1, 0, 0, 0, 5, 0, 0, 0];
        assert_eq!(p.set(fd, SOL_SOCKET, SO_LINGER, &linger), Ok(()));
        let mut out = [0; 8];
        assert_eq!(p.posix.getsockopt(p.now, fd, SOL_SOCKET, SO_LINGER, &mut out), Ok(8));
        assert_eq!(out, linger);
        assert_eq!(p.set(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &int(1000)), Ok(()));
        assert_eq!(p.get(fd, SOL_SOCKET, SO_MAX_PACING_RATE), Ok(1000));
        // This one they would heed.
        assert_eq!(p.set(fd, SOL_SOCKET, SO_PRIORITY, &int(0)), Ok(()));
        assert_eq!(p.set(fd, SOL_SOCKET, SO_PRIORITY, &int(5)), Err(Errno::ENOPROTOOPT));
        if !bound {
            p.bind(fd, "127.0.0.1:500").expect("free");
        }
    }
}

#[test]
fn levels_of_other_protocols_and_families_are_refused_as_linux_does() {
    let mut p = Process::new();
    let kinds = [
        (AF_INET, SOCK_STREAM),
        (AF_INET, SOCK_DGRAM),
        (AF_INET6, SOCK_STREAM),
        (AF_INET6, SOCK_DGRAM),
    ];
    let (no, foreign) = (Err(Errno::ENOPROTOOPT), Err(Errno::EOPNOTSUPP));
    let zero: Result<i32, Errno> = Ok(0);
    for (level, name, expected) in [
        (SOL_TCP, TCP_FASTOPEN, [zero, foreign, zero, no]),
        (SOL_TCP, 999, [no, foreign, no, no]),
        (SOL_IPV6, IPV6_TCLASS, [foreign, foreign, zero, zero]),
        (SOL_IPV6, 999, [foreign, foreign, no, no]),
        (SOL_IP, IP_TOS, [zero; 4]),
        (999, 1, [foreign, foreign, no, no]),
        (SOL_UDP, 999, [foreign, no, no, no]),
    ] {
        for ((domain, kind), expected) in kinds.into_iter().zip(expected) {
            let fd = p.posix.socket(domain, kind, 0).expect("a descriptor");
            let what = format!("{level} {name} of {domain} {kind}");
            assert_eq!(p.get(fd, level, name), expected, "{what}");
            let set = expected.map(|_| ()).map_err(|_| Errno::ENOPROTOOPT);
            assert_eq!(p.set(fd, level, name, &int(0)), set, "{what}");
            p.close(fd);
        }
    }
}

#[test]
fn values_are_long_enough_before_anything_else() {
    let mut p = Process::new();
    let (tcp, udp) = (p.tcp(), p.udp());
    let short = Err(Errno::EINVAL);
    for name in [SO_TYPE, SO_ERROR, SO_REUSEADDR, 999] {
        for fd in [tcp, udp] {
            assert_eq!(p.set(fd, SOL_SOCKET, name, &[0; 3]), short, "{name}");
        }
    }
    for name in [TCP_INFO, TCP_NODELAY, TCP_FASTOPEN, 999] {
        assert_eq!(p.set(tcp, SOL_TCP, name, &[0; 3]), short, "{name}");
        assert_eq!(p.set(udp, SOL_TCP, name, &[0; 3]), Err(Errno::ENOPROTOOPT), "{name}");
    }
    assert_eq!(p.set(tcp, SOL_TCP, TCP_CONGESTION, b"bbr"), Ok(()), "that is a text");
    for len in 0..4 {
        let value = &[0; 3][..len.min(3)];
        assert_eq!(p.set(tcp, SOL_IP, IP_TOS, value), Ok(()), "{len}");
        let expected = if len == 0 { short } else { Ok(()) };
        assert_eq!(p.set(tcp, SOL_IP, IP_TTL, &[64, 1, 1][..len.min(3)]), expected, "{len}");
    }
    assert_eq!(p.set(tcp, SOL_IP, 999, &[]), Err(Errno::ENOPROTOOPT));
    let v6 = p.posix.socket(AF_INET6, SOCK_STREAM, 0).expect("a descriptor");
    assert_eq!(p.set(v6, SOL_IPV6, IPV6_TCLASS, &[0; 3]), short);
    assert_eq!(p.set(v6, SOL_IPV6, 999, &[0; 3]), Err(Errno::ENOPROTOOPT));
}

#[test]
fn hop_limits_are_those_of_the_family() {
    let mut p = Process::new();
    let tcp = p.posix.socket(AF_INET6, SOCK_STREAM, 0).expect("a descriptor");
    let udp = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    for fd in [tcp, udp] {
        assert_eq!(p.get(fd, SOL_IPV6, IPV6_UNICAST_HOPS), Ok(64));
        assert_eq!(p.set(fd, SOL_IPV6, IPV6_UNICAST_HOPS, &int(9)), Ok(()));
        assert_eq!(p.set(fd, SOL_IP, IP_TTL, &int(7)), Ok(()));
        assert_eq!(p.get(fd, SOL_IPV6, IPV6_UNICAST_HOPS), Ok(9));
        assert_eq!(p.get(fd, SOL_IP, IP_TTL), Ok(7));
        for bad in [0, 256, -2] {
            assert_eq!(p.set(fd, SOL_IP, IP_TTL, &int(bad)), Err(Errno::EINVAL), "{bad}");
        }
        assert_eq!(p.set(fd, SOL_IPV6, IPV6_UNICAST_HOPS, &int(256)), Err(Errno::EINVAL));
        let no_hop = p.set(fd, SOL_IPV6, IPV6_UNICAST_HOPS, &int(0));
        assert_eq!(no_hop, Err(Errno::ENOPROTOOPT), "neap sends no such packets");
        assert_eq!(p.set(fd, SOL_IP, IP_TTL, &int(-1)), Ok(()));
        assert_eq!(p.get(fd, SOL_IP, IP_TTL), Ok(64), "the default again");
    }
    let v4 = p.udp();
    assert_eq!(p.set(v4, SOL_IPV6, IPV6_UNICAST_HOPS, &int(9)), Err(Errno::ENOPROTOOPT));
}

#[test]
fn the_window_clamp_is_that_of_the_connection() {
    let mut p = Process::new();
    let (client, server, listener) = p.pair();
    for fd in [client, server] {
        let clamp = p.get(fd, SOL_TCP, TCP_WINDOW_CLAMP).expect("known");
        assert!(clamp >= 32 * 1024, "{clamp}");
        assert_eq!(p.set(fd, SOL_TCP, TCP_WINDOW_CLAMP, &int(0)), Err(Errno::EINVAL));
    }
    for fd in [listener, p.tcp()] {
        assert_eq!(p.get(fd, SOL_TCP, TCP_WINDOW_CLAMP), Ok(0));
        assert_eq!(p.set(fd, SOL_TCP, TCP_WINDOW_CLAMP, &int(0)), Ok(()));
        assert_eq!(p.set(fd, SOL_TCP, TCP_WINDOW_CLAMP, &int(9)), Err(Errno::ENOPROTOOPT));
    }
}

#[test]
fn tcp_info_tells_of_received_data_and_nothing_of_what_is_not_there() {
    let mut p = Process::new();
    let (client, server, _) = p.pair();
    p.pass(Nanos::from_millis(300));
    let read = |p: &mut Process| {
        let mut info = [0; 280];
        let len = p.posix.getsockopt(p.now, server, SOL_TCP, TCP_INFO, &mut info);
        assert_eq!(len, Ok(280));
        info
    };
    assert_eq!(word(&read(&mut p), 52), 300, "since the connection opened");
    p.send(client, b"x", 0).expect("room");
    p.settle();
    assert_eq!(word(&read(&mut p), 52), 0);
    p.pass(Nanos::from_millis(70));
    let info = read(&mut p);
    assert_eq!(word(&info, 52), 70);
    // Fast Open, usec timestamps, rehashing and accurate ECN.
    assert_eq!((info[5] & !31, info[7] & !1, word(&info, 236)), (0, 0, 0));
    assert_eq!(info[248..], [0; 32]);
}

#[test]
fn the_priority_is_that_of_a_band_and_stays_with_the_listener() {
    let mut p = Process::new();
    let listener = p.listen("127.0.0.1:80");
    for set_before in [true, false] {
        let client = p.tcp();
        if set_before {
            p.set(listener, SOL_SOCKET, SO_PRIORITY, &int(3)).expect("a band");
        }
        p.connect(client, "127.0.0.1:80").expect("somebody listens");
        let server = p.accept(listener);
        assert_eq!(p.get(server, SOL_SOCKET, SO_PRIORITY), Ok(0));
        assert_eq!(p.get(listener, SOL_SOCKET, SO_PRIORITY), Ok(3));
    }
    let fd = p.tcp();
    p.set(fd, SOL_SOCKET, SO_PRIORITY, &int(15)).expect("a band");
    for none in [-1, 16, 87, 255, 256, i32::MAX] {
        assert_eq!(p.set(fd, SOL_SOCKET, SO_PRIORITY, &int(none)), Err(Errno::EINVAL), "{none}");
    }
    assert_eq!(p.get(fd, SOL_SOCKET, SO_PRIORITY), Ok(15));
}
