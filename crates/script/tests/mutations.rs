//! A rule of the transmit path or of recovery that is broken on purpose fails a script.
//!
//! All mutations go into one copy of the sources, each behind a number that the runner sets, so
//! that they cost a single build. The copy is built below Cargo's directory for tests and kept
//! there.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A rule and how it is broken.
struct Mutation {
    rule: &'static str,
    /// Below `crates/`.
    file: &'static str,
    /// Stands once in the file.
    text: &'static str,
    /// Takes its place; `$on` is true while the rule is broken.
    broken: &'static str,
}

const fn mutation(
    rule: &'static str,
    file: &'static str,
    text: &'static str,
    broken: &'static str,
) -> Mutation {
    Mutation { rule, file, text, broken }
}

const AUTOSIZE: &str = "tcp/src/transmit/autosize.rs";
const PACER: &str = "tcp/src/transmit/pacer.rs";
const RECOVERY: &str = "tcp/src/sender/recovery.rs";
const RETRANSMIT: &str = "tcp/src/connection/retransmit.rs";
const SENDER: &str = "tcp/src/sender/mod.rs";
const SPACE: &str = "tcp/src/connection/send_space.rs";
const TIMEOUTS: &str = "tcp/src/sender/timeouts.rs";
const TIMERS: &str = "tcp/src/connection/timers.rs";
const OUTPUT: &str = "tcp/src/connection/output.rs";
const INPUT: &str = "tcp/src/connection/input.rs";
const OPENING: &str = "tcp/src/connection/opening.rs";
const TIME_WAIT: &str = "tcp/src/time_wait.rs";

const MUTATIONS: &[Mutation] = &[
    mutation(
        "a window closed over data in flight is probed for as long as the peer answers",
        TIMERS,
        "if self.sender.wnd() == 0 && !self.is_orphan {",
        "if self.sender.wnd() == 0 && !self.is_orphan && !$on {",
    ),
    mutation(
        "what is beyond a window that was taken back is not sent again",
        RETRANSMIT,
        "let left = self.sender.window_for(run);",
        "let left = if $on { u32::MAX } else { self.sender.window_for(run) };",
    ),
    mutation(
        "a probe that the qdisc drops lengthens no wait",
        TIMERS,
        "        self.liveness.drop_window_probe();\n",
        "        if !$on {\n self.liveness.drop_window_probe();\n }\n",
    ),
    mutation(
        "a SYN from TIME-WAIT echoes the old timestamp",
        OPENING,
        "timestamps.echo = self.receiver.ts_recent();",
        "timestamps.echo = if $on { 0 } else { self.receiver.ts_recent() };",
    ),
    mutation(
        "the timestamp of a bad ACK is not taken",
        INPUT,
        "        self.end_hold();\n",
        "        self.end_hold();\n        if let Some(ts) = segment.options.timestamps && $on {
            self.receiver.update_ts_recent(now, segment.seq, ts.value);
        }\n",
    ),
    mutation(
        "a bad ACK is no sign of life",
        INPUT,
        "if self.receiver.may_answer_invalid(now) {",
        "if $on {\n self.liveness.on_heard(now);\n }\n if self.receiver.may_answer_invalid(now) {",
    ),
    mutation(
        "answers to bad ACKs are limited",
        INPUT,
        "            Err(AckError::Future | AckError::TooOld) => {\n",
        "            Err(_) if $on => {\n self.receiver.owe_ack();\n return false;\n }
            Err(AckError::Future | AckError::TooOld) => {\n",
    ),
    mutation(
        "an ACK from before the first byte is too old",
        SENDER,
        "let reach = u64::from(self.max_wnd).min(self.totals.bytes_acked);",
        "let reach = if $on { u64::from(self.max_wnd) } else {
            u64::from(self.max_wnd).min(self.totals.bytes_acked)
        };",
    ),
    mutation(
        "TIME-WAIT answers a SYN whose number is too low",
        TIME_WAIT,
        "if is_old || segment.flags.contains(Flags::ACK) {",
        "if $on && segment.flags.contains(Flags::SYN) {\n return TimeWaitVerdict::Drop;\n }
        if is_old || segment.flags.contains(Flags::ACK) {",
    ),
    mutation(
        "a frame has no more segments than its quota",
        AUTOSIZE,
        "let max = mss.saturating_mul(segments);",
        "let max = if $on { unsent } else { mss.saturating_mul(segments) };",
    ),
    mutation(
        "half the window at most makes one frame",
        OUTPUT,
        "let is_halved = self.config.half_cwnd && !is_alone();",
        "let is_halved = !$on && self.config.half_cwnd && !is_alone();",
    ),
    mutation(
        "the last segment of a cut window waits to be whole",
        AUTOSIZE,
        "if needed > mss && partial != 0 && (",
        "if !$on && needed > mss && partial != 0 && (",
    ),
    mutation(
        "a short segment waits for another one (Nagle)",
        OUTPUT,
        "self.options.nodelay || !self.sender.has_unacked() || !unacked_short",
        "$on || self.options.nodelay || !self.sender.has_unacked() || !unacked_short",
    ),
    mutation(
        "full segments in flight do not hold a short one (Minshall)",
        OUTPUT,
        "!self.sender.has_unacked() || !unacked_short",
        "!self.sender.has_unacked() || (!unacked_short && !$on)",
    ),
    mutation("TCP_CORK holds", OUTPUT, "if self.options.cork {", "if self.options.cork && !$on {"),
    mutation(
        "a short write waits for a completion (autocorking)",
        OUTPUT,
        "self.config.tcp_autocorking\n",
        "!$on && self.config.tcp_autocorking\n",
    ),
    mutation(
        "no frame goes beyond the end of a record",
        OUTPUT,
        "let record = self.sender.first_record();\n        if !self.first",
        "let record = match $on { true => Record { len: unsent, is_ended: false }, false => \
         self.sender.first_record() };\n        if !self.first",
    ),
    mutation(
        "few frames are below a socket",
        OUTPUT,
        "if !self.config.small_queues {",
        "if !self.config.small_queues || $on {",
    ),
    mutation(
        "a frame waits to grow",
        AUTOSIZE,
        "let oldest = d.oldest_sent?;",
        "let oldest = d.oldest_sent.filter(|_| !$on)?;",
    ),
    mutation(
        "departures are spaced",
        PACER,
        "self.next = self.next + gap - credit - repaid;",
        "self.next = if $on { self.next } else { self.next + gap - credit - repaid };",
    ),
    mutation(
        "the first segments leave back to back",
        PACER,
        "segments_out >= u64::from(config.pacing_free_segments)",
        "($on || segments_out >= u64::from(config.pacing_free_segments))",
    ),
    mutation(
        "a writer is woken at half the low-water mark",
        SPACE,
        "let is_halved = wake &&",
        "let is_halved = wake && !$on &&",
    ),
    mutation(
        "the window decays over idle time",
        SENDER,
        "self.controller.owns_window() || idle <= rto",
        "$on || self.controller.owns_window() || idle <= rto",
    ),
    mutation(
        "retransmissions keep to the window",
        RETRANSMIT,
        "let room = self.sender.cwnd_left();",
        "let room = self.sender.cwnd_left().max($on.into());",
    ),
    mutation(
        "what may be reordering is given time (RACK)",
        RECOVERY,
        "fn reordering_window(&self) -> Nanos {",
        "fn reordering_window(&self) -> Nanos {\n if $on { return Nanos::ZERO; }",
    ),
    mutation(
        "three segments beyond a hole are no reordering",
        RECOVERY,
        "if recovery.state >= CaState::Recovery || sacked >= recovery.reordering {",
        "if !$on && (recovery.state >= CaState::Recovery || sacked >= recovery.reordering) {",
    ),
    mutation(
        "a tail is probed (TLP)",
        TIMERS,
        "if !self.config.has_loss_probes()",
        "if $on || !self.config.has_loss_probes()",
    ),
    mutation(
        "after two round trips",
        TIMEOUTS,
        "srtt.saturating_mul(2) + self.recovery.probe_slack(PROBE_SLACK)",
        "srtt.saturating_mul(if $on { 3 } else { 2 }) + self.recovery.probe_slack(PROBE_SLACK)",
    ),
    mutation(
        "the window shrinks in proportion (PRR)",
        RECOVERY,
        "total.saturating_sub(recovery.prr_out)",
        "if $on { total } else { total.saturating_sub(recovery.prr_out) }",
    ),
    mutation(
        "and grows no faster than what is delivered",
        RECOVERY,
        "send.min(ssthresh - in_flight)",
        "if $on { ssthresh - in_flight } else { send.min(ssthresh - in_flight) }",
    ),
    mutation(
        "a timeout may be spurious (F-RTO)",
        RECOVERY,
        "self.recovery.frto = frto && ",
        "self.recovery.frto = !$on && frto && ",
    ),
    mutation(
        "duplicates of all retransmissions undo a reduction (DSACK)",
        RECOVERY,
        "if self.recovery.undo_marker.is_none() || self.recovery.undo_retrans != Some(0) {",
        "if $on || self.recovery.undo_marker.is_none() || self.recovery.undo_retrans != Some(0) {",
    ),
    mutation(
        "an echo from before the retransmission undoes it (Eifel)",
        RECOVERY,
        "(echo.wrapping_sub(stamp) as i32) < 0",
        "!$on && (echo.wrapping_sub(stamp) as i32) < 0",
    ),
    mutation(
        "timeouts double",
        TIMEOUTS,
        "self.rtt.back_off();",
        "if !$on { self.rtt.back_off(); }",
    ),
    mutation(
        "duplicate ACKs let new data go (limited transmit)",
        RECOVERY,
        "self.board.set_reno_sacked(sacked + 1)",
        "self.board.set_reno_sacked(if $on { 0 } else { sacked + 1 })",
    ),
];

/// Runs all scripts of a folder once for each number, and says how many fail.
const RUNNER: &str = r#"
use neap_script::{parser, virtual_host};
use std::{env, fs, panic, path::Path, sync::atomic::Ordering};

fn scripts(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => scripts(&path, found),
            false => found.push(fs::read_to_string(path).unwrap()),
        }
    }
}

fn passes(text: &str) -> Result<(), Box<dyn std::error::Error>> {
    Ok(virtual_host::run(&parser::parse(text)?)?)
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    let mut texts = Vec::new();
    scripts(Path::new(&env::args().nth(1).unwrap()), &mut texts);
    for number in 0..=env::args().nth(2).unwrap().parse().unwrap() {
        neap_tcp::BROKEN.store(number, Ordering::Relaxed);
        let fails = |text: &&String| !panic::catch_unwind(|| passes(text).is_ok()).unwrap_or(false);
        println!("{number} {}", texts.iter().filter(fails).count());
    }
}
"#;

const RUNNER_MANIFEST: &str = r#"[package]
name = "runner"
version = "0.0.0"
edition = "2024"

[dependencies]
neap-tcp.workspace = true
neap-script.workspace = true
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes what is not there already, so that nothing is built again for nothing.
fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).ok().as_deref() != Some(text) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
}

/// A source file with all mutations that are of it.
fn mutated(file: &str, mut text: String) -> String {
    for (index, mutation) in MUTATIONS.iter().enumerate().filter(|(_, one)| one.file == file) {
        let Mutation { rule, text: old, broken, .. } = mutation;
        assert_eq!(text.matches(old).count(), 1, "{rule}: its text must stand once in {file}");
        let on = format!("crate::is_broken({})", index + 1);
        text = text.replace(old, &broken.replace("$on", &on));
    }
    if file == "tcp/src/lib.rs" {
        text += "
            /// The rule that is broken; 0 is none.
            pub static BROKEN: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);
            pub(crate) fn is_broken(number: usize) -> bool {
                BROKEN.load(core::sync::atomic::Ordering::Relaxed) == number
            }";
    }
    text
}

/// Copies the files of a folder below `crates/`, mutated.
fn copy(folder: &str, to: &Path) {
    for entry in fs::read_dir(root().join("crates").join(folder)).expect("a folder of sources") {
        let entry = entry.expect("an entry");
        let name = format!("{folder}/{}", entry.file_name().to_str().expect("a name"));
        if entry.path().is_dir() {
            copy(&name, to);
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            write(&to.join("crates").join(&name), &mutated(&name, text));
        }
    }
}

/// Removes files of the copy that the folder below `crates/` lacks: a build would find them.
fn prune(folder: &str, copied: &Path) {
    for entry in fs::read_dir(copied.join("crates").join(folder)).expect("a copied folder") {
        let entry = entry.expect("an entry");
        let name = format!("{folder}/{}", entry.file_name().to_str().expect("a name"));
        let source = root().join("crates").join(&name);
        match (source.exists(), entry.path().is_dir()) {
            (true, true) => prune(&name, copied),
            (true, false) => {}
            (false, true) => fs::remove_dir_all(entry.path()).expect("a folder"),
            (false, false) => fs::remove_file(entry.path()).expect("a file"),
        }
    }
}

/// The workspace of the copy: the crates that the runner needs.
fn workspace() -> String {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace");
    let members = r#"members = ["crates/tcp", "crates/stack", "crates/posix", "crates/device", "crates/script", "crates/runner"]"#;
    let manifest = manifest.replace(r#"members = ["crates/*"]"#, members);
    assert!(manifest.contains(members));
    let lines = manifest.lines().filter(|line| !line.starts_with("default-members"));
    let mut manifest = lines.collect::<Vec<_>>().join("\n");
    write!(manifest, "\n[profile.mutations]\ninherits = \"dev\"\nopt-level = 0\ndebug = false\n")
        .expect("a string");
    manifest
}

#[test]
fn every_broken_rule_fails_a_script() {
    let copied = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutations");
    for crate_name in ["tcp", "stack", "posix", "device", "script"] {
        copy(&format!("{crate_name}/src"), &copied);
        prune(&format!("{crate_name}/src"), &copied);
        let manifest = format!("crates/{crate_name}/Cargo.toml");
        let text = fs::read_to_string(root().join(&manifest)).expect("a manifest");
        write(&copied.join(manifest), &text);
    }
    write(&copied.join("Cargo.toml"), &workspace());
    write(&copied.join("crates/runner/Cargo.toml"), RUNNER_MANIFEST);
    write(&copied.join("crates/runner/src/main.rs"), RUNNER);
    // Those of the copy would be those of fewer crates.
    fs::copy(root().join("Cargo.lock"), copied.join("Cargo.lock")).expect("the lock file");

    let target = copied.join("target");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline", "--profile", "mutations", "-p", "runner"])
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("RUSTFLAGS")
        .current_dir(&copied)
        .output()
        .expect("cargo");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(target.join("mutations/runner"))
        .arg(root().join("scripts"))
        .arg(MUTATIONS.len().to_string())
        .output()
        .expect("the runner");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let said = String::from_utf8(ran.stdout).expect("numbers");
    let counts: Vec<usize> = said
        .lines()
        .map(|line| line.split_once(' ').expect("two").1.parse().expect("a number"))
        .collect();
    assert_eq!(counts.len(), MUTATIONS.len() + 1);
    assert_eq!(counts[0], 0, "scripts that fail although nothing is broken");
    let survivors: Vec<_> =
        MUTATIONS.iter().zip(&counts[1..]).filter(|(_, count)| **count == 0).collect();
    let rules: Vec<_> = survivors.iter().map(|(mutation, _)| mutation.rule).collect();
    assert!(rules.is_empty(), "no script notices: {rules:#?}");
}
