//! Scenario files: worlds, what runs in them, what is measured and what must hold, in TOML.
//!
//! ```
//! use neap_lab::scenario::Experiment;
//!
//! let text = r#"
//! about = "a transfer over a slow link"
//! duration = "1s"
//! [host.a]
//! [host.b]
//! [link.wire]
//! ends = ["a", "b"]
//! rate = "10mbit"
//! delay = "5ms"
//! [app.file]
//! kind = "transfer"
//! from = "a"
//! to = "b"
//! bytes = "100k"
//! [[expect]]
//! figure = "app.file.transfer_ms"
//! at_most = 200
//! "#;
//! let experiment = Experiment::parse("doc.toml", text, &|_| Err("no files".into()))?;
//! let run = experiment.run(&vec![], &|_| {})?;
//! let runs = [(vec![], run.figures)];
//! assert!(experiment.judge(&runs)?.iter().all(|verdict| verdict.holds));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod beside;
mod bounds;
mod build;
mod figures;
mod model;
pub mod netem;
mod run;
mod source;
mod story;
mod sweep;
mod table;
mod units;
mod watch;

pub use beside::Place;
pub use figures::{Figures, Series};
use model::{Expectation, Name};
pub use model::{Oracles, Role, Scenario};
pub use run::{Run, RunError};
pub use source::{Files, ScenarioError, SourceFile};
pub use story::{Bar, Story};
pub use sweep::{Choice, describe, plain};
pub use table::{Bound, Judged, Table, TableGroup, TableRow, brief};
pub use watch::{EventCounts, Outcome, Peaks};

use crate::link::RelayConfig;
use crate::report::Watch;
use crate::rng::mix;
use build::ScenarioWorld;
use neap_stack::qdisc::kinds::QdiscKinds;
use neap_tcp::congestion::Controllers;
use neap_tcp::time::Nanos;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use units::{Speed, Time};
use watch::WatchedRun;

/// A number that differs for different texts.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)))
}

/// Scenario file that was parsed and checked.
pub struct Experiment<'a> {
    source: SourceFile,
    scenario: Scenario,
    choices: Vec<Choice>,
    files: &'a Files<'a>,
    extensions: Extensions,
    fingerprint: u64,
}

/// What a user brings that scenarios may name.
#[derive(Clone, Debug, Default)]
pub struct Extensions {
    /// Congestion controllers, for `net.ipv4.tcp_congestion_control` of all hosts.
    pub controllers: Controllers,
    /// Queueing disciplines, for `qdisc` of all hosts.
    pub qdiscs: QdiscKinds,
}

/// Verdict of an expectation about a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Text of the expectation with its value.
    pub text: String,
    /// Whether the expectation holds.
    pub holds: bool,
    /// Whether the expectation has a bound; without one it only tells a value.
    pub is_bound: bool,
}

impl<'a> Experiment<'a> {
    /// Parses and checks a scenario, with all values of its sweep. `files` gives the text of the
    /// files that it names.
    ///
    /// # Errors
    /// The first error, with its place.
    pub fn parse(file: &str, text: &str, files: &'a Files<'a>) -> Result<Self, ScenarioError> {
        Self::parse_with(file, text, files, Extensions::default())
    }

    /// As [`parse`](Self::parse), for a scenario that may name congestion controllers and qdiscs of
    /// a user's own.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_with(
        file: &str,
        text: &str,
        files: &'a Files<'a>,
        extensions: Extensions,
    ) -> Result<Self, ScenarioError> {
        let source = SourceFile { file: file.to_owned(), text: text.to_owned() };
        let scenario: Scenario = toml::from_str(text).map_err(|e| source.parse_error(&e))?;
        let named = Mutex::new(BTreeMap::new());
        let reading = |name: &str| {
            let text = files(name)?;
            let mut named = named.lock().unwrap_or_else(PoisonError::into_inner);
            named.insert(name.to_owned(), hash(&text));
            Ok(text)
        };
        source.build(&scenario, &reading, &extensions)?;
        let choices = source.choices(&scenario, &reading, &extensions)?;
        let named = named.into_inner().unwrap_or_else(PoisonError::into_inner);
        let fingerprint = named.values().fold(hash(text), |all, &file| mix(all ^ file));
        let experiment = Self { source, scenario, choices, files, extensions, fingerprint };
        experiment.check_story()?;
        experiment.check_selections()?;
        Ok(experiment)
    }

    /// Checks that there are runs for each expectation and each published measurement.
    fn check_selections(&self) -> Result<(), ScenarioError> {
        let what = "no run has these values: write them as in the sweep";
        for expect in self.scenario.expect.iter().map(toml::Spanned::get_ref) {
            if !self.choices.iter().any(|choice| is_about(expect, choice)) {
                return Err(self.source.error(place(&expect.when, &expect.figure), what));
            }
        }
        for row in &self.scenario.row {
            for published in &row.published {
                if !self.choices.iter().any(|choice| matches(choice, &published.when)) {
                    return Err(self.source.error(place(&published.when, &row.figure), what));
                }
            }
        }
        Ok(())
    }

    /// Returns the contents of the file.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Returns the scenario of one combination.
    ///
    /// # Errors
    /// A combination that the scenario does not take.
    pub fn scenario_of(&self, choice: &Choice) -> Result<Scenario, ScenarioError> {
        self.chosen(choice).map(|(_, scenario)| scenario)
    }

    /// Returns all combinations of the sweep: one empty combination if there is no sweep.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Returns a text that distinguishes this scenario, with its seed and the contents of the
    /// files that it names, from others.
    pub fn fingerprint(&self) -> String {
        format!("{:016x}", self.fingerprint)
    }

    /// Returns a link of the scenario for two devices of the real world. `name` may be left out if
    /// there is only one. Hosts, applications and the values of a sweep do not count.
    ///
    /// # Errors
    /// There is no such link, or several if none is named.
    pub fn relay(&self, name: Option<&str>) -> Result<RelayConfig, ScenarioError> {
        self.source.relay(&self.scenario, name, self.files)
    }

    /// Runs one combination. `progress` is told the share that is done.
    ///
    /// # Errors
    /// [`RunError`] says why there are no figures.
    pub fn run(&self, choice: &Choice, progress: &dyn Fn(f64)) -> Result<Run, RunError> {
        self.run_watched(choice, progress, Watch::default())
    }

    /// Runs one combination and records what `watch` asks for. Figures and hash are those of
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_watched(
        &self,
        choice: &Choice,
        progress: &dyn Fn(f64),
        watch: Watch<'_>,
    ) -> Result<Run, RunError> {
        let (scenario, built) = self.built(choice)?;
        if scenario.oracles.is_some() {
            self.check(choice, u64::MAX).map_err(RunError::Broken)?;
        }
        built.run(&scenario, progress, watch)
    }

    /// The scenario of one combination and its world. The text of a combination is not that of the
    /// file, so an error in it is one of the sweep.
    fn built(&self, choice: &Choice) -> Result<(Scenario, ScenarioWorld), ScenarioError> {
        let (source, scenario) = self.chosen(choice)?;
        let built = source.build(&scenario, self.files, &self.extensions).map_err(|error| {
            if choice.is_empty() {
                return error;
            }
            let what = format!("{}: {}: {}", describe(choice), error.key, error.what);
            self.source.error_at(self.sweep_at(), what)
        })?;
        Ok((scenario, built))
    }

    fn chosen(&self, choice: &Choice) -> Result<(SourceFile, Scenario), ScenarioError> {
        self.source.chosen(choice, self.sweep_at())
    }

    /// Where the first parameter of the sweep is in the file, or the first column.
    fn sweep_at(&self) -> usize {
        let swept = self.scenario.sweep.keys();
        let names = swept.chain(self.scenario.column.iter().map(|column| &column.name));
        names.map(|name| name.span().start).next().unwrap_or(0)
    }

    /// Returns an estimate of the work of one combination: the bits that its links can carry in its
    /// time. Only the quotient of two of them means something.
    ///
    /// # Errors
    /// A combination whose values contradict each other.
    pub fn work(&self, choice: &Choice) -> Result<f64, ScenarioError> {
        let (_, scenario) = self.chosen(choice)?;
        let warm_up = scenario.warm_up.map_or(Nanos::ZERO, |Time(time)| time);
        let seconds = (warm_up + scenario.duration.0).0 as f64 / 1e9;
        let rate = |link: &toml::Spanned<model::LinkSpec>| {
            link.get_ref().direction(0).rate.map_or(0.0, |Speed(rate)| 8.0 * rate.0 as f64)
        };
        // A slow link has timers and applications to serve too.
        let rates: f64 = scenario.link.values().map(rate).sum();
        Ok(seconds * rates.max(1e7))
    }

    /// Runs one combination with every oracle on, and beyond its end until nothing is left to
    /// happen, but no more than so many turns of hosts.
    pub(crate) fn check(&self, choice: &Choice, most: u64) -> Result<Outcome, String> {
        let (scenario, built) = self.built(choice).map_err(|e| format!("file: {e}"))?;
        let warm_up = scenario.warm_up.map_or(Nanos::ZERO, |Time(time)| time);
        let end = built.start + warm_up + scenario.duration.0;
        let oracles = scenario.oracles.unwrap_or(Oracles::Survival);
        WatchedRun::new(built, oracles, end).run(most, run::apply)
    }

    /// Returns the verdicts of the expectations about these runs.
    ///
    /// # Errors
    /// A figure that does not exist, or a combination that was not run.
    pub fn judge(&self, runs: &[(Choice, Figures)]) -> Result<Vec<Verdict>, ScenarioError> {
        let mut verdicts = Vec::new();
        for expect in &self.scenario.expect {
            let expect = expect.get_ref();
            let all = runs
                .iter()
                .filter(|(choice, _)| is_about(expect, choice))
                .map(|(choice, figures)| self.verdict(expect, choice, figures, runs));
            let mut all = all.collect::<Result<Vec<_>, _>>()?;
            if expect.says.is_some() {
                // A sentence about several runs is about the one that is nearest to the bound, or
                // beyond it.
                let is_floor = expect.at_least.is_some() && expect.at_most.is_none();
                all.sort_by(|(a, one), (b, other)| {
                    let broken_last = other.holds.cmp(&one.holds);
                    let order = if is_floor { broken_last.reverse() } else { broken_last };
                    order.then(a.total_cmp(b))
                });
                all = if is_floor {
                    all.into_iter().take(1).collect()
                } else {
                    all.split_off(all.len().saturating_sub(1))
                };
            }
            verdicts.extend(all.into_iter().map(|(_, verdict)| verdict));
        }
        Ok(verdicts)
    }

    /// The value, and what it says.
    fn verdict(
        &self,
        expect: &Expectation,
        choice: &Choice,
        figures: &Figures,
        runs: &[(Choice, Figures)],
    ) -> Result<(f64, Verdict), ScenarioError> {
        let mut value = self.figure(figures, &expect.figure)?;
        let mut text = expect.figure.get_ref().clone();
        if !choice.is_empty() {
            text = format!("{text} ({})", describe(choice));
        }
        if !expect.relative_to.is_empty() {
            let (base, other) = self.other(expect, choice, &expect.relative_to, runs)?;
            value /= base;
            text = format!("{text} over that with {other}");
        }
        if !expect.more_than.is_empty() {
            let (base, other) = self.other(expect, choice, &expect.more_than, runs)?;
            value -= base;
            text = format!("{text} less that with {other}");
        }
        // A quotient of nothing is infinite, and says nothing.
        let holds = expect.at_least.is_none_or(|least| value.is_finite() && value >= least)
            && expect.at_most.is_none_or(|most| value <= most);
        let is_bound = expect.at_least.is_some() || expect.at_most.is_some();
        let bounds = match (expect.at_least, expect.at_most) {
            (Some(least), Some(most)) => format!("from {least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            (None, most) => format!("at most {}", most.unwrap_or_default()),
        };
        let word = if holds { "holds" } else { "DOES NOT HOLD" };
        let text = match &expect.says {
            None => format!("{text}: {value:.4}, {bounds}: {word}"),
            Some(says) => {
                let said = says.replace("{}", &short(value * expect.scale.unwrap_or(1.0)));
                if is_bound { format!("{said}: {word}") } else { said }
            }
        };
        Ok((value, Verdict { text, holds, is_bound }))
    }

    /// The figure of the run with other values, and their description.
    fn other(
        &self,
        expect: &Expectation,
        choice: &Choice,
        values: &BTreeMap<Name, toml::Value>,
        runs: &[(Choice, Figures)],
    ) -> Result<(f64, String), ScenarioError> {
        let other = replaced(choice, values);
        let said = describe(&other);
        match runs.iter().find(|(choice, _)| *choice == other) {
            Some((_, figures)) => Ok((self.figure(figures, &expect.figure)?, said)),
            None => {
                let what = format!("there is no run with {said}");
                Err(self.source.error(&expect.figure, what))
            }
        }
    }

    fn figure(&self, figures: &Figures, name: &Name) -> Result<f64, ScenarioError> {
        figures.get(name.get_ref()).copied().ok_or_else(|| {
            let last = name.get_ref().rsplit('.').next().unwrap_or_default();
            let near = figures.keys().find(|key| key.ends_with(last));
            let hint = near.map_or(String::new(), |near| format!("; there is {near}"));
            self.source.error(name, format_args!("there is no such figure{hint}"))
        })
    }
}

/// Returns a number as people say it: three digits that count.
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        0.0 | 100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// Whether an expectation is about the run of this choice. A run that others are compared with is
/// not compared with itself.
fn is_about(expect: &Expectation, choice: &Choice) -> bool {
    let is_base = |values: &BTreeMap<Name, toml::Value>| {
        !values.is_empty() && replaced(choice, values) == *choice
    };
    matches(choice, &expect.when) && !is_base(&expect.relative_to) && !is_base(&expect.more_than)
}

/// The place of a selection in the file: its first name, or else the figure's.
fn place<'n>(when: &'n BTreeMap<Name, toml::Value>, figure: &'n Name) -> &'n Name {
    when.keys().next().unwrap_or(figure)
}

/// Whether a choice has these values.
fn matches(choice: &Choice, when: &BTreeMap<Name, toml::Value>) -> bool {
    when.iter().all(|(name, value)| {
        choice.iter().any(|(own, chosen)| own == name.get_ref() && chosen == value)
    })
}

/// The choice with these values in place of its own.
fn replaced(choice: &Choice, values: &BTreeMap<Name, toml::Value>) -> Choice {
    let other = |name: &String| values.iter().find(|(key, _)| key.get_ref() == name);
    let replace = |(name, own): &(String, toml::Value)| {
        (name.clone(), other(name).map_or_else(|| own.clone(), |(_, value)| value.clone()))
    };
    choice.iter().map(replace).collect()
}
