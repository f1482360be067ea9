//! Tests in network namespaces of their own.

#[path = "../../../neap/tests/common/processes.rs"]
mod processes;

use std::any::type_name;
use std::env;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

/// The longest that a test may take: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Tells a test that it is in its namespace.
const INSIDE: &str = "NEAP_TEST_NAMESPACE";

/// Says that a test cannot run here; not by `eprintln!`, which the harness swallows.
pub(crate) fn skip(reason: &str) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
}

/// Runs the calling test in a process of its own, in a network namespace that ends with it: the
/// test binary starts itself again for that. `test` must be written in the test function itself,
/// whose name is taken from it.
pub(crate) fn in_namespace<F: FnOnce()>(test: F) {
    if env::var_os(INSIDE).is_some() {
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
    let mut child = Command::new("unshare")
        .arg(flags)
        .arg(env::current_exe().expect("the test knows its binary"))
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare runs");
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (ended, end) = std::sync::mpsc::channel();
    let out = thread::spawn(move || {
        let text = read_all(stdout.expect("a pipe"));
        let _ = ended.send(());
        text
    });
    let err = thread::spawn(move || read_all(stderr.expect("a pipe")));
    let hangs = end.recv_timeout(PATIENCE).is_err();
    if hangs {
        processes::kill_all(child.id());
    }
    let status = child.wait().expect("a child can be waited for");
    let (out, err) = (out.join().expect("read"), err.join().expect("read"));
    let passed = status.success() && out.contains("1 passed");
    assert!(passed, "{name} {}: {status}\n{out}{err}", if hangs { "hangs" } else { "failed" });
    for line in err.lines().filter_map(|line| line.strip_prefix("SKIP: ")) {
        skip(line);
    }
}

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
