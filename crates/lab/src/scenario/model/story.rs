//! The story of a scenario file: one chart that makes its point.

use super::Name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One chart about some runs of a scenario, with a sentence about it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorySpec {
    /// What was changed, by whom and when, in a few words.
    pub heading: String,
    /// One sentence that says what the change did. `{NAME}` stands for the value of the first bar
    /// with the role NAME, or for the value of that name; `{ONE/OTHER}` for their quotient.
    pub sentence: Name,
    /// What the bars show, without the unit.
    pub what: String,
    /// The unit of the bars; empty for a count.
    pub unit: String,
    /// The name of the figure that the bars show.
    pub figure: Name,
    /// Factor by which the figure is multiplied when it is shown.
    #[serde(default)]
    pub scale: Option<f64>,
    /// Values of the sweep that all bars have in common.
    #[serde(default)]
    pub when: BTreeMap<Name, toml::Value>,
    /// Bars from top to bottom.
    pub bar: Vec<BarSpec>,
    /// Further values that the sentence tells, by name.
    #[serde(default)]
    pub value: BTreeMap<Name, ValueSpec>,
    /// Reason why a published value is not that of its bar: what follows "because", with the same
    /// `{NAME}` as the sentence.
    #[serde(default)]
    pub note: Option<Name>,
}

/// One bar: the figure of one run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BarSpec {
    /// What was run, in a few words.
    pub label: Name,
    /// What the run stands for.
    pub role: Role,
    /// Values of the sweep that select the run, beside those that all bars have in common.
    #[serde(default)]
    pub when: BTreeMap<Name, toml::Value>,
}

/// Figure of one run that the sentence tells.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueSpec {
    /// The name of the figure; that of the bars by default.
    #[serde(default)]
    pub figure: Option<Name>,
    /// Factor by which the figure is multiplied; 1 by default, or that of the bars where the figure
    /// is theirs.
    #[serde(default)]
    pub scale: Option<f64>,
    /// Values of the sweep that select the run, beside those that all bars have in common.
    #[serde(default)]
    pub when: BTreeMap<Name, toml::Value>,
}

/// What a run of a story stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// The rules before the change.
    Before,
    /// The rules of the change, as it was published.
    Published,
    /// The rules of Linux today.
    Today,
    /// neap's own.
    Neap,
}

impl Role {
    /// Returns the word that scenario files use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Published => "published",
            Self::Today => "today",
            Self::Neap => "neap",
        }
    }
}
