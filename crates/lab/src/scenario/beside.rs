//! Which runs of a sweep are shown side by side, and what they are called there.

use super::model::{COLUMN, Role};
use super::sweep::{Choice, plain};
use super::{Experiment, matches};
use toml::Value;

/// Runs side by side at the most.
const BESIDE: usize = 6;

/// Place of a run among those of its sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// What distinguishes the run from those beside it; empty if there are no others.
    pub name: String,
    /// Parameters whose values all runs beside it share, and their values.
    pub shared: Vec<(String, String)>,
    /// What the run stands for in the story of the experiment.
    pub role: Option<Role>,
}

impl Experiment<'_> {
    /// Returns the place of each run, in the order of [`choices`](Self::choices). All runs are
    /// side by side if they are few. Of more only those are that differ in one parameter: the
    /// column, or one that an expectation compares, or the one with the most values.
    pub fn places(&self) -> Vec<Place> {
        let choices = self.choices();
        let names: Vec<&str> = match choices.first() {
            Some(first) => first.iter().map(|(name, _)| name.as_str()).collect(),
            None => Vec::new(),
        };
        let beside: Vec<&str> = if choices.len() <= BESIDE {
            names.clone()
        } else {
            self.compared(&names).into_iter().collect()
        };
        let place = |choice: &Choice| {
            let is_beside = |name: &str| beside.contains(&name);
            let label = |(name, value): &(String, Value)| self.label(name, value);
            let own = choice.iter().filter(|(name, _)| is_beside(name)).map(label);
            let shared = choice.iter().filter(|(name, _)| !is_beside(name));
            Place {
                name: own.collect::<Vec<_>>().join(", "),
                shared: shared.map(|one| (one.0.clone(), self.label(&one.0, &one.1))).collect(),
                role: self.role(choice),
            }
        };
        choices.iter().map(place).collect()
    }

    /// Returns the index of the choice that the story begins with; none without a story.
    pub fn told(&self) -> Option<usize> {
        let story = self.scenario().story.as_ref()?;
        let first = story.bar.first()?;
        let is_told =
            |choice: &Choice| matches(choice, &story.when) && matches(choice, &first.when);
        self.choices().iter().position(is_told)
    }

    /// What runs like this one stand for.
    fn role(&self, choice: &Choice) -> Option<Role> {
        let story = self.scenario().story.as_ref()?;
        let bar = story.bar.iter().find(|bar| matches(choice, &bar.when))?;
        Some(bar.role)
    }

    /// The parameter whose values are compared.
    fn compared<'a>(&self, names: &[&'a str]) -> Option<&'a str> {
        let expects = self.scenario().expect.iter().map(toml::Spanned::get_ref);
        let said =
            expects.flat_map(|expect| expect.relative_to.keys().chain(expect.more_than.keys()));
        let mut said = said.map(|name| name.get_ref().as_str());
        let find = |wanted: &str| names.iter().find(|name| **name == wanted).copied();
        find(COLUMN)
            .or_else(|| said.find_map(find))
            .or_else(|| names.iter().rev().max_by_key(|name| self.values(name).len()).copied())
    }

    /// The values that a parameter takes, each once.
    fn values(&self, name: &str) -> Vec<&Value> {
        let mut values: Vec<&Value> = Vec::new();
        let all = self.choices().iter().flatten().filter(|(own, _)| own == name);
        for (_, value) in all {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    }

    /// A value in few words, which no other value of the parameter has.
    fn label(&self, name: &str, value: &Value) -> String {
        let said = short(name, value);
        let others = self.values(name).into_iter().filter(|other| *other != value);
        let is_unique = others.into_iter().all(|other| short(name, other) != said);
        if is_unique { said } else { plain(value) }
    }
}

fn short(name: &str, value: &Value) -> String {
    let last = name.rsplit('.').next().unwrap_or_default();
    match value {
        Value::Boolean(true) => last.to_owned(),
        Value::Boolean(false) => format!("no {last}"),
        Value::Table(table) if table.is_empty() => "plain".to_owned(),
        Value::Table(table) => table.keys().cloned().collect::<Vec<_>>().join(", "),
        Value::Integer(_) | Value::Float(_) if name != COLUMN => format!("{last} {value}"),
        other => plain(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::{FILES, SCENARIOS};

    fn places(name: &str) -> Vec<Place> {
        let files = |name: &str| {
            let file = FILES.iter().find(|(own, _)| *own == name);
            file.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
        };
        let builtin = SCENARIOS.iter().find(|builtin| builtin.name == name).expect("there is one");
        Experiment::parse(name, builtin.text, &files).expect("it is sound").places()
    }

    #[test]
    fn every_run_has_a_place_of_its_own() {
        for builtin in SCENARIOS {
            let places = places(builtin.name);
            for (index, place) in places.iter().enumerate() {
                assert!(!places[..index].contains(place), "{}: {place:?} twice", builtin.name);
                let beside = places.iter().filter(|other| other.shared == place.shared);
                assert!(beside.count() <= 2 * BESIDE, "{}: {place:?}", builtin.name);
            }
        }
    }

    #[test]
    fn runs_that_are_compared_are_side_by_side() {
        let names: Vec<String> =
            places("bufferbloat").into_iter().map(|place| place.name).collect();
        assert_eq!(names, ["plain", "codel"]);
        let first = &places("small-queues")[0];
        let shared = first.shared.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        assert_eq!(first.name, "off");
        assert_eq!(
            shared.collect::<Vec<_>>(),
            [("host.a.nic.gso", "gso"), ("link.wire.rate", "100mbit")]
        );
    }
}
