//! What a machine does not give to a sandbox is said in one line, with what gives it.

use super::finish;
use super::namespace::{in_namespace, skip};
use std::process::{Command, Stdio};

/// Starts a sandbox from a shell, behind a script that takes something away, in namespaces that
/// `unshare` makes with `flags`. `None` if this test may not take it away.
fn refused(flags: &[&str], script: &str) -> Option<String> {
    let mut command = Command::new("unshare");
    let line = format!("set -e; {script} || exit 77; exec \"$0\" gateway run -- true");
    command.args(flags).args(["sh", "-c", &line, env!("CARGO_BIN_EXE_neap")]);
    command.stdin(Stdio::null());
    let (status, _, stderr) = finish(command);
    if status == Some(77) {
        skip(&format!("no right to do it: {script}: {stderr}"));
        return None;
    }
    assert_eq!(status, Some(1), "{script}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{script}: {stderr}");
    Some(stderr)
}

#[test]
fn what_the_machine_does_not_give_is_said_in_one_line() {
    in_namespace(|| {
        for (flags, script, hint) in [
            (&["-r"][..], "echo 0 >/proc/sys/user/max_user_namespaces", "max_user_namespaces"),
            (&["-m"], "mount -t tmpfs none /dev/net", "there is no /dev/net/tun"),
            (
                // Its owner is nobody in the namespace of the sandbox, whose root has no right to
                // it then.
                &["-m"],
                "mount -t tmpfs none /dev/net && touch /dev/net/tun && chmod 600 /dev/net/tun && \
                 chown 1 /dev/net/tun",
                "may not open",
            ),
        ] {
            if let Some(said) = refused(flags, script) {
                assert!(said.contains(hint), "{script}: {said}");
            }
        }
    });
}
