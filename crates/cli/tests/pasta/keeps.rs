//! What a command keeps of what its user has.

use super::namespace::{in_namespace, run};
use super::{NO_PORTS, host, succeed};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

/// A shell that changes something, and then runs a script in a namespace.
fn shell(change: &str, script: &str) -> Command {
    let mut command = Command::new("sh");
    let options = NO_PORTS.join(" ");
    let line = format!("{change}; exec \"$0\" pasta --runas 0 -q {options} -- sh -c \"$1\"");
    command.args(["-c", &line, env!("CARGO_BIN_EXE_neap"), script]).stdin(Stdio::null());
    command
}

#[test]
fn a_command_keeps_its_limit_of_descriptors() {
    in_namespace(|| {
        host();
        assert_eq!(succeed(shell("ulimit -Sn 256", "ulimit -Sn")), "256\n");
    });
}

#[test]
fn a_signal_that_is_ignored_ends_neither_the_gateway_nor_its_command() {
    in_namespace(|| {
        host();
        let survives = ("trap '' INT", "echo there; sleep 1; echo survived", "survived\n");
        let ends = (":", "echo there; exec sleep 1000", "");
        for (change, script, said) in [survives, ends] {
            let mut command = shell(change, script);
            let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
            let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
            out.read_line(&mut String::new()).expect("the command runs");
            run(&format!("kill -INT {}", child.id()));
            let mut rest = String::new();
            out.read_to_string(&mut rest).expect("text");
            child.wait().expect("it ends");
            assert_eq!(rest, said, "{change}");
        }
    });
}
