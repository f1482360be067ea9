//! `neap perf`: iperf3's protocol over the stack, so that the other end is a stock iperf3.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

mod client;
mod cpu;
mod delay;
pub(crate) mod interrupt;
mod json;
mod net;
mod network;
mod plan;
mod protocol;
mod report;
mod server;
mod streams;

use interrupt::Interrupt;
use json::JsonReport;
use neap::control::{self, Control, ControlOptions};
use net::{IpVersion, SocketOptions, Stack};
use network::{Network, NetworkArgs, NetworkError};
use plan::{DEFAULT_TIME, Plan, Refusal, Until};
use protocol::{MAX_BLOCK, MAX_MSS, MAX_OMIT, MAX_STREAMS, MAX_TIME, MAX_WINDOW, ProtocolError};
use report::{Start, Summary, TextReport};
use server::Server;
use streams::{DataError, Interval, Observer};

/// Options of `neap perf`; those that iperf3 has mean what they mean there.
#[derive(clap::Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("mode").required(true))]
pub(crate) struct Args {
    /// Measure with the iperf3 server at this host
    #[arg(short, long, value_name = "HOST", group = "mode")]
    client: Option<String>,
    /// Serve iperf3 clients until interrupted
    #[arg(short, long, group = "mode")]
    server: bool,
    /// Print the stack's counters that are not zero on standard error at the end, by nstat's names
    #[arg(long)]
    nstat: bool,
    /// Port of the server
    #[arg(short, long, default_value_t = 5201)]
    port: u16,
    /// Serve one client, then exit
    #[arg(short = '1', long, requires = "server")]
    one_off: bool,
    /// Seconds of the test [default: 10]
    #[arg(short, long, value_name = "SECS", group = "end", conflicts_with = "server",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_TIME)))]
    time: Option<u32>,
    /// Bytes to move in all instead of a time (suffixes K, M, G: powers of 1024)
    #[arg(short = 'n', long, value_name = "BYTES", group = "end")]
    #[arg(conflicts_with = "server", value_parser = size)]
    bytes: Option<u64>,
    /// Blocks to move in all instead of a time
    #[arg(short = 'k', long, value_name = "BLOCKS", group = "end")]
    #[arg(conflicts_with = "server", value_parser = size)]
    blockcount: Option<u64>,
    /// Bytes of one write
    #[arg(short, long, value_name = "BYTES", default_value = "128K", conflicts_with = "server",
          value_parser = size_within::<{ MAX_BLOCK }>)]
    length: u32,
    /// Parallel streams
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, conflicts_with = "server",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_STREAMS)))]
    parallel: u32,
    /// The server sends
    #[arg(short = 'R', long, conflicts_with = "server")]
    reverse: bool,
    /// Congestion control, by name: reno, cubic, bbr or bbr3 (which collapses above 2 % of loss)
    #[arg(short = 'C', long = "congestion", value_name = "ALGO", conflicts_with = "server")]
    congestion: Option<String>,
    /// Maximum segment size, bytes
    #[arg(short = 'M', long = "set-mss", value_name = "MSS", conflicts_with = "server",
          value_parser = clap::value_parser!(u32).range(88..=i64::from(MAX_MSS)))]
    mss: Option<u32>,
    /// Socket buffers, bytes (suffixes K, M, G: powers of 1024)
    #[arg(short, long, value_name = "BYTES", conflicts_with = "server")]
    #[arg(value_parser = size_within::<{ MAX_WINDOW }>)]
    window: Option<u32>,
    /// Pace each socket to at most so many bit/s, by fq if it is on the path (suffixes K, M, G:
    /// powers of 1000)
    #[arg(long, value_name = "RATE", conflicts_with = "server", value_parser = rate)]
    fq_rate: Option<u64>,
    /// Unsent bytes that the stack takes at the most; a writer is woken below half of them
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["server", "reverse"])]
    #[arg(value_parser = size_within::<{ u32::MAX }>)]
    notsent_lowat: Option<u32>,
    /// Send small writes at once
    #[arg(short = 'N', long, conflicts_with = "server")]
    no_delay: bool,
    /// Seconds at the start that are not counted
    #[arg(short = 'O', long, value_name = "SECS", default_value_t = 0, conflicts_with = "server",
          value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_OMIT)))]
    omit: u32,
    /// Seconds between reports, 0.1 to 60; 0 for none
    #[arg(short, long, value_name = "SECS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Tell at each report where a sender's bytes were and what blocked it (JSON always tells)
    #[arg(short = 'V', long)]
    verbose: bool,
    /// Report as JSON in iperf3's form
    #[arg(short = 'J', long)]
    json: bool,
    /// Use IPv4
    #[arg(short = '4', long, conflicts_with = "version6")]
    version4: bool,
    /// Use IPv6
    #[arg(short = '6', long)]
    version6: bool,
    /// Not supported: both directions in one test
    #[arg(long, hide = true)]
    bidir: bool,
    #[command(flatten)]
    network: NetworkArgs,
}

/// Why a test, or the whole program, did not come to its end.
#[derive(Debug, thiserror::Error)]
enum PerfError {
    #[error("--bidir is not supported; run one test each way (the second with -R)")]
    Bidirectional,
    #[error("-{flag} asks for another version of IP than --address has")]
    Version { flag: char },
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("cannot open the way out: {0}")]
    Open(#[from] neap::BuildError),
    #[error("cannot find {host}: {reason}")]
    Resolve { host: String, reason: String },
    #[error("cannot connect to {server}: {source}{}", connect_hint(source))]
    Connect { server: SocketAddr, source: io::Error },
    #[error("cannot listen: {0}")]
    Listen(io::Error),
    #[error("cannot set the socket options: {0}")]
    OwnOptions(io::Error),
    #[error("cannot set the socket options that the client asks for: {0}")]
    Options(io::Error),
    #[error("refused a test: {0}")]
    Refused(Refusal),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error(transparent)]
    Data(DataError),
    #[error("cannot catch signals: {0}")]
    Signals(io::Error),
}

impl From<DataError> for PerfError {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Protocol(error) => Self::Protocol(error),
            error => Self::Data(error),
        }
    }
}

/// What to do about a connection that failed, if the other side may be the cause.
fn connect_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::TimedOut => "; is an iperf3 server running there?",
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "; is the address right, and is there a way to it?"
        }
        _ => "",
    }
}

/// A number of bytes or blocks, with a suffix of iperf3's: K, M, G, T are powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || "expected a number above 0, with K, M, G or T for powers of 1024".to_owned();
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        Some((at, 't' | 'T')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let value = number * f64::from(1 << (shift / 2)) * f64::from(1 << (shift / 2));
    // Beyond 2^53 a count could not cross the wire as C programs write numbers.
    if (1.0..=9e15).contains(&value) { Ok(value as u64) } else { Err(wrong()) }
}

fn size_within<const LIMIT: u32>(text: &str) -> Result<u32, String> {
    match u32::try_from(size(text)?) {
        Ok(value) if value <= LIMIT => Ok(value),
        _ => Err(format!("at most {LIMIT} bytes")),
    }
}

/// A number of bit/s, with a suffix of iperf3's: for rates K, M, G, T are powers of 1000.
fn rate(text: &str) -> Result<u64, String> {
    let wrong =
        || "expected a number of 8 or more, with K, M, G or T for powers of 1000".to_owned();
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        Some((at, 'g' | 'G')) => (&text[..at], 1e9),
        Some((at, 't' | 'T')) => (&text[..at], 1e12),
        _ => (text, 1.0),
    };
    let value = digits.parse::<f64>().map_err(|_| wrong())? * unit;
    // Less than a byte per second is nothing, and beyond 2^53 a count could not cross the wire.
    if (8.0..=9e15).contains(&value) { Ok(value as u64) } else { Err(wrong()) }
}

/// Seconds between reports.
fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds == 0.0 || (0.1..=60.0).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err("expected 0, or 0.1 to 60 seconds".to_owned()),
    }
}

impl Args {
    fn plan(&self) -> Plan {
        let until = match (self.bytes, self.blockcount) {
            (Some(bytes), _) => Until::Bytes(bytes),
            (None, Some(blocks)) => Until::Blocks(blocks),
            (None, None) => {
                Until::Time(Duration::from_secs(self.time.unwrap_or(DEFAULT_TIME).into()))
            }
        };
        Plan {
            streams: self.parallel,
            reverse: self.reverse,
            omit: Duration::from_secs(self.omit.into()),
            until,
            block: self.length,
            socket: SocketOptions {
                nodelay: self.no_delay,
                congestion: self.congestion.clone(),
                max_segment: self.mss,
                buffer_size: self.window.map(|window| window as usize),
                fq_rate: self.fq_rate,
                notsent_lowat: self.notsent_lowat,
            },
        }
    }
}

/// Writes the report in the form that was asked for.
enum Reporter {
    Text(TextReport<io::Stdout>),
    Json(Box<JsonReport>),
}

impl Reporter {
    fn new(json: bool, verbose: bool) -> Self {
        if json {
            Self::Json(Box::new(JsonReport::new()))
        } else {
            Self::Text(TextReport::new(io::stdout(), verbose))
        }
    }

    fn connecting(&mut self, host: &str, port: u16, reverse: bool) {
        match self {
            Self::Json(report) => report.connecting(host, port),
            Self::Text(report) => {
                report.line(&format!("Connecting to host {host}, port {port}"));
                if reverse {
                    report.line(&format!("Reverse mode, remote host {host} is sending"));
                }
            }
        }
    }

    fn listening(&mut self, port: u16) {
        if let Self::Text(report) = self {
            report.line(&format!("Server listening on {port}"));
        }
    }

    fn accepted(&mut self, from: SocketAddr) {
        match self {
            Self::Json(report) => report.accepted(from),
            Self::Text(report) => {
                report.line(&format!(
                    "Accepted connection from {}, port {}",
                    from.ip(),
                    from.port()
                ));
            }
        }
    }

    fn start(&mut self, start: &Start<'_>) {
        match self {
            Self::Json(report) => report.start(start),
            Self::Text(report) => report.start(start),
        }
    }

    fn summary(&mut self, summary: &Summary) {
        match self {
            Self::Json(report) => report.summary(summary),
            Self::Text(report) => report.summary(summary),
        }
    }

    /// Ends the report; errors go to standard error, or into the document.
    fn finish(mut self, result: &Result<(), PerfError>) {
        match (&mut self, result) {
            (Self::Json(report), result) => {
                if let Err(error) = result {
                    report.error(&error.to_string());
                }
                // Nobody to tell if the output is gone.
                let _ = writeln!(io::stdout(), "{}", report.text());
            }
            (Self::Text(_), Err(error)) => eprintln!("neap: {error}"),
            (Self::Text(_), Ok(())) => {}
        }
    }
}

impl Observer for Reporter {
    fn interval(&mut self, interval: Interval) {
        match self {
            Self::Json(report) => report.interval(&interval),
            Self::Text(report) => report.interval(&interval),
        }
    }
}

/// Runs `neap perf`.
pub(crate) fn main(args: &Args) -> ExitCode {
    let mut reporter = Reporter::new(args.json, args.verbose);
    let result = match prepare(args) {
        Err(error) => Err(error),
        Ok((stack, version, interrupt)) => {
            let _control = control(&stack);
            let version = Some(version);
            let done = match &args.client {
                Some(host) => run_client(args, host, &stack, version, &mut reporter, &interrupt),
                None => {
                    let code = run_server(args, &stack, version, &interrupt);
                    if args.nstat {
                        nstat(&stack);
                    }
                    return code;
                }
            };
            if args.nstat {
                nstat(&stack);
            }
            done
        }
    };
    reporter.finish(&result);
    exit_code(&result)
}

/// Prints the counters of TCP and IP, dropped packets by reason, the lines of
/// `/proc/net/sockstat`, lateness, and the figures of queues and qdiscs. Each counter is a line of
/// a name and a number, in the format of `nstat`.
fn nstat(stack: &Stack) {
    let host = stack.host();
    let line = |name: &str, n: u64| {
        if n > 0 {
            eprintln!("{name:<32}{n:<16}");
        }
    };
    for (counter, n) in host.tcp_counters() {
        line(counter.name(), n);
    }
    for (counter, n) in host.ip_counters() {
        line(counter.name(), n);
    }
    for (reason, n) in host.drops() {
        line(&format!("drop.{reason}"), n);
    }
    eprintln!("{}", host.usage());
    let late = host.departures();
    if late.count() > 0 {
        line("departures", late.count());
        line("departures.late_p50_ns", late.percentile(50.0).0);
        line("departures.late_p99_ns", late.percentile(99.0).0);
        line("departures.late_max_ns", late.max().0);
    }
    for interface in host.interfaces() {
        line(&format!("{}.rx_dropped", interface.name), interface.rx_dropped);
        for (queue, port) in interface.ports.iter().enumerate() {
            for (name, n) in port.figures() {
                line(&format!("{}.{queue}.{name}", interface.name), n);
            }
        }
        for qdisc in host.qdiscs(interface.id) {
            eprintln!("{qdisc}");
        }
    }
}

/// Lets `neap ss` look inside. A measurement goes on without.
fn control(stack: &Stack) -> Option<Control> {
    let served = control::serve(stack, ControlOptions::new("perf"));
    served.inspect_err(|error| eprintln!("neap perf: {error}")).ok()
}

fn exit_code(result: &Result<(), PerfError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The stack, the version of IP that it speaks, and the user's wish to stop.
fn prepare(args: &Args) -> Result<(Stack, IpVersion, Interrupt), PerfError> {
    if args.bidir {
        return Err(PerfError::Bidirectional);
    }
    let asked = match (args.version4, args.version6) {
        (true, _) => Some((IpVersion::V4, '4')),
        (_, true) => Some((IpVersion::V6, '6')),
        _ => None,
    };
    let network = Network::of(&args.network)?;
    let version = network.version();
    if let Some((asked, flag)) = asked
        && asked != version
    {
        return Err(PerfError::Version { flag });
    }
    let interrupt = Interrupt::catch().map_err(PerfError::Signals)?;
    Ok((network.open()?, version, interrupt))
}

fn run_client(
    args: &Args,
    host: &str,
    stack: &Stack,
    version: Option<IpVersion>,
    reporter: &mut Reporter,
    interrupt: &Interrupt,
) -> Result<(), PerfError> {
    let server = client::resolve(host, args.port, version)?;
    let interval = (!args.interval.is_zero()).then_some(args.interval);
    reporter.connecting(host, args.port, args.reverse);
    client::run(stack, server, &args.plan(), interval, reporter, interrupt)
}

/// Serves until interrupted, or once; a test that fails is reported and does not end the server.
fn run_server(
    args: &Args,
    stack: &Stack,
    version: Option<IpVersion>,
    interrupt: &Interrupt,
) -> ExitCode {
    let interval = (!args.interval.is_zero()).then_some(args.interval);
    let mut reporter = Reporter::new(args.json, args.verbose);
    let listener = net::bind(stack, args.port, version).map_err(PerfError::Listen);
    let server = listener.and_then(|listener| Server::new(listener, interval, interrupt));
    let mut server = match server {
        Ok(server) => server,
        Err(error) => {
            let result = Err(error);
            reporter.finish(&result);
            return exit_code(&result);
        }
    };
    loop {
        reporter.listening(args.port);
        let result = server.serve(&mut reporter);
        reporter.finish(&result);
        match result {
            Err(PerfError::Protocol(ProtocolError::Interrupted)) => return ExitCode::SUCCESS,
            result if args.one_off || matches!(result, Err(PerfError::Listen(_))) => {
                return exit_code(&result);
            }
            _ => reporter = Reporter::new(args.json, args.verbose),
        }
    }
}
