//! The tunnel in the lab: two hosts in virtual time, each on a device that wraps the engine around
//! the device of a link, with datagrams in packets of IPv4.

use super::*;
use crate::protocol::{Chosen, OVERHEAD, Seal, sealed_len};
use bytes::Bytes;
use neap_lab::app::{App, Step};
use neap_lab::link::{Link, LinkConfig, NicConfig, PathConfig};
use neap_lab::world::{End, HostId, World, WorldConfig};
use neap_stack::device::{
    Capabilities, Completed, Device, QueuePair, Received, RxChecksum, RxQueue, TxQueue,
};
use neap_stack::frame::{Frame, Headers};
use neap_stack::gso;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack, StackConfig};
use neap_stack::wire::checksum;
use neap_tcp::segment::Payload;
use neap_tcp::time::Rate;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

type Tunnel = Arc<Mutex<Engine<Chosen>>>;
/// When datagrams with packets inside were given to a link, and their lengths.
type Log = Arc<Mutex<Vec<(Instant, usize)>>>;

const OUTER: usize = 28;
const SERVER: &str = "10.0.0.2:80";
const PORT: u16 = 51820;

fn engine(end: usize, now: Instant) -> Tunnel {
    let keys = [PrivateKey::from([1; 32]), PrivateKey::from([2; 32])];
    let mut peer = Peer::new(keys[1 - end].public_key());
    peer.allowed_ips = vec![IpAddr::from([10, 0, 0, 2 - end as u8]).into()];
    peer.endpoint = Some(SocketAddr::from(([192, 0, 2, 2 - end as u8], PORT)));
    let mut config = WireguardConfig::new(keys[end].clone());
    config.peers = vec![peer];
    let (seed, unix) = (Zeroizing::new([end as u8; 32]), Duration::from_secs(1_000_000));
    let engine = Engine::new(&config, seed, Arc::default(), now, unix);
    Arc::new(Mutex::new(engine.expect("an engine")))
}

/// A device over that of a link, with a log of what it sends.
fn wrap(tunnel: &Tunnel, log: &Log, mut device: Device) -> Device {
    let pair = device.queues.pop().expect("a queue");
    let room = usize::from(device.capabilities.mtu) - OUTER - OVERHEAD;
    let mtu = (room - room % 16) as u16;
    let lower = device.capabilities.completion;
    let mut capabilities = Capabilities::new(device.capabilities.medium, mtu, lower);
    (capabilities.checksum_tx, capabilities.checksum_rx) = (true, true);
    let (tunnel_of_rx, held) = (tunnel.clone(), VecDeque::new());
    let tx = Sender { tunnel: tunnel.clone(), lower: pair.tx, held, log: log.clone() };
    let tx = Box::new(tx);
    let rx = Box::new(Receiver { tunnel: tunnel_of_rx, lower: pair.rx });
    let queue = QueuePair { tx, rx, bulk: None, descriptor: None };
    Device {
        name: "wg".to_owned(),
        capabilities,
        queues: vec![queue],
        steering: None,
        monitor: None,
    }
}

/// A datagram from this end.
fn outer(to: SocketAddr, datagram: Bytes, ecn: u8) -> Frame {
    let IpAddr::V4(to) = to.ip() else { panic!("IPv4 alone") };
    let [a, b, c, last] = to.octets();
    let mut headers = Headers::default();
    let ip = headers.prepend(OUTER);
    (ip[0], ip[1], ip[8], ip[9]) = (0x45, ecn, 64, 17);
    ip[2..4].copy_from_slice(&((OUTER + datagram.len()) as u16).to_be_bytes());
    ip[12..16].copy_from_slice(&[a, b, c, 3 - last]);
    ip[16..20].copy_from_slice(&[a, b, c, last]);
    let sum = checksum::of(&ip[..20]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    for field in [20, 22] {
        ip[field..field + 2].copy_from_slice(&PORT.to_be_bytes());
    }
    Frame::new(headers, Payload::from(datagram))
}

struct Sender {
    tunnel: Tunnel,
    lower: Box<dyn TxQueue>,
    /// Bytes of the frames that the link has; `None` for messages of the tunnel.
    held: VecDeque<Option<u64>>,
    log: Log,
}

impl Sender {
    fn send_messages(&mut self, now: Instant) {
        let mut tunnel = self.tunnel.lock().expect("no panic");
        tunnel.advance(now);
        for Outgoing { to, message } in tunnel.take_outgoing() {
            let frame = outer(to.peer, message.bytes().to_vec().into(), 0);
            if self.lower.submit(frame, now).is_ok() {
                self.held.push_back(None);
            }
        }
        self.lower.flush(now);
    }
}

impl TxQueue for Sender {
    fn submit(&mut self, mut frame: Frame, now: Instant) -> Result<(), Frame> {
        let header = Header::of_headers(frame.headers.as_slice()).expect("a packet");
        let (mut seals, len) = (Vec::new(), sealed_len(frame.len()));
        let way = self.tunnel.lock().expect("no panic").begin_send(
            header.destination,
            (1, len),
            &mut seals,
            now,
        );
        let Way::To(to) = way else {
            // The port keeps it until the handshake is over.
            self.send_messages(now);
            return Err(frame);
        };
        let mut datagram = vec![0; len];
        let mut seals = seals.into_iter();
        gso::write_packets(&frame, &mut Vec::new(), |packet| {
            seals.next().expect("one packet").seal(packet, &mut datagram);
        });
        let bytes = frame.len() as u64;
        let sealed = Frame {
            credit: frame.credit.take(),
            departure: frame.departure,
            flow: frame.flow,
            ecn: frame.ecn,
            ..outer(to.peer, datagram.into(), header.ecn)
        };
        if let Err(sealed) = self.lower.submit(sealed, now) {
            frame.credit = sealed.credit;
            return Err(frame);
        }
        self.held.push_back(Some(bytes));
        self.log.lock().expect("no panic").push((now, len));
        Ok(())
    }

    fn flush(&mut self, now: Instant) {
        self.lower.flush(now);
    }

    fn reap(&mut self, now: Instant) -> Completed {
        self.send_messages(now);
        let mut completed = Completed::default();
        for _ in 0..self.lower.reap(now).frames {
            if let Some(Some(bytes)) = self.held.pop_front() {
                completed.frames += 1;
                completed.bytes += bytes;
            }
        }
        completed
    }

    fn next_event(&self) -> Instant {
        self.lower.next_event().min(self.tunnel.lock().expect("no panic").deadline())
    }
}

struct Receiver {
    tunnel: Tunnel,
    lower: Box<dyn RxQueue>,
}

impl RxQueue for Receiver {
    fn receive(&mut self, now: Instant) -> Option<Received> {
        loop {
            let packet = self.lower.receive(now)?.data;
            let from = Header::parse(&packet).expect("a packet").source;
            let (ends, datagram) = (SocketAddr::new(from, PORT).into(), &packet[OUTER..]);
            let mut tunnel = self.tunnel.lock().expect("no panic");
            let Some((peer, open)) = tunnel.receive(ends, datagram, now) else { continue };
            let mut inner = vec![0; datagram.len()];
            let opened = open.open(datagram, &mut inner);
            let outer = Outer { ends, ecn: packet[1] & 3 };
            let taken = tunnel.commit((peer, opened), outer, datagram.len(), &mut inner, now);
            tunnel.committed(peer, now);
            if let Some(len) = taken {
                inner.truncate(len);
                let (data, checksum) = (Bytes::from(inner), RxChecksum::Good);
                return Some(Received { data, gso_size: 0, checksum });
            }
        }
    }

    fn next_event(&self) -> Instant {
        let tunnel = self.tunnel.lock().expect("no panic");
        let has_messages = !tunnel.outbox.is_empty();
        if has_messages { Instant::ZERO } else { self.lower.next_event().min(tunnel.deadline()) }
    }
}

/// Writes whenever it may.
struct Source {
    handle: Option<TcpHandle>,
    /// `SO_MAX_PACING_RATE`.
    pace: Rate,
}

impl App for Source {
    fn step(&mut self, stack: &Stack, now: Instant) -> Step {
        let connect = || {
            let remote = SERVER.parse().expect("an address");
            let mut options = ConnectOptions::default();
            options.options.max_pacing_rate = self.pace;
            stack.connect(now, remote, options).expect("a connection")
        };
        let handle = self.handle.get_or_insert_with(connect);
        let mut data = Bytes::from_static(&[7; 1 << 14]);
        let may_write = handle.readiness().bits().contains(Ready::WRITABLE);
        let did = may_write && handle.write_bytes(now, &mut data).is_ok();
        Step { did, ..Step::IDLE }
    }
}

/// Reads everything and counts it.
struct Sink {
    listener: ListenerHandle,
    handle: Option<TcpHandle>,
    bytes: Arc<AtomicU64>,
}

impl App for Sink {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        let mut did = false;
        if let Ok((handle, _)) = self.listener.accept() {
            (self.handle, did) = (Some(handle), true);
        }
        while let Some(handle) = &self.handle
            && let Ok(Some(data)) = handle.read_bytes(now)
        {
            assert!(data.iter().all(|byte| *byte == 7));
            self.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
            did = true;
        }
        Step { did, ..Step::IDLE }
    }
}

/// Two hosts, a tunnel between them, and an upload.
struct Uploading {
    world: World,
    link: Link,
    tunnels: [Tunnel; 2],
    logs: [Log; 2],
    bytes: Arc<AtomicU64>,
}

impl Uploading {
    fn new(rate: Rate, delay: Nanos) -> Self {
        Self::paced(rate, delay, Rate::UNLIMITED)
    }

    /// The same of a flow whose pacing has a limit.
    fn paced(rate: Rate, delay: Nanos, pace: Rate) -> Self {
        let mut world = World::new(WorldConfig::default());
        let hosts: [HostId; 2] =
            [(); 2].map(|()| world.add_host(StackConfig::default()).expect("a host"));
        let tunnels = [engine(0, world.now()), engine(1, world.now())];
        let (nic, path) = (NicConfig::default(), PathConfig::clean(rate, delay));
        let config = LinkConfig { nics: [nic.clone(), nic], paths: [path.clone(), path] };
        let [a, b] = ["10.0.0.1/24", "10.0.0.2/24"].map(|cidr| [cidr.parse().expect("one")]);
        let ends = [End::Host(hosts[0], &a), End::Host(hosts[1], &b)];
        let logs = <[Log; 2]>::default();
        let through = |end: usize, device| wrap(&tunnels[end], &logs[end], device);
        let id = world.connect_through(&config, ends, through).expect("a link");
        let link = world.link(id).clone();
        let bytes = Arc::<AtomicU64>::default();
        let server = SERVER.parse().expect("an address");
        let listener = world.stack(hosts[1]).listen(server, ListenOptions::default());
        let listener = listener.expect("a listener");
        world.add_app(hosts[1], Sink { listener, handle: None, bytes: bytes.clone() });
        world.add_app(hosts[0], Source { handle: None, pace });
        Self { world, link, tunnels, logs, bytes }
    }

    /// Bits per second inside during so many seconds.
    fn rate(&mut self, seconds: u64) -> u64 {
        let before = self.bytes.load(Ordering::Relaxed);
        let until = self.world.now() + Nanos::from_secs(seconds);
        self.world.run_until(until).expect("a sound world");
        (self.bytes.load(Ordering::Relaxed) - before) * 8 / seconds
    }

    fn handshakes(&self) -> u64 {
        let count =
            |tunnel: &Tunnel| tunnel.lock().expect("no panic").counters.handshakes_completed.get();
        self.tunnels.iter().map(count).sum()
    }
}

#[test]
fn an_upload_fills_a_link_and_its_keys_are_renewed_meanwhile() {
    let mut run = Uploading::new(Rate::from_bits(5_000_000), Nanos::from_millis(10));
    run.rate(10);
    // 1368 bytes of 1484 with the headers of the link.
    let rates: Vec<u64> = (0..30).map(|_| run.rate(10)).collect();
    assert!(rates.iter().all(|rate| *rate > 4_300_000), "{rates:?}");
    assert!((2..=4).contains(&run.handshakes()), "{}", run.handshakes());
}

#[test]
fn a_link_that_was_down_for_minutes_is_used_again() {
    let mut run = Uploading::new(Rate::from_bits(5_000_000), Nanos::from_millis(10));
    assert!(run.rate(10) > 4_000_000);
    run.link.set_down(0, true);
    run.link.set_down(1, true);
    assert!(run.rate(200) < 5000, "what was on its way");
    run.link.set_down(0, false);
    run.link.set_down(1, false);
    run.rate(150);
    assert!(run.rate(10) > 4_000_000);
}

/// Bytes of a sealed datagram of a full packet that are no payload: those of the tunnel, and
/// headers of IPv4 and TCP with time stamps.
const NO_PAYLOAD: usize = OVERHEAD + 52;
/// Datagrams at the beginning that pacing leaves alone: those of the first ten segments.
const UNPACED: usize = 12;

/// The largest number of payload bytes that a bucket ever holds which the upload's datagrams fill,
/// and which runs out at a rate.
fn largest_bucket(log: &Log, rate: Rate) -> u64 {
    let (mut held, mut most, mut last) = (0, 0, Instant::ZERO);
    let log = log.lock().expect("no panic");
    for &(at, len) in log.iter().filter(|(_, len)| *len > 1000).skip(UNPACED) {
        let out = u128::from(rate.0) * u128::from(at.since(last).0) / 1_000_000_000;
        held = u64::saturating_sub(held, out as u64) + (len - NO_PAYLOAD) as u64;
        (most, last) = (most.max(held), at);
    }
    most
}

#[test]
fn datagrams_of_a_paced_flow_are_spaced_as_its_segments() {
    let (link, pace) = (Rate::from_bits(100_000_000), Rate::from_bits(1_000_000));
    let segment = 1388;
    let mut run = Uploading::paced(link, Nanos::from_millis(10), pace);
    run.rate(5);
    let rate = run.rate(20);
    assert!((950_000..1_010_000).contains(&rate), "{rate}");
    // A frame has two segments, and one that is late shortens the gap behind it by half.
    let bucket = largest_bucket(&run.logs[0], pace);
    assert!(bucket <= 3 * segment, "{bucket}");
    // Bursts of one that is not paced are much longer.
    let mut run = Uploading::new(link, Nanos::from_millis(10));
    run.rate(5);
    let bucket = largest_bucket(&run.logs[0], pace);
    assert!(bucket > 30 * segment, "{bucket}");
}
