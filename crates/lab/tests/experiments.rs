//! The published experiments: that their files say what runs, and that small runs of them hold.

use neap_lab::library::{EXPERIMENTS, SCENARIOS};
use neap_lab::scenario::{Choice, Experiment, Figures};

fn no_files(_: &str) -> Result<String, String> {
    Err("no such file".into())
}

fn experiment(name: &str) -> Experiment<'static> {
    let scenario = SCENARIOS.iter().find(|one| one.name == name).expect("a scenario of neap's");
    Experiment::parse(name, scenario.text, &no_files).expect("a sound scenario")
}

/// The runs of which all these words are part of the choice.
fn runs(experiment: &Experiment<'_>, words: &[&str]) -> Vec<(Choice, Figures)> {
    let described = |choice: &Choice| neap_lab::scenario::describe(choice);
    let choices = experiment.choices().iter();
    let choices =
        choices.filter(|choice| words.iter().all(|word| described(choice).contains(word)));
    choices.map(|c| (c.clone(), experiment.run(c, &|_| {}).expect("a run").figures)).collect()
}

#[test]
fn every_experiment_compares_columns_with_what_was_published() {
    for name in EXPERIMENTS {
        let experiment = experiment(name);
        let scenario = experiment.scenario();
        assert!(scenario.column.len() >= 4, "{name}");
        assert!(scenario.row.iter().any(|row| !row.published.is_empty()), "{name}");
        assert!(!scenario.expect.is_empty(), "{name}");
    }
}

#[test]
fn frames_of_a_slow_link_are_short_and_those_of_a_long_path_few() {
    let slow = runs(&experiment("small-queues"), &["column=neap", "gso=true", "100mbit"]);
    let below = slow[0].1["link.wire.there.below_p99_ms"];
    assert!(below < 1.2, "{below} ms");
    let all = experiment("autosizing");
    let runs = runs(&all, &[]);
    let verdicts = all.judge(&runs).expect("figures that exist");
    assert!(verdicts.iter().all(|verdict| verdict.holds), "{verdicts:#?}");
    let tables = all.tables(&runs).expect("figures that exist");
    assert_eq!(tables[0].columns, ["at write", "2014", "6.18", "neap"]);
    assert_eq!(tables[0].rows[1].published, ["599", "232"]);
}

#[test]
fn frames_without_offload_of_any_kind_are_single_segments() {
    let one = runs(&experiment("small-queues"), &["column=2012", "gso=false", "100mbit"]);
    let figures = &one[0].1;
    assert_eq!(figures["link.wire.there.super_frames"], 0.0);
    // 57 buffers of 2304 bytes fit the limit: 7.0 ms.
    let below = figures["link.wire.there.below_p99_ms"];
    assert!((6.9..7.2).contains(&below), "{below} ms");
}
