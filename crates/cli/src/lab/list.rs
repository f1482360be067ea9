//! `neap lab list`: the scenarios that neap brings along, and what to look at in each.

use super::terminal::wrapped;
use neap_lab::library::{FILES, SCENARIOS};
use neap_lab::scenario::Experiment;
use std::error::Error;
use std::io::Write;

/// Columns of a terminal, less the indentation.
const WIDTH: usize = 92;

/// Prints them.
pub(super) fn main(out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
    let files = |name: &str| {
        let file = FILES.iter().find(|(own, _)| *own == name);
        file.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
    };
    for builtin in SCENARIOS {
        let experiment = Experiment::parse(builtin.name, builtin.text, &files)?;
        let scenario = experiment.scenario();
        writeln!(out, "{}: {}", builtin.name, scenario.about)?;
        for line in wrapped(scenario.look_at.as_deref().unwrap_or_default(), WIDTH) {
            writeln!(out, "    {line}")?;
        }
        let (command, count) = match experiment.choices().len() {
            0 | 1 => ("run", String::new()),
            count => ("sweep", format!("    ({count} runs)")),
        };
        writeln!(out, "    $ neap lab {command} {}{count}\n", builtin.name)?;
    }
    writeln!(out, "Or a file of your own: neap lab run FILE, neap lab sweep FILE")?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_says_what_to_look_at_and_how_to_run_it() {
        let mut out = Vec::new();
        main(&mut out).expect("sound scenarios");
        let text = String::from_utf8(out).expect("text");
        for builtin in SCENARIOS {
            assert!(text.contains(&format!("{}: ", builtin.name)), "{text}");
        }
        assert!(text.contains("$ neap lab sweep bufferbloat    (2 runs)"), "{text}");
    }
}
