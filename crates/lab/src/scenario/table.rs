//! What a scenario's rows and columns show: published figures beside those of the runs.

use super::figures::Figures;
use super::place::ScenarioError;
use super::sweep::{COLUMN, Choice, plain};
use super::{Experiment, describe, matches};
use serde::Serialize;

/// One table: all columns with the same values of the rest of the sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// Those values.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// What is shown.
    pub rows: Vec<Row>,
}

/// One figure in all columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// In words, with its unit.
    pub what: String,
    /// Published before and after the change; empty if it was not.
    pub published: [String; 2],
    /// By column.
    pub values: Vec<f64>,
    /// Digits behind the point that mean something.
    pub digits: usize,
}

/// A choice without its column, and the column.
fn split(choice: &Choice) -> (Choice, String) {
    let is_column = |name: &String| name == COLUMN;
    let column = choice.iter().find(|(name, _)| is_column(name));
    let rest = choice.iter().filter(|(name, _)| !is_column(name)).cloned().collect();
    (rest, column.map_or(String::new(), |(_, value)| plain(value)))
}

impl Experiment<'_> {
    /// The tables of these runs, in the order of the sweep.
    ///
    /// # Errors
    /// A row whose figure does not exist.
    pub fn tables(&self, runs: &[(Choice, Figures)]) -> Result<Vec<Table>, ScenarioError> {
        let mut groups: Vec<(Choice, Vec<(String, &Figures)>)> = Vec::new();
        for (choice, figures) in runs {
            let (rest, column) = split(choice);
            match groups.iter_mut().find(|(other, _)| *other == rest) {
                Some((_, columns)) => columns.push((column, figures)),
                None => groups.push((rest, vec![(column, figures)])),
            }
        }
        let table = |(choice, columns): &(Choice, Vec<(String, &Figures)>)| {
            let rows = self.scenario.row.iter().map(|row| {
                let published = row.published.iter().find(|own| matches(choice, &own.when));
                let published = published.map(|own| [own.before.clone(), own.after.clone()]);
                let scale = row.scale.unwrap_or(1.0);
                let values = columns
                    .iter()
                    .map(|(_, figures)| Ok(self.figure(figures, &row.figure)? * scale));
                Ok(Row {
                    what: row.what.clone(),
                    published: published.unwrap_or_default(),
                    values: values.collect::<Result<_, ScenarioError>>()?,
                    digits: row.digits,
                })
            });
            Ok(Table {
                title: describe(choice),
                columns: columns.iter().map(|(name, _)| name.clone()).collect(),
                rows: rows.collect::<Result<_, ScenarioError>>()?,
            })
        };
        groups.iter().map(table).collect()
    }
}
