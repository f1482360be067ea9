//! The stories of scenarios: that they name what exists, and read what was run and published.

use neap_lab::library::{EXPERIMENTS, SCENARIOS};
use neap_lab::scenario::{Bar, Choice, Experiment, Figures, Role};

fn no_files(_: &str) -> Result<String, String> {
    Err("no such file".into())
}

fn text(name: &str) -> &'static str {
    SCENARIOS.iter().find(|one| one.name == name).expect("a scenario of neap's").text
}

fn experiment(name: &str) -> Experiment<'static> {
    Experiment::parse(name, text(name), &no_files).expect("a sound scenario")
}

fn column(choice: &Choice) -> &str {
    let column = choice.iter().find(|(name, _)| name == "column");
    column.and_then(|(_, value)| value.as_str()).expect("an experiment has columns")
}

/// Runs of which nobody measured anything: each figure is that of its column.
fn invented(experiment: &Experiment<'_>, value: &dyn Fn(&str) -> f64) -> Vec<(Choice, Figures)> {
    let scenario = experiment.scenario();
    let story = scenario.story.as_ref().expect("a story");
    let told = story.value.values().filter_map(|value| value.figure.as_ref());
    let told = told.chain([&story.figure]).chain(scenario.row.iter().map(|row| &row.figure));
    let expected = scenario.expect.iter().map(|expect| &expect.get_ref().figure);
    let names: Vec<&String> = told.chain(expected).map(toml::Spanned::get_ref).collect();
    let figures = |choice: &Choice| {
        let names = names.iter().map(|name| ((*name).clone(), value(column(choice))));
        (choice.clone(), names.collect())
    };
    experiment.choices().iter().map(figures).collect()
}

#[test]
fn every_experiment_tells_before_after_and_neap() {
    for name in EXPERIMENTS {
        let experiment = experiment(name);
        let story = experiment.story(&invented(&experiment, &|_| 2.0)).expect("sound");
        let story = story.unwrap_or_else(|| panic!("{name} has no story"));
        let has = |role: Role| story.bars.iter().any(|bar| bar.role == role);
        assert!(has(Role::Before) && has(Role::Published) && has(Role::Neap), "{name}");
        let marked = story.bars.iter().filter(|bar| bar.published.is_some());
        assert_eq!(marked.count(), 2, "{name} has two published values");
        assert!(!story.sentence.contains(['{', '}']), "{}", story.sentence);
        assert!(story.bounds >= 5 && story.bounds_held <= story.bounds, "{name}");
    }
}

#[test]
fn a_story_has_the_values_of_the_runs_beside_the_published_ones() {
    let experiment = experiment("small-queues");
    let value = |column: &str| match column {
        "off" => 140.0,
        "2012" => 7.0,
        "6.18" => 1.5,
        _ => 0.5,
    };
    let runs = invented(&experiment, &value);
    let story = experiment.story(&runs).expect("sound").expect("a story");
    let values: Vec<_> = story.bars.iter().map(|bar| bar.value).collect();
    assert_eq!(values, [140.0, 7.0, 1.5, 0.5]);
    let published: Vec<_> = story.bars.iter().map(Bar::published_text).collect();
    assert_eq!(published, [Some("132".into()), Some("< 8".into()), None, None]);
    assert!(story.bars.iter().all(Bar::agrees) && story.needs_log());
    for said in ["kept 140 ms", "make that 7.00 ms", "today 1.50 ms", "neap 0.50 ms"] {
        assert!(story.sentence.contains(said), "no {said:?} in {}", story.sentence);
    }
    let runs = invented(&experiment, &|_| 9.0);
    let story = experiment.story(&runs).expect("sound").expect("a story");
    assert!(!story.bars[0].agrees() && !story.bars[1].agrees(), "9 is neither 132 nor below 8");
}

#[test]
fn a_published_value_has_the_unit_of_its_bar() {
    for (name, expected) in [("low-water-mark", [54.0, 3.5]), ("internal-pacing", [1695.0, 2400.0])]
    {
        let experiment = experiment(name);
        let story = experiment.story(&invented(&experiment, &|_| 1.0)).expect("sound");
        let bars = story.expect("a story").bars;
        let published: Vec<_> = bars.iter().filter_map(|bar| bar.published).collect();
        assert_eq!(published, expected, "{name}");
    }
}

#[test]
fn a_published_bound_keeps_its_direction() {
    let text = text("small-queues").replace("\"< 8\"", "\"> 8\"");
    let experiment = Experiment::parse("file", &text, &no_files).expect("a sound scenario");
    for (value, agrees) in [(9.0, true), (7.0, false)] {
        let story = experiment.story(&invented(&experiment, &|_| value)).expect("sound");
        let bar = &story.expect("a story").bars[1];
        assert_eq!((bar.published_text().as_deref(), bar.agrees()), (Some("> 8"), agrees));
    }
}

#[test]
fn a_run_that_is_missing_is_told() {
    let experiment = experiment("autosizing");
    let mut runs = invented(&experiment, &|_| 1.0);
    runs.retain(|(choice, _)| column(choice) != "neap");
    let error = experiment.story(&runs).expect_err("a run is missing").to_string();
    assert!(error.contains("there is no run with column=neap"), "{error}");
}

#[test]
fn a_story_that_names_what_is_not_there_is_refused_with_its_line() {
    let error = |from: &str, to: &str| {
        let text = text("small-queues").replacen(from, to, 1);
        Experiment::parse("file", &text, &no_files).err().expect("a fault").to_string()
    };
    let several = error(r#""link.wire.rate" = "100mbit", "host.a.nic.gso" = false }"#, "}");
    assert!(several.contains("selects 6") && several.starts_with("file:1"), "{several}");
    let none = error(r#"{ column = "off" } }"#, r#"{ column = "of" } }"#);
    assert!(none.contains("selects 0"), "{none}");
    let unknown = error("{before} ms", "{befor} ms");
    assert!(unknown.contains("{befor} is neither the role of a bar nor a value"), "{unknown}");
    let open = error("{before} ms", "{before ms");
    assert!(open.contains("is neither") || open.contains("a { needs a }"), "{open}");
    let role = error(r#"role = "before""#, r#"role = "earlier""#);
    assert!(role.contains("before") && role.contains("published"), "{role}");
    let key = error("[story]\n", "[story]\ncolour = 1\n");
    assert!(key.contains("colour"), "{key}");
}

#[test]
fn a_value_of_a_story_has_no_name_that_a_bar_has() {
    let text = text("internal-pacing").replacen("\nnone = {", "\nbefore = {", 1);
    let text = text.replacen("{none}", "{before}", 1);
    let error = Experiment::parse("file", &text, &no_files).err().expect("a fault").to_string();
    assert!(error.starts_with("file:26: before: is the role of a bar"), "{error}");
}

#[test]
fn a_scenario_without_a_story_has_none() {
    let experiment = experiment("policer");
    assert!(experiment.scenario().story.is_none());
    assert_eq!(experiment.story(&[]), Ok(None));
}
