//! Twins of the other experiments: few flows by the rules of E2, E3 and E4 over a real veth pair,
//! beside the lab's prediction of the same flows.
//!
//! The delay of neap's paths of E2 and E3 is made by its own device, which hands over later what
//! arrives. That of the kernel's is a link of the lab in real time (`neap link`) behind the slow
//! one. Paths with loss are such links, for both.

mod interrupts;
mod plans;
mod process;
mod rows;

use super::judge::{Judged, Judgement};
use super::lateness::Lateness;
use super::measure::{listening, read};
use super::network::{DEVICE, Network, RECEIVER, SENDER};
use super::{Sender, TwinsOf};
use crate::perf::interrupt::Interrupt;
use interrupts::{Idle, Interrupts, Stretch};
use neap_lab::scenario::{Experiment, Figures};
use plans::{LATENESS, Twin, Way, twins};
use rows::{Flow, GOODPUT, INTERRUPTS};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Prediction and measurement agree within so much of the measured value.
const TOLERANCE: f64 = 0.15;

/// What was found, and which twins this machine cannot have.
#[derive(Default)]
pub(super) struct Twins {
    pub(super) found: Vec<Judgement>,
    pub(super) missing: Vec<String>,
}

/// Whether what is promised of a twin came true: its goodput. The other figures follow the machine.
pub(super) fn is_as_promised(twin: &Judgement) -> bool {
    twin.figures.iter().all(|figure| figure.agrees || figure.what != GOODPUT.what)
}

/// Runs all twins, or those of one part, and prints each.
pub(super) fn run(
    only: Option<TwinsOf>,
    seconds: Option<u32>,
    interrupt: &Interrupt,
    quiet: bool,
    out: &mut impl Write,
) -> Result<Twins, Box<dyn Error>> {
    let mut all = Twins::default();
    let wants_fq = only.is_none_or(|only| only == TwinsOf::E4);
    let fq = if wants_fq { Network::new(None, Sender::Kernel)?.fair().err() } else { None };
    all.missing.extend(fq.map(|error| {
        let why = error.to_string().replace('\n', " ");
        format!("The kernel's twin of E4 with fq is missing, as this kernel has no fq: {why}")
    }));
    for twin in twins(only, seconds, all.missing.is_empty()) {
        let judgement = twin.judge(interrupt)?;
        if !quiet {
            judgement.print(out)?;
            out.flush()?;
        }
        all.found.push(judgement);
    }
    if !quiet {
        all.missing.iter().try_for_each(|what| writeln!(out, "{what}"))?;
    }
    Ok(all)
}

impl Twin {
    fn judge(&self, interrupt: &Interrupt) -> Result<Judgement, Box<dyn Error>> {
        let flow = self.measure(interrupt)?;
        let figures = self.predict(&flow.lateness.to_toml())?;
        let timers = flow.interrupts.is_some().then_some(&INTERRUPTS);
        let judge = |row: &rows::Row| {
            let both = [(row.predicted)(&figures), (row.measured)(&flow)];
            Judged::new(row.what, both, TOLERANCE, row.why)
        };
        let figures = self.rows.iter().chain(timers).map(judge).collect();
        let notes = match flow.interrupts {
            Some(interrupts) => vec![interrupts.note()],
            None if self.counts_interrupts() => {
                vec!["this machine's /proc/interrupts has no line of timers".to_owned()]
            }
            None => Vec::new(),
        };
        Ok(Judgement { name: self.name, sender: self.sender, figures, notes })
    }

    /// Links of the lab alone are no experiment, and what makes them has most of the timers.
    fn counts_interrupts(&self) -> bool {
        self.way != Way::Relay
    }

    fn predict(&self, lateness: &str) -> Result<Figures, Box<dyn Error>> {
        let no_files = |name: &str| Err(format!("there is no file {name}"));
        let text = self.scenario.replace(LATENESS, lateness);
        let experiment = Experiment::parse("twin.toml", &text, &no_files)?;
        let run = experiment.run(&Vec::new(), &|_| {}).map_err(|error| error.to_string())?;
        let mut figures = run.figures;
        let series = &run.series;
        let half = &series.rows[series.rows.len() / 2..];
        // Of the second half, per flow, MB.
        let mean = |column: &str, scale: f64| {
            let at = series.names.iter().position(|own| own == column);
            let sum: f64 = half.iter().filter_map(|row| row.get(at?)).sum();
            sum * scale / half.len().max(1) as f64 / f64::from(self.flows) / 1e6
        };
        let held = mean("app.bulk.unsent_bytes", 1.0) + mean("app.bulk.in_flight_bytes", 1.0);
        let sockets = mean("host.a.memory_pages", 4096.0);
        figures.insert("app.bulk.held_mb".to_owned(), held);
        figures.insert("host.a.sockets_mb".to_owned(), sockets);
        let seconds = experiment.scenario().duration.0.as_secs_f64();
        figures.insert("host.a.seconds".to_owned(), seconds);
        Ok(figures)
    }

    /// The hosts and what is between them.
    fn network(&self) -> Result<Network, Box<dyn Error>> {
        let relay =
            || Network::with_relay(&self.scenario.replace(LATENESS, "\"50us\""), self.sender);
        let network = match self.way {
            Way::Veth => Network::new(None, self.sender)?,
            Way::Slow(link) => Network::new(Some(link), self.sender)?,
            Way::Fair => {
                let network = Network::new(None, self.sender)?;
                network.fair()?;
                network
            }
            Way::SlowAndLong(link) => {
                let network = relay()?;
                network.slow(link, self.sender)?;
                network
            }
            Way::Relay => relay()?,
        };
        network.allow_large_windows()?;
        if self.sender == Sender::Kernel {
            network.set_sender(&self.settings)?;
        }
        Ok(network)
    }

    fn measure(&self, interrupt: &Interrupt) -> Result<Flow, Box<dyn Error>> {
        let network = self.network()?;
        let words = ["iperf3", "--server", "--one-off", "--forceflush"];
        let _server = listening(Network::start(&network.receiver, words)?)?;
        // The thread that watches how late the machine is has timers too, so it is there twice.
        let idle = match self.counts_interrupts() {
            true => beside_lateness(|| Idle::watch(self.seconds, interrupt))?.0?,
            false => None,
        };
        let before = network.counters()?;
        let mut child = Network::start(&network.sender, self.command()?)?;
        let stretch = Stretch::begin();
        let (stdout, stderr) = (child.0.stdout.take(), child.0.stderr.take());
        let stdout = thread::spawn(move || stdout.map_or(String::new(), read));
        let stderr = thread::spawn(move || stderr.map_or(String::new(), read));
        let namespace = (self.sender == Sender::Kernel).then_some(network.sender.as_str());
        let watch = || process::watch(&mut child, self.seconds, namespace, interrupt);
        let (seen, lateness) = beside_lateness(watch)?;
        let running = stretch.and_then(Stretch::rate);
        let (switches, sockets) = seen?;
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
        Ok(Flow {
            report: serde_json::from_str(&output)?,
            counters,
            switches,
            sockets,
            interrupts: idle.zip(running).map(|(idle, running)| Interrupts::new(running, idle)),
            flows: self.flows,
            seconds: f64::from(self.seconds),
            lateness,
        })
    }

    fn command(&self) -> Result<Vec<String>, Box<dyn Error>> {
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
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

/// Does something while a thread watches how late the machine is.
fn beside_lateness<T>(what: impl FnOnce() -> T) -> Result<(T, Lateness), Box<dyn Error>> {
    let stop = AtomicBool::new(false);
    let (done, lateness) = thread::scope(|scope| {
        let lateness = scope.spawn(|| Lateness::watch(&stop));
        let done = what();
        stop.store(true, Ordering::Relaxed);
        (done, lateness.join())
    });
    Ok((done, lateness.map_err(|_| "a thread failed")?))
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
        for twin in twins(None, None, true) {
            let duration = format!("duration = \"{}s\"", twin.seconds);
            let scenario = twin.scenario.replace(&duration, "duration = \"300ms\"");
            let twin = Twin { scenario, ..twin };
            let figures = twin.predict("\"50us\"").expect("a run");
            for row in twin.rows.iter().chain([&INTERRUPTS]) {
                assert!((row.predicted)(&figures) >= 0.0, "{}: {}", twin.name, row.what);
            }
            assert!(figures["host.a.sockets_mb"] >= figures["app.bulk.held_mb"], "{}", twin.name);
        }
    }

    #[test]
    fn counters_are_read_from_lines_of_names_and_numbers() {
        let read = counters("IpOutRequests                   169             \nno number\n");
        assert_eq!(read, BTreeMap::from([("IpOutRequests".to_owned(), 169.0)]));
    }
}
