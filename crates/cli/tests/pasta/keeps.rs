//! What a command keeps of what its user has.

use super::namespace::in_namespace;
use super::{NO_PORTS, host, succeed};
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
