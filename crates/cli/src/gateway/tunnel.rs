//! A WireGuard tunnel from a file: its stack, and what follows the file and the host's resolver.

pub(crate) mod names;
mod network;

use super::Failure;
use super::confine::{self, Needs};
use crate::wg::report::{InterfaceReport, SUBJECT};
use names::Names;
use neap::control::Labelled;
use neap::{Builder, InterfaceConfig, Stack};
use neap_gateway::Outbound;
use neap_wireguard::file::{Certificate, DoorKind, File};
use neap_wireguard::{Wireguard, WireguardHandle};
use network::Network;
use rustix::thread::CapabilitySet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Ports below need a right, unless the machine says otherwise.
const FIRST_FREE_PORT: u16 = 1024;
/// Longest name of an interface, bytes: what a control socket takes.
const LONGEST_NAME: usize = 32;

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::System(error.to_string())
}

/// Reads a file, and tells of what the user should know.
///
/// # Errors
/// [`Failure::Arguments`] with file, line, section and key.
pub(crate) fn read(path: &Path) -> Result<File, Failure> {
    let file = File::read(path).map_err(|error| Failure::Arguments(error.to_string()))?;
    for warning in &file.warnings {
        tracing::warn!("{warning}");
    }
    Ok(file)
}

/// The name of the interface: that of the file, as wg-quick has it.
pub(crate) fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let is_fine = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = stem.chars().filter(is_fine).take(LONGEST_NAME).collect();
    if name.is_empty() { "wireguard".to_owned() } else { name }
}

/// Settings of a tunnel that its file does not have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// Congestion control of its connections; `None` is that of the stack.
    pub(crate) congestion: Option<String>,
    /// Threads that help to encrypt.
    pub(crate) sealers: u16,
}

/// A tunnel with its socket, and without a stack yet: rights can be given up now.
pub(crate) struct Prepared {
    file: File,
    handle: WireguardHandle,
    names: Names,
    network: Network,
    builder: Builder,
}

impl Prepared {
    /// Binds the socket, and resolves the names of endpoints once.
    ///
    /// # Errors
    /// The port or the mark cannot be had, or a peer is refused.
    pub(crate) fn open(file: File, settings: &Settings) -> Result<Self, Failure> {
        let names = Names::new(&file.peers);
        let mut config = file.wireguard(|endpoint| names.known(endpoint));
        config.sealers = settings.sealers.into();
        let wireguard = Wireguard::open(&config).map_err(|error| failed(&error))?;
        let handle = wireguard.handle();
        let network = Network::of(&file);
        let interface = network.configure(InterfaceConfig::new(wireguard.into_device()));
        let mut builder = Stack::builder().interface(interface);
        if let Some(name) = &settings.congestion {
            builder = builder.sysctl("net.ipv4.tcp_congestion_control", name);
        }
        Ok(Self { file, handle, names, network, builder })
    }

    /// What the tunnel keeps: resolvers for names of the host, and rights that ports and marks
    /// need.
    pub(crate) fn needs(&self) -> Needs {
        let outbound = Outbound { mark: self.file.interface.fwmark, ..Outbound::default() };
        let mut capabilities = confine::capabilities_of(&outbound);
        let is_low = |port: u16| (1..FIRST_FREE_PORT).contains(&port);
        let ports = self.file.doors.iter().filter_map(|door| match &door.kind {
            DoorKind::Socks5 { bind, .. }
            | DoorKind::Http { bind, .. }
            | DoorKind::Client { bind, .. }
            | DoorKind::Udp { bind, .. }
            | DoorKind::Sni { bind } => Some(bind.port),
            _ => None,
        });
        if ports.chain([self.file.interface.listen_port]).any(is_low) {
            capabilities |= CapabilitySet::NET_BIND_SERVICE;
        }
        Needs { capabilities, resolvers: true, ..Needs::default() }
    }

    /// The folders of the files, where a new file may take the place of an old one.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let folder = |path: &Path| match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let own = std::iter::once(self.file.path.as_path());
        let certificates = self.file.doors.iter().filter_map(|door| match &door.kind {
            DoorKind::Http { certificate: Some(Certificate { chain, key, .. }), .. } => {
                Some([chain.as_path(), key.as_path()])
            }
            _ => None,
        });
        let files = own.chain(self.file.tunnel_path.as_deref()).chain(certificates.flatten());
        files.map(folder).collect()
    }

    /// Starts the stack, once rights are given up.
    ///
    /// # Errors
    /// The stack refuses a setting, or the system a thread.
    pub(crate) fn start(self) -> Result<Tunnel, Failure> {
        let Self { file, handle, names, network, builder } = self;
        let stack = Arc::new(builder.build().map_err(|error| failed(&error))?);
        names.watch(handle.clone()).map_err(|error| failed(&error))?;
        Ok(Tunnel { file, stack, handle, names, network })
    }
}

/// A tunnel that runs. It ends with its stack.
pub(crate) struct Tunnel {
    /// What it was made from.
    pub(crate) file: File,
    pub(crate) stack: Arc<Stack>,
    pub(crate) handle: WireguardHandle,
    names: Names,
    network: Network,
}

impl Tunnel {
    /// What others see of it.
    pub(crate) fn shown(&self) -> Shown {
        Shown { name: name(&self.file.path), handle: self.handle.clone() }
    }

    /// Makes the tunnel as another file says. Peers that it has as well keep their sessions.
    ///
    /// # Errors
    /// Lines about what cannot be as the file says. All else is.
    pub(crate) fn change(&mut self, file: File) -> Result<(), Vec<String>> {
        let mut failures = Vec::new();
        let mut tell = |done: Result<(), String>| failures.extend(done.err());
        let text = |error: neap_wireguard::Error| error.to_string();
        self.names.set(&file.peers);
        let config = file.wireguard(|endpoint| self.names.known(endpoint));
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
        (self.file, self.network) = (file, network);
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }
}

/// What a control socket and metrics show of a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    name: String,
    handle: WireguardHandle,
}

impl Shown {
    /// Counters of the interface.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        self.handle.status().counters
    }

    /// Counters of each peer.
    pub(crate) fn labelled(&self) -> Vec<Labelled> {
        let peers = self.handle.status().peers;
        let of_peer = peers.iter().flat_map(|peer| {
            [("WireguardPeerReceived", peer.received), ("WireguardPeerSent", peer.sent)].map(
                |(name, value)| {
                    let of = peer.public_key.to_string();
                    Labelled { name, label: "peer", of, value, gauge: false }
                },
            )
        });
        of_peer.collect()
    }

    /// What `neap wg show` asks for.
    pub(crate) fn lines(&self, subject: &str) -> Option<Vec<String>> {
        let report = || InterfaceReport::new(&self.name, &self.handle.status());
        (subject == SUBJECT).then(|| serde_json::to_string(&report()).into_iter().collect())
    }
}
