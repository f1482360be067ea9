//! What a machine does not give to a gateway is said in one line, with what gives it, by every
//! face.

use super::finish;
use super::host::Host;
use super::namespace::{in_namespace, run, skip};
use std::process::{Command, Stdio};

/// All faces that open the device, and the one that makes the namespaces beside `run`. `GUEST` is a
/// process in a network namespace.
const RUN: &str = "gateway run -- true";
const TUN: &str = "gateway tun --tun t0";
const PASTA: &str = "pasta --foreground --runas 0 GUEST";
const PASTA_COMMAND: &str = "pasta --foreground --runas 0 -- true";
const SLIRP: &str = "slirp4netns GUEST tap0";

/// Takes the device away.
const NO_DEVICE: &str = "mount -t tmpfs none /dev/net";
/// Gives it to somebody else. Its owner is nobody in the namespace of a sandbox, whose root has no
/// right to it then; the gateways in this namespace have given up the right to open what is not
/// theirs.
const CLOSED_DEVICE: &str = "mount -t tmpfs none /dev/net && touch /dev/net/tun && \
                             chmod 600 /dev/net/tun && chown 1 /dev/net/tun";
/// Lets nobody have namespaces of users.
const NO_NAMESPACES: &str = "echo 0 >/proc/sys/user/max_user_namespaces";

/// Starts a gateway from a shell, behind a script that takes something away, in namespaces that
/// `unshare` makes with `flags`. `None` if this test may not take it away.
fn refused(flags: &[&str], script: &str, gateway: &str) -> Option<String> {
    let mut command = Command::new("unshare");
    let line = format!("set -e; {script} || exit 77; exec {gateway}");
    command.args(flags).args(["sh", "-c", &line]);
    command.stdin(Stdio::null());
    let (status, _, stderr) = finish(command);
    if status == Some(77) {
        skip(&format!("no right to do it: {script}: {stderr}"));
        return None;
    }
    assert_eq!(status, Some(1), "{script}: {gateway}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{script}: {gateway}: {stderr}");
    Some(stderr)
}

#[test]
fn what_the_machine_does_not_give_is_said_in_one_line() {
    in_namespace(|| {
        // What `pasta` copies.
        run("ip link set lo up");
        run("ip link add eth7 type veth peer name far");
        run("ip link set far up");
        run("ip link set eth7 up");
        run("ip address add 192.0.2.10/24 dev eth7");
        run("ip route add default via 192.0.2.1 dev eth7");
        let guest = Host::new(false);
        // Who is not root has no right to open what is not his.
        let nobody = "setpriv --inh-caps=-all --bounding-set=-dac_override,-dac_read_search";
        let here = |gateway: &str| {
            let gateway = gateway.replace("GUEST", &guest.pid().to_string());
            format!("{} {gateway}", env!("CARGO_BIN_EXE_neap"))
        };
        let bare = |gateway: &str| format!("{nobody} {}", here(gateway));
        let mut cases = Vec::new();
        for gateway in [RUN, PASTA_COMMAND] {
            cases.push((&["-r"][..], NO_NAMESPACES, here(gateway), "max_user_namespaces"));
            cases.push((&["-m"], CLOSED_DEVICE, here(gateway), "may not open"));
        }
        for gateway in [TUN, PASTA, SLIRP] {
            cases.push((&["-m"], CLOSED_DEVICE, bare(gateway), "may not open"));
        }
        for gateway in [RUN, TUN, PASTA, PASTA_COMMAND, SLIRP] {
            cases.push((&["-m"], NO_DEVICE, here(gateway), "there is no /dev/net/tun"));
        }
        for (flags, script, gateway, hint) in cases {
            if let Some(said) = refused(flags, script, &gateway) {
                assert!(said.contains(hint), "{script}: {gateway}: {said}");
            }
        }
    });
}
