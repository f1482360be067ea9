//! Twins of the other experiments: few flows by the rules of E2, E3 and E4 over a real veth pair,
//! beside the lab's prediction of the same flows.
//!
//! The paths of E2 and E3 are made by neap's own device, which hands over later what arrives; the
//! kernel has a twin of E4 alone. Paths with delay and loss are links of the lab in real time
//! (`neap link`), for both.

use super::judge::{Judged, Judgement};
use super::lateness::Lateness;
use super::measure::{listening, read};
use super::network::{ChildGuard, DEVICE, Network, RECEIVER, SENDER};
use super::{Link, Sender};
use crate::perf::interrupt::Interrupt;
use neap_lab::scenario::{Experiment, Figures};
use serde_json::Value;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Prediction and measurement agree within so much of the measured value.
const TOLERANCE: f64 = 0.15;

/// More than its time that a flow may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What one experiment is on a real device: how it is sent, and the scenario of it.
struct Twin {
    name: &'static str,
    sender: Sender,
    way: Way,
    /// Options of `neap perf` and `iperf3`, and those of neap alone.
    options: String,
    own: Vec<String>,
    flows: u32,
    seconds: u32,
    scenario: String,
    rows: &'static [Row],
}

/// What is between the hosts.
enum Way {
    /// A veth, with what the machine gives.
    Veth,
    /// A veth with `tbf`.
    Slow(Link),
    /// The link of the scenario, in real time.
    Relay,
}

/// One figure of a twin.
#[derive(Clone, Copy)]
struct Row {
    what: &'static str,
    predicted: fn(&Figures) -> f64,
    measured: fn(&Flow) -> f64,
    /// Why it differs where it does.
    why: &'static str,
}

/// What a program did.
#[derive(Clone, Debug, Default)]
struct Flow {
    report: Value,
    /// Counters of the stack, of the whole time.
    counters: BTreeMap<String, f64>,
    /// Voluntary context switches of the process, per second.
    switches: f64,
    seconds: f64,
    /// How late the machine was meanwhile.
    lateness: Lateness,
}

impl Flow {
    fn counter(&self, name: &str) -> f64 {
        self.counters.get(name).copied().unwrap_or(0.0)
    }

    fn goodput_mbit(&self) -> f64 {
        self.report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6
    }

    /// The mean of the bytes that a flow had not had acknowledged, those unsent included, in the
    /// second half of the intervals. MB.
    fn held_mb(&self) -> f64 {
        let all = self.report["intervals"].as_array().map_or(&[][..], Vec::as_slice);
        let places = ["unsent_bytes", "qdisc_bytes", "device_bytes", "in_flight_bytes"];
        let streams = all[all.len() / 2..].iter().filter_map(|one| one["streams"].as_array());
        let held: Vec<f64> = streams
            .flatten()
            .map(|one| places.iter().filter_map(|place| one["neap"][*place].as_f64()).sum())
            .collect();
        held.iter().sum::<f64>() / held.len().max(1) as f64 / 1e6
    }
}

/// Bytes that the receiver got, MB.
fn received_mb(flow: &Flow) -> f64 {
    flow.goodput_mbit() * flow.seconds / 8.0
}

const GOODPUT: Row = Row {
    what: "goodput, Mbit/s",
    predicted: |figures| figures["app.bulk.goodput_mbit"],
    measured: Flow::goodput_mbit,
    why: "the lab's processor costs nothing; a machine with other work gives the sender less than its rate",
};

const FRAMES: Row = Row {
    what: "packets handed down per MB received",
    predicted: |figures| {
        figures["host.a.IpOutRequests"] * 1e6 / figures["app.bulk.delivered_bytes"]
    },
    measured: |flow| flow.counter("IpOutRequests") / received_mb(flow),
    why: "what was sent at the end and did not arrive any more counts as handed down; and frames follow cwnd and srtt, which the machine's lateness changes",
};

const MEMORY: Row = Row {
    what: "unacknowledged and unsent, MB per flow",
    predicted: |figures| figures["app.bulk.held_mb"],
    measured: Flow::held_mb,
    why: "a send buffer is a multiple of the window, and the windows differ; why they do is not known",
};

const SWITCHES: Row = Row {
    what: "voluntary context switches per second",
    predicted: |figures| figures["host.a.turns_per_s"],
    measured: |flow| flow.switches,
    why: "the lab's host sleeps once a turn; a thread of neap also gives way to the other one that takes over its stack, and is woken by what the kernel does at another time than the lab's card",
};

const KERNEL_SWITCHES: Row = Row {
    predicted: |figures| figures["host.a.context_switches_per_s"],
    why: "the lab counts changes to the one thread that writes; how often iperf3 sleeps depends on how many sockets it finds ready at once",
    ..SWITCHES
};

const TIMERS: Row = Row {
    what: "wake-ups by timers alone, per second",
    predicted: |figures| figures["host.a.NeapTimerWakeups"] / figures["host.a.seconds"],
    measured: |flow| flow.counter("NeapTimerWakeups") / flow.seconds,
    why: "a wake-up is one by a timer alone if nothing else has come meanwhile, which depends on how late the machine is at that moment",
};

const LOSSY_GOODPUT: Row = Row {
    why: "loss is by chance, and the lab's reader is as late as the threads of a busy machine",
    ..GOODPUT
};

const AGAIN: Row = Row {
    what: "segments sent again per MB received",
    predicted: |figures| {
        figures["host.a.TcpRetransSegs"] * 1e6 / figures["app.bulk.delivered_bytes"]
    },
    measured: |flow| flow.counter("TcpRetransSegs") / received_mb(flow),
    why: "the link takes one of a hundred by chance; what its queue drops at the start depends on how late the machine is",
};

const DELAYED: &[Row] = &[GOODPUT, FRAMES];
const LOSSY: &[Row] = &[LOSSY_GOODPUT, FRAMES, AGAIN];
const UNPACED: &[Row] = &[GOODPUT, FRAMES, MEMORY, SWITCHES];
const LOW_WATER: &[Row] = &[GOODPUT, FRAMES, MEMORY, SWITCHES, TIMERS];
const PACED: &[Row] = &[GOODPUT, FRAMES, SWITCHES, TIMERS];
const PACED_KERNEL: &[Row] = &[GOODPUT, FRAMES, KERNEL_SWITCHES];

/// Flows of the twins of E3 and E4, and seconds of all.
const FLOWS: u32 = 4;
const PACED_FLOWS: u32 = 20;
const SECONDS: u32 = 6;

/// Seconds of those over a link of the lab: loss at random needs time to become even.
const LINK_SECONDS: u32 = 15;

/// The slow links of the twins of E2 and E3.
const SLOW: Link = Link { mbit: 100, gso_max: 65_535, burst: 81_920 };
const FASTER: Link = Link { mbit: 400, gso_max: 65_535, burst: 262_144 };

/// Stands in a scenario for the lateness of the machine, which is measured first.
const LATENESS: &str = "LATENESS";

/// A scenario of two hosts at a veth pair, as late as those of E1: the reader as the machine wakes
/// it, neap as in the lab's experiments, and the kernel that sends not at all.
fn scenario(sender: Sender, seconds: u32, sysctls: &str, link: &str, app: &str) -> String {
    let (profile, late, bql) = match sender {
        Sender::Neap => ("neap", "\"50us\"", true),
        Sender::Kernel => ("linux-6.18", "\"0us\"", false),
    };
    format!(
        "about = \"a twin\"\nduration = \"{seconds}s\"\nsample = \"10ms\"\n[host.a]\n\
         profile = \"{profile}\"\nlateness = {late}\nnic = {{ ring = 1000, bql = {bql} }}\n{sysctls}\
         [host.b]\nprofile = \"linux-6.18\"\nlateness = {LATENESS}\n\
         nic = {{ rx_usecs = 10, rx_frames = 64 }}\n[host.b.sysctl]\n\
         \"net.ipv4.tcp_rmem\" = \"4096 262144 64000000\"\n\
         [link.wire]\nends = [\"a\", \"b\"]\n{link}\n\
         [app.bulk]\nkind = \"bulk\"\nfrom = \"a\"\nto = \"b\"\nwriter = \"edge\"\n{app}"
    )
}

/// A slow link, whose `tbf` does not count all that Ethernet adds, and a long way back.
fn long_path(slow: Link, millis: u32) -> String {
    let rate = (f64::from(slow.mbit) * 1e6 * 1538.0 / 1514.0) as u64;
    format!(
        "there = {{ rate = \"{rate}bit\", delay = \"10us\" }}\n\
         back = {{ rate = \"10gbit\", delay = \"{millis}ms\" }}"
    )
}

fn long_flow() -> Twin {
    Twin {
        name: "E2's path: one flow of CUBIC over 40 ms, 100 Mbit/s",
        sender: Sender::Neap,
        way: Way::Slow(SLOW),
        options: "-C cubic -i 0.5".to_owned(),
        own: words("--delay 40"),
        flows: 1,
        seconds: SECONDS,
        scenario: scenario(Sender::Neap, SECONDS, "", &long_path(SLOW, 40), ""),
        rows: UNPACED,
    }
}

fn low_water(mark: Option<u32>) -> Twin {
    let sysctls = "[host.a.sysctl]\n\"net.ipv4.tcp_congestion_control\" = \"bbr\"\n\
                   \"net.ipv4.tcp_wmem\" = \"4096 262144 64000000\"\n";
    let lowat = mark.map_or(String::new(), |mark| format!("notsent_lowat = {mark}\n"));
    let app = format!("count = {FLOWS}\n{lowat}");
    let mut own = words("--delay 100 --sysctl");
    own.push("net.ipv4.tcp_wmem=4096 262144 64000000".to_owned());
    own.extend(mark.into_iter().flat_map(|mark| words(&format!("--notsent-lowat {mark}"))));
    Twin {
        name: match mark {
            None => "E3's path: 4 flows of BBR over 100 ms, 400 Mbit/s, without a mark",
            Some(_) => "E3's path with a mark of 256 KiB",
        },
        sender: Sender::Neap,
        way: Way::Slow(FASTER),
        options: format!("-C bbr -P {FLOWS} -i 0.5"),
        own,
        flows: FLOWS,
        seconds: SECONDS,
        scenario: scenario(Sender::Neap, SECONDS, sysctls, &long_path(FASTER, 100), &app),
        rows: LOW_WATER,
    }
}

fn paced(sender: Sender) -> Twin {
    let app = format!("count = {PACED_FLOWS}\nstagger = \"10ms\"\npacing_rate = \"48mbit\"\n");
    let link = "rate = \"100gbit\"\ndelay = \"10us\"";
    Twin {
        name: "E4's flows: 20 of 48 Mbit/s",
        sender,
        way: Way::Veth,
        options: format!("-P {PACED_FLOWS} --fq-rate 48M -i 1"),
        own: Vec::new(),
        flows: PACED_FLOWS,
        seconds: SECONDS,
        scenario: scenario(sender, SECONDS, "", link, &app),
        rows: if sender == Sender::Neap { PACED } else { PACED_KERNEL },
    }
}

/// One flow over a link of the lab in real time: a round trip of 20 ms at 50 Mbit/s.
fn over_link(sender: Sender, controller: &str, lossy: bool) -> Twin {
    let name = match (controller, lossy) {
        ("cubic", false) => "a link of 50 Mbit/s and 20 ms: one flow of CUBIC",
        ("cubic", true) => "the same link with 1 % loss: one flow of CUBIC",
        _ => "the same link with 1 % loss: one flow of BBR",
    };
    let loss = if lossy { "1%" } else { "0%" };
    let link = format!(
        "rate = \"10gbit\"\nbottleneck = {{ rate = \"50mbit\", buffer = \"256k\" }}\ndelay = \"10ms\"\n\
         there = {{ loss = \"{loss}\" }}"
    );
    let sysctls =
        format!("[host.a.sysctl]\n\"net.ipv4.tcp_congestion_control\" = \"{controller}\"\n");
    Twin {
        name,
        sender,
        way: Way::Relay,
        options: format!("-C {controller} -i 1"),
        own: Vec::new(),
        flows: 1,
        seconds: LINK_SECONDS,
        scenario: scenario(sender, LINK_SECONDS, &sysctls, &link, ""),
        rows: if lossy { LOSSY } else { DELAYED },
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Runs all twins, prints each, and returns what was found.
pub(super) fn run(
    interrupt: &Interrupt,
    quiet: bool,
    out: &mut impl Write,
) -> Result<Vec<Judgement>, Box<dyn Error>> {
    let mut all = Vec::new();
    let twins = [
        long_flow(),
        low_water(None),
        low_water(Some(262_144)),
        paced(Sender::Neap),
        paced(Sender::Kernel),
    ];
    let links = [("cubic", false), ("cubic", true), ("bbr", true)];
    let over_links = links.into_iter().flat_map(|(controller, lossy)| {
        [Sender::Neap, Sender::Kernel].map(|sender| over_link(sender, controller, lossy))
    });
    for twin in twins.into_iter().chain(over_links) {
        let judgement = twin.judge(interrupt)?;
        if !quiet {
            judgement.print(out)?;
            out.flush()?;
        }
        all.push(judgement);
    }
    if !quiet {
        writeln!(
            out,
            "The kernel has no twin of E2 and E3, whose paths are made by neap's device."
        )?;
        writeln!(out, "Interrupts are counted for the whole machine, so no flow has its own.")?;
    }
    Ok(all)
}

impl Twin {
    fn judge(&self, interrupt: &Interrupt) -> Result<Judgement, Box<dyn Error>> {
        let flow = self.measure(interrupt)?;
        let figures = self.predict(&flow.lateness.to_toml())?;
        let judge = |row: &Row| {
            let both = [(row.predicted)(&figures), (row.measured)(&flow)];
            Judged::new(row.what, both, TOLERANCE, row.why)
        };
        let figures = self.rows.iter().map(judge).collect();
        Ok(Judgement { name: self.name, sender: self.sender, figures })
    }

    fn predict(&self, lateness: &str) -> Result<Figures, Box<dyn Error>> {
        let no_files = |name: &str| Err(format!("there is no file {name}"));
        let text = self.scenario.replace(LATENESS, lateness);
        let experiment = Experiment::parse("twin.toml", &text, &no_files)?;
        let run = experiment.run(&Vec::new(), &|_| {}).map_err(|error| error.to_string())?;
        let mut figures = run.figures;
        let series = &run.series;
        let column = |name: &str| series.names.iter().position(|own| own == name);
        let columns = ["app.bulk.unsent_bytes", "app.bulk.in_flight_bytes"].map(column);
        let rows = &series.rows[series.rows.len() / 2..];
        let held = rows.iter().map(|row| columns.iter().flatten().map(|&at| row[at]).sum::<f64>());
        let mean = held.sum::<f64>() / rows.len().max(1) as f64;
        figures.insert("app.bulk.held_mb".to_owned(), mean / f64::from(self.flows) / 1e6);
        let seconds = experiment.scenario().duration.0.as_secs_f64();
        figures.insert("host.a.seconds".to_owned(), seconds);
        Ok(figures)
    }

    fn measure(&self, interrupt: &Interrupt) -> Result<Flow, Box<dyn Error>> {
        let network = match self.way {
            Way::Veth => Network::new(None, self.sender)?,
            Way::Slow(link) => Network::new(Some(link), self.sender)?,
            Way::Relay => {
                let text = self.scenario.replace(LATENESS, "\"50us\"");
                Network::with_relay(&text, self.sender)?
            }
        };
        network.allow_large_windows()?;
        let words = ["iperf3", "--server", "--one-off", "--forceflush"];
        let _server = listening(Network::start(&network.receiver, words)?)?;
        let before = network.counters()?;
        let mut child = Network::start(&network.sender, self.command()?)?;
        let (stdout, stderr) = (child.0.stdout.take(), child.0.stderr.take());
        let stdout = thread::spawn(move || stdout.map_or(String::new(), read));
        let stderr = thread::spawn(move || stderr.map_or(String::new(), read));
        let stop = AtomicBool::new(false);
        let (switches, lateness) = thread::scope(|scope| {
            let lateness = scope.spawn(|| Lateness::watch(&stop));
            let switches = watch(&mut child, self.seconds, interrupt);
            stop.store(true, Ordering::Relaxed);
            (switches, lateness.join())
        });
        let switches = switches?;
        let lateness = lateness.map_err(|_| "a thread failed")?;
        let output = stdout.join().map_err(|_| "the output cannot be read")?;
        let errors = stderr.join().map_err(|_| "the output cannot be read")?;
        if !child.0.wait()?.success() {
            return Err(format!("the flow failed: {} {}", errors.trim(), output.trim()).into());
        }
        let counters = match self.sender {
            Sender::Neap => counters(&errors),
            Sender::Kernel => {
                let change = |(name, count): (String, f64)| {
                    let old = before.get(&name).copied().unwrap_or(0.0);
                    (name, count - old)
                };
                network.counters()?.into_iter().map(change).collect()
            }
        };
        let (report, seconds) = (serde_json::from_str(&output)?, f64::from(self.seconds));
        Ok(Flow { report, counters, switches, seconds, lateness })
    }

    fn command(&self) -> Result<Vec<String>, Box<dyn Error>> {
        let mut program = match self.sender {
            Sender::Neap => {
                let own = std::env::current_exe()?.display().to_string();
                let device = format!("perf --nstat --packet {DEVICE} --address {SENDER}/24");
                [vec![own], words(&device), self.own.clone()].concat()
            }
            Sender::Kernel => vec!["iperf3".to_owned()],
        };
        let common = format!("-c {RECEIVER} -J -t {} {}", self.seconds, self.options);
        program.extend(words(&common));
        Ok(program)
    }
}

/// Waits for the end. Voluntary context switches per second in the middle of the time.
fn watch(
    child: &mut ChildGuard,
    seconds: u32,
    interrupt: &Interrupt,
) -> Result<f64, Box<dyn Error>> {
    let (begin, time) = (Instant::now(), Duration::from_secs(seconds.into()));
    let mut seen: Vec<(Instant, f64)> = Vec::new();
    while child.0.try_wait()?.is_none() {
        if interrupt.is_set() {
            return Err("interrupted".into());
        }
        if begin.elapsed() > time + PATIENCE {
            return Err("the flow does not end".into());
        }
        if (time / 4..time * 9 / 10).contains(&begin.elapsed()) {
            seen.extend(switches(child.0.id()).map(|count| (Instant::now(), count)));
        }
        thread::sleep(Duration::from_millis(20));
    }
    let (Some(first), Some(last)) = (seen.first(), seen.last()) else { return Ok(0.0) };
    Ok((last.1 - first.1) / last.0.duration_since(first.0).as_secs_f64().max(1e-9))
}

/// Voluntary context switches of all threads of a process so far (`ru_nvcsw` of `getrusage`). Those
/// that are not voluntary tell of other programs.
fn switches(process: u32) -> Option<f64> {
    let mut sum = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let status = std::fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
        let counts = status.lines().filter(|line| line.starts_with("voluntary_ctxt_switches"));
        let counts = counts.filter_map(|line| line.split_whitespace().last()?.parse::<f64>().ok());
        sum += counts.sum::<f64>();
    }
    Some(sum)
}

/// Lines of a name and a number.
fn counters(text: &str) -> BTreeMap<String, f64> {
    let line = |line: &str| {
        let (name, count) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), count.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_twin_has_a_scenario_with_the_figures_of_its_rows() {
        let over_link = over_link(Sender::Kernel, "bbr", true);
        for twin in [long_flow(), low_water(Some(262_144)), paced(Sender::Kernel), over_link] {
            let duration = format!("duration = \"{}s\"", twin.seconds);
            let scenario = twin.scenario.replace(&duration, "duration = \"300ms\"");
            let figures = Twin { scenario, ..twin }.predict("\"50us\"").expect("a run");
            for row in twin.rows {
                assert!((row.predicted)(&figures) >= 0.0, "{}: {}", twin.name, row.what);
            }
        }
    }

    #[test]
    fn counters_are_read_from_lines_of_names_and_numbers() {
        let read = counters("IpOutRequests                   169             \nno number\n");
        assert_eq!(read, BTreeMap::from([("IpOutRequests".to_owned(), 169.0)]));
    }
}
