//! Why a proxy does not open a connection.

use std::io;

/// Why a proxy does not open a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProxyError {
    #[error("the proxy asks for a user and a password")]
    Unauthorised,
    #[error("the proxy does not take the user or the password")]
    Password,
    /// Reply codes of RFC 1928 section 6.
    #[error("the proxy answers with the SOCKS5 reply {0}")]
    Reply(u8),
    /// Status codes of RFC 9110 section 15.
    #[error("the proxy answers with the HTTP status {0}")]
    Status(u16),
    #[error("the server does not speak the protocol of the proxy")]
    Malformed,
    #[error("the answer of the proxy is too long")]
    TooLong,
    #[error("the proxy ends the connection without an answer")]
    Ended,
    #[error("the proxy does not answer")]
    Silent,
}

impl ProxyError {
    /// What it is for a guest. What says nothing of the destination is an unreachable host.
    fn kind(self) -> io::ErrorKind {
        use io::ErrorKind::{
            ConnectionRefused, HostUnreachable, InvalidData, NetworkUnreachable, PermissionDenied,
            TimedOut,
        };
        match self {
            Self::Unauthorised | Self::Password => PermissionDenied,
            // Not allowed by the rules.
            Self::Reply(2) => PermissionDenied,
            // A program tries its next address; of another family, if the proxy has one only.
            Self::Reply(3 | 8) => NetworkUnreachable,
            Self::Reply(5) => ConnectionRefused,
            // The TTL expired: routers have no way.
            Self::Reply(4 | 6) => HostUnreachable,
            // General failures, and codes of nobody's.
            Self::Reply(_) => HostUnreachable,
            Self::Status(401 | 403 | 407 | 451 | 511) => PermissionDenied,
            Self::Status(408 | 504) => TimedOut,
            // The proxy does not do CONNECT, or not to this port.
            Self::Status(400 | 405 | 501) => ConnectionRefused,
            Self::Status(_) => HostUnreachable,
            Self::Malformed | Self::TooLong => InvalidData,
            Self::Ended => HostUnreachable,
            Self::Silent => TimedOut,
        }
    }
}

/// What the error of a flow says of the proxy itself, rather than of the destination: words that go
/// behind its name. `None` for other errors. A proxy that has let a flow through may refuse the
/// next one for its destination: many allow some ports only.
pub(crate) fn fault(error: &io::Error, has_let_through: bool) -> Option<&'static str> {
    use ProxyError::{Ended, Malformed, Password, Status, TooLong, Unauthorised};
    match error.get_ref()?.downcast_ref()? {
        Unauthorised | Password | Status(401 | 407) => Some("does not let us in"),
        Malformed | TooLong => Some("is no such proxy"),
        _ if has_let_through => None,
        Status(403) => Some("has let nothing through yet"),
        // A web server does not do CONNECT.
        Ended | Status(400 | 405 | 501) => Some("is no such proxy"),
        _ => None,
    }
}

impl From<ProxyError> for io::Error {
    fn from(error: ProxyError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// What an error of the connection to the proxy is for a guest: the proxy's port, not the
/// destination's, refuses. Errors of the machine itself stay as they are.
pub(super) fn of_the_way(error: io::Error) -> io::Error {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable,
    };
    match error.kind() {
        ConnectionRefused | ConnectionReset | ConnectionAborted | NetworkUnreachable => {
            io::Error::new(HostUnreachable, error)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind;

    #[test]
    fn a_proxy_that_has_let_a_flow_through_is_at_fault_for_its_own_errors_only() {
        let (own, of_destinations) = (
            [ProxyError::Password, ProxyError::Status(407), ProxyError::Malformed],
            [400, 403, 405, 501].map(ProxyError::Status),
        );
        for (error, is_own) in own
            .map(|error| (error, true))
            .into_iter()
            .chain([ProxyError::Ended].into_iter().chain(of_destinations).map(|e| (e, false)))
        {
            assert!(fault(&error.into(), false).is_some(), "{error}");
            assert_eq!(fault(&error.into(), true).is_some(), is_own, "{error}");
        }
        assert_eq!(fault(&ProxyError::Reply(2).into(), false), None);
    }

    #[test]
    fn each_answer_is_the_refusal_that_it_means() {
        for (error, kind) in [
            (ProxyError::Reply(1), ErrorKind::HostUnreachable),
            (ProxyError::Reply(2), ErrorKind::PermissionDenied),
            (ProxyError::Reply(3), ErrorKind::NetworkUnreachable),
            (ProxyError::Reply(4), ErrorKind::HostUnreachable),
            (ProxyError::Reply(5), ErrorKind::ConnectionRefused),
            (ProxyError::Reply(6), ErrorKind::HostUnreachable),
            (ProxyError::Reply(7), ErrorKind::HostUnreachable),
            (ProxyError::Reply(8), ErrorKind::NetworkUnreachable),
            (ProxyError::Reply(0xff), ErrorKind::HostUnreachable),
            (ProxyError::Status(403), ErrorKind::PermissionDenied),
            (ProxyError::Status(407), ErrorKind::PermissionDenied),
            (ProxyError::Status(405), ErrorKind::ConnectionRefused),
            (ProxyError::Status(404), ErrorKind::HostUnreachable),
            (ProxyError::Status(502), ErrorKind::HostUnreachable),
            (ProxyError::Status(503), ErrorKind::HostUnreachable),
            (ProxyError::Status(504), ErrorKind::TimedOut),
        ] {
            assert_eq!(io::Error::from(error).kind(), kind, "{error}");
        }
        let refused = of_the_way(ErrorKind::ConnectionRefused.into());
        assert_eq!(refused.kind(), ErrorKind::HostUnreachable, "it was the proxy that refused");
    }
}
