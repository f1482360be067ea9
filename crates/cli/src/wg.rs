//! `neap wg show`: the WireGuard interfaces of running stacks, as wg(8) prints those of the kernel.

pub(crate) mod report;
mod text;

use crate::stacks::{self, Failure, Silent};
use clap::{Args, Subcommand, ValueEnum};
use neap::control::{self, ControlError};
use report::{InterfaceReport, SUBJECT};
use std::process::ExitCode;
use std::time::SystemTime;

/// What stands for all interfaces, as in wg(8).
const ALL: &str = "all";
/// What asks for the names of the interfaces, as in wg(8).
const INTERFACES: &str = "interfaces";

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    Show(Show),
}

/// Show the WireGuard interfaces of running stacks, as wg shows those of the kernel
///
/// An interface has the name of its file: that of wg0.conf is wg0. Secret keys never leave the
/// process that has them, so that `(hidden)` stands for each.
#[derive(Args, Clone, Debug)]
pub(crate) struct Show {
    /// Name of an interface, `all`, or `interfaces` for the names alone
    #[arg(value_name = "NAME", default_value = ALL)]
    name: String,
    /// One thing of it, one line for each peer
    #[arg(value_name = "FIELD")]
    field: Option<Field>,
    /// Print JSON: a list of interfaces, times in seconds, sizes in bytes
    #[arg(short, long, conflicts_with = "field")]
    json: bool,
    /// Only the interfaces of this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
}

/// What wg(8) prints for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Field {
    PublicKey,
    PrivateKey,
    ListenPort,
    Fwmark,
    Peers,
    PresharedKeys,
    Endpoints,
    AllowedIps,
    LatestHandshakes,
    Transfer,
    PersistentKeepalive,
    Dump,
}

pub(crate) fn main(command: &Command) -> ExitCode {
    let Command::Show(args) = command;
    match show(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("wg"),
    }
}

fn show(args: &Show) -> Result<(), Failure> {
    let (all, silent) = find(args.pid)?;
    let names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
    if args.name == INTERFACES {
        stacks::print(&format!("{}\n", names.join(" ")))?;
        return silent.tell();
    }
    if args.name == ALL {
        print(args, &all.iter().collect::<Vec<_>>())?;
        return silent.tell();
    }
    let chosen: Vec<_> = all.iter().filter(|one| one.name == args.name).collect();
    if !chosen.is_empty() {
        // Nothing is missing, whoever else does not answer.
        return print(args, &chosen);
    }
    let mut why = format!("no such interface: there are {}", names.join(", "));
    if let Err(Failure::Nothing(others)) = silent.tell() {
        why = format!("{why}; {others}");
    }
    Err(Failure::Nothing(why))
}

fn print(args: &Show, chosen: &[&InterfaceReport]) -> Result<(), Failure> {
    if args.json {
        let json = serde_json::to_string(chosen);
        let json = json.map_err(|error| Failure::Nothing(error.to_string()))?;
        return stacks::print(&format!("{json}\n"));
    }
    let texts = chosen.iter().map(|one| match args.field {
        None => text::whole(one, SystemTime::now()),
        Some(field) => text::field(one, field, args.name == ALL),
    });
    let between = if args.field.is_none() { "\n" } else { "" };
    stacks::print(&texts.collect::<Vec<_>>().join(between))
}

/// The interfaces of all stacks of this user, one at least, and the stacks that do not answer.
fn find(pid: Option<u32>) -> Result<(Vec<InterfaceReport>, Silent), Failure> {
    let endpoints = control::endpoints().map_err(|error| Failure::Nothing(error.to_string()))?;
    let chosen = endpoints.into_iter().filter(|one| pid.is_none_or(|pid| pid == one.pid));
    let (mut found, mut silent) = (Vec::new(), Silent::default());
    for endpoint in chosen {
        // Most stacks have no such interface, and say so when they have said what they are.
        let lines = endpoint.stack().and_then(|_| match endpoint.lines(SUBJECT) {
            Err(ControlError::NoAnswer { .. }) => Ok(Vec::new()),
            lines => lines,
        });
        match lines {
            Ok(lines) => {
                found.extend(lines.iter().filter_map(|line| serde_json::from_str(line).ok()));
            }
            Err(error) => silent.note(endpoint, error),
        }
    }
    if found.is_empty() {
        silent.tell()?;
        let why = "no WireGuard interface of this user is running: start one with \
                   `neap wireguard -c FILE`";
        return Err(Failure::Nothing(why.to_owned()));
    }
    Ok((found, silent))
}
