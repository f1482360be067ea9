//! `neap lab explain`: why a flow of a scenario had the rate that it had, in words.

use super::choose::{ArgumentError, Chosen};
use super::files::{ScenarioFile, find};
use super::terminal::{self, wrapped};
use clap::Args as ClapArgs;
use neap_lab::report::{Explanation, Watch};
use neap_lab::scenario::Experiment;
use std::error::Error;
use std::io::Write;

/// Characters of the bar of a gate that held a flow all the time.
const BAR: f64 = 30.0;

/// Say why a flow had the rate that it had: what held it, and its longest pauses
#[derive(ClapArgs, Clone, Debug)]
pub(super) struct Args {
    /// SCENARIO/APPLICATION, such as bufferbloat/upload; a scenario alone explains all of its flows
    #[arg(value_name = "FLOW")]
    flow: String,
    #[command(flatten)]
    chosen: Chosen,
}

/// The scenario that a name begins with, and the application that follows it.
fn split(flow: &str) -> Result<(ScenarioFile, Option<&str>), ArgumentError> {
    // A path may have slashes too, so the whole name is tried first, and is what an error is about.
    let error = match find(flow) {
        Ok(found) => return Ok((found, None)),
        Err(error) => ArgumentError(error),
    };
    let Some((scenario, app)) = flow.rsplit_once('/') else { return Err(error) };
    find(scenario).map(|found| (found, Some(app))).map_err(|_| error)
}

/// Runs the scenario once and explains its flows.
pub(super) fn main(args: &Args, out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
    let (found, app) = split(&args.flow)?;
    let files = |name: &str| found.read(name);
    let experiment = Experiment::parse(&found.name, &found.text, &files)?;
    let apps = &experiment.scenario().app;
    if let Some(app) = app.filter(|app| !apps.contains_key(*app)) {
        let names: Vec<&str> = apps.keys().map(String::as_str).collect();
        let (scenario, names) = (&found.name, names.join(", "));
        let text = format!("{scenario} has no application {app:?}; there are: {names}");
        return Err(ArgumentError(text).into());
    }
    let watch = Watch { record: true, packets: None };
    let run = experiment.run_watched(&args.chosen.choice(), &|_| {}, watch);
    let run = run.map_err(|error| args.chosen.error(error))?;
    let recording = run.recording.ok_or("the run was not recorded")?;
    let flows = recording.flows.iter().filter(|flows| app.is_none_or(|app| app == flows.app));
    for (index, flows) in flows.enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}/{}", found.name, flows.app)?;
        print(out, &Explanation::new(flows))?;
    }
    Ok(true)
}

fn print(out: &mut impl Write, explanation: &Explanation) -> std::io::Result<()> {
    for line in wrapped(&explanation.sentences.join(" "), terminal::width()) {
        writeln!(out, "{line}")?;
    }
    if explanation.shares.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nWhat held it, and for how much of its time:")?;
    for share in &explanation.shares {
        let bar = "#".repeat((share.percent / 100.0 * BAR).round() as usize);
        let (name, words) = (share.gate.name(), share.gate.words());
        writeln!(out, "  {:>5.1} %  {name:<18} {words}", share.percent)?;
        if !bar.is_empty() {
            writeln!(out, "           {bar}")?;
        }
    }
    writeln!(out, "\nIts longest pauses, in which it handed no data down:")?;
    for pause in &explanation.pauses {
        let (from, length) = (pause.from_ms, pause.length_ms);
        writeln!(out, "  {length:>9.3} ms from {from:>10.3} ms on: {}", pause.cause)?;
    }
    if explanation.pauses.is_empty() {
        writeln!(out, "  none")?;
    }
    Ok(())
}
