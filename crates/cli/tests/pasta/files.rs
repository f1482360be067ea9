//! Files and folders of the caller: the process ID, the log.

use super::folder::Folder;
use super::namespace::{in_namespace, run, skip};
use super::{NO_PORTS, host, succeed};
use std::process::{Command, Stdio};

#[test]
fn root_may_leave_the_process_id_where_nobody_may_not() {
    in_namespace(|| {
        if !run("cat /proc/self/uid_map").split_whitespace().eq(["0", "0", "4294967295"]) {
            return skip("only the machine's root becomes nobody");
        }
        host();
        let folder = Folder::new("pasta-pid");
        let (node, file) = (folder.path().join("tun"), folder.path().join("pid"));
        // Nobody may open the device, and not write into the folder.
        let script = "mknod -m 666 \"$1\" c 10 200 && mount --bind \"$1\" /dev/net/tun && shift && \
                      exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(&node);
        command.arg(env!("CARGO_BIN_EXE_neap")).args(["pasta", "-q", "-P"]).arg(&file);
        command.args(NO_PORTS).args(["--", "true"]).stdin(Stdio::null());
        succeed(command);
        assert!(file.exists());
    });
}
