//! Which doors there are, and their settings.

use super::tls::TlsIdentity;
use super::users::Users;
use neap::Stack;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Longest name in text (RFC 1035 section 2.3.4), without the final dot.
const MOST_NAME: usize = 253;
/// A client has so long to say what it wants.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest part of a name between two dots.
const MOST_LABEL: usize = 63;

/// A way between the host and the stack.
#[derive(Debug)]
#[non_exhaustive]
pub enum Door {
    /// A SOCKS5 proxy (RFC 1928): CONNECT and UDP ASSOCIATE of clients of the host.
    Socks5 {
        /// Address and port of the host.
        listen: SocketAddr,
        /// Who may use it; nobody is asked for a password if there are no users.
        users: Users,
    },
    /// An HTTP proxy: CONNECT, and requests with a whole URI (RFC 9112 section 3.2.2). The
    /// connection is closed behind the response of such a request.
    Http {
        /// Address and port of the host.
        listen: SocketAddr,
        /// Who may use it; nobody is asked for a password if there are no users.
        users: Users,
        /// Who the proxy is to clients, which then speak TLS to it; without it they do not.
        tls: Option<TlsIdentity>,
    },
    /// Connections to a port of the host go to one target behind the stack.
    Client {
        /// Address and port of the host.
        listen: SocketAddr,
        /// Where they go.
        target: Target,
    },
    /// Connections to a port of the stack go to one target of the host's network. A name is looked
    /// up as all others are, but by the resolver of the host where there are no servers to be asked
    /// through the stack; `localhost` is the host.
    Server {
        /// Port of all addresses of the stack.
        listen_port: u16,
        /// Where they go.
        target: Target,
    },
    /// One connection through the stack, whose data come from and go to two descriptors. The run
    /// ends with it if no other door is open then.
    Stdio {
        /// Where it goes.
        target: Target,
        /// What is read.
        input: OwnedFd,
        /// What is written.
        output: OwnedFd,
    },
    /// Datagrams to a port of the host go to one target behind the stack. Each client has a port of
    /// the stack, and gets what the target sends there.
    Udp {
        /// Address and port of the host.
        listen: SocketAddr,
        /// Where they go.
        target: Target,
        /// A client that neither sends nor gets anything for so long is forgotten; `None` keeps it.
        timeout: Option<Duration>,
    },
    /// TLS connections go to port 443 of the host that their first message names (server name
    /// indication, RFC 6066 section 3).
    Sni {
        /// Address and port of the host.
        listen: SocketAddr,
    },
}

impl Door {
    /// A [`Door::Stdio`] for standard input and output of the process.
    ///
    /// # Errors
    /// The process has no descriptors left, or one of the two is closed.
    pub fn stdio(target: Target) -> io::Result<Self> {
        let input = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 0)?;
        let output = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 0)?;
        Ok(Self::Stdio { target, input, output })
    }
}

/// A host: an address, or a name that is looked up behind the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address.
    Address(IpAddr),
    /// An address of one link of the host, and the index of the interface there. It is one of a
    /// [`Door::Server`] alone.
    OfLink(Ipv6Addr, u32),
    /// A name in lower case without a final dot: letters, digits, hyphens and underscores in parts
    /// of 1 to 63 bytes between dots, at most 253 bytes.
    Name(Arc<str>),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Host.
    pub host: Host,
    /// Port.
    pub port: u16,
}

/// Text is no [`Target`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The port is missing, or is no number from 1 to 65535.
    #[error("a target is HOST:PORT with a port from 1 to 65535")]
    Port,
    /// The host is neither an address nor a name.
    #[error("the host of a target is an IPv4 address, an IPv6 address in brackets or a name")]
    Host,
}

impl Host {
    /// An address, with or without brackets, or a name. `None` if it is neither.
    ///
    /// A name whose last part is a number is none: resolvers of other systems take it for an
    /// address (RFC 3696 section 2).
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(inner) = text.strip_prefix('[') {
            return inner.strip_suffix(']')?.parse().ok().map(|v6| Self::Address(IpAddr::V6(v6)));
        }
        if let Ok(address) = text.parse() {
            return Some(Self::Address(address));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_usable = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let is_label =
            |label: &str| (1..=MOST_LABEL).contains(&label.len()) && label.bytes().all(is_usable);
        let last = name.rsplit('.').next()?;
        let is_name = name.len() <= MOST_NAME
            && name.split('.').all(is_label)
            && !last.bytes().all(|byte| byte.is_ascii_digit());
        is_name.then(|| Self::Name(name.to_ascii_lowercase().into()))
    }
}

impl FromStr for Target {
    type Err = TargetError;

    /// Reads `HOST:PORT`.
    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (host, port) = text.rsplit_once(':').ok_or(TargetError::Port)?;
        let port = port.parse().ok().filter(|&port| port > 0).ok_or(TargetError::Port)?;
        // An IPv6 address without brackets has no end.
        let host = (!host.contains(':') || host.starts_with('[')).then(|| Host::parse(host));
        Ok(Self { host: host.flatten().ok_or(TargetError::Host)?, port })
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Address(address.ip()), port: address.port() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            Host::OfLink(ip, interface) => SocketAddrV6::new(*ip, self.port, 0, *interface).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// Which addresses of a name are asked for, and in which order they are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResolveStrategy {
    /// As [`Ipv6`](Self::Ipv6) if the stack has an IPv6 address that reaches beyond its link, else
    /// those of IPv4 alone.
    #[default]
    Auto,
    /// Those of IPv4 first.
    Ipv4,
    /// Those of IPv6 first.
    Ipv6,
}

/// Who answers questions for the addresses of names.
#[derive(Clone, Debug, Default)]
pub struct TunnelResolver {
    /// DNS servers, which are asked through the stack in this order. Without any, no name has an
    /// address but that of a [`Door::Server`].
    pub servers: Vec<SocketAddr>,
    /// Domains that names without a dot are looked up in, in this order.
    pub search: Vec<String>,
    /// Which addresses are asked for.
    pub strategy: ResolveStrategy,
}

/// Settings of [`Doors`](super::Doors).
#[derive(Debug)]
#[non_exhaustive]
pub struct DoorsConfig {
    /// What the doors lead into.
    pub stack: Arc<Stack>,
    /// Who answers questions for names.
    pub resolver: TunnelResolver,
    /// The doors.
    pub doors: Vec<Door>,
    /// Connections at the same time; more are refused.
    pub most_connections: usize,
    /// Connections of one address at the same time; more are refused. All programs of the host
    /// share its loopback addresses, which have no such bound.
    pub most_of_a_client: usize,
    /// Clients of [`Door::Udp`] and associations of [`Door::Socks5`] at the same time. Beyond it a
    /// client that was silent for ten seconds loses its place to another one. Where none was,
    /// datagrams of more clients are dropped. An association keeps its place as long as its
    /// connection is open, so all of them have half of the places, and those of one address an
    /// eighth; all programs of the host share its loopback addresses, which have no such bound.
    pub most_mappings: usize,
    /// A client of a proxy has so long to say what it wants.
    pub patience: Duration,
}

impl DoorsConfig {
    /// Doors of a stack, with default bounds: 10,000 connections, 4096 of one address, 4096
    /// mappings, and 15 seconds for clients to say what they want.
    pub fn new(stack: Arc<Stack>, resolver: TunnelResolver, doors: Vec<Door>) -> Self {
        let (most_connections, most_of_a_client, most_mappings) = (10_000, 4096, 4096);
        Self {
            stack,
            resolver,
            doors,
            most_connections,
            most_of_a_client,
            most_mappings,
            patience: PATIENCE,
        }
    }
}

/// A door cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct DoorsError {
    /// Its place in [`DoorsConfig::doors`]; `None` if the reason is none of a door.
    pub door: Option<usize>,
    /// Why.
    #[source]
    pub error: io::Error,
}

impl From<io::Error> for DoorsError {
    fn from(error: io::Error) -> Self {
        Self { door: None, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_or_names_with_ports() {
        let target = |text: &str| text.parse::<Target>();
        for (text, shown) in [
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("[2001:db8::1]:443", "[2001:db8::1]:443"),
            ("Example.ORG:22", "example.org:22"),
            ("service-one.servicenet.:5000", "service-one.servicenet:5000"),
            ("localhost:25545", "localhost:25545"),
        ] {
            assert_eq!(target(text).expect(text).to_string(), shown);
        }
        for text in ["example.org", "example.org:", "example.org:0", "example.org:65536", "a:b:x"] {
            assert_eq!(target(text), Err(TargetError::Port), "{text}");
        }
        let long = format!("{}:80", "a".repeat(64));
        for text in ["2001:db8::1:443", ":80", "a..b:80", "127.1:80", "a b:80", "[::1:80", &long] {
            assert_eq!(target(text), Err(TargetError::Host), "{text}");
        }
    }
}
