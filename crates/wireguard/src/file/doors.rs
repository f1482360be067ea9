//! The sections of wireproxy: what comes into the tunnel, and out of it, without an interface of
//! the machine.

use super::error::FileError;
use super::keys::{Keys, Value};
use super::source::named_by;
use super::value::{Host, HostPort, Password, port_of};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest user and password, bytes (RFC 1929).
const LONGEST_LOGIN: usize = 255;
/// What an address of this machine is expected to be.
const BIND: &str = "ADDRESS:PORT of this machine, such as 127.0.0.1:1080, or :1080 for all";
/// What a destination is expected to be.
const TARGET: &str = "ADDRESS:PORT, [IPV6]:PORT or NAME:PORT, such as example.org:80";

/// A way into the tunnel or out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoorSection {
    /// Its line in the file.
    pub line: usize,
    /// Its name as it is documented, without brackets, such as `TCPServerTunnel`.
    pub name: &'static str,
    /// What it is.
    pub kind: DoorKind,
}

/// The kinds of [`DoorSection`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DoorKind {
    /// `[Socks5]`: a SOCKS5 server of this machine, whose connections go through the tunnel.
    Socks5 {
        /// Where it listens.
        bind: HostPort,
        /// Who may use it; `None` for everybody.
        login: Option<Login>,
    },
    /// `[http]`: an HTTP proxy of this machine, whose connections go through the tunnel.
    Http {
        /// Where it listens.
        bind: HostPort,
        /// Who may use it; `None` for everybody.
        login: Option<Login>,
        /// With it clients speak TLS to the proxy.
        certificate: Option<Certificate>,
    },
    /// `[TCPClientTunnel]`: a port of this machine that leads to one destination in the tunnel.
    Client {
        /// Where it listens.
        bind: HostPort,
        /// Where its connections go.
        target: HostPort,
    },
    /// `[TCPServerTunnel]`: a port in the tunnel that leads to one destination of this machine.
    Server {
        /// The port, at all addresses of the interface.
        listen_port: u16,
        /// Where its connections go.
        target: HostPort,
    },
    /// `[STDIOTunnel]`: the standard streams of the process, which lead to one destination.
    Stdio {
        /// Where they go.
        target: HostPort,
    },
    /// `[UDPProxyTunnel]`: a UDP port of this machine that leads to one destination in the tunnel.
    Udp {
        /// Where it listens.
        bind: HostPort,
        /// Where its datagrams go.
        target: HostPort,
        /// Time without a datagram after which a client is forgotten; `None` for never.
        inactivity: Option<Duration>,
    },
    /// `[SNI]`: TLS connections to this machine go to port 443 of the name that their ClientHello
    /// has.
    Sni {
        /// Where it listens.
        bind: HostPort,
    },
}

impl DoorKind {
    /// The key with the place that this door and another one want and only one of them can have;
    /// `None` if both can be open. Names are not resolved.
    pub(super) fn clash(&self, other: &Self) -> Option<&'static str> {
        if let (Self::Server { listen_port, .. }, Self::Server { listen_port: taken, .. }) =
            (self, other)
        {
            return (listen_port == taken).then_some("ListenPort");
        }
        let ((transport, bind), (others, taken)) = (self.bind()?, other.bind()?);
        (transport == others && bind.overlaps(taken)).then_some("BindAddress")
    }

    /// Returns where it listens at this machine, and what its socket speaks there; `None` for those
    /// that have no socket.
    pub fn bind(&self) -> Option<(Transport, &HostPort)> {
        match self {
            Self::Socks5 { bind, .. }
            | Self::Http { bind, .. }
            | Self::Client { bind, .. }
            | Self::Sni { bind } => Some((Transport::Tcp, bind)),
            Self::Udp { bind, .. } => Some((Transport::Udp, bind)),
            Self::Server { .. } | Self::Stdio { .. } => None,
        }
    }
}

/// What a socket of this machine speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A user and a password, of which one may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password.
    pub password: Password,
}

/// The files of a certificate, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Certificate {
    /// The certificate with its chain.
    pub chain: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Which addresses of a name are taken first, `[Resolve]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResolveStrategy {
    /// IPv4 if the interface has IPv4 addresses only, else IPv6.
    #[default]
    Auto,
    /// IPv4 first.
    Ipv4,
    /// IPv6 first.
    Ipv6,
}

/// Reads a section by its name in small letters; `None` for another kind.
pub(super) type Reader = fn(&mut Keys<'_, '_>) -> Result<DoorKind, FileError>;

/// The sections, by their documented names.
pub(super) const SECTIONS: [(&str, Reader); 7] = [
    ("Socks5", socks5),
    ("http", http),
    ("TCPClientTunnel", client),
    ("TCPServerTunnel", server),
    ("STDIOTunnel", stdio),
    ("UDPProxyTunnel", udp),
    ("SNI", sni),
];

fn host_port(value: &Value, expected: &str) -> Result<HostPort, FileError> {
    HostPort::parse(&value.text).ok_or_else(|| value.wrong(format!("expected {expected}")))
}

/// Where a door listens. The port may have the name of a service, as Go takes it.
fn bind(keys: &mut Keys<'_, '_>, transport: Transport) -> Result<HostPort, FileError> {
    let value = keys.needed("BindAddress", BIND)?;
    let protocol = match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    };
    let named = || {
        let (host, service) = value.text.rsplit_once(':')?;
        let port = port_of(service, protocol, &keys.context.source.services())?;
        HostPort::parse(&format!("{host}:{port}"))
    };
    HostPort::parse(&value.text)
        .or_else(named)
        .ok_or_else(|| value.wrong(format!("expected {BIND}")))
}

/// A destination. A zone is that of an interface of this machine, and none in the tunnel.
fn target(keys: &mut Keys<'_, '_>, may_have_zone: bool) -> Result<HostPort, FileError> {
    let value = keys.needed("Target", TARGET)?;
    let found = host_port(&value, TARGET)?;
    if found.host == Host::Any || found.port == 0 {
        return Err(value.wrong(format!("expected {TARGET}")));
    }
    if found.has_zone() && !may_have_zone {
        return Err(value.wrong("expected an address without a zone: the tunnel has none"));
    }
    Ok(found)
}

/// Who may use a proxy. The name of one that speaks HTTP has no colon (RFC 7617 section 2).
///
/// A half that is missing or empty is an empty text, as wireproxy has it; but its SOCKS5 lets
/// everybody in where the user is missing, so that a password alone is an error there.
fn login(keys: &mut Keys<'_, '_>, is_http: bool) -> Result<Option<Login>, FileError> {
    let (user, password) = (keys.one("Username")?, keys.secret("Password")?);
    let is_there = |value: &Value| !value.text.is_empty();
    let (user, password) = (user.filter(is_there), password.filter(is_there));
    for value in [&user, &password].into_iter().flatten() {
        if value.text.len() > LONGEST_LOGIN {
            return Err(value.wrong(format!("expected at most {LONGEST_LOGIN} bytes")));
        }
    }
    match (&user, &password) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {}
        (Some(user), None) => {
            let problem = "without a Password beside it, it is the whole secret of the proxy";
            keys.context.warn(user.place.clone(), problem);
        }
        (None, Some(password)) if !is_http => {
            return Err(password.wrong("expected a Username beside it"));
        }
        (None, Some(password)) => {
            let problem = "without a Username beside it, the name of the user is empty";
            keys.context.warn(password.place.clone(), problem);
        }
    }
    if let Some(user) = &user
        && is_http
        && user.text.contains(':')
    {
        return Err(user.wrong("expected a name without a colon"));
    }
    let user = user.map(|user| user.text.to_string()).unwrap_or_default();
    let password = password.map(|password| password.text).unwrap_or_default();
    Ok(Some(Login { user, password: Password(password) }))
}

/// Says that everybody who reaches a proxy may use it.
fn warn_of_open(keys: &mut Keys<'_, '_>, bind: &HostPort, has_login: bool, advice: &str) {
    if !has_login && !bind.is_local() {
        let place = keys.place();
        let problem =
            format!("a proxy without a password at {bind}, which others may reach: {advice}");
        keys.context.warn(place, problem);
    }
}

/// What helps against an open proxy.
const LOGIN_OR_LOOPBACK: &str = "give it a Username and a Password, or bind it to 127.0.0.1";

fn socks5(keys: &mut Keys<'_, '_>) -> Result<DoorKind, FileError> {
    let (bind, login) = (bind(keys, Transport::Tcp)?, login(keys, false)?);
    warn_of_open(keys, &bind, login.is_some(), LOGIN_OR_LOOPBACK);
    Ok(DoorKind::Socks5 { bind, login })
}

fn http(keys: &mut Keys<'_, '_>) -> Result<DoorKind, FileError> {
    let (bind, login) = (bind(keys, Transport::Tcp)?, login(keys, true)?);
    let path = |value: Value, context: &super::keys::Context<'_>| {
        named_by(context.file, Path::new(value.text.as_str()), context.source)
    };
    let is_there = |value: &Value| !value.text.is_empty();
    let chain = keys.one("CertFile")?.filter(is_there);
    let key = keys.one("KeyFile")?.filter(is_there);
    let certificate = match (chain, key) {
        (None, None) => None,
        (Some(chain), None) => return Err(chain.wrong("expected a KeyFile beside it")),
        (None, Some(key)) => return Err(key.wrong("expected a CertFile beside it")),
        (Some(chain), Some(key)) => {
            let (chain, place) = (path(chain, keys.context), key.place.clone());
            let key = path(key, keys.context);
            if keys.context.source.is_open(&key) {
                let advice = format!("others may read this key: chmod 600 {}", key.display());
                keys.context.warn(place, advice);
            }
            Some(Certificate { chain, key })
        }
    };
    warn_of_open(keys, &bind, login.is_some(), LOGIN_OR_LOOPBACK);
    Ok(DoorKind::Http { bind, login, certificate })
}

fn client(keys: &mut Keys<'_, '_>) -> Result<DoorKind, FileError> {
    Ok(DoorKind::Client { bind: bind(keys, Transport::Tcp)?, target: target(keys, false)? })
}

fn server(keys: &mut Keys<'_, '_>) -> Result<DoorKind, FileError> {
    let expected = "a port from 1 to 65535";
    let port = keys.needed("ListenPort", expected)?.number(1, u16::MAX.into(), expected)?;
    let listen_port = u16::try_from(port).unwrap_or(u16::MAX);
    Ok(DoorKind::Server { listen_port, target: target(keys, true)? })
}

fn stdio(keys: &mut Keys<'_, '_>) -> Result<DoorKind, FileError> {
    Ok(DoorKind::Stdio { target: target(keys, false)? })
}

fn udp(keys: &mut Keys<'_, '_>) -> Result<DoorKind, FileError> {
    let (bind, target) = (bind(keys, Transport::Udp)?, target(keys, false)?);
    let inactivity = keys.one("InactivityTimeout")?;
    let inactivity = inactivity
        .map(|seconds| seconds.number(0, u32::MAX, "seconds, such as 30; 0 for no timeout"));
    let inactivity = inactivity.transpose()?.filter(|&seconds| seconds != 0);
    let inactivity = inactivity.map(|seconds| Duration::from_secs(seconds.into()));
    Ok(DoorKind::Udp { bind, target, inactivity })
}

fn sni(keys: &mut Keys<'_, '_>) -> Result<DoorKind, FileError> {
    let bind = bind(keys, Transport::Tcp)?;
    warn_of_open(keys, &bind, false, "bind it to 127.0.0.1");
    Ok(DoorKind::Sni { bind })
}

impl ResolveStrategy {
    pub(super) fn read(mut keys: Keys<'_, '_>) -> Result<Self, FileError> {
        let strategy = match keys.one("ResolveStrategy")? {
            None => Self::Auto,
            Some(value) => match value.text.to_ascii_lowercase().as_str() {
                "" | "auto" => Self::Auto,
                "ipv4" => Self::Ipv4,
                "ipv6" => Self::Ipv6,
                _ => return Err(value.wrong("expected auto, ipv4 or ipv6")),
            },
        };
        keys.end()?;
        Ok(strategy)
    }
}
