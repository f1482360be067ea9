//! `neap gateway`: a sandbox, or whatever is behind a TUN, reaches the network through sockets of
//! this machine.

mod calls;
pub(crate) mod command;
pub(crate) mod confine;
mod device_end;
pub(crate) mod ending;
mod etc;
pub(crate) mod face;
mod file_limit;
mod init;
mod inside;
mod job;
pub(crate) mod namespace;
mod options;
pub(crate) mod own_namespaces;
mod passing;
mod ports;
pub(crate) mod refused;
mod resolvers;
mod routes;
mod run;
mod sandbox;
pub(crate) mod shown;
mod tun;
pub(crate) mod tunnel;
pub(crate) mod watching;
pub(crate) mod way_out;

pub(crate) use device_end::DeviceEnd;
pub(crate) use file_limit::{FileLimit, LEAST_FOR_FLOWS, raise_file_limit};
pub(crate) use namespace::Namespaces;

use crate::standard_error::say;
use clap::Subcommand;
use neap_gateway::ResolversFile;
use std::process::ExitCode;
use std::sync::Arc;

/// Exit status for arguments that are not understood, as clap has it.
const BAD_ARGUMENTS: u8 = 2;

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::Args),
    Tun(tun::Args),
    #[command(hide = true)]
    Inside(inside::Args),
    #[command(hide = true)]
    Join(namespace::Args),
    /// Read the file of the resolvers for a gateway, which has the standard input's other end
    #[command(hide = true)]
    Resolvers,
}

pub(crate) fn main(command: Command) -> ExitCode {
    match command {
        Command::Run(args) => report(run::main(&args)),
        Command::Tun(args) => report(tun::main(&args)),
        Command::Inside(args) => inside::main(&args),
        Command::Join(args) => namespace::main(&args),
        Command::Resolvers => read_resolvers(),
    }
}

/// Files of one folder are the only need of this process. The gateway says what this kernel does
/// not take away.
fn read_resolvers() -> ExitCode {
    let needs = confine::Needs { names: true, ..confine::Needs::default() };
    let confined = confine::confine(&needs, |_| ());
    if confined.is_ok() { resolvers::main() } else { ExitCode::FAILURE }
}

/// Gives up what is not needed, as [`confine`](confine::confine); the log has what the kernel does
/// not take.
fn give_up(needs: &confine::Needs) -> Result<Option<Arc<dyn ResolversFile>>, Failure> {
    confine::confine(needs, |what| tracing::warn!("{what}")).map_err(Failure::System)
}

/// Says that pings are not answered, if the host does not let the gateway pass them on.
pub(crate) fn tell_of_echo(gateway: &neap_gateway::Gateway, say: impl FnOnce(&str)) {
    let [v4, _] = gateway.passes_echo();
    if !v4 {
        say("pings of other hosts are not answered, as this user may not send them; \
             `sysctl net.ipv4.ping_group_range=\"0 2147483647\"` lets every user");
    }
}

/// Why there is no gateway.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for makes no sense.
    Arguments(String),
    /// The machine refuses.
    System(String),
}

fn report(result: Result<ExitCode, Failure>) -> ExitCode {
    match result {
        Ok(status) => status,
        Err(Failure::Arguments(why)) => {
            say(&format_args!("neap gateway: {why}"));
            ExitCode::from(BAD_ARGUMENTS)
        }
        Err(Failure::System(why)) => {
            say(&format_args!("neap gateway: {why}"));
            ExitCode::FAILURE
        }
    }
}
