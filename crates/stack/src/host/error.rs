//! Errors of socket calls.

use crate::net::egress::NoRoute;
use crate::net::topology::NoSource;
use neap_tcp::connection::ConnectionError;
use thiserror::Error;

/// Reason why a socket call failed, other than an error of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another socket has the address and port (`EADDRINUSE`).
    #[error("address already in use")]
    AddressInUse,
    /// The address is not one of this host, or no port is left (`EADDRNOTAVAIL`).
    #[error("cannot assign requested address")]
    AddressNotAvailable,
    /// No route leads to the destination (`ENETUNREACH`).
    #[error("network is unreachable")]
    NetworkUnreachable,
    /// The destination host cannot be reached (`EHOSTUNREACH`).
    #[error("no route to host")]
    HostUnreachable,
    /// The peer has no socket on this port, as an ICMP message said (`ECONNREFUSED`).
    #[error("connection refused")]
    Refused,
    /// IPv4 and IPv6 addresses were mixed (`EAFNOSUPPORT`).
    #[error("address family not supported by protocol")]
    AddressFamily,
    /// The datagram has no destination, and the socket is not connected (`EDESTADDRREQ`).
    #[error("destination address required")]
    DestinationRequired,
    /// The datagram is larger than a packet can be (`EMSGSIZE`).
    #[error("message too long")]
    MessageTooLong,
    /// The call would have to wait (`EAGAIN`).
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// The qdisc refused the datagram (`ENOBUFS`).
    #[error("no buffer space available")]
    NoBuffers,
    /// An argument is invalid, such as port 0 for a peer (`EINVAL`).
    #[error("invalid argument")]
    InvalidArgument,
    /// An ICMP message reported another error.
    #[error(transparent)]
    Reported(ConnectionError),
    /// The stack was shut down.
    #[error("the stack is shut down")]
    ShutDown,
}

neap_tcp::debug_as_display!(SocketError);

impl SocketError {
    /// All errors but [`Reported`](Self::Reported), for tables that give each of them a meaning
    /// elsewhere.
    pub const ALL: &'static [Self] = &[
        Self::AddressInUse,
        Self::AddressNotAvailable,
        Self::NetworkUnreachable,
        Self::HostUnreachable,
        Self::Refused,
        Self::AddressFamily,
        Self::DestinationRequired,
        Self::MessageTooLong,
        Self::WouldBlock,
        Self::NoBuffers,
        Self::InvalidArgument,
        Self::ShutDown,
    ];
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A new error gets an arm here, and with it a place in the list.
    fn place(error: SocketError) -> usize {
        match error {
            SocketError::AddressInUse => 0,
            SocketError::AddressNotAvailable => 1,
            SocketError::NetworkUnreachable => 2,
            SocketError::HostUnreachable => 3,
            SocketError::Refused => 4,
            SocketError::AddressFamily => 5,
            SocketError::DestinationRequired => 6,
            SocketError::MessageTooLong => 7,
            SocketError::WouldBlock => 8,
            SocketError::NoBuffers => 9,
            SocketError::InvalidArgument => 10,
            SocketError::ShutDown => 11,
            SocketError::Reported(_) => 12,
        }
    }

    #[test]
    fn the_list_of_errors_is_complete() {
        let places: Vec<_> = SocketError::ALL.iter().map(|&error| place(error)).collect();
        assert_eq!(places, (0..12).collect::<Vec<_>>());
    }
}
