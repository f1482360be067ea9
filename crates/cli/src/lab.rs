//! `neap lab`: what small queues change, in virtual time.

mod compare;
mod files;
mod list;
mod parquet;
mod report;
mod run;
mod swarm;
mod sweep;

use crate::script;
use clap::{Args as ClapArgs, Subcommand};
use neap_lab::experiments::small_queues::{Failure, HEADER, INTRODUCTION, Report, Run, run_all};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
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
    /// Write a page with tables and plots that needs nothing but itself
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Sweep(sweep::Args),
    Swarm(swarm::Args),
    Script(script::Args),
    Compare(compare::Args),
    /// List the scenarios that neap brings along
    List,
}

impl Default for Args {
    fn default() -> Self {
        Self { command: None, json: false, seed: 1, html: None }
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
        Some(Command::Swarm(args)) => return swarm::main(args, &mut out),
        Some(Command::Script(args)) => return Ok(script::main(args)),
        Some(Command::Compare(args)) => return compare::main(args, &mut out),
        Some(Command::List) => return list::main(&mut out),
        None => {}
    }
    if args.json {
        let report = run_all(args.seed, |_| Ok(()))?;
        write_page(args, &report)?;
        serde_json::to_writer_pretty(&mut out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(report.holds);
    }
    writeln!(out, "{INTRODUCTION}\n\n{HEADER}")?;
    let report = run_all(args.seed, |run| print_run(&mut out, run))?;
    print_verdicts(&mut out, &report)?;
    write_page(args, &report)?;
    Ok(report.holds)
}

/// The page, if it was asked for.
fn write_page(args: &Args, report: &Report) -> Result<(), Failure> {
    let Some(path) = &args.html else { return Ok(()) };
    let rows = report.runs.iter().map(|run| format!("\n{run}"));
    let case = |rate: &str, on: i64| {
        let values = [
            ("host.a.sysctl.neap.tcp_small_queues", on.into()),
            ("link.wire.rate", rate.into()),
            ("seed", (args.seed as i64).into()),
        ];
        let name = format!("{rate}, {}", if on == 1 { "on" } else { "off" });
        (name, values.map(|(path, value)| (path.to_owned(), value)).to_vec())
    };
    let rates = ["100mbit", "1gbit"];
    let section = report::Section {
        title: "Small queues",
        introduction: INTRODUCTION,
        table: format!("{HEADER}{}", rows.collect::<String>()),
        verdicts: &report.verdicts,
        holds: report.holds,
        scenario: "small-queues",
        cases: rates.iter().flat_map(|rate| [case(rate, 0), case(rate, 1)]).collect(),
    };
    let page = report::front_page(&[section])?;
    std::fs::write(path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(())
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
