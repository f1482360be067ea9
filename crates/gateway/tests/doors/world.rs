//! Two stacks that are joined by a cable: doors lead into one, servers are on the other.

// The example has a `main` of its own.
#[allow(dead_code)]
#[path = "../../../neap/examples/device.rs"]
mod device;

use domain::base::iana::Rcode;
use domain::base::{Message, MessageBuilder, Name, Rtype, Ttl};
use domain::rdata::{A, Aaaa};
use neap::device::Device;
use neap::net::{Prefix, Route, RouteEntry};
use neap::{InterfaceConfig, Stack, TcpListener, UdpSocket};
use neap_gateway::doors::{
    Door, Doors, DoorsConfig, DoorsFigures, DoorsHandle, DoorsInspector, ResolveStrategy,
    TunnelResolver,
};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Far above what anything takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Addresses of the stack with the doors, and of the one with the servers.
pub(crate) const NEAR: &str = "10.1.0.1";
pub(crate) const FAR: &str = "10.1.0.2";
pub(crate) const FAR_V6: &str = "fd01::2";

/// Doors that run, and the stack behind them.
pub(crate) struct World {
    pub(crate) near: Arc<Stack>,
    pub(crate) far: Arc<Stack>,
    /// Where each door listens.
    pub(crate) at: Vec<Option<SocketAddr>>,
    pub(crate) handle: DoorsHandle,
    pub(crate) inspector: DoorsInspector,
    /// Names that the DNS server was asked for, each with whether it was for IPv6.
    pub(crate) asked: Arc<Mutex<Vec<(String, bool)>>>,
    thread: JoinHandle<io::Result<DoorsFigures>>,
}

/// An address of the host with a port of its choice.
pub(crate) fn any() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)
}

/// The devices at the two ends of a cable.
pub(crate) fn cable() -> (Device, Device) {
    let (one, other) = UnixDatagram::pair().expect("a pair");
    (device::device("one", one).expect("a device"), device::device("other", other).expect("one"))
}

/// Two stacks, each with IPv4, and with IPv6 if that is asked for.
pub(crate) fn stacks(has_v6: bool) -> (Arc<Stack>, Arc<Stack>) {
    let (one, other) = cable();
    let stack = |device, v4: &str, v6: &str| {
        let mut interface = InterfaceConfig::new(device);
        interface = interface.address(format!("{v4}/24").parse().expect("an address"));
        if has_v6 {
            interface = interface.address(format!("{v6}/64").parse().expect("an address"));
        }
        Arc::new(Stack::builder().interface(interface).build().expect("a stack"))
    };
    (stack(one, NEAR, "fd01::1"), stack(other, FAR, FAR_V6))
}

/// Gives a stack a route to all of IPv6, as a tunnel has it whose peer may have any address.
pub(crate) fn route_v6(stack: &Stack) {
    let interface = stack.host().interfaces()[0].id;
    let route = Route { interface, gateway: None, mtu: None, pref_src: None };
    let prefix = Prefix::of_all(Ipv6Addr::UNSPECIFIED.into());
    stack.add_route(RouteEntry { prefix, metric: 0, route }).expect("a route");
}

impl World {
    /// Doors of a tunnel with IPv4 alone.
    pub(crate) fn new(doors: Vec<Door>) -> Self {
        Self::with(doors, false, |_| {})
    }

    pub(crate) fn with(doors: Vec<Door>, has_v6: bool, set: impl FnOnce(&mut DoorsConfig)) -> Self {
        let (near, far) = stacks(has_v6);
        let servers = vec![SocketAddr::new(FAR.parse().expect("an address"), 53)];
        let strategy = ResolveStrategy::Auto;
        let resolver = TunnelResolver { servers, search: vec!["lan".to_owned()], strategy };
        let mut config = DoorsConfig::new(near.clone(), resolver, doors);
        set(&mut config);
        let asked = dns(&far);
        let mut doors = Doors::open(config).expect("doors");
        let (at, handle, inspector) = (doors.addresses(), doors.handle(), doors.inspector());
        let thread = thread::spawn(move || doors.run().map(|()| doors.figures()));
        Self { near, far, at, handle, inspector, asked, thread }
    }

    /// Where a door listens.
    pub(crate) fn at(&self, door: usize) -> SocketAddr {
        self.at[door].expect("it listens")
    }

    /// A client of a door.
    pub(crate) fn client(&self, door: usize) -> TcpStream {
        let stream = TcpStream::connect(self.at(door)).expect("the door is open");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// A server on the far side that does this with each connection.
    pub(crate) fn serve(&self, port: u16, with: impl Fn(neap::TcpStream) + Send + Sync + 'static) {
        serve(&self.far, port, with);
    }

    /// What happened, once the doors are closed.
    pub(crate) fn end(self) -> DoorsFigures {
        self.handle.stop();
        self.wait().expect("they run until they are stopped")
    }

    /// What happened, once the doors have ended by themselves.
    pub(crate) fn wait(self) -> io::Result<DoorsFigures> {
        self.thread.join().expect("no panic")
    }

    /// Waits until this holds of the figures.
    pub(crate) fn until(&self, holds: impl Fn(&DoorsFigures) -> bool) {
        let start = std::time::Instant::now();
        while !holds(&self.inspector.figures()) {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.inspector.figures());
            thread::yield_now();
        }
    }
}

/// Says why a test cannot run, where the harness does not keep it to itself.
pub(crate) fn skip(reason: &str) {
    use std::io::Write;
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
}

/// A server that does this with each connection.
pub(crate) fn serve(
    stack: &Arc<Stack>,
    port: u16,
    with: impl Fn(neap::TcpStream) + Send + Sync + 'static,
) {
    let listener = TcpListener::bind(stack, format!("[::]:{port}")).expect("a listener");
    let with = Arc::new(with);
    // It ends with the stack.
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let with = with.clone();
            thread::spawn(move || with(stream));
        }
    });
}

/// A server at port 7 of the far side that ends its own stream at once, and reads when it is told.
pub(crate) struct SlowReader {
    begin: Sender<()>,
    thread: JoinHandle<io::Result<usize>>,
}

impl SlowReader {
    /// More than it takes before it reads, and one piece.
    pub(crate) const BYTES: usize = 40_000;

    pub(crate) fn start(far: &Arc<Stack>) -> Self {
        far.set_sysctl("net.ipv4.tcp_rmem", "4096 16384 16384").expect("a small buffer");
        let listener = TcpListener::bind(far, format!("{FAR}:7")).expect("a listener");
        let (begin, told) = channel();
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            stream.shutdown(Shutdown::Write)?;
            told.recv().expect("the test tells");
            stream.read_to_end(&mut Vec::new())
        });
        Self { begin, thread }
    }

    /// Lets it read, and returns how many bytes came.
    pub(crate) fn read(self) -> io::Result<usize> {
        self.begin.send(()).expect("it waits");
        self.thread.join().expect("no panic")
    }
}

/// Sends back all that comes.
pub(crate) fn echo(stream: neap::TcpStream) {
    let mut stream = stream;
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
}

/// A DNS server. `both.test` and `server.lan` have addresses of both families; `cut.test` has one
/// over TCP alone; others have none.
pub(crate) fn dns(far: &Arc<Stack>) -> Arc<Mutex<Vec<(String, bool)>>> {
    let asked = Arc::<Mutex<Vec<(String, bool)>>>::default();
    let socket = UdpSocket::bind(far, "[::]:53").expect("a socket");
    let noted = asked.clone();
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((count, from)) = socket.recv_from(&mut bytes) {
            let answer = answer(&bytes[..count], false, &noted);
            let _ = socket.send_to(&answer, from);
        }
    });
    let noted = asked.clone();
    serve(far, 53, move |mut stream| {
        let mut length = [0; 2];
        while stream.read_exact(&mut length).is_ok() {
            let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut question).expect("a question");
            let answer = answer(&question, true, &noted);
            let length = u16::try_from(answer.len()).expect("short").to_be_bytes();
            stream.write_all(&[&length[..], &answer].concat()).expect("an answer");
        }
    });
    asked
}

/// A question for the IPv4 address of a name.
pub(crate) fn question(name: &str, id: u16) -> Vec<u8> {
    let mut message = MessageBuilder::new_vec();
    message.header_mut().set_id(id);
    let mut message = message.question();
    let name = Name::<Vec<u8>>::vec_from_str(name).expect("a name");
    message.push((name, Rtype::A)).expect("room");
    message.finish()
}

/// What [`dns`] answers to a question over UDP.
pub(crate) fn answer_over_udp(question: &[u8]) -> Vec<u8> {
    answer(question, false, &Mutex::default())
}

fn answer(question: &[u8], is_stream: bool, asked: &Mutex<Vec<(String, bool)>>) -> Vec<u8> {
    let question = Message::from_slice(question).expect("a message");
    let sole = question.sole_question().expect("a question");
    let (name, is_v6) = (sole.qname().to_string(), sole.qtype() == Rtype::AAAA);
    asked.lock().expect("no panic").push((name.clone(), is_v6));
    let is_cut = name == "cut.test" && !is_stream;
    let is_known = ["both.test", "server.lan", "cut.test"].contains(&name.as_str());
    let rcode = if is_known { Rcode::NOERROR } else { Rcode::NXDOMAIN };
    let mut answer = MessageBuilder::new_vec().start_answer(question, rcode).expect("room");
    answer.header_mut().set_tc(is_cut);
    if is_known && !is_cut {
        let ttl = Ttl::from_secs(60);
        let (v4, v6): (Ipv4Addr, Ipv6Addr) =
            (FAR.parse().expect("an address"), FAR_V6.parse().expect("an address"));
        if is_v6 {
            answer.push((sole.qname(), ttl, Aaaa::new(v6))).expect("room");
        } else {
            answer.push((sole.qname(), ttl, A::new(v4))).expect("room");
        }
    }
    answer.finish()
}

/// What a SOCKS5 server says to a request for this place, and the connection.
pub(crate) fn socks(world: &World, door: usize, place: &[u8]) -> (u8, TcpStream) {
    let mut stream = world.client(door);
    stream.write_all(&[&[5, 1, 0, 5, 1, 0][..], place].concat()).expect("sent");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[..3], [5, 0, 5]);
    (answer[3], stream)
}

/// A name as a place of SOCKS5.
pub(crate) fn named(name: &str, port: u16) -> Vec<u8> {
    let length = u8::try_from(name.len()).expect("short");
    [&[3, length][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

/// An address as a place of SOCKS5.
pub(crate) fn address(ip: &str, port: u16) -> Vec<u8> {
    match ip.parse().expect("an address") {
        IpAddr::V4(v4) => [&[1][..], &v4.octets(), &port.to_be_bytes()].concat(),
        IpAddr::V6(v6) => [&[4][..], &v6.octets(), &port.to_be_bytes()].concat(),
    }
}
