//! Why a socket call failed.

use crate::net::egress::NoRoute;
use crate::net::topology::NoSource;
use neap_tcp::connection::ConnectionError;
use thiserror::Error;

/// Why a socket call failed, besides what the connection itself says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SocketError {
    /// `EADDRINUSE`
    #[error("address already in use")]
    AddressInUse,
    /// `EADDRNOTAVAIL`: not an address of this host, or no port is left.
    #[error("cannot assign requested address")]
    AddressNotAvailable,
    /// `ENETUNREACH`
    #[error("network is unreachable")]
    NetworkUnreachable,
    /// `EHOSTUNREACH`
    #[error("no route to host")]
    HostUnreachable,
    /// `ECONNREFUSED`: a port unreachable message came back.
    #[error("connection refused")]
    Refused,
    /// `EAFNOSUPPORT`: IPv4 mixed with IPv6.
    #[error("address family not supported by protocol")]
    AddressFamily,
    /// `EDESTADDRREQ`
    #[error("destination address required")]
    DestinationRequired,
    /// `EMSGSIZE`
    #[error("message too long")]
    MessageTooLong,
    /// `EAGAIN`
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// `ENOBUFS`: the qdisc refused the datagram.
    #[error("no buffer space available")]
    NoBuffers,
    /// `EINVAL`
    #[error("invalid argument")]
    InvalidArgument,
    /// What an ICMP message said that has no word of its own here.
    #[error(transparent)]
    Reported(ConnectionError),
    /// The stack is shut down.
    #[error("the stack is shut down")]
    ShutDown,
}

impl From<ConnectionError> for SocketError {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Refused => Self::Refused,
            ConnectionError::HostUnreachable => Self::HostUnreachable,
            ConnectionError::NetworkUnreachable => Self::NetworkUnreachable,
            ConnectionError::MessageTooLong => Self::MessageTooLong,
            error => Self::Reported(error),
        }
    }
}

impl From<NoRoute> for SocketError {
    fn from(_: NoRoute) -> Self {
        Self::NetworkUnreachable
    }
}

impl From<NoSource> for SocketError {
    fn from(why: NoSource) -> Self {
        match why {
            NoSource::NoRoute => Self::NetworkUnreachable,
            NoSource::NoAddress => Self::AddressNotAvailable,
        }
    }
}
