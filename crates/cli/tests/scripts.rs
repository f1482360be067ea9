//! The scripts of the project on this machine's Linux.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Scripts whose outcome hangs on no timer, so that a busy machine passes them.
const FOLDERS: [&str; 6] = ["errors", "options", "epoll", "receiving", "resets", "order"];

/// Says that a test cannot run here; not by `eprintln!`, which the harness swallows.
fn skip(reason: &str) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
}

/// Runs scripts on the kernel: whether all ended as they should, and what was printed. `None`
/// without a namespace to run them in.
fn on_the_kernel(paths: &[PathBuf]) -> Option<(bool, String)> {
    if !rustix::process::getuid().is_root() {
        skip("scripts on the kernel need root");
        return None;
    }
    if !Path::new("/dev/net/tun").exists() {
        skip("scripts on the kernel need /dev/net/tun");
        return None;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_neap"))
        .args(["lab", "script", "--kernel", "--quiet"])
        .args(paths)
        .output()
        .expect("the program runs");
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Some((output.status.success(), said.concat()))
}

#[test]
fn scripts_pass_on_the_kernel() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    if let Some((passed, said)) = on_the_kernel(&FOLDERS.map(|topic| folder.join(topic))) {
        assert!(passed, "{said}");
    }
}

#[test]
fn only_a_difference_where_a_script_says_is_excused() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, script, passes, expected) in [
        ("here", "+0 close(9) = 0 // linux: differs, here", true, "1 differ as they say"),
        (
            "not-here",
            "// linux: differs, here\n+0 epoll_create(1) = 3\n+0 close(9) = 0",
            false,
            ":3:1: ",
        ),
        ("nowhere", "+0 epoll_create(1) = 3 // linux: differs, here", false, ":1: the kernel does"),
        (
            "syntax",
            "+0 shutdown(3, SHUT_FOO) = 0 // linux: differs, here",
            false,
            ":1:16: expected",
        ),
        (
            "sysctl",
            "`sysctl -q net.ipv4.x=1`\n+0 close(9) = 0 // linux: differs, here",
            false,
            ":1:2: net.ipv4.x",
        ),
    ] {
        let file = folder.join(format!("differs-{name}.pkt"));
        std::fs::write(&file, script).expect("a script");
        let Some((passed, said)) = on_the_kernel(&[file]) else { return };
        assert!(passed == passes && said.contains(expected), "{name}: {said}");
    }
}
