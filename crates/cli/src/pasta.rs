//! `pasta`: the network of a namespace that somebody else has made, or of a command, with the
//! options of pasta.
//!
//! Two processes do it. The one in the namespace makes the interface, and sockets where ports of
//! the namespace are followed ([`inside`]). The other one stays in the network of the host, has the
//! stack and relays ([`serve`]).

mod agent;
mod arguments;
mod channel;
mod follow;
mod host;
mod inside;
mod listening;
mod log;
mod netlink;
mod network;
mod ports;
mod publish;
mod resolvers;
mod serve;
mod supply;
mod user;
mod watch;

pub(crate) use arguments::Args;
pub(crate) use inside::{Args as InsideArgs, main as inside};

use crate::background;
use crate::gateway;
use crate::standard_error::say;
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

/// Name of this face, of its command, of a link to the program, and of its stack.
pub(crate) const NAME: &str = "pasta";

/// Whether the program was called by the name of this face, by a link to it.
pub(crate) fn is_called_pasta() -> bool {
    let name = std::env::args_os().next();
    name.is_some_and(|name| Path::new(&name).file_name() == Some(OsStr::new(NAME)))
}

/// Exit status for arguments that are not understood, as clap has it.
const BAD_ARGUMENTS: u8 = 2;

/// Why there is no network.
#[derive(Debug)]
enum Failure {
    /// What was asked for makes no sense.
    Arguments(String),
    /// The machine refuses.
    System(String),
}

impl From<gateway::Failure> for Failure {
    fn from(failure: gateway::Failure) -> Self {
        match failure {
            gateway::Failure::Arguments(why) => Self::Arguments(why),
            gateway::Failure::System(why) => Self::System(why),
        }
    }
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let result = args.check().map_err(Failure::Arguments).and_then(|()| {
        if args.goes_to_background() && !args.in_background {
            // `neap pasta ...` and `pasta ...` have the same arguments behind the name.
            let names = if is_called_pasta() { 1 } else { 2 };
            background::start(NAME, std::env::args_os().skip(names))
                .map_err(|error| Failure::System(format!("the background: {error}")))
        } else {
            serve::main(args)
        }
    });
    match result {
        Ok(status) => status,
        Err(Failure::Arguments(why)) => {
            say(&format_args!("pasta: {why}"));
            ExitCode::from(BAD_ARGUMENTS)
        }
        Err(Failure::System(why)) => {
            say(&format_args!("pasta: {why}"));
            ExitCode::FAILURE
        }
    }
}
