//! `neap lab explain`, as a user calls it.

use std::process::{Command, Output};

fn explain(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
    command.args(["lab", "explain"]).args(arguments).output().expect("neap runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The shares of a flow that was explained, percent.
fn shares(output: &str) -> Vec<f64> {
    let shares = output.lines().filter_map(|line| line.trim_start().split_once(" %  "));
    shares.filter_map(|(number, _)| number.parse().ok()).collect()
}

#[test]
fn a_flow_is_explained_in_words_and_equally_every_time() {
    let output = explain(&["bufferbloat/upload"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.starts_with("bufferbloat/upload\nThe flow got "), "{said}");
    assert!(said.contains("The congestion window held it"), "{said}");
    let pauses = said.lines().filter(|line| line.contains(" ms from ")).count();
    assert_eq!(pauses, 3, "{said}");
    let sum: f64 = shares(&said).iter().sum();
    assert!((sum - 100.0).abs() < 1e-6, "{sum}: {said}");
    assert_eq!(text(&explain(&["bufferbloat/upload"]).stdout), said);
    // The scenario alone: all of its flows.
    let all = text(&explain(&["bufferbloat"]).stdout);
    assert!(all.starts_with("bufferbloat/game\n") && all.contains(&said), "{all}");
}

#[test]
fn other_values_and_seeds_are_explained() {
    let plain = text(&explain(&["policer/bulk"]).stdout);
    let seeded = explain(&["policer/bulk", "--seed", "7"]);
    assert!(seeded.status.success(), "{}", text(&seeded.stderr));
    assert_ne!(text(&seeded.stdout), plain);
    let codel = "link.uplink.there={ codel = { target = \"5ms\" } }";
    let output = explain(&["bufferbloat/upload", "--set", codel]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_ne!(text(&output.stdout), text(&explain(&["bufferbloat/upload"]).stdout));
}

#[test]
fn run_takes_other_values_and_seeds_too() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.args(["lab", "run", "policer"]).args(arguments).output().expect("neap runs")
    };
    let hash = |arguments: &[&str]| {
        let said = text(&run(arguments).stdout);
        said.lines().find(|line| line.starts_with("hash of the run: ")).expect("a hash").to_owned()
    };
    let plain = hash(&[]);
    assert_ne!(hash(&["--seed", "7"]), plain);
    assert_eq!(hash(&["--seed", "1"]), plain);
    let slower = hash(&["--set", "link.wan.there.policer={rate=\"10mbit\",burst=\"64k\"}"]);
    assert_ne!(slower, plain);
    assert_eq!(run(&["--set", "app.bulk.kind=nothing"]).status.code(), Some(2));
}

#[test]
fn a_wrong_name_is_told_with_what_there_is() {
    let wrong: [(&[&str], &str); 10] = [
        (
            &["bufferbloat/nobody"],
            "bufferbloat has no application \"nobody\"; there are: game, upload",
        ),
        (&["nothing/at-all"], "for those that neap brings: neap lab list"),
        // The folder is there, the file is not.
        (&["tests/typo.toml"], "neap lab: tests/typo.toml: No such file or directory"),
        (&["policer/bulk", "--set", "link.wan"], "expected KEY=VALUE"),
        (
            &["policer/bulk", "--set", "link.wan.speed=1mbit"],
            "--set: link.wan.speed=1mbit: unknown field",
        ),
        (
            &["policer/bulk", "--set", "expect.0.at_most=1"],
            "--set: expect.0.at_most: changes nothing in a run",
        ),
        (
            &["small-queues/bulk", "--set", "published=[\"neap\"]"],
            "--set: published: changes nothing in a run",
        ),
        (&["policer/bulk", "--set", "column=x"], "--set: there is no column x, nor any other"),
        (
            &["small-queues/bulk", "--set", "column=2011"],
            "--set: there is no column 2011; there are off, 2012, limit 40000, 6.18, neap",
        ),
        (&["policer/bulk", "--seed", "x"], "--seed"),
    ];
    for (arguments, expected) in wrong {
        let output = explain(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
