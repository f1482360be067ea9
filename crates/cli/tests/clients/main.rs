//! Podman, RootlessKit and ordinary programs as an unprivileged user, with neap as their network.
//!
//! The scripts beside this file are what the user does. The servers are in the network namespace of
//! the test. Newer clients are those of the next Debian release.

#[path = "../common/namespace.rs"]
mod namespace;
mod next_debian;
mod outside;

use namespace::{in_namespace, skip};
use outside::Outside;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|output| output.status.success())
}

/// Whether all programs are there, and the test is the machine's root. It skips if not.
fn can_run(programs: &[&str]) -> bool {
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

/// Runs a script as an unprivileged user of this system, or of one in a folder. It must say that it
/// came to its end.
fn client(script: &str, system: Option<&Path>, outside: &Outside) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let mut command = Command::new("unshare");
    command.args(["-mpf", "--kill-child", "--mount-proc", "sh"]);
    match system {
        Some(system) => command.arg(folder.join("system.sh")).arg(system),
        None => command.arg(folder.join("user.sh")),
    };
    command.arg(env!("CARGO_BIN_EXE_neap")).arg(folder.join(format!("{script}.sh")));
    let output = command.env("FILES", outside.folder()).stdin(Stdio::null()).output();
    let output = output.expect("unshare runs");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let is_over = stdout.contains(&format!("all of {script}"));
    assert!(output.status.success() && is_over, "{script}: {}\n{stdout}{stderr}", output.status);
}

/// Programs that all scripts need.
const COMMON: [&str; 5] = ["busybox", "newuidmap", "setpriv", "unshare", "wget"];

fn here(script: &str, programs: &[&str]) {
    if can_run(&[&COMMON, programs].concat()) {
        client(script, None, &Outside::start());
    }
}

#[test]
fn podman() {
    in_namespace(|| here("podman", &["podman", "runc"]));
}

#[test]
fn rootlesskit() {
    in_namespace(|| here("rootlesskit", &["rootlesskit"]));
}

#[test]
fn programs() {
    in_namespace(|| {
        let needed = ["nginx", "curl", "git", "iperf3", "b2sum", "ping", "traceroute"];
        if can_run(&[&COMMON[..], &needed].concat()) {
            let mut outside = Outside::start();
            outside.serve_programs();
            client("programs", None, &outside);
        }
    });
}

/// Runs a script on the next Debian release, which is there or is made outside of the namespace.
fn on_next_debian(script: &str) {
    if let Some(system) = next_debian::folder()
        && can_run(&["busybox"])
    {
        client(script, Some(&system), &Outside::start());
    }
}

#[test]
fn podman_with_pasta() {
    if next_debian::is_there() {
        in_namespace(|| on_next_debian("podman-pasta"));
    }
}

#[test]
fn rootlesskit_with_pasta() {
    if next_debian::is_there() {
        in_namespace(|| on_next_debian("rootlesskit-pasta"));
    }
}
