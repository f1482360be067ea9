//! A whole host fed with arbitrary packets through its device.
//!
//! Packets are nonsense, or what the host itself sent turned around and spoiled, so that they get
//! past the demultiplexer. `cargo test` runs it for a few seconds.
//! `BOLERO_RANDOM_TEST_TIME_MS=600000 cargo test --test fuzz_stack` runs it for ten minutes,
//! `BOLERO_RANDOM_SEED=...` repeats a failure, and `./fuzz` runs it under libFuzzer.

mod fuzz_source;

use bytes::Bytes;
use fuzz_source::Source;
use neap_stack::device::{
    Capabilities, Completed, Completion, Device, Medium, QueuePair, Received, RxChecksum, RxQueue,
    TxQueue,
};
use neap_stack::frame::Frame;
use neap_stack::interface::Address;
use neap_stack::router::RouterAdvertisement;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::socket::udp::UdpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack, StackConfig, UdpOptions};
use neap_stack::wire::{checksum, ipv4, ipv6};
use neap_tcp::config::{BufferSizes, Config};
use neap_tcp::time::{Instant, Nanos};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BACKLOG: usize = 8;
const TIME_WAITS: usize = 8;
const MTU: u16 = 1500;
/// Largest super-frame of the device.
const GSO: u32 = 30_000;

/// What a wire holds in both directions.
#[derive(Default)]
struct Wire {
    sent: VecDeque<Bytes>,
    frames: Vec<Frame>,
    arriving: VecDeque<Received>,
    is_full: bool,
}

type Shared = Arc<Mutex<Wire>>;

struct Tx(Shared);

impl TxQueue for Tx {
    fn submit(&mut self, frame: Frame, _: Instant) -> Result<(), Frame> {
        let mut wire = self.0.lock().unwrap();
        if wire.is_full {
            return Err(frame);
        }
        assert!(frame.len() - usize::from(frame.link_len) <= GSO as usize);
        wire.sent.push_back(frame.to_bytes());
        wire.frames.push(frame);
        Ok(())
    }

    fn flush(&mut self, _: Instant) {}

    fn reap(&mut self, _: Instant) -> Completed {
        let mut wire = self.0.lock().unwrap();
        if wire.is_full {
            return Completed::default();
        }
        let done = std::mem::take(&mut wire.frames);
        drop(wire);
        let bytes = done.iter().map(|frame| frame.len() as u64).sum();
        Completed { frames: done.len() as u32, bytes }
    }

    fn next_event(&self) -> Instant {
        let wire = self.0.lock().unwrap();
        let waits = wire.is_full || wire.frames.is_empty();
        if waits { Instant::FAR_FUTURE } else { Instant::ZERO }
    }
}

struct Rx(Shared);

impl RxQueue for Rx {
    fn receive(&mut self, _: Instant) -> Option<Received> {
        self.0.lock().unwrap().arriving.pop_front()
    }

    fn next_event(&self) -> Instant {
        let is_empty = self.0.lock().unwrap().arriving.is_empty();
        if is_empty { Instant::FAR_FUTURE } else { Instant::ZERO }
    }
}

struct World {
    now: Instant,
    stack: Stack,
    wire: Shared,
    is_ethernet: bool,
    listeners: Vec<ListenerHandle>,
    streams: Vec<TcpHandle>,
    datagrams: UdpHandle,
    /// What the host sent lately, to be turned around.
    seen: VecDeque<Bytes>,
}

fn config(source: &mut Source<'_>) -> StackConfig {
    let buffers = BufferSizes { min: 4096, default: 16_384, max: 100_000 };
    let config = Config {
        tcp_syncookies: source.pick(&[1, 0, 2]),
        tcp_max_syn_backlog: 8,
        tcp_wmem: buffers,
        tcp_rmem: buffers,
        tcp_ecn: 1,
        tcp_abort_on_overflow: source.bit(),
        tcp_max_tw_buckets: TIME_WAITS as u32,
        ipfrag_high_thresh: 50_000,
        ..Config::default()
    };
    StackConfig { seed: 7, config, ..StackConfig::default() }
}

impl World {
    fn new(source: &mut Source<'_>) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let wire = Shared::default();
        let is_ethernet = source.bit();
        let medium = if is_ethernet { Medium::Ethernet([2, 0, 0, 0, 0, 1]) } else { Medium::Ip };
        let capabilities = Capabilities {
            medium,
            mtu: MTU,
            gso_max_size: source.pick(&[GSO, u32::from(MTU)]),
            gso_max_segs: 64,
            gso_udp: false,
            checksum_tx: source.bit(),
            checksum_rx: true,
            completion: Completion::OnWire,
            pacing_shift: 10,
        };
        let pair = QueuePair {
            tx: Box::new(Tx(wire.clone())),
            rx: Box::new(Rx(wire.clone())),
            bulk: None,
            descriptor: None,
        };
        let device = Device {
            name: "fuzz".into(),
            capabilities,
            queues: vec![pair],
            steering: None,
            monitor: None,
        };
        let stack = Stack::new(config(source)).unwrap();
        let addresses = ["10.0.0.1/24", "fd00::1/64"].map(|text| text.parse::<Address>().unwrap());
        let interface = stack.add_interface(now, device, &addresses).unwrap();
        if is_ethernet {
            // It is a router of its link, and hears the others.
            stack.add_address(interface, "fe80::1/64".parse().unwrap()).unwrap();
            let prefixes = ["10.0.0.0/24", "fd00::/64"].map(|text| text.parse().unwrap());
            stack.set_proxies(interface, prefixes.to_vec()).unwrap();
            stack.set_hears_routers(interface, true).unwrap();
            let router = Some(RouterAdvertisement::default());
            stack.set_router_advertisement(now, interface, router).unwrap();
        }
        let options = || ListenOptions { backlog: BACKLOG as u32, ..ListenOptions::default() };
        let listen = |text: &str| stack.listen(text.parse().unwrap(), options()).unwrap();
        let listeners = vec![listen("10.0.0.1:80"), listen("[fd00::1]:80")];
        let datagrams =
            stack.bind_udp("0.0.0.0:53".parse().unwrap(), UdpOptions::default()).unwrap();
        let streams = ["10.0.0.2:90", "[fd00::2]:90"]
            .map(|text| text.parse::<SocketAddr>().unwrap())
            .map(|to| stack.connect(now, to, ConnectOptions::default()).unwrap());
        let streams = streams.into();
        let seen = VecDeque::new();
        Self { now, stack, wire, is_ethernet, listeners, streams, datagrams, seen }
    }

    /// Polls until the host is at rest, and takes what it sent.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 1000, "the host never comes to rest");
            let (next, _) = self.stack.poll(0, self.now);
            if next > self.now {
                break;
            }
        }
        let sent = std::mem::take(&mut self.wire.lock().unwrap().sent);
        assert!(sent.len() < 3000, "{} frames at once", sent.len());
        for packet in sent {
            let link = if self.is_ethernet { 14 } else { 0 };
            let bytes = &packet[link..];
            match bytes[0] >> 4 {
                4 => drop(ipv4::parse(bytes).expect("our own packet")),
                6 => drop(ipv6::parse(bytes).expect("our own packet")),
                _ => assert!(self.is_ethernet, "neither IPv4 nor IPv6"),
            }
            self.seen.push_back(packet);
        }
        let surplus = self.seen.len().saturating_sub(16);
        self.seen.drain(..surplus);
    }

    fn arrive(&mut self, source: &mut Source<'_>, packet: Vec<u8>) {
        let checksum =
            if source.byte().is_multiple_of(8) { RxChecksum::Unknown } else { RxChecksum::Good };
        let gso_size = source.pick(&[0, 0, 0, 0, 1, 1448, u16::MAX]);
        let received = Received { data: packet.into(), gso_size, checksum };
        self.wire.lock().unwrap().arriving.push_back(received);
    }

    /// A packet that the host sent, as if from the other end, with a few bytes changed.
    fn reflect(&self, source: &mut Source<'_>) -> Option<Vec<u8>> {
        let index = usize::from(source.byte()) % self.seen.len().max(1);
        let mut packet = self.seen.get(index)?.to_vec();
        let link = if self.is_ethernet { 14 } else { 0 };
        if self.is_ethernet {
            let (destination, rest) = packet.split_at_mut(6);
            destination.swap_with_slice(&mut rest[..6]);
        }
        let ip = &mut packet[link..];
        let transport =
            if ip[0] >> 4 == 4 { turn_around(ip, 12, 4) } else { turn_around(ip, 8, 16) };
        if let Some(transport) = transport {
            turn_transport(source, &mut ip[transport..]);
        }
        for _ in 0..source.byte() % 3 {
            let at = usize::from(source.short()) % ip.len();
            ip[at] = source.byte();
        }
        ip.get(..20)?;
        if source.byte().is_multiple_of(16) {
            let len = usize::from(source.short()) % packet.len();
            packet.truncate(len);
        } else {
            let more = usize::from(source.byte());
            packet.extend_from_slice(source.take(more % 100));
            fix_lengths(&mut packet[link..]);
        }
        Some(packet)
    }

    /// What a peer would say to a segment that the host sent: the handshake, then ACKs with data.
    fn answer(&self, source: &mut Source<'_>) -> Option<Vec<u8>> {
        let index = usize::from(source.byte()) % self.seen.len().max(1);
        let mut packet = self.seen.get(index)?.to_vec();
        let link = if self.is_ethernet { 14 } else { 0 };
        if self.is_ethernet {
            let (destination, rest) = packet.split_at_mut(6);
            destination.swap_with_slice(&mut rest[..6]);
        }
        let ip = &mut packet[link..];
        let (protocol, transport) = match ip[0] >> 4 {
            4 => (ip[9], turn_around(ip, 12, 4)?),
            6 => (ip[6], turn_around(ip, 8, 16)?),
            _ => return None,
        };
        let tcp = ip.get_mut(transport..).filter(|tcp| protocol == 6 && tcp.len() >= 20)?;
        tcp[..4].rotate_left(2);
        let header = usize::from(tcp[12] >> 4) * 4;
        let (flags, len) = (tcp[13], tcp.len() - header);
        let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        let end =
            number(4).wrapping_add(len as u32 + u32::from(flags & 1) + u32::from(flags >> 1 & 1));
        let is_syn = flags & 0x12 == 0x02;
        let seq = if is_syn { 77 } else { number(8) };
        tcp[13] = if is_syn { 0x12 } else { 0x10 };
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&end.to_be_bytes());
        packet.truncate(link + transport + header);
        if !is_syn {
            let data = usize::from(source.byte()) << (source.byte() % 4);
            packet.resize(packet.len() + data, 1);
        }
        fix_lengths(&mut packet[link..]);
        Some(packet)
    }

    /// Link and IP header that are right, and nonsense behind.
    fn behind_headers(&self, source: &mut Source<'_>) -> Vec<u8> {
        let len = usize::from(source.byte());
        let protocol = source.pick(&[6, 17, 1, 58, 0, 43, 44, 60]);
        let (flags, offset) = (source.byte() & 0x20, source.byte());
        let is_v4 = source.bit();
        let body = source.take(len);
        let mut packet = Vec::new();
        if self.is_ethernet {
            packet.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            packet.extend(if is_v4 { [8, 0] } else { [0x86, 0xdd] });
        }
        let link = packet.len();
        if is_v4 {
            packet.extend([0x45, 0, 0, 0, 0, 1, flags, offset & 15, 64, protocol, 0, 0]);
            packet.extend([10, 0, 0, 2, 10, 0, 0, 1]);
        } else {
            packet.extend([0x60, 0, 0, 0, 0, 0, protocol, 255]);
            packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        }
        packet.extend_from_slice(body);
        fix_lengths(&mut packet[link..]);
        packet
    }

    fn apply(&mut self, source: &mut Source<'_>) {
        let now = self.now;
        match source.byte() % 16 {
            0 => {
                let len = usize::from(source.byte());
                let packet = source.take(len).to_vec();
                self.arrive(source, packet);
            }
            1 | 2 => {
                let packet = self.behind_headers(source);
                self.arrive(source, packet);
            }
            3..6 => {
                if let Some(packet) = self.answer(source) {
                    self.arrive(source, packet);
                }
            }
            6..9 => {
                if let Some(packet) = self.reflect(source) {
                    self.arrive(source, packet);
                }
            }
            9 => {
                self.now +=
                    Nanos::from_micros(u64::from(source.short()) << source.pick(&[0, 4, 10]));
            }
            10 => {
                for listener in &self.listeners {
                    self.streams.extend(listener.accept().ok().map(|(stream, _)| stream));
                }
            }
            11 => {
                let len = usize::from(source.short()) % 5000;
                if let Some(stream) = self.stream(source) {
                    let _ = stream.write(now, &vec![1; len]);
                }
            }
            12 => {
                if let Some(stream) = self.stream(source) {
                    let _ = stream.read(now, &mut [0; 4000]);
                }
                let _ = self.datagrams.recv_from();
            }
            13 => match source.byte() % 4 {
                0 => {
                    let index = usize::from(source.byte()) % self.streams.len().max(1);
                    if index < self.streams.len() {
                        self.streams.swap_remove(index);
                    }
                }
                1 => {
                    if let Some(stream) = self.stream(source) {
                        stream.shutdown_write(now);
                    }
                }
                2 => {
                    let to =
                        source.pick(&["10.0.0.2:90", "[fd00::2]:90", "10.0.0.1:80", "9.9.9.9:1"]);
                    let to = to.parse().unwrap();
                    if self.streams.len() < 20 {
                        self.streams.extend(self.stack.connect(now, to, ConnectOptions::default()));
                    }
                }
                _ => {
                    let to = source.pick(&["10.0.0.2:53", "10.0.0.1:53", "10.0.0.255:53"]);
                    let data = Bytes::from(vec![0; usize::from(source.short()) % 4000]);
                    let _ = self.datagrams.send_to(now, data, Some(to.parse().unwrap()));
                }
            },
            14 => self.wire.lock().unwrap().is_full = source.byte().is_multiple_of(4),
            _ => self.settle(),
        }
    }

    fn stream(&self, source: &mut Source<'_>) -> Option<&TcpHandle> {
        self.streams.get(usize::from(source.byte()) % self.streams.len().max(1))
    }

    fn check(&self) {
        let usage = self.stack.usage();
        assert!(usage.tcp.time_wait <= TIME_WAITS, "{usage:?}");
        // What the application holds, the queues of two listeners, and orphans that still close.
        let (queued, waiting): (Vec<_>, Vec<_>) =
            self.listeners.iter().map(ListenerHandle::queued).unzip();
        assert!(
            queued.iter().chain(&waiting).all(|&count| count <= BACKLOG + 1),
            "{queued:?} {waiting:?}"
        );
        assert!(usage.udp == 1 && usage.tcp.listeners == 2);
    }
}

/// Swaps the addresses of `len` bytes at `at`. Returns where the transport header is.
fn turn_around(ip: &mut [u8], at: usize, len: usize) -> Option<usize> {
    let addresses = ip.get_mut(at..at + 2 * len)?;
    let (source, destination) = addresses.split_at_mut(len);
    source.swap_with_slice(destination);
    let start = if len == 4 { usize::from(ip[0] & 15) * 4 } else { 40 };
    (start < ip.len()).then_some(start)
}

/// Swaps the ports; of TCP also the numbers, and changes the flags.
fn turn_transport(source: &mut Source<'_>, transport: &mut [u8]) {
    if transport.len() < 20 {
        return;
    }
    transport[..4].rotate_left(2);
    transport[4..12].rotate_left(4);
    let flags = source.pick(&[0x10, 0x12, 0x02, 0x18, 0x11, 0x04, 0x14, 0x10, 0x10, 0x52]);
    transport[13] = flags;
    // A SYN of ours has no ACK number; an ACK is of what comes next.
    let mut ack = u32::from_be_bytes([transport[8], transport[9], transport[10], transport[11]]);
    ack = ack.wrapping_add(u32::from(source.byte() % 3));
    transport[8..12].copy_from_slice(&ack.to_be_bytes());
    let mut seq = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
    seq = seq.wrapping_add(u32::from(source.byte() % 3));
    transport[4..8].copy_from_slice(&seq.to_be_bytes());
}

/// Makes the length fields and the IPv4 header checksum right.
fn fix_lengths(ip: &mut [u8]) {
    let len = ip.len();
    match ip.first().map(|first| first >> 4) {
        Some(4) if len >= 20 => {
            ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            let header = (usize::from(ip[0] & 15) * 4).min(len);
            ip[10..12].fill(0);
            let sum = checksum::of(&ip[..header]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Some(6) if len >= 40 => ip[4..6].copy_from_slice(&(len as u16 - 40).to_be_bytes()),
        _ => {}
    }
}

fn run(bytes: &[u8]) {
    let mut source = Source(bytes);
    let mut world = World::new(&mut source);
    world.settle();
    while !source.0.is_empty() {
        world.apply(&mut source);
        if source.byte() % 4 != 0 {
            world.settle();
            world.check();
        }
    }
    world.wire.lock().unwrap().is_full = false;
    world.stack.shut_down(world.now);
    world.settle();
}

#[test]
fn stack() {
    bolero::check!()
        .with_test_time(Duration::from_secs(3))
        .with_max_len(8192)
        .with_shrink_time(Duration::from_secs(5))
        .for_each(|bytes: &[u8]| run(bytes));
}
