//! `--set` and `--seed`: a scenario with other values.

use clap::Args as ClapArgs;
use neap_lab::scenario::{Choice, RunError};
use thiserror::Error;

/// Argument that a scenario does not have or does not take. The program exits with status 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct ArgumentError(pub(super) String);

/// Values that a scenario is run with in place of its own.
#[derive(ClapArgs, Clone, Debug, Default)]
pub(super) struct Chosen {
    /// Another value of a key of the scenario, such as host.a.qdisc=fq; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, toml::Value)>,
    /// Seed of all randomness, in place of the scenario's
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(0..))]
    seed: Option<i64>,
}

impl Chosen {
    /// Returns whether all values are those of the scenario.
    pub(super) fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.seed.is_none()
    }

    /// Returns the values as a combination of a sweep. Of two values of one key the last counts.
    pub(super) fn choice(&self) -> Choice {
        let mut choice = self.settings.clone();
        choice.extend(self.seed.map(|seed| ("seed".to_owned(), seed.into())));
        choice
    }

    /// Returns the error of a run. What a scenario does not take is an error of the arguments.
    pub(super) fn error(&self, error: RunError) -> Box<dyn std::error::Error> {
        match error {
            RunError::Scenario(error) if !self.settings.is_empty() => {
                ArgumentError(format!("--set: {}", error.what)).into()
            }
            error => error.to_string().into(),
        }
    }
}

/// A key and a value of TOML. What is no value of TOML is a text.
fn setting(text: &str) -> Result<(String, toml::Value), String> {
    let expected = || "expected KEY=VALUE, such as link.uplink.rate=10mbit".to_owned();
    let (key, value) = text.split_once('=').ok_or_else(expected)?;
    let (key, value) = (key.trim(), value.trim());
    if key.is_empty() || value.is_empty() {
        return Err(expected());
    }
    let parsed = format!("value = {value}").parse::<toml::Table>().ok();
    let parsed = parsed.filter(|table| table.len() == 1).and_then(|mut all| all.remove("value"));
    let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()));
    Ok((key.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_toml_or_texts() {
        let value = |text: &str| setting(text).map(|(_, value)| value.to_string());
        assert_eq!(value("seed=7"), Ok("7".to_owned()));
        assert_eq!(value("host.a.qdisc = fq"), Ok("\"fq\"".to_owned()));
        assert_eq!(value("link.up.loss=\"1%\""), Ok("\"1%\"".to_owned()));
        assert_eq!(value("link.up.loss=1%"), Ok("\"1%\"".to_owned()));
        assert!(value("a.codel={ target = \"5ms\" }").is_ok_and(|text| text.starts_with('{')));
        for wrong in ["", "a", "a=", "=b"] {
            assert!(value(wrong).is_err_and(|why| why.contains("KEY=VALUE")), "{wrong}");
        }
    }
}
