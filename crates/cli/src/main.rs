//! The program neap: lab and perf.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

mod perf;

#[derive(Parser)]
#[command(name = "neap", version, about = "TCP without the queue: a user-space TCP/IP stack")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Measure bulk TCP to or from a stock iperf3
    Perf(perf::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Some(Command::Perf(args)) => perf::main(&args),
        None => match Cli::command().print_help() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
    }
}
