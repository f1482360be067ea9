//! The four published experiments: all their runs on all cores, and a table for each.

use super::output::OutputFile;
use super::report::{self, Packets, Section};
use neap_lab::library::{self, Builtin};
use neap_lab::report::{Observed, Watch};
use neap_lab::scenario::{Choice, Experiment, Run, Table, TableGroup, Verdict, brief, describe};
use serde::Serialize;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Width of the first column: what is shown.
const WHAT: usize = 34;
/// Width of the other columns.
const CELL: usize = 14;
/// Width of prose.
const LINE: usize = 110;

/// Runs of which packets are written: those of other experiments fill disks.
const CAPTURED: [(&str, &[&str]); 2] = [
    ("small-queues", &["column=neap", "gso=true", "rate=100mbit"]),
    ("autosizing", &["column=neap"]),
];

/// Settings of the first experiment that the page does not draw.
const ALIKE: [&str; 4] =
    ["gso=false", "column=limit 40000", "column=6.18, host.a.nic.gso", "rate=10gbit"];

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
    table: Table,
    verdicts: Vec<Said>,
    holds: bool,
}

/// A sentence, and whether it holds.
#[derive(Serialize)]
struct Said {
    text: String,
    holds: bool,
}

/// An experiment and where it comes from.
struct Planned<'a> {
    builtin: Builtin,
    experiment: Experiment<'a>,
}

/// Runs the experiments of these names and prints them; whether all verdicts hold.
pub(super) fn main(
    names: &[&str],
    args: &super::Args,
    out: &mut impl Write,
) -> Result<bool, Box<dyn Error>> {
    let files = |name: &str| Err(format!("there is no file {name}"));
    let mut all = Vec::new();
    for builtin in library::SCENARIOS.iter().filter(|s| names.contains(&s.name)) {
        let experiment = Experiment::parse(builtin.name, builtin.text, &files)?;
        all.push(Planned { builtin: *builtin, experiment });
    }
    let [html, pcapng] = OutputFile::open_all([args.html.as_ref(), args.pcapng.as_ref()])?;
    let packets = pcapng.map(Packets::create).transpose()?;
    let done = run_all(&all, args, packets)?;
    let mut report = Report { experiments: Vec::new(), holds: true, hash: String::new() };
    let mut digest = 0;
    for (planned, runs) in all.iter().zip(&done) {
        for run in runs {
            digest = neap_lab::rng::mix(digest ^ u64::from_str_radix(&run.hash, 16)?);
        }
        let shown = show(planned, runs)?;
        report.holds &= shown.holds;
        if !args.json {
            print(out, &shown)?;
        }
        report.experiments.push(shown);
    }
    report.hash = format!("{digest:016x}");
    if let Some(file) = html {
        file.write(&page(&all, &done, &report.experiments))?;
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
        return Ok(report.holds);
    }
    let summary = if report.holds { "All bounds hold" } else { "NOT ALL BOUNDS HOLD" };
    let unmatched: usize = report.experiments.iter().map(|one| one.table.differing()).sum();
    writeln!(out, "{summary}; {unmatched} rows differ from what was published, and say why.")?;
    writeln!(out, "hash of all runs: {}", report.hash)?;
    Ok(report.holds)
}

fn show(planned: &Planned<'_>, runs: &[Run]) -> Result<Shown, Box<dyn Error>> {
    let experiment = &planned.experiment;
    let figures = runs.iter().map(|run| run.figures.clone());
    let runs: Vec<_> = experiment.choices().iter().cloned().zip(figures).collect();
    let verdicts = experiment.judge(&runs)?;
    let scenario = experiment.scenario();
    Ok(Shown {
        name: planned.builtin.name,
        about: scenario.about.clone(),
        look_at: scenario.look_at.clone().unwrap_or_default(),
        table: experiment.table(&runs)?,
        holds: verdicts.iter().all(|verdict| verdict.holds),
        verdicts: verdicts
            .into_iter()
            .map(|Verdict { text, holds, .. }| Said { text, holds })
            .collect(),
    })
}

/// One run: the index of its experiment, its place among the choices, and its choice.
type Job<'a> = (usize, usize, &'a Choice);

/// By experiment, in the order of its choices.
fn run_all(
    all: &[Planned<'_>],
    args: &super::Args,
    packets: Option<Packets>,
) -> Result<Vec<Vec<Run>>, Box<dyn Error>> {
    // The last experiments are the longest: begun first, they leave no core idle at the end.
    let jobs = all.iter().enumerate().rev().flat_map(|(index, planned)| {
        let choices = planned.experiment.choices().iter().enumerate();
        choices.map(move |(place, choice)| (index, place, choice))
    });
    // Those whose packets are written share a file: one thread runs them, one after the other.
    let is_watched = |&(index, _, choice): &Job<'_>| {
        packets.is_some() && is_captured(all[index].builtin.name, choice)
    };
    let (mut watched, others): (Vec<Job<'_>>, Vec<Job<'_>>) = jobs.partition(is_watched);
    watched.sort_by_key(|&(index, place, _)| (index, place));
    let (next, done, failure) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(None));
    let (watched, packets) = (Mutex::new(watched), Mutex::new(packets));
    let attempt = |(index, place, choice): Job<'_>, packets: Option<&mut Packets>| match run(
        &all[index],
        choice,
        args,
        packets,
    ) {
        Ok(run) => lock(&done).push((index, place, run)),
        Err(error) => {
            *lock(&failure) = Some(error.to_string());
            next.store(others.len(), Ordering::Relaxed);
        }
    };
    let work = || {
        let mine = std::mem::take(&mut *lock(&watched));
        if !mine.is_empty() {
            let mut packets = lock(&packets);
            mine.into_iter().for_each(|job| attempt(job, packets.as_mut()));
        }
        while let Some(&job) = others.get(next.fetch_add(1, Ordering::Relaxed)) {
            attempt(job, None);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error.into());
    }
    let packets = packets.into_inner().unwrap_or_else(PoisonError::into_inner);
    packets.map_or(Ok(()), Packets::finish)?;
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|&(index, place, _)| (index, place));
    let mut by_experiment: Vec<Vec<Run>> = all.iter().map(|_| Vec::new()).collect();
    done.into_iter().for_each(|(index, _, run)| by_experiment[index].push(run));
    Ok(by_experiment)
}

fn run(
    planned: &Planned<'_>,
    choice: &Choice,
    args: &super::Args,
    mut packets: Option<&mut Packets>,
) -> Result<Run, Box<dyn Error>> {
    let experiment = &planned.experiment;
    if let Some(packets) = &mut packets {
        packets.begin_run(&format!("{}: ", planned.builtin.name), experiment);
    }
    let mut write = packets.map(|packets| |packet: &Observed<'_>| packets.write(packet));
    let watch = Watch {
        record: args.html.is_some() && is_drawn(choice),
        packets: write.as_mut().map(|write| write as &mut dyn FnMut(&Observed<'_>)),
    };
    let mut seeded = choice.clone();
    seeded.push(("seed".to_owned(), (args.seed as i64).into()));
    Ok(experiment.run_watched(&seeded, &|_| {}, watch).map_err(|e| e.to_string())?)
}

fn is_captured(name: &str, choice: &Choice) -> bool {
    let said = describe(choice);
    CAPTURED.iter().any(|(own, words)| *own == name && words.iter().all(|word| said.contains(word)))
}

/// What would be one more line among many that are alike is not drawn.
fn is_drawn(choice: &Choice) -> bool {
    let said = describe(choice);
    !ALIKE.iter().any(|alike| said.contains(alike))
}

fn page(all: &[Planned<'_>], done: &[Vec<Run>], shown: &[Shown]) -> String {
    let mut sections = Vec::new();
    for ((planned, runs), shown) in all.iter().zip(done).zip(shown) {
        let cases = planned.experiment.choices().iter().zip(runs);
        let cases = cases.filter_map(|(choice, run)| {
            run.recording.as_ref().map(|recording| (brief(choice), recording))
        });
        let said = shown.verdicts.iter().map(|said| (said.text.as_str(), said.holds));
        let unmatched = shown.table.judged.iter().map(|one| (one.text.as_str(), one.agrees));
        sections.push(Section {
            title: &shown.about,
            introduction: &shown.look_at,
            table: cells(&shown.table),
            verdicts: said.chain(unmatched).collect(),
            cases: cases.collect(),
        });
    }
    report::front_page(&sections)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Text in lines that a terminal shows.
fn paragraph(text: &str) -> String {
    let (mut out, mut length) = (String::new(), 0);
    for word in text.split(' ') {
        if length > 0 && length + word.len() >= LINE {
            out.push_str("\n  ");
            length = 2;
        } else if length > 0 {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += word.len();
    }
    out
}

fn print(out: &mut impl Write, shown: &Shown) -> Result<(), Box<dyn Error>> {
    writeln!(out, "{}\n{}\n", paragraph(&shown.about), paragraph(&shown.look_at))?;
    writeln!(out, "{}", table(&shown.table)?)?;
    let verdicts = shown.verdicts.iter().map(|said| &said.text);
    verdicts
        .chain(shown.table.judged.iter().map(|one| &one.text))
        .try_for_each(|said| writeln!(out, "{}", paragraph(said)))?;
    Ok(writeln!(out)?)
}

/// As a terminal shows it.
fn table(table: &Table) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let published = CELL * table.published.len();
    writeln!(out, "{:WHAT$}{:>published$}{:>CELL$}", "", "published:", "here:")?;
    write!(out, "{:WHAT$}", "")?;
    let mut heads = table.published.iter().chain(&table.columns);
    heads.try_for_each(|head| write!(out, "{head:>CELL$}"))?;
    out.push('\n');
    for group in &table.groups {
        let is_alone = group.rows.iter().all(|row| row.case.is_empty());
        if !is_alone {
            writeln!(out, "{}", group.what)?;
        }
        for row in &group.rows {
            let what = if is_alone { group.what.clone() } else { format!("  {}", row.case) };
            let mut line = format!("{what:WHAT$}");
            row.published.iter().try_for_each(|said| write!(line, "{said:>CELL$}"))?;
            for value in &row.values {
                write!(line, "{value:>CELL$.digits$}", digits = group.digits)?;
            }
            writeln!(out, "{}", line.trim_end())?;
        }
    }
    Ok(out)
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
