//! The story of a scenario: one chart that makes its point, and a sentence with the values of the
//! runs. Terminal and page draw the same one.

use super::figures::Figures;
use super::model::{BarSpec, COLUMN, Name, Role, StorySpec, ValueSpec};
use super::source::ScenarioError;
use super::sweep::{Choice, describe};
use super::table::{Bound, Span};
use super::{Experiment, matches, short};
use serde::Serialize;
use std::collections::BTreeMap;

/// Chart of some runs, and what it says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Story {
    /// What was changed, by whom and when.
    pub heading: String,
    /// One sentence with values of the runs that says what the change did.
    pub sentence: String,
    /// What the bars show, without the unit.
    pub what: String,
    /// The unit of the bars; empty for a count.
    pub unit: String,
    /// Bars from top to bottom.
    pub bars: Vec<Bar>,
    /// Reason why a published value is not that of its bar: what follows "because".
    pub note: Option<String>,
    /// Number of the bounds that hold, of all those that the scenario expects.
    pub bounds_held: usize,
    /// Number of the bounds that the scenario expects.
    pub bounds: usize,
}

/// One bar of a story.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// What was run.
    pub label: String,
    /// What the run stands for.
    pub role: Role,
    /// The value of the run.
    pub value: f64,
    /// The published value, in the same unit: the middle of a range, or the bound.
    pub published: Option<f64>,
    /// Which bound the published value is, if it is one.
    pub published_bound: Option<Bound>,
}

impl Bar {
    /// Returns the published value in words, as in "< 8".
    pub fn published_text(&self) -> Option<String> {
        let sign = match self.published_bound {
            Some(Bound::Upper) => "< ",
            Some(Bound::Lower) => "> ",
            None => "",
        };
        self.published.map(|value| format!("{sign}{}", trimmed(value)))
    }

    /// Returns whether the value is the published one within a tenth, or keeps the published bound.
    /// A bar without a published value has nothing to differ from.
    pub fn agrees(&self) -> bool {
        let span = |value| Span::at(value, self.published_bound);
        self.published.is_none_or(|value| span(value).miss(self.value).is_none())
    }
}

impl Story {
    /// Returns whether the values, published ones included, differ by more than a factor of ten, so
    /// that a logarithmic axis shows them better.
    pub fn needs_log(&self) -> bool {
        let (least, most) = self.range();
        least > 0.0 && most > 10.0 * least
    }

    /// Returns the least and the greatest of all values, published ones included.
    pub fn range(&self) -> (f64, f64) {
        let values = self.bars.iter().flat_map(|bar| [Some(bar.value), bar.published]).flatten();
        values
            .fold((f64::INFINITY, 0.0), |(least, most), value| (least.min(value), most.max(value)))
    }
}

/// A published value without digits that say nothing.
fn trimmed(value: f64) -> String {
    if value >= 100.0 {
        return format!("{value:.0}");
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Experiment<'_> {
    /// Returns the story of these runs, or nothing if the scenario has none.
    ///
    /// # Errors
    /// A figure that does not exist, or a run that is missing.
    pub fn story(&self, runs: &[(Choice, Figures)]) -> Result<Option<Story>, ScenarioError> {
        let Some(spec) = &self.scenario.story else { return Ok(None) };
        let mut bars = Vec::new();
        for bar in &spec.bar {
            bars.push(self.bar(spec, bar, runs)?);
        }
        let mut values = BTreeMap::new();
        for (name, value) in &spec.value {
            values.insert(name.get_ref().as_str(), self.value(spec, value, runs)?);
        }
        // The first bar of a role is the one that is meant.
        for bar in bars.iter().rev() {
            values.insert(bar.role.name(), bar.value);
        }
        let said = |text: &Name| self.filled(text, &|name| values.get(name).copied());
        let verdicts = self.judge(runs)?;
        let bounds = verdicts.iter().filter(|verdict| verdict.is_bound);
        Ok(Some(Story {
            heading: spec.heading.clone(),
            sentence: said(&spec.sentence)?,
            what: spec.what.clone(),
            unit: spec.unit.clone(),
            note: spec.note.as_ref().map(said).transpose()?,
            bounds_held: bounds.clone().filter(|verdict| verdict.holds).count(),
            bounds: bounds.count(),
            bars,
        }))
    }

    fn bar(
        &self,
        spec: &StorySpec,
        bar: &BarSpec,
        runs: &[(Choice, Figures)],
    ) -> Result<Bar, ScenarioError> {
        let scale = spec.scale.unwrap_or(1.0);
        let (choice, figures) = self.selected(&spec.figure, [&spec.when, &bar.when], runs)?;
        let published = self.published(spec, choice);
        Ok(Bar {
            label: bar.label.get_ref().clone(),
            role: bar.role,
            value: self.figure(figures, &spec.figure)? * scale,
            published: published.as_ref().map(|(span, own)| span.middle() * scale / own),
            published_bound: published.and_then(|(span, _)| span.bound),
        })
    }

    fn value(
        &self,
        spec: &StorySpec,
        value: &ValueSpec,
        runs: &[(Choice, Figures)],
    ) -> Result<f64, ScenarioError> {
        let (figure, default) = match &value.figure {
            Some(figure) => (figure, 1.0),
            None => (&spec.figure, spec.scale.unwrap_or(1.0)),
        };
        let (_, figures) = self.selected(figure, [&spec.when, &value.when], runs)?;
        Ok(self.figure(figures, figure)? * value.scale.unwrap_or(default))
    }

    fn selected<'r>(
        &self,
        figure: &Name,
        when: [&BTreeMap<Name, toml::Value>; 2],
        runs: &'r [(Choice, Figures)],
    ) -> Result<&'r (Choice, Figures), ScenarioError> {
        let run = runs.iter().find(|(choice, _)| when.iter().all(|own| matches(choice, own)));
        run.ok_or_else(|| {
            let wanted = when.iter().flat_map(|own| own.iter());
            let wanted = wanted.map(|(name, value)| (name.get_ref().clone(), value.clone()));
            let what = format!("there is no run with {}", describe(&wanted.collect()));
            self.source.error(figure, what)
        })
    }

    /// What was published of the figure of a story for a run, and by what factor that is shown.
    fn published(&self, spec: &StorySpec, choice: &Choice) -> Option<(Span, f64)> {
        let (_, column) = choice.iter().find(|(name, _)| name == COLUMN)?;
        let names = self.scenario.published.iter();
        let place = names.map(Name::get_ref).position(|own| column.as_str() == Some(own))?;
        let is_own = |name: &Name| name.get_ref() == spec.figure.get_ref();
        let rows = self.scenario.row.iter().filter(|row| is_own(&row.figure));
        let mut all = rows.filter_map(|row| {
            let published = row.published.iter().find(|own| matches(choice, &own.when))?;
            Some((Span::of(published.values.get(place)?)?, row.scale()))
        });
        let first = all.next()?;
        // A row with the same factor has the published value as it was printed.
        let is_same = |(_, scale): &(Span, f64)| *scale == spec.scale.unwrap_or(1.0);
        if is_same(&first) { Some(first) } else { all.find(is_same).or(Some(first)) }
    }

    /// Checks that the story names runs and values that exist.
    pub(super) fn check_story(&self) -> Result<(), ScenarioError> {
        let Some(spec) = &self.scenario.story else { return Ok(()) };
        if spec.bar.is_empty() {
            return Err(self.source.error(&spec.figure, "a story needs at least one bar"));
        }
        for bar in &spec.bar {
            self.is_one_run(&bar.label, [&spec.when, &bar.when])?;
        }
        let is_role = |name: &str| spec.bar.iter().any(|bar| bar.role.name() == name);
        for (name, value) in &spec.value {
            if is_role(name.get_ref()) {
                let what = "is the role of a bar, whose value has this name: choose another";
                return Err(self.source.error(name, what));
            }
            self.is_one_run(name, [&spec.when, &value.when])?;
        }
        let is_known = |name: &str| {
            let is_value = spec.value.keys().any(|own| own.get_ref() == name);
            (is_value || is_role(name)).then_some(1.0)
        };
        self.filled(&spec.sentence, &is_known)?;
        spec.note.iter().try_for_each(|note| self.filled(note, &is_known).map(drop))
    }

    fn is_one_run(
        &self,
        at: &Name,
        when: [&BTreeMap<Name, toml::Value>; 2],
    ) -> Result<(), ScenarioError> {
        let is_meant = |choice: &&Choice| when.iter().all(|own| matches(choice, own));
        match self.choices.iter().filter(is_meant).count() {
            1 => Ok(()),
            count => {
                let what = format!("stands for one run, but its `when` selects {count}");
                Err(self.source.error(at, what))
            }
        }
    }

    /// A text with values in place of their names.
    fn filled(
        &self,
        text: &Name,
        value: &dyn Fn(&str) -> Option<f64>,
    ) -> Result<String, ScenarioError> {
        let get = |name: &str| {
            value(name).ok_or_else(|| {
                let what = format!("{{{name}}} is neither the role of a bar nor a value");
                self.source.error(text, what)
            })
        };
        let (mut out, mut rest) = (String::new(), text.get_ref().as_str());
        while let Some((before, behind)) = rest.split_once('{') {
            let Some((name, behind)) = behind.split_once('}') else {
                return Err(self.source.error(text, "a { needs a }"));
            };
            let value = match name.split_once('/') {
                Some((one, other)) => get(one)? / get(other)?,
                None => get(name)?,
            };
            out.push_str(before);
            out.push_str(&short(value));
            rest = behind;
        }
        out.push_str(rest);
        Ok(out)
    }
}
