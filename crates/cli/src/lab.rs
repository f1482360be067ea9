//! `neap lab`: what small queues change, in virtual time.

mod files;
mod parquet;
mod run;
mod sweep;

use clap::{Args as ClapArgs, Subcommand};
use neap_lab::experiments::small_queues::{Failure, HEADER, INTRODUCTION, Report, Run, run_all};
use neap_lab::library;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// One bulk flow over an emulated link, small queues off and on, at four speeds; or scenarios
#[derive(ClapArgs, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Without a command: the small queues
    #[command(subcommand)]
    command: Option<Command>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Seed of all randomness; equal seeds print equal figures
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Sweep(sweep::Args),
    /// List the scenarios that neap brings along
    List,
}

impl Default for Args {
    fn default() -> Self {
        Self { command: None, json: false, seed: 1 }
    }
}

/// Runs the experiment; fails if the small queues do not keep what they promise.
pub(crate) fn main(args: &Args) -> ExitCode {
    match print(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let is_pipe = error
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe);
            if is_pipe {
                return ExitCode::SUCCESS;
            }
            eprintln!("neap lab: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all that is promised holds.
fn print(args: &Args) -> Result<bool, Failure> {
    let mut out = std::io::stdout();
    match &args.command {
        Some(Command::Run(args)) => return run::main(args, &mut out),
        Some(Command::Sweep(args)) => return sweep::main(args, &mut out),
        Some(Command::List) => return list(&mut out),
        None => {}
    }
    if args.json {
        let report = run_all(args.seed, |_| Ok(()))?;
        serde_json::to_writer_pretty(&mut out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(report.holds);
    }
    writeln!(out, "{INTRODUCTION}\n\n{HEADER}")?;
    let report = run_all(args.seed, |run| print_run(&mut out, run))?;
    print_verdicts(&mut out, &report)?;
    Ok(report.holds)
}

fn list(out: &mut impl Write) -> Result<bool, Failure> {
    for scenario in library::SCENARIOS {
        let about = scenario.text.lines().find_map(|line| line.strip_prefix("about = "));
        let about = about.unwrap_or_default().trim_matches('"');
        writeln!(out, "{:<20} {about}", scenario.name)?;
    }
    writeln!(out, "\nneap lab run NAME, or a file of your own")?;
    Ok(true)
}

/// Rows appear as they are measured.
fn print_run(out: &mut impl Write, run: &Run) -> Result<(), Failure> {
    writeln!(out, "{run}")?;
    if run.small_queues {
        writeln!(out)?;
    }
    Ok(out.flush()?)
}

fn print_verdicts(out: &mut impl Write, report: &Report) -> Result<(), Failure> {
    for verdict in &report.verdicts {
        writeln!(out, "{verdict}")?;
    }
    let summary = if report.holds {
        "Small queues keep the queue out of the host and cost no goodput."
    } else {
        "SMALL QUEUES DO NOT KEEP THEIR PROMISE."
    };
    writeln!(out, "\n{summary}\nhash of the run: {}", report.hash)?;
    Ok(())
}
