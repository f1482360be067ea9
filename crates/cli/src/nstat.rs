//! `neap nstat`: the counters of running stacks, as iproute2's `nstat` prints those of the kernel.

mod history;
mod pattern;

use crate::stacks::{self, Failure, Stacks};
use clap::Args as ClapArgs;
use history::History;
use neap::control::{CounterReport, Endpoint};
use pattern::{Pattern, Word};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// Show the counters of running stacks, as nstat does those of the kernel
///
/// It prints what each counter has risen by since the last call, and leaves out those that have
/// not. With patterns of a shell, such as 'Tcp*', it prints the counters that one of them names, in
/// upper or lower case; all others are as if it had not been called. With an interval it goes on
/// for as long as a stack is there.
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
    /// Patterns of the names of counters, and a number: the seconds between two reports
    #[arg(value_name = "PATTERN|INTERVAL")]
    words: Vec<Word>,
}

impl Args {
    /// Seconds between two reports, if there is more than one.
    fn interval(&self) -> Result<Option<u32>, Failure> {
        let mut all = self.words.iter().filter_map(|word| match word {
            Word::Interval(seconds) => Some(*seconds),
            Word::Pattern(_) => None,
        });
        match (all.next(), all.next()) {
            (interval, None) => Ok(interval),
            (_, Some(more)) => {
                Err(Failure::Arguments(format!("{more}: expected one interval, and patterns")))
            }
        }
    }

    /// Whether a counter is one of those that are meant: all if there is no pattern.
    fn means(&self, counter: &CounterReport) -> bool {
        let matches = |pattern: &Pattern| pattern.matches(&counter.name);
        let mut patterns = self.words.iter().filter_map(|word| match word {
            Word::Pattern(pattern) => Some(pattern),
            Word::Interval(_) => None,
        });
        patterns.clone().next().is_none() || patterns.any(matches)
    }
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
    let Some(interval) = args.interval()? else {
        let (answers, silent) = args.stacks.ask(|endpoint| {
            let counters = endpoint.counters()?;
            Ok((endpoint.clone(), counters))
        })?;
        let figures = answers.into_iter().map(|(_, (endpoint, counters))| {
            (Stack::from(&endpoint), differences(args, &endpoint, counters))
        });
        let all: Vec<_> = figures.collect();
        print(args, &all)?;
        return silent.tell();
    };
    let mut rounds = Rounds::new(Instant::now());
    let mut is_first = true;
    let pause = || thread::sleep(Duration::from_secs(interval.into()));
    loop {
        let question = |endpoint: &Endpoint| {
            let mut counters = endpoint.counters()?;
            counters.retain(|counter| args.means(counter));
            Ok((Stack::from(endpoint), counters))
        };
        let (answers, silent) = match args.stacks.ask(question) {
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
        let answers = answers.into_iter().map(|(_, answer)| answer).collect();
        let are_silent: Vec<_> = silent.endpoints().map(Stack::from).collect();
        let all = rounds.next(Instant::now(), answers, &are_silent, args.absolute);
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

/// How a stack is told from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stack {
    pid: u32,
    /// That of its socket, which has a number where a process has several stacks of one name.
    name: String,
}

impl From<&Endpoint> for Stack {
    fn from(endpoint: &Endpoint) -> Self {
        Self { pid: endpoint.pid, name: endpoint.name.clone() }
    }
}

impl Stack {
    fn key(&self) -> String {
        format!("{}/{}", self.pid, self.name)
    }
}

/// What the stacks said last, round by round.
struct Rounds {
    last: History,
    /// When each stack said it.
    at: HashMap<String, Instant>,
    /// When the round before was.
    before: Instant,
}

impl Rounds {
    fn new(begun: Instant) -> Self {
        Self { last: History::default(), at: HashMap::new(), before: begun }
    }

    /// What the counters have risen by since each stack answered last. One that is silent in this
    /// round is compared with its last answer when it answers again.
    fn next(
        &mut self,
        now: Instant,
        answers: Vec<(Stack, Vec<CounterReport>)>,
        silent: &[Stack],
        absolute: bool,
    ) -> Vec<(Stack, Figures)> {
        let (mut last, mut at) = (History::default(), HashMap::new());
        let mut all = Vec::new();
        for (stack, counters) in answers {
            let key = stack.key();
            let since = self.at.get(&key).copied().unwrap_or(self.before);
            let seconds = now.saturating_duration_since(since).as_secs_f64();
            let figures = counters.iter().map(|counter| {
                // A gauge falls as well, and has no rate.
                if counter.gauge {
                    return (counter.clone(), 0.0);
                }
                let risen = self.last.risen(&key, counter);
                let per_second = risen as f64 / seconds.max(f64::EPSILON);
                let value = if absolute { counter.value } else { risen };
                (with_value(counter, value), per_second)
            });
            all.push((stack, figures.collect()));
            last.insert(&key, &counters);
            at.insert(key, now);
        }
        for key in silent.iter().map(Stack::key) {
            last.keep(&key, &mut self.last);
            at.extend(self.at.remove_entry(&key));
        }
        (self.last, self.at, self.before) = (last, at, now);
        all
    }
}

fn with_value(counter: &CounterReport, value: u64) -> CounterReport {
    let mut counter = counter.clone();
    counter.value = value;
    counter
}

/// What one call prints of a stack. Rates need an interval.
fn differences(args: &Args, endpoint: &Endpoint, counters: Vec<CounterReport>) -> Figures {
    let path = endpoint.path.with_extension("nstat");
    let key = Stack::from(endpoint).key();
    let kept = History::read(&path);
    if !args.noupdate {
        kept.updated(&key, &counters, |counter| args.means(counter)).write(&path);
    }
    let last = if args.absolute { History::default() } else { kept };
    let figures = counters.into_iter().filter(|counter| args.means(counter)).map(|counter| {
        let risen = last.risen(&key, &counter);
        let value = if counter.gauge { counter.value } else { risen };
        (with_value(&counter, value), 0.0)
    });
    figures.collect()
}

fn print(args: &Args, all: &[(Stack, Figures)]) -> Result<(), Failure> {
    stacks::print(&text(args, all))
}

fn text(args: &Args, all: &[(Stack, Figures)]) -> String {
    let is_shown = |counter: &CounterReport| {
        (args.zeros || counter.value > 0) && (args.absolute || !counter.gauge)
    };
    if args.json {
        let mut by_stack = Map::new();
        for (stack, figures) in all {
            let shown = figures.iter().filter(|(counter, _)| is_shown(counter));
            let values = shown.map(|(counter, _)| (counter.name.clone(), counter.value.into()));
            by_stack.insert(stack.key(), Value::Object(values.collect()));
        }
        return format!("{}\n", Value::Object(by_stack));
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
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn stack(name: &str) -> Stack {
        Stack { pid: 7, name: name.to_owned() }
    }

    fn counter(value: u64) -> Vec<CounterReport> {
        let json = serde_json::json!({ "name": "TcpInSegs", "value": value, "gauge": false });
        vec![serde_json::from_value(json).expect("a counter")]
    }

    fn risen(all: &[(Stack, Figures)]) -> Vec<(u64, f64)> {
        let figures = all.iter().flat_map(|(_, figures)| figures);
        figures.map(|(counter, per_second)| (counter.value, *per_second)).collect()
    }

    #[test]
    fn a_stack_that_was_silent_is_compared_with_its_last_answer() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let (one, other) = (stack("one"), stack("other"));
        let mut rounds = Rounds::new(begun);
        let both = |value| vec![(one.clone(), counter(value)), (other.clone(), counter(value))];
        rounds.next(at(0), both(100), &[], false);
        let next = rounds.next(at(2), both(110), &[], false);
        assert_eq!(risen(&next), [(10, 5.0), (10, 5.0)]);
        let alone = vec![(one.clone(), counter(120))];
        let next = rounds.next(at(4), alone, std::slice::from_ref(&other), false);
        assert_eq!(risen(&next), [(10, 5.0)]);
        let next = rounds.next(at(6), both(130), &[], false);
        assert_eq!(risen(&next), [(10, 5.0), (20, 5.0)]);
        // One that has ended is forgotten.
        rounds.next(at(8), vec![(one.clone(), counter(140))], &[], false);
        assert_eq!(rounds.at.len(), 1);
    }

    #[test]
    fn stacks_of_one_name_are_told_apart() {
        let mut rounds = Rounds::new(Instant::now());
        let stacks = |first, second| {
            vec![(stack("gateway"), counter(first)), (stack("gateway-2"), counter(second))]
        };
        let now = Instant::now() + Duration::from_secs(1);
        rounds.next(now, stacks(5, 1000), &[], false);
        let all = rounds.next(now + Duration::from_secs(1), stacks(6, 1002), &[], false);
        let args = Program::try_parse_from(["nstat", "--json"]).expect("sound arguments").args;
        let json: Value = serde_json::from_str(&text(&args, &all)).expect("JSON");
        let expected = serde_json::json!({
            "7/gateway": { "TcpInSegs": 1 },
            "7/gateway-2": { "TcpInSegs": 2 },
        });
        assert_eq!(json, expected);
    }
}
