//! Experiments of the library: all their runs on all cores, and a story or tables for each.

use super::chart;
use super::output::OutputFile;
use super::page::{Section, front_page};
use super::report::Packets;
use super::tables;
use super::terminal::{self, Progress};
use neap_lab::library::{Builtin, EXPERIMENTS, PUBLISHED, SCENARIOS};
use neap_lab::report::{Observed, Watch};
use neap_lab::scenario::{
    Choice, Experiment, Run, Story, Table, TableGroup, Verdict, brief, describe,
};
use serde::{Serialize, Serializer};
use std::error::Error;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

/// Experiments that are run together, and what is said of them all.
pub(super) struct Collection {
    names: &'static [&'static str],
    /// Title of the page.
    title: &'static str,
    /// What page and charts begin with.
    introduction: &'static str,
}

/// The four changes to Linux.
pub(super) const CHANGES: Collection = Collection {
    names: &EXPERIMENTS,
    title: "neap lab: TCP without the queue",
    introduction: "Four changes to Linux's TCP, each run again in virtual time: before the \
        change, with it, and with neap.",
};

/// Results of others about controllers and queues.
pub(super) const RESULTS: Collection = Collection {
    names: &PUBLISHED,
    title: "neap lab: what others published",
    introduction: "Results of others about congestion control and queues, each run again in \
        virtual time, with a verdict on each published figure.",
};

/// Runs of which packets are written: those of other experiments fill disks.
const CAPTURED: [(&str, &[&str]); 2] = [
    ("small-queues", &["column=neap", "gso=true", "rate=100mbit"]),
    ("autosizing", &["column=neap"]),
];

/// What all runs have come to.
#[derive(Serialize)]
struct Report {
    experiments: Vec<Shown>,
    /// All verdicts hold.
    holds: bool,
    /// Hash of all runs.
    hash: String,
}

/// One experiment.
#[derive(Serialize)]
struct Shown {
    name: &'static str,
    about: String,
    look_at: String,
    story: Option<Story>,
    table: Table,
    #[serde(serialize_with = "sentences")]
    verdicts: Vec<Verdict>,
    holds: bool,
}

/// Each sentence, and whether it holds.
fn sentences<S: Serializer>(verdicts: &[Verdict], to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Said<'a> {
        text: &'a str,
        holds: bool,
    }
    to.collect_seq(verdicts.iter().map(|said| Said { text: &said.text, holds: said.holds }))
}

/// An experiment and where it comes from.
struct Planned<'a> {
    builtin: Builtin,
    experiment: Experiment<'a>,
}

/// Runs the experiments of a collection and prints each as soon as it and those before it are done;
/// whether all bounds hold.
pub(super) fn main(collection: &Collection, args: &super::Args) -> Result<bool, Box<dyn Error>> {
    let files = |name: &str| Err(format!("there is no file {name}"));
    let mut all = Vec::new();
    for builtin in SCENARIOS.iter().filter(|s| collection.names.contains(&s.name)) {
        let experiment = Experiment::parse(builtin.name, builtin.text, &files)?;
        all.push(Planned { builtin: *builtin, experiment });
    }
    let [html, pcapng] = OutputFile::open_all([args.html.as_ref(), args.pcapng.as_ref()])?;
    let packets = pcapng.map(Packets::create).transpose()?;
    let mut report = Report { experiments: Vec::new(), holds: true, hash: String::new() };
    let mut digest = 0;
    let mut out = terminal::output();
    let (width, count) = (terminal::width(), all.len());
    if !args.json && !args.verbose {
        writeln!(out, "{}\n", terminal::wrapped(collection.introduction, width).join("\n"))?;
    }
    let mut done: Vec<Vec<Run>> = Vec::new();
    run_all(&all, args, packets, |progress, runs| {
        for run in &runs {
            digest = neap_lab::rng::mix(digest ^ u64::from_str_radix(&run.hash, 16)?);
        }
        let shown = show(&all[done.len()], &runs)?;
        report.holds &= shown.holds;
        done.push(runs);
        if !args.json {
            progress.aside(|| print(&mut out, &shown, args.verbose, width))?;
        } else if !progress.is_seen() {
            eprintln!("{} of {count} experiments: {}", done.len(), shown.about);
        }
        report.experiments.push(shown);
        Ok(())
    })?;
    report.hash = format!("{digest:016x}");
    if let Some(file) = html {
        file.write(&page(collection, &all, &done, &report.experiments))?;
    }
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print_end(&mut out, &report, args, width)?;
    }
    Ok(report.holds)
}

/// Prints one experiment: its story or, if all is asked for, its tables.
fn print(
    out: &mut impl Write,
    shown: &Shown,
    is_verbose: bool,
    width: usize,
) -> Result<(), Box<dyn Error>> {
    match &shown.story {
        Some(story) if !is_verbose => {
            write!(out, "{}", chart::draw(story, width)?)?;
            let sentences = shown.verdicts.iter().filter(|said| !said.holds);
            writeln!(out, "  {}", chart::bounds(story.bounds_held, story.bounds))?;
            for said in sentences {
                for line in terminal::wrapped(&said.text, width - 4) {
                    writeln!(out, "    {line}")?;
                }
            }
            writeln!(out)?;
        }
        _ => {
            let introduction = [shown.about.as_str(), &shown.look_at];
            let bounds = shown.verdicts.iter().map(|said| &said.text);
            tables::print(out, introduction, &shown.table, bounds, width)?;
        }
    }
    Ok(out.flush()?)
}

/// Prints what all experiments come to.
fn print_end(
    out: &mut impl Write,
    report: &Report,
    args: &super::Args,
    width: usize,
) -> Result<(), Box<dyn Error>> {
    let summary = if report.holds { "All bounds hold" } else { "NOT ALL BOUNDS HOLD" };
    let figures = report.experiments.iter().map(|one| one.table.published_figures());
    let (all, differing) = figures.fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
    let more = if args.verbose { "" } else { " (neap lab --verbose)" };
    let end = format!(
        "{summary}. {} of {all} published figures are those here within a tenth; each of the other \
         {differing} says why it differs{more}. The hash of all runs is {}.",
        all - differing,
        report.hash
    );
    terminal::wrapped(&end, width).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    if args.html.is_none() && !args.verbose {
        writeln!(out, "All of it over time, as a page: neap lab --html page.html")?;
    }
    Ok(())
}

fn show(planned: &Planned<'_>, runs: &[Run]) -> Result<Shown, Box<dyn Error>> {
    let experiment = &planned.experiment;
    let figures = runs.iter().map(|run| run.figures.clone());
    let runs: Vec<_> = experiment.choices().iter().cloned().zip(figures).collect();
    let verdicts = experiment.judge(&runs)?;
    let scenario = experiment.scenario();
    Ok(Shown {
        story: experiment.story(&runs)?,
        name: planned.builtin.name,
        about: scenario.about.clone(),
        look_at: scenario.look_at.clone().unwrap_or_default(),
        table: experiment.table(&runs)?,
        holds: verdicts.iter().all(|verdict| verdict.holds),
        verdicts,
    })
}

/// One run: the index of its experiment, its place among the choices, its choice and its work.
struct Job<'a> {
    index: usize,
    place: usize,
    choice: &'a Choice,
    work: f64,
}

/// What a thread sends when a job is over.
type Over = (usize, usize, Result<Run, String>);

/// All jobs, in the order of the experiments.
fn jobs<'a>(all: &'a [Planned<'_>]) -> Result<Vec<Job<'a>>, Box<dyn Error>> {
    let mut jobs = Vec::new();
    for (index, planned) in all.iter().enumerate() {
        for (place, choice) in planned.experiment.choices().iter().enumerate() {
            let work = planned.experiment.work(choice)?;
            jobs.push(Job { index, place, choice, work });
        }
    }
    Ok(jobs)
}

/// Runs all on all cores. `finished` is called for each experiment in order, with its runs in the
/// order of its choices.
fn run_all(
    all: &[Planned<'_>],
    args: &super::Args,
    mut packets: Option<Packets>,
    mut finished: impl FnMut(&Progress, Vec<Run>) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let jobs = jobs(all)?;
    let progress = Progress::new(jobs.iter().map(|job| job.work).sum());
    let attempt = |job: &Job<'_>, packets: Option<&mut Packets>, over: &Sender<Over>| {
        let run = run(&all[job.index], job, args, &progress, packets);
        // Nobody listens any more where another run has failed.
        over.send((job.index, job.place, run.map_err(|error| error.to_string()))).is_ok()
    };
    // Those whose packets are written share a file: one thread runs them, one after the other.
    let is_watched =
        |job: &Job<'_>| packets.is_some() && is_captured(all[job.index].builtin.name, job.choice);
    let (watched, others): (Vec<Job<'_>>, Vec<Job<'_>>) = jobs.into_iter().partition(is_watched);
    let next = AtomicUsize::new(0);
    let (over, results) = mpsc::channel::<Over>();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let work = |over: Sender<Over>| {
        while let Some(job) = others.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !attempt(job, None, &over) {
                return;
            }
        }
    };
    let outcome = std::thread::scope(|scope| {
        for _ in 1..cores {
            let (over, work) = (over.clone(), &work);
            scope.spawn(move || work(over));
        }
        let (packets, work) = (&mut packets, &work);
        scope.spawn(move || {
            if watched.iter().all(|job| attempt(job, packets.as_mut(), &over)) {
                work(over);
            }
        });
        in_order(all, results, |runs| finished(&progress, runs))
    });
    outcome?;
    Ok(packets.map_or(Ok(()), Packets::finish)?)
}

/// Gathers runs as they end, and hands over whole experiments.
fn in_order(
    all: &[Planned<'_>],
    results: Receiver<Over>,
    mut finished: impl FnMut(Vec<Run>) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let count = |planned: &Planned<'_>| planned.experiment.choices().len();
    let mut waiting: Vec<Vec<Option<Run>>> =
        all.iter().map(|planned| vec![None; count(planned)]).collect();
    let mut first = 0;
    for (index, place, run) in results {
        waiting[index][place] = Some(run?);
        while let Some(runs) = waiting.get_mut(first)
            && runs.iter().all(Option::is_some)
        {
            finished(std::mem::take(runs).into_iter().flatten().collect())?;
            first += 1;
        }
    }
    Ok(())
}

fn run(
    planned: &Planned<'_>,
    job: &Job<'_>,
    args: &super::Args,
    progress: &Progress,
    mut packets: Option<&mut Packets>,
) -> Result<Run, Box<dyn Error>> {
    let experiment = &planned.experiment;
    let name = format!("{} ({})", planned.builtin.name, brief(job.choice));
    if let Some(packets) = &mut packets {
        let scenario = experiment.scenario_of(job.choice)?;
        packets.begin_run(&format!("{}: ", planned.builtin.name), name.clone(), &scenario);
    }
    let mut write = packets.map(|packets| |packet: &Observed<'_>| packets.write(packet));
    let watch = Watch {
        record: args.html.is_some(),
        packets: write.as_mut().map(|write| write as &mut dyn FnMut(&Observed<'_>)),
    };
    let progress = progress.of_run(job.work, name);
    let mut seeded = job.choice.clone();
    seeded.push(("seed".to_owned(), (args.seed as i64).into()));
    Ok(experiment.run_watched(&seeded, &progress, watch).map_err(|e| e.to_string())?)
}

fn is_captured(name: &str, choice: &Choice) -> bool {
    let said = describe(choice);
    CAPTURED.iter().any(|(own, words)| *own == name && words.iter().all(|word| said.contains(word)))
}

fn page(
    collection: &Collection,
    all: &[Planned<'_>],
    done: &[Vec<Run>],
    shown: &[Shown],
) -> String {
    let sections = all.iter().zip(done).zip(shown).map(|((planned, runs), shown)| Section {
        experiment: &planned.experiment,
        runs,
        story: shown.story.as_ref(),
        said: &shown.verdicts,
        table: cells(&shown.table),
        published: &shown.table.judged,
    });
    front_page(collection.title, collection.introduction, &sections.collect::<Vec<_>>())
}

/// As a page shows it: head and rows.
fn cells(table: &Table) -> (Vec<String>, Vec<Vec<String>>) {
    let mut head = vec![String::new()];
    head.extend(table.published.iter().map(|name| format!("published: {name}")));
    head.extend(table.columns.iter().cloned());
    let mut rows = Vec::new();
    for TableGroup { what, digits, rows: cases } in &table.groups {
        let is_alone = cases.iter().all(|row| row.case.is_empty());
        if !is_alone {
            rows.push(vec![what.clone()]);
        }
        for row in cases {
            let mut cells = vec![if is_alone { what.clone() } else { row.case.clone() }];
            cells.extend(row.published.iter().cloned());
            cells.extend(row.values.iter().map(|value| format!("{value:.digits$}")));
            rows.push(cells);
        }
    }
    (head, rows)
}
