//! Commands that are stopped, by themselves and by a terminal, and go on.

use super::namespace::{in_namespace, run};
use super::{gateway, in_network, terminal};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use std::fs::{File, read_to_string};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;

#[test]
fn a_command_that_stops_itself_stops_the_gateway_until_it_is_continued() {
    in_namespace(|| {
        in_network(|| {
            for signal in ["STOP", "TSTP"] {
                let script = format!("kill -{signal} $$; read line; exit $line");
                let mut command = gateway(&["--", "sh", "-c", &script]);
                command.stdin(Stdio::piped()).stdout(Stdio::null());
                let mut child = command.spawn().expect("neap runs");
                let pid = Pid::from_child(&child);
                let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).expect("it runs");
                assert!(stopped.expect("waited").1.stopped(), "{signal}");
                child.stdin.take().expect("a pipe").write_all(b"3\n").expect("written");
                run(&format!("kill -CONT {}", child.id()));
                assert_eq!(child.wait().expect("it ends").code(), Some(3), "{signal}");
            }
        });
    });
}

#[test]
fn a_command_that_stops_its_whole_group_goes_on_with_it() {
    in_namespace(|| {
        in_network(|| {
            for signal in ["STOP", "TSTP"] {
                let script = format!("kill -{signal} 0; read line; exit $line");
                let mut command = gateway(&["--", "sh", "-c", &script]);
                command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
                let mut child = command.spawn().expect("neap runs");
                let pid = Pid::from_child(&child);
                let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).expect("it runs");
                assert!(stopped.expect("waited").1.stopped(), "{signal}");
                kill_process_group(pid, Signal::CONT).expect("it is there");
                child.stdin.take().expect("a pipe").write_all(b"3\n").expect("written");
                assert_eq!(child.wait().expect("it ends").code(), Some(3), "{signal}");
            }
        });
    });
}

/// A shell with the gateway as its job, in a terminal of its own, and the keyboard.
fn shell(script: &str, arguments: &[&str]) -> (Child, File) {
    let gateway = gateway(arguments);
    let (keyboard, end) = terminal::terminal();
    let mut command = Command::new("setsid");
    command.args(["--ctty", "bash", "-c", script, "-"]);
    command.arg(gateway.get_program()).args(gateway.get_args());
    let output = end.try_clone().expect("a descriptor");
    let errors = end.try_clone().expect("a descriptor");
    command.stdin(end).stdout(output).stderr(errors);
    (command.spawn().expect("a shell runs"), keyboard)
}

/// The first child of a process once there is one, or nothing if the process has ended.
fn child_of(pid: u32) -> Option<u32> {
    loop {
        let text = read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        if let Some(child) = text.split_whitespace().next() {
            return Some(child.parse().expect("a number"));
        }
        let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
        if stat.contains(") Z ") {
            return None;
        }
        thread::yield_now();
    }
}

/// Whether a process runs and has no handler yet for the key that stops.
fn lacks_handler(pid: u32) -> bool {
    let status = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let handled = of("SigCgt:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    let is_over = of("State:").is_none_or(|state| state.starts_with(['Z', 'X']));
    !is_over && handled.is_some_and(|mask| mask & 1 << (Signal::TSTP.as_raw() - 1) == 0)
}

#[test]
fn a_key_that_stops_before_there_is_a_sandbox_hangs_nothing() {
    in_namespace(|| {
        in_network(|| {
            let script = "set -m; \"$@\"; while [ $? -gt 128 ]; do fg; done; echo ended";
            // Whether the key came before the half in the sandbox had a handler for it.
            let types_early = || {
                let (mut child, mut keyboard) = shell(script, &["--", "true"]);
                let mut shown = BufReader::new(keyboard.try_clone().expect("a descriptor")).lines();
                let inside = child_of(child.id()).and_then(child_of);
                keyboard.write_all(b"\x1a").expect("typed");
                let is_early = inside.is_some_and(lacks_handler);
                until(&mut shown, "ended");
                assert!(child.wait().expect("it ends").success());
                is_early
            };
            assert!((0..100).any(|_| types_early()), "the key has always come too late");
        });
    });
}

#[test]
fn a_line_appears_in_a_terminal_that_stops_what_writes_from_behind() {
    in_namespace(|| {
        in_network(|| {
            // It says that pings are not allowed.
            std::fs::write("/proc/sys/net/ipv4/ping_group_range", "1 0").expect("a setting");
            let script = "stty tostop; set -m; \"$@\" & wait; echo ended $?";
            let (mut child, keyboard) = shell(script, &["--", "true"]);
            let mut shown = BufReader::new(keyboard).lines();
            let mut lines = std::iter::from_fn(|| shown.next()).map(|line| line.expect("text"));
            assert!(lines.any(|line| line.contains("ping_group_range")));
            assert!(lines.any(|line| line.trim_end() == "ended 0"));
            assert!(child.wait().expect("it ends").success());
        });
    });
}

#[test]
fn a_shell_sees_a_command_stopped_and_takes_it_back() {
    in_namespace(|| {
        in_network(|| {
            let script = "set -m; \"$@\"; echo stopped $?; fg; echo ended $?";
            let inside = ["--", "sh", "-c", "echo ready; read line; exit $line"];
            let (mut child, mut keyboard) = shell(script, &inside);
            let mut shown = BufReader::new(keyboard.try_clone().expect("a descriptor")).lines();
            until(&mut shown, "ready");
            keyboard.write_all(b"\x1a").expect("typed");
            until(&mut shown, "stopped 147");
            keyboard.write_all(b"5\n").expect("typed");
            until(&mut shown, "ended 5");
            assert!(child.wait().expect("it ends").success());
        });
    });
}

/// Waits for a line of the terminal that ends so.
fn until(shown: &mut Lines<BufReader<File>>, expected: &str) {
    let is_there =
        |line: std::io::Result<String>| line.expect("text").trim_end().ends_with(expected);
    assert!(shown.any(is_there), "{expected}");
}

#[test]
fn a_change_of_the_window_reaches_the_command() {
    in_namespace(|| {
        in_network(|| {
            let script = "trap 'exit 3' WINCH; echo ready; while :; do sleep 0.01; done";
            let mut command = gateway(&["--", "sh", "-c", script]);
            let mut child = command.stdout(Stdio::piped()).spawn().expect("neap runs");
            let mut shown = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            assert_eq!(shown.next().expect("a line").expect("text"), "ready");
            run(&format!("kill -WINCH {}", child.id()));
            assert_eq!(child.wait().expect("it ends").code(), Some(3));
        });
    });
}
