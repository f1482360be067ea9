//! What ends with what: the command with its gateway, and the gateway with its interface.

use super::folder::Folder;
use super::namespace::{in_namespace, run};
use super::{NO_PORTS, Namespace, PROGRAM, TARGET, finish, host, join, pasta};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that an end may take: far above what it takes.
const PATIENCE: Duration = Duration::from_mins(1);

/// Whether a process ends in time.
pub(super) fn ends(pid: u32) -> bool {
    let status = format!("/proc/{pid}/status");
    let until = Instant::now() + PATIENCE;
    // Nobody may be there to take the exit status.
    while fs::read_to_string(&status).is_ok_and(|text| !text.contains("State:\tZ")) {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// The first child of a process.
pub(super) fn child_of(pid: u32) -> u32 {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(path).expect("it runs");
    children.split_whitespace().next().expect("a child").parse().expect("a number")
}

/// A gateway with a command that runs, the process in its namespace, and the command.
fn start() -> (Child, u32, u32) {
    let options = [&["-q"], &NO_PORTS[..], &["--", "sh", "-c", "echo there; sleep 1000"]];
    let mut command = pasta(&options.concat());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    out.read_line(&mut String::new()).expect("the command runs");
    let inside = child_of(child.id());
    (child, inside, child_of(inside))
}

#[test]
fn a_command_ends_with_its_gateway() {
    in_namespace(|| {
        host();
        for signal in ["TERM", "INT", "KILL"] {
            let (mut gateway, _, command) = start();
            run(&format!("kill -{signal} {}", gateway.id()));
            let status = gateway.wait().expect("it ends").code();
            assert_eq!(status, if signal == "KILL" { None } else { Some(0) }, "SIG{signal}");
            let ends = ends(command);
            if !ends {
                run(&format!("kill -KILL {command}"));
            }
            assert!(ends, "after SIG{signal} the command goes on without a network");
        }
    });
}

#[test]
fn a_command_ends_with_the_process_that_holds_its_namespace() {
    in_namespace(|| {
        host();
        let (mut gateway, inside, command) = start();
        run(&format!("kill -KILL {inside}"));
        gateway.wait().expect("it ends");
        let ends = ends(command);
        if !ends {
            run(&format!("kill -KILL {command}"));
        }
        assert!(ends, "the command goes on without a network");
    });
}

#[test]
fn the_end_of_the_interface_ends_the_background() {
    in_namespace(|| {
        host();
        let folder = Folder::new("pasta-device");
        let file = folder.path().join("pid");
        let namespace = Namespace::new();
        join(&namespace, &[&NO_PORTS[..], &["-P", file.to_str().expect("a name")]].concat());
        let pid = fs::read_to_string(&file).expect("a file");
        run(&format!("nsenter -t {} -n ip link delete eth7", namespace.pid()));
        assert!(ends(pid.trim().parse().expect("a number")), "it goes on without its interface");
    });
}

#[test]
fn a_command_whose_interface_goes_has_failed() {
    in_namespace(|| {
        host();
        let script = "ip link delete eth7; sleep 1000";
        let options = [&["-q"], &NO_PORTS[..], &["--", "sh", "-c", script]].concat();
        let (status, _, said) = finish(pasta(&options));
        assert_eq!((status, said.as_str()), (Some(1), "pasta: the interface eth7 is gone\n"));
    });
}

/// In the namespace: sends as much as anybody takes, while the server takes nothing, and ends.
pub(super) fn upload_and_end(server: SocketAddr) {
    /// More than all buffers hold.
    const UPLOAD: usize = 256 << 20;
    let mut stream = TcpStream::connect(server).expect("the server accepts");
    stream.set_write_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    stream.write_all(&vec![0; UPLOAD]).expect_err("nobody takes it all");
}

#[test]
fn the_end_of_a_command_resets_what_is_unfinished() {
    in_namespace(|| {
        host();
        run("ip address add 203.0.113.7/24 dev far");
        let listener = TcpListener::bind(("203.0.113.7", 0)).expect("a port");
        let server = listener.local_addr().expect("an address");
        let own = env::current_exe().expect("this binary");
        let mut command = pasta(&[&["-q", "--config-net"], &NO_PORTS[..], &["--"]].concat());
        command.arg(own).args(["--exact", "inside", "--nocapture"]);
        command.env(PROGRAM, "upload and end").env(TARGET, server.to_string());
        let (status, out, said) = finish(command);
        assert!(status == Some(0) && out.contains("1 passed"), "{out}{said}");
        let (mut stream, _) = listener.accept().expect("a connection");
        let error = stream.read_to_end(&mut Vec::new()).expect_err("that was not the end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    });
}

#[test]
fn the_status_of_a_command_is_its_own_whatever_it_is() {
    in_namespace(|| {
        host();
        let options = [&["-q"], &NO_PORTS[..], &["--", "sh", "-c", "exit 125"]].concat();
        assert_eq!(finish(pasta(&options)).0, Some(125));
    });
}

/// As for a user who has many programs that watch folders.
#[test]
fn the_end_of_a_name_is_seen_where_the_kernel_tells_nobody_of_it() {
    in_namespace(|| {
        let folder = Folder::new("pasta-name");
        // A network namespace of a user namespace, which gets limits of its own.
        let namespace = Namespace::by("unshare -rn unshare -n");
        let (name, file) = (folder.path().join("name"), folder.path().join("pid"));
        symlink(format!("/proc/{}/ns/net", namespace.pid()), &name).expect("a link");
        let script = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$0\" \"$@\"";
        let mut command = Command::new("nsenter");
        command.args(["-t", &namespace.pid(), "-U", "--preserve-credentials", "sh", "-c", script]);
        command.args([env!("CARGO_BIN_EXE_neap"), "pasta", "--runas", "0"]).args(NO_PORTS);
        command.arg("-P").arg(&file).arg("--netns").arg(&name).stdin(Stdio::null());
        let (status, _, said) = finish(command);
        assert!(status == Some(0) && said.contains("looked for once a second"), "{said}");
        let gateway = fs::read_to_string(&file).expect("a file").trim().parse().expect("a number");
        fs::remove_file(&name).expect("it is there");
        assert!(ends(gateway), "it goes on without its name");
    });
}

#[test]
fn the_log_says_that_ports_are_followed_no_longer() {
    in_namespace(|| {
        host();
        let (folder, namespace) = (Folder::new("pasta-follow"), Namespace::new());
        let (file, log) = (folder.path().join("pid"), folder.path().join("log"));
        let mut command = pasta(&["--config-net", "-P"]);
        command.arg(&file).arg("-l").arg(&log).arg(namespace.pid());
        assert_eq!(finish(command).0, Some(0));
        let gateway = fs::read_to_string(&file).expect("a file").trim().parse().expect("a number");
        run(&format!("kill -KILL {}", child_of(gateway)));
        while !fs::read_to_string(&log).expect("a file").contains("followed no longer") {
            thread::yield_now();
        }
    });
}
