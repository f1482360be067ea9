//! The half of the face in the network of the host: the stack on the interface of the namespace,
//! the gateway, and the end of both.

use super::agent::{Agent, Made};
use super::arguments::{AllPorts, Args};
use super::follow::Follower;
use super::host::Host;
use super::inside::{Setup, WITHOUT_GATEWAY};
use super::listening::Tables;
use super::log::Log;
use super::network::{Family, LENGTH_V6, Network, prefix};
use super::publish::{Binder, Bound};
use super::resolvers::Resolvers;
use super::supply::{self, Sources};
use super::user::Identity;
use super::watch::Watch;
use super::{Failure, NAME, netlink};
use crate::background::Waiting;
use crate::gateway::command::{exit_code, not_ignored};
use crate::gateway::confine::{Needs, confine};
use crate::gateway::ending::{self, AtOnce, Rest};
use crate::gateway::face;
use crate::gateway::shown::{Shown, control_socket};
use crate::gateway::watching::Watched;
use crate::gateway::way_out::Way;
use crate::gateway::{DeviceEnd, FileLimit, Namespaces, raise_file_limit, tell_of_echo};
use ipnet::IpNet;
use neap::device::Tun;
use neap::net::Prefix;
use neap::{Builder, InterfaceConfig, Stack};
use neap_gateway::{Gateway, GatewayConfig, GatewayHandle, Resolver, ResolversFile};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};
use rustix::thread::CapabilitySet;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Where `ip netns` keeps its names.
const NAMED: &str = "/run/netns";

pub(super) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let waiting = args.in_background.then(Waiting::new).transpose();
    let waiting = waiting.map_err(system("the background"))?;
    let log = Log::new(args.quiet, args.log_file.as_deref(), args.log_size)
        .map_err(|error| Failure::System(format!("--log-file: {error}")))?;
    let log = Arc::new(log);
    let told = log.clone();
    face::start_log(args.level(), move |line| told.tell(&line));
    let ended = run(args, &log, waiting);
    if let Err(Failure::Arguments(why) | Failure::System(why)) = &ended {
        log.error(why);
    }
    ended
}

fn run(args: &Args, log: &Arc<Log>, waiting: Option<Waiting>) -> Result<ExitCode, Failure> {
    let identity = Identity::wanted(args.runas.as_deref()).map_err(Failure::Arguments)?;
    let ports = args.ports().map_err(Failure::Arguments)?;
    args.check_outbound().map_err(Failure::Arguments)?;
    let host = Host::ask([false, true].map(|is_v6| args.template(is_v6)))
        .map_err(system("the addresses and routes of this host"))?;
    let mut network =
        Network::plan(args, host, &Resolvers::of_host()).map_err(Failure::Arguments)?;
    let limit = FileLimit::own();
    let allowed = raise_file_limit().map_err(Failure::System)?;
    let binder = Binder { args, network: &network };
    let taken = binder.descriptors(&ports, allowed).map_err(Failure::System)?;
    // One that becomes another user would refuse the one that asks.
    let is_of_user = identity.is_none_or(Identity::is_own);
    let (mut config, sources) = config(args, &network, allowed - taken)?;
    // Its files may be those of the present user alone.
    let of_user = |name: &str| control_socket(name, is_of_user);
    let way = args.own.way_out.open(args.outbound(), true, &mut config, of_user)?;
    let bound = binder.bind_listed(&ports).map_err(Failure::System)?;
    // The host knows the names of its own domains alone.
    if let Some(domains) = way.search().filter(|_| config.resolver != Resolver::Host) {
        network.search_in(domains, args);
    }
    let watch = watched(args, log)?;
    let mut signals = not_ignored(&[SIGINT, SIGQUIT, SIGTERM]);
    // With a command it is for that: its terminal is gone.
    let reloads = args.own.way_out.has_tunnel() && !args.runs_command();
    signals.extend(reloads.then_some(SIGHUP));
    let shown = Shown::listen(NAME, is_of_user, args.own.metrics.as_ref())?;
    // That user may not be allowed to make it.
    let pid_file = args.pid.as_deref().map(PidFile::create).transpose()?;
    // What a command does in its namespaces is that user's, too.
    if args.runs_command() {
        assume(identity, &way)?;
    }
    let (mut agent, mut child) = Agent::start(args, way.variables()).map_err(Failure::System)?;
    limit.give_to(&child);
    let set_up = agent.set_up(setup(args, &network, identity)).map_err(Failure::System);
    let started = set_up.and_then(|made| {
        if let Some(what) = &made.left_out {
            log.info(what);
        }
        let stack = stack(made, args, &network)?;
        let tables = Tables::open();
        if !args.runs_command() {
            assume(identity, &way)?;
            // A folder that a process is in cannot be unmounted.
            std::env::set_current_dir("/").map_err(system("the folder /"))?;
        }
        let readable = if args.runs_command() { Vec::new() } else { way.folders() };
        let kept = Needs { readable, sockets_in: shown.folders(), ..Needs::default() };
        config.resolvers_file = give_up(&network, &ports, &config, &way, log, kept)?;
        let gateway = gateway(stack, way, config, bound, shown)?;
        Ok((gateway, Ready { pid_file, waiting, sources }, tables))
    });
    // It is there until the end.
    let ((gateway, device_end, (_shown, rest)), ready, tables) = match started {
        Ok(started) => started,
        Err(failure) => {
            drop(agent);
            let _ = child.wait();
            return Err(failure);
        }
    };
    say(log, &network);
    if !args.no_icmp && args.own.way_out.is_direct() {
        tell_of_echo(&gateway, |what| log.info(&what));
    }
    let device = DeviceOfCommand { end: device_end, name: network.interface.clone() };
    let running = Running::start(args, gateway, watch, signals, rest)?;
    let (handle, log) = (running.handle.clone(), log.clone());
    let follower = Follower::new(args.clone(), network, ports, agent, handle, log, tables);
    let ended = serve(args, running, &device, follower, &mut child, ready);
    let _ = child.wait();
    ended
}

fn system<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure::System(format!("{what}: {error}"))
}

/// Becomes another user, with the capabilities that the way out keeps and no others: what the
/// present user may do, such as binding the ports of the host below 1024, that one may not.
fn assume(identity: Option<Identity>, way: &Way) -> Result<(), Failure> {
    let assume = |identity: Identity| identity.assume_with_capabilities(way.capabilities());
    identity.map_or(Ok(()), assume).map_err(Failure::System)
}

/// What the namespace has, for people.
fn say(log: &Log, network: &Network) {
    log.info(&format_args!("interface of the namespace: {}", network.interface));
    for (name, family) in [("IPv4", &network.v4), ("IPv6", &network.v6)] {
        let Some(family) = family else { continue };
        let guest = family.guest.map(|(address, length)| format!("{address}/{length}"));
        let gateway = family.gateway.map(|gateway| gateway.to_string());
        let none = || "none".to_owned();
        let (guest, gateway) = (guest.unwrap_or_else(none), gateway.unwrap_or_else(none));
        log.info(&format_args!("{name}: address {guest}, router {gateway}"));
    }
}

/// Waits until the namespace, its command or this program is to end.
fn serve(
    args: &Args,
    running: Running,
    device: &DeviceOfCommand,
    mut follower: Follower,
    child: &mut Child,
    mut ready: Ready,
) -> Result<ExitCode, Failure> {
    let follow = |follower: &mut Follower| {
        follower.open_listed()?;
        follower.look().map_err(|error| format!("the process in the namespace: {error}"))
    };
    let begun = follow(&mut follower).map_err(Failure::System).and_then(|()| {
        // The command may look for it.
        ready.leave_pid()?;
        let why = |error| Failure::System(format!("the command: {error}"));
        if args.runs_command() {
            follower.agent.run().map_err(why)?;
        }
        ready.begin_supply(&mut follower.agent)
    });
    if let Err(failure) = begun {
        running.handle.stop();
        drop(follower);
        running.end()?;
        return Err(failure);
    }
    ready.tell();
    let (until, stop) = channel();
    let follower = (follower.is_needed() || args.runs_command())
        .then(|| spawn("ports", move || follow_ports(follower, &stop)))
        .transpose()?;
    if args.runs_command() {
        // A signal ends the gateway, and the namespace with it.
        return running.wait_for(child, until, device);
    }
    let ended = running.end();
    drop(until);
    if let Some(follower) = follower {
        let _ = follower.join();
    }
    ended.map(|()| ExitCode::SUCCESS)
}

fn follow_ports(mut follower: Follower, stop: &std::sync::mpsc::Receiver<()>) {
    if follower.is_needed() {
        follower.run(stop);
    } else {
        // The process in the namespace lives as long as its socket.
        let _ = stop.recv();
    }
}

fn spawn(name: &str, what: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Failure> {
    thread::Builder::new().name(name.to_owned()).spawn(what).map_err(system("a thread"))
}

/// The file for the process ID, which is made while files are in reach.
struct PidFile<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> PidFile<'a> {
    fn create(path: &'a Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| Self::failed(path, &error))?;
        Ok(Self { path, file })
    }

    fn failed(path: &Path, error: &io::Error) -> Failure {
        Failure::System(format!("--pid {}: {error}", path.display()))
    }
}

/// Who is told that the network is there.
struct Ready<'a> {
    pid_file: Option<PidFile<'a>>,
    waiting: Option<Waiting>,
    /// What the process in the namespace is to fill with sockets.
    sources: Option<Sources>,
}

impl Ready<'_> {
    /// Has sockets of the namespace made.
    fn begin_supply(&mut self, agent: &mut Agent) -> Result<(), Failure> {
        let Some(sources) = self.sources.take() else { return Ok(()) };
        agent.fill(sources).map_err(system("the process in the namespace"))
    }

    /// Leaves the process ID.
    fn leave_pid(&mut self) -> Result<(), Failure> {
        let Some(PidFile { path, mut file }) = self.pid_file.take() else { return Ok(()) };
        writeln!(file, "{}", std::process::id()).map_err(|error| PidFile::failed(path, &error))
    }

    /// Lets the caller go on.
    fn tell(self) {
        // Whoever has waited may be gone.
        let _ = self.waiting.map(Waiting::tell);
    }
}

/// Gives up what is not needed while the network is there, as [`confine`], but for what is `kept`
/// anyway.
fn give_up(
    network: &Network,
    ports: &AllPorts,
    config: &GatewayConfig,
    way: &Way,
    log: &Log,
    kept: Needs,
) -> Result<Option<Arc<dyn ResolversFile>>, Failure> {
    let none = CapabilitySet::empty();
    let asks = config.takes_all_dns || network.has_resolver();
    let mut needs = Needs {
        // Ports of the host are bound as they are followed.
        capabilities: if ports.are_followed() { CapabilitySet::NET_BIND_SERVICE } else { none },
        resolvers: asks && config.resolver == Resolver::Host,
        ..kept
    };
    way.add_needs(&mut needs);
    confine(&needs, |what| log.info(&what)).map_err(Failure::System)
}

/// The gateway in a thread of its own.
struct Running {
    handle: GatewayHandle,
    engine: JoinHandle<std::io::Result<()>>,
    rest: Rest,
    at_once: AtOnce,
}

impl Running {
    fn start(
        args: &Args,
        mut gateway: Gateway,
        watch: Option<Watch>,
        signals: Vec<i32>,
        rest: Rest,
    ) -> Result<Self, Failure> {
        let handle = gateway.handle();
        let signals = Signals::new(signals).map_err(system("signals"))?;
        let at_once = args.own.ending.by(signals, handle.clone(), rest.tunnel());
        let at_once = at_once.map_err(system("a thread"))?;
        if let Some(watch) = watch {
            let stop = handle.clone();
            spawn("namespace", move || {
                // One that cannot be watched any more does not end.
                if watch.wait().is_ok() {
                    stop.stop();
                }
            })?;
        }
        let engine = thread::Builder::new().name("gateway".to_owned()).spawn(move || gateway.run());
        Ok(Self { handle, engine: engine.map_err(system("a thread"))?, rest, at_once })
    }

    /// Waits until the gateway ends, and lets its tunnel send the rest.
    fn end(self) -> Result<(), Failure> {
        let ended = join(self.engine);
        self.rest.send(Instant::now() + ending::TIME, self.at_once);
        ended
    }

    /// Waits until the command has ended, and then ends the gateway, once what the command has sent
    /// has arrived. When the gateway ends first, `until` is dropped, and the process in the
    /// namespace ends with its command.
    ///
    /// # Errors
    /// Why the command had to end: its gateway has failed, or the interface is gone.
    fn wait_for(
        self,
        child: &mut Child,
        until: Sender<()>,
        device: &DeviceOfCommand,
    ) -> Result<ExitCode, Failure> {
        let (tell, ended) = channel();
        let Self { handle, engine, rest, at_once } = self;
        spawn("end", move || {
            // Nobody listens when the command cannot be waited for.
            let _ = tell.send(join(engine));
            drop(until);
        })?;
        let status = child.wait().map_err(system("the command"));
        let rest_until = Instant::now() + ending::TIME;
        // The end of a command may end the interface, too.
        let ended_before = ended.try_recv().ok();
        if ended_before.is_none() {
            ending::finish(&handle, ending::TIME);
            // In the end it resets what is unfinished. Behind it the kernel would end the streams.
            let _ = ended.recv();
        }
        rest.send(rest_until, at_once);
        let status = status?;
        match ended_before {
            Some(ended) if status.code() == Some(WITHOUT_GATEWAY.into()) => {
                ended?;
                if device.end.has_come() {
                    return Err(Failure::System(format!("the interface {} is gone", device.name)));
                }
                Ok(ExitCode::SUCCESS)
            }
            _ => Ok(exit_code(status)),
        }
    }
}

/// Waits until the gateway ends.
fn join(engine: JoinHandle<io::Result<()>>) -> Result<(), Failure> {
    let ended = engine.join();
    let ended = ended.map_err(|_| Failure::System("the gateway has ended".to_owned()))?;
    ended.map_err(system("the gateway"))
}

/// The interface that a command has, and whether it is gone.
struct DeviceOfCommand {
    end: DeviceEnd,
    name: String,
}

/// What tells that the namespace is gone.
fn watched(args: &Args, log: &Log) -> Result<Option<Watch>, Failure> {
    if args.no_netns_quit {
        return Ok(None);
    }
    let watch = match (args.pid_of_target(), &args.netns) {
        (Some(pid), _) => Watch::process(pid)
            .map_err(|error| Failure::System(format!("the process {pid}: {error}"))),
        (None, Some(path)) => {
            let path = path_of(path);
            let told = |error| format!("--netns {}: {error}", path.display());
            Watch::path(&path, |what| log.info(what)).map_err(|error| Failure::System(told(error)))
        }
        (None, None) => return Ok(None),
    };
    watch.map(Some)
}

/// The path of a namespace; a name is one of `ip netns`.
fn path_of(netns: &Path) -> PathBuf {
    if netns.components().count() == 1 && !netns.is_absolute() {
        Path::new(NAMED).join(netns)
    } else {
        netns.to_owned()
    }
}

fn namespaces(args: &Args) -> Option<Namespaces> {
    if let Some(pid) = args.pid_of_target() {
        let mut namespaces = Namespaces::of_process(pid);
        if args.netns_only {
            namespaces.user = None;
        }
        if args.userns.is_some() {
            namespaces.user.clone_from(&args.userns);
            namespaces.user_is_optional = false;
        }
        return Some(namespaces);
    }
    let network = path_of(args.netns.as_deref()?);
    let user = args.userns.clone();
    Some(Namespaces { user, user_is_optional: false, network: Some(network) })
}

/// What the process in the namespace is to do.
fn setup(args: &Args, network: &Network, identity: Option<Identity>) -> Setup {
    Setup {
        join: namespaces(args),
        identity,
        interface: network.interface.clone(),
        mac: args.ns_mac_addr,
        mtu: (args.mtu != 0).then_some(args.mtu),
        configure: args.config_net.then(|| {
            let families = network.v4.iter().chain(&network.v6);
            families.flat_map(settings).map(netlink::pack).collect()
        }),
    }
}

/// Addresses and routes of a family.
fn settings(family: &Family) -> Vec<RouteNetlinkMessage> {
    let mut messages = Vec::new();
    match &family.addresses {
        Some(copied) => {
            messages.extend(copied.iter().cloned().map(RouteNetlinkMessage::NewAddress));
        }
        None => messages.extend(family.guest.map(|(address, length)| {
            RouteNetlinkMessage::NewAddress(address_message(address, length))
        })),
    }
    match &family.routes {
        Some(copied) => messages.extend(copied.iter().cloned().map(RouteNetlinkMessage::NewRoute)),
        None => messages.extend(family.gateway.map(|gateway| {
            let is_on_link = family.is_gateway_on_link();
            RouteNetlinkMessage::NewRoute(default_route(gateway, is_on_link))
        })),
    }
    messages
}

fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn address_message(address: IpAddr, length: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family_of(address);
    message.header.prefix_len = length;
    message.header.scope = AddressScope::Universe;
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    if let Ok(IpNet::V4(net)) = IpNet::new(address, length)
        && length < 31
    {
        message.attributes.push(AddressAttribute::Broadcast(net.broadcast()));
    }
    message
}

fn default_route(gateway: IpAddr, is_on_link: bool) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = family_of(gateway);
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Boot;
    route.header.scope = RouteScope::Universe;
    route.header.kind = RouteType::Unicast;
    let router = match gateway {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    };
    route.attributes = vec![RouteAttribute::Gateway(router), RouteAttribute::Oif(0)];
    let is_link_local = matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local());
    if !is_on_link && !is_link_local {
        route.header.flags = RouteFlags::Onlink;
    }
    route
}

/// What a stack on the device is made of.
fn stack(made: Made, args: &Args, network: &Network) -> Result<Builder, Failure> {
    let tap = Tun::from_queues(vec![made.device], Some(made.mtu));
    let tap = tap.map_err(|error| Failure::System(error.to_string()))?;
    let tap = match args.mac_addr {
        Some(address) => tap.with_address(address),
        None => tap,
    };
    let mut interface =
        InterfaceConfig::new(tap.into_device()).any_destination(true).begin_unread();
    let own = network.gateway_addresses();
    for &address in &own {
        let is_silent = args.no_ndp && address.ip.is_ipv6();
        interface = if is_silent { interface } else { interface.address(address) };
    }
    for (family, is_v6) in [(&network.v4, false), (&network.v6, true)] {
        let Some(family) = family else { continue };
        if is_v6 && args.no_ndp {
            continue;
        }
        // The namespace believes that it is on the network of the host.
        let all: IpAddr = if is_v6 { [0u16; 8].into() } else { [0u8; 4].into() };
        interface = interface.proxy(Prefix::of_all(all));
        if let Some((guest, length)) = family.guest {
            // It may have made itself another address of its network, as hosts do of what a router
            // advertises.
            let network = prefix(guest, if is_v6 { LENGTH_V6 } else { length });
            let is_known = network == Prefix::of_host(guest)
                || own.iter().any(|address| address.prefix == network);
            interface = if is_known { interface } else { interface.on_link(network) };
            interface = interface.peer(guest).gateway(guest);
        }
    }
    // A kernel that hears of a router adds addresses and routes to those that it was given.
    let advertises = !args.no_ra && !args.no_ndp && !args.config_net;
    if advertises && let Some(told) = network.advertisement(args) {
        interface = interface.router_advertisements(told);
    }
    let ignores_echo = if args.no_icmp { "1" } else { "0" };
    Ok(Stack::builder()
        .interface(interface)
        .sysctl("net.ipv4.icmp_echo_ignore_all", ignores_echo)
        .sysctl("net.ipv6.icmp.echo_ignore_all", ignores_echo))
}

/// The settings of the gateway, with so many descriptors for flows; and what is to be filled with
/// sockets of the namespace, if they need any.
fn config(
    args: &Args,
    network: &Network,
    allowed: usize,
) -> Result<(GatewayConfig, Option<Sources>), Failure> {
    let mut config = GatewayConfig::default();
    config.policy = network.policy();
    config.translations = network.translations();
    config.guest_addresses = network.guest_addresses();
    config.dhcp = if args.no_dhcp { None } else { network.dhcp(args) };
    config.dhcp6 = if args.no_dhcpv6 || args.no_ndp { None } else { network.dhcp6(args) };
    (config.passes_tcp, config.passes_udp) = (!args.no_tcp, !args.no_udp);
    config.passes_echo = !args.no_icmp;
    args.own.limits.apply(&mut config, allowed).map_err(Failure::Arguments)?;
    if !args.joins_loopbacks() {
        return Ok((config, None));
    }
    let (supply, sources) = supply::queues().map_err(system("sockets of the namespace"))?;
    config.guest_sockets = Some(Arc::new(supply));
    Ok((config, Some(sources)))
}

/// The stack, and the gateway on it with its published ports, what others see of it, and what it
/// leaves in the end.
fn gateway(
    stack: Builder,
    way: Way,
    config: GatewayConfig,
    bound: Vec<Bound>,
    shown: Shown,
) -> Result<(Gateway, DeviceEnd, (Watched, Rest)), Failure> {
    let (upstream, tunnel) = way.start()?;
    let stack = Arc::new(stack.build().map_err(|error| Failure::System(error.to_string()))?);
    let gateway = Gateway::new(stack.clone(), upstream, config);
    let mut gateway = gateway.map_err(system("the gateway"))?;
    for (socket, publication) in bound {
        gateway.publish_socket(socket, publication).map_err(system("a published port"))?;
    }
    let end = DeviceEnd::watch(&stack, gateway.handle()).map_err(system("the interface"))?;
    let shown = shown.serve(&stack, &gateway, tunnel)?;
    Ok((gateway, end, shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn options_say_what_is_joined_and_whose_end_is_the_end() {
        let own = std::process::id().to_string();
        let args = |options: &[&str]| {
            let line = ["pasta"].iter().chain(options).copied().chain([own.as_str()]);
            Args::try_parse_from(line).expect("options")
        };
        let user = |options: &[&str]| namespaces(&args(options)).and_then(|all| all.user);
        assert_eq!(user(&[]), Some(format!("/proc/{own}/ns/user").into()));
        assert_eq!(user(&["--netns-only"]), None);
        assert_eq!(user(&["--userns", "/some/where"]), Some("/some/where".into()));
        let log = Log::new(true, None, 0).expect("no file");
        let is_watched =
            |options: &[&str]| watched(&args(options), &log).expect("it runs").is_some();
        assert!(is_watched(&[]) && !is_watched(&["--no-netns-quit"]));
    }
}
