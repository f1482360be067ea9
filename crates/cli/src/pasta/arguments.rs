//! The options of pasta.

use super::listening::client_ports;
use super::ports::{Ports, PortsError, Spec};
use crate::gateway::{face, refused};
use clap::{ArgAction, Parser};
use neap_gateway::Outbound;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use tracing::level_filters::LevelFilter;

/// Most bytes of an IP packet: what Ethernet's header leaves, in words of 32 bits.
pub(super) const MTU: u16 = 65520;
/// Least MTU of IPv4 and of IPv6.
const LEAST_MTU: u16 = 68;
const LEAST_MTU_V6: u16 = 1280;
/// Longest name of a host, and longest part of one between dots (RFC 1035 section 2.3.4).
const MOST_NAME: usize = 253;
const MOST_LABEL: usize = 63;

/// Connect a network namespace to the network of this machine, as pasta does
///
/// With PID or --netns it joins that namespace and goes to the background when the network is
/// there. Otherwise it runs a command, or a shell, in a user and network namespace of its own, and
/// ends with it.
#[derive(Parser, Clone, Debug)]
#[command(name = "pasta", version, args_override_self = true, infer_long_args = true)]
pub(crate) struct Args {
    /// Log each flow as well, as --log debug
    #[arg(short, long)]
    debug: bool,
    /// The same as --log trace
    #[arg(long)]
    trace: bool,
    /// Log errors only, and of the gateway what --log says
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Stay in the foreground
    #[arg(short, long)]
    pub(super) foreground: bool,
    /// Log to the standard error, which is the default; in the background nothing is logged there
    #[arg(short = 'e', long)]
    stderr: bool,
    /// Log to this file
    #[arg(short, long, value_name = "PATH")]
    pub(super) log_file: Option<PathBuf>,
    /// Most bytes of the log file; the older half goes when it is full
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(4096..=1 << 40))]
    pub(super) log_size: u64,
    /// Become this user and group when the network is there, by number or name [default: nobody, if
    /// started as root]
    #[arg(long, value_name = "UID[:GID]|LOGIN[:GROUP]")]
    pub(super) runas: Option<String>,
    /// Write the process ID to this file when the network is there
    #[arg(short = 'P', long, value_name = "FILE")]
    pub(super) pid: Option<PathBuf>,
    /// MTU of the interface; 0 leaves it as it is and says nothing of it by DHCP and RA
    #[arg(short, long, value_name = "BYTES", default_value_t = MTU, value_parser = mtu)]
    pub(super) mtu: u16,
    /// Address of the namespace, once for each family [default: those of the interface with the
    /// default route]
    #[arg(short, long, value_name = "ADDRESS", action = ArgAction::Append)]
    pub(super) address: Vec<IpAddr>,
    /// Length of the IPv4 network, or its mask
    #[arg(short, long, value_name = "MASK", value_parser = netmask)]
    pub(super) netmask: Option<u8>,
    /// Router of the namespace, once for each family [default: that of the default route]
    #[arg(short, long, value_name = "ADDRESS", action = ArgAction::Append)]
    pub(super) gateway: Vec<IpAddr>,
    /// Interface of the host whose addresses and routes the namespace gets [default: that of the
    /// default route]
    #[arg(short, long, value_name = "NAME")]
    pub(super) interface: Option<String>,
    /// Address of the host that connections and datagrams leave from, once for each family
    /// [default: that of the route]
    #[arg(short, long, value_name = "ADDRESS", action = ArgAction::Append)]
    outbound: Vec<IpAddr>,
    /// Interface by which flows of IPv4 leave, and whose addresses and routes the namespace gets if
    /// there is no --interface
    #[arg(long, value_name = "NAME")]
    outbound_if4: Option<String>,
    /// The same of IPv6
    #[arg(long, value_name = "NAME")]
    outbound_if6: Option<String>,
    /// Resolver to name by DHCP and RA instead of those of /etc/resolv.conf; `none` names none
    #[arg(short = 'D', long, value_name = "ADDRESS", action = ArgAction::Append)]
    #[arg(value_parser = address_or_none)]
    pub(super) dns: Vec<OrNone>,
    /// Address at which the namespace reaches the resolvers of the host, once for each family
    #[arg(long, value_name = "ADDRESS", action = ArgAction::Append)]
    pub(super) dns_forward: Vec<IpAddr>,
    /// Resolver behind --dns-forward, which may be at a loopback address of the host [default:
    /// those of /etc/resolv.conf in turn]
    #[arg(long, value_name = "ADDRESS", action = ArgAction::Append)]
    pub(super) dns_host: Vec<IpAddr>,
    /// Domains in which short names are looked up, to name by DHCP and RA instead of those of
    /// /etc/resolv.conf; may be repeated; `none` forgets those before it
    #[arg(short = 'S', long, value_name = "LIST", action = ArgAction::Append)]
    pub(super) search: Vec<String>,
    /// Host name of the namespace, to name by DHCP
    #[arg(short = 'H', long, value_name = "NAME", value_parser = host_name)]
    pub(super) hostname: Option<String>,
    /// Qualified name of the namespace, to name by DHCP and DHCPv6
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    pub(super) fqdn: Option<String>,
    /// Name no resolvers by DHCP and RA, which is the default
    #[arg(long, overrides_with = "dhcp_dns")]
    pub(super) no_dhcp_dns: bool,
    /// Name resolvers by DHCP and RA
    #[arg(long)]
    pub(super) dhcp_dns: bool,
    /// Name no search domains by DHCP and RA, which is the default
    #[arg(long, overrides_with = "dhcp_search")]
    pub(super) no_dhcp_search: bool,
    /// Name search domains by DHCP and RA
    #[arg(long)]
    pub(super) dhcp_search: bool,
    /// Pass no TCP
    #[arg(long)]
    pub(super) no_tcp: bool,
    /// Pass no UDP
    #[arg(long)]
    pub(super) no_udp: bool,
    /// Answer no echo requests
    #[arg(long)]
    pub(super) no_icmp: bool,
    /// Give no addresses by DHCP
    #[arg(long)]
    pub(super) no_dhcp: bool,
    /// Answer no neighbour solicitations
    #[arg(long)]
    pub(super) no_ndp: bool,
    /// Give no addresses by DHCPv6
    #[arg(long)]
    pub(super) no_dhcpv6: bool,
    /// Send no router advertisements, as with --config-net
    #[arg(long)]
    pub(super) no_ra: bool,
    /// Publish at addresses that the host does not have yet, too
    #[arg(long)]
    pub(super) freebind: bool,
    /// Address at which the namespace reaches the loopback addresses of the host, once for each
    /// family; `none` for no such address [default: that of the gateway]
    #[arg(long, value_name = "ADDRESS", action = ArgAction::Append)]
    #[arg(value_parser = address_or_none)]
    pub(super) map_host_loopback: Vec<OrNone>,
    /// Let the address of the gateway be what it is
    #[arg(long)]
    pub(super) no_map_gw: bool,
    /// Address at which the namespace reaches the host's own address, which is that of the
    /// namespace as well, once for each family; `none` for no such address
    #[arg(long, value_name = "ADDRESS", action = ArgAction::Append)]
    #[arg(value_parser = address_or_none)]
    pub(super) map_guest_addr: Vec<OrNone>,
    /// IPv4 only
    #[arg(short = '4', long, conflicts_with = "ipv6_only")]
    pub(super) ipv4_only: bool,
    /// IPv6 only
    #[arg(short = '6', long)]
    pub(super) ipv6_only: bool,
    /// TCP ports of the host that are those of the namespace: none, auto, or
    /// [[ADDRESS][%INTERFACE]/]LIST, where LIST is all, or PORT[-LAST][:TARGET[-LAST]] and
    /// ~PORT[-LAST] with commas between them; may be repeated [default: auto]
    #[arg(short, long, value_name = "PORTS", action = ArgAction::Append)]
    tcp_ports: Vec<Spec>,
    /// UDP ports of the host that are those of the namespace, as --tcp-ports [default: auto]
    #[arg(short, long, value_name = "PORTS", action = ArgAction::Append)]
    udp_ports: Vec<Spec>,
    /// TCP ports of the namespace's loopback that are those of the host's: none, auto or LIST, as
    /// --tcp-ports [default: auto, and none with --upstream]
    #[arg(short = 'T', long, value_name = "PORTS", action = ArgAction::Append)]
    tcp_ns: Vec<Spec>,
    /// UDP ports of the namespace's loopback that are those of the host's, as --tcp-ns [default:
    /// auto, and none with --upstream]
    #[arg(short = 'U', long, value_name = "PORTS", action = ArgAction::Append)]
    udp_ns: Vec<Spec>,
    /// Name of the interface in the namespace [default: that of the host's, else tap0]
    #[arg(short = 'I', long, value_name = "NAME")]
    pub(super) ns_ifname: Option<String>,
    /// User namespace to join, with a PID or --netns
    #[arg(long, value_name = "PATH", conflicts_with = "netns_only")]
    pub(super) userns: Option<PathBuf>,
    /// Network namespace to join, by path or by its name in /run/netns
    #[arg(long, value_name = "PATH|NAME")]
    pub(super) netns: Option<PathBuf>,
    /// Join no user namespace, with a PID or --netns
    #[arg(long)]
    pub(super) netns_only: bool,
    /// Go on when the name of the namespace is gone
    #[arg(long)]
    pub(super) no_netns_quit: bool,
    /// Give the interface its addresses and routes, and bring it up
    #[arg(long)]
    pub(super) config_net: bool,
    /// With --config-net, set the default route only
    #[arg(long)]
    pub(super) no_copy_routes: bool,
    /// With --config-net, set one address of each family only
    #[arg(long)]
    pub(super) no_copy_addrs: bool,
    /// Ethernet address of the interface in the namespace
    #[arg(long, value_name = "MAC", value_parser = mac)]
    pub(super) ns_mac_addr: Option<[u8; 6]>,
    /// Ethernet address of the gateway [default: that of the interface in the namespace, with the
    /// last bit turned over]
    #[arg(short = 'M', long, value_name = "MAC", value_parser = mac)]
    pub(super) mac_addr: Option<[u8; 6]>,
    /// Show the clients of -t and -u at loopback addresses of the host as clients at the loopback
    /// address of the namespace, past the interface
    #[arg(long)]
    host_lo_to_ns_lo: bool,
    /// Let none of them bypass the interface, as it is without --host-lo-to-ns-lo
    #[arg(long)]
    no_splice: bool,
    /// PID of a process whose namespaces are joined, or a command to run in new ones [default: a
    /// shell]
    #[arg(trailing_var_arg = true, value_name = "PID|COMMAND")]
    pub(super) target: Vec<OsString>,
    /// The standard input is the socket of the process that waits until this one is ready
    #[arg(long, hide = true)]
    pub(super) in_background: bool,

    #[command(flatten)]
    refused: Refused,
    #[command(flatten, next_help_heading = "Options that pasta itself does not have")]
    pub(super) own: face::Options,
}

/// Options that are known, and refused.
#[derive(clap::Args, Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option")]
struct Refused {
    #[arg(short = 's', long, visible_alias = "socket-path", hide = true)]
    socket: Option<OsString>,
    #[arg(short = 'F', long, hide = true)]
    fd: Option<OsString>,
    #[arg(short = '1', long, hide = true)]
    one_off: bool,
    #[arg(long, hide = true)]
    vhost_user: bool,
    #[arg(long, hide = true)]
    print_capabilities: bool,
    #[arg(long, hide = true)]
    repair_path: Option<OsString>,
    #[arg(short = 'p', long, hide = true)]
    pcap: Option<OsString>,
    #[arg(long, hide = true)]
    migrate_exit: bool,
    #[arg(long, hide = true)]
    migrate_no_linger: bool,
    #[arg(long, hide = true)]
    stats: Option<OsString>,
}

/// An address, or the word `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrNone {
    None,
    Address(IpAddr),
}

fn address_or_none(text: &str) -> Result<OrNone, String> {
    if text == "none" {
        return Ok(OrNone::None);
    }
    let address = text.parse().map_err(|_| "expected an address, or `none`".to_owned())?;
    Ok(OrNone::Address(address))
}

/// A name of a host, with its domain or without (RFC 1123 section 2.1, and `_`).
fn host_name(text: &str) -> Result<String, String> {
    let is_harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_label =
        |label: &str| (1..=MOST_LABEL).contains(&label.len()) && label.bytes().all(is_harmless);
    let is_one = text.len() <= MOST_NAME && text.split('.').all(is_label);
    let expected = || "expected a name such as web or web.example.org".to_owned();
    is_one.then(|| text.to_owned()).ok_or_else(expected)
}

fn mtu(text: &str) -> Result<u16, String> {
    let mtu = text.parse().ok().filter(|&mtu| mtu == 0 || (LEAST_MTU..=MTU).contains(&mtu));
    mtu.ok_or_else(|| format!("expected {LEAST_MTU} to {MTU}, or 0"))
}

fn netmask(text: &str) -> Result<u8, String> {
    let length = text.parse().ok().filter(|&length: &u8| length <= 32);
    let mask = || {
        let mask = u32::from(text.parse::<Ipv4Addr>().ok()?);
        (mask.leading_ones() + mask.trailing_zeros() == 32).then(|| mask.leading_ones() as u8)
    };
    let length = length.or_else(mask).filter(|&length| length > 0);
    length.ok_or_else(|| "expected 1 to 32, or a mask such as 255.255.255.0".to_owned())
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let mut address = [0; 6];
    let mut parts = text.split([':', '-']);
    let is_one = address.iter_mut().all(|byte| {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len()));
        let parsed = part.and_then(|part| u8::from_str_radix(part, 16).ok());
        parsed.map(|parsed| *byte = parsed).is_some()
    });
    // The lowest bit of the first byte is that of groups.
    let is_host = is_one && parts.next().is_none() && address[0] & 1 == 0 && address != [0; 6];
    is_host.then_some(address).ok_or_else(|| "expected a host's, such as 52:54:0:12:34:56".into())
}

/// The ports of the four ways.
#[derive(Clone, Debug)]
pub(super) struct AllPorts {
    pub(super) tcp_in: Ports,
    pub(super) udp_in: Ports,
    pub(super) tcp_out: Ports,
    pub(super) udp_out: Ports,
}

impl AllPorts {
    /// Whether any of them follow who listens on the other side.
    pub(super) fn are_followed(&self) -> bool {
        let all = [&self.tcp_in, &self.udp_in, &self.tcp_out, &self.udp_out];
        all.contains(&&Ports::Auto)
    }
}

impl Args {
    /// What is wrong with the options together, and how each could be right.
    pub(super) fn check(&self) -> Result<(), String> {
        self.check_refused()?;
        for (name, addresses) in [
            ("--address", &self.address),
            ("--gateway", &self.gateway),
            ("--dns-forward", &self.dns_forward),
        ] {
            for &address in addresses {
                check_unicast(name, address)?;
            }
        }
        for &address in &self.dns_host {
            // The gateway asks it, which is on the host.
            if !address.is_loopback() {
                check_unicast("--dns-host", address)?;
            }
        }
        for (name, addresses) in [
            ("--map-host-loopback", &self.map_host_loopback),
            ("--map-guest-addr", &self.map_guest_addr),
        ] {
            for address in addresses {
                if let OrNone::Address(address) = *address {
                    check_unicast(name, address)?;
                }
            }
        }
        if self.netns.is_some() && !self.target.is_empty() {
            return Err("--netns: cannot stand beside a PID or a command".to_owned());
        }
        let of_user = [(self.userns.is_some(), "--userns"), (self.netns_only, "--netns-only")];
        if let Some((_, name)) = of_user.into_iter().find(|(is_given, _)| *is_given)
            && self.runs_command()
        {
            return Err(format!(
                "{name}: expected a PID or --netns with it; a command has a user namespace of its \
                 own"
            ));
        }
        self.check_upstream()?;
        if !self.ipv4_only && self.mtu != 0 && self.mtu < LEAST_MTU_V6 {
            return Err(format!(
                "--mtu {}: expected {LEAST_MTU_V6} or more with IPv6; --ipv4-only allows less",
                self.mtu
            ));
        }
        self.ports().map(|_| ())
    }

    fn check_refused(&self) -> Result<(), String> {
        let refused = &self.refused;
        for (is_given, name) in [
            (refused.socket.is_some(), "--socket"),
            (refused.fd.is_some(), "--fd"),
            (refused.one_off, "--one-off"),
            (refused.vhost_user, "--vhost-user"),
            (refused.print_capabilities, "--print-capabilities"),
            (refused.repair_path.is_some(), "--repair-path"),
            (refused.migrate_exit, "--migrate-exit"),
            (refused.migrate_no_linger, "--migrate-no-linger"),
        ] {
            if is_given {
                return Err(format!("{name}: refused, it is an option of passt for machines"));
            }
        }
        let capture = "record at the interface of the namespace instead (tcpdump -w FILE)";
        for (is_given, name, instead) in [
            (refused.pcap.is_some(), "--pcap", capture),
            (refused.stats.is_some(), "--stats", "look by `neap nstat 1` instead"),
        ] {
            if is_given {
                return Err(format!("{name}: not supported; {instead}"));
            }
        }
        Ok(())
    }

    /// Nothing of the namespace leaves beside an upstream.
    fn check_upstream(&self) -> Result<(), String> {
        let stands_for_host = |value: &OrNone| *value != OrNone::None;
        let ports = self.ports()?;
        self.own.way_out.refuse(&[
            (!self.outbound.is_empty(), "--outbound"),
            (self.outbound_if4.is_some(), "--outbound-if4"),
            (self.outbound_if6.is_some(), "--outbound-if6"),
            (!self.dns_host.is_empty(), "--dns-host"),
            (self.map_host_loopback.iter().any(stands_for_host), "--map-host-loopback"),
            (ports.tcp_out != Ports::None, "--tcp-ns"),
            (ports.udp_out != Ports::None, "--udp-ns"),
        ])
    }

    /// Which ports are forwarded.
    pub(super) fn ports(&self) -> Result<AllPorts, String> {
        let named = |name: &'static str| move |error: PortsError| format!("{name}: {error}");
        let clients = client_ports();
        let of = |name, specs: &[Spec], default| {
            Ports::of(specs, default, &clients).map_err(named(name))
        };
        // The loopback of the host is beside an upstream.
        let outwards = || if self.own.way_out.is_direct() { Ports::Auto } else { Ports::None };
        for (name, specs) in [("--tcp-ns", &self.tcp_ns), ("--udp-ns", &self.udp_ns)] {
            let is_bound = |spec: &Spec| match spec {
                Spec::All(place, _) | Spec::Listed(place, _) => *place != Default::default(),
                Spec::None | Spec::Auto => false,
            };
            if specs.iter().any(is_bound) {
                return Err(format!("{name}: expected ports without address and interface"));
            }
        }
        Ok(AllPorts {
            tcp_in: of("--tcp-ports", &self.tcp_ports, Ports::Auto)?,
            udp_in: of("--udp-ports", &self.udp_ports, Ports::Auto)?,
            tcp_out: of("--tcp-ns", &self.tcp_ns, outwards())?,
            udp_out: of("--udp-ns", &self.udp_ns, outwards())?,
        })
    }

    /// Where flows leave the host.
    pub(super) fn outbound(&self) -> Outbound {
        Outbound {
            v4: Self::v4(&self.outbound),
            v6: Self::v6(&self.outbound),
            interface_v4: self.outbound_if4.clone(),
            interface_v6: self.outbound_if6.clone(),
            ..Outbound::default()
        }
    }

    /// Whether the host has the addresses that flows are to leave from.
    pub(super) fn check_outbound(&self) -> Result<(), String> {
        self.outbound.iter().try_for_each(|&address| refused::own_address("--outbound", address))
    }

    /// What the gateway tells in the log.
    pub(super) fn level(&self) -> LevelFilter {
        let of_pasta = if self.trace {
            LevelFilter::TRACE
        } else if self.debug {
            LevelFilter::DEBUG
        } else if self.quiet {
            LevelFilter::ERROR
        } else {
            face::LEVEL
        };
        self.own.level().unwrap_or(of_pasta)
    }

    /// The interface of the host whose addresses and routes of a family the namespace gets, if an
    /// option names one.
    pub(super) fn template(&self, is_v6: bool) -> Option<&str> {
        let outbound = if is_v6 { &self.outbound_if6 } else { &self.outbound_if4 };
        self.interface.as_deref().or(outbound.as_deref())
    }

    /// The interfaces of the host that options name.
    pub(super) fn named_interfaces(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let named = [
            (self.interface.as_deref(), "--interface"),
            (self.outbound_if4.as_deref(), "--outbound-if4"),
            (self.outbound_if6.as_deref(), "--outbound-if6"),
        ];
        named.into_iter().filter_map(|(name, option)| Some((name?, option)))
    }

    /// Whether clients at loopback addresses of the host come by the namespace's own.
    pub(super) fn joins_loopbacks(&self) -> bool {
        self.host_lo_to_ns_lo && !self.no_splice
    }

    /// Whether a command, or a shell, is run in namespaces of its own.
    pub(super) fn runs_command(&self) -> bool {
        self.netns.is_none() && self.pid_of_target().is_none()
    }

    /// Whether the caller goes on when the network is there. A command has its terminal.
    pub(super) fn goes_to_background(&self) -> bool {
        !self.foreground && !self.runs_command()
    }

    /// The PID of the process whose namespaces are joined.
    pub(super) fn pid_of_target(&self) -> Option<u32> {
        let [only] = &self.target[..] else { return None };
        only.to_str()?.parse().ok().filter(|&pid| pid > 0)
    }

    /// The last address of an option for IPv4.
    pub(super) fn v4(addresses: &[IpAddr]) -> Option<Ipv4Addr> {
        addresses.iter().rev().find_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        })
    }

    /// The last address of an option for IPv6.
    pub(super) fn v6(addresses: &[IpAddr]) -> Option<Ipv6Addr> {
        addresses.iter().rev().find_map(|address| match address {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        })
    }
}

fn check_unicast(option: &str, address: IpAddr) -> Result<(), String> {
    let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() || is_broadcast {
        return Err(format!("{option} {address}: expected an address of one host"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        let words = std::iter::once("pasta").chain(line.split_whitespace());
        let args = Args::try_parse_from(words).map_err(|error| error.to_string())?;
        args.check()?;
        Ok(args)
    }

    fn parsed(line: &str) -> Args {
        parse(line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    #[test]
    fn the_lines_of_podman_are_understood() {
        let args = parsed(
            "--config-net --dns-forward 169.254.1.1 -t none -u none -T none -U none --no-map-gw \
             --quiet --netns /run/user/1000/netns/netns-1 --map-guest-addr 169.254.1.2",
        );
        assert!(args.config_net && args.no_map_gw && args.quiet && !args.foreground);
        assert_eq!(args.netns, Some("/run/user/1000/netns/netns-1".into()));
        assert_eq!(args.map_guest_addr, [OrNone::Address([169, 254, 1, 2].into())]);
        let ports = args.ports().expect("ports");
        for none in [ports.tcp_in, ports.udp_in, ports.tcp_out, ports.udp_out] {
            assert_eq!(none, Ports::None);
        }
        let args = parsed("--config-net -t 18090-18090:80-80 -u none -T none -U none --netns x");
        let Ok(AllPorts { tcp_in: Ports::Listed { ports, .. }, .. }) = args.ports() else {
            panic!("a port");
        };
        assert_eq!(ports.into_values().collect::<Vec<_>>(), [80]);
    }

    #[test]
    fn the_line_of_rootlesskit_is_understood() {
        let args = parsed(
            "--foreground --stderr --ns-ifname=tap0 --mtu=65520 --no-dhcp --no-ra \
             --address=10.0.2.100 --netmask=24 --gateway=10.0.2.2 --dns-forward=10.0.2.3 \
             --ipv4-only --tcp-ports=auto --udp-ports=auto 4711",
        );
        assert_eq!(args.pid_of_target(), Some(4711));
        assert_eq!((args.netmask, args.mtu), (Some(24), 65520));
        assert!(args.ipv4_only && args.no_ra && args.no_dhcp && !args.no_dhcpv6);
        assert_eq!(args.ns_ifname.as_deref(), Some("tap0"));
    }

    #[test]
    fn options_behind_the_command_are_its_own() {
        let args = parsed("-q ls -l --quiet -- -t");
        assert_eq!(args.target, ["ls", "-l", "--quiet", "--", "-t"]);
        assert_eq!(args.pid_of_target(), None);
        assert_eq!(parsed("--config-net -- 17 -x").pid_of_target(), None);
    }

    #[test]
    fn the_last_of_several_counts_and_names_may_be_short() {
        let args = parsed("-m 1500 --mtu 9000 --foregr -a 192.0.2.1 -a 2001:db8::1 -a 192.0.2.2");
        assert_eq!(args.mtu, 9000);
        assert!(args.foreground);
        assert_eq!(Args::v4(&args.address), Some([192, 0, 2, 2].into()));
        assert_eq!(Args::v6(&args.address), "2001:db8::1".parse().ok());
        assert_eq!(parsed("-n 255.255.240.0").netmask, Some(20));
        assert_eq!(
            parsed("--ns-mac-addr 52:54:0:12:34:56").ns_mac_addr,
            Some([0x52, 0x54, 0, 0x12, 0x34, 0x56])
        );
    }

    /// Words in backquotes that are no options are values.
    #[test]
    fn the_ports_of_the_guide_are_understood() {
        let guide = include_str!("../../../../guide/src/pasta.md");
        let (_, rest) = guide.split_once("- **Ports.**").expect("the guide is about ports");
        let (says, _) = rest.split_once("`auto` reads").expect("the guide says what each takes");
        let words = says.split('`').skip(1).step_by(2);
        let values: Vec<_> = words.filter(|word| !word.starts_with('-')).collect();
        assert!(values.len() > 4 && values.iter().any(|value| value.contains('%')), "{values:?}");
        for value in values {
            parsed(&format!("-t {value} -u {value}")).ports().expect(value);
            if !value.contains('/') {
                parsed(&format!("-T {value} -U {value}")).ports().expect(value);
            }
        }
    }

    #[test]
    fn the_resolver_behind_another_address_may_be_at_a_loopback_address() {
        let args = parsed("--dns-forward 169.254.1.1 --dns-host 127.0.0.53 --dns-host ::1");
        assert_eq!(Args::v4(&args.dns_host), Some([127, 0, 0, 53].into()));
        assert_eq!(Args::v6(&args.dns_host), Some(Ipv6Addr::LOCALHOST));
    }

    #[test]
    fn no_port_leads_to_the_host_beside_an_upstream() {
        let ports = parsed("--upstream wireguard:wg0.conf").ports().expect("ports");
        assert_eq!((ports.tcp_in, ports.udp_in), (Ports::Auto, Ports::Auto));
        assert_eq!((ports.tcp_out, ports.udp_out), (Ports::None, Ports::None));
        // What Podman says.
        parsed(
            "--upstream wireguard:wg0.conf --config-net --dns-forward 169.254.1.1 -t none -u none \
             -T none -U none --no-map-gw --quiet --netns x --map-guest-addr 169.254.1.2",
        );
        parsed("--upstream direct -o 192.0.2.1 -T 80 --dns-host 127.0.0.53");
    }

    #[test]
    fn no_connection_bypasses_the_interface_where_none_is_to() {
        for (line, does) in
            [("", false), ("--host-lo-to-ns-lo", true), ("--host-lo-to-ns-lo --no-splice", false)]
        {
            assert_eq!(parsed(line).joins_loopbacks(), does, "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_told_with_what_is_expected() {
        for (line, hint) in [
            ("--upstream wireguard:x -o 192.0.2.1", "--outbound: cannot stand beside --upstream"),
            ("--upstream wireguard:x --outbound-if4 eth0", "--outbound-if4: cannot"),
            ("--upstream wireguard:x --outbound-if6 eth0", "--outbound-if6: cannot"),
            ("--upstream wireguard:x --dns-host 127.0.0.53", "--dns-host: cannot"),
            ("--upstream wireguard:x --map-host-loopback 192.0.2.8", "--map-host-loopback: cannot"),
            ("--upstream wireguard:x -T auto", "--tcp-ns: cannot"),
            ("--upstream socks5://x:1 -U 53", "--udp-ns: cannot"),
            ("--upstream x --congestion ledbat", "--congestion"),
            ("--upstream x --upstream-dns nobody", "expected proxy, direct or an address"),
            ("--mtu 67", "expected 68 to 65520"),
            ("--mtu 1279", "--ipv4-only"),
            ("--mtu 65521", "expected 68 to 65520"),
            ("--hostname web..org", "such as web or web.example.org"),
            ("--fqdn \u{fc}ber.org", "such as web or web.example.org"),
            ("--netmask 33", "255.255.255.0"),
            ("--netmask 255.0.255.0", "255.255.255.0"),
            ("--address host", "invalid value"),
            ("--address 127.0.0.1", "an address of one host"),
            ("--gateway 224.0.0.1", "an address of one host"),
            ("--dns-forward 127.0.0.53", "an address of one host"),
            ("--dns-host 0.0.0.0", "an address of one host"),
            ("--dns-host 255.255.255.255", "an address of one host"),
            ("--map-guest-addr ::", "an address of one host"),
            ("--ns-mac-addr 1:2:3:4:5", "52:54:0"),
            ("--ns-mac-addr 01:02:03:04:05:06", "52:54:0"),
            ("--dns nowhere", "`none`"),
            ("-t 80 -t none", "cannot stand beside other ports"),
            ("-t eighty", "is no port"),
            ("-T 192.0.2.1/80", "without address"),
            ("-4 -6", "cannot be used with"),
            ("--netns x 17", "cannot stand beside a PID"),
            ("--netns x --userns y --netns-only", "cannot be used with"),
            ("--socket x", "of passt"),
            ("-1", "of passt"),
            ("--pcap x", "tcpdump"),
            ("--stats 1", "not supported; look by `neap nstat 1`"),
            ("--no-such-thing", "unexpected argument"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(hint), "{line}: {error}");
        }
    }
}
