//! Sockets of the loopback, and of namespaces with another one.

use super::*;
use crate::device::namespace::{in_namespace, run};
use rustix::event::PollFlags;
use std::sync::Barrier;

fn pair() -> (HostSocket, HostSocket, SocketAddr) {
    let open = || HostSocket::open(0, None).expect("a socket");
    let (a, b) = (open(), open());
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, b.port()));
    (a, b, to)
}

fn take(socket: &HostSocket) -> Vec<(Vec<u8>, Arrived)> {
    let (mut buffer, mut control) = (vec![0; 1 << 16], HostSocket::control_room());
    let mut taken = Vec::new();
    while let Ok(arrived) = socket.receive(&mut buffer, &mut control) {
        taken.push((buffer[..arrived.len].to_vec(), arrived));
    }
    taken
}

#[test]
fn a_batch_keeps_its_boundaries_and_its_mark() {
    let (a, b, to) = pair();
    let bytes: Vec<u8> = (0..2500u32).map(|i| i as u8).collect();
    for class in [2, 3, 1, 0, HANDSHAKE_CLASS] {
        let mut batch = Batch {
            parts: &[&bytes[..1000], &bytes[1000..]],
            segment: 1000,
            to: to.into(),
            class,
            may_be_cut: false,
        };
        assert_eq!(a.send(&mut batch, &mut 0), Ok(Sent::Whole));
        let taken = take(&b);
        let whole: Vec<u8> = taken.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        assert_eq!(whole, bytes);
        for (_, arrived) in taken {
            assert!(arrived.segment <= 1000 && arrived.ecn == class & 3, "{arrived:?}");
            assert_eq!(arrived.ends.peer.port(), a.port());
        }
    }
    assert_eq!(a.held(), 0);
}

#[test]
fn both_families_work_and_an_error_of_one_datagram_is_not_that_of_the_next() {
    let (a, b, _) = pair();
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, b.port()));
    let closed = SocketAddr::from((Ipv6Addr::LOCALHOST, 9));
    for (to, class) in [(closed, 0), (v6, 3)] {
        let mut batch =
            Batch { parts: &[b"anybody?"], segment: 8, to: to.into(), class, may_be_cut: false };
        assert_eq!(a.send(&mut batch, &mut 0), Ok(Sent::Whole));
    }
    let taken = take(&b);
    assert_eq!((taken.len(), taken[0].1.ecn), (1, 3));
    assert!(a.take_errors().count <= 1);
}

#[test]
fn an_answer_leaves_from_the_address_that_was_spoken_to() {
    let (a, _, _) = pair();
    let peer = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let spoken_to = SocketAddr::from(([127, 0, 0, 2], a.port()));
    peer.send_to(b"hello", spoken_to).expect("sent");
    a.wait(PollFlags::IN);
    let (_, arrived) = take(&a).remove(0);
    assert_eq!(arrived.ends.own, Some(spoken_to.ip()));
    let parts: &[&[u8]] = &[b"one", b"two", b"6"];
    let mut bytes = [0; 9];
    for (may_be_cut, class) in [(false, 0), (true, 0), (false, HANDSHAKE_CLASS)] {
        let mut batch = Batch { parts, segment: 3, to: arrived.ends, class, may_be_cut };
        assert!(a.send(&mut batch, &mut 0).is_ok());
        assert_eq!(batch.to, arrived.ends);
        for part in parts {
            let (len, from) = peer.recv_from(&mut bytes).expect("an answer");
            assert_eq!((&bytes[..len], from), (*part, spoken_to));
        }
    }
}

#[test]
fn an_address_that_is_gone_does_not_stop_sending() {
    let (a, b, v4) = pair();
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, b.port()));
    for (peer, gone) in [(v4, "192.0.2.1"), (v6, "2001:db8::1"), (v4, "::1")] {
        let gone = Some(gone.parse().expect("an address"));
        let parts: &[&[u8]] = &[b"one", b"two", b"6"];
        let to = Ends { peer, own: gone };
        let mut batch = Batch { parts, segment: 3, to, class: 3, may_be_cut: false };
        assert_eq!(a.send(&mut batch, &mut 0), Ok(Sent::Whole));
        assert_eq!(batch.to, peer.into(), "it is not tried again");
        let mut taken = Vec::new();
        while taken.len() < 7 {
            b.wait(PollFlags::IN);
            taken.extend(take(&b).into_iter().flat_map(|(bytes, _)| bytes));
        }
        assert_eq!(taken, b"onetwo6");
    }
}

#[test]
fn datagrams_that_the_path_does_not_take_are_not_lost() {
    let (a, b, to) = pair();
    // The loopback's MTU is 65,536: larger datagrams do not exist, smaller ones pass.
    assert!(path_mtu(to, None).expect("a route") >= 1500);
    let bytes = vec![7; 3000];
    let batch = Batch {
        parts: &[&bytes[..1000], &bytes[1000..]],
        segment: 1000,
        to: to.into(),
        class: 0,
        may_be_cut: false,
    };
    let mut envelope = a.envelope(&batch);
    let sent = a.send_fragmentable(&mut envelope, batch, &mut 0);
    assert_eq!(sent, Ok(Sent::Fragmentable));
    assert_eq!(take(&b).iter().map(|(bytes, _)| bytes.len()).sum::<usize>(), 3000);
}

#[test]
fn datagrams_leave_without_df_as_long_as_a_path_is_narrow() {
    let (a, b, to) = pair();
    let has_df = || sockopt::ip_mtu_discover(a.fd()) == Ok(Ipv4PathMtuDiscovery::DO);
    assert!(has_df());
    a.let_be_cut(true);
    assert!(!has_df());
    a.rebind(0, None).expect("a port");
    assert!(!has_df());
    let parts: &[&[u8]] = &[b"one", b"two"];
    for (may_be_cut, sent) in [(false, Sent::Whole), (true, Sent::Fragmentable)] {
        let mut batch = Batch { parts, segment: 3, to: to.into(), class: 0, may_be_cut };
        assert_eq!(a.send(&mut batch, &mut 0), Ok(sent));
        assert!(!has_df() && !take(&b).is_empty());
    }
    a.let_be_cut(false);
    assert!(has_df());
}

#[test]
fn a_super_datagram_that_the_host_does_not_cut_costs_one_call_and_no_setting() {
    in_namespace(|| {
        run("ip link set lo up mtu 1280");
        let (a, b, to) = pair();
        a.let_be_cut(true);
        // Whoever sets it anew sets another value.
        let want = Ipv4PathMtuDiscovery::WANT;
        sockopt::set_ip_mtu_discover(a.fd(), want).expect("a setting");
        let (bytes, to) = (vec![7; 2800], to.into());
        let parts: &[&[u8]] = &[&bytes];
        let mut batch = Batch { parts, segment: 1400, to, class: 0, may_be_cut: false };
        assert_eq!(a.send(&mut batch, &mut 0), Ok(Sent::Fragmentable));
        assert_eq!(sockopt::ip_mtu_discover(a.fd()), Ok(want));
        assert_eq!(take(&b).iter().map(|(bytes, _)| bytes.len()).sum::<usize>(), 2800);
    });
}

#[test]
fn a_port_that_changes_has_df_as_was_said_last() {
    let (a, ..) = pair();
    let barrier = Barrier::new(2);
    for may_be_cut in [true, false].repeat(500) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                a.rebind(0, None).expect("a port");
            });
            barrier.wait();
            a.let_be_cut(may_be_cut);
        });
        let has_df = sockopt::ip_mtu_discover(a.fd()) == Ok(Ipv4PathMtuDiscovery::DO);
        assert_eq!(has_df, !may_be_cut);
    }
}

#[test]
fn a_batch_that_was_taken_in_part_goes_on_from_there() {
    let (a, b, to) = pair();
    let bytes: Vec<u8> = (0..2500u32).map(|i| (i / 1000) as u8).collect();
    let parts: &[&[u8]] = &[&bytes[..2000], &bytes[2000..]];
    let batch = Batch { parts, segment: 1000, to: to.into(), class: 0, may_be_cut: false };
    for (may_be_cut, sent) in [(false, Sent::OneByOne), (true, Sent::Fragmentable)] {
        let mut done = 1;
        assert_eq!(a.send(&mut Batch { may_be_cut, ..batch }, &mut done), Ok(sent));
        let taken: Vec<u8> = take(&b).into_iter().flat_map(|(bytes, _)| bytes).collect();
        assert_eq!((done, &taken[..]), (3, &bytes[1000..]));
    }
    let mut done = 0;
    let closed = SocketAddr::from((Ipv4Addr::BROADCAST, 9));
    let mut batch = Batch { to: closed.into(), may_be_cut: true, ..batch };
    assert_eq!(a.send(&mut batch, &mut done), Err(Errno::EACCES));
    assert_eq!(done, 0);
}

#[test]
fn datagrams_that_find_no_room_in_the_socket_are_counted() {
    let (a, b, to) = pair();
    let bytes = vec![7; 60_000];
    let send = |to: SocketAddr| {
        let (parts, segment, to) = (&[&bytes[..]], bytes.len(), to.into());
        let mut batch = Batch { parts, segment, to, class: 0, may_be_cut: false };
        assert_eq!(a.send(&mut batch, &mut 0), Ok(Sent::Whole));
    };
    let lost = |taken: &[(Vec<u8>, Arrived)]| -> usize {
        taken.iter().map(|(_, arrived)| arrived.lost as usize).sum()
    };
    // Twice the same of each socket: the host tells of all losses of the socket.
    for round in 0..4 {
        if round == 2 {
            b.rebind(0, None).expect("a port");
        }
        let to = SocketAddr::new(to.ip(), b.port());
        // Twice of what it has room for.
        let sent = 4 * RECEIVE_BUFFER / bytes.len();
        (0..sent).for_each(|_| send(to));
        let before = take(&b);
        assert!(before.len() < sent, "there was room for {sent}");
        // The host tells of losses with what comes behind them.
        send(to);
        let after = take(&b);
        assert_eq!((after.len(), lost(&before) + lost(&after)), (1, sent - before.len()));
    }
}

#[test]
fn a_port_that_is_held_is_taken_back_with_its_socket() {
    let (a, b, _) = pair();
    let (first, fd) = (b.port(), b.fd());
    let send = |bytes: &[u8]| {
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, first)).into();
        let (parts, segment): (&[&[u8]], _) = (&[bytes], bytes.len());
        let mut batch = Batch { parts, segment, to, class: 0, may_be_cut: false };
        assert_eq!(a.send(&mut batch, &mut 0), Ok(Sent::Whole));
    };
    // Some find no room, which the host tells with the one behind them.
    (0..4 * RECEIVE_BUFFER / 60_000).for_each(|_| send(&[7; 60_000]));
    take(&b);
    send(b"one");
    assert!(take(&b)[0].1.lost > 0);
    // A thread that may still send by it holds it.
    b.rebind(0, None).expect("a port");
    assert!(b.has_old() && b.port() != first);
    b.rebind(first, None).expect("its own port");
    assert!(Arc::ptr_eq(&b.fd(), &fd) && b.port() == first);
    let mut events =
        [epoll::Event { flags: epoll::EventFlags::IN, data: epoll::EventData::new_u64(0) }];
    let mut poll = || {
        let now = Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 });
        epoll::wait(&*b.events, &mut events, now).expect("an epoll set")
    };
    while poll() > 0 {}
    send(b"one");
    assert_eq!(poll(), 1, "its events are told of again");
    let taken = take(&b);
    assert_eq!((taken.len(), taken[0].1.lost), (1, 0), "losses are told once");
    drop(fd);
    b.rebind(0, None).expect("a port");
    assert!(!b.has_old(), "nobody holds it");
}

#[test]
fn a_port_that_cannot_be_taken_back_changes_nothing() {
    in_namespace(|| {
        run("ip link set lo up");
        let (_, b, _) = pair();
        let (first, fd) = (b.port(), b.fd());
        b.rebind(0, None).expect("a port");
        let second = b.port();
        crate::device::give_up_rights();
        let failed = b.rebind(first, Some(7));
        assert!(matches!(failed, Err(Error::Mark { mark: 7, .. })), "{failed:?}");
        assert_eq!(b.port(), second);
        drop(fd);
        assert!(b.has_old(), "it is still counted");
        b.held();
        assert!(!b.has_old());
    });
}

#[test]
fn buffers_are_what_the_host_grants() {
    in_namespace(|| {
        run("ip link set lo up");
        let (a, ..) = pair();
        crate::device::give_up_rights();
        let capped = HostSocket::open(0, None).expect("a socket");
        for (at_most, wanted) in [(a.buffers().0, SEND_BUFFER), (a.buffers().1, 2 * RECEIVE_BUFFER)]
        {
            assert_eq!(at_most.wanted, wanted as u64);
        }
        let most = |name: &str| -> u64 {
            let limit = std::fs::read_to_string(format!("/proc/sys/net/core/{name}"));
            2 * limit.ok().and_then(|limit| limit.trim().parse().ok()).unwrap_or(212_992)
        };
        let (send, receive) = capped.buffers();
        assert_eq!(send.granted, send.wanted.min(most("wmem_max")));
        assert_eq!(receive.granted, receive.wanted.min(most("rmem_max")));
    });
}

#[test]
fn a_host_without_receive_offload_is_taken_as_it_is() {
    // A socket of TCP does not know the option, as UDP of kernels before 5.0.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let unknown = setsockopt(&socket, UdpGroSegment, &true);
    assert!(unknown.is_err(), "{unknown:?}");
    set_options(&socket.into(), false).expect("the other options");
}

#[test]
fn another_way_out_is_tried_with_super_datagrams() {
    let (a, b, to) = pair();
    let parts: &[&[u8]] = &[b"one", b"two"];
    let batch = Batch { parts, segment: 3, to: to.into(), class: 0, may_be_cut: false };
    let send = || {
        a.is_plain.store(true, Ordering::Relaxed);
        assert_eq!(a.send(&mut batch.clone(), &mut 0), Ok(Sent::OneByOne));
    };
    send();
    a.way_has_changed();
    assert_eq!(a.send(&mut batch.clone(), &mut 0), Ok(Sent::Whole));
    send();
    a.rebind(0, None).expect("a port");
    assert_eq!(a.send(&mut batch.clone(), &mut 0), Ok(Sent::Whole));
    assert!(!take(&b).is_empty());
}

#[test]
fn any_error_of_icmp_is_taken_away_and_the_datagram_sent() {
    let calls_of = |size_is_own, results: &[nix::Result<()>]| {
        let mut count = 0;
        let result = past_pending(size_is_own, || {
            count += 1;
            results.get(count - 1).copied().unwrap_or(Err(Errno::EPROTO))
        });
        let (result, was_pending) = result;
        let first = results.first().copied().unwrap_or(result);
        assert_eq!(was_pending, result != first);
        (count, result)
    };
    let calls = |results: &[nix::Result<()>]| calls_of(false, results);
    let pending = [Errno::ENOPROTOOPT, Errno::EACCES, Errno::EHOSTDOWN, Errno::EPROTO];
    for pending in pending.into_iter().chain([Errno::EMSGSIZE]) {
        assert_eq!(calls(&[Err(pending), Ok(())]), (2, Ok(())));
    }
    let size = Err(Errno::EMSGSIZE);
    assert_eq!(calls_of(true, &[size, Ok(())]), (1, size), "it is not cut");
    let no_way = [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::EACCES, Errno::EAFNOSUPPORT];
    for own in no_way.into_iter().chain([Errno::EMSGSIZE, Errno::EPERM]).map(Err) {
        assert_eq!(calls(&[own, own, Ok(())]), (2, own), "twice is of the datagram");
    }
    assert_eq!(calls(&[Err(Errno::ECONNREFUSED), size, Ok(())]), (3, Ok(())));
    assert_eq!(calls(&[Err(Errno::ECONNREFUSED), Err(Errno::EACCES), Ok(())]), (3, Ok(())));
    for own in [Errno::EAGAIN, Errno::ENOBUFS, Errno::EINVAL, Errno::EIO] {
        assert_eq!(calls(&[Err(own), Ok(())]), (1, Err(own)));
    }
    assert_eq!(calls(&[]), (CALLS_MAX, Err(Errno::EPROTO)), "an end is found");
}
