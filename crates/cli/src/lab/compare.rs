//! `neap lab compare`: what the lab predicts beside what real devices do.
//!
//! The world is E1's: one bulk flow at 100 Mbit/s and 1 Gbit/s. On the machine it is two network
//! namespaces, a veth pair between them and `tbf` as the slow link; neap sends over AF_PACKET, then
//! the kernel in its place; the kernel receives. The lab's hosts are told how late this machine
//! woke a thread during the measurement.
//! Three kinds of flow follow, then smaller twins of E2, E3 and E4, sent by neap and by the kernel,
//! and flows over a link with delay and loss.

mod flows;
mod judge;
mod lateness;
mod measure;
mod network;
mod predict;
mod twins;

use crate::perf::interrupt::Interrupt;
use clap::{Args as ClapArgs, ValueEnum};
use judge::{Judged, Judgement};
use lateness::Lateness;
use serde::Serialize;
use std::error::Error;
use std::io::Write;
use twins::Twins;

/// Compare the lab's predictions with the same flows over real devices (needs root, iproute2,
/// iperf3)
///
/// The exit status is 1 if goodput or queue delay of E1, rate or delay of a kind of flow, or
/// goodput of a twin differ by more than their tolerance. Other figures of twins are printed and do
/// not count.
#[derive(ClapArgs, Clone, Debug)]
pub(super) struct Args {
    /// Seconds of each measurement [default: 5; twins of E2, E3 and E4: 6; over a link: 15]
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u32).range(2..=600))]
    seconds: Option<u32>,
    /// Only the link of this rate: 100 or 1000
    #[arg(long, value_name = "MBIT", value_parser = link)]
    mbit: Option<Link>,
    /// Only one part of the comparison
    #[arg(long, value_name = "PART", conflicts_with = "mbit")]
    only: Option<Part>,
    /// Only the twins of one experiment
    #[arg(long, value_name = "TWINS", conflicts_with_all = ["mbit", "only"])]
    twin: Option<TwinsOf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// The flow of E1 at 100 Mbit/s and 1 Gbit/s, sent by neap and by the kernel
    E1,
    /// A bulk transfer, requests with responses, and a paced flow
    Flows,
    /// Smaller twins of E2, E3 and E4, and flows over a link with delay and loss
    Twins,
}

/// A part of the twins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TwinsOf {
    /// One flow of CUBIC over 40 ms
    E2,
    /// Four flows of BBR over 100 ms, without a mark and with one
    E3,
    /// Twenty paced flows
    E4,
    /// One flow over a link with delay, and with loss
    Link,
}

/// A slow link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Link {
    mbit: u32,
    /// Largest super-frame, bytes: `tbf` cuts what does not fit its bucket.
    gso_max: u32,
    /// Bucket of `tbf`, bytes.
    burst: u32,
}

const LINKS: [Link; 2] = [
    Link { mbit: 100, gso_max: 16_384, burst: 20_480 },
    Link { mbit: 1000, gso_max: 65_535, burst: 262_144 },
];

fn link(text: &str) -> Result<Link, String> {
    let found = LINKS.iter().find(|link| link.mbit.to_string() == text).copied();
    found.ok_or_else(|| "there are 100 and 1000".to_owned())
}

/// The stack that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Sender {
    Neap,
    Kernel,
}

/// What is predicted, and what is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Outcome {
    goodput_mbit: f64,
    /// Median of the bytes in the queue of the slow link.
    queue_bytes: f64,
    /// The same as time at the rate of the link.
    queue_ms: f64,
    /// What 99 of 100 samples do not exceed.
    queue_p99_ms: f64,
    /// Median of the smoothed round-trip time.
    rtt_ms: f64,
    /// Median of the congestion window, segments.
    cwnd: f64,
}

/// What a flow was seen to be, over and over.
#[derive(Clone, Debug, Default)]
struct Samples {
    goodput_mbit: f64,
    queue_bytes: Vec<f64>,
    rtt_ms: Vec<f64>,
    cwnd: Vec<f64>,
}

impl Outcome {
    /// The median of nothing is nothing.
    fn of(link: Link, samples: Samples) -> Self {
        let Samples { goodput_mbit, queue_bytes: mut queue, mut rtt_ms, mut cwnd } = samples;
        let millis = |bytes: f64| bytes * 8e-3 / f64::from(link.mbit);
        let (p50, p99) = (quantile(&mut queue, 0.5), quantile(&mut queue, 0.99));
        Self {
            goodput_mbit,
            queue_bytes: p50,
            queue_ms: millis(p50),
            queue_p99_ms: millis(p99),
            rtt_ms: quantile(&mut rtt_ms, 0.5),
            cwnd: quantile(&mut cwnd, 0.5),
        }
    }
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len().saturating_sub(1) as f64 * share) as usize;
    values.get(index).copied().unwrap_or(0.0)
}

/// Seconds of each measurement of E1 and of the kinds of flow, unless others are asked for.
const SECONDS: u32 = 5;

/// Seconds at the start that do not count: slow start, and the buffers grow.
const WARM_UP: u32 = 1;

/// Prediction and measurement of E1 agree within so much of the measured value.
const TOLERANCE: f64 = 0.2;

/// One sender on one link.
#[derive(Clone, Debug, Serialize)]
struct Comparison {
    link: Link,
    sender: Sender,
    predicted: Outcome,
    measured: Outcome,
    /// How late the machine was meanwhile: percent, and microseconds not exceeded by so many
    /// wake-ups.
    lateness: Lateness,
    /// Each figure by itself.
    judged: Vec<Judged>,
    /// Goodput and queue delay agree within 20 %.
    agrees: bool,
}

/// What is known of figures that differ.
const QUEUE_WHY: &str = "the queue comes in steps of one frame, and cwnd decides how many fit below the socket; its p99 follows how late the machine was at its worst";
const ROUND_TRIP_WHY: &str =
    "the round trip contains the queue, and how late the machine woke the sender and the reader";
const WINDOW_WHY: &str = "nothing bounds cwnd while small queues limit the flow: it depends on how often the window was full by chance";

impl Comparison {
    fn new(
        link: Link,
        sender: Sender,
        predicted: Outcome,
        measured: Outcome,
        lateness: Lateness,
    ) -> Self {
        let judge = |what, of: fn(&Outcome) -> f64, why| {
            Judged::new(what, [of(&predicted), of(&measured)], TOLERANCE, why)
        };
        let judged = vec![
            judge("goodput, Mbit/s", |outcome| outcome.goodput_mbit, ""),
            judge("queue delay, median, ms", |outcome| outcome.queue_ms, QUEUE_WHY),
            judge("queue delay, p99, ms", |outcome| outcome.queue_p99_ms, QUEUE_WHY),
            judge("smoothed round-trip time, median, ms", |outcome| outcome.rtt_ms, ROUND_TRIP_WHY),
            judge("congestion window, median, segments", |outcome| outcome.cwnd, WINDOW_WHY),
        ];
        let agrees = judged[0].agrees && judged[1].agrees;
        Self { link, sender, predicted, measured, lateness, judged, agrees }
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Link { mbit, gso_max, .. } = self.link;
        let name = format!("E1's flow at {mbit} Mbit/s, super-frames of at most {gso_max} bytes");
        judge::print(out, &name, self.sender, &self.judged)?;
        let late = |percent| self.lateness.quantile(percent).as_secs_f64() * 1e3;
        writeln!(
            out,
            "  the machine woke threads {:.2} ms late (p50), {:.2} (p99), {:.2} (max)\n",
            late(50.0),
            late(99.0),
            late(100.0),
        )
    }
}

/// All that is printed as JSON.
#[derive(Serialize)]
struct Report<'a> {
    flows: &'a [Comparison],
    kinds: &'a [Judgement],
    twins: &'a [Judgement],
    /// Twins that this machine cannot have, and why.
    missing: &'a [String],
}

/// Whether all predictions agree with what was measured, of those that are promised: goodput and
/// queue delay of E1, rate and delay of the three kinds of flow, and goodput of the twins.
pub(super) fn main(args: &Args, out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
    network::check()?;
    let interrupt = Interrupt::catch()?;
    // A link that is asked for by its rate is one of E1.
    let only = args.only.or(args.mbit.map(|_| Part::E1)).or(args.twin.map(|_| Part::Twins));
    let has = |part| only.is_none_or(|only| only == part);
    let quiet = args.json;
    let all = if has(Part::E1) { run_e1(args, &interrupt, out)? } else { Vec::new() };
    let kinds = match has(Part::Flows) {
        true => flows::run(args.seconds.unwrap_or(SECONDS), &interrupt, quiet, out)?,
        false => Vec::new(),
    };
    let twins = match has(Part::Twins) {
        true => twins::run(args.twin, args.seconds, &interrupt, quiet, out)?,
        false => Twins::default(),
    };
    if args.json {
        let Twins { found, missing } = &twins;
        let report = Report { flows: &all, kinds: &kinds, twins: found, missing };
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    }
    Ok(is_as_promised(&all, &kinds, &twins.found))
}

/// The verdict of the command.
fn is_as_promised(e1: &[Comparison], kinds: &[Judgement], twins: &[Judgement]) -> bool {
    let agrees = |kind: &Judgement| kind.figures.iter().all(|figure| figure.agrees);
    e1.iter().all(|comparison| comparison.agrees)
        && kinds.iter().all(agrees)
        && twins.iter().all(twins::is_as_promised)
}

/// E1's flow over its links, sent by neap and by the kernel.
fn run_e1(
    args: &Args,
    interrupt: &Interrupt,
    out: &mut impl Write,
) -> Result<Vec<Comparison>, Box<dyn Error>> {
    let (mut all, seconds) = (Vec::new(), args.seconds.unwrap_or(SECONDS));
    for link in LINKS.into_iter().filter(|link| args.mbit.is_none_or(|only| only == *link)) {
        for sender in [Sender::Neap, Sender::Kernel] {
            let (measured, late) = measure::measure(link, sender, seconds, interrupt)?;
            let predicted = predict::predict(link, sender, seconds, &late)?;
            let comparison = Comparison::new(link, sender, predicted, measured, late);
            if !args.json {
                comparison.print(out)?;
                out.flush()?;
            }
            all.push(comparison);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(goodput_mbit: f64, queue: &[f64]) -> Outcome {
        let (queue_bytes, rtt_ms) = (queue.to_vec(), vec![3.0, 1.0, 2.0]);
        Outcome::of(LINKS[0], Samples { goodput_mbit, queue_bytes, rtt_ms, cwnd: vec![10.0] })
    }

    #[test]
    fn agreement_is_of_goodput_and_queue() {
        let measured = outcome(95.0, &[12_500.0, 10_000.0, 30_000.0]);
        assert_eq!(
            (measured.queue_bytes, measured.queue_ms, measured.rtt_ms),
            (12_500.0, 1.0, 2.0)
        );
        let agrees = |predicted| {
            let lateness = Lateness::default();
            Comparison::new(LINKS[0], Sender::Neap, predicted, measured, lateness).agrees
        };
        assert!(agrees(outcome(94.0, &[14_900.0])));
        assert!(!agrees(outcome(94.0, &[15_100.0])));
        assert!(!agrees(outcome(70.0, &[12_500.0])));
        assert_eq!(outcome(1.0, &[]).queue_ms, 0.0);
    }

    #[test]
    fn goodput_of_a_twin_counts_and_its_other_figures_do_not() {
        let judge = |what, predicted| Judged::new(what, [predicted, 100.0], 0.15, "");
        let promises = |twin: bool, figures| {
            let all = [Judgement { name: "one", sender: Sender::Neap, figures, notes: Vec::new() }];
            if twin { is_as_promised(&[], &[], &all) } else { is_as_promised(&[], &all, &[]) }
        };
        let off = || vec![judge("goodput, Mbit/s", 99.0), judge("context switches", 2000.0)];
        assert!(promises(true, off()) && !promises(false, off()));
        let slow = || vec![judge("goodput, Mbit/s", 80.0), judge("context switches", 100.0)];
        assert!(!promises(true, slow()) && !promises(false, slow()));
        assert!(is_as_promised(&[], &[], &[]));
    }
}
