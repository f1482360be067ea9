//! smoltcp as a peer of the benchmarks, on its own `phy::TunTapInterface`.
//!
//! ```text
//! smoltcp MODE [--interface I] [--target A] [--port P] [--flows N] [--seconds S] [--congestion C]
//! ```
//! Modes: send receive ping-pong connect idle. Each prints one JSON object.

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Medium, TunTapInterface, wait as wait_readable};
use smoltcp::socket::tcp::{self, CongestionControl};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, Ipv4Address};
use std::os::unix::io::{AsRawFd, RawFd};
use std::time::Instant as Clock;

/// What the kernel's `tcp_wmem` and `tcp_rmem` allow, about.
const BUFFER: usize = 4 << 20;
/// Buffers of an idle connection and of the direction that carries nothing.
const SMALL_BUFFER: usize = 4 << 10;
const WRITE_SIZE: usize = 128 << 10;
/// The stack is polled at least this often.
const POLL: Duration = Duration::from_millis(50);

struct Args {
    mode: String,
    target: Ipv4Address,
    port: u16,
    flows: usize,
    seconds: f64,
    congestion: CongestionControl,
}

struct Bench {
    args: Args,
    device: TunTapInterface,
    descriptor: RawFd,
    interface: Interface,
    sockets: SocketSet<'static>,
    next_port: u16,
}

/// Latencies in microseconds.
#[derive(Default)]
struct Samples(Vec<f64>);

impl Samples {
    fn record(&mut self, since: Clock) {
        self.0.push(since.elapsed().as_nanos() as f64 / 1e3);
    }

    fn print(mut self, seconds: f64, cpu: f64, errors: u32) {
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
            count as f64 / seconds,
            cpu * 1e6 / count as f64,
            quantile(0.0),
            quantile(0.5),
            quantile(0.99),
            quantile(1.0)
        );
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let Some(mode) = args.get(1).cloned() else {
        eprintln!("smoltcp MODE [flags]");
        std::process::exit(2);
    };
    let flag = |name: &str, default: &str| {
        let at = args.iter().position(|arg| arg == name);
        at.and_then(|at| args.get(at + 1)).map_or(default, String::as_str).to_owned()
    };
    let name = flag("--interface", "nb0");
    let args = Args {
        mode,
        target: flag("--target", "10.99.0.1").parse().expect("an IPv4 address"),
        port: flag("--port", "7001").parse().expect("a port"),
        flows: flag("--flows", "1").parse().expect("a number of flows"),
        seconds: flag("--seconds", "5").parse().expect("seconds"),
        congestion: match flag("--congestion", "cubic").as_str() {
            "reno" => CongestionControl::Reno,
            "cubic" => CongestionControl::Cubic,
            other => panic!("smoltcp has reno and cubic, not {other}"),
        },
    };
    let mut bench = Bench::new(args, &name, "10.99.0.2".parse().expect("an IPv4 address"));
    match bench.args.mode.as_str() {
        "send" => bench.bulk(true),
        "receive" => bench.bulk(false),
        "ping-pong" => bench.ping_pong(),
        "connect" => bench.connect(),
        "idle" => bench.idle(),
        other => panic!("there is no mode {other}"),
    }
}

impl Bench {
    fn new(args: Args, name: &str, address: Ipv4Address) -> Self {
        let mut device = TunTapInterface::new(name, Medium::Ip).expect("open the TUN device");
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from(std::process::id());
        let mut interface = Interface::new(config, &mut device, Instant::now());
        let address = IpCidr::new(IpAddress::Ipv4(address), 24);
        interface.update_ip_addrs(|addresses| addresses.push(address).expect("one address"));
        interface.routes_mut().add_default_ipv4_route(args.target).expect("one route");
        Self {
            args,
            descriptor: device.as_raw_fd(),
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            next_port: 20_000 + (std::process::id() % 10_000) as u16,
        }
    }

    fn open(&mut self, receive: usize, send: usize) -> SocketHandle {
        let buffer = |size| tcp::SocketBuffer::new(vec![0; size]);
        let mut socket = tcp::Socket::new(buffer(receive), buffer(send));
        socket.set_congestion_control(self.args.congestion);
        socket.set_nagle_enabled(false);
        let handle = self.sockets.add(socket);
        self.dial(handle);
        handle
    }

    fn dial(&mut self, handle: SocketHandle) {
        self.next_port = if self.next_port > 60_000 { 10_000 } else { self.next_port + 1 };
        let remote = (self.args.target, self.args.port);
        self.sockets
            .get_mut::<tcp::Socket>(handle)
            .connect(self.interface.context(), remote, self.next_port)
            .expect("connect");
    }

    fn socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    fn poll(&mut self) {
        self.interface.poll(Instant::now(), &mut self.device, &mut self.sockets);
    }

    /// Sleeps until a packet or a timer comes.
    fn wait(&mut self) {
        let now = Instant::now();
        let next = self.interface.poll_at(now, &self.sockets).unwrap_or(now + POLL);
        if next > now {
            // A failed wait is a short one.
            let _ = wait_readable(self.descriptor, Some((next - now).min(POLL)));
        }
    }

    fn bulk(&mut self, is_sender: bool) {
        let (receive, send) =
            if is_sender { (SMALL_BUFFER, BUFFER) } else { (BUFFER, SMALL_BUFFER) };
        let handles: Vec<_> = (0..self.args.flows).map(|_| self.open(receive, send)).collect();
        let mut data = vec![b'x'; WRITE_SIZE];
        let mut bytes = 0;
        let start = Clock::now();
        while start.elapsed().as_secs_f64() < self.args.seconds {
            self.poll();
            for &handle in &handles {
                let socket = self.socket(handle);
                while is_sender && socket.can_send() {
                    bytes += socket.send_slice(&data).expect("may send");
                }
                while !is_sender && socket.can_recv() {
                    bytes += socket.recv_slice(&mut data).expect("may receive");
                }
            }
            self.wait();
        }
        let seconds = start.elapsed().as_secs_f64();
        if is_sender {
            self.finish(&handles);
        }
        println!(
            "{{\"bytes\":{bytes},\"seconds\":{seconds:.3},\"gbps\":{:.4},\"peak_rss_kb\":{}}}",
            bytes as f64 * 8.0 / seconds / 1e9,
            status("VmHWM")
        );
    }

    /// Closes, and lets what is queued go out.
    fn finish(&mut self, handles: &[SocketHandle]) {
        for &handle in handles {
            self.socket(handle).close();
        }
        let start = Clock::now();
        while start.elapsed().as_secs_f64() < 12.0
            && handles.iter().any(|&handle| self.sockets.get::<tcp::Socket>(handle).may_recv())
        {
            self.poll();
            self.wait();
        }
    }

    fn ping_pong(&mut self) {
        let handle = self.open(SMALL_BUFFER, SMALL_BUFFER);
        self.socket(handle).set_ack_delay(None);
        while !self.socket(handle).can_send() {
            self.poll();
            self.wait();
        }
        let mut samples = Samples::default();
        let (start, cpu) = (Clock::now(), cpu_seconds());
        while start.elapsed().as_secs_f64() < self.args.seconds {
            let sent = Clock::now();
            self.socket(handle).send_slice(b"x").expect("may send");
            self.poll();
            while !self.socket(handle).can_recv() && sent.elapsed().as_secs_f64() < 3.0 {
                self.wait();
                self.poll();
            }
            self.socket(handle).recv(|data| (data.len(), ())).expect("an answer");
            samples.record(sent);
        }
        samples.print(start.elapsed().as_secs_f64(), cpu_seconds() - cpu, 0);
    }

    fn connect(&mut self) {
        let handle = self.open(SMALL_BUFFER, SMALL_BUFFER);
        let (mut samples, mut errors) = (Samples::default(), 0);
        let (start, cpu) = (Clock::now(), cpu_seconds());
        while start.elapsed().as_secs_f64() < self.args.seconds {
            let socket = self.socket(handle);
            socket.abort();
            socket.set_ack_delay(None);
            let began = Clock::now();
            self.dial(handle);
            let (mut is_sent, mut is_answered) = (false, false);
            while began.elapsed().as_secs_f64() < 1.0 {
                self.poll();
                let socket = self.socket(handle);
                if !socket.is_open() {
                    break;
                }
                if !is_sent && socket.can_send() {
                    socket.send_slice(b"x").expect("may send");
                    is_sent = true;
                    continue;
                }
                if !is_answered && socket.can_recv() {
                    socket.recv(|data| (data.len(), ())).expect("an answer");
                    is_answered = true;
                    samples.record(began);
                }
                if socket.state() == tcp::State::CloseWait {
                    socket.close();
                    continue;
                }
                self.wait();
            }
            errors += u32::from(!is_answered);
        }
        samples.print(start.elapsed().as_secs_f64(), cpu_seconds() - cpu, errors);
    }

    fn idle(&mut self) {
        let before = status("VmRSS");
        let mut handles = Vec::new();
        for _ in 0..self.args.flows {
            let handle = self.open(SMALL_BUFFER, SMALL_BUFFER);
            handles.push(handle);
            let start = Clock::now();
            while !self.socket(handle).may_send() && start.elapsed().as_secs_f64() < 1.0 {
                self.poll();
            }
        }
        let grown = (status("VmRSS") - before) as f64 * 1024.0;
        let flows = handles.len();
        println!("{{\"flows\":{flows},\"rss_bytes_per_flow\":{:.0}}}", grown / flows as f64);
        let start = Clock::now();
        while start.elapsed().as_secs_f64() < self.args.seconds {
            self.poll();
            self.wait();
        }
    }
}

/// A field of `/proc/self/status`, KiB.
fn status(field: &str) -> i64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(field));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

fn cpu_seconds() -> f64 {
    // SAFETY: `getrusage` fills the structure that it is given, and all zeroes are a valid one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
