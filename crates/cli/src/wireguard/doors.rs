//! The doors of a file: each has a thread of its own, so that one can be closed or opened while the
//! others go on.

use super::inspector::Shown;
use crate::gateway::tunnel::names;
use neap::Stack;
use neap_gateway::doors::{
    Door, Doors, DoorsConfig, DoorsError, DoorsHandle, DoorsInspector, ResolveStrategy, Target,
    TlsIdentity, TunnelResolver, Users,
};
use neap_wireguard::file::{self, Certificate, DoorKind, File, Host, HostPort, Login};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use zeroize::Zeroizing;

/// Longest file of a certificate or a key, bytes.
const MOST_PEM: usize = 1 << 20;
/// Port of DNS servers.
const DNS_PORT: u16 = 53;

/// Called when the standard streams have come to their end, or the connection has failed.
pub(super) type Ended = Arc<dyn Fn(Result<(), String>) + Send + Sync>;

/// Time between two tries to take a port that a door before is about to give back, and their
/// number.
const RETRY: (Duration, u32) = (Duration::from_millis(10), 100);
/// Connections of a door that is served anew go on for so long.
const DRAIN: Duration = Duration::from_secs(7 * 86_400);

/// A door that is served.
struct Opened {
    kind: DoorKind,
    handle: DoorsHandle,
    inspector: DoorsInspector,
    thread: JoinHandle<()>,
}

/// The doors that are served.
pub(super) struct AllDoors {
    stack: Arc<Stack>,
    most_connections: usize,
    ended: Ended,
    resolver: TunnelResolver,
    opened: Vec<Opened>,
    /// Connections of doors that were served before.
    draining: Vec<Opened>,
    shown: Shown,
}

impl AllDoors {
    /// No doors yet. Each may have so many connections at the same time.
    pub(super) fn new(stack: Arc<Stack>, most_connections: usize, ended: Ended) -> Self {
        Self {
            stack,
            most_connections,
            ended,
            resolver: TunnelResolver::default(),
            opened: Vec::new(),
            draining: Vec::new(),
            shown: Shown::default(),
        }
    }

    /// What others see of the doors.
    pub(super) fn shown(&self) -> Shown {
        self.shown.clone()
    }

    /// Serves the doors of a file: those that were served before go on, and others are closed. All
    /// that can be opened are.
    ///
    /// # Errors
    /// One line for each door that cannot be opened.
    pub(super) fn serve(&mut self, file: &File) -> Result<(), Vec<String>> {
        let resolver = resolver(file);
        let is_same = (&resolver.servers, &resolver.search, resolver.strategy)
            == (&self.resolver.servers, &self.resolver.search, self.resolver.strategy);
        self.resolver = resolver;
        let mut new: Vec<_> = file.doors.iter().map(|door| (door.line, &door.kind)).collect();
        for one in std::mem::take(&mut self.opened) {
            let place = new.iter().position(|(_, kind)| **kind == one.kind);
            let is_stdio = matches!(one.kind, DoorKind::Stdio { .. });
            match place {
                // The connection of the standard streams was looked up long ago.
                Some(place) if is_same || is_stdio => {
                    new.swap_remove(place);
                    self.opened.push(one);
                }
                Some(_) if one.handle.drain(DRAIN).is_ok() => self.draining.push(one),
                _ => one.close(),
            }
        }
        self.draining.retain(|one| !one.thread.is_finished());
        let mut failed = Vec::new();
        for (line, kind) in new {
            match self.open(kind) {
                Ok(opened) => self.opened.push(opened),
                Err(why) => failed.push(format!("{}:{line}: {why}", file.path.display())),
            }
        }
        self.show();
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }

    fn show(&self) {
        let all = self.opened.iter().chain(&self.draining);
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = all.map(|one| one.inspector.clone()).collect();
    }

    fn open(&self, kind: &DoorKind) -> Result<Opened, String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let mut tries = RETRY.1;
        let mut doors = loop {
            let doors = vec![door(kind)?];
            let (stack, resolver) = (self.stack.clone(), self.resolver.clone());
            let mut config = DoorsConfig::new(stack, resolver, doors);
            config.most_connections = self.most_connections;
            match Doors::open(config) {
                Ok(doors) => break doors,
                Err(DoorsError { error, .. })
                    if error.kind() == ErrorKind::AddrInUse
                        && !self.draining.is_empty()
                        && tries > 0 =>
                {
                    tries -= 1;
                    thread::sleep(RETRY.0);
                }
                Err(error) => return Err(failed(&error)),
            }
        };
        let (handle, inspector) = (doors.handle(), doors.inspector());
        let is_stdio = matches!(kind, DoorKind::Stdio { .. });
        let ended = self.ended.clone();
        let run = move || {
            let done = doors.run();
            if let Err(error) = &done {
                tracing::error!(%error, "a door is closed");
            }
            if is_stdio {
                ended(done.map_err(|error| error.to_string()));
            }
        };
        let thread = thread::Builder::new().name("doors".to_owned()).spawn(run);
        let thread = thread.map_err(|error| failed(&error))?;
        Ok(Opened { kind: kind.clone(), handle, inspector, thread })
    }

    /// Refuses new connections, and waits until all others are over, or until `stop` is called by
    /// another thread.
    pub(super) fn drain(&mut self, time: Duration) {
        for one in self.opened.iter().chain(&self.draining) {
            // One that has ended has no connections.
            let _ = one.handle.drain(time);
        }
    }

    /// The handles of all doors, by which any thread may end them.
    pub(super) fn handles(&self) -> Vec<DoorsHandle> {
        let all = self.opened.iter().chain(&self.draining);
        all.map(|one| one.handle.clone()).collect()
    }

    /// Waits until all doors have come to their ends.
    pub(super) fn join(self) {
        for one in self.opened.into_iter().chain(self.draining) {
            // A thread that panicked has ended too.
            let _ = one.thread.join();
        }
    }
}

impl Opened {
    /// Closes its port and resets its connections.
    fn close(self) {
        self.handle.stop();
        // A thread that panicked has ended too.
        let _ = self.thread.join();
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
            Door::Server { listen_port: *listen_port, target: destination(target)? }
        }
        DoorKind::Stdio { target } => {
            Door::stdio(destination(target)?).map_err(|error| format!("[STDIOTunnel]: {error}"))?
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
        return Err("Username: expected 1 to 255 bytes without a colon".to_owned());
    }
    Ok(users)
}

/// What clients of a proxy see of it.
fn identity(certificate: &Certificate) -> Result<TlsIdentity, String> {
    let Certificate { chain, key, .. } = certificate;
    let read = |path: &Path| {
        let failed = |error: io::Error| format!("[http] {}: {error}", path.display());
        // A buffer that never grows leaves no copies of keys behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MOST_PEM));
        let file = fs::File::open(path).map_err(failed)?;
        file.take(MOST_PEM as u64).read_to_end(&mut bytes).map_err(failed)?;
        Ok::<_, String>(bytes)
    };
    TlsIdentity::from_pem(&read(chain)?, &read(key)?)
        .map_err(|error| format!("[http] {} and {}: {error}", chain.display(), key.display()))
}

fn destination(target: &HostPort) -> Result<Target, String> {
    let target = target.to_string();
    target.parse().map_err(|error| format!("Target {target}: {error}"))
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
