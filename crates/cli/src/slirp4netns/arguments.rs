//! The command line of slirp4netns 1.3.

use super::network::Network;
use clap::Parser;
use ipnet::Ipv4Net;
use std::ffi::OsString;
use std::path::PathBuf;

/// Version of slirp4netns whose options these are. Clients read it.
pub(super) const VERSION: &str = "1.3.1";

/// Clients look for the options that they want in this text.
pub(super) const HELP: &str = "\
Usage: slirp4netns [OPTION]... PID|PATH|FD [TAPNAME]
The network of a namespace that was made without privileges, by neap.

-c, --configure          set the interface up: address, MTU and default route
-e, --exit-fd=FD         end when the other end of this descriptor is closed
-r, --ready-fd=FD        write \"1\" to this descriptor when the network is ready
-m, --mtu=MTU            MTU of the interface (default=1500, max=65521)
-6, --enable-ipv6        IPv6 as well
-a, --api-socket=PATH    make a socket for requests to publish ports
--cidr=CIDR              network of the guest (default=10.0.2.0/24)
--disable-host-loopback  keep the guest from 127.0.0.1 of the host
--netns-type=TYPE        what the first argument is ([path|pid|tapfd], default=pid)
--userns-path=PATH       user namespace to join before the network namespace
--enable-sandbox         give up all rights but that to ports below 1024, and most files
--enable-seccomp         give up system calls that are not needed
--outbound-addr=IPv4     send from this address or interface of the host
--outbound-addr6=IPv6    send from this address or interface of the host
--disable-dns            do not answer as the resolver (10.0.2.3 by default)
--macaddress=MAC         Ethernet address of the interface (only with -c)
--target-type=TYPE       netns; bess is not supported
-h, --help               show this text
-v, --version            show the version
";

const DEFAULT_CIDR: &str = "10.0.2.0/24";
const DEFAULT_MTU: u16 = 1500;
/// Least bytes of an IPv4 packet that every link carries (RFC 791).
const LEAST_MTU: u16 = 68;
/// The same of IPv6 (RFC 8200 section 5).
const LEAST_MTU_V6: u16 = 1280;
const MOST_MTU: u16 = 65521;

#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
#[command(infer_long_args = true, args_override_self = true)]
struct Words {
    #[arg(short, long)]
    configure: bool,
    #[arg(short, long, value_parser = descriptor)]
    exit_fd: Option<i32>,
    #[arg(short, long, value_parser = descriptor)]
    ready_fd: Option<i32>,
    #[arg(short, long, default_value_t = DEFAULT_MTU, value_parser = mtu)]
    mtu: u16,
    #[arg(short = '6', long)]
    enable_ipv6: bool,
    #[arg(short, long)]
    api_socket: Option<PathBuf>,
    #[arg(long, default_value = DEFAULT_CIDR, value_parser = cidr)]
    cidr: Ipv4Net,
    #[arg(long, alias = "no-host-loopback")]
    disable_host_loopback: bool,
    #[arg(long)]
    netns_type: Option<String>,
    #[arg(long)]
    userns_path: Option<PathBuf>,
    #[arg(long)]
    enable_sandbox: bool,
    #[arg(long)]
    enable_seccomp: bool,
    #[arg(long)]
    outbound_addr: Option<String>,
    #[arg(long)]
    outbound_addr6: Option<String>,
    #[arg(long)]
    disable_dns: bool,
    #[arg(long, value_parser = mac)]
    macaddress: Option<[u8; 6]>,
    #[arg(long)]
    target_type: Option<String>,
    #[arg(short, long)]
    help: bool,
    #[arg(short, long)]
    version: bool,
    target: Option<String>,
    tap: Option<String>,
    /// slirp4netns takes more words, and does nothing with them.
    rest: Vec<OsString>,
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
    pub(super) enable_seccomp: bool,
    pub(super) outbound_v4: Option<String>,
    pub(super) outbound_v6: Option<String>,
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
        match self.target_type.as_deref() {
            None | Some("netns") => {}
            Some("bess") => {
                return Err("--target-type=bess is not supported; expected netns".to_owned());
            }
            Some(other) => return Err(format!("--target-type={other}: expected netns")),
        }
        if self.macaddress.is_some() && !self.configure {
            return Err("--macaddress is for --configure, which is missing".to_owned());
        }
        if self.enable_ipv6 && self.mtu < LEAST_MTU_V6 {
            return Err(format!("--mtu {}: IPv6 needs {LEAST_MTU_V6} at least", self.mtu));
        }
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
            enable_seccomp: self.enable_seccomp,
            outbound_v4: self.outbound_addr,
            outbound_v6: self.outbound_addr6,
        })
    }

    fn target(&self) -> Result<Target, String> {
        let kind = self.netns_type.as_deref().unwrap_or("pid");
        let Some(target) = &self.target else {
            return Err("expected PID TAPNAME, or with --netns-type PATH TAPNAME or FD".to_owned());
        };
        let tap = || self.tap.clone().ok_or("expected the name of the TAP as second argument");
        match kind {
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
        assert!(options.disable_host_loopback && options.enable_sandbox && options.enable_seccomp);
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
            ("--unheard-of 1 tap0", "--unheard-of"),
        ] {
            let why = parse_line(line).expect_err(line);
            assert!(why.contains(hint) && !why.contains('\n'), "{line}: {why}");
        }
    }
}
