//! The half of the face in the namespace: it joins or makes the namespace, makes the interface in
//! it, and then does there what the other half asks for, until that one ends.

use super::channel::Channel;
use super::listening::Tables;
use super::supply::Source;
use super::user::Identity;
use super::{host, netlink};
use crate::gateway::Namespaces;
use crate::gateway::command::{exit_code, not_run, show_own_processes};
use crate::gateway::confine::{Needs, confine};
use crate::gateway::namespace;
use crate::gateway::own_namespaces;
use clap::Args as ClapArgs;
use neap::device::{LinkConfig, Tun, TunQueue, configure_link};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use nix::sched::CloneFlags;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::iter;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

/// Connections that wait at a port of the namespace.
const BACKLOG: i32 = 128;

/// Exit status of this half when its command had to end, as the gateway has ended. Commands
/// seldom have it.
pub(super) const WITHOUT_GATEWAY: u8 = 125;

/// What the namespace is to be.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// The namespaces to join; `None` for new ones.
    pub(super) join: Option<Namespaces>,
    /// The user to become before namespaces are joined; `None` to stay who it is.
    pub(super) identity: Option<Identity>,
    /// Name of the interface.
    pub(super) interface: String,
    pub(super) mac: Option<[u8; 6]>,
    /// `None` leaves it as it is.
    pub(super) mtu: Option<u16>,
    /// Addresses and routes, [packed](netlink::pack); `None` leaves the interface down and without.
    pub(super) configure: Option<Vec<Vec<u8>>>,
}

/// What the other half asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Setup(Setup),
    /// The ports that somebody listens at.
    Scan,
    /// A socket that is bound to a port.
    Bind {
        is_tcp: bool,
        address: SocketAddr,
    },
    /// Sockets that are bound to no port, put into the queue whose end the descriptor is.
    Fill {
        is_tcp: bool,
        is_v6: bool,
    },
    /// The network is there: run the command. The descriptor is its standard input.
    Run,
}

/// What this half answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The descriptor is that of the socket that was asked for.
    Done,
    /// The descriptors are those of the device.
    Device {
        has_bulk_thread: bool,
        mtu: u16,
        /// One line about what the namespace does not take.
        left_out: Option<String>,
    },
    Ports {
        tcp: Vec<u16>,
        udp: Vec<u16>,
    },
    Failed(String),
}

/// Join a namespace; the standard input is the socket of the other half
#[derive(ClapArgs, Clone, Debug)]
pub(crate) struct Args {
    /// The namespaces are there already: become the command
    #[arg(long)]
    become_command: bool,
    /// The command and its arguments
    #[arg(last = true)]
    command: Vec<OsString>,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    if args.become_command {
        return become_command(&args.command);
    }
    match serve(args) {
        Ok(code) => code,
        // The other half is gone, or tells the user.
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve(args: &Args) -> io::Result<ExitCode> {
    let mut channel = Channel::new(io::stdin().as_fd().try_clone_to_owned()?);
    // A namespace without its gateway is of no use.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut command = None;
    let mut tables = None;
    let mut sources = Vec::new();
    loop {
        if let Some(code) = wait(&channel, &mut command, &mut sources)? {
            return Ok(code);
        }
        let (request, descriptors) = match channel.receive::<Request>() {
            Ok(request) => request,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let is_in_use = command.is_some();
                return Ok(if is_in_use { WITHOUT_GATEWAY.into() } else { ExitCode::SUCCESS });
            }
            Err(error) => return Err(error),
        };
        let failed = match request {
            Request::Run => {
                let input = descriptors.into_iter().next().ok_or(io::ErrorKind::InvalidInput)?;
                let started = Started::start(&args.command, input)?;
                give_up(Some(started.pid)).map_err(io::Error::other)?;
                command = Some(started);
                channel.send(&Answer::Done, &[])?;
                continue;
            }
            Request::Scan => {
                let tables = tables.get_or_insert_with(Tables::open);
                let (tcp, udp) = (tables.tcp(), tables.udp());
                let [tcp, udp] = [tcp, udp].map(|ports| ports.iter().collect());
                channel.send(&Answer::Ports { tcp, udp }, &[])?;
                continue;
            }
            Request::Setup(setup) => {
                let built = build(&setup);
                tables = Some(Tables::open());
                // A command is still to be started, with all that its user may.
                let is_done = setup.join.is_some();
                let settle = || if is_done { settle() } else { Ok(()) };
                let built = built.and_then(|built| settle().map(|()| built));
                match built {
                    Ok(built) => {
                        built.hand_over(&mut channel)?;
                        continue;
                    }
                    Err(why) => why,
                }
            }
            Request::Bind { is_tcp, address } => match bind(is_tcp, address) {
                Ok(socket) => {
                    channel.send(&Answer::Done, &[socket.as_fd()])?;
                    continue;
                }
                Err(error) => error.to_string(),
            },
            Request::Fill { is_tcp, is_v6 } => {
                let end = descriptors.into_iter().next().ok_or(io::ErrorKind::InvalidInput)?;
                let source = Source { end, is_tcp, is_v6 };
                // Whoever comes first finds some.
                if source.fill().is_ok() {
                    sources.push(source);
                }
                channel.send(&Answer::Done, &[])?;
                continue;
            }
        };
        channel.send(&Answer::Failed(failed), &[])?;
    }
}

/// The interface in the namespace.
struct Interface {
    device: TunQueue,
    mtu: u16,
    left_out: Option<String>,
}

impl Interface {
    fn hand_over(self, channel: &mut Channel) -> io::Result<()> {
        let Self { device: TunQueue { main, bulk, has_bulk_thread }, mtu, left_out } = self;
        let both: Vec<_> = iter::once(&main).chain(&bulk).map(AsFd::as_fd).collect();
        channel.send(&Answer::Device { has_bulk_thread, mtu, left_out }, &both)
    }
}

/// Lets go of what no command needs.
fn settle() -> Result<(), String> {
    // A folder that a process is in cannot be unmounted.
    std::env::set_current_dir("/").map_err(|error| format!("the folder /: {error}"))?;
    give_up(None)
}

/// Gives up all but what is needed to bind ports of the namespace, and to end the command.
fn give_up(command: Option<Pid>) -> Result<(), String> {
    let capabilities = CapabilitySet::NET_BIND_SERVICE;
    let needs = Needs { capabilities, signals: command, ..Needs::default() };
    // The other half says what this kernel does not take.
    confine(&needs, |_| ()).map(drop)
}

/// Waits until there is a request, or the command has ended: then its exit status. Meanwhile it
/// fills queues with sockets. No thread could: a process whose children are in another namespace of
/// processes begins none.
fn wait(
    channel: &Channel,
    command: &mut Option<Started>,
    sources: &mut Vec<Source>,
) -> io::Result<Option<ExitCode>> {
    loop {
        let ended = command.as_ref().map(|command| PollFd::new(&command.ended, PollFlags::IN));
        let mut waited = vec![PollFd::new(channel, PollFlags::IN)];
        waited.extend(ended);
        let first_source = waited.len();
        waited.extend(sources.iter().map(|source| PollFd::new(source, PollFlags::OUT)));
        match poll(&mut waited, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let has_news: Vec<_> = waited.iter().map(|one| !one.revents().is_empty()).collect();
        let (own, of_sources) = has_news.split_at(first_source);
        if let (Some(Started { child, .. }), [_, true]) = (&mut *command, own) {
            return Ok(Some(exit_code(child.wait()?)));
        }
        if own[0] {
            return Ok(None);
        }
        let mut of_sources = of_sources.iter();
        // What nobody takes from any more is closed; a kernel without a family has none of it.
        sources.retain(|source| of_sources.next() != Some(&true) || source.fill().is_ok());
    }
}

/// The command. It is killed when this is dropped, as it is of no use without its gateway.
struct Started {
    child: Child,
    pid: Pid,
    ended: OwnedFd,
}

impl Started {
    /// Starts it, as the first process of its namespace of processes.
    fn start(command: &[OsString], input: OwnedFd) -> io::Result<Self> {
        let child = Command::new(OWN_PROGRAM)
            .args(["pasta-inside", "--become-command", "--"])
            .args(command)
            .stdin(Stdio::from(input))
            .spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { child, pid, ended: pidfd_open(pid, PidfdFlags::empty())? })
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // One that has ended is left as it is.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program, whatever its folder is called and may be reached by.
pub(super) const OWN_PROGRAM: &str = "/proc/self/exe";

/// Becomes the command, or a shell.
fn become_command(command: &[OsString]) -> ExitCode {
    let failed = |what: &dyn fmt::Display, error| not_run("pasta", what, &error);
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed(&"the command", error.into());
    }
    show_own_processes();
    let shell = || std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    let (program, arguments) = match command.split_first() {
        Some((program, arguments)) => (program.clone(), arguments),
        None => (shell().unwrap_or_else(|| "/bin/sh".into()), &[][..]),
    };
    // It returns only if there is nothing to run.
    let error = Command::new(&program).args(arguments).exec();
    failed(&Path::new(&program).display(), error)
}

/// Joins or makes the namespaces, and makes the interface.
fn build(setup: &Setup) -> Result<Interface, String> {
    let Some(namespaces) = &setup.join else {
        make()?;
        // The command is root of the new namespaces.
        namespace::hide()?;
        return interface(setup);
    };
    let other = setup.identity.filter(|identity| !identity.is_own());
    match other {
        Some(identity) => {
            // In a user namespace its number may mean another user, or nobody. Other namespaces
            // are joined by capabilities.
            identity.assume_with_capabilities(CapabilitySet::all())?;
            // The device of all TUNs may be root's, and rights to files end at a user namespace.
            Namespaces { user: None, ..namespaces.clone() }.join()?;
        }
        None => namespaces.join()?,
    }
    let interface = interface(setup)?;
    if other.is_some() {
        Namespaces { network: None, ..namespaces.clone() }.join()?;
    }
    // The kernel forgets the signal when a process becomes another user or joins a user namespace.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("cannot be told of the gateway's end: {error}"))?;
    Ok(interface)
}

/// Makes the interface in the namespace that this process is in.
fn interface(setup: &Setup) -> Result<Interface, String> {
    let failed = |error: neap::device::Error| error.to_string();
    configure_link("lo", &LinkConfig::default()).map_err(failed)?;
    let tap = Tun::open(&namespace::device(&setup.interface, true)).map_err(failed)?;
    let index = set_link(tap.name(), setup.mac)
        .map_err(|error| format!("the interface {}: {error}", tap.name()))?;
    let link = LinkConfig { mtu: setup.mtu, up: false, ..LinkConfig::default() };
    configure_link(tap.name(), &link).map_err(failed)?;
    let mtu = setup.mtu.map_or_else(|| mtu_of(index), Ok);
    let mtu = mtu.map_err(|error| format!("the MTU of {}: {error}", tap.name()))?;
    let mut left_out = None;
    if let Some(messages) = &setup.configure {
        // The gateway sees to it that nobody else has the address.
        let no_detection = format!("/proc/sys/net/ipv6/conf/{}/accept_dad", tap.name());
        // There is no such file without IPv6.
        let _ = fs::write(no_detection, "0");
        configure_link(tap.name(), &LinkConfig::default()).map_err(failed)?;
        left_out =
            configure(messages, index).map_err(|error| format!("addresses and routes: {error}"))?;
    }
    Ok(Interface { device: tap.into_queues().remove(0), mtu, left_out })
}

/// The MTU that an interface has of itself.
fn mtu_of(index: u32) -> io::Result<u16> {
    let mut mtu = None;
    netlink::dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
        if let RouteNetlinkMessage::NewLink(link) = message
            && link.header.index == index
        {
            mtu = link.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::Mtu(mtu) => Some(u16::try_from(*mtu).unwrap_or(u16::MAX)),
                _ => None,
            });
        }
    })?;
    mtu.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Makes namespaces in which this user is root.
fn make() -> Result<(), String> {
    own_namespaces::make(CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS)?;
    // The namespace may ping; where this is not allowed it works without.
    let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0");
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(|error| format!("cannot make mounts private: {error}"))
}

/// Gives an interface its Ethernet address, and returns its index.
fn set_link(name: &str, mac: Option<[u8; 6]>) -> io::Result<u32> {
    // Any socket is of the namespace in which it was made.
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    let index = rustix::net::netdevice::name_to_index(socket, name)?;
    if let Some(mac) = mac {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes.push(LinkAttribute::Address(mac.to_vec()));
        netlink::change(RouteNetlinkMessage::SetLink(link), 0)?;
    }
    Ok(index)
}

/// Gives an interface addresses, then routes. A route may need another one that comes behind it.
/// Returns a line about routes that need one which is not there, as the host has lost it since it
/// took them.
fn configure(messages: &[Vec<u8>], index: u32) -> io::Result<Option<String>> {
    let mut waiting = Vec::new();
    for message in messages {
        waiting.push(match netlink::unpack(message)? {
            RouteNetlinkMessage::NewAddress(address) => {
                RouteNetlinkMessage::NewAddress(host::address_for(address, index))
            }
            RouteNetlinkMessage::NewRoute(route) => {
                RouteNetlinkMessage::NewRoute(host::route_for(route, index))
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        });
    }
    loop {
        let (before, mut refused) = (waiting.len(), Vec::new());
        waiting.retain(|message| {
            match netlink::change(message.clone(), NLM_F_CREATE | NLM_F_EXCL) {
                Ok(()) => false,
                // The kernel has made it with an address.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
                Err(error) => {
                    let is_route = matches!(message, RouteNetlinkMessage::NewRoute(_));
                    refused.push((error, is_route));
                    true
                }
            }
        });
        if refused.is_empty() {
            return Ok(None);
        }
        if waiting.len() == before {
            return leave_out(refused).map(Some);
        }
    }
}

/// A line about routes that lead to nowhere, if all that was refused are such.
fn leave_out(refused: Vec<(io::Error, bool)>) -> io::Result<String> {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable};
    let (count, mut last) = (refused.len(), None);
    for (error, is_route) in refused {
        if !is_route || !matches!(error.kind(), HostUnreachable | NetworkUnreachable) {
            return Err(error);
        }
        last = Some(error);
    }
    let why = last.map(|error| error.to_string()).unwrap_or_default();
    Ok(format!("routes of the host that the namespace does not take: {count} ({why})"))
}

/// A socket for a port of the namespace.
fn bind(is_tcp: bool, address: SocketAddr) -> io::Result<OwnedFd> {
    let kind = if is_tcp { Type::STREAM } else { Type::DGRAM };
    let socket = Socket::new(Domain::for_address(address), kind.nonblocking().cloexec(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if is_tcp {
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address.into())?;
    if is_tcp {
        socket.listen(BACKLOG)?;
    }
    Ok(socket.into())
}
