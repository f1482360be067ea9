//! `neap wireguard`: a WireGuard tunnel in this process, with the proxies and tunnels of its file.

mod alive;
mod doors;
mod health;
mod inspector;
mod notify;
mod run;

use crate::background;
use crate::gateway::Failure;
use crate::gateway::tunnel::congestion;
use crate::gateway::watching::Watching;
use crate::standard_error::say;
use clap::{Arg, ArgAction, Args as ClapArgs};
use neap_wireguard::file::HostPort;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit status for arguments and files that are not understood, as clap has it.
const BAD_ARGUMENTS: u8 = 2;

/// Run a WireGuard tunnel without privileges, with the proxies and tunnels of its file
///
/// The file is that of wg-quick, with the sections of wireproxy: [Socks5], [http],
/// [TCPClientTunnel], [TCPServerTunnel], [STDIOTunnel], [UDPProxyTunnel], [SNI], [Resolve]. SIGHUP
/// reads it again: what it has not changed goes on. SIGINT and SIGTERM end the tunnel; with --drain
/// a second one ends it at once.
#[derive(ClapArgs, Clone, Debug)]
#[command(version, disable_version_flag = true, arg = version())]
pub(crate) struct Args {
    /// The file [default: /etc/wireproxy/wireproxy.conf, or else ~/.config/wireproxy.conf]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve /metrics (the interface, as `wg show` has it) and /readyz (whether the addresses of
    /// CheckAlive answer) at this address of the host, such as localhost:9080
    #[arg(short, long, value_name = "ADDRESS")]
    info: Option<HostPort>,
    /// Only check the file
    #[arg(short = 'n', long)]
    configtest: bool,
    /// Tell nothing but why the tunnel ends, as --quiet
    #[arg(short, long, conflicts_with = "log")]
    silent: bool,
    /// Go on in the background once the tunnel is there
    #[arg(short, long)]
    daemon: bool,
    #[arg(long, hide = true, conflicts_with = "configtest")]
    in_background: bool,
    /// Congestion control of connections in the tunnel, such as cubic, bbr or bbr3 [default: that
    /// of the stack]
    #[arg(long, value_name = "NAME", value_parser = congestion)]
    congestion: Option<String>,
    /// Threads that help to encrypt, besides the one that sends
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(..=64))]
    sealers: u16,
    /// After SIGINT or SIGTERM, refuse new connections and let the others go on for so long
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=86_400))]
    drain: u32,
    #[command(flatten)]
    watching: Watching,
}

/// The option has the letter that wireproxy gives it.
fn version() -> Arg {
    let version = Arg::new("version").short('v').long("version");
    version.action(ArgAction::Version).help("Print version")
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let done = if args.daemon && !args.in_background && !args.configtest {
        background::start("wireguard", std::env::args_os().skip(2))
            .map_err(|error| Failure::System(format!("the background: {error}")))
    } else {
        run::main(args)
    };
    match done {
        Ok(status) => status,
        Err(Failure::Arguments(why)) => {
            say(&format_args!("neap wireguard: {why}"));
            ExitCode::from(BAD_ARGUMENTS)
        }
        Err(Failure::System(why)) => {
            say(&format_args!("neap wireguard: {why}"));
            ExitCode::FAILURE
        }
    }
}
