//! `neap lab compare` judges each figure. What the machine did is promised nowhere here, only that
//! it was seen: the machine of a test may be busy.

use serde_json::Value;
use std::io::Write;
use std::process::{Command, ExitStatus};

/// The report of a comparison; none if the machine lacks what it needs.
fn compare(arguments: &[&str]) -> Option<(Value, ExitStatus)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
    command.args(["lab", "compare", "--seconds", "2", "--json"]).args(arguments);
    let output = command.output().expect("neap runs");
    let error = String::from_utf8_lossy(&output.stderr);
    if output.stdout.is_empty() {
        // Only what the machine lacks may keep it from measuring.
        let lacks = error.contains("not permitted") || error.contains("install it");
        assert!(!output.status.success() && lacks, "{error}");
        writeln!(std::io::stderr(), "SKIP: {}", error.trim()).expect("stderr");
        return None;
    }
    Some((serde_json::from_slice(&output.stdout).expect("JSON"), output.status))
}

#[test]
fn three_kinds_of_flow_are_measured_and_each_figure_is_judged() {
    let Some((all, status)) = compare(&["--only", "flows"]) else { return };
    let kinds = all["kinds"].as_array().expect("a list");
    assert_eq!(kinds.len(), 3, "{all}");
    for kind in kinds {
        let figures = kind["figures"].as_array().expect("a list");
        let tolerances: Vec<_> =
            figures.iter().map(|one| one["tolerance_percent"].as_f64()).collect();
        assert_eq!(tolerances, [Some(10.0), Some(20.0)], "{kind}");
        for figure in figures {
            let number = |name: &str| figure[name].as_f64().expect("a number");
            assert!(number("predicted") > 0.0 && number("measured") > 0.0, "{kind}");
            let agrees = number("off_percent").abs() <= number("tolerance_percent");
            assert_eq!(figure["agrees"], agrees, "{kind}");
        }
    }
    let agrees = kinds.iter().flat_map(|kind| kind["figures"].as_array()).flatten();
    assert_eq!(status.success(), agrees.into_iter().all(|one| one["agrees"] == true));
}

/// A figure of a twin, by a part of its name.
fn measured(twin: &Value, what: &str) -> f64 {
    let figures = twin["figures"].as_array().expect("a list").iter();
    let mut with = figures.filter(|one| one["what"].as_str().is_some_and(|own| own.contains(what)));
    let figure = with.next().unwrap_or_else(|| panic!("no {what}: {twin}"));
    assert_eq!(figure["tolerance_percent"], 15.0, "{figure}");
    assert_eq!(figure["agrees"] == true, figure["why"].is_null(), "{figure}");
    figure["measured"].as_f64().expect("a number")
}

#[test]
fn neap_and_the_kernel_have_twins_with_memory_switches_and_interrupts() {
    let Some((all, status)) = compare(&["--twin", "e2"]) else { return };
    let twins = all["twins"].as_array().expect("a list");
    let senders: Vec<_> = twins.iter().map(|twin| twin["sender"].as_str()).collect();
    assert_eq!(senders, [Some("neap"), Some("kernel")], "{all}");
    for twin in twins {
        for what in ["goodput", "packets handed down", "unacknowledged and unsent", "wake-ups"] {
            assert!(measured(twin, what) > 0.0, "{what}: {twin}");
        }
        let note = twin["notes"][0].as_str().expect("a note");
        if !note.contains("has no line of timers") {
            assert!(note.contains("counted for the whole machine"), "{note}");
            // Other programs may have rested while the flow ran.
            let _ = measured(twin, "timer interrupts (whole machine)");
        }
    }
    let [held, memory] = ["unacknowledged", "skmem"].map(|what| measured(&twins[1], what));
    assert!(memory >= held, "{all}");
    // Of a twin the goodput counts alone.
    let mut figures = twins.iter().flat_map(|twin| twin["figures"].as_array()).flatten();
    let agrees = figures.all(|one| one["what"] != "goodput, Mbit/s" || one["agrees"] == true);
    assert_eq!(status.success(), agrees, "{all}");
}
