//! `neap nstat`: the counters of running stacks, as iproute2's `nstat` prints those of the kernel.

mod history;

use crate::stacks::{self, Failure, Stacks};
use clap::Args as ClapArgs;
use history::History;
use neap::control::{CounterReport, Endpoint, StackReport};
use serde_json::{Map, Value};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// Show the counters of running stacks, as nstat does those of the kernel
///
/// It prints what each counter has risen by since the last call, and leaves out those that have
/// not. With an interval it goes on for as long as a stack is there.
#[derive(ClapArgs, Clone, Debug)]
pub(crate) struct Args {
    /// Values since the stack began, gauges as well, instead of differences
    #[arg(short, long)]
    absolute: bool,
    /// Counters that are zero as well
    #[arg(short, long)]
    zeros: bool,
    /// Keep what the next call compares with as it is
    #[arg(short = 's', long)]
    noupdate: bool,
    /// Print JSON
    #[arg(short, long)]
    json: bool,
    #[command(flatten)]
    stacks: Stacks,
    /// Seconds between two reports
    #[arg(value_name = "INTERVAL", value_parser = clap::value_parser!(u32).range(1..))]
    interval: Option<u32>,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("nstat"),
    }
}

/// The counters of a stack with what each is per second.
type Figures = Vec<(CounterReport, f64)>;

fn run(args: &Args) -> Result<(), Failure> {
    let Some(interval) = args.interval else {
        let (answers, silent) = args.stacks.ask(|endpoint| {
            let counters = endpoint.counters()?;
            Ok((endpoint.clone(), counters))
        })?;
        let figures = answers.into_iter().map(|(stack, (endpoint, counters))| {
            (differences(args, &stack, &endpoint, counters), stack)
        });
        let all: Vec<_> = figures.map(|(figures, stack)| (stack, figures)).collect();
        print(args, &all)?;
        return silent.tell();
    };
    let mut last = History::default();
    let mut since = Instant::now();
    let mut is_first = true;
    let pause = || thread::sleep(Duration::from_secs(interval.into()));
    loop {
        let (answers, silent) = match args.stacks.ask(Endpoint::counters) {
            Ok(answers) => answers,
            Err(failure) if is_first => return Err(failure),
            // All have ended.
            Err(Failure::NoStack(_)) => return Ok(()),
            // One that is there and does not answer may answer later.
            Err(failure) => {
                failure.report("nstat");
                pause();
                continue;
            }
        };
        let seconds = since.elapsed().as_secs_f64();
        since = Instant::now();
        let mut next = History::default();
        let mut all = Vec::new();
        for (stack, counters) in answers {
            let key = key(&stack);
            let figures = counters.iter().map(|counter| {
                // A gauge falls as well, and has no rate.
                if counter.gauge {
                    return (counter.clone(), 0.0);
                }
                let risen = last.risen(&key, counter);
                let per_second = risen as f64 / seconds.max(f64::EPSILON);
                let value = if args.absolute { counter.value } else { risen };
                (with_value(counter, value), per_second)
            });
            let figures = figures.collect();
            next.insert(&key, &counters);
            all.push((stack, figures));
        }
        last = next;
        // The first report has nothing to compare with.
        if !std::mem::take(&mut is_first) {
            print(args, &all)?;
        }
        if let Err(failure) = silent.tell() {
            failure.report("nstat");
        }
        pause();
    }
}

fn with_value(counter: &CounterReport, value: u64) -> CounterReport {
    let mut counter = counter.clone();
    counter.value = value;
    counter
}

fn key(stack: &StackReport) -> String {
    format!("{}/{}", stack.pid, stack.name)
}

/// What one call prints of a stack. Rates need an interval.
fn differences(
    args: &Args,
    stack: &StackReport,
    endpoint: &Endpoint,
    counters: Vec<CounterReport>,
) -> Figures {
    let path = endpoint.path.with_extension("nstat");
    let key = key(stack);
    let last = if args.absolute { History::default() } else { History::read(&path) };
    if !args.noupdate {
        let mut next = History::default();
        next.insert(&key, &counters);
        next.write(&path);
    }
    let figures = counters.into_iter().map(|counter| {
        let risen = last.risen(&key, &counter);
        let value = if counter.gauge { counter.value } else { risen };
        (with_value(&counter, value), 0.0)
    });
    figures.collect()
}

fn print(args: &Args, all: &[(StackReport, Figures)]) -> Result<(), Failure> {
    let is_shown = |counter: &CounterReport| {
        (args.zeros || counter.value > 0) && (args.absolute || !counter.gauge)
    };
    if args.json {
        let mut by_stack = Map::new();
        for (stack, figures) in all {
            let shown = figures.iter().filter(|(counter, _)| is_shown(counter));
            let values = shown.map(|(counter, _)| (counter.name.clone(), counter.value.into()));
            by_stack.insert(key(stack), Value::Object(values.collect()));
        }
        return stacks::print(&format!("{}\n", Value::Object(by_stack)));
    }
    let mut text = String::new();
    for (stack, figures) in all {
        text += &format!("#{} {}\n", stack.pid, stack.name);
        for (counter, per_second) in figures.iter().filter(|(counter, _)| is_shown(counter)) {
            let CounterReport { name, value, .. } = counter;
            // Names of several things may be longer than their column.
            text += &format!("{name:<31} {value:<16}{per_second:6.1}\n");
        }
    }
    stacks::print(&text)
}
