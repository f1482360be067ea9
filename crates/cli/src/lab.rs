//! `neap lab`: four published experiments, in virtual time; and scenarios.

mod chart;
mod choose;
mod compare;
mod experiments;
mod explain;
pub(crate) mod files;
mod list;
mod output;
mod page;
#[cfg(feature = "parquet")]
mod parquet;
mod published;
mod report;
mod run;
mod script;
mod state;
mod swarm;
mod sweep;
mod tables;
mod terminal;

use choose::ArgumentError;
use experiments::CHANGES;
use output::OutputError;

use clap::{Args as ClapArgs, Subcommand};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Four published experiments in virtual time, beside what was published; or scenarios
#[derive(ClapArgs, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// Without a command: the four experiments
    #[command(subcommand)]
    command: Option<Command>,
    /// Print JSON instead of charts
    #[arg(long)]
    json: bool,
    /// Print all figures in tables, and a sentence about each bound and each published figure
    #[arg(long, short, conflicts_with = "json")]
    verbose: bool,
    /// Seed of all randomness; equal seeds print equal figures
    #[arg(long, default_value_t = 1, value_parser = seed())]
    seed: u64,
    /// Write a page with tables and plots that needs nothing but itself
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the headers of all packets of neap's runs of the first two experiments for Wireshark,
    /// one after the other; an interface is one end of a link
    #[arg(long, value_name = "FILE")]
    pcapng: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Explain(explain::Args),
    Sweep(sweep::Args),
    Swarm(swarm::Args),
    Script(script::Args),
    Compare(compare::Args),
    Published(published::Args),
    /// List the scenarios that neap brings along
    List,
}

/// Seeds are integers of TOML.
fn seed() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(..=i64::MAX as u64)
}

impl Default for Args {
    fn default() -> Self {
        Self { command: None, json: false, verbose: false, seed: 1, html: None, pcapng: None }
    }
}

/// Runs the experiments; fails if one does not show what it must.
pub(crate) fn main(args: &Args) -> ExitCode {
    match print(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("neap lab: {error}");
            let is_argument = error.is::<OutputError>() || error.is::<ArgumentError>();
            if is_argument { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Whether all that is promised holds.
fn print(args: &Args) -> Result<bool, Box<dyn Error>> {
    let mut out = terminal::output();
    match &args.command {
        Some(Command::Run(args)) => return run::main(args, &mut out),
        Some(Command::Explain(args)) => return explain::main(args, &mut out),
        Some(Command::Sweep(args)) => return sweep::main(args, &mut out),
        Some(Command::Swarm(args)) => return swarm::main(args, &mut out),
        Some(Command::Script(args)) => return Ok(script::main(args)),
        Some(Command::Compare(args)) => return compare::main(args, &mut out),
        Some(Command::Published(args)) => return published::main(args),
        Some(Command::List) => return list::main(&mut out),
        None => {}
    }
    experiments::main(&CHANGES, args)
}
