//! The half of `neap gateway run` in the sandbox: it makes the namespaces and the network in them,
//! and starts their [first process](init).

use super::command::{STOPS, not_ignored};
use super::options::MTU;
use super::passing::{self, Message};
use super::{etc, init, job, namespace, own_namespaces, routes, sandbox};
use clap::Args as ClapArgs;
use neap::device::{LinkConfig, Tun, TunQueue, configure_link};
use nix::sched::CloneFlags;
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

/// Join the sandbox and run the command; the standard input is the socket of the other half
#[derive(ClapArgs, Clone, Debug)]
pub(crate) struct Args {
    /// MTU of the interface
    #[arg(long, default_value_t = MTU)]
    mtu: u16,
    /// Domains in which names are looked up, with spaces between them, in the place of the host's
    #[arg(long)]
    search: Option<String>,
    /// The sandbox is there already: be its first process
    #[arg(long)]
    init: bool,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    // A terminal that stops the processes in the foreground stops the command alone, and that one
    // the rest.
    let Ok(_stops) = Signals::new(not_ignored(&STOPS)) else { return ExitCode::FAILURE };
    if job::has_handlers().is_err() {
        return ExitCode::FAILURE;
    }
    if args.init {
        return init::main(&args.command);
    }
    match enter(args) {
        Ok(()) => init::start(&args.command),
        // The other half tells the user.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Everything that comes before the command.
fn enter(args: &Args) -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    // The sandbox has no network without the other half, so the command ends with it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let told = build(args).and_then(|device| {
        passing::send(&socket, &Message::Device(device)).map_err(|error| error.to_string())
    });
    if let Err(why) = told {
        passing::send(&socket, &Message::Failed(why))?;
        return Err(io::ErrorKind::Other.into());
    }
    match passing::receive(&socket)? {
        Message::Ready => Ok(()),
        _ => Err(io::ErrorKind::Other.into()),
    }
}

/// Makes namespaces, device and addresses.
fn build(args: &Args) -> Result<TunQueue, String> {
    own_namespaces::make(CloneFlags::empty())?;
    let link = LinkConfig::default();
    configure_link("lo", &link).map_err(|error| error.to_string())?;
    let tap = Tun::open(&namespace::device(sandbox::INTERFACE, true))
        .map_err(|error| error.to_string())?;
    // The gateway sees to it that nobody else has the address.
    let no_detection = format!("/proc/sys/net/ipv6/conf/{}/accept_dad", sandbox::INTERFACE);
    let has_v6 = fs::write(no_detection, "0").is_ok();
    let mut addresses = sandbox::guest_addresses();
    addresses.retain(|(address, _)| address.is_ipv4() || has_v6);
    let link = LinkConfig { addresses, mtu: Some(args.mtu), ..LinkConfig::default() };
    configure_link(tap.name(), &link).map_err(|error| error.to_string())?;

    let index = routes::index_of(tap.name())
        .map_err(|error| format!("no interface {}: {error}", tap.name()))?;
    let gateways = [sandbox::GATEWAY_V4.into(), sandbox::GATEWAY_V6.into()];
    for gateway in
        gateways.into_iter().filter(|gateway: &std::net::IpAddr| gateway.is_ipv4() || has_v6)
    {
        routes::set_default(gateway, index)
            .map_err(|error| format!("no route through {gateway}: {error}"))?;
    }
    etc::use_resolver(args.search.as_deref())
        .map_err(|error| format!("no {} of its own: {error}", etc::RESOLVER))?;
    Ok(tap.into_queues().remove(0))
}
