//! Tables of a scenario: published figures beside those of the runs, and where they differ.

use super::figures::Figures;
use super::model::{self, COLUMN};
use super::source::ScenarioError;
use super::sweep::{Choice, plain};
use super::{Experiment, matches};
use serde::Serialize;

/// What a published figure and one of a run may differ by, as a part, and still be called the same.
const SAME: f64 = 0.1;

/// Table of all runs of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// Columns with published measurements.
    pub published: Vec<String>,
    /// All columns.
    pub columns: Vec<String>,
    /// Groups of rows, one per figure that is shown.
    pub groups: Vec<TableGroup>,
    /// Verdicts about all published figures, in the order of the rows.
    pub judged: Vec<Judged>,
}

/// Verdict about the published figures of one row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// Text that names the figures of the runs and the published ones, and says why they differ if
    /// they do.
    pub text: String,
    /// Whether the runs have the published figures within a tenth, or keep the published bound.
    pub agrees: bool,
    /// Number of published figures in the row.
    pub figures: usize,
    /// Number of those from which the runs differ.
    pub differing: usize,
}

/// Rows of one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableGroup {
    /// Description of the figure in words, with its unit.
    pub what: String,
    /// Number of meaningful digits behind the point.
    pub digits: usize,
    /// Rows, one per combination of the sweep.
    pub rows: Vec<TableRow>,
}

/// Values of one figure in all columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableRow {
    /// Combination of the sweep; empty without a sweep.
    pub case: String,
    /// Published values by column; empty if nothing was published.
    pub published: Vec<String>,
    /// Values of the runs by column.
    pub values: Vec<f64>,
}

/// Returns the values of a combination in the words of a table.
pub fn brief(choice: &Choice) -> String {
    let words = choice.iter().map(|(name, value)| match value {
        toml::Value::Boolean(value) => {
            let name = name.rsplit('.').next().unwrap_or_default();
            format!("{}{name}", if *value { "" } else { "no " })
        }
        value => plain(value),
    });
    words.collect::<Vec<_>>().join(", ")
}

impl Experiment<'_> {
    /// Returns the table of these runs, in the order of the sweep.
    ///
    /// # Errors
    /// A row whose figure does not exist.
    pub fn table(&self, runs: &[(Choice, Figures)]) -> Result<Table, ScenarioError> {
        let mut cases: Vec<(Choice, Vec<&Figures>)> = Vec::new();
        for (choice, figures) in runs {
            let rest = choice.iter().filter(|(name, _)| name != COLUMN).cloned().collect();
            match cases.iter_mut().find(|(other, _)| *other == rest) {
                Some((_, columns)) => columns.push(figures),
                None => cases.push((rest, vec![figures])),
            }
        }
        let mut table = Table {
            published: self.scenario.published.iter().map(|name| name.get_ref().clone()).collect(),
            columns: self.scenario.column.iter().map(|one| one.name.get_ref().clone()).collect(),
            groups: Vec::new(),
            judged: Vec::new(),
        };
        for row in &self.scenario.row {
            let mut group =
                TableGroup { what: row.what.clone(), digits: row.digits, rows: Vec::new() };
            for (choice, columns) in &cases {
                let value =
                    |figures: &&Figures| Ok(self.figure(figures, &row.figure)? * row.scale());
                let values = columns.iter().map(value).collect::<Result<Vec<f64>, ScenarioError>>();
                let published = row.published.iter().find(|own| matches(choice, &own.when));
                let mut shown = TableRow {
                    case: brief(choice),
                    published: vec![String::new(); table.published.len()],
                    values: values?,
                };
                if let Some(published) = published {
                    shown.published.clone_from(&published.values);
                    table.judged.extend(table.verdict(row, published, &shown));
                }
                group.rows.push(shown);
            }
            table.groups.push(group);
        }
        Ok(table)
    }
}

impl Table {
    /// Returns how many figures were published, and from how many of them the runs differ.
    pub fn published_figures(&self) -> (usize, usize) {
        let add = |(all, off), one: &Judged| (all + one.figures, off + one.differing);
        self.judged.iter().fold((0, 0), add)
    }

    /// In words, whether the figures of a row are those that were published.
    fn verdict(
        &self,
        row: &model::RowSpec,
        published: &model::Published,
        shown: &TableRow,
    ) -> Option<Judged> {
        let (mut figures, mut differing) = (Vec::new(), 0);
        for (column, said) in self.published.iter().zip(&published.values) {
            let own = self.columns.iter().position(|own| own == column);
            let Some(&value) = own.and_then(|own| shown.values.get(own)) else { continue };
            let Some(span) = Span::of(said) else { continue };
            differing += usize::from(span.miss(value).is_some());
            let percent = span.off(value) * 100.0;
            let apart =
                if percent.abs() < 0.5 { String::new() } else { format!(" ({percent:+.0} %)") };
            let digits = row.digits;
            figures.push(format!("\"{column}\" {value:.digits$}, published {said}{apart}"));
        }
        if figures.is_empty() {
            return None;
        }
        let case =
            if shown.case.is_empty() { String::new() } else { format!(" at {}", shown.case) };
        let why = published.why.as_deref().unwrap_or("of a reason that is not known");
        let agrees = differing == 0;
        let verdict = if agrees { "agrees".to_owned() } else { format!("differs, because {why}.") };
        let text = format!("{}{case}: {}: {verdict}", row.what.trim(), figures.join("; "));
        Some(Judged { text, agrees, figures: figures.len(), differing })
    }
}

/// Direction of a published bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// The value is below it ("< 8").
    Upper,
    /// The value is above it ("> 4").
    Lower,
}

/// What a published figure says: a value, a range ("5849-6635") or a bound ("< 8", "> 0.1").
pub(super) struct Span {
    least: f64,
    most: f64,
    pub(super) bound: Option<Bound>,
}

impl Span {
    pub(super) fn of(said: &str) -> Option<Self> {
        if let Some(most) = said.strip_prefix("< ") {
            return Some(Self::at(most.parse().ok()?, Some(Bound::Upper)));
        }
        if let Some(least) = said.strip_prefix("> ") {
            return Some(Self::at(least.parse().ok()?, Some(Bound::Lower)));
        }
        let (least, most) = said.split_once('-').unwrap_or((said, said));
        Some(Self { least: least.parse().ok()?, most: most.parse().ok()?, bound: None })
    }

    /// A value, or a bound there.
    pub(super) fn at(value: f64, bound: Option<Bound>) -> Self {
        let (least, most) = match bound {
            None => (value, value),
            Some(Bound::Upper) => (0.0, value),
            Some(Bound::Lower) => (value, f64::INFINITY),
        };
        Self { least, most, bound }
    }

    /// By what part of the published figure a value is off, if that is more than is called the
    /// same.
    pub(super) fn miss(&self, value: f64) -> Option<f64> {
        let tolerance = if self.bound.is_some() { 0.0 } else { SAME };
        let off = self.off(value);
        (off.abs() > tolerance).then_some(off)
    }

    /// By what part of the published figure a value is off.
    fn off(&self, value: f64) -> f64 {
        let nearest = value.clamp(self.least, self.most);
        if value == nearest { 0.0 } else { (value - nearest) / nearest }
    }

    /// The middle of a range, or the bound.
    pub(super) fn middle(&self) -> f64 {
        match self.bound {
            Some(Bound::Upper) => self.most,
            Some(Bound::Lower) => self.least,
            None => f64::midpoint(self.least, self.most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_figure_is_a_value_a_range_or_a_bound() {
        let miss = |said: &str, value: f64| Span::of(said).expect("a figure").miss(value);
        assert_eq!(miss("1397", 1400.0), None);
        assert_eq!(miss("600", 300.0), Some(-0.5));
        assert_eq!(miss("5849-6635", 6000.0), None);
        assert_eq!(miss("100-200", 300.0), Some(0.5));
        assert_eq!(miss("< 8", 7.99), None);
        assert_eq!(miss("< 8", 10.0), Some(0.25));
        assert_eq!(miss("< 8", 0.0), None);
        assert_eq!(miss("> 4", 5.0), None);
        assert_eq!(miss("> 4", 3.0), Some(-0.25));
        assert!(Span::of("").is_none());
    }
}
