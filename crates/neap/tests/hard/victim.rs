//! The program that is attacked, in a process of its own: a stack on a TUN with four servers.
//!
//! It obeys the lines of its standard input, and answers each with one line that begins with
//! [`MARK`].

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use neap::time::Nanos;
use neap::{SocketOption, Stack, StackEvents, TcpListener, TcpStream, UdpSocket};

use crate::common::Family;
use crate::gateway;
use crate::ground::DESCRIPTORS;

/// Tells the test binary that it is the victim.
const ROLE: &str = "NEAP_HARD_VICTIM";
/// End of the role of a victim that takes what goes to addresses of others.
const GATEWAY: &str = "gateway";
/// Begin of the lines that the victim prints; the harness of the tests prints others.
const MARK: &str = "> ";

/// Port of the server that sends back what it reads.
pub(crate) const ECHO: u16 = 7;
/// Port of the server that reads and says nothing.
pub(crate) const DISCARD: u16 = 9;
/// Port of the server that sends without end.
pub(crate) const SOURCE: u16 = 19;
/// Port of the server that ends each connection at once.
pub(crate) const DAYTIME: u16 = 13;

/// Bytes of one write of the source.
const CHUNK: usize = 64 << 10;

#[test]
fn victim() {
    // Started by the other tests.
    let Ok(role) = std::env::var(ROLE) else { return };
    let family = if role.starts_with("v6") { Family::V6 } else { Family::V4 };
    let is_gateway = role.ends_with(GATEWAY);
    let stack = build(family, is_gateway);
    if is_gateway {
        gateway::begin(&stack);
    }
    for (port, work) in [
        (ECHO, echo as fn(TcpStream)),
        (DISCARD, discard),
        (SOURCE, source),
        (DAYTIME, |stream| drop(stream)),
    ] {
        let listener = TcpListener::bind(&stack, (family.ours(), port)).expect("bind");
        std::thread::spawn(move || serve(&listener, work));
    }
    let datagrams = UdpSocket::bind(&stack, (family.ours(), ECHO)).expect("bind");
    std::thread::spawn(move || reflect(&datagrams));
    let mut opened = Vec::new();
    println!("{MARK}ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        println!("{MARK}{}", obey(&stack, &mut opened, &words));
    }
}

fn build(family: Family, is_gateway: bool) -> Stack {
    Stack::builder()
        .tun("t0")
        .host_address(family.cidr(family.kernel()))
        .address(family.cidr(family.ours()))
        .gateway(family.kernel())
        .any_destination(is_gateway)
        // So that what half-open connections and orphans hold is free again soon.
        .sysctl("net.ipv4.tcp_synack_retries", "1")
        .sysctl("net.ipv4.tcp_fin_timeout", "2")
        .build()
        .expect("a stack on a TUN")
}

fn serve(listener: &TcpListener, work: fn(TcpStream)) {
    while let Ok((stream, _)) = listener.accept() {
        // A thread that cannot be had costs the connection and nothing else.
        let _ = std::thread::Builder::new().stack_size(128 << 10).spawn(move || work(stream));
    }
}

pub(crate) fn echo(mut stream: TcpStream) {
    let _ = stream.set_option(SocketOption::NoDelay(true));
    let mut buf = vec![0; 16 << 10];
    while let Ok(len) = stream.read(&mut buf)
        && len > 0
        && stream.write_all(&buf[..len]).is_ok()
    {}
}

fn discard(mut stream: TcpStream) {
    let mut buf = vec![0; 16 << 10];
    while stream.read(&mut buf).is_ok_and(|len| len > 0) {}
}

fn source(mut stream: TcpStream) {
    // A peer that keeps its window shut is given up.
    let _ = stream.set_option(SocketOption::UserTimeout(Nanos::from_secs(3)));
    let chunk = vec![b'.'; CHUNK];
    while stream.write_all(&chunk).is_ok() {}
}

fn reflect(socket: &UdpSocket) {
    let mut buf = vec![0; 2048];
    loop {
        match socket.recv_from(&mut buf) {
            Ok((len, from)) => drop(socket.send_to(&buf[..len], from)),
            // An ICMP error of an answer before.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
            Err(_) => return,
        }
    }
}

/// What an order to open has opened, as far as it could; an order to close ends it.
type Opened = (Option<TcpStream>, Option<StackEvents>);

fn obey(stack: &Stack, opened: &mut Vec<Opened>, words: &[&str]) -> String {
    let interface = || stack.host().interfaces().first().map(|interface| interface.id);
    let done = |result: Result<(), neap::net::NetError>| match result {
        Ok(()) => "done".to_owned(),
        Err(error) => format!("error={error}"),
    };
    match (words, interface()) {
        (["report"], _) => report(stack),
        (["forget", address], Some(id)) => {
            let address: IpAddr = address.parse().expect("an address");
            done(stack.remove_address(id, address))
        }
        (["take", cidr], Some(id)) => {
            done(stack.add_address(id, cidr.parse().expect("an address")))
        }
        (["open", address, port], _) => {
            // A socket, and what a process without descriptors can still have of a stack.
            let port = port.parse().expect("a port");
            let address: IpAddr = address.parse().expect("an address");
            let limit = Duration::from_secs(5);
            let stream = TcpStream::connect_timeout(stack, (address, port), limit).ok();
            let events = stack.events().ok();
            let answer = format!("connected={} events={}", stream.is_some(), events.is_some());
            opened.push((stream, events));
            answer
        }
        (["close"], _) => {
            opened.clear();
            "done".to_owned()
        }
        _ => format!("error=unknown:{}", words.join("_")),
    }
}

/// Figures of the stack, by name.
fn report(stack: &Stack) -> String {
    let host = stack.host();
    let usage = host.usage();
    let mut line = format!(
        "pending={} connections={} requests={} waiting={} time_wait={} names={} loopback={} \
         overrun={}",
        usage.pending,
        usage.tcp.connections,
        usage.tcp.requests,
        usage.tcp.waiting,
        usage.tcp.time_wait,
        usage.names,
        usage.loopback_bytes,
        host.receive_drops(),
    );
    let mut states = BTreeMap::<String, u32>::new();
    for flow in host.flows() {
        *states.entry(format!("{:?}", flow.state)).or_default() += 1;
    }
    for (state, count) in states {
        line += &format!(" {state}={count}");
    }
    for (reason, count) in host.drops().into_iter().filter(|&(_, count)| count > 0) {
        line += &format!(" drop_{}={count}", reason.name());
    }
    line
}

/// The victim as the other tests see it. It is killed when this is dropped.
pub(crate) struct Victim {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Victim {
    /// Starts the victim; `descriptors` is the most that it may have open.
    pub(crate) fn start(family: Family, descriptors: u32) -> Self {
        Self::with_role(family, "", descriptors)
    }

    /// Starts a victim that also takes what goes to addresses of others.
    pub(crate) fn gateway(family: Family) -> Self {
        Self::with_role(family, GATEWAY, DESCRIPTORS)
    }

    fn with_role(family: Family, role: &str, descriptors: u32) -> Self {
        let version = if family == Family::V6 { "v6" } else { "v4" };
        let binary = std::env::current_exe().expect("the test knows its binary");
        let limited = format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"");
        let mut process = Command::new("sh")
            .args(["-c", &limited])
            .arg(binary)
            .args(["--exact", "victim::victim", "--nocapture", "--test-threads", "1"])
            .env(ROLE, format!("{version} {role}"))
            // Memory that is free goes back to the system at once, so that it can be measured:
            // buffers of data are mapped each for itself, and leave no holes in the heap.
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_TRIM_THRESHOLD_", "65536")
            .env("MALLOC_MMAP_THRESHOLD_", "16384")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the victim runs");
        let orders = process.stdin.take().expect("a pipe");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut victim = Self { process, orders, answers };
        assert_eq!(victim.answer().as_deref(), Some("ready"));
        victim
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The next line of the victim; `None` if it is over.
    fn answer(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.answers.read_line(&mut line).is_ok_and(|len| len > 0) {
            // The harness may have begun the line.
            if let Some(at) = line.find(MARK) {
                return Some(line[at + MARK.len()..].trim_end().to_owned());
            }
            line.clear();
        }
        None
    }

    /// Has the victim do something; what it answers.
    pub(crate) fn order(&mut self, line: &str) -> String {
        writeln!(self.orders, "{line}").expect("the victim listens");
        self.answer().unwrap_or_else(|| panic!("the victim is over before it did: {line}"))
    }

    /// Figures of its stack, by name; what is not there is 0.
    pub(crate) fn report(&mut self) -> BTreeMap<String, u64> {
        let line = self.order("report");
        let pairs = line.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.into(), value.parse().expect("a number"))).collect()
    }

    /// Time that the processor has worked for the victim, its system calls included.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.expect("the victim lives");
        // The name may hold blanks; it ends with the last parenthesis.
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(|field| field.parse::<u64>().expect("a number")).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Ends the victim without a last word.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}
