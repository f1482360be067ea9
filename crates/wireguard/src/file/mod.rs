//! Configuration files: those of wg-quick(8), with the sections of wireproxy.
//!
//! [`File::read`] reads a file into typed values, and says of each error in which file, line,
//! section and key it is and what is expected there. Unknown sections and keys are errors. Keys
//! that would change the machine (`PostUp` and its kin, `Table`, `SaveConfig`) are accepted and do
//! nothing, and [`File::warnings`] says so.
//!
//! ```
//! use neap_wireguard::file::{DoorKind, File};
//! # let folder = std::env::temp_dir().join(format!("neap-file-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("wg0.conf");
//! # std::fs::write(&path, "[Interface]
//! # PrivateKey = uCTIK+56CPyCvwJxmU5dBfuyJvPuSXAq1FzHdnIxe1Q=
//! # Address = 10.200.200.2
//! # [Peer]
//! # PublicKey = QP+A67Z2UBrMgvNIdHv8gPel5URWNLS4B3ZQ2hQIZlg=
//! # Endpoint = vpn.example.org:51820
//! # [Socks5]
//! # BindAddress = 127.0.0.1:25344")?;
//!
//! let file = File::read(&path)?;
//! assert_eq!(file.interface.addresses, ["10.200.200.2/32".parse()?]);
//! assert!(matches!(file.doors[0].kind, DoorKind::Socks5 { login: None, .. }));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod doors;
mod error;
mod expand;
mod interface;
mod keys;
mod lines;
mod source;
#[cfg(test)]
mod tests;
mod value;

pub use doors::{Certificate, DoorKind, DoorSection, Login, ResolveStrategy, Transport};
pub use error::{FileError, Place, Warning};
pub use interface::{InterfaceSection, PeerSection};
pub use value::{Host, HostPort, ParseHostPortError, Password};

use crate::config::MTU_MIN;
use crate::{Peer, WireguardConfig};
use doors::SECTIONS;
use ipnet::IpNet;
use keys::{Context, Keys, variable};
use lines::Section;
use source::{MOST_BYTES, Source, System, Text, named_by};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A configuration file, with the one that it names by `WGConfig`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct File {
    /// Its path.
    pub path: PathBuf,
    /// The path of the file that it names by `WGConfig`.
    pub tunnel_path: Option<PathBuf>,
    /// `[Interface]`.
    pub interface: InterfaceSection,
    /// `[Peer]`, in the order of the file. There is one at least.
    pub peers: Vec<PeerSection>,
    /// The proxies and tunnels, in the order of the file.
    pub doors: Vec<DoorSection>,
    /// `[Resolve]`.
    pub resolve: ResolveStrategy,
    /// What the user should know of.
    pub warnings: Vec<Warning>,
    /// The environment variables that it names, in the order of the alphabet. Their values may be
    /// secrets.
    pub variables: Vec<String>,
}

impl File {
    /// Reads a file, and the one that it names by `WGConfig`.
    ///
    /// # Errors
    /// The file cannot be read, or something in it is not understood.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        Self::read_from(path, &System)
    }

    fn read_from(path: &Path, source: &dyn Source) -> Result<Self, FileError> {
        let (text, sections) = load(path, source)?;
        let mut context = new_context(path, source);
        let tunnel_path = tunnel_path(&mut context, &sections[0])?;
        let mut reading = Reading::default();
        reading.note_variables(&sections);
        let Some(tunnel_path) = tunnel_path else {
            reading.read(&mut context, &sections[1..], &[Part::Tunnel, Part::Doors])?;
            warn_of_secrets(&mut context, &text);
            return reading.done(path, None, context.warnings);
        };
        reading.read(&mut context, &sections[1..], &[Part::Doors])?;
        warn_of_secrets(&mut context, &text);
        let (text, sections) = load(&tunnel_path, source)?;
        reading.note_variables(&sections);
        let mut of_tunnel = new_context(&tunnel_path, source);
        Keys::new(&mut of_tunnel, &sections[0], "").end()?;
        reading.read(&mut of_tunnel, &sections[1..], &[Part::Tunnel])?;
        warn_of_secrets(&mut of_tunnel, &text);
        let mut warnings = context.warnings;
        warnings.extend(of_tunnel.warnings);
        reading.done(path, Some(&tunnel_path), warnings)
    }

    /// Returns the least that paths make of the MTU inside, in bytes: what IPv4 needs if the
    /// interface has no IPv6 address. `None` is what IPv6 needs.
    pub fn least_mtu(&self) -> Option<u16> {
        let is_v4 = |address: &IpNet| matches!(address, IpNet::V4(_));
        self.interface.addresses.iter().all(is_v4).then_some(MTU_MIN)
    }

    /// Returns the settings of a tunnel, with the endpoints that `resolve` knows.
    pub fn wireguard(
        &self,
        mut resolve: impl FnMut(&HostPort) -> Option<SocketAddr>,
    ) -> WireguardConfig {
        let InterfaceSection { private_key, mtu, listen_port, fwmark, .. } = &self.interface;
        let mut config = WireguardConfig::new(private_key.clone());
        (config.mtu, config.listen_port, config.fwmark) = (*mtu, *listen_port, *fwmark);
        config.least_mtu = self.least_mtu();
        config.peers = self.peers.iter().map(|peer| peer.with_endpoint(&mut resolve)).collect();
        config
    }
}

impl PeerSection {
    /// Returns the peer, with the endpoint that `resolve` knows.
    pub fn with_endpoint(&self, mut resolve: impl FnMut(&HostPort) -> Option<SocketAddr>) -> Peer {
        let mut peer = Peer::new(self.public_key);
        peer.preshared_key = self.preshared_key.clone();
        peer.allowed_ips = self.allowed_ips.clone();
        peer.endpoint = self
            .endpoint
            .as_ref()
            .and_then(|endpoint| endpoint.address().or_else(|| resolve(endpoint)));
        peer.persistent_keepalive = self.persistent_keepalive;
        peer
    }
}

/// Which sections are read from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// `[Interface]` and `[Peer]`.
    Tunnel,
    /// All others.
    Doors,
}

/// What was read so far.
#[derive(Default)]
struct Reading {
    interface: Option<(usize, InterfaceSection)>,
    peers: Vec<PeerSection>,
    doors: Vec<DoorSection>,
    resolve: Option<(usize, ResolveStrategy)>,
    variables: BTreeSet<String>,
}

fn new_context<'a>(file: &'a Path, source: &'a dyn Source) -> Context<'a> {
    Context { file, source, warnings: Vec::new(), first_secret: None }
}

/// The file as lines.
fn load(path: &Path, source: &dyn Source) -> Result<(Text, Vec<Section>), FileError> {
    let place = Place { file: path.to_owned(), ..Place::default() };
    let wrong = |problem: String| FileError { place: place.clone(), problem };
    let text = source.read(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    if text.bytes.len() > MOST_BYTES {
        return Err(wrong(format!("too long: expected at most {MOST_BYTES} bytes")));
    }
    let mut sections = lines::sections(path, &text.bytes)?;
    expand::expand(path, &mut sections)?;
    Ok((text, sections))
}

/// The keys before the first section: `WGConfig` names the file with the tunnel.
fn tunnel_path(context: &mut Context<'_>, section: &Section) -> Result<Option<PathBuf>, FileError> {
    let (file, source) = (context.file, context.source);
    let mut keys = Keys::new(context, section, "");
    let found = keys.one("WGConfig")?;
    if let Some(value) = found.as_ref().filter(|value| value.text.is_empty()) {
        return Err(value.wrong("expected the path of a file with [Interface] and [Peer]"));
    }
    keys.end()?;
    Ok(found.map(|value| named_by(file, Path::new(value.text.as_str()), source)))
}

fn warn_of_secrets(context: &mut Context<'_>, text: &Text) {
    if text.is_open
        && let Some(place) = context.first_secret.take()
    {
        let advice = format!("others may read this file: chmod 600 {}", context.file.display());
        context.warn(place, advice);
    }
}

impl Reading {
    /// Notes the variables that are named, also where the value is not used.
    fn note_variables(&mut self, sections: &[Section]) {
        let entries = sections.iter().flat_map(|section| &section.entries);
        self.variables
            .extend(entries.filter_map(|entry| variable(&entry.value)).map(str::to_owned));
    }

    /// Reads sections. Those of the other part belong into another file.
    fn read(
        &mut self,
        context: &mut Context<'_>,
        sections: &[Section],
        parts: &[Part],
    ) -> Result<(), FileError> {
        for section in sections {
            let (name, part, door) = kind_of(section).ok_or_else(|| FileError {
                place: context.place(&section.name, section.line, None),
                problem: format!(
                    "unknown section: expected one of Interface, Peer, Resolve, {}",
                    SECTIONS.map(|(name, _)| name).join(", ")
                ),
            })?;
            if !parts.contains(&part) {
                let place = context.place(name, section.line, None);
                let problem = match part {
                    Part::Tunnel => "this is not used, as WGConfig names another file for it",
                    Part::Doors => "this is not used, as the file that names this one has these",
                };
                context.warn(place, problem);
                continue;
            }
            let mut keys = Keys::new(context, section, name);
            let line = section.line;
            match (name, door) {
                (_, Some(read)) => {
                    let kind = read(&mut keys)?;
                    keys.end()?;
                    self.add_door(context, DoorSection { line, name, kind })?;
                }
                ("Interface", None) => {
                    if let Some((first, _)) = &self.interface {
                        let problem = format!("expected once; it is in line {first} already");
                        return Err(FileError { place: context.place(name, line, None), problem });
                    }
                    let keys = Keys::new(context, section, name);
                    self.interface = Some((line, InterfaceSection::read(keys)?));
                }
                ("Resolve", None) => {
                    if let Some((first, _)) = self.resolve {
                        let place = context.place(name, line, None);
                        let problem = "this does not count: the section in line";
                        context.warn(place, format!("{problem} {first} does"));
                        continue;
                    }
                    let keys = Keys::new(context, section, name);
                    self.resolve = Some((line, ResolveStrategy::read(keys)?));
                }
                _ => {
                    let (peer, has_allowed) = PeerSection::read(keys)?;
                    self.add_peer(context, peer, has_allowed);
                }
            }
        }
        Ok(())
    }

    fn add_door(&mut self, context: &mut Context<'_>, door: DoorSection) -> Result<(), FileError> {
        let DoorSection { line, name, kind } = &door;
        let is_stdio = |door: &&DoorSection| matches!(door.kind, DoorKind::Stdio { .. });
        if is_stdio(&&door)
            && let Some(first) = self.doors.iter().find(is_stdio)
        {
            let problem =
                format!("this is left out: the section in line {} has the streams", first.line);
            context.warn(context.place(name, *line, None), problem);
            return Ok(());
        }
        let clash = self.doors.iter().find_map(|other| Some((other, other.kind.clash(kind)?)));
        if let Some((other, key)) = clash {
            let problem = format!(
                "expected one that is free: [{}] in line {} has it already",
                other.name, other.line
            );
            return Err(FileError { place: context.place(name, *line, Some(key)), problem });
        }
        self.doors.push(door);
        Ok(())
    }

    /// Refuses a door at the UDP port of the interface, which has it at all addresses.
    fn check_port(&self, path: &Path, interface: &InterfaceSection) -> Result<(), FileError> {
        let port = interface.listen_port;
        let has_port = |door: &&DoorSection| {
            let bind = door.kind.bind().filter(|(transport, _)| *transport == Transport::Udp);
            port != 0 && bind.is_some_and(|(_, bind)| bind.port == port)
        };
        let Some(door) = self.doors.iter().find(has_port) else { return Ok(()) };
        let place = Place {
            file: path.to_owned(),
            line: Some(door.line),
            section: Some(door.name.to_owned()),
            key: Some("BindAddress".to_owned()),
        };
        let problem = format!("expected another port: {port} is ListenPort of [Interface]");
        Err(FileError { place, problem })
    }

    /// Adds a peer, or to the one that has this key. What two peers are to have is the later one's,
    /// as in the kernel.
    fn add_peer(&mut self, context: &mut Context<'_>, mut peer: PeerSection, has_allowed: bool) {
        let key = peer.public_key;
        let (same, others): (Vec<_>, Vec<_>) =
            self.peers.iter_mut().partition(|other| other.public_key == key);
        if !same.is_empty() && !has_allowed {
            // Everything is for a peer of which nothing else is said.
            peer.allowed_ips.clear();
        }
        let mut taken = None;
        for other in others {
            let is_shared = |prefix: &IpNet| peer.allowed_ips.contains(prefix);
            let first = other.allowed_ips.iter().copied().find(is_shared);
            taken = taken.or(first.map(|prefix| (prefix, other.line)));
            other.allowed_ips.retain(|prefix| !is_shared(prefix));
        }
        if let Some((prefix, line)) = taken {
            let place = context.place("Peer", peer.line, Some("AllowedIPs"));
            context.warn(place, format!("{prefix} is taken from the peer in line {line}"));
        }
        match same.into_iter().next() {
            Some(same) => {
                let place = context.place("Peer", peer.line, Some("PublicKey"));
                let problem = format!("this adds to the peer in line {} of this key", same.line);
                context.warn(place, problem);
                same.merge(peer);
            }
            None => self.peers.push(peer),
        }
    }

    /// The whole file.
    fn done(
        mut self,
        path: &Path,
        tunnel: Option<&Path>,
        warnings: Vec<Warning>,
    ) -> Result<File, FileError> {
        let missing = |section: &str| FileError {
            place: Place { file: tunnel.unwrap_or(path).to_owned(), ..Place::default() },
            problem: format!("expected a section [{section}]"),
        };
        let Some((_, interface)) = self.interface.take() else {
            return Err(missing("Interface"));
        };
        if self.peers.is_empty() {
            return Err(missing("Peer"));
        }
        self.check_port(path, &interface)?;
        let own = interface.private_key.public_key();
        if let Some(peer) = self.peers.iter().find(|peer| peer.public_key == own) {
            let place = Place {
                file: tunnel.unwrap_or(path).to_owned(),
                line: Some(peer.line),
                section: Some("Peer".to_owned()),
                key: Some("PublicKey".to_owned()),
            };
            let problem = "expected the key of another interface, not its own".to_owned();
            return Err(FileError { place, problem });
        }
        Ok(File {
            path: path.to_owned(),
            tunnel_path: tunnel.map(Path::to_owned),
            interface,
            peers: self.peers,
            doors: self.doors,
            resolve: self.resolve.map(|(_, strategy)| strategy).unwrap_or_default(),
            warnings,
            variables: self.variables.into_iter().collect(),
        })
    }
}

/// The documented name of a section, its part, and how a door is read.
fn kind_of(section: &Section) -> Option<(&'static str, Part, Option<doors::Reader>)> {
    let is_it = |name: &str| section.name.eq_ignore_ascii_case(name);
    let tunnel = ["Interface", "Peer"].into_iter().find(|name| is_it(name));
    if let Some(name) = tunnel {
        return Some((name, Part::Tunnel, None));
    }
    if is_it("Resolve") {
        return Some(("Resolve", Part::Doors, None));
    }
    let door = SECTIONS.into_iter().find(|(name, _)| is_it(name));
    door.map(|(name, read)| (name, Part::Doors, Some(read)))
}
