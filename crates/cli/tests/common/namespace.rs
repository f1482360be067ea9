//! Tests in network namespaces of their own.

#[path = "../../../neap/tests/common/processes.rs"]
mod processes;

use std::any::type_name;
use std::env;
use std::io::{Read, Write};
use std::process::{Command, Output};
use std::time::Duration;

/// The longest that a test may take: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Says that a test cannot run here; not by `eprintln!`, which the harness swallows.
pub(crate) fn skip(reason: &str) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
}

/// Runs the calling test in a process of its own, in a network namespace that ends with it: the
/// test binary starts itself again for that. `test` must be written in the test function itself,
/// whose name is taken from it.
pub(crate) fn in_namespace<F: FnOnce()>(test: F) {
    if env::var_os(processes::INSIDE).is_some() {
        return test();
    }
    let Some(flags) = ["-n", "-rn"].into_iter().find(|flags| {
        let probe = "ip tuntap add dev probe mode tun && ip tuntap del dev probe mode tun && \
                     unshare -n true";
        let output = Command::new("unshare").args([flags, "sh", "-c", probe]).output();
        output.is_ok_and(|output| output.status.success())
    }) else {
        return skip("no right to make a network namespace with a TUN interface in it");
    };
    let path = type_name::<F>().split_once("::").map_or("", |(_, path)| path);
    let name = path.split("::{{closure}}").next().unwrap_or_default();
    let own = env::current_exe().expect("the test knows its binary");
    let mut command = Command::new("unshare");
    command.arg(flags).arg(own).args(["--exact", name, "--nocapture"]);
    let ended = processes::run_inside(&mut command, PATIENCE);
    ended.expect_passed(name);
    for line in ended.err.lines().filter_map(|line| line.strip_prefix("SKIP: ")) {
        skip(line);
    }
}

#[allow(dead_code, reason = "not all tests read from programs")]
pub(crate) fn read_all(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a command line in the namespace of this thread; it must succeed. Returns what it printed.
pub(crate) fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().expect("a program")).args(words).output().expect(line);
    let Output { status, stdout, stderr } = output;
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{line}: {stdout}{stderr}");
    stdout
}
