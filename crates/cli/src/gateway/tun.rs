//! `neap gateway tun`: what is routed into a TUN reaches the network through sockets of this
//! machine.

use super::command::not_ignored;
use super::confine::{self, Needs};
use super::ending::{self, Ending};
use super::options::Options;
use super::watching::{self, Watching};
use super::way_out::{self, WayOut};
use super::{DeviceEnd, Failure, give_up, namespace};
use clap::Args as ClapArgs;
use neap::device::{LinkConfig, Tun, configure_link};
use neap::net::{Address, Prefix};
use neap::{InterfaceConfig, Stack};
use neap_gateway::{Gateway, GatewayConfig, Resolver};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Connect everything that is routed into a TUN to the sockets of this machine
///
/// The routes into the TUN are the user's to set. SIGINT and SIGTERM end the gateway; with --drain
/// a second one ends it at once. With --upstream wireguard:FILE, SIGHUP reads the file again. The
/// end of the interface ends the gateway with an error.
#[derive(ClapArgs, Clone, Debug)]
pub(crate) struct Args {
    /// Interface, which is made if it is not there
    #[arg(long, value_name = "NAME")]
    tun: String,
    /// Address of the gateway with its prefix length, from which it answers pings and reports
    /// errors; may be repeated
    #[arg(long, value_name = "CIDR", default_value = "10.0.2.2/24")]
    address: Vec<Address>,
    /// Address with its prefix length for this machine's end of the TUN; may be repeated
    #[arg(long, value_name = "CIDR")]
    host_address: Vec<Address>,
    /// MTU of the TUN [default: as it is]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1280..))]
    mtu: Option<u16>,
    #[command(flatten)]
    ending: Ending,
    #[command(flatten)]
    way_out: WayOut,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    watching: Watching,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::System(error.to_string());
    let mut signals = not_ignored(&[SIGINT, SIGTERM]);
    signals.extend(args.way_out.has_tunnel().then_some(SIGHUP));
    let signals = Signals::new(signals).map_err(|error| failed(&error))?;
    args.watching.start_log(false);
    let mut config = args.options.config()?;
    config.own_addresses = args.address.iter().map(|own| own.ip).collect();
    let way = args.way_out.open(&mut config)?;
    let tun = Tun::open(&namespace::device(&args.tun, false)).map_err(|error| failed(&error))?;
    let addresses = args.host_address.iter();
    let addresses = addresses.map(|address| (address.ip, address.prefix.len())).collect();
    let link = LinkConfig { addresses, mtu: args.mtu, ..LinkConfig::default() };
    let name = tun.name().to_owned();
    configure_link(&name, &link).map_err(|error| failed(&error))?;
    let mut interface =
        InterfaceConfig::new(tun.into_device()).any_destination(true).begin_unread();
    for &address in &args.address {
        interface = interface.address(address);
    }
    // Behind it may be routers, and guests of any address.
    let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    interface = all.map(Prefix::of_all).into_iter().fold(interface, InterfaceConfig::on_link);
    let listening = args.watching.listen(watching::NAME)?;
    let stack = Stack::builder().interface(interface);
    let mut needs = Needs {
        capabilities: confine::capabilities_of(&config.outbound),
        resolvers: asks_resolvers_of_host(&config),
        readable: way.folders(),
        sockets_in: listening.folders(),
        ..Needs::default()
    };
    way.add_needs(&mut needs);
    config.resolvers_file = give_up(&needs)?;
    let (upstream, tunnel) = way.start()?;
    let stack = Arc::new(stack.build().map_err(|error| failed(&error))?);
    let mut gateway =
        Gateway::new(stack.clone(), upstream, config).map_err(|error| failed(&error))?;
    if args.way_out.is_direct() {
        super::tell_of_echo(&gateway, |what| tracing::warn!("{what}"));
    }
    let (_watched, rest) = way_out::serve(listening, &stack, &gateway, tunnel)?;
    let end = DeviceEnd::watch(&stack, gateway.handle()).map_err(|error| failed(&error))?;
    let at_once = args.ending.by(signals, gateway.handle(), rest.tunnel());
    let at_once = at_once.map_err(|error| failed(&error))?;
    gateway.run().map_err(|error| failed(&error))?;
    drop(gateway);
    rest.send(Instant::now() + ending::TIME, at_once);
    if end.has_come() {
        return Err(Failure::System(format!("the interface {name} is gone")));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether questions are asked of the resolvers of this machine. No address of the gateway stands
/// for them, so they are only if all questions are taken.
fn asks_resolvers_of_host(config: &GatewayConfig) -> bool {
    config.takes_all_dns && config.resolver == Resolver::Host
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_files_of_resolvers_are_kept_for_those_who_ask_them() {
        for (options, expected) in
            [(&[][..], false), (&["--dns", "direct"], true), (&["--dns", "192.0.2.53"], false)]
        {
            let line = ["tun", "--tun", "gate0"].iter().chain(options);
            let Line { args } = Line::try_parse_from(line).expect("options");
            let mut config = GatewayConfig::default();
            assert!(args.way_out.open(&mut config).is_ok(), "{options:?}");
            assert_eq!(asks_resolvers_of_host(&config), expected, "{options:?}");
        }
    }
}
