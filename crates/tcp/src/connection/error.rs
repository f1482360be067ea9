//! Errors of a connection.

use thiserror::Error;

/// Reason why a connection failed (`SO_ERROR`).
#[derive(Clone, Copy, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The peer answered the SYN with a reset: no socket listens there, or a firewall refuses
    /// (ECONNREFUSED).
    #[error("connection refused")]
    Refused,
    /// The peer reset the connection (ECONNRESET).
    #[error("connection reset by peer")]
    Reset,
    /// The peer reset the connection after its FIN (EPIPE).
    #[error("broken pipe")]
    BrokenPipe,
    /// The peer stopped answering (ETIMEDOUT).
    #[error("connection timed out")]
    TimedOut,
    /// A router or the own host has no way to the peer (EHOSTUNREACH).
    #[error("no route to host")]
    HostUnreachable,
    /// A router or the own host has no route to the peer's network (ENETUNREACH).
    #[error("network is unreachable")]
    NetworkUnreachable,
    /// The application or the own host ended the connection (ECONNABORTED).
    #[error("connection aborted")]
    Aborted,
    /// The peer does not speak TCP (ENOPROTOOPT).
    #[error("protocol not available")]
    ProtocolUnavailable,
    /// A source route failed (EOPNOTSUPP).
    #[error("operation not supported")]
    NotSupported,
    /// A router does not know the peer (EHOSTDOWN).
    #[error("host is down")]
    HostDown,
    /// The device on the way to the peer is gone (ENETDOWN).
    #[error("network is down")]
    NetworkDown,
    /// A router says that the own host is isolated (ENONET).
    #[error("machine is not on the network")]
    NoNetwork,
    /// A router or firewall forbids the connection (EACCES).
    #[error("permission denied")]
    Forbidden,
    /// A router or the peer could not understand a header (EPROTO).
    #[error("protocol error")]
    Protocol,
    /// A datagram is larger than a link on the way takes (EMSGSIZE). Connections do not see this.
    #[error("message too long")]
    MessageTooLong,
}

impl ConnectionError {
    /// All errors, for tables that give each of them a meaning elsewhere.
    pub const ALL: &'static [Self] = &[
        Self::Refused,
        Self::Reset,
        Self::BrokenPipe,
        Self::TimedOut,
        Self::HostUnreachable,
        Self::NetworkUnreachable,
        Self::Aborted,
        Self::ProtocolUnavailable,
        Self::NotSupported,
        Self::HostDown,
        Self::NetworkDown,
        Self::NoNetwork,
        Self::Forbidden,
        Self::Protocol,
        Self::MessageTooLong,
    ];
}

/// Reason why a write took nothing.
#[derive(Clone, Copy, Error, PartialEq, Eq)]
pub enum WriteError {
    /// There is no room in the buffer, or the connection is not established yet (EAGAIN).
    #[error("no room in the send buffer")]
    WouldBlock,
    /// The application shut the sending side down, or the connection is over (EPIPE).
    #[error("broken pipe")]
    Closed,
    /// The connection failed.
    #[error(transparent)]
    Failed(ConnectionError),
}

/// Reason why a read returned nothing.
#[derive(Clone, Copy, Error, PartialEq, Eq)]
pub enum ReadError {
    /// Nothing has arrived (EAGAIN).
    #[error("nothing to read")]
    WouldBlock,
    /// The connection failed.
    #[error(transparent)]
    Failed(ConnectionError),
}

crate::debug_as_display!(ConnectionError, WriteError, ReadError);

/// What the application has not been told yet, and what ended the connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Errors {
    /// `sk_err`; it stays known when it was told.
    failure: Option<ConnectionError>,
    was_told: bool,
    /// `sk_err_soft`: what a router reported, for when the connection times out.
    soft: Option<ConnectionError>,
}

impl Errors {
    /// The next call is told `error`.
    pub(super) fn set(&mut self, error: ConnectionError) {
        (self.failure, self.was_told) = (Some(error), false);
    }

    /// No call is told what was set.
    pub(super) fn forget(&mut self) {
        self.was_told = true;
    }

    /// Whether an error was ever set.
    pub(super) fn is_set(&self) -> bool {
        self.failure.is_some()
    }

    /// Whether an error is to be told.
    pub(super) fn is_pending(&self) -> bool {
        self.failure.is_some() && !self.was_told
    }

    /// Tells what was set, once.
    pub(super) fn take(&mut self) -> Option<ConnectionError> {
        let error = self.failure.filter(|_| !self.was_told)?;
        self.was_told = true;
        Some(error)
    }

    /// Tells what was set, once, or what a router reported, once.
    pub(super) fn take_any(&mut self) -> Option<ConnectionError> {
        self.take().or_else(|| self.soft.take())
    }

    /// A router reported an error that may pass.
    pub(super) fn note_soft(&mut self, error: ConnectionError) {
        self.soft = Some(error);
    }

    /// Whether a router reported an error that has not passed.
    pub(super) fn has_soft(&self) -> bool {
        self.soft.is_some()
    }

    /// The peer is there after all.
    pub(super) fn forget_soft(&mut self) {
        self.soft = None;
    }

    /// Why the peer does not answer, as far as a router said.
    pub(super) fn why_timed_out(&self) -> ConnectionError {
        self.soft.unwrap_or(ConnectionError::TimedOut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new error gets an arm here, and with it a place in the list.
    fn place(error: ConnectionError) -> usize {
        match error {
            ConnectionError::Refused => 0,
            ConnectionError::Reset => 1,
            ConnectionError::BrokenPipe => 2,
            ConnectionError::TimedOut => 3,
            ConnectionError::HostUnreachable => 4,
            ConnectionError::NetworkUnreachable => 5,
            ConnectionError::Aborted => 6,
            ConnectionError::ProtocolUnavailable => 7,
            ConnectionError::NotSupported => 8,
            ConnectionError::HostDown => 9,
            ConnectionError::NetworkDown => 10,
            ConnectionError::NoNetwork => 11,
            ConnectionError::Forbidden => 12,
            ConnectionError::Protocol => 13,
            ConnectionError::MessageTooLong => 14,
        }
    }

    #[test]
    fn the_list_of_errors_is_complete() {
        let places: Vec<_> = ConnectionError::ALL.iter().map(|&error| place(error)).collect();
        assert_eq!(places, (0..15).collect::<Vec<_>>());
    }
}
