//! The program neap.
//!
//! `neap lab` runs experiments, scenarios, scripts and random worlds in virtual time; it is the
//! command where none is given. `neap perf` measures over a real device, with a stock iperf3 at the
//! other end. `neap link` is a link of the lab in real time. `neap gateway` connects sandboxes to
//! the sockets of the machine. `neap wireguard` is a tunnel with proxies, and `neap wg` shows it.
//! `neap ss` and `neap nstat` look inside running stacks. No protocol logic is here: options in,
//! calls of the other crates, tables out.
#![forbid(unsafe_code)]

use std::ffi::CStr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod background;
mod gateway;
mod lab;
mod link;
mod man;
mod netns;
mod nstat;
mod pasta;
mod perf;
mod slirp4netns;
mod ss;
mod stacks;
mod standard_error;
mod until_the_end;
mod wg;
mod wireguard;

#[derive(Parser)]
#[command(name = "neap", version, about = "TCP without the queue: a user-space TCP/IP stack")]
struct Cli {
    /// Without a command: lab
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Connect a sandbox or a TUN to the sockets of this machine
    #[command(subcommand)]
    Gateway(gateway::Command),
    /// Run published experiments, scenarios, scripts and random worlds in virtual time
    Lab(lab::Args),
    Link(Box<link::Args>),
    Nstat(nstat::Args),
    Pasta(Box<pasta::Args>),
    #[command(hide = true)]
    PastaInside(pasta::InsideArgs),
    /// Measure bulk TCP to or from a stock iperf3
    Perf(Box<perf::Args>),
    Slirp4netns(slirp4netns::Args),
    Ss(Box<ss::Args>),
    /// Show the WireGuard interfaces of running stacks
    #[command(subcommand)]
    Wg(wg::Command),
    Wireguard(Box<wireguard::Args>),
    #[command(hide = true)]
    Completions(man::CompletionsArgs),
    #[command(hide = true)]
    Man(man::ManArgs),
}

/// Names the process as `pgrep -x` looks for it. Where this program starts itself by way of
/// `/proc/self/exe`, the name would be that of the link.
fn set_name(name: &CStr) {
    // A process with another name works all the same.
    let _ = rustix::thread::set_name(name);
}

fn main() -> ExitCode {
    set_name(c"neap");
    if pasta::is_called_pasta() {
        set_name(c"pasta");
        return pasta::main(&pasta::Args::parse());
    }
    if let Some(args) = slirp4netns::Args::of_this_program() {
        set_name(c"slirp4netns");
        return slirp4netns::main(&args);
    }
    match Cli::parse().command {
        Some(Command::Gateway(command)) => gateway::main(command),
        // In the background it was called pasta, or its caller wants what pasta does.
        Some(Command::Pasta(args)) => {
            set_name(c"pasta");
            pasta::main(&args)
        }
        Some(Command::PastaInside(args)) => {
            set_name(c"pasta");
            pasta::inside(&args)
        }
        Some(Command::Perf(args)) => perf::main(&args),
        Some(Command::Lab(args)) => lab::main(&args),
        Some(Command::Link(args)) => link::main(&args),
        Some(Command::Nstat(args)) => nstat::main(&args),
        Some(Command::Slirp4netns(args)) => {
            set_name(c"slirp4netns");
            slirp4netns::main(&args)
        }
        Some(Command::Ss(args)) => ss::main(&args),
        Some(Command::Wg(command)) => wg::main(&command),
        Some(Command::Wireguard(args)) => wireguard::main(&args),
        Some(Command::Completions(args)) => man::completions::<Cli>(&args),
        Some(Command::Man(args)) => man::man::<Cli>(&args),
        None => lab::main(&lab::Args::default()),
    }
}
