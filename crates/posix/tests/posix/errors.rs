//! The error queue: what ICMP and the own host say of packets (`IP_RECVERR`, `IPV6_RECVERR`). What
//! is expected here was seen on Linux 6.18.

use super::*;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use neap_posix::EpollEvent;
use neap_stack::drop_reason::DropReason;
use neap_stack::wire::Protocol;
use neap_stack::wire::checksum::{Pseudo, of as checksum_of};

const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xfe);
const HOST_UNREACHABLE: [u8; 2] = [3, 1];
const PORT_UNREACHABLE: [u8; 2] = [3, 3];
const NONE: Errno = Errno(0);

/// An ICMP message of [`ROUTER`] to this host.
pub(super) fn icmp_v4(quote: &[u8], [kind, code]: [u8; 2], word: u32) -> Bytes {
    let mut message = vec![kind, code, 0, 0];
    message.extend(word.to_be_bytes());
    message.extend(quote);
    let sum = checksum_of(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let len = (20 + message.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 1, 0, 0]);
    packet.extend(ROUTER.octets());
    packet.extend([192, 0, 2, 1]);
    let sum = checksum_of(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(message);
    packet.into()
}

/// An ICMPv6 message of [`ROUTER_V6`] to this host.
pub(super) fn icmp_v6(quote: &[u8], [kind, code]: [u8; 2], word: u32) -> Bytes {
    let own: Ipv6Addr = "2001:db8::1".parse().expect("an address");
    let mut message = vec![kind, code, 0, 0];
    message.extend(word.to_be_bytes());
    message.extend(quote);
    let len = message.len() as u32;
    let mut sum = Pseudo::v6(ROUTER_V6, own, Protocol::ICMPV6).with_len(len);
    sum.add(&message);
    let sum = sum.finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((len as u16).to_be_bytes());
    packet.extend([58, 64]);
    packet.extend(ROUTER_V6.octets());
    packet.extend(own.octets());
    packet.extend(message);
    packet.into()
}

/// What `recvmsg` with `MSG_ERRQUEUE` brought, taken apart.
#[derive(Debug, PartialEq)]
struct Told {
    data: Vec<u8>,
    to: SocketAddr,
    level: i32,
    errno: Errno,
    /// `ee_origin`, `ee_type`, `ee_code`.
    what: [u8; 3],
    info: u32,
    /// `sa_family` and address of the offender.
    offender: (i32, Option<IpAddr>),
}

impl Process {
    /// A router says this of the packet that was sent last.
    fn icmp(&mut self, what: [u8; 2], word: u32) {
        self.settle();
        let packet = self.wire.ends().sent.back().expect("a packet").clone();
        let message = match packet[0] >> 4 {
            4 => icmp_v4(&packet, what, word),
            _ => icmp_v6(&packet, what, word),
        };
        self.wire.ends().arriving.push_back(message);
        self.settle();
    }

    fn error(&mut self, fd: Fd) -> Result<Told, Errno> {
        let (mut buf, mut control) = ([0; 2000], [0; 200]);
        let received = self.once(|posix, now, call| {
            posix.recv_msg(now, call, fd, &mut buf, &mut control, MSG_ERRQUEUE)
        })?;
        assert_eq!(received.flags, MSG_ERRQUEUE);
        let word = |at: usize| u32::from_ne_bytes(control[at..at + 4].try_into().expect("four"));
        let level = word(8) as i32;
        let (kind, len, padded) =
            if level == SOL_IP { (IP_RECVERR, 48, 48) } else { (IPV6_RECVERR, 60, 64) };
        assert_eq!((word(12) as i32, word(0), received.control), (kind, len, padded));
        assert_eq!((control[23], word(28)), (0, 0), "padding and ee_data");
        let family = i32::from(u16::from_ne_bytes([control[32], control[33]]));
        assert_eq!(control[34..36], [0, 0], "an offender has no port");
        let offender = match family {
            AF_INET => Some(IpAddr::from(*control[36..].first_chunk::<4>().expect("four"))),
            AF_INET6 => Some(IpAddr::from(*control[40..].first_chunk::<16>().expect("sixteen"))),
            _ => None,
        };
        Ok(Told {
            data: buf[..received.len].to_vec(),
            to: received.from.expect("an address"),
            level,
            errno: Errno(word(16) as i32),
            what: [control[20], control[21], control[22]],
            info: word(24),
            offender: (family, offender),
        })
    }

    /// `SO_ERROR`
    fn so_error(&mut self, fd: Fd) -> Errno {
        Errno(self.get(fd, SOL_SOCKET, SO_ERROR).expect("a socket"))
    }

    fn ask(&mut self, fd: Fd, on: i32) {
        self.set(fd, SOL_IP, IP_RECVERR, &int(on)).expect("known");
    }

    fn opening(&mut self, fd: Fd, to: &str) {
        self.set_nonblocking(fd);
        let to = address(to);
        let began = self.once(|posix, now, call| posix.connect(now, call, fd, &to));
        assert_eq!(began, Err(Errno::EINPROGRESS));
    }

    /// The peer of the SYN that was sent last accepts it.
    fn answer_syn(&mut self) {
        self.settle();
        let syn = self.wire.ends().sent.back().expect("a packet").clone();
        let (own, peer) = (&syn[12..16], &syn[16..20]);
        let mut tcp = [&syn[22..24], &syn[20..22], &[0, 0, 0, 9]].concat();
        let seq = u32::from_be_bytes(syn[24..28].try_into().expect("four"));
        tcp.extend((seq + 1).to_be_bytes());
        tcp.extend([0x50, 0x12, 0xff, 0xff, 0, 0, 0, 0]);
        let sum = checksum_of(&[peer, own, &[0, 6, 0, 20], &tcp].concat());
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
        packet.extend([peer, own].concat());
        let sum = checksum_of(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(tcp);
        self.wire.ends().arriving.push_back(packet.into());
        self.settle();
    }

    fn send_datagram(&mut self, fd: Fd, data: &[u8], to: &str) -> Result<usize, Errno> {
        let to = address(to);
        self.once(|posix, now, call| posix.send_to(now, call, fd, data, 0, Some(&to)))
    }
}

#[test]
fn who_asks_hears_of_every_datagram_with_all_that_is_known() {
    let mut p = Process::new();
    let fd = p.udp();
    assert_eq!(p.error(fd), Err(Errno::EAGAIN));
    p.send_datagram(fd, b"unasked", "192.0.2.9:7").expect("room");
    p.icmp(PORT_UNREACHABLE, 0);
    assert_eq!((p.error(fd), p.so_error(fd)), (Err(Errno::EAGAIN), NONE), "it is not connected");
    p.ask(fd, 1);
    for (what, word, errno, info) in [
        ([3, 0], 0, Errno::ENETUNREACH, 0),
        ([3, 1], 0, Errno::EHOSTUNREACH, 0),
        ([3, 2], 0, Errno::ENOPROTOOPT, 0),
        ([3, 3], 0, Errno::ECONNREFUSED, 0),
        ([3, 4], 1200, Errno::EMSGSIZE, 1200),
        ([3, 5], 0, Errno::EOPNOTSUPP, 0),
        ([3, 6], 0, Errno::ENETUNREACH, 0),
        ([3, 7], 0, Errno::EHOSTDOWN, 0),
        ([3, 8], 0, Errno::ENONET, 0),
        ([3, 13], 0, Errno::EHOSTUNREACH, 0),
        ([11, 0], 0, Errno::EHOSTUNREACH, 0),
        ([12, 0], 0x0400_0000, Errno::EPROTO, 4),
    ] {
        p.send_datagram(fd, b"hello", "192.0.2.9:7").expect("room");
        p.icmp(what, word);
        assert_ne!(p.ready(fd) & POLLERR, 0);
        let told = Told {
            data: b"hello".to_vec(),
            to: "192.0.2.9:7".parse().expect("one"),
            level: SOL_IP,
            errno,
            what: [SO_EE_ORIGIN_ICMP, what[0], what[1]],
            info,
            offender: (AF_INET, Some(ROUTER.into())),
        };
        assert_eq!(p.error(fd), Ok(told), "{what:?}");
        assert_eq!((p.ready(fd) & POLLERR, p.so_error(fd)), (0, NONE), "the error went along");
    }
    p.icmp([11, 1], 0);
    assert_eq!(p.error(fd), Err(Errno::EAGAIN), "reassembly says nothing of the way");
}

#[test]
fn a_connected_socket_hears_of_what_is_hard_without_asking() {
    for (what, word, errno) in [
        (HOST_UNREACHABLE, 0, NONE),
        ([3, 0], 0, NONE),
        ([11, 0], 0, NONE),
        (PORT_UNREACHABLE, 0, Errno::ECONNREFUSED),
        ([3, 2], 0, Errno::ENOPROTOOPT),
        ([3, 4], 1200, Errno::EMSGSIZE),
        ([3, 13], 0, Errno::EHOSTUNREACH),
        ([12, 0], 0, Errno::EPROTO),
    ] {
        let mut p = Process::new();
        let fd = p.udp();
        p.connect(fd, "192.0.2.9:7").expect("nothing is sent");
        p.send(fd, b"x", 0).expect("room");
        p.icmp(what, word);
        assert_eq!(p.error(fd), Err(Errno::EAGAIN), "{what:?}");
        assert_eq!((p.so_error(fd), p.so_error(fd)), (errno, NONE), "{what:?}");
    }
}

#[test]
fn errors_of_ipv6_are_those_of_icmpv6() {
    for (what, word, errno, is_hard) in [
        ([1, 0], 0, Errno::ENETUNREACH, false),
        ([1, 1], 0, Errno::EACCES, true),
        ([1, 3], 0, Errno::EHOSTUNREACH, false),
        ([1, 4], 0, Errno::ECONNREFUSED, true),
        ([2, 0], 1300, Errno::EMSGSIZE, true),
        ([3, 1], 0, Errno::EHOSTUNREACH, false),
        ([4, 1], 6, Errno::EPROTO, true),
    ] {
        let mut p = Process::new();
        let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
        p.connect(fd, "[2001:db8::9]:7").expect("nothing is sent");
        p.send(fd, b"hello", 0).expect("room");
        p.ask(fd, 1);
        p.icmp(what, word);
        let hard = if is_hard { errno } else { NONE };
        let unasked = (p.error(fd), p.so_error(fd));
        assert_eq!(unasked, (Err(Errno::EAGAIN), hard), "IP_RECVERR is IPv4's: {what:?}");
        p.set(fd, SOL_IPV6, IPV6_RECVERR, &int(1)).expect("known");
        p.icmp(what, word);
        let told = p.error(fd).expect("a record");
        assert_eq!((told.errno, told.info, told.level), (errno, word, SOL_IPV6), "{what:?}");
        assert_eq!(told.what, [SO_EE_ORIGIN_ICMP6, what[0], what[1]]);
        assert_eq!(told.offender, (AF_INET6, Some(ROUTER_V6.into())));
        assert_eq!((told.data, told.to.port()), (b"hello".to_vec(), 7));
    }
}

#[test]
fn the_error_of_the_socket_is_that_of_the_record_to_come() {
    let mut p = Process::new();
    let fd = p.udp();
    p.ask(fd, 1);
    p.connect(fd, "192.0.2.9:7").expect("nothing is sent");
    p.send(fd, b"x", 0).expect("room");
    p.icmp(PORT_UNREACHABLE, 0);
    p.icmp(HOST_UNREACHABLE, 0);
    // The last one is told first, and the queue stays.
    assert_eq!(p.recv(fd, 1, 0), Err(Errno::EHOSTUNREACH));
    assert_eq!(p.recv(fd, 1, 0), Err(Errno::EAGAIN));
    assert_ne!(p.ready(fd) & POLLERR, 0);
    assert_eq!(p.error(fd).map(|told| told.errno), Ok(Errno::ECONNREFUSED));
    assert_eq!(p.send(fd, b"x", 0), Err(Errno::EHOSTUNREACH), "that of the next");
    assert_eq!(p.error(fd).map(|told| told.errno), Ok(Errno::EHOSTUNREACH));
    assert_eq!((p.error(fd), p.ready(fd) & POLLERR), (Err(Errno::EAGAIN), 0));
}

#[test]
fn what_no_packet_takes_is_told_by_the_host_itself() {
    let mut p = Process::new();
    let fd = p.udp();
    p.set(fd, SOL_SOCKET, SO_SNDBUF, &int(400_000)).expect("known");
    let (long, longer) = (vec![0; 65_508], vec![0; 65_536]);
    assert_eq!(p.send_datagram(fd, &long, "192.0.2.9:7"), Err(Errno::EMSGSIZE));
    assert_eq!(p.error(fd), Err(Errno::EAGAIN));
    p.ask(fd, 1);
    assert_eq!(p.send_datagram(fd, &longer, "192.0.2.9:7"), Err(Errno::EMSGSIZE));
    assert_eq!(p.error(fd), Err(Errno::EAGAIN), "longer than any length");
    assert_eq!(p.send_datagram(fd, &long, "192.0.2.9:7"), Err(Errno::EMSGSIZE));
    assert_eq!(p.so_error(fd), NONE);
    let mut told = p.error(fd).expect("a record");
    let none = (AF_UNSPEC, None);
    assert_eq!((told.errno, told.info, told.offender), (Errno::EMSGSIZE, 1500, none));
    assert_eq!((told.what, told.data.len(), told.to.port()), ([SO_EE_ORIGIN_LOCAL, 0, 0], 0, 0));
    p.connect(fd, "192.0.2.9:7").expect("nothing is sent");
    p.send(fd, b"x", 0).expect("room");
    assert_eq!(p.send(fd, &long, 0), Err(Errno::EMSGSIZE));
    p.icmp(PORT_UNREACHABLE, 0);
    told = p.error(fd).expect("a record");
    assert_eq!((told.errno, told.to.port()), (Errno::EMSGSIZE, 7));
    assert_eq!(p.so_error(fd), Errno::ECONNREFUSED);
    assert_eq!(p.error(fd).map(|told| told.errno), Ok(Errno::ECONNREFUSED));
    // IPv6 has no length of its own to look at first, and fewer headers.
    let fd = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    p.set(fd, SOL_IPV6, IPV6_RECVERR, &int(1)).expect("known");
    assert_eq!(p.send_datagram(fd, &longer, "[2001:db8::9]:7"), Err(Errno::EMSGSIZE));
    let told = p.error(fd).expect("a record");
    assert_eq!((told.errno, told.info, told.to.port()), (Errno::EMSGSIZE, 1500, 7));
    assert_eq!((told.level, told.offender), (SOL_IPV6, none));
}

#[test]
fn who_asks_for_it_sends_whole_or_not_at_all() {
    let mut p = Process::new();
    for (domain, level, name, asks, to, most) in [
        (AF_INET, SOL_IP, IP_MTU_DISCOVER, IP_RECVERR, "192.0.2.9:7", 1472),
        (AF_INET6, SOL_IPV6, IPV6_MTU_DISCOVER, IPV6_RECVERR, "[2001:db8::9]:7", 1452),
        (AF_INET6, SOL_IP, IP_MTU_DISCOVER, IP_RECVERR, "[::ffff:192.0.2.9]:7", 1472),
    ] {
        let fd = p.posix.socket(domain, SOCK_DGRAM, 0).expect("a descriptor");
        assert_eq!(p.get(fd, level, name), Ok(IP_PMTUDISC_WANT));
        assert_eq!(p.send_datagram(fd, &[0; 3000], to), Ok(3000), "in fragments");
        p.set(fd, level, name, &int(IP_PMTUDISC_DO)).expect("known");
        assert_eq!(p.get(fd, level, name), Ok(IP_PMTUDISC_DO));
        assert_eq!(p.send_datagram(fd, &vec![0; most], to), Ok(most));
        assert_eq!(p.send_datagram(fd, &vec![0; most + 1], to), Err(Errno::EMSGSIZE));
        assert_eq!(p.error(fd), Err(Errno::EAGAIN));
        p.set(fd, level, asks, &int(1)).expect("known");
        p.connect(fd, to).expect("nothing is sent");
        assert_eq!(p.send(fd, &[0; 3000], 0), Err(Errno::EMSGSIZE), "{to}");
        let told = p.error(fd).expect("a record");
        assert_eq!((told.errno, told.info), (Errno::EMSGSIZE, 1500), "{to}");
        assert_eq!(told.what, [SO_EE_ORIGIN_LOCAL, 0, 0]);
        // What is learnt of the path is always believed, and IPv4 may not be cut on its way.
        for refused in [IP_PMTUDISC_DONT, IP_PMTUDISC_PROBE, 4, 5] {
            assert_eq!(p.set(fd, level, name, &int(refused)), Err(Errno::ENOPROTOOPT));
        }
        for bad in [-1, 6] {
            assert_eq!(p.set(fd, level, name, &int(bad)), Err(Errno::EINVAL));
        }
        p.set(fd, level, name, &int(IP_PMTUDISC_WANT)).expect("known");
        let _ = p.get(fd, SOL_SOCKET, SO_ERROR);
        assert_eq!(p.send(fd, &[0; 3000], 0), Ok(3000));
    }
    let stream = p.tcp();
    let refused = p.set(stream, SOL_IP, IP_MTU_DISCOVER, &int(IP_PMTUDISC_DO));
    assert_eq!(refused, Err(Errno::ENOPROTOOPT));
}

#[test]
fn off_empties_the_queue_and_the_buffer_bounds_it() {
    let mut p = Process::new();
    let fd = p.udp();
    p.ask(fd, 1);
    p.set(fd, SOL_SOCKET, SO_RCVBUF, &int(4000)).expect("known");
    p.send_datagram(fd, b"x", "192.0.2.9:7").expect("room");
    for _ in 0..100 {
        p.icmp(HOST_UNREACHABLE, 0);
    }
    let dropped = p.posix.stack().drops().get(DropReason::ErrorQueue);
    let mut records = 0;
    while p.error(fd).is_ok() {
        records += 1;
    }
    assert!((5..=12).contains(&records), "{records} within 8000 bytes");
    assert_eq!(dropped, 100 - records);
    p.icmp(PORT_UNREACHABLE, 0);
    p.ask(fd, 0);
    assert_eq!(p.get(fd, SOL_IP, IP_RECVERR), Ok(0));
    assert_eq!(p.error(fd), Err(Errno::EAGAIN));
    assert_ne!(p.ready(fd) & POLLERR, 0, "the error itself stays");
    assert_eq!((p.so_error(fd), p.ready(fd) & POLLERR), (Errno::ECONNREFUSED, 0));
}

#[test]
fn room_that_is_missing_cuts_data_and_message() {
    let mut p = Process::new();
    let fd = p.udp();
    p.ask(fd, 1);
    p.send_datagram(fd, b"hello", "192.0.2.9:7").expect("room");
    for (room, used, flags) in [
        (0, 0, MSG_ERRQUEUE | MSG_CTRUNC),
        (15, 0, MSG_ERRQUEUE | MSG_CTRUNC),
        (30, 30, MSG_ERRQUEUE | MSG_CTRUNC),
        (48, 48, MSG_ERRQUEUE),
    ] {
        p.icmp(HOST_UNREACHABLE, 0);
        let (mut buf, mut control) = ([0; 3], vec![0; room]);
        let received = p.once(|posix, now, call| {
            posix.recv_msg(now, call, fd, &mut buf, &mut control, MSG_ERRQUEUE)
        });
        let received = received.expect("a record");
        assert_eq!((received.len, &buf), (3, b"hel"));
        assert_eq!((received.flags, received.control), (flags | MSG_TRUNC, used), "room {room}");
    }
    assert_eq!(p.error(fd), Err(Errno::EAGAIN), "a record that was cut is gone");
}

#[test]
fn an_open_that_fails_leaves_its_record_and_ipv4_needs_no_asking() {
    for asks in [0, 1] {
        let mut p = Process::new();
        let fd = p.tcp();
        p.ask(fd, asks);
        p.opening(fd, "192.0.2.9:80");
        p.icmp(PORT_UNREACHABLE, 0);
        assert_ne!(p.ready(fd) & POLLERR, 0);
        let told = p.error(fd).expect("a record");
        assert_eq!((told.errno, told.level), (Errno::ECONNREFUSED, SOL_IP));
        assert_eq!(told.what, [SO_EE_ORIGIN_ICMP, 3, 3]);
        assert_eq!(told.to, "192.0.2.9:80".parse().expect("one"));
        assert_eq!(told.data[2..4], [0, 80], "from the TCP header on");
        assert_eq!((p.so_error(fd), p.error(fd)), (NONE, Err(Errno::EAGAIN)));
        assert_eq!(p.connect(fd, "192.0.2.9:80"), Err(Errno::ECONNABORTED));
    }
    for (asks, to) in [(false, "[2001:db8::9]:80"), (true, "[2001:db8::9]:80")] {
        let mut p = Process::new();
        let fd = p.posix.socket(AF_INET6, SOCK_STREAM, 0).expect("a descriptor");
        p.ask(fd, 1);
        p.set(fd, SOL_IPV6, IPV6_RECVERR, &int(i32::from(asks))).expect("known");
        p.opening(fd, to);
        p.icmp([1, 4], 0);
        assert_eq!(p.error(fd).is_ok(), asks);
        assert_eq!(p.so_error(fd), if asks { NONE } else { Errno::ECONNREFUSED });
    }
}

#[test]
fn the_queue_is_the_sockets_and_outlives_a_connection() {
    let mut p = Process::new();
    let fd = p.tcp();
    let to = address("192.0.2.9:80");
    let connect = |p: &mut Process| p.once(|posix, now, call| posix.connect(now, call, fd, &to));
    for what in [HOST_UNREACHABLE, PORT_UNREACHABLE] {
        p.opening(fd, "192.0.2.9:80");
        p.icmp(what, 0);
        assert!(connect(&mut p).is_err());
        assert_eq!(p.ready(fd), POLLOUT | POLLWRNORM | POLLHUP | POLLERR);
    }
    assert_eq!(p.so_error(fd), NONE);
    assert_eq!(p.error(fd).map(|told| told.errno), Ok(Errno::EHOSTUNREACH));
    assert_eq!(p.so_error(fd), Errno::ECONNREFUSED, "that of the next");
    assert_ne!(p.ready(fd) & POLLERR, 0);
    assert_eq!(p.error(fd).map(|told| told.errno), Ok(Errno::ECONNREFUSED));
    assert_eq!(p.ready(fd), POLLOUT | POLLWRNORM | POLLHUP);
    p.opening(fd, "192.0.2.9:80");
    p.icmp(HOST_UNREACHABLE, 0);
    assert!(connect(&mut p).is_err());
    p.ask(fd, 0);
    assert_eq!((p.error(fd), p.ready(fd) & POLLERR), (Err(Errno::EAGAIN), 0));
}

#[test]
fn mapped_addresses_have_the_option_of_ipv4_and_the_message_of_ipv6() {
    for kind in [SOCK_STREAM, SOCK_DGRAM] {
        let mut p = Process::new();
        let fd = p.posix.socket(AF_INET6, kind, 0).expect("a descriptor");
        p.set(fd, SOL_IPV6, IPV6_RECVERR, &int(1)).expect("known");
        if kind == SOCK_DGRAM {
            p.send_datagram(fd, b"hello", "[::ffff:192.0.2.9]:80").expect("room");
            p.icmp(HOST_UNREACHABLE, 0);
            assert_eq!(p.error(fd), Err(Errno::EAGAIN), "IPV6_RECVERR is not for it");
            p.ask(fd, 1);
        } else {
            p.opening(fd, "[::ffff:192.0.2.9]:80");
        }
        p.icmp(HOST_UNREACHABLE, 0);
        let told = p.error(fd).expect("a record");
        assert_eq!((told.level, told.errno), (SOL_IPV6, Errno::EHOSTUNREACH));
        assert_eq!(told.what, [SO_EE_ORIGIN_ICMP, 3, 1]);
        assert_eq!(told.to, "[::ffff:192.0.2.9]:80".parse().expect("one"));
        assert_eq!(told.offender, (AF_INET6, Some(ROUTER.to_ipv6_mapped().into())));
    }
}

#[test]
fn an_error_finds_the_socket_of_the_packet_or_nobody() {
    let mut p = Process::new();
    let (fd, other) = (p.udp(), p.udp());
    p.ask(fd, 1);
    p.ask(other, 1);
    p.send_datagram(other, b"y", "192.0.2.9:7").expect("room");
    p.send_datagram(fd, b"x", "192.0.2.9:7").expect("room");
    p.icmp(HOST_UNREACHABLE, 0);
    assert_eq!(p.error(other), Err(Errno::EAGAIN));
    assert_eq!(p.error(fd).map(|told| told.data), Ok(b"x".to_vec()));
    let packet = p.wire.ends().sent.back().expect("a packet").clone();
    for len in 0..packet.len() {
        p.wire.ends().arriving.push_back(icmp_v4(&packet[..len], HOST_UNREACHABLE, 0));
        p.settle();
        // Ports are enough to know the socket.
        assert_eq!(p.error(fd).is_ok(), len >= 24, "{len}");
    }
}

#[test]
fn what_is_too_big_for_a_router_leaves_in_pieces() {
    let mut p = Process::new();
    let fd = p.udp();
    let send = |p: &mut Process| {
        p.wire.ends().sent.clear();
        p.send_datagram(fd, &[0; 1300], "192.0.2.9:7").expect("room");
        p.settle();
        p.wire.ends().sent.iter().map(Bytes::len).collect::<Vec<_>>()
    };
    assert_eq!(send(&mut p), [1328]);
    p.icmp([3, 4], 1200);
    assert_eq!(send(&mut p), [1196, 152], "whoever sent it, and whether it asked or not");
    assert_eq!(p.so_error(fd), NONE);
    assert_eq!(p.get(fd, SOL_IP, IP_MTU), Err(Errno::ENOTCONN));
    p.connect(fd, "192.0.2.9:7").expect("nothing is sent");
    assert_eq!(p.get(fd, SOL_IP, IP_MTU), Ok(1200));
}

#[test]
fn edges_of_the_queue_are_told() {
    let mut p = Process::new();
    let fd = p.udp();
    p.ask(fd, 1);
    let set = p.posix.epoll_create1(0).expect("a descriptor");
    let event = EpollEvent { events: EPOLLET, data: 5 };
    p.posix.epoll_ctl(set, EPOLL_CTL_ADD, fd, event).expect("new");
    let told = |p: &mut Process| {
        let came = p.once(|posix, now, call| posix.epoll_wait(now, call, set, 5, 0));
        came.expect("a set").first().map(|event| event.events)
    };
    p.send_datagram(fd, b"x", "192.0.2.9:7").expect("room");
    assert_eq!(told(&mut p), None);
    p.icmp(HOST_UNREACHABLE, 0);
    assert_eq!((told(&mut p), told(&mut p)), (Some(POLLERR), None));
    p.icmp(PORT_UNREACHABLE, 0);
    assert_eq!(
        (told(&mut p), told(&mut p)),
        (Some(POLLERR), None),
        "it is there, and another came"
    );
    p.error(fd).expect("a record");
    assert_eq!((told(&mut p), told(&mut p)), (Some(POLLERR), None), "the next");
    p.error(fd).expect("a record");
    assert_eq!(told(&mut p), None);
}

#[test]
fn a_datagram_socket_of_both_families_hears_both() {
    let mut p = Process::new();
    let both = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    p.bind(both, "[::]:500").expect("free");
    assert_eq!(p.posix.getsockname(both), Ok("[::]:500".parse().expect("one")));
    let (four, taken) = (p.udp(), p.udp());
    assert_eq!(p.bind(taken, "0.0.0.0:500"), Err(Errno::EADDRINUSE));
    assert_eq!(p.bind(taken, "127.0.0.1:500"), Err(Errno::EADDRINUSE));
    p.send_datagram(four, b"four", "127.0.0.1:500").expect("room");
    let six = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    p.send_datagram(six, b"six", "[::1]:500").expect("room");
    p.settle();
    let from = |p: &mut Process| {
        let mut buf = [0; 9];
        let came = p.once(|posix, now, call| posix.recv_from(now, call, both, &mut buf, 0));
        let came = came.expect("a datagram");
        (buf[..came.len].to_vec(), came.from.expect("an address").ip().to_string())
    };
    assert_eq!(from(&mut p), (b"four".to_vec(), "::ffff:127.0.0.1".into()));
    assert_eq!(from(&mut p), (b"six".to_vec(), "::1".into()));
    let back = p.posix.getsockname(four).expect("bound").port();
    p.send_datagram(both, b"back", &format!("[::ffff:127.0.0.1]:{back}")).expect("room");
    assert_eq!(p.recv(four, 9, 0), Ok(b"back".to_vec()));
    // A peer of one family is no peer of the other.
    p.connect(both, "[::1]:9").expect("nothing is sent");
    p.send_datagram(four, b"four", "127.0.0.1:500").expect("room");
    assert_eq!(p.recv(both, 9, 0), Err(Errno::EAGAIN));
    p.connect(both, "[::ffff:127.0.0.1]:9").expect("nothing is sent");
    let name = p.posix.getsockname(both).expect("open").to_string();
    assert_eq!(name, "[::ffff:127.0.0.1]:500");
    // IPV6_V6ONLY leaves IPv4 to others.
    let only = p.posix.socket(AF_INET6, SOCK_DGRAM, 0).expect("a descriptor");
    p.set(only, SOL_IPV6, IPV6_V6ONLY, &int(1)).expect("known");
    p.bind(only, "[::]:600").expect("free");
    assert_eq!(p.bind(taken, "0.0.0.0:600"), Ok(()));
    let sent = p.send_datagram(only, b"x", "[::ffff:127.0.0.1]:9");
    assert_eq!(sent, Err(Errno::ENETUNREACH));
}

/// `tcp_disconnect` forgets `sk_err_soft`.
#[test]
fn what_a_router_reported_is_no_error_of_the_socket_that_begins_anew() {
    let mut p = Process::new();
    let fd = p.tcp();
    p.opening(fd, "192.0.2.9:80");
    p.answer_syn();
    assert_eq!(p.connect(fd, "192.0.2.9:80"), Ok(()));
    p.set(fd, SOL_TCP, TCP_USER_TIMEOUT, &int(5000)).expect("known");
    p.send(fd, b"nobody acknowledges it", 0).expect("room");
    p.icmp(HOST_UNREACHABLE, 0);
    assert_eq!(p.ready(fd) & POLLERR, 0, "it may pass");
    p.pass(Nanos::from_secs(20));
    assert_ne!(p.ready(fd) & POLLERR, 0);
    assert_eq!(p.recv(fd, 1, 0), Err(Errno::EHOSTUNREACH));
    assert_eq!(p.unspecified(fd), Ok(()));
    assert_eq!(p.ready(fd) & POLLERR, 0, "it is told already");
    assert_eq!(p.recv(fd, 1, 0), Err(Errno::ENOTCONN));
}
