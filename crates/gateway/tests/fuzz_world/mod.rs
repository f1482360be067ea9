//! A gateway on a cable, whose guest is a fuzz target. The far sides are in memory and send back
//! what they get.
#![allow(dead_code, reason = "no target takes everything")]

// The example has a `main` of its own.
#[path = "../../../neap/examples/device.rs"]
mod device;

#[path = "../../../stack/tests/fuzz_source/mod.rs"]
pub(crate) mod source;

use bytes::Bytes;
use etherparse::{
    IcmpEchoHeader, Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, PacketBuilderStep,
    SlicedPacket, TcpSlice, TransportSlice,
};
use neap::device::Medium;
use neap::{Events, InterfaceConfig, Poller, Stack};
use neap_gateway::{
    Arrived, Client, Destination, Dhcp6Config, DhcpConfig, End, Far, FarDatagrams, Gateway,
    GatewayConfig, GatewayHandle, Manner, Policy, ReceiveRoom, Resolver, Sent, Translation,
    Undelivered, Upstream, take_front,
};
use source::Source;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Once};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub(crate) const GUEST: [u8; 4] = [10, 0, 2, 100];
pub(crate) const GUEST_V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
/// Addresses that the guest sends to: far ones, the gateway, its resolver, everybody, the host's
/// own.
pub(crate) const FAR: [[u8; 4]; 6] = [
    [192, 0, 2, 7],
    [192, 0, 2, 8],
    [10, 0, 2, 2],
    [10, 0, 2, 3],
    [255, 255, 255, 255],
    [127, 0, 0, 1],
];
pub(crate) const FAR_V6: [[u8; 16]; 2] = [
    [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7],
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
];
/// Ports that mean something to a gateway or to its far sides.
pub(crate) const PORTS: [u16; 8] = [80, 81, 82, 83, 53, 67, 547, 7];
/// Ports of far sides that are refused at once, fail later, and never open.
const REFUSED: u16 = 81;
const FAILS: u16 = 82;
const SILENT: u16 = 83;

pub(crate) const MOST_FLOWS: usize = 4;
pub(crate) const MOST_MAPPINGS: usize = 4;
/// Packets of one input.
pub(crate) const MOST_PACKETS: usize = 64;
/// Time for an answer of the gateway that the input turns around.
pub(crate) const PATIENCE: Duration = Duration::from_millis(2);

/// Far sides that are there.
#[derive(Default)]
struct Count {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A place among the far sides.
struct Place(Arc<Count>);

impl Place {
    fn new(count: &Arc<Count>) -> Self {
        let now = count.now.fetch_add(1, SeqCst) + 1;
        count.most.fetch_max(now, SeqCst);
        Self(count.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, SeqCst);
    }
}

/// Fails in the gateway's thread if the policy is against a destination.
fn assert_allowed(to: &Destination) {
    assert!(Policy::without_host().allows(to.address.ip()), "{to:?} is denied");
}

/// Far sides in memory.
struct Mirrors(Arc<Count>);

impl Upstream for Mirrors {
    fn connect(&self, to: &Destination, _: Client) -> io::Result<Box<dyn Far>> {
        assert_allowed(to);
        let port = to.address.port();
        if port == REFUSED {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        Ok(Box::new(Mirror { near, far, port, _place: Place::new(&self.0) }))
    }

    fn datagrams(&self, to: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
        assert_allowed(to);
        let (near, far) = UnixDatagram::pair()?;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        let senders = VecDeque::new();
        Ok(Box::new(DatagramMirror { near, far, senders, _place: Place::new(&self.0) }))
    }
}

struct Mirror {
    near: UnixStream,
    far: UnixStream,
    port: u16,
    _place: Place,
}

impl Far for Mirror {
    fn is_open(&mut self) -> io::Result<bool> {
        match self.port {
            FAILS => Err(ErrorKind::HostUnreachable.into()),
            port => Ok(port != SILENT),
        }
    }

    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
        poller.add(&self.near, token, events)
    }
}

impl End for Mirror {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        let mut data = [0; 4096];
        let count = self.near.read(&mut data)?;
        Ok((count > 0).then(|| Bytes::copy_from_slice(&data[..count])))
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        let Some(data) = pieces.front_mut() else { return Ok(0) };
        let sent = self.near.write(&data[..data.len().min(most)])?;
        take_front(pieces, sent);
        let mut back = [0; 4096];
        // What is not taken back in time is lost, which is the guest's matter.
        while let Ok(count) = self.far.read(&mut back)
            && count > 0
            && self.far.write_all(&back[..count]).is_ok()
        {}
        Ok(sent)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.near.shutdown(Shutdown::Write)?;
        self.far.shutdown(Shutdown::Write)
    }

    fn reset(&mut self) {
        let _ = self.near.shutdown(Shutdown::Both);
    }
}

struct DatagramMirror {
    near: UnixDatagram,
    far: UnixDatagram,
    senders: VecDeque<SocketAddr>,
    _place: Place,
}

impl FarDatagrams for DatagramMirror {
    fn send(&mut self, datagrams: &[Bytes], to: &Destination, _: Manner) -> Sent {
        assert_allowed(to);
        let sent = |data: &&Bytes| self.far.send(data).is_ok();
        let count = datagrams.iter().take_while(sent).count();
        self.senders.extend(std::iter::repeat_n(to.address, count));
        Sent { count, ..Sent::default() }
    }

    fn receive(&mut self, room: &mut ReceiveRoom) -> io::Result<Arrived> {
        let count = self.near.recv(room.buffer())?;
        let from = self.senders.pop_front().ok_or(ErrorKind::InvalidData)?;
        Ok(Arrived::one(from, room.take(0..count)))
    }

    fn undelivered(&mut self, _: &mut [u8]) -> Option<Undelivered> {
        None
    }

    fn enter(&self, poller: &Poller, token: u64) -> io::Result<()> {
        poller.add(&self.near, token, Events::IN | Events::ET)
    }
}

pub(crate) fn config() -> GatewayConfig {
    let mut config = GatewayConfig::default();
    let (server, first) = (Ipv4Addr::from(FAR[2]), Ipv4Addr::from(GUEST));
    let network = "10.0.2.0/24".parse().expect("a network");
    config.policy = Policy::without_host();
    config.resolver = Resolver::Names;
    let resolver = SocketAddr::new(IpAddr::from(FAR[3]), 53);
    config.translations.push(Translation::resolver(resolver));
    config.dhcp = Some(DhcpConfig::new(server, network, first));
    config.dhcp6 =
        Some(Dhcp6Config::new(Ipv6Addr::from(FAR_V6[1]), Some(Ipv6Addr::from(GUEST_V6))));
    (config.most_flows, config.most_mappings) = (MOST_FLOWS, MOST_MAPPINGS);
    config
}

/// The packet that an input asks for; nothing if it makes no sense. `last` is what the gateway
/// sent.
pub(crate) fn packet(source: &mut Source<'_>, last: &mut Option<Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let write = |built: Result<(), etherparse::err::packet::BuildWriteError>, bytes: Vec<u8>| {
        built.map(|()| bytes).unwrap_or_default()
    };
    let kind = source.byte();
    match kind % 8 {
        0 => {
            let len = source.short() % 1500;
            source.take(len.into()).to_vec()
        }
        // A turned packet comes most often, as it continues something.
        1..=3 => last.take().and_then(|packet| turned(&packet, source)).unwrap_or_default(),
        4 => {
            let (flags, port, seq) = (source.byte(), source.pick(&PORTS), source.byte());
            let own = 40_000 + u16::from(source.byte() % 8);
            let tcp = from_guest(source).tcp(own, port, seq.into(), source.short());
            let mut tcp = tcp;
            tcp = if flags & 1 == 0 { tcp.syn() } else { tcp };
            tcp = if flags & 2 == 0 { tcp } else { tcp.ack(source.short().into()) };
            tcp = if flags & 4 == 0 { tcp } else { tcp.fin() };
            tcp = if flags & 8 == 0 { tcp } else { tcp.rst() };
            let len = source.byte();
            let built = tcp.write(&mut bytes, source.take(len.into()));
            write(built, bytes)
        }
        5 | 6 => {
            let (own, port) = (source.pick(&[40_000, 40_001, 68, 546]), source.pick(&PORTS));
            let udp = from_guest(source).udp(own, port);
            let len = source.short() % 1200;
            let built = udp.write(&mut bytes, source.take(len.into()));
            write(built, bytes)
        }
        _ => {
            let echo = IcmpEchoHeader { id: source.byte().into(), seq: source.byte().into() };
            let len = source.byte();
            let built = if source.byte() & 1 == 0 {
                let icmp = PacketBuilder::ipv4(GUEST, source.pick(&FAR), 64);
                icmp.icmpv4(Icmpv4Type::EchoRequest(echo))
                    .write(&mut bytes, source.take(len.into()))
            } else {
                let icmp = PacketBuilder::ipv6(GUEST_V6, source.pick(&FAR_V6), 64);
                icmp.icmpv6(Icmpv6Type::EchoRequest(echo))
                    .write(&mut bytes, source.take(len.into()))
            };
            write(built, bytes)
        }
    }
}

fn from_guest(source: &mut Source<'_>) -> PacketBuilderStep<etherparse::IpHeaders> {
    let is_v4 = source.byte() & 3 != 0;
    if is_v4 {
        PacketBuilder::ipv4(GUEST, source.pick(&FAR), source.pick(&[64, 1, 2]))
    } else {
        PacketBuilder::ipv6(GUEST_V6, source.pick(&FAR_V6), source.pick(&[64, 1, 2]))
    }
}

/// The answer to a packet of the gateway: a segment that fits, with data, its end or a reset.
pub(crate) fn turned(packet: &[u8], source: &mut Source<'_>) -> Option<Vec<u8>> {
    let parsed = SlicedPacket::from_ip(packet).ok()?;
    let builder = match parsed.net? {
        NetSlice::Ipv4(ip) => {
            PacketBuilder::ipv4(ip.header().destination(), ip.header().source(), 64)
        }
        NetSlice::Ipv6(ip) => {
            PacketBuilder::ipv6(ip.header().destination(), ip.header().source(), 64)
        }
        NetSlice::Arp(_) => return None,
    };
    let (flags, len) = (source.byte(), source.byte());
    let mut bytes = Vec::new();
    match parsed.transport? {
        TransportSlice::Tcp(theirs) => {
            let ack = theirs.sequence_number().wrapping_add(length(&theirs));
            let (own, port) = (theirs.destination_port(), theirs.source_port());
            let seq = theirs.acknowledgment_number();
            let mut tcp = builder.tcp(own, port, seq, 64_000).ack(ack);
            tcp = if flags & 1 == 0 { tcp } else { tcp.fin() };
            tcp = if flags & 6 == 6 { tcp.rst() } else { tcp };
            tcp.write(&mut bytes, source.take(len.into())).ok()?;
        }
        TransportSlice::Udp(theirs) => {
            let udp = builder.udp(theirs.destination_port(), theirs.source_port());
            udp.write(&mut bytes, source.take(len.into())).ok()?;
        }
        _ => return None,
    }
    if flags & 0x80 != 0 {
        let at = usize::from(source.byte()) % bytes.len();
        bytes[at] ^= source.byte();
    }
    Some(bytes)
}

/// What a segment has of the space of sequence numbers.
fn length(tcp: &TcpSlice<'_>) -> u32 {
    tcp.payload().len() as u32 + u32::from(tcp.syn()) + u32::from(tcp.fin())
}

/// Whether a thread of this process has panicked.
pub(crate) fn watch_threads() -> &'static AtomicBool {
    static PANICKED: AtomicBool = AtomicBool::new(false);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED.store(true, SeqCst);
            before(panic);
        }));
    });
    &PANICKED
}

/// A gateway that runs, in the threads that it has.
pub(crate) struct World {
    /// The guest's end of the cable.
    pub(crate) cable: UnixDatagram,
    handle: GatewayHandle,
    engine: JoinHandle<()>,
    count: Arc<Count>,
}

impl World {
    /// One on a link, with an interface that is `made` of an ordinary one.
    pub(crate) fn start(
        medium: Medium,
        config: GatewayConfig,
        made: impl FnOnce(InterfaceConfig) -> InterfaceConfig,
    ) -> Self {
        let (own, cable) = UnixDatagram::pair().expect("a pair");
        cable.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        cable.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        let mut device = device::device("cable", own).expect("a device");
        device.capabilities.medium = medium;
        let mut interface = InterfaceConfig::new(device).any_destination(true);
        for address in ["10.0.2.2/24", "10.0.2.3/24", "fd00::2/64"] {
            interface = interface.address(address.parse().expect("an address"));
        }
        let stack = Stack::builder().interface(made(interface)).build().expect("a stack");
        let count = Arc::<Count>::default();
        let mirrors = Box::new(Mirrors(count.clone()));
        let mut gateway = Gateway::new(Arc::new(stack), mirrors, config).expect("a gateway");
        let handle = gateway.handle();
        let engine = thread::spawn(move || gateway.run().expect("it runs"));
        Self { cable, handle, engine, count }
    }

    /// What the gateway sends next, if it sends something soon.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        let mut buffer = [0; 2000];
        let length = self.cable.recv(&mut buffer).ok()?;
        Some(buffer[..length].to_vec())
    }

    /// Ends it, and looks at what is left.
    pub(crate) fn end(self) {
        self.handle.stop();
        self.engine.join().expect("the gateway does not panic");
        assert_eq!(self.count.now.load(SeqCst), 0, "far sides are left");
        assert!(self.count.most.load(SeqCst) <= MOST_FLOWS + MOST_MAPPINGS, "too many far sides");
    }
}
