//! Sealing and opening packets by three crates of WireGuard's protocol, one thread, in turn:
//! gigabytes of packets per second of processor time, and allocations per packet.
//!
//! `cargo run --release --manifest-path benches/wireguard_protocol/Cargo.toml [BYTES]`

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: it hands on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Packets that are sealed and opened in turn: those of one super-frame.
const BATCH: usize = 44;
const TIME: Duration = Duration::from_millis(700);

/// Two ends with a session.
trait Tunnel {
    fn seal(&mut self, packet: &[u8], datagrams: &mut Vec<Vec<u8>>);
    fn open(&mut self, datagram: &[u8], packet: &mut [u8]);
}

struct Sanstun {
    near: sanstun::Tunnel,
    far: sanstun::Tunnel,
    interface: sanstun::Interface,
    now: Instant,
}

impl Sanstun {
    fn new() -> Self {
        let (now, unix) = (Instant::now(), Duration::from_secs(1));
        let interface = |seed| {
            sanstun::Interface::new(zeroize::Zeroizing::new([seed; 32]), now, unix)
        };
        let (mut near, mut far) = (interface(1), interface(2));
        let config = sanstun::TunnelConfig::default;
        let mut to_far = near.new_tunnel(far.static_public(), config(), now).unwrap();
        let mut to_near = far.new_tunnel(near.static_public(), config(), now).unwrap();
        let from: SocketAddr = "192.0.2.1:1".parse().unwrap();
        let initiation = to_far.initiate_handshake(now).unwrap();
        let sanstun::Received::Message(sanstun::ReceivedMessage::HandshakeInitiation(message)) =
            far.receive(from, &initiation, now).unwrap()
        else {
            panic!()
        };
        let response = to_near.handle_handshake_initiation(message, now).unwrap();
        let sanstun::Received::Message(sanstun::ReceivedMessage::HandshakeResponse(message)) =
            near.receive(from, &response, now).unwrap()
        else {
            panic!()
        };
        to_far.handle_handshake_response(message, now).unwrap();
        Self { near: to_far, far: to_near, interface: far, now }
    }
}

impl Tunnel for Sanstun {
    fn seal(&mut self, packet: &[u8], datagrams: &mut Vec<Vec<u8>>) {
        for datagram in datagrams {
            let pending = self.near.begin_encapsulate(self.now).unwrap();
            let len = pending.encrypt(packet, datagram).unwrap().len();
            datagram.truncate(len);
        }
    }

    fn open(&mut self, datagram: &[u8], packet: &mut [u8]) {
        let from: SocketAddr = "192.0.2.1:1".parse().unwrap();
        let sanstun::Received::Message(sanstun::ReceivedMessage::TransportData(data)) =
            self.interface.receive(from, datagram, self.now).unwrap()
        else {
            panic!()
        };
        let opened = self.far.begin_decapsulate(data, self.now).unwrap();
        let opened = opened.decrypt(datagram, packet);
        self.far.commit_decapsulate(opened, self.now).unwrap();
    }
}

struct Boringtun {
    near: boringtun::noise::Tunn,
    far: boringtun::noise::Tunn,
}

impl Boringtun {
    fn new() -> Self {
        use boringtun::noise::{Tunn, TunnResult};
        use boringtun::x25519::{PublicKey, StaticSecret};
        let keys = [StaticSecret::from([1; 32]), StaticSecret::from([2; 32])];
        let public = [PublicKey::from(&keys[0]), PublicKey::from(&keys[1])];
        let [first, second] = keys;
        let mut near = Tunn::new(first, public[1], None, None, 1, None);
        let mut far = Tunn::new(second, public[0], None, None, 2, None);
        let (mut buffer, mut answer, mut rest) = ([0; 2048], [0; 2048], [0; 2048]);
        let TunnResult::WriteToNetwork(initiation) =
            near.format_handshake_initiation(&mut buffer, false)
        else {
            panic!()
        };
        let TunnResult::WriteToNetwork(response) = far.decapsulate(None, initiation, &mut answer)
        else {
            panic!()
        };
        let TunnResult::WriteToNetwork(keepalive) = near.decapsulate(None, response, &mut rest)
        else {
            panic!()
        };
        let mut done = [0; 2048];
        far.decapsulate(None, keepalive, &mut done);
        Self { near, far }
    }
}

impl Tunnel for Boringtun {
    fn seal(&mut self, packet: &[u8], datagrams: &mut Vec<Vec<u8>>) {
        for datagram in datagrams {
            let boringtun::noise::TunnResult::WriteToNetwork(sealed) =
                self.near.encapsulate(packet, datagram)
            else {
                panic!()
            };
            let len = sealed.len();
            datagram.truncate(len);
        }
    }

    fn open(&mut self, datagram: &[u8], packet: &mut [u8]) {
        let opened = self.far.decapsulate(None, datagram, packet);
        assert!(matches!(opened, boringtun::noise::TunnResult::WriteToTunnelV4(..)));
    }
}

struct Gotatun {
    near: gotatun::noise::Tunn,
    far: gotatun::noise::Tunn,
}

impl Gotatun {
    fn new() -> Self {
        use gotatun::noise::index_table::IndexTable;
        use gotatun::noise::rate_limiter::RateLimiter;
        use gotatun::noise::{Tunn, TunnResult};
        use gotatun::x25519::{PublicKey, StaticSecret};
        let keys = [StaticSecret::from([1; 32]), StaticSecret::from([2; 32])];
        let public = [PublicKey::from(&keys[0]), PublicKey::from(&keys[1])];
        let [first, second] = keys;
        let limiter = |key| Arc::new(RateLimiter::new(key, 100));
        let table = IndexTable::from_os_rng;
        let mut near = Tunn::new(first, public[1], None, None, table(), limiter(&public[0]));
        let mut far = Tunn::new(second, public[0], None, None, table(), limiter(&public[1]));
        let initiation = near.format_handshake_initiation(false).unwrap();
        let TunnResult::WriteToNetwork(response) = far.handle_incoming_packet(initiation.into())
        else {
            panic!()
        };
        let TunnResult::WriteToNetwork(keepalive) = near.handle_incoming_packet(response) else {
            panic!()
        };
        far.handle_incoming_packet(keepalive);
        Self { near, far }
    }
}

impl Tunnel for Gotatun {
    fn seal(&mut self, packet: &[u8], datagrams: &mut Vec<Vec<u8>>) {
        use gotatun::packet::Packet;
        for datagram in datagrams {
            // Its callers hand packets over; the copy into one stands for a read into it.
            let mut owned = bytes::BytesMut::with_capacity(packet.len());
            owned.extend_from_slice(packet);
            let Ok(sealed) = self.near.encapsulate_with_session(Packet::from_bytes(owned)) else {
                panic!()
            };
            let sealed = sealed.into_bytes();
            datagram.truncate(sealed.len());
            datagram.copy_from_slice(&sealed);
        }
    }

    fn open(&mut self, datagram: &[u8], packet: &mut [u8]) {
        use gotatun::packet::{Packet, WgKind};
        let mut owned = bytes::BytesMut::with_capacity(datagram.len());
        owned.extend_from_slice(datagram);
        let WgKind::Data(data) = Packet::from_bytes(owned).try_into_wg().unwrap() else {
            panic!()
        };
        let Ok(opened) = self.far.decapsulate_with_session(data) else { panic!() };
        packet[..opened.len()].copy_from_slice(&opened);
    }
}

/// One crate: seconds of sealing and of opening per packet, and allocations of each.
fn measure(tunnel: &mut dyn Tunnel, bytes: usize) -> ([f64; 2], [f64; 2]) {
    let mut packet = vec![7; bytes];
    packet[..4].copy_from_slice(&[0x45, 0, (bytes >> 8) as u8, bytes as u8]);
    let mut datagrams = vec![vec![0; bytes + 64]; BATCH];
    let mut opened = vec![0; bytes + 64];
    let (mut times, mut allocations, mut packets) = ([Duration::ZERO; 2], [0; 2], 0);
    let begin = Instant::now();
    while begin.elapsed() < TIME {
        datagrams.iter_mut().for_each(|datagram| datagram.resize(bytes + 64, 0));
        let (start, before) = (Instant::now(), ALLOCATIONS.load(Ordering::Relaxed));
        tunnel.seal(&packet, &mut datagrams);
        times[0] += start.elapsed();
        allocations[0] += ALLOCATIONS.load(Ordering::Relaxed) - before;
        let (start, before) = (Instant::now(), ALLOCATIONS.load(Ordering::Relaxed));
        for datagram in &datagrams {
            tunnel.open(datagram, &mut opened);
        }
        times[1] += start.elapsed();
        allocations[1] += ALLOCATIONS.load(Ordering::Relaxed) - before;
        packets += BATCH as u64;
    }
    let each = |value: f64| value / packets as f64;
    (times.map(|time| each(time.as_secs_f64())), allocations.map(|count| each(count as f64)))
}

fn main() {
    let bytes = std::env::args().nth(1).map_or(1420, |text| text.parse().expect("bytes"));
    let mut crates: [(&str, Box<dyn Tunnel>); 3] = [
        ("sanstun 0.1.0", Box::new(Sanstun::new())),
        ("boringtun 0.7.1", Box::new(Boringtun::new())),
        ("gotatun 0.10.2 (aws-lc)", Box::new(Gotatun::new())),
    ];
    println!("packets of {bytes} bytes: GB/s of one core (best of five rounds), allocations");
    println!("{:24} {:>6} {:>6} {:>6} {:>6}", "", "seal", "open", "seal", "open");
    let mut best = [[f64::MAX; 2]; 3];
    let mut allocations = [[0.0; 2]; 3];
    for _ in 0..5 {
        for (index, (_, tunnel)) in crates.iter_mut().enumerate() {
            let (times, counts) = measure(&mut **tunnel, bytes);
            best[index] = [best[index][0].min(times[0]), best[index][1].min(times[1])];
            allocations[index] = counts;
        }
    }
    for (index, (name, _)) in crates.iter().enumerate() {
        let [seal, open] = best[index].map(|time| bytes as f64 / time / 1e9);
        let [sealing, opening] = allocations[index];
        println!("{name:24} {seal:6.2} {open:6.2} {sealing:6.2} {opening:6.2}");
    }
}
