//! AF_PACKET rings over a veth pair, each in a network namespace of its own.

use crate::common::{
    PATIENCE, Tcp, chunks, ethernet, frame, in_namespace, ipv4, pattern, receive, run,
};
use crate::flood::{Flood, flooded};
use neap_device::{Error, Packet, PacketConfig};
use neap_stack::device::{Completion, Device, Medium, QueuePair, Received, RxChecksum};
use neap_stack::frame::{Frame, PartialChecksum};
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketType, eth};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
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
    await_links(["pk0", "pk1"]);
}

/// Until the kernel has taken notice that a link is there, it drops what is sent. A busy machine
/// takes its time for that.
fn await_links(ends: [&str; 2]) {
    let start = Clock::now();
    while !ends.into_iter().all(is_up) {
        assert!(start.elapsed() < PATIENCE, "the link did not come up");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the interface takes packets.
fn is_up(name: &str) -> bool {
    let shown = std::process::Command::new("ip").args(["-o", "link", "show", name]).output();
    String::from_utf8_lossy(&shown.expect("ip").stdout).contains(" state UP ")
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

/// A segment of `len` bytes to everybody on the link, with `seq` to tell it by.
fn segment(account: &Arc<TxAccount>, seq: u32, len: usize) -> Frame {
    let tcp = Tcp { from: (OURS, 4000), to: (KERNEL, 5000), seq, ack: 1, flags: 0x10 };
    let frame = tcp.frame(&[], chunks(&pattern(len), 40_000), 1460);
    let mut frame = ethernet(frame, [0xff; 6], [2; 6]);
    frame.credit = Some(TxCredit::charge(account, CHARGE));
    frame
}

/// Submits the frames as fast as the ring takes them, until all are sent.
fn send_all(queue: &mut QueuePair, frames: impl Iterator<Item = Frame>) {
    let edges = Edges::of(queue);
    let account = TxAccount::new(Waker::noop().clone());
    for mut frame in frames {
        frame.credit = Some(TxCredit::charge(&account, CHARGE));
        while let Err(back) = queue.tx.submit(frame, Instant::ZERO) {
            frame = back;
            frame.credit = None;
            queue.tx.flush(Instant::ZERO);
            drain(queue, &edges, &account);
            frame.credit = Some(TxCredit::charge(&account, CHARGE));
        }
    }
    queue.tx.flush(Instant::ZERO);
    drain(queue, &edges, &account);
}

/// The packets of IPv4 that have arrived when the one with this sequence number has. On a busy
/// machine the kernel delivers packets after the call that sends them.
fn received(queue: &mut QueuePair, last: u32) -> Vec<Received> {
    let start = Clock::now();
    let mut all = Vec::new();
    while all.last().is_none_or(|packet| seq_of(packet) != last) && start.elapsed() < PATIENCE {
        std::thread::yield_now();
        let arrived = core::iter::from_fn(|| queue.rx.receive(Instant::ZERO));
        all.extend(arrived.filter(|packet| packet.data[12..14] == [8, 0]));
    }
    all
}

/// The sequence number of a segment that was received.
fn seq_of(packet: &Received) -> u32 {
    u32::from_be_bytes(packet.data[38..42].try_into().expect("four bytes"))
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
        // A busy kernel interrupts the call without a signal.
        let wait = || {
            let room = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&self.0, room, Some(&timeout))
        };
        rustix::io::retry_on_intr(wait).expect("epoll") > 0
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
        run("tc qdisc add dev pk0 root tbf rate 2mbit burst 130kb limit 10mb");
        let mut queue = queue();
        let edges = Edges::of(&queue);
        let account = TxAccount::new(Waker::noop().clone());
        let mut bytes = 0;
        for _ in 0..6 {
            let frame = super_frame(&account);
            bytes += frame.len() as u64;
            queue.tx.submit(frame, Instant::ZERO).expect("room in the ring");
        }
        assert_eq!(account.bytes(), 6 * u64::from(CHARGE));
        queue.tx.flush(Instant::ZERO);
        let first = queue.tx.reap(Instant::ZERO);
        // The burst lets two pass; each further one needs 260 ms.
        assert!((1..=5).contains(&first.frames), "{first:?}");
        assert!(account.bytes() > 0);
        assert!(queue.tx.next_event() < Instant::FAR_FUTURE, "the watchdog runs");
        let (frames, rest, steps) = drain(&mut queue, &edges, &account);
        assert_eq!((first.frames + frames, first.bytes + rest), (6, bytes));
        assert!(steps >= 2, "completed in {steps} steps");
        queue.tx.reap(Instant::ZERO);
        assert_eq!(queue.tx.next_event(), Instant::FAR_FUTURE);
        assert_eq!(queue.tx.errors(), 0);
    });
}

/// Sends small segments until large ones would pass the ring by. Returns how many were sent.
fn warm_up(queue: &mut QueuePair, account: &Arc<TxAccount>) -> u32 {
    for seq in 0..200 {
        if queue.tx.completes_within_calls() {
            return seq;
        }
        queue.tx.submit(segment(account, seq, 10), Instant::ZERO).expect("room");
        queue.tx.flush(Instant::ZERO);
        queue.tx.reap(Instant::ZERO);
    }
    panic!("a veth completes within the call");
}

#[test]
fn large_frames_pass_the_ring_by_where_the_kernel_completes_them_within_the_call() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let mut receiver = open(&PacketConfig::new("pk1")).0.queues.remove(0);
        let account = TxAccount::new(Waker::noop().clone());
        let first = warm_up(&mut sender, &account);
        assert!(first > 10, "{first}: the ring comes first");
        let len = |seq: u32| [60_000, 40_000, 10, 1460, 20_000][(seq - first) as usize % 5];
        for seq in first..first + 100 {
            sender.tx.submit(segment(&account, seq, len(seq)), Instant::ZERO).expect("room");
            assert_eq!(sender.tx.is_latest_complete(), len(seq) > 16_384, "frame {seq}");
            assert!(sender.tx.completes_within_calls());
        }
        // The ring still counts the small ones as its own, and needed no doorbell.
        assert_eq!(account.bytes(), 40 * u64::from(CHARGE));
        assert_eq!(sender.tx.reap(Instant::ZERO).frames, 40);
        assert_eq!((account.bytes(), sender.tx.errors()), (0, 0));
        assert_eq!(sender.tx.next_event(), Instant::FAR_FUTURE);
        let packets = received(&mut receiver, first + 99);
        assert!(packets.iter().map(seq_of).eq(0..first + 100), "{} packets", packets.len());
        for (seq, packet) in (0..).zip(&packets).skip(first as usize) {
            assert_eq!(packet.data[54..], pattern(len(seq)), "segment {seq}");
            assert_eq!(packet.gso_size, if len(seq) > 1460 { 1460 } else { 0 });
        }
        assert!(sender.rx.receive(Instant::ZERO).is_none(), "what was sent is not seen");
    });
}

#[test]
fn a_qdisc_that_comes_to_hold_frames_gets_them_by_the_ring() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let mut receiver = open(&PacketConfig::new("pk1")).0.queues.remove(0);
        let edges = Edges::of(&sender);
        let account = TxAccount::new(Waker::noop().clone());
        let first = warm_up(&mut sender, &account);
        run("tc qdisc add dev pk0 root tbf rate 2mbit burst 130kb limit 10mb");
        // The burst lets two pass; each further one needs 260 ms.
        let mut at_once = 0;
        for seq in first..first + 6 {
            sender.tx.submit(segment(&account, seq, 60_000), Instant::ZERO).expect("room");
            at_once += u32::from(sender.tx.is_latest_complete());
        }
        sender.tx.flush(Instant::ZERO);
        assert!((1..=5).contains(&at_once), "{at_once}");
        assert!(!sender.tx.completes_within_calls());
        assert_eq!(account.bytes(), u64::from((6 - at_once) * CHARGE));
        assert!(sender.tx.next_event() < Instant::FAR_FUTURE, "nothing else tells of the first");
        let (frames, ..) = drain(&mut sender, &edges, &account);
        assert_eq!((frames, sender.tx.errors()), (6 - at_once, 0));
        let packets = received(&mut receiver, first + 5);
        assert!(packets.iter().map(seq_of).eq(0..first + 6), "{} packets", packets.len());
        run("tc qdisc del dev pk0 root");
        assert!(warm_up(&mut sender, &account) > 10);
    });
}

#[test]
fn a_qdisc_that_comes_to_be_full_loses_nothing() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let mut receiver = open(&PacketConfig::new("pk1")).0.queues.remove(0);
        let edges = Edges::of(&sender);
        let account = TxAccount::new(Waker::noop().clone());
        let first = warm_up(&mut sender, &account);
        // It takes no frame of this size, and not even one of its segments.
        run("tc qdisc add dev pk0 root tbf rate 100mbit burst 130kb limit 1kb");
        sender.tx.submit(segment(&account, first, 20_000), Instant::ZERO).expect("room");
        assert!(!sender.tx.is_latest_complete() && !sender.tx.completes_within_calls());
        sender.tx.flush(Instant::ZERO);
        sender.tx.reap(Instant::ZERO);
        assert_eq!((account.bytes(), sender.tx.errors()), (u64::from(CHARGE), 0));
        run("tc qdisc del dev pk0 root");
        assert_eq!(drain(&mut sender, &edges, &account).0, 1);
        let packets = received(&mut receiver, first);
        assert!(packets.iter().map(seq_of).eq(0..=first), "{} packets", packets.len());
    });
}

#[test]
fn an_interface_that_goes_down_ends_the_way_past_the_ring() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let account = TxAccount::new(Waker::noop().clone());
        warm_up(&mut sender, &account);
        run("ip link set pk0 down");
        sender.tx.submit(super_frame(&account), Instant::ZERO).expect("room");
        assert!(!sender.tx.completes_within_calls());
        sender.tx.flush(Instant::ZERO);
        assert_eq!((account.bytes(), sender.tx.errors()), (0, 1));
        assert_eq!(sender.tx.reap(Instant::ZERO).frames, 1);
        run("ip link set pk0 up");
        warm_up(&mut sender, &account);
    });
}

#[test]
fn a_malformed_frame_does_not_end_the_way_past_the_ring_for_good() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let account = TxAccount::new(Waker::noop().clone());
        warm_up(&mut sender, &account);
        let mut frame = super_frame(&account);
        frame.checksum = Some(PartialChecksum { start: 34, offset: 14 });
        sender.tx.submit(frame, Instant::ZERO).expect("room");
        sender.tx.flush(Instant::ZERO);
        assert_eq!(sender.tx.reap(Instant::ZERO).frames, 1);
        assert_eq!((account.bytes(), sender.tx.errors()), (0, 1));
        warm_up(&mut sender, &account);
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

/// `pk0` holds segments of number 1 as long as this exists: after two of them it lets none pass for
/// a minute. Others are not held up. A packet in its queue would keep the namespace after the test.
struct Hold;

impl Hold {
    fn begin() -> Self {
        run("tc qdisc add dev pk0 root handle 1: htb default 2");
        run("tc class add dev pk0 parent 1: classid 1:1 htb rate 80bit burst 1600b cburst 1600b");
        run("tc class add dev pk0 parent 1: classid 1:2 htb rate 10gbit burst 1mb cburst 1mb");
        let held = "protocol ip u32 match u32 0x00000001 0xffffffff at 24 flowid 1:1";
        run(&format!("tc filter add dev pk0 parent 1: {held}"));
        Self
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        run("tc qdisc del dev pk0 root");
    }
}

#[test]
fn frames_behind_one_that_a_qdisc_holds_return_their_credits() {
    in_namespace(|| {
        veth();
        let _hold = Hold::begin();
        let mut queue = queue();
        let edges = Edges::of(&queue);
        let account = TxAccount::new(Waker::noop().clone());
        for seq in [1, 1, 1].into_iter().chain(2..130) {
            queue.tx.submit(segment(&account, seq, 1400), Instant::ZERO).expect("room");
        }
        queue.tx.flush(Instant::ZERO);
        let start = Clock::now();
        while account.bytes() > u64::from(CHARGE) && start.elapsed() < PATIENCE {
            let now = Instant::ZERO + start.elapsed().into();
            queue.tx.reap(now);
            let next = Duration::from(queue.tx.next_event().since(now));
            edges.wait(next.min(PATIENCE));
        }
        assert_eq!(account.bytes(), u64::from(CHARGE), "one frame is held, and no other");
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

/// A peer that takes shorter packets only makes veth refuse a frame, as a filter would.
#[test]
fn a_frame_that_is_always_refused_does_not_hold_up_the_others() {
    in_namespace(|| {
        veth();
        run("ip link set pk1 mtu 1000");
        let mut queue = queue();
        let mut far = open(&PacketConfig::new("pk1")).0.queues.remove(0);
        let account = TxAccount::new(Waker::noop().clone());
        for (seq, len) in [(1, 1400), (2, 100), (3, 100)] {
            queue.tx.submit(segment(&account, seq, len), Instant::ZERO).expect("room");
        }
        let (mut now, start) = (Instant::ZERO, Clock::now());
        queue.tx.flush(now);
        while account.bytes() > 0 && start.elapsed() < PATIENCE {
            now += Nanos::from_millis(1);
            queue.tx.reap(now);
        }
        assert_eq!((account.bytes(), queue.tx.errors()), (0, 1));
        let seqs: Vec<_> = received(&mut far, 3).iter().map(seq_of).collect();
        assert_eq!(seqs, [2, 3]);
    });
}

#[test]
fn what_the_host_sends_itself_takes_no_slot_of_any_queue() {
    in_namespace(|| {
        veth();
        let config = PacketConfig { queues: 2, rx_slots: 8, ..PacketConfig::new("pk0") };
        let device = open(&config).0;
        run("ip address add 10.203.0.1/24 dev pk0");
        run("ip neighbour add 10.203.0.2 lladdr 02:00:00:00:00:09 dev pk0");
        let socket = UdpSocket::bind("10.203.0.1:0").expect("bind");
        for _ in 0..1000 {
            socket.send_to(b"x", "10.203.0.2:7").expect("sent");
        }
        let drops: Vec<_> = device.queues.iter().map(|queue| queue.rx.drops()).collect();
        assert_eq!(drops, [0, 0]);
    });
}

#[test]
fn an_mtu_that_no_slot_takes_is_not_told() {
    in_namespace(|| {
        veth();
        let config = PacketConfig { gso_max_size: 1500, ..PacketConfig::new("pk0") };
        let mut device = open(&config).0;
        run("ip link set pk0 mtu 9000");
        let monitor = device.monitor.as_mut().expect("one");
        assert_eq!(monitor.look().mtu, Some(1500));
        run("ip link set pk0 mtu 1400");
        assert_eq!(monitor.look().mtu, Some(1400));
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
fn packets_for_others_come_to_who_asks_for_them() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let mut own = open(&PacketConfig::new("pk1")).0.queues.remove(0);
        let config = PacketConfig { promiscuous: true, ..PacketConfig::new("pk1") };
        let mut bridge = open(&config).0.queues.remove(0);
        let account = TxAccount::new(Waker::noop().clone());
        // To another host, the same with a VLAN tag, and to everybody: of VLAN 5, with a priority
        // alone, without a tag.
        let mut other = segment(&account, 1, 100);
        other.headers.as_mut_slice()[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        let tag_of = |seq, tag: [u8; 4]| {
            let mut frame = Frame { link_len: 18, ..segment(&account, seq, 100) };
            frame.checksum = None;
            let link = [&frame.headers.as_slice()[..12], &tag].concat();
            frame.headers.prepend(4);
            frame.headers.as_mut_slice()[..16].copy_from_slice(&link);
            frame
        };
        let mut tagged = tag_of(2, [0x81, 0, 0, 5]);
        tagged.headers.as_mut_slice()[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        let of_vlan = tag_of(3, [0x81, 0, 0, 5]);
        let of_priority = tag_of(4, [0x81, 0, 0xa0, 0]);
        for frame in [other, tagged, of_vlan, of_priority, segment(&account, 5, 100)] {
            sender.tx.submit(frame, Instant::ZERO).expect("room");
        }
        sender.tx.flush(Instant::ZERO);
        let seqs =
            |queue: &mut QueuePair| received(queue, 5).iter().map(seq_of).collect::<Vec<_>>();
        assert_eq!(seqs(&mut bridge), [1, 4, 5]);
        assert_eq!(seqs(&mut own), [4, 5]);
        assert_eq!((bridge.rx.drops(), own.rx.drops()), (2, 1));
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
fn what_arrives_while_the_queues_are_opened_comes_once() {
    in_namespace(|| {
        veth();
        run("ip link set pk0 address 02:00:00:00:00:07");
        run(&format!("ip neighbour add {OURS} lladdr 02:00:00:00:00:07 dev pk1"));
        let flood = Flood::begin(OURS);
        // No ring is full before the next one is bound.
        let config = PacketConfig {
            queues: 8,
            tx_slots: 2,
            rx_slots: 16_384,
            rx_slot_bytes: Some(256),
            ..PacketConfig::new("pk0")
        };
        let (mut device, _) = flood.during(|| open(&config));
        let (mut numbers, start) = (Vec::new(), Clock::now());
        while numbers.is_empty() && start.elapsed() < PATIENCE {
            numbers = flooded(&mut device.queues, OURS);
        }
        assert!(!numbers.is_empty(), "nothing arrives");
        drop(flood);
        numbers.extend(flooded(&mut device.queues, OURS));
        let arrived = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), arrived);
    });
}

#[test]
fn a_socket_of_somebody_else_receives_from_its_interface_alone() {
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 203, 0, 2);
    in_namespace(|| {
        veth();
        run("ip link add other0 type veth peer name other1");
        run("ip link set other0 address 02:00:00:00:00:08 up");
        run("ip link set other1 up");
        run("ip address add 10.203.0.1/24 dev other1");
        await_links(["other0", "other1"]);
        run(&format!("ip neighbour add {OTHER} lladdr 02:00:00:00:00:08 dev other1"));
        let flood = Flood::begin(OTHER);
        // Between its two rings the kernel makes 64 MiB of memory.
        let config = PacketConfig { tx_slots: 1024, ..PacketConfig::new("pk0") };
        let mut device = flood.during(|| {
            let socket =
                rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, Some(eth::ALL));
            let packet = Packet::from_fd(socket.expect("a socket"), &config);
            packet.expect("a device").into_device()
        });
        drop(flood);
        assert_eq!(flooded(&mut device.queues, OTHER), []);
    });
}

/// A packet of IP with ports, as it goes over the wire. `next` is the protocol, or the kind of the
/// extension header.
fn packet_of(from: SocketAddr, to: SocketAddr, next: u8, options: usize, flags: u16) -> Frame {
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes(), [0; 2], [0; 2]].concat();
    let (header, kind) = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = ipv4(next, from, to, options + ports.len()).to_vec();
            header[0] += options as u8 / 4;
            header[6..8].copy_from_slice(&flags.to_be_bytes());
            header.resize(20 + options, 1);
            (header, [8, 0])
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, ports.len() as u8, next, 64];
            header.extend(from.octets());
            header.extend(to.octets());
            (header, [0x86, 0xdd])
        }
        _ => panic!("two families"),
    };
    let mut frame = frame(&header, chunks(&ports, 100));
    let ethernet = frame.headers.prepend(14);
    ethernet[..6].copy_from_slice(&[0xff; 6]);
    ethernet[6..12].copy_from_slice(&[2; 6]);
    ethernet[12..].copy_from_slice(&kind);
    frame.link_len = 14;
    frame
}

#[test]
fn packets_come_to_the_queue_that_the_stack_computes() {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let config = PacketConfig { queues: 3, ..PacketConfig::new("pk1") };
        let (mut device, _) = open(&config);
        let steering = device.steering.take().expect("of several queues");
        let mut per_queue = [0; 3];
        let mut expect = |frame: Frame, from: SocketAddr, to: SocketAddr| {
            send_all(&mut sender, core::iter::once(frame));
            let at = steering.queue_of(to, from);
            let start = Clock::now();
            let mut counts = [0; 3];
            while counts == [0; 3] && start.elapsed() < PATIENCE {
                for (queue, count) in device.queues.iter_mut().zip(&mut counts) {
                    *count += core::iter::from_fn(|| queue.rx.receive(Instant::ZERO)).count();
                }
            }
            let wanted = core::array::from_fn(|index| usize::from(index == at));
            assert_eq!(counts, wanted, "{from} to {to}");
            per_queue[at] += 1;
        };
        for n in 0..40u16 {
            let v4 = |host: u8, port| SocketAddr::new([10, 3, n as u8, host].into(), port);
            let v6 = |host, port| SocketAddr::new([0xfd00, n, 5, 0, 0, 7, 0, host].into(), port);
            let (from, to) = (v4(1, 40_000 + 2 * n), v4(2, 443));
            expect(packet_of(from, to, TCP, 0, 0x4000), from, to);
            expect(packet_of(from, to, UDP, 8, 0), from, to);
            let (no_from, no_to) = (v4(1, 0), v4(2, 0));
            expect(packet_of(from, to, TCP, 0, 0x2000), no_from, no_to);
            expect(packet_of(from, to, UDP, 0, 100), no_from, no_to);
            expect(packet_of(from, to, 1, 0, 0), no_from, no_to);
            let (from, to) = (v6(1, 40_000 + 2 * n), v6(2, 443));
            expect(packet_of(from, to, TCP, 0, 0), from, to);
            expect(packet_of(from, to, UDP, 0, 0), from, to);
            expect(packet_of(from, to, 44, 0, 0), v6(1, 0), v6(2, 0));
        }
        assert!(per_queue.iter().all(|&count| count > 40), "{per_queue:?}");
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
        let (start, mut got) = (Clock::now(), 0);
        while got + receiver.rx.drops() < 40 && start.elapsed() < PATIENCE {
            got += u64::from(receiver.rx.receive(Instant::ZERO).is_some());
        }
        assert!((8..40).contains(&got), "{got}");
        assert_eq!(receiver.rx.drops(), 40 - got);
        assert_eq!(receiver.rx.drops(), 40 - got, "asking does not forget");
    });
}

#[test]
fn a_burst_of_two_thousand_small_packets_fits_the_ring() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let mut receiver = open(&PacketConfig::new("pk1")).0.queues.remove(0);
        let account = TxAccount::new(Waker::noop().clone());
        send_all(&mut sender, (0..2000).map(|seq| segment(&account, seq, 10)));
        let packets = received(&mut receiver, 1999);
        assert!(packets.iter().map(seq_of).eq(0..2000), "{} packets", packets.len());
        assert_eq!(receiver.rx.drops(), 0);
    });
}

#[test]
fn packets_larger_than_a_slot_keep_their_place_among_small_ones() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let mut receiver = open(&PacketConfig::new("pk1")).0.queues.remove(0);
        let account = TxAccount::new(Waker::noop().clone());
        let len = |seq: u32| [10, 60_000, 1460, 3000][seq as usize % 4];
        send_all(&mut sender, (0..100).map(|seq| segment(&account, seq, len(seq))));
        let packets = received(&mut receiver, 99);
        assert!(packets.iter().map(seq_of).eq(0..100), "{} packets", packets.len());
        for (seq, packet) in (0..).zip(&packets) {
            assert_eq!(packet.data[54..], pattern(len(seq)), "segment {seq}");
            assert_eq!(packet.gso_size, if len(seq) > 1460 { 1460 } else { 0 });
        }
    });
}

#[test]
fn a_packet_for_which_the_queue_has_no_room_is_a_counted_drop() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let config = PacketConfig {
            rx_queue_bytes: 300_000,
            rx_slot_bytes: Some(2048),
            ..PacketConfig::new("pk1")
        };
        let mut receiver = open(&config).0.queues.remove(0);
        let account = TxAccount::new(Waker::noop().clone());
        for round in 1..=3 {
            send_all(&mut sender, (0..20).map(|seq| segment(&account, seq, 60_000)));
            send_all(&mut sender, (20..30).map(|seq| segment(&account, seq, 10)));
            let packets = received(&mut receiver, 29);
            let whole = packets.len() as u32 - 10;
            assert!((1..20).contains(&whole), "{whole}");
            assert!(packets.iter().map(seq_of).eq((0..whole).chain(20..30)), "round {round}");
            assert_eq!(receiver.rx.drops(), u64::from(20 - whole) * round);
        }
    });
}

#[test]
fn large_slots_need_no_queue() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let config = PacketConfig {
            rx_slots: 32,
            rx_slot_bytes: Some(69_632),
            rx_queue_bytes: 0,
            ..PacketConfig::new("pk1")
        };
        let mut receiver = open(&config).0.queues.remove(0);
        let account = TxAccount::new(Waker::noop().clone());
        send_all(&mut sender, (0..30).map(|seq| segment(&account, seq, 60_000)));
        let packets = received(&mut receiver, 29);
        assert!(packets.iter().map(seq_of).eq(0..30), "{} packets", packets.len());
        assert_eq!(receiver.rx.drops(), 0);
    });
}

#[test]
fn a_large_packet_outlives_an_error_of_the_socket() {
    in_namespace(|| {
        veth();
        let mut sender = queue();
        let mut receiver = open(&PacketConfig::new("pk1")).0.queues.remove(0);
        let account = TxAccount::new(Waker::noop().clone());
        send_all(&mut sender, (0..3).map(|seq| segment(&account, seq, 60_000)));
        run("ip link set pk1 down");
        let packets = received(&mut receiver, 2);
        assert!(packets.iter().map(seq_of).eq(0..3), "{} packets", packets.len());
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
