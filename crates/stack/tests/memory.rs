//! What a host under attack really holds: bytes allocated, beside what it accounts for.
//!
//! The attacker is a list of segments, so everything that is allocated belongs to the host.

use bytes::{Bytes, BytesMut};
use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicI64, Ordering::Relaxed};
use neap_stack::device::{
    Capabilities, Completed, Completion, Device, Medium, QueuePair, Received, RxChecksum, RxQueue,
    TxQueue,
};
use neap_stack::frame::{Frame, Headers};
use neap_stack::interface::Address;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ListenOptions, Stack, StackConfig};
use neap_stack::wire::checksum::Pseudo;
use neap_stack::wire::{ChecksumBy, Ports, Protocol, ipv4, tcp};
use neap_tcp::counters::Counter;
use neap_tcp::segment::{Flags, Segment};
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::{Instant, Nanos};
use std::alloc::System;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard};

static LIVE: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_add(size as i64 - layout.size() as i64, Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ATTACKER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const ISS: SeqNumber = SeqNumber(1_000_000);
/// Memory of a connection itself, with its place in all tables and its handle.
const CONNECTION: u64 = 2_500;
/// Packets that lie in one block of a device's receive memory.
const BLOCK: usize = 256 << 10;

#[derive(Default)]
struct Wire {
    incoming: VecDeque<Received>,
    /// The number behind what the host has sent, by the attacker's port.
    heard: Vec<Option<SeqNumber>>,
    block: BytesMut,
}

type SharedWire = Arc<Mutex<Wire>>;

fn lock(wire: &SharedWire) -> MutexGuard<'_, Wire> {
    wire.lock().expect("nobody failed")
}

struct Tx(SharedWire);
struct Rx(SharedWire);

impl TxQueue for Tx {
    fn submit(&mut self, frame: Frame, _now: Instant) -> Result<(), Frame> {
        let data = frame.to_bytes();
        let packet = ipv4::parse(&data).expect("the host's packets are sound");
        let (ports, segment) = tcp::parse(packet.slice(&data), None).expect("TCP");
        let heard = &mut lock(&self.0).heard;
        let end = &mut heard[usize::from(ports.destination)];
        *end = Some(end.map_or(segment.end_seq(), |end| end.later(segment.end_seq())));
        Ok(())
    }
    fn flush(&mut self, _now: Instant) {}
    fn reap(&mut self, _now: Instant) -> Completed {
        Completed::default()
    }
    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }
}

impl RxQueue for Rx {
    fn receive(&mut self, _now: Instant) -> Option<Received> {
        lock(&self.0).incoming.pop_front()
    }
}

/// The parts of a packet that lie where TCP's header begins.
trait Slice {
    fn slice(&self, data: &Bytes) -> Bytes;
}

impl Slice for ipv4::Packet {
    fn slice(&self, data: &Bytes) -> Bytes {
        data.slice(self.payload.clone())
    }
}

/// A host, and an attacker with many connections.
struct Attack {
    stack: Stack,
    listener: ListenerHandle,
    wire: SharedWire,
    now: Instant,
    handles: Vec<TcpHandle>,
    base: i64,
}

impl Attack {
    fn new(sysctls: &[(&str, &str)]) -> Self {
        let stack = Stack::new(StackConfig::default()).expect("the defaults are sound");
        for (name, value) in sysctls {
            stack.set_sysctl(name, value).expect("a value that there is");
        }
        let wire = SharedWire::default();
        let device = Device {
            name: "wire".to_owned(),
            capabilities: Capabilities {
                medium: Medium::Ip,
                mtu: 1500,
                gso_max_size: 65_535,
                gso_max_segs: 64,
                gso_udp: false,
                checksum_tx: true,
                checksum_rx: true,
                completion: Completion::OnSubmit,
                pacing_shift: 10,
            },
            queues: vec![QueuePair {
                tx: Box::new(Tx(wire.clone())),
                rx: Box::new(Rx(wire.clone())),
                bulk: None,
                descriptor: None,
            }],
            steering: None,
            monitor: None,
        };
        let address = Address::new(HOST.into(), 24).expect("a prefix");
        stack.add_interface(Instant::ZERO, device, &[address]).expect("a device");
        let options = ListenOptions { backlog: 65_535, ..ListenOptions::default() };
        let listener = stack.listen((HOST, 80).into(), options).expect("a free port");
        let now = Instant::from_nanos(1_000_000_000);
        lock(&wire).heard = vec![None; 1 << 16];
        let mut attack = Self { stack, listener, wire, now, handles: Vec::new(), base: 0 };
        attack.handles.reserve(70_000);
        // What the host makes once for all.
        attack.open(1, 1460);
        attack.send(1, 0, b"x", Flags::empty());
        attack.pass(Nanos::from_secs(3));
        attack.base = LIVE.load(Relaxed);
        attack
    }

    /// Sends a segment of the connection from `port`, `offset` bytes into the stream. What the host
    /// has sent is acknowledged up to the SYN, or up to `ack`.
    fn segment(&mut self, port: u16, segment: Segment) {
        let mut headers = Headers::default();
        let ports = Ports { source: port, destination: 80 };
        let pseudo = Pseudo::of(ATTACKER.into(), HOST.into(), Protocol::TCP).expect("one family");
        tcp::emit(&mut headers, ports, &segment, pseudo, ChecksumBy::Stack);
        let len = headers.len() as u32 + segment.payload.len();
        let header = ipv4::Header {
            source: ATTACKER,
            destination: HOST,
            protocol: Protocol::TCP,
            ttl: 64,
            dscp: 0,
            ecn: segment.ecn,
            identification: 0,
            dont_fragment: true,
        };
        header.emit(&mut headers, len as u16);
        let gso_size = segment.gso_size;
        let packet = Frame::new(headers, segment.payload).to_bytes();
        let mut wire = lock(&self.wire);
        if wire.block.capacity() < packet.len() {
            wire.block = BytesMut::with_capacity(BLOCK);
        }
        wire.block.extend_from_slice(&packet);
        let data = wire.block.split().freeze();
        wire.incoming.push_back(Received { data, gso_size, checksum: RxChecksum::Good });
        let is_full = wire.incoming.len() >= 128;
        drop(wire);
        if is_full {
            self.poll();
        }
    }

    fn ack(&self, port: u16) -> SeqNumber {
        lock(&self.wire).heard[usize::from(port)].unwrap_or(SeqNumber(0))
    }

    /// Sends data with this ACK of everything.
    fn send(&mut self, port: u16, offset: u32, data: &[u8], flags: Flags) {
        let payload = Bytes::copy_from_slice(data).into();
        let (ack, seq) = (self.ack(port), ISS + 1 + offset);
        let flags = flags | Flags::ACK;
        self.segment(
            port,
            Segment { seq, ack, flags, window: 65_535, payload, ..Segment::default() },
        );
    }

    fn poll(&mut self) {
        while self.stack.poll(0, self.now).0 <= self.now {}
    }

    /// Lets time pass, and everything happen that is due meanwhile.
    fn pass(&mut self, span: Nanos) {
        let end = self.now + span;
        loop {
            let (next, _) = self.stack.poll(0, self.now);
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
        }
    }

    /// Sends SYNs from `count` further ports.
    fn knock(&mut self, first: u16, count: u16, mss: u16) {
        for port in first..first + count {
            let mut syn =
                Segment { seq: ISS, flags: Flags::SYN, window: 65_535, ..Segment::default() };
            syn.options.mss = Some(mss);
            syn.options.sack_permitted = true;
            syn.options.window_scale = Some(7);
            self.segment(port, syn);
        }
        self.poll();
    }

    /// Opens `count` connections from the next ports. Returns the first port.
    fn open(&mut self, count: u16, mss: u16) -> u16 {
        let first = 1 + self.handles.len() as u16;
        for batch in (first..first + count).step_by(500) {
            let many = (first + count - batch).min(500);
            self.knock(batch, many, mss);
            (batch..batch + many).for_each(|port| self.send(port, 0, b"", Flags::empty()));
            self.poll();
            while let Ok((handle, _)) = self.listener.accept() {
                self.handles.push(handle);
            }
        }
        assert_eq!(self.handles.len(), usize::from(first - 1 + count), "all are open");
        first
    }

    /// Bytes that the host has allocated since its beginning, and those that it accounts for.
    fn held(&mut self) -> (u64, u64) {
        self.poll();
        lock(&self.wire).block = BytesMut::new();
        let live = LIVE.load(Relaxed) - self.base;
        (live.max(0) as u64, self.stack.usage().memory_pages * 4096)
    }

    /// Prints what the host holds, and checks it: `most` bytes for each connection beside the
    /// connection itself, and no more than twice what it accounts for.
    fn judge(&mut self, name: &str, connections: u64, most: u64) {
        let (live, accounted) = self.held();
        let each = live / connections.max(1);
        println!(
            "{name:<28} {connections:>6} connections {live:>10} bytes, {each:>7} each; \
             {accounted:>10} accounted for"
        );
        let own = connections * CONNECTION;
        assert!(live <= own + connections * most, "{name}: {each} bytes each");
        assert!(live <= own + 2 * accounted, "{name}: {live} bytes, {accounted} accounted for");
    }

    /// Forgets all connections. Nothing may be left of them.
    fn end(mut self, name: &str) {
        self.handles.clear();
        self.pass(Nanos::from_secs(1000));
        let usage = self.stack.usage();
        let tcp = usage.tcp;
        assert_eq!(
            (tcp.connections, tcp.orphans, tcp.time_wait, tcp.requests),
            (0, 0, 0, 0),
            "{name}"
        );
        assert_eq!(usage.memory_pages, 0, "{name}");
        // Tables and pools keep some of what they had, but not in proportion.
        let (live, _) = self.held();
        assert!(live < 12 << 20, "{name}: {live} bytes are left");
    }
}

fn holes() {
    let mut attack = Attack::new(&[]);
    let first = attack.open(100, 1460);
    for port in first..first + 100 {
        for hole in 0..20_000 {
            attack.send(port, 1 + 2 * hole, b"x", Flags::empty());
        }
    }
    attack.judge("holes", 100, 66_000);
    attack.end("holes");
}

fn holes_from_the_far_end() {
    let mut attack = Attack::new(&[]);
    let first = attack.open(20, 1460);
    for port in first..first + 20 {
        for hole in (0..20_000).rev() {
            attack.send(port, 1 + 2 * hole, b"x", Flags::empty());
        }
    }
    attack.judge("holes from the far end", 20, 66_000);
    attack.end("holes from the far end");
}

fn holes_between_segments() {
    let mut attack = Attack::new(&[]);
    let first = attack.open(20, 1460);
    for port in first..first + 20 {
        for hole in 0..22 {
            attack.send(port, 1 + 2900 * hole, &[7; 1448], Flags::empty());
        }
    }
    attack.judge("holes between segments", 20, 45_000);
    attack.end("holes between segments");
}

fn single_bytes_that_nobody_reads() {
    let mut attack = Attack::new(&[]);
    let first = attack.open(50, 1460);
    for port in first..first + 50 {
        for offset in 0..20_000 {
            attack.send(port, offset, b"x", Flags::empty());
        }
    }
    attack.judge("single bytes", 50, 65_000);
    attack.end("single bytes");
}

/// The blocks of the device are full of what others sent and the host has dropped.
fn super_frames_in_blocks_of_others() {
    let mut attack = Attack::new(&[]);
    let first = attack.open(10, 1460);
    for round in 0..8 {
        for port in first..first + 10 {
            let (seq, ack) = (ISS + 1 + 5000 * round, attack.ack(port));
            let payload = Bytes::from_static(&[7; 5000]).into();
            let (flags, gso_size) = (Flags::ACK | Flags::PSH, 1250);
            let frame = Segment {
                seq,
                ack,
                flags,
                window: 65_535,
                payload,
                gso_size,
                ..Segment::default()
            };
            attack.segment(port, frame);
            for _ in 0..180 {
                let payload = Bytes::from_static(&[0; 1448]).into();
                let flags = Flags::RST;
                attack.segment(60_000, Segment { flags, payload, ..Segment::default() });
            }
        }
    }
    attack.poll();
    attack.pass(Nanos::from_secs(3));
    attack.judge("super-frames among others", 10, 60_000);
    attack.end("super-frames among others");
}

fn handshakes_that_nobody_completes() {
    let mut attack =
        Attack::new(&[("net.ipv4.tcp_max_syn_backlog", "4096"), ("net.ipv4.tcp_syncookies", "0")]);
    attack.knock(1000, 20_000, 1460);
    assert_eq!(attack.stack.usage().tcp.requests, 4096);
    let (live, _) = attack.held();
    println!("handshakes: {} bytes each", live / 4096);
    assert!(live / 4096 < 400, "{live}");
    attack.end("handshakes");
}

fn writers_to_closed_windows(bytes: usize, mss: u16, most: u64) {
    let mut attack = Attack::new(&[]);
    let first = attack.open(1000, mss);
    for (port, handle) in (first..first + 1000).zip(attack.handles[1..].to_vec()) {
        for part in vec![7; bytes].chunks(300) {
            let _ = handle.write(attack.now, part);
        }
        let (ack, flags) = (attack.ack(port), Flags::ACK);
        attack.segment(port, Segment { seq: ISS + 1, ack, flags, ..Segment::default() });
    }
    attack.poll();
    attack.judge(&format!("{bytes} written, MSS {mss}"), 1000, most);
    attack.end("writers");
}

fn fins_that_are_never_acknowledged() {
    let mut attack = Attack::new(&[]);
    let first = attack.open(5000, 1460);
    for port in first..first + 5000 {
        attack.send(port, 0, b"", Flags::FIN);
    }
    attack.poll();
    attack.handles.clear();
    attack.pass(Nanos::from_secs(1));
    let usage = attack.stack.usage();
    assert_eq!((usage.tcp.orphans, usage.tcp.connections), (5000, 0));
    let (live, _) = attack.held();
    println!("orphans: {} bytes each", live / 5000);
    assert!(live / 5000 < 480, "tables that have grown by doubling included: {live}");
    attack.end("orphans");
}

fn fins_that_are_never_answered() {
    let mut attack = Attack::new(&[]);
    let first = attack.open(5000, 1460);
    attack.handles.clear();
    attack.poll();
    for port in first..first + 5000 {
        attack.send(port, 0, b"", Flags::empty());
    }
    attack.poll();
    let usage = attack.stack.usage();
    assert_eq!((usage.tcp.time_wait, usage.tcp.connections), (5000, 0));
    let (live, _) = attack.held();
    println!("FIN-WAIT-2: {} bytes each", live / 5000);
    assert!(live / 5000 < 480, "tables that have grown by doubling included: {live}");
    attack.end("FIN-WAIT-2");
}

fn everything_is_bounded_by_tcp_mem() {
    let mut attack = Attack::new(&[("net.ipv4.tcp_mem", "1024 1536 2048")]);
    let first = attack.open(1000, 1460);
    for round in 0..40 {
        for port in first..first + 1000 {
            attack.send(port, 1448 * round, &[7; 1448], Flags::empty());
        }
    }
    assert!(attack.stack.usage().is_under_pressure);
    assert!(attack.stack.tcp_counter(Counter::RcvQDrop) > 0);
    let (live, accounted) = attack.held();
    println!("tcp_mem: {live} bytes, {accounted} accounted for");
    assert!(accounted <= 2048 * 4096 + (1000 * 4096), "{accounted}");
    assert!(live <= 1000 * CONNECTION + 2 * accounted, "{live}");
    attack.end("tcp_mem");
}

/// One test, since there is one allocator.
#[test]
fn what_attacks_make_a_host_allocate_is_bounded_and_accounted_for() {
    holes();
    holes_from_the_far_end();
    holes_between_segments();
    single_bytes_that_nobody_reads();
    handshakes_that_nobody_completes();
    writers_to_closed_windows(300, 1460, 4_500);
    writers_to_closed_windows(3_000, 1460, 13_000);
    writers_to_closed_windows(3_000, 48, 90_000);
    writers_to_closed_windows(100_000, 1460, 120_000);
    super_frames_in_blocks_of_others();
    fins_that_are_never_acknowledged();
    fins_that_are_never_answered();
    everything_is_bounded_by_tcp_mem();
}
