//! Commands that are stopped, by themselves and by a terminal, and go on.

use super::namespace::{in_namespace, run};
use super::{gateway, in_network, terminal};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Command, Stdio};

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
fn a_shell_sees_a_command_stopped_and_takes_it_back() {
    in_namespace(|| {
        in_network(|| {
            let gateway = gateway(&["--", "sh", "-c", "echo ready; read line; exit $line"]);
            let (mut keyboard, end) = terminal::terminal();
            let script = "set -m; \"$@\"; echo stopped $?; fg; echo ended $?";
            let mut command = Command::new("setsid");
            command.args(["--ctty", "bash", "-c", script, "-"]);
            command.arg(gateway.get_program()).args(gateway.get_args());
            let output = end.try_clone().expect("a descriptor");
            let errors = end.try_clone().expect("a descriptor");
            command.stdin(end).stdout(output).stderr(errors);
            let mut child = command.spawn().expect("a shell runs");
            drop(command);
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
