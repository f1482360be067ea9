//! The four published experiments: all their runs on all cores, and a table for each.

use neap_lab::library::{self, Builtin};
use neap_lab::scenario::{Choice, Experiment, Figures, Table};
use serde::Serialize;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Width of the first column: what is shown.
const WHAT: usize = 44;
/// Of the others.
const CELL: usize = 14;

/// What all runs have come to.
#[derive(Serialize)]
struct Report {
    experiments: Vec<Shown>,
    /// All verdicts hold.
    holds: bool,
    /// Of all runs.
    hash: String,
}

/// One experiment.
#[derive(Serialize)]
struct Shown {
    name: &'static str,
    about: String,
    look_at: String,
    tables: Vec<Table>,
    verdicts: Vec<String>,
    holds: bool,
}

/// One run.
type Done = (Choice, Figures, String);

/// Runs all and prints them; whether all verdicts hold.
pub(super) fn main(seed: u64, json: bool, out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
    let files = |name: &str| Err(format!("there is no file {name}"));
    let scenarios = library::EXPERIMENTS.iter().filter_map(|name| {
        library::SCENARIOS.iter().find(|scenario| scenario.name == *name).copied()
    });
    let scenarios: Vec<Builtin> = scenarios.collect();
    let mut experiments = Vec::new();
    for scenario in &scenarios {
        experiments.push(Experiment::parse(scenario.name, scenario.text, &files)?);
    }
    let done = run_all(&experiments, seed)?;
    let mut report = Report { experiments: Vec::new(), holds: true, hash: String::new() };
    let mut digest = 0;
    for ((scenario, experiment), done) in scenarios.iter().zip(&experiments).zip(done) {
        for (_, _, hash) in &done {
            digest = neap_lab::rng::mix(digest ^ u64::from_str_radix(hash, 16)?);
        }
        let runs: Vec<_> = done.into_iter().map(|(choice, figures, _)| (choice, figures)).collect();
        let shown = show(scenario.name, experiment, &runs)?;
        report.holds &= shown.holds;
        if !json {
            print(out, &shown)?;
        }
        report.experiments.push(shown);
    }
    report.hash = format!("{digest:016x}");
    if json {
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
        return Ok(report.holds);
    }
    let summary = if report.holds { "All of it holds." } else { "NOT ALL OF IT HOLDS." };
    writeln!(out, "{summary}\nhash of all runs: {}", report.hash)?;
    Ok(report.holds)
}

fn show(
    name: &'static str,
    experiment: &Experiment<'_>,
    runs: &[(Choice, Figures)],
) -> Result<Shown, Box<dyn Error>> {
    let verdicts = experiment.judge(runs)?;
    let scenario = experiment.scenario();
    Ok(Shown {
        name,
        about: scenario.about.clone(),
        look_at: scenario.look_at.clone().unwrap_or_default(),
        tables: experiment.tables(runs)?,
        holds: verdicts.iter().all(|verdict| verdict.holds),
        verdicts: verdicts.into_iter().map(|verdict| verdict.text).collect(),
    })
}

/// By experiment, in the order of its choices.
fn run_all(experiments: &[Experiment<'_>], seed: u64) -> Result<Vec<Vec<Done>>, Box<dyn Error>> {
    // The last experiments are the longest: begun first, they leave no core idle at the end.
    let jobs = experiments.iter().enumerate().rev().flat_map(|(index, experiment)| {
        experiment.choices().iter().enumerate().map(move |(place, choice)| (index, place, choice))
    });
    let jobs: Vec<(usize, usize, &Choice)> = jobs.collect();
    let (next, done, failure) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(None));
    let work = || {
        while let Some(&(index, place, choice)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut seeded = choice.clone();
            seeded.push(("seed".to_owned(), (seed as i64).into()));
            match experiments[index].run(&seeded, &|_| {}) {
                Ok(run) => {
                    lock(&done).push((index, place, (choice.clone(), run.figures, run.hash)))
                }
                Err(error) => {
                    *lock(&failure) = Some(error.to_string());
                    next.store(jobs.len(), Ordering::Relaxed);
                }
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores.min(jobs.len())).for_each(|_| drop(scope.spawn(work))));
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error.into());
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|&(index, place, _)| (index, place));
    let mut by_experiment: Vec<Vec<Done>> = experiments.iter().map(|_| Vec::new()).collect();
    done.into_iter().for_each(|(index, _, done)| by_experiment[index].push(done));
    Ok(by_experiment)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn print(out: &mut impl Write, shown: &Shown) -> Result<(), Box<dyn Error>> {
    writeln!(out, "{}\n", shown.about)?;
    for table in &shown.tables {
        let title = &table.title;
        let mut line = format!("{title:<WHAT$}{:>CELL$}{:>CELL$}", "published", "published");
        for column in &table.columns {
            write!(line, "{column:>CELL$}")?;
        }
        writeln!(out, "{line}")?;
        for row in &table.rows {
            let [before, after] = &row.published;
            let mut line =
                format!("  {:<width$}{before:>CELL$}{after:>CELL$}", row.what, width = WHAT - 2);
            for value in &row.values {
                write!(line, "{value:>CELL$.digits$}", digits = row.digits)?;
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        writeln!(out)?;
    }
    for verdict in &shown.verdicts {
        writeln!(out, "{verdict}")?;
    }
    writeln!(out, "{}\n", shown.look_at)?;
    Ok(())
}
