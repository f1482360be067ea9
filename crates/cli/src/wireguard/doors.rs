//! The doors of a file, of which some are opened and closed while the others go on.

use crate::gateway::refused;
use crate::gateway::tunnel::names;
use crate::until_the_end;
use neap::Stack;
use neap_gateway::Transport;
use neap_gateway::doors::{
    self as gateway, Door, DoorId, Doors, DoorsConfig, DoorsHandle, DoorsInspector,
    ResolveStrategy, Target, TlsIdentity, TunnelResolver, Users,
};
use neap_wireguard::file::{self, Certificate, DoorKind, File, Host, HostPort, Login};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use zeroize::Zeroizing;

/// Longest file of a certificate or a key, bytes.
const MOST_PEM: usize = 1 << 20;
/// Port of DNS servers.
const DNS_PORT: u16 = 53;

/// Called when the doors have come to their end, or have failed: with their standard streams, or
/// since they were told to end.
pub(super) type Ended = Box<dyn FnOnce(Result<(), String>) + Send>;

/// What becomes of a `[STDIOTunnel]` that is not open yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Streams {
    /// It gets the standard streams.
    Free,
    /// It is left out, and the log says so: the process is in the background, or runs already, and
    /// whoever has its streams expects nothing of them.
    LeftOut,
}

/// The doors of a file, which one thread serves.
pub(super) struct AllDoors {
    handle: DoorsHandle,
    inspector: DoorsInspector,
    resolver: TunnelResolver,
    opened: Vec<(DoorKind, DoorId)>,
    /// The place that [`give_up`](Self::give_up) has made free.
    given_up: Option<Place>,
    thread: JoinHandle<()>,
}

impl AllDoors {
    /// Starts the thread, which has no doors yet. All together may have so many connections at the
    /// same time.
    ///
    /// # Errors
    /// There are no descriptors or threads left.
    pub(super) fn start(
        stack: Arc<Stack>,
        most_connections: usize,
        ended: Ended,
    ) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let resolver = TunnelResolver::default();
        let mut config = DoorsConfig::new(stack, resolver.clone(), Vec::new());
        config.most_connections = most_connections;
        let mut doors = Doors::open(config).map_err(|error| failed(&error))?;
        let (handle, inspector) = (doors.handle(), doors.inspector());
        let thread = spawn(move || doors.run(), ended).map_err(|error| failed(&error))?;
        Ok(Self { handle, inspector, resolver, opened: Vec::new(), given_up: None, thread })
    }

    /// What others see of the doors.
    pub(super) fn inspector(&self) -> DoorsInspector {
        self.inspector.clone()
    }

    /// Closes what has a UDP port that the interface is to have. The doors of the file are
    /// [served](Self::serve) afterwards, so that they can have the port that it gives up.
    pub(super) fn give_up(&mut self, port: u16) {
        let given_up = Place::Host(Transport::Udp, port);
        for door in self.opened.iter().filter(|(kind, _)| place(kind) == Some(given_up)) {
            self.close(Some(door));
        }
        self.given_up = Some(given_up);
    }

    /// Serves the doors of a file: those that were served before go on, and others are closed. All
    /// that can be opened are. One that cannot be changed stays as it was.
    ///
    /// # Errors
    /// One line for each door that cannot be opened.
    pub(super) fn serve(&mut self, file: &File, streams: Streams) -> Result<(), Vec<String>> {
        let resolver = resolver(file);
        let is_same = (&resolver.servers, &resolver.search, resolver.strategy)
            == (&self.resolver.servers, &self.resolver.search, self.resolver.strategy);
        if !is_same && self.handle.set_resolver(resolver.clone()).is_ok() {
            self.resolver = resolver;
        }
        self.renew_certificates(file);
        let mut changes = self.changes(file);
        // The tunnel ends with the standard streams if there is no other door by then.
        changes.sort_by_key(|change| is_stdio(change.kind));
        let held: Vec<_> = changes.iter().filter_map(Change::held).collect();
        let given_up = self.given_up.take();
        let (mut late, mut failed) = (Vec::new(), Vec::new());
        let wrong = |section: Section, why: String| format!("{} {why}", place_of(file, section));
        for mut change in changes {
            let section = change.section;
            if is_stdio(change.kind) && streams == Streams::LeftOut {
                let place = place_of(file, section);
                tracing::warn!("{place}: this is left out: it needs the streams of a new process");
                continue;
            }
            let is_closed = given_up.is_some() && change.held() == given_up;
            // Its port is free when the doors are closed whose places are taken.
            let waits = || place(change.kind).is_some_and(|own| held.contains(&own));
            match door(change.kind) {
                door if is_closed || (door.is_ok() && waits()) => {
                    late.push((change, door));
                    continue;
                }
                Ok(door) => match self.open(change.kind, door) {
                    Ok(()) => self.close(change.old.take().as_ref()),
                    Err(why) => failed.push(wrong(section, why)),
                },
                Err(why) => failed.push(wrong(section, why)),
            }
            self.opened.extend(change.old);
        }
        let replaced = self.replace(late).into_iter();
        failed.extend(replaced.map(|(section, why)| wrong(section, why)));
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }

    /// Reads the certificates again of doors that stay as they are: others may have taken their
    /// places. Where one is of no use, the door keeps what it has, and the log says so.
    fn renew_certificates(&self, file: &File) {
        for (kind, id) in &self.opened {
            let DoorKind::Http { certificate: Some(certificate), .. } = kind else { continue };
            let Some(door) = file.doors.iter().find(|door| door.kind == *kind) else { continue };
            let set = |identity| self.handle.set_identity(*id, identity);
            let renewed =
                identity(certificate).and_then(|one| set(one).map_err(|error| error.to_string()));
            if let Err(why) = renewed {
                let place = place_of(file, (door.line, door.name));
                tracing::warn!("{place} {why}; new connections get the certificate as it was");
            }
        }
    }

    /// What has to change for a file. The doors that it does not change stay open, and so do those
    /// whose places others are to take; the rest is closed.
    fn changes<'a>(&mut self, file: &'a File) -> Vec<Change<'a>> {
        let new = file.doors.iter().map(|door| ((door.line, door.name), &door.kind));
        let mut changes: Vec<_> =
            new.map(|(section, kind)| Change { section, kind, old: None }).collect();
        let mut old = Vec::new();
        for (kind, id) in std::mem::take(&mut self.opened) {
            if let Some(place) = changes.iter().position(|change| *change.kind == kind) {
                changes.swap_remove(place);
                self.opened.push((kind, id));
            } else if is_stdio(&kind) {
                // Its connection goes on to its end, as none takes its place.
                self.opened.push((kind, id));
            } else {
                old.push((kind, id));
            }
        }
        changes.sort_by_key(|change| change.section);
        // A section of the same kind is another version of the door, above all at the same port.
        for needs_port in [true, false] {
            for change in changes.iter_mut().filter(|change| change.old.is_none()) {
                let is_version = |(kind, _): &(DoorKind, DoorId)| {
                    std::mem::discriminant(kind) == std::mem::discriminant(change.kind)
                        && (!needs_port || place(kind) == place(change.kind))
                };
                change.old = old.iter().position(is_version).map(|index| old.remove(index));
            }
        }
        old.iter().for_each(|door| self.close(Some(door)));
        changes
    }

    /// Closes doors, and opens others that take their places or ports; or the same ones again where
    /// that fails. Returns what has failed, each with its section.
    fn replace(&mut self, mut late: Vec<Late<'_>>) -> Vec<(Section, String)> {
        let closed: Vec<_> = late.iter_mut().map(|(change, _)| change.old.take()).collect();
        closed.iter().for_each(|old| self.close(old.as_ref()));
        let mut failed = Vec::new();
        for ((change, new), old) in late.into_iter().zip(closed) {
            let opened = new.and_then(|new| self.open(change.kind, new));
            let Err(why) = opened else { continue };
            failed.push((change.section, why));
            let again = old.map(|(kind, _)| door(&kind).and_then(|door| self.open(&kind, door)));
            if let Some(Err(why)) = again {
                failed.push((change.section, format!("nor can it be as it was: {why}")));
            }
        }
        failed
    }

    fn open(&mut self, kind: &DoorKind, door: Door) -> Result<(), String> {
        let id = self.handle.open(door).map_err(|error| why(kind, &error))?;
        self.opened.push((kind.clone(), id));
        Ok(())
    }

    /// Closes a door. Where the thread has ended there is nothing left to close.
    fn close(&self, door: Option<&(DoorKind, DoorId)>) {
        if let Some((_, id)) = door {
            let _ = self.handle.close(*id);
        }
    }

    /// Refuses new connections, and ends when all others are over, or after this time.
    pub(super) fn drain(&self, time: Duration) {
        // Where the thread has ended there are no connections.
        let _ = self.handle.drain(time);
    }

    /// By which any thread may end the doors.
    pub(super) fn handle(&self) -> DoorsHandle {
        self.handle.clone()
    }

    /// Waits until the thread has come to its end.
    pub(super) fn join(self) {
        // One that panicked has ended too.
        let _ = self.thread.join();
    }
}

/// Runs doors by a thread, which tells of its end, whatever that is.
fn spawn(
    doors: impl FnOnce() -> io::Result<()> + Send + 'static,
    ended: Ended,
) -> io::Result<JoinHandle<()>> {
    let run = move || ended(until_the_end::run(doors));
    thread::Builder::new().name("doors".to_owned()).spawn(run)
}

/// Line and name of a section.
type Section = (usize, &'static str);

/// Where a section is.
pub(super) fn place_of(file: &File, (line, name): Section) -> String {
    format!("{}:{line}: [{name}]", file.path.display())
}

/// A door of a file that is not open.
struct Change<'a> {
    section: Section,
    kind: &'a DoorKind,
    /// The one that is open, whose place it takes.
    old: Option<(DoorKind, DoorId)>,
}

/// A door that is opened when others are closed; or why it cannot be.
type Late<'a> = (Change<'a>, Result<Door, String>);

impl Change<'_> {
    /// The port of the door whose place it takes.
    fn held(&self) -> Option<Place> {
        self.old.as_ref().and_then(|(kind, _)| place(kind))
    }
}

/// A port that a door has, whatever the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Host(Transport, u16),
    Tunnel(u16),
}

/// The port of a door, if it has one that others cannot have meanwhile.
fn place(kind: &DoorKind) -> Option<Place> {
    let place = match (bind(kind), kind) {
        (Some((transport, bind)), _) => Place::Host(transport, bind.port),
        (None, DoorKind::Server { listen_port, .. }) => Place::Tunnel(*listen_port),
        _ => return None,
    };
    Some(place).filter(|place| !matches!(place, Place::Host(_, 0) | Place::Tunnel(0)))
}

/// Where a door listens at this machine.
fn bind(kind: &DoorKind) -> Option<(Transport, &HostPort)> {
    let (transport, bind) = kind.bind()?;
    let transport = match transport {
        file::Transport::Tcp => Transport::Tcp,
        file::Transport::Udp => Transport::Udp,
    };
    Some((transport, bind))
}

/// Whether a door has the standard streams.
pub(super) fn is_stdio(kind: &DoorKind) -> bool {
    matches!(kind, DoorKind::Stdio { .. })
}

/// Why a door cannot be opened: with what it is that cannot be had.
fn why(kind: &DoorKind, error: &io::Error) -> String {
    match (bind(kind), kind) {
        (Some((transport, bind)), _) => {
            format!("BindAddress {bind}: {}", refused::port(transport, bind, error))
        }
        (None, DoorKind::Server { listen_port, .. }) => {
            format!("ListenPort {listen_port}: {error}")
        }
        _ => error.to_string(),
    }
}

/// Who answers questions for names in the tunnel.
fn resolver(file: &File) -> TunnelResolver {
    let servers = file.interface.dns.iter().map(|&ip| SocketAddr::new(ip, DNS_PORT)).collect();
    let strategy = match file.resolve {
        file::ResolveStrategy::Ipv4 => ResolveStrategy::Ipv4,
        file::ResolveStrategy::Ipv6 => ResolveStrategy::Ipv6,
        _ => ResolveStrategy::Auto,
    };
    TunnelResolver { servers, search: file.interface.search.clone(), strategy }
}

/// A door that is not open yet.
fn door(kind: &DoorKind) -> Result<Door, String> {
    let listen = |bind| listen(bind).map_err(|why| format!("BindAddress: {why}"));
    Ok(match kind {
        DoorKind::Socks5 { bind, login } => {
            Door::Socks5 { listen: listen(bind)?, users: users(login.as_ref())? }
        }
        DoorKind::Http { bind, login, certificate } => {
            let tls = certificate.as_ref().map(identity).transpose()?;
            Door::Http { listen: listen(bind)?, users: users(login.as_ref())?, tls }
        }
        DoorKind::Client { bind, target } => {
            Door::Client { listen: listen(bind)?, target: destination(target)? }
        }
        DoorKind::Server { listen_port, target } => {
            Door::Server { listen_port: *listen_port, target: destination_of_host(target)? }
        }
        DoorKind::Stdio { target } => {
            Door::stdio(destination(target)?).map_err(|error| error.to_string())?
        }
        DoorKind::Udp { bind, target, inactivity } => {
            Door::Udp { listen: listen(bind)?, target: destination(target)?, timeout: *inactivity }
        }
        DoorKind::Sni { bind } => Door::Sni { listen: listen(bind)? },
        _ => return Err("this section is not supported".to_owned()),
    })
}

fn users(login: Option<&Login>) -> Result<Users, String> {
    let mut users = Users::default();
    if let Some(login) = login
        && !users.add(&login.user, login.password.expose())
    {
        let problem = "Username, Password: expected one that is not empty, of at most 255 bytes";
        return Err(problem.to_owned());
    }
    Ok(users)
}

/// Resolves the targets in the network of this machine once where the tunnel has no resolver, and
/// tells of those that have no address yet. Libraries for that are loaded before files are given
/// up.
pub(super) fn warn_of_targets(file: &File) {
    if !file.interface.dns.is_empty() {
        return;
    }
    for door in &file.doors {
        if let DoorKind::Server { target, .. } = &door.kind
            && needs_resolver(target)
            && let Err(error) = names::resolve(target)
        {
            let place = place_of(file, (door.line, door.name));
            tracing::warn!("{place} Target: {target} has no address yet: {error}");
        }
    }
}

/// Checks what a file names besides itself: certificates and their keys.
///
/// # Errors
/// One line about the first that is of no use.
pub(super) fn check(file: &File) -> Result<(), String> {
    for door in &file.doors {
        if let DoorKind::Http { certificate: Some(certificate), .. } = &door.kind {
            let wrong = |why| format!("{} {why}", place_of(file, (door.line, door.name)));
            identity(certificate).map_err(wrong)?;
        }
    }
    Ok(())
}

/// What clients of a proxy see of it.
fn identity(certificate: &Certificate) -> Result<TlsIdentity, String> {
    let Certificate { chain, key, .. } = certificate;
    let read = |key: &str, path: &Path| {
        let failed = |error: io::Error| format!("{key}: {}: {error}", path.display());
        // A buffer that never grows leaves no copies of keys behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MOST_PEM));
        let file = fs::File::open(path).map_err(failed)?;
        file.take(MOST_PEM as u64).read_to_end(&mut bytes).map_err(failed)?;
        Ok::<_, String>(bytes)
    };
    TlsIdentity::from_pem(&read("CertFile", chain)?, &read("KeyFile", key)?).map_err(|error| {
        format!("CertFile, KeyFile: {} and {}: {error}", chain.display(), key.display())
    })
}

/// Whether a target is a name that is looked up: `localhost` and names below it are not (RFC 6761
/// section 6.3).
pub(super) fn needs_resolver(target: &HostPort) -> bool {
    let Host::Name(name) = &target.host else { return false };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name != "localhost" && !name.ends_with(".localhost") && !target.has_zone()
}

fn destination(target: &HostPort) -> Result<Target, String> {
    let target = target.to_string();
    target.parse().map_err(|error| format!("Target {target}: {error}"))
}

/// A destination of this machine's network, which may have a zone.
fn destination_of_host(target: &HostPort) -> Result<Target, String> {
    if !target.has_zone() {
        return destination(target);
    }
    let failed = |why: &dyn std::fmt::Display| format!("Target {target}: {why}");
    let found = names::resolve(target).map_err(|error| failed(&error))?;
    let of_link = found.iter().find_map(|address| match address {
        SocketAddr::V6(v6) => Some(gateway::Host::OfLink(*v6.ip(), v6.scope_id())),
        SocketAddr::V4(_) => None,
    });
    let host = of_link.ok_or_else(|| failed(&"it has no address"))?;
    Ok(Target { host, port: target.port })
}

/// The address of this machine that a door listens at. Of a name it is the first one of IPv4, as
/// wireproxy has it.
pub(super) fn listen(bind: &HostPort) -> Result<SocketAddr, String> {
    let found = names::resolve(bind).map_err(|error| format!("{bind} has no address: {error}"))?;
    let chosen = found.iter().find(|one| one.is_ipv4()).or(found.first()).copied();
    let chosen = chosen.ok_or_else(|| format!("{bind} has no address"))?;
    // A kernel without IPv6 has all addresses in IPv4.
    let has_v6 = || Socket::new(Domain::IPV6, Type::STREAM, None).is_ok();
    Ok(match bind.host {
        Host::Any if !has_v6() => SocketAddr::from((Ipv4Addr::UNSPECIFIED, bind.port)),
        _ => chosen,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn what_a_door_cannot_have_is_told_with_its_key() {
        let bind = |text: &str| text.parse::<HostPort>().expect("an address");
        let nowhere = DoorKind::Socks5 { bind: bind("[fe80::1%nosuch]:1"), login: None };
        let why = door(&nowhere).expect_err("there is no such link");
        assert!(why.starts_with("BindAddress: [fe80::1%nosuch]:1 has no address: "), "{why}");
    }

    #[test]
    fn doors_that_panic_are_told_of_as_failed() {
        let (tell, told) = mpsc::channel();
        let ended = move |done| tell.send(done).expect("somebody waits");
        let thread = spawn(|| panic!("a fault that a test has made"), Box::new(ended));
        thread.expect("a thread").join().expect("it has ended in an orderly way");
        assert!(told.recv().expect("it is told").is_err());
    }
}
