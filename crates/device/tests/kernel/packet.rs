//! AF_PACKET rings over a veth pair, each in a network namespace of its own.

use crate::common::{PATIENCE, Tcp, chunks, ethernet, in_namespace, pattern, receive, run};
use neap_device::{Error, Packet, PacketConfig};
use neap_stack::device::{Completion, Device, Medium, QueuePair, RxChecksum};
use neap_stack::frame::{Frame, PartialChecksum};
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use rustix::event::epoll;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant as Clock};

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 202, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 202, 0, 2);
/// What a frame is charged here.
const CHARGE: u32 = 70_000;

/// `pk0` is ours, `pk1` the kernel's end, with address and without need to ask for ours.
fn veth() {
    run("ip link add pk0 type veth peer name pk1");
    for name in ["pk0", "pk1"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        run(&format!("ip link set {name} up"));
    }
    run("ip address add 10.202.0.1/24 dev pk1");
}

fn open(config: &PacketConfig) -> (Device, [u8; 6]) {
    let device = Packet::open(config).expect("an AF_PACKET device").into_device();
    let Medium::Ethernet(address) = device.capabilities.medium else {
        panic!("AF_PACKET is Ethernet");
    };
    (device, address)
}

fn queue() -> QueuePair {
    open(&PacketConfig::new("pk0")).0.queues.remove(0)
}

/// A super-frame of about 64 KB to everybody on the link, charged to the account.
fn super_frame(account: &Arc<TxAccount>) -> Frame {
    let tcp = Tcp { from: (OURS, 4000), to: (KERNEL, 5000), seq: 1, ack: 1, flags: 0x10 };
    let frame = tcp.frame(&[], chunks(&pattern(64_240), 40_000), 1460);
    let mut frame = ethernet(frame, [0xff; 6], [2; 6]);
    frame.credit = Some(TxCredit::charge(account, CHARGE));
    frame
}

/// Edges of the descriptor, as a driver should wait for them.
struct Edges(OwnedFd);

impl Edges {
    fn of(queue: &QueuePair) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        let descriptor = queue.descriptor.as_ref().expect("a descriptor");
        epoll::add(&epoll, descriptor, epoll::EventData::new_u64(0), flags).expect("registered");
        Self(epoll)
    }

    /// Waits for an edge, at most this long; whether one came.
    fn wait(&self, at_most: Duration) -> bool {
        let mut events = Vec::with_capacity(1);
        let timeout = rustix::event::Timespec::try_from(at_most).expect("a short time");
        let room = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&self.0, room, Some(&timeout)).expect("epoll") > 0
    }
}

/// Reaps until the account is empty, as a driver does. Where the watchdog is slow, edges alone must
/// do. Returns frames, bytes, and how many times some were completed.
fn drain(queue: &mut QueuePair, edges: &Edges, account: &TxAccount) -> (u32, u64, u32) {
    let (mut frames, mut bytes, mut steps) = (0, 0, 0);
    let start = Clock::now();
    loop {
        let now = Instant::ZERO + start.elapsed().into();
        let completed = queue.tx.reap(now);
        frames += completed.frames;
        bytes += completed.bytes;
        steps += u32::from(completed.frames > 0);
        if account.bytes() == 0 {
            return (frames, bytes, steps);
        }
        let next = queue.tx.next_event().since(now);
        let is_watchdog = next >= Nanos::from_millis(10);
        let came = edges.wait(if is_watchdog { PATIENCE } else { next.into() });
        assert!(came || !is_watchdog, "{} bytes never completed", account.bytes());
        assert!(start.elapsed() < PATIENCE, "{} bytes are left", account.bytes());
    }
}

#[test]
fn completions_come_as_the_qdisc_lets_frames_go() {
    in_namespace(|| {
        veth();
        run("tc qdisc add dev pk0 root tbf rate 20mbit burst 130kb limit 10mb");
        let mut queue = queue();
        let edges = Edges::of(&queue);
        let account = TxAccount::new(Waker::noop().clone());
        let mut bytes = 0;
        for _ in 0..10 {
            let frame = super_frame(&account);
            bytes += frame.len() as u64;
            queue.tx.submit(frame, Instant::ZERO).expect("room in the ring");
        }
        assert_eq!(account.bytes(), 10 * u64::from(CHARGE));
        queue.tx.flush(Instant::ZERO);
        let first = queue.tx.reap(Instant::ZERO);
        // The burst lets two pass; each further one needs 26 ms.
        assert!((1..=6).contains(&first.frames), "{first:?}");
        assert!(account.bytes() > 0);
        assert!(queue.tx.next_event() < Instant::FAR_FUTURE, "the watchdog runs");
        let (frames, rest, steps) = drain(&mut queue, &edges, &account);
        assert_eq!((first.frames + frames, first.bytes + rest), (10, bytes));
        assert!(steps >= 2, "completed in {steps} steps");
        queue.tx.reap(Instant::ZERO);
        assert_eq!(queue.tx.next_event(), Instant::FAR_FUTURE);
        assert_eq!(queue.tx.errors(), 0);
    });
}

#[test]
fn a_qdisc_that_segments_completes_at_once() {
    in_namespace(|| {
        veth();
        run("tc qdisc add dev pk0 root tbf rate 100mbit burst 16kb limit 10mb");
        let mut queue = queue();
        let account = TxAccount::new(Waker::noop().clone());
        for _ in 0..10 {
            queue.tx.submit(super_frame(&account), Instant::ZERO).expect("room");
        }
        queue.tx.flush(Instant::ZERO);
        assert_eq!((queue.tx.reap(Instant::ZERO).frames, account.bytes()), (10, 0));
    });
}

#[test]
fn a_full_qdisc_pushes_back_and_loses_nothing() {
    in_namespace(|| {
        veth();
        run("tc qdisc add dev pk0 root tbf rate 100mbit burst 130kb limit 150kb");
        let mut queue = queue();
        let edges = Edges::of(&queue);
        let account = TxAccount::new(Waker::noop().clone());
        for _ in 0..12 {
            queue.tx.submit(super_frame(&account), Instant::ZERO).expect("room");
        }
        let now = Instant::from_nanos(1);
        queue.tx.flush(now);
        assert!(queue.tx.next_event() <= now + Nanos::from_millis(1), "unsent slots are retried");
        let (frames, _, _) = drain(&mut queue, &edges, &account);
        assert_eq!((frames, queue.tx.errors()), (12, 0));
    });
}

#[test]
fn a_malformed_frame_does_not_hold_up_the_others() {
    in_namespace(|| {
        veth();
        let mut queue = queue();
        let edges = Edges::of(&queue);
        let account = TxAccount::new(Waker::noop().clone());
        for i in 0..6 {
            let mut frame = super_frame(&account);
            if i == 0 || i == 3 {
                frame.checksum = Some(PartialChecksum { start: 34, offset: 14 });
            }
            queue.tx.submit(frame, Instant::ZERO).expect("room");
        }
        queue.tx.flush(Instant::ZERO);
        let (frames, _, _) = drain(&mut queue, &edges, &account);
        assert_eq!((frames, queue.tx.errors()), (6, 2));
    });
}

#[test]
fn a_full_ring_gives_frames_back_until_some_complete() {
    in_namespace(|| {
        veth();
        let config = PacketConfig { tx_slots: 4, ..PacketConfig::new("pk0") };
        let mut queue = open(&config).0.queues.remove(0);
        let edges = Edges::of(&queue);
        let account = TxAccount::new(Waker::noop().clone());
        for round in 0..5 {
            for _ in 0..4 {
                queue.tx.submit(super_frame(&account), Instant::ZERO).expect("room");
            }
            let back = queue.tx.submit(super_frame(&account), Instant::ZERO);
            assert!(back.expect_err("full").credit.is_some(), "round {round}");
            queue.tx.flush(Instant::ZERO);
            drain(&mut queue, &edges, &account);
        }
    });
}

#[test]
fn an_interface_that_goes_down_returns_the_credits() {
    in_namespace(|| {
        veth();
        let mut queue = queue();
        run("ip link set pk0 down");
        let absent = Packet::open(&PacketConfig::new("pk0"));
        assert!(matches!(absent, Err(Error::Down { name }) if name == "pk0"));
        let account = TxAccount::new(Waker::noop().clone());
        for _ in 0..3 {
            queue.tx.submit(super_frame(&account), Instant::ZERO).expect("room");
        }
        queue.tx.flush(Instant::ZERO);
        assert_eq!((account.bytes(), queue.tx.errors()), (0, 3));
        assert_eq!(queue.tx.reap(Instant::ZERO).frames, 3);
        run("ip link set pk0 up");
        queue.tx.submit(super_frame(&account), Instant::ZERO).expect("room");
        queue.tx.flush(Instant::ZERO);
        // The error of the time before may still be pending at the socket and take this one along.
        queue.tx.submit(super_frame(&account), Instant::ZERO).expect("room");
        queue.tx.flush(Instant::ZERO);
        let edges = Edges::of(&queue);
        assert!(drain(&mut queue, &edges, &account).0 > 0);
        assert!(queue.tx.errors() <= 4);
    });
}

#[test]
fn a_super_frame_is_received_whole() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let mut receiver = open(&PacketConfig::new("pk1")).0.queues.remove(0);
        let account = TxAccount::new(Waker::noop().clone());
        // More than the ring has slots, so that it goes round.
        for _ in 0..300 {
            let frame = super_frame(&account);
            let sent = frame.to_bytes();
            sender.tx.submit(frame, Instant::ZERO).expect("room");
            sender.tx.flush(Instant::ZERO);
            let packet = receive(&mut *receiver.rx, |p| p.data[12..14] == [8, 0]);
            assert_eq!(packet.data, sent);
            assert_eq!(packet.gso_size, 1460);
            let place = PartialChecksum { start: 34, offset: 16 };
            assert_eq!(packet.checksum, RxChecksum::Partial(place));
            sender.tx.reap(Instant::ZERO);
        }
        assert_eq!(receiver.rx.drops(), 0);
        assert!(sender.rx.receive(Instant::ZERO).is_none(), "what was sent is not seen");
    });
}

#[test]
fn datagrams_of_the_kernel_arrive_once_over_all_queues() {
    in_namespace(|| {
        veth();
        let config = PacketConfig { queues: 2, rx_slots: 64, ..PacketConfig::new("pk0") };
        let (mut device, address) = open(&config);
        assert_eq!(device.queues.len(), 2);
        assert_eq!(device.capabilities.completion, Completion::OnWire);
        let text = address.map(|byte| format!("{byte:02x}")).join(":");
        run(&format!("ip neighbour add {OURS} lladdr {text} dev pk1"));
        let mut seen = vec![0; 32];
        let mut per_queue = [0, 0];
        for port in 0..32u16 {
            let socket = UdpSocket::bind((KERNEL, 6000 + port)).expect("bind");
            socket.send_to(&[port as u8; 9], (OURS, 7)).expect("send");
        }
        let start = Clock::now();
        while per_queue.iter().sum::<i32>() < 32 && start.elapsed() < PATIENCE {
            for (queue, count) in device.queues.iter_mut().zip(&mut per_queue) {
                while let Some(packet) = queue.rx.receive(Instant::ZERO) {
                    if packet.data[12..14] == [8, 0] && packet.data[23] == 17 {
                        seen[usize::from(packet.data[42])] += 1;
                        *count += 1;
                    }
                }
            }
        }
        assert!(seen.iter().all(|&n| n == 1), "{seen:?}");
        assert!(per_queue.iter().all(|&n| n > 0), "{per_queue:?}");
    });
}

#[test]
fn a_ring_that_overflows_counts_its_drops() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let config = PacketConfig { rx_slots: 8, ..PacketConfig::new("pk1") };
        let mut receiver = open(&config).0.queues.remove(0);
        let account = TxAccount::new(Waker::noop().clone());
        for _ in 0..40 {
            sender.tx.submit(super_frame(&account), Instant::ZERO).expect("room");
        }
        sender.tx.flush(Instant::ZERO);
        let edges = Edges::of(&sender);
        drain(&mut sender, &edges, &account);
        let mut got = 0;
        while receiver.rx.receive(Instant::ZERO).is_some() {
            got += 1;
        }
        assert!((8..40).contains(&got), "{got}");
        assert_eq!(receiver.rx.drops(), 40 - got);
        assert_eq!(receiver.rx.drops(), 40 - got, "asking does not forget");
    });
}

#[test]
fn errors_say_what_is_wrong() {
    in_namespace(|| {
        run("ip link set lo up");
        assert!(matches!(Packet::open(&PacketConfig::new("lo")), Err(Error::NotEthernet { .. })));
        let absent = Packet::open(&PacketConfig::new("absent"));
        assert!(matches!(absent, Err(Error::NoInterface { name }) if name == "absent"));
        let none = PacketConfig { tx_slots: 0, ..PacketConfig::new("lo") };
        assert!(matches!(Packet::open(&none), Err(Error::OutOfRange { option: "tx_slots", .. })));
    });
}
