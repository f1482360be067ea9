//! Figures are possible: no report of the library says more than its links allow. A run with a
//! figure beyond them fails by itself, so here the scenarios run.

use neap_lab::library::{EXPERIMENTS, FILES, PUBLISHED, SCENARIOS};
use neap_lab::report::Watch;
use neap_lab::scenario::{Choice, Experiment, RunError, describe};

fn files(name: &str) -> Result<String, String> {
    let file = FILES.iter().find(|(own, _)| *own == name);
    file.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
}

fn run(experiment: &Experiment<'_>, choice: &Choice) -> Result<(), RunError> {
    let watch = Watch { record: true, packets: None };
    experiment.run_watched(choice, &|_| {}, watch).map(|_| ())
}

#[test]
fn every_scenario_of_the_library_has_possible_figures() {
    // `published.rs` records shorter forms of those that run for hundreds of seconds.
    let is_long = |name: &str| EXPERIMENTS.contains(&name) || PUBLISHED.contains(&name);
    for scenario in SCENARIOS.iter().filter(|one| !is_long(one.name)) {
        let experiment = Experiment::parse(scenario.name, scenario.text, &files).expect("sound");
        for choice in experiment.choices() {
            let done = run(&experiment, choice);
            assert_eq!(done, Ok(()), "{} with {}", scenario.name, describe(choice));
        }
    }
}

/// All columns of the first experiment at 100 Mbit/s, the rate at which one frame is most of a
/// sample, and those of the second.
#[test]
fn experiments_have_possible_figures() {
    for (name, words) in [("small-queues", "100mbit"), ("autosizing", "")] {
        let scenario = SCENARIOS.iter().find(|one| one.name == name).expect("of the library");
        let experiment = Experiment::parse(name, scenario.text, &files).expect("sound");
        for choice in experiment.choices().iter().filter(|one| describe(one).contains(words)) {
            assert_eq!(run(&experiment, choice), Ok(()), "{name} with {}", describe(choice));
        }
    }
}
