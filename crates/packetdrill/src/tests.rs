//! The table of functions as packetdrill uses it, and two threads in virtual time.

use crate::ffi::{Interface, OwnNamespace, packetdrill_interface_init, sendfile};
use crate::flags::{Flags, LOCAL_V4};
use crate::host::{Host, HostError};
use crate::namespace::{Namespace, parse_qdisc};
use core::fmt::Display;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use neap_posix::abi::*;
use neap_posix::{Errno, PollFd, sockaddr};
use neap_stack::qdisc::config::QdiscConfig;
use neap_stack::wire::checksum;
use neap_tcp::time::Nanos;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::mpsc;
use std::{fs, thread};

/// Says that a test cannot run here; not by `eprintln!`, which the harness swallows.
fn skip(reason: &dyn Display) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
}

fn host_with(flags: &str) -> Result<Host, HostError> {
    Host::new(Flags::parse(flags).expect("flags"), Box::<OwnNamespace>::default())
}

fn host() -> Host {
    let host = host_with("").expect("default settings");
    host.learn(LOCAL_V4.parse().expect("an address"));
    host
}

#[test]
fn a_wait_ends_in_virtual_time_at_the_instant_it_was_for() {
    let host = host();
    let begin = host.look_at_clock();
    let fd = host.at_once(|posix, _| posix.socket(AF_INET, SOCK_DGRAM, 0)).expect("one");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut fds = [PollFd { fd, events: POLLIN as i16, revents: 0 }];
            let found = host.call(|posix, now, call| posix.poll(now, call, &mut fds, 60_000));
            (found, host.look_at_clock())
        });
        while !host.has_waiters() {
            thread::yield_now();
        }
        host.sleep(Nanos::from_secs(100));
        let (found, at) = waiter.join().expect("no panic");
        assert_eq!(found, Ok(0));
        let waited = at.since(begin);
        assert!(
            waited >= Nanos::from_secs(60) && waited < Nanos::from_millis(60_001),
            "{waited:?}"
        );
        assert!(host.look_at_clock().since(begin) >= Nanos::from_secs(100));
    });
}

#[test]
fn a_wait_sees_what_another_thread_did_before_time_goes_on() {
    let host = host();
    let address = sockaddr::encode("192.168.0.2:80".parse().expect("an address"));
    let tcp = || host.at_once(|posix, _| posix.socket(AF_INET, SOCK_STREAM, 0)).expect("one");
    let (listener, client) = (tcp(), tcp());
    host.at_once(|posix, now| posix.bind(now, listener, &address)).expect("own address");
    host.at_once(|posix, now| posix.listen(now, listener, 1)).expect("free");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let accepted = host.call(|posix, now, call| posix.accept(now, call, listener, 0));
            (accepted.is_ok(), host.look_at_clock())
        });
        while !host.has_waiters() {
            thread::yield_now();
        }
        host.sleep(Nanos::from_secs(5));
        let before = host.look_at_clock();
        host.call(|posix, now, call| posix.connect(now, call, client, &address)).expect("accepted");
        host.sleep(Nanos::from_secs(5));
        let (accepted, at) = waiter.join().expect("no panic");
        assert!(accepted);
        assert!(at.since(before) < Nanos::from_millis(1));
    });
}

#[test]
fn a_read_sleeps_until_the_low_water_mark_is_reached() {
    let host = host();
    let address = sockaddr::encode("192.168.0.2:80".parse().expect("an address"));
    let tcp = || host.at_once(|posix, _| posix.socket(AF_INET, SOCK_STREAM, 0)).expect("one");
    let (listener, client) = (tcp(), tcp());
    host.at_once(|posix, now| posix.bind(now, listener, &address)).expect("own address");
    host.at_once(|posix, now| posix.listen(now, listener, 1)).expect("free");
    host.call(|posix, now, call| posix.connect(now, call, client, &address)).expect("accepted");
    let accepted = host.call(|posix, now, call| posix.accept(now, call, listener, 0));
    let server = accepted.expect("a connection").fd;
    let mark = 1000i32.to_ne_bytes();
    host.at_once(|posix, now| posix.setsockopt(now, server, SOL_SOCKET, SO_RCVLOWAT, &mark))
        .expect("an option");
    let send = || {
        let sent = host.call(|posix, now, call| posix.send(now, call, client, &[0; 500], 0));
        assert_eq!(sent, Ok(500));
        host.sleep(Nanos::from_secs(1));
    };
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            host.call(|posix, now, call| posix.recv(now, call, server, &mut [0; 200], 0))
        });
        while !host.has_waiters() {
            thread::yield_now();
        }
        send();
        assert!(host.has_waiters());
        send();
        assert_eq!(reader.join().expect("no panic"), Ok(200));
    });
}

#[test]
fn a_sleep_lasts_until_a_call_that_returned_has_had_its_effect() {
    let host = host();
    let fd = host.at_once(|posix, _| posix.socket(AF_INET, SOCK_DGRAM, 0)).expect("one");
    let (effect, (end, is_over)) = (AtomicU64::new(0), mpsc::channel::<()>());
    let (host, effect) = (&host, &effect);
    thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let mut fds = [PollFd { fd, events: POLLIN as i16, revents: 0 }];
            let found = host.call(|posix, now, call| posix.poll(now, call, &mut fds, 1000));
            host.look_at_clock();
            for step in 0..10_000_000 {
                effect.store(step, Ordering::Relaxed);
            }
            effect.store(u64::MAX, Ordering::Release);
            let _ = is_over.recv();
            found
        });
        while !host.has_waiters() {
            thread::yield_now();
        }
        host.sleep(Nanos::from_millis(1005));
        assert_eq!(effect.load(Ordering::Acquire), u64::MAX);
        drop(end);
        assert_eq!(waiter.join().expect("no panic"), Ok(0));
    });
}

#[test]
fn who_lets_time_pass_cannot_wait_for_what_never_comes() {
    let host = host();
    let address = sockaddr::encode("192.168.0.2:80".parse().expect("an address"));
    let tcp = || host.at_once(|posix, _| posix.socket(AF_INET, SOCK_STREAM, 0)).expect("one");
    let (listener, client) = (tcp(), tcp());
    host.at_once(|posix, now| posix.bind(now, listener, &address)).expect("own address");
    host.at_once(|posix, now| posix.listen(now, listener, 1)).expect("free");
    let accept = || host.call(|posix, now, call| posix.accept(now, call, listener, 0));
    assert_eq!(accept().map(|accepted| accepted.fd), Err(Errno(libc::EDEADLK)));
    // What can come is waited for, and the time at which it came is told.
    let begin = host.look_at_clock();
    let nobody = sockaddr::encode("192.0.2.1:80".parse().expect("an address"));
    let connected = host.call(|posix, now, call| posix.connect(now, call, client, &nobody));
    assert_eq!(connected, Err(Errno::ETIMEDOUT));
    assert!(host.look_at_clock().since(begin) > Nanos::from_secs(60));
}

#[test]
fn nobody_drives_and_a_timeout_still_comes() {
    let host = host();
    let set = host.at_once(|posix, _| posix.epoll_create1(0)).expect("one");
    let found = host.call(|posix, now, call| posix.epoll_wait(now, call, set, 1, 5000));
    assert_eq!(found, Ok(vec![]));
}

#[test]
fn with_defaults_a_script_has_a_namespace_of_its_own_whose_settings_hold() {
    let namespace = || fs::read_link("/proc/thread-self/ns/net").expect("/proc is there");
    let outside = namespace();
    thread::scope(|scope| {
        scope.spawn(|| {
            let host = match host_with("defaults") {
                Ok(host) => host,
                Err(error) => return skip(&error),
            };
            assert_ne!(namespace(), outside);
            assert_eq!(OwnNamespace::default().mtu(), Some(1500));
            let set = |name: &str, value: &str| {
                fs::write(format!("/proc/sys/net/ipv4/{name}"), value).expect("a sysctl");
            };
            set("tcp_timestamps", "0");
            set("tcp_fin_timeout", "7");
            host.refresh_settings();
            assert_eq!(host.sysctl("net.ipv4.tcp_timestamps").as_deref(), Some("0"));
            assert_eq!(host.sysctl("net.ipv4.tcp_fin_timeout").as_deref(), Some("7"));
            assert_eq!(host.sysctl("net.ipv4.tcp_sack").as_deref(), Some("1"));
            let tc = Command::new("tc")
                .args("qdisc add dev tun0 root pfifo limit 7".split(' '))
                .status();
            match tc {
                Ok(status) if status.success() => {
                    host.look_at_clock();
                    host.sleep(Nanos::ZERO);
                    assert_eq!(host.qdisc(), Some(QdiscConfig::PfifoFast { limit: 7 }));
                }
                _ => skip(&"tc sets no qdisc here"),
            }
        });
    });
    assert_eq!(namespace(), outside);
}

#[test]
fn a_message_about_a_qdisc_that_is_cut_is_none() {
    let attribute = |kind: u16, value: &[u8]| {
        let mut bytes = [(value.len() as u16 + 4).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let mut message = vec![0; 36];
    message[4..6].copy_from_slice(&libc::RTM_NEWQDISC.to_ne_bytes());
    message.extend(attribute(1, b"pfifo\0"));
    message.extend(attribute(2, &9u32.to_ne_bytes()));
    let qdisc = parse_qdisc(&message).expect("whole");
    assert_eq!((qdisc.kind.as_str(), qdisc.limit), ("pfifo", Some(9)));
    for len in 0..message.len() {
        let parsed = parse_qdisc(&message[..len]);
        let is_part = parsed.is_none_or(|part| part.kind == "pfifo" && part.limit.is_none());
        assert!(is_part, "{len}");
    }
}

fn interface() -> Interface {
    let mut table = MaybeUninit::uninit();
    // SAFETY: a C string, and room for the table, which the call fills.
    unsafe {
        packetdrill_interface_init(c"local=10.1.1.1".as_ptr(), table.as_mut_ptr());
        table.assume_init()
    }
}

fn errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

#[test]
fn the_table_serves_own_descriptors_and_passes_others_on() {
    let table = interface();
    let user = table.userdata;
    let fd = (table.socket)(user, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert!(fd >= crate::host::FIRST_FD);
    assert_eq!((table.fcntl)(user, fd, F_GETFL, 0), O_RDWR | O_NONBLOCK);
    let to = sockaddr::encode("192.0.2.1:80".parse().expect("an address"));
    assert_eq!((table.connect)(user, fd, to.as_ptr().cast(), to.len() as u32), -1);
    assert_eq!(errno(), Errno::EINPROGRESS);

    let (mut packet, mut len, mut time) = ([0u8; 100], 100, 0);
    let buf = packet.as_mut_ptr().cast();
    assert_eq!((table.netdev_receive)(user, buf, &mut len, &mut time), 0);
    assert!(len >= 40 && time > 0);
    assert_eq!(
        (packet[0] >> 4, packet[9], &packet[12..20]),
        (4, 6, &[10, 1, 1, 1, 192, 0, 2, 1][..])
    );
    // Nobody answers: the next is the same SYN, a second later.
    let (first, mut second) = (time, 0);
    len = 100;
    assert_eq!((table.netdev_receive)(user, buf, &mut len, &mut second), 0);
    assert!((second - first - 1_000_000).abs() < 10_000, "{}", second - first);

    assert_eq!((table.read)(user, fd, ptr::null_mut(), 1), -1);
    assert_eq!(errno(), Errno::EFAULT);
    let mut ends = [0; 2];
    assert_eq!((table.pipe)(user, ends.as_mut_ptr()), 0);
    assert_eq!((table.write)(user, ends[1], b"through".as_ptr().cast(), 7), 7);
    let mut out = [0u8; 10];
    assert_eq!((table.read)(user, ends[0], out.as_mut_ptr().cast(), 10), 7);
    assert_eq!(&out[..7], b"through");
    for fd in [fd, ends[0], ends[1]] {
        assert_eq!((table.close)(user, fd), 0);
    }
    assert_eq!((table.close)(user, fd), -1);
    assert_eq!(errno(), Errno::EBADF);
    (table.free)(user);
}

/// An ICMP port unreachable of 192.0.2.254 about a packet of 10.1.1.1.
fn port_unreachable(quote: &[u8]) -> Vec<u8> {
    let mut message = [&[3, 3, 0, 0, 0, 0, 0, 0], quote].concat();
    let sum = checksum::of(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let len = 20 + message.len() as u8;
    let mut packet = vec![0x45, 0, 0, len, 0, 0, 0, 0, 64, 1, 0, 0, 192, 0, 2, 254, 10, 1, 1, 1];
    let sum = checksum::of(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(message);
    packet
}

#[test]
fn the_error_queue_fills_data_name_and_control_messages() {
    let table = interface();
    let user = table.userdata;
    let fd = (table.socket)(user, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    let to = sockaddr::encode("192.0.2.1:80".parse().expect("an address"));
    assert_eq!((table.connect)(user, fd, to.as_ptr().cast(), to.len() as u32), -1);
    let (mut packet, mut len, mut time) = ([0u8; 100], 100, 0);
    (table.netdev_receive)(user, packet.as_mut_ptr().cast(), &mut len, &mut time);
    let icmp = port_unreachable(&packet[..28]);
    assert_eq!((table.netdev_send)(user, icmp.as_ptr().cast(), icmp.len()), 0);

    let (mut data, mut name, mut control) = ([0u8; 20], [0u8; 28], [0u8; 100]);
    let mut part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    // SAFETY: all zeros are a message without anything.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_name, message.msg_namelen) = (name.as_mut_ptr().cast(), 28);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), 100);
    assert_eq!((table.recvmsg)(user, fd, &raw mut message, MSG_ERRQUEUE), 8);
    assert_eq!(data[..8], packet[20..28]);
    assert_eq!((message.msg_namelen, &name[..16]), (16, &to[..]));
    assert_eq!((message.msg_flags, message.msg_controllen), (MSG_ERRQUEUE, 48));
    assert_eq!(control[..8], 48u64.to_ne_bytes());
    assert_eq!(control[16..24], [111, 0, 0, 0, SO_EE_ORIGIN_ICMP, 3, 3, 0]);
    assert_eq!(control[36..40], [192, 0, 2, 254]);
    assert_eq!((table.recvmsg)(user, fd, &raw mut message, MSG_ERRQUEUE), -1);
    assert_eq!(errno(), Errno::EAGAIN);
    assert_eq!((table.close)(user, fd), 0);
    (table.free)(user);
}

#[test]
fn lengths_and_pointers_of_nonsense_are_refused() {
    let table = interface();
    let user = table.userdata;
    let fd = (table.socket)(user, AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    let failed = |result: isize, error: Errno| assert_eq!((result, errno()), (-1, error));
    let address = sockaddr::encode("10.1.1.1:7".parse().expect("an address"));
    let address = address.as_ptr().cast();
    for len in [3, 129, u32::MAX] {
        failed((table.bind)(user, fd, address, len) as isize, Errno::EINVAL);
        failed((table.connect)(user, fd, address, len) as isize, Errno::EINVAL);
    }
    failed((table.bind)(user, fd, ptr::null(), 16) as isize, Errno::EFAULT);

    let one = 1i32.to_ne_bytes();
    let option = |at: *const u8, len| {
        (table.setsockopt)(user, fd, SOL_SOCKET, SO_REUSEADDR, at.cast(), len) as isize
    };
    failed(option(one.as_ptr(), u32::MAX), Errno::EINVAL);
    failed(option(ptr::null(), 4), Errno::EFAULT);
    // No more is read of it than the option has.
    assert_eq!(option(one.as_ptr(), i32::MAX as u32), 0);
    let (mut out, mut len) = ([7u8; 8], i32::MAX as u32);
    let get = |at, len| (table.getsockopt)(user, fd, SOL_SOCKET, SO_REUSEADDR, at, len) as isize;
    assert_eq!(get(out.as_mut_ptr().cast(), &mut len), 0);
    assert_eq!((len, out), (4, [1, 0, 0, 0, 7, 7, 7, 7]));
    failed(get(ptr::null_mut(), &mut len), Errno::EFAULT);
    let (mut data, mut len) = ([0u8; 8], u32::MAX);
    let (at, size) = (data.as_mut_ptr().cast(), data.len());
    let name = out.as_mut_ptr().cast();
    failed((table.recvfrom)(user, fd, at, size, 0, name, &mut len), Errno::EINVAL);
    failed((table.accept)(user, fd, name, &mut len) as isize, Errno::EINVAL);
    // SAFETY: all zeros are a message without anything.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_name, message.msg_namelen) = (name.cast(), u32::MAX);
    failed((table.recvmsg)(user, fd, &raw mut message, 0), Errno::EINVAL);

    let null = |len| libc::iovec { iov_base: ptr::null_mut(), iov_len: len };
    let parts = vec![null(0); 1025];
    for call in [table.readv, table.writev] {
        failed(call(user, fd, parts.as_ptr(), -1), Errno::EINVAL);
        failed(call(user, fd, parts.as_ptr(), 1025), Errno::EINVAL);
        failed(call(user, fd, ptr::null(), 1), Errno::EFAULT);
        failed(call(user, fd, &null(10), 1), Errno::EFAULT);
        failed(call(user, fd, &null(usize::MAX), 1), Errno::EINVAL);
    }
    let mut list = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
    failed((table.poll)(user, list.as_mut_ptr(), u64::MAX, 0) as isize, Errno::EINVAL);
    failed((table.poll)(user, ptr::null_mut(), 1, 0) as isize, Errno::EFAULT);
    (table.free)(user);
}

#[test]
fn a_file_is_sent_from_its_offset_or_its_position() {
    let table = interface();
    let user = table.userdata;
    let mut ends = [0; 2];
    assert_eq!((table.pipe)(user, ends.as_mut_ptr()), 0);
    let file = fs::File::open("Cargo.toml").expect("the manifest of this crate");
    let text = fs::read("Cargo.toml").expect("the same");
    let fd = file.as_raw_fd();
    let mut at = 1;
    assert_eq!(sendfile(user, ends[1], fd, &mut at, 4), 4);
    assert_eq!(at, 5);
    assert_eq!(sendfile(user, ends[1], fd, ptr::null_mut(), 3), 3);
    assert_eq!(sendfile(user, ends[1], fd, ptr::null_mut(), 3), 3);
    let mut out = [0u8; 20];
    assert_eq!((table.read)(user, ends[0], out.as_mut_ptr().cast(), 20), 10);
    assert_eq!(out[..10], [&text[1..5], &text[..6]].concat());
    at = -1;
    assert_eq!((sendfile(user, ends[1], fd, &mut at, 4), errno()), (-1, Errno::EINVAL));
    for fd in ends {
        assert_eq!((table.close)(user, fd), 0);
    }
    (table.free)(user);
}

#[test]
fn a_poll_sees_descriptors_of_both() {
    let table = interface();
    let user = table.userdata;
    let fd = (table.socket)(user, AF_INET, SOCK_DGRAM, 0);
    let mut ends = [0; 2];
    assert_eq!((table.pipe)(user, ends.as_mut_ptr()), 0);
    let (input, output) = (libc::POLLIN, libc::POLLOUT);
    let poll = |wants: [(i32, i16); 4], timeout| {
        let mut list = wants.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 });
        let found = (table.poll)(user, list.as_mut_ptr(), 4, timeout);
        (found, list.map(|one| one.revents))
    };
    let nothing = -1;
    let lists = [(fd, input), (ends[0], input), (ends[1], output), (nothing, input)];
    assert_eq!(poll(lists, 5000), (1, [0, 0, output, 0]));
    let lists = [(fd, output), (ends[0], input), (ends[1], output), (nothing, input)];
    assert_eq!(poll(lists, -1), (2, [output, 0, output, 0]));
    // Waiting in virtual time for what the socket does not have ends at once.
    let lists = [(fd, input), (ends[0], input), (nothing, input), (nothing, output)];
    assert_eq!(poll(lists, 60_000), (0, [0; 4]));
    for fd in [fd, ends[0], ends[1]] {
        assert_eq!((table.close)(user, fd), 0);
    }
    (table.free)(user);
}
