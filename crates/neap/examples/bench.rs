//! neap's program in the benchmarks of `benches/peers`, `benches/pacing` and `benches/cost`, on an
//! interface that exists already.
//!
//! ```text
//! bench MODE [--interface I] [--target A] [--port P] [--ports N] [--flows N] [--seconds S]
//!            [--write BYTES] [--size BYTES] [--face F] [--congestion C] [--sysctl NAME=VALUE]...
//!            [--qdisc Q] [--fq-rate BITS] [--scheduling HOW]... [--device D]
//!            [--gso-max-size BYTES] [--busy-poll MICROSECONDS] [--show WHAT]
//! ```
//! Modes: `send` `send-zero-copy` `receive` `ping-pong` `connect` `idle`. One flow uses blocking
//! calls; several are served by one thread with non-blocking sockets and a [`Poller`]. Each mode
//! prints one JSON object.
//!
//! Connections go to `--ports` ports of the target in turn, the first of which is `--port`.
//! `ping-pong` sends `--size` bytes and waits until as many have come back. `idle` waits in one of
//! the faces of the stack: `none` (the application sleeps), `accept` (a blocking listener),
//! `poller` (all connections in a [`Poller`]), `read` (a blocking read of one connection), `tokio`
//! (a task for each connection), `posix` (descriptors of [`neap::posix`], all in one epoll set).
//!
//! `--device` is `tun` (the default) or `packet`, which is AF_PACKET on an Ethernet interface.
//! Super-frames have at most `--gso-max-size` bytes; at or below the MTU there are none. With
//! `--show flows`, `send` prints a line of figures for each flow on stderr before it closes them.

use bytes::Bytes;
use neap::device::{Device, Packet, PacketConfig, Tun, TunConfig};
use neap::info::Counter;
use neap::posix::{EpollEvent, Fd, Process, abi, sockaddr};
use neap::scheduling::Scheduling;
use neap::{Event, Events, Poller, Stack, TcpListener, TcpStream};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

const ADDRESS: &str = "10.99.0.2/24";
const READ_SIZE: usize = 256 << 10;
/// How long the far side may take to start.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(3);
/// How long the last bytes may take.
const DRAIN: Duration = Duration::from_secs(12);

struct Args {
    mode: String,
    interface: String,
    remote: SocketAddr,
    /// Ports of the target that listen, from that of `remote` on.
    ports: usize,
    flows: usize,
    length: Duration,
    write_size: usize,
    /// Bytes of a request and of its answer.
    request_size: usize,
    face: String,
    sysctls: Vec<(String, String)>,
    qdisc: Option<String>,
    /// Of all threads.
    scheduling: Vec<Scheduling>,
    /// Pacing limit of each flow, bytes per second.
    max_pacing_rate: Option<u64>,
    device: String,
    /// Bytes of the largest super-frame.
    gso_max_size: u32,
    /// Whether a thread of the kernel takes bulk from the TUN.
    bulk_threads: bool,
    /// Figures of each flow on stderr.
    shows_flows: bool,
    busy_poll: Option<Duration>,
}

impl Args {
    /// Where the connection of this number goes.
    fn remote(&self, number: usize) -> SocketAddr {
        let mut remote = self.remote;
        remote.set_port(remote.port() + (number % self.ports) as u16);
        remote
    }

    fn parse() -> Result<Self, Box<dyn Error>> {
        let mut given = std::env::args().skip(1);
        let mode = given.next().ok_or("bench MODE [--OPTION VALUE]...")?;
        let (mut target, mut port) = ("10.99.0.1".to_owned(), 7001);
        let mut args = Self {
            mode,
            interface: "nb0".to_owned(),
            remote: SocketAddr::from(([0; 4], 0)),
            ports: 1,
            flows: 1,
            length: Duration::from_secs(5),
            write_size: 128 << 10,
            request_size: 1,
            face: "none".to_owned(),
            sysctls: Vec::new(),
            qdisc: None,
            scheduling: Vec::new(),
            max_pacing_rate: None,
            device: "tun".to_owned(),
            gso_max_size: u32::from(u16::MAX),
            bulk_threads: true,
            shows_flows: false,
            busy_poll: None,
        };
        while let Some(name) = given.next() {
            let value = given.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--interface" => args.interface = value,
                "--target" => target = value,
                "--port" => port = value.parse()?,
                "--ports" => args.ports = value.parse()?,
                "--flows" => args.flows = value.parse()?,
                "--seconds" => args.length = Duration::from_secs_f64(value.parse()?),
                "--write" => args.write_size = value.parse()?,
                "--size" => args.request_size = value.parse()?,
                "--face" => args.face = value,
                "--congestion" => args.set("net.ipv4.tcp_congestion_control", &value),
                "--qdisc" => args.qdisc = Some(value),
                "--scheduling" => args.scheduling.push(value.parse()?),
                "--fq-rate" => args.max_pacing_rate = Some(value.parse::<u64>()? / 8),
                "--busy-poll" => args.busy_poll = Some(Duration::from_micros(value.parse()?)),
                "--device" => args.device = value,
                "--gso-max-size" => args.gso_max_size = value.parse()?,
                "--bulk-threads" => args.bulk_threads = value.parse()?,
                "--show" => args.shows_flows = value == "flows",
                "--sysctl" => {
                    let (name, value) = value.split_once('=').ok_or("--sysctl NAME=VALUE")?;
                    args.set(name, value);
                }
                _ => return Err(format!("there is no option {name}").into()),
            }
        }
        args.remote = SocketAddr::new(target.parse()?, port);
        Ok(args)
    }

    fn set(&mut self, name: &str, value: &str) {
        self.sysctls.push((name.to_owned(), value.to_owned()));
    }

    fn open(&self) -> Result<Device, Box<dyn Error>> {
        let (interface, gso_max_size) = (self.interface.clone(), self.gso_max_size);
        match self.device.as_str() {
            "tun" => {
                let name = Some(interface);
                let bulk_threads = self.bulk_threads;
                let config = TunConfig { name, gso_max_size, bulk_threads, ..TunConfig::default() };
                Ok(Tun::open(&config)?.into_device())
            }
            "packet" => {
                let config = PacketConfig { gso_max_size, ..PacketConfig::new(interface) };
                Ok(Packet::open(&config)?.into_device())
            }
            device => Err(format!("there is no device {device}").into()),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse()?;
    let mut builder = Stack::builder().device(args.open()?).address(ADDRESS);
    for &scheduling in &args.scheduling {
        scheduling.apply()?;
        builder = builder.scheduling(scheduling);
    }
    // The far side may be behind a router, which is then the other end of the link.
    builder = builder.gateway("10.99.0.1");
    for (name, value) in &args.sysctls {
        builder = builder.sysctl(name, value);
    }
    if let Some(budget) = args.busy_poll {
        builder = builder.busy_poll(budget);
    }
    if let Some(qdisc) = &args.qdisc {
        builder = builder.qdisc(qdisc);
    }
    let stack = builder.build()?;
    match args.mode.as_str() {
        "send" => send(&stack, &args, false)?,
        "send-zero-copy" => send(&stack, &args, true)?,
        "receive" => receive(&stack, &args)?,
        "ping-pong" if args.flows == 1 => ping_pong(&stack, &args)?,
        "ping-pong" => ping_pong_many(&stack, &args)?,
        "connect" => connect_close(&stack, &args),
        "idle" => idle(&stack, &args)?,
        mode => return Err(format!("there is no mode {mode}").into()),
    }
    Ok(())
}

/// Connects to the port whose turn it is at the connection of this number.
fn dial(stack: &Stack, args: &Args, number: usize) -> io::Result<TcpStream> {
    let (start, remote) = (Instant::now(), args.remote(number));
    loop {
        match TcpStream::connect(stack, remote) {
            Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error),
            Ok(stream) => {
                stream.set_max_pacing_rate(args.max_pacing_rate)?;
                return Ok(stream);
            }
        }
    }
}

/// What an application has to send, in one of two ways.
enum Data {
    Copied(Vec<u8>),
    Shared(Bytes),
}

impl Data {
    fn write(&self, mut stream: &TcpStream) -> io::Result<usize> {
        match self {
            Self::Copied(data) => stream.write(data),
            Self::Shared(data) => stream.send_bytes(&mut data.clone()),
        }
    }
}

fn send(stack: &Stack, args: &Args, is_zero_copy: bool) -> Result<(), Box<dyn Error>> {
    let data = vec![b'x'; args.write_size];
    let data = if is_zero_copy { Data::Shared(data.into()) } else { Data::Copied(data) };
    let streams = dial_all(stack, args)?;
    let start = Instant::now();
    let mut bytes = 0;
    let is_paced = args.max_pacing_rate.is_some();
    // A write of a paced flow may block for longer than the run.
    if let ([stream], false) = (streams.as_slice(), is_paced) {
        while start.elapsed() < args.length {
            bytes += data.write(stream)?;
        }
    } else {
        serve(&streams, Events::OUT, start + args.length, |_, stream| {
            bytes += data.write(stream)?;
            Ok(true)
        })?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let retransmits: u32 = streams.iter().map(|stream| stream.info().total_retrans).sum();
    if args.shows_flows {
        for stream in &streams {
            eprintln!("{}", stream.info());
        }
    }
    // What a paced flow holds takes long.
    if !is_paced {
        drain(&streams)?;
    }
    let peak = status("VmHWM");
    let host = stack.host();
    let late = host.departures();
    let counter = |name| host.tcp_counters().into_iter().find(|&(one, _)| one == name).unwrap().1;
    let late_us = |percent| late.percentile(percent).0 as f64 / 1e3;
    println!(
        "{{\"bytes\":{bytes},\"seconds\":{seconds:.3},\"retransmits\":{retransmits},\
         \"peak_rss_kb\":{peak},\"longest_wait\":{},\"segments\":{},\"wakeups\":{},\
         \"departures\":{},\"p50_us\":{},\"p99_us\":{},\"max_us\":{}}}",
        host.usage().longest_wait,
        counter(Counter::OutSegs),
        counter(Counter::TimerWakeups),
        late.count(),
        late_us(50.0),
        late_us(99.0),
        late.max().0 as f64 / 1e3,
    );
    Ok(())
}

/// Half-closes, and waits until the far side has read everything and closed too.
fn drain(streams: &[TcpStream]) -> io::Result<()> {
    for stream in streams {
        stream.shutdown(Shutdown::Write)?;
    }
    let end = Instant::now() + DRAIN;
    for mut stream in streams {
        stream.set_nonblocking(false)?;
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        // Late or reset: the far side's figures tell.
        let _ = stream.read(&mut [0]);
    }
    Ok(())
}

fn receive(stack: &Stack, args: &Args) -> Result<(), Box<dyn Error>> {
    let mut buffer = vec![0; READ_SIZE];
    let mut bytes = 0;
    let streams = dial_all(stack, args)?;
    let start = Instant::now();
    // Ends before the far side does.
    let end = start + args.length.saturating_sub(Duration::from_millis(200));
    let mut read = |_, mut stream: &TcpStream| {
        let read = stream.read(&mut buffer)?;
        bytes += read as u64;
        Ok(read > 0)
    };
    if let [stream] = streams.as_slice() {
        while Instant::now() < end && read(0, stream)? {}
    } else {
        serve(&streams, Events::IN, end, read)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{{\"bytes\":{bytes},\"seconds\":{seconds:.3},\"gbps\":{:.4},\"peak_rss_kb\":{}}}",
        bytes as f64 * 8.0 / seconds / 1e9,
        status("VmHWM")
    );
    Ok(())
}

fn dial_all(stack: &Stack, args: &Args) -> io::Result<Vec<TcpStream>> {
    (0..args.flows).map(|number| dial(stack, args, number)).collect()
}

/// Calls `serve_one` with number and stream for every stream that is ready, until `end` or until it
/// answers false.
fn serve(
    streams: &[TcpStream],
    interest: Events,
    end: Instant,
    mut serve_one: impl FnMut(usize, &TcpStream) -> io::Result<bool>,
) -> io::Result<()> {
    let poller = Poller::new()?;
    for (token, stream) in streams.iter().enumerate() {
        stream.set_nonblocking(true)?;
        poller.add(stream, token as u64, interest)?;
    }
    let mut events: Vec<Event> = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        poller.wait(&mut events, Some(left))?;
        for event in &events {
            let number = event.token as usize;
            match serve_one(number, &streams[number]) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn ping_pong(stack: &Stack, args: &Args) -> Result<(), Box<dyn Error>> {
    let mut stream = dial(stack, args, 0)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER))?;
    let (request, mut answer) = (vec![b'x'; args.request_size], vec![0; args.request_size]);
    let mut samples = Samples::default();
    let (start, cpu) = (Instant::now(), cpu_time());
    while start.elapsed() < args.length {
        let sent = Instant::now();
        stream.write_all(&request)?;
        stream.read_exact(&mut answer)?;
        samples.record(sent);
    }
    samples.print(start.elapsed(), cpu_time() - cpu, 0);
    Ok(())
}

/// One request at a time on each of many connections.
fn ping_pong_many(stack: &Stack, args: &Args) -> Result<(), Box<dyn Error>> {
    struct Asked {
        at: Instant,
        /// Bytes of the answer that have not come.
        missing: usize,
    }
    let (request, mut answer) = (vec![b'x'; args.request_size], vec![0; args.request_size]);
    let streams = dial_all(stack, args)?;
    let mut samples = Samples::default();
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut asked = Vec::new();
    for mut stream in &streams {
        stream.set_nodelay(true)?;
        asked.push(Asked { at: Instant::now(), missing: request.len() });
        stream.write_all(&request)?;
    }
    serve(&streams, Events::IN, start + args.length, |number, mut stream| {
        let asked = &mut asked[number];
        let read = stream.read(&mut answer[..asked.missing])?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        asked.missing -= read;
        if asked.missing == 0 {
            samples.record(asked.at);
            *asked = Asked { at: Instant::now(), missing: request.len() };
            // An empty send buffer takes all of it.
            stream.write_all(&request)?;
        }
        Ok(true)
    })?;
    if asked.iter().any(|asked| asked.at.elapsed() > ANSWER) {
        return Err(format!("a request has had no answer for {ANSWER:?}").into());
    }
    samples.print(start.elapsed(), cpu_time() - cpu, 0);
    Ok(())
}

/// Connects, sends a byte, gets a byte, waits for the far side's FIN, closes; again.
fn connect_close(stack: &Stack, args: &Args) {
    let (mut samples, mut errors) = (Samples::default(), 0);
    let (start, cpu) = (Instant::now(), cpu_time());
    while start.elapsed() < args.length {
        let began = Instant::now();
        let once = || -> io::Result<TcpStream> {
            let mut stream = TcpStream::connect(stack, args.remote)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER))?;
            stream.write_all(b"x")?;
            stream.read_exact(&mut [0])?;
            Ok(stream)
        };
        match once() {
            Ok(mut stream) => {
                samples.record(began);
                let _ = stream.read(&mut [0]);
            }
            Err(_) => errors += 1,
        }
    }
    samples.print(start.elapsed(), cpu_time() - cpu, errors);
}

/// What an idle application holds.
enum Idle {
    Streams(Vec<TcpStream>),
    Descriptors(Process, Vec<Fd>),
}

impl Idle {
    /// Connections as descriptors of the socket face.
    fn dial_descriptors(stack: &Stack, args: &Args) -> Result<Self, Box<dyn Error>> {
        let posix = stack.posix(0);
        let dial = |number: usize| {
            let start = Instant::now();
            let remote = args.remote(number);
            let fd = posix.socket(abi::AF_INET, abi::SOCK_STREAM, 0)?;
            loop {
                match posix.connect(fd, &sockaddr::encode(remote)) {
                    Ok(()) => return Ok(fd),
                    Err(error) if start.elapsed() > PATIENCE => return Err(error),
                    Err(_) => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        };
        let dialled = (0..args.flows).map(dial).collect::<Result<_, _>>();
        let descriptors = dialled.map_err(|error| format!("a descriptor: {error:?}"))?;
        Ok(Self::Descriptors(posix, descriptors))
    }

    fn count(&self) -> usize {
        match self {
            Self::Streams(streams) => streams.len(),
            Self::Descriptors(_, descriptors) => descriptors.len(),
        }
    }
}

fn idle(stack: &Stack, args: &Args) -> Result<(), Box<dyn Error>> {
    let before = status("VmRSS");
    let is_posix = args.face == "posix";
    let idle = if is_posix {
        Idle::dial_descriptors(stack, args)?
    } else {
        Idle::Streams(dial_all(stack, args)?)
    };
    std::thread::sleep(Duration::from_secs(1));
    let grown = status("VmRSS").saturating_sub(before) as f64 * 1024.0;
    let flows = idle.count();
    let each = if flows == 0 { 0.0 } else { grown / flows as f64 };
    println!("{{\"flows\":{flows},\"rss_bytes_per_flow\":{each:.0}}}");
    let end = Instant::now() + args.length;
    let streams = match idle {
        Idle::Streams(streams) => streams,
        Idle::Descriptors(posix, descriptors) => {
            return idle_descriptors(&posix, &descriptors, args.length);
        }
    };
    match args.face.as_str() {
        "none" => {}
        "accept" => {
            let listener = TcpListener::bind(stack, "0.0.0.0:7000")?;
            // It waits until the process ends.
            std::thread::spawn(move || listener.accept().map(|_| ()));
        }
        "poller" => serve(&streams, Events::IN, end, |_, _| {
            Err(io::Error::other("an idle connection became readable"))
        })?,
        "read" => {
            let mut stream = streams.first().ok_or("the face read needs a connection")?;
            stream.set_read_timeout(Some(args.length))?;
            if stream.read(&mut [0]).is_ok() {
                return Err("an idle connection became readable".into());
            }
        }
        "tokio" => return idle_tasks(streams, args.length),
        face => return Err(format!("there is no face {face}").into()),
    }
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    Ok(())
}

/// One epoll set waits until a descriptor is readable.
fn idle_descriptors(
    posix: &Process,
    descriptors: &[Fd],
    length: Duration,
) -> Result<(), Box<dyn Error>> {
    let wait = || {
        let set = posix.epoll_create1(0)?;
        for &fd in descriptors {
            let event = EpollEvent { events: abi::EPOLLIN, data: fd as u64 };
            posix.epoll_ctl(set, abi::EPOLL_CTL_ADD, fd, event)?;
        }
        posix.epoll_wait(set, 16, length.as_millis() as i32)
    };
    let events = wait().map_err(|error| format!("the epoll set: {error:?}"))?;
    if events.is_empty() { Ok(()) } else { Err("an idle descriptor became readable".into()) }
}

/// One task per connection waits until it is readable.
#[cfg(feature = "tokio")]
fn idle_tasks(streams: Vec<TcpStream>, length: Duration) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let tasks = tokio::task::LocalSet::new();
        for stream in streams {
            let stream = neap::tokio::TcpStream::from_blocking(stream)?;
            tasks.spawn_local(async move { stream.readable().await });
        }
        tasks.run_until(tokio::time::sleep(length)).await;
        Ok(())
    })
}

#[cfg(not(feature = "tokio"))]
fn idle_tasks(_: Vec<TcpStream>, _: Duration) -> Result<(), Box<dyn Error>> {
    Err("the face tokio needs a build with --features tokio".into())
}

/// Latencies in microseconds.
#[derive(Default)]
struct Samples(Vec<f64>);

impl Samples {
    fn record(&mut self, since: Instant) {
        self.0.push(since.elapsed().as_nanos() as f64 / 1e3);
    }

    fn print(mut self, length: Duration, cpu: Duration, errors: u32) {
        let count = self.0.len();
        if count == 0 {
            println!("{{\"samples\":0,\"errors\":{errors}}}");
            return;
        }
        self.0.sort_by(f64::total_cmp);
        let quantile = |q: f64| self.0[((count - 1) as f64 * q) as usize];
        println!(
            "{{\"per_second\":{:.0},\"errors\":{errors},\"cpu_us\":{:.2},\"samples\":{count},\
             \"min_us\":{:.1},\"p50_us\":{:.1},\"p99_us\":{:.1},\"max_us\":{:.1}}}",
            count as f64 / length.as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / count as f64,
            quantile(0.0),
            quantile(0.5),
            quantile(0.99),
            quantile(1.0)
        );
    }
}

/// CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A field of `/proc/self/status`, KiB.
fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(field));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}
