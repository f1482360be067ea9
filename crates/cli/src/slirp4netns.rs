//! `slirp4netns`: the network of a namespace that somebody else has made, with the options,
//! descriptors and API socket of slirp4netns 1.3.

mod api;
mod arguments;
mod descriptors;
mod network;
mod outbound;
mod request;
mod serve;

pub(crate) use arguments::command;

use crate::gateway;
use crate::standard_error::say;
use arguments::{Command, VERSION};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// Name of this face, of its command, of a link to the program, and of its stack.
pub(crate) const NAME: &str = "slirp4netns";

/// Exit status for arguments that are not understood.
const BAD_ARGUMENTS: u8 = 2;

/// Connect a network namespace as slirp4netns does, with its options (`--help` lists them)
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct Args {
    /// The arguments of slirp4netns
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

impl Args {
    /// Those of a program that was called by the name of this face, by a link to it.
    pub(crate) fn of_this_program() -> Option<Self> {
        let mut arguments = std::env::args_os();
        let name = arguments.next()?;
        let is_called = Path::new(&name).file_name() == Some(OsStr::new(NAME));
        is_called.then(|| Self { arguments: arguments.collect() })
    }
}

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
    let result = match arguments::parse(&args.arguments) {
        Ok(Command::Help) => {
            print!("{}", arguments::help());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Version) => {
            println!("slirp4netns version {VERSION}");
            println!("neap: {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Ok(Command::Serve(options)) => serve::main(&options),
        Err(why) => Err(Failure::Arguments(why)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Arguments(why)) => {
            say(&format_args!("slirp4netns: {why}"));
            ExitCode::from(BAD_ARGUMENTS)
        }
        Err(Failure::System(why)) => {
            say(&format_args!("slirp4netns: {why}"));
            ExitCode::FAILURE
        }
    }
}
