//! Three kinds of flow, predicted and measured: a bulk transfer, requests with responses, and a
//! paced flow of messages. neap sends over AF_PACKET and a veth pair through the kernel's `tbf`;
//! the kernel receives.
//!
//! Both ends are threads of this process, each in a network namespace of its own, so that one clock
//! tells how long a message took.

use super::judge::{Judged, Judgement};
use super::lateness::Lateness;
use super::network::{DEVICE, Network, RECEIVER, SENDER, enter_named};
use super::{LINKS, Link, Sender, WARM_UP, quantile};
use crate::perf::interrupt::Interrupt;
use neap::config::Profile;
use neap::device::{Packet, PacketConfig};
use neap::scheduling::Scheduling;
use neap::{Stack, TcpStream};
use neap_lab::scenario::{Experiment, Figures};
use socket2::SockRef;
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Predictions agree within so much of the measured rate, and of the measured delay.
const RATE: f64 = 0.10;
const DELAY: f64 = 0.20;

/// Why figures differ where they do.
const BUSY: &str = "a thread of a busy machine loses its processor in the middle of its work, which a host of the lab never does";

/// Longest time that a call may wait for the other end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time between two looks at the round trip of the bulk transfer.
const LOOK: Duration = Duration::from_millis(5);

/// Bytes of one write, and of one read.
const WRITE: usize = 131_072;

/// The slow link.
const LINK: Link = LINKS[0];

/// What the application does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Bulk,
    /// A request, then the whole response, then a pause.
    Exchange {
        request: usize,
        response: usize,
        think: Duration,
    },
    /// A message in every interval, on a connection that is paced.
    Paced {
        message: usize,
        interval: Duration,
        /// Bytes per second.
        rate: u64,
    },
}

/// A flow that is compared.
struct Plan {
    name: &'static str,
    traffic: Traffic,
    /// What its delay is, and the figure of the lab.
    delay: &'static str,
    figure: &'static str,
}

const PLANS: [Plan; 3] = [
    Plan {
        name: "a bulk transfer through 100 Mbit/s",
        traffic: Traffic::Bulk,
        delay: "smoothed round-trip time, median, ms",
        figure: "app.flow.srtt_p50_ms",
    },
    Plan {
        name: "requests of 128 KiB with responses of 1 KiB through 100 Mbit/s",
        traffic: Traffic::Exchange {
            request: 131_072,
            response: 1024,
            think: Duration::from_millis(10),
        },
        delay: "from request to response, median, ms",
        figure: "app.flow.latency_p50_ms",
    },
    Plan {
        name: "messages of 48 KiB every 20 ms, paced at 24 Mbit/s",
        traffic: Traffic::Paced {
            message: 49_152,
            interval: Duration::from_millis(20),
            rate: 3_000_000,
        },
        delay: "from write to arrival of a message, median, ms",
        figure: "app.flow.latency_p50_ms",
    },
];

/// What was measured of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measured {
    mbit: f64,
    delay_ms: f64,
}

/// The time in which a flow is measured.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: Instant,
    until: Instant,
}

impl Span {
    fn has(&self, at: Instant) -> bool {
        (self.from..self.until).contains(&at)
    }
}

/// Measures and predicts all of them, and prints each.
pub(super) fn run(
    seconds: u32,
    interrupt: &Interrupt,
    quiet: bool,
    out: &mut impl Write,
) -> Result<Vec<Judgement>, Box<dyn Error>> {
    let mut all = Vec::new();
    for plan in &PLANS {
        let (measured, lateness) = measure(plan.traffic, seconds, interrupt)?;
        let figures = predict(plan.traffic, seconds, &lateness)?;
        let goodput = figures.get("app.flow.goodput_mbit").copied().unwrap_or(0.0);
        let delay = figures.get(plan.figure).copied().unwrap_or(0.0);
        let judgement = Judgement {
            name: plan.name,
            sender: Sender::Neap,
            figures: vec![
                Judged::new("goodput, Mbit/s", [goodput, measured.mbit], RATE, BUSY),
                Judged::new(plan.delay, [delay, measured.delay_ms], DELAY, BUSY),
            ],
            notes: Vec::new(),
        };
        if !quiet {
            judgement.print(out)?;
            out.flush()?;
        }
        all.push(judgement);
    }
    Ok(all)
}

/// The scenario of a flow.
///
/// What neap sends waits in `tbf`, as a qdisc of its host does in the lab, and a veth completes at
/// once. The kernel that receives acknowledges in its interrupts, at once; only its reader is as
/// late as this machine wakes a thread.
fn scenario(traffic: Traffic, seconds: u32, lateness: &Lateness) -> String {
    let Link { mbit, gso_max, burst } = LINK;
    // The kernel's `tbf` counts 14 bytes of Ethernet with each packet, that of the lab none.
    let rate = (f64::from(mbit) * 1500.0 / 1514.0 * 1e6) as u64;
    let late = lateness.quantile(50.0).as_micros();
    let app = match traffic {
        Traffic::Bulk => "kind = \"bulk\"".to_owned(),
        Traffic::Exchange { request, response, think } => format!(
            "kind = \"request-response\"\nrequest = \"{request}\"\nresponse = \"{response}\"\n\
             think = \"{}us\"",
            think.as_micros()
        ),
        Traffic::Paced { message, interval, rate } => format!(
            "kind = \"paced\"\nmessage = \"{message}\"\ninterval = \"{}us\"\n\
             pacing_rate = \"{}bit\"",
            interval.as_micros(),
            rate * 8
        ),
    };
    format!(
        "about = \"one flow over a token bucket\"\nwarm_up = \"{WARM_UP}s\"\n\
         duration = \"{seconds}s\"\nsample = \"5ms\"\n[host.a]\nprofile = \"neap\"\n\
         qdisc = \"tbf rate {rate}bit burst {burst} limit 10mb\"\n\
         nic = {{ gso_max_size = {gso_max}, ring = 1000, bql = false }}\n\
         [host.b]\nprofile = \"linux-6.18\"\nlateness = \"0us\"\nper_switch = \"{late}us\"\n\
         [link.wire]\nends = [\"a\", \"b\"]\ndelay = \"1us\"\nrate = \"100gbit\"\n\
         [app.flow]\nfrom = \"a\"\nto = \"b\"\n{app}\n"
    )
}

fn predict(traffic: Traffic, seconds: u32, lateness: &Lateness) -> Result<Figures, Box<dyn Error>> {
    let no_files = |name: &str| Err(format!("there is no file {name}"));
    let text = scenario(traffic, seconds, lateness);
    let experiment = Experiment::parse("flow.toml", &text, &no_files)?;
    let run = experiment.run(&Vec::new(), &|_| {}).map_err(|error| error.to_string())?;
    Ok(run.figures)
}

/// Measures a flow, and how late the machine was meanwhile.
fn measure(
    traffic: Traffic,
    seconds: u32,
    interrupt: &Interrupt,
) -> Result<(Measured, Lateness), Box<dyn Error>> {
    let network = Network::new(Some(LINK), Sender::Neap)?;
    let stop = AtomicBool::new(false);
    let (tell, told) = mpsc::channel();
    let begin = Instant::now() + Duration::from_secs(WARM_UP.into());
    let span = Span { from: begin, until: begin + Duration::from_secs(seconds.into()) };
    let (received, sent, lateness) = thread::scope(|scope| {
        let lateness = scope.spawn(|| {
            hurry();
            Lateness::watch(&stop)
        });
        let server = scope.spawn(|| {
            hurry();
            serve(&network.receiver, traffic, span, tell)
        });
        let sender = &network.sender;
        let client = scope.spawn(move || {
            hurry();
            let address = told.recv_timeout(PATIENCE).map_err(|_| "nobody listens".to_owned())?;
            send(sender, address, traffic, span, interrupt)
        });
        let (sent, received) = (client.join(), server.join());
        stop.store(true, Ordering::Relaxed);
        (received, sent, lateness.join())
    });
    let failed = |_| "a thread failed".to_owned();
    let sent = sent.map_err(failed)??;
    let received = received.map_err(failed)??;
    let mut delays: Vec<f64> = match traffic {
        Traffic::Bulk | Traffic::Exchange { .. } => sent.delays,
        Traffic::Paced { .. } => {
            let pairs = sent.due.iter().zip(&received.arrivals);
            let counted = pairs.filter(|(due, _)| span.has(**due));
            counted.map(|(due, at)| millis(at.saturating_duration_since(*due))).collect()
        }
    };
    let delay_ms = quantile(&mut delays, 0.5);
    let mbit = received.bytes as f64 * 8e-6 / f64::from(seconds);
    Ok((Measured { mbit, delay_ms }, lateness.map_err(failed)?))
}

/// Gives the calling thread, and those that it starts, the processor before the other programs of
/// the machine: what they do is no part of the comparison.
fn hurry() {
    static TOLD: Once = Once::new();
    if let Err(error) = Scheduling::Fifo(1).apply() {
        TOLD.call_once(|| eprintln!("without a real-time class ({error}): keep the machine quiet"));
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What the receiver saw.
#[derive(Debug, Default)]
struct Received {
    /// Bytes within the span.
    bytes: u64,
    /// When each message was whole.
    arrivals: Vec<Instant>,
}

/// Serves one connection in a namespace, and tells its address.
fn serve(
    namespace: &str,
    traffic: Traffic,
    span: Span,
    tell: mpsc::Sender<SocketAddr>,
) -> Result<Received, String> {
    enter_named(namespace)?;
    let serve = || -> io::Result<Received> {
        let listener = TcpListener::bind(format!("{RECEIVER}:0"))?;
        SockRef::from(&listener).set_read_timeout(Some(PATIENCE))?;
        // A client that is gone needs no address.
        let _ = tell.send(listener.local_addr()?);
        drop(tell);
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut buffer = vec![0; WRITE];
        let (mut received, mut total, mut whole) = (Received::default(), 0_u64, 0_u64);
        loop {
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return Ok(received);
            }
            let now = Instant::now();
            total += count as u64;
            received.bytes += if span.has(now) { count as u64 } else { 0 };
            let (size, response) = match traffic {
                Traffic::Bulk => continue,
                Traffic::Exchange { request, response, .. } => (request, response),
                Traffic::Paced { message, .. } => (message, 0),
            };
            while (whole + 1) * size as u64 <= total {
                whole += 1;
                received.arrivals.push(now);
                stream.write_all(&buffer[..response])?;
            }
        }
    };
    serve().map_err(|error| format!("the receiver: {error}"))
}

/// What the sender saw.
#[derive(Debug, Default)]
struct Sent {
    /// Delays that the sender measures itself, milliseconds.
    delays: Vec<f64>,
    /// When each message was due.
    due: Vec<Instant>,
}

/// Sends from a stack in a namespace until the span is over.
fn send(
    namespace: &str,
    to: SocketAddr,
    traffic: Traffic,
    span: Span,
    interrupt: &Interrupt,
) -> Result<Sent, String> {
    enter_named(namespace)?;
    let stack = open().map_err(|error| error.to_string())?;
    let goes_on = || Instant::now() < span.until && !interrupt.is_set();
    let send = || -> io::Result<Sent> {
        let mut stream = TcpStream::connect(&stack, to)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut sent = Sent::default();
        match traffic {
            Traffic::Bulk => sent.delays = bulk(&stream, span, &goes_on)?,
            Traffic::Exchange { request, response, think } => {
                let (request, mut response) = (vec![0; request], vec![0; response]);
                while goes_on() {
                    let asked = Instant::now();
                    stream.write_all(&request)?;
                    stream.read_exact(&mut response)?;
                    if span.has(asked) {
                        sent.delays.push(millis(asked.elapsed()));
                    }
                    thread::sleep(think);
                }
            }
            Traffic::Paced { message, interval, rate } => {
                stream.set_max_pacing_rate(Some(rate))?;
                let message = vec![0; message];
                let mut due = Instant::now();
                while goes_on() {
                    stream.write_all(&message)?;
                    sent.due.push(due);
                    due += interval;
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                }
            }
        }
        Ok(sent)
    };
    let sent = send().map_err(|error| format!("the sender: {error}"));
    // The receiver reads what is on its way until the stream ends.
    stack.close(PATIENCE);
    if interrupt.is_set() { Err("interrupted".to_owned()) } else { sent }
}

/// neap on the sender's interface.
fn open() -> Result<Stack, Box<dyn Error>> {
    let mut config = PacketConfig::new(DEVICE);
    config.gso_max_size = LINK.gso_max;
    let device = Packet::open(&config)?.into_device();
    let builder = Stack::builder().config(Profile::Neap.config());
    Ok(builder.address(format!("{SENDER}/24").as_str()).device(device).build()?)
}

/// Writes without end. The round-trip times that were seen meanwhile, milliseconds.
fn bulk(
    stream: &TcpStream,
    span: Span,
    goes_on: &(impl Fn() -> bool + Sync),
) -> io::Result<Vec<f64>> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut seen = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
                if span.has(Instant::now()) {
                    seen.push(millis(Duration::from(stream.info().rtt)));
                }
            }
            seen
        });
        let data = vec![0; WRITE];
        let mut written = Ok(());
        while goes_on() && written.is_ok() {
            written = (&mut &*stream).write_all(&data);
        }
        is_over.store(true, Ordering::Relaxed);
        let seen = looks.join().map_err(|_| io::Error::other("a thread failed"))?;
        written.map(|()| seen)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flow_has_a_scenario_with_the_figures_that_are_compared() {
        for plan in &PLANS {
            let figures = predict(plan.traffic, 1, &Lateness::default()).expect("a run");
            assert!(figures["app.flow.goodput_mbit"] > 10.0, "{}", plan.name);
            assert!(figures[plan.figure] > 0.1, "{}: {}", plan.name, figures[plan.figure]);
        }
    }
}
