//! TUN devices against the kernel, each in a network namespace of its own.

use crate::common::{
    PATIENCE, Tcp, chunks, frame, in_namespace, ipv4, pattern, pseudo_header, receive, run,
    run_again, sum,
};
use neap_device::{Error, LinkConfig, Scheduling, Tun, TunConfig, TunQueue, configure_link};
use neap_stack::device::{
    Completed, Completion, Device, Medium, QueuePair, RxChecksum, RxQueue, TxQueue,
};
use neap_stack::frame::{Frame, PartialChecksum};
use neap_tcp::segment::Payload;
use neap_tcp::time::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 2);

fn open(config: &TunConfig) -> Device {
    let tun = Tun::open(config).expect("a TUN device");
    let link = LinkConfig { addresses: vec![(IpAddr::V4(KERNEL), 24)], ..LinkConfig::default() };
    configure_link(tun.name(), &link).expect("an address");
    tun.into_device()
}

/// A TUN device whose packets all come to one queue.
fn plain() -> TunConfig {
    TunConfig { bulk_queue: false, ..TunConfig::default() }
}

fn only_queue(mut device: Device) -> QueuePair {
    assert_eq!(device.queues.len(), 1);
    device.queues.remove(0)
}

fn send(tx: &mut dyn TxQueue, frame: Frame) {
    tx.submit(frame, Instant::ZERO).expect("a TUN device is never full");
    tx.flush(Instant::ZERO);
    assert_eq!(tx.errors(), 0);
}

#[test]
fn a_datagram_of_the_kernel_arrives() {
    in_namespace(|| {
        let mut queue = only_queue(open(&plain()));
        let socket = UdpSocket::bind((KERNEL, 0)).expect("bind");
        for text in ["first", "second"] {
            socket.send_to(text.as_bytes(), (OURS, 7)).expect("send");
            let packet = receive(&mut *queue.rx, |p| p.data[0] == 0x45 && p.data[9] == 17);
            assert_eq!(&packet.data[28..], text.as_bytes());
            assert_eq!(packet.gso_size, 0);
            let place = PartialChecksum { start: 20, offset: 6 };
            assert_eq!(packet.checksum, RxChecksum::Partial(place));
        }
        assert_eq!(queue.rx.drops(), 0);
    });
}

#[test]
fn datagrams_beyond_the_queue_of_the_device_are_counted() {
    const SENT: u64 = 3000;
    in_namespace(|| {
        // No packet but the datagrams is sent to the device.
        let no_v6 = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        no_v6.expect("a setting of the namespace");
        let Device { queues, monitor, .. } =
            open(&TunConfig { queue_packets: Some(500), ..plain() });
        let (mut queues, mut monitor) = (queues, monitor.expect("a monitor"));
        let socket = UdpSocket::bind((KERNEL, 0)).expect("bind");
        let overflow = || {
            for _ in 0..SENT {
                socket.send_to(b"lost", (OURS, 7)).expect("send");
            }
        };
        for round in 1..=2 {
            overflow();
            let all = core::iter::from_fn(|| queues[0].rx.receive(Instant::ZERO));
            let got = all.filter(|packet| packet.data[9] == 17).count() as u64;
            assert!(got < SENT, "{got} fit");
            assert_eq!(monitor.lost_before_queues(), round * (SENT - got));
        }
    });
}

#[test]
fn lost_datagrams_are_told_in_other_namespaces_and_after_the_end_of_the_interface() {
    in_namespace(|| {
        // No packet but the datagrams is sent to the device.
        let no_v6 = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        no_v6.expect("a setting of the namespace");
        let config = TunConfig { name: Some("lost0".into()), queue_packets: Some(500), ..plain() };
        let device = open(&config);
        let mut monitor = device.monitor.expect("a monitor");
        let socket = UdpSocket::bind((KERNEL, 0)).expect("bind");
        for _ in 0..3000 {
            socket.send_to(b"lost", (OURS, 7)).expect("send");
        }
        let lost = std::thread::scope(|scope| {
            let elsewhere = scope.spawn(|| {
                // SAFETY: a network namespace is the thread's own affair.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
                monitor.lost_before_queues()
            });
            elsewhere.join().expect("no panic")
        });
        assert!(lost > 0);
        assert_eq!(lost, queue("lost0").1);
        run("ip link del lost0");
        assert_eq!(monitor.lost_before_queues(), lost);
    });
}

#[test]
fn without_offload_a_device_that_had_it_before_hands_out_finished_packets() {
    in_namespace(|| {
        let config = TunConfig { name: Some("plain0".into()), persistent: true, ..plain() };
        drop(Tun::open(&config).expect("a device"));
        let mut rx = only_queue(open(&TunConfig { offload: false, ..config })).rx;
        let socket = UdpSocket::bind((KERNEL, 0)).expect("bind");
        await_packets(&socket, &mut *rx);
        socket.send_to(b"whole", (OURS, 7)).expect("send");
        let packet = receive(&mut *rx, |p| p.data.ends_with(b"whole"));
        let udp = &packet.data[20..];
        assert_eq!(sum(pseudo_header(17, KERNEL, OURS, udp.len()), udp), 0xffff);
    });
}

#[test]
fn the_kernel_answers_an_echo() {
    in_namespace(|| {
        for offload in [true, false] {
            let config = TunConfig { offload, name: Some("echo0".into()), ..plain() };
            let mut queue = only_queue(open(&config));
            let mut echo = [8, 0, 0, 0, 1, 2, 3, 4];
            let checksum = !(sum(sum(0, &echo), b"hi") as u16);
            echo[2..4].copy_from_slice(&checksum.to_be_bytes());
            let headers = [&ipv4(1, OURS, KERNEL, 10)[..], &echo].concat();
            let request = frame(&headers, Payload::from(bytes::Bytes::from_static(b"hi")));
            let len = request.len() as u64;
            send(&mut *queue.tx, request);
            assert_eq!(queue.tx.reap(Instant::ZERO), Completed { frames: 1, bytes: len });
            assert_eq!(queue.tx.reap(Instant::ZERO), Completed::default());
            let reply = receive(&mut *queue.rx, |p| p.data[0] == 0x45 && p.data[9] == 1);
            assert_eq!(reply.data[20], 0, "echo reply");
            assert_eq!(&reply.data[24..], [1, 2, 3, 4, b'h', b'i']);
        }
    });
}

#[test]
fn the_kernel_answers_an_echo_over_ipv6() {
    in_namespace(|| {
        let kernel: Ipv6Addr = "fd00:201::1".parse().expect("an address");
        let ours: Ipv6Addr = "fd00:201::2".parse().expect("an address");
        let tun = Tun::open(&plain()).expect("a TUN device");
        let addresses = vec![(IpAddr::V6(kernel), 64)];
        let link = LinkConfig { addresses, mtu: Some(9000), up: true };
        configure_link(tun.name(), &link).expect("an address");
        configure_link(tun.name(), &link).expect("twice is no error");
        let device = tun.into_device();
        assert_eq!(device.capabilities.mtu, 9000);
        let mut queue = only_queue(device);
        let mut echo = [128, 0, 0, 0, 0, 1, 0, 2];
        let addresses = sum(sum(0, &ours.octets()), &kernel.octets());
        let checksum = !(sum(sum(addresses, &[0, 8, 0, 58]), &echo) as u16);
        echo[2..4].copy_from_slice(&checksum.to_be_bytes());
        let ip = [0x60, 0, 0, 0, 0, 8, 58, 64];
        let headers = [&ip[..], &ours.octets(), &kernel.octets(), &echo].concat();
        send(&mut *queue.tx, frame(&headers, Payload::new()));
        let reply = receive(&mut *queue.rx, |p| p.data[0] >> 4 == 6 && p.data[40] == 129);
        assert_eq!(&reply.data[44..], [0, 1, 0, 2]);
    });
}

#[test]
fn super_frames_pass_both_ways_and_every_byte_arrives() {
    in_namespace(|| {
        let mut queue = only_queue(open(&plain()));
        let listener = TcpListener::bind((KERNEL, 5000)).expect("bind");
        let mut ours = Tcp { from: (OURS, 4000), to: (KERNEL, 5000), seq: 99, ack: 0, flags: 2 };
        let mss_and_scale = [2, 4, 0x05, 0xb4, 1, 3, 3, 7];
        send(&mut *queue.tx, ours.frame(&mss_and_scale, Payload::new(), 1460));
        let is_tcp = |p: &neap_stack::device::Received| p.data[0] == 0x45 && p.data[9] == 6;
        let syn_ack = receive(&mut *queue.rx, is_tcp);
        let seq = u32::from_be_bytes(*syn_ack.data[24..].first_chunk().expect("four bytes"));
        (ours.seq, ours.ack, ours.flags) = (100, seq.wrapping_add(1), 0x10);
        send(&mut *queue.tx, ours.frame(&[], Payload::new(), 1460));
        let (mut peer, _) = listener.accept().expect("accept");

        let sent = pattern(40_000);
        send(&mut *queue.tx, ours.frame(&[], chunks(&sent, 15_000), 1460));
        let mut got = vec![0; sent.len()];
        peer.read_exact(&mut got).expect("all bytes");
        assert_eq!(got, sent);

        // The kernel's initial window is ten segments: they come as few packets.
        peer.write_all(&pattern(14_600)).expect("write");
        let packet = receive(&mut *queue.rx, |p| is_tcp(p) && p.data.len() > 1500);
        assert_eq!(packet.gso_size, 1460);
        let place = PartialChecksum { start: 20, offset: 16 };
        assert_eq!(packet.checksum, RxChecksum::Partial(place));
        let data = &packet.data[40..];
        assert_eq!(data, &pattern(14_600)[..data.len()]);
    });
}

#[test]
fn a_payload_in_thousands_of_pieces_goes_out_whole() {
    in_namespace(|| {
        let mut queue = only_queue(open(&plain()));
        let socket = UdpSocket::bind((KERNEL, 5000)).expect("bind");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        for pieces in [1000, 1020, 1021, 1022, 1023, 1024, 1400] {
            let sent = pattern(pieces);
            let len = 8 + sent.len();
            let mut udp = vec![0x0f, 0xa0, 0x13, 0x88, 0, 0, 0, 0];
            udp[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            let headers = [&ipv4(17, OURS, KERNEL, len)[..], &udp].concat();
            send(&mut *queue.tx, frame(&headers, chunks(&sent, 1)));
            let mut got = [0; 2000];
            let len = socket.recv(&mut got).expect("a datagram");
            assert_eq!(got[..len], sent);
        }
    });
}

#[test]
fn what_cannot_be_sent_is_counted() {
    in_namespace(|| {
        let mut queue = only_queue(Tun::open(&plain()).expect("a device").into_device());
        let packet = || frame(&ipv4(1, OURS, KERNEL, 0), Payload::new());
        queue.tx.submit(packet(), Instant::ZERO).expect("taken, for the interface is down");
        assert_eq!(queue.tx.errors(), 1);
        let mut contradiction = packet();
        contradiction.gso =
            Some(neap_stack::frame::Gso { size: 1, kind: neap_stack::frame::GsoKind::Tcp4 });
        queue.tx.submit(contradiction, Instant::ZERO).expect("taken");
        assert_eq!((queue.tx.errors(), queue.tx.reap(Instant::ZERO).frames), (2, 2));
    });
}

#[test]
fn capabilities_follow_the_configuration() {
    in_namespace(|| {
        let device = open(&TunConfig::default());
        assert_eq!(device.name, "neap0");
        assert_eq!((device.capabilities.mtu, device.capabilities.gso_max_size), (1500, 65_535));
        // From Linux 6.2 on.
        assert!(device.capabilities.gso_udp);
        assert_eq!(device.capabilities.completion, Completion::OnSubmit);
        let plain =
            Tun::open(&TunConfig { offload: false, ..plain() }).expect("a device").into_device();
        assert_eq!(plain.name, "neap1");
        assert_eq!((plain.capabilities.gso_max_size, plain.capabilities.checksum_tx), (0, false));
        assert!(!plain.capabilities.gso_udp);
        let several = TunConfig { queues: 3, gso_max_size: 16_000, ..TunConfig::default() };
        let several = Tun::open(&several).expect("three queues").into_device();
        assert_eq!((several.queues.len(), several.capabilities.gso_max_size), (3, 16_000));
        let tap = TunConfig { tap: true, ..TunConfig::default() };
        let tap = Tun::open(&tap).expect("a TAP device").into_device();
        assert!(matches!(tap.capabilities.medium, Medium::Ethernet(_)));
    });
}

#[test]
fn errors_say_what_is_wrong() {
    in_namespace(|| {
        let named = |name: &str| TunConfig { name: Some(name.into()), ..TunConfig::default() };
        let single = Tun::open(&TunConfig { bulk_queue: false, ..named("twice") });
        assert!(matches!(Tun::open(&named("twice")), Err(Error::Busy { .. })));
        drop(single);
        let first = Tun::open(&named("twice")).expect("a device");
        assert!(matches!(Tun::open(&named("twice")), Err(Error::Busy { name }) if name == "twice"));
        assert!(matches!(Tun::open(&named("lo")), Err(Error::OtherKind { .. })));
        assert!(matches!(Tun::open(&named("much-too-long-name")), Err(Error::BadName { .. })));
        let none = TunConfig { queues: 0, ..TunConfig::default() };
        assert!(matches!(Tun::open(&none), Err(Error::OutOfRange { option: "queues", .. })));
        let bad = LinkConfig { addresses: vec![(IpAddr::V4(KERNEL), 33)], ..LinkConfig::default() };
        assert!(matches!(configure_link("twice", &bad), Err(Error::OutOfRange { .. })));
        let absent = configure_link("absent", &LinkConfig::default());
        assert!(matches!(absent, Err(Error::NoInterface { .. })));
        drop(first);
        open_when_free(&named("twice")).expect("the name is free again");
    });
}

/// Opens a device that was just closed. A process that another test starts holds its descriptor
/// too, until it executes its program.
fn open_when_free(config: &TunConfig) -> Result<Tun, Error> {
    let start = std::time::Instant::now();
    loop {
        match Tun::open(config) {
            Err(Error::Busy { .. }) if start.elapsed() < PATIENCE => std::thread::yield_now(),
            opened => return opened,
        }
    }
}

#[test]
fn a_persistent_device_stays() {
    in_namespace(|| {
        let config =
            TunConfig { name: Some("stays0".into()), persistent: true, ..TunConfig::default() };
        drop(Tun::open(&config).expect("a device"));
        run("ip link show stays0");
        open_when_free(&TunConfig { persistent: false, ..config }).expect("joined");
    });
}

/// The test that runs again in a process of its own.
const FEW_DESCRIPTORS: &str = "tun::a_persistent_device_that_could_not_be_opened_does_not_stay";

#[test]
fn a_persistent_device_that_could_not_be_opened_does_not_stay() {
    const CHILD: &str = "NEAP_TEST_FEW_DESCRIPTORS";
    // The limit holds for a process.
    if std::env::var_os(CHILD).is_none() {
        return run_again(FEW_DESCRIPTORS, CHILD);
    }
    in_namespace(|| {
        let config =
            TunConfig { name: Some("few0".into()), persistent: true, ..TunConfig::default() };
        let usual = getrlimit(Resource::Nofile);
        let next = File::open("/dev/null").expect("Linux has it").as_raw_fd() as u64;
        let failed = (0..64).take_while(|spare| {
            let few = Rlimit { current: Some(next + spare), ..usual };
            setrlimit(Resource::Nofile, few).expect("fewer");
            let opened = Tun::open(&config);
            setrlimit(Resource::Nofile, usual).expect("as before");
            let shown = Command::new("ip").args(["link", "show", "few0"]).output();
            let is_there = shown.expect("ip runs").status.success();
            assert_eq!(is_there, opened.is_ok(), "{spare} more descriptors");
            opened.is_err()
        });
        assert!((3..64).contains(&failed.count()), "each step needs one");
    });
}

/// `./test` counts what it reads.
#[test]
fn a_test_that_runs_again_says_why_it_skips() {
    let mut test = Command::new(std::env::current_exe().expect("this program"));
    // Without the program ip there is no test.
    let output = test.args([FEW_DESCRIPTORS, "--exact"]).env("PATH", "/nowhere").output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("SKIP: "), "{said}");
}

#[test]
fn a_persistent_device_that_gets_no_thread_is_made_once() {
    in_namespace(|| {
        with_capabilities(1 << CAP_NET_ADMIN, || {
            let config = TunConfig { persistent: true, ..TunConfig::default() };
            let tun = Tun::open(&config).expect("a device");
            assert_eq!(tun.name(), "neap0");
            assert_eq!(napi_thread("neap0"), None);
        });
        run("ip link show neap0");
        let second = Command::new("ip").args(["link", "show", "neap1"]).output();
        assert!(!second.expect("ip runs").status.success());
    });
}

#[test]
fn a_descriptor_with_packet_information_is_refused() {
    in_namespace(|| {
        let file = File::options().read(true).write(true).open("/dev/net/tun").expect("TUN");
        // SAFETY: all members of the struct are plain numbers, for which zeros are good.
        let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
        request.ifr_ifru.ifru_flags = libc::IFF_TUN as libc::c_short;
        // SAFETY: the request reads and writes one `ifreq`, which outlives the call.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        let error = Tun::from_fd(file.into(), None).expect_err("four bytes in front");
        let text = error.to_string();
        assert!(
            text.contains("packet information in front") && text.contains("IFF_NO_PI"),
            "{text}"
        );
    });
}

/// The length of a queue towards a device, and the packets that found it full.
fn queue(name: &str) -> (u32, u64) {
    let output = Command::new("ip").args(["-s", "link", "show", "dev", name]).output();
    let text = String::from_utf8(output.expect("ip").stdout).expect("text");
    let (_, after) = text.split_once(" qlen ").expect("a length");
    let len = after.split_whitespace().next().expect("a length").parse().expect("a number");
    // bytes, packets, errors, dropped
    let (_, sent) = text.split_once("TX:").expect("what was sent");
    let counts = sent.lines().nth(1).expect("counts").split_whitespace();
    (len, counts.map(|count| count.parse().expect("a number")).nth(3).expect("drops"))
}

/// Waits until datagrams of a socket arrive, and leaves none in the queue. A device that was joined
/// passes none until the kernel has taken notice, and a queue that was closed gets some as long as
/// a process that another test starts holds its descriptor.
fn await_packets(socket: &UdpSocket, rx: &mut dyn RxQueue) {
    let mut arrives = || {
        socket.send_to(b"first", (OURS, 7)).expect("send");
        core::iter::from_fn(|| rx.receive(Instant::ZERO)).any(|p| p.data.ends_with(b"first"))
    };
    let start = std::time::Instant::now();
    while !arrives() {
        assert!(start.elapsed() < PATIENCE, "no packet arrives");
        std::thread::yield_now();
    }
    socket.send_to(b"last", (OURS, 7)).expect("send");
    receive(rx, |p| p.data.ends_with(b"last"));
}

#[test]
fn a_burst_waits_in_the_kernel_until_it_is_read() {
    in_namespace(|| {
        const BURST: u32 = 3000;
        let cases = [(TunConfig::default().queue_packets, 4096, false), (None, 500, true)];
        for (queue_packets, len, has_drops) in cases {
            let name = format!("burst{len}");
            let config =
                TunConfig { name: Some(name.clone()), queue_packets, ..TunConfig::default() };
            let mut rx = only_queue(open(&config)).rx;
            let socket = UdpSocket::bind((KERNEL, 0)).expect("bind");
            await_packets(&socket, &mut *rx);
            for number in 0..BURST {
                socket.send_to(&number.to_be_bytes(), (OURS, 7)).expect("send");
            }
            let (got_len, drops) = queue(&name);
            assert_eq!((got_len, drops > 0), (len, has_drops), "{drops} drops");
            let mut next = 0;
            while next < BURST - u32::try_from(drops).expect("at most all") {
                let packet = receive(&mut *rx, |p| p.data[0] == 0x45 && p.data[9] == 17);
                assert_eq!(packet.data[28..], next.to_be_bytes(), "in order");
                next += 1;
            }
        }
    });
}

#[test]
fn a_longer_queue_stays_and_a_length_out_of_range_is_refused() {
    in_namespace(|| {
        run("ip tuntap add dev long0 mode tun vnet_hdr");
        run("ip link set dev long0 txqueuelen 9000");
        let of = |queue_packets| TunConfig {
            name: Some("long0".into()),
            queue_packets,
            ..TunConfig::default()
        };
        for packets in [None, Some(1), Some(4096), Some(9000)] {
            Tun::open(&of(packets)).expect("joined");
            assert_eq!(queue("long0").0, 9000);
        }
        Tun::open(&of(Some(9001))).expect("joined");
        assert_eq!(queue("long0").0, 9001);
        for packets in [0, 65_537] {
            let error = Tun::open(&of(Some(packets))).expect_err("out of range").to_string();
            assert_eq!(error, format!("queue_packets is {packets}, it must be 1 to 65536"));
        }
    });
}

#[test]
fn without_the_right_the_queue_keeps_its_length() {
    in_namespace(|| {
        run("ip tuntap add dev user0 mode tun vnet_hdr");
        let before = queue("user0").0;
        without_capabilities(|| {
            let config = TunConfig { name: Some("user0".into()), ..TunConfig::default() };
            Tun::open(&config).expect("a device without an owner is everybody's");
        });
        assert_eq!(queue("user0").0, before);
    });
}

/// The number of the right to set up interfaces.
const CAP_NET_ADMIN: u32 = 12;

/// Runs `test` in a thread without any capability, whose user may open `/dev/net/tun`.
fn without_capabilities(test: impl FnOnce() + Send) {
    with_capabilities(0, test);
}

/// Runs `test` in a thread with the capabilities of these bits alone.
fn with_capabilities(bits: u32, test: impl FnOnce() + Send) {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // `_LINUX_CAPABILITY_VERSION_3`, which has two sets of three words.
            let header = Header { version: 0x2008_0522, pid: 0 };
            // Effective, permitted and inheritable, of the lower numbers and of the upper.
            let sets = [bits, bits, 0, 0, 0, 0];
            // SAFETY: the kernel reads the two structures, which outlive the call.
            let result =
                unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const sets) };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
            test();
        });
        thread.join().expect("no panic");
    });
}

#[test]
fn a_flow_arrives_at_the_queue_that_its_last_frame_asked_for() {
    in_namespace(|| {
        let mut queue = only_queue(open(&TunConfig::default()));
        let mut bulk = queue.bulk.take().expect("a bulk queue").rx;
        let socket = UdpSocket::bind((KERNEL, 5000)).expect("bind");
        socket.connect((OURS, 4000)).expect("connect");
        let udp = [15, 160, 19, 136, 0, 8, 0, 0];
        for is_bulk in [true, false, true, false] {
            let headers = [&ipv4(17, OURS, KERNEL, udp.len())[..], &udp].concat();
            send(&mut *queue.tx, Frame { is_bulk, ..frame(&headers, Payload::new()) });
            socket.send(b"!").expect("sent");
            let (wanted, other) =
                if is_bulk { (&mut bulk, &mut queue.rx) } else { (&mut queue.rx, &mut bulk) };
            let is_udp = |p: &neap_stack::device::Received| p.data[9] == 17;
            assert!(receive(&mut **wanted, is_udp).data.ends_with(b"!"));
            assert!(!core::iter::from_fn(|| other.receive(Instant::ZERO)).any(|p| is_udp(&p)));
        }
    });
}

#[test]
fn a_device_that_was_made_for_one_queue_is_joined_without_a_bulk_queue() {
    in_namespace(|| {
        let mut config = TunConfig { name: Some("one0".into()), persistent: true, ..plain() };
        drop(Tun::open(&config).expect("a device"));
        config.bulk_queue = true;
        let queue = only_queue(Tun::open(&config).expect("joined").into_device());
        assert!(queue.bulk.is_none());
    });
}

/// The process ID of the kernel's thread for the NAPI instance of an interface.
fn napi_thread(interface: &str) -> Option<i32> {
    let name = format!("napi/{interface}-");
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    let is_it = |pid: &i32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        comm.is_ok_and(|comm| comm.starts_with(&name))
    };
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_it)
}

/// Datagrams that the kernel has received, and those that it had no socket for.
fn datagrams() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let mut lines = text.lines().filter(|line| line.starts_with("Udp: "));
    let names = lines.next().expect("names").split_whitespace();
    let values = lines.next().expect("values").split_whitespace();
    let is_wanted = |(name, _): &(&str, &str)| ["InDatagrams", "NoPorts"].contains(name);
    let wanted = names.zip(values).filter(is_wanted);
    wanted.map(|(_, value)| value.parse::<u64>().expect("a number")).sum()
}

/// A datagram of 1,200 bytes to a port of the kernel at which nobody listens.
fn datagram(is_bulk: bool) -> Frame {
    let payload = chunks(&pattern(1200), 1200);
    let udp = [15, 160, 19, 136, 4, 184, 0, 0];
    let headers = [&ipv4(17, OURS, KERNEL, udp.len() + 1200)[..], &udp].concat();
    Frame { is_bulk, ..frame(&headers, payload) }
}

/// Keeps the kernel's thread of an interface from the processor that this thread has, until this
/// thread sleeps.
fn keep_from_running(interface: &str) {
    let thread = napi_thread(interface).expect("a thread of the kernel");
    run_on_first_processor(Pid::from_raw(thread));
    run_on_first_processor(None);
    Scheduling::Fifo(1).apply().expect("the right");
}

/// Keeps a thread on one processor; `None` is this thread.
fn run_on_first_processor(thread: Option<Pid>) {
    let mut set = CpuSet::new();
    set.set(0);
    sched_setaffinity(thread, &set).expect("the right");
}

#[test]
fn frames_of_bulk_flows_wait_for_the_thread_of_the_kernel_and_others_do_not() {
    const BULK: u64 = 1000;
    in_namespace(|| {
        let device = open(&TunConfig { name: Some("held0".into()), ..TunConfig::default() });
        assert!(napi_thread("held0").is_some());
        let mut queue = only_queue(device);
        keep_from_running("held0");
        let len = datagram(true).len() as u64;
        for _ in 0..BULK {
            send(&mut *queue.tx, datagram(true));
        }
        let taken = queue.tx.reap(Instant::ZERO);
        assert!((100..BULK / 2).contains(&taken.frames.into()), "the kernel has {taken:?}");
        assert_eq!(taken.bytes, u64::from(taken.frames) * len);
        assert_eq!(datagrams(), 0, "the thread has not run");
        send(&mut *queue.tx, datagram(false));
        assert_eq!(datagrams(), 1, "a frame of another flow was taken within its call");
        assert_eq!(queue.tx.reap(Instant::ZERO), Completed { frames: 1, bytes: len });
        let bulk = queue.bulk.take().expect("a bulk queue");
        assert!(bulk.is_bounded);
        let descriptor = bulk.descriptor.expect("a descriptor");
        let mut completed = u64::from(taken.frames);
        while completed < BULK {
            let mut polled = [PollFd::new(&descriptor, PollFlags::OUT)];
            let patience = PATIENCE.try_into().expect("a short time");
            // A busy kernel interrupts the call without a signal.
            let mut wait = || rustix::event::poll(&mut polled, Some(&patience));
            assert_eq!(rustix::io::retry_on_intr(&mut wait), Ok(1), "room");
            completed += u64::from(queue.tx.reap(Instant::ZERO).frames);
        }
        assert_eq!(completed, BULK);
    });
}

#[test]
fn an_edge_tells_of_room_in_a_bulk_queue_that_nobody_has_asked_since_it_was_full() {
    const BULK: u64 = 1000;
    in_namespace(|| {
        let device = open(&TunConfig { name: Some("edge0".into()), ..TunConfig::default() });
        let mut queue = only_queue(device);
        let bulk = queue.bulk.take().expect("a bulk queue");
        // Nothing but room is told: each event would make the kernel look for room as well.
        let edges = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let (data, flags) =
            (epoll::EventData::new_u64(0), epoll::EventFlags::OUT | epoll::EventFlags::ET);
        epoll::add(&edges, bulk.descriptor.expect("a descriptor"), data, flags).expect("added");
        let wait = |timeout: Timespec| {
            let mut events = Vec::with_capacity(1);
            // A busy kernel interrupts the call without a signal.
            let wait = || {
                let room = rustix::buffer::spare_capacity(&mut events);
                epoll::wait(&edges, room, Some(&timeout))
            };
            rustix::io::retry_on_intr(wait).expect("epoll") > 0
        };
        let at_once = Timespec::default();
        while wait(at_once) {}
        keep_from_running("edge0");
        for _ in 0..BULK {
            send(&mut *queue.tx, datagram(true));
        }
        let mut completed = u64::from(queue.tx.reap(Instant::ZERO).frames);
        assert!(completed < BULK / 2, "the kernel has {completed}");
        while completed < BULK {
            let patience = PATIENCE.try_into().expect("a short time");
            assert!(wait(patience), "an edge");
            completed += u64::from(queue.tx.reap(Instant::ZERO).frames);
        }
        assert_eq!(completed, BULK);
    });
}

#[test]
fn a_device_that_others_hold_takes_bulk_frames_after_a_stack_has_ended() {
    const BULK: u64 = 100;
    in_namespace(|| {
        for is_up in [true, false] {
            let name = format!("again{}", u8::from(is_up));
            let tun = Tun::open(&TunConfig { name: Some(name.clone()), ..TunConfig::default() });
            let tun = tun.expect("a TUN device");
            let addresses = vec![(IpAddr::V4(KERNEL), 24)];
            let link = LinkConfig { addresses, ..LinkConfig::default() };
            let queues = tun.into_queues();
            let copy = |queue: &TunQueue| TunQueue {
                main: queue.main.try_clone().expect("a descriptor"),
                bulk: queue.bulk.as_ref().map(|fd| fd.try_clone().expect("a descriptor")),
                has_bulk_thread: queue.has_bulk_thread,
            };
            let copies = queues.iter().map(copy).collect();
            configure_link(&name, &link).expect("an address");
            let device = Tun::from_queues(queues, None).expect("the device").into_device();
            if !is_up {
                run(&format!("ip link set {name} down"));
            }
            drop(device);
            configure_link(&name, &link).expect("up");
            let device = Tun::from_queues(copies, None).expect("the device").into_device();
            let mut queue = only_queue(device);
            keep_from_running(&name);
            for _ in 0..BULK {
                send(&mut *queue.tx, datagram(true));
            }
            let taken = queue.tx.reap(Instant::ZERO).frames;
            assert_eq!(u64::from(taken), BULK, "some are held");
            for _ in 0..10 * BULK {
                send(&mut *queue.tx, datagram(true));
            }
            let taken = queue.tx.reap(Instant::ZERO).frames;
            assert!(u64::from(taken) < 10 * BULK, "there is no bound");
        }
    });
}

#[test]
fn a_device_that_is_closed_loses_no_frame() {
    const BULK: u64 = 1000;
    in_namespace(|| {
        let device = open(&TunConfig { name: Some("last0".into()), ..TunConfig::default() });
        let mut queue = only_queue(device);
        keep_from_running("last0");
        for _ in 0..BULK {
            send(&mut *queue.tx, datagram(true));
        }
        drop(queue);
        assert_eq!(datagrams(), BULK);
    });
}

#[test]
fn without_the_right_bulk_has_no_thread_of_the_kernel() {
    in_namespace(|| {
        run("ip tuntap add dev user1 mode tun vnet_hdr multi_queue");
        without_capabilities(|| {
            let config = TunConfig { name: Some("user1".into()), ..TunConfig::default() };
            let device = Tun::open(&config).expect("everybody's device").into_device();
            assert_eq!(napi_thread("user1"), None);
            assert!(!device.queues[0].bulk.as_ref().expect("a bulk queue").is_bounded);
        });
    });
}
