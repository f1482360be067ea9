//! The command line of slirp4netns 1.3.

use super::NAME;
use super::network::Network;
use crate::gateway::face;
use clap::{Arg, CommandFactory, Parser};
use ipnet::Ipv4Net;
use std::ffi::OsString;
use std::path::PathBuf;

/// Version of slirp4netns whose options these are. Clients read it.
pub(super) const VERSION: &str = "1.3.1";

const DEFAULT_CIDR: &str = "10.0.2.0/24";
const DEFAULT_MTU: u16 = 1500;
/// Least bytes of an IPv4 packet that every link carries (RFC 791).
const LEAST_MTU: u16 = 68;
/// The same of IPv6 (RFC 8200 section 5).
const LEAST_MTU_V6: u16 = 1280;
const MOST_MTU: u16 = 65521;

/// Widest option in the list of them, before what it is.
const OPTION_WIDTH: usize = 25;

#[derive(Parser)]
#[command(name = NAME, no_binary_name = true, infer_long_args = true, args_override_self = true)]
#[command(disable_help_flag = true, disable_version_flag = true)]
struct Words {
    /// Set the interface up: address, MTU and default route
    #[arg(short, long)]
    configure: bool,
    /// End when the other end of this descriptor is closed
    #[arg(short, long, value_name = "FD", value_parser = descriptor)]
    exit_fd: Option<i32>,
    /// Write "1" to this descriptor when the network is ready
    #[arg(short, long, value_name = "FD", value_parser = descriptor)]
    ready_fd: Option<i32>,
    /// MTU of the interface, 65521 at most
    #[arg(short, long, value_name = "MTU", default_value_t = DEFAULT_MTU, value_parser = mtu)]
    mtu: u16,
    /// IPv6 as well
    #[arg(short = '6', long)]
    enable_ipv6: bool,
    /// Make a socket for requests to publish ports
    #[arg(short, long, value_name = "PATH")]
    api_socket: Option<PathBuf>,
    /// Network of the guest
    #[arg(long, value_name = "CIDR", default_value = DEFAULT_CIDR, value_parser = cidr)]
    cidr: Ipv4Net,
    /// Keep the guest from 127.0.0.1 of the host
    #[arg(long, alias = "no-host-loopback")]
    disable_host_loopback: bool,
    /// What the first argument is: path, pid or tapfd
    #[arg(long, value_name = "TYPE", default_value = "pid")]
    netns_type: String,
    /// User namespace to join before the network namespace
    #[arg(long, value_name = "PATH")]
    userns_path: Option<PathBuf>,
    /// Give up all rights but that to ports below 1024, and most files, as without it; also that to
    /// remove the API socket
    #[arg(long)]
    enable_sandbox: bool,
    /// Give up system calls that are not needed, as without it
    #[arg(long)]
    enable_seccomp: bool,
    /// Send from this address or interface of the host
    #[arg(long, value_name = "IPv4")]
    outbound_addr: Option<String>,
    /// Send from this address or interface of the host
    #[arg(long, value_name = "IPv6")]
    outbound_addr6: Option<String>,
    /// Do not answer as the resolver (10.0.2.3 by default)
    #[arg(long)]
    disable_dns: bool,
    /// Ethernet address of the interface (only with -c)
    #[arg(long, value_name = "MAC", value_parser = mac)]
    macaddress: Option<[u8; 6]>,
    /// Only netns; bess is not supported
    #[arg(long, value_name = "TYPE", default_value = "netns")]
    target_type: String,
    #[command(flatten)]
    own: face::Options,
    /// Show the options
    #[arg(short, long)]
    help: bool,
    /// Show the version
    #[arg(short, long)]
    version: bool,
    /// The namespace, or the descriptor of a TAP
    #[arg(value_name = "PID|PATH|FD")]
    target: Option<String>,
    /// Name of the TAP in the namespace
    #[arg(value_name = "TAPNAME")]
    tap: Option<String>,
    /// slirp4netns takes more words, and does nothing with them.
    #[arg(hide = true)]
    rest: Vec<OsString>,
}

/// The options, for what is made of them.
pub(crate) fn command() -> clap::Command {
    Words::command()
}

/// What `--help` prints, as slirp4netns writes it: clients look for the options that they want.
pub(super) fn help() -> String {
    let mut text = format!(
        "Usage: {NAME} [OPTION]... PID|PATH|FD [TAPNAME]\n\
         The network of a namespace that was made without privileges, by neap.\n\n"
    );
    let command = command();
    for option in command.get_arguments().filter(|argument| !argument.is_positional()) {
        text += &format!("{}\n", line(option));
    }
    text
}

fn line(option: &Arg) -> String {
    let mut line = option.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    line += &format!("--{}", option.get_long().unwrap_or_default());
    let takes = option.get_action().takes_values();
    for value in option.get_value_names().into_iter().flatten().filter(|_| takes) {
        line += &format!("={value}");
    }
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    line = format!("{line:<OPTION_WIDTH$}{help}");
    for value in option.get_default_values().iter().filter(|_| takes) {
        line += &format!(" (default={})", value.display());
    }
    line
}

/// What is asked for.
#[derive(Debug)]
pub(super) enum Command {
    Help,
    Version,
    Serve(Box<Options>),
}

/// The namespace, or the device in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Pid { pid: u32, tap: String },
    Path { path: PathBuf, tap: String },
    TapFd(i32),
}

/// What a network is to be.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) target: Target,
    pub(super) user_namespace: Option<PathBuf>,
    pub(super) configure: bool,
    pub(super) exit_fd: Option<i32>,
    pub(super) ready_fd: Option<i32>,
    pub(super) api_socket: Option<PathBuf>,
    pub(super) network: Network,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) disable_host_loopback: bool,
    pub(super) enable_sandbox: bool,
    pub(super) outbound_v4: Option<String>,
    pub(super) outbound_v6: Option<String>,
    pub(super) own: face::Options,
}

/// Reads a command line. An error is one line.
pub(super) fn parse(arguments: &[OsString]) -> Result<Command, String> {
    let words = Words::try_parse_from(arguments).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.strip_prefix("error: ").unwrap_or(first).to_owned()
    })?;
    if words.help {
        return Ok(Command::Help);
    }
    if words.version {
        return Ok(Command::Version);
    }
    words.check().map(|options| Command::Serve(Box::new(options)))
}

impl Words {
    fn check(self) -> Result<Options, String> {
        match self.target_type.as_str() {
            "netns" => {}
            "bess" => return Err("--target-type=bess is not supported; expected netns".to_owned()),
            other => return Err(format!("--target-type={other}: expected netns")),
        }
        if self.macaddress.is_some() && !self.configure {
            return Err("--macaddress is for --configure, which is missing".to_owned());
        }
        if self.enable_ipv6 && self.mtu < LEAST_MTU_V6 {
            return Err(format!("--mtu {}: IPv6 needs {LEAST_MTU_V6} at least", self.mtu));
        }
        self.own.way_out.refuse(&[
            (self.outbound_addr.is_some(), "--outbound-addr"),
            (self.outbound_addr6.is_some(), "--outbound-addr6"),
        ])?;
        let target = self.target()?;
        if target.is_tap() && self.configure {
            return Err("--configure needs a namespace, and --netns-type=tapfd has none".to_owned());
        }
        let network = Network::new(self.cidr, self.mtu, self.enable_ipv6, !self.disable_dns);
        Ok(Options {
            target,
            user_namespace: self.userns_path,
            configure: self.configure,
            exit_fd: self.exit_fd,
            ready_fd: self.ready_fd,
            api_socket: self.api_socket,
            network,
            mac: self.macaddress,
            disable_host_loopback: self.disable_host_loopback,
            enable_sandbox: self.enable_sandbox,
            outbound_v4: self.outbound_addr,
            outbound_v6: self.outbound_addr6,
            own: self.own,
        })
    }

    fn target(&self) -> Result<Target, String> {
        let Some(target) = &self.target else {
            return Err("expected PID TAPNAME, or with --netns-type PATH TAPNAME or FD".to_owned());
        };
        let tap = || self.tap.clone().ok_or("expected the name of the TAP as second argument");
        match self.netns_type.as_str() {
            "pid" => {
                let pid = target.parse().ok().filter(|&pid: &u32| pid > 0);
                let pid =
                    pid.ok_or_else(|| format!("PID {target}: expected a positive integer"))?;
                Ok(Target::Pid { pid, tap: tap()? })
            }
            "path" => Ok(Target::Path { path: target.into(), tap: tap()? }),
            "tapfd" => {
                let descriptor = descriptor(target).map_err(|why| format!("FD {target}: {why}"))?;
                Ok(Target::TapFd(descriptor))
            }
            other => Err(format!("--netns-type={other}: expected path, pid or tapfd")),
        }
    }
}

impl Target {
    fn is_tap(&self) -> bool {
        matches!(self, Self::TapFd(_))
    }
}

fn descriptor(text: &str) -> Result<i32, &'static str> {
    let number = text.parse().ok().filter(|&number: &i32| number >= 0);
    number.ok_or("expected the number of a descriptor")
}

fn mtu(text: &str) -> Result<u16, String> {
    let mtu = text.parse().ok().filter(|mtu| (LEAST_MTU..=MOST_MTU).contains(mtu));
    mtu.ok_or_else(|| format!("expected {LEAST_MTU} to {MOST_MTU}"))
}

fn cidr(text: &str) -> Result<Ipv4Net, &'static str> {
    let cidr: Ipv4Net = text.parse().map_err(|_| "expected a network such as 10.0.2.0/24")?;
    if !(1..=25).contains(&cidr.prefix_len()) {
        return Err("expected a prefix length of 1 to 25");
    }
    if cidr.trunc() != cidr {
        return Err("expected the address of the network, such as 10.0.2.0/24");
    }
    Ok(cidr)
}

fn mac(text: &str) -> Result<[u8; 6], &'static str> {
    let expected = "expected an Ethernet address such as 02:00:00:00:00:01";
    let bytes: Result<Vec<u8>, _> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    let mac: [u8; 6] = bytes.map_err(|_| expected)?.try_into().map_err(|_| expected)?;
    if mac[0] & 1 == 1 {
        return Err("expected the address of one interface, not of a group");
    }
    Ok(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Command, String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        parse(&words)
    }

    fn options(line: &str) -> Options {
        match parse_line(line) {
            Ok(Command::Serve(options)) => *options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn podmans_line_is_understood() {
        let options = options(
            "--disable-host-loopback --mtu=65520 --enable-sandbox --enable-seccomp --enable-ipv6 \
             -c -e 3 -r 4 --api-socket /run/x.sock --netns-type=path /run/user/1/netns/n tap0",
        );
        assert!(options.disable_host_loopback && options.enable_sandbox);
        assert!(options.configure && options.network.has_v6);
        assert_eq!((options.exit_fd, options.ready_fd), (Some(3), Some(4)));
        assert_eq!(options.api_socket, Some("/run/x.sock".into()));
        let (path, tap) = ("/run/user/1/netns/n".into(), "tap0".to_owned());
        assert_eq!(options.target, Target::Path { path, tap });
    }

    #[test]
    fn rootlesskits_line_is_understood() {
        let options = options("--mtu 65520 -r 3 --disable-host-loopback 4711 tap0");
        assert_eq!(options.target, Target::Pid { pid: 4711, tap: "tap0".to_owned() });
        assert_eq!((options.ready_fd, options.network.mtu), (Some(3), 65520));
        assert!(!options.configure);
    }

    #[test]
    fn help_and_version_need_no_target_and_long_options_may_be_short_ones() {
        assert!(matches!(parse_line("--help"), Ok(Command::Help)));
        assert!(matches!(parse_line("-v"), Ok(Command::Version)));
        let help = help();
        assert!(help.contains("\n-e, --exit-fd=FD         End when"), "{help}");
        assert!(help.contains("\n-6, --enable-ipv6        IPv6 as well\n"), "{help}");
        assert!(
            help.contains(
                "\n--cidr=CIDR              Network of the guest (default=10.0.2.0/24)\n"
            )
        );
        assert!(options("--disable-host --no-host-loopback 1 tap0").disable_host_loopback);
        assert_eq!(options("--netns-type=tapfd 5").target, Target::TapFd(5));
    }

    #[test]
    fn a_wrong_argument_is_named_in_one_line_with_what_is_expected() {
        for (line, hint) in [
            ("", "expected PID TAPNAME"),
            ("1", "second argument"),
            ("0 tap0", "positive integer"),
            ("x tap0", "positive integer"),
            ("--mtu=65522 1 tap0", "65521"),
            ("--mtu=1000 -6 1 tap0", "1280"),
            ("--cidr=10.0.2.1/24 1 tap0", "10.0.2.0/24"),
            ("--cidr=10.0.2.0/26 1 tap0", "1 to 25"),
            ("--netns-type=socket 1 tap0", "path, pid or tapfd"),
            ("--netns-type=tapfd x", "number of a descriptor"),
            ("--target-type=bess /tmp/x", "bess is not supported"),
            ("--macaddress=02:00:00:00:00:01 1 tap0", "--configure"),
            ("-c --macaddress=02:00:00:00:00 1 tap0", "02:00:00:00:00:01"),
            ("-e three 1 tap0", "number of a descriptor"),
            (
                "--upstream=wireguard:x --outbound-addr=192.0.2.7 1 tap0",
                "--outbound-addr: cannot stand beside --upstream",
            ),
            ("--upstream=socks5://x:1 --outbound-addr6=eth0 1 tap0", "--outbound-addr6: cannot"),
            ("--unheard-of 1 tap0", "--unheard-of"),
        ] {
            let why = parse_line(line).expect_err(line);
            assert!(why.contains(hint) && !why.contains('\n'), "{line}: {why}");
        }
    }
}
