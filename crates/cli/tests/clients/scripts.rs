//! Scripts of an unprivileged user, as tests run them.

use super::namespace::skip;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|output| output.status.success())
}

/// Whether all programs are there, and the test is the machine's root. It skips if not.
pub(crate) fn can_run(programs: &[&str]) -> bool {
    if let Some(program) = programs.iter().find(|program| !has(program)) {
        skip(&format!("{program} is not installed"));
        return false;
    }
    let is_root = fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    if !is_root {
        skip("a user with subordinate identities can be made by root only");
    }
    is_root
}

/// Runs a script as an unprivileged user of this system, or of one in a folder. It finds `files` in
/// `/mnt/files`, and must say that it came to its end.
pub(crate) fn client(script: &str, system: Option<&Path>, files: &Path) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let mut command = Command::new("unshare");
    command.args(["-mpf", "--kill-child", "--mount-proc", "sh"]);
    match system {
        Some(system) => command.arg(folder.join("system.sh")).arg(system),
        None => command.arg(folder.join("user.sh")),
    };
    command.arg(env!("CARGO_BIN_EXE_neap")).arg(folder.join(format!("{script}.sh")));
    let output = command.env("FILES", files).stdin(Stdio::null()).output();
    let output = output.expect("unshare runs");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let is_over = stdout.contains(&format!("all of {script}"));
    assert!(output.status.success() && is_over, "{script}: {}\n{stdout}{stderr}", output.status);
}
