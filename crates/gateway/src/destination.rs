//! Where a flow goes: an address, or a name that only the upstream resolves.

use crate::own_address::OwnAddress;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Where a flow goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Address and port. If there is a name, the address is one that stands for it, and that only
    /// the guest knows.
    pub address: SocketAddr,
    /// Name to be resolved by the upstream: at most 253 letters, digits, hyphens, underscores and
    /// dots, in lower case.
    pub name: Option<Arc<str>>,
    /// Address of the host that an answer leaves from, where the socket has none of its own.
    pub(crate) from: Option<OwnAddress>,
}

impl From<SocketAddr> for Destination {
    fn from(address: SocketAddr) -> Self {
        Self { address, name: None, from: None }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name}:{}", self.address.port()),
            None => self.address.fmt(f),
        }
    }
}
