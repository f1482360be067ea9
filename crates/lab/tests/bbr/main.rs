//! BBR in the lab: what each version does, and what it gets out of paths of all kinds.
//!
//! The tables are snapshots beside this file. `NEAP_UPDATE_SNAPSHOTS=1` writes them anew; what must
//! hold whatever they say is asserted apart.

mod behaviours;
mod frames;
mod grid;

use std::path::PathBuf;

/// Compares with the snapshot, or writes it.
fn check_snapshot(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/bbr").join(name);
    if std::env::var_os("NEAP_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).expect("the snapshot is written");
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{name} has changed (NEAP_UPDATE_SNAPSHOTS=1 to keep):\n{text}");
}
