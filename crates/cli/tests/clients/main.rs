//! Podman, RootlessKit and ordinary programs as an unprivileged user, with neap as their network.
//!
//! The scripts beside this file are what the user does. The servers are in the network namespace of
//! the test. Newer clients are those of the next Debian release.

mod link;
#[path = "../common/namespace.rs"]
mod namespace;
mod next_debian;
mod outside;
mod scripts;

use namespace::in_namespace;
use outside::Outside;
use scripts::{can_run, client};

/// Programs that all scripts need.
const COMMON: [&str; 6] = ["busybox", "newuidmap", "perl", "setpriv", "unshare", "wget"];

fn here(script: &str, programs: &[&str], outside: fn() -> Outside) {
    if can_run(&[&COMMON, programs].concat()) {
        client(script, None, outside().folder());
    }
}

#[test]
fn podman() {
    in_namespace(|| here("podman", &["podman", "runc"], Outside::start));
}

#[test]
fn rootlesskit() {
    in_namespace(|| here("rootlesskit", &["rootlesskit"], Outside::start));
}

#[test]
fn a_link_goes_and_comes_under_podman_and_curl() {
    in_namespace(|| here("link", &["podman", "runc", "curl"], Outside::start_behind_a_link));
}

#[test]
fn podman_and_neap_are_killed() {
    in_namespace(|| here("kill", &["podman", "runc"], Outside::start));
}

#[test]
fn programs() {
    in_namespace(|| {
        let needed = ["nginx", "curl", "git", "iperf3", "b2sum", "ping", "traceroute"];
        if can_run(&[&COMMON[..], &needed].concat()) {
            let mut outside = Outside::start();
            outside.serve_programs();
            client("programs", None, outside.folder());
        }
    });
}

/// Runs a script on the next Debian release, which is there or is made outside of the namespace.
fn on_next_debian(script: &str, outside: fn() -> Outside) {
    if let Some(system) = next_debian::folder()
        && can_run(&["busybox", "perl"])
    {
        client(script, Some(&system), outside().folder());
    }
}

#[test]
fn podman_with_pasta() {
    if next_debian::is_there() {
        in_namespace(|| on_next_debian("podman-pasta", Outside::start));
    }
}

#[test]
fn rootlesskit_with_pasta() {
    if next_debian::is_there() {
        in_namespace(|| on_next_debian("rootlesskit-pasta", Outside::start));
    }
}

#[test]
fn a_link_goes_and_comes_under_podman_with_pasta() {
    if next_debian::is_there() {
        in_namespace(|| on_next_debian("link-pasta", Outside::start_behind_a_link));
    }
}

#[test]
fn podman_and_neap_are_killed_with_pasta() {
    if next_debian::is_there() {
        in_namespace(|| on_next_debian("kill-pasta", Outside::start));
    }
}
