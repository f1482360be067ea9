//! A tunnel from its beginning to its end.

use super::alive::Alive;
use super::background::Waiting;
use super::doors::{self, AllDoors};
use super::health::Health;
use super::inspector::Inspector;
use super::names::Names;
use super::network::Network;
use super::notify::Notifier;
use super::{Args, Failure};
use crate::gateway::confine::{self, Needs};
use crate::gateway::raise_file_limit;
use neap::control::Application;
use neap::metrics::{self, Metrics, MetricsAddress, MetricsListener};
use neap::{InterfaceConfig, Stack};
use neap_gateway::Outbound;
use neap_gateway::doors::DoorsHandle;
use neap_wireguard::file::{DoorKind, File, FileError};
use neap_wireguard::{Wireguard, WireguardHandle};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::CapabilitySet;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Where wireproxy looks for its file.
const DEFAULT_FILE: &str = "/etc/wireproxy/wireproxy.conf";
/// The same in the home of the user.
const FILE_AT_HOME: &str = ".config/wireproxy.conf";
/// Ports below need a right, unless the machine says otherwise.
const FIRST_FREE_PORT: u16 = 1024;
/// Longest name of an interface, bytes: what a control socket takes.
const LONGEST_NAME: usize = 32;

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::System(error.to_string())
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failure> {
    // Before there are keys in memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| failed(&error))?;
    args.watching.start_log(args.silent);
    let path = path(args)?;
    let file = read(&path)?;
    if args.configtest {
        println!("Config OK");
        return Ok(ExitCode::SUCCESS);
    }
    let waiting = if args.in_background {
        if file.doors.iter().any(|door| matches!(door.kind, DoorKind::Stdio { .. })) {
            let why = "--daemon: a [STDIOTunnel] needs the standard streams";
            return Err(Failure::Arguments(why.to_owned()));
        }
        Some(Waiting::new().map_err(|error| failed(&error))?)
    } else {
        None
    };
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGQUIT]);
    let signals = signals.map_err(|error| failed(&error))?;
    let notifier = Notifier::new();
    let (tunnel, served) = Tunnel::start(args, path, file, signals.handle())?;
    if let Some(waiting) = waiting {
        waiting.tell().map_err(|error| failed(&error))?;
    }
    notifier.ready();
    let done = tunnel.run(signals, Duration::from_secs(args.drain.into()), &notifier);
    drop(served);
    done
}

/// The path of the file.
fn path(args: &Args) -> Result<PathBuf, Failure> {
    if let Some(path) = &args.config {
        return Ok(path.clone());
    }
    let at_home = std::env::var_os("HOME").map(|home| Path::new(&home).join(FILE_AT_HOME));
    let usual = [Some(PathBuf::from(DEFAULT_FILE)), at_home];
    usual.into_iter().flatten().find(|path| path.exists()).ok_or_else(|| {
        Failure::Arguments(format!("there is no {DEFAULT_FILE}: name a file with -c FILE"))
    })
}

/// Reads the file, and tells of what the user should know.
fn read(path: &Path) -> Result<File, Failure> {
    let file =
        File::read(path).map_err(|error: FileError| Failure::Arguments(error.to_string()))?;
    for warning in &file.warnings {
        tracing::warn!("{warning}");
    }
    let is_proxy = |kind: &DoorKind| {
        matches!(kind, DoorKind::Socks5 { .. } | DoorKind::Http { .. } | DoorKind::Sni { .. })
    };
    if file.interface.dns.is_empty() && file.doors.iter().any(|door| is_proxy(&door.kind)) {
        let path = path.display();
        tracing::warn!("{path}: without DNS in [Interface] no name has an address in the tunnel");
    }
    Ok(file)
}

/// The name of the interface: that of the file, as wg-quick has it.
fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let is_fine = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = stem.chars().filter(is_fine).take(LONGEST_NAME).collect();
    if name.is_empty() { "wireguard".to_owned() } else { name }
}

/// What is served for others, until it is dropped.
type Served = (crate::gateway::watching::Watched, Option<Metrics>);

/// A tunnel that runs.
struct Tunnel {
    path: PathBuf,
    file: File,
    stack: Arc<Stack>,
    handle: WireguardHandle,
    names: Names,
    alive: Alive,
    network: Network,
    doors: AllDoors,
    /// Why the standard streams have failed.
    failure: Arc<Mutex<Option<String>>>,
}

impl Tunnel {
    /// Starts everything, and gives up what is not needed. `signals` ends the wait for signals.
    fn start(
        args: &Args,
        path: PathBuf,
        file: File,
        signals: Handle,
    ) -> Result<(Self, Served), Failure> {
        let name = name(&path);
        let listening = args.watching.listen(&name)?;
        let pages = args.info.as_ref().map(listen_for_pages).transpose()?;
        let limit = raise_file_limit();
        let names = Names::new(&file.peers);
        let mut config = file.wireguard(|endpoint| names.known(endpoint));
        config.sealers = args.sealers.into();
        let wireguard = Wireguard::open(&config).map_err(|error| failed(&error))?;
        let handle = wireguard.handle();
        let network = Network::of(&file);
        let interface = network.configure(InterfaceConfig::new(wireguard.into_device()));
        let mut stack = Stack::builder().interface(interface);
        if let Some(name) = &args.congestion {
            stack = stack.sysctl("net.ipv4.tcp_congestion_control", name);
        }
        let mut needs = needs(&path, &file);
        needs.sockets_in = listening.folders();
        confine::confine(&needs, |what| tracing::warn!("{what}")).map_err(Failure::System)?;
        let stack = Arc::new(stack.build().map_err(|error| failed(&error))?);
        let failure = Arc::<Mutex<Option<String>>>::default();
        let told = failure.clone();
        let ended = move |done: Result<(), String>| {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = done.err();
            signals.close();
        };
        let mut doors = AllDoors::new(stack.clone(), limit / 4 * 3, Arc::new(ended));
        doors.serve(&file).map_err(|lines| Failure::System(lines.join("\n")))?;
        names.watch(handle.clone()).map_err(|error| failed(&error))?;
        let alive = Alive::default();
        alive.set(&file.interface);
        alive.watch(&stack).map_err(|error| failed(&error))?;
        let inspector = Inspector { name, handle: handle.clone(), doors: doors.shown() };
        let inspector: Arc<dyn Application> = Arc::new(inspector);
        let watched = listening.serve(&stack, &inspector)?;
        let health = Health { handle: handle.clone(), alive: alive.clone() };
        let pages = pages.map(|pages| pages.serve_pages(Arc::new(health)));
        let pages = pages.transpose().map_err(|error| failed(&error))?;
        let port = handle.status().listen_port;
        tracing::info!(port, peers = file.peers.len(), "the tunnel is there");
        let tunnel = Self { path, file, stack, handle, names, alive, network, doors, failure };
        Ok((tunnel, (watched, pages)))
    }

    /// Waits for signals: a new file, or the end.
    fn run(
        mut self,
        mut signals: Signals,
        drain: Duration,
        notifier: &Notifier,
    ) -> Result<ExitCode, Failure> {
        while let Some(signal) = signals.forever().next() {
            if signal != SIGHUP {
                break;
            }
            notifier.reloading();
            match self.reload() {
                Ok(()) => tracing::info!("the file was read again"),
                Err(why) => tracing::error!("{why}"),
            }
            notifier.ready();
        }
        notifier.stopping();
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(why) = failure {
            self.end();
            return Err(Failure::System(format!("[STDIOTunnel]: {why}")));
        }
        if !drain.is_zero() && !signals.is_closed() {
            self.doors.drain(drain);
            let handles = self.doors.handles();
            thread::spawn(move || {
                if signals.forever().next().is_some() {
                    handles.iter().for_each(DoorsHandle::stop);
                }
            });
            self.doors.join();
        } else {
            self.end();
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Resets all connections.
    fn end(self) {
        self.doors.handles().iter().for_each(DoorsHandle::stop);
        self.doors.join();
    }

    /// Reads the file again. What it has not changed goes on.
    ///
    /// # Errors
    /// What is wrong with the file, and then nothing has changed; or lines about what cannot be as
    /// the file says, while all else is.
    fn reload(&mut self) -> Result<(), String> {
        let file = read(&self.path).map_err(|failure| match failure {
            Failure::Arguments(why) | Failure::System(why) => {
                format!("nothing has changed: {why}")
            }
        })?;
        let mut failures = Vec::new();
        let mut tell = |done: Result<(), String>| failures.extend(done.err());
        self.names.set(&file.peers);
        let config = file.wireguard(|endpoint| self.names.known(endpoint));
        let text = |error: neap_wireguard::Error| error.to_string();
        let (old, new) = (&self.file.interface, &file.interface);
        if old.private_key != new.private_key {
            tell(self.handle.set_private_key(new.private_key.clone()).map_err(text));
        }
        tell(self.handle.set_peers(config.peers).map_err(text));
        if old.fwmark != new.fwmark {
            tell(self.handle.set_fwmark(new.fwmark).map_err(text));
        }
        if old.listen_port != new.listen_port {
            tell(self.handle.set_listen_port(new.listen_port).map_err(text));
        }
        let network = Network::of(&file);
        let changed = self.network.change(&network, &self.stack);
        tell(changed.map_err(|error| error.to_string()));
        self.alive.set(new);
        tell(self.doors.serve(&file).map_err(|lines| lines.join("\n")));
        (self.file, self.network) = (file, network);
        if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
    }
}

/// A socket for the pages of `-i`.
fn listen_for_pages(address: &neap_wireguard::file::HostPort) -> Result<MetricsListener, Failure> {
    let wrong = |why: String| Failure::System(format!("--info {address}: {why}"));
    let place = doors::listen(address).map_err(wrong)?;
    metrics::listen(&MetricsAddress::Tcp(place)).map_err(|error| wrong(error.to_string()))
}

/// What the tunnel keeps: the files that it reads again, resolvers for endpoints and addresses that
/// have names, and rights that ports and marks need.
fn needs(path: &Path, file: &File) -> Needs {
    let folder = |path: &Path| match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    // A file is replaced by another one of its name.
    let mut readable = vec![folder(path)];
    readable.extend(file.tunnel_path.as_deref().map(folder));
    let outbound = Outbound { mark: file.interface.fwmark, ..Outbound::default() };
    let mut capabilities = confine::capabilities_of(&outbound);
    let is_low = |port: u16| (1..FIRST_FREE_PORT).contains(&port);
    let ports = file.doors.iter().filter_map(|door| match &door.kind {
        DoorKind::Socks5 { bind, .. }
        | DoorKind::Http { bind, .. }
        | DoorKind::Client { bind, .. }
        | DoorKind::Udp { bind, .. }
        | DoorKind::Sni { bind } => Some(bind.port),
        _ => None,
    });
    if ports.chain([file.interface.listen_port]).any(is_low) {
        capabilities |= CapabilitySet::NET_BIND_SERVICE;
    }
    Needs { capabilities, resolvers: true, readable, ..Needs::default() }
}
