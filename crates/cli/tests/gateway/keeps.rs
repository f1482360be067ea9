//! What a command keeps of what its user has.

use super::namespace::in_namespace;
use super::{finish, in_network};
use std::process::{Command, Stdio};

/// A shell that changes something, and then runs a script in a sandbox. `change` ends with what
/// executes the program.
fn shell(change: &str, script: &str) -> Command {
    let mut command = Command::new("sh");
    let line = format!("{change} \"$0\" gateway run --quiet -- sh -c \"$1\"");
    command.args(["-c", &line, env!("CARGO_BIN_EXE_neap"), script]).stdin(Stdio::null());
    command
}

#[test]
fn a_command_keeps_its_limit_of_descriptors() {
    in_namespace(|| {
        in_network(|| {
            let command = shell("ulimit -Sn 256; exec", "ulimit -Sn");
            assert_eq!(finish(command).1, "256\n");
        });
    });
}

#[test]
fn a_signal_that_is_ignored_stays_so_for_the_command() {
    in_namespace(|| {
        in_network(|| {
            let script = "kill -HUP $$; echo survived";
            let (status, stdout, _) = finish(shell("trap '' HUP; exec", script));
            assert_eq!((status, stdout.as_str()), (Some(0), "survived\n"));
            // Otherwise the signal ends the command. Whoever runs the tests may ignore it.
            let default = "exec env --default-signal=HUP";
            assert_eq!(finish(shell(default, script)).0, Some(129));
        });
    });
}
