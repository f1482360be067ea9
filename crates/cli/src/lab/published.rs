//! `neap lab published`: results of others about controllers and queues, each beside neap's.

use super::experiments::{self, RESULTS};
use clap::Args as ClapArgs;
use std::error::Error;
use std::path::PathBuf;

/// Repeat published results on BBR, CoDel, fq_codel and incast, with a verdict on each figure
#[derive(ClapArgs, Clone, Debug)]
pub(super) struct Args {
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Seed of all randomness; equal seeds print equal figures
    #[arg(long, default_value_t = 1, value_parser = super::seed())]
    seed: u64,
    /// Write a page with tables and plots that needs nothing but itself
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Whether all bounds hold.
pub(super) fn main(args: &Args) -> Result<bool, Box<dyn Error>> {
    let Args { json, seed, html } = args.clone();
    // The verdicts are what it is for: they stand below the tables.
    let args = super::Args { json, seed, html, verbose: !args.json, ..super::Args::default() };
    experiments::main(&RESULTS, &args)
}
