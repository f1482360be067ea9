//! `neap lab sweep`: all combinations of a scenario's parameters, on all cores. Each result is a
//! line of JSON on the disk before the next begins there, so that an interrupted sweep goes on
//! where it was.

use super::chart;
use super::files::find;
use super::output::{OutputError, OutputFile};
use super::page::{expected, sweep_page};
use super::run::print_verdicts;
use super::state::{State, build};
use super::terminal::{self, Progress};
use clap::Args as ClapArgs;
use neap_lab::report::{Recording, Watch};
use neap_lab::scenario::{Choice, Experiment, Figures, describe};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Run all combinations of a scenario's parameters on all cores; go on with what was interrupted
#[derive(ClapArgs, Clone, Debug)]
pub(super) struct Args {
    /// A scenario file, or the name of one that neap brings along (neap lab list)
    scenario: String,
    /// Keep the results here, as lines of JSON; if not given, what is done is in the state
    /// directory (XDG_STATE_HOME) until all is
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the results as a Parquet file too
    #[cfg(feature = "parquet")]
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
    /// Write a page that shows all runs side by side and needs nothing but itself; what an earlier
    /// sweep has left is run again for that
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Runs at the same time; all cores if not given
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

/// What each line of the results begins with.
const LINE_START: &str = "{\"scenario\":";

/// One line of the results.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    /// Hash of the scenario's text.
    scenario: String,
    /// The program that ran it.
    build: String,
    choice: BTreeMap<String, toml::Value>,
    hash: String,
    figures: Figures,
}

impl Line {
    fn choice(&self) -> Choice {
        self.choice.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// The line of a run, and its recording if there is one.
type Recorded = (Line, Option<Recording>);

/// Recordings by the description of their runs.
type Recordings = BTreeMap<String, Recording>;

/// What is run, and where its results go.
struct Sweep<'a> {
    experiment: &'a Experiment<'a>,
    path: &'a Path,
    /// Whether every run is recorded for a page. Those whose results are there are run again.
    records: bool,
}

/// Whether all expectations hold.
pub(super) fn main(args: &Args, out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
    let found = find(&args.scenario)?;
    let files = |name: &str| found.read(name);
    let experiment = Experiment::parse(&found.name, &found.text, &files)?;
    let state = State::of(args.out.as_ref(), &args.scenario, &experiment)?;
    let path = state.path.clone();
    #[cfg(feature = "parquet")]
    let [_, html, table] =
        OutputFile::open_all([Some(&path), args.html.as_ref(), args.parquet.as_ref()])?;
    #[cfg(not(feature = "parquet"))]
    let [_, html] = OutputFile::open_all([Some(&path), args.html.as_ref()])?;
    let mut lines = read(&path, &experiment.fingerprint())?;
    state.tell(lines.len(), experiment.choices().len());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.unwrap_or(cores).max(1);
    let sweep = Sweep { experiment: &experiment, path: &path, records: html.is_some() };
    let mut recordings = Recordings::new();
    for (line, recording) in sweep.run_missing(&lines, jobs)? {
        recordings.extend(recording.map(|recording| (describe(&line.choice()), recording)));
        if !lines.iter().any(|other| other.choice() == line.choice()) {
            lines.push(line);
        }
    }
    writeln!(out, "{}\n", experiment.scenario().about)?;
    let (mut runs, mut hashes) = (Vec::new(), Vec::new());
    for choice in experiment.choices() {
        let line = lines.iter().find(|line| line.choice() == *choice);
        let line = line.ok_or("a run is missing")?;
        runs.push((choice.clone(), line.figures.clone()));
        hashes.push(&line.hash);
    }
    if let Some(story) = experiment.story(&runs)? {
        writeln!(out, "{}", chart::draw(&story, terminal::width())?)?;
    }
    let names = expected(&experiment);
    for ((choice, figures), hash) in runs.iter().zip(hashes) {
        writeln!(out, "{hash}  {}", describe(choice))?;
        for (name, value) in names.iter().filter_map(|name| figures.get_key_value(*name)) {
            writeln!(out, "{:18}{name:<44} {value:>12.3}", "")?;
        }
    }
    if let Some(look_at) = &experiment.scenario().look_at {
        let look_at = format!("Look at: {look_at}");
        let lines = terminal::wrapped(&look_at, terminal::width());
        writeln!(out, "\n{}", lines.join("\n"))?;
    }
    let verdicts = experiment.judge(&runs)?;
    print_verdicts(out, &verdicts)?;
    if let Some(file) = html {
        let recordings: Vec<_> =
            runs.iter().filter_map(|(choice, _)| recordings.remove(&describe(choice))).collect();
        file.write(&sweep_page(&experiment, &found.name, &runs, &recordings, &verdicts)?)?;
    }
    let mut places = String::new();
    #[cfg(feature = "parquet")]
    if let Some(table) = table {
        let (path, file) = table.begin()?;
        write_table(file, &lines).map_err(|error| format!("{}: {error}", path.display()))?;
        places = format!(", and as a table in {}", path.display());
    }
    // Last: what is done is kept until all is written.
    places.insert_str(0, &state.end());
    writeln!(out, "\n{} runs{places}", runs.len())?;
    Ok(verdicts.iter().all(|verdict| verdict.holds))
}

/// What an earlier sweep of the same text by the same program has left. Other lines stay in the
/// file: they are results of other scenarios or other builds, or not ours at all.
fn read(path: &Path, fingerprint: &str) -> Result<Vec<Line>, Box<dyn Error>> {
    // A device or a pipe keeps nothing.
    if !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(path).map_err(|why| OutputError::new(path, why))?;
    let whole = text.rfind('\n').map_or(0, |at| at + 1);
    let build = build();
    let lines = text[..whole].lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let lines = lines.filter(|line| line.scenario == fingerprint && line.build == build);
    end_last_line(path, whole, &text[whole..]).map_err(|why| OutputError::new(path, why))?;
    Ok(lines.collect())
}

/// Makes the file end with a whole line. A result of which the writing was interrupted is dropped,
/// and any other text at the end, which begins at `from`, gets an end of line.
fn end_last_line(path: &Path, from: usize, last: &str) -> std::io::Result<()> {
    if last.is_empty() {
        return Ok(());
    }
    let mut file = OpenOptions::new().append(true).open(path)?;
    if last.starts_with(LINE_START) || LINE_START.starts_with(last) {
        return file.set_len(from as u64);
    }
    file.write_all(b"\n")
}

impl Sweep<'_> {
    /// Runs what is not there yet.
    fn run_missing(&self, done: &[Line], jobs: usize) -> Result<Vec<Recorded>, Box<dyn Error>> {
        let is_done = |choice: &Choice| done.iter().any(|line| line.choice() == *choice);
        let choices = self.experiment.choices().iter();
        let missing: Vec<&Choice> =
            choices.filter(|choice| self.records || !is_done(choice)).collect();
        let file = OpenOptions::new().create(true).append(true).open(self.path);
        let file = Mutex::new(file.map_err(|why| OutputError::new(self.path, why))?);
        let work = |choice: &&Choice| self.experiment.work(choice);
        let work = missing.iter().map(work).collect::<Result<Vec<f64>, _>>()?;
        let progress = Progress::new(work.iter().sum());
        let left: Vec<(&Choice, f64)> = missing.into_iter().zip(work).collect();
        let (next, lines) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let failure: Mutex<Option<Box<dyn Error + Send + Sync>>> = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..jobs.min(left.len()) {
                scope.spawn(|| {
                    while let Some(&(choice, work)) = left.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let file = (!is_done(choice)).then_some(&file);
                        match self.run_one(choice, progress.of_run(work, describe(choice)), file) {
                            Ok(line) => lock(&lines).push(line),
                            Err(error) => {
                                *lock(&failure) = Some(match error.downcast::<OutputError>() {
                                    Ok(error) => error,
                                    Err(error) => format!("{}: {error}", describe(choice)).into(),
                                });
                                next.store(left.len(), Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(lines.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// One run, whose line goes to the file.
    fn run_one(
        &self,
        choice: &Choice,
        progress: impl Fn(f64),
        file: Option<&Mutex<File>>,
    ) -> Result<Recorded, Box<dyn Error + Send + Sync>> {
        let watch = Watch { record: self.records, packets: None };
        let run = self.experiment.run_watched(choice, &progress, watch)?;
        let line = Line {
            scenario: self.experiment.fingerprint(),
            build: build(),
            choice: choice.iter().cloned().collect(),
            hash: run.hash,
            figures: run.figures,
        };
        if let Some(file) = file {
            let text = serde_json::to_string(&line)? + "\n";
            let written = lock(file).write_all(text.as_bytes());
            written.map_err(|why| OutputError::new(self.path, why))?;
        }
        Ok((line, run.recording))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A column per parameter and per figure.
#[cfg(feature = "parquet")]
fn write_table(file: File, lines: &[Line]) -> Result<(), Box<dyn Error>> {
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
    parquet::write(file, &columns)?;
    Ok(())
}
