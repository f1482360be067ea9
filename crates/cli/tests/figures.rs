//! `neap lab` shows the figures of `docs/lab.txt`, at every run and on every machine.
//!
//! `NEAP_UPDATE_SNAPSHOTS=1` writes the document anew.

use std::fs;
use std::process::Command;

#[test]
fn the_four_experiments_have_the_figures_of_their_document() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lab.txt");
    let kept = fs::read_to_string(document).expect("docs/lab.txt");
    let output = Command::new(env!("CARGO_BIN_EXE_neap")).args(["lab", "--verbose"]).output();
    let output = output.expect("neap runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = String::from_utf8(output.stdout).expect("text");
    if std::env::var_os("NEAP_UPDATE_SNAPSHOTS").is_some() {
        fs::write(document, shown).expect("docs/lab.txt can be written");
        return;
    }
    let lines = kept.lines().zip(shown.lines());
    let changed: Vec<_> = lines.filter(|(kept, shown)| kept != shown).take(20).collect();
    assert!(kept == shown, "docs/lab.txt is old (NEAP_UPDATE_SNAPSHOTS=1 to renew): {changed:#?}");
}
