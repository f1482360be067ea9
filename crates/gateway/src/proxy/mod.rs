//! Proxies as the way out: SOCKS5 and HTTP CONNECT.
//!
//! A proxy is asked by a small dialogue without I/O, which a connection of the host carries.
//! Datagrams go by associations of SOCKS5.
//!
//! Cost: a flow has one connection to the proxy. While it is opened, it holds at most 16 KiB of the
//! answer and what came with it, at most 64 KiB. A mapping of datagrams has a connection and a UDP
//! socket. Until those are open, the datagrams of all mappings that wait have at most 8 MiB.

mod association;
mod early;
mod error;
mod http;
mod probe;
mod socks5;
mod stream;

use crate::destination::Destination;
use crate::outbound::Outbound;
use crate::upstream::{Client, Far, FarDatagrams, Upstream};
use association::Association;
use early::EarlyBytes;
pub(crate) use error::fault;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use stream::{Dialogue, ProxyStream};
use zeroize::Zeroizing;

/// A proxy answers within so long, or the flow is refused. It covers the proxy's own connection to
/// the destination, which takes a host some SYNs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Most bytes of a user's name and of a password (RFC 1929).
const MOST_CREDENTIAL: usize = 255;

/// What a proxy speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// SOCKS version 5 (RFC 1928), with UDP ASSOCIATE for datagrams.
    Socks5,
    /// The method CONNECT of HTTP/1.1 (RFC 9110 section 9.3.6), which carries no datagrams.
    Http,
}

/// A user and password, for SOCKS5 (RFC 1929) and HTTP's Basic scheme (RFC 7617). The password is
/// never printed, and wiped from memory when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: Zeroizing<String>,
}

impl Credentials {
    /// A user and a password; `None` if either is longer than 255 bytes, the user is empty or
    /// contains a colon, or either has control characters.
    pub fn new(user: &str, password: &str) -> Option<Self> {
        let is_usable =
            |text: &str| text.len() <= MOST_CREDENTIAL && !text.chars().any(char::is_control);
        let is_user = !user.is_empty() && !user.contains(':');
        (is_user && is_usable(user) && is_usable(password))
            .then(|| Self { user: user.to_owned(), password: Zeroizing::new(password.to_owned()) })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// A proxy as the way of all flows.
///
/// Names go to the proxy as names. Errors of the proxy become what a guest knows: a SOCKS5 reply
/// or an HTTP status that says "refused" is a reset, others are ICMP errors.
#[derive(Clone, Debug)]
pub struct Proxy {
    protocol: Protocol,
    server: SocketAddr,
    credentials: Option<Arc<Credentials>>,
    outbound: Outbound,
    /// What waits for associations with it.
    early: EarlyBytes,
}

impl Proxy {
    /// A proxy at an address.
    pub fn new(protocol: Protocol, server: SocketAddr, credentials: Option<Credentials>) -> Self {
        let credentials = credentials.map(Arc::new);
        let (outbound, early) = (Outbound::default(), EarlyBytes::default());
        Self { protocol, server, credentials, outbound, early }
    }

    /// Settings of the sockets that reach the proxy. They do not hold for one at a loopback address
    /// of the host, see [`Outbound::towards`].
    #[must_use]
    pub fn outbound(mut self, outbound: Outbound) -> Self {
        self.outbound = if self.server.ip().is_loopback() { Outbound::default() } else { outbound };
        self
    }

    /// Asks the proxy whether it is there, and waits for its answer for at most `timeout`. SOCKS5
    /// is asked whether it takes the credentials; HTTP has no such question, so that a connection
    /// is all that it has to accept.
    ///
    /// # Errors
    /// Why it is of no use: `TimedOut`, `PermissionDenied` for the credentials, `InvalidData` if
    /// it speaks something else, and others as `connect(2)`.
    pub fn probe(&self, timeout: Duration) -> io::Result<()> {
        probe::run(self, timeout)
    }
}

impl Upstream for Proxy {
    fn connect(&self, to: &Destination, _: Client) -> io::Result<Box<dyn Far>> {
        let dialogue = match self.protocol {
            Protocol::Socks5 => {
                Dialogue::Socks(socks5::Client::connect(to, self.credentials.clone()))
            }
            Protocol::Http => Dialogue::http(to, self.credentials.as_deref()),
        };
        Ok(Box::new(ProxyStream::open(self, dialogue)?))
    }

    fn ends_at(&self, _: &Destination) -> SocketAddr {
        self.server
    }

    fn datagrams(&self, _: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
        match self.protocol {
            Protocol::Socks5 => Ok(Box::new(Association::open(self)?)),
            Protocol::Http => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_all_destinations_end_at_the_proxy() {
        let [server, to] = [1080, 80].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        let proxy = Proxy::new(Protocol::Socks5, server, None);
        assert_eq!(proxy.ends_at(&to.into()), server);
    }

    #[test]
    fn a_proxy_of_the_host_itself_is_behind_no_interface() {
        let outbound = Outbound { interface: Some("eth0".to_owned()), ..Outbound::default() };
        for (server, expected) in [
            ("192.0.2.1:1080", outbound.clone()),
            ("127.0.0.1:1080", Outbound::default()),
            ("[::1]:1080", Outbound::default()),
        ] {
            let proxy = Proxy::new(Protocol::Socks5, server.parse().expect("an address"), None);
            assert_eq!(proxy.outbound(outbound.clone()).outbound, expected, "{server}");
        }
    }

    #[test]
    fn credentials_fit_both_protocols_and_are_not_printed() {
        let good = Credentials::new("me", "a:b c").expect("usable");
        assert!(!format!("{good:?}").contains("a:b"));
        assert!(Credentials::new("", "x").is_none());
        assert!(Credentials::new("a:b", "x").is_none());
        assert!(Credentials::new("me", "x\r\nHost: y").is_none());
        assert!(Credentials::new("me", &"x".repeat(256)).is_none());
        assert!(Credentials::new("me", "").is_some());
    }
}
