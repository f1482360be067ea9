//! What dialogues with clients come to.

use super::body::Body;
use super::config::Target;
use bytes::Bytes;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// What is next in a dialogue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// More has to come.
    Receive,
    /// To be sent. The dialogue goes on.
    Send(Bytes),
    /// A connection is wanted. What is left of the received bytes is data.
    Open(Request),
    /// A way for datagrams is wanted, which come from this port; 0 is not known yet.
    Associate(u16),
    /// To be sent before the connection ends.
    Refuse(Bytes, Fault),
}

/// A connection that a client wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) target: Target,
    /// Goes to the target before all data.
    pub(super) head: Bytes,
    /// How many data the client may send.
    pub(super) body: Body,
}

/// Whose fault it is that a client gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It gave no right name and password.
    Unauthorised,
    /// It asked for what the door does not do, or does not speak its protocol.
    Malformed,
}

/// Why a connection could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Refused,
    Network,
    Host,
    TimedOut,
    Prohibited,
    /// There is no such name, or it has no address.
    NoName,
    /// No server has answered the question for the name.
    NoAnswer,
    /// No descriptors, ports or memory are left.
    Full,
    Other,
}

/// What became of a name: its addresses in the order in which they are to be tried, at least one.
pub(super) type Found = Result<Arc<[IpAddr]>, Failure>;

impl Failure {
    pub(super) fn of(error: &io::Error) -> Self {
        use io::ErrorKind::{
            AddrNotAvailable, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown,
            NetworkUnreachable, OutOfMemory, PermissionDenied, QuotaExceeded,
        };
        match error.kind() {
            ConnectionRefused | ConnectionReset => Self::Refused,
            NetworkUnreachable | NetworkDown => Self::Network,
            HostUnreachable => Self::Host,
            io::ErrorKind::TimedOut => Self::TimedOut,
            PermissionDenied => Self::Prohibited,
            AddrNotAvailable | OutOfMemory | QuotaExceeded => Self::Full,
            _ => match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => Self::Full,
                _ => Self::Other,
            },
        }
    }

    /// In words, for clients that show them.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Refused => "the target refuses the connection",
            Self::Network => "there is no route to the network of the target",
            Self::Host => "the target cannot be reached",
            Self::TimedOut => "the target does not answer",
            Self::Prohibited => "the connection is not allowed",
            Self::NoName => "the name of the target has no address",
            Self::NoAnswer => "no DNS server answers the question for the name of the target",
            Self::Full => "there is no room for one more connection",
            Self::Other => "the connection cannot be opened",
        }
    }
}

impl Request {
    /// A connection whose data pass as they are.
    pub(super) fn plain(target: Target) -> Self {
        Self { target, head: Bytes::new(), body: Body::Endless }
    }
}
