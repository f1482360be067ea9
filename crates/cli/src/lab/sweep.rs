//! `neap lab sweep`: all combinations of a scenario's parameters, on all cores. Each result is a
//! line of JSON on the disk before the next begins there, so that an interrupted sweep goes on
//! where it was.

use super::files::find;
use super::run::print_verdicts;
use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressStyle};
use neap_lab::scenario::{Choice, Experiment, Figures, describe};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Steps of the progress bar for one run.
const STEPS: u64 = 1000;

/// Run all combinations of a scenario's parameters on all cores; go on with what was interrupted
#[derive(ClapArgs, Clone, Debug)]
pub(super) struct Args {
    /// A scenario file, or the name of one that neap brings along (neap lab list)
    scenario: String,
    /// Where the results go: FILE.jsonl, and FILE.parquet where neap was built with --features
    /// parquet; the scenario's own name if not given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Runs at the same time; all cores if not given
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

/// One line of the results.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    /// Hash of the scenario's text.
    scenario: String,
    choice: BTreeMap<String, toml::Value>,
    hash: String,
    figures: Figures,
}

impl Line {
    fn choice(&self) -> Choice {
        self.choice.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// Whether all expectations hold.
pub(super) fn main(args: &Args, out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
    let found = find(&args.scenario)?;
    let files = |name: &str| found.read(name);
    let experiment = Experiment::parse(&found.name, &found.text, &files)?;
    let base = match &args.out {
        Some(path) => path.clone(),
        None => PathBuf::from(Path::new(&args.scenario).file_stem().unwrap_or_default()),
    };
    let path = base.with_extension("jsonl");
    let mut lines = read(&path, &experiment.fingerprint())?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.unwrap_or(cores).max(1);
    lines.extend(run_missing(&experiment, &path, &lines, jobs)?);
    let mut runs = Vec::new();
    writeln!(out, "{}\n", experiment.scenario().about)?;
    for choice in experiment.choices() {
        let line = lines.iter().find(|line| line.choice() == *choice);
        let line = line.ok_or("a run is missing")?;
        writeln!(out, "{}  {}", line.hash, describe(choice))?;
        for (name, value) in expected(&experiment, &line.figures) {
            writeln!(out, "{:18}{name:<44} {value:>12.3}", "")?;
        }
        runs.push((choice.clone(), line.figures.clone()));
    }
    if let Some(look_at) = &experiment.scenario().look_at {
        writeln!(out, "\nLook at: {look_at}")?;
    }
    let verdicts = experiment.judge(&runs)?;
    print_verdicts(out, &verdicts)?;
    write!(out, "\n{} runs in {}", runs.len(), path.display())?;
    #[cfg(feature = "parquet")]
    {
        let table = base.with_extension("parquet");
        write_table(&table, &lines).map_err(|error| format!("{}: {error}", table.display()))?;
        write!(out, " and {}", table.display())?;
    }
    writeln!(out)?;
    Ok(verdicts.iter().all(|verdict| verdict.holds))
}

/// The figures of which the scenario expects something, each once.
fn expected<'a>(experiment: &'a Experiment<'_>, figures: &Figures) -> Vec<(&'a str, f64)> {
    let mut shown: Vec<(&str, f64)> = Vec::new();
    for expect in &experiment.scenario().expect {
        let name = expect.get_ref().figure.get_ref().as_str();
        if let Some(&value) = figures.get(name)
            && shown.iter().all(|(other, _)| *other != name)
        {
            shown.push((name, value));
        }
    }
    shown
}

/// What an earlier sweep of the same text has left. A line that was cut off is dropped, as are
/// those of other texts.
fn read(path: &Path, fingerprint: &str) -> Result<Vec<Line>, Box<dyn Error>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other.map_err(|error| format!("{}: {error}", path.display()))?,
    };
    let (mut lines, mut kept) = (Vec::new(), String::new());
    for whole in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let Ok(line) = serde_json::from_str::<Line>(whole) else { continue };
        if line.scenario == fingerprint {
            lines.push(line);
            kept.push_str(whole);
        }
    }
    if kept != text {
        let beside = path.with_extension("jsonl.new");
        std::fs::write(&beside, kept)?;
        std::fs::rename(&beside, path)?;
    }
    Ok(lines)
}

/// Runs what is not there yet.
fn run_missing(
    experiment: &Experiment<'_>,
    path: &Path,
    done: &[Line],
    jobs: usize,
) -> Result<Vec<Line>, Box<dyn Error>> {
    let is_missing = |choice: &&Choice| !done.iter().any(|line| line.choice() == **choice);
    let missing: Vec<&Choice> = experiment.choices().iter().filter(is_missing).collect();
    let file = OpenOptions::new().create(true).append(true).open(path);
    let file = Mutex::new(file.map_err(|error| format!("{}: {error}", path.display()))?);
    let bar = ProgressBar::new(missing.len() as u64 * STEPS);
    let style = ProgressStyle::with_template("{wide_bar} {percent} %, {eta} left: {msg}")?;
    bar.set_style(style);
    let (next, lines, failure) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(missing.len()) {
            scope.spawn(|| {
                while let Some(choice) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match run_one(experiment, choice, &bar, &file) {
                        Ok(line) => lock(&lines).push(line),
                        Err(error) => {
                            *lock(&failure) = Some(format!("{}: {error}", describe(choice)));
                            next.store(missing.len(), Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error.into()),
        None => Ok(lines.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_one(
    experiment: &Experiment<'_>,
    choice: &Choice,
    bar: &ProgressBar,
    file: &Mutex<File>,
) -> Result<Line, Box<dyn Error + Send + Sync>> {
    bar.set_message(describe(choice));
    let told = std::cell::Cell::new(0);
    let progress = |share: f64| {
        let steps = (share * STEPS as f64) as u64;
        bar.inc(steps - told.replace(steps));
    };
    let run = experiment.run(choice, &progress)?;
    bar.inc(STEPS.saturating_sub(told.get()));
    let line = Line {
        scenario: experiment.fingerprint(),
        choice: choice.iter().cloned().collect(),
        hash: run.hash,
        figures: run.figures,
    };
    let text = serde_json::to_string(&line)? + "\n";
    lock(file).write_all(text.as_bytes())?;
    Ok(line)
}

/// A column per parameter and per figure.
#[cfg(feature = "parquet")]
fn write_table(path: &Path, lines: &[Line]) -> Result<(), Box<dyn Error>> {
    use super::parquet::{self, Column};
    use neap_lab::scenario::plain;
    use std::collections::BTreeSet;
    let mut ordered: Vec<&Line> = lines.iter().collect();
    ordered.sort_by_key(|line| describe(&line.choice()));
    let parameters: BTreeSet<&String> = lines.iter().flat_map(|line| line.choice.keys()).collect();
    let names: BTreeSet<&String> = lines.iter().flat_map(|line| line.figures.keys()).collect();
    let mut columns = Vec::new();
    for name in parameters {
        let value = |line: &&Line| line.choice.get(name).map(plain);
        columns.push((name.clone(), Column::Texts(ordered.iter().map(value).collect())));
    }
    let hashes = ordered.iter().map(|line| Some(line.hash.clone())).collect();
    columns.push(("hash".to_owned(), Column::Texts(hashes)));
    for name in names {
        let value = |line: &&Line| line.figures.get(name).copied();
        columns.push((name.clone(), Column::Numbers(ordered.iter().map(value).collect())));
    }
    parquet::write(File::create(path)?, &columns)?;
    Ok(())
}
