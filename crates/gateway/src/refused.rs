//! Why the other half of a connection could not be opened, and what the guest is told.

use crate::counters::Counters;
use crate::host_errors::{self, Undelivered};
use crate::outbound::NotOwn;
use neap::{IcmpSocket, PendingConnection, Refusal};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::AtomicU64;

/// Reason why a connection was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The destination refused it, or what is not known: a reset.
    Reset,
    /// There is no way to the network.
    Network,
    /// The host does not answer, or there is no way to it.
    Host,
    /// The policy, or the administrator of the host, is against it.
    Prohibited,
    /// The gateway or the host has no room for one more: a reset.
    Full,
    /// The gateway ends, and takes nothing new: a reset.
    Draining,
    /// No port is left to connect from, or to send datagrams from.
    NoPort,
    /// The host does not have the address that flows are to leave from.
    NoAddress,
    /// The destination has not answered for as long as the host tries: the guest is told nothing,
    /// and gives up by itself, as it would without a gateway.
    TimedOut,
}

impl Refused {
    /// What an error of a connection that was to be opened means.
    pub(crate) fn of(error: &io::Error) -> Self {
        if NotOwn::is_why(error) {
            return Self::NoAddress;
        }
        let Some(errno) = error.raw_os_error() else { return Self::of_kind(error.kind()) };
        match Errno::from_raw_os_error(errno) {
            // The last is of an interface that is gone.
            Errno::NETUNREACH | Errno::NETDOWN | Errno::AFNOSUPPORT | Errno::NODEV => Self::Network,
            Errno::HOSTUNREACH | Errno::HOSTDOWN => Self::Host,
            Errno::TIMEDOUT => Self::TimedOut,
            Errno::ACCESS | Errno::PERM => Self::Prohibited,
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN => Self::Full,
            Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => Self::NoPort,
            _ => Self::Reset,
        }
    }

    /// The same of an error that no system call has made.
    fn of_kind(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => Self::Network,
            io::ErrorKind::HostUnreachable => Self::Host,
            io::ErrorKind::TimedOut => Self::TimedOut,
            // Who stands between does not speak as it should.
            io::ErrorKind::InvalidData => Self::Host,
            io::ErrorKind::PermissionDenied => Self::Prohibited,
            io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => Self::Full,
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => Self::NoPort,
            _ => Self::Reset,
        }
    }

    /// What counts it. What the policy is against is counted where that is asked.
    pub(crate) fn counter(self) -> fn(&Counters) -> &AtomicU64 {
        match self {
            Self::Full => |counters| &counters.full,
            Self::Draining => |counters| &counters.draining,
            Self::NoPort => |counters| &counters.no_port,
            Self::NoAddress => |counters| &counters.no_address,
            _ => |counters| &counters.unreached,
        }
    }

    /// Tells the guest: a reset, an ICMP error, or nothing.
    pub(crate) fn tell(self, pending: PendingConnection) {
        match self {
            Self::Reset | Self::Full | Self::Draining => pending.reset(),
            Self::Network | Self::NoPort | Self::NoAddress => pending.reject(Refusal::Network),
            Self::Host => pending.reject(Refusal::Host),
            Self::Prohibited => pending.reject(Refusal::Prohibited),
            Self::TimedOut => pending.ignore(),
        }
    }
}

/// Tells a guest what ICMP says of the connection that it wants, in the name of who has said it.
/// Whether it was told.
pub(crate) fn pass_on(pending: &PendingConnection, by: &IcmpSocket, said: &Undelivered) -> bool {
    host_errors::pass_on(by, &pending.to_packet(), pending.local_addr().ip(), said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_told_by_its_kind() {
        for (errno, why) in [
            (Errno::CONNREFUSED, Refused::Reset),
            (Errno::CONNRESET, Refused::Reset),
            (Errno::NETUNREACH, Refused::Network),
            (Errno::HOSTUNREACH, Refused::Host),
            (Errno::TIMEDOUT, Refused::TimedOut),
            (Errno::ACCESS, Refused::Prohibited),
            (Errno::PERM, Refused::Prohibited),
            (Errno::MFILE, Refused::Full),
            (Errno::NFILE, Refused::Full),
            (Errno::NOBUFS, Refused::Full),
            (Errno::ADDRNOTAVAIL, Refused::NoPort),
            (Errno::ADDRINUSE, Refused::NoPort),
        ] {
            let error = io::Error::from(errno);
            assert_eq!(Refused::of(&error), why, "{error}");
            // An upstream of another kind may say it without a number.
            let named = io::Error::from(error.kind());
            let is_uncategorized = matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOBUFS);
            assert!(is_uncategorized || Refused::of(&named) == why, "{named}");
        }
    }
}
