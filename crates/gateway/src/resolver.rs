//! Who answers the questions of guests.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Who answers the questions of guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolver {
    /// The resolvers of the host: the first three `nameserver` lines of `/etc/resolv.conf`, which
    /// is read again when it has changed, or 127.0.0.1 if there is none. They are asked by the
    /// host itself, beside the upstream.
    #[default]
    Host,
    /// This one, asked by the host itself, beside the upstream.
    Server(SocketAddr),
    /// These, asked by way of the upstream: over TCP, or as a guest asks them where the upstream
    /// [says so](crate::Upstream::asks_by_datagrams). One that does not answer, or cannot, is
    /// followed by the next one, as those of the host are.
    Through(Vec<SocketAddr>),
    /// The gateway itself, with addresses of 198.18.0.0/15 that stand for names. What is sent to
    /// them goes to the upstream by name. Nothing else is asked.
    Names,
}

/// Reads the file that names the resolvers of the host, for a gateway whose process may open no
/// files. It is in [`GatewayConfig::resolvers_file`](crate::GatewayConfig::resolvers_file).
pub trait ResolversFile: fmt::Debug + Send + Sync {
    /// The bytes of `/etc/resolv.conf` as it is now. The thread of the gateway calls it after the
    /// state of the file (`stat(2)`) has changed, and waits meanwhile.
    ///
    /// # Errors
    /// Why the file cannot be read. The gateway asks 127.0.0.1 then, as where there is no file.
    fn read(&self) -> io::Result<Vec<u8>>;
}
