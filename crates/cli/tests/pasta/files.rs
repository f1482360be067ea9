//! Files and folders of the caller: the process ID, the log.

use super::folder::Folder;
use super::namespace::{in_namespace, run, skip};
use super::{NO_PORTS, Namespace, finish, host, pasta, succeed};
use std::fs;
use std::net::TcpListener;
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

#[test]
fn the_log_file_has_errors() {
    in_namespace(|| {
        host();
        let folder = Folder::new("pasta-log");
        let file = folder.write("log", "");
        let _taken = TcpListener::bind("0.0.0.0:8080").expect("a port");
        let (status, _, stderr) = finish(pasta(&["-q", "-l", &file, "-t", "8080", "--", "true"]));
        assert!(status == Some(1) && stderr.contains("8080"), "{status:?} {stderr}");
        assert!(fs::read_to_string(&file).expect("a file").contains("8080"));
    });
}

#[test]
fn the_background_holds_no_folder_and_no_descriptor_of_its_caller() {
    in_namespace(|| {
        host();
        let (folder, namespace) = (Folder::new("pasta-held"), Namespace::new());
        // Its files are named from the caller's folder. A port that is followed keeps the process
        // in the namespace.
        let options = format!("-q -t none -u none -U none -P pid {}", namespace.pid());
        let line = format!("exec 9<.; exec \"$0\" pasta --runas 0 {options}");
        let mut command = Command::new("sh");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_neap")]).current_dir(folder.path());
        succeed(command);
        let pid = fs::read_to_string(folder.path().join("pid")).expect("a file");
        let pid = pid.trim().parse().expect("a number");
        for process in [pid, super::ends::child_of(pid)] {
            let of = |name: &str| fs::read_link(format!("/proc/{process}/{name}")).ok();
            assert_ne!(of("fd/9").as_deref(), Some(folder.path()));
            assert_eq!(of("cwd"), Some("/".into()));
        }
    });
}
