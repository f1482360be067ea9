//! The public API of the crate `neap` is `docs/api.txt`, line by line.
//!
//! The list is renewed by `NEAP_RENEW_API=1 cargo test -p neap-cli --test api`.
//!
//! rustdoc writes JSON for `neap` and for the crates that it re-exports items of; the crate
//! `public-api` turns each into lines. An item of another crate counts if `neap` re-exports it, and
//! then it is listed by its path in `neap`. A type that a listed line mentions must have such a
//! path.

mod list;

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of rustdoc's JSON that the pinned `public-api` reads: that of Rust 1.95.
const FORMAT: u64 = 57;
/// The crate that is promised, and those that it re-exports items of.
const CRATES: [&str; 5] = ["neap", "neap-tcp", "neap-stack", "neap-device", "neap-posix"];
/// How the list is renewed.
const RENEW: &str = "NEAP_RENEW_API=1 cargo test -p neap-cli --test api";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Makes rustdoc's JSON of all crates. The folder where it lies.
fn document() -> PathBuf {
    // A folder of its own: the flags would make the next build of the program start anew.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("api");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["doc", "--quiet", "--lib", "--no-deps", "--all-features"]);
    for name in CRATES {
        cargo.args(["--package", name]);
    }
    // JSON is not a stable output of rustdoc. The variable lets these crates have it, and no other.
    cargo.env("RUSTC_BOOTSTRAP", CRATES.map(|name| name.replace('-', "_")).join(","));
    cargo.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    cargo.env("CARGO_TARGET_DIR", &target);
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "cargo doc fails: {status}");
    target.join("doc")
}

/// The lines that are in one list only, with the sign of a diff.
fn difference(old: &str, new: &str) -> Vec<String> {
    let missing = old.lines().filter(|line| !new.lines().any(|other| other == *line));
    let added = new.lines().filter(|line| !old.lines().any(|other| other == *line));
    let missing = missing.map(|line| format!("-{line}"));
    missing.chain(added.map(|line| format!("+{line}"))).collect()
}

#[test]
fn the_public_api_is_the_list() {
    let documents = document();
    let file = |name: &str| documents.join(format!("{}.json", name.replace('-', "_")));
    let text = std::fs::read_to_string(file("neap")).expect("the JSON of neap");
    let neap: Value = serde_json::from_str(&text).expect("JSON");
    if neap["format_version"] != FORMAT {
        // Not `eprintln!`: the harness swallows that of tests that pass.
        let reason = "this rustdoc writes another JSON: run with Rust 1.95 to check the API";
        return writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
    }
    let crates = CRATES.map(|name| list::lines_of(&file(name)));
    let (list, unreachable) = list::list(&neap, &crates);
    let path = root().join("docs/api.txt");
    if std::env::var_os("NEAP_RENEW_API").is_some() {
        std::fs::write(&path, &list).expect("the list is written");
    }
    assert!(
        unreachable.is_empty(),
        "\nneap re-exports these types under no path, and its API mentions them:\n{}",
        unreachable.into_iter().collect::<Vec<_>>().join("\n")
    );
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    if known != list {
        let lines = difference(&known, &list).join("\n");
        panic!("\nthe public API is not docs/api.txt; if that is meant, run {RENEW}\n{lines}");
    }
}
