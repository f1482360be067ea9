//! `neap link`: a link of the lab in real time, between two TUNs or two Ethernet interfaces.

mod driver;
mod ends;
mod lateness;
mod report;

use crate::lab::files::find;
use crate::perf::interrupt::Interrupt;
use crate::standard_error::say;
use clap::Args as ClapArgs;
use driver::{Driver, Pace};
use ends::{EndSpec, Settings};
use neap::net::Address;
use neap::scheduling::Scheduling;
use neap::time::Nanos;
use neap_lab::link::{Relay, RelayConfig};
use neap_lab::rng::Rng;
use neap_lab::scenario::{Experiment, netem};
use report::Report;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Exit status for arguments that are not understood, as clap has it.
const BAD_ARGUMENTS: u8 = 2;

/// Lateness that is counted as late: of a thread that sleeps between packets, and of one that
/// spins.
const LATE: Nanos = Nanos::from_micros(200);
const LATE_SPINNING: Nanos = Nanos::from_micros(100);

/// Shortest time between two wake-ups for packets that are due.
const BATCH: Nanos = Nanos::from_micros(50);

/// What `--help` says of the words.
const WORDS: &str = "\
Words:
  delay TIME [JITTER]              evenly from TIME - JITTER to TIME + JITTER; the order is kept
  loss [random] SHARE              at random, such as 1%
  loss gemodel P [R [1-H [1-K]]]   in bursts, as in netem
  reorder SHARE [TIME]             packets that come up to TIME later (default: the delay)
  duplicate SHARE                  packets that come twice
  corrupt SHARE                    packets of which one bit is flipped
  rate RATE                        with what Ethernet adds to each packet, such as 50mbit
  limit N | SIZE                   packets or bytes that the queue holds (default: 1000 packets)
  codel [target TIME] [interval TIME] [noecn]
  red min SIZE max SIZE probability SHARE [ecn]
  mark_above SIZE, mark SHARE      congestion marks: above a backlog, at random
  police rate RATE burst SIZE      a token bucket that drops
  wifi overhead TIME frames N airtime TIME
  trace FILE                       a recorded rate, in mahimahi's format
  mtu BYTES                        larger packets are answered by ICMP
  drop N,N,...                     these packets are lost, counted from 0
  outage FROM TO                   all packets between these times, from the start
  there, back, both                what follows is about packets from A to B, from B to A, or both

Example, as root:
  ip netns add a; ip netns add b
  neap link tun0@a tun0@b delay 20ms rate 50mbit limit 1mb \\
      --address-a 10.1.0.1/24 --address-b 10.1.0.2/24 &
  ip netns exec b iperf3 -s -D -1
  ip netns exec a iperf3 -c 10.1.0.2";

/// Join two interfaces by a link of the lab, in real time: rate, delay, loss, queues
///
/// An end is NAME or NAME@NETNS, where NETNS is a name of `ip netns`, a path or the number of a
/// process. A TUN is made if there is no interface of that name; an Ethernet interface is opened by
/// AF_PACKET. `tun:`, `tap:` or `packet:` in front says which it must be. SIGINT and SIGTERM end
/// the link and print its counts.
#[derive(ClapArgs, Clone, Debug)]
#[command(after_long_help = WORDS)]
pub(crate) struct Args {
    /// First end, such as tun0@a
    a: EndSpec,
    /// Second end
    b: EndSpec,
    /// The link in the words of netem, for instance: delay 40ms 5ms loss 1% rate 50mbit limit 1mb
    /// codel. Words behind `there` are about packets from A to B, behind `back` about the others
    #[arg(value_name = "WORD", conflicts_with = "scenario")]
    words: Vec<String>,
    /// Take the link of this scenario: a file, or the name of one that neap brings along (neap lab
    /// list)
    #[arg(long, value_name = "FILE")]
    scenario: Option<String>,
    /// Name of the link in the scenario, if it has several
    #[arg(long, value_name = "NAME", requires = "scenario")]
    link: Option<String>,
    /// Seed of all randomness; equal seeds make equal decisions [default: 1, or that of the
    /// scenario]
    #[arg(long)]
    seed: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Never sleep: takes a whole processor, and releases packets sooner
    #[arg(long)]
    spin: bool,
    /// Shortest time between two wake-ups for packets that are due, so that they leave together
    /// [default: 50us, 0us with --spin]
    #[arg(long, value_name = "TIME", value_parser = time)]
    batch: Option<Nanos>,
    /// Count packets as late that leave more than this after they are due [default: 200us, 100us
    /// with --spin]
    #[arg(long, value_name = "TIME", value_parser = time)]
    late: Option<Nanos>,
    /// End with status 1 if more than one packet in a hundred was late
    #[arg(long)]
    strict: bool,
    /// Address with its prefix length that A gets, if it is a TUN; may be repeated
    #[arg(long, value_name = "CIDR", value_parser = address)]
    address_a: Vec<Address>,
    /// Address with its prefix length that B gets, if it is a TUN; may be repeated
    #[arg(long, value_name = "CIDR", value_parser = address)]
    address_b: Vec<Address>,
    /// MTU that TUNs get [default: as they have it]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(68..))]
    mtu: Option<u16>,
    /// Most packets that are on their way in both directions together
    #[arg(long, value_name = "N", default_value_t = RelayConfig::MOST_PACKETS, value_parser = packets)]
    packets: usize,
    /// Scheduling of the thread, for a busy machine: nice:N (-20 to 19), slice:TIME (100us to
    /// 100ms), or real-time fifo:N or rr:N (1 to 99); may be repeated
    #[arg(long = "scheduling", value_name = "HOW", allow_hyphen_values = true)]
    scheduling: Vec<Scheduling>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 1e9);
    number.map(Duration::from_secs_f64).ok_or_else(|| "expected a number above 0".to_owned())
}

fn packets(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| "expected a number above 0".to_owned())
}

fn time(text: &str) -> Result<Nanos, String> {
    netem::time(text).map_err(str::to_owned)
}

fn address(text: &str) -> Result<Address, String> {
    text.parse().map_err(|error| format!("{error}, for instance 10.1.0.1/24 or fd00::1/64"))
}

/// Why there is no link.
enum Failure {
    /// What was asked for makes no sense.
    Arguments(String),
    /// The machine refuses.
    System(String),
}

impl From<netem::NetemError> for Failure {
    fn from(error: netem::NetemError) -> Self {
        Self::Arguments(error.to_string())
    }
}

/// Runs `neap link`.
pub(crate) fn main(args: &Args) -> ExitCode {
    match run(args) {
        Ok(is_punctual) if is_punctual || !args.strict => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(Failure::System(what)) => {
            say(&format_args!("neap link: {what}"));
            ExitCode::FAILURE
        }
        Err(Failure::Arguments(what)) => {
            say(&format_args!("neap link: {what}"));
            ExitCode::from(BAD_ARGUMENTS)
        }
    }
}

/// The text of a file that words name.
fn read(file: &str) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))
}

/// The link that is asked for, and the seed.
fn config(args: &Args) -> Result<(RelayConfig, u64), Failure> {
    let (mut config, seed) = match &args.scenario {
        None => (netem::parse(&args.words, &read)?, 1),
        Some(name) => {
            let wrong = Failure::Arguments;
            let found = find(name).map_err(wrong)?;
            let files = |file: &str| found.read(file);
            let experiment = Experiment::parse(&found.name, &found.text, &files);
            let experiment = experiment.map_err(|error| wrong(error.to_string()))?;
            let config = experiment.relay(args.link.as_deref());
            (config.map_err(|error| wrong(error.to_string()))?, experiment.scenario().seed)
        }
    };
    config.most_packets = args.packets;
    Ok((config, args.seed.unwrap_or(seed)))
}

/// Whether packets left in time.
fn run(args: &Args) -> Result<bool, Failure> {
    let (config, seed) = config(args)?;
    let system = |error: io::Error| Failure::System(error.to_string());
    let settings =
        |addresses: &Vec<Address>| Settings { addresses: addresses.clone(), mtu: args.mtu };
    let ends = [(&args.a, &args.address_a), (&args.b, &args.address_b)];
    let [a, b] = ends.map(|(end, addresses)| end.open(&settings(addresses)));
    let (a, b) = (a?, b?);
    if a.is_ethernet() != b.is_ethernet() {
        let what = "carries IP packets and the other end Ethernet frames: join two TUNs, or two \
                    Ethernet interfaces";
        return Err(Failure::Arguments(format!(
            "{} {what}",
            if a.is_ethernet() { &b } else { &a }
        )));
    }
    if args.mtu.is_some() && !a.is_tun && !b.is_tun {
        let what = "--mtu is for a TUN or TAP: set that of an interface with `ip link set`";
        return Err(Failure::Arguments(what.to_owned()));
    }
    let interrupt = Interrupt::catch().map_err(system)?;
    for how in &args.scheduling {
        how.apply().map_err(|error| Failure::System(error.to_string()))?;
    }
    let names = [a.to_string(), b.to_string()];
    let (late, batch) = if args.spin { (LATE_SPINNING, Nanos::ZERO) } else { (LATE, BATCH) };
    let pace = Pace {
        spins: args.spin,
        batch: args.batch.unwrap_or(batch),
        late: args.late.unwrap_or(late),
    };
    let start = driver::now();
    let relay = Relay::new(config, &Rng::new(seed), start, a.is_ethernet());
    let mut driver = Driver::new(relay, [a, b], pace).map_err(system)?;
    // Whoever started this waits for the line.
    say(&format_args!("neap link: {} and {} are joined", names[0], names[1]));
    let until = args.seconds.map(|seconds| start + Nanos::from(seconds));
    let ended = driver.run(until, &interrupt);
    let report = Report::new(&mut driver, names, seed, pace);
    let mut out = io::stdout().lock();
    let printed = if args.json { report.write_json(&mut out) } else { report.write_text(&mut out) };
    // Nobody to tell if the output is gone.
    let _ = printed.and_then(|()| out.flush());
    ended.map_err(system)?;
    if !report.is_punctual() {
        say(&format_args!(
            "neap link: this machine was too slow or too busy: {:.1} % of the packets left more \
             than {} us late",
            report.late_percent(),
            pace.late.0 / 1000
        ));
    }
    Ok(report.is_punctual())
}
