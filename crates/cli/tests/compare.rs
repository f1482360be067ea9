//! `neap lab compare` judges each figure. What the machine did is promised nowhere here, only that
//! it was seen: the machine of a test may be busy.

use serde_json::Value;
use std::io::Write;
use std::process::Command;

#[test]
fn three_kinds_of_flow_are_measured_and_each_figure_is_judged() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
    command.args(["lab", "compare", "--only", "flows", "--seconds", "2", "--json"]);
    let output = command.output().expect("neap runs");
    let error = String::from_utf8_lossy(&output.stderr);
    if output.stdout.is_empty() {
        // Only what the machine lacks may keep it from measuring.
        let lacks = error.contains("not permitted") || error.contains("install it");
        assert!(!output.status.success() && lacks, "{error}");
        return writeln!(std::io::stderr(), "SKIP: {}", error.trim()).expect("stderr");
    }
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
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
    assert_eq!(output.status.success(), agrees.into_iter().all(|one| one["agrees"] == true));
}
