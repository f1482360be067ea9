//! All combinations of the values that a scenario's parameters take.

use super::Extensions;
use super::model::{COLUMN, Column, Scenario};
use super::source::{Files, ScenarioError, SourceFile};
use core::fmt::Write;
use std::collections::BTreeSet;
use toml::{Table, Value};

/// Combination of a sweep: parameters and values, in the order of the parameters' names.
pub type Choice = Vec<(String, Value)>;

/// Returns a combination as text.
pub fn describe(choice: &Choice) -> String {
    let mut text = String::new();
    for (index, (name, value)) in choice.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        write!(text, "{comma}{name}={}", plain(value)).expect("a string takes all");
    }
    text
}

/// Returns a value without quotation marks.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Sets the parameter at `path`, or says why there cannot be one.
fn set(table: &mut Table, path: &str, value: Value) -> Result<(), String> {
    // A sysctl's own name has dots: it is the rest of the path.
    let (head, rest) = match path.split_once('.') {
        Some((head, rest)) if head != "sysctl" => (head, Some(rest)),
        Some((head, rest)) => {
            let inner = table.entry(head).or_insert_with(|| Table::new().into());
            let inner = inner.as_table_mut().ok_or_else(|| format!("{head} is no table"))?;
            inner.insert(rest.to_owned(), value);
            return Ok(());
        }
        None => (path, None),
    };
    let Some(rest) = rest else {
        table.insert(head.to_owned(), value);
        return Ok(());
    };
    let mut inner = table.entry(head).or_insert_with(|| Table::new().into());
    let mut rest = rest;
    if let Value::Array(all) = inner {
        // The path counts the entries of an array, as in `event.0.at`.
        let (index, behind) = rest.split_once('.').ok_or_else(|| format!("{head} has several"))?;
        let one = index.parse().ok().and_then(|index: usize| all.get_mut(index));
        inner = one.ok_or_else(|| format!("{head} has no number {index}"))?;
        rest = behind;
    }
    let inner = inner.as_table_mut().ok_or_else(|| format!("{head} is no table"))?;
    set(inner, rest, value)
}

/// The parameters that the column of this name sets, with their values. A name such as 2012 may be
/// given as a number.
///
/// # Errors
/// There is no such column; the text says which there are.
fn column(table: &Table, name: &Value) -> Result<Vec<(String, Value)>, String> {
    let columns = table.get(COLUMN).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let name = plain(name);
    let is_own = |one: &&Value| one.get("name").is_some_and(|own| plain(own) == name);
    let Some(own) = columns.iter().find(is_own) else {
        let names: Vec<_> = columns.iter().filter_map(|one| one.get("name")).map(plain).collect();
        return Err(match names.is_empty() {
            true => format!("there is no column {name}, nor any other"),
            false => format!("there is no column {name}; there are {}", names.join(", ")),
        });
    };
    let values = own.get("set").and_then(Value::as_table);
    Ok(values.into_iter().flatten().map(|(path, value)| (path.clone(), value.clone())).collect())
}

/// Keys that change no run. What is said of runs is said of all of them, as the file has it.
const SAID: [&str; 8] =
    ["about", COLUMN, "expect", "look_at", "published", "row", "story", "sweep"];

/// All parameters: columns first, and then those of the sweep. Each has its values, and the place
/// of each value in the file.
fn parameters(scenario: &Scenario) -> Vec<(String, Vec<(usize, Value)>)> {
    let column = |Column { name, .. }: &Column| (name.span().start, name.get_ref().as_str().into());
    let columns: Vec<(usize, Value)> = scenario.column.iter().map(column).collect();
    let swept = scenario.sweep.iter().map(|(name, values)| {
        let at = name.span().start;
        (name.get_ref().clone(), values.iter().map(|value| (at, value.clone())).collect())
    });
    let columns = (!columns.is_empty()).then(|| (COLUMN.to_owned(), columns));
    columns.into_iter().chain(swept).collect()
}

impl SourceFile {
    /// The scenario with other values of some parameters. A value of the sweep goes before one that
    /// the column sets. An error in what results is one of the parameter at `blame`.
    fn with(&self, choice: &Choice, blame: usize) -> Result<(Self, Scenario), ScenarioError> {
        let error = |what: String| self.error_at(blame, what);
        let mut table: Table = self.text.parse().map_err(|e| self.parse_error(&e))?;
        let (columns, swept): (Vec<_>, Vec<_>) =
            choice.iter().cloned().partition(|(path, _)| path == COLUMN);
        let mut values = Vec::new();
        for (_, name) in &columns {
            values.extend(column(&table, name).map_err(error)?);
        }
        values.extend(swept);
        for (path, value) in values {
            if SAID.contains(&path.split('.').next().unwrap_or_default()) {
                return Err(error(format!("{path}: changes nothing in a run")));
            }
            set(&mut table, &path, value).map_err(|e| error(format!("{path}: {e}")))?;
        }
        let text = table.to_string();
        let changed = Self { file: self.file.clone(), text };
        let scenario = toml::from_str(&changed.text)
            .map_err(|e| error(format!("{}: {}", describe(choice), e.message())))?;
        Ok((changed, scenario))
    }

    /// Every combination of the sweep, checked one by one; a single empty one without a sweep.
    ///
    /// # Errors
    /// A value that its parameter cannot take or has twice, named with the line of the sweep.
    pub(super) fn choices(
        &self,
        scenario: &Scenario,
        files: &Files<'_>,
        extensions: &Extensions,
    ) -> Result<Vec<Choice>, ScenarioError> {
        let mut choices = vec![Choice::new()];
        if let Some((name, _)) = scenario.sweep.iter().find(|(_, values)| values.is_empty()) {
            return Err(self.error(name, "a sweep needs at least one value"));
        }
        for (name, values) in parameters(scenario) {
            let mut seen = BTreeSet::new();
            for (offset, value) in &values {
                let (single, offset) = (vec![(name.clone(), value.clone())], *offset);
                // Runs are told apart by the words of their values.
                if !seen.insert(plain(value)) {
                    let what = format!("{}: is there twice", describe(&single));
                    return Err(self.error_at(offset, what));
                }
                let (changed, scenario) = self.with(&single, offset)?;
                changed.build(&scenario, files, extensions).map_err(|e| {
                    let what = format!("{}: {}: {}", describe(&single), e.key, e.what);
                    self.error_at(offset, what)
                })?;
            }
            let longer = |choice: Choice| {
                let name = &name;
                values.iter().map(move |(_, value)| {
                    let mut choice = choice.clone();
                    choice.push((name.clone(), value.clone()));
                    choice.sort_by(|a, b| a.0.cmp(&b.0));
                    choice
                })
            };
            choices = choices.into_iter().flat_map(longer).collect();
        }
        Ok(choices)
    }

    /// The scenario of one combination of the sweep that begins at `blame`.
    pub(super) fn chosen(
        &self,
        choice: &Choice,
        blame: usize,
    ) -> Result<(Self, Scenario), ScenarioError> {
        if choice.is_empty() {
            let scenario = toml::from_str(&self.text).map_err(|e| self.parse_error(&e))?;
            return Ok((self.clone(), scenario));
        }
        self.with(choice, blame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        about = "a transfer"
        duration = "1s"
        [host.a]
        [host.b]
        [link.wire]
        ends = ["a", "b"]
        [app.file]
        kind = "transfer"
        from = "a"
        to = "b"
        bytes = "100k"
        [[column]]
        name = "2012"
        set = { "duration" = "7s" }
        [[column]]
        name = "neap"
        set = {}
    "#;

    #[test]
    fn a_column_has_its_name_as_a_text_or_as_a_number_and_must_be_there() {
        let source = SourceFile { file: "test.toml".into(), text: TEXT.into() };
        let with = |name: Value| source.with(&vec![(COLUMN.to_owned(), name)], 0);
        for name in [Value::from(2012), Value::from("2012")] {
            let (changed, _) = with(name).expect("a column");
            assert!(changed.text.contains("duration = \"7s\""), "{}", changed.text);
        }
        let error = with(Value::from("Neap")).expect_err("no column").to_string();
        assert!(error.contains("there is no column Neap; there are 2012, neap"), "{error}");
    }
}
