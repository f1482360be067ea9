//! `IP_TRANSPARENT` and `IP_FREEBIND`: addresses of others.

use super::*;

/// The four options, and the family of their sockets.
const OPTIONS: [(i32, i32, i32); 4] = [
    (AF_INET, SOL_IP, IP_TRANSPARENT),
    (AF_INET, SOL_IP, IP_FREEBIND),
    (AF_INET6, SOL_IPV6, IPV6_TRANSPARENT),
    (AF_INET6, SOL_IPV6, IPV6_FREEBIND),
];

fn others(domain: i32, last: u8) -> String {
    if domain == AF_INET { format!("203.0.113.{last}") } else { format!("[2001:db8:9::{last}]") }
}

/// A neighbour of the wire.
fn peer(domain: i32) -> &'static str {
    if domain == AF_INET { "192.0.2.9:9" } else { "[2001:db8::9]:9" }
}

/// The source of the latest packet that left.
fn source(p: &mut Process) -> String {
    p.settle();
    let packet = p.wire.ends().sent.back().cloned().expect("a packet");
    match packet[0] >> 4 {
        4 => core::net::Ipv4Addr::from_octets(packet[12..16].try_into().expect("4")).to_string(),
        _ => {
            let ip: [u8; 16] = packet[8..24].try_into().expect("16");
            format!("[{}]", core::net::Ipv6Addr::from_octets(ip))
        }
    }
}

#[test]
fn a_switch_serves_both_families_and_both_kinds_of_sockets() {
    let mut p = Process::new();
    for (domain, level, name) in OPTIONS {
        for kind in [SOCK_STREAM, SOCK_DGRAM] {
            let fd = p.posix.socket(domain, kind, 0).expect("a descriptor");
            assert_eq!(p.get(fd, level, name), Ok(0));
            assert_eq!(p.set(fd, level, name, &[]), Err(Errno::EINVAL));
            let byte = p.set(fd, level, name, &[1]);
            assert_eq!(byte, if level == SOL_IP { Ok(()) } else { Err(Errno::EINVAL) });
            for (value, wanted) in [(-1, 1), (0, 0), (256, 1), (2, 1)] {
                assert_eq!(p.set(fd, level, name, &int(value)), Ok(()));
                assert_eq!(p.get(fd, level, name), Ok(wanted), "{name} {value}");
            }
            let is_transparent = matches!(name, IP_TRANSPARENT | IPV6_TRANSPARENT);
            let of_v4 = [IP_TRANSPARENT, IP_FREEBIND].map(|name| p.get(fd, SOL_IP, name));
            assert_eq!(of_v4, [Ok(is_transparent.into()), Ok((!is_transparent).into())]);
            if domain == AF_INET {
                let other = [IPV6_TRANSPARENT, IPV6_FREEBIND];
                let set = other.map(|name| p.set(fd, SOL_IPV6, name, &int(1)));
                assert_eq!(set, [Err(Errno::ENOPROTOOPT); 2]);
            }
        }
    }
}

#[test]
fn a_connection_leaves_from_an_address_of_others() {
    let mut p = Process::new();
    for (domain, level, name) in OPTIONS {
        let fd = p.posix.socket(domain, SOCK_STREAM, 0).expect("a descriptor");
        p.set_nonblocking(fd);
        let own = others(domain, 7);
        assert_eq!(p.bind(fd, &format!("{own}:0")), Err(Errno::EADDRNOTAVAIL));
        p.set(fd, level, name, &int(1)).expect("known");
        assert_eq!(p.bind(fd, &format!("{own}:0")), Ok(()));
        let local = p.posix.getsockname(fd).expect("open");
        assert_ne!(local.port(), 0);
        let outcome = p.connect(fd, peer(domain));
        // A route of IPv4 asks for more than IP_FREEBIND.
        if name == IP_FREEBIND {
            assert_eq!(outcome, Err(Errno::ENETUNREACH));
            p.set(fd, SOL_IP, IP_TRANSPARENT, &int(1)).expect("known");
            assert_eq!(p.connect(fd, peer(domain)), Err(Errno::EINPROGRESS));
        } else {
            assert_eq!(outcome, Err(Errno::EINPROGRESS));
        }
        assert_eq!(source(&mut p), own);
        assert_eq!(p.posix.getsockname(fd), Ok(local));
        p.close(fd);
    }
}

#[test]
fn who_takes_the_option_back_listens_and_does_not_connect() {
    let mut p = Process::new();
    for (domain, level, name) in OPTIONS {
        let fd = p.posix.socket(domain, SOCK_STREAM, 0).expect("a descriptor");
        p.set(fd, level, name, &int(1)).expect("known");
        p.bind(fd, &format!("{}:80", others(domain, 8))).expect("allowed");
        p.set(fd, level, name, &int(0)).expect("known");
        assert_eq!(p.connect(fd, peer(domain)), Err(Errno::ENETUNREACH));
        assert_eq!(p.posix.listen(p.now, fd, 1), Ok(()));
        assert_eq!(p.get(fd, SOL_SOCKET, SO_ACCEPTCONN), Ok(1));
        p.close(fd);
    }
}

#[test]
fn datagrams_leave_from_an_address_of_others() {
    let mut p = Process::new();
    for (domain, level, name) in OPTIONS {
        let fd = p.posix.socket(domain, SOCK_DGRAM, 0).expect("a descriptor");
        let own = others(domain, 9);
        assert_eq!(p.bind(fd, &format!("{own}:500")), Err(Errno::EADDRNOTAVAIL));
        p.set(fd, level, name, &int(1)).expect("known");
        p.bind(fd, &format!("{own}:500")).expect("allowed");
        let to = address(peer(domain));
        let send = |p: &mut Process| {
            p.once(|posix, now, call| {
                posix.send_to(now, call, fd, b"x", MSG_DONTWAIT, Some(&to[..]))
            })
        };
        if name == IP_FREEBIND {
            assert_eq!(send(&mut p), Err(Errno::ENETUNREACH));
            assert_eq!(p.connect(fd, peer(domain)), Err(Errno::ENETUNREACH));
            p.set(fd, SOL_IP, IP_TRANSPARENT, &int(1)).expect("known");
        }
        assert_eq!(send(&mut p), Ok(1));
        assert_eq!(source(&mut p), own);
        assert_eq!(p.connect(fd, peer(domain)), Ok(()));
        p.close(fd);
    }
}

#[test]
fn a_mapped_address_of_others_is_one_of_ipv4() {
    let mut p = Process::new();
    let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    p.set(fd, SOL_IPV6, IPV6_FREEBIND, &int(1)).expect("known");
    p.bind(fd, "[::ffff:203.0.113.7]:500").expect("allowed");
    assert_eq!(p.connect(fd, "[::ffff:192.0.2.9]:9"), Err(Errno::ENETUNREACH));
    p.set(fd, SOL_IPV6, IPV6_TRANSPARENT, &int(1)).expect("known");
    assert_eq!(p.connect(fd, "[::ffff:192.0.2.9]:9"), Ok(()));
    p.send(fd, b"x", 0).expect("room");
    assert_eq!(source(&mut p), "203.0.113.7");
}

#[test]
fn what_is_no_address_of_one_host_is_refused() {
    let mut p = Process::new();
    for text in ["0.1.2.3:80", "224.0.0.5:80", "255.255.255.255:80"] {
        let fd = p.tcp();
        p.set(fd, SOL_IP, IP_FREEBIND, &int(1)).expect("known");
        assert_eq!(p.bind(fd, text), Err(Errno::EADDRNOTAVAIL), "{text}");
    }
    // A broadcast address is for datagrams, and no source.
    let fd = p.udp();
    p.bind(fd, "192.0.2.255:9").expect("an address of all");
    assert_eq!(p.connect(fd, "192.0.2.9:9"), Ok(()));
}

#[test]
fn an_accepted_connection_has_the_switches_of_its_listener() {
    let mut p = Process::new();
    let listener = p.tcp();
    p.set(listener, SOL_IP, IP_TRANSPARENT, &int(1)).expect("known");
    p.bind(listener, "127.0.0.1:80").expect("free");
    p.posix.listen(p.now, listener, 1).expect("bound");
    let client = p.tcp();
    p.connect(client, "127.0.0.1:80").expect("somebody listens");
    let server = p.accept(listener);
    assert_eq!(p.get(server, SOL_IP, IP_TRANSPARENT), Ok(1));
    assert_eq!(p.get(server, SOL_IP, IP_FREEBIND), Ok(0));
    assert_eq!(p.get(client, SOL_IP, IP_TRANSPARENT), Ok(0));
}
