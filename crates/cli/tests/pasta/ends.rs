//! What ends with what: the command with its gateway, and the gateway with its interface.

use super::folder::Folder;
use super::namespace::{in_namespace, run};
use super::{NO_PORTS, Namespace, host, join, pasta};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
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
            gateway.wait().expect("it ends");
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
