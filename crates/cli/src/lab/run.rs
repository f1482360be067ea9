//! `neap lab run`: one scenario, its figures and what they say.

use super::choose::Chosen;
use super::files::find;
use super::output::OutputFile;
use super::page::run_page;
use super::report::Packets;
use super::terminal;
use clap::Args as ClapArgs;
use neap_lab::report::{Observed, Watch};
use neap_lab::scenario::{Choice, Experiment, Figures, Run, RunError, Verdict};
use serde::Serialize;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

/// Run a scenario once and print its figures
#[derive(ClapArgs, Clone, Debug)]
pub(super) struct Args {
    /// A scenario file, or the name of one that neap brings along (neap lab list)
    scenario: String,
    #[command(flatten)]
    chosen: Chosen,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Print all figures, also those that are zero
    #[arg(long)]
    all: bool,
    /// Add what was looked at over time to the JSON
    #[arg(long, requires = "json")]
    series: bool,
    /// Write a page with plots that needs nothing but itself
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the headers of all packets with a comment on cwnd, bytes below the socket and what
    /// blocked the flow, for Wireshark; an interface is one end of a link
    #[arg(long, value_name = "FILE")]
    pcapng: Option<PathBuf>,
}

#[derive(Serialize)]
struct Output<'a> {
    scenario: &'a str,
    about: &'a str,
    figures: &'a Figures,
    verdicts: Vec<&'a str>,
    holds: bool,
    hash: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    series: Option<Columns<'a>>,
}

#[derive(Serialize)]
struct Columns<'a> {
    names: &'a [String],
    rows: &'a [Vec<f64>],
}

/// Whether all expectations hold.
pub(super) fn main(args: &Args, out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
    let found = find(&args.scenario)?;
    let files = |name: &str| found.read(name);
    let experiment = Experiment::parse(&found.name, &found.text, &files)?;
    let [html, pcapng] = OutputFile::open_all([args.html.as_ref(), args.pcapng.as_ref()])?;
    let run = run(html.is_some(), pcapng, &found.name, &experiment, &args.chosen)?;
    let verdicts = experiment.judge(&[(Choice::new(), run.figures.clone())])?;
    let holds = verdicts.iter().all(|verdict| verdict.holds);
    if let Some(file) = html {
        file.write(&run_page(&experiment, &found.name, &run, &verdicts))?;
    }
    let scenario = experiment.scenario();
    if args.json {
        let series = &run.series;
        let columns = Columns { names: &series.names, rows: &series.rows };
        let output = Output {
            scenario: &found.name,
            about: &scenario.about,
            figures: &run.figures,
            verdicts: verdicts.iter().map(|verdict| verdict.text.as_str()).collect(),
            holds,
            hash: &run.hash,
            series: args.series.then_some(columns),
        };
        serde_json::to_writer_pretty(&mut *out, &output)?;
        writeln!(out)?;
        return Ok(holds);
    }
    writeln!(out, "{}", scenario.about)?;
    let count = experiment.choices().len();
    let sweep = format!("neap lab sweep {}", args.scenario);
    if count > 1 {
        let which =
            if args.chosen.is_empty() { "as the file has it" } else { "as it was asked for" };
        writeln!(out, "This is the run {which}; {sweep} shows {count} side by side.")?;
    }
    print_figures(out, &run.figures, args.all)?;
    if let Some(look_at) = &scenario.look_at {
        let look_at = format!("Look at: {look_at}");
        let lines = terminal::wrapped(&look_at, terminal::width());
        writeln!(out, "\n{}", lines.join("\n"))?;
    }
    print_verdicts(out, &verdicts)?;
    if count > 1 {
        writeln!(out, "\n{count} runs side by side: {sweep}")?;
    }
    writeln!(out, "hash of the run: {}", run.hash)?;
    Ok(holds)
}

/// Runs it, and writes packets while it runs.
fn run(
    record: bool,
    pcapng: Option<OutputFile>,
    name: &str,
    experiment: &Experiment<'_>,
    chosen: &Chosen,
) -> Result<Run, Box<dyn Error>> {
    let choice = chosen.choice();
    let scenario = experiment.scenario_of(&choice);
    let scenario = scenario.map_err(|error| chosen.error(RunError::Scenario(error)))?;
    let mut packets = pcapng.map(Packets::create).transpose()?;
    if let Some(packets) = &mut packets {
        packets.begin_run("", name.to_owned(), &scenario);
    }
    let mut write = packets.as_mut().map(|packets| |packet: &Observed<'_>| packets.write(packet));
    let watch = Watch {
        record,
        packets: write.as_mut().map(|write| write as &mut dyn FnMut(&Observed<'_>)),
    };
    let run = experiment.run_watched(&choice, &|_| {}, watch);
    let run = run.map_err(|error| chosen.error(error))?;
    packets.map_or(Ok(()), Packets::finish)?;
    Ok(run)
}

/// One block per application, host and direction of a link.
fn print_figures(out: &mut impl Write, figures: &Figures, all: bool) -> std::io::Result<()> {
    let mut block = "";
    for (name, value) in figures.iter().filter(|(_, value)| all || **value != 0.0) {
        let (head, figure) = name.rsplit_once('.').unwrap_or(("", name));
        if head != block {
            writeln!(out, "\n{head}")?;
            block = head;
        }
        let digits = if value.fract() == 0.0 { 0 } else { 3 };
        writeln!(out, "  {figure:<32} {value:>16.digits$}")?;
    }
    Ok(())
}

/// One line per expectation.
pub(super) fn print_verdicts(out: &mut impl Write, verdicts: &[Verdict]) -> std::io::Result<()> {
    if !verdicts.is_empty() {
        writeln!(out)?;
    }
    verdicts.iter().try_for_each(|verdict| writeln!(out, "{}", verdict.text))
}
