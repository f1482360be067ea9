//! Library of the scenarios that neap brings.

/// Scenario file of the library.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// Name of the scenario.
    pub name: &'static str,
    /// Text of the scenario file.
    pub text: &'static str,
}

macro_rules! scenarios {
    ($($name:literal),+ $(,)?) => {
        &[$(Builtin { name: $name, text: include_str!(concat!("../scenarios/", $name, ".toml")) }),+]
    };
}

/// All scenarios of the library.
pub const SCENARIOS: &[Builtin] = scenarios![
    "small-queues",
    "autosizing",
    "low-water-mark",
    "internal-pacing",
    "bbr-shares",
    "codel-target",
    "fq-codel",
    "incast-timeouts",
    "bufferbloat",
    "lte",
    "wifi",
    "late-completions",
    "early-completions",
    "interrupt-moderation",
    "policer",
    "sharing",
    "incast",
    "short-flows",
    "priority-inversion",
    "ack-congestion",
    "running-sysctls",
];

/// Names of the scenarios that repeat published experiments, in the order in which they are run.
pub const EXPERIMENTS: [&str; 4] =
    ["small-queues", "autosizing", "low-water-mark", "internal-pacing"];

/// Names of the scenarios that repeat results of others about controllers and queues, in the order
/// in which they are run.
pub const PUBLISHED: [&str; 4] = ["bbr-shares", "codel-target", "fq-codel", "incast-timeouts"];

/// Files that the scenarios name, and their text.
pub const FILES: &[(&str, &str)] = &[("lte.trace", include_str!("../scenarios/lte.trace"))];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Experiment;

    #[test]
    fn all_are_sound() {
        let files = |name: &str| {
            let file = FILES.iter().find(|(own, _)| *own == name);
            file.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
        };
        for Builtin { name, text } in SCENARIOS {
            let experiment = Experiment::parse(name, text, &files);
            let experiment = experiment.unwrap_or_else(|error| panic!("{error}"));
            assert!(experiment.scenario().look_at.is_some(), "{name} says nothing to look at");
            assert!(text.starts_with("about = \""), "{name} does not begin with what it shows");
        }
    }
}
